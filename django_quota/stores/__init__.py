"""Stores: where states live and plans are decided. Redis through django-redis, or this process's memory."""
