"""The 429 page: what it says, that it leaks nothing, and that it works under a strict Content-Security-Policy."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from html.parser import HTMLParser
from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.template import Template
from django.test import RequestFactory, override_settings
from django.urls import path
from django.utils import timezone, translation
from django.utils.functional import SimpleLazyObject

from django_quota import Decision, check, peek, quota
from django_quota.adapters import arefusal, refusal
from django_quota.testing import freeze

NOW = 1_790_000_000_123_457  # 2026-09-21 14:13:20.123457 UTC
SECOND = 1_000_000
BROWSER = (
    "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8,"
    "application/signed-exchange;v=b3;q=0.7"
)

pytestmark = pytest.mark.usefixtures("memory_store")


class Page(HTMLParser):
    """What a page holds: its tags with their attributes, and its text."""

    def __init__(self, response: HttpResponse) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(response.text)
        assert self._open == []
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def get(path: str = "/", method: str = "get") -> HttpRequest:
    made: HttpRequest = getattr(RequestFactory(), method)(path, headers={"Accept": "text/html"})
    return made


def refused(rate: str = "1/m", request: HttpRequest | None = None, later: int = 0, **options: Any) -> Page:
    """Use a limit up, and be refused some microseconds later."""
    with freeze(NOW):
        check(rate, "global", cost=peek(rate, "global", **options).remaining or 1, **options)
    with freeze(NOW + later):
        return Page(refusal(request or get(), check(rate, "global", **options)))


@pytest.fixture(autouse=True)
def in_utc() -> Iterator[None]:
    with timezone.override("UTC"):
        yield


def test_it_says_what_happened_what_the_limit_is_and_until_when_in_both_ways() -> None:
    page = refused("2/m")
    assert "429 Too many requests The limit is 2 per minute. Please try again in 60 seconds." in page.text
    assert "Try again at: 14:14:21 UTC" in page.text
    assert page.all("time") == [{"datetime": "2026-09-21T14:14:21+00:00"}]


@pytest.mark.parametrize("later", [0, 1, 876_542, 876_543, 876_544, 59_876_543, 59_999_999])
def test_the_moment_is_never_too_early_and_less_than_two_seconds_late(later: int) -> None:
    (moment,) = refused("1/m", later=later).all("time")
    named = datetime.fromisoformat(str(moment["datetime"])).timestamp() * SECOND
    free = NOW + 60 * SECOND
    assert free <= named < free + 2 * SECOND


def test_the_moment_is_in_the_visitors_time_zone_and_names_another_day() -> None:
    with timezone.override("Pacific/Auckland"):
        page = refused("1/d")
    assert page.all("time") == [{"datetime": "2026-09-23T02:13:21+12:00"}]
    assert "Sept. 23, 2026, 02:13:21 NZST" in page.text


def test_a_bar_fills_while_one_waits_without_a_script_or_a_reload() -> None:
    with override_settings(USE_THOUSAND_SEPARATOR=True):
        page = refused("1/30m")
    (bar,) = page.all("animate")
    assert (bar["dur"], bar["to"]) == ("1800s", "100%")
    assert not any("http-equiv" in meta for meta in page.all("meta"))
    assert refused("1/d").all("animate") == []


def test_each_limit_that_refuses_says_what_it_has_left_and_others_do_not_show() -> None:
    view: Callable[[Any], HttpResponse] = lambda request: HttpResponse("ok")  # noqa: E731
    limited = quota("5/m", "4/h", "100/d", name="secret-name", cost=3)(view)
    with freeze(NOW):
        assert limited(get()).status_code == 200
        page = Page(limited(get()))
    meters = [(meter["max"], meter["value"]) for meter in page.all("meter")]
    assert meters == [("5", "3"), ("4", "3")]
    assert "5 per minute 3 / 5 2 of 5 left · this request counts as 3 · again in 60 seconds" in page.text
    assert "4 per hour 3 / 4 1 of 4 left · this request counts as 3 · again in 60 minutes" in page.text
    assert "per day" not in page.text
    assert "secret-name" not in page.text


def test_only_a_get_is_tried_again_by_a_link_that_loads_the_same_page() -> None:
    page = refused(request=get('/a/?q="><script>&x=1'))
    assert [link["href"] for link in page.all("a")] == [""]
    page = refused(request=get("/a/", "post"))
    assert page.all("a") == []
    assert "go back in your browser" in page.text


@pytest.mark.parametrize("why", ["banned", "blocked"])
def test_who_is_shut_out_sees_until_when_and_no_limits(why: Any) -> None:
    with freeze(NOW):
        decision = check("0/m", "global")
        outcome = decision.outcomes[0]._replace(why=why, retry_after=600.0)
        page = Page(refusal(get(), Decision.of((outcome,))))
    assert "Please try again in 10 minutes." in page.text
    assert "14:23:21 UTC" in page.text
    assert page.all("meter") == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"retry_after": None}, "counts as 6, more than the 5 that are ever left. Trying again will not help."),
        ({"retry_after": 1e12}, "Please try again in 11574075 days"),
    ],
    ids=["waiting does not help", "a wait of ages"],
)
def test_where_no_moment_helps_none_is_named(found: Any, words: str) -> None:
    with freeze(NOW):
        outcome = check("5/m", "global", cost=6).outcomes[0]._replace(**found)
        page = Page(refusal(get(), Decision.of((outcome,))))
    assert words in page.text
    assert (page.all("time"), page.all("animate")) == ([], [])
    assert bool(page.all("a")) is (found["retry_after"] is not None)


def test_while_the_store_is_away_it_is_a_503_with_a_link_and_no_moment() -> None:
    denied = Decision(allowed=False, rule="r", subject="user:1", degraded=True, enforced=True)
    page = Page(refusal(get("/a/"), denied))
    assert "503 Service unavailable This cannot be served right now." in page.text
    assert [link["href"] for link in page.all("a")] == [""]
    assert page.all("time") == []


def test_it_needs_no_script_no_other_file_and_no_style_attribute_and_is_not_indexed() -> None:
    page = refused()
    assert not {"script", "link", "img", "iframe", "form"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name == "style" or name.startswith("on")], tag
    assert {"name": "robots", "content": "noindex"} in page.all("meta")
    assert {"name": "color-scheme", "content": "light dark"} in page.all("meta")


def test_its_style_loads_nothing_and_carries_the_nonce_of_the_policy() -> None:
    class LazyNonce:
        """Django's own, which is false until it is asked for."""

        def __bool__(self) -> bool:
            return False

        def __str__(self) -> str:
            return "from-django"

    request, other = get(), get()
    assert refused(request=request).all("style") == [{}]
    request.csp_nonce = SimpleLazyObject(lambda: "from-django-csp")  # type: ignore[attr-defined]
    assert refused(request=request).all("style") == [{"nonce": "from-django-csp"}]
    other._csp_nonce = LazyNonce()  # type: ignore[attr-defined]
    assert refused(request=other).all("style") == [{"nonce": "from-django"}]
    text = refusal(request, check("0/m", "global")).text
    assert not re.search(r"url\(|@import|https?://", text)


