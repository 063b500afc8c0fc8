"""`cache_refusals`: a process repeats a refusal from memory. It stays true, and it is counted like any other."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
import redis
from django.http import HttpResponse
from django.test import RequestFactory
from django.urls import path
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from django_quota import (
    Decision,
    Rule,
    arefund,
    areset,
    check,
    check_all,
    counter,
    peek,
    quota,
    refund,
    reserve,
    reset,
    unban,
)
from django_quota.adapters import decide
from django_quota.core import clock
from django_quota.engine.events import AppendEvents, EventRecord
from django_quota.exceptions import QuotaExceeded, RuleError, StoreUnavailable
from django_quota.features.resets import reset_found
from django_quota.limiting.registry import get_limiter
from django_quota.testing import clear, freeze
from tests.support.calls import before_the_next_answer_is_read, both, calls_of, fetch, operations_of
from tests.support.commands import json_of
from tests.support.counts import checks_by_minute, checks_of, checks_of_today, count_what_waits, days_of, refused_today
from tests.support.inputs import inputs
from tests.support.memory import as_another_process, remembered_refusals, with_room_for_refusals
from tests.support.outages import no_answer
from tests.support.overridden import override
from tests.support.processes import ended, forks, processes, started
from tests.support.steps import SECOND, START

SUBJECT = "ip:203.0.113.9"
NOON = START // (86_400 * SECOND) * 86_400 * SECOND + 43_200 * SECOND


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The calls of the store."""
    return calls_of(monkeypatch)


def fill(rate: str = "1/m", subject: str = SUBJECT, **options: Any) -> None:
    """Take what a limit has, and be refused once."""
    while check(rate, subject, **options):
        pass


@pytest.mark.usefixtures("redis_cache")
def test_a_repeated_refusal_is_counted_in_its_own_minute() -> None:
    for second in (50, 70, 71):
        with freeze(NOON + second * SECOND):
            check("0/d", SUBJECT, name="shut", cache_refusals=60)
            count_what_waits()

    with freeze(NOON + 71 * SECOND):
        assert checks_by_minute("shut")[-2:] == [(0, 1), (0, 2)]


