"""What exempt and blocked subjects do is counted, although no store is asked: usage, metrics, events and signals.

`test_cache_refusals` has the same for refusals from memory.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest
from django.test import RequestFactory

from django_quota import Decision, Rule, acheck, check, check_all, reserve
from django_quota.adapters import decide
from django_quota.exceptions import StoreUnavailable
from django_quota.features.usage import Count, last_tiers, recent_usage
from django_quota.limiting.flusher import flusher
from django_quota.limiting.registry import get_limiter
from django_quota.signals import refused
from django_quota.testing import QuotaKit, freeze
from tests.support.commands import json_of
from tests.support.counts import checks_of_today, count_what_waits, days_of
from tests.support.memory import with_room_for_uncounted
from tests.support.overridden import override
from tests.support.processes import ended, forks, processes, started, threads_ran
from tests.support.steps import SECOND, START
from tests.support.stores import current_store

RULE = Rule.make("api", "2/m", daily=True)


def counts(subject: str, rule: str = "api") -> tuple[int, int]:
    """Return what the day has counted of a subject: allowed and refused."""
    count_what_waits()
    found = [day[rule] for day in days_of(subject).values() if rule in day]
    return sum(allowed for allowed, _ in found), sum(refused for _, refused in found)


@contextmanager
def heard() -> Iterator[list[tuple[str, str]]]:
    """Note the signal `refused`: the rule and the subject."""
    found: list[tuple[str, str]] = []

    def hear(rule: Rule, subject: str, decision: Decision, **_: Any) -> None:
        assert (decision.rule, decision.subject) == (rule.name, subject)
        found.append((rule.name, subject))

    refused.connect(hear)
    try:
        yield found
    finally:
        refused.disconnect(hear)


@pytest.fixture(autouse=True)
def overridden() -> None:
    override("b 0 0 ", "*", "user:1")
    override("x 0 0 ", "*", "user:2")


@pytest.mark.usefixtures("memory_store")
class TestCounts:
    """By the day and in the metrics, as hits that the store decides."""

    def test_hits_are_counted_for_the_day_and_in_the_metrics(self) -> None:
        for _ in range(3):
            check(RULE, "user:1")
            check(RULE, "user:2", 2)
            check("2/m", "user:1", name="seen", shadow=True)
        asyncio.run(acheck(RULE, "user:2"))
        for _ in range(2):
            assert (counts("user:1"), counts("user:2")) == ((0, 3), (4, 0))
        assert checks_of_today() == {"api": (4, 3, 0), "seen": (0, 0, 3)}
        check_all([(RULE, "user:1"), (RULE, "user:2"), (RULE, "user:3")])  # who had room is not counted
        assert [counts(f"user:{n}") for n in (1, 2, 3)] == [(0, 4), (4, 0), (0, 0)]

    def test_a_request_whose_body_is_read_between_two_decisions_counts_once(self) -> None:
        rules = [Rule.make("first", "5/m", key="ip", daily=True), Rule.make("second", "2/m", key="post:phone")]
        override("x 0 0 ", "first", "ip:192.0.2.2")
        override("b 0 0 ", "first", "ip:192.0.2.1")
        found = [
            bool(decide(RequestFactory().post("/", {"phone": "1"}, REMOTE_ADDR=f"192.0.2.{n}"), rules))
            for n in (1, 2, 2, 2)
        ]
        assert found == [False, True, True, False]
        assert (counts("ip:192.0.2.1", "first"), counts("ip:192.0.2.2", "first")) == ((0, 1), (2, 0))
        assert checks_of_today() == {"first": (2, 1, 0), "second": (2, 1, 0)}

    def test_the_signal_is_sent_once_a_second(self, the_clock_stands: QuotaKit) -> None:
        with heard() as signals:
            for seconds, sent in ((0, 1), (0.999, 1), (0.001, 2)):
                the_clock_stands.advance(seconds)
                for _ in range(2):
                    check(RULE, "user:1")
                    flusher.flush()
                assert signals == [("api", "user:1")] * sent


@pytest.mark.usefixtures("redis_cache")
def test_a_refusal_is_an_event_at_most_once_a_second(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    override(f"b 0 {START + 90 * SECOND} ", "*", "ip:2001:db8::/64")
    with freeze(START):
        check("5/m", "ip:2001:db8::/64", name="a rule: odd")
    with freeze(START + 50 * SECOND):  # the store was away
        flusher.flush()
        check("2/m", "user:1", shadow=True)  # is none
        flusher.flush()
    (event,) = json_of("quota_events")
    assert (event["kind"], event["rule"], event["subject"]) == ("refused", "a rule: odd", "ip:2001:db8::/64")
    assert (event["until"], event["capacity"]) == ("2025-11-21T04:41:30+00:00", 5)
    for tenths in range(500, 525):
        with freeze(START + tenths * SECOND // 10):
            check(RULE, "user:1")
            check(RULE, "user:2")
            flusher.flush()
    assert [(each["rule"], each["subject"]) for each in json_of("quota_events")[1:]] == [("api", "user:1")] * 3
    settings.QUOTA = {**settings.QUOTA, "EVENTS": 0}  # without events and days the store is not asked
    check("2/m", "ip:2001:db8::/64")
    monkeypatch.setattr(current_store(), "try_all", lambda *_: pytest.fail("it was asked"))
    get_limiter().unasked.flush()


@pytest.mark.usefixtures("redis_cache")
class TestOutages:
    """Counts wait while the store is away, and are sent once."""

    def test_they_wait_and_are_counted_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with heard() as signals, monkeypatch.context() as away:
            for name in ("run", "arun", "try_all"):
                away.setattr(current_store(), name, Mock(side_effect=StoreUnavailable("it is away")))
            for seconds in range(3):
                with freeze(START + seconds * SECOND):
                    check(RULE, "user:1")
                    assert check_all([(RULE, "user:2"), ("2/m", "user:3")])
                    assert not flusher.flush()
        with freeze(START + 3 * SECOND):
            for _ in range(2):
                assert (counts("user:1"), counts("user:2")) == ((0, 3), (3, 0))
        assert signals == [("api", "user:1")] * 3
        assert [(each["rule"], each["subject"]) for each in json_of("quota_events")] == [("api", "user:1")]

    def test_there_is_a_bound_for_what_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with_room_for_uncounted(2, monkeypatch)
        for n in (1, 2, 4, 1):
            override("b 0 0 ", "*", f"user:{n}")
            assert not check(RULE, f"user:{n}")
        assert [counts(f"user:{n}") for n in (1, 2, 4)] == [(0, 2), (0, 1), (0, 0)]

    @forks
    @threads_ran
    def test_a_forked_process_leaves_them_to_its_parent(self) -> None:
        def child() -> None:
            assert len(get_limiter().unasked) == 0

        check(RULE, "user:1")
        with processes() as children:
            children.append(started(child))
            assert ended(children) == [0]
        assert counts("user:1") == (0, 1)


PLANS = Rule.make("plans", {"free": "5/h", "all": None}, tier=lambda request: "free")


@pytest.mark.django_db
@pytest.mark.usefixtures("either_store")
def test_a_tier_without_a_limit_is_counted_and_settled_too() -> None:
    check(PLANS, "user:3", 3, tier="free")
    assert check(PLANS, "user:3", 900, tier="all")
    check_all([(PLANS.tiers["all"], "user:3", 50), (Rule.make("none", "0/d"), "user:3")])  # refused
    with reserve(PLANS, "user:3", 100, tier="all") as hold:
        hold.settle(40)
    reserve(PLANS, "user:3", 100, tier="all").cancel()
    flusher.flush()
    assert [day["plans"] for day in recent_usage("user:3").values()] == [Count(allowed=3, refused=0, units=943)]
    assert last_tiers("user:3", [PLANS]) == {"plans": "all"}