@pytest.mark.parametrize(
    ("language", "direction", "words"),
    [
        ("de", "ltr", "429 Zu viele Anfragen Das Limit ist 5 pro 30 Sekunden. Bitte versuchen Sie es in 30 Sekunden"),
        ("fr", "ltr", "429 Trop de requêtes La limite est de 5 par 30 secondes. Veuillez réessayer dans 30 secondes."),
        ("ar", "rtl", "429"),
    ],
)
def test_it_speaks_the_visitors_language_and_says_so(language: str, direction: str, words: str) -> None:
    with translation.override(language):
        page = refused("5/30s")
    assert page.all("html") == [{"lang": language, "dir": direction}]
    assert words in page.text


def with_template(text: str) -> Any:
    """Let the site have a 429.html of its own."""
    loaders: Any = [
        ("django.template.loaders.locmem.Loader", {"429.html": text}),
        "django.template.loaders.app_directories.Loader",
    ]
    options = {"loaders": loaders, "context_processors": ["django.template.context_processors.request"]}
    templates = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "OPTIONS": options}]
    return override_settings(TEMPLATES=templates)


def test_a_site_fills_its_blocks_by_extending_it() -> None:
    with with_template('{% extends "429.html" %}{% block more %}<p>Write to us.</p>{% endblock %}'):
        page = refused()
    assert page.text.endswith("Write to us.")
    assert "The limit is 1 per minute." in page.text


