"""Limits on websockets: handshakes, messages and open sockets, for any ASGI application."""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpResponse
from django.utils.functional import SimpleLazyObject

from django_quota import Rule, check, peek, slot
from django_quota.contrib.channels import QuotaSocket, notice_as_json
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
    ECHO_ENDED.append(event)


ECHO_ENDED: list[Any] = []


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


async def refused_events(extensions: Any) -> list[dict[str, Any]]:
    """Return what the server gets for the second handshake of one a minute."""
    application = QuotaSocket(echo, connect="1/m", key="ip")
    await opened(application)
    refused = Client(application, extensions=extensions)
    await refused.task
    return [refused.got.get_nowait() for _ in range(refused.got.qsize())]


@in_a_loop
async def test_a_refused_handshake_is_closed_where_the_server_takes_no_response() -> None:
    assert await refused_events(None) == [{"type": "websocket.close", "code": 1008}]


@in_a_loop
async def test_a_refused_handshake_is_a_429_where_the_server_takes_a_response() -> None:
    start, body = await refused_events(HTTP_RESPONSE)

    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert (body["type"], json.loads(body["body"])["status"]) == ("websocket.http.response.body", 429)


@in_a_loop
async def test_a_refused_handshake_has_the_headers_of_a_refused_request() -> None:
    start, _ = await refused_events(HTTP_RESPONSE)

    headers = dict(start["headers"])
    assert 0 < int(headers[b"retry-after"]) <= 60
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"ratelimit"].startswith(b'"connect";r=0')


@in_a_loop
async def test_a_refused_handshake_has_a_header_of_the_site_that_is_not_ascii(settings: Any) -> None:
    def refuse(request: Any, decision: Any) -> HttpResponse:
        return HttpResponse(status=429, headers={"X-Place": "Café"})

    settings.QUOTA = {**settings.QUOTA, "RESPONSE": refuse}

    start, _ = await refused_events(HTTP_RESPONSE)

    assert dict(start["headers"])[b"x-place"] == "Café".encode("latin-1")


@pytest.mark.parametrize(
    "limit",
    [pytest.param({"connect": "9/m"}, id="handshakes"), pytest.param({"at_once": 9}, id="open sockets")],
)
@in_a_loop
async def test_a_handshake_that_is_refused_during_an_outage_is_a_503(limit: dict[str, Any]) -> None:
    application = QuotaSocket(echo, key="ip", on_unavailable="deny", **limit)

    with no_answer():
        start = await Client(application, extensions=HTTP_RESPONSE).next()

    assert (start["type"], start["status"]) == ("websocket.http.response.start", 503)


ANN, BOB = User(pk=1), User(pk=2)


@pytest.mark.parametrize(
    ("came", "expected"),
    [
        pytest.param([(ANN,), (ANN,), (BOB,)], ["accept", "close", "accept"], id="users"),
        pytest.param([(), (), (None, "192.0.2.2")], ["accept", "close", "accept"], id="visitors, by address"),
        pytest.param([(ANN,), ()], ["accept", "accept"], id="a user beside a visitor of the address"),
    ],
)
@in_a_loop
async def test_handshakes_count_by_user_or_else_by_address(came: Any, expected: list[str]) -> None:
    application = QuotaSocket(echo, connect="1/m")

    assert await answers(*(Client(application, *who) for who in came)) == expected


@in_a_loop
async def test_handshakes_of_a_rule_count_by_its_own_key(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"sockets": {"rate": "1/m", "key": "header:x-device"}}}
    phone: dict[str, Any] = {"headers": [(b"x-device", b"phone")]}
    by_device = partial(Client, QuotaSocket(echo, connect="sockets", key="ip"))

    assert await answers(by_device(**phone), by_device(**phone), by_device()) == ["accept", "close", "accept"]


@pytest.mark.parametrize("event", ["connect", "receive"])
@in_a_loop
async def test_a_rule_of_the_settings_holds_as_they_are_now(event: str, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"sockets": "9/m"}}
    application = QuotaSocket(echo, **{event: "sockets"})  # type: ignore[arg-type]

    settings.QUOTA = {**settings.QUOTA, "RULES": {"sockets": "0/m"}}
    client = Client(application)
    client.events.put_nowait({"type": "websocket.receive", "text": "hello"})

    await client.task
    assert "websocket.close" in [client.got.get_nowait()["type"] for _ in range(client.got.qsize())]


@in_a_loop
async def test_a_visitor_whom_the_site_has_as_no_object_counts_by_address() -> None:
    client = Client(QuotaSocket(echo, connect="1/m"))
    client.scope["user"] = None

    assert await answers(client) == ["accept"]
    assert peek("1/m", "ip:192.0.2.1", name="websocket.connect").remaining == 0


