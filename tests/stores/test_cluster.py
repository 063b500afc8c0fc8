"""The store on a real Redis Cluster: every key finds its server, whatever the servers do meanwhile."""

import asyncio
import gc
import json
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pytest
import redis
from django.core.cache import cache, caches
from django.core.management import CommandError, call_command
from django_redis.exceptions import ConnectionInterrupted
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota import Rule, acheck, acheck_all, aonce, check, check_all, counter, once, peek, refund, reserve, reset
from django_quota.engine.events import AppendEvents
from django_quota.exceptions import ConfigurationError, StoreUnavailable
from django_quota.features.once import _operation
from django_quota.features.usage.rollup import roll_up
from django_quota.limiting.registry import get_limiter
from django_quota.models import DailyCounter
from django_quota.operating.health import health
from django_quota.operating.sweep import Sweeper
from django_quota.stores.breaker import FAILURES, Breaker
from django_quota.stores.cluster import store
from django_quota.stores.cluster.clients import SyncSide
from django_quota.stores.cluster.store import ClusterStore
from django_quota.stores.redis.async_wire import Line
from django_quota.stores.redis.wire import Wire
from django_quota.testing import freeze
from tests.support.calls import both, both_ways
from tests.support.clusters import Cluster, Server, running_cluster, running_server, slot_of
from tests.support.commands import json_of, wait_until
from tests.support.counts import checks_of, checks_of_today
from tests.support.outages import heard
from tests.support.ports import free_ports
from tests.support.steps import MINUTE, START, Clock
from tests.support.stores import cluster_caches, cluster_program, current_store, named, programs
from tests.support.traffic import SUBJECT, Traffic

topology = pytest.mark.thorough("topology")
USERS = [f"user:{number}" for number in range(40)]
SUBJECTS = [f"ip:192.0.2.{number}" for number in range(30)]


VIEWS = counter("views")


def transfer(source: str, target: str, *, is_async: bool) -> bool:
    """Transfer five views."""
    return asyncio.run(VIEWS.atransfer(source, target, 5)) if is_async else VIEWS.transfer(source, target, 5)


def key_of(subject: str) -> str:
    return f"quota:1:{{{subject}}}:s"


KEY = key_of(SUBJECT)


def kill_all(cluster: Cluster) -> None:
    for server in cluster.servers:
        server.kill()


def start_all(cluster: Cluster) -> None:
    """Start the servers again, and wait until they serve."""
    for server in cluster.servers:
        server.start()
    wait_until(lambda: all(server.is_ready for server in cluster.servers))


@pytest.fixture
def own(settings: Any) -> Iterator[Cluster]:
    """A cluster of its own, whose other servers go on where one is gone."""
    with running_cluster(cluster_program()) as cluster:
        for server in cluster.servers:
            server.client.config_set("cluster-require-full-coverage", "no")
        settings.CACHES = cluster_caches(cluster)
        yield cluster


def pair(cluster: Cluster) -> tuple[str, str]:
    """Return two subjects whose keys lie on different servers."""
    first = SUBJECTS[0]
    other = next(each for each in SUBJECTS if cluster.owner(key_of(each)) is not cluster.owner(key_of(first)))
    return first, other


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}, {"max_connections": 2}])
def test_racing_callers_are_admitted_exactly_up_to_the_limit_on_every_server(
    cluster: Cluster, settings: Any, options: Any
) -> None:
    settings.CACHES = cluster_caches(cluster, **options)

    async def tasks() -> int:
        hits = (acheck("20/m", subject) for _ in range(15) for subject in SUBJECTS[:5])
        return sum(map(bool, await asyncio.gather(*hits)))

    with ThreadPoolExecutor(9) as threads:
        running = threads.submit(asyncio.run, tasks())
        admitted = sum(map(bool, threads.map(lambda n: check("20/m", SUBJECTS[n % 5]), range(150))))
        assert admitted + running.result() == 5 * 20
    assert len({cluster.owner(key_of(subject)).port for subject in SUBJECTS[:5]}) > 1


@pytest.mark.parametrize(("rate", "trips"), [("9/m", (1, 1)), ("0/m", (2, 1))])
def test_a_plan_is_a_trip_for_each_part_with_one_more_to_undo(
    cluster: Cluster, rate: str, trips: tuple[int, int]
) -> None:
    one, two = pair(cluster)
    asked = [(Rule.make("one", "9/m"), one), (Rule.make("two", rate), two)]
    servers = [cluster.owner(key_of(subject)).client for subject in (one, two)]
    for _ in range(2):
        before = [server.info("stats")["total_reads_processed"] for server in servers]
        check_all(asked)
        after = [server.info("stats")["total_reads_processed"] - 1 for server in servers]  # INFO itself
    assert tuple(now - then for now, then in zip(after, before, strict=True)) == trips


