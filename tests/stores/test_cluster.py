"""The store on a real Redis Cluster: every key finds its server, whatever the servers do meanwhile."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import Any, cast

import pytest
from django.core.cache import cache
from django.core.management import call_command
from django.test import RequestFactory
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from django_quota import (
    Rule,
    acheck,
    acheck_all,
    areset,
    check,
    check_all,
    counter,
    peek,
    refund,
    reserve,
    reset,
    reset_subject,
)  # fmt: skip
from django_quota.adapters import decide
from django_quota.exceptions import ConfigurationError, StoreUnavailable
from django_quota.features.event_stream import EventGroup, EventStream
from django_quota.limiting.registry import get_limiter
from django_quota.models import DailyCounter, QuotaOverride
from django_quota.operating.sweep import SCAN_COUNT, Sweeper
from django_quota.stores.cluster.store_cluster import ClusterStore
from django_quota.testing import freeze
from tests.admin.operators import superuser
from tests.support.clusters import Cluster, running_cluster
from tests.support.commands import json_of
from tests.support.counts import checks_of, checks_of_today
from tests.support.inputs import inputs
from tests.support.random_plans import STEPS, in_order, plan_of
from tests.support.steps import SECOND, START, driven
from tests.support.stores import cluster_caches, cluster_program, current_store, own_memory_store

SUBJECTS = [f"ip:192.0.2.{number}" for number in range(30)]


def key_of(subject: str) -> str:
    return f"quota:1:{{{subject}}}:s"


def pair(cluster: Cluster) -> tuple[str, str]:
    """Return two subjects whose keys lie on different servers."""
    first = SUBJECTS[0]
    other = next(each for each in SUBJECTS if cluster.owner(key_of(each)) is not cluster.owner(key_of(first)))
    return first, other


class TestDecisions:
    def test_subjects_of_all_servers_are_limited_sync_and_async(self, cluster: Cluster) -> None:
        async def both() -> list[bool]:
            return [bool(await acheck("3/m", subject)) for subject in SUBJECTS for _ in range(2)]

        admitted = [bool(check("3/m", subject)) for subject in SUBJECTS for _ in range(2)]
        assert sum(admitted) == 2 * len(SUBJECTS)
        assert sum(asyncio.run(both())) == len(SUBJECTS)
        assert len({cluster.owner(key_of(subject)).port for subject in SUBJECTS}) == 3

    def test_racing_threads_and_tasks_are_admitted_exactly_up_to_the_limit(self, cluster: Cluster) -> None:
        async def tasks() -> int:
            hits = (acheck("50/m", subject) for _ in range(40) for subject in SUBJECTS[:5])
            return sum(map(bool, await asyncio.gather(*hits)))

        with ThreadPoolExecutor(9) as threads:
            running = threads.submit(asyncio.run, tasks())
            admitted = sum(map(bool, threads.map(lambda n: check("50/m", SUBJECTS[n % 5]), range(1_000))))
            assert admitted + running.result() == 5 * 50

    def test_a_check_is_one_round_trip(self, cluster: Cluster) -> None:
        subject = SUBJECTS[0]
        server = cluster.owner(key_of(subject)).client
        check("5/m; 9/h", subject)
        before = server.info("stats")["total_reads_processed"]
        check("5/m; 9/h", subject)
        assert server.info("stats")["total_reads_processed"] - before == 2  # the other one is the INFO itself

    def test_scripts_that_all_servers_forgot_are_loaded_again(self, cluster: Cluster) -> None:
        for _ in range(2):
            for server in cluster.servers:
                server.client.script_flush()
            assert not any(check("3/m", subject).degraded for subject in SUBJECTS)

    def test_refund_reset_and_holds_find_their_server(self, cluster: Cluster) -> None:
        for subject in SUBJECTS[:6]:
            check("3/m", subject, 2)
            assert refund("3/m", subject).remaining == 2
            with reserve("3/m", subject, 2) as hold:
                hold.settle(1)
            assert peek("3/m", subject).remaining == 1
            assert reset("3/m", subject)
            assert not asyncio.run(areset("3/m", subject))


class TestPlansOverSeveralSubjects:
    def test_a_later_refusal_gives_back_what_an_earlier_part_took(self, cluster: Cluster) -> None:
        wide, narrow = Rule.make("wide", "9/m"), Rule.make("narrow", "2/m")
        for asked in (pair(cluster), pair(cluster)[::-1]):
            cluster.flush()
            got = [check_all([(wide, asked[0]), (narrow, asked[1])]) for _ in range(5)]
            assert [bool(decision) for decision in got] == [True, True, False, False, False]
            assert [outcome.remaining for outcome in got[-1].outcomes] == [7, 0]
            assert peek(wide, asked[0]).remaining == 7

    @pytest.mark.parametrize(("rate", "trips"), [("9/m", (1, 1)), ("0/m", (2, 1))])
    def test_a_plan_is_one_trip_for_each_part_and_one_to_undo(
        self, cluster: Cluster, rate: str, trips: tuple[int, int]
    ) -> None:
        one, two = pair(cluster)
        asked = [(Rule.make("one", "9/m"), one), (Rule.make("two", rate), two)]
        servers = [cluster.owner(key_of(subject)).client for subject in (one, two)]
        for _ in range(2):
            before = [server.info("stats")["total_reads_processed"] for server in servers]
            check_all(asked)
            after = [server.info("stats")["total_reads_processed"] - 1 for server in servers]  # INFO itself
        assert tuple(now - then for now, then in zip(after, before, strict=True)) == trips

    def test_a_request_under_rules_of_several_subjects_is_decided(self, cluster: Cluster) -> None:
        rules = [Rule.make("a", "2/m"), Rule.make("b", "1/m", key="global")]
        request = RequestFactory().get("/")
        assert decide(request, rules)
        refused = decide(RequestFactory().get("/"), rules)
        assert (refused.allowed, refused.rule, len(refused.outcomes)) == (False, "b", 2)

    def test_what_an_undone_part_counted_and_emitted_is_taken_back(self, cluster: Cluster) -> None:
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

    def test_a_settlement_that_brings_a_limit_near_names_that_limit(self, cluster: Cluster) -> None:
        hold = reserve("100/m; 10/h", "user:1", 1, name="tokens", warn_at=0.8)
        hold.settle(9)
        assert [(each["share"], each["capacity"], each["remaining"]) for each in json_of("quota_events")] == [
            (0.8, 10, 1)
        ]

    def test_racing_plans_never_admit_too_many(self, cluster: Cluster) -> None:
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

    @inputs(60, suppress_health_check=list(HealthCheck))
    @given(phase=st.integers(0, 86_400 * SECOND), steps=STEPS)
    def test_any_plans_are_answered_as_by_the_memory_store(
        self, cluster: Cluster, phase: int, steps: list[Any]
    ) -> None:
        cluster.flush()
        store, now = current_store(), START + phase
        with own_memory_store() as memory:
            for gap, mode, asked, with_events in steps:
                now += gap
                if mode in ("adjust", "undo"):  # nothing is taken here
                    continue
                expected = driven(memory.run, plan_of(asked, with_events=with_events), mode, now)
                found = driven(store.run, plan_of(asked, with_events=with_events), mode, now)
                if not found[1] and len({subject for _, subject, _, _ in asked}) > 1:
                    assert not expected[1]
                    break  # the slots behind the one that refuses count no refusal
                assert in_order(found, asked) == in_order(expected, asked)

    @pytest.mark.thorough("topology")
    def test_a_server_that_is_gone_leaves_nothing_taken_on_the_others(self, settings: Any) -> None:
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


class TestTheLog:
    def test_events_are_written_by_the_caller(self, cluster: Cluster) -> None:
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

    def test_a_group_is_handed_the_events_of_every_server(self, cluster: Cluster) -> None:
        group = EventGroup(EventStream(cast("Any", get_limiter().store), "quota"), "g")
        assert group.begin()
        for subject in SUBJECTS:
            check("0/m", subject)
        entries = group.take().entries
        assert sorted(entry.event.subject or "" for entry in entries if entry.event) == sorted(SUBJECTS)
        group.acknowledge(entries)
        assert group.take().entries == []

    def test_an_event_that_cannot_be_written_leaves_the_decision(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        from django_quota.engine.events import AppendEvents

        run_all = ClusterStore.run_all

        def fail(store: ClusterStore, operations: Any, now: Any) -> Any:
            if isinstance(operations[0], AppendEvents):
                raise StoreUnavailable("gone")
            return run_all(store, operations, now)

        monkeypatch.setattr(ClusterStore, "run_all", fail)
        decision = check("0/m", SUBJECTS[0])
        assert (decision.allowed, decision.degraded) == (False, False)
        assert "could not be written" in caplog.text


class TestTheWholeOfIt:
    def test_a_sweep_goes_over_every_server(self, cluster: Cluster) -> None:
        with freeze(START):
            for subject in SUBJECTS:
                check("9/m", subject)
        (report,) = json_of("quota_sweep")
        assert [report[name] for name in ("sets", "removed", "emptied", "complete")] == [len(SUBJECTS)] * 3 + [True]

    @pytest.mark.thorough("scale")
    def test_a_sweep_that_was_stopped_goes_on_where_it_was(self, cluster: Cluster) -> None:
        subjects = 5 * SCAN_COUNT  # more than one batch on each of the three servers
        with freeze(START):
            for number in range(subjects):
                check("9/m", f"ip:10.0.{number // 250}.{number % 250}")
        store: Any = current_store()
        stop = threading.Event()
        first = Sweeper(store, "quota").sweep(stop, lambda count: stop.set())
        assert (first.complete, first.resumed) == (False, False)
        second = Sweeper(store, "quota").sweep(threading.Event(), lambda count: None)
        assert (second.complete, second.resumed) == (True, True)
        assert first.removed + second.removed == subjects
        left = cluster.keys()
        assert not [key for key in left if key.endswith(":sweep")]

    def test_many_operations_at_once_are_all_done(self, cluster: Cluster) -> None:
        store, rule = current_store(), Rule.make("a", "9/m")
        made = [plan_of([(rule, f"ip:10.0.{n // 250}.{n % 250}", 1, "")], with_events=False) for n in range(500)]
        replies = store.run_all([each.operation(0, "check") for each in made], None)
        assert [reply[1] for reply in replies] == [1] * len(made)
        replies = asyncio.run(store.arun_all([each.operation(0, "peek") for each in made], None))
        assert [reply[3] for reply in replies] == [8] * len(made)

    def test_what_a_later_part_of_the_plan_refuses_is_taken_back_after_it_was_moved(
        self, cluster: Cluster, database: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        users = [f"user:{number}" for number in range(20)]
        one = users[0]
        two = next(user for user in users if cluster.owner(key_of(user)) is not cluster.owner(key_of(one)))
        wide, narrow = Rule.make("wide", "99/m"), Rule.make("narrow", "2/m")
        store: Any = current_store()
        run_all = store.run_all

        def with_a_roll_up_behind_each_trip(*arguments: Any) -> Any:
            replies = run_all(*arguments)
            with monkeypatch.context() as patch:
                patch.setattr(store, "run_all", run_all)
                call_command("quota_rollup", stdout=StringIO())
            return replies

        monkeypatch.setattr(store, "run_all", with_a_roll_up_behind_each_trip)
        allowed = [bool(check_all([(wide, one, 7), (narrow, two)])) for _ in range(6)]
        assert allowed == [True, True, False, False, False, False]
        rows = {row.subject: (row.allowed, row.refused, row.units) for row in DailyCounter.objects.all()}
        assert rows == {one: (2, 0, 14), two: (2, 4, 2)}

    def test_counters_of_all_servers(self, cluster: Cluster) -> None:
        for number, subject in enumerate(SUBJECTS):
            counter("views").incr(subject, number)
        assert [counter("views").get(subject) for subject in SUBJECTS] == list(range(len(SUBJECTS)))

    def test_days_are_counted_found_and_moved(self, cluster: Cluster, database: Any) -> None:
        for number in range(1, 21):
            for _ in range(number):
                check("1000/m", f"user:{number}")
        for _ in range(2):
            call_command("quota_rollup", stdout=StringIO())
            assert DailyCounter.objects.count() == 20
            assert sum(row.allowed for row in DailyCounter.objects.all()) == sum(range(1, 21))

    def test_the_pages_of_the_admin_read_every_server(self, cluster: Cluster, database: Any, settings: Any) -> None:
        settings.QUOTA = {"RULES": {"site": "1/m"}}
        for subject in SUBJECTS:
            check("site", subject)
        root = superuser()
        overview = root.get("/admin/django_quota/overview/", {"sizes": "1"}).content.decode()
        assert re.search(rf">\s*{len(SUBJECTS)}\s*<", overview)
        for subject in SUBJECTS[:5]:
            page = root.get("/admin/django_quota/subject/", {"subject": subject}).content.decode()
            assert re.search(r"1 of 1\b", page)
            assert "site" in reset_subject(subject).rules
            assert peek("site", subject).remaining == 1


def test_the_cache_itself_works_on_all_servers(cluster: Cluster) -> None:
    cache.set_many({f"key-{number}": number for number in range(30)}, timeout=60)
    assert cache.get_many([f"key-{number}" for number in range(40)]) == {f"key-{n}": n for n in range(30)}
    assert (cache.incr("key-5"), cache.get("key-5"), cache.add("key-5", 1)) == (6, 6, False)
    deleted: Any = cache.delete_many
    assert deleted(["key-1", "key-2", "key-3", "nothing"]) == 3
    assert cache.delete("key-4")
    assert len(list(cache.keys("key-*"))) == len(list(cache.iter_keys("key-*"))) == 26  # type: ignore[attr-defined]
    assert cache.delete_pattern("key-1*") == 10  # type: ignore[attr-defined]
    cache.clear()
    assert cluster.keys() == set()


def test_the_commands_work_on_a_cluster(cluster: Cluster, database: Any, capsys: pytest.CaptureFixture[str]) -> None:
    users = [f"user:{number}" for number in range(12)]
    QuotaOverride.objects.bulk_create([QuotaOverride(subject=user, rule="*", mode="blocked") for user in users])
    assert not any(check("9/m", user) for user in users)
    QuotaOverride.objects.all().delete()
    assert all(check("9/m", user) for user in users)
    call_command("quota_rollup")
    assert DailyCounter.objects.count() == len(users)
    call_command("quota_status", users[3])
    call_command("quota_reset", users[3])
    assert peek("9/m", users[3]).remaining == 9
    call_command("quota_sweep")
    said = capsys.readouterr().out
    assert "9/m" in said


def test_a_client_that_knows_of_no_cluster_is_a_clear_error(cluster: Cluster, settings: Any) -> None:
    options = {"CLIENT_CLASS": "django_redis.client.DefaultClient"}
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": cluster.location[0], "OPTIONS": options}}
    with pytest.raises(ConfigurationError, match="ClusterClient"):
        assert [check("3/m", subject) for subject in SUBJECTS]


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"protocol": 3}, {"max_connections": 2}])
def test_the_options_of_the_pool_hold_for_every_server(cluster: Cluster, settings: Any, options: Any) -> None:
    settings.CACHES = cluster_caches(cluster, **options)

    async def tasks() -> int:
        return sum(map(bool, await asyncio.gather(*(acheck("2/m", subject) for subject in SUBJECTS for _ in range(2)))))

    assert asyncio.run(tasks()) == 2 * len(SUBJECTS)
    with ThreadPoolExecutor(6) as threads:
        assert not any(threads.map(lambda subject: check("2/m", subject), SUBJECTS))


def test_servers_are_reached_at_the_address_that_the_alias_maps_theirs_to(cluster: Cluster, settings: Any) -> None:
    given = cluster_caches(cluster)
    given["default"]["OPTIONS"]["REDIS_CLIENT_KWARGS"] = {"address_remap": lambda at: ("127.1", at[1])}
    settings.CACHES = given
    assert all(check("2/m", subject) for subject in SUBJECTS)
    assert sorted(current_store().servers()) == sorted(f"127.1:{server.port}" for server in cluster.servers)


def test_metrics_reach_the_server_of_the_systems_keys(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for subject in SUBJECTS:
        check("1/m", subject, name="tallied")
    assert checks_of_today() == {"tallied": (len(SUBJECTS), 0, 0)}
