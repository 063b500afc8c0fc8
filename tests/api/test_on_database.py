"""What pages and commands show and do where states are in a database: events, bans, usage, sweeps, status."""

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from io import StringIO
from threading import Event
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest
from django.contrib.auth.models import User
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import Client

from django_quota import Rule, check, counter, reserve, slot, unban
from django_quota.core.clock import DAY, now
from django_quota.core.keys import counter_key, key_of, subject_base
from django_quota.exceptions import StoreUnavailable
from django_quota.features.events import EventFilter, EventRows, event_log
from django_quota.features.usage.days import recent_usage
from django_quota.limiting.registry import get_limiter
from django_quota.limiting.stores import BATCH, CLEANING_INTERVAL, Cleaning
from django_quota.management.commands import quota_sweep
from django_quota.models import DailyCounter
from django_quota.operating import sweep as operating_sweep
from django_quota.operating.activity import activity, running_totals, subjects_seen
from django_quota.operating.inspection import load_snapshot, recent_refusals
from django_quota.stores.base import Statement
from django_quota.stores.database import sql
from django_quota.stores.database.log import Expired, KeptEvents, count_expired, delete_expired
from django_quota.stores.database.store import DatabaseStore
from django_quota.testing import freeze
from tests.support.commands import Terminal, json_of, said
from tests.support.outages import mostly_late
from tests.support.selection import thorough
from tests.support.specifications import Put
from tests.support.steps import SECOND, Clock
from tests.support.stores import current_store

BANNING = Rule.make("login", "2/m", ban={"after": "2/m", "for": "1h"})


@pytest.fixture
def store(database: dict[str, Any], settings: Any) -> DatabaseStore:
    settings.QUOTA = {"STORE": "database", "RULES": {"login": {"rate": "2/m", "ban": {"after": "2/m", "for": "1h"}}}}
    return current_store()  # type: ignore[no-any-return]


NONE_KEPT = KeptEvents(0, 0)


def log() -> EventRows:
    found = event_log(current_store(), "quota")
    assert isinstance(found, EventRows)
    return found


def reported() -> list[tuple[str, str | None]]:
    return [(event.kind, event.subject) for event in log().last(1_000, EventFilter())]


def refuse(subject: str, times: int = 1) -> None:
    for _ in range(times):
        check("0/m", subject)


class TestEvents:
    def test_events_are_written_with_the_decision(self, store: DatabaseStore) -> None:
        decisions = [check(BANNING, "ip:192.0.2.1") for _ in range(4)]
        check("3/m", "user:1", warn_at=0.3)

        assert [bool(each) for each in decisions] == [True, True, False, False]
        assert reported() == [("refused", "ip:192.0.2.1"), ("banned", "ip:192.0.2.1"), ("near", "user:1")]

    def test_the_event_of_a_ban_says_its_level_with_its_end(self, store: DatabaseStore) -> None:
        for _ in range(4):
            check(BANNING, "ip:192.0.2.1")

        (ban,) = [event for event in log().last(9, EventFilter()) if event.kind == "banned"]

        assert (ban.rule, ban.level) == ("login", 1)
        assert ban.until > ban.at > 0

    def test_the_command_shows_events_of_a_kind(self, store: DatabaseStore) -> None:
        for _ in range(4):
            check(BANNING, "ip:192.0.2.1")
        check("3/m", "user:1", warn_at=0.3)

        assert [each["subject"] for each in json_of("quota_events", kind=["near"])] == ["user:1"]

    def test_the_command_shares_no_events_in_a_group(self, store: DatabaseStore) -> None:
        with pytest.raises(
            CommandError, match=r"^--group needs Redis, whose consumer groups it uses\. Leave it out\.$"
        ):
            said("quota_events", "--follow", "--group", "audit")

    def test_a_row_that_is_not_ours_is_no_event(self, store: DatabaseStore) -> None:
        refuse("ip:192.0.2.1")
        text = f"INSERT INTO {sql.EVENT_TABLE} (log, batch, at, data) VALUES (?, 0, 1, '[1]') RETURNING 1"

        store.write(lambda _: Statement(text, ("quota:1:{!}:events",)))

        assert [entry.event for entry in log().newest(9)].count(None) == 1

    def test_events_of_another_prefix_are_apart(self, store: DatabaseStore, settings: Any) -> None:
        refuse("ip:192.0.2.1")
        settings.QUOTA = {"STORE": "database", "PREFIX": "other"}

        other = event_log(current_store(), "other")

        assert other is not None
        assert (other.newest(9), other.last_id()) == ([], "0-0.0")


