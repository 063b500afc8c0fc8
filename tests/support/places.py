"""Redis, the memory store, the database store and the specification: each operation runs in all; none may differ."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from hypothesis import HealthCheck
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

import django_quota
from django_quota.core.algorithms.fixed_window import WindowCount
from django_quota.core.algorithms.subscription import PeriodCount
from django_quota.core.algorithms.token_bucket import Bucket
from django_quota.core.errors import StoreDataError
from django_quota.engine.operations import DictStates, Operation, RedisOperation, text
from django_quota.stores.base import Statement
from django_quota.stores.database import sql
from django_quota.stores.database.log import KeptEvents, delete_expired
from django_quota.stores.database.states import loads
from django_quota.stores.database.store import DatabaseStore
from tests.support.inputs import inputs
from tests.support.questions import Question, QuestionMode, driven
from tests.support.specifications import Drop, Put, Specified, specify
from tests.support.steps import MINUTE, SECOND, START
from tests.support.stores import UnsweptMemory, current_store, empty_database, memory_states

OF_EACH_KEY = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  found[#found + 1], found[#found + 2] = key, redis.call(ARGV[1], key)
end
return found
"""

ALL = """
local time = redis.call('TIME')
local found, now = {}, time[1] * 1000 + math.floor(time[2] / 1000)
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  local value = kind == 'zset' and redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    or kind == 'hash' and redis.call('HGETALL', key)
    or kind == 'list' and table.concat(redis.call('LRANGE', key, 0, -1), ' ')
    or kind == 'stream' and tostring(redis.call('XLEN', key))
    or redis.call('GET', key)
  if kind == 'string' and string.sub(value, 1, 4) == 'HYLL' then value = tostring(redis.call('PFCOUNT', key)) end
  found[#found + 1] = { key, value, redis.call('PTTL', key) }
end
return { now, found }
"""
"""Replies the time in milliseconds, and for each key its value and its TTL; for a HyperLogLog how many values
it has counted, for a stream how many entries."""

AGE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, key in ipairs(redis.call('KEYS', '*')) do
  redis.call('PEXPIRE', key, string.format('%.0f', redis.call('PTTL', key) + now - ARGV[1] - ARGV[2]))
