"""The operations of counters: totals, counts of days, and counts of distinct values.

Each class is the specification of a `counter_*.lua`. The caller passes the keys, the fields and the edges of the day.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from django_quota.core.algorithms.stock import MAX_INT64, MIN_INT64, Drawn, Total
from django_quota.engine.counter_totals import put_total
from django_quota.engine.operations import Operation, Script, States, script
from django_quota.engine.scatter import Scatter, SlotOf, scatter

ValueT = TypeVar("ValueT")

DONE, TOO_FEW, WRONG_DAY, NO_COUNTER, OVERFLOW, TOO_MANY = 1, 0, -1, -2, -3, -5
"""The status at the beginning of a reply; see `engine/lua/counter_common.lua`."""

TWO_SLOTS = -4
"""The status of a transfer between two slots of a Redis Cluster, which one script cannot reach."""

_HERE = "features/counters/"


def _script(name: str) -> Script:
    return script("clock", "lifetimes", "counter_common", _HERE + name)


def _script_of_grants(name: str) -> Script:
    return script(
        "clock", "lifetimes", "counter_common", "open_grants", "make_grants", _HERE + "read_grants", _HERE + name
    )


def _script_of_readers(name: str) -> Script:
    """Return a script that does not need the time unless the counter has grants."""
    return script("counter_common", "open_grants", _HERE + "grants_with_time", _HERE + "read_grants", _HERE + name)


class FaultError(Exception):
    """A key is at fault: the status, and the key's number from 1."""

    def __init__(self, status: int, number: int) -> None:
        self.reply = [status, number]
        super().__init__(status, number)


class CounterOperation(Operation):
    """An operation of a counter. Its reply is a list: a status, then the result or the number of the key at fault."""

    def run(self, states: States, now: int) -> list[Any]:
        """Run the operation; if a key is at fault, nothing changes."""
        try:
            return self.apply(states, now)
        except FaultError as fault:
            return fault.reply

    @abstractmethod
    def apply(self, states: States, now: int) -> list[Any]:
        """Run the operation, or raise `FaultError` before anything is written."""

    def read(self, states: States, now: int, number: int, nothing: ValueT) -> ValueT:
        """Return the value of the key with this number, or `nothing` if there is none; both must have the same type."""
        value = states.get(self.keys[number - 1], now)
        if value is None:
            return nothing
        if not isinstance(value, type(nothing)):
            raise FaultError(NO_COUNTER, number)
        return value

    def total(self, states: States, now: int, number: int, grants_number: int) -> Total:
        """Return the total under the key with the first number, without what has expired.

        `grants_number`: that of the key with the units that expire.
        """
        units = self.read(states, now, number, 0)
        kept = self.read(states, now, grants_number, dict[str, int]())
        return Total.read(units, states.expiry(self.keys[number - 1]), kept, now)


def added(value: int, amount: int, number: int) -> int:
    """Return the sum. Raises `FaultError` for the key with this number if the sum does not fit into 64 bits."""
    if not MIN_INT64 <= value + amount <= MAX_INT64:
        raise FaultError(OVERFLOW, number)
    return value + amount


def _fitting(total: Total, number: int) -> Total:
    """Return a total. Raises `FaultError` for the key with this number if it does not fit into 64 bits."""
    if not total.fits:
        raise FaultError(OVERFLOW, number)
    return total


class Get(CounterOperation):
    """Read a total; the reply is DONE, what was counted, and how many units of it have expired.

    Its keys: the total, and the units of it that expire.
    """

    script: ClassVar[Script] = _script_of_readers("counter_get")
    is_reading: ClassVar[bool] = True

    def apply(self, states: States, now: int) -> list[Any]:
        counted = self.read(states, now, 1, 0)
        return [DONE, str(counted), counted - self.total(states, now, 1, 2).units]


class Pop(Get):
    """Read a total and set it to zero; the reply is as for `Get`."""

    script: ClassVar[Script] = _script_of_readers("counter_pop")
    is_reading: ClassVar[bool] = False

    def apply(self, states: States, now: int) -> list[Any]:
        reply = super().apply(states, now)
        for key in self.keys:
            states.drop(key)
        return reply


