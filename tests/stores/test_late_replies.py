"""How long an event loop waits for Redis: to send a call, for its reply, for a connection. The tests pass the time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis
import redis.asyncio as aioredis
from redis.asyncio.sentinel import MasterNotFoundError as AsyncMasterNotFoundError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota.core.errors import StoreBusy
from django_quota.stores.breaker import Breaker
from django_quota.stores.redis import async_wire
from django_quota.stores.redis.async_wire import AsyncWire
from django_quota.stores.redis.connections import GIVING_BACK, LATE, TIMED_OUT, Source
from django_quota.stores.redis.errors import ConnectFailedError
from django_quota.testing import RedisServer
from tests.support.commands import PATIENCE
from tests.support.event_loops import settled, until
from tests.support.sentinels import played_sentinels

TICK = 1 / 16
TIMEOUT = 20 * TICK
"""Seconds that a wire waits for a reply here. It looks for what is late twenty times within that; no sum is rounded."""


class Timers:
    """The clock and the timers of a wire, which a test moves; all else is done by the event loop that runs."""

    def __init__(self) -> None:
        self.now = 100 * TICK
        self.due: list[tuple[float, Callable[[], object]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio.get_running_loop(), name)

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], object], **_: Any) -> None:
        self.due.append((when, callback))

    def pass_ticks(self, ticks: float) -> None:
        """Let time pass in a loop that has nothing else to do: each timer runs when it is due."""
        end = self.now + ticks * TICK
        while self.due and self.due[0][0] <= end:
            self.now, callback = self.due.pop(0)
            callback()
        self.now = end

    def hold_up(self, ticks: float) -> None:
        """Let time pass in a loop that a view blocks: its timer runs late."""
        self.now += ticks * TICK
        due, self.due = self.due, []
        for _, callback in due:
            callback()


class Site:
    """A wire to Redis whose time a test moves, and calls that Redis answers when the test says so."""

    def __init__(self, wire: AsyncWire, timers: Timers, raw: redis.Redis) -> None:
        self.wire, self.timers = wire, timers
        self._raw = raw
        self.calls: list[asyncio.Task[Any]] = []

    def call(self, *command: str | int, **options: Any) -> asyncio.Task[Any]:
        self.calls.append(asyncio.ensure_future(self.wire.execute(command, **options)))
        return self.calls[-1]

    async def asks(self, **options: Any) -> asyncio.Task[Any]:
        """Send a command that gets no reply until `answer`."""
        before = len(self.under_way)
        asking = self.call("BLPOP", "list", 60, **options)
        await until(lambda: len(self.under_way) > before)
        return asking

    async def waits(self, **options: Any) -> asyncio.Task[Any]:
        """Make a call that finds no room on the wire."""
        before = len(self.wire._waiting)
        waiting = self.call("PING", **options)
        await until(lambda: len(self.wire._waiting) > before)
        return waiting

    async def answer(self, asking: asyncio.Task[Any]) -> None:
        self._raw.rpush("list", 1)
        assert (await asking)[1] == b"1"

    @property
    def under_way(self) -> Any:
        return () if self.wire._line is None else self.wire._line.under_way


async def error_of(call: asyncio.Task[Any]) -> Any:
    """Return the error of a call that must have ended by now."""
    await settled()
    assert call.done()
    return call.exception()


@pytest.fixture
def with_site(raw: redis.Redis, redis_server: RedisServer) -> Callable[..., Any]:
    """Run a test on a wire; `patience`: in ticks."""
    path = redis_server.url.removeprefix("unix://")
    options = {"path": path, "socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT}

    @asynccontextmanager
    async def opened(patience: int, most: int) -> AsyncIterator[Site]:
        wire = AsyncWire(Source(aioredis.UnixDomainSocketConnection, options), patience * TICK, Breaker(failures=9))
        wire.most_under_way = most
        wire._tick, wire._loop = TICK, (timers := Timers())  # type: ignore[assignment]
        assert await wire.execute(("PING",)) == b"PONG"
        timers.pass_ticks(30)
        site = Site(wire, timers, raw)
        try:
            yield site
        finally:
            wire._fail(ended := RedisConnectionError("the test has ended"))
            await until(lambda: wire._opening is None)
            if (line := wire._line) is not None:
                line.lost(ended)
                await line.closed
            await asyncio.gather(*site.calls, return_exceptions=True)

    def run(test: Callable[[Site], Any], patience: int = 20, most: int = 64) -> None:
        async def whole() -> None:
            async with opened(patience, most) as site:
                await test(site)

        asyncio.run(whole())

    return run


class TestAReply:
    def test_is_late_after_its_whole_time_out(self, with_site: Any) -> None:
        async def ask(site: Site) -> None:
            asking = await site.asks()
            site.timers.pass_ticks(19)
            await settled()
            assert not asking.done()

            site.timers.pass_ticks(1)

            error = await error_of(asking)
            assert (type(error), str(error)) == (RedisTimeoutError, "Timeout reading from socket")

        with_site(ask)

    @pytest.mark.parametrize("ticks", [3, 4.5], ids=["at a look", "between two looks"])
    def test_is_late_after_its_own_time_out_where_another_was_awaited(self, ticks: float, with_site: Any) -> None:
        async def ask(site: Site) -> None:
            first = await site.asks()
            site.timers.pass_ticks(ticks)
            await site.answer(first)
            second = await site.asks()
            site.timers.pass_ticks(19)
            await settled()
            assert not second.done()

            site.timers.pass_ticks(1.5 if ticks % 1 else 1)

            assert type(await error_of(second)) is RedisTimeoutError

        with_site(ask)

    def test_is_late_only_after_many_looks_in_a_loop_that_is_held_up(self, with_site: Any) -> None:
        async def ask(site: Site) -> None:
            asking = await site.asks()
            for _ in range(19):
                site.timers.hold_up(1_000)
            await settled()
            assert not asking.done()

            site.timers.hold_up(1_000)

            assert type(await error_of(asking)) is RedisTimeoutError

        with_site(ask)

    def test_that_a_loop_is_held_up_before_a_call_makes_it_late_no_sooner(self, with_site: Any) -> None:
        async def ask(site: Site) -> None:
            first = await site.asks()
            site.timers.now += 1_000 * TICK  # and no timer has run yet
            second = await site.asks()
            await site.answer(first)
            site.timers.hold_up(0)
            for _ in range(19):
                site.timers.pass_ticks(1)
            await settled()
            assert not second.done()
            await site.answer(second)

        with_site(ask)

    def test_that_is_late_fails_all_calls_that_were_sent(self, with_site: Any) -> None:
        async def ask(site: Site) -> None:
            asking = [await site.asks(), await site.asks()]
            site.timers.pass_ticks(20)

            assert [type(await error_of(each)) for each in asking] == [RedisTimeoutError] * 2

        with_site(ask)

    def test_that_is_awaited_is_the_only_reason_for_a_timer(self, with_site: Any) -> None:
        async def ask(site: Site) -> None:
            assert site.timers.due == []
            asking = await site.asks()
            site.timers.pass_ticks(2)
            assert len(site.timers.due) == 1
            await site.answer(asking)
            site.timers.pass_ticks(1)
            assert site.timers.due == []

        with_site(ask)


class TestACallThatWaitsForRoom:
    def test_fails_after_the_patience_of_its_wire(self, with_site: Any) -> None:
        async def ask(site: Site) -> None:
            await site.asks()
            waiting = await site.waits()
            site.timers.pass_ticks(7)
            await settled()
            assert not waiting.done()

            site.timers.pass_ticks(1)

            assert (await error_of(waiting)).reason == "others kept this event loop busy for 0.5 s"

        with_site(ask, patience=8, most=1)

    def test_leaves_those_that_came_later_to_their_own_patience(self, with_site: Any) -> None:
        async def ask(site: Site) -> None:
            asking = await site.asks()
            first = await site.waits()
            site.timers.pass_ticks(4)
            second = await site.waits()
            site.timers.pass_ticks(4)
            await settled()
            assert (first.done(), second.done()) == (True, False)
            await site.answer(asking)
            assert await second == b"PONG"
            assert type(await error_of(first)) is StoreBusy

        with_site(ask, patience=8, most=1)

    def test_waits_longer_if_it_gives_back(self, with_site: Any) -> None:
        """Others wait for what it gives back. Only a reply that is late ends its wait sooner: then it is sent."""

        async def ask(site: Site) -> None:
            asking = await site.asks()
            waiting = await site.waits(gives_back=True)
            site.timers.pass_ticks(19)
            await settled()
            assert not waiting.done()
            await site.answer(asking)
            assert await waiting == b"PONG"

        with_site(ask, patience=8, most=1)

    @pytest.mark.parametrize(
        ("patience", "waits"), [(8 * TICK, GIVING_BACK), (2 * GIVING_BACK, 2 * GIVING_BACK)], ids=["short", "long"]
    )
    def test_waits_at_least_so_long_if_it_gives_back(self, patience: float, waits: float, with_site: Any) -> None:
        async def ask(site: Site) -> None:
            site.wire._patience = patience
            await site.asks()
            began = site.wire._waited

            waiting = await site.waits(gives_back=True)

            assert site.wire._waiting[0].until == began + waits
            waiting.cancel()

        with_site(ask, most=1)

    def test_that_was_cancelled_is_not_sent(self, with_site: Any) -> None:
        async def ask(site: Site) -> None:
            asking = await site.asks()
            gone = site.call("SET", "cancelled", 1)
            await until(lambda: site.wire._waiting)
            gone.cancel()
            await site.answer(asking)
            assert await site.wire.execute(("EXISTS", "cancelled")) == 0

        with_site(ask, most=1)

    def test_that_was_cancelled_takes_no_room(self, with_site: Any) -> None:
        async def ask(site: Site) -> None:
            asking = await site.asks()
            gone, next_one = await site.waits(), await site.waits()
            gone.cancel()
            await site.answer(asking)
            assert await next_one == b"PONG"

        with_site(ask, most=1)


# --- a new connection -------------------------------------------------------------------------------------------------


class Connection:
    """A connection of redis-py, as far as opening one goes."""

    redis_connect_func: Any = None
    host, port = "h", 1
    made: list[Any]

    def __init__(self, **options: Any) -> None:
        self.made.append(self)
        self.socket_timeout = options["socket_timeout"]
        self.socket_connect_timeout = options["socket_connect_timeout"]
        self.disconnected = 0
        self.stops: str = options["stops"]
        self.while_connecting: Any = None

    async def connect(self) -> None:
        self.while_connecting = self.socket_timeout, self.socket_connect_timeout
        if self.stops == "at the socket":
            await asyncio.sleep(PATIENCE)
        await getattr(self, "redis_connect_func" if self.redis_connect_func else async_wire._GREETS)()
        if self.stops == "raises":
            raise RedisConnectionError("no such host")

    async def greet(self) -> None:
        if self.stops == "at the greeting":
            await asyncio.sleep(PATIENCE)

    async def can_read(self) -> bool:
        return self.stops == "says more"

    async def disconnect(self, nowait: bool = False) -> None:
        assert nowait  # redis-py would wait for the socket
        self.disconnected += 1


setattr(Connection, async_wire._GREETS, Connection.greet)
setattr(Connection, async_wire._CAN_READ, Connection.can_read)


class OfSocketFile(Connection):
    path = "/run/redis.sock"


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a test on a wire that opens a connection."""
    monkeypatch.setattr(Connection, "made", [], raising=False)

    def run(
        test: Callable[[AsyncWire, Timers, asyncio.Task[Any]], Any],
        stops: str = "",
        kind: type[Connection] = Connection,
        sentinels: Any = None,
        reply: int = 4,
    ) -> None:
        async def whole() -> None:
            options = {"socket_timeout": reply * TICK, "socket_connect_timeout": 10 * TICK, "stops": stops}
            wire = AsyncWire(Source(kind, options, sentinels), 60.0, Breaker())
            wire._tick = TICK
            wire._loop = timers = Timers()  # type: ignore[assignment]
            connecting = asyncio.ensure_future(wire._connect())
            await settled()  # up to where it stops
            try:
                await test(wire, timers, connecting)
            finally:
                connecting.cancel()
                with suppress(BaseException):
                    await connecting

        asyncio.run(whole())

    return run


