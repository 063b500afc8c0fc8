"""Broadcasts the event stream to any number of viewers, with one reader in each event loop.

A viewer costs Redis one call when it comes. The reader alone waits for events, over one connection, from the first
viewer's arrival until the last one leaves. A viewer that is too slow misses events and gets the newest.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from weakref import WeakKeyDictionary

from django_quota.core.errors import QuotaError
from django_quota.core.keys import system_key
from django_quota.services.event_stream import BEGINNING, PAGE, Event, StreamEntry, raw_entries
from django_quota.stores.redis.store import RedisStore

logger = logging.getLogger("django_quota")

SHOWN = 50
"""Events that a viewer gets at a time."""

WAIT = 10.0
"""Seconds for which the reader waits in Redis for something new."""

RETRY_INTERVAL = 1.0
"""Seconds after which the reader tries again when Redis does not answer."""


class News(NamedTuple):
    """The new events; none if only time has passed."""

    last: str
    """The id of the last entry."""
    events: list[Event]
    """At most `SHOWN`, the oldest first."""


class EventBroadcaster:
    """Broadcasts the stream of one prefix in one event loop."""

    def __init__(self, store: RedisStore, prefix: str) -> None:
        self._store = store
        self._key = system_key(prefix, "events")
        self._recent: deque[StreamEntry] = deque(maxlen=SHOWN)
        self._last = BEGINNING
        self._news = asyncio.Event()
        """Set and replaced by a new one with each arrival of events."""
        self._beginning = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self.viewers = 0
        self.streams = 0
        """Open streams to browsers. They count before they follow, so that many at once do not exceed the cap."""

    async def follow(self, after: str | None, quiet: float) -> AsyncGenerator[News, None]:
        """Yield the events after an entry (None: from now on), and no events after each `quiet` seconds without any.

        Raises `StoreUnavailable` if Redis does not answer at first. Later the reader tries again until it does.
        """
        with self._watched():
            # The reader starts before the look back, so no event is lost between them.
            await self._begun()
            last = self._last if after is None else after
            entries = [] if after is None else await self._look_back(after)
            while True:
                if entries:
                    last = entries[-1].id
                    yield News(last, [entry.event for entry in entries if entry.event is not None])
                news = self._news
                entries = [entry for entry in self._recent if _order(entry.id) > _order(last)]
                if entries:
                    continue
                try:
                    await asyncio.wait_for(news.wait(), quiet)
                except TimeoutError:
                    yield News(last, [])

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Keep the reader running while anybody follows."""
        self.viewers += 1
        try:
            yield
        finally:
            self.viewers -= 1
            if not self.viewers and self._reader is not None:
                self._reader.cancel()
                self._reader = None

    async def _begun(self) -> None:
        async with self._beginning:
            if self._reader is None or self._reader.done():
                newest = await self._look_back(BEGINNING, 1)
                self._last = newest[-1].id if newest else BEGINNING
                self._recent.clear()
                self._reader = asyncio.create_task(self._read())

    async def _look_back(self, after: str, count: int = SHOWN) -> list[StreamEntry]:
        reply = await self._store.acall(("XREVRANGE", self._key, "+", f"({after}", "COUNT", count), 0)
        return raw_entries(reply)[::-1]

    async def _read(self) -> None:
        """Read the stream until cancelled. While Redis is away, try again."""
        is_away = False
        while True:
            command = ("XREAD", "COUNT", PAGE, "BLOCK", int(WAIT * 1_000), "STREAMS", self._key, self._last)
            try:
                reply = await self._store.acall(command, WAIT)
                is_away = False
            except QuotaError as error:
                if not is_away:
                    logger.warning("The live view of events waits for Redis: %s", error)
                is_away = True
                await asyncio.sleep(RETRY_INTERVAL)
                continue
            pages = reply.values() if isinstance(reply, dict) else [page for _, page in reply or ()]  # RESP3, RESP2
            entries = [entry for page in pages for entry in raw_entries(page)]
            if entries:
                self._last = entries[-1].id
                self._recent.extend(entries)
                news, self._news = self._news, asyncio.Event()
                news.set()


_broadcasters: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[int, str], EventBroadcaster]] = (
    WeakKeyDictionary()
)


def broadcaster_of(store: RedisStore, prefix: str) -> EventBroadcaster:
    """Return the broadcaster of the running event loop."""
    broadcasters = _broadcasters.setdefault(asyncio.get_running_loop(), {})
    place = (id(store), prefix)
    if place not in broadcasters:
        broadcasters[place] = EventBroadcaster(store, prefix)
    return broadcasters[place]


def _order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)


def is_entry_id(given: str) -> bool:
    """Return whether a text is the id of an entry, such as `"1763700000000-0"`."""
    return _ENTRY_ID.fullmatch(given) is not None and max(_order(given)) < 2**64  # Redis takes no more


_ENTRY_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
