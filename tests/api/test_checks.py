"""System checks of settings, rules and views: each finding has an id and a hint. docs/settings.md lists them."""

import shlex
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.contrib.auth.models import AnonymousUser, User
from django.core.checks import ERROR, WARNING, CheckMessage, run_checks
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import include, path, re_path
from django.utils import timezone
from django.views import View
from hypothesis import given
from hypothesis import strategies as st
from rest_framework.decorators import api_view
from rest_framework.urlpatterns import format_suffix_patterns
from rest_framework.viewsets import ViewSet

from django_quota import check, concurrency, quota
from django_quota.documentation import page as documented
from django_quota.exceptions import ConfigurationError
from django_quota.http import rule_checks
from django_quota.middleware import QuotaMiddleware
from django_quota.models import QuotaOverride
from django_quota.stores.database.sql import STATE_TABLE
from tests.support.databases import OverridesElsewhere, another_database, default_database, sqlite_database
from tests.support.findings import BY_IP, OURS, REDIS, SETTINGS, THEIRS, TIMEOUTS, findings, ids
from tests.support.pages import run_page


@pytest.fixture(autouse=True)
def with_middleware(settings: Any) -> None:
    settings.MIDDLEWARE = [THEIRS, OURS]


FULL: dict[str, Any] = {
    "CACHE": "default", "HEADERS": False, "IPV6_PREFIX": 56, "CLIENT_IP_HEADER": "CF-Connecting-IP",
    "ON_UNAVAILABLE": "deny", "STORE": "redis", "TRUSTED_PROXIES": ["10.0.0.0/8", "unix", "192.0.2.1"],
    "RULES": {
        "a": "10/m", "b": {"rate": ["1/s", "5/m"], "key": ["user", "path"], "block": False},
        "c": {"rate": "5/m", "match": "/", "settle": "builtins.max"},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "quota",
    [
        pytest.param({}, id="nothing set"),
        pytest.param(MappingProxyType({"PREFIX": "p"}), id="a mapping"),
        pytest.param(FULL, id="many settings"),
    ],
)
def test_a_good_configuration_has_no_findings(quota: Any) -> None:
    assert findings(quota) == []


@pytest.mark.parametrize(
    ("tiers", "missing"),
    [
        pytest.param({"free": "1/m", "pro": "9/m"}, "'anonymous' and 'authenticated'", id="neither default tier"),
        pytest.param({"anonymous": "1/m", "pro": "9/m"}, "'authenticated'", id="one of the default tiers"),
        pytest.param({"default": "1/m", "pro": "9/m"}, "", id="default"),
        pytest.param({"anonymous": "1/m", "authenticated": "2/m", "pro": "9/m"}, "", id="both default tiers"),
        pytest.param({"anonymous": "1/m", "authenticated": "2/m"}, "", id="the default tiers alone"),
    ],
)
def test_a_tier_function_without_a_tier_for_all_others_is_a_warning(tiers: Any, missing: str) -> None:
    rules = {"api": {"rate": tiers, "tier": "builtins.str", "match": "/"}}
    found = [each.msg for each in findings({"RULES": rules}) if each.id == "django_quota.W049"]
    assert [f"has no tier {missing}: " in each for each in found] == ([True] if missing else [])


def test_a_tier_function_of_a_slot_needs_a_tier_for_all_others_too() -> None:
    shares = {"share": {"free": 0.5, "pro": 1.0}, "tier": "builtins.str"}
    (found,) = findings({"RULES": {"exports": {"at_once": 4, "match": "/", **shares}}})

    assert found.id == "django_quota.W049"
    assert found.msg.startswith("Slot 'exports' has no tier 'anonymous' and 'authenticated': ")
    assert "if builtins.str returns None or a name that is none of 'free', 'pro'." in found.msg


def test_w049_each_slot_without_a_tier_for_all_others_is_named() -> None:
    slot = {"at_once": 4, "match": "/", "share": {"free": 0.5, "pro": 1.0}, "tier": "builtins.str"}

    found = findings({"RULES": {"exports": slot, "imports": slot}})

    assert [each.msg.partition(" has no tier ")[0] for each in found] == ["Slot 'exports'", "Slot 'imports'"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        pytest.param({"rate": "10/m", "cost": 11}, "cost=11, and a limit of 10:", id="a cost above the limit"),
        pytest.param({"rate": "10/m", "cost": 10}, "", id="a cost of the whole limit"),
        pytest.param({"rate": "1/m", "cost": 2}, "cost=2, and a limit of 1:", id="a limit of one"),
        pytest.param({"rate": ["99/h", "10/m"], "cost": 50}, "cost=50, and a limit of 10:", id="one of two rates"),
        pytest.param({"rate": "9/m", "costs": {"page": 50}}, "costs['page']=50, and a", id="the cost of a view"),
        pytest.param({"rate": "9/m", "costs": {"page": 5, "z": 50}}, "costs['z']=50, and a", id="that of another"),
        pytest.param({"rate": {"anonymous": "5/m", "authenticated": "60/m"}, "cost": 50}, "", id="room in one tier"),
        pytest.param({"rate": {"anonymous": "5/m", "authenticated": None}, "cost": 50}, "", id="a tier without limit"),
        pytest.param({"rate": "10/m", "algorithm": "token_bucket", "burst": 50, "cost": 50}, "", id="a burst"),
        pytest.param({"rate": "0/m"}, "", id="a rate of nothing"),
    ],
)
def test_w051_a_cost_above_the_limit(options: Any, names: str, settings: Any) -> None:
    urls = (path("", page, name="page"),)

    found = found_on(settings, {"a": {"match": "/", **options}}, *urls, only="W051")

    assert [names in each for each in found] == [True] * bool(names)


@pytest.mark.parametrize(
    ("rate", "store", "quota", "warned"),
    [
        ("1000/d", None, {}, False),
        ("1000/month", None, {}, True),
        ({"anonymous": "5/d", "authenticated": "1000/week"}, None, {}, True),
        ("1000/month", "database", {}, False),
        ("1000/month", None, {"REDIS": REDIS["LOCATION"]}, False),
        ("1000/month", None, {"STORE": "memory"}, False),
    ],
    ids=["a day", "a month", "a week of one tier", "a month in the database", "a Redis of its own", "in memory"],
)
def test_long_periods_in_a_cache_are_a_warning_of_deploy(
    settings: Any, rate: Any, store: Any, quota: Any, warned: bool
) -> None:
    settings.CACHES = {"default": REDIS}
    rule = {"rate": rate, "algorithm": "calendar", "store": store, "match": "/"}
    settings.QUOTA = {**quota, "RULES": {"api": rule}}
    found = run_checks(tags=["django_quota"], include_deployment_checks=True)
    assert ("django_quota.W050" in [each.id for each in found]) == warned


def test_w050_names_each_rule_over_a_long_period_beside_what_else_is_found(settings: Any) -> None:
    settings.CACHES = {"default": REDIS}
    rules = {name: {"rate": rate, "algorithm": "calendar"} for name, rate in (("a", "9/month"), ("b", "9/year"))}
    settings.QUOTA = {"RULES": {**rules, "c": {"rate": "9/d", "algorithm": "calendar"}}}

    long, unused = run_checks(tags=["django_quota"], include_deployment_checks=True)

    assert long.msg.startswith("'a', 'b' count weeks, months or years in a cache. ")
    assert unused.msg.startswith("QUOTA[\"RULES\"] has 'a', 'b', 'c' without \"match\"")


def test_the_database_of_a_rule_is_checked(settings: Any) -> None:
    rules = {"api": {"rate": "1000/week", "store": "database", "match": "/"}}
    assert "E028" in ids({"RULES": rules, "DATABASE": "nowhere"})


def test_the_memory_store_needs_no_redis() -> None:
    assert ids({"STORE": "memory"}, {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}) == []


@pytest.mark.parametrize(
    ("template", "is_found"),
    [
        pytest.param("429.html", True, id="ours"),
        pytest.param("shop/429.html", False, id="one that is missing"),
        pytest.param("a" * 300, False, id="what cannot be the name of a file"),
    ],
)
def test_w002_the_template_for_refused_visitors_is_missing(template: str, is_found: bool) -> None:
    says = f"The template {template!r} for refused visitors is not found: they get plain text."

    assert [found.msg for found in findings({"TEMPLATE": template})] == ([] if is_found else [says])


def test_w022_a_site_without_users_has_no_logins_to_limit(settings: Any) -> None:
    settings.INSTALLED_APPS = ["django_quota"]

    assert findings({"LOGIN": {"5/m": "username"}}) == []


def test_w022_a_backend_that_cannot_be_imported_hides_nothing(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "backend_without_its_app.py").write_text('raise RuntimeError("its app is not in INSTALLED_APPS")')
    monkeypatch.syspath_prepend(str(tmp_path))
    settings.AUTHENTICATION_BACKENDS = ["nowhere.Backend", "backend_without_its_app.Backend"]

    assert ids({"LOGIN": {"5/m": "username"}}) == ["W022"]


