"""What an override would do: said before it is saved, and true once it is."""

from __future__ import annotations

from typing import Any

import pytest

from django_quota import check, peek
from django_quota.clock import SECOND
from django_quota.overrides import Override
from django_quota.previews import preview
from django_quota.testing import freeze
from tests.published import override
from tests.steps import START

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


def test_another_rate_is_said_beside_how_it_stands() -> None:
    with freeze(START):
        check("search", SUBJECT, 10)
        (change,) = preview(SUBJECT, "search", Override("rate", rates="100/m")).changes
    assert lines(change.now) == [("10/m", 10, 0, 60.0, ""), ("100/h", 10, 90, 0.0, "")]
    assert lines(change.then) == [("100/m", 10, 90, 0.0, "override")]


@pytest.mark.parametrize("rates", ["100/m", "20/h", "3/s; 7/m"])
def test_what_is_said_is_what_then_holds(rates: str) -> None:
    with freeze(START):
        check("search", SUBJECT, 10)
        (change,) = preview(SUBJECT, "search", Override("rate", rates=rates)).changes
        override(f"r 0 0 {rates}", "search")
        outcomes = peek("search", SUBJECT).outcomes
    assert [(limit.limit, limit.remaining, limit.retry_after) for limit in change.then] == [
        (outcome.limit, outcome.remaining, outcome.retry_after) for outcome in outcomes
    ]


def test_an_override_that_is_there_is_what_stands_now_and_not_then() -> None:
    override("r 0 0 50/m", "search")
    with freeze(START):
        check("search", SUBJECT, 10)
        (change,) = preview(SUBJECT, "search", Override("rate", rates="20/m")).changes
    assert lines(change.now) == [("50/m", 10, 40, 0.0, "override")]
    assert lines(change.then) == [("20/m", 10, 10, 0.0, "override")]


def test_an_exemption_and_a_block_are_said() -> None:
    with freeze(START):
        check("search", SUBJECT, 10)
        (exempt,) = preview(SUBJECT, "search", Override("exempt")).changes
        (blocked,) = preview(SUBJECT, "search", Override("blocked", ends=START + 60 * SECOND)).changes
        (for_good,) = preview(SUBJECT, "search", Override("blocked")).changes
    assert [limit.retry_after for limit in exempt.then] == [0.0, 0.0]
    assert [limit.retry_after for limit in blocked.then] == [60.0, 60.0]
    assert [limit.retry_after for limit in for_good.then] == [None, None]


def test_a_block_that_ends_before_a_limit_has_room_says_when_it_has() -> None:
    with freeze(START):
        check("search", SUBJECT, 10)
        block = Override("blocked", ends=START + 20 * SECOND)
        (change,) = preview(SUBJECT, "search", block).changes
        override("b 0 0 ", "search")
        (instead,) = preview(SUBJECT, "search", block).changes
        override(f"b 0 {block.ends} ", "search")
        outcomes = peek("search", SUBJECT).outcomes
    assert [limit.retry_after for limit in change.then] == [60.0, 20.0] == [each.retry_after for each in outcomes]
    assert [limit.retry_after for limit in instead.then] == [60.0, 20.0]


def test_a_ban_that_ends_before_the_other_rate_has_room_says_when_it_has() -> None:
    with freeze(START):
        check("1/d", SUBJECT, name="banning")
        check("banning", SUBJECT)
        check("banning", SUBJECT)
        (change,) = preview(SUBJECT, "banning", Override("rate", rates="1/d")).changes
    assert lines(change.then) == [("1/d", 1, 0, 86_400.0, "banned")]


def test_a_ban_goes_before_another_rate() -> None:
    with freeze(START):
        check("banning", SUBJECT)
        check("banning", SUBJECT)
        (change,) = preview(SUBJECT, "banning", Override("rate", rates="50/h")).changes
    assert lines(change.then) == [("50/h", 1, 49, 3_600.0, "banned")]


def test_for_all_rules_one_of_a_rules_own_goes_first() -> None:
    override("x 0 0 ", "search")
    with freeze(START):
        found = {change.rule: change for change in preview(SUBJECT, "*", Override("rate", rates="7/m")).changes}
    assert found["search"].is_shadowed
    assert not found["search"].then
    assert lines(found["tiered"].then) == [("7/m", 0, 7, 0.0, "override")]
    assert len(found["tiered"].now) == 2
    assert lines(found["monthly"].then) == [("7/m", 0, 7, 0.0, "override")]


def test_a_rate_that_does_not_fit_a_rule_is_said() -> None:
    (change,) = preview(SUBJECT, "search", Override("rate", rates="7/month")).changes
    assert "month" in change.problem
    assert not change.then


def test_a_name_that_is_a_rate_is_known_and_any_other_is_not() -> None:
    with freeze(START):
        check("5/30m", SUBJECT, 2)
        (change,) = preview(SUBJECT, "5/30m", Override("rate", rates="9/30m")).changes
    assert lines(change.then) == [("9/30m", 2, 7, 0.0, "override")]
    assert preview(SUBJECT, "of-a-decorator", Override("exempt")).is_unknown


def test_nothing_is_spent_or_written() -> None:
    with freeze(START):
        check("search", SUBJECT, 4)
        for rates in ("100/m", "2/s"):
            preview(SUBJECT, "search", Override("rate", rates=rates))
        assert peek("search", SUBJECT).remaining == 6
        assert peek("2/s", SUBJECT, name="search").remaining == 2