def test_an_undone_part_leaves_no_count_or_event(cluster: Cluster) -> None:
    users = [f"user:{number}" for number in range(20)]
    one = users[0]
    two = next(user for user in users if cluster.owner(key_of(user)) is not cluster.owner(key_of(one)))
    near = Rule.make("near", "4/m", warn_at=[0.5, 1.0])
    shut = Rule.make("shut", "0/m")
    assert check(near, one)
    assert not check_all([(near, one), (shut, two)])
    assert (checks_of(one), checks_of(two)) == ({"near": (1, 0)}, {"shut": (0, 1)})
    assert [event["kind"] for event in json_of("quota_events")] == ["refused"]
    assert check(near, one)  # and is written now, when it has come true
    assert [(event["kind"], event["share"]) for event in json_of("quota_events")] == [("refused", 0), ("near", 0.5)]


@pytest.mark.thorough("slow")
def test_racing_plans_never_admit_too_many(cluster: Cluster) -> None:
    one, two = pair(cluster)
    asked = [(Rule.make("one", "40/m"), one), (Rule.make("two", "30/m"), two)]

    async def tasks() -> int:
        return sum(map(bool, await asyncio.gather(*(acheck_all(asked) for _ in range(60)))))

    with ThreadPoolExecutor(9) as threads:
        running = threads.submit(asyncio.run, tasks())
        turned = (asked, asked[::-1])
        admitted = sum(map(bool, threads.map(lambda n: check_all(turned[n % 2]), range(240))))
        admitted += running.result()
    assert admitted <= 30
    with_room = [bool(check_all(asked)) for _ in range(31)]
    assert admitted + sum(with_room) == 30  # what was given back is there again
    assert peek(asked[0][0], one).remaining == 10


@topology
def test_a_server_that_is_gone_leaves_nothing_taken_on_the_others(own: Cluster) -> None:
    one, two = pair(own)
    asked = [(Rule.make("one", "5/m"), one), (Rule.make("two", "5/m"), two)]
    assert check_all(asked)
    own.owner(key_of(two)).kill()
    assert check_all(asked).degraded
    assert peek(asked[0][0], one).remaining == 4


class TestTheSystemsKeys:
    BAN: ClassVar[dict[str, Any]] = {"after": "2/m", "for": "1h"}

    @pytest.fixture
    def banned(self, cluster: Cluster) -> tuple[str, ...]:
        """Subjects of all servers that were banned."""
        for subject in SUBJECTS[:8]:
            for _ in range(5):
                check("1/m", subject, ban=self.BAN)
        return tuple(SUBJECTS[:8])

    def test_events_are_written_by_the_caller(self, banned: tuple[str, ...]) -> None:
        events = json_of("quota_events", last=100)

        kinds = {subject: [event["kind"] for event in events if event["subject"] == subject] for subject in banned}
        assert kinds == {subject: ["refused", "banned"] for subject in banned}
        assert {(event["level"], event["capacity"]) for event in events if event["kind"] == "banned"} == {(1, 1)}

    def test_a_reset_takes_a_ban_off_the_list(self, banned: tuple[str, ...], cluster: Cluster) -> None:
        index = cluster.owner("{!}").client
        assert index.zcard("quota:1:{!}:bans") == 8

        assert reset("1/m", SUBJECTS[0], ban=self.BAN)

        assert index.zcard("quota:1:{!}:bans") == 7


