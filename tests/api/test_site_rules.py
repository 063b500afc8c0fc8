"""Configured rules with a `match`: found by path, view and host, and decided together with those of the view."""

import asyncio
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import FileResponse, HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from django_quota import peek, quota
from django_quota.exceptions import RuleError
from django_quota.middleware import QuotaMiddleware
from django_quota.testing import clear, freeze
from tests.support.calls import both, calls_of, fetch, matches_that_are_compared
from tests.support.inputs import inputs
from tests.support.memory import remembered_paths, with_room_for_paths
from tests.support.steps import START
from tests.support.urls_of_rules import guarded, seen

URLS = "tests.support.urls_of_rules"
OURS = "django_quota.middleware.QuotaMiddleware"


@pytest.fixture(autouse=True)
def urls(settings: Any) -> None:
    settings.ROOT_URLCONF = URLS


def found(path: str, rules: dict[str, Any], **meta: Any) -> list[str]:
    """Return which of the rules a request meets."""
    with override_settings(QUOTA={"STORE": "memory", "RULES": rules}):
        decision = getattr(Client().get(path, **meta).wsgi_request, "quota", None)
    return [outcome.rule for outcome in decision.outcomes if outcome.rule in rules] if decision else []


def matching(*matches: Any, **more: Any) -> dict[str, Any]:
    """Return rules with these matches; they are named by their numbers."""
    return {str(number): {"rate": "9/m", "match": match, **more} for number, match in enumerate(matches)}


def is_met(path: str, match: Any, exclude: Any = None, **meta: Any) -> bool:
    """Return whether a request meets a rule with this `match`."""
    options = {} if exclude is None else {"exclude": exclude}
    return bool(found(path, {"the-rule": {"rate": "9/m", "match": match, **options}}, **meta))


PLACES: list[Any] = [
    "/", "/api/", "/api", "/api/*", "/*/search/", "re:s", "api:*", "api:search", "plain", "api:v1:*", "/plain",
    "host:testserver", "host:*.example", ["/x/", "plain"], {"path": "/api/", "view": ["plain", "api:*"]},
]  # fmt: skip


