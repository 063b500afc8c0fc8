"""What a counter holds, as the specification has it: which units are used first, which go back, and which are lost."""

from typing import Any

import pytest

from django_quota.core.algorithms.stock import (
    MAX_INT64,
    MIN_INT64,
    STOCK,
    Credit,
    Drawn,
    Held,
    StockLimit,
    Total,
    drawn_text,
    read_drawn,
    unused,
)

SOON, LATE = Credit(50, 3, 5, "a"), Credit(60, 2, 2, "b")
HELD = Total(10, 99, (SOON, LATE))
"""Ten units, of which three expire soon, two expire late, and five never."""


def left(total: Total) -> tuple[int, list[int]]:
    """Return what a total holds, and what is left of each grant."""
    return total.units, [credit.left for credit in total.credits]


@pytest.mark.parametrize(
    ("units", "back"),
    [
        (0, []), (2, []), (3, []), (5, [Drawn(20, 2, "b")]), (7, [Drawn(20, 4, "b")]),
        (8, [Drawn(20, 4, "b"), Drawn(10, 1, "a")]), (10, [Drawn(20, 4, "b"), Drawn(10, 3, "a")]),
    ],
)  # fmt: skip
def test_of_a_hit_what_never_expires_goes_back_first(units: int, back: list[Drawn]) -> None:
    """The hit took ten units: three of one grant, four of a later one, and three that never expire."""
    assert unused([Drawn(10, 3, "a"), Drawn(20, 4, "b")], units, 10) == back


@pytest.mark.parametrize(
    ("drawn", "text"), [([], ""), ([Drawn(10, 3)], "10-3"), ([Drawn(10, 3), Drawn(20, 4)], "10-3;20-4")]
)
def test_what_was_taken_of_grants_is_read_back(drawn: list[Drawn], text: str) -> None:
    assert (drawn_text(drawn), read_drawn(text)) == (text, drawn)


def test_a_grant_is_read_back_from_its_member() -> None:
    assert (SOON.member, Credit.read(SOON.member)) == ("3:5:50:a", SOON)


@pytest.mark.parametrize(
    ("units", "now", "found"),
    [
        pytest.param(10, 49, (10, [3, 2]), id="none has expired"),
        pytest.param(10, 50, (7, [2]), id="one has expired"),
        pytest.param(10, 60, (5, []), id="both have expired"),
        pytest.param(4, 49, (4, [2, 2]), id="fewer than were granted"),
        pytest.param(4, 50, (2, [2]), id="fewer when one has expired"),
        pytest.param(0, 49, (0, [0, 0]), id="nothing"),
        pytest.param(-2, 49, (-2, [0, 0]), id="units are owed"),
        pytest.param(-2, 50, (-2, [0]), id="units are owed when one has expired"),
    ],
)
def test_what_expires_of_a_total_is_lost_when_it_does(units: int, now: int, found: Any) -> None:
    kept = {LATE.member: 60, SOON.member: 50}  # in no order

    assert left(Total.read(units, 99, kept, now)) == found


def test_a_total_without_grants_holds_what_it_is() -> None:
    assert Total.read(10, 99, {}, 50) == Total(10, 99, ())


@pytest.mark.parametrize(
    ("units", "found"),
    [(0, (10, [3, 2])), (2, (8, [1, 2])), (3, (7, [0, 2])), (4, (6, [0, 1])), (7, (3, [0, 0])), (12, (-2, [0, 0]))],
)
def test_what_expires_first_is_spent_first(units: int, found: Any) -> None:
    assert left(HELD.spent(units)) == found


@pytest.mark.parametrize(
    ("units", "drawn"),
    [
        (0, []), (2, [Drawn(50, 2, "a")]), (4, [Drawn(50, 3, "a"), Drawn(60, 1, "b")]),
        (9, [Drawn(50, 3, "a"), Drawn(60, 2, "b")]),
    ],
)  # fmt: skip
def test_what_was_spent_of_grants_is_reported(units: int, drawn: list[Drawn]) -> None:
    assert HELD.spent(units).drawn_since(HELD) == drawn


def test_a_grant_of_which_nothing_was_spent_is_left_out() -> None:
    late = HELD._replace(credits=(SOON._replace(left=0), LATE))

    assert late.spent(1).drawn_since(late) == [Drawn(60, 1, "b")]


@pytest.mark.parametrize(
    ("units", "drawn", "found"),
    [
        pytest.param(4, [], (14, [3, 2]), id="of no grant"),
        pytest.param(4, [Drawn(50, 1)], (14, [4, 2]), id="of a grant"),
        pytest.param(4, [Drawn(40, 1)], (13, [3, 2]), id="of one that has expired"),
        pytest.param(4, [Drawn(40, 1), Drawn(60, 3)], (13, [3, 5]), id="of one that has expired with another"),
        pytest.param(4, [Drawn(55, 4, "c")], (14, [3, 4, 2]), id="of one that is forgotten"),
        pytest.param(4, [Drawn(45, 4)], (10, [3, 2]), id="of one that expires now"),
    ],
)
def test_units_go_back_to_the_grants_that_have_not_expired(units: int, drawn: list[Drawn], found: Any) -> None:
    assert left(HELD.credited(units, drawn, 45)) == found