class TestANewConnection:
    @pytest.mark.parametrize(
        ("stops", "kind", "asked", "reply", "ticks"),
        [
            ("at the socket", Connection, 0, 4, 10),
            ("at the socket", OfSocketFile, 0, 4, 4),
            ("at the socket", Connection, 2, 4, 30),
            ("at the socket", Connection, 2, 20, 60),
            ("at the greeting", Connection, 0, 4, 4),
            ("at the greeting", Connection, 2, 4, 4),
        ],
        ids=["TCP", "a socket file", "two sentinels", "slow sentinels", "greeting", "greeting after sentinels"],
    )
    def test_is_late_after_its_time_out(
        self, stops: str, kind: type[Connection], asked: int, reply: int, ticks: int, opening: Any
    ) -> None:
        async def wait(wire: AsyncWire, timers: Timers, connecting: asyncio.Task[Any]) -> None:
            wire._opening = connecting  # so that the wire looks for what is late
            timers.pass_ticks(ticks - 1)
            await settled()
            assert not connecting.done()

            timers.pass_ticks(1)

            error = await error_of(connecting)
            assert (type(error), str(error)) == (RedisTimeoutError, "Timeout connecting to server")
            assert error.__suppress_context__  # a time-out of asyncio says nothing more

        opening(wait, stops, kind, played_sentinels(clients=asked) if asked else None, reply)

    @pytest.mark.parametrize(
        ("stops", "error"),
        [
            ("raises", RedisConnectionError("no such host")),
            ("says more", ConnectFailedError("the server sent unexpected data after connecting")),
        ],
        ids=["cannot be made", "says more than it was asked"],
    )
    def test_that_fails_is_closed(self, stops: str, error: Exception, opening: Any) -> None:
        async def wait(_: AsyncWire, __: Timers, connecting: asyncio.Task[Any]) -> None:
            with pytest.raises(type(error)) as caught:
                await connecting
            assert str(caught.value) == str(error)
            assert [each.disconnected for each in Connection.made] == [1]

        opening(wait, stops)

    def test_that_is_late_is_closed(self, opening: Any) -> None:
        async def wait(wire: AsyncWire, timers: Timers, connecting: asyncio.Task[Any]) -> None:
            wire._opening = connecting
            timers.pass_ticks(4)
            assert type(await error_of(connecting)) is RedisTimeoutError
            assert [each.disconnected for each in Connection.made] == [1]

        opening(wait, "at the greeting")

    def test_to_a_server_that_is_no_longer_the_primary_is_closed(self, opening: Any) -> None:
        pool = played_sentinels()
        pool.master_address = ("elsewhere", 1)

        async def wait(_: AsyncWire, __: Timers, connecting: asyncio.Task[Any]) -> None:
            with pytest.raises(ConnectFailedError):
                await connecting
            assert [each.disconnected for each in Connection.made] == [1]

        opening(wait, sentinels=pool)

    def test_that_serves_stays_open(self, opening: Any) -> None:
        async def wait(_: AsyncWire, __: Timers, connecting: asyncio.Task[Any]) -> None:
            assert (await connecting).disconnected == 0

        opening(wait)

    def test_has_no_time_out_of_redis_py_meanwhile(self, opening: Any) -> None:
        """It would end while the loop is held up, though the server has answered."""

        async def wait(_: AsyncWire, __: Timers, connecting: asyncio.Task[Any]) -> None:
            assert (await connecting).while_connecting == (None, None)

        opening(wait)

    def test_has_the_time_out_of_connecting_again(self, opening: Any) -> None:
        """redis-py closes a connection within it."""

        async def wait(_: AsyncWire, __: Timers, connecting: asyncio.Task[Any]) -> None:
            assert (await connecting).socket_connect_timeout == 10 * TICK

        opening(wait)

    def test_has_its_own_greeting_again(self, opening: Any) -> None:
        async def wait(_: AsyncWire, __: Timers, connecting: asyncio.Task[Any]) -> None:
            assert async_wire._GREETS not in vars(await connecting)

        opening(wait)

    def test_has_the_greeting_of_the_site_again(self, opening: Any) -> None:
        async def hello(*_: Any) -> None: ...

        class OfSite(Connection):
            redis_connect_func = staticmethod(hello)

        async def wait(_: AsyncWire, __: Timers, connecting: asyncio.Task[Any]) -> None:
            assert (await connecting).redis_connect_func is hello

        opening(wait, kind=OfSite)

    def test_leaves_nothing_to_look_for(self, opening: Any) -> None:
        async def wait(wire: AsyncWire, _: Timers, connecting: asyncio.Task[Any]) -> None:
            await connecting
            assert wire._connecting is None

        opening(wait)


