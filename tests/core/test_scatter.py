"""A plan over several slots gets the same replies as over one slot, and leaves the same states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_quota import Rule
from django_quota.core.algorithms import NEVER
from django_quota.core.algorithms.sliding_window import Entry
from django_quota.core.algorithms.token_bucket import Bucket
from django_quota.core.flow import run_sync
from django_quota.engine.codec import ALLOWED, PER_LIMIT, REFUSED, Compensate, HoldId, Mode, Renew, Reservation, Settle
from django_quota.engine.decide import Decide
from django_quota.engine.operations import DictStates, Operation
from django_quota.engine.plans import Plan
from django_quota.engine.scatter import scatter
from django_quota.exceptions import StoreUnavailable
from tests.support.inputs import inputs
from tests.support.published import publish
from tests.support.random_plans import (
    STEPS,
    Asked,
    home,
    in_order,
    plan_of,
)
from tests.support.specifications import specify
from tests.support.steps import SECOND, START, driven, include_holds
from tests.support.stores import forget_forms


class Apart:
    """States of each subject in a place of its own; an operation that spans two of them is a fault."""

    def __init__(self) -> None:
        self.places: dict[str, DictStates] = {}
        self.done: list[Operation] = []
        self.fails: Callable[[Operation], bool] = lambda operation: False

    def run(self, operation: Operation, now: int) -> Any:
        return run_sync(scatter(operation, home), lambda operations: [self._one(each, now) for each in operations])

    def _one(self, operation: Operation, now: int) -> Any:
        (place,) = {home(key) for key in operation.keys}
        if self.fails(operation):
            raise StoreUnavailable("gone")
        self.done.append(operation)
        return specify(operation, self.places.setdefault(place, DictStates()), now)

    def live(self, now: int) -> dict[str, Any]:
        return live(now, *self.places.values())


def live(now: int, *places: DictStates) -> dict[str, Any]:
    """Return all that still counts."""
    kept: dict[str, Any] = {}
    for place in places:
        for key, (value, expiry) in place.kept.items():
            if expiry <= now:
                continue
            kept[key] = value
            if isinstance(value, tuple) and all(isinstance(entry, Entry) for entry in value):
                kept[key] = tuple(entry for entry in value if entry.expiry > now)
            elif isinstance(value, Bucket):
                kept[key] = value.tat if value.tat > now else None  # what was given back is the undoing's own
            elif ":day:" in key:
                kept[key] = {name: count for name, count in value.items() if name != "#"}  # when it was opened
            elif key.endswith("}:s"):
                kept[key] = {name: said for name, said in value.items() if name[0] not in "ew" or int(said) > now}
            elif isinstance(value, dict):
                kept[key] = {name: stop for name, stop in value.items() if stop > now}
    return {key: value for key, value in kept.items() if value}


@inputs(400)
@given(phase=st.integers(0, 86_400 * SECOND), steps=STEPS)
def test_any_plans_are_answered_as_in_one_place(phase: int, steps: list[Any]) -> None:
    together, apart, now = DictStates(), Apart(), START + phase
    forget_forms()
    held: list[tuple[list[Asked], list[HoldId | None]]] = []
    for number, (gap, kind, asked, with_events, ttl, override, subject) in enumerate(steps):
        now += gap
        if override:
            for run in (lambda operation, at: operation.run(together, at), apart.run):
                run(publish(subject, asked[0][0].name, override), now)
        holds = Reservation(f"t{number}", ttl) if ttl and kind == "check" else None
        mode: Mode = kind
        if kind in ("settle", "renew"):
            if not held:
                continue
            asked, found = held.pop() if kind == "settle" else held[-1]  # noqa: PLW2901
            amounts = range(len(found)) if kind == "settle" else [ttl or 1] * len(found)
            mode = (Settle if kind == "settle" else Renew).of(found, amounts)
        plans, replies = list[Plan](), list[Any]()
        for run in (lambda operation, at: operation.run(together, at), apart.run):
            plans.append(plan_of(asked, with_events=with_events, holds=holds))
            if kind in ("settle", "renew"):
                include_holds(plans[-1])
            replies.append(driven(run, plans[-1], mode, now))
            plans[-1].read(replies[-1])
        assert in_order(replies[1], asked) == in_order(replies[0], asked)
        if holds is not None:
            assert plans[0].holds == plans[1].holds
            held += [(asked, plans[0].holds)] if any(plans[0].holds) else []
        assert apart.live(now) == live(now, together)


WIDE, SHUT = Rule.make("wide", "9/m"), Rule.make("shut", "0/m")


def check_over(places: Apart, *asked: tuple[Rule, str]) -> list[Any]:
    plan = plan_of([(rule, subject, 1, "") for rule, subject in asked], with_events=False)
    return driven(places.run, plan, "check", START)


DAILY, SHUT_DAILY = Rule.make("daily", "9/m", daily=True), Rule.make("shut-daily", "0/m", daily=True)


def counted(places: Apart) -> dict[str, int]:
    """Return what is counted for the day so far, by subject and field."""
    kept = {key: value for place in places.places.values() for key, (value, _) in place.kept.items() if ":day:" in key}
    return {f"{home(key)[1:]} {name}": count for key, day in kept.items() for name, count in day.items() if name != "#"}


def test_a_hit_counts_for_the_day_only_after_its_whole_plan_passed() -> None:
    """A roll-up may read the counts at any moment, and adds whatever they grow by."""
    places, seen = Apart(), list[dict[str, int]]()

    def is_looked_at(operation: Operation) -> bool:
        seen.append(counted(places))
        return False

    places.fails = is_looked_at
    assert check_over(places, (DAILY, "user:1"), (DAILY, "user:3"), (SHUT_DAILY, "user:2"))[1] == REFUSED
    assert counted(places) == {"user:2 shut-daily:r": 1}
    assert check_over(places, (DAILY, "user:1"), (DAILY, "user:3"))[1] == ALLOWED
    assert counted(places) == {"user:2 shut-daily:r": 1, "user:1 daily:a": 1, "user:3 daily:a": 1}
    assert all("user:1 daily:a" not in one for one in seen if "user:3 daily:a" not in one)


def test_a_plan_that_passed_stays_allowed_where_it_cannot_be_counted_for_the_day(caplog: Any) -> None:
    places = Apart()
    places.fails = lambda operation: isinstance(operation, Decide) and operation.mode == "record_day"
    assert check_over(places, (DAILY, "user:1"), (DAILY, "user:3"))[1] == ALLOWED
    assert counted(places) == {"user:3 daily:a": 1}
    assert "not counted for the day" in caplog.text


def test_a_refusal_stays_one_where_it_cannot_be_compensated_or_emitted(caplog: Any) -> None:
    places = Apart()
    places.fails = lambda operation: (
        isinstance(operation, Decide) and (operation.mode == "record_refusal" or isinstance(operation.mode, Compensate))
    )
    reply = check_over(places, (WIDE, "ip:1"), (SHUT, "ip:2"), (WIDE, "ip:3"))
    assert reply[1:3] == [REFUSED, 1]
    assert reply[2 + PER_LIMIT] == 0  # the one that refuses
    assert reply[2 + 2 * PER_LIMIT :] == [1, 0, 0, 0, NEVER]  # of which nothing is known: it promises nothing
    assert "keeps what it consumed" in caplog.text
    assert "how its limits are" in caplog.text


def test_a_refusal_counts_once_where_a_later_slot_asks_for_another_form() -> None:
    """That slot has an override which this process does not know yet."""
    places = Apart()
    places.run(publish("ip:3", "wide", "r 0 0 5/m"), START)
    banning = Rule.make("banning", "0/m", ban={"after": "9/m", "for": ["1h"]})
    assert check_over(places, (banning, "ip:2"), (WIDE, "ip:3"))[1] == REFUSED
    once = Apart()
    check_over(once, (banning, "ip:2"))
    assert places.live(START).items() >= once.live(START).items()


def test_what_cannot_be_compensated_in_one_slot_is_in_the_others() -> None:
    places = Apart()
    undos: list[Operation] = []

    def is_first_undo(operation: Operation) -> bool:
        if isinstance(operation, Decide) and isinstance(operation.mode, Compensate):
            undos.append(operation)
        return bool(undos) and operation is undos[0]

    places.fails = is_first_undo
    reply = check_over(places, (WIDE, "ip:1"), (WIDE, "ip:2"), (SHUT, "ip:3"))
    assert (len(undos), reply[1]) == (2, REFUSED)
    assert [home(key) for key in places.live(START)] == ["{ip:1"]


def test_what_was_consumed_before_a_slot_failed_is_compensated() -> None:
    places = Apart()
    places.fails = lambda operation: home(operation.keys[0]) == "{ip:3"
    with pytest.raises(StoreUnavailable):
        check_over(places, (WIDE, "ip:1"), (WIDE, "ip:2"), (WIDE, "ip:3"))
    assert not places.live(START)
