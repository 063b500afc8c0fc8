"""An alias behind Sentinel: its async client, and questions to sentinels that wait no longer than those to Redis.

Sync connections are django-redis' own, which ask where the primary is whenever they connect. It must not know what they
are for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import redis.asyncio as aioredis
from redis import SSLConnection
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_quota.exceptions import ConfigurationError
from django_quota.stores.timeouts import TIMEOUTS, with_timeouts

_OF_DJANGO_REDIS = ("host", "port", "connection_class", "is_master")
"""What a URL says beside how to connect: the service's name, for one."""


def ask_in_time(pool: Any, options: Mapping[str, Any]) -> None:
    """Have a sync pool ask each sentinel once and briefly, unless the alias says otherwise: one may hang.

    redis-py would wait for seconds, and come back to it after further seconds. `options`: of the cache alias.
    """
    asking = _asking(options, pool.connection_kwargs, Retry(NoBackoff(), 0))
    for sentinel in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
        sentinel.connection_pool.connection_kwargs.update({name: asking[name] for name in TIMEOUTS})
        sentinel.set_retry(asking["retry"])


def _asking(options: Mapping[str, Any], connecting: Mapping[str, Any], never: object) -> dict[str, Any]:
    """Return how sentinels are asked: as the alias says, else once, in the time that Redis has; `never`: no retry."""
    given = options.get("SENTINEL_KWARGS")
    if given is None:
        given = {name: connecting.get(name) for name in TIMEOUTS}
    return {"retry": never, **with_timeouts(given)}


def async_sentinel_client(
    url: str, options: Mapping[str, Any], given: Mapping[str, Any], max_connections: int
) -> tuple[aioredis.Redis, Sequence[aioredis.Redis]]:
    """Return a client of the primary that a URL names, and those that ask the sentinels for it.

    `options`: of the cache alias; `given`: of its connections, before those that the URL has. Raises
    `ConfigurationError` where the URL names no service.
    """
    parts = dict(cast("Mapping[str, Any]", parse_url(url)))
    service = parts.get("host")
    if service is None:
        raise ConfigurationError("The LOCATION names no Sentinel service.", "'redis://mymaster/0' would do.")
    classes = (parts.get("connection_class"), given.get("connection_class"))
    is_encrypted = any(isinstance(one, type) and issubclass(one, _ENCRYPTED) for one in classes)
    merged = {**given, **parts}
    kwargs = {name: value for name, value in merged.items() if name not in _OF_DJANGO_REDIS}
    make_sentinel = cast("Any", Sentinel)  # redis-py leaves it untyped
    asking = _asking(options, kwargs, AsyncRetry(NoBackoff(), 0))
    sentinel = make_sentinel(options["SENTINELS"], sentinel_kwargs=asking, **kwargs)
    encrypted = {"ssl": True} if is_encrypted else {}
    client = sentinel.master_for(service, max_connections=max_connections, **encrypted)
    return client, tuple(sentinel.sentinels)


_ENCRYPTED = (SSLConnection, aioredis.SSLConnection)
