"""`@quota` on every kind of view: who shares a limit, what is one call, what stands in between."""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.utils.decorators import method_decorator
from django.views import View

from django_quota import check, quota
from django_quota.exceptions import ConfigurationError, RuleError
from tests.support.calls import get, limits_of_each_call, run

pytestmark = pytest.mark.usefixtures("memory_store")

Make = Callable[[Any], Any]


def statuses(view: Callable[..., Any], times: int = 3) -> list[int]:
    return [run(view).status_code for _ in range(times)]


def plain(request: Any) -> HttpResponse:
    return HttpResponse("ok")


async def plain_async(request: Any) -> HttpResponse:
    return HttpResponse("ok")


class Sync(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")


class Async(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")


class CallableAsync:
    async def __call__(self, request: Any) -> HttpResponse:
        return HttpResponse("ok")


def on_method(cls: type[View], decorate: Make) -> type[View]:
    return type("On" + cls.__name__, (cls,), {"get": decorate(cls.__dict__["get"])})


def derived(name: str, base: Any) -> Any:
    return type(name, (base,), {})


def copied(cls: type[View]) -> Any:
    return derived("Own" + cls.__name__, cls)


WAYS: dict[str, Callable[[type[View], Any], Callable[..., Any]]] = {
    "class": lambda cls, dec: dec(copied(cls)).as_view(),
    "method": lambda cls, dec: on_method(cls, dec).as_view(),
    "md-dispatch": lambda cls, dec: method_decorator(dec, name="dispatch")(copied(cls)).as_view(),
    "md-method": lambda cls, dec: on_method(cls, method_decorator(dec)).as_view(),
    "md-name-get": lambda cls, dec: method_decorator(dec, name="get")(copied(cls)).as_view(),
    "as_view": lambda cls, dec: dec(cls.as_view()),
}


class TestKindsOfViews:
    @pytest.mark.parametrize("view", [plain, plain_async, CallableAsync()])
    def test_a_function_is_limited(self, view: Any) -> None:
        limited = quota("2/m")(view)
        assert statuses(limited) == [200, 200, 429]
        request = get(REMOTE_ADDR="192.0.2.2")
        assert "RateLimit" in run(limited, SimpleNamespace(_request=request)).headers  # as of REST framework
        assert request.quota.remaining == 1

    @pytest.mark.parametrize("cls", [Sync, Async])
    @pytest.mark.parametrize("way", WAYS)
    def test_a_class_is_limited(self, way: str, cls: type[View]) -> None:
        async def acost(request: HttpRequest) -> int:
            return 1

        costs: list[Any] = [1, acost] if cls is Async and way != "as_view" else [1]
        for cost in costs:
            view = WAYS[way](cls, quota("2/m", cost=cost, name=f"{way}-{cost}"))
            assert statuses(view) == [200, 200, 429]
            assert "RateLimit" in run(view).headers

    def test_what_cannot_be_limited_is_refused(self) -> None:
        forgotten: Any = quota(plain)
        wrong: list[tuple[Callable[[], Any], str]] = [
            (lambda: quota("1/m")(type("NoView", (), {})), "without dispatch"),
            (lambda: quota("1/m")(plain)("no request"), "got no request"),
            (lambda: quota("1/m")(None), "."),  # type: ignore[type-var]
            (lambda: forgotten(get()), r"@quota\("),
        ]
        for use, words in wrong:
            with pytest.raises(ConfigurationError, match=words):
                use()


def family(way: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Two views that inherit one decorated base."""
    base: Any = type("Base", (Sync,), {})
    if way == "class":
        base = quota("1/m")(base)
    elif way == "md-list":
        base = method_decorator([quota("1/m"), quota("1/h")], name="dispatch")(base)
    elif way == "md-dispatch":
        base = method_decorator(quota("1/m"), name="dispatch")(base)
    else:
        decorate: Any = quota("1/m") if way == "method" else method_decorator(quota("1/m"))
        base = type("Base", (Sync,), {"get": decorate(Sync.get)})
    return derived("A", base).as_view(), derived("B", base).as_view()


class TestWhoSharesALimit:
    @pytest.mark.parametrize("way", ["class", "method", "md-dispatch", "md-list", "md-method"])
    def test_two_views_that_inherit_what_is_decorated_never_share_a_limit(self, way: str) -> None:
        first, second = family(way)
        assert [run(first).status_code, run(first).status_code, run(second).status_code] == [200, 429, 200]

    @pytest.mark.parametrize("between", ["plain", "md"])
    def test_two_decorators_on_one_view_with_another_in_between_never_share_a_limit(self, between: str) -> None:
        if between == "md":
            inner = method_decorator(quota("2/m"), name="dispatch")(derived("Two", Sync))
            view = method_decorator(quota("2/m"), name="dispatch")(inner).as_view()
        else:
            view = quota("2/m")(transparent(quota("2/m")(plain)))
        assert statuses(view) == [200, 200, 429]

    def test_two_rules_of_one_name_count_apart_by_their_keys_or_are_refused_at_import(self) -> None:
        view = quota("9/m", name="x", key="global")(quota("1/m", name="x", key="ip")(plain))
        assert statuses(view, 2) == [200, 429]
        assert check("9/m", "global", name="x").remaining == 7
        assert check("1/m", "ip:192.0.2.1", name="x").remaining == 0
        with pytest.raises(RuleError, match="Two rules are named 'x'"):
            quota("9/m", name="x", key="ip")(quota("1/m", name="x", key="ip")(plain))


def transparent(view: Callable[..., Any], seen: list[str] | None = None) -> Callable[..., Any]:
    """Stand in between, as login_required does: `wraps` copies all attributes of the view."""

    @functools.wraps(view)
    def inner(request: HttpRequest) -> Any:
        if seen is not None:
            seen.append("between")
        return view(request)

    return inner


class TestStacks:
    @pytest.mark.parametrize("view", [plain, plain_async])
    def test_a_stack_is_one_call_and_all_or_nothing(self, view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        stacked = quota("9/m", name="a")(quota("1/m; 5/h", name="b")(quota(rule="c")(view)))
        with override_settings(QUOTA={"STORE": "memory", "RULES": {"c": "3/m"}}):
            calls = limits_of_each_call(monkeypatch)
            assert statuses(stacked) == [200, 429, 429]
            assert calls == [4, 4, 4]
            request = get()
            run(stacked, request)
            assert [outcome.remaining for outcome in request.quota.outcomes] == [8, 0, 4, 2]

    def test_what_stands_in_between_runs_and_is_not_skipped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = limits_of_each_call(monkeypatch)
        seen: list[str] = []
        view = quota("3/m", name="outer")(transparent(quota("2/m", name="inner")(plain), seen))
        assert statuses(view) == [200, 200, 429]
        assert seen == ["between"] * 3
        assert calls == [1] * 6
        policies = [run(view, get(REMOTE_ADDR=f"192.0.2.{n}")).headers["RateLimit-Policy"] for n in (1, 2)]
        assert policies == ['"outer";q=3;w=60', '"outer";q=3;w=60, "inner";q=2;w=60']


class TestArguments:
    @override_settings(QUOTA={"RULES": {"search": "10/m"}})
    @pytest.mark.parametrize(
        ("rates", "options", "words"),
        [
            ((), {}, "@quota got none"),
            *((("1/m",), wrong, r"Did you mean|Known") for wrong in ({"key": "usr"}, {"algorithm": "x"}, {"bloc": 0})),
            ((), {"rule": 5}, "5"),
            *(
                ((), {name: "5/m"}, rf"'{name}' is not an option .* The first argument is the rate, .* '10/m'")
                for name in ("rate", "rates", "limit")
            ),
            (("search",), {}, r"If it is the name of a configured rule, write @quota\(rule='search'\)"),
            (("10/m", "ip"), {}, r"Write a count.* if it is the key, key='ip'"),
            ((), {"rule": "search", "methods": ["POST"]}, r"no other arguments: methods=.*QUOTA"),
            ((), {"rule": "search", "name": "x", "cost": 2}, "no other arguments: name=, cost="),
            (("5/m",), {"rule": "search"}, "no other arguments: '5/m'"),
        ],
    )
    def test_what_is_wrong_is_refused_at_import_with_what_to_write(
        self, rates: tuple[str, ...], options: Any, words: str
    ) -> None:
        with pytest.raises(RuleError, match=words):
            quota(*rates, **options)

    @pytest.mark.parametrize("option", ["cost", "skip", "key", "distinct", "tuple in a tuple", "rate"])
    @pytest.mark.parametrize("on", ["function", "class"])
    def test_an_async_function_on_a_sync_view_is_refused_at_import(self, option: str, on: str) -> None:
        async def value(request: HttpRequest) -> Any:
            return 1

        options: Any = {"tuple in a tuple": {"key": ("ip", ("path", value))}, "rate": {}}.get(option, {option: value})
        with pytest.raises(RuleError, match="is async, but the view is not"):
            quota(value if option == "rate" else "1/m", **options)(plain if on == "function" else copied(Sync))
