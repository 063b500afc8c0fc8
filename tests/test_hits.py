"""Hits: what they tell the script in the form that their rule has once for all, is what their limits say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from django_quota.exceptions import RuleError
from django_quota.operations.decide import Decide
from django_quota.operations.hits import Hit
from django_quota.operations.standing import OVERRIDDEN
from django_quota.plans import Plan
from django_quota.rules import Rule
from tests.steps import START, hits_of

NAMES = st.sampled_from(["a", "b", "shop.views.search", "a b:ü~"])
RATES = st.sampled_from(["5/m", "5/m; 70/h", "1000000/d", "0/m", None])
SUBJECTS = st.sampled_from(["ip:203.0.113.9", "user:42", "user:42+path:/", "global"])
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "algorithm": st.sampled_from(["fixed_window", "calendar", "token_bucket"]),
        "shadow": st.just(True),
        "block": st.just(False),
        "ban": st.just({"after": "20/m", "for": ["10m"]}),
        "daily": st.booleans(),
        "warn_at": st.none(),
    },
)
ADDED = st.tuples(NAMES, RATES, OPTIONS, SUBJECTS, st.sampled_from([0, 1, 3]))


def told(hits: Sequence[Hit]) -> tuple[Sequence[str], list[str | int]]:
    """Return the keys and the arguments of their decision."""
    decide = Decide(hits, "check")
    return decide.keys, decide.arguments()


@given(st.lists(ADDED, min_size=1, max_size=5), st.booleans())
def test_the_form_of_a_hit_says_what_its_limits_say_one_by_one(added: list[Any], holding: bool) -> None:
    plan = Plan("quota")
    for name, rate, options, subject, cost in added:
        try:
            plan.add(Rule.make(name, rate, **options), subject, cost)
        except RuleError:
            assume(False)
    assume(len(plan) > 0)
    if holding:
        plan.holding()
    hits = list(plan.operation(START, "check").hits)
    by_form = told(hits)
    for hit in hits:
        hit.steps = list(hit.steps)
        assert hit.form is None
    assert told(hits) == by_form


def test_rules_of_one_name_and_subject_are_one_hit_with_the_limits_of_both() -> None:
    (hit,) = hits_of(Rule.make("rule", "5/m"), Rule.make("rule", "70/h"))
    assert hit.keys[1:] == ["quota:1:{ip:203.0.113.9}:r:rule:sw.60s", "quota:1:{ip:203.0.113.9}:r:rule:sw.3600s"]
    assert [limit.capacity for limit in hit.limits] == [5, 70]
    head, _, first, _, last, _ = hit.arguments.arguments
    assert head == "rule 0 2 800 - 1 0 0 0"
    assert [str(wire).split(" ")[:2] for wire in (first, last)] == [["sliding_window", "5"], ["sliding_window", "70"]]


def test_a_day_is_counted_for_the_user_among_subjects_of_one_plan_and_for_no_other() -> None:
    plan = Plan("quota")
    for number, subject in enumerate(("ip:203.0.113.9", "user:42", "user:42+path:/", "ip:203.0.113.9", "user:7")):
        plan.add(Rule.make(f"rule {number}", "5/m"), subject, 1)
    hits = plan.operation(START, "check").hits
    assert [hit.subject for hit in hits if hit.day] == ["user:42", "user:7"]


def test_an_override_that_was_told_is_in_the_next_plan_of_its_subject_at_once(monkeypatch: Any) -> None:
    monkeypatch.setattr("django_quota.plans._known", {})
    rule = Rule.make("rule", "50/m")
    (plan, again, other) = (Plan("quota") for _ in range(3))
    plan.add(rule, "user:1", 1)
    plan.revise([START, -1, 0, OVERRIDDEN, "r 0 0 7/m"])
    again.add(rule, "user:1", 1)
    other.add(rule, "user:2", 1)
    assert [[limit.capacity for limit in each.hits[0].limits] for each in (plan, again, other)] == [[7], [7], [50]]
    assert [each.hits[0].override for each in (plan, again, other)] == ["r 0 0 7/m", "r 0 0 7/m", ""]
    told_again = told(again.operation(START, "check").hits)
    assert told_again == told(plan.operation(START, "check").hits)
    assert "r 0 0 7/m" in told_again[1]


def test_hits_of_a_rule_share_what_they_tell_whoever_they_are_for() -> None:
    rule = Rule.make("rule", "50/m")
    (one,), (other,) = hits_of(rule, subject="ip:203.0.113.9"), hits_of(rule, subject="ip:203.0.113.10")
    assert one.arguments is other.arguments
    assert one.arguments.arguments == ("rule 0 1 800 - 1 0 0 0", "", "sliding_window 50 60000000 0 0 0 -", 1)
    assert one.keys == ["quota:1:{ip:203.0.113.9}:s", "quota:1:{ip:203.0.113.9}:r:rule:sw.60s"]
    assert other.keys == ["quota:1:{ip:203.0.113.10}:s", "quota:1:{ip:203.0.113.10}:r:rule:sw.60s"]


@pytest.mark.parametrize(
    ("options", "cost"), [({"shadow": True}, 1), ({"daily": True}, 1), ({"warn_at": None}, 1), ({}, 2)]
)
def test_rules_that_differ_share_nothing(options: dict[str, Any], cost: int) -> None:
    (plain,) = hits_of(Rule.make("rule", "50/m"))
    (other,) = hits_of(Rule.make("rule", "50/m", **options), cost=cost)
    assert plain.arguments.arguments != other.arguments.arguments


def test_values_of_a_distinct_rule_fill_no_cache() -> None:
    from django_quota.operations.hits import arguments_of

    rule = Rule.make("devices", "3/d", distinct=True)
    hits_of(rule, value="0")[0].arguments  # noqa: B018 — what is cached for the rule itself, is now
    before = arguments_of.cache_info().currsize
    made = [hits_of(rule, value=f"{number:032x}")[0].arguments.arguments for number in range(10)]
    assert len(set(made)) == 10
    assert arguments_of.cache_info().currsize == before
