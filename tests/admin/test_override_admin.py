"""Overrides in the admin: the list, its filters and search, the form and its preview, and bulk actions."""

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
RULE = f"{LIST}rule/"
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def rules(settings: Any) -> None:
    rules = {"search": {"rate": "10/m; 500/h"}, "login": {"rate": "2/h"}}
    settings.QUOTA = {**settings.QUOTA, "STORE": "memory", "RULES": rules}


def filled(**given: str) -> dict[str, str]:
    """Return what the form sends, for a user whom there need not be."""
    fields = {"subject": "user:42", "rule": "search", "mode": "rate", "rate": "100/m", "reason": "", "_anyway": "1"}
    fields |= {"starts_0": "", "starts_1": "", "expires_0": "", "expires_1": "", **given}
    return {name: value for name, value in fields.items() if name != "_anyway" or value}


def add(client: Client, **given: str) -> Any:
    return client.post(f"{LIST}add/", filled(**given))


def row(subject: str = "user:42", **given: Any) -> QuotaOverride:
    return QuotaOverride.objects.create(**{"subject": subject, "mode": "exempt", **given})


def do(client: Client, action: str, rows: list[QuotaOverride], **given: str) -> Any:
    chosen = {"action": action, "_selected_action": [one.pk for one in rows], "confirmed": "yes", **given}
    return client.post(LIST, {key: value for key, value in chosen.items() if value})


def preview(client: Client, pk: str = "", **given: str) -> str:
    answer = client.post(f"{LIST}preview/{pk}", filled(**given))
    assert answer.status_code == 200
    return re.sub(r"\s+", " ", answer.content.decode())


def listed(client: Client, **query: str) -> list[str]:
    answer = client.get(LIST, query)
    assert answer.status_code == 200
    return [one.subject for one in answer.context["cl"].result_list]


class TestList:
    def test_it_shows_rate_mode_state_and_reason(self) -> None:
        now = timezone.now()
        row("user:1", rule="search", mode="rate", rate="50/m", reason="an import")
        row("user:2", mode="blocked", starts=now + DAY, reason="<b>" + "because " * 20)
        row("user:3", expires=now - DAY)
        row("*", rule="search")
        shown = superuser().get(LIST).content.decode()
        for words in (
            *("50/m", "an import", "blocked", "not yet begun", "ended", "active", "all rules", "off for everybody"),
            *('title="&lt;b&gt;because', "…</span>", f'<a href="{RULE}?name=login">login</a>'),
            'href="/admin/django_quota/subject/?subject=user%3A1"',
        ):
            assert words in shown, words

    @pytest.mark.parametrize(
        ("query", "finds"),
        [
            ({"state": "active"}, ["ip:2001:db8::/64", "user:42"]),
            ({"state": "pending"}, ["user:4"]),
            *((query, ["ip:198.51.100.0/24"]) for query in ({"state": "ended"}, {"label": "crawlers"})),
            *((query, ["user:42"]) for query in ({"state": "permanent"}, {"mode__exact": "blocked"}, {"q": "IMPORT"})),
            ({"rule": "*"}, ["ip:198.51.100.0/24", "user:4", "user:42"]),
            ({"q": "user:4"}, ["user:4", "user:42"]),
            *(({"q": text}, ["ip:2001:db8::/64"]) for text in ("sear", "2001:DB8::77")),
            *((query, []) for query in ({"q": "er:4"}, {"rule": "unknown"})),
        ],
    )
    def test_filters_and_a_search_of_beginnings_reasons_and_addresses(
        self, query: dict[str, str], finds: list[str]
    ) -> None:
        now = timezone.now()
        row("user:4", starts=now + DAY, expires=now + 2 * DAY)
        row("user:42", mode="blocked", reason="an Import of theirs")
        row("ip:2001:db8::1", rule="search", expires=now + DAY)
        row("ip:198.51.100.0/24", expires=now - DAY, label="crawlers")
        assert listed(superuser(), **query) == finds


