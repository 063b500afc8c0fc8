"""The overview: it shows what the store counts, with few round trips and queries, to those with the permission."""

import re
from dataclasses import replace
from datetime import UTC, date, datetime
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock, Mock

import pytest
import redis
from django.contrib.auth import get_user_model
from django.test import Client, RequestFactory
from django.utils import timezone
from redis.connection import AbstractConnection

from django_quota import Rule, ban, check, slot
from django_quota.admin import overview
from django_quota.admin.overview import _database_warnings, _warnings
from django_quota.admin.wording import local_moment, moment_in_words
from django_quota.core.clock import DAY
from django_quota.core.errors import StoreUnavailable
from django_quota.engine.system_operations import OTHER
from django_quota.features.bans import ActiveBan
from django_quota.features.events import EVENTS_A_PAGE, SEARCHED
from django_quota.limiting.metrics import SLOT_TTL
from django_quota.limiting.registry import get_limiter
from django_quota.models import DailyCounter, QuotaOverride
from django_quota.operating.activity import (
    DayTotal,
    Minute,
    RuleActivity,
    SlotUse,
    _rules,
    activity,
    running_totals,
    subjects_seen,
)
from django_quota.operating.health import Health, _joined, health
from django_quota.stores.redis.store import RedisStore
from django_quota.testing import QuotaKit, freeze
from tests.admin.operators import operator
from tests.admin.texts import lines_of
from tests.support.databases import OwnReplicaLags
from tests.support.events import event_fields
from tests.support.steps import MINUTE, SECOND, START
from tests.support.stores import caches, current_store

PAGE = "/admin/django_quota/overview/"
CONTENT = f"{PAGE}content/"
SUBJECT = "ip:203.0.113.9"
LOGIN = Rule.make("login", "1/m", ban={"after": "5/m", "for": "10m"})


@pytest.fixture
def client(database: dict[str, Any]) -> Client:
    return operator("view_overview", "view_subject")


def shown(client: Client, url: str = PAGE, **asked: str) -> str:
    answer = client.get(url, asked)
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.fixture
def three_allowed(client: Client, either_store: None) -> None:
    """Five checks of a rule, two of them refused, and more of one that refused none."""
    for _ in range(5):
        check("3/m", SUBJECT, name="search")
    for _ in range(7):
        check("9/m", "ip:203.0.113.10", name="busy")


@pytest.mark.usefixtures("three_allowed")
def test_the_rule_that_refused_most_is_the_first(client: Client) -> None:
    assert re.findall(r'<th scope="row">(busy|search)</th>', shown(client)) == ["search", "busy"]


@pytest.mark.usefixtures("three_allowed")
def test_it_shows_how_many_checks_of_a_rule_were_refused(client: Client) -> None:
    row = re.search(r'<th scope="row">search</th>(.*?)</tr>', shown(client), re.DOTALL)

    assert row is not None
    assert re.findall(r">(\d+)<", row[1])[:3] == ["5", "3", "2"]
    assert "3 allowed, 2 refused; at most 5 in a minute" in row[1]


@pytest.mark.usefixtures("three_allowed")
def test_it_shows_who_was_refused(client: Client) -> None:
    assert re.search(rf"{SUBJECT}(</a>|</span>)\s*</th><td class=\"quota-number\">2<", shown(client))


@pytest.mark.usefixtures("memory_store")
def test_rules_that_refused_as_many_are_in_the_order_of_their_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [
        RuleActivity(OTHER, allowed=9_000, refused=900),
        RuleActivity("quiet", allowed=1, refused=2),
        RuleActivity("traffic", allowed=90, refused=2),
        RuleActivity("strict", allowed=0, refused=3),
    ]
    with freeze(START):
        found = replace(activity(), rules=rules)
        monkeypatch.setattr(overview, "activity", lambda: found)
        figures = overview._figures(current_store())

    assert [rule.rule for rule, _ in figures["rules"]] == ["strict", "traffic", "quiet", None]


@pytest.mark.usefixtures("redis_cache")
def test_it_has_a_line_for_what_has_no_name(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [RuleActivity(DIGEST, allowed=1, minutes=[Minute(1, 0)]), RuleActivity(OTHER, allowed=9_000, refused=900)]
    slots = [SlotUse("user:7", None, 1, 2)]
    with freeze(START):
        bans = [ActiveBan(None, None, START + MINUTE), ActiveBan("user:7", None, START + 2 * MINUTE)]
        found = replace(activity(), rules=rules, slots=slots, bans=bans, banned=2)
    monkeypatch.setattr(overview, "activity", lambda: found)

    lines = lines_of(shown(client, CONTENT))

    assert [line for line in lines if " | " in line] == [
        "Rule | Per minute | Allowed | Refused | 03:41 Last hour 04:40",
        "a name too long to keep | 0 | 1 | 0 | peak: 1",
        "all others | | 9,000 | 900 |",
        "Subject | Ends",
        "a name too long to keep | in 60 seconds",
        "user:7 [subject/?subject=user%3A7] | in 2 minutes",
        "Slot | Held",
        "\N{HORIZONTAL ELLIPSIS} user:7 [subject/?subject=user%3A7] | 1 of 2",
    ]


@pytest.mark.usefixtures("states_on_sqlite")
def test_it_measures_how_long_a_database_takes_to_answer(
    client: Client, settings: Any, states_on_sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.QUOTA = {**settings.QUOTA, "STORE": "database", "DATABASE": states_on_sqlite}
    monkeypatch.setattr(overview, "perf_counter", iter([7.0, 7.00512]).__next__)

    page = shown(client, CONTENT)

    assert "<dt>Answers in</dt><dd>5.12 ms</dd>" in page
    assert "<dt>Redis</dt>" not in page


@pytest.mark.usefixtures("memory_store")
def test_it_begins_with_today_beside_yesterday(client: Client, the_clock_stands: QuotaKit) -> None:
    for _ in range(4):
        check("1/d", SUBJECT, name="search")
    get_limiter().metrics.flush()
    the_clock_stands.advance("1d")
    for rule in ("search", "api", "api"):
        check("9/m", SUBJECT, name=rule)

    part = shown(client).split('<dl class="quota-summary">')[1].split("</dl>")[0]

    words = " ".join(re.sub("<[^>]*>", " ", part).split())
    assert words.startswith("Checks today 3 yesterday 4 Refused 0.0 % yesterday 75.0 %")


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    "words",
    [
        pytest.param("Nothing has been checked today.", id="checks"),
        pytest.param("Nobody has been refused today.", id="refused subjects"),
        pytest.param("each process counts by itself", id="processes"),
        pytest.param("Nothing has been refused.", id="events"),
    ],
)
def test_it_says_that_a_part_is_empty(client: Client, words: str) -> None:
    assert words in shown(client)


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        pytest.param({"kind": "near"}, "No event matches.", id="a kind"),
        pytest.param({"rule": "search"}, "No event matches.", id="a rule"),
        pytest.param({"subject": "user:7"}, "No event matches.", id="a subject"),
        pytest.param({"kind": "typo", "rule": " "}, "Nothing has been refused.", id="nothing that is known"),
    ],
)
def test_it_says_whether_a_filter_hides_all_events(client: Client, wanted: dict[str, str], words: str) -> None:
    found = re.findall(r'<p class="quota-none">(N[^<]*(?:matches|refused)\.)</p>', shown(client, CONTENT, **wanted))

    assert found == [words]


