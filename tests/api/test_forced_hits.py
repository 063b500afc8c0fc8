"""A forced hit counts whether or not there is room: for work that is done already."""

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from django_quota import Decision, Rule, acheck, ban, check, peek
from django_quota.exceptions import RuleError
from django_quota.features.usage import Count, recent_usage
from django_quota.limiting.flusher import flusher
from django_quota.signals import near_limit, refused
from django_quota.testing import freeze
from tests.support.calls import both
from tests.support.counts import checks_of_today
from tests.support.outages import no_answer
from tests.support.overridden import override
from tests.support.steps import ALGORITHMS, SECOND, START

SUBJECT = "user:42"

pytestmark = pytest.mark.usefixtures("memory_store")


def force(rule: str | Rule, cost: int = 1, kind: str = "sync", **options: Any) -> Decision:
    found: Any = (check if kind == "sync" else acheck)(rule, SUBJECT, cost, force=True, **options)
    decision: Decision = found if kind == "sync" else asyncio.run(found)
    return decision


def counted(rule: str) -> Count | None:
    """Return what the day has counted."""
    flusher.flush()
    (found,) = [day.get(rule) for day in recent_usage(SUBJECT).values()] or [None]
    return found


@both
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_used_goes_above_the_limit_and_allowed_says_whether_there_was_room(algorithm: Any, kind: str) -> None:
    with freeze(START):
        found = [force("10/m", 4, kind, algorithm=algorithm) for _ in range(4)]
        assert [(each.allowed, each.used, each.remaining) for each in found] == [
            (True, 4, 6), (True, 8, 2), (False, 12, 0), (False, 16, 0),
        ]  # fmt: skip
        assert [each.enforced for each in found] == [False] * 4
        seen = peek("10/m", SUBJECT, algorithm=algorithm)
        assert (seen.allowed, seen.used, seen.outcomes[0].over) == (False, 16, 6)
        wait = peek("10/m", SUBJECT, 4, algorithm=algorithm).retry_after
        assert found[-1].retry_after == wait
        assert wait is not None
    with freeze(START + int(wait * SECOND) - 1):
        assert not check("10/m", SUBJECT, 4, algorithm=algorithm)
    with freeze(START + int(wait * SECOND)):
        assert check("10/m", SUBJECT, 4, algorithm=algorithm)


def test_the_day_and_the_share_of_the_limit_know_it_and_nobody_is_refused() -> None:
    told, refusals = Mock(), Mock()
    near_limit.connect(told)
    refused.connect(refusals)
    try:
        rule = Rule.make("export", "10/m", warn_at=1.0, ban={"after": "1/m", "for": "1h"})
        for _ in range(4):
            force(rule, 6)
    finally:
        near_limit.disconnect(told)
        refused.disconnect(refusals)
    assert [call.kwargs["share"] for call in told.call_args_list] == [1.0]
    assert not refusals.called
    assert counted("export") == Count(allowed=4, refused=0, units=24)
    assert checks_of_today()["export"] == (1, 3, 0)
    assert peek(rule, SUBJECT).outcomes[0].why == ""


def test_it_counts_while_a_ban_lasts_for_a_blocked_subject_and_once_for_an_exempt_one() -> None:
    rule = Rule.make("export", "10/m", ban={"after": "9/m", "for": "30s"})
    with freeze(START):
        ban(SUBJECT, rule, "30s")
        decision = force(rule, 4)
        assert (decision.allowed, decision.outcomes[0].why, decision.retry_after) == (False, "banned", 30.0)
    with freeze(START + 31 * SECOND):
        assert peek(rule, SUBJECT).used == 4
        for number, (how, used) in enumerate((("b", 8), ("x", 8)), start=2):
            override(f"{how} 0 0 ", "export", SUBJECT)
            assert force(rule, 4).allowed is (how == "x")
            override("", "export", SUBJECT)
            assert (peek(rule, SUBJECT).used, counted("export")) == (used, Count(number, 0, 4 * number))


@pytest.mark.parametrize("how", ["deny", "local"])
def test_an_outage_follows_the_rule(how: Any) -> None:
    with no_answer():
        found = [force("2/m", 2, on_unavailable=how) for _ in range(2)]
    assert [(each.allowed, each.degraded) for each in found] == [(how == "local", True), (False, True)]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: force(Rule.make("devices", "3/d", distinct="post:device"), value="a"), "force= is not for it"),
        (lambda: check("3/m", SUBJECT, 0, force=True), "takes nothing"),
    ],
)
def test_what_cannot_be_forced_is_an_error(act: Callable[[], Any], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        act()
