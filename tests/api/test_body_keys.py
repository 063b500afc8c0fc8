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

from django_quota import Decision, Rule, acheck, check, concurrency, peek, quota, slot
from django_quota.adapters import adecide, decide, set_body_parser
from django_quota.exceptions import ConfigurationError
from django_quota.subjects.bodies import has_unread_body
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


def with_body_read(request: HttpRequest) -> HttpRequest:
    """The same request, its body read."""
    assert request.body
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


@pytest.mark.parametrize("order", [1, -1], ids=["the form first", "the form last"])
@pytest.mark.parametrize("key", ["post:phone", ("ip", ("path", "post:phone"))], ids=["alone", "among others"])
def test_who_is_refused_by_another_rule_has_no_body_read(key: Any, order: int) -> None:
    rules = [Rule.make("by-phone", "9/m", key=key), Rule.make("by-ip", "1/m", key="ip")]
    assert decide(posted(), rules).allowed
    refused = posted("2")

    assert not decide(refused, rules[::order]).allowed

    assert not hasattr(refused, "_post")


def test_who_is_refused_by_a_pair_has_no_body_read() -> None:
    request = posted()

    assert not decide(request, [BY_PHONE, (Rule.make("shut", "0/m"), "user:1")])

    assert not hasattr(request, "_post")


def test_a_slot_that_is_not_free_gives_back_what_both_steps_took() -> None:
    view: Any = concurrency(1, name="held")(lambda request: HttpResponse())
    for key in ("post:phone", "ip"):
        view = quota("3/m", key=key, name="both")(view)
    request: Any = posted()

    with slot("held", 1):
        assert view(request).status_code == 429

    assert [outcome.remaining for outcome in request.quota.outcomes if outcome.rule == "both"] == [3, 3]


def test_a_rule_that_only_reports_lets_the_body_be_read() -> None:
    rules = [Rule.make("shadow", "0/m", shadow=True), Rule.make("soft", "0/m", block=False), BY_PHONE]

    decision = decide(posted(), rules)

    assert [outcome.rule for outcome in decision.outcomes] == ["shadow", "soft", "by-phone"]
    assert not decision.enforced


def test_a_form_rule_that_only_reports_gives_nothing_back() -> None:
    rules = [BY_IP, Rule.make("soft-form", "0/m", key="post:phone", block=False)]

    decisions = [decide(posted(), rules) for _ in range(3)]

    assert [each.outcomes[0].remaining for each in decisions] == [2, 1, 0]
    assert [each.enforced for each in decisions] == [False] * 3


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
            request = read(posted(phone, f"192.0.2.{ip}"))
            used, same = ([peek(rule, request).used for rule in rules] for rules in (apart, at_once))
        assert used == same
        assert one.allowed is other.allowed
        found = {outcome.rule[1:]: outcome.remaining for outcome in one.outcomes}
        assert found.items() <= {outcome.rule[1:]: outcome.remaining for outcome in other.outcomes}.items()


TWO = [BY_IP, BY_PHONE]