def test_w002_a_site_without_templates_needs_none(settings: Any) -> None:
    settings.TEMPLATES = []

    assert findings({"TEMPLATE": "shop/429.html"}) == []


def client(name: str, location: Any = REDIS["LOCATION"], **more: Any) -> dict[str, Any]:
    return {"LOCATION": location, "OPTIONS": {**TIMEOUTS, "CLIENT_CLASS": name, **more}}


CLUSTER, SENTINEL = "django_quota.stores.cluster.ClusterClient", "django_redis.client.SentinelClient"
FACTORY = "django_redis.pool.SentinelConnectionFactory"


@pytest.mark.parametrize(
    ("alias", "code", "words"),
    [
        ({"BACKEND": "django.core.cache.backends.db.DatabaseCache"}, "E004", 'CACHES["default"] is django.core'),
        ({"BACKEND": "nowhere.Cache"}, "E004", "django_redis.cache.RedisCache"),
        (client("nowhere.Client"), "E004", "The CLIENT_CLASS of"),
        (client("django_redis.client.ShardClient"), "E005", "the DefaultClient, the SentinelClient or the ClusterC"),
        (client("django_redis.client.HerdClient"), "", ""),
        (client(CLUSTER, "unix:///tmp/redis.sock"), "E004", "names no host"),
        (client(CLUSTER, ["redis://a:1/0", "redis://b:1/3"]), "E004", "another database than 0"),
        (client(CLUSTER, "redis://a:1/0, redis://b:2"), "", ""),
        (client(SENTINEL), "E004", "no CONNECTION_FACTORY, or no SENTINELS"),
        (client(SENTINEL, CONNECTION_FACTORY=FACTORY), "E004", "no SENTINELS"),
        (client(SENTINEL, CONNECTION_FACTORY=FACTORY, SENTINELS=[("a", 1)]), "", ""),
    ],
    ids=str,
)  # fmt: skip
def test_an_alias_that_cannot_serve_is_e004_or_e005(alias: dict[str, Any], code: str, words: str) -> None:
    found = [each for each in findings(caches={"default": {**REDIS, **alias}}) if each.level >= ERROR]
    assert [each.id for each in found] == [f"django_quota.{code}"] * bool(code)
    assert all(words in f"{each.msg} {each.hint}" and each.hint for each in found)


IN_MEMORY = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}


