"""The drop-in for django-ratelimit: what it does better. `test_their_tests.py` runs its own tests."""

import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, User
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_quota import check, peek
from django_quota.conf import current
from django_quota.contrib.django_ratelimit import ALL, UNSAFE
from django_quota.contrib.django_ratelimit.core import (
    GroupLimit,
    get_usage,
    is_ratelimited,
    read_rate,
    rule_of_group,
)
from django_quota.contrib.django_ratelimit.decorators import ratelimit, rules_of_ratelimits
from django_quota.contrib.django_ratelimit.exceptions import Ratelimited
from django_quota.contrib.django_ratelimit.middleware import RatelimitMiddleware
from django_quota.limiting.known_rules import known_rules
from django_quota.testing import freeze
from tests.support.calls import calls_of, fetch, get
from tests.support.commands import ROOT
from tests.support.outages import no_answer
from tests.support.overridden import override
from tests.support.pages import run_page
from tests.support.steps import SECOND, START

pytestmark = pytest.mark.usefixtures("memory_store")


def ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


async def async_ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


def at_home(request: HttpRequest) -> str:
    return "203.0.113.6"


def of_the_group(group: str, request: HttpRequest) -> str | None:
    return {"few": "1/m", "all": None}[group]


stacked = ratelimit(key="ip", rate="2/m")(ratelimit(key="ip", rate="3/h")(ok))
by_user = ratelimit(key="user", rate="2/m", method=UNSAFE, group="shop")(ok)


class Page(View):
    @method_decorator([ratelimit(key="ip", rate="1/m"), ratelimit(key="header:x-key", rate="1/m")])
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")


