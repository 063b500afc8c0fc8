"""Limits on websockets: handshakes, messages and open sockets, for any ASGI application."""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial, wraps
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User

from django_quota import Rule, peek, slot
from django_quota.contrib.channels import QuotaSocket
from django_quota.exceptions import ConfigurationError, RuleError
from django_quota.testing import QuotaKit, freeze
from tests.support.commands import wait_until
from tests.support.outages import no_answer
from tests.support.pages import blocks, run_page

pytestmark = pytest.mark.usefixtures("memory_store")

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)

HTTP_RESPONSE: dict[str, Any] = {"websocket.http.response": {}}


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Have an async test run in an event loop of its own."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


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
@in_a_loop
async def test_a_refused_handshake_is_a_429_or_else_a_403(extensions: Any) -> None:
    application = QuotaSocket(echo, connect="1/m", key="ip")
    await opened(application)
    refused = Client(application, extensions=extensions)
    await refused.task
    events = [refused.got.get_nowait() for _ in range(refused.got.qsize())]
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


@in_a_loop
async def test_handshakes_count_by_user_by_address_or_by_the_key_of_a_rule(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"sockets": {"rate": "1/m", "key": "header:x-device"}}}
    ann, bob, phone = User(pk=1), User(pk=2), {"headers": [(b"x-device", b"phone")]}
    by_user = partial(Client, QuotaSocket(echo, connect="1/m"))
    came = [by_user(ann), by_user(ann), by_user(bob), by_user(), by_user(), by_user(address="192.0.2.2")]
    assert await answers(*came) == ["accept", "close", "accept", "accept", "close", "accept"]
    by_device: Any = partial(Client, QuotaSocket(echo, connect="sockets", key="ip"))
    assert await answers(by_device(**phone), by_device(**phone), by_device()) == ["accept", "close", "accept"]


@in_a_loop
async def test_a_bad_query_is_a_400_and_other_connections_pass() -> None:
    seen: list[str] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    await QuotaSocket(application, connect="0/m")({"type": "http"}, None, None)  # type: ignore[arg-type]
    assert seen == ["http"]
    limited = QuotaSocket(echo, connect="1/m", key="ip")
    assert (await Client(limited, query_string=b"\xff", extensions=HTTP_RESPONSE).next())["status"] == 400


@in_a_loop
async def test_a_limit_by_user_without_users_is_an_error_that_says_where_to_put_it() -> None:
    client = Client(QuotaSocket(echo, connect="1/m"))
    del client.scope["user"]
    with pytest.raises(ConfigurationError, match="inside AuthMiddlewareStack"):
        await client.task


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "code"), [(429, 4429), (503, 4503)])
@in_a_loop
async def test_a_refused_message_gets_a_notice_and_closes_the_socket(status: int, code: int) -> None:
    client = await opened(QuotaSocket(echo, receive="2/m", on_unavailable="deny"))
    assert [(await client.says(text))["text"] for text in ("one", "two")] == ["one", "two"]
    with no_answer() if status == 503 else nullcontext():
        notice, close = await client.says("three"), await client.next()
    await client.task
    assert client.got.empty(), "what the application sends after the close goes nowhere"
    said = json.loads(notice["text"])
    assert (said["type"], said["status"]) == ("quota.refused", status)
    assert (close["type"], close["code"], ECHO_ENDED[-1]) == ("websocket.close", code, code)


@in_a_loop
async def test_messages_count_over_all_sockets_of_a_subject() -> None:
    application = QuotaSocket(echo, receive="2/m")
    first, second, other = [await opened(application, user) for user in (User(pk=1), User(pk=1), None)]
    events = [await first.says("a"), await second.says("b"), await other.says("d"), await first.says("c")]
    *passed, notice = [event["text"] for event in events]
    assert (passed, "quota.refused" in notice) == (["a", "b", "d"], True)


@in_a_loop
async def test_without_close_a_refused_message_is_dropped_and_the_socket_stays() -> None:
    rule = Rule.make("chat", "1/m", key="ip")
    client = await opened(QuotaSocket(echo, receive=rule, close=False, notice=lambda decision: b"\x00"))
    one, refused = [await client.says(text) for text in ("one", "two")]
    await client.leaves()
    assert (one["text"], refused["bytes"], ECHO_ENDED[-1]) == ("one", b"\x00", 1001)
    assert peek(rule, "ip:192.0.2.1").remaining == 0, "a rule counts under its own name"
    silent = await opened(QuotaSocket(echo, receive="0/m", notice=None))
    assert (await silent.says())["type"] == "websocket.close"


