"""Counters: named tallies of a subject, in all and a day, and counts of different values. No HTTP, no models.

A verb becomes one operation of the store. What it asks stands in a flow, once; the sync and the async verbs differ in
how they wait. Counters are data, not limits: they work whatever the setting `ENABLED` says, and where the store does
not answer they raise `StoreUnavailable` rather than guess.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from calendar import monthrange
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any, cast

from django_quota.clock import frozen_now
from django_quota.conf import current
from django_quota.days import Day, day_of
from django_quota.exceptions import ConfigurationError, CounterError, StoreUnavailable
from django_quota.keys import key_of, subject_base
from django_quota.limiter import get_limiter
from django_quota.operations import counters as operations
from django_quota.operations.shapes import LEAST, MOST
from django_quota.subjects import Ask, Flow, aanswer, answer, subject_of

TTL = timedelta(days=400)
"""How long a counter lives after its last change, unless it says otherwise: a year of days can be shown."""

LONGEST_TTL = timedelta(days=36_600)
"""The longest that a counter may live after its last change: about a hundred years."""

MAX_DAYS = 3_660
"""How many days a series may span."""

MAX_GUESSES = 5
"""How often the store is asked for one change, where its clock is in another day than the one sent each time."""

Subject = Any
"""A text such as "user:42" or "sku:1", or a user."""

_PROBLEMS = {
    operations.NO_COUNTER: "what lies under {key} is no counter",
    operations.OVERFLOW: "the change would take {key} out of 64 bits",
}

_skew = 0
"""How far the store's clock is from ours, in microseconds, as far as it is known."""


def counter(name: str, ttl: timedelta | int = TTL) -> Counter:
    """Return the counter of a name; it costs nothing to make, and every one of a name counts the same.

    `ttl`: how long what it counts for a subject lives after its last change, as a timedelta or in seconds: a second to
    a hundred years, 400 days where not given; each month of daily tallies lives on by itself. Raises
    `ConfigurationError` where name or ttl is of no use.
    """
    return Counter(name, ttl)