class TestWhatItCosts:
    """A flood of refused requests must not cost more than one that is let in."""

    @staticmethod
    def rendered(monkeypatch: pytest.MonkeyPatch) -> list[object]:
        times: list[object] = []  # the thread of each
        render = Template.render

        def counted(self: Template, context: Any) -> Any:
            times.append(threading.current_thread())
            return render(self, context)

        monkeypatch.setattr(Template, "render", counted)
        return times

    def test_pages_that_say_the_same_are_rendered_once_and_in_no_other_thread(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        times = self.rendered(monkeypatch)
        for number in range(20):
            request = get(f"/search?a=<{number}>&b=1")
            request.csp_nonce = f"nonce-{number}"  # type: ignore[attr-defined]
            page = refused("7/m", request)
            assert page.all("style") == [{"nonce": f"nonce-{number}"}]
        response = asyncio.run(arefusal(get(), check("0/m", "global")))
        assert "429 Too many requests" in Page(response).text
        assert times == [threading.current_thread()] * 2

    @pytest.mark.parametrize("later", [0, 2 * SECOND])
    @pytest.mark.parametrize("language", ["en", "de"])
    @pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
    def test_a_page_that_says_something_else_is_rendered_anew(self, later: int, language: str, zone: str) -> None:
        refused("9/m")
        with translation.override(language), timezone.override(zone):
            page = refused("9/m", later=later)
        hour = "14" if zone == "UTC" else "23"
        assert f"{hour}:14:2" in page.text
        assert str(60 - later // SECOND) in page.text
        assert page.all("html")[0]["lang"] == language

    def test_a_template_of_the_site_is_rendered_each_time_with_the_request(self) -> None:
        with with_template("{{ request.path }}"), freeze(NOW):
            check("1/m", "global")
            bodies = [refusal(get(path), check("1/m", "global")).text for path in ("/a", "/b")]
        assert bodies == ["/a", "/b"]

    @pytest.mark.parametrize("accept", [BROWSER, ",".join(["*/*;q=0.1"] * 400), "a," * 2_000, "application/json"])
    def test_a_refusal_takes_about_as_many_steps_as_a_request_that_is_let_in(self, accept: str, settings: Any) -> None:
        settings.MIDDLEWARE = ["django_quota.middleware.QuotaMiddleware"]
        settings.ROOT_URLCONF = __name__
        handler = WSGIHandler()

        def steps(path: str) -> int:
            request = RequestFactory().get(path, headers={"Accept": accept})
            number = 0

            def count(frame: object, event: str, arg: object) -> None:
                nonlocal number
                number += event in ("call", "c_call")

            sys.setprofile(count)
            try:
                response = handler.get_response(request)
            finally:
                sys.setprofile(None)
            assert response.status_code == (200 if path == "/let-in" else 429)
            return number

        with freeze(NOW):
            handler.get_response(RequestFactory().get("/refused"))
            found = {path: [steps(path) for _ in range(3)][-1] for path in ("/let-in", "/refused")}
        assert found["/refused"] < 2.5 * found["/let-in"]


def page_of_the_site(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


urlpatterns = [
    path("let-in", quota("1000/m", key="ip", name="let-in")(page_of_the_site)),
    path("refused", quota("1/h", key="ip", name="refused")(page_of_the_site)),
]
