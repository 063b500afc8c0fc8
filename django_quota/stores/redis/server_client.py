"""A Redis server: its connections, sync and async, and its breaker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis import Redis

from django_quota.core.forks import register_fork_aware
from django_quota.stores.breaker import Breaker, Call
from django_quota.stores.redis.async_wire import ByLoop, async_wire
from django_quota.stores.redis.connections import SyncPool, sync_pool
from django_quota.stores.redis.errors import answered_plain
from django_quota.stores.redis.settings import PLAIN_TIMEOUT, WhichRedis, with_timeouts
from django_quota.stores.redis.sources import pool_of


class ServerClient:
    """The client of one server. It raises redis-py's errors."""

    def __init__(self, which: WhichRedis) -> None:
        self.breaker = Breaker()
        self.wires = ByLoop(lambda: async_wire(pool_of(which), which.option, self.breaker))
        self._which = which
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start without connections: a forked worker must not write to the sockets of its parent."""
        self._made: dict[str, tuple[SyncPool, Redis]] = {}

    def _connections(self) -> tuple[SyncPool, Redis]:
        """Return the connections of all threads, and a client for plain commands, which may take longer."""
        found = self._made.get("")
        if found is None:
            pool = pool_of(self._which)
            ours = sync_pool(pool, self._which.option, self.breaker)
            pool.connection_kwargs.update(with_timeouts(pool.connection_kwargs, PLAIN_TIMEOUT))
            found = self._made.setdefault("", (ours, Redis(connection_pool=pool)))
        return found

    @property
    def pool(self) -> SyncPool:
        """The connections of all threads."""
        return self._connections()[0]

    @contextmanager
    def commands(self) -> Iterator[Redis]:
        """Lend a client for plain commands on this server alone."""
        with Call(self.breaker, answered_plain) as call:
            client = self._connections()[1]
            if call.is_probe:  # calls within the block would be refused until it has ended
                client.eval("return 1", 0)
                self.breaker.succeeded()
            yield client

    def close(self) -> None:
        """Close idle connections; an event loop closes its own."""
        made = self._made.get("")
        self.after_fork()
        if made is not None:
            made[0].close()
            made[1].connection_pool.disconnect()
