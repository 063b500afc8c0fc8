"""Clients for plain commands: those of the admin, of `manage.py` commands and of the event stream.

They are django-redis' own, but wait no longer than an operator would where the alias sets no time-outs. It must not
know what is asked.
"""

from __future__ import annotations

from typing import Any

from redis import ConnectionPool, Redis
from redis.sentinel import SentinelConnectionPool

from django_quota.stores.timeouts import TIMEOUTS

PLAIN_WITHIN = 2.0
"""Seconds that a connection may take to be made, and a reply to come, where the alias does not say."""

_OF_THE_POOL = "connection_pool"
"""What a Sentinel's pool adds to the options of its connections by itself."""


def plain_client(client: Redis) -> Redis:
    """Return a client that is set up as this one, with time-outs; this very one where it has them."""
    pool: Any = client.connection_pool
    missing = {name: PLAIN_WITHIN for name in TIMEOUTS if pool.connection_kwargs.get(name) is None}
    return type(client)(connection_pool=_alike(pool, missing)) if missing else client


def _alike(pool: Any, more: dict[str, Any]) -> Any:
    options = {name: value for name, value in pool.connection_kwargs.items() if name != _OF_THE_POOL}
    options.update(more)
    if not isinstance(pool, SentinelConnectionPool):
        return ConnectionPool(pool.connection_class, pool.max_connections, **options)
    make: Any = SentinelConnectionPool  # redis-py leaves it untyped
    for name in ("is_master", "check_connection", "connection_class", "max_connections"):
        options[name] = getattr(pool, name)
    return make(pool.service_name, pool.sentinel_manager, **options)
