"""The properties of counters: Lua and specification never differ, nothing is lost, and nothing goes below zero.

A state machine holds the three to the same replies; real processes, some of them killed, hold Redis to the sums.
"""

from __future__ import annotations

import os
import random
import signal
import struct
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from django_quota import counter
from django_quota.core.algorithms.stock import MAX_INT64, MIN_INT64
from django_quota.core.algorithms.token_bucket import Bucket
from django_quota.engine import counter_operations as operations
from django_quota.engine.counter_operations import DONE
from django_quota.engine.operations import Operation, text
from tests.support.places import Machine, run_machine
from tests.support.processes import ended, forks, heard, processes, started, threads_ran
from tests.support.specifications import Drop, Put
from tests.support.steps import SECOND, START
from tests.support.stores import memory_states

DAY = 86_400 * SECOND
MIDNIGHT = START // DAY * DAY
TTL = 400 * DAY
SUBJECTS = st.sampled_from(["a", "b"])
SIGNED = st.one_of(
    st.integers(-9, 9), st.sampled_from([MIN_INT64, MIN_INT64 + 1, -(2**53) - 1, 2**53 + 1, MAX_INT64 - 1, MAX_INT64])
)
UNSIGNED = st.one_of(st.integers(0, 9), st.sampled_from([2**53, 2**53 + 1, MAX_INT64 - 1, MAX_INT64]))
FOREIGN = ("something else",)
"""The value in the specification for a list in Redis."""


def total_of(subject: str) -> str:
    return f"quota:1:{{{subject}}}:c:total"


def month_of(subject: str) -> str:
    return f"{total_of(subject)}:2025-11"


def values_of(subject: str) -> str:
    return f"quota:1:{{{subject}}}:u:total"


def _but(stored: dict[str, bytes | None], keys: Sequence[str]) -> dict[str, bytes | None]:
    return {key: value for key, value in stored.items() if key not in keys}


def values_of_a_day(subject: str) -> str:
    return f"{values_of(subject)}:2025-11-21"


class Counting(Machine):
    """Counts, takes, moves and reads in any order."""

    @initialize()
    def begin(self) -> None:
        self.open()
        self.now = START

    def done(self, operation: Operation) -> bool:
        """Do an operation; say whether it was done, and check the properties that hold for each."""
        before = self.places.dump()
        reply = self.places.run(operation, self.now)
        after = self.places.dump()
        if reply[0] != DONE:
            assert after == before
        assert _but(after, operation.keys) == _but(before, operation.keys)
        assert all(self.raw.pttl(key) > 0 for key in after)
        specified = self.places.states.kept
        assert {key: self.stored(key) for key in after} == {key: value for key, (value, _) in specified.items()}
        return bool(reply[0] == DONE)

    def stored(self, key: str) -> object:
        """Return what lies under a key of Redis as the specification has it."""
        specified = self.places.states.get(key)
        if self.raw.type(key) == b"list":
            return FOREIGN
        if self.raw.type(key) == b"hash":
            return {text(field): int(count) for field, count in self.raw.hgetall(key).items()}
        if isinstance(specified, frozenset):  # all that a HyperLogLog tells is how many there are
            return specified if self.raw.pfcount(key) == len(specified) else None
        return int(self.raw.get(key) or 0)

    def totals(self) -> list[int]:
        """Return the totals in Redis; none where a key holds something else."""
        keys = [total_of(subject) for subject in "ab"]
        return [int(self.raw.get(key) or 0) if self.raw.type(key) != b"list" else 0 for key in keys]

    def something_else(self, key: str, *, cleared: bool) -> None:
        """Lay what is no counter under a key, or only clear it."""
        self.raw.delete(key)
        for states in (memory_states(self.places.memory), self.places.states):
            states.drop(key)
        self.places.in_database(Drop([key]), START)
        if not cleared:
            self.places.in_database(Put(key, Bucket(1, 1), START + 2 * TTL), START)
            self.raw.rpush(key, "x")
            self.raw.expire(key, 10**6)
            for states in (memory_states(self.places.memory), self.places.states):
                states.put(key, FOREIGN, START + 2 * TTL)

    @rule(gap=st.one_of(st.integers(0, 3), st.integers(0, 3 * DAY)))
    def time_passes(self, gap: int) -> None:
        self.now = min(self.now + gap, MIDNIGHT + 9 * DAY)  # within the month, and within every ttl

    @rule(before=st.integers(0, 1))
    def midnight_comes(self, before: int) -> None:
        self.time_passes(DAY - self.now % DAY - before)

    @rule(subject=SUBJECTS, amount=SIGNED, off=st.sampled_from([0, 0, 0, 0, 0, -1, 1]))
    def it_is_incremented(self, subject: str, amount: int, off: int) -> None:
        number = (self.now - MIDNIGHT) // DAY + off
        begins = MIDNIGHT + number * DAY
        keys = (total_of(subject), month_of(subject))
        before = self.totals()["ab".index(subject)]
        if self.done(operations.Incr(keys, amount, TTL, f"{21 + number:02}", begins, begins + DAY)):
            assert off == 0
            assert self.totals()["ab".index(subject)] == before + amount

    @rule(subject=SUBJECTS, amount=SIGNED)
    def it_is_set(self, subject: str, amount: int) -> None:
        if self.done(operations.Set([total_of(subject)], amount, TTL)):
            assert self.totals()["ab".index(subject)] == amount

    @rule(subject=SUBJECTS)
    def it_is_read(self, subject: str) -> None:
        before = self.places.dump()
        self.done(operations.Get(total_of(subject)))
        self.done(operations.Days([month_of(subject), f"{total_of(subject)}:2025-12"], [(20, 30), (1, 31)]))
        assert self.places.dump() == before

    @rule(subject=SUBJECTS)
    def it_is_popped(self, subject: str) -> None:
        if self.done(operations.Pop(total_of(subject))):
            assert self.totals()["ab".index(subject)] == 0

    @rule(subject=SUBJECTS, amount=UNSIGNED.filter(bool))
    def some_is_taken(self, subject: str, amount: int) -> None:
        before = self.totals()["ab".index(subject)]
        done = self.done(operations.Take([total_of(subject)], amount, TTL))
        after = self.totals()["ab".index(subject)]
        assert after == (before - amount if done else before)
        assert after >= min(before, 0)

    @rule(source=SUBJECTS, destination=SUBJECTS, amount=UNSIGNED)
    def some_is_moved(self, source: str, destination: str, amount: int) -> None:
        before = self.totals()
        self.done(operations.Transfer([total_of(source), total_of(destination)], amount, TTL))
        after = self.totals()
        assert sum(after) == sum(before)
        assert all(now >= min(then, 0) for now, then in zip(after, before, strict=True))

    @rule(subject=SUBJECTS, value=st.integers(0, 9), off=st.sampled_from([0, 0, 0, 0, 0, -1, 1]))
    def a_value_is_counted(self, subject: str, value: int, off: int) -> None:
        number = (self.now - MIDNIGHT) // DAY + off
        begins = MIDNIGHT + number * DAY
        keys = (values_of(subject), f"{values_of(subject)}:2025-11-{21 + number:02}")
        self.done(operations.Unique(keys, f"value {value}", TTL, begins, begins + DAY))

    @rule(subject=SUBJECTS, day=st.one_of(st.none(), st.integers(21, 29)))
    def different_values_are_counted(self, subject: str, day: int | None) -> None:
        self.done(operations.UniqueCount(values_of(subject) + (f":2025-11-{day}" if day else "")))

    @rule(
        subject=SUBJECTS, kind=st.sampled_from([total_of, month_of, values_of, values_of_a_day]), cleared=st.booleans()
    )
    def something_else_lies_there(self, subject: str, kind: Callable[[str], str], cleared: bool) -> None:
        self.something_else(kind(subject), cleared=cleared)


