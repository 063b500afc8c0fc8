"""`quota_override` lists, sets, imports and clears overrides."""

import io
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import call, patch

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError
from django.db import DatabaseError, IntegrityError, OperationalError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_quota import check
from django_quota.exceptions import RuleError
from django_quota.limiting.override_rows import TRIES, set_override
from django_quota.management.commands import quota_override
from django_quota.models import QuotaOverride
from django_quota.operating import override_lists
from django_quota.operating.override_lists import read_list
from tests.support import commands
from tests.support.databases import LaggingReplica

SUBJECT = "ip:203.0.113.9"
TABLE = "django_quota_quotaoverride"


@pytest.fixture(autouse=True)
def rules(memory_store: None, database: Any, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"search": "10/m", "signup": {"rate": "5/h", "key": "ip"}}}


said = partial(commands.said, "quota_override")


def rows() -> dict[tuple[str, str], str]:
    """Return what each subject and rule has in the database."""
    return {(row.subject, row.rule): str(row.rate or row.mode) for row in QuotaOverride.objects.all()}


def typed_in(text: str) -> io.TextIOWrapper:
    """Return a stdin that has this text."""
    return io.TextIOWrapper(io.BytesIO(text.encode()))


LIST = """\ufeff# crawlers
203.0.113.9   # one address

ip:198.51.100.0/24
2001:db8::/32
203.0.113.9
"""


class TestSet:
    def test_it_saves_a_row_that_it_prints(self) -> None:
        (printed,) = said("set", SUBJECT, "blocked", "--reason", "spam", "--label", "bots", "--json")

        assert rows() == {(SUBJECT, "*"): "blocked"}
        assert [printed[name] for name in ("mode", "rule", "reason", "label")] == ["blocked", "*", "spam", "bots"]

    def test_it_holds_at_once(self) -> None:
        said("set", SUBJECT, "blocked")

        assert not check("search", SUBJECT)

    def test_it_replaces_the_override_that_the_subject_had(self) -> None:
        said("set", SUBJECT, "blocked", "--reason", "spam", "--label", "bots")

        (replaced,) = said("set", SUBJECT, "5/m", "--json")

        assert rows() == {(SUBJECT, "*"): "5/m"}
        assert (replaced["reason"], replaced["label"]) == ("", "")

    def test_it_holds_at_once_in_place_of_one_that_would_begin_later(self) -> None:
        later = datetime.now(UTC) + timedelta(days=1)
        set_override("*", SUBJECT, {"mode": "exempt", "starts": later, "expires": later + timedelta(days=1)})

        (replaced,) = said("set", SUBJECT, "blocked", "--json")

        assert (replaced["starts"], replaced["expires"]) == (None, None)
        assert not check("search", SUBJECT)

    def test_the_override_of_one_rule_stands_beside_that_of_all(self) -> None:
        said("set", SUBJECT, "5/m")
        said("set", SUBJECT, "exempt", "--rule", "search")

        assert rows() == {(SUBJECT, "*"): "5/m", (SUBJECT, "search"): "exempt"}

    def test_its_end_may_be_a_duration(self) -> None:
        (printed,) = said("set", SUBJECT, "5/m", "--for", "2h", "--json")

        left = datetime.fromisoformat(printed["expires"]) - datetime.now(UTC)
        assert timedelta(minutes=110) < left <= timedelta(hours=2)

    def test_its_end_may_be_a_moment(self) -> None:
        (printed,) = said("set", SUBJECT, "exempt", "--until", "2126-01-31T12:00", "--json")

        assert printed["expires"].startswith("2126-01-31T12:00")

    @pytest.mark.parametrize(
        ("use_tz", "typed", "ends"),
        [
            pytest.param(True, "2126-01-31T12:00", "2126-01-31T03:00:00+00:00", id="in the zone of the site"),
            pytest.param(True, "2126-01-31T12:00+02:00", "2126-01-31T10:00:00+00:00", id="in its own zone"),
            pytest.param(False, "2126-01-31T12:00", "2126-01-31T03:00:00+00:00", id="of a site without zones"),
            pytest.param(False, "2126-01-31T12:00+02:00", "2126-01-31T10:00:00+00:00", id="with a zone nevertheless"),
        ],
    )
    def test_its_end_is_a_moment(self, use_tz: bool, typed: str, ends: str, settings: Any) -> None:
        settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Tokyo"

        (printed,) = said("set", SUBJECT, "exempt", "--until", typed, "--json")

        assert printed["expires"] == ends

    def test_without_an_end_it_has_none(self) -> None:
        (printed,) = said("set", SUBJECT, "exempt", "--json")

        assert (printed["starts"], printed["expires"]) == (None, None)

    def test_its_end_is_either_a_duration_or_a_moment(self) -> None:
        with pytest.raises(CommandError, match="--until: not allowed with argument --for"):
            said("set", SUBJECT, "exempt", "--for", "2h", "--until", "2126-01-31T12:00")

    @pytest.mark.parametrize(
        ("typed", "saved", "concerned"),
        [
            pytest.param("198.51.100.7/24", "ip:198.51.100.0/24", "ip:198.51.100.77", id="a network"),
            pytest.param("ip:2001:DB8::7/32", "ip:2001:db8::/32", "ip:2001:db8:1::/64", id="an IPv6 network"),
            pytest.param("*", "*", "org:7", id="everybody"),
            pytest.param("user:*", "user:*", "user:42", id="all users"),
        ],
    )
    def test_a_group_of_subjects_can_be_typed(self, typed: str, saved: str, concerned: str) -> None:
        said("set", typed, "blocked")

        assert rows() == {(saved, "*"): "blocked"}
        assert not check("search", concerned)

    @pytest.mark.parametrize("typed", ["198.51.100.7/24", "*"], ids=["a network", "everybody"])
    def test_the_override_of_a_group_is_cleared_by_what_was_typed(self, typed: str) -> None:
        said("set", typed, "blocked")

        said("clear", typed)

        assert check("search", "ip:198.51.100.77")

    def test_each_wrong_value_is_named(self) -> None:
        with pytest.raises(CommandError) as caught:
            said("set", SUBJECT, "9/month", "--label", "b" * 101)

        assert [word in str(caught.value) for word in ("rate: ", "label: ")] == [True, True]