@pytest.mark.parametrize(
    ("alias", "debug", "is_tested", "level"),
    [
        pytest.param(IN_MEMORY, False, False, ERROR, id="another cache on a live site"),
        pytest.param(IN_MEMORY, True, False, WARNING, id="another cache of a developer"),
        pytest.param(IN_MEMORY, False, True, WARNING, id="another cache in tests"),
        pytest.param({**REDIS, **client("nowhere.Client")}, True, True, ERROR, id="a wrong Redis"),
    ],
)
def test_a_developer_may_have_another_cache_but_no_wrong_redis(
    alias: Any, debug: bool, is_tested: bool, level: int, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_quota.http.checks.runtime.is_tested", lambda: is_tested)
    settings.DEBUG = debug

    (found,) = findings(caches={"default": alias})

    assert (found.id, found.level) == ("django_quota.E004", level)


@pytest.mark.parametrize(
    ("value", "code", "text"),
    [
        ({"key": "ip"}, "E006", "it has no 'rate'"),
        ({"rate": "1/m", "exempt": ["nowhere.at_all"]}, "E006", "exempt='nowhere.at_all' cannot be imported"),
        ({"rate": "1/m", "cost": "tests.api.test_checks.REDIS"}, "E006", "cost='tests.api.test_checks.REDIS' is dict"),
        ({"anonymous": "1/m", "authenticated": "9/m"}, "E006", "'anonymous' is not an option of a rule"),
        ({"rate": {"anonymous": "1/mx", "authenticated": "9/m"}}, "E007", "for tier 'anonymous'"),
        ("5/mx", "E007", "5/mx"), (["5/m", "6/m"], "E007", ""), ({"rate": 5}, "E007", ""),
        ({"rate": "1/m", "algorithm": "token_buket"}, "E008", "Did you mean 'token_bucket'"),
        ({"rate": "1/m", "key": "usr"}, "E009", "Did you mean 'user'"),
        ({"rate": "1/m", "methods": 5}, "E006", f"The options of a rule are listed in {documented('rules')}."),
    ],
    ids=str,
)  # fmt: skip
def test_the_finding_for_a_wrong_rule_says_what_to_write(value: Any, code: str, text: str) -> None:
    (found,) = findings({"RULES": {"search": value}})

    assert found.id == f"django_quota.{code}"
    assert found.msg.startswith("QUOTA[\"RULES\"]['search']: ")
    assert text in f"{found.msg} {found.hint}"
    assert found.hint
    assert found.hint not in found.msg  # it is said once, as the hint


@pytest.mark.parametrize(
    ("quota", "found"),
    [
        (5, [("E001", "QUOTA is int", "Use, for example, {'CACHE': 'default'}.")]),
        ({"CACHE": "defualt"}, [("E003", "'defualt'", "Did you mean 'default'?")]),
        ({"PREFXI": "p", 5: 5}, [("E015", "'PREFXI'", "Did you mean 'PREFIX'? Otherwise"), ("E015", "5", "")]),
        ({"TEMPLATE": 5}, [("E002", 'QUOTA["TEMPLATE"]', "")]),
        ({"STORE": "database", "DATABASE": 5}, [("E002", 'QUOTA["DATABASE"]', "")]),
        ({"RELATED": "tests.nothing.teapot"}, [("E002", 'QUOTA["RELATED"]', "Use the path of a function")]),
        ({"RELATED": ["org:7"]}, [("E002", 'QUOTA["RELATED"] is', "Use a sync function (user) -> subjects")]),
        ({"RESPONSE": "tests.nothing.teapot"}, [("E002", 'QUOTA["RESPONSE"]', "Use the path of a function")]),
        ({"ON_UNAVAILABLE": "open"}, [("E002", "is 'open'.", "Use 'allow', 'deny' or 'local'.")]),
        ({"CREDITS_STATUS": 403}, [("E002", 'QUOTA["CREDITS_STATUS"] is 403.', "Use 429, or 402 (Payment required).")]),
        ({"TRUSTED_PROXIES": ["unix"], "TRUSTED_PROXY_COUNT": 1}, [("E002", "is set, too.", "Use one")]),
        ({"TRUSTED_PROXIES": ["unix", "::/0", "10.0.0.0/8"]}, [("W008", "'::/0'", "Name the networks")]),
        ({"TRUSTED_PROXIES": ["0.0.0.0/0", "::/0"]}, [("W008", "'0.0.0.0/0'", ""), ("W008", "'::/0'", "")]),
        (
            {"ENABLED": 1, "HEADERS": 1, "RULES": {5: "1/m", "a": "5/mx", "b": "5/m", "c": {"rate": "1/m", "key": 1}}},
            [("E002", "", ""), ("E002", "", ""), ("E006", "", ""), ("E007", "'a'", ""), ("E009", "'c'", "")],
        ),
    ],
    ids=str,
)  # fmt: skip
def test_every_wrong_value_is_reported_at_once(quota: Any, found: list[tuple[str, str, str]]) -> None:
    reported = findings(quota)

    assert [each.id for each in reported] == [f"django_quota.{code}" for code, _, _ in found]
    pairs = [(each.msg, words) for each, (_, words, _) in zip(reported, found, strict=True)]
    pairs += [(str(each.hint), hint) for each, (_, _, hint) in zip(reported, found, strict=True)]
    assert [(text, words) for text, words in pairs if words not in text] == []
    assert [each.msg for each in reported if each.hint and str(each.hint) in each.msg] == [], "it is said once"


@pytest.mark.parametrize(
    ("quota", "code", "level"),
    [({"PREFXI": "p"}, "E015", ERROR), ({"TRUSTED_PROXIES": ["0.0.0.0/0"]}, "W008", WARNING)],
)
def test_the_letter_of_a_finding_is_its_level(quota: Any, code: str, level: int) -> None:
    assert [(each.id, each.level) for each in findings(quota)] == [(f"django_quota.{code}", level)]


def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def other_page(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class Answers(View):
    def get(self, request: Any) -> Any: ...


class Actions(ViewSet):  # type: ignore[misc]
    def list(self, request: Any) -> Any: ...


class Takes(View):
    def post(self, request: Any) -> Any: ...


def rate_of(request: HttpRequest) -> str:
    return "1/m"


def cost_of(request: HttpRequest) -> int:
    return 2


def found_on(settings: Any, rules: dict[str, Any], *views: Any, only: str = "") -> list[str]:
    """Return what is found on a site with these rules and URLs: the id, the message and the hint."""
    settings.ROOT_URLCONF = views or "tests.support.urls_of_rules"
    found = [f"{each.id} {each.msg} {each.hint}".removeprefix("django_quota.") for each in findings({"RULES": rules})]
    return [each for each in found if each.startswith(only)]


def limited(*limits: Any) -> Any:
    view: Any = page
    for limit in limits:
        view = limit(view)
    return path("", view)


def site(value: Any = None, **options: Any) -> dict[str, Any]:
    rate = {} if "at_once" in options else {"rate": "9/m"}
    return {"site": value or {**rate, "match": "/", **options}}


class Ours(QuotaMiddleware): ...


BY_USER = site(key="user")
BY_USERS: Any = quota("1/m", key="user")
SESSIONS = "django.contrib.sessions.middleware.SessionMiddleware"
TIERS = {"anonymous": "1/m", "authenticated": "2/m"}


@pytest.mark.parametrize(
    ("middleware", "rules", "expected"),
    [
        ([THEIRS, OURS], BY_USER, ""), ([OURS, THEIRS], BY_USER, ""), ([OURS], BY_USER, "W005"),
        ([THEIRS], BY_USER, "W003"), ([OURS], site(), ""), ([OURS], site(key=("ip", "user")), "W005"),
        ([OURS], site(key="user_or_ip"), "W005"), ([OURS], site(distinct="user"), "W005"),
        ([OURS], site(at_once=1, key="user_or_ip"), "W005"), ([OURS], site(at_once=1, key="ip"), ""),
        ([THEIRS], site(at_once=1), "W003"), ([f"{__name__}.Ours"], site(), ""),
        ([f"{__name__}.found_on"], site(), "W003"),
        ([OURS], site(rate=TIERS, tier="builtins.str"), ""),
        ([OURS], site(rate=TIERS), "W005"), ([OURS], site(exempt="staff"), "W005"), ([], site("1/m"), ""),
        ([OURS, "tests.auth"], BY_USER, ""), ([OURS, "AuthMiddleware"], BY_USER, ""),  # it may set the user
        (["nowhere.Middleware", OURS], site(), ""),  # Django says at start that there is no such class
        ([".Middleware", "..Middleware", OURS], site(), ""),
        ([OURS], site(key=("ip", "session")), "W015 Rule 'site' needs the session, but no middleware sets it"),
        ([OURS], site(distinct="session"), "W015 Rule 'site' needs the session, but no middleware sets it"),
        ([OURS, SESSIONS], site(key=("ip", "session")), "W015 Rule 'site' needs the session, but a session in a sig"),
    ],
)  # fmt: skip
def test_a_rule_lacks_a_middleware(middleware: list[str], rules: Any, expected: str, settings: Any) -> None:
    settings.MIDDLEWARE, settings.SESSION_ENGINE = middleware, "django.contrib.sessions.backends.signed_cookies"
    rules = {**rules, "ip": BY_IP} if "session" in str(rules) else rules
    found = found_on(settings, rules, path("", page))
    assert len(found) == bool(expected)
    assert all(each.startswith(expected) for each in found)


def test_w015_a_session_that_the_server_keeps_is_fine(settings: Any) -> None:
    settings.MIDDLEWARE = [SESSIONS, OURS]

    assert found_on(settings, {**site(key=("ip", "session")), "ip": BY_IP}, path("", page)) == []


def test_w015_a_limit_of_a_view_needs_the_session_too(settings: Any) -> None:
    settings.MIDDLEWARE = [OURS]

    (found,) = found_on(settings, {"ip": BY_IP}, limited(quota("1/m", key="session", name="mine")))

    assert found.startswith("W015 Rule 'mine' needs the session, but no middleware sets it")


def test_w005_a_framework_that_sets_the_user_itself_needs_no_middleware(settings: Any) -> None:
    """Django REST framework does: dispatch() runs the authentication classes, then calls get()."""
    settings.MIDDLEWARE = [OURS]
    inside: Any = type("Inside", (View,), {"authentication_classes": [], "get": BY_USERS(lambda self, request: None)})

    assert found_on(settings, {}, path("", inside.as_view())) == []


def test_w005_a_function_that_a_framework_calls_after_it_set_the_user_needs_no_middleware(settings: Any) -> None:
    settings.MIDDLEWARE = [OURS]

    assert found_on(settings, {}, path("", api_view(["GET"])(BY_USERS(page)))) == []


def test_w005_a_limit_before_such_a_framework_needs_a_middleware(settings: Any) -> None:
    settings.MIDDLEWARE = [OURS]
    before = BY_USERS(type("Before", (View,), {"authentication_classes": [], "get": page}))

    (found,) = found_on(settings, {}, path("", before.as_view()))

    assert found.startswith("W005")


def test_w017_a_rule_is_reported_once_though_several_views_read_tokens_later(settings: Any) -> None:
    views: list[Any] = [
        type(name, (View,), {"authentication_classes": [type("Token", (), {})]}) for name in ("One", "Other")
    ]
    urls: Any = [path(f"{view.__name__}/", view.as_view()) for view in views]

    (found,) = found_on(settings, {**BY_USER, "ip": BY_IP}, *urls)

    assert found.startswith(
        "W017 Rule 'site' needs the user, and is decided before tests.api.test_checks.One asks Token"
    )


def test_w017_each_limit_by_user_before_such_a_view_is_named(settings: Any) -> None:
    slots = {
        name: {"at_once": 1, "key": key, "match": "/"} for name, key in (("a", "ip"), ("b", "user"), ("c", "user"))
    }

    found = found_on(settings, {**BY_USER, "ip": BY_IP, **slots}, path("", with_tokens().as_view()), only="W017")

    assert [each.partition(" needs ")[0] for each in found] == ["W017 Rule 'site'", "W017 Slot 'b'", "W017 Slot 'c'"]


def test_w017_is_found_beside_a_rule_that_is_wrong(settings: Any) -> None:
    rules = {"wrong": "5/parsec", **BY_USER, "ip": BY_IP}

    found = found_on(settings, rules, path("", with_tokens().as_view()))

    assert [each[:4] for each in found] == ["E007", "W017"]


BY_SESSION = type("SessionAuthentication", (), {})


def with_tokens(**members: Any) -> Any:
    return type("Tokens", (View,), {"authentication_classes": [type("Token", (), {})], **members})


@pytest.mark.parametrize(
    ("view", "rules", "is_found"),
    [
        pytest.param(lambda: BY_USERS(with_tokens().as_view()), {}, True, id="a limit around the view"),
        pytest.param(lambda: BY_USERS(with_tokens()).as_view(), {}, True, id="a limit of dispatch()"),
        pytest.param(lambda: with_tokens(get=BY_USERS(page)).as_view(), {}, False, id="a limit of a method"),
        pytest.param(lambda: quota("1/m", key="ip")(with_tokens().as_view()), {}, False, id="a limit by address"),
        pytest.param(lambda: with_tokens().as_view(), site(key="user", match="/other/"), False, id="another URL"),
        pytest.param(lambda: with_tokens().as_view(), site(key=("ip", "user")), True, id="a part of a key"),
        pytest.param(lambda: with_tokens().as_view(authentication_classes=[]), BY_USER, False, id="none of its own"),
        pytest.param(
            lambda: with_tokens(authentication_classes=[type("SessionAuthentication", (), {})]).as_view(),
            BY_USER,
            False,
            id="the session",
        ),
        pytest.param(
            lambda: with_tokens(authentication_classes=[type("Ours", (BY_SESSION,), {})]).as_view(),
            BY_USER,
            False,
            id="a subclass for the session",
        ),
        pytest.param(
            lambda: with_tokens(authentication_classes=[BY_SESSION, type("Token", (), {})]).as_view(),
            BY_USER,
            True,
            id="the session, then tokens",
        ),
        pytest.param(
            lambda: with_tokens(authentication_classes=[BY_SESSION()]).as_view(), BY_USER, False, id="no class"
        ),
        pytest.param(
            lambda: concurrency(1, ("ip", "user"), name="one")(with_tokens().as_view()), {}, True, id="a slot by user"
        ),
        pytest.param(lambda: concurrency(1, "ip", name="one")(with_tokens().as_view()), {}, False, id="a slot by ip"),
        pytest.param(
            lambda: with_tokens(get=concurrency(1, "user", name="one")(page)).as_view(),
            {},
            False,
            id="a slot of a method",
        ),
        pytest.param(
            lambda: with_tokens().as_view(),
            {"one": {"at_once": 1, "key": "user", "match": "/other/"}},
            False,
            id="a slot of another URL",
        ),
    ],
)
def test_w017_finds_limits_by_user_before_a_view_that_reads_tokens(
    view: Any, rules: Any, is_found: bool, settings: Any
) -> None:
    found = found_on(settings, rules, path("other/", page), path("", view()), only="W017")

    assert [each[:4] for each in found] == ["W017"] * is_found


def test_e012_a_decorator_without_a_rate(settings: Any) -> None:
    bare: Any = quota  # type checkers find it too

    (found,) = found_on(settings, {}, path("b", bare(page)))

    assert found.startswith("E012")
    assert "test_checks.page has @quota without a rate. Write it with a rate: @quota('10/m')." in found


def test_e010_a_decorator_names_an_unknown_rule(settings: Any) -> None:
    (found,) = found_on(settings, {"search": "1/m"}, limited(quota(rule="serach")))

    assert found.startswith("E010")
    assert "Did you mean 'search'" in found


def test_e010_of_a_site_with_a_rule_that_has_a_number_for_a_name(settings: Any) -> None:
    found = found_on(settings, {7: "1/m", "search": "1/m"}, limited(quota(rule="serach")))  # type: ignore[dict-item]

    assert "Did you mean 'search'" in found[-1]


def test_e010_each_unknown_rule_of_a_view_is_named(settings: Any) -> None:
    found = found_on(settings, {}, limited(quota(rule="inner"), quota("9/m"), quota(rule="outer")))

    assert [each.partition(" on ")[0] for each in found] == ["E010 @quota(rule='outer')", "E010 @quota(rule='inner')"]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda limit: limit(page), id="a function"),
        pytest.param(lambda limit: limit(type("Limited", (Answers,), {})).as_view(), id="a class"),
        pytest.param(lambda limit: with_tokens(get=limit(page)).as_view(), id="a method"),
    ],
)
def test_e010_of_a_view_at_two_urls_is_reported_once(make: Any, settings: Any) -> None:
    view = make(quota(rule="nowhere"))

    (found,) = found_on(settings, {}, path("a/", view), path("b/", view))

    assert found.startswith("E010")


