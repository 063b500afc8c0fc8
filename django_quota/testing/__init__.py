"""Helpers for your tests: set the clock, start with no counts, use a limit up, run a private Redis.

pytest finds the fixture `quota` by itself; a `TestCase` takes `QuotaTestMixin`. Both make a `QuotaKit` for each test.
`freeze(now)` sets the clock for a block. `clear()` deletes the counts of this process. `running_redis()` runs a Redis
server for a block.
"""

from __future__ import annotations

from django_quota.core.clock import freeze
from django_quota.limiting.registry import clear_memory
from django_quota.testing.kit import QuotaKit, QuotaTestMixin, quota_kit
from django_quota.testing.redis_server import NoRedisServerError, RedisServer, running_redis, server_programs

__all__ = [
    "NoRedisServerError",
    "QuotaKit",
    "QuotaTestMixin",
    "RedisServer",
    "clear",
    "freeze",
    "quota_kit",
    "running_redis",
    "server_programs",
]


def clear() -> None:
    """Delete what this process has counted in its own memory.

    With `STORE="memory"` these are all limits, bans, counters, leases and reservations. A shared store keeps its
    counts.
    """
    clear_memory()
