"""The edge around a view: the middleware, what a rule's options do to a request, and Redis being gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import override_settings

from django_quota import Decision, QuotaExceeded, acheck, check, quota
from django_quota.exceptions import ConfigurationError, RuleError, StoreFull
from django_quota.middleware import QuotaMiddleware
from tests.support.calls import both, fetch, get, run

MEMORY = {"STORE": "memory"}


def made(kind: str, seen: list[Decision] | None = None) -> Callable[..., Any]:
    def plain(request: Any) -> HttpResponse:
        if seen is not None:
            seen.append(request.quota)
        return HttpResponse("ok")

    async def plain_async(request: Any) -> HttpResponse:
        return plain(request)

    return plain if kind == "sync" else plain_async


@both
@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("view", ["by-hand", "by-hand-async", "limited", "limited-async"])
def test_a_quota_exceeded_in_any_view_is_a_429_over_either_server(kind: str, view: str) -> None:
    replies = fetch(kind, f"/{view}/", 4)
    allowed = 3 if "limited" in view else 2
    assert [reply.status_code for reply in replies] == [200] * allowed + [429] * (4 - allowed)
    assert f'"{view}";r=0;t=' in replies[-1].headers["RateLimit"]
    assert 1 <= int(replies[-1].headers["Retry-After"]) <= 60


@both
@pytest.mark.usefixtures("memory_store")
def test_a_view_that_nothing_limits_has_no_headers(kind: str) -> None:
    (reply,) = fetch(kind, "/free/")
    assert (reply.status_code, "RateLimit" in reply.headers) == (200, False)


class TestMiddleware:
    def test_other_exceptions_are_not_its_business(self) -> None:
        assert QuotaMiddleware(lambda request: None).process_exception(get(), ValueError()) is None

    def test_it_writes_the_headers_of_a_decision_that_lies_on_the_request(self) -> None:
        def view(request: Any) -> HttpResponse:
            request.quota = check("2/m", request, name="here")
            return HttpResponse()

        with override_settings(QUOTA=MEMORY):
            response: Any = QuotaMiddleware(view)(get())
        assert response.headers["RateLimit"].startswith('"here";r=1')

    def test_what_another_app_calls_quota_on_the_request_is_left_alone(self) -> None:
        request = get()
        request.quota = SimpleNamespace(outcomes="x")
        response: Any = QuotaMiddleware(lambda r: HttpResponse())(request)
        assert "RateLimit" not in response.headers

    def test_a_refusal_by_hand_shows_beside_the_limits_of_the_decorator(self) -> None:
        @quota("9/m", name="outer")
        def view(request: HttpRequest) -> HttpResponse:
            check("0/m", request, name="inner").raise_if_refused()
            raise AssertionError

        with override_settings(QUOTA=MEMORY):
            response = run(view)
        assert response.status_code == 429
        assert response.headers["RateLimit-Policy"] == '"outer";q=9;w=60, "inner";q=0;w=60'


@both
@pytest.mark.usefixtures("memory_store")
class TestOptions:
    def test_methods_limit_these_and_no_others(self, kind: str) -> None:
        view = quota("1/m", methods=["POST"])(made(kind))
        assert [run(view, get(m)).status_code for m in ("get", "get", "post", "get", "post")] == [200] * 4 + [429]

    @pytest.mark.parametrize("function", ["sync", "async"])
    def test_skip_cost_key_and_rate_may_be_functions_of_the_request(self, kind: str, function: str) -> None:
        def of(name: str) -> Any:
            def value(request: HttpRequest) -> Any:
                return {"HTTP_SKIP": bool, "HTTP_COST": int}.get(name, str)(request.META.get(name, "0"))

            def skip(request: HttpRequest) -> bool:
                return "HTTP_SKIP" in request.META

            found = skip if name == "HTTP_SKIP" else value

            async def avalue(request: HttpRequest) -> Any:
                return found(request)

            return found if function == "sync" else avalue

        if kind == "sync" and function == "async":
            return  # refused at import: test_decorators
        view = quota(of("HTTP_RATE"), skip=of("HTTP_SKIP"), cost=of("HTTP_COST"), key=of("HTTP_KEY"))(made(kind))
        given = {"HTTP_RATE": "5/m", "HTTP_COST": "3", "HTTP_KEY": "a"}
        asked: list[dict[str, str]] = [
            given, given, {**given, "HTTP_SKIP": "1"}, {**given, "HTTP_KEY": "b"}, {**given, "HTTP_COST": "2"}, given,
            {**given, "HTTP_RATE": "50/m"},
        ]  # fmt: skip
        assert [run(view, get(**meta)).status_code for meta in asked] == [200, 429, 200, 200, 200, 429, 200]

    def test_a_rate_of_none_is_unlimited(self, kind: str) -> None:
        seen: list[Decision] = []
        view = quota(lambda request: None)(made(kind, seen))
        assert [run(view).status_code for _ in range(3)] == [200] * 3
        assert (seen[0].limit, seen[0].outcomes) == (None, ())
        assert "RateLimit" not in run(quota(None)(made(kind))).headers

    @pytest.mark.parametrize("cost", ["1", None, -1, 1.5, True])
    def test_a_function_that_returns_no_cost_is_a_clear_error_that_names_the_rule(self, kind: str, cost: Any) -> None:
        with pytest.raises(RuleError, match="is not a whole number") as caught:
            run(quota("1/m", name="uploads", cost=lambda request: cost)(made(kind)))
        assert "uploads" in str(caught.value)

    def test_a_cost_above_the_limit_is_refused_for_good(self, kind: str) -> None:
        response = run(quota("5/m", cost=6)(made(kind)))
        assert (response.status_code, "Retry-After" in response.headers) == (429, False)

    def test_block_false_lets_the_view_decide_and_does_not_stop_other_rules(self, kind: str) -> None:
        seen: list[Decision] = []
        view = quota("1/m", name="soft", block=False)(quota("3/m", name="hard")(made(kind, seen)))
        assert [run(view).status_code for _ in range(4)] == [200, 200, 200, 429]
        assert [decision.allowed for decision in seen] == [True, False, False]
        assert (seen[1].rule, seen[1].outcomes[1].remaining) == ("soft", 1)
        assert '"soft";r=0' in run(view).headers["RateLimit"]

    def test_a_shadow_never_refuses_is_logged_and_is_not_in_the_headers(
        self, kind: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        view = quota("1/m", name="shade", shadow=True)(quota("2/m", name="hard")(made(kind)))
        with caplog.at_level(logging.INFO, "django_quota"):
            replies = [run(view) for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200, 200, 429]
        assert [reply.headers["RateLimit-Policy"] for reply in replies] == ['"hard";q=2;w=60'] * 3
        assert caplog.messages[0] == "Shadow rule 'shade' would have refused 'ip:192.0.2.1'."
        alone = quota("0/m", shadow=True)(made(kind))
        assert "RateLimit" not in run(alone).headers

    def test_a_rule_of_the_settings_is_read_at_each_request(self, kind: str) -> None:
        view = quota(rule="search")(made(kind))
        for rate, status in (("1/m", 200), ("0/s", 429), (None, 200), ({"rate": "0/m", "shadow": True}, 200)):
            with override_settings(QUOTA={**MEMORY, "RULES": {"search": rate}}):
                assert run(view).status_code == status
        with override_settings(QUOTA={**MEMORY, "RULES": {"serach": "1/m"}}), pytest.raises(RuleError) as caught:
            run(view)
        assert "Did you mean 'serach'" in str(caught.value)

    def test_where_it_is_not_enabled_everything_is_allowed_and_still_a_decision(self, kind: str) -> None:
        seen: list[Decision] = []
        with override_settings(QUOTA={**MEMORY, "ENABLED": False}):
            assert run(quota("0/m")(made(kind, seen))).status_code == 200
            assert check("0/m", "global")
        assert (seen[0].allowed, seen[0].outcomes) == (True, ())

    def test_no_address_is_a_configuration_error_not_a_free_pass(self, kind: str) -> None:
        with pytest.raises(ConfigurationError, match="TRUSTED_PROXIES"):
            run(quota("1/m")(made(kind)), get(REMOTE_ADDR=""))


@pytest.fixture
def dead_redis(settings: Any, tmp_path: Any) -> None:
    url = f"unix://{tmp_path}/closed.sock"
    settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}}


OnUnavailable = Literal["allow", "deny", "local"]


@both
@pytest.mark.usefixtures("dead_redis")
class TestRedisIsGone:
    def test_allow_lets_everybody_in_and_says_degraded_and_says_so_once(
        self, kind: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        seen: list[Decision] = []
        view = quota("1/m")(made(kind, seen))
        assert [run(view).status_code for _ in range(3)] == [200] * 3
        assert {(decision.allowed, decision.degraded) for decision in seen} == {(True, True)}
        assert len([r for r in caplog.records if r.levelno >= logging.ERROR]) == 1
        assert "on_unavailable" in caplog.text

    @pytest.mark.parametrize("where", ["rule", "setting"])
    def test_deny_is_a_503_with_retry_after(self, kind: str, where: str, settings: Any) -> None:
        settings.QUOTA = {"ON_UNAVAILABLE": "deny"} if where == "setting" else {}
        view = quota("1/m", on_unavailable="deny" if where == "rule" else None)(made(kind))
        response = run(view)
        assert (response.status_code, response.headers["Retry-After"]) == (503, "1")

    def test_local_counts_in_this_process(self, kind: str) -> None:
        seen: list[Decision] = []
        view = quota("2/m", on_unavailable="local")(made(kind, seen))
        assert [run(view).status_code for _ in range(3)] == [200, 200, 429]
        assert [decision.degraded for decision in seen] == [True, True]

    def test_a_denial_that_does_not_block_leaves_it_to_the_view(self, kind: str) -> None:
        seen: list[Decision] = []
        assert run(quota("1/m", on_unavailable="deny", block=False)(made(kind, seen))).status_code == 200
        assert (seen[0].allowed, seen[0].degraded) == (False, True)

    @pytest.mark.parametrize(("hard", "status"), [("deny", 503), ("local", 429)])
    def test_a_denial_that_does_not_block_does_not_hide_a_rule_that_does(
        self, kind: str, hard: OnUnavailable, status: int
    ) -> None:
        view = quota("9/m", name="s", on_unavailable="deny", block=False)(
            quota("0/m", name="h", on_unavailable=hard)(made(kind))
        )
        assert run(view).status_code == status

    def test_a_rule_that_is_unlimited_for_this_request_denies_nobody(self, kind: str) -> None:
        view = quota(lambda request: None, name="u", on_unavailable="deny")(quota("9/m", name="a")(made(kind)))
        assert run(view).status_code == 200

    def test_a_shadow_never_denies(self, kind: str) -> None:
        assert run(quota("1/m", shadow=True, on_unavailable="deny")(made(kind))).status_code == 200

    def test_checks_by_hand_raise_nothing(self, kind: str) -> None:
        async def ask() -> Decision:
            return await acheck("1/m", "global", on_unavailable="deny")

        decision = check("1/m", "global", on_unavailable="deny") if kind == "sync" else asyncio.run(ask())
        assert (decision.allowed, decision.degraded, decision.retry_after) == (False, True, 1.0)
        with pytest.raises(QuotaExceeded, match="could not be checked"):
            decision.raise_if_refused()

    @pytest.mark.parametrize("accept", ["application/json", "text/html", "text/plain"])
    @pytest.mark.parametrize("view", ["asks", "asks-async"])
    def test_what_a_view_lets_through_is_answered_as_a_rule_that_denies(
        self, kind: str, view: str, accept: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        def shown(reply: Any, path: str) -> tuple[Any, ...]:
            headers = {name: value for name, value in reply.headers.items() if name != "Content-Length"}
            return reply.status_code, headers, reply.content.decode().replace(path, "/here/")

        (denied,) = fetch(kind, "/denies/", Accept=accept)
        wanted = shown(denied, "/denies/")
        assert (wanted[0], wanted[1]["Retry-After"]) == (503, "1")
        for what in ("counter", "once", "slot", "reset"):
            (reply,) = fetch(kind, f"/{view}/?what={what}", Accept=accept)
            assert shown(reply, f"/{view}/?what={what}") == wanted
        assert len([record for record in caplog.records if record.name == "django_quota"]) == 1

    @pytest.mark.parametrize("view", ["asks", "asks-async"])
    def test_what_a_view_lets_through_is_logged_once(
        self, kind: str, view: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        for what in ("by-hand", "counter", "by-hand", "slot"):
            assert fetch(kind, f"/{view}/?what={what}")[0].status_code == 503
        # Django logs no request: it mails each of these errors to ADMINS.
        logged = [record for record in caplog.records if record.name in ("django_quota", "django.request")]
        assert [record.levelname for record in logged] == ["ERROR"]
        assert "an amount is on the way" in logged[0].getMessage()


def test_what_a_view_lets_through_is_on_the_request_beside_what_was_decided() -> None:
    request = get()
    with override_settings(QUOTA=MEMORY):
        assert run(quota("9/m", name="outer")(made("sync")), request).status_code == 200
        response = QuotaMiddleware(lambda r: None).process_exception(request, StoreFull())
    assert response is not None
    assert (response.status_code, request.quota.allowed, request.quota.degraded) == (503, False, True)
    assert response.headers["RateLimit"].startswith('"outer";r=8')
    assert request.quota.explain() == "The store did not answer a call of the view; try again shortly."


def test_the_function_of_the_response_setting_answers_what_a_view_lets_through() -> None:
    def respond(request: HttpRequest, decision: Decision) -> HttpResponse:
        return HttpResponse(f"{decision.degraded} {decision.retry_after}", status=503)

    with override_settings(QUOTA={**MEMORY, "RESPONSE": respond}):
        response = QuotaMiddleware(lambda r: None).process_exception(get(), StoreFull())
    assert response is not None
    assert (response.status_code, response.content, response.headers["Retry-After"]) == (503, b"True 1.0", "1")