@in_a_loop
async def test_a_handshake_is_a_get_request() -> None:
    methods: list[str] = []

    def by_method(request: Any) -> str:
        methods.append(request.method)
        return "all"

    await opened(QuotaSocket(echo, connect="1/m", key=by_method))

    assert methods == ["GET"]


def test_the_notice_of_a_refusal_that_no_time_helps_has_no_wait() -> None:
    assert json.loads(notice_as_json(check("0/m", "user:1")))["retry_after"] is None


@in_a_loop
async def test_handshakes_may_count_by_the_network_of_the_address() -> None:
    limited = partial(Client, QuotaSocket(echo, connect="1/m", key="ip/24"))

    same, other = ("203.0.113.9", "203.0.113.77"), "203.0.114.1"
    assert await answers(*(limited(address=each) for each in (*same, other))) == ["accept", "close", "accept"]


@in_a_loop
async def test_a_query_that_is_not_utf8_is_a_400() -> None:
    limited = QuotaSocket(echo, connect="1/m", key="ip")

    client = Client(limited, query_string=b"\xff", extensions=HTTP_RESPONSE)
    await client.task

    got = [client.got.get_nowait() for _ in range(client.got.qsize())]
    assert [event["type"] for event in got] == ["websocket.http.response.start", "websocket.http.response.body"]
    assert got[0]["status"] == 400


@pytest.mark.parametrize("kind", ["http", "lifespan"])
@in_a_loop
async def test_what_is_not_a_websocket_passes(kind: str) -> None:
    seen: list[str] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    await QuotaSocket(application, connect="0/m")({"type": kind}, None, None)  # type: ignore[arg-type]

    assert seen == [kind]


@in_a_loop
async def test_a_limit_by_user_without_users_is_an_error_that_says_where_to_put_it() -> None:
    client = Client(QuotaSocket(echo, connect="1/m"))
    del client.scope["user"]
    with pytest.raises(ConfigurationError) as raised:
        await client.task

    assert str(raised.value) == (
        "QuotaSocket limits by user, but the connection has no user. Put it inside AuthMiddlewareStack(...)."
    )


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outage", "status", "code"),
    [
        pytest.param(nullcontext, 429, 4429, id="too many messages"),
        pytest.param(no_answer, 503, 4503, id="the store is away"),
    ],
)
class TestRefusedMessages:
    """Two messages a minute; the third is refused."""

    async def third(self, outage: Any) -> tuple[Client, dict[str, Any], dict[str, Any]]:
        client = await opened(QuotaSocket(echo, receive="2/m", on_unavailable="deny"))
        assert [(await client.says(text))["text"] for text in ("one", "two")] == ["one", "two"]
        with outage():
            notice, close = await client.says("three"), await client.next()
        await client.task
        return client, notice, close

    def test_the_client_gets_a_notice(self, outage: Any, status: int, code: int) -> None:
        with freeze(NOON):
            _, notice, _ = asyncio.run(self.third(outage))

        detail, wait = {
            429: ("The limit is 2 per minute. Please try again in 60 seconds.", 60),
            503: ("This cannot be served right now. Please try again shortly.", 1),
        }[status]
        assert json.loads(notice["text"]) == {
            "type": "quota.refused", "status": status, "detail": detail, "retry_after": wait,
        }  # fmt: skip

    def test_the_socket_is_closed_with_a_code(self, outage: Any, status: int, code: int) -> None:
        _, _, close = asyncio.run(self.third(outage))

        assert close == {"type": "websocket.close", "code": code, "reason": "quota exceeded"}

    def test_the_application_learns_the_code(self, outage: Any, status: int, code: int) -> None:
        asyncio.run(self.third(outage))

        assert ECHO_ENDED[-1] == {"type": "websocket.disconnect", "code": code, "reason": "quota exceeded"}

    def test_what_the_application_sends_after_the_close_goes_nowhere(self, outage: Any, status: int, code: int) -> None:
        client, _, _ = asyncio.run(self.third(outage))

        assert client.got.empty()


@in_a_loop
async def test_messages_count_over_all_sockets_of_a_subject() -> None:
    application = QuotaSocket(echo, receive="2/m")
    first, second = await opened(application, ANN), await opened(application, ANN)

    *passed, notice = [
        (await client.says(text))["text"] for client, text in ((first, "a"), (second, "b"), (first, "c"))
    ]

    assert passed == ["a", "b"]
    assert "quota.refused" in notice