def test_a_follower_reads_each_event_once(store: DatabaseStore) -> None:
    refuse("ip:192.0.2.1")
    place, subjects = log().last_id(), [f"ip:198.51.100.{number}" for number in range(20)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(refuse, subjects))

    found: list[str] = []
    while page := log().after(place):
        place = page[-1].id
        found += [str(entry.event.subject) for entry in page if entry.event is not None]

    assert sorted(found) == sorted(subjects)


def test_the_newest_events_are_read_page_by_page(store: DatabaseStore) -> None:
    for number in range(20):
        refuse(f"ip:198.51.100.{number}")

    first, *others = [entry.id for entry in log().newest(5)]

    assert len(others) == 4
    assert others == [entry.id for entry in log().newest(4, first)]


@pytest.mark.parametrize("database", [thorough("postgresql", "postgresql")], indirect=True)  # SQLite has one writer
def test_a_follower_misses_no_event_of_a_slow_transaction(store: DatabaseStore, database: dict[str, Any]) -> None:
    """It has a smaller id than the events that are read before it ends."""
    place, event = log().last_id(), json.dumps(["refused", "slow", "user:1", 0, 0, 1, 0, 0])
    with psycopg.connect(host=database["HOST"], user="quota", dbname="postgres") as another_process:
        another_process.execute(
            f"INSERT INTO {sql.EVENT_TABLE} (log, batch, at, data) VALUES "
            "('quota:1:{!}:events', pg_current_xact_id()::text::bigint, %s, %s)",
            [now(), event],
        )
        refuse("ip:192.0.2.1")
        assert log().after(place) == []
        assert reported() == [("refused", "ip:192.0.2.1")]
    events = [entry.event for entry in log().after(place)]
    assert sorted(str(event.subject) for event in events if event) == ["ip:192.0.2.1", "user:1"]


class TestOverview:
    @pytest.fixture
    def banned(self, store: DatabaseStore) -> None:
        for _ in range(4):
            check(BANNING, "ip:192.0.2.1")

    @pytest.mark.usefixtures("banned")
    def test_it_has_bans(self) -> None:
        found = activity()

        assert [(ban.subject, ban.rule) for ban in found.bans or ()] == [("ip:192.0.2.1", "login")]
        assert found.banned == running_totals().banned == 1

    @pytest.mark.usefixtures("banned")
    def test_it_has_figures_of_rules(self) -> None:
        found = activity()

        assert [(rule.rule, rule.allowed, rule.refused) for rule in found.rules] == [("login", 2, 2)]

    def test_it_has_slots(self, store: DatabaseStore) -> None:
        with slot("export", 3):
            found = activity()

        assert [(use.name, use.held, use.limit) for use in found.slots] == [("export", 1, 3)]

    @pytest.mark.usefixtures("banned")
    def test_it_has_the_subjects_of_bans(self) -> None:
        activity()

        assert subjects_seen() == ["ip:192.0.2.1"]

    @pytest.mark.usefixtures("banned")
    def test_its_page_shows_bans(self, client: Client) -> None:
        client.force_login(User.objects.create_superuser("root"))

        text = client.get("/admin/django_quota/overview/?sizes=1").content.decode()

        assert "ip:192.0.2.1" in text

    @pytest.mark.parametrize("words", ["The memory store", "Redis"])
    def test_its_page_speaks_of_no_other_store(self, words: str, store: DatabaseStore, client: Client) -> None:
        client.force_login(User.objects.create_superuser("root"))

        assert words not in client.get("/admin/django_quota/overview/?sizes=1").content.decode()

    @pytest.mark.usefixtures("banned")
    def test_a_ban_that_is_lifted_leaves_it(self) -> None:
        assert unban("*", "ip:192.0.2.1") == 1

        assert activity().bans == []


