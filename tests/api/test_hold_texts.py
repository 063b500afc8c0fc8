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
from tests.support.steps import ALGORITHMS, SECOND, START

USER, ORG = "user:42", "org:7"
MINUTE = 60 * SECOND
DAY = 1_440 * MINUTE
RULES: dict[str, Any] = {
    "tokens": {"rate": "1000/h", "daily": True},
    "tiered": {"rate": {"free": "100/h", "pro": "1000/h"}, "tier": lambda _: "free"},
    "shared": {"rate": "1000/h", "share": {"anonymous": 0.5, "authenticated": 1.0}},
    "dynamic": {"rate": lambda _: "50/h"},
    "bucket": {"rate": "1000/h", "algorithm": "token_bucket"},
}


def configure(settings: Any, **rules: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {**RULES, **rules}}


@pytest.fixture
def stores(either_store: None, settings: Any) -> None:
    configure(settings)


def by_org(request: Any) -> str:
    return ORG


def later(hold: Hold) -> Hold:
    """Return the reservation as another process reads it."""
    return Hold.loads(hold.dumps())


def shown(decision: Decision) -> list[Any]:
    return [
        (each.subject, each.allowed, each.remaining, each.used, each.over, each.reset_after)
        for each in decision.outcomes
    ]


@pytest.mark.usefixtures("stores")
class TestEveryStore:
    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    @pytest.mark.parametrize("actual", [0, 150, 600, 1_500])
    def test_it_is_settled_as_the_reservation_itself(self, algorithm: Any, actual: int) -> None:
        options: list[Any] = [{"name": name, "algorithm": algorithm} for name in ("here", "there")]
        with freeze(START):
            here, there = [reserve("1000/h; 5000/d", USER, 600, **option) for option in options]
            text = there.dumps()
        with freeze(START + 10 * MINUTE):
            for option in options:
                reserve("1000/h; 5000/d", USER, 100, **option)
            assert shown(here.settle(actual)) == shown(Hold.loads(text).settle(actual))
        for minutes in (11, 59, 61, 80, 1_441):
            with freeze(START + minutes * MINUTE):
                first, second = [shown(peek("1000/h; 5000/d", USER, **option)) for option in options]
                assert first == second

    @pytest.mark.parametrize("group", [None, "shop"])
    @pytest.mark.parametrize("actual", [0, 640, 900, 1_040])
    def test_counters_and_limits_are_settled_together(self, group: str | None, actual: int) -> None:
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

    @pytest.mark.parametrize("is_exempt", [False, True])
    def test_the_day_of_the_hit_counts_what_was_settled(self, is_exempt: bool) -> None:
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


@pytest.mark.django_db
@pytest.mark.usefixtures("either_store")
def test_a_bill_shows_what_was_settled_the_next_day(settings: Any) -> None:
    configure(settings)
    with freeze(START):
        text = reserve("tokens", ORG, 900).dumps()
    with freeze(START + DAY):
        Hold.loads(text).settle(640)
        (rules,) = usage(ORG, date(2025, 11, 1), date(2025, 12, 1)).values()
    assert (rules["tokens"].allowed, rules["tokens"].units) == (1, 640)


@pytest.mark.usefixtures("redis_cache")
class TestOtherSettings:
    """The settings may be others by the time it is settled."""

    @pytest.mark.parametrize("actual", [640, 940])
    def test_a_rule_with_another_count_is_settled_by_that(self, settings: Any, actual: int) -> None:
        configure(settings)
        with freeze(START):
            text = reserve("tokens", ORG, 900).dumps()
            configure(settings, tokens="2000/h")
            assert Hold.loads(text).settle(actual).remaining == 2_000 - actual

    def test_another_algorithm_or_window_is_charged_and_gives_nothing_back(self, settings: Any) -> None:
        configure(settings)
        with freeze(START):
            texts = [reserve("tokens", ORG, 100).dumps() for _ in range(2)]
            configure(settings, tokens={"rate": "1000/m", "algorithm": "fixed_window"})
            assert Hold.loads(texts[0]).settle(150).remaining == 950
            assert Hold.loads(texts[1]).settle(0).remaining == 950

    @pytest.mark.parametrize(("rate", "remaining"), [("1000/h", 900), ("2000/h", 1_300)])
    def test_a_bucket_that_refills_at_another_rate_gives_nothing_back(
        self, settings: Any, rate: str, remaining: int
    ) -> None:
        configure(settings)
        with freeze(START):
            text = reserve("bucket", ORG, 350).dumps()
            configure(settings, bucket={"rate": rate, "algorithm": "token_bucket"})
            assert Hold.loads(text).settle(100).remaining == remaining

    def test_tiers_may_come_and_go(self, settings: Any) -> None:
        configure(settings)
        with freeze(START):
            plain, tiered = reserve("tokens", USER, 90).dumps(), reserve("tiered", USER, 90, tier="pro").dumps()
            configure(settings, tokens={"rate": {"anonymous": "10/h", "authenticated": "500/h"}}, tiered="300/h")
            assert Hold.loads(plain).settle(40).remaining == 460
            assert Hold.loads(tiered).settle(40).remaining == 260

    def test_what_no_longer_exists_is_named(self, settings: Any) -> None:
        configure(settings)
        plain, tiered = reserve("tokens", USER, 90).dumps(), reserve("tiered", USER, 90, tier="pro").dumps()
        settings.QUOTA = {
            **settings.QUOTA,
            "RULES": {"token": "1/m", "tiered": {**RULES["tiered"], "rate": {"x": "1/m"}}},
        }
        with pytest.raises(RuleError, match=r"There is no rule 'tokens' in QUOTA.* Did you mean 'token'\?"):
            Hold.loads(plain)
        with pytest.raises(RuleError, match=r"Rule 'tiered' has no tier 'pro'. Known: 'x'"):
            Hold.loads(tiered)

    def test_where_limiting_was_off_nothing_is_given_back(self, settings: Any) -> None:
        configure(settings)
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
        text = reserve("tokens", ORG, 900).dumps()
        settings.QUOTA = {**settings.QUOTA, "ENABLED": True}
        with freeze(START):
            assert Hold.loads(text).settle(0).remaining == 1_000


@pytest.mark.usefixtures("memory_store")
class TestTexts:
    @pytest.mark.parametrize(
        "wrong", ["", "{", "[]", "{}", "null", "7", '{"quota_hold": 2}', '{"quota_hold": 1}', "cut", "cost"]
    )
    def test_another_text_says_what_to_pass(self, wrong: str) -> None:
        text = reserve("9/m", ORG, 3).dumps()
        made = {"cut": text[:-9], "cost": text.replace(", 3, ", ', "3", ')}
        says = "is not a whole number" if wrong == "cost" else r"is not the text of a reservation. Use what hold\.dumps"
        with pytest.raises(RuleError, match=says):
            Hold.loads(made.get(wrong, wrong))

    def test_functions_of_requests_are_left_out_and_an_entry_stays_short(self, rf: Any) -> None:
        options: Any = {"key": by_org, "skip": lambda request: False, "exempt": "10.0.0.0/8"}
        hold = reserve("10/s; 1000/h; 5000/d", rf.get("/"), 3, name="n" * 40, **options)
        text = hold.dumps()
        assert len(text) < 1_000
        assert json.loads(text)["decided_at"] == hold.decided_at
        assert [outcome.used for outcome in Hold.loads(text).settle(5).outcomes] == [5, 5, 5]
