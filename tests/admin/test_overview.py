"""The overview: it shows what the store counts, with few round trips and queries, to those with the permission."""

import re
from datetime import UTC, datetime
from typing import Any, cast

import pytest
import redis
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone
from redis.connection import AbstractConnection

from django_quota import Rule, ban, check, slot
from django_quota.admin import overview
from django_quota.admin.wording import local_moment, moment_in_words
from django_quota.features.events import EVENTS_A_PAGE, SEARCHED
from django_quota.limiting.registry import get_limiter
from django_quota.models import QuotaOverride
from django_quota.operating.activity import RULES, activity
from django_quota.operating.health import Health, health
from django_quota.stores.redis.store import RedisStore
from django_quota.testing import QuotaKit, freeze
from tests.admin.operators import operator
from tests.support.events import event_fields
from tests.support.steps import SECOND
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


@pytest.mark.usefixtures("either_store")
def test_it_shows_the_checks_of_rules_by_what_they_refused_and_who_was(client: Client) -> None:
    for _ in range(5):
        check("3/m", SUBJECT, name="search")
    for _ in range(7):
        check("9/m", "ip:203.0.113.10", name="busy")
    page = shown(client)
    assert re.findall(r'<th scope="row">(busy|search)</th>', page) == ["search", "busy"]
    row = re.search(r'<th scope="row">search</th>(.*?)</tr>', page, re.DOTALL)
    assert row is not None
    assert re.findall(r">(\d+)<", row[1])[:3] == ["5", "3", "2"]
    assert "3 allowed, 2 refused; at most 5 in a minute" in row[1]
    assert re.search(rf"{SUBJECT}(</a>|</span>)\s*</th><td class=\"quota-number\">2<", page)


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
def test_it_shows_slots_what_is_empty_and_that_limits_are_switched_off(client: Client, settings: Any) -> None:
    page = shown(client)
    for words in (
        *("Nothing has been checked today.", "Nobody has been refused today."),
        *("each process counts by itself", "Nothing has been refused."),
    ):
        assert words in page
    with slot("export", 1, subject=SUBJECT):
        assert re.search(r"export.*?1 of 1 <strong[^>]*>full", shown(client, CONTENT), re.DOTALL)
    settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
    assert "Limits are switched off" in shown(client)


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
    def test_it_shows_bans_with_their_end_and_links_for_those_with_the_permission(self, client: Client) -> None:
        for subject in (SUBJECT, "ip:203.0.113.10"):
            ban(LOGIN, subject, "10m")
        page = shown(client)
        assert "The next 2 of 2 to end" in page
        assert "in 10 minutes" in page
        assert '<a href="/admin/django_quota/subject/?subject=ip%3A203.0.113.9">' in page
        page = shown(operator("view_overview", name="looks"))
        assert (SUBJECT in page, "?subject=" in page) == (True, False)

    def test_names_of_users_are_for_those_who_may_see_users(self, database: Any) -> None:
        kamala = get_user_model().objects.create_user("kamala")
        check("0/m", kamala, name="a")
        page = shown(operator("view_overview", "auth.view_user"))
        assert page.count(f">kamala (user:{kamala.pk})</span>") == 2
        assert "kamala" not in shown(operator("view_overview", name="looks"))

    def test_events_are_filtered_by_kind_rule_and_subject(self, client: Client) -> None:
        for rule in ("search", "api"):
            check("0/m", SUBJECT, name=rule)
            check("10/m", "user:7", 9, name=rule)

        def kinds(**wanted: str) -> list[str]:
            return re.findall(r"quota-kind-(\w+)", shown(client, CONTENT, **wanted))

        assert [len(kinds()), len(kinds(kind="near")), len(kinds(kind="typo"))] == [4, 2, 4]
        assert (kinds(rule="sear", subject="user:"), kinds(subject="203")) == (["near"], ["refused", "refused"])
        page = shown(client, rule="nobody")
        assert "No event matches." in page
        assert f'data-content-url="{CONTENT}?rule=nobody"' in page

    def test_the_content_view_has_that_part_of_the_page_the_newest_events_first(
        self, client: Client, raw: redis.Redis
    ) -> None:
        raw.xadd("quota:1:{!}:events", {"foreign": "entry"})
        for number in range(overview.EVENTS_SHOWN + 5):
            check("0/m", f"user:{number}", name=f"rule{number}")
        content = shown(client, CONTENT)
        assert 'id="quota-rules-title"' in content
        assert "<html" not in content
        feed = content.partition('id="quota-events"')[2].partition("</ol>")[0]
        found = re.findall(r">user:(\d+)<", feed)
        assert found == [str(number) for number in range(overview.EVENTS_SHOWN + 4, 4, -1)]

    @pytest.mark.parametrize(("number", "is_said"), [(SEARCHED, False), (SEARCHED + 1, True)])
    @pytest.mark.parametrize("page", [f"{CONTENT}?subject=nobody", "/admin/django_quota/quotaoverride/rule/?name=calm"])
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
        assert ("Only the last 5,000 events were searched." in shown(client, page)) == is_said
        calls = cast("Any", raw).info("commandstats")["cmdstat_xrevrange"]["calls"]
        assert calls <= SEARCHED // EVENTS_A_PAGE + 1

    @pytest.mark.parametrize("use_tz", [True, False])
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
        with timezone.override("Europe/Berlin"):  # as a middleware does for a request
            words = moment_in_words(local_moment(noon * SECOND), "H:i")
        assert words == ("04:00 CET" if use_tz else "12:00 JST"), "without USE_TZ all rows are in TIME_ZONE"

    def test_round_trips_queries_and_rules_are_bounded(
        self, client: Client, raw: redis.Redis, django_assert_num_queries: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(RULES + 5):
            check("5/m", f"ip:192.0.2.{number}", name=f"rule{number}")
        check("5/m", SUBJECT, name="rule7")
        rules = activity().rules
        assert (len(rules), rules[0].rule, rules[-1].is_rest) == (RULES + 1, "rule7", True)
        assert sum(rule.total for rule in rules) == RULES + 6
        for number in range(20):
            ban(LOGIN, f"ip:198.51.100.{number}", "10m")
            slot(f"slot{number}", 2).acquire()
        client.get(PAGE)
        raw.config_resetstat()
        check("5/m", SUBJECT, name="one more")
        trips = []
        send: Any = AbstractConnection.send_packed_command

        def count(self: Any, command: Any, *args: Any, **kwargs: Any) -> Any:
            trips.append(command)
            return send(self, command, *args, **kwargs)

        monkeypatch.setattr(AbstractConnection, "send_packed_command", count)
        with django_assert_num_queries(5):  # four of the admin: who it is, and what they may; one of ours
            assert client.get(PAGE).status_code == 200
        monkeypatch.undo()
        assert len(trips) <= 14
        assert not {"cmdstat_keys", "cmdstat_scan"} & set(raw.info("commandstats"))

    def test_it_reports_a_store_that_does_not_answer(self, client: Client, settings: Any) -> None:
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "unix:///nowhere/redis.sock"}}
        page = shown(client)
        assert "The store does not answer." in page
        assert '<p class="errornote">The store fails, so nothing is limited, except by rules with an' in page
        settings.QUOTA = {**settings.QUOTA, "ON_UNAVAILABLE": "deny"}
        assert "so nothing is limited" not in shown(client)
        assert "Nothing has been refused" not in page

    @pytest.mark.parametrize(
        ("command", "says"),
        [
            ("ping", "The store answers, but does not permit what this page reads."),
            ("xrevrange", "does not permit this page to read events"),
        ],
    )
    def test_it_reports_a_missing_redis_permission(
        self, command: str, says: str, client: Client, settings: Any, redis_server: Any, raw: Any
    ) -> None:
        raw.execute_command("ACL", "SETUSER", "web", "on", "nopass", "~*", "+@all", f"-{command}")
        try:
            settings.CACHES = caches(redis_server, username="web", password="any")
            page = shown(client)
        finally:
            raw.execute_command("ACL", "DELUSER", "web")
        assert "store does not answer" not in page
        assert says in page
        if command == "ping":
            assert "docs/going_live.md" in page
            assert "&#x27;ping&#x27;" in page  # what it lacks

    @pytest.mark.parametrize("problem", ["full", "replica"])
    def test_it_reports_a_redis_that_accepts_no_changes(self, problem: str, client: Client, raw: redis.Redis) -> None:
        check("0/m", SUBJECT, name="login")
        get_limiter().metrics.flush()
        assert check("5/m", "user:9")  # whose metrics cannot be sent
        try:
            raw.config_set("maxmemory", 1024) if problem == "full" else raw.replicaof("127.0.0.1", 1)
            page = shown(client)
        finally:
            raw.config_set("maxmemory", 0)
            raw.replicaof("NO", "ONE")
        for words in {
            "full": ["The memory of Redis is full (", "of 1.0\xa0KB), so it accepts no changes", "Answers in"],
            "replica": ["This Redis is a replica", "Redis says: ReadOnlyError"],
        }[problem]:
            assert words in page
        assert not re.search("nearly full|does not answer|Nothing has been refused", page)
        assert f">{SUBJECT}</a>" in page, "events that were there are shown"
        assert list(raw.scan_iter("*probe*")) == []


