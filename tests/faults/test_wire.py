"""Servers that are not Redis, and connections that break at any byte."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.calls import (
    CALLS,
    MODES,
    ask_each,
    assert_own_answers,
    assert_recovers,
    broken_promises,
    caches_at,
    do,
    use_site_rules,
)
from tests.faults.faults import PASSWORD, USER, FaultyServer
from tests.faults.sockets import GARBAGE, ConnectionFault, Proxy, listening, saying
from tests.support.outages import new_breaker
from tests.support.steps import Clock
from tests.support.stores import replace_store

WORDS = {
    "http": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "no-number": b":abc\r\n",
    "no-place": b"-MOVED nonsense\r\n",
    "nested": b"*1\r\n" * 3_000,
    "no-key": b"%1\r\n*0\r\n:1\r\n",
    "long-line": b"x" * 200_000,
    "endless": b"$999999999999\r\nabc",
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("decoded", [False, True], ids=["bytes", "decoded"])
@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS.keys())
def test_a_server_that_is_not_redis_counts_as_unavailable(
    words: bytes, decoded: bool, mode: str, settings: Any
) -> None:
    calls = [call for call in CALLS if call.name in ("check sliding deny", "counter.incr", "slot", "once")]
    use_site_rules(settings)

    with saying(words) as port:
        url = f"redis://{USER}:{PASSWORD}@127.0.0.1:{port}/0"
        settings.CACHES = caches_at(url, 0.05, decode_responses=decoded)
        found = broken_promises(mode, [None] * len(calls), Clock(), calls)

    said = found.pop("said")
    assert found == {}
    assert [text for text in said if PASSWORD in text or len(text) >= 600 or not text.isprintable()] == []


UNREADABLE = [
    b"+OK\r\n", b"$-1\r\n", b"*0\r\n",
    b"*5\r\n:1\r\n:-1\r\n:9\r\n:11\r\n$0\r\n\r\n",  # an override of no hit
    b"*5\r\n:1\r\n:-1\r\n:0\r\n:11\r\n:5\r\n",  # an override that is a number
    b"*10\r\n:1\r\n:1\r\n:1\r\n:2\r\n:3\r\n:4\r\n:5\r\n:9\r\n:5\r\n:0\r\n",  # an event of no hit
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("words", UNREADABLE)
def test_a_decision_whose_reply_cannot_be_read_is_degraded(words: bytes, mode: str, settings: Any) -> None:
    with saying(words) as port:
        settings.CACHES = caches_at(f"redis://127.0.0.1:{port}/0", 0.5)

        (decision,) = ask_each(mode, [10])

    assert (decision.allowed, decision.degraded) == (True, True)


@pytest.fixture
def proxy(one_server: FaultyServer, settings: Any) -> Iterator[Proxy]:
    made = Proxy(one_server.port)
    with listening(made.serve) as made.port:
        settings.CACHES = caches_at(f"redis://{USER}:{PASSWORD}@127.0.0.1:{made.port}/0")
        yield made


def after(proxy: Proxy, mode: str, fault: ConnectionFault, number: int) -> list[bool]:
    """Ask twice over a new connection that meets a fault; return whether each was decided without Redis."""
    replace_store()
    new_breaker()
    proxy.fault = fault
    decisions = ask_each(mode, [number] * 2)
    assert {(one.limit, one.subject) for one in decisions if not one.degraded} <= {(number, f"user:{number}")}
    return [one.degraded for one in decisions]


@pytest.mark.thorough("search")
@pytest.mark.parametrize("how", ["end", "reset", "garbage"])
@pytest.mark.parametrize("mode", MODES)
def test_a_reply_cut_off_at_any_byte_fails_only_that_call(mode: str, how: str, proxy: Proxy) -> None:
    ask_each(mode, [1_000])
    replace_store()
    ask_each(mode, [1_000])
    whole = proxy.replied
    assert whole > 100

    outcomes = {n: after(proxy, mode, ConnectionFault(n, how), 1_000 + n) for n in range(whole)}

    undone = [n for n, degraded in outcomes.items() if degraded[1]]
    if how == "garbage":
        # Garbage that ends where the reply would have ended looks like the reply, and the connection ends after it. The
        # greeting has the number of the client, which gets longer.
        undone = [n for n in undone if not 0 <= n - (whole - len(GARBAGE)) <= 3]
    assert undone == []
    if how != "garbage":  # within a string of the greeting, garbage looks like a part of the string
        assert [n for n, degraded in outcomes.items() if not degraded[0] and n < whole - 100] == []
    assert_own_answers(mode)


@pytest.mark.thorough("slow")
@pytest.mark.parametrize("how", ["end", "reset", "stall"])
@pytest.mark.parametrize("mode", MODES)
def test_a_request_cut_off_fails_only_that_call(mode: str, how: str, proxy: Proxy, settings: Any) -> None:
    if how == "stall":
        settings.CACHES = caches_at(f"redis://{USER}:{PASSWORD}@127.0.0.1:{proxy.port}/0", 0.2)

    outcomes = {
        number: after(proxy, mode, ConnectionFault(number, how, of_request=True), 1_000 + number)
        for number in range(0, 320, 31 if how != "stall" else 155)
    }

    assert [number for number, (first, _) in outcomes.items() if not first] == []
    if how != "stall":  # on a busy machine the next call may run into its time-out, too
        assert [number for number, (_, second) in outcomes.items() if second] == []
    assert_own_answers(mode)


@pytest.mark.parametrize("mode", MODES)
def test_every_call_survives_a_reply_cut_off(mode: str, proxy: Proxy, settings: Any) -> None:
    use_site_rules(settings)
    clock = Clock()
    assert_recovers(mode, clock)

    answers = {}
    for call in CALLS:
        state = call.before()
        replace_store()
        new_breaker(clock)
        proxy.fault = ConnectionFault(proxy.replied - 1, "reset")
        answers[call.name] = repr(do(call, mode, state))

    assert {name: answer for name, answer in answers.items() if PASSWORD in answer} == {}
    proxy.fault = None
    assert_recovers(mode, clock)