def test_all_wrong_decorators_are_found_at_once(settings: Any) -> None:
    bare: Any = quota
    unknown = limited(quota(rule="serach"))

    found = found_on(settings, {"search": "1/m"}, unknown, path("b", bare(page)), limited(quota(rate_of)))

    assert [each[:4] for each in found] == ["E012", "E010"]


@pytest.mark.parametrize(
    ("limit", "applied", "named"),
    [
        pytest.param(quota("5/m", name="site"), "E011", "W009", id="another rate"),
        pytest.param(quota("9/m", name="site"), "", "", id="the same rate"),
        pytest.param(quota("5/m"), "", "", id="no name"),
        pytest.param(quota("9/m", name="site", cost=2), "E011", "", id="another cost"),
        pytest.param(quota("9/m", name="site", cost=cost_of), "", "", id="a cost that is a function"),
        pytest.param(quota("5/m", name="site", key="user"), "", "", id="another key"),
        pytest.param(quota("50/h", "5/m", name="site"), "E011", "W009", id="two rates"),
        pytest.param(quota(rule="site"), "", "", id="the rule itself"),
        pytest.param(quota(rate_of, name="site"), "", "", id="a function"),
        pytest.param(quota("9/m", name="site", algorithm="token_bucket"), "", "", id="another algorithm"),
    ],
)
class TestAViewLimitHasTheNameOfARule:
    def test_e011_it_differs_from_a_rule_that_the_middleware_applies(
        self, limit: Any, applied: str, named: str, settings: Any
    ) -> None:
        """Both go into one call."""
        found = found_on(settings, site(), limited(limit))

        assert [each[:4] for each in found] == [applied] * bool(applied)

    def test_e011_another_limit_of_the_view_does_not_hide_it(
        self, limit: Any, applied: str, named: str, settings: Any
    ) -> None:
        found = found_on(settings, site(), limited(limit, quota("1/h")))

        assert [each[:4] for each in found] == [applied] * bool(applied)

    def test_w009_it_shares_the_count_of_a_rule_with_another_rate(
        self, limit: Any, applied: str, named: str, settings: Any
    ) -> None:
        found = found_on(settings, site("9/m"), limited(limit))

        assert [each[:4] for each in found] == [named] * bool(named)


API = {"rate": "9/m", "key": "header:X-Api-Key", "match": "/api/"}
OF_HOST = {"path": "/", "host": "x.org"}


@pytest.mark.parametrize(
    ("api", "beside", "is_guarded"),
    [
        ({}, {}, True), ({}, {"match": ["/api", "/x/"]}, True), ({}, {"key": "user_or_ip"}, True),
        ({}, {"key": "user"}, True), ({}, {"key": "global"}, True), ({}, {"key": ("ip", "user")}, False),
        ({"match": OF_HOST}, {"match": OF_HOST}, True),
        ({"match": ["/plain/", "/no-view/"]}, {"match": "/plain/"}, False),
        ({}, {"key": "ip/24"}, True), ({"rate": None}, {"match": "/x/"}, True),
        ({}, {"match": "/api/v1/"}, False), ({}, {"match": {"path": "/", "host": "x.org"}}, False),
        *(({}, fewer, False) for fewer in ({"shadow": True}, {"block": False}, {"methods": ["POST"]}, {"rate": None})),
        ({"methods": ["POST"]}, {"methods": ["POST", "PUT"]}, True),
        ({"methods": ["POST", "PUT"]}, {"methods": ["POST"]}, False),
        ({}, {"exclude": "/static/"}, True), ({}, {"exclude": "/api/"}, False),
        ({"match": "api:*"}, {"exclude": "/api/v1/"}, False), ({"match": "api:*"}, {"match": "/api/"}, True),
        *(({"key": key}, {"match": "/x/"}, False) for key in ("cookie:c", "get:q", "json:p", "post:p", "kwarg:k")),
        *(({"key": key}, {"match": "/x/"}, False) for key in ("session", ("ip", "path"), ("user", "session"))),
        *(({"key": key}, {"match": "/x/"}, True) for key in ("ip", "user", "global", ("user", "ip"), rate_of)),
        ({"key": "user", "distinct": "header:X-Device"}, {"match": "/x/"}, True),
    ],
)  # fmt: skip
def test_w014_a_key_that_clients_choose_needs_a_rule_by_ip_for_the_same_requests(
    api: Any, beside: Any, is_guarded: bool, settings: Any
) -> None:
    found = found_on(settings, {"api": {**API, **api}, "site": {**BY_IP, **beside}}, only="W014")
    assert [each[:4] for each in found] == ["W014"] * (not is_guarded)
    assert all("QUOTA[\"RULES\"]['api'] is limited by" in each and "'key': 'ip'" in each for each in found)


def test_w014_names_each_view_and_the_part_of_the_key_that_clients_choose(settings: Any) -> None:
    one, other = quota("5/m", key=("ip", "get:q"))(page), quota("5/m", key=("ip", "cookie:c"))(other_page)

    found = found_on(settings, {}, path("one/", one), path("other/", other), only="W014")

    assert [each.partition(", which")[0] for each in found] == [
        f"W014 The view {__name__}.page is limited by 'get:q'",
        f"W014 The view {__name__}.other_page is limited by 'cookie:c'",
    ]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"key": "json:phone"}, ""),
        ({"key": ("ip", "post:code"), "on_unavailable": "allow"}, "limits by a field of the body"),
        ({"settle": "builtins.max", "on_unavailable": "allow"}, "charges what a response used"),
        ({"key": "post:code", "on_unavailable": "local"}, ""),
        ({"key": "ip", "on_unavailable": "allow"}, ""),
    ],
)
def test_w044_a_rule_in_front_of_a_code_fails_open(options: dict[str, Any], what: str, settings: Any) -> None:
    found = found_on(settings, {"code": {"rate": "5/m", **options}})
    assert [each.startswith(f"W044 Rule 'code' {what}, and has on_un") for each in found] == [True] * bool(what)


@pytest.mark.parametrize(
    ("other", "is_mixed"),
    [
        ({}, True), ({"prefetch": True}, False), ({"match": "/elsewhere/"}, False), ({"rate": None}, False),
        ({"block": False}, True),
    ],
)  # fmt: skip
def test_w047_a_rule_with_prefetch_is_decided_together_with_one_without(
    other: dict[str, Any], is_mixed: bool, settings: Any
) -> None:
    rules: dict[str, Any] = {"hot": {"rate": "9000/m", "match": "/api/", "prefetch": True}}
    rules["day"] = {"rate": "9/d", "match": "/api/", **other}
    found = found_on(settings, rules, path("api/", page), path("api/more/", page), only="W047")
    assert [each[:4] for each in found] == ["W047"] * is_mixed


@pytest.mark.parametrize(
    ("match", "reported"),
    [pytest.param("/no-view/", ["W014"], id="a URL"), pytest.param("/no-view/*", [], id="a pattern of URLs")],
)
def test_w014_of_a_rule_where_no_view_answers(match: str, reported: list[str], settings: Any) -> None:
    """A 404 counts too, and each new value of the header starts a new count."""
    rules = {"api": {**API, "match": match}}

    assert [each[:4] for each in found_on(settings, rules, only="W014")] == reported


