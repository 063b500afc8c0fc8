"""The tables: what a row may say, and what the database itself refuses."""

import shutil
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Model
from django.template import Context, Template
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from django_quota import check
from django_quota.core import clock
from django_quota.exceptions import RateError, RuleError
from django_quota.models import (
    DailyCounter,
    OverrideChange,
    QuotaBan,
    QuotaEvent,
    QuotaOverride,
    QuotaState,
    overrides_changed,
)
from django_quota.testing import freeze
from tests.support.databases import LaggingReplica, another_database, default_database, sqlite_database

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


pytestmark = pytest.mark.always("postgresql")


@pytest.fixture(autouse=True)
def switched_off(settings: Any) -> None:
    settings.QUOTA = {"ENABLED": False}


def override(**values: Any) -> QuotaOverride:
    return QuotaOverride(**{"subject": "user:1", "rule": "search", "mode": "blocked", **values})


@pytest.mark.usefixtures("database")
def test_no_migration_is_missing() -> None:
    call_command("makemigrations", "django_quota", "--check", "--dry-run", stdout=StringIO())


@pytest.mark.usefixtures("database")
def test_the_tables_can_be_made_again_after_they_were_removed() -> None:
    def tables() -> set[str]:
        return {name for name in connection.introspection.table_names() if name.startswith("django_quota_")}

    before = tables()

    call_command("migrate", "django_quota", "zero", verbosity=0)
    assert (len(before), tables()) == (7, set())

    call_command("migrate", "django_quota", verbosity=0)
    assert tables() == before


@pytest.mark.usefixtures("database")
def test_a_migration_keeps_the_names_of_those_who_saved_overrides() -> None:
    ann = User.objects.create_user("ann")
    call_command("migrate", "django_quota", "0002", verbosity=0)
    then = MigrationExecutor(connection).loader.project_state(("django_quota", "0002_override_change")).apps
    rows = then.get_model("django_quota", "QuotaOverride").objects
    for number, created_by_id in ((1, ann.pk), (2, None), (3, 12_345)):
        rows.create(subject=f"user:{number}", mode="blocked", created_by_id=created_by_id)
    call_command("migrate", "django_quota", verbosity=0)
    assert list(QuotaOverride.objects.values_list("created_by", flat=True)) == ["ann", "", ""]


class Parts:
    """A router that keeps our tables in a database of their own, apart from those of users."""

    def allow_migrate(self, db: str, app_label: str, **_: Any) -> bool:
        return app_label == "django_quota"


