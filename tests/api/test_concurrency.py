"""`@concurrency` on views: never more requests than the limit, and each slot is given back."""

import asyncio
from contextlib import suppress
from dataclasses import FrozenInstanceError
from typing import Any
from unittest.mock import Mock

import pytest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.utils.decorators import method_decorator

from django_quota import check, concurrency, peek, quota, slot
from django_quota.adapters import SlotRule
from django_quota.core.errors import StoreBusy, StoreFull
from django_quota.core.flow import run_sync
from django_quota.exceptions import ConfigurationError, RuleError, StoreUnavailable
from django_quota.http.request_slots import Holding
from django_quota.limiting.registry import get_limiter
from django_quota.testing import freeze
from tests.support.calls import both_ways, get, run
from tests.support.counts import checks_of
from tests.support.outages import no_answer
from tests.support.slot_views import (
    Own,
    OwnAsync,
    asks_nothing,
    held,
    of_class,
    one,
    plain,
    plain_async,
    says_async,
)
from tests.support.slots import forget, goes_away_after_an_answer
from tests.support.steps import START

pytestmark = pytest.mark.usefixtures("slot_site")

GUARDED = {
    "a function": one(plain),
    "an async function": one(plain_async),
    "a sync function that returns a coroutine": one(says_async),
    "a view of a class": one(of_class(Own).as_view()),
    "a view of an async class": one(of_class(OwnAsync).as_view()),
    "a class": one(of_class(Own)).as_view(),
    "an async class": one(of_class(OwnAsync)).as_view(),
    "a method": method_decorator(one, name="get")(of_class(Own)).as_view(),
    "an async method": method_decorator(one, name="get")(of_class(OwnAsync)).as_view(),
}
each_kind = pytest.mark.parametrize("guarded", GUARDED.values(), ids=GUARDED)


@each_kind
class TestEachKindOfView:
    def test_it_holds_a_slot_while_it_runs(self, guarded: Any) -> None:
        assert run(guarded).content == b"1"

    def test_it_gives_its_slot_back(self, guarded: Any) -> None:
        run(guarded)

        assert held() == 0

    def test_a_request_without_a_free_slot_is_refused(self, guarded: Any) -> None:
        with slot("view", 1):
            assert run(guarded).status_code == 429


def test_the_headers_of_an_allowed_response_say_how_many_slots_are_left() -> None:
    response = run(concurrency(3, name="view")(plain))

    assert response.headers["RateLimit"].startswith('"view";r=2;')


class TestRefusals:
    @pytest.fixture
    def refused(self) -> Any:
        with freeze(START), slot("view", 1):
            return run(one(plain))

    def test_the_headers_say_when_the_next_slot_comes_free(self, refused: Any) -> None:
        assert (refused["Retry-After"], refused["RateLimit"]) == ("30", '"view";r=0;t=30')

    def test_the_headers_name_a_limit_of_concurrent_requests(self, refused: Any) -> None:
        assert refused["RateLimit-Policy"] == '"view";q=1;qu="concurrent-requests"'

    def test_the_page_says_it_in_words(self, refused: Any) -> None:
        assert "The limit is 1 at once. Please try again in 30 seconds." in refused.text

    def test_a_slot_that_does_not_block_lets_the_request_in(self) -> None:
        request = get()

        with slot("view", 1):
            response = run(concurrency(1, name="view", block=False)(plain), request)

        assert response.content == b"1"
        assert (request.quota.allowed, request.quota.enforced) == (False, False)
        assert [each.enforced for each in request.quota.outcomes] == [False]


@pytest.mark.parametrize(
    ("options", "is_renewed"), [({}, False), ({"renew": True}, True)], ids=["by default", "with renew"]
)
def test_a_lease_is_renewed_if_its_option_says_so(
    options: dict[str, Any], is_renewed: bool, renewed_often: list[float]
) -> None:
    run(concurrency(1, name="view", **options)(plain))

    assert bool(renewed_often) is is_renewed


def test_a_lease_lasts_30_seconds_unless_its_option_says_so() -> None:
    def left(request: Any) -> HttpResponse:
        return HttpResponse(str(slot("view", 1).holders()[0][1]))

    with freeze(START):
        assert run(one(left)).content == b"30.0"


