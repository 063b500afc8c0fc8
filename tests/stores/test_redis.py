"""The Redis store: one round trip, one reload, one set of errors; sync and async."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from redis._parsers import _RESP2Parser
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_quota import Decision, acheck, aonce, check, check_all, once
from django_quota.core.errors import StoreDataError
from django_quota.exceptions import StoreUnavailable
from django_quota.features.counters.operations import Get, Set
from django_quota.features.usage.days import ReadDays
from django_quota.stores.redis import connections
from django_quota.testing import RedisServer, freeze, running_redis
from tests.support.calls import called
from tests.support.commands import wait_until
from tests.support.counts import keys_of
from tests.support.ports import free_port
from tests.support.processes import ended, forks, processes, started
from tests.support.steps import SECOND, START
from tests.support.stores import caches, redis_store

SUBJECT = "ip:192.0.2.1"
pytestmark = [pytest.mark.usefixtures("redis_cache"), pytest.mark.always("decoded")]


def hit() -> Decision:
    return check("50/m", SUBJECT)


async def ahit() -> Decision:
    return await acheck("50/m", SUBJECT)


@pytest.mark.thorough("slow")
@forks
def test_racing_callers_are_admitted_exactly_up_to_the_limit() -> None:
    async def race() -> int:
        return sum(map(bool, await asyncio.gather(*(ahit() for _ in range(60)))))

    def admitted() -> int:
        with ThreadPoolExecutor(4) as threads:
            return sum(map(bool, threads.map(lambda _: hit(), range(10)))) + asyncio.run(race())

    hit()  # the parent has a connection, which no child may use
    with processes() as children:
        children += [started(admitted, int) for _ in range(4)]
        assert sum(ended(children)) == 49
    assert not hit()


def test_a_plan_of_many_limits_is_one_round_trip(raw: redis.Redis) -> None:
    asked = [("50/m", SUBJECT), ("5/s; 9/h", SUBJECT), ("7/d", SUBJECT)]
    assert check_all(asked)  # connects, and loads the script
    before = int(raw.info("stats")["total_reads_processed"])
    assert check_all(asked)
    assert int(raw.info("stats")["total_reads_processed"]) - before == 2  # the other one is the INFO itself


@pytest.mark.parametrize("times", [1, 2], ids=["forgotten once", "forgotten again"])
def test_a_forgotten_script_is_sent_again_once(times: int, raw: redis.Redis) -> None:
    for _ in range(times):
        raw.script_flush()
        raw.config_resetstat()
        degraded = [hit().degraded for _ in range(3)] + [asyncio.run(ahit()).degraded]

    stats = raw.info("commandstats")
    assert not any(degraded)
    assert [stats[f"cmdstat_{name}"]["calls"] for name in ("evalsha", "eval")] == [4, 1]


def test_every_key_has_a_ttl_close_to_its_content(raw: redis.Redis) -> None:
    algorithms: list[Any] = ["sliding_window", "fixed_window", "token_bucket", "leaky_bucket"]
    for algorithm in algorithms:
        check("1/m", SUBJECT, name=algorithm, algorithm=algorithm)
    assert [50_000 < raw.pttl(key) <= 60_001 for key in raw.scan_iter()] == [True] * 4
    check("1/h", "user:1", daily=True)
    (day,) = raw.scan_iter("*}:day:*")
    assert 0 < raw.pttl(day) <= 9 * 86_400_000


@pytest.mark.thorough("slow")
@pytest.mark.parametrize(("count", "days"), [(100, 1), (5_000, 1), (10**12, 366)], ids=["100", "5000", "10^12"])
def test_a_sliding_subject_takes_little_memory_at_any_limit(
    count: int, days: int, raw: redis.Redis, settings: Any
) -> None:
    settings.QUOTA = {"EVENTS": 0}
    for tick in range(600):  # three windows long, as full as it gets
        with freeze(START + tick * days * 86_400 * SECOND // 200):
            check(f"{count}/{days}d", SUBJECT, max(1, count // 200 - 1))
    (key,) = raw.scan_iter()
    assert 0 < (raw.memory_usage(key, samples=0) or 0) <= 3.2 * 1024


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.integers(), max_size=4))
def test_a_packed_command_is_the_bytes_that_redis_py_sends(words: list[Any]) -> None:
    connection: Any = redis.Connection
    sent = b"".join(connection().pack_command("EVALSHA", *words))
    assert connections.pack(["EVALSHA", *words]) == sent
    assert connections.pack(sent) == sent


def test_an_event_loop_closes_its_connections_at_its_end(raw: redis.Redis) -> None:
    before = len(raw.client_list())

    async def many() -> None:
        await asyncio.gather(*(ahit() for _ in range(20)))

    for _ in range(3):
        asyncio.run(many())
    of_loops: Any = redis_store().server.wires
    assert len(of_loops._by_loop) == 0
    loop = asyncio.new_event_loop()
    loop.run_until_complete(ahit())
    loop.run_until_complete(of_loops._by_loop[loop][0].aclose())  # so that no socket is left to the collector
    loop.close()  # without its generators
    asyncio.run(ahit())
    assert len(of_loops._by_loop) == 0
    wait_until(lambda: len(raw.client_list()) <= before)  # the server sees a closed socket a moment later


def test_after_read_only_the_store_connects_anew(raw: redis.Redis) -> None:
    """Its sockets stay open: behind Sentinel, a new connection is what leads to the new primary."""
    once("event", "1")  # which raises the store's errors, where a check decides by itself
    kept = redis_store().server.pool._idle[0]
    raw.replicaof("127.0.0.1", 1)
    try:
        with pytest.raises(StoreUnavailable, match=r"READONLY|read only"):
            once("event", "2")
        with pytest.raises(StoreUnavailable, match=r"READONLY|read only"):
            asyncio.run(aonce("event", "2"))
        assert kept not in redis_store().server.pool._idle
    finally:
        raw.replicaof("NO", "ONE")
    assert not hit().degraded


@pytest.mark.thorough("slow")
@pytest.mark.parametrize("over_tcp", [True, False], ids=["tcp", "unix"])
def test_idle_connections_of_a_restarted_server_are_replaced(
    redis_server: RedisServer, settings: Any, over_tcp: bool
) -> None:
    port = free_port()
    with running_redis(redis_server.program, "--port", str(port)) as server:
        address = f"redis://127.0.0.1:{port}/0" if over_tcp else server.url
        settings.CACHES = caches(replace(server, url=address))

        async def all_at_once() -> None:
            decisions = await asyncio.gather(*(acheck("1000/m", SUBJECT) for _ in range(8)))
            assert not any(decision.degraded for decision in decisions)

        def by_threads() -> None:
            with ThreadPoolExecutor(8) as threads:
                decisions = threads.map(lambda _: check("1000/m", SUBJECT), range(8))
                assert not any(decision.degraded for decision in decisions)

        async def go() -> None:
            await all_at_once()
            await asyncio.to_thread(by_threads)
            with redis.Redis.from_url(server.url) as client:
                assert client.client_kill_filter(_type="normal", skipme=True) > 1
                wait_until(lambda: len(client.client_list()) == 1)
            await asyncio.to_thread(by_threads)  # meanwhile the loop hears of its own
            await all_at_once()

        asyncio.run(go())


@pytest.mark.parametrize(
    "options",
    [
        {"protocol": 3}, {"health_check_interval": 1}, {"encoding": "latin-1"},
        {"retry": Retry(NoBackoff(), 3), "retry_on_error": [redis.ConnectionError], "retry_on_timeout": True},
        {"username": "limits", "password": "geheim"},
        {"credential_provider": redis.UsernamePasswordCredentialProvider("limits", "geheim")},
        {"parser_class": _RESP2Parser, "protocol": 2},
    ],
    ids=", ".join,
)  # fmt: skip
class TestTheOptionsOfTheAlias:
    @pytest.fixture(autouse=True)
    def alias(self, options: dict[str, Any], redis_cache: RedisServer, raw: Any, settings: Any) -> Iterator[None]:
        settings.CACHES = caches(redis_cache, client_name="limits", **options)
        raw.execute_command("ACL", "SETUSER", "limits", "on", ">geheim", "~*", "+@all")
        yield
        raw.execute_command("ACL", "DELUSER", "limits")

    def test_are_used_by_every_connection(self, raw: Any) -> None:
        async def asked() -> int:
            assert (await ahit()).remaining == 48
            return [each["name"] for each in raw.client_list()].count("limits")

        assert hit().remaining == 49
        assert asyncio.run(asked()) == 2

    def test_make_no_connection_repeat_a_call(self) -> None:
        async def retry() -> Any:
            await ahit()
            return (await redis_store().server.wires.get())._line.connection.retry

        hit()
        retries = [redis_store().server.pool._idle[0].connection.retry, asyncio.run(retry())]

        assert [each._retries for each in retries] == [0, 0]


def test_the_store_opens_only_max_connections(redis_server: RedisServer, raw: redis.Redis, settings: Any) -> None:
    settings.CACHES = caches(redis_server, max_connections=3, timeout=20)
    settings.CACHES["default"]["OPTIONS"]["CONNECTION_POOL_CLASS"] = "redis.BlockingConnectionPool"
    before = len(raw.client_list())
    with ThreadPoolExecutor(20) as threads:
        assert sum(decision.allowed for decision in threads.map(lambda _: hit(), range(200))) == 50
    assert len(raw.client_list()) - before <= 3
    assert len(redis_store().server.pool._idle) <= 3

    async def race() -> int:
        await asyncio.gather(*(ahit() for _ in range(40)))
        return len(raw.client_list()) - before

    assert asyncio.run(race()) <= 6


def count(subject: str) -> Any:
    return Set(keys_of(f"quota:1:{{{subject}}}:c:x"), 5, 60 * SECOND)


class TestOperationsInOneRoundTrip:
    def test_have_a_reply_each(self) -> None:
        redis_store().run(count("a"))

        found = redis_store().try_all([Get(keys_of(f"quota:1:{{{subject}}}:c:x")) for subject in "ab"], None)

        assert [int(reply[1]) for reply in found] == [5, 0]

    def test_have_an_error_in_place_of_a_reply(self, raw: redis.Redis) -> None:
        raw.rpush("quota:1:{a}:c:x", "alien")

        found = redis_store().try_all([ReadDays([f"quota:1:{{{subject}}}:c:x"]) for subject in "ab"], None)

        assert [type(each) is StoreDataError for each in found] == [True, False]

    def test_raise_an_error_where_all_must_be_well(self, raw: redis.Redis) -> None:
        raw.rpush("quota:1:{a}:c:x", "alien")

        with pytest.raises(StoreDataError):
            redis_store().run_all([ReadDays(["quota:1:{a}:c:x"])], None)

    def test_are_no_transaction(self, raw: redis.Redis) -> None:
        """Redis may serve others in between."""
        raw.config_resetstat()

        redis_store().try_all([count("a"), count("b")], None)

        ran = {name: stats["calls"] for name, stats in raw.info("commandstats").items()}
        assert (ran["cmdstat_script|load"], ran["cmdstat_evalsha"], "cmdstat_multi" in ran) == (1, 2, False)

    def test_ask_nobody_if_there_are_none(self, raw: redis.Redis) -> None:
        raw.config_resetstat()

        assert redis_store().try_all([], None) == []
        assert raw.info("stats")["total_commands_processed"] <= 1  # this INFO

    def test_run_at_the_time_that_is_passed_in(self, raw: redis.Redis) -> None:
        redis_store().try_all([count("a")], START)

        assert int(redis_store().run(Get(keys_of("quota:1:{a}:c:x")), START)[1]) == 5


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_an_error_of_the_store_shows_no_frames_of_redis_py(is_async: bool, raw: redis.Redis) -> None:
    """They hold the password."""
    raw.rpush("quota:1:{a}:c:x", "alien")
    store, operation = redis_store(), ReadDays(["quota:1:{a}:c:x"])

    with pytest.raises(StoreDataError) as caught:
        called(is_async, store.run, store.arun, operation)
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)


def test_one_server_has_all_keys() -> None:
    store = redis_store()

    assert (store.servers(), store.server_of("a"), store.node_key("a", None)) == ([None], None, "a")
    assert store.by_server(["a", "b"]) == {None: ["a", "b"]}


def test_a_forked_process_has_connections_of_its_own() -> None:
    hit()
    client = redis_store().server
    before = client.pool

    client.after_fork()

    assert client.pool is not before
    assert hit().remaining == 48
