"""One connection to a server for all tasks of an event loop.

redis-py opens it. What the tasks of one turn of the loop ask goes out in one write, and the replies come back in the
order of the commands. So a flood of tasks waits for replies, and never for a connection. Nothing is sent twice: what
was written when the connection was lost has failed, and what was not yet written goes over the next one.
"""

from __future__ import annotations

import asyncio
import select
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextvars import Context
from functools import partial
from inspect import isawaitable
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import redis.asyncio as aioredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota.core.errors import StoreBusy
from django_quota.stores.breaker import Breaker, refused_call
from django_quota.stores.redis import connections
from django_quota.stores.redis.connections import (
    ASK,
    ASKING,
    GIVING_BACK,
    NOT_ALONE,
    TIMED_OUT,
    OptionOf,
    RedisCommand,
    Source,
    async_source,
    connecting,
    is_too_late,
    pack,
    patience_of,
)
from django_quota.stores.redis.errors import (
    ConnectFailedError,
    imitated,
    is_cut,
    is_passthrough,
    leaves_a_reply,
    server_answered,
)
from django_quota.stores.redis.settings import TIMEOUTS
from django_quota.stores.redis.wire import NOT_ENOUGH, PUSHED, reply_reader

T = TypeVar("T")

MOST_UNDER_WAY = 64
"""Commands that wait for their replies at once: Redis serves others in between, and a lost wire costs no more."""

MOST_WAITING = 10_000
"""Calls of an event loop that wait until they are sent. Further ones fail at once."""

ROUNDS = 20
"""How often the event loop reads its sockets, at least, before a call is late. Connecting takes some eight rounds."""

MIN_TICK = 0.001
"""Seconds between two looks at what is late, at least."""

CLOSING = 1.0
"""Seconds in which a socket is closed."""

_CAN_READ = "can_read" if hasattr(aioredis.Connection, "can_read") else "can_read_destructive"
"""The method that finds a closed connection and stray bytes; redis-py 8 renamed it."""

_GREETS = "on_connect_check_health" if hasattr(aioredis.Connection, "on_connect_check_health") else "on_connect"
"""The method that greets a server; newer versions renamed it. It is replaced, and not the option `redis_connect_func`:
with that, redis-py asks `asyncio` what kind of function it is, which Python 3.14 warns of."""


class _Waiting(NamedTuple):
    """A call that is not sent yet."""

    future: asyncio.Future[Any]
    command: bytes
    is_asking: bool
    until: float
    """When it has waited for too long (seconds of `AsyncWire._waited`)."""


