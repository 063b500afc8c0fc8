"""The verbs: rules, subjects and stores put together; what users type, and what they get.

What each algorithm admits, and when, is in tests/core; what happens while Redis does not answer, in test_outages.py.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.test import RequestFactory

from django_quota import Decision, Rule, acheck, apeek, arefund, areset, check, peek, refund, reserve, reset
from django_quota.adapters import decide
from django_quota.exceptions import QuotaExceeded, RateError, RuleError
from django_quota.testing import freeze
from tests.support.calls import calls_of
from tests.support.steps import ALGORITHMS, SECOND, START

SUBJECT = "ip:203.0.113.9"
REDIS = pytest.mark.usefixtures("redis_cache")


def bools(decisions: list[Decision]) -> list[bool]:
    return [bool(decision) for decision in decisions]


@REDIS
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_verbs_on_a_real_redis(algorithm: str, is_async: bool) -> None:
    def do(verb: Any, averb: Any, *cost: int) -> Any:
        options = {"algorithm": algorithm}
        return (
            asyncio.run(averb("3/m", SUBJECT, *cost, **options)) if is_async else verb("3/m", SUBJECT, *cost, **options)
        )

    assert do(peek, apeek).remaining == 3
    assert bools([do(check, acheck) for _ in range(4)]) == [True, True, True, False]
    assert do(refund, arefund, 2).remaining == (0 if algorithm == "leaky_bucket" else 2)
    assert do(peek, apeek, 3).allowed is False
    assert [do(reset, areset), do(reset, areset)] == [True, False]
    assert do(peek, apeek).remaining == 3


@pytest.mark.usefixtures("memory_store")
def test_a_counted_refusal_counts_for_exactly_one_window() -> None:
    for second in (0, 7, 14, 21):
        with freeze(START + second * SECOND + 12_345):
            decision = check("3/m", SUBJECT, count_refused=True)
    assert (decision.allowed, decision.retry_after) == (False, 46.0)  # the hit of second 7 makes room at second 67
    assert decision.outcomes[0].reset_after == 60.0
    with freeze(START + 67 * SECOND + 12_344):
        assert not peek("3/m", SUBJECT, count_refused=True)
    with freeze(START + 67 * SECOND + 12_345):
        assert peek("3/m", SUBJECT, count_refused=True).remaining == 1
    with freeze(START + 81 * SECOND + 12_345):
        assert peek("3/m", SUBJECT, count_refused=True).remaining == 3


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_left_is_never_below_zero(algorithm: str) -> None:
    options: dict[str, Any] = {"algorithm": algorithm}
    with freeze(START):
        reserve("10/h", SUBJECT, 1, name="rule", **options).settle(25)
        decisions = [verb("4/h", SUBJECT, name="rule", **options) for verb in (peek, check, refund)]
    assert [each.remaining for each in decisions] == [0, 0, 0]


@REDIS
def test_a_peek_and_a_refusal_write_nothing_without_events(raw: redis.Redis, settings: Any) -> None:
    settings.QUOTA = {"EVENTS": 0}
    check("1/m", SUBJECT)
    before = {key: raw.dump(key) for key in raw.scan_iter()}
    for _ in range(5):
        assert not check("1/m", SUBJECT)
        assert not peek("1/m", SUBJECT)
    assert {key: raw.dump(key) for key in raw.scan_iter()} == before


@REDIS
def test_a_calendar_limit_is_asked_again_where_our_clock_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    yesterday = START - 3 * 86_400 * SECOND
    monkeypatch.setattr("django_quota.core.clock.time.time_ns", lambda: yesterday * 1_000)
    asked = calls_of(monkeypatch)
    assert bools([check("2/d", SUBJECT, algorithm="calendar") for _ in range(3)]) == [True, True, False]
    assert len(asked) == 4  # the first was asked twice, and taught us how far off we are


def test_a_user_is_a_subject_and_so_is_a_request(memory_store: None) -> None:
    request = RequestFactory().get("/", REMOTE_ADDR="203.0.113.9")
    assert check("2/m", User(pk=42)).subject == "user:42"
    assert check("2/m", request).subject == SUBJECT
    request.user = User(pk=42)
    assert check("2/m", request, key="user").subject == "user:42"


@pytest.mark.parametrize("cost", [-1, 1.5, "1", True, 10**13])
def test_a_cost_is_a_whole_number(cost: Any, memory_store: None) -> None:
    with pytest.raises(RuleError, match="whole number"):
        check("2/m", SUBJECT, cost)


def test_a_rate_in_another_spelling_is_the_same_rule_and_a_name_parts_its_callers(memory_store: None) -> None:
    check("2/m", SUBJECT)
    assert check("2 per minute", SUBJECT).remaining == 0
    decisions = [check("1/m", SUBJECT, name=name) for name in ("search", "login", "login")]
    assert bools(decisions) == [True, True, False]


def test_a_rule_of_the_settings_goes_by_its_name(memory_store: None, settings: Any) -> None:
    settings.QUOTA = {"STORE": "memory", "RULES": {"search": {"rate": "2/m", "algorithm": "token_bucket"}}}
    assert check("search", SUBJECT).rule == "search"
    with pytest.raises(RateError, match=r"""^'serach' is not a rate: .* Nor is it a rule.*\. Did you mean 'search'"""):
        check("serach", SUBJECT)
    with pytest.raises(RuleError, match="has its own options"):
        check("search", SUBJECT, burst=3)


def test_nothing_is_limited_where_quotas_are_switched_off(settings: Any) -> None:
    settings.QUOTA = {"ENABLED": False, "CACHE": "no such alias"}
    assert bools([check("1/m", SUBJECT) for _ in range(3)]) == [True] * 3


def test_a_refusal_can_be_raised(memory_store: None) -> None:
    assert check("1/m", SUBJECT).raise_if_refused().remaining == 0
    with pytest.raises(QuotaExceeded, match="admits 1 per minute") as caught:
        check("1/m", SUBJECT).raise_if_refused()
    assert caught.value.decision.subject == SUBJECT


def test_a_shadow_refusal_is_logged_by_a_check_and_not_by_a_peek(
    memory_store: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_quota")
    assert not peek("0/m", SUBJECT, name="shade", shadow=True).outcomes[0].allowed
    assert not asyncio.run(apeek("0/m", SUBJECT, name="shade", shadow=True)).outcomes[0].allowed
    assert caplog.messages == []
    check("0/m", SUBJECT, name="shade", shadow=True)
    asyncio.run(acheck("0/m", SUBJECT, name="shade", shadow=True))
    assert caplog.messages == [f"Shadow rule 'shade' would have refused {SUBJECT!r}."] * 2


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("aside", [{"shadow": True}, {"block": False}])
def test_refused_hits_count_only_where_the_rule_itself_refused_them(aside: dict[str, Any]) -> None:
    watched = Rule.make("watched", "5/m", key="ip", count_refused=True, **aside)
    closed = Rule.make("closed", "0/m", key="ip")
    with freeze(START):
        assert not decide(RequestFactory().get("/"), [watched, closed])
        assert peek(watched, "ip:127.0.0.1").remaining == 5
        check(watched, "ip:127.0.0.1", 4)
        check(watched, "ip:127.0.0.1", 4)  # which it refuses, and counts
        assert peek(watched, "ip:127.0.0.1").remaining == 0


def test_a_blocking_rule_is_not_swallowed_by_a_shadow_of_its_name(memory_store: None) -> None:
    rules = [Rule.make("x", "2/m", shadow=True), Rule.make("x", "2/m")]
    with pytest.raises(RuleError, match="share one count"):
        decide(RequestFactory().get("/"), rules)


@pytest.mark.parametrize("subject", ["user:1\nERROR forged", "path:/a\x1b[31m", "path:/\u2028b"])
def test_a_subject_never_breaks_a_line(subject: str, memory_store: None) -> None:
    decision = check("1/m", subject)
    assert decision.subject.isprintable()
    assert not check("1/m", subject)
