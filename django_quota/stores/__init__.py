"""Stores: where states live and hits are decided. Redis, a database, or this process's memory."""