@pytest.mark.parametrize(
    ("rules", "make", "expected"),
    [
        pytest.param(TWO, lambda: RequestFactory().get("/"), 1, id="GET"),
        pytest.param(TWO, lambda: read(posted("2")), 1, id="a form that was read"),
        pytest.param([BY_IP], posted, 1, id="a rule that needs no form"),
        pytest.param([BY_PHONE], posted, 1, id="nothing but the form"),
        pytest.param(TWO, posted, 2, id="a form that is to be read"),
        pytest.param(TWO, lambda: RequestFactory().post("/", "phone=7", FORM), 2, id="a form without files"),
        pytest.param([Rule.make("none", "0/m"), BY_PHONE], posted, 1, id="refused without the form"),
        pytest.param([Rule.make("unlimited", None), BY_PHONE], posted, 1, id="a rule without a limit"),
        pytest.param(TWO, lambda: RequestFactory().put("/", "phone=7", FORM), 1, id="PUT"),
        pytest.param(TWO, lambda: RequestFactory().post("/", {}, JSON), 1, id="JSON"),
        pytest.param([BY_IP, BY_JSON], lambda: sent({"phone": "1"}), 2, id="JSON that is to be read"),
        pytest.param([BY_IP, BY_JSON], lambda: with_body_read(sent({"phone": "1"})), 1, id="JSON that was read"),
        pytest.param([BY_IP, BY_JSON], lambda: RequestFactory().get("/"), 1, id="no JSON"),
    ],
)
def test_a_decision_is_one_call_unless_a_form_is_to_be_read(
    rules: list[Rule], make: Callable[[], HttpRequest], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, calls = make(), calls_of(monkeypatch)

    decide(request, rules)

    assert len(calls) == expected


def test_a_refusal_by_the_form_takes_a_third_call_that_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    decide(posted(), TWO)
    calls = calls_of(monkeypatch)

    assert not decide(posted(), TWO).allowed

    assert len(calls) == 3


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


def threads_in(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Return a list to which each call of a function adds its thread."""
    threads: list[threading.Thread] = []
    real = getattr(owner, name)

    def noted(*given: Any) -> Any:
        threads.append(threading.current_thread())
        return real(*given)

    monkeypatch.setattr(owner, name, noted)
    return threads


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads that have read a form."""
    return threads_in(HttpRequest, "_load_post_and_files", monkeypatch)


@pytest.fixture
def post(kind: str, settings: Any) -> Callable[[], int]:
    """Post a form with a token to a site that limits above the CSRF middleware; return the status."""
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [OURS, "django.middleware.csrf.CsrfViewMiddleware"]
    by_ip, by_phone = ({"rate": rate, "key": key, "match": "/"} for rate, key in (("1/m", "ip"), ("9/m", "post:phone")))
    settings.QUOTA = {"STORE": "memory", "RULES": {"by-ip": by_ip, "by-phone": by_phone}}
    client: Any = (Client if kind == "sync" else AsyncClient)(enforce_csrf_checks=True)
    client.cookies["csrftoken"] = "a" * 32
    ask = partial(client.post, "/plain-with-token/", {"phone": "1", "csrfmiddlewaretoken": "a" * 32})
    return lambda: (ask() if kind == "sync" else asyncio.run(ask())).status_code


@both
def test_above_the_csrf_middleware_a_thread_reads_the_body(
    kind: str, post: Callable[[], int], readers: list[threading.Thread]
) -> None:
    assert post() == 200

    assert [reader is threading.main_thread() for reader in readers] == [kind == "sync"]


@both
def test_above_the_csrf_middleware_nobody_reads_the_body_of_who_is_refused(
    kind: str, post: Callable[[], int], readers: list[threading.Thread]
) -> None:
    post()
    readers.clear()

    assert [post(), readers] == [429, []]


BAD_FORMS = {
    "long": (b"phone=" + b"1" * 500, FORM),
    "many fields": (b"&".join([b"a=1"] * 30), FORM),
    "broken": (b"--x\r\nbroken", "multipart/form-data"),
}


@pytest.mark.parametrize("route", ["sync", "async"])
@pytest.mark.parametrize("form", BAD_FORMS)
class TestBodiesThatDjangoRefuses:
    @pytest.fixture
    def statuses(self, route: str, form: str, settings: Any) -> tuple[int, int]:
        """The status of a view without limits, and that of a view with them."""
        settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, [OURS]
        settings.DATA_UPLOAD_MAX_MEMORY_SIZE, settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 100, 20
        body, content_type = BAD_FORMS[form]
        given: Any = {"data": body, "content_type": content_type}
        plain = Client().post("/plain/", **given).status_code
        if route == "sync":
            return plain, Client().post("/sync/", **given).status_code

        async def ask() -> int:
            return (await AsyncClient().post("/async/", **given)).status_code

        return plain, asyncio.run(ask())

    def test_they_are_refused_as_without_a_limit(self, statuses: tuple[int, int]) -> None:
        plain, limited = statuses

        assert 400 <= plain == limited < 500

    def test_they_are_counted(self, route: str, statuses: tuple[int, int]) -> None:
        assert peek("9/m", "ip:127.0.0.1", name=f"{route}-ip").remaining == 8


SAME = ["ann@x.org", "\u3000ann@x.org\xa0", "Ann@X.ORG \t\n", "\uff41nn@x.org", "ann@x\uff0eorg"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(SAME, 1, id="spaces and capitals"),
        pytest.param(["Zoë", "zoe\u0308", "ZOË"], 1, id="accents that are composed"),
        pytest.param(["strasse", "straße"], 1, id="a sharp s"),
        pytest.param(["", " ", "\t\xa0"], 0, id="blanks"),
        pytest.param(["zoe", "zoë"], 2, id="an accent"),
        pytest.param([" " + "a" * 2_000, "a" * 2_000, "A" * 2_000], 2, id="long ones, which are only stripped"),
    ],
)
@pytest.mark.parametrize("kind", ["post", "get"])
def test_a_field_has_so_many_values_in_these_spellings(kind: str, values: list[str], expected: int) -> None:
    requests = [getattr(RequestFactory(), kind)("/", {"email": value}) for value in values]

    found = {check("99/m", request, key=f"{kind}:email").subject for request in requests}

    assert len(found - {"ip:127.0.0.1"}) == expected


def test_spellings_that_forms_treat_as_one_are_one_digest() -> None:
    (one,) = {of_phone(text) for text in SAME}
    assert one.startswith("json.phone:")
    assert "x.org" not in one
    assert one != of_phone("Anne@x.org")


NUMBERS = ('{"phone": 42}', '{"phone": 42.0}', '{"phone": 4.2e1}', '{"phone": " 42"}')


@pytest.mark.parametrize("written", NUMBERS)
def test_a_number_is_the_string_of_it_however_it_is_written(written: str) -> None:
    assert subject(sent(written)) == of_phone("42")


def test_a_number_with_a_fraction_is_not_the_whole_one() -> None:
    assert of_phone(1.5) == of_phone("1.5") != of_phone(1)


def test_of_equal_names_the_last_counts_as_in_python() -> None:
    assert subject(sent('{"phone": "1", "phone": "2"}')) == of_phone("2")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_json_is_read_in_each_of_its_encodings(encoding: str) -> None:
    assert subject(sent(json.dumps({"phone": "é"}).encode(encoding))) == of_phone("é")


@pytest.mark.parametrize("body", [{}, {"phone": None}, {"phone": " "}, {"Phone": "1"}, [], "1", "null", ""])
def test_what_is_missing_falls_back_to_the_ip(body: Any) -> None:
    assert subject(sent(body)) == IP


@pytest.mark.parametrize("value", [True, ["1"], {}])
def test_what_is_neither_text_nor_number_is_a_bad_request(value: object) -> None:
    with pytest.raises(BadRequest, match=r"^The field 'phone' of the body is not a string or a number\.$"):
        of_phone(value)


NESTED = {"user": {"email": "ann@example.org", "tags": ["a"]}, "user.email": "other"}


def test_a_dotted_path_leads_into_objects() -> None:
    found = subject(sent(NESTED), "json:user.email")

    assert found.startswith("json.user.email:")
    assert found == subject(sent(NESTED | {"user.email": 1}), "json:user.email")


@pytest.mark.parametrize(
    ("body", "key"),
    [
        pytest.param(NESTED, "json:user.tags.0", id="a list"),
        pytest.param({"user": "ann"}, "json:user.email", id="a string"),
    ],
)
def test_a_path_into_anything_but_an_object_falls_back_to_the_ip(body: Any, key: str) -> None:
    assert subject(sent(body), key) == IP


@pytest.mark.parametrize("method", ["post", "put", "delete"])
@pytest.mark.parametrize("content_type", [JSON, "application/vnd.api+json", "", "text/plain", FORM, MULTIPART])
def test_json_counts_whatever_the_client_calls_it(content_type: str, method: str) -> None:
    assert subject(sent({"phone": "1"}, content_type, method)) == of_phone("1")


PART = '--x\r\nContent-Disposition: form-data; name="phone"\r\n\r\n1\r\n--x--\r\n'


@pytest.mark.parametrize(
    ("body", "content_type", "field"),
    [
        pytest.param("phone=1", FORM, "1", id="a form"),
        pytest.param(PART, MULTIPART, "1", id="an upload"),
        pytest.param("phone=1", "text/plain", None, id="a string"),
        pytest.param("phone=1", "text/json", None, id="a type that is not that of JSON"),
        pytest.param("phone=1", "", None, id="no type"),
    ],
)
def test_what_is_not_json_stays_readable(body: str, content_type: str, field: str | None) -> None:
    request = sent(body, content_type)

    assert subject(request) == IP

    assert request.POST.get("phone") == field


BROKEN = [
    b'{"phone": "1"', b'{"phone": "1"} x', b"{'phone': 1}", b" ", b"\xff\xfe\xff", b'{"phone": "\xff"}',
    b"[" * 200_000, b'{"phone": ' + b"9" * 5_000 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("body", BROKEN)
def test_a_body_that_is_not_json_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest, match=r"^The body is not JSON\.$"):
        subject(sent(body))


def test_a_body_that_is_not_json_is_a_bad_request_under_a_type_that_ends_in_json() -> None:
    with pytest.raises(BadRequest):
        subject(sent("broken", "application/vnd.api+json"))


@pytest.mark.parametrize("body", BROKEN)
def test_a_body_that_was_read_as_a_stream_is_an_error(body: bytes) -> None:
    request = sent(body)
    request.read(1)
    with pytest.raises(ConfigurationError) as raised:
        subject(request)

    assert str(raised.value) == (
        "A key of the kind 'json:' cannot read the body: other code has already read it as a stream. Let that code use "
        "request.body, or run after the limit."
    )


@pytest.mark.parametrize("limit", [100, None])
@pytest.mark.parametrize("says_its_length", [True, False])
class TestLongBodies:
    @pytest.fixture
    def padded(self, limit: int | None, says_its_length: bool, settings: Any) -> Callable[[int], HttpRequest]:
        """Return a request whose body is so many bytes longer than allowed, or shorter."""
        settings.DATA_UPLOAD_MAX_MEMORY_SIZE = limit

        def make(more: int) -> HttpRequest:
            pad = "x" * ((limit or 2_621_440) + more - len('{"phone": "1", "pad": ""}'))
            made = AsyncRequestFactory().post("/", data={"phone": "1", "pad": pad}, content_type=JSON)
            if not says_its_length:
                del made.META["CONTENT_LENGTH"]
            return made

        return make

    def test_the_longest_that_is_allowed_is_read(self, padded: Callable[[int], HttpRequest]) -> None:
        assert subject(padded(0)) == of_phone("1")

    def test_a_longer_one_is_refused(self, padded: Callable[[int], HttpRequest]) -> None:
        with pytest.raises(RequestDataTooBig):
            subject(padded(1))

    def test_one_that_says_its_length_is_refused_unread(
        self, padded: Callable[[int], HttpRequest], says_its_length: bool
    ) -> None:
        request = padded(1)
        with pytest.raises(RequestDataTooBig):
            subject(request)

        assert hasattr(request, "_body") is not says_its_length


def test_a_broken_body_of_another_type_falls_back_to_the_ip() -> None:
    assert subject(sent("broken", "text/plain")) == IP


def test_a_stream_of_another_type_that_was_read_falls_back_to_the_ip() -> None:
    upload = sent("x" * 10, "application/octet-stream")
    upload.read(1)

    assert subject(upload) == IP


@pytest.mark.parametrize("method", ["get", "head", "options"])
def test_under_async_a_request_without_a_body_is_not_waited_for(method: str) -> None:
    asked: Any = getattr(AsyncRequestFactory(), method)("/")
    asked._stream = None  # nothing can be read

    assert subject(asked) == "ip:127.0.0.1"


def test_under_async_a_get_with_a_body_in_chunks_is_read() -> None:
    asked: Any = AsyncRequestFactory().generic("GET", "/", '{"phone": "1"}', JSON)
    del asked.META["CONTENT_LENGTH"]
    asked.META["HTTP_TRANSFER_ENCODING"] = "chunked"

    assert subject(asked) == of_phone("1")


@pytest.mark.parametrize("length", ["", "0", None])
def test_a_body_without_a_length_is_not_read(length: str | None) -> None:
    asked: Any = sent({"phone": "1"})
    asked.META["CONTENT_LENGTH"] = length
    asked._stream = None  # nothing can be read

    assert subject(asked) == IP


@pytest.mark.parametrize("allowed", [5, 0], ids=["a few bytes", "none"])
def test_the_error_of_a_long_body_names_the_setting(allowed: int, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = allowed

    with pytest.raises(RequestDataTooBig, match=r"^The body is longer than DATA_UPLOAD_MAX_MEMORY_SIZE\.$"):
        subject(sent({"phone": "1"}))


def test_a_long_body_of_another_type_is_left_unread(settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    upload = sent("x" * 101, "application/octet-stream")

    assert subject(upload) == IP

    assert upload.read(3) == b"xxx"


SHADOWS = [
    Rule.make("shadow", "1/m", key="json:phone", shadow=True),
    Rule.make("values", "1/m", key="ip", distinct="json:phone", shadow=True),
]

wrong_body = pytest.mark.parametrize("body", ["broken", {"phone": ["1"]}], ids=["not JSON", "a list"])


@wrong_body
def test_a_shadow_leaves_a_wrong_body_to_the_view(body: Any) -> None:
    decision = decide(sent(body), [*SHADOWS, BY_IP])

    assert [(outcome.rule, outcome.remaining) for outcome in decision.outcomes] == [("by-ip", 2)]


@wrong_body
@pytest.mark.parametrize("rules", [[*SHADOWS, BY_JSON], [BY_JSON, *SHADOWS]], ids=["below shadows", "above shadows"])
def test_a_rule_that_refuses_needs_a_right_body(body: Any, rules: list[Rule]) -> None:
    with pytest.raises(BadRequest):
        decide(sent(body), rules)


@wrong_body
def test_a_wrong_body_stays_counted_by_the_other_rules(body: Any) -> None:
    with pytest.raises(BadRequest):
        decide(sent(body), [BY_IP, BY_JSON])

    assert peek(BY_IP, IP).remaining == 2


@pytest.fixture
def parsers(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads that have parsed JSON."""
    return threads_in(json, "loads", monkeypatch)


BY_CODE = Rule.make("by-code", "9/m", key="json:code")
VALUES = Rule.make("values", "9/h", key="ip", distinct="json:phone")


def test_under_async_a_thread_parses_json(parsers: list[threading.Thread]) -> None:
    async def play() -> threading.Thread:
        await adecide(sent({"phone": "a"}), [BY_IP, BY_JSON])
        return threading.current_thread()

    assert asyncio.run(play()) not in parsers
    assert len(parsers) == 1


def test_json_is_parsed_once_for_all_rules(parsers: list[threading.Thread]) -> None:
    decide(sent({"phone": "a"}), [BY_JSON, BY_CODE, VALUES])

    assert len(parsers) == 1


def test_a_framework_parses_once_for_all_rules_though_it_finds_no_fields() -> None:
    parsed: list[str] = []
    request = sent({"phone": "a"})
    set_body_parser(request, lambda: parsed.append("once"))

    decide(request, [BY_JSON, BY_CODE, VALUES])

    assert parsed == ["once"]


def test_a_body_in_which_a_framework_found_no_fields_is_not_read_again() -> None:
    request = sent({"phone": "a"})
    set_body_parser(request, dict)
    before = has_unread_body(request, "json")

    subject(request)

    assert (before, has_unread_body(request, "json")) == (True, False)


def test_a_dot_in_the_name_of_a_field_of_a_form_leads_nowhere_though_a_framework_parsed_it() -> None:
    request = sent({"user": {"name": "a"}})
    set_body_parser(request, lambda: {"user": {"name": "a"}, "user.phone": "1"})

    assert subject(request, "post:user.phone").startswith("post.user.phone:")
    assert subject(request, "post:user.name") == IP


@pytest.mark.parametrize("kind", ["post", "json"])
def test_a_field_that_a_framework_parsed_counts_under_the_kind_of_its_key(kind: str) -> None:
    request = sent({"phone": "a"})
    set_body_parser(request, lambda: {"phone": "a"})

    assert subject(request, f"{kind}:phone").startswith(f"{kind}.phone:")


@pytest.mark.parametrize(("number", "text"), [(0, "0"), (float("inf"), "inf")], ids=["zero", "infinite"])
def test_any_number_is_a_value(number: float, text: str) -> None:
    assert of_phone(number) == of_phone(text) != "ip:192.0.2.1"


@pytest.mark.parametrize("kind", ["post", "json"])
def test_different_values_that_a_framework_parsed_count_as_they_were_sent(kind: str) -> None:
    rule, found = Rule.make("values", "9/h", key="ip", distinct=f"{kind}:phone"), []
    for phone in ("b", "B", "b"):
        request = sent({})
        set_body_parser(request, partial(dict, phone=phone))
        found.append(check(rule, request).remaining)

    assert found == [8, 7, 7]


def test_different_values_of_several_fields_count_as_they_were_sent() -> None:
    rule = Rule.make("values", "9/h", key="ip", distinct=("ip", ("ip", "json:phone")))

    assert [check(rule, sent({"phone": phone})).remaining for phone in ("b", "B", "b")] == [8, 7, 7]


@both
def test_different_values_count_as_they_were_sent(kind: str) -> None:
    found = []
    for phone in ("b", "B", "b"):
        asked = sent({"phone": phone})
        found.append((check(VALUES, asked) if kind == "sync" else asyncio.run(acheck(VALUES, asked))).remaining)

    assert found == [8, 7, 7]


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
