"""Rules by a field of a form or of a JSON body: which values count, and when a body is read or refused."""

import asyncio
import json
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.core.exceptions import BadRequest, RequestDataTooBig
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, AsyncRequestFactory, Client, RequestFactory
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from django_quota import Decision, Rule, acheck, check, peek, quota
from django_quota.adapters import adecide, decide
from django_quota.exceptions import ConfigurationError
from django_quota.testing import clear, freeze
from tests.support.calls import asubject_of, both, calls_of, subject_of
from tests.support.inputs import inputs
from tests.support.steps import ALGORITHMS, SECOND, START

pytestmark = pytest.mark.usefixtures("memory_store")

IP = "ip:192.0.2.1"
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=x"
BY_IP = Rule.make("by-ip", "3/m", key="ip")
BY_PHONE = Rule.make("by-phone", "1/m", key="post:phone")
BY_JSON = Rule.make("by-json", "1/m", key="json:phone")


def posted(phone: str = "1", ip: str = "192.0.2.1") -> HttpRequest:
    """A form that nobody has read."""
    return RequestFactory().post("/", {"phone": phone}, REMOTE_ADDR=ip)


def read(request: HttpRequest) -> HttpRequest:
    """The same request, its form read."""
    assert request.POST
    return request


def sent(body: Any, content_type: str = JSON, method: str = "post") -> HttpRequest:
    """Return a request with this body, which nobody has read; what is neither text nor bytes is sent as JSON."""
    data = body if isinstance(body, (str, bytes)) else json.dumps(body)
    make = getattr(RequestFactory(), method)
    return make("/", data=data, content_type=content_type, REMOTE_ADDR="192.0.2.1")  # type: ignore[no-any-return]


def subject(request: HttpRequest, key: str = "json:phone") -> str:
    return subject_of(key, request)


def of_phone(value: object) -> str:
    return subject(sent({"phone": value}))


@pytest.mark.parametrize("key", ["post:phone", ("ip", ("path", "post:phone"))])
def test_who_is_refused_by_another_rule_has_no_body_read(key: Any) -> None:
    rules = [Rule.make("by-phone", "9/m", key=key), Rule.make("by-ip", "1/m", key="ip")]
    assert decide(posted(), rules).allowed
    for refused, order in ((posted(), 1), (posted("2"), -1)):
        assert not decide(refused, rules[::order]).allowed
        assert not hasattr(refused, "_post")


def test_a_rule_that_only_reports_lets_the_body_be_read_and_gives_nothing_back() -> None:
    rules = [Rule.make("shadow", "0/m", shadow=True), Rule.make("soft", "0/m", block=False), BY_PHONE]
    decision = decide(posted(), rules)
    assert [outcome.rule for outcome in decision.outcomes] == ["shadow", "soft", "by-phone"]
    assert not decision.enforced
    rules = [BY_IP, Rule.make("soft-form", "0/m", key="post:phone", block=False)]
    for left in (2, 1, 0):
        decision = decide(posted(), rules)
        assert ([outcome.remaining for outcome in decision.outcomes], decision.enforced) == ([left, 0], False)


@inputs(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["sync", "async"]),
    st.lists(st.tuples(st.sampled_from("12"), st.sampled_from("12"), st.integers(0, 25)), max_size=25),
    st.sampled_from(ALGORITHMS),
)
def test_what_the_form_refuses_costs_no_other_rule_anything(kind: str, hits: Any, algorithm: Any) -> None:
    def rules(name: str) -> list[Rule]:
        return [
            Rule.make(f"{name}-phone", "2/m", key="post:phone", algorithm=algorithm),
            Rule.make(f"{name}-ip", "3/m", "6/h", key="ip", algorithm=algorithm, ban={"after": "3/m", "for": "30s"}),
            Rule.make(f"{name}-all", "7/m", key="global", count_refused=True),
        ]

    def decided(request: HttpRequest, rules: list[Rule]) -> Decision:
        return decide(request, rules) if kind == "sync" else asyncio.run(adecide(request, rules))

    now, apart, at_once = START, rules("a"), rules("b")
    clear()
    for phone, ip, later in hits:
        now += later * SECOND
        with freeze(now):
            one = decided(posted(phone, f"192.0.2.{ip}"), apart)
            other = decided(read(posted(phone, f"192.0.2.{ip}")), at_once)
            for mine, same in zip(apart, at_once, strict=True):
                request = read(posted(phone, f"192.0.2.{ip}"))
                assert peek(mine, request).used == peek(same, request).used
        assert one.allowed is other.allowed
        found = {outcome.rule[1:]: outcome.remaining for outcome in one.outcomes}
        assert found.items() <= {outcome.rule[1:]: outcome.remaining for outcome in other.outcomes}.items()


