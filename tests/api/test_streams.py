"""`hold.stream`: a reservation is settled when its stream is over, however it ends."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, nullcontext
from typing import Any

import pytest
from django.http import HttpResponse, StreamingHttpResponse

from django_quota import areserve, peek, reserve
from django_quota.exceptions import RuleError
from django_quota.testing import freeze
from django_quota.types import Hold
from tests.support.steps import START

SUBJECT = "user:42"

pytestmark = pytest.mark.usefixtures("memory_store")


@pytest.fixture(autouse=True)
def frozen(memory_store: None) -> Iterator[None]:
    with freeze(START):
        yield


class Model:
    """Streams parts, and knows what they have cost so far."""

    def __init__(self, breaks: bool = False) -> None:
        self.used = 0
        self.breaks = breaks
        self.is_closed = False

    def parts(self) -> Iterator[bytes]:
        try:
            for _ in range(3):
                self.used += 10
                yield b"part"
            if self.breaks:
                raise ZeroDivisionError
        finally:
            self.is_closed = True

    async def aparts(self) -> AsyncIterator[bytes]:
        try:
            for part in self.parts():
                yield part
        finally:
            self.is_closed = True

    def cost(self) -> int:
        return self.used


def hold() -> Hold:
    return reserve("1000/h", SUBJECT, 600)


def left() -> int | None:
    return peek("1000/h", SUBJECT).remaining


class TestSync:
    @pytest.mark.parametrize("breaks", [False, True])
    def test_the_end_of_the_stream_or_its_error_settles_it(self, breaks: bool) -> None:
        model = Model(breaks=breaks)
        stream = hold().stream(model.parts(), used=model.cost)
        assert left() == 400
        with pytest.raises(ZeroDivisionError) if breaks else nullcontext():
            assert list(stream) == [b"part"] * 3
        assert left() == 970

    def test_a_response_is_settled_when_it_has_been_read_and_a_client_that_leaves_pays_what_was_made(self) -> None:
        model, held = Model(), hold()
        response = held.stream(StreamingHttpResponse(model.parts()), used=model.cost)
        assert isinstance(response, StreamingHttpResponse)
        assert response.getvalue() == b"part" * 3
        assert (left(), held.is_open) == (970, False)
        response.close()
        assert left() == 970
        hold().stream(StreamingHttpResponse(Model().parts()), used=lambda: 0).close()
        assert left() == 970
        model = Model()
        response = reserve("1000/h", SUBJECT, 600).stream(StreamingHttpResponse(model.parts()), used=model.cost)
        next(iter(response))
        response.close()
        assert (model.is_closed, left()) == (True, 960)

    @pytest.mark.parametrize("wrong", [lambda: 1 / 0, lambda: "many", lambda: -1])
    def test_if_used_fails_the_estimate_stays_spent(self, wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.ERROR, "django_quota"):
            list(hold().stream(iter([b"part"]), used=wrong))
        assert "the estimate of its reservation stays spent" in caplog.text
        assert left() == 400

    @pytest.mark.parametrize("wrong", [HttpResponse(b"all"), b"all", "all", 5])
    def test_what_is_no_stream_is_named(self, wrong: Any) -> None:
        with pytest.raises(RuleError, match=r"is not a stream. "):
            hold().stream(wrong, used=lambda: 1)


class TestAsync:
    @pytest.mark.parametrize(("is_over", "times"), [(False, 1), (True, 1), (True, 2)])
    def test_a_cancelled_task_and_a_client_that_goes_away_behind_the_last_part_pay(
        self, is_over: bool, times: int
    ) -> None:
        reached = asyncio.Event()

        async def parts() -> AsyncIterator[bytes]:
            yield b"part"
            reached.set()
            if not is_over:  # else the task is about to settle it
                await asyncio.Event().wait()

        async def read() -> None:
            held = await areserve("1000/h", SUBJECT, 600)
            async for _ in held.stream(parts(), used=lambda: 10):
                pass

        async def work() -> None:
            task = asyncio.create_task(read())
            await reached.wait()
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(work())
        assert left() == 990

    @pytest.mark.parametrize("leaves", ["at the end", "early", "django"])
    def test_its_end_aclose_or_django_which_closes_it_in_a_thread_settle_it(self, leaves: str) -> None:
        model = Model()

        async def work() -> None:
            async with areserve("1000/h", SUBJECT, 600) as held:
                response = held.stream(StreamingHttpResponse(model.aparts()), used=model.cost)
            async with aclosing(aiter(response)) as parts:  # type: ignore[type-var]
                if leaves == "at the end":
                    assert [part async for part in parts] == [b"part"] * 3
                else:
                    await anext(parts)
            await asyncio.to_thread(response.close)

        async def loop() -> None:
            stream = (await areserve("1000/h", SUBJECT, 600)).stream(model.aparts(), used=model.cost)
            async with aclosing(stream) as parts:  # type: ignore[type-var]
                async for _ in parts:
                    break

        asyncio.run(loop() if leaves == "early" else work())
        assert (model.is_closed, left()) == (True, 970 if leaves == "at the end" else 990)
