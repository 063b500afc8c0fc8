"""Rules by a field of a form: its body is read when the other rules have allowed, and all of them stay one decision."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from django_quota import Decision, Rule, acheck, check, peek, quota, reset
from django_quota.adapters import adecide, decide
from django_quota.testing import freeze
from tests.support.calls import calls_of
from tests.support.inputs import inputs
from tests.support.steps import START

SECOND = 1_000_000


def posted(phone: str = "1", ip: str = "192.0.2.1") -> HttpRequest:
    """A request whose body nobody has read."""
    return RequestFactory().post("/", {"phone": phone}, REMOTE_ADDR=ip)


def read(request: HttpRequest) -> HttpRequest:
    """The same request, its body read."""
    assert request.POST
    return request


def is_read(request: HttpRequest) -> bool:
    return hasattr(request, "_post")


BY_IP = Rule.make("by-ip", "3/m", key="ip")
BY_PHONE = Rule.make("by-phone", "1/m", key="post:phone")


@pytest.mark.usefixtures("memory_store")
class TestReading:
    @pytest.mark.parametrize("key", ["post:phone", ("ip", "post:phone"), ("ip", ("path", "post:phone"))])
    @pytest.mark.parametrize("first", [0, 1])
    def test_who_is_refused_by_another_rule_has_no_body_read(self, key: Any, first: int) -> None:
        rules = [Rule.make("by-phone", "9/m", key=key), Rule.make("by-ip", "1/m", key="ip")]
        assert decide(posted(), rules[::-1] if first else rules).allowed
        for refused in (posted(), posted("2")):
            assert not decide(refused, rules).allowed
            assert not is_read(refused)

    def test_a_rule_that_only_reports_lets_the_body_be_read_and_gives_nothing_back(self) -> None:
        rules = [Rule.make("shadow", "0/m", shadow=True), Rule.make("soft", "0/m", block=False), BY_PHONE]
        request = posted()
        decision = decide(request, rules)
        assert [outcome.rule for outcome in decision.outcomes] == ["shadow", "soft", "by-phone"]
        assert (decision.enforced, is_read(request)) == (False, True)
        rules = [BY_IP, Rule.make("soft-form", "0/m", key="post:phone", block=False)]
        for left in (2, 1, 0):
            decision = decide(posted(), rules)
            assert ([outcome.remaining for outcome in decision.outcomes], decision.enforced) == ([left, 0], False)

    def test_under_async_a_thread_reads_it_and_the_loop_goes_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        readers: list[threading.Thread] = []
        real = HttpRequest._load_post_and_files

        def noted(request: HttpRequest) -> None:
            readers.append(threading.current_thread())
            real(request)

        monkeypatch.setattr(HttpRequest, "_load_post_and_files", noted)

        async def play() -> threading.Thread:
            for rules in ([BY_IP, BY_PHONE], [BY_PHONE]):
                await adecide(posted(), rules)
            await acheck("1/m", posted(), key="post:phone")
            return threading.current_thread()

        loop = asyncio.run(play())
        assert len(readers) == 3
        assert loop not in readers


class TestAllOrNothing:
    @pytest.mark.usefixtures("memory_store")
    @pytest.mark.parametrize("kind", ["sync", "async"])
    @pytest.mark.parametrize(
        "algorithm", ["sliding_window", "fixed_window", "calendar", "token_bucket", "leaky_bucket"]
    )
    def test_what_the_form_refuses_costs_no_other_rule_anything(self, algorithm: str, kind: str) -> None:
        rules = [
            BY_PHONE,
            Rule.make("by-ip", "9/m", "20/h", key="ip", algorithm=algorithm),
            Rule.make("all", "9/m", key="global", algorithm=algorithm),
        ]
        with freeze(START):
            assert decided(kind, rules, posted()).allowed
        with freeze(START + SECOND):
            before = [peek(rule, posted()).outcomes for rule in rules]
            for _ in range(3):
                decision = decided(kind, rules, posted())
                assert (decision.allowed, decision.rule) == (False, "by-phone")
                assert [peek(rule, posted()).outcomes for rule in rules] == before
            by_rule = {outcome.rule: outcome.remaining for outcome in decision.outcomes}
            assert by_rule == {outcome.rule: outcome.remaining for found in before for outcome in found}

    @pytest.mark.usefixtures("memory_store")
    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_a_rule_that_counts_refused_requests_keeps_those_that_the_form_refused(self, kind: str) -> None:
        by_ip = Rule.make("by-ip", "9/m", key="ip", count_refused=True)
        with freeze(START):
            assert [decided(kind, [by_ip, BY_PHONE], posted()).allowed for _ in range(3)] == [True, False, False]
            assert peek(by_ip, posted()).remaining == 6

    @pytest.mark.usefixtures("memory_store")
    @inputs(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        st.lists(st.tuples(st.sampled_from("12"), st.sampled_from("12"), st.integers(0, 25)), max_size=25),
        st.sampled_from(["sliding_window", "fixed_window", "token_bucket", "leaky_bucket"]),
    )
    def test_it_decides_as_one_call_would(self, hits: list[tuple[str, str, int]], algorithm: str) -> None:
        def rules(name: str) -> list[Rule]:
            return [
                Rule.make(f"{name}-phone", "2/m", key="post:phone", algorithm=algorithm),
                Rule.make(f"{name}-ip", "3/m", key="ip", algorithm=algorithm, ban={"after": "3/m", "for": "30s"}),
                Rule.make(f"{name}-all", "7/m", key="global"),
            ]

        now = START
        apart, at_once = rules("a"), rules("b")
        for rule in (*apart, *at_once):
            forget(rule)
        for phone, ip, later in hits:
            now += later * SECOND
            with freeze(now):
                request = posted(phone, f"192.0.2.{ip}")
                one, other = (decide(request, apart), decide(read(posted(phone, f"192.0.2.{ip}")), at_once))
            assert one.allowed is other.allowed
            found = {outcome.rule[1:]: outcome.remaining for outcome in one.outcomes}
            expected = {outcome.rule[1:]: outcome.remaining for outcome in other.outcomes}
            assert found.items() <= expected.items()


@pytest.mark.usefixtures("memory_store")
def test_one_call_where_no_form_is_to_be_read_and_two_where_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = calls_of(monkeypatch)
    both, make = [BY_IP, BY_PHONE], RequestFactory()
    for rules, request, expected in (
        (both, make.get("/"), 1),
        (both, read(posted("2")), 1),
        ([BY_IP], posted(), 1),
        ([BY_PHONE], posted("3"), 1),
        (both, posted("4", "192.0.2.4"), 2),
        (both, posted("4", "192.0.2.4"), 3),  # refused, and given back
        ([Rule.make("none", "0/m"), BY_PHONE], posted("5"), 1),
        ([Rule.make("unlimited", None), BY_PHONE], posted("6"), 1),
        (both, make.put("/", "phone=7", FORM, REMOTE_ADDR="192.0.2.7"), 1),
        (both, make.delete("/", REMOTE_ADDR="192.0.2.8"), 1),
        (both, make.post("/", {}, "application/json", REMOTE_ADDR="192.0.2.9"), 1),
    ):
        calls.clear()
        decide(request, rules)
        assert len(calls) == expected


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_above_the_csrf_middleware_the_body_of_a_refused_request_is_not_read(
    kind: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["django_quota.middleware.QuotaMiddleware", "django.middleware.csrf.CsrfViewMiddleware"]
    settings.QUOTA = {
        "STORE": "memory",
        "RULES": {
            "by-ip": {"rate": "1/m", "key": "ip", "match": "/"},
            "by-phone": {"rate": "9/m", "key": "post:phone", "match": "/"},
        },
    }
    loads: list[str] = []
    real = HttpRequest._load_post_and_files

    def noted(request: HttpRequest) -> None:
        loads.append("read")
        real(request)

    monkeypatch.setattr(HttpRequest, "_load_post_and_files", noted)
    client: Any = (Client if kind == "sync" else AsyncClient)(enforce_csrf_checks=True)
    client.cookies["csrftoken"] = "a" * 32

    post = partial(client.post, "/plain-with-token/", {"phone": "1", "csrfmiddlewaretoken": "a" * 32})

    async def apost() -> Any:
        return await post()

    replies = [post() if kind == "sync" else asyncio.run(apost()) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 429, 429]
    assert loads == ["read"]


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.POST.get("phone", ""))


async def plain_async(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.POST.get("phone", ""))


def limited(view: Callable[..., Any], name: str) -> Callable[..., Any]:
    for key in ("post:phone", "ip"):
        view = quota("9/m", key=key, name=f"{name}-{key}")(view)
    return csrf_exempt(view)


urlpatterns = [
    path("plain/", csrf_exempt(plain)),
    path("plain-with-token/", plain),
    path("limited/", limited(plain, "limited")),
    path("limited-async/", limited(plain_async, "limited-async")),
]

FORM = "application/x-www-form-urlencoded"


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("middleware", [[], ["django_quota.middleware.QuotaMiddleware"]])
@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"phone=" + b"1" * 500, FORM), (b"&".join([b"a=1"] * 30), FORM), (b"--x\r\nbroken", "multipart/form-data")],
)
def test_a_body_that_django_refuses_is_refused_as_ever_and_counted(
    body: bytes, kind: str, middleware: list[str], settings: Any
) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = middleware
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 20
    given: Any = {"data": body, "content_type": kind}
    expected = Client().post("/plain/", **given).status_code
    assert 400 <= expected < 500

    async def ask() -> int:
        return (await AsyncClient().post("/limited-async/", **given)).status_code

    assert Client().post("/limited/", **given).status_code == expected
    assert asyncio.run(ask()) == expected
    for name in ("limited", "limited-async"):
        assert peek("9/m", "ip:127.0.0.1", name=f"{name}-ip").remaining == 8


SAME = [
    "ann@example.org", " ann@example.org", "ann@example.org \t\n", "\u3000ann@example.org\xa0", "Ann@Example.ORG",
    "\uff41nn@example.org", "ann@example\uff0eorg",
]  # fmt: skip


@pytest.mark.usefixtures("memory_store")
class TestValues:
    @pytest.mark.parametrize("kind", ["post", "get"])
    @pytest.mark.parametrize(
        ("values", "different"),
        [(SAME, 1), (["Zoë", "zoe\u0308", "ZOË"], 1), (["strasse", "straße"], 1), (["zoe", "zoë"], 2)],
    )
    def test_another_spelling_is_the_same_value(self, kind: str, values: list[str], different: int) -> None:
        requests = [getattr(RequestFactory(), kind)("/", {"email": value}) for value in values]
        assert len({check("99/m", request, key=f"{kind}:email").subject for request in requests}) == different

    def test_blanks_alone_are_no_value(self) -> None:
        for value in ("", " ", "\t\xa0"):
            request = RequestFactory().post("/", {"email": value}, REMOTE_ADDR="192.0.2.1")
            assert check("99/m", request, key="post:email").subject == "ip:192.0.2.1"

    def test_a_long_value_is_stripped_and_no_more(self) -> None:
        values = ("A" * 2_000, "a" * 2_000, " " + "a" * 2_000)
        subjects = [check("99/m", RequestFactory().post("/", {"x": value}), key="post:x").subject for value in values]
        assert subjects[0] != subjects[1] == subjects[2]


def decided(kind: str, rules: list[Rule], request: HttpRequest) -> Decision:
    return decide(request, rules) if kind == "sync" else asyncio.run(adecide(request, rules))


def forget(rule: Rule) -> None:
    """Forget what a rule has counted of the requests here."""
    for phone in "12":
        for ip in "12":
            reset(rule, read(posted(phone, f"192.0.2.{ip}")))
