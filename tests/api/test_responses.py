"""What a Decision looks like over HTTP: headers that agree with it and are true, bodies by Accept, and no leaks."""

import asyncio
import json
import math
import pickle
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, cast

import http_sf
import pytest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.template import Template, engines
from django.template.defaulttags import IfNode
from django.template.response import SimpleTemplateResponse
from django.test import Client, RequestFactory, SimpleTestCase, override_settings
from django.test.utils import _TestState
from django.utils import timezone, translation
from django.utils.functional import SimpleLazyObject
from django.utils.html import escape, strip_tags
from hypothesis import given, reject
from hypothesis import strategies as st

from django_quota import Decision, Rule, check, check_all, peek, quota
from django_quota.adapters import arefusal_response, refusal_response, write_headers
from django_quota.exceptions import ConfigurationError, RuleError
from django_quota.http import refusal_page
from django_quota.testing import freeze
from tests.support.calls import always
from tests.support.inputs import inputs
from tests.support.overridden import override

PROBLEM, HTML, TEXT = "application/problem+json", "text/html; charset=utf-8", "text/plain; charset=utf-8"
NOW = 1_790_000_000_123_457  # 2026-09-21 14:13:20.123457 UTC
SECOND = 1_000_000
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
SECRET = "s3cret-value"
INTEGERS = range(1_000_000_000_000_000)
"""What an integer may be in RFC 9651, from 0 up."""

NUMBERS = count()

pytestmark = pytest.mark.usefixtures("memory_store")


def get(accept: str | None = None, **meta: Any) -> Any:
    given = {} if accept is None else {"HTTP_ACCEPT": accept}
    return RequestFactory().get("/", **{"REMOTE_ADDR": "192.0.2.1", **given, **meta})


def parsed(response: HttpResponseBase, name: str) -> list[tuple[str, dict[str, Any]]]:
    found = http_sf.parse(response.headers[name].encode("ascii"), tltype="list")
    assert isinstance(found, list)
    return found  # type: ignore[return-value]


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


def refused(accept: str | None = None, rate: str = "0/m", **options: Any) -> HttpResponse:
    request = get(accept)
    with freeze(NOW):
        return refusal_response(request, check(rate, request, **options))


# --- headers ----------------------------------------------------------------------------------------------------------


def agree(response: HttpResponseBase, decision: Decision) -> None:
    policy, state = parsed(response, "RateLimit-Policy"), parsed(response, "RateLimit")
    names = [name for name, _ in policy]
    assert names == [name for name, _ in state]
    assert len(set(names)) == len(names) == len(decision.outcomes)
    for (name, p), (_, s), outcome in zip(policy, state, decision.outcomes, strict=True):
        assert type(name) is str
        assert (p["q"], p.get("w")) == (outcome.limit, outcome.window)
        more = {} if outcome.next_after is None else {"t": math.ceil(outcome.next_after)}
        remaining = outcome.remaining or 0
        assert s == {"r": max(remaining, 0), **more}
        assert ("t" in s) == (remaining < outcome.of.capacity)
        assert outcome.allowed or outcome.retry_after is None or s["t"] <= max(1, math.ceil(outcome.retry_after))
        assert all(type(number) is int and number in INTEGERS for number in (*s.values(), p["q"], p.get("w", 0)))
        assert s["r"] <= p["q"]
    wait = None if decision.allowed or decision.retry_after is None else max(1, math.ceil(decision.retry_after))
    assert response.headers.get("Retry-After") == (None if wait is None else str(wait))


RATES = st.builds(
    lambda count, multiple, unit: f"{count}/{multiple}{unit}",
    st.sampled_from([1, 2, 3, 7, 100, 5_000, 10**12]), st.sampled_from([1, 5, 30]), st.sampled_from("smhd"),
)  # fmt: skip
OPTIONS: list[dict[str, Any]] = [
    {}, {"precision": 2}, {"count_refused": True}, {"algorithm": "token_bucket", "burst": 4},
    {"algorithm": "fixed_window"}, {"algorithm": "token_bucket"}, {"algorithm": "leaky_bucket"},
]  # fmt: skip


def of_any_rule(test: Callable[..., None]) -> Callable[..., None]:
    return inputs(120)(
        given(
            name=st.text(min_size=1, max_size=12),
            rates=st.lists(RATES, min_size=1, max_size=3),
            options=st.sampled_from(OPTIONS),
            cost=st.sampled_from([1, 2, 5, 10**12]),
            steps=st.lists(st.integers(0, 90 * SECOND), min_size=1, max_size=5),
        )(test)
    )


def any_rule(name: str, rates: list[str], options: dict[str, Any], cost: int) -> Rule:
    try:
        return Rule.make(name, *rates, **options, cost=cost)
    except RuleError:
        reject()


def answered(decision: Decision) -> HttpResponseBase:
    return write_headers(HttpResponse(), decision) if decision.allowed else refusal_response(get(), decision)


@of_any_rule
def test_headers_agree_with_the_decision(
    name: str, rates: list[str], options: dict[str, Any], cost: int, steps: list[int]
) -> None:
    subject, now = f"number-{next(NUMBERS)}", NOW
    rule = any_rule(name, rates, options, cost)

    for step in steps:
        with freeze(now):
            decision = check(rule, subject)
            response = answered(decision)
        agree(response, decision)
        now += step


@of_any_rule
def test_a_client_that_waits_for_as_long_as_a_header_says_is_admitted(
    name: str, rates: list[str], options: dict[str, Any], cost: int, steps: list[int]
) -> None:
    subject, now = f"number-{next(NUMBERS)}", NOW
    rule = any_rule(name, rates, options, cost)
    admitted = []

    for step in steps:
        with freeze(now):
            response = answered(check(rule, subject))
        if "Retry-After" in response.headers:
            now += int(response.headers["Retry-After"]) * SECOND
            with freeze(now):
                decision = check(rule, subject)
                response = answered(decision)
            agree(response, decision)
            admitted.append(response.status_code == 200)
        now += step

    assert all(admitted)


