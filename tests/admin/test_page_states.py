"""What each page of the admin says while something is wrong, missing, or there is much of it."""

import re
from datetime import date, timedelta
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib import admin
from django.contrib.admin.templatetags.admin_list import result_headers
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.test import Client
from django.urls import path
from django.utils.text import capfirst

from django_quota import ban, check, counter, slot
from django_quota.features.counters import calls
from django_quota.limiting.flusher import flusher
from django_quota.models import DailyCounter, QuotaOverride
from django_quota.testing import freeze
from tests.admin.markup import faults_of, hints_of
from tests.admin.operators import operator, superuser
from tests.admin.rows import BEGIN, END, override
from tests.admin.texts import NO_ANSWER, below_search, html_of, lines_of, said
from tests.support.databases import OwnReplicaLags
from tests.support.steps import START

API: dict[str, Any] = {"rate": "10/m; 500/h", "key": "ip"}
LOGIN = {"rate": "9/m", "ban": {"after": "9/m", "for": ["10m", "1h"]}}

pytestmark = pytest.mark.usefixtures("database")

urlpatterns = [path("admin/", admin.site.urls)]


def plan(request: HttpRequest) -> str:
    return "free"


@pytest.fixture(autouse=True)
def rules(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__  # no view has a rule
    settings.QUOTA = {**settings.QUOTA, "STORE": "memory", "RULES": {"api": API, "login": LOGIN}}


@pytest.fixture
def client(database: Any) -> Client:
    return superuser()


@pytest.fixture
def no_store(rules: None, settings: Any) -> None:
    """The Redis of the cache does not answer."""
    settings.QUOTA = {name: value for name, value in settings.QUOTA.items() if name != "STORE"}
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "unix:///nowhere/redis.sock"}}


def used(subject: str = "user:7", rule: str = "api", day: date = date(2025, 11, 20), **given: int) -> None:
    DailyCounter.objects.create(
        subject=subject, rule=rule, day=day, **{"allowed": 1_200, "refused": 3, "units": 4_000, **given}
    )


# --- searches ---------------------------------------------------------------------------------------------------------


def test_a_search_that_finds_several_users_offers_each(client: Client) -> None:
    for pk, name in ((7, "ann"), (8, "bob")):
        User.objects.create_user(name, "same@example.org", pk=pk)
    User.objects.filter(pk=8).update(first_name="Robert", last_name="Roe")

    html = html_of(client, "subject/", find="same@example.org")

    assert "<title>Who do you mean? |" in html
    assert lines_of(html) == [
        "Several users have this name.",
        "user:7 [subject/?subject=user%3A7] ann",
        "user:8 [subject/?subject=user%3A8] bob (Robert Roe)",
    ]


def test_a_search_of_usage_that_finds_several_users_leads_to_their_usage(client: Client) -> None:
    for pk, name in ((7, "ann"), (8, "bob")):
        User.objects.create_user(name, "same@example.org", pk=pk)

    assert said(client, "dailycounter/usage/", find="same@example.org") == [
        "Several users have this name.",
        "user:7 [dailycounter/usage/?subject=user%3A7] ann",
        "user:8 [dailycounter/usage/?subject=user%3A8] bob",
    ]


@pytest.mark.parametrize("url", ["subject/", "dailycounter/usage/"])
def test_a_search_for_what_cannot_be_a_subject_says_why(client: Client, url: str) -> None:
    assert said(client, url, find="ip:nowhere") == [
        "'ip:nowhere' is not an IP address. Use, for example, 'ip:203.0.113.9'.",
        "Find a user, an address or a subject",
        "{find=} Find",
        (
            "A user's name, e-mail or key; an IP address (IPv6 stands for its network); a subject such as "
            "user:42 or global ; or a value, as in post:phone=+1555 or header:X-Api-Key=abc , of which only "
            "the digest is looked up."
        ),
    ]


def test_an_empty_search_says_that_nobody_was_refused(client: Client) -> None:
    assert said(client, "subject/") == [
        "Find a user, an address or a subject",
        "{find=} Find",
        (
            "A user's name, e-mail or key; an IP address (IPv6 stands for its network); a subject such as "
            "user:42 or global ; or a value, as in post:phone=+1555 or header:X-Api-Key=abc , of which only "
            "the digest is looked up."
        ),
        "Nobody was refused recently.",
    ]


def test_the_search_of_usage_lists_nobody(client: Client) -> None:
    assert below_search(said(client, "dailycounter/usage/")) == []


def test_the_search_lists_users_by_name(client: Client) -> None:
    User.objects.create_user("ann", pk=7)
    with freeze(START):
        check("0/m", "user:7", name="closed")

    assert below_search(said(client, "subject/")) == [
        "Refused last",
        "Refused last",
        "Subject | Rule | When",
        "ann (user:7) [subject/?subject=user%3A7] | closed [quotaoverride/rule/?name=closed] | 04:40:00 UTC",
    ]


@pytest.mark.usefixtures("no_store")
def test_the_search_works_without_the_store(client: Client) -> None:
    assert below_search(said(client, "subject/")) == [
        "Nobody was refused recently.",
    ]


# --- bans -------------------------------------------------------------------------------------------------------------


def test_the_form_of_a_ban_says_what_it_does(client: Client) -> None:
    assert said(client, "ban/set/?subject=user:7&rule=login&reason=spam") == [
        (
            "From the next request on, every request of the subject is refused, by every process and while "
            "the store is down. The block ends by itself, or when you lift it here."
        ),
        "Subject, rule, end and reason",
        "Subject: (required)",
        (
            "{subject=user:7} A user's name or e-mail address, an IP address, a network such as "
            "198.51.100.0/24, or a subject. Rule:"
        ),
        "all rules",
        "api",
        "* login",
        "For:",
        "an hour",
        "* a day",
        "seven days",
        "until it is cleared",
        "Or until:",
        "{until=} A moment of your own. Reason: (required)",
        "{reason=spam} Tells others why. Note:",
        "More for the history, such as a link to a report. Ban",
        "No, take me back [ban/]",
    ]


def test_the_form_of_a_ban_says_what_is_wrong(client: Client) -> None:
    lines = said(
        client,
        "ban/set/",
        subject="ip:127.0.0.1",
        rule="login",
        span="7d",
        until="2001-01-01T00:00",
        reason="",
        note="n",
    )

    assert lines == [
        (
            "From the next request on, every request of the subject is refused, by every process and while "
            "the store is down. The block ends by itself, or when you lift it here."
        ),
        "Please correct the errors below.",
        "Subject, rule, end and reason",
        "Subject: (required)",
        (
            "{subject=ip:127.0.0.1} A user's name or e-mail address, an IP address, a network such as "
            "198.51.100.0/24, or a subject. Rule:"
        ),
        "all rules",
        "api",
        "* login",
        "For:",
        "an hour",
        "a day",
        "* seven days",
        "until it is cleared",
        "It must be in the future.",
        "Or until:",
        "{until=2001-01-01T00:00} A moment of your own. This field is required.",
        "Reason: (required)",
        "{reason=} Tells others why. Note:",
        "n More for the history, such as a link to a report. Ban",
        "No, take me back [ban/]",
    ]


def test_the_form_of_a_ban_of_yourself_asks_for_a_tick(client: Client) -> None:
    lines = said(client, "ban/set/", subject="ip:127.0.0.1", rule="login", span="7d", reason="spam")

    assert lines[:5] == [
        (
            "From the next request on, every request of the subject is refused, by every process and while "
            "the store is down. The block ends by itself, or when you lift it here."
        ),
        (
            "This blocks you: your own requests count for ip:127.0.0.1. If you lock yourself out, this "
            "command lifts it: manage.py quota_override clear ip:127.0.0.1 --rule login"
        ),
        "{_locks_me_out=1} Block it although it blocks me",
        "Subject, rule, end and reason",
        "Subject: (required)",
    ]


def test_the_list_of_bans_says_what_is_wrong_with_a_search(client: Client) -> None:
    lines = said(client, "ban/", find="ip:nowhere")

    assert lines[:1] + below_search(lines) == [
        "'ip:nowhere' is not an IP address. Use, for example, 'ip:203.0.113.9'.",
        "Ban… [ban/set/]",
        "Bans in force",
        "The memory store keeps no list of bans. Find those of a subject, in the process that answers.",
        "History",
        "There are no events yet.",
    ]


def test_the_list_of_bans_offers_the_rules_that_ban(client: Client) -> None:
    lines = said(client, "ban/?rule=login")

    assert lines[: len(lines) - len(below_search(lines))] == [
        "Find a user, an address or a subject",
        "{find=} all rules",
        "* login",
        "Find",
        (
            "A user's name, e-mail or key, or how they begin; an IP address; a subject such as user:42 ; a "
            "part of one; or a value, as in post:phone=+1555 . Empty: all."
        ),
    ]


@pytest.mark.usefixtures("no_store")
def test_the_list_of_bans_has_only_blocks_without_the_store(client: Client) -> None:
    override("user:7", reason="spam", starts=BEGIN)

    lines = said(client, "ban/")

    assert lines[:2] + below_search(lines) == [
        f"The bans cannot be read now. {NO_ANSWER}",
        "Find a user, an address or a subject",
        "Ban… [ban/set/]",
        "Bans in force",
        "{rule=} Blocks in force, the newest first, then bans of rules, the first to end first",
        "Subject | Rule | Since | Until | Kind | Reason",
        (
            '{ban=["user:7", "*", true]} user:7 [subject/?subject=user%3A7] | all rules | Nov. 1, 2025, '
            "midnight UTC | never | Block | spam"
        ),
        "Lift selected bans",
        "{all=1} Lift the one ban of this list",
        "History",
        "Bans that began recently, newest first",
        "Subject | Rule | Since | Until | Kind | Reason | State",
        (
            "user:7 [subject/?subject=user%3A7] | all rules | Nov. 1, 2025, midnight UTC | never | Block | "
            "spam | in force"
        ),
    ]


