"""The 429 page: what it says, that it leaks nothing, and that it works under a strict Content-Security-Policy."""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.utils import timezone, translation
from django.utils.functional import SimpleLazyObject
from django.utils.html import strip_tags

from django_quota import Decision, check, peek, quota
from django_quota.adapters import refusal
from django_quota.testing import freeze

NOW = 1_790_000_000_123_457  # 2026-09-21 14:13:20.123457 UTC
SECOND = 1_000_000

pytestmark = pytest.mark.usefixtures("memory_store")


class Page:
    """A page: its words, and the tags of one name with their attributes."""

    def __init__(self, response: HttpResponse) -> None:
        self.html = response.text
        self.text = " ".join(strip_tags(re.sub(r"<style.*?</style>", "", self.html, flags=re.DOTALL)).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [dict(re.findall(r'([\w-]+)="([^"]*)"', found)) for found in re.findall(rf"<{tag}\b[^>]*>", self.html)]


def get(path: str = "/", method: str = "get") -> HttpRequest:
    made: HttpRequest = getattr(RequestFactory(), method)(path, headers={"Accept": "text/html"})
    return made


def refused(rate: str = "1/m", request: HttpRequest | None = None, later: int = 0) -> Page:
    """Use a limit up, and be refused some microseconds later."""
    with freeze(NOW):
        check(rate, "global", cost=peek(rate, "global").remaining or 1)
    with freeze(NOW + later):
        return Page(refusal(request or get(), check(rate, "global")))


def page_of(**found: Any) -> Page:
    """Return the page for an outcome with these values."""
    with freeze(NOW):
        outcome = check("5/m", "global", cost=6).outcomes[0]._replace(**found)
        return Page(refusal(get(), Decision.of((outcome,))))


@pytest.fixture(autouse=True)
def in_utc() -> Iterator[None]:
    with timezone.override("UTC"):
        yield


@pytest.mark.parametrize("later", [0, 876_542, 876_543, 876_544, 59_999_999])
def test_the_moment_is_never_too_early_and_less_than_two_seconds_late(later: int) -> None:
    (moment,) = refused("1/m", later=later).all("time")
    named = datetime.fromisoformat(moment["datetime"]).timestamp() * SECOND
    free = NOW + 60 * SECOND
    assert free <= named < free + 2 * SECOND


@pytest.mark.parametrize(
    ("zone", "rate", "moment", "words"),
    [
        ("UTC", "1/m", "2026-09-21T14:14:21+00:00", "Try again at: 14:14:21 UTC"),
        ("Pacific/Auckland", "1/d", "2026-09-23T02:13:21+12:00", "Sept. 23, 2026, 02:13:21 NZST"),
    ],
)
def test_the_moment_is_in_the_visitors_time_zone(zone: str, rate: str, moment: str, words: str) -> None:
    with timezone.override(zone):
        page = refused(rate)
    assert page.all("time") == [{"datetime": moment}]
    assert words in page.text


def test_each_limit_that_refuses_says_what_it_has_left_and_others_do_not_show() -> None:
    limited: Any = quota("5/m", "4/h", "100/d", name="secret-name", cost=3)(lambda request: HttpResponse("ok"))
    with freeze(NOW):
        assert limited(get()).status_code == 200
        page = Page(limited(get()))
    assert [(meter["max"], meter["value"]) for meter in page.all("meter")] == [("5", "3"), ("4", "3")]
    assert "5 per minute 3 / 5 2 of 5 left · this request counts as 3 · again in 60 seconds" in page.text
    assert "4 per hour 3 / 4 1 of 4 left · this request counts as 3 · again in 60 minutes" in page.text
    assert "per day" not in page.text
    assert "secret-name" not in page.text


def test_only_a_get_is_tried_again_by_a_link_that_loads_the_same_page() -> None:
    page = refused(request=get('/a/?q="><script>&x=1'))
    assert "429 Too many requests The limit is 1 per minute. Please try again in 60 seconds." in page.text
    assert page.all("a")[0]["href"] == ""
    posted = refused(request=get("/a/", "post"))
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
    page = page_of(**found)
    assert words in page.text
    assert (bool(page.all("time")), bool(page.all("a"))) == (has_moment, has_link)
    assert "why" not in found or ("14:23:21 UTC" in page.text and page.all("meter") == [])


def test_while_the_store_is_away_it_is_a_503_with_a_link_and_no_moment() -> None:
    page = Page(refusal(get("/a/"), Decision(False, "r", "user:1", degraded=True, enforced=True)))
    assert "503 Service unavailable This cannot be served right now." in page.text
    assert ([link["href"] for link in page.all("a")], page.all("time")) == ([""], [])


class LazyNonce:
    """Django's own, which is false until it is asked for."""

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return "<nonce>"


def test_its_style_carries_the_nonce_of_the_policy() -> None:
    assert refused().all("style") == [{}]
    for name, nonce, shown in (
        ("csp_nonce", SimpleLazyObject(lambda: "of django-csp"), "of django-csp"),
        ("_csp_nonce", LazyNonce(), "&lt;nonce&gt;"),
    ):
        request = get()
        setattr(request, name, nonce)
        assert refused(request=request).all("style") == [{"nonce": shown}]


def test_it_speaks_the_visitors_language_and_says_so() -> None:
    for language, direction in (("fr", "ltr"), ("ar", "rtl")):
        with translation.override(language):
            page = refused("5/30s", later=SECOND if language == "ar" else 0)
        assert page.all("html") == [{"lang": language, "dir": direction}]
        assert language == "ar" or "429 Trop de requêtes La limite est de 5 par 30 secondes." in page.text
