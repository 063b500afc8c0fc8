"""System checks of settings, rules and views: each finding has an id and a hint."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, cast

import pytest
from django.core.checks import ERROR, run_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import include, path, re_path
from django.views import View
from hypothesis import given
from hypothesis import strategies as st

import django_quota
from django_quota import quota
from django_quota.middleware import QuotaMiddleware
from tests.support.findings import REDIS, SETTINGS, TIMEOUTS, findings, ids
from tests.support.site_response import in_vain


@pytest.mark.parametrize(
    "quota",
    [
        {},
        MappingProxyType({"PREFIX": "p"}),
        {
            "CACHE": "default", "DIGEST_KEY": "x", "ENABLED": True, "HEADERS": False, "IPV6_PREFIX": 56,
            "IPV4_PREFIX": 24, "CLIENT_IP_HEADER": "CF-Connecting-IP", "TRUSTED_PROXY_COUNT": 0,
            "LEGACY_HEADERS": True, "ON_UNAVAILABLE": "deny", "PREFIX": "p", "STORE": "redis",
            "TEMPLATE": "429.html", "TRUSTED_PROXIES": ["10.0.0.0/8", "unix"],
            "RULES": {"a": "10/m", "b": {"rate": ["1/s", "5/m"], "key": ["user", "path"], "block": False}},
        },
    ],
    ids=["empty", "mapping", "full"],
)  # fmt: skip
def test_a_good_configuration_has_no_findings(quota: object) -> None:
    assert findings(quota) == []


def test_no_setting_at_all_has_no_findings() -> None:
    with override_settings(QUOTA=None, CACHES={"default": REDIS}):
        assert run_checks(tags=["django_quota"]) == []


@pytest.mark.parametrize("client", ["DefaultClient", "HerdClient"])
def test_clients_that_can_run_scripts_have_no_findings(client: str) -> None:
    options = {"CLIENT_CLASS": f"django_redis.client.{client}", **TIMEOUTS}
    assert ids(caches={"default": {**REDIS, "OPTIONS": options}}) == []


@pytest.mark.parametrize("quota", [[], "x", 5])
def test_e001_quota_is_no_dict(quota: object) -> None:
    (found,) = findings(quota)
    assert (found.id, found.hint) == ("django_quota.E001", "Use, for example, {'CACHE': 'default'}.")
    assert type(quota).__name__ in found.msg


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("ENABLED", 1, "Use True or False."), ("PREFIX", "{", "Use a text without braces"), ("STORE", "x", None),
        ("PREFIX", "a; {b", "Use a text without braces"), ("IPV6_PREFIX", 0, "Use a number from 1 to 128"),
        ("TRUSTED_PROXIES", ["10.0.0.1/8"], "Use a network"), ("TRUSTED_PROXIES", "10.0.0.1", "Use a list"),
        ("TRUSTED_PROXIES", [["10.0.0.0/8"]], "Use a network"),
        ("RULES", "a; b", "Use a dict, for example {'search': '10/m'}"),
        ("RESPONSE", 5, "Use a sync function"), ("RESPONSE", "teapot", "Use a sync function"),
        ("RESPONSE", HttpResponse, "Use a sync function"), ("RESPONSE", in_vain, "Use a sync function"),
        ("RESPONSE", "tests.support.site_response.nothing", "Use the path of a function"),
        ("RESPONSE", "tests.nothing.teapot", "Use the path of a function"),
        ("RESPONSE", "tests.support.site_response.NOT_A_FUNCTION", "Use a function"),
        ("CACHE", None, "Use, for example, 'default'"), ("TEMPLATE", 5, "Use, for example"),
        ("DIGEST_KEY", 5, "Use a long random text"),
    ],
)  # fmt: skip
def test_e002_a_value_is_wrong(name: str, value: object, hint: str | None) -> None:
    (found,) = findings({name: value})
    assert found.id == "django_quota.E002"
    assert f'QUOTA["{name}"]' in found.msg
    assert repr(value) in found.msg or name in ("TRUSTED_PROXIES", "DIGEST_KEY")
    if hint:
        assert found.hint is not None
        assert found.hint.startswith(hint) or hint in found.hint
        assert "; " not in found.hint


def test_e002_proxies_are_named_or_counted_and_not_both() -> None:
    (found,) = findings({"TRUSTED_PROXIES": ["10.0.0.0/8"], "TRUSTED_PROXY_COUNT": 1})
    assert (found.id, found.msg) == ("django_quota.E002", 'QUOTA["TRUSTED_PROXY_COUNT"] is 1 beside TRUSTED_PROXIES.')
    assert str(found.hint).startswith("Use one of them")
    (found,) = findings({"CLIENT_IP_HEADER": "X-Real-IP", "TRUSTED_PROXY_COUNT": 1})
    assert "TRUSTED_PROXIES is empty" in found.msg


def test_e002_every_wrong_value_is_reported_at_once() -> None:
    assert ids({"ENABLED": 1, "HEADERS": 1, "PREFIX": ""}) == ["E002"] * 3


def test_e003_the_alias_does_not_exist() -> None:
    (found,) = findings({"CACHE": "defualt"})
    assert found.id == "django_quota.E003"
    assert "'defualt'" in found.msg
    assert str(found.hint).endswith("Did you mean 'default'?")


@pytest.mark.parametrize(
    "backend",
    [
        "django.core.cache.backends.locmem.LocMemCache", "django.core.cache.backends.dummy.DummyCache",
        "django.core.cache.backends.redis.RedisCache", "nowhere.Cache", "nodots", "", "django_redis.cache.logger",
        "django_redis.cache.Nothing",
    ],
)  # fmt: skip
def test_e004_the_backend_cannot_run_scripts(backend: str) -> None:
    (found,) = findings(caches={"default": {"BACKEND": backend, "LOCATION": "redis://127.0.0.1:1"}})
    assert found.id == "django_quota.E004"
    assert 'CACHES["default"]' in found.msg
    assert "django_redis.cache.RedisCache" in str(found.hint)


def test_e005_the_shard_client_cannot_run_scripts() -> None:
    caches = {"default": {**REDIS, "OPTIONS": {"CLIENT_CLASS": "django_redis.client.ShardClient"}}}
    (found,) = findings(caches=caches)
    assert (found.id, found.hint) == (
        "django_quota.E005",
        "Use an alias with the DefaultClient, the SentinelClient or the ClusterClient.",
    )


CLUSTER = {**REDIS, "OPTIONS": {"CLIENT_CLASS": "django_quota.stores.cluster.ClusterClient"}}


@pytest.mark.parametrize(
    "location", ["redis://a:1/0", "redis://a:1/0, redis://b:2", ["rediss://a:1", "rediss://b:2/0"]]
)
def test_the_cluster_client_has_no_findings(location: object) -> None:
    found = findings(caches={"default": {**CLUSTER, "LOCATION": location}})
    assert not [each for each in found if each.level >= ERROR]


@pytest.mark.parametrize(
    ("location", "words"),
    [("unix:///tmp/redis.sock", "names no host"), (["redis://a:1/0", "redis://b:1/3"], "another database than 0")],
)
def test_e004_a_location_that_is_no_cluster(location: object, words: str) -> None:
    (found,) = findings(caches={"default": {**CLUSTER, "LOCATION": location}})
    assert found.id == "django_quota.E004"
    assert words in found.msg


@pytest.mark.parametrize("client", ["nowhere.Client", "django_redis.client.Nothing", "django_redis.client.default.re"])
def test_a_wrong_client_class_is_a_finding(client: str) -> None:
    found = findings(caches={"default": {**REDIS, "OPTIONS": {"CLIENT_CLASS": client}}})
    assert len(found) == 1
    assert found[0].hint


@pytest.mark.parametrize(
    ("rule", "code", "text"),
    [
        ({"key": "ip"}, "E006", "it has no 'rate'"),
        ({"rate": "1/m", "bloc": True}, "E006", "Did you mean 'block'"),
        ({"rate": "1/m", "methods": 5}, "E006", "not HTTP methods"),
        ({"rate": "1/m", "cost": -1}, "E006", "cost=-1"),
        ({"rate": "1/mo"}, "E007", "Did you mean 'month'"),
        ({"rate": "1/m", "algorithm": "token_buket"}, "E008", "Did you mean 'token_bucket'"),
        ({"rate": "1/m", "key": "usr"}, "E009", "Did you mean 'user'"),
        ({"rate": "1/m", "key": "nowhere.key"}, "E009", "cannot be imported"),
        ({"rate": "1/m", "key": ".a"}, "E009", "'.a'"),
    ],
)
def test_each_kind_of_wrong_rule_has_an_id_and_a_hint(rule: dict[str, Any], code: str, text: str) -> None:
    (found,) = findings({"RULES": {"search": rule}})
    assert found.id == f"django_quota.{code}"
    assert found.msg.startswith("QUOTA[\"RULES\"]['search']: ")
    assert text in f"{found.msg} {found.hint}"
    assert found.hint


def test_e010_a_decorator_names_an_unknown_rule(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.support.urls_by_name"
    (one, other) = findings({"RULES": {"search": "1/m", "login": "2/m"}})
    assert (one.id, other.id) == ("django_quota.E010", "django_quota.E010")
    assert "serach" in one.msg
    assert "Did you mean 'search'" in (one.hint or "")
    assert "logn" in other.msg


def test_rules_that_are_no_dict_are_one_finding_even_if_views_name_some(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.support.urls_by_name"
    assert ids({"RULES": []}) == ["E002"]


def test_e012_a_decorator_without_a_rate(settings: Any) -> None:
    bare = cast("Callable[[Any], Any]", quota)  # type checkers find it too

    @bare
    def by_function(request: Any) -> HttpResponse:
        return HttpResponse()

    class ByMethod(View):
        @bare
        def get(self, request: Any) -> HttpResponse:
            return HttpResponse()

    def rate_of(request: Any) -> str:
        return "1/m"

    limited = quota(rate_of)(lambda request: HttpResponse())
    settings.ROOT_URLCONF = SimpleURLs([path("", by_function), path("b", ByMethod.as_view()), path("c", limited)])
    found = findings()
    assert [str(message.id) for message in found] == ["django_quota.E012"] * 2
    assert ["by_function" in found[0].msg, "ByMethod.get" in found[1].msg] == [True, True]
    assert found[0].hint == "Write it with a rate: @quota('10/m')."


FACTORY = "django_redis.pool.SentinelConnectionFactory"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["no CONNECTION_FACTORY and no SENTINELS"]), ({"SENTINELS": [("a", 1)]}, ["no CONNECTION_FACTORY."]),
        ({"CONNECTION_FACTORY": FACTORY}, ["no SENTINELS"]),
        ({"CONNECTION_FACTORY": FACTORY, "SENTINELS": [("a", 1)]}, []),
    ],
)  # fmt: skip
def test_e004_a_sentinel_alias_lacks_an_option(options: dict[str, Any], expected: list[str]) -> None:
    client = {"CLIENT_CLASS": "django_redis.client.SentinelClient"}
    found = findings({}, {"default": {**REDIS, "OPTIONS": {**TIMEOUTS, **client, **options}}})
    assert len(found) == len(expected)
    assert all(words in message.msg for words, message in zip(expected, found, strict=True))
    assert all(message.id == "django_quota.E004" for message in found)


@pytest.mark.parametrize(
    ("proxies", "expected"),
    [(["0.0.0.0/0"], ["W008"]), (["unix", "::/0", "10.0.0.0/8"], ["W008"]), (["10.0.0.0/8", "unix", "192.0.2.1"], [])],
)
def test_w008_every_address_is_a_trusted_proxy(proxies: list[str], expected: list[str]) -> None:
    assert ids({"TRUSTED_PROXIES": proxies}) == expected


def test_e006_the_name_of_a_rule_is_no_text() -> None:
    assert ids({"RULES": {5: "1/m", "": "1/m"}}) == ["E006", "E006"]


@pytest.mark.parametrize("value", ["5/mx", ["5/m", "6/m"], {"rate": 5}, {"rate": "5/month"}, ["5/m", ["x"]]])
def test_e007_a_rate_cannot_be_read(value: object) -> None:
    (found,) = findings({"RULES": {"search": value}})
    assert found.id == "django_quota.E007"
    assert found.msg.startswith("QUOTA[\"RULES\"]['search']: ")
    assert found.hint
    assert found.hint not in found.msg  # it is said once, as the hint


@pytest.mark.parametrize(("option", "value"), [("cache_refusals", 99), ("warn_at", 2)])
def test_e006_the_hint_says_what_to_write(option: str, value: object) -> None:
    (found,) = findings({"RULES": {"search": {"rate": "5/m", option: value}}})
    assert f"{option}={value}" in found.msg
    assert str(found.hint).startswith("Use, for example, ")


@pytest.mark.parametrize(
    ("rule", "code", "text"),
    [
        ({"rate": "1/m", "match": "api*"}, "E006", "match='api*'"),
        ({"rate": "1/m", "match": "/", "exclude": {"pth": "/"}}, "E006", "Did you mean 'path'"),
        ({"rate": "1/m", "exclude": "/"}, "E006", "exclude= needs match="),
        ({"rate": "1/m", "matches": "/"}, "E006", "Did you mean 'match'"),
        ({"rate": "1/m", "exempt": "stuff"}, "E006", "exempt='stuff'"),
        ({"rate": "1/m", "exempt": ["nowhere.at_all"]}, "E006", "exempt='nowhere.at_all' cannot be imported"),
        ({"rate": "1/m", "cost": "tests.api.test_checks.REDIS"}, "E006", "cost='tests.api.test_checks.REDIS' is dict"),
        ({"rate": "1/m", "skip": "x"}, "E006", "skip='x' cannot be imported"),
        ({"rate": "nowhere.rate"}, "E006", "rate='nowhere.rate' cannot be imported"),
        ({"rate": {"anonymous": "1/m", "pro": "9/m"}}, "E006", "No tier= says who is in tier 'pro'"),
        ({"rate": {"anonymous": "1/mx", "authenticated": "9/m"}}, "E007", "for tier 'anonymous'"),
        ({"rate": "1/m", "tier": "tests.api.test_checks.ids"}, "E006", "tier= needs rates by tier"),
        ({"ratee": "1/m"}, "E006", "Did you mean 'rate'?"),
        ({"anonymous": "1/m", "authenticated": "9/m"}, "E006", "Put rates by tier under 'rate'"),
    ],
)
def test_the_finding_for_a_wrong_rule_names_the_option(rule: dict[str, Any], code: str, text: str) -> None:
    (found,) = findings({"RULES": {"search": rule}})
    assert found.id == f"django_quota.{code}"
    assert found.msg.startswith("QUOTA[\"RULES\"]['search']: ")
    assert text in f"{found.msg} {found.hint}"
    assert found.hint


OURS, THEIRS = "django_quota.middleware.QuotaMiddleware", "django.contrib.auth.middleware.AuthenticationMiddleware"
BY_USER = {"rate": "1/m", "match": "/", "key": "user"}


class TestMiddleware:
    @pytest.mark.parametrize(
        ("rule", "middleware", "expected"),
        [
            (BY_USER, [THEIRS, OURS], []), (BY_USER, [OURS, THEIRS], ["W004"]), (BY_USER, [OURS], ["W005"]),
            (BY_USER, [THEIRS], ["W003"]), ({**BY_USER, "key": "ip"}, [OURS, THEIRS], []),
            ({**BY_USER, "key": "ip"}, [OURS], []), ({**BY_USER, "key": ("ip", "user")}, [OURS], ["W005"]),
            ({"rate": {"anonymous": "1/m", "authenticated": "2/m"}, "match": "/"}, [OURS, THEIRS], ["W004"]),
            ({**BY_USER, "key": "ip", "exempt": "staff"}, [OURS], ["W005"]), ("1/m", [], []),
            ({**BY_USER, "key": "ip"}, [], ["W003"]), (BY_USER, ["tests.api.test_checks.Derived", "tests.auth"], ["E"]),
        ],
    )  # fmt: skip
    def test_rules_without_middleware_or_without_the_user_are_warnings(
        self, rule: Any, middleware: list[str], expected: list[str], settings: Any
    ) -> None:
        settings.MIDDLEWARE = middleware
        settings.ROOT_URLCONF = "tests.support.urls_of_rules"
        assert ids({"RULES": {"site": rule}}) == [code for code in expected if code != "E"]

    def test_a_decorator_with_a_user_key_needs_authentication(self, settings: Any) -> None:
        settings.MIDDLEWARE = [OURS]
        (found,) = findings()  # tests.support.urls has one, by user
        assert found.id == "django_quota.W005"
        assert "whoami-async" in found.msg

    @pytest.mark.parametrize(("who_is_limited", "expected"), [("a method", []), ("the class", ["W005"])])
    def test_a_framework_that_sets_the_user_itself_needs_no_middleware(
        self, who_is_limited: str, expected: list[str], settings: Any
    ) -> None:
        """Django REST framework does: dispatch() runs the authentication classes, then calls get()."""

        class OfAFramework(View):
            authentication_classes: ClassVar[list[Any]] = []

            def get(self, request: Any) -> HttpResponse:
                return HttpResponse()

        limit = quota("1/m", key="user")
        if who_is_limited == "a method":
            OfAFramework.get = limit(OfAFramework.get)  # type: ignore[method-assign]
        else:
            limit(OfAFramework)
        settings.MIDDLEWARE = [OURS]
        settings.ROOT_URLCONF = SimpleURLs([path("", OfAFramework.as_view())])
        assert ids() == expected

    @pytest.mark.parametrize(
        ("limit", "expected"),
        [
            (quota("5/m", name="site"), ["E011"]), (quota("9/m", name="site"), []), (quota("5/m", name="other"), []),
            (quota("9/m", name="site", cost=2), ["E011"]), (quota("5/m", name="site", key="user"), []),
            (quota("50/h", name="site"), []), (quota(rule="site"), []),
            (quota("50/h", name="site", block=False), ["E011"]),
        ],
    )  # fmt: skip
    def test_e011_a_view_limit_has_the_name_of_a_site_rule_and_differs(
        self, limit: Any, expected: list[str], settings: Any
    ) -> None:
        settings.MIDDLEWARE = [THEIRS, OURS]
        settings.ROOT_URLCONF = SimpleURLs([path("", limit(lambda request: HttpResponse()))])
        assert ids({"RULES": {"site": {"rate": "9/m", "match": "/"}}}) == expected

    @pytest.mark.parametrize(
        ("limit", "expected"),
        [
            (quota("5/m", name="site"), ["W009"]), (quota("9/m", name="site"), []), (quota("5/m", name="other"), []),
            (quota("9/m", name="site", cost=2), []), (quota("9/m", name="site", block=False), []),
            (quota("5/m", name="site", key="user"), []), (quota("50/h", name="site"), []),
            (quota("50/h", "5/m", name="site"), ["W009"]), (quota(lambda request: "5/m", name="site"), []),
            (quota("9/m", name="site", algorithm="token_bucket"), []), (quota("5/m"), []),
            (quota("9/m", name="site", count_refused=True), ["W009"]), (quota(rule="site"), []),
        ],
    )  # fmt: skip
    def test_w009_a_view_limit_shares_the_count_of_a_settings_rule_and_differs(
        self, limit: Any, expected: list[str], settings: Any
    ) -> None:
        settings.ROOT_URLCONF = SimpleURLs([path("", limit(lambda request: HttpResponse()))])
        assert ids({"RULES": {"site": "9/m"}}) == expected


API = {"rate": "9/m", "key": "header:X-Api-Key", "match": "/api/"}
BY_IP = {"rate": "600/m", "key": "ip", "match": "/"}


def chosen_by_the_site(request: HttpRequest) -> str:
    return "a"


class TestClientChosenKeys:
    """A client that sends a new value each time starts a new count each time, and fills Redis."""

    @pytest.fixture(autouse=True)
    def with_middleware(self, settings: Any) -> None:
        settings.MIDDLEWARE = [THEIRS, OURS]

    @pytest.mark.parametrize(
        "key", ["header:X-Api-Key", "cookie:c", "get:q", "post:p", "json:p", "path", ("ip", "path")]
    )
    def test_w014_there_is_no_rule_by_ip(self, key: Any) -> None:
        (found,) = findings({"RULES": {"api": {**API, "key": key}, "login": {**BY_IP, "match": "/login"}}})
        part = key if isinstance(key, str) else "path"
        assert found.id == "django_quota.W014"
        assert found.msg.startswith(f"QUOTA[\"RULES\"]['api'] is limited by {part!r}")
        assert "'key': 'ip'" in str(found.hint)

    @pytest.mark.parametrize("key", ["ip", "user", "user_or_ip", "global", ("user", "ip"), chosen_by_the_site])
    def test_other_keys_are_fine(self, key: Any) -> None:
        assert ids({"RULES": {"api": {**API, "key": key}}}) == []

    @pytest.mark.parametrize(
        ("beside", "expected"),
        [
            ({}, []), ({"match": "/api/"}, []), ({"match": ["/api", "/x/"]}, []), ({"key": "user_or_ip"}, []),
            ({"match": "/ap"}, ["W014"]), ({"match": "/api/v1/"}, ["W014"]), ({"match": "host:x.org"}, ["W014"]),
            ({"match": {"path": "/", "host": "x.org"}}, ["W014"]), ({"shadow": True}, ["W014"]),
            ({"block": False}, ["W014"]), ({"methods": ["POST"]}, ["W014"]), ({"rate": None}, ["W014"]),
            ({"exclude": "/static/"}, []), ({"exclude": "/api/"}, ["W014"]), ({"exclude": "/api/v1/"}, ["W014"]),
        ],
    )  # fmt: skip
    def test_a_rule_by_ip_must_cover_the_same_requests(self, beside: dict[str, Any], expected: list[str]) -> None:
        assert ids({"RULES": {"api": API, "site": {**BY_IP, **beside}}}) == expected

    def test_a_rule_by_ip_with_the_same_match_covers_it(self, settings: Any) -> None:
        place = {"match": {"path": "re:^/a", "host": "x.org"}}
        assert ids({"RULES": {"api": {**API, **place}, "site": {**BY_IP, **place}}}) == []

    @pytest.mark.parametrize(
        ("rules", "limits", "expected"),
        [
            ({}, [quota("5/m", key="post:phone")], ["W014"]),
            ({}, [quota("5/m", key="post:phone"), quota("9/m", key="ip", name="b")], []),
            ({"api": {"rate": "9/m", "key": "get:q"}}, [quota(rule="api")], ["W014"]),
            ({"site": BY_IP}, [quota("5/m", key="post:phone")], []),
            ({"site": {**BY_IP, "match": "/x/"}}, [quota("5/m", key="post:phone")], ["W014"]),
            ({"api": {"rate": "9/m", "key": "get:q"}}, [], []),
        ],
    )
    def test_w014_of_views(self, rules: Any, limits: list[Any], expected: list[str], settings: Any) -> None:
        def view(request: HttpRequest) -> HttpResponse:
            return HttpResponse()

        for limit in limits:
            view = limit(view)
        settings.ROOT_URLCONF = SimpleURLs([path("", view)])
        assert ids({"RULES": rules}) == expected


def _view(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class TestKeysThatNoRequestHas:
    """They would limit everybody by IP, and nothing would say so."""

    SESSIONS = "django.contrib.sessions.middleware.SessionMiddleware"

    @pytest.fixture(autouse=True)
    def by_ip(self, settings: Any) -> None:
        settings.MIDDLEWARE = [THEIRS, OURS]

    @pytest.mark.parametrize(
        ("middleware", "engine", "problem"),
        [
            ([], "db", "no middleware sets it"),
            ([SESSIONS], "signed_cookies", "a session in a signed cookie has no lasting key"),
            ([SESSIONS], "db", None),
            ([SESSIONS], "cache", None),
        ],
    )
    @pytest.mark.parametrize("key", ["session", ("ip", "session")])
    def test_w015_there_are_no_session_keys(
        self, key: Any, middleware: list[str], engine: str, problem: str | None, settings: Any
    ) -> None:
        settings.MIDDLEWARE = [*middleware, THEIRS, OURS]
        settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{engine}"
        found = findings({"RULES": {"api": {**API, "key": key}, "site": BY_IP}})
        assert [(each.id, problem in each.msg) for each in found if problem] == (
            [("django_quota.W015", True)] * len(found)
        )
        assert len(found) == (problem is not None)

    @pytest.mark.parametrize(
        ("route", "near"),
        [
            (path("<int:pk>/", _view), None),
            (path("<slug:tenant>/", include([path("x/", _view)])), "Did you mean 'tenant'?"),
            (re_path(r"^(?P<pk>\\d+)$", _view), None),
            (path("", _view, {"pk": 1}), None),
            (path("x/", include([path("<int:pk>/", _view)])), None),
            (path("", _view), "Use the name in a path(), for example 'pk' of <int:pk>."),
        ],
    )
    def test_w016_no_url_has_the_argument(self, route: Any, near: str | None, settings: Any) -> None:
        settings.ROOT_URLCONF = SimpleURLs([route])
        name = "tennant" if near and "tenant" in near else "pk"
        found = findings({"RULES": {"api": {**API, "key": f"kwarg:{name}"}, "site": BY_IP}})
        assert [(each.id, each.hint) for each in found] == ([("django_quota.W016", near)] if near else [])

    @pytest.mark.parametrize("option", ["settle", "counts"])
    def test_w021_a_leaky_bucket_gives_little_back(self, option: str) -> None:
        rule = {"rate": "5/m", "match": "/", option: "builtins.len"}
        assert findings({"RULES": {"api": rule}}) == []
        (found,) = findings({"RULES": {"api": {**rule, "algorithm": "leaky_bucket"}}})
        assert found.id == "django_quota.W021"


class SimpleURLs:
    """A URLconf without a module."""

    def __init__(self, urlpatterns: list[Any]) -> None:
        self.urlpatterns = urlpatterns


class Derived(QuotaMiddleware):
    """A subclass in a project."""


class TestViewNamesInRules:
    @pytest.mark.parametrize(
        ("match", "near"),
        [
            ("api:serach", "Did you mean 'api:search'?"), ("apis:*", "Did you mean 'api:*'?"),
            ("plane", "Did you mean 'plain'?"),
            (["/x/", "nothing-like-it"], "Use the name= of a path()"),
            ({"view": "api:v2:*", "path": "/"}, "Did you mean 'api:v1:*'?"),
        ],
    )  # fmt: skip
    def test_w006_a_view_that_the_urls_do_not_have_would_never_fit(self, match: Any, near: str, settings: Any) -> None:
        settings.ROOT_URLCONF = "tests.support.urls_of_rules"
        (found,) = findings({"RULES": {"search": {"rate": "1/m", "match": match}}})
        assert found.id == "django_quota.W006"
        assert found.msg.startswith('QUOTA["RULES"][\'search\']["match"]: the URLs have no ')
        assert str(found.hint).startswith(near)

    def test_w006_checks_exclude_too(self, settings: Any) -> None:
        settings.ROOT_URLCONF = "tests.support.urls_of_rules"
        (found,) = findings({"RULES": {"search": {"rate": "1/m", "match": "/", "exclude": "api:serach"}}})
        assert '["exclude"]' in found.msg

    def test_known_names_namespaces_and_dotted_paths_have_no_findings(self, settings: Any) -> None:
        settings.ROOT_URLCONF = "tests.support.urls_of_rules"
        match = ["api:search", "api:*", "api:v1:*", "api:v1:items", "plain", "tests.support.urls_of_rules.twice"]
        match += ["tests.support.urls_of_rules.nested", "tests.support.urls_of_rules.Unhashable", "functools.partial"]
        assert ids({"RULES": {"search": {"rate": "1/m", "match": match}}}) == []


def test_every_wrong_rule_is_reported_at_once() -> None:
    assert ids({"RULES": {"a": "5/mx", "b": "5/m", "c": {"rate": "5/m", "key": "x"}}}) == ["E007", "E009"]


def test_e015_an_unknown_setting_is_an_error_with_the_nearest_one() -> None:
    found, other = findings({"PREFXI": "p", 5: 5})
    assert (found.id, other.id) == ("django_quota.E015", "django_quota.E015")
    assert found.is_serious()
    assert found.hint == "Did you mean 'PREFIX'? Otherwise remove it."
    assert findings({"rules": {}})[0].hint == "Did you mean 'RULES'? Otherwise remove it."


def test_the_memory_store_needs_no_redis() -> None:
    caches = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    assert ids({"STORE": "memory"}, caches) == []


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({}, "no SOCKET_TIMEOUT and no SOCKET_CONNECT_TIMEOUT"), ({"SOCKET_TIMEOUT": 1}, "no SOCKET_CONNECT_TIMEOUT"),
        ({"CONNECTION_POOL_KWARGS": {"socket_connect_timeout": 1}}, "no SOCKET_TIMEOUT"),
        ({"CONNECTION_POOL_KWARGS": {"socket_connect_timeout": 1}, "SOCKET_TIMEOUT": 2}, None),
    ],
)  # fmt: skip
def test_w007_a_cache_without_timeouts_is_warned_of(options: dict[str, Any], missing: str | None) -> None:
    found = findings(caches={"default": {**REDIS, "OPTIONS": options}})
    assert [each.id for each in found] == (["django_quota.W007"] if missing else [])
    assert all(f"sets {missing}." in each.msg for each in found)


def test_each_id_means_one_kind_of_finding() -> None:
    """E004 is named twice in one file, and W024 in two drop-ins, each for one kind of finding."""
    named: dict[str, list[str]] = {}
    for source in Path(django_quota.__file__).parent.rglob("*.py"):
        for name in re.findall(r"\b[EW]0\d\d\b", source.read_text()):
            named.setdefault(name, []).append(source.name)
    assert len(named) > 20
    assert {name: where for name, where in named.items() if len(where) > 1 and name not in ("E004", "W024")} == {}
    assert set(named["E004"]) == {"config_checks.py"}


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
