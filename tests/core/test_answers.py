"""What the answer of a store says was taken, and what of that is left to give back."""

from typing import Any

import pytest

from django_quota import Decision, Rule
from django_quota.engine.answers import Answer
from django_quota.engine.asks import Ask, Place
from django_quota.engine.codec import Flag
from django_quota.engine.operations import DictStates
from tests.support.questions import Question, driven
from tests.support.steps import MINUTE, START

USER = "user:1"
API, SHADOW = Rule.make("api", "5/m"), Rule.make("shadow", "5/m; 9/h", shadow=True)
NEAR = Rule.make("near", "5/m", warn_at=0.2)


def answer_to(*asks: Ask, mode: Any = "check") -> Answer:
    question, states = Question(asks), DictStates()
    return question.answer(driven(lambda operation, at: operation.run(states, at), question, mode, START))


TAKEN_OR_NOT = pytest.mark.parametrize("cost", [1, 6], ids=["taken", "refused"])


class TestTaken:
    @pytest.mark.parametrize(
        ("asks", "taken"),
        [
            pytest.param([Ask(API, USER, 1)], ["api"], id="a hit"),
            pytest.param([Ask(API, USER, 0)], [], id="a hit that costs nothing"),
            pytest.param([Ask(API, USER, 6)], [], id="a hit that is refused"),
            pytest.param([Ask(API, USER, 1), Ask(SHADOW, USER, 6)], ["api"], id="beside a shadow that refuses"),
            pytest.param([Ask(API, USER, 6), Ask(SHADOW, USER, 1)], [], id="beside a rule that refuses"),
            pytest.param([Ask(API, USER, 0), Ask(SHADOW, USER, 2)], ["shadow"], id="a shadow alone"),
            pytest.param([Ask(NEAR, USER, 1)], ["near"], id="a hit that is reported"),
        ],
    )
    def test_an_answer_says_what_the_store_has_taken(self, asks: list[Ask], taken: list[str]) -> None:
        answer = answer_to(*asks)

        assert answer.took_anything() is bool(taken)
        assert {place.rule: hit.moment for place, hit in answer.receipt().taken.items()} == dict.fromkeys(taken, START)

    @TAKEN_OR_NOT
    def test_nothing_is_left_of_what_was_given_back(self, cost: int) -> None:
        undone = answer_to(Ask(API, USER, cost)).undone(Decision.without_limit(allowed=False))

        assert (undone.took_anything(), undone.receipt().taken, undone.decision.allowed) == (False, {}, False)

    @TAKEN_OR_NOT
    def test_what_was_given_back_is_known_with_the_time_when_it_was_decided(self, cost: int) -> None:
        answer = answer_to(Ask(API, USER, cost))

        assert answer.undone(answer.decision).decided_at == answer.decided_at == START


def test_without_an_answer_of_the_store_nothing_was_taken() -> None:
    answer = Answer(answer_to(Ask(API, USER, 1)).resolved, Decision.without_limit())

    assert (answer.took_anything(), answer.decided_at, list(answer.events()), answer.standings()) == (
        False, None, [], [],
    )  # fmt: skip


def test_an_answer_without_the_store_can_be_undone() -> None:
    answer = Answer(answer_to(Ask(API, USER, 1)).resolved, Decision.without_limit())

    assert answer.undone(Decision.without_limit(allowed=False)).decision.allowed is False


@pytest.mark.parametrize(("is_undone", "kinds"), [(False, ["near"]), (True, [])], ids=["taken", "given back"])
def test_a_share_is_reported_only_of_what_stays_taken(is_undone: bool, kinds: list[str]) -> None:
    answer = answer_to(Ask(NEAR, USER, 1))

    answer = answer.undone(answer.decision) if is_undone else answer

    assert [kind for kind, _, _ in answer.events()] == kinds


def test_a_refusal_stays_reported_though_other_hits_are_given_back() -> None:
    answer = answer_to(Ask(Rule.make("aside", "0/m", block=False), USER, 1), Ask(API, USER, 1))

    undone = answer.undone(answer.decision)

    assert [flag for _, flag, _ in undone.decoded().flags] == [Flag.REFUSAL_EMITTED]
    assert [kind for kind, _, _ in undone.events()] == ["refused"]


def test_a_receipt_keeps_of_which_share_a_hit_was_spent() -> None:
    first = answer_to(Ask(API, USER, 1), Ask(SHADOW, USER, 1))
    spent = Answer(first.resolved, first.decision, first.hits, spent_at=START + MINUTE, shares=["n1", "n2"])

    taken = spent.receipt().taken

    assert {place.rule: (hit.share, hit.moment) for place, hit in taken.items()} == {
        "api": ("n1", START + MINUTE), "shadow": ("n2", START + MINUTE),
    }  # fmt: skip
    assert {place.rule: hit.share for place, hit in spent.receipt().for_others().taken.items()} == {
        "api": "", "shadow": "",
    }  # fmt: skip


def test_a_limit_stands_under_the_key_of_its_state() -> None:
    standings = answer_to(Ask(API, USER, 2), Ask(SHADOW, USER, 1), mode="peek").standings()

    assert [(each.key.rpartition("}:")[2], each.outcome.remaining, each.instead) for each in standings] == [
        ("r:api:sw.60s", 5, None), ("r:shadow:sw.60s", 5, None), ("r:shadow:sw.3600s", 9, None),
    ]  # fmt: skip


def test_a_receipt_forgets_that_a_hit_was_an_estimate() -> None:
    receipt = answer_to(Ask(API, USER, 1, "", True)).receipt()

    assert [ask.is_estimate for ask in receipt.asks] == [False]
    assert receipt.taken.keys() == {Place("api", USER)}
