"""Limits on websockets: handshakes, messages and open sockets, for any ASGI application."""

import asyncio
import json
import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User

from django_quota import Rule, peek, slot
from django_quota.contrib.channels import QuotaSocket
from django_quota.exceptions import ConfigurationError, RuleError
from django_quota.testing import freeze
from tests.support.outages import no_answer
from tests.support.pages import blocks, run_page

pytestmark = pytest.mark.usefixtures("memory_store")

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)

HTTP_RESPONSE: dict[str, Any] = {"websocket.http.response": {}}


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Accept, send back each message, and say at last why the socket was closed."""
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    while (event := await receive())["type"] != "websocket.disconnect":
        await send({"type": "websocket.send", "text": event["text"]})
    await send({"type": "late"})
    ECHO_ENDED.append(event.get("code"))


ECHO_ENDED: list[int | None] = []


class Client:
    """The server's side of one socket: what the client has sent, and what it gets."""

    def __init__(self, application: Any, user: object = None, address: str = "192.0.2.1", **scope: Any) -> None:
        self.scope = {
            "type": "websocket",
            "path": "/chat/",
            "query_string": b"",
            "headers": [(b"host", b"example.com")],
            "client": (address, 4711),
            "user": AnonymousUser() if user is None else user,
            **scope,
        }
        self.got: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.events.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.create_task(application(self.scope, self.events.get, self.got.put))

    async def next(self) -> dict[str, Any]:
        waiting = asyncio.ensure_future(self.got.get())
        await asyncio.wait([waiting, self.task], return_when=asyncio.FIRST_COMPLETED, timeout=30)
        if not waiting.done():
            waiting.cancel()
            await self.task
            raise AssertionError("the application has ended")
        return waiting.result()

    async def says(self, text: str = "hello") -> dict[str, Any]:
        self.events.put_nowait({"type": "websocket.receive", "text": text})
        return await self.next()

    async def leaves(self) -> None:
        self.events.put_nowait({"type": "websocket.disconnect", "code": 1001})
        await self.task


async def answers(*clients: Client) -> list[str]:
    """Return whether each handshake is accepted or closed."""
    return [(await client.next())["type"].partition(".")[2] for client in clients]


async def opened(application: Any, *args: Any, **scope: Any) -> Client:
    client = Client(application, *args, **scope)
    assert (await client.next())["type"] == "websocket.accept"
    return client


# --- handshakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extensions", [HTTP_RESPONSE, None])
def test_a_refused_handshake_is_a_429_or_else_a_403(extensions: Any) -> None:
    async def work() -> list[dict[str, Any]]:
        application = QuotaSocket(echo, connect="1/m", key="ip")
        await opened(application)
        refused = Client(application, extensions=extensions)
        await refused.task
        return [refused.got.get_nowait() for _ in range(refused.got.qsize())]

    events = asyncio.run(work())
    if not extensions:
        assert events == [{"type": "websocket.close", "code": 1008}]
        return
    start, body = events
    headers = dict(start["headers"])
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert 0 < int(headers[b"retry-after"]) <= 60
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"ratelimit"].startswith(b'"connect";r=0')
    assert json.loads(body["body"])["status"] == 429


def test_handshakes_count_by_user_by_address_or_by_the_key_of_a_rule(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"sockets": {"rate": "1/m", "key": "header:x-device"}}}
    ann, bob = User(pk=1), User(pk=2)
    who: list[dict[str, Any]] = [{"user": ann}, {"user": ann}, {"user": bob}, {}, {}, {"address": "192.0.2.2"}]
    phone: dict[str, Any] = {"headers": [(b"x-device", b"phone")]}

    async def work() -> tuple[list[str], list[str]]:
        by_user, by_device = QuotaSocket(echo, connect="1/m"), QuotaSocket(echo, connect="sockets", key="ip")
        came = await answers(*(Client(by_user, **each) for each in who))
        return came, await answers(*(Client(by_device, **each) for each in (phone, phone, {})))

    came, by_device = asyncio.run(work())
    assert came == ["accept", "close", "accept", "accept", "close", "accept"]
    assert by_device == ["accept", "close", "accept"]


def test_a_bad_query_is_a_400_and_other_connections_pass() -> None:
    seen: list[str] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    async def work() -> dict[str, Any]:
        await QuotaSocket(application, connect="0/m")({"type": "http"}, None, None)  # type: ignore[arg-type]
        limited = QuotaSocket(echo, connect="1/m", key="ip")
        return await Client(limited, query_string=b"\xff", extensions=HTTP_RESPONSE).next()

    assert (asyncio.run(work())["status"], seen) == (400, ["http"])


