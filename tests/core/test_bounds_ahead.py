"""Units taken ahead: no mix of processes that take, spend, return and die beats the bound of the algorithm."""

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, target
from hypothesis import strategies as st

from django_quota.core.keys import ahead_part
from django_quota.engine.asks import Ask, Place
from django_quota.engine.codec import ALLOWED
from django_quota.engine.hits import Ahead
from tests.core.test_bounds import MINUTE, most_in_a_window
from tests.support.inputs import inputs
from tests.support.questions import Question, QuestionMode
from tests.support.steps import SECOND, START, SUBJECT, Spec, answers

LEASE = 3 * SECOND

CASES: dict[str, tuple[dict[str, Any], int]] = {
    "sliding-exact": ({"rate": "40/m"}, 40),
    "sliding-slices": ({"rate": "40/m", "precision": 7}, 40),
    "sliding-one-slice": ({"rate": "40/m", "precision": 1}, 40),
    "fixed": ({"rate": "40/m", "algorithm": "fixed_window"}, 80),
    "calendar": ({"rate": "40/m", "algorithm": "calendar"}, 80),  # a window may straddle two periods of 40 each
    "token-bucket": ({"rate": "40/m", "algorithm": "token_bucket"}, 80),
    "token-bucket-burst": ({"rate": "40/m", "algorithm": "token_bucket", "burst": 10}, 50),
}