class TestSubject:
    """It has counts and a ban of rules that only a call names, and has held a slot."""

    @pytest.fixture(autouse=True)
    def used(self, store: DatabaseStore) -> Iterator[None]:
        check("7/m", "ip:192.0.2.1")
        for _ in range(4):
            check(BANNING, "ip:192.0.2.1")
        check("7/m", "ip:192.0.2.10")
        with slot("export", 3, subject="ip:192.0.2.1"):
            activity()  # sends which slots were used
            yield

    def test_a_scan_finds_the_limits_that_it_has_used(self) -> None:
        found = load_snapshot("ip:192.0.2.1", scan=True)

        assert {(limit.rule, limit.used) for limit in found.limits if limit.used} == {("login", 2), ("7/m", 1)}

    @pytest.mark.parametrize("scan", [True, False], ids=["with a scan", "without a scan"])
    def test_its_slots_are_found(self, scan: bool) -> None:
        assert [each.name for each in load_snapshot("ip:192.0.2.1", scan=scan).leases] == ["export"]

    def test_its_bans_are_found(self) -> None:
        assert [ban.rule for ban in load_snapshot("ip:192.0.2.1", scan=True).bans] == ["login"]

    def test_its_refusals_are_found(self) -> None:
        assert [event.kind for event in recent_refusals("ip:192.0.2.1")] == ["banned", "refused"]

    @pytest.mark.parametrize("command", ["quota_status", "quota_reset"])
    def test_a_command_names_its_rules(self, command: str) -> None:
        assert "login" in said(command, "ip:192.0.2.1")

    def test_a_reset_lifts_its_bans(self) -> None:
        said("quota_reset", "ip:192.0.2.1")

        assert not load_snapshot("ip:192.0.2.1").bans


class TestRollUp:
    """Three hits of two units, of which the third is refused."""

    @pytest.fixture(autouse=True)
    def counted(self, store: DatabaseStore) -> None:
        for _ in range(3):
            check("5/m", "user:1", 2, name="api", daily=True)

    def test_it_reports_what_it_moved(self) -> None:
        report = said("quota_rollup", "--json")

        assert report["days"] == 1
        assert (report["allowed"], report["refused"], report["units"]) == (2, 1, 4)

    def test_a_day_becomes_a_row(self) -> None:
        said("quota_rollup", "--json")

        assert list(DailyCounter.objects.values_list("allowed", "refused", "units")) == [(2, 1, 4)]

    def test_usage_stays_the_same(self) -> None:
        before = recent_usage("user:1")

        said("quota_rollup", "--json")

        assert recent_usage("user:1") == before

    def test_a_day_is_moved_once(self) -> None:
        said("quota_rollup", "--json")

        assert said("quota_rollup", "--json")["days"] == 0


def fill(store: DatabaseStore, number: int, expiry: int, kind: str = "c") -> None:
    for each in range(number):
        store.run(Put(f"quota:1:{{user:{each}}}:{kind}:x", 1, expiry))


def states(store: DatabaseStore) -> int:
    return len(list(store.names("*")))


def test_the_names_of_several_pages_come_once_each(store: DatabaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "KEYS_A_PAGE", 2)
    fill(store, 5, now() + 3_600 * SECOND)

    names = list(store.names("quota:*"))

    assert (len(names), len(set(names))) == (5, 5)