@method_decorator(ratelimit(key="ip", rate="1/m"), name="get")
class AsyncPage(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")


urlpatterns = [
    path("stacked/", stacked),
    path("user/", by_user),
    path("loop/", ratelimit(key="ip", rate="2/m")(async_ok)),
    path("page/", Page.as_view()),
    path("async-page/", AsyncPage.as_view()),
]


def answer(request: HttpRequest, error: Ratelimited) -> HttpResponse:
    assert error.decision is not None
    return HttpResponse(error.decision.rule, status=429)


def soft(**options: Any) -> Any:
    return ratelimit(**{"key": "ip", "rate": "1/m", "group": "soft", "block": False, **options})(ok)


def limited_of(view: Any, number: int, **meta: Any) -> list[bool]:
    """Call a view that does not block; return `request.limited` of each request."""
    requests = [get(**meta) for _ in range(number)]
    for request in requests:
        view(request)
    return [request.limited for request in requests]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__


class TestStacked:
    """Two decorators: two requests a minute, three an hour."""

    def test_stacked_decorators_share_one_decision(self) -> None:
        request = get()

        stacked(request)

        assert [outcome.remaining for outcome in request.quota.outcomes] == [1, 2]

    def test_stacked_decorators_ask_the_store_once_a_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = calls_of(monkeypatch)

        stacked(get())

        assert len(calls) == 1

    def test_a_refusal_asks_the_store_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stacked(get())
        stacked(get())
        calls = calls_of(monkeypatch)

        with pytest.raises(Ratelimited):
            stacked(get())

        assert len(calls) == 1

    def test_a_refused_request_counts_in_none(self) -> None:
        for _ in range(2):
            stacked(get())
        for _ in range(5):
            with pytest.raises(Ratelimited):
                stacked(get())

        usage: Any = get_usage(get(), fn=stacked, key="ip", rate="3/h")

        assert usage["count"] == 2

    def test_a_refusal_is_permission_denied_with_our_decision(self) -> None:
        for _ in range(2):
            stacked(get())

        with pytest.raises(PermissionDenied) as refused:
            stacked(get())

        assert isinstance(refused.value, Ratelimited)
        assert refused.value.decision is not None
        assert refused.value.decision.retry_after == pytest.approx(60, abs=5)


@pytest.mark.django_db
def test_the_key_of_an_async_view_may_ask_the_database() -> None:
    def by_number_of_users(group: str, request: HttpRequest) -> str:
        return str(User.objects.count())

    view = ratelimit(key=by_number_of_users, rate="1/m")(async_ok)

    assert async_to_sync(view)(get()).status_code == 200


def test_three_stacked_decorators_share_one_decision() -> None:
    view = ratelimit(key="ip", rate="9/m")(stacked)
    request = get()

    view(request)

    assert [outcome.remaining for outcome in request.quota.outcomes] == [8, 1, 2]


def test_three_stacked_decorators_are_known_with_all_their_rules() -> None:
    view = ratelimit(key="ip", rate="9/m")(stacked)

    names = [rule.name for rule in rules_of_ratelimits([path("three/", view)])]

    assert names == [f"{__name__}.ok {rate}" for rate in ("9/m", "2/m", "3/h")]


class Away(Exception):  # noqa: N818 — an exception of the site
    """What a site may raise instead."""


class Slow(Ratelimited):
    """A refusal of the site."""


@pytest.mark.parametrize(
    ("given", "kind", "has_decision"),
    [
        pytest.param(Away, Away, False, id="a class"),
        pytest.param(f"{__name__}.Away", Away, False, id="the path of a class"),
        pytest.param(f"{__name__}.Slow", Slow, True, id="a subclass of ours"),
    ],
)
def test_a_refusal_is_the_exception_of_the_settings(
    given: Any, kind: type[Exception], has_decision: bool, settings: Any
) -> None:
    settings.RATELIMIT_EXCEPTION_CLASS = given
    view = ratelimit(key="ip", rate="0/m", group="g")(ok)

    with pytest.raises(kind) as refused:
        view(get())

    assert (getattr(refused.value, "decision", None) is not None) is has_decision


def test_a_refusal_that_the_site_raises_itself_has_no_decision() -> None:
    assert Ratelimited().decision is None


class TestDecisions:
    def test_a_decorator_that_blocks_ignores_the_limit_of_one_that_does_not(self) -> None:
        both = ratelimit(key="ip", rate="2/m", group="hard")(soft(rate="1/h"))

        assert limited_of(both, 2) == [False, True]

    def test_a_limit_that_is_not_reached_leaves_what_an_earlier_one_found(self) -> None:
        inner = ratelimit(key="ip", rate="2/m", group="hard")(ok)
        both = ratelimit(key="ip", rate="1/h", group="soft", block=False)(inner)

        assert limited_of(both, 2) == [False, True]

    def test_a_decorator_that_does_not_block_leaves_the_refusal_to_one_that_does(self) -> None:
        both = ratelimit(key="ip", rate="2/m", group="hard")(soft(rate="1/h"))
        limited_of(both, 2)

        with pytest.raises(Ratelimited):
            both(get())

    def test_a_stand_in_for_a_request_needs_little(self) -> None:
        stand_in = SimpleNamespace(META={"REMOTE_ADDR": "203.0.113.9"}, method="GET")

        found = [is_ratelimited(stand_in, group="bare", key="ip", rate="2/m", increment=True) for _ in range(3)]

        assert found == [False, False, True]

    @pytest.mark.parametrize("key", ["ip", "user", "header:x-key"])
    def test_a_request_that_wraps_djangos_counts_by_that(self, key: str) -> None:
        request = get(HTTP_X_KEY="k")
        request.user = User(pk=7)
        wrapped = SimpleNamespace(_request=request, method="GET")

        found = [is_ratelimited(wrapped, group="wrapped", key=key, rate="1/m", increment=True) for _ in range(2)]

        assert found == [False, True]
        assert is_ratelimited(request, group="wrapped", key=key, rate="1/m")


class TestUsage:
    def test_a_limited_hit_does_not_refuse_the_request_by_itself(self) -> None:
        request = get()
        limit: dict[str, Any] = {"group": "counted", "key": "ip", "rate": "1/m"}

        assert [is_ratelimited(request, **limit, increment=True) for _ in range(2)] == [False, True]

        assert request.quota.enforced is False

    def test_a_limit_without_a_key_is_an_error(self) -> None:
        with pytest.raises(ImproperlyConfigured) as raised:
            get_usage(get(), group="g", rate="1/m")

        assert str(raised.value) == "@ratelimit has no key. Use, for example, key='ip' or key='user_or_ip'."

    def test_a_limit_with_an_unknown_key_is_an_error(self) -> None:
        with pytest.raises(ImproperlyConfigured, match="'ipp' is not a key"):
            get_usage(get(), group="g", key="ipp", rate="1/m")

    def test_the_arguments_have_the_order_of_django_ratelimit(self) -> None:
        usage = get_usage(get(), None, stacked, "ip", "5/m", ALL, True)

        assert usage == {"count": 1, "limit": 5, "should_limit": False, "time_left": 60}

    @pytest.mark.parametrize("function", [get_usage, is_ratelimited, ratelimit])
    def test_a_function_has_the_methods_that_a_limit_may_name(self, function: Any) -> None:
        assert (function.ALL, function.UNSAFE) == ((None,), ["DELETE", "PATCH", "POST", "PUT"])

    @pytest.mark.parametrize(
        ("rate", "usage"),
        [
            ("2/m", {"count": 0, "limit": 2, "should_limit": False, "time_left": 60}),
            ("0/m", {"count": 1, "limit": 0, "should_limit": True, "time_left": 60}),
        ],
        ids=["nothing used", "a rate of nothing"],
    )
    def test_a_look_before_any_hit(self, rate: str, usage: dict[str, Any]) -> None:
        assert get_usage(get(), group="unused", key="ip", rate=rate) == usage

    @pytest.mark.parametrize(
        ("method", "is_limited"),
        [(None, True), (ALL, True), ("get", True), (["POST", "GET"], True), (("post", "get"), True), (["POST"], False)],
        ids=["all", "ALL", "one", "a list of two", "a tuple of two", "another"],
    )
    def test_the_methods_of_a_limit_may_be_given_in_these_forms(self, method: Any, is_limited: bool) -> None:
        usage = get_usage(get(), group="methods", key="ip", rate="0/m", method=method)

        assert (usage is not None) is is_limited

    def test_a_look_by_another_key_says_nothing_of_a_hit_before(self) -> None:
        request, limit = get(), {"group": "g", "rate": "1/m"}
        for _ in range(2):
            is_ratelimited(request, key="ip", increment=True, **limit)

        assert not is_ratelimited(request, key=lambda group, request: "another", **limit)

    def test_a_look_at_another_group_says_nothing_of_a_hit_before(self) -> None:
        request, limit = get(), {"key": "ip", "rate": "1/m"}
        for _ in range(2):
            is_ratelimited(request, group="a", increment=True, **limit)

        assert not is_ratelimited(request, group="b", **limit)

    def test_the_time_left_is_rounded_up(self) -> None:
        limit: Any = {"group": "g", "key": "ip", "rate": "1/m"}
        with freeze(START):
            is_ratelimited(get(), increment=True, **limit)
        with freeze(START + SECOND * 6 // 10):
            usage = get_usage(get(), **limit)

        assert usage == {"count": 2, "limit": 1, "should_limit": True, "time_left": 60}

    def test_the_time_left_of_who_is_blocked_is_that_of_the_override(self) -> None:
        with freeze(START):
            override(f"b {START} {START + 600 * SECOND} -", "*", "ip:192.0.2.1")
            usage = get_usage(get(), group="g", key="ip", rate="5/m")

        assert usage is not None
        assert usage["time_left"] == 600

    def test_limits_of_different_methods_count_apart(self) -> None:
        reading, writing = (
            {"group": "g", "key": "ip", "rate": "1/m", "method": method, "increment": True}
            for method in ("GET", UNSAFE)
        )
        is_ratelimited(get(), **reading)

        assert not is_ratelimited(get("post"), **writing)

    def test_another_method_has_no_usage(self) -> None:
        assert get_usage(get(), group="posted", key="ip", rate="1/m", method="POST") is None

    def test_a_look_says_what_a_hit_would_find(self) -> None:
        """So a page that looks first and counts failures allows five under 5/m. django-ratelimit allows six."""
        limit: dict[str, Any] = {"group": "login", "key": "ip", "rate": "5/m"}
        failures = 0

        while not is_ratelimited(get(), **limit):
            assert not is_ratelimited(get(), **limit, increment=True)
            failures += 1

        assert failures == 5

    def test_a_look_in_a_limited_view_says_what_its_decorator_found(self) -> None:
        limit: dict[str, Any] = {"group": "soft", "key": "ip", "rate": "2/m"}
        view: Any = ratelimit(**limit, block=False)(lambda request: get_usage(request, **limit))

        found = [view(get()) for _ in range(4)]

        assert [usage["count"] for usage in found] == [1, 2, 3, 3]
        assert [usage["should_limit"] for usage in found] == [False, False, True, True]

    def test_the_time_left_is_that_of_the_window(self) -> None:
        limit: dict[str, Any] = {"group": "soft", "key": "ip", "rate": "2/m"}
        view: Any = ratelimit(**limit, block=False)(lambda request: get_usage(request, **limit))

        found = [view(get()) for _ in range(4)]

        assert all(0 < usage["time_left"] <= 60 for usage in found)

    def test_a_look_after_a_hit_of_the_same_request_says_what_that_found(self) -> None:
        request = get()
        limit: dict[str, Any] = {"group": "other", "key": "ip", "rate": "2/m"}

        found: list[Any] = [
            get_usage(request, **limit, increment=True),
            get_usage(request, **limit, increment=True),
            get_usage(request, **limit),
        ]

        assert [usage["count"] for usage in found] == [1, 2, 2]


class TestWhoIsLimited:
    def post(self, address: str, user: Any) -> int:
        request = get("post", REMOTE_ADDR=address)
        request.user = user
        return int(by_user(request).status_code)

    @pytest.mark.parametrize("other", ["192.0.2.2", "198.51.100.7"])
    def test_anonymous_visitors_count_by_address_not_together(self, other: str) -> None:
        addresses = ("192.0.2.1", other)

        assert [[self.post(address, AnonymousUser()) for _ in range(2)] for address in addresses] == [[200, 200]] * 2
        with pytest.raises(Ratelimited):
            self.post("192.0.2.1", AnonymousUser())
        with pytest.raises(Ratelimited):
            self.post(other, AnonymousUser())

    def test_a_user_gets_in_from_an_address_that_is_used_up(self) -> None:
        for _ in range(2):
            self.post("192.0.2.1", AnonymousUser())

        assert self.post("192.0.2.1", User(pk=7)) == 200

    def test_a_user_is_the_subject_of_other_checks(self) -> None:
        self.post("192.0.2.1", User(pk=7))

        assert peek("2/m", "user:7", name="shop DELETE+PATCH+POST+PUT 2/m", algorithm="fixed_window").remaining == 1

    @pytest.mark.parametrize("key", ["header:x-key", "get:q", "get:q.1"])
    class TestFields:
        def test_requests_without_the_field_count_by_address(self, key: str) -> None:
            view = soft(key=key)

            assert limited_of(view, 2) == [False, True]
            assert limited_of(view, 1, REMOTE_ADDR="192.0.2.2") == [False]

        def test_requests_with_the_field_count_by_its_value(self, key: str) -> None:
            view = soft(key=key)
            limited_of(view, 1)

            found = limited_of(view, 2, HTTP_X_KEY="k", QUERY_STRING="q=1&q.1=1")

            assert found == [False, True]

    @pytest.mark.parametrize(
        ("given", "address", "subject"),
        [
            pytest.param({}, "2001:db8::1", "ip:2001:db8::/64", id="nothing set"),
            pytest.param({"RATELIMIT_IPV4_MASK": 24}, "192.0.2.1", "ip:192.0.2.0/24", id="mask of IPv4"),
            pytest.param(
                {"QUOTA": {"STORE": "memory", "IPV4_PREFIX": 24}},
                "192.0.2.1",
                "ip:192.0.2.0/24",
                id="our prefix of IPv4",
            ),
            pytest.param(
                {"QUOTA": {"STORE": "memory", "IPV6_PREFIX": 48}},
                "2001:db8::1",
                "ip:2001:db8::/48",
                id="our prefix of IPv6",
            ),
            pytest.param({"RATELIMIT_IPV6_MASK": 128}, "2001:db8::1", "ip:2001:db8::1/128", id="mask of IPv6"),
            pytest.param({"RATELIMIT_IP_META_KEY": "HTTP_X_CLIENT"}, "198.51.100.1", "ip:203.0.113.9", id="header"),
            pytest.param(
                {"RATELIMIT_IP_META_KEY": lambda request: "203.0.113.8"},
                "198.51.100.1",
                "ip:203.0.113.8",
                id="function",
            ),
            pytest.param(
                {"RATELIMIT_IP_META_KEY": f"{__name__}.at_home"},
                "198.51.100.1",
                "ip:203.0.113.6",
                id="path of a function",
            ),
            pytest.param(
                {"RATELIMIT_IP_META_KEY": lambda request: "203.0.113.8:4711"},
                "198.51.100.1",
                "ip:203.0.113.8",
                id="function that returns a port too",
            ),
            pytest.param(
                {"QUOTA": {"STORE": "memory", "TRUSTED_PROXIES": ["192.0.2.0/24"]}},
                "192.0.2.1",
                "ip:203.0.113.7",
                id="trusted proxy",
            ),
        ],
    )
    def test_the_address_is_found_as_the_settings_say(
        self, given: dict[str, Any], address: str, subject: str, settings: Any
    ) -> None:
        for name, value in given.items():
            setattr(settings, name, value)
        request = get(REMOTE_ADDR=address, HTTP_X_CLIENT="203.0.113.9", HTTP_X_FORWARDED_FOR="203.0.113.7")

        stacked(request)

        assert {outcome.subject for outcome in request.quota.outcomes} == {subject}

    def test_visitors_of_a_limit_by_user_count_by_the_mask_too(self, settings: Any) -> None:
        settings.RATELIMIT_IPV4_MASK = 24
        request = get("post")

        by_user(request)

        assert request.quota.outcomes[0].subject == "ip:192.0.2.0/24"

    def test_a_user_counts_by_the_address_where_the_key_says_so(self) -> None:
        request = get(REMOTE_ADDR="192.0.2.1")
        request.user = User(pk=7)

        stacked(request)

        assert {outcome.subject for outcome in request.quota.outcomes} == {"ip:192.0.2.1"}

    @pytest.mark.parametrize(
        ("key", "known"),
        [
            ("ip", "ip/24,64"), ("header:x-key", "header:x-key"), ("get:q.1", "get:q.1"), (of_the_group, "user_or_ip"),
            (f"{__name__}.of_the_group", "user_or_ip"),
        ],
    )  # fmt: skip
    def test_the_mask_is_known_of_limits_by_address(self, key: str, known: str, settings: Any) -> None:
        settings.RATELIMIT_IPV4_MASK = 24
        rule = rule_of_group(GroupLimit("g", key, "1/m"), "1/m")

        assert rule is not None
        assert rule.key == known

    def test_the_mask_of_django_ratelimit_precedes_ours(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "IPV4_PREFIX": 24}
        settings.RATELIMIT_IPV4_MASK = 32

        rule = rule_of_group(GroupLimit("g", "ip", "1/m"), "1/m")

        assert rule is not None
        assert rule.key == "ip/32,64"

    def test_a_limit_by_address_is_one_of_ours_without_a_mask(self) -> None:
        rule = rule_of_group(GroupLimit("g", "ip", "1/m"), "1/m")

        assert rule is not None
        assert rule.key == "ip"

    def test_a_request_without_an_address_is_an_error(self) -> None:
        with pytest.raises(ImproperlyConfigured, match="address"):
            stacked(get(REMOTE_ADDR=""))

    def test_a_header_without_an_address_is_an_error(self, settings: Any) -> None:
        settings.RATELIMIT_IP_META_KEY = "HTTP_X_CLIENT"
        with pytest.raises(ImproperlyConfigured) as raised:
            stacked(get(HTTP_X_CLIENT="not an address"))

        assert str(raised.value) == (
            "RATELIMIT_IP_META_KEY='HTTP_X_CLIENT' returned 'not an address', which is not an IP address."
        )

    def test_a_request_without_the_header_of_the_address_is_an_error(self, settings: Any) -> None:
        settings.RATELIMIT_IP_META_KEY = "HTTP_X_CLIENT"

        with pytest.raises(ImproperlyConfigured, match=r"returned '', which is not an IP address\.$"):
            stacked(get())

    def test_the_error_for_a_long_header_has_its_beginning(self, settings: Any) -> None:
        settings.RATELIMIT_IP_META_KEY = "HTTP_X_CLIENT"

        with pytest.raises(ImproperlyConfigured, match=f"returned '{'1' * 99}', which is not an IP address"):
            stacked(get(HTTP_X_CLIENT="1" * 5_000))

    def test_what_a_function_returns_is_stored_as_a_digest(self) -> None:
        request = get()

        soft(key=lambda group, request: "a secret")(request)

        assert re.fullmatch(r"ratelimit:[0-9a-f]{32}", request.quota.outcomes[0].subject)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("100/1h", "100/h"), ("100/60", "100/m"), ((5, 86_400), "5/d"), ([5, 7_200], "5/2h"), ("10/month", "10/m"),
        ("5/M", "5/s"), ("7/3", "7/3s"), ("7/", "7/s"), ("7/90s", "7/90s"), ("7/3m", "7/3m"), ("7/2d", "7/2d"),
    ],
)  # fmt: skip
def test_a_rate_is_read_by_its_first_letter(written: Any, read: str) -> None:
    """`test_their_tests.py` has the others."""
    assert str(read_rate(written)) == read