@pytest.mark.thorough("slow")
def test_our_tables_may_be_in_another_database_than_users(
    tmp_path: Path, settings: Any, django_db_blocker: Any
) -> None:
    settings.DATABASE_ROUTERS = [Parts()]
    with django_db_blocker.unblock(), default_database(sqlite_database(tmp_path / "ours.sqlite3")):
        call_command("migrate", verbosity=0)
        assert "auth_user" not in connection.introspection.table_names()
        row = override(created_by="ann")
        row.save()
        row.delete()


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"mode": "rate", "rate": "10/s; 500/h"}, "", ""), ({"mode": "exempt"}, "", ""),
        ({"rule": "*", "starts": NOW, "expires": NOW + HOUR}, "", ""),
        ({"starts": NOW, "expires": NOW}, "expires", "must expire after it starts"),
        ({"mode": "rate", "rate": "  "}, "rate", "needs a rate"),
        ({"mode": "rate", "rate": "10/m;"}, "rate", "'10/m;' is not a rate"),
        ({"rate": "10/m"}, "rate", "belongs to the mode"),
        ({"mode": "rate", "rate": "10/month"}, "rate", "calendar"),
        ({"mode": "rate", "rate": "10/month", "rule": "*"}, "rate", "calendar"),
        ({"mode": "rate", "rate": "10/month", "rule": "plan"}, "", ""),
        ({"mode": "rate", "rate": "10/d", "rule": "of a decorator"}, "", ""),
        ({"mode": "rate", "rate": "10/mx", "rule": "of a decorator"}, "rate", "'10/mx' is not a rate"),
        ({"subject": ""}, "subject", ""),
        ({"subject": "ip:nowhere"}, "subject", "is not an IP address"),
        ({"starts": NOW, "expires": NOW - HOUR}, "expires", "must expire after it starts"),
        ({"starts": NOW}, "", ""), ({"expires": NOW}, "", ""),
    ],
)  # fmt: skip
def test_a_row_that_contradicts_itself_or_its_rule_is_a_problem_of_a_field(
    values: dict[str, Any], field: str, words: str, settings: Any
) -> None:
    settings.QUOTA = {"RULES": {"search": "10/m", "plan": {"rate": "9/month", "algorithm": "calendar"}}}
    row = override(**values)
    with pytest.raises(ValidationError) if field else nullcontext() as caught:
        row.clean_fields()
        row.clean()
    if caught:
        assert list(caught.value.message_dict) == [field]
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("values", "problems"),
    [
        pytest.param({"mode": "exempt"}, {}, id="nothing"),
        pytest.param({"subject": ""}, {}, id="an empty subject, which its field refuses"),
        pytest.param(
            {"starts": NOW, "expires": NOW}, {"expires": ["It must expire after it starts."]}, id="an end at the start"
        ),
        pytest.param({"mode": "rate"}, {"rate": ["This mode needs a rate, such as 100/m."]}, id="no rate"),
        pytest.param(
            {"rate": "10/m"},
            {"rate": ['A rate belongs to the mode "another rate", and to no other.']},
            id="a rate of a block",
        ),
        pytest.param(
            {"rate": " "},
            {"rate": ['A rate belongs to the mode "another rate", and to no other.']},
            id="a blank as the rate of a block",
        ),
        pytest.param(
            {"mode": "rate", "rate": "9/m", "rule": "broken"},
            {"rate": ["It does not fit its rule: QUOTA[\"RULES\"]['broken']: 'of' is not an option of a rule."]},
            id="a rule that cannot be read",
        ),
        pytest.param(
            {"mode": "rate", "rate": "10/month"},
            {"rate": ["'10/month' is not a rate: 'sliding_window' does not count in months (at position 3)."]},
            id="a rate that the rule does not know",
        ),
        pytest.param(
            {"subject": "ip:nowhere", "mode": "rate"},
            {
                "subject": ["'ip:nowhere' is not an IP address. Use, for example, 'ip:203.0.113.9'."],
                "rate": ["This mode needs a rate, such as 100/m."],
            },
            id="two problems",
        ),
    ],
)
def test_a_row_says_what_is_wrong_with_it(
    values: dict[str, Any], problems: dict[str, list[str]], settings: Any
) -> None:
    settings.QUOTA = {"RULES": {"search": "10/m", "broken": {"rate": "9/m", "of": "ip"}}}

    with pytest.raises(ValidationError) if problems else nullcontext() as caught:
        override(**values).clean()

    found = caught.value.message_dict if caught else {}
    assert {
        name: [words.partition(" Known: ")[0].partition(" Use algorithm")[0] for words in found[name]] for name in found
    } == problems


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"mode": "exempt"}, "user:1, search: exempt"),
        ({"mode": "exempt", "subject": "*"}, "everybody, search: off for everybody"),
        ({"mode": "exempt", "subject": "*", "rule": "*"}, "everybody, all rules: off for everybody"),
        ({"mode": "blocked", "rule": "*"}, "user:1, all rules: blocked"),
        ({"mode": "blocked", "subject": "*"}, "everybody, search: blocked"),
        ({"mode": "rate", "rate": "5/m"}, "user:1, search: 5/m"),
        ({"mode": "shadow"}, "user:1, search: reports only"),
    ],
)
def test_an_override_says_who_it_is_about_with_what_it_does(values: dict[str, Any], said: str) -> None:
    assert str(override(**values)) == said


@pytest.mark.parametrize(
    ("row", "said"),
    [
        pytest.param(OverrideChange(pk=7), "7", id="a change of overrides"),
        pytest.param(
            DailyCounter(subject="user:1", rule="api", day=date(2026, 11, 21), allowed=3, refused=2, units=5),
            "user:1, api, 2026-11-21: 3 allowed, 2 refused, 5 units",
            id="a daily counter",
        ),
        pytest.param(QuotaState(key="quota:1:{user:1}:s"), "quota:1:{user:1}:s", id="a state"),
        pytest.param(QuotaEvent(data='["refused"]'), '["refused"]', id="an event"),
        pytest.param(QuotaBan(subject="user:1", rule="api"), "user:1, api", id="a ban"),
    ],
)
def test_a_row_says_what_it_is_about(row: Model, said: str) -> None:
    assert str(row) == said


