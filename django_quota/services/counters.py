"""Counters: a named total for each subject, its daily counts, and counts of distinct values.

Counters are data, not limits. So they ignore the setting `ENABLED`, and raise `StoreUnavailable` if the store does
not answer.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from calendar import monthrange
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any, cast

from django_quota.conf import current
from django_quota.core.clock import MAX_GUESSES, SECOND, frozen_now, machine_now
from django_quota.core.days import Day, day_of
from django_quota.core.errors import ConfigurationError, CounterError, StoreUnavailable
from django_quota.core.flow import Flow, run_async, run_sync
from django_quota.core.keys import key_of, subject_base, total_of
from django_quota.engine import counter_operations as operations
from django_quota.engine.counter_operations import MAX_INT64, MIN_INT64
from django_quota.engine.operations import Operation
from django_quota.engine.transfer_operations import (
    FindOverdueTransfers,
    OutboxEntry,
    PendingTransfer,
    Source,
    read_overdue,
    resume,
)
from django_quota.services.registry import store_call
from django_quota.services.subjects import subject_of

logger = logging.getLogger("django_quota")

TTL = timedelta(days=400)
"""How long a counter lives after its last change by default: long enough to show a year of days."""

LONGEST_TTL = timedelta(days=36_600)
"""The longest time that a counter may live after its last change, about a hundred years."""

MAX_DAYS = 3_660
"""How many days a series may span."""

BATCH_SIZE = 20
"""Notes of interrupted transfers that one call reads."""

Subject = Any
"""A text such as "user:42" or "sku:1", or a user."""

_PROBLEMS = {
    operations.NO_COUNTER: "{key} in Redis is not a counter",
    operations.OVERFLOW: "the change would take {key} beyond 64 bits",
}

_skew = 0
"""The store's clock minus ours in microseconds, as far as it is known."""


def counter(name: str, ttl: timedelta | int = TTL) -> Counter:
    """Return the counter of this name. It costs nothing, and all counters of one name count the same.

    `ttl`: how long the counter of a subject lives after its last change, as a timedelta or in seconds: one second to a
    hundred years, by default 400 days. Each month of daily counts has its own TTL. Raises `ConfigurationError` for a
    wrong name or ttl.
    """
    return Counter(name, ttl)