def test_the_wait_of_a_block_is_its_own_even_if_another_limit_is_used_up_for_longer() -> None:
    """A block asks no store, so nobody knows of the other limit."""
    limited: Any = quota("1/d", name="daily")(quota("9/m", name="guarded")(view))
    with freeze(NOW):
        waits = [int(limited(get()).headers.get("Retry-After", 0)) for _ in range(2)]
        override(f"b 0 {NOW + 60 * SECOND} -", "guarded", "ip:192.0.2.1")
        waits.append(int(limited(get()).headers["Retry-After"]))
    assert waits == [0, pytest.approx(86_400, abs=1), 60]


@pytest.mark.parametrize(
    ("rule", "name"),
    [('a"b\\', "a%22b%5C"), ("größe", "gr%C3%B6%C3%9Fe"), ("a\r\nb", "a%0D%0Ab"), ("10/m", "10/m"), ("end.", "end."),
     ("(all)", "(all)"), ("() !#$&'*+,-/:;<=>?@[]^_`{|}~x9", "() !#$&'*+,-/:;<=>?@[]^_`{|}~x9"), ("50%", "50%25")],
)  # fmt: skip
def test_a_name_is_quoted(rule: str, name: str) -> None:
    ((shown, _),) = parsed(quota("10/m", name=rule)(view)(get()), "RateLimit-Policy")
    assert shown == name


@pytest.mark.parametrize(
    ("rule", "name"),
    [("shop.views.Buy#2", "Buy#2"), ("shop.views.Buy(plan='a.b')", "Buy"), ("shop.views.Buy(n=(1,))#2", "Buy#2"),
     ("shop.views.Buy(text='a\nb')", "Buy")],
)  # fmt: skip
def test_no_module_path_or_argument_leaks(rule: str, name: str) -> None:
    ((shown, _),) = parsed(quota("10/m", name=rule)(view)(get()), "RateLimit-Policy")
    assert shown == name


def test_rules_of_views_with_one_name_are_numbered() -> None:
    limited: Any = view
    for module in ("c", "b", "a"):
        limited = quota("9/h", "5/m", name=f"{module}.search")(limited)

    shown = [name for name, _ in parsed(limited(get()), "RateLimit-Policy")]

    assert shown == [f"search-{window}{number}" for number in ("", "-2", "-3") for window in "hm"]


@pytest.mark.parametrize("legacy", [False, True], ids=["without legacy ones", "with legacy ones"])
@pytest.mark.parametrize("chosen", [True, "draft-11", False], ids=["on", "by draft", "off"])
def test_the_settings_choose_the_headers(settings: Any, chosen: object, legacy: bool) -> None:
    settings.QUOTA = {"STORE": "memory", "HEADERS": chosen, "LEGACY_HEADERS": legacy}

    with freeze(NOW):
        headers = quota("9/h", "5/m")(view)(get()).headers

    assert ("RateLimit" in headers, "RateLimit-Policy" in headers) == (bool(chosen), bool(chosen))
    found = [headers.get(f"X-RateLimit-{name}") for name in ("Limit", "Remaining", "Reset")]
    assert found == (["5", "4", "60"] if legacy else [None] * 3)


def test_the_older_headers_have_whole_seconds_after_which_all_is_free(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "LEGACY_HEADERS": True}
    with freeze(NOW):
        check("5/m", "user:1")
    with freeze(NOW + SECOND // 2):
        headers = write_headers(HttpResponse(), peek("5/m", "user:1")).headers

    assert headers["X-RateLimit-Reset"] == "60"


def test_the_older_headers_are_left_out_if_no_limit_binds(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "LEGACY_HEADERS": True}
    away = Decision.without_limit("r", "user:1", allowed=False, degraded=True, enforced=True)

    headers = refusal_response(get(), check("5/m", "user:1").combined_with(away)).headers

    assert ("RateLimit" in headers, [name for name in headers if name.startswith("X-RateLimit")]) == (True, [])


@pytest.mark.parametrize(("is_away", "status"), [(False, 429), (True, 503)], ids=["a local count", "nobody"])
def test_a_refusal_without_the_store_is_a_503_if_no_limit_refuses(is_away: bool, status: int) -> None:
    away = Decision.without_limit("r", "user:1", allowed=not is_away, degraded=True, enforced=is_away)
    decision = check("5/m" if is_away else "0/m", "user:1").combined_with(away)

    assert refusal_response(get(), decision).status_code == status


# --- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (None, PROBLEM), ("*/*", PROBLEM), (PROBLEM, PROBLEM), ("image/png", PROBLEM), (BROWSER, HTML),
        ("TEXT/HTML", HTML), ("text/plain", TEXT), ("text/html;q=0.1, text/plain", TEXT), ("text/html;q=0", PROBLEM),
        ("application/json, text/plain, */*", PROBLEM), ("text/html, */*", HTML), ("text/html;level=1", PROBLEM),
        ("text/plain; charset=UTF-8, application/json;q=0.9", TEXT),
        ("text/plain; charset=latin-1, text/html;q=0.1", HTML),
        (f"{PROBLEM}; charset=utf-8, text/html;q=0.9", PROBLEM),
        ("application/json; charset=utf-8, text/html;q=0.9", PROBLEM),
        # of a long header the first 12 ranges are read, and the first 256 characters
        ("a/b," * 11 + "text/html", HTML), ("a/b," * 12 + "text/html", PROBLEM),
        ("a/b;c=" + "d" * 250 + ",text/html", PROBLEM), ("text/plain," + "a/b," * 1_000, TEXT),
    ],
)  # fmt: skip
def test_the_body_is_what_is_accepted(accept: str | None, kind: str) -> None:
    response = refused(accept)
    assert (response.status_code, response.headers["Content-Type"]) == (429, kind)
    assert (response.headers["Cache-Control"], response.headers["Vary"]) == ("no-store", "Accept")


def test_vary_keeps_what_other_middleware_adds(client: Client, settings: Any) -> None:
    settings.MIDDLEWARE = ["django.middleware.locale.LocaleMiddleware", *settings.MIDDLEWARE]
    with translation.override("en"):  # the middleware leaves its language active
        for _ in range(4):
            response = client.get("/limited/", headers={"Accept": BROWSER, "Accept-Language": "de"})
    assert (response.status_code, response.headers["Vary"]) == (429, "Accept, Accept-Language")
    assert "Zu viele Anfragen" in response.text


