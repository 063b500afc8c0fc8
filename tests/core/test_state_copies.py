"""What is copied from a store to another one is what the specification keeps, and decides the same from then on."""

from typing import Any
from unittest.mock import Mock

import pytest
import redis
from hypothesis.stateful import rule

from django_quota.core.algorithms.fixed_window import WindowCount
from django_quota.core.algorithms.sliding_window import WindowEntry
from django_quota.core.algorithms.subscription import PeriodCount
from django_quota.core.algorithms.token_bucket import Bucket
from django_quota.core.clock import DAY
from django_quota.core.errors import StoreDataError
from django_quota.core.keys import KEY_KINDS
from django_quota.engine.operations import DictStates
from django_quota.engine.state_copies import ReadStates, StateCopy, WriteStates
from django_quota.features.counters.operations import Set, UniqueCount
from tests.core.test_state_machines import Counters, Leases, Plans, TakenAhead, Upkeep
from tests.support.places import SLACK, Machine, Places, run_machine
from tests.support.steps import MINUTE, START

ENDS = START + 10 * MINUTE
ENTRIES = (WindowEntry(7, 2, START + MINUTE), WindowEntry(9, 2, ENDS))

OF_EACH_KIND: dict[str, tuple[str, Any]] = {
    "sliding window": ("r:api:sw.60s", ENTRIES),
    "fixed window": ("r:api:fw.600s", WindowCount(3, ENDS)),
    "calendar": ("r:api:cal.1day.Europe/Berlin", WindowCount(3, ENDS)),
    "subscription": ("r:api:sub.1month.UTC", PeriodCount(3, ENDS, START, START)),
    "token bucket": ("r:api:tb.60s", Bucket(ENDS, START)),
    "leaky bucket": ("r:api:lb.60s", Bucket(ENDS, START)),
    "different values": ("r:api:dv.60s", {"a1": START + 1, "b2": ENDS}),
    "share": ("a:api:sw.60s", {"n1:4:0": ENDS}),
    "refusals": ("b:api", ENTRIES),
    "status": ("s", {"b:api": f"{ENDS} 1 {ENDS}", "e:api": str(START)}),
    "day": ("day:2025-11-21", {"api:a": 3, "api:u": -2, "api:t": "pro"}),
    "day of many rules": ("day:2025-11-20", {f"rule{number}:a": number for number in range(1_100)}),
    "counts aside": ("day:2025-11-21:aside", {"api:a": 3, "#": START}),
    "counter": ("c:credits", -(2**63)),
    "days of a counter": ("c:credits:2025-11", {"21": 2**63 - 1}),
    "units that expire": ("grants:credits", {f"5:9:{ENDS}:order-17": ENDS}),
    "granted": ("granted:credits:order-17", "9"),
    "lease of units": ("leased:credits", {"n1:60:": ENDS}),
    "settled": ("settled:api:n1:0", "1 2 0 0 -1"),
    "settled without an answer": ("settled:api:n1:1", ""),
    "slot": ("l:export", {"token": ENDS}),
    "how long": ("lately:export", 1_000_000),
    "seen": ("once:payment", ENDS),
    "message": ("sent:api:2025-11-21:pro:p1", 7),
}
"""The part of a key after the subject, and what it holds."""


def test_what_a_store_cannot_read_is_called_foreign() -> None:
    states = Mock(spec=DictStates, **{"get.side_effect": StoreDataError("it is no count")})

    assert ReadStates(["quota:1:{user:1}:c:credits"]).run(states, START) == ["foreign"]


@pytest.mark.parametrize(("part", "value"), OF_EACH_KIND.values(), ids=OF_EACH_KIND)
def test_what_redis_was_given_is_read_back(part: str, value: Any, places: Places) -> None:
    key = f"quota:1:{{user:1}}:{part}"

    assert places.in_redis(WriteStates({key: StateCopy(value, ENDS)}), START) == [1]

    (read,) = places.in_redis(ReadStates([key]), START)
    assert read.value == value
    assert read.expires >= ENDS - SLACK


@pytest.mark.parametrize("kind", ["status", "day", "counter", "lease of units", "settled", "message"])
def test_a_copy_lives_hardly_longer_than_what_was_copied(kind: str, places: Places) -> None:
    part, value = OF_EACH_KIND[kind]
    key = f"quota:1:{{user:1}}:{part}"
    places.in_redis(WriteStates({key: StateCopy(value, ENDS)}), START)

    (read,) = places.in_redis(ReadStates([key]), START)

    assert read.expires <= ENDS + 2_000


