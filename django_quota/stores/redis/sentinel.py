"""An alias behind Sentinel: its async pool, and short time-outs for the sentinels.

Sync connections are django-redis' own: they ask a sentinel for the primary whenever they connect.
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

from django_quota.core.errors import ConfigurationError
from django_quota.stores.redis.config import TIMEOUTS, with_timeouts


def shorten_sentinel_timeouts(pool: Any, options: Mapping[str, Any]) -> None:
    """Let a sync pool ask each sentinel once, for the time that Redis itself has, unless the alias says otherwise.

    Otherwise redis-py waits for seconds for a sentinel that hangs, several times. `options`: of the cache alias.
    """
    manager = getattr(pool, "sentinel_manager", None)
    if manager is None:
        return
    asking = _sentinel_options(options, pool.connection_kwargs, Retry(NoBackoff(), 0))
    for sentinel in manager.sentinels:
        sentinel.connection_pool.connection_kwargs.update({name: asking[name] for name in TIMEOUTS})
        sentinel.set_retry(asking["retry"])


def _sentinel_options(options: Mapping[str, Any], connecting: Mapping[str, Any], no_retry: object) -> dict[str, Any]:
    given = options.get("SENTINEL_KWARGS")
    if given is None:
        given = {name: connecting.get(name) for name in TIMEOUTS}
    return {"retry": no_retry, **with_timeouts(given)}


_FOR_DJANGO_REDIS = ("host", "port", "connection_class", "is_master")
"""Parts of a URL that are no options of a connection; `host` is the name of the service."""


def async_sentinel_pool(
    url: str, options: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[Any, Sequence[aioredis.Redis]]:
    """Return a pool for the primary that a URL names, and the clients of the sentinels.

    `options`: of the cache alias. `given`: options of its connections; those of the URL win. Raises
    `ConfigurationError` if the URL names no service.
    """
    parts = dict(cast("Mapping[str, Any]", parse_url(url)))
    service = parts.get("host")
    if service is None:
        raise ConfigurationError("The LOCATION names no Sentinel service.", "Use, for example, 'redis://mymaster/0'.")
    classes = (parts.get("connection_class"), given.get("connection_class"))
    is_encrypted = any(isinstance(each, type) and issubclass(each, _ENCRYPTED) for each in classes)
    kwargs = {name: value for name, value in {**given, **parts}.items() if name not in _FOR_DJANGO_REDIS}
    make_sentinel = cast("Any", Sentinel)  # redis-py leaves it untyped
    asking = _sentinel_options(options, kwargs, AsyncRetry(NoBackoff(), 0))
    sentinel = make_sentinel(options["SENTINELS"], sentinel_kwargs=asking, **kwargs)
    encrypted = {"ssl": True} if is_encrypted else {}
    return sentinel.master_for(service, **encrypted).connection_pool, tuple(sentinel.sentinels)


_ENCRYPTED = (SSLConnection, aioredis.SSLConnection)