@pytest.mark.parametrize("rate", ["", "ten a minute", 5, (5,), "5/0s", (5, 1.5), "1/9999d"])
def test_the_error_for_a_wrong_rate_says_what_to_write(rate: Any) -> None:
    with pytest.raises(ImproperlyConfigured) as raised:
        read_rate(rate)

    assert str(raised.value) == f"{rate!r} is not a rate. Use, for example, '5/m', '100/h' or (5, 60)."


@pytest.mark.parametrize("rate", [of_the_group, f"{__name__}.of_the_group"], ids=["function", "path of a function"])
@pytest.mark.parametrize(
    ("group", "found"),
    [pytest.param("few", [False, True], id="a rate"), pytest.param("all", [False, False], id="unlimited")],
)
def test_a_function_says_the_rate_of_a_group(rate: Any, group: str, found: list[bool]) -> None:
    asked = [is_ratelimited(get(), group=group, key="ip", rate=rate, increment=True) for _ in range(2)]

    assert asked == found


def test_a_limit_without_a_group_or_a_view_is_an_error() -> None:
    with pytest.raises(ImproperlyConfigured) as raised:
        get_usage(get(), key="ip", rate="1/m")

    assert str(raised.value) == "A limit needs a group or the view that it is for: pass group= or fn=."