BY_PHONE = quota("5/m", key="post:phone")


@pytest.mark.parametrize(
    ("rules", "limits", "is_guarded"),
    [
        pytest.param({}, [BY_PHONE], False, id="a view alone"),
        pytest.param({}, [BY_PHONE, quota("9/m", key="ip", name="b")], True, id="a limit by address beside it"),
        pytest.param({}, [quota("9/m", name="b", shadow=True), BY_PHONE], False, id="a shadow below it"),
        pytest.param({}, [BY_PHONE, quota("9/m", name="b", shadow=True)], False, id="a shadow above it"),
        pytest.param({"site": BY_IP}, [BY_PHONE], True, id="a rule by address"),
        pytest.param({"site": {**BY_IP, "match": "/x/"}}, [BY_PHONE], False, id="a rule by address of other URLs"),
        pytest.param({"api": {"rate": "9/m", "key": "get:q"}}, [quota(rule="api")], False, id="a rule that is used"),
        pytest.param({"api": {"rate": "9/m", "key": "get:q"}}, [], True, id="a rule that no view uses"),
    ],
)
def test_w014_of_views(rules: dict[str, Any], limits: list[Any], is_guarded: bool, settings: Any) -> None:
    found = found_on(settings, rules, limited(*limits), only="W014")

    assert [each[:4] for each in found] == ["W014"] * (not is_guarded)


@pytest.mark.parametrize(
    ("options", "code", "near"),
    [
        ({"match": "api:serach"}, "W006", "Did you mean 'api:search'?"),
        ({"match": {"view": "api:v2:*", "path": "/"}}, "W006", "Did you mean 'api:v1:*'?"),
        ({"match": "/", "exclude": "api:serach"}, "W006", "[\"exclude\"]: the URLs have no 'api:serach'"),
        ({"costs": {"plain": 2, "api:serach": 50}}, "W006", "Did you mean 'api:search'?"),
        ({"match": "/", "key": "kwarg:pk"}, "W016", "Use the name in a path(), for example 'pk' of <int:pk>."),
        ({"match": "/none/"}, "W041", "Correct the path."),
    ],
)  # fmt: skip
def test_a_name_that_the_urls_do_not_have_would_never_fit(options: Any, code: str, near: str, settings: Any) -> None:
    """A middleware may set other URLs for some hosts: such a finding is a warning, and says which URLs it is about."""
    (found,) = found_on(settings, {"search": {"rate": "60/m", **options}, "ip": BY_IP})
    assert found.startswith(code)
    assert near in found
    assert f"if a middleware sets request.urlconf, silence {code}." in found


@pytest.mark.parametrize(
    ("networks", "finds"),
    [
        pytest.param(["0.0.0.0/0"], ["IPv4"], id="all of IPv4"),
        pytest.param(["::/0", "10.0.0.0/8"], ["IPv6"], id="all of IPv6"),
        pytest.param(["0.0.0.0/1", "128.0.0.0/1"], ["IPv4"], id="all of IPv4 in two halves"),
        pytest.param(["::/1", "0.0.0.0/1", "8000::/1"], ["IPv6"], id="all of IPv6 beside a half of IPv4"),
        pytest.param(["::ffff:0:0/96"], ["IPv4"], id="all of IPv4 as IPv6 maps it"),
        pytest.param(["64:ff9b::/96"], ["IPv4"], id="all of IPv4 behind NAT64"),
        pytest.param(["0.0.0.0/1", "::/1", "staff"], [], id="one half of each"),
    ],
)
@pytest.mark.parametrize("place", ["settings", "view"])
def test_w040_a_rule_that_exempts_all_addresses(place: str, networks: Any, finds: list[str], settings: Any) -> None:
    if place == "settings":
        found = found_on(settings, {"a": {"rate": "1/m", "match": "/", "exempt": networks}}, path("", page))
    else:
        found = found_on(settings, {}, limited(quota("1/m", exempt=networks)))
    assert [each[:4] for each in found] == ["W040"] * len(finds)
    assert all(version in each for version, each in zip(finds, found, strict=True))


SITE_URLS = (
    path("api/v<int:version>/users/", page),
    path("shop/", include([path("cart/", page), path("<slug:item>/buy/", page)])),
    re_path(r"^old/(?P<pk>\d+)/$", page),
    re_path(r"^files?/all/$", page),
    re_path(r"^a-b/$", page),
    re_path(r"^c-d/\Z", page),
    re_path(r"^e-f/", page),
    re_path(r"^g-h/", include([path("intro/", page)])),
    path("docs/", include([path("intro/", page)])),
)


@pytest.mark.parametrize(
    ("match", "is_reached"),
    [
        *((text, True) for text in ("/", "/api/", "/api/v2/", "/api/v2/users/", "/shop", "/shop/ring/buy/")),
        *((text, True) for text in ("/old/", "/old/12/", "/file/", "/files/all/", "/shop/*/buy/", "/api/**", "re:^/x")),
        *((text, True) for text in ("/a-b/", "host:a.example", {"path": "/shop/", "host": "a.example"})),
        *((text, True) for text in ("/docs/", "/docs/intro/")),
        *((text, False) for text in ("/apis/", "/shops/", "/older/", "/a-c/", "/ap/*/users/")),
        *((text, True) for text in ("/c-d/", "/e-f/more/", "/g-h/intro/")),
        *((text, False) for text in ("/docs/other/", "/docs/intro/more/", "/a-b/more/", "/c-d/more/", "/g-h/more/")),
        ({"path": "/apis/", "host": "a.example"}, False), (["/api/", "/apis/"], False),
        (["re:^/x", "/apis/"], False), ([f"{__name__}.page", "/apis/"], False),
    ],
)  # fmt: skip
def test_w041_a_path_in_match_that_no_url_begins_with(match: Any, is_reached: bool, settings: Any) -> None:
    found = found_on(settings, {"a": {"rate": "1/m", "match": match}}, *SITE_URLS, only="W041")
    assert ["no URL begins with" in each for each in found] == [True] * (not is_reached)


@pytest.mark.parametrize(
    ("glob", "fits"),
    [
        pytest.param("/shop/*", False, id="a star matches no slash"),
        pytest.param("/shop/*/", True, id="one part"),
        pytest.param("/shop/c*t/", True, id="a part of a part"),
        pytest.param("/shop/d*t/", False, id="another part"),
        pytest.param("/shop/*/buy", False, id="no slash at the end"),
        pytest.param("/api/*/users/", True, id="an argument without a slash"),
        pytest.param("/media/*.css", True, id="an argument that may have slashes"),
        pytest.param("/api/v2/*/", True, id="a part with an argument"),
        pytest.param("/shop/x**", True, id="two stars within an argument"),
        pytest.param("/old/*", True, id="a regular expression"),
        pytest.param("/shop/**.css", True, id="two stars match anything"),
        pytest.param(["/shop/*", "/shop/"], False, id="one of two"),
    ],
)
def test_w041_a_glob_that_no_url_fits(glob: Any, fits: bool, settings: Any) -> None:
    urls = (*SITE_URLS, path("media/<path:name>", page))

    found = found_on(settings, {"a": {"rate": "1/m", "match": glob}}, *urls, only="W041")

    assert ["Write '/shop/'" in each for each in found] == [True] * (not fits)


def test_w041_two_stars_fit_no_url_that_ends_before_them(settings: Any) -> None:
    (found,) = found_on(settings, {"a": {"rate": "1/m", "match": "/e-f/x**"}}, path("e-f/", page), only="W041")
    assert "no URL begins with '/e-f/x'" in found


@pytest.mark.parametrize(
    ("before", "after"), [((), ()), (SITE_URLS, ()), ((), SITE_URLS)], ids=["alone", "after others", "before others"]
)
def test_w041_a_glob_may_fit_the_urls_of_another_language(before: Any, after: Any, settings: Any) -> None:
    urls = (*before, *i18n_patterns(path("shop/", page), prefix_default_language=False), *after)
    assert found_on(settings, {"a": {"rate": "1/m", "match": "/de/*/"}}, *urls, only="W041") == []


