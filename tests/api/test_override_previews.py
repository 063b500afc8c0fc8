"""Previews of overrides show what will apply, and change nothing."""

from typing import Any

import pytest

from django_quota import check, peek
from django_quota.core.overrides import Mode
from django_quota.testing import freeze
from tests.support.inspection import previews
from tests.support.overridden import override
from tests.support.steps import SECOND, START

SUBJECT = "ip:203.0.113.9"

pytestmark = pytest.mark.usefixtures("memory_store", "rules")


@pytest.fixture
def rules(memory_store: None, settings: Any) -> None:
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


@pytest.mark.parametrize("rates", ["100/m", "20/h", "3/s; 7/m"])
def test_the_preview_is_what_holds_after_saving(rates: str) -> None:
    with freeze(START):
        check("search", SUBJECT, 10)
        (change,) = previews(SUBJECT, "search", "rate", rates).values()
        assert lines(change.now) == [("10/m", 10, 0, 60.0, ""), ("100/h", 10, 90, 0.0, "")]
        assert [each.used for each in peek("search", SUBJECT).outcomes] == [10, 10], "it changes nothing"
        override(f"r 0 0 {rates}", "search")
        outcomes = peek("search", SUBJECT).outcomes
    assert [(limit.limit, limit.remaining, limit.retry_after) for limit in change.then] == [
        (outcome.limit, outcome.remaining, outcome.retry_after) for outcome in outcomes
    ]


@pytest.mark.parametrize(
    ("mode", "seconds", "waits"),
    [
        ("exempt", 0, [0.0, 0.0]),
        ("blocked", 0, [None, None]),
        ("blocked", 20, [60.0, 20.0]),  # the longer of the block and the limit
    ],
)
def test_an_exemption_and_a_block_are_previewed(mode: Mode, seconds: int, waits: list[float | None]) -> None:
    with freeze(START):
        check("search", SUBJECT, 10)
        for _ in range(2):
            (change,) = previews(SUBJECT, "search", mode, ends=seconds and START + seconds * SECOND).values()
            assert [limit.retry_after for limit in change.then] == waits
            override("b 0 0 ", "search")  # which the new one replaces


def test_a_ban_takes_precedence_over_a_new_rate_and_the_longer_wait_counts() -> None:
    with freeze(START):
        check("1/d", SUBJECT, name="banning")
        check("banning", SUBJECT)
        check("banning", SUBJECT)
        (fewer,) = previews(SUBJECT, "banning", "rate", "1/d").values()
        (more,) = previews(SUBJECT, "banning", "rate", "50/h").values()
    assert lines(fewer.then) == [("1/d", 1, 0, 86_400.0, "banned")]
    assert lines(more.then) == [("50/h", 1, 49, 3_600.0, "banned")]


def test_a_rules_own_override_shadows_one_of_all_rules() -> None:
    override("x 0 0 ", "search")
    with freeze(START):
        found = previews(SUBJECT, "*", "rate", "7/m")
    assert "an override of its own" in found["search"].problem
    assert not found["search"].then
    assert lines(found["tiered"].then) == [("7/m", 0, 7, 0.0, "override")]
    assert len(found["tiered"].now) == 2
    assert lines(found["monthly"].then) == [("7/m", 0, 7, 0.0, "override")]