class Counter:
    """A named tally: for each subject a total, a tally a day, and, beside them, a count of different values.

    All are whole numbers of 64 bits, -2^63 to 2^63 - 1. A subject is a text such as "user:42" or a user. A day begins
    at midnight in the zone of the `TIME_ZONE` setting, by the store's clock. Every verb is one call to the store,
    undivided (but see `transfer`), and has an async twin. Each raises

    * `CounterError` where an argument is out of range, the result would not fit into 64 bits, or the key in Redis holds
      something else: nothing has changed then;
    * `RuleError` where the subject is none;
    * `StoreUnavailable` where the store does not answer. If the answer alone was lost the change may have been made.
    """

    __slots__ = ("_ttl", "name")

    def __init__(self, name: str, ttl: timedelta | int = TTL) -> None:
        self.name = _checked_name(name)
        self._ttl = _microseconds(ttl)

    def __repr__(self) -> str:
        return f"counter({self.name!r}, ttl={self.ttl!r})"

    @property
    def ttl(self) -> timedelta:
        """How long what it counts lives after its last change."""
        return timedelta(microseconds=self._ttl)

    # --- totals and days ----------------------------------------------------------------------------------------------

    def incr(self, subject: Subject, n: int = 1) -> int:
        """Add `n`, which may be negative, to the total and to the tally of the day; return the new total."""
        return cast("int", answer(self._incr(subject, n)))

    async def aincr(self, subject: Subject, n: int = 1) -> int:
        """Add to the total and to the day; see `incr`."""
        return cast("int", await aanswer(self._incr(subject, n)))

    def get(self, subject: Subject, day: date | None = None) -> int:
        """Return the total, or the tally of one day; 0 where nothing was counted."""
        return cast("int", answer(self._get(subject, day)))

    async def aget(self, subject: Subject, day: date | None = None) -> int:
        """Return the total or the tally of one day; see `get`."""
        return cast("int", await aanswer(self._get(subject, day)))

    def series(self, subject: Subject, first: date, last: date) -> dict[date, int]:
        """Return the tally of every day from the first to the last, zeros too; 3,660 days at most."""
        return cast("dict[date, int]", answer(self._series(subject, first, last)))

    async def aseries(self, subject: Subject, first: date, last: date) -> dict[date, int]:
        """Return the tallies of a range of days; see `series`."""
        return cast("dict[date, int]", await aanswer(self._series(subject, first, last)))

    # --- totals alone -------------------------------------------------------------------------------------------------

    def set(self, subject: Subject, value: int) -> None:
        """Make the total `value`; the days stay as they are."""
        answer(self._set(subject, value))

    async def aset(self, subject: Subject, value: int) -> None:
        """Make the total `value`; see `set`."""
        await aanswer(self._set(subject, value))

    def take(self, subject: Subject, n: int = 1) -> bool:
        """Take `n` (1 or more) from the total if it has so much, else nothing; say whether it had.

        The total never goes below zero by it, whoever takes at the same time. The days stay as they are.
        """
        return cast("bool", answer(self._take(subject, n)))

    async def atake(self, subject: Subject, n: int = 1) -> bool:
        """Take from the total what it has; see `take`."""
        return cast("bool", await aanswer(self._take(subject, n)))

    def pop(self, subject: Subject) -> int:
        """Return the total and make it zero, at once: what is counted meanwhile is in neither twice. The days stay."""
        return cast("int", answer(self._pop(subject)))

    async def apop(self, subject: Subject) -> int:
        """Return the total and make it zero; see `pop`."""
        return cast("int", await aanswer(self._pop(subject)))

    def transfer(self, a: Subject, b: Subject, n: int) -> bool:
        """Move `n` (0 or more) from the total of `a` to that of `b` if `a` has so much, else nothing; say if it had.

        Both change or neither does: their sum is kept, and `a` never goes below zero by it. `a` may be `b`, which
        changes nothing. The days stay as they are.

        In a Redis Cluster the two mostly lie in two slots, which one script cannot reach: the amount is in neither
        total while the second of several calls is on its way. Where a server does not answer meanwhile,
        `StoreUnavailable` is raised and the amount stays on the way. The next transfer from `a` carries it on, or
        `quota_sweep`, from five seconds on and for 400 days: it comes to `b`, once, or, where `b` cannot take it, back.
        """
        return cast("bool", answer(self._transfer(a, b, n)))

    async def atransfer(self, a: Subject, b: Subject, n: int) -> bool:
        """Move an amount from one total to another; see `transfer`."""
        return cast("bool", await aanswer(self._transfer(a, b, n)))

    # --- different values ---------------------------------------------------------------------------------------------

    def unique(self, subject: Subject, value: str | int) -> bool:
        """Count a value among the different ones, in all and of the day; say whether the count in all has changed.

        In Redis it is a HyperLogLog: 12 KB at most, the count right to about 0.8 %, so that now and then a new value
        does not change it; a known one never does. What was counted cannot be read back. The memory store is exact, and
        keeps 32 characters a value. 1 and "1" are one value. It is apart from the total.
        """
        return cast("bool", answer(self._unique(subject, value)))

    async def aunique(self, subject: Subject, value: str | int) -> bool:
        """Count a value among the different ones; see `unique`."""
        return cast("bool", await aanswer(self._unique(subject, value)))

    def unique_count(self, subject: Subject, day: date | None = None) -> int:
        """Return how many different values `unique` has counted, in all or on one day."""
        return cast("int", answer(self._unique_count(subject, day)))

    async def aunique_count(self, subject: Subject, day: date | None = None) -> int:
        """Return how many different values were counted; see `unique_count`."""
        return cast("int", await aanswer(self._unique_count(subject, day)))

    # --- flows --------------------------------------------------------------------------------------------------------

    def _incr(self, subject: Subject, n: int) -> Flow:
        name = _named(subject)
        amount = self._amount(name, n, LEAST)
        total, days = self._key("c", name), partial(self._key, "c", name)

        def on(day: Day) -> operations.Incr:
            return operations.Incr((total, days(day.month)), amount, self._ttl, f"{day.date:%d}", day.begins, day.ends)

        reply = yield from self._asked_of_day(on, name)
        return int(reply[1])

    def _get(self, subject: Subject, day: date | None) -> Flow:
        name = _named(subject)
        if day is None:
            reply = yield from self._asked(operations.Get(self._key("c", name)), name)
            return int(reply[1])
        return (yield from self._tallies(name, day, day))[day]

    def _series(self, subject: Subject, first: date, last: date) -> Flow:
        return (yield from self._tallies(_named(subject), first, last))

    def _tallies(self, name: str, first: date, last: date) -> Flow:
        self._check_day(name, first)
        self._check_day(name, last)
        span = (last - first).days + 1
        if not 1 <= span <= MAX_DAYS:
            raise CounterError(self.name, name, f"{first} to {last} is no range of 1 to {MAX_DAYS} days")
        months = list(_months(first, last))
        keys = [self._key("c", name, month) for month, _, _ in months]
        reply = yield from self._asked(operations.Days(keys, [(begins, ends) for _, begins, ends in months]), name)
        tallies = (int(tally) for month in reply[1:] for tally in month.split())
        return {first + timedelta(days=n): tally for n, tally in enumerate(tallies)}

    def _set(self, subject: Subject, value: int) -> Flow:
        name = _named(subject)
        amount = self._amount(name, value, LEAST)
        return (yield from self._asked(operations.Set([self._key("c", name)], amount, self._ttl), name))

    def _take(self, subject: Subject, n: int) -> Flow:
        name = _named(subject)
        amount = self._amount(name, n, 1)
        reply = yield from self._asked(operations.Take([self._key("c", name)], amount, self._ttl), name)
        return reply[0] == operations.DONE

    def _pop(self, subject: Subject) -> Flow:
        name = _named(subject)
        reply = yield from self._asked(operations.Pop(self._key("c", name)), name)
        return int(reply[1])

    def _transfer(self, a: Subject, b: Subject, n: int) -> Flow:
        giver, taker = _named(a), _named(b)
        amount = self._amount(giver, n, 0)
        keys = [self._key("c", giver), self._key("c", taker)]
        passage = operations.Passage(secrets.token_hex(12), self._key("m", giver), self._key("n", taker))
        reply = yield from self._asked(operations.Transfer(keys, amount, self._ttl, passage), giver, taker)
        return reply[0] == operations.DONE

    def _unique(self, subject: Subject, value: object) -> Flow:
        name = _named(subject)
        if not isinstance(value, (str, int)) or isinstance(value, bool):
            raise CounterError(self.name, name, f"{value!r} is no value to tell apart: a text or a number would do")
        # Whatever its length and signs; and nobody who looks on at Redis reads it.
        digest = hashlib.blake2b(str(value).encode(errors="surrogatepass"), digest_size=16).hexdigest()
        total, days = self._key("u", name), partial(self._key, "u", name)

        def on(day: Day) -> operations.Unique:
            return operations.Unique((total, days(day.date.isoformat())), digest, self._ttl, day.begins, day.ends)

        reply = yield from self._asked_of_day(on, name)
        return bool(reply[1])

    def _unique_count(self, subject: Subject, day: date | None) -> Flow:
        name = _named(subject)
        parts = [] if day is None else [self._check_day(name, day).isoformat()]
        reply = yield from self._asked(operations.UniqueCount(self._key("u", name, *parts)), name)
        return int(reply[1])

    # --- asking the store ---------------------------------------------------------------------------------------------

    def _asked(self, operation: operations.CounterOperation, *names: str) -> Flow:
        """Return (as the flow's result) the store's reply; `names`: the subjects of its keys, the last of all others.

        Raises `CounterError` where a key is at fault.
        """
        store, now = get_limiter().telling, frozen_now()
        reply = yield Ask(partial(store.run, operation, now), partial(store.arun, operation, now))
        if reply[0] in _PROBLEMS:
            number = reply[1] - 1
            problem = _PROBLEMS[reply[0]].format(key=operation.keys[number])
            raise CounterError(self.name, names[min(number, len(names) - 1)], problem)
        return reply

    def _asked_of_day(self, on: Callable[[Day], operations.CounterOperation], name: str) -> Flow:
        """Return (as the flow's result) the reply to the operation of the day that it is by the store's clock."""
        global _skew  # noqa: PLW0603 — a wrong one, after another store was asked, costs one more question
        now = frozen_now()
        guess = time.time_ns() // 1_000 + _skew if now is None else now
        for _ in range(MAX_GUESSES):
            reply = yield from self._asked(on(day_of(guess)), name)
            if reply[0] != operations.STALE:
                return reply
            guess = reply[1]
            _skew = guess - time.time_ns() // 1_000
        raise StoreUnavailable("its clock is in another day each time that it is asked")

    def _key(self, kind: str, name: str, *parts: str) -> str:
        return key_of(subject_base(current().prefix, name), kind, self.name, *parts)

    def _amount(self, name: str, value: object, least: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise CounterError(self.name, name, f"{value!r} is no whole number")
        if not LEAST <= value <= MOST:
            raise CounterError(self.name, name, f"a number of {value.bit_length() + 1} bits does not fit into 64")
        if value < least:
            raise CounterError(self.name, name, f"{value} is less than {least}, the least that would do")
        return int(value)  # a member of an enumeration writes itself by its name

    def _check_day(self, name: str, day: object) -> date:
        if not isinstance(day, date) or isinstance(day, datetime):
            raise CounterError(self.name, name, f"{day!r} is no day: a date would do, such as date(2026, 11, 21)")
        return day


def _named(subject: Subject) -> str:
    return subject_of(subject, "a counter")


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ConfigurationError(f"{name!r} is no name of a counter.", "'pageviews' would do.")
    return name


def _microseconds(ttl: object) -> int:
    seconds: float = 0
    if isinstance(ttl, timedelta):
        seconds = ttl.total_seconds()
    elif isinstance(ttl, int) and not isinstance(ttl, bool):
        seconds = ttl
    if not 1 <= seconds <= LONGEST_TTL.total_seconds():
        raise ConfigurationError(
            f"ttl={ttl!r} is not how long a counter lives.",
            "A timedelta or whole seconds, from one second to a hundred years, would do: timedelta(days=30).",
        )
    return round(seconds * 1_000) * operations.MILLISECOND


def _months(first: date, last: date) -> Iterator[tuple[str, int, int]]:
    """Yield the months of a range of days as keys have them, each with its first and last day of the range."""
    while True:
        ends = min(last, first.replace(day=monthrange(first.year, first.month)[1]))
        yield f"{first:%Y-%m}", first.day, ends.day
        if ends == last:
            return
        first = ends + timedelta(days=1)
