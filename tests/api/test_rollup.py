"""The roll-up: exact, however often it is run, stopped or killed, by however many at once."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, connections
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from django_quota.models import DailyCounter
from django_quota.testing import RedisServer, server_programs
from tests.support.commands import Manage, managing, wait_until
from tests.support.days import (
    before_days_are_dropped,
    before_rows_are_locked,
    before_rows_are_saved,
    count,
    when_rows_are_saved,
)
from tests.support.inputs import inputs
from tests.support.steps import SECOND
from tests.support.stores import caches

TODAY = datetime.now(UTC).date()
"""Not the day before yesterday, whenever the tests end."""
OLD = TODAY - timedelta(days=4)
HOUR = 3_600 * SECOND
UPDATES = ("INSERT", "UPDATE", "DELETE")


def rolled(batch: int = 500) -> dict[str, int]:
    """Roll up all there is; return what was done, without what was not."""
    out = StringIO()
    call_command("quota_rollup", json=True, batch=batch, stdout=out)
    return {what: number for what, number in json.loads(out.getvalue()).items() if number}


def done(**numbers: int) -> dict[str, int]:
    return numbers


def again_and_again() -> None:
    """Roll up until something fails."""
    while True:
        rolled()


def rows() -> dict[tuple[str, date, str], tuple[int, int]]:
    """Return allowed and refused by subject, day and rule."""
    return {(row.subject, row.day, row.rule): (row.allowed, row.refused) for row in DailyCounter.objects.all()}


def keys(raw: redis.Redis) -> list[Any]:
    return list(raw.scan_iter("quota:1:{*}:day:*"))


# --- Redis and the database -------------------------------------------------------------------------------------------


def lies(raw: redis.Redis, opened: int, allowed: int, refused: int) -> None:
    """Let Redis have these counts of a subject, under a key that was made at a moment."""
    key = count(raw, "user:1", {}, TODAY)
    raw.hset(key, mapping={"#": opened, "search:a": allowed, "search:r": refused})


lives = st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), min_size=1), max_size=5)
names = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=40)


@pytest.mark.usefixtures("redis_cache", "database")
class TestTheSum:
    """What was seen of Redis counts once, whatever Redis loses."""

    @inputs(40, [HealthCheck.function_scoped_fixture])
    @given(lives)
    def test_every_check_that_was_seen_counts_once(self, raw: redis.Redis, lives: list[Any]) -> None:
        """Redis counts, is rolled up now and then, and loses its memory between two lives."""
        DailyCounter.objects.all().delete()
        expected = [0, 0]
        for opened, life in enumerate(lives, start=1):
            raw.flushall()
            allowed = refused = 0
            seen = (0, 0)
            for more_allowed, more_refused, is_carried in life:
                allowed, refused = allowed + more_allowed, refused + more_refused
                lies(raw, opened, allowed, refused)
                if is_carried:
                    rolled()
                    assert not {"allowed", "refused"} & rolled().keys()
                    seen = (allowed, refused)
            expected = [expected[0] + seen[0], expected[1] + seen[1]]
        assert [sum(total[kind] for total in rows().values()) for kind in (0, 1)] == expected

    @pytest.mark.parametrize(
        ("seen", "added"),
        [
            ([(5 * HOUR, 10, 10), (5 * HOUR, 7, 12), (5 * HOUR, 9, 12)], [(10, 10), (0, 2), (2, 0)]),
            (
                [(5 * HOUR, 10, 0), (9 * HOUR, 3, 0), (5 * HOUR, 8, 0), (5 * HOUR, 9, 0)],
                [(10, 0), (3, 0), (0, 0), (1, 0)],
            ),
            (
                [(9 * HOUR, 100, 0), (9 * HOUR - 2 * SECOND, 100, 3), (9 * HOUR - 2 * SECOND, 101, 3)],
                [(100, 0), (100, 3), (1, 0)],
            ),
        ],
        ids=["a Redis that lost a part", "a restored snapshot", "a new Redis with a slow clock"],
    )
    def test_nothing_is_added_twice(self, raw: redis.Redis, seen: list[Any], added: list[Any]) -> None:
        for found, expected in zip(seen, added, strict=True):
            lies(raw, *found)
            report = rolled()
            assert (report.get("allowed", 0), report.get("refused", 0)) == expected

    @inputs(40, [HealthCheck.function_scoped_fixture])
    @example({"user:" + "x" * 300, "user:" + "x" * 301, "key.f:\ud800", "~", "\u2603 %41", "a\0b", "r" * 300})
    @given(st.sets(names, min_size=1, max_size=8))
    def test_each_name_has_a_row_of_its_own_and_stays_as_it_is_where_it_can(
        self, raw: redis.Redis, names: set[str]
    ) -> None:
        raw.flushall()
        DailyCounter.objects.all().delete()
        for name in names:
            count(raw, name, {name: (1, 0)}, TODAY)
        assert rolled() == done(days=len(names), rows=len(names), allowed=len(names))
        assert rolled() == done(days=len(names))
        plain = {name for name in names if len(name) <= 16 and name[0] != "~" and "\0" not in name and is_text(name)}
        assert plain <= {subject for subject, _, _ in rows()}
        assert plain <= {rule for _, _, rule in rows()}

    def test_only_keys_and_fields_of_counts_are_read(self, raw: redis.Redis) -> None:
        for number in range(57):
            count(raw, f"user:{number}", {"a": (number, 1), "b:c": (0, 2)}, TODAY)
        raw.set(f"quota:1:{{user:1}}:day:{TODAY}:more", "no hash")
        raw.hset("quota:1:{user:1}:day:yesterday", "a:a", 1)
        raw.hset(f"other:1:{{user:1}}:day:{TODAY}", "a:a", 1)
        odd: Any = {"a:a": "-4", "b:a": "x", "c:a": "\u0663", "d:q": "1", "e": "1", "#": "when"}
        raw.hset(f"quota:1:{{user:99}}:day:{TODAY}", mapping=odd)
        rolled(batch=10)
        assert {place: total for place, total in rows().items() if any(total)} == {
            (f"user:{number}", TODAY, rule): total
            for number in range(57)
            for rule, total in (("a", (number, 1)), ("b:c", (0, 2)))
        }


def is_text(name: str) -> bool:
    return not any("\ud800" <= sign <= "\udfff" for sign in name)


@pytest.mark.usefixtures("redis_cache", "database")
class TestCarrying:
    """What Redis has counted stands in the rows."""

    def test_counts_are_copied_and_added_to(self, raw: redis.Redis) -> None:
        count(raw, "user:1", {"search": (3, 1), "login": (0, 2)}, TODAY)
        assert rolled() == done(days=1, rows=2, allowed=3, refused=3)
        count(raw, "user:1", {"search": (2, 0)}, TODAY)
        count(raw, "ip:203.0.113.9", {"search": (1, 0)}, OLD)
        assert rolled() == done(days=2, rows=2, allowed=3, dropped=1)
        assert rows() == {
            ("user:1", TODAY, "search"): (5, 1),
            ("user:1", TODAY, "login"): (0, 2),
            ("ip:203.0.113.9", OLD, "search"): (1, 0),
        }

    def test_running_it_again_writes_nothing(self, raw: redis.Redis) -> None:
        for number in range(7):
            count(raw, f"user:{number}", {"search": (1, 1)}, TODAY)
        rolled()
        with CaptureQueriesContext(connection) as queries:
            assert rolled() == done(days=7)
        assert not [query["sql"] for query in queries if query["sql"].startswith(UPDATES)]

    def test_counts_of_an_emptied_redis_are_added_to_the_rows(self, raw: redis.Redis) -> None:
        for _ in range(3):
            count(raw, "user:1", {"search": (2, 1)}, TODAY)
            rolled()
            raw.flushall()
            rolled()
        count(raw, "user:1", {"search": (1, 0)}, TODAY)
        rolled()
        assert rows() == {("user:1", TODAY, "search"): (7, 3)}

    def test_batches_are_transactions(self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(20):
            count(raw, f"user:{number}", {"search": (1, 0)}, TODAY)

        def fail() -> None:
            raise DatabaseError("the server went away before the commit")

        with monkeypatch.context() as patch:
            when_rows_are_saved(patch, fail)
            with pytest.raises(CommandError, match="went away"):
                rolled(batch=5)
        assert sum(allowed for allowed, _ in rows().values()) == len(rows()) == 5
        rolled(batch=3)
        assert sum(allowed for allowed, _ in rows().values()) == len(rows()) == 20

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

        with connection.execute_wrapper(fail), pytest.raises(CommandError):
            again_and_again()
        connection.close()
        rolled()
        assert rows() == {
            ("user:1", TODAY, "search"): (5, 1),
            ("user:1", TODAY, "login"): (0, 1),
        }

    def test_counts_made_while_rows_are_locked_are_read_under_the_lock(
        self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The count that is carried is read behind the lock: what was read before may have been carried meanwhile."""
        count(raw, "user:1", {"search": (5, 0)}, TODAY)
        before_rows_are_locked(monkeypatch, lambda: count(raw, "user:1", {"search": (2, 0)}, TODAY))
        assert rolled()["allowed"] == 7
        assert rolled() == done(days=1)

    def test_a_second_roll_up_waits_and_overwrites_nothing(
        self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One has read both count and row; another one would carry more, and drop the day, before the first saves."""
        DailyCounter.objects.create(subject="user:1", day=OLD, rule="search")  # what is added locks itself
        count(raw, "user:1", {"search": (5, 0)}, OLD)
        has_read, may_save, is_second_there = threading.Event(), threading.Event(), threading.Event()

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
                return is_second_there.is_set()
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
                return bool(cursor.fetchone()[0])

        before_rows_are_saved(monkeypatch, pause)
        first, second = threading.Thread(target=run), threading.Thread(target=run)
        first.start()
        has_read.wait()
        count(raw, "user:1", {"search": (2, 0)}, OLD)
        before_rows_are_locked(monkeypatch, is_second_there.set)
        second.start()
        wait_until(lambda: is_second_waiting() or not second.is_alive())
        may_save.set()
        first.join()
        second.join()
        assert rows() == {("user:1", OLD, "search"): (7, 0)}
        assert keys(raw) == []

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
        assert {subject: total for (subject, _, rule), total in rows().items() if rule == "search"} == {
            f"user:{number}": (allowed, 1) for number, allowed in expected.items()
        }


@pytest.mark.usefixtures("redis_cache", "database")
class TestDropping:
    """A finished day leaves Redis when its rows hold all of it, and not before."""

    def test_unfinished_days_stay(self, raw: redis.Redis) -> None:
        now = datetime.now(UTC).date()  # it may be another day by now than when the tests began
        for back in range(4):
            count(raw, "user:1", {"search": (1, 0)}, now - timedelta(days=back))
        dropped = rolled().get("dropped", 0)
        assert dropped in (1, 2)  # by whether UTC is a day ahead of the zone of the settings
        assert raw.exists(count(raw, "user:1", {"search": (1, 0)}, now))
        assert len(keys(raw)) == 4 - dropped

    def test_counts_made_before_the_drop_are_copied_by_the_next(
        self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        count(raw, "user:1", {"search": (1, 0)}, OLD)
        before_days_are_dropped(monkeypatch, lambda: count(raw, "user:1", {"search": (1, 0)}, OLD))
        assert rolled() == done(days=1, rows=1, allowed=1)
        assert rolled() == done(days=1, rows=1, allowed=1, dropped=1)
        assert rows() == {("user:1", OLD, "search"): (2, 0)}


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
        self.expected: Counter[tuple[str, date, str]] = Counter()

    def go_on(self, checks: int) -> None:
        for _ in range(checks):
            subject = f"user:{self.random.randrange(40)}"
            rule = self.random.choice(["search", "login", "r:\u2603"])
            day = self.random.choice([TODAY, TODAY - timedelta(days=1)])
            count(self.raw, subject, {rule: (1, 2)}, day)
            self.expected[(subject, day, rule)] += 1

    def assert_carried(self) -> None:
        assert rows() == {place: (checks, 2 * checks) for place, checks in self.expected.items()}


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
    assert "rows" not in rolled()


@pytest.mark.thorough("processes")
@only_one_redis
def test_three_commands_at_once_are_exact_and_end_at_a_signal(manage: Manage, raw: redis.Redis) -> None:
    traffic = Traffic(raw)
    running = [manage.start("quota_rollup", "--json", "--batch", "7", "--every", "0.001") for _ in range(3)]
    for each in running:
        assert each.stdout is not None
        each.stdout.readline()
    traffic.go_on(300)
    wait_until(lambda: sum(allowed for allowed, _ in rows().values()) == 300)
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
