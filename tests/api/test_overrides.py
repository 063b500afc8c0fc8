"""Overrides on their way from the tables to Redis: at once, late, all again, and never lost."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, connections, transaction
from django.db.models import QuerySet

from django_quota import check
from django_quota.models import OverrideOutbox, Overview, QuotaOverride, Subject
from django_quota.testing import RedisServer, clear, freeze
from tests.support.commands import wait_until
from tests.support.counts import count_what_waits
from tests.support.databases import default_database, sqlite_database
from tests.support.published import (
    another_process_looks,
    before_the_next_publication,
    check_overrides,
    held,
    keep_the_lock_for_a_minute,
    let_others_look,
    lock_key,
    look_as_a_new_process,
    look_often,
    look_to_the_end,
    marker_key,
    not_published_by_the_next_command,
    override,
    publish_in_batches_of,
    publishing_fails,
    when_a_sync_has_published,
    whenever_subjects_are_published,
)
from tests.support.steps import START

BLOCKED, EXEMPT = ("blocked", 0, 0, ""), ("exempt", 0, 0, "")
KEY = "quota:1:{user:1}:s"
LONG = "user:" + "x" * 201
"""Of so long a name Redis has a digest alone."""


def blocked(subject: str = "user:1", rule: str = "search", **values: Any) -> QuotaOverride:
    """Save an override that blocks."""
    return QuotaOverride.objects.create(**{"subject": subject, "rule": rule, "mode": "blocked", **values})


def microseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@pytest.mark.usefixtures("published_at_once")
class TestTheKey:
    """What it holds beside overrides stays, and it lives as long as they do."""

    def test_publishing_shortens_no_ttl_and_changes_no_other_field(self, raw: redis.Redis) -> None:
        raw.hset(KEY, mapping={"b:search": "1 2 3", "d:search": "7"})
        raw.pexpire(KEY, 90 * 86_400_000)
        blocked().delete()
        assert raw.pttl(KEY) > 89 * 86_400_000
        assert raw.hgetall(KEY) == {b"b:search": b"1 2 3", b"d:search": b"7"}

    def test_an_override_outlives_its_end_by_a_minute_and_an_endless_one_thirty_days(self, raw: redis.Redis) -> None:
        row = blocked(expires=datetime.fromtimestamp(int(raw.time()[0]), UTC) + timedelta(hours=1))
        assert 3_600_000 < raw.pttl(KEY) <= 3_661_000
        row.expires = None
        row.save()
        assert 29 * 86_400_000 < raw.pttl(KEY) <= 30 * 86_400_000 + 1


# --- saving -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def published_at_once(redis_cache: RedisServer, database: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables, and a Redis to publish to."""
    look_as_a_new_process()


@contextmanager
def another_database(folder: Path) -> Iterator[str]:
    """Have our tables in a second database for a block; yields its alias."""
    connections.databases["other"] = {**connections.databases["default"], **sqlite_database(folder / "other.sqlite3")}
    try:
        call_command("migrate", database="other", verbosity=0)
        yield "other"
    finally:
        connections["other"].close()
        del connections["other"]
        del connections.databases["other"]


