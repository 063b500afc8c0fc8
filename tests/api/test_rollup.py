"""Usage is exact: the roll-up moves each count once, however often it is run, stopped or killed, by however many."""

import random
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import redis
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, connections, transaction
from django.db.models import QuerySet
from django.test import override_settings
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from django_quota import Rule, ausage, check, reserve, usage_lines
from django_quota import usage as bill_of
from django_quota.exceptions import RuleError, StoreUnavailable
from django_quota.features.usage import rollup
from django_quota.features.usage.days import (
    ASIDE,
    SetAside,
    last_tiers,
    recent_days,
    recent_usage,
    subjects_of_rules,
    total,
    waiting,
)
from django_quota.features.usage.rollup import move, preview, roll_up
from django_quota.management.commands import quota_rollup
from django_quota.models import DailyCounter
from django_quota.stores.scanning import Walk
from django_quota.testing import RedisServer, freeze, server_programs
from tests.chaos.servers import Server, running
from tests.support.commands import Manage, Terminal, managing, said, wait_until
from tests.support.databases import LaggingReplica, another_database, sqlite_database
from tests.support.days import Died, before_rows_are_saved, count, dying
from tests.support.inputs import inputs
from tests.support.outages import mostly_late, no_answer
from tests.support.steps import SECOND, START
from tests.support.stores import caches, current_store

MOMENT = datetime.now(UTC)
TODAY = MOMENT.date()


def rolled(batch: int = 500) -> dict[str, int]:
    """Roll up all there is; return what was done, without what was not."""
    report: dict[str, int] = said("quota_rollup", "--json", "--batch", str(batch))
    return {what: number for what, number in report.items() if number}


def rows() -> dict[tuple[str, date, str], tuple[int, int, int]]:
    found = DailyCounter.objects.values_list("subject", "day", "rule", "allowed", "refused", "units")
    return {(subject, day, rule): (*counts,) for subject, day, rule, *counts in found}  # type: ignore[misc]


def counted(places: dict[tuple[str, date, str], Any]) -> dict[tuple[str, date, str], Any]:
    return {place: total for place, total in places.items() if any(total)}


def gone(*_: Any) -> Any:
    raise DatabaseError("the server went away")


def keys(raw: redis.Redis) -> list[Any]:
    return list(raw.scan_iter("quota:1:{*}:day:*"))


small = st.integers(0, 9)
places = st.sampled_from([("user:1", "search"), ("user:1", "login"), ("user:2", "search")])
steps = st.one_of(
    st.tuples(st.just("count"), places, small, small, small),
    st.tuples(st.sampled_from(["take_back", "roll_up", "restore", "lose"])),
    st.tuples(st.just("die"), st.integers(0, 40)),
    st.tuples(st.just("fail"), st.integers(0, 12)),
)
names = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=40)


def count_each(raw: redis.Redis, names: set[str]) -> None:
    """Have each name, as a subject and as its rule, be counted once and nothing else."""
    raw.flushall()
    DailyCounter.objects.all().delete()
    for name in names:
        count(raw, name, {name: (1, 0)}, TODAY)


class Machine:
    """Redis counts, is rolled up by processes that die, restores what was set aside, and loses its memory."""

    def __init__(self, raw: redis.Redis) -> None:
        self.raw = raw
        self.expected: dict[tuple[str, date, str], tuple[int, ...]] = {}
        raw.flushall()
        DailyCounter.objects.all().delete()

    def run(self, step: tuple[Any, ...]) -> None:
        kind, *given = step
        getattr(self, kind)(*given)

    def count(self, place: tuple[str, str], allowed: int, refused: int, more: int, day: date = TODAY) -> None:
        subject, rule = place
        more = more if allowed else 0
        count(self.raw, subject, {rule: (allowed, refused, more)}, day)
        before = self.expected.get((subject, day, rule), (0, 0, 0))
        added = (allowed, refused, allowed + more)
        self.expected[subject, day, rule] = tuple(map(sum, zip(before, added, strict=True)))

    def take_back(self) -> None:
        """Take a hit of three units back after it was moved."""
        self.count(("user:1", "search"), 1, 0, 2)
        self.roll_up()
        self.count(("user:1", "search"), -1, 0, -2)

    def roll_up(self) -> None:
        list(roll_up(current_store()))
        assert not keys(self.raw)
        assert counted(rows()) == counted(self.expected)

    def die(self, step: int) -> bool:
        """Let a roll-up die at a step; say whether it came so far."""
        died = True
        with suppress(Died), dying(step):
            list(roll_up(current_store()))
            died = False
        connection.close()
        return died

    def fail(self, step: int) -> None:
        left = iter(range(step))

        def execute(act: Any, *arguments: Any) -> Any:
            if next(left, None) is None:
                gone()
            return act(*arguments)

        with connection.execute_wrapper(execute), suppress(DatabaseError):
            list(roll_up(current_store()))
        connection.close()

    def restore(self) -> None:
        """Bring back what is aside in a snapshot, after it was moved."""
        asides: dict[Any, Any] = {key: self.raw.dump(key) for key in keys(self.raw) if key.endswith(b":aside")}
        self.roll_up()
        for key, content in asides.items():
            self.raw.restore(key, 60_000, content)

    def lose(self) -> None:
        self.raw.flushall()
        self.expected = dict(rows())


