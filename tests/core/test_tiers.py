"""Rates by tier: the request decides which rates of a rule apply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_quota import (
    Rule,
    acheck,
    acquire,
    apeek,
    check,
    check_all,
    peek,
    quota,
    refund,
    reserve,
    reserve_all,
    reset,
)
from django_quota.exceptions import RuleError
from tests.support.calls import always, calls_of, get, run
from tests.support.overridden import override

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
        assert run(view, get()).status_code == 429, "a request without a user is anonymous"

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
        assert caplog.text.count("has no tier 'prp'. Did you mean 'pro'? It is treated as") == 2
        for tier in (["pro"], 5, {"a": 1}, b"pro"):  # no text
            view = quota(THREE, key="ip", tier=always(tier))(made(kind))
            assert "q=1" in run(view, asked_by()).headers["RateLimit-Policy"]

    def test_an_unknown_tier_without_a_default_is_an_error_with_the_nearest_name(self, kind: str) -> None:
        view = quota({"free": "1/m", "pro": "5/m"}, key="ip", tier=by_header)(made(kind))
        with pytest.raises(RuleError, match=r"has no tier 'prp'. Did you mean 'pro'"):
            run(view, asked_by(HTTP_X_TIER="prp"))

    def test_a_change_of_tier_keeps_the_count(self, kind: str) -> None:
        view = quota({**TWO, "pro": "5/m"}, key="ip", tier=by_header)(made(kind))
        replies = [run(view, asked_by(HTTP_X_TIER="pro")) for _ in range(4)]
        assert [reply.status_code for reply in replies] == [200] * 4
        assert run(view, asked_by()).status_code == 429


def policy(view: Any) -> str:
    return str(view.__name__)


@pytest.mark.usefixtures("memory_store")
def test_an_async_tier_is_awaited_and_on_a_sync_view_it_is_refused_at_import() -> None:
    limited = quota(THREE, key="ip", tier=by_header_async)
    assert "q=5" in run(limited(made("async")), asked_by(HTTP_X_TIER="pro")).headers["RateLimit-Policy"]
    with pytest.raises(RuleError, match=r"tier=.*by_header_async is async, but the view is not"):
        limited(made("sync"))


@pytest.mark.usefixtures("memory_store")
class TestChecks:
    @pytest.mark.parametrize(("subject", "limit"), [("user:7", 3), (user(), 3), ("ip:192.0.2.1", 1)])
    def test_check_takes_the_tier_from_the_subject(self, subject: Any, limit: int) -> None:
        two: Any = TWO
        assert peek(two, subject, name="api").limit == limit

    def test_a_tier_function_needs_the_request(self, settings: Any) -> None:
        rules = {"sync": {"rate": THREE, "tier": by_header}, "async": {"rate": THREE, "tier": by_header_async}}
        settings.QUOTA = {"STORE": "memory", "RULES": rules}
        assert check("sync", asked_by(HTTP_X_TIER="pro")).limit == 5
        assert asyncio.run(acheck("async", asked_by(HTTP_X_TIER="pro"))).limit == 5
        with pytest.raises(RuleError, match="pass the request"):
            check("sync", "user:7")


@pytest.mark.usefixtures("either_store")
def test_an_override_applies_to_every_tier_in_one_call(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"api": {"rate": TWO, "key": "user"}}}
    override("r 0 0 9/m", "api", "user:7")
    assert check("api", asked_by(user())).limit == 9
    calls = calls_of(monkeypatch)
    assert check("api", asked_by(user())).limit == 9
    assert calls == [1]
    assert check("api", asked_by(user(8))).limit == 3


@pytest.mark.usefixtures("either_store")
class TestInCalls:
    """A call names the tier, so no request is needed."""

    RULE = Rule.make("api", {"free": "2/m", "team": "5/m; 9/h", "staff": None}, tier=by_header)

    def test_the_named_tier_decides_and_all_tiers_share_the_count(self) -> None:
        assert [check(self.RULE, "org:7", tier="free").allowed for _ in range(3)] == [True, True, False]
        assert check(self.RULE, "org:7", 2, tier="team").remaining == 1
        assert peek(self.RULE, "org:7", tier="team").used == 4
        assert refund(self.RULE, "org:7", 1, tier="team").remaining == 2
        assert acquire(self.RULE, "org:7", tier="team", timeout=0).remaining == 1
        with reserve(self.RULE, "org:7", 1, tier="team") as hold:
            assert hold.settle(0).remaining == 1
        assert peek(self.RULE, "org:7", tier="staff").limit is None
        assert reset(self.RULE, "org:7", tier="free")
        assert asyncio.run(apeek(self.RULE, "org:7", tier="team")).remaining == 5

    def test_it_takes_precedence_over_the_tier_of_a_request(self) -> None:
        request = RequestFactory().get("/", headers={"X-Tier": "free"})
        assert check(self.RULE, request, tier="team").limit == 5
        assert check(self.RULE, request).limit == 2

    def test_an_entry_names_it_after_the_cost(self) -> None:
        decision = check_all([(self.RULE, "org:7", None, "team"), (self.RULE, "org:8", 2, "free")])
        assert [(each.cost, each.remaining) for each in decision.outcomes] == [(1, 4), (1, 8), (2, 0)]
        with reserve_all([(self.RULE, "org:7", 3, "team")]) as hold:
            assert hold.cost == 3

    @pytest.mark.parametrize("tier", ["", "temas", "Team"])
    def test_an_unknown_tier_is_an_error_with_those_that_there_are(self, tier: str) -> None:
        says = rf"^Rule 'api' has no tier '{tier}'\. Known: 'free', 'team', 'staff'\."
        for call in (check, peek, reserve, refund, reset):
            with pytest.raises(RuleError, match=says):
                call(self.RULE, "org:7", tier=tier)
        with pytest.raises(RuleError, match=says):
            check_all([(self.RULE, "org:7", 1, tier)])

    def test_a_rule_without_tiers_and_one_that_needs_a_tier_say_so(self) -> None:
        with pytest.raises(RuleError, match=r"^Rule '1/m' has no tier 'team'\. It has no tiers\."):
            check("1/m", "org:7", tier="team")
        with pytest.raises(RuleError, match=r"pass the request as subject, or tier=\. Known: 'free', 'team', 'staff'"):
            check(self.RULE, "org:7")