@pytest.mark.usefixtures("memory_store")
class TestARefusalIsRepeated:
    @pytest.fixture
    def repeated(self, asked: list[int]) -> Decision:
        """A refusal that is repeated three seconds after it began."""
        with freeze(NOON):
            check("2/m", SUBJECT, cache_refusals=10)
        with freeze(NOON + 5 * SECOND):
            fill("2/m", cache_refusals=10)
            asked.clear()
        with freeze(NOON + 8 * SECOND):
            return check("2/m", SUBJECT, cache_refusals=10)

    def test_without_the_store(self, repeated: Decision, asked: list[int]) -> None:
        assert asked == []
        assert (repeated.allowed, repeated.enforced, repeated.degraded) == (False, True, False)
        assert (repeated.rule, repeated.subject, repeated.limit, repeated.remaining) == ("2/m", SUBJECT, 2, 0)

    def test_to_a_reservation(self, repeated: Decision, asked: list[int]) -> None:
        with freeze(NOON + 8 * SECOND), pytest.raises(QuotaExceeded):
            reserve("2/m", SUBJECT, cache_refusals=10)
        assert asked == []

    def test_while_its_times_count_down(self, repeated: Decision) -> None:
        (outcome,) = repeated.outcomes
        assert (repeated.retry_after, repeated.reset_after, outcome.next_after) == (52.0, 57.0, 52.0)

    def test_only_after_it_began_when_a_test_goes_back_in_time(self, asked: list[int]) -> None:
        with freeze(NOON):
            fill(cache_refusals=60)
        asked.clear()
        with freeze(NOON - SECOND):
            check("1/m", SUBJECT, cache_refusals=60)
        assert len(asked) == 1

    @pytest.mark.parametrize(
        ("seconds", "calls"), [pytest.param(9, 0, id="inside"), pytest.param(11, 1, id="after it")]
    )
    def test_for_ten_seconds_of_the_clock_that_never_goes_back(
        self, seconds: int, calls: int, asked: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        elapsed = [10**15]
        monkeypatch.setattr(clock, "_steady_clock", lambda: elapsed[0])
        fill("1/h", cache_refusals=10)
        asked.clear()

        elapsed[0] += seconds * 10**9
        check("1/h", SUBJECT, cache_refusals=10)

        assert len(asked) == calls

    def test_until_a_forced_hit_makes_it_longer(self) -> None:
        with freeze(NOON):
            fill(cache_refusals=60)
        with freeze(NOON + 10 * SECOND):
            check("1/m", SUBJECT, force=True, cache_refusals=60)
            assert check("1/m", SUBJECT, cache_refusals=60).retry_after == 60.0

    def test_for_the_same_cost_alone(self) -> None:
        check("9/m", SUBJECT, 8, cache_refusals=10)
        assert not check("9/m", SUBJECT, 5, cache_refusals=10)
        assert check("9/m", SUBJECT, cache_refusals=10)

    def test_for_as_long_as_the_option_says(self, asked: list[int]) -> None:
        with freeze(NOON):
            fill(cache_refusals=2)
        asked.clear()
        decided = []
        for after in (2 * SECOND - 1, 2 * SECOND, 4 * SECOND - 1, 4 * SECOND):
            with freeze(NOON + after):
                decided.append((check("1/m", SUBJECT, cache_refusals=2).allowed, len(asked)))

        assert decided == [(False, 0), (False, 1), (False, 1), (False, 2)]

    def test_never_beyond_its_retry_after(self) -> None:
        with freeze(NOON):
            fill("1/5s", cache_refusals=60)

        with freeze(NOON + 5 * SECOND - 1):
            assert not check("1/5s", SUBJECT, cache_refusals=60)
        with freeze(NOON + 5 * SECOND):
            assert check("1/5s", SUBJECT, cache_refusals=60)

    def test_until_the_machine_has_slept(self, asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        fill(cache_refusals=10)
        asked.clear()
        awake = clock._steady_clock
        monkeypatch.setattr(clock, "_steady_clock", lambda: awake() + 11 * 10**9)

        check("1/m", SUBJECT, cache_refusals=10)

        assert len(asked) == 1

    @pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has a clock that runs in a sleep")
    def test_by_a_clock_that_goes_on_while_the_machine_sleeps(self) -> None:
        of_system: Any = clock._steady_clock

        assert (of_system.func, of_system.args) == (time.clock_gettime_ns, (time.CLOCK_BOOTTIME,))

    @pytest.mark.parametrize(
        ("options", "calls"),
        [pytest.param({}, 2, id="by the setting"), pytest.param({"cache_refusals": 0}, 4, id="not if the rule says 0")],
    )
    def test_by_the_setting_unless_the_rule_says_otherwise(
        self, options: dict[str, Any], calls: int, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.QUOTA = {**settings.QUOTA, "CACHE_REFUSALS": 1.5}
        asked = calls_of(monkeypatch)
        rule = Rule.make("set", "1/m", **options)
        with freeze(NOON):
            for _ in range(4):
                check(rule, SUBJECT)

        assert len(asked) == calls


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"ban": {"after": "90/m", "for": "1h"}}, id="towards a ban"),
        pytest.param({"count_refused": True}, id="as a hit"),
        pytest.param({"shadow": True}, id="of a rule that only reports"),
        pytest.param({"block": False}, id="of a rule that blocks nothing"),
    ],
)
def test_the_store_is_asked_for_each_refusal_that_counts_there(options: dict[str, Any], asked: list[int]) -> None:
    rule = Rule.make("counted", "1/m", cache_refusals=10, **options)
    with freeze(NOON):
        for _ in range(5):
            check(rule, SUBJECT)
    assert len(asked) == 5