class TestWhoSharesASlot:
    def test_each_subject_of_the_key_has_its_own(self) -> None:
        with slot("view", 1):
            assert run(concurrency(1, "ip", name="view")(plain)).status_code == 200

    def test_the_key_says_whose_slot_it_is(self) -> None:
        with slot("view", 1, subject="ip:192.0.2.1"):
            assert run(concurrency(1, "ip", name="view")(plain)).status_code == 429

    def test_views_of_one_name_share_it(self) -> None:
        with slot("view", 1):
            assert run(concurrency(1, name="view")(asks_nothing)).status_code == 429

    def test_a_view_without_a_name_is_named_by_its_path(self) -> None:
        with slot("tests.support.slot_views.plain", 1):
            assert run(concurrency(1)(plain)).status_code == 429

    @pytest.mark.parametrize("base", [Own, OwnAsync], ids=["sync", "async"])
    def test_a_class_without_a_name_is_named_by_its_path(self, base: Any) -> None:
        view = concurrency(1)(of_class(base)).as_view()

        with slot(f"tests.support.slot_views.{base.__name__}", 1):
            assert run(view).status_code == 429

    def test_subclasses_of_a_limited_class_have_slots_of_their_own(self) -> None:
        limited: Any = concurrency(1)(of_class(Own))
        other: Any = type("Other", (limited,), {"__module__": "shop"})

        with slot("tests.support.slot_views.Own", 1):
            assert run(other.as_view()).status_code == 200

    def test_limiting_that_is_off_lets_everybody_in(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}

        with slot("view", 1):
            assert run(one(plain)).status_code == 200


class TestWithQuota:
    @pytest.fixture(params=[(plain, True), (plain_async, False)], ids=["outside", "inside"])
    def stacked(self, request: pytest.FixtureRequest) -> Any:
        """A view under `@concurrency`, and two hits a minute."""
        view, is_outside = request.param
        limited = quota("2/m", name="rate")
        return one(limited(view)) if is_outside else limited(one(view))

    def test_the_view_holds_its_slot(self, stacked: Any) -> None:
        assert run(stacked).content == b"1"

    def test_the_headers_name_both_limits(self, stacked: Any) -> None:
        policies = run(stacked).headers["RateLimit-Policy"].split(", ")

        assert sorted(policies) == ['"rate";q=2;w=60', '"view";q=1;qu="concurrent-requests"']

    def test_a_request_without_a_free_slot_is_refused(self, stacked: Any) -> None:
        with slot("view", 1):
            assert run(stacked).status_code == 429

    def test_a_request_above_the_rate_is_refused(self, stacked: Any) -> None:
        assert [run(stacked).status_code for _ in range(3)] == [200, 200, 429]

    def test_a_request_above_the_rate_keeps_no_slot(self, stacked: Any) -> None:
        for _ in range(3):
            run(stacked)

        assert held() == 0


@pytest.mark.usefixtures("either_store")
@pytest.mark.parametrize("has_middleware", [True, False], ids=["with the middleware", "without"])
class TestWhatTheRulesTook:
    """Five requests at once for three slots, each after rules with a cost of 50."""

    @pytest.fixture
    def responses(self, settings: Any, has_middleware: bool) -> Any:
        settings.MIDDLEWARE = ["django_quota.middleware.QuotaMiddleware"] if has_middleware else []

        @quota("1000/h", name="exports", cost=50, daily=True)
        @quota("1000/d", name="bytes", cost=50, settle=lambda request, response: 70)
        @concurrency(3, name="view")
        def export(request: HttpRequest) -> Any:
            return StreamingHttpResponse(iter([b"part"]))

        with freeze(START):
            responses = [export(get()) for _ in range(5)]
            yield responses
            for response in responses:
                response.close()

    def test_as_many_as_the_slots_are_let_in(self, responses: Any) -> None:
        assert [response.status_code for response in responses] == [200] * 3 + [429] * 2

    def test_a_refused_slot_gives_back_what_the_rules_took(self, responses: Any) -> None:
        assert peek("1000/h", "ip:192.0.2.1", name="exports").remaining == 850

    def test_the_headers_of_the_refusal_show_it(self, responses: Any) -> None:
        assert '"exports";r=850' in responses[-1].headers["RateLimit"]

    def test_a_refused_request_is_not_settled(self, responses: Any) -> None:
        for response in responses:
            response.close()

        assert peek("1000/d", "ip:192.0.2.1", name="bytes").remaining == 1_000 - 3 * 70

    def test_the_day_counts_only_those_that_were_let_in(self, responses: Any) -> None:
        assert checks_of("ip:192.0.2.1")["exports"] == (3, 0)