class TestWithoutTheStore:
    LIMIT = MappingProxyType({"group": "g", "key": "ip", "rate": "5/m"})

    def test_limits_close(self) -> None:
        with no_answer():
            assert limited_of(soft(), 1) == [True]

    def test_limits_open_if_the_site_says_so(self, settings: Any) -> None:
        settings.RATELIMIT_FAIL_OPEN = True

        with no_answer():
            assert limited_of(soft(), 2) == [False, False]

    def test_a_hit_that_is_let_through_has_no_usage(self, settings: Any) -> None:
        settings.RATELIMIT_FAIL_OPEN = True
        limit: Any = self.LIMIT

        with no_answer():
            assert get_usage(get(), **limit, increment=True) is None

    def test_a_hit_is_limited_for_an_unknown_time(self) -> None:
        limit: Any = self.LIMIT

        with no_answer():
            usage = get_usage(get(), **limit, increment=True)

        assert usage == {"count": 0, "limit": 0, "should_limit": True, "time_left": -1}

    @pytest.mark.parametrize("fails_open", [False, True])
    def test_a_look_is_not_limited(self, fails_open: bool, settings: Any) -> None:
        settings.RATELIMIT_FAIL_OPEN = fails_open
        limit: Any = self.LIMIT

        with no_answer():
            usage = get_usage(get(), **limit)

        assert usage == {"count": 0, "limit": 5, "should_limit": False, "time_left": -1}


