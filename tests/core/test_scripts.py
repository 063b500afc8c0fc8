"""The Lua files: a head that lists what each takes, and the rules for all; scripts that no state machine runs."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import django_quota
from django_quota import Rule
from django_quota.admin.wording import ALGORITHM_NAMES
from django_quota.core.algorithms import REGISTRY
from django_quota.engine.decide import Decide
from django_quota.engine.operations import DictStates, Operation, lua_source, text
from django_quota.engine.plans import event_log_of
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
from tests.support.steps import SECOND, START, hits_of
from tests.support.stores import redis_store

FILES = sorted(path.stem for path in (Path(django_quota.__file__).parent / "engine" / "lua").glob("*.lua"))
CODE = re.sub(r"--.*", "", "".join(map(lua_source, FILES)))


def head(name: str) -> str:
    """Return the comment that a Lua file opens with."""
    return re.match(r"(?:--.*\n)*", lua_source(name))[0]  # type: ignore[index]


def test_the_head_of_each_file_lists_keys_arguments_and_reply_and_algorithms_are_complete() -> None:
    parts = [(name, part) for name in FILES for part in ("KEYS", "ARGV", "reply")]
    assert [(name, part) for name, part in parts if f"\n-- {part} " not in head(name)] == []
    gives_back = re.findall(r"^  (\w+) = ", lua_source("restore").rpartition("\nreturn {")[2], re.MULTILINE)
    assert set(gives_back) == set(REGISTRY) == set(ALGORITHM_NAMES)


def test_the_head_of_the_decision_is_what_the_caller_sends() -> None:
    ban = {"after": "20/m", "for": ["10m", "1h"]}
    rules = [
        Rule.make("a b", "5/m; 7/h", ban=ban),
        Rule.make("b", "9/d", algorithm="calendar", shadow=True, warn_at=None, count_refused=True),
    ]
    hits = hits_of(*rules, subject="user:1")
    hits += hits_of(Rule.make("c", "3/m", distinct=True), subject="user:1", value="cafe")
    hits[2].is_estimate = True
    decide = Decide(hits, "check", event_log_of("quota", 99))
    assert [key.removeprefix("quota:1:{user:1}:") for key in decide.keys] == [
        "s", "r:a%20b:sw.60s", "r:a%20b:sw.3600s", "b:a%20b", "day:2025-11-21",
        "s", "r:b:cal.1day.UTC", "day:2025-11-21",
        "s", "r:c:dv.60s", "day:2025-11-21",
        "quota:1:{!}:events", "quota:1:{!}:bans",
    ]  # fmt: skip
    day = ["day", 1763683200000000, 1763769600000000, ""]
    assert decide.arguments() == [
        "check", 99,
        "a%20b", 1, "800", 2, "sliding_window", "5", "60000000", "0", "sliding_window", "7", "3600000000", "0",
        "ban", "20", "60000000", "0", "600000000,3600000000", *day, "",
        "b", 1, "0", 1, "calendar", "9", "1763683200000000", "1763769600000000", "1763856000000000",
        "counted", "1", "quiet", "group", 1, *day, "",
        "c", 1, 0, 1, "distinct", "3", "60000000", "0", "value", "cafe", *day, "",
    ]  # fmt: skip
    listed = set(re.findall(r'"(\w+)"', head("decide").partition("then its options")[2].partition("-- reply")[0]))
    assert listed == {"counted", "quiet", "shares", "value", "group", "ban", "day"}


def test_scripts_touch_declared_keys_only_and_write_no_time_as_a_float() -> None:
    """Lua writes a large number as 1.7637e+15, unless it is formatted."""
    for command, key in re.findall(r"redis\.call\('(\w+)'(?:, ([^,)]+))?", CODE):
        assert command not in {"KEYS", "SCAN", "FLUSHDB", "FLUSHALL", "EVAL"}
        assert (command, key) == ("TIME", "") or re.fullmatch(r"(?:\w+\.)?(?:\w+_)?key|KEYS\[.*", key)
    assert "tostring" not in CODE
    assert not re.search(r"redis\.call\([^\n]*(?:\.\.  now|, now\b)", CODE)


def test_lua_writes_whole_numbers_and_times_to_the_microsecond(raw: Any) -> None:
    source = lua_source("lifetimes") + "return integer(tonumber(ARGV[2]))"
    for number in (0, 1, 99_999_999, 10**8, 10**8 + 1, 2**31, 2**32 + 7, 10**15, 2**52 - 1, 2**53 - 1):
        assert raw.eval(source, 0, 1, number) == str(number).encode()
    now, year = 4_102_444_799_999_999, 366 * 86_400 * SECOND  # the last microsecond of 2099
    hits = hits_of(Rule.make("a", "1/366d", algorithm="fixed_window"))
    decide = Decide(hits, "check")
    keys: Any = decide.keys
    reply = decide.read_reply(raw.eval(decide.script.text, len(keys), *keys, now, *decide.arguments()))
    assert reply == [now, 1, 1, 0, 0, year, year]
    assert raw.get(hits[0].limits[0].key) == f"1 {now + year}".encode()


# --- each does what its specification does ----------------------------------------------------------------------------

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
            lambda *given: RecordHits(STATUS, *given), st.sampled_from([DAY, ""]), names,
            st.dictionaries(st.sampled_from("aru"), st.integers(-9, 9)), st.sampled_from([0, SECOND]),
        ),
    ),
    "workers": (st.just({}), st.builds(RegisterWorker, st.just(WORKERS), names, st.just(30 * SECOND))),
    "metrics": (
        st.just({}),
        st.builds(AddMetrics, st.just(METRICS), counts, counts, st.dictionaries(names, st.just(SECOND))),
    ),
    "sweep": (
        st.dictionaries(st.sampled_from(SETS), st.dictionaries(st.text("abcdef", min_size=1), around, min_size=1)),
        st.builds(
            lambda swept, most: Sweep(SETS, swept, [1] * len(SETS), most, repairs=True),
            st.lists(st.booleans(), min_size=len(SETS), max_size=len(SETS)), st.integers(0, 20),
        ),
    ),
}  # fmt: skip


def replied(reply: Any) -> Any:
    """Return a reply, with the fields of hashes in order."""
    if not isinstance(reply, list):
        return reply
    return [sorted(map(text, each)) if isinstance(each, list) else each for each in reply]


class Both:
    """Runs operations in Redis and by their specification, and compares what they reply and leave behind."""

    def __init__(self, raw: Any, before: Mapping[str, Any]) -> None:
        raw.flushall()
        self._raw, self._store, self._states = raw, redis_store(), DictStates()
        for key, value in before.items():
            raw.zadd(key, value) if key in SETS else raw.hset(key, mapping=value)
            raw.expire(key, 3_600)
            self._states.put(key, value, START + 3_600 * SECOND)

    def lying(self) -> dict[str, Any]:
        """Return what is under each key in Redis, with numbers as texts."""
        found = dict[str, Any]()
        for key in self._raw.scan_iter():
            match self._raw.type(key):
                case b"hash":
                    found[text(key)] = {text(name): text(each) for name, each in self._raw.hgetall(key).items()}
                case b"zset":
                    scored = self._raw.zrange(key, 0, -1, withscores=True)
                    found[text(key)] = {text(name): str(int(score)) for name, score in scored}
                case _:
                    found[text(key)] = text(self._raw.get(key))
        return found

    def run(self, operation: Operation, now: int = START) -> dict[str, Any]:
        """Run an operation; return what is there then."""
        assert replied(self._store.run(operation, now)) == replied(specify(operation, self._states, now))
        found, kept = self.lying(), self._states.kept
        assert found == {
            key: {name: str(each) for name, each in value.items()} if isinstance(value, Mapping) else str(value)
            for key, (value, _) in kept.items()
        }
        for key, (_, expiry) in kept.items():  # a key lives as long as what is in it
            assert self._raw.pttl(key) * 1_000 >= expiry - now - SLACK
        return found


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("case", CASES)
@inputs(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_script_and_specification_are_one(case: str, raw: Any, data: st.DataObject) -> None:
    before, operations = CASES[case]
    both, now = Both(raw, data.draw(before)), START
    for operation, gap in data.draw(st.lists(st.tuples(operations, st.integers(0, 20 * SECOND)), max_size=8)):
        both.run(operation, now)
        now += gap


@pytest.mark.usefixtures("redis_cache")
def test_metrics_do_not_grow_with_the_names_that_clients_bring(raw: Any) -> None:
    both = Both(raw, {})
    both.run(AddMetrics(METRICS, {f"rule{number}:a": 1 for number in range(FIELDS + 7)}, {}, {}))
    rules = both.run(AddMetrics(METRICS, {"rule0:a": 1, "one-more:a": 1, "one-more:r": 4}, {}, {}))[METRICS.day]
    assert (rules["rule0:a"], rules[f"{OTHER}:a"], rules[f"{OTHER}:r"]) == ("2", "8", "4")
    assert len(rules) <= FIELDS + 3
    many = {f"ip:{number}": 1 + (number == 5) for number in range(SUBJECTS * 3 // 2 + 1)}
    subjects = both.run(AddMetrics(METRICS, {}, many, {}))[METRICS.refused]
    assert (len(subjects), subjects["ip:5"]) == (SUBJECTS, "2")