@in_a_loop
async def test_messages_of_another_subject_count_apart() -> None:
    application = QuotaSocket(echo, receive="1/m")
    first, other = await opened(application, ANN), await opened(application)

    assert (await first.says("a"))["text"] == "a"
    assert (await other.says("b"))["text"] == "b"


@in_a_loop
async def test_without_close_the_socket_stays_open() -> None:
    client = await opened(QuotaSocket(echo, receive="1/m", key="ip", close=False))
    for text in ("one", "two"):
        await client.says(text)

    await client.leaves()

    assert ECHO_ENDED[-1]["code"] == 1001, "the client has left, with its own code"


@in_a_loop
async def test_without_close_a_refused_message_is_dropped() -> None:
    client = await opened(QuotaSocket(echo, receive="1/m", key="ip", close=False, notice=lambda decision: b"\x00"))

    one, refused = [await client.says(text) for text in ("one", "two")]

    assert one["text"] == "one"
    assert refused["bytes"] == b"\x00", "the notice of the site, not the echo"


@in_a_loop
async def test_without_receive_no_message_is_limited() -> None:
    client = await opened(QuotaSocket(echo, connect="1/m"))

    answered = [(await client.says())["type"] for _ in range(5)]

    assert answered == ["websocket.send"] * 5


@in_a_loop
async def test_messages_of_an_exempt_network_are_not_limited(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "EXEMPT": ["192.0.2.0/24"]}
    client = await opened(QuotaSocket(echo, receive="0/m"))

    assert (await client.says("one"))["text"] == "one"


@pytest.mark.parametrize("option", [{"shadow": True}, {"block": False}], ids=["shadow", "block=False"])
@pytest.mark.parametrize("limit", ["connect", "receive"])
@in_a_loop
async def test_a_rule_that_only_reports_refuses_nothing(limit: str, option: dict[str, Any]) -> None:
    watching: dict[str, Any] = {limit: Rule.make("watched", "0/m", key="ip", **option)}
    client = await opened(QuotaSocket(echo, **watching))

    assert (await client.says("one"))["text"] == "one"


def test_a_notice_has_whole_seconds_rounded_up() -> None:
    with freeze(NOON):
        check("1/m", "ip:192.0.2.1", name="chat")
    with freeze(NOON + timedelta(milliseconds=500)):
        refused = check("1/m", "ip:192.0.2.1", name="chat")

    assert json.loads(notice_as_json(refused))["retry_after"] == 60


@in_a_loop
async def test_without_a_notice_the_socket_is_closed_in_silence() -> None:
    client = await opened(QuotaSocket(echo, receive="0/m", notice=None))

    assert (await client.says())["type"] == "websocket.close"


@in_a_loop
async def test_messages_of_a_rule_count_under_its_name() -> None:
    rule = Rule.make("chat", "1/m", key="ip")
    client = await opened(QuotaSocket(echo, receive=rule))

    await client.says()

    assert peek(rule, "ip:192.0.2.1").remaining == 0


@in_a_loop
async def test_the_limits_of_two_applications_count_together_if_their_name_is_the_same() -> None:
    chat, news, other = (QuotaSocket(echo, connect="1/m", key="ip", name=name) for name in ("a", "a", "b"))

    assert await answers(*map(Client, (chat, news, other))) == ["accept", "close", "accept"]


@in_a_loop
async def test_handshakes_and_messages_count_under_the_name_of_their_limit() -> None:
    client = await opened(QuotaSocket(echo, connect="9/m", receive="9/m", key="ip"))

    await client.says()

    left = [peek("9/m", "ip:192.0.2.1", name=f"websocket.{each}").remaining for each in ("connect", "receive")]
    assert left == [8, 8]


@in_a_loop
async def test_a_rule_may_read_the_session_of_a_socket() -> None:
    def by_cart(request: Any) -> str:
        return f"cart:{request.session['cart']}"

    socket = partial(Client, QuotaSocket(echo, connect="1/m", key=by_cart))

    assert await answers(*(socket(session={"cart": cart}) for cart in (1, 1, 2))) == ["accept", "close", "accept"]


@in_a_loop
async def test_a_rule_gets_the_user_that_channels_has_loaded() -> None:
    """A lazy user would be loaded once more, in the event loop."""
    lazy: Any = SimpleLazyObject(lambda: pytest.fail("the user is loaded once more"))
    lazy._wrapped = ANN
    seen: list[Any] = []

    def key(request: Any) -> str:
        seen.append(request.user)
        return "org:1"

    await opened(QuotaSocket(echo, connect="1/m", key=key), lazy)

    assert [type(user) for user in seen] == [User]


# --- open sockets -----------------------------------------------------------------------------------------------------