class TestMatch:
    @pytest.mark.parametrize(
        ("match", "path"),
        [
            pytest.param("/", "/api/search/", id="every path"),
            pytest.param("/api/", "/api/search/", id="the beginning of a path"),
            pytest.param("/*/search/", "/api/search/", id="a path with an asterisk"),
            pytest.param("re:^/pl", "/plain/", id="a regular expression"),
            pytest.param("plain", "/plain/", id="the name of a view"),
            pytest.param("api:search", "/api/search/", id="the name of a view in a namespace"),
            pytest.param("api:*", "/api/search/", id="a namespace"),
            pytest.param("api:*", "/api/v1/items/", id="the outer namespace"),
            pytest.param("api:v1:*", "/api/v1/items/", id="the inner namespace"),
            pytest.param("api:v1:items", "/api/v1/items/", id="the name of a view in two namespaces"),
            pytest.param(f"{URLS}.twice", "/twice/", id="the dotted path of a view"),
            pytest.param("host:testserver", "/twice/", id="a host"),
            pytest.param({"view": "host:list"}, "/hosting/list/", id="a view in a namespace called host"),
            pytest.param({"view": ["host:*"]}, "/hosting/list/", id="a namespace called host"),
            pytest.param(["/x/", "api:search"], "/api/search/", id="one of several"),
        ],
    )
    def test_a_rule_is_found_by(self, match: Any, path: str) -> None:
        assert is_met(path, match)

    @pytest.mark.parametrize(
        ("match", "path"),
        [
            pytest.param("/api/", "/twice/", id="the beginning of another path"),
            pytest.param("re:^/pl", "/twice/", id="a regular expression that does not fit"),
            pytest.param("plain", "/twice/", id="the name of another view"),
            pytest.param("plain", "/api/plain/", id="the name of a view without its namespace"),
            pytest.param("api:*", "/twice/", id="another namespace"),
            pytest.param("host:a.example", "/twice/", id="another host"),
            pytest.param(None, "/plain/", id="no match at all"),
        ],
    )
    def test_a_rule_is_not_found_by(self, match: Any, path: str) -> None:
        assert not is_met(path, match)

    def test_a_rule_without_a_match_holds_nowhere_by_itself(self) -> None:
        assert found("/plain/", {"only": "1/m"}) == []

    def test_rules_are_found_in_the_order_of_the_settings(self) -> None:
        assert found("/api/search/", matching("/api/", "api:search", "/x/", "/")) == ["0", "1", "3"]

    def test_a_rule_is_found_once_though_several_of_its_matches_fit(self) -> None:
        assert found("/api/search/", matching(["api:*", "/api/", "api:search"])) == ["0"]

    @pytest.mark.parametrize(
        ("path", "is_limited"),
        [
            pytest.param("/api/search/", True, id="nothing"),
            pytest.param("/api/v1/items/", False, id="a namespace"),
            pytest.param("/api/plain/", False, id="a path"),
        ],
    )
    def test_what_is_excluded_is_left_out_by(self, path: str, is_limited: bool) -> None:
        assert is_met(path, "/api/", exclude=["api:v1:*", "/api/plain/"]) is is_limited

    def test_the_prefix_that_a_site_is_mounted_under_does_not_count(self) -> None:
        assert found("/plain/", matching("/plain/", "/mounted/"), SCRIPT_NAME="/mounted") == ["0"]

    @inputs(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        st.lists(st.sampled_from(PLACES), max_size=6),
        st.sampled_from(["/api/search/", "/api/plain/", "/api/v1/items/", "/plain/", "/twice/", "/class/"]),
    )
    def test_looking_rules_up_finds_what_comparing_them_one_by_one_would(self, matches: list[Any], path: str) -> None:
        one_by_one = [str(number) for number, match in enumerate(matches) if not is_met(path, "/", exclude=match)]

        assert found(path, matching(*matches)) == one_by_one

    def test_rules_are_in_the_order_of_the_settings(self) -> None:
        places = [f"/x{number}/" for number in range(12)]
        places[1], places[8] = "api:*", "/api/"

        assert found("/api/search/", matching(*places)) == ["1", "8"]

    @pytest.mark.parametrize(
        ("rules", "words"),
        [
            pytest.param(
                {**matching("/"), "odd": {"rate": "9/m", "match": "/", "key": None}},
                "key=None is not a key",
                id="a wrong key beside a right rule",
            ),
            pytest.param(matching(5), r"RULES.*'0'.*match=5", id="a wrong match"),
        ],
    )
    def test_a_rule_that_cannot_be_read_is_an_error(self, rules: dict[str, Any], words: str) -> None:
        """It is no limit that is missing."""
        with pytest.raises(RuleError, match=words):
            found("/plain/", rules)


class TestHost:
    @pytest.mark.parametrize(
        "option",
        [{"match": "host:a.example"}, {"match": "/", "exclude": "host:b.example"}],
        ids=["that is matched", "that is excluded"],
    )
    def test_what_one_meets_is_not_remembered_for_another(self, option: dict[str, Any], settings: Any) -> None:
        settings.QUOTA = {"STORE": "memory", "RULES": {"some": {"rate": "9/m", **option}}}

        hosts = ["b.example", "a.example", "b.example", "a.example"]
        replies = [Client().get("/plain/", HTTP_HOST=host) for host in hosts]

        assert ["RateLimit" in reply.headers for reply in replies] == [False, True, False, True]

    @pytest.mark.parametrize(
        ("match", "host"),
        [
            pytest.param("host:Bücher.example", "xn--bcher-kva.example", id="a name"),
            pytest.param("host:*.bücher.example", "www.xn--bcher-kva.example", id="a name with an asterisk"),
        ],
    )
    def test_it_may_be_written_with_the_letters_of_its_language(self, match: str, host: str) -> None:
        assert is_met("/plain/", match, HTTP_HOST=host)

    def test_letters_of_another_language_are_another_host(self) -> None:
        assert not is_met("/plain/", "host:bucher.example", HTTP_HOST="xn--bcher-kva.example")

    def test_it_is_compared_without_its_port_in_any_case(self) -> None:
        assert is_met("/plain/", "host:testserver", HTTP_HOST="TestServer:8000")


