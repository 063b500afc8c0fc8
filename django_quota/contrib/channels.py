"""Limits on websockets: handshakes, messages and open sockets.

`AuthMiddlewareStack(QuotaSocket(URLRouter([...]), connect="30/m", receive="20/s", at_once=5))`

It is ASGI middleware, so it limits the consumers of Channels and any other ASGI application.
"""

from __future__ import annotations

import io
import json
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Any, Literal, TypeAlias, cast

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from django.utils.functional import LazyObject

from django_quota import Decision, Rule, acheck
from django_quota.adapters import SlotRule, adecide, arefusal_response, is_exempt, read_rule, refusal_details
from django_quota.conf import current
from django_quota.exceptions import ConfigurationError, RuleError

ConnectionScope: TypeAlias = MutableMapping[str, Any]
SocketEvent: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[SocketEvent]]
Send: TypeAlias = Callable[[SocketEvent], Awaitable[None]]
Application: TypeAlias = Callable[[Any, Any, Any], Awaitable[Any]]

CLOSE_CODES = {
    HTTPStatus.TOO_MANY_REQUESTS: 4429,
    HTTPStatus.SERVICE_UNAVAILABLE: 4503,
}
"""The close code after a refused message: its status in the range of codes that applications may choose."""


def notice_as_json(decision: Decision) -> str:
    """Return the notice of a refused message: JSON with the reason in words, and the seconds to wait (or null)."""
    status, message, wait = refusal_details(decision)
    body = {"type": "quota.refused", "status": status, "detail": message, "retry_after": wait}
    return json.dumps(body)


class QuotaSocket:
    """Limits the websockets of an ASGI application; other connections pass.

    `connect`: how often a subject may open a socket. `receive`: how many messages it may send, over all of its
    sockets. Each is a rate (`"20/s; 500/h"`), the name of a configured rule, or a `Rule`; None: no limit.
    `at_once`: how many sockets a subject may have open, 1 to 1,000,000. `key`: who is limited, as in a rule; for
    `"user"` put it inside `AuthMiddlewareStack`. A rule from the settings has its own key. `name`: what the limits are
    called in keys, logs and headers; several `QuotaSocket` with one name share their limits.

    `lease`: the time after which the sockets of a worker that was killed no longer count. `close`: whether a refused
    message closes the socket; if False, the message is dropped. `notice`: returns the string or bytes that the client
    gets for a refused message; None sends nothing. `on_unavailable`: what happens while the store does not answer; None
    for the setting.

    A refused handshake is answered as the decorators answer a request if the server has the extension
    `websocket.http.response`, and with 403 if not. Raises `RuleError` at once if an argument is wrong.
    """

    def __init__(
        self,
        application: Application,
        *,
        connect: str | Rule | None = None,
        receive: str | Rule | None = None,
        at_once: int | None = None,
        key: Any = "user",
        name: str = "websocket",
        lease: float | str | timedelta = 60,
        close: bool = True,
        notice: Callable[[Decision], str | bytes] | None = notice_as_json,
        on_unavailable: Literal["allow", "deny", "local"] | None = None,
    ) -> None:
        if connect is None and receive is None and at_once is None:
            raise RuleError("QuotaSocket limits nothing.", "Use, for example, connect='30/m'.")
        self._needs_user = key == "user"
        own = {"key": key, "on_unavailable": on_unavailable}
        self._application = application
        self._connect = None if connect is None else _rule(connect, {**own, "name": f"{name}.connect"})
        self._receive = None if receive is None else _rule(receive, {**own, "name": f"{name}.receive"})
        self._slot: SlotRule | None = None
        if at_once is not None:
            self._slot = SlotRule.make(
                f"{name}.at_once", at_once, key=key, lease=lease, renew=True, on_unavailable=on_unavailable
            )
        self._closes = close
        self._notice = notice

    async def __call__(self, scope: ConnectionScope, receive: Receive, send: Send) -> None:
        """Run the application, or refuse the handshake."""
        if scope["type"] != "websocket":
            await self._application(scope, receive, send)
            return
        opening = await receive()
        try:
            request = _request_of(scope)
        except UnicodeDecodeError:  # the query string is not UTF-8
            await _refuse(scope, send, HttpResponse(status=400))
            return
        if self._needs_user and "user" not in scope:
            raise ConfigurationError(
                "QuotaSocket limits by user, but the connection has no user.", "Put it inside AuthMiddlewareStack(...)."
            )
        if self._connect is not None:
            decision = await adecide(request, [self._connect])
            if decision.enforced:
                await _refuse(scope, send, await arefusal_response(request, decision))
                return
        async with nullcontext() if self._slot is None else self._slot.hold(request) as refused:
            if refused is not None:
                await _refuse(scope, send, refused)
                return
            socket = _Socket(opening, receive, send, partial(self._refused, request), self._notice, self._closes)
            await self._application(scope, socket.receive, socket.send)

    async def _refused(self, request: HttpRequest) -> Decision | None:
        """Count a message; return the decision if it is refused."""
        if self._receive is None or is_exempt(request):
            return None
        decision = await acheck(self._receive, request)
        return decision if decision.enforced else None


@dataclass
class _Socket:
    """An open socket whose messages are counted, as the application sees it."""

    opening: SocketEvent | None
    """The first event, which was read ahead."""
    events: Receive
    sends: Send
    refused: Callable[[], Awaitable[Decision | None]]
    notice: Callable[[Decision], str | bytes] | None
    closes: bool
    is_closed: bool = False

    async def receive(self) -> SocketEvent:
        """Return the next event that is not refused."""
        while True:
            event, self.opening = self.opening or await self.events(), None
            decision = (await self.refused()) if event["type"] == "websocket.receive" else None
            if decision is None:
                return event
            if self.notice is not None:
                body = self.notice(decision)
                await self.send({"type": "websocket.send", "text" if isinstance(body, str) else "bytes": body})
            if self.closes:
                code = CLOSE_CODES[refusal_details(decision).status]
                await self.send({"type": "websocket.close", "code": code, "reason": "quota exceeded"})
                self.is_closed = True
                return {"type": "websocket.disconnect", "code": code, "reason": "quota exceeded"}

    async def send(self, event: SocketEvent) -> None:
        """Send an event, unless a refused message has closed the socket."""
        if not self.is_closed:
            await self.sends(event)


def _rule(given: str | Rule, options: dict[str, object]) -> str | Rule:
    """Return the rule of a rate; a rule stays as it is, and so does a name, which is looked up at each use."""
    is_name = isinstance(given, str) and given in current().rules
    rule = read_rule(given, **({} if is_name or isinstance(given, Rule) else options))
    if rule.settles:
        raise RuleError(
            f"Rule {rule.name!r} has settle= or count_when=, but a socket has no response to ask them about."
        )
    return given if is_name else rule


def _request_of(scope: ConnectionScope) -> HttpRequest:
    """Return the handshake as a request: the keys of rules read its address, headers, cookies, user and session."""
    request = ASGIRequest({**scope, "type": "http", "method": "GET"}, io.BytesIO())
    user = scope.get("user")
    # Channels has loaded its lazy user. A lazy one would be loaded once more, in a thread.
    request.user = cast("Any", user)._wrapped if isinstance(user, LazyObject) else cast("Any", user)  # noqa: SLF001
    request.session = cast("Any", scope.get("session"))
    return request


async def _refuse(scope: ConnectionScope, send: Send, response: HttpResponse) -> None:
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.items()]
    await send({"type": "websocket.http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": response.content})
