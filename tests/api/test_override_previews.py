"""Previews of overrides show what will apply, and change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from django_quota import check, peek
from django_quota.testing import freeze
from tests.support.inspection import previews
from tests.support.published import override
from tests.support.steps import SECOND, START

SUBJECT = "ip:203.0.113.9"

pytestmark = pytest.mark.usefixtures("either_store", "rules")


@pytest.fixture
def rules(either_store: None, settings: Any) -> None:
    settings.QUOTA = {
        **settings.QUOTA,
        "RULES": {
            "search": {"rate": "10/m; 100/h"},
            "banning": {"rate": "1/h", "ban": {"after": "1/m", "for": "1h"}},
            "monthly": {"rate": "5/month", "algorithm": "calendar"},
            "tiered": {"rate": {"anonymous": "5/m", "authenticated": "50/m"}},
        },
    }


def lines(of: list[Any]) -> list[tuple[str, int, int, float | None, str]]:
    return [(limit.rate, limit.used, limit.remaining, limit.retry_after, limit.why) for limit in of]


def test_a_new_rate_is_shown_with_the_current_limits() -> None:
    with freeze(START):
        check("search", SUBJECT, 10)
        (change,) = previews(SUBJECT, "search", "rate", "100/m").values()
    assert lines(change.now) == [("10/m", 10, 0, 60.0, ""), ("100/h", 10, 90, 0.0, "")]
    assert lines(change.then) == [("100/m", 10, 90, 0.0, "override")]


@pytest.mark.parametrize("rates", ["100/m", "20/h", "3/s; 7/m"])
def test_the_preview_is_what_holds_after_saving(rates: str) -> None:
    with freeze(START):
        check("search", SUBJECT, 10)
        (change,) = previews(SUBJECT, "search", "rate", rates).values()
        override(f"r 0 0 {rates}", "search")
        outcomes = peek("search", SUBJECT).outcomes
    assert [(limit.limit, limit.remaining, limit.retry_after) for limit in change.then] == [
        (outcome.limit, outcome.remaining, outcome.retry_after) for outcome in outcomes
    ]


def test_an_existing_override_counts_only_for_now() -> None:
    override("r 0 0 50/m", "search")
    with freeze(START):
        check("search", SUBJECT, 10)
        (change,) = previews(SUBJECT, "search", "rate", "20/m").values()
    assert lines(change.now) == [("50/m", 10, 40, 0.0, "override")]
    assert lines(change.then) == [("20/m", 10, 10, 0.0, "override")]


def test_an_exemption_and_a_block_are_previewed() -> None:
    with freeze(START):
        check("search", SUBJECT, 10)
        (exempt,) = previews(SUBJECT, "search", "exempt").values()
        (blocked,) = previews(SUBJECT, "search", "blocked", ends=START + 60 * SECOND).values()
        (for_good,) = previews(SUBJECT, "search", "blocked").values()
    assert [limit.retry_after for limit in exempt.then] == [0.0, 0.0]
    assert [limit.retry_after for limit in blocked.then] == [60.0, 60.0]
    assert [limit.retry_after for limit in for_good.then] == [None, None]


def test_the_wait_is_the_longer_of_a_block_and_its_limit() -> None:
    with freeze(START):
        check("search", SUBJECT, 10)
        ends = START + 20 * SECOND
        (change,) = previews(SUBJECT, "search", "blocked", ends=ends).values()
        override("b 0 0 ", "search")
        (instead,) = previews(SUBJECT, "search", "blocked", ends=ends).values()
        override(f"b 0 {ends} ", "search")
        outcomes = peek("search", SUBJECT).outcomes
    assert [limit.retry_after for limit in change.then] == [60.0, 20.0] == [each.retry_after for each in outcomes]
    assert [limit.retry_after for limit in instead.then] == [60.0, 20.0]


def test_the_wait_is_the_longer_of_a_ban_and_the_new_rate() -> None:
    with freeze(START):
        check("1/d", SUBJECT, name="banning")
        check("banning", SUBJECT)
        check("banning", SUBJECT)
        (change,) = previews(SUBJECT, "banning", "rate", "1/d").values()
    assert lines(change.then) == [("1/d", 1, 0, 86_400.0, "banned")]


def test_a_ban_takes_precedence_over_a_new_rate() -> None:
    with freeze(START):
        check("banning", SUBJECT)
        check("banning", SUBJECT)
        (change,) = previews(SUBJECT, "banning", "rate", "50/h").values()
    assert lines(change.then) == [("50/h", 1, 49, 3_600.0, "banned")]


def test_a_rules_own_override_shadows_one_of_all_rules() -> None:
    override("x 0 0 ", "search")
    with freeze(START):
        found = previews(SUBJECT, "*", "rate", "7/m")
    assert "an override of its own" in found["search"].problem
    assert not found["search"].then
    assert lines(found["tiered"].then) == [("7/m", 0, 7, 0.0, "override")]
    assert len(found["tiered"].now) == 2
    assert lines(found["monthly"].then) == [("7/m", 0, 7, 0.0, "override")]


def test_a_rate_that_does_not_fit_a_rule_is_a_problem() -> None:
    (change,) = previews(SUBJECT, "search", "rate", "7/month").values()
    assert "month" in change.problem
    assert not change.then


def test_a_rate_as_a_name_is_known_and_other_names_are_not() -> None:
    with freeze(START):
        check("5/30m", SUBJECT, 2)
        (change,) = previews(SUBJECT, "5/30m", "rate", "9/30m").values()
    assert lines(change.then) == [("9/30m", 2, 7, 0.0, "override")]
    assert previews(SUBJECT, "of-a-decorator", "exempt") == {}


def test_a_preview_changes_nothing() -> None:
    with freeze(START):
        check("search", SUBJECT, 4)
        for rates in ("100/m", "2/s"):
            previews(SUBJECT, "search", "rate", rates)
        assert peek("search", SUBJECT).remaining == 6
        assert peek("2/s", SUBJECT, name="search").remaining == 2
