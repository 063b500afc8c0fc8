"""A plan over several slots, such as those of a Cluster: the same replies as over one, and the same bounds."""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import given, target
from hypothesis import strategies as st

from django_quota import Rule
from django_quota.core.algorithms import NEVER
from django_quota.core.algorithms.sliding_window import WindowEntry
from django_quota.core.algorithms.subscription import PeriodCount
from django_quota.core.algorithms.token_bucket import Bucket
from django_quota.core.clock import DAY
from django_quota.core.flow import run_sync
from django_quota.engine.asks import Ask
from django_quota.engine.codec import ALLOWED, PER_LIMIT, REFUSED, RETRY_WITH, Adjust, Flag, Reply
from django_quota.engine.decide import Decide
from django_quota.engine.events import AppendEvents, EventLog
from django_quota.engine.hits import Ahead
from django_quota.engine.operations import DictStates, Operation
from django_quota.engine.receipts import Receipt
from django_quota.engine.scatter import scatter, write_events
from django_quota.engine.state_copies import ReadStates
from django_quota.engine.system_operations import Sweep
from django_quota.exceptions import StoreUnavailable
from django_quota.features.bans import BanSubject, LiftBans
from django_quota.features.counters.operations import AddGrant
from tests.core.test_bounds import CASES, GAPS, most_in_a_window
from tests.support.inputs import inputs
from tests.support.questions import Question, QuestionMode, driven
from tests.support.random_plans import CREDITS, LEASED, STEPS, home, in_order
from tests.support.specifications import specify
from tests.support.steps import MINUTE, SECOND, START

WIDE, SHUT = Rule.make("wide", "1000000/s"), Rule.make("shut", "0/m")


def test_subjects_in_one_slot_are_decided_by_one_operation() -> None:
    question = Question([Ask(WIDE, f"user:{number}", 1) for number in range(3)])
    sent: list[int] = []

    def run(operations: Sequence[Operation]) -> list[Any]:
        sent.append(len(operations))
        return [specify(each, DictStates(), START) for each in operations]

    run_sync(scatter(Decide(question.hits_at(START), "check"), lambda key: "the slot"), run)

    assert sent == [1]


def test_an_operation_on_one_subject_has_the_reply_of_its_slot() -> None:
    reply = run_sync(scatter(BanSubject("quota:1:{user:1}:s", "api", 1, 1), home), lambda operations: [[9, 1]])

    assert reply == [9, 1]


def test_bans_are_lifted_before_the_list_of_bans_in_another_slot_learns_of_it() -> None:
    log, sent = EventLog(("{!}:events", "{!}:bans"), 9, MINUTE), list[Operation]()

    def run(operations: Sequence[Operation]) -> list[Any]:
        sent.extend(operations)
        return [2] * len(operations)

    lifted = run_sync(scatter(LiftBans("{user:1}:s", ["api", "web"], log), home), run)

    assert lifted == 2
    assert [list(each.keys) for each in sent] == [["{user:1}:s"], ["{!}:events", "{!}:bans"]]
    assert list(sent[0].arguments()) == ["api", "web"]


def test_a_lift_holds_though_its_event_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    def run(operations: Sequence[Operation]) -> list[Any]:
        if isinstance(operations[0], AppendEvents):
            raise StoreUnavailable("gone")
        return [1]

    assert run_sync(scatter(LiftBans("{user:1}:s", ["api"], EventLog(("{!}:events", "{!}:bans"))), home), run) == 1
    assert caplog.messages == ["1 events could not be written: The quota store is unavailable: gone"]