def test_a_slot_that_is_refused_twice_gives_back_once_what_the_rules_took() -> None:
    def asks_twice(request: HttpRequest) -> HttpResponse:
        for _ in range(2):
            response = one(asks_nothing)(request)
        return response

    limited: Any = quota("9/m", name="counted")(asks_twice)
    with freeze(START):
        run(limited)

        with slot("view", 1):
            run(limited)

        assert peek("9/m", "ip:192.0.2.1", name="counted").remaining == 8


def test_a_slot_that_only_reports_leaves_what_the_rules_took() -> None:
    limited: Any = quota("9/m", name="counted")(concurrency(1, name="view", block=False)(asks_nothing))

    with slot("view", 1):
        assert run(limited).status_code == 200

    assert peek("9/m", "ip:192.0.2.1", name="counted").remaining == 8


class TestErrorsOfTheView:
    @pytest.fixture(params=[False, True], ids=["sync", "async"])
    def limited(self, request: pytest.FixtureRequest) -> Any:
        """A view that fails: a GET finds a quota exceeded, a POST divides by zero."""

        def view(request: Any) -> HttpResponse:
            if request.method == "GET":
                check("0/m", "global").raise_if_refused()
            raise ZeroDivisionError

        async def aview(request: Any) -> HttpResponse:
            return view(request)

        return one(aview if request.param else view)

    def test_an_exceeded_quota_is_a_429(self, limited: Any) -> None:
        assert run(limited).status_code == 429

    def test_an_error_leaves_the_view(self, limited: Any) -> None:
        with pytest.raises(ZeroDivisionError):
            run(limited, get("post"))

    @pytest.mark.parametrize("method", ["get", "post"])
    def test_it_gives_the_slot_back(self, limited: Any, method: str) -> None:
        with suppress(ZeroDivisionError):
            run(limited, get(method))

        assert held() == 0


class TestALeaseThatIsLost:
    def test_the_request_is_answered(self) -> None:
        def view(request: Any) -> HttpResponse:
            forget("view")
            return HttpResponse("ok")

        assert one(view)(get()).status_code == 200

    def test_the_other_slots_of_the_request_are_given_back(self) -> None:
        holding = Holding()
        holding.leases = [slot(name, 1).acquire() for name in ("view", "other")]
        forget("view")

        run_sync(holding.release_flow())

        assert held("other") == 0

    def test_they_are_given_back_though_the_store_did_not_answer_for_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        holding = Holding()
        holding.leases = [slot(name, 1).acquire() for name in ("view", "other")]
        monkeypatch.setattr(holding.leases[0], "releasing", Mock(side_effect=StoreUnavailable("it is gone")))

        run_sync(holding.release_flow())

        assert (held("view"), held("other")) == (1, 0)

    def test_the_log_says_so(self, caplog: pytest.LogCaptureFixture) -> None:
        one(lambda request: forget("view"))(get())

        (logged,) = caplog.records
        assert (logged.name, logged.levelname) == ("django_quota.slots", "WARNING")
        assert logged.getMessage().startswith(
            "A view took longer than its lease, so more requests than the limit may have run at once. "
        )

    @both_ways
    def test_a_store_that_goes_away_is_in_the_log(self, is_async: bool, caplog: pytest.LogCaptureFixture) -> None:
        async def aview(request: Any) -> HttpResponse:
            return HttpResponse("ok")

        with goes_away_after_an_answer():
            response = run(one(aview if is_async else asks_nothing))

        assert response.status_code == 200
        (logged,) = [each for each in caplog.records if each.name == "django_quota.slots"]
        assert logged.levelname == "WARNING"
        assert logged.getMessage().startswith("A slot was not given back, and stays taken until its lease ends. The ")


