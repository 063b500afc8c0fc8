"""The commands of decisions, which are joined from bytes of compiled rules."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_quota import Rule, counter
from django_quota.engine import compiled as compiling
from django_quota.engine.asks import Ask
from django_quota.engine.compiled import CompiledRule, compiled
from django_quota.engine.hits import Hit
from django_quota.engine.operations import command, packed
from tests.support.inputs import inputs
from tests.support.questions import START, Question
from tests.support.random_plans import COSTS, RULES, VALUES
from tests.support.steps import SECOND

SUBJECTS = ["ip:1.2.3.4", "user:1", "org:%7", "ip:2001:db8::+user:é", "user:" + "x" * 300, "100%s"]


@inputs(400)
@given(
    asked=st.lists(
        st.tuples(st.sampled_from(RULES), st.sampled_from(SUBJECTS), COSTS, st.sampled_from(VALUES), st.booleans()),
        max_size=4,
        unique_by=lambda each: (each[0].name, each[1]),
    ),
    mode=st.sampled_from(["check", "force", "peek", "refund"]),
    now=st.none() | st.integers(START, START + 10**12),
    with_events=st.booleans(),
)
def test_a_command_from_bytes_has_the_words_that_the_script_reads(
    asked: list[Any], mode: Any, now: int | None, with_events: bool
) -> None:
    asks = [Ask(rule, subject, min(cost, 1) if rule.distinct else cost, *more) for rule, subject, cost, *more in asked]
    operation = Question(asks, with_events=with_events).operation(START if now is None else now, mode)
    assert operation.command(now) == command(["EVALSHA", operation.script.sha, *operation.words(now)])
    assert operation.in_full(now) == command(["EVAL", operation.script.text, *operation.words(now)])


@pytest.mark.parametrize("more", [{"group": 1}, {"value": "x"}, {}], ids=["a group", "a value", "no option"])
def test_a_hit_without_a_day_in_bytes_has_each_option(more: dict[str, Any]) -> None:
    hit = Hit(compiled(Rule.make("r", "5/m")), "quota:1:{user:1}:", "user:1", 1, **more)

    assert hit.packed()[2:] == (len(hit.arguments), packed(hit.arguments))


def test_keys_under_a_prefix_that_is_not_ascii_have_their_length_in_bytes() -> None:
    hit = Hit(compiled(Rule.make("r", "5/m; 9/h")), "größe:1:{user:1}:", "user:1", 1)

    assert hit.packed()[:2] == (len(hit.keys), packed(hit.keys))


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "reversed"])
def test_rules_of_one_name_take_ahead_for_as_long_as_the_shortest_of_them(order: int) -> None:
    rules = [Rule.make("r", rate, prefetch=True) for rate in ("9/m", "9/s")][::order]

    assert compiling.compiled_together(rules).lease == SECOND // 50


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "reversed"])
def test_rules_of_one_name_are_unlimited_only_if_all_of_them_are(order: int) -> None:
    tiers = Rule.make("r", {"free": "9/m", "staff": None}, tier=lambda _: "free").tiers
    rules = [tiers["free"], tiers["staff"]][::order]

    assert [CompiledRule(each).is_unlimited for each in (rules, [tiers["staff"]] * 2)] == [False, True]


def test_the_costs_for_which_a_rule_keeps_its_arguments_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "MAX_COSTS", 3)
    of_rule = CompiledRule((Rule.make("r", "5/m"),))
    found = [of_rule.packed_arguments(units, is_estimate=False) for units in range(9)]
    assert found == [(8, packed(of_rule.arguments(of_rule.limits, units, is_estimate=False))) for units in range(9)]
    assert len(of_rule._packed_arguments) <= 3


def test_the_rules_that_are_kept_compiled_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "MAX_RULES", 3)
    compiling._compiled.clear()
    rules = [Rule.make(f"r{number}", "5/m") for number in range(9)]
    kept = [(compiled(rule).rule, len(compiling._compiled) <= 3) for rule in rules]
    assert kept == [(rule, True) for rule in rules]


def test_a_rule_takes_ahead_though_the_compiled_ones_have_just_been_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "MAX_RULES", 1)
    compiled(Rule.make("plain", "5/m"))

    compiled(Rule.make("ahead", "5/m", prefetch=True))

    assert CompiledRule.any_prefetches


def test_a_counter_is_compiled_once() -> None:
    assert compiled(counter("credits").as_take) is compiled(counter("credits").as_take)
    assert compiled(counter("credits").as_take) is not compiled(counter("credits", ttl="2d").as_take)


def test_a_counter_of_a_group_is_compiled_once_for_each_subject() -> None:
    credits_of = [
        Question([Ask(counter("credits", group="org").as_take, subject, 1)]).hits[0].compiled
        for subject in ("user:1", "user:1", "user:2")
    ]
    assert [of_rule is credits_of[0] for of_rule in credits_of] == [True, True, False]