class TestSwitchedOff:
    @pytest.fixture(autouse=True)
    def off(self, settings: Any) -> None:
        settings.RATELIMIT_ENABLE = False

    def test_no_request_is_limited(self) -> None:
        assert limited_of(soft(), 3) == [False] * 3

    def test_nothing_has_usage(self) -> None:
        assert get_usage(get(), group="g", key="ip", rate="5/m") is None


class TestSites:
    def test_a_refusal_is_a_403(self) -> None:
        assert [Client().get("/stacked/").status_code for _ in range(3)] == [200, 200, 403]

    def test_our_middleware_adds_headers(self, settings: Any) -> None:
        settings.MIDDLEWARE = ["django_quota.middleware.QuotaMiddleware"]

        reply = Client().get("/stacked/")

        assert reply.headers["RateLimit-Policy"] == '"ok 2/m";q=2;w=60, "ok 3/h";q=3;w=3600'

    def test_a_refusal_is_what_the_view_of_the_settings_answers(self, settings: Any) -> None:
        settings.MIDDLEWARE = ["django_quota.contrib.django_ratelimit.middleware.RatelimitMiddleware"]
        settings.RATELIMIT_VIEW = f"{__name__}.answer"

        *_, reply = [Client().get("/stacked/") for _ in range(3)]

        assert reply.status_code == 429
        assert reply.content == f"{__name__}.ok 2/m".encode()

    def test_the_middleware_answers_an_exception_that_the_site_derives(self, settings: Any) -> None:
        settings.RATELIMIT_VIEW = f"{__name__}.answer"
        error = Slow()
        error.decision = check("0/m", "ip:192.0.2.1", name="slow")

        reply = RatelimitMiddleware(ok).process_exception(get(), error)

        assert (reply.status_code, reply.content) == (429, b"slow")

    def test_the_middleware_leaves_other_errors_alone(self) -> None:
        assert RatelimitMiddleware(ok).process_exception(get(), PermissionDenied()) is None

    @pytest.mark.parametrize(
        ("url", "expected"),
        [
            pytest.param("/loop/", [200, 200, 403], id="an async function"),
            pytest.param("/page/", [200, 403, 403], id="a class"),
            pytest.param("/async-page/", [200, 403, 403], id="an async class"),
        ],
    )
    def test_views_are_limited_in_the_event_loop(self, url: str, expected: list[int]) -> None:
        replies = fetch("async", url, 3)

        assert [reply.status_code for reply in replies] == expected

    def test_the_limit_of_a_method_is_named_by_its_class(self) -> None:
        Client().get("/page/")

        assert peek("1/m", "ip:127.0.0.1", name=f"{__name__}.Page.get 1/m", algorithm="fixed_window").remaining == 0

    @pytest.mark.parametrize(
        "name",
        [
            pytest.param(f"{__name__}.ok 2/m", id="a function"),
            pytest.param("shop DELETE+PATCH+POST+PUT 2/m", id="a group with methods"),
            pytest.param(f"{__name__}.Page.get 1/m", id="a method of a class"),
        ],
    )
    def test_the_rules_of_views_are_known(self, name: str) -> None:
        assert name in known_rules()


