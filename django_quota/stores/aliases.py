"""Cache aliases: which one can serve as our Redis, and what keeps another from it. It opens no connection.

What is said of an alias holds no password: a LOCATION often does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from django.conf import settings
from django.core.cache import InvalidCacheBackendError
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from django_redis import get_redis_connection
from django_redis.cache import RedisCache
from django_redis.client import SentinelClient, ShardClient
from redis import Redis

from django_quota.exceptions import ConfigurationError, did_you_mean
from django_quota.stores.cluster import CLUSTER_HINT, ClusterClient, location_problem
from django_quota.stores.locations import QUOTE_HINT, misread, parts_of, without_password


class AliasProblem(NamedTuple):
    """Why a cache alias cannot serve; `code` is the number of its system check."""

    code: str
    message: str
    hint: str


def alias_problem(alias: str) -> AliasProblem | None:
    """Say what keeps a cache alias from serving as our Redis; None where nothing does."""
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
        return AliasProblem("E004", f"{place} cannot be imported: {error}.", _USE_DJANGO_REDIS)
    if not issubclass(backend, RedisCache):
        return AliasProblem("E004", f"{place} is {path}, which cannot run scripts in Redis.", _USE_DJANGO_REDIS)
    problem = _location_problem(place, config.get("LOCATION") or "")
    options = config.get("OPTIONS") or {}
    return problem or _client_problem(place, options, config["LOCATION"])


def _location_problem(place: str, location: object) -> AliasProblem | None:
    """Say what is wrong with any of the URLs: writes go to the first, and a comma in a password makes two of one."""
    for url in locations(location):
        if not url.startswith(_SCHEMES):
            may_be_cut = "@" in str(location)  # and this be a part of the password
            shown = "..." if may_be_cut and "@" not in url else without_password(url)
            words = f"The LOCATION of {place} is {shown!r}, which is no Redis URL."
            return AliasProblem("E004", words, QUOTE_HINT if may_be_cut else _USE_DJANGO_REDIS)
        if why := misread(url):
            words = f"The LOCATION of {place} does not lead where it seems to: {why}."
            return AliasProblem("E004", words, QUOTE_HINT)
        try:
            parts_of(url)
        except ValueError as error:
            return AliasProblem("E004", f"The LOCATION of {place} is no Redis URL: {error}.", QUOTE_HINT)
    return None


_SCHEMES = ("redis://", "rediss://", "unix://")


def _client_problem(place: str, options: Mapping[str, Any], location: object) -> AliasProblem | None:
    path = options.get("CLIENT_CLASS", "django_redis.client.DefaultClient")
    try:
        client = import_string(path)
    except (ImportError, AttributeError, ValueError) as error:
        return AliasProblem("E004", f"The CLIENT_CLASS of {place} cannot be imported: {error}.", _USE_DJANGO_REDIS)
    if not isinstance(client, type):
        return AliasProblem("E004", f"The CLIENT_CLASS of {place} is no class: {path}.", _USE_DJANGO_REDIS)
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
    return AliasProblem("E004", f"The LOCATION of {place} is no Cluster: {words}.", CLUSTER_HINT) if words else None


def _missing_for_sentinel(options: Mapping[str, Any]) -> list[str]:
    of_all = getattr(settings, "DJANGO_REDIS_CONNECTION_FACTORY", None)  # of django-redis, for every alias
    given = {"CONNECTION_FACTORY": options.get("CONNECTION_FACTORY", of_all), "SENTINELS": options.get("SENTINELS")}
    return [name for name, value in given.items() if not value]


_SENTINEL_HINT = (
    '"CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory" and "SENTINELS": [("10.0.0.1", 26379)] among '
    "its OPTIONS would do."
)

_USE_DJANGO_REDIS = (
    'Set its BACKEND to "django_redis.cache.RedisCache" and its LOCATION to a Redis URL, such as '
    '"redis://127.0.0.1:6379/0"; or name another alias in QUOTA["CACHE"].'
)


def config_of(alias: str) -> dict[str, Any]:
    """Return the settings of an alias. Raises `KeyError` where there is none of the name."""
    return cast("dict[str, dict[str, Any]]", settings.CACHES)[alias]


def sync_client(alias: str) -> Redis:
    """Return django-redis' client of the alias. Raises `ConfigurationError` where the alias cannot serve."""
    problem = alias_problem(alias)
    if problem is not None:
        raise ConfigurationError(problem.message, problem.hint)
    try:
        return cast("Redis", get_redis_connection(alias, write=True))
    except ImproperlyConfigured as error:
        hint = "`manage.py check` says which of its OPTIONS, and what would do."
        raise ConfigurationError(f'CACHES["{alias}"] cannot be used: {error}.', hint) from error
    except (NotImplementedError, InvalidCacheBackendError) as error:
        raise ConfigurationError(f'CACHES["{alias}"] cannot be used: {error}.', _USE_DJANGO_REDIS) from error


def primary_location(location: object) -> str:
    """Return the URL that writes go to: the first, as django-redis takes it."""
    return locations(location)[0]


def locations(location: object) -> list[str]:
    """Return the URLs of a LOCATION, at least one, as django-redis takes them apart."""
    given = location.split(",") if isinstance(location, str) else map(str, cast("Iterable[object]", location))
    return [url.strip() for url in given] or [""]