def test_each_message_of_the_checks_of_an_integration_is_reported_once(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [CheckMessage(WARNING, f"The view {view} has no throttle.", id="shop.W001") for view in ("a", "b", "a")]
    monkeypatch.setattr(rule_checks, "view_checks", [lambda patterns: messages])

    assert [each.msg for each in findings({}) if each.id == "shop.W001"] == [each.msg for each in messages[:2]]


@pytest.mark.parametrize(
    ("methods", "view", "finds"),
    [
        pytest.param(["SEARCH"], Answers.as_view(), True, id="no view answers it"),
        pytest.param(["SEARCH", "GET"], Answers.as_view(), False, id="a view answers one of them"),
        pytest.param(["HEAD"], Answers.as_view(), False, id="HEAD of a GET"),
        pytest.param(["OPTIONS"], Answers.as_view(), False, id="OPTIONS"),
        pytest.param(["SEARCH"], page, False, id="a function may answer any"),
        pytest.param(["GET"], Actions.as_view({"get": "list"}), False, id="an action answers it"),
        pytest.param(["SEARCH"], Actions.as_view({"get": "list"}), True, id="no action answers it"),
        pytest.param(["OPTIONS"], Actions.as_view({"get": "list"}), False, id="OPTIONS of actions"),
    ],
)
@pytest.mark.parametrize("place", ["settings", "view"])
def test_w042_methods_that_no_view_answers(place: str, methods: Any, view: Any, finds: bool, settings: Any) -> None:
    if place == "settings":
        rules = {"a": {"rate": "1/m", "match": "/", "methods": methods}}
    else:
        rules, view = {}, quota("1/m", methods=methods)(view)
    found = found_on(settings, rules, path("", view), only="W042")
    assert ["they answer GET, HEAD, OPTIONS" in each for each in found] == [True] * finds


@pytest.mark.parametrize("rule", [{"match": "nowhere"}, {"match": "/nowhere/"}, {"costs": {"nowhere": 2}}])
def test_without_urls_no_rule_is_said_to_miss_them(rule: dict[str, Any], settings: Any) -> None:
    module = ModuleType("urls_of_no_views")
    module.urlpatterns = []  # type: ignore[attr-defined]
    settings.ROOT_URLCONF = module

    found = findings({"RULES": {"search": {"rate": "1/m", "match": "/", **rule}}})

    assert [each.id for each in found if each.id in ("django_quota.W006", "django_quota.W041")] == []


def test_w042_head_of_a_view_that_does_not_answer_get(settings: Any) -> None:
    rules = {"a": {"rate": "1/m", "match": "/", "methods": ["HEAD"]}}

    (found,) = found_on(settings, rules, path("", Takes.as_view()), only="W042")

    assert "they answer OPTIONS, POST" in found


@pytest.mark.parametrize(
    "views",
    [
        pytest.param([page, Answers.as_view()], id="a function first"),
        pytest.param([Answers.as_view(), page], id="a function last"),
        pytest.param([Answers.as_view(), Takes.as_view()], id="a class last"),
        pytest.param([Takes.as_view(), Answers.as_view()], id="a class first"),
    ],
)
def test_methods_that_one_of_several_views_may_answer_are_fine(views: list[Any], settings: Any) -> None:
    rules = {"a": {"rate": "1/m", "match": "/", "methods": ["POST"]}}
    urls = [path(f"{number}/", view) for number, view in enumerate(views)]

    assert found_on(settings, rules, *urls, only="W042") == []


@pytest.mark.parametrize(
    "route",
    [
        pytest.param(path("x/", include([path("<slug:tenant>/", page)])), id="in the path"),
        pytest.param(path("", page, {"tenant": 1}), id="among the extra arguments"),
        pytest.param(path("x/", include([path("", page)]), {"tenant": 1}), id="among those of all views below"),
    ],
)
@pytest.mark.parametrize("key", ["kwarg:tenant", "kwarg: tenant"])
def test_an_argument_that_the_urls_have_is_fine(key: str, route: Any, settings: Any) -> None:
    rules = {"search": {"rate": "1/m", "match": "/", "key": key}, "ip": BY_IP}

    assert found_on(settings, rules, route) == []


def test_w016_names_the_argument_that_is_meant(settings: Any) -> None:
    rules = {"search": {"rate": "1/m", "match": "/", "key": "kwarg: tenat"}, "ip": BY_IP}

    (found,) = found_on(settings, rules, path("<slug:tenant>/", page))

    assert found.startswith("W016 Rule 'search' is limited by 'kwarg: tenat', but no URL has this argument: ")
    assert " Did you mean 'tenant'? " in found


@pytest.mark.parametrize(
    "name",
    [
        "api:search",
        "api:*",
        "api:v1:items",
        "api:v1:*",
        "plain",
        "tests.support.urls_of_rules.nested",
        "functools.partial",
    ],
)
def test_a_name_that_the_urls_have_is_fine(name: str, settings: Any) -> None:
    assert found_on(settings, {"search": {"rate": "1/m", "match": name}}) == []


def test_a_namespace_that_has_only_others_in_it_is_fine(settings: Any) -> None:
    inner = include(([path("items/", page, name="items")], "v1"))

    assert found_on(settings, site(match="api:*"), path("api/", include(([path("v1/", inner)], "api")))) == []


VERSIONS = [path("users/", page, name="users"), path("users/<int:pk>/", page, name="users")]
HOOKS = [path("hook", page), path("hook/", page)]
SUFFIXES = [
    format_suffix_patterns([path("users/", page)]),
    format_suffix_patterns([re_path("^users/$", page)], allowed=["json", "xml"]),
    format_suffix_patterns([path("users/", page, name="users")]),
]


TWO_NAMED_ONE = [path(f"{way}/", page, name="a") for way in "xy"]
VERSIONED = [path("v1/", include(VERSIONS)), path("v2/", include(VERSIONS))]


@pytest.mark.parametrize(
    ("urls", "match", "missed"),
    [
        pytest.param(TWO_NAMED_ONE, "/x/", "fits '/x/' and misses '/y/', another URL", id="two URLs of one name"),
        pytest.param(HOOKS, "/hook/", "misses '/hook'", id="the path without a slash"),
        pytest.param(HOOKS, {"path": "/hook/", "host": "a.example"}, "misses '/hook'", id="of a host"),
        pytest.param(HOOKS, ["/hook/", "/x/"], "misses '/hook'", id="two paths"),
        pytest.param(SUFFIXES[0], "/users/", "fits '/users/' and misses '/users.<format>'", id="suffixes"),
        pytest.param(SUFFIXES[1], "/users/", "fits '/users/' and misses '/users.<format>'", id="suffixes of a regex"),
        pytest.param(SUFFIXES[2], "/users/", "fits '/users/' and misses '/users.<format>'", id="suffixes of a name"),
    ],
)
def test_w030_a_rule_reaches_a_view_by_one_url_but_misses_another(
    urls: Any, match: Any, missed: str, settings: Any
) -> None:
    (found,) = found_on(settings, site(match=match), *urls, only="W030")

    assert missed in found


def test_w030_a_rule_that_misses_urls_of_two_views_is_reported_once(settings: Any) -> None:
    other = [path(f"other{end}", Answers.as_view()) for end in ("", "/")]

    (found,) = found_on(settings, site(match=["/hook/", "/other/"]), *HOOKS, *other, only="W030")

    assert "misses '/hook'" in found


@pytest.mark.parametrize(
    ("urls", "options"),
    [
        pytest.param(HOOKS, {"match": "/hook"}, id="the beginning of both"),
        pytest.param(HOOKS, {"exclude": "/hook/"}, id="exclude misses one"),
        pytest.param(HOOKS, {"match": "/hook/", "exclude": "/hook"}, id="the other is excluded"),
        pytest.param(SUFFIXES[0], {"match": "/"}, id="all paths"),
        pytest.param(SUFFIXES[0], {"match": "re:^/users"}, id="a regex"),
        pytest.param(SUFFIXES[0], {"match": ["/users/", "re:^/users.json"]}, id="a regex beside a path"),
        pytest.param(SUFFIXES[0], {"match": ["/users/", "/users.*"]}, id="suffixes are listed"),
        pytest.param(SUFFIXES[0], {"match": f"{__name__}.page"}, id="the view"),
        pytest.param(VERSIONED, {"match": "/v2/"}, id="one version of two"),
        pytest.param(VERSIONS, {"match": "/users/*/"}, id="details, not the list"),
        pytest.param(
            [path("blog/", page, name="a"), path("blog/tag/<slug:tag>/", page, name="b")],
            {"match": "/blog/tag/"},
            id="two names",
        ),
        pytest.param([path(f"{name}/", page, name=name) for name in "xy"], {"match": "/x/"}, id="two names alone"),
        pytest.param(
            [path(f"{root}/<path:path>", page, {"root": root}) for root in ("static", "media")],
            {"match": "/media/"},
            id="two sets of extra arguments",
        ),
        pytest.param([path("users/", page), path("users", View.as_view())], {"match": "/users/"}, id="two views"),
    ],
)
def test_w030_does_not_find_a_rule_that_means_it(urls: Any, options: Any, settings: Any) -> None:
    assert found_on(settings, site(**options), *urls, only="W030") == []


ODD_TIERS = {"rate": {"free": "1/m"}, "tier": "builtins.str"}
ALL_URLS = (path("x/", page), *HOOKS, path("view/", Answers.as_view(), name="view"))


@pytest.mark.parametrize(
    ("code", "good", "bad", "others"),
    [
        pytest.param("W006", {"match": "view"}, {"match": "nowhere"}, {}, id="views that do not exist"),
        pytest.param("W006", {"costs": {"view": 2}}, {"costs": {"no": 2}}, {}, id="costs of views that do not exist"),
        pytest.param("W016", {"key": "global"}, {"key": "kwarg:no"}, {}, id="arguments that do not exist"),
        pytest.param("W030", {"match": "re:^/hook/"}, {"match": "/hook/"}, {}, id="other URLs of a view"),
        pytest.param("W040", {"exempt": "10.0.0.0/8"}, {"exempt": "0.0.0.0/0"}, {}, id="exempt addresses"),
        pytest.param("W041", {"match": "/x/"}, {"match": "/no/"}, {}, id="paths that no URL begins with"),
        pytest.param("W041", {"match": "/x*/"}, {"match": "/vi*w"}, {}, id="globs that no URL fits"),
        pytest.param("W042", {"methods": ["GET"]}, {"methods": ["POST"]}, {}, id="methods that nothing answers"),
        pytest.param("W044", {"key": "post:a"}, {"key": "post:a", "on_unavailable": "allow"}, {}, id="open forms"),
        pytest.param(
            "W047",
            {"match": "/x/", "prefetch": True},
            {"match": "/hook", "prefetch": True},
            {"day": {"rate": "9/d", "match": "/hook"}},
            id="rules with prefetch beside one without",
        ),
        pytest.param("W049", {}, ODD_TIERS, {}, id="tiers without a default"),
        pytest.param("W051", {"cost": 1}, {"cost": 10}, {}, id="costs above the limit"),
    ],
)
def test_a_rule_does_not_hide_what_is_wrong_with_those_after_it(
    code: str, good: Any, bad: Any, others: Any, settings: Any
) -> None:
    default = {"rate": "9/m", "match": "/view/"}
    rules = {"good": default | good, "bad": default | bad, "worse": default | bad, **others}

    found = found_on(settings, rules, *ALL_URLS, only=code)

    assert ["'bad'" in each for each in found] == [True, False]
    assert ["'worse'" in each for each in found] == [False, True]


@pytest.mark.parametrize(
    ("code", "place"),
    [
        pytest.param("W006", {"match": "nowhere"}, id="a view that does not exist"),
        pytest.param("W030", {"match": "/hook/"}, id="another URL of a view"),
        pytest.param("W041", {"match": "/no/"}, id="a path that no URL begins with"),
    ],
)
def test_a_slot_of_the_settings_is_checked_too(code: str, place: Any, settings: Any) -> None:
    (found,) = found_on(settings, {"slot": {"at_once": 4, **place}}, *ALL_URLS, only=code)

    assert "'slot'" in found


@pytest.mark.parametrize(
    ("code", "rate", "options"),
    [
        pytest.param("W016", "9/m", {"key": "kwarg:no"}, id="an argument that does not exist"),
        pytest.param("W044", "9/m", {"key": "post:a", "on_unavailable": "allow"}, id="an open form"),
        pytest.param("W049", {"free": "1/m"}, {"tier": str}, id="tiers without a default"),
        pytest.param("W051", "9/m", {"cost": 10}, id="a cost above the limit"),
    ],
)
def test_a_limit_of_a_view_is_checked_too(code: str, rate: Any, options: Any, settings: Any) -> None:
    (found,) = found_on(settings, {}, limited(quota(rate, name="mine", **options)), only=code)

    assert "'mine'" in found


def test_w016_a_rule_that_only_code_uses_may_count_by_any_argument(settings: Any) -> None:
    assert found_on(settings, {"in-code": {"rate": "9/m", "key": "kwarg:no"}}, *ALL_URLS, only="W016") == []


@pytest.mark.parametrize(
    ("code", "options"),
    [
        pytest.param("W006", {"costs": {"nowhere": 2}}, id="the cost of a view that does not exist"),
        pytest.param("W040", {"exempt": "0.0.0.0/0"}, id="exempt addresses"),
        pytest.param("W044", {"key": "post:a", "on_unavailable": "allow"}, id="an open form"),
        pytest.param("W049", ODD_TIERS, id="tiers without a default"),
        pytest.param("W051", {"cost": 10}, id="a cost above the limit"),
    ],
)
def test_a_rule_that_only_code_uses_is_checked_too(code: str, options: Any, settings: Any) -> None:
    (found,) = found_on(settings, {"in-code": {"rate": "9/m", **options}}, *ALL_URLS, only=code)

    assert "'in-code'" in found


VALUES = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text())


