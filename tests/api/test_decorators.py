"""`@quota` on every kind of view: who shares a limit, what is one call, what stands in between."""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt

from django_quota import check, peek, quota
from django_quota.exceptions import ConfigurationError, RuleError
from django_quota.http.request_rules import Limited, rules_of_view
from django_quota.http.views import own
from tests.support.calls import get, limits_of_each_call, run

pytestmark = pytest.mark.usefixtures("memory_store")


def statuses(view: Callable[..., Any], times: int = 3) -> list[int]:
    return [run(view).status_code for _ in range(times)]


def plain(request: Any) -> HttpResponse:
    return HttpResponse("ok")


async def plain_async(request: Any) -> HttpResponse:
    return HttpResponse("ok")


def handed_on(request: Any) -> Any:
    """A sync function that returns what must be awaited, as decorators of a site do."""
    return plain_async(request)


async def fails(request: Any) -> HttpResponse:
    raise ZeroDivisionError


def rate_of(request: HttpRequest) -> str:
    return "1/m"


async def acost(request: HttpRequest) -> int:
    return 1


class Sync(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")


class Async(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")


def own_setup(self: Any, *args: Any, **kwargs: Any) -> None:
    View.setup(self, *args, **kwargs)


def own_dispatch(self: Any, *args: Any, **kwargs: Any) -> Any:
    return View.dispatch(self, *args, **kwargs)


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, request: Any) -> HttpResponse:
        return HttpResponse("ok")


class CallableAsync:
    async def __call__(self, request: Any) -> HttpResponse:
        return HttpResponse("ok")


def derived(base: Any, name: str = "Derived", **members: Any) -> Any:
    return type(name, (base,), members)


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "class": lambda cls, limit: limit(derived(cls)),
    "method": lambda cls, limit: derived(cls, get=limit(cls.get)),
    "md-dispatch": lambda cls, limit: method_decorator(limit, name="dispatch")(derived(cls)),
    "md-method": lambda cls, limit: derived(cls, get=method_decorator(limit)(cls.get)),
    "md-list": lambda cls, limit: method_decorator([limit, quota("9/h")], name="dispatch")(derived(cls)),
    "md-above-another": lambda cls, limit: method_decorator([limit, csrf_exempt], name="dispatch")(derived(cls)),
}
"""How a class is limited."""


def test_an_empty_name_is_an_error() -> None:
    with pytest.raises(RuleError, match="name"):
        quota("2/m", name="")


