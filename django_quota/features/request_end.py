"""What must happen at the end of the current request or of a stream, whatever becomes of the response.

A middleware may replace a streaming response or raise an error, and a client may leave before the stream begins. Then
the response is never read or closed. But Django sends `request_finished` when the server has closed the response that
it was given, or after the task of the request was cancelled.

Django does not send it if a WSGI server drops a response without closing it, or if an ASGI server fails to send or
cancels the application itself. Then the garbage collector finds what is still held, and it ends in the background; see
`end_later`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from asgiref.sync import SyncToAsync
from django.core.signals import request_finished, request_started
from django.http import HttpResponseBase, StreamingHttpResponse

from django_quota.core import clock
from django_quota.core.errors import RuleError
from django_quota.core.flow import Flow, run_sync, run_to_the_end
from django_quota.limiting.flusher import flusher
from django_quota.runtime import runtime

logger = logging.getLogger("django_quota.web")

AtEnd = Callable[[], object]

_of_context: ContextVar[list[AtEnd] | None] = ContextVar("django_quota_request_end", default=None)
"""The actions of a request that a thread serves, as under WSGI."""

_of_request: WeakKeyDictionary[Any, list[AtEnd]] = WeakKeyDictionary()
"""The actions of a request under ASGI, by an object that each request has: its tasks have different contexts."""


def at_request_end(action: AtEnd) -> Callable[[], None] | None:
    """Call a function when the current request ends, in a thread that may block; return a function that withdraws it.

    Outside of a request it is never called, and None is returned.
    """
    if hearing.made is None:  # the app is not in INSTALLED_APPS, so the start of this request was not noticed
        hearing.get()
        _begin()
    actions = _actions()
    if actions is None:
        return None
    actions.append(action)

    def withdraw() -> None:
        with suppress(ValueError):  # the request has ended
            actions.remove(action)

    return withdraw


def _actions() -> list[AtEnd] | None:
    """Return the actions of the current request; None outside of one."""
    request = SyncToAsync.thread_sensitive_context.get(None)
    return _of_context.get() if request is None else _of_request.setdefault(request, [])


def _begin(**_: Any) -> None:
    _of_context.set([])


def _end(**_: Any) -> None:
    actions = _actions()
    _of_context.set(None)
    _do(actions or [])


def _connect() -> bool:
    request_started.connect(_begin)
    request_finished.connect(_end)
    return True


hearing = runtime.part(_connect, depends=lambda *_: False)
"""Whether this process is connected to the signals of requests. `AppConfig.ready` connects it."""


def end_later(action: AtEnd) -> None:
    """Call a function in the background. For `__del__`, which may run in any thread, even that of an event loop."""
    flusher.call_at(clock.elapsed(), partial(_do, [action]))


def _do(actions: list[AtEnd]) -> None:
    while actions:
        try:
            actions.pop()()
        except Exception:
            logger.exception("A request has ended, but a part of what it held was not given back.")


# --- streams ----------------------------------------------------------------------------------------------------------

StreamT = TypeVar("StreamT")

Ending = Callable[[], Flow[Any]]
"""Makes the flow to run when a stream has ended."""


def closers_of(response: Any) -> list[AtEnd]:
    """Return the functions that a response calls when it is closed; its `close()` also sends `request_finished`.

    Django has no public way to add one.
    """
    found: list[AtEnd] = getattr(response, "_resource_closers", [])
    return found


def at_stream_end(stream: StreamT, ending: Ending) -> StreamT:
    """Return a stream that runs a flow once when it has ended. A response is changed and returned itself.

    Raises `RuleError` if the stream is neither a streaming response nor an iterator.
    """
    if isinstance(stream, StreamingHttpResponse):
        if getattr(stream, "file_to_stream", None) is None:
            stream.streaming_content = at_stream_end(stream.streaming_content, ending)
        else:  # the server sends a file itself, and closes the response
            closers_of(stream).append(_Stream(None, ending).close)
        return cast("StreamT", stream)
    if isinstance(stream, (HttpResponseBase, str, bytes)):
        raise RuleError(f"{type(stream).__name__} is not a stream.", "Call settle() when the cost is known.")
    if hasattr(stream, "__aiter__"):
        return cast("StreamT", _AsyncStream(aiter(cast("Any", stream)), ending))
    if hasattr(stream, "__iter__"):
        return cast("StreamT", _SyncStream(iter(cast("Any", stream)), ending))
    raise RuleError(f"{stream!r} is not a stream.", "Use a StreamingHttpResponse, or a sync or async iterator.")


class _Stream:
    """What the sync and the async stream share."""

    def __init__(self, content: Any, ending: Ending) -> None:
        self._content = content
        self._make_flow = ending
        self._is_over = False
        self._withdraw = at_request_end(self.close)

    def __del__(self) -> None:
        if self._withdraw is not None and not self._is_over:
            end_later(self.close)

    def close(self) -> None:
        """End the stream."""
        try:
            if hasattr(self._content, "close"):
                self._content.close()
        finally:
            run_sync(self._ending())

    def _ending(self) -> Flow[None]:
        was_over, self._is_over = self._is_over, True
        if was_over:
            return
        if self._withdraw is not None:
            self._withdraw()
        try:
            yield from self._make_flow()
        except Exception:
            logger.exception("A stream has ended, but a part of what it held was not given back.")


class _SyncStream(_Stream, Iterator[Any]):
    def __next__(self) -> Any:
        try:
            return next(self._content)
        except BaseException:
            run_sync(self._ending())
            raise


class _AsyncStream(_Stream, AsyncIterator[Any]):
    """Its ending runs even if its task is cancelled: a client often leaves right after the last part."""

    async def __anext__(self) -> Any:
        try:
            return await anext(self._content)
        except BaseException:
            await run_to_the_end(self._ending())
            raise

    async def aclose(self) -> None:
        """End the stream."""
        try:
            if hasattr(self._content, "aclose"):
                await self._content.aclose()
        finally:
            await run_to_the_end(self._ending())