@pytest.mark.usefixtures("memory_store")
def test_the_store_is_asked_for_each_request_of_a_rule_that_counts_different_values(asked: list[int]) -> None:
    devices = Rule.make("devices", "0/m", key="ip", distinct="header:X-Device", cache_refusals=60)
    with freeze(NOON):
        decided = [decide(RequestFactory().get("/", headers={"X-Device": "a"}), devices).allowed for _ in range(3)]

    assert (decided, len(asked)) == ([False] * 3, 3)


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("beside", [[], [Rule.make("full", "0/m", cache_refusals=60)]], ids=["alone", "beside another"])
def test_the_store_is_asked_for_each_refusal_that_costs_nothing(beside: list[Rule], asked: list[int]) -> None:
    free = Rule.make("free", "0/m", key="ip", cost=lambda request: 0, cache_refusals=60)
    with freeze(NOON):
        decided = [decide(RequestFactory().get("/"), [free, *beside]).allowed for _ in range(3)]

    assert (decided, len(asked)) == ([False] * 3, 3)


@pytest.mark.usefixtures("memory_store")
def test_the_store_is_asked_for_each_value_of_a_distinct_rule(asked: list[int]) -> None:
    values = Rule.make("values", "1/m", distinct=True, cache_refusals=10)
    with freeze(NOON):
        assert [check(values, SUBJECT, value=value).allowed for value in "abba"] == [True, False, False, True]
    assert len(asked) == 4


def reset_and_clear(subject: str) -> None:
    reset("1/m", subject)
    clear()


MAKING_ROOM: dict[str, Callable[[str], object]] = {
    "reset": lambda subject: reset("1/m", subject),
    "areset": lambda subject: asyncio.run(areset("1/m", subject)),
    "refund": lambda subject: refund("1/m", subject),
    "arefund": lambda subject: asyncio.run(arefund("1/m", subject)),
    "a reset of all rules": lambda subject: reset("*", subject),
    "a reset before all is cleared": reset_and_clear,
    "a reset of the refused subject": lambda subject: reset("1/m", check("1/m", subject, cache_refusals=60).subject),
}


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("subject", [SUBJECT, "é" * 300], ids=["plain", "which has only a digest in the keys"])
class TestTakesEffectAtOnce:
    @pytest.mark.parametrize("act", MAKING_ROOM.values(), ids=MAKING_ROOM)
    def test_what_makes_room_in_this_process(self, act: Callable[[str], object], subject: str) -> None:
        with freeze(NOON):
            fill(subject=subject, cache_refusals=60)
            act(subject)
            assert check("1/m", subject, cache_refusals=60)
            assert not check("1/m", subject, cache_refusals=60)

    def test_a_settlement(self, subject: str) -> None:
        with freeze(NOON):
            held = reserve("1/m", subject, name="held", cache_refusals=60)
            fill(subject=subject, name="held", cache_refusals=60)
            held.settle(0)
            assert check("1/m", subject, name="held", cache_refusals=60)

    def test_a_lifted_ban(self, subject: str, asked: list[int]) -> None:
        with freeze(NOON):
            fill(subject=subject, cache_refusals=60)
            unban("*", subject)  # the rule may have had a ban until a moment ago
            asked.clear()
            assert not check("1/m", subject, cache_refusals=60)
        assert len(asked) == 1


@pytest.mark.usefixtures("redis_cache")
def test_a_reset_of_all_that_is_found_takes_effect_at_once() -> None:
    with freeze(NOON):
        fill(cache_refusals=60)

        reset_found(None, SUBJECT)

        assert check("1/m", SUBJECT, cache_refusals=60)


@pytest.mark.usefixtures("memory_store")
class TestALostAnswer:
    """The store has done it, perhaps: so it is asked again."""

    def test_of_a_reset(self) -> None:
        with freeze(NOON):
            fill(cache_refusals=60)
            with no_answer(done=True), pytest.raises(StoreUnavailable):
                reset("1/m", SUBJECT)

            assert check("1/m", SUBJECT, cache_refusals=60)

    def test_of_a_lifted_ban(self, asked: list[int]) -> None:
        with freeze(NOON):
            fill(cache_refusals=60)
            with no_answer(done=True), pytest.raises(StoreUnavailable):
                unban("1/m", SUBJECT)
            asked.clear()

            assert not check("1/m", SUBJECT, cache_refusals=60)
        assert len(asked) == 1


