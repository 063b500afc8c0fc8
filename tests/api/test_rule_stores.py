"""`store="database"`: a rule or a counter that counts in the database, while bursts count in Redis or in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_quota import check, check_all, counter, peek, refund, reserve, reset
from django_quota.limiting.registry import get_limiter
from django_quota.testing import RedisServer
from tests.support.stores import caches, named, programs

MONTH = {"rate": "5/month", "algorithm": "calendar", "store": "database"}


@pytest.fixture(params=["memory", *programs()], ids=named)
def bursts(
    request: pytest.FixtureRequest, started: Callable[[Path], RedisServer], settings: Any, states_on_sqlite: str
) -> None:
    """Two rules: a month in the database, and a burst in the first store."""
    settings.QUOTA = {
        "DATABASE": states_on_sqlite,
        "RULES": {"month": MONTH, "burst": "3/m"},
    }
    if request.param == "memory":
        settings.QUOTA["STORE"] = "memory"
    else:
        settings.CACHES = caches(started(request.param))
        flush()


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
def test_a_counter_and_rule() -> None:
    prepaid = counter("credits", store="database")
    prepaid.incr("user:1", 10)
    flush()
    with reserve("month", "user:1", 2):
        pass
    assert check_all([("burst", "user:1"), (prepaid, "user:1", 4)]).allowed
    assert not check_all([("burst", "user:1"), (prepaid, "user:1", 7)]).allowed
    assert prepaid.get("user:1") == 6
    assert peek("burst", "user:1").remaining == 2
    assert counter("credits").get("user:1") == 0
    refund("month", "user:1", 1)
    assert peek("month", "user:1").remaining == 4
    reset("month", "user:1")
    assert peek("month", "user:1").remaining == 5
