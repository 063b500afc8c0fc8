"""Redis, the memory store, the database store and the specification: the same is done in all, and they never differ."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from django_quota.engine.operations import DictStates, Operation, RedisOperation, text
from django_quota.engine.plans import Plan, PlanMode
from django_quota.stores.database.store import DatabaseStore
from tests.support.inputs import inputs
from tests.support.specifications import Specified, specify
from tests.support.steps import driven
from tests.support.stores import UnsweptMemory, current_store, empty_database

Run = Callable[[Operation, int], Any]


class Places:
    """All four, empty. `raw`: a plain client of the Redis of the settings. The database is Django's default one."""

    def __init__(self, raw: redis.Redis) -> None:
        self.raw = raw
        self.memory = UnsweptMemory()
        self.states = DictStates()
        self.database = DatabaseStore("default")
        empty_database(self.database)
        self._store = current_store()

    def close(self) -> None:
        self.memory.close()
        self.database.close()

    def in_redis(self, operation: Operation, now: int) -> Any:
        reply = self._store.run(operation, now)
        return [text(part) if isinstance(part, bytes) else part for part in reply] if type(reply) is list else reply

    def in_memory(self, operation: Operation, now: int) -> Any:
        return self.memory.run(Specified(operation), now)

    def in_database(self, operation: Operation, now: int) -> Any:
        return self.database.run(Specified(operation) if isinstance(operation, RedisOperation) else operation, now)

    def specified(self, operation: Operation, now: int) -> Any:
        return specify(operation, self.states, now)

    def each(self, act: Callable[[Run], Any]) -> Any:
        """Do the same in each place, and return the reply."""
        replies = [act(run) for run in (self.in_redis, self.in_memory, self.in_database, self.specified)]
        assert all(reply == replies[0] for reply in replies[1:]), replies
        assert all(self.raw.pttl(key) > 0 for key in self.raw.scan_iter()), "a key has no TTL"
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

    def dump(self) -> dict[str, bytes | None]:
        """Return all that lies in Redis, as it lies there."""
        return {key.decode(): self.raw.dump(key) for key in self.raw.scan_iter()}


@pytest.fixture
def places(redis_cache: Any, raw: redis.Redis) -> Iterator[Places]:
    """All four, with an empty Redis."""
    made = Places(raw)
    yield made
    made.close()


class Machine(RuleBasedStateMachine):
    """One operation after another in all places; `open` begins anew."""

    raw: redis.Redis

    def open(self) -> None:
        self.raw.flushall()
        self.places = Places(self.raw)

    def teardown(self) -> None:
        if hasattr(self, "places"):
            self.places.close()


def run_machine(machine: type[Machine], raw: redis.Redis, examples: int, steps: int, *, always: bool = False) -> None:
    """Run a state machine on the Redis of the settings; see `inputs`."""
    machine.raw = raw
    run_state_machine_as_test(
        machine,
        settings=inputs(examples, stateful_step_count=steps, suppress_health_check=list(HealthCheck), always=always),
    )
