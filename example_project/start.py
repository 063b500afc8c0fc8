"""What the site starts with, and starts over with: nothing counted, a stock to sell, credits to send."""

from __future__ import annotations

from io import StringIO

from django.core.management import call_command
from django_redis import get_redis_connection

from django_quota import counter
from django_quota.conf import conf
from django_quota.keys import pattern

STOCK = 20
CREDITS = 100


def start_over() -> None:
    """Forget all that this site has counted, and set the counters that its scenes begin with."""
    _forget_all()
    call_command("quota_sync", stdout=StringIO(), stderr=StringIO())  # overrides are rows: they hold on
    counter("stock").set("sku:1", STOCK)
    counter("credits").set("user:ann", CREDITS)


def _forget_all() -> None:
    """Drop every key under `QUOTA["PREFIX"]` and no other, found by SCAN: the Redis may be shared."""
    client = get_redis_connection(conf.cache)
    keys = list(client.scan_iter(match=pattern(conf.prefix), count=500))
    if keys:
        client.unlink(*keys)
