"""What each algorithm promises one limit; on the executable specification, with time passed in."""

import itertools
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_quota import Rule
from django_quota.core.algorithms import NEVER, REGISTRY
from django_quota.core.algorithms.calendar import edges, is_zone
from django_quota.core.algorithms.sliding_window import WindowEntry
from django_quota.core.algorithms.token_bucket import Bucket
from django_quota.engine.asks import Ask
from django_quota.engine.codec import ALLOWED, RETRY_WITH
from django_quota.exceptions import RateError
from tests.support.places import Places
from tests.support.questions import Question, QuestionMode
from tests.support.selection import thorough
from tests.support.steps import ALGORITHMS, MINUTE, SECOND, START, Spec

HOUR, DAY = 3_600 * SECOND, 86_400 * SECOND
BUCKET = {"algorithm": "token_bucket"}


@pytest.mark.parametrize(
    ("name", "code", "takes"),
    [
        ("sliding_window", "sw", {"precision"}),
        ("fixed_window", "fw", set()),
        ("calendar", "cal", {"tz", "starts"}),
        ("token_bucket", "tb", {"burst"}),
        ("leaky_bucket", "lb", {"burst"}),
        ("distinct", "dv", set()),
        ("stock", "c", set()),
    ],
)
def test_an_algorithm_is_known_by_its_name_with_its_options(name: str, code: str, takes: set[str]) -> None:
    found = REGISTRY[name]

    assert (found.name, found.code, set(found.takes)) == (name, code, takes)


def test_the_decision_script_knows_these_algorithms() -> None:
    assert [*REGISTRY] == [*ALGORITHMS, "distinct", "subscription", "stock"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
class TestALimitOfThree:
    def test_it_admits_three(self, algorithm: str) -> None:
        limit = Spec("3/m", algorithm)

        assert [limit.run().allowed for _ in range(4)] == [True, True, True, False]

    def test_what_is_left_counts_down(self, algorithm: str) -> None:
        limit = Spec("3/m", algorithm)

        assert [limit.run().remaining for _ in range(4)] == [2, 1, 0, 0]

    @pytest.mark.parametrize(
        ("mode", "cost", "allowed"),
        [("peek", 1, True), ("check", 0, True), ("check", 4, False)],
        ids=["a peek", "a free hit", "a refused hit"],
    )
    def test_it_keeps_all_after(self, mode: QuestionMode, cost: int, allowed: bool, algorithm: str) -> None:
        limit = Spec("3/m", algorithm)

        found = limit.run(mode, cost)

        assert (found.allowed, found.remaining) == (allowed, 3)
        assert limit.run("peek", 1).remaining == 3

    def test_a_hit_of_more_never_has_room(self, algorithm: str) -> None:
        assert Spec("3/m", algorithm).run("check", 4).retry_after == NEVER


@pytest.mark.parametrize("options", [*({"algorithm": name} for name in ALGORITHMS), {**BUCKET, "burst": 5}], ids=str)
@pytest.mark.parametrize("cost", [0, 1])
class TestALimitOfZero:
    def test_it_refuses_for_ever(self, cost: int, options: dict[str, Any]) -> None:
        answer = Spec("0/m", count_refused=True, **options).run(cost=cost)

        assert (answer.allowed, answer.remaining, answer.retry_after) == (False, 0, NEVER)

    def test_it_keeps_nothing(self, cost: int, options: dict[str, Any]) -> None:
        limit = Spec("0/m", count_refused=True, **options)

        limit.run(cost=cost)

        assert not [key for key in limit.states.kept if ":r:" in key]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("early", [1, 0], ids=["a microsecond early", "in time"])
def test_a_refused_hit_is_admitted_from_the_end_of_its_wait_on(early: int, algorithm: str) -> None:
    limit = Spec("3/m", algorithm)
    waits = [limit.run().retry_after for _ in range(4)]

    limit.now += waits[-1] - early

    assert limit.run().allowed is (early == 0)


@pytest.mark.parametrize("algorithm", ["sliding_window", "fixed_window"])
@pytest.mark.parametrize(("rate", "left"), [("3/m", 1), ("300/m", 298)], ids=["each hit", "slices"])
def test_a_hit_counts_for_its_whole_window_though_the_clock_steps_back(rate: str, left: int, algorithm: str) -> None:
    limit = Spec(rate, algorithm)
    limit.run()

    limit.now -= 10 * SECOND
    limit.run()

    limit.now = START + MINUTE - 1
    assert limit.run("peek").remaining == left


MOST_USED = 10**15
"""The highest count, in units or in microseconds: sums of it stay exact in Lua's numbers."""


@pytest.mark.parametrize("first", [MOST_USED - 1, MOST_USED])
@pytest.mark.parametrize(
    ("rate", "options"),
    [
        ("60/m", {"algorithm": "sliding_window"}), ("60/m", {"algorithm": "fixed_window"}),
        ("60/m", {"algorithm": "calendar"}), ("60/month", {"algorithm": "calendar", "starts": date(2026, 1, 31)}),
    ],
    ids=["sliding_window", "fixed_window", "calendar", "starts"],
)  # fmt: skip
def test_no_count_goes_above_what_is_exact(rate: str, options: dict[str, Any], first: int) -> None:
    limit = Rule.make("rule", rate, **options).limits[0]
    p = limit.parameters(START)
    state, _ = limit.algorithm.consume(None, p, first, START, over=True)

    _, verdict = limit.algorithm.consume(state, p, 5, START, over=True)

    assert p.capacity - verdict.remaining == MOST_USED


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
def test_no_backlog_of_a_bucket_goes_above_what_is_exact(algorithm: Any) -> None:
    limit = Rule.make("rule", "60/m", algorithm=algorithm).limits[0]

    _, verdict = limit.algorithm.consume(None, limit.parameters(START), MOST_USED, START, over=True)

    assert verdict.reset == MOST_USED


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "leaky_bucket"])
def test_a_refund_of_more_than_was_used_adds_nothing(algorithm: str) -> None:
    limit = Spec("3/m", algorithm)
    limit.run()
    assert limit.run("refund", cost=1_000).remaining == 3
    assert [limit.run().allowed for _ in range(4)] == [True, True, True, False]


