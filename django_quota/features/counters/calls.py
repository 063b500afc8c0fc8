"""Counters: a named total for each subject, its daily counts, and counts of distinct values.

Counters are data, not limits. So they ignore the setting `ENABLED`, and raise `StoreUnavailable` if the store does
not answer.
"""

from __future__ import annotations

import hashlib
from calendar import monthrange
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any

from django_quota.conf import current
from django_quota.core.algorithms.stock import MAX_INT64, MIN_INT64
from django_quota.core.clock import MAX_GUESSES, SECOND, now
from django_quota.core.days import Day, day_of
from django_quota.core.errors import ConfigurationError, CounterError, StoreUnavailable, Translatable
from django_quota.core.flow import Flow, run_async
from django_quota.core.keys import group_base, key_of, subject_base
from django_quota.core.rates import MAX_PERIOD, Duration, parse_duration
from django_quota.core.takes import CounterEntry, Take
from django_quota.features.counters import operations
from django_quota.limiting.api import AnySubject, run_call
from django_quota.limiting.registry import store_call
from django_quota.subjects.subject import subject_of

COUNTER_TTL = timedelta(days=400)
"""How long a counter lives after its last change by default: long enough to show a year of days."""

MAX_TTL = 100 * MAX_PERIOD
"""The longest time that a counter may live after its last change, about a hundred years in microseconds."""

MAX_DAYS = 3_660
"""How many days a series may span."""

_PROBLEMS: Mapping[int, Callable[[str], Translatable]] = {
    operations.NO_COUNTER: lambda key: Translatable("%(key)s in the store is not a counter", key=key),
    operations.OVERFLOW: lambda key: Translatable("the change would take %(key)s beyond 64 bits", key=key),
}


def counter(name: str, ttl: Duration = COUNTER_TTL, *, group: str | None = None) -> Counter:
    """Return the counter of this name. This costs nothing, and all counters of one name and group share their counts.

    `ttl`: how long the counter of a subject lives after its last change, one second to a hundred years, by default
    400 days. Each month of daily counts has its own TTL.

    `group`: a name, for a Redis Cluster. All counters of one group are in one slot there, so `transfer` works between
    any two of them; one server does all their work. Choose it before you count: in another group all counts begin at
    zero.

    Raises `ConfigurationError` for a wrong name, ttl or group.
    """
    return Counter(name, ttl, group=group)


