"""The functions for integrations: they decide and answer as the decorators and the middleware do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import path

from django_quota import Decision, Rule, acheck, check, peek, quota, refund, reserve, slot
from django_quota.adapters import (
    RequestSlot,
    adecide,
    apply_decision,
    arefusal,
    client_ip,
    decide,
    refusal,
    set_body_parser,
)
from django_quota.exceptions import ConfigurationError, QuotaExceeded, RuleError
from django_quota.metrics import observe, unobserve
from django_quota.testing import freeze
from tests.support.calls import both, calls_of, fetch
from tests.support.outages import no_answer
from tests.support.steps import START

IP = "ip:127.0.0.1"


def request_by(method: str = "get", **given: Any) -> HttpRequest:
    request: HttpRequest = getattr(RequestFactory(), method)("/", **given)
    return request


@pytest.mark.usefixtures("memory_store")
def test_a_json_body_that_somebody_else_has_parsed_is_taken() -> None:
    rule = Rule.make("by-phone", "9/m", key="json:phone")
    one, other, none = (request_by("post", data="broken", content_type="application/json") for _ in range(3))
    set_body_parser(one, lambda: {"phone": "1"})
    set_body_parser(other, lambda: {"phone": 1})
    set_body_parser(none, lambda: [{"phone": "1"}])
    subjects = [decide(each, rule).subject for each in (one, other, none)]
    assert subjects[0] == subjects[1]
    assert subjects[2] == IP


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("shadow", [True, False])
def test_a_body_that_cannot_be_parsed_is_the_error_of_rules_that_refuse(shadow: bool) -> None:
    def fail() -> Any:
        raise UnicodeError("a framework's own error")

    request = request_by("post", data="broken", content_type="application/json")
    set_body_parser(request, fail)
    rule = Rule.make("by-phone", "9/m", key="json:phone", shadow=shadow)
    with nullcontext() if shadow else pytest.raises(UnicodeError):
        assert decide(request, rule).outcomes == ()


@pytest.mark.usefixtures("either_store")
class TestDecide:
    def test_names_rates_and_rules_are_decided_in_one_call(
        self, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"search": "5/m"}}
        rules: list[str | Rule] = ["search", "9/h", Rule.make("own", "7/d", key="header:X-Key")]
        request = request_by(headers={"X-Key": "k"})
        decide(request, rules)  # makes the limiter
        calls = calls_of(monkeypatch)
        decision = decide(request, rules)
        assert len(calls) == 1
        assert [outcome.remaining for outcome in decision.outcomes] == [3, 7, 5]
        decision = asyncio.run(adecide(request, rules))
        assert [outcome.remaining for outcome in decision.outcomes] == [2, 6, 4]
        assert peek("search", IP).remaining == 2

    def test_methods_skip_and_exempt_apply_as_on_a_view(self) -> None:
        rules = [
            Rule.make("posts", "0/m", methods=["POST"]),
            Rule.make("skipped", "0/m", skip=lambda request: True),
            Rule.make("exempt", "0/m", exempt="127.0.0.0/8"),
        ]
        assert decide(request_by(), rules).outcomes == decide(request_by(), []).outcomes == ()
        assert not decide(request_by("post"), rules)
        assert decide(request_by(), "3/m").remaining == 2

    def test_a_pair_names_its_subject_and_goes_in_the_same_call(
        self, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"search": {"rate": "5/m", "key": "path"}}}
        decide(request_by(), "9/h")  # makes the limiter
        calls = calls_of(monkeypatch)
        decision = decide(request_by(), ["9/h", ("search", "user:42"), ("3/m", "ip:2001:db8::1")])
        assert len(calls) == 1
        found = [(outcome.subject, outcome.remaining) for outcome in decision.outcomes]
        assert found == [(IP, 7), ("user:42", 4), ("ip:2001:db8::/64", 2)]
        assert not asyncio.run(adecide(request_by(), [("0/m", "user:42")]))
        with pytest.raises(RuleError, match="pass the request"):
            decide(request_by(), [(Rule.make("own", lambda request: "5/m"), "user:42")])

    def test_a_request_that_wraps_djangos_is_seen_through(self) -> None:
        wrapped = SimpleNamespace(_request=request_by())
        decision = apply_decision(wrapped, decide(wrapped, "0/m"))
        assert wrapped._request.quota is decision
        assert refusal(wrapped, decision).status_code == 429
        assert client_ip(wrapped) == "127.0.0.1"

    def test_what_is_no_request_or_no_rule_is_named(self) -> None:
        with pytest.raises(RuleError, match=r"'ip:1.2.3.4' is not a request of Django.*check_all"):
            decide("ip:1.2.3.4", "10/m")
        with pytest.raises(RuleError, match="serach"):
            decide(request_by(), "serach")


@pytest.mark.usefixtures("memory_store")
class TestAnswers:
    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_refusal_is_that_of_the_decorator(self, is_async: bool) -> None:
        rule = Rule.make("tests.full", "0/m")
        view: Any = quota(rule=rule)(lambda request: HttpResponse())
        with freeze(START):
            expected = view(request_by())
            request = request_by()
            decision = apply_decision(request, decide(request, [rule]))
            found = asyncio.run(arefusal(request, decision)) if is_async else refusal(request, decision)
        assert (found.status_code, found.content, found.headers) == (429, expected.content, expected.headers)


def decided_again(request: HttpRequest) -> HttpResponse:
    decision = apply_decision(request, decide(request, ["everywhere", "8/m"]))
    return HttpResponse(f"{len(decision.outcomes)}")


async def adecided_again(request: HttpRequest) -> HttpResponse:
    decision = apply_decision(request, await adecide(request, ["everywhere", "8/m"]))
    return HttpResponse(f"{len(decision.outcomes)}")


urlpatterns = [path("sync/", decided_again), path("async/", adecided_again)]


@both
@pytest.mark.urls(__name__)
@pytest.mark.usefixtures("either_store")
def test_a_rule_that_was_decided_before_is_not_counted_twice(kind: str, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"everywhere": {"rate": "5/m", "match": "/"}}}
    (response,) = fetch(kind, f"/{kind}/")  # the middleware has decided it
    assert response.content == b"2"
    assert '"everywhere"' in response.headers["RateLimit"]
    assert peek("everywhere", IP).remaining == 4
    request = request_by()
    assert decide(request, "everywhere").remaining == 3
    assert (
        asyncio.run(adecide(request, "everywhere")) if kind == "async" else decide(request, "everywhere")
    ).outcomes == ()


@pytest.fixture
def heard() -> Iterator[list[Decision]]:
    found: list[Decision] = []
    observe(found.append)
    yield found
    unobserve(found.append)


@pytest.mark.usefixtures("memory_store")
class TestRequestSlot:
    def test_it_is_held_until_the_block_ends(self) -> None:
        at_once, request = RequestSlot("sockets", 1, key="ip"), RequestFactory().get("/")

        async def ask() -> None:
            holding, _ = await at_once.aenter(request)
            async with holding:
                assert (await at_once.aenter(request))[1] is not None

        for _ in range(2):
            holding, refused = at_once.enter(request)
            assert refused is None
            with holding:
                _, refused = at_once.enter(request)
                assert refused is not None
                assert refused.status_code == 429
            asyncio.run(ask())


class TestObservers:
    @pytest.mark.usefixtures("either_store")
    def test_checks_requests_reservations_and_slots_are_heard(self, heard: list[Decision]) -> None:
        made = [check("1/m", "user:1"), asyncio.run(acheck("1/m", "user:1")), decide(request_by(), "2/m")]
        with reserve("5/m", "user:1", 3) as hold:
            made.append(hold.decision)
        with pytest.raises(QuotaExceeded):
            reserve("5/m", "user:1", 3)
        with slot("export", 1):
            pass
        assert heard[:4] == made
        assert [decision.allowed for decision in heard] == [True, False, True, True, False, True]
        heard.clear()
        peek("1/m", "user:1")
        refund("1/m", "user:1")
        check(Rule.make("free", None), "user:1")
        decide(request_by(), [Rule.make("posts", "1/m", methods=["POST"])])
        assert heard == []
        for _ in range(3):  # from memory, too
            check("1/m", "user:2", cache_refusals=9)
        with no_answer():
            check("5/m", "user:3", on_unavailable="deny")
        assert [(decision.allowed, decision.degraded) for decision in heard] == [
            (True, False), (False, False), (False, False), (False, True)
        ]  # fmt: skip

    @pytest.mark.usefixtures("memory_store")
    def test_an_observer_that_raises_is_logged_and_breaks_nothing(
        self, heard: list[Decision], caplog: pytest.LogCaptureFixture
    ) -> None:
        @observe
        def broken(decision: Decision) -> None:
            raise ValueError("broken on purpose")

        heard.clear()
        try:
            with caplog.at_level(logging.ERROR, "django_quota"):
                assert check("5/m", "user:1")
        finally:
            assert unobserve(broken)
        assert "An observer of decisions failed" in caplog.text
        assert len(heard) == 1

    @pytest.mark.usefixtures("memory_store")
    def test_an_observer_is_a_sync_function_and_is_kept_once(self) -> None:
        async def later(decision: Decision) -> None: ...

        class Found(list[Decision]):  # without a hash
            __call__ = list.append

        wrong: Any
        for wrong in (later, "path.to.function"):
            with pytest.raises(ConfigurationError, match="not a sync function"):
                observe(wrong)
        found = Found()
        assert observe(observe(found)) is found
        check("5/m", "user:1")
        assert len(found) == 1
        assert unobserve(found)
        assert not unobserve(found)