@pytest.mark.usefixtures("redis_cache")
def test_the_list_of_bans_is_empty_where_redis_has_none(client: Client, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "STORE": "redis"}

    assert below_search(said(client, "ban/")) == [
        "Ban… [ban/set/]",
        "Bans in force",
        "Nobody is banned.",
        "History",
        "There are no events yet.",
    ]


@pytest.mark.usefixtures("redis_cache")
def test_the_list_of_bans_in_redis_names_who_is_banned_and_who_banned_them(client: Client, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "STORE": "redis"}
    ann, bob = User.objects.create_user("ann", pk=7), User.objects.create_user("bob", pk=8)
    override("user:7", starts=BEGIN, expires=BEGIN + timedelta(days=1))
    with freeze(START):
        ban("login", ann, "20m", reason="fast", by=bob)

    lines = below_search(said(client, "ban/?subject=user:7"))

    moment = r"[A-Z][a-z]+\.? \d+, 20\d\d, (?:[\d:]+ [ap]\.m\.|noon|midnight) UTC"
    now = re.compile(rf"{moment}(?= \| Nov\. 21, 2025, 5|; older)")  # of the server
    assert [now.sub("now", line) for line in lines] == [
        "Only bans of: ann (user:7) [subject/?subject=user%3A7] . Show all [ban/]",
        "Ban… [ban/set/]",
        "Bans in force",
        "{subject=user:7} {rule=} Blocks in force, the newest first, then bans of rules, the first to end first",
        "Subject | Rule | Since | Until | Kind | Reason",
        (
            '{ban=["user:7", "login"]} ann (user:7) [subject/?subject=user%3A7] | login '
            "[quotaoverride/rule/?name=login] | now | Nov. 21, 2025, 5 a.m. UTC | First ban | fast (by bob)"
        ),
        "Lift selected bans",
        "{all=1} Lift the one ban of this list",
        "History",
        (
            "From the events since now; older ones are not read. The page of a subject shows who lifted a "
            "ban in the admin."
        ),
        "Bans that began recently, newest first",
        "Subject | Rule | Since | Until | Kind | Reason | State",
        (
            "ann (user:7) [subject/?subject=user%3A7] | login [quotaoverride/rule/?name=login] | now | Nov. "
            "21, 2025, 5 a.m. UTC | First ban | fast (by bob) | in force"
        ),
        (
            "ann (user:7) [subject/?subject=user%3A7] | all rules | Nov. 1, 2025, midnight UTC | Nov. 2, "
            "2025, midnight UTC | Block | - | ended"
        ),
    ]


def test_the_list_of_bans_says_that_there_are_no_events(client: Client, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "EVENTS": 0}

    assert below_search(said(client, "ban/")) == [
        "Ban… [ban/set/]",
        "Bans in force",
        "The memory store keeps no list of bans. Find those of a subject, in the process that answers.",
        "History",
        "EVENTS is 0, so no events say when bans began.",
    ]


def test_a_question_about_one_ban_keeps_the_filter(client: Client) -> None:
    given = {"subject": "user:7", "rule": "login", "ban": '["user:7","login"]'}

    assert said(client, "ban/lift/", **given) == [
        "This ends 1 ban. What was counted stays. The next ban counts as the first again.",
        "user:7 [subject/?subject=user%3A7], login",
        '{subject=user:7} {rule=login} {bans=[["user:7", "login", false]]} {confirmed=yes} Yes: lift 1 ban',
        "No, take me back [ban/?subject=user%3A7&rule=login]",
    ]


def test_a_question_about_many_bans_names_twenty(client: Client) -> None:
    QuotaOverride.objects.bulk_create(QuotaOverride(subject=f"org:{number}", mode="blocked") for number in range(22))

    lines = said(client, "ban/lift/", all="1")

    assert [lines[0], *lines[20:22], *lines[23:]] == [
        "This ends 22 bans. What was counted stays. The next ban of each subject counts as the first again.",
        "org:2 [subject/?subject=org%3A2], all rules",
        "and 2 more",
        "No, take me back [ban/]",
    ]


# --- overrides --------------------------------------------------------------------------------------------------------


def test_the_list_of_overrides_shows_each(client: Client) -> None:
    override(
        "user:7",
        "api",
        "rate",
        rate="20/m",
        reason="because " * 10,
        label="customers",
        created_by="root",
        starts=BEGIN,
        expires=END,
        pk=71,
    )
    override("*", pk=72)
    override("ip:198.51.100.0/24", mode="exempt", expires=BEGIN, pk=73)

    lines = said(client, "quotaoverride/")

    assert [line for line in lines if line.startswith("{_selected_action=")] == [
        (
            "{_selected_action=72} | everybody [quotaoverride/72/change/] | all rules | blocked | active | "
            "- | label - | set by -"
        ),
        (
            "{_selected_action=73} | ip:198.51.100.0/24 [quotaoverride/73/change/] | all rules | exempt | "
            "ended until 11/01/2025 midnight UTC | - | label - | set by -"
        ),
        (
            "{_selected_action=71} | user:7 [quotaoverride/71/change/] | api | 20/m | active : Show limits "
            "[subject/?subject=user%3A7] from 11/01/2025 midnight UTC until 01/02/2099 midnight UTC | "
            "because because because because because because because bec… | label customers | set by root"
        ),
    ]


@pytest.mark.parametrize(
    ("url", "headings"),
    [
        ("quotaoverride/", ["Subject", "Rule", "Instead", "State", "Reason", "Label", "Set by"]),
        ("dailycounter/", ["Day", "Subject", "Rule", "Allowed", "Refused", "Share refused", "Units"]),
    ],
)
def test_the_columns_of_a_list_have_headings(client: Client, url: str, headings: list[str]) -> None:
    page = client.get(f"/admin/django_quota/{url}").context["cl"]

    assert [capfirst(str(each["text"])) for each in result_headers(page)][1:] == headings


def test_the_list_of_overrides_offers_each_state_and_mode(client: Client) -> None:
    override("user:7", label="customers")

    lines = said(client, "quotaoverride/")

    assert [line for line in lines if "[?state=" in line or "[?mode" in line or "[?label" in line] == [
        "another rate [?mode__exact=rate]",
        "exempt [?mode__exact=exempt]",
        "blocked [?mode__exact=blocked]",
        "reports only [?mode__exact=shadow]",
        "active [?state=active]",
        "not yet begun [?state=pending]",
        "ended [?state=ended]",
        "without an end [?state=permanent]",
        "customers [?label=customers]",
    ]


def test_the_form_of_an_override_explains_its_fields(client: Client) -> None:
    form = client.get("/admin/django_quota/quotaoverride/add/").context["adminform"].form

    assert {name: str(field.help_text) for name, field in form.fields.items()} == {
        "subject": (
            "Who this applies to: a user's name or e-mail address, a subject such as user:42 or ip:203.0.113.9, a "
            "network such as ip:198.51.100.0/24, a kind such as user:*, or * for everybody."
        ),
        "rule": "A rule's name; * for all rules. An override for a single rule takes precedence.",
        "mode": "",
        "rate": "100/m, or 10/s; 500/h; +500 adds units, x2 doubles. Only for the mode another rate.",
        "starts": "Empty: at once.",
        "expires": "Empty: never.",
        "reason": "",
        "label": "The list that it belongs to, such as crawlers.",
    }
    assert form.fields["rule"].widget.attrs["list"] == "quota-known-rules"


def test_the_form_of_a_new_override_says_how_to_see_a_preview(client: Client) -> None:
    assert said(client, "quotaoverride/add/")[-3:-1] == [
        "What this override would do now",
        "Enter a subject to see what changes for it before you save.",
    ]


def test_the_form_of_an_override_without_effect_asks_for_a_tick(client: Client) -> None:
    lines = said(client, "quotaoverride/add/", subject="nobody", rule="apii", mode="blocked")

    assert lines[:4] == [
        "This override would have no effect:",
        (
            "Nobody's name or e-mail begins with 'nobody'. No request has the subject \"nobody\". Use, for "
            "example, user:<key>, ip:<address> or global. It works only where your code passes this subject "
            "itself."
        ),
        '"apii" is not a rule of the settings or the views. Did you mean "api"?',
        "{_anyway=1} Save it anyway",
    ]


def test_the_form_of_a_block_of_yourself_asks_for_a_tick(client: Client) -> None:
    lines = said(client, "quotaoverride/add/", subject="*", rule="*", mode="blocked")

    assert lines[:2] == [
        (
            "This blocks everybody, and so you. If you lock yourself out, this command lifts it: manage.py "
            "quota_override clear '*'"
        ),
        "{_locks_me_out=1} Block it although it blocks me",
    ]


def test_the_form_of_a_saved_override_shows_what_it_does(client: Client) -> None:
    override("user:7", "login", "exempt", pk=71)

    lines = said(client, "quotaoverride/71/change/")

    assert lines[lines.index("What this override would do now") : -1] == [
        "What this override would do now",
        "user:7: exempt :",
        "Each rule without this override, and with it",
        "Rule | Without it | With this override",
        (
            "login | 9/m: 0 of 9 used, 9 left; the next hit is admitted | 9/m: 0 of 9 used, 9 left; the "
            "next hit is admitted (exempt by an override)"
        ),
    ]
    assert lines[-1].startswith("{_preview=Preview} ")


def test_whoever_may_only_view_an_override_has_no_preview(database: Any) -> None:
    override("user:7", "login", "exempt", pk=71)

    lines = said(operator("view_quotaoverride"), "quotaoverride/71/change/")

    assert [line for line in lines if "preview" in line.lower() or "would do" in line] == []


PREVIEW = "quotaoverride/preview/"