# --- open sockets -----------------------------------------------------------------------------------------------------


@in_a_loop
async def test_a_subject_has_only_so_many_sockets_open_and_may_open_one_when_one_is_closed() -> None:
    socket = partial(Client, QuotaSocket(echo, at_once=1, key="ip"))
    first = socket()
    assert await answers(first, socket(), socket(address="::1")) == ["accept", "close", "accept"]
    await first.leaves()
    assert await answers(socket()) == ["accept"]


@pytest.mark.usefixtures("renewed_often")
@in_a_loop
async def test_a_socket_that_stays_open_for_hours_is_counted_all_the_time(the_clock_stands: QuotaKit) -> None:
    """Each lease is for a minute; it is renewed while the socket is open."""
    open_sockets = slot("websocket.at_once", 1, subject="ip:192.0.2.1")
    socket = partial(Client, QuotaSocket(echo, at_once=1, key="ip"))
    first = socket()
    assert await answers(first) == ["accept"]
    for _ in range(120):
        the_clock_stands.advance("55s")
        await asyncio.to_thread(wait_until, lambda: open_sockets.holders()[0][1] > 50)
    assert await answers(socket()) == ["close"]
    await first.leaves()
    assert await answers(socket()) == ["accept"]


@pytest.mark.usefixtures("renewed_often")
@pytest.mark.parametrize("said", ["allow", "local"])
@in_a_loop
async def test_sockets_that_were_let_in_during_an_outage_count_afterwards(said: Any) -> None:
    open_sockets = slot("websocket.at_once", 1, subject="ip:192.0.2.1")
    socket = partial(Client, QuotaSocket(echo, at_once=1, key="ip", on_unavailable=said))
    before = socket()
    assert await answers(before) == ["accept"]
    with no_answer():
        during = socket()
        assert await answers(during) == ["accept"]
    await asyncio.to_thread(wait_until, lambda: len(open_sockets.holders()) == 2)
    assert (await during.says())["text"] == "hello", "nobody is thrown out"
    await before.leaves()
    assert await answers(socket()) == ["close"]
    await during.leaves()
    assert await answers(socket()) == ["accept"]


@pytest.mark.parametrize("how", ["raises", "is cancelled", "is never reached"])
@in_a_loop
async def test_an_application_that_ends_badly_leaves_no_socket_open(how: str) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        if how == "raises":
            raise ZeroDivisionError
        await asyncio.Event().wait()

    is_refused = how == "is never reached"
    client = Client(QuotaSocket(application, connect="0/m" if is_refused else "9/m", at_once=1, key="ip"))
    assert await answers(client) == ["close" if is_refused else "accept"]
    if not is_refused:
        client.task.cancel()
    with nullcontext() if is_refused else pytest.raises((ZeroDivisionError, asyncio.CancelledError)):
        await client.task
    assert await slot("websocket.at_once", 1, subject="ip:192.0.2.1").aholders() == []


# --- arguments --------------------------------------------------------------------------------------------------------


def test_a_wrong_argument_is_refused_where_it_is_written() -> None:
    no_response: Any = {"receive": Rule.make("r", "1/m", count_when=lambda response: True)}
    for options, text in ({}, "limits nothing"), (no_response, "no response to ask"):
        with pytest.raises(RuleError, match=text):
            QuotaSocket(echo, **options)


# --- the page ---------------------------------------------------------------------------------------------------------


@in_a_loop
async def test_the_page_makes_a_limited_application_and_shows_the_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    consumers: Any = ModuleType("chat.consumers")
    consumers.ChatConsumer = SimpleNamespace(as_asgi=lambda: echo)
    monkeypatch.setitem(sys.modules, "chat.consumers", consumers)
    names = run_page("docs/channels.md")
    with freeze(NOON):
        client = await opened(names["application"], path="/chat/")
        *_, notice = [await client.says() for _ in range(21)]
    shown = [json.loads(text) for language, text in blocks("docs/channels.md") if language == "json"]
    assert shown == [json.loads(notice["text"])]
