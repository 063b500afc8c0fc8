"""The line of a refusal in the log: once a second for each rule, short, and one line whatever the client sent."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from urllib.parse import quote as quoted

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import re_path

from django_quota import Decision, acheck, check, quota
from django_quota.adapters import refusal
from django_quota.testing import freeze
from django_quota.web import refusal_log

NOW = 1_790_000_000_123_457
pytestmark = pytest.mark.usefixtures("memory_store")


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


async def plain_async(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


def raised(request: HttpRequest) -> HttpResponse:
    check("1/h", request, key="path", name="raised").raise_if_refused()
    return HttpResponse("ok")


async def raised_async(request: HttpRequest) -> HttpResponse:
    (await acheck("1/h", request, key="path", name="raised")).raise_if_refused()
    return HttpResponse("ok")


RULE_OF = {"other": "site"}
limited = quota("1/h", key="path", name="decorated")
VIEWS: dict[str, Any] = {
    "decorated": limited(plain), "decorated-async": limited(plain_async), "raised": raised,
    "raised-async": raised_async, "other": plain,
}  # fmt: skip
urlpatterns = [re_path(rf"(?s:^{name}/)", view) for name, view in VIEWS.items()]
RULES = {"site": {"rate": "1/h", "key": "path", "match": "/other/"}}


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.QUOTA = {**settings.QUOTA, "RULES": RULES}
    refusal_log._last_logged.cache_clear()


def statuses(path: str, times: int = 2) -> list[int]:
    """Return how the site answers the same request, sync and, if the view is async, async."""

    async def ask() -> list[int]:
        return [(await AsyncClient().get(path)).status_code for _ in range(times)]

    return asyncio.run(ask()) if "-async" in path else [Client().get(path).status_code for _ in range(times)]


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(("view", "rule"), [(name, RULE_OF.get(name, name.removesuffix("-async"))) for name in VIEWS])
def test_a_flood_is_logged_once_a_second_for_each_rule(view: str, rule: str, caplog: pytest.LogCaptureFixture) -> None:
    with freeze(NOW):
        assert statuses(f"/{view}/", 5) == [200, 429, 429, 429, 429]
        assert statuses(f"/{view}/more/", 2) == [200, 429]
    assert logged(caplog) == [f"Too many requests: rule '{rule}' refuses 'path:/{view}/'."]
    assert caplog.records[-1].name == "django.request"
    with freeze(NOW + 999_999):
        assert statuses(f"/{view}/", 3) == [429] * 3
    assert len(logged(caplog)) == 1
    with freeze(NOW + 1_000_000):
        assert statuses(f"/{view}/", 3) == [429] * 3
    assert len(logged(caplog)) == 2


@pytest.mark.parametrize("view", ["decorated", "raised-async", "other"])
@pytest.mark.parametrize(
    "sent", ["a" * 5_000, "a\nERROR django.request forged line", "\x1b[2J\x1b]0;x\x07\u202e\u2028"]
)
def test_what_a_client_sent_makes_a_short_line_without_escape_sequences(
    view: str, sent: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert statuses(f"/{view}/{quoted(sent)}") == [200, 429]
    (line,) = logged(caplog)
    assert line.isprintable()
    assert len(line) < 300


def test_a_subject_that_is_made_by_hand_is_shortened_and_escaped_too(caplog: pytest.LogCaptureFixture) -> None:
    decision = Decision(False, "q\x1b[2J" * 100, "z\n" * 1_000, enforced=True)
    assert refusal(RequestFactory().get("/"), decision).status_code == 429
    (line,) = logged(caplog)
    assert line.isprintable()
    assert (line.count("q"), line.count("z")) == (1 + 40, 100)