class TestProblemJson:
    BAN: ClassVar[Any] = {"name": "b", "ban": {"after": "1/m", "for": "10m"}}

    def test_of_a_limit_has_its_wait(self) -> None:
        limited: Any = quota("5/m", name="wide")(quota("1/m", name='na"rrow')(quota("0/h", shadow=True)(view)))
        with freeze(NOW):
            assert limited(get()).status_code == 200
            response = limited(get("application/json"))

        assert json.loads(response.content) == {
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Too many requests",
            "status": 429,
            "detail": "The limit is 1 per minute. Please try again in 60 seconds.",
            "violated-policies": ["na%22rrow"],
            "retry_after": 60,
        }

    def test_of_a_ban_has_its_wait(self) -> None:
        with freeze(NOW):
            banned = [check("1/m", "global", **self.BAN) for _ in range(3)][-1]
            problem = json.loads(refusal_response(get(), banned).content)

        assert problem["type"].endswith("#abnormal-usage-detected")
        assert [problem[each] for each in ("status", "retry_after", "violated-policies")] == [429, 600, ["b"]]

    def test_of_a_block_is_not_that_of_a_ban(self) -> None:
        override(f"b 0 {NOW + 60 * SECOND} ", "wide", "global")
        with freeze(NOW):
            problem = json.loads(refusal_response(get(), check("5/m", "global", name="wide")).content)

        assert problem["type"].endswith("#quota-exceeded")

    def test_of_what_is_shut_for_longer_than_a_ban_is_not_that_of_the_ban(self) -> None:
        with freeze(NOW):
            for _ in range(3):
                check("1/m", "global", **self.BAN)
            refused = check_all(
                [
                    (Rule.make(self.BAN["name"], "1/m", ban=self.BAN["ban"]), "global"),
                    (Rule.make("shut", "0/m"), "global"),
                ]
            )
            problem = json.loads(refusal_response(get(), refused).content)

        assert (refused.rule, problem["type"].partition("#")[2]) == ("shut", "quota-exceeded")

    def test_of_a_ban_does_not_show_what_the_limit_has_left(self) -> None:
        with freeze(NOW):
            for _ in range(3):
                check("1/m", "global", **self.BAN)

        with freeze(NOW + 61 * SECOND):
            banned = check("1/m", "global", **self.BAN)
            assert parsed(refusal_response(get(), banned), "RateLimit") == [("b", {"r": 0, "t": 539})]

    def test_of_a_limit_leaves_out_a_tier_without_one(self) -> None:
        unlimited = quota({"anonymous": None, "authenticated": "5/m"}, name="plan", daily=True)
        response = unlimited(quota("0/m", name="shut")(view))(get(PROBLEM))

        assert json.loads(response.content)["violated-policies"] == ["shut"]
        assert [name for name, _ in parsed(response, "RateLimit-Policy")] == ["shut"]

    def test_of_an_outage_has_no_limit(self) -> None:
        denied = Decision.without_limit("r", "user:1", allowed=False, degraded=True, enforced=True)

        away = refusal_response(get(), denied)

        problem = json.loads(away.content)
        assert problem["type"].endswith("#temporary-reduced-capacity")
        assert (away.status_code, problem["status"], problem["violated-policies"]) == (503, 503, [])
        assert "RateLimit" not in away.headers


@pytest.mark.parametrize("accept", [PROBLEM, BROWSER, TEXT], ids=["problem", "page", "text"])
class TestAnAnswerWhileTheStoreIsAway:
    @pytest.fixture
    def away(self, accept: str, request: pytest.FixtureRequest) -> HttpResponse:
        rule = request.node.name  # a refusal of a rule is logged once a second
        denied = Decision.without_limit(rule, "user:1", allowed=False, degraded=True, enforced=True)
        return refusal_response(get(accept), denied)

    def test_is_a_503(self, away: HttpResponse) -> None:
        assert away.status_code == 503

    def test_may_be_asked_for_again_in_a_second(self, away: HttpResponse) -> None:
        assert away.headers["Retry-After"] == "1"

    def test_is_stored_by_nobody(self, away: HttpResponse) -> None:
        assert away.headers["Cache-Control"] == "no-store"

    def test_is_not_logged_as_a_refusal(self, away: HttpResponse, caplog: pytest.LogCaptureFixture) -> None:
        assert caplog.get_records("setup") == []


def test_an_answer_of_another_status_is_not_logged_as_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    refused = check("0/m", "user:1", name="answered as a 404")

    write_headers(HttpResponse(status=404), refused)

    assert caplog.messages == []


def test_a_refusal_is_logged_though_the_clock_went_back(caplog: pytest.LogCaptureFixture) -> None:
    for moment in (NOW, NOW - 60 * SECOND):
        with freeze(moment):
            refusal_response(get(), check("0/m", "user:1", name="before"))

    assert caplog.messages == ["Too many requests: rule 'before' refuses 'user:1'."] * 2


def test_the_record_of_a_refusal_has_its_status(caplog: pytest.LogCaptureFixture) -> None:
    refused(name="recorded")

    (record,) = caplog.records
    assert vars(record)["status_code"] == 429


def test_what_is_left_and_the_wait_have_at_most_fifteen_digits_in_a_header() -> None:
    outcome = peek("5/m", "global").outcomes[0]._replace(remaining=10**15, next_after=1e15)

    response = write_headers(HttpResponse(), Decision.of((outcome,)))

    assert parsed(response, "RateLimit") == [("5/m", {"r": 999_999_999_999_999, "t": 999_999_999_999_999})]


def test_a_header_says_of_a_debt_that_nothing_is_left() -> None:
    outcome = peek("5/m", "global").outcomes[0]._replace(remaining=-3)

    response = write_headers(HttpResponse(), Decision.of((outcome,)))

    assert parsed(response, "RateLimit") == [("5/m", {"r": 0})]


# --- what must not leak -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", [None, BROWSER, "text/plain"])
def test_no_subject_secret_or_module_path_leaks(accept: str) -> None:
    limited = quota("1/m", key=["header:X-Api-Key", always(SECRET)])(view)
    meta = {"HTTP_X_API_KEY": SECRET, "REMOTE_ADDR": "203.0.113.77"}
    kept = pickle.dumps(limited(get(accept, **meta)))  # as `cache_page` above it puts it into a cache
    request = get(accept, **meta)
    response = limited(request)
    assert response.status_code == 429
    sent = response.text + str(response.headers)
    secrets = [SECRET, "203.0.113.77", "x-api-key:", request.quota.subject, "tests.", "test_responses", "quota:1:"]
    assert not [word for word in secrets if word in sent]
    assert not [word for word in secrets[:4] if word.encode() in kept]