class TestBy:
    @pytest.mark.parametrize("verb", ["set", "import"])
    def test_the_override_says_who_set_it_last(self, verb: str, tmp_path: Path) -> None:
        set_override("*", SUBJECT, {"mode": "exempt", "reason": "a guest", "label": "bots", "created_by": "root"})
        (listed := tmp_path / "list.txt").write_text(SUBJECT)
        what = {"set": (SUBJECT, "blocked"), "import": (str(listed),)}[verb]

        said(verb, *what, "--label", "bots", "--reason", "spam", "--by", "the watchdog")

        saved = QuotaOverride.objects.get()
        assert (saved.mode, saved.reason, saved.created_by) == ("blocked", "spam", "the watchdog")

    def test_an_override_that_is_set_without_a_name_shows_none(self) -> None:
        said("set", SUBJECT, "blocked", "--by", "root")

        said("set", SUBJECT, "exempt")

        assert QuotaOverride.objects.get().created_by == ""

    @pytest.mark.parametrize(
        ("words", "logged"),
        [
            pytest.param(("set", "blocked", "--reason", "spam"), "Set: {}, all rules: blocked (spam)", id="set"),
            pytest.param(("clear",), "Cleared: {}, all rules: exempt", id="clear"),
        ],
    )
    def test_the_log_of_the_admin_has_what_a_user_did(self, words: tuple[str, ...], logged: str) -> None:
        ann = User.objects.create_user("ann")
        set_override("*", SUBJECT, {"mode": "exempt"})
        verb, *more = words

        said(verb, SUBJECT.removeprefix("ip:"), *more, "--by", "ann")

        entry = LogEntry.objects.get()
        assert (entry.object_id, entry.user, entry.change_message) == (SUBJECT, ann, logged.format(SUBJECT))

    def test_the_log_of_the_admin_has_each_subject_that_is_cleared(self) -> None:
        User.objects.create_user("ann")
        for subject in (SUBJECT, "org:7"):
            set_override("*", subject, {"mode": "exempt", "label": "bots"})

        said("clear", "--label", "bots", "--by", "ann")

        logged = {entry.object_id: entry.change_message for entry in LogEntry.objects.all()}
        assert logged == {subject: f"Cleared: {subject}, all rules: exempt" for subject in (SUBJECT, "org:7")}

    def test_the_log_of_the_admin_has_no_dry_run(self) -> None:
        User.objects.create_user("ann")
        set_override("*", SUBJECT, {"mode": "exempt"})

        said("clear", SUBJECT, "--dry-run", "--by", "ann")

        assert not LogEntry.objects.exists()

    def test_the_list_names_who_set_an_override(self) -> None:
        said("set", SUBJECT, "blocked", "--reason", "spam", "--by", "ann")

        assert "(spam, by ann)" in said("list")


def without_effect(test: Any) -> Any:
    """Try a test with overrides that can have no effect, each with the reason that is given."""
    return pytest.mark.parametrize(
        ("words", "why"),
        [
            pytest.param(("global", "5/m", "--rule", "serch"), 'Did you mean "search"?', id="an unknown rule"),
            pytest.param(
                ("global", "blocked", "--rule", "signup"), 'which limits "ip"', id="a rule that limits other subjects"
            ),
            pytest.param(("user:77", "blocked"), 'no user with the key "77"', id="an unknown user"),
        ],
    )(test)


class TestWithoutEffect:
    @without_effect
    def test_it_is_refused_with_the_reason(self, words: tuple[str, ...], why: str) -> None:
        with pytest.raises(CommandError, match="--force") as caught:
            said("set", *words)

        assert why in str(caught.value)
        assert rows() == {}

    @without_effect
    def test_force_saves_it_with_a_note(self, words: tuple[str, ...], why: str) -> None:
        *_, note = said("set", *words, "--force").splitlines()

        assert re.match(rf"Note: .*{re.escape(why)}", note)
        assert len(rows()) == 1

    def test_the_error_names_every_reason_with_what_to_add(self) -> None:
        problems = patch(f"{quota_override.__name__}.override_problems", return_value=["It is old.", "It is odd."])

        with problems, pytest.raises(CommandError) as caught:
            said("set", SUBJECT, "blocked")

        assert str(caught.value) == "It is old. It is odd. It would have no effect. Add --force to save it anyway."

    def test_force_notes_every_reason(self) -> None:
        with patch(f"{quota_override.__name__}.override_problems", return_value=["It is old.", "It is odd."]):
            printed = said("set", SUBJECT, "blocked", "--force")

        assert printed.splitlines()[1:] == ["Note: It is old.", "Note: It is odd."]


