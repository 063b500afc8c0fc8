"""What has to happen once a stream is over: it ended, it failed, or its client went away.

If nobody reads it, it is over when its request ends, or when both are collected.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar, cast

from django.http import HttpResponseBase, StreamingHttpResponse

from django_quota.core.errors import RuleError
from django_quota.core.flow import Flow, run_sync, run_to_the_end
from django_quota.features.request_end import at_request_end, closers_of, end_later

logger = logging.getLogger("django_quota")

StreamT = TypeVar("StreamT")

Ending = Callable[[], Flow[Any]]
"""Makes the flow to run when a stream is over."""


def at_stream_end(stream: StreamT, ending: Ending) -> StreamT:
    """Return a stream that runs a flow once when it is over. A response is returned itself.

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
            logger.exception("A stream is over, and a part of what it held was not given back.")


class _SyncStream(_Stream, Iterator[Any]):
    def __next__(self) -> Any:
        try:
            return next(self._content)
        except BaseException:
            run_sync(self._ending())
            raise


class _AsyncStream(_Stream, AsyncIterator[Any]):
    """Its end comes even if its task is cancelled: a client often goes away right after the last part."""

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
