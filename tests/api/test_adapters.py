"""The functions for integrations: they decide and answer as the decorators and the middleware do."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path

from django_quota import Decision, Rule, acheck, check, peek, quota, refund, reserve, slot
from django_quota.adapters import (
    adecide,
    arefusal_response,
    asettle,
    attach_decision,
    client_ip,
    decide,
    enter_queue,
    has_middleware,
    is_exempt,
    read_rule,
    read_subject,
    refusal_response,
    set_body_parser,
    settle,
    write_headers,
    write_refusal_headers,
)
from django_quota.exceptions import ConfigurationError, QuotaExceeded, RuleError
from django_quota.metrics import observe, unobserve
from django_quota.testing import freeze
from tests.support.calls import both_ways, called, calls_of, fetch
from tests.support.outages import no_answer
from tests.support.steps import START

IP = "ip:127.0.0.1"


def request_by(method: str = "get", **given: Any) -> Any:
    return getattr(RequestFactory(), method)("/", **given)


@pytest.mark.usefixtures("memory_store")
def test_a_json_body_that_somebody_else_has_parsed_is_taken() -> None:
    def fail() -> Any:
        raise UnicodeError("a framework's own error")

    def sent(parse: Any) -> Any:
        request = request_by("post", data="broken", content_type="application/json")
        set_body_parser(request, parse)
        return request

    rule, shadow = (Rule.make("by-phone", "9/m", key="json:phone", shadow=is_off) for is_off in (False, True))
    bodies: list[Any] = [{"phone": "1"}, {"phone": 1}, [{"phone": "1"}]]
    one, other, none = (decide(sent(lambda body=body: body), rule).subject for body in bodies)
    assert (one == other, none) == (True, IP)
    with pytest.raises(UnicodeError):
        decide(sent(fail), rule)
    assert decide(sent(fail), shadow).outcomes == ()


@pytest.mark.usefixtures("memory_store")
def test_an_answer_in_a_form_of_your_own_has_the_headers_of_a_refusal() -> None:
    request = request_by()
    decide(request, "1/m")
    decision = attach_decision(request, decide(request, "1/m"))

    own = write_refusal_headers(HttpResponse("no", status=429), decision)

    usual = refusal_response(request, decision).headers
    names = ("Retry-After", "Cache-Control", "RateLimit", "RateLimit-Policy")
    assert [own.headers[name] for name in names] == [usual[name] for name in names]


@pytest.fixture
def every_form(settings: Any) -> list[Any]:
    """Each form in which `decide` takes a rule."""
    settings.QUOTA = {**settings.QUOTA, "RULES": {"search": "5/m", "find": {"rate": "5/m", "key": "path"}}}
    own = Rule.make("own", "7/d", key="header:X-Key")
    return ["search", "9/h", own, ("find", "user:42"), ("3/m", "ip:2001:db8::1")]


@pytest.mark.usefixtures("memory_store")
@both_ways
def test_rules_in_every_form_are_decided_in_one_call(
    is_async: bool, every_form: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_by(headers={"X-Key": "k"})
    decide(request, every_form)  # makes the limiter
    calls = calls_of(monkeypatch)

    decision = asyncio.run(adecide(request, every_form)) if is_async else decide(request, every_form)

    assert [outcome.remaining for outcome in decision.outcomes] == [3, 7, 5, 3, 1]
    assert len(calls) == 1


@pytest.mark.usefixtures("memory_store")
def test_a_rule_by_its_name_or_rate_is_for_the_subject_of_its_own_key(every_form: list[Any]) -> None:
    decision = decide(request_by(headers={"X-Key": "k"}), every_form)

    subjects = [outcome.subject for outcome in decision.outcomes]
    assert [subjects[0], *subjects[3:]] == [IP, "user:42", "ip:2001:db8::/64"]
    assert peek("search", IP).remaining == 4


@pytest.mark.usefixtures("memory_store")
class TestARequestThatWrapsDjangos:
    @pytest.fixture
    def wrapped(self) -> Any:
        return SimpleNamespace(_request=request_by())

    def test_its_decision_is_attached_to_djangos(self, wrapped: Any) -> None:
        decision = attach_decision(wrapped, decide(wrapped, "0/m"))

        assert wrapped._request.quota is decision

    @both_ways
    def test_it_is_refused(self, wrapped: Any, is_async: bool) -> None:
        decision = decide(wrapped, "0/m")

        assert called(is_async, refusal_response, arefusal_response, wrapped, decision).status_code == 429

    def test_it_has_the_address_of_the_client(self, wrapped: Any) -> None:
        assert client_ip(wrapped) == "127.0.0.1"


@pytest.mark.parametrize(
    ("networks", "is_one"), [(["127.0.0.0/8"], True), (["10.0.0.0/8"], False), ([], False)], ids=str
)
def test_a_client_is_exempt_in_a_network_of_the_settings(networks: list[str], is_one: bool, settings: Any) -> None:
    settings.QUOTA = {"EXEMPT": networks}

    assert is_exempt(SimpleNamespace(_request=request_by())) is is_one


@pytest.mark.usefixtures("memory_store")
def test_a_pair_does_not_limit_a_client_in_an_exempt_network(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "EXEMPT": ["127.0.0.0/8"]}

    assert decide(request_by(), [("0/m", "user:1")]).outcomes == ()


def test_what_is_not_a_request_is_an_error() -> None:
    with pytest.raises(RuleError) as refused:
        decide("ip:1.2.3.4", "10/m")

    assert str(refused.value) == (
        "'ip:1.2.3.4' is not a Django request, and does not wrap one. "
        "Without a request, use check_all([(rule, subject), ...])."
    )


@pytest.mark.usefixtures("memory_store")
@both_ways
@pytest.mark.parametrize(
    "wrap",
    [lambda request: request, lambda request: SimpleNamespace(_request=request)],
    ids=["a request", "one that wraps it"],
)
def test_what_a_request_really_cost_is_settled_by_its_response(wrap: Any, is_async: bool) -> None:
    request = wrap(request_by())
    by_length = Rule.make("tokens", "100/h", cost=40, settle=lambda request, response: len(response.content))
    decide(request, by_length)

    called(is_async, settle, asettle, request, HttpResponse("seven.."))

    assert peek(by_length, IP).used == 7


@pytest.mark.usefixtures("memory_store")
class TestAQueue:
    QUEUE = Rule.make("mails", "6/m", algorithm="leaky_bucket", burst=3)

    def test_each_place_is_later_than_the_one_before_it(self) -> None:
        with freeze(START):
            places = [enter_queue(self.QUEUE, "user:1") for _ in range(4)]

        assert [(place.allowed, place.delay) for place in places] == [(True, 0), (True, 10), (True, 20), (False, 0)]

    def test_work_that_costs_more_takes_several_places(self) -> None:
        with freeze(START):
            first, second = enter_queue(self.QUEUE, "user:1", 2), enter_queue(self.QUEUE, "user:1")

        assert (first.cost, second.delay) == (2, 20)

    def test_work_costs_what_its_queue_says(self) -> None:
        heavy = Rule.make("videos", "6/m", algorithm="leaky_bucket", burst=6, cost=2)

        with freeze(START):
            first, second = enter_queue(heavy, "user:1"), enter_queue(heavy, "user:1")

        assert (first.cost, second.delay) == (2, 20)

    def test_only_a_refusal_is_observed(self, heard: list[Decision]) -> None:
        with freeze(START):
            places = [enter_queue(self.QUEUE, "user:1") for _ in range(4)]

        assert heard == places[3:]


@pytest.mark.parametrize(
    ("given", "subject"),
    [
        (User(pk=42), "user:42"), ("user:42", "user:42"), ("ip:2001:db8::1", "ip:2001:db8::/64"), ("org:7", "org:7"),
    ],
    ids=["a user", "a string", "an address", "anything else"],
)  # fmt: skip
def test_a_subject_is_a_user_or_a_string(given: Any, subject: str) -> None:
    assert read_subject(given) == subject


def test_what_is_not_a_subject_is_an_error_of_a_limit() -> None:
    with pytest.raises(RuleError, match=r"^5 is not a subject of a limit\. "):
        read_subject(5)


@pytest.mark.usefixtures("memory_store")
def test_headers_are_written_to_the_response_that_is_returned() -> None:
    response = HttpResponse()

    assert write_headers(response, check("5/m", IP)) is response
    assert response.headers["RateLimit-Policy"] == '"5/m";q=5;w=60'


@pytest.mark.usefixtures("memory_store")
def test_headers_are_the_same_without_the_request() -> None:
    decision = check("5/m", IP)

    without, with_request = (write_headers(HttpResponse(), decision, *given) for given in ([], [request_by()]))

    assert "RateLimit-Policy" in without.headers
    assert without.headers == with_request.headers


@pytest.mark.usefixtures("memory_store")
def test_a_response_that_a_cache_stores_has_no_headers_if_the_request_is_given() -> None:
    request = request_by()
    request._cache_update_cache = True  # as Django's cache_page sets it
    decision = attach_decision(request, decide(request, "5/m"))

    assert "RateLimit" not in write_headers(HttpResponse(), decision, request).headers


@pytest.mark.usefixtures("memory_store")
def test_headers_are_left_to_the_limit_that_is_around_the_view() -> None:
    own: list[HttpResponse] = []

    @quota("9/m", name="around")
    def view(request: HttpRequest) -> HttpResponse:
        decision = attach_decision(request, decide(request, "5/m"))
        own.append(write_headers(HttpResponse(), decision, request))
        return HttpResponse()

    response = view(request_by())

    assert "RateLimit" not in own[0].headers
    assert response.headers["RateLimit-Policy"] == '"around";q=9;w=60, "5/m";q=5;w=60'


@pytest.mark.usefixtures("memory_store")
def test_a_limit_around_the_view_is_no_middleware() -> None:
    view: Any = quota("9/m", name="around")(lambda request: HttpResponse(f"{has_middleware(request)}"))

    assert view(request_by()).content == b"False"


@pytest.mark.usefixtures("memory_store")
def test_the_headers_of_a_refusal_are_written_to_the_response_that_is_returned() -> None:
    response = HttpResponse(status=429)

    assert write_refusal_headers(response, check("0/m", IP)) is response


@pytest.mark.usefixtures("memory_store")
def test_a_pair_with_rates_by_tier_is_for_the_tier_of_its_subject() -> None:
    tiers = Rule.make("api", {"anonymous": "1/m", "authenticated": "3/m"})

    decision = decide(request_by(), [(tiers, "user:42"), (tiers, IP)])

    assert [outcome.limit for outcome in decision.outcomes] == [3, 1]


@pytest.mark.usefixtures("memory_store")
def test_a_decision_is_combined_with_the_earlier_ones_of_its_request() -> None:
    request = request_by()
    first, second = decide(request, "5/m"), decide(request, "3/h")

    attach_decision(request, first)
    both = attach_decision(request, second)

    assert both == first.combined_with(second) == request.quota


@pytest.mark.usefixtures("memory_store")
def test_a_pair_takes_the_cost_of_its_rule() -> None:
    decision = decide(request_by(), [(Rule.make("jobs", "10/m", cost=3), "user:42")])

    assert (decision.cost, decision.remaining) == (3, 7)


@pytest.mark.usefixtures("memory_store")
def test_the_body_is_not_read_if_a_pair_refuses_the_request() -> None:
    request = request_by("post", data={"phone": "1"})

    decision = decide(request, [(Rule.make("0/m", "0/m"), "user:42"), Rule.make("phone", "9/m", key="post:phone")])

    assert [outcome.rule for outcome in decision.outcomes] == ["0/m"]
    assert request.read() != b""


def test_a_subject_for_a_rule_that_needs_the_request_is_an_error() -> None:
    with pytest.raises(RuleError, match="pass the request"):
        decide(request_by(), [(Rule.make("own", lambda request: "5/m"), "user:42")])


@pytest.mark.parametrize(
    ("classes", "is_there"),
    [
        pytest.param(["django_quota.middleware.QuotaMiddleware"], True, id="with it"),
        pytest.param(["django.middleware.common.CommonMiddleware"], False, id="without it"),
    ],
)
class TestHasMiddleware:
    def test_it_says_whether_the_settings_list_the_middleware(
        self, classes: list[str], is_there: bool, settings: Any
    ) -> None:
        settings.MIDDLEWARE = classes

        assert has_middleware() is is_there

    @pytest.mark.urls(__name__)
    @pytest.mark.usefixtures("memory_store")
    def test_it_says_whether_a_request_passes_the_middleware(
        self, classes: list[str], is_there: bool, settings: Any
    ) -> None:
        settings.MIDDLEWARE = classes

        reply = Client().get("/passes/")

        assert reply.content.decode() == str(is_there)


def test_a_rule_with_a_wrong_key_cannot_be_read() -> None:
    with pytest.raises(RuleError, match="'usre'"):
        read_rule("5/m", key="usre")


def test_a_rule_is_read_with_its_options() -> None:
    rule = read_rule("5/m", key="user", name="api")

    assert (rule.name, rule.key, str(rule.rates[0])) == ("api", "user", "5/m")


def decided_again(request: HttpRequest) -> HttpResponse:
    decision = attach_decision(request, decide(request, ["everywhere", "8/m"]))
    return HttpResponse(f"{len(decision.outcomes)}")


urlpatterns = [path("", decided_again), path("passes/", lambda request: HttpResponse(has_middleware(request)))]


@pytest.mark.urls(__name__)
@pytest.mark.usefixtures("memory_store")
def test_a_rule_that_was_decided_before_is_not_counted_twice(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"everywhere": {"rate": "5/m", "match": "/"}}}
    (response,) = fetch("sync", "/")  # the middleware has decided it
    assert response.content == b"2"
    assert '"everywhere"' in response.headers["RateLimit"]
    assert peek("everywhere", IP).remaining == 4
    request = request_by()
    assert decide(request, "everywhere").remaining == 3
    assert asyncio.run(adecide(request, "everywhere")).outcomes == ()


@pytest.fixture
def heard() -> Iterator[list[Decision]]:
    found: list[Decision] = []
    observe(found.append)
    yield found
    unobserve(found.append)


@pytest.mark.usefixtures("memory_store")
class TestObservers:
    @pytest.mark.parametrize(
        "make",
        [
            pytest.param(lambda: check("1/m", "user:1"), id="a check"),
            pytest.param(lambda: asyncio.run(acheck("1/m", "user:1")), id="an async check"),
            pytest.param(lambda: decide(request_by(), "2/m"), id="a request"),
            pytest.param(lambda: reserve("5/m", "user:1", 3).decision, id="a reservation"),
            pytest.param(lambda: check("0/m", "user:1"), id="a refusal"),
        ],
    )
    def test_they_hear(self, make: Callable[[], Decision], heard: list[Decision]) -> None:
        decision = make()

        assert heard == [decision]

    def test_they_hear_a_refused_reservation(self, heard: list[Decision]) -> None:
        with pytest.raises(QuotaExceeded):
            reserve("5/m", "user:1", 6)

        assert [decision.allowed for decision in heard] == [False]

    def test_they_hear_a_slot(self, heard: list[Decision]) -> None:
        with slot("export", 1):
            pass

        assert [decision.allowed for decision in heard] == [True]

    def test_they_hear_refusals_from_memory(self, heard: list[Decision]) -> None:
        for _ in range(3):
            check("1/m", "user:2", cache_refusals=9)

        assert [(decision.allowed, decision.degraded) for decision in heard] == [
            (True, False), (False, False), (False, False)
        ]  # fmt: skip

    def test_they_hear_what_is_denied_without_the_store(self, heard: list[Decision]) -> None:
        with no_answer():
            check("5/m", "user:3", on_unavailable="deny")

        assert [(decision.allowed, decision.degraded) for decision in heard] == [(False, True)]

    @pytest.mark.parametrize(
        "act",
        [
            pytest.param(lambda: peek("1/m", "user:1"), id="a peek"),
            pytest.param(lambda: refund("1/m", "user:1"), id="a refund"),
            pytest.param(lambda: check(Rule.make("free", None), "user:1"), id="a rule without a rate"),
            pytest.param(
                lambda: decide(request_by(), [Rule.make("posts", "1/m", methods=["POST"])]),
                id="a rule of other methods",
            ),
            pytest.param(
                lambda: decide(
                    RequestFactory().post("/", {"phone": "1"}),
                    [Rule.make("free", None, key="ip"), Rule.make("codes", None, key="post:phone")],
                ),
                id="rules without a rate, one by the body",
            ),
        ],
    )
    def test_they_do_not_hear(self, act: Callable[[], object], heard: list[Decision]) -> None:
        act()

        assert heard == []

    def test_an_async_function_cannot_observe(self) -> None:
        async def later(decision: Decision) -> None: ...

        with pytest.raises(ConfigurationError, match="not a sync function"):
            observe(later)

    def test_what_cannot_be_called_cannot_observe(self) -> None:
        path: Any = "site.count"

        with pytest.raises(ConfigurationError, match=r"'site\.count', which is not a sync function"):
            observe(path)

    @pytest.fixture
    def broken(self) -> Iterator[Callable[[Decision], None]]:
        """A function that observes, and fails."""

        def fail(decision: Decision) -> None:
            raise ValueError("broken on purpose")

        assert observe(fail) is fail
        yield fail
        unobserve(fail)

    def test_one_that_fails_breaks_nothing(self, broken: Any, heard: list[Decision]) -> None:
        assert check("5/m", "user:1")
        assert len(heard) == 1

    def test_the_failure_of_one_that_observes_twice_is_logged_once(
        self, broken: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        observe(broken)

        with caplog.at_level(logging.ERROR, "django_quota"):
            check("5/m", "user:1")

        assert caplog.text.count("An observer of decisions failed") == 1

    def test_unobserve_says_whether_it_observed(self, broken: Any) -> None:
        assert [unobserve(broken), unobserve(broken)] == [True, False]
