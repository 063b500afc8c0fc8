"""Several rules, subjects and costs in one call: all of them count, or none."""

import asyncio
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from django.contrib.auth.models import User

from django_quota import Entry, Rule, acheck_all, apeek_all, areserve_all, check, check_all, peek, peek_all, reserve_all
from django_quota.exceptions import QuotaExceeded, RuleError
from django_quota.testing import freeze
from tests.support.calls import both_ways, called, calls_of, get
from tests.support.counts import checks_of
from tests.support.outages import no_answer
from tests.support.steps import SECOND, START

USER, ORG = "user:42", "org:7"
RULES = {"rpm": "3/m", "tpm": "1000/m", "org-tpm": "1500/m"}
ENTRIES: list[Any] = [("rpm", USER), ("tpm", USER, 900), ("org-tpm", ORG, 900)]


@pytest.fixture(autouse=True)
def stores(memory_store: None, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": RULES}


def left(*places: tuple[str, str]) -> list[int | None]:
    return [
        peek(rule, subject).remaining for rule, subject in places or (("rpm", USER), ("tpm", USER), ("org-tpm", ORG))
    ]


def run(verb: Any, is_async: bool, *given: Any) -> Any:
    """Call `check_all` or `peek_all`, or its async twin."""
    twins = {check_all: acheck_all, peek_all: apeek_all}
    return called(is_async, verb, twins[verb], *given)


@pytest.mark.usefixtures("at_one_time")
class TestCheckAll:
    @both_ways
    def test_each_entry_counts_its_cost(self, is_async: bool) -> None:
        decision = run(check_all, is_async, ENTRIES)

        assert [(each.rule, each.subject, each.cost, each.remaining) for each in decision.outcomes] == [
            ("rpm", USER, 1, 2),
            ("tpm", USER, 900, 100),
            ("org-tpm", ORG, 900, 600),
        ]
        assert left() == [2, 100, 600]

    @both_ways
    def test_all_entries_are_one_call_of_the_store(self, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        left()
        calls = calls_of(monkeypatch)

        run(check_all, is_async, ENTRIES)

        assert len(calls) == 1

    def test_the_decision_is_that_of_the_limit_that_is_nearest(self) -> None:
        assert check_all(ENTRIES).rule == "tpm"

    @pytest.mark.parametrize(
        ("entry", "kind", "remaining"),
        [
            pytest.param(("7/h", User(pk=5)), "user", 6, id="a rate, a user"),
            pytest.param(("7/h", "ip:192.0.2.9"), "ip", 6, id="a rate, an address"),
            pytest.param(
                (Rule.make("per-key", "9/m", key="header:X-Key"), get(HTTP_X_KEY="k"), 4),
                "header.x-key",
                5,
                id="a rule, a request, a cost",
            ),
        ],
    )
    def test_an_entry_may_be(self, entry: Any, kind: str, remaining: int) -> None:
        (outcome,) = check_all([entry]).outcomes

        assert (outcome.subject.partition(":")[0], outcome.remaining) == (kind, remaining)


def test_a_thousand_entries_are_decided_together() -> None:
    entries = [("1/m", f"user:{number}") for number in range(1_000)]

    assert len(check_all(entries).outcomes) == 1_000
    assert not any(outcome.allowed for outcome in check_all(entries).outcomes)


class TestRefusal:
    """Of the last entry, which has 500 left of the 900 that are asked for."""

    LEFT: ClassVar = [3, 1_000, 500]

    @pytest.fixture(autouse=True)
    def nearly_used_up(self, stores: None) -> Iterator[None]:
        with freeze(START):
            check("org-tpm", ORG, 1_000)
            yield

    @both_ways
    def test_it_names_what_refused(self, is_async: bool) -> None:
        decision = run(check_all, is_async, ENTRIES)

        assert (decision.allowed, decision.rule, decision.subject) == (False, "org-tpm", ORG)

    @both_ways
    def test_no_entry_counts(self, is_async: bool) -> None:
        run(check_all, is_async, ENTRIES)

        assert left() == self.LEFT

    def test_a_reservation_is_an_error(self) -> None:
        with pytest.raises(QuotaExceeded, match="org-tpm"):
            reserve_all(ENTRIES)

        assert left() == self.LEFT

    def test_nothing_comes_back_that_was_never_taken(self) -> None:
        check_all(ENTRIES)

        with freeze(START + 61 * SECOND):
            assert left() == [3, 1_000, 1_500]

    @both_ways
    @pytest.mark.parametrize(
        ("cost", "is_allowed"), [(900, False), (500, True)], ids=["of too much", "of what there is"]
    )
    def test_a_look_answers_without_counting(self, cost: int, is_allowed: bool, is_async: bool) -> None:
        decision = run(peek_all, is_async, [*ENTRIES[:2], ("org-tpm", ORG, cost)])

        assert (decision.allowed, decision.rule) == (is_allowed, "org-tpm")
        assert [each.remaining for each in decision.outcomes] == left() == self.LEFT

    @both_ways
    def test_a_look_is_one_call_of_the_store(self, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = calls_of(monkeypatch)

        run(peek_all, is_async, ENTRIES)

        assert len(calls) == 1

    def test_a_shadow_rule_takes_nothing(self) -> None:
        shadow, closed = Rule.make("watched", "5/m", shadow=True), Rule.make("closed", "0/m")

        assert not check_all([(shadow, USER), (closed, USER)])

        assert peek(shadow, USER).remaining == 5


@pytest.mark.parametrize("verb", [check_all, peek_all, reserve_all])
@pytest.mark.parametrize(
    ("entries", "message"),
    [
        pytest.param([], "There are no entries. Use, for example, ", id="no entries"),
        pytest.param("rpm", "'rpm' is not a list of entries", id="a string"),
        pytest.param(5, "5 is not a list of entries. Use, for example, ", id="a number"),
        pytest.param({("rpm", USER): 1}, "is not a list of entries. Use, for example, ", id="a mapping"),
        pytest.param(
            [("rpm", USER), "tpm"],
            "'tpm' is not .rule, subject., .rule, subject, cost. or an Entry",
            id="a string as an entry",
        ),
        pytest.param([("rpm", USER, 1, "team")], "or an Entry, which may also name a tier", id="a tuple with a tier"),
        pytest.param([Entry("rpm", USER, 1, "team")], "Rule 'rpm' has no tier 'team'", id="an unknown tier"),
        pytest.param(
            [("tpm", USER, 1), ("rpm", USER), ("tpm", USER, 2)],
            "Rule 'tpm' is listed twice for user:42. Give it on",
            id="a rule twice",
        ),
        pytest.param([("tpm", USER, -1)], "-1", id="a cost below 0"),
        pytest.param([("tpmm", USER)], "Did you mean 'tpm'", id="a misspelled rule"),
        pytest.param(
            [("rpm", f"user:{number}") for number in range(1_001)],
            "more than 1,000 entries. Split them",
            id="too many entries",
        ),
    ],
)
def test_wrong_entries_are_an_error(verb: Any, entries: Any, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        verb(entries)


@pytest.mark.usefixtures("at_one_time")
class TestReserveAll:
    TWO: ClassVar[list[Any]] = [("tpm", USER, 300), ("org-tpm", ORG, 300)]

    def test_a_reservation_has_the_cost_of_each_entry(self) -> None:
        with reserve_all(ENTRIES) as reservation:
            assert reservation.costs == (1, 900, 900)
            assert reservation.is_open

    @pytest.mark.parametrize(
        ("actual", "remaining"),
        [
            pytest.param([1, 640, 640], [2, 360, 860], id="by a list"),
            pytest.param({"tpm": 640, "org-tpm": 640}, [2, 360, 860], id="by the names of rules"),
            pytest.param({"org-tpm": 640}, [2, 100, 860], id="of one rule"),
        ],
    )
    def test_each_entry_is_settled_with_its_own_cost(self, actual: Any, remaining: list[int]) -> None:
        with reserve_all(ENTRIES) as reservation:
            decision = reservation.settle(actual)

        assert [outcome.remaining for outcome in decision.outcomes] == left() == remaining

    def test_without_a_real_cost_the_estimate_stays_spent(self) -> None:
        with reserve_all(ENTRIES):
            pass

        assert left() == [2, 100, 600]

    def test_async_each_entry_is_settled_with_its_own_cost(self) -> None:
        async def work() -> None:
            async with areserve_all(ENTRIES) as reservation:
                await reservation.asettle([1, 5, 6])

        asyncio.run(work())

        assert left() == [2, 995, 1_494]

    def test_async_a_reservation_can_be_cancelled(self) -> None:
        async def work() -> None:
            reservation = await areserve_all(ENTRIES)
            await reservation.acancel()

        asyncio.run(work())

        assert left() == [3, 1_000, 1_500]

    def test_a_shadow_rule_that_refuses_is_not_charged(self) -> None:
        shadow = Rule.make("shadow", "5/m", shadow=True)
        check(shadow, USER, 5)

        reserve_all([(shadow, USER, 3), ("tpm", USER, 10)]).settle([3, 4])

        assert left(("tpm", USER)) == [996]
        assert peek(shadow, USER).remaining == 0

    def test_without_the_store_a_settlement_is_degraded(self) -> None:
        reservation = reserve_all(ENTRIES)

        with no_answer():
            assert reservation.settle([1, 2, 3]).degraded

    def test_the_day_counts_a_reservation_once(self) -> None:
        reserve_all([("tpm", "user:1", 900), ("org-tpm", "user:2", 900)])

        assert [checks_of(subject) for subject in ("user:1", "user:2")] == [{"tpm": (1, 0)}, {"org-tpm": (1, 0)}]

    def test_the_day_counts_no_reservation_that_is_refused(self) -> None:
        with pytest.raises(QuotaExceeded):
            reserve_all([("rpm", "user:1"), ("org-tpm", "user:2", 1_600)])

        assert checks_of("user:2") == {"org-tpm": (0, 1)}

    def test_one_number_settles_entries_of_one_estimate(self) -> None:
        reserve_all(self.TWO).settle(10)

        assert left() == [3, 990, 1_490]

    def test_a_reservation_is_settled_in_one_call_of_the_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reservation = reserve_all(ENTRIES)
        calls = calls_of(monkeypatch)

        reservation.settle([1, 640, 640])

        assert len(calls) == 1

    def test_a_reservation_is_one_call_of_the_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        left()
        calls = calls_of(monkeypatch)

        reserve_all(ENTRIES)

        assert len(calls) == 1

    def test_an_error_gives_the_estimate_back(self) -> None:
        with pytest.raises(ZeroDivisionError), reserve_all([("tpm", USER, 90)]):
            raise ZeroDivisionError

        assert left() == [3, 1_000, 1_500]

    @pytest.mark.parametrize(
        ("actual", "message"),
        [
            pytest.param(
                [1, 2], r"\[1, 2\] has 2 numbers, but the reservation has 3 entries", id="a list that is too short"
            ),
            pytest.param(
                {"tmp": 3}, "names 'tmp', which is not in the reservation. Did you mean 'tpm'", id="a misspelled rule"
            ),
            pytest.param({7: 3}, "names 7, which is not in the reservation. Known:", id="a number in place of a name"),
            pytest.param({"tpm": -3}, "-3", id="a cost below 0"),
            pytest.param(
                640,
                r"got one number, 640, for 3 entries with different estimates, .* settle\({'org-tpm': 640}\)",
                id="one number for different estimates",
            ),
            pytest.param([1, "2", 3], "'2'", id="a string as a number"),
        ],
    )
    def test_a_wrong_real_cost_is_an_error_that_leaves_the_reservation_open(self, actual: Any, message: str) -> None:
        reservation = reserve_all(ENTRIES)

        with pytest.raises(RuleError, match=message):
            reservation.settle(actual)

        assert reservation.is_open

    @pytest.fixture
    def one_rule_twice(self) -> Any:
        """With a third entry, which nothing limits."""
        return reserve_all([("tpm", USER, 10), ("tpm", ORG, 10), (Rule.make("free", None), USER)])

    def test_the_name_of_a_rule_with_several_entries_is_an_error(self, one_rule_twice: Any) -> None:
        with pytest.raises(RuleError, match=r"Rule 'tpm' has several entries. Use a list of 3 numbers"):
            one_rule_twice.settle({"tpm": 5})

    def test_a_list_settles_several_entries_of_one_rule(self, one_rule_twice: Any) -> None:
        one_rule_twice.settle([5, 6, 7])

        assert left(("tpm", USER), ("tpm", ORG)) == [995, 994]
