"""The state that the site starts with: no counts, a stock to sell, credits to send."""

from __future__ import annotations

from django.conf import settings

from django_quota import counter

STOCK = 20
CREDITS = 100


def start_over() -> None:
    """Delete all counts of this site, and set the counters that the scenarios start with."""
    _forget_all()
    counter("stock").set("sku:1", STOCK)
    counter("credits").set("user:ann", CREDITS)


def _forget_all() -> None:
    """Delete the keys under `QUOTA["PREFIX"]` and no others: other programs may share the Redis.

    The database of a run is new, and empty.
    """
    if settings.QUOTA["STORE"] == "database":
        return
    from django_redis import get_redis_connection  # noqa: PLC0415 — a site on the database imports no Redis package

    client = get_redis_connection("default")
    keys = list(client.scan_iter(match=f"{settings.QUOTA['PREFIX']}:*", count=500))
    if keys:
        client.unlink(*keys)