class TestWithoutAnAnswer:
    @pytest.mark.parametrize(
        ("options", "status", "allowed"),
        [
            pytest.param({}, 503, False, id="the setting denies"),
            pytest.param({"on_unavailable": "local"}, 200, True, id="the option says local"),
            pytest.param({"on_unavailable": "allow"}, 200, True, id="the option says allow"),
            pytest.param({"block": False}, 200, False, id="a refusal does not block"),
        ],
    )
    def test_the_option_or_the_setting_says_what_happens(
        self, options: Any, status: int, allowed: bool, settings: Any
    ) -> None:
        settings.QUOTA = {**settings.QUOTA, "ON_UNAVAILABLE": "deny"}
        request = get()

        with no_answer():
            response = run(concurrency(1, name="view", **options)(asks_nothing), request)

        assert response.status_code == status
        assert (request.quota.degraded, request.quota.allowed) == (True, allowed)
        assert (request.quota.rule, request.quota.subject) == ("view", "global")

    @pytest.mark.parametrize("said", ["allow", "local", "deny"])
    def test_the_decision_names_the_subject_of_the_key(self, said: Any) -> None:
        request = get()

        with no_answer():
            run(concurrency(1, "ip", name="view", on_unavailable=said)(asks_nothing), request)

        assert request.quota.subject == "ip:192.0.2.1"

    @pytest.mark.parametrize("said", ["allow", "local", "deny"])
    def test_a_full_store_lets_nobody_in(self, said: Any) -> None:
        with no_answer(StoreFull("it has no room")):
            response = run(concurrency(1, name="view", on_unavailable=said)(asks_nothing))

        assert response.status_code == 503

    def test_a_full_memory_of_the_process_lets_nobody_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def is_full(*_: object) -> None:
            raise StoreFull("it has no room")

        monkeypatch.setattr(get_limiter().fallback.local, "run", is_full)

        with no_answer():
            response = concurrency(1, name="view", on_unavailable="local")(asks_nothing)(get())

        assert response.status_code == 503

    def test_a_request_waits_for_a_slot_that_the_process_counts_by_itself(self) -> None:
        async def takes_turns(request: Any) -> HttpResponse:
            for _ in range(20):
                await asyncio.sleep(0)
            return HttpResponse("ok")

        limited: Any = concurrency(1, name="view", wait=5, on_unavailable="local")(takes_turns)

        async def two() -> list[int]:
            return [each.status_code for each in await asyncio.gather(limited(get()), limited(get()))]

        with no_answer():
            assert asyncio.run(two()) == [200, 200]

    def test_a_denied_request_may_try_again_in_a_second(self) -> None:
        with no_answer():
            response = run(concurrency(1, name="view", on_unavailable="deny")(asks_nothing))

        assert response.headers["Retry-After"] == "1"

    def test_a_store_that_goes_away_during_a_wait_does_not_answer(self) -> None:
        slot("view", 1).acquire()

        with goes_away_after_an_answer():
            response = run(concurrency(1, name="view", wait=0.1, on_unavailable="deny")(asks_nothing))

        assert response.status_code == 503

    @pytest.mark.parametrize("said", [None, "allow", "local"], ids=["unset", "allow", "local"])
    def test_a_busy_process_counts_who_is_in_a_view_by_itself(self, said: Any) -> None:
        with no_answer(StoreBusy("all connections are in use")):
            assert nested(said) == [200, 429]

    @pytest.mark.parametrize("said", [None, "allow", "local"], ids=["unset", "allow", "local"])
    def test_a_slot_of_a_busy_process_is_given_back(self, said: Any) -> None:
        with no_answer(StoreBusy("all connections are in use")):
            assert [nested(said) for _ in range(2)] == [[200, 429]] * 2

    def test_a_busy_process_may_deny_whoever_comes(self) -> None:
        limited = concurrency(1, on_unavailable="deny", name="view")(asks_nothing)

        with no_answer(StoreBusy("all connections are in use")):
            assert [limited(get()).status_code for _ in range(2)] == [503, 503]


