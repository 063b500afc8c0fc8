"""A request under rules: in one store call, and in none while the store is left alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpRequest

from django_quota import Decision, Rule
from django_quota.adapters import adecide, decide
from django_quota.limiting.registry import get_limiter
from django_quota.testing import RedisServer
from tests.support.calls import get
from tests.support.outages import FAILURES, with_clock
from tests.support.steps import Clock
from tests.support.stores import caches


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
    def test_the_store_is_not_asked_where_all_rules_allow(
        self, kind: str, gone: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(get_limiter().store, "run", None)
        monkeypatch.setattr(get_limiter().store, "arun", None)
        decision = decided(kind, [rule(), rule("b", "allow")], get())
        assert (decision.allowed, decision.degraded, decision.rule, decision.outcomes) == (True, True, "a", ())

    @pytest.mark.parametrize("on_unavailable", ["deny", "local"])
    def test_a_rule_that_says_otherwise_is_decided_as_ever(self, kind: str, on_unavailable: str, gone: None) -> None:
        rules = [rule(), rule("b", on_unavailable)]
        decisions = [decided(kind, rules, get()) for _ in range(2)]
        assert [decision.allowed for decision in decisions] == [on_unavailable == "local", False]

    def test_a_rule_without_the_option_goes_by_the_setting(self, kind: str, gone: None, settings: Any) -> None:
        settings.QUOTA = {"ON_UNAVAILABLE": "deny"}
        assert not decided(kind, [rule()], get()).allowed

    def test_where_no_rule_holds_nothing_is_degraded(self, kind: str, gone: None, settings: Any) -> None:
        assert not decided(kind, [], get()).degraded
        settings.QUOTA = {"ENABLED": False}
        assert not decided(kind, [rule()], get()).degraded

    def test_another_limiter_is_none_of_its_business(self, kind: str, gone: None, settings: Any) -> None:
        settings.QUOTA = {"STORE": "memory"}
        assert [decided(kind, [rule()], get()).allowed for _ in range(2)] == [True, False]