@pytest.mark.usefixtures("memory_store")
def test_a_reset_while_a_refusal_is_under_way_takes_effect_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with freeze(NOON):
        check("1/m", SUBJECT, cache_refusals=60)
        before_the_next_answer_is_read(monkeypatch, lambda: reset("1/m", SUBJECT))
        assert [check("1/m", SUBJECT, cache_refusals=60).allowed for _ in range(2)] == [False, True]


@pytest.mark.usefixtures("memory_store")
def test_refusals_from_memory_are_counted_for_their_day() -> None:
    midnight = NOON + 43_200 * SECOND
    with freeze(midnight - SECOND):
        fill(subject="user:1", name="a", cache_refusals=10)
        check("1/m", "user:1", name="a", cache_refusals=10)
    with freeze(midnight):
        for _ in range(3):
            check("1/m", "user:1", name="a", cache_refusals=10)
        count_what_waits()
        count_what_waits()
        assert [counts["a"] for counts in days_of("user:1").values()] == [(1, 2), (0, 3)]


@pytest.mark.usefixtures("memory_store")
def test_refusals_from_memory_are_counted_by_all_threads() -> None:
    def refuse() -> bool:
        return check("1/m", "user:1", name="a", cache_refusals=10).allowed

    with freeze(NOON):
        fill(subject="user:1", name="a", cache_refusals=10)
        contexts = [copy_context() for _ in range(400)]
        with ThreadPoolExecutor(8) as pool:
            assert not any(pool.map(lambda each: each.run(refuse), contexts))
        count_what_waits()
        assert (checks_of_today(), refused_today()) == ({"a": (1, 401, 0)}, [("user:1", 401)])


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("seconds", "daily", "waiting"),
    [
        pytest.param(1.0, False, 0, id="a second"),
        pytest.param(1.5, False, 1, id="longer, when another event may be due"),
        pytest.param(0.5, True, 1, id="a rule that counts by day"),
    ],
)
def test_how_many_repetitions_wait_to_be_counted_by_the_store(seconds: float, daily: bool, waiting: int) -> None:
    rule = Rule.make("full", "0/m", cache_refusals=seconds, daily=daily)
    with freeze(NOON):
        check(rule, SUBJECT)
        count_what_waits()

        check(rule, SUBJECT)

        assert len(get_limiter().unasked) == waiting


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("rates", "cost", "seconds", "capacity", "left"),
    [
        pytest.param(["2/m"], 2, 60, 2, 0, id="one rate"),
        pytest.param(["2/m", "3/h"], 2, 3_600, 3, 1, id="the rate with the longest wait"),
        pytest.param(["2/m", "90/h"], 2, 60, 2, 0, id="the rate that refuses"),
        pytest.param(["2/m", "9/h"], 3, None, 2, 0, id="a rate that never allows it"),
        pytest.param(["2/m", "3/h"], 3, None, 2, 0, id="a rate that never allows it, beside one with a wait"),
    ],
)
def test_the_event_of_a_repetition_says(
    rates: list[str], cost: int, seconds: int | None, capacity: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = Rule.make("a rule", *rates, cache_refusals=30, warn_at=None)
    with freeze(NOON):
        check(rule, SUBJECT, 2)
        check(rule, SUBJECT, cost)
    with freeze(NOON + 2 * SECOND):
        check(rule, SUBJECT, cost)
        written = operations_of(monkeypatch, AppendEvents)
        count_what_waits()

    until = 0 if seconds is None else NOON + seconds * SECOND
    [message] = written
    assert list(message.events) == [EventRecord("refused", "a%20rule", SUBJECT, until, 0, capacity, left, cost=cost)]


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("rates", "cost"), [(["0/m"], 1), (["1/m", "100/h"], 1), (["2/m", "1/h"], 2)], ids=["one", "two", "never"]
)
def test_a_refusal_is_repeated_of_rates(rates: list[str], cost: int, asked: list[int]) -> None:
    rule = Rule.make("rates", *rates, cache_refusals=10)
    with freeze(NOON):
        check(rule, SUBJECT)
        refused = check(rule, SUBJECT, cost)
        asked.clear()
        repeated = check(rule, SUBJECT, cost)

    assert (asked, repeated.enforced) == ([], True)
    assert [each.retry_after for each in repeated.outcomes] == [each.retry_after for each in refused.outcomes]


