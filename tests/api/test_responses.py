"""What a Decision looks like over HTTP: names in headers, bodies by Accept, and what must not leak.

That the headers agree with the decision and tell the truth is a property in test_http_headers.py.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import http_sf
import pytest
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template import engines
from django.template.response import SimpleTemplateResponse
from django.test import Client, RequestFactory, override_settings
from django.utils import translation

from django_quota import Decision, check, quota
from django_quota.adapters import refusal
from django_quota.exceptions import ConfigurationError
from django_quota.testing import freeze
from tests.support.calls import always
from tests.support.site_response import in_vain

PROBLEM, HTML, TEXT = "application/problem+json", "text/html; charset=utf-8", "text/plain; charset=utf-8"
NOW = 1_790_000_000_123_457
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
SECRET = "s3cret-value"
pytestmark = pytest.mark.usefixtures("memory_store")


def get(accept: str | None = None, **meta: Any) -> HttpRequest:
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
        check("1/m", request, **options)
        return refusal(request, check(rate, request, **options))


def refused_for(seconds: float) -> HttpResponse:
    """Answer a refusal that lasts for so long."""
    with freeze(NOW):
        outcome = check("1/d", "global").outcomes[0]._replace(allowed=False, retry_after=float(seconds))
    return refusal(get(), Decision.of((outcome,)))


def detail_of(response: Any) -> str:
    return str(json.loads(response.content)["detail"])


class TestHeaders:
    @pytest.mark.parametrize(
        ("rule", "name"),
        [
            ("search", "search"), ('a"b', "a%22b"), ("a\\b", "a%5Cb"), ("größe", "gr%C3%B6%C3%9Fe"),
            ("a\r\nb", "a%0D%0Ab"),
            ("shop.views.buy", "buy"), ("shop.views.Buy#2", "Buy#2"), ("10/m", "10/m"), ("end.", "end."),
        ],
    )  # fmt: skip
    def test_a_name_is_quoted_and_no_module_path_leaks(self, rule: str, name: str) -> None:
        ((shown, _),) = parsed(quota("10/m", name=rule)(view)(get()), "RateLimit-Policy")
        assert shown == name

    def test_the_settings_turn_them_off_and_the_legacy_ones_on(self, settings: Any) -> None:
        legacy = ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"]
        for headers, old in ((True, False), (False, True), (False, False), (True, True)):
            settings.QUOTA = {"STORE": "memory", "HEADERS": headers, "LEGACY_HEADERS": old}
            with freeze(NOW):
                response = quota("9/h", "5/m")(view)(get())
            assert ("RateLimit" in response.headers, "RateLimit-Policy" in response.headers) == (headers, headers)
            found = [response.headers.get(name) for name in legacy]
            assert found == (["5", "4", "60"] if old else [None] * 3)

    def test_a_reply_that_is_put_into_a_cache_does_not_carry_whom_it_was_made_for(self) -> None:
        """`cache_page` above `@quota` pickles the reply with all its attributes."""
        assert b"192.0.2.1" not in pickle.dumps(quota("1/m")(view)(get()))


class TestBodies:
    @pytest.mark.parametrize(
        ("accept", "kind"),
        [
            (None, PROBLEM), ("", PROBLEM), ("*/*", PROBLEM), ("application/json", PROBLEM), (PROBLEM, PROBLEM),
            ("application/*", PROBLEM), ("image/png", PROBLEM), (BROWSER, HTML), ("TEXT/HTML", HTML),
            ("text/plain", TEXT), ("text/html;q=0.1, text/plain", TEXT), ("text/html;q=0", PROBLEM),
            ("application/json, text/plain, */*", PROBLEM), ("text/html, */*", HTML), ("text/html;level=1", PROBLEM),
            ("text/plain; charset=UTF-8, application/json;q=0.9", TEXT),
            ("text/plain; charset=latin-1, text/html;q=0.1", HTML),
            # of a long header the first 12 ranges are read, and the first 256 characters
            ("a/b," * 11 + "text/html", HTML), ("a/b," * 12 + "text/html", PROBLEM),
            ("a/b;c=" + "d" * 250 + ",text/html", PROBLEM), ("text/plain," + "a/b," * 1_000, TEXT),
        ],
    )  # fmt: skip
    def test_the_body_is_what_is_accepted(self, accept: str | None, kind: str) -> None:
        response = refused(accept)
        assert (response.status_code, response.headers["Content-Type"]) == (429, kind)
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["Vary"] == "Accept"

    @pytest.mark.parametrize("accept", [None, BROWSER, "text/plain"])
    def test_a_head_request_gets_the_headers_of_a_get_and_no_body(self, accept: str | None, client: Client) -> None:
        headers = {} if accept is None else {"Accept": accept}
        with freeze(NOW):
            for _ in range(3):
                client.get("/limited/")
            got, head = client.get("/limited/", headers=headers), client.head("/limited/", headers=headers)
        assert (got.status_code, head.status_code, head.content) == (429, 429, b"")
        assert head.headers.items() == got.headers.items()

    def test_vary_keeps_what_other_middleware_adds(self, client: Client, settings: Any) -> None:
        settings.MIDDLEWARE = ["django.middleware.locale.LocaleMiddleware", *settings.MIDDLEWARE]
        with translation.override("en"):  # the middleware leaves its language active
            for _ in range(4):
                response = client.get("/limited/", headers={"Accept": BROWSER, "Accept-Language": "de"})
        assert response.status_code == 429
        assert response.headers["Vary"] == "Accept, Accept-Language"
        assert (response.headers["Content-Language"], "Zu viele Anfragen" in response.text) == ("de", True)

    def test_a_ban_is_of_the_type_of_abnormal_usage(self) -> None:
        with freeze(NOW):
            for _ in range(3):
                decision = check("1/m", "global", name="b", ban={"after": "1/m", "for": "10m"})
            problem = json.loads(refusal(get(), decision).content)
        assert problem["type"].endswith("#abnormal-usage-detected")
        assert (problem["status"], problem["retry_after"], problem["violated-policies"]) == (429, 600, ["b"])

    def test_problem_json_has_the_members_of_its_type(self) -> None:
        request: Any = get("application/json")
        with freeze(NOW):
            limited = quota("5/m", name="wide")(quota("1/m", name='na"rrow')(quota("0/h", shadow=True)(view)))
            assert limited(request).status_code == 200
            response: Any = limited(get("application/json"))
        assert json.loads(response.content) == {
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Too many requests",
            "status": 429,
            "detail": "The limit is 1 per minute. Please try again in 60 seconds.",
            "violated-policies": ["na%22rrow"],
            "retry_after": 60,
        }
        assert response.headers["RateLimit-Policy"].startswith('"wide";q=5;w=60, "na%22rrow"')

    def test_a_denial_while_the_store_is_away_is_a_503_of_another_type(self) -> None:
        denied = Decision(allowed=False, rule="r", subject="user:1", degraded=True, enforced=True)
        response = refusal(get(), denied)
        problem = json.loads(response.content)
        assert (response.status_code, problem["status"], problem["violated-policies"]) == (503, 503, [])
        assert problem["type"].endswith("#temporary-reduced-capacity")
        assert "RateLimit" not in response.headers

    def test_the_page_is_ours_or_the_template_of_the_setting(self) -> None:
        text = refused(BROWSER).text
        assert all(
            part in text for part in ("This is closed until further notice.", "429", "<title>Too many requests</title>")
        )
        mine = {"mine.html": "{{ status }} {{ title }} {{ detail }}"}
        loaders: Any = [("django.template.loaders.locmem.Loader", mine)]
        templates = [
            {"BACKEND": "django.template.backends.django.DjangoTemplates", "OPTIONS": {"loaders": loaders}},
        ]
        with override_settings(QUOTA={"STORE": "memory", "TEMPLATE": "mine.html"}, TEMPLATES=templates):
            assert refused("text/html").text.startswith("429 Too many requests This is closed until further notice.")

    @pytest.mark.parametrize(
        ("wait", "words"),
        [
            (1, "1 second"), (119, "119 seconds"), (120, "2 minutes"), (121, "3 minutes"), (7_199, "120 minutes"),
            (7_200, "2 hours"), (7_201, "3 hours"), (172_801, "3 days"),
        ],
    )  # fmt: skip
    def test_the_wait_is_in_words(self, wait: int, words: str) -> None:
        assert detail_of(refused_for(wait)) == f"The limit is 1 per day. Please try again in {words}."

    @pytest.mark.parametrize("accept", [None, BROWSER, "text/plain"])
    @pytest.mark.parametrize("wrap", [quota("1/m", key="header:X-Api-Key"), quota("1/m", key=always(SECRET))])
    def test_no_subject_secret_or_module_path_leaks(self, accept: str, wrap: Callable[[Any], Any]) -> None:
        limited = wrap(view)
        meta = {"HTTP_X_API_KEY": SECRET, "REMOTE_ADDR": "203.0.113.77"}
        limited(get(accept, **meta))
        request: Any = get(accept, **meta)
        response = limited(request)
        assert response.status_code == 429
        sent = response.text + str(response.headers)
        secrets = [SECRET, "203.0.113.77", "x-api-key:", request.quota.subject, "tests.", "test_responses", "quota:1:"]
        assert not [word for word in secrets if word in sent]


class TestTheSitesOwnAnswer:
    """The setting RESPONSE."""

    @pytest.fixture
    def answer(self, settings: Any) -> Callable[[Any], None]:
        def set_to(function: Any) -> None:
            settings.QUOTA = {"STORE": "memory", "RESPONSE": function}

        return set_to

    def test_it_is_the_body_of_every_refusal_and_we_add_the_headers(self, answer: Any, client: Client) -> None:
        answer("tests.support.site_response.teapot")
        for path, most in (("/limited/", 3), ("/by-hand/", 2)):
            with freeze(NOW):
                replies = [client.get(path) for _ in range(most + 1)]
            assert [reply.status_code for reply in replies] == [200] * most + [418]
            assert replies[-1].json() == {"rule": path.strip("/"), "path": path}
            assert replies[-1].headers["Retry-After"] == "60"
            assert replies[-1].headers["Cache-Control"] == "no-store"
            assert parsed(replies[-1], "RateLimit") == [(path.strip("/"), {"r": 0, "t": 60})]

    def test_headers_that_it_brings_are_kept(self, client: Client) -> None:
        own = {"Retry-After": "7", "RateLimit": '"mine";r=0', "Cache-Control": "private", "X-RateLimit-Limit": "1"}
        brings = {"RESPONSE": lambda request, decision: HttpResponse("no", headers=own)}
        with override_settings(QUOTA={"STORE": "memory", "LEGACY_HEADERS": True, **brings}):
            for _ in range(4):
                reply = client.get("/limited/")
        assert {name: reply.headers[name] for name in own} == own
        assert "RateLimit-Policy" not in reply.headers, "the names of two policies would not pair up"
        assert reply.headers["X-RateLimit-Remaining"] == "0"

    def test_one_response_for_all_refusals_tells_each_its_own_wait(self, answer: Any) -> None:
        always = HttpResponse("no", status=429)
        answer(lambda request, decision: always)
        limited = quota("1/m", name="one")(view)
        with freeze(NOW):
            limited(get())
            assert limited(get()).headers["Retry-After"] == "60"
        with freeze(NOW + 50_000_000):
            assert limited(get()).headers["Retry-After"] == "10"

    def test_a_template_response_is_rendered(self, answer: Any) -> None:
        template = engines["django"].from_string("no: {{ rule }}")
        answer(lambda request, decision: SimpleTemplateResponse(template, {"rule": decision.rule}, status=429))
        assert refused(name="r").text == "no: r"

    @pytest.mark.parametrize(
        ("function", "kind"),
        [(lambda r, d: "text", "str"), (lambda r, d: 429, "int"), (lambda r, d: [in_vain(r, d)][0], "coroutine")],
    )
    def test_what_is_no_response_is_a_clear_error(self, answer: Any, function: Any, kind: str) -> None:
        """What must be awaited is closed, or Python warns."""
        answer(function)
        with pytest.raises(ConfigurationError, match=rf'QUOTA\["RESPONSE"\] returned {kind}'):
            refused()


def test_a_banned_client_does_not_see_what_the_limit_has_left() -> None:
    limited: Any = quota("2/s", key="ip", name="login", ban={"after": "1/m", "for": "10m"})(view)
    with freeze(NOW):
        for _ in range(5):
            limited(get())
    with freeze(NOW + 5_000_000):
        reply = limited(get())
    assert reply.status_code == 429
    ((_, limit),) = parsed(reply, "RateLimit")
    assert limit["r"] == 0
    assert limit["t"] >= 590
