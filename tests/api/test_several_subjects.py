"""Several rules, subjects and costs in one call: all of them count, or none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.contrib.auth.models import User

from django_quota import (
    Rule,
    acheck_all,
    areserve_all,
    check,
    check_all,
    peek,
    reserve_all,
    reset,
)
from django_quota.exceptions import QuotaExceeded, RuleError
from django_quota.testing import freeze
from tests.support.calls import calls_of, get
from tests.support.counts import checks_of
from tests.support.outages import no_answer
from tests.support.steps import ALGORITHMS, SECOND, START

USER, ORG = "user:42", "org:7"
RULES = {"rpm": "3/m", "tpm": "1000/m", "org-tpm": "1500/m"}
ENTRIES: list[Any] = [("rpm", USER), ("tpm", USER, 900), ("org-tpm", ORG, 900)]


@pytest.fixture(autouse=True)
def stores(either_store: None, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": RULES}


def left(*places: tuple[str, str]) -> list[int | None]:
    return [
        peek(rule, subject).remaining for rule, subject in places or (("rpm", USER), ("tpm", USER), ("org-tpm", ORG))
    ]


class TestCheckAll:
    def test_all_entries_count_in_one_call_of_the_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with freeze(START):
            left()
            calls = calls_of(monkeypatch)
            decision = check_all(ENTRIES)
            assert len(calls) == 1
            assert [(each.rule, each.subject, each.cost, each.remaining) for each in decision.outcomes] == [
                ("rpm", USER, 1, 2),
                ("tpm", USER, 900, 100),
                ("org-tpm", ORG, 900, 600),
            ]
            assert decision.rule == "tpm"
            assert left() == [2, 100, 600]

    @pytest.mark.parametrize("is_async", [False, True])
    def test_if_one_refuses_none_counts(self, is_async: bool) -> None:
        with freeze(START):
            check("org-tpm", ORG, 1_000)
            decision = asyncio.run(acheck_all(ENTRIES)) if is_async else check_all(ENTRIES)
            assert not decision
            assert (decision.rule, decision.subject) == ("org-tpm", ORG)
            assert left() == [3, 1_000, 500]

    def test_rates_rules_users_and_requests_are_entries_too(self) -> None:
        rule = Rule.make("per-key", "9/m", key="header:X-Key")
        user = User(pk=5)
        decision = check_all([("7/h", user), ("7/h", "ip:192.0.2.9"), (rule, get(HTTP_X_KEY="k"), 4)])
        assert [outcome.subject.partition(":")[0] for outcome in decision.outcomes] == ["user", "ip", "header.x-key"]
        assert [outcome.remaining for outcome in decision.outcomes] == [6, 6, 5]

    @pytest.mark.parametrize(
        ("entries", "message"),
        [
            ([], "There is no entry. Use, for example, "),
            ("rpm", "'rpm' is not a list of entries"),
            ([("rpm", USER), "tpm"], "'tpm' is not .rule, subject. or .rule, subject, cost."),
            ([("rpm", USER, 1, 2)], "is not .rule, subject."),
            (
                [("tpm", USER, 1), ("rpm", USER), ("tpm", USER, 2)],
                "Rule 'tpm' is listed twice for user:42. Give it once",
            ),
            ([("tpm", USER), ("tpm", USER)], "listed twice"),
            ([("tpm", USER, -1)], "-1"),
            ([("tpmm", USER)], "Did you mean 'tpm'"),
        ],
    )
    def test_wrong_entries_are_named(self, entries: Any, message: str) -> None:
        with pytest.raises(RuleError, match=message):
            check_all(entries)
        with pytest.raises(RuleError, match=message):
            reserve_all(entries)


class TestReserveAll:
    @pytest.mark.parametrize("actual", [[1, 640, 640], (1, 640, 640), {"tpm": 640, "org-tpm": 640}])
    def test_each_entry_is_settled_with_its_own_cost_in_one_call(
        self, actual: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with freeze(START):
            left()
            calls = calls_of(monkeypatch)
            with reserve_all(ENTRIES) as hold:
                assert hold.costs == (1, 900, 900)
                assert hold.is_open
                decision = hold.settle(actual)
            assert len(calls) == 2
            assert [outcome.remaining for outcome in decision.outcomes] == [2, 360, 860]
            assert left() == [2, 360, 860]

    def test_one_number_settles_all_entries_and_none_gives_all_back(self) -> None:
        with freeze(START):
            reserve_all(ENTRIES).settle(2)
            assert left() == [1, 998, 1_498]
            with pytest.raises(ZeroDivisionError), reserve_all(ENTRIES):
                raise ZeroDivisionError
            assert left() == [1, 998, 1_498]
            with reserve_all(ENTRIES):
                pass
            assert left() == [0, 98, 598]

    def test_if_one_entry_has_no_room_nothing_is_reserved(self) -> None:
        with freeze(START):
            check("org-tpm", ORG, 1_000)
            with pytest.raises(QuotaExceeded) as caught:
                reserve_all(ENTRIES)
            assert caught.value.decision.rule == "org-tpm"
            assert left() == [3, 1_000, 500]
        with freeze(START + 61 * SECOND):  # nothing comes back that was never taken
            assert left() == [3, 1_000, 1_500]

    def test_async_it_is_the_same(self) -> None:
        async def work() -> None:
            async with areserve_all(ENTRIES) as hold:
                await hold.asettle([1, 5, 6])
            hold = await areserve_all(ENTRIES)
            await hold.acancel()

        with freeze(START):
            asyncio.run(work())
            assert left() == [2, 995, 1_494]

    @pytest.mark.parametrize(
        ("actual", "message"),
        [
            ([1, 2], r"\[1, 2\] has 2 numbers, but the reservation has 3 entries"),
            ({"tmp": 3}, "Rule 'tmp' is not in the reservation. Did you mean 'tpm'"),
            ({"words": 3}, r"Rule 'words' is not in the reservation\. Known: org-tpm, rpm, tpm"),
            ({"tpm": -3}, "-3"),
            (1.5, "1.5"),
            ([1, "2", 3], "'2'"),
        ],
    )
    def test_a_wrong_real_cost_is_named_and_the_reservation_stays_open(self, actual: Any, message: str) -> None:
        hold = reserve_all(ENTRIES)
        with pytest.raises(RuleError, match=message):
            hold.settle(actual)
        assert hold.is_open

    def test_a_rule_of_two_subjects_is_settled_by_a_list(self) -> None:
        hold = reserve_all([("tpm", USER, 10), ("tpm", ORG, 10)])
        with pytest.raises(RuleError, match=r"Rule 'tpm' has several entries. Use a list of 2 numbers"):
            hold.settle({"tpm": 5})
        hold.settle([5, 6])
        assert left(("tpm", USER), ("tpm", ORG)) == [995, 994]

    def test_an_entry_that_nothing_limits_takes_part(self) -> None:
        hold = reserve_all([(Rule.make("free", None), USER), ("tpm", USER, 10)])
        hold.settle([7, 8])
        assert left(("tpm", USER)) == [992]

    def test_a_shadow_rule_that_refuses_is_not_charged(self) -> None:
        shadow = Rule.make("shadow", "5/m", shadow=True)
        with freeze(START):
            check(shadow, USER, 5)
            hold = reserve_all([(shadow, USER, 3), ("tpm", USER, 10)])
            hold.settle([3, 4])
            assert left(("tpm", USER)) == [996]
            hold = reserve_all([(shadow, USER, 3), ("tpm", USER, 10)], ttl=1)
        with freeze(START + 2 * SECOND):
            assert hold.settle([3, 4]).late
            assert peek(shadow, USER).remaining == 0
            assert left(("tpm", USER)) == [992]

    def test_after_the_ttl_everything_comes_back_and_settling_is_late(self) -> None:
        with freeze(START):
            hold = reserve_all(ENTRIES, ttl=5)
        with freeze(START + 6 * SECOND):
            assert left() == [3, 1_000, 1_500]
            decision = hold.settle([1, 700, 800])
            assert decision.late
            assert left() == [2, 300, 700]

    def test_without_the_store_it_says_so(self) -> None:
        hold = reserve_all(ENTRIES)
        with no_answer():
            assert not hold.renew()
            assert hold.is_open
            assert hold.settle([1, 2, 3]).degraded
            assert not reserve_all(ENTRIES).is_open


class TestRenewing:
    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_a_reservation_lasts_from_the_renewal_on(self, algorithm: Any) -> None:
        rule = Rule.make("rule", "1000/d", algorithm=algorithm)
        with freeze(START):
            hold = reserve_all([(rule, USER, 600), (rule, ORG, 600)], ttl=30)
        with freeze(START + 20 * SECOND):
            assert hold.renew()
        with freeze(START + 49 * SECOND):
            used = 1_000 - (peek(rule, USER).remaining or 0)
            assert 590 <= used <= 600  # a bucket has leaked a little
            assert asyncio.run(hold.arenew(100))
        with freeze(START + 148 * SECOND):
            assert not hold.settle([100, 200]).late
            assert (peek(rule, USER).remaining, peek(rule, ORG).remaining) >= (900, 800)

    def test_it_never_ends_earlier_than_before(self) -> None:
        with freeze(START):
            hold = reserve_all(ENTRIES, ttl=60)
            assert hold.renew(1)
        with freeze(START + 59 * SECOND):
            assert not hold.settle(1).late

    def test_one_that_has_come_back_is_not_renewed(self) -> None:
        with freeze(START):
            hold = reserve_all(ENTRIES, ttl=5)
        with freeze(START + 5 * SECOND):
            assert not hold.renew()
            assert left() == [3, 1_000, 1_500]
            assert hold.settle([1, 2, 3]).late
            assert not hold.renew()

    def test_a_renewal_whose_reply_is_lost_still_counts(self) -> None:
        with freeze(START):
            hold = reserve_all(ENTRIES, ttl=5)
            with no_answer(done=True):
                assert not hold.renew(60)
        with freeze(START + 10 * SECOND):
            assert not hold.settle([1, 2, 3]).late
            assert left() == [2, 998, 1_497]

    def test_a_reset_forgets_a_renewed_reservation_too(self) -> None:
        with freeze(START):
            hold = reserve_all(ENTRIES, ttl=5)
            assert hold.renew(60)
        with freeze(START + 10 * SECOND):
            reset("tpm", USER)
            assert not hold.settle([1, 2, 3]).late
            assert left() == [2, 1_000, 1_497]

    def test_a_wrong_ttl_is_named(self) -> None:
        with pytest.raises(RuleError, match="ttl=0"):
            reserve_all(ENTRIES).renew(0)


def test_the_day_counts_a_reservation_once_and_none_that_is_refused() -> None:
    with freeze(START):
        reserve_all([("tpm", "user:1", 900), ("org-tpm", "user:2", 900)])
        with pytest.raises(QuotaExceeded):
            reserve_all([("rpm", "user:1"), ("org-tpm", "user:2", 900)])
        for subject, rule in (("user:1", "tpm"), ("user:2", "org-tpm")):
            assert {name: allowed for name, (allowed, _) in checks_of(subject).items() if allowed} == {rule: 1}