@pytest.mark.parametrize("error", [DatabaseError("no such table"), ImproperlyConfigured("no database")], ids=str)
def test_a_site_without_a_table_of_users_saves_an_override_of_a_user(error: Exception) -> None:
    with patch("django_quota.management.commands.quota_override.override_problems", side_effect=[error, []]) as asked:
        said("set", "user:77", "blocked")

    assert asked.call_args == call("*", "user:77", with_users=False)
    assert rows() == {("user:77", "*"): "blocked"}


@pytest.mark.parametrize("subject", [SUBJECT, "global", "org:7", "org:*", "*", "ip:198.51.100.0/24"])
def test_what_has_an_effect_is_saved_without_a_note(subject: str) -> None:
    assert "Note" not in said("set", subject, "blocked")


def test_the_name_of_a_user_is_refused_with_the_subject_to_write() -> None:
    joe = User.objects.create_user("joe")

    with pytest.raises(CommandError, match=f'"user:{joe.pk}"'):
        said("set", "user:joe", "blocked")


def test_a_rule_of_a_call_is_named_by_its_rate_in_any_spelling() -> None:
    said("set", SUBJECT, "5/m", "--rule", "10 per minute")

    assert rows() == {(SUBJECT, "10/m"): "5/m"}


def test_an_error_names_the_field_before_what_is_wrong() -> None:
    with pytest.raises(CommandError) as caught:
        said("set", SUBJECT, "9/month", "--rule", "search")

    assert str(caught.value).startswith("rate: '9/month' is not a rate: ")


