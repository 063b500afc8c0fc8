"""Forgets all that this site has counted: the keys under its own prefix, and no others."""

from __future__ import annotations

from django_redis import get_redis_connection

from django_quota.conf import conf
from django_quota.keys import pattern


def forget_all() -> None:
    """Drop every key under `QUOTA["PREFIX"]`, found by SCAN: the Redis may be shared."""
    client = get_redis_connection(conf.cache)
    keys = list(client.scan_iter(match=pattern(conf.prefix), count=500))
    if keys:
        client.unlink(*keys)