def test_a_live_preview_of_a_wrong_form_lists_its_errors(client: Client) -> None:
    form = {"subject": "ip:nowhere", "rule": "api", "mode": "rate", "rate": "many"}

    assert said(client, PREVIEW, **form) == [
        "What this override would do now",
        "Complete the form to see a preview.",
        "Subject: 'ip:nowhere' is not an IP address. Use, for example, 'ip:203.0.113.9'.",
        (
            "Rate: 'many' is not a rate: the count is not a whole number from 0 up (at position 0). Write a "
            "count in digits alone, a slash and a window: '10/m', '5/30s', '1000 per day', or several: "
            "'10/s; 500/h'."
        ),
    ]


def test_a_preview_of_a_form_that_contradicts_itself_lists_its_errors(client: Client) -> None:
    form = {"subject": "user:7", "rule": "api", "mode": "exempt", "rate": "9/m"}

    assert said(client, PREVIEW, **form) == [
        "What this override would do now",
        "Complete the form to see a preview.",
        'Rate: A rate belongs to the mode "another rate", and to no other.',
    ]


def test_a_preview_of_an_override_that_has_ended_says_so(client: Client) -> None:
    form = {
        "subject": "ip:192.0.2.1",
        "rule": "login",
        "mode": "exempt",
        "expires_0": "2001-01-02",
        "expires_1": "10:00",
    }

    assert said(client, PREVIEW, **form) == [
        "What this override would do now",
        "ip:192.0.2.1: exempt : the override has ended, so it changes nothing.",
        "1 limit stays as it is",
        "login: Nothing changes, since this override has ended.",
    ]


def test_a_preview_of_an_override_that_starts_later_says_when(client: Client) -> None:
    form = {"subject": "ip:192.0.2.1", "rule": "login", "mode": "exempt", "starts_0": "2099-01-02", "starts_1": "10:00"}

    assert said(client, PREVIEW, **form) == [
        "What this override would do now",
        "ip:192.0.2.1: exempt , from Jan. 2, 2099, 10 a.m. UTC :",
        "Each rule now, and with this override",
        "Rule | Now | With this override",
        (
            "login | 9/m: 0 of 9 used, 9 left; the next hit is admitted | 9/m: 0 of 9 used, 9 left; the "
            "next hit is admitted (exempt by an override)"
        ),
    ]


def test_a_preview_of_a_rule_that_nobody_knows_says_where_it_applies(client: Client) -> None:
    assert said(client, PREVIEW, subject="ip:192.0.2.1", rule="of-a-call", mode="exempt") == [
        "What this override would do now",
        "ip:192.0.2.1: exempt :",
        '"of-a-call" is not a rule of the settings or the views.',
        "No rule with this name is known. The override applies where a decorator or a call uses the name.",
    ]


def test_a_preview_of_a_saved_override_compares_with_none(client: Client) -> None:
    override("ip:192.0.2.1", "login", "rate", rate="20/m", pk=71)
    form = {"subject": "ip:192.0.2.1", "rule": "*", "mode": "rate", "rate": "50/m"}
    override("ip:192.0.2.1", "api", "rate", rate="7/m", pk=72)

    assert said(client, f"{PREVIEW}71/", **form) == [
        "What this override would do now",
        "ip:192.0.2.1: 50/m :",
        "Each rule without this override, and with it",
        "Rule | Without it | With this override",
        (
            "login | 9/m: 0 of 9 used, 9 left; the next hit is admitted | 50/m: 0 of 50 used, 50 left; the "
            "next hit is admitted (by an override)"
        ),
        "1 limit stays as it is",
        "api: Nothing changes, since this rule has an override of its own.",
    ]


def test_a_preview_of_a_group_that_nobody_was_in_says_so(client: Client) -> None:
    assert said(client, PREVIEW, subject="org:*", rule="api", mode="blocked") == [
        "What this override would do now",
        "org:*: blocked :",
        'No request has the subject "org:*" under the rule "api", which limits "ip".',
        (
            "The store knows none of these by name: none of them was refused today or is in the last "
            "events. So there is no preview."
        ),
    ]


def test_a_preview_of_a_group_shows_the_tiers_of_each_subject(client: Client, settings: Any) -> None:
    plans = {"rate": {"free": "1/m", "pro": "9/m"}, "key": "user", "tier": plan}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"plans": plans, "login": LOGIN}}
    override("user:7", "login", "rate", rate="20/m")
    with freeze(START):
        for subject in ("user:7", "user:8"):
            check("plans", subject, tier="free")
            check("plans", subject, tier="free")

    assert said(client, PREVIEW, subject="user:*", rule="*", mode="rate", rate="20/m") == [
        "What this override would do now",
        "user:*: 20/m :",
        (
            "2 of these subjects were refused today, or appear in the last events. With this override, the "
            "next hits of 0 of them are refused."
        ),
        "Each rule now, and with this override",
        "Subject | Rule | Now | With this override",
        (
            "user:7 | plans | free: 1/m: 1 of 1 used, 0 left; the next hit is admitted in 60 seconds | "
            "20/m: 1 of 20 used, 19 left; the next hit is admitted (by an override)"
        ),
        (
            "user:8 | plans | free: 1/m: 1 of 1 used, 0 left; the next hit is admitted in 60 seconds | "
            "20/m: 1 of 20 used, 19 left; the next hit is admitted (by an override)"
        ),
        (
            "user:8 | login | 9/m: 0 of 9 used, 9 left; the next hit is admitted | 20/m: 0 of 20 used, 20 "
            "left; the next hit is admitted (by an override)"
        ),
        "1 limit stays as it is",
        "user:7, login: Nothing changes, since this rule has an override of its own.",
    ]


def test_the_question_about_one_override_is_in_the_singular(client: Client) -> None:
    override("user:7", "login", "exempt", starts=BEGIN, expires=END, pk=71)

    lines = said(client, "quotaoverride/", action="expire_selected", _selected_action="71")

    assert lines[1] == "1 override is selected: 1 active, 0 not yet begun, 0 ended."


@pytest.mark.parametrize(
    ("number", "words"),
    [
        pytest.param(30, [], id="as many as are shown"),
        pytest.param(31, ["And 1 more row."], id="one more"),
        pytest.param(32, ["And 2 more rows."], id="two more"),
    ],
)
def test_a_preview_says_how_many_changes_it_leaves_out(
    client: Client, settings: Any, number: int, words: list[str]
) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {f"rule{each}": "9/m" for each in range(number)}}

    lines = said(client, PREVIEW, subject="ip:192.0.2.1", rule="*", mode="blocked")

    assert [line for line in lines if "more row" in line] == words


def test_a_preview_counts_the_limits_that_stay_as_they_are(client: Client) -> None:
    for rule in ("api", "login"):
        override("ip:192.0.2.1", rule, "rate", rate="7/m")

    assert said(client, PREVIEW, subject="ip:192.0.2.1", rule="*", mode="rate", rate="50/m")[2:] == [
        "2 limits stay as they are",
        "api: Nothing changes, since this rule has an override of its own.",
        "login: Nothing changes, since this rule has an override of its own.",
    ]


def test_a_preview_says_why_a_rule_cannot_be_read(client: Client, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"broken": {"rate": "often"}}}

    assert said(client, PREVIEW, subject="ip:192.0.2.1", rule="*", mode="blocked") == [
        "What this override would do now",
        "ip:192.0.2.1: blocked :",
        (
            "broken: QUOTA[\"RULES\"]['broken']: 'often' is not a rate: the count is not a whole number from "
            "0 up (at position 0). Write a count in digits alone, a slash and a window: '10/m', '5/30s', "
            "'1000 per day', or several: '10/s; 500/h'."
        ),
    ]


@pytest.mark.usefixtures("no_store")
def test_there_is_no_preview_without_the_store(client: Client) -> None:
    assert said(client, PREVIEW, subject="ip:192.0.2.1", rule="api", mode="exempt") == [
        "What this override would do now",
        f"There is no preview now. {NO_ANSWER}",
    ]


# --- rules ------------------------------------------------------------------------------------------------------------


def test_the_list_of_rules_may_be_empty(client: Client, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {}}

    assert said(client, "knownrule/") == [
        "There are none.",
    ]


def test_the_list_of_rules_says_what_is_wrong_with_one(client: Client, settings: Any) -> None:
    rules = {"broken": {"rate": "often"}, "free": {"rate": None}, "api": API}
    settings.QUOTA = {**settings.QUOTA, "RULES": rules}

    assert said(client, "knownrule/") == [
        "Rules",
        "Rule | Rate | Key | Where",
        'api [quotaoverride/rule/?name=api] | 10/m; 500/h | ip | QUOTA["RULES"]["api"]',
        (
            "broken [quotaoverride/rule/?name=broken] | QUOTA[\"RULES\"]['broken']: 'often' is not a rate: "
            "the count is not a whole number from 0 up (at position 0). Write a count in digits alone, a "
            "slash and a window: '10/m', '5/30s', '1000 per day', or several: '10/s; 500/h'. | - | "
            'QUOTA["RULES"]["broken"]'
        ),
        'free [quotaoverride/rule/?name=free] | unlimited | ip | QUOTA["RULES"]["free"]',
    ]


def test_the_page_of_a_rule_says_what_is_wrong_with_it(client: Client, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"broken": {"rate": "often"}}}

    assert said(client, "quotaoverride/rule/?name=broken")[:4] == [
        "What the settings or the view say",
        'QUOTA["RULES"]["broken"]',
        (
            "QUOTA[\"RULES\"]['broken']: 'often' is not a rate: the count is not a whole number from 0 up (at "
            "position 0). Write a count in digits alone, a slash and a window: '10/m', '5/30s', '1000 per "
            "day', or several: '10/s; 500/h'."
        ),
        "What holds now",
    ]


