"""Help for tests, yours and ours: set the clock, begin with no counts, run a private Redis.

`freeze(now)` sets the clock for a block; `clear()` forgets what this process has counted; `running_redis()` starts a
server for a block. The pytest fixture that clears around each test is in `django_quota.testing.fixtures`.
"""

from __future__ import annotations

from django_quota.clock import freeze
from django_quota.limiter import clear_memory
from django_quota.testing.redis_server import NoRedisServerError, RedisServer, running_redis, server_programs

__all__ = ["NoRedisServerError", "RedisServer", "clear", "freeze", "running_redis", "server_programs"]


def clear() -> None:
    """Forget everything that this process has counted in its own memory.

    With `STORE="memory"` these are all limits, bans, counters, leases, reservations and published overrides. Redis is
    neither asked nor emptied.
    """
    clear_memory()