def test_each_kind_of_key_is_tried() -> None:
    tried = {part.partition(":")[0] for part, _ in OF_EACH_KIND.values()}
    assert tried == KEY_KINDS.keys() - {"u"}  # which cannot be read back


def test_a_ban_without_an_end_is_foreign(places: Places, raw: redis.Redis) -> None:
    raw.hset("quota:1:{user:1}:s", "b:login", "soon")

    assert places.in_redis(ReadStates(["quota:1:{user:1}:s"]), START) == ["foreign"]


@pytest.mark.parametrize("value", ["many", "3.5", ""])
def test_what_is_no_number_is_foreign(value: str, places: Places, raw: redis.Redis) -> None:
    raw.set("quota:1:{user:1}:c:credits", value)

    assert places.in_redis(ReadStates(["quota:1:{user:1}:c:credits"]), START) == ["foreign"]


@pytest.mark.parametrize(
    ("part", "command"),
    [
        pytest.param("r:api:tb.60s", ("SET", "1 2 3"), id="numbers"),
        pytest.param("r:api:sw.60s", ("SET", "1 2"), id="string"),
        pytest.param("r:api:new.60s", ("SET", "1 2"), id="algorithm"),
        pytest.param("r:api:sw.60s", ("ZADD", "1", "member"), id="member"),
        pytest.param("c:credits", ("RPUSH", "1"), id="list"),
        pytest.param("s", ("ZADD", "1", "member"), id="set"),
    ],
)
def test_another_form_is_foreign(part: str, command: tuple[str, ...], places: Places, raw: Any) -> None:
    key = f"quota:1:{{user:1}}:{part}"
    name, *words = command
    raw.execute_command(name, key, *words)

    assert places.in_redis(ReadStates([key]), START) == ["foreign"]


def test_a_key_without_a_ttl_is_kept_as_long_as_the_sweep_would(places: Places, raw: redis.Redis) -> None:
    key = "quota:1:{user:1}:c:credits"
    raw.set(key, 5)

    assert places.in_redis(ReadStates([key]), START) == [StateCopy(5, START + 400 * DAY)]


@pytest.mark.parametrize(
    ("expires", "is_taken", "reply", "found"),
    [
        pytest.param(START + 1, False, 1, 5, id="it is written"),
        pytest.param(START + 1, True, 0, 7, id="something lies there"),
        pytest.param(START, False, 1, None, id="it expires now"),
        pytest.param(START - 1, False, 1, None, id="it has expired"),
        pytest.param(START, True, 1, 7, id="it expires now, where something lies"),
        pytest.param(START - 1, True, 1, 7, id="it has expired, where something lies"),
    ],
)
def test_a_copy_is_written_unless_it_has_expired_or_its_key_is_taken(
    expires: int, is_taken: bool, reply: int, found: int | None, places: Places
) -> None:
    """0 is the reply if the copy would replace something."""
    key, grants = "quota:1:{user:1}:c:credits", "quota:1:{user:1}:grants:credits"
    if is_taken:
        places.run(Set((key, grants), 7, MINUTE), START)

    assert places.run(WriteStates({key: StateCopy(5, expires)}), START) == [reply]
    assert places.states.get(key, START) == found


def test_a_copy_replaces_what_has_expired() -> None:
    key, states = "quota:1:{user:1}:c:credits", DictStates()
    states.put(key, 7, START)

    assert WriteStates({key: StateCopy(5, START + 1)}).run(states, START) == [1]
    assert states.kept == {key: (5, START + 1)}


def test_different_values_are_written_as_they_were_counted(places: Places) -> None:
    key = "quota:1:{user:1}:u:credits"

    places.run(WriteStates({key: StateCopy(frozenset({"a", "b", "c"}), ENDS)}), START)

    assert places.run(UniqueCount(key), START)[1] == 3


@pytest.mark.parametrize(
    ("now", "is_there"), [(ENDS - 1, True), (ENDS, False), (ENDS + 1, False)], ids=["before", "when", "after"]
)
@pytest.mark.parametrize("kind", ["sliding window", "fixed window", "token bucket", "seen"])
def test_what_has_expired_is_not_read(kind: str, now: int, is_there: bool, places: Places) -> None:
    part, value = OF_EACH_KIND[kind]
    key = f"quota:1:{{user:1}}:{part}"
    places.in_redis(WriteStates({key: StateCopy(value, ENDS)}), START)

    found = places.in_redis(ReadStates([key]), now)

    assert found == [StateCopy(value, ENDS) if is_there else None]


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
