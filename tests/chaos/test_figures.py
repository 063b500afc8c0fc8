"""The figures are right: what they would find is put before them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.figures import (
    ONE_OUTAGE,
    SETTLED,
    TIMEOUT,
    UNTOUCHED,
    Allowance,
    Figures,
    Times,
    broken,
    figures,
    told_too_often,
    worst_window,
)
from tests.chaos.records import Account, Loss, Record, Stall
from tests.chaos.site import ALLOW, DEFAULT, DENY, LOCAL, PAIR

TIMES = Times(broken=100.0, well=104.0)
CUT, LATE = Loss(100.0, "ConnectionError: cut"), Loss(102.0, "TimeoutError: Timeout reading from socket")
GONE = "The quota store is unavailable: x. Rules decide by on_unavailable until it answers again."
BACK = "The quota store answers again, after 4.2 s."
KEPT = "Cannot send the metrics of the overview, which stay in memory, and will try again: x"


def hit(at: float, policy: str = "deny", *, allowed: bool = True, degraded: bool = False, error: str = "") -> Record:
    return Record(policy, at, at + 0.001, allowed, degraded, error)


END_OF_ALL = [hit(110 + number, allowed=False) for number in range(30)]


def account(
    records: list[Record],
    *losses: Loss,
    stalls: list[Stall] | None = None,
    used: int | None = 0,
    logged: list[str] | None = None,
) -> Account:
    lines = [GONE, BACK] * len(losses) if logged is None else logged
    return Account("sync", [*records, *END_OF_ALL], list(losses), len(losses), lines, stalls or [], used)


def found_in(records: list[Record], allowance: Allowance = ONE_OUTAGE, *, used: int | None = 0) -> Figures:
    return figures([account(records, CUT, used=used), account([], CUT, used=used)], TIMES, allowance)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), max_size=30),
    st.integers(1, 20),
)
def test_the_worst_window_is_the_one_that_a_plain_search_finds(spans: list[tuple[int, int]], window: int) -> None:
    records = [Record("deny", start, start + lasts, True, False, "") for start, lasts in spans]
    plain = max(
        (sum(begin <= r.started and r.ended < begin + window for r in records) for begin in range(41)), default=0
    )
    assert worst_window(records, window) == plain


def test_what_is_as_it_should_be_breaks_nothing() -> None:
    found = found_in([hit(90 + number / 100) for number in range(DENY.limit)])
    assert (broken(found, ONE_OUTAGE), told_too_often(found, ONE_OUTAGE)) == ([], [])


def test_after_a_loss_one_more_limit_may_be_admitted_and_no_more() -> None:
    once = Allowance(losses=1)
    twice = [hit(when + number / 100, "allow") for when in (98, 105) for number in range(ALLOW.limit)]
    found = found_in(twice, once)
    assert (found.over, found.after_loss, broken(found, once)) == (0, ALLOW.limit, [])
    assert found_in([*twice, hit(105.9, "allow")], once).over == 1


@pytest.mark.parametrize(
    "records",
    [
        [hit(101, error="ValueError: x")],
        [hit(101, "deny", degraded=True)],
        [hit(101 + number / 1_000, "local", degraded=True) for number in range(LOCAL.limit // 2 + 1)],
        [hit(150, "allow", degraded=True)],
        [hit(TIMES.well + SETTLED + 0.1, "allow", degraded=True)],
    ],
    ids=["exception", "deny", "local", "not normal at the end", "not normal soon enough"],
)
def test_each_broken_promise_is_reported(records: list[Record]) -> None:
    assert len(broken(found_in(records), ONE_OUTAGE)) == 1


def test_a_rule_that_was_not_counted_in_each_worker_is_reported() -> None:
    counted = Allowance(local=(LOCAL.name, DEFAULT.name))
    hits = [hit(101 + number / 1_000, "default", degraded=True) for number in range(DEFAULT.limit // 2 + 1)]
    assert broken(found_in(hits, ONE_OUTAGE), ONE_OUTAGE) == []
    assert broken(found_in(hits[1:], counted), counted) == []
    assert broken(found_in(hits, counted), counted) == ["A worker admitted 1 by itself in a window beyond its part"]


def test_a_decision_without_redis_outside_the_fault_is_reported() -> None:
    spared = Allowance(spared=[ALLOW.name])
    assert broken(found_in([hit(101, "allow", degraded=True)], spared), spared) == [
        "1 that the fault does not touch were decided without Redis: ConnectionError: cut"
    ]
    assert broken(found_in([hit(101, "local", degraded=True)], spared), spared) == []


def pairs(number: int) -> list[Record]:
    return [hit(90 + at, PAIR.name) for at in range(number)]


@pytest.mark.parametrize(
    ("used", "allowance", "is_right"),
    [
        (5, ONE_OUTAGE, True),
        (6, ONE_OUTAGE, True),  # an answer got lost
        (4, ONE_OUTAGE, False),  # what was admitted is not counted
        (4, Allowance(losses=1), True),
        (None, ONE_OUTAGE, False),
        (5, Allowance(gives_back=True), True),
        (6, Allowance(gives_back=True), False),
    ],
)
def test_what_is_counted_is_what_was_admitted(used: int | None, allowance: Allowance, is_right: bool) -> None:
    found = found_in(pairs(5), allowance, used=used)
    assert bool(broken(found, allowance)) != is_right


@pytest.mark.parametrize("is_degraded", [True, False], ids=["decided without Redis", "refused"])
def test_a_plan_whose_answer_the_machine_kept_back_may_have_left_something_behind(is_degraded: bool) -> None:
    late = Record(PAIR.name, 101.0, 101.3, False, is_degraded, "")
    busy = [Stall(101.25, 0.2)]
    both = [account([*pairs(5), late], CUT, stalls=busy, used=6), account([], CUT, used=6)]
    giving = Allowance(gives_back=True)
    assert broken(figures(both, TIMES, giving), giving) == []
    assert broken(figures([replace(both[0], stalls=[]), both[1]], TIMES, giving), giving) == ["Plans left 1 behind"]


def test_more_words_than_one_each_way_are_too_many() -> None:
    def said(lines: list[str], *losses: Loss) -> list[str]:
        return told_too_often(
            figures([account([], CUT), account([], *losses, logged=lines)], TIMES, ONE_OUTAGE), ONE_OUTAGE
        )

    assert said([GONE, BACK], CUT) == []
    assert said([GONE, KEPT, BACK], CUT) == []
    assert said([])
    assert said([GONE, GONE, BACK, BACK], CUT, CUT)
    assert said([GONE, GONE, BACK, BACK], CUT)
    assert said([GONE, KEPT, KEPT, BACK], CUT)
    assert said([GONE], CUT)


def told_late(stalls: list[Stall], *servers: list[Stall], waited: float = TIMEOUT) -> bool:
    """Say whether a second loss, by a time-out, is one too many."""
    late = Record("allow", LATE.at - waited, LATE.at + 0.01, True, True, "")
    both = [account([late], CUT, LATE, stalls=stalls), account([], CUT)]
    return bool(told_too_often(figures(both, TIMES, ONE_OUTAGE, servers), ONE_OUTAGE))


def test_a_timeout_is_excused_when_the_machine_took_half_of_its_time() -> None:
    half, quarter = Stall(LATE.at, TIMEOUT / 2), Stall(LATE.at - 0.1, TIMEOUT / 4)
    assert told_late([])
    assert not told_late([half])
    assert not told_late([], [half])
    assert not told_late([], [], [half])
    assert not told_late([quarter], [quarter])
    assert told_late([quarter], [])
    assert told_late([], [quarter], [quarter]), "only one of them was asked"
    assert told_late([Stall(LATE.at - TIMEOUT, 5.0)]), "it was over before"
    assert not told_late([Stall(LATE.at - TIMEOUT, 5.0)], waited=2 * TIMEOUT)
    assert told_late([Stall(LATE.at + 5.0, 5.0)]), "it came later"


def test_what_belongs_to_an_outage_that_is_excused_is_excused_too() -> None:
    after = hit(LATE.at + 0.5, "allow", degraded=True)
    busy = [Stall(LATE.at, TIMEOUT)]

    def spoiled(*losses: Loss) -> int:
        return figures([account([after], *losses, stalls=busy), account([])], TIMES, UNTOUCHED).spoiled

    assert (spoiled(LATE), spoiled(CUT), spoiled(LATE, Loss(LATE.at + 0.4, "ConnectionError: cut"))) == (0, 1, 1)
    breaker = Loss(LATE.at + 0.4, "127.0.0.1:7000 has not answered several times in a row")
    assert (spoiled(LATE, breaker), spoiled(breaker)) == (0, 1)


def test_an_outage_that_need_not_be_noticed_may_be_and_not_more_often() -> None:
    perhaps = Allowance(outages=(0, 1))
    for losses, is_right in (([], True), ([CUT], True), ([CUT, CUT], False)):
        both = figures([account([], *losses), account([], *losses)], TIMES, perhaps)
        assert bool(told_too_often(both, perhaps)) != is_right