class TestAddressWithoutItsKind:
    """As code has saved it, past the form and the commands."""

    @pytest.fixture(autouse=True)
    def saved(self, rules: None) -> None:
        QuotaOverride.objects.create(subject="127.0.0.1", mode="blocked")

    def test_it_is_listed(self) -> None:
        assert said("list", "--subject", "127.0.0.1").count("blocked") == 1

    def test_it_is_cleared(self) -> None:
        said("clear", "127.0.0.1")

        assert rows() == {}

    def test_a_note_says_what_an_address_is_taken_for(self) -> None:
        assert "'127.0.0.1' is taken for 'ip:127.0.0.1'" in said("set", "127.0.0.1", "blocked")


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        pytest.param(
            ("set", SUBJECT, "bloked"),
            "^'bloked' is neither a rate, such as 100/m, nor 'exempt', 'blocked' or 'shadow'. Did you mean 'blocked'.$",
            id="a misspelled mode",
        ),
        pytest.param(
            ("set", SUBJECT, "blocked", "--for", "soon"),
            r"^--for='soon' is not a duration .*\. Use, for example, 60 \(seconds\), '10m' or '7d'\.$",
            id="no duration",
        ),
        pytest.param(
            ("set", SUBJECT, "blocked", "--until", "2030-02-31"),
            r"^--until '2030-02-31' is not a date and time\. Use, for example, 2030-01-31T12:00\.$",
            id="no date",
        ),
        pytest.param(
            ("set", SUBJECT, "blocked", "--until", "2020-01-31T12:00"),
            r"^--until '2020-01-31T12:00' is in the past\. Use a moment in the future\.$",
            id="the past",
        ),
        pytest.param(("set", "", "blocked"), "'user:42'", id="no subject"),
        pytest.param(
            ("set", SUBJECT, "9/month", "--rule", "search"), "calendar", id="a rate that the algorithm does not know"
        ),
        pytest.param(
            ("clear",),
            r"^Say what to clear: a subject, for example user:42, or --label NAME\.$",
            id="nothing to clear",
        ),
        pytest.param(("clear", "--label", ""), r"^Say what to clear: a subject, ", id="an empty label to clear"),
        pytest.param(
            ("import", "/nowhere/list", "--label", "bots"),
            r"^/nowhere/list: No such file or directory\. Use a file with an address a line, or - for stdin\.$",
            id="no file",
        ),
        pytest.param(
            ("import", "-", "--label", "bots", "--as", "never"), "'never' is neither a rate", id="an unknown mode"
        ),
        pytest.param(
            ("import", "-"), "^Error: the following arguments are required: --label$", id="a list without a label"
        ),
        pytest.param(
            ("import", "-", "--label", ""),
            r"^--label is empty\. Use a name of the list, such as crawlers\.$",
            id="no label",
        ),
        pytest.param(
            ("import", "-", "--label", "b" * 101), "label: Ensure this value has at most 100", id="a long label"
        ),
        pytest.param(
            ("import", "-", "--label", "bots", "--as", "9/month", "--rule", "search"),
            "rate: '9/month' is not a rate: ",
            id="a list at a rate that the algorithm does not know",
        ),
        pytest.param(
            ("import", "binary", "--label", "bots"),
            r"^binary is not UTF-8 text: invalid start byte at byte 12\.$",
            id="a binary file",
        ),
        pytest.param(
            ("import", "-", "--label", "bots", "--rule", "serch"), 'Did you mean "search"', id="a misspelled rule"
        ),
    ],
)
def test_wrong_words_are_answered_with_what_to_write_instead(
    words: tuple[str, ...], printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("binary").write_bytes(b"203.0.113.9\n\xff")
    monkeypatch.setattr("sys.stdin", typed_in(LIST))

    with pytest.raises(CommandError, match=printed):
        said(*words)

    assert rows() == {}


class TestList:
    @pytest.fixture(autouse=True)
    def two_overrides(self, rules: None) -> None:
        said("set", SUBJECT, "5/m", "--for", "2h")
        said("set", SUBJECT, "exempt", "--rule", "search", "--until", "2126-01-31T12:00")

    def test_json_has_each_override(self) -> None:
        whole, search = said("list", "--json")

        assert [whole[name] for name in ("rule", "mode", "rate", "reason", "label")] == ["*", "rate", "5/m", "", ""]
        assert whole["created_by"] is None
        assert [search[name] for name in ("rule", "mode", "rate")] == ["search", "exempt", None]

    def test_an_override_is_an_object_in_json(self) -> None:
        begins, ends = datetime(2126, 1, 1, tzinfo=UTC), datetime(2126, 1, 31, 12, tzinfo=UTC)
        fields = {"subject": "user:7", "rule": "search", "mode": "rate", "rate": "9/m", "reason": "spam"}
        QuotaOverride.objects.create(**fields, label="bots", created_by="root", starts=begins, expires=ends)

        (row,) = said("list", "--subject", "user:7", "--json")

        moments = {"starts": "2126-01-01T00:00:00+00:00", "expires": "2126-01-31T12:00:00+00:00"}
        assert row == {**fields, "label": "bots", "created_by": "root", **moments}

    def test_json_has_the_end_as_a_date(self) -> None:
        _, search = said("list", "--json")

        assert search["expires"].startswith("2126-01-31T")

    def test_json_has_the_times_of_a_site_without_time_zones_in_utc(self, settings: Any) -> None:
        settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Tokyo"
        said("set", SUBJECT, "exempt", "--rule", "search", "--until", "2126-01-31T12:00")
        QuotaOverride.objects.filter(rule="search").update(starts=datetime(2126, 1, 1, 12))  # noqa: DTZ001 — so is the site

        _, search = said("list", "--json")

        assert (search["starts"], search["expires"]) == ("2126-01-01T03:00:00+00:00", "2126-01-31T03:00:00+00:00")

    def test_a_new_one_is_listed_though_a_replica_lags(self, settings: Any) -> None:
        settings.DATABASE_ROUTERS = [LaggingReplica()]

        assert f"{SUBJECT}, all rules: 5/m, until " in said("list")

    def test_a_line_says_whom_it_concerns_until_when(self) -> None:
        assert f"{SUBJECT}, all rules: 5/m, until " in said("list")

    def test_a_line_has_all_that_is_known(self) -> None:
        begins, ends = datetime(2126, 1, 1, tzinfo=UTC), datetime(2126, 1, 31, 12, tzinfo=UTC)
        fields = {"subject": "user:7", "rule": "search", "mode": "exempt", "reason": "paid", "created_by": "root"}
        QuotaOverride.objects.create(**fields, label="shops", starts=begins, expires=ends)

        assert said("list", "--subject", "user:7") == (
            "user:7, search: exempt, from 2126-01-01 00:00:00Z until 2126-01-31 12:00:00Z [shops] (paid, by root)\n"
        )

    def test_it_says_that_there_is_none(self) -> None:
        assert said("list", "--subject", "org:7") == "There are no such overrides.\n"

    def test_json_of_none_is_an_empty_list(self) -> None:
        assert said("list", "--subject", "org:7", "--json") == []

    def test_a_rule_lists_its_own_alone(self) -> None:
        assert [each["rule"] for each in said("list", "--rule", "search", "--json")] == ["search"]

    def test_a_label_lists_its_own_alone(self) -> None:
        said("set", "org:7", "blocked", "--label", "bots")

        assert [each["subject"] for each in said("list", "--label", "bots", "--json")] == ["org:7"]

    def test_an_empty_label_lists_those_without_one(self) -> None:
        said("set", "org:7", "blocked", "--label", "bots")

        assert {each["subject"] for each in said("list", "--label", "", "--json")} == {SUBJECT}

    def test_active_leaves_out_those_that_have_not_begun(self) -> None:
        QuotaOverride.objects.filter(rule="*").update(starts=datetime.now(UTC) + timedelta(hours=1))

        assert [each["rule"] for each in said("list", "--active", "--json")] == ["search"]

    def test_a_quiet_list_is_printed(self) -> None:
        assert said("--verbosity", "0", "list").count("\n") == 2

    @pytest.mark.parametrize(
        ("typed", "subject"),
        [
            pytest.param(SUBJECT, SUBJECT, id="an address"),
            pytest.param("198.51.100.7/24", "ip:198.51.100.0/24", id="a network"),
            pytest.param("*", "*", id="everybody"),
        ],
    )
    def test_a_subject_lists_its_own_alone(self, typed: str, subject: str) -> None:
        for group in ("198.51.100.0/24", "*"):
            said("set", group, "blocked")

        assert {each["subject"] for each in said("list", "--subject", typed, "--json")} == {subject}

    def test_active_leaves_out_those_that_have_ended(self) -> None:
        QuotaOverride.objects.filter(rule="*").update(expires=datetime.now(UTC) - timedelta(days=1))

        assert [each["rule"] for each in said("list", "--active", "--json")] == ["search"]


class TestClear:
    def test_a_named_rule_is_cleared_alone(self) -> None:
        said("set", SUBJECT, "5/m")
        said("set", SUBJECT, "exempt", "--rule", "search")

        said("clear", SUBJECT, "--rule", "search")

        assert rows() == {(SUBJECT, "*"): "5/m"}

    def test_it_says_what_it_cleared(self) -> None:
        said("set", SUBJECT, "5/m")

        assert f"Cleared {SUBJECT}, all rules: 5/m" in said("clear", SUBJECT)
        assert rows() == {}

    def test_it_says_that_there_was_nothing_to_clear(self) -> None:
        assert said("clear", SUBJECT) == f"There was no override for {SUBJECT}.\n"

    def test_a_dry_run_clears_nothing(self) -> None:
        said("set", SUBJECT, "5/m")

        assert said("clear", SUBJECT, "--dry-run") == f"Would clear {SUBJECT}, all rules: 5/m, without an end\n"
        assert rows() == {(SUBJECT, "*"): "5/m"}

    def test_a_label_is_cleared_for_one_subject_alone(self) -> None:
        for subject in (SUBJECT, "org:7"):
            said("set", subject, "blocked", "--label", "bots")

        said("clear", SUBJECT, "--label", "bots")

        assert rows() == {("org:7", "*"): "blocked"}

    @pytest.mark.parametrize(
        ("words", "whose"),
        [
            pytest.param((SUBJECT, "--rule", "*"), f" for {SUBJECT} of the rule *", id="all rules"),
            pytest.param((SUBJECT, "--label", ""), f" for {SUBJECT}", id="no label"),
            pytest.param(
                ("--rule", "search", "--label", "bots"), " of the rule search with the label bots", id="no subject"
            ),
            pytest.param(
                ("198.51.100.7", "--rule", "search", "--label", "bots"),
                " for ip:198.51.100.7 of the rule search with the label bots",
                id="all options",
            ),
        ],
    )
    def test_it_says_what_there_was_not(self, words: tuple[str, ...], whose: str) -> None:
        assert said("clear", *words) == f"There was no override{whose}.\n"

    def test_a_quiet_one_prints_nothing(self) -> None:
        said("--verbosity", "0", "set", SUBJECT, "blocked")

        assert said("--verbosity", "0", "clear", SUBJECT) == ""

    def test_the_override_of_a_rule_that_is_gone_is_cleared_without_a_note(self) -> None:
        set_override("serch", SUBJECT, {"mode": "blocked"})

        (printed,) = said("clear", SUBJECT, "--rule", "serch").splitlines()

        assert printed.startswith("Cleared ")

    def test_it_says_that_nothing_has_the_rule(self) -> None:
        set_override("*", SUBJECT, {"mode": "blocked"})

        printed, note = said("clear", SUBJECT, "--rule", "serch").splitlines()

        assert printed == f"There was no override for {SUBJECT} of the rule serch."
        assert 'Did you mean "search"?' in note


class TestLabel:
    @pytest.fixture(autouse=True)
    def thirty_with_the_label(self, rules: None) -> None:
        """Also one without."""
        QuotaOverride.objects.bulk_create(
            QuotaOverride(subject=f"ip:198.51.100.{number}", mode="blocked", label="bots") for number in range(30)
        )
        said("set", SUBJECT, "blocked")

    def test_it_lists_what_has_it(self) -> None:
        listed = said("list", "--label", "bots")

        assert listed.count("[bots]") == 30
        assert SUBJECT not in listed

    def test_a_dry_run_clears_nothing(self) -> None:
        assert said("clear", "--label", "bots", "--dry-run").splitlines()[20:] == ["Would clear 10 more overrides"]
        assert len(rows()) == 31

    def test_it_clears_what_has_it(self) -> None:
        said("clear", "--label", "bots")

        assert rows() == {(SUBJECT, "*"): "blocked"}

    def test_of_many_the_first_twenty_are_printed(self) -> None:
        assert said("clear", "--label", "bots").count("Cleared") == 21  # the last line is that of the other 10

    def test_json_has_all_that_are_cleared(self) -> None:
        assert len(said("clear", "--label", "bots", "--json")) == 30

    def test_of_twenty_all_are_printed(self) -> None:
        QuotaOverride.objects.filter(subject__regex=r"^ip:198\.51\.100\.[0-9]$").delete()

        printed = said("clear", "--label", "bots")

        assert printed.count("Cleared") == 20
        assert "more override" not in printed

    def test_an_unknown_label_has_nothing_to_clear(self) -> None:
        assert said("clear", "--label", "boots") == "There was no override with the label boots.\n"


def test_an_address_in_a_list_stands_for_the_client_that_it_counts_as(settings: Any) -> None:
    settings.QUOTA = {"IPV4_PREFIX": 24}

    assert read_list(["203.0.113.9"]) == ["ip:203.0.113.0/24"]


Import = Callable[..., Any]


@pytest.fixture
def imported(tmp_path: Path) -> Import:
    """Import a text under the label `bots`."""

    def run(text: str, *options: str) -> Any:
        file = tmp_path / "list.txt"
        file.write_text(text, encoding="utf-8")
        return said("import", str(file), "--label", "bots", *options)

    return run


class TestImport:
    def test_addresses_are_saved_with_networks(self, imported: Import) -> None:
        printed = imported(LIST)

        assert printed == "Added 3, changed 0 and deleted 0 with the label bots; 0 stay as they are.\n"
        subjects = ("ip:198.51.100.0/24", "ip:2001:db8::/32", SUBJECT)
        assert rows() == dict.fromkeys([(subject, "*") for subject in subjects], "blocked")

    def test_it_holds_at_once(self, imported: Import) -> None:
        imported(LIST)

        assert not check("search", "ip:198.51.100.1")

    def test_each_row_gets_the_label_the_reason_the_end(self, imported: Import) -> None:
        imported(LIST, "--reason", "a list", "--for", "7d")

        row = QuotaOverride.objects.get(subject=SUBJECT)
        assert (row.label, row.reason, row.expires is None) == ("bots", "a list", False)

    def test_a_dry_run_saves_nothing(self, imported: Import) -> None:
        assert imported(LIST, "--dry-run") == (
            "Would add 3, change 0 and delete 0 with the label bots; 0 stay as they are.\n"
        )
        assert rows() == {}

    def test_a_dry_run_tells_other_processes_of_no_change(self, imported: Import) -> None:
        with CaptureQueriesContext(connection) as queries:
            imported(LIST, "--dry-run")

        written = [each["sql"] for each in queries.captured_queries if each["sql"].startswith(("INSERT", "UPDATE"))]
        assert written == []

    def test_a_dry_run_says_so_in_json(self, imported: Import) -> None:
        counts = {"added": 3, "changed": 0, "deleted": 0, "kept": 0}

        assert imported(LIST, "--dry-run", "--json") == {"label": "bots", "dry_run": True, **counts, "skipped": []}

    def test_one_that_somebody_else_has_is_skipped_in_json(self, imported: Import) -> None:
        said("set", SUBJECT, "exempt")

        counts = {"added": 2, "changed": 0, "deleted": 0, "kept": 0}
        assert imported(LIST, "--json") == {"label": "bots", "dry_run": False, **counts, "skipped": [SUBJECT]}

    def test_an_override_of_somebody_else_stays(self, imported: Import) -> None:
        said("set", SUBJECT, "exempt")

        assert f"1 have an override without this label, which stays: {SUBJECT}." in imported(LIST)
        assert rows()[SUBJECT, "*"] == "exempt"
        assert said("list", "--label", "bots").count("blocked") == 2

    def test_of_many_that_somebody_else_has_three_are_named(self, imported: Import) -> None:
        for number in range(1, 6):
            said("set", f"192.0.2.{number}", "exempt")

        printed = imported("\n".join(f"192.0.2.{number}" for number in range(1, 6)))

        assert "5 have an override without this label, which stays: ip:192.0.2.1, ip:192.0.2.2, ip:192.0.2.3" in printed
        assert "ip:192.0.2.4" not in printed

    def test_a_byte_order_mark_is_not_part_of_an_address(self, imported: Import) -> None:
        imported("\ufeff192.0.2.1")

        assert rows() == {("ip:192.0.2.1", "*"): "blocked"}

    def test_rows_are_saved_in_the_order_of_their_subjects(self, imported: Import) -> None:
        """So two imports at the same time cannot wait for each other for ever."""
        imported("\n".join(f"192.0.2.{number}" for number in range(50, 0, -1)))

        saved = list(QuotaOverride.objects.order_by("pk").values_list("subject", flat=True))
        assert saved == sorted(f"ip:192.0.2.{number}" for number in range(1, 51))

    @pytest.fixture(params=[IntegrityError, OperationalError], ids=lambda error: error.__name__)
    def imported_after(self, imported: Import, request: pytest.FixtureRequest) -> Callable[[int], object]:
        """Import a list while another process makes the first tries fail."""

        def import_after(failures: int) -> None:
            def execute(act: Any, sql: str, *given: Any) -> Any:
                if sql.startswith("INSERT") and "quotaoverride" in sql and next(left, None) is not None:
                    raise request.param("a deadlock was found")
                return act(sql, *given)

            left = iter(range(failures))
            with connection.execute_wrapper(execute):
                imported("192.0.2.1")

        return import_after

    def test_what_meets_another_process_is_tried_again(self, imported_after: Callable[[int], object]) -> None:
        imported_after(TRIES - 1)

        assert len(rows()) == 1

    def test_an_import_gives_up_after_the_last_try(self, imported_after: Callable[[int], object]) -> None:
        with pytest.raises(CommandError, match="lock"):
            imported_after(TRIES)

        assert len(rows()) == 0

    def test_the_list_may_come_from_stdin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", typed_in(LIST))

        assert "Added 3" in said("import", "-", "--label", "crawlers")

    def test_force_imports_for_an_unknown_rule(self, imported: Import) -> None:
        imported(LIST, "--rule", "serch", "--force")

        assert {rule for _, rule in rows()} == {"serch"}


class TestSecondImport:
    """A list replaces what its label had."""

    @pytest.fixture(autouse=True)
    def first_import(self, rules: None, imported: Import) -> None:
        """Somebody else has blocked 192.0.2.1."""
        said("set", "ip:192.0.2.1", "blocked")
        imported("192.0.2.2\n192.0.2.3\n192.0.2.4")

    NEXT = "192.0.2.3\n192.0.2.4\n192.0.2.5"

    def test_the_difference_is_reported(self, imported: Import) -> None:
        counts = {"added": 1, "changed": 0, "deleted": 1, "kept": 2}

        assert imported(self.NEXT, "--json") == {"label": "bots", "dry_run": False, **counts, "skipped": []}

    def test_the_difference_is_said_in_words(self, imported: Import) -> None:
        assert imported(self.NEXT) == ("Added 1, changed 0 and deleted 1 with the label bots; 2 stay as they are.\n")

    def test_what_the_new_list_lacks_is_deleted(self, imported: Import) -> None:
        imported(self.NEXT)

        assert rows().keys() == {(f"ip:192.0.2.{number}", "*") for number in (1, 3, 4, 5)}

    def test_what_is_in_both_is_not_written_again(self, imported: Import) -> None:
        before = QuotaOverride.objects.get(subject="ip:192.0.2.3").change

        imported(self.NEXT)

        assert QuotaOverride.objects.get(subject="ip:192.0.2.3").change == before

    @pytest.mark.parametrize("what", ["shadow", "5/h", "exempt"])
    def test_what_a_list_says_is_changed_for_all_of_it(self, what: str, imported: Import) -> None:
        assert "changed 3" in imported("192.0.2.2\n192.0.2.3\n192.0.2.4", "--as", what)
        assert {mode for (subject, _), mode in rows().items() if subject != "ip:192.0.2.1"} == {what}

    def test_a_row_that_is_changed_has_the_time_of_its_change(self, imported: Import) -> None:
        long_ago = datetime(2020, 1, 1, tzinfo=UTC)
        QuotaOverride.objects.update(updated=long_ago)

        imported("192.0.2.2\n192.0.2.3\n192.0.2.4", "--as", "exempt")

        assert not QuotaOverride.objects.filter(label="bots", updated=long_ago).exists()

    def test_another_rule_replaces_the_rows_of_the_last(self, imported: Import) -> None:
        assert "Added 1, changed 0 and deleted 3" in imported("192.0.2.2", "--rule", "search")
        assert rows() == {("ip:192.0.2.1", "*"): "blocked", ("ip:192.0.2.2", "search"): "blocked"}

    def test_the_same_list_again_writes_nothing(self, imported: Import) -> None:
        imported(self.NEXT)

        with CaptureQueriesContext(connection) as queries:
            imported(self.NEXT)

        of_rows = [each["sql"] for each in queries.captured_queries if "quotaoverride" in each["sql"]]
        assert {sql.partition(" ")[0] for sql in of_rows} == {"SELECT"}


class TestWrongList:
    """It changes nothing."""

    @pytest.fixture(autouse=True)
    def one_imported(self, rules: None, imported: Import) -> Iterator[None]:
        imported("192.0.2.2")
        yield
        assert rows() == {("ip:192.0.2.2", "*"): "blocked"}

    HINT = "is neither an address nor a network. Write, for example, 203.0.113.9 or 198.51.100.0/24."

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            pytest.param("example.com", f"'example.com' {HINT}", id="a name"),
            pytest.param(
                "198.51.100.0/33",
                "'198.51.100.0/33' is not a network. Use, for example, 'ip:198.51.100.0/24'.",
                id="no network",
            ),
            pytest.param(
                "2001:db8::7/96",
                "'2001:db8::7/96' is smaller than a /64, and all addresses of a /64 count as one client. "
                "Use 'ip:2001:db8::/64'.",
                id="a part of a client's network",
            ),
            pytest.param("ip:192.0.2.1+user:3", f"'192.0.2.1+user:3' {HINT}", id="a subject of several parts"),
            pytest.param("user:3", f"'user:3' {HINT}", id="a user"),
        ],
    )
    def test_a_wrong_line_is_named_with_its_number(self, line: str, words: str, imported: Import) -> None:
        with pytest.raises(CommandError) as caught:
            imported(f"203.0.113.9\n\n{line}\n")

        assert str(caught.value) == f"Line 3: {words}"

    def test_all_wrong_lines_are_named(self, imported: Import) -> None:
        with pytest.raises(CommandError) as caught:
            imported("one\n203.0.113.9\ntwo\n")

        assert str(caught.value).splitlines() == [f"Line 1: 'one' {self.HINT}", f"Line 3: 'two' {self.HINT}"]

    def test_of_very_many_wrong_lines_the_first_ten_are_named(self, imported: Import) -> None:
        with pytest.raises(CommandError, match=r"\n1,990 more lines are wrong\."):
            imported("<html>\n" * 2_000)

    def test_an_empty_list_deletes_nothing(self, imported: Import) -> None:
        """As when a download has failed."""
        with pytest.raises(CommandError) as caught:
            imported("# moved\n")

        assert re.fullmatch(
            r"/\S+/list\.txt has no address, and nothing is changed\. To delete what the label had, use quota_override "
            r"clear --label bots\.",
            str(caught.value),
        )


