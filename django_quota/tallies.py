"""Tallies: what this process has decided, by rule and minute, carried to Redis about once a second.

Counting is a few additions in memory. A tally goes to Redis as an errand of the store, along with a call that is made
anyway; what a process still holds when its calls end, a thread carries a moment later, and the end of the process too.

A tally is sent under a number, and the store adds each number once: so one whose answer got lost is simply sent again,
and nothing is counted twice. It must not know what the figures are used for; `activity` reads them.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

from redis.exceptions import NoScriptError, ResponseError

from django_quota import carrying
from django_quota.clock import SECOND, frozen_now
from django_quota.conf import current
from django_quota.days import day_of
from django_quota.decisions import Decision
from django_quota.exceptions import ConfigurationError
from django_quota.keys import escape, field, system_key
from django_quota.operations.hits import Hit
from django_quota.operations.tallies import OTHER, AddTally, TallyKeys
from django_quota.stores.base import Store

logger = logging.getLogger("django_quota")

MINUTE = 60 * SECOND

MOST_RULES, MOST_SUBJECTS, MOST_SLOTS = 1_000, 500, 500
"""What a page holds at most: further rules are counted together, further subjects and slots wait for the next page."""

MOST_PAGES = 5
"""Minutes that are kept while the store takes none; the oldest are then counted as one."""

REMEMBERED = 600 * SECOND
"""Microseconds that a slot is remembered after it was asked for, at least."""

ALLOWED, REFUSED, SHADOW = range(3)
_SUFFIXES = (":a", ":r", ":s")


class Page(NamedTuple):
    """What was counted in one minute."""

    minute: int
    """Minutes since 1970."""
    day: date
    """The day that it belongs to, in the zone of the `TIME_ZONE` setting."""
    counts: dict[str, list[int]]
    """Allowed, refused, and what a shadow rule would have refused; by the rule's name as fields have it."""
    refused: dict[str, int]
    """How often, by subject as keys have it."""
    slots: dict[str, int]
    """Microseconds that each is remembered."""

    @classmethod
    def at(cls, now: int) -> Page:
        """Return an empty page for the minute of a moment (microseconds)."""
        try:
            day = day_of(now).date
        except ConfigurationError:  # a wrong TIME_ZONE, which the system checks tell: no limit fails for it
            day = datetime.fromtimestamp(now // SECOND, UTC).date()
        return cls(now // MINUTE, day, {}, {}, {})

    def take_in(self, other: Page) -> None:
        """Add another page's counts."""
        for name, row in other.counts.items():
            mine = self.row(name)
            for kind, count in enumerate(row):
                mine[kind] += count
        for subject, count in other.refused.items():
            if subject in self.refused or len(self.refused) < MOST_SUBJECTS:
                self.refused[subject] = self.refused.get(subject, 0) + count
        for name, span in other.slots.items():
            if len(self.slots) < MOST_SLOTS:
                self.slots.setdefault(name, span)

    def row(self, name: str) -> list[int]:
        """Return the counts of a rule, or of `OTHER` where there are too many."""
        if name not in self.counts and len(self.counts) >= MOST_RULES:
            name = OTHER
        return self.counts.setdefault(name, [0, 0, 0])

    @property
    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not (self.counts or self.refused or self.slots)


class Tally:
    """What a limiter has decided in this process and not yet told its store: an errand of it, for any thread."""

    is_on = True
    """Whether anything is counted; for tests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._store: weakref.ref[Store] | None = None
        self.forget()
        carrying.add(self)

    def forget(self) -> None:
        """Begin anew, as a forked process does: what was counted before is its parent's to tell."""
        # Re-entrant: a signal's handler may check a limit while its thread is counting.
        self._lock = threading.RLock()
        self._token = secrets.token_hex(8)
        self._number = 0
        self._pages: list[Page] = []
        """The minutes that are counted, the last one that is counted now."""
        self._begins = self._ends = 0
        self._sending: AddTally | None = None
        """What was sent, or is to be sent again under the same number."""
        self._is_under_way = False
        self._knows_script = True
        self._is_refused = False
        self._since = 0.0

    def carried_to(self, store: Store) -> None:
        """Name the store that the thread carries it to."""
        self._store = weakref.ref(store)

    # --- counting -----------------------------------------------------------------------------------------------------

    def count(self, now: int, hits: Sequence[Hit], decision: Decision) -> None:
        """Count a decision of these hits that the store took at `now` (microseconds)."""
        if not self.is_on:
            return
        with self._lock:
            if not self._begins <= now < self._ends:
                self._turn(now)
            for outcome in decision.outcomes:
                if not outcome.allowed:
                    self._add_all(hits, decision)
                    return
            page = self._pages[-1]
            for hit in hits:
                if hit.cost:
                    row = page.counts.get(hit.field)
                    if row is None:
                        row = page.row(hit.field)
                    row[ALLOWED] += 1

    def _add_all(self, hits: Sequence[Hit], decision: Decision) -> None:
        """Count the hits that were decided: where the plan was refused, those that did so, and no others."""
        position, found = 0, []
        for hit in hits:
            outcomes = decision.outcomes[position : position + len(hit.steps)]
            position += len(hit.steps)
            found.append((hit, not all(outcome.allowed for outcome in outcomes)))
        is_plan_refused = any(refused and hit.group == 0 for hit, refused in found)
        for hit, refused in found:
            if hit.cost and (refused or not is_plan_refused):
                self._add(hit, refused)

    def _add(self, hit: Hit, is_refused: bool) -> None:
        page = self._pages[-1]
        row = page.counts.get(hit.field)
        if row is None:
            row = page.row(hit.field)
        if not is_refused:
            row[ALLOWED] += 1
        elif hit.rule.shadow:
            row[SHADOW] += 1
        else:
            row[REFUSED] += 1
            refused, subject = page.refused, escape(hit.subject)
            if subject in refused or len(refused) < MOST_SUBJECTS:
                refused[subject] = refused.get(subject, 0) + 1

    def saw_slot(self, subject: str, name: str, limit: int, span: int) -> None:
        """Note that a slot was asked for; `span`: how long its leases last, in microseconds."""
        if not self.is_on:
            return
        now = frozen_now() or time.time_ns() // 1_000
        member = f"{escape(subject)} {field(name)} {limit}"
        with self._lock:
            if not self._begins <= now < self._ends:
                self._turn(now)
            slots = self._pages[-1].slots
            if member in slots or len(slots) < MOST_SLOTS:
                slots[member] = max(span, REMEMBERED)

    def _turn(self, now: int) -> None:
        """Go on to the page of a moment."""
        minute = now // MINUTE
        self._begins, self._ends = minute * MINUTE, (minute + 1) * MINUTE
        if not self._pages and self._sending is None:
            self._since = self._clock()
        self._pages.append(Page.at(now))
        while len(self._pages) > MOST_PAGES:
            oldest = self._pages.pop(0)
            self._pages[0].take_in(oldest)
        carrying.wake()

    # --- as an errand -------------------------------------------------------------------------------------------------

    def question(self) -> Sequence[str | int] | None:
        """Return the command that adds what was counted; None where there is nothing, or where it is under way."""
        operation = self._take()
        if operation is None:
            return None
        script = operation.script
        how = ("EVALSHA", script.sha) if self._knows_script else ("EVAL", script.text)
        now = frozen_now()
        keys = operation.keys
        return [*how, len(keys), *keys, "" if now is None else now, *operation.arguments()]

    def answered(self, reply: Any) -> None:
        """Take the answer; where it is an error, the same is sent again."""
        with self._lock:
            self._is_under_way = False
            if not isinstance(reply, ResponseError):
                self._sending = None
                self._since = self._clock()
                self._knows_script = True
                self._is_refused = False
                return
            if isinstance(reply, NoScriptError):
                self._knows_script = False
                return
        self._complain(reply)

    def lost(self) -> None:
        """Send the same again, under the same number: the store may have added it."""
        with self._lock:
            self._is_under_way = False

    def tell(self) -> None:
        """Nothing follows from it."""

    def _take(self) -> AddTally | None:
        with self._lock:
            if self._is_under_way:
                return None
            if self._sending is None:
                if not self._pages:
                    return None
                self._sending = self._operation(self._pages.pop(0))
                if not self._pages:
                    self._begins = self._ends = 0  # the next hit opens a page
            self._is_under_way = True
            return self._sending

    def _operation(self, page: Page) -> AddTally:
        self._number += 1
        prefix, day = current().prefix, page.day.isoformat()
        counts = {
            f"{name}{suffix}": count
            for name, row in page.counts.items()
            for suffix, count in zip(_SUFFIXES, row, strict=True)
            if count
        }
        keys = TallyKeys(
            system_key(prefix, f"tally:{day}"),
            system_key(prefix, f"tally:{page.minute}"),
            system_key(prefix, f"refused:{day}"),
            system_key(prefix, "slots"),
            system_key(prefix, f"told:{self._token}"),
        )
        return AddTally(keys, self._number, counts, page.refused, page.slots)

    # --- without a call to go along with ------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether the store has been told all."""
        with self._lock:
            return self._sending is None and not self._pages

    def flush(self) -> None:
        """Tell the store all that was counted; what another thread is telling it is left to that one.

        Raises `StoreUnavailable` where it does not answer: then it is kept.
        """
        store = self._store() if self._store is not None else None
        while store is not None and (operation := self._take()) is not None:
            try:
                store.run(operation, frozen_now())
            except BaseException:
                self.lost()
                raise
            self.answered(1)

    def flush_what_is_left(self, *, at_once: bool = False) -> None:
        """Tell the store what no call has gone along with for a while. It raises nothing."""
        if self.is_empty or (not at_once and self._clock() - self._since < carrying.LEFT_FOR):
            return
        try:
            self.flush()
        except Exception as error:  # noqa: BLE001 — the thread that carries it must go on, for all tallies
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        if not self._is_refused:
            self._is_refused = True
            logger.warning("The counts of the overview cannot be told to the store, and are kept: %s", error)
