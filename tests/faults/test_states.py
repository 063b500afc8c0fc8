"""A server without memory, and one in another state: each call keeps its promise and recovers."""

import asyncio
import os
import resource
import select
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from itertools import product
from random import Random
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from django_quota import Decision, Rule, acheck, check, counter, slot
from django_quota.core.errors import StoreBusy
from django_quota.engine.asks import Ask
from django_quota.engine.codec import PER_LIMIT
from django_quota.engine.receipts import Receipt
from django_quota.exceptions import QuotaError, StoreUnavailable
from django_quota.limiting.registry import get_limiter
from django_quota.stores.base import Store
from django_quota.stores.redis.async_wire import MOST_UNDER_WAY
from django_quota.stores.redis.settings import ANSWER_TIMEOUT
from django_quota.testing import RedisServer, running_redis
from tests.faults.calls import CALLS, MODES, caches_at, do, failed_calls, use_site_rules
from tests.faults.faults import PASSWORD, FaultyServer
from tests.faults.sockets import listening
from tests.support.calls import both
from tests.support.commands import PATIENCE, wait_until
from tests.support.inputs import inputs
from tests.support.outages import FAILURES, Mute, ask, fail, heard, new_breaker, with_clock
from tests.support.processes import forks, in_child
from tests.support.questions import Question, QuestionMode
from tests.support.selection import thorough
from tests.support.sentinels import behind
from tests.support.steps import SECOND, START, Clock
from tests.support.stores import PATIENT, UnsweptMemory, caches, current_store, named, programs, redis_store

STEPS = 40
KINDS: list[QuestionMode] = ["check", "check", "check", "peek", "refund", "adjust", "adjust"]
ALGORITHMS: list[Any] = ["fixed_window", "sliding_window", "token_bucket", "leaky_bucket"]


