"""Help for tests, yours and ours: put another clock in the place of Redis', run a private Redis.

`freeze(now)` decides as if it were `now` (integer microseconds); `running_redis()` starts a server for a block.
"""

from __future__ import annotations

from django_quota.clock import freeze
from django_quota.testing.redis_server import NoRedisServerError, RedisServer, running_redis, server_programs

__all__ = ["NoRedisServerError", "RedisServer", "freeze", "running_redis", "server_programs"]