@pytest.mark.parametrize("host", ["evil.example", "a b", ""], ids=["another name", "no name", "nothing"])
class TestHostThatIsNotAllowed:
    """It escapes no rule."""

    @pytest.fixture(autouse=True)
    def one_host(self, settings: Any) -> None:
        settings.ALLOWED_HOSTS = ["testserver"]

    @pytest.mark.parametrize(
        ("match", "is_limited"),
        [
            pytest.param("host:testserver", True, id="of another host"),
            pytest.param({"path": "/plain/", "host": "*.example"}, True, id="of a path, of other hosts"),
            pytest.param({"path": "/x/", "host": "a.b"}, False, id="but not of another path"),
            pytest.param(["/x/", "host:a.b"], True, id="of another path, or of another host"),
        ],
    )
    def test_it_meets_a_rule(self, match: Any, is_limited: bool, host: str) -> None:
        assert is_met("/plain/", match, HTTP_HOST=host) is is_limited

    @pytest.mark.parametrize(
        "exclude",
        ["host:evil.example", {"path": "/plain/", "host": "*.example"}],
        ids=["by host", "by path, by host"],
    )
    def test_it_is_not_excluded(self, exclude: Any, host: str) -> None:
        assert is_met("/plain/", "/", exclude=exclude, HTTP_HOST=host)


def test_a_host_that_is_allowed_can_be_excluded() -> None:
    assert not is_met("/plain/", "/", exclude="host:testserver", HTTP_HOST="testserver")


@pytest.mark.parametrize("target", ["*", "http://h/x", "", "x"])
def test_a_request_whose_path_does_not_begin_with_a_slash_meets_the_rules_of_every_path(target: str) -> None:
    every = matching("/", {"path": "/", "host": "testserver"}, "/x")

    assert found("/", every, PATH_INFO=target) == ["0", "1"]


