"""What redis-py fails with, for real: servers that are in that state, and sockets that do what no Redis does."""
