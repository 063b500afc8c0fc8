"""Mistakes of newcomers: each raises an error with the place and what to write instead."""

import asyncio
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any, cast

import pytest
from asgiref.sync import sync_to_async
from django.test import AsyncRequestFactory, RequestFactory

from django_quota import Rule, acheck, acquire, check, check_all, concurrency, counter, peek, quota, reserve
from django_quota.exceptions import RuleError
from tests.support.calls import always
from tests.support.outages import log_everything_again
from tests.support.selection import thorough


def by_organisation(request: object) -> Any:
    return object()


def bad_rate(request: object) -> str:
    return "5/x"


def call(view: Any) -> Any:
    return view(RequestFactory().get("/"))


NO_PEEK = r"cost=0 of rule '1/m' takes nothing\. To look .*, use peek\(\) or apeek\(\)"
SWAPPED = r"the rule first, then the subject: \('10/m', 'user:1'\)"
MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: check("1/m", RequestFactory().get("/"), key=by_organisation), "identifies nobody"),
    (lambda: check("1/m", RequestFactory().get("/"), key=always({"a": 1})), "identifies nobody"),
    (lambda: quota("1/m", methods="POTS"), r"'POTS' is not an HTTP method. Did you mean 'POST'"),
    (lambda: quota("1/m", distinct="hdr:X"), r"^distinct='hdr:X' is not a key"),
    (lambda: quota("10/mon"), "month, year"),
    (lambda: Rule.from_setting("a", []), "lists no rate"),
    (lambda: Rule.from_setting("a", {"rate": "1/m", "name": "b"}), "'name' is not an option of a rule"),
    (lambda: call(quota(bad_rate, name="x")(print)), r"It came from tests.*\.bad_rate, for rule 'x'"),
    (lambda: call(quota(by_organisation)), r"has no parentheses on tests\.api\.test_first_steps\.by_organisation"),
    (lambda: concurrency(cast("Any", call)), r"has no limit on tests.*\.call\. Write.*@concurrency\(10\)"),
    (lambda: check("1/m", "user:1", cost=0), NO_PEEK), (lambda: reserve("1/m", "user:1", cost=0), NO_PEEK),
    (lambda: acquire("1/m", "user:1", cost=0, timeout=1), NO_PEEK),
    (lambda: check_all([("1/m", "user:1", 0)]), NO_PEEK),
    (lambda: peek("user:1", "10/m"), SWAPPED), (lambda: check_all([("user:1", "10/m")]), SWAPPED),
]  # fmt: skip


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(("mistake", "words"), MISTAKES)
def test_a_mistake_is_an_error_that_says_what_to_write(mistake: Callable[[], Any], words: str) -> None:
    with pytest.raises(RuleError, match=words):
        mistake()


@pytest.mark.parametrize(
    ("peer", "proxies", "expected"), [("10.0.0.5", [], 1), ("8.8.8.8", [], 0), ("10.0.0.5", ["10.0.0.0/8"], 0)]
)
@pytest.mark.usefixtures("memory_store")
def test_an_unknown_proxy_is_logged_once(
    peer: str, proxies: list[str], expected: int, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    log_everything_again()
    settings.QUOTA = {**settings.QUOTA, "TRUSTED_PROXIES": proxies}
    for client in ("203.0.113.1", "203.0.113.2"):
        check("1/m", RequestFactory().get("/", REMOTE_ADDR=peer, HTTP_X_FORWARDED_FOR=client))
    assert len(caplog.messages) == expected
    assert all(f'Set, for example, "TRUSTED_PROXIES": [{peer!r}].' in line for line in caplog.messages)


@pytest.mark.parametrize(
    ("words", "allowed", "expected"),
    [
        (["uvicorn", "--forwarded-allow-ips", "*", "site.asgi"], "", 1), (["uvicorn", "site.asgi"], "*", 1),
        (["gunicorn", "-k", "uvicorn.workers.UvicornWorker", "--forwarded-allow-ips=*"], "", 1),
        (["uvicorn", "--forwarded-allow-ips", "10.0.0.1", "site.asgi"], "*", 0),
        (["uvicorn", "--forwarded-allow-ips", "*", "--no-proxy-headers", "site.asgi"], "*", 0),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("memory_store")
def test_a_server_that_trusts_every_proxy_is_logged_once_and_none_under_wsgi(
    words: list[str], allowed: str, expected: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.argv", words)
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", allowed)
    log_everything_again()
    check("1/m", RequestFactory().get("/", REMOTE_ADDR="8.8.8.8", HTTP_X_FORWARDED_FOR="203.0.113.1"))
    assert caplog.messages == []
    for client in ("203.0.113.1", "203.0.113.2"):
        check("1/m", AsyncRequestFactory().get("/", headers={"x-forwarded-for": client}))
    assert len([line for line in caplog.messages if "--no-proxy-headers" in line]) == expected


SITE_WITHOUT_USERS = """
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.test import RequestFactory
from django.urls import path

settings.configure(
    SECRET_KEY="x", ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, INSTALLED_APPS=%r,
    MIDDLEWARE=["django_quota.middleware.QuotaMiddleware"],
    QUOTA={"STORE": "memory", "RULES": {"all": {"rate": "1/m", "match": "/"}}},
)
import django
django.setup()
from django_quota import quota

urlpatterns = [path("", quota("2/m", key="ip")(lambda request: HttpResponse()))]
said = []
handler = WSGIHandler()
for _ in range(2):
    handler(RequestFactory()._base_environ(), lambda status, headers: said.append(status[:3]))
from django.core.checks import run_checks
print(*said, *(found.id for found in run_checks() if found.id.startswith("django_quota.")))
"""


@pytest.mark.parametrize("apps", [["django_quota"], thorough("processes", [])], ids=["with the app", "without an app"])
def test_a_site_without_users_starts_and_limits(apps: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SITE_WITHOUT_USERS % apps], capture_output=True, text=True, check=False
    )
    assert (done.stdout.split(), done.stderr) == (["200", "429"], "")


def test_a_call_that_blocks_an_event_loop_warns_once_a_place(settings: Any, memory_store: None) -> None:
    async def call() -> None:
        check("1/m", "user:1")  # without DEBUG
        settings.DEBUG = True
        for _ in range(2):
            check("1/m", "user:1")
        counter("clicks").incr("user:1")
        await acheck("1/m", "user:1")
        await sync_to_async(check)("1/m", "user:1")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        asyncio.run(call())
    assert [(str(each.message).partition(":")[0], each.filename) for each in caught] == [
        (f"{name}() blocks the event loop. Use a{name}() here", __file__) for name in ("check", "incr")
    ]
