"""Events: what was refused or banned, and what is near its limit."""
