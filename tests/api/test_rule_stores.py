"""`store="database"`: a rule or a counter that counts in the database, while bursts count in Redis or in memory."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.dispatch import Signal
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import reverse

from django_quota import (
    Rule,
    acheck_all,
    apeek,
    check,
    check_all,
    counter,
    limits_of,
    peek,
    quota,
    raise_limit,
    refund,
    reserve,
    reserve_all,
    reset,
    usage_lines,
)
from django_quota.core.decisions import QuotaExceeded
from django_quota.core.errors import ConfigurationError, RuleError, StoreUnavailable
from django_quota.core.flow import run_sync
from django_quota.engine.asks import Take
from django_quota.engine.state_copies import ReadStates
from django_quota.features.resets import reset_found
from django_quota.features.usage.days import recent_usage
from django_quota.features.usage.rollup import RollupResult, roll_up
from django_quota.limiting.known_rules import known_rules
from django_quota.limiting.registry import counting_stores, get_limiter
from django_quota.management.commands import quota_rollup
from django_quota.models import DailyCounter
from django_quota.operating.inspection import load_snapshot
from django_quota.signals import near_limit, refused
from django_quota.stores.base import Store
from django_quota.stores.database.store import DatabaseStore
from django_quota.testing import RedisServer, freeze
from django_quota.types import Reservation
from tests.conftest import alias_of_states
from tests.support import selection
from tests.support.commands import json_of
from tests.support.counts import checks_of, count_what_waits, units_of
from tests.support.databases import sqlite_database
from tests.support.overridden import override
from tests.support.signals import received
from tests.support.steps import MINUTE, START
from tests.support.stores import caches, empty_database, named, programs

PREPAID = counter("prepaid", store="database")
MONTH = {"rate": "5/month", "algorithm": "calendar", "store": "database"}


@pytest.fixture(params=["sqlite", selection.thorough("postgresql", "postgresql")])
def states(request: pytest.FixtureRequest) -> str:
    """The alias of a database for counts."""
    alias: str = request.getfixturevalue(f"states_on_{request.param}")
    return alias


@pytest.fixture(params=["memory", *programs()], ids=named)
def bursts(request: pytest.FixtureRequest, started: Callable[[Path], RedisServer], settings: Any, states: str) -> None:
    """Two rules: a month in the database, and a burst in the first store, whose keys in Redis have another prefix."""
    settings.QUOTA = {"DATABASE": states, "RULES": {"month": MONTH, "burst": "3/m"}}
    if request.param == "memory":
        settings.QUOTA["STORE"] = "memory"
    else:
        settings.CACHES = {"default": {**caches(started(request.param))["default"], "KEY_PREFIX": "live"}}
        flush()
    known_rules()  # the process uses the database from now on: the rule of a call may be remembered from another test
    empty_database(get_limiter().stores.counting_in(database=True).store)  # type: ignore[arg-type]


COUNTING: dict[str, Callable[[], object]] = {
    "a rule": lambda: Rule.make("week", "5/week", store="database"),
    "a counter": lambda: counter("prepaid", store="database"),
    "units of a counter in a string": lambda: Take("prepaid", store="database"),
}


@pytest.mark.parametrize("make", COUNTING.values(), ids=COUNTING)
def test_the_database_is_a_store_of_the_process_as_soon_as_something_counts_there(
    make: Callable[[], object], settings: Any, states_on_sqlite: str
) -> None:
    settings.QUOTA = {"STORE": "memory", "DATABASE": states_on_sqlite}
    before = len(counting_stores())

    make()

    assert (before, len(counting_stores())) == (1, 2)


def break_store(monkeypatch: pytest.MonkeyPatch, *, database: bool) -> None:
    """Let one of the stores not answer."""

    def fail(*_: object) -> None:
        raise StoreUnavailable("it was broken by the test")

    monkeypatch.setattr(get_limiter().stores.counting_in(database=database).store, "run", fail)


def flush() -> None:
    """Lose all that the first store has."""
    store = get_limiter().store
    if store.redis is None:
        store.clear_memory()
    else:
        with store.redis.commands() as client:
            client.flushall()


@pytest.mark.usefixtures("bursts")
def test_a_month_outlives_the_first_store() -> None:
    check("month", "user:1", 2)
    flush()
    assert peek("month", "user:1").remaining == 3


@pytest.mark.usefixtures("bursts")
def test_a_burst_counts_in_the_first_store() -> None:
    check("burst", "user:1")
    flush()
    assert peek("burst", "user:1").remaining == 3


@pytest.mark.usefixtures("bursts")
def test_a_refusal_by_the_database_gives_back_what_the_first_store_took() -> None:
    check("month", "user:1", 5)
    decision = check_all([("burst", "user:1"), ("month", "user:1")])
    assert (decision.allowed, decision.rule) == (False, "month")
    assert [each.remaining for each in decision.outcomes] == [3, 0]
    assert peek("burst", "user:1").remaining == 3


@pytest.mark.usefixtures("bursts")
def test_a_refusal_by_the_first_store_takes_nothing_of_the_database() -> None:
    check("burst", "user:1", 3)
    decision = check_all([("month", "user:1"), ("burst", "user:1")])
    assert (decision.allowed, decision.rule) == (False, "burst")
    assert peek("month", "user:1").remaining == 5


@pytest.mark.usefixtures("bursts")
def test_both_are_taken_together() -> None:
    decision = check_all([("month", "user:1", 2), ("burst", "user:1")])
    assert [(each.rule, each.remaining) for each in decision.outcomes] == [("month", 3), ("burst", 2)]


@pytest.mark.usefixtures("bursts")
def test_credits_outlive_the_first_store() -> None:
    PREPAID.incr("user:1", 10)
    flush()
    assert PREPAID.get("user:1") == 10


@pytest.mark.usefixtures("bursts")
def test_a_counter_in_the_database_is_not_the_one_of_its_name_in_the_first_store() -> None:
    PREPAID.incr("user:1", 10)
    assert counter("prepaid").get("user:1") == 0


@pytest.mark.usefixtures("bursts")
@pytest.mark.parametrize(("credits_taken", "credits_left", "burst_left"), [(4, 6, 2), (11, 10, 3)])
def test_credits_are_taken_together_with_a_burst(credits_taken: int, credits_left: int, burst_left: int) -> None:
    PREPAID.set("user:1", 10)
    check_all([("burst", "user:1"), (PREPAID, "user:1", credits_taken)])
    assert (PREPAID.get("user:1"), peek("burst", "user:1").remaining) == (credits_left, burst_left)


@pytest.mark.usefixtures("bursts")
def test_async_calls_are_all_or_nothing() -> None:
    async def taken() -> list[Any]:
        await PREPAID.aset("user:1", 10)
        decision = await acheck_all([("burst", "user:1"), ("month", "user:1"), (PREPAID, "user:1", 11)])
        return [decision.rule, *[(await apeek(rule, "user:1")).remaining for rule in ("burst", "month")]]

    assert asyncio.run(taken()) == ["prepaid", 3, 5]


@pytest.mark.usefixtures("bursts")
def test_a_refund_goes_to_the_database() -> None:
    check("month", "user:1", 4)
    assert refund("month", "user:1", 3).remaining == 4


@pytest.mark.usefixtures("bursts")
@pytest.mark.parametrize("rule", ["month", "*"])
def test_a_reset_reaches_the_database(rule: str) -> None:
    check("month", "user:1", 4)
    reset(rule, "user:1")
    assert peek("month", "user:1").remaining == 5


@pytest.mark.usefixtures("bursts")
def test_a_reset_of_all_that_is_found_reaches_the_database() -> None:
    check("4/week", "user:1", 4, store="database")
    reset_found(None, "user:1")
    assert peek("4/week", "user:1", store="database").remaining == 4


@pytest.mark.usefixtures("bursts")
@pytest.mark.parametrize(
    "forget", [partial(reset, "month"), partial(reset_found, None)], ids=["of the rule", "of all that is found"]
)
@pytest.mark.parametrize(
    ("signal", "hits"), [(near_limit, 4), (refused, 6)], ids=["that the limit is near", "of a refusal"]
)
def test_after_a_reset_the_event_of_the_database_comes_again(
    signal: Signal, hits: int, forget: Callable[[str], object]
) -> None:
    number = []
    with received(signal, heard := Mock()), freeze(START):
        for _ in range(2):
            for _ in range(hits):
                check("month", "user:1")
            number.append(heard.call_count)
            forget("user:1")

    assert number == [1, 2]


@pytest.mark.django_db
@pytest.mark.usefixtures("bursts")
@pytest.mark.parametrize("block", ["*", ""], ids=["a block", "memory"])
def test_a_refusal_without_the_database_is_counted_there_by_day(block: str) -> None:
    shut = Rule.make("shut", "0/week", store="database", cache_refusals=60, daily=True)
    if block:
        override("b 0 0 ", block, "user:1")
    with freeze(START):
        for _ in range(2):
            check(shut, "user:1")
        count_what_waits()

        assert checks_of("user:1") == {"shut": (0, 2)}


@pytest.mark.usefixtures("bursts", "database")
def test_a_raised_limit_ends_with_what_the_database_counted_before_the_day_changed() -> None:
    days = {"org:7": date(2026, 3, 15)}
    rule = Rule.make("plan", "10/month", algorithm="calendar", starts=days.get, store="database")
    with freeze(datetime(2026, 3, 20, 12, tzinfo=UTC)):
        check(rule, "org:7", 10)
        days["org:7"] = date(2026, 3, 10)
        assert raise_limit(rule, "org:7", 5) == datetime(2026, 5, 10, tzinfo=UTC)


@pytest.mark.usefixtures("bursts")
def test_a_reservation_is_settled_in_both_stores() -> None:
    reservation = reserve_all([("burst", "user:1", 3), ("month", "user:1", 5)])
    reservation.settle({"burst": 1, "month": 2})
    assert [peek(rule, "user:1").remaining for rule in ("burst", "month")] == [2, 3]


@pytest.mark.usefixtures("bursts")
def test_a_reservation_is_settled_in_the_database_though_it_exceeds_the_limit_of_the_first_store() -> None:
    reservation = reserve_all([("burst", "user:1", 3), ("month", "user:1", 5)])

    reservation.settle({"burst": 9, "month": 2})

    assert peek("month", "user:1").remaining == 3


@pytest.mark.django_db
@pytest.mark.usefixtures("bursts")
def test_a_saved_reservation_without_a_limit_is_settled_in_the_database() -> None:
    with freeze(START):
        saved = reserve(Rule.make("free", None, store="database", daily=True), "user:1", 5).dumps()
        count_what_waits()

        Reservation.loads(saved).settle(2)

        assert units_of("user:1") == {"free": 2}


@pytest.mark.usefixtures("bursts")
@pytest.mark.parametrize("named", [True, False], ids=["a rule of the settings", "a rule of the call"])
def test_a_saved_reservation_is_settled_once_in_the_database(named: bool) -> None:
    rule = Rule.make("calls", "9/week", store="database") if not named else "month"
    PREPAID.set("user:1", 10)
    saved = reserve_all([(rule, "user:1", 5), (PREPAID, "user:1", 5)]).dumps()
    before = peek(rule, "user:1").remaining or 0
    for _ in range(2):
        Reservation.loads(saved).settle(2)
    assert ((peek(rule, "user:1").remaining or 0) - before, PREPAID.get("user:1")) == (3, 8)


@pytest.mark.usefixtures("bursts")
def test_a_lease_of_credits_is_renewed_in_the_database() -> None:
    with freeze(START):
        PREPAID.set("user:1", 10)
        reservation = reserve(PREPAID, "user:1", 4, lease="10m")
    with freeze(START + 9 * MINUTE):
        run_sync(reservation.keeping())
    with freeze(START + 19 * MINUTE - 1), pytest.raises(QuotaExceeded):
        reserve(PREPAID, "user:1", 7, lease="10m")


@pytest.mark.usefixtures("bursts")
def test_without_the_first_store_the_month_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    break_store(monkeypatch, database=False)
    decision = check_all([("burst", "user:1"), ("month", "user:1", 2)])
    assert (decision.allowed, decision.degraded) == (True, True)
    assert peek("month", "user:1").remaining == 3


@pytest.mark.usefixtures("bursts")
def test_without_the_first_store_a_full_month_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    check("month", "user:1", 5)
    break_store(monkeypatch, database=False)
    assert not check_all([("burst", "user:1"), ("month", "user:1")]).allowed


@pytest.mark.usefixtures("bursts")
def test_without_the_database_its_rules_decide_by_on_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    break_store(monkeypatch, database=True)
    decision = check_all([("burst", "user:1"), ("month", "user:1")])
    assert (decision.allowed, decision.degraded) == (True, True)
    assert peek("burst", "user:1").remaining == 2


@pytest.mark.usefixtures("bursts")
def test_without_either_store_the_rules_of_both_decide_by_on_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    for database in (False, True):
        break_store(monkeypatch, database=database)

    decision = check_all([("burst", "user:1"), ("month", "user:1")])

    assert (decision.allowed, decision.degraded) == (True, True)


@pytest.mark.usefixtures("bursts")
@pytest.mark.parametrize(("mode", "why", "allowed"), [("b", "blocked", False), ("x", "exempt", True)])
def test_without_a_store_what_an_override_decides_is_in_the_decision(
    mode: str, why: str, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = Rule.make("aside", "5/m", block=False)
    override(f"{mode} 0 0 ", "aside", "user:1")
    break_store(monkeypatch, database=False)

    decision = check_all([(aside, "user:1"), ("burst", "user:1"), ("month", "user:1")])

    assert (decision.allowed, decision.degraded) == (allowed, True)
    assert [each.why for each in decision.outcomes if each.rule == "aside"] == [why]


@pytest.mark.usefixtures("bursts")
@pytest.mark.parametrize("names", [["month", "burst", "week"], ["week", "burst", "month"]], ids=" ".join)
def test_outcomes_are_in_the_order_of_the_entries_whichever_store_counts_them(names: list[str]) -> None:
    rules: dict[str, Any] = {"month": "month", "burst": "burst", "week": Rule.make("week", "4/week", store="database")}

    decision = check_all([(rules[name], "user:1") for name in names])

    assert [each.rule for each in decision.outcomes] == names


@pytest.mark.usefixtures("bursts")
def test_without_the_database_credits_refuse_for_free(monkeypatch: pytest.MonkeyPatch) -> None:
    break_store(monkeypatch, database=True)
    assert not check_all([("burst", "user:1"), (PREPAID, "user:1")]).allowed
    assert peek("burst", "user:1").remaining == 3


@pytest.mark.usefixtures("bursts")
def test_an_outage_of_the_database_is_not_one_of_the_first_store(monkeypatch: pytest.MonkeyPatch) -> None:
    break_store(monkeypatch, database=True)
    check("month", "user:1")
    limiter = get_limiter()
    assert [limiter.stores.counting_in(database=each).outages.is_on for each in (False, True)] == [False, True]


@pytest.mark.usefixtures("bursts")
@pytest.mark.parametrize("database", [False, True], ids=["the first store", "the database"])
def test_an_error_that_leaves_a_view_is_an_outage_of_the_store_that_failed(*, database: bool) -> None:
    error = StoreUnavailable("gone")
    error.is_of_database = database

    get_limiter().note_failure(error)

    stores = get_limiter().stores
    assert [stores.counting_in(database=each).outages.is_on for each in (False, True)] == [not database, database]


def test_an_error_of_the_database_says_that_it_is(tmp_path: Path) -> None:
    with alias_of_states(sqlite_database(tmp_path / "missing" / "states.sqlite3")):
        store = DatabaseStore("states")
        for call in (store.ping, lambda: store.run(ReadStates(["quota:1:{org:1}:c:credits"]))):
            with pytest.raises(StoreUnavailable) as caught:
                call()
            assert caught.value.is_of_database


@pytest.mark.usefixtures("bursts")
def test_the_signal_of_a_share_is_not_sent_for_a_hit_that_is_given_back() -> None:
    told = []

    def listen(sender: object, rule: Rule, **_: object) -> None:
        told.append(rule.name)

    with received(near_limit, listen):
        check("month", "user:1", 5)
        told.clear()
        check_all([("burst", "user:1", 3), ("month", "user:1")])
    assert told == []


@pytest.mark.usefixtures("bursts")
@pytest.mark.parametrize("full", ["burst", "month"], ids=["the first store", "the database"])
def test_a_refusal_of_a_request_on_both_stores_is_signalled_once_by(full: str) -> None:
    told: list[str] = []

    def listen(sender: object, rule: Rule, **_: object) -> None:
        told.append(rule.name)

    check(full, "user:1", 5 if full == "month" else 3)
    with received(refused, listen):
        check_all([("burst", "user:1"), ("month", "user:1")])

    assert told == [full]


@pytest.mark.usefixtures("bursts")
def test_a_request_that_the_database_refuses_counts_no_day_of_a_rule_without_a_limit() -> None:
    free = Rule.make("free", None, daily=True)
    check("month", "user:1", 5)

    with freeze(START):
        check_all([(free, "user:1"), ("burst", "user:1"), ("month", "user:1")])
        get_limiter().unasked.flush()
        check(free, "user:1")
        get_limiter().unasked.flush()

        assert [day["free"].allowed for day in recent_usage("user:1").values()] == [1]


@pytest.mark.usefixtures("bursts")
def test_usage_of_today_outlives_the_first_store() -> None:
    check("month", "user:1", 3)
    flush()
    ((rules),) = recent_usage("user:1").values()
    assert rules["month"].units == 3


@pytest.mark.usefixtures("bursts")
def test_a_subject_is_shown_with_what_the_database_counts() -> None:
    check("month", "user:1", 3)
    (month,) = [limit for limit in load_snapshot("user:1").limits if limit.rule == "month"]
    assert (month.used, month.source.endswith(" (in the database)")) == (3, True)


@pytest.mark.usefixtures("bursts")
def test_a_scan_shows_rates_in_the_database_without_counts_of_days() -> None:
    check(Rule.make("7/d", "7/d", algorithm="calendar", store="database", daily=False), "org:7", 2)

    (limit,) = [limit for limit in load_snapshot("org:7", scan=True).limits if limit.used]

    assert (limit.rule, limit.used, limit.source.rpartition(" (")[2]) == ("7/d", 2, "in the database)")


@pytest.mark.usefixtures("bursts")
def test_a_scan_shows_rates_that_only_a_call_counts_in_the_database() -> None:
    check("4/week", "user:1", 3, store="database")
    limits = [limit for limit in load_snapshot("user:1", scan=True).limits if limit.used]
    assert [(limit.rule, limit.used) for limit in limits] == [("4/w", 3)]


@pytest.mark.usefixtures("bursts")
def test_a_rate_that_has_warned_in_the_database_is_shown_without_a_scan() -> None:
    check(Rule.make("6/30m", "6/30m", store="database", daily=False), "user:1", 5)

    limits = [limit for limit in load_snapshot("user:1").limits if limit.used]

    assert [(limit.rule, limit.used) for limit in limits] == [("6/30m", 5)]


@pytest.mark.usefixtures("bursts")
def test_a_scan_shows_which_unknown_rules_the_database_counts() -> None:
    check(Rule.make("exports", "6/d", store="database", daily=False), "user:1")

    found = load_snapshot("user:1", scan=True)

    assert (found.counted, [name for name in found.unread if name == "exports"]) == (["exports"], ["exports"])


def test_counts_stay_when_the_site_moves_to_another_redis(settings: Any, states_on_sqlite: str) -> None:
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "KEY_PREFIX": "shop"}}
    settings.QUOTA = {"DATABASE": states_on_sqlite}
    PREPAID.set("user:1", 10)
    settings.QUOTA = {"DATABASE": states_on_sqlite, "REDIS": "redis://other.invalid"}
    assert PREPAID.get("user:1") == 10


def test_counts_stay_when_the_whole_site_moves_to_the_database(settings: Any, states_on_sqlite: str) -> None:
    settings.QUOTA = {"STORE": "memory", "DATABASE": states_on_sqlite}
    PREPAID.set("user:1", 10)
    settings.QUOTA = {"STORE": "database", "DATABASE": states_on_sqlite}
    assert counter("prepaid").get("user:1") == 10


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"store": "redis"}, "store='redis' is not a store of its own. Use 'database', or leave it out"),
        ({"store": True}, "store=True is not a store of its own."),
        ({"store": "database", "prefetch": True}, "prefetch= cannot be combined with store="),
        ({"store": "database", "ban": {"after": "5/m", "for": "1h"}}, "ban= cannot be combined with store="),
        ({"store": "database", "count_refused": True}, "count_refused= cannot be combined with store="),
    ],
    ids=["another store", "not a string", "units ahead", "a ban", "counted refusals"],
)
def test_what_does_not_fit_is_an_error(options: Any, problem: str) -> None:
    with pytest.raises(RuleError, match=re.escape(problem)):
        Rule.make("month", "5/month", **options)


def test_a_wrong_store_of_a_counter_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"counter\('prepaid', store='redis'\) is not a store of its own"):
        counter("prepaid", store="redis")  # type: ignore[arg-type]


def test_two_rules_of_one_name_have_one_store(settings: Any, states_on_sqlite: str) -> None:
    settings.QUOTA = {"STORE": "memory", "DATABASE": states_on_sqlite}
    rules = [Rule.make("api", "5/m"), Rule.make("api", "9/week", store="database")]
    assert not rules[0].is_compatible_with(rules[1])


@pytest.mark.usefixtures("bursts")
def test_a_view_may_count_in_both_stores(rf: RequestFactory) -> None:
    @quota(rule="month")
    @quota(rule="burst")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    statuses = [view(rf.get("/", REMOTE_ADDR="203.0.113.9")).status_code for _ in range(4)]
    flush()
    assert statuses == [200, 200, 200, 429]
    assert peek("month", "ip:203.0.113.9").remaining == 2


@pytest.mark.usefixtures("bursts")
def test_the_limits_of_a_subject_are_those_of_both_stores() -> None:
    check("month", "ip:203.0.113.9", 2)
    shown = limits_of("ip:203.0.113.9")
    left = {each.rule: each.remaining for each in shown.outcomes}
    assert (left["burst"], left["month"]) == (3, 3)


@pytest.fixture
def both_in_use(database: Any, redis_server: RedisServer, raw: Any, settings: Any, at_one_time: None) -> None:
    """Redis, where the keys have the prefix of the cache, and the database of the site, with its tables."""
    settings.CACHES = {"default": {**caches(redis_server)["default"], "KEY_PREFIX": "live"}}
    settings.QUOTA = {"RULES": {"month": MONTH, "burst": "3/m"}}
    check("month", "user:1", 2)
    check("burst", "user:1")


@pytest.mark.usefixtures("both_in_use")
def test_a_reset_of_all_that_is_found_says_what_it_deleted_in_both_stores() -> None:
    check("4/week", "user:1", name="another", store="database")

    found = reset_found(None, "user:1")

    assert (found.rules, found.deleted) == (["another", "burst", "month"], 3)


@pytest.mark.usefixtures("both_in_use")
def test_a_rule_that_counts_in_both_stores_is_named_once() -> None:
    check("4/week", "user:1", name="burst", store="database")

    found = reset_found(None, "user:1")

    assert (found.rules, found.deleted) == (["burst", "month"], 3)


@pytest.mark.usefixtures("both_in_use")
def test_a_roll_up_moves_the_days_of_both_stores() -> None:
    call_command("quota_rollup", stdout=StringIO(), stderr=StringIO())
    assert set(DailyCounter.objects.values_list("rule", "units")) == {("month", 2), ("burst", 1)}


@pytest.mark.usefixtures("both_in_use")
def test_a_roll_up_finds_the_days_of_both_stores_beside_another_site(settings: Any) -> None:
    """The prefix of a cache is part of the keys in Redis alone."""
    settings.CACHES = {"default": {**settings.CACHES["default"], "KEY_PREFIX": "other"}}
    check("month", "user:1")
    check("burst", "user:1")

    call_command("quota_rollup", stdout=StringIO(), stderr=StringIO())

    assert set(DailyCounter.objects.values_list("rule", "units")) == {("month", 3), ("burst", 1)}


@pytest.mark.usefixtures("both_in_use")
@pytest.mark.parametrize(
    ("is_database", "moved"), [(True, ("burst", 1)), (False, ("month", 2))], ids=["the database", "Redis"]
)
class TestRollUpWhileOneStoreDoesNotAnswer:
    def run(self, monkeypatch: pytest.MonkeyPatch, *, is_database: bool) -> str:
        """Roll up while one of the stores does not answer; return what is printed."""
        broken = get_limiter().stores.counting_in(database=is_database).store

        def moved(store: Store, *given: Any) -> Iterator[RollupResult]:
            if store is broken:
                raise StoreUnavailable("it was broken by the test")
            yield from roll_up(store, *given)

        monkeypatch.setattr(quota_rollup, "roll_up", moved)
        printed = StringIO()
        with pytest.raises(CommandError, match="it was broken by the test"):
            call_command("quota_rollup", stdout=printed, stderr=StringIO())
        return printed.getvalue()

    def test_it_moves_the_days_of_the_other(
        self, is_database: bool, moved: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.run(monkeypatch, is_database=is_database)

        assert list(DailyCounter.objects.values_list("rule", "units")) == [moved]

    def test_it_says_what_it_has_moved(self, is_database: bool, moved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.run(monkeypatch, is_database=is_database).startswith("Moved 1 day of subjects")


@pytest.mark.usefixtures("both_in_use")
def test_a_roll_up_without_either_store_names_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [StoreUnavailable("the first is away"), StoreUnavailable("the second is away")]
    monkeypatch.setattr(quota_rollup, "roll_up", Mock(side_effect=errors))

    with pytest.raises(CommandError, match="the first is away"):
        call_command("quota_rollup", stdout=StringIO(), stderr=StringIO())


@pytest.mark.usefixtures("both_in_use")
def test_the_lines_of_a_bill_are_those_of_both_stores() -> None:
    today = date(2025, 11, 21)  # that of `at_one_time`
    lines = usage_lines(today, today + timedelta(days=1))
    assert sorted((line.rule, line.units) for line in lines) == [("burst", 1), ("month", 2)]


@pytest.mark.usefixtures("both_in_use")
def test_a_sweep_sweeps_both_stores() -> None:
    told = StringIO()
    call_command("quota_sweep", json=True, stdout=told, stderr=StringIO())
    of_redis, of_database = map(json.loads, told.getvalue().splitlines())
    assert (of_redis["keys"] > 0, of_database["complete"]) == (True, True)


@pytest.mark.usefixtures("both_in_use")
def test_a_sweep_gives_back_leases_of_the_database() -> None:
    PREPAID.set("user:1", 10)
    reserve(PREPAID, "user:1", 4, lease="10m")

    with freeze(START + 11 * MINUTE):
        reports = json_of("quota_sweep")

    assert (reports[1]["leases"], PREPAID.get("user:1")) == (1, 10)


@pytest.mark.usefixtures("both_in_use")
def test_quota_status_shows_both_stores() -> None:
    told = StringIO()
    call_command("quota_status", "user:1", stdout=told, stderr=StringIO())
    assert "2 of 5 used" in told.getvalue()
    assert "(in the database)" in told.getvalue()


@pytest.mark.usefixtures("both_in_use")
def test_the_overview_reports_a_database_that_does_not_answer(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise StoreUnavailable("it was broken by the test")

    monkeypatch.setattr(DatabaseStore, "ping", fail)
    page = admin_client.get(reverse("admin:django_quota_overview_content")).content.decode()
    assert "does not answer: " in page


def test_a_command_names_the_database_that_does_not_answer(
    redis_server: RedisServer, tmp_path: Path, settings: Any
) -> None:
    settings.CACHES = caches(redis_server)
    missing = sqlite_database(tmp_path / "missing" / "states.sqlite3")
    with alias_of_states(missing):
        settings.QUOTA = {"DATABASE": "states", "RULES": {"month": MONTH}}
        with pytest.raises(CommandError, match=r'It is DATABASES\["states"\]'):
            call_command("quota_status", "org:1", stdout=StringIO(), stderr=StringIO())