def test_the_page_of_a_rule_shows_all_that_is_set(client: Client, settings: Any) -> None:
    rule = {
        **API,
        "algorithm": "token_bucket",
        "match": ["/api/", "/v2/"],
        "exclude": "/api/health/",
        "cost": 2,
        "shadow": True,
        "ban": {"after": "20/m", "for": "10m"},
    }
    settings.QUOTA = {**settings.QUOTA, "RULES": {"api": rule, "free": {"rate": None}}}

    lines = said(client, "quotaoverride/rule/?name=api")

    assert lines[: lines.index("What holds now")] == [
        "What the settings or the view say",
        'QUOTA["RULES"]["api"]',
        "Rate 10/m; 500/h",
        "Key ip",
        "Match /api/, /v2/",
        "Exclude /api/health/",
        "Algorithm token bucket",
        "cost 2",
        "shadow True",
        "ban after 20 refusals in 1 minute, for 10 minutes",
    ]


def test_an_override_of_everybody_for_another_rule_does_not_change_this_one(client: Client) -> None:
    override("*", "login", "exempt", pk=81)
    override("*", "*", "shadow", starts=BEGIN, pk=82)

    lines = said(client, "quotaoverride/rule/?name=api")

    assert lines[lines.index("What holds now") :] == [
        "What holds now",
        "For everybody without an override of their own: reports only",
        "0 subjects have overrides of their own. All overrides of this rule [quotaoverride/?rule=api]",
        "For everybody:",
        "Another rate [quotaoverride/add/?subject=*&rule=api&mode=rate]",
        "Let it only report [quotaoverride/add/?subject=*&rule=api&mode=shadow]",
        "Switch it off [quotaoverride/add/?subject=*&rule=api&mode=exempt]",
        "Everybody, kinds of subjects and networks",
        "Subject | Rule | Instead | Expires | Reason",
        "everybody [quotaoverride/82/change/] | all rules | reports only | never | -",
        "Recently",
        "Nothing has been checked today.",
    ]


def test_an_override_of_everybody_that_has_ended_can_be_changed(client: Client) -> None:
    override("*", "api", "exempt", expires=BEGIN, pk=81)

    lines = said(client, "quotaoverride/rule/?name=api")

    assert lines[lines.index("What holds now") :] == [
        "What holds now",
        "What the settings or the view say holds for everybody without an override.",
        "0 subjects have overrides of their own. All overrides of this rule [quotaoverride/?rule=api]",
        "For everybody:",
        "Change [quotaoverride/81/change/]",
        "Back to what the settings say [quotaoverride/81/delete/]",
        "Recently",
        "Nothing has been checked today.",
    ]


@pytest.mark.parametrize("permission", ["view_quotaoverride", "change_quotaoverride"])
def test_whoever_may_only_view_a_rule_has_no_links_to_change_it(database: Any, permission: str) -> None:
    lines = said(operator(permission), "quotaoverride/rule/?name=api")

    assert lines[lines.index("What holds now") :] == [
        "What holds now",
        "What the settings or the view say holds for everybody without an override.",
        "0 subjects have overrides of their own. All overrides of this rule [quotaoverride/?rule=api]",
    ]


@pytest.mark.usefixtures("no_store")
def test_the_page_of_a_rule_says_that_the_store_does_not_answer(client: Client) -> None:
    lines = said(client, "quotaoverride/rule/?name=api")

    assert lines[lines.index("Recently") :] == [
        "Recently",
        f"The store does not answer. {NO_ANSWER}",
    ]


def test_the_page_of_a_rule_names_the_users_that_it_refused(client: Client) -> None:
    User.objects.create_user("ann", pk=7)
    with freeze(START):
        check("0/m", "user:7", name="closed")
        check("1/m", "user:8", name="closed", shadow=True)
        check("1/m", "user:8", name="closed", shadow=True)

    lines = said(client, "quotaoverride/rule/?name=closed")

    assert lines[lines.index("Recently") :] == [
        "Recently",
        "Checks today 3",
        "Refused 1 shadow: 1",
        "Last hour 03:41 04:40 UTC peak: 3",
        "Refused last",
        "Subject | Time",
        "ann (user:7) [subject/?subject=user%3A7] | 04:40:00 UTC",
    ]


# --- subjects ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_store")
def test_the_page_of_a_subject_has_its_overrides_without_the_store(client: Client) -> None:
    override("user:7", starts=BEGIN, created_by="root", reason="spam", pk=71)

    assert below_search(said(client, "subject/?subject=user:7")) == [
        f"The limits cannot be read now. {NO_ANSWER}",
        "{subject=user:7} Usage by day [dailycounter/usage/?subject=user%3A7]",
        "Events [overview/events/?subject=user%3A7]",
        "Add an override [quotaoverride/add/?subject=user%3A7]",
        "All rules",
        "All rules: blocked , by root: spam",
        "{on=*} Raise for a day",
        "{on=*} Exempt",
        "{on=*} Reset",
        "{on=*} Block",
        "{subject=user:7} Overrides",
        "Overrides that concern this subject, the most specific first",
        "Rule | Subject | Instead | Holds for | State | Starts | Expires | Reason | By | Actions",
        (
            "all rules [quotaoverride/71/change/] | user:7 | blocked | all rules | active | Nov. 1, 2025, "
            "midnight UTC | never | spam | root | {on=*} Clear override"
        ),
        "History",
        "Nothing yet.",
    ]


def test_the_page_of_a_subject_does_not_say_that_no_rule_counts_it_where_one_cannot_be_read(
    client: Client, settings: Any
) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"broken": {"rate": "often"}}}

    assert below_search(said(client, "subject/?subject=org:7"))[:2] == [
        "{subject=org:7} Right now",
        "No limit on this page refuses the next hit.",
    ]


def test_the_page_of_a_subject_counts_the_rules_that_are_folded(client: Client, settings: Any) -> None:
    rules = {"a": "9/m", "b": "9/m", "c": {**API}, "d": {**API}, "e": {"rate": "often"}, "f": {"rate": "never"}}
    settings.QUOTA = {**settings.QUOTA, "RULES": rules}

    lines = said(client, "subject/?subject=user:7")

    assert [line for line in lines if "rules" in line and line[0].isdigit()] == [
        "2 unused rules",
        "2 rules that cannot be read",
        "2 rules that count others",
    ]


def test_the_page_of_nobody_says_how_to_write_a_subject(client: Client) -> None:
    assert below_search(said(client, "subject/?subject=nobody")) == [
        (
            "Nobody's name or e-mail begins with 'nobody'. No request has the subject \"nobody\". Use, for "
            "example, user:<key>, ip:<address> or global. It works only where your code passes this subject "
            "itself."
        ),
        "{subject=nobody} Usage by day [dailycounter/usage/?subject=nobody]",
        "Events [overview/events/?subject=nobody]",
        "Add an override [quotaoverride/add/?subject=nobody]",
        "{subject=nobody} Overrides",
        "There are none.",
        "History",
        "Nothing yet.",
    ]


def test_the_page_of_a_user_has_a_link_to_the_user(client: Client) -> None:
    User.objects.create_user("ann", pk=7)

    lines = said(client, "subject/?subject=user:7")

    assert [line for line in lines if line.startswith(("ann", "user:7", "User", "Failed logins"))] == [
        "User ann [/admin/auth/user/7/change/]",
    ]


def test_the_page_of_a_subject_shows_the_override_of_all_rules(client: Client) -> None:
    override("*", expires=END, created_by="root", reason="an attack", pk=71)

    lines = below_search(said(client, "subject/?subject=ip:192.0.2.1"))

    assert lines[: lines.index("Rules")] == [
        "{subject=ip:192.0.2.1} Right now",
        (
            "Refused by api, login until Jan. 2, 2099 (blocked by an override). Usage by day "
            "[dailycounter/usage/?subject=ip%3A192.0.2.1]"
        ),
        "Events [overview/events/?subject=ip%3A192.0.2.1]",
        "Add an override [quotaoverride/add/?subject=ip%3A192.0.2.1]",
        "All rules",
        "All rules (everybody): blocked , until Jan. 2, 2099, midnight UTC , by root: an attack",
        "{on=*} Raise for a day",
        "{on=*} Exempt",
        "{on=*} Reset",
        "{on=*} Block",
    ]


def test_the_page_of_a_subject_shows_tiers_slots_and_credits(
    client: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = {"rate": {"free": "1/m", "pro": "9/m"}, "key": "user", "tier": plan}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"plans": plans}}
    minutes = counter("minutes", group="shop")
    clicks = counter("clicks")
    monkeypatch.setattr(calls, "made", {("minutes", "shop", None): minutes, ("clicks", None, None): clicks})
    with freeze(START):
        check("plans", "user:7", tier="free")
        check("plans", "user:7", tier="free")
        minutes.grant("user:7", 1_500, id="order-17", expires="1h")
        minutes.grant("user:7", 20, id="order-18", expires="2h")
        clicks.incr("user:7", 2_000)
        for lease in (30, 50):
            slot("export", 2, lease, subject="user:7").acquire()
        flusher.flush()

    lines = below_search(said(client, "subject/?subject=user:7"))

    assert lines == [
        "{subject=user:7} Right now",
        (
            "Refused by plans until 04:41:00 UTC. Refused by export until 04:40:30 UTC (all slots are in "
            "use: 2 of 2; until then at most). Usage by day [dailycounter/usage/?subject=user%3A7]"
        ),
        "Events [overview/events/?subject=user%3A7]",
        "Add an override [quotaoverride/add/?subject=user%3A7]",
        "All rules",
        "{on=*} Raise for a day",
        "{on=*} Exempt",
        "{on=*} Reset",
        "{on=*} Block",
        "Rules",
        "plans [quotaoverride/rule/?name=plans]",
        (
            "free: 1/m by sliding window 1 of 1 used, 0 left 1 of 1 used, 0 left the next hit is admitted "
            "in 60 seconds, Nov. 21, 2025, 4:41 a.m. UTC ; fully available in 60 seconds"
        ),
        "Change… plans",
        "{on=plans} Raise for a day plans",
        "{on=plans} Exempt plans",
        "{on=plans} Reset plans",
        "{on=plans} Block plans",
        "{subject=user:7} Recent refusals",
        "Refusals and bans among the newest events, newest first",
        "When | Rule | What | Request | Limit | Until",
        "04:40:00 UTC | plans | refused | - | 1 | 04:41:00 UTC",
        "Overrides",
        "There are none.",
        "Slots in use",
        "Slots in use",
        "Slot | Ends in | Ends at | Note",
        "export | 30 seconds | Nov. 21, 2025, 4:40 a.m. UTC |",
        "export | 50 seconds | Nov. 21, 2025, 4:40 a.m. UTC |",
        "clicks: 2,000",
        "minutes: 1,520 left",
        "Credits that expire, the first to expire first",
        "Grant | Left | Granted | Expires",
        "order-17 | 1,500 | 1,500 | Nov. 21, 2025, 5:40 a.m. UTC",
        "order-18 | 20 | 20 | Nov. 21, 2025, 6:40 a.m. UTC",
        "The last days",
        "Checks of the last days, by rule",
        "Day | Rule | Allowed | Refused | Units",
        "Nov. 21, 2025 | plans | 1 | 1 | 1",
        "History",
        "Nothing yet.",
    ]


