"""A reservation as a text, which another process settles: exactly as the reservation itself would."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest

from django_quota import Decision, counter, peek, reserve, reserve_all, usage
from django_quota.exceptions import RuleError
from django_quota.testing import freeze
from django_quota.types import Hold
from tests.support.counts import checks_of, count_what_waits, units_of
from tests.support.overridden import override
from tests.support.steps import ALGORITHMS, MINUTE, START

USER, ORG = "user:42", "org:7"
DAY = 1_440 * MINUTE
RULES: dict[str, Any] = {
    "tokens": {"rate": "1000/h", "daily": True},
    "tiered": {"rate": {"free": "100/h", "pro": "1000/h"}, "tier": lambda _: "free"},
    "shared": {"rate": "1000/h", "share": {"anonymous": 0.5, "authenticated": 1.0}},
    "dynamic": {"rate": lambda _: "50/h"},
    "bucket": {"rate": "1000/h", "algorithm": "token_bucket"},
}

in_memory = pytest.mark.usefixtures("memory_store", "rules")
on_redis = pytest.mark.usefixtures("redis_cache", "rules")


def configure(settings: Any, **rules: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {**RULES, **rules}}


@pytest.fixture
def rules(settings: Any) -> None:
    configure(settings)


def by_org(request: Any) -> str:
    return ORG


def later(hold: Hold) -> Hold:
    """Return the reservation as another process reads it."""
    return Hold.loads(hold.dumps())


def shown(decision: Decision) -> list[Any]:
    return [(each.allowed, each.remaining, each.used, each.over, each.reset_after) for each in decision.outcomes]


@in_memory
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("actual", [0, 150, 600, 1_500])
def test_it_is_settled_as_the_reservation_itself(algorithm: Any, actual: int) -> None:
    options: list[Any] = [{"name": name, "algorithm": algorithm} for name in ("here", "there")]
    with freeze(START):
        here, there = [reserve("1000/h; 5000/d", USER, 600, **option) for option in options]
        text = there.dumps()
    with freeze(START + 10 * MINUTE):
        for option in options:
            reserve("1000/h; 5000/d", USER, 100, **option)
        assert shown(here.settle(actual)) == shown(Hold.loads(text).settle(actual))
    for minutes in (11, 61, 80, 1_441):
        with freeze(START + minutes * MINUTE):
            first, second = [shown(peek("1000/h; 5000/d", USER, **option)) for option in options]
            assert first == second


@pytest.mark.usefixtures("either_store", "rules")
@pytest.mark.parametrize("group", [None, "shop"])
@pytest.mark.parametrize("actual", [0, 640, 1_040])
def test_counters_and_limits_are_settled_together(group: str | None, actual: int) -> None:
    credit = counter("credits", group=group)
    credit.set(ORG, 1_000)
    with freeze(START):
        text = reserve_all([("9/m", USER), ("tokens", ORG, 900), (credit, ORG, 900)]).dumps()
    with freeze(START + 30 * MINUTE):
        hold = Hold.loads(text)
        assert (hold.costs, hold.is_open, hold.decided_at) == ((1, 900, 900), True, START)
        hold.settle({"tokens": actual, "credits": actual})
        hold.cancel()  # a second time it changes nothing
        assert credit.get(ORG) == 1_000 - actual
        assert peek("tokens", ORG).remaining == max(0, 1_000 - actual)


@in_memory
@pytest.mark.django_db
@pytest.mark.parametrize("is_exempt", [False, True])
def test_the_day_of_the_hit_counts_what_was_settled_and_a_bill_shows_it(is_exempt: bool) -> None:
    with freeze(START):
        if is_exempt:
            override("x 0 0 ", "tokens", ORG)
        more, less, cancelled = [reserve("tokens", ORG, 100).dumps() for _ in range(3)]
    with freeze(START + DAY):
        Hold.loads(more).settle(900)
        Hold.loads(less).settle(7)
        Hold.loads(cancelled).cancel()
        assert count_what_waits()
        assert (checks_of(ORG), units_of(ORG)) == ({"tokens": (2, 0)}, {"tokens": 907})
        (bill,) = usage(ORG, date(2025, 11, 1), date(2025, 12, 1)).values()
    assert bill["tokens"] == (2, 0, 907)


@in_memory
class TestRules:
    def test_a_tier_and_a_share_are_settled_by_their_own_rates(self) -> None:
        with freeze(START):
            hold = reserve_all([("tiered", USER, 90, "pro"), ("shared", USER, 700), ("shared", ORG, 400, "anonymous")])
            decision = later(hold).settle([150, 600, 450])
            assert [outcome.remaining for outcome in decision.outcomes] == [850, 400, 50]
            assert [outcome.limit for outcome in decision.outcomes] == [1_000, 1_000, 500]

    def test_options_of_a_rate_hold(self) -> None:
        options: Any = {"algorithm": "token_bucket", "burst": 50, "share": 0.5, "warn_at": [0.5, 1.0], "daily": True}
        with freeze(START):
            hold = reserve("60/m", ORG, 20, name="paid", block=False, **options)
            assert shown(later(hold).settle(5)) == shown(peek("60/m", ORG, name="paid", block=False, **options))
            assert units_of(ORG) == {"paid": 5}

    def test_rates_of_overrides_and_of_functions_are_settled_where_they_were_counted(self, rf: Any) -> None:
        with freeze(START):
            override("r 0 0 500/h", "bucket", USER)
            assert later(reserve("bucket", USER, 400)).settle(100).remaining == 400
            assert later(reserve("dynamic", rf.get("/"), 40)).settle(10).remaining == 40
            assert later(reserve("tokens", rf.get("/"), 40)).settle(10).remaining == 990

    def test_a_reservation_that_is_settled_is_a_text_that_changes_nothing(self) -> None:
        with freeze(START):
            hold = reserve("tokens", ORG, 900)
            hold.settle(640)
            assert not later(hold).is_open
            assert later(hold).settle(0).remaining == 360

    def test_functions_of_requests_are_left_out_and_an_entry_stays_short(self, rf: Any) -> None:
        options: Any = {"key": by_org, "skip": lambda request: False, "exempt": "10.0.0.0/8"}
        hold = reserve("10/s; 1000/h; 5000/d", rf.get("/"), 3, name="n" * 40, **options)
        text = hold.dumps()
        assert len(text) < 1_000
        assert json.loads(text)["decided_at"] == hold.decided_at
        assert [outcome.used for outcome in Hold.loads(text).settle(5).outcomes] == [5, 5, 5]

    @pytest.mark.parametrize("wrong", ["", "{", "[]", "null", "7", '{"quota_hold": 1}', "cut", "cost"])
    def test_another_text_says_what_to_pass(self, wrong: str) -> None:
        text = reserve("9/m", ORG, 3).dumps()
        made = {"cut": text[:-9], "cost": text.replace(", 3, ", ', "3", ')}
        says = "is not a whole number" if wrong == "cost" else r"is not the text of a reservation. Use what hold\.dumps"
        with pytest.raises(RuleError, match=says):
            Hold.loads(made.get(wrong, wrong))


BUCKET = {"algorithm": "token_bucket"}


@on_redis
class TestOtherSettings:
    """The settings may be others by the time it is settled."""

    @pytest.mark.parametrize(
        ("rule", "estimate", "changed", "actual", "remaining"),
        [
            ("tokens", 900, {"tokens": "2000/h"}, 640, 1_360),
            ("tokens", 900, {"tokens": "2000/h"}, 940, 1_060),
            ("tokens", 100, {"tokens": {"rate": "1000/m", "algorithm": "fixed_window"}}, 150, 950),
            ("tokens", 100, {"tokens": {"rate": "1000/m", "algorithm": "fixed_window"}}, 0, 1_000),
            ("bucket", 350, {"bucket": {"rate": "1000/h", **BUCKET}}, 100, 900),
            ("bucket", 350, {"bucket": {"rate": "2000/h", **BUCKET}}, 100, 1_300),  # nothing is given back
            ("tokens", 90, {"tokens": {"rate": {"anonymous": "10/h", "authenticated": "500/h"}}}, 40, 460),
        ],
    )
    def test_a_rule_is_settled_as_it_is_now(
        self, rule: str, estimate: int, changed: Any, actual: int, remaining: int, settings: Any
    ) -> None:
        with freeze(START):
            text = reserve(rule, USER, estimate).dumps()
            configure(settings, **changed)
            assert Hold.loads(text).settle(actual).remaining == remaining

    def test_a_tier_may_go(self, settings: Any) -> None:
        with freeze(START):
            text = reserve("tiered", USER, 90, tier="pro").dumps()
            configure(settings, tiered="300/h")
            assert Hold.loads(text).settle(40).remaining == 260

    def test_what_no_longer_exists_is_named(self, settings: Any) -> None:
        plain, tiered = reserve("tokens", USER, 90).dumps(), reserve("tiered", USER, 90, tier="pro").dumps()
        left = {"token": "1/m", "tiered": {**RULES["tiered"], "rate": {"x": "1/m"}}}
        settings.QUOTA = {**settings.QUOTA, "RULES": left}
        with pytest.raises(RuleError, match=r"There is no rule 'tokens' in QUOTA.* Did you mean 'token'\?"):
            Hold.loads(plain)
        with pytest.raises(RuleError, match=r"Rule 'tiered' has no tier 'pro'. Known: 'x'"):
            Hold.loads(tiered)

    def test_if_limiting_was_off_nothing_is_given_back(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
        text = reserve("tokens", ORG, 900).dumps()
        settings.QUOTA = {**settings.QUOTA, "ENABLED": True}
        with freeze(START):
            assert Hold.loads(text).settle(0).remaining == 1_000