def test_pages_take_few_queries_and_the_list_is_in_the_order_of_an_index() -> None:
    QuotaOverride.objects.bulk_create(
        QuotaOverride(subject=f"user:{number}", rule="search", mode="exempt") for number in range(20)
    )
    client, subject = superuser(), "/admin/django_quota/subject/?subject=user:7"
    client.get(subject)
    overrides.refresh()  # a process reads them all once
    change = f"{LIST}{QuotaOverride.objects.get(subject='user:7').pk}/change/"
    for url, most in {
        **dict.fromkeys((LIST, f"{LIST}?q=user:7", f"{LIST}?state=active&rule=search"), 7),
        **dict.fromkeys((f"{RULE}?name=search", subject), 8),
        change: 5,
        f"{LIST}add/": 3,
    }.items():
        with CaptureQueriesContext(connection) as queries:
            assert client.get(url).status_code == 200
        assert len(queries) <= most, (url, [query["sql"] for query in queries])
    if connection.vendor == "sqlite":  # for few rows PostgreSQL plans no index
        assert "TEMP B-TREE" not in QuotaOverride.objects.order_by("subject", "rule")[:100].explain()


class TestForm:
    def test_a_row_is_saved_and_logged_with_who_made_it_and_then_changed(self) -> None:
        client = superuser()
        shown = client.get(f"{LIST}add/?subject=user:7").content.decode()
        assert '<option value="search">' in shown
        assert 'value="user:7"' in shown
        assert add(client, reason="an import", label="crawlers").status_code == 302
        made = QuotaOverride.objects.get()
        assert (made.rate, made.reason, made.label, made.created_by) == ("100/m", "an import", "crawlers", "root")
        assert check("search", "user:42").limit == 100
        assert superuser("ann").post(f"{LIST}{made.pk}/change/", filled(rate="20/m")).status_code == 302
        made.refresh_from_db()
        assert (made.rate, made.created_by) == ("20/m", "root")
        assert "Changed Rate" in client.get(f"{LIST}{made.pk}/history/").content.decode()

    def test_users_are_found_by_those_who_may_see_them_and_plain_values_are_not_shown(self) -> None:
        client = superuser()
        for name in ("ann", "bob"):
            User.objects.create_user(name, "same@example.org")
        typed = "203.0.113.9+post:username=ann@example.org"
        saved = f"ip:203.0.113.9+post.username:{digest('ann@example.org')}"
        shown = add(client, subject=typed, _preview="1").content.decode()
        assert (f'name="subject" value="{saved}"' in shown, "ann@example.org" in shown) == (True, False)
        assert add(client, subject="same@example.org").context["adminform"].form.errors["subject"]
        assert add(operator("add_quotaoverride"), subject="ann").status_code == 302
        made = QuotaOverride.objects.get()
        superuser("other").post(f"{LIST}{made.pk}/change/", filled(subject="ann"))
        assert made.subject == QuotaOverride.objects.get().subject == "ann"  # it stays what it was

    @pytest.mark.parametrize(
        ("given", "field"),
        [
            *(({"rate": rate}, "rate") for rate in ("10/month", "")),
            ({"mode": "exempt"}, "rate"),
            ({"subject": "ip:nowhere"}, "subject"),
            ({"starts_0": "2021-01-01", "starts_1": "0:00", "expires_0": "2020-01-01", "expires_1": "0:00"}, "expires"),
        ],
    )
    def test_an_error_is_shown_on_its_field(self, given: dict[str, str], field: str) -> None:
        assert add(superuser(), **given).context["adminform"].form.errors[field]
        assert not QuotaOverride.objects.exists()


