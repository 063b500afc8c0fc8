"""A request under rules: in one store call, and in none while the store is left alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpRequest

from django_quota import Decision, Rule
from django_quota.adapters import adecide, decide
from django_quota.exceptions import ConfigurationError
from django_quota.testing import RedisServer
from tests.support.calls import get
from tests.support.outages import FAILURES, with_clock
from tests.support.steps import Clock
from tests.support.stores import caches

NOBODY: Any = {"REMOTE_ADDR": ""}
"""A request that has no subject: looking for one is an error."""


def decided(kind: str, rules: list[Rule], request: HttpRequest) -> Decision:
    if kind == "sync":
        return decide(request, rules)
    return asyncio.run(adecide(request, rules))


def rule(name: str = "a", on_unavailable: Any = None, rate: str = "1/m") -> Rule:
    return Rule.make(name, rate, on_unavailable=on_unavailable)


@pytest.fixture
def gone(settings: Any, tmp_path: Path, clock: Clock) -> None:
    """Redis is gone, and is known to be."""
    settings.CACHES = caches(RedisServer(f"unix://{tmp_path}/gone.sock", 0, tmp_path))
    with_clock(clock)
    for _ in range(FAILURES):
        decide(get(), [rule()])


@pytest.mark.parametrize("kind", ["sync", "async"])
class TestWhileRedisIsLeftAlone:
    def test_nothing_of_a_request_is_looked_at_where_all_rules_allow(self, kind: str, gone: None) -> None:
        decision = decided(kind, [rule(), rule("b", "allow")], get(**NOBODY))
        assert (decision.allowed, decision.degraded, decision.rule, decision.subject) == (True, True, "a", "")
        assert decision.outcomes == ()

    @pytest.mark.parametrize("on_unavailable", ["deny", "local"])
    def test_a_rule_that_says_otherwise_is_decided_as_ever(self, kind: str, on_unavailable: str, gone: None) -> None:
        rules = [rule(), rule("b", on_unavailable)]
        with pytest.raises(ConfigurationError):
            decided(kind, rules, get(**NOBODY))
        decisions = [decided(kind, rules, get()) for _ in range(2)]
        assert [decision.allowed for decision in decisions] == [on_unavailable == "local", False]

    def test_a_rule_without_the_option_goes_by_the_setting(self, kind: str, gone: None, settings: Any) -> None:
        settings.QUOTA = {"ON_UNAVAILABLE": "deny"}
        assert not decided(kind, [rule()], get()).allowed

    def test_after_the_pause_a_request_is_decided_as_ever(self, kind: str, gone: None, clock: Clock) -> None:
        clock.now += 1
        with pytest.raises(ConfigurationError):
            decided(kind, [rule()], get(**NOBODY))

    def test_where_no_rule_holds_nothing_is_degraded(self, kind: str, gone: None) -> None:
        assert not decided(kind, [], get()).degraded

    def test_where_quota_is_off_nothing_is_degraded(self, kind: str, gone: None, settings: Any) -> None:
        settings.QUOTA = {"ENABLED": False}
        assert not decided(kind, [rule()], get()).degraded

    def test_another_limiter_is_none_of_its_business(self, kind: str, gone: None, settings: Any) -> None:
        settings.QUOTA = {"STORE": "memory"}
        assert [decided(kind, [rule()], get()).allowed for _ in range(2)] == [True, False]
