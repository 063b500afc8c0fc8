"""The end of a stream: what has to happen then happens once, however the stream ends."""

import asyncio
import gc
import io
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import pytest
from django.core.signals import request_finished, request_started
from django.http import FileResponse

from django_quota.core.flow import Flow, IOCall
from django_quota.features.request_end import at_request_end, at_stream_end
from django_quota.limiting.flusher import flusher


class Content:
    """A generator of two parts that notes when it ends, and a flow that notes when it runs."""

    def __init__(self) -> None:
        self.closed = 0
        self.ended = 0

    def parts(self) -> Iterator[str]:
        try:
            yield from "ab"
        finally:
            self.closed += 1

    async def aparts(self) -> AsyncIterator[str]:
        try:
            for part in "ab":
                yield part
        finally:
            self.closed += 1

    def ending(self) -> Flow[None]:
        yield from ()
        self.ended += 1


class Broken(Iterator[str]):
    """Parts that cannot be closed."""

    def __next__(self) -> str:
        raise StopIteration

    def close(self) -> None:
        raise ZeroDivisionError


class Parts(AsyncIterator[str]):
    """Parts that have nothing to close."""

    async def __anext__(self) -> str:
        raise StopAsyncIteration


class AsyncBroken(Parts):
    """Parts that cannot be closed."""

    async def aclose(self) -> None:
        raise ZeroDivisionError


@pytest.fixture
def content() -> Content:
    return Content()


class TestSync:
    @pytest.fixture
    def stream(self, content: Content) -> Any:
        return at_stream_end(content.parts(), content.ending)

    def test_the_flow_runs_after_the_last_part(self, stream: Any, content: Content) -> None:
        next(stream)
        assert content.ended == 0

        assert list(stream) == ["b"]
        assert content.ended == 1

    def test_the_flow_runs_once(self, stream: Any, content: Content) -> None:
        list(stream)

        stream.close()

        assert content.ended == 1

    def test_closing_the_stream_closes_its_content(self, stream: Any, content: Content) -> None:
        next(stream)

        stream.close()

        assert (content.closed, content.ended) == (1, 1)

    def test_a_stream_of_what_has_no_close_can_be_closed(self, content: Content) -> None:
        at_stream_end(iter("ab"), content.ending).close()  # type: ignore[attr-defined]

        assert content.ended == 1

    def test_the_flow_runs_though_the_content_cannot_be_closed(self, content: Content) -> None:
        stream: Any = at_stream_end(Broken(), content.ending)

        with pytest.raises(ZeroDivisionError):
            stream.close()

        assert content.ended == 1

    def test_the_flow_of_a_file_runs_when_its_response_is_closed(self, content: Content) -> None:
        """The server sends the file itself, and reads no stream."""
        response = FileResponse(io.BytesIO(b"ab"))
        sent = response.file_to_stream

        assert at_stream_end(response, content.ending) is response
        ended = [content.ended]
        for _ in range(2):
            response.close()
            ended.append(content.ended)

        assert (response.file_to_stream, ended) == (sent, [0, 1, 1])

    @pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt], ids=lambda error: error.__name__)
    def test_the_flow_runs_though_the_stream_fails(self, error: type[BaseException], content: Content) -> None:
        def parts() -> Iterator[str]:
            yield "a"
            raise error

        stream = at_stream_end(parts(), content.ending)
        next(stream)

        with pytest.raises(error):
            next(stream)

        assert content.ended == 1

    def test_any_iterable_is_a_stream(self, content: Content) -> None:
        stream = at_stream_end(["a", "b"], content.ending)

        assert list(stream) == ["a", "b"]
        assert content.ended == 1

    def test_a_flow_that_fails_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        def ending() -> Flow[None]:
            yield from ()
            raise ZeroDivisionError

        assert list(at_stream_end(iter("ab"), ending)) == ["a", "b"]
        [record] = caplog.records
        assert (record.name, record.levelname, record.getMessage()) == (
            "django_quota.web",
            "ERROR",
            "A stream has ended, but a part of what it held was not given back.",
        )
        assert record.exc_info is not None


