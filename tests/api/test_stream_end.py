"""The end of a stream: what has to happen then happens once, however the stream ends."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from django_quota.core.flow import Flow
from django_quota.features.request_end import at_stream_end


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

    def test_the_flow_runs_though_the_stream_fails(self, content: Content) -> None:
        stream = at_stream_end((1 / 0 for _ in "a"), content.ending)

        with pytest.raises(ZeroDivisionError):
            list(stream)

        assert content.ended == 1

    def test_a_flow_that_fails_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        def ending() -> Flow[None]:
            yield from ()
            raise ZeroDivisionError

        assert list(at_stream_end(iter("ab"), ending)) == ["a", "b"]
        assert "A stream has ended, but a part of what it held was not given back." in caplog.text


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