@pytest.mark.usefixtures("redis_cache")
def test_the_state_of_the_server_is_known_but_for_what_is_forbidden(settings: Any, redis_server: Any, raw: Any) -> None:
    def of_store() -> Health:
        store = current_store()
        assert isinstance(store, RedisStore)
        return health(store, "quota")

    raw.config_set("maxmemory", "500mb")
    raw.execute_command("ACL", "SETUSER", "poor", "on", "nopass", "~*", "+@all", "-info", "-dbsize")
    try:
        found = of_store()
        settings.CACHES = caches(redis_server, username="poor", password="any")
        poor = of_store()
    finally:
        raw.config_set("maxmemory", 0)
        raw.execute_command("ACL", "DELUSER", "poor")
    assert (found.role, found.most, found.policy) == ("master", 500 * 1024 * 1024, "noeviction")
    assert raw.info("server")["redis_version"] in str(found.version) or "Valkey" in str(found.version)
    assert 0 < found.latency < 5
    assert (poor.version, poor.keys, poor.events, poor.may_evict) == (None, None, 0, False)


def test_memory_and_policy_show_risks() -> None:
    assert Health(0.1, used=90, most=100, policy="noeviction").is_nearly_full
    assert not Health(0.1, used=89, most=100, policy="noeviction").is_nearly_full
    assert Health(0.1, used=1, most=100, policy="volatile-ttl").may_evict
    for harmless in ({"used": 10, "most": 0, "policy": "allkeys-lru"}, {"used": None, "most": None, "policy": None}):
        found = Health(0.1, **harmless)
        assert (found.may_evict, found.is_nearly_full) == (False, False)


def test_a_cluster_with_a_replica_among_its_servers_shows_that_nothing_is_counted_there() -> None:
    found = Health(0.1, role="master", parts=[Health(0.1, role="master"), Health(0.1, role="slave")])

    assert found.is_replica