def test_a_refund_frees_no_place_in_the_queue_of_a_leaky_bucket() -> None:
    limit = Spec("3/m", "leaky_bucket")
    for _ in range(2):
        limit.run()
    assert limit.run("refund").remaining == 1
    assert limit.run().retry_after == 40 * SECOND


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(count=st.integers(1, 300), hits=st.lists(st.integers(0, 90 * SECOND), min_size=1, max_size=30))
def test_after_the_reset_nothing_is_used(algorithm: str, count: int, hits: list[int]) -> None:
    limit = Spec(f"{count}/m", algorithm)
    for later in hits:
        limit.now += later
        limit.run()
    limit.now += limit.run("peek").reset
    assert limit.run("peek").remaining == count


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_counted_refusals_keep_out_who_goes_on_trying(algorithm: str) -> None:
    limit = Spec("2/2s", algorithm, count_refused=True)
    admitted = 0
    for tick in range(60):
        limit.now = START + tick * SECOND // 10
        admitted += limit.run().allowed
    patient = {"fixed_window": 6, "calendar": 6}  # their windows end whatever is counted in them
    assert admitted == patient.get(algorithm, 2)


@pytest.mark.parametrize("count", [100, 101, 10**12])
def test_a_sliding_window_keeps_at_most_one_entry_more_than_its_precision(count: int) -> None:
    limit = Spec(f"{count}/m")
    for _ in range(700):
        limit.now += MINUTE // 333
        limit.run(cost=max(1, count // 500))
    (state,) = (state for key, (state, _) in limit.states.kept.items() if ":r:" in key)
    assert len(state) <= 101


@pytest.mark.parametrize(("burst", "admitted"), [(2, 2), (None, 6), (20, 20)])
class TestATokenBucket:
    def test_takes_a_burst(self, burst: int | None, admitted: int) -> None:
        limit = Spec("6/m", burst=burst, **BUCKET)

        assert [limit.run().allowed for _ in range(30)].index(False) == admitted

    def test_refills_evenly(self, burst: int | None, admitted: int) -> None:
        limit = Spec("6/m", burst=burst, **BUCKET)
        while limit.run().allowed:
            pass
        assert limit.run().retry_after == 10 * SECOND

        limit.now += 10 * SECOND

        assert [limit.run().allowed for _ in range(2)] == [True, False]


@given(arrivals=st.lists(st.integers(0, 30 * SECOND), max_size=40), count=st.integers(1, 50))
def test_hits_that_wait_the_delay_of_a_leaky_bucket_are_spaced_evenly(arrivals: list[int], count: int) -> None:
    limit, starts = Spec(f"{count}/m", "leaky_bucket"), []
    for later in arrivals:
        limit.now += later
        if (answer := limit.run()).allowed:
            starts.append(limit.now + answer.retry_after)
    assert all(later - earlier >= MINUTE // count for earlier, later in itertools.pairwise(starts))


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
@given(
    spent=st.lists(st.tuples(st.integers(0, 20 * SECOND), st.integers(1, 10)), min_size=1, max_size=20),
    step=st.one_of(st.integers(1, 3 * MINUTE), st.sampled_from([3_600 * SECOND, 86_400 * SECOND])),
    cost=st.integers(1, 10),
)
def test_a_clock_that_steps_back_blocks_a_bucket_no_longer_than_one_refill(
    algorithm: str, spent: list[tuple[int, int]], step: int, cost: int
) -> None:
    limit = Spec("10/m", algorithm)
    for gap, units in spent:
        limit.now += gap
        limit.run(cost=units)
    limit.now -= step
    answer = limit.run(cost=cost)
    assert answer.reset <= MINUTE
    if not answer.allowed:
        assert answer.retry_after <= cost * 6 * SECOND
        limit.now += answer.retry_after
        assert limit.run(cost=cost).allowed


def limit_of(rate: str, **options: Any) -> tuple[Any, Any]:
    """Return the algorithm of a rate, and its parameters."""
    limit = Rule.make("rule", rate, **options).limits[0]
    return limit.algorithm, limit.parameters(START)


TEN = 10 * SECOND
BACKLOG = Bucket(START + 2 * TEN, START)
"""A bucket of 6 a minute of which two are used."""
either_bucket = pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])


@pytest.mark.parametrize(("algorithm", "delay"), [("token_bucket", 0), ("leaky_bucket", 2 * TEN)])
def test_an_allowed_hit_is_held_back_by_a_leaky_bucket_alone(algorithm: str, delay: int) -> None:
    bucket, p = limit_of("6/m", algorithm=algorithm)

    after, verdict = bucket.consume(BACKLOG, p, 1, START)

    assert bucket.peek(BACKLOG, p, 1, START) == (True, 4, delay, 2 * TEN, TEN)
    assert (after, verdict) == (Bucket(START + 3 * TEN, START), (True, 3, delay, 3 * TEN, TEN))
    assert bucket.expiry(after) == START + 3 * TEN


@either_bucket
def test_a_bucket_of_which_nothing_is_used_is_full(algorithm: str) -> None:
    bucket, p = limit_of("6/m", algorithm=algorithm)

    assert bucket.peek(None, p, 6, START) == (True, 6, 0, 0, NEVER)


@pytest.mark.parametrize(
    ("state", "cost", "after"),
    [
        (BACKLOG, 1, Bucket(START + TEN, START)), (BACKLOG, 2, None), (BACKLOG, 3, None), (BACKLOG, 0, BACKLOG),
        (None, 1, None),
    ],
    ids=["a part", "all", "more than was used", "nothing", "of a full bucket"],
)  # fmt: skip
def test_a_refund_shortens_the_backlog_of_a_token_bucket(state: Any, cost: int, after: Any) -> None:
    bucket, p = limit_of("6/m", algorithm="token_bucket")

    assert bucket.refund(state, p, cost, START) == after


@either_bucket
def test_nothing_is_given_back_to_a_full_bucket(algorithm: str) -> None:
    bucket, p = limit_of("6/m", algorithm=algorithm)

    assert bucket.give_back(None, p, 1, 1, START, START) is None


ENTRIES = tuple(WindowEntry(104 + number, 1, START + number * TEN) for number in (1, 2, 3))
"""Three hits that expire one after another."""


@pytest.mark.parametrize(("cost", "wait"), [(1, TEN), (2, 2 * TEN), (3, 3 * TEN)])
def test_a_refused_hit_waits_for_as_many_hits_as_it_needs(cost: int, wait: int) -> None:
    window, p = limit_of("3/m")

    assert window.peek(ENTRIES, p, cost, START) == (False, 0, wait, 3 * TEN, TEN)


def test_a_hit_joins_the_last_entry_if_both_expire_at_once() -> None:
    window, p = limit_of("9/m")
    state = (*ENTRIES[:2], ENTRIES[2]._replace(expiry=START + MINUTE))

    after, _ = window.consume(state, p, 1, START)

    assert after == (*ENTRIES[:2], WindowEntry(108, 2, START + MINUTE))


def test_a_slice_is_added_though_a_share_is_full() -> None:
    window, p = limit_of("300/m", share=0.01)

    after, _ = window.consume((*ENTRIES, WindowEntry(108, 1, START + 4 * TEN)), p, 1, START, over=True)

    assert (p.capacity, len(after)) == (3, 5)


@pytest.mark.parametrize(("cost", "total"), [(2, 2**52 - 1), (3, 2**51), (4, 2**51 + 1)])
def test_a_running_total_is_lowered_before_it_is_inexact(cost: int, total: int) -> None:
    window, p = limit_of("9/m")

    after, verdict = window.consume((WindowEntry(2**52 - 3, 1, START + TEN),), p, cost, START)

    assert (after[-1].total, verdict.remaining) == (total, 9 - 1 - cost)


VALUES = {"a": START + 3 * TEN, "b": START + TEN}
"""Two values, of which one is forgotten before the other."""


@pytest.mark.parametrize(
    ("rate", "value", "cost", "verdict"),
    [
        ("3/m", "c", 1, (True, 1, 0, 3 * TEN, TEN)), ("2/m", "c", 1, (False, 0, TEN, 3 * TEN, TEN)),
        ("2/m", "a", 1, (True, 0, 0, 3 * TEN, TEN)), ("2/m", "c", 0, (True, 0, 0, 3 * TEN, TEN)),
    ],
    ids=["there is room", "there is no room", "a known value", "a free hit"],
)  # fmt: skip
def test_different_values_wait_until_one_is_forgotten(rate: str, value: str, cost: int, verdict: Any) -> None:
    values, p = limit_of(rate, distinct=True)

    assert values.peek(VALUES, p._replace(value=value), cost, START) == verdict
    assert values.expiry(VALUES) == START + 3 * TEN


def test_a_new_value_is_known_for_a_window() -> None:
    values, p = limit_of("3/m", distinct=True)

    after, verdict = values.consume(VALUES, p._replace(value="c"), 1, START)

    assert (after, verdict) == ({**VALUES, "c": START + MINUTE}, (True, 0, 0, MINUTE, TEN))


def test_a_fixed_window_that_is_not_open_has_nothing_to_reset() -> None:
    window, p = limit_of("5/m", algorithm="fixed_window")

    assert window.peek(None, p, 1, START) == (True, 5, 0, 0, NEVER)


# --- calendar ---------------------------------------------------------------------------------------------------------

UNITS = [("second", 1), ("second", 15), ("minute", 1), ("minute", 20), ("hour", 1), ("hour", 6)]
UNITS += [("day", 1), ("week", 1), ("month", 1), ("month", 3), ("year", 1)]
ZONES = sorted(available_timezones() - {"localtime"})
BERLIN, CHATHAM, LORD_HOWE, TOKYO = "Europe/Berlin", "Pacific/Chatham", "Australia/Lord_Howe", "Asia/Tokyo"


@given(st.sampled_from(UNITS), st.sampled_from(ZONES), st.integers(0, 4_000_000_000 * SECOND))
def test_a_period_holds_the_moment(unit: tuple[str, int], zone: str, now: int) -> None:
    start, end, following = edges(*unit, zone, now)

    assert start <= now < end < following


@given(st.sampled_from(UNITS), st.sampled_from(ZONES), st.integers(0, 4_000_000_000 * SECOND))
def test_a_period_begins_where_the_one_before_it_ends(unit: tuple[str, int], zone: str, now: int) -> None:
    _, end, following = edges(*unit, zone, now)

    assert edges(*unit, zone, end)[:2] == (end, following)


def jumps(zone: str) -> list[int]:
    """Return when the clock of a zone is put on or back, from 2023 to 2026."""

    def offset(at: int) -> timedelta | None:
        return datetime.fromtimestamp(at, ZoneInfo(zone)).utcoffset()

    days = [day for day in range(1_672_531_200, 1_798_761_600, 86_400) if offset(day) != offset(day + 86_400)]
    return [next(at for at in range(day, day + 86_401, 60) if offset(at) != offset(day)) for day in days]


def faults_of_periods(zone: str, unit: tuple[str, int], now: int) -> Iterator[str]:
    start, end, following = edges(*unit, zone, now)
    if not start <= now < end < following:
        yield f"{unit} at {now}: the period does not hold the moment"
    if {edges(*unit, zone, at) for at in (start, end - 1)} != {(start, end, following)}:
        yield f"{unit} at {now}: callers whose clocks differ by a moment get other periods"
    if edges(*unit, zone, end)[:2] != (end, following):
        yield f"{unit} at {now}: the next period does not begin at the end"


@pytest.mark.parametrize(
    "zone",
    [
        *("Antarctica/Troll", "Africa/Cairo"),
        *(thorough("variants", zone) for zone in (CHATHAM, LORD_HOWE, BERLIN, "America/Havana")),
    ],
)
def test_periods_hold_the_moment_around_every_jump_of_the_clock(zone: str) -> None:
    """Troll jumps by two hours, Chatham at 2:45, Lord Howe by half an hour, Cairo and Havana at midnight."""
    found = jumps(zone)
    assert len(found) >= 6
    moments = [(jump + minutes * 60) * SECOND for jump in found for minutes in range(-240, 241, 15)]

    faults = [
        fault
        for now, unit in itertools.product(moments, [*UNITS, ("hour", 2), ("hour", 3), ("hour", 12)])
        for fault in faults_of_periods(zone, unit, now)
    ]

    assert faults == []


def moment(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * SECOND


@pytest.mark.parametrize(
    ("unit", "multiple", "zone", "now", "edges_then"),
    [
        # A day lasts from midnight to midnight where people live, for 25 hours here.
        ("day", 1, BERLIN, "2026-10-25T12:00+01:00", ["2026-10-25T00:00+02:00", "2026-10-26T00:00+01:00"]),
        # A midnight that the clock skips is the moment of the jump: in Cairo 00:00 becomes 01:00.
        ("day", 1, "Africa/Cairo", "2026-04-23T22:00+00:00", ["2026-04-23T22:00+00:00", "2026-04-24T21:00+00:00"]),
        # Weeks begin on Monday, months, quarters and years on their first.
        ("week", 1, TOKYO, "2026-11-21T13:00+09:00", ["2026-11-16T00:00+09:00", "2026-11-23T00:00+09:00"]),
        ("month", 3, TOKYO, "2026-11-21T13:00+09:00", ["2026-10-01T00:00+09:00", "2027-01-01T00:00+09:00"]),
        ("year", 1, TOKYO, "2026-11-21T13:00+09:00", ["2026-01-01T00:00+09:00", "2027-01-01T00:00+09:00"]),
        # An hour that the clock repeats is two periods.
        ("hour", 1, BERLIN, "2026-10-25T00:30+00:00", ["2026-10-25T00:00+00:00", "2026-10-25T01:00+00:00"]),
        # A period ends where the clock jumps by half an hour: 02:00 becomes 02:30, and 02:00 becomes 01:30.
        ("hour", 1, LORD_HOWE, "2026-10-03T15:28+00:00",
         ["2026-10-03T14:30+00:00", "2026-10-03T15:30+00:00", "2026-10-03T16:00+00:00"]),
        ("hour", 1, LORD_HOWE, "2026-04-04T14:58+00:00",
         ["2026-04-04T14:00+00:00", "2026-04-04T15:00+00:00", "2026-04-04T15:30+00:00"]),
        # Where the clock jumps, one period ends and the next one begins.
        ("hour", 1, LORD_HOWE, "2026-10-03T15:45+00:00",
         ["2026-10-03T15:30+00:00", "2026-10-03T16:00+00:00", "2026-10-03T17:00+00:00"]),
        ("hour", 1, LORD_HOWE, "2026-04-04T15:15+00:00",
         ["2026-04-04T15:00+00:00", "2026-04-04T15:30+00:00", "2026-04-04T16:30+00:00"]),
        ("hour", 1, CHATHAM, "2026-09-26T14:05+00:00",
         ["2026-09-26T14:00+00:00", "2026-09-26T14:15+00:00", "2026-09-26T15:15+00:00"]),
        ("minute", 20, CHATHAM, "2026-09-26T13:57+00:00",
         ["2026-09-26T13:55+00:00", "2026-09-26T14:00+00:00", "2026-09-26T14:15+00:00"]),
        ("minute", 12, CHATHAM, "2026-09-26T14:01+00:00",
         ["2026-09-26T14:00+00:00", "2026-09-26T14:03+00:00", "2026-09-26T14:15+00:00"]),
        # To the second: Liberia was at UTC-00:44:30 until 1972.
        ("hour", 1, "Africa/Monrovia", "1972-01-07T00:50+00:00",
         ["1972-01-07T00:44:30+00:00", "1972-01-07T01:00+00:00", "1972-01-07T02:00+00:00"]),
        # Where it jumps within an hour, at 02:45, that hour ends there.
        ("hour", 1, CHATHAM, "2026-09-26T13:50+00:00",
         ["2026-09-26T13:15+00:00", "2026-09-26T14:00+00:00", "2026-09-26T14:15+00:00"]),
        # A period above an hour runs through a change of the clock: 03:00 becomes 02:00.
        ("hour", 6, BERLIN, "2026-10-25T01:00+00:00", ["2026-10-24T22:00+00:00", "2026-10-25T05:00+00:00"]),
        # An edge that the clock skips is the moment of the jump: 02:45 becomes 03:45, and 01:00 becomes 03:00.
        ("hour", 3, CHATHAM, "2026-09-26T13:59+00:00",
         ["2026-09-26T11:15+00:00", "2026-09-26T14:00+00:00", "2026-09-26T16:15+00:00"]),
        ("hour", 2, "Antarctica/Troll", "2026-03-29T01:00+00:00",
         ["2026-03-29T01:00+00:00", "2026-03-29T02:00+00:00", "2026-03-29T04:00+00:00"]),
        # A period that the clock skips as a whole is none: Samoa had no 30 December.
        ("day", 1, "Pacific/Apia", "2011-12-29T12:00-10:00",
         ["2011-12-29T00:00-10:00", "2011-12-31T00:00+14:00", "2012-01-01T00:00+14:00"]),
    ],
)  # fmt: skip
def test_periods_are_those_of_the_clocks_that_people_have(
    unit: str, multiple: int, zone: str, now: str, edges_then: list[str]
) -> None:
    assert list(edges(unit, multiple, zone, moment(now)))[: len(edges_then)] == [moment(each) for each in edges_then]


@pytest.mark.parametrize(
    ("options", "outside"),
    [
        ({}, ["before", "after the next"]),
        ({"starts": date(2026, 1, 31)}, ["before", "in the next", "after the next"]),
    ],
    ids=["of the calendar", "of a subject"],
)
def test_a_moment_outside_the_periods_that_a_caller_sends_is_reported(
    places: Places, options: dict[str, Any], outside: list[str]
) -> None:
    rule, sent = Rule.make("rule", "1/month", algorithm="calendar", **options), moment("2026-11-21T12:00+00:00")
    limit, peek = rule.limits[0], Question([Ask(rule, "ip:203.0.113.9", 1)]).operation(sent, "peek")
    p = limit.parameters(sent)
    moments = {
        "before": p.a - 1, "the first": p.a, "the last": p.b - 1, "in the next": p.b, "after the next": max(p.c, p.d),
    }  # fmt: skip

    assert [name for name, now in moments.items() if limit.algorithm.is_outside(p, now)] == outside
    assert [name for name, now in moments.items() if places.run(peek, now)[1] == RETRY_WITH] == outside


@pytest.mark.parametrize("rates", [("9/d", "9/month"), ("9/month", "9/d")], ids=["the first", "the last"])
def test_a_moment_outside_the_periods_of_one_limit_is_reported(places: Places, rates: tuple[str, str]) -> None:
    rule, sent = Rule.make("rule", *rates, algorithm="calendar"), moment("2026-11-21T12:00+00:00")
    peek = Question([Ask(rule, "ip:203.0.113.9", 1)]).operation(sent, "peek")

    assert [places.run(peek, sent + days * DAY)[1] == RETRY_WITH for days in (1, 2)] == [False, True]


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "calendar"])
def test_the_parameters_of_other_algorithms_hold_at_any_moment(algorithm: Any) -> None:
    limit = Rule.make("rule", "5/m", algorithm=algorithm).limits[0]
    p = limit.parameters(START)

    assert [limit.algorithm.is_outside(p, now) for now in (0, START, START + 10 * HOUR)] == [False] * 3
    assert limit.parameters(START + 10 * HOUR) == p