@pytest.mark.parametrize("wrong", ["ten", of_the_group], ids=["a wrong rate", "a function"])
def test_a_rate_that_makes_no_rule_hides_no_rule_of_other_views(wrong: Any) -> None:
    views = [ratelimit(key="ip", rate=rate, group=group)(ok) for rate, group in ((wrong, "a"), ("7/m", "b"))]
    patterns = [path(f"{number}/", view) for number, view in enumerate(views)]

    assert [rule.name for rule in rules_of_ratelimits(patterns)] == ["b 7/m"]


def findings(settings: Any, *views: Any) -> dict[str, list[str]]:
    settings.ROOT_URLCONF = type("URLs", (), {"urlpatterns": [path(f"{id(view)}/", view) for view in views]})
    messages: dict[str, list[str]] = {}
    for each in run_checks(tags=["django_quota"]):
        messages.setdefault(str(each.id).removeprefix("django_quota."), []).append(f"{each.msg} {each.hint}")
    return messages


class TestChecks:
    def test_w024_a_rate_that_is_read_by_its_first_letter(self, settings: Any) -> None:
        (message,) = findings(settings, ratelimit(key="ip", rate="1/month", group="g")(ok))["W024"]

        assert message == (
            "@ratelimit of g reads rate='1/month' as 1 per minute, as django-ratelimit does. "
            "Write '1/m' if that is meant. For other windows, use @quota."
        )

    @pytest.mark.parametrize("rate", ["5/m", "10/60", (5, 60), None, of_the_group, f"{__name__}.of_the_group"])
    def test_a_rate_that_is_read_as_written_is_not_found(self, rate: Any, settings: Any) -> None:
        found = findings(settings, ratelimit(key="ip", rate=rate, group="g")(ok))

        assert not found.keys() & {"E025", "W024"}

    def test_the_limit_below_another_one_is_checked_too(self, settings: Any) -> None:
        both = ratelimit(key="ip", rate="1/m", group="g")(ratelimit(key="ip", rate="often", group="below")(ok))

        (message,) = findings(settings, both)["E025"]

        assert message.startswith("@ratelimit of below: 'often' is not a rate.")

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            pytest.param(
                {"key": None}, "@ratelimit has no key. Use, for example, key='ip' or key='user_or_ip'.", id="no key"
            ),
            pytest.param({"key": "ipp"}, "key='ipp' is not a key. Did you mean 'ip'?", id="an unknown key"),
            pytest.param({"key": "nowhere.key"}, "key='nowhere.key'", id="the path of no function"),
            pytest.param(
                {"rate": "often"}, "'often' is not a rate. Use, for example, '5/m', '100/h' or (5, 60).", id="no rate"
            ),
        ],
    )
    def test_e025_a_wrong_argument(self, given: dict[str, Any], says: str, settings: Any) -> None:
        (message,) = findings(settings, ratelimit(**{"key": "ip", "rate": "1/m", "group": "g", **given})(ok))["E025"]

        assert message.startswith(f"@ratelimit of g: {says}")

    def test_a_right_key_is_not_found(self, settings: Any) -> None:
        assert "E025" not in findings(settings, ratelimit(key="ip", rate="1/m", group="g")(ok))


