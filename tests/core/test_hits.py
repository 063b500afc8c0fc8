"""Hits: the arguments that a rule prepares once are the same as those of its limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from django_quota import Rule
from django_quota.engine.codec import Flag
from django_quota.engine.decide import Decide
from django_quota.engine.hits import Hit
from django_quota.engine.operations import pack_command
from django_quota.engine.plans import Plan
from tests.support.steps import START, hits_of, include_holds


def sent(hits: Sequence[Hit]) -> tuple[Sequence[str], list[str | int]]:
    """Return the keys and the arguments of their decision."""
    decide = Decide(hits, "check")
    return decide.keys, decide.arguments()


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


def test_an_override_that_a_reply_named_is_in_the_next_plan_of_its_subject(monkeypatch: Any) -> None:
    monkeypatch.setattr("django_quota.engine.plans._known", {})
    rule = Rule.make("rule", "50/m")
    (plan, again, other) = (Plan("quota") for _ in range(3))
    plan.add(rule, "user:1", 1)
    plan.revise([START, -1, 0, Flag.OVERRIDDEN, "r 0 0 7/m"])
    again.add(rule, "user:1", 1)
    other.add(rule, "user:2", 1)
    assert [[limit.parameters.capacity for limit in each.hits[0].limits] for each in (plan, again, other)] == [
        [7],
        [7],
        [50],
    ]
    assert [each.hits[0].override for each in (plan, again, other)] == ["r 0 0 7/m", "r 0 0 7/m", ""]
    told_again = sent(again.operation(START, "check").hits)
    assert told_again == sent(plan.operation(START, "check").hits)
    assert "r 0 0 7/m" in told_again[1]


@pytest.mark.parametrize(
    ("options", "cost"), [({"shadow": True}, 1), ({"daily": True}, 1), ({"warn_at": None}, 1), ({}, 2)]
)
def test_rules_that_differ_share_nothing(options: dict[str, Any], cost: int) -> None:
    (plain,) = hits_of(Rule.make("rule", "50/m"))
    (other,) = hits_of(Rule.make("rule", "50/m", **options), cost=cost)
    assert plain.arguments != other.arguments


def test_two_rules_of_one_name_share_a_limit() -> None:
    plan, rule = Plan("quota"), Rule.make("rule", "5/m")
    for each in (rule, Rule.make("rule", "5/m")):
        plan.add(each, "user:1", 1)
    assert len(plan.limits) == 1


def test_an_override_without_rates_is_ignored(monkeypatch: Any) -> None:
    monkeypatch.setattr("django_quota.engine.plans._known", {})
    plan = Plan("quota")
    plan.add(Rule.make("rule", "50/m"), "user:1", 1)
    plan.revise([START, -1, 0, Flag.OVERRIDDEN, "r 0 0"])
    assert [limit.parameters.capacity for limit in plan.limits] == [50]


def test_a_command_is_packed_as_bulk_strings() -> None:
    assert pack_command(["GET", "ü", 12]) == b"*3\r\n$3\r\nGET\r\n$2\r\n\xc3\xbc\r\n$2\r\n12\r\n"


ARGUMENTS = st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.integers(), max_size=4)


@given(ARGUMENTS)
def test_a_packed_command_is_the_bytes_that_redis_py_sends(command: list[Any]) -> None:
    connection: Any = redis.Connection
    assert pack_command(["EVALSHA", *command]) == b"".join(connection().pack_command("EVALSHA", *command))


COMMANDS = {
    "plain": [Rule.make("a", "5/m; 7/h")],
    "not ascii": [Rule.make("süß", "5/m")],
    "calendar": [Rule.make("a", "9/d", algorithm="calendar")],
    "one name": [Rule.make("a", "5/m"), Rule.make("a", "70/h", count_refused=True)],
    "ban and shadow": [Rule.make("a", "5/m", ban={"after": "3/m", "for": "1h"}), Rule.make("b", "5/m", shadow=True)],
}


@pytest.mark.parametrize("rules", COMMANDS.values(), ids=COMMANDS.keys())
@pytest.mark.parametrize("subject", ["ip:203.0.113.9", "user:42", "user:ü"])
@pytest.mark.parametrize("prefix", ["quota", "größe"])
@pytest.mark.parametrize("now", [None, START])
def test_what_rules_have_ready_is_the_command_as_any_other_is_sent(
    rules: list[Rule], subject: str, prefix: str, now: int | None
) -> None:
    plan = Plan(prefix, events=99)
    for rule in rules:
        plan.add(rule, subject, 3)
    for holds in (False, True):
        if holds:
            include_holds(plan)
        decide = plan.operation(START, "check")
        assert decide.evalsha(now) == pack_command(decide.command(now))


@pytest.mark.parametrize(
    ("mode", "is_sent"), [("check", True), ("tentative", True), ("peek", False), ("refund", False)]
)
def test_only_a_decision_that_can_emit_events_sends_the_keys_of_the_log(mode: Any, is_sent: bool) -> None:
    plan = Plan("quota", events=99)
    plan.add(Rule.make("search", "10/m"), "ip:203.0.113.9", 1)
    keys = plan.operation(START, mode).keys
    assert any("events" in key for key in keys) == is_sent