# --- the site's own answer: the setting RESPONSE ----------------------------------------------------------------------


def teapot(request: HttpRequest, decision: Decision) -> HttpResponse:
    return JsonResponse({"rule": decision.rule, "path": request.path}, status=418)


async def in_vain(request: HttpRequest, decision: Decision) -> HttpResponse:
    return HttpResponse("never")


def answered_by(function: Any, **more: Any) -> Any:
    return override_settings(QUOTA={"STORE": "memory", "RESPONSE": function, **more})


@pytest.mark.parametrize(("url", "most"), [("/limited/", 3), ("/by-hand/", 2)], ids=["by a rule", "by an exception"])
class TestAnswerOfTheSite:
    @pytest.fixture
    def replies(self, url: str, most: int, client: Client) -> Iterator[list[Any]]:
        """As many as the limit, and a refusal."""
        with answered_by(f"{__name__}.teapot"), freeze(NOW):
            yield [client.get(url) for _ in range(most + 1)]

    def test_it_is_the_body_of_a_refusal(self, replies: list[Any], url: str, most: int) -> None:
        assert [reply.status_code for reply in replies] == [200] * most + [418]
        assert replies[-1].json() == {"rule": url.strip("/"), "path": url}

    def test_we_add_the_headers(self, replies: list[Any], url: str, most: int) -> None:
        assert [replies[-1].headers[name] for name in ("Retry-After", "Cache-Control")] == ["60", "no-store"]
        assert parsed(replies[-1], "RateLimit") == [(url.strip("/"), {"r": 0, "t": 60})]


@pytest.mark.parametrize("accept", ["text/html", "text/plain"])
def test_without_its_template_a_visitor_gets_the_sentence_as_text(accept: str, client: Client, settings: Any) -> None:
    settings.QUOTA = {"STORE": "memory", "TEMPLATE": "shop/missing.html"}
    for _ in range(4):
        reply = client.get("/limited/", headers={"Accept": accept})

    assert (reply.status_code, reply["Content-Type"]) == (429, "text/plain; charset=utf-8")
    assert reply.text.startswith("The limit is 3 per minute. Please try again in ")


def test_headers_that_it_brings_are_kept(client: Client) -> None:
    own = {"Retry-After": "7", "RateLimit": '"mine";r=0', "Cache-Control": "private", "X-RateLimit-Limit": "1"}
    with answered_by(lambda request, decision: HttpResponse("no", headers=own), LEGACY_HEADERS=True):
        for _ in range(4):
            reply = client.get("/limited/")
    assert {name: reply.headers[name] for name in own} == own
    assert "RateLimit-Policy" not in reply.headers, "the names of two policies would not pair up"
    assert reply.headers["X-RateLimit-Remaining"] == "0"


@pytest.mark.parametrize("name", ["RateLimit", "RateLimit-Policy"])
def test_of_the_two_headers_the_one_that_it_brings_is_alone(name: str) -> None:
    with answered_by(lambda request, decision: HttpResponse("no", headers={name: '"mine";q=0'})):
        headers = refused().headers

    assert {each: headers.get(each) for each in ("RateLimit", "RateLimit-Policy") if each in headers} == {
        name: '"mine";q=0'
    }


@pytest.mark.parametrize("name", ["Limit", "Remaining", "Reset"])
def test_each_of_the_older_headers_that_it_brings_is_kept(name: str) -> None:
    own = {f"X-RateLimit-{name}": "mine"}
    with answered_by(lambda request, decision: HttpResponse("no", headers=own), LEGACY_HEADERS=True):
        headers = refused(rate="5/m", cost=6).headers

    assert {each: headers[f"X-RateLimit-{each}"] for each in ("Limit", "Remaining", "Reset")} == {
        "Limit": "5", "Remaining": "5", "Reset": "0", name: "mine",
    }  # fmt: skip


def test_a_response_that_it_returns_each_time_has_the_wait_of_each_refusal() -> None:
    kept = HttpResponse("slow down", status=429)

    waits = []
    with answered_by(lambda request, decision: kept):
        for second in (0, 20, 40):
            with freeze(NOW + second * SECOND):
                decision = check("1/m", "user:1")
                waits += [] if decision else [refusal_response(get(), decision).headers["Retry-After"]]

    assert waits == ["40", "20"]


def test_where_it_returns_none_the_default_answer_is_sent() -> None:
    with answered_by(lambda request, decision: None):
        assert refused("text/plain").text == "This is closed until further notice.\n"


def test_a_template_response_is_rendered() -> None:
    template = engines["django"].from_string("no: {{ rule }}")
    with answered_by(lambda request, decision: SimpleTemplateResponse(template, {"rule": decision.rule}, status=429)):
        assert refused(name="r").text == "no: r"


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        pytest.param(lambda r, d: "text", "str", id="a string"),
        pytest.param(lambda r, d: 429, "int", id="a number"),
        pytest.param(lambda r, d: [in_vain(r, d)][0], "coroutine", id="a coroutine"),
    ],
)
def test_what_is_not_a_response_is_a_clear_error(function: Any, kind: str) -> None:
    """What must be awaited is closed, or Python warns."""
    with answered_by(function), pytest.raises(ConfigurationError) as raised:
        refused()

    assert str(raised.value) == (
        f'QUOTA["RESPONSE"] returned {kind}, not a response. Return an HttpResponse, or None for the default response.'
    )


# --- the page: what it says, and that it works under a strict Content-Security-Policy --------------------------------


