"""The refusals of a subject that the event stream still tells of, by rules that only a call knows as well.

It reads the end of the stream, in one trip; it must not know how they are shown.
"""

from __future__ import annotations

from django_quota.conf import current
from django_quota.events import PAGE, Event, EventStream
from django_quota.limiter import get_limiter
from django_quota.stores.redis import RedisStore

MOST_SHOWN = 20
"""Refusals that are returned."""

_TOLD = ("refused", "banned")


def refused_lately(subject: str) -> list[Event]:
    """Return the refusals and bans of a subject among the last events of all, the newest first.

    None where the store is not Redis, or keeps no events. Raises `StoreUnavailable`.
    """
    store = get_limiter().store
    if not isinstance(store, RedisStore):
        return []
    entries = EventStream(store, current().prefix).newest(PAGE)
    events = (entry.event for entry in reversed(entries) if entry.event is not None)
    return [event for event in events if event.subject == subject and event.kind in _TOLD][:MOST_SHOWN]