def test_the_page_of_a_subject_shows_a_tier_that_it_may_have(client: Client, settings: Any) -> None:
    plans = {"rate": {"free": "0/m", "pro": "9/m"}, "key": "user", "tier": plan}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"plans": plans}}

    lines = below_search(said(client, "subject/?subject=user:7"))

    assert lines[:4] == [
        'There is no user with the key "7".',
        "{subject=user:7} Right now",
        "These limits may refuse the next hit:",
        "plans (if its tier is free) , 0/m: 0 of 0 used, 0 left; no hit is admitted",
    ]


def test_the_page_of_an_address_shows_its_networks(client: Client, settings: Any) -> None:
    rules = {"net": {"rate": "1/m", "key": "ip/24", "ban": {"after": "9/m", "for": "10m"}}, "api": API}
    settings.QUOTA = {**settings.QUOTA, "RULES": rules}
    with freeze(START):
        ban("net", "ip:192.0.2.0/24", "10m")

    lines = below_search(said(client, "subject/?subject=ip:192.0.2.1"))

    assert lines == [
        "{subject=ip:192.0.2.1} Right now",
        "No limit of this subject itself refuses the next hit.",
        "Also counted as:",
        "ip:192.0.2.0/24 [subject/?subject=ip%3A192.0.2.0%2F24]: refused by net until 04:50:00 UTC (first ban)",
        "Usage by day [dailycounter/usage/?subject=ip%3A192.0.2.1]",
        "Events [overview/events/?subject=ip%3A192.0.2.1&subject=ip%3A192.0.2.0%2F24]",
        "Add an override [quotaoverride/add/?subject=ip%3A192.0.2.1]",
        "All rules",
        "{on=*} Raise for a day",
        "{on=*} Exempt",
        "{on=*} Reset",
        "{on=*} Block",
        "Rules",
        "Nothing is used, and no override or ban is in force.",
        "1 unused rule",
        "api [quotaoverride/rule/?name=api]",
        "10/m by sliding window 0 of 10 used, 10 left 0 of 10 used, 10 left the next hit is admitted",
        "500/h by sliding window 0 of 500 used, 500 left 0 of 500 used, 500 left the next hit is admitted",
        "Change… api",
        "{on=api} Raise for a day api",
        "{on=api} Exempt api",
        "{on=api} Reset api",
        "{on=api} Block api",
        "1 rule that counts others",
        "net counts by ip/24. Subjects look like ip:192.0.2.0/24.",
        "{subject=ip:192.0.2.0/24} Rules of ip:192.0.2.0/24",
        "banned from net for 10 minutes {on=net} Lift ban net",
        "net [quotaoverride/rule/?name=net]",
        (
            "1/m by sliding window 0 of 1 used, 1 left 0 of 1 used, 1 left the next hit is admitted in 10 "
            "minutes, Nov. 21, 2025, 4:50 a.m. UTC (banned)"
        ),
        "Change… net",
        "{on=net} Raise for a day net",
        "{on=net} Exempt net",
        "{on=net} Reset net",
        "{on=net} Block net",
        "1 rule that counts others",
        "api counts by ip.",
        "{subject=ip:192.0.2.1} Overrides",
        "There are none.",
        "History",
        "Nothing yet.",
    ]


def test_a_question_before_a_reset_has_no_fields(client: Client) -> None:
    assert said(client, "subject/action/reset/?subject=user:7&on=api") == [
        (
            'This forgets all that was counted for user:7 under rule "api" and lifts its bans. Overrides '
            "and daily counts stay."
        ),
        "{subject=user:7} {on=api} {confirmed=yes} Yes: Reset",
        "No, take me back [subject/?subject=user%3A7]",
    ]


def test_a_question_before_a_block_says_what_is_wrong(client: Client) -> None:
    lines = said(client, "subject/action/block/", subject="user:7", on="*", confirmed="yes", span="1d", reason="")

    assert lines == [
        ("From the next request on, every request of user:7 under all rules is refused, for the time that you choose."),
        "{subject=user:7} {on=*} {confirmed=yes} Please correct the error below.",
        "Rate, duration and reason",
        "For:",
        "an hour",
        "* a day",
        "seven days",
        "until it is cleared",
        "Or until:",
        "{until=} A moment of your own. This field is required.",
        "Reason: (required)",
        "{reason=} Tells others why. Note:",
        "More for the history, such as a link to a report. Yes: Block",
        "No, take me back [subject/?subject=user%3A7]",
    ]


@pytest.mark.parametrize(
    ("name", "words", "button"),
    [
        (
            "exempt",
            'From the next request on, user:7 is not limited under rule "login": every request is admitted.',
            "{reason=} Tells others why. Yes: Exempt",
        ),
        (
            "lift",
            (
                'This ends the ban of user:7 from rule "login". What was counted stays. The next ban counts as the '
                "first again."
            ),
            "{subject=user:7} {on=login} {confirmed=yes} Yes: Lift ban",
        ),
        (
            "clear",
            (
                'This deletes the override of user:7 for rule "login". From the next request on, the limits of the '
                "settings hold again."
            ),
            "{subject=user:7} {on=login} {confirmed=yes} Yes: Clear override",
        ),
    ],
)
def test_a_question_says_what_an_action_does(client: Client, name: str, words: str, button: str) -> None:
    lines = said(client, f"subject/action/{name}/?subject=user:7&on=login")

    assert (lines[0], lines[-2]) == (words, button)


# --- usage and daily counters -----------------------------------------------------------------------------------------


def test_the_list_of_daily_counters_shows_each(client: Client) -> None:
    used()
    used("ip:192.0.2.1", "login", date(2024, 2, 27), refused=0)

    html = html_of(client, "dailycounter/")
    tools = html.partition('class="object-tools">')[2].partition("</ul>")[0]  # Django 6.1 has them above the content
    lines = lines_of(html)

    assert lines_of(tools) == [
        "Usage of a subject [dailycounter/usage/]",
        "Export all as CSV [dailycounter/export/?]",
    ]
    assert [line.partition(" | ")[2] for line in lines if line.startswith("{_selected_action=")] == [
        (
            "Nov. 20, 2025 | user:7 [dailycounter/usage/?subject=user%3A7] | api | allowed 1,200 | refused 3 | 0.2 % "
            "| units 4,000"
        ),
        (
            "Feb. 27, 2024 | ip:192.0.2.1 [dailycounter/usage/?subject=ip%3A192.0.2.1] | login | allowed 1,200 | "
            "refused 0 | 0.0 % | units 4,000"
        ),
    ]


def test_the_list_of_daily_counters_offers_each_kind_of_subjects(client: Client) -> None:
    lines = said(client, "dailycounter/")

    assert [line for line in lines if "[?kind=" in line] == [
        "users [?kind=user%3A]",
        "addresses [?kind=ip%3A]",
        "everybody together [?kind=global]",
        "headers [?kind=header.]",
        "cookies [?kind=cookie.]",
        "query fields [?kind=get.]",
        "form fields [?kind=post.]",
        "paths [?kind=path%3A]",
        "functions [?kind=key.]",
    ]


def test_an_empty_list_of_daily_counters_has_no_file(client: Client) -> None:
    lines = said(client, "dailycounter/")

    assert [line for line in lines if "dailycounter/export" in line] == []


def test_the_page_of_usage_shows_another_year_of_a_user(client: Client) -> None:
    User.objects.create_user("ann", pk=7)
    used()
    used(day=date(2024, 2, 27))

    assert below_search(said(client, "dailycounter/usage/?subject=user:7&year=2024&days=year")) == [
        "ann (user:7)",
        "Totals",
        "Time | Allowed | Refused | Units",
        "2024 | 1,200 | 3 | 4,000",
        "This year | 1,200 | 3 | 4,000",
        "This month | 1,200 | 3 | 4,000",
        "Today | 0 | 0 | 0",
        "The year 2024",
        "* 2024 [?subject=user%3A7&year=2024&days=year]",
        "2025 [?subject=user%3A7&year=2025&days=year]",
        "Checks a day:",
        "none",
        "1-1,203",
        "some refused",
        "Day by day",
        "Last 30 days [?subject=user%3A7&year=2024&days=30]",
        "Last 90 days [?subject=user%3A7&year=2024&days=90]",
        "* 2024 [?subject=user%3A7&year=2024&days=year]",
        "allowed",
        "refused",
        "Show as a table",
        "Days with checks, newest first",
        "Day | Allowed | Refused | Units",
        "Feb. 27, 2024 | 1,200 | 3 | 4,000",
        "Busiest rules in 2024",
        "Rules, busiest first",
        "Rule | Allowed | Refused | Units",
        "api [?subject=user%3A7&year=2024&days=year&rule=api] | 1,200 | 3 | 4,000",
    ]