class TestPreview:
    def test_the_button_and_the_live_preview_show_changes_and_save_nothing(self) -> None:
        client = superuser()
        User.objects.create_user("ann", pk=42)
        check("search", "user:42", 3)
        page = add(client, _preview="Preview").content.decode()
        live = preview(client)
        for shown in (page, live):
            assert "10/m: 3 of 10 used, 7 left; the next hit is admitted" in shown
            assert "100/m: 3 of 100 used, 97 left; the next hit is admitted (by an override)" in shown
        assert ('class="errornote"' in page, 'value="100/m"' in page, "<html" in live) == (False, True, False)
        assert not QuotaOverride.objects.exists()
        assert not LogEntry.objects.exists()
        assert peek("search", "user:42").remaining == 7

    def test_it_says_what_is_in_its_place(self, settings: Any) -> None:
        client, made = superuser(), row(rule="search")
        assert "no hit is admitted" in preview(client, f"{made.pk}/", mode="blocked", rate="")
        assert "(exempt by an override)" in client.get(f"{LIST}{made.pk}/change/").content.decode()
        assert client.post(f"{LIST}preview/9999/", filled()).status_code == 404
        assert "Complete the form to see a preview" in add(client, rate="many", _preview="1").content.decode()
        ended = preview(client, subject="user:9", expires_0="2001-01-02", expires_1="10:00")
        assert "the override has ended, so it changes nothing" in ended
        settings.QUOTA = {name: value for name, value in settings.QUOTA.items() if name != "STORE"}
        assert "There is no preview now." in preview(client, subject="user:9")

    def test_an_override_without_effect_is_saved_only_if_that_is_wanted(self) -> None:
        client = superuser()
        wrong = {"subject": "joe", "rule": "serch"}
        asked = add(client, **wrong, _anyway="").content.decode()
        for shown in (asked, preview(client, **wrong)):
            assert "No request has the subject &quot;joe&quot;" in shown
            assert "Did you mean &quot;search&quot;?" in shown
        assert 'name="_anyway"' in asked
        assert not QuotaOverride.objects.exists()
        add(client, **wrong)
        made = QuotaOverride.objects.get(**wrong)
        changed = filled(**wrong, rate="20/m", _anyway="")
        assert client.post(f"{LIST}{made.pk}/change/", changed).status_code == 302  # it was saved so before

    def test_of_a_group_it_shows_the_subjects_that_the_store_knows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for subject in ("ip:198.51.100.1", "ip:198.51.100.2", "user:1"):
            check("login", subject, 2)
            check("login", subject)
        client = superuser()
        shown = preview(client, subject="ip:198.51.100.0/24", rule="login", rate="9/h")
        assert "2 subjects of these were refused today" in shown
        assert "the next hits of 0 of them are refused" in shown
        assert shown.count("2/h: 2 of 2 used, 0 left") == shown.count("9/h: 2 of 9 used, 7 left") == 2
        assert "user:1" not in shown
        block = {"rule": "login", "mode": "blocked", "rate": ""}
        assert "the next hits of 3 of them are refused" in preview(client, subject="*", **block)
        assert "The store knows none of these by name" in preview(client, subject="org:*", **block)
        monkeypatch.setattr("django_quota.admin.override_form.MAX_PREVIEWED", 2)
        assert "2 subjects of these were refused today" in preview(client, subject="*", **block)


class TestActions:
    def test_each_asks_first_then_applies_at_once_and_is_logged(self) -> None:
        now, client = timezone.now(), superuser()
        rows = [row("user:1"), row("user:2", starts=now + DAY), row("user:3", expires=now - DAY)]
        for action in ("exempt_selected", "block_selected", "expire_selected"):
            shown = do(client, action, rows, confirmed="").content.decode()
            assert "3 overrides are selected" in shown
            assert "1 active, 1 not yet begun, 1 ended" in shown
        assert not LogEntry.objects.exists()
        assert do(client, "block_selected", rows[:1]).status_code == 302
        assert not check("search", "user:1")
        assert LogEntry.objects.count() == 1
        do(client, "exempt_selected", rows[:1])
        assert check("search", "user:1", 1_000)
        do(client, "expire_selected", rows)
        assert not QuotaOverride.objects.active().exists()
        assert QuotaOverride.objects.get(subject="user:3").expires == rows[2].expires  # it had ended before
        assert check("search", "user:1").limit == 10

    def test_all_listed_rows_can_be_selected_up_to_a_bound_and_none_that_are_gone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client, everything = superuser(), {"select_across": "1", "_selected_action": "0"}
        for number in range(4):
            row(f"user:{number}")
        shown = do(client, "block_selected", [], **everything, confirmed="").content.decode()
        assert 'name="select_across" value="1"' in shown
        do(client, "block_selected", [], **everything)
        assert QuotaOverride.objects.filter(mode="blocked").count() == 4
        monkeypatch.setattr("django_quota.admin.override_admin.MAX_BULK_CHANGES", 3)
        do(client, "exempt_selected", [], **everything)
        gone = {"action": "exempt_selected", "_selected_action": "0", "confirmed": "yes"}
        assert "do not exist any more." in client.post(LIST, gone, follow=True).content.decode()
        assert not QuotaOverride.objects.filter(mode="exempt").exists()

    def test_a_deletion_is_logged_for_the_subject_too(self) -> None:
        client, made = superuser(), row(mode="blocked")
        client.post(f"{LIST}{made.pk}/delete/", {"post": "yes"})
        row(mode="blocked", rule="search")
        do(client, "delete_selected", list(QuotaOverride.objects.all()), post="yes")
        assert check("search", "user:42")
        shown = client.get("/admin/django_quota/subject/?subject=user:42").content.decode()
        assert "Cleared: user:42, all rules: blocked" in shown
        assert "Cleared: user:42, search: blocked" in shown


