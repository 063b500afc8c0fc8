"""Overrides in the admin: the list, its filters and search, the form and its preview, and bulk actions."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
from django.contrib.admin import site
from django.contrib.admin.models import LogEntry
from django.contrib.admin.templatetags.admin_list import result_headers
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpRequest
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_quota import check, peek
from django_quota.adapters import digest
from django_quota.admin.overrides import QuotaOverrideAdmin
from django_quota.core.errors import StorePermissionDenied
from django_quota.features.events import MemoryEvents
from django_quota.limiting.known_rules import known_login_rules
from django_quota.limiting.overrides import overrides
from django_quota.models import QuotaOverride
from django_quota.testing import freeze
from tests.admin.operators import operator, superuser
from tests.support.rows import has_words
from tests.support.steps import MINUTE, SECOND, START

LIST = "/admin/django_quota/quotaoverride/"
RULE = f"{LIST}rule/"
DAY = timedelta(days=1)
MAY = datetime(2030, 5, 1, 18, tzinfo=UTC)


@pytest.fixture(autouse=True)
def rules(database: Any, settings: Any) -> None:
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


def one_in_each_state() -> list[QuotaOverride]:
    """Return the overrides of three users: one in force, one that begins tomorrow, one that has ended."""
    now = timezone.now()
    return [row("user:1"), row("user:2", starts=now + DAY), row("user:3", expires=now - DAY)]


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
    @has_words(
        rate="50/m",
        reason="an import",
        mode="blocked",
        before_its_start="not yet begun",
        after_its_end="ended",
        in_force="active",
        no_rule="all rules",
        an_exemption_of_everybody="off for everybody",
        a_long_reason_escaped='title="&lt;b&gt;because',
        a_long_reason_shortened="…</span>",
        count_of_all="7 overrides\n",
        link_to_the_subject='href="/admin/django_quota/subject/?subject=user%3A1"',
    )
    def test_it_shows_each_detail(self, words: str) -> None:
        now = timezone.now()
        row("user:1", rule="search", mode="rate", rate="50/m", reason="an import")
        row("user:2", mode="blocked", starts=now + DAY, reason="<b>" + "because " * 20)
        row("user:3", expires=now - DAY)
        row("*", rule="search")
        for number in range(5, 8):
            row(f"user:{number}")

        assert words in superuser().get(LIST).content.decode()

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            pytest.param({"starts": MAY}, "from 05/01/2030 6 p.m. UTC", id="a start"),
            pytest.param({"expires": MAY}, "until 05/01/2030 6 p.m. UTC", id="an end"),
            pytest.param(
                {"starts": MAY, "expires": MAY + DAY},
                "from 05/01/2030 6 p.m. UTC until 05/02/2030 6 p.m. UTC",
                id="both",
            ),
            pytest.param({}, "", id="neither"),
        ],
    )
    def test_it_shows_from_when_until_when_an_override_is_in_force(self, given: Any, words: str) -> None:
        row(**given)

        page = superuser().get(LIST).content.decode()

        assert re.findall('<span class="quota-span">(.*)</span></td>', page) == [words]

    @pytest.mark.parametrize(("label", "words"), [("", "-"), ("crawlers", "crawlers")], ids=["none", "a label"])
    def test_it_shows_a_label_or_a_dash(self, label: str, words: str) -> None:
        row(label=label)

        shown = superuser().get(LIST).content.decode()

        assert f'<span class="quota-label">label</span> {words}</td>' in shown

    @pytest.mark.parametrize(("length", "is_cut"), [(60, False), (61, True)], ids=["sixty characters", "one more"])
    def test_a_reason_longer_than_sixty_characters_is_cut(self, length: int, is_cut: bool) -> None:
        row(reason="x" * length)

        shown = superuser().get(LIST).content.decode()

        assert (f"{'x' * 59}…</span>" in shown) is is_cut

    @pytest.mark.parametrize(
        ("query", "finds"),
        [
            pytest.param({"state": "active"}, ["ip:2001:db8::/64", "user:42"], id="in force"),
            pytest.param({"state": "pending"}, ["user:4", "user:5"], id="not yet begun"),
            pytest.param({"state": "ended"}, ["ip:198.51.100.0/24"], id="ended"),
            pytest.param({"state": "permanent"}, ["user:42", "user:5"], id="without an end"),
            pytest.param({"label": "crawlers"}, ["ip:198.51.100.0/24"], id="label"),
            pytest.param({"mode__exact": "blocked"}, ["user:42"], id="mode"),
            pytest.param({"rule": "*"}, ["ip:198.51.100.0/24", "user:4", "user:42", "user:5"], id="all rules"),
            pytest.param({"rule": "unknown"}, [], id="an unknown rule"),
        ],
    )
    def test_a_filter_finds_its_rows(self, query: dict[str, str], finds: list[str]) -> None:
        self.four_rows()

        assert listed(superuser(), **query) == finds

    @pytest.mark.parametrize(("bound", "state"), [("starts", "active"), ("expires", "ended")], ids=["start", "end"])
    def test_at_its_bound_an_override_is_in_the_next_state(
        self, bound: str, state: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client, now = superuser(), timezone.now()
        row("user:7", **{bound: now})
        monkeypatch.setattr(timezone, "now", lambda: now)

        found = {each: listed(client, state=each) for each in ("active", "pending", "ended")}

        assert {each for each, subjects in found.items() if subjects} == {state}
        assert f">{state}<" in client.get(LIST).content.decode()

    @pytest.mark.parametrize(
        ("text", "finds"),
        [
            pytest.param("IMPORT", ["user:42"], id="words of a reason"),
            pytest.param("user:4", ["user:4", "user:42"], id="the beginning of subjects"),
            pytest.param("er:4", [], id="not the middle of a subject"),
            pytest.param("er", [], id="not the middle of a rule"),
            pytest.param(" user:42 ", ["user:42"], id="with spaces"),
            pytest.param("sear", ["ip:2001:db8::/64"], id="the beginning of a rule"),
            pytest.param("2001:DB8::77", ["ip:2001:db8::/64"], id="another address of the same client"),
            pytest.param("ip:2001:DB8:0::77", ["ip:2001:db8::/64"], id="an address with its kind in another spelling"),
            pytest.param("198.51.100.77/24", ["ip:198.51.100.0/24"], id="a network in another spelling"),
            pytest.param("ip:198.51.100.0/24", ["ip:198.51.100.0/24"], id="a network with its kind"),
            pytest.param(f"{'y' * 200}n", ["ip:198.51.100.0/24"], id="two hundred characters"),
            pytest.param(f"{'y' * 199}n", [], id="fewer characters"),
        ],
    )
    def test_a_search_finds_its_rows(self, text: str, finds: list[str]) -> None:
        self.four_rows()

        assert listed(superuser(), q=text) == finds

    def test_a_search_of_another_page_leaves_out_null_bytes(self) -> None:
        """Django checks the search of the list alone, not that of fields that complete a name."""
        self.four_rows()

        pages = QuotaOverrideAdmin(QuotaOverride, site)
        found, has_duplicates = pages.get_search_results(HttpRequest(), QuotaOverride.objects.all(), "user\0:42")

        assert [each.subject for each in found] == ["user:42"]
        assert not has_duplicates

    def four_rows(self) -> None:
        now = timezone.now()
        row("user:4", starts=now + DAY, expires=now + 2 * DAY)
        row("user:42", mode="blocked", reason="an Import of theirs")
        row("user:5", starts=now + DAY)
        row("ip:2001:db8::1", rule="search", expires=now + DAY)
        row("ip:198.51.100.0/24", expires=now - DAY, label="crawlers", reason="y" * 200)

    @pytest.mark.parametrize(
        ("title", "choices"),
        [
            ("rule", ["All", "*", "of-a-call"]),
            ("label", ["All", "-", "crawlers", "customers"]),
        ],
    )
    def test_a_filter_offers_what_there_is(self, title: str, choices: list[str]) -> None:
        row("user:1", label="crawlers")
        row("user:2", rule="of-a-call", label="customers")
        row("user:3", rule="of-a-call")

        page = superuser().get(LIST).context["cl"]

        (offered,) = [spec.choices(page) for spec in page.filter_specs if spec.title == title]
        assert [choice["display"] for choice in offered] == choices

    def test_it_says_what_its_search_and_its_filters_take(self) -> None:
        row(label="crawlers")

        page = superuser().get(f"{LIST}?_facets=True").context["cl"]

        words = "The beginning of a subject or a rule (* for everybody), or a part of a reason."
        assert page.search_help_text == words
        assert [spec.title for spec in page.filter_specs] == ["mode", "state", "rule", "label"]
        assert not page.add_facets

    def test_it_can_be_sorted_by_subject_and_end(self) -> None:
        page = superuser().get(LIST).context["cl"]

        assert [str(each["text"]) for each in result_headers(page) if each["sortable"]] == ["subject", "state"]


class TestQueries:
    SUBJECT_PAGE = "/admin/django_quota/subject/?subject=user:7"

    @pytest.fixture
    def warm_client(self, rules: None) -> Client:
        """A client with 20 overrides, which the process has read."""
        QuotaOverride.objects.bulk_create(
            QuotaOverride(subject=f"user:{number}", rule="search", mode="exempt") for number in range(20)
        )
        client = superuser()
        client.get(self.SUBJECT_PAGE)
        overrides.refresh()
        return client

    @pytest.mark.thorough("slow")
    @pytest.mark.parametrize(
        ("url", "most"),
        [
            pytest.param(LIST, 7, id="list"),
            pytest.param(f"{LIST}?q=user:7", 7, id="search"),
            pytest.param(f"{LIST}?state=active&rule=search", 7, id="filters"),
            pytest.param(f"{RULE}?name=search", 8, id="rule"),
            pytest.param(SUBJECT_PAGE, 8, id="subject"),
            pytest.param(f"{LIST}{{pk}}/change/", 5, id="change"),
            pytest.param(f"{LIST}add/", 3, id="add"),
        ],
    )
    def test_a_page_takes_few_queries(self, url: str, most: int, warm_client: Client) -> None:
        pk = QuotaOverride.objects.get(subject="user:7").pk

        with CaptureQueriesContext(connection) as queries:
            assert warm_client.get(url.format(pk=pk)).status_code == 200

        assert len(queries) <= most, [query["sql"] for query in queries]

    def test_the_list_is_in_the_order_of_an_index(self, warm_client: Client) -> None:
        if connection.vendor != "sqlite":
            pytest.skip("PostgreSQL plans no index for few rows.")

        assert "TEMP B-TREE" not in QuotaOverride.objects.order_by("subject", "rule")[:100].explain()


class TestForm:
    @has_words(the_rules='<option value="search">', the_subject_of_the_link='value="user:7"')
    def test_it_is_filled_by_the_link_that_led_to_it(self, words: str) -> None:
        assert words in superuser().get(f"{LIST}add/?subject=user:7").content.decode()

    def test_it_offers_all_rules_beside_each(self) -> None:
        shown = superuser().get(f"{LIST}add/").content.decode()

        offered = re.findall('<option value="([^"]*)"></option>', shown.partition('id="quota-known-rules"')[2])
        assert offered[:3] == ["*", "search", "login"]

    def test_its_preview_is_that_of_its_row(self) -> None:
        made, client = row(), superuser()

        urls = [client.get(f"{LIST}{page}").content.decode() for page in ("add/", f"{made.pk}/change/")]

        found = [re.findall(r'data-url="([^"]*)"', each) for each in urls]
        assert found == [[f"{LIST}preview/"], [f"{LIST}preview/{made.pk}/"]]

    def test_moments_in_the_link_are_left_out(self) -> None:
        answer = superuser().get(f"{LIST}add/", {"subject": "user:7", "starts": "x", "expires": "2030-01-01"})

        form = answer.context["adminform"].form
        assert (form["subject"].value(), form["starts"].value(), form["expires"].value()) == ("user:7", None, None)

    @pytest.mark.parametrize(("is_saved", "shows"), [(False, False), (True, True)], ids=["a new one", "a saved one"])
    def test_it_shows_who_set_an_override_that_is_saved(self, *, is_saved: bool, shows: bool) -> None:
        url = f"{LIST}{row(created_by='eve').pk}/change/" if is_saved else f"{LIST}add/"

        shown = superuser().get(url).content.decode()

        assert [f"field-{name}" in shown for name in ("created_by", "created", "updated")] == [shows] * 3

    def test_it_saves_a_row_with_who_made_it(self) -> None:
        assert add(superuser(), reason="an import", label="crawlers").status_code == 302

        made = QuotaOverride.objects.get()
        assert (made.rate, made.reason, made.label, made.created_by) == ("100/m", "an import", "crawlers", "root")

    def test_a_saved_row_holds_at_once(self) -> None:
        add(superuser())

        assert check("search", "user:42").limit == 100

    def test_a_change_says_who_changed_the_row_last(self) -> None:
        made = row(rule="search", created_by="root")

        assert superuser("ann").post(f"{LIST}{made.pk}/change/", filled(rate="20/m", mode="rate")).status_code == 302

        made.refresh_from_db()
        assert (made.rate, made.created_by) == ("20/m", "ann")

    def test_a_change_is_logged(self) -> None:
        client = superuser()
        made = row(rule="search", mode="rate", rate="10/m")

        client.post(f"{LIST}{made.pk}/change/", filled(rate="20/m"))

        assert "Changed Rate" in client.get(f"{LIST}{made.pk}/history/").content.decode()

    def test_a_plain_value_is_not_sent_back(self) -> None:
        typed = "203.0.113.9+post:username=ann@example.org"
        saved = f"ip:203.0.113.9+post.username:{digest('ann@example.org')}"

        shown = add(superuser(), subject=typed, _preview="1").content.decode()

        assert f'name="subject" value="{saved}"' in shown
        assert "ann@example.org" not in shown

    def test_the_address_of_several_users_is_an_error(self) -> None:
        for name in ("ann", "bob"):
            User.objects.create_user(name, "same@example.org")

        assert add(superuser(), subject="same@example.org").context["adminform"].form.errors["subject"]

    def test_without_the_permission_to_view_users_a_name_stays_a_name(self) -> None:
        User.objects.create_user("ann")

        assert add(operator("add_quotaoverride"), subject="ann").status_code == 302
        assert QuotaOverride.objects.get().subject == "ann"

    def test_a_change_by_somebody_who_may_view_users_leaves_the_subject(self) -> None:
        User.objects.create_user("ann")
        made = row("ann", rule="search")

        superuser().post(f"{LIST}{made.pk}/change/", filled(subject="ann"))

        made.refresh_from_db()
        assert (made.subject, made.rate) == ("ann", "100/m")

    @pytest.mark.parametrize(
        ("typed", "saved", "concerned", "other"),
        [
            pytest.param("*", "*", "org:1", None, id="everybody"),
            pytest.param("user:*", "user:*", "user:1", "org:1", id="all users"),
            pytest.param(
                "198.51.100.7/24", "ip:198.51.100.0/24", "ip:198.51.100.77", "ip:198.51.101.1", id="a network"
            ),
            pytest.param(
                "2001:DB8::1/32", "ip:2001:db8::/32", "ip:2001:db8:7::1", "ip:2001:db9::1", id="an IPv6 network"
            ),
            pytest.param(
                "2001:DB8:0:0::7", "ip:2001:db8::/64", "ip:2001:db8::9", "ip:2001:db8:0:1::9", id="an IPv6 client"
            ),
            pytest.param(
                "::ffff:203.0.113.9", "ip:203.0.113.9", "ip:203.0.113.9", "ip:203.0.113.8", id="an IPv4 client as IPv6"
            ),
        ],
    )
    def test_a_subject_is_saved_in_one_spelling(
        self, typed: str, saved: str, concerned: str, other: str | None
    ) -> None:
        assert add(superuser(), subject=typed, rule="login", rate="3/m", _anyway="").status_code == 302

        assert QuotaOverride.objects.get().subject == saved
        assert check("login", concerned).limit == 3
        assert other is None or check("login", other).limit == 2

    def test_a_second_override_is_one_error_with_a_link_to_the_first(self) -> None:
        first = row(rule="search")

        answer = add(superuser())

        form = answer.context["adminform"].form
        assert {name: len(errors) for name, errors in form.errors.items()} == {"subject": 1}
        shown = answer.content.decode()
        assert f'have an override already: exempt <a href="{LIST}{first.pk}/change/">Change it</a>' in shown
        assert "__all__" not in shown

    def test_a_change_to_the_subject_of_another_override_links_to_that(self) -> None:
        row("user:42", rule="login")
        first, changed = row("user:42", rule="search"), row("user:7", rule="search")

        shown = superuser().post(f"{LIST}{changed.pk}/change/", filled()).content.decode()

        assert re.findall('<a href="([^"]*)">Change it</a>', shown) == [f"{LIST}{first.pk}/change/"]

    def test_a_rate_that_is_a_rule_is_saved_in_one_spelling(self) -> None:
        add(superuser(), rule="20 per minute")

        assert QuotaOverride.objects.get().rule == "20/m"

    def test_the_live_preview_names_fields_as_the_form_does(self) -> None:
        row(rule="search")

        shown = preview(superuser())

        assert "<li>Subject: This subject and rule have an override already" in shown
        assert "__all__" not in shown

    @pytest.mark.parametrize(
        ("given", "field"),
        [
            pytest.param({"rate": "10/month"}, "rate", id="a rate that the algorithm does not know"),
            pytest.param({"rate": ""}, "rate", id="no rate"),
            pytest.param({"mode": "exempt"}, "rate", id="a rate for an exemption"),
            pytest.param({"subject": "ip:nowhere"}, "subject", id="no address"),
            pytest.param(
                {"starts_0": "2021-01-01", "starts_1": "0:00", "expires_0": "2020-01-01", "expires_1": "0:00"},
                "expires",
                id="an end before the start",
            ),
        ],
    )
    def test_an_error_is_shown_on_its_field(self, given: dict[str, str], field: str) -> None:
        assert add(superuser(), **given).context["adminform"].form.errors[field]
        assert not QuotaOverride.objects.exists()


class TestPreview:
    @pytest.fixture
    def three_used(self, rules: None) -> None:
        User.objects.create_user("ann", pk=42)
        check("search", "user:42", 3)

    @pytest.mark.parametrize("is_live", [False, True], ids=["by the button", "live"])
    @has_words(
        before="10/m: 3 of 10 used, 7 left; the next hit is admitted",
        after="100/m: 3 of 100 used, 97 left; the next hit is admitted (by an override)",
    )
    def test_it_shows_the_limit(self, words: str, is_live: bool, three_used: None) -> None:
        client = superuser()

        shown = preview(client) if is_live else add(client, _preview="Preview").content.decode()

        assert words in shown

    def test_the_button_keeps_what_was_typed(self, three_used: None) -> None:
        shown = add(superuser(), _preview="Preview").content.decode()

        assert 'value="100/m"' in shown
        assert 'class="errornote"' not in shown

    def test_a_live_preview_is_a_part_of_a_page(self, three_used: None) -> None:
        assert "<html" not in preview(superuser())

    @pytest.mark.parametrize("is_live", [False, True], ids=["by the button", "live"])
    def test_it_saves_nothing(self, is_live: bool, three_used: None) -> None:
        client = superuser()

        preview(client) if is_live else add(client, _preview="Preview")

        assert not QuotaOverride.objects.exists()
        assert not LogEntry.objects.exists()
        assert peek("search", "user:42").remaining == 7

    def test_the_preview_of_a_change_compares_with_no_override(self, three_used: None) -> None:
        made = row(rule="search", mode="rate", rate="20/m")

        shown = preview(superuser(), f"{made.pk}/", rate="50/m")

        assert "Without it" in shown
        assert "10/m: 3 of 10 used, 7 left" in shown
        assert "50/m: 3 of 50 used, 47 left" in shown
        assert "20/m" not in shown

    def test_limits_that_stay_as_they_are_are_folded(self) -> None:
        row("user:42", rule="login", mode="rate", rate="7/m")

        shown = preview(superuser(), rule="*", rate="10/m")

        table, _, folded = shown.partition('<details class="quota-same">')
        assert "1 limit stays as it is" in folded
        assert "Nothing changes, since this rule has an override of its own." in folded
        assert ">login<" not in table

    def test_the_preview_of_a_change_shows_what_would_hold(self) -> None:
        made = row(rule="search")

        assert "no hit is admitted" in preview(superuser(), f"{made.pk}/", mode="blocked", rate="")

    def test_the_form_of_a_change_shows_what_holds(self) -> None:
        made = row(rule="search")

        assert "(exempt by an override)" in superuser().get(f"{LIST}{made.pk}/change/").content.decode()

    def test_the_form_of_a_change_says_that_it_has_no_effect(self) -> None:
        made = row("joe", rule="search")

        shown = superuser().get(f"{LIST}{made.pk}/change/").content.decode()

        assert re.findall('<p class="quota-warning">(.*)</p>', shown) == [
            (
                "No request has the subject &quot;joe&quot;. Use, for example, user:&lt;key&gt;, ip:&lt;address&gt; or "
                "global. It works only where your code passes this subject itself."
            )
        ]

    def test_a_row_that_is_gone_has_none(self) -> None:
        assert superuser().post(f"{LIST}preview/9999/", filled()).status_code == 404

    @pytest.mark.parametrize(
        ("permission", "of_a_row", "status"),
        [
            pytest.param("add_quotaoverride", False, 200, id="a new one"),
            pytest.param("add_quotaoverride", True, 403, id="a saved one by who may only add"),
            pytest.param("change_quotaoverride", True, 200, id="a saved one"),
            pytest.param("change_quotaoverride", False, 403, id="a new one by who may only change"),
            pytest.param("view_quotaoverride", True, 403, id="a saved one by who may only view"),
        ],
    )
    def test_it_needs_the_permission_to_save_the_override(self, permission: str, of_a_row: bool, status: int) -> None:
        page = f"{LIST}preview/{row().pk}/" if of_a_row else f"{LIST}preview/"

        assert operator(permission).post(page, filled()).status_code == status

    def test_a_form_with_errors_has_none(self) -> None:
        shown = add(superuser(), rate="many", _preview="1").content.decode()

        assert "Complete the form to see a preview" in shown

    def test_it_says_that_an_override_has_ended(self) -> None:
        shown = preview(superuser(), expires_0="2001-01-02", expires_1="10:00")

        assert "the override has ended, so it changes nothing" in shown

    def test_without_the_store_there_is_none(self, settings: Any) -> None:
        settings.QUOTA = {name: value for name, value in settings.QUOTA.items() if name != "STORE"}

        assert "There is no preview now." in preview(superuser())


class TestOverrideWithoutEffect:
    """Of a subject that nobody has, on a rule that there is not."""

    WRONG: ClassVar = {"subject": "joe", "rule": "serch"}

    @pytest.mark.parametrize("is_live", [False, True], ids=["in the form", "in the preview"])
    @has_words(
        subject="No request has the subject &quot;joe&quot;",
        rule="Did you mean &quot;search&quot;?",
    )
    def test_what_is_odd_is_shown(self, words: str, is_live: bool) -> None:
        client = superuser()

        shown = preview(client, **self.WRONG) if is_live else add(client, **self.WRONG, _anyway="").content.decode()

        assert words in shown

    def test_it_is_not_saved_before_a_question(self) -> None:
        asked = add(superuser(), **self.WRONG, _anyway="").content.decode()

        assert 'name="_anyway"' in asked
        assert not QuotaOverride.objects.exists()

    def test_it_is_saved_when_the_question_is_answered(self) -> None:
        add(superuser(), **self.WRONG)

        assert QuotaOverride.objects.filter(**self.WRONG).exists()

    def test_a_later_change_is_not_asked_about_again(self) -> None:
        made = row(**self.WRONG)

        changed = filled(**self.WRONG, rate="20/m", _anyway="")

        assert superuser().post(f"{LIST}{made.pk}/change/", changed).status_code == 302


class TestSubjectThatARuleDoesNotLimit:
    """Of a rule that limits addresses."""

    BLOCK: ClassVar = {"rule": "signup", "mode": "blocked", "rate": "", "_anyway": ""}

    @pytest.fixture(autouse=True)
    def by_address(self, rules: None, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"signup": {"rate": "5/m", "key": "ip"}}}

    @pytest.mark.parametrize("subject", ["user:77", "user:*"], ids=["a user", "all users"])
    def test_it_is_not_saved_before_a_question(self, subject: str) -> None:
        User.objects.create_user("joe", pk=77)

        shown = add(superuser(), subject=subject, **self.BLOCK).content.decode()

        assert f"No request has the subject &quot;{subject}&quot; under the rule &quot;signup&quot;" in shown
        assert not QuotaOverride.objects.exists()

    def test_a_network_is_saved_without_one(self) -> None:
        assert add(superuser(), subject="198.51.100.0/24", **self.BLOCK).status_code == 302
        assert not check("signup", "ip:198.51.100.7")


def test_without_the_permission_to_view_users_a_hint_reveals_none() -> None:
    User.objects.create_user("joe", pk=77)

    shown = preview(operator("add_quotaoverride"), subject="joe")

    assert "user:&lt;key&gt;" in shown
    assert "user:77" not in shown
    assert re.findall('<p class="quota-warning">(.*?)[.]', shown) == [
        "You may not see users, so no name is looked up",
        "No request has the subject &quot;joe&quot;",
    ]


class TestPreviewOfGroups:
    """Of three subjects, two of them in a network, which have used 2 of 2 and were refused once."""

    BLOCK: ClassVar = {"rule": "login", "mode": "blocked", "rate": ""}

    @pytest.fixture(autouse=True)
    def three_refused(self, rules: None) -> None:
        for subject in ("ip:198.51.100.1", "ip:198.51.100.2", "user:1"):
            check("login", subject, 2)
            check("login", subject)

    def of_the_network(self) -> str:
        return preview(superuser(), subject="ip:198.51.100.0/24", rule="login", rate="9/h")

    @has_words(
        how_many_were_refused="2 of these subjects were refused today",
        how_many_would_be="the next hits of 0 of them are refused",
    )
    def test_it_counts_the_subjects_of_a_group(self, words: str) -> None:
        assert words in self.of_the_network()

    @has_words(before="2/h: 2 of 2 used, 0 left", after="9/h: 2 of 9 used, 7 left")
    def test_it_shows_the_limit_of_each(self, words: str) -> None:
        assert self.of_the_network().count(words) == 2

    def test_it_leaves_out_subjects_outside_the_group(self) -> None:
        assert "user:1" not in self.of_the_network()

    def test_it_counts_subjects_of_which_no_event_is_kept(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "EVENTS": 0}
        for number in range(5):
            check("search", f"user:{number}", 11)

        shown = preview(superuser(), subject="user:*", rule="search", rate="9/h")

        assert "5 of these subjects were refused today" in shown

    def test_everybody_is_a_group(self) -> None:
        assert "the next hits of 3 of them are refused" in preview(superuser(), subject="*", **self.BLOCK)

    def test_it_leaves_out_subjects_that_the_rule_cannot_count(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"signup": {"rate": "2/h", "key": "ip"}}}
        for subject in ("ip:198.51.100.1", "ip:198.51.100.2", "user:1"):
            check("0/m", subject)

        shown = preview(superuser(), subject="*", rule="signup", mode="blocked", rate="")

        assert "2 of these subjects were refused today" in shown

    def test_a_subject_that_stays_blocked_is_among_those_that_are_refused(self) -> None:
        row("ip:198.51.100.1", rule="login", mode="blocked")

        assert "the next hit of 1 of them is refused" in self.of_the_network()

    def test_a_subject_that_two_rules_refuse_is_counted_once(self) -> None:
        shown = preview(superuser(), subject="ip:198.51.100.0/24", rule="*", mode="blocked", rate="")

        assert "the next hits of 2 of them are refused" in shown

    def test_it_says_that_the_store_knows_nobody_of_the_group(self) -> None:
        assert "The store knows none of these by name" in preview(superuser(), subject="org:*", **self.BLOCK)

    def test_twenty_subjects_are_previewed(self) -> None:
        for number in range(21):
            check("login", f"org:{number}", 3)

        shown = preview(superuser(), subject="org:*", **self.BLOCK)

        assert "20 of these subjects were refused today" in shown

    def test_thirty_changes_are_shown(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {f"rule{number}": "9/m" for number in range(16)}}
        for number in range(2):
            check("0/m", f"org:{number}", name="closed")

        shown = preview(superuser(), subject="org:*", rule="*", mode="blocked", rate="")

        assert shown.count('<th scope="row">org:') == 30
        more = re.search(r"And (\d+) more row", shown)
        assert more is not None
        assert int(more[1]) >= 2

    def test_rules_that_have_counted_come_first(self) -> None:
        check("login", "team:1", 3)
        check("search", "team:1")

        shown = preview(superuser(), subject="team:1", rule="*", mode="blocked", rate="")

        assert re.findall(r'<th scope="row">(login|search)<', shown) == ["search", "login"]

    def test_of_many_subjects_some_are_previewed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_quota.admin.overrides.MAX_PREVIEWED", 2)

        assert "2 of these subjects were refused today" in preview(superuser(), subject="*", **self.BLOCK)


class TestActions:
    @pytest.mark.parametrize("action", ["exempt_selected", "block_selected", "expire_selected"])
    def test_each_asks_first(self, action: str) -> None:
        shown = do(superuser(), action, one_in_each_state(), confirmed="").content.decode()

        assert "3 overrides are selected" in shown
        assert "1 active, 1 not yet begun, 1 ended" in shown
        assert not LogEntry.objects.exists()

    def test_the_question_names_twenty(self) -> None:
        rows = [row(f"user:{number:02}") for number in range(22)]

        shown = do(superuser(), "exempt_selected", rows, confirmed="").content.decode()

        assert "and 2 more" in shown
        assert "user:19" in shown
        assert "user:20" not in shown

    def test_the_question_keeps_which_rows_are_selected(self) -> None:
        row("user:1")
        made = row("user:2")

        shown = do(superuser(), "block_selected", [made], confirmed="", select_across="0").content.decode()

        hidden = re.findall(r'<input type="hidden" name="(select_across|_selected_action)" value="(\w*)"', shown)
        assert hidden == [("_selected_action", str(made.pk))]

    @pytest.mark.parametrize(("number", "words"), [(1, "1 override was changed."), (2, "2 overrides were changed.")])
    def test_it_says_how_many_were_changed(self, number: int, words: str) -> None:
        client = superuser()

        do(client, "exempt_selected", [row(f"user:{each}") for each in range(number)])

        assert words in client.get(LIST).content.decode()

    def test_an_expiry_counts_those_that_it_ended(self) -> None:
        client = superuser()

        do(client, "expire_selected", one_in_each_state())

        assert "2 overrides were changed." in client.get(LIST).content.decode()

    @pytest.mark.parametrize(
        ("action", "words"),
        [
            ("exempt_selected", "Exempt the selected subjects (with 2 chosen)"),
            ("block_selected", "Block the selected subjects (with 2 chosen)"),
            ("expire_selected", "Expire the selected overrides now (with 2 chosen)"),
        ],
    )
    def test_the_log_says_what_was_done_to_how_many(self, action: str, words: str) -> None:
        do(superuser(), action, [row("user:4711"), row("user:4712")])

        assert [entry.get_change_message() for entry in LogEntry.objects.all()] == [words] * 2

    def test_an_expiry_leaves_the_start_of_what_had_begun(self) -> None:
        begun = row("user:1", starts=timezone.now() - DAY)

        do(superuser(), "expire_selected", [begun])

        assert QuotaOverride.objects.get().starts == begun.starts

    def test_a_block_holds_at_once(self) -> None:
        assert do(superuser(), "block_selected", [row("user:4711")]).status_code == 302
        assert not check("search", "user:4711")

    def test_an_exemption_holds_at_once(self) -> None:
        do(superuser(), "exempt_selected", [row("user:1", mode="blocked")])

        assert check("search", "user:1", 1_000)

    def test_an_expiry_holds_at_once(self) -> None:
        do(superuser(), "expire_selected", one_in_each_state())

        assert not QuotaOverride.objects.active().exists()
        assert check("search", "user:1").limit == 10

    def test_an_expiry_leaves_the_end_of_what_had_ended(self) -> None:
        rows = one_in_each_state()

        do(superuser(), "expire_selected", rows)

        assert QuotaOverride.objects.get(subject="user:3").expires == rows[2].expires

    @pytest.mark.parametrize("action", ["exempt_selected", "block_selected", "expire_selected"])
    def test_each_says_when_the_override_was_changed(self, action: str) -> None:
        saved = row("user:4711", mode="rate", rate="5/m")

        do(superuser(), action, [saved])

        assert QuotaOverride.objects.get().updated > saved.updated

    @pytest.mark.parametrize(
        ("action", "said"),
        [
            pytest.param("exempt_selected", ("", "root"), id="exempt"),
            pytest.param("block_selected", ("", "root"), id="block"),
            pytest.param("expire_selected", ("an import", "ann"), id="expire"),
        ],
    )
    def test_the_override_says_who_set_what_it_does(self, action: str, said: tuple[str, str]) -> None:
        saved = row("user:4711", mode="rate", rate="5/m", reason="an import", created_by="ann")

        do(superuser(), action, [saved])

        saved.refresh_from_db()
        assert (saved.reason, saved.created_by) == said

    @pytest.mark.parametrize("action", ["exempt_selected", "block_selected", "expire_selected"])
    def test_each_is_logged_as_a_change(self, action: str) -> None:
        do(superuser(), action, [row("user:4711", mode="rate", rate="5/m")])

        entry = LogEntry.objects.get()
        assert (entry.is_change(), entry.user.username) == (True, "root")

    @pytest.mark.parametrize(
        ("action", "words"),
        [
            ("exempt_selected", "No limit applies any more to the subjects of these overrides, under their rules."),
            ("block_selected", "Every request of the subjects of these overrides is refused, under their rules."),
            (
                "expire_selected",
                "These overrides end now. The limits of the settings apply again with the next request.",
            ),
        ],
    )
    def test_the_question_says_what_each_does(self, action: str, words: str) -> None:
        shown = do(superuser(), action, [row()], confirmed="").content.decode()

        assert f'<p class="quota-warning">{words}</p>' in shown

    def test_rows_that_are_gone_are_an_error(self) -> None:
        gone = {"action": "exempt_selected", "_selected_action": "0", "confirmed": "yes"}

        assert "do not exist any more." in superuser().post(LIST, gone, follow=True).content.decode()

    @pytest.mark.parametrize("confirmed", ["", "yes"], ids=["asked", "confirmed"])
    def test_rows_that_are_gone_let_no_others_be_changed(self, confirmed: str) -> None:
        row("user:1", mode="rate", rate="5/m")

        chosen = {"action": "block_selected", "_selected_action": "0", "confirmed": confirmed}
        shown = superuser().post(LIST, chosen, follow=True).content.decode()

        assert "These overrides do not exist any more." in shown
        assert 'name="select_across" value="1"' not in shown
        assert QuotaOverride.objects.get().mode == "rate"

    def test_without_the_permission_to_change_none_is_offered(self) -> None:
        client = operator("view_quotaoverride", "add_quotaoverride", "delete_quotaoverride")
        row("user:1", mode="blocked")

        assert "exempt_selected" not in client.get(LIST).content.decode()

    def test_without_the_permission_to_change_none_is_done(self) -> None:
        client, made = operator("view_quotaoverride", "add_quotaoverride"), row("user:1", mode="blocked")

        do(client, "exempt_selected", [made])

        made.refresh_from_db()
        assert made.mode == "blocked"

    def test_a_forged_form_is_refused(self) -> None:
        made = row("user:1", mode="blocked")

        assert do(superuser(enforce_csrf_checks=True), "exempt_selected", [made]).status_code == 403

    def test_a_deletion_is_logged_for_the_subject(self) -> None:
        client, made = superuser(), row(mode="blocked")

        client.post(f"{LIST}{made.pk}/delete/", {"post": "yes"})

        assert check("search", "user:42")
        assert "Cleared: user:42, all rules: blocked" in self.page_of_the_subject(client)

    def test_a_deletion_by_the_action_is_logged_for_the_subject(self) -> None:
        client, made = superuser(), row(mode="blocked", rule="search")

        do(client, "delete_selected", [made], post="yes")

        assert check("search", "user:42")
        assert "Cleared: user:42, search: blocked" in self.page_of_the_subject(client)

    def test_deletions_of_one_subject_are_one_entry_for_it(self) -> None:
        rows = [row(mode="blocked"), row(mode="blocked", rule="search"), row("user:7")]

        do(superuser(), "delete_selected", rows, post="yes")

        logged = LogEntry.objects.filter(change_message__startswith="Cleared").values_list(
            "object_id", "change_message"
        )
        assert sorted(logged) == [
            ("user:42", "Cleared: user:42, all rules: blocked. user:42, search: blocked"),
            ("user:7", "Cleared: user:7, all rules: exempt"),
        ]

    def page_of_the_subject(self, client: Client) -> str:
        return client.get("/admin/django_quota/subject/?subject=user:42").content.decode()


class TestActionsOnAllRows:
    EVERYTHING: ClassVar = {"select_across": "1", "_selected_action": "0"}

    @pytest.fixture(autouse=True)
    def four_rows(self, rules: None) -> None:
        for number in range(4):
            row(f"user:{number}")

    def test_the_question_keeps_the_selection(self) -> None:
        shown = do(superuser(), "block_selected", [], **self.EVERYTHING, confirmed="").content.decode()

        hidden = re.findall(r'<input type="hidden" name="(\w+)" value="(\w*)"', shown)
        assert [pair for pair in hidden if pair[0] != "csrfmiddlewaretoken"] == [
            ("select_across", "1"),
            ("_selected_action", "0"),
            ("action", "block_selected"),
            ("confirmed", "yes"),
        ]

    def test_all_are_changed(self) -> None:
        do(superuser(), "block_selected", [], **self.EVERYTHING, _locks_me_out="1")

        assert QuotaOverride.objects.filter(mode="blocked").count() == 4

    @pytest.mark.parametrize(("most", "changed"), [(3, 0), (4, 4)], ids=["below their number", "their number"])
    def test_more_than_a_bound_are_left(self, most: int, changed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_quota.admin.overrides.MAX_BULK_CHANGES", most)
        client = superuser()

        do(client, "block_selected", [], **self.EVERYTHING, _locks_me_out="1")

        assert QuotaOverride.objects.filter(mode="blocked").count() == changed
        words = "You can change at most 3 overrides at once. Filter the list first."
        assert (words in client.get(LIST).content.decode()) is (changed == 0)


class TestListOfRules:
    LIST_OF_RULES = "/admin/django_quota/knownrule/"

    @has_words(
        link=f'<a href="{RULE}?name=search">search</a>',
        rate='<td data-label="Rate">10/m</td>',
        place="QUOTA[&quot;RULES&quot;][&quot;search&quot;]",
        name_that_may_break='?name=of.a_view">of.<wbr>a_<wbr>view</a>',
    )
    def test_it_shows_each_detail(self, words: str, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"search": "10/m", "of.a_view": "1/m"}}

        assert words in superuser().get(self.LIST_OF_RULES).content.decode()

    def test_rules_are_in_the_order_of_their_names(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"b": "1/m", "c": "1/m", "a": "1/m"}}

        shown = superuser().get(self.LIST_OF_RULES).content.decode()

        assert re.findall(r'\?name=(\w)"', shown) == ["a", "b", "c"]

    def test_who_may_change_overrides_may_see_it(self) -> None:
        assert operator("change_quotaoverride").get(self.LIST_OF_RULES).status_code == 200

    def test_it_needs_the_permission_to_view_overrides(self) -> None:
        assert operator("view_quotaoverride").get(self.LIST_OF_RULES).status_code == 200
        assert operator("view_subject", name="other").get(self.LIST_OF_RULES).status_code == 403

    def test_the_app_begins_with_the_overview(self) -> None:
        shown = superuser().get("/admin/django_quota/").content.decode()

        names = re.findall(r'<th scope="row"[^>]*>\s*<a[^>]*>([^<]*)</a>', shown)
        assert [name.strip() for name in names] == [
            *("Overview", "Bans", "Daily counters", "Overrides", "Rules", "Subjects"),
        ]


class TestRulePage:
    def page(self, client: Client, name: str = "search") -> str:
        answer = client.get(RULE, {"name": name})
        assert answer.status_code == 200
        return re.sub(r"\s+", " ", answer.content.decode())

    def words(self, client: Client, name: str = "search") -> str:
        return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", self.page(client, name)))

    @has_words(
        place="QUOTA[&quot;RULES&quot;][&quot;api&quot;]",
        rates_of_tiers="Rate 5/m for anonymous, 50/m; 500/h for authenticated",
        key="Key user, header:X-Device",
        match="Match /api/",
        exclude="Exclude /api/health/",
        algorithm="Algorithm sliding window",
        methods="methods GET, HEAD, POST",
        exempt="exempt 10.0.0.0/8, staff",
        ban="ban after 20 refusals in 1 minute, for 10 minutes",
    )
    def test_it_shows_of_the_settings(self, words: str, settings: Any) -> None:
        rule = {
            "rate": {"anonymous": "5/m", "authenticated": "50/m; 500/h"},
            "key": ("user", "header:X-Device"),
            "match": "/api/",
            "exclude": "/api/health/",
            "methods": ["POST", "GET"],
            "exempt": ["10.0.0.0/8", "staff"],
            "ban": {"after": "20/m", "for": "10m"},
        }
        settings.QUOTA = {**settings.QUOTA, "RULES": {"api": rule}}

        assert words in self.words(superuser(), "api")

    def test_it_leaves_out_options_that_are_not_set(self) -> None:
        assert re.findall("<code>(shadow|cost|methods|ban)</code>", self.page(superuser())) == []

    def test_it_says_that_the_rule_is_changed_for_nobody(self) -> None:
        assert "holds for everybody without an override" in self.words(superuser())

    @pytest.fixture
    def overrides_of_all_kinds(self, rules: None) -> None:
        row("*", rule="*", mode="rate", rate="7/m")
        row("*", rule="search", reason="an incident")
        row("org:*", rule="search", mode="shadow")
        row("ip:192.0.2.0/24", mode="blocked", expires=timezone.now() - DAY)
        row("ip:198.51.100.0/24", rule="search", mode="blocked")
        row("user:1", rule="search", mode="blocked")
        row("user:2", rule="login", mode="blocked")

    @has_words(
        what_holds_for_everybody="For everybody without an override of their own: off for everybody",
        the_override_of_everybody="everybody search off for everybody never an incident",
        the_override_of_everybody_on_all_rules="everybody all rules 7/m",
        the_override_of_a_kind="org:* search reports only",
        the_override_of_a_network="ip:198.51.100.0/24 search blocked",
        how_many_subjects_have_their_own="1 subject has an override of its own.",
    )
    @pytest.mark.usefixtures("overrides_of_all_kinds")
    def test_it_shows_what_holds_now(self, words: str) -> None:
        assert words in self.words(superuser())

    @pytest.mark.usefixtures("overrides_of_all_kinds")
    def test_it_leaves_out_what_has_ended(self) -> None:
        assert "192.0.2.0" not in self.words(superuser())

    @pytest.fixture
    def three_refusals(self, rules: None, redis_cache: Any, settings: Any) -> None:
        settings.QUOTA = {name: value for name, value in settings.QUOTA.items() if name != "STORE"}
        for number, cost in ((1, 2), (2, 2), (1, 1), (2, 1), (2, 1)):
            check("login", f"ip:198.51.100.{number}", cost)

    @pytest.mark.usefixtures("at_one_time", "three_refusals")
    def test_it_counts_the_decisions_of_today(self) -> None:
        assert "<dt>Checks today</dt><dd>5</dd> <dt>Refused</dt><dd>3</dd>" in self.page(superuser(), "login")

    @pytest.mark.usefixtures("three_refusals")
    def test_it_shows_who_was_refused_recently(self) -> None:
        rows = re.findall(
            r"subject=ip%3A([\d.]*)[^>]*>[^<]*</a></th> <td data-label=.Time.>", self.page(superuser(), "login")
        )

        assert set(rows) == {"198.51.100.1", "198.51.100.2"}

    @pytest.mark.usefixtures("memory_store")
    def test_who_was_refused_last_comes_first(self) -> None:
        for second, subject in enumerate(("org:1", "org:2", "org:3", "org:1")):
            with freeze(START + second * SECOND):
                check("0/m", subject, name="closed")

        with freeze(START + MINUTE):
            shown = self.page(superuser(), "closed")

        found = re.findall(r">(org:\d)</a></th> <td data-label=.Time.><time[^>]*>([\d:]*)", shown)
        assert found == [("org:1", "04:40:03"), ("org:3", "04:40:02"), ("org:2", "04:40:01")]

    @pytest.mark.usefixtures("memory_store")
    def test_a_refusal_by_another_rule_is_not_listed(self) -> None:
        check("0/m", "org:1", name="closed-too")
        check("5/m", "org:2", 5, name="closed")  # it is near its limit

        assert re.findall("org:[12]", self.page(superuser(), "closed")) == []

    @pytest.mark.usefixtures("memory_store")
    def test_a_refused_subject_too_long_to_keep_is_left_out(self) -> None:
        for subject in ("é" * 200, "org:1"):
            check("0/m", subject, name="closed")

        shown = self.page(superuser(), "closed")

        assert re.findall(r"<td data-label=.Time.>", shown) == ['<td data-label="Time">']
        assert "org:1" in shown

    @pytest.mark.usefixtures("memory_store")
    def test_it_says_that_the_store_does_not_let_it_read_events(self, monkeypatch: pytest.MonkeyPatch) -> None:
        denied = Mock(side_effect=StorePermissionDenied("no permission for XREVRANGE"))
        monkeypatch.setattr(MemoryEvents, "search", denied)

        assert "no permission for XREVRANGE" in self.page(superuser())

    def test_fifty_overrides_of_groups_are_listed(self) -> None:
        row("user:1", rule="search")
        row("*", rule="search")
        QuotaOverride.objects.bulk_create(
            QuotaOverride(subject=f"kind{number}:*", rule="search", mode="exempt") for number in range(52)
        )

        shown = self.page(superuser())

        assert len(re.findall(r">kind\d+:\*</a>", shown)) == 50
        assert "and 2 more" in shown

    @pytest.mark.usefixtures("memory_store")
    def test_fifty_subjects_that_were_refused_are_listed(self) -> None:
        for number in range(51):
            check("0/m", f"org:{number}", name="closed")

        assert self.page(superuser(), "closed").count('<td data-label="Time">') == 50

    def test_who_may_only_change_it_is_not_led_back_to_the_settings(self) -> None:
        row("*", rule="search")

        shown = self.page(operator("view_quotaoverride", "change_quotaoverride"))

        assert "<li>For everybody:</li>" in shown
        assert "Back to what the settings say" not in shown

    def test_a_value_with_a_slash_is_a_subject(self) -> None:
        row("path:/a/", rule="search")

        assert "1 subject has an override of its own." in self.words(superuser())

    def test_a_rule_of_a_view_has_its_place(self) -> None:
        assert "A view names this rule." in self.words(superuser(), "limited")

    def test_a_network_beside_a_name_is_a_subject(self) -> None:
        row("ip:2001:db8::/64+org:7", rule="search")

        assert "1 subject has an override of its own." in self.words(superuser())

    def test_a_subject_with_two_overrides_is_counted_once(self) -> None:
        row("user:1", rule="search")
        row("user:1", rule="*")

        assert "1 subject has an override of its own." in self.words(superuser())

    def test_a_rule_of_failed_logins_has_its_place(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "LOGIN": {"5/10m": "ip"}}
        settings.AUTHENTICATION_BACKENDS = [
            "django_quota.contrib.auth.LoginQuotaBackend",
            "django.contrib.auth.backends.ModelBackend",
        ]
        (rule,) = known_login_rules()

        assert "QUOTA[&quot;LOGIN&quot;]" in self.page(superuser(), rule.name)

    def test_it_says_how_much_is_taken_ahead(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"api": {"rate": "100/m", "prefetch": "2s"}}}

        assert "Taken ahead each process for 2 s, all processes at most half" in self.words(superuser(), "api")

    @pytest.mark.usefixtures("three_refusals")
    def test_decisions_need_a_permission(self) -> None:
        assert "Checks today" not in self.page(operator("view_quotaoverride"), "login")

    EXEMPT_EVERYBODY = f"{LIST}add/?subject=*&rule=search&mode=exempt"

    def test_it_leads_to_a_form_that_exempts_everybody(self) -> None:
        assert self.EXEMPT_EVERYBODY.replace("&", "&amp;") in self.page(superuser())

    def test_that_form_is_filled(self) -> None:
        form = superuser().get(self.EXEMPT_EVERYBODY).context["adminform"].form

        assert (form["subject"].value(), form["rule"].value(), form["mode"].value()) == ("*", "search", "exempt")

    @pytest.mark.parametrize("action", ["change", "delete"])
    def test_it_leads_to_the_change_of_an_override(self, action: str) -> None:
        made = row("*", rule="search")

        assert f"{LIST}{made.pk}/{action}/" in self.page(superuser())

    def test_without_the_permission_to_delete_no_link_does(self) -> None:
        row("*", rule="search")

        assert "/delete/" not in self.page(operator("view_quotaoverride"))

    def test_without_the_permission_to_add_no_link_exempts_everybody(self) -> None:
        assert self.EXEMPT_EVERYBODY.replace("&", "&amp;") not in self.page(operator("view_quotaoverride"))

    def test_a_rule_of_a_call_has_a_page(self) -> None:
        assert "Neither the settings nor the views have this rule." in self.page(superuser(), "transfer")

    @pytest.mark.parametrize("name", ["", "*", "a\0b"], ids=["no name", "all rules", "a null byte"])
    def test_what_cannot_be_a_rule_has_no_page(self, name: str) -> None:
        assert superuser().get(RULE, {"name": name}).status_code == 404
