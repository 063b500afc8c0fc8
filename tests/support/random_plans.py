"""Random plans for property tests: rules of every kind, costs, values and gaps in time."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Any

from hypothesis import strategies as st

from django_quota import Rule, counter
from django_quota.engine.asks import Ask, Asked
from django_quota.engine.codec import PER_LIMIT
from tests.support.questions import Question
from tests.support.steps import SECOND

BAN = {"after": "3/m", "for": ["20s", "2m"]}

_PLAIN = [
    Rule.make("exact", "5/m"),
    Rule.make("slices", "40/m; 150/h", precision=7),
    Rule.make("packed", "250/m"),
    Rule.make("shares", "5/m; 12/h", warn_at=[0.3, 0.5, 1.0]),
    Rule.make("huge", f"{10**12}/d"),
    Rule.make("none-counted", "0/m", count_refused=True, warn_at=1.0),
    Rule.make("none-fixed", "0/m", algorithm="fixed_window", count_refused=True),
    Rule.make("counted", "6/m", count_refused=True, warn_at=0.5),
    Rule.make("fixed", "9/m", algorithm="fixed_window", daily=True),
    Rule.make("fixed-counted", "9/m", algorithm="fixed_window", count_refused=True, daily=False),
    Rule.make("calendar", "9/m; 40/d; 90/month", algorithm="calendar", tz="Europe/Berlin"),
    Rule.make("started", "9/week; 40/month; 7/m", algorithm="calendar", starts=date(2025, 11, 21)),
    Rule.make("bucket", "7/m", algorithm="token_bucket"),
    Rule.make("burst", "7/m", algorithm="token_bucket", burst=20),
    Rule.make("burst-counted", "7/m", algorithm="token_bucket", burst=3, count_refused=True, ban=BAN),
    Rule.make("brief", "4/s", algorithm="token_bucket", warn_at=0.5),
    Rule.make("leaky", "11/m", algorithm="leaky_bucket"),
    Rule.make("shadow", "4/m; 10/h", shadow=True, ban=BAN),
    Rule.make("aside", "4/m", algorithm="fixed_window", block=False, ban=BAN),
    Rule.make("shadow-counted", "4/m", shadow=True, count_refused=True),
    Rule.make("aside-counted", "6/m", block=False, count_refused=True),
    Rule.make("banning", "2/m; 9/h", ban=BAN),
    Rule.make("devices", "3/m", distinct=True, ban=BAN),
    Rule.make("ahead", "9/m; 30/h", prefetch=True, warn_at=[0.3, 1.0]),
    Rule.make("ahead-slices", "40/m", precision=7, prefetch=3),
    Rule.make("ahead-fixed", "9/m", algorithm="fixed_window", prefetch=True, daily=True),
    Rule.make("ahead-calendar", "9/m; 40/d", algorithm="calendar", tz="Europe/Berlin", prefetch=True),
    Rule.make("ahead-bucket", "7/m", algorithm="token_bucket", prefetch=3, warn_at=0.5),
    Rule.make("ahead-burst", "7/m", algorithm="token_bucket", burst=20, prefetch=3),
    Rule.make("ahead-shadow", "9/m", prefetch=True, shadow=True),
]
WITH_SHARES = [
    Rule.make(rule.name, *rule.rates, algorithm=rule.algorithm, burst=rule.burst, precision=rule.precision, tz=rule.tz,
              warn_at=rule.warn_at, daily=rule.daily, share=0.4)
    for rule in _PLAIN
    if rule.name in ("exact", "slices", "shares", "fixed", "calendar", "bucket", "burst", "leaky")
]  # fmt: skip

PLANS = Rule.make("plans", {"free": "5/m", "pro": "9/m"}, tier=lambda _: "pro", daily=True)
RULES: list[Asked] = [*_PLAIN, *WITH_SHARES, *PLANS.tiers.values()]

CREDITS, POOLED = counter("credits").as_take, counter("pooled", group="shop").as_take
LEASED = [replace(each, name=f"{each.name}-leased", leased_for=40 * SECOND) for each in (CREDITS, POOLED)]
RULES += [CREDITS, POOLED, *LEASED]

GAPS = st.one_of(
    st.integers(0, 3), st.integers(0, 90 * SECOND), st.sampled_from([60 * SECOND, 60 * SECOND - 1, 3_600 * SECOND])
)

COSTS = st.one_of(st.integers(0, 12), st.sampled_from([100, 10**12]))

VALUES = ["a1", "b2", "c3", "d4", "e5"]


SUBJECTS = ["ip:1.2.3.4", "user:1", "user:2"]


def home(key: str) -> str:
    return key[key.index("{") : key.index("}")]


def in_order(reply: list[Any], asks: Sequence[Ask]) -> tuple[list[Any], list[Any]]:
    """Return what a reply says of the limits, and its notes, whose order says nothing."""
    first = 2 + PER_LIMIT * sum(len(hit.limits) for hit in Question(asks).hits)
    return reply[:first], sorted(reply[i : i + 3] for i in range(first, len(reply), 3))


ASKED = st.lists(
    st.builds(
        lambda rule, subject, cost, value: (
            Ask(rule, subject, min(cost, 1), value) if rule.distinct else Ask(rule, subject, cost)
        ),
        st.sampled_from(RULES), st.sampled_from(SUBJECTS), COSTS, st.sampled_from(VALUES),
    ),
    min_size=1, max_size=5, unique_by=lambda ask: ask.place,
)  # fmt: skip

STEPS = st.lists(
    st.tuples(
        GAPS, st.sampled_from(["check", "check", "check", "check", "force", "peek", "refund", "adjust", "undo"]), ASKED,
        st.booleans(),
    ),
    min_size=1, max_size=25,
)  # fmt: skip
