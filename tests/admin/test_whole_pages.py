"""What each page of the admin says, from its first line to its last."""

from datetime import date
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import path

from django_quota import ban, check, slot
from django_quota.admin import overview
from django_quota.models import DailyCounter, QuotaOverride
from django_quota.operating.health import Health
from django_quota.testing import freeze
from tests.admin.operators import superuser
from tests.admin.rows import BEGIN, END, override
from tests.admin.texts import below_search, said
from tests.support.steps import START

RULES = {
    "api": {"rate": "10/m", "key": "ip"},
    "login": {"rate": "9/m", "ban": {"after": "9/m", "for": ["10m", "1h"]}},
}

pytestmark = pytest.mark.usefixtures("database")

urlpatterns = [path("admin/", admin.site.urls)]


@pytest.fixture(autouse=True)
def rules(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__  # no view has a rule
    settings.QUOTA = {**settings.QUOTA, "RULES": RULES}


@pytest.fixture
def client(database: Any) -> Client:
    return superuser()


@pytest.fixture
def blocked(database: Any, memory_store: None, rules: None) -> None:
    """A ban of user:7, a block of it, and a block of a network."""
    with freeze(START):
        ban("login", "user:7", "10m", reason="fast", by="the watchdog")
    override("ip:198.51.100.0/24", reason="spam", created_by="root", starts=BEGIN, expires=END, pk=71)
    override("user:7", "login", starts=BEGIN, pk=72)


@pytest.fixture
def refused(database: Any, memory_store: None, rules: None) -> None:
    """Of two checks of api by an address, one was refused."""
    with freeze(START):
        for _ in range(2):
            check("api", "ip:192.0.2.1", 6)


@pytest.fixture
def used(refused: None) -> None:
    """Two slots are in use, one of them is full; a shadow rule has reported a check; there is usage of two days."""
    with freeze(START):
        for name, limit, subject in (("export", 2, "user:7"), ("import", 1, "global")):
            slot(name, limit, subject=subject).acquire()
        for _ in range(2):
            check("1/m", "user:7", name="trial", shadow=True)
    DailyCounter.objects.create(
        subject="user:7", rule="api", day=date(2025, 11, 20), allowed=1_200, refused=3, units=4_000
    )
    DailyCounter.objects.create(subject="user:7", rule="login", day=date(2025, 11, 21), allowed=2, refused=1, units=2)


@pytest.fixture
def raised(refused: None) -> None:
    """Everybody has another rate of api, a network is blocked, and a user is exempt."""
    override("*", "api", "rate", rate="20/m", reason="busy", starts=BEGIN, expires=END, pk=81)
    override("ip:198.51.100.0/24", starts=BEGIN, pk=82)
    override("user:7", "api", "exempt", starts=BEGIN, pk=83)


# --- lines of several pages -------------------------------------------------------------------------------------------

BANS_IN_FORCE = [
    "Ban… [ban/set/]",
    "Bans in force",
    "The memory store keeps no list of bans. Find those of a subject, in the process that answers.",
]
HISTORY_OF_BANS = [
    "History",
    (
        "From the events since Nov. 21, 2025, 4:40 a.m. UTC; older ones are not read. The page of a "
        "subject shows who lifted a ban in the admin."
    ),
]
EVENTS_OF_API = [
    "Nov. 21, 2025, UTC",
    (
        "04:40:00 refused ip:192.0.2.1 [subject/?subject=ip%3A192.0.2.1] by api: needed 6, 4 of 10 are "
        "left, until 04:41:00 UTC"
    ),
    "04:40:00 near its limit ip:192.0.2.1 [subject/?subject=ip%3A192.0.2.1] by api: 80 % used, 4 of 10 are left",
]
HEAD_OF_REFUSALS = [
    "Refusals and bans among the newest events, newest first",
    "When | Rule | What | Request | Limit | Until",
]
HEAD_OF_OVERRIDES = [
    "Overrides",
    "Overrides that concern this subject, the most specific first",
    "Rule | Subject | Instead | Holds for | State | Starts | Expires | Reason | By | Actions",
]
HEAD_OF_SHARED_OVERRIDES = [
    "Everybody, kinds of subjects and networks",
    "Subject | Rule | Instead | Expires | Reason",
]
BLOCK_OF_A_NETWORK = "ip:198.51.100.0/24 [quotaoverride/82/change/] | all rules | blocked | never | -"
NO_HISTORY = ["History", "Nothing yet."]
ACTIONS = ["Raise for a day", "Exempt", "Reset", "Block"]
BUTTONS_OF_ALL_RULES = [f"{{on=*}} {action}" for action in ACTIONS]


def links_of(subject: str) -> list[str]:
    """Return the links of the page of a subject."""
    query = urlencode({"subject": subject})
    return [
        f"Usage by day [dailycounter/usage/?{query}]",
        f"Events [overview/events/?{query}]",
        f"Add an override [quotaoverride/add/?{query}]",
    ]


def buttons_of(rule: str) -> list[str]:
    """Return the buttons of a rule on the page of a subject."""
    return [f"Change… {rule}", *[f"{{on={rule}}} {action} {rule}" for action in ACTIONS]]


UNUSED_LOGIN = [
    "1 unused rule",
    "login [quotaoverride/rule/?name=login]",
    "9/m by sliding window 0 of 9 used, 9 left 0 of 9 used, 9 left the next hit is admitted",
    *buttons_of("login"),
]


# --- the pages --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("blocked")
def test_the_list_of_bans_shows_those_of_two_subjects(client: Client) -> None:
    assert below_search(said(client, "ban/?subject=user:7&subject=ip:198.51.100.0/24")) == [
        (
            "Only bans of: user:7 [subject/?subject=user%3A7] , ip:198.51.100.0/24 "
            "[subject/?subject=ip%3A198.51.100.0%2F24] . Show all [ban/]"
        ),
        *BANS_IN_FORCE,
        (
            "{subject=user:7} {subject=ip:198.51.100.0/24} {rule=} Blocks in force, the newest first, then "
            "bans of rules, the first to end first"
        ),
        "Subject | Rule | Since | Until | Kind | Reason",
        (
            '{ban=["user:7", "login", true]} user:7 [subject/?subject=user%3A7] | login '
            "[quotaoverride/rule/?name=login] | Nov. 1, 2025, midnight UTC | never | Block | -"
        ),
        (
            '{ban=["ip:198.51.100.0/24", "*", true]} ip:198.51.100.0/24 | all rules | Nov. 1, 2025, midnight '
            "UTC | Jan. 2, 2099, midnight UTC | Block | spam (by root)"
        ),
        (
            '{ban=["user:7", "login"]} user:7 [subject/?subject=user%3A7] | login '
            "[quotaoverride/rule/?name=login] | Nov. 21, 2025, 4:40 a.m. UTC | Nov. 21, 2025, 4:50 a.m. UTC | "
            "First ban | fast (by the watchdog)"
        ),
        "Lift selected bans",
        "{all=1} Lift all 3 bans of this list",
        *HISTORY_OF_BANS,
        "Bans that began recently, newest first",
        "Subject | Rule | Since | Until | Kind | Reason | State",
        (
            "user:7 [subject/?subject=user%3A7] | login [quotaoverride/rule/?name=login] | Nov. 21, 2025, 4:40 "
            "a.m. UTC | Nov. 21, 2025, 4:50 a.m. UTC | First ban | fast (by the watchdog) | in force"
        ),
        (
            "user:7 [subject/?subject=user%3A7] | login [quotaoverride/rule/?name=login] | Nov. 1, 2025, "
            "midnight UTC | never | Block | - | in force"
        ),
        (
            "ip:198.51.100.0/24 | all rules | Nov. 1, 2025, midnight UTC | Jan. 2, 2099, midnight UTC | Block "
            "| spam (by root) | in force"
        ),
    ]


@pytest.mark.usefixtures("blocked")
def test_the_list_of_bans_says_that_a_rule_has_none(client: Client) -> None:
    assert below_search(said(client, "ban/?rule=other")) == [
        'Only bans of: rule "other". Show all [ban/]',
        *BANS_IN_FORCE,
        "No ban matches.",
        *HISTORY_OF_BANS,
        "No ban began.",
    ]


@pytest.mark.usefixtures("blocked")
def test_a_question_names_the_bans_before_they_are_lifted(client: Client) -> None:
    assert said(client, "ban/lift/", ban=['["user:7","login"]', '["ip:198.51.100.0/24","*",true]']) == [
        "This ends 2 bans. What was counted stays. The next ban of each subject counts as the first again.",
        "user:7 [subject/?subject=user%3A7], login",
        "ip:198.51.100.0/24, all rules",
        (
            '{rule=} {bans=[["user:7", "login", false], ["ip:198.51.100.0/24", "*", true]]} {confirmed=yes} '
            "Yes: lift 2 bans"
        ),
        "No, take me back [ban/]",
    ]


@pytest.mark.usefixtures("blocked")
def test_the_page_of_a_banned_subject_shows_its_ban_and_its_block(client: Client) -> None:
    assert below_search(said(client, "subject/?subject=user:7")) == [
        "{subject=user:7} Right now",
        (
            "Refused by login until 04:50:00 UTC (first ban). {on=login} Lift ban refused by login until "
            "04:50:00 UTC (first ban)"
        ),
        *links_of("user:7"),
        "All rules",
        "{on=*} Lift ban",
        *BUTTONS_OF_ALL_RULES,
        "Bans",
        "Bans",
        "Rule | Ends in | Ends at | Note",
        (
            "login | 10 minutes | Nov. 21, 2025, 4:50 a.m. UTC | First ban: fast (by the watchdog) {on=login} "
            "Lift ban login"
        ),
        "Rules",
        "login [quotaoverride/rule/?name=login]",
        "9/m by sliding window 0 of 9 used, 9 left 0 of 9 used, 9 left no hit is admitted (blocked by an override)",
        "Override: blocked",
        *buttons_of("login"),
        "1 rule that counts others",
        "api counts by ip.",
        "{subject=user:7} Recent refusals",
        *HEAD_OF_REFUSALS,
        "04:40:00 UTC | login | banned | the watchdog | 9 | 04:50:00 UTC",
        *HEAD_OF_OVERRIDES,
        (
            "login [quotaoverride/72/change/] | user:7 | blocked | login | active | Nov. 1, 2025, midnight UTC "
            "| never | - | - | {on=login} Clear override login"
        ),
        *NO_HISTORY,
    ]


@pytest.mark.usefixtures("used")
def test_the_overview_shows_what_the_memory_store_knows(client: Client) -> None:
    assert said(client, "overview/content/") == [
        "Checks today 3",
        "yesterday 0",
        "Refused 33.3 %",
        "no checks yesterday",
        "Refusals, bans and warnings",
        "all kinds",
        "refused",
        "banned",
        "near its limit",
        "{rule=} {subject=} Filter",
        *EVENTS_OF_API,
        "All events [overview/events/]",
        "Rules",
        "Checks of Nov. 21, 2025, and of the last 60 minutes",
        "Rule | Per minute | Allowed | Refused | 03:41 Last hour 04:40",
        "api [quotaoverride/rule/?name=api] | 2 | 1 | 1 | peak: 2",
        "trial [quotaoverride/rule/?name=trial] | 2 | 1 | 0 shadow: 1 | peak: 2",
        "allowed refused, on top",
        "Most refused today",
        "Subject | Refused",
        "ip:192.0.2.1 [subject/?subject=ip%3A192.0.2.1] | 1",
        "Bans",
        "The memory store keeps no list of bans.",
        "Slots and locks",
        "Used recently, fullest first",
        "Slot | Held",
        "import | 1 of 1 full",
        "export user:7 [subject/?subject=user%3A7] | 1 of 2",
        "The store",
        "The memory store: each process counts by itself. This page shows the process that answered.",
    ]


@pytest.mark.usefixtures("refused")
def test_the_page_of_events_shows_those_of_a_rule(client: Client) -> None:
    assert said(client, "overview/events/?rule=api") == [
        "Refusals, bans and warnings",
        "{find=} all kinds",
        "refused",
        "banned",
        "near its limit",
        "{rule=api} {path=} from {since=}",
        "until {until=}",
        "Filter",
        *EVENTS_OF_API,
        "Download as CSV [?rule=api&csv=1]",
    ]


@pytest.mark.usefixtures("raised")
def test_the_page_of_a_rule_shows_its_overrides(client: Client) -> None:
    assert said(client, "quotaoverride/rule/?name=api") == [
        "What the settings or the view say",
        'QUOTA["RULES"]["api"]',
        "Rate 10/m",
        "Key ip",
        "Algorithm sliding window",
        "What holds now",
        "For everybody without an override of their own: 20/m",
        "1 subject has an override of its own. All overrides of this rule [quotaoverride/?rule=api]",
        "For everybody:",
        "Change [quotaoverride/81/change/]",
        "Back to what the settings say [quotaoverride/81/delete/]",
        *HEAD_OF_SHARED_OVERRIDES,
        "everybody [quotaoverride/81/change/] | api | 20/m | Jan. 2, 2099, midnight UTC | busy",
        BLOCK_OF_A_NETWORK,
        "Recently",
        "Checks today 2",
        "Refused 1",
        "Last hour 03:41 04:40 UTC peak: 2",
        "Refused last",
        "Subject | Time",
        "ip:192.0.2.1 [subject/?subject=ip%3A192.0.2.1] | 04:40:00 UTC",
    ]


@pytest.mark.usefixtures("raised")
def test_a_rule_that_neither_settings_nor_views_have_has_a_page(client: Client) -> None:
    assert said(client, "quotaoverride/rule/?name=gone") == [
        "What the settings or the view say",
        "Neither the settings nor the views have this rule. Calls in your code may use its name.",
        "What holds now",
        "What the settings or the view say holds for everybody without an override.",
        "0 subjects have overrides of their own. All overrides of this rule [quotaoverride/?rule=gone]",
        "For everybody:",
        "Another rate [quotaoverride/add/?subject=*&rule=gone&mode=rate]",
        "Let it only report [quotaoverride/add/?subject=*&rule=gone&mode=shadow]",
        "Switch it off [quotaoverride/add/?subject=*&rule=gone&mode=exempt]",
        *HEAD_OF_SHARED_OVERRIDES,
        BLOCK_OF_A_NETWORK,
        "Recently",
        "Nothing has been checked today.",
    ]


@pytest.mark.usefixtures("raised")
def test_the_list_of_rules_shows_where_each_is_written(client: Client) -> None:
    assert said(client, "knownrule/") == [
        "Rules",
        "Rule | Rate | Key | Where",
        'api [quotaoverride/rule/?name=api] | 10/m | ip | QUOTA["RULES"]["api"]',
        'login [quotaoverride/rule/?name=login] | 9/m | ip | QUOTA["RULES"]["login"]',
    ]


@pytest.mark.usefixtures("raised")
def test_a_preview_shows_what_another_rate_changes(client: Client) -> None:
    assert said(client, "quotaoverride/preview/", subject="ip:192.0.2.1", rule="api", mode="rate", rate="30/m") == [
        "What this override would do now",
        "ip:192.0.2.1: 30/m :",
        "Each rule now, and with this override",
        "Rule | Now | With this override",
        (
            "api | 20/m: 6 of 20 used, 14 left; the next hit is admitted (by an override) | 30/m: 6 of 30 "
            "used, 24 left; the next hit is admitted (by an override)"
        ),
    ]


@pytest.mark.usefixtures("raised")
def test_a_preview_shows_which_subjects_a_block_of_a_network_refuses(client: Client) -> None:
    assert said(client, "quotaoverride/preview/", subject="ip:192.0.2.0/24", rule="*", mode="blocked") == [
        "What this override would do now",
        "ip:192.0.2.0/24: blocked :",
        (
            "1 of these subjects was refused today, or appears in the last events. With this override, the "
            "next hit of 1 of them is refused."
        ),
        "Each rule now, and with this override",
        "Subject | Rule | Now | With this override",
        (
            "ip:192.0.2.1 | api | 20/m: 6 of 20 used, 14 left; the next hit is admitted (by an override) | "
            "10/m: 6 of 10 used, 4 left; no hit is admitted (blocked by an override)"
        ),
        (
            "ip:192.0.2.1 | login | 9/m: 0 of 9 used, 9 left; the next hit is admitted | 9/m: 0 of 9 used, 9 "
            "left; no hit is admitted (blocked by an override)"
        ),
    ]


@pytest.mark.usefixtures("raised")
def test_the_page_of_a_subject_shows_the_rate_of_an_override(client: Client) -> None:
    assert below_search(said(client, "subject/?subject=ip:192.0.2.1")) == [
        "{subject=ip:192.0.2.1} Right now",
        "No limit on this page refuses the next hit.",
        *links_of("ip:192.0.2.1"),
        "All rules",
        *BUTTONS_OF_ALL_RULES,
        "Rules",
        "api [quotaoverride/rule/?name=api]",
        (
            "20/m by sliding window 6 of 20 used, 14 left 6 of 20 used, 14 left the next hit is admitted (by "
            "an override) ; fully available in 60 seconds"
        ),
        "Override (everybody): 20/m , until Jan. 2, 2099, midnight UTC : busy",
        *buttons_of("api"),
        *UNUSED_LOGIN,
        "{subject=ip:192.0.2.1} Recent refusals",
        *HEAD_OF_REFUSALS,
        "04:40:00 UTC | api | refused | - | 10 | 04:41:00 UTC",
        *HEAD_OF_OVERRIDES,
        (
            "api [quotaoverride/81/change/] | everybody | 20/m | api | active | Nov. 1, 2025, midnight UTC | "
            "Jan. 2, 2099, midnight UTC | busy | - |"
        ),
        *NO_HISTORY,
    ]


@pytest.mark.usefixtures("raised")
def test_a_question_names_the_overrides_before_they_become_blocks(client: Client) -> None:
    assert said(
        client,
        "quotaoverride/",
        action="block_selected",
        _selected_action=[row.pk for row in QuotaOverride.objects.all()],
    ) == [
        "Every request of the subjects of these overrides is refused, under their rules.",
        "3 overrides are selected: 3 active, 0 not yet begun, 0 ended.",
        "everybody, api: 20/m",
        "ip:198.51.100.0/24, all rules: blocked",
        "user:7, api: exempt",
        (
            "{_selected_action=81} {_selected_action=82} {_selected_action=83} {action=block_selected} "
            "{confirmed=yes} This blocks everybody, and so you. If you lock yourself out, this command lifts "
            "it: manage.py quota_override clear '*' --rule api"
        ),
        "{_locks_me_out=1} Block it although it blocks me",
        "Yes, I\N{RIGHT SINGLE QUOTATION MARK}m sure",
        "No, take me back [quotaoverride/]",
    ]


@pytest.mark.usefixtures("raised")
def test_a_question_offers_rates_and_durations_before_a_raise(client: Client) -> None:
    assert said(client, "subject/action/raise/?subject=ip:192.0.2.1&on=api") == [
        (
            'For ip:192.0.2.1, the rates of rule "api" are multiplied from the next request on, for the time '
            "that you choose. What was used before still counts. Not raised: api (an override is in force: "
            "20/m)."
        ),
        "{subject=ip:192.0.2.1} {on=api} {confirmed=yes} Rate, duration and reason",
        "Raise to: (required)",
        "x2: not possible",
        "x5: not possible",
        "x10: not possible",
        "For:",
        "an hour",
        "* a day",
        "seven days",
        "until it is cleared",
        "Reason:",
        "{reason=} Tells others why. Yes: Raise for a day",
        "No, take me back [subject/?subject=ip%3A192.0.2.1]",
    ]


@pytest.mark.usefixtures("used")
def test_the_page_of_a_subject_shows_usage_that_is_in_the_database(client: Client) -> None:
    assert below_search(said(client, "subject/?subject=user:7")) == [
        "{subject=user:7} Right now",
        "No limit on this page refuses the next hit.",
        *links_of("user:7"),
        "All rules",
        *BUTTONS_OF_ALL_RULES,
        "Rules",
        "Nothing is used, and no override or ban is in force.",
        *UNUSED_LOGIN,
        "1 rule that cannot be read",
        "trial neither the settings nor the views have this name, and it does not contain the rate and options",
        "1 rule that counts others",
        "api counts by ip. Subjects look like ip:192.0.2.1.",
        "{subject=user:7} Overrides",
        "There are none.",
        "The last days",
        "Checks of the last days, by rule",
        "Day | Rule | Allowed | Refused | Units",
        "Nov. 21, 2025 | login | 2 | 1 | 2",
        "Nov. 21, 2025 | trial | 1 | 1 | 1",
        "Nov. 20, 2025 | api | 1,200 | 3 | 4,000",
        *NO_HISTORY,
    ]


@pytest.mark.usefixtures("used")
def test_the_page_of_usage_shows_that_of_one_rule(client: Client) -> None:
    assert below_search(said(client, "dailycounter/usage/?subject=user:7&rule=login")) == [
        "user:7 · only the rule login (show all rules [?subject=user%3A7])",
        "Totals",
        "Time | Allowed | Refused | Units",
        "This year | 2 | 1 | 2",
        "This month | 2 | 1 | 2",
        "Today | 2 | 1 | 2",
        "The year 2025",
        "* 2025 [?subject=user%3A7&rule=login&year=2025]",
        "Checks a day:",
        "none",
        "1-3",
        "some refused",
        "Day by day",
        "* Last 30 days [?subject=user%3A7&rule=login&days=30]",
        "Last 90 days [?subject=user%3A7&rule=login&days=90]",
        "2025 [?subject=user%3A7&rule=login&days=year]",
        "allowed",
        "refused",
        "Show as a table",
        "Days with checks, newest first",
        "Day | Allowed | Refused | Units",
        "Nov. 21, 2025 | 2 | 1 | 2",
        "Busiest rules in 2025",
        "Rules, busiest first",
        "Rule | Allowed | Refused | Units",
        "api [?subject=user%3A7&rule=api] | 1,200 | 3 | 4,000",
        "* login [?subject=user%3A7] | 2 | 1 | 2",
        "trial [?subject=user%3A7&rule=trial] | 1 | 1 | 1",
    ]


@pytest.mark.usefixtures("refused")
def test_the_search_for_a_subject_shows_who_was_refused_last(client: Client) -> None:
    assert below_search(said(client, "subject/")) == [
        "Refused last",
        "Refused last",
        "Subject | Rule | When",
        "ip:192.0.2.1 [subject/?subject=ip%3A192.0.2.1] | api [quotaoverride/rule/?name=api] | 04:40:00 UTC",
    ]


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    "url",
    [
        pytest.param("subject/?subject={}", id="a subject"),
        pytest.param("subject/action/reset/?subject={}", id="an action"),
        pytest.param("dailycounter/usage/?subject={}", id="usage"),
        pytest.param("quotaoverride/rule/?name={}", id="a rule"),
    ],
)
def test_a_title_has_eighty_characters_of_a_long_name(client: Client, url: str) -> None:
    page = client.get(f"/admin/django_quota/{url.format('name:' + 'x' * 90)}").content.decode()

    assert f"name:{'x' * 74}\N{HORIZONTAL ELLIPSIS}" in page.partition("</title>")[0]


