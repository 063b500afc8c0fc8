"""The figures are right: what they would find is put before them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.figures import Allowance, Figures, Times, broken, figures, told_too_often, worst_window
from tests.chaos.records import Account, Record
from tests.chaos.report import BEGIN, END, written_into
from tests.chaos.site import ALLOW, DENY, LOCAL

TIMES = Times(harmed=100.0, well=104.0)
ONCE = Allowance(losses=0, outages=1)


def hit(at: float, policy: str = "deny", *, allowed: bool = True, degraded: bool = False, error: str = "") -> Record:
    return Record(policy, at, at + 0.001, allowed, degraded, error)


def found_in(records: list[Record], allowance: Allowance = ONCE) -> Figures:
    end = [hit(110 + number, allowed=False) for number in range(30)]
    accounts = [Account("sync", [*records, *end], 1, 0, 1, ["", ""]), Account("async", end, 1, 0, 1, ["", "", ""])]
    return figures(accounts, TIMES, allowance)


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
    assert (broken(found, ONCE), told_too_often(found, ONCE)) == ([], [])


def test_one_too_many_is_found() -> None:
    found = found_in([hit(90 + number / 100) for number in range(DENY.limit + 1)])
    assert found.over == 1
    assert broken(found, ONCE) == ["1 were admitted beyond a limit while Redis answered"]


def test_after_a_loss_one_more_limit_may_be_admitted_and_no_more() -> None:
    once = Allowance(losses=1, outages=None)
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
        [hit(150 + number, degraded=True, allowed=False) for number in range(50)],
    ],
    ids=["exception", "deny", "local", "not normal at the end"],
)
def test_each_broken_promise_is_said(records: list[Record]) -> None:
    assert len(broken(found_in(records), ONCE)) == 1


def test_more_words_than_one_each_way_are_too_many() -> None:
    found = found_in([])
    assert told_too_often(found, ONCE) == []
    assert told_too_often(replace(found, lost=[2, 1]), ONCE)
    assert told_too_often(replace(found, lost=[2, 1], back=[2, 1], logged=[4, 2]), ONCE)
    assert not told_too_often(replace(found, lost=[2, 1], slow=[1, 0], back=[2, 1], logged=[4, 2]), ONCE)
    assert told_too_often(replace(found, logged=[2, 4]), ONCE)


def test_times_are_those_from_when_the_server_was_well() -> None:
    found = found_in([hit(104.5, allowed=False), hit(105.0, degraded=True, allowed=False)])
    assert found.first_normal == pytest.approx(0.501)
    assert found.all_normal == pytest.approx(1.001)


def test_an_account_is_read_as_it_was_written(tmp_path: Path) -> None:
    account = Account("sync", [hit(1), hit(2, error="x")], 1, 1, 0, ["gone"])
    account.write(tmp_path / "account")
    assert Account.read(tmp_path / "account") == account


def test_a_table_is_written_between_the_markers_only() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert written_into(page, "new") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    with pytest.raises(ValueError, match="markers"):
        written_into("nothing", "new")
