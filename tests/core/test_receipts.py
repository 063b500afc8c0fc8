"""Receipts of hits, and how they are settled: what is counted together with what was taken later for the same work."""

from collections.abc import Sequence
from typing import Any

import pytest

from django_quota import Rule
from django_quota.core.clock import DAY
from django_quota.core.overrides import Override, OverrideTable
from django_quota.engine.asks import Ask, Place
from django_quota.engine.hits import DayKey
from django_quota.engine.receipts import Receipt, Settlement, Taken
from django_quota.engine.resolving import Scope, hits_of
from tests.support.steps import MINUTE, START

USER = "user:1"
API, MAIL = Rule.make("api", "50/m"), Rule.make("mail", "50/m")
OF_API, OF_MAIL = Place("api", USER), Place("mail", USER)
LIMITS: Any = {"the key of a limit": ("sliding_window", "50")}


def receipt(cost: int, moment: int, *rules: Rule, share: str = "") -> Receipt:
    """Return the receipt of a hit of each rule that took so many units."""
    asks = [Ask(rule, USER, cost) for rule in rules or (API,)]
    return Receipt.new(asks, {ask.place: Taken(moment, LIMITS, share) for ask in asks}, moment)


NOTHING = Receipt.new([Ask(API, USER, 3)], {}, START)


class TestAnExtendedReceipt:
    EXTENDED = receipt(3, START, API, MAIL, share="n1").extended(receipt(4, START + MINUTE, share="n2"))

    def test_it_costs_what_all_its_parts_do(self) -> None:
        assert self.EXTENDED.costs == (7, 3)

    def test_it_can_be_settled_for_a_week_after_its_first_hit(self) -> None:
        assert self.EXTENDED.until == START + 7 * DAY

    def test_none_of_its_hits_is_of_a_share_of_this_process(self) -> None:
        again = self.EXTENDED.extended(receipt(1, START, share="n3"))

        assert {hit.share for part in again.parts for hit in part.taken.values()} == {""}

    def test_it_keeps_its_id(self) -> None:
        first = receipt(3, START)

        assert first.extended(receipt(4, START)).id == first.id

    def test_it_took_something_if_only_the_extension_did(self) -> None:
        assert NOTHING.extended(receipt(4, START)).took_anything

    def test_emptied_it_took_nothing(self) -> None:
        emptied = self.EXTENDED.emptied()

        assert (emptied.took_anything, emptied.until, emptied.id) == (False, 0, self.EXTENDED.id)


def test_a_receipt_of_nothing_cannot_be_settled() -> None:
    assert (NOTHING.took_anything, NOTHING.until) == (False, 0)


def test_the_id_of_a_receipt_is_short() -> None:
    """A reservation that is saved as a string has it."""
    assert len(receipt(1, START).id) == 16


def test_no_two_receipts_have_one_id() -> None:
    assert len({receipt(1, START).id for _ in range(50)}) == 50


@pytest.mark.parametrize("is_refused", [True, False])
def test_undoing_gives_all_units_back(is_refused: bool) -> None:
    settlement = Settlement.undone(receipt(3, START, API, MAIL), is_refused=is_refused)

    assert (settlement.actual, settlement.is_undone) == ({OF_API: 0, OF_MAIL: 0}, is_refused)


@pytest.mark.parametrize(("counters_only", "names"), [(False, ["api"]), (True, [])], ids=["limits", "counters only"])
def test_no_hit_of_a_rule_is_settled_while_limits_are_off(counters_only: bool, names: list[str]) -> None:
    settlement = Settlement.of(receipt(3, START), [2])

    resolved = settlement.resolve(OverrideTable(), START, counters_only=counters_only)

    assert [ask.rule.name for ask in resolved.for_store] == names


def test_each_entry_is_settled_with_its_own_units() -> None:
    settlement = Settlement.of(receipt(3, START, API, MAIL), [2, 5], until=START + MINUTE)

    assert (settlement.actual, settlement.is_undone, settlement.until) == (
        {OF_API: 2, OF_MAIL: 5}, False, START + MINUTE,
    )  # fmt: skip


def test_entries_without_units_of_their_own_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        Settlement.of(receipt(3, START, API, MAIL), [2])


def test_each_entry_has_a_mark_of_its_own() -> None:
    of = receipt(3, START, API, MAIL)
    settlement = Settlement.of(of, [2, 5], until=START + MINUTE)

    marks = [settlement.mark(place, "quota:1:{user:1}:", place.rule) for place in (OF_API, OF_MAIL)]

    assert marks == [
        (f"quota:1:{{user:1}}:settled:{name}:{of.id}:{number}", START + MINUTE)
        for number, name in enumerate(("api", "mail"))
    ]


