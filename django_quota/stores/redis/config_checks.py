"""What is wrong with the settings of a Redis. It opens no connection, and its texts show no password.

It reports what you would otherwise not notice: a failed connection only makes rules decide by `on_unavailable`.
"""

from __future__ import annotations

import inspect
import re
import reprlib
from collections.abc import Iterator, Sequence
from typing import Any

from redis import Redis

from django_quota.core.errors import did_you_mean, without_secrets
from django_quota.stores.redis.config import (
    ANSWER_TIMEOUT,
    LONG_TIMEOUT,
    QUOTE_HINT,
    TIMEOUTS,
    is_timeout,
    parse_location,
    unquoted_password_problem,
    with_timeouts,
    without_password,
)
from django_quota.stores.redis.which import RedisProblem, WhichRedis

NAME_A_REDIS = (
    'Name the Redis itself, for example QUOTA = {"REDIS": "redis://127.0.0.1:6379/0"}; or name in QUOTA["CACHE"] an '
    'alias whose BACKEND is "django_redis.cache.RedisCache" or "django.core.cache.backends.redis.RedisCache".'
)


NO_REDIS = (
    f'{NAME_A_REDIS} Without Redis, use QUOTA = {{"STORE": "memory"}}, which suits tests and single processes, or '
    '"database".'
)


def cannot_serve(message: str, hint: str) -> RedisProblem:
    """Return what is wrong with an alias, apart from its options."""
    return RedisProblem("E004", message, hint)


# --- URLs -------------------------------------------------------------------------------------------------------------

_SCHEMES = ("redis://", "rediss://", "unix://")


def locations_problem(what: str, location: object, urls: Sequence[str]) -> RedisProblem | None:
    """Check all URLs of a LOCATION, though writes go to the first: a comma in a password makes two URLs of one.

    `what`: how texts name the LOCATION.
    """
    for url in urls:
        if words := url_problem(what, url, may_be_cut="@" in str(location)):
            return cannot_serve(*words)
    return None


def url_problem(what: str, url: str, *, may_be_cut: bool = False) -> tuple[str, str] | None:
    """Say what is wrong with the URL of a server, and what to write; None if it is right.

    `may_be_cut`: whether it may be a part of a password.
    """
    if not url.startswith(_SCHEMES):
        shown = "..." if may_be_cut and "@" not in url else without_password(url)
        return f"{what} is {shown!r}, which is not a Redis URL.", QUOTE_HINT if may_be_cut else NAME_A_REDIS
    if problem := unquoted_password_problem(url):
        return f"{what} does not lead where it seems to: {problem}.", QUOTE_HINT
    hint = f'Use, for example, "redis://127.0.0.1:6379/0". {QUOTE_HINT}'
    try:
        parse_location(url)
    except ValueError as error:
        return f"{what} is not a Redis URL: {error}.", hint
    if name := _database_that_is_no_number(url):
        shown = "..." if may_be_cut and "@" not in url else name  # then it is part of the password
        return f"{what} names the database {shown!r}, which is not a number: redis-py would use 0.", hint
    return None


def _database_that_is_no_number(url: str) -> str:
    scheme, _, rest = url.partition("://")
    name = rest.partition("?")[0].partition("/")[2]
    return "" if scheme == "unix" or re.fullmatch(r"[\d/]*", name) else name


# --- its options ------------------------------------------------------------------------------------------------------


def option_problem(which: WhichRedis) -> RedisProblem | None:
    """Say why no connection can be made with the options of a Redis that has no other problem.

    redis-py and the cache make one connection object here, and say themselves what is wrong. Only time-outs are
    checked here: redis-py takes any value for them, and fails at the first call.
    """
    connection_class: Any = Redis
    try:
        pool = which.new_pool()
        connection_class = pool.connection_class
        connection_class(**with_timeouts(pool.connection_kwargs))
        for place, value in _timeouts(which, pool):
            if not is_timeout(value):
                words = f"{place} of {which.name} is {reprlib.repr(value)}, which is not a timeout."
                return RedisProblem("E013", words, f"Use a number of seconds above 0, for example {ANSWER_TIMEOUT:g}.")
    except Exception as error:  # noqa: BLE001 — the first call would raise it too
        said = without_secrets(f"{type(error).__name__}: {str(error).rstrip('.')}")
        words = f"{which.options_name} do not make a connection: {said}."
        return RedisProblem("E014", words, _hint(said, connection_class, which.options_hint))
    return None


def long_timeouts(which: WhichRedis) -> list[tuple[str, float]]:
    """Return the time-outs that keep threads waiting for long, each with its place."""
    return [(place, value) for place, value in _timeouts(which, which.new_pool()) if value > LONG_TIMEOUT]


def timeouts_not_set(which: WhichRedis) -> Sequence[str]:
    """Return the time-outs that others who use these settings need and that are not set, by the names they have."""
    given = which.new_pool().connection_kwargs
    return which.timeout_names([name for name in TIMEOUTS if given.get(name) is None])


def _timeouts(which: WhichRedis, pool: Any) -> Iterator[tuple[str, Any]]:
    """Yield the time-outs that are set, also for sentinels, each with its place."""
    groups = {"": pool.connection_kwargs, f" in {which.sentinel_options_name}": which.sentinel_options() or {}}
    for where, given in groups.items():
        yield from ((name + where, given[name]) for name in TIMEOUTS if given.get(name) is not None)


_UNKNOWN_OPTION = re.compile(r"unexpected keyword argument '(\w+)'")
"""What Python says of an option that nobody takes."""


def _hint(said: str, connection_class: type, otherwise: str) -> str:
    unknown = _UNKNOWN_OPTION.search(said)
    if unknown is None:
        return otherwise
    if unknown[1] == "connection_pool":  # a Sentinel's pool gives it to its own kinds of connection only
        return (
            "django-redis cannot use rediss:// behind Sentinel. Use, for example, "
            '"LOCATION": "redis://mymaster/0" with "CONNECTION_POOL_KWARGS": {"ssl": True}.'
        )
    near = did_you_mean(unknown[1], _known_options(connection_class))
    return near.strip() if "mean" in near else "Remove it: redis-py knows no such option."


def _known_options(kind: type) -> set[str]:
    makers = [vars(each)["__init__"] for each in kind.__mro__ if "__init__" in vars(each)]
    named = {name for make in makers if inspect.isfunction(make) for name in inspect.signature(make).parameters}
    return {*named, "max_connections"} - {"self", "args", "kwargs"}