@given(st.dictionaries(st.sampled_from(SETTINGS) | st.text(), VALUES | st.dictionaries(st.text(), VALUES), max_size=6))
def test_the_checks_never_raise(quota: dict[str, Any]) -> None:
    assert all(str(found.id).startswith("django_quota.") for found in findings(quota))


def _database_findings(*databases: str) -> list[tuple[str, str]]:
    """Return the id of each finding, and its message with the hint."""
    found = run_checks(tags=["database"], databases=databases or ["default"])
    return [(str(each.id).removeprefix("django_quota."), f"{each.msg} {each.hint}") for each in found]


@pytest.mark.parametrize(
    "quota",
    [
        pytest.param(5, id="no settings"),
        pytest.param({"RULES": 5}, id="no rules"),
        pytest.param({"RULES": {"api": "10/parsec"}}, id="a rule"),
        pytest.param({"RULES": {"api": {"rate": "10/d", "store": "nowhere"}}}, id="the store of a rule"),
        pytest.param({"ENABLED": "maybe"}, id="whether it is on"),
        pytest.param({"STORE": "nowhere"}, id="the store"),
        pytest.param({"STORE": "database", "DATABASE": "nowhere"}, id="the database"),
        pytest.param({"REDIS": 5}, id="the Redis"),
        pytest.param({"IPV4_PREFIX": 99}, id="the bits of an address"),
        pytest.param({"TEMPLATE": 5}, id="the template"),
        pytest.param({"EXEMPT": "everybody"}, id="who is exempt"),
    ],
)
def test_a_wrong_setting_is_reported_by_the_checks_of_a_live_site_and_its_database(
    quota: Any, database: Any, settings: Any
) -> None:
    settings.QUOTA = quota

    found = run_checks(tags=["django_quota", "database"], include_deployment_checks=True, databases=["default"])

    assert any(each.is_serious(ERROR) for each in found)
    assert "django_quota.W010" not in [each.id for each in found], "limiting is not off"


def test_our_tag_asks_no_database(tmp_path: Path) -> None:
    with default_database(sqlite_database(tmp_path / "no" / "such" / "folder.sqlite3")):
        assert all(each.id != "django_quota.W031" for each in run_checks(tags=["django_quota"], databases=["default"]))


@pytest.fixture
def empty(tmp_path: Path, django_db_blocker: Any) -> Iterator[None]:
    """A database without our tables is the default one."""
    with django_db_blocker.unblock(), default_database(sqlite_database(tmp_path / "empty.sqlite3")):
        yield


def migrate_others() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE django_migrations (id integer)")