@pytest.mark.parametrize(
    ("actual", "found"),
    [
        pytest.param(3, [(0, False)], id="as many units"),
        pytest.param(5, [(2, False)], id="more units"),
        pytest.param(1, [(-2, False)], id="fewer units"),
        pytest.param(0, [(-3, True)], id="no units"),
    ],
)
def test_a_hit_that_only_the_day_counted_is_settled_there(actual: int, found: list[tuple[int, bool]]) -> None:
    of_day = receipt(3, START)._replace(taken={OF_API: Taken(START, {})})

    uncounted = Settlement.of(of_day, [actual]).uncounted()

    assert uncounted == [(API, OF_API, START, more, is_undone) for more, is_undone in found]


def test_a_hit_that_a_limit_counted_is_not_settled_by_the_day_alone() -> None:
    assert Settlement.of(receipt(3, START), [1]).uncounted() == []


def test_a_hit_needs_a_key_of_its_own_only_for_another_day_than_that_of_its_first() -> None:
    daily, scope = Rule.make("daily", "50/w", daily=True), Scope("quota")
    same_day, next_day = (receipt(4, moment + MINUTE, daily) for moment in (START, START + DAY))
    settlement = Settlement.of(receipt(3, START, daily).extended(same_day).extended(next_day), [11])
    hits = settlement.at(hits_of([Ask(daily, USER, 3)], scope, START + 2 * DAY), START + 2 * DAY, scope)

    (adjustment,) = settlement.mode(hits, scope).of_hits

    assert adjustment is not None
    assert [hits[0].day, *adjustment.keys] == [
        DayKey.of("quota:1:{user:1}:", START, scope.zone()),
        DayKey.of("quota:1:{user:1}:", START + DAY, scope.zone()).key,
    ]


EXEMPT = OverrideTable([Override(1, USER, "*", "exempt")])
BY_DAY = Receipt.new([Ask(API, USER, 3)], {OF_API: Taken(START, {})}, START)


@pytest.mark.parametrize(
    ("taken", "names"),
    [
        pytest.param(receipt(3, START), ["api"], id="by a limit"),
        pytest.param(BY_DAY, [], id="by the day alone"),
        pytest.param(BY_DAY.extended(receipt(4, START)), ["api"], id="by a limit later"),
        pytest.param(NOTHING, [], id="by nothing"),
    ],
)
def test_the_store_settles_for_an_exempt_subject_what_was_counted(taken: Receipt, names: list[str]) -> None:
    resolved = Settlement.undone(taken, is_refused=False).resolve(EXEMPT, START, counters_only=False)

    assert [ask.rule.name for ask in resolved.for_store] == names


def places(then: Rule, now: Rule, *, is_undone: bool = False) -> Sequence[bool]:
    """Return which limits of a rule give back what it took: `then` and `now` are the rule at both times."""
    before, hits = (hits_of([Ask(each, USER, 3)], Scope("quota"), START) for each in (then, now))
    taken = Taken(START, {limit.key: limit.limit.encoded for limit in before[0].limits})
    settlement = Settlement(
        Receipt.new([Ask(now, USER, 3)], {before[0].place: taken}, START), {before[0].place: 0}, is_undone
    )
    (adjustment,) = settlement.mode(hits, Scope("quota")).of_hits
    assert adjustment is not None
    return adjustment.portions[0].places


COUNTING = Rule.make("r", "5/m; 9/h", count_refused=True)
BUCKET = Rule.make("r", "5/m", algorithm="token_bucket")


@pytest.mark.parametrize(
    ("then", "now", "is_undone", "gives_back"),
    [
        pytest.param(COUNTING, COUNTING, False, [True, True], id="that counts refusals, when it is settled"),
        pytest.param(COUNTING, COUNTING, True, [False, False], id="that counts refusals, when it is refused after all"),
        pytest.param(COUNTING.but(shadow=True), COUNTING.but(shadow=True), True, [True, True], id="of a shadow"),
        pytest.param(
            COUNTING.but(block=False), COUNTING.but(block=False), True, [True, True], id="that does not block"
        ),
        pytest.param(API, API, True, [True], id="that counts no refusals"),
        pytest.param(API, API.but(rates=("9/m",)), False, [True], id="of another rate"),
        pytest.param(API, API.but(rates=("50/m", "900/h")), False, [True, False], id="that was not there"),
        pytest.param(BUCKET, BUCKET, False, [True], id="of a bucket"),
        pytest.param(BUCKET, BUCKET.but(rates=("9/m",)), False, [False], id="of a bucket that refills faster"),
    ],
)
def test_units_go_back_to_a_limit(then: Rule, now: Rule, is_undone: bool, gives_back: list[bool]) -> None:
    assert places(then, now, is_undone=is_undone) == gives_back
