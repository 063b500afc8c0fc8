"""The admin page of a subject: search, figures, and actions that hold at once."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any, ClassVar
from unittest.mock import DEFAULT, Mock, patch
from urllib.parse import parse_qs, quote, urlsplit

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import connection
from django.http import HttpRequest
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_quota import ban, check, counter, peek, raise_limit, slot
from django_quota.adapters import digest
from django_quota.admin import subject_actions
from django_quota.admin.subject_actions import BlockForm
from django_quota.admin.wording import local_moment
from django_quota.core.clock import DAY
from django_quota.features.counters import calls
from django_quota.limiting.flusher import flusher
from django_quota.limiting.known_rules import known_login_rules
from django_quota.limiting.override_rows import set_override
from django_quota.limiting.overrides import overrides
from django_quota.models import DailyCounter, QuotaOverride
from django_quota.subjects.subject import login_subject
from django_quota.testing import freeze
from tests.admin.operators import operator, superuser
from tests.admin.texts import messages_of
from tests.support.rows import has_words
from tests.support.steps import START

PAGE = "/admin/django_quota/subject/"
SUBJECT = "user:42"


def tier(request: HttpRequest) -> str:
    return "free"


BY_USER: dict[str, Any] = {
    "search": {"rate": "10/m; 500/h", "key": "user"},
    "tiered": {"rate": {"anonymous": "5/m", "authenticated": "50/m"}, "key": "user"},
    "odd": {"rate": lambda request: "1/m", "key": "user"},
    "signup": {"rate": "5/m", "key": "ip"},
}
LOGIN_BACKENDS = ["django_quota.contrib.auth.LoginQuotaBackend", "django.contrib.auth.backends.ModelBackend"]
LOGIN = {"rate": "2/h", "ban": {"after": "1/m", "for": ["10m", "1h"]}}


@pytest.fixture(autouse=True)
def rules(database: Any, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "STORE": "memory", "RULES": {**BY_USER, "login": LOGIN}}


def override(subject: str = SUBJECT, **given: Any) -> QuotaOverride:
    return QuotaOverride.objects.create(**{"subject": subject, "mode": "blocked", **given})


def page(client: Client, subject: str = SUBJECT) -> str:
    answer = client.get(PAGE, {"subject": subject})
    assert answer.status_code == 200
    return answer.content.decode()


def verdict(shown: str) -> str:
    """Return the text of the section that says what refuses now."""
    section = shown[shown.index("<h2>Right now</h2>") :]
    return re.sub(r"<[^>]*>", "", section[: section.index("</section>")])


def red_bars(shown: str) -> dict[int, bool]:
    """Return whether the bar of each limit, named by its size, is red."""
    bars = re.findall(r'<meter min="0" max="(\d+)" value="(\d+)" low="([\d.]+)" high="(\d+)" optimum="0"', shown)
    assert all(float(low) > 0 for _, _, low, _ in bars)  # else a browser takes the middle for the best
    return {int(most): int(value) > max(float(low), int(high)) for most, value, low, high in bars}


def ask(client: Client, name: str, rule: str = "*", subject: str = SUBJECT, **given: str) -> Any:
    return client.post(f"{PAGE}action/{name}/", {"subject": subject, "on": rule, **given})


def act(client: Client, name: str, rule: str = "*", subject: str = SUBJECT, **given: str) -> Any:
    words = {"confirmed": "yes", "span": "1d", "reason": "spam", "factor": "2", **given}
    return ask(client, name, rule, **{"subject": subject, **words})


def found(client: Client, text: str) -> str:
    answer = client.post(PAGE, {"find": text})
    assert answer.status_code == 302, answer.content.decode()
    (subject,) = parse_qs(urlsplit(answer.url).query)["subject"]  # type: ignore[attr-defined]
    return subject


def check_as_user(rule: str) -> None:
    """Check a rule by a request of the subject, which has a tier."""
    request = RequestFactory().get("/")
    request.user = User(pk=42)
    check(rule, request)


class TestSearch:
    def test_the_address_of_a_user_leads_to_the_user(self) -> None:
        ann = User.objects.create_user("ann", "Ann@example.org")

        assert found(superuser(), " ann@EXAMPLE.org ") == f"user:{ann.pk}"

    def test_plain_values_lead_to_the_subject_that_has_their_digests(self) -> None:
        assert found(superuser(), "ip:::1+post:phone=+1555") == f"ip:::/64+post.phone:{digest('+1555')}"

    @pytest.mark.parametrize(
        ("text", "subject"),
        [
            pytest.param("203.0.113.9", "ip:203.0.113.9", id="a bare address"),
            pytest.param("::ffff:203.0.113.9", "ip:203.0.113.9", id="an IPv4 address as IPv6"),
            pytest.param("2001:DB8:0:0::7", "ip:2001:db8::/64", id="an IPv6 address"),
            pytest.param("2001:db8::/64", "ip:2001:db8::/64", id="the network of an IPv6 client"),
            pytest.param("ip:2001:db8::9", "ip:2001:db8::/64", id="an IPv6 address with its kind"),
            pytest.param("user:7", "user:7", id="a user"),
            pytest.param("global", "global", id="the site"),
            pytest.param("of-a-call", "of-a-call", id="a name"),
        ],
    )
    def test_a_subject_is_found_in_any_spelling(self, text: str, subject: str) -> None:
        assert found(superuser(), text) == subject

    def test_the_address_of_several_users_offers_each(self) -> None:
        users = [User.objects.create_user(name, "ann@example.org") for name in ("ann", "bob")]

        shown = superuser().post(PAGE, {"find": "ann@example.org"}).content.decode()

        assert [user for user in users if f'{PAGE}?subject=user%3A{user.pk}"' not in shown] == []
        assert [user for user in users if str(user) not in shown] == []

    @pytest.mark.parametrize("text", ["ip:nowhere", "post:phone="], ids=["no address", "no value"])
    def test_what_cannot_be_a_subject_is_an_error(self, text: str) -> None:
        assert "errornote" in superuser().post(PAGE, {"find": text}).content.decode()

    def test_a_search_says_that_nobody_has_a_name(self) -> None:
        User.objects.create_user("anna")

        shown = superuser().post(PAGE, {"find": "bob"}, follow=True).content.decode()

        assert "Nobody&#x27;s name or e-mail begins with &#x27;bob&#x27;." in shown

    @pytest.mark.parametrize("text", ["global", "ann"], ids=["the site", "the beginning of a name"])
    def test_a_search_does_not_say_so_of_what_it_finds(self, text: str) -> None:
        User.objects.create_user("anna", pk=7)
        check("search", "global")
        check("search", "user:7")

        assert "Nobody&#x27;s" not in superuser().post(PAGE, {"find": text}, follow=True).content.decode()

    def test_the_empty_search_lists_who_was_refused_last(self) -> None:
        for subject in ("user:1", "user:2"):
            check("0/m", subject, name="closed")

        shown = superuser().get(PAGE).content.decode().partition("<h2>Refused last</h2>")[2]

        assert re.findall(r"subject=user%3A(\d)", shown) == ["2", "1"]

    def test_the_empty_search_lists_at_most_20_subjects(self) -> None:
        for number in range(21):
            check("0/m", f"user:{number}", name="closed")

        shown = superuser().get(PAGE).content.decode().partition("<h2>Refused last</h2>")[2]

        assert re.findall(r"subject=user%3A(\d+)", shown) == [str(number) for number in range(20, 0, -1)]

    def test_the_empty_search_lists_a_subject_by_its_last_refusal(self) -> None:
        for subject, name in (("user:1", "first"), ("user:2", "other"), ("user:1", "last")):
            check("0/m", subject, name=name)

        shown = superuser().get(PAGE).content.decode().partition("<h2>Refused last</h2>")[2]

        assert re.findall(r"subject=user%3A(\d)|name=(\w+)", shown) == [
            ("1", ""),
            ("", "last"),
            ("2", ""),
            ("", "other"),
        ]

    def test_the_empty_search_lists_who_was_banned(self) -> None:
        ban("login", "user:7", "10m")

        assert "subject=user%3A7" in superuser().get(PAGE).content.decode()

    def test_the_empty_search_leaves_out_who_is_only_near_a_limit(self) -> None:
        check("5/m", "user:7", 5, name="near")

        assert "Nobody was refused recently." in superuser().get(PAGE).content.decode()

    def test_a_wrong_subject_in_the_url_is_an_error_without_a_list(self) -> None:
        check("0/m", "user:1", name="closed")

        shown = superuser().get(PAGE, {"subject": "ip:nowhere"}).content.decode()

        assert "errornote" in shown
        assert 'name="find" value="ip:nowhere"' in shown
        assert "Refused last" not in shown

    def test_the_empty_search_says_that_nobody_was_refused(self) -> None:
        assert "Nobody was refused recently." in superuser().get(PAGE).content.decode()

    @pytest.mark.parametrize("text", ["", "login:typo=marked"], ids=["nothing", "a misspelled part"])
    def test_wrong_text_is_an_error_that_does_not_repeat_it(self, text: str) -> None:
        shown = superuser().post(PAGE, {"find": text}).content.decode()

        assert "errornote" in shown
        assert "marked" not in shown

    @pytest.mark.parametrize("text", ["ann", "ann@example.org"], ids=["name", "address"])
    def test_without_the_permission_to_view_users_none_is_found(self, text: str) -> None:
        User.objects.create_user("ann", "ann@example.org")

        assert found(operator("view_subject"), text) == text

    @pytest.mark.parametrize("text", ["ann", "ann@example.org"], ids=["name", "address"])
    def test_without_that_permission_the_page_says_how_to_write_a_user(self, text: str) -> None:
        user = User.objects.create_user("ann", "ann@example.org")

        shown = page(operator("view_subject"), text)

        assert "You may not see users, so no name is looked up. No request has the subject" in shown
        assert "user:&lt;key&gt;" in shown
        assert f"user:{user.pk}" not in shown


class TestPage:
    @pytest.fixture
    def overrides_with_a_ban(self, rules: None) -> None:
        User.objects.create_user("ann", pk=42)
        ends = timezone.now() + timedelta(days=1)
        override(rule="search", mode="rate", rate="20/m", reason="an import", created_by="ann", expires=ends)
        override(rule="tiered", mode="exempt", reason="once")
        override("*", rule="search", mode="exempt")
        check("search", SUBJECT, 20)
        ban("login", SUBJECT, "10m")

    @has_words(
        a_rate="20/m by sliding window",
        its_use="20 of 20 used, 0 left",
        the_next_hit="the next hit is admitted in",
        where_a_rate_comes_from="by an override",
        the_reason_of_an_override="an import",
        who_made_an_override="by ann",
        a_ban="First ban",
        a_tier="authenticated:",
        rates_that_are_functions="its rates are functions of the request",
        how_many_rules_are_unused="unused rule",
        an_override="Override: <strong>20/m",
        an_override_that_counts_for_nothing="no rule: another override takes precedence",
    )
    @pytest.mark.usefixtures("overrides_with_a_ban")
    def test_it_shows_each_detail(self, words: str) -> None:
        assert words in page(superuser())

    @pytest.mark.usefixtures("overrides_with_a_ban")
    def test_a_rule_that_never_limits_a_user_has_a_line_that_says_what_it_counts_by(self) -> None:
        assert "<li>signup counts by ip.</li>" in page(superuser())

    @pytest.mark.usefixtures("overrides_with_a_ban")
    def test_a_rule_that_never_limits_a_user_has_no_buttons(self) -> None:
        assert 'value="signup"' not in page(superuser())

    @pytest.mark.usefixtures("overrides_with_a_ban")
    def test_overrides_of_the_subject_can_be_cleared(self) -> None:
        """Not that of everybody."""
        assert page(superuser()).count("action/clear/") == 2

    @pytest.mark.parametrize(
        ("rate", "used", "is_red"),
        [(1, 1, True), (3, 2, False), (6, 6, True), (10, 9, False), (5_000, 1_234, False)],
    )
    def test_a_bar_is_red_only_if_nothing_is_left(self, rate: int, used: int, is_red: bool, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"only": f"{rate}/h"}}
        check("only", SUBJECT, used)

        assert red_bars(page(superuser()))[rate] is is_red

    def test_the_bar_of_an_unused_limit_is_not_red(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"only": "8/h"}}

        assert red_bars(page(superuser()))[8] is False

    def test_a_limit_of_nothing_has_no_bar(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"closed": "0/h"}}

        assert 0 not in red_bars(page(superuser()))

    def test_numbers_have_separators(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"many": "5000/h"}}
        check("many", SUBJECT, 1_234)

        assert "1,234 of 5,000 used, 3,766 left" in page(superuser())

    def test_a_moment_has_one_name_however_soon_it_comes(self) -> None:
        midnight = 1_796_083_200_000_000
        before = range(midnight - 2_500_000_000_001, midnight, 123_456_789_123)

        names = {f"{local_moment(now, (midnight - now) / 1_000_000):%b %d %H:%M:%S}" for now in before}

        assert names == {"Dec 01 00:00:00"}

    @pytest.mark.parametrize(("subject", "hint"), [("nobody", "No request has the"), ("user:joe", "no user with")])
    def test_an_unknown_subject_gets_a_hint(self, subject: str, hint: str) -> None:
        assert hint in page(superuser(), subject)

    @pytest.mark.parametrize("words", ["formaction", "Right now"], ids=["buttons", "an answer"])
    def test_what_is_no_subject_can_only_be_searched(self, words: str) -> None:
        assert words not in page(superuser(), "nobody")

    @pytest.mark.parametrize("words", ["formaction", "Right now"], ids=["buttons", "an answer"])
    def test_an_unknown_user_is_a_subject(self, words: str) -> None:
        assert words in page(superuser(), "user:joe")

    @pytest.mark.parametrize(
        "met",
        [
            pytest.param(lambda: (slot("export", 2, subject="nobody").acquire(), flusher.flush()), id="a slot"),
            pytest.param(lambda: counter("clicks").incr("nobody"), id="a counter"),
            pytest.param(lambda: override("nobody"), id="an override"),
            pytest.param(
                lambda: DailyCounter.objects.create(subject="nobody", rule="search", day=timezone.now().date()),
                id="usage",
            ),
        ],
    )
    def test_a_name_of_which_something_is_kept_is_a_subject(self, met: Callable[[], Any]) -> None:
        met()

        shown = page(superuser(), "nobody")

        assert "No request has the" not in shown
        assert "Right now" in shown

    @pytest.mark.parametrize(("subject", "hint"), [("nobody", "No request has the"), ("user:joe", "no user with")])
    def test_a_name_under_which_something_is_counted_is_a_subject(self, subject: str, hint: str) -> None:
        check("search", subject)

        shown = page(superuser(), subject)

        assert "formaction" in shown
        assert hint not in shown

    @pytest.mark.parametrize(
        ("permissions", "parts"),
        [
            pytest.param(["auth.change_user"], ["ann&lt;b&gt; (user:42)"], id="to change users, the name"),
            pytest.param(
                ["view_dailycounter"], ["dailycounter/usage/?subject="], id="to view counts, the link to them"
            ),
            pytest.param(
                ["add_quotaoverride", "change_quotaoverride"],
                ["quotaoverride/rule/?name=", "action/block/"],
                id="to change overrides, the buttons",
            ),
        ],
    )
    def test_with_a_permission_the_page_has_what_needs_it(self, permissions: list[str], parts: list[str]) -> None:
        User.objects.create_user("ann<b>", pk=42)
        ban("login", SUBJECT, "10m")

        text = page(operator("view_subject", *permissions))

        all_parts = [
            "ann&lt;b&gt; (user:42)",
            "dailycounter/usage/?subject=",
            "quotaoverride/rule/?name=",
            "action/block/",
        ]
        assert [part for part in all_parts if part in text] == parts

    @pytest.mark.parametrize(
        ("permissions", "actions"),
        [
            pytest.param([], set(), id="none"),
            pytest.param(["reset_subject"], {"reset"}, id="to reset"),
            pytest.param(["lift_ban"], {"lift"}, id="to lift bans"),
            pytest.param(["delete_quotaoverride"], {"clear"}, id="to delete overrides"),
            pytest.param(["add_quotaoverride"], set(), id="to add overrides alone"),
            pytest.param(["change_quotaoverride"], set(), id="to change overrides alone"),
            pytest.param(
                ["add_quotaoverride", "change_quotaoverride"], {"raise", "exempt", "block"}, id="to set overrides"
            ),
        ],
    )
    def test_a_permission_has_its_buttons(self, permissions: list[str], actions: set[str]) -> None:
        ban("login", SUBJECT, "10m")
        override(rule="search", mode="rate", rate="20/m")

        shown = page(operator("view_subject", *permissions))

        assert set(re.findall(r'formaction="[^"]*action/(\w+)/"', shown)) == actions

    def test_the_newest_day_comes_first(self) -> None:
        for days in (2, 1, 0):
            with freeze(START - days * DAY):
                check("9/m", SUBJECT, name="counted", daily=True)

        with freeze(START):
            shown = page(superuser()).split("<h2>The last days</h2>")[1].split("</section>")[0]

        found = re.findall(r'<time datetime="([^"]*)"', shown)
        assert found == ["2025-11-21", "2025-11-20", "2025-11-19"]

    def test_a_refusal_names_the_user_who_sent_the_request(self) -> None:
        request = RequestFactory().get("/a/", REMOTE_ADDR="192.0.2.1")
        request.user = User.objects.create_user("ann", pk=42)
        check("0/m", request, key="ip", name="closed")

        assert '<td data-label="Request">ann GET /a/</td>' in page(superuser(), "ip:192.0.2.1")

    def test_each_ban_has_the_reason_of_its_own_event(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"login": LOGIN, "other": LOGIN}}
        ban("login", SUBJECT, "10m", reason="fast")
        ban("other", SUBJECT, "20m", reason="slow")

        shown = page(superuser()).split("<h2>Bans</h2>")[1].split("</section>")[0]

        assert re.findall(r'<th scope="row">(\w+)</th>.*?First ban: (\w+)', shown, re.DOTALL) == [
            ("login", "fast"),
            ("other", "slow"),
        ]

    def test_a_name_is_escaped(self) -> None:
        User.objects.create_user("ann<b>", pk=42)

        assert "ann<b>" not in page(superuser())


@pytest.mark.usefixtures("redis_cache")
class TestLongerSubjects:
    """Of a rule that counts an address together with a name, and has refused one pair."""

    WHOLE = f"ip:203.0.113.9+post.username:{digest('ann')}"

    @pytest.fixture(autouse=True)
    def refused(self, rules: None, redis_cache: Any, settings: Any) -> None:
        settings.QUOTA = {
            **settings.QUOTA,
            "STORE": "redis",
            "RULES": {"login": {"rate": "1/h", "key": ("ip", "post:username")}},
        }
        for _ in range(2):
            check("login", self.WHOLE)

    def test_the_page_of_one_part_leads_to_the_whole(self) -> None:
        shown = verdict(page(superuser(), "ip:203.0.113.9"))

        assert "Counted together with others, and refused recently or now:" in shown
        assert ": refused by login until" in shown

    def test_the_page_of_one_part_says_why_the_whole_is_refused(self) -> None:
        override(self.WHOLE, rule="login")

        shown = verdict(page(superuser(), "ip:203.0.113.9"))

        assert ": refused by login for good (blocked by an override)" in shown

    def test_the_page_of_the_whole_is_refused_by_itself(self) -> None:
        shown = verdict(page(superuser(), self.WHOLE))

        assert "Counted together with others" not in shown
        assert "Refused by login until" in shown


class TestFailedLogins:
    """The pages of subjects on a site that limits failed logins."""

    @pytest.fixture(autouse=True)
    def ann(self, rules: None, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"search": "10/m"}, "LOGIN": {"5/10m": ["username", "ip"]}}
        settings.AUTHENTICATION_BACKENDS = LOGIN_BACKENDS
        User.objects.create_user("ann", "ann@example.org", pk=42)

    def test_the_page_of_a_user_leads_to_failed_logins(self) -> None:
        subject = quote(login_subject("ann"), safe="")

        assert f'<li><a href="?subject={subject}">Failed logins</a></li>' in page(superuser())

    def test_the_page_of_an_address_leads_to_no_failed_logins(self) -> None:
        assert ">Failed logins<" not in page(superuser(), "ip:203.0.113.9")

    def test_whoever_may_not_see_users_is_not_led_to_failed_logins(self) -> None:
        assert ">Failed logins<" not in page(operator("view_subject"))

    def test_the_page_of_a_user_gives_no_all_clear(self) -> None:
        shown = page(superuser())

        words = "No limit that counts this subject alone refuses the next hit. Other rules count it together with more."
        assert words in verdict(shown)
        assert "quota-answer-yes" not in shown

    def test_failed_logins_at_an_address_are_listed_by_the_name_of_the_user(self) -> None:
        at_home = f"{login_subject('ann')}+ip:203.0.113.9"
        for _ in range(2):
            check("1/h", at_home, name="login")

        shown = " ".join(verdict(page(superuser(), "ip:203.0.113.9")).split())

        assert "Failed logins of ann at 203.0.113.9: not refused now" in shown


class TestImpossibleTiers:
    TIERED: ClassVar = {"rate": {"anonymous": "5/m", "authenticated": "50/m"}}

    @pytest.mark.parametrize(
        ("key", "subject", "tiers"),
        [
            pytest.param("user", SUBJECT, ["authenticated"], id="a user is authenticated"),
            pytest.param("user", "ip:192.0.2.1", ["anonymous"], id="who is counted by address is not"),
            pytest.param("ip", "ip:192.0.2.1", ["anonymous", "authenticated"], id="an address has any"),
        ],
    )
    def test_tiers_that_a_subject_cannot_have_are_not_shown(
        self, key: str, subject: str, tiers: list[str], settings: Any
    ) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"tiered": {**self.TIERED, "key": key}}}

        shown = page(superuser(), subject)

        assert [tier for tier in self.TIERED["rate"] if f"{tier}:" in shown] == tiers


class TestOverrides:
    def rows(self, subject: str) -> list[list[str]]:
        """Return the first four cells of each override."""
        section = page(superuser(), subject).split("<h2>Overrides</h2>")[1].split("</section>")[0]
        found = [re.sub(r"<[^>]*>", "|", each) for each in section.split("<tr>")[2:]]
        return [[cell.strip() for cell in each.split("|") if cell.strip()][:4] for each in found]

    def test_the_most_specific_comes_first_with_the_rules_for_which_it_holds(self) -> None:
        override("*", rule="search", mode="exempt")
        override("ip:*", mode="rate", rate="30/m")
        override("ip:198.51.0.0/16", rule="login", mode="rate", rate="5/h")
        override("ip:198.51.100.0/24", rule="login", mode="rate", rate="9/h")
        override("ip:198.51.100.7", rule="search", mode="rate", rate="20/m")
        override("ip:198.51.100.8")

        assert self.rows("ip:198.51.100.7") == [
            ["search", "ip:198.51.100.7", "20/m", "search"],
            ["login", "ip:198.51.100.0/24", "9/h", "login"],
            ["login", "ip:198.51.0.0/16", "5/h", "no rule: another override takes precedence"],
            ["all rules", "ip:*", "30/m", "all rules but login, search"],
            ["search", "everybody", "off for everybody", "no rule: another override takes precedence"],
        ]

    def test_those_that_have_ended_come_last_and_hold_for_no_rule(self) -> None:
        override(SUBJECT, rule="search", mode="exempt", expires=datetime(2025, 11, 2, tzinfo=UTC))
        override("*", rule="search", mode="rate", rate="30/m")

        assert self.rows(SUBJECT) == [
            ["search", "everybody", "30/m", "search"],
            ["search", SUBJECT, "exempt", "–"],  # noqa: RUF001 — as the page writes it
        ]

    def test_a_page_lists_at_most_100(self) -> None:
        QuotaOverride.objects.bulk_create(
            QuotaOverride(subject=SUBJECT, rule=f"rule{number}", mode="exempt") for number in range(101)
        )

        assert len(self.rows(SUBJECT)) == 100

    def test_a_full_page_has_those_that_hold(self) -> None:
        ended = datetime(2025, 11, 2, tzinfo=UTC)
        QuotaOverride.objects.bulk_create(
            QuotaOverride(subject=SUBJECT, rule=f"rule{number}", mode="exempt", expires=ended) for number in range(100)
        )
        override(SUBJECT, rule="search")

        assert self.rows(SUBJECT)[0] == ["search", SUBJECT, "blocked", "search"]

    def test_the_override_of_a_group_is_shown_at_its_rule(self) -> None:
        override("user:*", rule="search", mode="rate", rate="20/m", reason="a sale")

        shown = page(superuser())

        assert "Override (user:*): <strong>20/m</strong>" in shown
        assert "a sale" in shown

    def test_the_override_of_a_group_cannot_be_cleared_here(self) -> None:
        override("user:*", rule="search", mode="rate", rate="20/m")

        assert "action/clear/" not in page(superuser())


@pytest.mark.usefixtures("redis_cache")
class TestRedisThatTakesNoChanges:
    @pytest.fixture(autouse=True)
    def replica(self, rules: None, redis_cache: Any, raw: redis.Redis, settings: Any) -> Iterator[None]:
        asked = {"open": {"rate": "3/m", "on_unavailable": "allow"}, "shut": {"rate": "3/m", "on_unavailable": "deny"}}
        settings.QUOTA = {**settings.QUOTA, "STORE": "redis", "RULES": asked}
        raw.replicaof("127.0.0.1", 1)
        yield
        raw.replicaof("NO", "ONE")

    def test_a_rule_that_denies_refuses(self) -> None:
        shown = page(superuser())

        assert "Refused by shut." in verdict(shown)
        assert "no hit is admitted while Redis refuses writes" in shown

    def test_a_rule_that_allows_counts_nothing(self) -> None:
        shown = page(superuser())

        assert "open" not in verdict(shown)
        assert "the next hit is admitted, and not counted" in shown


class TestVerdict:
    """The page begins with what refuses the subject now."""

    @pytest.fixture
    def three_limits_are_used_up(self, rules: None, settings: Any) -> None:
        """Of a shadow rule, of `search`, of a rule that admits nothing."""
        more = {"quiet": {"rate": "1/h", "shadow": True}, "closed": "0/h"}
        settings.QUOTA = {**settings.QUOTA, "RULES": {**settings.QUOTA["RULES"], **more}}
        for rule, cost in (("quiet", 1), ("quiet", 1), ("search", 10)):
            check(rule, SUBJECT, cost)

    @has_words(
        a_rule_that_admits_nothing="Refused by closed for good.",
        a_limit_that_is_used_up="Refused by search until ",
    )
    @pytest.mark.usefixtures("three_limits_are_used_up")
    def test_it_names_what_refuses(self, words: str) -> None:
        assert words in verdict(page(superuser()))

    @pytest.mark.usefixtures("three_limits_are_used_up")
    def test_a_shadow_rule_does_not_refuse(self) -> None:
        shown = page(superuser())

        assert "quiet" not in verdict(shown)
        assert "(a shadow rule: it only reports)" in shown

    def test_a_block_is_named_for_each_rule(self) -> None:
        override(reason="spam")

        assert re.search(r"Refused by search, .* for good \(blocked by an override\)", verdict(page(superuser())))

    @pytest.mark.usefixtures("three_limits_are_used_up")
    def test_each_rule_that_refuses_is_named_once(self) -> None:
        assert verdict(page(superuser())).count("search") == 1

    def test_a_rule_refuses_until_the_last_of_its_limits_admits_a_hit(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"two": {"rate": "1/m; 1/h", "algorithm": "fixed_window"}}}
        with freeze(START):
            check("two", SUBJECT)

            assert "Refused by two until 05:40:00 UTC." in verdict(page(superuser()))

    def test_a_rule_that_admits_nothing_by_one_of_its_limits_refuses_for_good(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"two": "1/m; 0/h"}}

        assert "Refused by two for good." in verdict(page(superuser()))

    def test_the_reason_of_a_block_of_all_rules_is_shown_once(self) -> None:
        override(reason="spam")

        assert page(superuser()).count('<p class="quota-reason">') == 1

    def test_it_says_that_nothing_refuses(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"search": "99/m"}}

        assert "No limit on this page refuses the next hit." in verdict(page(superuser()))

    def test_it_says_until_when_a_ban_refuses(self) -> None:
        with freeze(datetime(2030, 1, 31, 2, 15, 12, tzinfo=UTC)):
            ban("login", SUBJECT, "10m")
            first = page(superuser()).split("<h2>Right now</h2>")[1].split("</div>")[0]

        assert "<strong>Refused by login until 02:25:12 UTC (first ban).</strong>" in first
        assert f'value="login" formaction="{PAGE}action/lift/"' in first

    def test_a_limit_of_a_rule_that_bans_is_not_named_besides_the_ban(self) -> None:
        check("login", SUBJECT, 2)
        ban("login", SUBJECT, "10m")

        assert page(superuser()).count("<strong>Refused by") == 1

    def test_an_exemption_ends_a_ban(self) -> None:
        ban("login", SUBJECT, "10m")
        override(mode="exempt")

        assert "Refused by" not in verdict(page(superuser()))

    @pytest.fixture
    def closed_tier(self, rules: None, settings: Any) -> None:
        rule = {"rate": {"free": "0/h", "pro": "9/h"}, "tier": tier, "key": "user"}
        settings.QUOTA = {**settings.QUOTA, "RULES": {"api": rule}}

    @pytest.mark.usefixtures("closed_tier")
    def test_while_the_tier_is_unknown_it_may_refuse(self) -> None:
        first = verdict(page(superuser()))

        assert "api (if its tier is free), 0/h: 0 of 0 used" in first
        assert "Refused by" not in first

    def test_a_rule_that_refuses_in_each_tier_refuses_though_the_tier_is_unknown(self, settings: Any) -> None:
        rule = {"rate": {"free": "0/h", "pro": "0/d"}, "tier": tier, "key": "user"}
        settings.QUOTA = {**settings.QUOTA, "RULES": {"api": rule}}

        first = verdict(page(superuser()))

        assert "Refused by api for good." in first
        assert "if its tier is" not in first

    @pytest.mark.usefixtures("closed_tier")
    def test_the_tier_of_the_last_request_is_explained(self) -> None:
        titles = [re.findall(r'<strong title="([^"]*)">(\w+):', page(superuser()))]
        check_as_user("api")

        titles += [re.findall(r'<strong title="([^"]*)">(\w+):', page(superuser("other")))]

        assert titles == [[], [("its tier at the last request", "free")]]

    @pytest.mark.usefixtures("closed_tier")
    def test_once_the_tier_is_known_it_refuses(self) -> None:
        check_as_user("api")

        first = verdict(page(superuser()))

        assert "Refused by api for good." in first
        assert first.count("api") == 1


class TestTopUps:
    """A top-up says what it adds to what, until when."""

    @pytest.fixture(autouse=True)
    def plans(self, rules: None, settings: Any) -> None:
        plans = {
            "rate": {"free": "100/month", "pro": "900/month"},
            "key": "user",
            "tier": tier,
            "algorithm": "calendar",
        }
        more = {"api": plans, "plain": {"rate": "5/m; 100/d", "key": "user"}}
        settings.QUOTA = {**settings.QUOTA, "RULES": more}

    def test_the_limit_of_a_plan_is_a_sum(self) -> None:
        with freeze(datetime(2030, 11, 15, tzinfo=UTC)):
            check_as_user("api")
            raise_limit("api", SUBJECT, 500)

            shown = page(superuser())

        assert "(600 = 100 of plan free + 500 until December 1)" in shown
        assert "(by an override)" not in shown

    def test_without_an_end_or_a_plan_both_are_left_out(self) -> None:
        override(rule="plain", mode="rate", rate="+500")

        shown = page(superuser())

        assert "(600 = 100 + 500)" in shown

    def test_a_new_rate_is_an_override(self) -> None:
        override(rule="plain", mode="rate", rate="600/d")

        assert "(by an override)" in page(superuser())


class TestCredits:
    @pytest.fixture(autouse=True)
    def granted(self, rules: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        minutes = counter("minutes", group="shop")
        monkeypatch.setattr(
            calls, "made", {("minutes", "shop", None): minutes, ("clicks", None, None): counter("clicks")}
        )
        with freeze(START):
            minutes.grant(SUBJECT, 1_500, id="order-17", expires="1h")
            minutes.incr(SUBJECT, 100)
            counter("clicks").incr(SUBJECT)
            yield

    @has_words(
        total="<h2>minutes: 1,600 left</h2>",
        grant='<th scope="row">order-17</th>',
        left='<td data-label="Left">1,500</td>',
    )
    def test_the_page_shows_what_is_left_by_grant(self, words: str) -> None:
        assert words in page(superuser())

    def test_a_counter_without_grants_has_its_total(self) -> None:
        assert "<h2>clicks: 1</h2>" in page(superuser())


class TestHistory:
    """The newest log entries about a subject, and about its overrides."""

    def entries(self, client: Client) -> list[str]:
        section = page(client).split("<h2>History</h2>")[1].split("</section>")[0]
        return re.findall(r'<td data-label="What">([^<]*)</td>', section)

    def test_it_has_the_newest_ten(self) -> None:
        client = superuser()
        for number in range(11):
            act(client, "block", f"rule{number}")

        shown = self.entries(client)

        assert [entry.split()[1] for entry in shown] == [f"rule{number}" for number in range(10, 0, -1)]

    def test_entries_of_one_moment_have_the_last_one_first(self) -> None:
        client = superuser()
        for number in range(3):
            act(client, "block", f"rule{number}")

        LogEntry.objects.update(action_time=timezone.now())

        assert [entry.split()[1] for entry in self.entries(client)] == ["rule2", "rule1", "rule0"]

    def test_it_has_the_changes_of_an_override_of_the_subject(self) -> None:
        client, made = superuser(), override(rule="search")

        client.post(f"/admin/django_quota/quotaoverride/{made.pk}/change/", self.CHANGED)

        assert [entry.partition(" ")[0] for entry in self.entries(client)] == ["Changed"]

    def test_it_leaves_out_the_changes_of_an_override_of_a_group(self) -> None:
        client, made = superuser(), override("user:*", rule="search")

        client.post(f"/admin/django_quota/quotaoverride/{made.pk}/change/", {**self.CHANGED, "subject": "user:*"})

        assert LogEntry.objects.exists()
        assert self.entries(client) == []

    CHANGED: ClassVar = {"subject": SUBJECT, "rule": "search", "mode": "exempt", "rate": "", "_anyway": "1"}


def test_a_full_slot_is_among_what_refuses() -> None:
    with freeze(START):
        slot("export", 1, 30, subject=SUBJECT).acquire()
        flusher.flush()

        shown = verdict(page(superuser()))

    assert re.search(r"Refused by export until .* \(all slots are in use: 1 of 1; until then at most\)\.", shown)


def test_a_full_slot_refuses_until_the_first_of_its_leases_ends() -> None:
    with freeze(START):
        for lease in (60, 30):
            slot("export", 2, lease, subject=SUBJECT).acquire()
        flusher.flush()

        shown = verdict(page(superuser()))

    assert re.search(r"Refused by export until 04:40:30 UTC \(all slots are in use: 2 of 2; until then", shown)


class TestRefusedByAddress:
    """A rule by address refused the last request of a user."""

    ADDRESS = "ip:203.0.113.9"

    @pytest.fixture(autouse=True)
    def refused(self, rules: None) -> None:
        request = RequestFactory().get("/signup/", REMOTE_ADDR="203.0.113.9")
        request.user = User(pk=42)
        for _ in range(6):
            check("signup", request)

    def test_the_page_of_the_user_says_that_the_address_is_refused_until_when(self) -> None:
        shown = verdict(page(superuser()))

        assert re.search(rf"{re.escape(self.ADDRESS)}: refused by signup until ", shown)

    def test_the_page_of_the_user_gives_no_all_clear(self) -> None:
        check_as_user("search")

        shown = page(superuser())

        assert "quota-answer-no" in shown
        assert "No limit on this page refuses the next hit." not in shown

    def test_the_page_of_the_address_names_the_user_whose_requests_were_refused(self) -> None:
        User.objects.create_user("ann", pk=42)

        shown = page(superuser(), self.ADDRESS).split("Recent refusals")[1]

        assert '<td data-label="Request">ann GET /signup/</td>' in shown

    @has_words(rule='<td data-label="Rule">signup', address=ADDRESS, request="GET /signup/")
    def test_the_page_of_a_user_lists_what_was_refused_by_address(self, words: str) -> None:
        assert words in page(superuser()).split("Recent refusals")[1]

    def test_a_ban_that_the_user_set_for_somebody_else_is_not_among_the_refusals(self) -> None:
        root = User.objects.create_user("root_of_bans")

        ban("login", "ip:192.0.2.77", 600, by=root)

        assert "192.0.2.77" not in page(superuser(), f"user:{root.pk}")


class TestRecentRefusals:
    @pytest.fixture(autouse=True)
    def refused(self, rules: None, redis_cache: Any, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "STORE": "redis"}
        check("search", SUBJECT, 4)
        for _ in range(3):
            check("2/h", SUBJECT, name="transfer")

    @has_words(rule='<td data-label="Rule">transfer</td>', limit='<td data-label="Limit">2</td>')
    def test_a_row_names_the_limit_that_refused(self, words: str) -> None:
        assert words in page(superuser()).split("Recent refusals")[1]

    def test_the_page_takes_few_calls_of_redis_without_a_scan(
        self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(calls, "made", {})  # one more for each counter of the site, in the same round trip
        client = superuser()
        page(client)
        raw.config_resetstat()

        page(client)

        stats = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in raw.info("commandstats").items()}
        assert not {"scan", "keys", "hscan"} & stats.keys()
        assert stats["evalsha"] <= 5

    def test_the_page_takes_few_queries(self) -> None:
        client = superuser()
        page(client)

        with CaptureQueriesContext(connection) as queries:
            page(client)

        assert len(queries) <= 8


@pytest.mark.parametrize(
    "subject", ["a\x00b\n\x1b[31m", "ключ:日本語:🎈"], ids=["with control characters", "in other scripts"]
)
class TestOddSubject:
    @pytest.fixture(autouse=True)
    def counted(self, rules: None, subject: str) -> None:
        check("search", subject, 4)

    def test_it_has_a_page(self, subject: str) -> None:
        assert "4 of 10 used, 6 left" in page(superuser(), subject)

    def test_it_has_actions(self, subject: str) -> None:
        client = superuser()

        assert ask(client, "reset", "search", subject).status_code == 200
        assert act(client, "reset", "search", subject).status_code == 302
        assert "4 of 10 used" not in page(client, subject)

    def test_an_entry_of_the_log_leads_to_its_page(self, subject: str) -> None:
        client = superuser()
        act(client, "reset", "search", subject)

        answer: Any = client.get(LogEntry.objects.get().get_admin_url() or "")

        assert answer.url.startswith(f"{PAGE}?subject=")
        history = client.get(answer.url).content.decode().split("History")[1]
        assert "What was counted under rule &quot;search&quot; was forgotten." in history


class TestWithoutTheStore:
    @pytest.fixture(autouse=True)
    def no_store(self, rules: None, settings: Any) -> None:
        settings.QUOTA = {name: value for name, value in settings.QUOTA.items() if name != "STORE"}

    def test_the_page_says_that_limits_cannot_be_read(self) -> None:
        assert "The limits cannot be read now." in page(superuser())

    def test_the_page_has_the_overrides_that_another_process_saved(self) -> None:
        client = superuser()
        page(client)

        with patch.object(overrides, "change"):  # this process is not told
            override(mode="exempt")

        assert "another override takes precedence" not in page(client)

    def test_a_block_is_saved(self) -> None:
        client = superuser()

        act(client, "block", "search", reason="abuse")

        assert "abuse" in page(client)

    def test_a_reset_fails(self) -> None:
        assert "unavailable" in act(superuser(), "reset").content.decode()

    def test_a_reset_that_fails_says_why_in_the_language(self, settings: Any) -> None:
        settings.LANGUAGE_CODE = "de"

        assert "Der Speicher der Kontingente ist nicht erreichbar" in act(superuser(), "reset").content.decode()

    def test_a_reset_that_failed_is_not_logged(self) -> None:
        act(superuser(), "reset")

        assert not LogEntry.objects.exists()


class TestButtons:
    def test_the_buttons_of_a_rule_are_below_one_line(self) -> None:
        check("search", SUBJECT)

        (rule,) = re.findall(
            r'<section class="quota-rule" aria-label="search">(.*?)</section>', page(superuser()), re.DOTALL
        )

        before, _, folded = rule.partition("<details")
        assert "<button" not in before
        assert re.search("<summary>Change…", folded)
        assert folded.count("<button") == 4

    def test_a_reason_that_must_be_given_is_marked(self) -> None:
        shown = ask(superuser(), "block").content.decode()

        assert re.search(r'class="required">Reason: <span class="quota-required">\(required\)</span>', shown)


class TestActions:
    def test_the_question_shows_what_a_raise_would_give(self) -> None:
        shown = ask(superuser(), "raise", "search").content.decode()

        assert re.findall(r">(x\d+: [^<]*)<", shown) == ["x2: 20/m; 1000/h", "x5: 50/m; 2500/h", "x10: 100/m; 5000/h"]

    def test_the_question_changes_nothing(self) -> None:
        ask(superuser(), "raise", "search")

        assert not QuotaOverride.objects.exists()

    def test_a_raise_holds_from_the_next_request(self) -> None:
        check("search", SUBJECT, 10)

        assert act(superuser(), "raise", "search").status_code == 302

        assert check("search", SUBJECT).limit == 20

    @pytest.mark.parametrize(
        ("span", "lasts"),
        [
            pytest.param("1h", timedelta(hours=1), id="an hour"),
            pytest.param("1d", timedelta(days=1), id="a day"),
            pytest.param("7d", timedelta(days=7), id="a week"),
        ],
    )
    def test_an_override_lasts_as_long_as_was_chosen(self, span: str, lasts: timedelta) -> None:
        before = timezone.now()

        act(superuser(), "exempt", span=span)

        expires = QuotaOverride.objects.get().expires
        assert expires is not None
        assert before + lasts <= expires <= timezone.now() + lasts

    @pytest.mark.parametrize("name", ["raise", "exempt", "block"])
    def test_the_question_proposes_a_day(self, name: str) -> None:
        assert '<option value="1d" selected>' in ask(superuser(), name, "search").content.decode()

    def test_a_raise_ends(self) -> None:
        act(superuser(), "raise", "search")

        expires = QuotaOverride.objects.get().expires
        assert expires is not None
        assert timedelta(hours=23) < expires - timezone.now() <= timedelta(days=1)

    def test_an_override_has_its_reason_with_who_made_it(self) -> None:
        act(superuser(), "raise", "search", reason="an import")

        row = QuotaOverride.objects.get()
        assert (row.reason, row.created_by) == ("an import", "root")

    @pytest.mark.parametrize(
        ("name", "given"),
        [
            pytest.param("raise", {"factor": "3"}, id="a factor that is not offered"),
            pytest.param("raise", {"factor": "many"}, id="no number"),
            pytest.param("block", {"reason": ""}, id="no reason"),
        ],
    )
    def test_a_wrong_value_is_an_error_of_its_field(self, name: str, given: dict[str, str]) -> None:
        assert "errorlist" in act(superuser(), name, **given).content.decode()
        assert not QuotaOverride.objects.exists()
        assert not LogEntry.objects.exists()

    @pytest.mark.parametrize("on", ["[", "7", "[7]", "[]", '{"a": 1}', '["a", 1]'])
    def test_a_button_that_names_no_rule_does_nothing(self, on: str) -> None:
        check("search", SUBJECT)

        assert act(superuser(), "reset", on).status_code in (200, 302)
        assert peek("search", SUBJECT).remaining == 9

    @pytest.mark.parametrize("name", ["block", "clear"])
    def test_a_link_does_nothing(self, name: str) -> None:
        override(rule="login", mode="exempt")
        query = {"subject": SUBJECT, "on": "login", "confirmed": "yes", "span": "1d", "reason": "spam"}

        answer = superuser().get(f"{PAGE}action/{name}/", query)

        assert answer.status_code == 200
        assert QuotaOverride.objects.get().mode == "exempt"

    def test_a_null_character_in_the_name_of_a_rule_is_left_out(self) -> None:
        act(superuser(), "block", "sea\0rch")

        assert QuotaOverride.objects.get().rule == "search"

    def test_a_subject_too_long_for_a_row_is_an_error(self) -> None:
        answer = act(superuser(), "block", subject="x" * 600)

        assert (answer.status_code, "500" in answer.content.decode()) == (200, True)
        assert not QuotaOverride.objects.exists()

    @pytest.mark.parametrize("name", ["raise", "exempt", "block", "reset", "lift", "clear"])
    def test_permissions_are_checked_before_what_was_sent_is_read(self, name: str) -> None:
        assert act(operator("view_subject"), name, "no rule", subject="").status_code == 403

    @pytest.fixture
    def banned(self, rules: None) -> None:
        """After some hits."""
        check("search", SUBJECT, 2)
        for _ in range(4):
            check("login", SUBJECT)

    @pytest.mark.usefixtures("banned")
    def test_a_lift_ends_the_ban(self) -> None:
        act(superuser(), "lift", "login")

        assert peek("login", SUBJECT, cost=0)

    @pytest.mark.usefixtures("banned")
    def test_a_lift_leaves_what_was_counted(self) -> None:
        act(superuser(), "lift", "login")

        assert peek("login", SUBJECT, cost=0).remaining == 0

    @pytest.mark.usefixtures("banned")
    def test_a_reset_forgets_what_was_counted(self) -> None:
        act(superuser(), "reset", "login")

        assert peek("login", SUBJECT).remaining == 2

    @pytest.mark.usefixtures("banned")
    def test_a_reset_of_one_rule_leaves_the_others(self) -> None:
        act(superuser(), "reset", "login")

        assert peek("search", SUBJECT).remaining == 8

    @pytest.mark.parametrize(("rule", "left"), [("*", 10), ("search", 9)], ids=["of all rules", "of one rule"])
    def test_a_reset_of_a_name_forgets_it_at_each_address_if_it_is(self, rule: str, left: int) -> None:
        at_home = login_subject("ann") + "+ip:198.51.100.8"
        for subject in (login_subject("ann"), at_home):
            check("search", subject)

        act(superuser(), "reset", rule, login_subject("ann"))

        assert peek("search", at_home).remaining == left

    @pytest.mark.parametrize(
        ("name", "rule", "words"),
        [
            pytest.param("reset", "*", "Nothing was counted under all rules, so nothing was forgotten.", id="reset"),
            pytest.param("lift", "login", "No ban from rule &quot;login&quot; was in force.", id="lift"),
            pytest.param("clear", "login", "There was no override for rule &quot;login&quot;.", id="clear"),
        ],
    )
    def test_an_action_says_that_there_was_nothing_to_do(self, name: str, rule: str, words: str) -> None:
        client = superuser()
        act(client, name, rule)

        assert words in page(client)

    @pytest.mark.usefixtures("banned")
    @pytest.mark.parametrize(
        ("rule", "admitted"), [("*", [True, True]), ("login", [True, False])], ids=["of all rules", "of one rule"]
    )
    def test_a_lift_ends_the_bans_of_its_rules(self, rule: str, admitted: list[bool], settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"login": LOGIN, "other": LOGIN}}
        ban("other", SUBJECT, "10m")

        act(superuser(), "lift", rule)

        assert [bool(peek(each, SUBJECT, cost=0)) for each in ("login", "other")] == admitted

    @pytest.mark.parametrize("rule", ["api:v2", "two words", "50%", "größer"])
    def test_a_lift_ends_the_ban_of_a_rule_with_any_name(self, rule: str, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {rule: LOGIN}}
        ban(rule, SUBJECT, "10m")

        act(superuser(), "lift", rule)

        assert peek(rule, SUBJECT, cost=0)

    def test_clearing_an_override_leaves_those_of_other_rules(self) -> None:
        for rule in ("api", "login", "search"):
            override(rule=rule)

        act(superuser(), "clear", "login")

        assert [row.rule for row in QuotaOverride.objects.order_by("rule")] == ["api", "search"]

    def test_a_block_holds_at_once_where_an_override_was_to_begin_later(self) -> None:
        override(rule="login", mode="exempt", starts=timezone.now() + timedelta(days=1))

        act(superuser(), "block", "login")

        assert not check("login", SUBJECT)

    @pytest.mark.thorough("slow")
    @pytest.mark.parametrize(
        ("name", "rule", "given", "words"),
        [
            pytest.param(
                "exempt", "*", {"span": "", "reason": ""}, "Exempt: all rules exempt, until it is cleared", id="exempt"
            ),
            pytest.param(
                "block",
                "login",
                {"span": "", "note": "see 7"},
                "Block: login blocked, until it is cleared (spam). see 7",
                id="block",
            ),
            pytest.param(
                "raise",
                "search",
                {"span": "", "reason": ""},
                "Raise for a day: search x2, until it is cleared",
                id="raise",
            ),
            pytest.param(
                "raise",
                "search",
                {"span": "", "factor": "10"},
                "Raise for a day: search x10, until it is cleared (spam)",
                id="raise with a reason",
            ),
            pytest.param("clear", "tiered", {}, "Clear override: Cleared: user:42, tiered: blocked", id="clear"),
            pytest.param(
                "reset", "search", {}, 'Reset: What was counted under rule "search" was forgotten.', id="reset"
            ),
            pytest.param("lift", "login", {}, "Lift ban: 1 ban was lifted.", id="lift"),
        ],
    )
    @pytest.mark.usefixtures("banned")
    def test_the_log_says_what_was_done(self, name: str, rule: str, given: dict[str, str], words: str) -> None:
        client = superuser()
        override(rule="tiered")

        answer = client.post(
            f"{PAGE}action/{name}/",
            {
                "subject": SUBJECT,
                "on": rule,
                "confirmed": "yes",
                "span": "1d",
                "reason": "spam",
                "factor": "2",
                **given,
            },
            follow=True,
        )

        assert LogEntry.objects.get().change_message == words
        assert messages_of(answer) == [("success", words.partition(": ")[2])]

    @pytest.mark.parametrize(
        ("name", "given", "words"),
        [
            pytest.param("exempt", {"reason": ""}, "Exempt: login exempt, until it is cleared", id="neither"),
            pytest.param(
                "block", {"note": "see 7"}, "Block: login blocked, until it is cleared (spam). see 7", id="both"
            ),
            pytest.param("block", {}, "Block: login blocked, until it is cleared (spam)", id="a reason"),
        ],
    )
    def test_the_log_has_the_reason_and_the_note_that_were_given(
        self, name: str, given: dict[str, str], words: str
    ) -> None:
        act(superuser(), name, "login", span="", **given)

        assert LogEntry.objects.get().change_message == words

    @pytest.mark.parametrize(("seconds", "is_right"), [(0, False), (60, True)], ids=["now", "a minute later"])
    def test_an_end_is_in_the_future(self, seconds: int, is_right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django.utils.timezone.now", lambda: datetime(2030, 5, 1, 18, tzinfo=UTC))
        until = datetime(2030, 5, 1, 18, tzinfo=UTC) + timedelta(seconds=seconds)

        form = BlockForm({"span": "", "until": f"{until:%Y-%m-%dT%H:%M}", "reason": "spam"})

        assert form.is_valid() is is_right

    def test_an_action_says_that_it_holds_until_it_is_cleared(self) -> None:
        client = superuser()

        act(client, "block", "login", span="")

        assert "login blocked, until it is cleared (spam)" in page(client)

    def test_an_action_says_until_when_it_holds(self) -> None:
        client = superuser()

        act(client, "block", "login", until="2099-12-04T18:00")

        assert "login blocked, until Dec. 4, 2099, 6 p.m. UTC (spam)" in page(client)

    @pytest.mark.parametrize(
        ("values", "named"),
        [
            pytest.param([{"rule": "search", "mode": "exempt"}], "search", id="an exemption"),
            pytest.param(
                [{"rule": "tiered", "mode": "exempt"}, {"rule": "search", "mode": "rate", "rate": "x2"}],
                "search, tiered",
                id="two by name",
            ),
            pytest.param([{"rule": "search"}], "", id="another block"),
            pytest.param(
                [{"rule": "search", "mode": "exempt", "expires": datetime(2001, 1, 1, tzinfo=UTC)}], "", id="an end"
            ),
            pytest.param([{"rule": "search", "mode": "exempt", "subject": "user:7"}], "", id="that of somebody else"),
        ],
    )
    def test_a_block_of_all_rules_names_those_that_it_leaves(self, values: list[dict[str, Any]], named: str) -> None:
        for each in values:
            override(**each)
        client = superuser()

        act(client, "block")

        said = re.findall(r"takes precedence: ([\w, ]+)", LogEntry.objects.get().change_message)
        assert said == ([named] if named else [])

    def test_a_block_of_one_rule_names_no_others(self) -> None:
        override(rule="search", mode="exempt")

        act(superuser(), "block", "login")

        assert "takes precedence" not in LogEntry.objects.get().change_message

    def test_an_unknown_action_has_no_page(self) -> None:
        assert ask(superuser(), "nothing").status_code == 404

    def test_an_action_on_a_wrong_subject_leads_to_the_search(self) -> None:
        answer = superuser().post(f"{PAGE}action/reset/", {"subject": "ip:nowhere", "confirmed": "yes"}, follow=True)

        assert answer.redirect_chain == [(PAGE, 302)]
        assert 'class="error"' in answer.content.decode()

    @pytest.mark.parametrize(("field", "most"), [("reason", 500), ("note", 2_000)])
    def test_a_form_takes_so_many_characters(self, field: str, most: int) -> None:
        client = superuser()

        assert act(client, "block", **{field: "x" * (most + 1)}).status_code == 200
        assert act(client, "block", **{field: "x" * most}).status_code == 302

    def test_a_block_of_one_rule_holds_at_once(self) -> None:
        act(superuser(), "block", "login")

        assert check("login", SUBJECT).outcomes[0].why == "blocked"
        assert check("search", SUBJECT)

    def test_a_block_of_all_rules_holds_at_once(self) -> None:
        act(superuser(), "block")

        assert not check("login", SUBJECT)
        assert not check("search", SUBJECT)

    def test_a_block_may_have_no_end(self) -> None:
        act(superuser(), "block", "login", span="")

        assert QuotaOverride.objects.get().expires is None

    def test_clearing_an_override_holds_at_once(self) -> None:
        override(rule="login")

        act(superuser(), "clear", "login")

        assert check("login", SUBJECT)

    def test_an_exemption_holds_at_once(self) -> None:
        act(superuser(), "exempt")

        assert check("search", SUBJECT, 1_000)

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("lift", "1 ban was lifted"),
            ("reset", "was forgotten"),
            ("block", "Block: login blocked"),
            ("clear", "Cleared"),
            ("exempt", "(why not)"),
        ],
    )
    @pytest.mark.usefixtures("banned")
    def test_each_action_is_in_the_history_once(self, name: str, words: str) -> None:
        client = superuser()
        if name == "clear":
            override(rule="login")

        act(client, name, "login", reason="why not")

        assert LogEntry.objects.filter(object_id=SUBJECT).count() == 1
        assert words in page(client).split("History")[1]


class TestRaising:
    """Raising multiplies the rates of each rule, and neither replaces nor hides another override."""

    @pytest.fixture(autouse=True)
    def more_rules(self, rules: None, settings: Any) -> None:
        more = {
            **BY_USER,
            "plans": {"rate": {"free": "5/m", "pro": "90/m", "own": None}, "key": "user", "tier": tier},
            "closed": {"rate": "0/m", "key": "user"},
            "free": {"rate": None, "key": "user"},
        }
        settings.QUOTA = {**settings.QUOTA, "STORE": "memory", "RULES": more}

    def rates(self) -> dict[str, str]:
        rows = QuotaOverride.objects.filter(subject=SUBJECT, mode="rate").values_list("rule", "rate")
        return {rule: rate for rule, rate in rows if "whoami" not in rule}

    def test_each_rule_that_limits_the_user_is_raised(self) -> None:
        assert act(superuser(), "raise", factor="5").status_code == 302

        assert self.rates() == dict.fromkeys(("search", "tiered", "odd", "plans"), "x5")

    @pytest.mark.parametrize(("plan", "limit"), [("free", 25), ("pro", 450), ("own", None)])
    def test_each_tier_is_raised(self, plan: str, limit: int | None) -> None:
        act(superuser(), "raise", factor="5")

        assert check("plans", SUBJECT, tier=plan).limit == limit

    def test_an_override_that_another_process_saved_is_left(self) -> None:
        client = superuser()
        ask(client, "raise", "search")

        with patch.object(overrides, "change"):  # this process is not told
            override(rule="search", mode="exempt")

        assert "an override is in force" in ask(client, "raise", "search").content.decode()

    def test_all_rules_are_raised_or_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        results = [DEFAULT, ValidationError("This rate is too high.")]
        monkeypatch.setattr(subject_actions, "set_override", Mock(wraps=set_override, side_effect=results))

        answer = act(superuser(), "raise")

        assert "This rate is too high." in answer.content.decode()
        assert not QuotaOverride.objects.exists()

    def test_a_raise_of_an_address_leaves_its_logins(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "LOGIN": {"5/10m": "ip"}, "RULES": {"signup": BY_USER["signup"]}}
        settings.AUTHENTICATION_BACKENDS = LOGIN_BACKENDS

        act(superuser(), "raise", subject="ip:203.0.113.9", factor="5")

        raised = QuotaOverride.objects.filter(subject="ip:203.0.113.9").values_list("rule", flat=True)
        assert "signup" in raised
        assert not {rule.name for rule in known_login_rules()} & set(raised)

    @has_words(it_admits_nothing="closed (it admits nothing)", it_is_unlimited="free (it is unlimited)")
    def test_the_history_says_why_a_rule_was_not_raised(self, words: str) -> None:
        client = superuser()

        act(client, "raise", factor="5")

        assert words in page(client)

    def test_the_log_leaves_out_a_rule_that_never_limits_a_user(self) -> None:
        act(superuser(), "raise", factor="5")

        assert "signup" not in LogEntry.objects.get().change_message

    def test_the_question_shows_what_each_tier_would_get(self) -> None:
        shown = ask(superuser(), "raise", "plans").content.decode()

        assert ">x2: free 10/m, pro 180/m, own unlimited<" in shown

    def test_the_question_names_the_rates_of_three_rules(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": dict.fromkeys(("a", "b", "c", "d", "e"), "5/m")}

        shown = ask(superuser(), "raise", "*").content.decode()

        assert re.search(r">x2: a \(10/m\), b \(10/m\), c \(10/m\) and \d more<", shown)

    def test_the_question_names_the_one_of_several_rules_that_can_be_raised(self) -> None:
        override()
        override(rule="search", mode="rate", rate="x2")

        assert ">x2: search (20/m; 1000/h)<" in ask(superuser(), "raise", "*").content.decode()

    def test_a_rule_that_admits_nothing_by_one_of_its_limits_is_raised(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"half": "5/m; 0/h"}}

        assert ">x2: 10/m; 0/h<" in ask(superuser(), "raise", "half").content.decode()

    def test_the_log_of_a_raise_of_each_rule_ends_with_the_reason(self) -> None:
        act(superuser(), "raise", "search", span="")

        words = "Raise for a day: search x2, until it is cleared (spam)"
        assert LogEntry.objects.get().change_message == words

    def test_the_question_says_that_a_raise_is_not_possible(self) -> None:
        override(rule="search")

        assert ">x2: not possible<" in ask(superuser(), "raise", "search").content.decode()

    def test_a_raise_of_what_the_rule_does_not_count_is_an_error(self) -> None:
        answer = act(superuser(), "raise", "search", subject="org:7").content.decode()

        assert "No rule can be raised." in answer
        assert not QuotaOverride.objects.exists()

    def test_the_log_says_what_was_raised_and_what_was_not(self) -> None:
        act(superuser(), "raise", factor="5", span="", reason="a sale")

        raised, _, left = LogEntry.objects.get().change_message.partition(". Not raised: ")
        assert re.fullmatch(r"Raise for a day: .*search x5.*, tiered x5.*, until it is cleared \(a sale\)", raised)
        assert "closed (it admits nothing), free (it is unlimited)" in left

    def test_a_rule_that_cannot_be_read_is_not_raised(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"broken": "often"}}

        shown = unescape(ask(superuser(), "raise", "broken").content.decode())

        assert "Not raised: broken (QUOTA[\"RULES\"]['broken']: 'often' is not a rate" in shown

    def test_a_rule_of_failed_logins_is_raised_by_its_name(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "LOGIN": {"5/10m": "ip"}}
        settings.AUTHENTICATION_BACKENDS = LOGIN_BACKENDS
        (rule,) = known_login_rules()

        act(superuser(), "raise", rule.name, subject="ip:203.0.113.9", factor="5")

        assert QuotaOverride.objects.get().rate == "x5"

    def test_another_factor_takes_the_place_of_the_last(self) -> None:
        client = superuser()
        act(client, "raise", factor="5")

        act(client, "raise", "plans", factor="2")

        assert self.rates() == {**dict.fromkeys(("search", "tiered", "odd"), "x5"), "plans": "x2"}

    each_other_override = pytest.mark.parametrize(
        ("values", "why"),
        [
            pytest.param({"rate": "40/m"}, "an override is in force: 40/m", id="a rate"),
            pytest.param({"rate": "+5"}, "an override is in force: +5", id="an addition"),
            pytest.param({"rate": "x2+5"}, "an override is in force: x2+5", id="a raise with an addition"),
            pytest.param({"mode": "blocked"}, "an override is in force: blocked", id="a block"),
            pytest.param(
                {"subject": "user:*", "rate": "40/m"}, "an override is in force: 40/m", id="that of all users"
            ),
            pytest.param(
                {"subject": "*", "rule": "*", "mode": "exempt"},
                "an override is in force: exempt",
                id="that of everybody",
            ),
            pytest.param(
                {"rate": "15/m", "starts": timezone.now() + timedelta(days=1)},
                "its own override would be lost: 15/m",
                id="one that begins later",
            ),
        ],
    )

    @each_other_override
    def test_the_question_says_why_a_rule_is_not_raised(self, values: dict[str, Any], why: str) -> None:
        override(**{"rule": "search", "mode": "rate", **values})

        assert f"Not raised: search ({why})." in ask(superuser(), "raise", "search").content.decode()

    @each_other_override
    def test_it_leaves_another_override(self, values: dict[str, Any], why: str) -> None:
        made = override(**{"rule": "search", "mode": "rate", **values})

        answer = act(superuser(), "raise", "search", factor="5").content.decode()

        assert f"Not raised: search ({why})." in answer
        made.refresh_from_db()
        assert made.rate == values.get("rate", "")

    def test_an_override_of_all_rules_that_begins_later_keeps_no_rule_from_being_raised(self) -> None:
        override(rule="*", mode="rate", rate="15/m", starts=timezone.now() + timedelta(days=1))

        assert "Not raised" not in ask(superuser(), "raise", "search").content.decode()

    @pytest.mark.parametrize(
        "values",
        [
            pytest.param({"rate": "x2"}, id="an earlier raise"),
            pytest.param({"rate": "x2", "starts": datetime(2025, 11, 1, tzinfo=UTC)}, id="a raise since a moment"),
            pytest.param({"rate": "40/m", "expires": timezone.now()}, id="one that has ended"),
        ],
    )
    def test_it_replaces_an_earlier_raise_or_an_ended_override(self, values: dict[str, Any]) -> None:
        override(rule="search", mode="rate", **values)

        act(superuser(), "raise", "search", factor="5")

        assert self.rates() == {"search": "x5"}