MANY = [f"10.0.{number // 256}.{number % 256}" for number in range(2_000)]


@pytest.mark.thorough("slow")
def test_a_long_list_is_added_by_few_statements(imported: Import) -> None:
    with CaptureQueriesContext(connection) as queries:
        imported("\n".join(MANY))

    assert len(queries) < 100
    assert rows() == {(f"ip:{address}", "*"): "blocked" for address in MANY}


@pytest.mark.thorough("slow")
def test_a_long_list_is_changed_by_few_statements(imported: Import) -> None:
    imported("\n".join(MANY))

    with CaptureQueriesContext(connection) as queries:
        imported("\n".join(MANY[1_000:]), "--as", "exempt")

    assert len(queries) < 100
    assert rows() == {(f"ip:{address}", "*"): "exempt" for address in MANY[1_000:]}


@pytest.mark.thorough("slow")
@pytest.mark.parametrize(
    ("number", "statements"), [pytest.param(1_000, 1, id="1,000 rows"), pytest.param(1_001, 2, id="one row more")]
)
def test_one_statement_changes_a_thousand_rows(number: int, statements: int) -> None:
    subjects = [f"ip:{address}" for address in MANY[:number]]
    override_lists.save_list(subjects, "bots", "*", {"mode": "blocked"})

    with CaptureQueriesContext(connection) as queries:
        override_lists.save_list(subjects, "bots", "*", {"mode": "exempt"})

    updates = [each["sql"] for each in queries.captured_queries if each["sql"].startswith(f'UPDATE "{TABLE}"')]
    assert len(updates) == statements


