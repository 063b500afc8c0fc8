"""What is copied from a store to another one is what the specification keeps, and decides the same from then on."""

from typing import Any

import pytest
import redis
from hypothesis.stateful import rule

from django_quota.core.algorithms.token_bucket import Bucket
from django_quota.engine.state_copies import ReadStates, StateCopy, WriteStates
from tests.core.test_state_machines import Counters, Leases, Plans, TakenAhead, Upkeep
from tests.support.places import SLACK, Machine, run_machine


class Exchanged(Machine):
    """Now and then, Redis and the database get what the other one has."""

    @rule()
    def redis_and_the_database_are_exchanged(self) -> None:
        places = self.places
        places.age(self.now)
        lasting = {key: state for key, state in places.states.kept.items() if state[1] > self.now + SLACK}
        kept = {key: StateCopy(*state) for key, state in lasting.items() if not is_foreign(key, state[0])}
        keys = list(kept)

        of_redis = dict(zip(keys, places.in_redis(ReadStates(keys), self.now), strict=True))
        of_rows = dict(zip(keys, places.in_database(ReadStates(keys), self.now), strict=True))

        assert of_rows == kept
        lost = {key for key, state in kept.items() if isinstance(state.value, frozenset)}
        assert {key for key, state in of_redis.items() if state == "distinct"} == lost
        for key in kept.keys() - lost:
            assert of_redis[key].value == kept[key].value
            assert of_redis[key].expires >= kept[key].expires - SLACK
        exact = {key: StateCopy(of_redis[key].value, kept[key].expires) for key in kept.keys() - lost}
        for run, copies in ((places.in_redis, of_rows), (places.in_database, exact)):
            run(WriteStates(dict.fromkeys(copies)), self.now)
            assert run(WriteStates(copies), self.now) == [1] * len(copies)
            assert run(WriteStates(copies), self.now) == [0] * len(copies)
        places.compare()


def is_foreign(key: str, value: Any) -> bool:
    """Say whether this is what the tests put there for a list of another program."""
    return isinstance(value, Bucket) and ":r:" not in key


class ExchangedPlans(Exchanged, Plans):
    pass


class ExchangedShares(Exchanged, TakenAhead):
    pass


class ExchangedCounters(Exchanged, Counters):
    pass


class ExchangedLeases(Exchanged, Leases):
    pass


class ExchangedUpkeep(Exchanged, Upkeep):
    pass


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(
    ("machine", "examples"),
    [
        pytest.param(ExchangedPlans, 200, id="plans"),
        pytest.param(ExchangedShares, 100, id="shares"),
        pytest.param(ExchangedCounters, 100, id="counters"),
        pytest.param(ExchangedLeases, 100, id="leases"),
        pytest.param(ExchangedUpkeep, 100, id="upkeep"),
    ],
)
def test_what_was_copied_decides_as_if_it_had_always_been_there(
    machine: type[Machine], examples: int, raw: redis.Redis
) -> None:
    run_machine(machine, raw, examples)
