"""Adjust: a hit takes another cost after all, where it was counted. For the bounds see `test_bounds`."""

from typing import Any

import pytest

from django_quota import Rule
from django_quota.engine.plans import Plan, PlanMode
from tests.support.places import Places
from tests.support.steps import ALGORITHMS, MINUTE, SECOND, START, Spec

HOUR, DAY = 3_600 * SECOND, 86_400 * SECOND


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_less_is_given_back_until_it_has_expired_and_more_is_charged_but_never_twice(algorithm: str) -> None:
    limit = Spec(algorithm=algorithm)
    limit.adjust(limit.check(40), 10)
    assert limit.used == 10
    limit.adjust(limit.check(50), 75)  # 85 of 60
    assert (limit.adjust(limit.check(0)).verdict, limit.used) == (0, 85)
    assert not limit.check(1).taken
    limit = Spec(algorithm=algorithm)
    plan = limit.check(30)
    limit.now += MINUTE + (MINUTE - limit.now % MINUTE)
    limit.check(20)
    limit.adjust(plan)
    assert limit.used == 20


@pytest.mark.parametrize("precision", [None, 3])
def test_a_sliding_window_gives_back_in_the_slice_of_the_moment_alone(precision: int | None) -> None:
    limit = Spec("5/h", precision=precision)
    limit.check()  # a failure at noon
    for _ in range(300):  # a client that sends its password with each request, all day long
        limit.now += 12 * SECOND
        limit.adjust(limit.check())
    assert limit.used == (0 if precision is None else 1)
    limit.now = START + HOUR + (0 if precision is None else HOUR // 3)
    assert limit.used == 0


@pytest.mark.parametrize(
    ("algorithm", "first", "gap", "second", "left"),
    [
        ("calendar", 30, 2 * SECOND, 20, [20, 0]),  # midnight is between them
        ("token_bucket", 60, 50 * SECOND, 50, [50, 0]),  # that many have refilled, one a second
        ("leaky_bucket", 10, 1, 5, [15, 10]),  # the last place alone
    ],
)
def test_only_what_still_counts_is_given_back(algorithm: str, first: int, gap: int, second: int, left: Any) -> None:
    limit, found = Spec("60/d" if algorithm == "calendar" else "60/m", algorithm), []
    limit.now = (START // DAY + 1) * DAY - SECOND
    earlier = limit.check(first)
    limit.now += gap
    for plan in (earlier, limit.check(second)):
        limit.adjust(plan)
        found.append(limit.used)
    assert found == left


def test_a_value_is_forgotten_only_by_the_hit_that_added_it() -> None:
    limit = Spec("3/m", distinct=True)
    plans = [limit.check()]
    limit.now += SECOND
    for plan in [*plans, limit.check()]:
        limit.adjust(plan)
    assert limit.used == 1
    limit.states.kept.clear()
    limit.adjust(limit.check())
    assert limit.used == 0


def test_a_limit_that_counts_refused_hits_keeps_one_that_is_undone_and_settles_others() -> None:
    limit = Spec(count_refused=True)
    limit.adjust(limit.check(10), undone=True)
    limit.adjust(limit.check(10))
    assert limit.used == 10


def test_the_day_of_a_hit_counts_what_it_really_used_whenever_that_is_known() -> None:
    limit = Spec(daily=True)
    more, less, undone, unused = limit.check(3), limit.check(3), limit.check(3), limit.check()
    (day_key,) = [key for key in limit.states.kept if ":day:" in key]
    assert limit.states.get(day_key) == {"r:a": 4, "r:u": 6}
    limit.states.drop(day_key)  # they are moved
    limit.now += DAY
    limit.adjust(more, 9)
    assert limit.states.get(day_key) == {"r:u": 6}
    limit.adjust(less, 1)
    limit.adjust(undone, undone=True)
    limit.adjust(unused)
    assert limit.states.get(day_key) == {"r:a": -2, "r:u": 2}
    assert limit.states.expiry(day_key) == limit.now + 8 * DAY


def test_only_a_check_needs_the_day_that_it_is_counted_in(places: Places) -> None:
    """What arrives after midnight is done at once: if a plan in parts were sent again, a part would be done twice."""
    midnight = (START // DAY + 1) * DAY

    def plan() -> Plan:
        return Plan("quota", 100, asked=[(Rule.make("r", "9/h", daily=True), "user:1", 3, "")])

    hit = plan()
    hit.read(places.run(hit.operation(midnight - 2, "check"), midnight - 2))
    sent: list[tuple[Plan, PlanMode]] = [(hit.settled(hit.taken, [1]), "adjust")]
    sent += [(plan(), "peek"), (plan(), "refund"), (plan(), "check")]
    found = [places.run(of_mode.operation(midnight - 1, mode), midnight + 1)[:4] for of_mode, mode in sent]
    assert [(reply[1], *reply[3:]) for reply in found] == [(1, 8), (1, 8), (1, 9), (-1,)]


@pytest.mark.parametrize(("algorithm", "burst", "left"), [("sliding_window", None, 4), ("token_bucket", 30, 5)])
def test_another_rate_of_the_same_window_settles_windows_and_leaves_buckets(
    algorithm: str, burst: int | None, left: int
) -> None:
    """A bucket counts time, and its units take another time by now: they would be too many."""
    limit = Spec(algorithm=algorithm)
    taken = limit.check(10).taken
    limit.rule = Rule.make("r", "30/m", algorithm=algorithm, burst=burst)
    limit.decide(limit.plan(10).settled(taken, [4]), "adjust")
    assert limit.used == left


def test_settling_past_several_shares_tells_the_highest() -> None:
    limit = Spec("100/m", warn_at=(0.5, 0.8, 1))

    def told(estimate: int, actual: int) -> list[int]:
        return [flagged.value for flagged in limit.adjust(limit.check(estimate, is_estimate=True), actual).flags]

    assert [told(10, 130), told(0, 0)] == [[1000], []]
    assert limit.states.get(limit.plan(0).hits[0].status_key) == {"w:r": f"{limit.now + MINUTE} 1000"}
    limit.now += MINUTE
    assert told(85, 85) == [800]
    limit.decide(limit.plan(20), "refund")  # 65: 0.5 stays told
    assert [told(*each) for each in ((20, 10), (20, 20), (5, 5))] == [[], [800], [1000]]