class Apart:
    """States of each subject in a place of its own; an operation that spans two of them is a fault."""

    def __init__(self, off: Mapping[str, int] | None = None) -> None:
        self.off = off or {}
        """By how much the clock of a place is off."""
        self.places: dict[str, DictStates] = {}
        self.fails: Callable[[Operation], bool] = lambda operation: False

    def run(self, operation: Operation, now: int) -> Any:
        return run_sync(scatter(operation, home), lambda operations: [self.one(each, now) for each in operations])

    def one(self, operation: Operation, now: int) -> Any:
        (place,) = {home(key) for key in operation.keys}
        if self.fails(operation):
            raise StoreUnavailable("gone")
        return specify(operation, self.places.setdefault(place, DictStates()), now + self.off.get(place, 0))

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
            if isinstance(value, tuple) and all(isinstance(entry, WindowEntry) for entry in value):
                kept[key] = tuple(entry for entry in value if entry.expiry > now)
            elif isinstance(value, PeriodCount):
                kept[key] = value.used  # a count that was given back whole is remembered
            elif isinstance(value, Bucket):
                kept[key] = value.tat if value.tat > now else None  # what was given back is the undoing's own
            elif ":day:" in key:
                kept[key] = {name: count for name, count in value.items() if count}
            elif re.search(r"}:s(:|$)", key):
                ends = {name: int(said.split(" ")[0]) if name[0] in "ew" else now + 1 for name, said in value.items()}
                kept[key] = {name: said for name, said in value.items() if ends[name] > now}
            elif isinstance(value, dict):
                kept[key] = {name: stop for name, stop in value.items() if stop > now}
    return {key: value for key, value in kept.items() if value}


def of_limits(kept: dict[str, Any]) -> dict[str, Any]:
    """Return the states of limits that no refused hit changes."""
    return {key: value for key, value in kept.items() if "}:r:" in key and "counted" not in key}


def assert_as_before(after: Mapping[str, Any], before: Mapping[str, Any], now: int) -> None:
    """Hold states against those before a hit that was undone. A known value stays known from that hit on."""
    assert after.keys() == before.keys()
    for key, state in after.items():
        if ":dv." not in key:
            assert state == before[key]
            continue
        assert state.keys() == before[key].keys()
        for value, expiry in state.items():
            assert before[key][value] <= expiry <= max(before[key][value], now + MINUTE) + 1


@inputs(400)
@given(phase=st.integers(0, DAY), steps=STEPS)
def test_any_plans_are_answered_as_in_one_place(phase: int, steps: list[Any]) -> None:
    together, apart, now = DictStates(), Apart(), START + phase
    taken: list[Receipt] = []

    for gap, kind, asks, with_events, *_ in steps:
        now += gap
        question = Question(asks, with_events=with_events)
        if is_adjusted := kind in ("adjust", "undo"):
            if not taken:
                continue
            receipt = taken.pop()
            actual = [0 if kind == "undo" else number for number in range(len(receipt.asks))]
            question = question.settled(receipt, actual, undone=kind == "undo")
        before = of_limits(apart.live(now))
        mode: QuestionMode = "adjust" if is_adjusted else kind
        runs: list[Any] = [lambda operation, at: operation.run(together, at), apart.run]
        replies = [driven(run, question, mode, now) for run in runs]
        is_apart = len({home(hit.status_key) for hit in question.hits}) > 1
        if kind == "check" and replies[0][1] == REFUSED and is_apart:
            # The slots after the one that refuses are peeked at, and count no refusal.
            assert replies[1][1] == REFUSED
            assert_as_before(of_limits(apart.live(now)), before, now)
            together.kept = {key: kept for place in apart.places.values() for key, kept in place.kept.items()}
            continue
        assert in_order(replies[1], question.asks) == in_order(replies[0], question.asks)
        if kind == "check":
            receipts = [question.receipt(reply) for reply in replies]
            assert receipts[0].taken == receipts[1].taken
            taken += receipts[:1] if receipts[0].taken else []
        assert apart.live(now) == live(now, together)


def check_over(places: Apart, *asked: tuple[Rule, str]) -> list[Any]:
    question = Question([Ask(rule, subject, 1) for rule, subject in asked], with_events=False)
    return driven(places.run, question, "check", START)