class TestChecksOfWhatIsLeft:
    """A site that still has parts of django-ratelimit."""

    @pytest.fixture(autouse=True)
    def never_imported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [name for name in sys.modules if name.startswith("django_ratelimit")]:
            monkeypatch.delitem(sys.modules, name)

    @pytest.fixture
    def left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        left = SimpleNamespace(
            INSTALLED_APPS=["django.contrib.auth", "django_ratelimit"],
            MIDDLEWARE=["django_ratelimit.middleware.RatelimitMiddleware"],
            RATELIMIT_USE_CACHE="limits",
        )
        monkeypatch.setattr("django_quota.contrib.django_ratelimit.decorators.settings", left)
        monkeypatch.setitem(sys.modules, "django_ratelimit.core", sys)

    def test_a_site_that_has_moved_has_no_findings(self, settings: Any) -> None:
        assert not findings(settings, stacked).keys() & {"E025", "W024", "W025", "W026"}

    @pytest.mark.usefixtures("left")
    def test_w025_the_cache_of_django_ratelimit(self, settings: Any) -> None:
        (message,) = findings(settings, stacked)["W025"]

        assert message == (
            "RATELIMIT_USE_CACHE has no effect: django_quota counts. "
            'Remove it. QUOTA["CACHE"] names the cache alias of the Redis that counts.'
        )

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("RATELIMIT_CACHE_PREFIX", 'Remove it. QUOTA["PREFIX"] is the beginning of all keys.'),
            ("RATELIMIT_HASH_ALGORITHM", "Remove it. Secret values are stored as keyed digests."),
        ],
    )
    def test_w025_a_setting_that_is_not_read(self, name: str, hint: str, settings: Any) -> None:
        setattr(settings, name, "any")

        assert findings(settings, stacked)["W025"] == [f"{name} has no effect: django_quota counts. {hint}"]

    @pytest.mark.usefixtures("left")
    def test_w026_names_each_place(self, settings: Any) -> None:
        assert findings(settings, stacked)["W026"] == [
            f"{place} still uses django_ratelimit itself, which counts separately. "
            "Use django_quota.contrib.django_ratelimit everywhere; it needs no entry in INSTALLED_APPS."
            for place in ("MIDDLEWARE", "Some module", "INSTALLED_APPS")
        ]

    @pytest.mark.usefixtures("left")
    def test_w026_the_config_of_its_app_is_found(self, settings: Any) -> None:
        left: Any = import_module("django_quota.contrib.django_ratelimit.decorators").settings
        left.INSTALLED_APPS, left.MIDDLEWARE = ["django_ratelimit.apps.RatelimitConfig"], []

        words = [message.split()[0] for message in findings(settings, stacked)["W026"]]

        assert words == ["Some", "INSTALLED_APPS"]

    @pytest.mark.parametrize("module", ["django_ratelimit.core", "django_ratelimit.decorators"])
    def test_w026_each_module_that_counts_is_found(
        self, module: str, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, module, sys)

        assert [message.split()[:2] for message in findings(settings, stacked)["W026"]] == [["Some", "module"]]

    @pytest.mark.usefixtures("left")
    def test_a_site_without_our_decorator_has_no_findings(self, settings: Any) -> None:
        assert not findings(settings).keys() & {"W025", "W026"}


class TestThePageAboutOtherPackages:
    @pytest.fixture
    def names(self) -> dict[str, Any]:
        return run_page("docs/coming_from.md")

    def test_its_view_is_limited(self) -> None:
        with freeze(1_800_000_000_000_000):
            names = run_page("docs/coming_from.md")

            found = [names["search"](get()).status_code for _ in range(6)]

        assert found == [200] * 5 + [429]

    def test_its_setting_limits_logins(self, names: dict[str, Any]) -> None:
        with override_settings(QUOTA=names["QUOTA"]):
            rates = [str(rule.rates[0]) for rule in current().login]

        assert rates == ["5/10m", "100/h", "30/h"]

    def test_it_names_each_option_of_axes(self) -> None:
        source: Any = find_spec("axes.conf")
        options = re.findall(r"settings\.(AXES_\w+)|\"(AXES_\w+)\"", Path(source.origin).read_text())

        page = (ROOT / "docs/coming_from.md").read_text()

        assert {"".join(option) for option in options} <= set(re.findall(r"AXES_\w+", page))
