"""Scripts that no state machine runs: each replies, and leaves behind, what its specification does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest
import redis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from django_quota.engine.operations import DictStates, Operation, text
from django_quota.engine.subject_operations import DropAside, ReadDays, RecordHits, SetAside
from django_quota.engine.system_operations import (
    FIELDS,
    OTHER,
    SUBJECTS,
    AddMetrics,
    MetricsKeys,
    RegisterWorker,
    Sweep,
)
from tests.support.inputs import inputs
from tests.support.specifications import specify
from tests.support.steps import SECOND, START
from tests.support.stores import redis_store

SLACK = 30 * SECOND
"""Redis' own clock goes on while a test runs."""

STATUS, DAY, ASIDE = "quota:1:{u}:s", "quota:1:{u}:day:2025-11-21", "quota:1:{u}:day:2025-11-21:aside"
SETS = [f"quota:1:{{u}}:l:{number}" for number in range(3)]
WORKERS, METRICS = "quota:1:{!}:workers", MetricsKeys("{!}d", "{!}m", "{!}r", "{!}s", "{!}t")

around = st.integers(START - 5, START + 5)
names = st.sampled_from(["a", "b", "c"])
counts = st.dictionaries(names.map("{}:a".format), st.integers(1, 9))
day = st.dictionaries(st.sampled_from(["a:a", "a:r", "a:u"]), st.integers(-(2**62), 2**62), min_size=1)
tokens = st.integers(0, 3) | around
CASES: dict[str, tuple[Any, Any]] = {  # what lies there at first, and the operations
    "days": (
        st.fixed_dictionaries({}, optional={DAY: day, ASIDE: tokens.map(lambda token: {"a:a": 5, "#": token})}),
        st.just(ReadDays([DAY, ASIDE, "quota:1:{u}:day:2025-11-20"]))
        | st.builds(SetAside, st.just(DAY), st.just(ASIDE), tokens)
        | st.builds(DropAside, st.just(ASIDE), tokens),
    ),
    "hits": (
        st.fixed_dictionaries({}, optional={DAY: st.just({"a:r": 2})}),
        st.builds(
            lambda *given: RecordHits(STATUS, *given),
            st.sampled_from([DAY, ""]),
            names,
            st.dictionaries(st.sampled_from("aru"), st.integers(-9, 9)),
            st.sampled_from([0, SECOND]),
        ),
    ),
    "workers": (st.just({}), st.builds(RegisterWorker, st.just(WORKERS), names, st.just(30 * SECOND))),
    "metrics": (
        st.just({}),
        st.builds(
            lambda *given: AddMetrics(METRICS, *given),
            counts,
            counts,
            st.dictionaries(names, st.just(SECOND)),
        ),
    ),
    "sweep": (
        st.dictionaries(st.sampled_from(SETS), st.dictionaries(st.text("abcdef", min_size=1), around, min_size=1)),
        st.builds(
            lambda swept, most: Sweep(SETS, swept, [1] * len(SETS), most, repairs=True),
            st.lists(st.booleans(), min_size=len(SETS), max_size=len(SETS)),
            st.integers(0, 20),
        ),
    ),
}


def put(raw: redis.Redis, key: str, value: Any) -> None:
    if isinstance(value, int):
        raw.set(key, value)
    elif key in SETS:
        raw.zadd(key, value)
    else:
        raw.hset(key, mapping=value)
    raw.expire(key, 3_600)


def lying(raw: redis.Redis) -> dict[str, Any]:
    """Return what is under each key in Redis, with numbers as texts."""
    client, found = cast("Any", raw), dict[str, Any]()
    for key in client.scan_iter():
        match client.type(key):
            case b"hash":
                value: Any = {text(name): text(each) for name, each in client.hgetall(key).items()}
            case b"zset":
                value = {text(name): str(int(score)) for name, score in client.zrange(key, 0, -1, withscores=True)}
            case _:
                value = text(client.get(key))
        found[text(key)] = value
    return found


def replied(reply: Any) -> Any:
    """Return a reply, with the fields of hashes in order."""
    if not isinstance(reply, list):
        return reply
    return [sorted(map(text, each)) if isinstance(each, list) else each for each in reply]


def as_texts(value: Any) -> Any:
    return {name: str(each) for name, each in value.items()} if isinstance(value, Mapping) else str(value)


class Both:
    """Runs operations in Redis and by their specification, and compares what they reply and leave behind."""

    def __init__(self, raw: redis.Redis, before: Mapping[str, Any]) -> None:
        raw.flushall()
        self._raw, self._store, self._states = raw, redis_store(), DictStates()
        for key, value in before.items():
            put(raw, key, value)
            self._states.put(key, value, START + 3_600 * SECOND)

    def run(self, operation: Operation, now: int = START) -> dict[str, Any]:
        """Run an operation; return what is there then."""
        assert replied(self._store.run(operation, now)) == replied(specify(operation, self._states, now))
        found = lying(self._raw)
        assert found == {key: as_texts(value) for key, (value, _) in self._states.kept.items()}
        for key, (_, expiry) in self._states.kept.items():  # a key lives as long as what is in it
            assert cast("Any", self._raw).pttl(key) * 1_000 >= expiry - now - SLACK
        return found


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("case", CASES)
@inputs(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_script_and_specification_are_one(case: str, raw: redis.Redis, data: st.DataObject) -> None:
    before, operations = CASES[case]
    both, now = Both(raw, data.draw(before)), START
    for operation, gap in data.draw(st.lists(st.tuples(operations, st.integers(0, 20 * SECOND)), max_size=8)):
        both.run(operation, now)
        now += gap


@pytest.mark.usefixtures("redis_cache")
def test_metrics_do_not_grow_with_the_names_that_clients_bring(raw: redis.Redis) -> None:
    both = Both(raw, {})
    both.run(AddMetrics(METRICS, {f"rule{number}:a": 1 for number in range(FIELDS + 7)}, {}, {}))
    rules = both.run(AddMetrics(METRICS, {"rule0:a": 1, "one-more:a": 1, "one-more:r": 4}, {}, {}))[METRICS.day]
    assert (rules["rule0:a"], rules[f"{OTHER}:a"], rules[f"{OTHER}:r"]) == ("2", "8", "4")
    assert len(rules) <= FIELDS + 3
    many = {f"ip:{number}": 1 + (number == 5) for number in range(SUBJECTS * 3 // 2 + 1)}
    subjects = both.run(AddMetrics(METRICS, {}, many, {}))[METRICS.refused]
    assert (len(subjects), subjects["ip:5"]) == (SUBJECTS, "2")