@pytest.mark.usefixtures("memory_store")
def test_no_refusal_is_repeated_beside_a_counter_that_may_be_topped_up(asked: list[int]) -> None:
    balance = counter("credits")
    entries: Any = [(Rule.make("full", "0/m", cache_refusals=10), SUBJECT), (balance, SUBJECT, 2)]
    with freeze(NOON):
        for _ in range(3):
            assert not check_all(entries)

    assert (len(asked), remembered_refusals()) == (3, 0)


@pytest.mark.usefixtures("memory_store")
def test_a_refusal_because_the_store_does_not_answer_is_not_repeated() -> None:
    rule = Rule.make("code", "5/m", on_unavailable="deny", cache_refusals=60)
    with freeze(NOON):
        with no_answer():
            in_outage = check(rule, SUBJECT)

        assert (in_outage.enforced, check(rule, SUBJECT).enforced) == (True, False)


@pytest.mark.usefixtures("memory_store")
def test_the_end_of_a_remembered_refusal_is_a_time_of_the_stores_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_steady_clock", lambda: 10**15)
    fill("1/h", cache_refusals=60)

    [[refusal]] = get_limiter().refusals.table.values()

    assert 0 < refusal.event().until - clock.now() <= 3_600 * SECOND


@pytest.mark.usefixtures("memory_store")
def test_a_look_asks_the_store_though_a_refusal_is_remembered(asked: list[int]) -> None:
    with freeze(NOON):
        fill(cache_refusals=60)
        asked.clear()

        assert not peek("1/m", SUBJECT, cache_refusals=60)

    assert len(asked) == 1


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("seconds", [0, 0.01], ids=["of the rule alone", "which is longer than the setting"])
def test_a_rule_that_takes_ahead_repeats_a_refusal_for_a_lease(
    seconds: float, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.QUOTA = {**settings.QUOTA, "CACHE_REFUSALS": seconds}
    asked = calls_of(monkeypatch)
    rule = Rule.make("hot", "100/m", prefetch=True)
    with freeze(NOON):
        assert check(rule, SUBJECT, 100)
        assert not check(rule, SUBJECT)
    found = []
    for after in (rule.lease - 1, rule.lease):
        with freeze(NOON + after):
            asked.clear()
            check(rule, SUBJECT)
            found.append(len(asked))

    assert found == [0, 1]


@pytest.mark.usefixtures("memory_store")
def test_a_rule_that_takes_ahead_repeats_no_refusal_if_it_says_so(asked: list[int]) -> None:
    rule = Rule.make("hot", "100/m", prefetch=True, cache_refusals=0)
    with freeze(NOON):
        check(rule, SUBJECT, 100)
        asked.clear()

        assert not check(rule, SUBJECT)
        assert not check(rule, SUBJECT)

    assert len(asked) == 2


@pytest.mark.usefixtures("memory_store")
def test_nothing_is_remembered_of_a_refusal_that_is_not_repeated() -> None:
    check("0/m", SUBJECT, cache_refusals=0)

    assert remembered_refusals() == 0


@pytest.mark.usefixtures("memory_store")
def test_no_subject_is_kept_in_memory_when_its_refusals_are_over() -> None:
    refusals = get_limiter().refusals
    with freeze(NOON):
        for cost in (1, 2):
            check("0/m", SUBJECT, cost, cache_refusals=cost)
    kept = []
    for seconds in (1, 2):
        with freeze(NOON + seconds * SECOND):
            refusals.flush()
            kept.append((len(refusals.table), len(refusals._keys)))

    assert kept == [(1, 1), (0, 0)]


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(("whose", "others"), [("user:1", "user:2"), ("user:2", "user:1")], ids=["first", "second"])
def test_the_refusals_of_one_subject_are_forgotten_in_all_requests_with_it(whose: str, others: str) -> None:
    rule = Rule.make("full", "0/m", cache_refusals=60)
    with freeze(NOON):
        for entries in ([(rule, "user:1")], [(rule, "user:1"), (rule, "user:2")], [(rule, "user:2")]):
            check_all(entries)
        reset(rule, whose)

        assert [[part[1] for part in key] for key in get_limiter().refusals.table] == [[others]]


@pytest.mark.usefixtures("memory_store")
def test_a_process_remembers_the_refusals_of_ten_thousand_requests() -> None:
    refusals = get_limiter().refusals
    held = []
    for number in range(10_001):
        refusals._put(((number, "user:1", 1, ""),), [], refusals.changes)
        held.append(len(refusals.table))

    assert held[-2:] == [10_000, 1]


@pytest.mark.usefixtures("redis_cache")
def test_the_event_of_a_block_comes_even_if_the_subject_is_exempt_by_then() -> None:
    for value in ("b 0 0 ", "x 0 0 "):
        override(value, "a", SUBJECT)
        check("1/m", SUBJECT, name="a", daily=True)
    count_what_waits()
    assert [(event["kind"], event["subject"]) for event in json_of("quota_events")] == [("refused", SUBJECT)]


@pytest.mark.usefixtures("redis_cache")
def test_one_event_a_second_comes_with_a_batch() -> None:
    with freeze(NOON):
        fill(name="a", cache_refusals=30, warn_at=None)
    allowed = []
    for after in (SECOND - 1, SECOND, 2 * SECOND - 1, 2 * SECOND):
        with freeze(NOON + after):
            allowed += [check("1/m", SUBJECT, name="a", cache_refusals=30, warn_at=None).allowed for _ in range(3)]
            count_what_waits()

    told = [(event["kind"], event["rule"]) for event in json_of("quota_events")]
    assert not any(allowed)
    assert told == [("refused", "a")] * 3


@pytest.mark.usefixtures("redis_cache")
def test_what_one_subject_cannot_count_is_counted_once_for_the_others(raw: redis.Redis) -> None:
    users = ("user:1", "user:2", "user:3")
    with freeze(NOON):
        for user in users:
            fill(subject=user, name="a", cache_refusals=10)
            check("1/m", user, name="a", cache_refusals=10)
        (broken,) = raw.keys("*{user:2}:day:*")
        raw.delete(broken)
        raw.set(broken, "of another program")

        sent = [count_what_waits() for _ in range(3)]
        raw.delete(broken)
        count_what_waits()

        assert not any(sent)
        assert [checks_of(user)["a"] for user in users] == [(1, 2), (0, 1), (1, 2)]


@forks
@pytest.mark.usefixtures("memory_store")
def test_a_forked_process_starts_without_memory() -> None:
    with freeze(NOON), processes() as children:
        fill(cache_refusals=60)
        children.append(started(lambda: int(not check("1/m", SUBJECT, cache_refusals=60))))  # its store is empty too
        assert ended(children) == [0]


@pytest.fixture
def room_for_ten(memory_store: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A table with room for ten refusals meets 25 subjects: how many it held after each of them."""
    with_room_for_refusals(10, monkeypatch)
    held = []
    with freeze(NOON):
        for number in range(25):
            for _ in range(2):
                check("0/m", f"ip:192.0.2.{number}", name="a", cache_refusals=5)
            held.append(remembered_refusals())
    return held


def test_the_table_of_refusals_has_a_bound(room_for_ten: list[int]) -> None:
    assert min(room_for_ten) >= 1
    assert max(room_for_ten) <= 10


def test_a_full_table_of_refusals_loses_no_count(room_for_ten: list[int]) -> None:
    with freeze(NOON):
        count_what_waits()

        assert checks_of_today() == {"a": (0, 50, 0)}


def test_the_table_of_refusals_lets_go_of_what_is_over(room_for_ten: list[int]) -> None:
    with freeze(NOON):
        count_what_waits()
    assert remembered_refusals()

    with freeze(NOON + 5 * SECOND):
        count_what_waits()

    assert remembered_refusals() == 0


@pytest.mark.usefixtures("memory_store")
def test_what_a_smaller_hit_takes_makes_the_wait_of_a_larger_one_longer() -> None:
    options: Any = {"algorithm": "leaky_bucket", "cache_refusals": 3}
    clear()
    with freeze(NOON):
        waits = [check("10/m", SUBJECT, cost, **options).retry_after for cost in (4, 4, 4, 1, 1, 4)]
    assert waits == [0, 0, 12, 0, 0, 24]


@pytest.mark.usefixtures("memory_store")
def test_what_is_taken_beside_a_refusal_that_blocks_nothing_makes_the_wait_longer_too() -> None:
    leaky = Rule.make("leaky", "10/m", algorithm="leaky_bucket", cache_refusals=3)
    lenient = Rule.make("lenient", "0/m", block=False)
    clear()
    with freeze(NOON):
        waits = [check(leaky, SUBJECT, cost).retry_after for cost in (4, 4, 4)]
        assert not check_all([(leaky, SUBJECT), (lenient, SUBJECT)]).enforced
        waits.append(check(leaky, SUBJECT, 4).retry_after)
    assert waits == [0, 0, 12, 18]


LEAKY = Rule.make("leaky", "10/m", algorithm="leaky_bucket", cache_refusals=3)


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    "taken",
    [
        pytest.param([(LEAKY, SUBJECT, 1)], id="alone"),
        pytest.param([(Rule.make("other", "9/m"), SUBJECT), (LEAKY, SUBJECT, 1)], id="after another rule"),
    ],
)
@pytest.mark.parametrize("step", [1, -1], ids=["of the first rule", "of the last rule"])
def test_what_one_rule_of_a_refusal_takes_makes_its_wait_longer(taken: Any, step: int) -> None:
    entries: Any = [(LEAKY, SUBJECT, 4), (Rule.make("wide", "100/m", cache_refusals=3), SUBJECT)][::step]
    with freeze(NOON):
        waits = [check_all(entries).retry_after for _ in range(3)]
        check_all(taken)
        waits.append(check_all(entries).retry_after)

    assert waits == [0, 0, 12, 18]


@pytest.mark.usefixtures("memory_store")
def test_a_hit_under_another_rule_leaves_a_refusal_remembered(asked: list[int]) -> None:
    with freeze(NOON):
        fill(cache_refusals=60)
        check("9/m", SUBJECT, name="other")
        asked.clear()

        assert not check("1/m", SUBJECT, cache_refusals=60)

    assert asked == []


@pytest.mark.usefixtures("memory_store")
def test_a_repeated_refusal_is_one_by_each_rule_that_refused() -> None:
    entries: Any = [(Rule.make(name, "0/m", cache_refusals=10), "user:1") for name in ("one", "other")]
    with freeze(NOON):
        check_all(entries)
        repeated = check_all(entries)
        for _ in range(2):
            count_what_waits()

        assert [outcome.rule for outcome in repeated.outcomes] == ["one", "other"]
        assert checks_of("user:1") == {"one": (0, 2), "other": (0, 2)}


@pytest.mark.usefixtures("memory_store")
def test_a_repeated_refusal_is_not_one_by_the_shadow_beside_it() -> None:
    entries: Any = [
        (Rule.make("trial", "0/m", shadow=True), SUBJECT),
        (Rule.make("full", "0/m", cache_refusals=10), SUBJECT),
    ]
    with freeze(NOON):
        check_all(entries)
        repeated = check_all(entries)
        count_what_waits()

        assert [outcome.rule for outcome in repeated.outcomes] == ["full"]
        assert checks_of_today() == {"trial": (0, 0, 1), "full": (0, 2, 0)}


@pytest.mark.usefixtures("memory_store")
def test_a_refusal_is_repeated_beside_a_rule_that_an_override_made_a_shadow(asked: list[int]) -> None:
    override("s 0 0 ", "watched", SUBJECT)
    entries: Any = [
        (Rule.make("watched", "1/m"), SUBJECT),
        (Rule.make("full", "1/m", cache_refusals=10), SUBJECT),
    ]
    with freeze(NOON):
        for _ in range(2):
            check_all(entries)
        asked.clear()
        assert not check_all(entries)
    assert asked == []


RULES = [
    Rule.make("exact", "3/10s", cache_refusals=7),
    Rule.make("two", "2/3s; 5/m", cache_refusals=4.5),
    Rule.make("slices", "6/20s", precision=3, cache_refusals=60),
    Rule.make("fixed", "3/10s", algorithm="fixed_window", cache_refusals=7),
    Rule.make("calendar", "4/m", algorithm="calendar", cache_refusals=60),
    Rule.make("bucket", "10/m", algorithm="token_bucket", burst=3, cache_refusals=3),
    Rule.make("leaky", "10/m", algorithm="leaky_bucket", cache_refusals=3),
    Rule.make("aside", "2/10s", block=False, cache_refusals=7),
]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("check"), st.sampled_from(RULES), st.integers(1, 4)),
        st.tuples(st.just("refund"), st.sampled_from(RULES), st.integers(1, 2)),
        st.tuples(st.just("reset"), st.sampled_from(RULES), st.just(0)),
        st.tuples(st.just("elsewhere"), st.sampled_from(RULES), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from(RULES), st.sampled_from([1, 250_000, SECOND, 3 * SECOND])),
        st.tuples(st.just("wait"), st.sampled_from(RULES), st.integers(0, 20 * SECOND)),
    ),
    max_size=60,
)


def differing(rule: Rule, amount: int) -> list[bool]:
    """Compare answers with what the store says: for each that differs, whether it allowed the hit."""
    found = []
    for _ in range(3):
        true = peek(rule, SUBJECT, amount)
        answer = check(rule, SUBJECT, amount)
        if answer.allowed != true.allowed or answer.retry_after != pytest.approx(true.retry_after):
            found.append(answer.allowed)
    return found


@given(STEPS)
@inputs(300, [HealthCheck.function_scoped_fixture])
def test_no_answer_differs_from_the_store_for_longer_than_said(memory_store: None, steps: list[Any]) -> None:
    clear()
    now, elsewhere, different = NOON, dict[str, int](), list[tuple[bool, bool]]()

    for step, rule, amount in steps:
        with freeze(now):
            if step == "wait":
                now += amount
            elif step == "refund":
                refund(rule, SUBJECT, amount)
            elif step == "reset":
                reset(rule, SUBJECT)
            elif step == "elsewhere":
                with as_another_process():
                    reset(rule, SUBJECT)
                elsewhere[rule.name] = now
            else:
                until = elsewhere.get(rule.name, 0) + (rule.cache_refusals or 0) * SECOND
                different += [(allowed, now < until) for allowed in differing(rule, amount)]

    assert set(different) <= {(False, True)}  # a refusal that was true until a reset elsewhere


@quota("1/h", key="ip", name="view")
@quota("50/h", key="ip", name="other")
def flooded(request: Any) -> HttpResponse:
    return HttpResponse("served")


urlpatterns = [path("0/", flooded)]


@both
@pytest.mark.usefixtures("redis_cache")
def test_a_flood_of_a_view_hardly_reaches_redis(kind: str, raw: redis.Redis, settings: Any) -> None:
    settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, ["django_quota.middleware.QuotaMiddleware"]
    settings.QUOTA = {**settings.QUOTA, "CACHE_REFUSALS": 60, "RULES": {"site": {"rate": "100/h", "match": "/"}}}
    served, first = fetch(kind, "/0/", 2)
    assert (served.status_code, first.status_code) == (200, 429)
    raw.config_resetstat()
    *_, last = responses = fetch(kind, "/0/", 100)
    count_what_waits()
    stats: Any = raw.info("commandstats")
    trips = sum(stat["calls"] for name, stat in stats.items() if name.startswith("cmdstat_eval"))
    assert {response.status_code for response in responses} == {429}
    assert trips < 10
    assert int(first["Retry-After"]) - int(last["Retry-After"]) in range(60)
    assert last["RateLimit-Policy"] == '"view";q=1;w=3600'
    assert last["RateLimit"].startswith('"view";r=0;t=')


@pytest.mark.parametrize("value", [-1, 60.5, "2m", True])
def test_another_value_is_refused_with_what_to_write(value: Any) -> None:
    with pytest.raises(RuleError, match=r"cache_refusals=.* from 0 to 1 minute.*1\.0, '10s'") as caught:
        Rule.make("a", "1/m", cache_refusals=value)
    assert repr(value) in str(caught.value)
