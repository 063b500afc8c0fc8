"""Counters: a named total for each subject, its daily counts, and counts of distinct values.

Counters are data, not limits. So they ignore the setting `ENABLED`, and raise `StoreUnavailable` if the store does
not answer.
"""

from __future__ import annotations

import hashlib
from calendar import monthrange
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any, get_args

from django_quota.conf import current
from django_quota.core.algorithms.calendar import Day, day_of
from django_quota.core.algorithms.stock import MAX_GRANTS, MAX_INT64, MIN_INT64, Credit
from django_quota.core.clock import MAX_GUESSES, SECOND, frozen_now, moment_of, now
from django_quota.core.errors import ConfigurationError, CounterError, StoreUnavailable, Translatable
from django_quota.core.flow import Flow, run_async
from django_quota.core.keys import field, group_base, is_digest, key_of, named, subject_base
from django_quota.core.rates import MAX_COUNT, MAX_PERIOD, Duration, parse_duration
from django_quota.core.rule_options import STORE_HINT, STORE_PROBLEM, RuleStore
from django_quota.core.rules import Rule
from django_quota.engine.asks import CounterEntry, Take
from django_quota.engine.operations import text
from django_quota.features.counters import operations
from django_quota.limiting.api import AnySubject, run_call
from django_quota.limiting.registry import get_limiter, store_call
from django_quota.stores.base import all_well
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
    operations.TOO_MANY: lambda key: Translatable(
        "%(key)s would have more than %(most)d grants that are not used up", key=key, most=MAX_GRANTS
    ),
}


@dataclass(frozen=True, slots=True)
class Grant:
    """What is left of units that `Counter.grant` has added, and that expire."""

    id: str
    """The id that you gave it. Empty if many grants were used up before some of their units came back."""
    granted: int
    """How many units it added."""
    left: int
    """How many of them are left."""
    expires: datetime
    """When the rest expires, in UTC."""


def counter(
    name: str, ttl: Duration = COUNTER_TTL, *, group: str | None = None, store: RuleStore | None = None
) -> Counter:
    """Return the counter of this name. This costs nothing, and all counters of one name and group share their counts.

    `ttl`: how long the counter of a subject lives after its last change, one second to a hundred years, by default
    400 days. Each month of daily counts has its own TTL.

    `group`: a name, for a Redis Cluster. All counters of one group are in one slot there, so `transfer` works between
    any two of them; one server does all their work. Choose it before you count: in another group all counts begin at
    zero.

    `store`: `"database"` for credits and other counts that must outlive Redis. A counter of the same name without it
    is another counter, unless `QUOTA["STORE"]` is "database", too.

    Raises `ConfigurationError` for a wrong name, ttl, group or store.
    """
    found = Counter(name, ttl, group=group, store=store)
    if len(made) < MAX_MADE:
        made.setdefault((name, group, store), found)
    return found


MAX_MADE = 200
"""How many counters the pages of a subject look at."""