@pytest.mark.usefixtures("memory_store")
def test_a_flood_hides_no_event_before_it(client: Client) -> None:
    check("0/m", "org:7", name="calm")
    for number in range(overview.EVENTS_SHOWN + 10):
        check("0/m", f"user:{number}", name="flood")

    page = shown(client, CONTENT)

    assert f">refused {overview.EVENTS_SHOWN + 10} users since" in page
    assert "by calm:" in page


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    "events", [pytest.param(1_000, id="by an event alone"), pytest.param(0, id="by the list of the refused alone")]
)
def test_a_user_is_named_wherever_the_page_has_them(database: Any, settings: Any, events: int) -> None:
    settings.QUOTA = {**settings.QUOTA, "EVENTS": events}
    ann = get_user_model().objects.create_user("ann")
    check("5/m", ann, 5, name="near") if events else check("0/m", ann, name="closed")

    page = shown(operator("view_overview", "auth.view_user"), CONTENT)

    assert page.count(f">ann (user:{ann.pk})</span>") == 1


@pytest.mark.usefixtures("memory_store")
def test_an_event_names_the_user_who_sent_its_request(database: Any) -> None:
    request = RequestFactory().get("/a/", REMOTE_ADDR="192.0.2.1")
    request.user = get_user_model().objects.create_user("ann")
    check("0/m", request, name="closed")

    page = shown(operator("view_overview", "auth.view_user"), CONTENT)

    assert '<span class="quota-sender">ann GET /a/</span>' in page


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("page", [PAGE, f"{PAGE}events/"], ids=["overview", "events"])
def test_the_kind_that_is_shown_is_chosen_in_the_filter(client: Client, page: str) -> None:
    assert re.findall(r'<option value="(\w*)" selected>', shown(client, page, kind="near")) == ["near"]


@pytest.mark.usefixtures("memory_store")
def test_it_says_that_nobody_was_refused_though_rules_were_checked(client: Client) -> None:
    check("9/m", SUBJECT, name="search")

    assert "Nobody has been refused today." in shown(client)


@pytest.mark.usefixtures("memory_store")
def test_it_shows_that_all_slots_are_taken(client: Client) -> None:
    with slot("export", 1, subject=SUBJECT):
        page = shown(client, CONTENT)

    assert re.search(r"export.*?1 of 1 <strong[^>]*>full", page, re.DOTALL)


@pytest.mark.usefixtures("memory_store")
def test_it_says_that_limits_are_switched_off(client: Client, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "ENABLED": False}

    assert "Limits are switched off" in shown(client)


