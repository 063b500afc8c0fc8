"""The Redis store: one round trip, one reload, one set of errors; sync and async."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
import redis
from django_redis import get_redis_connection
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import InvalidResponse

from django_quota import Rule, acheck, check, peek
from django_quota.engine.hits import Hit
from django_quota.engine.operations import pack_command
from django_quota.engine.subject_operations import Reset, RuleState
from django_quota.exceptions import ConfigurationError, StoreUnavailable
from django_quota.stores.redis import connections
from django_quota.stores.redis.config_checks import alias_problem
from django_quota.stores.redis.connections import ASYNC_CONNECTIONS, ConnectionsByLoop, async_connections
from django_quota.stores.redis.store import RedisStore
from django_quota.testing import RedisServer, running_redis
from tests.support.commands import wait_until
from tests.support.ports import free_port
from tests.support.steps import SECOND, START, adecided, answers, decided, hits_of
from tests.support.stores import caches

RULE = Rule.make("rule", "50/m")
pytestmark = [pytest.mark.usefixtures("redis_cache"), pytest.mark.always("decoded")]


@pytest.fixture
def store() -> Any:
    store = RedisStore("default")
    yield store
    store.close()


def calls(raw: redis.Redis) -> dict[str, int]:
    """Return how often clients (not scripts) sent each command that we may send."""
    stats = raw.info("commandstats")
    return {
        name: stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval", "script", "script|load")
    }


def reads(raw: redis.Redis) -> int:
    """Return how many times the server has read from a client."""
    return int(raw.info("stats")["total_reads_processed"])


def test_racing_threads_are_admitted_exactly_up_to_the_limit() -> None:
    with ThreadPoolExecutor(16) as threads:
        admitted = sum(map(bool, threads.map(lambda _: check("50/m", "ip:192.0.2.1"), range(16 * 400))))
    assert admitted == 50


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_racing_processes_are_admitted_exactly_up_to_the_limit() -> None:
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            os._exit(sum(bool(check("50/m", "ip:192.0.2.1")) for _ in range(100)))
        children.append(child)
    admitted = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sum(admitted) == 50


def test_concurrent_tasks_are_admitted_exactly_up_to_the_limit() -> None:
    async def race() -> int:
        return sum(map(bool, await asyncio.gather(*(acheck("50/m", "ip:192.0.2.1") for _ in range(200)))))

    assert asyncio.run(race()) == 50


def test_sync_and_async_share_their_state() -> None:
    assert check("3/m", "ip:192.0.2.1")
    assert asyncio.run(acheck("3/m", "ip:192.0.2.1")).remaining == 1
    assert peek("3/m", "ip:192.0.2.1").remaining == 1


def test_a_plan_of_many_limits_is_one_round_trip(raw: redis.Redis, store: RedisStore) -> None:
    hits = hits_of(RULE, Rule.make("b", "5/s; 9/h"), Rule.make("c", "7/m", algorithm="token_bucket"))
    decided(store, hits, "check", None)  # connects, and loads the script
    before = reads(raw)
    decided(store, hits, "check", None)
    assert reads(raw) - before == 2  # the other one is the INFO itself


def test_a_forgotten_script_is_sent_again_once(raw: redis.Redis, store: RedisStore) -> None:
    for _ in range(2):
        raw.script_flush()
        raw.config_resetstat()
        assert [answers(decided(store, hits_of(RULE), "check", None))[0].allowed for _ in range(3)] == [True] * 3
        counted = calls(raw)
        assert (counted["evalsha"], counted["eval"]) == (3, 1)


def test_a_forgotten_script_is_sent_again_async(raw: redis.Redis, store: RedisStore) -> None:
    raw.script_flush()
    assert answers(asyncio.run(adecided(store, hits_of(RULE), "check", None)))[0].remaining == 49


def test_scripts_forgotten_before_each_call_change_nothing(
    raw: redis.Redis, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, aexchange = store.server.exchange, store.server.aexchange

    def forgetful(*given: Any) -> Any:
        raw.script_flush()
        return exchange(*given)

    async def aforgetful(*given: Any) -> Any:
        raw.script_flush()
        return await aexchange(*given)

    monkeypatch.setattr(store.server, "exchange", forgetful)
    monkeypatch.setattr(store.server, "aexchange", aforgetful)
    assert answers(decided(store, hits_of(RULE), "check", None))[0].remaining == 49
    assert answers(asyncio.run(adecided(store, hits_of(RULE), "check", None)))[0].remaining == 48


def test_the_clock_of_redis_decides(raw: redis.Redis, store: RedisStore) -> None:
    seconds, microseconds = raw.time()
    now = decided(store, hits_of(RULE), "check", None)[0]
    assert 0 <= now - (seconds * SECOND + microseconds) < 20 * SECOND


def test_every_key_has_a_ttl_close_to_its_content(raw: redis.Redis, store: RedisStore) -> None:
    for algorithm in ("sliding_window", "fixed_window", "token_bucket", "leaky_bucket"):
        decided(store, hits_of(Rule.make(algorithm, "1/m", algorithm=algorithm)), "check", None)
    ttls = [raw.pttl(key) for key in raw.scan_iter()]
    assert len(ttls) == 4
    assert all(50_000 < ttl <= 60_001 for ttl in ttls)


@pytest.mark.parametrize("rate", ["100/m", "5000/m", "1000000000/d", "1000000000000/366d"])
def test_a_sliding_subject_takes_little_memory_at_any_limit(rate: str, raw: redis.Redis, store: RedisStore) -> None:
    rule = Rule.make("memory", rate)
    limit = rule.limits[0].rate
    for tick in range(600):  # three windows long, as full as it gets
        hits = hits_of(rule, cost=max(1, limit.count // 200 - 1))
        decided(store, hits, "check", START + tick * limit.period // 200)
    assert 0 < (raw.memory_usage(hits[0].limits[0].key, samples=0) or 0) <= 3.2 * 1024


# --- connections ------------------------------------------------------------------------------------------------------


def test_a_connection_closed_by_the_server_is_replaced(raw: redis.Redis, store: RedisStore) -> None:
    decided(store, hits_of(RULE), "check", None)
    raw.client_kill_filter(_type="normal", skipme=True)
    assert answers(decided(store, hits_of(RULE), "check", None))[0].remaining == 48


def test_threads_keep_only_as_many_connections_as_they_used_at_once(raw: redis.Redis, store: RedisStore) -> None:
    barrier = threading.Barrier(4)

    def work(_: int) -> None:
        barrier.wait()
        for _ in range(50):
            decided(store, hits_of(RULE), "check", None)

    for _ in range(3):
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))
    assert 1 <= len(store.server.connections) <= 4
    store.close()
    assert len(store.server.connections) == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_worker_opens_its_own_connections(store: RedisStore) -> None:
    decided(store, hits_of(RULE), "check", None)
    child = os.fork()
    if child == 0:
        answer = answers(decided(store, hits_of(RULE), "check", None))[0]
        os._exit(0 if answer.remaining == 48 and len(store.server.connections) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert answers(decided(store, hits_of(RULE), "check", None))[0].remaining == 47


def test_an_event_loop_closes_its_connections_at_its_end(raw: redis.Redis, store: RedisStore) -> None:
    before = len(raw.client_list())

    async def many() -> None:
        await asyncio.gather(*(adecided(store, hits_of(RULE), "check", None) for _ in range(20)))

    for _ in range(3):
        asyncio.run(many())
    assert len(store.server.async_connections) == 0
    wait_until(lambda: len(raw.client_list()) <= before)  # the server sees a closed socket a moment later


def test_a_cancelled_task_leaves_no_reply(store: RedisStore) -> None:
    async def cancel_some() -> list[int]:
        await adecided(store, hits_of(RULE, subject="first"), "check", None)
        for number in range(30):
            task = asyncio.create_task(adecided(store, hits_of(RULE, subject=f"cut:{number}"), "check", START + number))
            for _ in range(number % 7):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return [(await adecided(store, hits_of(RULE), "peek", START + n))[0] for n in range(100, 110)]

    assert asyncio.run(cancel_some()) == [START + n for n in range(100, 110)]


# --- errors -----------------------------------------------------------------------------------------------------------


def both(store: RedisStore, hits: list[Hit]) -> list[Callable[[], Any]]:
    def run(coroutine: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[], Any]:
        return lambda: asyncio.run(coroutine())

    return [
        lambda: decided(store, hits, "check", None),
        run(lambda: adecided(store, hits, "check", None)),
        lambda: store.run(Reset([RuleState.of(hit_) for hit_ in hits])),
        run(lambda: store.arun(Reset([RuleState.of(hit_) for hit_ in hits]))),
    ]


def test_a_server_that_is_gone_raises_store_unavailable(settings: Any, tmp_path: Path) -> None:
    with running_redis() as server:
        settings.CACHES = caches(server)
        store = RedisStore("default")
        for call in both(store, hits_of(RULE)):
            call()
    for call in both(store, hits_of(RULE)):
        with pytest.raises(StoreUnavailable, match="unavailable"):
            call()
    store.close()


def test_a_key_of_another_type_raises_store_data_error(raw: redis.Redis, store: RedisStore) -> None:
    hits = hits_of(RULE)
    raw.lpush(hits[0].limits[0].key, "not a sorted set")
    for call in both(store, hits)[:2]:
        with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
            call()
    assert raw.lrange(hits[0].limits[0].key, 0, -1) == [b"not a sorted set"]


def test_a_full_or_read_only_server_raises_store_refuses_writes(redis_server: RedisServer, settings: Any) -> None:
    with running_redis(redis_server.program, "--maxmemory", "1mb", "--maxmemory-policy", "noeviction") as server:
        settings.CACHES = caches(server)
        store = RedisStore("default")
        with redis.Redis.from_url(server.url) as client:
            client.config_set("maxmemory", 1)
            with pytest.raises(StoreUnavailable, match=r"OOM|used memory"):
                decided(store, hits_of(RULE), "check", None)
            client.config_set("maxmemory", 0)
            client.config_set("min-replicas-to-write", 1)
            with pytest.raises(StoreUnavailable, match=r"NOREPLICAS|replicas"):
                decided(store, hits_of(RULE), "check", None)
        store.close()


# --- which alias ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alias", "config", "words"),
    [
        ("nowhere", {}, "no such alias"),
        ("default", {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}, "cannot run scripts"),
        ("default", {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}, "cannot run scripts"),
        ("default", {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://x"}, "cannot run"),
        ("default", {"BACKEND": "nowhere.Cache"}, "cannot be imported"),
        (
            "default",
            {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": ["redis://x", "redis://y"],
                "OPTIONS": {"CLIENT_CLASS": "django_redis.client.ShardClient"},
            },
            "ShardClient",
        ),
    ],
)
def test_an_alias_that_cannot_serve_is_refused_with_a_hint(
    alias: str, config: dict[str, Any], words: str, settings: Any
) -> None:
    settings.CACHES = {"default": config or settings.CACHES["default"]}
    assert alias_problem(alias) is not None
    for call in both(RedisStore(alias), hits_of(RULE)):
        with pytest.raises(ConfigurationError, match=words):
            call()


def test_a_command_is_packed_as_bulk_strings() -> None:
    assert pack_command(["GET", "ü", 12]) == b"*3\r\n$3\r\nGET\r\n$2\r\n\xc3\xbc\r\n$2\r\n12\r\n"


ARGUMENTS = st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.integers(), max_size=4)


@given(ARGUMENTS)
def test_a_packed_command_is_the_bytes_that_redis_py_sends(command: list[Any]) -> None:
    connection: Any = redis.Connection
    assert pack_command(["EVALSHA", *command]) == b"".join(connection().pack_command("EVALSHA", *command))


def test_the_store_takes_no_connection_of_the_pool(raw: redis.Redis, store: RedisStore) -> None:
    decided(store, hits_of(RULE), "check", None)
    pool: Any = get_redis_connection("default").connection_pool
    assert len(pool._in_use_connections) == 0


def test_after_read_only_the_store_connects_anew(raw: redis.Redis, store: RedisStore) -> None:
    """Its sockets stay open: behind Sentinel, a new connection is what leads to the new primary."""
    decided(store, hits_of(RULE), "check", None)
    kept = store.server.connections._idle[0]
    raw.replicaof("127.0.0.1", 1)
    try:
        with pytest.raises(StoreUnavailable, match=r"READONLY|read only"):
            decided(store, hits_of(RULE), "check", None)
        assert kept not in store.server.connections._idle
        with pytest.raises(StoreUnavailable, match=r"READONLY|read only"):
            asyncio.run(adecided(store, hits_of(RULE), "check", None))
    finally:
        raw.replicaof("NO", "ONE")
    assert answers(decided(store, hits_of(RULE), "check", None))[0].allowed


def test_an_idle_connection_with_stray_bytes_is_replaced(
    store: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided(store, hits_of(RULE), "check", None)
    (kept,) = store.server.connections._idle
    monkeypatch.setattr(kept, "can_read", Mock(side_effect=InvalidResponse("garbage")))
    assert answers(decided(store, hits_of(RULE), "check", None))[0].allowed
    assert list(store.server.connections._idle) == [kept]


def test_an_async_connection_with_stray_bytes_is_not_used_again(
    store: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        await adecided(store, hits_of(RULE), "check", None)
        (kept,) = (await store.server.async_connections.get())._idle
        monkeypatch.setattr(kept, connections._CAN_READ, AsyncMock(side_effect=InvalidResponse("garbage")))
        assert answers(await adecided(store, hits_of(RULE), "check", None))[0].allowed
        assert not kept.is_connected

    asyncio.run(play())


@pytest.mark.parametrize("over_tcp", [True, False], ids=["tcp", "unix"])
def test_idle_connections_of_a_restarted_server_are_replaced(
    redis_server: RedisServer, settings: Any, over_tcp: bool
) -> None:
    port = free_port()
    with running_redis(redis_server.program, "--port", str(port)) as server:
        address = f"redis://127.0.0.1:{port}/0" if over_tcp else server.url
        settings.CACHES = caches(replace(server, url=address))
        store, hits = RedisStore("default"), hits_of(Rule.make("rule", "1000/m"))

        async def all_at_once() -> None:
            await asyncio.gather(*(adecided(store, hits, "check", None) for _ in range(8)))

        def by_threads() -> None:
            with ThreadPoolExecutor(8) as threads:
                list(threads.map(lambda _: decided(store, hits, "check", None), range(8)))

        async def go() -> None:
            await all_at_once()
            await asyncio.to_thread(by_threads)
            with redis.Redis.from_url(server.url) as client:
                assert client.client_kill_filter(_type="normal", skipme=True) > 1
                wait_until(lambda: len(client.client_list()) == 1)
            await asyncio.to_thread(by_threads)  # meanwhile the loop hears of its own
            await all_at_once()

        asyncio.run(go())
        store.close()


def test_max_connections_none_means_the_default(redis_server: RedisServer, settings: Any) -> None:
    settings.CACHES = caches(redis_server, max_connections=None)

    async def go() -> None:
        assert async_connections("default").max_connections == ASYNC_CONNECTIONS

    asyncio.run(go())


def test_the_store_opens_only_max_connections(redis_server: RedisServer, raw: redis.Redis, settings: Any) -> None:
    options = {"max_connections": 3, "timeout": 20}
    settings.CACHES = caches(redis_server, **options)
    settings.CACHES["default"]["OPTIONS"]["CONNECTION_POOL_CLASS"] = "redis.BlockingConnectionPool"
    store = RedisStore("default")
    before = len(raw.client_list())
    hits = hits_of(RULE)
    with ThreadPoolExecutor(20) as threads:
        admitted = sum(
            answers(reply)[0].allowed
            for reply in threads.map(lambda _: decided(store, hits, "check", None), range(200))
        )
    assert admitted == 50
    assert len(raw.client_list()) - before <= 3

    async def race() -> int:
        await asyncio.gather(*(adecided(store, hits, "peek", None) for _ in range(40)))
        return len(raw.client_list()) - before

    assert asyncio.run(race()) <= 6
    store.close()


def test_a_thread_may_start_a_loop_while_another_one_looks_for_closed_loops() -> None:
    found, loops = ConnectionsByLoop("default"), [Mock(is_closed=bool) for _ in range(500)]
    is_over, interval = threading.Event(), sys.getswitchinterval()

    def start_loops() -> None:
        while not is_over.is_set():
            for loop in loops:
                found._by_loop[loop] = Mock()
            found._by_loop.clear()

    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(start_loops)
        sys.setswitchinterval(1e-6)
        try:
            for _ in range(300):
                found._forget_closed_loops()
        finally:
            sys.setswitchinterval(interval)
            is_over.set()
        other.result()


def test_a_loop_closed_without_its_generators_is_forgotten(store: RedisStore) -> None:
    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(adecided(store, hits_of(RULE), "check", None))
        held = store.server.async_connections._by_loop.get(loop)
        assert held is not None
        loop.run_until_complete(held.aclose())  # so that no socket is left to the collector
        loop.close()
    asyncio.run(adecided(store, hits_of(RULE), "check", None))
    assert len(store.server.async_connections) == 0