class Page:
    """A page: its words, and the tags of one name with their attributes."""

    def __init__(self, response: HttpResponse) -> None:
        self.html = response.text
        self.text = " ".join(strip_tags(re.sub(r"<style.*?</style>", "", self.html, flags=re.DOTALL)).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [dict(re.findall(r'([\w-]+)="([^"]*)"', found)) for found in re.findall(rf"<{tag}\b[^>]*>", self.html)]


def page_request(path: str = "/", method: str = "get") -> HttpRequest:
    made: HttpRequest = getattr(RequestFactory(), method)(path, headers={"Accept": "text/html"})
    return made


def refused_page(rate: str = "1/m", request: HttpRequest | None = None, later: int = 0) -> Page:
    """Use a limit up, and be refused some microseconds later."""
    with freeze(NOW):
        check(rate, "global", cost=peek(rate, "global").remaining or 1)
    with freeze(NOW + later):
        return Page(refusal_response(request or page_request(), check(rate, "global")))


def test_a_limit_that_admits_nothing_has_no_bar() -> None:
    page = Page(refusal_response(page_request(), check("0/m", "global", 5)))

    assert page.all("meter") == []


def test_a_limit_that_admits_nothing_may_be_lifted_so_its_page_has_a_link() -> None:
    page = Page(refusal_response(page_request(), check("0/m", "global", 5)))

    assert [link["href"] for link in page.all("a")] == [""]


def test_the_page_does_not_show_a_limit_that_only_reports() -> None:
    limited: Any = quota("1/m", "1/h", name="one")(quota("2/h", name="trial", shadow=True, cost=2)(view))
    with freeze(NOW):
        assert limited(page_request()).status_code == 200
        page = Page(limited(page_request()))

    assert [(meter["max"], meter["value"]) for meter in page.all("meter")] == [("1", "1"), ("1", "1")]


def test_whether_a_moment_is_today_is_a_matter_of_the_time_zone_of_the_visitor() -> None:
    midnight = (NOW // SECOND // 86_400 + 1) * 86_400 * SECOND
    with timezone.override("Asia/Tokyo"), freeze(midnight - SECOND):  # it is nearly nine in the morning there
        outcome = check("5/m", "global", cost=6).outcomes[0]._replace(retry_after=1.0)
        page = Page(refusal_response(page_request(), Decision.of((outcome,))))

    assert "Try again at: 09:00:00 JST" in page.text


def test_a_moment_just_after_midnight_has_its_day() -> None:
    midnight = (NOW // SECOND // 86_400 + 1) * 86_400 * SECOND
    with freeze(midnight - SECOND):
        outcome = check("5/m", "global", cost=6).outcomes[0]._replace(retry_after=1.0)
        page = Page(refusal_response(page_request(), Decision.of((outcome,))))

    assert "Try again at: Sept. 22, 2026, 00:00:00 UTC" in page.text


@pytest.fixture(autouse=True)
def in_utc() -> Iterator[None]:
    with timezone.override("UTC"):
        yield


@pytest.fixture(params=["rendered", "remembered"])
def rendering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Pages as tests see them, and as a site sends them: Django's test environment watches each rendering."""
    if request.param == "remembered":
        monkeypatch.setattr(Template, "_render", cast("Any", _TestState).saved_data.template_render)
    return str(request.param)


def tags_rendered(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    found: list[object] = []
    render = IfNode.render

    def note(node: Any, context: Any) -> Any:
        found.append(node)
        return render(node, context)

    monkeypatch.setattr(IfNode, "render", note)
    return found


@pytest.mark.parametrize("rendering", ["remembered"], indirect=True)
def test_pages_that_are_alike_are_rendered_once(rendering: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, rendered = refused_page("1/m").html, tags_rendered(monkeypatch)
    assert refused_page("1/m", page_request("/other/?page=2")).html == first
    assert rendered == []


@pytest.mark.parametrize("rendering", ["remembered"], indirect=True)
def test_pages_that_differ_by_their_nonce_are_rendered_once(rendering: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def page(nonce: str) -> Page:
        request = page_request()
        request.csp_nonce = nonce  # type: ignore[attr-defined]
        return refused_page("1/m", request)

    page("one")
    rendered = tags_rendered(monkeypatch)

    assert page("other").all("style") == [{"nonce": "other"}]
    assert rendered == []


@pytest.mark.parametrize("rendering", ["remembered"], indirect=True)
def test_the_page_of_one_client_is_that_of_another_within_a_second(
    rendering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def page(subject: str, later: int) -> str:
        with freeze(NOW + later):
            refused = [check("2/m", subject, name="flood", algorithm="token_bucket") for _ in range(3)][-1]
            return Page(refusal_response(page_request(), refused)).html

    first, rendered = page("org:1", 0), tags_rendered(monkeypatch)

    assert page("org:2", 876_000) == first
    assert rendered == []


SAMPLES: list[dict[str, Any]] = [
    {}, {"rate": "2/m"}, {"rate": "1/d"}, {"later": 1_500_000}, {"method": "post"}, {"language": "ar"},
    {"language": None, "rate": "2/d"}, {"zone": "Asia/Shanghai"}, {"zone": "America/Chicago"},
    {"nonce": "<a>"}, {"nonce": "b"},
]  # fmt: skip


@pytest.mark.parametrize("rendering", ["remembered"], indirect=True)
def test_a_remembered_page_is_what_would_be_rendered(rendering: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def page(
        rate: str = "1/m",
        later: int = 0,
        method: str = "get",
        language: str | None = "en",
        zone: str = "UTC",
        nonce: str = "",
    ) -> str:
        made = page_request(method=method)
        made._csp_nonce = nonce or None  # type: ignore[attr-defined]
        with translation.override(language), timezone.override(zone):
            return refused_page(rate, made, later).html

    remembered = [page(**sample) for sample in SAMPLES * 2]
    assert len(set(remembered)) == len(SAMPLES)
    monkeypatch.setattr(refusal_page, "_is_watched", lambda: True)
    assert remembered == [page(**sample) for sample in SAMPLES * 2]


def test_a_page_of_the_site_is_rendered_for_each_visitor(rendering: str, settings: Any) -> None:
    loader = ("django.template.loaders.locmem.Loader", {"429.html": "{{ request.path }} {{ detail }}"})
    processors = ["django.template.context_processors.request"]
    settings.TEMPLATES = [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "OPTIONS": {"loaders": [loader], "context_processors": processors},
        }
    ]
    pages = [refused_page("1/m", page_request(path)).html for path in ("/one/", "/two/")]
    assert [page.split()[0] for page in pages] == ["/one/", "/two/"]


def of_a_thread(request: HttpRequest) -> dict[str, object]:
    """A context processor that may ask the database: it fails in the thread of an event loop."""
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    return {}


def test_under_async_a_page_of_the_site_is_rendered_in_a_thread(settings: Any) -> None:
    loader = ("django.template.loaders.locmem.Loader", {"429.html": "{{ title }}"})
    options = {"loaders": [loader], "context_processors": [f"{__name__}.of_a_thread"]}
    settings.TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "OPTIONS": options}]

    reply = asyncio.run(arefusal_response(page_request(), check("0/m", "user:1")))

    assert reply.content == b"Too many requests"


CONTEXT = (
    "{{ status }}|{{ title }}|{{ detail }}|{{ wait }}|{{ until|date:'c' }}|{{ is_today }}|{{ bar }}|{% for each in "
    "limits %}{{ each.rate }},{{ each.limit }},{{ each.remaining }},{{ each.used }},{{ each.cost }},{{ each.wait }};"
    "{% endfor %}|{{ try_again }}|{{ is_safe }}|{{ csp_nonce }}|{{ decision.rule }}"
)


@pytest.fixture
def own_page(settings: Any) -> None:
    """The site's own page shows all that a template can show."""
    loader = ("django.template.loaders.locmem.Loader", {"429.html": CONTEXT})
    backend = "django.template.backends.django.DjangoTemplates"
    settings.TEMPLATES = [{"BACKEND": backend, "OPTIONS": {"loaders": [loader]}}]


@pytest.mark.usefixtures("own_page")
@pytest.mark.parametrize(
    ("rate", "cost", "method", "shown"),
    [
        pytest.param(
            "5/m",
            2,
            "get",
            (
                "429|Too many requests|The limit is 5 per minute. This request counts as 2, and 0 of 5 are left. "
                "Please try again in 60 seconds.|60|2026-09-21T14:14:21+00:00|True|60|5 per minute,5,0,5,2,60 seconds;|"
                "True|True|n&lt;|own"
            ),
            id="a wait",
        ),
        pytest.param(
            "5/d",
            1,
            "head",
            (
                "429|Too many requests|The limit is 5 per day. Please try again in 24 hours.|86400|"
                "2026-09-22T14:13:21+00:00|False|None|5 per day,5,0,5,1,24 hours;|True|True|n&lt;|own"
            ),
            id="a wait until tomorrow",
        ),
        pytest.param(
            "5/m",
            6,
            "post",
            (
                "429|Too many requests|The limit is 5 per minute. This request counts as 6, more than the 5 that are "
                "ever left. Trying again will not help.|None||False|None|5 per minute,5,0,5,6,;|False|False|n&lt;|own"
            ),
            id="no wait",
        ),
    ],
)
def test_the_page_of_a_site_may_show(rate: str, cost: int, method: str, shown: str) -> None:
    request = page_request(method=method)
    request.csp_nonce = "n<"  # type: ignore[attr-defined]
    with freeze(NOW):
        check(rate, "global", 5, name="own")
        response = refusal_response(request, check(rate, "global", cost, name="own"))

    assert response.text == shown


def test_a_test_can_ask_which_template_was_used() -> None:
    limited: Any = quota("0/m")(view)
    for _ in range(2):
        with SimpleTestCase().assertTemplateUsed("429.html"):
            limited(page_request())


@pytest.mark.parametrize("later", [0, 876_542, 876_543, 876_544, 59_999_999])
def test_the_moment_is_within_two_seconds_after_the_limit_is_free(later: int) -> None:
    (moment,) = refused_page("1/m", later=later).all("time")
    named = datetime.fromisoformat(moment["datetime"]).timestamp() * SECOND
    free = NOW + 60 * SECOND
    assert free <= named < free + 2 * SECOND


def test_the_moment_is_in_the_time_zone_of_the_site() -> None:
    page = refused_page()

    assert page.all("time") == [{"datetime": "2026-09-21T14:14:21+00:00"}]
    assert "Try again at: 14:14:21 UTC" in page.text


def test_the_moment_is_in_the_time_zone_of_the_visitor() -> None:
    with timezone.override("Pacific/Auckland"), translation.override("ar"):
        page = refused_page("1/d")

    assert page.all("time") == [{"datetime": "2026-09-23T02:13:21+12:00"}]


def test_the_page_is_in_the_language_of_the_visitor() -> None:
    with timezone.override("Pacific/Auckland"), translation.override("ar"):
        page = refused_page("1/d")

    assert page.all("html") == [{"lang": "ar", "dir": "rtl"}]


DOCUMENT = [
    "<!doctype html>",
    '<html lang="en-us" dir="ltr">',
    "<head>",
    '<meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    '<meta name="color-scheme" content="light dark">',
    '<meta name="robots" content="noindex">',
    "<title>Too many requests</title>",
    "<style></style>",
    "</head>",
    "<body>",
    "<main>",
    '<p class="status">429</p>',
    "<h1>Too many requests</h1>",
    "<p>The limit is 4 per hour. This request counts as 3, and 1 of 4 are left. Please try again in 60 minutes.</p>",
    '<p class="quiet">Try again at: <time datetime="2026-09-21T15:13:21+00:00">15:13:21 UTC</time></p>',
    '<svg class="bar" width="100%" height="8" aria-hidden="true">',
    '<rect width="100%" height="8" rx="4" fill="currentColor" opacity=".2"/>',
    (
        '<rect width="0" height="8" rx="4" fill="currentColor"><animate attributeName="width" from="0%" to="100%" '
        'dur="3600s" fill="freeze"/></rect>'
    ),
    "</svg>",
    '<ul class="limits">',
    "<li>",
    "5 per minute",
    '<meter min="0" low="0.5" high="4" optimum="0" max="5" value="3" aria-label="Used">3 / 5</meter>',
    '<span class="quiet">2 of 5 left · this request counts as 3 · again in 60 seconds</span>',
    "</li>",
    "<li>",
    "4 per hour",
    '<meter min="0" low="0.5" high="3" optimum="0" max="4" value="3" aria-label="Used">3 / 4</meter>',
    '<span class="quiet">1 of 4 left · this request counts as 3 · again in 60 minutes</span>',
    "</li>",
    "</ul>",
    '<p><a class="again" href="" rel="nofollow">Try again</a></p>',
    "</main>",
    "</body>",
    "</html>",
]
"""The lines of a page of two limits."""


class TestThePageOfSeveralLimits:
    @pytest.fixture
    def page(self) -> Page:
        limited: Any = quota("5/m", "4/h", "100/d", name="secret-name", cost=3)(lambda request: HttpResponse("ok"))
        with freeze(NOW):
            assert limited(page_request()).status_code == 200
            return Page(limited(page_request()))

    def test_shows_for_each_limit_that_refuses_what_it_has_left(self, page: Page) -> None:
        assert [(meter["max"], meter["value"]) for meter in page.all("meter")] == [("5", "3"), ("4", "3")]
        assert "5 per minute 3 / 5 2 of 5 left · this request counts as 3 · again in 60 seconds" in page.text
        assert "4 per hour 3 / 4 1 of 4 left · this request counts as 3 · again in 60 minutes" in page.text

    def test_is_a_whole_document(self, page: Page) -> None:
        html = re.sub("<style>.*</style>", "<style></style>", page.html, flags=re.DOTALL)

        assert [line.strip() for line in html.splitlines() if line.strip()] == DOCUMENT

    def test_does_not_show_limits_that_admit(self, page: Page) -> None:
        assert "per day" not in page.text

    def test_does_not_show_the_name_of_the_rule(self, page: Page) -> None:
        assert "secret-name" not in page.text


def test_each_sentence_of_the_page_is_in_the_language_of_the_visitor() -> None:
    limited: Any = quota("5/m", "4/h", cost=3)(view)
    with freeze(NOW), translation.override("de"):
        limited(page_request())
        page, posted = Page(limited(page_request())), Page(limited(page_request(method="post")))

    assert page.text == (
        "Zu viele Anfragen 429 Zu viele Anfragen Das Limit ist 4 pro Stunde. Diese Anfrage zählt als 3, und 1 von 4 "
        "sind übrig. Bitte versuchen Sie es in 60 Minuten erneut. Wieder möglich ab: 15:13:21 UTC 5 pro Minute 3 / 5 "
        "2 von 5 übrig · diese Anfrage zählt als 3 · wieder in 60 Sekunden 4 pro Stunde 3 / 4 1 von 4 übrig · diese "
        "Anfrage zählt als 3 · wieder in 60 Minuten Erneut versuchen"
    )
    assert posted.text.endswith(
        " Was Sie gesendet haben, wurde nicht angenommen. Um es erneut zu senden, gehen Sie im Browser zurück."
    )
    assert [meter["aria-label"] for meter in page.all("meter")] == ["Verbraucht"] * 2


def test_a_page_without_translations_is_in_english() -> None:
    with translation.override(None):
        page = refused_page()

    assert page.all("html") == [{"lang": "en", "dir": "ltr"}]


def test_a_get_that_no_wait_helps_sent_nothing_to_send_again() -> None:
    with freeze(NOW):
        page = Page(refusal_response(page_request(), check("5/m", "global", 6)))

    assert (page.all("a"), "What you sent" in page.text) == ([], False)


def test_the_page_of_one_limit_and_a_cost_of_one_has_no_list() -> None:
    assert refused_page().all("ul") == []


def test_the_page_of_one_limit_and_a_higher_cost_has_a_list_without_a_second_wait() -> None:
    with freeze(NOW):
        check("5/m", "global", 4)
        page = Page(refusal_response(page_request(), check("5/m", "global", 2)))

    assert "5 per minute 4 / 5 1 of 5 left · this request counts as 2 Try again" in page.text


def test_a_moment_of_another_day_has_its_day() -> None:
    assert "Try again at: Sept. 22, 2026, 14:13:21 UTC Try again" in refused_page("1/d").text


# --- the style of the page --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def style() -> dict[str, str]:
    """The rules of the page by selector, and each block of `@media` by its condition."""
    text = Path(refusal_page.__file__).parents[1].joinpath("templates/429.html").read_text()
    found = re.search("<style.*?>(.*)</style>", text, re.DOTALL)
    assert found is not None
    rules = re.findall(
        r"^    (\S[^{]*?) \{ ?(.*?) ?\}$", re.sub(r"\n      (.*)\n    \}", r" \1 }", found[1]), re.MULTILINE
    )
    return dict(rules)


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, as WCAG defines it."""
    digits = colour.lstrip("#")
    digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [":root", "@media (prefers-color-scheme: dark)"], ids=["light", "dark"])
@pytest.mark.parametrize(("ink", "paper"), [("text", "card"), ("quiet", "card"), ("card", "accent"), ("text", "page")])
def test_what_the_page_says_has_enough_contrast(ink: str, paper: str, scheme: str, style: dict[str, str]) -> None:
    colours = dict(re.findall(r"--(\w+): (#\w+)", style[scheme]))

    light, dark = sorted((luminance(colours[ink]), luminance(colours[paper])), reverse=True)

    assert (light + 0.05) / (dark + 0.05) >= 4.5  # level AA


def test_the_dark_page_is_dark(style: dict[str, str]) -> None:
    cards = [re.findall("--card: (#\\w+)", style[each])[0] for each in (":root", "@media (prefers-color-scheme: dark)")]

    assert [luminance(each) > 0.5 for each in cards] == [True, False]


def test_each_colour_that_the_page_uses_is_one_of_both_schemes(style: dict[str, str]) -> None:
    used = set(re.findall(r"var\(--(\w+)\)", " ".join(style.values())))
    schemes = [set(re.findall(r"--(\w+):", style[each])) for each in (":root", "@media (prefers-color-scheme: dark)")]

    assert [used, used] == schemes


def test_each_class_of_the_page_has_a_style(style: dict[str, str]) -> None:
    used = set(re.findall('class="(\\w+)"', "".join(DOCUMENT)))

    assert {f".{name}" for name in used} <= style.keys()


@pytest.mark.parametrize(
    ("selector", "rule"),
    [
        pytest.param("main", "overflow-wrap: anywhere;", id="a long word breaks"),
        pytest.param("main", "max-width: 34rem;", id="lines are short"),
        pytest.param("main", "width: 100%;", id="it fits a small screen"),
        pytest.param("*", "box-sizing: border-box;", id="with its margins"),
        pytest.param("body", "min-height: 100vh; display: grid; place-items: center;", id="it is in the middle"),
        pytest.param("meter", "display: block; width: 100%;", id="a bar is as wide as the page"),
        pytest.param(":focus-visible", "outline: 3px solid var(--accent);", id="the keyboard shows where it is"),
        pytest.param("@media (prefers-reduced-motion: reduce)", ".bar { display: none;", id="nothing moves"),
        pytest.param("@media (forced-colors: active)", ".again { border: 1px solid;", id="the link is a button"),
        pytest.param("time", "white-space: nowrap;", id="a moment stays in one line"),
        pytest.param(":root", "color-scheme: light dark;", id="both schemes"),
    ],
)
def test_the_page_can_be_read_by_everybody(selector: str, rule: str, style: dict[str, str]) -> None:
    assert rule in style[selector]


def test_only_a_get_is_tried_again_by_a_link_that_loads_the_same_page() -> None:
    page = refused_page(request=page_request('/a/?q="><script>&x=1'))
    assert "429 Too many requests The limit is 1 per minute. Please try again in 60 seconds." in page.text
    assert page.all("a")[0]["href"] == ""
    posted = refused_page(request=page_request("/a/", "post"))
    assert posted.all("a") == []
    assert "go back in your browser" in posted.text
    # It needs no script, no other file and no style attribute, and is not indexed.
    assert not re.search(r"<(script|link|img|iframe|form)\b|\s(style|on\w+)=|url\(|@import|https?://", page.html)
    assert {"name": "robots", "content": "noindex"} in page.all("meta")


@pytest.mark.parametrize(
    ("found", "words", "has_moment", "has_link"),
    [
        ({"why": "banned", "retry_after": 600.0}, "Please try again in 10 minutes.", True, True),
        ({"why": "blocked", "retry_after": 600.0}, "Please try again in 10 minutes.", True, True),
        ({"retry_after": None}, "counts as 6, more than the 5 that are ever left. Trying again will", False, False),
        ({"retry_after": 1e12}, "Please try again in 11574075 days", False, True),
    ],
)
def test_it_names_a_moment_where_one_helps(found: Any, words: str, has_moment: bool, has_link: bool) -> None:
    with freeze(NOW):
        outcome = check("5/m", "global", cost=6).outcomes[0]._replace(**found)
        page = Page(refusal_response(page_request(), Decision.of((outcome,))))
    assert words in page.text
    assert (bool(page.all("time")), bool(page.all("a"))) == (has_moment, has_link)
    assert "why" not in found or ("14:23:21 UTC" in page.text and page.all("meter") == [])


@pytest.mark.parametrize(
    ("wait", "has_bar", "has_moment"),
    [
        pytest.param(1, False, True, id="a second"),
        pytest.param(2, True, True, id="two seconds"),
        pytest.param(3_600, True, True, id="an hour"),
        pytest.param(3_601, False, True, id="more than an hour"),
        pytest.param(10 * 366 * 86_400, False, True, id="ten years"),
        pytest.param(10 * 366 * 86_400 + 1, False, False, id="more than ten years"),
    ],
)
def test_what_the_page_shows_of_a_wait_depends_on_its_length(wait: int, has_bar: bool, has_moment: bool) -> None:
    with freeze(NOW):
        outcome = check("5/m", "global", cost=6).outcomes[0]._replace(retry_after=float(wait))
        page = Page(refusal_response(page_request(), Decision.of((outcome,))))

    assert (bool(page.all("animate")), bool(page.all("time"))) == (has_bar, has_moment)


class TestThePageWhileTheStoreIsAway:
    @pytest.fixture
    def page(self) -> Page:
        denied = Decision.without_limit("r", "user:1", allowed=False, degraded=True, enforced=True)
        return Page(refusal_response(page_request("/a/"), denied))

    def test_is_a_503(self, page: Page) -> None:
        assert "503 Service unavailable This cannot be served right now." in page.text

    def test_has_a_link_to_try_again(self, page: Page) -> None:
        assert [link["href"] for link in page.all("a")] == [""]

    def test_promises_no_moment(self, page: Page) -> None:
        assert page.all("time") == []


class LazyNonce:
    """Django's own, which is false until it is asked for."""

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return "<nonce>"


def test_its_style_has_no_nonce_without_a_policy() -> None:
    assert refused_page().all("style") == [{}]


@pytest.mark.parametrize(
    ("name", "nonce"),
    [("csp_nonce", SimpleLazyObject(lambda: "of django-csp")), ("_csp_nonce", LazyNonce())],
    ids=["of django-csp", "of Django"],
)
def test_its_style_carries_the_nonce_of_the_policy(name: str, nonce: object) -> None:
    request = page_request()
    setattr(request, name, nonce)

    assert refused_page(request=request).all("style") == [{"nonce": escape(str(nonce))}]


BLOCKED_TITLES = {
    "en": "Access blocked",
    "de": "Zugang blockiert",
    "fr": "Accès bloqué",
    "es": "Acceso bloqueado",
    "zh-hans": "访问已被禁止",
    "zh-hant": "存取已被禁止",
}


class TestAnswerToABlock:
    @pytest.fixture(autouse=True)
    def blocked(self, memory_store: None) -> None:
        override("b 0 0 ", "spam", "ip:192.0.2.1")

    def answer(self, accept: str) -> str:
        response = quota("9/m", key="ip", name="spam")(view)(get(accept))
        assert response.status_code == 429
        return response.content.decode()

    @pytest.mark.parametrize("language", BLOCKED_TITLES)
    def test_its_page_says_that_access_is_blocked(self, language: str) -> None:
        with translation.override(language):
            page = self.answer(BROWSER)

        title = BLOCKED_TITLES[language]
        assert (f"<title>{title}</title>" in page, f"<h1>{title}</h1>" in page) == (True, True)

    @pytest.mark.parametrize("language", BLOCKED_TITLES)
    def test_its_problem_says_that_access_is_blocked(self, language: str) -> None:
        with translation.override(language):
            assert json.loads(self.answer(PROBLEM))["title"] == BLOCKED_TITLES[language]

    def test_its_text_says_that_access_is_blocked(self) -> None:
        assert self.answer("text/plain") == "Access is blocked. Trying again will not help.\n"
