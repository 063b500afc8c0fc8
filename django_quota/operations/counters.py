"""What a counter is asked to do: totals, tallies of days, and counts of different values. Pure.

Beside each script of `lua/counter_*.lua` stands its specification; those of a transfer between two places stand in
`operations.transfers`. It must not know what a counter is called, whose it is, or which day it is: keys, fields and the
edges of the day are the caller's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

from django_quota.operations.base import Operation, Script, States, script, text
from django_quota.operations.shapes import LEAST, MOST, Shape, digits, is_row, is_rows, moment, whole, words

T = TypeVar("T")

DONE, REFUSED, STALE, NO_COUNTER, OVERFLOW = 1, 0, -1, -2, -3
"""What a reply begins with; see `lua/counter_common.lua`."""

MILLISECOND = 1_000
"""Microseconds in a millisecond."""


def _script(name: str) -> Script:
    return script("counter_common", name)


class FaultError(Exception):
    """What lies under a key does not allow the operation: a status, and the key's number from 1."""

    def __init__(self, status: int, number: int) -> None:
        self.reply = [status, number]
        super().__init__(status, number)


class CounterOperation(Operation):
    """An operation of a counter. Its reply is a list: how it went, and what came of it or which key is at fault."""

    answers: ClassVar[Mapping[int, Sequence[Shape]]] = {DONE: ()}
    """What follows in the reply behind how it went, where no key is at fault."""
    rows: ClassVar[Sequence[Shape]] = ()
    """What may follow behind that, any number of times."""

    def fits(self, reply: Any) -> bool:
        """Say whether a reply can be the one to this."""
        if not isinstance(reply, list) or not reply or not whole(reply[0]):
            return False
        status, *others = reply
        if status in (NO_COUNTER, OVERFLOW):
            return is_row(others, whole) and 1 <= others[0] <= len(self.keys)
        return status in self.answers and self.fits_behind(status, others)

    def fits_behind(self, status: int, others: list[Any]) -> bool:
        """Say whether this can follow behind how it went."""
        first = self.answers[status]
        return is_row(others[: len(first)], *first) and is_rows(others[len(first) :], *self.rows)

    def run(self, states: States, now: int) -> list[Any]:
        """Do it; where a key is at fault nothing has changed."""
        try:
            return self.apply(states, now)
        except FaultError as fault:
            return fault.reply

    @abstractmethod
    def apply(self, states: States, now: int) -> list[Any]:
        """Do it, or raise `FaultError` before anything is written."""

    def read(self, states: States, now: int, number: int, nothing: T) -> T:
        """Return what lies under the key of this number; `nothing`, which tells its type, where nothing does."""
        value = states.get(self.keys[number - 1], now)
        if value is None:
            return nothing
        if not isinstance(value, type(nothing)):
            raise FaultError(NO_COUNTER, number)
        return value


def added(value: int, amount: int, number: int) -> int:
    """Return the sum; raises `FaultError` for the key of this number where it does not fit into 64 bits."""
    if not LEAST <= value + amount <= MOST:
        raise FaultError(OVERFLOW, number)
    return value + amount


class Get(CounterOperation):
    """Read a total; the reply is DONE and the total."""

    script: ClassVar[Script] = _script("counter_get")
    answers: ClassVar[Mapping[int, Sequence[Shape]]] = {DONE: (digits,)}

    def __init__(self, key: str) -> None:
        self.keys = [key]

    def arguments(self) -> list[str | int]:
        """Return none."""
        return []

    def apply(self, states: States, now: int) -> list[Any]:
        """Read it."""
        return [DONE, str(self.read(states, now, 1, 0))]


class Pop(Get):
    """Read a total and make it zero; the reply is that of `Get`."""

    script: ClassVar[Script] = _script("counter_pop")

    def apply(self, states: States, now: int) -> list[Any]:
        """Read it, and forget it."""
        reply = super().apply(states, now)
        states.drop(self.keys[0])
        return reply


