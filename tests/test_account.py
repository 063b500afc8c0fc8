"""The account of a subject: read by name in a few trips, the same on either store, and settled rule by rule."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.http import HttpResponse
from django.urls import path

from django_quota import check, concurrency, plans, quota, reserve, slot
from django_quota.account import account_of, forget_known, known_slots, lift_bans
from django_quota.clock import SECOND
from django_quota.exceptions import StoreUnavailable
from django_quota.testing import freeze
from tests.published import override
from tests.steps import START

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
    def test_the_limits_of_known_rules_are_said(self) -> None:
        with freeze(START):
            check("search", SUBJECT, 4)
            limits = account_of(SUBJECT).limits
        said = [(limit.rule, limit.tier, limit.rate, limit.used, limit.remaining) for limit in limits]
        assert said == [
            ("search", "", "10/m", 4, 6),
            ("search", "", "100/h", 4, 96),
            ("banning", "", "1/h", 0, 1),
            ("tiered", "anonymous", "5/m", 0, 5),
            ("tiered", "authenticated", "50/m", 0, 50),
            ("viewed", "", "7/m", 0, 7),
        ]

    def test_a_rate_is_found_by_the_days_of_a_user_whatever_its_algorithm(self) -> None:
        with freeze(START):
            check("5/30m", "user:1", 2)
            check("6/30m", "user:1", 3, algorithm="token_bucket")
            limits = account_of("user:1").limits
        found = {(limit.rule, limit.algorithm): limit.used for limit in limits if limit.used}
        assert found == {("5/30m", "sliding_window"): 2, ("6/30m", "token_bucket"): 3}

    def test_what_cannot_be_asked_is_said_with_its_reason(self) -> None:
        assert set(account_of(SUBJECT).unread) == {"function", "free", "broken"}

    def test_a_ban_is_said_with_its_end_and_its_number(self) -> None:
        with freeze(START):
            check("banning", SUBJECT)
            check("banning", SUBJECT)
        with freeze(START + 3_700 * SECOND):
            check("banning", SUBJECT)
            check("banning", SUBJECT)
            (ban,) = account_of(SUBJECT).bans
        assert (ban.rule, ban.level, ban.ends_in) == ("banning", 2, 7_200.0)
        with freeze(START + 90_000 * SECOND):
            assert not account_of(SUBJECT).bans

    def test_leases_and_holds_are_said_with_their_ends(self) -> None:
        with freeze(START):
            slot("seats", 2, 30, subject=SUBJECT).acquire()
            slot("seats", 2, 50, subject=SUBJECT).acquire()
            reserve("search", SUBJECT, 2, ttl=60)
            account = account_of(SUBJECT)
        ((lease),) = account.leases
        assert (lease.name, lease.ends_in, lease.number) == ("seats", (30.0, 50.0), 2)
        ((hold),) = account.holds
        assert (hold.name, hold.ends_in, hold.number) == ("search", (60.0,), 1)
        with freeze(START + 31 * SECOND):
            ((lease),) = account_of(SUBJECT).leases
        assert (lease.ends_in, lease.number) == ((19.0,), 1)

    def test_an_override_is_said_while_it_holds(self) -> None:
        override(f"r 0 {START + 60 * SECOND} 50/m", "search")
        with freeze(START):
            account = account_of(SUBJECT)
            assert [limit.limit for limit in account.limits if limit.rule == "search"] == [50]
            assert account.in_force("search") == ("search", account.overrides["search"])
            assert account.in_force("banning") is None
        with freeze(START + 61 * SECOND):
            assert account_of(SUBJECT).in_force("search") is None

    def test_looking_changes_nothing(self) -> None:
        with freeze(START):
            check("search", SUBJECT, 4)
            first, second = account_of(SUBJECT), account_of(SUBJECT)
            assert first.limits == second.limits
            assert check("search", SUBJECT).remaining == 5

    def test_one_rule_is_forgotten_and_the_others_stay(self) -> None:
        with freeze(START):
            check("search", SUBJECT, 4)
            check("banning", SUBJECT)
            assert forget_known(SUBJECT, ["search"]) == 2
            used = {limit.rule: limit.used for limit in account_of(SUBJECT).limits}
        assert (used["search"], used["banning"]) == (0, 1)

    def test_all_is_forgotten_with_bans_tiers_and_rates_and_overrides_stay(self) -> None:
        override("r 0 0 3/m", "search", "user:1")
        with freeze(START):
            check("search", "user:1", 2)
            check("5/30m", "user:1", 2)
            check("banning", "user:1")
            check("banning", "user:1")
            check("tiered", _request(), 2)
            forget_known("user:1")
            forget_known("ip:192.0.2.7")
            account = account_of("user:1")
            assert not any(limit.used for limit in [*account.limits, *account_of("ip:192.0.2.7").limits])
            assert not account.bans
            assert check("search", "user:1").limit == 3

    def test_a_rule_is_forgotten_under_its_own_limits_and_those_of_an_override(self) -> None:
        with freeze(START):
            check("search", SUBJECT, 4)
            override("r 0 0 50/2h", "search")
            check("search", SUBJECT, 4)
            plans._known.clear()  # another process resets
            forget_known(SUBJECT, ["search"])
            assert not any(limit.used for limit in account_of(SUBJECT).limits)
            override("", "search")
            assert not any(limit.used for limit in account_of(SUBJECT).limits)

    def test_a_ban_is_lifted_and_what_was_counted_stays(self) -> None:
        with freeze(START):
            check("banning", SUBJECT)
            check("banning", SUBJECT)
            check("search", SUBJECT, 4)
            (ban,) = account_of(SUBJECT).bans
            assert lift_bans(SUBJECT, [ban.field]) == 1
            account = account_of(SUBJECT)
            assert not account.bans
            assert {limit.rule: limit.used for limit in account.limits}["banning"] == 1
            assert not check("banning", SUBJECT)  # its own limit still refuses, and that is the first refusal
            assert lift_bans(SUBJECT) == 1

    def test_a_hold_is_given_back_after_a_ban_was_lifted(self) -> None:
        with freeze(START):
            reserve("banning", SUBJECT, 1, ttl=10)
            check("banning", SUBJECT)
            assert lift_bans(SUBJECT) == 1
        with freeze(START + 11 * SECOND):
            assert check("banning", SUBJECT)


def _request() -> Any:
    from django.contrib.auth.models import AnonymousUser
    from django.test import RequestFactory

    request = RequestFactory().get("/", REMOTE_ADDR="192.0.2.7")
    request.user = AnonymousUser()
    return request


def test_slots_of_views_are_known() -> None:
    assert known_slots() == ["seats"]


@pytest.mark.usefixtures("redis_cache")
class TestOnRedis:
    def test_no_keys_are_walked_over_and_the_trips_are_few(self, raw: redis.Redis, settings: Any) -> None:
        settings.QUOTA = {"RULES": {f"rule-{number}": "10/m" for number in range(150)}}
        with freeze(START):
            check("rule-7", "user:1", 3)
            account_of("user:1")
            raw.config_resetstat()
            account = account_of("user:1")
        assert len(account.limits) == 151
        stats = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in raw.info("commandstats").items()}
        assert not {"scan", "keys", "hscan"} & stats.keys()
        assert stats["evalsha"] == 4  # a look, the days, and a peek a hundred rules

    def test_a_slot_of_a_call_is_found_where_it_was_used_lately(self, raw: redis.Redis) -> None:
        with freeze(START):
            slot("a b", 3, 30, subject=SUBJECT).acquire()
            assert not account_of(SUBJECT).leases
            raw.zadd("quota:1:{!}:slots", {f"{SUBJECT} a%20b 3": START, "user:1 other 3": START})  # as `tallies` does
            ((lease),) = account_of(SUBJECT).leases
        assert (lease.name, lease.ends_in) == ("a b", (30.0,))

    def test_a_lifted_ban_leaves_the_index_of_bans(self, raw: redis.Redis) -> None:
        with freeze(START):
            check("banning", SUBJECT)
            check("banning", SUBJECT)
            assert raw.zcard("quota:1:{!}:bans") == 1
            lift_bans(SUBJECT)
        assert raw.zcard("quota:1:{!}:bans") == 0

    @pytest.mark.parametrize("subject", ["{x}", "a\nb", "~", "*", "x" * 10_000, "ключ", "\ud800", "a b+c%d"])
    def test_any_subject_can_be_looked_at_and_settled(self, subject: str) -> None:
        from django_quota.subjects import named_subject

        name = named_subject(subject)
        with freeze(START):
            check("search", subject, 3)
            assert {limit.used for limit in account_of(name).limits if limit.rule == "search"} == {3}
            forget_known(name)
            assert not any(limit.used for limit in account_of(name).limits)


def test_a_store_that_does_not_answer_is_said() -> None:
    for ask in (account_of, forget_known, lift_bans):
        with pytest.raises(StoreUnavailable):
            ask(SUBJECT)