def test_a_hit_in_the_next_period_counts_in_that_one() -> None:
    limit = Rule.make("rule", "5/h", algorithm="calendar").limits[0]
    p = limit.parameters(moment("2026-11-21T12:30+00:00"))

    ends = [limit.algorithm.consume(None, p, 1, now)[0].end for now in (p.a, p.b - 1, p.b)]

    assert ends == [p.b, p.b, p.c]


def test_a_calendar_limit_starts_anew_with_each_period() -> None:
    limit = Spec("2/month", "calendar", tz=BERLIN)
    limit.now = moment("2026-02-28T23:00+01:00")
    assert [limit.run().allowed for _ in range(3)] == [True, True, False]
    assert limit.run().retry_after == 3_600 * SECOND
    limit.now += 3_600 * SECOND
    assert limit.run().allowed


@pytest.mark.parametrize("rate", ["1/7s", "1/25m", "1/5h", "1/2d", "1/2w", "1/5 months"])
def test_a_window_that_does_not_fit_the_calendar_is_refused(rate: str) -> None:
    with pytest.raises(ValueError, match="its window does not fit the calendar"):
        Rule.make("rule", rate, algorithm="calendar")


def test_the_error_of_a_window_that_does_not_fit_the_calendar_points_at_the_window() -> None:
    with pytest.raises(RateError) as caught:
        Rule.make("rule", "100/7s", algorithm="calendar")

    assert str(caught.value) == (
        "'100/7s' is not a rate: its window does not fit the calendar (at position 4). "
        "Seconds must divide a minute, minutes an hour, hours a day and months a year; days, weeks and years come one "
        "at a time. Use, for example, '10/15m', '100/6h', '1000/day' or '5000/month'."
    )


