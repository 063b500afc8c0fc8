"""All tasks of an event loop share one wire to Redis, and each reply belongs to its call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
import redis
from redis.asyncio import UnixDomainSocketConnection
from redis.exceptions import InvalidResponse, ResponseError

from django_quota import Decision, acheck, aonce, areset, check, peek
from django_quota.exceptions import StoreUnavailable
from django_quota.stores.breaker import Breaker
from django_quota.stores.redis import async_wire
from django_quota.stores.redis import wire as reading
from django_quota.stores.redis.async_wire import MOST_UNDER_WAY, AsyncWire, Line
from django_quota.stores.redis.connections import CHECK_AFTER_IDLE, Source
from django_quota.testing import RedisServer
from tests.faults.calls import caches_at
from tests.faults.sockets import listening
from tests.support.commands import PATIENCE, wait_until
from tests.support.event_loops import until
from tests.support.outages import FAILURES, heard
from tests.support.selection import thorough
from tests.support.stores import caches, redis_store

LIMIT = 1_000


@pytest.fixture(autouse=True)
def patient(redis_server: RedisServer, raw: redis.Redis, settings: Any) -> None:
    settings.CACHES = caches(redis_server, socket_timeout=20, socket_connect_timeout=20)


async def wire_of_this_loop() -> Any:
    return await redis_store().server.wires.get()


async def all_of(calls: Any) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


# --- one wire ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough("slow")
def test_thousands_of_tasks_at_once_are_decided_by_redis_over_one_connection(raw: redis.Redis) -> None:
    def opened() -> int:
        return int(raw.info("stats")["total_connections_received"])

    before = opened()

    async def flood() -> list[Any]:
        return await asyncio.gather(*(acheck("2000/h", "user:1") for _ in range(5_000)))

    decisions = asyncio.run(flood())
    assert sum(decision.allowed for decision in decisions) == 2_000
    assert not any(decision.degraded for decision in decisions)
    assert opened() == before + 1


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Make so many calls at once; returns how many commands each write had."""
    sizes: list[int] = []
    send = Line.send

    def noted(line: Line, commands: list[bytes], late: float) -> None:
        sizes.append(len(commands))
        assert len(line.under_way) <= MOST_UNDER_WAY
        send(line, commands, late)

    async def ask(calls: int) -> list[int]:
        await acheck("999/m", "user:1")
        monkeypatch.setattr(Line, "send", noted)
        await asyncio.gather(*(acheck("999/m", "user:1") for _ in range(calls)))
        return sizes

    return lambda calls: asyncio.run(ask(calls))


def test_the_tasks_of_a_turn_share_a_write(written: Callable[[int], list[int]]) -> None:
    assert written(10) == [10]


def test_a_write_has_so_many_commands_at_most(written: Callable[[int], list[int]]) -> None:
    sizes = written(200)

    assert sum(sizes) == 200
    assert max(sizes) == MOST_UNDER_WAY