def test_one_call_where_no_form_is_to_be_read_and_two_where_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = calls_of(monkeypatch)
    two, make = [BY_IP, BY_PHONE], RequestFactory()
    for rules, request, expected in (
        (two, make.get("/"), 1), (two, read(posted("2")), 1), ([BY_IP], posted(), 1), ([BY_PHONE], posted("3"), 1),
        (two, posted("4", "192.0.2.4"), 2),
        (two, posted("4", "192.0.2.4"), 3),  # refused, and given back
        ([Rule.make("none", "0/m"), BY_PHONE], posted("5"), 1),
        ([Rule.make("unlimited", None), BY_PHONE], posted("6"), 1),
        (two, make.put("/", "phone=7", FORM, REMOTE_ADDR="192.0.2.7"), 1),
        (two, make.post("/", {}, JSON, REMOTE_ADDR="192.0.2.9"), 1),
    ):  # fmt: skip
        calls.clear()
        decide(request, rules)
        assert len(calls) == expected


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.POST.get("phone", ""))


async def plain_async(request: HttpRequest) -> HttpResponse:
    return plain(request)


def limited(view: Callable[..., Any], name: str) -> Callable[..., Any]:
    for key in ("post:phone", "ip"):
        view = quota("9/m", key=key, name=f"{name}-{key}")(view)
    return csrf_exempt(view)


urlpatterns = [
    path("plain/", csrf_exempt(plain)), path("plain-with-token/", plain),
    path("sync/", limited(plain, "sync")), path("async/", limited(plain_async, "async")),
]  # fmt: skip
OURS = "django_quota.middleware.QuotaMiddleware"


@both
def test_above_the_csrf_middleware_a_thread_reads_the_body_and_none_of_who_is_refused(
    kind: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [OURS, "django.middleware.csrf.CsrfViewMiddleware"]
    by_ip, by_phone = ({"rate": rate, "key": key, "match": "/"} for rate, key in (("1/m", "ip"), ("9/m", "post:phone")))
    settings.QUOTA = {"STORE": "memory", "RULES": {"by-ip": by_ip, "by-phone": by_phone}}
    readers: list[threading.Thread] = []
    real = HttpRequest._load_post_and_files

    def noted(request: HttpRequest) -> None:
        readers.append(threading.current_thread())
        real(request)

    monkeypatch.setattr(HttpRequest, "_load_post_and_files", noted)
    client: Any = (Client if kind == "sync" else AsyncClient)(enforce_csrf_checks=True)
    client.cookies["csrftoken"] = "a" * 32
    post = partial(client.post, "/plain-with-token/", {"phone": "1", "csrfmiddlewaretoken": "a" * 32})
    replies = [post() if kind == "sync" else asyncio.run(post()) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 429, 429]
    assert [reader is threading.main_thread() for reader in readers] == [kind == "sync"]


@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"phone=" + b"1" * 500, FORM), (b"&".join([b"a=1"] * 30), FORM), (b"--x\r\nbroken", "multipart/form-data")],
    ids=["long", "many fields", "broken"],
)
def test_a_body_that_django_refuses_is_refused_as_ever_and_counted(body: bytes, kind: str, settings: Any) -> None:
    settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, [OURS]
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE, settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 100, 20
    given: Any = {"data": body, "content_type": kind}
    expected = Client().post("/plain/", **given).status_code
    assert 400 <= expected < 500

    async def ask() -> int:
        return (await AsyncClient().post("/async/", **given)).status_code

    assert Client().post("/sync/", **given).status_code == asyncio.run(ask()) == expected
    for name in ("sync", "async"):
        assert peek("9/m", "ip:127.0.0.1", name=f"{name}-ip").remaining == 8


