"""Metrics, and what no store is asked: exact over threads and processes, sent by itself and at exit, and bounded."""

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import redis
from django.test import RequestFactory

from django_quota import Rule, acheck, check, check_all, reserve, slot
from django_quota.adapters import decide
from django_quota.core import clock
from django_quota.core.errors import StoreDataError, StoreRefusesWrites
from django_quota.core.keys import system_key
from django_quota.engine.system_operations import FIELDS, OTHER, AddMetrics, MetricsKeys
from django_quota.exceptions import StoreUnavailable
from django_quota.features.usage.days import Count, last_tiers, recent_usage
from django_quota.limiting import flusher as flusher_module
from django_quota.limiting import metrics
from django_quota.limiting.flusher import Background, flusher
from django_quota.limiting.registry import get_limiter
from django_quota.operating.activity import DayTotal, RuleActivity, SlotUse, activity, running_totals
from django_quota.signals import refused
from django_quota.testing import RedisServer, freeze
from tests.support.calls import calls_of
from tests.support.commands import PATIENCE, json_of, managing, wait_until
from tests.support.counts import (
    checks_a_minute,
    checks_by_minute,
    checks_of_today,
    count_what_waits,
    days_of,
    refused_today,
    units_of,
)
from tests.support.memory import metrics_that_wait, with_room_for_metrics, with_room_for_uncounted
from tests.support.outages import no_answer
from tests.support.overridden import override
from tests.support.processes import ended, forks, processes, started
from tests.support.signals import received
from tests.support.steps import SECOND, START
from tests.support.stores import caches, current_store, spy

SUBJECT = "ip:203.0.113.9"


@pytest.mark.usefixtures("either_store", "at_one_time")
class TestWhatIsCounted:
    def test_checks_are_counted_by_rule(self) -> None:
        for subject, times in (("user:1", 3), ("user:2", 4)):
            for _ in range(times):
                check("2/m", subject, name="a")
        asyncio.run(acheck("3/m", SUBJECT, name="b"))

        assert checks_of_today() == {"a": (4, 3, 0), "b": (1, 0, 0)}

    def test_who_was_refused_most_comes_first(self) -> None:
        for subject, times in (("user:1", 3), ("user:2", 4), ("user:3", 2)):
            for _ in range(times):
                check("2/m", subject, name="a")

        assert refused_today() == [("user:2", 2), ("user:1", 1)]

    def test_who_was_refused_has_the_name_that_the_check_said(self) -> None:
        refusal = check("0/m", "user:a b%", name="a rule: odd")

        assert (refused_today(), checks_of_today()) == ([(refusal.subject, 1)], {"a rule: odd": (0, 1, 0)})

    def test_only_those_who_were_refused_most_are_listed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_quota.operating.activity.SUBJECTS_SHOWN", 2)
        for subject, times in (("user:1", 3), ("user:2", 4), ("user:3", 2)):
            for _ in range(times):
                check("1/m", subject, name="a")

        assert [(each.subject, each.count) for each in activity().refused] == [("user:2", 3), ("user:1", 2)]

    def test_the_rate_of_a_rule_has_the_last_sixty_seconds(self) -> None:
        with freeze(START):
            check("9/m", SUBJECT, name="a")
            check("9/m", "user:1", name="a")
            flusher.flush()

        with freeze(START + 75 * SECOND):
            check("9/m", SUBJECT, name="a")

            (rule,) = activity().rules
            assert rule.rate == 1 + 2 * 0.75

    def test_while_a_store_refuses_writes_it_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        check("9/m", SUBJECT, name="a")
        flusher.flush()
        monkeypatch.setattr(metrics.DecisionMetrics, "flush", Mock(side_effect=StoreRefusesWrites("full")))

        assert [rule.rule for rule in activity().rules] == ["a"]

    def test_a_check_counts_once_whatever_it_takes(self) -> None:
        check("9/m", SUBJECT, 5, name="a")

        assert checks_of_today() == {"a": (1, 0, 0)}

    def test_a_shadow_is_counted_apart(self) -> None:
        for _ in range(3):
            check("1/m", SUBJECT, name="a", shadow=True)

        assert refused_today() == []
        assert checks_of_today() == {"a": (1, 0, 2)}

    def test_only_the_refusing_rules_of_a_plan_count_its_refusal(self) -> None:
        soft, ghost = Rule.make("soft", "9/m", block=False), Rule.make("ghost", "2/m", shadow=True)
        rules = [Rule.make("strict", "1/m"), Rule.make("wide", "9/m"), soft, ghost]

        for _ in range(3):
            check_all([(rule, SUBJECT) for rule in rules])

        assert checks_of_today() == {
            "strict": (1, 2, 0), "wide": (1, 0, 0), "soft": (1, 0, 0), "ghost": (1, 0, 0),
        }  # fmt: skip

    BEGINS = START // (60 * SECOND) * 60 * SECOND

    def count_over_minutes(self) -> None:
        for at, times in ((0, 1), (60, 8), (135, 2)):
            with freeze(self.BEGINS + at * SECOND):
                for _ in range(times):
                    check("8/d", SUBJECT, name="a")
                count_what_waits()

    def test_a_minute_goes_by_the_clock_that_decided(self) -> None:
        self.count_over_minutes()

        with freeze(self.BEGINS + 135 * SECOND):
            found = checks_by_minute("a")

        assert found[-4:] == [(0, 0), (1, 0), (7, 1), (0, 2)]
        assert len(found) == 60

    def test_the_rate_goes_by_the_clock_that_decided(self) -> None:
        self.count_over_minutes()

        with freeze(self.BEGINS + 135 * SECOND):
            assert checks_a_minute("a") == 2 + 8 * 0.75

    def test_a_day_goes_by_the_clock_that_decided(self) -> None:
        self.count_over_minutes()

        with freeze(self.BEGINS + 86_400 * SECOND):
            assert checks_of_today() == {}