@in_a_loop
async def test_a_subject_has_only_so_many_sockets_open() -> None:
    socket = partial(Client, QuotaSocket(echo, at_once=1, key="ip"))

    assert await answers(socket(), socket(), socket(address="::1")) == ["accept", "close", "accept"]


@in_a_loop
async def test_open_sockets_count_by_user_or_else_by_address() -> None:
    socket = partial(Client, QuotaSocket(echo, at_once=1))

    assert await answers(socket(ANN), socket(ANN), socket(BOB), socket()) == ["accept", "close", "accept", "accept"]


@in_a_loop
async def test_open_sockets_of_two_applications_count_together_if_their_name_is_the_same() -> None:
    chat, news, other = (QuotaSocket(echo, at_once=1, key="ip", name=name) for name in ("a", "a", "b"))

    assert await answers(*map(Client, (chat, news, other))) == ["accept", "close", "accept"]


@in_a_loop
async def test_the_application_never_sees_a_socket_that_finds_no_slot() -> None:
    socket = partial(Client, QuotaSocket(echo, at_once=1, key="ip"))
    first, second = socket(), socket()
    assert await answers(first, second) == ["accept", "close"]

    await second.task

    assert second.got.empty()


@in_a_loop
async def test_a_subject_may_open_a_socket_when_another_is_closed() -> None:
    socket = partial(Client, QuotaSocket(echo, at_once=1, key="ip"))
    first = socket()
    assert await answers(first) == ["accept"]

    await first.leaves()

    assert await answers(socket()) == ["accept"]


@pytest.mark.parametrize(
    ("options", "seconds"),
    [pytest.param({}, 60, id="by default"), pytest.param({"lease": "10m"}, 600, id="as given")],
)
@in_a_loop
async def test_an_open_socket_counts_for_its_lease(options: dict[str, Any], seconds: int) -> None:
    with freeze(NOON):
        client = await opened(QuotaSocket(echo, at_once=1, key="ip", **options))
        holders = await slot("websocket.at_once", 1, subject="ip:192.0.2.1").aholders()
        await client.leaves()

    assert [left for _, left in holders] == [seconds]


@pytest.mark.parametrize(
    "limit",
    [pytest.param({"connect": "9/m"}, id="handshakes"), pytest.param({"at_once": 9}, id="open sockets")],
)
@pytest.mark.parametrize(("said", "answer"), [("deny", "close"), ("allow", "accept")])
@in_a_loop
async def test_an_argument_says_who_gets_in_during_an_outage(limit: dict[str, Any], said: Any, answer: str) -> None:
    application = QuotaSocket(echo, key="ip", on_unavailable=said, **limit)

    with no_answer():
        assert await answers(Client(application)) == [answer]


@pytest.mark.thorough("slow")
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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        pytest.param({}, "QuotaSocket limits nothing. Use, for example, connect='30/m'.", id="no limit"),
        pytest.param(
            {"receive": Rule.make("r", "1/m", count_when=lambda response: True)},
            "Rule 'r' has settle= or count_when=, but a socket has no response to ask them about.",
            id="count_when",
        ),
        pytest.param(
            {"connect": Rule.make("c", "1/m", settle=lambda request, response: 1)},
            "Rule 'c' has settle= or count_when=, but a socket has no response to ask them about.",
            id="settle",
        ),
        pytest.param(
            {"at_once": 0},
            "limit=0 of slot 'websocket.at_once' is not a whole number from 1 to 1,000,000. Use, for example, 3.",
            id="no socket",
        ),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_refused_where_it_is_written(options: Any, says: str) -> None:
    with pytest.raises(RuleError) as raised:
        QuotaSocket(echo, **options)

    assert str(raised.value) == says


def test_a_rule_of_the_settings_that_asks_about_a_response_is_refused_where_it_is_named(settings: Any) -> None:
    rule = {"rate": "1/m", "settle": lambda request, response: 1}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"paid": rule}}

    with pytest.raises(RuleError, match=r"^Rule 'paid' has settle= or count_when=, but a socket has no response "):
        QuotaSocket(echo, receive="paid")


# --- the page ---------------------------------------------------------------------------------------------------------


@in_a_loop
async def test_the_notice_of_the_page_is_what_its_application_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    consumers: Any = ModuleType("chat.consumers")
    consumers.ChatConsumer = SimpleNamespace(as_asgi=lambda: echo)
    monkeypatch.setitem(sys.modules, "chat.consumers", consumers)
    names = run_page("docs/channels.md")

    with freeze(NOON):
        client = await opened(names["application"], path="/chat/")
        *_, notice = [await client.says() for _ in range(21)]

    shown = [json.loads(text) for language, text in blocks("docs/channels.md") if language == "json"]
    assert shown == [json.loads(notice["text"])]