SAME = ["ann@x.org", "\u3000ann@x.org\xa0", "Ann@X.ORG \t\n", "\uff41nn@x.org", "ann@x\uff0eorg"]


@pytest.mark.parametrize("kind", ["post", "get"])
def test_another_spelling_is_the_same_value_and_blanks_are_none(kind: str) -> None:
    def different(values: list[str]) -> int:
        requests = [getattr(RequestFactory(), kind)("/", {"email": value}) for value in values]
        found = {check("99/m", request, key=f"{kind}:email").subject for request in requests}
        return len(found - {"ip:127.0.0.1"})

    assert [different(values) for values in (SAME, ["Zoë", "zoe\u0308", "ZOË"], ["strasse", "straße"])] == [1, 1, 1]
    assert (different(["", " ", "\t\xa0"]), different(["zoe", "zoë"])) == (0, 2)
    assert different([" " + "a" * 2_000, "a" * 2_000, "A" * 2_000]) == 2, "a long one is stripped alone"


def test_spellings_that_forms_treat_as_one_are_one_digest() -> None:
    (one,) = {of_phone(text) for text in SAME}
    assert one.startswith("json.phone:")
    assert "x.org" not in one
    assert one != of_phone("Anne@x.org")


def test_a_number_is_the_text_of_it_however_it_is_written() -> None:
    written = ('{"phone": "42"}', '{"phone": 42}', '{"phone": 42.0}', '{"phone": 4.2e1}', '{"phone": " 42"}')
    assert len({subject(sent(text)) for text in written}) == 1
    assert of_phone(1.5) == of_phone("1.5") != of_phone(1)
    assert subject(sent('{"phone": "1", "phone": "2"}')) == of_phone("2")  # the last of equal names, as in Python
    for encoding in ("utf-8-sig", "utf-16", "utf-32"):
        assert subject(sent(json.dumps({"phone": "é"}).encode(encoding))) == of_phone("é")


@pytest.mark.parametrize("body", [{}, {"phone": None}, {"phone": " "}, {"Phone": "1"}, [], "1", "null", ""])
def test_what_is_missing_falls_back_to_the_ip(body: Any) -> None:
    assert subject(sent(body)) == IP


@pytest.mark.parametrize("value", [True, ["1"], {}])
def test_what_is_neither_text_nor_number_is_a_bad_request(value: object) -> None:
    with pytest.raises(BadRequest, match="The field 'phone' of the body is not a string or a number"):
        of_phone(value)


def test_a_dotted_path_leads_into_objects() -> None:
    body = {"user": {"email": "ann@example.org", "tags": ["a"]}, "user.email": "other"}
    assert subject(sent(body), "json:user.email") == subject(sent(body | {"user.email": 1}), "json:user.email")
    assert subject(sent(body), "json:user.email").startswith("json.user.email:")
    assert subject(sent(body), "json:user.tags.0") == IP
    assert subject(sent({"user": "ann"}), "json:user.email") == IP


@pytest.mark.parametrize("content_type", [JSON, "application/vnd.api+json", "", "text/plain", FORM, MULTIPART])
def test_json_counts_whatever_the_client_calls_it_and_a_form_stays_readable(content_type: str) -> None:
    for method in ("post", "put", "delete"):
        assert subject(sent({"phone": "1"}, content_type, method)) == of_phone("1")
    if "json" not in content_type:
        part = '--x\r\nContent-Disposition: form-data; name="phone"\r\n\r\n1\r\n--x--\r\n'
        request = sent(part if content_type == MULTIPART else "phone=1", content_type)
        assert subject(request) == IP
        assert request.POST.get("phone") == ("1" if content_type in (FORM, MULTIPART) else None)


