"""The verbs: rules, subjects and stores put together; what users type, and what they get.

What each algorithm admits, and when, is in tests/core; what happens while Redis does not answer, in test_outages.py.
"""

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
def test_the_verbs_on_a_real_redis(algorithm: Any, is_async: bool) -> None:
    def do(verb: Any, averb: Any, *cost: int) -> Any:
        found = (averb if is_async else verb)("3/m", SUBJECT, *cost, algorithm=algorithm)
        return asyncio.run(found) if is_async else found

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


@pytest.mark.usefixtures("memory_store")
def test_a_rule_goes_by_its_name_a_rate_by_what_it_means_and_a_subject_by_who_it_is(settings: Any) -> None:
    settings.QUOTA = {"STORE": "memory", "RULES": {"search": {"rate": "2/m", "algorithm": "token_bucket"}}}
    request = RequestFactory().get("/", REMOTE_ADDR="203.0.113.9")
    assert check("search", request).raise_if_refused().subject == SUBJECT
    request.user = User(pk=42)
    assert check("2/m", request, key="user").remaining == 1
    assert check("2 per minute", User(pk=42)).remaining == 0
    with pytest.raises(QuotaExceeded, match="admits 2 per minute") as caught:
        check("2/m", "user:42").raise_if_refused()
    assert caught.value.decision.subject == "user:42"
    assert bools([check("1/m", SUBJECT, name=name) for name in ("a", "b", "b")]) == [True, True, False]
    with pytest.raises(RateError, match=r"""^'serach' is not a rate: .* Nor is it a rule.*\. Did you mean 'search'"""):
        check("serach", SUBJECT)
    with pytest.raises(RuleError, match="has its own options"):
        check("search", SUBJECT, burst=3)
    for cost in (-1, 1.5, "1", True, 10**13):
        with pytest.raises(RuleError, match="whole number"):
            check("2/m", SUBJECT, cost)  # type: ignore[arg-type]
    with pytest.raises(RuleError, match="share one count"):  # else a shadow would swallow a rule that blocks
        decide(request, [Rule.make("x", "2/m", shadow=True), Rule.make("x", "2/m")])


def test_nothing_is_limited_where_quotas_are_switched_off(settings: Any) -> None:
    settings.QUOTA = {"ENABLED": False, "CACHE": "no such alias"}
    assert bools([check("1/m", SUBJECT) for _ in range(3)]) == [True] * 3


@pytest.mark.parametrize("is_async", [False, True])
def test_a_shadow_refusal_is_logged_by_a_check_and_not_by_a_peek(
    is_async: bool, memory_store: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_quota")
    for verb, averb, lines in ((peek, apeek, 0), (check, acheck, 1)):
        given: Any = ("0/m", SUBJECT, 1), {"name": "shade", "shadow": True}
        decision = asyncio.run(averb(*given[0], **given[1])) if is_async else verb(*given[0], **given[1])
        assert not decision.outcomes[0].allowed
        assert caplog.messages == [f"Shadow rule 'shade' would have refused {SUBJECT!r}."] * lines


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


@pytest.mark.parametrize("subject", ["user:1\nERROR forged", "path:/a\x1b[31m", "path:/\u2028b"])
def test_a_subject_never_breaks_a_line(subject: str, memory_store: None) -> None:
    decision = check("1/m", subject)
    assert decision.subject.isprintable()
    assert not check("1/m", subject)