def test_a_refusal_stays_one_where_it_cannot_be_undone_or_looked_at(caplog: Any) -> None:
    places = Apart()
    places.fails = lambda operation: isinstance(operation, Decide) and operation.mode != "check"
    reply = check_over(places, (WIDE, "ip:1"), (SHUT, "ip:2"), (WIDE, "ip:3"))
    assert (reply[1:3], reply[2 + PER_LIMIT]) == ([REFUSED, 1], 0)  # the second one refuses
    assert reply[2 + 2 * PER_LIMIT :] == [1, 0, 0, 0, NEVER]  # of which nothing is known: it promises nothing
    gone = "The quota store is unavailable: gone"
    assert caplog.messages == [
        f"Could not refund part of a refused request; those limits stay charged: {gone}",
        f"Could not read part of the limits of a refused request: {gone}",
    ]


def test_each_slot_is_adjusted_at_its_own_moment() -> None:
    places = Apart({"{ip:2": 7})
    question = Question([Ask(WIDE, "ip:1", 3), Ask(WIDE, "ip:2", 3)], with_events=False)
    receipt = question.receipt(driven(places.run, question, "check", START))
    assert [found.moment for found in receipt.taken.values()] == [START, START + 7]
    driven(places.run, question.settled(receipt), "adjust", START + 20)
    assert not places.live(START + 30)


@pytest.mark.parametrize(
    ("last", "fails_in", "left"), [(SHUT, "an undo", ["{ip:1"]), (WIDE, "the last slot", [])], ids=["undo", "last"]
)
def test_what_was_taken_before_a_refusal_or_a_failure_is_given_back(last: Rule, fails_in: str, left: list[str]) -> None:
    """What cannot be undone in one slot is undone in the others."""
    places, undos = Apart(), list[Operation]()

    def fails(operation: Operation) -> bool:
        if isinstance(operation, Decide) and isinstance(operation.mode, Adjust):
            undos.append(operation)
            return fails_in == "an undo" and operation is undos[0]
        return fails_in == "the last slot" and home(operation.keys[0]) == "{ip:3"

    places.fails = fails
    with nullcontext() if last is SHUT else pytest.raises(StoreUnavailable):
        assert check_over(places, (WIDE, "ip:1"), (WIDE, "ip:2"), (last, "ip:3"))[1] == REFUSED
    assert len(undos) == 2
    assert [home(key) for key in places.live(START)] == left


FIVE = Rule.make("five", "5/m")


def test_a_refusal_says_what_is_left_after_the_parts_before_it_were_undone() -> None:
    reply = check_over(Apart(), (FIVE, "ip:1"), (SHUT, "ip:2"))

    assert (reply[1], reply[2:4]) == (REFUSED, [1, 5])


def test_a_refusal_says_what_is_left_in_the_parts_after_it() -> None:
    reply = check_over(Apart(), (SHUT, "ip:1"), (FIVE, "ip:2"))

    assert (reply[1], reply[2 + PER_LIMIT : 4 + PER_LIMIT]) == (REFUSED, [1, 5])


def test_states_of_several_slots_are_read_in_the_order_of_their_keys() -> None:
    keys = [f"quota:1:{{ip:{number}}}:c:x" for number in (1, 2, 1, 3, 2)]

    reply = run_sync(scatter(ReadStates(keys), home), lambda parts: [list(part.keys) for part in parts])

    assert reply == keys


def test_a_sweep_of_several_slots_answers_in_the_order_of_its_keys() -> None:
    keys = [f"quota:1:{{ip:{number}}}:c:x" for number in (1, 2, 1)]
    sweep = Sweep(keys, [True, False, True], [10, 20, 30], 9, repairs=False)

    reply = run_sync(
        scatter(sweep, home), lambda parts: [[n for each in part.lifetimes for n in (1, 0, 0, each)] for part in parts]
    )

    assert [swept[3] for swept in Sweep.read(reply)] == [10, 20, 30]


A_DAY = Rule.make("a-day", "5/d", algorithm="calendar")
DAYS = 3 * DAY
"""Longer than the periods whose edges are sent for a limit of days."""


def test_what_was_taken_of_a_day_that_has_ended_stays_counted() -> None:
    places = Apart()

    def day_ends(operation: Operation) -> bool:
        """Let days pass in the first slot while the second one refuses."""
        if home(operation.keys[0]) == "{ip:2":
            places.off = {"{ip:1": DAYS}
        return False

    places.fails = day_ends

    reply = check_over(places, (A_DAY, "ip:1"), (SHUT, "ip:2"))

    assert (reply[1], reply[2:4]) == (REFUSED, [1, 4])


