"""Redis, the memory store, the database store and the specification: the same is done in all, and they never differ."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from django_quota.engine.operations import DictStates, Operation, RedisOperation, text
from django_quota.engine.plans import Plan, PlanMode
from django_quota.stores.database.log import delete_expired
from django_quota.stores.database.store import DatabaseStore
from tests.support.inputs import inputs
from tests.support.specifications import Drop, Put, Specified, specify
from tests.support.steps import SECOND, START, driven
from tests.support.stores import UnsweptMemory, current_store, empty_database, memory_states

OF_EACH_KEY = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  found[#found + 1], found[#found + 2] = key, redis.call(ARGV[1], key)
end
return found
"""
Run = Callable[[Operation, int], Any]


class Places:
    """All four, empty. `raw`: a plain client of the Redis of the settings. The database is Django's default one."""

    def __init__(self, raw: redis.Redis) -> None:
        self.raw: Any = raw
        self.memory = UnsweptMemory()
        self.states = DictStates()
        self.database = DatabaseStore("default")
        empty_database(self.database)
        self._store = current_store()

    def close(self) -> None:
        self.memory.close()
        self.database.close()

    def in_redis(self, operation: Operation, now: int) -> Any:
        return self._store.run(operation, now)

    def in_memory(self, operation: Operation, now: int) -> Any:
        return self.memory.run(Specified(operation), now)

    def in_database(self, operation: Operation, now: int) -> Any:
        return self.database.run(Specified(operation) if isinstance(operation, RedisOperation) else operation, now)

    def specified(self, operation: Operation, now: int) -> Any:
        return specify(operation, self.states, now)

    def each(self, act: Callable[[Run], Any]) -> Any:
        """Do the same in each place, and return the reply."""
        replies = [_plain(act(run)) for run in (self.in_redis, self.in_memory, self.in_database, self.specified)]
        assert all(reply == replies[0] for reply in replies[1:]), replies
        assert all(left > 0 for left in self.of_each_key("PTTL").values()), "a key has no TTL"
        return replies[0]

    def run(self, operation: Operation, now: int) -> Any:
        """Run an operation in each place, and return the reply."""
        return self.each(lambda run: run(operation, now))

    def decide(
        self, make: Callable[[], Plan], mode: PlanMode, now: int, guess: int | None = None
    ) -> tuple[Plan, list[Any]]:
        """Decide the same plan in each place; return it in the form that it came to, and the reply."""
        made: list[Plan] = []

        def decided(run: Run) -> list[Any]:
            made.append(make())
            return driven(run, made[-1], mode, now, guess)

        reply = self.each(decided)
        return made[0], reply

    def put(self, key: str, value: Any, expiry: int, *command: Any) -> None:
        """Put a value under a key everywhere, in Redis by this command."""
        self.raw.delete(key)
        self.raw.execute_command(*command)
        self.raw.pexpire(key, (expiry - START) // 1_000 + 3_600_000)
        for states in (self.states, memory_states(self.memory)):
            states.put(key, value, expiry)
        self.in_database(Put(key, value, expiry), START)

    def drop(self, key: str) -> None:
        self.raw.delete(key)
        for states in (self.states, memory_states(self.memory)):
            states.drop(key)
        self.in_database(Drop([key]), START)

    def dump(self) -> dict[str, bytes | None]:
        """Return all that lies in Redis, as it lies there."""
        return self.of_each_key("DUMP")

    def of_each_key(self, command: str) -> dict[str, Any]:
        """Return what a command says of each key in Redis; in one trip, since the state machines make very many."""
        found = self.raw.eval(OF_EACH_KEY, 0, command)
        return dict(zip(map(text, found[::2]), found[1::2], strict=True))

    def lying(self) -> dict[str, Any]:
        """Return all that lies in Redis, in texts; of a HyperLogLog, how many values it has counted."""
        return {text(key): self._texts_of(key) for key in self.raw.scan_iter()}

    def _texts_of(self, key: bytes) -> Any:
        match self.raw.type(key):
            case b"list":
                return list(map(text, self.raw.lrange(key, 0, -1)))
            case b"hash":
                return {text(name): text(each) for name, each in self.raw.hgetall(key).items()}
            case b"zset":
                return {text(name): str(int(score)) for name, score in self.raw.zrange(key, 0, -1, withscores=True)}
        value = self.raw.get(key)
        return str(self.raw.pfcount(key)) if value.startswith(b"HYLL") else text(value)


def _plain(reply: Any) -> Any:
    """Return a reply in texts and numbers, with the fields of hashes in order."""
    if type(reply) is not list:
        return reply
    return [
        sorted(map(text, each)) if isinstance(each, list) else text(each) if isinstance(each, bytes) else each
        for each in reply
    ]


def _in_texts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: str(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return list(map(str, value))
    return str(len(value) if isinstance(value, frozenset) else value)


@pytest.fixture
def places(redis_cache: Any, raw: redis.Redis) -> Iterator[Places]:
    """All four, with an empty Redis."""
    made = Places(raw)
    yield made
    made.close()


SLACK = 30 * SECOND
"""Redis' own clock goes on while a test runs."""


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
        self.now = START

    def teardown(self) -> None:
        self.places.close()

    @rule()
    def expired_rows_are_deleted(self) -> None:
        """Redis and the memory forget by themselves."""
        delete_expired(self.places.database, self.now, 0, 1_000)
        self.swept_at = self.now

    def done(self, operation: Operation) -> Any:
        """Do an operation, and return its reply. Redis has what the specification keeps, for as long as that."""
        reply = self.places.run(operation, self.now)
        kept = self.places.states.kept
        assert self.places.lying() == {key: _in_texts(value) for key, (value, _) in kept.items()}
        for key, left in self.places.of_each_key("PTTL").items():
            assert left * 1_000 >= kept[key][1] - self.now - SLACK
        return reply

    def kept(self) -> dict[str, Any]:
        return {key: value for key, (value, _) in self.places.states.kept.items()}


def run_machine(machine: type[Machine], raw: redis.Redis, examples: int, steps: int = 30) -> None:
    """Run a state machine on the Redis of the settings; see `inputs`."""
    machine.raw = raw
    run_state_machine_as_test(
        machine, settings=inputs(examples, stateful_step_count=steps, suppress_health_check=list(HealthCheck))
    )
