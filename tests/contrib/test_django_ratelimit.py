"""The drop-in for django-ratelimit: what it does better. `test_their_tests.py` runs its own tests."""

import asyncio
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_quota import peek
from django_quota.conf import current
from django_quota.contrib.django_ratelimit import UNSAFE
from django_quota.contrib.django_ratelimit.core import get_usage, is_ratelimited, read_rate
from django_quota.contrib.django_ratelimit.decorators import ratelimit
from django_quota.contrib.django_ratelimit.exceptions import Ratelimited
from django_quota.limiting.known_rules import known_rules
from django_quota.testing import freeze
from tests.support.calls import calls_of, get
from tests.support.commands import ROOT
from tests.support.outages import no_answer
from tests.support.pages import run_page

pytestmark = pytest.mark.usefixtures("memory_store")


def ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


async def async_ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


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


class TestDecisions:
    def test_stacked_decorators_are_one_call_and_a_refused_request_counts_in_none(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        request = get()
        stacked(request)
        assert [outcome.remaining for outcome in request.quota.outcomes] == [1, 2]
        calls = calls_of(monkeypatch)
        stacked(get())
        for _ in range(5):
            with pytest.raises(PermissionDenied) as refused:
                stacked(get())
        assert len(calls) == 6
        assert isinstance(refused.value, Ratelimited)
        assert refused.value.decision is not None
        assert refused.value.decision.retry_after == pytest.approx(60, abs=5)
        usage: Any = get_usage(get(), fn=stacked, key="ip", rate="3/h")
        assert usage["count"] == 2

    def test_decorators_that_block_and_those_that_do_not_decide_apart(self) -> None:
        both = ratelimit(key="ip", rate="2/m", group="hard")(soft(rate="1/h"))
        assert limited_of(both, 2) == [False, True]
        with pytest.raises(Ratelimited):
            both(get())

    def test_a_stand_in_for_a_request_needs_only_meta_and_method(self) -> None:
        stand_in = SimpleNamespace(META={"REMOTE_ADDR": "203.0.113.9"}, method="GET")
        found = [is_ratelimited(stand_in, group="bare", key="ip", rate="2/m", increment=True) for _ in range(3)]
        assert found == [False, False, True]

    def test_a_look_says_what_a_hit_would_find_and_after_a_count_what_that_found(self) -> None:
        """So a page that looks first and counts failures allows five under 5/m. django-ratelimit allows six."""
        assert get_usage(get(), group="posted", key="ip", rate="1/m", method="POST") is None
        limit: dict[str, Any] = {"group": "login", "key": "ip", "rate": "5/m"}
        failures = 0
        while not is_ratelimited(get(), **limit):
            assert not is_ratelimited(get(), **limit, increment=True)
            failures += 1
        assert failures == 5
        limit = {"group": "soft", "key": "ip", "rate": "2/m"}
        view: Any = ratelimit(**limit, block=False)(lambda request: get_usage(request, **limit))
        found = [view(get()) for _ in range(4)]
        assert [usage["count"] for usage in found] == [1, 2, 3, 3]
        assert [usage["should_limit"] for usage in found] == [False, False, True, True]
        assert all(0 < usage["time_left"] <= 60 for usage in found)
        request, other = get(), {**limit, "group": "other"}
        counts: list[Any] = [get_usage(request, **other, increment=True) for _ in range(2)]
        assert [usage["count"] for usage in (*counts, get_usage(request, **other))] == [1, 2, 2]


class TestWhoIsLimited:
    def test_anonymous_visitors_count_by_address_not_together(self) -> None:
        def post(address: str, user: Any) -> HttpResponse:
            request = get("post", REMOTE_ADDR=address)
            request.user = user
            return by_user(request)

        for address in ("192.0.2.1", "192.0.2.2"):
            assert [post(address, AnonymousUser()).status_code for _ in range(2)] == [200, 200]
            with pytest.raises(Ratelimited):
                post(address, AnonymousUser())
        assert post("192.0.2.1", User(pk=7)).status_code == 200
        assert peek("2/m", "user:7", name="shop DELETE+PATCH+POST+PUT 2/m", algorithm="fixed_window").remaining == 1

    @pytest.mark.parametrize("key", ["header:x-key", "get:q"])
    def test_a_field_counts_by_its_value_or_else_by_address(self, key: str) -> None:
        view = soft(key=key)
        assert limited_of(view, 2) == [False, True]
        assert limited_of(view, 1, REMOTE_ADDR="192.0.2.2") == [False]
        assert limited_of(view, 1, HTTP_X_KEY="k", QUERY_STRING="q=1") == [False]

    @pytest.mark.parametrize(
        ("given", "address", "subject"),
        [
            ({}, "2001:db8::1", "ip:2001:db8::/64"),
            ({"RATELIMIT_IPV4_MASK": 24}, "192.0.2.1", "network:192.0.2.0/24"),
            ({"RATELIMIT_IPV6_MASK": 128}, "2001:db8::1", "network:2001:db8::1"),
            ({"RATELIMIT_IP_META_KEY": "HTTP_X_CLIENT"}, "198.51.100.1", "ip:203.0.113.9"),
            ({"RATELIMIT_IP_META_KEY": lambda request: "203.0.113.8"}, "198.51.100.1", "ip:203.0.113.8"),
            ({"RATELIMIT_IP_META_KEY": lambda request: "203.0.113.8:4711"}, "198.51.100.1", "ip:203.0.113.8"),
            ({"QUOTA": {"STORE": "memory", "TRUSTED_PROXIES": ["192.0.2.0/24"]}}, "192.0.2.1", "ip:203.0.113.7"),
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

    def test_a_header_without_an_address_is_an_error(self, settings: Any) -> None:
        settings.RATELIMIT_IP_META_KEY = "HTTP_X_CLIENT"
        with pytest.raises(
            ImproperlyConfigured, match=r"RATELIMIT_IP_META_KEY='HTTP_X_CLIENT' returned .* not an IP address"
        ):
            stacked(get(HTTP_X_CLIENT="not an address"))

    def test_what_a_function_returns_is_stored_as_a_digest(self) -> None:
        request = get()
        soft(key=lambda group, request: "a secret")(request)
        assert re.fullmatch(r"ratelimit:[0-9a-f]{32}", request.quota.outcomes[0].subject)


def test_a_rate_is_read_by_its_first_letter_and_a_wrong_one_says_what_to_write() -> None:
    """`test_their_tests.py` has the others."""
    given = ("100/1h", "100/60", (5, 86_400), "10/month", "5/M")
    assert [str(read_rate(rate)) for rate in given] == ["100/h", "100/m", "5/d", "10/m", "5/s"]
    for wrong in ("", "ten a minute", 5, (5,), "5/0s", (5, 1.5), "1/9999d"):
        with pytest.raises(ImproperlyConfigured, match=r"is not a rate\. Use, for example, '5/m'"):
            read_rate(wrong)


def test_without_the_store_limits_close_unless_the_site_says_otherwise(settings: Any) -> None:
    limit: dict[str, Any] = {"group": "g", "key": "ip", "rate": "5/m"}
    with no_answer():
        assert limited_of(soft(), 1) == [True]
        unknown: Any = {"count": 0, "limit": 0, "should_limit": True, "time_left": -1}
        assert get_usage(get(), **limit, increment=True) == unknown
        assert get_usage(get(), **limit) == {**unknown, "limit": 5, "should_limit": False}
        settings.RATELIMIT_FAIL_OPEN = True
        assert limited_of(soft(), 1) == [False]
    settings.RATELIMIT_ENABLE = False
    assert limited_of(soft(), 3) == [False] * 3
    assert get_usage(get(), **limit) is None


class TestSites:
    def test_a_refusal_is_a_403_or_what_the_view_of_the_settings_answers(self, settings: Any) -> None:
        settings.MIDDLEWARE = ["django_quota.middleware.QuotaMiddleware"]
        replies = [Client().get("/stacked/") for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200, 200, 403]
        assert replies[0].headers["RateLimit-Policy"] == '"ok 2/m";q=2;w=60, "ok 3/h";q=3;w=3600'
        settings.MIDDLEWARE = ["django_quota.contrib.django_ratelimit.middleware.RatelimitMiddleware"]
        settings.RATELIMIT_VIEW = f"{__name__}.answer"
        reply = Client().get("/stacked/")
        assert (reply.status_code, reply.content) == (429, f"{__name__}.ok 2/m".encode())

    def test_class_based_and_async_views_are_limited_and_their_rules_known(self) -> None:
        async def ask(route: str) -> list[int]:
            client = AsyncClient()
            return [(await client.get(route)).status_code for _ in range(3)]

        assert asyncio.run(ask("/loop/")) == [200, 200, 403]
        assert asyncio.run(ask("/async-page/")) == asyncio.run(ask("/page/")) == [200, 403, 403]
        assert peek("1/m", "ip:127.0.0.1", name=f"{__name__}.Page.get 1/m", algorithm="fixed_window").remaining == 0
        names = {f"{__name__}.ok 2/m", "shop DELETE+PATCH+POST+PUT 2/m", f"{__name__}.Page.get 1/m"}
        assert names <= set(known_rules())


class TestChecks:
    def found(self, settings: Any, *views: Any) -> dict[str, list[str]]:
        settings.ROOT_URLCONF = type("URLs", (), {"urlpatterns": [path(f"{id(view)}/", view) for view in views]})
        messages: dict[str, list[str]] = {}
        for each in run_checks(tags=["django_quota"]):
            messages.setdefault(str(each.id).removeprefix("django_quota."), []).append(f"{each.msg} {each.hint}")
        return messages

    def test_w024_a_rate_that_is_read_by_its_first_letter_and_e025_a_wrong_key(self, settings: Any) -> None:
        given = [("ip", "1/month"), ("ip", "5/m"), ("ip", "10/60"), (None, "1/m"), ("ipp", "1/m")]
        found = self.found(settings, *(ratelimit(key=key, rate=rate, group="g")(ok) for key, rate in given))
        (message,) = found["W024"]
        assert message.startswith("@ratelimit of g reads rate='1/month' as 1 per minute, as django-ratelimit does.")
        assert [message.startswith("@ratelimit of g: ") for message in found["E025"]] == [True, True]

    def test_w025_and_w026_what_is_left_of_django_ratelimit(self, settings: Any, monkeypatch: Any) -> None:
        for name in [name for name in sys.modules if name.startswith("django_ratelimit")]:
            monkeypatch.delitem(sys.modules, name)
        assert not self.found(settings, stacked).keys() & {"E025", "W024", "W025", "W026"}
        left = SimpleNamespace(
            INSTALLED_APPS=["django_ratelimit"],
            MIDDLEWARE=["django_ratelimit.middleware.RatelimitMiddleware"],
            RATELIMIT_USE_CACHE="limits",
        )
        monkeypatch.setattr("django_quota.contrib.django_ratelimit.checks.settings", left)
        monkeypatch.setitem(sys.modules, "django_ratelimit.core", sys)
        found = self.found(settings, stacked)
        assert ['QUOTA["CACHE"]' in message for message in found["W025"]] == [True]
        assert [message.split()[0] for message in found["W026"]] == ["MIDDLEWARE", "Some", "INSTALLED_APPS"]
        assert not self.found(settings).keys() & {"W025", "W026"}


def test_the_page_about_other_packages_runs_and_names_each_option_of_axes() -> None:
    with freeze(1_800_000_000_000_000):
        names = run_page("docs/coming_from.md")
        assert [names["search"](get()).status_code for _ in range(6)] == [200] * 5 + [429]
    with override_settings(QUOTA=names["QUOTA"]):
        assert [str(rule.rates[0]) for rule in current().login] == ["5/10m", "100/h", "30/h"]
    source: Any = find_spec("axes.conf")
    options = set(re.findall(r"settings\.(AXES_\w+)|\"(AXES_\w+)\"", Path(source.origin).read_text()))
    page = (ROOT / "docs/coming_from.md").read_text()
    assert {"".join(option) for option in options} <= set(re.findall(r"AXES_\w+", page))