@pytest.mark.usefixtures("empty")
class TestW031TheTablesOfOverridesAreMissing:
    def test_it_names_them(self) -> None:
        migrate_others()

        words = (
            "The database 'default' does not have the tables django_quota_overridechange, django_quota_quotaoverride. "
            "Run `manage.py migrate --database default`. If this is `migrate`, it makes them now."
        )
        assert _database_findings() == [("W031", words)]

    def test_it_names_those_of_the_store_in_the_same_database_too(
        self, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        migrate_others()
        settings.QUOTA = {"STORE": "database"}
        monkeypatch.setattr("django_quota.http.checks.vendor_of", lambda alias: "postgresql")

        (message,) = [text for code, text in _database_findings() if code == "W031"]

        assert "django_quota_overridechange" in message
        assert STATE_TABLE in message

    def test_the_first_migrate_of_a_site_is_no_finding(self) -> None:
        assert _database_findings() == []

    def test_a_database_that_is_not_checked_is_not_asked(self) -> None:
        migrate_others()

        with CaptureQueriesContext(connection) as queries:
            assert run_checks(tags=["database"], databases=[]) == []

        assert not queries.captured_queries


@pytest.mark.usefixtures("database")
class TestW031TheTablesOfTheStoreAreMissing:
    @pytest.fixture(autouse=True)
    def in_the_database(self, settings: Any) -> None:
        settings.QUOTA = {"STORE": "database"}

    def test_it_names_them_where_migrate_makes_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_quota.http.checks.vendor_of", lambda alias: "postgresql")
        monkeypatch.setattr("django_quota.http.checks.STATE_TABLE", "missing_state")

        (message,) = [text for code, text in _database_findings() if code == "W031"]

        assert message.startswith("The database 'default' does not have the tables ")
        assert "missing_state. Run `manage.py migrate --database default`." in message

    def test_a_file_of_sqlite_makes_them_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_quota.http.checks.vendor_of", lambda alias: "sqlite")
        monkeypatch.setattr("django_quota.http.checks.STATE_TABLE", "missing_state")

        assert _database_findings() == []

    def test_a_database_that_cannot_count_is_not_asked_for_tables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(alias: str) -> str:
            raise ConfigurationError("It is MySQL.")

        monkeypatch.setattr("django_quota.http.checks.vendor_of", refuse)
        monkeypatch.setattr("django_quota.http.checks.STATE_TABLE", "missing_state")

        assert _database_findings() == []

    def test_a_database_that_cannot_count_is_reported_elsewhere(self, settings: Any) -> None:
        settings.QUOTA = {"STORE": "database", "DATABASE": "nowhere"}

        assert _database_findings() == []


@pytest.fixture
def other(sqlite: Any, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Another database with our tables, `other`, beside the default one; yields its settings."""
    made = sqlite_database(Path(shutil.copy(sqlite["NAME"], tmp_path / "other.sqlite3")))
    with another_database("other", made):
        yield made


class TestTwoDatabases:
    def test_w031_names_the_tables_of_the_store_where_the_store_is(
        self, database: Any, other: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.QUOTA = {"STORE": "database", "DATABASE": "other"}
        monkeypatch.setattr("django_quota.http.checks.vendor_of", lambda alias: "postgresql")
        for name in ("STATE", "EVENT", "BAN"):
            monkeypatch.setattr(f"django_quota.http.checks.{name}_TABLE", f"missing_{name.lower()}")

        words = (
            "The database 'other' does not have the tables missing_ban, missing_event, missing_state. "
            "Run `manage.py migrate --database other`. If this is `migrate`, it makes them now."
        )
        assert _database_findings("default", "other") == [("W031", words)]

    def test_those_of_the_database_that_is_checked_are_reported_alone(
        self, database: Any, other: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.QUOTA = {"STORE": "database", "DATABASE": "other"}
        monkeypatch.setattr("django_quota.http.checks.vendor_of", lambda alias: "postgresql")
        monkeypatch.setattr("django_quota.http.checks.STATE_TABLE", "missing_state")

        assert _database_findings("default") == []

    def test_w043_overrides_are_looked_at_once(
        self, database: Any, other: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.QUOTA = {"STORE": "database", "DATABASE": "other"}
        monkeypatch.setattr("django_quota.http.checks.vendor_of", lambda alias: "postgresql")
        QuotaOverride.objects.create(subject="*", mode="exempt")

        assert [code for code, _ in _database_findings("default", "other")] == ["W043"]

    def test_w043_overrides_are_looked_at_where_they_are_written(self, empty: Any, other: Any, settings: Any) -> None:
        """The default database has none of our tables, and needs none."""
        migrate_others()
        settings.DATABASE_ROUTERS = [OverridesElsewhere()]
        QuotaOverride.objects.using("other").create(subject="*", mode="exempt")

        assert [code for code, _ in _database_findings("default", "other")] == ["W043"]


BEGIN, LATE = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC), datetime(9999, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("rule", "expires", "says"),
    [
        pytest.param("*", None, "without an end: nothing is limited. `{} '*'`", id="all rules for ever"),
        pytest.param("api", None, "without an end: rule 'api' limits nobody. `{} api`", id="one rule"),
        pytest.param("a b", None, "without an end: rule 'a b' limits nobody. `{} 'a b'`", id="one rule with a blank"),
        pytest.param("*", LATE, "until 9999-01-02 03:04+00:00: nothing is limited. `{} '*'`", id="until the year 9999"),
        pytest.param("*", BEGIN + timedelta(days=1), "", id="over"),
    ],
)
def test_w043_an_override_exempts_everybody(rule: str, expires: Any, says: str, database: Any) -> None:
    QuotaOverride.objects.create(subject="*", rule=rule, mode="exempt", starts=BEGIN, expires=expires)
    QuotaOverride.objects.create(subject="user:*", mode="exempt")
    words = says.format("manage.py quota_override clear '*' --rule")

    assert _database_findings() == [("W043", f"An override exempts everybody {words} deletes it.")] * bool(says)


@pytest.mark.parametrize("subject", ["ip:*", "ip:0.0.0.0/0", "ip:::/0"])
def test_w043_an_override_exempts_all_addresses(subject: str, database: Any) -> None:
    QuotaOverride.objects.create(subject=subject, mode="exempt")
    QuotaOverride.objects.create(subject="ip:10.0.0.0/8", mode="exempt")
    words = (
        f"An override exempts all clients of '{subject}' without an end: no rule limits them. `manage.py "
        f"quota_override clear {shlex.quote(subject)} --rule '*'` deletes it."
    )
    assert _database_findings() == [("W043", words)]


def test_w043_an_override_exempts_all_addresses_of_one_rule(database: Any) -> None:
    QuotaOverride.objects.create(subject="ip:*", rule="api", mode="exempt")

    ((_, message),) = _database_findings()

    assert message.startswith("An override exempts all clients of 'ip:*' without an end: rule 'api' limits none of")


def test_w043_overrides_are_in_the_order_of_their_subjects_and_rules(database: Any) -> None:
    for subject, rule in (("ip:*", "b"), ("ip:*", "a"), ("*", "c")):
        QuotaOverride.objects.create(subject=subject, rule=rule, mode="exempt")

    found = [message.rpartition("--rule ")[2] for _, message in _database_findings()]

    assert found == ["c` deletes it.", "a` deletes it.", "b` deletes it."]


def test_w043_an_override_that_blocks_everybody_is_no_finding(database: Any) -> None:
    QuotaOverride.objects.create(subject="*", mode="blocked")

    assert _database_findings() == []


def test_w032_there_are_too_many_overrides_that_have_not_ended(database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_quota.http.checks.MAX_OVERRIDES", 2)
    ended = timezone.now() - timedelta(seconds=1)
    rows = [QuotaOverride(subject=f"org:{number}", mode="blocked") for number in range(3)]
    QuotaOverride.objects.bulk_create([*rows[:2], QuotaOverride(subject="org:9", mode="blocked", expires=ended)])
    assert _database_findings() == []
    rows[2].save()
    words = (
        "3 overrides have not ended. Each process holds all of them, and reads them before its first decision. More "
        "than 2 cost much memory and time. Tiers are made for large groups of users; networks and kinds, such as "
        "user:*, take one override."
    )
    assert _database_findings() == [("W032", words)]


def test_w032_writes_large_numbers_with_commas(database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_quota.http.checks.count_overrides", lambda: 100_001)

    [(_, words)] = _database_findings()

    assert words.startswith("100,001 overrides have not ended. ")
    assert " More than 100,000 cost much memory and time. " in words


# --- tenants ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tenants", "found"),
    [
        (None, []), (["shop"], ["W045"]), (["shop", "django_quota"], ["W045", "W046"]),
        (["django_quota.apps.DjangoQuotaConfig"], ["W045", "W046"]),
    ],
)  # fmt: skip
def test_a_site_with_tenants_is_told_what_they_share(
    tenants: list[str] | None, found: list[str], tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "django_tenants"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    if tenants is not None:
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "django_tenants"]
        settings.TENANT_APPS = tenants
    shown = findings()
    assert [str(each.id) for each in shown] == [f"django_quota.{each}" for each in found]
    assert not shown or "user 42 of one uses up the limits of user 42 of another" in shown[0].msg


def test_w046_names_our_app_as_the_site_lists_it(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.DATABASES, "shops", {"ENGINE": "django_tenants.postgresql_backend"})
    settings.TENANT_APPS = ["shop", "django_quota.apps.DjangoQuotaConfig"]

    found = findings()[1]

    assert found.msg.startswith("TENANT_APPS has 'django_quota.apps.DjangoQuotaConfig', so each tenant has its own")
    assert str(found.hint).startswith("Name 'django_quota.apps.DjangoQuotaConfig' in SHARED_APPS alone, and run ")


@pytest.mark.parametrize("package", ["django_tenants", "tenant_schemas"])
def test_a_site_with_tenants_is_known_by_the_engine_of_a_database(
    package: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(settings.DATABASES, "shops", {"ENGINE": f"{package}.postgresql_backend"})

    (found,) = findings()

    assert found.msg.startswith(f"The site has tenants, by {package}, and all tenants share their limits")


def test_a_database_without_an_engine_is_no_finding(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.DATABASES, "shops", {})

    assert findings() == []


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("user", "subject"),
    [
        pytest.param(User(pk=42), "member:acme:42", id="a user"),
        pytest.param(AnonymousUser(), "ip:192.0.2.1", id="a visitor"),
    ],
)
def test_the_key_of_the_page_counts_each_user_of_each_tenant(user: Any, subject: str) -> None:
    key = run_page("docs/going_live.md")["user_of_tenant"]
    request: Any = RequestFactory().get("/", REMOTE_ADDR="192.0.2.1")
    request.tenant, request.user = SimpleNamespace(schema_name="acme"), user

    assert check("5/m", request, key=key).subject == subject
