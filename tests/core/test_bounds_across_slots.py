"""The published bounds hold if a plan is over several slots, such as those of a Cluster, and is undone there.

A search runs the round trips of several plans in any order, with any pauses. So one plan consumes, is undone and
fails while others are under way. Each slot has its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given, target
from hypothesis import strategies as st

from django_quota import Rule
from django_quota.engine.codec import ALLOWED, REFUSED, RETRY_WITH
from django_quota.engine.decide import Decide
from django_quota.engine.operations import DictStates, Operation
from django_quota.engine.plans import Plan
from django_quota.engine.scatter import scatter
from django_quota.exceptions import StoreUnavailable
from tests.support.bounds import CASES, GAPS, MINUTE, most_in_a_window
from tests.support.inputs import inputs
from tests.support.random_plans import home
from tests.support.steps import SECOND, START

SEARCHED = "ip:1"
OTHERS = ["ip:2", "ip:3"]
WIDE = Rule.make("wide", "1000000/s")
SHUT = Rule.make("shut", "0/m")


class Flight:
    """A plan under way: the test decides when its next round trip happens."""

    def __init__(self, plan: Plan, now: int) -> None:
        self.plan = plan
        self.taken_at = 0
        """When the searched limit was last consumed, by the clock of its slot."""
        self.delay = 0
        self.reply: Any = None
        self.value = ""
        self._begin(now)

    def _begin(self, guess: int) -> None:
        self._way = scatter(self.plan.operation(guess, "check"), home)
        self._asked = list(next(self._way))
        self._found: list[Any] = []

    @property
    def is_over(self) -> bool:
        return self.reply is not None

    @property
    def place(self) -> str:
        """Where its next trip goes."""
        return home(self._asked[len(self._found)].keys[0])

    def trip(self, places: Places) -> None:
        operation: Operation = self._asked[len(self._found)]
        now = places.now(self.place)
        reply = operation.run(places.states(self.place), now)
        self._found.append(reply)
        is_taken = isinstance(operation, Decide) and operation.mode == "check" and reply[1] == ALLOWED
        if is_taken and operation.hits[0].subject == SEARCHED:  # type: ignore[attr-defined]
            self.taken_at, self.delay = now, reply[4]
        if len(self._found) == len(self._asked):
            self._go_on(lambda: self._way.send(self._found))

    def fail(self) -> None:
        """Let the next trip come to nothing."""
        self._go_on(lambda: self._way.throw(StoreUnavailable("gone")))

    def _go_on(self, step: Any) -> None:
        try:
            self._asked, self._found = list(step()), []
        except StoreUnavailable:
            self.reply = [0, REFUSED]
        except StopIteration as done:
            if done.value[1] == RETRY_WITH:
                self._begin(done.value[0])
            else:
                self.reply = done.value


@dataclass
class Places:
    """States of each place, and by how much its clock is off."""

    time: int
    off: dict[str, int]
    kept: dict[str, DictStates] = field(default_factory=dict)

    def now(self, place: str) -> int:
        return self.time + self.off.get(place, 0)

    def states(self, place: str) -> DictStates:
        return self.kept.setdefault(place, DictStates())


@dataclass
class Step:
    """What happens next: a plan begins, or the n-th of those under way makes its next trip, or fails in it."""

    gap: int
    kind: str
    number: int = 0
    cost: int = 1
    others: tuple[str, ...] = ()
    is_first: bool = True


SHORT = st.one_of(st.integers(0, 3), st.integers(0, 9 * SECOND), st.sampled_from([MINUTE // 7, MINUTE // 5, MINUTE]))
BEGIN = st.builds(
    Step, SHORT | GAPS, st.just("begin"), st.just(0), st.integers(1, 3),
    st.lists(st.sampled_from(["wide", "shut"]), max_size=2).map(tuple), st.booleans(),
)  # fmt: skip
GO_ON = st.builds(Step, SHORT, st.sampled_from(["trip"] * 6 + ["fail"]), st.integers(0, 9))
STEPS = st.lists(st.one_of(BEGIN, GO_ON, GO_ON), max_size=60)
OFF = st.dictionaries(
    st.sampled_from([f"{{{subject}" for subject in OTHERS]), st.integers(-90 * SECOND, 90 * SECOND), max_size=2
)


def plan_over(searched: Rule, step: Step, value: str = "") -> Plan:
    asked = [
        (searched, SEARCHED),
        *((WIDE if kind == "wide" else SHUT, OTHERS[n]) for n, kind in enumerate(step.others)),
    ]
    plan = Plan("quota")
    for rule, subject in asked if step.is_first else asked[::-1]:
        plan.add(rule, subject, step.cost, value if rule is searched else "")
    return plan


def fly(searched: Rule, phase: int, off: dict[str, int], steps: list[Step]) -> list[Flight]:
    """Let it happen, and return the plans that were admitted."""
    places = Places(START + phase, off)
    is_leaky = searched.algorithm == "leaky_bucket"
    under_way: list[Flight] = []
    over: list[Flight] = []
    for step in steps:
        places.time += max(step.gap, is_leaky)  # no two places in a queue are taken at the same microsecond
        if step.kind == "begin":
            value = f"value-{step.cost}" if searched.distinct else ""
            asked = replace(step, cost=1) if searched.distinct else step
            flight = Flight(plan_over(searched, asked, value), places.time)
            flight.value = value
            under_way.append(flight)
        elif under_way:
            flight = under_way[step.number % len(under_way)]
            if step.kind == "trip":
                flight.trip(places)
            else:
                flight.fail()
        over += [flight for flight in under_way if flight.is_over]
        under_way = [flight for flight in under_way if not flight.is_over]
    for flight in under_way:
        while not flight.is_over:
            flight.trip(places)
    return [flight for flight in [*over, *under_way] if flight.reply[1] == ALLOWED]


def admitted(flights: list[Flight], *, wait: bool) -> list[tuple[int, int]]:
    hits = [(flight, next(hit for hit in flight.plan.hits if hit.subject == SEARCHED)) for flight in flights]
    return [(flight.taken_at + (flight.delay if wait else 0), hit.cost) for flight, hit in hits]


@pytest.mark.parametrize("case", CASES)
@inputs(400)
@given(phase=st.integers(0, MINUTE), off=OFF, steps=STEPS)
def test_no_plans_under_way_at_once_get_more_than_the_bound(
    case: str, phase: int, off: dict[str, int], steps: list[Step]
) -> None:
    options, bound = CASES[case]
    options = dict(options)
    searched = Rule.make("searched", options.pop("rate"), **options)
    found = admitted(fly(searched, phase, off, steps), wait=case == "leaky-bucket")
    if case == "leaky-bucket":
        bound += max((cost for _, cost in found), default=1) - 1
    most = most_in_a_window(found)
    target(float(most), label="admitted in a window")
    assert most <= bound


@inputs(400)
@given(phase=st.integers(0, MINUTE), off=OFF, steps=STEPS)
@example(  # a value that is kept is used at the same moment by one that is undone
    phase=0,
    off={},
    steps=[Step(0, "begin", others=("shut",)), Step(0, "trip"), Step(0, "begin"), Step(0, "trip", 1), Step(0, "trip"),
           Step(0, "trip"), *[Step(0, "begin", cost=2), Step(0, "trip"), Step(0, "begin", cost=3), Step(0, "trip")]],
)  # fmt: skip
def test_no_plans_under_way_at_once_bring_more_values_than_the_limit(
    phase: int, off: dict[str, int], steps: list[Step]
) -> None:
    kept = fly(Rule.make("searched", "2/m", distinct=lambda request: ""), phase, off, steps)
    for first in kept:
        together = {flight.value for flight in kept if 0 <= flight.taken_at - first.taken_at < MINUTE}
        assert len(together) <= 2
