"""Hits: the arguments that a rule prepares once are the same as those of its limits."""

from __future__ import annotations

from typing import Any

import pytest

from django_quota import Rule
from django_quota.engine.plans import Plan
from tests.support.steps import START, hits_of


def test_rules_of_one_name_and_subject_are_one_hit_with_the_limits_of_both() -> None:
    (hit,) = hits_of(Rule.make("rule", "5/m"), Rule.make("rule", "70/h"))
    assert hit.keys[1:] == ["quota:1:{ip:203.0.113.9}:r:rule:sw.60s", "quota:1:{ip:203.0.113.9}:r:rule:sw.3600s"]
    assert [limit.parameters.capacity for limit in hit.limits] == [5, 70]
    assert hit.arguments == [
        "rule", 1, "800", 2,
        "sliding_window", "5", "60000000", "0",
        "sliding_window", "70", "3600000000", "0",
        "",
    ]  # fmt: skip


def test_a_day_is_counted_for_the_user_among_subjects_of_one_plan_and_for_no_other() -> None:
    plan = Plan("quota")
    for number, subject in enumerate(("ip:203.0.113.9", "user:42", "user:42+path:/", "ip:203.0.113.9", "user:7")):
        plan.add(Rule.make(f"rule {number}", "5/m"), subject, 1)
    hits = plan.operation(START, "check").hits
    assert [hit.subject for hit in hits if hit.day] == ["user:42", "user:7"]


@pytest.mark.parametrize("cost", [1, 3])
@pytest.mark.parametrize("options", [{}, {"algorithm": "calendar"}, {"count_refused": True}, {"shadow": True}])
def test_what_a_rule_has_ready_is_what_its_limits_say(options: dict[str, Any], cost: int) -> None:
    (hit,) = hits_of(Rule.make("a", "5/m", **options), cost=cost)
    ready, hit.compiled = hit.arguments, None
    assert hit.arguments == ready