made: dict[tuple[str, str | None, str | None], Counter] = {}
"""The first counters that this process has made, by name, group and store.

Those at the top of modules are among them, since they are made before any call."""


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

    __slots__ = ("_ttl", "group", "name", "store")

    def __init__(
        self, name: str, ttl: Duration = COUNTER_TTL, *, group: str | None = None, store: RuleStore | None = None
    ) -> None:
        if not _is_name(name):
            raise ConfigurationError(f"{name!r} is not the name of a counter.", "Use, for example, 'pageviews'.")
        if group is not None and not _is_name(group):
            raise ConfigurationError(f"{group!r} is not the group of a counter.", "Use, for example, group='shop'.")
        if store is not None and store not in get_args(RuleStore):
            raise ConfigurationError(f"counter({name!r}, store={store!r}) {STORE_PROBLEM}", STORE_HINT)
        self.name: str = name
        self.store: RuleStore | None = store
        if store is not None:
            Rule.any_in_database = True
        self.group: str | None = group
        self._ttl = parse_duration("ttl", ttl, least=SECOND, most=MAX_TTL)

    def __repr__(self) -> str:
        group = "" if self.group is None else f", group={self.group!r}"
        store = "" if self.store is None else f", store={self.store!r}"
        return f"counter({self.name!r}, ttl={self.ttl!r}{group}{store})"

    @property
    def as_take(self) -> Take:
        """What an entry of `check_all` asks of the counter."""
        return Take(self.name, self.group, self._ttl, store=self.store)

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
        """Set the total to `value`, of which nothing expires: all grants end. The days stay as they are."""
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
        """Return the total and set it to zero in one step, so nothing is counted twice or lost. All grants end.

        The days stay as they are.
        """
        return run_call(self._pop(subject))

    async def apop(self, subject: AnySubject) -> int:
        """Return the total and set it to zero; see `pop`."""
        return await run_async(self._pop(subject))

    def transfer(self, a: AnySubject, b: AnySubject, n: int) -> bool:
        """Move `n` (0 or more) from the total of `a` to the total of `b` if `a` holds `n`; return whether it did.

        Both totals change, or neither does. Their sum stays the same, and `a` never falls below zero. Units of grants
        keep the time when they expire. A transfer to itself changes nothing. The days stay as they are.

        If it raises `StoreUnavailable`, the amount may have moved: both totals have changed, or neither has. No
        transfer is repeated automatically. Read the totals before you transfer again.

        In a Redis Cluster both totals must be in one slot, because a script cannot reach two: give the counter a
        `group`. Without one it raises `ConfigurationError`, and nothing changes.
        """
        return run_call(self._transfer(a, b, n))

    async def atransfer(self, a: AnySubject, b: AnySubject, n: int) -> bool:
        """Move an amount from one total to another; see `transfer`."""
        return await run_async(self._transfer(a, b, n))

    # --- units that expire --------------------------------------------------------------------------------------------

    def grant(self, subject: AnySubject, n: int, *, id: str, expires: Duration | None = None) -> int:  # noqa: A002
        """Add `n` units to the total, once for an id; return the total after it.

        `n`: 1 to 10^12. `id`: 1 to 200 characters, such as the number of an order. A second call with the same id, for
        the same subject, changes nothing and returns the first answer, whatever its other arguments. The store
        remembers an id for as long as the counter lives after a change, by default 400 days.

        `expires`: how long the units live, at most as long as the counter lives after a change; None: for good. What is
        spent, by whatever call, is taken first of the units that expire first, and last of those that never do. When
        units expire, the total goes down by what is left of them, by the store's clock. What a reservation gives back
        goes where it came from, and is lost if that has expired. If the subject owes units, they are paid first.

        The days stay as they are. Raises `CounterError` above 1,000 grants that are not used up.
        """
        return run_call(self._grant(subject, n, id, expires))

    async def agrant(
        self,
        subject: AnySubject,
        n: int,
        *,
        id: str,  # noqa: A002
        expires: Duration | None = None,
    ) -> int:
        """Add units once for an id; see `grant`."""
        return await run_async(self._grant(subject, n, id, expires))

    def grants(self, subject: AnySubject) -> list[Grant]:
        """Return the grants that expire and have units left, in the order in which they are used.

        The rest of the total never expires.
        """
        return run_call(self._grants(subject))

    async def agrants(self, subject: AnySubject) -> list[Grant]:
        """Return the grants that have units left; see `grants`."""
        return await run_async(self._grants(subject))

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
        (total, grants), days = self.keys_of(name), partial(self._key, "c", name)

        def on(day: Day) -> operations.Incr:
            keys = (total, days(day.month), grants)
            return operations.Incr(keys, amount, self._ttl, f"{day.date:%d}", day.begins, day.ends)

        reply = yield from self._call_of_day(on, name)
        return int(reply[1])

    def _get(self, subject: AnySubject, day: date | None) -> Flow[int]:
        if day is not None:
            return (yield from self._days(subject, day, day))[day]
        name = _named(subject)
        return left_in(*(yield from self._call(operations.Get(self.keys_of(name)), name)))

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
        yield from self._call(operations.Set(self.keys_of(name), amount, self._ttl), name)

    def _take(self, subject: AnySubject, n: int) -> Flow[bool]:
        name = _named(subject)
        amount = self._amount(name, n, 1)
        reply = yield from self._call(operations.TakeUnits(self.keys_of(name), amount, self._ttl), name)
        return bool(reply[0] == operations.DONE)

    def _pop(self, subject: AnySubject) -> Flow[int]:
        name = _named(subject)
        return left_in(*(yield from self._call(operations.Pop(self.keys_of(name)), name)))

    def _transfer(self, a: AnySubject, b: AnySubject, n: int) -> Flow[bool]:
        source, destination = _named(a), _named(b)
        amount = self._amount(source, n, 0)
        keys = [key for pair in zip(self.keys_of(source), self.keys_of(destination), strict=True) for key in pair]
        names = (source, destination, source, destination)
        reply = yield from self._call(operations.Transfer(keys, amount, self._ttl), *names)
        if reply[0] == operations.TWO_SLOTS:
            raise ConfigurationError(
                f"Counter {self.name!r} of {source} and counter {self.name!r} of {destination} are in two slots of the "
                "Redis Cluster, and a transfer needs one.",
                f"Give both the same group, for example counter({self.name!r}, group={self.name!r}).",
            )
        return bool(reply[0] == operations.DONE)

    def _grant(self, subject: AnySubject, n: int, given_id: str, expires: Duration | None) -> Flow[int]:
        name = _named(subject)
        amount = self._amount(name, n, 1, MAX_COUNT)
        if not _is_name(given_id) or is_digest(field(given_id)):
            problem = f"{given_id!r} is not the id of a grant: it has 1 to 200 characters."
            raise ConfigurationError(problem, "Use, for example, id='order-17'.")
        span = 0 if expires is None else parse_duration("expires", expires, most=MAX_TTL)
        if span > self._ttl:
            raise ConfigurationError(
                f"expires={expires!r} is longer than counter {self.name!r} lives after a change, {self.ttl.days} days.",
                f"Give it a longer ttl wherever you use it: counter({self.name!r}, ttl={expires!r}).",
            )
        keys = [*self.keys_of(name), self._key("granted", name, given_id)]
        operation = operations.AddGrant(keys, amount, self._ttl, span, field(given_id))
        reply = yield from self._call(operation, name)
        return int(reply[1])

    def _grants(self, subject: AnySubject) -> Flow[list[Grant]]:
        name = _named(subject)
        reply = yield from self._call(operations.Grants(self.keys_of(name)), name)
        return read_grants(reply)

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
        reply = yield store_call(operation, in_database=self.store is not None)
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

    def keys_of(self, name: str) -> tuple[str, str]:
        """Return the keys of the total, and of the units of it that expire."""
        return self._key("c", name), self._key("grants", name)

    def _key(self, kind: str, name: str, *parts: str) -> str:
        prefix = current().prefix_in(self.store)
        if self.group is None:
            return key_of(subject_base(prefix, name), kind, self.name, *parts)
        return key_of(group_base(prefix, self.group), kind, self.name, name, *parts)

    def _amount(self, name: str, value: object, least: int, most: int = MAX_INT64) -> int:
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
        if value > most:
            raise CounterError(
                self.name,
                name,
                Translatable("%(value)d is more than %(most)d. Use %(most)d or less", value=value, most=most),
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


def read_grants(reply: Sequence[Any]) -> list[Grant]:
    """Return the grants in a reply to `operations.Grants`."""
    found = [Credit.read(text(member)) for member in reply[3:]]
    return [Grant(named(each.id) or "", each.granted, each.left, moment_of(each.expires)) for each in found]


def left_in(_: int, counted: str, expired: int, *__: Any) -> int:
    """Return the total in a reply to `operations.Get`."""
    return int(counted) - expired


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


# --- for operators ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CounterStatus:
    """What a counter holds for a subject, with what is left of grants that expire."""

    counter: str
    total: int
    """All that is left, with what never expires."""
    grants: tuple[Grant, ...]
    """The first to expire first."""


def counters_of(subject: str, names: Iterable[str] = (), decided: Collection[str] = ()) -> list[CounterStatus]:
    """Return what the counters of this process, and others of these names, hold for a subject, unless it is nothing.

    `decided`: those that requests have asked for units; they are returned also if they hold nothing.

    It takes one round trip to each store that has counters. Raises `StoreUnavailable`.
    """
    known = {(name, None, None): Counter(name) for name in names} | made
    found = []
    for in_database in (False, True):
        counters = [of for of in known.values() if (of.store is not None) == in_database]
        if not counters:
            continue
        store = get_limiter().stores.counting_in(database=in_database).reporting_store
        replies = all_well(store.try_all([operations.Grants(of.keys_of(subject)) for of in counters], frozen_now()))
        for of, reply in zip(counters, replies, strict=True):
            if reply[0] != operations.DONE:
                continue
            total, grants = left_in(*reply), tuple(read_grants(reply))
            if total or grants or of.name in decided:
                found.append(CounterStatus(of.name, total, grants))
    return sorted(found, key=lambda each: each.counter)
