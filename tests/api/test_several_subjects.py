"""Several rules, subjects and costs in one call: all of them count, or none."""

import asyncio
from typing import Any

import pytest
from django.contrib.auth.models import User

from django_quota import Rule, acheck_all, apeek_all, check, check_all, peek, peek_all, reserve_all
from django_quota.exceptions import QuotaExceeded, RuleError
from django_quota.testing import freeze
from tests.support.calls import calls_of, get
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


class TestCheckAll:
    def test_all_entries_count_in_one_call_of_the_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with freeze(START):
            left()
            calls = calls_of(monkeypatch)
            decision = check_all(ENTRIES)
            assert len(calls) == 1
            assert [(each.rule, each.subject, each.cost, each.remaining) for each in decision.outcomes] == [
                ("rpm", USER, 1, 2), ("tpm", USER, 900, 100), ("org-tpm", ORG, 900, 600),
            ]  # fmt: skip
            assert (decision.rule, left()) == ("tpm", [2, 100, 600])

    @pytest.mark.parametrize("is_async", [False, True])
    def test_if_one_refuses_none_counts_and_a_look_counts_nothing(
        self, is_async: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def do(verb: Any, averb: Any, entries: Any) -> Any:
            return asyncio.run(averb(entries)) if is_async else verb(entries)

        with freeze(START):
            check("org-tpm", ORG, 1_000)
            decision = do(check_all, acheck_all, ENTRIES)
            assert (decision.allowed, decision.rule, decision.subject) == (False, "org-tpm", ORG)
            with pytest.raises(QuotaExceeded, match="org-tpm"):
                reserve_all(ENTRIES)
            calls = calls_of(monkeypatch)
            for entries, allowed in ((ENTRIES, False), ([*ENTRIES[:2], ("org-tpm", ORG, 500)], True)):
                decision = do(peek_all, apeek_all, entries)
                assert (decision.allowed, decision.rule) == (allowed, "org-tpm")
                assert [each.remaining for each in decision.outcomes] == [3, 1_000, 500]
            assert len(calls) == 2
            assert left() == [3, 1_000, 500]
        with freeze(START + 61 * SECOND):  # nothing comes back that was never taken
            assert left() == [3, 1_000, 1_500]

    def test_rates_rules_users_and_requests_are_entries_too(self) -> None:
        rule = Rule.make("per-key", "9/m", key="header:X-Key")
        user = User(pk=5)
        decision = check_all([("7/h", user), ("7/h", "ip:192.0.2.9"), (rule, get(HTTP_X_KEY="k"), 4)])
        assert [outcome.subject.partition(":")[0] for outcome in decision.outcomes] == ["user", "ip", "header.x-key"]
        assert [outcome.remaining for outcome in decision.outcomes] == [6, 6, 5]

    @pytest.mark.parametrize(
        ("entries", "message"),
        [
            ([], "There is no entry. Use, for example, "), ("rpm", "'rpm' is not a list of entries"),
            ([("rpm", USER), "tpm"], "'tpm' is not .rule, subject., .rule, subject, cost. or .rule, subject, cost, ti"),
            ([("rpm", USER, 1, "team")], "Rule 'rpm' has no tier 'team'"),
            ([("tpm", USER, 1), ("rpm", USER), ("tpm", USER, 2)], "Rule 'tpm' is listed twice for user:42. Give it on"),
            ([("tpm", USER, -1)], "-1"), ([("tpmm", USER)], "Did you mean 'tpm'"),
            ([("rpm", f"user:{number}") for number in range(1_001)], "more than 1,000 entries. Split them"),
        ],
    )  # fmt: skip
    def test_wrong_entries_are_named(self, entries: Any, message: str) -> None:
        for verb in (check_all, peek_all, reserve_all):
            with pytest.raises(RuleError, match=message):
                verb(entries)


class TestReserveAll:
    def test_each_entry_is_settled_with_its_own_cost_in_one_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        two: list[Any] = [("tpm", USER, 300), ("org-tpm", ORG, 300)]
        with freeze(START):
            left()
            calls = calls_of(monkeypatch)
            with reserve_all(ENTRIES) as hold:
                assert (hold.costs, hold.is_open) == ((1, 900, 900), True)
                decision = hold.settle([1, 640, 640])
            assert len(calls) == 2
            assert [outcome.remaining for outcome in decision.outcomes] == left() == [2, 360, 860]
            reserve_all(two).settle({"tpm": 60, "org-tpm": 60})
            assert left() == [2, 300, 800]
            reserve_all(two).settle(10)  # one number is that of all
            assert left() == [2, 290, 790]
            with pytest.raises(ZeroDivisionError), reserve_all([("tpm", USER, 90)]):
                raise ZeroDivisionError
            assert left() == [2, 290, 790]

    @pytest.mark.parametrize(
        ("actual", "message"),
        [
            ([1, 2], r"\[1, 2\] has 2 numbers, but the reservation has 3 entries"),
            ({"tmp": 3}, "Rule 'tmp' is not in the reservation. Did you mean 'tpm'"),
            ({"tpm": -3}, "-3"),
            (640, r"One number, 640, for 3 entries with different estimates, .* settle\({'org-tpm': 640}\)"),
            ([1, "2", 3], "'2'"),
        ],
    )
    def test_a_wrong_real_cost_is_named_and_the_reservation_stays_open(self, actual: Any, message: str) -> None:
        hold = reserve_all(ENTRIES)
        with pytest.raises(RuleError, match=message):
            hold.settle(actual)
        assert hold.is_open
        two = reserve_all([("tpm", USER, 10), ("tpm", ORG, 10), (Rule.make("free", None), USER)])
        with pytest.raises(RuleError, match=r"Rule 'tpm' has several entries. Use a list of 3 numbers"):
            two.settle({"tpm": 5})
        two.settle([5, 6, 7])
        assert left(("tpm", ORG)) == [994]


def test_a_refused_plan_takes_nothing_of_a_rule_that_decides_for_itself() -> None:
    shadow, closed = Rule.make("watched", "5/m", shadow=True), Rule.make("closed", "0/m")
    assert not check_all([(shadow, USER), (closed, USER)])
    assert peek(shadow, USER).remaining == 5
