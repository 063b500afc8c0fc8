"""The overview: it shows what the store counts, with few round trips and queries, to those with the permission."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
import redis
from django.apps import apps
from django.contrib.auth import get_user_model
from django.contrib.auth.management import create_permissions
from django.test import Client
from django.urls import reverse
from redis.connection import AbstractConnection

from django_quota import check, slot
from django_quota.admin import overview
from django_quota.limiting.registry import get_limiter
from django_quota.operating.activity import RULES, activity
from django_quota.operating.health import Health, health
from django_quota.stores.redis.store import RedisStore
from django_quota.testing import QuotaKit
from tests.admin.operators import operator
from tests.support.steps import SECOND
from tests.support.stores import caches, current_store

PAGE = "/admin/django_quota/overview/"
SUBJECT = "ip:203.0.113.9"


@pytest.fixture
def permissions(database: dict[str, Any]) -> None:
    create_permissions(apps.get_app_config("django_quota"), verbosity=0)  # an emptied PostgreSQL has none


@pytest.fixture
def client(permissions: None) -> Client:
    return operator("view_overview", "view_subject")


def shown_in(part: str, page: str) -> list[str]:
    """Return the words in a `dl` of the page."""
    found = re.search(rf'<dl class="quota-{part}">(.*?)</dl>', page, re.DOTALL)
    assert found is not None
    return [word for text in re.findall(r">([^<]+)<", found[1]) for word in text.split()]


def flush() -> None:
    get_limiter().metrics.flush()


def ban(subject: str, times: int = 8) -> None:
    for _ in range(times):
        check("1/m", subject, name="login", ban={"after": "5/m", "for": "10m"})


class TestPermissions:
    @pytest.mark.usefixtures("redis_cache")
    def test_links_to_subjects_need_the_permission(self, permissions: None) -> None:
        check("0/m", SUBJECT, name="a")
        page = operator("view_overview").get(PAGE).content.decode()
        assert SUBJECT in page
        assert "?subject=" not in page


@pytest.mark.usefixtures("either_store")
class TestPage:
    def test_it_shows_checks_and_refused_subjects(self, client: Client) -> None:
        for _ in range(5):
            check("3/m", SUBJECT, name="search")
        page = client.get(PAGE).content.decode()
        row = re.search(r'<th scope="row">search</th>(.*?)</tr>', page, re.DOTALL)
        assert row is not None
        assert re.findall(r">(\d+)<", row[1])[:3] == ["5", "3", "2"]
        assert "3 allowed, 2 refused; at most 5 in a minute" in row[1]
        assert re.search(rf"{SUBJECT}(</a>|</span>)\s*</th><td class=\"quota-number\">2<", page)

    def test_it_begins_with_today_beside_yesterday(self, client: Client, the_clock_stands: QuotaKit) -> None:
        for _ in range(4):
            check("1/d", SUBJECT, name="search")
        flush()
        the_clock_stands.advance("1d")
        for rule in ("search", "api", "api"):
            check("9/m", SUBJECT, name=rule)
        found = " ".join(shown_in("summary", client.get(PAGE).content.decode()))
        assert found.startswith("Checks today 3 yesterday 4 Refused 0.0 % yesterday 75.0 %")

    def test_rules_are_sorted_by_what_they_refused(self, client: Client) -> None:
        for _ in range(3):
            check("9/m", SUBJECT, name="busy")
        check("0/m", SUBJECT, name="strict")
        page = client.get(PAGE).content.decode()
        assert re.findall(r'<th scope="row">(busy|strict)</th>', page) == ["strict", "busy"]

    def test_it_shows_slots(self, client: Client) -> None:
        with slot("export", 1, subject=SUBJECT):
            page = client.get(PAGE + "content/").content.decode()
        assert re.search(r"export.*?1 of 1 <strong[^>]*>full", page, re.DOTALL)

    def test_an_empty_page_says_so(self, client: Client) -> None:
        page = client.get(PAGE).content.decode()
        assert "Nothing has been checked today." in page
        assert "Nobody has been refused today." in page

    def test_it_says_that_limits_are_switched_off(self, client: Client, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
        assert "Limits are switched off" in client.get(PAGE).content.decode()


@pytest.mark.usefixtures("memory_store")
def test_it_names_the_memory_store(client: Client) -> None:
    page = client.get(PAGE).content.decode()
    assert "each process counts by itself" in page
    assert "The memory store keeps no events." in page


@pytest.mark.usefixtures("redis_cache")
class TestOnRedis:
    def test_it_shows_bans_with_their_end_and_a_link(self, client: Client) -> None:
        ban(SUBJECT)
        ban("ip:203.0.113.10")
        page = client.get(PAGE).content.decode()
        assert "The next 2 of 2 to end" in page
        assert "in 10 minutes" in page
        assert f'<a href="{reverse("admin:django_quota_subject_changelist")}?subject=ip%3A203.0.113.9">' in page

    @pytest.mark.parametrize("may_see_users", [True, False])
    def test_names_of_users_are_for_those_who_may_see_users(self, permissions: None, *, may_see_users: bool) -> None:
        kamala = get_user_model().objects.create_user("kamala")
        check("0/m", kamala, name="a")
        client = operator("view_overview", *(["auth.view_user"] if may_see_users else []))
        page = client.get(PAGE).content.decode()
        assert page.count(f">kamala (user:{kamala.pk})</span>") == (2 if may_see_users else 0)
        assert ("kamala" in page) is may_see_users

    def test_events_are_filtered_by_kind_rule_and_subject(self, client: Client) -> None:
        for rule in ("search", "api"):
            check("0/m", SUBJECT, name=rule)
            check("10/m", "user:7", 9, name=rule)

        def shown(**wanted: str) -> list[str]:
            return re.findall(r"quota-kind-(\w+)", client.get(f"{PAGE}content/", wanted).content.decode())

        assert [len(shown()), len(shown(kind="near")), len(shown(kind="typo"))] == [4, 2, 4]
        assert (shown(rule="sear", subject="user:"), shown(subject="203")) == (["near"], ["refused", "refused"])
        page = client.get(PAGE, {"rule": "nobody"}).content.decode()
        assert "No event fits." in page
        assert f'data-content-url="{PAGE}content/?rule=nobody"' in page

    def test_the_content_view_returns_that_part_of_the_page_with_its_events(self, client: Client) -> None:
        check("0/m", SUBJECT, name="a")
        content = client.get(PAGE + "content/").content.decode()
        assert 'id="quota-rules-title"' in content
        assert content.count('<li class="quota-event">') == 1
        assert "<html" not in content

    def test_of_many_events_the_newest_are_shown_first(self, client: Client, raw: redis.Redis) -> None:
        raw.xadd("quota:1:{!}:events", {"foreign": "entry"})
        for number in range(overview.EVENTS + 5):
            check("0/m", f"user:{number}", name="a")
        page = client.get(PAGE + "content/").content.decode().partition('id="quota-events"')[2]
        shown = re.findall(r">user:(\d+)<", page)
        assert shown == [str(number) for number in range(overview.EVENTS + 4, 4, -1)]

    @pytest.mark.parametrize("use_tz", [True, False])
    def test_times_are_in_the_time_zone_of_the_site(
        self, client: Client, raw: redis.Redis, settings: Any, use_tz: bool
    ) -> None:
        settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Tokyo"
        noon = int(datetime(2026, 11, 21, 3, tzinfo=UTC).timestamp())
        fields: dict[Any, Any] = {
            "kind": "refused", "rule": "a", "subject": "user:1", "until": (noon + 90) * SECOND, "level": 0,
            "capacity": 1, "remaining": 0, "share": 0,
        }  # fmt: skip
        raw.xadd("quota:1:{!}:events", fields, id=f"{noon}000-0")
        page = client.get(PAGE + "content/").content.decode()
        assert ">12:00:00</time>" in page
        assert "until 12:01:30" in page

    def test_round_trips_and_queries_are_bounded(
        self, client: Client, raw: redis.Redis, django_assert_num_queries: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(RULES + 30):
            check("5/m", f"ip:192.0.2.{number}", name=f"rule{number}")
        for number in range(30):
            ban(f"ip:198.51.100.{number}")
            with slot(f"slot{number}", 2):
                pass
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

    def test_rules_beyond_the_bound_are_counted_together(self) -> None:
        for number in range(RULES + 5):
            check("5/m", SUBJECT, name=f"rule{number}")
        check("5/m", SUBJECT, name="rule7")
        rules = activity().rules
        assert len(rules) == RULES + 1
        assert rules[0].rule == "rule7"
        assert rules[-1].is_rest
        assert sum(rule.total for rule in rules) == RULES + 6

    def test_it_reports_a_store_that_does_not_answer(self, client: Client, settings: Any) -> None:
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "unix:///nowhere/redis.sock"}}
        reply = client.get(PAGE)
        assert reply.status_code == 200
        assert "The store does not answer." in reply.content.decode()
        assert "Nothing has been refused" not in reply.content.decode()
        assert "The store does not answer" in client.get(PAGE + "content/").content.decode()

    @pytest.mark.parametrize("command", ["ping", "xrevrange"])
    def test_it_reports_a_missing_redis_permission(
        self, command: str, client: Client, settings: Any, redis_server: Any, raw: redis.Redis
    ) -> None:
        server: Any = raw
        server.execute_command("ACL", "SETUSER", "web", "on", "nopass", "~*", "+@all", f"-{command}")
        try:
            settings.CACHES = caches(redis_server, username="web", password="any")
            page = client.get(PAGE).content.decode()
            figures = client.get(PAGE + "content/").content.decode()
        finally:
            server.execute_command("ACL", "DELUSER", "web")
        denied = "The store answers, but does not permit what this page reads."
        assert "store does not answer" not in page
        assert ("does not permit this page to read events" in page) is (command == "xrevrange")
        if command == "ping":
            assert denied in page
            assert denied in figures
            assert "docs/going_live.md" in page
            assert "&#x27;ping&#x27;" in page  # what it lacks

    @pytest.mark.parametrize("has_events", [True, False])
    def test_it_reports_a_full_redis(self, has_events: bool, client: Client, raw: redis.Redis) -> None:
        if has_events:
            ban(SUBJECT)
        get_limiter().metrics.flush()
        assert check("5/m", "user:9")  # whose metrics cannot be sent
        try:
            raw.config_set("maxmemory", 1024)
            page = client.get(PAGE).content.decode()
        finally:
            raw.config_set("maxmemory", 0)
        assert "The memory of Redis is full (" in page
        assert "of 1.0\xa0KB), so it accepts no changes" in page
        assert "nearly full" not in page
        assert "does not answer" not in page
        assert "Answers in" in page
        assert (f">{SUBJECT}</a>" in page) == has_events
        assert ("The store accepts no changes, so no events arrive." in page) != has_events
        assert "Nothing has been refused." not in page
        assert list(raw.scan_iter("*probe*")) == []

    def test_it_reports_a_replica(self, client: Client, raw: redis.Redis) -> None:
        ban(SUBJECT)
        get_limiter().metrics.flush()
        assert check("5/m", "user:9")
        raw.replicaof("127.0.0.1", 1)
        try:
            page = client.get(PAGE).content.decode()
        finally:
            raw.replicaof("NO", "ONE")
        assert "This Redis is a replica" in page
        assert "Redis says: ReadOnlyError" in page
        assert "does not answer" not in page
        assert f">{SUBJECT}</a>" in page


@pytest.mark.usefixtures("redis_cache")
class TestHealth:
    def test_it_reports_the_state_of_the_server(self, raw: redis.Redis) -> None:
        store = current_store()
        assert isinstance(store, RedisStore)
        raw.config_set("maxmemory", "500mb")
        raw.config_set("maxmemory-policy", "allkeys-lru")
        try:
            found = health(store, "quota")
        finally:
            raw.config_set("maxmemory", 0)
            raw.config_set("maxmemory-policy", "noeviction")
        of_server = raw.info("server")
        of_valkey = f"Valkey {of_server['valkey_version']}" if "valkey_version" in of_server else None
        assert (found.version, found.role) == (of_valkey or of_server["redis_version"], "master")
        assert (found.most, found.policy) == (500 * 1024 * 1024, "allkeys-lru")
        assert found.may_evict
        assert not found.is_nearly_full
        assert 0 < found.latency < 5

    def test_forbidden_facts_are_left_out(self, settings: Any, redis_server: Any, raw: redis.Redis) -> None:
        client: Any = raw
        client.execute_command("ACL", "SETUSER", "poor", "on", "nopass", "~*", "+@all", "-info", "-dbsize")
        try:
            settings.CACHES = caches(redis_server, username="poor", password="any")
            store = current_store()
            assert isinstance(store, RedisStore)
            found = health(store, "quota")
        finally:
            client.execute_command("ACL", "DELUSER", "poor")
        assert (found.version, found.keys, found.events) == (None, None, 0)
        assert not found.may_evict

    @pytest.mark.parametrize(
        ("used", "most", "policy", "evicts", "full"),
        [
            (10, 0, "allkeys-lru", False, False),
            (10, 100, "noeviction", False, False),
            (90, 100, "noeviction", False, True),
            (89, 100, "volatile-ttl", True, False),
            (None, None, None, False, False),
        ],
    )
    def test_memory_and_policy_show_risks(self, used: int, most: int, policy: str, evicts: bool, full: bool) -> None:
        found = Health(0.1, used=used, most=most, policy=policy)
        assert (found.may_evict, found.is_nearly_full) == (evicts, full)
