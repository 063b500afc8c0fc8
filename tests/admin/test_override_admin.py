"""Overrides in the admin: the list, its filters and search, the form and its preview, and bulk actions."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import django_quota
from django_quota import check, peek
from django_quota.adapters import digest
from django_quota.limiting.overrides import overrides
from django_quota.limiting.registry import get_limiter
from django_quota.models import DailyCounter, QuotaOverride
from tests.admin.operators import operator, superuser

LIST = "/admin/django_quota/quotaoverride/"
NO_SPAN = {"starts_0": "", "starts_1": "", "expires_0": "", "expires_1": ""}
MANY = 100_000
FILL = f"""
    WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < {MANY - 1})
    INSERT INTO django_quota_quotaoverride (subject, rule, mode, rate, reason, label, change, created, updated)
    SELECT 'user:' || n, 'search', 'exempt', '', 'r' || n, '', 0, CURRENT_TIMESTAMP, CURRENT_TIMESTAMP FROM numbers"""
"""Rows by one statement."""


@pytest.fixture(autouse=True)
def rules(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"search": {"rate": "10/m; 500/h"}, "login": {"rate": "2/h"}}}


def filled(**given: str) -> dict[str, str]:
    """Return what the form sends, for a user whom there need not be."""
    fields = {"subject": "user:42", "rule": "search", "mode": "rate", "rate": "100/m", "reason": "", "_anyway": "1"}
    fields |= NO_SPAN | given
    return {name: value for name, value in fields.items() if name != "_anyway" or value}


def add(client: Client, **given: str) -> Any:
    return client.post(f"{LIST}add/", filled(**given))


def row(subject: str = "user:42", **given: Any) -> QuotaOverride:
    return QuotaOverride.objects.create(**{"subject": subject, "mode": "exempt", **given})


def do(client: Client, action: str, rows: list[QuotaOverride], **given: str) -> Any:
    chosen = {"action": action, "_selected_action": [one.pk for one in rows], "confirmed": "yes", **given}
    return client.post(LIST, {key: value for key, value in chosen.items() if value})


def test_the_style_sheet_names_columns_of_the_list() -> None:
    styles = Path(django_quota.__file__).parent.joinpath("static/django_quota/lists.css").read_text()
    styled = set(re.findall(r"\.field-(\w+)", styles))
    assert styled == {"whom", "short_reason", "subject_link", "rule"}
    columns = {*admin.site.get_model_admin(QuotaOverride).list_display}
    assert styled <= columns | {*admin.site.get_model_admin(DailyCounter).list_display}


def listed(client: Client, **query: str) -> list[str]:
    answer = client.get(LIST, query)
    assert answer.status_code == 200
    return [one.subject for one in answer.context["cl"].result_list]


@pytest.mark.usefixtures("database", "memory_store")
class TestList:
    def test_it_shows_rate_mode_state_and_reason(self) -> None:
        now = timezone.now()
        row("user:1", rule="search", mode="rate", rate="50/m", reason="an import")
        row("user:2", mode="blocked", starts=now + timedelta(days=1))
        row("user:3", expires=now - timedelta(days=1))
        shown = superuser().get(LIST).content.decode()
        for words in ("50/m", "an import", "blocked", "not yet begun", "ended", "active", "all rules"):
            assert words in shown
        assert 'href="/admin/django_quota/subject/?subject=user%3A1"' in shown
        assert "Show limits" not in operator("view_quotaoverride").get(LIST).content.decode()

    def test_it_is_filtered_by_state_mode_and_rule(self) -> None:
        now = timezone.now()
        row("a:active", expires=now + timedelta(days=1))
        row("a:pending", starts=now + timedelta(days=1), expires=now + timedelta(days=2))
        row("a:ended", expires=now - timedelta(days=1))
        row("a:for-good", mode="blocked", rule="search")
        client = superuser()
        assert listed(client, state="active") == ["a:active", "a:for-good"]
        assert listed(client, state="pending") == ["a:pending"]
        assert listed(client, state="ended") == ["a:ended"]
        assert listed(client, state="permanent") == ["a:for-good"]
        assert listed(client, mode__exact="blocked") == ["a:for-good"]
        assert listed(client, rule="search") == ["a:for-good"]
        assert len(listed(client, rule="*")) == 3
        assert listed(client, rule="unknown") == []

    @pytest.mark.parametrize(
        ("text", "finds"),
        [
            ("user:4", ["user:4", "user:42"]),
            ("sear", ["ip:2001:db8::/64"]),
            ("IMPORT", ["user:42"]),
            ("2001:DB8::77", ["ip:2001:db8::/64"]),
            ("ip:2001:db8::/64", ["ip:2001:db8::/64"]),
            ("\x00", ["ip:2001:db8::/64", "user:4", "user:42"]),
            ("er:4", []),
        ],
    )
    def test_a_search_finds_beginnings_reasons_and_addresses_in_any_spelling(self, text: str, finds: list[str]) -> None:
        row("user:4")
        row("user:42", reason="an Import of theirs")
        row("ip:2001:db8::1", rule="search")
        assert listed(superuser(), q=text) == finds


@pytest.mark.thorough("scale")
@pytest.mark.usefixtures("database", "memory_store")
def test_pages_take_few_queries_with_a_hundred_thousand_rows() -> None:
    with connection.cursor() as cursor:
        cursor.execute(FILL)
        cursor.execute("ANALYZE")
    rows = QuotaOverride.objects.all()
    assert rows.count() == MANY
    client = superuser()
    client.get(LIST)
    overrides.refresh()  # a process reads them all once
    wanted = rows.get(subject="user:7")
    pages = {
        LIST: 6,
        f"{LIST}?q=user:777": 6,
        f"{LIST}?state=active&rule=search": 6,
        f"{LIST}{wanted.pk}/change/": 5,
        f"{LIST}add/": 3,
        f"{LIST}rule/?name=search": 8,
        "/admin/django_quota/subject/?subject=user:7": 7,
    }
    for url, most in pages.items():
        with CaptureQueriesContext(connection) as queries:
            assert client.get(url).status_code == 200
        assert len(queries) <= most, (url, [query["sql"] for query in queries])
    plan = rows.order_by("subject", "rule")[:100].explain()
    assert "TEMP B-TREE" not in plan
    assert "Sort" not in plan


@pytest.mark.usefixtures("database", "memory_store")
class TestForm:
    def test_a_row_is_saved_and_logged_with_who_made_it(self) -> None:
        assert add(superuser(), reason="an import", label="crawlers").status_code == 302
        made = QuotaOverride.objects.get()
        assert (made.rate, made.reason, made.label) == ("100/m", "an import", "crawlers")
        assert str(made.created_by) == "root"
        assert check("search", "user:42").limit == 100
        assert LogEntry.objects.get().action_flag == 1

    def test_a_change_is_in_the_history_and_keeps_created_by(self) -> None:
        made = row(rule="search", mode="rate", rate="50/m", created_by=User.objects.create_user("ann"))
        client = superuser()
        given = filled(rate="20/m")
        assert client.post(f"{LIST}{made.pk}/change/", given).status_code == 302
        made.refresh_from_db()
        assert (made.rate, str(made.created_by)) == ("20/m", "ann")
        assert "Changed Rate." in client.get(f"{LIST}{made.pk}/history/").content.decode()

    def test_a_user_fills_in_the_subject_and_must_not_contradict_it(self) -> None:
        ann = User.objects.create_user("ann")
        assert add(superuser(), subject="", user=str(ann.pk)).status_code == 302
        assert QuotaOverride.objects.get().subject == f"user:{ann.pk}"
        different = add(superuser("other"), user=str(ann.pk), subject="ip:203.0.113.9")
        assert different.context["adminform"].form.errors["user"]
        assert add(superuser("third"), subject="").context["adminform"].form.errors["subject"]

    @pytest.mark.parametrize(
        ("given", "field"),
        [
            ({"rate": "10/month"}, "rate"),
            ({"rate": ""}, "rate"),
            ({"rate": "many"}, "rate"),
            ({"mode": "exempt"}, "rate"),
            ({"subject": "ip:nowhere"}, "subject"),
            (
                {"expires_0": "2020-01-01", "expires_1": "00:00", "starts_0": "2021-01-01", "starts_1": "00:00"},
                "expires",
            ),
        ],
    )
    def test_an_error_is_shown_on_its_field(self, given: dict[str, str], field: str) -> None:
        answer = add(superuser(), **given)
        assert answer.status_code == 200
        assert answer.context["adminform"].form.errors[field]
        assert not QuotaOverride.objects.exists()

    def test_the_form_searches_users_and_suggests_rules(self) -> None:
        shown = superuser().get(f"{LIST}add/?subject=user:7").content.decode()
        assert "admin-autocomplete" in shown
        assert '<option value="search">' in shown
        assert 'value="user:7"' in shown

    def test_users_are_not_offered_without_the_permission_or_a_search(self, monkeypatch: pytest.MonkeyPatch) -> None:
        client = operator("add_quotaoverride")
        assert 'name="user"' not in client.get(f"{LIST}add/").content.decode()
        monkeypatch.setattr(admin.site._registry[User], "search_fields", ())
        assert 'name="user"' not in superuser().get(f"{LIST}add/").content.decode()
        assert add(client).status_code == 302

    def test_the_view_permission_changes_nothing(self) -> None:
        made, client = row(), operator("view_quotaoverride")
        assert client.get(f"{LIST}{made.pk}/change/").status_code == 200
        assert client.post(f"{LIST}{made.pk}/change/", filled()).status_code == 403
        assert client.get(f"{LIST}add/").status_code == 403


@pytest.mark.usefixtures("database", "either_store")
class TestPreview:
    def test_the_button_shows_changes_and_saves_nothing(self) -> None:
        User.objects.create_user("ann", pk=42)
        check("search", "user:42", 3)
        answer = add(superuser(), _preview="Preview")
        shown = answer.content.decode()
        assert answer.status_code == 200
        assert "10/m: 3 of 10 used, 7 left; the next hit is admitted" in shown
        assert "100/m: 3 of 100 used, 97 left; the next hit is admitted (by an override)" in shown
        assert 'class="errornote"' not in shown
        assert 'value="100/m"' in shown
        assert not QuotaOverride.objects.exists()
        assert not LogEntry.objects.exists()
        assert peek("search", "user:42").remaining == 7

    def test_a_value_becomes_its_digest_in_the_field_and_when_saved(self) -> None:
        subject = f"ip:203.0.113.9+post.username:{digest('ann@example.org')}"
        given = {"subject": "203.0.113.9+post:username=ann@example.org"}
        shown = add(superuser(), **given, _preview="1").content.decode()
        assert f'value="{subject}"' in shown
        assert "ann@example.org" not in shown
        assert add(superuser("other"), **given).status_code == 302
        assert QuotaOverride.objects.get().subject == subject

    def test_an_override_without_effect_is_saved_only_if_that_is_wanted(self) -> None:
        client = superuser()
        joe = User.objects.create_user("joe")
        wrong = {"subject": "joe", "rule": "serch"}
        for shown in (
            add(client, **wrong, _preview="1").content.decode(),
            client.post(f"{LIST}preview/", filled(**wrong)).content.decode(),
            add(client, **wrong, _anyway="").content.decode(),
        ):
            assert f"&quot;user:{joe.pk}&quot;" in shown
            assert "Did you mean &quot;search&quot;?" in shown
        assert 'name="_anyway"' in shown
        assert not QuotaOverride.objects.exists()
        add(client, **wrong)
        made = QuotaOverride.objects.get(**wrong)
        changed = filled(**wrong, rate="20/m", _anyway="")
        assert client.post(f"{LIST}{made.pk}/change/", changed).status_code == 302  # it was saved so before
        right = client.post(f"{LIST}add/", filled(subject=f"user:{joe.pk}", _anyway="")).status_code
        assert right == 302

    def test_a_user_under_a_rule_by_address_is_refused(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"signup": {"rate": "5/m", "key": "ip"}}}
        joe, client = User.objects.create_user("joe"), superuser()
        given = {"rule": "signup", "mode": "blocked", "rate": "", "_anyway": ""}
        shown = add(client, subject=f"user:{joe.pk}", **given).content.decode()
        assert f"No request has the subject &quot;user:{joe.pk}&quot; under the rule &quot;signup&quot;" in shown
        assert add(client, subject="user:*", **given).status_code == 200
        assert not QuotaOverride.objects.exists()
        assert add(client, subject="198.51.100.0/24", **given).status_code == 302
        assert not check("signup", "ip:198.51.100.7")

    def test_hints_do_not_reveal_users(self) -> None:
        User.objects.create_user("joe")
        shown = operator("add_quotaoverride").post(f"{LIST}preview/", filled(subject="joe")).content.decode()
        assert "user:&lt;key&gt;" in shown
        assert "the user of this name" not in shown

    def test_errors_and_an_override_that_has_ended_are_shown_in_place_of_a_preview(self) -> None:
        client, ended = superuser(), {"expires_0": "2001-01-02", "expires_1": "10:00"}
        assert "Complete the form to see a preview" in add(client, rate="many", _preview="1").content.decode()
        shown = client.post(f"{LIST}preview/", filled(**ended)).content.decode()
        assert "the override has ended, so it changes nothing" in shown

    def test_the_live_preview_shows_the_same_and_saves_nothing(self) -> None:
        client = superuser()
        shown = client.post(f"{LIST}preview/", filled()).content.decode()
        assert "100/m: 0 of 100 used" in shown
        assert "<html" not in shown
        made = row(rule="search")
        shown = client.post(f"{LIST}preview/{made.pk}/", filled(mode="blocked", rate="")).content.decode()
        assert "no hit is admitted" in shown
        made.refresh_from_db()
        assert made.mode == "exempt"
        assert client.post(f"{LIST}preview/9999/", filled()).status_code == 404

    def test_it_needs_the_permission_to_add_or_to_change(self) -> None:
        made = row()
        adds, changes = operator("add_quotaoverride", name="adds"), operator("change_quotaoverride", name="changes")
        clients = adds, changes, operator("view_quotaoverride", "view_subject", name="looks")
        for url, statuses in ((f"{LIST}preview/", [200, 403, 403]), (f"{LIST}preview/{made.pk}/", [403, 200, 403])):
            assert [client.post(url, filled()).status_code for client in clients] == statuses
        assert superuser(enforce_csrf_checks=True).post(f"{LIST}preview/", filled()).status_code == 403


@pytest.mark.usefixtures("database")
def test_a_preview_reports_a_store_that_does_not_answer() -> None:
    assert "There is no preview now." in superuser().post(f"{LIST}preview/", filled()).content.decode()


@pytest.mark.usefixtures("database", "memory_store")
def test_a_deletion_is_logged_for_the_subject_too() -> None:
    client, made = superuser(), row(mode="blocked")
    client.post(f"{LIST}{made.pk}/delete/", {"post": "yes"})
    row(mode="blocked", rule="search")
    do(client, "delete_selected", list(QuotaOverride.objects.all()), post="yes")
    assert not QuotaOverride.objects.exists()
    assert check("search", "user:42")
    shown = client.get("/admin/django_quota/subject/?subject=user:42").content.decode()
    assert "Cleared: user:42, all rules: blocked" in shown
    assert "Cleared: user:42, search: blocked" in shown


@pytest.mark.usefixtures("database", "memory_store")
class TestActions:
    def test_each_action_asks_for_confirmation_first(self) -> None:
        now = timezone.now()
        rows = [row("user:1"), row("user:2", starts=now + timedelta(days=1)), row("user:3", expires=now)]
        for action in ("exempt_selected", "block_selected", "expire_selected"):
            shown = do(superuser(f"for-{action}"), action, rows, confirmed="").content.decode()
            assert "3 overrides are selected" in shown
            assert "1 active, 1 not yet begun, 1 ended" in shown
        assert QuotaOverride.objects.filter(mode="exempt", expires__isnull=True).count() == 2
        assert not LogEntry.objects.exists()

    def test_blocks_and_exemptions_apply_at_once_and_are_logged(self) -> None:
        rows = [row("user:1", mode="rate", rate="50/m"), row("user:2")]
        client = superuser()
        assert do(client, "block_selected", rows).status_code == 302
        assert not check("search", "user:1")
        assert not check("search", "user:2")
        assert LogEntry.objects.count() == 2
        do(client, "exempt_selected", rows[:1])
        assert check("search", "user:1", 1_000)
        assert not check("search", "user:2")

    def test_expiring_ends_rows_and_leaves_ended_ones(self) -> None:
        now = timezone.now()
        ended = row("user:1", expires=now - timedelta(days=1))
        rows = [ended, row("user:2", mode="blocked"), row("user:3", mode="blocked", starts=now + timedelta(days=1))]
        do(superuser(), "expire_selected", rows)
        assert check("search", "user:2")
        assert not QuotaOverride.objects.active().exists()
        assert QuotaOverride.objects.get(pk=ended.pk).expires == ended.expires

    def test_all_listed_rows_can_be_selected_up_to_a_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(4):
            row(f"user:{number}")
        client = superuser()
        shown = do(client, "block_selected", [], select_across="1", _selected_action="0", confirmed="")
        assert 'name="select_across" value="1"' in shown.content.decode()
        do(client, "block_selected", [], select_across="1", _selected_action="0")
        assert QuotaOverride.objects.filter(mode="blocked").count() == 4
        monkeypatch.setattr("django_quota.admin.override_admin.MAX_BULK_CHANGES", 3)
        do(client, "exempt_selected", [], select_across="1", _selected_action="0")
        assert not QuotaOverride.objects.filter(mode="exempt").exists()

    def test_actions_need_the_change_permission(self) -> None:
        rows = [row(mode="blocked")]
        client = operator("view_quotaoverride", "add_quotaoverride", "delete_quotaoverride")
        assert "exempt_selected" not in client.get(LIST).content.decode()
        do(client, "exempt_selected", rows)
        assert QuotaOverride.objects.get().mode == "blocked"
        assert do(superuser(enforce_csrf_checks=True), "exempt_selected", rows).status_code == 403


@pytest.mark.usefixtures("database", "memory_store")
class TestDeletedRows:
    @pytest.mark.parametrize("confirmed", ["", "yes"])
    def test_an_action_on_deleted_rows_changes_no_others(self, confirmed: str) -> None:
        row("user:1", mode="rate", rate="5/m")
        chosen = {"action": "block_selected", "_selected_action": "0", "confirmed": confirmed}
        answer = superuser().post(LIST, chosen, follow=True)
        shown = answer.content.decode()
        assert "These overrides do not exist any more." in shown
        assert 'name="select_across" value="1"' not in shown
        assert QuotaOverride.objects.get().mode == "rate"


@pytest.mark.usefixtures("database", "memory_store")
class TestDisplay:
    def test_an_opened_row_shows_its_effect(self) -> None:
        made = row("user:42", rule="search", mode="blocked")
        shown = superuser().get(f"{LIST}{made.pk}/change/").content.decode()
        assert "no hit is admitted (blocked by an override)" in shown
        seen = operator("view_quotaoverride").get(f"{LIST}{made.pk}/change/").content.decode()
        assert "no hit is admitted" not in seen

    def test_only_rules_that_have_rows_are_offered_as_a_filter(self) -> None:
        for rule in ("*", "of-a-call", "of-a-call"):
            QuotaOverride.objects.create(subject=f"user:{QuotaOverride.objects.count()}", rule=rule, mode="exempt")
        changes = superuser().get(LIST).context["cl"]
        offered = next(spec.lookup_choices for spec in changes.filter_specs if spec.title == "rule")
        assert offered == [("*", "all rules"), ("of-a-call", "of-a-call")]

    def test_a_long_reason_is_cut_and_complete_in_its_title(self) -> None:
        row("user:1", reason="<b>" + "because " * 20)
        shown = superuser().get(LIST).content.decode()
        assert 'title="&lt;b&gt;because' in shown
        assert "…</span>" in shown


@pytest.mark.usefixtures("database", "memory_store")
class TestGroups:
    """Overrides of networks, of kinds of subjects and of everybody."""

    def test_the_list_is_called_overrides_and_rules(self) -> None:
        client = superuser()
        row("*", rule="search")
        shown = client.get(LIST).content.decode()
        assert "<h1>Overrides and rules</h1>" in shown
        assert "everybody" in shown
        assert "off for everybody" in shown
        assert '<a href="/admin/django_quota/quotaoverride/rule/?name=login">login</a>' in shown
        assert "Overrides and rules" in client.get("/admin/").content.decode()

    def test_everybody_kinds_and_networks_are_saved_in_one_spelling_and_hold(self) -> None:
        client = superuser()
        for typed, rule in (("*", "search"), ("user:*", "login"), ("2001:DB8::1/32", "login")):
            assert add(client, subject=typed, rule=rule, rate="3/m", _anyway="").status_code == 302
        saved = set(QuotaOverride.objects.values_list("subject", flat=True))
        assert saved == {"*", "user:*", "ip:2001:db8::/32"}
        assert check("search", "org:1").limit == 3
        assert check("login", "user:1").limit == check("login", "ip:2001:db8:7::1").limit == 3
        assert check("login", "ip:203.0.113.9").limit == 2

    def test_a_network_is_found_in_any_spelling_and_rows_by_label(self) -> None:
        row("ip:198.51.100.0/24", label="crawlers")
        row("user:1", rule="search", label="customers")
        row("user:2")
        client = superuser()
        assert listed(client, q="198.51.100.77/24") == listed(client, q="ip:198.51.100.0/24") == ["ip:198.51.100.0/24"]
        assert listed(client, label="crawlers") == ["ip:198.51.100.0/24"]
        offered = next(spec for spec in client.get(LIST).context["cl"].filter_specs if spec.title == "label")
        assert offered.lookup_choices == [("crawlers", "crawlers"), ("customers", "customers")]


@pytest.mark.usefixtures("database", "either_store")
def test_the_page_of_a_rule_shows_what_it_decided_lately() -> None:
    for number, cost in ((1, 2), (2, 2), (1, 1), (2, 1), (2, 1)):
        check("login", f"ip:198.51.100.{number}", cost)
    page = f"{LIST}rule/?name=login"
    shown = re.sub(r"\s+", " ", superuser().get(page).content.decode())
    assert re.search(r"<dt>Checks today</dt><dd>5</dd> <dt>Refused</dt><dd>3</dd>", shown)
    if get_limiter().store.is_shared:  # the memory store keeps no events
        rows = re.findall(r"subject=ip%3A([\d.]*)[^>]*>[^<]*</a></th> <td data-label=.Time.>", shown)
        assert set(rows) == {"198.51.100.1", "198.51.100.2"}  # the latest first, to the millisecond
    assert "Checks today" not in operator("view_quotaoverride").get(page).content.decode()


@pytest.mark.usefixtures("database", "either_store")
class TestPreviewOfGroups:
    """Whom the store knows by name: those who were refused today, and those of the last events."""

    @pytest.fixture
    def refused(self, database: dict[str, Any], either_store: None) -> None:
        for number in (1, 2):
            check("login", f"ip:198.51.100.{number}", 2)
            check("login", f"ip:198.51.100.{number}")
        check("login", "user:1", 2)
        check("login", "user:1")

    def preview(self, subject: str, **given: str) -> str:
        fields = filled(subject=subject, rule="login", **given)
        return re.sub(r"\s+", " ", superuser(subject).post(f"{LIST}preview/", fields).content.decode())

    @pytest.mark.usefixtures("refused")
    def test_it_shows_what_would_change_for_them(self) -> None:
        shown = self.preview("ip:198.51.100.0/24", rate="9/h")
        assert "2 subjects of these were refused today" in shown
        assert "the next hits of 0 of them are refused" in shown
        assert shown.count("2/h: 2 of 2 used, 0 left") == shown.count("9/h: 2 of 9 used, 7 left") == 2
        assert "user:1" not in shown

    @pytest.mark.usefixtures("refused")
    def test_it_counts_whom_it_would_refuse(self) -> None:
        assert "the next hits of 3 of them are refused" in self.preview("*", mode="blocked", rate="")

    @pytest.mark.usefixtures("refused")
    def test_it_says_plainly_that_it_knows_nobody(self) -> None:
        for subject in ("org:*", "ip:192.0.2.0/24"):
            assert "The store knows none of these by name" in self.preview(subject)

    def test_it_looks_at_a_bounded_number(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_quota.admin.override_form.MAX_PREVIEWED", 3)
        for number in range(5):
            check("login", f"ip:198.51.100.{number}", 3)
        assert "3 subjects of these were refused today" in self.preview("*")


RULE = f"{LIST}rule/"


@pytest.mark.usefixtures("database", "memory_store")
class TestRulePage:
    def page(self, client: Client | None = None, name: str = "search") -> str:
        answer = (client or superuser()).get(RULE, {"name": name})
        assert answer.status_code == 200
        return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", answer.content.decode()))

    def test_it_shows_what_the_settings_say(self, settings: Any) -> None:
        rule = {
            "rate": {"anonymous": "5/m", "authenticated": "50/m; 500/h"},
            "key": ("user", "header:X-Device"),
            "match": "/api/",
            "methods": ["POST", "GET"],
            "exempt": ["10.0.0.0/8", "staff"],
            "ban": {"after": "20/m", "for": "10m"},
        }
        settings.QUOTA = {**settings.QUOTA, "RULES": {"api": rule}}
        shown = self.page(name="api")
        for words in (
            "QUOTA[&quot;RULES&quot;][&quot;api&quot;]",
            "Rate 5/m for anonymous, 50/m; 500/h for authenticated",
            "Key user, header:X-Device",
            "Match /api/",
            "Algorithm sliding window",
            "methods GET, HEAD, POST",
            "exempt 10.0.0.0/8, staff",
            "ban after 20 refusals in 1 minute, for 10 minutes",
        ):
            assert words in shown, words

    def test_it_shows_what_holds_now(self) -> None:
        assert "holds for everybody without an override" in self.page()
        now = timezone.now()
        row("*", rule="*", mode="rate", rate="7/m")
        row("*", rule="search", reason="an incident")
        row("org:*", rule="search", mode="shadow")
        row("ip:198.51.100.0/24", mode="blocked")
        row("ip:192.0.2.0/24", mode="blocked", expires=now - timedelta(days=1))
        row("user:1", rule="search", mode="blocked")
        row("user:1", mode="blocked")
        row("user:2", rule="login", mode="blocked")
        shown = self.page(superuser("other"))
        for words in (
            "For everybody without an override of their own: off for everybody",
            "everybody search off for everybody never an incident",
            "everybody all rules 7/m",
            "org:* search reports only",
            "ip:198.51.100.0/24 all rules blocked",
            "1 subject has an override of its own.",
        ):
            assert words in shown, words
        assert "192.0.2.0" not in shown

    def test_its_links_change_the_rule_for_everybody(self) -> None:
        client = superuser()
        links = client.get(RULE, {"name": "search"}).context["links"]
        assert links[0][1] == f"{LIST}add/?subject=%2A&rule=search&mode=rate"
        form = client.get(links[-1][1]).context["adminform"].form
        assert (form["subject"].value(), form["rule"].value(), form["mode"].value()) == ("*", "search", "exempt")
        made = row("*", rule="search")
        links = client.get(RULE, {"name": "search"}).context["links"]
        assert [url for _, url in links] == [f"{LIST}{made.pk}/change/", f"{LIST}{made.pk}/delete/"]

    def test_only_those_who_may_see_overrides_see_it(self) -> None:
        assert operator("view_overview", "view_subject", name="no").get(RULE, {"name": "search"}).status_code == 403
        looks = operator("view_quotaoverride", "view_subject", name="looks")
        assert looks.get(RULE, {"name": "search"}).context["links"] == []
        page = "/admin/django_quota/subject/?subject=user:1"
        assert f'href="{RULE}?name=search"' in looks.get(page).content.decode()
        assert RULE not in operator("view_subject", name="subjects").get(page).content.decode()

    def test_the_rule_of_a_call_has_a_page_and_a_text_that_names_no_rule_has_none(self) -> None:
        client = superuser()
        row("*", rule="transfer", mode="rate", rate="3/m")
        assert "Neither the settings nor the views have this rule." in self.page(client, "transfer")
        for name in ("", "*", "a\0b"):
            assert client.get(RULE, {"name": name}).status_code == 404