class TestKindsOfViews:
    @pytest.mark.parametrize("view", [plain, plain_async, CallableAsync(), handed_on])
    def test_a_function_is_limited(self, view: Any) -> None:
        limited = quota("2/m")(view)
        assert statuses(limited) == [200, 200, 429]
        request = get(REMOTE_ADDR="192.0.2.2")
        assert "RateLimit" in run(limited, SimpleNamespace(_request=request)).headers  # as of REST framework
        assert request.quota.remaining == 1

    def test_a_function_may_get_its_request_by_name(self) -> None:
        limited: Any = quota("2/m")(lambda request: HttpResponse())

        assert [limited(request=get()).status_code for _ in range(3)] == [200, 200, 429]

    def test_a_method_may_get_its_request_by_name(self) -> None:
        view, request = derived(Sync, get=quota("2/m")(Sync.get))(), get()

        view.get(request=request)

        assert request.quota.rule == f"{__name__}.Derived.get"

    @pytest.mark.parametrize("way", ["class", "md-dispatch"])
    def test_a_dispatch_may_get_its_request_by_name(self, way: str) -> None:
        limited, request = WAYS[way](Sync, quota("2/m", key="user")), get()
        view = limited()
        view.setup(request)

        view.dispatch(request=request)

        assert request.quota.rule == f"{__name__}.Derived"

    @pytest.mark.parametrize("cls", [Sync, Async])
    @pytest.mark.parametrize("way", WAYS)
    def test_a_class_is_limited(self, way: str, cls: type[View]) -> None:
        limited = derived(WAYS[way](cls, quota("2/m", cost=acost if cls is Async else 1))).as_view()

        assert statuses(limited) == [200, 200, 429]
        assert "RateLimit" in run(limited).headers

    @pytest.mark.parametrize("way", ["class", "method"])
    def test_the_limit_on_the_outside_of_a_class_is_known_before_the_view_runs(self, way: str) -> None:
        limited = WAYS[way](Sync, quota("2/m", name="limit")).as_view()

        assert [rule.name for rule in rules_of_view(get(), limited)] == ["limit"]

    def test_classes_that_share_a_method_do_not_fill_the_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_quota.http.request_rules.MAX_CLASSES", 2)
        shared: Any = quota("2/m")(Sync.get)

        names = [
            [rule.name for rule in rules_of_view(get(), derived(Sync, f"View{number}", get=shared).as_view())]
            for number in range(5)
        ]

        assert names == [[f"{__name__}.View{number}.get"] for number in range(5)]
        limited: Any = own(shared, Limited)
        assert len(limited._known) <= 2

    beyond_other_code = pytest.mark.parametrize(
        "make",
        [
            pytest.param(lambda cls: derived(cls, setup=own_setup).as_view(), id="it sets up itself"),
            pytest.param(lambda cls: derived(cls, dispatch=own_dispatch).as_view(), id="it dispatches itself"),
            pytest.param(lambda cls: cls.as_view(http_method_names=["get"]), id="as_view() names the methods"),
            pytest.param(lambda cls: csrf_exempt(cls.as_view()), id="below a decorator"),
        ],
    )

    @beyond_other_code
    def test_the_limit_of_a_method_is_not_known_before_other_code_may_have_run(self, make: Any) -> None:
        view = make(derived(Sync, get=quota("2/m", name="limit")(Sync.get)))

        assert rules_of_view(get(), view) == []

    @beyond_other_code
    def test_the_limit_of_a_method_counts_after_other_code_has_run(self, make: Any) -> None:
        view = make(derived(Sync, get=quota("2/m", name="limit")(Sync.get)))

        assert statuses(view) == [200, 200, 429]

    @pytest.mark.parametrize("replaced", [{"dispatch": plain}, {"setup": own_setup}], ids=["dispatch", "setup"])
    def test_the_limit_of_a_method_is_not_known_if_as_view_replaces(self, replaced: dict[str, Any]) -> None:
        view = derived(Sync, get=quota("2/m", name="limit")(Sync.get)).as_view(**replaced)

        assert rules_of_view(get(), view) == []

    def test_a_view_without_a_hash_has_no_limits(self) -> None:
        assert rules_of_view(get(), Unhashable()) == []

    def test_a_view_without_a_hash_may_be_limited(self) -> None:
        limited = quota("2/m", name="limit")(Unhashable())

        assert [rule.name for rule in rules_of_view(get(), limited)] == ["limit"]

    @pytest.mark.parametrize(
        ("method", "names"),
        [
            pytest.param("HEAD", ["limit"], id="HEAD, which get() answers"),
            pytest.param("POST", [], id="a method without a limit"),
            pytest.param("HELPER", [], id="no method of HTTP"),
        ],
    )
    def test_the_limit_of_a_method_is_that_of_the_requests_that_it_answers(self, method: str, names: list[str]) -> None:
        limit = quota("2/m", name="limit")(Sync.get)
        view = derived(Sync, get=limit, helper=limit).as_view()

        assert [rule.name for rule in rules_of_view(RequestFactory().generic(method, "/"), view)] == names

    @pytest.mark.parametrize(
        ("members", "method", "names"),
        [
            pytest.param({}, "HEAD", ["head"], id="a head() of its own"),
            pytest.param({"http_method_names": ["head"]}, "GET", [], id="a method that the class does not answer"),
            pytest.param({"http_method_names": ["purge"]}, "PURGE", ["purge"], id="a method that only the class knows"),
        ],
    )
    def test_the_limit_of_a_method_is_that_of_the_method_which_the_class_calls(
        self, members: dict[str, Any], method: str, names: list[str]
    ) -> None:
        limits: Any = {name: quota("2/m", name=name)(Sync.get) for name in ("get", "head", "purge")}
        view = derived(Sync, **limits, **members).as_view()

        assert [rule.name for rule in rules_of_view(RequestFactory().generic(method, "/"), view)] == names

    @pytest.mark.parametrize("cls", [Sync, Async])
    @pytest.mark.parametrize("way", WAYS)
    def test_two_classes_that_inherit_a_limit_never_share_it(self, way: str, cls: type[View]) -> None:
        base = WAYS[way](cls, quota("2/m", cost=acost if cls is Async else 1))
        first, second = (derived(base, name).as_view() for name in ("A", "B"))

        assert (statuses(first), statuses(second)) == ([200, 200, 429], [200, 200, 429])

    @pytest.mark.parametrize(
        ("use", "words"),
        [
            pytest.param(
                lambda: quota("1/m")(type("NoView", (), {})),
                "@quota on NoView: a class without dispatch() is not a view.",
                id="a class that is no view",
            ),
            pytest.param(
                lambda: quota("1/m")(plain)("no request"),
                "@quota is on a function that got no request. Use it on a view.",
                id="a call without a request",
            ),
            pytest.param(
                lambda: quota("1/m")(lambda *_: plain(None))("a", "b", get()),
                "@quota is on a function that got no request. Use it on a view.",
                id="a late request",
            ),
            pytest.param(
                lambda: quota("1/m")(None),  # type: ignore[type-var]
                "@quota is on NoneType, not on a view. Write @quota('10/m') above a view.",
                id="None",
            ),
            pytest.param(
                lambda: quota(rate_of)(None),  # type: ignore[type-var]
                "@quota is on NoneType, not on a view. Write @quota('10/m') above a view.",
                id="None, by a function for a rate",
            ),
            pytest.param(
                lambda: quota(plain)(get()),
                f"@quota has no parentheses on {__name__}.plain. Write it with a rate: @quota('10/m').",
                id="no parentheses",
            ),
            pytest.param(
                lambda: quota("1/m")(get()),
                "@quota is on WSGIRequest, not on a view. Write @quota('10/m') above a view.",
                id="a request",
            ),
        ],
    )
    def test_what_cannot_be_limited_is_refused(self, use: Callable[[], Any], words: str) -> None:
        with pytest.raises(ConfigurationError) as refused:
            use()

        assert str(refused.value) == words