@pytest.mark.parametrize(
    ("name", "is_known"), [("Europe/Berlin", True), ("UTC", True), ("Mars/Base", False), ("../passwd", False)]
)
def test_a_zone_is_known_by_its_name(name: str, is_known: bool) -> None:
    assert is_zone(name) is is_known


@pytest.mark.parametrize(
    ("count", "slices"), [(100, 0), (101, 100), (10**9, 100), (10**9 + 1, 64)], ids=["hits", "many", "most", "huge"]
)
def test_a_sliding_window_is_cut_into_slices_above_a_hundred_hits(count: int, slices: int) -> None:
    p = Rule.make("rule", f"{count}/64m").limits[0].parameters(START)

    assert p.b == (64 * MINUTE // slices if slices else 0)


def test_a_window_of_several_years_is_refused() -> None:
    with pytest.raises(ValueError, match="a window is 1 to 1 years long"):
        Rule.make("rule", "1/2 years", algorithm="calendar")


# --- adjust: a hit takes another cost after all, where it was counted -------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_was_not_used_is_given_back(algorithm: str) -> None:
    limit = Spec(algorithm=algorithm)
    limit.adjust(limit.check(40), 10)
    assert limit.used == 10


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_was_used_beyond_the_cost_is_charged_even_past_the_limit(algorithm: str) -> None:
    limit = Spec(algorithm=algorithm)
    limit.check(10)
    limit.adjust(limit.check(50), 75)  # 85 of 60
    assert (limit.adjust(limit.check(0)).verdict, limit.used) == (0, 85)
    assert not limit.check(1).taken


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_has_expired_is_not_given_back(algorithm: str) -> None:
    limit = Spec(algorithm=algorithm)
    receipt = limit.check(30)
    limit.now += MINUTE + (MINUTE - limit.now % MINUTE)
    limit.check(20)
    limit.adjust(receipt)
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
        ("leaky_bucket", 10, -1, 5, [15, 10]),  # also if the clock has stepped back
    ],
)
def test_only_what_still_counts_is_given_back(algorithm: str, first: int, gap: int, second: int, left: Any) -> None:
    limit, found = Spec("60/d" if algorithm == "calendar" else "60/m", algorithm), []
    limit.now = (START // DAY + 1) * DAY - SECOND
    earlier = limit.check(first)
    limit.now += gap
    for receipt in (earlier, limit.check(second)):
        limit.adjust(receipt)
        found.append(limit.used)
    assert found == left


def test_a_value_is_forgotten_only_by_the_hit_that_added_it() -> None:
    limit = Spec("3/m", distinct=True)
    receipts = [limit.check()]
    limit.now += SECOND
    for receipt in [*receipts, limit.check()]:
        limit.adjust(receipt)
    assert limit.used == 1
    limit.states.kept.clear()
    limit.adjust(limit.check())
    assert limit.used == 0


class TestALimitThatCountsRefusedHits:
    def test_keeps_a_hit_that_is_undone(self) -> None:
        limit = Spec(count_refused=True)

        limit.adjust(limit.check(10), undone=True)

        assert limit.used == 10

    def test_settles_other_hits(self) -> None:
        limit = Spec(count_refused=True)

        limit.adjust(limit.check(10))

        assert limit.used == 0


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

    question = Question([Ask(Rule.make("r", "9/h", daily=True), "user:1", 3)])
    receipt = question.receipt(places.run(question.operation(midnight - 2, "check"), midnight - 2))
    sent: list[tuple[Question, QuestionMode]] = [(question.settled(receipt, [1]), "adjust")]
    sent += [(question, "peek"), (question, "refund"), (question, "check")]
    found = [places.run(asked.operation(midnight - 1, mode), midnight + 1)[:4] for asked, mode in sent]
    assert [(reply[1], *reply[3:]) for reply in found] == [(1, 8), (1, 8), (1, 9), (-1,)]


@pytest.mark.parametrize("algorithm", ["sliding_window", "fixed_window"], ids=["plain plan", "other plan"])
@pytest.mark.parametrize(
    ("moment", "verdict"),
    [(-1, RETRY_WITH), (0, ALLOWED), (DAY - 1, ALLOWED), (DAY, RETRY_WITH)],
    ids=["before it begins", "its first moment", "its last moment", "after it ends"],
)
def test_a_check_is_counted_from_the_first_moment_of_its_day_to_the_last(
    places: Places, algorithm: str, moment: int, verdict: int
) -> None:
    begins = START // DAY * DAY
    question = Question([Ask(Rule.make("r", "9/h", algorithm=algorithm, daily=True), "user:1", 3)])
    assert places.run(question.operation(begins + 7, "check"), begins + moment)[1] == verdict


@pytest.mark.parametrize(
    ("algorithm", "burst", "left"),
    [
        pytest.param("sliding_window", None, 4, id="a window is settled"),
        # It counts time, and its units take another time by now: they would be too many.
        pytest.param("token_bucket", 30, 5, id="a bucket is left alone"),
    ],
)
def test_after_a_change_of_the_rate_only_hits_of_a_window_are_settled(
    algorithm: str, burst: int | None, left: int
) -> None:
    limit = Spec(algorithm=algorithm)
    receipt = limit.check(10)
    limit.rule = Rule.make("r", "30/m", algorithm=algorithm, burst=burst)

    limit.decide(limit.question().settled(receipt._replace(asks=limit.question(10).asks), [4]), "adjust")

    assert limit.used == left


def test_settling_past_several_shares_reports_the_highest() -> None:
    limit = Spec("100/m", warn_at=(0.5, 0.8, 1))

    def reported(estimate: int, actual: int) -> list[int]:
        return [flagged.value for flagged in limit.adjust(limit.check(estimate, is_estimate=True), actual).flags]

    assert [reported(10, 130), reported(0, 0)] == [[1000], []]
    assert limit.states.get(limit.question(0).hits[0].status_key) == {"w:r": f"{limit.now + MINUTE} 1000 100"}
    limit.now += MINUTE
    assert reported(85, 85) == [800]
    limit.decide(limit.question(20), "refund")  # 65: 0.5 stays reported
    assert [reported(*each) for each in ((20, 10), (20, 20), (5, 5))] == [[], [800], [1000]]