class Line(asyncio.Protocol):
    """An open connection, and the calls that wait for its replies, first in, first out."""

    def __init__(self, wire: AsyncWire, connection: Any) -> None:
        self._wire = wire
        self.connection = connection
        # redis-py has no public way to hand over a socket that it has opened.
        self._reader = reply_reader(connection._parser.parse_error)  # noqa: SLF001
        self._writer = connection._writer  # noqa: SLF001 — it closes the socket if nothing refers to it
        connection._reader = connection._writer = None  # noqa: SLF001
        self.transport: Any = getattr(self._writer, "transport", None)
        if self.transport is None:
            raise imitated("The connections of this alias have no sockets.")
        self.transport.set_protocol(self)
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.closed = loop.create_future()
        self._poll = select.poll() if hasattr(select, "poll") else None
        if self._poll is not None:
            self._poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        self.under_way: deque[asyncio.Future[Any] | None] = deque()
        """One for each reply that is to come. None: nobody waits for it."""
        self.writes: deque[tuple[float, int]] = deque()
        """When the replies to each write are late (seconds of `AsyncWire._served`), and `_answered` after them."""
        self._answered = 0
        self.used = loop.time()
        self.is_asked = False
        """Whether it idled, and is asked if it still leads to a server."""
        self.is_lost = False

    def has_arrived(self) -> bool:
        """Say whether the socket has something that the loop has not read yet: its end, or what nobody asked for."""
        return self._poll is not None and bool(self._poll.poll(0))

    def send(self, commands: list[bytes], late: float) -> None:
        """Write commands whose futures are under way."""
        self.writes.append((late, self._answered + len(self.under_way)))
        self.transport.write(commands[0] if len(commands) == 1 else b"".join(commands))

    def data_received(self, data: bytes) -> None:
        """Hand out the replies that have arrived, in the order of the commands."""
        if self.is_lost:
            return
        before = len(self.under_way)
        try:
            has_answered, is_left = self._hand_out(data)
        except Exception as error:  # noqa: BLE001 — parsers raise whatever they run into
            self.lost(error)
            return
        self.used = self._loop.time()
        is_known = self.is_asked and not self.under_way
        if is_known:
            self.is_asked = False
            if is_left:  # nobody waits for this reply, and another connection may serve
                self.lost(None)
                return
        elif before != len(self.under_way):
            self._wire.heard(has_answered=has_answered)
        if is_left:
            self.lost(RedisConnectionError("Connection lost: the server cannot serve"))
        else:
            self._wire.go_on(is_known=is_known)

    def _hand_out(self, data: bytes) -> tuple[bool, bool]:
        """Return whether a reply shows that the server serves, and whether one says to leave it."""
        reader, under_way, before = self._reader, self.under_way, len(self.under_way)
        has_answered = is_left = False
        reader.feed(data)
        while (reply := reader.gets()) is not NOT_ENOUGH:
            if isinstance(reply, PUSHED):
                continue
            if isinstance(reply, Exception):
                has_answered = has_answered or bool(server_answered(reply))
                is_left = is_left or leaves_a_reply(reply)
            else:
                has_answered = True
            future = under_way.popleft()  # there is none for a reply that nobody asked for
            if future is not None and not future.done():
                future.set_result(reply)
        self._answered += before - len(under_way)
        while self.writes and self.writes[0][1] <= self._answered:
            self.writes.popleft()
        return has_answered, is_left

    def eof_received(self) -> None:
        """Note that the server closes the connection."""
        self.lost(RedisConnectionError("Connection closed by server."))

    def connection_lost(self, error: Exception | None) -> None:
        """Note that the connection is closed, by the server or by us."""
        is_closed = error is None or is_cut(error)
        self.lost(RedisConnectionError("Connection closed by server.") if is_closed else error)
        if not self.closed.done():
            self.closed.set_result(None)

    def lost(self, error: BaseException | None) -> None:
        """Close it, and report why to the wire; None: no call waits for a reply."""
        if self.is_lost:
            return
        self.is_lost = True
        self.transport.abort()
        under_way, self.under_way = self.under_way, deque()
        self.writes.clear()
        self._wire.lost(self, error, under_way)