@pytest.mark.usefixtures("published_at_once")
class TestSaving:
    """What is saved is what Redis holds."""

    def test_what_is_saved_is_published_with_its_span(self) -> None:
        starts, expires = datetime(2026, 1, 1, tzinfo=UTC), datetime(2126, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
        blocked(starts=starts, expires=expires)
        blocked(rule="*", mode="rate", rate=" 10 per minute;500/h")
        assert held() == {
            "search": ("blocked", microseconds(starts), microseconds(expires), ""),
            "*": ("rate", 0, 0, "10/m; 500/h"),
        }
        assert not OverrideOutbox.objects.exists()

    def test_what_is_deleted_or_changed_is_withdrawn(self) -> None:
        row, other = blocked(), blocked(rule="*")
        row.mode = "exempt"
        row.save()
        assert held() == {"search": EXEMPT, "*": BLOCKED}
        other.delete()
        assert held() == {"search": EXEMPT}

    def test_a_changed_subject_leaves_nothing_under_the_old_one(self) -> None:
        row = blocked()
        QuotaOverride(pk=row.pk, subject="user:2", rule="login", mode="blocked", created=row.created).save()
        assert (held("user:1"), held("user:2")) == ({}, {"login": BLOCKED})

    def test_nothing_is_published_before_the_commit_and_nothing_of_a_rollback(self) -> None:
        with transaction.atomic():
            blocked()
            assert held() == {}
        assert held() == {"search": BLOCKED}
        with transaction.atomic():
            QuotaOverride.objects.all().delete()
            transaction.set_rollback(True)
        assert held() == {"search": BLOCKED}
        assert not OverrideOutbox.objects.exists()

    def test_statements_over_many_rows_publish_too(self) -> None:
        QuotaOverride.objects.bulk_create(
            [QuotaOverride(subject=f"user:{n}", rule="*", mode="blocked") for n in range(500 + 3)]
        )
        assert held("user:0") == held(f"user:{500 + 2}") == {"*": BLOCKED}
        QuotaOverride.objects.filter(subject="user:0").update(mode="exempt")
        assert held("user:0") == {"*": EXEMPT}
        rows = list(QuotaOverride.objects.filter(subject__in=["user:1", "user:2"]))
        for row in rows:
            row.subject += "1"
        QuotaOverride.objects.filter(subject__in=["user:11", "user:21"]).delete()
        QuotaOverride.objects.bulk_update(rows, ["subject"])
        assert held("user:1") == held("user:2") == {}
        assert held("user:11") == held("user:21") == {"*": BLOCKED}
        QuotaOverride.objects.all().delete()
        assert held("user:11") == held(f"user:{500 + 2}") == {}

    def test_what_a_fixture_loads_is_published(self, tmp_path: Any) -> None:
        blocked()
        file = tmp_path / "rows.json"
        call_command("dumpdata", "django_quota.QuotaOverride", output=str(file), verbosity=0)
        QuotaOverride.objects.all().delete()
        call_command("loaddata", str(file), verbosity=0)
        assert held() == {"search": BLOCKED}

    def test_what_has_ended_is_not_published(self) -> None:
        blocked(expires=datetime(2001, 1, 1, tzinfo=UTC))
        blocked(rule="*", starts=datetime(1960, 1, 1, tzinfo=UTC), expires=datetime(1965, 1, 1, tzinfo=UTC))
        assert held() == {}

    def test_a_wrong_rate_does_not_stop_other_overrides(self, caplog: pytest.LogCaptureFixture) -> None:
        QuotaOverride.objects.bulk_create([QuotaOverride(subject="user:1", rule="a", mode="rate", rate="many")])
        blocked()
        assert held() == {"search": BLOCKED}
        assert "cannot be published" in caplog.text

    def test_with_enabled_false_it_is_published_later(self, settings: Any) -> None:
        given_before = settings.QUOTA
        settings.QUOTA = {"ENABLED": False}
        blocked()
        settings.QUOTA = given_before
        assert held() == {}
        blocked("user:2")
        assert held() == {"search": BLOCKED}

    def test_the_last_publisher_has_read_what_was_saved_last(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another process saves and publishes between our reading of the rows and our telling Redis."""
        row = blocked()
        before_the_next_publication(monkeypatch, lambda: QuotaOverride.objects.filter(pk=row.pk).update(mode="exempt"))
        row.save()
        assert held() == {"search": EXEMPT}

    @pytest.mark.always("postgresql")
    def test_many_saves_at_once_publish_what_the_rows_say(self) -> None:
        modes = ["exempt", "blocked"]
        blocked()

        def save(mode: str) -> None:
            for _ in range(10):
                QuotaOverride.objects.filter(subject="user:1").update(mode=mode)
                row = QuotaOverride.objects.get()
                row.mode = mode
                row.save()
            connections.close_all()

        threads = [threading.Thread(target=save, args=(mode,)) for mode in modes * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert held() == {"search": (QuotaOverride.objects.get().mode, 0, 0, "")}
        assert not OverrideOutbox.objects.exists()


class TestRedisAway:
    """The row is saved whatever happens to Redis, and Redis knows in the end."""

    @pytest.fixture
    def away(self, published_at_once: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
        """Let Redis be away, or back."""
        return lambda is_away: publishing_fails(monkeypatch, "it is away" if is_away else "")

    def test_the_row_is_saved_the_error_logged_and_the_next_check_publishes_it(
        self, away: Callable[[bool], None], raw: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        away(True)
        row = blocked()
        assert row.pk
        assert "not published: The quota store is unavailable: it is away. They wait in the database" in caplog.text
        assert OverrideOutbox.objects.get().subject == "user:1"
        check_overrides()
        assert held() == {}
        away(False)
        let_others_look(raw)
        with caplog.at_level("INFO", "django_quota"):
            check_overrides()
        assert held() == {"search": BLOCKED}
        assert not OverrideOutbox.objects.exists()
        assert "had waited in the database, and are published now: 1 of them" in caplog.text

    def test_the_next_change_publishes_it_too(self, away: Callable[[bool], None]) -> None:
        away(True)
        blocked().delete()
        blocked(rule="login")
        away(False)
        blocked("user:2")
        assert held() == {"login": BLOCKED}
        assert not OverrideOutbox.objects.exists()

    def test_a_sync_publishes_it_too(self, away: Callable[[bool], None]) -> None:
        away(True)
        blocked()
        away(False)
        call_command("quota_sync", stdout=StringIO())
        assert held() == {"search": BLOCKED}
        assert not OverrideOutbox.objects.exists()


def commanded(*words: str, at_fault: str = "") -> str:
    """Run a command and return what it prints, to whichever end; `at_fault`: what it ends with an error for."""
    out = StringIO()
    with pytest.raises(CommandError, match=at_fault) if at_fault else nullcontext():
        call_command(*words, stdout=out, stderr=out)
    return out.getvalue()


class TestCommandsPublishWhatWaits:
    """Where no process noticed an outage, the commands that cron runs publish what waits, and all say how much does."""

    @pytest.fixture(autouse=True)
    def _waiting(self, published_at_once: None, raw: redis.Redis) -> Iterator[None]:
        raw.config_set("maxmemory", 1)
        try:
            blocked()
            blocked("user:2")
            yield
        finally:
            raw.config_set("maxmemory", 0)

    @pytest.mark.parametrize("command", ["quota_sweep", "quota_rollup"])
    def test_they_publish_it(self, raw: redis.Redis, command: str) -> None:
        raw.config_set("maxmemory", 0)
        assert "Published 2 changes of overrides that had waited." in commanded(command)
        assert held() == {"search": BLOCKED}
        assert "Published" not in commanded(command)
        report = json.loads(commanded(command, "--json"))
        assert (report["published"], report["waiting"]) == (0, 0)

    @pytest.mark.parametrize("command", ["quota_sweep", "quota_rollup"])
    def test_on_a_read_only_redis_they_name_pending_changes_and_fail_at_the_end(self, command: str) -> None:
        printed = commanded(command, at_fault="OutOfMemory|OOM")
        assert "2 changes of overrides wait to be published to Redis." in printed
        assert "Looked at 0 " in printed
        assert OverrideOutbox.objects.count() == 2

    def test_a_dry_sweep_only_counts(self, raw: redis.Redis) -> None:
        raw.config_set("maxmemory", 0)
        assert "2 changes of overrides wait" in commanded("quota_sweep", "--dry-run")
        assert held() == {}

    def test_with_enabled_false_nothing_is_published(self, raw: redis.Redis, settings: Any) -> None:
        raw.config_set("maxmemory", 0)
        settings.QUOTA = {"ENABLED": False}
        assert "2 changes of overrides wait" in commanded("quota_sweep")
        assert OverrideOutbox.objects.count() == 2

    def test_a_sweep_without_a_database_says_so_and_sweeps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any, **__: Any) -> Any:
            raise OperationalError("it is slow")

        monkeypatch.setattr(type(connection.introspection), "table_names", fail)
        printed = commanded("quota_sweep")
        assert "It is unknown whether overrides wait to be published: it is slow" in printed
        assert "Looked at 0 keys" in printed

    def test_the_status_says_whether_the_subjects_own_wait(self, raw: redis.Redis, settings: Any) -> None:
        printed = commanded("quota_status", "user:1")
        assert "Note: 2 changes of overrides wait to be published to Redis. Some are of this subject" in printed
        assert "Some are" not in commanded("quota_status", "user:3")
        said = StringIO()
        call_command("quota_status", "user:3", "--json", stdout=said, stderr=StringIO())
        assert json.loads(said.getvalue())["waiting"] == 2
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "unix:///nonexistent/redis.sock"}}
        assert "2 changes of overrides wait" in commanded("quota_status", "user:1", at_fault="unavailable")


# --- all of them ------------------------------------------------------------------------------------------------------


def synced() -> dict[str, int]:
    out = StringIO()
    call_command("quota_sync", json=True, stdout=out)
    return json.loads(out.getvalue())  # type: ignore[no-any-return]


@pytest.mark.usefixtures("published_at_once")
class TestSync:
    """`quota_sync` makes Redis hold what the rows say, whatever it held before."""

    def test_an_emptied_redis_gets_all_overrides_again(self, raw: redis.Redis) -> None:
        for subject in ("user:1", "ip:2001:db8::/64", LONG, "~odd {subject}:\u2603"):
            blocked(subject)
        raw.flushall()
        assert held() == {}
        assert synced() == {"subjects": 4, "withdrawn": 0}
        for row in QuotaOverride.objects.all():
            assert held(row.subject) == {"search": BLOCKED}
        assert 3_600 < raw.ttl(marker_key()) <= 7 * 86_400
        assert all(raw.ttl(key) > 0 for key in raw.scan_iter())

    def test_only_overrides_without_a_row_are_withdrawn(self, raw: redis.Redis) -> None:
        blocked("user:1")
        blocked(LONG)
        for subject in ("user:1", "user:2", LONG, LONG + "y"):
            override("b 0 0 ", "search", subject)
            override("x 0 0 ", "gone", subject)
        raw.hset("quota:1:{user:2}:s", "b:search", "1 2 3")
        raw.hset("other:1:{user:2}:s", "o:search", "b 0 0 ")
        raw.set("quota:1:{user:3}:s", "no hash")
        assert synced() == {"subjects": 2, "withdrawn": 2}
        assert held("user:1") == held(LONG) == {"search": BLOCKED}
        assert held("user:2") == held(LONG + "y") == {}
        assert raw.hgetall("quota:1:{user:2}:s") == {b"b:search": b"1 2 3"}
        assert raw.hgetall("other:1:{user:2}:s") == {b"o:search": b"b 0 0 "}

    @pytest.mark.parametrize("subject", ["user:1", LONG])
    def test_a_row_saved_during_its_withdrawal_stays(self, subject: str, monkeypatch: pytest.MonkeyPatch) -> None:
        override("b 0 0 ", "*", subject)
        before_the_next_publication(monkeypatch, lambda: blocked(subject, "*"))
        synced()
        assert QuotaOverride.objects.exists()
        assert held(subject) == {"*": BLOCKED}

    def test_blocks_are_published_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        publish_in_batches_of(2, monkeypatch)
        for n in range(3):
            blocked(f"user:{n}", mode="exempt")
            blocked(f"user:{n}0")
        blocked("user:00", "*", mode="exempt")
        printed: list[str] = []
        whenever_subjects_are_published(monkeypatch, printed.extend)
        assert synced() == {"subjects": 6, "withdrawn": 0}
        assert printed == ["user:00", "user:10", "user:20", "user:0", "user:1", "user:2"]

    def test_if_redis_is_emptied_meanwhile_it_is_an_error_and_the_next_check_publishes(
        self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        blocked()
        with monkeypatch.context() as patched:
            when_a_sync_has_published(patched, raw.flushall)
            with pytest.raises(CommandError, match="lost its memory"):
                synced()
        assert not raw.exists(marker_key())
        check_overrides()
        assert held() == {"search": BLOCKED}
        assert raw.exists(marker_key())

    def test_a_check_during_which_redis_is_emptied_starts_again(
        self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        blocked()
        raw.flushall()
        when_a_sync_has_published(monkeypatch, raw.flushall, times=1)
        check_overrides()
        assert held() == {"search": BLOCKED}
        assert raw.exists(marker_key())

    def test_an_unavailable_redis_is_an_error(self, settings: Any) -> None:
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "unix:///nonexistent/redis.sock"}}
        with pytest.raises(CommandError, match="unavailable"):
            synced()


@pytest.mark.usefixtures("published_at_once")
class TestLost:
    """A Redis that lost its memory, or a part of it, gets it back without anybody asking."""

    def lose_the_last(self, raw: redis.Redis, change: Callable[[], object]) -> None:
        """Make a change that Redis holds, and then no longer: as a replica that takes over may have missed it."""
        snapshot = {key: (raw.dump(key), raw.pttl(key)) for key in raw.scan_iter()}
        change()
        raw.flushall()
        for key, (value, ttl) in snapshot.items():
            raw.restore(key, ttl, value or b"")
        raw.delete(lock_key())

    def test_the_flusher_checks(self, raw: redis.Redis) -> None:
        blocked()
        raw.flushall()
        count_what_waits()
        look_to_the_end()
        assert held() == {"search": BLOCKED}

    @pytest.mark.usefixtures("the_flusher_runs")
    def test_a_loss_right_after_a_check_is_repaired_too(
        self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        look_often(monkeypatch)
        blocked()
        raw.flushall()
        another_process_looks()
        assert check("5/m", "user:9")  # the background thread begins
        wait_until(lambda: held() == {"search": BLOCKED})
        look_to_the_end()

    def test_all_lost_overrides_come_back(self, raw: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
        blocked()
        raw.flushall()
        check_overrides()
        assert held() == {"search": BLOCKED}
        assert "those of 1 subject are published again" in caplog.text
        assert {key.decode() for key in raw.scan_iter("*overrides*")} == {
            marker_key(),
            lock_key(),
        }
        assert all(raw.ttl(key) > 0 for key in raw.scan_iter())

    def test_a_single_lost_block_comes_back(self, raw: redis.Redis) -> None:
        synced()
        self.lose_the_last(raw, blocked)
        assert held() == {}
        check_overrides()
        assert held() == {"search": BLOCKED}

    def test_an_exemption_that_an_old_snapshot_restores_is_withdrawn_again(self, raw: redis.Redis) -> None:
        row = blocked(mode="exempt")
        synced()
        self.lose_the_last(raw, row.delete)
        assert held() == {"search": EXEMPT}
        check_overrides()
        assert held() == {}

    def test_a_save_after_a_loss_does_not_hide_the_loss(self, raw: redis.Redis) -> None:
        synced()
        self.lose_the_last(raw, blocked)
        for name in ("user:2", "user:3"):
            blocked(name)
        assert held() == {}
        assert held("user:3") == {"search": BLOCKED}
        check_overrides()
        assert held() == {"search": BLOCKED}

    def test_a_change_by_sql_that_was_synced_is_published_again(self, raw: redis.Redis) -> None:
        synced()

        def by_sql() -> None:
            QuotaOverride.objects.bulk_create([QuotaOverride(subject="user:1", rule="search", mode="blocked")])
            OverrideOutbox.objects.all().delete()
            synced()

        with not_published_by_the_next_command():
            self.lose_the_last(raw, by_sql)
        assert held() == {}
        check_overrides()
        assert held() == {"search": BLOCKED}

    @pytest.mark.parametrize("command", ["quota_sweep", "quota_rollup"])
    def test_rollup_and_sweep_notice_a_loss(self, raw: redis.Redis, command: str) -> None:
        synced()
        self.lose_the_last(raw, blocked)
        assert "Redis had lost overrides: published those of 1 subject again." in commanded(command)
        assert held() == {"search": BLOCKED}
        assert json.loads(commanded(command, "--json"))["republished"] == 0

    def test_without_a_loss_nothing_is_done(self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        synced()
        blocked()
        published: list[str] = []
        whenever_subjects_are_published(monkeypatch, published.extend)
        check_overrides()
        assert (held(), published) == ({"search": BLOCKED}, [])

    def test_only_one_process_checks_at_a_time(self, raw: redis.Redis) -> None:
        blocked()
        raw.flushall()
        another_process_looks()
        check_overrides()
        assert held() == {}

    def test_the_lock_is_kept_while_all_is_published(self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(3):
            blocked(f"user:{number}")
        raw.flushall()
        publish_in_batches_of(1, monkeypatch)
        keep_the_lock_for_a_minute(monkeypatch)
        left = []

        def late(subjects: Collection[str]) -> None:
            if subjects:
                left.append(raw.pttl(lock_key()))
                raw.pexpire(lock_key(), 10_000)

        whenever_subjects_are_published(monkeypatch, late)
        check_overrides()
        assert len(left) == 3
        assert min(left) > 10_000

    def test_a_process_that_dies_while_it_publishes_delays_others_under_three_seconds(self, raw: redis.Redis) -> None:
        another_process_looks()
        assert raw.pttl(lock_key()) + 1_000 < 3_000  # the others look once a second

    def test_a_failed_check_is_logged_once_and_repeated(
        self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(*_: Any) -> Any:
            raise OperationalError("it is slow")

        blocked()
        raw.flushall()
        with monkeypatch.context() as patched:
            patched.setattr(QuerySet, "count", fail)
            check_overrides()
            assert 0 < raw.pttl(lock_key()) <= 1_500
            for _ in range(2):
                let_others_look(raw)
                check_overrides()
            let_others_look(raw)
        assert caplog.text.count("cannot be published: it is slow. The next check tries again.") == 1
        check_overrides()
        assert held() == {"search": BLOCKED}

    def test_with_enabled_false_changes_stay_pending(self, raw: redis.Redis, settings: Any) -> None:
        blocked()
        raw.flushall()
        settings.QUOTA = {"ENABLED": False}
        check_overrides()
        assert held() == {}

    def test_missing_tables_are_logged_once(
        self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(type(connection.introspection), "table_names", lambda *_, **__: [])
        for _ in range(2):
            check_overrides()
        assert caplog.text.count("Run `migrate` to create them") == 1
        assert not raw.exists(marker_key())

    def test_a_site_without_a_database_logs_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        with default_database({"ENGINE": "django.db.backends.dummy"}):
            check_overrides()
        assert caplog.text == ""

    def test_a_database_in_memory_is_left_alone(self, raw: redis.Redis) -> None:
        with default_database({"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}):
            check_overrides()
        assert not raw.exists(lock_key())
        check_overrides()
        assert raw.exists(lock_key())


@pytest.mark.usefixtures("published_at_once")
class TestWhatCounts:
    """Each row of the database that overrides are written to, by whatever model; and no other row."""

    def test_a_row_of_another_database_changes_nothing(self, tmp_path: Path, django_db_blocker: Any) -> None:
        blocked()
        with another_database(tmp_path) as other:
            copy = QuotaOverride(subject="user:1", rule="search", mode="exempt")
            copy.save(using=other)
            assert held() == {"search": BLOCKED}
            QuotaOverride.objects.using(other).update(mode="blocked", rule="login")
            QuotaOverride.objects.using(other).bulk_create([QuotaOverride(subject="user:2", rule="a", mode="exempt")])
            QuotaOverride.objects.using(other).all().delete()
            assert (held(), held("user:2")) == ({"search": BLOCKED}, {})
            assert not OverrideOutbox.objects.using(other).exists()

    @pytest.mark.parametrize("model", [Subject, Overview])
    def test_a_row_of_a_proxy_model_is_an_override_like_any_other(self, model: Any) -> None:
        row = model.objects.create(subject="user:1", rule="search", mode="blocked")
        assert held() == {"search": BLOCKED}
        row.mode = "exempt"
        row.save()
        assert held() == {"search": EXEMPT}
        model.objects.update(mode="blocked")
        assert held() == {"search": BLOCKED}
        row.delete()
        assert held() == {}
        model.objects.bulk_create([model(subject="user:1", rule="login", mode="blocked")])
        assert held() == {"login": BLOCKED}
        model.objects.all().delete()
        assert held() == {}


class ReplicaThatLags:
    """A router to a database that is not even there."""

    def db_for_read(self, *_: Any, **__: Any) -> str:
        return "replica"


@pytest.mark.usefixtures("published_at_once")
def test_a_replica_is_not_asked(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [ReplicaThatLags()]
    row = blocked()
    row.save()
    QuotaOverride.objects.filter(subject="user:1").update(mode="exempt")
    QuotaOverride.objects.bulk_create([QuotaOverride(subject="user:2", rule="*", mode="blocked")])
    assert (held("user:1"), held("user:2")) == ({"search": EXEMPT}, {"*": BLOCKED})
    assert synced() == {"subjects": 2, "withdrawn": 0}
    said("set", "user:2", "exempt")
    assert held("user:2") == {"*": EXEMPT}
    said("clear", "user:2")
    assert held("user:2") == {}


@pytest.mark.usefixtures("memory_store", "database")
def test_the_memory_store_gets_overrides_too() -> None:
    row = blocked()
    assert not check("5/m", "user:1", name="search")
    clear()
    assert check("5/m", "user:1", name="search")
    row.save()
    assert not check("5/m", "user:1", name="search")
    row.delete()
    assert check("5/m", "user:1", name="search")
    with pytest.raises(CommandError, match="STORE"):
        synced()


# --- the command ------------------------------------------------------------------------------------------------------


def said(*words: str) -> Any:
    """Run `quota_override` and return what it says, from JSON where it was asked for."""
    out, notes = StringIO(), StringIO()
    call_command("quota_override", *words, stdout=out, stderr=notes)
    return json.loads(out.getvalue()) if "--json" in words else out.getvalue() + notes.getvalue()


_SETTING = [["set", "user:1", "5/m", option] for option in ("--rule", "--reason")]


@pytest.mark.usefixtures("published_at_once")
class TestTheCommand:
    """`quota_override list|set|clear`."""

    def test_it_sets_changes_lists_and_clears(self) -> None:
        (first,) = said("set", "user:1", "blocked", "--reason", "spam", "--json")
        assert (first["mode"], first["rule"], first["reason"]) == ("blocked", "*", "spam")
        assert held() == {"*": BLOCKED}
        said("set", "user:1", "5/m", "--json")
        said("set", "user:1", "exempt", "--rule", "search", "--until", "2126-01-31T12:00", "--json")
        assert held() == {"*": ("rate", 0, 0, "5/m"), "search": held()["search"]}
        listed = said("list", "--subject", "user:1", "--active", "--json")
        assert [(row["rule"], row["mode"], row["rate"]) for row in listed] == [
            ("*", "rate", "5/m"),
            ("search", "exempt", None),
        ]
        assert listed[0]["reason"] == ""
        assert listed[1]["expires"].startswith("2126-01-31T")
        assert "user:1, all rules: 5/m, without an end" in said("list")
        said("clear", "user:1", "--rule", "search")
        assert held().keys() == {"*"}
        assert "Cleared user:1, all rules: 5/m" in said("clear", "user:1")
        assert held() == {}
        assert "no override for user:1" in said("clear", "user:1")

    def test_a_span_begins_now(self) -> None:
        (row,) = said("set", "user:1", "blocked", "--for", "2h", "--json")
        ends = datetime.fromisoformat(row["expires"])
        assert abs(ends - datetime.now(UTC) - timedelta(hours=2)) < timedelta(minutes=10)
        assert held()["*"].ends == microseconds(ends)

    @pytest.mark.parametrize(
        ("words", "printed"),
        [
            (("set", "user:1", "10/fortnight"), "10/fortnight"),
            (("set", "user:1", "blocked", "--for", "soon"), "such as '10m'"),
            (("set", "user:1", "blocked", "--until", "soon"), "2030-01-31T12:00"),
            (("set", "user:1", "blocked", "--until", "2030-02-31"), "2030-01-31T12:00"),
            (("set", "user:1", "blocked", "--until", "2001-01-01"), "is in the past"),
            (("set", "", "blocked"), "'user:42'"),
            (("set", "user:1", "blocked", "--rule", "x" * 201), "200"),
            (("set", "user:1"), "RATE|exempt|blocked"),
        ],
    )
    def test_wrong_words_are_named_with_what_to_write_instead(self, words: tuple[str, ...], printed: str) -> None:
        with pytest.raises(CommandError) as caught:
            said(*words)
        assert printed in str(caught.value)
        assert not QuotaOverride.objects.exists()

    def test_an_option_whose_bytes_are_no_text_is_a_clear_error(self) -> None:
        odd = os.fsdecode(b"a\xff")
        for words in (["list", "--rule"], ["clear", "user:1", "--rule"], *_SETTING):
            with pytest.raises(CommandError, match=rf"^{words[-1]} 'a\\udcff' is not UTF-8 text"):
                said(*words, odd)

    def test_an_unknown_rule_gets_a_note(self, settings: Any) -> None:
        settings.QUOTA = {"RULES": {"search": "10/m"}}
        assert "Did you mean “search”?" in said("set", "user:1", "blocked", "--rule", "serch")
        assert "no rule of the settings" not in said("set", "user:1", "blocked", "--rule", "search")

    def test_a_bare_address_becomes_a_subject_and_is_found_again(self) -> None:
        assert "'127.0.0.1' is taken for 'ip:127.0.0.1'" in said("set", "127.0.0.1", "blocked")
        QuotaOverride.objects.create(subject="127.0.0.1", mode="blocked")  # by code, as it stands
        assert not check("5/m", "ip:127.0.0.1")
        assert said("list", "--subject", "127.0.0.1").count("blocked") == 2
        said("clear", "127.0.0.1")
        assert not QuotaOverride.objects.exists()
        assert check("5/m", "ip:127.0.0.1")

    @pytest.mark.parametrize("network", ["10.0.0.0/8", "ip:10.0.0.0/8", "10.0.0.1/x", "10.0.0.0/8/8"])
    def test_a_network_is_no_subject(self, network: str) -> None:
        with pytest.raises(CommandError, match="is a network"):
            said("set", network, "blocked")
        assert not QuotaOverride.objects.exists()

    def test_an_ipv6_network_of_another_size_is_saved_with_a_note(self) -> None:
        assert "it is a network. Use one address" in said("set", "2001:db8::/32", "blocked")
        assert "network" not in said("set", "2001:db8::/64", "blocked")

    def test_a_network_saved_by_code_is_listed_and_cleared(self) -> None:
        assert "it is a network" in said("clear", "10.0.0.0/8")
        QuotaOverride.objects.create(subject="10.0.0.0/8", rule="*", mode="blocked")
        assert "10.0.0.0/8" in said("list", "--subject", "10.0.0.0/8")
        assert said("clear", "10.0.0.0/8").startswith("Cleared")
        assert not QuotaOverride.objects.exists()

    def test_a_subject_of_no_request_is_saved_with_a_note(self) -> None:
        joe = User.objects.create_user("joe")
        for subject in ("joe", "user:joe"):
            assert f"“user:{joe.pk}”" in said("set", subject, "blocked")
        assert "user:<key>, ip:<address> or global" in said("set", "nobody", "blocked")
        assert "no user with the key “77”" in said("set", "user:77", "blocked")
        assert QuotaOverride.objects.count() == 4
        for subject in (f"user:{joe.pk}", "ip:127.0.0.1", "global"):
            assert "Note" not in said("set", subject, "blocked")

    def test_a_rate_must_fit_its_rule(self, settings: Any) -> None:
        settings.QUOTA = {"RULES": {"search": "10/m"}}
        with pytest.raises(CommandError, match="calendar"):
            said("set", "user:1", "9/month", "--rule", "search")

    def test_without_redis_it_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        publishing_fails(monkeypatch, "it is away")
        with pytest.raises(CommandError, match="published soon after Redis is back: by a process that serves requests"):
            said("set", "user:1", "blocked")
        assert QuotaOverride.objects.exists()

    def test_a_name_cannot_move_the_cursor(self) -> None:
        assert "\x1b" not in said("set", "user:1", "blocked", "--reason", "\x1b[2J")


@pytest.mark.usefixtures("published_at_once")
def test_an_override_binds_in_the_decision(settings: Any) -> None:
    settings.QUOTA = {"RULES": {"search": "10/m"}}
    with freeze(START):
        assert check("search", "user:1").allowed
        blocked()
        assert not check("search", "user:1").allowed
        assert check("search", "user:2").allowed
        QuotaOverride.objects.update(mode="rate", rate="3/m")
        assert check("search", "user:1").limit == 3


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("words", [["quota_override", "list"], ["quota_sync"], ["quota_rollup"]])
def test_without_tables_it_says_what_makes_them(words: list[str], tmp_path: Path, django_db_blocker: Any) -> None:
    check("5/m", "user:1")  # something to carry
    empty = sqlite_database(tmp_path / "empty.sqlite3")
    with django_db_blocker.unblock(), default_database(empty), pytest.raises(CommandError) as caught:
        call_command(*words, stdout=StringIO())
    assert "`manage.py migrate` makes the tables" in str(caught.value)
