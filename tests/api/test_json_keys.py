"""Rules by a field of a JSON body: which values count, when the body is read, and which bodies are refused."""

import asyncio
import json
import threading
from typing import Any

import pytest
from django.core.exceptions import BadRequest, RequestDataTooBig
from django.http import HttpRequest
from django.test import AsyncRequestFactory, RequestFactory
from hypothesis import example, given
from hypothesis import strategies as st

from django_quota import Rule, acheck
from django_quota.adapters import adecide, decide
from django_quota.exceptions import ConfigurationError
from tests.support.calls import asubject_of, subject_of
from tests.support.inputs import inputs

IP = "ip:192.0.2.1"
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=x"
BY_IP = Rule.make("by-ip", "9/m", key="ip")
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

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
    def test_an_encoding_that_python_reads_counts(self, encoding: str) -> None:
        assert subject(sent(json.dumps({"phone": "é"}).encode(encoding))) == of_phone("é")


class TestContentTypes:
    @pytest.mark.parametrize("content_type", [JSON, "Application/JSON; charset=utf-8", "application/vnd.api+json"])
    @pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
    def test_json_counts_with_any_method(self, content_type: str, method: str) -> None:
        assert subject(sent({"phone": "1"}, content_type, method)) == of_phone("1")

    @pytest.mark.parametrize("content_type", ["", "text/plain", FORM, MULTIPART])
    def test_json_counts_whatever_the_client_calls_it_and_a_form_stays_readable(self, content_type: str) -> None:
        assert subject(sent({"phone": "1"}, content_type)) == of_phone("1")
        part = '--x\r\nContent-Disposition: form-data; name="phone"\r\n\r\n1\r\n--x--\r\n'
        request = sent(part if content_type == MULTIPART else "phone=1", content_type)
        assert subject(request) == IP
        assert request.POST.get("phone") == ("1" if content_type in (FORM, MULTIPART) else None)


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
    @pytest.mark.parametrize("says_its_length", [True, False])
    def test_a_body_that_is_too_long_is_refused_and_one_of_another_type_is_left_unread(
        self, limit: int | None, says_its_length: bool, settings: Any
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

    def test_a_body_that_was_read_as_a_stream_is_a_clear_error(self) -> None:
        request = sent({"phone": "1"})
        request.read(1)
        with pytest.raises(ConfigurationError, match="other code has read it as a stream"):
            subject(request)


@pytest.mark.usefixtures("memory_store")
class TestReading:
    def test_a_broken_body_stays_counted_by_the_others_and_a_shadow_leaves_it_to_the_view(self) -> None:
        shadows = [
            Rule.make("shadow", "1/m", key="json:phone", shadow=True),
            Rule.make("values", "1/m", key="ip", distinct="json:phone", shadow=True),
        ]
        for left, body in enumerate(("broken", {"phone": ["1"]})):
            decision = decide(sent(body), [*shadows, BY_IP])
            assert [(outcome.rule, outcome.remaining) for outcome in decision.outcomes] == [("by-ip", 8 - 2 * left)]
            for rules in ([*shadows, BY_PHONE], [BY_PHONE, *shadows], [BY_IP, BY_PHONE]):
                with pytest.raises(BadRequest):
                    decide(sent(body), rules)

    def test_under_async_a_thread_reads_it_and_it_is_parsed_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        readers: list[threading.Thread] = []
        real = json.loads

        def noted(body: bytes) -> Any:
            readers.append(threading.current_thread())
            return real(body)

        monkeypatch.setattr(json, "loads", noted)
        by_code = Rule.make("by-code", "9/m", key="json:code")
        values = Rule.make("values", "9/h", key="ip", distinct="json:phone")

        async def play() -> threading.Thread:
            for phone, rules in (("a", [BY_IP, BY_PHONE]), ("b", [BY_PHONE, by_code, values])):
                await adecide(sent({"phone": phone}), rules)
            assert (await acheck(values, sent({"phone": "B"}))).remaining == 7  # values count as they were sent
            return threading.current_thread()

        loop = asyncio.run(play())
        assert len(readers) == 3
        assert loop not in readers


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