@pytest.fixture
def connecting_wire(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AsyncWire]:
    """Make a wire whose connections come as far as `stops` says."""
    monkeypatch.setattr(Connection, "made", [], raising=False)

    def connecting_wire(stops: str, breaker: Breaker) -> AsyncWire:
        options = {"socket_timeout": 60.0, "socket_connect_timeout": 60.0, "stops": stops}
        return AsyncWire(Source(Connection, options), 60.0, breaker)

    return connecting_wire


def test_calls_that_come_while_a_wire_connects_wait_for_that_connection(connecting_wire: Any) -> None:
    async def call() -> None:
        wire = connecting_wire("at the socket", Breaker())
        calls = []
        for _ in range(2):
            calls.append(asyncio.ensure_future(wire.execute(("PING",))))
            await settled()
        assert len(Connection.made) == 1
        wire._opening.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(call())


def test_a_connection_that_cannot_be_made_is_one_failure_of_the_server(connecting_wire: Any) -> None:
    async def call() -> None:
        wire = connecting_wire("raises", breaker := Breaker(failures=2))
        errors = await asyncio.gather(*(wire.execute(("PING",)) for _ in range(3)), return_exceptions=True)
        assert [str(error) for error in errors] == ["no such host"] * 3
        assert (breaker.has_failed, breaker.is_open) == (True, False)

    asyncio.run(call())