@pytest.mark.usefixtures("redis_cache", "database")
class TestMoving:
    @pytest.mark.thorough("slow")
    @inputs(60, [HealthCheck.function_scoped_fixture])
    @given(st.lists(steps, min_size=1, max_size=12))
    def test_each_count_arrives_exactly_once(self, raw: redis.Redis, steps: list[Any]) -> None:
        machine = Machine(raw)
        for step in steps:
            machine.run(step)
        machine.roll_up()

    def test_a_roll_up_that_dies_at_any_step_is_finished_by_the_next(self, raw: redis.Redis) -> None:
        machine = Machine(raw)
        for step in range(100):
            machine.count(("user:1", "search"), 3, 1, 4)
            machine.count(("user:2", "search"), 1, 0, 0)
            if not machine.die(step):
                break
            machine.count(("user:1", "login"), 1, 1, 7)
            if step % 2:
                machine.roll_up()
        assert 5 < step < 99
        machine.roll_up()

    @pytest.mark.usefixtures("short_pauses")
    @pytest.mark.parametrize("done", [False, True], ids=["lost calls", "lost answers"])
    def test_late_replies_do_not_end_a_roll_up(
        self, done: bool, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for user in range(7):
            count(raw, f"user:{user}", {"search": (3, 1, 5)}, TODAY)
        store, scan = current_store(), mostly_late(redis.Redis.scan, redis.TimeoutError("late"), done=done)
        monkeypatch.setattr(redis.Redis, "scan", scan)
        monkeypatch.setattr(store, "try_all", mostly_late(store.try_all, StoreUnavailable("late"), done=done))
        assert rolled(batch=3) == {"days": 7, "rows": 7, "allowed": 21, "refused": 7, "units": 56}
        assert counted(rows()) == {(f"user:{user}", TODAY, "search"): (3, 1, 8) for user in range(7)}

    @pytest.mark.usefixtures("short_pauses")
    def test_a_store_that_stays_silent_ends_a_roll_up(self, raw: redis.Redis) -> None:
        count(raw, "user:1", {"search": (3, 1, 5)}, TODAY)
        with no_answer(), pytest.raises(CommandError, match="unavailable"):
            rolled()

    def test_a_clock_that_steps_back_bills_each_hit_once(self, raw: redis.Redis) -> None:
        for back in (0, 0, 1, 2):
            with freeze(START - back):
                check("9/h", "user:1")
                list(roll_up(current_store()))

        assert list(counted(rows()).values()) == [(4, 0, 4)]

    def test_a_refund_after_a_loss_bills_nothing(self, raw: redis.Redis) -> None:
        reservation = reserve("99/h", "user:2", 7)
        raw.flushall()
        reservation.cancel()

        rolled()

        assert counted(rows()) == {}

    def test_a_transaction_of_the_caller_that_rolls_back_loses_nothing(self, raw: redis.Redis) -> None:
        place = ("user:1", TODAY, "search")
        count(raw, "user:1", {"search": (3, 1, 5)}, TODAY)

        def moved() -> tuple[int, int, int]:
            move(current_store(), {each.of for each in waiting(recent_days("user:1"))})
            return rows()[place]

        with transaction.atomic():
            assert moved() == moved() == (3, 1, 8)
            transaction.set_rollback(True)
        assert place not in rows()
        count(raw, "user:1", {"search": (1, 0)}, TODAY)
        assert moved() == (4, 1, 9)
        assert not keys(raw)

    def test_a_row_that_another_roll_up_adds_meanwhile_is_used(
        self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def overtaken(*arguments: Any) -> Any:
            found = step(*arguments)
            for place in found[0]:
                DailyCounter.objects.create(subject=place.subject, rule=place.rule, day=place.day)
            return found

        count(raw, "user:1", {"search": (3, 1, 5)}, TODAY)
        step = rollup._move
        monkeypatch.setattr(rollup, "_move", overtaken)

        list(roll_up(current_store()))

        assert rows() == {("user:1", TODAY, "search"): (3, 1, 8)}

    def test_a_row_whose_token_is_of_a_clock_that_is_ahead_is_counted_on(self, raw: redis.Redis) -> None:
        tomorrow = round((MOMENT + timedelta(days=1)).timestamp()) * SECOND
        for rule, token in (("search", tomorrow), ("mail", 0)):
            DailyCounter.objects.create(subject="user:1", rule=rule, day=TODAY, token=token)
        count(raw, "user:1", {"search": (3, 1, 5)}, TODAY)

        list(roll_up(current_store()))

        assert rows()["user:1", TODAY, "search"] == (3, 1, 8)

    def test_a_day_whose_counts_are_gone_is_not_reported(self) -> None:
        assert move(current_store(), recent_days("user:1")[-2:]).days == 0

    def test_a_dry_run_is_of_the_keys_with_a_prefix(self, raw: redis.Redis) -> None:
        count(raw, "user:1", {"search": (3, 1, 5)}, TODAY)

        assert [done.days for done in preview(current_store(), prefix="quota")] == [1]
        assert list(preview(current_store(), prefix="site:quota")) == []

    def test_the_tier_of_a_day_is_newer_than_that_of_its_counts_aside(self, raw: redis.Redis) -> None:
        rule = Rule.make("tiered", {"pro": "9/d", "free": "1/d"}, tier=lambda request: "pro", daily=True)
        check(rule, "user:7", tier="free")
        (day,) = {each.of for each in waiting(recent_days("user:7"))}
        current_store().run(SetAside(day.key, day.key + ASIDE, 0), None)
        check(rule, "user:7", tier="pro")

        assert last_tiers([rule], "user:7") == {"tiered": "pro"}

    def test_a_transaction_of_the_caller_leaves_what_was_counted_after_a_killed_move(self, raw: redis.Redis) -> None:
        """What the killed move had set aside is deleted after the commit, so there is no place for the others yet."""
        count(raw, "user:1", {"search": (3, 1, 5)}, TODAY)
        (day,) = {each.of for each in waiting(recent_days("user:1"))}
        current_store().run(SetAside(day.key, day.key + ASIDE, 0), None)
        count(raw, "user:1", {"search": (1, 0)}, TODAY)

        with transaction.atomic():
            move(current_store(), {day})

        assert counted(rows()) == {("user:1", TODAY, "search"): (3, 1, 8)}

    @inputs(40, [HealthCheck.function_scoped_fixture])
    @example({"user:" + "x" * 300, "user:" + "x" * 301, "key.f:\ud800", "~", "\u2603 %41", "a\0b", "r" * 300})
    @given(st.sets(names, min_size=1, max_size=8))
    def test_each_name_has_a_row_of_its_own(self, raw: redis.Redis, names: set[str]) -> None:
        count_each(raw, names)

        assert rolled() == {"days": len(names), "rows": len(names), "allowed": len(names), "units": len(names)}

    @inputs(40, [HealthCheck.function_scoped_fixture])
    @example({"user:" + "x" * 300, "user:" + "x" * 301, "key.f:\ud800", "~", "\u2603 %41", "a\0b", "r" * 300})
    @given(st.sets(names, min_size=1, max_size=8))
    def test_a_name_stays_as_it_is_where_it_can(self, raw: redis.Redis, names: set[str]) -> None:
        count_each(raw, names)

        rolled()

        plain = {name for name in names if len(name) <= 16 and not re.search("^~|[\0\ud800-\udfff]", name)}
        assert plain <= {subject for subject, _, _ in rows()}
        assert plain <= {rule for _, _, rule in rows()}

    def test_only_counts_are_read(self, raw: redis.Redis) -> None:
        expected = {(f"user:{number}", TODAY, "a:b"): (number, 0, number) for number in range(1, 27)}
        for subject, _, rule in expected:
            count(raw, subject, {rule: (int(subject[5:]), 0)}, TODAY)
        raw.set(f"quota:1:{{user:1}}:day:{TODAY}:more", "no hash")
        raw.hset("quota:1:{user:1}:day:yesterday", "a:a", 1)
        raw.hset(f"other:1:{{user:1}}:day:{TODAY}", "a:a", 1)
        odd: Any = {"a:a": "--4", "b:a": "x", "c:a": "\u0663", "d:q": "1", "e": "1", ":a": "7"}
        raw.hset(f"quota:1:{{user:99}}:day:{TODAY}", mapping=odd)
        rolled(batch=10)
        assert counted(rows()) == expected

    @pytest.mark.thorough("slow")
    def test_each_unit_of_a_month_is_billed_through_deaths_of_the_roll_up(self, raw: redis.Redis) -> None:
        machine, calls, units = Machine(raw), 0, 0
        first, tomorrow = TODAY.replace(day=1), TODAY + timedelta(days=1)
        wrong: dict[int, Any] = {}

        for step in range(100):
            cost, day = step % 7, max(first, TODAY - timedelta(days=step % 3))
            machine.count(("org:1", "api"), 100, 3, cost, day)
            calls, units = calls + 100, units + 100 + cost
            machine.die(step % 40)
            of_month = bill_of("org:1", first, tomorrow, "month")
            bills = (recent_usage("org:1"), bill_of("org:1", first, tomorrow, "day"), of_month)
            found = [total(rules["api"] for rules in bill.values()) for bill in bills]
            if found != [(calls, calls * 3 // 100, units)] * 3 or list(of_month) != [first]:
                wrong[step] = (found, list(of_month))

        assert wrong == {}
        machine.roll_up()
        raw.flushall()
        assert bill_of("org:1", first, tomorrow, "month") == {first: {"api": (10_000, 300, units)}}

    @pytest.fixture
    def a_replica_lags(self, raw: redis.Redis, settings: Any) -> Rule:
        """A day is rolled up, and then a replica lags; yields the rule that counted it."""
        rule = Rule.make("tiered", {"pro": "9/d"}, key="global", tier=lambda request: "pro", daily=True)
        with freeze(START):
            check(rule, "user:7", 3, tier="pro")
            rolled()
        settings.DATABASE_ROUTERS = [LaggingReplica()]
        return rule

    def test_a_replica_that_lags_leaves_out_no_day(self, a_replica_lags: Rule) -> None:
        with freeze(START):
            assert [count.units for rules in recent_usage("user:7").values() for count in rules.values()] == [3]
            assert bill_of("user:7", date(2025, 11, 21), date(2025, 11, 22))

    def test_a_replica_that_lags_leaves_out_no_line(self, a_replica_lags: Rule) -> None:
        with freeze(START):
            (line,) = usage_lines(date(2025, 11, 21), date(2025, 11, 22))

        assert (line.subject, line.units) == ("user:7", 3)

    def test_a_replica_that_lags_leaves_out_no_subject_of_a_rule(self, a_replica_lags: Rule) -> None:
        assert subjects_of_rules(["tiered"], 1) == [("tiered", "user:7")]

    def test_a_replica_that_lags_changes_no_preview(self, a_replica_lags: Rule) -> None:
        with freeze(START):
            check(a_replica_lags, "user:7", 2, tier="pro")

            assert [done.units for done in preview(current_store())] == [2]

    def test_a_replica_that_lags_leaves_out_no_tier(self, a_replica_lags: Rule) -> None:
        with freeze(START):
            assert last_tiers([a_replica_lags], "user:7") == {"tiered": "pro"}

    @pytest.mark.parametrize("bill", [bill_of, async_to_sync(ausage)], ids=["sync", "async"])
    @pytest.mark.parametrize("when", ["before the store is read", "after it"])
    def test_a_roll_up_between_two_reads_of_a_bill_changes_nothing(
        self, when: str, bill: Any, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        count(raw, "org:1", {"api": (3, 0, 6)}, TODAY)
        store, run = current_store(), current_store().run

        def overtaken(*arguments: Any) -> Any:
            monkeypatch.setattr(store, "run", run)
            replies = [run(*arguments)] if when == "after it" else []
            list(roll_up(store))
            return (replies or [run(*arguments)])[0]

        monkeypatch.setattr(store, "run", overtaken)
        assert bill("org:1", TODAY, TODAY + timedelta(days=1)) == {TODAY: {"api": (3, 0, 9)}}
        assert not keys(raw), "the roll-up ran"

    def test_a_bill_has_the_days_of_its_span_alone(self) -> None:
        for year, month, day in ((2025, 9, 30), (2025, 10, 1), (2025, 10, 31), (2025, 11, 1)):
            DailyCounter.objects.create(subject="org:1", rule="api", day=date(year, month, day), allowed=1, units=day)
        october, november = date(2025, 10, 1), date(2025, 11, 1)
        assert bill_of("org:1", october, november, "month") == {october: {"api": (2, 0, 32)}}
        assert list(bill_of("org:1", october, november)) == [october, date(2025, 10, 31)]

    def test_a_bill_has_what_the_store_counts_on_the_days_of_its_span_alone(self, raw: redis.Redis) -> None:
        count(raw, "org:1", {"api": (3, 0, 6)}, TODAY)

        assert bill_of("org:1", TODAY - timedelta(days=1), TODAY) == {}

    def test_a_bill_may_be_of_a_user(self, raw: redis.Redis) -> None:
        kamala = get_user_model().objects.create_user("kamala")
        count(raw, f"user:{kamala.pk}", {"api": (3, 0, 6)}, TODAY)

        assert bill_of(kamala, TODAY, TODAY + timedelta(days=1)) == {TODAY: {"api": (3, 0, 9)}}

    def test_a_bill_of_days_long_ago_does_without_the_store(self) -> None:
        with no_answer():
            assert bill_of("org:1", date(2020, 1, 1), date(2020, 1, 2)) == {}

    def test_recent_usage_has_the_row_of_a_day_that_has_begun_by_another_clock(self) -> None:
        tomorrow = TODAY + timedelta(days=1)
        DailyCounter.objects.create(subject="org:1", rule="api", day=tomorrow, allowed=1, units=5)

        assert recent_usage("org:1") == {tomorrow: {"api": (1, 0, 5)}}

    @pytest.mark.parametrize(
        "error",
        [
            pytest.param(DatabaseError("the server went away"), id="it does not answer"),
            pytest.param(ImproperlyConfigured("the server went away"), id="there is none"),
        ],
    )
    def test_without_the_database_recent_usage_has_what_the_store_counts(
        self, error: Exception, caplog: pytest.LogCaptureFixture
    ) -> None:
        check("9/h", "user:1", 4)

        with connection.execute_wrapper(Mock(side_effect=error)):
            (rules,) = recent_usage("user:1").values()

        assert rules == {"9/h": (1, 0, 4)}
        assert [(each.name, each.levelname, each.getMessage()) for each in caplog.records] == [
            (
                "django_quota.usage",
                "WARNING",
                "Usage does not include the days in the database, which does not answer: the server went away",
            )
        ]

    def test_a_bill_needs_the_store(self) -> None:
        with no_answer(), pytest.raises(StoreUnavailable):
            bill_of("org:1", TODAY, TODAY + timedelta(days=1))

    def test_a_bill_needs_the_database(self) -> None:
        with pytest.raises(DatabaseError), connection.execute_wrapper(gone):
            bill_of("org:1", TODAY, TODAY + timedelta(days=1))

    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            pytest.param(
                (7, date.min, TODAY),
                "7 is not a subject. Use a string such as 'ip:203.0.113.9', or a user.",
                id="no subject",
            ),
            pytest.param(
                ("a:1", TODAY, TODAY),
                f"until={TODAY!r} is not after since={TODAY!r}. The day `until` is not part of the usage.",
                id="no day",
            ),
            pytest.param(
                ("a:1", MOMENT, TODAY),
                f"since={MOMENT!r} is not a date. Use, for example, since=date(2026, 11, 1).",
                id="a moment",
            ),
            pytest.param(
                ("a:1", date.min, TODAY, "week"),
                "by='week' is not 'day', 'month' or 'period'. Use, for example, by='month'.",
                id="weeks",
            ),
        ],
    )
    def test_a_bill_names_a_wrong_argument(self, arguments: Any, problem: str) -> None:
        with pytest.raises(RuleError) as caught:
            bill_of(*arguments)

        assert str(caught.value) == problem

    def test_a_database_that_takes_two_names_for_one_is_a_clear_error(
        self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As one that ignores case may: then it makes no second row."""
        count(raw, "user:1", {"search": (3, 1, 6)}, TODAY)
        with monkeypatch.context() as patch:
            patch.setattr(QuerySet, "bulk_create", lambda *_, **__: None)
            with pytest.raises(CommandError) as caught:
                rolled()
        assert str(caught.value).endswith(
            "The database confuses the row of 'user:1' and 'search' with another one. Give the columns subject and "
            "rule a collation that compares bytes, such as utf8mb4_bin."
        )
        assert rolled() == {"days": 1, "rows": 1, "allowed": 3, "refused": 1, "units": 9}
        assert rolled() == {}

    @pytest.mark.always("postgresql")
    def test_a_second_roll_up_at_once_overwrites_nothing(
        self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first has set the day aside and read its row; the second adds what is aside before the first saves."""
        DailyCounter.objects.create(subject="user:1", day=TODAY, rule="search")  # what is added locks itself
        count(raw, "user:1", {"search": (5, 0)}, TODAY)
        has_read, may_save = threading.Event(), threading.Event()

        def pause() -> None:
            has_read.set()
            may_save.wait()

        def run() -> None:
            try:
                rolled()
            finally:
                connections.close_all()

        def is_second_waiting() -> bool:
            if connection.vendor == "sqlite":
                return second.ident is not None
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
                return bool(cursor.fetchone()[0])

        before_rows_are_saved(monkeypatch, pause)
        first, second = threading.Thread(target=run), threading.Thread(target=run)
        first.start()
        has_read.wait()
        count(raw, "user:1", {"search": (2, 0)}, TODAY)
        second.start()
        wait_until(lambda: is_second_waiting() or not second.is_alive())
        may_save.set()
        first.join()
        second.join()
        assert rows() == {("user:1", TODAY, "search"): (7, 0, 7)}
        assert keys(raw) == []


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    "backend",
    ["django_redis.cache.RedisCache", "django.core.cache.backends.redis.RedisCache"],
    ids=["django-redis", "django"],
)
class TestTwoSitesWhoseCachesShareARedis:
    @pytest.fixture
    def site(self, backend: str, redis_server: RedisServer, raw: redis.Redis) -> Callable[[str], Any]:
        """Be a site, by its name. `live` has made four hits, `staging` one."""

        def site(name: str) -> Any:
            return override_settings(
                CACHES={"default": {"BACKEND": backend, "LOCATION": redis_server.url, "KEY_PREFIX": name}}
            )

        with site("live"):
            assert [bool(check("3/h", "user:1")) for _ in range(4)] == [True] * 3 + [False]
        with site("staging"):
            assert check("3/h", "user:1").remaining == 2
        return site

    def test_share_no_limits(self, site: Callable[[str], Any]) -> None:
        with site("staging"):
            assert check("3/h", "user:1").remaining == 1

    @pytest.mark.parametrize(("name", "of_site"), [("staging", (1, 0, 1)), ("live", (3, 1, 3))])
    def test_share_no_usage(self, name: str, of_site: tuple[int, ...], site: Callable[[str], Any]) -> None:
        with site(name):
            assert rolled()["days"] == 1
            assert list(counted(rows()).values()) == [of_site]

    def test_share_no_keys(self, site: Callable[[str], Any], raw: redis.Redis) -> None:
        assert {key.partition(b":1:")[0] for key in raw.scan_iter()} == {b"live:quota", b"staging:quota"}


@pytest.mark.usefixtures("redis_cache", "database")
class TestErrors:
    def test_of_the_store_are_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(f"{quota_rollup.__name__}.roll_up", Mock(side_effect=StoreUnavailable("gone")))

        with pytest.raises(CommandError, match="gone"):
            call_command("quota_rollup")

    @pytest.mark.parametrize("options", [{"batch": 0}, {"every": float("nan")}], ids=["--batch", "--every"])
    def test_of_an_option_show_a_right_value(self, options: dict[str, Any]) -> None:
        with pytest.raises(CommandError, match="for example"):
            call_command("quota_rollup", **options)

    def test_of_a_store_in_memory_name_the_setting(self) -> None:
        with override_settings(QUOTA={"STORE": "memory"}), pytest.raises(CommandError, match="STORE"):
            call_command("quota_rollup")


@pytest.mark.parametrize("batch", [0, 5_001])
def test_a_batch_outside_of_its_bounds_is_an_error(batch: int) -> None:
    with pytest.raises(CommandError, match=f"--batch {batch}: use 1 to 5,000, for example 500."):
        call_command("quota_rollup", batch=batch)


@pytest.mark.usefixtures("redis_cache", "database")
@pytest.mark.parametrize("batch", ["1", "5000"])
def test_a_batch_may_be_as_small_or_large_as_its_bounds(batch: str) -> None:
    assert said("quota_rollup", "--batch", batch, "--json")["days"] == 0


@pytest.mark.usefixtures("redis_cache", "database")
def test_a_batch_has_five_hundred_days_unless_another_number_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_rollup, "roll_up", asked := Mock(return_value=()))

    said("quota_rollup")

    assert asked.call_args.args[1:3] == (500, "default")


@pytest.mark.usefixtures("redis_cache", "database", "short_pauses")
@pytest.mark.parametrize(("walks", "step"), [(roll_up, "move"), (preview, "_counted_now")], ids=["moved", "previewed"])
def test_a_server_of_several_that_does_not_answer_is_an_error_at_the_end(
    walks: Any, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check("5/m", "user:1", name="search", daily=True)
    walk = Walk(current_store())
    monkeypatch.setattr(walk, "servers", [None, None])
    monkeypatch.setattr("django_quota.features.usage.rollup.Walk", lambda _: walk)
    monkeypatch.setattr(f"django_quota.features.usage.rollup.{step}", Mock(side_effect=StoreUnavailable("it is gone")))
    found = walks(current_store())

    assert next(found).days == 0
    with pytest.raises(StoreUnavailable, match="it is gone"):
        next(found)


@pytest.mark.usefixtures("redis_cache", "database")
def test_the_counts_arrive_in_the_database_that_is_named(sqlite: dict[str, Any], tmp_path: Path) -> None:
    check("5/m", "user:1", 2, name="search", daily=True)

    with another_database("usage", sqlite_database(Path(shutil.copy(sqlite["NAME"], tmp_path / "usage.sqlite3")))):
        call_command("quota_rollup", "--database", "usage", stdout=StringIO())

        assert list(DailyCounter.objects.using("usage").values_list("subject", "units")) == [("user:1", 2)]
    assert not DailyCounter.objects.exists()


@pytest.mark.usefixtures("redis_cache", "database")
def test_a_dry_run_leaves_out_what_the_database_that_is_named_has(
    sqlite: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check("5/m", "user:1", 2, name="search", daily=True)
    monkeypatch.setattr(rollup, "_drop", Mock(side_effect=Died))

    with another_database("usage", sqlite_database(Path(shutil.copy(sqlite["NAME"], tmp_path / "usage.sqlite3")))):
        with suppress(Died):
            said("quota_rollup", "--database", "usage")

        assert said("quota_rollup", "--dry-run", "--json", "--database", "usage")["days"] == 0
    assert said("quota_rollup", "--dry-run", "--json")["days"] == 1


def test_a_database_that_the_settings_do_not_name_is_an_error() -> None:
    with pytest.raises(CommandError, match="--database: invalid choice: 'nowhere'"):
        call_command("quota_rollup", "--database", "nowhere")


@pytest.mark.usefixtures("redis_cache", "database")
def test_without_an_answer_nothing_is_said_to_be_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{quota_rollup.__name__}.roll_up", Mock(side_effect=StoreUnavailable("gone")))
    printed = StringIO()

    with pytest.raises(CommandError, match="gone"):
        call_command("quota_rollup", stdout=printed)

    assert printed.getvalue() == ""


only_one_redis = pytest.mark.parametrize("redis_server", server_programs()[:1], indirect=True, ids=["redis"])


@pytest.fixture
def manage(
    redis_server: RedisServer, raw: redis.Redis, database: dict[str, Any], tmp_path: Path, settings: Any
) -> Iterator[Manage]:
    settings.CACHES = caches(redis_server)
    with managing(tmp_path, settings.CACHES, {"default": database}) as started:
        yield started


@pytest.mark.thorough("processes")
@only_one_redis
def test_totals_are_exact_if_roll_ups_are_killed_at_random(manage: Manage, raw: redis.Redis) -> None:
    """Three at once, over and over; each is killed in the middle of its work while checks are counted."""

    def go_on(checks: int) -> None:
        """Count random checks, and take some earlier ones back."""
        for _ in range(checks):
            place = random.choice([f"user:{number}" for number in range(40)]), random.choice(["search", "r:\u2603"])
            machine.count(place, 1, 2, 4, random.choice([TODAY, TODAY - timedelta(days=1)]))
            if random.random() < 0.2:
                subject, day, rule = random.choice([place for place, total in machine.expected.items() if total[0] > 0])
                machine.count((subject, rule), -1, -2, -4, day)

    machine = Machine(raw)
    go_on(200)
    words = ("quota_rollup", "--json", "--batch", "5", "--every", "0.001")
    running = [manage.start(*words) for _ in range(3)]

    for killed in range(9):
        victim = running.pop(0)
        assert cast("Any", victim.stdout).readline()  # it is at work
        go_on(random.randrange(60))
        victim.kill()
        victim.wait()
        running += [manage.start(*words)] if killed < 6 else []

    machine.roll_up()
    assert rolled() == {}


@pytest.mark.thorough("processes")
def test_totals_are_exact_if_a_redis_that_keeps_a_file_is_killed_at_each_step(
    database: Any, tmp_path: Path, settings: Any
) -> None:
    server = Server(server_programs()[0], tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}}
    deaths = 0

    def die() -> None:
        nonlocal deaths
        deaths += 1
        server.process.kill()
        server.start()

    with running(server):
        machine = Machine(server.client)
        for step in range(100):
            machine.count(("user:1", "search"), 3, 1, 4)
            machine.count(("user:2", "login"), 1, 0, 0)
            with suppress(StoreUnavailable), dying(step, die):
                list(roll_up(current_store()))
            if deaths <= step:
                break
        assert deaths > 5
        machine.roll_up()


@pytest.mark.thorough("processes")
@only_one_redis
def test_it_waits_for_a_redis_that_stops_meanwhile(manage: Manage, raw: redis.Redis, tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    process = manage.start("quota_rollup", "--json", "--every", "0.01", stderr=errors)
    assert process.stdout is not None
    process.stdout.readline()
    raw.config_set("maxclients", "1")
    raw.client_kill_filter(_type="normal", skipme=True)
    wait_until(lambda: "Trying again in 0.01 s." in errors.read_text())
    raw.config_set("maxclients", "10000")
    count(raw, "user:1", {"search": (1, 0)}, TODAY)
    wait_until(rows)
    manage.stop(process, signal.SIGTERM)


class TestDryRun:
    @pytest.fixture(autouse=True)
    def three_checks(self, redis_cache: None, database: Any) -> None:
        for _ in range(3):
            check("2/h", "user:1", name="search")

    def test_it_says_what_would_be_moved(self) -> None:
        report = said("quota_rollup", "--dry-run", "--json")

        assert report == {
            "days": 1,
            "rows": 1,
            "allowed": 2,
            "refused": 1,
            "units": 2,
            "foreign": [],
            "stopped": False,
            "dry_run": True,
        }

    def test_its_line_says_would(self) -> None:
        assert said("quota_rollup", "--dry-run") == (
            "Would move 1 day of subjects: 2 allowed and 1 refused checks, 2 units, to 1 row.\n"
        )

    def test_it_moves_nothing(self) -> None:
        said("quota_rollup", "--dry-run")

        assert rows() == {}
        assert said("quota_rollup", "--json")["days"] == 1

    @pytest.mark.parametrize("step", [3, 6, 12, 15])
    def test_no_count_is_added_twice_after_a_move_was_killed(self, step: int) -> None:
        with suppress(Died), dying(step):
            said("quota_rollup")

        would, done = (said("quota_rollup", *words, "--json") for words in (["--dry-run"], []))

        assert [would[name] for name in ("allowed", "refused", "units")] == [
            done[name] for name in ("allowed", "refused", "units")
        ]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda raw, key: raw.set(key + ASIDE, "text"), id="text aside"),
        pytest.param(lambda raw, key: raw.hset(key + ASIDE, "x:a", 1), id="counts aside without a token"),
        pytest.param(lambda raw, key: raw.hset(key + ASIDE, "#", "soon"), id="counts aside with a wrong token"),
        pytest.param(lambda raw, key: raw.set(key, "text"), id="text in place of the counts"),
    ],
)
class TestForeignData:
    """Two users were counted today. Another program has written over what was counted of the first one."""

    @pytest.fixture(autouse=True)
    def key(self, spoil: Callable[..., Any], redis_cache: None, database: Any, raw: redis.Redis) -> str:
        """The key of the first user's day."""
        key, _ = (count(raw, user, {"search": (3, 1, 5)}, TODAY) for user in ("user:1", "user:2"))
        spoil(raw, key)
        return key

    def test_the_other_user_is_moved(self) -> None:
        said("quota_rollup")

        assert counted(rows()) == {("user:2", TODAY, "search"): (3, 1, 8)}

    def test_it_stays_as_it_is(self, key: str, raw: redis.Redis) -> None:
        before = [raw.dump(each) for each in (key, key + ASIDE)]

        said("quota_rollup")

        assert [raw.dump(each) for each in (key, key + ASIDE)] == before

    def test_a_note_has_its_key(self, key: str) -> None:
        _, note = said("quota_rollup").splitlines()

        assert note == (f"Note: left 1 day with data of another program or version, such as {key}, or a key beside it.")

    def test_a_bill_with_its_day_does_not_leave_it_out(self, key: str) -> None:
        with pytest.raises(StoreUnavailable) as caught:
            list(usage_lines(TODAY, TODAY + timedelta(days=1), "day"))

        assert f"{key} holds data of another program or version" in str(caught.value)
        assert counted(rows()) == {("user:2", TODAY, "search"): (3, 1, 8)}

    def test_a_bill_of_days_before_it_has_its_lines(self) -> None:
        yesterday = TODAY - timedelta(days=1)
        DailyCounter.objects.create(subject="user:1", rule="api", day=yesterday, allowed=1, units=5)

        (line,) = usage_lines(yesterday, TODAY, "day")

        assert line.units == 5


def test_a_foreign_day_does_not_keep_what_was_set_aside_of_it(
    redis_cache: None, database: Any, raw: redis.Redis
) -> None:
    key = count(raw, "user:1", {"search": (3, 1, 5)}, TODAY)
    current_store().run(SetAside(key, key + ASIDE, 0), None)
    raw.set(key, "text")

    said("quota_rollup")

    assert counted(rows()) == {("user:1", TODAY, "search"): (3, 1, 8)}
    assert raw.get(key) == b"text"


@pytest.mark.usefixtures("redis_cache", "database")
class TestReport:
    """What a roll-up says of two users, each of whom made three checks and was refused once."""

    @pytest.fixture(autouse=True)
    def counted(self, redis_cache: None, database: Any, at_one_time: None) -> None:
        for user in ("user:1", "user:2"):
            for _ in range(3):
                check("2/h", user, name="search")

    @pytest.fixture
    def stopped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A signal has come before the first batch."""
        stop = threading.Event()
        stop.set()
        monkeypatch.setattr("django_quota.management.console.stopping", lambda: nullcontext(stop))

    def test_its_line_has_each_number(self) -> None:
        assert said("quota_rollup") == (
            "Moved 2 days of subjects: 4 allowed and 2 refused checks, 4 units, to 2 rows.\n"
        )

    def test_a_day_has_a_row_for_each_rule_and_units_for_each_cost(self) -> None:
        check("9000/h", "user:1", 2_000, name="mail")

        assert said("quota_rollup") == (
            "Moved 2 days of subjects: 5 allowed and 2 refused checks, 2,004 units, to 3 rows.\n"
        )

    def test_its_line_groups_the_digits_of_each_number(self, monkeypatch: pytest.MonkeyPatch) -> None:
        moved = rollup.RollupResult(days=1_001, rows=1_002, allowed=1_003, refused=1_004, units=1_005)
        monkeypatch.setattr(f"{quota_rollup.__name__}.roll_up", Mock(return_value=[moved]))

        assert said("quota_rollup") == (
            "Moved 1,001 days of subjects: 1,003 allowed and 1,004 refused checks, 1,005 units, to 1,002 rows.\n"
        )

    @pytest.mark.usefixtures("stopped")
    def test_its_line_says_that_it_was_stopped(self) -> None:
        assert said("quota_rollup", "--batch", "1") == (
            "Stopped before the end. Moved 1 day of subjects: 2 allowed and 1 refused checks, 2 units, to 1 row.\n"
        )

    @pytest.mark.usefixtures("stopped")
    def test_json_says_that_it_was_stopped(self) -> None:
        assert said("quota_rollup", "--batch", "1", "--json")["stopped"] is True

    @pytest.mark.usefixtures("stopped")
    def test_a_stopped_one_leaves_the_rest_for_the_next(self) -> None:
        said("quota_rollup", "--batch", "1")

        assert len(rows()) == 1

    def test_on_a_terminal_it_counts_the_days_that_are_moved(self) -> None:
        terminal = Terminal()

        call_command("quota_rollup", stdout=StringIO(), stderr=terminal)

        assert terminal.getvalue().endswith("\rRolling up 2\n")