def test_the_page_of_usage_of_nobody_says_that_there_are_no_checks(client: Client) -> None:
    assert below_search(said(client, "dailycounter/usage/?subject=nobody")) == [
        "nobody",
        (
            "There are no checks yet. Nobody's name or e-mail begins with 'nobody'. No request has the "
            'subject "nobody". Use, for example, user:<key>, ip:<address> or global. It works only where '
            "your code passes this subject itself."
        ),
        "Totals",
        "Time | Allowed | Refused | Units",
        "This year | 0 | 0 | 0",
        "This month | 0 | 0 | 0",
        "Today | 0 | 0 | 0",
        "The year 2025",
        "* 2025 [?subject=nobody&year=2025]",
        "No checks in this year.",
        "Day by day",
        "* Last 30 days [?subject=nobody&days=30]",
        "Last 90 days [?subject=nobody&days=90]",
        "2025 [?subject=nobody&days=year]",
        "No checks on these days.",
        "Busiest rules in 2025",
        "No checks in this year.",
    ]


@pytest.mark.usefixtures("no_store")
def test_usage_without_the_store_says_what_is_missing(client: Client) -> None:
    used()

    assert below_search(said(client, "dailycounter/usage/?subject=user:7"))[:2] == [
        "user:7",
        f"The store does not answer. The checks since the last roll-up are missing here. {NO_ANSWER}",
    ]


# --- the overview and events ------------------------------------------------------------------------------------------


def test_the_overview_has_its_state_above_its_content(client: Client) -> None:
    assert said(client, "overview/?rule=api") == [
        "Reload [overview/?rule=api] Pause",
        "Checks today 0",
        "yesterday 0",
        "Refused -",
        "no checks yesterday",
        "Refusals, bans and warnings",
        "all kinds",
        "refused",
        "banned",
        "near its limit",
        "{rule=api} {subject=} Filter",
        "No event matches.",
        "All events [overview/events/]",
        "Rules",
        "Nothing has been checked today.",
        "Most refused today",
        "Nobody has been refused today.",
        "Bans",
        "The memory store keeps no list of bans.",
        "Slots and locks",
        "None was used recently.",
        "The store",
        "The memory store: each process counts by itself. This page shows the process that answered.",
    ]


@pytest.mark.usefixtures("no_store")
def test_the_overview_says_that_the_store_does_not_answer(client: Client) -> None:
    assert said(client, "overview/content/") == [
        "The store fails, so nothing is limited, except by rules with an on_unavailable of their own.",
        "The store does not answer. Rules follow their on_unavailable setting.",
        NO_ANSWER,
        "Refusals, bans and warnings",
        "all kinds",
        "refused",
        "banned",
        "near its limit",
        "{rule=} {subject=} Filter",
        "The store does not answer.",
        "All events [overview/events/]",
    ]


def test_the_overview_names_users_and_counts_floods(client: Client) -> None:
    for pk, name in ((7, "ann"), (8, "bob")):
        User.objects.create_user(name, pk=pk)
    with freeze(START):
        for number in range(6):
            check("0/m", f"ip:192.0.2.{number}", name="flood of many")
            check("0/m", "user:7", name="flood of one")
        slot("export", 1, subject="user:8").acquire()

    assert said(client, "overview/content/")[10:] == [
        "Nov. 21, 2025, UTC",
        (
            "04:40:00 flood of many [quotaoverride/rule/?name=flood%20of%20many] refused 6 addresses since "
            "04:40:00 UTC [overview/events/?kind=refused&rule=flood%20of%20many]"
        ),
        (
            "04:40:00 refused ann (user:7) [subject/?subject=user%3A7] by flood of one: needed 1, 0 of 0 "
            "are left, for good"
        ),
        "All events [overview/events/]",
        "Rules",
        "Checks of Nov. 21, 2025, and of the last 60 minutes",
        "Rule | Per minute | Allowed | Refused | 03:41 Last hour 04:40",
        "flood of many [quotaoverride/rule/?name=flood%20of%20many] | 6 | 0 | 6 | peak: 6",
        "flood of one [quotaoverride/rule/?name=flood%20of%20one] | 6 | 0 | 6 | peak: 6",
        "allowed refused, on top",
        "Most refused today",
        "Subject | Refused",
        "ann (user:7) [subject/?subject=user%3A7] | 6",
        "ip:192.0.2.0 [subject/?subject=ip%3A192.0.2.0] | 1",
        "ip:192.0.2.1 [subject/?subject=ip%3A192.0.2.1] | 1",
        "ip:192.0.2.2 [subject/?subject=ip%3A192.0.2.2] | 1",
        "ip:192.0.2.3 [subject/?subject=ip%3A192.0.2.3] | 1",
        "ip:192.0.2.4 [subject/?subject=ip%3A192.0.2.4] | 1",
        "ip:192.0.2.5 [subject/?subject=ip%3A192.0.2.5] | 1",
        "Bans",
        "The memory store keeps no list of bans.",
        "Slots and locks",
        "Used recently, fullest first",
        "Slot | Held",
        "export bob (user:8) [subject/?subject=user%3A8] | 1 of 1 full",
        "The store",
        "The memory store: each process counts by itself. This page shows the process that answered.",
    ]


def test_the_overview_keeps_what_its_filter_chose(client: Client) -> None:
    assert said(client, "overview/content/?kind=refused&rule=a&subject=o")[4:12] == [
        "Refusals, bans and warnings",
        "all kinds",
        "* refused",
        "banned",
        "near its limit",
        "{rule=a} {subject=o} Filter",
        "No event matches.",
        "All events [overview/events/]",
    ]


def test_the_page_of_events_shows_those_of_a_user(client: Client) -> None:
    User.objects.create_user("ann", pk=7)
    with freeze(START):
        check("0/m", "user:7", name="closed")

    assert said(client, "overview/events/?subject=user:7&subject=org:7&part=7&kind=refused&since=2025-11-21T04:40") == [
        "Refusals, bans and warnings",
        "{find=} all kinds",
        "* refused",
        "banned",
        "near its limit",
        "{rule=} {path=} from {since=2025-11-21T04:40}",
        "until {until=}",
        "Filter",
        (
            "Only events of: ann (user:7) [subject/?subject=user%3A7] , org:7 [subject/?subject=org%3A7] 7 "
            ". Show all [overview/events/]"
        ),
        "Nov. 21, 2025, UTC",
        ("04:40:00 refused ann (user:7) [subject/?subject=user%3A7] by closed: needed 1, 0 of 0 are left, for good"),
        "Download as CSV [?subject=user%3A7&subject=org%3A7&part=7&kind=refused&since=2025-11-21T04%3A40&csv=1]",
    ]


def test_the_page_of_events_says_that_none_matches(client: Client) -> None:
    assert said(client, "overview/events/?kind=near")[-2:] == [
        "Filter",
        "No event matches.",
    ]


def test_the_page_of_events_says_that_nothing_was_refused(client: Client) -> None:
    assert said(client, "overview/events/")[-1:] == [
        "Nothing has been refused.",
    ]


def test_the_page_of_events_says_what_is_wrong_with_a_search(client: Client) -> None:
    lines = said(client, "overview/events/", find="192.0.2.0/24")

    assert lines[:1] + lines[-1:] == [
        (
            'No request has the subject "192.0.2.0/24": it is a network. Use one address. IPv6 addresses '
            "count by their /64."
        ),
        "Filter",
    ]


@pytest.mark.usefixtures("no_store")
@pytest.mark.parametrize("url", ["overview/events/", "overview/events/?csv=1"], ids=["page", "file"])
def test_the_page_of_events_says_that_the_store_does_not_answer(client: Client, url: str) -> None:
    lines = said(client, url)

    assert lines[:1] + lines[-1:] == [
        NO_ANSWER,
        "Filter",
    ]


# --- what only a screen reader or a mouse finds -----------------------------------------------------------------------