def test_a_limit_by_user_without_users_is_an_error_that_says_where_to_put_it() -> None:
    async def work() -> None:
        client = Client(QuotaSocket(echo, connect="1/m"))
        del client.scope["user"]
        await client.task

    with pytest.raises(ConfigurationError, match="inside AuthMiddlewareStack"):
        asyncio.run(work())


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "code"), [(429, 4429), (503, 4503)])
def test_a_refused_message_gets_a_notice_and_closes_the_socket(status: int, code: int) -> None:
    async def work() -> list[dict[str, Any]]:
        client = await opened(QuotaSocket(echo, receive="2/m", on_unavailable="deny"))
        events = [await client.says("one"), await client.says("two")]
        with no_answer() if status == 503 else nullcontext():
            events += [await client.says("three"), await client.next()]
        await client.task
        assert client.got.empty(), "what the application sends after the close goes nowhere"
        return events

    one, two, notice, close = asyncio.run(work())
    assert [one["text"], two["text"]] == ["one", "two"]
    said = json.loads(notice["text"])
    assert (said["type"], said["status"]) == ("quota.refused", status)
    assert (close["type"], close["code"], ECHO_ENDED[-1]) == ("websocket.close", code, code)


def test_messages_count_over_all_sockets_of_a_subject() -> None:
    async def work() -> list[str]:
        application = QuotaSocket(echo, receive="2/m")
        first, second, other = [await opened(application, user) for user in (User(pk=1), User(pk=1), None)]
        events = [await first.says("a"), await second.says("b"), await other.says("d"), await first.says("c")]
        return [event["text"] for event in events]

    *passed, notice = asyncio.run(work())
    assert (passed, "quota.refused" in notice) == (["a", "b", "d"], True)


@pytest.mark.parametrize("notice", [None, lambda decision: b"\x00"])
def test_without_close_a_refused_message_is_dropped_and_the_socket_stays(notice: Any) -> None:
    """And a notice of your own may be bytes."""
    rule, given = Rule.make("chat", "1/m", key="ip"), {} if notice is None else {"notice": notice}

    async def work() -> list[dict[str, Any]]:
        client = await opened(QuotaSocket(echo, receive=rule, close=False, **given))
        events = [await client.says(text) for text in ("one", "two")]
        await client.leaves()
        return events

    one, refused = asyncio.run(work())
    assert (one["text"], ECHO_ENDED[-1]) == ("one", 1001)
    assert refused["bytes"] == b"\x00" if notice else json.loads(refused["text"])["type"] == "quota.refused"
    assert peek(rule, "ip:192.0.2.1").remaining == 0, "a rule counts under its own name"


def test_without_a_notice_the_socket_is_closed() -> None:
    async def work() -> dict[str, Any]:
        return await (await opened(QuotaSocket(echo, receive="0/m", notice=None))).says()

    assert asyncio.run(work())["type"] == "websocket.close"


# --- open sockets -----------------------------------------------------------------------------------------------------


def test_a_subject_has_only_so_many_sockets_open_and_may_open_one_when_one_is_closed() -> None:
    async def work() -> list[str]:
        socket = partial(Client, QuotaSocket(echo, at_once=1, key="ip"))
        first = socket()
        came = await answers(first, socket(), socket(address="::1"))
        await first.leaves()
        return came + await answers(socket())

    assert asyncio.run(work()) == ["accept", "close", "accept", "accept"]


@pytest.mark.parametrize("how", ["raises", "is cancelled", "is never reached"])
def test_an_application_that_ends_badly_leaves_no_socket_open(how: str) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        if how == "raises":
            raise ZeroDivisionError
        await asyncio.Event().wait()

    is_refused = how == "is never reached"
    socket = QuotaSocket(application, connect="0/m" if is_refused else "9/m", at_once=1, key="ip")

    async def work() -> None:
        client = Client(socket)
        assert await answers(client) == ["close" if is_refused else "accept"]
        if not is_refused:
            client.task.cancel()
        with nullcontext() if is_refused else pytest.raises((ZeroDivisionError, asyncio.CancelledError)):
            await client.task
        assert await slot("websocket.at_once", 1, subject="ip:192.0.2.1").aholders() == []

    asyncio.run(work())


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "limits nothing"),
        ({"receive": "10/m", "key": "usr"}, "Did you mean 'user'"),
        ({"at_once": 5, "lease": 0}, "lease=0"),
        ({"connect": "1/m", "on_unavailable": "maybe"}, "'maybe'"),
        ({"receive": Rule.make("r", "1/m", count_when=lambda response: True)}, "no response to ask"),
    ],
)
def test_a_wrong_argument_is_refused_where_it_is_written(options: Any, text: str) -> None:
    with pytest.raises(RuleError, match=text):
        QuotaSocket(echo, **options)


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_makes_a_limited_application_and_shows_the_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    consumers: Any = ModuleType("chat.consumers")
    consumers.ChatConsumer = SimpleNamespace(as_asgi=lambda: echo)
    monkeypatch.setitem(sys.modules, "chat.consumers", consumers)
    names = run_page("docs/channels.md")

    async def work() -> list[dict[str, Any]]:
        client = Client(names["application"], path="/chat/", user=None)
        events = [await client.next()]
        return events + [await client.says() for _ in range(21)]

    with freeze(NOON):
        events = asyncio.run(work())
    assert events[0]["type"] == "websocket.accept"
    shown = [json.loads(text) for language, text in blocks("docs/channels.md") if language == "json"]
    assert shown == [json.loads(events[-1]["text"])]
