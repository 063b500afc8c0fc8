"""Helpers for your tests: set the clock, start with no counts, run a private Redis.

`freeze(now)` sets the clock for a block. `clear()` deletes the counts of this process. `running_redis()` runs a Redis
server for a block. `django_quota.testing.fixtures` has a pytest fixture that clears around each test.
"""

from __future__ import annotations

from django_quota.core.clock import freeze
from django_quota.services.registry import clear_memory
from django_quota.testing.redis_server import NoRedisServerError, RedisServer, running_redis, server_programs

__all__ = ["NoRedisServerError", "RedisServer", "clear", "freeze", "running_redis", "server_programs"]


def clear() -> None:
    """Delete what this process has counted in its own memory.

    With `STORE="memory"` these are all limits, bans, counters, leases, reservations and published overrides.
    Redis keeps its counts.
    """
    clear_memory()
