"""An alias behind Sentinel: its async client, and questions to sentinels that wait no longer than those to Redis.

Where no sentinel names a primary, the error says why: redis-py's own shows its clients, and so their passwords, first.

Sync connections are django-redis' own, which ask where the primary is whenever they connect. It must not know what they
are for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import redis.asyncio as aioredis
from redis import SSLConnection
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import MasterNotFoundError as AsyncMasterNotFoundError
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

from django_quota.exceptions import ConfigurationError
from django_quota.stores.timeouts import TIMEOUTS, with_timeouts

_OF_DJANGO_REDIS = ("host", "port", "connection_class", "is_master")
"""What a URL says beside how to connect: the service's name, for one."""


def ask_in_time(pool: Any, options: Mapping[str, Any]) -> None:
    """Have a sync pool ask each sentinel once and briefly, unless the alias says otherwise: one may hang.

    redis-py would wait for seconds, and come back to it after further seconds. `options`: of the cache alias.
    """
    manager = getattr(pool, "sentinel_manager", None)
    if manager is None:
        return
    if "discover_master" not in vars(manager):  # it is django-redis' own, and others may have come before
        manager.discover_master = partial(_discover, manager, manager.discover_master)
        for sentinel in manager.sentinels:
            sentinel.sentinel_masters = partial(_ask, sentinel, sentinel.sentinel_masters)
    asking = _asking(options, pool.connection_kwargs, Retry(NoBackoff(), 0))
    for sentinel in manager.sentinels:
        sentinel.connection_pool.connection_kwargs.update({name: asking[name] for name in TIMEOUTS})
        sentinel.set_retry(asking["retry"])


_failed: ContextVar[list[tuple[Any, str]] | None] = ContextVar("failed", default=None)
"""The sentinels that have failed while this call asks for a primary, and by what; redis-py tells the kind at best."""


def _ask(sentinel: Any, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception as error:
        _note(sentinel, error)
        raise


async def _aask(sentinel: Any, ask: Callable[[], Any]) -> Any:
    try:
        return await ask()
    except Exception as error:
        _note(sentinel, error)
        raise


def _note(sentinel: Any, error: Exception) -> None:
    failed = _failed.get()
    if failed is not None:
        failed.append((sentinel, f"{type(error).__name__}: {error}"))


def _discover(manager: Any, discover: Callable[[str], Any], service: str) -> Any:
    before = _failed.set([])
    try:
        return discover(service)
    except MasterNotFoundError:
        raise MasterNotFoundError(_why(service, len(manager.sentinels))) from None
    finally:
        _failed.reset(before)


class _Sentinel(Sentinel):
    """redis-py's own, but that its error says why."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cast("Any", super()).__init__(*args, **kwargs)  # redis-py leaves it untyped
        for sentinel in cast("Any", self).sentinels:
            sentinel.sentinel_masters = partial(_aask, sentinel, sentinel.sentinel_masters)

    async def discover_master(self, service_name: str) -> Any:
        """Return where a primary is; see redis-py."""
        before = _failed.set([])
        try:
            return await cast("Any", super()).discover_master(service_name)
        except AsyncMasterNotFoundError:
            raise AsyncMasterNotFoundError(_why(service_name, len(cast("Any", self).sentinels))) from None
        finally:
            _failed.reset(before)


def _why(service: str, asked: int) -> str:
    """Return why no sentinel has named a primary, by what the last of them that failed has said."""
    none, failed = f"No sentinel names a primary {service!r}", _failed.get()
    if not failed:
        return f"{none}: those that answer know none of that name that is up ({asked} asked)"
    sentinel, said = failed[-1]
    known = sentinel.connection_pool.connection_kwargs
    for secret in filter(None, (known.get("password"), known.get("username"))):
        said = said.replace(str(secret), "***")  # who answered may have been no sentinel, and have repeated it
    others = "" if len(failed) >= asked else "; the others know none of that name that is up"
    return (
        f"{none}: {len(failed)} of {asked} failed, the last, {known.get('host')}:{known.get('port')}, by {said}{others}"
    )


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
    make_sentinel = cast("Any", _Sentinel)  # redis-py leaves it untyped
    asking = _asking(options, kwargs, AsyncRetry(NoBackoff(), 0))
    sentinel = make_sentinel(options["SENTINELS"], sentinel_kwargs=asking, **kwargs)
    encrypted = {"ssl": True} if is_encrypted else {}
    client = sentinel.master_for(service, max_connections=max_connections, **encrypted)
    return client, tuple(sentinel.sentinels)


_ENCRYPTED = (SSLConnection, aioredis.SSLConnection)