def nested(said: Any) -> list[int]:
    """Return the statuses of a request for one slot, and of one that comes while the first is in the view."""
    limited = concurrency(1, on_unavailable=said, name="view")

    def view(request: Any) -> HttpResponse:
        return HttpResponse(str(limited(asks_nothing)(get()).status_code))

    outer = limited(view)(get())
    return [outer.status_code, int(outer.content)]


MISUSED: dict[str, tuple[Any, str]] = {
    "no parentheses": (
        lambda: concurrency(plain),  # type: ignore[arg-type]
        "@concurrency has no limit on tests.support.slot_views.plain. Write, for example, @concurrency(10).",
    ),
    "a limit of 0": (
        lambda: concurrency(0),
        "limit=0 of slot '@concurrency' is not a whole number from 1 to 1,000,000. Use, for example, 3.",
    ),
    "a number": (lambda: one(7), "@concurrency is on int, not on a view."),  # type: ignore[type-var]
    "a request": (lambda: one(get()), "@concurrency is on WSGIRequest, not on a view."),
    "nothing": (lambda: one(None), "@concurrency is on NoneType, not on a view."),  # type: ignore[type-var]
    "a class without dispatch()": (
        lambda: one(type("No", (), {})),
        "@concurrency on No: a class without dispatch() is not a view.",
    ),
    "a function without a request": (
        one(lambda: None),
        "@concurrency is on a function that got no request. Use it on a view.",
    ),
}


@pytest.mark.parametrize(("misuse", "words"), MISUSED.values(), ids=MISUSED)
def test_it_stands_on_views_only(misuse: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        misuse()

    assert str(refused.value) == words


DURATIONS = "Use, for example, 30 (seconds), '10m' or timedelta(days=1)."
SHARES = "Use, for example, share={'critical': 1.0, 'batch': 0.5}."
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown option": ({"leese": 5}, "'leese' is not an option of a slot. Did you mean 'lease'?"),
    "a key": ({"key": "usr"}, "key='usr' is not a key. Did you mean 'user'?"),
    "a wait": ({"wait": "soon"}, f"wait='soon' is not a duration from 0 to 366 days. {DURATIONS}"),
    "a lease": ({"lease": 0}, f"lease=0 is not a duration above 0 and up to 366 days. {DURATIONS}"),
    "block": ({"block": 1}, "block=1 is not True or False."),
    "renew": ({"renew": 1}, "renew=1 of slot '@concurrency' is not True or False."),
    "on_unavailable": ({"on_unavailable": "open"}, "on_unavailable='open' is not 'allow', 'deny' or 'local'."),
    "an empty on_unavailable": ({"on_unavailable": ""}, "on_unavailable='' is not 'allow', 'deny' or 'local'."),
    "a share of no tier": (
        {"share": {"batch": 0.5}},
        (
            "There is no tier= to say who is in tier 'batch'. Add tier=, a function of the request that returns the "
            "tier. Known: anonymous, authenticated."
        ),
    ),
    "a share for all": (
        {"share": 0.5},
        "share=0.5 is not a dict of shares by tier. For all requests, give a lower limit.",
    ),
    "a tier without shares": ({"tier": len}, f"tier={len!r} needs share=, the shares of the tiers. {SHARES}"),
    "a tier that is a string": (
        {"share": {"a": 1.0}, "tier": "a"},
        f"tier='a' is not a function of the request. {SHARES}",
    ),
}


@pytest.mark.parametrize(("given", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_option_is_an_error_at_import(given: Any, words: str) -> None:
    with pytest.raises(RuleError) as refused:
        concurrency(1, **given)

    assert str(refused.value) == words


def test_a_rule_for_a_slot_equals_only_itself() -> None:
    rule = SlotRule.make("view", 1)

    assert {rule: "found"}[rule] == "found"
    assert rule != SlotRule.make("view", 1)


def test_a_rule_for_a_slot_cannot_be_changed() -> None:
    rule = SlotRule.make("view", 1)

    with pytest.raises(FrozenInstanceError):
        rule.blocks = False  # type: ignore[misc]


def test_a_view_that_is_thrown_away_asks_no_store() -> None:
    """As when its event loop was closed: `close` raises an error if the flow makes another call."""
    running = Holding().while_flow(bool)
    next(running)

    running.close()
