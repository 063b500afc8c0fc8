"""The Redis of an alias of `CACHES`: of Django's own cache, of django-redis, or none."""

from __future__ import annotations

import sys
from typing import Any

from django.conf import settings
from django.core.cache import caches
from django.core.cache.backends.redis import RedisCache
from django.utils.module_loading import import_string

from django_quota.core.errors import did_you_mean
from django_quota.stores.redis.settings import NAME_A_REDIS, Alias, RedisProblem, WhichRedis, cannot_serve

_WITHOUT_REDIS = (
    'Without Redis, use QUOTA = {"STORE": "memory"}, which suits tests and single processes, or "database".'
)


def redis_of_alias(alias: str) -> WhichRedis:
    """Return the Redis of an alias. Its `problem()` says whether it can serve."""
    if alias not in settings.CACHES:
        words = f'QUOTA["CACHE"] is {alias!r}, but there is no such alias in CACHES.'
        hint = f'Add it, or name the Redis itself in QUOTA["REDIS"].{did_you_mean(alias, settings.CACHES)}'
        return _NoRedis(alias, RedisProblem("E003", words, hint))
    path = str(settings.CACHES[alias].get("BACKEND", ""))
    try:
        backend = import_string(path)
    except ImportError as error:
        return _NoRedis(alias, cannot_serve(f'CACHES["{alias}"] cannot be imported: {error}.', NAME_A_REDIS))
    if isinstance(backend, type) and issubclass(backend, RedisCache):
        return _DjangoAlias(alias)
    django_redis: Any = sys.modules.get("django_redis.cache")  # its backends have imported it
    if django_redis is not None and isinstance(backend, type) and issubclass(backend, django_redis.RedisCache):
        from django_quota.stores.redis.django_redis import DjangoRedisAlias  # noqa: PLC0415 — not all sites have it

        return DjangoRedisAlias(alias)
    words = f'CACHES["{alias}"] is {path}, which cannot run scripts in Redis.'
    return _NoRedis(alias, cannot_serve(words, NAME_A_REDIS)._replace(instead=_WITHOUT_REDIS))


class _NoRedis(Alias):
    """An alias that is not a Redis."""

    def __init__(self, alias: str, problem: RedisProblem) -> None:
        super().__init__(alias)
        self._problem = problem

    def place_problem(self) -> RedisProblem:
        return self._problem


class _DjangoAlias(Alias):
    """An alias of Django's own `RedisCache`."""

    options_hint = "Use options of redis.ConnectionPool, and paths that lead to classes."
    separators = ",;"

    def new_pool(self) -> Any:
        cache: Any = caches.create_connection(self._alias)
        return cache._cache.get_client(write=True).connection_pool  # noqa: SLF001 — only its client knows the options

    def option(self, name: str) -> Any:
        return self.options.get(name)