@pytest.mark.parametrize("view", [fails, lambda request: fails(request)], ids=["async", "handed on"])  # noqa: PLW0108
def test_an_async_view_that_fails_is_settled(view: Any) -> None:
    limited = quota("1000/h", name="failing", cost=9, settle=lambda request, response: response.status_code)(view)

    with pytest.raises(ZeroDivisionError):
        run(limited)

    assert peek("1000/h", "ip:192.0.2.1", name="failing").used == 500


def test_two_rules_of_one_name_count_apart_by_their_keys() -> None:
    view = quota("9/m", name="x", key="global")(quota("1/m", name="x", key="ip")(plain))

    assert statuses(view, 2) == [200, 429]
    assert check("9/m", "global", name="x").remaining == 7
    assert check("1/m", "ip:192.0.2.1", name="x").remaining == 0


def test_two_rules_of_one_name_that_share_a_key_are_refused_at_import() -> None:
    with pytest.raises(RuleError) as refused:
        quota("9/m", "50/h", name="x", key="ip")(quota("1/m", name="x", key="ip")(plain))

    assert str(refused.value) == (
        "Two rules are named 'x' (1/m and 9/m; 50/h), but their limits over one window, their costs or their options "
        "differ: they would share one count. Give one of them a name of its own."
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(quota("9/m", name="x"), quota("9/m", name="x"), id="the same limit"),
        pytest.param(quota("9/m", name="x"), quota("90/h", name="x"), id="limits over two windows"),
        pytest.param(quota("9/m", name="x"), quota("9/m", name="y"), id="two names"),
        pytest.param(quota("9/m", name="x"), quota("5/m"), id="no name"),
        pytest.param(
            quota("9/m", name="x", methods=["GET"]),
            quota("9/m", name="x", methods=["POST"], cost=2),
            id="two costs of two methods",
        ),
        pytest.param(
            quota("9/m", name="x"),
            quota("9/m", name="x", cost=2, skip=lambda request: True),
            id="another cost of some requests",
        ),
        pytest.param(
            quota("9/m", name="x"),
            quota("9/m", name="x", cost=2, exempt=["192.0.2.0/24"]),
            id="another cost of some clients",
        ),
        pytest.param(
            quota("9/m", name="x"), quota("9/m", name="x", cost=lambda request: 1), id="a cost that is a function"
        ),
    ],
)
def test_limits_that_do_not_contradict_each_other_may_be_stacked(one: Any, other: Any) -> None:
    assert statuses(one(other(plain)), 1) == statuses(other(one(plain)), 1) == [200]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(quota("5/m", name="x"), id="another rate"),
        pytest.param(quota("9/m", name="x", cost=2), id="another cost"),
        pytest.param(quota("9/m", name="x", cost=2, methods=["POST"]), id="another cost of one method"),
        pytest.param(quota("9/m", name="x", count_refused=True), id="another option"),
        pytest.param(quota("5/m", "9/h", name="x"), id="one of two rates"),
    ],
)
def test_a_limit_that_contradicts_one_far_below_it_is_refused_at_import(other: Any) -> None:
    stacked = quota("9/m", name="y")(quota("9/m", name="x")(plain))

    with pytest.raises(RuleError, match="Two rules are named 'x'"):
        other(stacked)


