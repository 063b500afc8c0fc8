"""Rules by a field of a JSON body: which values count, when the body is read, and which bodies are refused."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import BadRequest, RequestDataTooBig
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, AsyncRequestFactory, Client, RequestFactory
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from hypothesis import example, given
from hypothesis import strategies as st

from django_quota import Rule, acheck, check, peek, quota
from django_quota.adapters import adecide, decide
from django_quota.exceptions import ConfigurationError
from tests.support.calls import asubject_of, subject_of
from tests.support.inputs import inputs

IP = "ip:192.0.2.1"
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=x"
BY_IP = Rule.make("by-ip", "3/m", key="ip")
BY_PHONE = Rule.make("by-phone", "1/m", key="json:phone")


def sent(body: Any, content_type: str = JSON, method: str = "post", **meta: Any) -> HttpRequest:
    """Return a request with this body, which nobody has read; what is neither text nor bytes is sent as JSON."""
    data = body if isinstance(body, (str, bytes)) else json.dumps(body)
    given: dict[str, Any] = {"REMOTE_ADDR": "192.0.2.1", **meta}
    return getattr(RequestFactory(), method)("/", data=data, content_type=content_type, **given)  # type: ignore[no-any-return]


def subject(request: HttpRequest, key: str = "json:phone") -> str:
    return subject_of(key, request)


def of_phone(value: object) -> str:
    return subject(sent({"phone": value}))


class TestValues:
    def test_spellings_that_forms_treat_as_one_are_one_digest(self) -> None:
        (one,) = {of_phone(text) for text in ("Ann@x.org", " ann@x.org\t", "\uff41nn@x.org")}
        assert one.startswith("json.phone:")
        assert "x.org" not in one
        assert one != of_phone("Anne@x.org")

    def test_a_number_is_the_text_of_it_however_it_is_written(self) -> None:
        written = ('{"phone": "42"}', '{"phone": 42}', '{"phone": 42.0}', '{"phone": 4.2e1}', '{"phone": " 42"}')
        assert len({subject(sent(text)) for text in written}) == 1
        assert of_phone(1.5) == of_phone("1.5") != of_phone(1)
        assert subject(sent('{"phone": "1", "phone": "2"}')) == of_phone("2")  # the last of equal names, as in Python

    @pytest.mark.parametrize(
        "body", [{}, {"phone": None}, {"phone": ""}, {"phone": " "}, {"Phone": "1"}, [], "1", "null", ""]
    )
    def test_what_is_missing_falls_back_to_the_ip(self, body: Any) -> None:
        assert subject(sent(body)) == IP

    @pytest.mark.parametrize("value", [True, False, [], ["1"], {}, {"phone": "1"}])
    def test_what_is_neither_text_nor_number_is_a_bad_request(self, value: object) -> None:
        with pytest.raises(BadRequest, match="The field 'phone' of the body is not a text or a number"):
            of_phone(value)

    def test_a_dotted_path_leads_into_objects(self) -> None:
        body = {"user": {"email": "ann@example.org", "tags": ["a"]}, "user.email": "other"}
        assert subject(sent(body), "json:user.email") == subject(sent(body | {"user.email": 1}), "json:user.email")
        assert subject(sent(body), "json:user.email").startswith("json.user.email:")
        assert subject(sent(body), "json:user.tags.0") == IP
        assert subject(sent({"user": "ann"}), "json:user.email") == IP

    @pytest.mark.usefixtures("memory_store")
    def test_different_values_are_counted_as_they_were_sent(self) -> None:
        rule = Rule.make("codes", "9/h", key="ip", distinct="json:code")
        for code in ("aB", "AB", "aB ", "aB"):
            decision = check(rule, sent({"code": code}))
        assert decision.remaining == 6

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
    def test_an_encoding_that_python_reads_counts(self, encoding: str) -> None:
        assert subject(sent(json.dumps({"phone": "é"}).encode(encoding))) == of_phone("é")


class TestContentTypes:
    @pytest.mark.parametrize("content_type", [JSON, "Application/JSON; charset=utf-8", "application/vnd.api+json"])
    @pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
    def test_json_counts_with_any_method(self, content_type: str, method: str) -> None:
        assert subject(sent({"phone": "1"}, content_type, method)) == of_phone("1")

    @pytest.mark.parametrize("content_type", ["", "text/plain", FORM, MULTIPART])
    def test_json_counts_whatever_the_client_calls_it(self, content_type: str) -> None:
        assert subject(sent({"phone": "1"}, content_type)) == of_phone("1")

    @pytest.mark.parametrize(
        ("body", "content_type"),
        [("phone=1", FORM), ('--x\r\nContent-Disposition: form-data; name="phone"\r\n\r\n1\r\n--x--\r\n', MULTIPART)],
    )
    def test_a_form_falls_back_to_the_ip_and_stays_readable(self, body: str, content_type: str) -> None:
        request = sent(body, content_type)
        assert subject(request) == IP
        assert request.POST["phone"] == "1"


BROKEN = [
    b'{"phone": "1"', b'{"phone": "1"} x', b"{'phone': 1}", b" ", b"\xff\xfe\xff", b'{"phone": "\xff"}',
    b"[" * 200_000, b'{"phone": ' + b"9" * 5_000 + b"}",
]  # fmt: skip


class TestBrokenBodies:
    @pytest.mark.parametrize("body", BROKEN)
    def test_a_body_that_says_it_is_json_and_is_not_is_a_bad_request(self, body: bytes) -> None:
        with pytest.raises(BadRequest, match="The body is not JSON"):
            subject(sent(body))

    @pytest.mark.parametrize("limit", [100, None])
    def test_a_body_that_is_too_long_is_refused_and_one_of_another_type_is_left_unread(
        self, limit: int | None, settings: Any
    ) -> None:
        settings.DATA_UPLOAD_MAX_MEMORY_SIZE = limit
        long = "x" * ((limit or 2_621_440) + 1)
        request, upload = sent({"phone": "1", "pad": long}), sent(long, "application/octet-stream")
        with pytest.raises(RequestDataTooBig):
            subject(request)
        assert not hasattr(request, "_body")
        assert subject(upload) == IP
        assert upload.read(3) == b"xxx"

    def test_a_body_of_unknown_length_counts_and_one_that_is_too_long_is_refused(self, settings: Any) -> None:
        settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
        short, long = (AsyncRequestFactory().post("/", data={"phone": "x" * n}, content_type=JSON) for n in (9, 200))
        for request in (short, long):
            del request.META["CONTENT_LENGTH"]
        assert subject(short) == of_phone("x" * 9)
        with pytest.raises(RequestDataTooBig):
            subject(long)

    def test_a_body_that_was_read_as_a_stream_is_a_clear_error(self) -> None:
        request = sent({"phone": "1"})
        request.read(1)
        with pytest.raises(ConfigurationError, match="other code has read it as a stream"):
            subject(request)


@pytest.mark.usefixtures("memory_store")
class TestReading:
    def test_a_broken_body_stays_counted_by_the_other_rules(self) -> None:
        with pytest.raises(BadRequest):
            decide(sent("broken"), [BY_IP, BY_PHONE])
        assert peek(BY_IP, IP).remaining == 2

    def test_a_shadow_rule_leaves_a_broken_body_to_the_view(self) -> None:
        shadows = [
            Rule.make("shadow", "1/m", key="json:phone", shadow=True),
            Rule.make("values", "1/m", key="ip", distinct="json:phone", shadow=True),
        ]
        for body in ("broken", {"phone": ["1"]}):
            decision = decide(sent(body), [*shadows, BY_IP])
            assert [outcome.rule for outcome in decision.outcomes] == ["by-ip"]
            for rules in ([*shadows, BY_PHONE], [BY_PHONE, *shadows]):
                with pytest.raises(BadRequest):
                    decide(sent(body), rules)

    def test_under_async_a_thread_reads_it_and_it_is_parsed_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        readers: list[threading.Thread] = []
        real = json.loads

        def noted(body: bytes) -> Any:
            readers.append(threading.current_thread())
            return real(body)

        monkeypatch.setattr(json, "loads", noted)

        async def play() -> threading.Thread:
            for rules in ([BY_IP, BY_PHONE], [BY_PHONE]):
                await adecide(sent({"phone": "1"}), rules)
            await acheck("1/m", sent({"phone": "1"}), key="json:phone")
            return threading.current_thread()

        loop = asyncio.run(play())
        assert len(readers) == 3
        assert loop not in readers
        readers.clear()
        assert decide(sent({"phone": "2"}), [BY_PHONE, Rule.make("by-code", "9/m", key="json:code")]).allowed
        assert len(readers) == 1, "it is parsed once for several rules"


def plain(request: HttpRequest) -> HttpResponse:
    assert json.loads(request.body) == json.load(request)
    return HttpResponse(json.loads(request.body)["phone"])


async def plain_async(request: HttpRequest) -> HttpResponse:
    return HttpResponse(json.loads(request.body)["phone"])


def limited(view: Callable[..., Any], name: str) -> Callable[..., Any]:
    for key in ("json:phone", "ip"):
        view = quota("2/m" if key == "json:phone" else "20/m", key=key, name=f"{name}-{key}")(view)
    return csrf_exempt(view)


urlpatterns = [
    path("limited/", limited(plain, "limited")),
    path("limited-async/", limited(plain_async, "limited-async")),
]


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("middleware", [[], ["django_quota.middleware.QuotaMiddleware"]])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_site_answers_429_and_400(middleware: list[str], kind: str, settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = middleware

    async def post(body: Any) -> int:
        return (await AsyncClient().post("/limited-async/", body, content_type=JSON)).status_code

    def ask(body: Any) -> int:
        if kind == "async":
            return asyncio.run(post(body))
        return Client().post("/limited/", body, content_type=JSON).status_code

    assert [ask({"phone": "1"}) for _ in range(3)] == [200, 200, 429]
    assert [ask(body) for body in ("broken", {"phone": ["1"]}, {"phone": "2"})] == [400, 400, 200]


@inputs(300)
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