def test_a_slot_in_another_day_promises_nothing_of_a_refused_request() -> None:
    places = Apart({"{ip:2": DAYS})

    reply = check_over(places, (SHUT, "ip:1"), (A_DAY, "ip:2"))

    assert (reply[1], reply[2 + PER_LIMIT :]) == (REFUSED, [1, 0, 0, 0, NEVER])


@pytest.mark.parametrize("mode", ["force", "refund"])
def test_what_is_not_all_or_nothing_stays_done_where_another_slot_fails(mode: QuestionMode) -> None:
    places, modes = Apart(), list[Any]()

    def fails(operation: Operation) -> bool:
        modes.extend([operation.mode] if isinstance(operation, Decide) else [])
        return home(operation.keys[0]) == "{ip:2"

    places.fails = fails

    with pytest.raises(StoreUnavailable):
        driven(places.run, Question([Ask(WIDE, "ip:1", 1), Ask(WIDE, "ip:2", 1)]), mode, START)

    assert modes == [mode, mode]


NEAR = Rule.make("near", "5/m", warn_at=0.2)


@pytest.mark.parametrize(("other", "shares"), [(WIDE, [200]), (SHUT, [])], ids=["allowed", "refused"])
def test_a_share_is_reported_only_by_a_request_that_is_allowed(other: Rule, shares: list[int]) -> None:
    question = Question([Ask(NEAR, "ip:1", 1), Ask(other, "ip:2", 1)])

    reply = driven(Apart().run, question, "check", START)

    flags = Reply.decode(reply, question.hits_at(START)).flags
    assert [value for _, flag, value in flags if flag == Flag.NEAR_EMITTED] == shares


@pytest.mark.parametrize(("other", "drawn"), [(WIDE, [3]), (SHUT, [])], ids=["allowed", "refused"])
def test_what_was_drawn_of_grants_is_reported_only_if_it_stays_taken(other: Rule, drawn: list[int]) -> None:
    question, places = Question([Ask(CREDITS, "ip:1", 3), Ask(other, "ip:2", 1)]), Apart()
    hit = question.hits[0]
    mark = hit.base + "granted:credits:order-17"
    places.one(AddGrant((hit.limits[0].key, *hit.grants_keys, mark), 9, 400 * MINUTE, MINUTE, "order-17"), START)

    reply = driven(places.run, question, "check", START)

    flags = Reply.decode(reply, question.hits_at(START)).flags
    assert [value for _, flag, value in flags if flag == Flag.DRAWN] == drawn


@pytest.mark.parametrize("taken", [CREDITS, LEASED[0]], ids=["for good", "for a lease"])
def test_units_that_a_refused_request_drew_of_a_grant_go_back_to_it(taken: Any) -> None:
    asks, places = [Ask(taken, "ip:1", 3, "n1" if taken in LEASED else ""), Ask(SHUT, "ip:2", 1)], Apart()
    hit = Question(asks).hits[0]
    keys = (hit.limits[0].key, *hit.grants_keys)
    grant = AddGrant((*keys, f"{hit.base}granted:{hit.field}:order-17"), 9, 400 * MINUTE, MINUTE, "order-17")
    places.one(grant, START)
    held = places.live(START)

    assert driven(places.run, Question(asks, with_events=False), "check", START)[1] == REFUSED

    assert places.live(START) == held


def test_a_rule_that_let_pass_stays_refused_after_the_others_were_undone() -> None:
    aside = Rule.make("aside", "5/m", block=False)
    asks = [Ask(aside, "ip:1", 6), Ask(FIVE, "ip:1", 1), Ask(SHUT, "ip:2", 1)]

    reply = driven(Apart().run, Question(asks, with_events=False), "check", START)

    assert [reply[2 + place * PER_LIMIT : 4 + place * PER_LIMIT] for place in range(3)] == [[0, 5], [1, 5], [0, 0]]


def test_no_events_are_not_written() -> None:
    assert list(write_events(EventLog(("events", "bans"), 9, MINUTE), [])) == []