def test_a_list_that_fails_half_way_changes_nothing(imported: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(override_lists, "ROWS_PER_QUERY", 1)
    imported("192.0.2.2")
    written: list[str] = []

    def fail_at_the_second(execute: Any, sql: str, *given: Any) -> Any:
        if sql.startswith("INSERT") and "quotaoverride" in sql:
            written.append(sql)
            if len(written) > 1:
                raise OSError("the disk is full")
        return execute(sql, *given)

    with connection.execute_wrapper(fail_at_the_second), pytest.raises(OSError, match="disk"):
        imported("192.0.2.3\n192.0.2.4")

    assert rows() == {("ip:192.0.2.2", "*"): "blocked"}
    assert not check("search", "ip:192.0.2.2")
    assert check("search", "ip:192.0.2.3")


@pytest.mark.always("postgresql")
def test_two_imports_of_a_new_list_at_the_same_time_save_it_once() -> None:
    def save() -> override_lists.ListChange:
        try:
            both.wait(60)
            return override_lists.save_list(subjects, "crawlers", "*", {"mode": "exempt"})
        finally:
            connections.close_all()

    subjects = [f"ip:192.0.2.{number}" for number in range(100)]
    both = threading.Barrier(2)

    with ThreadPoolExecutor(2) as threads:
        changes = [future.result() for future in [threads.submit(save) for _ in range(2)]]

    assert QuotaOverride.objects.filter(label="crawlers").count() == 100
    assert sorted(len(change.added) for change in changes) == [0, 100]


@pytest.mark.thorough("slow")
def test_overrides_that_are_set_at_the_same_time_are_all_saved() -> None:
    """SQLite fails at once if two transactions read before they write."""

    def set_one(number: int) -> None:
        try:
            set_override("*", f"org:{number % 3}", {"mode": "rate", "rate": f"{number + 1}/m"})
        finally:
            connections.close_all()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(set_one, range(30)))

    assert len(rows()) == 3


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_an_import_that_waited_for_another_replaces_what_that_has_saved() -> None:
    def save(subject: str) -> None:
        override_lists.save_list([subject], "crawlers", "*", {"mode": "exempt"})

    def save_meanwhile() -> None:
        try:
            save("ip:192.0.2.3")
        finally:
            connections.close_all()

    def is_waiting() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            return bool(cursor.fetchone()[0])

    save("ip:192.0.2.1")

    with ThreadPoolExecutor(1) as threads:
        with transaction.atomic():
            save("ip:192.0.2.2")
            other = threads.submit(save_meanwhile)
            commands.wait_until(is_waiting)
        other.result(60)

    assert list(rows()) == [("ip:192.0.2.3", "*")]