@pytest.fixture
def busy(client: Client) -> None:
    """Checks, a flood, a ban, slots, usage and an override."""
    with freeze(START):
        for _ in range(3):
            check("1/m", "user:7", name="trial", shadow=True)
            check("1/m", "user:7", name="closed")
        slot("export", 2, subject="user:7").acquire()
        ban("login", "user:7", "10m")
    override("user:7", "login", starts=BEGIN, pk=71)
    used()


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(
    ("url", "form", "hints"),
    [
        pytest.param(
            "overview/?rule=c",
            {},
            [
                "data-refresh-interval: 5",
                "data-content-url: /admin/django_quota/overview/content/?rule=c",
                "data-without-script:",
                "data-pause:",
                "data-state:",
                "data-live: Live",
                "data-paused: Paused",
                "data-away: No answer; trying again",
                "data-out: You are signed out, or may no longer see this page: reload it.",
                "action: /admin/django_quota/overview/",
                "aria-label: Kind",
                "aria-label: rule",
                "placeholder: rule",
                "aria-label: subject",
                "placeholder: subject",
                "datetime: 2025-11-21T04:40:00+00:00",
                "strong.quota-refused",
                "aria-label: Last 60 minutes: 1 allowed, 2 refused; at most 3 in a minute",
                "title: A shadow rule would have refused these. They were allowed.",
                "aria-label: Last 60 minutes: 1 allowed, 2 refused; at most 3 in a minute",
                "meter: 0 2 1 0.5 1 0",
            ],
            id="overview/?rule=c",
        ),
        pytest.param(
            "overview/events/",
            {},
            [
                "action: /admin/django_quota/overview/events/",
                "aria-label: Find a user, an address or a subject",
                "placeholder: user, address or subject",
                "aria-label: Kind",
                "aria-label: rule",
                "placeholder: rule",
                "aria-label: path",
                "placeholder: path",
                "datetime: 2025-11-21T04:40:00+00:00",
                "datetime: 2025-11-21T04:40:00+00:00",
            ],
            id="overview/events/",
        ),
        pytest.param(
            "ban/",
            {},
            [
                "action: /admin/django_quota/ban/",
                "aria-label: Rule",
                "action: /admin/django_quota/ban/lift/",
                "aria-label: Select user:7, login",
                "datetime: 2025-11-01T00:00:00+00:00",
                "datetime: 2025-11-21T04:40:00+00:00",
                "datetime: 2025-11-21T04:50:00+00:00",
                "datetime: 2025-11-01T00:00:00+00:00",
            ],
            id="ban/",
        ),
        pytest.param(
            "ban/?subject=ip:nowhere",
            {},
            [
                "p.errornote",
                "action: /admin/django_quota/ban/",
                "aria-label: Rule",
                "action: /admin/django_quota/ban/lift/",
                "aria-label: Select user:7, login",
                "datetime: 2025-11-01T00:00:00+00:00",
                "datetime: 2025-11-21T04:40:00+00:00",
                "datetime: 2025-11-21T04:50:00+00:00",
                "datetime: 2025-11-01T00:00:00+00:00",
            ],
            id="ban/?subject=ip:nowhere",
        ),
        pytest.param("ban/set/", {}, ["p.quota-warning", "button.quota-destructive"], id="ban/set/"),
        pytest.param(
            "ban/set/",
            {"subject": "ip:127.0.0.1", "rule": "login", "span": "7d", "reason": ""},
            ["p.quota-warning", "p.errornote", "button.quota-destructive"],
            id="ban/set/ without a reason",
        ),
        pytest.param(
            "ban/set/",
            {"subject": "ip:127.0.0.1", "rule": "login", "span": "7d", "reason": "spam"},
            ["p.quota-warning", "div.errornote", "button.quota-destructive"],
            id="ban/set/ of your own address",
        ),
        pytest.param("ban/lift/", {"all": "1"}, ["p.quota-warning"], id="ban/lift/ with all=1"),
        pytest.param(
            "subject/",
            {},
            ["action: /admin/django_quota/subject/", "datetime: 2025-11-21T04:40:00+00:00"],
            id="subject/",
        ),
        pytest.param(
            "subject/",
            {"find": "ip:nowhere"},
            ["p.errornote", "action: /admin/django_quota/subject/"],
            id="subject/ with find=ip:nowhere",
        ),
        pytest.param(
            "subject/?subject=user:7",
            {},
            [
                "action: /admin/django_quota/subject/",
                "section.quota-answer-no",
                "formaction: /admin/django_quota/subject/action/lift/",
                "formaction: /admin/django_quota/subject/action/lift/",
                "formaction: /admin/django_quota/subject/action/raise/",
                "formaction: /admin/django_quota/subject/action/exempt/",
                "formaction: /admin/django_quota/subject/action/reset/",
                "formaction: /admin/django_quota/subject/action/block/",
                "button.quota-destructive",
                "datetime: 2025-11-21T04:50:00+00:00",
                "formaction: /admin/django_quota/subject/action/lift/",
                "aria-label: login",
                "aria-label: used",
                "meter: 0 9 0 7 8 0",
                "formaction: /admin/django_quota/subject/action/raise/",
                "formaction: /admin/django_quota/subject/action/exempt/",
                "formaction: /admin/django_quota/subject/action/reset/",
                "formaction: /admin/django_quota/subject/action/block/",
                "button.quota-destructive",
                "datetime: 2025-11-21T04:40:00+00:00",
                "datetime: 2025-11-21T04:50:00+00:00",
                "datetime: 2025-11-21T04:40:00+00:00",
                "datetime: 2025-11-21T04:41:00+00:00",
                "datetime: 2025-11-01T00:00:00+00:00",
                "formaction: /admin/django_quota/subject/action/clear/",
                "datetime: 2025-11-21",
                "datetime: 2025-11-21",
                "datetime: 2025-11-20",
            ],
            id="subject/?subject=user:7",
        ),
        pytest.param(
            "subject/action/block/?subject=user:7&on=login",
            {},
            ["p.quota-warning", "action: /admin/django_quota/subject/action/block/", "button.quota-destructive"],
            id="subject/action/block/?subject=user:7&on=login",
        ),
        pytest.param(
            "subject/action/exempt/?subject=user:7&on=login",
            {},
            ["p.quota-warning", "action: /admin/django_quota/subject/action/exempt/"],
            id="subject/action/exempt/?subject=user:7&on=login",
        ),
        pytest.param(
            "subject/action/block/",
            {"subject": "user:7", "on": "*", "confirmed": "yes", "reason": ""},
            [
                "p.quota-warning",
                "action: /admin/django_quota/subject/action/block/",
                "p.errornote",
                "button.quota-destructive",
            ],
            id="subject/action/block/ without a reason",
        ),
        pytest.param(
            "dailycounter/usage/", {}, ["action: /admin/django_quota/dailycounter/usage/"], id="dailycounter/usage/"
        ),
        pytest.param(
            "dailycounter/usage/",
            {"find": "ip:nowhere"},
            ["p.errornote", "action: /admin/django_quota/dailycounter/usage/"],
            id="dailycounter/usage/ with find=ip:nowhere",
        ),
        pytest.param(
            "dailycounter/usage/?subject=user:7",
            {},
            [
                "action: /admin/django_quota/dailycounter/usage/",
                "aria-label: Years",
                "aria-label: Heat map",
                "aria-label: Checks a day",
                "aria-label: Days",
                "aria-label: Bars",
                "aria-label: Legend",
            ],
            id="dailycounter/usage/?subject=user:7",
        ),
        pytest.param(
            "quotaoverride/rule/?name=trial",
            {},
            [
                "aria-label: For everybody",
                "title: A shadow rule would have refused these. They were allowed.",
                "aria-label: Last 60 minutes: 1 allowed, 2 refused; at most 3 in a minute",
            ],
            id="quotaoverride/rule/?name=trial",
        ),
        pytest.param(
            "quotaoverride/rule/?name=login", {}, ["aria-label: For everybody"], id="quotaoverride/rule/?name=login"
        ),
        pytest.param("knownrule/", {}, [], id="knownrule/"),
        pytest.param(
            "quotaoverride/preview/",
            {"subject": "user:7", "rule": "login", "mode": "exempt"},
            [],
            id="quotaoverride/preview/ of a user",
        ),
        pytest.param(
            "quotaoverride/preview/",
            {"subject": "nobody", "rule": "login", "mode": "exempt", "starts_0": "2099-01-02", "starts_1": "10:00"},
            ["datetime: 2099-01-02T10:00:00+00:00", "p.quota-warning"],
            id="quotaoverride/preview/ of nobody, from a day to come",
        ),
        pytest.param(
            "quotaoverride/",
            {"action": "block_selected", "_selected_action": "71"},
            ["p.quota-warning"],
            id="quotaoverride/ before a block of the selected",
        ),
    ],
)
def test_the_parts_of_a_page_have_names_and_addresses(
    client: Client, url: str, form: dict[str, str], hints: list[str]
) -> None:
    assert hints_of(html_of(client, url, **form)) == hints


# --- around the content -----------------------------------------------------------------------------------------------


def head_of(html: str) -> list[str]:
    """Return the title of a page, its path with links, and the name of what it shows."""
    path_of_page = html.partition('<div class="breadcrumbs">')[2].partition("</div>")[0]
    with_links = re.sub(r'<a href="/admin/(?:django_quota/)?([^"]*)">(.*?)</a>', r"\2 [\1]", path_of_page)
    name = html.partition('<h2 class="quota-subject">')[2].partition("</h2>")[0]
    parts = [html.partition("<title>")[2].partition("</title>")[0], with_links, name]
    arrow = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
    return [" ".join(unescape(part).replace(arrow, ">").split()) for part in parts]


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(
    ("url", "form", "head"),
    [
        pytest.param(
            "overview/", {}, ["Overview | Django site admin", "Home [] > Quotas [] > Overview", ""], id="overview/"
        ),
        pytest.param(
            "overview/events/",
            {},
            ["Events | Django site admin", "Home [] > Quotas [] > Overview [overview/] > Events", ""],
            id="overview/events/",
        ),
        pytest.param("ban/", {}, ["Bans | Django site admin", "Home [] > Quotas [] > Bans", ""], id="ban/"),
        pytest.param(
            "ban/set/", {}, ["Ban | Django site admin", "Home [] > Quotas [] > Bans [ban/] > Ban", ""], id="ban/set/"
        ),
        pytest.param(
            "ban/lift/",
            {"all": "1"},
            ["Lift ban | Are you sure? | Django site admin", "Home [] > Quotas [] > Bans [ban/] > Lift ban", ""],
            id="ban/lift/ with all=1",
        ),
        pytest.param(
            "knownrule/", {}, ["Rules | Django site admin", "Home [] > Quotas [] > Rules", ""], id="knownrule/"
        ),
        pytest.param(
            "subject/", {}, ["Find a subject | Django site admin", "Home [] > Quotas [] > Subjects", ""], id="subject/"
        ),
        pytest.param(
            "subject/",
            {"find": "ip:nowhere"},
            ["Find a subject | Django site admin", "Home [] > Quotas [] > Subjects", ""],
            id="subject/ with find=ip:nowhere",
        ),
        pytest.param(
            "subject/?subject=user:7",
            {},
            [
                "ann (user:7) | Subject | Django site admin",
                "Home [] > Quotas [] > Subjects [subject/] > ann (user:7)",
                "ann (user:7)",
            ],
            id="subject/?subject=user:7",
        ),
        pytest.param(
            "subject/action/block/?subject=user:7&on=login",
            {},
            [
                "ann (user:7) | Block | Django site admin",
                "Home [] > Quotas [] > Subjects [subject/] > ann (user:7)",
                "",
            ],
            id="subject/action/block/?subject=user:7&on=login",
        ),
        pytest.param(
            "dailycounter/usage/",
            {},
            ["Usage | Django site admin", "Home [] > Quotas [] > Daily counters", ""],
            id="dailycounter/usage/",
        ),
        pytest.param(
            "dailycounter/usage/?subject=user:7",
            {},
            [
                "Usage of ann (user:7) | Django site admin",
                "Home [] > Quotas [] > Daily counters [dailycounter/] > Usage",
                "",
            ],
            id="dailycounter/usage/?subject=user:7",
        ),
        pytest.param(
            "quotaoverride/rule/?name=trial",
            {},
            ["trial | Rule | Django site admin", "Home [] > Quotas [] > Overrides [quotaoverride/] > trial", "trial"],
            id="quotaoverride/rule/?name=trial",
        ),
        pytest.param(
            "quotaoverride/",
            {"action": "block_selected", "_selected_action": "71"},
            [
                "Are you sure? | Django site admin",
                "Home [] > Quotas [] > Overrides [quotaoverride/] > Are you sure?",
                "",
            ],
            id="quotaoverride/ before a block of the selected",
        ),
    ],
)
def test_a_page_says_where_it_is(client: Client, url: str, form: dict[str, str], head: list[str]) -> None:
    User.objects.create_user("ann", pk=7)

    assert head_of(html_of(client, url, **form)) == head