@pytest.fixture(scope="module", params=programs(), ids=named)
def its_own(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with running_redis(request.param) as server:
        yield server


def decided(store: Store, question: Question, mode: QuestionMode, now: int) -> tuple[list[int], Receipt]:
    """Return what a store says of the limits, and what a check took."""
    reply: list[int] = store.run(question.operation(now, mode), now)
    return reply[: 2 + PER_LIMIT * sum(len(hit.limits) for hit in question.hits)], question.receipt(reply)


@given(st.randoms(use_true_random=True))  # what Hypothesis would rather try is too seldom adjusted
@inputs(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_full_redis_decides_correctly_or_changes_nothing(its_own: RedisServer, settings: Any, chance: Random) -> None:
    settings.CACHES = caches(its_own)
    rules = [
        Rule.make(
            f"r{number}", *chance.choice([("6/m",), ("6/m", "20/h"), ("300/m",)]),
            algorithm=chance.choice(ALGORITHMS), shadow=chance.random() < 0.15, block=chance.random() < 0.8,
        )
        for number in range(chance.randint(1, 3))
    ]  # fmt: skip
    store, model, now = current_store(), UnsweptMemory(), START
    taken: list[Receipt] = []
    with redis.Redis.from_url(its_own.url) as client:
        client.flushall()
        try:
            for _ in range(STEPS):
                now += chance.choice([0, SECOND // 2, SECOND, 5 * SECOND, 20 * SECOND])
                mode, cost = chance.choice(KINDS), chance.choice([0, 1, 1, 2, 3])
                asked = rules if mode in ("check", "peek") else [chance.choice(rules)]
                question = Question([Ask(rule, "ip:192.0.2.1", cost) for rule in asked], with_events=False)
                if mode == "adjust":
                    if not taken:
                        continue
                    settled = chance.choice(taken)
                    question = question.settled(settled, [chance.choice([0, 1, 5])] * len(settled.asks))
                is_full = chance.random() < 0.5
                client.config_set("maxmemory", int(is_full))
                try:
                    said, receipt = decided(store, question, mode, now)
                except StoreUnavailable:
                    assert is_full
                    continue
                in_model, taken_in_model = decided(model, question, mode, now)
                assert (said, receipt.taken) == (in_model, taken_in_model.taken)
                if mode == "adjust":
                    taken.remove(settled)
                elif mode == "check" and receipt.taken:
                    taken.append(receipt)
        finally:
            client.config_set("maxmemory", 0)
            model.close()


@pytest.mark.parametrize("mode", [MODES[0], thorough("variants", MODES[1])])
def test_a_key_of_another_type_raises_only_our_errors(
    mode: str, redis_server: RedisServer, raw: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.CACHES = caches(redis_server)
    use_site_rules(settings)
    states = [call.before() for call in CALLS]
    for _ in range(12):
        check("3/m", "user:7", name="events", warn_at=0.5)  # so that there are events
    assert failed_calls(mode) == {}
    keys = sorted(str(key.decode()) for key in raw.scan_iter())
    assert len({key.partition("}:")[2].split(":")[0] for key in keys}) >= 8  # `r`, `c`, `l` and other kinds
    for key in keys:
        before = raw.dump(key)
        if before is None:  # the lease of a lock has expired
            continue
        is_text = raw.type(key) == b"string"
        raw.delete(key)
        raw.rpush(key, "alien") if is_text else raw.set(key, "alien")
        for call, state in zip(CALLS, states, strict=True):
            try:
                answer = do(call, mode, state if "before" in call.name else call.before())
            except QuotaError:
                continue  # CounterError, LeaseLost: what they say is theirs
            if call.kind.startswith("serves"):
                assert answer.status_code in (200, 503)
        assert not check("9/m", "user:somebody-else").degraded
        raw.restore(key, 0, before, replace=True)
    raw.flushall()
    assert failed_calls(mode) == {}


def one_connection(server: RedisServer, timeout: float) -> dict[str, Any]:
    """Return CACHES with one connection, for which a call waits so long (seconds)."""
    found = caches_at(server.url, max_connections=1, timeout=timeout)
    found["default"]["OPTIONS"]["CONNECTION_POOL_CLASS"] = "redis.BlockingConnectionPool"
    return found


@asynccontextmanager
async def no_room(raw: redis.Redis) -> AsyncIterator[None]:
    """Fill the wire of the running event loop with commands that wait for a list."""
    wire = await redis_store().server.wires.get()
    filling = asyncio.gather(*(wire.execute(("BLPOP", "list", 60)) for _ in range(MOST_UNDER_WAY)))
    await asyncio.to_thread(wait_until, lambda: raw.info("clients")["blocked_clients"])
    yield
    raw.rpush("list", *range(MOST_UNDER_WAY))
    await filling


def test_callers_without_a_free_connection_fail_in_time(
    redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> None:
    settings.CACHES = one_connection(redis_server, 0.05)
    permits = redis_store().server.pool._permits
    permits.get()
    for _ in range(2 * FAILURES):  # it says nothing about the server
        with pytest.raises(StoreBusy, match="all connections of this process were in use"):
            counter("a").incr("user:7")
    permits.put(None)
    assert not check("9/m", "user:7").degraded

    async def ask() -> None:
        async with no_room(raw):
            for _ in range(2 * FAILURES):
                with pytest.raises(StoreBusy, match="others kept this event loop busy for"):
                    await counter("a").aincr("user:7")
        assert not any([(await acheck("9/m", "user:7")).degraded for _ in range(3)])

    asyncio.run(ask())


@pytest.mark.parametrize("kind", MODES)
def test_a_flood_that_waits_for_the_connections_of_a_process_admits_one_limit_more_at_most(
    kind: str, redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> None:
    settings.CACHES = one_connection(redis_server, 0.001)
    if kind == "async":

        async def ask_all() -> list[Decision]:
            return await asyncio.gather(*(acheck("5/h", "user:7") for _ in range(300)))

        decisions = asyncio.run(ask_all())
    else:
        with ThreadPoolExecutor(64) as threads:
            decisions = list(threads.map(lambda _: check("5/h", "user:7"), range(300)))
    assert 5 <= sum(decision.allowed for decision in decisions) <= 10
    assert not redis_store().server.breaker.has_failed


@both
def test_what_gives_back_waits_its_turn_for_longer(
    kind: str, redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> None:
    settings.CACHES = one_connection(redis_server, 0.01)

    def by_threads() -> None:
        lease = slot("s", 1).acquire()
        permits = redis_store().server.pool._permits
        permits.get()
        with ThreadPoolExecutor(1) as threads:
            released = threads.submit(lease.release)
            for _ in range(3):
                with pytest.raises(StoreBusy):
                    counter("a").incr("user:7")
            permits.put(None)
            released.result()

    async def by_tasks() -> None:
        lease = await slot("s", 1).aacquire()
        async with no_room(raw):
            released = asyncio.ensure_future(lease.arelease())
            for _ in range(3):
                with pytest.raises(StoreBusy):
                    await counter("a").aincr("user:7")
        await released

    by_threads() if kind == "sync" else asyncio.run(by_tasks())
    assert slot("s", 1).holders() == []


def test_a_reply_that_has_arrived_is_read_though_the_time_is_over(
    redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> None:
    """Under gevent, a busy process ends the wait before it looks at the socket."""
    settings.CACHES = caches_at(redis_server.url)
    check("9/m", "user:7")
    (wire,) = redis_store().server.pool._idle

    class Late:
        """A socket whose time-out is over when the first bytes have arrived."""

        met = 0

        def __init__(self, its_own: Any) -> None:
            self.its_own = its_own

        def __getattr__(self, name: str) -> Any:
            return getattr(self.its_own, name)

        def recv(self, size: int) -> bytes:
            Late.met += 1
            if Late.met == 1:
                select.select([self.its_own], [], [], 5)
                raise TimeoutError("timed out")
            return bytes(self.its_own.recv(size))

    wire._socket = Late(wire._socket)
    decision = check("9/m", "user:7")
    assert (decision.degraded, decision.remaining, Late.met) == (False, 7, 2)


@both
def test_a_process_without_free_files_is_busy_and_redis_is_not_away(
    kind: str, redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> None:
    settings.CACHES = caches_at(redis_server.url)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as opened, heard() as reported:
        loop = asyncio.new_event_loop()
        opened.callback(loop.close)
        get_limiter()
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        with suppress(OSError):
            while True:
                opened.enter_context(open(os.devnull))  # noqa: PTH123
        if kind == "sync":
            decisions = [check("2/m", "user:7") for _ in range(5)]
        else:
            decisions = [loop.run_until_complete(acheck("2/m", "user:7")) for _ in range(5)]
    assert [(decision.allowed, decision.degraded) for decision in decisions] == [(True, True)] * 2 + [(False, True)] * 3
    assert (reported, redis_store().server.breaker.has_failed) == ([], False)


def test_tasks_waiting_for_a_dead_server_fail_together(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Who was held up by a busy machine connects once more, since its time-out says nothing about the server.
    monkeypatch.setattr("django_quota.stores.redis.connections.LATE", PATIENCE)
    met: list[int] = []

    def mute(connection: Any) -> None:
        met.append(1)
        while connection.recv(65_536):
            pass

    async def ask() -> list[Decision]:
        return await asyncio.gather(*(acheck("9/m", f"user:{number}") for number in range(60)))

    with listening(mute) as port:
        settings.CACHES = caches_at(f"redis://127.0.0.1:{port}/0", 0.1, max_connections=FAILURES)
        assert all(decision.degraded for decision in asyncio.run(ask()))
    assert len(met) < 2 * FAILURES  # each failure but the last one lets the next task try


def test_a_place_without_a_redis_counts_as_unavailable(one_server: FaultyServer, settings: Any) -> None:
    by_tls = one_server.url.replace("redis://", "rediss://")
    for url in (by_tls, *(f"redis://app:{PASSWORD}@{host}/0" for host in ("two..dots", "x" * 70, "127.0.0.1:1"))):
        settings.CACHES = caches_at(url, 0.1)
        for call, mode in product(CALLS, MODES):
            if call.name in ("check sliding allow", "counter.incr", "slot"):
                answer = do(call, mode, None)
                assert isinstance(answer, StoreUnavailable) or answer.degraded
                assert PASSWORD not in repr(answer)


@both
@pytest.mark.parametrize("read", [0, 1], ids=["at once", "after the first words"])
def test_the_breaker_opens_for_a_proxy_without_a_server(kind: str, read: int, clock: Clock, settings: Any) -> None:
    met: list[int] = []

    def close(connection: Any) -> None:
        met.append(1)
        if read:
            connection.recv(read)

    with listening(close) as port:
        settings.CACHES = caches_at(f"redis://127.0.0.1:{port}/0")
        store = with_clock(clock)
        assert all(decision.degraded for decision in ask(kind, 30))
        assert store.server.breaker.is_open
        before = len(met)
        clock.now += 1
        assert all(decision.degraded for decision in ask(kind, 10))
        assert store.server.breaker.is_open  # the one that asked has not closed it
        assert len(met) <= before + 2


def test_threads_waiting_for_a_connection_stop_when_the_breaker_opens(mute: Mute, settings: Any) -> None:
    settings.CACHES = caches_at(mute.url, ANSWER_TIMEOUT, max_connections=1)
    fail(new_breaker(Clock()), FAILURES - 1)
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda _: check("9/m", "user:1").degraded, range(8)))
    assert mute.met <= 2, "the first of eight, and its second try if the machine was too busy to see the answer"


@forks
def test_a_forked_worker_behind_sentinel_has_its_own_connections(sentinel_port: int, settings: Any) -> None:
    settings.CACHES = {"default": behind(sentinel_port, **PATIENT)}
    assert check("99/m", "user:1").remaining == 98
    assert in_child(lambda: [check("99/m", "user:1").remaining for _ in range(3)] == [97, 96, 95]) == 1
    assert check("99/m", "user:1").remaining == 94


@forks
@pytest.mark.usefixtures("cluster")
def test_a_forked_worker_of_a_cluster_has_its_own_connections() -> None:
    assert check("99/m", "user:1").remaining == 98
    store: Any = current_store()
    client = store._sync.client
    assert in_child(lambda: check("99/m", "user:1").remaining == 97 and store._sync.client is not client) == 1
    assert check("99/m", "user:1").remaining == 96
