"""Feeds: the event stream for any number of viewers at once, by one reader in each event loop.

A viewer costs Redis nothing but one look back when it comes: the reader alone waits at the stream, over one connection,
from the first viewer's coming until the last one's leaving. What a viewer is too slow for, it does not see: it is shown
the newest. It must not know how events are shown.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from django_quota.events import BEGINNING, PAGE, Entry, Event
from django_quota.exceptions import QuotaError
from django_quota.keys import system_key
from django_quota.operations.base import text
from django_quota.stores.redis import RedisStore

logger = logging.getLogger("django_quota")

SHOWN = 50
"""Events that a viewer is given at a time, at most."""

WAIT = 10.0
"""Seconds that the reader waits in Redis for something new."""

AGAIN = 1.0
"""Seconds after which the reader asks again where Redis did not answer."""


class News(NamedTuple):
    """What has come in since the last time: nothing, where only time has passed."""

    last: str
    """The id of the last entry."""
    events: list[Event]
    """The oldest first, `SHOWN` at most."""


class Feed:
    """The stream of one prefix in one event loop."""

    def __init__(self, store: RedisStore, prefix: str) -> None:
        self._store = store
        self._key = system_key(prefix, "events")
        self._recent: deque[Entry] = deque(maxlen=SHOWN)
        self._last = BEGINNING
        self._news = asyncio.Event()
        """Set, and replaced by another one, whenever something has come in."""
        self._beginning = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self.viewers = 0
        self.streams = 0
        """Streams that are open to browsers: counted before they follow, so that many at once do not pass the cap."""

    async def follow(self, after: str | None, quiet: float) -> AsyncGenerator[News, None]:
        """Yield what comes in behind an entry (None: from now on); nothing, after so many seconds without any.

        Raises `StoreUnavailable` where Redis does not answer at first; later the reader asks again until it does.
        """
        with self._watched():
            # Where the reader begins is known before the look back: so nothing falls between the two.
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
        """Have the stream read while anybody follows it."""
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

    async def _look_back(self, after: str, count: int = SHOWN) -> list[Entry]:
        reply = await self._store.acall(("XREVRANGE", self._key, "+", f"({after}", "COUNT", count), 0)
        return _entries(reply)[::-1]

    async def _read(self) -> None:
        """Wait at the stream, until cancelled; where Redis is away, until it is back."""
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
                await asyncio.sleep(AGAIN)
                continue
            pages = reply.values() if isinstance(reply, dict) else [page for _, page in reply or ()]  # RESP3, RESP2
            entries = [entry for page in pages for entry in _entries(page)]
            if entries:
                self._last = entries[-1].id
                self._recent.extend(entries)
                news, self._news = self._news, asyncio.Event()
                news.set()


_feeds: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[int, str], Feed]] = WeakKeyDictionary()


def feed_of(store: RedisStore, prefix: str) -> Feed:
    """Return the feed of the running event loop."""
    feeds = _feeds.setdefault(asyncio.get_running_loop(), {})
    place = (id(store), prefix)
    if place not in feeds:
        feeds[place] = Feed(store, prefix)
    return feeds[place]


def _order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)


def is_entry_id(given: str) -> bool:
    """Say whether a text is the id of an entry, such as `"1763700000000-0"`."""
    first, dash, second = given.partition("-")
    parts = (first, second)
    is_pair = bool(dash) and all(part.isascii() and part.isdecimal() and len(part) <= 20 for part in parts)  # noqa: PLR2004
    return is_pair and all(int(part) < 2**64 for part in parts)  # Redis refuses more


def _entries(page: Any) -> list[Entry]:
    """Return the entries of a raw page: `[[id, [name, value, name, value]]]`."""
    return [_entry(text(entry_id), [text(part) for part in flat or ()]) for entry_id, flat in page]


def _entry(entry_id: str, flat: list[str]) -> Entry:
    try:
        return Entry(entry_id, Event.read(entry_id, dict(zip(flat[::2], flat[1::2], strict=True))))
    except ValueError:
        return Entry(entry_id, None)
