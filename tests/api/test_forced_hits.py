"""A forced hit counts whether or not there is room: for work that is done already."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

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


def force(rule: str | Rule, cost: int = 1, kind: str = "sync", subject: str = SUBJECT, **options: Any) -> Decision:
    if kind == "async":
        return asyncio.run(acheck(rule, subject, cost, force=True, **options))
    return check(rule, subject, cost, force=True, **options)


def counted(rule: str) -> Count | None:
    """Return what the day has counted."""
    flusher.flush()
    ((found),) = [day.get(rule) for day in recent_usage(SUBJECT).values()] or [None]
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
    told: list[float] = []
    refusals: list[str] = []

    def hear(share: float, **_: Any) -> None:
        told.append(share)

    def hear_refused(subject: str, **_: Any) -> None:
        refusals.append(subject)

    near_limit.connect(hear)
    refused.connect(hear_refused)
    try:
        rule = Rule.make("export", "10/m", warn_at=1.0, ban={"after": "1/m", "for": "1h"})
        for _ in range(4):
            force(rule, 6)
    finally:
        near_limit.disconnect(hear)
        refused.disconnect(hear_refused)
    assert (told, refusals) == ([1.0], [])
    assert counted("export") == Count(allowed=4, refused=0, units=24)
    assert checks_of_today()["export"] == (1, 3, 0)
    assert peek(rule, SUBJECT).outcomes[0].why == ""


def test_it_counts_while_a_ban_lasts() -> None:
    rule = Rule.make("export", "10/m", ban={"after": "9/m", "for": "30s"})
    with freeze(START):
        ban(SUBJECT, rule, "30s")
        decision = force(rule, 4)
        assert (decision.allowed, decision.outcomes[0].why, decision.retry_after) == (False, "banned", 30.0)
    with freeze(START + 31 * SECOND):
        assert peek(rule, SUBJECT).used == 4
        assert counted("export") == Count(allowed=1, refused=0, units=4)


def test_it_counts_for_a_blocked_subject_and_once_for_an_exempt_one() -> None:
    rule = Rule.make("export", "10/m")
    override("b 0 0 ", "export", SUBJECT)
    assert (force(rule, 4).allowed, counted("export")) == (False, Count(allowed=1, refused=0, units=4))
    override("x 0 0 ", "export", SUBJECT)
    assert (force(rule, 4).allowed, counted("export")) == (True, Count(allowed=2, refused=0, units=8))
    override("", "export", SUBJECT)
    assert peek(rule, SUBJECT).used == 4


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