@pytest.mark.usefixtures("memory_store")
def test_it_warns_of_overrides_that_cannot_be_read(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "The overrides cannot be read from the database. Those that were read last hold: "
    calm = shown(client)

    monkeypatch.setattr(overview, "overrides", Mock(problem="too many clients"))

    assert words not in calm
    assert f"</strong> {words}too many clients</p>" in shown(client)


@pytest.mark.usefixtures("redis_cache")
def test_it_warns_of_overrides_that_cannot_be_read_beside_the_risks_of_redis(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "overrides", Mock(problem="too many clients"))
    monkeypatch.setattr(overview, "health", lambda *_: Health(0.1, role="slave"))

    page = shown(client)

    assert "This Redis is a replica." in page
    assert "The overrides cannot be read from the database." in page


@pytest.mark.usefixtures("redis_cache")
def test_it_warns_of_the_database_of_rules_beside_the_risks_of_redis(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Mock()
    silent.store.database.ping.side_effect = StoreUnavailable("it is gone")
    monkeypatch.setattr(overview, "counting_stores", lambda: [Mock(), silent])
    monkeypatch.setattr(overview, "health", lambda *_: Health(0.1, role="slave"))

    words = re.findall(r"<strong>Warning:</strong> (.*?)</p>", shown(client, CONTENT))

    assert words == [
        "This Redis is a replica. It accepts no writes, so nothing is counted.",
        (
            "The database of rules with store=&quot;database&quot; does not answer: The quota store is unavailable: "
            "it is gone"
        ),
    ]


@pytest.mark.usefixtures("redis_cache")
def test_it_says_why_no_events_arrive(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "health", lambda *_: Health(0.1, refuses="OOM"))

    page = shown(client, CONTENT)

    assert "The store accepts no changes, so no events arrive." in page
    assert "Nothing has been refused." not in page


@pytest.mark.usefixtures("redis_cache")
def test_it_knows_the_last_rolled_up_day_though_a_replica_lags(client: Client, settings: Any) -> None:
    DailyCounter.objects.create(subject="user:1", rule="api", day=date(2026, 3, 15))
    settings.DATABASE_ROUTERS = [OwnReplicaLags()]

    assert "<dt>Rolled up to</dt><dd>March 15, 2026</dd>" in shown(client, CONTENT)


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("page", ["overview/", "subject/?subject=user%3A1", "ban/"])
def test_it_says_in_red_that_an_override_exempts_everybody(database: Any, page: str) -> None:
    client = operator("view_overview", "view_subject", "view_ban")
    words = '<p class="errornote">An override exempts everybody from all rules, so nothing is limited.</p>'
    assert words not in shown(client, f"/admin/django_quota/{page}")
    QuotaOverride.objects.create(subject="*", mode="exempt")
    assert words in shown(client, f"/admin/django_quota/{page}")


@pytest.mark.usefixtures("redis_cache")
class TestOnRedis:
    @pytest.fixture
    def two_bans(self, redis_cache: None) -> None:
        for subject in (SUBJECT, "ip:203.0.113.10"):
            ban(LOGIN, subject, "10m")

    @pytest.mark.usefixtures("two_bans")
    @pytest.mark.parametrize("words", ["The next 2 of 2 to end", "in 10 minutes"])
    def test_it_shows_when_bans_end(self, client: Client, words: str) -> None:
        assert words in shown(client)

    def test_a_slot_whose_key_another_program_has_is_left_out(self, raw: redis.Redis) -> None:
        for name in ("export", "report"):
            slot(name, 2).acquire()
        raw.set("quota:1:{global}:l:report", "text")

        assert [(use.name, use.held) for use in activity().slots] == [("export", 1)]

    @pytest.mark.usefixtures("two_bans")
    def test_a_ban_links_to_its_subject(self, client: Client) -> None:
        assert '<a href="/admin/django_quota/subject/?subject=ip%3A203.0.113.9">' in shown(client)

    @pytest.mark.usefixtures("two_bans")
    def test_a_ban_has_no_link_for_those_who_may_not_see_subjects(self, database: Any) -> None:
        page = shown(operator("view_overview", name="looks"))

        assert (SUBJECT in page, "?subject=" in page) == (True, False)

    def test_names_of_users_are_for_those_who_may_see_users(self, database: Any) -> None:
        kamala = get_user_model().objects.create_user("kamala")
        check("0/m", kamala, name="a")

        seen = shown(operator("view_overview", "auth.view_user"))
        unseen = shown(operator("view_overview", name="looks"))

        assert seen.count(f">kamala (user:{kamala.pk})</span>") == 2
        assert "kamala" not in unseen

    def test_a_ban_has_the_name_of_its_user(self, database: Any) -> None:
        kamala = get_user_model().objects.create_user("kamala")
        ban(LOGIN, kamala, "10m")

        without_its_event = "/admin/django_quota/overview/?kind=near"
        seen = shown(operator("view_overview", "auth.view_user"), without_its_event)

        assert f">kamala (user:{kamala.pk})</span>" in seen

    @pytest.mark.usefixtures("two_bans")
    def test_who_may_view_bans_has_a_link_to_them(self, database: Any) -> None:
        content = shown(operator("view_overview", "view_ban"), "/admin/django_quota/overview/content/")

        assert '<a href="/admin/django_quota/ban/">Bans</a>' in content

    @pytest.fixture
    def four_events(self, redis_cache: None) -> None:
        for rule in ("search", "api"):
            check("0/m", SUBJECT, name=rule)
            check("10/m", "user:7", 9, name=rule)

    @pytest.mark.usefixtures("four_events")
    @pytest.mark.parametrize(
        ("wanted", "kinds"),
        [
            pytest.param({}, ["near", "near", "refused", "refused"], id="all"),
            pytest.param({"kind": "near"}, ["near", "near"], id="a kind"),
            pytest.param({"kind": "typo"}, ["near", "near", "refused", "refused"], id="an unknown kind"),
            pytest.param({"rule": "sear", "subject": "user:"}, ["near"], id="the beginning of a rule's name"),
            pytest.param({"subject": "203"}, ["refused", "refused"], id="a part of a subject"),
            pytest.param({"kind": " near ", "rule": " sear ", "subject": " user: "}, ["near"], id="between spaces"),
        ],
    )
    def test_events_can_be_filtered(self, client: Client, wanted: dict[str, str], kinds: list[str]) -> None:
        page = shown(client, CONTENT, **wanted)

        assert sorted(re.findall(r"quota-kind-(\w+)", page)) == kinds

    @pytest.mark.usefixtures("redis_cache")
    def test_fifty_events_are_shown(self, client: Client) -> None:
        for number in range(51):
            check("5/m", f"org:{number}", 4, name="near")

        assert shown(client).count('<li class="quota-event">') == 50

    @pytest.mark.usefixtures("four_events")
    def test_it_says_that_no_event_matches(self, client: Client) -> None:
        assert "No event matches." in shown(client, rule="nobody")

    @pytest.mark.usefixtures("four_events")
    def test_an_open_page_refreshes_what_its_filter_shows(self, client: Client) -> None:
        page = shown(client, rule="nobody")

        assert f'data-content-url="{CONTENT}?rule=nobody"' in page
        assert 'data-refresh-interval="5"' in page  # seconds

    @pytest.mark.parametrize("name", ["page", "site", "self"])
    def test_a_parameter_of_any_name_is_kept_when_an_open_page_refreshes(self, client: Client, name: str) -> None:
        assert f'data-content-url="{CONTENT}?{name}=2"' in shown(client, f"{PAGE}?{name}=2")

    def test_the_content_view_has_only_the_part_that_changes(self, client: Client) -> None:
        content = shown(client, CONTENT)

        assert 'id="quota-rules-title"' in content
        assert "<html" not in content

    def test_the_newest_events_are_first(self, client: Client, raw: redis.Redis) -> None:
        raw.xadd("quota:1:{!}:events", {"foreign": "entry"})
        for number in range(overview.EVENTS_SHOWN + 5):
            check("0/m", f"user:{number}", name=f"rule{number}")

        content = shown(client, CONTENT)

        feed = content.partition('id="quota-events"')[2].partition("</ol>")[0]
        found = re.findall(r">user:(\d+)<", feed)
        assert found == [str(number) for number in range(overview.EVENTS_SHOWN + 4, 4, -1)]

    @pytest.mark.parametrize(
        ("number", "is_said"), [(SEARCHED, False), (SEARCHED + 1, True)], ids=["as many as are searched", "more"]
    )
    @pytest.mark.parametrize(
        "page",
        [f"{CONTENT}?subject=nobody", "/admin/django_quota/quotaoverride/rule/?name=calm"],
        ids=["overview", "rule"],
    )
    def test_a_search_that_finds_nothing_looks_at_a_bounded_part_of_the_events(
        self, raw: redis.Redis, database: Any, page: str, number: int, is_said: bool
    ) -> None:
        client = operator("view_overview", "view_quotaoverride")
        fields = event_fields()
        with raw.pipeline(transaction=False) as pipeline:
            for _ in range(number):
                pipeline.xadd("quota:1:{!}:events", cast("Any", fields))
            pipeline.execute()
        raw.config_resetstat()

        html = shown(client, page)

        assert ("Only the last 5,000 events were searched." in html) == is_said
        calls = cast("Any", raw).info("commandstats")["cmdstat_xrevrange"]["calls"]
        assert calls <= SEARCHED // EVENTS_A_PAGE + 1

    @pytest.mark.parametrize("use_tz", [True, False], ids=["USE_TZ", "without USE_TZ"])
    def test_times_are_in_the_time_zone_of_the_site(
        self, client: Client, raw: redis.Redis, settings: Any, use_tz: bool
    ) -> None:
        settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Tokyo"
        noon = int(datetime(2026, 11, 21, 3, tzinfo=UTC).timestamp())
        raw.xadd("quota:1:{!}:events", event_fields(until=(noon + 90) * SECOND), id=f"{noon}000-0")

        with freeze(noon * SECOND):
            page = shown(client, CONTENT)

        assert ">12:00:00</time>" in page
        assert "until 12:01:30 JST" in page

    @pytest.fixture
    def many_rules(self, redis_cache: None) -> None:
        """More rules than the page has rows, of which one was checked twice."""
        for number in range(55):
            check("5/m", f"ip:192.0.2.{number}", name=f"rule{number}")
        check("5/m", SUBJECT, name="rule7")

    @pytest.mark.usefixtures("many_rules")
    def test_the_busiest_rules_have_a_row_each_before_the_rest(self) -> None:
        rules = activity().rules

        assert (len(rules), rules[0].rule, rules[-1].is_rest) == (51, "rule7", True)
        assert sum(rule.total for rule in rules) == 56

    @pytest.fixture
    def busy_site(self, client: Client, raw: redis.Redis, many_rules: None) -> None:
        """Many rules, bans, slots; the page was shown once, and something was checked after it."""
        for number in range(20):
            ban(LOGIN, f"ip:198.51.100.{number}", "10m")
            slot(f"slot{number}", 2).acquire()
        client.get(PAGE)
        raw.config_resetstat()
        check("5/m", SUBJECT, name="one more")

    @pytest.mark.thorough("slow")
    @pytest.mark.usefixtures("busy_site")
    def test_a_busy_site_takes_few_round_trips(
        self, client: Client, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trips = []
        send: Any = AbstractConnection.send_packed_command

        def count(self: Any, command: Any, *args: Any, **kwargs: Any) -> Any:
            trips.append(command)
            return send(self, command, *args, **kwargs)

        with monkeypatch.context() as patched:
            patched.setattr(AbstractConnection, "send_packed_command", count)
            answer = client.get(PAGE)

        assert answer.status_code == 200
        assert len(trips) <= 14
        assert not {"cmdstat_keys", "cmdstat_scan"} & set(raw.info("commandstats"))

    @pytest.mark.usefixtures("busy_site")
    def test_a_busy_site_takes_few_queries(self, client: Client, django_assert_num_queries: Any) -> None:
        with django_assert_num_queries(5):  # four of the admin: who it is, and what they may; one of ours
            assert client.get(PAGE).status_code == 200

    @pytest.mark.parametrize(
        ("rows", "words"),
        [
            pytest.param([], '<span class="quota-quiet">never; run quota_rollup</span>', id="never"),
            pytest.param([date(2026, 3, 14), date(2026, 3, 15), date(2026, 3, 1)], "March 15, 2026", id="a day"),
        ],
    )
    def test_it_says_up_to_which_day_usage_is_in_the_database(
        self, client: Client, rows: list[date], words: str
    ) -> None:
        DailyCounter.objects.bulk_create(DailyCounter(subject="user:1", rule="api", day=day) for day in rows)

        assert f"<dt>Rolled up to</dt><dd>{words}</dd>" in shown(client)

    @pytest.fixture
    def no_redis(self, redis_cache: None, settings: Any) -> None:
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "unix:///nowhere/redis.sock"}}

    @pytest.mark.usefixtures("no_redis")
    def test_it_reports_a_store_that_does_not_answer(self, client: Client) -> None:
        page = shown(client)

        assert "The store does not answer." in page
        assert '<p class="errornote">The store fails, so nothing is limited, except by rules with an' in page
        assert "Nothing has been refused" not in page

    @pytest.mark.usefixtures("no_redis")
    def test_it_warns_of_overrides_that_cannot_be_read_though_the_store_does_not_answer_either(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(overview, "overrides", Mock(problem="too many clients"))

        words = "The overrides cannot be read from the database. Those that were read last hold: too many clients"
        assert f"<strong>Warning:</strong> {words}</p>" in shown(client)

    @pytest.mark.usefixtures("no_redis")
    def test_it_does_not_call_a_site_unlimited_that_fails_closed(self, client: Client, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ON_UNAVAILABLE": "deny"}

        assert "so nothing is limited" not in shown(client)

    @pytest.mark.parametrize(
        ("command", "says"),
        [
            pytest.param(
                "ping",
                [
                    "The store answers, but does not permit what this page reads.",
                    "docs/going_live.md lists the commands that the Redis user of the admin needs.",
                    "&#x27;ping&#x27;",  # what it lacks
                ],
                id="ping",
            ),
            pytest.param("xrevrange", ["The store does not permit this page to read events."], id="xrevrange"),
        ],
    )
    def test_it_reports_a_missing_redis_permission(
        self, command: str, says: list[str], client: Client, settings: Any, redis_server: Any, raw: Any
    ) -> None:
        raw.execute_command("ACL", "SETUSER", "web", "on", "nopass", "~*", "+@all", f"-{command}")
        try:
            settings.CACHES = caches(redis_server, username="web", password="any")
            page = shown(client)
        finally:
            raw.execute_command("ACL", "DELUSER", "web")

        assert "store does not answer" not in page
        assert [words for words in says if words not in page] == []

    @pytest.mark.parametrize(
        ("problem", "says"),
        [
            ("full", ["The memory of Redis is full (", "of 1.0\xa0KB), so it accepts no changes", "Answers in"]),
            ("replica", ["This Redis is a replica", "Redis says: ReadOnlyError"]),
        ],
    )
    def test_it_reports_a_redis_that_accepts_no_changes(
        self, problem: str, says: list[str], client: Client, raw: redis.Redis
    ) -> None:
        check("0/m", SUBJECT, name="login")
        get_limiter().metrics.flush()
        assert check("5/m", "user:9")  # whose metrics cannot be sent
        try:
            raw.config_set("maxmemory", 1024) if problem == "full" else raw.replicaof("127.0.0.1", 1)
            page = shown(client)
        finally:
            raw.config_set("maxmemory", 0)
            raw.replicaof("NO", "ONE")

        assert [words for words in says if words not in page] == []
        assert not re.search("nearly full|does not answer|Nothing has been refused", page)
        assert f">{SUBJECT}</a>" in page, "events that were there are shown"
        assert list(raw.scan_iter("*probe*")) == []


def test_the_rest_has_what_its_rules_have_taken_ahead() -> None:
    *_, rest = _rules({"busy:a": 9, "late:a": 1, "late:p": 3}, most=1)

    assert (rest.is_rest, rest.allowed, rest.spent) == (True, 4, 3)


def test_rules_whose_shadows_let_most_pass_come_first() -> None:
    counts = {"a:a": 4, "a:r": 3, "b:a": 2, "b:s": 6, "c:p": 1, "c:a": 4}

    found = [(rule.rule, rule.total) for rule in _rules(counts)]

    assert found == [("b", 8), ("a", 7), ("c", 5)]


DIGEST = f"~{'0' * 64}"


@pytest.mark.parametrize(
    ("part", "rule", "label"),
    [
        pytest.param("search", "search", "search", id="a name"),
        pytest.param("a%20b", "a b", "a b", id="a name that is escaped"),
        pytest.param(DIGEST, None, DIGEST, id="a digest of a long name"),
        pytest.param("*", None, "other", id="the rest"),
    ],
)
def test_an_exporter_calls_a_rule_by_its_name_or_digest(part: str, rule: str | None, label: str) -> None:
    found = RuleActivity(part)

    assert (found.rule, found.label) == (rule, label)


@pytest.mark.parametrize(
    ("name", "held", "label", "is_full"),
    [
        pytest.param("export", 1, "export", False, id="one is free"),
        pytest.param("export", 2, "export", True, id="none is free"),
        pytest.param("export", 3, "export", True, id="more than may hold it"),
        pytest.param(None, 1, "other", False, id="a name that is too long"),
    ],
)
def test_a_slot_is_full_when_as_many_hold_it_as_may(name: str | None, held: int, label: str, is_full: bool) -> None:
    use = SlotUse("global", name, held, 2)

    assert (use.label, use.is_full) == (label, is_full)


@pytest.mark.usefixtures("either_store")
class TestActivity:
    """What all processes have decided, and which slots they hold."""

    def test_a_refused_subject_is_listed_as_it_was_written(self) -> None:
        check("0/m", "org:a*b")

        assert [each.subject for each in activity().refused] == ["org:a*b"]

    def test_the_twenty_subjects_that_were_refused_most_are_listed(self) -> None:
        with freeze(START):
            for number in range(22):
                for _ in range(number + 1):
                    check("0/m", f"user:{number}")
            found = activity().refused

        assert [(each.subject, each.count) for each in found[:2]] == [("user:21", 22), ("user:20", 21)]
        assert len(found) == 20

    def test_activity_has_the_moment_and_the_day_of_the_store(self) -> None:
        with freeze(START):
            found = activity()

        assert (found.now, found.day) == (START, date(2025, 11, 21))

    def test_the_slots_that_were_asked_for_last_are_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_quota.operating.activity.MAX_SLOTS_READ", 2)
        for number, name in enumerate("bca"):
            with freeze(START + number * MINUTE):
                slot(name, 2).acquire()
                get_limiter().metrics.flush()
        with freeze(START + 2 * MINUTE):
            found = activity().slots

        assert [use.name for use in found] == ["a", "c"]

    def test_the_running_totals_are_those_of_all_days(self) -> None:
        for day in (0, 1):
            with freeze(START + day * DAY):
                for _ in range(3):
                    check("2/m", SUBJECT, name="search")
                slot("export", 2, subject="user:7").acquire()
                found = running_totals()

        assert [(rule.rule, rule.allowed, rule.refused, rule.minutes) for rule in found.rules] == [("search", 4, 2, [])]
        assert (found.outages, found.banned, found.slots) == (0, 0, [SlotUse("user:7", "export", 1, 2)])

    def test_the_fullest_slots_come_first(self) -> None:
        with freeze(START):
            for name, held, limit in (("half", 2, 4), ("full", 1, 1), ("most", 2, 3), ("busy", 1, 1)):
                for _ in range(held):
                    slot(name, limit).acquire()
            found = activity().slots

        uses = [(each.name, each.held, each.limit) for each in found]
        assert uses == [("busy", 1, 1), ("full", 1, 1), ("most", 2, 3), ("half", 2, 4)]

    def test_a_slot_of_which_only_a_digest_is_known_comes_before_one_as_full_with_a_name(self) -> None:
        with freeze(START):
            for name in ("export", "s" * 300):
                slot(name, 2).acquire()

            assert [each.name for each in activity().slots] == [None, "export"]

    def test_twenty_slots_are_shown(self) -> None:
        with freeze(START):
            for number in range(22):
                slot(f"slot{number}", 2).acquire()
            found = activity()

        assert (len(found.slots), found.fullest_slots) == (22, found.slots[:20])

    @pytest.mark.parametrize(
        ("later", "held"),
        [
            pytest.param(30 * SECOND - 1, [2], id="before a lease ends"),
            pytest.param(30 * SECOND, [1], id="as the first ends"),
            pytest.param(50 * SECOND, [0], id="as the last ends"),
            pytest.param(SLOT_TTL - 1, [0], id="while it is still shown"),
            pytest.param(SLOT_TTL, [], id="as it is no longer shown"),
        ],
    )
    def test_a_slot_is_in_use_until_its_lease_ends(self, later: int, held: list[int]) -> None:
        with freeze(START):
            for lease in (30, 50):
                slot("export", 2, lease).acquire()
            activity()  # sends which slots were used
        with freeze(START + later):
            found = activity().slots

        assert [each.held for each in found] == held

    @pytest.mark.parametrize(
        ("left", "held"), [pytest.param(1, [1], id="before its lease ends"), pytest.param(0, [], id="as it ends")]
    )
    def test_a_slot_is_shown_for_as_long_as_a_lease_lasts(self, left: int, held: list[int]) -> None:
        with freeze(START):
            slot("export", 2, lease="2h").acquire()
            activity()  # sends which slots were used
        with freeze(START + 120 * MINUTE - left):
            found = activity().slots

        assert [each.held for each in found] == held

    def test_rules_with_as_many_checks_are_in_the_order_of_their_names(self) -> None:
        with freeze(START):
            for name in ("b", "c", "a"):
                check("9/m", SUBJECT, name=name)
            check("9/m", SUBJECT, name="c")

            assert [rule.rule for rule in activity().rules] == ["c", "a", "b"]

    def test_the_rest_has_all_that_rules_without_a_row_decided(self) -> None:
        shadow = Rule.make("zz-shadow", "1/m", shadow=True)
        with freeze(START):
            for number in range(50):
                for _ in range(4):
                    check("9/m", SUBJECT, name=f"busy{number}")
            for _ in range(2):
                check(shadow, SUBJECT)
            for _ in range(3):
                check("2/m", SUBJECT, name="zz-strict")
            *_, rest = activity().rules

        assert (rest.is_rest, rest.rule, rest.label) == (True, None, "other")
        assert (rest.allowed, rest.refused, rest.shadowed, rest.spent, rest.minutes) == (3, 1, 1, 0, [])

    def test_there_is_no_rest_if_each_rule_has_a_row(self) -> None:
        with freeze(START):
            check("9/m", SUBJECT, name="a")

            assert [rule.rule for rule in activity().rules] == ["a"]

    def test_yesterday_is_the_day_before(self) -> None:
        for days, checks in ((2, 5), (1, 3), (0, 2)):
            with freeze(START - days * DAY):
                for _ in range(checks):
                    check("1/m", SUBJECT)
                found = activity()

        assert (found.yesterday, found.today) == (DayTotal(1, 2), DayTotal(1, 1))

    @pytest.mark.parametrize(("total", "share"), [(DayTotal(3, 1), 25.0), (DayTotal(), None)], ids=["some", "none"])
    def test_the_share_of_refusals_is_a_percentage(self, total: DayTotal, share: float | None) -> None:
        assert total.refused_share == share

    @pytest.mark.parametrize(
        ("seconds", "rate"),
        [
            pytest.param(0, 6.0, id="at the beginning of a minute"),
            pytest.param(15, 4.5, id="after a quarter"),
            pytest.param(59, 0.1, id="at its end"),
        ],
    )
    def test_the_rate_has_the_part_of_the_minute_before_that_is_recent(self, seconds: int, rate: float) -> None:
        begins = START - START % MINUTE
        with freeze(begins):
            for _ in range(6):
                check("5/m", SUBJECT, name="a")
            get_limiter().metrics.flush()
        with freeze(begins + MINUTE + seconds * SECOND):
            (rule,) = activity().rules

        assert rule.rate == pytest.approx(rate)

    def test_a_minute_has_what_a_shadow_rule_would_have_refused(self) -> None:
        with freeze(START):
            for _ in range(3):
                check("1/m", SUBJECT, name="a", shadow=True)
            (rule,) = activity().rules

        assert rule.minutes[-1] == (1, 2)

    @pytest.mark.parametrize(
        ("later", "minutes"),
        [
            pytest.param(59, [(1, 0), *[(0, 0)] * 58, (1, 0)], id="in the last of them"),
            pytest.param(60, [*[(0, 0)] * 59, (1, 0)], id="after them"),
        ],
    )
    def test_a_rule_has_the_last_sixty_minutes(self, later: int, minutes: list[tuple[int, int]]) -> None:
        for minute in (0, later):
            with freeze(START + minute * MINUTE):
                check("9/m", SUBJECT, name="a")
                (rule,) = activity().rules

        assert rule.minutes == minutes

    def test_subjects_that_were_refused_yesterday_are_seen_in_two_days(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_quota.operating.activity.newest_events", lambda *_: [])  # as if others came since
        with freeze(START - DAY):
            check("0/m", "user:1")
            activity()
        with freeze(START):
            check("0/m", "user:2")

            assert [subjects_seen(days=days) for days in (1, 2)] == [["user:2"], ["user:2", "user:1"]]

    def test_those_refused_most_today_are_seen_first(self) -> None:
        with freeze(START):
            for subject, times in (("user:1", 1), ("user:2", 3), ("user:3", 2)):
                for _ in range(times):
                    check("0/m", subject)

            assert subjects_seen() == ["user:2", "user:3", "user:1"]

    def test_subjects_with_a_warning_alone_are_seen_after_refused_ones(self) -> None:
        with freeze(START):
            for subject in ("user:1", "user:2"):
                check("5/m", subject, 5)  # a warning
            check("0/m", "user:2")

            assert subjects_seen() == ["user:2", "user:1"]

    def test_subjects_of_which_only_a_digest_is_known_are_not_seen(self) -> None:
        with freeze(START):
            for subject in (f"org:{'é' * 90}", "org:7"):
                check("0/m", subject)

            assert subjects_seen() == ["org:7"]


@pytest.mark.usefixtures("redis_cache")
def test_the_fifty_bans_that_end_first_are_listed() -> None:
    with freeze(START):
        for number in range(51):
            ban(LOGIN, f"user:{number}", 600 + number)
        found = activity()

    assert found.banned == 51
    assert [each.subject for each in found.bans or ()] == [f"user:{number}" for number in range(50)]


@pytest.mark.usefixtures("redis_cache")
def test_the_state_of_the_server_is_known(raw: Any) -> None:
    raw.config_set("maxmemory", "500mb")
    try:
        found = health_of_store()
    finally:
        raw.config_set("maxmemory", 0)

    assert (found.role, found.most, found.policy) == ("master", 500 * 1024 * 1024, "noeviction")
    assert raw.info("server")["redis_version"] in str(found.version) or "Valkey" in str(found.version)
    assert 0 < found.latency < 5


@pytest.mark.usefixtures("redis_cache")
def test_what_the_server_does_not_permit_to_ask_is_unknown(settings: Any, redis_server: Any, raw: Any) -> None:
    raw.execute_command("ACL", "SETUSER", "poor", "on", "nopass", "~*", "+@all", "-info", "-dbsize")
    try:
        settings.CACHES = caches(redis_server, username="poor", password="any")
        found = health_of_store()
    finally:
        raw.execute_command("ACL", "DELUSER", "poor")

    assert (found.version, found.keys, found.events, found.may_evict) == (None, None, 0, False)


def health_of_store() -> Health:
    store = current_store()
    assert isinstance(store, RedisStore)
    return health(store, "quota")


@pytest.mark.parametrize(("use_tz", "words"), [(True, "04:00 CET"), (False, "12:00 JST")], ids=["USE_TZ", "without"])
def test_a_time_zone_of_the_request_counts_only_with_use_tz(settings: Any, use_tz: bool, words: str) -> None:
    """Without it all rows are in TIME_ZONE."""
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Tokyo"
    noon = int(datetime(2026, 11, 21, 3, tzinfo=UTC).timestamp())

    with timezone.override("Europe/Berlin"):  # as a middleware does for a request
        assert moment_in_words(local_moment(noon * SECOND), "H:i") == words


@pytest.mark.parametrize(("used", "is_nearly_full"), [(89, False), (90, True)])
def test_a_redis_is_nearly_full_at_nine_tenths_of_its_memory(used: int, is_nearly_full: bool) -> None:
    assert Health(0.1, used=used, most=100, policy="noeviction").is_nearly_full is is_nearly_full


FULL = (
    "The memory of Redis is full (10.0\xa0KB of 10.0\xa0KB), so it accepts no changes. Rules follow their "
    "on_unavailable setting; without one, each process counts by itself."
)


@pytest.mark.parametrize(
    ("given", "warnings"),
    [
        pytest.param({}, [], id="nothing is wrong"),
        pytest.param({"used": 9_216, "most": 10_240}, ["The memory of Redis is nearly full."], id="nearly full"),
        pytest.param({"used": 10_240, "most": 10_240, "refuses": "OOM"}, [FULL], id="full"),
        pytest.param(
            {"refuses": "NOREPLICAS"},
            [
                (
                    "Redis accepts no changes, so nothing is counted. Rules follow their on_unavailable setting. Redis "
                    "says: NOREPLICAS"
                )
            ],
            id="it refuses changes",
        ),
        pytest.param(
            {"role": "slave"},
            ["This Redis is a replica. It accepts no writes, so nothing is counted."],
            id="a replica",
        ),
        pytest.param(
            {"most": 10_240, "policy": "allkeys-lru"},
            [
                (
                    "Redis drops keys when its memory is full (maxmemory-policy allkeys-lru). Limits may be forgotten "
                    "then."
                )
            ],
            id="it evicts keys",
        ),
        pytest.param(
            {"used": 10_240, "most": 10_240, "refuses": "OOM", "role": "slave", "policy": "allkeys-lru"},
            [
                FULL,
                "This Redis is a replica. It accepts no writes, so nothing is counted.",
                (
                    "Redis drops keys when its memory is full (maxmemory-policy allkeys-lru). Limits may be forgotten "
                    "then."
                ),
            ],
            id="full, a replica, and it evicts keys",
        ),
        pytest.param(
            {"used": 9_216, "most": 10_240, "refuses": "NOREPLICAS"},
            [
                (
                    "Redis accepts no changes, so nothing is counted. Rules follow their on_unavailable setting. Redis "
                    "says: NOREPLICAS"
                ),
                "The memory of Redis is nearly full.",
            ],
            id="nearly full, and it refuses changes",
        ),
        pytest.param(
            {"refuses": "OOM"},
            [FULL.replace("10.0\xa0KB", "0\xa0bytes")],
            id="full, and nobody knows of how much",
        ),
        pytest.param(
            {"silent": ["a:1", "b:2"], "parts": [Health(0.1)]},
            ["2 of the 3 servers of the Cluster do not answer: a:1, b:2."],
            id="silent servers",
        ),
    ],
)
def test_the_overview_warns_of_each_risk(given: dict[str, Any], warnings: list[str], settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"login": "5/m"}}

    assert list(_warnings(Health(0.1, **given))) == warnings


def test_a_redis_that_evicts_keys_names_the_rules_that_count_long(settings: Any) -> None:
    rules = {"a": {"rate": "5/month", "algorithm": "calendar"}, "b": "5/m", "c": "5/w"}
    settings.QUOTA = {**settings.QUOTA, "RULES": rules}

    *_, words = _warnings(Health(0.1, most=10_240, policy="allkeys-lru"))

    assert words == ('These rules count weeks, months or years there: a, c. store="database" keeps their counts.')


def test_the_overview_warns_of_a_database_of_rules_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    silent, answering = Mock(), Mock()
    silent.store.database.ping.side_effect = StoreUnavailable("it is gone")
    in_memory = Mock(store=Mock(database=None))
    store_of_the_site = silent  # the page itself warns of this one
    monkeypatch.setattr(overview, "counting_stores", lambda: [store_of_the_site, answering, in_memory, silent])

    (words,) = _database_warnings()

    assert words == (
        'The database of rules with store="database" does not answer: The quota store is unavailable: it is gone'
    )


def test_a_redis_that_evicts_keys_is_a_risk() -> None:
    assert Health(0.1, used=1, most=100, policy="volatile-ttl").may_evict


@pytest.mark.parametrize(
    "memory",
    [
        pytest.param({"used": 10, "most": 0, "policy": "allkeys-lru"}, id="memory without a limit"),
        pytest.param({"used": None, "most": None, "policy": None}, id="memory that is not known"),
    ],
)
def test_a_redis_without_a_known_limit_of_memory_is_no_risk(memory: Any) -> None:
    found = Health(0.1, **memory)

    assert (found.may_evict, found.is_nearly_full) == (False, False)


def test_a_cluster_with_a_replica_among_its_servers_shows_that_nothing_is_counted_there() -> None:
    found = Health(0.1, role="master", parts=[Health(0.1, role="master"), Health(0.1, role="slave")])

    assert found.is_replica


@pytest.mark.parametrize(
    ("name", "of_servers", "shown_as"),
    [
        pytest.param("latency", [0.1, 0.3, 0.2], 0.3, id="the slowest latency"),
        pytest.param("version", ["7.10.0", "7.9.0", None, "Valkey 8.0.1"], "7.9.0", id="the oldest version"),
        pytest.param("version", [None, None], None, id="a version that is not known"),
        pytest.param("role", [None, "master"], "master", id="the first role that is known"),
        pytest.param("uptime", [70, 7, None], 7, id="the shortest uptime"),
        pytest.param("uptime", [70, 0], 0, id="a server that has just started"),
        pytest.param("clients", [3, None, 4], 7, id="the sum of the clients"),
        pytest.param("used", [30, 40], 70, id="the sum of the memory"),
        pytest.param("most", [100, 200], 300, id="the sum of the limits of the memory"),
        pytest.param("most", [100, 0], 0, id="no limit if one server has none"),
        pytest.param("most", [100, None], 0, id="no limit if one is not known"),
        pytest.param("keys", [1, 2], 3, id="the sum of the keys"),
        pytest.param("events", [None, 5], 5, id="the events of the server that has them"),
        pytest.param("keys", [None, None], None, id="keys that are not known"),
        pytest.param("refuses", ["", "READONLY", "OOM"], "READONLY", id="the first refusal"),
    ],
)
def test_a_cluster_is_shown_by_the_worst_of_its_servers_or_by_their_sum(
    name: str, of_servers: list[Any], shown_as: object
) -> None:
    servers = [replace(Health(0.1), **{name: value}) for value in of_servers]

    assert getattr(_joined(servers, []), name) == shown_as


def test_a_cluster_has_the_policy_of_a_server_that_evicts_keys() -> None:
    calm, evicts = Health(0.1, most=9, policy="noeviction"), Health(0.1, most=9, policy="allkeys-lru")

    found = _joined([calm, evicts], [])

    assert (found.policy, found.may_evict) == ("allkeys-lru", True)


def test_a_cluster_is_as_full_as_its_fullest_server() -> None:
    servers = [Health(0.1, used=used, most=most) for used, most in ((20, 100), (95, 100), (500, 0))]

    found = Health(0.1, used=615, most=0, parts=servers)

    assert (found.fullest, found.is_nearly_full) == (0.95, True)


def test_a_cluster_counts_the_servers_that_do_not_answer_too() -> None:
    assert _joined([Health(0.1), Health(0.1)], ["127.0.0.1:7002"]).servers == 3


def test_one_redis_is_one_server() -> None:
    assert Health(0.1).servers == 1


@pytest.mark.parametrize(
    ("refuses", "is_full"),
    [("OOM command not allowed", True), ("OutOfMemoryError: used", True), ("READONLY", False), ("", False)],
)
def test_a_redis_is_full_if_it_refuses_writes_for_want_of_memory(refuses: str, is_full: bool) -> None:
    assert Health(0.1, refuses=refuses).is_full is is_full


def answering(**info: Any) -> Any:
    """A store with one Redis, which answers with this INFO, 5 keys and 7 events, and whose PING takes 0.25 s."""
    store, client = MagicMock(), MagicMock()
    store.redis.servers.return_value = ["only"]
    store.server_of.return_value = "only"
    store.commands.return_value.__enter__.return_value = client
    client.pipeline.return_value.__enter__.return_value.execute.return_value = [info, 5, 0, 7]
    return store


@pytest.mark.parametrize(
    ("versions", "version"),
    [
        pytest.param({"redis_version": "7.4.0"}, "7.4.0", id="Redis"),
        pytest.param({"redis_version": "7.2.4", "valkey_version": "8.0.1"}, "Valkey 8.0.1", id="Valkey"),
    ],
)
def test_the_state_of_a_server_is_what_it_answers(
    versions: dict[str, str], version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(perf_counter=iter([1.0, 1.25]).__next__)
    monkeypatch.setattr("django_quota.operating.health.time", clock)
    info = {"uptime_in_seconds": 11, "connected_clients": 12, "used_memory": 13, "maxmemory": 14}

    found = health(answering(**info, **versions, role="master", maxmemory_policy="noeviction"), "quota")

    assert found == Health(
        0.25, version, role="master", uptime=11, clients=12, used=13, most=14, policy="noeviction", keys=5, events=7
    )


@pytest.mark.usefixtures("redis_cache")
class TestHealthOfRedis:
    def test_asking_leaves_no_key(self, raw: redis.Redis) -> None:
        health(current_store(), "quota")

        assert raw.dbsize() == 0

    def test_the_keys_are_counted(self, raw: redis.Redis) -> None:
        for number in range(3):
            raw.set(f"k{number}", "x")

        assert health(current_store(), "quota").keys == 3

    def test_the_events_are_counted(self) -> None:
        for number in range(2):
            check("0/m", f"user:{number}")

        assert health(current_store(), "quota").events == 2

    def test_a_redis_that_refuses_writes_says_why(self, raw: redis.Redis) -> None:
        raw.config_set("min-replicas-to-write", 1)
        try:
            found = health(current_store(), "quota")
        finally:
            raw.config_set("min-replicas-to-write", 0)

        assert "NOREPLICAS" in found.refuses
        assert (found.is_full, found.is_replica) == (False, False)
