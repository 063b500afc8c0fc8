"""How long a request may wait for Redis, where the cache alias does not say. It knows options and no connections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ANSWER_WITHIN = 0.25
"""Seconds that a connection may take to be made, and a reply to come, where the alias does not say."""

TIMEOUTS = ("socket_timeout", "socket_connect_timeout")


def with_timeouts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a connection's options with short timeouts where there are none: a request must not hang with Redis."""
    return {**options, **{name: ANSWER_WITHIN for name in TIMEOUTS if options.get(name) is None}}


def missing_timeouts(options: Mapping[str, Any]) -> list[str]:
    """Return which of the timeouts the OPTIONS of a cache alias do not set, as django-redis calls them."""
    pool = options.get("CONNECTION_POOL_KWARGS") or {}
    missing = [name for name in TIMEOUTS if options.get(name.upper()) is None and pool.get(name) is None]
    return [name.upper() for name in missing]
