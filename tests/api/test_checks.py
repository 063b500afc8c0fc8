"""System checks of settings, rules and views: each finding has an id and a hint. docs/settings.md lists them.

The checks of an alias and its LOCATION are also in test_store_checks.py and tests/stores/test_locations.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, cast

import pytest
from django.core import mail
from django.core.checks import ERROR, run_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import include, path, re_path
from django.utils import timezone
from django.views import View
from hypothesis import given
from hypothesis import strategies as st
from rest_framework.urlpatterns import format_suffix_patterns

import django_quota
from django_quota import quota
from django_quota.middleware import QuotaMiddleware
from django_quota.models import QuotaOverride
from tests.support.databases import default_database, sqlite_database
from tests.support.findings import REDIS, SETTINGS, TIMEOUTS, findings, ids
from tests.support.site_response import in_vain

# --- settings ---------------------------------------------------------------------------------------------------------


def rule(value: object) -> dict[str, Any]:
    return {"RULES": {"search": value}}


@pytest.mark.parametrize(
    "quota",
    [
        {},
        MappingProxyType({"PREFIX": "p"}),
        {
            "CACHE": "default", "DIGEST_KEY": "x", "ENABLED": True, "HEADERS": False, "IPV6_PREFIX": 56,
            "IPV4_PREFIX": 24, "CLIENT_IP_HEADER": "CF-Connecting-IP", "TRUSTED_PROXY_COUNT": 0,
            "LEGACY_HEADERS": True, "ON_UNAVAILABLE": "deny", "PREFIX": "p", "STORE": "redis",
            "TEMPLATE": "429.html", "TRUSTED_PROXIES": ["10.0.0.0/8", "unix", "192.0.2.1"],
            "RULES": {"a": "10/m", "b": {"rate": ["1/s", "5/m"], "key": ["user", "path"], "block": False}},
        },
        rule({"rate": "5/m", "match": "/", "settle": "builtins.max"}),
    ],
    ids=["empty", "mapping", "full", "settle"],
)  # fmt: skip
def test_a_good_configuration_has_no_findings(quota: object) -> None:
    assert findings(quota) == []


def test_no_setting_at_all_and_no_redis_for_the_memory_store_have_no_findings() -> None:
    with override_settings(QUOTA=None, CACHES={"default": REDIS}):
        assert run_checks(tags=["django_quota"]) == []
    assert ids({"STORE": "memory"}, {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}) == []


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("ENABLED", 1, "Use True or False."), ("PREFIX", "a; {b", "Use a text without braces"), ("STORE", "x", ""),
        ("IPV6_PREFIX", 0, "Use a number from 1 to 128"), ("TRUSTED_PROXIES", ["10.0.0.1/8"], "Use a network"),
        ("TRUSTED_PROXIES", "10.0.0.1", "Use a list"), ("TRUSTED_PROXIES", [["10.0.0.0/8"]], "Use a network"),
        ("RULES", "a; b", "Use a dict, for example {'search': '10/m'}"),
        ("RESPONSE", 5, "Use a sync function"), ("RESPONSE", HttpResponse, "Use a sync function"),
        ("RESPONSE", in_vain, "Use a sync function"),
        ("RESPONSE", "tests.nothing.teapot", "Use the path of a function"),
        ("RESPONSE", "tests.support.site_response.NOT_A_FUNCTION", "Use a function"),
        ("CACHE", None, "Use, for example, 'default'"), ("TEMPLATE", 5, "Use, for example"),
        ("DIGEST_KEY", 5, "Use a long random text"),
    ],
)  # fmt: skip
def test_e002_a_value_is_wrong(name: str, value: object, hint: str) -> None:
    (found,) = findings({name: value})
    assert found.id == "django_quota.E002"
    assert f'QUOTA["{name}"]' in found.msg
    assert repr(value) in found.msg or name in ("TRUSTED_PROXIES", "DIGEST_KEY")
    assert hint in str(found.hint)
    assert "; " not in str(found.hint)


FACTORY = "django_redis.pool.SentinelConnectionFactory"


def client(name: str, **more: Any) -> dict[str, Any]:
    return {"OPTIONS": {**TIMEOUTS, "CLIENT_CLASS": name, **more}}


def sentinel(**more: Any) -> dict[str, Any]:
    return client("django_redis.client.SentinelClient", **more)


def cluster(location: object) -> dict[str, Any]:
    return {"LOCATION": location, "OPTIONS": {"CLIENT_CLASS": "django_quota.stores.cluster.ClusterClient"}}


@pytest.mark.parametrize(
    ("alias", "code", "words"),
    [
        ({"BACKEND": "django.core.cache.backends.db.DatabaseCache"}, "E004", 'CACHES["default"] is django.core'),
        ({"BACKEND": "nowhere.Cache"}, "E004", "django_redis.cache.RedisCache"),
        ({"BACKEND": "nodots"}, "E004", "cannot be imported"),
        ({"BACKEND": ""}, "E004", "cannot be imported"),
        ({"BACKEND": "django_redis.cache.Nothing"}, "E004", "cannot be imported"),
        (client("nowhere.Client"), "E004", "The CLIENT_CLASS of"),
        (client("django_redis.client.default.re"), "E004", "The CLIENT_CLASS of"),
        (client("django_redis.client.ShardClient"), "E005", "the DefaultClient, the SentinelClient or the ClusterC"),
        (client("django_redis.client.HerdClient"), None, ""),
        (cluster("unix:///tmp/redis.sock"), "E004", "names no host"),
        (cluster(["redis://a:1/0", "redis://b:1/3"]), "E004", "another database than 0"),
        (cluster("redis://a:1/0, redis://b:2"), None, ""),
        (cluster(["rediss://a:1", "rediss://b:2/0"]), None, ""),
        (sentinel(), "E004", "no CONNECTION_FACTORY, or no SENTINELS"),
        (sentinel(SENTINELS=[("a", 1)]), "E004", "no CONNECTION_FACTORY"),
        (sentinel(CONNECTION_FACTORY=FACTORY), "E004", "no SENTINELS"),
        (sentinel(CONNECTION_FACTORY=FACTORY, SENTINELS=[("a", 1)]), None, ""),
        ({"OPTIONS": {}}, "W007", "sets no SOCKET_TIMEOUT and no SOCKET_CONNECT_TIMEOUT."),
        ({"OPTIONS": {"SOCKET_TIMEOUT": 1}}, "W007", "sets no SOCKET_CONNECT_TIMEOUT."),
        (
            {"OPTIONS": {"CONNECTION_POOL_KWARGS": {"socket_connect_timeout": 1}}},
            "W007", "sets no SOCKET_TIMEOUT.",
        ),
        (
            {"OPTIONS": {"CONNECTION_POOL_KWARGS": {"socket_connect_timeout": 1}, "SOCKET_TIMEOUT": 2}},
            None, "",
        ),
    ],
)  # fmt: skip
def test_e003_to_w007_an_alias_cannot_serve(
    alias: dict[str, Any], code: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(mail, "outbox")  # as outside of tests, where another backend is no error
    found = [each for each in findings(caches={"default": {**REDIS, **alias}}) if each.level >= ERROR or code == "W007"]
    assert [each.id for each in found] == ([f"django_quota.{code}"] if code else [])
    assert all(words in f"{each.msg} {each.hint}" and each.hint for each in found)


# --- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "code", "text"),
    [
        ({"key": "ip"}, "E006", "it has no 'rate'"),
        ({"rate": "1/m", "bloc": True}, "E006", "Did you mean 'block'"),
        ({"rate": "1/m", "methods": 5}, "E006", "not HTTP methods"),
        ({"rate": "1/m", "cost": -1}, "E006", "cost=-1"),
        ({"rate": "1/m", "warn_at": 2}, "E006", "Use, for example, "),
        ({"rate": "1/m", "match": "api*"}, "E006", "match='api*'"),
        ({"rate": "1/m", "match": "/", "exclude": {"pth": "/"}}, "E006", "is not a dict of 'path'"),
        ({"rate": "1/m", "exclude": "/"}, "E006", "exclude= needs match="),
        ({"rate": "1/m", "exempt": "stuff"}, "E006", "exempt='stuff'"),
        ({"rate": "1/m", "exempt": ["nowhere.at_all"]}, "E006", "exempt='nowhere.at_all' cannot be imported"),
        ({"rate": "1/m", "cost": "tests.api.test_checks.REDIS"}, "E006", "cost='tests.api.test_checks.REDIS' is dict"),
        ({"rate": "1/m", "skip": "x"}, "E006", "skip='x' cannot be imported"),
        ({"rate": "nowhere.rate"}, "E006", "rate='nowhere.rate' cannot be imported"),
        ({"rate": {"anonymous": "1/m", "pro": "9/m"}}, "E006", "No tier= says who is in tier 'pro'"),
        ({"rate": "1/m", "tier": "tests.api.test_checks.ids"}, "E006", "tier= needs rates by tier"),
        ({"anonymous": "1/m", "authenticated": "9/m"}, "E006", "'anonymous' is not an option of a rule"),
        ({"rate": {"anonymous": "1/mx", "authenticated": "9/m"}}, "E007", "for tier 'anonymous'"),
        ({"rate": "1/mo"}, "E007", "month, year"),
        ("5/mx", "E007", "5/mx"), (["5/m", "6/m"], "E007", ""), ({"rate": 5}, "E007", ""),
        ({"rate": "1/m", "algorithm": "token_buket"}, "E008", "Did you mean 'token_bucket'"),
        ({"rate": "1/m", "key": "usr"}, "E009", "Did you mean 'user'"),
        ({"rate": "1/m", "key": "nowhere.key"}, "E009", "cannot be imported"),
        ({"rate": "1/m", "match": "/", "count_when": "builtins.max", "algorithm": "leaky_bucket"}, "W021", "'search'"),
    ],
)  # fmt: skip
def test_the_finding_for_a_wrong_rule_names_the_option_and_what_to_write(value: Any, code: str, text: str) -> None:
    (found,) = findings(rule(value))
    assert found.id == f"django_quota.{code}"
    assert found.msg.startswith("QUOTA[\"RULES\"]['search']: " if code[0] == "E" else "Rule 'search'")
    assert text in f"{found.msg} {found.hint}"
    assert found.hint
    assert found.hint not in found.msg  # it is said once, as the hint


@pytest.mark.parametrize(
    ("quota", "found"),
    [
        (5, [("E001", "QUOTA is int", "Use, for example, {'CACHE': 'default'}.")]),
        ({"CACHE": "defualt"}, [("E003", "'defualt'", "Did you mean 'default'?")]),
        ({"PREFXI": "p", 5: 5}, [("E015", "'PREFXI'", "Did you mean 'PREFIX'? Otherwise"), ("E015", "5", "")]),
        ({"rules": {}}, [("E015", "'rules'", "Did you mean 'RULES'? Otherwise remove it.")]),
        (
            {"TRUSTED_PROXIES": ["10.0.0.0/8"], "TRUSTED_PROXY_COUNT": 1},
            [("E002", 'QUOTA["TRUSTED_PROXY_COUNT"] is 1 beside TRUSTED_PROXIES.', "Use one of them")],
        ),
        (
            {"CLIENT_IP_HEADER": "X-Real-IP", "TRUSTED_PROXY_COUNT": 1},
            [("E002", "TRUSTED_PROXIES is empty", "")],
        ),
        ({"TRUSTED_PROXIES": ["unix", "::/0", "10.0.0.0/8"]}, [("W008", "'::/0'", "Name the networks")]),
        ({"ENABLED": 1, "HEADERS": 1, "PREFIX": ""}, [("E002", "", "")] * 3),
        ({"RULES": {5: "1/m", "": "1/m"}}, [("E006", "", "")] * 2),
        (
            {"RULES": {"a": "5/mx", "b": "5/m", "c": {"rate": "5/m", "key": "x"}}},
            [("E007", "'a'", ""), ("E009", "'c'", "")],
        ),
    ],
)  # fmt: skip
def test_every_wrong_value_is_reported_at_once(quota: Any, found: list[tuple[str, str, str]]) -> None:
    reported = findings(quota)
    assert [each.id for each in reported] == [f"django_quota.{code}" for code, _, _ in found]
    for each, (_, words, hint) in zip(reported, found, strict=True):
        assert words in each.msg
        assert hint in str(each.hint)


# --- rules and views --------------------------------------------------------------------------------------------------


class SimpleURLs:
    """A URLconf without a module."""

    def __init__(self, *urlpatterns: Any) -> None:
        self.urlpatterns = urlpatterns


class Derived(QuotaMiddleware):
    """A subclass in a project."""


def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def other(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def rate_of(request: HttpRequest) -> str:
    return "1/m"


OURS, THEIRS = "django_quota.middleware.QuotaMiddleware", "django.contrib.auth.middleware.AuthenticationMiddleware"
BY_USER = {"rate": "1/m", "match": "/", "key": "user"}
BY_IP = {"rate": "600/m", "key": "ip", "match": "/"}
API = {"rate": "9/m", "key": "header:X-Api-Key", "match": "/api/"}


@pytest.fixture(autouse=True)
def with_middleware(settings: Any) -> None:
    settings.MIDDLEWARE = [THEIRS, OURS]


def view_with(*limits: Any) -> Any:
    view: Any = page
    for limit in limits:
        view = limit(view)
    return view


@pytest.mark.parametrize(
    ("rule", "middleware", "expected"),
    [
        (BY_USER, [THEIRS, OURS], []), (BY_USER, [OURS, THEIRS], ["W004"]), (BY_USER, [OURS], ["W005"]),
        (BY_USER, [THEIRS], ["W003"]), (BY_IP, [OURS], []), ({**BY_IP, "key": ("ip", "user")}, [OURS], ["W005"]),
        ({"rate": {"anonymous": "1/m", "authenticated": "2/m"}, "match": "/"}, [OURS, THEIRS], ["W004"]),
        ({**BY_IP, "exempt": "staff"}, [OURS], ["W005"]), ("1/m", [], []), (BY_IP, [], ["W003"]),
        (BY_USER, ["tests.api.test_checks.Derived", "tests.auth"], []),  # which may set the user
    ],
)  # fmt: skip
def test_w003_to_w005_rules_without_middleware_or_without_the_user(
    rule: Any, middleware: list[str], expected: list[str], settings: Any
) -> None:
    settings.MIDDLEWARE = middleware
    settings.ROOT_URLCONF = SimpleURLs()
    assert ids({"RULES": {"site": rule}}) == expected


@pytest.mark.parametrize(("on_the_class", "expected"), [(False, []), (True, ["W005"])])
def test_w005_a_framework_that_sets_the_user_itself_needs_no_middleware(
    on_the_class: bool, expected: list[str], settings: Any
) -> None:
    """Django REST framework does: dispatch() runs the authentication classes, then calls get()."""
    limit = quota("1/m", key="user")

    class OfAFramework(View):
        authentication_classes: ClassVar[list[Any]] = []

        def get(self, request: Any) -> HttpResponse:
            return HttpResponse()

    if on_the_class:
        limit(OfAFramework)
    else:
        OfAFramework.get = limit(OfAFramework.get)  # type: ignore[method-assign]
    settings.MIDDLEWARE = [OURS]
    settings.ROOT_URLCONF = SimpleURLs(path("", OfAFramework.as_view()))
    assert ids() == expected


def test_e010_a_decorator_names_an_unknown_rule(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.support.urls_by_name"
    one, other = findings({"RULES": {"search": "1/m", "login": "2/m"}})
    assert (one.id, other.id) == ("django_quota.E010", "django_quota.E010")
    assert ("serach" in one.msg, "Did you mean 'search'" in str(one.hint), "logn" in other.msg) == (True, True, True)
    assert ids({"RULES": []}) == ["E002"]


def test_e012_a_decorator_without_a_rate(settings: Any) -> None:
    bare = cast("Callable[[Any], Any]", quota)  # type checkers find it too

    class ByMethod(View):
        @bare
        def get(self, request: Any) -> HttpResponse:
            return HttpResponse()

    limited = path("c", view_with(quota(rate_of)))
    settings.ROOT_URLCONF = SimpleURLs(path("", bare(other)), path("b", ByMethod.as_view()), limited)
    found = findings()
    assert [str(message.id) for message in found] == ["django_quota.E012"] * 2
    assert ["other" in found[0].msg, "ByMethod.get" in found[1].msg] == [True, True]
    assert found[0].hint == "Write it with a rate: @quota('10/m')."


@pytest.mark.parametrize(
    ("limit", "applied", "named"),
    [
        (quota("5/m", name="site"), "E011", "W009"), (quota("9/m", name="site"), "", ""), (quota("5/m"), "", ""),
        (quota("9/m", name="site", cost=2), "E011", ""), (quota("5/m", name="site", key="user"), "", ""),
        (quota("50/h", name="site"), "", ""), (quota("50/h", "5/m", name="site"), "E011", "W009"),
        (quota(rule="site"), "", ""), (quota("50/h", name="site", block=False), "E011", ""),
        (quota(rate_of, name="site"), "", ""), (quota("9/m", name="site", algorithm="token_bucket"), "", ""),
        (quota("9/m", name="site", count_refused=True), "E011", "W009"),
    ],
)  # fmt: skip
def test_e011_w009_a_view_limit_has_the_name_of_a_rule_and_differs(
    limit: Any, applied: str, named: str, settings: Any
) -> None:
    """A rule that the middleware applies goes into one call with it; another one shares its count."""
    settings.ROOT_URLCONF = SimpleURLs(path("", view_with(limit)))
    assert ids({"RULES": {"site": {"rate": "9/m", "match": "/"}}}) == [applied] * bool(applied)
    assert ids({"RULES": {"site": "9/m"}}) == [named] * bool(named)


class TestClientChosenKeys:
    """W014: a client that sends a new value each time starts a new count each time, and fills Redis."""

    @pytest.mark.parametrize("key", ["header:X-Api-Key", "cookie:c", "get:q", "post:p", "json:p", ("ip", "path")])
    def test_there_is_no_rule_by_ip(self, key: Any) -> None:
        (found,) = findings({"RULES": {"api": {**API, "key": key}, "login": {**BY_IP, "match": "/login"}}})
        part = key if isinstance(key, str) else "path"
        assert found.id == "django_quota.W014"
        assert found.msg.startswith(f"QUOTA[\"RULES\"]['api'] is limited by {part!r}")
        assert "'key': 'ip'" in str(found.hint)

    @pytest.mark.parametrize("key", ["ip", "user", "user_or_ip", "global", ("user", "ip"), rate_of])
    def test_other_keys_are_fine(self, key: Any) -> None:
        assert ids({"RULES": {"api": {**API, "key": key}}}) == []

    @pytest.mark.parametrize(
        ("api", "beside", "expected"),
        [
            ({}, {}, []), ({}, {"match": ["/api", "/x/"]}, []), ({}, {"key": "user_or_ip"}, []),
            ({}, {"match": "/ap"}, ["W014"]), ({}, {"match": "/api/v1/"}, ["W014"]),
            ({}, {"match": {"path": "/", "host": "x.org"}}, ["W014"]), ({}, {"shadow": True}, ["W014"]),
            ({}, {"block": False}, ["W014"]), ({}, {"methods": ["POST"]}, ["W014"]), ({}, {"rate": None}, ["W014"]),
            ({}, {"exclude": "/static/"}, []), ({}, {"exclude": "/api/"}, ["W014"]),
            ({}, {"exclude": "/api/v1/"}, ["W014"]), ({"match": "host:x.org"}, {"match": "host:x.org"}, []),
            ({"match": "host:x.org"}, {"match": "host:x.org", "exclude": "/api/"}, ["W014"]),
        ],
    )  # fmt: skip
    def test_a_rule_by_ip_must_cover_the_same_requests(self, api: Any, beside: Any, expected: list[str]) -> None:
        assert ids({"RULES": {"api": {**API, **api}, "site": {**BY_IP, **beside}}}) == expected

    @pytest.mark.parametrize(
        ("rules", "limits", "expected"),
        [
            ({}, [quota("5/m", key="post:phone")], ["W014"]),
            ({}, [quota("5/m", key="post:phone"), quota("9/m", key="ip", name="b")], []),
            ({"api": {"rate": "9/m", "key": "get:q"}}, [quota(rule="api")], ["W014"]),
            ({"api": {"rate": "9/m", "key": "get:q"}}, [], []),
            ({"site": BY_IP}, [quota("5/m", key="post:phone")], []),
            ({"site": {**BY_IP, "match": "/x/"}}, [quota("5/m", key="post:phone")], ["W014"]),
        ],
    )
    def test_of_views(self, rules: Any, limits: list[Any], expected: list[str], settings: Any) -> None:
        settings.ROOT_URLCONF = SimpleURLs(path("", view_with(*limits)))
        assert ids({"RULES": rules}) == expected


SESSIONS = "django.contrib.sessions.middleware.SessionMiddleware"


@pytest.mark.parametrize(
    ("middleware", "engine", "problem"),
    [
        ([], "db", "no middleware sets it"),
        ([SESSIONS], "signed_cookies", "a session in a signed cookie has no lasting key"),
        ([SESSIONS], "cache", None),
    ],
)
@pytest.mark.parametrize("key", ["session", ("ip", "session")])
def test_w015_there_are_no_session_keys(
    key: Any, middleware: list[str], engine: str, problem: str | None, settings: Any
) -> None:
    settings.MIDDLEWARE = [*middleware, THEIRS, OURS]
    settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{engine}"
    found = findings({"RULES": {"api": {**API, "key": key}, "site": BY_IP}})
    assert [(each.id, str(problem) in each.msg) for each in found] == [("django_quota.W015", True)] * bool(problem)


@pytest.mark.parametrize(
    ("name", "route", "near"),
    [
        ("pk", path("<int:pk>/", page), None),
        ("pk", path("x/", include([path("<int:pk>/", page)])), None),
        ("pk", path("", page, {"pk": 1}), None),
        ("pk", path("", page), "Use the name in a path(), for example 'pk' of <int:pk>."),
        ("tennant", path("<slug:tenant>/", include([path("x/", page)])), "Did you mean 'tenant'?"),
    ],
)
def test_w016_no_url_has_the_argument(name: str, route: Any, near: str | None, settings: Any) -> None:
    settings.ROOT_URLCONF = SimpleURLs(route)
    found = findings({"RULES": {"api": {**API, "key": f"kwarg:{name}"}, "site": BY_IP}})
    assert [(each.id, each.hint) for each in found] == ([("django_quota.W016", near)] if near else [])


@pytest.mark.parametrize(
    ("match", "near"),
    [
        ({"match": "api:serach"}, "Did you mean 'api:search'?"), ({"match": "apis:*"}, "Did you mean 'api:*'?"),
        ({"match": ["/x/", "nothing-like-it"]}, "Use the name= of a path()"),
        ({"match": {"view": "api:v2:*", "path": "/"}}, "Did you mean 'api:v1:*'?"),
        ({"match": "/", "exclude": "api:serach"}, "Did you mean 'api:search'?"),
    ],
)  # fmt: skip
def test_w006_a_view_that_the_urls_do_not_have_would_never_fit(match: Any, near: str, settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.support.urls_of_rules"
    (found,) = findings(rule({"rate": "1/m", **match}))
    assert found.id == "django_quota.W006"
    option = list(match)[-1]
    assert found.msg.startswith(f'QUOTA["RULES"][\'search\']["{option}"]: the URLs have no ')
    assert str(found.hint).startswith(near)
    known = ["api:search", "api:*", "api:v1:*", "api:v1:items", "plain", "tests.support.urls_of_rules.twice"]
    known += ["tests.support.urls_of_rules.nested", "tests.support.urls_of_rules.Unhashable", "functools.partial"]
    assert ids(rule({"rate": "1/m", "match": known})) == []


def test_e033_a_cost_of_a_view_that_the_urls_do_not_have(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.support.urls_of_rules"
    (found,) = findings(rule({"rate": "1/m", "costs": {"plain": 2, "api:serach": 50}}))
    assert (found.id, found.hint) == ("django_quota.E033", "Did you mean 'api:search'?")
    for wrong in ({}, 50, {"plain": 0}, {"plain": True}, {1: 2}, {"plain": 10**12 + 1}):
        assert ids(rule({"rate": "1/m", "costs": wrong})) == ["E006"], wrong
    assert ids(rule({"rate": "1/m", "costs": {"plain": 2}, "distinct": "ip"})) == ["E006"]


class TestOtherURLsOfAView:
    """W030: a rule reaches a view by one URL, and misses it by another one."""

    @pytest.fixture
    def w030(self, settings: Any) -> Callable[..., list[str]]:
        def check(match: Any, *urlpatterns: Any, **options: Any) -> list[str]:
            settings.ROOT_URLCONF = SimpleURLs(*urlpatterns)
            found = findings({"RULES": {"some": {"rate": "1/m", "match": match, **options}}})
            return [f"{each.msg} {each.hint}" for each in found if each.id == "django_quota.W030"]

        return check

    def test_another_path_of_the_same_name(self, w030: Any) -> None:
        inner = [path("find/", page, name="find"), path("search/", page, name="find"), path("other/", page)]
        (found,) = w030("/x/find/", path("x/", include((inner, "shop"))))
        assert found == (
            "QUOTA[\"RULES\"]['some'][\"match\"] fits '/x/find/' and misses '/x/search/', another URL of the view "
            "'shop:find'. Match the view by its name, 'shop:find', which covers all its URLs."
        )

    @pytest.mark.parametrize("match", ["/hook/", "/hook/*", {"path": "/hook/", "host": "a.example"}, ["/hook/", "/x/"]])
    def test_a_path_without_the_slash_at_its_end(self, match: Any, w030: Any) -> None:
        assert len(w030(match, path("hook", page), path("hook/", page))) == 1
        assert w030("/hook", path("hook", page), path("hook/", page)) == []

    @pytest.mark.parametrize("route", [path("users/", page), re_path("^users/$", page)], ids=["path", "regex"])
    @pytest.mark.parametrize("allowed", [None, ["json", "xml"]])
    def test_a_format_suffix_without_a_name(self, route: Any, allowed: Any, w030: Any) -> None:
        urls = format_suffix_patterns([route], allowed=allowed)
        (found,) = w030("/users/", *urls)
        assert "fits '/users/' and misses '/users.x', another URL of the view 'tests.api.test_checks.page'" in found
        for covers_both in ("/", "re:^/users", ["/users/", "/users.*"], "/users**", "tests.api.test_checks.page"):
            assert w030(covers_both, *urls) == []

    def test_other_pages_and_what_a_rule_excludes_have_no_findings(self, w030: Any) -> None:
        versions = [path("users/", page, name="users"), path("users/<int:pk>/", page, name="users")]
        files = [path(f"{root}/<path:path>", page, {"root": root}) for root in ("static", "media")]
        health = [path("health/", page), path("health", page)]
        for match, urls in (
            ("/v2/", [path("v1/", include(versions)), path("v2/", include(versions))]),
            ("/users/*/", versions),
            ("/v2/users/", [path("v1/users/", page), path("v2/users/", page)]),
            ("/blog/tag/", [path("blog/", page, name="posts"), path("blog/tag/<slug:tag>/", page, name="by-tag")]),
            ("/media/", files),
            ("/users/", [path("users/", page), path("users", other)]),
        ):
            assert w030(match, *urls) == []
        assert w030("/", *health, exclude="/health/") == w030("/health/", *health, exclude="/health") == []


# --- all checks -------------------------------------------------------------------------------------------------------


def test_each_id_means_one_kind_of_finding() -> None:
    """E004 is named twice in one file, and W024 in two drop-ins, each for one kind of finding."""
    named: dict[str, list[str]] = {}
    for source in Path(django_quota.__file__).parent.rglob("*.py"):
        for name in re.findall(r"\b[EW]0\d\d\b", source.read_text()):
            named.setdefault(name, []).append(source.name)
    assert len(named) > 20
    assert {name: where for name, where in named.items() if len(where) > 1 and name not in ("E004", "W024")} == {}
    assert set(named["E004"]) == {"aliases.py"}


def test_manage_check_fails_with_the_findings() -> None:
    with override_settings(QUOTA={"RULES": {"a": "5/mx"}}), pytest.raises(SystemCheckError, match="E007"):
        call_command("check", tags=["django_quota"])


@given(
    st.dictionaries(
        st.sampled_from(SETTINGS) | st.text(),
        st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text() | st.lists(st.text(), max_size=1))
        | st.dictionaries(st.text(), st.none() | st.lists(st.text()) | st.dictionaries(st.text(), st.text())),
    )
)  # fmt: skip
def test_the_checks_never_raise(quota: dict[str, Any]) -> None:
    for found in findings(quota):
        assert str(found.id).startswith("django_quota.")


# --- the tables of overrides ------------------------------------------------------------------------------------------


def _database_findings() -> list[tuple[str, str]]:
    found = run_checks(tags=["django_quota"], databases=["default"])
    return [(str(each.id).removeprefix("django_quota."), each.msg) for each in found]


def test_w031_the_tables_of_overrides_are_missing(tmp_path: Path, django_db_blocker: Any) -> None:
    empty = sqlite_database(tmp_path / "empty.sqlite3")
    with django_db_blocker.unblock(), default_database(empty):
        with CaptureQueriesContext(connection) as queries:
            assert run_checks(tags=["django_quota"]) == run_checks(tags=["django_quota"], databases=["other"]) == []
        assert not queries.captured_queries
        assert _database_findings() == []  # the first `migrate` of a site
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE django_migrations (id integer)")
        ((code, message),) = _database_findings()
    assert code == "W031"
    assert "lacks the tables django_quota_overridechanges, django_quota_quotaoverride" in message


def test_w032_there_are_too_many_overrides_that_have_not_ended(database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_quota.web.checks.MAX_OVERRIDES", 2)
    ended = timezone.now() - timedelta(seconds=1)
    rows = [QuotaOverride(subject=f"org:{number}", mode="blocked") for number in range(3)]
    QuotaOverride.objects.bulk_create([*rows[:2], QuotaOverride(subject="org:9", mode="blocked", expires=ended)])
    assert _database_findings() == []
    rows[2].save()
    words = "3 overrides have not ended. Each process holds all of them, and reads them before its first decision."
    assert _database_findings() == [("W032", words)]
