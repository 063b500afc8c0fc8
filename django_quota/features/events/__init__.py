"""Events: what was refused, banned or is near its limit."""
