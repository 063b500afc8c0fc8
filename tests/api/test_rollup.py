"""The roll-up: exact, however often it is run, stopped or killed, by however many at once."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, connections
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from django_quota import models
from django_quota.models import DailyCounter
from django_quota.services import overrides, rollup
from django_quota.services.rollup import RollupResult, RowKey, copy_counts, roll_up, settle
from django_quota.services.usage import Count, find
from django_quota.testing import RedisServer, server_programs
from tests.support.commands import Manage, managing, wait_until
from tests.support.days import count
from tests.support.steps import SECOND
from tests.support.stores import caches, redis_store

TODAY = datetime.now(UTC).date()
"""Not the day before yesterday, whenever the tests end."""
OLD = TODAY - timedelta(days=4)
HOUR = 3_600 * SECOND
UPDATES = ("INSERT", "UPDATE", "DELETE")


def rolled(batch: int = 500) -> RollupResult:
    """Roll up all there is; return what was done."""
    done = RollupResult()
    for batch_done in roll_up(redis_store(), batch):
        done.add(batch_done)
    return done


def again_and_again() -> None:
    """Roll up until something fails."""
    while True:
        rolled()


def rows() -> dict[RowKey, Count]:
    return {
        RowKey(row.subject, row.day, row.rule): Count(row.allowed, row.refused) for row in DailyCounter.objects.all()
    }


def keys() -> list[str]:
    return [key for batch in find(redis_store(), "quota", 500) for key in batch]


# --- the sum ----------------------------------------------------------------------------------------------------------

lives = st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), min_size=1), max_size=5)


@given(lives)
def test_every_check_that_was_seen_counts_once(lives: list[list[tuple[int, int, bool]]]) -> None:
    """Redis counts, is rolled up now and then, and loses its memory between two lives."""
    row, expected = DailyCounter(), [0, 0]
    for incarnation, life in enumerate(lives, start=1):
        allowed = refused = 0
        seen = (0, 0)
        for more_allowed, more_refused, is_carried in life:
            allowed, refused = allowed + more_allowed, refused + more_refused
            if is_carried:
                settle(row, incarnation, Count(allowed, refused))
                assert settle(row, incarnation, Count(allowed, refused)) == Count()
                seen = (allowed, refused)
        expected = [expected[0] + seen[0], expected[1] + seen[1]]
    assert [row.allowed, row.refused] == expected


def test_a_redis_that_lost_a_part_adds_nothing_twice() -> None:
    row = DailyCounter()
    settle(row, 5, Count(10, 10))
    assert settle(row, 5, Count(7, 12)) == Count(0, 2)
    assert settle(row, 5, Count(9, 12)) == Count(2, 0)
    assert (row.allowed, row.refused) == (12, 12)


def test_a_restored_snapshot_adds_nothing_twice() -> None:
    row, older, newer = DailyCounter(), 5 * HOUR, 9 * HOUR
    settle(row, older, Count(10, 0))
    settle(row, newer, Count(3, 0))
    assert settle(row, older, Count(8, 0)) == Count()
    assert settle(row, older, Count(9, 0)) == Count(1, 0)
    assert row.allowed == 14


def test_counts_of_a_new_redis_with_a_slow_clock_are_copied() -> None:
    row = DailyCounter()
    settle(row, 9 * HOUR, Count(100, 0))
    assert settle(row, 9 * HOUR - 2 * SECOND, Count(100, 3)) == Count(100, 3)
    assert settle(row, 9 * HOUR - 2 * SECOND, Count(101, 3)) == Count(1, 0)
    assert (row.allowed, row.refused) == (201, 3)


# --- Redis and the database -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("redis_cache", "database")
class TestCarrying:
    """What Redis has counted stands in the rows."""

    def test_counts_are_copied_and_added_to(self, raw: redis.Redis) -> None:
        count(raw, "user:1", {"search": (3, 1), "login": (0, 2)}, TODAY)
        assert rolled() == RollupResult(days=1, rows=2, allowed=3, refused=3)
        count(raw, "user:1", {"search": (2, 0)}, TODAY)
        count(raw, "ip:203.0.113.9", {"search": (1, 0)}, OLD)
        assert rolled() == RollupResult(days=2, rows=2, allowed=3, refused=0, dropped=1)
        assert rows() == {
            RowKey("user:1", TODAY, "search"): Count(5, 1),
            RowKey("user:1", TODAY, "login"): Count(0, 2),
            RowKey("ip:203.0.113.9", OLD, "search"): Count(1, 0),
        }

    def test_running_it_again_writes_nothing(self, raw: redis.Redis) -> None:
        for number in range(7):
            count(raw, f"user:{number}", {"search": (1, 1)}, TODAY)
        rolled()
        with CaptureQueriesContext(connection) as queries:
            assert rolled() == RollupResult(days=7)
        assert not [query["sql"] for query in queries if query["sql"].startswith(UPDATES)]

    def test_counts_of_an_emptied_redis_are_added_to_the_rows(self, raw: redis.Redis) -> None:
        for _ in range(3):
            count(raw, "user:1", {"search": (2, 1)}, TODAY)
            rolled()
            raw.flushall()
            rolled()
        count(raw, "user:1", {"search": (1, 0)}, TODAY)
        rolled()
        assert rows() == {RowKey("user:1", TODAY, "search"): Count(7, 3)}

    def test_names_that_no_database_stores_stay_different(self, raw: redis.Redis) -> None:
        subjects = ["user:" + "x" * 300, "user:" + "x" * 301, "key.f:\ud800", "~", "\u2603", "a\0b"]
        for subject in subjects:
            count(raw, subject, {"r" * 300: (1, 0), "\0": (2, 0), "plain:name": (3, 0)}, TODAY)
        assert rolled() == RollupResult(days=6, rows=18, allowed=36)
        assert rolled() == RollupResult(days=6)
        assert len({place.subject for place in rows()}) == len(subjects)

    def test_batches_are_transactions(self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(20):
            count(raw, f"user:{number}", {"search": (1, 0)}, TODAY)
        known = keys()
        copy_counts(redis_store(), known[:5], "default")
        save = rollup._save

        def fail(*arguments: Any) -> None:
            save(*arguments)
            raise DatabaseError("the server went away before the commit")

        with monkeypatch.context() as patch:
            patch.setattr(rollup, "_save", fail)
            with pytest.raises(DatabaseError):
                copy_counts(redis_store(), known[5:], "default")
        assert sum(total.allowed for total in rows().values()) == len(rows()) == 5
        rolled(batch=3)
        assert sum(total.allowed for total in rows().values()) == len(rows()) == 20

    @pytest.mark.parametrize("statement", range(6))
    def test_after_any_failed_statement_the_next_roll_up_is_exact(self, raw: redis.Redis, statement: int) -> None:
        count(raw, "user:1", {"search": (3, 1)}, TODAY)
        rolled()
        count(raw, "user:1", {"search": (2, 0), "login": (0, 1)}, TODAY)
        left = statement

        def fail(execute: Any, *arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise DatabaseError("the server went away")
            return execute(*arguments)

        with connection.execute_wrapper(fail), pytest.raises(DatabaseError):
            again_and_again()
        connection.close()
        rolled()
        assert rows() == {
            RowKey("user:1", TODAY, "search"): Count(5, 1),
            RowKey("user:1", TODAY, "login"): Count(0, 1),
        }

    def test_counts_made_while_rows_are_locked_are_read_under_the_lock(
        self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The count that is carried is read behind the lock: what was read before may have been carried meanwhile."""
        count(raw, "user:1", {"search": (5, 0)}, TODAY)
        begin_writing = models.begin_writing

        def overtaken(using: str) -> None:
            monkeypatch.setattr(rollup, "begin_writing", begin_writing)
            count(raw, "user:1", {"search": (2, 0)}, TODAY)
            begin_writing(using)

        monkeypatch.setattr(rollup, "begin_writing", overtaken)
        assert rolled().allowed == 7
        assert rolled() == RollupResult(days=1)

    def test_a_second_roll_up_waits_and_overwrites_nothing(
        self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One has read both count and row; another one would carry more, and drop the day, before the first saves."""
        DailyCounter.objects.create(subject="user:1", day=OLD, rule="search")  # what is added locks itself
        count(raw, "user:1", {"search": (5, 0)}, OLD)
        save, begin_writing = rollup._save, models.begin_writing
        has_read, may_save, is_second_there = threading.Event(), threading.Event(), threading.Event()

        def pause(*arguments: Any) -> None:
            monkeypatch.setattr(rollup, "_save", save)
            has_read.set()
            may_save.wait()
            save(*arguments)

        def run() -> None:
            try:
                rolled()
            finally:
                connections.close_all()

        def arrive(using: str) -> None:
            is_second_there.set()
            begin_writing(using)

        def is_second_waiting() -> bool:
            if connection.vendor == "sqlite":
                return is_second_there.is_set()
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
                return bool(cursor.fetchone()[0])

        monkeypatch.setattr(rollup, "_save", pause)
        first, second = threading.Thread(target=run), threading.Thread(target=run)
        first.start()
        has_read.wait()
        count(raw, "user:1", {"search": (2, 0)}, OLD)
        monkeypatch.setattr(rollup, "begin_writing", arrive)
        second.start()
        wait_until(lambda: is_second_waiting() or not second.is_alive())
        may_save.set()
        first.join()
        second.join()
        assert rows() == {RowKey("user:1", OLD, "search"): Count(7, 0)}
        assert keys() == []

    @pytest.mark.always("postgresql")
    def test_three_roll_ups_at_once_count_nothing_twice(self, raw: redis.Redis) -> None:
        for number in range(30):
            count(raw, f"user:{number}", {"search": (3, 1), "login": (1, 0)}, TODAY)
        start = threading.Barrier(3)
        failed: list[BaseException] = []

        def run() -> None:
            start.wait()
            try:
                for _ in range(5):
                    rolled(batch=7)
            except BaseException as error:  # noqa: BLE001 — looked at below
                failed.append(error)
            finally:
                connections.close_all()

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        expected = Counter(dict.fromkeys(range(30), 3))
        for _ in range(100):
            number = random.randrange(30)
            expected[number] += 1
            count(raw, f"user:{number}", {"search": (1, 0)}, TODAY)
        for thread in threads:
            thread.join()
        assert not failed
        rolled()
        assert {place.subject: total for place, total in rows().items() if place.rule == "search"} == {
            f"user:{number}": Count(allowed, 1) for number, allowed in expected.items()
        }


@pytest.mark.usefixtures("redis_cache", "database")
class TestDropping:
    """A finished day leaves Redis when its rows hold all of it, and not before."""

    def test_unfinished_days_stay(self, raw: redis.Redis) -> None:
        now = datetime.now(UTC).date()  # it may be another day by now than when the tests began
        for back in range(4):
            count(raw, "user:1", {"search": (1, 0)}, now - timedelta(days=back))
        dropped = rolled().dropped
        assert dropped in (1, 2)  # by whether UTC is a day ahead of the zone of the settings
        assert raw.exists(count(raw, "user:1", {"search": (1, 0)}, now))
        assert len(keys()) == 4 - dropped

    def test_counts_made_before_the_drop_are_copied_by_the_next(
        self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        count(raw, "user:1", {"search": (1, 0)}, OLD)
        run_all = overrides.run_all

        def overtaken(*arguments: Any) -> Any:
            monkeypatch.setattr(rollup, "run_all", run_all)
            count(raw, "user:1", {"search": (1, 0)}, OLD)
            return run_all(*arguments)

        monkeypatch.setattr(rollup, "run_all", overtaken)
        assert rolled() == RollupResult(days=1, rows=1, allowed=1)
        assert rolled() == RollupResult(days=1, rows=1, allowed=1, dropped=1)
        assert rows() == {RowKey("user:1", OLD, "search"): Count(2, 0)}

    def test_uncopied_counts_are_not_dropped(self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        key = count(raw, "user:1", {"search": (1, 0)}, OLD)
        monkeypatch.setattr(rollup, "copy_counts", lambda *_: RollupResult())
        assert rolled().dropped == 0
        assert raw.exists(key)


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("redis_cache", "database")
class TestTheCommand:
    """`quota_rollup` in this process."""

    def test_it_says_what_it_did(self, raw: redis.Redis) -> None:
        count(raw, "user:1", {"search": (3, 1)}, OLD)
        out = StringIO()
        call_command("quota_rollup", json=True, stdout=out)
        assert json.loads(out.getvalue()) == {
            "days": 1, "rows": 1, "allowed": 3, "refused": 1, "dropped": 1, "stopped": False,
            "published": 0, "republished": 0, "waiting": 0,
        }  # fmt: skip
        out = StringIO()
        call_command("quota_rollup", stdout=out)
        assert out.getvalue().startswith("Looked at 0 days of subjects; added 0 allowed")

    @pytest.mark.parametrize("options", [{"batch": 0}, {"batch": 10**6}, {"every": 0.0}, {"every": float("nan")}])
    def test_a_wrong_option_is_an_error(self, options: Mapping[str, Any]) -> None:
        with pytest.raises(CommandError, match="for example"):
            call_command("quota_rollup", **options)

    def test_an_unavailable_redis_is_an_error(self, settings: Any) -> None:
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "unix:///nonexistent/redis.sock"}}
        with pytest.raises(CommandError, match="unavailable"):
            call_command("quota_rollup")

    def test_the_memory_store_is_an_error(self, settings: Any) -> None:
        settings.QUOTA = {"STORE": "memory"}
        with pytest.raises(CommandError, match="STORE"):
            call_command("quota_rollup")


# --- real processes ---------------------------------------------------------------------------------------------------

only_one_redis = pytest.mark.parametrize("redis_server", server_programs()[:1], indirect=True, ids=["redis"])


@pytest.fixture
def manage(
    redis_server: RedisServer, raw: redis.Redis, database: dict[str, Any], tmp_path: Path, settings: Any
) -> Iterator[Manage]:
    """Start `manage.py` in processes of their own, on the Redis and the database of the test."""
    settings.CACHES = caches(redis_server)
    with managing(tmp_path, settings.CACHES, {"default": database}) as started:
        yield started


class Traffic:
    """Counts random checks in Redis, and remembers what the rows must come to."""

    def __init__(self, raw: redis.Redis) -> None:
        self.raw = raw
        self.random = random.Random(20_261_121)
        self.expected: Counter[RowKey] = Counter()

    def go_on(self, checks: int) -> None:
        for _ in range(checks):
            subject = f"user:{self.random.randrange(40)}"
            rule = self.random.choice(["search", "login", "r:\u2603"])
            day = self.random.choice([TODAY, TODAY - timedelta(days=1)])
            count(self.raw, subject, {rule: (1, 2)}, day)
            self.expected[RowKey(subject, day, rule)] += 1

    def assert_carried(self) -> None:
        assert rows() == {place: Count(checks, 2 * checks) for place, checks in self.expected.items()}


@pytest.mark.thorough("processes")
@only_one_redis
def test_totals_are_exact_if_roll_ups_are_killed_at_random(manage: Manage, raw: redis.Redis) -> None:
    """Three at once, over and over; each is killed in the middle of its work while checks are counted."""
    traffic = Traffic(raw)
    traffic.go_on(200)
    words = ("quota_rollup", "--json", "--batch", "5", "--every", "0.001")
    running = [manage.start(*words) for _ in range(3)]
    for killed in range(9):
        victim = running.pop(0)
        assert victim.stdout is not None
        assert victim.stdout.readline()  # it is at work
        traffic.go_on(traffic.random.randrange(60))
        victim.kill()
        victim.wait()
        if killed % 3 == 2:
            rolled()
            raw.flushall()
        if killed < 6:
            running.append(manage.start(*words))
    assert not running
    traffic.go_on(20)
    rolled()
    traffic.assert_carried()
    assert rolled().rows == 0


@pytest.mark.thorough("processes")
@only_one_redis
def test_three_commands_at_once_are_exact_and_end_at_a_signal(manage: Manage, raw: redis.Redis) -> None:
    traffic = Traffic(raw)
    running = [manage.start("quota_rollup", "--json", "--batch", "7", "--every", "0.001") for _ in range(3)]
    for each in running:
        assert each.stdout is not None
        each.stdout.readline()
    traffic.go_on(300)
    wait_until(lambda: sum(total.allowed for total in rows().values()) == 300)
    carried = 0
    for each, number in zip(running, (signal.SIGTERM, signal.SIGINT, signal.SIGTERM), strict=True):
        carried += sum(json.loads(line)["allowed"] for line in manage.stop(each, number).splitlines())
    assert carried <= 300
    traffic.assert_carried()


@only_one_redis
def test_it_waits_for_a_redis_that_stops_meanwhile(
    manage: Manage, redis_server: RedisServer, raw: redis.Redis, tmp_path: Path
) -> None:
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
