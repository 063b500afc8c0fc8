"""What is wrong with the settings of a cache alias. It opens no connection, and its texts show no password.

It reports what you would otherwise not notice: a failed connection only makes rules decide by `on_unavailable`.
"""

from __future__ import annotations

import inspect
import re
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from django.conf import settings
from django.utils.module_loading import import_string
from django_redis.cache import RedisCache
from django_redis.client import SentinelClient, ShardClient
from django_redis.pool import get_connection_factory
from redis import Redis

from django_quota.core.errors import did_you_mean, without_secrets
from django_quota.stores.cluster.client import (
    CLUSTER_HINT,
    ClusterClient,
    ClusterConnectionFactory,
    is_cluster,
    location_problem,
)
from django_quota.stores.redis.config import (
    ANSWER_TIMEOUT,
    LONG_TIMEOUT,
    QUOTE_HINT,
    TIMEOUTS,
    config_of,
    is_timeout,
    locations,
    options_of,
    parse_location,
    primary_location,
    unquoted_password_problem,
    with_timeouts,
    without_password,
)

USE_DJANGO_REDIS = (
    'Set its BACKEND to "django_redis.cache.RedisCache" and its LOCATION to a Redis URL, such as '
    '"redis://127.0.0.1:6379/0"; or name another alias in QUOTA["CACHE"].'
)


class AliasProblem(NamedTuple):
    """Why a cache alias cannot serve; `code` is the number of its system check."""

    code: str
    message: str
    hint: str


# --- which alias ------------------------------------------------------------------------------------------------------


def alias_problem(alias: str) -> AliasProblem | None:
    """Say why the Redis of a cache alias cannot serve; None if it can."""
    place = f'CACHES["{alias}"]'
    if alias not in settings.CACHES:
        return AliasProblem(
            "E003",
            f'QUOTA["CACHE"] is {alias!r}, but there is no such alias in CACHES.',
            f"Add one with the backend django_redis.cache.RedisCache.{did_you_mean(alias, settings.CACHES)}",
        )
    config = config_of(alias)
    path = config.get("BACKEND", "")
    try:
        backend = import_string(path)
    except ImportError as error:
        return AliasProblem("E004", f"{place} cannot be imported: {error}.", USE_DJANGO_REDIS)
    if not issubclass(backend, RedisCache):
        return AliasProblem("E004", f"{place} is {path}, which cannot run scripts in Redis.", USE_DJANGO_REDIS)
    problem = _location_problem(place, config.get("LOCATION") or "")
    return problem or _client_problem(place, options_of(alias), config["LOCATION"])


_SCHEMES = ("redis://", "rediss://", "unix://")


def _location_problem(place: str, location: object) -> AliasProblem | None:
    """Check all URLs, though writes go to the first: a comma in a password makes two URLs of one."""
    for url in locations(location):
        if not url.startswith(_SCHEMES):
            may_be_cut = "@" in str(location)  # then this may be a part of the password
            shown = "..." if may_be_cut and "@" not in url else without_password(url)
            words = f"The LOCATION of {place} is {shown!r}, which is not a Redis URL."
            return AliasProblem("E004", words, QUOTE_HINT if may_be_cut else USE_DJANGO_REDIS)
        if problem := unquoted_password_problem(url):
            words = f"The LOCATION of {place} does not lead where it seems to: {problem}."
            return AliasProblem("E004", words, QUOTE_HINT)
        try:
            parse_location(url)
        except ValueError as error:
            hint = f'Use, for example, "redis://127.0.0.1:6379/0". {QUOTE_HINT}'
            return AliasProblem("E004", f"The LOCATION of {place} is not a Redis URL: {error}.", hint)
        if name := _database_that_is_no_number(url):
            shown = "..." if "@" in str(location) and "@" not in url else name  # then it is part of the password
            words = (
                f"The LOCATION of {place} names the database {shown!r}, which is not a number: redis-py would use 0."
            )
            return AliasProblem("E004", words, f'Use, for example, "redis://127.0.0.1:6379/0". {QUOTE_HINT}')
    return None


def _database_that_is_no_number(url: str) -> str:
    scheme, _, rest = url.partition("://")
    name = rest.partition("?")[0].partition("/")[2]
    return "" if scheme == "unix" or re.fullmatch(r"[\d/]*", name) else name


