"""A Redis server: its connections, sync and async, and its breaker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from redis import Redis, RedisError

from django_quota.core.forks import register_fork_aware
from django_quota.stores.breaker import Breaker, Call
from django_quota.stores.redis.connections import Command, PoolsByLoop, SyncPool, async_pool, sync_pool
from django_quota.stores.redis.sources import plain_client, pool_of
from django_quota.stores.redis.which import WhichRedis


class ServerClient:
    """The client of one server. It raises redis-py's errors."""

    def __init__(self, which: WhichRedis) -> None:
        self.breaker = Breaker()
        self.async_pools = PoolsByLoop(partial(async_pool, which))
        self._which = which
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start without connections: a forked worker must not write to the sockets of its parent."""
        self._made: dict[str, Any] = {}

    @property
    def pool(self) -> SyncPool:
        """The connections of all threads."""
        found: SyncPool = self._made.get("pool") or self._made.setdefault("pool", sync_pool(self._which))
        return found

    def execute(self, command: Command) -> Any:
        """Send a command once, and return its reply. Raises redis-py's error for an error reply, too."""
        with Call(self.breaker) as call:
            return self.pool.execute(command, call.is_refused)

    async def aexecute(self, command: Command) -> Any:
        """Send a command; see `execute`."""
        pool = await self.async_pools.get()
        with Call(self.breaker) as call:
            return await pool.execute(command, call.is_refused)

    @contextmanager
    def commands(self) -> Iterator[Redis]:
        """Lend a client for plain commands on this server alone."""
        with Call(self.breaker, only=(RedisError, OSError)) as call:
            client = self._made.get("plain") or self._made.setdefault("plain", plain_client(pool_of(self._which)))
            if call.is_probe:  # calls within the block would be refused until it has ended
                client.eval("return 1", 0)
                self.breaker.succeeded()
            yield client

    def close(self) -> None:
        """Close idle connections; an event loop closes its own."""
        made = self._made.pop("pool", None)
        self.after_fork()
        if made is not None:
            made.close()