BROKEN = [
    b'{"phone": "1"', b'{"phone": "1"} x', b"{'phone': 1}", b" ", b"\xff\xfe\xff", b'{"phone": "\xff"}',
    b"[" * 200_000, b'{"phone": ' + b"9" * 5_000 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("body", BROKEN)
def test_a_body_that_is_not_json_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest, match="The body is not JSON"):
        subject(sent(body))


@pytest.mark.parametrize("body", BROKEN)
def test_a_body_that_was_read_as_a_stream_is_an_error(body: bytes) -> None:
    request = sent(body)
    request.read(1)
    with pytest.raises(ConfigurationError, match="other code has already read it as a stream"):
        subject(request)


@pytest.mark.parametrize("limit", [100, None])
@pytest.mark.parametrize("says_its_length", [True, False])
def test_a_body_that_is_too_long_is_refused_and_one_of_another_type_is_left_unread(
    limit: int | None, says_its_length: bool, settings: Any
) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = limit
    long = "x" * ((limit or 2_621_440) + 1)
    make = AsyncRequestFactory()
    short, request = (make.post("/", data={"phone": "1", "pad": pad}, content_type=JSON) for pad in ("x", long))
    if not says_its_length:
        del short.META["CONTENT_LENGTH"], request.META["CONTENT_LENGTH"]
    assert subject(short) == of_phone("1")
    with pytest.raises(RequestDataTooBig):
        subject(request)
    assert says_its_length is not hasattr(request, "_body")
    upload = sent(long, "application/octet-stream")
    assert subject(upload) == IP
    assert upload.read(3) == b"xxx"


def test_a_broken_body_stays_counted_by_the_others_and_a_shadow_leaves_it_to_the_view() -> None:
    shadows = [
        Rule.make("shadow", "1/m", key="json:phone", shadow=True),
        Rule.make("values", "1/m", key="ip", distinct="json:phone", shadow=True),
    ]
    for body in ("broken", {"phone": ["1"]}):
        clear()
        decision = decide(sent(body), [*shadows, BY_IP])
        assert [(outcome.rule, outcome.remaining) for outcome in decision.outcomes] == [("by-ip", 2)]
        for rules in ([*shadows, BY_JSON], [BY_JSON, *shadows], [BY_IP, BY_JSON]):
            with pytest.raises(BadRequest):
                decide(sent(body), rules)
        assert peek(BY_IP, IP).remaining == 1


def test_under_async_a_thread_reads_json_and_it_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[threading.Thread] = []
    real = json.loads

    def noted(body: bytes) -> Any:
        readers.append(threading.current_thread())
        return real(body)

    monkeypatch.setattr(json, "loads", noted)
    by_code = Rule.make("by-code", "9/m", key="json:code")
    values = Rule.make("values", "9/h", key="ip", distinct="json:phone")

    async def play() -> threading.Thread:
        for phone, rules in (("a", [BY_IP, BY_JSON]), ("b", [BY_JSON, by_code, values])):
            await adecide(sent({"phone": phone}), rules)
        assert (await acheck(values, sent({"phone": "B"}))).remaining == 7  # values count as they were sent
        return threading.current_thread()

    loop = asyncio.run(play())
    assert len(readers) == 3
    assert loop not in readers


@inputs(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode), st.sampled_from([JSON, "text/plain", FORM, ""]))
@example(b'{"phone": "\\ud800"}', JSON)
@example(b'{"phone": NaN}', JSON)
@example(b'{"phone": 1e999}', JSON)
def test_any_body_gives_a_value_the_ip_or_a_bad_request(body: bytes, content_type: str) -> None:
    given = sent(body, content_type)
    try:
        found = asyncio.run(asubject_of("json:phone", given))
    except BadRequest:
        assert content_type == JSON or b"phone" in body
    else:
        assert found == IP or found.startswith("json.phone:")
        assert found == subject(sent(body, content_type))