@pytest.mark.parametrize(("owed", "found"), [(1, (3, [3])), (3, (1, [1])), (6, (-2, [0]))])
def test_what_is_owed_is_paid_of_what_comes_back(owed: int, found: Any) -> None:
    assert left(Total(-owed, 99).credited(4, [Drawn(50, 4)], 45)) == found


@pytest.mark.parametrize(("more", "granted"), [(1, 5), (2, 5), (4, 7)])
def test_a_grant_was_at_least_what_is_left_of_it(more: int, granted: int) -> None:
    assert HELD.credited(more, [Drawn(50, more)], 45).credits[0].granted == granted


def test_a_forgotten_grant_comes_back_with_its_id() -> None:
    assert Total(0, 99).credited(4, [Drawn(50, 4, "c")], 45).credits == (Credit(50, 4, 4, "c"),)


def of_grants(used_up: int, usable: int) -> Total:
    """Return a total with so many grants that are used up, and so many that are not."""
    kept = [Credit(number, int(number >= used_up), 1, "") for number in range(used_up + usable)]
    return Total(usable, 99, tuple(kept))


@pytest.mark.parametrize(
    ("used_up", "usable", "more", "kept"),
    [
        (50, 49, 1, 99),
        (50, 50, 1, 50),
        (99, 0, 1, 99),
        (100, 0, 1, 0),
        (0, 999, 1, 999),
        (5, 999, 1, 999),
        (100, 0, 0, 100),
    ],
)
def test_a_total_forgets_grants_that_are_used_up_above_a_hundred(
    used_up: int, usable: int, more: int, kept: int
) -> None:
    found = of_grants(used_up, usable).with_room(more)

    assert found is not None
    assert len(found.credits) == kept


@pytest.mark.parametrize(("usable", "more"), [(1_000, 1), (999, 2), (0, 1_001)])
def test_a_total_has_room_for_a_thousand_grants(usable: int, more: int) -> None:
    assert of_grants(5, usable).with_room(more) is None


@pytest.mark.parametrize(
    ("units", "fits"), [(MAX_INT64, True), (MAX_INT64 + 1, False), (MIN_INT64, True), (MIN_INT64 - 1, False)]
)
def test_a_total_fits_into_64_bits(units: int, fits: bool) -> None:
    assert Total(units, 0).fits is fits


P = StockLimit("credits", ttl=30).parameters(0)


def test_a_change_keeps_a_counter_alive_from_then_on() -> None:
    after, _ = STOCK.consume(HELD, P, 4, 45)

    assert STOCK.expiry(after) == 45 + 30


@pytest.mark.parametrize("state", [Total(MIN_INT64, 99), Total(MAX_INT64, 99)], ids=["the lowest", "the highest"])
def test_a_change_that_would_not_fit_leaves_a_counter_as_it_was(state: Total) -> None:
    after = STOCK.consume(state, P, 1, 45)[0] if state.units < 0 else STOCK.refund(state, P, 1, 45)

    assert after is state


@pytest.mark.parametrize(("cost", "allowed", "wait"), [(10, True, 0), (11, False, -1), (0, True, 0)])
def test_a_counter_admits_what_it_holds(cost: int, allowed: bool, wait: int) -> None:
    assert STOCK.peek(HELD, P, cost, 45) == (allowed, 10, wait, 0, -1)


@pytest.mark.parametrize(("cost", "allowed"), [(0, True), (1, False)])
def test_a_counter_that_holds_nothing_admits_only_a_hit_that_costs_nothing(cost: int, allowed: bool) -> None:
    assert STOCK.peek(None, P, cost, 45).allowed is allowed


def test_a_counter_that_owes_admits_nothing() -> None:
    assert not STOCK.peek(Total(-1, 99), P, 0, 45).allowed


def test_a_hit_is_counted_though_a_counter_holds_less() -> None:
    after, verdict = STOCK.consume(HELD, P, 12, 45, over=True)

    assert (left(after), verdict) == ((-2, [0, 0]), (True, -2, 0, 0, -1))


def test_units_go_back_to_a_counter_that_held_nothing() -> None:
    assert STOCK.refund(None, P, 3, 45) == Total(3, 75)


def test_a_hit_is_counted_by_a_counter_that_held_nothing() -> None:
    after, _ = STOCK.consume(None, P, 3, 45, over=True)

    assert after == Total(-3, 75)


def test_what_a_counter_holds_has_the_attributes_of_a_limit() -> None:
    held = Held("credits", 120)

    assert (held.rule, held.capacity, held.algorithm_name, held.unit, held.window) == (
        "credits", 120, "stock", "units", None,
    )  # fmt: skip
    assert (held.rate.count, held.rate.window, held.rate.in_words()) == (120, "left", "120 left")


def test_the_limit_of_a_counter_is_sent_with_its_times() -> None:
    limit = StockLimit("credits", ttl=30, lease=7)

    assert limit.encoded == ("stock", "1000000000000000", "30", "7")
    assert limit.parameters(0) == limit.timeless_parameters == (10**15, 30, 7, 0, "", 0)


@pytest.mark.parametrize(("units", "words"), [(1, "1 left"), (1_200, "1,200 left")])
def test_what_a_counter_holds_is_shown_where_a_limit_has_its_rate(units: int, words: str) -> None:
    assert str(Held("credits", units).rate) == words
