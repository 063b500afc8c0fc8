"""Rates by tier: the request decides which rates of a rule apply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import isawaitable
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse
from django.test import override_settings

from django_quota import Rule, acheck, check, peek, quota
from django_quota.exceptions import RateError, RuleError
from tests.support.calls import calls_of, get, run
from tests.support.published import override

TWO = {"anonymous": "1/m", "authenticated": "3/m"}
THREE = {**TWO, "pro": ["5/m", "100/h"], "staff": None}


def user(pk: int = 7, **attributes: Any) -> Any:
    return User(pk=pk, username="ann", **attributes)


def asked_by(somebody: Any = None, **meta: Any) -> Any:
    request = get(**meta)
    request.user = somebody or AnonymousUser()
    return request


def by_header(request: HttpRequest) -> str | None:
    return request.headers.get("X-Tier")


async def by_header_async(request: HttpRequest) -> str | None:
    return request.headers.get("X-Tier")


class TestReading:
    def test_each_tier_is_a_rule_of_the_same_name_with_rates_of_its_own(self) -> None:
        rule = Rule.make("api", THREE, tier=by_header, key="user")
        assert {name: [str(rate) for rate in tier.rates] for name, tier in rule.tiers.items()} == {
            "anonymous": ["1/m"], "authenticated": ["3/m"], "pro": ["5/m", "100/h"], "staff": [],
        }  # fmt: skip
        assert {tier.name for tier in rule.tiers.values()} == {"api"}
        assert {tier.key for tier in rule.tiers.values()} == {"user"}
        assert (rule.dynamic, rule.limits) == (True, ())
        assert not any(tier.dynamic for tier in rule.tiers.values())

    def test_str_lists_the_rates_of_each_tier(self) -> None:
        (rates,) = Rule.make("api", {**TWO, "staff": None}, tier=by_header).rates
        assert str(rates) == "1/m for anonymous, 3/m for authenticated, unlimited for staff"

    def test_renaming_a_rule_renames_its_tiers(self) -> None:
        assert Rule.make("api", TWO).renamed("other").tiers["anonymous"].name == "other"

    def test_an_override_replaces_the_rates_of_all_tiers(self) -> None:
        rule = Rule.make("api", THREE, tier=by_header).with_rates("9/m")
        assert ([str(rate) for rate in rule.rates], rule.tiers, rule.dynamic) == (["9/m"], {}, False)

    @pytest.mark.parametrize(
        ("rates", "options", "says"),
        [
            (({},), {}, "{} is not a rate: it names no tier"), (({"": "1/m"},), {}, "'' is not the name of a tier"),
            (({5: "1/m"},), {}, "5 is not the name"),
            (({"anonymous": "1/m"},), {}, "no rate for the tier 'authenticated'"),
            (({**TWO, "pro": "9/m"},), {}, "No tier= says who is in tier 'pro'"),
            (({"anonymus": "1/m", "authenticated": "1/m"},), {}, "Did you mean 'anonymous'"),
            ((TWO, "5/h"), {}, "cannot be combined with other rates"),
            (("5/h",), {"tier": by_header}, "tier= needs rates by tier"),
            (({**TWO, "pro": "9/m"},), {"tier": "pro"}, "tier='pro' is neither a function"),
            (({**TWO, "anonymous": {"x": "1/m"}},), {}, "The rate of tier 'anonymous'"),
        ],
    )  # fmt: skip
    def test_wrong_tiers_are_refused(self, rates: tuple[Any, ...], options: dict[str, Any], says: str) -> None:
        with pytest.raises(RuleError, match=says.replace("(", r"\(")):
            Rule.make("api", *rates, **options)

    def test_a_wrong_rate_names_its_tier(self) -> None:
        with pytest.raises(RateError, match="for tier 'authenticated'"):
            Rule.make("api", {"anonymous": "1/m", "authenticated": "5/mx"})

    def test_a_tier_takes_only_rates_that_the_algorithm_takes(self) -> None:
        with pytest.raises(RuleError):
            Rule.make("api", {"anonymous": "1/m", "authenticated": "1/month"})


def made(kind: str) -> Callable[[Any], Any]:
    def view(request: Any) -> HttpResponse:
        return HttpResponse()

    async def view_async(request: Any) -> HttpResponse:
        return view(request)

    return view if kind == "sync" else view_async


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("kind", ["sync", "async"])
class TestViews:
    def test_a_visitor_has_the_anonymous_rate_by_ip_and_a_user_their_own(self, kind: str) -> None:
        view = quota(TWO, key="user")(made(kind))
        assert [run(view, asked_by()).status_code for _ in range(2)] == [200, 429]
        assert [run(view, asked_by(user())).status_code for _ in range(4)] == [200, 200, 200, 429]

    def test_a_request_without_a_user_is_anonymous(self, kind: str) -> None:
        view = quota(TWO, key="ip")(made(kind))
        assert [run(view, get()).status_code for _ in range(2)] == [200, 429]

    def test_a_function_returns_the_tier_or_none_for_the_default_one(self, kind: str) -> None:
        view = quota(THREE, key="ip", tier=by_header)(made(kind))
        assert run(view, asked_by(HTTP_X_TIER="pro")).headers["RateLimit-Policy"] == (
            f'"{policy(view)}-m";q=5;w=60, "{policy(view)}-h";q=100;w=3600'
        )
        assert "q=3" in run(view, asked_by(user())).headers["RateLimit-Policy"]
        assert "RateLimit-Policy" not in run(view, asked_by(HTTP_X_TIER="staff")).headers

    def test_an_unknown_tier_gets_the_default_rate_and_is_logged_once(
        self, kind: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        view = quota(THREE, key="ip", tier=by_header, name=f"logged by a {kind} view")(made(kind))
        assert "q=1" in run(view, asked_by(HTTP_X_TIER="prp")).headers["RateLimit-Policy"]
        assert "q=3" in run(view, asked_by(user(), HTTP_X_TIER="prp")).headers["RateLimit-Policy"]
        assert "q=3" in run(view, asked_by(user(), HTTP_X_TIER="prp")).headers["RateLimit-Policy"]
        assert caplog.text.count("has no rate for the tier 'prp'. Did you mean 'pro'? It is treated as") == 2

    @pytest.mark.parametrize("tier", [["pro"], 5, {"a": 1}, b"pro"])
    def test_a_tier_that_is_no_text_gets_the_default_rate(self, kind: str, tier: Any) -> None:
        view = quota(THREE, key="ip", tier=lambda request: tier)(made(kind))
        assert "q=1" in run(view, asked_by()).headers["RateLimit-Policy"]

    def test_an_unknown_tier_without_a_default_is_an_error_with_the_nearest_name(self, kind: str) -> None:
        view = quota({"free": "1/m", "pro": "5/m"}, key="ip", tier=by_header)(made(kind))
        with pytest.raises(RuleError, match=r"no rate for the tier 'prp'. Did you mean 'pro'"):
            run(view, asked_by(HTTP_X_TIER="prp"))

    def test_a_change_of_tier_keeps_the_count(self, kind: str) -> None:
        view = quota({**TWO, "pro": "5/m"}, key="ip", tier=by_header)(made(kind))
        replies = [run(view, asked_by(HTTP_X_TIER="pro")) for _ in range(4)]
        assert [reply.status_code for reply in replies] == [200] * 4
        assert run(view, asked_by()).status_code == 429


def policy(view: Any) -> str:
    return str(view.__name__)


class TestAsyncFunctions:
    @pytest.mark.usefixtures("memory_store")
    def test_an_async_tier_is_awaited(self) -> None:
        view = quota(THREE, key="ip", tier=by_header_async)(made("async"))
        assert "q=5" in run(view, asked_by(HTTP_X_TIER="pro")).headers["RateLimit-Policy"]

    def test_an_async_tier_on_a_sync_view_is_refused_at_import(self) -> None:
        with pytest.raises(RuleError, match=r"tier=.*by_header_async is async, but the view is not"):
            quota(THREE, key="ip", tier=by_header_async)(made("sync"))


@pytest.mark.usefixtures("memory_store")
class TestChecks:
    def test_check_takes_the_tier_from_the_subject(self) -> None:
        assert peek(TWO, "user:7", name="api").limit == 3  # type: ignore[arg-type]
        assert peek(TWO, user(), name="api").limit == 3  # type: ignore[arg-type]
        assert peek(TWO, "ip:192.0.2.1", name="api").limit == 1  # type: ignore[arg-type]

    def test_check_with_a_tier_function_needs_the_request(self) -> None:
        with override_settings(QUOTA={"STORE": "memory", "RULES": {"api": {"rate": THREE, "tier": by_header}}}):
            assert check("api", asked_by(HTTP_X_TIER="pro")).limit == 5
            with pytest.raises(RuleError, match="pass the request"):
                check("api", "user:7")

    def test_acheck_calls_the_tier_function(self) -> None:
        with override_settings(QUOTA={"STORE": "memory", "RULES": {"api": {"rate": THREE, "tier": by_header_async}}}):
            assert asyncio.run(waited(acheck("api", asked_by(HTTP_X_TIER="pro")))).limit == 5


async def waited(value: Any) -> Any:
    return await value if isawaitable(value) else value


@pytest.mark.usefixtures("either_store")
class TestOverrides:
    RULES = SimpleNamespace(api={"rate": TWO, "key": "user"})

    def test_an_override_applies_to_every_tier_and_a_known_one_costs_no_call(
        self, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"api": self.RULES.api}}
        override("r 0 0 9/m", "api", "user:7")
        assert check("api", asked_by(user())).limit == 9
        calls = calls_of(monkeypatch)
        assert check("api", asked_by(user())).limit == 9
        assert calls == [1]
        assert check("api", asked_by(user(8))).limit == 3
