"""What comes over the wire is no Redis, or only a part of one: connections that break anywhere, and words of others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest

from django_quota import Decision, acheck, check
from django_quota.stores.breaker import Breaker
from django_quota.testing import server_programs
from tests.failures.calls import CALLS, WAYS, do
from tests.failures.harms import PASSWORD, USER, Place, placed
from tests.failures.places import Clock, are_told_apart, caches_at, goes_on, store, with_site, wrongs_without_redis
from tests.failures.sockets import Fault, Proxy, saying

ALONE = [call for call in CALLS if "before" not in call.name]
"""Those that need nothing from when Redis was well."""

WORDS = {
    "http": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
    "no-number": b":abc\r\n",
    "no-length": b"$abc\r\nxx\r\n",
    "negative-length": b"$-7\r\nxx\r\n",
    "no-fraction": b",abc\r\n",
    "no-text": b"$2\r\n\xff\xfe\r\n",
    "no-place": b"-MOVED nonsense\r\n",
    "nested": b"*1\r\n" * 3_000,
    "no-key": b"%1\r\n*0\r\n:1\r\n",
    "no-push": b">0\r\n",
    "long-line": b"x" * 200_000,
    "endless": b"$999999999999\r\nabc",
    "no-error": b"-\r\n",
    "always-ok": b"+OK\r\n",
    "nothing": b"$-1\r\n",
    "zeros": b"\0" * 100,
    "no-line": b"\r\n",
}


@pytest.mark.parametrize("decoded", [False, True], ids=["bytes", "decoded"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS.keys())
def test_a_server_that_is_no_redis_is_one_that_does_not_answer(
    words: bytes, way: str, decoded: bool, settings: Any
) -> None:
    with saying(words) as port:
        settings.CACHES = caches_at(f"redis://{USER}:{PASSWORD}@127.0.0.1:{port}/0", 0.05, decode_responses=decoded)
        with_site(settings)
        calls = [call for call in ALONE if call.name in ("check sliding deny", "counter.incr", "slot", "once")]
        found = wrongs_without_redis(way, [None] * len(calls), Clock(), calls)
        said = found.pop("said")
    assert found == {}
    assert all(PASSWORD not in text and len(text) < 600 and text.isprintable() for text in said)


@pytest.mark.parametrize("way", WAYS)
def test_every_call_takes_a_server_of_http_for_one_that_does_not_answer(way: str, settings: Any) -> None:
    with saying(WORDS["http"]) as port:
        settings.CACHES = caches_at(f"redis://127.0.0.1:{port}/0")
        with_site(settings)
        found = wrongs_without_redis(way, [None] * len(ALONE), Clock(), ALONE)
        spoken = r"does not speak the protocol of Redis, but (HTTP/1\.1|perhaps HTTP)"  # the latter with hiredis
        assert any(re.search(spoken, text) for text in found.pop("said"))
    assert found == {}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with placed(server_programs()[0], tmp_path_factory.mktemp("place")) as made:
        yield made


@pytest.fixture
def proxy(place: Place, settings: Any) -> Iterator[Proxy]:
    made = Proxy(place.port)
    settings.CACHES = caches_at(f"redis://{USER}:{PASSWORD}@127.0.0.1:{made.port}/0")
    yield made
    made.close()


def asked(way: str, number: int, times: int = 2) -> list[Decision]:
    if way == "sync":
        return [check(f"{number}/m", f"user:{number}") for _ in range(times)]

    async def ask() -> list[Decision]:
        return [await acheck(f"{number}/m", f"user:{number}") for _ in range(times)]

    return asyncio.run(ask())


def after(proxy: Proxy, way: str, fault: Fault, number: int) -> list[bool]:
    """Ask twice over a new connection that meets a fault; return whether each was decided without Redis."""
    store().close()
    store().breaker = Breaker()
    proxy.fault = fault
    decisions = asked(way, number)
    assert all(one.degraded or (one.limit, one.subject) == (number, f"user:{number}") for one in decisions)
    return [one.degraded for one in decisions]


@pytest.mark.parametrize("how", ["end", "reset", "garbage"])
@pytest.mark.parametrize("way", WAYS)
def test_a_reply_that_breaks_off_after_any_byte_is_no_answer_and_the_next_call_is_well(
    way: str, how: str, proxy: Proxy
) -> None:
    asked(way, 1_000)
    store().close()
    store()._errands.hurry()  # so that they do not come along with some of them only
    asked(way, 1_000, times=1)
    whole = proxy.replied
    assert whole > 100
    told = {n: after(proxy, way, Fault(n, how), 1_000 + n) for n in range(whole)}
    undone = [n for n, degraded in told.items() if degraded[1]]
    assert undone == []
    if how != "garbage":  # within a text of the greeting it is not to be told from one
        # Errands may have made the measured reply longer than the others.
        assert [n for n, degraded in told.items() if not degraded[0] and n < whole - 100] == []
    are_told_apart(way)


@pytest.mark.parametrize("how", ["end", "reset", "stall"])
@pytest.mark.parametrize("way", WAYS)
def test_a_request_that_breaks_off_is_no_answer_and_the_next_call_is_well(
    way: str, how: str, proxy: Proxy, settings: Any
) -> None:
    if how == "stall":
        settings.CACHES = caches_at(f"redis://{USER}:{PASSWORD}@127.0.0.1:{proxy.port}/0", 0.2)
    for number in range(0, 320, 31 if how != "stall" else 155):
        first, second = after(proxy, way, Fault(number, how, of_request=True), 1_000 + number)
        assert first
        if how != "stall":  # on a busy machine the next call may run into its time-out, too
            assert not second
    are_told_apart(way)


@pytest.mark.parametrize("way", WAYS)
def test_every_call_may_meet_a_reply_that_breaks_off(way: str, proxy: Proxy, settings: Any) -> None:
    with_site(settings)
    clock = Clock()
    goes_on(way, clock)
    for call in CALLS:
        state = call.before()
        store().close()
        store().breaker = Breaker(clock=clock)
        proxy.fault = Fault(proxy.replied - 1, "reset")
        assert PASSWORD not in repr(do(call, way, state))
    proxy.fault = None
    goes_on(way, clock)


def test_a_connection_whose_greeting_made_no_sense_is_not_used_half_greeted(settings: Any) -> None:
    async def ask() -> list[bool]:
        await acheck("9/m", "user:1")
        client = await store()._async_clients.get()
        pool: Any = client.client.connection_pool
        return [connection.is_connected for connection in pool._available_connections]

    with saying(b":1\r\n") as port:
        settings.CACHES = caches_at(f"redis://{USER}:{PASSWORD}@127.0.0.1:{port}/0")
        assert not any(asyncio.run(ask()))
