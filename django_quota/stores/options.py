"""The OPTIONS of a cache alias: what redis-py and django-redis take without a word, and stumble over at the first call.

It makes the object of one connection, which shows whether its options are known, and never connects. What is said holds
no password.
"""

from __future__ import annotations

import inspect
import re
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

from django_redis.pool import get_connection_factory
from redis import Redis

from django_quota.exceptions import did_you_mean, without_secrets
from django_quota.stores.aliases import AliasProblem, config_of, primary_location
from django_quota.stores.cluster import ClusterConnectionFactory, is_cluster
from django_quota.stores.locations import parts_of
from django_quota.stores.timeouts import (
    ANSWER_WITHIN,
    Given,
    given_timeouts,
    is_long,
    is_time,
    missing_timeouts,
    with_timeouts,
)

_GROUPS = ("CONNECTION_POOL_KWARGS", "REDIS_CLIENT_KWARGS", "SENTINEL_KWARGS")

_UNKNOWN = re.compile(r"unexpected keyword argument '(\w+)'")
"""What Python says of an option that nobody takes."""


def option_problems(alias: str) -> list[AliasProblem]:
    """Say what is wrong with the OPTIONS of an alias whose client and LOCATION are right."""
    config = config_of(alias)
    options, of_url = config.get("OPTIONS") or {}, _of_url(config)
    found = [*_groups(options), *_times(options, of_url), *_counts(options, of_url)]
    if found:
        return [AliasProblem("E013", f'CACHES["{alias}"]{words}', hint) for words, hint in found]
    problem = _connection_problem(alias, config)
    return [] if problem is None else [problem]


def long_timeouts(alias: str) -> list[Given]:
    """Return the time-outs of an alias that keep threads waiting for long."""
    config = config_of(alias)
    return [given for given in given_timeouts(config.get("OPTIONS") or {}, _of_url(config)) if is_long(given.value)]


def timeouts_not_set(alias: str) -> list[str]:
    """Return which time-outs an alias does not set, as django-redis calls them."""
    config = config_of(alias)
    return missing_timeouts(config.get("OPTIONS") or {}, _of_url(config))


def _of_url(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return parts_of(primary_location(config["LOCATION"]))


Finding = tuple[str, str]
"""The place with what is wrong there, and what would do."""


def _groups(options: Mapping[str, Any]) -> Iterator[Finding]:
    for group in _GROUPS:
        given = options.get(group, {})
        if not isinstance(given, Mapping) and not (given is None and group == "SENTINEL_KWARGS"):
            yield f'["OPTIONS"]["{group}"] is {type(given).__name__}, not a dict.', '{"socket_timeout": 0.25} would do.'


def _times(options: Mapping[str, Any], of_url: Mapping[str, Any]) -> Iterator[Finding]:
    for given in given_timeouts(options, of_url):
        if not is_time(given.value):
            hint = f"A number of seconds above 0 would do, such as {ANSWER_WITHIN:g}."
            yield f"{given.place} is {reprlib.repr(given.value)}, which is no time to wait.", hint


def _counts(options: Mapping[str, Any], of_url: Mapping[str, Any]) -> Iterator[Finding]:
    pool = options.get("CONNECTION_POOL_KWARGS")
    groups = {
        '["OPTIONS"]["CONNECTION_POOL_KWARGS"]["max_connections"]': pool,
        '["LOCATION"], its max_connections,': of_url,
    }
    for place, group in groups.items():
        value = group.get("max_connections") if isinstance(group, Mapping) else None
        if value is not None and not (isinstance(value, int) and not isinstance(value, bool) and value > 0):
            yield f"{place} is {reprlib.repr(value)}, which is no number of connections.", "50 would do, for one."


def _connection_problem(alias: str, config: Mapping[str, Any]) -> AliasProblem | None:
    """Say why no connection can be made of the options: not to Redis, but the object of one."""
    made_of: Any = None
    try:
        options = dict(config.get("OPTIONS") or {})  # django-redis adds to it
        make: Any = ClusterConnectionFactory if is_cluster(alias) else get_connection_factory
        factory = make(options=options)
        # Not the one that django-redis keeps for all who use the alias.
        pool = factory.get_connection_pool(factory.make_connection_params(primary_location(config["LOCATION"])))
        made_of = pool.connection_class
        made_of(**with_timeouts(pool.connection_kwargs))
    except Exception as error:  # noqa: BLE001 — whatever it is would be raised at the first call
        said = without_secrets(f"{type(error).__name__}: {str(error).rstrip('.')}")
        if _OF_SENTINEL in said:  # a connection of Sentinel's takes it, and one of rediss:// does not
            return AliasProblem(
                "E014", f'CACHES["{alias}"] is rediss:// behind Sentinel, which makes no connection.', _SSL_HINT
            )
        return AliasProblem(
            "E014", f'The OPTIONS of CACHES["{alias}"] make no connection: {said}.', _hint(said, made_of)
        )
    return None


_OF_SENTINEL = "argument 'connection_pool'"

_SSL_HINT = (
    '"LOCATION": "redis://mymaster/0" with "CONNECTION_POOL_KWARGS": {"ssl": True} would do: of rediss:// django-redis '
    "makes connections that know no Sentinel."
)


def _hint(said: str, connection_class: object) -> str:
    unknown = _UNKNOWN.search(said)
    if unknown is None:
        return _SENTINELS_HINT if "unpack" in said else _OPTIONS_HINT
    if unknown[1] == "ssl":
        return "Leave it out: a LOCATION of rediss:// would do."
    near = did_you_mean(unknown[1], _known(connection_class if isinstance(connection_class, type) else Redis))
    return near.strip() if "mean" in near else "Remove it: redis-py knows no such option."


_OPTIONS_HINT = "CONNECTION_POOL_KWARGS may hold what redis.Connection takes, and paths must lead to classes."

_SENTINELS_HINT = '"SENTINELS": [("10.0.0.1", 26379)] would do.'


def _known(kind: type) -> set[str]:
    makers = [vars(each)["__init__"] for each in kind.__mro__ if "__init__" in vars(each)]
    named = {name for make in makers if inspect.isfunction(make) for name in inspect.signature(make).parameters}
    return {*named, "max_connections"} - {"self", "args", "kwargs"}
