"""Configured rules with a `match`: found by path, view and host, and decided together with those of the view."""

import asyncio
import io
from collections.abc import Callable
from typing import Any

import pytest
from django.http import FileResponse, HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path

from django_quota import peek, quota
from django_quota.exceptions import RuleError
from django_quota.testing import clear
from tests.support.calls import both, calls_of, fetch, matches_that_are_compared
from tests.support.memory import remembered_paths, with_room_for_paths
from tests.support.urls_of_rules import guarded, seen

URLS = "tests.support.urls_of_rules"


@pytest.fixture(autouse=True)
def urls(settings: Any) -> None:
    settings.ROOT_URLCONF = URLS


def found(path: str, rules: dict[str, Any], **meta: Any) -> list[str]:
    with override_settings(QUOTA={"STORE": "memory", "RULES": rules}):
        decision = getattr(Client().get(path, **meta).wsgi_request, "quota", None)
    return [outcome.rule for outcome in decision.outcomes if outcome.rule in rules] if decision else []


def matching(*matches: Any, **more: Any) -> dict[str, Any]:
    return {str(number): {"rate": "9/m", "match": match, **more} for number, match in enumerate(matches)}


class TestFinding:
    @pytest.mark.parametrize(
        ("path", "matches", "expected"),
        [
            ("/api/search/", ["/", "/api/", "api:search", "/*/search/"], "0123"),
            ("/api/v1/items/", ["api:*", "api:v1:*", "api:v1:items"], "012"),
            ("/plain/", ["re:^/pl", "plain"], "01"),
            ("/twice/", ["/api/", "api:*", "re:^/pl", "plain", f"{URLS}.twice", "host:testserver"], "45"),
            ("/hosting/list/", [{"view": "host:list"}, {"view": ["host:*"]}], "01"),
            ("/api/plain/", ["plain", "api:plain"], "1"),  # a view of a namespace has no name without it
            ("/api/search/", ["re:.", ["api:*", "/api/", "api:search"], "/x/"], "01"),  # each once
        ],
    )
    def test_a_rule_is_found_by_path_view_namespace_or_host(self, path: str, matches: Any, expected: str) -> None:
        assert found(path, matching(*matches)) == list(expected)

    def test_what_is_excluded_is_left_out_and_what_has_no_match_holds_nowhere_by_itself(self) -> None:
        rules = matching("/api/", exclude=["api:v1:*", "/api/plain/"])
        assert [found(f"/api/{path}/", rules) for path in ("search", "v1/items", "plain")] == [["0"], [], []]
        assert found("/plain/", {"a": "1/m", "b": {"rate": "1/m", "match": None}}) == []

    @pytest.mark.parametrize("option", [{"match": "host:a.example"}, {"match": "/", "exclude": "host:b.example"}])
    def test_what_one_host_meets_is_not_remembered_for_another(self, option: dict[str, Any], settings: Any) -> None:
        settings.QUOTA = {"STORE": "memory", "RULES": {"some": {"rate": "9/m", **option}}}
        hosts = ["b.example", "a.example", "b.example", "a.example"]
        replies = [Client().get("/plain/", HTTP_HOST=host) for host in hosts]
        assert ["RateLimit" in reply.headers for reply in replies] == [False, True, False, True]

    def test_a_host_that_is_not_allowed_escapes_no_rule(self, settings: Any) -> None:
        settings.ALLOWED_HOSTS = ["testserver"]
        rules = matching("host:testserver", {"path": "/plain/", "host": "*.example"}, {"path": "/x/", "host": "a.b"})
        for host in ("evil.example", "a b", ""):
            assert found("/plain/", rules, HTTP_HOST=host) == ["0", "1"]
        excluding = matching("/", exclude=["host:evil.example", {"path": "/plain/", "host": "*.example"}])
        assert found("/plain/", excluding, HTTP_HOST="evil.example") == ["0"]
        assert found("/plain/", matching("/", exclude="host:testserver"), HTTP_HOST="testserver") == []
        assert found("/plain/", matching("host:testserver"), HTTP_HOST="TestServer:8000") == ["0"]
        every = matching("/", {"path": "/", "host": "testserver"}, "/x")
        for target in ("*", "http://h/x", "", "x"):  # that no slash begins
            assert found("/", every, PATH_INFO=target) == ["0", "1"]

    def test_a_rule_that_cannot_be_read_is_an_error_and_not_a_limit_that_is_missing(self) -> None:
        odd = {"first": {"rate": "9/m", "match": "/"}, "odd": {"rate": "9/m", "match": "/", "key": None}}
        for rules, words in ((odd, "key=None is not a key"), (matching(5), r"RULES.*'0'.*match=5")):
            with pytest.raises(RuleError, match=words):
                found("/plain/", rules)


