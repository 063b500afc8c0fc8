"""Overrides in the admin: the list, its filters and search, the form and its preview, and bulk actions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import django_quota
from django_quota import check, peek
from django_quota.adapters import digest
from django_quota.models import QuotaOverride
from django_quota.testing import RedisServer
from tests.admin.operators import operator, superuser

LIST = "/admin/django_quota/quotaoverride/"
NO_SPAN = {"starts_0": "", "starts_1": "", "expires_0": "", "expires_1": ""}
MANY = 100_000
FILL = f"""
    WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < {MANY - 1})
    INSERT INTO django_quota_quotaoverride (subject, rule, mode, rate, reason, created, updated)
    SELECT 'user:' || n, 'search', 'exempt', '', 'r' || n, CURRENT_TIMESTAMP, CURRENT_TIMESTAMP FROM numbers"""
"""Rows by one statement, which publishes nothing."""
BACKWARDS = {"expires_0": "2020-01-01", "expires_1": "00:00", "starts_0": "2021-01-01", "starts_1": "00:00"}


@pytest.fixture(autouse=True)
def rules(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"search": {"rate": "10/m; 500/h"}, "login": {"rate": "2/h"}}}


def filled(**given: str) -> dict[str, str]:
    """Return what the form sends."""
    return {"subject": "user:42", "rule": "search", "mode": "rate", "rate": "100/m", "reason": "", **NO_SPAN, **given}


def add(client: Client, **given: str) -> Any:
    return client.post(f"{LIST}add/", filled(**given))


def row(subject: str = "user:42", **given: Any) -> QuotaOverride:
    return QuotaOverride.objects.create(**{"subject": subject, "mode": "exempt", **given})


def do(client: Client, action: str, rows: list[QuotaOverride], **given: str) -> Any:
    chosen = {"action": action, "_selected_action": [one.pk for one in rows], "confirmed": "yes", **given}
    return client.post(LIST, {key: value for key, value in chosen.items() if value})


def test_the_style_sheet_names_columns_of_the_list() -> None:
    styles = Path(django_quota.__file__).parent.joinpath("static/django_quota/subject.css").read_text()
    styled = set(re.findall(r"\.field-(\w+)", styles))
    assert styled == {"subject", "rule_name", "short_reason"}
    assert styled <= set(admin.site.get_model_admin(QuotaOverride).list_display)


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
    wanted = rows.get(subject="user:7")
    pages = {
        LIST: 6,
        f"{LIST}?q=user:777": 5,
        f"{LIST}?state=active&rule=search": 5,
        f"{LIST}{wanted.pk}/change/": 4,
        f"{LIST}add/": 3,
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
    def test_a_row_is_saved_published_and_logged_with_who_made_it(self) -> None:
        assert add(superuser(), reason="an import").status_code == 302
        made = QuotaOverride.objects.get()
        assert (made.rate, made.reason, str(made.created_by)) == ("100/m", "an import", "root")
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

    def test_a_user_fills_in_the_subject(self) -> None:
        ann = User.objects.create_user("ann")
        assert add(superuser(), subject="", user=str(ann.pk)).status_code == 302
        assert QuotaOverride.objects.get().subject == f"user:{ann.pk}"

    def test_a_user_and_a_different_subject_are_refused(self) -> None:
        ann = User.objects.create_user("ann")
        answer = add(superuser(), user=str(ann.pk), subject="ip:203.0.113.9")
        assert answer.context["adminform"].form.errors["user"]
        assert add(superuser("other"), subject="").context["adminform"].form.errors["subject"]

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

    def test_an_admin_that_cannot_search_users_does_not_offer_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(admin.site._registry[User], "search_fields", ())
        assert 'name="user"' not in superuser().get(f"{LIST}add/").content.decode()

    def test_users_are_not_offered_without_the_permission(self) -> None:
        client = operator("add_quotaoverride")
        assert 'name="user"' not in client.get(f"{LIST}add/").content.decode()
        assert add(client).status_code == 302

    def test_the_view_permission_changes_nothing(self) -> None:
        made, client = row(), operator("view_quotaoverride")
        assert client.get(f"{LIST}{made.pk}/change/").status_code == 200
        assert client.post(f"{LIST}{made.pk}/change/", filled()).status_code == 403
        assert client.get(f"{LIST}add/").status_code == 403


@pytest.mark.usefixtures("database", "either_store")
class TestPreview:
    def test_the_button_shows_changes_and_saves_nothing(self) -> None:
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

    def test_a_preview_of_a_change_leaves_the_row(self) -> None:
        made = row(rule="search", mode="rate", rate="50/m")
        client = superuser()
        shown = client.post(f"{LIST}{made.pk}/change/", filled(_preview="1")).content.decode()
        assert "100/m: 0 of 100 used" in shown
        made.refresh_from_db()
        assert made.rate == "50/m"

    def test_a_value_becomes_its_digest_in_the_field_and_when_saved(self) -> None:
        subject = f"ip:203.0.113.9+post.username:{digest('ann@example.org')}"
        given = {"subject": "203.0.113.9+post:username=ann@example.org"}
        shown = add(superuser(), **given, _preview="1").content.decode()
        assert f'value="{subject}"' in shown
        assert "ann@example.org" not in shown
        assert add(superuser("other"), **given).status_code == 302
        assert QuotaOverride.objects.get().subject == subject

    def test_a_bare_address_becomes_a_subject_in_the_field_and_when_saved(self) -> None:
        client = superuser()
        shown = add(client, subject="127.0.0.1", _preview="1").content.decode()
        assert 'value="ip:127.0.0.1"' in shown
        assert 'value="127.0.0.1"' not in shown
        add(client, subject="127.0.0.1")
        assert QuotaOverride.objects.get().subject == "ip:127.0.0.1"

    def test_an_override_without_effect_is_reported_before_and_after(self) -> None:
        client = superuser()
        joe = User.objects.create_user("joe")
        wrong = {"subject": "joe", "rule": "serch"}
        for shown in (
            add(client, **wrong, _preview="1").content.decode(),
            client.post(f"{LIST}preview/", filled(**wrong)).content.decode(),
            client.post(f"{LIST}add/", filled(**wrong), follow=True).content.decode(),
        ):
            assert f"“user:{joe.pk}”" in shown
            assert "Did you mean “search”?" in shown
        assert QuotaOverride.objects.filter(**wrong).exists()
        right = client.post(f"{LIST}add/", filled(subject=f"user:{joe.pk}"), follow=True).content.decode()
        assert 'class="warning"' not in right

    def test_hints_do_not_reveal_users(self) -> None:
        User.objects.create_user("joe")
        shown = operator("add_quotaoverride").post(f"{LIST}preview/", filled(subject="joe")).content.decode()
        assert "user:&lt;key&gt;" in shown
        assert "the user of this name" not in shown

    def test_errors_are_shown_in_place_of_a_preview(self) -> None:
        shown = add(superuser(), rate="many", _preview="1").content.decode()
        assert "Complete the form to see a preview" in shown

    def test_the_live_preview_says_that_an_override_has_ended(self) -> None:
        span = {"starts_0": "2001-01-01", "starts_1": "10:00", "expires_0": "2001-01-02", "expires_1": "10:00"}
        shown = superuser().post(f"{LIST}preview/", filled(**span)).content.decode()
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
        looks = operator("view_quotaoverride", "view_subject", name="looks")
        assert [client.post(f"{LIST}preview/", filled()).status_code for client in (adds, changes, looks)] == [
            200,
            403,
            403,
        ]
        there = f"{LIST}preview/{made.pk}/"
        assert [client.post(there, filled()).status_code for client in (adds, changes, looks)] == [403, 200, 403]
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


NOT_YET = "It applies soon after Redis is back."


@pytest.mark.parametrize("is_atomic", [False, True], ids=["", "atomic-requests"])
class TestUnpublishedChanges:
    """Each page that changes an override says so if Redis did not take the change."""

    @pytest.fixture(autouse=True, params=[True, False], ids=["replica", "well"])
    def is_away(
        self,
        request: pytest.FixtureRequest,
        database: dict[str, Any],
        redis_cache: RedisServer,
        raw: redis.Redis,
        monkeypatch: pytest.MonkeyPatch,
        is_atomic: bool,
    ) -> Iterator[bool]:
        monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", is_atomic)
        row("user:1", mode="rate", rate="5/m")
        row("user:2", mode="rate", rate="5/m")
        if request.param:
            raw.replicaof("127.0.0.1", 1)
        yield request.param
        raw.replicaof("NO", "ONE")

    def warned(self, path: str, fields: dict[str, Any]) -> bool:
        answer = superuser().post(path, fields, follow=True)
        shown = [str(message) for message in answer.context["messages"]]
        assert shown, answer.text
        return any(NOT_YET in words for words in shown)

    def path(self, what: str) -> str:
        return f"{LIST}{QuotaOverride.objects.get(subject='user:1').pk}/{what}/"

    def test_adding(self, is_away: bool) -> None:
        assert self.warned(f"{LIST}add/", filled()) == is_away

    def test_changing(self, is_away: bool) -> None:
        assert self.warned(self.path("change"), filled(subject="user:1", rule="*")) == is_away

    def test_changing_the_subject(self, is_away: bool) -> None:
        assert self.warned(self.path("change"), filled(subject="user:9", rule="*")) == is_away

    def test_deleting(self, is_away: bool) -> None:
        assert self.warned(self.path("delete"), {"post": "yes"}) == is_away

    @pytest.mark.parametrize("action", ["delete_selected", "block_selected", "expire_selected"])
    def test_bulk_actions(self, is_away: bool, action: str) -> None:
        keys = [one.pk for one in QuotaOverride.objects.all()]
        assert (
            self.warned(LIST, {"action": action, "_selected_action": keys, "confirmed": "yes", "post": "1"}) == is_away
        )

    def test_the_buttons_of_a_subject(self, is_away: bool) -> None:
        url = "/admin/django_quota/subject/action/block/"
        assert self.warned(url, {"subject": "user:3", "confirmed": "yes", "span": "1d", "reason": ""}) == is_away

    def test_no_warning_where_limits_are_switched_off(self, is_away: bool, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
        assert not self.warned(f"{LIST}add/", filled())