@pytest.mark.parametrize("name", ["search", "a rule: odd", "5/m by ip"])
def test_the_label_of_a_rule_is_its_name(name: str) -> None:
    assert metrics.RuleLabels().of(name) == name


@pytest.mark.parametrize(
    ("part", "rule", "label"),
    [
        pytest.param("search", "search", "search", id="a name"),
        pytest.param("a%3Ab", "a:b", "a:b", id="a name with a colon"),
        pytest.param(f"~{'0' * 64}", None, f"~{'0' * 64}", id="a digest"),
        pytest.param(OTHER, None, "other", id="the sum of the others"),
    ],
)
def test_a_listed_rule_has_a_label_though_its_name_is_not_known(part: str, rule: str | None, label: str) -> None:
    found = RuleActivity(part)

    assert (found.rule, found.label) == (rule, label)


@pytest.mark.parametrize(("name", "label"), [("export", "export"), (None, "other")], ids=["a name", "a digest"])
def test_a_listed_slot_has_a_label_though_its_name_is_not_known(name: str | None, label: str) -> None:
    assert SlotUse("user:7", name, 1, 2).label == label


@pytest.mark.parametrize(("total", "share"), [((3, 1), 25.0), ((0, 0), None)], ids=["of four", "of none"])
def test_the_refused_share_of_a_day_is_a_percentage(total: tuple[int, int], share: float | None) -> None:
    assert DayTotal(*total).refused_share == share


@pytest.mark.usefixtures("memory_store")
def test_twenty_slots_are_listed() -> None:
    slots = [SlotUse("user:7", f"{number}", 1, 2) for number in range(21)]

    assert replace(activity(), slots=slots).fullest_slots == slots[:20]


@pytest.mark.usefixtures("memory_store")
def test_without_an_outage_the_total_of_outages_is_zero() -> None:
    check("5/m", "user:7")

    assert running_totals().outages == 0


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("what", ["totals", "slots", "refused"])
def test_a_message_that_a_key_of_another_program_stops_adds_nothing(what: str, raw: redis.Redis) -> None:
    """A process sends a message again each second, until it is counted."""
    keys = MetricsKeys(**{name: f"{{!}}{name}" for name in MetricsKeys._fields})
    raw.set(getattr(keys, what), "text")

    with pytest.raises(StoreDataError):
        current_store().run(AddMetrics(keys, 1, {"api:a": 1}, {"user:1": 1}, {"user:1 export 2": SECOND}))

    assert raw.keys() == [getattr(keys, what).encode()]


