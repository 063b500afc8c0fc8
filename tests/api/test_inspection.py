"""What is known of a subject: read by name in a few trips, alike on both stores, and reset rule by rule."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.http import HttpResponse
from django.urls import path

from django_quota import check, concurrency, quota, reserve, reset_subject, slot, unban
from django_quota.exceptions import StoreUnavailable
from django_quota.testing import freeze
from tests.support.inspection import bans_of, is_overridden, slots_of_views, status_of
from tests.support.published import override
from tests.support.steps import SECOND, START
from tests.support.stores import forget_forms

SUBJECT = "ip:203.0.113.9"
BAN = {"after": "1/m", "for": ["1h", "2h"]}


@quota("7/m", key="ip", name="viewed")
@concurrency(2, key="ip", name="seats")
def viewed(request: Any) -> HttpResponse:
    return HttpResponse()


urlpatterns = [path("viewed/", viewed)]


@pytest.fixture(autouse=True)
def rules(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.QUOTA = {
        "RULES": {
            "search": {"rate": "10/m; 100/h"},
            "banning": {"rate": "1/h", "ban": BAN},
            "tiered": {"rate": {"anonymous": "5/m", "authenticated": "50/m"}},
            "function": {"rate": lambda request: "5/m"},
            "free": {"rate": None},
            "broken": {"rate": "10/month"},
        }
    }


@pytest.mark.usefixtures("rules", "either_store")
class TestOnEitherStore:
    def test_the_limits_of_known_rules_are_read(self) -> None:
        with freeze(START):
            check("search", SUBJECT, 4)
            limits = status_of(SUBJECT)["limits"]
        said = [tuple(limit[name] for name in ("rule", "tier", "rate", "used", "remaining")) for limit in limits]
        assert said == [
            ("search", "", "10/m", 4, 6),
            ("search", "", "100/h", 4, 96),
            ("banning", "", "1/h", 0, 1),
            ("tiered", "anonymous", "5/m", 0, 5),
            ("tiered", "authenticated", "50/m", 0, 50),
            ("viewed", "", "7/m", 0, 7),
        ]

    def test_a_plain_rate_is_found_by_daily_counts_with_any_algorithm(self) -> None:
        with freeze(START):
            check("5/30m", "user:1", 2)
            check("6/30m", "user:1", 3, algorithm="token_bucket")
            limits = status_of("user:1")["limits"]
        found = {(limit["rule"], limit["algorithm"]): limit["used"] for limit in limits if limit["used"]}
        assert found == {("5/30m", "sliding_window"): 2, ("6/30m", "token_bucket"): 3}

    def test_a_rate_is_found_in_any_spelling(self) -> None:
        with freeze(START):
            check("10/m", SUBJECT, 4)
            limits = status_of(SUBJECT, ["10 per minute", "search"])["limits"]
        assert [(limit["rule"], limit["used"]) for limit in limits] == [("10/m", 4), ("search", 0), ("search", 0)]

    def test_rules_that_cannot_be_read_have_a_reason(self) -> None:
        assert set(status_of(SUBJECT)["unread"]) == {"function", "free", "broken"}

    def test_a_ban_has_its_end_and_level(self) -> None:
        with freeze(START):
            check("banning", SUBJECT)
            check("banning", SUBJECT)
        with freeze(START + 3_700 * SECOND):
            check("banning", SUBJECT)
            check("banning", SUBJECT)
            assert bans_of(SUBJECT) == [("banning", 7_200.0, 2)]
        with freeze(START + 90_000 * SECOND):
            assert not status_of(SUBJECT)["bans"]

    def test_leases_and_holds_have_their_ends(self) -> None:
        with freeze(START):
            slot("seats", 2, 30, subject=SUBJECT).acquire()
            slot("seats", 2, 50, subject=SUBJECT).acquire()
            reserve("search", SUBJECT, 2, ttl=60)
            snapshot = status_of(SUBJECT)
        ((lease),) = snapshot["leases"]
        assert (lease["name"], lease["ends_in"], lease["number"]) == ("seats", (30.0, 50.0), 2)
        ((hold),) = snapshot["holds"]
        assert (hold["name"], hold["ends_in"], hold["number"]) == ("search", (60.0,), 1)
        with freeze(START + 31 * SECOND):
            ((lease),) = status_of(SUBJECT)["leases"]
        assert (lease["ends_in"], lease["number"]) == ((19.0,), 1)

    def test_an_override_is_in_force_until_it_ends(self) -> None:
        override(f"r 0 {START + 60 * SECOND} 50/m", "search")
        with freeze(START):
            snapshot = status_of(SUBJECT)
            assert [limit["limit"] for limit in snapshot["limits"] if limit["rule"] == "search"] == [50]
            assert (is_overridden(SUBJECT, "search"), is_overridden(SUBJECT, "banning")) == (True, False)
        with freeze(START + 61 * SECOND):
            assert not is_overridden(SUBJECT, "search")

    def test_inspecting_changes_nothing(self) -> None:
        with freeze(START):
            check("search", SUBJECT, 4)
            first, second = status_of(SUBJECT), status_of(SUBJECT)
            assert first["limits"] == second["limits"]
            assert check("search", SUBJECT).remaining == 5

    def test_a_reset_of_one_rule_keeps_the_others(self) -> None:
        with freeze(START):
            check("search", SUBJECT, 4)
            check("banning", SUBJECT)
            assert reset_subject(SUBJECT, ["search"]).dropped == 2
            used = {limit["rule"]: limit["used"] for limit in status_of(SUBJECT)["limits"]}
        assert (used["search"], used["banning"]) == (0, 1)

    def test_a_reset_of_all_rules_keeps_overrides(self) -> None:
        override("r 0 0 3/m", "search", "user:1")
        with freeze(START):
            check("search", "user:1", 2)
            check("5/30m", "user:1", 2)
            check("banning", "user:1")
            check("banning", "user:1")
            check("tiered", _request(), 2)
            reset_subject("user:1")
            reset_subject("ip:192.0.2.7")
            snapshot = status_of("user:1")
            assert not any(limit["used"] for limit in [*snapshot["limits"], *status_of("ip:192.0.2.7")["limits"]])
            assert not snapshot["bans"]
            assert check("search", "user:1").limit == 3

    def test_a_reset_covers_the_limits_of_an_override_too(self) -> None:
        with freeze(START):
            check("search", SUBJECT, 4)
            override("r 0 0 50/2h", "search")
            check("search", SUBJECT, 4)
            forget_forms()  # another process resets
            reset_subject(SUBJECT, ["search"])
            assert not any(limit["used"] for limit in status_of(SUBJECT)["limits"])
            override("", "search")
            assert not any(limit["used"] for limit in status_of(SUBJECT)["limits"])

    def test_lifting_a_ban_keeps_what_was_counted(self) -> None:
        with freeze(START):
            check("banning", SUBJECT)
            check("banning", SUBJECT)
            check("search", SUBJECT, 4)
            assert unban(SUBJECT, "banning") == 1
            snapshot = status_of(SUBJECT)
            assert not snapshot["bans"]
            assert {limit["rule"]: limit["used"] for limit in snapshot["limits"]}["banning"] == 1
            assert not check("banning", SUBJECT)  # its own limit still refuses, and that is the first refusal
            assert unban(SUBJECT) == 1

    def test_a_hold_is_given_back_after_a_ban_was_lifted(self) -> None:
        with freeze(START):
            reserve("banning", SUBJECT, 1, ttl=10)
            check("banning", SUBJECT)
            assert unban(SUBJECT) == 1
        with freeze(START + 11 * SECOND):
            assert check("banning", SUBJECT)


def _request() -> Any:
    from django.contrib.auth.models import AnonymousUser
    from django.test import RequestFactory

    request = RequestFactory().get("/", REMOTE_ADDR="192.0.2.7")
    request.user = AnonymousUser()
    return request


def test_slots_of_views_are_known() -> None:
    assert slots_of_views() == ["seats"]


@pytest.mark.usefixtures("redis_cache")
class TestOnRedis:
    def test_it_scans_no_keys_and_takes_few_trips(self, raw: redis.Redis, settings: Any) -> None:
        settings.QUOTA = {"RULES": {f"rule-{number}": "10/m" for number in range(150)}}
        with freeze(START):
            check("rule-7", "user:1", 3)
            status_of("user:1")
            raw.config_resetstat()
            snapshot = status_of("user:1")
        assert len(snapshot["limits"]) == 151
        stats = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in raw.info("commandstats").items()}
        assert not {"scan", "keys", "hscan"} & stats.keys()
        assert stats["evalsha"] == 4  # a look, the days, and a peek a hundred rules

    def test_a_recently_used_slot_of_a_call_is_found(self, raw: redis.Redis) -> None:
        with freeze(START):
            slot("a b", 3, 30, subject=SUBJECT).acquire()
            assert not status_of(SUBJECT)["leases"]
            raw.zadd("quota:1:{!}:slots", {f"{SUBJECT} a%20b 3": START, "user:1 other 3": START})  # as `metrics` does
            ((lease),) = status_of(SUBJECT)["leases"]
        assert (lease["name"], lease["ends_in"]) == ("a b", (30.0,))

    def test_a_lifted_ban_leaves_the_index_of_bans(self, raw: redis.Redis) -> None:
        with freeze(START):
            check("banning", SUBJECT)
            check("banning", SUBJECT)
            assert raw.zcard("quota:1:{!}:bans") == 1
            unban(SUBJECT)
        assert raw.zcard("quota:1:{!}:bans") == 0

    @pytest.mark.parametrize("subject", ["{x}", "a\nb", "~", "*", "x" * 10_000, "ключ", "\ud800", "a b+c%d"])
    def test_any_subject_can_be_inspected_and_reset(self, subject: str) -> None:

        with freeze(START):
            name = check("search", subject, 3).subject
            assert {limit["used"] for limit in status_of(name)["limits"] if limit["rule"] == "search"} == {3}
            reset_subject(name)
            assert not any(limit["used"] for limit in status_of(name)["limits"])


def test_a_store_that_does_not_answer_is_an_error() -> None:
    for ask in (status_of, unban):
        with pytest.raises(StoreUnavailable):
            ask(SUBJECT)
