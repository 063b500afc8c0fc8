"""How to make connections like those of a pool of redis-py: with its class of connections and its options.

The pool belongs to a cache alias, whose client has read its settings, or is made from `QUOTA["REDIS"]`. So limits
connect as redis-py does: TLS, unix sockets, Sentinel, passwords, and all its other options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import redis.asyncio as aioredis
from redis import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection, sentinel
from redis.asyncio import sentinel as aiosentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_quota.stores.redis.settings import ANSWER_TIMEOUT, TIMEOUTS, WhichRedis, known_options, with_timeouts
from django_quota.stores.redis.urls import Address

_ASYNC: Mapping[type[Any], type[Any]] = {
    Connection: aioredis.Connection,
    SSLConnection: aioredis.SSLConnection,
    UnixDomainSocketConnection: aioredis.UnixDomainSocketConnection,
    sentinel.SentinelManagedConnection: aiosentinel.SentinelManagedConnection,
    sentinel.SentinelManagedSSLConnection: aiosentinel.SentinelManagedSSLConnection,
}
"""The async class of each sync one."""

_LEFT_OUT = ("retry", "maint", "orig_", "oss_", "himport")
"""The beginnings of options that our connections do not get.

No command is repeated. Notices of maintenance would change time-outs, and close connections of the pool that gets them.
"""

_SYNC_ONLY = ("parser_class", "command_packer")


class Source(NamedTuple):
    """How to make connections to a Redis."""

    connection_class: type[Any]
    options: Mapping[str, Any]
    sentinels: Any = None
    """The pool that asks the sentinels for the primary; None without Sentinel."""

    def make(self) -> Any:
        """Return a new connection, which is not connected yet."""
        return self.connection_class(**self.options)

    @property
    def sentinel_clients(self) -> Sequence[Any]:
        """redis-py's clients of the sentinels."""
        return self.sentinels.sentinel_manager.sentinels if self.sentinels else ()

    def leads_elsewhere(self, connection: Any) -> bool:
        """Say whether Sentinel has named another primary. The pool's own answer does not work in a forked worker."""
        pool = self.sentinels
        return pool is not None and pool.is_master and pool.master_address != (connection.host, connection.port)


def pool_of(which: WhichRedis) -> Any:
    """Return a new pool of redis-py. Raises `ConfigurationError` if the settings are wrong.

    The pool asks each sentinel once, with the time-outs of Redis itself unless the settings say otherwise. By default,
    redis-py waits several times, for seconds, for a sentinel that hangs.
    """
    which.raise_problem()
    pool = which.new_pool()
    if _has_sentinels(pool):
        given = {**pool.connection_kwargs, **pool.sentinel_manager.sentinel_kwargs}
        for each in pool.sentinel_manager.sentinels:
            timeouts = {name: given.get(name) or ANSWER_TIMEOUT for name in TIMEOUTS}
            each.connection_pool.connection_kwargs.update(timeouts)
            each.set_retry(Retry(NoBackoff(), 0))
    return pool


def _has_sentinels(pool: Any) -> bool:
    return isinstance(pool, sentinel.SentinelConnectionPool)


def pool_from(options: Mapping[str, Any]) -> ConnectionPool:
    """Return a pool of connections with these options, to a server or a socket."""
    options = dict(options)
    if "unix_socket_path" in options:
        options.update(path=options.pop("unix_socket_path"), connection_class=UnixDomainSocketConnection)
    is_encrypted = options.pop("ssl", False)
    return ConnectionPool(**{"connection_class": SSLConnection if is_encrypted else Connection, **options})


def pool_of_server(address: Address, options: Mapping[str, Any]) -> ConnectionPool:
    """Return a pool of connections to one server of a Cluster."""
    its_own = {name: value for name, value in options.items() if name != "startup_nodes"}
    return pool_from({**its_own, "host": address.host, "port": int(address.port)})


def sync_source(pool: Any) -> Source:
    """Return how to make connections like those of a pool."""
    return Source(pool.connection_class, _options(pool), pool if _has_sentinels(pool) else None)


def async_source(pool: Any) -> Source:
    """Return how to make async connections like those of a sync pool."""
    if not _has_sentinels(pool):
        return _async_source(pool)
    make_manager, make_pool = cast("Any", aiosentinel.Sentinel), cast("Any", aiosentinel.SentinelConnectionPool)
    manager = make_manager([])
    for each in map(_async_source, (each.connection_pool for each in pool.sentinel_manager.sentinels)):
        its_pool: Any = aioredis.ConnectionPool(each.connection_class, **each.options)
        manager.sentinels.append(aioredis.Redis(connection_pool=its_pool))
    options = {"is_master": pool.is_master, "check_connection": pool.check_connection}
    sentinels = make_pool(pool.service_name, manager, **options)
    made = _async_source(pool)
    return made._replace(options={**made.options, "connection_pool": sentinels}, sentinels=sentinels)


def _async_source(pool: Any) -> Source:
    made = next((_ASYNC[each] for each in pool.connection_class.__mro__ if each in _ASYNC), aioredis.Connection)
    known = known_options(made)
    options = {
        name: value
        for name, value in _options(pool).items()
        if name not in _SYNC_ONLY and (value or name in known)  # what is set must not be ignored silently
    }
    return Source(made, options)


def _options(pool: Any) -> dict[str, Any]:
    """Return the options of our connections: short time-outs if there are none, and replies as bytes."""
    options = with_timeouts(pool.connection_kwargs)
    kept = {name: value for name, value in options.items() if not name.startswith(_LEFT_OUT)}
    return {**kept, "decode_responses": False}