end
return now
"""
"""Lets each key in Redis expire by another clock. ARGV: the time of Redis when this ran before, and how far the other
clock has gone since then, in milliseconds. Replies the time."""

HOUR = 3_600 * SECOND
"""For how long a key outlives its content where a test passes the time in."""

MILLISECOND = SECOND // 1_000

SLACK = SECOND
"""What TTLs may differ in: Redis rounds them, and looks at its clock more than once."""

PACKAGE = Path(django_quota.__file__).parent

LOG = ["quota:1:{!}:events", "quota:1:{!}:bans"]

Run = Callable[[Operation, int], Any]


def _place_in_lua(line: str) -> str:
    """Say in which files a line of a script is. Redis counts the lines of the script, which is made of many files."""
    paths = [(path, path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.lua")]
    found = [f"{path.relative_to(PACKAGE)}:{lines.index(line) + 1}" for path, lines in paths if line in lines]
    return f"The line that failed, in {' or '.join(found)}: {line.strip()}"


class Lying(NamedTuple):
    """What lies under a key in Redis."""

    value: Any
    ends: int
    """When it expires, by the clock of the test (microseconds)."""
    asked_for: int
    """How long ago the operation began: if it wrote the key at once, the key expires that much sooner."""


class Places:
    """All four, empty. `raw`: a plain client of the Redis of the settings. The database is Django's default one."""

    def __init__(self, raw: redis.Redis) -> None:
        self.raw: Any = raw
        self.memory = UnsweptMemory()
        self.states = DictStates()
        self.database = DatabaseStore("default")
        empty_database(self.database)
        self._store = current_store()
        self.now = START
        """The time of the last operation, by the clock of the test."""
        self.swept = set[str]()
        """Keys of which the database has forgotten something that had expired; the other places may still have it."""
        self._asked = 0
        """When it began, by the clock of Redis."""
        self._ends: dict[str, float] = {}
        """When each key in Redis expires, by the clock of the test."""

    def close(self) -> None:
        self.memory.close()
        self.database.close()

    def in_redis(self, operation: Operation, now: int) -> Any:
        try:
            return self._store.run(operation, now)
        except StoreDataError as error:
            for number in re.findall(r"user_script:\s*(\d+)", str(error))[:1]:
                error.add_note(_place_in_lua(operation.script.text.splitlines()[int(number) - 1]))
            raise

    def in_memory(self, operation: Operation, now: int) -> Any:
        return self.memory.run(Specified(operation), now)

    def in_database(self, operation: Operation, now: int) -> Any:
        return self.database.run(Specified(operation) if isinstance(operation, RedisOperation) else operation, now)

    def specified(self, operation: Operation, now: int) -> Any:
        return specify(operation, self.states, now)

    def each(self, act: Callable[[Run], Any], now: int) -> Any:
        """Do the same in each place, and return the reply. All must store the same, for the same time."""
        self.age(now)
        runs = {"Redis": self.in_redis, "memory": self.in_memory, "the database": self.in_database}
        replies = {place: _plain(act(run)) for place, run in runs.items()}
        meant = _plain(act(self.specified))
        differing = [f"{place} replied {reply}" for place, reply in replies.items() if reply != meant]
        assert not differing, f"The specification says {meant}, but {', and '.join(differing)}"
        self.compare()
        return meant

    def age(self, now: int) -> None:
        """Let it be `now` for the TTLs in Redis, too, and drop everywhere what expires there within a minute."""
        for key in [key for key, (_, expiry) in self.states.kept.items() if expiry + HOUR <= now + MINUTE]:
            self.drop(key)
        passed = now // MILLISECOND - self.now // MILLISECOND
        self._asked, self.now = self.raw.eval(AGE, 0, self._asked, passed), now

    def compare(self) -> None:
        """Compare what is stored after an operation, and when it expires."""
        kept = self.states.kept
        assert self.memory.kept() == kept, "memory and the specification keep different states"
        rows = self.rows()
        assert {key: rows[key] for key in rows.keys() - self.swept} == {
            key: kept[key] for key in kept.keys() - self.swept
        }, "the database and the specification keep different states"
        lying = self._found()
        in_redis, meant = (
            {key: each.value for key, each in lying.items()},
            {key: _in_texts(kept[key][0]) for key in kept},
        )
        assert in_redis == meant, "Redis and the specification keep different states"
        renamed = max((ends for key, ends in self._ends.items() if key not in lying), default=0)
        for key, each in lying.items():
            needed = kept[key][1] + HOUR
            assert each.ends >= needed - SLACK, f"the TTL of {key} is too short"
            most = max(self._ends.get(key, renamed), needed + each.asked_for)
            assert each.ends <= most + SLACK, f"the TTL of {key} is too long"
        self._ends = {key: each.ends for key, each in lying.items()}

    def run(self, operation: Operation, now: int) -> Any:
        """Run an operation in each place, and return the reply."""
        return self.each(lambda run: run(operation, now), now)

    def run_in_turn(self, steps: Iterable[tuple[int, Operation]]) -> None:
        """Run operations in each place from START on, each so long after the one before it."""
        now = START
        for gap, operation in steps:
            now += gap
            self.run(operation, now)

    def decide(self, question: Question, mode: QuestionMode, now: int, guess: int | None = None) -> list[Any]:
        """Ask the same in each place, and return the reply."""
        reply: list[Any] = self.each(lambda run: driven(run, question, mode, now, guess), now)
        return reply

    def put(self, key: str, value: Any, expiry: int, *command: Any) -> None:
        """Put a value under a key everywhere, in Redis by this command."""
        self.raw.delete(key)
        self.raw.execute_command(*command)
        self.raw.pexpire(key, (expiry - self.now + HOUR) // MILLISECOND)
        self._ends[key] = math.inf
        for states in (self.states, memory_states(self.memory)):
            states.put(key, value, expiry)
        self.in_database(Put(key, value, expiry), START)

    def put_scores(self, key: str, scores: Mapping[str, int], expiry: int) -> None:
        """Put a sorted set under a key everywhere."""
        self.put(key, scores, expiry, "ZADD", key, *(word for pair in scores.items() for word in pair[::-1]))

    def drop(self, key: str) -> None:
        self.raw.delete(key)
        for states in (self.states, memory_states(self.memory)):
            states.drop(key)
        self.in_database(Drop([key]), START)

    def dump(self) -> dict[str, bytes | None]:
        """Return the value of each key in Redis, as DUMP returns it."""
        return self.of_each_key("DUMP")

    def of_each_key(self, command: str) -> dict[str, Any]:
        """Return what a command says of each key in Redis; in one trip, since the state machines make very many."""
        found = self.raw.eval(OF_EACH_KEY, 0, command)
        return dict(zip(map(text, found[::2]), found[1::2], strict=True))

    def lying(self) -> dict[str, Any]:
        """Return all that is stored in Redis, as strings, without the log of events and bans, which only Redis has."""
        return {key: each.value for key, each in self._found().items()}

    def _found(self) -> dict[str, Lying]:
        clock, found = self.raw.eval(ALL, 0)
        since = (clock - self._asked) * MILLISECOND
        lying = {text(key): (value, left) for key, value, left in found}
        return {
            key: Lying(_from_redis(value), self.now + left * MILLISECOND + since, since)
            for key, (value, left) in lying.items()
            if key not in LOG
        }

    def rows(self) -> dict[str, tuple[Any, int]]:
        """Return what lies in the database, and when it expires."""
        found = self.database.read(lambda _: Statement(f"SELECT key, value, expires FROM {sql.STATE_TABLE}"))
        return {key: (loads(value), expires) for key, value, expires in found}


def _plain(reply: Any) -> Any:
    """Return a reply as strings and numbers, with the fields of hashes in order."""
    if type(reply) is not list:
        return reply
    return [
        sorted(map(text, each)) if isinstance(each, list) else text(each) if isinstance(each, bytes) else each
        for each in reply
    ]


def _from_redis(value: Any) -> Any:
    if isinstance(value, list):
        return dict(zip(map(text, value[::2]), map(text, value[1::2]), strict=True))
    return text(value)


def _in_texts(value: Any) -> Any:
    """Return a value of the specification as it lies in Redis."""
    match value:
        case Mapping():
            return {name: str(each) for name, each in value.items()}
        case Bucket() | WindowCount() | PeriodCount():
            return " ".join(map(str, value))
        case tuple():
            return {f"{total}:{cost}": str(expiry) for total, cost, expiry in value}
        case frozenset():
            return str(len(value))
    return str(value)


@pytest.fixture
def places(redis_cache: Any, raw: redis.Redis) -> Iterator[Places]:
    """All four, with an empty Redis."""
    made = Places(raw)
    yield made
    made.close()


class Machine(RuleBasedStateMachine):
    """One operation after another in all places, at a time that the rules move.

    `swept_at`: the time does not step back before it.
    """

    raw: redis.Redis
    swept_at = 0

    def __init__(self) -> None:
        super().__init__()
        self.raw.flushall()
        self.places = Places(self.raw)

    @property
    def now(self) -> int:
        return self.places.now

    @now.setter
    def now(self, now: int) -> None:
        self.places.age(now)

    def teardown(self) -> None:
        self.places.close()

    @rule()
    def expired_rows_are_deleted(self) -> None:
        """Redis and the memory forget by themselves."""
        before = self.places.rows()
        delete_expired(self.places.database, self.now, KeptEvents(0, 0), 1_000)
        gone = before.keys() - self.places.rows().keys()
        assert all(before[key][1] <= self.now for key in gone)
        self.places.swept |= gone
        self.swept_at = self.now

    def done(self, operation: Operation) -> Any:
        """Do an operation, and return its reply."""
        return self.places.run(operation, self.now)

    def kept(self) -> dict[str, Any]:
        return {key: value for key, (value, _) in self.places.states.kept.items()}


def run_machine(machine: type[Machine], raw: redis.Redis, examples: int) -> None:
    """Run a state machine on the Redis of the settings; see `inputs`."""
    machine.raw = raw
    suppressed = list(HealthCheck)
    run_state_machine_as_test(machine, settings=inputs(examples, suppressed, stateful_step_count=30))