def test_a_call_whose_event_loop_ends_while_it_connects_finds_the_process_busy(connecting_wire: Any) -> None:
    async def end() -> None:
        wire = connecting_wire("at the socket", breaker := Breaker())
        call = asyncio.ensure_future(wire.execute(("PING",)))
        await until(lambda: Connection.made)
        wire._opening.cancel()
        await until(call.done)
        error: Any = call.exception()
        assert (type(error), error.reason) == (StoreBusy, "this event loop ends")
        assert not breaker.has_failed

    asyncio.run(end())


class TestAConnectionBehindSentinels:
    """They are asked with the time-outs of redis-py, which may end before a busy process has seen an answer."""

    @pytest.fixture
    def tried(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
        """Connect; returns how often that was tried, and the error. `took`: seconds of each try."""

        def tried(*took: float, asked: int = 1, late: Exception | None = None) -> tuple[int, Exception]:
            moments = [moment for each in took for moment in (0.0, each)]
            monkeypatch.setattr(async_wire, "time", SimpleNamespace(monotonic=lambda: moments.pop(0)))
            tries: list[int] = []

            async def fail(_: AsyncWire) -> None:
                tries.append(1)
                raise late or RedisTimeoutError("late")

            async def connect() -> Any:
                options = {"socket_timeout": 1.0, "socket_connect_timeout": 2.0}
                wire = AsyncWire(
                    Source(Connection, options, played_sentinels(clients=asked) if asked else None), 60.0, Breaker()
                )
                await wire._connect()

            monkeypatch.setattr(AsyncWire, "_connect_once", fail)
            with pytest.raises((*TIMED_OUT, StoreBusy)) as caught:
                asyncio.run(connect())
            return len(tries), caught.value

        return tried

    LONGEST = 4.0 + LATE
    """Seconds that connecting by one sentinel takes at most."""

    def test_that_timed_out_in_time_fails(self, tried: Any) -> None:
        times, error = tried(self.LONGEST)

        assert (times, type(error)) == (1, RedisTimeoutError)

    @pytest.mark.parametrize(
        "late", [RedisTimeoutError("late"), TimeoutError("late"), AsyncMasterNotFoundError("late")], ids=type
    )
    def test_that_timed_out_too_late_is_tried_once_more(self, late: Exception, tried: Any) -> None:
        times, error = tried(self.LONGEST + 0.01, self.LONGEST, late=late)

        assert (times, error) == (2, late)

    def test_that_timed_out_too_late_twice_finds_the_process_busy(self, tried: Any) -> None:
        times, error = tried(self.LONGEST + 0.01, self.LONGEST + 0.01)

        assert (times, type(error)) == (2, StoreBusy)
        assert cast("Any", error).reason == "this process was too busy to connect: late"
        assert error.__suppress_context__  # the frames of redis-py have the password

    def test_is_not_tried_again_where_there_are_no_sentinels(self, tried: Any) -> None:
        times, error = tried(100.0, asked=0)

        assert (times, type(error)) == (1, RedisTimeoutError)