def test_two_costs_of_methods_that_overlap_are_refused_at_import() -> None:
    inner = quota("9/m", name="x", methods=["GET", "POST"])(plain)

    with pytest.raises(RuleError, match="Two rules are named 'x'"):
        quota("9/m", name="x", methods=["POST", "PUT"], cost=2)(inner)


def test_a_limit_without_parentheses_above_another_is_refused_at_import() -> None:
    with pytest.raises(RuleError, match=r"is not a rate: it is a view\. Write @quota\('10/m'\) with a rate\.$"):
        quota(quota("1/m")(plain))


def test_a_misspelled_rate_is_not_taken_for_a_name() -> None:
    with pytest.raises(RuleError, match="'5/mx' is not a rate") as refused:
        quota("5/mx")

    assert "configured rule" not in str(refused.value)


@pytest.mark.parametrize("view", [plain, plain_async])
class TestAStack:
    @pytest.fixture
    def stacked(self, view: Any, settings: Any) -> Any:
        settings.QUOTA = {"STORE": "memory", "RULES": {"c": "3/m"}}
        return quota("9/m", name="a")(quota("1/m; 5/h", name="b")(quota(rule="c")(view)))

    def test_is_one_call_of_the_store(self, stacked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = limits_of_each_call(monkeypatch)

        assert statuses(stacked) == [200, 429, 429]
        assert calls == [4, 4, 4]

    def test_takes_of_all_its_rules_or_of_none(self, stacked: Any) -> None:
        statuses(stacked)
        request = get()

        run(stacked, request)

        assert [outcome.remaining for outcome in request.quota.outcomes] == [8, 0, 4, 2]


@pytest.mark.parametrize("names", [("outer", "inner"), (None, None)], ids=["named", "unnamed"])
class TestADecoratorBetweenTwoLimits:
    @pytest.fixture
    def seen(self) -> list[str]:
        return []

    @pytest.fixture
    def limited(self, names: Any, seen: list[str]) -> Any:
        inner = quota("2/m", name=names[1])(plain)

        @quota("2/m", name=names[0])
        @functools.wraps(inner)  # as login_required does: it copies all attributes of the view
        def between(request: HttpRequest) -> HttpResponse:
            seen.append("between")
            return inner(request)

        return between

    def test_runs_for_each_request_that_the_outer_one_lets_in(self, limited: Any, seen: list[str]) -> None:
        assert statuses(limited) == [200, 200, 429]
        assert seen == ["between"] * 2

    def test_leaves_them_two_limits(self, limited: Any) -> None:
        assert run(limited).headers["RateLimit-Policy"].count(";q=2;w=60") == 2


def not_a_count(text: str, position: int) -> str:
    return (
        f"{text!r} is not a rate: the count is not a whole number from 0 up (at position {position}). Write a count in "
        "digits alone, a slash and a window: '10/m', '5/30s', '1000 per day', or several: '10/s; 500/h'."
    )


def maybe_a_rule_or_a_key(text: str) -> str:
    return (
        f"{not_a_count(text, 0)} If it is the name of a configured rule, write @quota(rule={text!r}); if it is the "
        f"key, key={text!r}."
    )


def the_rate_comes_first(option: str, rate: str) -> str:
    return (
        f"{option!r} is not an option of a rule. The first argument is the rate: write {rate!r} first. In the settings "
        "it is 'rate'."
    )


ALL_FROM_THE_RULE = "@quota(rule=...) takes everything from the rule, and no other arguments:"
IN_SETTINGS = "Set them in QUOTA[\"RULES\"], or use a rate instead of rule=, for example @quota('10/m')."


@override_settings(QUOTA={"RULES": {"search": "10/m"}})
@pytest.mark.parametrize(
    ("rates", "options", "words"),
    [
        (
            (View,),
            {},
            "'django.views...ric.base.View' is not a rate: it is a view. Write @quota('10/m') with a rate.",
        ),
        (
            (),
            {},
            "() is not a rate: @quota has no rate. Use, for example, @quota('10/m') or @quota(rule='search').",
        ),
        (("1/m",), {"key": "usr"}, "key='usr' is not a key. Did you mean 'user'?"),
        ((), {"rule": 5}, "rule=5 is not the name of a rule. Use, for example, @quota(rule='search')."),
        ((), {"limit": "5/m"}, the_rate_comes_first("limit", "5/m")),
        ((), {"rate": 5}, the_rate_comes_first("rate", "10/m")),
        (("search",), {}, maybe_a_rule_or_a_key("search")),
        (("10/m", "ip"), {}, maybe_a_rule_or_a_key("ip")),
        ((" ",), {}, not_a_count(" ", 1)),
        (
            ("5/m",),
            {"rule": "search", "methods": ["POST"], "cost": 2},
            f"{ALL_FROM_THE_RULE} '5/m', methods=, cost=. {IN_SETTINGS}",
        ),
        ((), {"rule": "search", "name": "s", "cost": 2}, f"{ALL_FROM_THE_RULE} name=, cost=. {IN_SETTINGS}"),
        ((), {"rule": "search", "name": "s"}, f"{ALL_FROM_THE_RULE} name=. {IN_SETTINGS}"),
        (("5/m",), {"distinct": "usr"}, "distinct='usr' is not a key. Did you mean 'user'?"),
        (
            ("5/m",),
            {"distinct": True},
            "distinct=True needs check(..., value=). On a view, use, for example, distinct='header:X-Device'.",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_at_import_with_what_to_write(rates: Any, options: Any, words: str) -> None:
    with pytest.raises(RuleError) as refused:
        quota(*rates, **options)

    assert str(refused.value) == words


def test_an_unknown_rule_of_a_site_without_rules_is_refused_with_what_to_write() -> None:
    with pytest.raises(RuleError, match=r"no rule 'search' in QUOTA\[.RULES.\]\. Add it\."):
        run(quota(rule="search")(plain))


@pytest.mark.parametrize(
    ("use", "option"),
    [
        pytest.param(lambda: quota("1/m", cost=acost)(plain), "cost", id="cost"),
        pytest.param(lambda: quota("1/m", skip=acost)(derived(Sync)), "skip", id="skip"),
        pytest.param(lambda: quota("1/m", key=acost)(plain), "key", id="key"),
        pytest.param(lambda: quota("1/m", distinct=acost)(plain), "distinct", id="distinct"),
        pytest.param(lambda: quota("1/m", key=("ip", ("path", acost)))(plain), "key", id="a part of a key"),
        pytest.param(lambda: quota(acost)(plain), "rate", id="rate"),
    ],
)
def test_an_async_function_on_a_sync_view_is_refused_at_import(use: Callable[[], Any], option: str) -> None:
    with pytest.raises(RuleError) as refused:
        use()

    assert str(refused.value) == f"{option}={__name__}.acost is async, but the view is not. Use a sync function."
