"""Previews of overrides show what will apply, and change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from django_quota import check, peek
from django_quota.services.inspection import preview_override
from django_quota.services.overrides import Override
from django_quota.testing import freeze
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
        (change,) = preview_override(SUBJECT, "search", Override("rate", rates="100/m")).changes
    assert lines(change.now) == [("10/m", 10, 0, 60.0, ""), ("100/h", 10, 90, 0.0, "")]
    assert lines(change.then) == [("100/m", 10, 90, 0.0, "override")]


@pytest.mark.parametrize("rates", ["100/m", "20/h", "3/s; 7/m"])
def test_the_preview_is_what_holds_after_saving(rates: str) -> None:
    with freeze(START):
        check("search", SUBJECT, 10)
        (change,) = preview_override(SUBJECT, "search", Override("rate", rates=rates)).changes
        override(f"r 0 0 {rates}", "search")
        outcomes = peek("search", SUBJECT).outcomes
    assert [(limit.limit, limit.remaining, limit.retry_after) for limit in change.then] == [
        (outcome.limit, outcome.remaining, outcome.retry_after) for outcome in outcomes
    ]


def test_an_existing_override_counts_only_for_now() -> None:
    override("r 0 0 50/m", "search")
    with freeze(START):
        check("search", SUBJECT, 10)
        (change,) = preview_override(SUBJECT, "search", Override("rate", rates="20/m")).changes
    assert lines(change.now) == [("50/m", 10, 40, 0.0, "override")]
    assert lines(change.then) == [("20/m", 10, 10, 0.0, "override")]


def test_an_exemption_and_a_block_are_previewed() -> None:
    with freeze(START):
        check("search", SUBJECT, 10)
        (exempt,) = preview_override(SUBJECT, "search", Override("exempt")).changes
        (blocked,) = preview_override(SUBJECT, "search", Override("blocked", ends=START + 60 * SECOND)).changes
        (for_good,) = preview_override(SUBJECT, "search", Override("blocked")).changes
    assert [limit.retry_after for limit in exempt.then] == [0.0, 0.0]
    assert [limit.retry_after for limit in blocked.then] == [60.0, 60.0]
    assert [limit.retry_after for limit in for_good.then] == [None, None]


def test_the_wait_is_the_longer_of_a_block_and_its_limit() -> None:
    with freeze(START):
        check("search", SUBJECT, 10)
        block = Override("blocked", ends=START + 20 * SECOND)
        (change,) = preview_override(SUBJECT, "search", block).changes
        override("b 0 0 ", "search")
        (instead,) = preview_override(SUBJECT, "search", block).changes
        override(f"b 0 {block.ends} ", "search")
        outcomes = peek("search", SUBJECT).outcomes
    assert [limit.retry_after for limit in change.then] == [60.0, 20.0] == [each.retry_after for each in outcomes]
    assert [limit.retry_after for limit in instead.then] == [60.0, 20.0]


def test_the_wait_is_the_longer_of_a_ban_and_the_new_rate() -> None:
    with freeze(START):
        check("1/d", SUBJECT, name="banning")
        check("banning", SUBJECT)
        check("banning", SUBJECT)
        (change,) = preview_override(SUBJECT, "banning", Override("rate", rates="1/d")).changes
    assert lines(change.then) == [("1/d", 1, 0, 86_400.0, "banned")]


def test_a_ban_takes_precedence_over_a_new_rate() -> None:
    with freeze(START):
        check("banning", SUBJECT)
        check("banning", SUBJECT)
        (change,) = preview_override(SUBJECT, "banning", Override("rate", rates="50/h")).changes
    assert lines(change.then) == [("50/h", 1, 49, 3_600.0, "banned")]


def test_a_rules_own_override_shadows_one_of_all_rules() -> None:
    override("x 0 0 ", "search")
    with freeze(START):
        found = {
            change.rule: change for change in preview_override(SUBJECT, "*", Override("rate", rates="7/m")).changes
        }
    assert "an override of its own" in found["search"].problem
    assert not found["search"].then
    assert lines(found["tiered"].then) == [("7/m", 0, 7, 0.0, "override")]
    assert len(found["tiered"].now) == 2
    assert lines(found["monthly"].then) == [("7/m", 0, 7, 0.0, "override")]


def test_a_rate_that_does_not_fit_a_rule_is_a_problem() -> None:
    (change,) = preview_override(SUBJECT, "search", Override("rate", rates="7/month")).changes
    assert "month" in change.problem
    assert not change.then


def test_a_rate_as_a_name_is_known_and_other_names_are_not() -> None:
    with freeze(START):
        check("5/30m", SUBJECT, 2)
        (change,) = preview_override(SUBJECT, "5/30m", Override("rate", rates="9/30m")).changes
    assert lines(change.then) == [("9/30m", 2, 7, 0.0, "override")]
    assert preview_override(SUBJECT, "of-a-decorator", Override("exempt")).is_unknown


def test_a_preview_changes_nothing() -> None:
    with freeze(START):
        check("search", SUBJECT, 4)
        for rates in ("100/m", "2/s"):
            preview_override(SUBJECT, "search", Override("rate", rates=rates))
        assert peek("search", SUBJECT).remaining == 6
        assert peek("2/s", SUBJECT, name="search").remaining == 2