class AsyncWire:
    """The wire of an event loop to a server. It raises redis-py's errors, also for error replies.

    What blocks the loop, or keeps it busy, makes no reply late: of the time between two looks, `_tick` seconds count at
    most.
    """

    most_under_way = MOST_UNDER_WAY

    def __init__(self, source: Source, patience: float, breaker: Breaker) -> None:
        self._source = source
        self._patience = patience
        self._breaker = breaker
        self._loop = asyncio.get_running_loop()
        self._context = Context()
        """Of its callbacks: the wire outlives the request that opens it."""
        self._waiting: deque[_Waiting] = deque()
        self._is_due = False
        """Whether a write is planned for this turn of the loop."""
        self._line: Line | None = None
        self._opening: asyncio.Task[None] | None = None
        self._slow: AsyncWire | None = None
        self._is_closed = False
        self.loading = Loading()
        self._tick: float = max(min(patience, *(source.options[name] for name in TIMEOUTS)) / ROUNDS, MIN_TICK)
        self._served = 0.0
        """Seconds in which the loop read its sockets, until the last look."""
        self._waited = 0.0
        """The same while a line was open."""
        self._looked = 0.0
        """When the last look was (seconds of the loop)."""
        self._is_ticking = False
        self._connecting: tuple[asyncio.Timeout, float] | None = None
        """The block that connects, and when it is late (seconds of `_served`)."""

    # --- calls --------------------------------------------------------------------------------------------------------

    async def execute(self, command: RedisCommand, *, gives_back: bool = False, is_asking: bool = False) -> Any:
        """Send a command once, and return its reply. One that gives back waits its turn for longer.

        `is_asking`: whether another server of a Cluster sent us here, since it moves the slot.

        Raises redis-py's errors, also for error replies; `StoreBusy` if nothing was sent because others keep this
        process busy.
        """
        breaker, waiting = self._breaker, self._waiting
        is_probe = breaker.enter()
        future = self._loop.create_future()
        if len(waiting) >= MOST_WAITING:
            reply: Any = StoreBusy(f"{MOST_WAITING:,} calls of this event loop wait until they are sent")
        else:
            patience = self._patience
            until = self._waited + (max(patience, GIVING_BACK) if gives_back else patience)
            waiting.append(_Waiting(future, pack(command), is_asking, until))
            if not self._is_due:
                self._is_due = True
                self._loop.call_soon(self._write, context=self._context)
            try:
                reply = await future
            except BaseException:
                if is_probe:
                    breaker.release()
                raise
        if isinstance(reply, BaseException):
            if is_probe and is_passthrough(reply):
                breaker.release()
            raise reply.with_traceback(None)  # the frames of redis-py have the password, and others raise it, too
        return reply

    def beside(self) -> AsyncWire:
        """Return the wire for what takes long: one command at a time, so that Redis serves others in between."""
        if self._slow is None:
            self._slow = AsyncWire(self._source, self._patience, self._breaker)
            self._slow.most_under_way = 1
        return self._slow

    def _write(self, *, has_read: bool = False, is_known: bool = False) -> None:
        """Send what waits, as far as there is room.

        `has_read`: whether the loop has just read the socket. `is_known`: whether the server has just answered.
        """
        self._is_due = False
        line = self._line
        try:
            if line is not None:
                self._send(line, has_read=has_read, is_known=is_known)
            elif self._waiting:
                self._open()
        except Exception as error:  # noqa: BLE001 — nobody would hear of it, and all would wait
            if line is not None:
                line.lost(error)
            self._fail(error)

    def _send(self, line: Line, *, has_read: bool, is_known: bool) -> None:
        waiting, under_way = self._waiting, line.under_way
        if line.is_asked or not (under_way or self._is_fit(line, has_read=has_read, is_known=is_known)):
            return
        commands = []
        room = self.most_under_way - len(under_way)
        while waiting and room > 0:
            future, command, is_asking, _ = waiting.popleft()
            if future.done():  # it was cancelled before it was sent, so it does not count
                continue
            if is_asking:
                under_way.append(None)
                command = ASKING + command
            under_way.append(future)
            commands.append(command)
            room -= 1
        if commands:
            line.send(commands, self._late(self._source.options["socket_timeout"]))

    def _is_fit(self, line: Line, *, has_read: bool, is_known: bool) -> bool:
        """Say whether a line on which nothing is under way can be written to now. If not, prepare it."""
        source = self._source
        if line.transport.is_closing() or source.leads_elsewhere(line.connection):
            line.lost(None)
            return False
        if not self._waiting:
            return True
        if not has_read and line.has_arrived():
            self._is_due = True
            read = partial(self._write, has_read=True, is_known=is_known)
            self._loop.call_soon(partial(self._loop.call_soon, read, context=self._context), context=self._context)
            return False
        if not is_known and self._loop.time() - line.used >= connections.CHECK_AFTER_IDLE:
            line.is_asked = True
            line.under_way.append(None)
            line.send([ASK], self._late(source.options["socket_timeout"]))
            return False
        return True

    # --- what a line reports ------------------------------------------------------------------------------------------

    def heard(self, *, has_answered: bool) -> None:
        """Report replies to the breaker. `has_answered`: whether one of them shows that the server serves."""
        if has_answered:
            self._breaker.succeeded()
        else:
            self._breaker.failed()

    def go_on(self, *, is_known: bool = False) -> None:
        """Send what waited for room, or close a line that is not needed any more. `is_known`: see `_write`."""
        if self._waiting:
            self._write(is_known=is_known)
        elif self._is_closed:
            self._close_unless_needed()

    def lost(self, line: Line, error: BaseException | None, under_way: deque[asyncio.Future[Any] | None]) -> None:
        """Fail what was sent over a lost line, once for the breaker; what waits goes over the next."""
        if self._line is line:
            self._line = None
        if under_way and error is not None and not line.is_asked:
            self._note(error)
            for future in under_way:
                if future is not None and not future.done():
                    future.set_result(error)
            if self._breaker.is_refusing():
                self._fail(refused_call())
        if self._waiting:
            self._open()

    def _note(self, error: BaseException) -> None:
        """Report to the breaker what an error means for the server. While the breaker is open, only a probe asks."""
        self._breaker.leave(server_answered(error), is_probe=self._breaker.is_open)

    def _fail(self, error: BaseException) -> None:
        """Let all calls fail that are not sent yet."""
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            if not each.future.done():
                each.future.set_result(error)

    # --- time ---------------------------------------------------------------------------------------------------------

    def _late(self, seconds: float) -> float:
        """Return when something that begins now is late (seconds of `_served`)."""
        now = self._loop.time()
        if not self._is_ticking:
            self._is_ticking, self._looked = True, now
            self._loop.call_at(now + self._tick, self._look, context=self._context)
        return self._served + min(self._tick, now - self._looked) + seconds

    def _look(self) -> None:
        now = self._loop.time()
        passed = min(self._tick, now - self._looked)
        self._looked = now
        self._served += passed
        line = self._line
        if line is not None:
            self._waited += passed
            if line.writes and line.writes[0][0] <= self._served:
                line.lost(RedisTimeoutError("Timeout reading from socket"))
        if self._connecting is not None and self._connecting[1] <= self._served:
            self._connecting[0].reschedule(now)
            self._connecting = None
        late = [each for each in self._waiting if each.until <= self._waited]
        if late:
            self._waiting = deque(each for each in self._waiting if each.until > self._waited)
            busy = StoreBusy(f"others kept this event loop busy for {self._patience:g} s")
            for each in late:
                if not each.future.done():
                    each.future.set_result(busy)
        line = self._line
        self._is_ticking = bool(self._waiting or self._opening or (line is not None and line.writes))
        if self._is_ticking:
            self._loop.call_at(now + self._tick, self._look, context=self._context)

    # --- opening and closing ------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._opening is None:
            self._opening = Context().run(self._loop.create_task, self._opened())

    async def _opened(self) -> None:
        """Open a line for all that wait. If that fails, it is one failure."""
        error: BaseException | None = None
        try:
            self._line = Line(self, await self._connect())
        except asyncio.CancelledError:  # it is nobody's but the loop's
            error = StoreBusy("this event loop ends")
        except Exception as caught:  # noqa: BLE001 — each call raises it
            error = caught
        self._opening = None
        if error is None:
            self.go_on(is_known=True)
            return
        self._note(error)
        self._fail(error)

    async def _connect(self) -> Any:
        """Return a new connection; see `SyncPool`. Only sentinels are asked with time-outs of redis-py."""
        for is_last in (False, True):
            began = time.monotonic()
            try:
                return await self._connect_once()
            except TIMED_OUT as error:
                if not self._source.sentinels or not is_too_late(began, self._source, time.monotonic()):
                    raise
                if is_last:
                    raise StoreBusy(f"this process was too busy to connect: {error}") from None
        raise AssertionError

    async def _connect_once(self) -> Any:
        options, sentinels = self._source.options, len(self._source.sentinel_clients)
        first = max(options[name] for name in TIMEOUTS) if sentinels else options["socket_connect_timeout"]
        with connecting():
            connection = self._source.make()
            if hasattr(connection, "path"):  # a Unix socket connects at once, and redis-py greets within that
                first = options["socket_timeout"]
            of_redis_py = connection.socket_connect_timeout
            connection.socket_timeout = connection.socket_connect_timeout = None
            own = connection.redis_connect_func
            how = _GREETS if own is None else "redis_connect_func"
            says = getattr(connection, how)

            async def greet(*given: Any, **options_of_method: Any) -> None:
                """Say who we are. A server that answers nothing costs no more than for a command."""
                self._connecting = waiting, self._late(options["socket_timeout"])
                greeted = says(*given, **options_of_method)
                if isawaitable(greeted):
                    await greeted

            setattr(connection, how, greet)
            try:
                async with asyncio.timeout(None) as waiting:
                    self._connecting = waiting, self._late(first * (1 + sentinels))
                    try:
                        await cancellable(connection.connect())
                    finally:
                        self._connecting = None
                connection.socket_connect_timeout = of_redis_py  # as it was
                if own is None:
                    delattr(connection, how)  # the method is there again
                else:
                    connection.redis_connect_func = own
                if await getattr(connection, _CAN_READ)() or self._source.leads_elsewhere(connection):
                    raise ConnectFailedError(NOT_ALONE)  # noqa: TRY301
            except BaseException as error:
                await connection.disconnect(nowait=True)
                if isinstance(error, TimeoutError):
                    raise RedisTimeoutError("Timeout connecting to server") from None
                raise
            return connection

    def _close_unless_needed(self) -> None:
        line = self._line
        if line is not None and not self._waiting and all(each is None or each.done() for each in line.under_way):
            line.lost(None)

    async def aclose(self) -> None:
        """Close the connections, now or when the replies have come that are under way."""
        self._is_closed = True
        line = self._line
        self._close_unless_needed()
        if line is not None and line.is_lost:
            await asyncio.wait([line.closed], timeout=CLOSING)
        if self._slow is not None:
            await self._slow.aclose()
        for client in self._source.sentinel_clients:
            await client.aclose(close_connection_pool=True)