GAPS = st.one_of(
    st.integers(0, 3),
    st.integers(0, 2 * LEASE),
    st.sampled_from([LEASE - 1, LEASE, LEASE + 1, LEASE // 2, MINUTE - LEASE, MINUTE - 1, MINUTE, MINUTE + LEASE]),
)


@dataclass
class Process:
    """What a process knows: its share, and how much of it is left until when."""

    share: str = ""
    left: int = 0
    spent: int = 0
    deadline: int = 0


@dataclass
class Model:
    """Processes under one rule in the specification. `time`: what passes; the clock of the store may step back."""

    limit: Spec
    processes: list[Process] = field(default_factory=lambda: [Process(), Process(), Process()])
    time: int = 0
    hits: list[list[int]] = field(default_factory=list)
    """When each hit was admitted, and its cost."""
    ids: Any = field(default_factory=lambda: itertools.count(1))

    def pass_time(self, span: int, step_back: int) -> None:
        self.time += span
        self.limit.now += span - step_back

    def hit(self, process: Process, cost: int, wish: int, divisor: int) -> None:
        if process.left >= cost and self.time < process.deadline:
            process.left -= cost
            process.spent += cost
            self.hits.append([self.time, cost])
        elif self.ask(process, "check", cost, wish, divisor):
            self.hits.append([self.time, cost])

    def ask(self, process: Process, mode: QuestionMode, cost: int, wish: int = 0, divisor: int = 2) -> bool:
        """Ask the store, and return the share of the process, as it always does."""
        ahead = Ahead(process.share, process.spent, f"s{next(self.ids)}", wish, divisor, LEASE)
        place = Place(self.limit.rule.name, SUBJECT)
        question = Question([Ask(self.limit.rule, SUBJECT, cost)], with_events=False, ahead={place: ahead})
        reply = self.limit.decide(question, mode)
        if mode != "peek":
            process.share, process.left, process.spent = "", 0, 0
        for _, units, lease in question.granted(reply).values() if mode == "check" else ():
            process.share, process.left, process.deadline = ahead.new_id, units, self.time + lease
        return bool(reply[1] == ALLOWED)

    def refund_last(self, process: Process) -> None:
        """Give back the last hit, whoever had it; this process returns its share with it."""
        if self.hits:
            self.ask(process, "refund", self.hits[-1][1])
            self.hits.pop()

    def reset(self, process: Process) -> None:
        """Drop what is counted: what was admitted before does not count. This process forgets what it has spent."""
        for key in [key for key in self.limit.states.kept if "}:r:" in key]:
            self.limit.states.drop(key)
        process.left = process.spent = 0
        self.hits.clear()


ACTS = st.sampled_from([*12 * ["hit"], "plain", "plain", "die", "return", "peek"])
WITH_RESETS = st.sampled_from([*10 * ["hit"], "plain", "die", "refund", "refund", "reset"])


@pytest.mark.thorough("slow")
@pytest.mark.parametrize("case", CASES)
@inputs(400)
@given(data=st.data())
def test_no_mix_of_processes_that_take_ahead_lets_more_than_the_bound_in(case: str, data: st.DataObject) -> None:
    options, bound = CASES[case]
    limit = Spec(**options, prefetch=LEASE / SECOND)
    limit.now += data.draw(st.integers(0, MINUTE), label="phase")
    model = Model(limit, time=limit.now)
    steps_back, acts = data.draw(st.sampled_from([(False, ACTS), (True, ACTS), (False, WITH_RESETS)]), label="acts")
    back = st.sampled_from([0, 0, 0, 1, SECOND, MINUTE, 3_600 * SECOND]) if steps_back else st.just(0)
    steps = st.tuples(
        GAPS, back, acts, st.integers(0, 2), st.integers(1, 9), st.sampled_from([0, 3, 40]), st.integers(1, 2)
    )

    for gap, step, act, number, cost, wish, divisor in data.draw(st.lists(steps, max_size=60), label="steps"):
        model.pass_time(max(gap, acts is WITH_RESETS), step)  # no two hits at one moment
        process = model.processes[number]
        match act:
            case "hit":
                model.hit(process, cost, wish, divisor)
            case "plain":
                model.hit(Process(), cost, 0, 1)
            case "die":
                model.processes[number] = Process()
            case "return":
                model.ask(process, "check", 0)
            case "peek":
                model.ask(process, "peek", cost)
            case "refund":
                model.refund_last(process)
            case "reset":
                model.reset(process)

    most = most_in_a_window((moment, cost) for moment, cost in model.hits)
    target(float(most), label="admitted in a window")
    assert most <= bound


def peeked(limit: Spec, cost: int, later: int = 0) -> Any:
    question = Question([Ask(limit.rule, SUBJECT, cost)], with_events=False)
    return answers(limit.decide(question, "peek", later))[0]


@pytest.mark.parametrize("case", CASES)
@inputs(300)
@given(
    past=st.lists(st.tuples(GAPS, st.integers(0, 2), st.integers(1, 9), st.sampled_from([0, 3, 40])), max_size=25),
    cost=st.integers(1, 10),
)
def test_a_wait_counts_what_is_out(case: str, past: list[Any], cost: int) -> None:
    limit = Spec(**CASES[case][0], prefetch=LEASE / SECOND)
    model = Model(limit)
    for gap, number, units, wish in past:
        model.pass_time(gap, 0)
        model.hit(model.processes[number], units, wish, 1)
    now = peeked(limit, cost)
    if not now.allowed:
        assert [peeked(limit, cost, later).allowed for later in (now.retry_after - 1, now.retry_after)] == [False, True]
    if now.more > 0:
        sooner, then = (peeked(limit, cost, later).remaining for later in (now.more - 1, now.more))
        assert max(0, sooner) <= max(0, now.remaining) < then
    capacity = limit.question().hits[0].limits[0].parameters.capacity
    assert peeked(limit, cost, now.reset).remaining == capacity


def test_a_killed_process_keeps_its_share_for_a_window_after_its_lease() -> None:
    model = Model(Spec("40/m", prefetch=LEASE / SECOND))
    model.hit(model.processes[0], 1, 9, 2)
    assert model.processes[0].left == 9
    moments = [0, MINUTE - 1, MINUTE, MINUTE + LEASE - 1, MINUTE + LEASE]
    assert [peeked(model.limit, 1, later).remaining for later in moments] == [30, 30, 31, 31, 40]


def test_a_process_that_returns_keeps_only_what_it_has_spent() -> None:
    model = Model(Spec("40/m", prefetch=LEASE / SECOND))
    process = model.processes[0]
    model.hit(process, 1, 9, 2)
    for _ in range(4):
        model.hit(process, 1, 0, 2)
    assert (peeked(model.limit, 1).remaining, process.spent) == (30, 4)
    model.ask(process, "check", 1)
    assert peeked(model.limit, 1).remaining == 34
    assert not [key for key in model.limit.states.kept if ahead_part(model.limit.rule.limits[0]) in key]


def test_a_share_is_at_most_what_is_left_divided_by_the_processes_that_ask() -> None:
    model = Model(Spec("40/m", prefetch=LEASE / SECOND))

    for process in model.processes:
        model.hit(process, 1, 100, 4)
    assert [process.left for process in model.processes] == [9, 7, 5]

    model.hit(Process(), 14, 0, 1)
    last = Process()
    model.hit(last, 1, 100, 4)
    assert last.left == 0


def test_a_share_that_was_returned_cannot_be_returned_again() -> None:
    model = Model(Spec("40/m", prefetch=LEASE / SECOND))
    process = model.processes[0]
    model.hit(process, 1, 9, 2)
    again = Process(process.share, 0, 9)
    model.ask(process, "check", 1)
    model.ask(again, "check", 1)
    assert peeked(model.limit, 1).remaining == 37


def spent_at_the_end_of_its_lease(model: Model) -> None:
    """A process spends all it has taken in the last moment, and is killed."""
    process = model.processes[0]
    model.pass_time(LEASE - 1 - (model.time - START), 0)
    while process.left:
        model.hit(process, 1, 0, 1)
    model.processes[0] = Process()


def test_what_a_killed_process_has_spent_last_counts_for_a_whole_window() -> None:
    model = Model(Spec("40/m", prefetch=LEASE / SECOND), time=START)
    model.hit(model.processes[0], 1, 40, 2)
    spent_at_the_end_of_its_lease(model)
    model.pass_time(MINUTE - LEASE + 1, 0)  # the hit that took the share no longer counts
    assert [model.ask(Process(), "check", cost) for cost in (22, 21, 1)] == [False, True, False]


def test_a_fixed_window_stays_open_after_a_reset_while_units_of_it_are_out() -> None:
    model = Model(Spec("40/m", "fixed_window", prefetch=LEASE / SECOND), time=START)
    model.hit(model.processes[0], 1, 40, 2)
    model.pass_time(1, 0)
    model.reset(model.processes[1])
    model.hit(Process(), 1, 0, 1)
    spent_at_the_end_of_its_lease(model)
    model.hit(Process(), 20, 0, 1)
    for _ in range(2):
        model.pass_time(START + MINUTE - model.time if model.time < START + MINUTE else 1, 0)
        model.hit(Process(), 40, 0, 1)
        model.hit(Process(), 19, 0, 1)
    assert most_in_a_window((moment, cost) for moment, cost in model.hits) == 80


def test_what_a_killed_process_took_of_a_bucket_counts_as_hit_at_the_end_of_its_lease() -> None:
    model = Model(Spec("40/m", "token_bucket", burst=10, prefetch=LEASE / SECOND), time=START)
    model.hit(model.processes[0], 1, 40, 2)
    spent_at_the_end_of_its_lease(model)
    model.hit(Process(), 6, 0, 1)
    interval = MINUTE // 40
    assert [peeked(model.limit, 1, later).remaining for later in (0, 1, interval, 4 * interval)] == [0, 0, 1, 4]