class TestSweep:
    """Of states and a ban, most of which have expired, and of two events more than are kept."""

    @pytest.fixture
    def store(self, store: DatabaseStore, settings: Any) -> DatabaseStore:
        settings.QUOTA = {"STORE": "database", "EVENTS": 3}
        store, moment = current_store(), now()
        fill(store, 5, moment - 2 * 3_600 * SECOND)
        fill(store, 4, moment + 3_600 * SECOND, "u")
        with freeze(moment - 3 * 3_600 * SECOND):
            for _ in range(4):
                check(BANNING, "ip:192.0.2.1")  # a ban that has ended, and states
        for number in range(3):
            refuse(f"ip:198.51.100.{number}")
        return store

    def test_a_dry_run_counts_what_has_expired(self, store: DatabaseStore) -> None:
        found = said("quota_sweep", "--json", "--dry-run")

        assert (found["bans"], found["events"]) == (1, 2)
        assert found["states"] >= 6

    @pytest.mark.parametrize(
        ("words", "verb"), [([], "Deleted"), (["--dry-run"], "Would delete")], ids=["a sweep", "a dry run"]
    )
    def test_it_says_what_it_did(self, words: list[str], verb: str, store: DatabaseStore) -> None:
        assert re.fullmatch(rf"{verb} \d+ expired states, 1 ban and 2 events\.\n", said("quota_sweep", *words))

    def test_it_deletes_as_much_as_a_dry_run_counts(self, store: DatabaseStore) -> None:
        dry, done = (said("quota_sweep", "--json", *words) for words in (["--dry-run"], []))

        assert done["complete"]
        assert all(done[name] == dry[name] for name in ("states", "bans", "events"))

    def test_nothing_that_has_expired_is_left(self, store: DatabaseStore) -> None:
        moment = now()

        said("quota_sweep")

        assert list(store.names("quota:1:{user:*}:c:x")) == []
        assert max(count_expired(store, moment, KeptEvents(3, DAY))) == 0
        assert said("quota_sweep") == "Deleted 0 expired states, 0 bans and 0 events.\n"

    def test_its_progress_is_of_rows_of_every_kind(self, store: DatabaseStore) -> None:
        expired = said("quota_sweep", "--json", "--dry-run")
        number = expired["states"] + expired["bans"] + expired["events"]

        call_command("quota_sweep", stdout=StringIO(), stderr=(terminal := Terminal()))

        assert terminal.getvalue().endswith(f" {number} of {number}\n")

    def test_it_takes_the_part_of_each_second_that_is_chosen(
        self, store: DatabaseStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(quota_sweep, "sweep_rows", asked := Mock(wraps=operating_sweep.sweep_rows))

        said("quota_sweep", "--budget-ms", "999")

        assert asked.call_args.args[-1] == 999

    def test_what_has_not_expired_is_left(self, store: DatabaseStore) -> None:
        said("quota_sweep")

        assert len(reported()) == 3
        assert len(list(store.names("quota:1:{user:*}:u:x"))) == 4


class TestRoundsOfASweep:
    """Of five expired states, two in a round, and of two leases that have ended."""

    @pytest.fixture(autouse=True)
    def expired(self, store: DatabaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(operating_sweep, "ROWS_PER_CALL", 2)
        balance = counter("credits")
        with freeze(now() - 2 * 3_600 * SECOND):
            for org in ("org:7", "org:8"):
                balance.set(org, 100)
                reserve(balance, org, 60, lease="10m")
        fill(store, 5, now() - 2 * 3_600 * SECOND)

    def swept(self, stop: Any, advance: Callable[[int], object] = bool) -> operating_sweep.RowReport:
        store = current_store()
        return operating_sweep.sweep_rows(store, "quota", now(), KeptEvents(3, DAY), stop, advance, budget_ms=500)

    def test_progress_counts_the_deleted_rows(self) -> None:
        deleted = list[int]()

        report = self.swept(Event(), deleted.append)

        assert (deleted, report.rows.states) == ([2, 2, 1], 5)

    def test_each_lease_that_has_ended_is_counted(self) -> None:
        assert self.swept(Event()).leases == 2

    def test_a_key_of_a_subject_that_is_called_like_leases_is_none(self) -> None:
        check("5/m", "org:leased:9")

        assert self.swept(Event()).leases == 2

    def test_as_many_rounds_are_made_as_the_events_need(self) -> None:
        for number in range(11):
            refuse(f"ip:192.0.2.{number}")

        report = self.swept(Event())

        assert (report.rows.states, report.rows.events, report.is_complete) == (5, 8, True)

    def test_its_report_has_each_number(self) -> None:
        found = self.swept(Event()).as_json()

        assert 0 < found.pop("seconds") < 60
        assert found == {"states": 5, "bans": 0, "events": 0, "leases": 2, "foreign": [], "complete": True}

    def test_a_counter_with_data_of_another_program_stays(self) -> None:
        leased_key = key_of(subject_base("quota", "org:7"), "leased", "credits")
        current_store().run(Put(counter_key(leased_key), "text", now() + DAY))

        assert said("quota_sweep") == (
            "Deleted 5 expired states, 0 bans and 0 events.\nGave back 1 lease of counters.\n"
            "Note: left 1 counter with data of another program or version, such as "
            f"{leased_key}, or a key beside it.\n"
        )

    def test_the_command_says_how_many_leases_it_gave_back(self) -> None:
        assert said("quota_sweep") == (
            "Deleted 5 expired states, 0 bans and 0 events.\nGave back 2 leases of counters.\n"
        )

    def test_the_command_draws_its_progress_on_a_terminal(self) -> None:
        call_command("quota_sweep", stdout=StringIO(), stderr=(terminal := Terminal()))

        assert terminal.getvalue().endswith(f"\rDeleting {'█' * 20} 5 of 5\n")

    def test_the_command_says_that_it_was_stopped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        (stop := Event()).set()
        monkeypatch.setattr("django_quota.management.console.stopping", lambda: nullcontext(stop))

        assert said("quota_sweep").endswith("\nStopped before the end.\n")

    def test_each_lease_and_each_round_but_the_last_is_followed_by_a_pause(self) -> None:
        stop = Mock(spec=Event, **{"is_set.return_value": False})

        self.swept(stop)

        assert stop.wait.call_count == 4  # after two of the three rounds, and after each of the two leases

    @pytest.mark.usefixtures("short_pauses")
    @pytest.mark.parametrize(
        ("of", "name"),
        [
            pytest.param(operating_sweep, "delete_expired", id="a round"),
            pytest.param(sql, "page_of_keys", id="the names of the leases"),
            pytest.param(DatabaseStore, "run", id="a lease"),
        ],
    )
    def test_a_call_that_is_not_answered_is_made_again(
        self, of: Any, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(of, name, mostly_late(getattr(of, name), StoreUnavailable("late")))

        report = self.swept(Event())

        assert (report.rows.states, report.leases, report.is_complete) == (5, 2, True)

    def test_a_sweep_that_is_stopped_before_the_leases_is_not_complete(self) -> None:
        stop = Event()

        def advance(deleted: int) -> None:
            if deleted == 1:  # the last round
                stop.set()

        report = self.swept(stop, advance)

        assert (report.rows.states, report.leases, report.is_complete) == (5, 0, False)


def clean_after_an_interval() -> None:
    timer = Clock()
    cleaning = Cleaning(current_store().database, timer)
    timer.now += 1.5 * CLEANING_INTERVAL
    cleaning.flush()


@pytest.mark.parametrize(
    "delete",
    [
        pytest.param(partial(said, "quota_sweep"), id="a sweep"),
        pytest.param(clean_after_an_interval, id="a process that decides"),
    ],
)
@pytest.mark.parametrize(
    ("kept", "left"),
    [
        pytest.param({"EVENT_DAYS": 2}, ["user:1", "user:0"], id="EVENT_DAYS"),
        pytest.param({"EVENTS": 1}, ["user:0"], id="EVENTS"),
        pytest.param({}, ["user:3", "user:1", "user:0"], id="nothing set"),
    ],
)
def test_events_are_deleted_as_the_settings_say(
    delete: Callable[[], object], kept: dict[str, int], left: list[str], store: DatabaseStore, settings: Any
) -> None:
    settings.QUOTA = {"STORE": "database", **kept}
    moment = now()
    for days in (3, 1, 0):
        with freeze(moment - days * DAY):
            refuse(f"user:{days}")

    delete()

    assert [subject for _, subject in reported()] == left


@pytest.mark.thorough("slow")
@pytest.mark.usefixtures("short_pauses")
def test_late_replies_of_the_database_do_not_end_a_sweep(store: DatabaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 2 * operating_sweep.ROWS_PER_CALL + 1, now() - 2 * 3_600 * SECOND)
    for module, name in ((quota_sweep, "count_expired"), (operating_sweep, "delete_expired")):
        monkeypatch.setattr(module, name, mostly_late(getattr(module, name), StoreUnavailable("late")))
    (report,) = json_of("quota_sweep")
    assert (report["complete"], report["states"]) == (True, 2 * operating_sweep.ROWS_PER_CALL + 1)


@pytest.mark.usefixtures("short_pauses")
def test_late_replies_of_the_database_do_not_end_a_roll_up(
    store: DatabaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for user in range(3):
        check("5/m", f"user:{user}", name="api", daily=True)
    monkeypatch.setattr(store, "read", mostly_late(store.read, StoreUnavailable("late")))
    assert said("quota_rollup", "--json")["days"] == 3


@pytest.mark.parametrize("past_the_hour", [0, 1, sql.SWEEP_HOUR // 2, sql.SWEEP_HOUR - 1])
class TestExpiry:
    @pytest.fixture
    def expiry(self, store: DatabaseStore, past_the_hour: int) -> int:
        expiry = 500_000 * sql.SWEEP_HOUR + past_the_hour
        fill(store, 1, expiry)
        return expiry

    def test_a_sweep_keeps_a_state_until_it_expires(self, store: DatabaseStore, expiry: int) -> None:
        assert delete_expired(store, expiry - 1, NONE_KEPT, BATCH).states == 0
        assert states(store) == 1

    def test_a_sweep_an_hour_later_deletes_the_state(self, store: DatabaseStore, expiry: int) -> None:
        assert delete_expired(store, expiry + sql.SWEEP_HOUR, NONE_KEPT, BATCH).states == 1
        assert states(store) == 0


class TestProcessThatDecides:
    """It deletes a batch now and then."""

    @pytest.fixture
    def timer(self) -> Clock:
        return Clock()

    @pytest.fixture
    def cleaning(self, store: DatabaseStore, timer: Clock) -> Cleaning:
        """With three states that have expired, after its first round."""
        fill(store, 3, now() - 2 * 3_600 * SECOND)
        cleaning = Cleaning(store, timer)
        cleaning.flush()
        return cleaning

    def test_it_deletes_nothing_at_first(self, store: DatabaseStore, cleaning: Cleaning) -> None:
        assert states(store) == 3

    def test_it_deletes_what_has_expired_after_an_interval(
        self, store: DatabaseStore, cleaning: Cleaning, timer: Clock
    ) -> None:
        timer.now += 1.5 * CLEANING_INTERVAL

        cleaning.flush()

        assert states(store) == 0

    def test_a_full_batch_is_followed_by_another_in_the_next_round(
        self, cleaning: Cleaning, timer: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        batches = [Expired(BATCH, 0, 0), Expired(1, 0, 0)]
        monkeypatch.setattr("django_quota.limiting.stores.delete_expired", lambda *_: batches.pop(0))
        timer.now += 1.5 * CLEANING_INTERVAL

        for _ in range(2):
            cleaning.flush()

        assert batches == []

    def test_the_limiter_of_a_database_cleans(self, store: DatabaseStore) -> None:
        assert get_limiter().stores.first.cleaning is not None


@pytest.mark.parametrize(
    ("quota", "database", "ids"),
    [
        pytest.param({}, {}, [], id="the default database"),
        pytest.param({"DATABASE": "elsewhere"}, {}, ["E028"], id="an unknown alias"),
        pytest.param({"STORE": "postgres"}, {}, ["E002"], id="an unknown store"),
        pytest.param({}, {"ENGINE": "django.db.backends.dummy"}, ["E029"], id="an unknown engine"),
    ],
)
def test_a_wrong_database_is_found_when_the_site_starts(
    quota: dict[str, Any], database: dict[str, Any], ids: list[str], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.QUOTA = {"STORE": "database", **quota}
    monkeypatch.setitem(connections.settings, "default", {**connections.settings["default"], **database})
    assert [str(found.id).partition(".")[2] for found in run_checks(tags=["django_quota"])] == ids