class Counter:
    """A named counter. For each subject it has a total, a count for each day, and a count of distinct values.

    All are whole numbers of 64 bits, -2^63 to 2^63 - 1. A subject is a text such as "user:42", or a user. A day starts
    at midnight in the zone of the `TIME_ZONE` setting, by the store's clock. Each method is one atomic call to the
    store (but see `transfer`), and has an async form. Each raises

    * `CounterError` where an argument is out of range, the result does not fit into 64 bits, or the key in Redis holds
      something else. Nothing has changed then.
    * `RuleError` for a wrong subject.
    * `StoreUnavailable` if the store does not answer. If only the answer was lost, the change was made.
    """

    __slots__ = ("_ttl", "name")

    def __init__(self, name: str, ttl: timedelta | int = TTL) -> None:
        if not isinstance(cast("object", name), str) or not name.strip():
            raise ConfigurationError(f"{name!r} is not the name of a counter.", "Use, for example, 'pageviews'.")
        self.name: str = name
        self._ttl = _microseconds(ttl)

    def __repr__(self) -> str:
        return f"counter({self.name!r}, ttl={self.ttl!r})"

    @property
    def ttl(self) -> timedelta:
        """How long a subject's counter lives after its last change."""
        return timedelta(microseconds=self._ttl)

    # --- totals and days ----------------------------------------------------------------------------------------------

    def incr(self, subject: Subject, n: int = 1) -> int:
        """Add `n`, which may be negative, to the total and to the count of the day; return the new total."""
        return run_sync(self._incr(subject, n))

    async def aincr(self, subject: Subject, n: int = 1) -> int:
        """Add to the total and to the day; see `incr`."""
        return await run_async(self._incr(subject, n))

    def get(self, subject: Subject, day: date | None = None) -> int:
        """Return the total, or the count of one day; 0 if nothing was counted."""
        return run_sync(self._get(subject, day))

    async def aget(self, subject: Subject, day: date | None = None) -> int:
        """Return the total or the count of one day; see `get`."""
        return await run_async(self._get(subject, day))

    def series(self, subject: Subject, first: date, last: date) -> dict[date, int]:
        """Return the count of each day from the first to the last, with zeros, for at most 3,660 days."""
        return run_sync(self._days(subject, first, last))

    async def aseries(self, subject: Subject, first: date, last: date) -> dict[date, int]:
        """Return the counts of a range of days; see `series`."""
        return await run_async(self._days(subject, first, last))

    # --- totals alone -------------------------------------------------------------------------------------------------

    def set(self, subject: Subject, value: int) -> None:
        """Set the total to `value`. The days stay as they are."""
        run_sync(self._set(subject, value))

    async def aset(self, subject: Subject, value: int) -> None:
        """Set the total; see `set`."""
        await run_async(self._set(subject, value))

    def take(self, subject: Subject, n: int = 1) -> bool:
        """Take `n` (1 or more) from the total if it holds that much, else nothing; return whether it did.

        The total never falls below zero, however many callers take at the same time. The days stay as they are.
        """
        return run_sync(self._take(subject, n))

    async def atake(self, subject: Subject, n: int = 1) -> bool:
        """Take from the total if it holds enough; see `take`."""
        return await run_async(self._take(subject, n))

    def pop(self, subject: Subject) -> int:
        """Return the total and set it to zero in one step, so nothing is counted twice or lost. The days stay."""
        return run_sync(self._pop(subject))

    async def apop(self, subject: Subject) -> int:
        """Return the total and set it to zero; see `pop`."""
        return await run_async(self._pop(subject))

    def transfer(self, a: Subject, b: Subject, n: int) -> bool:
        """Move `n` (0 or more) from the total of `a` to that of `b` if `a` holds that much; return whether it did.

        Both totals change, or neither does. Their sum stays the same, and `a` never falls below zero. A transfer to
        itself changes nothing. The days stay as they are.

        In a Redis Cluster the two totals are mostly in different slots, which one script cannot reach. Then the amount
        is in neither total until the second call has arrived. If a server does not answer meanwhile,
        `StoreUnavailable` is raised and the amount stays in transfer. The next transfer from `a` finishes it, or
        `quota_sweep` does, from five seconds on and for 400 days: the amount comes to `b`, once, or back to `a` where
        `b` cannot take it.
        """
        return run_sync(self._transfer(a, b, n))

    async def atransfer(self, a: Subject, b: Subject, n: int) -> bool:
        """Move an amount from one total to another; see `transfer`."""
        return await run_async(self._transfer(a, b, n))

    # --- different values ---------------------------------------------------------------------------------------------

    def unique(self, subject: Subject, value: str | int) -> bool:
        """Count a distinct value, in total and for the day; return whether the total count has changed.

        Redis keeps a HyperLogLog of at most 12 KB, whose count is right to about 0.8 %: now and then a new value does
        not change it, and a known one never does. The values cannot be read back. The memory store is exact, and keeps
        32 characters for each value. 1 and "1" are the same value. The counter's total is not changed.
        """
        return run_sync(self._unique(subject, value))

    async def aunique(self, subject: Subject, value: str | int) -> bool:
        """Count a distinct value; see `unique`."""
        return await run_async(self._unique(subject, value))

    def unique_count(self, subject: Subject, day: date | None = None) -> int:
        """Return how many distinct values `unique` has counted, in total or on one day."""
        return run_sync(self._unique_count(subject, day))

    async def aunique_count(self, subject: Subject, day: date | None = None) -> int:
        """Return how many distinct values were counted; see `unique_count`."""
        return await run_async(self._unique_count(subject, day))

    # --- flows --------------------------------------------------------------------------------------------------------

    def _incr(self, subject: Subject, n: int) -> Flow[int]:
        name = _named(subject)
        amount = self._amount(name, n, MIN_INT64)
        total, days = self._key("c", name), partial(self._key, "c", name)

        def on(day: Day) -> operations.Incr:
            return operations.Incr((total, days(day.month)), amount, self._ttl, f"{day.date:%d}", day.begins, day.ends)

        reply = yield from self._call_of_day(on, name)
        return int(reply[1])

    def _get(self, subject: Subject, day: date | None) -> Flow[int]:
        if day is not None:
            return (yield from self._days(subject, day, day))[day]
        name = _named(subject)
        reply = yield from self._call(operations.Get(self._key("c", name)), name)
        return int(reply[1])

    def _days(self, subject: Subject, first: date, last: date) -> Flow[dict[date, int]]:
        name = _named(subject)
        self._check_day(name, first)
        self._check_day(name, last)
        span = (last - first).days + 1
        if not 1 <= span <= MAX_DAYS:
            raise CounterError(self.name, name, f"{first} to {last} is not a range of 1 to {MAX_DAYS} days")
        months = list(_months(first, last))
        keys = [self._key("c", name, month) for month, _, _ in months]
        reply = yield from self._call(operations.Days(keys, [(begins, ends) for _, begins, ends in months]), name)
        counts = (int(count) for month in reply[1:] for count in month.split())
        return {first + timedelta(days=n): count for n, count in enumerate(counts)}

    def _set(self, subject: Subject, value: int) -> Flow[None]:
        name = _named(subject)
        amount = self._amount(name, value, MIN_INT64)
        yield from self._call(operations.Set([self._key("c", name)], amount, self._ttl), name)

    def _take(self, subject: Subject, n: int) -> Flow[bool]:
        name = _named(subject)
        amount = self._amount(name, n, 1)
        reply = yield from self._call(operations.Take([self._key("c", name)], amount, self._ttl), name)
        return bool(reply[0] == operations.DONE)

    def _pop(self, subject: Subject) -> Flow[int]:
        name = _named(subject)
        reply = yield from self._call(operations.Pop(self._key("c", name)), name)
        return int(reply[1])

    def _transfer(self, a: Subject, b: Subject, n: int) -> Flow[bool]:
        source, destination = _named(a), _named(b)
        amount = self._amount(source, n, 0)
        keys = [self._key("c", source), self._key("c", destination)]
        route = operations.TransferRoute(secrets.token_hex(12), self._key("m", source), self._key("n", destination))
        reply = yield from self._call(operations.Transfer(keys, amount, self._ttl, route), source, destination)
        return bool(reply[0] == operations.DONE)

    def _unique(self, subject: Subject, value: object) -> Flow[bool]:
        name = _named(subject)
        if not isinstance(value, (str, int)) or isinstance(value, bool):
            raise CounterError(self.name, name, f"{value!r} is not a value to count. Use a text or a whole number")
        # A digest has one length for all values, and nobody can read the value in Redis.
        digest = hashlib.blake2b(str(value).encode(errors="surrogatepass"), digest_size=16).hexdigest()
        total, days = self._key("u", name), partial(self._key, "u", name)

        def on(day: Day) -> operations.Unique:
            return operations.Unique((total, days(day.date.isoformat())), digest, self._ttl, day.begins, day.ends)

        reply = yield from self._call_of_day(on, name)
        return bool(reply[1])

    def _unique_count(self, subject: Subject, day: date | None) -> Flow[int]:
        name = _named(subject)
        parts = [] if day is None else [self._check_day(name, day).isoformat()]
        reply = yield from self._call(operations.UniqueCount(self._key("u", name, *parts)), name)
        return int(reply[1])

    # --- calls to the store -------------------------------------------------------------------------------------------

    def _call(self, operation: operations.CounterOperation, *names: str) -> Flow[Any]:
        """Do an operation; the flow's result is the reply. `names`: the subjects of its keys, the last for all others.

        Raises `CounterError` where a key is wrong.
        """
        reply = yield store_call(operation)
        if reply[0] in _PROBLEMS:
            number = reply[1] - 1
            problem = _PROBLEMS[reply[0]].format(key=operation.keys[number])
            raise CounterError(self.name, names[min(number, len(names) - 1)], problem)
        return reply

    def _call_of_day(self, on: Callable[[Day], operations.CounterOperation], name: str) -> Flow[Any]:
        """Do the operation of the current day by the store's clock; the flow's result is the reply."""
        global _skew  # noqa: PLW0603 — if it is wrong for another store, one more call corrects it
        now = frozen_now()
        guess = machine_now() + _skew if now is None else now
        for _ in range(MAX_GUESSES):
            reply = yield from self._call(on(day_of(guess, current().time_zone)), name)
            if reply[0] != operations.WRONG_DAY:
                return reply
            guess = reply[1]
            _skew = guess - machine_now()
        raise StoreUnavailable("its clock is in another day with each call")

    def _key(self, kind: str, name: str, *parts: str) -> str:
        return key_of(subject_base(current().prefix, name), kind, self.name, *parts)

    def _amount(self, name: str, value: object, least: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise CounterError(self.name, name, f"{value!r} is not a whole number. Use, for example, 1")
        if not MIN_INT64 <= value <= MAX_INT64:
            raise CounterError(self.name, name, f"a number of {value.bit_length() + 1} bits does not fit into 64")
        if value < least:
            raise CounterError(self.name, name, f"{value} is less than {least}. Use {least} or more")
        return int(value)  # the member of an enumeration would be written as its name

    def _check_day(self, name: str, day: object) -> date:
        if not isinstance(day, date) or isinstance(day, datetime):
            raise CounterError(self.name, name, f"{day!r} is not a date. Use, for example, date(2026, 11, 21)")
        return day


def _named(subject: Subject) -> str:
    return subject_of(subject, "a counter")


def _microseconds(ttl: object) -> int:
    seconds: float = 0
    if isinstance(ttl, timedelta):
        seconds = ttl.total_seconds()
    elif isinstance(ttl, int) and not isinstance(ttl, bool):
        seconds = ttl
    if not 1 <= seconds <= LONGEST_TTL.total_seconds():
        raise ConfigurationError(
            f"ttl={ttl!r} is not a time from one second to a hundred years.",
            "Use a timedelta or whole seconds, for example timedelta(days=30).",
        )
    return round(seconds * SECOND)


def _months(first: date, last: date) -> Iterator[tuple[str, int, int]]:
    """Yield each month of a range of days as keys have it, with its first and last day in the range."""
    while True:
        ends = min(last, first.replace(day=monthrange(first.year, first.month)[1]))
        yield f"{first:%Y-%m}", first.day, ends.day
        if ends == last:
            return
        first = ends + timedelta(days=1)


# --- transfers that were interrupted ----------------------------------------------------------------------------------


def resume_overdue(run: Callable[[Operation], Any], outbox: str, *, dry_run: bool = False) -> Iterator[bool]:
    """Finish the overdue transfers of an outbox; yield for each whether it ended, or in a dry run whether it could.

    A transfer between two slots of a Cluster leaves a note in the outbox of its source. A transfer that cannot end is
    logged, and stays. `run` does an operation. Raises `StoreUnavailable` where the outbox cannot be read.
    """
    source = Source(total_of(outbox), outbox)
    left, before = 0, set[OutboxEntry]()
    while overdue := read_overdue(reply := run(FindOverdueTransfers(outbox, left, BATCH_SIZE))):
        for noted in overdue:
            if noted in before:
                logger.warning("A transfer that has ended is still noted in %s: %r", outbox, noted.encoded)
            ended = noted not in before and _resume(run, source, noted, reply[1], dry_run=dry_run)
            left += dry_run or not ended
            yield ended
        before = set(overdue)


def _resume(run: Callable[[Operation], Any], source: Source, noted: OutboxEntry, now: int, *, dry_run: bool) -> bool:
    note = PendingTransfer.read(noted.encoded, source.outbox)
    if note is None:
        return False
    if not dry_run:
        try:
            run_sync(resume(source, note, noted, now), lambda operations: [run(each) for each in operations])
        except StoreUnavailable as error:
            logger.warning(
                "A transfer of %d from %s to %s has not ended: %s", note.amount, source.total, note.total, error
            )
            return False
    return True