class Counter(CounterEntry):
    """A named counter. For each subject it has a total, a count for each day, and a count of distinct values.

    All are whole numbers of 64 bits, -2^63 to 2^63 - 1. A subject is a string such as "user:42", or a user. A day
    starts at midnight in the zone of the `TIME_ZONE` setting, by the store's clock. Each method is one atomic call to
    the store, and has an async form. Each raises

    * `CounterError` if an argument is out of range, the result does not fit into 64 bits, or the key in the store is
      not a counter. Then nothing has changed.
    * `RuleError` for a wrong subject.
    * `StoreUnavailable` if the store does not answer. If only the answer was lost, the change was made.
    """

    __slots__ = ("_ttl", "group", "name")

    def __init__(self, name: str, ttl: Duration = COUNTER_TTL, *, group: str | None = None) -> None:
        if not _is_name(name):
            raise ConfigurationError(f"{name!r} is not the name of a counter.", "Use, for example, 'pageviews'.")
        if group is not None and not _is_name(group):
            raise ConfigurationError(f"{group!r} is not the group of a counter.", "Use, for example, group='shop'.")
        self.name: str = name
        self.group: str | None = group
        self._ttl = parse_duration("ttl", ttl, least=SECOND, most=MAX_TTL)

    def __repr__(self) -> str:
        group = "" if self.group is None else f", group={self.group!r}"
        return f"counter({self.name!r}, ttl={self.ttl!r}{group})"

    @property
    def as_take(self) -> Take:
        """What an entry of `check_all` asks of the counter."""
        return Take(self.name, self.group, self._ttl)

    @property
    def ttl(self) -> timedelta:
        """How long a subject's counter lives after its last change."""
        return timedelta(microseconds=self._ttl)

    # --- totals and days ----------------------------------------------------------------------------------------------

    def incr(self, subject: AnySubject, n: int = 1) -> int:
        """Add `n`, which may be negative, to the total and to the count of the day; return the new total."""
        return run_call(self._incr(subject, n))

    async def aincr(self, subject: AnySubject, n: int = 1) -> int:
        """Add to the total and to the day; see `incr`."""
        return await run_async(self._incr(subject, n))

    def get(self, subject: AnySubject, day: date | None = None) -> int:
        """Return the total, or the count of one day; 0 if nothing was counted."""
        return run_call(self._get(subject, day))

    async def aget(self, subject: AnySubject, day: date | None = None) -> int:
        """Return the total or the count of one day; see `get`."""
        return await run_async(self._get(subject, day))

    def series(self, subject: AnySubject, first: date, last: date) -> dict[date, int]:
        """Return the count of each day from the first to the last, with zeros, for at most 3,660 days."""
        return run_call(self._days(subject, first, last))

    async def aseries(self, subject: AnySubject, first: date, last: date) -> dict[date, int]:
        """Return the counts of a range of days; see `series`."""
        return await run_async(self._days(subject, first, last))

    # --- totals alone -------------------------------------------------------------------------------------------------

    def set(self, subject: AnySubject, value: int) -> None:
        """Set the total to `value`. The days stay as they are."""
        run_call(self._set(subject, value))

    async def aset(self, subject: AnySubject, value: int) -> None:
        """Set the total; see `set`."""
        await run_async(self._set(subject, value))

    def take(self, subject: AnySubject, n: int = 1) -> bool:
        """Take `n` (1 or more) from the total if it holds that much, else nothing; return whether it did.

        The total never falls below zero, however many callers take at the same time. The days stay as they are.
        To take from a counter and hit limits, all or nothing, make the counter an entry of `check_all`.
        """
        return run_call(self._take(subject, n))

    async def atake(self, subject: AnySubject, n: int = 1) -> bool:
        """Take from the total if it holds enough; see `take`."""
        return await run_async(self._take(subject, n))

    def pop(self, subject: AnySubject) -> int:
        """Return the total and set it to zero in one step, so nothing is counted twice or lost. The days stay."""
        return run_call(self._pop(subject))

    async def apop(self, subject: AnySubject) -> int:
        """Return the total and set it to zero; see `pop`."""
        return await run_async(self._pop(subject))

    def transfer(self, a: AnySubject, b: AnySubject, n: int) -> bool:
        """Move `n` (0 or more) from the total of `a` to the total of `b` if `a` holds `n`; return whether it did.

        Both totals change, or neither does. Their sum stays the same, and `a` never falls below zero. A transfer to
        itself changes nothing. The days stay as they are.

        If it raises `StoreUnavailable`, the amount may have moved: both totals have changed, or neither has. No
        transfer is repeated automatically. Read the totals before you transfer again.

        In a Redis Cluster both totals must be in one slot, because a script cannot reach two: give the counter a
        `group`. Without one it raises `ConfigurationError`, and nothing changes.
        """
        return run_call(self._transfer(a, b, n))

    async def atransfer(self, a: AnySubject, b: AnySubject, n: int) -> bool:
        """Move an amount from one total to another; see `transfer`."""
        return await run_async(self._transfer(a, b, n))

    # --- distinct values ----------------------------------------------------------------------------------------------

    def unique(self, subject: AnySubject, value: str | int) -> bool:
        """Count a distinct value, in total and for the day; return whether the total count has changed.

        Redis keeps a HyperLogLog of at most 12 KB, whose count is right to about 0.8 %: sometimes a new value does not
        change it; a known value never does. The values cannot be read back. The other stores are exact, and keep 32
        characters for each value. 1 and "1" are the same value. The counter's total is not changed.
        """
        return run_call(self._unique(subject, value))

    async def aunique(self, subject: AnySubject, value: str | int) -> bool:
        """Count a distinct value; see `unique`."""
        return await run_async(self._unique(subject, value))

    def unique_count(self, subject: AnySubject, day: date | None = None) -> int:
        """Return how many distinct values `unique` has counted, in total or on one day."""
        return run_call(self._unique_count(subject, day))

    async def aunique_count(self, subject: AnySubject, day: date | None = None) -> int:
        """Return how many distinct values were counted; see `unique_count`."""
        return await run_async(self._unique_count(subject, day))

    # --- the work of the methods --------------------------------------------------------------------------------------

    def _incr(self, subject: AnySubject, n: int) -> Flow[int]:
        name = _named(subject)
        amount = self._amount(name, n, MIN_INT64)
        total, days = self._key("c", name), partial(self._key, "c", name)

        def on(day: Day) -> operations.Incr:
            return operations.Incr((total, days(day.month)), amount, self._ttl, f"{day.date:%d}", day.begins, day.ends)

        reply = yield from self._call_of_day(on, name)
        return int(reply[1])

    def _get(self, subject: AnySubject, day: date | None) -> Flow[int]:
        if day is not None:
            return (yield from self._days(subject, day, day))[day]
        name = _named(subject)
        reply = yield from self._call(operations.Get(self._key("c", name)), name)
        return int(reply[1])

    def _days(self, subject: AnySubject, first: date, last: date) -> Flow[dict[date, int]]:
        name = _named(subject)
        self._check_day(name, first)
        self._check_day(name, last)
        span = (last - first).days + 1
        if not 1 <= span <= MAX_DAYS:
            raise CounterError(
                self.name,
                name,
                Translatable(
                    "%(first)s to %(last)s is not a range of 1 to %(most)d days", first=first, last=last, most=MAX_DAYS
                ),
            )
        months = list(_months(first, last))
        keys = [self._key("c", name, month) for month, _, _ in months]
        reply = yield from self._call(operations.Days(keys, [(begins, ends) for _, begins, ends in months]), name)
        counts = (int(count) for month in reply[1:] for count in month.split())
        return {first + timedelta(days=n): count for n, count in enumerate(counts)}

    def _set(self, subject: AnySubject, value: int) -> Flow[None]:
        name = _named(subject)
        amount = self._amount(name, value, MIN_INT64)
        yield from self._call(operations.Set([self._key("c", name)], amount, self._ttl), name)

    def _take(self, subject: AnySubject, n: int) -> Flow[bool]:
        name = _named(subject)
        amount = self._amount(name, n, 1)
        reply = yield from self._call(operations.TakeUnits([self._key("c", name)], amount, self._ttl), name)
        return bool(reply[0] == operations.DONE)

    def _pop(self, subject: AnySubject) -> Flow[int]:
        name = _named(subject)
        reply = yield from self._call(operations.Pop(self._key("c", name)), name)
        return int(reply[1])

    def _transfer(self, a: AnySubject, b: AnySubject, n: int) -> Flow[bool]:
        source, destination = _named(a), _named(b)
        amount = self._amount(source, n, 0)
        keys = [self._key("c", source), self._key("c", destination)]
        reply = yield from self._call(operations.Transfer(keys, amount, self._ttl), source, destination)
        if reply[0] == operations.TWO_SLOTS:
            raise ConfigurationError(
                f"Counter {self.name!r} of {source} and counter {self.name!r} of {destination} are in two slots of the "
                "Redis Cluster, and a transfer needs one.",
                f"Give both the same group, for example counter({self.name!r}, group={self.name!r}).",
            )
        return bool(reply[0] == operations.DONE)

    def _unique(self, subject: AnySubject, value: object) -> Flow[bool]:
        name = _named(subject)
        if not isinstance(value, (str, int)) or isinstance(value, bool):
            raise CounterError(
                self.name,
                name,
                Translatable("%(value)s is not a value to count. Use a string or a whole number", value=repr(value)),
            )
        # A digest has the same length for all values, and hides them in the store.
        digest = hashlib.blake2b(str(value).encode(errors="surrogatepass"), digest_size=16).hexdigest()
        total, days = self._key("u", name), partial(self._key, "u", name)

        def on(day: Day) -> operations.Unique:
            return operations.Unique((total, days(day.date.isoformat())), digest, self._ttl, day.begins, day.ends)

        reply = yield from self._call_of_day(on, name)
        return bool(reply[1])

    def _unique_count(self, subject: AnySubject, day: date | None) -> Flow[int]:
        name = _named(subject)
        parts = [] if day is None else [self._check_day(name, day).isoformat()]
        reply = yield from self._call(operations.UniqueCount(self._key("u", name, *parts)), name)
        return int(reply[1])

    # --- calls to the store -------------------------------------------------------------------------------------------

    def _call(self, operation: operations.CounterOperation, *names: str) -> Flow[Any]:
        """Run an operation; the flow's result is the reply. `names`: the subject of each key; the last is for the rest.

        Raises `CounterError` if a key is not a counter, or its value would overflow.
        """
        reply = yield store_call(operation)
        if reply[0] in _PROBLEMS:
            number = reply[1] - 1
            problem = _PROBLEMS[reply[0]](operation.keys[number])
            raise CounterError(self.name, names[min(number, len(names) - 1)], problem)
        return reply

    def _call_of_day(self, on: Callable[[Day], operations.CounterOperation], name: str) -> Flow[Any]:
        """Run the operation for the current day by the store's clock; the flow's result is the reply.

        `on`: makes the operation for a day. The first guess is the day of this process. The reply corrects it.
        """
        guess = now()
        for _ in range(MAX_GUESSES):
            reply = yield from self._call(on(day_of(guess, current().time_zone)), name)
            if reply[0] != operations.WRONG_DAY:
                return reply
            guess = reply[1]
        raise StoreUnavailable("its clock keeps changing day")

    def _key(self, kind: str, name: str, *parts: str) -> str:
        if self.group is None:
            return key_of(subject_base(current().prefix, name), kind, self.name, *parts)
        return key_of(group_base(current().prefix, self.group), kind, self.name, name, *parts)

    def _amount(self, name: str, value: object, least: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise CounterError(
                self.name, name, Translatable("%(value)s is not a whole number. Use, for example, 1", value=repr(value))
            )
        if not MIN_INT64 <= value <= MAX_INT64:
            raise CounterError(
                self.name,
                name,
                Translatable("a number of %(bits)d bits does not fit into 64", bits=value.bit_length() + 1),
            )
        if value < least:
            raise CounterError(
                self.name,
                name,
                Translatable("%(value)d is less than %(least)d. Use %(least)d or more", value=value, least=least),
            )
        return int(value)  # a member of an IntEnum could be written as its name

    def _check_day(self, name: str, day: object) -> date:
        if not isinstance(day, date) or isinstance(day, datetime):
            raise CounterError(
                self.name,
                name,
                Translatable("%(day)s is not a date. Use, for example, date(2026, 11, 21)", day=repr(day)),
            )
        return day


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name.strip())


def _named(subject: AnySubject) -> str:
    return subject_of(subject, "a counter")


def _months(first: date, last: date) -> Iterator[tuple[str, int, int]]:
    """Yield each month of a range of days, named as in keys, with its first and last day in the range."""
    while True:
        ends = min(last, first.replace(day=monthrange(first.year, first.month)[1]))
        yield f"{first:%Y-%m}", first.day, ends.day
        if ends == last:
            return
        first = ends + timedelta(days=1)
