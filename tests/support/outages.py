"""Servers that do not answer, and what the limiter reports about them."""

import asyncio
import itertools
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from django_quota import acheck, check
from django_quota.exceptions import StoreUnavailable
from django_quota.limiting.fallback import Workers
from django_quota.limiting.outages import Outages, _log_denied_command, _log_foreign_data
from django_quota.limiting.registry import get_limiter
from django_quota.signals import store_back, store_lost
from django_quota.stores.breaker import Breaker
from django_quota.stores.redis.store import RedisStore
from django_quota.subjects import addresses
from django_quota.testing import RedisServer
from tests.support.steps import Clock
from tests.support.stores import caches, current_store, redis_store, spy


def ask(kind: str, times: int = 1, subject: str = "user:1") -> list[Any]:
    if kind == "sync":
        return [check("9/m", subject) for _ in range(times)]

    async def wait() -> list[Any]:
        return [await acheck("9/m", subject) for _ in range(times)]

    return asyncio.run(wait())


@contextmanager
def heard() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    reported: list[tuple[str, dict[str, Any]]] = []

    def lost(**carried: Any) -> None:
        reported.append(("lost", carried))

    def back(**carried: Any) -> None:
        reported.append(("back", carried))

    store_lost.connect(lost)
    store_back.connect(back)
    try:
        yield reported
    finally:
        store_lost.disconnect(lost)
        store_back.disconnect(back)


@contextmanager
def no_answer(error: StoreUnavailable | None = None, *, done: bool = False) -> Iterator[None]:
    """Let no call of the store be answered in the block; `done`: each takes effect, but its reply is lost."""

    def lose(_: Any) -> None:
        raise error or StoreUnavailable("it is gone")

    with pytest.MonkeyPatch.context() as patched:
        store = current_store()
        if isinstance(store, RedisStore):  # the others ask their `run` for each operation
            try_all = store.try_all
            patched.setattr(store, "try_all", lambda *given: lose(try_all(*given) if done else None))
        spy(patched, after=lose) if done else spy(patched, before=lose)
        yield


def mostly_late(call: Callable[..., Any], error: Exception, *, done: bool = False) -> Callable[..., Any]:
    """Return a call of which three of four answers are late; `done`: it takes effect each time."""
    asked = itertools.count(1)

    def late(*given: Any, **options: Any) -> Any:
        is_late = next(asked) % 4
        answer = None if is_late and not done else call(*given, **options)
        if is_late:
            raise error
        return answer

    return late


class Mute:
    """A server that accepts connections and never answers; `met` says how many there were.

    The system queues connections until `met` accepts them, so it counts all of them whenever it is read.
    """

    def __init__(self, path: Path) -> None:
        self.url = f"unix://{path}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._listener.setblocking(False)
        self._open: list[socket.socket] = []

    @property
    def met(self) -> int:
        with suppress(BlockingIOError):
            while True:
                self._open.append(self._listener.accept()[0])
        return len(self._open)

    def close(self) -> None:
        self._listener.close()
        for connection in self._open:
            connection.close()


@pytest.fixture
def mute(tmp_path_factory: pytest.TempPathFactory, settings: Any) -> Iterator[Mute]:
    server = Mute(tmp_path_factory.mktemp("m") / "s")
    settings.CACHES = caches(RedisServer(server.url, 0, Path()), socket_timeout=0.05)
    yield server
    server.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def elapsed(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which this process waits and plans, in all its threads: the test moves it."""
    monkeypatch.setattr("django_quota.core.clock.elapsed", clock)
    return clock


FAILURES, PAUSE, SETTLE_TIME = 3, 1.0, 1.0
"""What docs/reliability.md promises: after three failures in a row no call asks for a second; an answer ends an outage
when the last failure was a second ago."""


def new_breaker(clock: Callable[[], float] = time.monotonic, of: Breaker | None = None, **options: Any) -> Breaker:
    """Let the breaker of the settings' server, or this one, have seen no failure; return it."""
    breaker: Breaker = of or redis_store().server.breaker
    vars(breaker).update(vars(Breaker(clock=clock, **options)))
    return breaker


def fail(breaker: Breaker, times: int = FAILURES) -> None:
    """Let this many calls in a row fail: by default as many as open the breaker."""
    for _ in range(times):
        breaker.failed()


def due_breaker(clock: Clock | None = None, of: Breaker | None = None) -> Breaker:
    """Let it have been open for so long that one may ask; return it."""
    clock = clock or Clock()
    fail(breaker := new_breaker(clock, of=of))
    clock.now += PAUSE
    return breaker


def new_outages(clock: Clock, all_nodes_healthy: Callable[[], bool] = lambda: True) -> Outages:
    """Let this process know of no outage; return what will, on this clock."""
    outages = get_limiter().outages
    vars(outages).update(vars(Outages(clock, all_nodes_healthy, get_limiter().metrics.count_outage)))
    return outages


def log_everything_again() -> None:
    _log_foreign_data.cache_clear()
    _log_denied_command.cache_clear()
    addresses._logged.clear()
    addresses._server_trusts_everybody.cache_clear()


def with_clock(clock: Clock) -> RedisStore:
    """Return the store of the settings, with its breaker, its outages and the signs of life on this clock."""
    new_breaker(clock)
    new_outages(clock)
    get_limiter().fallback.workers = Workers(redis_store(), clock)
    return redis_store()


FULL = ("CONFIG", "SET", "maxmemory", "1")