class TestAnOutage:
    @pytest.mark.usefixtures("either_store")
    def test_it_is_counted_apart_though_the_store_has_its_most_rules(self) -> None:
        keys = MetricsKeys("{!}d", "{!}m", "{!}r", "{!}s", system_key("quota", "totals"), "{!}n")
        current_store().run(AddMetrics(keys, 1, {f"rule-{number}:a": 1 for number in range(FIELDS)}, {}, {}))
        get_limiter().metrics.count_outage()
        check("1/m", SUBJECT, name="late")

        found = running_totals()

        assert found.outages == 1
        assert [rule.allowed for rule in found.rules if rule.is_rest] == [1]

    @pytest.mark.usefixtures("memory_store")
    def test_it_is_counted_apart_though_as_many_rules_wait_as_may(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with_room_for_metrics(3, 3, monkeypatch)
        for number in range(3):
            check("1/m", SUBJECT, name=f"rule{number}")
        get_limiter().metrics.count_outage()

        assert running_totals().outages == 1


@pytest.mark.usefixtures("memory_store", "at_one_time")
class TestRoomForAHundredRules:
    @pytest.fixture(autouse=True)
    def two_hundred_are_checked(self, memory_store: None, at_one_time: None, monkeypatch: pytest.MonkeyPatch) -> None:
        """More rules than there is room for, while two messages get no answer."""
        with_room_for_metrics(100, 50, monkeypatch)
        for number in range(200):
            check("0/m", f"user:{number}", name=f"rule{number}")
            if number in (150, 170):
                with no_answer():
                    assert not count_what_waits()

    def test_what_waits_to_be_sent_is_bounded(self) -> None:
        assert metrics_that_wait() == (101 + 49, 50 + 49), "at most twice: the message without an answer, and the next"

    def test_no_count_of_a_rule_is_lost(self) -> None:
        assert sum(refused for _, refused, _ in checks_of_today().values()) == 200


def sent(raw: redis.Redis) -> dict[str, int]:
    found: Counter[str] = Counter()
    client: Any = raw  # redis-py leaves its replies open
    for key in client.keys("quota:1:{!}:metrics:20*-*"):
        found.update({name.decode(): int(count) for name, count in client.hgetall(key).items()})
    return found


@pytest.mark.usefixtures("redis_cache")
class TestTheWay:
    @pytest.mark.parametrize(
        ("is_done", "counted"),
        [pytest.param(False, {}, id="the message was lost"), pytest.param(True, {"a:a": 1}, id="the answer was lost")],
    )
    def test_a_message_without_an_answer_counts_once(
        self, is_done: bool, counted: dict[str, int], raw: redis.Redis
    ) -> None:
        check("9/m", SUBJECT, name="a")
        with no_answer(done=is_done):
            assert not count_what_waits()
        assert sent(raw) == counted
        check("9/m", SUBJECT, name="a")

        count_what_waits()
        count_what_waits()

        assert sent(raw) == {"a:a": 2}

    def test_a_message_counts_once_though_two_attempts_had_no_answer(self, raw: redis.Redis) -> None:
        check("9/m", SUBJECT, name="a")
        with no_answer(done=False):
            assert not count_what_waits()
        with no_answer(done=True):
            assert not count_what_waits()

        count_what_waits()

        assert sent(raw) == {"a:a": 1}

    def test_a_late_answer_to_an_earlier_message_leaves_the_next_one_to_be_sent_again(
        self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        is_sent, is_answered = threading.Event(), threading.Event()

        def answer_late(operation: Any) -> None:
            if isinstance(operation, AddMetrics):
                is_sent.set()
                assert is_answered.wait(PATIENCE)

        check("9/m", SUBJECT, name="a")
        with ThreadPoolExecutor(1) as threads:
            with monkeypatch.context() as patched:
                spy(patched, after=answer_late)
                late = threads.submit(count_what_waits)
                assert is_sent.wait(PATIENCE)
            count_what_waits()
            check("9/m", SUBJECT, name="a")
            with no_answer(done=False):
                assert not count_what_waits()
            is_answered.set()
            assert late.result()

        count_what_waits()

        assert sent(raw) == {"a:a": 2}

    @pytest.mark.thorough("slow")
    def test_racing_threads_count_each_check_once(self, raw: redis.Redis) -> None:
        def ask(number: int) -> bool:
            if number % 20 == 0:
                count_what_waits()
            return bool(check("100/m", SUBJECT, name="a"))

        with ThreadPoolExecutor(8) as threads:
            allowed = sum(threads.map(ask, range(8 * 60)))
        count_what_waits()

        assert allowed == 100
        assert sent(raw) == {"a:a": 100, "a:r": 380}
        (refused,) = cast("Any", raw).keys("quota:1:{!}:refused:*")
        assert raw.zscore(refused, SUBJECT) == 380

    @pytest.mark.usefixtures("the_flusher_runs")
    def test_an_idle_process_sends_its_counts_by_itself(self, raw: redis.Redis) -> None:
        check("9/m", SUBJECT, name="a")
        wait_until(lambda: sent(raw) == {"a:a": 1})

    @pytest.mark.thorough("slow")
    @forks
    def test_a_forked_process_sends_only_its_own_counts(self, raw: redis.Redis) -> None:
        def work() -> None:
            for _ in range(3):
                check("90/m", SUBJECT, name="a")
            count_what_waits()

        override("b 0 0 ", "*", "user:1")
        check("90/m", SUBJECT, name="a")
        check(RULE, "user:1")  # which no store is asked
        with processes() as children:
            children += [started(work) for _ in range(4)]
            assert ended(children) == [0] * 4
        assert sent(raw) == {"a:a": 12}

        count_what_waits()

        assert (sent(raw), counts("user:1")) == ({"a:a": 13, "api:r": 1}, (0, 1))


ASKING = """
import django
django.setup()
from django_quota import check
for _ in range(7):
    check("90/m", "ip:203.0.113.9", name="a")
"""


@pytest.mark.thorough("processes")
def test_the_last_counts_of_a_process_are_sent_at_its_end(
    redis_server: RedisServer, raw: redis.Redis, tmp_path: Path
) -> None:
    with managing(tmp_path, caches(redis_server)) as manage:
        subprocess.run([sys.executable, "-W", "error", "-c", ASKING], env=manage.environment, check=True, timeout=60)
    assert sent(raw) == {"a:a": 7}


# --- what exempt and blocked subjects do is counted, although no store is asked ---------------------------------------

RULE = Rule.make("api", "2/m", daily=True)


def counts(subject: str, rule: str = "api") -> tuple[int, int]:
    """Return what the day has counted of a subject: allowed and refused."""
    count_what_waits()
    found = [day[rule] for day in days_of(subject).values() if rule in day]
    return sum(allowed for allowed, _ in found), sum(refused for _, refused in found)


@pytest.fixture
def overridden() -> None:
    override("b 0 0 ", "*", "user:1")
    override("x 0 0 ", "*", "user:2")


@pytest.mark.usefixtures("memory_store", "overridden", "at_one_time")
class TestHitsThatNoStoreDecides:
    @pytest.fixture
    def hits(self, memory_store: None, overridden: None, at_one_time: None) -> None:
        for _ in range(3):
            check(RULE, "user:1")
            check(RULE, "user:2", 2)
            check("2/m", "user:1", name="seen", shadow=True)
        asyncio.run(acheck(RULE, "user:2"))

    @pytest.mark.usefixtures("hits")
    def test_are_counted_for_the_day_once(self) -> None:
        found = [(counts("user:1"), counts("user:2")) for _ in range(2)]

        assert found == [((0, 3), (4, 0))] * 2

    @pytest.mark.usefixtures("hits")
    def test_are_counted_in_the_metrics(self) -> None:
        assert checks_of_today() == {"api": (4, 3, 0), "seen": (0, 0, 3)}

    def test_are_settled_for_the_day(self) -> None:
        reserve(RULE, "user:2", 50).settle(20)
        reserve(RULE, "user:2", 50).settle(70)
        reserve(RULE, "user:2", 50).cancel()

        assert (counts("user:2"), units_of("user:2")) == ((2, 0), {"api": 90})

    def test_of_a_refused_plan_count_only_who_was_blocked(self) -> None:
        check_all([(RULE, "user:1"), (RULE, "user:2"), (RULE, "user:3")])  # who had room is not counted

        assert [counts(f"user:{n}") for n in (1, 2, 3)] == [(0, 1), (0, 0), (0, 0)]


@pytest.mark.usefixtures("memory_store", "overridden")
def test_the_metrics_leave_out_who_is_exempt_if_a_block_refuses_the_request() -> None:
    check_all([(RULE, "user:2"), (Rule.make("seen", "2/m"), "user:1")])
    flusher.flush()
    assert checks_of_today() == {"seen": (0, 1, 0)}


@pytest.mark.usefixtures("memory_store")
def test_the_metrics_leave_out_who_is_exempt_if_no_store_decides_the_request() -> None:
    override("x 0 0 ", "seen", SUBJECT)

    with no_answer():
        check_all([("9/m", SUBJECT), (Rule.make("seen", "2/m"), SUBJECT)])

    flusher.flush()
    assert checks_of_today() == {}


@pytest.mark.usefixtures("memory_store", "overridden")
def test_a_free_request_of_a_blocked_subject_is_in_no_metrics() -> None:
    request = RequestFactory().get("/", REMOTE_ADDR="192.0.2.7")
    override("b 0 0 ", "*", "ip:192.0.2.7")
    decide(request, [Rule.make("free", "2/m", key="ip", cost=lambda request: 0)])
    flusher.flush()
    assert checks_of_today() == {}


@pytest.mark.usefixtures("memory_store", "overridden")
def test_a_request_of_a_blocked_subject_that_one_rule_takes_for_free_is_a_refusal_by_the_other() -> None:
    override("b 0 0 ", "*", "ip:192.0.2.7")
    rules = [Rule.make("free", "2/m", key="ip", cost=lambda request: 0), Rule.make("paid", "2/m", key="ip")]

    decide(RequestFactory().get("/", REMOTE_ADDR="192.0.2.7"), rules)
    flusher.flush()

    assert checks_of_today() == {"paid": (0, 1, 0)}


@pytest.mark.usefixtures("memory_store", "overridden")
def test_a_block_is_counted_for_a_shadow_beside_the_rule_that_refuses() -> None:
    override("b 0 0 ", "*", "user:100%25")

    check_all([(Rule.make("trial", "2/m", shadow=True), "user:100%25"), (Rule.make("api", "2/m"), "user:100%25")])
    flusher.flush()

    assert checks_of_today() == {"trial": (0, 0, 1), "api": (0, 1, 0)}
    assert refused_today() == [("user:100%25", 1)]


@pytest.mark.usefixtures("memory_store", "at_one_time")
def test_a_free_request_of_a_blocked_subject_is_no_refusal_of_the_day() -> None:
    request = RequestFactory().get("/", REMOTE_ADDR="192.0.2.7")
    override("b 0 0 ", "*", "ip:192.0.2.7")
    decide(request, [Rule.make("free", "2/m", key="ip", cost=lambda request: 0, daily=True)])

    assert counts("ip:192.0.2.7", "free") == (0, 0)


@pytest.mark.usefixtures("memory_store")
def test_a_free_request_of_a_blocked_subject_sends_no_signal() -> None:
    request = RequestFactory().get("/", REMOTE_ADDR="192.0.2.7")
    override("b 0 0 ", "*", "ip:192.0.2.7")

    with received(refused, heard := Mock()):
        decide(request, [Rule.make("free", "2/m", key="ip", cost=lambda request: 0)])

    assert not heard.called


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("beside", "counted"),
    [
        pytest.param([], {}, id="alone"),
        pytest.param([Rule.make("site", "2/m", key="ip")], {"site": (1, 0, 0)}, id="beside another rule"),
        pytest.param([Rule.make("closed", "0/m", key="ip")], {"closed": (0, 1, 0)}, id="in a refused request"),
        pytest.param(
            [Rule.make("trial", "0/m", key="ip", shadow=True)], {"trial": (0, 0, 1)}, id="beside a shadow that refuses"
        ),
    ],
)
def test_a_rule_that_a_request_costs_nothing_is_in_no_metrics(beside: list[Rule], counted: dict[str, Any]) -> None:
    free = Rule.make("free", "2/m", key="ip", cost=lambda request: 0)
    decide(RequestFactory().get("/", REMOTE_ADDR="192.0.2.7"), [free, *beside])
    flusher.flush()
    assert checks_of_today() == counted


@pytest.mark.usefixtures("memory_store")
def test_a_round_without_new_counts_asks_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    check("9/m", SUBJECT)
    assert count_what_waits()
    asked = calls_of(monkeypatch)

    assert count_what_waits()

    assert asked == []


@pytest.mark.usefixtures("memory_store")
class TestTheSlotsOfTheOverview:
    def asked_for(self) -> list[str]:
        return sorted(use.name or "" for use in activity().slots)

    @pytest.mark.parametrize(("lease", "seconds"), [(30, 600), (3_600, 3_600)], ids=["a short lease", "a long one"])
    def test_are_shown_for_ten_minutes_or_a_lease_after_they_were_asked_for(self, lease: int, seconds: int) -> None:
        with freeze(START):
            slot("export", 3, lease=lease).acquire().release()
            assert count_what_waits()

        found = []
        for moment in (START + seconds * SECOND - 1, START + seconds * SECOND):
            with freeze(moment):
                found.append(self.asked_for())
        assert found == [["export"], []]

    def test_are_shown_by_the_names_that_they_have(self) -> None:
        with freeze(START):
            slot("a report: odd", 3, subject="user:a b").acquire().release()
            assert count_what_waits()

            assert [(use.name, use.subject) for use in activity().slots] == [("a report: odd", "user:a b")]

    def test_are_at_most_as_many_as_a_message_has_room_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(metrics, "MAX_SLOTS", 2)
        with freeze(START):
            for name in ("a", "b", "c", "a"):
                slot(name, 3).acquire().release()

            assert self.asked_for() == ["a", "b"]

    def test_are_shown_for_the_last_lease_that_was_asked_for_though_there_is_no_room_for_more(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(metrics, "MAX_SLOTS", 1)
        with freeze(START):
            for lease in (30, 3_600):
                slot("export", 3, lease=lease).acquire().release()
            assert count_what_waits()

        with freeze(START + 3_599 * SECOND):
            assert self.asked_for() == ["export"]


@pytest.mark.usefixtures("redis_cache", "overridden")
class TestTheEventOfARefusal:
    def test_comes_when_the_store_answers_again(self) -> None:
        override(f"b 0 {START + 90 * SECOND} ", "*", "ip:2001:db8::/64")
        with freeze(START):
            check("5/m", "ip:2001:db8::/64", name="a rule: odd")
        with freeze(START + 50 * SECOND):  # the store was away
            flusher.flush()

        (event,) = json_of("quota_events")
        assert (event["kind"], event["rule"], event["subject"]) == ("refused", "a rule: odd", "ip:2001:db8::/64")
        assert (event["until"], event["capacity"]) == ("2025-11-21T04:41:30+00:00", 5)

    @pytest.mark.usefixtures("at_one_time")
    def test_is_not_written_for_a_shadow(self) -> None:
        check("2/m", "user:1", shadow=True)
        flusher.flush()

        assert json_of("quota_events") == []

    def test_comes_at_most_once_a_second(self) -> None:
        for tenths in range(500, 525):
            with freeze(START + tenths * SECOND // 10):
                check(RULE, "user:1")
                check(RULE, "user:2")
                flusher.flush()

        assert [(each["rule"], each["subject"]) for each in json_of("quota_events")] == [("api", "user:1")] * 3


@pytest.mark.usefixtures("redis_cache")
def test_the_store_is_not_asked_where_neither_events_nor_days_are_kept(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.QUOTA = {**settings.QUOTA, "EVENTS": 0}
    override("b 0 0 ", "*", "ip:2001:db8::/64")
    check("2/m", "ip:2001:db8::/64")
    monkeypatch.setattr(current_store(), "try_all", lambda *_: pytest.fail("it was asked"))

    get_limiter().unasked.flush()


@pytest.mark.usefixtures("memory_store", "overridden")
def test_a_refusal_is_signalled_at_once_after_the_clock_was_set_back() -> None:
    override("b 0 0 ", "*", "user:1")
    signals: list[str] = []

    def hear(subject: str, **_: Any) -> None:
        signals.append(subject)

    with received(refused, hear):
        for moment in (START + 60 * SECOND, START):
            with freeze(moment):
                check(RULE, "user:1")

    assert signals == ["user:1"] * 2


@pytest.mark.usefixtures("redis_cache", "overridden")
class TestWhileTheStoreIsAway:
    @pytest.fixture(autouse=True)
    def signals(self, redis_cache: Any, overridden: None, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
        """Three seconds with hits that no store decides; yields the refusals that were signalled."""
        signals: list[tuple[str, str]] = []

        def hear(rule: Rule, subject: str, **_: Any) -> None:
            signals.append((rule.name, subject))

        with received(refused, hear), monkeypatch.context() as away:
            for name in ("run", "arun", "try_all"):
                away.setattr(current_store(), name, Mock(side_effect=StoreUnavailable("it is away")))
            for seconds in range(3):
                with freeze(START + seconds * SECOND):
                    found = [bool(check(RULE, "user:1")) for _ in range(2)]
                    found.append(bool(check_all([(RULE, "user:2"), ("2/m", "user:3")])))
                    found.append(flusher.flush())
                assert found == [False, False, True, False]
        return signals

    def test_counts_wait_to_be_sent_once(self) -> None:
        with freeze(START + 3 * SECOND):
            found = [(counts("user:1"), counts("user:2")) for _ in range(2)]

        assert found == [((0, 6), (3, 0))] * 2

    def test_a_refusal_is_signalled_once_a_second(self, signals: list[tuple[str, str]]) -> None:
        assert signals == [("api", "user:1")] * 3

    def test_the_event_of_a_refusal_waits(self) -> None:
        with freeze(START + 3 * SECOND):
            flusher.flush()

        assert [(each["rule"], each["subject"]) for each in json_of("quota_events")] == [("api", "user:1")]


@pytest.mark.usefixtures("redis_cache", "overridden")
def test_sending_what_was_counted_raises_while_the_store_does_not_answer() -> None:
    check(RULE, "user:1")

    with no_answer(), pytest.raises(StoreUnavailable):
        get_limiter().unasked.flush()


def _of_a_plan_without_a_limit() -> tuple[str, str]:
    check(Rule.make("free", None, daily=True), "user:9", 3)
    return "user:9", "free"


def _exempt() -> tuple[str, str]:
    override("x 0 0 ", "*", "user:9")
    check(RULE, "user:9", 3)
    return "user:9", "api"


def _blocked() -> tuple[str, str]:
    check(RULE, "user:1")
    return "user:1", "api"


@pytest.mark.usefixtures("either_store", "overridden")
@pytest.mark.parametrize("ask", [_of_a_plan_without_a_limit, _exempt, _blocked], ids=lambda ask: ask.__name__[1:])
def test_a_message_whose_answer_is_lost_is_counted_once(ask: Callable[[], tuple[str, str]]) -> None:
    with freeze(START):
        place = ask()
        for _ in range(3):
            with no_answer(done=True):
                flusher.flush()
        assert sum(counts(*place)) == 1
        ask()
        assert sum(counts(*place)) == 2


@pytest.mark.usefixtures("redis_cache", "overridden")
class TestABoundForWhatWaits:
    def an_outage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have hits of four subjects wait, where there is room for two; one message has no answer."""
        with monkeypatch.context() as away:
            for name in ("run", "arun", "try_all"):
                away.setattr(current_store(), name, Mock(side_effect=StoreUnavailable("it is away")))
            for n in (1, 2, 4, 1, 5):
                override("b 0 0 ", "*", f"user:{n}")
                assert not check(RULE, f"user:{n}")
                if n == 2:
                    flusher.flush()
        flusher.flush()

    def test_also_holds_for_what_waits_for_an_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with_room_for_uncounted(2, monkeypatch)
        self.an_outage(monkeypatch)
        once = [counts(f"user:{n}") for n in (1, 2, 4, 5)]
        self.an_outage(monkeypatch)

        assert once == [(0, 2), (0, 1), (0, 0), (0, 0)]
        assert [counts(f"user:{n}") for n in (1, 2, 4, 5)] == [(0, 4), (0, 2), (0, 0), (0, 0)]

    def test_is_logged_once_in_each_outage(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with_room_for_uncounted(2, monkeypatch)
        logged = []

        for _ in range(2):
            self.an_outage(monkeypatch)
            full = [each for each in caplog.messages if each.startswith("The hits of 2 rules and subjects wait")]
            logged.append(len(full))

        assert logged == [1, 2]


@pytest.mark.django_db
@pytest.mark.usefixtures("either_store", "at_one_time")
class TestATierWithoutALimit:
    @pytest.fixture
    def plans(self, either_store: None) -> Rule:
        plans = Rule.make("plans", {"free": "5/h", "all": None}, tier=lambda request: "free")
        check(plans, "user:3", 3, tier="free")
        assert check(plans, "user:3", 900, tier="all")
        return plans

    def units_of_the_day(self) -> list[Count]:
        flusher.flush()
        return [day["plans"] for day in recent_usage("user:3").values()]

    def test_is_counted(self, plans: Rule) -> None:
        check_all([(plans.tiers["all"], "user:3", 50), (Rule.make("none", "0/d"), "user:3")])  # refused

        assert self.units_of_the_day() == [Count(allowed=2, refused=0, units=903)]

    def test_is_settled(self, plans: Rule) -> None:
        with reserve(plans, "user:3", 100, tier="all") as reservation:
            reservation.settle(40)
        reserve(plans, "user:3", 100, tier="all").cancel()

        assert self.units_of_the_day() == [Count(allowed=3, refused=0, units=943)]

    def test_is_the_last_one_of_the_subject(self, plans: Rule) -> None:
        flusher.flush()

        assert last_tiers([plans], "user:3") == {"plans": "all"}


@pytest.mark.django_db
@pytest.mark.usefixtures("either_store")
def test_rules_of_one_name_count_a_hit_once_for_the_day_if_one_of_them_has_no_limit() -> None:
    request = RequestFactory().get("/", REMOTE_ADDR="192.0.2.7")
    decide(request, [Rule.make("site", rate, key="ip", daily=True) for rate in ("5/m", None)])
    flusher.flush()
    assert [day["site"].allowed for day in recent_usage("ip:192.0.2.7").values()] == [1]


@pytest.mark.usefixtures("memory_store")
def test_a_shadow_counts_though_a_rule_by_the_body_refuses_the_request() -> None:
    request = RequestFactory().post("/", {"phone": "1"}, REMOTE_ADDR="192.0.2.7")
    before = [Rule.make("trial", "0/m", key="ip", shadow=True), Rule.make("site", "9/m", key="ip")]

    decide(request, [*before, Rule.make("codes", "0/m", key="post:phone")])
    flusher.flush()

    found = {each.label: (each.allowed, each.refused, each.shadowed) for each in running_totals().rules}
    assert found == {"trial": (0, 0, 1), "codes": (0, 1, 0)}


@pytest.mark.usefixtures("memory_store")
def test_a_request_whose_body_is_read_counts_under_the_rules_before_it_too() -> None:
    request = RequestFactory().post("/", {"phone": "1"}, REMOTE_ADDR="192.0.2.7")

    decide(request, [Rule.make("site", "9/m", key="ip"), Rule.make("codes", "9/m", key="post:phone")])
    flusher.flush()

    assert {each.label: each.allowed for each in running_totals().rules} == {"site": 1, "codes": 1}


def job(*, at_exit: bool = False) -> Any:
    return Mock(purpose="count", at_exit=at_exit)


def rounds_of(made: Any) -> int:
    return int(made.flush.call_count)


@pytest.fixture
def own_flusher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Background]:
    monkeypatch.setattr("django_quota.limiting.flusher.FLUSH_INTERVAL", 0.001)
    made = Background("django-quota-flusher")
    yield made
    made.stop(PATIENCE)


class TestAJobThatFails:
    @pytest.fixture
    def failing(self, own_flusher: Background) -> Any:
        failing = job()
        failing.flush.side_effect = RuntimeError("no event loop")
        own_flusher.add(failing)
        return failing

    def test_is_tried_again(self, failing: Any, own_flusher: Background) -> None:
        own_flusher.wake()

        wait_until(lambda: rounds_of(failing) > 3)

    def test_stops_no_other(self, failing: Any, own_flusher: Background) -> None:
        own_flusher.add(other := job())
        own_flusher.wake()

        wait_until(lambda: rounds_of(failing) > 3)

        assert rounds_of(other) > 2

    def test_is_logged_once(self, failing: Any, own_flusher: Background, caplog: pytest.LogCaptureFixture) -> None:
        own_flusher.wake()

        wait_until(lambda: rounds_of(failing) > 3)

        assert caplog.messages == ["Cannot count, and will try again: no event loop"]


def test_a_process_that_could_start_no_thread_tries_again_at_the_next_count(
    own_flusher: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_flusher.add(counting := job())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        own_flusher.wake()
    assert not own_flusher.is_woken

    own_flusher.wake()

    wait_until(lambda: rounds_of(counting))


def test_a_thread_that_died_of_a_broken_log_is_replaced_at_the_next_count(
    own_flusher: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, is_over = job(), threading.Event()

    def fail() -> None:
        own_flusher.wake()  # somebody counts meanwhile
        raise RuntimeError("no event loop")

    counting.flush.side_effect = fail
    own_flusher.add(counting)
    with monkeypatch.context() as patched:
        patched.setattr(flusher_module.logger, "warning", Mock(side_effect=OSError("the disk is full")))
        patched.setattr(threading, "excepthook", lambda _: is_over.set())
        own_flusher.wake()
        assert is_over.wait(PATIENCE)

    counting.flush.side_effect = None
    own_flusher.wake()

    wait_until(lambda: rounds_of(counting) == 2)


def test_a_failure_is_logged_again_after_a_round_without_one(
    own_flusher: Background, caplog: pytest.LogCaptureFixture
) -> None:
    failing = job()
    own_flusher.add(failing)

    for error in (RuntimeError("first"), None, RuntimeError("second")):
        failing.flush.side_effect = error
        own_flusher.flush()

    assert caplog.messages == [f"Cannot count, and will try again: {word}" for word in ("first", "second")]


def test_a_job_that_was_removed_is_not_done(own_flusher: Background) -> None:
    removed, other = job(), job()
    for each in (removed, other):
        own_flusher.add(each)

    own_flusher.remove(removed, None)

    assert own_flusher.flush()
    assert (rounds_of(removed), rounds_of(other)) == (0, 1)


def test_it_does_one_round_each_time_it_is_woken(own_flusher: Background) -> None:
    made, threads = job(), set[str]()
    made.flush.side_effect = lambda: threads.add(threading.current_thread().name)
    own_flusher.add(made)

    for rounds in (1, 2, 3):
        own_flusher.wake()
        wait_until(lambda rounds=rounds: rounds_of(made) == rounds)  # type: ignore[misc]

    assert threads == {"django-quota-flusher"}


def test_at_the_end_it_does_the_jobs_that_ask_for_it_once(own_flusher: Background) -> None:
    own_flusher.add(last := job(at_exit=True))
    own_flusher.add(other := job())
    own_flusher.wake()
    wait_until(lambda: rounds_of(other) == rounds_of(last) == 1)

    found = []
    for _ in range(2):
        own_flusher.stop(PATIENCE)
        found.append((rounds_of(last), rounds_of(other)))
        own_flusher.wake()

    assert found == [(2, 1)] * 2


def test_it_makes_a_call_at_its_moment_though_a_round_is_not_due(
    own_flusher: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_quota.limiting.flusher.FLUSH_INTERVAL", 3_600.0)
    own_flusher.add(mine := job())
    own_flusher.wake()
    wait_until(lambda: rounds_of(mine) == 1)
    own_flusher.wake()
    calls = [threading.Event() for _ in range(2)]
    own_flusher.call_at(clock.elapsed() + 0.01, calls[0].set)
    own_flusher.call_at(clock.elapsed() + 3_600, calls[1].set)
    assert calls[0].wait(PATIENCE)
    own_flusher.call_at(clock.elapsed(), calls[1].set)  # the later plan replaces the earlier one
    assert calls[1].wait(PATIENCE)
    assert rounds_of(mine) == 1


@forks
def test_a_forked_process_has_a_thread_of_its_own(own_flusher: Background) -> None:
    def work() -> None:
        before = rounds_of(mine)
        own_flusher.wake()
        wait_until(lambda: rounds_of(mine) > before)

    own_flusher.add(mine := job())
    work()
    with processes() as children:
        children += [started(work) for _ in range(2)]
        assert ended(children) == [0] * 2