def test_two_hundred_rules_are_not_compared_one_by_one(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {f"r{n}": {"rate": "9/m", "match": [f"/area{n}/", f"shop{n}:item", f"ns{n}:*"][n % 3]} for n in range(200)}
    settings.QUOTA = {"STORE": "memory", "RULES": {**rules, "api": {"rate": "9/m", "match": "api:*"}}}
    compared = matches_that_are_compared(monkeypatch)
    for _ in range(2):  # the second time from memory
        assert '"api"' in Client().get("/api/search/").headers["RateLimit"]
    assert len(compared) == 1


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        ("/area/part{}/", "/area/part7/x"), ("/area/*/part{}", "/area/x/part7"), ("/*/part{}/**", "/x/part7/y/z"),
        ("re:^/area/part{}/", "/area/part7/x"), ("host:site{}.example", ""), ("host:*.site{}.example", ""),
    ],
)  # fmt: skip
def test_rules_that_begin_alike_are_not_compared_one_by_one(
    match: str, fits: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.QUOTA = {"STORE": "memory", "RULES": matching(*(match.format(number) for number in range(200)))}
    settings.ALLOWED_HOSTS = ["*"]
    compared = matches_that_are_compared(monkeypatch)
    meta: Any = {} if fits else {"HTTP_HOST": match.format(7).removeprefix("host:").replace("*", "a.b")}
    assert '"7"' in Client().get(fits or "/x/", **meta).headers["RateLimit"]
    assert len(compared) == 1


def test_a_rule_by_host_leaves_what_is_remembered_of_the_others(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.QUOTA = {"STORE": "memory", "RULES": matching("/**.zip", "re:zip$", "host:testserver")}
    compared = matches_that_are_compared(monkeypatch)
    for _ in range(3):
        assert '"2"' in Client().get("/a.zip").headers["RateLimit"]
    assert len(compared) == 3


@pytest.mark.parametrize("meta", [{"HTTP_HOST": "x." * 200}, {"PATH_INFO": "/x" * 200}], ids=["host", "path"])
def test_what_a_client_makes_long_is_not_remembered(meta: Any, settings: Any) -> None:
    settings.QUOTA = {"STORE": "memory", "RULES": matching("/", exclude="host:a.example")}
    settings.ALLOWED_HOSTS = ["*"]
    assert '"0"' in Client().get("/x", **meta).headers["RateLimit"]
    assert remembered_paths() == []


def test_paths_that_clients_choose_do_not_fill_the_memory(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_room_for_paths(3, monkeypatch)
    settings.QUOTA = {"STORE": "memory", "RULES": matching("/a/")}
    for chosen in [*(f"/a/{number}/" for number in range(10)), f"/a/{'x' * 300}/"]:
        for _ in range(2):
            assert '"0"' in Client().get(chosen).headers["RateLimit"]
        assert len(remembered_paths()) <= 3
        assert max(map(len, remembered_paths()), default=0) < 300


SEARCH = {"sync": "/api/search/", "async": "/api/search-async/"}
RULES = {
    "site": {"rate": "30/m", "match": "/", "key": "ip"},
    "api": {"rate": {"anonymous": "25/m", "authenticated": "250/m"}, "match": "api:*", "key": "user"},
}


@both
@pytest.mark.usefixtures("memory_store")
@pytest.mark.django_db
class TestJoining:
    @pytest.fixture(autouse=True)
    def rules(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": RULES}

    def test_two_rules_and_a_decorator_with_two_rates_are_one_call_and_no_sql(
        self, kind: str, settings: Any, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
    ) -> None:
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django_quota.middleware.QuotaMiddleware"]  # once more, in vain
        fetch(kind, SEARCH[kind])  # reads the overrides, once
        calls = calls_of(monkeypatch)
        with django_assert_num_queries(0):
            (reply,) = fetch(kind, SEARCH[kind])
        assert calls == [1]
        assert reply.json() == {"rules": ["site", "api", "two", "two"]}
        assert reply.headers["RateLimit-Policy"] == (
            '"site";q=30;w=60, "api";q=25;w=60, "two-m";q=20;w=60, "two-h";q=200;w=3600'
        )
        assert fetch(kind, "/nowhere/")[0].status_code == 404
        assert peek("site", "ip:127.0.0.1").remaining == 27

    @pytest.mark.parametrize("path", ["/class/", "/class-async/", "/method/", "/method-async/", "/unhashable/"])
    def test_a_decorator_that_stands_outermost_is_joined_on_whatever_kind_of_view(
        self, kind: str, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = calls_of(monkeypatch)
        own = [] if path == "/unhashable/" else [path[1:-1].partition("-")[0]]
        assert list(dict.fromkeys(fetch(kind, path)[0].json()["rules"])) == ["site", *own]
        assert calls == [1]

    @pytest.mark.parametrize("path", ["/exempt-of-csrf/", "/guarded/", "/guarded-class/", "/by-method-decorator/"])
    def test_what_stands_in_front_runs_first_and_then_the_decorator_decides_for_itself(
        self, kind: str, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = calls_of(monkeypatch)
        (first, *own) = fetch(kind, path)[0].json()["rules"]
        assert (first, bool(own), calls) == ("site", True, [1, 1])
        if "guarded" in path:
            assert (fetch(kind, f"{path}?no")[0].status_code, calls) == (403, [1, 1, 1])

    def test_the_decorator_of_one_method_limits_no_other_one_and_head_is_get(
        self, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert Client().post("/method/").json() == {"rules": ["site"]}
        (reply,) = fetch(kind, "/method-of-post-alone/")  # as_view leaves the method out
        assert (reply.status_code, reply.headers["RateLimit"].count('"')) == (405, 2)
        assert peek("20/m", "ip:127.0.0.1", name="method").remaining == 20
        calls = calls_of(monkeypatch)
        reply = Client().head("/method/") if kind == "sync" else asyncio.run(AsyncClient().head("/method/"))
        assert (reply.status_code, '"method";r=19' in reply.headers["RateLimit"], calls) == (200, True, [1])

    def test_a_limited_view_that_calls_itself_or_another_decides_each_time(self, kind: str) -> None:
        for path_, name in (("/again/", "again"), ("/twice/", "two")):
            fetch(kind, path_)
            assert peek("20/m", "ip:127.0.0.1", name=name).remaining == 18

    def test_a_rule_that_holds_anyway_counts_once_and_twice_for_two_subjects(self, kind: str, settings: Any) -> None:
        names = iter(["before", "after"])

        def by_name(request: HttpRequest) -> str:
            return next(names)

        settings.ROOT_URLCONF = __name__  # whose view has a decorator that decides for itself
        assert fetch(kind, "/by-the-settings/")[0].json() == {"rules": ["site"]}
        assert peek("site", "ip:127.0.0.1").remaining == 29
        settings.QUOTA = {**settings.QUOTA, "RULES": {"site": {"rate": "30/m", "match": "/", "key": by_name}}}
        assert fetch(kind, "/by-the-settings/")[0].json() == {"rules": ["site", "site"]}


@both
@pytest.mark.usefixtures("memory_store")
class TestWithoutAView:
    @pytest.fixture(autouse=True)
    def rules(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"site": {"rate": "2/m", "match": "/"}}}

    def test_it_is_limited_too_and_what_another_middleware_would_have_sent_is_closed(
        self, kind: str, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = calls_of(monkeypatch)
        replies = fetch(kind, "/wp-login.php", 3)
        assert ([reply.status_code for reply in replies], calls) == ([404, 404, 429], [1] * 3)
        assert replies[0].headers["RateLimit"].startswith('"site";r=1')
        clear()
        opened.clear()
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.files"]
        assert [reply.status_code for reply in fetch(kind, "/plain/", 3)] == [200, 200, 429]
        assert [file.closed for file in opened[2:]] == [True]
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
        replies = fetch(kind, "/plain/", 4)
        assert [reply.status_code for reply in replies] == [200] * 4
        assert ("RateLimit" in replies[0].headers, len(calls)) == (False, 6)


opened: list[io.BytesIO] = []


def files(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], FileResponse]:
    def answer(request: HttpRequest) -> FileResponse:
        opened.append(io.BytesIO(b"file"))
        return FileResponse(opened[-1])

    return answer


urlpatterns = [path("by-the-settings/", guarded(quota(rule="site")(seen)))]
"""A rule that holds by itself, and that a decorator names which decides for itself."""


@both
def test_a_view_that_costs_names_takes_more_of_the_budget(kind: str, memory_store: None, settings: Any) -> None:
    budget = {"rate": "100/m", "match": "/", "cost": lambda request: 2, "costs": {"api:search": 50, "api:plain": 7}}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"budget": budget}}
    for path_, left in (("/api/search/", 50), ("/api/plain/", 43), ("/plain/", 41), ("/nowhere/", 39)):
        fetch(kind, path_)
        assert peek("budget", "ip:127.0.0.1").remaining == left
    assert peek("20/m", "ip:127.0.0.1", name="two").remaining == 19, "other rules cost what they did"