@pytest.mark.hypothesis
@pytest.mark.usefixtures("redis_cache")
def test_lua_and_specification_never_differ(raw: redis.Redis) -> None:
    run_machine(Counting, raw, 150, 30)


# --- real processes ---------------------------------------------------------------------------------------------------

STOCK = counter("stock")
CREDITS = counter("credits")
ACCOUNTS = [f"user:{number}" for number in range(50)]


@pytest.mark.thorough("processes")
@forks
@threads_ran
@pytest.mark.usefixtures("redis_cache")
def test_100_processes_take_exactly_what_there_is() -> None:
    result = struct.Struct("qq")
    STOCK.set("sku:1", 1_000)
    ready, go = os.pipe()
    results, report = os.pipe()

    def buy() -> None:
        os.close(go)
        os.read(ready, 1)  # returns when the test closes its end: all begin at once
        taken, lowest = 0, 1_000
        while STOCK.take("sku:1"):
            taken += 1
            lowest = min(lowest, STOCK.get("sku:1"))
        os.write(report, result.pack(taken, lowest))

    with processes() as children:
        children.extend(started(buy) for _ in range(100))
        os.close(report)
        os.close(go)
        assert ended(children) == [0] * 100
    os.close(ready)
    with os.fdopen(results, "rb") as pipe:
        lines = list(result.iter_unpack(pipe.read()))
    assert len(lines) == 100
    assert sum(taken for taken, _ in lines) == 1_000
    assert min(lowest for _, lowest in lines) >= 0
    assert STOCK.get("sku:1") == 0


@pytest.mark.thorough("processes")
@forks
@threads_ran
@pytest.mark.usefixtures("redis_cache")
def test_10_000_transfers_keep_the_sum_though_a_worker_is_killed(raw: redis.Redis) -> None:
    keys = [f"quota:1:{{{name}}}:c:credits" for name in ACCOUNTS]
    for name in ACCOUNTS:
        CREDITS.set(name, 100)
    progress, report = os.pipe()

    def move(chance: random.Random) -> bool:
        source, destination = chance.choices(ACCOUNTS, k=2)
        return CREDITS.transfer(source, destination, chance.randint(1, 60))

    def work(seed: int) -> None:
        chance = random.Random(seed)
        assert 0 < sum(move(chance) for _ in range(2_500)) < 2_500  # some are refused, some not

    def work_for_ever() -> None:
        chance = random.Random(99)
        for _ in range(500):
            move(chance)
        os.write(report, b"!")
        while True:
            move(chance)

    def look() -> None:
        amounts = [int(amount) for amount in raw.mget(keys)]  # type: ignore[arg-type]
        assert sum(amounts) == 50 * 100
        assert min(amounts) >= 0

    with processes() as children:
        victim = started(work_for_ever)
        children.append(victim)
        children.extend(started(partial(work, seed)) for seed in range(4))
        os.close(report)
        assert heard(progress) == b"!"
        for _ in range(50):
            look()
        os.kill(victim, signal.SIGKILL)
        look()
        assert sorted(ended(children)) == [-signal.SIGKILL, 0, 0, 0, 0]
    os.close(progress)
    look()
