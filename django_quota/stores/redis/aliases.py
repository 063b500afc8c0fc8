"""The Redis of an alias of `CACHES`: of Django's own backend, or of django-redis, which is imported only then."""

from __future__ import annotations

import sys
from typing import Any, cast

from django.conf import settings
from django.core.cache import caches
from django.core.cache.backends.redis import RedisCache
from django.utils.module_loading import import_string

from django_quota.core.errors import did_you_mean
from django_quota.stores.redis.config import locations
from django_quota.stores.redis.config_checks import NAME_A_REDIS, NO_REDIS, cannot_serve, locations_problem
from django_quota.stores.redis.which import RedisProblem, WhichRedis


def redis_of_alias(alias: str) -> WhichRedis:
    """Return the Redis of an alias. Whether it can serve, its `problem()` says."""
    place = f'CACHES["{alias}"]'
    if alias not in settings.CACHES:
        words = f'QUOTA["CACHE"] is {alias!r}, but there is no such alias in CACHES.'
        hint = f'Add it, or name the Redis itself in QUOTA["REDIS"].{did_you_mean(alias, settings.CACHES)}'
        return _NoRedis(place, RedisProblem("E003", words, hint))
    path = str(settings.CACHES[alias].get("BACKEND", ""))
    try:
        backend = import_string(path)
    except ImportError as error:
        return _NoRedis(place, cannot_serve(f"{place} cannot be imported: {error}.", NAME_A_REDIS))
    if isinstance(backend, type) and issubclass(backend, RedisCache):
        return _DjangoAlias(alias)
    django_redis: Any = sys.modules.get("django_redis.cache")  # its backends have imported it
    if django_redis is not None and isinstance(backend, type) and issubclass(backend, django_redis.RedisCache):
        from django_quota.stores.redis.django_redis_alias import DjangoRedisAlias  # noqa: PLC0415 — not all sites have it

        return DjangoRedisAlias(alias)
    problem = cannot_serve(f"{place} is {path}, which cannot run scripts in Redis.", NO_REDIS)
    return _NoRedis(place, problem._replace(is_another_cache=True))


class _NoRedis(WhichRedis):
    """An alias that is no Redis."""

    def __init__(self, name: str, problem: RedisProblem) -> None:
        self.name = name
        self._problem = problem

    def problem(self) -> RedisProblem:
        return self._problem


class _DjangoAlias(WhichRedis):
    """An alias of Django's own `RedisCache`."""

    options_hint = "Use options of redis.ConnectionPool, and paths that lead to classes."

    def __init__(self, alias: str) -> None:
        self.name = f'CACHES["{alias}"]'
        self.options_name = f"The OPTIONS of {self.name}"
        self._alias = alias

    def problem(self) -> RedisProblem | None:
        location = settings.CACHES[self._alias].get("LOCATION") or ""
        return locations_problem(f"The LOCATION of {self.name}", location, locations(location, ",;"))

    def new_pool(self) -> Any:
        cache: Any = caches.create_connection(self._alias)
        return cache._cache.get_client(write=True).connection_pool  # noqa: SLF001 — only its client knows the options

    def pool_option(self, name: str) -> Any:
        return cast("dict[str, Any]", settings.CACHES[self._alias].get("OPTIONS") or {}).get(name)
