"""How to make connections like those of a pool of redis-py: with its class of connections and its options.

The pool is that of a cache alias, whose own client has read its settings, or one made of `QUOTA["REDIS"]`. So limits
connect as redis-py does: TLS, unix sockets, Sentinel, passwords, and whatever else it takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from copy import copy
from typing import Any, NamedTuple, cast

import redis.asyncio as aioredis
from redis import Connection, Redis, SSLConnection, UnixDomainSocketConnection, sentinel
from redis.asyncio import sentinel as aiosentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_quota.core.errors import ConfigurationError
from django_quota.stores.redis.config import ANSWER_TIMEOUT, PLAIN_TIMEOUT, TIMEOUTS, with_timeouts
from django_quota.stores.redis.config_checks import option_problem
from django_quota.stores.redis.which import WhichRedis

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

    def leads_elsewhere(self, connection: Any) -> bool:
        """Say whether Sentinel has named another primary. The pool's own answer does not work in a forked worker."""
        pool = self.sentinels
        return pool is not None and pool.is_master and pool.master_address != (connection.host, connection.port)


def pool_of(which: WhichRedis) -> Any:
    """Return redis-py's pool of a Redis. Raises `ConfigurationError` if its settings are wrong."""
    problem = which.problem() or option_problem(which)
    if problem is not None:
        raise ConfigurationError(problem.message, problem.hint)
    pool = which.pool()
    if _has_sentinels(pool):
        _ask_sentinels_once(pool, which.sentinel_options())
    return pool


def _has_sentinels(pool: Any) -> bool:
    return isinstance(pool, sentinel.SentinelConnectionPool)


def _ask_sentinels_once(pool: Any, given: Mapping[str, Any] | None) -> None:
    """Ask each sentinel once, with the time-outs of Redis itself, unless the alias says otherwise.

    By default, redis-py waits several times, for seconds, for a sentinel that hangs.
    """
    timeouts = pool.connection_kwargs if given is None else given
    retry = (given or {}).get("retry") or Retry(NoBackoff(), 0)
    for each in pool.sentinel_manager.sentinels:
        each.connection_pool.connection_kwargs.update({name: timeouts.get(name) or ANSWER_TIMEOUT for name in TIMEOUTS})
        each.set_retry(retry)


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
    known = {
        name
        for each in made.__mro__
        if "__init__" in vars(each)
        for name in inspect.signature(vars(each)["__init__"]).parameters
    }
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


def plain_client(pool: Any) -> Redis:
    """Return a client for plain commands over this pool; if it has no time-outs, over a similar pool with some."""
    options = with_timeouts(pool.connection_kwargs, PLAIN_TIMEOUT)
    if any(options[name] != pool.connection_kwargs.get(name) for name in TIMEOUTS):
        pool = copy(pool)
        pool.connection_kwargs = options
        pool.reset()
    return Redis(connection_pool=pool)
