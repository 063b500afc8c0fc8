"""A full Redis, keys of another type, a process without connections or files, and addresses without a Redis."""

import asyncio
import os
import resource
import select
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
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
from tests.faults.calls import CALLS, MODES, Call, caches_at, do, failed_calls, use_site_rules
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


def random_rules(chance: Random) -> list[Rule]:
    return [
        Rule.make(
            f"r{number}", *chance.choice([("6/m",), ("6/m", "20/h"), ("300/m",)]),
            algorithm=chance.choice(ALGORITHMS), shadow=chance.random() < 0.15, block=chance.random() < 0.8,
        )
        for number in range(chance.randint(1, 3))
    ]  # fmt: skip


@contextmanager
def sometimes_full(server: RedisServer) -> Iterator[Callable[[bool], Any]]:
    """Yield what fills an empty Redis, or makes room in it again."""
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        try:
            yield lambda is_full: client.config_set("maxmemory", int(is_full))
        finally:
            client.config_set("maxmemory", 0)


@pytest.mark.thorough("slow")
@given(st.randoms(use_true_random=True))  # what Hypothesis would rather try is too seldom adjusted
@inputs(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_full_redis_decides_correctly_or_changes_nothing(its_own: RedisServer, settings: Any, chance: Random) -> None:
    settings.CACHES = caches(its_own)
    rules, now = random_rules(chance), START
    taken: list[Receipt] = []

    with sometimes_full(its_own) as set_full, closing(UnsweptMemory()) as model:
        store = current_store()
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

            set_full(is_full := chance.random() < 0.5)
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


# --- keys that hold something else ------------------------------------------------------------------------------------


@pytest.fixture
def states(redis_server: RedisServer, raw: redis.Redis, settings: Any) -> list[Any]:
    """What each call needs from before, in a Redis that has events too."""
    settings.CACHES = caches(redis_server)
    use_site_rules(settings)
    found = [call.before() for call in CALLS]
    for _ in range(12):
        check("3/m", "user:7", name="events", warn_at=0.5)
    return found


def each_key_replaced(raw: redis.Redis) -> Iterator[str]:
    """Yield each key while it holds data of another type; put back what was there."""
    keys = sorted(str(key.decode()) for key in raw.scan_iter())
    assert len({key.partition("}:")[2].split(":")[0] for key in keys}) >= 8  # `r`, `c`, `l` and other kinds
    for key in keys:
        before = raw.dump(key)
        if before is None:  # the lease of a lock has expired
            continue
        is_text = raw.type(key) == b"string"
        raw.delete(key)
        raw.rpush(key, "alien") if is_text else raw.set(key, "alien")
        yield key
        raw.restore(key, 0, before, replace=True)


def answers_of_ours(mode: str, states: list[Any]) -> Iterator[tuple[str, Any]]:
    """Make every call; yield its kind and its answer, if it did not raise an error of ours."""
    for call, state in zip(CALLS, states, strict=True):
        with suppress(QuotaError):  # CounterError, LeaseLost: what they say is theirs
            yield call.kind, do(call, mode, state if "before" in call.name else call.before())


in_modes = pytest.mark.parametrize("mode", [MODES[0], thorough("variants", MODES[1])])


@in_modes
def test_a_key_of_another_type_raises_only_our_errors(mode: str, states: list[Any], raw: redis.Redis) -> None:
    assert failed_calls(mode) == {}

    wrong = {
        (key, kind): answer.status_code
        for key in each_key_replaced(raw)
        for kind, answer in answers_of_ours(mode, states)
        if kind.startswith("serves") and answer.status_code not in (200, 503)
    }

    assert wrong == {}


@pytest.mark.thorough("slow")
@in_modes
def test_a_key_of_another_type_degrades_no_other_subject(mode: str, states: list[Any], raw: redis.Redis) -> None:
    assert failed_calls(mode) == {}

    degraded = []
    for key in each_key_replaced(raw):
        list(answers_of_ours(mode, states))
        if check("9/m", "user:somebody-else").degraded:
            degraded.append(key)

    assert degraded == []


@in_modes
def test_every_call_recovers_from_keys_of_another_type(mode: str, states: list[Any], raw: redis.Redis) -> None:
    assert failed_calls(mode) == {}

    for _ in each_key_replaced(raw):
        list(answers_of_ours(mode, states))
    raw.flushall()

    assert failed_calls(mode) == {}


# --- a process whose connections are all in use -----------------------------------------------------------------------


def one_connection(server: RedisServer, timeout: float) -> dict[str, Any]:
    """Return CACHES with one connection, for which a call waits so long (seconds)."""
    found = caches_at(server.url, max_connections=1, timeout=timeout)
    found["default"]["OPTIONS"]["CONNECTION_POOL_CLASS"] = "redis.BlockingConnectionPool"
    return found


@contextmanager
def no_connection() -> Iterator[None]:
    """Use the one connection of the process in the block."""
    permits = redis_store().server.pool._permits
    permits.get()
    yield
    permits.put(None)


@asynccontextmanager
async def no_room(raw: redis.Redis) -> AsyncIterator[None]:
    """Fill the wire of the running event loop with commands that wait for a list."""
    wire = await redis_store().server.wires.get()
    filling = asyncio.gather(*(wire.execute(("BLPOP", "list", 60)) for _ in range(MOST_UNDER_WAY)))
    await asyncio.to_thread(wait_until, lambda: raw.info("clients")["blocked_clients"])
    yield
    raw.rpush("list", *range(MOST_UNDER_WAY))
    await filling


def test_a_thread_without_a_free_connection_gets_an_error_that_its_process_is_busy(
    redis_server: RedisServer, settings: Any
) -> None:
    settings.CACHES = one_connection(redis_server, 0.05)

    with no_connection(), pytest.raises(StoreBusy, match="all connections of this process were in use"):
        counter("a").incr("user:7")


def test_a_task_without_room_on_the_wire_gets_an_error_that_its_event_loop_is_busy(
    redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> None:
    settings.CACHES = one_connection(redis_server, 0.05)

    async def ask() -> None:
        async with no_room(raw):
            with pytest.raises(StoreBusy, match="others kept this event loop busy for"):
                await counter("a").aincr("user:7")

    asyncio.run(ask())


@pytest.mark.thorough("slow")
def test_threads_that_found_no_free_connection_open_no_breaker(redis_server: RedisServer, settings: Any) -> None:
    settings.CACHES = one_connection(redis_server, 0.05)

    with no_connection():
        for _ in range(2 * FAILURES):
            with pytest.raises(StoreBusy):
                counter("a").incr("user:7")

    assert not check("9/m", "user:7").degraded


@pytest.mark.thorough("slow")
def test_tasks_that_found_no_room_on_the_wire_open_no_breaker(
    redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> None:
    settings.CACHES = one_connection(redis_server, 0.05)

    async def ask() -> list[Decision]:
        async with no_room(raw):
            for _ in range(2 * FAILURES):
                with pytest.raises(StoreBusy):
                    await counter("a").aincr("user:7")
        return [await acheck("9/m", "user:7") for _ in range(3)]

    assert not any(decision.degraded for decision in asyncio.run(ask()))


def flood(kind: str) -> list[Decision]:
    """Return 300 decisions of a limit of 5, asked for at once."""
    if kind == "sync":
        with ThreadPoolExecutor(64) as threads:
            return list(threads.map(lambda _: check("5/h", "user:7"), range(300)))

    async def ask_all() -> list[Decision]:
        return await asyncio.gather(*(acheck("5/h", "user:7") for _ in range(300)))

    return asyncio.run(ask_all())


@both
def test_a_flood_that_waits_for_the_connections_of_a_process_admits_at_most_one_limit_more(
    kind: str, redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> None:
    settings.CACHES = one_connection(redis_server, 0.001)

    decisions = flood(kind)

    assert 5 <= sum(decision.allowed for decision in decisions) <= 10


@both
def test_a_flood_that_waits_for_the_connections_of_a_process_is_not_a_failure_of_the_server(
    kind: str, redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> None:
    settings.CACHES = one_connection(redis_server, 0.001)

    flood(kind)

    assert not redis_store().server.breaker.has_failed


def test_a_thread_that_releases_a_slot_waits_longer_for_a_connection_than_other_calls(
    redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> None:
    settings.CACHES = one_connection(redis_server, 0.01)
    lease = slot("s", 1).acquire()

    with ThreadPoolExecutor(1) as threads:
        with no_connection():
            released = threads.submit(lease.release)
            for _ in range(3):
                with pytest.raises(StoreBusy):
                    counter("a").incr("user:7")
        released.result()

    assert slot("s", 1).holders() == []


def test_a_task_that_releases_a_slot_waits_longer_for_room_on_the_wire_than_other_calls(
    redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> None:
    settings.CACHES = one_connection(redis_server, 0.01)

    async def release() -> None:
        lease = await slot("s", 1).aacquire()
        async with no_room(raw):
            released = asyncio.ensure_future(lease.arelease())
            for _ in range(3):
                with pytest.raises(StoreBusy):
                    await counter("a").aincr("user:7")
        await released

    asyncio.run(release())

    assert slot("s", 1).holders() == []


class LateSocket:
    """A socket whose time-out is over when the first bytes have arrived."""

    def __init__(self, its_own: Any) -> None:
        self.its_own, self.reads = its_own, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.its_own, name)

    def recv(self, size: int) -> bytes:
        self.reads += 1
        if self.reads == 1:
            select.select([self.its_own], [], [], 5)
            raise TimeoutError("timed out")
        return bytes(self.its_own.recv(size))


def test_a_reply_that_has_arrived_is_read_though_the_time_is_over(
    redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> None:
    """Under gevent, a busy process ends the wait before it looks at the socket."""
    settings.CACHES = caches_at(redis_server.url)
    check("9/m", "user:7")
    (wire,) = redis_store().server.pool._idle
    wire._socket = late = LateSocket(wire._socket)

    decision = check("9/m", "user:7")

    assert (decision.degraded, decision.remaining, late.reads) == (False, 7, 2)


@contextmanager
def no_free_files() -> Iterator[None]:
    """Open as many files as the process may have in the block."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as opened:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        with suppress(OSError):
            while True:
                opened.enter_context(open(os.devnull))  # noqa: PTH123
        yield


def five_without_free_files(kind: str) -> list[Decision]:
    get_limiter()
    with closing(asyncio.new_event_loop()) as loop, no_free_files():
        if kind == "sync":
            return [check("2/m", "user:7") for _ in range(5)]
        return [loop.run_until_complete(acheck("2/m", "user:7")) for _ in range(5)]


@both
def test_a_process_without_free_files_counts_by_itself(
    kind: str, redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> None:
    settings.CACHES = caches_at(redis_server.url)

    decisions = five_without_free_files(kind)

    assert [decision.allowed for decision in decisions] == [True, True, False, False, False]
    assert [decision for decision in decisions if not decision.degraded] == []


@both
def test_a_process_without_free_files_reports_no_outage(
    kind: str, redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> None:
    settings.CACHES = caches_at(redis_server.url)

    with heard() as reported:
        five_without_free_files(kind)

    assert (reported, redis_store().server.breaker.has_failed) == ([], False)


# --- an address where no Redis answers --------------------------------------------------------------------------------


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
        decisions = asyncio.run(ask())

    assert [decision for decision in decisions if not decision.degraded] == []
    assert len(met) < 2 * FAILURES  # each failure but the last one lets the next task try


ADDRESSES = {
    "a server without TLS": "",
    "an empty label": f"redis://app:{PASSWORD}@two..dots/0",
    "a label that is too long": f"redis://app:{PASSWORD}@{'x' * 70}/0",
    "a closed port": f"redis://app:{PASSWORD}@127.0.0.1:1/0",
}
ASKED_THERE = [call for call in CALLS if call.name in ("check sliding allow", "counter.incr", "slot")]


@pytest.fixture(params=ADDRESSES)
def no_redis(request: pytest.FixtureRequest, one_server: FaultyServer, settings: Any) -> None:
    """Settings that name an address where no Redis answers."""
    url = ADDRESSES[request.param] or one_server.url.replace("redis://", "rediss://")
    settings.CACHES = caches_at(url, 0.1)


@pytest.mark.usefixtures("no_redis")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", ASKED_THERE, ids=lambda call: call.name)
def test_an_address_without_a_redis_is_an_outage(call: Call, mode: str) -> None:
    answer = do(call, mode, None)

    assert isinstance(answer, StoreUnavailable) or answer.degraded


@pytest.mark.usefixtures("no_redis")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", ASKED_THERE, ids=lambda call: call.name)
def test_the_answer_of_an_outage_never_shows_the_password(call: Call, mode: str) -> None:
    answer = do(call, mode, None)

    assert PASSWORD not in repr(answer)


@contextmanager
def proxy_without_a_server(read: int, settings: Any) -> Iterator[list[int]]:
    """Yield one item for each connection that a proxy closed at once, or after it read so many bytes."""
    met: list[int] = []

    def close(connection: Any) -> None:
        met.append(1)
        if read:
            connection.recv(read)

    with listening(close) as port:
        settings.CACHES = caches_at(f"redis://127.0.0.1:{port}/0")
        yield met


closes = pytest.mark.parametrize("read", [0, 1], ids=["at once", "after the first words"])


@both
@closes
def test_the_breaker_opens_for_a_proxy_without_a_server(kind: str, read: int, clock: Clock, settings: Any) -> None:
    with proxy_without_a_server(read, settings):
        store = with_clock(clock)

        assert [decision for decision in ask(kind, 30) if not decision.degraded] == []
        assert store.server.breaker.is_open


@both
@closes
def test_a_call_that_reaches_a_proxy_without_a_server_leaves_the_breaker_open(
    kind: str, read: int, clock: Clock, settings: Any
) -> None:
    with proxy_without_a_server(read, settings) as met:
        store = with_clock(clock)
        ask(kind, 30)
        before = len(met)
        clock.now += 1

        assert [decision for decision in ask(kind, 10) if not decision.degraded] == []
        assert store.server.breaker.is_open
        assert len(met) <= before + 2


@pytest.mark.thorough("slow")
def test_threads_waiting_for_a_connection_stop_when_the_breaker_opens(mute: Mute, settings: Any) -> None:
    settings.CACHES = caches_at(mute.url, ANSWER_TIMEOUT, max_connections=1)
    fail(new_breaker(Clock()), FAILURES - 1)

    with ThreadPoolExecutor(8) as threads:
        degraded = list(threads.map(lambda _: check("9/m", "user:1").degraded, range(8)))

    assert degraded == [True] * 8
    assert mute.met <= 2, "the first of eight, and its second try if the machine was too busy to see the answer"


@pytest.mark.thorough("slow")
@forks
def test_a_forked_worker_behind_sentinel_has_its_own_connections(sentinel_port: int, settings: Any) -> None:
    settings.CACHES = {"default": behind(sentinel_port, **PATIENT)}

    assert check("99/m", "user:1").remaining == 98
    assert in_child(lambda: [check("99/m", "user:1").remaining for _ in range(3)] == [97, 96, 95]) == 1
    assert check("99/m", "user:1").remaining == 94


@pytest.mark.thorough("slow")
@forks
@pytest.mark.usefixtures("cluster")
def test_a_forked_worker_of_a_cluster_has_its_own_connections() -> None:
    assert check("99/m", "user:1").remaining == 98
    store: Any = current_store()
    client = store._sync.client

    assert in_child(lambda: check("99/m", "user:1").remaining == 97 and store._sync.client is not client) == 1
    assert check("99/m", "user:1").remaining == 96