def test_two_hundred_rules_are_not_compared_one_by_one(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {f"r{n}": {"rate": "9/m", "match": [f"/area{n}/", f"shop{n}:item", f"ns{n}:*"][n % 3]} for n in range(200)}
    settings.QUOTA = {"STORE": "memory", "RULES": {**rules, "api": {"rate": "9/m", "match": "api:*"}}}
    compared = matches_that_are_compared(monkeypatch)

    shown = [Client().get("/api/search/").headers["RateLimit"] for _ in range(2)]  # the second time from memory

    assert [limits for limits in shown if '"api"' not in limits] == []
    assert len(compared) == 1


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        pytest.param("/area/part{}/", "/area/part7/x", id="paths"),
        pytest.param("/area/*/part{}", "/area/x/part7", id="paths with an asterisk within"),
        pytest.param("/*/part{}/**", "/x/part7/y/z", id="paths with an asterisk at first"),
        pytest.param("re:^/area/part{}/", "/area/part7/x", id="regular expressions"),
        pytest.param("host:site{}.example", "", id="hosts"),
        pytest.param("host:*.site{}.example", "", id="hosts with an asterisk"),
    ],
)
def test_rules_that_begin_alike_are_not_compared_one_by_one(
    match: str, fits: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.QUOTA = {"STORE": "memory", "RULES": matching(*(match.format(number) for number in range(200)))}
    settings.ALLOWED_HOSTS = ["*"]
    compared = matches_that_are_compared(monkeypatch)

    meta: Any = {} if fits else {"HTTP_HOST": match.format(7).removeprefix("host:").replace("*", "a.b")}
    reply = Client().get(fits or "/x/", **meta)

    assert '"7"' in reply.headers["RateLimit"]
    assert len(compared) == 1


def test_a_rule_by_host_leaves_what_is_remembered_of_the_others(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.QUOTA = {"STORE": "memory", "RULES": matching("/**.zip", "re:zip$", "host:testserver")}
    compared = matches_that_are_compared(monkeypatch)

    shown = [Client().get("/a.zip").headers["RateLimit"] for _ in range(3)]

    assert [limits for limits in shown if '"2"' not in limits] == []
    assert len(compared) == 3


@pytest.mark.parametrize("meta", [{"HTTP_HOST": "x." * 200}, {"PATH_INFO": "/x" * 200}], ids=["host", "path"])
def test_what_a_client_makes_long_is_not_remembered(meta: Any, settings: Any) -> None:
    settings.QUOTA = {"STORE": "memory", "RULES": matching("/", exclude="host:a.example")}
    settings.ALLOWED_HOSTS = ["*"]

    assert '"0"' in Client().get("/x", **meta).headers["RateLimit"]
    assert remembered_paths() == []


class TestRememberedPaths:
    """Clients choose them; there is room for three."""

    CHOSEN = (*(f"/a/{number}/" for number in range(10)), f"/a/{'x' * 300}/")

    @pytest.fixture(autouse=True)
    def room_for_three(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        with_room_for_paths(3, monkeypatch)
        settings.QUOTA = {"STORE": "memory", "RULES": matching("/a/")}

    def test_they_do_not_fill_the_memory(self) -> None:
        remembered = {}
        for chosen in self.CHOSEN:
            Client().get(chosen)
            remembered[chosen] = list(remembered_paths())

        assert {chosen: paths for chosen, paths in remembered.items() if len(paths) > 3} == {}
        assert max(len(path) for paths in remembered.values() for path in paths) < 300

    def test_each_meets_its_rules_whether_it_is_remembered_or_not(self) -> None:
        shown = {
            (chosen, number): Client().get(chosen).headers["RateLimit"] for chosen in self.CHOSEN for number in range(2)
        }

        assert {asked: limits for asked, limits in shown.items() if '"0"' not in limits} == {}


SEARCH = {"sync": "/api/search/", "async": "/api/search-async/"}
RULES = {
    "site": {"rate": "30/m", "match": "/", "key": "ip"},
    "api": {"rate": {"anonymous": "25/m", "authenticated": "250/m"}, "match": "api:*", "key": "user"},
}


HERE = "ip:127.0.0.1"


@both
@pytest.mark.django_db
class TestJoining:
    """Rules of the settings are decided together with those of decorators."""

    @pytest.fixture(autouse=True)
    def rules(self, memory_store: None, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": RULES}

    def test_all_rules_of_a_request_are_one_decision(self, kind: str) -> None:
        (reply,) = fetch(kind, SEARCH[kind])

        assert reply.json() == {"rules": ["site", "api", "two", "two"]}
        assert reply.headers["RateLimit-Policy"] == (
            '"site";q=30;w=60, "api";q=25;w=60, "two-m";q=20;w=60, "two-h";q=200;w=3600'
        )

    def test_all_rules_of_a_request_are_one_call_of_the_store(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = calls_of(monkeypatch)

        fetch(kind, SEARCH[kind])

        assert calls == [1]

    def test_what_one_rule_refuses_the_others_do_not_count(self, kind: str, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {**RULES, "api": {"rate": "2/m", "match": "api:*"}}}

        replies = fetch(kind, SEARCH[kind], 4)

        assert [reply.status_code for reply in replies] == [200, 200, 429, 429]
        assert peek("site", HERE).remaining == 28
        assert peek("20/m", HERE, name="two").remaining == 18

    def test_a_request_takes_no_sql(self, kind: str, django_assert_num_queries: Any) -> None:
        fetch(kind, SEARCH[kind])  # reads the overrides, once

        with django_assert_num_queries(0):
            fetch(kind, SEARCH[kind])

    def test_a_middleware_that_is_there_twice_decides_once(
        self, kind: str, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, OURS]
        calls = calls_of(monkeypatch)

        fetch(kind, SEARCH[kind])

        assert calls == [1]
        assert peek("site", HERE).remaining == 29

    def test_of_two_middlewares_the_outer_one_settles_by_the_response_that_is_sent(
        self, kind: str, settings: Any
    ) -> None:
        judged = {"rate": "9/m", "match": "/", "count_when": lambda response: response.status_code != 418}
        settings.MIDDLEWARE = [OURS, f"{__name__}.teapot", OURS]
        settings.QUOTA = {**settings.QUOTA, "RULES": {"judged": judged}}

        (reply,) = fetch(kind, "/plain/")

        assert (reply.status_code, reply.headers["RateLimit"][:12]) == (418, '"judged";r=9')
        assert peek("judged", HERE).remaining == 9

    def test_of_two_middlewares_one_takes_a_slot(self, kind: str, settings: Any) -> None:
        settings.MIDDLEWARE = [OURS, *settings.MIDDLEWARE, OURS]
        settings.QUOTA = {**settings.QUOTA, "RULES": {"one": {"at_once": 1, "match": "/"}}}

        assert [reply.status_code for reply in fetch(kind, "/plain/", 2)] == [200, 200]

    def test_a_path_without_a_view_is_limited_too(self, kind: str) -> None:
        assert fetch(kind, "/nowhere/")[0].status_code == 404
        assert peek("site", HERE).remaining == 29

    @pytest.mark.parametrize(
        ("path", "rules_met"),
        [
            pytest.param("/class/", ["site", "class"], id="a class"),
            pytest.param("/class-async/", ["site", "class"], id="an async class"),
            pytest.param("/method/", ["site", "method"], id="a method"),
            pytest.param("/method-async/", ["site", "method"], id="an async method"),
            pytest.param("/unhashable/", ["site"], id="an object without a hash, which has no decorator"),
        ],
    )
    def test_the_outermost_decorator_is_joined_on(
        self, kind: str, path: str, rules_met: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = calls_of(monkeypatch)

        (reply,) = fetch(kind, path)

        assert (reply.json()["rules"], calls) == (rules_met, [1])

    @pytest.mark.thorough("slow")
    @pytest.mark.parametrize(
        ("path", "own"),
        [
            pytest.param("/exempt-of-csrf/", ["two", "two"], id="csrf_exempt"),
            pytest.param("/guarded/", ["two", "two"], id="a decorator of somebody's"),
            pytest.param("/guarded-class/", ["class"], id="a decorator of somebody's around a class"),
            pytest.param("/by-method-decorator/", ["by-method-decorator"], id="method_decorator"),
            pytest.param("/setup/", ["class"], id="a setup() of the class"),
        ],
    )
    def test_a_decorator_decides_for_itself_behind(
        self, kind: str, path: str, own: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = calls_of(monkeypatch)

        (reply,) = fetch(kind, path)

        assert (reply.json()["rules"], calls) == (["site", *own], [1, 1])

    @pytest.mark.parametrize("path", ["/guarded/", "/guarded-class/"], ids=["a function", "a class"])
    def test_what_stands_in_front_of_a_decorator_runs_first(
        self, kind: str, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = calls_of(monkeypatch)

        (reply,) = fetch(kind, f"{path}?no")

        assert (reply.status_code, calls) == (403, [1])

    def test_a_view_that_calls_itself_decides_each_time(self, kind: str) -> None:
        fetch(kind, "/again/")

        assert peek("20/m", HERE, name="again").remaining == 18

    def test_a_view_that_calls_a_limited_one_twice_decides_each_time(self, kind: str) -> None:
        fetch(kind, "/twice/")

        assert peek("20/m", HERE, name="two").remaining == 18

    def test_a_rule_that_a_decorator_names_counts_once(self, kind: str, settings: Any) -> None:
        settings.ROOT_URLCONF = __name__  # whose view has a decorator that decides for itself

        (reply,) = fetch(kind, "/by-the-settings/")

        assert reply.json() == {"rules": ["site"]}
        assert peek("site", HERE).remaining == 29

    def test_a_rule_that_a_decorator_names_counts_twice_for_two_subjects(self, kind: str, settings: Any) -> None:
        names = iter(["before", "after"])

        def by_name(request: HttpRequest) -> str:
            return next(names)

        settings.ROOT_URLCONF = __name__
        settings.QUOTA = {**settings.QUOTA, "RULES": {"site": {"rate": "30/m", "match": "/", "key": by_name}}}

        (reply,) = fetch(kind, "/by-the-settings/")

        assert reply.json() == {"rules": ["site", "site"]}


@pytest.mark.django_db
class TestDecoratorOfAMethod:
    """Of GET alone, in a class."""

    @pytest.fixture(autouse=True)
    def rules(self, memory_store: None, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": RULES}

    def test_it_limits_no_other_method(self) -> None:
        assert Client().post("/method/").json() == {"rules": ["site"]}
        assert peek("20/m", HERE, name="method").remaining == 20

    @both
    def test_it_limits_no_method_that_as_view_leaves_out(self, kind: str) -> None:
        (reply,) = fetch(kind, "/method-of-post-alone/")

        assert (reply.status_code, reply.headers["RateLimit"].count('"')) == (405, 2)
        assert peek("20/m", HERE, name="method").remaining == 20

    @both
    def test_it_limits_head_with_the_headers_of_get(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = calls_of(monkeypatch)

        reply = head(kind, "/method/")

        assert (reply.status_code, calls) == (200, [1])
        assert '"method";r=19' in reply.headers["RateLimit"]


def head(kind: str, path: str) -> Any:
    return Client().head(path) if kind == "sync" else asyncio.run(AsyncClient().head(path))


@both
class TestHeadRequest:
    """It is a GET without a body: it takes as much, and is answered with the same headers."""

    @pytest.fixture(autouse=True)
    def rules(self, memory_store: None, settings: Any) -> Iterator[None]:
        rules = {"site": {"rate": "1/m", "match": "/", "key": "ip", "methods": ["GET"]}}
        settings.QUOTA = {**settings.QUOTA, "RULES": rules}
        with freeze(START):
            yield

    @pytest.mark.parametrize("before", [0, 1], ids=["admitted", "refused"])
    def test_it_has_the_headers_of_a_get(self, kind: str, before: int) -> None:
        fetch(kind, "/plain/", before)
        of_head = head(kind, "/plain/")
        clear()
        of_get = fetch(kind, "/plain/", before + 1)[-1]

        assert (of_head.status_code, of_head.content) == (of_get.status_code, b"")
        assert dict(of_head.headers) == dict(of_get.headers)

    def test_a_rule_of_get_limits_it(self, kind: str) -> None:
        head(kind, "/plain/")

        assert fetch(kind, "/plain/")[0].status_code == 429


@both
class TestWithoutAView:
    @pytest.fixture(autouse=True)
    def rules(self, memory_store: None, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"site": {"rate": "2/m", "match": "/"}}}

    @pytest.fixture
    def files_are_served(self, settings: Any) -> None:
        """By another middleware."""
        opened.clear()
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.files"]

    def test_a_path_of_no_view_is_limited(self, kind: str) -> None:
        assert [reply.status_code for reply in fetch(kind, "/wp-login.php", 3)] == [404, 404, 429]

    def test_a_path_of_no_view_has_headers(self, kind: str) -> None:
        assert fetch(kind, "/wp-login.php")[0].headers["RateLimit"].startswith('"site";r=1')

    def test_each_request_is_one_call_of_the_store(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = calls_of(monkeypatch)

        fetch(kind, "/wp-login.php", 3)

        assert calls == [1] * 3

    @pytest.mark.usefixtures("files_are_served")
    def test_what_another_middleware_answers_is_limited(self, kind: str) -> None:
        assert [reply.status_code for reply in fetch(kind, "/plain/", 3)] == [200, 200, 429]

    @pytest.mark.usefixtures("files_are_served")
    def test_what_another_middleware_would_have_sent_is_closed(self, kind: str) -> None:
        fetch(kind, "/plain/", 3)

        assert [file.closed for file in opened[2:]] == [True]

    @pytest.mark.usefixtures("files_are_served")
    def test_while_limiting_is_off_nothing_is_limited(self, kind: str, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}

        replies = fetch(kind, "/plain/", 4)

        assert [reply.status_code for reply in replies] == [200] * 4
        assert "RateLimit" not in replies[0].headers

    def test_while_limiting_is_off_no_store_is_asked(
        self, kind: str, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
        calls = calls_of(monkeypatch)

        fetch(kind, "/plain/", 4)

        assert calls == []


def teapot(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    def answer(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.status_code = 418
        return response

    return answer


opened: list[io.BytesIO] = []


def files(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], FileResponse]:
    def answer(request: HttpRequest) -> FileResponse:
        opened.append(io.BytesIO(b"file"))
        return FileResponse(opened[-1])

    return answer


urlpatterns = [path("by-the-settings/", guarded(quota(rule="site")(seen)))]
"""A rule that holds by itself, and that a decorator names which decides for itself."""


@both
class TestCosts:
    @pytest.fixture(autouse=True)
    def budget(self, memory_store: None, settings: Any) -> None:
        costs = {"api:search": 50, "api:plain": 7}
        budget = {"rate": "100/m", "match": "/", "cost": lambda request: 2, "costs": costs}
        settings.QUOTA = {**settings.QUOTA, "RULES": {"budget": budget}}

    @pytest.mark.parametrize(
        ("path", "remaining"),
        [
            pytest.param("/api/search/", 50, id="a view that it names"),
            pytest.param("/api/plain/", 93, id="another view that it names"),
            pytest.param("/plain/", 98, id="a view that it does not name"),
            pytest.param("/nowhere/", 98, id="a path without a view"),
        ],
    )
    def test_a_rule_takes_what_it_says_of(self, kind: str, path: str, remaining: int) -> None:
        fetch(kind, path)

        assert peek("budget", HERE).remaining == remaining

    def test_other_rules_cost_what_they_did(self, kind: str) -> None:
        fetch(kind, "/api/search/")

        assert peek("20/m", HERE, name="two").remaining == 19


class Derived(QuotaMiddleware):
    def process_view(self, request: HttpRequest, *args: Any) -> Any:
        return HttpResponse(status=418) if "derived" in request.GET else super().process_view(request, *args)


@both
class TestDerivedMiddleware:
    @pytest.fixture(autouse=True)
    def derived(self, memory_store: None, settings: Any) -> None:
        settings.MIDDLEWARE = [f"{__name__}.Derived"]
        settings.QUOTA = {**settings.QUOTA, "RULES": {"site": {"rate": "1/m", "match": "/plain/"}}}

    def test_it_may_answer_before_the_view(self, kind: str) -> None:
        assert fetch(kind, "/plain/?derived")[0].status_code == 418

    def test_it_limits(self, kind: str) -> None:
        assert [reply.status_code for reply in fetch(kind, "/plain/", 2)] == [200, 429]


def tier_that_asks_the_database(request: HttpRequest) -> str:
    return "pro" if User.objects.filter(username=request.user.get_username()).exists() else "anonymous"


async def tier_async(request: HttpRequest) -> str:
    user = await request.auser()
    return "pro" if await User.objects.filter(username=user.get_username()).aexists() else "anonymous"


@both
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", ["/api/search/", "/api/search-async/", "/api/plain/"])
@pytest.mark.parametrize(("is_known", "limit"), [(False, 5), (True, 50)], ids=["anonymous", "a user"])
@pytest.mark.parametrize("tier", [tier_that_asks_the_database, tier_async], ids=["a function", "an async function"])
def test_the_tier_of_a_rule_may_ask_the_database(
    kind: str, path: str, is_known: bool, limit: int, tier: Any, memory_store: None, settings: Any
) -> None:
    rule = {"rate": {"anonymous": "5/m", "pro": "50/m"}, "tier": tier, "match": "api:*", "key": "user"}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"api": rule}}
    client: Any = Client() if kind == "sync" else AsyncClient()
    if is_known:
        client.force_login(User.objects.create_user("ann"))

    reply = client.get(path) if kind == "sync" else asyncio.run(client.get(path))

    assert reply.headers["RateLimit-Policy"].partition(",")[0] == f'"api";q={limit};w=60'