Change = Callable[[Any, QuotaOverride, dict[str, Any]], object]

EACH_CHANGE = pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda rows, row, using: row.save(**using), id="save"),
        pytest.param(lambda rows, row, using: row.delete(**using), id="delete"),
        pytest.param(lambda rows, row, using: rows.update(reason="spam"), id="update"),
        pytest.param(lambda rows, row, using: rows.bulk_update([row], ["reason"]), id="bulk_update"),
        pytest.param(lambda rows, row, using: rows.delete(), id="delete of a query"),
        pytest.param(
            lambda rows, row, using: rows.bulk_create(
                [row], update_conflicts=True, unique_fields=["subject", "rule"], update_fields=["reason"]
            ),
            id="bulk_create",
        ),
    ],
)
"""Each way to change overrides: of a query, of its only row, with the database that a caller names."""


@pytest.mark.usefixtures("database")
class TestTheDatabase:
    def test_saving_keeps_what_cleaning_would(self) -> None:
        override(subject="ip:2001:DB8::7").save()
        assert QuotaOverride.objects.get().subject == "ip:2001:db8::/64"
        QuotaOverride.objects.bulk_create([override(subject="ip:2001:DB8:1::7")])
        QuotaOverride.objects.filter(subject="ip:2001:db8::/64").update(subject="ip:2001:DB8:2::7")
        assert {row.subject for row in QuotaOverride.objects.all()} == {"ip:2001:db8:1::/64", "ip:2001:db8:2::/64"}
        with pytest.raises(RuleError):
            override(subject="").save()

    def test_a_row_is_saved_though_old_changes_cannot_be_deleted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(using: str) -> None:
            raise DatabaseError("too busy")

        monkeypatch.setattr("django_quota.models._forget_changes", fail)

        override().save()

        assert QuotaOverride.objects.count() == 1

    @pytest.mark.parametrize("rate", ["many", "", " "], ids=["no rate", "an empty one", "a blank"])
    def test_another_rate_that_is_none_is_an_error(self, rate: str) -> None:
        with pytest.raises(RateError):
            override(mode="rate", rate=rate).save()

    @pytest.mark.parametrize(
        "save",
        [
            pytest.param(lambda row: row.save(), id="save"),
            pytest.param(lambda row: QuotaOverride.objects.bulk_create([row]), id="bulk_create"),
            pytest.param(lambda row: QuotaOverride.objects.bulk_update([row], ["subject"]), id="bulk_update"),
            pytest.param(lambda row: QuotaOverride.objects.update(subject=row.subject), id="update"),
        ],
    )
    def test_a_subject_that_names_nobody_is_an_error(self, save: Any) -> None:
        row = override()
        row.save()
        row.subject = "ip:nowhere"

        with pytest.raises(RuleError, match="is not an IP address"):
            save(row)

        assert QuotaOverride.objects.get().subject == "user:1"

    def test_a_row_of_which_some_fields_are_saved_has_the_number_of_the_change(self) -> None:
        row = override()
        row.save()

        row.reason = "spam"
        row.save(update_fields=["reason"])

        saved, last = QuotaOverride.objects.get(), OverrideChange.objects.latest("pk")
        assert (saved.reason, saved.change, row.change) == ("spam", last.pk, last.pk)

    def test_a_change_says_which_rows_it_deleted(self) -> None:
        for pk in (71, 72, 73):
            override(subject=f"user:{pk}", pk=pk).save()

        QuotaOverride.objects.get(pk=71).delete()
        QuotaOverride.objects.filter(pk__in=[72, 73]).order_by("pk").delete()

        removed = OverrideChange.objects.order_by("pk").values_list("removed", flat=True)
        assert list(removed) == ["", "", "", "71", "72 73"]

    @pytest.fixture
    def changed_rows(self) -> list[QuotaOverride]:
        """Two rows whose subjects were changed, to another spelling of an address, and are not saved yet."""
        rows = [override(), override(subject="user:2")]
        QuotaOverride.objects.bulk_create(rows)
        for number, row in enumerate(rows):
            row.subject = f"ip:2001:DB8:{number}::7"
        return rows

    @pytest.mark.parametrize("batch_size", [None, 1])
    def test_rows_that_are_updated_together_have_their_subjects_in_one_form(
        self, batch_size: int | None, changed_rows: list[QuotaOverride]
    ) -> None:
        changed = QuotaOverride.objects.bulk_update(changed_rows, ["subject"], batch_size=batch_size)

        subjects = ["ip:2001:db8::/64", "ip:2001:db8:1::/64"]
        assert (changed, [row.subject for row in changed_rows]) == (2, subjects)
        assert {row.subject for row in QuotaOverride.objects.all()} == set(subjects)

    def test_rows_may_come_one_by_one(self, changed_rows: list[QuotaOverride]) -> None:
        added = QuotaOverride.objects.bulk_create(override(subject=f"org:{number}") for number in (1, 2))
        changed = QuotaOverride.objects.bulk_update((row for row in changed_rows), ["subject"])

        assert (len(added), changed) == (2, 2)
        subjects = ["ip:2001:db8:1::/64", "ip:2001:db8::/64", "org:1", "org:2"]
        assert [row.subject for row in QuotaOverride.objects.order_by("subject")] == subjects

    @pytest.mark.parametrize(("batch_size", "queries"), [(None, 1), (1, 2)])
    def test_rows_are_updated_by_one_query_a_batch(
        self, batch_size: int | None, queries: int, changed_rows: list[QuotaOverride]
    ) -> None:
        with CaptureQueriesContext(connection) as captured:
            QuotaOverride.objects.bulk_update(changed_rows, ["subject"], batch_size=batch_size)

        updates = [each for each in captured.captured_queries if each["sql"].startswith("UPDATE")]
        assert len(updates) == queries

    def test_deleting_says_what_is_gone(self) -> None:
        rows = [override(subject=f"user:{number}") for number in range(3)]
        QuotaOverride.objects.bulk_create(rows)

        found = QuotaOverride.objects.filter(subject="user:0").delete(), QuotaOverride.objects.last().delete()  # type: ignore[union-attr]

        assert found == ((1, {"django_quota.QuotaOverride": 1}),) * 2

    @EACH_CHANGE
    def test_a_change_asks_no_replica(self, change: Change, settings: Any) -> None:
        override().save()
        settings.DATABASE_ROUTERS = [LaggingReplica()]

        change(QuotaOverride.objects.all(), QuotaOverride.objects.using("default").get(), {})

        assert OverrideChange.objects.using("default").count() == 2

    @EACH_CHANGE
    def test_a_change_in_a_database_that_the_caller_names_is_of_that_one(
        self, change: Change, sqlite: Any, tmp_path: Path
    ) -> None:
        """`other` has a row of the same key, so a change of the wrong row would be seen."""
        override(pk=1).save()
        heard = list[Any]()

        def hear(using: str, rows: Any, removed: Any = (), **_: Any) -> None:
            heard.append((using, [row.mode for row in rows], list(removed)))

        with another_database("other", sqlite_database(Path(shutil.copy(sqlite["NAME"], tmp_path / "o.sqlite3")))):
            override(pk=1, mode="exempt").save(using="other")
            rows = QuotaOverride.objects.using("other")
            overrides_changed.connect(hear)
            change(rows.all(), override(pk=1, mode="exempt", created=NOW), {"using": "other"})
            overrides_changed.disconnect(hear)

            counts = [OverrideChange.objects.using(alias).count() for alias in ("default", "other")]
            (heard_of,) = heard
            assert counts == [1, 2]
            assert heard_of in [("other", ["exempt"], []), ("other", [], [1])]
            assert OverrideChange.objects.using("other").latest("pk").removed == " ".join(map(str, heard_of[2]))
            assert rows.count() == len(heard_of[1])
        assert QuotaOverride.objects.get().mode == "blocked"

    def test_the_log_of_a_database_that_the_caller_names_forgets_its_old_changes(
        self, sqlite: Any, tmp_path: Path
    ) -> None:
        with another_database("other", sqlite_database(Path(shutil.copy(sqlite["NAME"], tmp_path / "o.sqlite3")))):
            row = override()
            for _ in range(3):
                row.save(using="other")
            log = OverrideChange.objects.using("other")
            log.update(at=0)

            with suppress(ZeroDivisionError), transaction.atomic():  # of the default database
                row.save(using="other")
                raise ZeroDivisionError

            assert log.count() == 2

    @pytest.mark.parametrize("place", [nullcontext, transaction.atomic], ids=["by itself", "in a transaction"])
    def test_a_change_stays_though_the_log_cannot_forget(
        self, place: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(using: str) -> None:
            raise DatabaseError("the disk is full")

        monkeypatch.setattr("django_quota.models._forget_changes", fail)

        with place():
            override().save()

        assert QuotaOverride.objects.exists()
        assert "the disk is full" in caplog.text

    def test_a_change_that_an_upsert_makes_has_its_number_on_the_row(self) -> None:
        override(reason="old").save()

        QuotaOverride.objects.bulk_create(
            [override(reason="new")],
            update_conflicts=True, unique_fields=["subject", "rule"], update_fields=["reason"],
        )  # fmt: skip

        row = QuotaOverride.objects.get()
        assert (row.reason, row.change) == ("new", OverrideChange.objects.latest("pk").pk)

    @pytest.mark.parametrize("method", ["update", "delete"])
    def test_a_template_changes_no_row(self, method: str) -> None:
        override().save()
        number = OverrideChange.objects.count()

        Template(f"{{{{ rows.{method} }}}}").render(Context({"rows": QuotaOverride.objects.all()}))

        assert (QuotaOverride.objects.count(), OverrideChange.objects.count()) == (1, number)

    @pytest.mark.parametrize(
        ("starts", "expires", "is_active"),
        [
            pytest.param(-HOUR, HOUR, True, id="now"),
            pytest.param(HOUR, None, False, id="later"),
            pytest.param(None, -HOUR, False, id="earlier"),
        ],
    )
    def test_active_without_a_moment_means_now(
        self, starts: timedelta | None, expires: timedelta | None, is_active: bool
    ) -> None:
        now = timezone.now()
        override(starts=starts and now + starts, expires=expires and now + expires).save()

        assert QuotaOverride.objects.active().exists() is is_active

    def test_only_changes_of_the_last_hour_are_kept(self) -> None:
        for seconds in (3_700, 3_600, 3_590):
            with transaction.atomic():
                row = override(subject=f"user:{seconds}")
                row.save()
                at = clock.machine_now() - seconds * clock.SECOND
                OverrideChange.objects.filter(pk=row.change).update(at=at)

        override().save()

        assert OverrideChange.objects.count() == 3, "with the newest of the old ones, so that there is always one"

    def test_the_log_of_changes_follows_the_clock_of_the_machine(self) -> None:
        """A test of a site that sets the time of its limits changes nothing for other processes."""
        began, row = clock.machine_now(), override()

        with freeze(began + 10 * clock.DAY):
            row.save()
            row.save()

        moments = OverrideChange.objects.values_list("at", flat=True)
        assert [began <= at <= clock.machine_now() for at in moments] == [True, True]

    @pytest.mark.parametrize(
        "subject", ["user:ann+shop@example.org", f"user:{'+' * 150}", "ip:2001:DB8::7", "user:*", "*"]
    )
    def test_an_override_is_found_however_its_subject_is_written(self, subject: str) -> None:
        for mode in ("blocked", "exempt"):
            QuotaOverride.objects.update_or_create(subject=subject, rule="search", defaults={"mode": mode})
        found = QuotaOverride.objects.get(subject=subject)
        assert QuotaOverride.objects.filter(subject__in=[found.subject, "ip:nowhere"]).get() == found
        assert found.mode == "exempt"

    @pytest.mark.parametrize(
        "values",
        [pytest.param({"rule": "*"}, id="another rule"), pytest.param({"subject": "user:2"}, id="another subject")],
    )
    def test_a_subject_may_have_one_override_a_rule(self, values: dict[str, str]) -> None:
        override().save()

        override(**values).save()

        assert QuotaOverride.objects.count() == 2

    def test_a_form_refuses_a_second_override_of_a_subject_under_a_rule(self) -> None:
        override().save()

        with pytest.raises(ValidationError):
            override().full_clean()

    def test_the_database_refuses_a_second_override_of_a_subject_under_a_rule(self) -> None:
        override().save()

        with pytest.raises(IntegrityError), transaction.atomic():
            override().save()

    def test_the_database_refuses_a_second_counter_of_a_day(self) -> None:
        DailyCounter.objects.create(subject="user:1", rule="search", day=date(2026, 11, 21))

        with pytest.raises(IntegrityError), transaction.atomic():
            DailyCounter.objects.create(subject="user:1", rule="search", day=date(2026, 11, 21))

    def test_a_count_is_never_negative(self) -> None:
        DailyCounter.objects.create(subject="user:1", rule="search", day=date(2026, 11, 21))

        with pytest.raises(IntegrityError), transaction.atomic():
            DailyCounter.objects.update(allowed=-1)

    def test_a_count_may_be_as_high_as_64_bits_allow(self) -> None:
        DailyCounter.objects.create(subject="user:1", rule="search", day=date(2026, 11, 21))

        DailyCounter.objects.update(allowed=2**63 - 1)

        assert DailyCounter.objects.get().allowed == 2**63 - 1

    @pytest.mark.parametrize(
        "values", [{"mode": "rate"}, {"rate": "9/m"}, {"mode": "perhaps"}, {"starts": NOW, "expires": NOW}]
    )
    def test_it_refuses_what_contradicts_itself(self, values: dict[str, Any]) -> None:
        with pytest.raises(IntegrityError), transaction.atomic():
            QuotaOverride.objects.bulk_create([override(**values)])

    @pytest.mark.parametrize(
        ("starts", "expires", "is_active"),
        [
            pytest.param(None, None, True, id="always"),
            pytest.param(NOW, None, True, id="from now"),
            pytest.param(None, NOW + HOUR, True, id="until later"),
            pytest.param(None, NOW, False, id="until now"),
            pytest.param(NOW + HOUR, None, False, id="from later"),
        ],
    )
    def test_an_override_is_active_from_its_start_until_its_end(
        self, starts: datetime | None, expires: datetime | None, is_active: bool
    ) -> None:
        override(starts=starts, expires=expires).save()

        assert QuotaOverride.objects.active(NOW).exists() is is_active

    def test_rows_are_found_through_an_index(self) -> None:
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET enable_seqscan = off")  # as for many rows
        day = date(2026, 11, 3)
        wanted: list[dict[str, Any]] = [{"subject": "user:7"}, {"day": day}, {"day": day, "rule": "r1"}]

        plans = {str(each): DailyCounter.objects.filter(**each).order_by().explain().lower() for each in wanted}

        assert {each: plan for each, plan in plans.items() if "index" not in plan or "seq scan" in plan} == {}
        connection.close()

    def test_a_counter_row_is_found_by_its_user(self) -> None:
        user = User.objects.create(username="ann")
        for subject in (f"user:{user.pk}", "user:0", f"user:{user.pk}+path:/x"):
            DailyCounter.objects.create(subject=subject, rule="search", day=date(2026, 11, 21))
        assert DailyCounter.objects.of_user(user).get().user_pk == str(user.pk)
        assert DailyCounter(subject=f"user:{user.pk}+path:/x").user_pk is None


def test_the_counters_of_a_user_who_was_never_saved_are_an_error() -> None:
    with pytest.raises(RuleError, match="has no primary key"):
        DailyCounter.objects.of_user(User(username="ann"))


@pytest.mark.parametrize(
    ("subject", "pk"),
    [
        pytest.param("user:7", "7", id="a user"),
        pytest.param("user:a%20b%3A", "a b:", id="a key that is escaped"),
        pytest.param("user:", None, id="nobody"),
        pytest.param("user:7+ip:192.0.2.1", None, id="a user at an address"),
        pytest.param("org:7", None, id="another kind"),
        pytest.param("global", None, id="the site"),
    ],
)
def test_a_counter_knows_the_key_of_its_user_alone(subject: str, pk: str | None) -> None:
    assert DailyCounter(subject=subject).user_pk == pk


@given(st.text(min_size=1, max_size=30).filter(lambda text: not any("\ud800" <= sign <= "\udfff" for sign in text)))
def test_a_users_key_is_read_back_whatever_it_is(pk: str) -> None:
    with override_settings(QUOTA={"STORE": "memory"}):
        subject = check("1/m", User(pk=pk)).subject
    assert DailyCounter(subject=subject).user_pk == pk