def async_wire(pool: Any, option: OptionOf, breaker: Breaker, **more: Any) -> AsyncWire:
    """Return a new wire of the running event loop for a pool of redis-py, with `more` options."""
    source = async_source(pool)
    return AsyncWire(source._replace(options={**source.options, **more}), patience_of(option), breaker)


class Loading:
    """The scripts that a server of an event loop has forgotten, and that a task sends in full now."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, asyncio.Future[None]] = {}

    async def by_another(self, script: Hashable) -> bool:
        """Say whether another task sends a script, after its end. False: you send it, and call `done` at the end."""
        known = self._under_way.get(script)
        if known is None:
            self._under_way[script] = asyncio.get_running_loop().create_future()
            return False
        await asyncio.wait([known])
        return True

    def done(self, script: Hashable) -> None:
        """Note that a script was sent, or that sending it failed."""
        self._under_way.pop(script).set_result(None)


async def cancellable(call: Awaitable[T]) -> T:
    """Await a call of redis-py. Raises `CancelledError` if the task was cancelled meanwhile.

    redis-py waits by `asyncio.wait_for`. Up to Python 3.11 that hides a cancellation which arrives as the wait ends.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        return await call
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


class ByLoop:
    """One object for each event loop, closed with the loop. `make` makes the object, which has a method `aclose`."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._by_loop: WeakKeyDictionary[Any, tuple[Any, AsyncGenerator[None, None]]] = WeakKeyDictionary()
        self._latest: tuple[Callable[[], Any], Any] | None = None
        """The loop that asked last, by a weak reference, and its object."""

    def known(self) -> Any:
        """Return the object of the running loop if it was the last that asked; if not, None: await `get`."""
        latest = self._latest
        return latest[1] if latest is not None and latest[0]() is asyncio.get_running_loop() else None

    async def get(self) -> Any:
        """Return the object of the running loop."""
        loop = asyncio.get_running_loop()
        known = self._by_loop.get(loop)
        if known is None:
            self._forget_closed_loops()
            made = self._make()
            # A loop that ends closes its async generators. The end of this one closes the connections.
            known = self._by_loop[loop] = made, self._close_at_end(made)
            await anext(known[1])
        self._latest = weakref.ref(loop), known[0]
        return known[0]

    async def _close_at_end(self, made: Any) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._latest = None
            self._by_loop.pop(asyncio.get_running_loop(), None)
            await made.aclose()

    def _forget_closed_loops(self) -> None:
        """Forget loops that were closed without ending their generators. `asyncio.run` always ends them."""
        for loop_ref in self._by_loop.keyrefs():  # a list: other threads add and remove loops meanwhile
            loop = loop_ref()
            if loop is not None and loop.is_closed():
                self._by_loop.pop(loop, None)