def test_loops_in_two_threads_have_a_wire_each() -> None:
    allowed: list[int] = []

    async def ask() -> None:
        decisions = await asyncio.gather(*(acheck("300/h", "user:1") for _ in range(200)))
        assert not any(decision.degraded for decision in decisions)
        allowed.append(sum(decision.allowed for decision in decisions))

    threads = [threading.Thread(target=asyncio.run, args=(ask(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(allowed) == 300


def test_uvloop_shares_a_wire_as_well(raw: redis.Redis) -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")

    async def ask() -> list[Any]:
        found = await asyncio.gather(*(acheck("300/h", f"user:{n % 7}") for n in range(700)))
        raw.client_kill_filter(_type="normal", skipme=True)
        await asyncio.sleep(0.05)
        return [*found, await acheck("300/h", "user:1")]

    decisions = uvloop.run(ask())
    assert not any(decision.degraded for decision in decisions)
    assert sorted(each.remaining for each in decisions[:7]) == [299] * 7
    assert decisions[-1].remaining == 199


# --- never a crossed reply --------------------------------------------------------------------------------------------


def cost_of(number: int) -> int:
    return 1 + number % 499


async def ask(number: int) -> Decision:
    return await acheck(f"{LIMIT}/h", f"user:{number}", cost_of(number))


def wrong_with(number: int, decision: Decision | None) -> Iterator[str]:
    """Yield what is wrong with a call; None: it was cancelled."""
    cost, subject = cost_of(number), f"user:{number}"
    counted = LIMIT - (peek(f"{LIMIT}/h", subject).remaining or 0)
    if counted != cost and not (decision is None and counted == 0):
        yield f"{counted} is counted for call {number}"
    if decision is not None:
        said = (decision.subject, decision.remaining, decision.degraded)
        if said != (subject, LIMIT - cost, False):
            yield f"call {number} got {said}"


def wrong_of(count: int, chance: Random) -> list[str]:
    """Make so many calls, each with a subject and a cost of its own; a third is cancelled. Return what is wrong."""
    wrong: list[str] = []

    async def some(numbers: range) -> list[asyncio.Task[Decision]]:
        tasks = [asyncio.ensure_future(ask(number)) for number in numbers]
        left = [task for task in tasks if chance.random() < 1 / 3]
        while left:
            for _ in range(chance.randint(0, 3)):
                await asyncio.sleep(0)
            for _ in range(min(len(left), chance.randint(1, 40))):
                left.pop(chance.randrange(len(left))).cancel()
        await asyncio.wait(tasks)
        return tasks

    async def everything() -> None:
        for first in range(0, count, 500):
            for number, task in enumerate(await some(range(first, first + 500)), first):
                wrong.extend(wrong_with(number, None if task.cancelled() else task.result()))
            if wrong:
                return

    asyncio.run(everything())
    return wrong


@pytest.fixture(params=["hiredis", "plain"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setattr(reading, "hiredis", None)


@pytest.mark.thorough("slow")
@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("count", [5_000, thorough("scale", 100_000)])
def test_every_reply_belongs_to_its_call_though_others_are_cancelled(count: int) -> None:
    assert wrong_of(count, Random(count)) == []


def shift_the_line(line: Line) -> None:
    """Do as if a call that is cancelled lost its place in the line."""
    line.under_way.rotate(1)


def add_a_reply(line: Line) -> None:
    """Do as if a reply came late, to a call of a line that was lost."""
    line._reader.feed(b"$3\r\nabc\r\n")


@pytest.mark.parametrize("spoil", [shift_the_line, add_a_reply], ids=["shifted", "late"])
def test_a_line_of_replies_that_is_shifted_by_one_would_be_found(
    spoil: Callable[[Line], None], monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer, settings: Any
) -> None:
    settings.CACHES = caches(redis_server, socket_timeout=0.25, socket_connect_timeout=0.25)
    check(f"{LIMIT}/h", "somebody")  # so that Redis knows the script
    data_received, spoilt = Line.data_received, list[Line]()

    def read(line: Line, data: bytes) -> None:
        if not spoilt and len(line.under_way) > MOST_UNDER_WAY // 2:
            spoilt.append(line)
            spoil(line)
        data_received(line, data)

    monkeypatch.setattr(Line, "data_received", read)
    assert wrong_of(500, Random(1)) != []


@pytest.mark.thorough("slow")
def test_a_reply_that_comes_after_its_wire_was_lost_reaches_nobody(
    raw: redis.Redis, redis_server: RedisServer, settings: Any
) -> None:
    settings.CACHES = caches(redis_server, socket_timeout=0.1, socket_connect_timeout=5)

    async def ask() -> list[tuple[Any, ...]]:
        await acheck("99/h", "user:1")
        raw.client_pause(60_000, all=False)
        late = await asyncio.gather(*(acheck("99/h", f"user:{n}") for n in range(2, 5)))
        assert all(decision.degraded for decision in late)
        raw.client_unpause()
        wire = await wire_of_this_loop()
        wire._source.options["socket_timeout"] = PATIENCE  # a busy machine may be late from now on
        decisions = [await acheck(f"{100 + n}/h", f"user:{n}") for n in range(5, 8)]
        return [(decision.subject, decision.limit, decision.degraded) for decision in decisions]

    assert asyncio.run(ask()) == [(f"user:{n}", 100 + n, False) for n in range(5, 8)]


def test_what_nobody_asked_for_closes_the_wire_before_a_call_could_get_it() -> None:
    async def ask() -> None:
        assert (await acheck("9/m", "user:1")).remaining == 8
        line = (await wire_of_this_loop())._line
        line.data_received(b"+surprise\r\n")
        assert (await acheck("9/m", "user:1")).remaining == 7
        assert line.is_lost

    asyncio.run(ask())


def test_what_a_lost_wire_still_says_reaches_nobody() -> None:
    async def ask() -> None:
        await acheck("9/m", "user:1")
        wire = await wire_of_this_loop()
        line = wire._line
        line.lost(None)
        line.data_received(b"$3\r\nabc\r\n")
        assert (await acheck("9/m", "user:1")).remaining == 7
        assert wire._line not in (None, line)

    asyncio.run(ask())


def test_a_notice_of_the_server_is_not_a_reply() -> None:
    async def ask() -> None:
        await acheck("9/m", "user:1")
        line = (await wire_of_this_loop())._line
        line.data_received(b">2\r\n+message\r\n+x\r\n")
        task = asyncio.ensure_future(acheck("9/m", "user:1"))
        await until(lambda: line.under_way)
        line.data_received(b">2\r\n+message\r\n+x\r\n")
        assert (await task).remaining == 7
        assert not line.is_lost

    asyncio.run(ask())


def test_a_wire_that_the_server_closed_while_the_loop_was_busy_costs_no_decision(raw: redis.Redis) -> None:
    async def ask() -> list[bool]:
        decisions = [await acheck("9/m", "user:1")]
        raw.client_kill_filter(_type="normal", skipme=True)  # meanwhile the loop reads nothing
        wait_until(lambda: len(raw.client_list()) == 1)
        decisions.append(await acheck("9/m", "user:1"))
        return [decision.degraded for decision in decisions]

    assert asyncio.run(ask()) == [False, False]


def test_a_call_that_is_cancelled_before_it_is_sent_does_not_count() -> None:
    async def ask() -> None:
        await acheck("9/m", "user:2")
        task = asyncio.ensure_future(acheck("9/m", "user:1"))
        await asyncio.sleep(0)
        task.cancel()
        assert isinstance((await all_of([task]))[0], asyncio.CancelledError)
        assert (await acheck("9/m", "user:1")).remaining == 8

    asyncio.run(ask())


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def silent(settings: Any) -> Iterator[list[int]]:
    """Put a server in place that greets and answers the first script, and falls silent; yields what it has met."""
    met: list[int] = []

    def serve(connection: Any) -> None:
        met.append(1)
        while data := connection.recv(65_536):
            if b"EVALSHA" in data:
                continue
            connection.sendall(b"%1\r\n$5\r\nproto\r\n:3\r\n" if b"HELLO" in data else b"+OK\r\n" * data.count(b"*"))

    with listening(serve) as port:
        settings.CACHES = caches_at(f"redis://127.0.0.1:{port}/0", 0.15)
        yield met


class TestALostWire:
    def decided(self) -> list[tuple[bool, bool]]:
        async def ask() -> list[tuple[bool, bool]]:
            calls: list[Any] = []
            for number in range(20):
                calls += [acheck("9/m", f"user:{number}", on_unavailable=how) for how in ("allow", "deny", "local")]
            return [(decision.allowed, decision.degraded) for decision in await asyncio.gather(*calls)]

        return asyncio.run(ask())

    @pytest.mark.thorough("slow")
    def test_leaves_each_call_to_its_on_unavailable(self, silent: list[int]) -> None:
        assert self.decided() == [(True, True), (False, True), (True, True)] * 20

    @pytest.mark.thorough("slow")
    def test_is_one_failure(self, silent: list[int]) -> None:
        self.decided()

        breaker = redis_store().server.breaker
        assert (breaker._failed, breaker.is_open) == (1, False)
        assert len(silent) == 1


def test_a_connection_asks_nothing_that_python_3_14_warns_of(
    redis_server: RedisServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(_: object) -> bool:
        raise DeprecationWarning("'asyncio.iscoroutinefunction' is deprecated")

    monkeypatch.setattr("redis.asyncio.connection.asyncio.iscoroutinefunction", asked)
    settings.CACHES = caches(redis_server)

    assert not asyncio.run(acheck("9/m", "user:1")).degraded


@pytest.mark.parametrize(
    ("said", "is_failure"),
    [(b"-LOADING Redis is loading\r\n", True), (b"-ERR wrong\r\n", False)],
    ids=["it cannot serve yet", "it serves"],
)
def test_a_reply_counts_as_a_failure_of_the_server_only_if_it_cannot_serve(
    said: bytes, is_failure: bool, settings: Any
) -> None:
    def serve(connection: Any) -> None:
        while data := connection.recv(65_536):
            if b"EVAL" in data:
                connection.sendall(said)
            else:
                connection.sendall(
                    b"%1\r\n$5\r\nproto\r\n:3\r\n" if b"HELLO" in data else b"+OK\r\n" * data.count(b"*")
                )

    with listening(serve) as port:
        settings.CACHES = caches_at(f"redis://127.0.0.1:{port}/0", 60)
        decision = asyncio.run(acheck("9/m", "user:1"))

        assert (decision.degraded, redis_store().server.breaker.has_failed) == (True, is_failure)


@pytest.mark.filterwarnings("ignore:'asyncio.iscoroutinefunction'")  # redis-py asks it of a function of the site
def test_a_function_of_the_site_greets_the_server(redis_server: RedisServer, settings: Any) -> None:
    greeted: list[Any] = []

    def greet(connection: Any) -> Any:
        greeted.append(connection)
        return connection.on_connect()

    settings.CACHES = caches(redis_server, redis_connect_func=greet)

    assert asyncio.run(acheck("9/m", "user:1"))
    assert len(greeted) == 1


def test_a_connection_on_which_a_server_says_more_than_it_was_asked_is_closed(settings: Any) -> None:
    opened, closed = list[int](), list[int]()

    def serve(connection: Any) -> None:
        opened.append(1)
        try:
            while data := connection.recv(65_536):
                greeting = b"%1\r\n$5\r\nproto\r\n:3\r\n" if b"HELLO" in data else b"+OK\r\n" * data.count(b"*")
                connection.sendall(greeting + b"+MORE\r\n")
        finally:  # also where it is reset, since the client has not read all that was sent
            closed.append(1)

    async def ask() -> None:
        assert (await acheck("9/m", "user:1")).degraded
        async with asyncio.timeout(10):
            await until(lambda: len(closed) == len(opened) > 0)

    with listening(serve) as port:
        settings.CACHES = caches_at(f"redis://127.0.0.1:{port}/0", 0.3)
        asyncio.run(ask())


def test_the_breaker_opens_after_a_few_lost_wires(silent: list[int]) -> None:
    async def ask() -> list[bool]:
        return [(await acheck("9/m", "user:1")).degraded for _ in range(FAILURES + 2)]

    assert asyncio.run(ask()) == [True] * (FAILURES + 2)
    assert redis_store().server.breaker.is_open
    assert len(silent) == FAILURES


def test_calls_that_wait_for_their_turn_stop_when_the_breaker_opens(silent: list[int]) -> None:
    breaker = redis_store().server.breaker
    for _ in range(FAILURES - 1):
        breaker.failed()

    async def ask() -> list[Any]:
        return await asyncio.gather(*(acheck("9/m", f"user:{n}") for n in range(2 * MOST_UNDER_WAY)))

    assert all(decision.degraded for decision in asyncio.run(ask()))
    assert len(silent) == 1


def test_a_cut_wire_costs_only_what_was_sent(raw: redis.Redis) -> None:
    calls = 5 * MOST_UNDER_WAY

    async def ask() -> list[Any]:
        await acheck(f"{calls}/h", "user:2")
        raw.client_pause(60_000, all=False)
        asking = asyncio.gather(*(acheck(f"{calls}/h", "user:1") for _ in range(calls)))
        await asyncio.to_thread(wait_until, lambda: raw.info("clients")["blocked_clients"])
        raw.client_kill_filter(_type="normal", skipme=True)
        raw.client_unpause()
        return await asking

    decisions = asyncio.run(ask())

    assert sum(decision.degraded for decision in decisions) == MOST_UNDER_WAY
    remaining = [decision.remaining for decision in decisions if not decision.degraded]
    assert sorted(remaining, reverse=True) == list(range(calls - 1, MOST_UNDER_WAY - 1, -1))
    assert not redis_store().server.breaker.has_failed


@pytest.mark.parametrize(("timeout", "patience", "seconds"), [(60, 1.0, 0.05), (0.2, 1.0, 0.01), (0.2, 0.001, 0.001)])
def test_what_is_late_is_looked_for_several_times_before_it_is(
    timeout: float, patience: float, seconds: float, redis_server: RedisServer
) -> None:
    """Each look counts the time of one tick at most. So a busy loop gives up nothing after one look."""
    options = {"path": redis_server.url, "socket_timeout": timeout, "socket_connect_timeout": timeout}

    async def tick() -> float:
        return AsyncWire(Source(UnixDomainSocketConnection, options), patience, Breaker())._tick

    assert asyncio.run(tick()) == pytest.approx(seconds)


class TestMoreCallsThanMayWait:
    def decided(self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        monkeypatch.setattr(async_wire, "MOST_WAITING", 100)

        async def ask() -> list[Any]:
            await acheck("999/h", "user:2")
            raw.client_pause(60_000, all=False)
            asking = asyncio.gather(*(acheck("999/h", f"user:{n}", on_unavailable="deny") for n in range(1_000)))
            await asyncio.to_thread(wait_until, lambda: raw.info("clients")["blocked_clients"])
            raw.client_unpause()
            return await asking

        return asyncio.run(ask())

    def test_are_refused(self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        decisions = self.decided(raw, monkeypatch)

        assert sum(not decision.degraded for decision in decisions) == 100
        assert sum(decision.allowed for decision in decisions) == 100

    def test_are_not_an_outage(self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        with heard() as reported:
            self.decided(raw, monkeypatch)

        assert (reported, redis_store().server.breaker.has_failed) == ([], False)


def test_a_server_that_has_become_a_replica_is_left(raw: redis.Redis) -> None:
    async def ask() -> None:
        await aonce("event", "1")
        wire = await wire_of_this_loop()
        line = wire._line
        raw.replicaof("127.0.0.1", 1)
        try:
            with pytest.raises(StoreUnavailable, match=r"READONLY|read only"):
                await aonce("event", "2")
            assert line.is_lost
        finally:
            raw.replicaof("NO", "ONE")
        assert await aonce("event", "2")
        assert wire._line is not line

    asyncio.run(ask())


def test_a_script_that_redis_has_forgotten_is_sent_once_for_all_tasks(raw: redis.Redis) -> None:
    async def ask() -> list[Any]:
        await acheck("999/h", "user:2")
        raw.script_flush()
        raw.config_resetstat()
        return await asyncio.gather(*(acheck("999/h", "user:1") for _ in range(3 * MOST_UNDER_WAY)))

    decisions = asyncio.run(ask())
    assert sorted(each.remaining for each in decisions) == [998 - n for n in reversed(range(3 * MOST_UNDER_WAY))]
    stats = raw.info("commandstats")
    assert stats["cmdstat_eval"]["calls"] == 1


@pytest.mark.parametrize("leaves", [False, True], ids=["stays", "is cancelled"])
def test_who_sends_a_forgotten_script_holds_up_nobody(leaves: bool, raw: redis.Redis) -> None:
    async def ask() -> list[Any]:
        await acheck("999/h", "user:2")
        raw.script_flush()
        loading = (await wire_of_this_loop()).loading
        tasks = [asyncio.ensure_future(acheck("999/h", "user:1")) for _ in range(8)]
        await until(lambda: loading._under_way)
        if leaves:
            tasks[0].cancel()
        return await all_of(tasks)

    found = asyncio.run(ask())
    assert [isinstance(each, asyncio.CancelledError) for each in found] == [leaves] + [False] * 7
    assert not any(each.degraded for each in found[leaves:])


class TestAConnectionThatNobodyUsed:
    """It is asked before its next use: a firewall may have forgotten it."""

    async def is_asked_again(self, wire: Any) -> None:
        wire._line.used -= CHECK_AFTER_IDLE
        task = asyncio.ensure_future(acheck("9/m", "user:1"))
        await until(lambda: wire._line.is_asked)
        task.cancel()
        await until(lambda: not wire._line.is_asked)

    def test_since_it_was_opened(self) -> None:
        async def ask() -> None:
            wire = await wire_of_this_loop()
            wire._open()
            await until(lambda: wire._line)
            await self.is_asked_again(wire)

        asyncio.run(ask())

    def test_since_it_was_asked(self) -> None:
        async def ask() -> None:
            await acheck("9/m", "user:1")
            wire = await wire_of_this_loop()
            await self.is_asked_again(wire)
            await self.is_asked_again(wire)

        asyncio.run(ask())

    def test_sends_no_call_before_it_has_answered(self) -> None:
        async def ask() -> int:
            await acheck("9/m", "user:1")
            wire: Any = await wire_of_this_loop()
            wire._line.used -= CHECK_AFTER_IDLE
            task = asyncio.ensure_future(acheck("9/m", "user:1"))
            await until(lambda: wire._line.is_asked)
            wire._write()
            waiting = len(wire._waiting)
            await task
            return waiting

        assert asyncio.run(ask()) == 1


def test_what_a_callback_runs_into_fails_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    async def ask() -> None:
        await acheck("9/m", "user:1")
        with monkeypatch.context() as patch:
            patch.setattr(Line, "send", broken)
            assert (await asyncio.wait_for(acheck("9/m", "user:1"), 60)).degraded
        assert not (await acheck("9/m", "user:1")).degraded

    asyncio.run(ask())


# --- pairs, slow ones -------------------------------------------------------------------------------------------------


def test_a_command_that_asks_another_server_of_a_cluster_gets_the_second_reply_of_its_pair() -> None:
    async def ask() -> list[Any]:
        wire = await wire_of_this_loop()
        calls = [wire.execute(("INCRBY", f"k:{n}", n), is_asking=n % 3 == 0) for n in range(200)]
        return await asyncio.gather(*calls)

    assert asyncio.run(ask()) == list(range(200))


def test_asking_is_sent_before_each_command_that_asks_another_server_of_a_cluster(raw: redis.Redis) -> None:
    async def ask() -> None:
        wire = await wire_of_this_loop()
        await asyncio.gather(*(wire.execute(("INCR", f"k:{n}"), is_asking=n < 2) for n in range(5)))

    raw.config_resetstat()

    asyncio.run(ask())

    assert raw.info("commandstats")["cmdstat_asking"]["calls"] == 2


def test_what_takes_long_holds_up_no_hit(raw: redis.Redis) -> None:
    async def ask() -> None:
        wire = await wire_of_this_loop()
        slow = [asyncio.ensure_future(wire.beside().execute(("BLPOP", "list", 60))) for _ in range(2)]
        await until(lambda: wire._slow._line and wire._slow._line.under_way)
        assert len(wire._slow._line.under_way) == 1  # so that Redis serves others before the next one
        await asyncio.to_thread(wait_until, lambda: raw.info("clients")["blocked_clients"] == 1)
        assert (await acheck("9/m", "user:1")).remaining == 8
        raw.rpush("list", 1, 2)
        assert [words[1] for words in await asyncio.gather(*slow)] == [b"1", b"2"]

    asyncio.run(ask())


def test_a_reset_goes_over_a_connection_of_its_own() -> None:
    async def ask() -> None:
        await acheck("9/m", "user:1")
        wire = await wire_of_this_loop()
        line = wire._line
        await areset("9/m", "user:1")
        assert wire._slow._line not in (None, line)

    asyncio.run(ask())
    assert check("9/m", "user:1").remaining == 8


def test_a_wire_that_was_closed_ends_what_is_under_way(raw: redis.Redis) -> None:
    """As that of a server that leaves a Cluster."""

    async def ask() -> None:
        wire: AsyncWire = await wire_of_this_loop()
        under_way = asyncio.ensure_future(wire.execute(("BLPOP", "list", 60)))
        await asyncio.to_thread(wait_until, lambda: raw.info("clients")["blocked_clients"])
        await wire.aclose()
        raw.rpush("list", 1)
        assert (await under_way)[1] == b"1"
        assert wire._line is None

    asyncio.run(ask())


# --- replies ----------------------------------------------------------------------------------------------------------

REPLIES = (
    b"+OK\r\n", b":-7\r\n", b"$3\r\na\r\n\r\n", b"$0\r\n\r\n", b"$-1\r\n", b"*-1\r\n", b"*0\r\n", b"_\r\n", b"#t\r\n",
    b"#f\r\n", b",1.5\r\n", b"*2\r\n*1\r\n:1\r\n$1\r\nx\r\n", b"%1\r\n+a\r\n:1\r\n",
    b"~1\r\n:1\r\n",
)  # fmt: skip


def read_in_parts(make: Callable[[Any], Any], data: bytes, at: int) -> list[Any]:
    reader, found = make(ResponseError), list[Any]()
    for part in (data[:at], data[at:]):
        reader.feed(part)
        while (reply := reader.gets()) is not reading.NOT_ENOUGH:
            found.append(reply)
    return found


def test_replies_are_read_in_python_as_by_hiredis() -> None:
    data = b"".join(REPLIES)
    whole = read_in_parts(reading.reply_reader, data, 0)

    found = {at: read_in_parts(reading.PlainReader, data, at) for at in range(len(data))}

    assert len(whole) == len(REPLIES)
    assert {at: replies for at, replies in found.items() if replies != whole} == {}


def test_replies_are_read_by_hiredis_where_it_is_installed() -> None:
    hiredis = pytest.importorskip("hiredis", reason="hiredis is not installed")

    assert type(reading.reply_reader(ResponseError)) is hiredis.Reader


@pytest.mark.parametrize("kind", [b"+", b"-", b":", b"$", b"*", b"_", b"#", b",", b"%", b"~", b">"])
def test_a_reply_of_any_kind_may_have_only_begun(kind: bytes) -> None:
    assert read_in_parts(reading.PlainReader, kind, 0) == []


@pytest.mark.parametrize(
    ("said", "words"), [(b"no", "ERR no"), (b"\xff", "ERR \ufffd")], ids=["a string", "other bytes"]
)
@pytest.mark.usefixtures("parser")
def test_an_error_reply_is_an_error_that_is_returned(said: bytes, words: str) -> None:
    (error,) = read_in_parts(reading.reply_reader, b"-ERR " + said + b"\r\n", 3)
    assert (type(error), str(error)) == (ResponseError, words)


@pytest.mark.usefixtures("parser")
def test_what_a_server_sends_without_being_asked_is_not_a_reply() -> None:
    (pushed,) = read_in_parts(reading.reply_reader, b">2\r\n+message\r\n+x\r\n", 5)
    assert isinstance(pushed, reading.PUSHED)


@pytest.mark.parametrize(
    "data", [b"\xff\xfe\r\n", b"HTTP/1.1 400\r\n", b"HTTP", b"$x\r\n", b"*x\r\n", b":1x\r\n", b"*1\r\nx"]
)
@pytest.mark.usefixtures("parser")
def test_bytes_that_are_not_a_reply_are_an_error(data: bytes) -> None:
    with pytest.raises(InvalidResponse):
        read_in_parts(reading.reply_reader, data, 0)


def test_a_string_that_is_longer_than_it_says_is_not_a_reply() -> None:
    with pytest.raises(InvalidResponse):
        read_in_parts(reading.PlainReader, b"$1\r\nabc", 0)