@pytest.mark.parametrize(("other", "is_taken"), [("ip:1", True), ("ip:2", False)], ids=["one slot", "two slots"])
def test_nothing_is_taken_ahead_of_several_slots(other: str, is_taken: bool) -> None:
    ask = Ask(Rule.make("ahead", "90/m", prefetch=True), "ip:1", 1)
    question = Question([ask, Ask(WIDE, other, 1)], ahead={ask.place: Ahead("", 0, "n1", 9, 2, SECOND)})

    reply = driven(Apart().run, question, "check", START)

    assert bool(question.granted(reply)) is is_taken


def test_what_a_process_returns_reaches_its_slot_though_it_takes_nothing_ahead() -> None:
    ask, places = Ask(Rule.make("ahead", "90/m", prefetch=True), "ip:1", 1), Apart()
    taking = Question([ask], ahead={ask.place: Ahead("", 0, "n1", 9, 2, SECOND)})
    driven(places.run, taking, "check", START)

    returning = Question([ask, Ask(WIDE, "ip:2", 1)], ahead={ask.place: Ahead("n1", 4, "n2", 9, 2, SECOND)})
    reply = driven(places.run, returning, "check", START)

    assert reply[3] == 90 - 1 - 4 - 1


COUNTED = {"count_refused": True}


@pytest.mark.parametrize(
    ("options", "stays"),
    [
        ({}, 0), (COUNTED, 1), ({**COUNTED, "algorithm": "fixed_window"}, 1),
        ({**COUNTED, "algorithm": "token_bucket"}, 1),
        ({**COUNTED, "shadow": True}, 0), ({**COUNTED, "block": False}, 0),
        ({**COUNTED, "cost": 3}, 3), ({**COUNTED, "daily": True}, 1),
    ],
    ids=["plain", "counted", "fixed", "bucket", "shadow", "aside", "cost", "daily"],
)  # fmt: skip
def test_a_refusal_in_another_slot_counts_where_refusals_count_as_in_one_place(options: Any, stays: int) -> None:
    rule = Rule.make("counted", "9/m; 20/h", **({"algorithm": "sliding_window"} | options))
    asks = [Ask(rule, "user:1", rule.cost if isinstance(rule.cost, int) else 1), Ask(SHUT, "user:2", 1)]
    together, apart = DictStates(), Apart()
    runs: list[Any] = [lambda operation, at: operation.run(together, at), apart.run]

    replies = [driven(run, Question(asks, with_events=False), "check", START) for run in runs]
    looks = [driven(run, Question(asks[:1], with_events=False), "peek", START) for run in runs]

    assert [reply[1] for reply in replies] == [REFUSED] * 2
    assert [[look[2 + n * PER_LIMIT + 1] for n in range(2)] for look in looks] == [[9 - stays, 20 - stays]] * 2
    assert of_state(apart.live(START)) == of_state(live(START, together))


def of_state(kept: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kept.items() if ":r:" in key or ":day:" in key}


# --- several plans under way at once ----------------------------------------------------------------------------------

SEARCHED, OTHERS = "ip:1", ["ip:2", "ip:3"]


@dataclass
class Flight:
    """A plan under way: the test decides when its next round trip happens, and whether it fails."""

    question: Question
    cost: int
    taken_at: int = 0
    """When the searched limit was last consumed, by the clock of its slot."""
    delay: int = 0
    reply: list[Any] = field(default_factory=list)

    def trips(self, places: Apart, now: list[int]) -> Generator[None, bool, None]:
        """Yield before each round trip; what is sent says whether it fails. `now`: its only member is the time."""
        guess = now[0]
        while not self.reply:
            way = scatter(self.question.operation(guess, "check"), home)
            step: Callable[[], Any] = partial(next, way)
            try:
                while True:
                    found = list[Any]()
                    for operation in step():
                        if (yield):
                            step = partial(way.throw, StoreUnavailable("gone"))
                            break
                        found.append(self._trip(operation, places, now[0]))
                    else:
                        step = partial(way.send, found)
            except StoreUnavailable:
                self.reply = [0, REFUSED]
            except StopIteration as done:
                guess = done.value[0]
                self.reply = [] if done.value[1] == RETRY_WITH else done.value

    def _trip(self, operation: Any, places: Apart, now: int) -> Any:
        reply = places.one(operation, now)
        is_taken = isinstance(operation, Decide) and operation.mode == "check" and reply[1] == ALLOWED
        if is_taken and operation.hits[0].subject == SEARCHED:
            self.taken_at, self.delay = now + places.off.get(home(operation.keys[0]), 0), reply[4]
        return reply


