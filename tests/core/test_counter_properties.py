"""The properties of counters: Lua and specification never differ, nothing is lost, and nothing goes below zero."""

import os
import random
import signal
import struct
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
OFF = st.sampled_from([0, 0, 0, 0, 0, -1, 1])
"""Days by which the day that is sent is not that of the moment."""
KEYS = ["c:total", "c:total:2025-11", "u:total", "u:total:2025-11-21"]
SIGNED = st.one_of(
    st.integers(-9, 9), st.sampled_from([MIN_INT64, MIN_INT64 + 1, -(2**53) - 1, 2**53 + 1, MAX_INT64 - 1, MAX_INT64])
)
UNSIGNED = st.one_of(st.integers(0, 9), st.sampled_from([2**53, 2**53 + 1, MAX_INT64 - 1, MAX_INT64]))
FOREIGN = ("something else",)
"""The value in the specification for a list in Redis."""


def total_of(subject: str) -> str:
    return f"quota:1:{{{subject}}}:c:total"


def values_of(subject: str) -> str:
    return f"quota:1:{{{subject}}}:u:total"


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
        changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
        assert changed <= (set(operation.keys) if reply[0] == DONE else set())
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

    def total(self, subject: str) -> int:
        """Return the total in Redis; 0 where the key holds something else."""
        key = total_of(subject)
        return 0 if self.raw.type(key) == b"list" else int(self.raw.get(key) or 0)

    def day(self, off: int) -> tuple[str, int, int]:
        """Return a day near the current one, and when it begins and ends."""
        number = (self.now - MIDNIGHT) // DAY + off
        return f"{21 + number:02}", MIDNIGHT + number * DAY, MIDNIGHT + (number + 1) * DAY

    @rule(gap=st.one_of(st.integers(0, 3), st.integers(0, 3 * DAY)))
    def time_passes(self, gap: int) -> None:
        self.now = min(self.now + gap, MIDNIGHT + 9 * DAY)  # within the month, and within every ttl

    @rule(before=st.integers(0, 1))
    def midnight_comes(self, before: int) -> None:
        self.time_passes(DAY - self.now % DAY - before)

    @rule(subject=SUBJECTS, amount=SIGNED, off=OFF)
    def it_is_incremented(self, subject: str, amount: int, off: int) -> None:
        key, before = total_of(subject), self.total(subject)
        if self.done(operations.Incr((key, f"{key}:2025-11"), amount, TTL, *self.day(off))):
            assert off == 0
            assert self.total(subject) == before + amount

    @rule(subject=SUBJECTS, amount=SIGNED)
    def it_is_set(self, subject: str, amount: int) -> None:
        if self.done(operations.Set([total_of(subject)], amount, TTL)):
            assert self.total(subject) == amount

    @rule(subject=SUBJECTS, day=st.one_of(st.none(), st.integers(21, 29)))
    def it_is_read(self, subject: str, day: int | None) -> None:
        before, key = self.places.dump(), total_of(subject)
        self.done(operations.Get(key))
        self.done(operations.Days([f"{key}:2025-11", f"{key}:2025-12"], [(20, 30), (1, 31)]))
        self.done(operations.UniqueCount(values_of(subject) + (f":2025-11-{day}" if day else "")))
        assert self.places.dump() == before

    @rule(subject=SUBJECTS)
    def it_is_popped(self, subject: str) -> None:
        if self.done(operations.Pop(total_of(subject))):
            assert self.total(subject) == 0

    @rule(subject=SUBJECTS, amount=UNSIGNED.filter(bool))
    def some_is_taken(self, subject: str, amount: int) -> None:
        before = self.total(subject)
        done = self.done(operations.Take([total_of(subject)], amount, TTL))
        assert self.total(subject) == (before - amount if done else before) >= min(before, 0)

    @rule(source=SUBJECTS, destination=SUBJECTS, amount=UNSIGNED)
    def some_is_moved(self, source: str, destination: str, amount: int) -> None:
        before = [self.total(subject) for subject in "ab"]
        self.done(operations.Transfer([total_of(source), total_of(destination)], amount, TTL))
        after = [self.total(subject) for subject in "ab"]
        assert sum(after) == sum(before)
        assert all(now >= min(then, 0) for now, then in zip(after, before, strict=True))

    @rule(subject=SUBJECTS, value=st.integers(0, 9), off=OFF)
    def a_value_is_counted(self, subject: str, value: int, off: int) -> None:
        (day, *edges), key = self.day(off), values_of(subject)
        self.done(operations.Unique((key, f"{key}:2025-11-{day}"), f"value {value}", TTL, *edges))

    @rule(subject=SUBJECTS, kind=st.sampled_from(KEYS), cleared=st.booleans())
    def something_else_lies_there(self, subject: str, kind: str, cleared: bool) -> None:
        key, both = f"quota:1:{{{subject}}}:{kind}", (memory_states(self.places.memory), self.places.states)
        self.raw.delete(key)
        for states in both:
            states.drop(key)
        self.places.in_database(Drop([key]), START)
        if not cleared:
            self.raw.rpush(key, "x")
            self.raw.expire(key, 10**6)
            for states in both:
                states.put(key, FOREIGN, START + 2 * TTL)
            self.places.in_database(Put(key, Bucket(1, 1), START + 2 * TTL), START)


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
        left = []
        while STOCK.take("sku:1"):
            left.append(STOCK.get("sku:1"))
        os.write(report, result.pack(len(left), min(left, default=0)))

    with processes() as children:
        children.extend(started(buy) for _ in range(100))
        os.close(report)
        os.close(go)
        assert ended(children) == [0] * 100
    os.close(ready)
    with os.fdopen(results, "rb") as pipe:
        taken, lowest = zip(*result.iter_unpack(pipe.read()), strict=True)
    assert (len(taken), sum(taken), STOCK.get("sku:1")) == (100, 1_000, 0)
    assert min(lowest) >= 0


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