@pytest.mark.usefixtures("redis_cache")
def test_the_overview_shows_the_figures_of_a_redis(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    server = {"version": "7.2.4", "role": "master", "uptime": 7_200, "used": 2_048, "most": 4_096, "clients": 1_003}
    found = Health(0.001234, **server, policy="noeviction", keys=5_000, events=7_000)  # type: ignore[arg-type]
    monkeypatch.setattr(overview, "health", lambda *_: found)
    with freeze(START):
        ban("login", "user:7", "20m")

    lines = said(client, "overview/content/")

    assert lines[:8] == [
        "Checks today 0",
        "yesterday 0",
        "Refused -",
        "no checks yesterday",
        "Bans [ban/] 1",
        "now",
        "The store up",
        "1.23 ms",
    ]
    assert lines[lines.index("Most refused today") + 1 :] == [
        "Nobody has been refused today.",
        "Bans",
        "The next 1 of 1 to end",
        "Subject | Ends",
        "user:7 [subject/?subject=user%3A7] by login | in 20 minutes",
        "All bans [ban/]",
        "Slots and locks",
        "None was used recently.",
        "The store",
        "Answers in 1.23 ms",
        "Redis 7.2.4, the primary",
        "Up for 2 hours",
        "Memory 2.0 KB of 4.0 KB",
        "When full noeviction",
        "Clients 1,003",
        "Keys 5,000",
        "Events kept 7,000",
        "Rolled up to never; run quota_rollup",
    ]


NOT_ROLLED_UP = "Rolled up to never; run quota_rollup"


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(
    ("found", "lines"),
    [
        pytest.param(Health(0.001), ["Answers in 1.00 ms", NOT_ROLLED_UP], id="nothing more is known"),
        pytest.param(
            Health(0.02, "8.2.1", role="slave", uptime=0, used=2_048, most=0, keys=0, events=0),
            [
                "Answers in 20.00 ms",
                "Redis 8.2.1, a replica",
                "Up for 1 second",
                "Memory 2.0 KB (no limit)",
                "Keys 0",
                "Events kept 0",
                NOT_ROLLED_UP,
            ],
            id="a replica without a limit of memory",
        ),
        pytest.param(
            Health(
                0.001,
                used=3_072,
                most=8_192,
                parts=[Health(0.001, used=1_024, most=4_096), Health(0.001, used=2_048, most=4_096)],
                silent=["127.0.0.1:7002"],
            ),
            ["Answers in 1.00 ms", "Memory 3.0 KB of 8.0 KB", "Servers 3", "Memory of the fullest 50 %", NOT_ROLLED_UP],
            id="a Cluster",
        ),
        pytest.param(
            Health(0.001, parts=[Health(0.001, used=9, most=0), Health(0.001)]),
            ["Answers in 1.00 ms", "Servers 2", NOT_ROLLED_UP],
            id="a Cluster without a limit of memory",
        ),
    ],
)
def test_the_overview_shows_what_is_known_of_a_redis(
    client: Client, monkeypatch: pytest.MonkeyPatch, found: Health, lines: list[str]
) -> None:
    monkeypatch.setattr(overview, "health", lambda *_: found)

    shown = said(client, "overview/content/")

    assert shown[len(shown) - shown[::-1].index("The store") :] == lines


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    "page",
    [
        "overview/",
        "overview/events/",
        "subject/?subject=user:1",
        "dailycounter/usage/?subject=user:1",
        "quotaoverride/rule/?name=api",
    ],
)
def test_a_page_keeps_the_styles_of_the_site(page: str, settings: Any) -> None:
    base = "{% extends 'admin/base.html' %}{% block extrastyle %}{{ block.super }}<link href='site.css'>{% endblock %}"
    own = ("django.template.loaders.locmem.Loader", {"admin/base_site.html": base})
    loaders = [own, "django.template.loaders.app_directories.Loader"]
    options = {**settings.TEMPLATES[0]["OPTIONS"], "loaders": loaders}
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "APP_DIRS": False, "OPTIONS": options}]

    assert "<link href='site.css'>" in superuser().get(f"/admin/django_quota/{page}").content.decode()