def _client_problem(place: str, options: Mapping[str, Any], location: object) -> AliasProblem | None:
    path = options.get("CLIENT_CLASS", "django_redis.client.DefaultClient")
    try:
        client = import_string(path)
    except (ImportError, AttributeError, ValueError) as error:
        return AliasProblem("E004", f"The CLIENT_CLASS of {place} cannot be imported: {error}.", USE_DJANGO_REDIS)
    if not isinstance(client, type):
        return AliasProblem("E004", f"The CLIENT_CLASS of {place} is not a class: {path}.", USE_DJANGO_REDIS)
    if issubclass(client, ShardClient):
        return AliasProblem(
            "E005",
            f"{place} uses the ShardClient, which spreads keys over servers by itself: a script has no single home.",
            "Use an alias with the DefaultClient, the SentinelClient or the ClusterClient.",
        )
    if issubclass(client, SentinelClient) and (missing := _missing_for_sentinel(options)):
        return AliasProblem(
            "E004", f"{place} uses the SentinelClient, but sets no {' and no '.join(missing)}.", _SENTINEL_HINT
        )
    words = location_problem(location) if issubclass(client, ClusterClient) else None
    return (
        AliasProblem("E004", f"The LOCATION of {place} does not lead to a Cluster: {words}.", CLUSTER_HINT)
        if words
        else None
    )


def _missing_for_sentinel(options: Mapping[str, Any]) -> list[str]:
    for_all = getattr(settings, "DJANGO_REDIS_CONNECTION_FACTORY", None)  # django-redis' setting for all aliases
    given = {"CONNECTION_FACTORY": options.get("CONNECTION_FACTORY", for_all), "SENTINELS": options.get("SENTINELS")}
    return [name for name, value in given.items() if not value]


_SENTINEL_HINT = (
    'Use, for example, "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory" and "SENTINELS": '
    '[("10.0.0.1", 26379)] in its OPTIONS.'
)


# --- its options ------------------------------------------------------------------------------------------------------


def option_problem(alias: str) -> AliasProblem | None:
    """Say why no connection can be made with the OPTIONS of an alias whose client and LOCATION are right.

    redis-py and django-redis make the object of one connection, and say themselves what is wrong. Only time-outs are
    checked here: redis-py takes any value for them, and fails at the first call.
    """
    connection_class: Any = Redis
    try:
        pool = _new_pool(alias)
        connection_class = pool.connection_class
        connection_class(**with_timeouts(pool.connection_kwargs))
        for place, value in _timeouts(alias, pool):
            if not is_timeout(value):
                words = f'{place} of CACHES["{alias}"] is {reprlib.repr(value)}, which is not a timeout.'
                return AliasProblem("E013", words, f"Use a number of seconds above 0, for example {ANSWER_TIMEOUT:g}.")
    except Exception as error:  # noqa: BLE001 — the first call would raise it too
        said = without_secrets(f"{type(error).__name__}: {str(error).rstrip('.')}")
        words = f'The OPTIONS of CACHES["{alias}"] do not make a connection: {said}.'
        return AliasProblem("E014", words, _hint(said, connection_class))
    return None


def long_timeouts(alias: str) -> list[tuple[str, float]]:
    """Return the time-outs of an alias that keep threads waiting for long, each with its place."""
    return [(place, value) for place, value in _timeouts(alias, _new_pool(alias)) if value > LONG_TIMEOUT]


def timeouts_not_set(alias: str) -> list[str]:
    """Return the time-outs that an alias does not set, under the names of django-redis."""
    given = _new_pool(alias).connection_kwargs
    return [name.upper() for name in TIMEOUTS if given.get(name) is None]


def _new_pool(alias: str) -> Any:
    """Return a pool made of the settings of an alias, which is not the one that django-redis shares."""
    make: Any = ClusterConnectionFactory if is_cluster(alias) else get_connection_factory
    factory = make(options=options_of(alias))
    return factory.get_connection_pool(
        factory.make_connection_params(primary_location(config_of(alias).get("LOCATION", "")))
    )


def _timeouts(alias: str, pool: Any) -> Iterator[tuple[str, Any]]:
    """Yield the time-outs that an alias sets, also for its sentinels, each with its place."""
    groups = {"": pool.connection_kwargs, " in SENTINEL_KWARGS": options_of(alias).get("SENTINEL_KWARGS") or {}}
    for where, given in groups.items():
        yield from ((name + where, given[name]) for name in TIMEOUTS if given.get(name) is not None)


_UNKNOWN_OPTION = re.compile(r"unexpected keyword argument '(\w+)'")
"""What Python says of an option that nobody takes."""


def _hint(said: str, connection_class: type) -> str:
    unknown = _UNKNOWN_OPTION.search(said)
    if unknown is None:
        return (
            "Give CONNECTION_POOL_KWARGS options of redis.Connection, paths that lead to classes, and SENTINELS as "
            '[("10.0.0.1", 26379)].'
        )
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
