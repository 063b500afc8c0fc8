"""Mistakes of newcomers: each raises an error with the place and what to write instead."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.test import AsyncRequestFactory, RequestFactory

from django_quota import RateError, Rule, check, concurrency, quota, slot
from django_quota.exceptions import QuotaError, RuleError
from django_quota.testing import RedisServer
from tests.support.calls import always
from tests.support.outages import log_everything_again
from tests.support.stores import caches


class Organisation:
    """A plain object, whose text is its address in memory."""


def by_organisation(request: object) -> Any:
    return Organisation()


def bad_rate(request: object) -> str:
    return "5/x"


@pytest.mark.parametrize("value", [Organisation(), {"a": 1}, ["a"], object()])
def test_a_key_function_that_returns_a_plain_object_is_an_error(value: object, memory_store: None) -> None:
    with pytest.raises(RuleError, match="identifies nobody"):
        check("1/m", RequestFactory().get("/"), key=always(value))


def test_a_misspelt_method_does_not_switch_a_rule_off() -> None:
    with pytest.raises(RuleError, match=r"'POTS' is not an HTTP method. Did you mean 'POST'"):
        quota("1/m", methods="POTS")


def test_the_error_for_a_wrong_distinct_names_distinct() -> None:
    with pytest.raises(RuleError, match=r"^distinct='hdr:X' is not a key"):
        quota("1/m", distinct="hdr:X")


def test_the_error_for_networks_that_are_no_list_says_so(settings: Any, memory_store: None) -> None:
    settings.QUOTA = {**settings.QUOTA, "TRUSTED_PROXIES": "10.0.0.0/8"}
    with pytest.raises(QuotaError, match=r"is '10.0.0.0/8'. Use a list of networks"):
        check("1/m", RequestFactory().get("/"), key="ip")


@pytest.mark.parametrize(
    ("peer", "proxies", "expected"),
    [("10.0.0.5", [], 1), ("127.0.0.1", [], 1), ("8.8.8.8", [], 0), ("10.0.0.5", ["10.0.0.0/8"], 0), ("", [], 0)],
)
def test_an_unknown_proxy_is_logged_once(
    peer: str, proxies: list[str], expected: int, settings: Any, memory_store: None, caplog: pytest.LogCaptureFixture
) -> None:
    log_everything_again()
    settings.QUOTA = {**settings.QUOTA, "TRUSTED_PROXIES": proxies}
    for client in ("203.0.113.1", "203.0.113.2"):
        request = RequestFactory().get("/", REMOTE_ADDR=peer, HTTP_X_FORWARDED_FOR=client)
        with suppress(QuotaError):
            check("1/m", request, key="ip")
    assert len(caplog.messages) == expected
    assert all(f'Set, for example, "TRUSTED_PROXIES": [{peer!r}].' in line for line in caplog.messages)


@pytest.mark.parametrize(
    ("words", "allowed", "expected"),
    [
        (["uvicorn", "--forwarded-allow-ips", "*", "site.asgi"], "", 1),
        (["gunicorn", "-k", "uvicorn.workers.UvicornWorker", "--forwarded-allow-ips=*"], "", 1),
        (["uvicorn", "site.asgi"], "*", 1),
        (["uvicorn", "site.asgi"], "", 0),
        (["uvicorn", "--forwarded-allow-ips", "10.0.0.1", "site.asgi"], "*", 0),
        (["uvicorn", "--forwarded-allow-ips", "*", "--no-proxy-headers", "site.asgi"], "*", 0),
    ],
)
@pytest.mark.usefixtures("memory_store")
def test_a_server_that_trusts_every_proxy_is_logged_once(
    words: list[str], allowed: str, expected: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.argv", words)
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", allowed)
    log_everything_again()
    for client in ("203.0.113.1", "203.0.113.2"):
        request = AsyncRequestFactory().get("/", headers={"x-forwarded-for": client})
        check("1/m", request, key="ip")
    found = [line for line in caplog.messages if "--no-proxy-headers" in line]
    assert len(found) == expected


@pytest.mark.usefixtures("memory_store")
def test_under_wsgi_no_server_rewrites_the_address(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.argv", ["gunicorn", "--forwarded-allow-ips", "*"])
    log_everything_again()
    check("1/m", RequestFactory().get("/", REMOTE_ADDR="8.8.8.8", HTTP_X_FORWARDED_FOR="203.0.113.1"), key="ip")
    assert caplog.messages == []


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


@pytest.mark.parametrize("apps", [["django_quota"], []], ids=["with the app", "with no app at all"])
def test_a_site_without_users_starts_and_limits(apps: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SITE_WITHOUT_USERS % apps], capture_output=True, text=True, check=False
    )
    assert (done.stdout.split(), done.stderr) == (["200", "429"], "")


def test_an_empty_list_of_rates_is_not_unlimited() -> None:
    with pytest.raises(RuleError, match="lists no rate"):
        Rule.from_setting("a", [])


def test_a_rule_of_the_settings_is_named_by_its_key_alone() -> None:
    with pytest.raises(RuleError, match="The key in RULES is the rule"):
        Rule.from_setting("a", {"rate": "1/m", "name": "b"})


@pytest.mark.parametrize("given", ["10/mo", "10/Mo", "10/mon"])
def test_no_error_suggests_a_minute_for_a_month(given: str) -> None:
    with pytest.raises(RateError, match="Did you mean 'month'"):
        quota(given)


def test_the_error_for_a_wrong_rate_names_the_function_that_returned_it(memory_store: None) -> None:
    view: Any = quota(bad_rate, name="dynamic")(lambda request: None)
    with pytest.raises(RateError, match=r"It came from tests\.api\.test_first_steps\.bad_rate, for rule 'dynamic'"):
        view(RequestFactory().get("/"))


def test_the_error_for_a_decorator_without_a_rate_shows_how_to_write_it() -> None:
    bare: Any = quota(by_organisation)  # what `@quota` without a call amounts to
    with pytest.raises(RuleError, match=r"has no parentheses on tests\.api\.test_first_steps\.by_organisation"):
        bare(RequestFactory().get("/"))
    with pytest.raises(RuleError, match=r"has no limit on tests.*\.by_organisation\. Write.*@concurrency\(10\)"):
        concurrency(by_organisation)  # type: ignore[arg-type]


@pytest.mark.parametrize("lease", ["1h", timedelta(hours=1), 0])
def test_the_error_for_a_wrong_lease_shows_a_number_of_seconds(lease: Any) -> None:
    with pytest.raises(RuleError, match=r"lease=.* is not a number of seconds, .* Use, for example, 30\."):
        slot("export", 3, lease=lease)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"LOCATION": "127.0.0.1:6399"}, "is not a Redis URL"),
        ({"LOCATION": ""}, "is not a Redis URL"),
        ({}, "is not a Redis URL"),
        ({"LOCATION": "redis://127.0.0.1", "OPTIONS": {"CLIENT_CLASS": "nowhere.Client"}}, "cannot be imported"),
    ],
)
def test_a_wrong_location_is_a_finding(config: dict[str, Any], words: str, settings: Any) -> None:
    settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", **config}}
    found = [finding for finding in run_checks(tags=["django_quota"]) if finding.id == "django_quota.E004"]
    assert len(found) == 1
    assert words in found[0].msg


def test_an_alias_without_options_works(settings: Any) -> None:
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1", "OPTIONS": None}
    settings.CACHES = {"default": cache}
    assert [found.id for found in run_checks(tags=["django_quota"])] == ["django_quota.W007"]


def test_the_repr_of_a_decision_without_redis_says_degraded(settings: Any, tmp_path: Path) -> None:
    settings.CACHES = caches(RedisServer(f"unix://{tmp_path}/nobody.sock", 0, Path()))
    decision = check("1/m", "user:1")
    assert (decision.rule, decision.subject, decision.degraded) == ("1/m", "user:1", True)
    assert "did not answer" in decision.explain()


def test_a_decision_is_short_enough_to_be_printed() -> None:
    assert repr(Rule.make("search", "10/m").limits[0]) == "<Limit 10/m by sliding_window of 'search'>"
