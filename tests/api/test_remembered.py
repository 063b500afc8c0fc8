"""What a process remembers of views, rules and addresses: it is bounded, and a change is seen at once."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path
from django.views import View

from django_quota import quota
from django_quota.adapters import client_ip, register_late_views
from django_quota.conf import current
from django_quota.core.decisions import Decision
from django_quota.http import request_rules, responses, views
from django_quota.subjects import addresses
from tests.support.calls import get, run

pytestmark = pytest.mark.usefixtures("memory_store")


@quota(rule="named")
def by_name(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


class ByMethod(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")

    @quota("20/m", name="post")
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")


urlpatterns = [path("named/", by_name), path("method/", ByMethod.as_view())]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["django_quota.middleware.QuotaMiddleware"]


def quota_of(rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"STORE": "memory", "RULES": rules, **more}


def policy(place: str, *, method: str = "get", **meta: Any) -> str | None:
    response: HttpResponse = getattr(Client(), method)(place, **meta)
    return response.headers.get("RateLimit-Policy")


# --- changes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "more"), [("/named/", {}), ("/method/", {"match": "/method/"})], ids=["of a view", "of the site"]
)
def test_a_changed_rule_holds_from_the_next_request(place: str, more: dict[str, str]) -> None:
    found = []
    for rate in ("10/m", "20/m", "10/h"):
        with override_settings(QUOTA=quota_of({"named": {"rate": rate, **more}})):
            found.append(policy(place))

    assert found == ['"named";q=10;w=60', '"named";q=20;w=60', '"named";q=10;w=3600']


def test_a_path_meets_the_rules_of_each_host_however_they_take_turns(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    settings.QUOTA = quota_of({"a": {"rate": "10/m", "match": "host:a.example"}})
    hosts = ["a.example", "A.example:8000", "b.example"] * 2

    found = [policy("/method/", HTTP_HOST=host) for host in hosts]

    assert found == ['"a";q=10;w=60', '"a";q=10;w=60', None] * 2


def test_each_method_of_a_view_has_its_own_limit() -> None:
    found = [policy("/method/", method=method) for method in ("get", "post") * 2]

    assert found == [None, '"post";q=20;w=60'] * 2


def test_a_method_that_was_replaced_has_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert policy("/method/") is None

    monkeypatch.setattr(ByMethod, "get", quota("30/m", name="get")(ByMethod.get))

    assert policy("/method/") == '"get";q=30;w=60'


def test_a_changed_list_of_trusted_proxies_holds_from_the_next_request() -> None:
    found = []
    for proxies in ([], ["10.0.0.0/8"], ["172.16.0.0/12"], ["10.0.0.1"]):
        with override_settings(QUOTA={"STORE": "memory", "TRUSTED_PROXIES": proxies}):
            found.append(client_ip(get(REMOTE_ADDR="10.0.0.1", HTTP_X_FORWARDED_FOR="203.0.113.9")))
    assert found == ["10.0.0.1", "203.0.113.9", "10.0.0.1", "203.0.113.9"]


@pytest.mark.parametrize("option", ["HEADERS", "LEGACY_HEADERS"])
def test_headers_are_written_as_the_settings_say_at_that_moment(option: str) -> None:
    name = {"HEADERS": "RateLimit", "LEGACY_HEADERS": "X-RateLimit-Limit"}[option]
    found = []
    for is_on in (True, False, True):
        with override_settings(QUOTA=quota_of({"named": "10/m"}, **{"HEADERS": False, option: is_on})):
            found.append(name in run(by_name).headers)
    assert found == [True, False, True]


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("remembered", "look_up"),
    [
        (lambda: addresses._proxies_of(current()), lambda n: addresses.is_trusted_proxy(f"10.{n >> 8}.{n & 255}.1")),
        (lambda: addresses._full, lambda n: addresses._full(f"10.{n >> 8}.{n & 255}.1")),
        (lambda: addresses._read_canonical, lambda n: client_ip(get(REMOTE_ADDR=f"2001:db8::{n:x}"))),
        (lambda: request_rules._outermost, lambda n: request_rules.rules_of_view(get(), lambda request: n)),
        (lambda: views._is_async_class, lambda n: views._is_async_class(type(f"View{n}", (), {}))),
    ],
    ids=["trusted proxies", "addresses", "clients", "views", "classes"],
)
def test_what_is_remembered_is_bounded(
    remembered: Callable[[], Any], look_up: Callable[[int], object], settings: Any
) -> None:
    settings.QUOTA = {"STORE": "memory", "TRUSTED_PROXIES": ["172.16.0.0/12"]}
    for number in range(4_200):
        look_up(number)
    found = remembered().cache_info()
    assert found.currsize == found.maxsize <= 4_096


def test_a_method_remembers_its_rules_for_some_of_the_classes_that_inherit_it() -> None:
    shared: Any = views.own(ByMethod.post, request_rules.Limited)
    classes: list[Any] = [type(f"Sub{number}", (ByMethod,), {}) for number in range(2 * request_rules.MAX_CLASSES)]

    found = {owner: request_rules.rules_of_view(get("post"), owner.as_view()) for owner in classes}

    assert {owner: rules for owner, rules in found.items() if rules != shared.rules(owner)} == {}
    assert len(shared._known) <= request_rules.MAX_CLASSES


# --- nothing for nothing ----------------------------------------------------------------------------------------------


def test_without_headers_nobody_reads_what_a_decision_has_left(settings: Any) -> None:
    settings.QUOTA = {"STORE": "memory", "HEADERS": False}
    unread: Any = SimpleNamespace(enforced=False)  # has no outcomes
    response = HttpResponse("ok")
    responses.set_headers(response, unread)
    assert "RateLimit" not in response.headers


@pytest.mark.parametrize(("key", "asked"), [("ip", 0), ("header:X-Api-Key", 0), ("user", 1)])
def test_integrations_are_asked_about_a_view_only_for_a_rule_that_could_wait(
    key: str, asked: int, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_rules, "_finders", [])
    views: list[object] = []

    @register_late_views
    def note(view: object) -> bool:
        views.append(view)
        return False

    settings.QUOTA = quota_of({"named": {"rate": "10/m", "key": key}})
    run(by_name)
    assert len(views) == asked


def test_requests_share_nothing_of_what_they_met(settings: Any) -> None:
    settings.QUOTA = quota_of({"named": {"rate": "10/m", "match": "/named/"}})
    left = []
    for _ in range(3):
        decision: Decision = Client().get("/named/").wsgi_request.quota  # type: ignore[attr-defined]
        left.append(decision.remaining)
    assert left == [9, 8, 7]


def test_a_limit_by_one_header_reads_no_other_one(settings: Any) -> None:
    request = get(HTTP_X_API_KEY="abc")
    response = run(quota("10/m", key="header:x-api-key")(lambda request: HttpResponse("ok")), request)
    assert (response.headers["RateLimit"].count("r=9"), "headers" in vars(request)) == (1, False)