@pytest.mark.parametrize(
    ("url", "files"),
    [
        ("overview/", ["overview.css", "overview.js"]),
        ("overview/events/", ["overview.css"]),
        ("ban/", ["subject.css"]),
        ("ban/set/", ["subject.css"]),
        ("knownrule/", ["subject.css"]),
        ("subject/", ["subject.css"]),
        ("subject/?subject=user:7", ["subject.css"]),
        ("subject/action/block/?subject=user:7", ["subject.css"]),
        ("quotaoverride/rule/?name=api", ["subject.css", "overview.css"]),
        ("quotaoverride/", ["subject.css", "lists.css", "override.js"]),
        ("quotaoverride/add/", ["subject.css", "lists.css", "override.js"]),
        ("dailycounter/", ["lists.css"]),
        ("dailycounter/usage/?subject=user:7", ["subject.css", "usage.css"]),
    ],
)
def test_a_page_has_its_styles_and_scripts(client: Client, url: str, files: list[str]) -> None:
    found = re.findall(r'(?:src|href)="[^"]*django_quota/(\w+\.(?:css|js))"', html_of(client, url))

    assert sorted(found) == sorted(files)


# --- the markup -------------------------------------------------------------------------------------------------------

NAME = 'x<i>"&amp;'


@pytest.fixture
def odd_names(client: Client, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules, subjects, users, reasons, tiers, slots and counters whose names are markup."""
    plans = {"rate": {NAME: "1/m", "pro": "9/m"}, "key": "user", "tier": plan, "ban": {"after": "9/m", "for": "10m"}}
    broken = {"rate": "often"}
    settings.QUOTA = {**settings.QUOTA, "RULES": {NAME: plans, f"broken{NAME}": broken, "by-user": "9/m"}}
    User.objects.create_user(NAME, f"same{NAME}@example.org", pk=7, first_name=NAME, last_name=NAME)
    User.objects.create_user(f"y{NAME}", f"same{NAME}@example.org", pk=8)
    held = counter(NAME, group=NAME)
    monkeypatch.setattr(calls, "made", {(NAME, NAME, None): held})
    with freeze(START):
        for subject in ("user:7", f"org:{NAME}"):
            for _ in range(2):
                check(NAME, subject, tier=NAME)
            slot(NAME, 1, subject=subject).acquire()
            held.grant(subject, 2, id=NAME, expires="1h")
            ban(NAME, subject, "10m", reason=NAME, by=NAME)
        for number in range(6):
            check("0/m", f"{NAME}:{number}", name=f"flood{NAME}")
            check("0/m", f"one:{NAME}", name=f"flood{NAME}{NAME}")
        flusher.flush()
    given: dict[str, Any] = {"reason": NAME, "label": NAME, "created_by": NAME, "starts": BEGIN}
    override(f"org:{NAME}", NAME, pk=71, **given)
    override(f"kind{NAME}:*", NAME, "exempt", pk=72, **given)
    override("*", NAME, "shadow", pk=73, **{**given, "reason": f"{NAME}{'y' * 80}"})
    override("user:7", f"other{NAME}", "rate", rate="9/m", pk=74, **given)
    for subject in ("user:7", f"org:{NAME}"):
        used(subject, NAME, date(2025, 11, 20))


OF_NAME = quote(NAME)


@pytest.mark.usefixtures("odd_names")
@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("overview/", {}),
        (f"overview/?rule={OF_NAME}&subject={OF_NAME}", {}),
        ("overview/events/", {}),
        (f"overview/events/?rule={OF_NAME}&path={OF_NAME}&since={OF_NAME}&until={OF_NAME}&part={OF_NAME}", {}),
        (f"overview/events/?subject=org:{OF_NAME}&subject=user:7&before=99999999999999-0", {}),
        ("overview/events/", {"find": f"ip:{NAME}"}),
        ("ban/", {}),
        (f"ban/?rule={OF_NAME}&subject=org:{OF_NAME}&subject=user:7", {}),
        ("ban/", {"find": f"ip:{NAME}"}),
        (f"ban/set/?subject={OF_NAME}&reason={OF_NAME}", {}),
        ("ban/set/", {"subject": NAME, "reason": NAME, "note": NAME, "until": NAME, "rule": NAME}),
        ("ban/lift/", {"all": "1", "rule": NAME, "subject": f"org:{NAME}"}),
        ("subject/", {}),
        (f"subject/?subject={OF_NAME}", {}),
        ("subject/?subject=user:7", {}),
        (f"subject/?subject=org:{OF_NAME}", {}),
        (f"subject/?subject=ip:{OF_NAME}", {}),
        ("subject/", {"find": f"same{NAME}@example.org"}),
        ("subject/", {"find": f"ip:{NAME}"}),
        (f"subject/action/block/?subject=org:{OF_NAME}&on={OF_NAME}", {}),
        (f"subject/action/raise/?subject=user:7&on={OF_NAME}", {}),
        ("subject/action/block/", {"subject": f"org:{NAME}", "on": NAME, "confirmed": "yes", "until": NAME}),
        ("dailycounter/", {}),
        ("dailycounter/usage/", {}),
        ("dailycounter/usage/?subject=user:7", {}),
        (f"dailycounter/usage/?subject=org:{OF_NAME}&rule={OF_NAME}", {}),
        ("knownrule/", {}),
        (f"quotaoverride/rule/?name={OF_NAME}", {}),
        (f"quotaoverride/rule/?name=broken{OF_NAME}", {}),
        (f"quotaoverride/rule/?name=flood{OF_NAME}", {}),
        ("quotaoverride/", {}),
        ("quotaoverride/", {"action": "block_selected", "_selected_action": [71, 72, 73, 74]}),
        ("quotaoverride/71/change/", {}),
        (f"quotaoverride/add/?subject={OF_NAME}&rule={OF_NAME}&reason={OF_NAME}", {}),
        ("quotaoverride/add/", {"subject": NAME, "rule": f"{NAME}{NAME}", "mode": "blocked"}),
        ("quotaoverride/add/", {"subject": f"org:{NAME}", "rule": NAME, "mode": "blocked"}),
        ("quotaoverride/preview/", {"subject": f"org:{NAME}", "rule": "*", "mode": "blocked"}),
        ("quotaoverride/preview/", {"subject": "org:*", "rule": "*", "mode": "blocked"}),
        ("quotaoverride/preview/", {"subject": f"ip:{NAME}", "rule": NAME, "mode": "rate", "rate": NAME}),
        ("quotaoverride/preview/", {"subject": "user:7", "rule": f"{NAME}{NAME}", "mode": "rate", "rate": "9/m"}),
    ],
)
def test_the_markup_of_a_page_is_sound(client: Client, url: str, form: dict[str, Any]) -> None:
    assert faults_of(html_of(client, url, **form)) == []


# --- replicas ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(database: Any, rules: None, settings: Any) -> None:
    """A block, another rate for everybody, and counts of a day were saved; a replica has none of them yet."""
    override("user:8", reason="spam")
    override("*", "api", "rate", rate="20/m", reason="busy")
    used("user:8")
    settings.DATABASE_ROUTERS = [OwnReplicaLags()]


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize(
    ("url", "words"),
    [
        pytest.param("ban/", "spam", id="bans"),
        pytest.param("subject/?subject=user:8", "spam", id="a subject"),
        pytest.param("quotaoverride/rule/?name=api", "busy", id="a rule"),
        pytest.param("dailycounter/usage/?subject=user:8", "1,200", id="usage"),
    ],
)
def test_a_page_shows_what_was_saved_though_a_replica_lags(client: Client, url: str, words: str) -> None:
    assert words in " ".join(said(client, url))


@pytest.mark.usefixtures("saved")
def test_a_second_override_is_an_error_though_a_replica_lags(client: Client) -> None:
    lines = said(client, "quotaoverride/add/", subject="user:8", rule="*", mode="exempt", _anyway="1")

    assert "This subject and rule have an override already: blocked" in " ".join(lines)


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize(
    ("name", "given"),
    [
        pytest.param("clear", {}, id="clear an override"),
        pytest.param("block", {"span": "1d", "reason": "more spam"}, id="block"),
        pytest.param("exempt", {"span": "1d", "reason": ""}, id="exempt"),
    ],
)
def test_an_action_is_done_though_a_replica_lags(client: Client, name: str, given: dict[str, str]) -> None:
    form = {"subject": "user:8", "on": "*", "confirmed": "yes", **given}

    assert client.post(f"/admin/django_quota/subject/action/{name}/", form).status_code == 302