def test_an_event_that_cannot_be_written_leaves_the_decision(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run_all = ClusterStore.run_all

    def fail(store: ClusterStore, operations: Any, now: Any) -> Any:
        if isinstance(operations[0], AppendEvents):
            raise StoreUnavailable("gone")
        return run_all(store, operations, now)

    monkeypatch.setattr(ClusterStore, "run_all", fail)
    decision = check("0/m", SUBJECTS[0])
    assert (decision.allowed, decision.degraded) == (False, False)
    assert "could not be written" in caplog.text


class TestAnAliasThatMapsAddresses:
    @pytest.fixture(autouse=True)
    def alias(self, cluster: Cluster, settings: Any) -> None:
        given = cluster_caches(cluster)
        given["default"]["OPTIONS"]["REDIS_CLIENT_KWARGS"] = {"address_remap": lambda at: ("127.1", at[1])}
        settings.CACHES = given

    def test_servers_are_reached_where_it_maps_them(self, cluster: Cluster) -> None:
        assert all(check("2/m", subject) for subject in SUBJECTS)
        assert sorted(current_store().servers()) == sorted(f"127.1:{server.port}" for server in cluster.servers)

    def test_scripts_are_sent_again_to_each_server(self, cluster: Cluster) -> None:
        assert all(check("2/m", subject) for subject in SUBJECTS)
        for server in cluster.servers:
            server.client.script_flush()

        assert not any(check("3/m", subject).degraded for subject in SUBJECTS)


class TestOfEachServer:
    """What is no check of a limit finds its server, too."""

    @pytest.fixture
    def asked(self, cluster: Cluster) -> None:
        for subject in SUBJECTS:
            check("3/m", subject, 2, daily=True)

    def test_counters(self, cluster: Cluster) -> None:
        for number, subject in enumerate(SUBJECTS):
            counter("views").incr(subject, number)

        assert [counter("views").get(subject) for subject in SUBJECTS] == list(range(len(SUBJECTS)))

    @pytest.mark.usefixtures("asked")
    def test_refunds(self) -> None:
        assert [refund("3/m", subject).remaining for subject in SUBJECTS] == [2] * len(SUBJECTS)

    @pytest.mark.usefixtures("asked")
    def test_settlements(self) -> None:
        for subject in SUBJECTS:
            refund("3/m", subject)
            with reserve("3/m", subject, 2) as reservation:
                reservation.settle(1)

        assert [peek("3/m", subject).remaining for subject in SUBJECTS] == [1] * len(SUBJECTS)

    def test_sweeps(self, cluster: Cluster) -> None:
        with freeze(START):
            for subject in SUBJECTS:
                check("9/m", subject, name="old", daily=False)

        (report,) = json_of("quota_sweep")

        assert (report["removed"], report["complete"]) == (len(SUBJECTS), True)

    def test_sweeps_beside_a_key_of_another_program(self, cluster: Cluster) -> None:
        with freeze(START):
            for user in USERS[:9]:
                VIEWS.set(user, 9)
                reserve(VIEWS, user, 4, lease=60)
        total_key = f"quota:1:{{{USERS[0]}}}:c:views"
        with current_store().commands(current_store().server_of(total_key)) as client:
            client.set(total_key, "text")

        with freeze(START + 2 * MINUTE):
            report = Sweeper(current_store(), "quota", budget_ms=1_000).sweep(threading.Event(), bool)
            left = [VIEWS.get(user) for user in USERS[1:9]]

        assert (report.foreign, report.missed, report.complete) == ([total_key.replace(":c:", ":leased:")], 0, True)
        assert left == [9] * 8

    @pytest.mark.usefixtures("asked")
    @pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
    def test_roll_ups(self, times: int, database: Any) -> None:
        for _ in range(times):
            call_command("quota_rollup", stdout=StringIO())

        assert {row.subject: row.allowed for row in DailyCounter.objects.all()} == dict.fromkeys(SUBJECTS, 1)

    @pytest.mark.usefixtures("asked")
    def test_resets(self, database: Any, capsys: pytest.CaptureFixture[str]) -> None:
        for subject in SUBJECTS[:5]:
            call_command("quota_reset", subject)

        assert [peek("3/m", subject).remaining for subject in SUBJECTS[:5]] == [3] * 5

    @pytest.mark.usefixtures("asked")
    def test_metrics(self) -> None:
        assert checks_of_today()["3/m"][0] >= len(SUBJECTS)


def clients(cluster: Cluster) -> set[tuple[int, str]]:
    """Return who is connected to the servers."""
    return {(server.port, each["id"]) for server in cluster.servers for each in server.client.client_list()}


@pytest.mark.parametrize("replaces", [False, True], ids=["empty", "replaced"])
def test_counts_of_all_servers_return_from_a_database(
    cluster: Cluster, database: Any, replaces: bool, settings: Any
) -> None:
    for number, subject in enumerate(SUBJECTS):
        counter("views").incr(subject, number)
    call_command("quota_copy", "--from", "redis", "--to", "database", stdout=StringIO())
    if replaces:
        for subject in SUBJECTS:
            counter("views").set(subject, 1_000)
    else:
        cluster.flush()

    settings.QUOTA = {**settings.QUOTA, "STORE": "database"}
    more = ["--replace"] if replaces else []
    call_command("quota_copy", "--from", "database", "--to", "redis", *more, stdout=StringIO())

    settings.QUOTA = {**settings.QUOTA, "STORE": "redis"}
    assert [counter("views").get(subject) for subject in SUBJECTS] == list(range(len(SUBJECTS)))


site: Any = cache
MANY = {f"k{n}": n for n in range(20)}


def test_the_cache_closes_its_connections_where_the_settings_say_so(cluster: Cluster, settings: Any) -> None:
    settings.DJANGO_REDIS_CLOSE_CONNECTION = True
    before = clients(cluster)
    site.set_many(MANY)
    opened = clients(cluster) - before

    caches.close_all()

    assert len(opened) >= len(cluster.servers)
    wait_until(lambda: not clients(cluster) & opened)


@pytest.mark.usefixtures("cluster")
class TestTransfers:
    @pytest.fixture(autouse=True)
    def five_views(self, cluster: Cluster) -> None:
        VIEWS.set("user:1", 5)

    @both_ways
    def test_between_two_slots_it_is_an_error_that_names_the_group_to_use(self, is_async: bool) -> None:
        with pytest.raises(ConfigurationError) as caught:
            transfer("user:1", "user:2", is_async=is_async)

        assert str(caught.value) == (
            "Counter 'views' of user:1 and counter 'views' of user:2 are in two slots of the Redis Cluster, and a "
            "transfer needs one. Give both the same group, for example counter('views', group='views')."
        )
        assert (VIEWS.get("user:1"), VIEWS.get("user:2")) == (5, 0)

    @both_ways
    def test_within_a_slot_it_needs_no_group(self, is_async: bool) -> None:
        assert transfer("user:1", "user:1", is_async=is_async)


@pytest.mark.usefixtures("cluster")
class TestTheCacheAnswersAsOnOneServer:
    @pytest.fixture
    def filled(self, cluster: Cluster) -> None:
        site.set_many(MANY, timeout=9)

    @pytest.mark.usefixtures("filled")
    def test_to_many_keys_at_once(self) -> None:
        site.set_many({})
        assert (site.get_many(["k1", "k2", "x"]), site.get_many([])) == ({"k1": 1, "k2": 2}, {})
        assert 0 < site.ttl("k1") <= 9
        assert sorted(site.keys("k*")) == sorted(site.iter_keys("k*")) == sorted(MANY)

    @pytest.mark.usefixtures("filled")
    def test_to_deletes(self) -> None:
        assert (site.delete_many(["k0", "k2", "x"]), site.delete_many([]) or 0) == (2, 0)
        assert (site.delete_pattern("k1*"), site.delete_pattern("none*")) == (11, 0)

        site.clear()
        assert site.get("k4") is None

    @pytest.mark.usefixtures("filled")
    def test_to_versions(self) -> None:
        assert (site.incr_version("k3"), site.get("k3"), site.get("k3", version=2)) == (2, None, 3)

    def test_to_locks(self) -> None:
        with site.lock("mutex", timeout=60) as lock:
            assert lock.owned()
            assert not site.lock("mutex", timeout=60, blocking_timeout=0.01).acquire(blocking=False)
            lock.extend(5)
        assert site.lock("mutex", timeout=5).acquire(blocking=False)

    @pytest.mark.usefixtures("filled")
    def test_after_it_was_closed(self, settings: Any) -> None:
        settings.DJANGO_REDIS_CLOSE_CONNECTION = True
        site.close()

        assert site.get("k1") == 1
        assert site.client.get_client().ping()  # asks the server that redis-py forgets when it closes a client

    def test_to_sets(self) -> None:
        if not hasattr(site, "sadd"):
            pytest.skip("django-redis 5.4 has no sets")
        for number, name in enumerate(("{s}1", "{s}2", "s3"), 1):
            site.sadd(name, number)

        assert site.sunion("{s}1", "{s}2") == {1, 2}
        with pytest.raises(Exception, match="slot"):
            site.sunion("{s}1", "s3")


@topology
@pytest.mark.parametrize("known", [True, False], ids=["known before", "never reached"])
def test_without_any_server_an_error_is_one_that_django_redis_knows(known: bool, own: Cluster, settings: Any) -> None:
    settings.CACHES = cluster_caches(own, socket_timeout=0.2, socket_connect_timeout=0.2)
    if known:
        cache.set("a", 1)
    kill_all(own)
    asked: list[Callable[[], Any]] = [
        *(site.clear, partial(site.delete_many, ["a", "b"]), partial(site.delete_pattern, "k1*")),
        *(partial(site.incr_version, "a"), partial(site.keys, "k*"), partial(site.set_many, MANY)),
    ]

    found = []
    for ask in asked:
        with pytest.raises((RedisConnectionError, ConnectionInterrupted, RedisClusterException)) as caught:
            ask()
        found.append(caught.value)
    assert [error for error in found if isinstance(error, RedisClusterException)] == []

    default: Any = caches["default"]
    default._ignore_exceptions = True  # as IGNORE_EXCEPTIONS makes it
    assert (site.get("a"), site.get_many(["a"]), site.set("a", 1), site.add("a", 1)) == (None, {}, None, None)
    assert (site.set_many({"a": 1}), site.delete_pattern("*"), site.incr("a"), site.clear()) == (None,) * 4


# --- servers that change ----------------------------------------------------------------------------------------------


@pytest.fixture(params=programs(), ids=named)
def moving(request: pytest.FixtureRequest, settings: Any) -> Iterator[Cluster]:
    """A cluster of its own, of each server."""
    with running_cluster(request.param) as cluster:
        settings.CACHES = cluster_caches(cluster)
        yield cluster


@topology
def test_a_slot_that_moves_under_traffic_counts_each_hit_once(moving: Cluster) -> None:
    slot, owners = slot_of(KEY), []
    with Traffic("2000/h") as traffic:
        for _ in range(6):
            traffic.goes_on(by=10)
            source = moving.owner(KEY)
            to = next(server for server in moving.servers if server is not source)
            moving.move(slot, to, pause=0.01)
            owners.append(moving.owner(KEY) is to)
        wait_until(lambda: traffic.refused > 50)

    assert owners == [True] * 6
    assert current_store().server_of(KEY) == f"127.0.0.1:{to.port}"
    assert not traffic.errors
    assert traffic.admitted == 2_000  # beside those that on_unavailable let in


@contextmanager
def half_moved(slot: int, source: Server, to: Server) -> Iterator[None]:
    """Let a slot be on its way: the source has the keys that exist, and sends on what does not."""
    to.client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", source.id)
    source.client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", to.id)
    try:
        yield
    finally:
        for server in (source, to):
            server.client.execute_command("CLUSTER SETSLOT", slot, "STABLE")


def event_of(cluster: Cluster, server: Server, number: int = 0) -> str:
    """Return the name of an event whose only key is on a server."""
    names = (f"event-{each}" for each in range(1_000))
    found = (name for name in names if cluster.owner(_operation("a", name, 60).keys[0]) is server)
    return next(islice(found, number, None))


@topology
def test_while_a_slot_moves_no_other_subject_of_its_servers_notices(moving: Cluster) -> None:
    """ASKING goes over the connection of its command, also while there are several."""
    source, to, *_ = moving.servers
    name = event_of(moving, source)
    store: Any = current_store()

    async def ask() -> list[bool]:
        await asyncio.gather(*(aonce("a", event_of(moving, server, n)) for server in (source, to) for n in range(1, 6)))
        moved = [await aonce("a", name) for _ in range(20)]
        assert not await aonce("a", event_of(moving, source, 1))
        return moved

    with half_moved(slot_of(_operation("a", name, 60).keys[0]), source, to):
        assert [once("a", name), *asyncio.run(ask())].count(True) == 1
        assert not once("a", event_of(moving, to, 1))
    assert store.all_nodes_healthy


@topology
def test_a_slot_that_moves_to_a_new_server_is_reached(moving: Cluster, tmp_path: Path) -> None:
    source = moving.servers[0]
    name, (port,) = event_of(moving, source), free_ports(1)
    assert once("a", event_of(moving, source, 1))  # the table is known
    with running_server(moving.program, tmp_path, port) as new:
        new.client.execute_command("CLUSTER MEET", "127.0.0.1", source.port)
        nodes = "CLUSTER NODES"
        wait_until(lambda: all(new.id in str(server.client.execute_command(nodes)) for server in moving.servers))
        wait_until(lambda: new.client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        slot = slot_of(_operation("a", name, 60).keys[0])
        with half_moved(slot, source, new):
            assert [once("a", name), once("a", name), asyncio.run(aonce("a", name))] == [True, False, False]
        moving.move(slot, new)
        assert [once("a", name), asyncio.run(aonce("a", name))] == [False, False]
        assert new.client.execute_command("DBSIZE") == 1


@topology
def test_a_slot_that_no_server_has_is_found_as_soon_as_one_has_it(own: Cluster) -> None:
    slot, server = slot_of(f"{{{SUBJECT}}}"), own.owner(f"{{{SUBJECT}}}")
    for each in own.servers:
        each.client.execute_command("CLUSTER DELSLOTS", slot)
    assert check("900/m", SUBJECT).degraded
    server.client.execute_command("CLUSTER ADDSLOTS", slot)
    assert [check("900/m", SUBJECT).degraded for _ in range(2)] == [True, False]  # the first reads the table again


@topology
def test_the_limit_goes_on_after_a_replica_is_promoted(settings: Any) -> None:
    with running_cluster(cluster_program(), replicas=1) as cluster:
        settings.CACHES = cluster_caches(cluster)
        with Traffic("100000/h") as traffic:
            wait_until(lambda: traffic.admitted > 200)
            before = cluster.owner(KEY)
            before.kill()
            wait_until(lambda: cluster.owner(KEY) is not before)
            traffic.goes_on()
        assert not traffic.errors
        assert traffic.degraded  # meanwhile on_unavailable decides
        # What the replica had not heard of yet is lost with the old primary; of a few hits only the reply is.
        used = 100_000 - (peek("100000/h", SUBJECT).remaining or 0)
        assert -10 <= traffic.admitted - used < 1_000


@pytest.fixture
def turns(own: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys whose slots move, with all that lies there: one before each operation or command of a walk."""
    keys: list[str] = []

    def moving_first(act: Any) -> Any:
        def moved_first(*arguments: Any) -> Any:
            if keys:
                source = own.owner(key := keys.pop())
                own.move(slot_of(key), next(server for server in own.servers if server is not source))
            return act(*arguments)

        return moved_first

    for name in ("try_all", "commands"):
        monkeypatch.setattr(ClusterStore, name, moving_first(getattr(ClusterStore, name)))
    return keys


def slots_known() -> dict[int, list[Any]]:
    """The servers by slot, as the sync side has read them."""
    known: dict[int, list[Any]] = current_store()._sync.client.nodes_manager.slots_cache
    return known


def test_where_a_slot_has_moved_is_remembered(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    check("9/m", SUBJECT)
    slot, redirections, redirected = slot_of(key_of(SUBJECT)), list[object](), store._redirected

    def noted(client: Any, error: Any) -> Any:
        redirections.append(error)
        return redirected(client, error)

    monkeypatch.setattr(store, "_redirected", noted)
    slots_known()[slot] = next(servers for servers in slots_known().values() if servers != slots_known()[slot])

    assert [check("9/m", SUBJECT).remaining for _ in range(3)] == [7, 6, 5]
    assert len(redirections) == 1


def test_a_slot_without_a_server_keeps_nobody_from_connecting(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = "user:1", next(user for user in USERS if slot_of(key_of(user)) != slot_of(key_of("user:1")))
    check("9/m", one)
    del slots_known()[slot_of(key_of(one))]
    monkeypatch.setattr(SyncSide, "read_slots", lambda _: None)  # which would find it again
    assert all(check("9/m", one).degraded for _ in range(FAILURES + 1))

    found = asyncio.run(acheck("9/m", other))  # connects

    assert not found.degraded


@topology
def test_a_sweep_comes_to_its_end_though_slots_move(own: Cluster, turns: list[str]) -> None:
    with freeze(START):
        for user in USERS:
            check("9/m", user, daily=False)
    turns += map(key_of, USERS[:6])
    reports = [Sweeper(current_store(), "quota").sweep(threading.Event(), lambda count: None) for _ in range(4)]
    assert not turns
    assert (reports[-1].missed, reports[-1].complete) == (0, True)
    assert sum(report.removed for report in reports) == len(USERS)


@topology
def test_a_roll_up_moves_each_check_once_though_slots_move(own: Cluster, database: Any, turns: list[str]) -> None:
    for number, user in enumerate(USERS, 1):
        for _ in range(number % 4 + 1):
            check("900/m", user)
    turns += map(key_of, USERS[:6])
    while turns:
        with suppress(StoreUnavailable):  # at the end: the rest was done
            list(roll_up(current_store(), batch=5))
    list(roll_up(current_store(), batch=5))
    found = {row.subject: row.allowed for row in DailyCounter.objects.all()}
    assert found == {user: number % 4 + 1 for number, user in enumerate(USERS, 1)}


@topology
@pytest.mark.urls("tests.support.urls")
def test_the_reports_name_the_server_that_is_gone_after_the_others_were_walked(
    own: Cluster, database: Any, admin_client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with freeze(START):
        for user in USERS:
            check("9/m", user, daily=False)
    for user in USERS:
        check("900/m", user)
    gone = next(server for server in own.servers if server is not own.owner("{!}"))  # not that of the system's keys
    users = [user for user in USERS if own.owner(key_of(user)) is gone]
    gone.kill()
    left = len(USERS) - len(users)

    with pytest.raises(CommandError, match="of the Cluster did not answer"):
        call_command("quota_sweep", "--json")
    said = json.loads(capsys.readouterr().out)
    assert (said["removed"], said["missed"], said["complete"]) == (left, 1, False)

    with pytest.raises(CommandError, match="a part of the Cluster did not answer, and the rest was done"):
        call_command("quota_rollup", "--json")
    assert json.loads(capsys.readouterr().out)["allowed"] == left
    assert set(DailyCounter.objects.values_list("subject", flat=True)) == set(USERS) - set(users)

    found = health(current_store(), "quota")
    assert (found.silent, found.servers, len(found.parts)) == ([f"127.0.0.1:{gone.port}"], 3, 2)
    page = admin_client.get("/admin/django_quota/overview/").content.decode()
    assert f"1 of the 3 servers of the Cluster do not answer: 127.0.0.1:{gone.port}." in page


@pytest.fixture
def evicting(cluster: Cluster) -> Iterator[Callable[[float], None]]:
    """Let a server of the Cluster evict keys, and fill its memory to such a share."""
    server = cluster.servers[1].client

    def fill_to(share: float) -> None:
        server.config_set("maxmemory-policy", "allkeys-lru")
        server.config_set("maxmemory", int(server.info("memory")["used_memory"] / share))

    yield fill_to
    server.config_set("maxmemory", 0)
    server.config_set("maxmemory-policy", "noeviction")


def test_the_report_shows_the_fullest_server_with_the_worst_policy(evicting: Callable[[float], None]) -> None:
    evicting(0.25)

    found = health(current_store(), "quota")

    assert (found.policy, found.may_evict, found.most, found.servers) == ("allkeys-lru", True, 0, 3)
    assert 0.2 < (found.fullest or 0) < 0.4
    assert not found.is_nearly_full


def test_a_cluster_is_nearly_full_if_one_of_its_servers_is(evicting: Callable[[float], None]) -> None:
    evicting(2)  # so far above the limit that memory which the server frees meanwhile does not matter

    assert health(current_store(), "quota").is_nearly_full


# --- servers that do not answer ---------------------------------------------------------------------------------------


def ask(kind: str, subjects: list[str], **options: Any) -> list[Any]:
    if kind == "sync":
        return [check("900/m", subject, **options) for subject in subjects]

    async def wait() -> list[Any]:
        return [await acheck("900/m", subject, **options) for subject in subjects]

    return asyncio.run(wait())


def until_back(kind: str, clock: Clock, reported: list[Any]) -> None:
    """Ask for one subject after the other until "back" is reported; a busy machine may lose one once more."""

    def is_reported() -> bool:
        for subject in SUBJECTS:
            clock.now += 1
            ask(kind, [subject])
            if reported[-1][0] == "back":
                return True
        return False

    wait_until(is_reported)


def until_well(kind: str, clock: Clock) -> None:

    def is_well() -> bool:
        clock.now += 1
        return not any(decision.degraded for decision in ask(kind, SUBJECTS))

    wait_until(is_well)


def send(number: signal.Signals, *servers: Server) -> None:
    for server in servers:
        server.process.send_signal(number)


@pytest.fixture
def hasty(own: Cluster, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Such a cluster, of which nobody waits for long; an answer of all ends an outage at once."""
    monkeypatch.setattr("django_quota.limiting.outages.SETTLE_TIME", 0.0)
    settings.CACHES = cluster_caches(own, socket_timeout=1.0, socket_connect_timeout=1.0)
    yield own
    send(signal.SIGCONT, *own.servers)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the breakers of all servers."""
    made = Clock()
    monkeypatch.setattr("django_quota.stores.cluster.store.Breaker", partial(Breaker, clock=made))
    return made


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The connections that something was sent over, sync and async."""
    found: list[int] = []
    sends = (
        (redis.Connection, "send_packed_command"),
        (redis.asyncio.Connection, "send_packed_command"),
        (Line, "send"),
        (Wire, "send"),
    )
    for sender, name in sends:
        its_own = getattr(sender, name)

        def sending(*arguments: Any, send: Any = its_own, **options: Any) -> Any:
            found.append(1)
            return send(*arguments, **options)

        monkeypatch.setattr(sender, name, sending)
    return found


@topology
@both
def test_a_server_that_hangs_is_one_outage_for_all(
    kind: str, hasty: Cluster, clock: Clock, tried: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    until_well(kind, clock)  # a busy machine may take long
    degraded = []
    with heard() as reported:
        gone = hasty.owner(f"quota:1:{{{SUBJECTS[0]}}}:s")
        send(signal.SIGSTOP, gone)
        for _ in range(5):
            degraded.append(sum(decision.degraded for decision in ask(kind, SUBJECTS)))
            clock.now += 1
        assert [number for number in degraded if not 0 < number < len(SUBJECTS)] == []

        ask(kind, SUBJECTS[:1] * (FAILURES + 1))
        tried.clear()
        assert all(decision.degraded for decision in ask(kind, SUBJECTS[:1] * 50))
        assert len(tried) <= 50  # the table is read again, ten times a second at most, from those that answer
        shut = [name for name, breaker in current_store()._breakers.items() if breaker.is_refusing()]
        assert shut == [f"127.0.0.1:{gone.port}"]
        assert [what for what, _ in reported] == ["lost"]

        send(signal.SIGCONT, gone)
        until_back(kind, clock, reported)

    assert [what for what, _ in reported] == ["lost", "back"]
    assert caplog.text.count("Rules decide by on_unavailable") == 1
    until_well(kind, clock)


@topology
@pytest.mark.parametrize("known", [True, False], ids=["known, then killed", "hanging from the start"])
@both
def test_with_all_servers_gone_nobody_is_asked_until_they_are_back(
    kind: str, known: bool, hasty: Cluster, clock: Clock, tried: list[int]
) -> None:
    if known:
        ask(kind, SUBJECTS)
    for server in hasty.servers:
        server.kill() if known else send(signal.SIGSTOP, server)

    with heard() as reported:
        ask(kind, SUBJECTS * 3)
        tried.clear()
        assert all(each.allowed and each.degraded for each in ask(kind, SUBJECTS * 10))
        assert not any(each.allowed for each in ask(kind, SUBJECTS[:3], on_unavailable="deny"))
        assert not tried
        if not known:
            send(signal.SIGCONT, *hasty.servers)
            until_back(kind, clock, reported)

    assert [what for what, _ in reported] == (["lost"] if known else ["lost", "back"])
    if not known:
        until_well(kind, clock)


@topology
@both
def test_servers_that_were_all_killed_are_used_again_once_they_are_back(
    kind: str, hasty: Cluster, clock: Clock
) -> None:
    ask(kind, SUBJECTS)
    kill_all(hasty)
    assert all(each.degraded for each in ask(kind, SUBJECTS))
    start_all(hasty)
    until_well(kind, clock)
    left = [decision.remaining for decision in ask(kind, SUBJECTS)]
    assert [decision.remaining for decision in ask(kind, SUBJECTS)] == [number - 1 for number in left]


@topology
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # redis-py leaves the connections to those killed
def test_the_cache_of_a_cluster_whose_servers_were_all_killed_works_once_they_are_back(hasty: Cluster) -> None:
    cache.set("a", 1)
    kill_all(hasty)
    with pytest.raises((RedisConnectionError, ConnectionInterrupted)):
        cache.get("a")
    start_all(hasty)
    cache.set("a", 2)
    assert cache.get("a") == 2
    site.client.get_client().close()
    gc.collect()


@both
@pytest.mark.parametrize("lost", [RedisConnectionError("Connection closed by server."), RedisTimeoutError("late")])
def test_a_hit_whose_reply_is_lost_is_not_sent_again(
    kind: str, lost: Exception, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(kind, SUBJECTS[:1])[0].remaining == 899

    with monkeypatch.context() as patch:
        patch.setattr(Wire, "read", losing(lost))
        patch.setattr(Line, "data_received", lambda line, data: line.lost(lost))
        assert ask(kind, SUBJECTS[:1])[0].degraded
    assert peek("900/m", SUBJECTS[0]).remaining == 898


def test_a_script_that_a_server_has_forgotten_is_sent_once_for_all_tasks(cluster: Cluster) -> None:
    async def ask_all() -> list[Any]:
        await acheck("900/m", SUBJECTS[1])
        for server in cluster.servers:
            server.client.script_flush()
            server.client.config_resetstat()
        return await asyncio.gather(*(acheck("900/m", SUBJECTS[0]) for _ in range(100)))

    decisions = asyncio.run(ask_all())
    assert sorted(decision.remaining for decision in decisions) == list(range(800, 900))
    stats = [server.client.info("commandstats") for server in cluster.servers]
    assert sum(each["cmdstat_eval"]["calls"] for each in stats if "cmdstat_eval" in each) == 1


def test_a_plain_command_runs_no_script_beside_it(cluster: Cluster) -> None:
    redis = get_limiter().store.redis
    assert redis is not None
    for server in cluster.servers:
        server.client.config_resetstat()

    with redis.commands() as client:
        client.get("quota:1:{!}:events")

    stats = [server.client.info("commandstats") for server in cluster.servers]
    assert [name for each in stats for name in each if "eval" in name] == []


def test_a_closed_store_leaves_no_connection_for_plain_commands_open(cluster: Cluster) -> None:
    store = current_store().redis
    names, before = store.servers(), clients(cluster)
    for name in names:
        with store.commands(name) as client:
            client.ping()
    opened = clients(cluster) - before

    store.close()

    assert len(opened) >= len(names)
    wait_until(lambda: not clients(cluster) & opened)


def losing(lost: Exception) -> Any:
    """Return the reading of a reply, which loses that of a script: the server has run it."""
    read = Wire.read

    def read_and_lose(wire: Wire) -> Any:
        reply = read(wire)
        if isinstance(reply, bytes) and len(reply) % 8 == 0:
            raise lost
        return reply

    return read_and_lose