class TestAsync:
    @pytest.fixture
    def stream(self, content: Content) -> Any:
        return at_stream_end(content.aparts(), content.ending)

    def test_the_flow_runs_after_the_last_part(self, stream: Any, content: Content) -> None:
        async def read() -> None:
            await anext(stream)
            assert content.ended == 0
            assert [part async for part in stream] == ["b"]
            assert content.ended == 1

        asyncio.run(read())

    def test_the_flow_runs_once(self, stream: Any, content: Content) -> None:
        async def read() -> None:
            _ = [part async for part in stream]
            await stream.aclose()

        asyncio.run(read())

        assert content.ended == 1

    def test_closing_the_stream_closes_its_content(self, stream: Any, content: Content) -> None:
        async def close() -> None:
            await anext(stream)
            await stream.aclose()
            assert (content.closed, content.ended) == (1, 1)

        asyncio.run(close())

    def test_a_stream_of_what_has_no_close_can_be_closed(self, content: Content) -> None:
        async def close() -> None:
            await at_stream_end(Parts(), content.ending).aclose()  # type: ignore[attr-defined]
            assert content.ended == 1

        asyncio.run(close())

    def test_the_flow_runs_though_the_content_cannot_be_closed(self, content: Content) -> None:
        async def close() -> None:
            stream: Any = at_stream_end(AsyncBroken(), content.ending)
            with pytest.raises(ZeroDivisionError):
                await stream.aclose()
            assert content.ended == 1

        asyncio.run(close())

    def test_the_flow_runs_though_the_task_is_cancelled(self, content: Content) -> None:
        async def hangs() -> AsyncIterator[str]:
            yield "a"
            await asyncio.Event().wait()

        async def leave() -> None:
            stream = at_stream_end(hangs(), content.ending)
            await anext(stream)
            task = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert content.ended == 1

        asyncio.run(leave())

    def test_the_flow_runs_to_its_end_though_its_task_is_cancelled(self, content: Content) -> None:
        """As when a client leaves right after the last part."""

        async def hang() -> None:
            begun.set()
            await goes_on.wait()

        def ending() -> Flow[None]:
            yield IOCall(bool, hang)
            content.ended += 1

        async def leave() -> None:
            stream: Any = at_stream_end(content.aparts(), ending)
            task = asyncio.ensure_future(stream.aclose())
            await begun.wait()
            task.cancel()
            await asyncio.sleep(0)
            goes_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert content.ended == 1

        begun, goes_on = asyncio.Event(), asyncio.Event()
        asyncio.run(leave())

    def test_any_async_iterable_is_a_stream(self, content: Content) -> None:
        class Iterable:
            def __aiter__(self) -> AsyncIterator[str]:
                return content.aparts()

        async def read() -> list[str]:
            return [part async for part in cast("Any", at_stream_end(Iterable(), content.ending))]

        assert asyncio.run(read()) == ["a", "b"]
        assert content.ended == 1


class TestTheEndOfARequest:
    """What is done when a request ends, and what the background does for a request that was dropped."""

    @pytest.fixture
    def planned(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """The moments at which the background is to do something."""
        planned: list[float] = []
        monkeypatch.setattr(flusher, "call_at", lambda moment, _: planned.append(moment))
        return planned

    def test_ends_a_stream_that_nobody_has_read(self, content: Content) -> None:
        request_started.send(None)
        stream = at_stream_end(content.parts(), content.ending)

        request_finished.send(None)

        assert content.ended == 1
        assert list(stream) == []

    def test_ends_a_file_that_was_not_sent(self, content: Content) -> None:
        request_started.send(None)
        response = at_stream_end(FileResponse(io.BytesIO(b"ab")), content.ending)

        request_finished.send(None)

        assert content.ended == 1
        response.close()
        assert content.ended == 1

    def test_runs_the_other_actions_if_one_of_them_fails(self, caplog: pytest.LogCaptureFixture) -> None:
        done: list[str] = []
        request_started.send(None)
        for action in (lambda: done.append("first"), lambda: 1 / 0, lambda: done.append("last")):
            at_request_end(action)

        request_finished.send(None)

        assert sorted(done) == ["first", "last"]
        [record] = caplog.records
        assert (record.name, record.levelname, record.getMessage()) == (
            "django_quota.web",
            "ERROR",
            "A request has ended, but a part of what it held was not given back.",
        )
        assert record.exc_info is not None

    def test_leaves_no_request_to_which_an_action_could_be_added(self) -> None:
        request_started.send(None)
        request_finished.send(None)

        assert at_request_end(bool) is None

    def test_does_not_keep_a_stream_that_has_been_read(self, content: Content) -> None:
        request_started.send(None)
        stream = at_stream_end(content.parts(), content.ending)
        list(stream)
        of_stream = weakref.ref(stream)
        del stream
        gc.collect()

        assert of_stream() is None

        request_finished.send(None)

    @pytest.mark.parametrize(
        ("is_read", "number"), [(True, 0), (False, 1)], ids=["read to its end", "dropped with its request"]
    )
    def test_the_background_ends_only_a_stream_that_was_dropped(
        self, is_read: bool, number: int, content: Content, planned: list[float]
    ) -> None:
        request_started.send(None)
        stream = at_stream_end(content.parts(), content.ending)
        if is_read:
            list(stream)
        del stream

        request_started.send(None)  # the server has dropped the first without an end
        gc.collect()

        assert len(planned) == number
        request_finished.send(None)

    def test_the_background_does_not_end_a_stream_that_was_dropped_outside_of_a_request(
        self, content: Content, planned: list[float]
    ) -> None:
        stream = at_stream_end(content.parts(), content.ending)

        del stream
        gc.collect()

        assert planned == []