class TestRulePage:
    def page(self, client: Client, name: str = "search") -> str:
        answer = client.get(RULE, {"name": name})
        assert answer.status_code == 200
        return re.sub(r"\s+", " ", answer.content.decode())

    def words(self, client: Client, name: str = "search") -> str:
        return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", self.page(client, name)))

    def test_it_shows_what_the_settings_say(self, settings: Any) -> None:
        rule = {
            "rate": {"anonymous": "5/m", "authenticated": "50/m; 500/h"}, "key": ("user", "header:X-Device"),
            "match": "/api/", "methods": ["POST", "GET"], "exempt": ["10.0.0.0/8", "staff"],
            "ban": {"after": "20/m", "for": "10m"},
        }  # fmt: skip
        settings.QUOTA = {**settings.QUOTA, "RULES": {"api": rule}}
        shown = self.words(superuser(), "api")
        for words in (
            *("QUOTA[&quot;RULES&quot;][&quot;api&quot;]", "Rate 5/m for anonymous, 50/m; 500/h for authenticated"),
            *("Key user, header:X-Device", "Match /api/", "Algorithm sliding window", "methods GET, HEAD, POST"),
            *("exempt 10.0.0.0/8, staff", "ban after 20 refusals in 1 minute, for 10 minutes"),
        ):
            assert words in shown, words

    def test_it_shows_what_holds_now(self) -> None:
        client = superuser()
        assert "holds for everybody without an override" in self.words(client)
        row("*", rule="*", mode="rate", rate="7/m")
        row("*", rule="search", reason="an incident")
        row("org:*", rule="search", mode="shadow")
        row("ip:192.0.2.0/24", mode="blocked", expires=timezone.now() - DAY)
        row("user:1", rule="search", mode="blocked")
        row("user:2", rule="login", mode="blocked")
        shown = self.words(client)
        for words in (
            "For everybody without an override of their own: off for everybody",
            "everybody search off for everybody never an incident",
            *("everybody all rules 7/m", "org:* search reports only", "1 subject has an override of its own."),
        ):
            assert words in shown, words
        assert "192.0.2.0" not in shown

    def test_it_shows_what_the_rule_decided_lately(self, redis_cache: Any, settings: Any) -> None:
        settings.QUOTA = {name: value for name, value in settings.QUOTA.items() if name != "STORE"}
        for number, cost in ((1, 2), (2, 2), (1, 1), (2, 1), (2, 1)):
            check("login", f"ip:198.51.100.{number}", cost)
        shown = self.page(superuser(), "login")
        assert "<dt>Checks today</dt><dd>5</dd> <dt>Refused</dt><dd>3</dd>" in shown
        rows = re.findall(r"subject=ip%3A([\d.]*)[^>]*>[^<]*</a></th> <td data-label=.Time.>", shown)
        assert set(rows) == {"198.51.100.1", "198.51.100.2"}
        assert "Checks today" not in self.page(operator("view_quotaoverride"), "login")

    def test_its_links_change_the_rule_for_everybody_and_a_rule_of_a_call_has_a_page(self) -> None:
        client = superuser()
        url = f"{LIST}add/?subject=*&rule=search&mode=exempt"
        assert url.replace("&", "&amp;") in self.page(client)
        form = client.get(url).context["adminform"].form
        assert (form["subject"].value(), form["rule"].value(), form["mode"].value()) == ("*", "search", "exempt")
        made = row("*", rule="search")
        shown = self.page(client)
        assert all(f"{LIST}{made.pk}/{action}/" in shown for action in ("change", "delete"))
        assert "/delete/" not in self.page(operator("view_quotaoverride", name="looks"))
        assert "Neither the settings nor the views have this rule." in self.page(client, "transfer")
        for name in ("", "*", "a\0b"):
            assert client.get(RULE, {"name": name}).status_code == 404
