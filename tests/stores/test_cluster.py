"""The store on a real Redis Cluster: every key finds its server, whatever the servers do meanwhile."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import StringIO
from typing import Any

import pytest
from django.core.cache import cache, caches
from django.core.management import call_command
from django_redis.exceptions import ConnectionInterrupted
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException

from django_quota import Rule, acheck, acheck_all, check, check_all, counter, peek, refund, reserve, reset
from django_quota.engine.events import AppendEvents
from django_quota.exceptions import StoreUnavailable
from django_quota.models import DailyCounter
from django_quota.stores.cluster.store_cluster import ClusterStore
from django_quota.testing import freeze
from tests.support.clusters import Cluster, running_cluster
from tests.support.commands import json_of
from tests.support.counts import checks_of, checks_of_today
from tests.support.steps import START
from tests.support.stores import cluster_caches, cluster_program, current_store

SUBJECTS = [f"ip:192.0.2.{number}" for number in range(30)]


def key_of(subject: str) -> str:
    return f"quota:1:{{{subject}}}:s"


def pair(cluster: Cluster) -> tuple[str, str]:
    """Return two subjects whose keys lie on different servers."""
    first = SUBJECTS[0]
    other = next(each for each in SUBJECTS if cluster.owner(key_of(each)) is not cluster.owner(key_of(first)))
    return first, other


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}, {"max_connections": 2}])
def test_racing_threads_and_tasks_are_admitted_exactly_up_to_the_limit_on_every_server(
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
def test_a_plan_is_one_trip_for_each_part_and_one_to_undo(cluster: Cluster, rate: str, trips: tuple[int, int]) -> None:
    one, two = pair(cluster)
    asked = [(Rule.make("one", "9/m"), one), (Rule.make("two", rate), two)]
    servers = [cluster.owner(key_of(subject)).client for subject in (one, two)]
    for _ in range(2):
        before = [server.info("stats")["total_reads_processed"] for server in servers]
        check_all(asked)
        after = [server.info("stats")["total_reads_processed"] - 1 for server in servers]  # INFO itself
    assert tuple(now - then for now, then in zip(after, before, strict=True)) == trips


def test_what_an_undone_part_counted_and_emitted_is_taken_back(cluster: Cluster) -> None:
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


@pytest.mark.thorough("topology")
def test_a_server_that_is_gone_leaves_nothing_taken_on_the_others(settings: Any) -> None:
    with running_cluster(cluster_program()) as own:
        settings.CACHES = cluster_caches(own)
        one, two = pair(own)
        asked = [(Rule.make("one", "5/m"), one), (Rule.make("two", "5/m"), two)]
        for server in own.servers:
            server.client.config_set("cluster-require-full-coverage", "no")
        assert check_all(asked)
        own.owner(key_of(two)).kill()
        assert check_all(asked).degraded
        assert peek(asked[0][0], one).remaining == 4


def test_events_are_written_by_the_caller(cluster: Cluster) -> None:
    ban = {"after": "2/m", "for": "1h"}
    for subject in SUBJECTS[:8]:
        for _ in range(5):
            check("1/m", subject, ban=ban)
    events = json_of("quota_events", last=100)
    for subject in SUBJECTS[:8]:
        assert [event["kind"] for event in events if event["subject"] == subject] == ["refused", "banned"]
    assert {(event["level"], event["capacity"]) for event in events if event["kind"] == "banned"} == {(1, 1)}
    index = cluster.owner("{!}").client
    assert index.zcard("quota:1:{!}:bans") == 8
    assert reset("1/m", SUBJECTS[0], ban=ban)
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


def test_servers_are_reached_where_the_alias_maps_theirs_to_and_forgotten_scripts_are_sent_again(
    cluster: Cluster, settings: Any
) -> None:
    given = cluster_caches(cluster)
    given["default"]["OPTIONS"]["REDIS_CLIENT_KWARGS"] = {"address_remap": lambda at: ("127.1", at[1])}
    settings.CACHES = given
    assert all(check("2/m", subject) for subject in SUBJECTS)
    for server in cluster.servers:
        server.client.script_flush()
    assert not any(check("3/m", subject).degraded for subject in SUBJECTS)
    assert sorted(current_store().servers()) == sorted(f"127.1:{server.port}" for server in cluster.servers)


def test_whatever_else_counts_finds_its_server(
    cluster: Cluster, database: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with freeze(START):
        for subject in SUBJECTS:
            check("9/m", subject, name="old", daily=False)
    for number, subject in enumerate(SUBJECTS):
        counter("views").incr(subject, number)
        check("3/m", subject, 2, daily=True)
        assert refund("3/m", subject).remaining == 2
        with reserve("3/m", subject, 2) as hold:
            hold.settle(1)
        assert peek("3/m", subject).remaining == 1
    assert [counter("views").get(subject) for subject in SUBJECTS] == list(range(len(SUBJECTS)))
    (report,) = json_of("quota_sweep")
    assert (report["removed"], report["complete"]) == (len(SUBJECTS), True)
    for _ in range(2):
        call_command("quota_rollup", stdout=StringIO())
        assert {row.subject: row.allowed for row in DailyCounter.objects.all()} == dict.fromkeys(SUBJECTS, 1)
    for subject in SUBJECTS[:5]:
        call_command("quota_reset", subject)
        assert peek("3/m", subject).remaining == 3
    assert checks_of_today()["3/m"][0] >= len(SUBJECTS)


site: Any = cache
MANY = {f"k{n}": n for n in range(20)}


def test_the_cache_answers_as_on_one_server(cluster: Cluster) -> None:
    site.set_many({})
    site.set_many(MANY, timeout=9)
    assert (site.get_many(["k1", "k2", "x"]), site.get_many([])) == ({"k1": 1, "k2": 2}, {})
    assert 0 < site.ttl("k1") <= 9
    assert sorted(site.keys("k*")) == sorted(site.iter_keys("k*")) == sorted(MANY)
    assert (site.delete_many(["k0", "k2", "x"]), site.delete_many([])) == (2, 0)
    assert (site.delete_pattern("k1*"), site.delete_pattern("none*")) == (11, 0)
    assert (site.incr_version("k3"), site.get("k3"), site.get("k3", version=2)) == (2, None, 3)
    site.clear()
    assert site.get("k4") is None
    with site.lock("mutex", timeout=5) as lock:
        assert lock.owned()
        assert not site.lock("mutex", timeout=5, blocking_timeout=0.01).acquire(blocking=False)
        lock.extend(5)
    assert site.lock("mutex", timeout=5).acquire(blocking=False)
    site.sadd("{s}1", 1)
    site.sadd("{s}2", 2)
    assert site.sunion("{s}1", "{s}2") == {1, 2}
    site.sadd("s3", 3)
    with pytest.raises(Exception, match="slot"):
        site.sunion("{s}1", "s3")


@pytest.fixture(params=[True, False], ids=["known before", "never reached"])
def gone(request: pytest.FixtureRequest, settings: Any) -> Iterator[None]:
    """The whole Cluster is gone: known before, or never reached."""
    with running_cluster(cluster_program()) as own:
        settings.CACHES = cluster_caches(own, socket_timeout=0.2, socket_connect_timeout=0.2)
        if request.param:
            cache.set("a", 1)
        for server in own.servers:
            server.kill()
        yield


@pytest.mark.thorough("topology")
def test_without_any_server_an_error_is_one_that_django_redis_knows(gone: None) -> None:
    asked: list[Callable[[], Any]] = [
        *(site.clear, partial(site.delete_many, ["a", "b"]), partial(site.delete_pattern, "k1*")),
        *(partial(site.incr_version, "a"), partial(site.keys, "k*"), partial(site.set_many, MANY)),
    ]
    for ask in asked:
        with pytest.raises((RedisConnectionError, ConnectionInterrupted, RedisClusterException)) as caught:
            ask()
        assert not isinstance(caught.value, RedisClusterException)
    default: Any = caches["default"]
    default._ignore_exceptions = True  # as IGNORE_EXCEPTIONS makes it
    assert (site.get("a"), site.get_many(["a"]), site.set("a", 1), site.add("a", 1)) == (None, {}, None, None)
    assert (site.set_many({"a": 1}), site.delete_pattern("*"), site.incr("a"), site.clear()) == (None,) * 4