@pytest.mark.parametrize(
    ("number", "named", "more"),
    [
        pytest.param(10, 10, "", id="as many as are named"),
        pytest.param(11, 10, "1 more line is wrong.", id="one more"),
        pytest.param(12, 10, "2 more lines are wrong.", id="two more"),
    ],
)
def test_the_first_ten_wrong_lines_of_a_list_are_named(number: int, named: int, more: str) -> None:
    with pytest.raises(RuleError) as caught:
        read_list(["203.0.113.9", *["wrong"] * number])

    lines = str(caught.value).splitlines()
    assert [line.partition(":")[0] for line in lines[:named]] == [f"Line {each}" for each in range(2, named + 2)]
    assert lines[named:] == ([more] if more else [])


def test_of_a_wrong_line_of_a_list_fifty_characters_are_shown() -> None:
    with pytest.raises(RuleError) as caught:
        read_list(["x" * 51])

    assert str(caught.value) == (
        f"Line 1: '{'x' * 50}' is neither an address nor a network. Write, for example, 203.0.113.9 or 198.51.100.0/24."
    )


@pytest.mark.parametrize(
    "line",
    ["203.0.113.9", "ip:203.0.113.9", "  203.0.113.9  # crawler", "203.0.113.9#"],
    ids=["an address", "a subject", "with a comment", "with an empty comment"],
)
def test_a_line_of_a_list_is_an_address(line: str) -> None:
    assert read_list(["# crawlers", "", line, "203.0.113.9"]) == ["ip:203.0.113.9"]