class Grants(Get):
    """Read a total and its grants; the reply is that of `Get`, then the `Credit.member` of each that is not used up."""

    script: ClassVar[Script] = _script_of_readers("counter_grants")

    def apply(self, states: States, now: int) -> list[Any]:
        left = [each.member for each in self.total(states, now, 1, 2).credits if each.left]
        return [*super().apply(states, now), *left]


class _Changing(CounterOperation):
    """An operation that writes. Its first arguments: an amount or a value, and how long it lives in microseconds."""

    def has_written(self, reply: Any) -> bool:
        return bool(reply[0] == DONE)


class Set(_Changing):
    """Set the total to the amount, of which nothing expires; the reply is DONE. Its keys are those of `Get`."""

    script: ClassVar[Script] = _script_of_grants("counter_set")

    def apply(self, states: States, now: int) -> list[Any]:
        amount, ttl = self.arguments()
        self.total(states, now, 1, 2)
        put_total(states, self.keys, Total(amount, now + ttl))
        return [DONE]


class TakeUnits(_Changing):
    """Take the amount (1 to 2^63 - 1) from a total; the reply is DONE, or TOO_FEW if the total is less.

    Its keys are those of `Get`.
    """

    script: ClassVar[Script] = _script_of_grants("counter_take")

    def apply(self, states: States, now: int) -> list[Any]:
        amount, ttl = self.arguments()
        total = self.total(states, now, 1, 2)
        if total.units < amount:
            return [TOO_FEW]
        put_total(states, self.keys, total.spent(amount)._replace(expiry=now + ttl))
        return [DONE]


class Transfer(_Changing):
    """Move the amount (0 to 2^63 - 1) from the first of two totals to the second; the reply is as for `TakeUnits`.

    Its keys: both totals, then the units of each that expire. Units that expire keep their time.
    """

    script: ClassVar[Script] = _script_of_grants("counter_transfer")

    def has_written(self, reply: Any) -> bool:
        """Return whether the amount was moved, and something was written."""
        return self.keys[0] != self.keys[1] and super().has_written(reply)

    def apply(self, states: States, now: int) -> list[Any]:
        amount, ttl = self.arguments()
        source, destination = self.total(states, now, 1, 3), self.total(states, now, 2, 4)
        if source.units < amount:
            return [TOO_FEW]
        if self.keys[0] != self.keys[1]:
            rest = source.spent(amount)
            drawn = rest.drawn_since(source)
            moved = _with_room(destination, len(drawn), 4).credited(amount, drawn, now)
            put_total(states, self.keys[1::2], _fitting(moved, 2)._replace(expiry=now + ttl))
            put_total(states, self.keys[::2], rest._replace(expiry=now + ttl))
        return [DONE]


class AddGrant(_Changing):
    """Add the amount (1 to 10^12) to a total, once for an id.

    The reply is DONE, the total after the first time, and 1 if it was added now. Its keys: those of `Get`, and the mark
    of the id. Its arguments: the amount, how long the counter and the mark live, how long the units live (0: they do
    not expire), in microseconds; the id, escaped.
    """

    script: ClassVar[Script] = _script_of_grants("counter_grant")

    def has_written(self, reply: Any) -> bool:
        """Return whether the units were added now."""
        return super().has_written(reply) and bool(reply[2])

    def apply(self, states: States, now: int) -> list[Any]:
        amount, ttl, span, name = self.arguments()
        mark_key = self.keys[2]
        first = states.get(mark_key, now)
        if first is not None:
            return [DONE, first, 0]
        total = self.total(states, now, 1, 2)
        drawn = list[Drawn]()
        if span:
            total, expires = _with_room(total, 1, 2), now + span
            for each in total.credits:
                expires += each.expires == expires
            drawn.append(Drawn(expires, amount, name))
        total = _fitting(total.credited(amount, drawn, now), 1)._replace(expiry=now + ttl)
        put_total(states, self.keys[:2], total)
        states.put(mark_key, str(total.units), now + ttl)
        return [DONE, str(total.units), 1]