class _Changing(CounterOperation):
    """An operation by an amount; what it writes lives for `ttl` (microseconds, whole milliseconds) from then on."""

    def __init__(self, keys: Sequence[str], amount: int, ttl: int) -> None:
        self.keys = keys
        self.amount = amount
        self.ttl = ttl

    def arguments(self) -> list[str | int]:
        """Return the amount, and the lifetime in milliseconds."""
        return [self.amount, self.ttl // MILLISECOND]

    def has_written(self, reply: Any) -> bool:
        """Say whether it was done."""
        return bool(reply[0] == DONE)


class Set(_Changing):
    """Make the total under a key the amount; the reply is DONE."""

    script: ClassVar[Script] = _script("counter_set")

    def apply(self, states: States, now: int) -> list[Any]:
        """Write it where a counter or nothing lies."""
        self.read(states, now, 1, 0)
        states.put(self.keys[0], self.amount, now + self.ttl)
        return [DONE]


class Take(_Changing):
    """Take the amount (1 to 2^63 - 1) from the total under a key; the reply is DONE, or REFUSED where it has less."""

    script: ClassVar[Script] = _script("counter_take")
    answers: ClassVar[Mapping[int, Sequence[Shape]]] = {DONE: (), REFUSED: ()}

    def apply(self, states: States, now: int) -> list[Any]:
        """Take all of it or nothing."""
        total = self.read(states, now, 1, 0)
        if total < self.amount:
            return [REFUSED]
        states.put(self.keys[0], total - self.amount, now + self.ttl)
        return [DONE]


class Passage(NamedTuple):
    """By which way an amount goes where no script reaches both totals; see `operations.transfers`."""

    id: str
    """No other transfer has it."""
    outbox: str
    inbox: str


class Transfer(_Changing):
    """Move the amount (0 to 2^63 - 1) from the first of two keys to the second; the reply is that of `Take`.

    The script needs both in one place, and then no passage.
    """

    script: ClassVar[Script] = _script("counter_transfer")
    answers: ClassVar[Mapping[int, Sequence[Shape]]] = Take.answers

    def __init__(self, keys: Sequence[str], amount: int, ttl: int, passage: Passage) -> None:
        super().__init__(keys, amount, ttl)
        self.passage = passage

    def has_written(self, reply: Any) -> bool:
        """Say whether it was done, and there was anything to do."""
        return self.keys[0] != self.keys[1] and super().has_written(reply)

    def apply(self, states: States, now: int) -> list[Any]:
        """Move all of it or nothing."""
        giver, taker = self.read(states, now, 1, 0), self.read(states, now, 2, 0)
        if giver < self.amount:
            return [REFUSED]
        if self.keys[0] != self.keys[1]:
            states.put(self.keys[1], added(taker, self.amount, 2), now + self.ttl)
            states.put(self.keys[0], giver - self.amount, now + self.ttl)
        return [DONE]


class _OfADay(CounterOperation):
    """An operation that counts in all and in a day, which holds for `begins <= now < ends` (microseconds).

    Outside of them its reply is STALE and the store's time: the caller sends the day of that time.
    """

    answers: ClassVar[Mapping[int, Sequence[Shape]]] = {DONE: (digits,), STALE: (moment,)}
    begins: int
    ends: int

    def run(self, states: States, now: int) -> list[Any]:
        """Do it, where it is still that day."""
        return super().run(states, now) if self.begins <= now < self.ends else [STALE, now]


class Incr(_Changing, _OfADay):
    """Add the amount to a total, and to a field of the days under the second key; the reply is DONE and the total."""

    script: ClassVar[Script] = _script("counter_incr")

    def __init__(self, keys: Sequence[str], amount: int, ttl: int, field: str, begins: int, ends: int) -> None:
        super().__init__(keys, amount, ttl)
        self.field = field
        self.begins = begins
        self.ends = ends

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/counter_incr.lua` lists them."""
        return [*super().arguments(), self.field, self.begins, self.ends]

    def apply(self, states: States, now: int) -> list[Any]:
        """Add to both or to none."""
        total = added(self.read(states, now, 1, 0), self.amount, 1)
        days: dict[str, int] = self.read(states, now, 2, {})
        tally = added(days.get(self.field, 0), self.amount, 2)
        states.put(self.keys[0], total, now + self.ttl)
        states.put(self.keys[1], {**days, self.field: tally}, now + self.ttl)
        return [DONE, str(total)]


class Days(CounterOperation):
    """Read tallies, from the first to the last day asked of each key; the reply is DONE and a text for each key."""

    script: ClassVar[Script] = _script("counter_days")

    def __init__(self, keys: Sequence[str], ranges: Sequence[tuple[int, int]]) -> None:
        self.keys = keys
        self.ranges = ranges

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/counter_days.lua` lists them."""
        return [f"{first} {last}" for first, last in self.ranges]

    def fits_behind(self, status: int, others: list[Any]) -> bool:  # noqa: ARG002 — it is DONE
        """Say whether there are as many tallies as days were asked for."""
        if len(others) != len(self.ranges) or not all(map(words, others)):
            return False
        tallies = [text(part).split() for part in others]
        lengths = [last - first + 1 for first, last in self.ranges]
        return list(map(len, tallies)) == lengths and all(all(map(digits, part)) for part in tallies)

    def apply(self, states: States, now: int) -> list[Any]:
        """Read them."""
        reply: list[Any] = [DONE]
        for number, (first, last) in enumerate(self.ranges, 1):
            days: dict[str, int] = self.read(states, now, number, {})
            reply.append(" ".join(str(days.get(f"{day:02}", 0)) for day in range(first, last + 1)))
        return reply


class Unique(_OfADay):
    """Count a value among the different ones, in all and of a day; the reply is DONE and 1 where it was new in all.

    What is exact here is a HyperLogLog in Redis: there a new value may be taken for a known one.
    """

    script: ClassVar[Script] = _script("counter_unique")

    def __init__(self, keys: Sequence[str], value: str, ttl: int, begins: int, ends: int) -> None:
        self.keys = keys
        self.value = value
        self.ttl = ttl
        self.begins = begins
        self.ends = ends

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/counter_unique.lua` lists them."""
        return [self.value, self.ttl // MILLISECOND, self.begins, self.ends]

    def has_written(self, reply: Any) -> bool:
        """Say whether it was counted: a value that was known may have been, too."""
        return bool(reply[0] == DONE)

    def apply(self, states: States, now: int) -> list[Any]:
        """Count it in both."""
        known: list[frozenset[str]] = [self.read(states, now, number, frozenset()) for number in (1, 2)]
        for key, values in zip(self.keys, known, strict=True):
            states.put(key, values if self.value in values else values | {self.value}, now + self.ttl)
        return [DONE, int(self.value not in known[0])]


class UniqueCount(Get):
    """Say how many different values lie under a key; the reply is DONE and how many."""

    script: ClassVar[Script] = _script("counter_unique_count")

    def apply(self, states: States, now: int) -> list[Any]:
        """Count them."""
        return [DONE, len(self.read(states, now, 1, frozenset()))]
