"""The published bounds hold if a plan is over several slots, such as those of a Cluster, and is compensated there.

A search runs the round trips of several plans in any order, with any pauses. So one plan consumes, is compensated and
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
from tests.support.stores import forget_forms

SEARCHED = "ip:1"
OTHERS = ["ip:2", "ip:3"]
# Parts with a leaky bucket come last: so the searched limit is always consumed before these, and compensated.
WIDE = Rule.make("wide", "1000000/s", algorithm="leaky_bucket")
SHUT = Rule.make("shut", "0/m", algorithm="leaky_bucket")


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
        is_taken = isinstance(operation, Decide) and operation.mode in ("tentative", "check") and reply[1] == ALLOWED
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
                self.plan.revise(done.value)
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
    forget_forms()
    places = Places(START + phase, off)
    under_way: list[Flight] = []
    over: list[Flight] = []
    for step in steps:
        places.time += step.gap
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


def begun(*others: str, cost: int = 1) -> Step:
    return Step(0, "begin", 0, cost, others)


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


# --- a compensated hit makes no room ----------------------------------------------------------------------------------


class Parallel:
    """A limit in which hits are consumed and compensated, beside one without those hits."""

    def __init__(self, **options: Any) -> None:
        given_options = dict(options)
        self.rule = Rule.make("searched", given_options.pop("rate"), **given_options)
        self.places = Places(START, {})
        self.ideal = DictStates()
        self.under_way: list[Flight] = []

    def tentative(self, cost: int) -> None:
        flight = Flight(plan_over(self.rule, begun("shut", cost=cost)), self.places.time)
        while not flight.is_over and home(SEARCHED_KEY) == flight.place and not flight.taken_at:
            flight.trip(self.places)
        if flight.taken_at and not flight.is_over:
            self.under_way.append(flight)

    def compensate(self, number: int) -> None:
        if self.under_way:
            flight = self.under_way.pop(number % len(self.under_way))
            while not flight.is_over:
                flight.trip(self.places)

    def keep(self, cost: int) -> bool:
        """Take a hit to keep; say whether it passed."""
        plan = plan_over(self.rule, begun(cost=cost))
        flight = Flight(plan, self.places.time)
        while not flight.is_over:
            flight.trip(self.places)
        if flight.reply[1] == ALLOWED:
            self.kept_at = self.places.time + flight.delay
            for step in plan.operation(self.places.time, "check").hits[0].limits:
                before = self.ideal.get(step.key)
                state, _ = step.limit.algorithm.consume(before, step.parameters, cost, self.places.time)
                self.ideal.put(step.key, state, step.limit.algorithm.expiry(state))
        return bool(flight.reply[1] == ALLOWED)

    def used(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return what is used and for how long: here, and in the limit without the compensated hits."""
        plan = plan_over(self.rule, begun()).operation(self.places.time, "peek")
        here = self.places.states(home(plan.hits[0].status_key))
        found: list[Any] = [plan.run(states, self.places.time) for states in (here, self.ideal)]
        return (-found[0][3], found[0][5]), (-found[1][3], found[1][5])


SEARCHED_KEY = f"quota:1:{{{SEARCHED}}}:s"
ACTIONS = st.lists(
    st.tuples(
        SHORT, st.sampled_from(["tentative", "keep", "compensate", "compensate"]), st.integers(0, 9), st.integers(1, 3)
    ),
    max_size=40,
)
REVERSIBLE = ["sliding-exact", "sliding-slices", "sliding-one-slice", "token-bucket", "token-bucket-burst"]


TWO = [(0, "tentative", 0, 1), (0, "tentative", 0, 1)]


@pytest.mark.parametrize("case", REVERSIBLE)
@inputs(600)
@given(actions=ACTIONS)
@example(
    actions=[*TWO, (0, "compensate", 0, 1), (MINUTE // 5, "keep", 0, 1), (0, "compensate", 0, 1)]
)  # the second moves up
@example(
    actions=[*TWO, (0, "keep", 0, 1), (SECOND, "compensate", 0, 1), (0, "compensate", 0, 1), (MINUTE, "keep", 0, 1)]
)
def test_a_compensated_hit_makes_no_room_that_it_did_not_take(case: str, actions: list[Any]) -> None:
    parallel = Parallel(**CASES[case][0])
    for gap, kind, number, cost in actions:
        parallel.places.time += gap
        if kind == "compensate":
            parallel.compensate(number)
        else:
            getattr(parallel, kind)(cost)
        here, without = parallel.used()
        assert here[0] >= without[0]
        assert here[1] >= without[1]


@pytest.mark.parametrize("case", [*REVERSIBLE, "fixed", "calendar"])
@given(actions=ACTIONS)
def test_a_hit_that_is_compensated_at_the_same_time_is_restored_in_full(case: str, actions: list[Any]) -> None:
    parallel = Parallel(**CASES[case][0])
    for gap, kind, number, cost in actions:
        if kind == "tentative":
            parallel.tentative(cost)
        elif kind == "keep":
            while parallel.under_way:
                parallel.compensate(number)
            parallel.places.time += gap
            parallel.keep(cost)
    while parallel.under_way:
        parallel.compensate(3)
    here, without = parallel.used()
    assert here == without


@inputs(600)
@given(actions=ACTIONS)
def test_no_two_leave_a_leaky_bucket_at_once_whatever_is_compensated(actions: list[Any]) -> None:
    parallel = Parallel(rate="7/m", algorithm="leaky_bucket")
    interval = -(-MINUTE // 7)
    free_at = 0
    for gap, kind, number, cost in actions:
        parallel.places.time += gap
        if kind == "compensate":
            parallel.compensate(number)
        elif kind == "tentative":
            parallel.tentative(cost)
        elif parallel.keep(cost):
            assert parallel.kept_at >= free_at
            free_at = parallel.kept_at + cost * interval