def _with_room(total: Total, more: int, number: int) -> Total:
    """Return a total to which so many grants can be added. Raises `FaultError` if it would have too many."""
    found = total.with_room(more)
    if found is None:
        raise FaultError(TOO_MANY, number)
    return found


class _DayOperation(CounterOperation):
    """An operation that counts in total and for a day; its last arguments: `begins <= now < ends` (microseconds).

    At another time the reply is WRONG_DAY and the store's time, and the caller tries the day of that time.
    """

    def run(self, states: States, now: int) -> list[Any]:
        """Run the operation if it is that day."""
        begins, ends = self.arguments()[-2:]
        return super().run(states, now) if begins <= now < ends else [WRONG_DAY, now]


class Incr(_Changing, _DayOperation):
    """Add the amount to a total, and to a field of the days under the second key; the reply is DONE and the total.

    Its keys: the total, the days, and the units of the total that expire. Its arguments: the amount, how long both
    live, the field, and the edges of the day.
    """

    script: ClassVar[Script] = _script_of_grants("counter_incr")

    def apply(self, states: States, now: int) -> list[Any]:
        """Add to the total and the day, or to neither."""
        amount, ttl, field, _, _ = self.arguments()
        total = _fitting(self.total(states, now, 1, 3).spent(-amount), 1)
        days: dict[str, int] = self.read(states, now, 2, {})
        count = added(days.get(field, 0), amount, 2)
        put_total(states, self.keys[::2], total._replace(expiry=now + ttl))
        states.put(self.keys[1], {**days, field: count}, now + ttl)
        return [DONE, str(total.units)]


class Days(CounterOperation):
    """Read the counts of days; the reply is DONE and a string for each key.

    `ranges`: the first and the last day of each key.
    """

    script: ClassVar[Script] = script("counter_common", _HERE + "counter_days")
    is_slow: ClassVar[bool] = True
    is_reading: ClassVar[bool] = True

    def __init__(self, keys: Sequence[str], ranges: Sequence[tuple[int, int]]) -> None:
        super().__init__(keys, *(f"{first} {last}" for first, last in ranges))
        self.ranges = ranges

    def apply(self, states: States, now: int) -> list[Any]:
        reply: list[Any] = [DONE]
        for number, (first, last) in enumerate(self.ranges, 1):
            days: dict[str, int] = self.read(states, now, number, {})
            reply.append(" ".join(str(days.get(f"{day:02}", 0)) for day in range(first, last + 1)))
        return reply


class Unique(_Changing, _DayOperation):
    """Count a distinct value, in total and for a day; the reply is DONE, and 1 if the value is new in total.

    Its arguments: the value, how long both live, and the edges of the day.
    The specification is exact. Redis uses a HyperLogLog, which may take a new value for a known one.
    """

    script: ClassVar[Script] = _script("counter_unique")

    def apply(self, states: States, now: int) -> list[Any]:
        value, ttl, _, _ = self.arguments()
        known: list[frozenset[str]] = [self.read(states, now, number, frozenset()) for number in (1, 2)]
        for key, values in zip(self.keys, known, strict=True):
            states.put(key, values | {value}, now + ttl)
        return [DONE, int(value not in known[0])]


class UniqueCount(Get):
    """Count the distinct values under a key; the reply is DONE and how many."""

    script: ClassVar[Script] = script("counter_common", _HERE + "counter_unique_count")

    def __init__(self, key: str) -> None:
        super().__init__([key])

    def apply(self, states: States, now: int) -> list[Any]:
        return [DONE, len(self.read(states, now, 1, frozenset()))]


@scatter.register
def _transfer(operation: Transfer, slot_of: SlotOf) -> Scatter:
    if slot_of(operation.keys[0]) != slot_of(operation.keys[1]):
        return [TWO_SLOTS]
    (reply,) = yield [operation]
    return reply