SHORT = st.one_of(st.integers(0, 3), st.integers(0, 9 * SECOND), st.sampled_from([MINUTE // 7, MINUTE // 5, MINUTE]))
BEGIN = st.tuples(
    SHORT | GAPS, st.just("begin"), st.integers(1, 3), st.lists(st.sampled_from([WIDE, SHUT]), max_size=2),
    st.booleans(),
)  # fmt: skip
GO_ON = st.tuples(SHORT, st.sampled_from([*["trip"] * 6, "fail"]), st.integers(0, 9))
OFF = st.dictionaries(
    st.sampled_from([f"{{{subject}" for subject in OTHERS]), st.integers(-90 * SECOND, 90 * SECOND), max_size=2
)


def fly(searched: Rule, phase: int, off: dict[str, int], steps: list[Any]) -> list[Flight]:
    """Let it happen, and return the plans that were admitted."""
    places, now = Apart(off), [START + phase]
    flights, under_way = list[Flight](), list[Generator[None, bool, None]]()
    for gap, kind, number, *more in steps:
        now[0] += max(gap, searched.algorithm == "leaky_bucket")  # no two places in a queue are taken at once
        if kind == "begin":
            others, is_first = more
            cost, value = (1, f"value-{number}") if searched.distinct else (number, "")
            asks = [Ask(searched, SEARCHED, cost, value)]
            asks += [Ask(rule, subject, number) for rule, subject in zip(others, OTHERS, strict=False)]
            flights.append(Flight(Question(asks if is_first else asks[::-1], with_events=False), number))
            under_way.append(flights[-1].trips(places, now))
            next(under_way[-1])
        elif under_way:
            chosen = under_way[number % len(under_way)]
            try:
                chosen.send(kind == "fail")
            except StopIteration:
                under_way.remove(chosen)
    for trips in under_way:
        for _ in trips:  # to its end
            pass
    return [flight for flight in flights if flight.reply[1] == ALLOWED]


OF_ONE_KIND = ("sliding-many", "sliding-one-slice", "sliding-counted")  # as sliding-slices and sliding-exact


UNDER_WAY = st.lists(st.one_of(BEGIN, GO_ON, GO_ON), max_size=60)


@pytest.mark.parametrize("case", [case for case in CASES if case not in OF_ONE_KIND])
@inputs(250)
@given(phase=st.integers(0, MINUTE), off=OFF, steps=UNDER_WAY)
def test_no_plans_under_way_at_once_get_more_than_the_bound(
    case: str, phase: int, off: dict[str, int], steps: list[Any]
) -> None:
    options, bound = dict(CASES[case][0]), CASES[case][1]

    kept = fly(Rule.make("searched", options.pop("rate"), **options), phase, off, steps)

    is_leaky = case == "leaky-bucket"
    if is_leaky:
        bound += max((flight.cost for flight in kept), default=1) - 1
    most = most_in_a_window((flight.taken_at + (flight.delay if is_leaky else 0), flight.cost) for flight in kept)
    target(float(most), label="admitted in a window")
    assert most <= bound


@inputs(250)
@given(phase=st.integers(0, MINUTE), off=OFF, steps=UNDER_WAY)
def test_no_plans_under_way_at_once_bring_more_values_than_the_limit(
    phase: int, off: dict[str, int], steps: list[Any]
) -> None:
    kept = fly(Rule.make("searched", "2/m", distinct=lambda request: ""), phase, off, steps)

    values = [  # the cost says which value
        len({each.cost for each in kept if 0 <= each.taken_at - first.taken_at < MINUTE}) for first in kept
    ]
    assert max(values, default=0) <= 2
