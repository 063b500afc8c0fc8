"""Stores: where states live and plans are decided. Redis, a database, or this process's memory."""
