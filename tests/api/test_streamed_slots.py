"""A streaming response keeps the slots of its request until it has been sent or closed."""

import asyncio
from typing import Any

import pytest
from django.test import AsyncClient

from django_quota import concurrency, reserve
from tests.support.calls import get
from tests.support.slot_views import astream, held, one, send_file, stream

pytestmark = pytest.mark.usefixtures("slot_site")

URLS = ["/stream/", "/twice/", "/astream/", "/export/stream/", "/export/astream/"]


def all_held() -> int:
    return held() + held("inner") + held("exports")


async def content_of(client: Any, url: str) -> Any:
    """Return the content of a response, which is an async iterator or not."""
    return (await client.get(url)).streaming_content


async def parts_of(content: Any) -> list[bytes]:
    return [part async for part in content] if hasattr(content, "__aiter__") else list(content)


@pytest.mark.parametrize("url", URLS)
class TestAStream:
    def test_it_keeps_its_slot_until_its_last_part(self, url: str) -> None:
        async def send() -> list[bytes]:
            return await parts_of(await content_of(AsyncClient(), url))

        assert asyncio.run(send()) == [b"a", b"1"]

    def test_it_gives_its_slots_back_once_it_is_sent(self, url: str) -> None:
        async def send() -> None:
            await parts_of(await content_of(AsyncClient(), url))
            assert all_held() == 0

        asyncio.run(send())

    def test_others_are_refused_meanwhile(self, url: str) -> None:
        async def send() -> None:
            client = AsyncClient()
            content = await content_of(client, url)
            _ = await anext(content) if "astream" in url else next(content)
            assert (await client.get(url)).status_code == 429
            await parts_of(content)

        asyncio.run(send())


@pytest.mark.parametrize("view", [stream, send_file, astream])
@pytest.mark.parametrize("has_begun", [False, True], ids=["before its first part", "after its first part"])
def test_a_response_that_is_closed_early_gives_its_slot_back(view: Any, has_begun: bool) -> None:
    async def begin() -> None:
        response = one(view)(get())
        response = await response if view is astream else response
        assert held() == 1
        if has_begun and view is astream:
            content = aiter(response)
            assert await anext(content)
            await content.aclose()
        elif has_begun:
            assert next(iter(response))

        response.close()

        assert held() == 0

    asyncio.run(begin())


def test_a_stream_that_fails_gives_its_slot_back() -> None:
    def broken(request: Any) -> Any:
        response = stream(request)
        response.streaming_content = (1 / 0 for _ in "a")
        return response

    response: Any = one(broken)(get())
    with pytest.raises(ZeroDivisionError):
        list(response)

    assert held() == 0


@pytest.mark.parametrize(
    "wrap",
    [one, lambda view: lambda request: reserve("9/h", "user:1", 4, name="files").stream(view(request), lambda: 2)],
    ids=["a slot", "a reservation"],
)
def test_the_server_still_sends_a_file_by_itself(wrap: Any) -> None:
    response = wrap(send_file)(get())

    assert response.file_to_stream is not None
    response.close()


def test_a_stream_that_closes_twice_gives_its_slot_back_once() -> None:
    first: Any = one(stream)(get())
    first.close()
    second: Any = one(stream)(get())

    first.close()

    assert held() == 1
    second.close()


def test_a_stream_without_a_slot_is_left_as_it_is(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
    response = stream(get())
    closers = list(response._resource_closers)

    assert concurrency(1)(lambda request: response)(get()) is response
    assert response._resource_closers == closers
