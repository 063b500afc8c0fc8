"""Overrides in the admin: the list, its filters and search, the form and its preview, and bulk actions."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_quota import check, peek
from django_quota.adapters import digest
from django_quota.limiting.overrides import overrides
from django_quota.models import QuotaOverride
from tests.admin.operators import operator, superuser

pytestmark = pytest.mark.usefixtures("database")

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
    rules = {"search": {"rate": "10/m; 500/h"}, "login": {"rate": "2/h"}}
    settings.QUOTA = {**settings.QUOTA, "STORE": "memory", "RULES": rules}


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


def listed(client: Client, **query: str) -> list[str]:
    answer = client.get(LIST, query)
    assert answer.status_code == 200
    return [one.subject for one in answer.context["cl"].result_list]


class TestList:
    def test_it_shows_rate_mode_state_and_reason(self) -> None:
        now = timezone.now()
        row("user:1", rule="search", mode="rate", rate="50/m", reason="an import")
        row("user:2", mode="blocked", starts=now + timedelta(days=1), reason="<b>" + "because " * 20)
        row("user:3", expires=now - timedelta(days=1))
        row("*", rule="search")
        shown = superuser().get(LIST).content.decode()
        for words in (
            *("50/m", "an import", "blocked", "not yet begun", "ended", "active", "all rules", "everybody"),
            *("off for everybody", 'title="&lt;b&gt;because', "…</span>"),
            'href="/admin/django_quota/subject/?subject=user%3A1"',
            "<h1>Overrides and rules</h1>",
            '<a href="/admin/django_quota/quotaoverride/rule/?name=login">login</a>',
        ):
            assert words in shown, words

    def test_it_is_filtered_by_state_mode_rule_and_label(self) -> None:
        now = timezone.now()
        row("a:active", expires=now + timedelta(days=1))
        row("a:pending", starts=now + timedelta(days=1), expires=now + timedelta(days=2))
        row("a:ended", expires=now - timedelta(days=1), label="crawlers")
        row("a:for-good", mode="blocked", rule="search")
        client = superuser()
        assert listed(client, state="active") == ["a:active", "a:for-good"]
        assert listed(client, state="pending") == ["a:pending"]
        assert listed(client, state="ended") == listed(client, label="crawlers") == ["a:ended"]
        for query in ({"state": "permanent"}, {"mode__exact": "blocked"}, {"rule": "search"}):
            assert listed(client, **query) == ["a:for-good"]
        assert len(listed(client, rule="*")) == 3
        assert listed(client, rule="unknown") == []

    @pytest.mark.parametrize(
        ("text", "finds"),
        [
            ("user:4", ["user:4", "user:42"]),
            ("sear", ["ip:2001:db8::/64"]),
            ("IMPORT", ["user:42"]),
            ("2001:DB8::77", ["ip:2001:db8::/64"]),
            ("198.51.100.77/24", ["ip:198.51.100.0/24"]),
            ("\x00", ["ip:198.51.100.0/24", "ip:2001:db8::/64", "user:4", "user:42"]),
            ("er:4", []),
        ],
    )
    def test_a_search_finds_beginnings_reasons_and_addresses_in_any_spelling(self, text: str, finds: list[str]) -> None:
        row("user:4")
        row("user:42", reason="an Import of theirs")
        row("ip:2001:db8::1", rule="search")
        row("ip:198.51.100.0/24")
        assert listed(superuser(), q=text) == finds


@pytest.mark.thorough("scale")
def test_pages_take_few_queries_with_a_hundred_thousand_rows() -> None:
    with connection.cursor() as cursor:
        cursor.execute(FILL)
        cursor.execute("ANALYZE")
    client = superuser()
    client.get(LIST)
    overrides.refresh()  # a process reads them all once
    wanted = QuotaOverride.objects.get(subject="user:7")
    pages = {
        LIST: 7,
        f"{LIST}?q=user:777": 7,
        f"{LIST}?state=active&rule=search": 7,
        f"{LIST}{wanted.pk}/change/": 5,
        f"{LIST}add/": 3,
        f"{LIST}rule/?name=search": 8,
        "/admin/django_quota/subject/?subject=user:7": 8,
    }
    for url, most in pages.items():
        with CaptureQueriesContext(connection) as queries:
            assert client.get(url).status_code == 200
        assert len(queries) <= most, (url, [query["sql"] for query in queries])
    plan = QuotaOverride.objects.order_by("subject", "rule")[:100].explain()
    assert "TEMP B-TREE" not in plan
    assert "Sort" not in plan


class TestForm:
    def test_a_row_is_saved_and_logged_with_who_made_it_and_then_changed(self) -> None:
        client = superuser()
        assert add(client, reason="an import", label="crawlers").status_code == 302
        made = QuotaOverride.objects.get()
        assert (made.rate, made.reason, made.label, str(made.created_by)) == ("100/m", "an import", "crawlers", "root")
        assert check("search", "user:42").limit == 100
        assert superuser("ann").post(f"{LIST}{made.pk}/change/", filled(rate="20/m")).status_code == 302
        made.refresh_from_db()
        assert (made.rate, str(made.created_by)) == ("20/m", "root")
        assert "Changed Rate" in client.get(f"{LIST}{made.pk}/history/").content.decode()

    def test_the_subject_is_what_one_can_type_in_one_spelling(self) -> None:
        ann = User.objects.create_user("ann", "ann@example.org")
        subject = f"ip:203.0.113.9+post.username:{digest('ann@example.org')}"
        client = superuser()
        for typed, saved in {
            "ann": f"user:{ann.pk}",
            "203.0.113.9+post:username=ann@example.org": subject,
            "*": "*",
            "user:*": "user:*",
            "2001:DB8::1/32": "ip:2001:db8::/32",
        }.items():
            shown = add(client, subject=typed, _preview="1").content.decode()
            assert f'name="subject" value="{saved}"' in shown
            assert "ann@example.org" not in shown
            assert add(client, subject=typed, rate="3/m").status_code == 302
            QuotaOverride.objects.get(subject=saved).delete()

    def test_users_are_found_by_those_who_may_see_them_and_named_one_by_one(self) -> None:
        for name in ("ann", "bob"):
            User.objects.create_user(name, "same@example.org")
        assert add(superuser(), subject="same@example.org").context["adminform"].form.errors["subject"]
        assert add(operator("add_quotaoverride"), subject="ann").status_code == 302
        assert QuotaOverride.objects.get().subject == "ann"
        made = QuotaOverride.objects.get()
        superuser("other").post(f"{LIST}{made.pk}/change/", filled(subject="ann"))
        assert QuotaOverride.objects.get().subject == "ann"  # it stays what it was

    @pytest.mark.parametrize(
        ("given", "field"),
        [
            ({"rate": "10/month"}, "rate"),
            ({"rate": ""}, "rate"),
            ({"rate": "many"}, "rate"),
            ({"mode": "exempt"}, "rate"),
            ({"subject": ""}, "subject"),
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

    def test_the_form_suggests_rules_and_takes_values_from_the_url(self) -> None:
        shown = superuser().get(f"{LIST}add/?subject=user:7").content.decode()
        assert '<option value="search">' in shown
        assert 'value="user:7"' in shown

    def test_the_view_permission_changes_nothing(self) -> None:
        made, client = row(rule="search"), operator("view_quotaoverride")
        shown = client.get(f"{LIST}{made.pk}/change/")
        assert shown.status_code == 200
        assert "by an override" not in shown.content.decode()
        assert client.post(f"{LIST}{made.pk}/change/", filled()).status_code == 403
        assert client.get(f"{LIST}add/").status_code == 403


class TestPreview:
    def test_the_button_shows_changes_and_saves_nothing(self) -> None:
        User.objects.create_user("ann", pk=42)
        check("search", "user:42", 3)
        shown = add(superuser(), _preview="Preview").content.decode()
        assert "10/m: 3 of 10 used, 7 left; the next hit is admitted" in shown
        assert "100/m: 3 of 100 used, 97 left; the next hit is admitted (by an override)" in shown
        assert 'class="errornote"' not in shown
        assert 'value="100/m"' in shown
        assert not QuotaOverride.objects.exists()
        assert not LogEntry.objects.exists()
        assert peek("search", "user:42").remaining == 7

    def test_the_live_preview_shows_the_same_and_saves_nothing(self) -> None:
        client = superuser()
        shown = client.post(f"{LIST}preview/", filled()).content.decode()
        assert "100/m: 0 of 100 used" in shown
        assert "<html" not in shown
        made = row(rule="search")
        shown = client.post(f"{LIST}preview/{made.pk}/", filled(mode="blocked", rate="")).content.decode()
        assert "no hit is admitted" in shown
        assert "(exempt by an override)" in client.get(f"{LIST}{made.pk}/change/").content.decode()
        assert client.post(f"{LIST}preview/9999/", filled()).status_code == 404

    def test_an_override_without_effect_is_saved_only_if_that_is_wanted(self) -> None:
        client = superuser()
        wrong = {"subject": "joe", "rule": "serch"}
        for shown in (
            add(client, **wrong, _preview="1").content.decode(),
            client.post(f"{LIST}preview/", filled(**wrong)).content.decode(),
            add(client, **wrong, _anyway="").content.decode(),
        ):
            assert "No request has the subject &quot;joe&quot;" in shown
            assert "Did you mean &quot;search&quot;?" in shown
        assert 'name="_anyway"' in shown
        assert not QuotaOverride.objects.exists()
        add(client, **wrong)
        made = QuotaOverride.objects.get(**wrong)
        changed = filled(**wrong, rate="20/m", _anyway="")
        assert client.post(f"{LIST}{made.pk}/change/", changed).status_code == 302  # it was saved so before

    def test_a_user_under_a_rule_by_address_is_refused(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"signup": {"rate": "5/m", "key": "ip"}}}
        joe, client = User.objects.create_user("joe"), superuser()
        given = {"rule": "signup", "mode": "blocked", "rate": "", "_anyway": ""}
        shown = add(client, subject="joe", **given).content.decode()
        assert f"No request has the subject &quot;user:{joe.pk}&quot; under the rule &quot;signup&quot;" in shown
        assert add(client, subject="198.51.100.0/24", **given).status_code == 302
        assert not check("signup", "ip:198.51.100.7")

    def test_errors_ended_overrides_and_a_silent_store_are_shown_in_place_of_a_preview(self, settings: Any) -> None:
        client, ended = superuser(), {"expires_0": "2001-01-02", "expires_1": "10:00"}
        assert "Complete the form to see a preview" in add(client, rate="many", _preview="1").content.decode()
        shown = client.post(f"{LIST}preview/", filled(**ended)).content.decode()
        assert "the override has ended, so it changes nothing" in shown
        settings.QUOTA = {name: value for name, value in settings.QUOTA.items() if name != "STORE"}
        assert "There is no preview now." in client.post(f"{LIST}preview/", filled()).content.decode()

    def test_it_needs_the_permission_to_add_or_to_change(self) -> None:
        made = row()
        adds, changes = operator("add_quotaoverride", name="adds"), operator("change_quotaoverride", name="changes")
        clients = adds, changes, operator("view_quotaoverride", "view_subject", name="looks")
        for url, statuses in ((f"{LIST}preview/", [200, 403, 403]), (f"{LIST}preview/{made.pk}/", [403, 200, 403])):
            assert [client.post(url, filled()).status_code for client in clients] == statuses

    def test_of_a_group_it_shows_the_subjects_that_the_store_knows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for subject in ("ip:198.51.100.1", "ip:198.51.100.2", "user:1"):
            check("login", subject, 2)
            check("login", subject)
        client = superuser()

        def preview(subject: str, **given: str) -> str:
            fields = filled(subject=subject, rule="login", **given)
            return re.sub(r"\s+", " ", client.post(f"{LIST}preview/", fields).content.decode())

        shown = preview("ip:198.51.100.0/24", rate="9/h")
        assert "2 subjects of these were refused today" in shown
        assert "the next hits of 0 of them are refused" in shown
        assert shown.count("2/h: 2 of 2 used, 0 left") == shown.count("9/h: 2 of 9 used, 7 left") == 2
        assert "user:1" not in shown
        assert "the next hits of 3 of them are refused" in preview("*", mode="blocked", rate="")
        assert "The store knows none of these by name" in preview("org:*")
        monkeypatch.setattr("django_quota.admin.override_form.MAX_PREVIEWED", 2)
        assert "2 subjects of these were refused today" in preview("*")


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

    @pytest.mark.parametrize("confirmed", ["", "yes"])
    def test_an_action_on_deleted_rows_changes_no_others(self, confirmed: str) -> None:
        row("user:1", mode="rate", rate="5/m")
        chosen = {"action": "block_selected", "_selected_action": "0", "confirmed": confirmed}
        shown = superuser().post(LIST, chosen, follow=True).content.decode()
        assert "These overrides do not exist any more." in shown
        assert QuotaOverride.objects.get().mode == "rate"


RULE = f"{LIST}rule/"


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

    def test_it_shows_what_the_rule_decided_lately(self, redis_cache: Any, settings: Any) -> None:
        settings.QUOTA = {name: value for name, value in settings.QUOTA.items() if name != "STORE"}
        for number, cost in ((1, 2), (2, 2), (1, 1), (2, 1), (2, 1)):
            check("login", f"ip:198.51.100.{number}", cost)
        shown = re.sub(r"\s+", " ", superuser().get(RULE, {"name": "login"}).content.decode())
        assert "<dt>Checks today</dt><dd>5</dd> <dt>Refused</dt><dd>3</dd>" in shown
        rows = re.findall(r"subject=ip%3A([\d.]*)[^>]*>[^<]*</a></th> <td data-label=.Time.>", shown)
        assert set(rows) == {"198.51.100.1", "198.51.100.2"}
        assert "Checks today" not in self.page(operator("view_quotaoverride"), "login")

    def test_its_links_change_the_rule_for_everybody(self) -> None:
        client = superuser()
        url = f"{LIST}add/?subject=*&rule=search&mode=exempt"
        assert url.replace("&", "&amp;") in client.get(RULE, {"name": "search"}).content.decode()
        form = client.get(url).context["adminform"].form
        assert (form["subject"].value(), form["rule"].value(), form["mode"].value()) == ("*", "search", "exempt")
        made = row("*", rule="search")
        shown = client.get(RULE, {"name": "search"}).content.decode()
        assert f"{LIST}{made.pk}/change/" in shown
        assert f"{LIST}{made.pk}/delete/" in shown
        looks = operator("view_quotaoverride", name="looks").get(RULE, {"name": "search"}).content.decode()
        assert "/delete/" not in looks

    def test_the_rule_of_a_call_has_a_page_and_a_text_that_names_no_rule_has_none(self) -> None:
        client = superuser()
        row("*", rule="transfer", mode="rate", rate="3/m")
        assert "Neither the settings nor the views have this rule." in self.page(client, "transfer")
        for name in ("", "*", "a\0b"):
            assert client.get(RULE, {"name": name}).status_code == 404
