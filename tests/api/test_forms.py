"""Rules by a field of a form: its body is read when the other rules have allowed, and all of them stay one decision."""

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

from django_quota import Decision, Rule, check, peek, quota
from django_quota.adapters import adecide, decide
from django_quota.testing import clear, freeze
from tests.support.calls import both, calls_of
from tests.support.inputs import inputs
from tests.support.steps import ALGORITHMS, SECOND, START


def posted(phone: str = "1", ip: str = "192.0.2.1") -> HttpRequest:
    """A request whose body nobody has read."""
    return RequestFactory().post("/", {"phone": phone}, REMOTE_ADDR=ip)


FORM = "application/x-www-form-urlencoded"


def read(request: HttpRequest) -> HttpRequest:
    """The same request, its body read."""
    assert request.POST
    return request


BY_IP = Rule.make("by-ip", "3/m", key="ip")
BY_PHONE = Rule.make("by-phone", "1/m", key="post:phone")


@pytest.mark.usefixtures("memory_store")
class TestReading:
    @pytest.mark.parametrize("key", ["post:phone", ("ip", ("path", "post:phone"))])
    @pytest.mark.parametrize("first", [0, 1])
    def test_who_is_refused_by_another_rule_has_no_body_read(self, key: Any, first: int) -> None:
        rules = [Rule.make("by-phone", "9/m", key=key), Rule.make("by-ip", "1/m", key="ip")]
        assert decide(posted(), rules[::-1] if first else rules).allowed
        for refused in (posted(), posted("2")):
            assert not decide(refused, rules).allowed
            assert not hasattr(refused, "_post")

    def test_a_rule_that_only_reports_lets_the_body_be_read_and_gives_nothing_back(self) -> None:
        rules = [Rule.make("shadow", "0/m", shadow=True), Rule.make("soft", "0/m", block=False), BY_PHONE]
        decision = decide(posted(), rules)
        assert [outcome.rule for outcome in decision.outcomes] == ["shadow", "soft", "by-phone"]
        assert not decision.enforced
        rules = [BY_IP, Rule.make("soft-form", "0/m", key="post:phone", block=False)]
        for left in (2, 1, 0):
            decision = decide(posted(), rules)
            assert ([outcome.remaining for outcome in decision.outcomes], decision.enforced) == ([left, 0], False)


class TestAllOrNothing:
    @both
    @pytest.mark.usefixtures("memory_store")
    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_what_the_form_refuses_costs_no_other_rule_anything(self, algorithm: Any, kind: str) -> None:
        def decided() -> Decision:
            rules = [BY_PHONE, *others, refusing]
            return decide(posted(), rules) if kind == "sync" else asyncio.run(adecide(posted(), rules))

        refusing = Rule.make("refusing", "9/m", key="ip", count_refused=True)
        others = [
            Rule.make("by-ip", "9/m", "20/h", key="ip", algorithm=algorithm),
            Rule.make("all", "9/m", key="global", algorithm=algorithm),
        ]
        with freeze(START):
            assert decided().allowed
        with freeze(START + SECOND):
            before = [peek(rule, posted()).outcomes for rule in others]
            for number in range(3):
                decision = decided()
                assert (decision.allowed, decision.rule) == (False, "by-phone")
                assert [peek(rule, posted()).outcomes for rule in others] == before
                assert peek(refusing, posted()).remaining == 7 - number  # which counts refused requests
            by_rule = {outcome.rule: outcome.remaining for outcome in decision.outcomes}
            assert by_rule.items() >= {outcome.rule: outcome.remaining for found in before for outcome in found}.items()

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
        clear()
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
    two, make = [BY_IP, BY_PHONE], RequestFactory()
    for rules, request, expected in (
        (two, make.get("/"), 1),
        (two, read(posted("2")), 1),
        ([BY_IP], posted(), 1),
        ([BY_PHONE], posted("3"), 1),
        (two, posted("4", "192.0.2.4"), 2),
        (two, posted("4", "192.0.2.4"), 3),  # refused, and given back
        ([Rule.make("none", "0/m"), BY_PHONE], posted("5"), 1),
        ([Rule.make("unlimited", None), BY_PHONE], posted("6"), 1),
        (two, make.put("/", "phone=7", FORM, REMOTE_ADDR="192.0.2.7"), 1),
        (two, make.delete("/", REMOTE_ADDR="192.0.2.8"), 1),
        (two, make.post("/", {}, "application/json", REMOTE_ADDR="192.0.2.9"), 1),
    ):
        calls.clear()
        decide(request, rules)
        assert len(calls) == expected


@both
@pytest.mark.usefixtures("memory_store")
def test_above_the_csrf_middleware_the_body_is_read_in_a_thread_and_not_of_who_is_refused(
    kind: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["django_quota.middleware.QuotaMiddleware", "django.middleware.csrf.CsrfViewMiddleware"]
    by_ip, by_phone = ({"rate": rate, "key": key, "match": "/"} for rate, key in (("1/m", "ip"), ("9/m", "post:phone")))
    settings.QUOTA = {"STORE": "memory", "RULES": {"by-ip": by_ip, "by-phone": by_phone}}
    readers: list[threading.Thread] = []
    loops: list[threading.Thread] = []
    real = HttpRequest._load_post_and_files

    def noted(request: HttpRequest) -> None:
        readers.append(threading.current_thread())
        real(request)

    monkeypatch.setattr(HttpRequest, "_load_post_and_files", noted)
    client: Any = (Client if kind == "sync" else AsyncClient)(enforce_csrf_checks=True)
    client.cookies["csrftoken"] = "a" * 32
    post = partial(client.post, "/plain-with-token/", {"phone": "1", "csrfmiddlewaretoken": "a" * 32})

    async def apost() -> Any:
        loops.append(threading.current_thread())
        return await post()

    replies = [post() if kind == "sync" else asyncio.run(apost()) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 429, 429]
    assert (len(readers), set(readers) & set(loops)) == (1, set())


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.POST.get("phone", ""))


async def plain_async(request: HttpRequest) -> HttpResponse:
    return plain(request)


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
@pytest.mark.parametrize("kind", ["post", "get"])
@pytest.mark.parametrize(
    ("values", "different"),
    [
        (SAME, 1), (["Zoë", "zoe\u0308", "ZOË"], 1), (["strasse", "straße"], 1), (["zoe", "zoë"], 2),
        (["", " ", "\t\xa0"], 0), ([" " + "a" * 2_000, "a" * 2_000, "A" * 2_000], 2),  # a long one is stripped alone
    ],
)  # fmt: skip
def test_another_spelling_is_the_same_value_and_blanks_are_none(kind: str, values: list[str], different: int) -> None:
    requests = [getattr(RequestFactory(), kind)("/", {"email": value}) for value in values]
    found = {check("99/m", request, key=f"{kind}:email").subject for request in requests}
    assert len(found - {"ip:127.0.0.1"}) == different
