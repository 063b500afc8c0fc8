"""The Redis store: connections, breaker, errors, and one script call for each operation."""
