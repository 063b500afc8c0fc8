"""Decisions are the same whether all rules count in one store or some of them in the database."""

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from django_quota import Decision, Rule, check_all, counter, peek_all, refund
from django_quota.testing import QuotaKit
from tests.support.inputs import inputs

PREPAID = counter("prepaid", store="database")
RULES = {
    "burst": Rule.make("burst", "5/m"),
    "bucket": Rule.make("bucket", "6/m", algorithm="token_bucket"),
    "shadow": Rule.make("shadow", "2/m", shadow=True, store="database"),
    "month": Rule.make("month", "9/month", algorithm="calendar", store="database"),
    "week": Rule.make("week", "7/week", algorithm="fixed_window", store="database"),
    "prepaid": PREPAID,
}
NUMBERS = itertools.count()

entries = st.lists(
    st.tuples(st.sampled_from(sorted(RULES)), st.integers(1, 4)), min_size=1, max_size=4, unique_by=lambda each: each[0]
)
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["check", "peek"]), entries),
        st.tuples(st.just("refund"), st.tuples(st.sampled_from(["burst", "month"]), st.integers(1, 3))),
    ),
    max_size=12,
)


@pytest.fixture
def sites(settings: Any, states_on_sqlite: str, the_clock_stands: QuotaKit) -> Any:
    """Return a function that makes the site count in one store, or in two."""

    def counting_in(stores: int) -> None:
        if stores == 1:
            settings.QUOTA = {"STORE": "database", "DATABASE": states_on_sqlite}
        else:
            settings.QUOTA = {"STORE": "memory", "DATABASE": states_on_sqlite}

    return counting_in


def facts(decision: Decision) -> Any:
    left = sorted((each.rule, each.allowed, each.remaining, each.over) for each in decision.outcomes)
    return decision.allowed, decision.enforced, left


def played(steps: Any) -> list[Any]:
    subject, told = f"org:{next(NUMBERS)}", []
    PREPAID.set(subject, 8)
    for what, of_step in steps:
        if what == "refund":
            name, units = of_step
            told.append(facts(refund(RULES[name], subject, units)))  # type: ignore[arg-type]
        else:
            asked = [(RULES[name], subject, cost) for name, cost in of_step]
            told.append(facts((check_all if what == "check" else peek_all)(asked)))  # type: ignore[arg-type]
    return told


@inputs(80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_two_stores_decide_as_one_does(sites: Any, steps: Any) -> None:
    sites(1)
    in_one = played(steps)
    sites(2)
    in_two = played(steps)

    assert in_two == in_one
