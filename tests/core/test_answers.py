"""What the answer of a store says was taken, and what of that is left to give back."""

from typing import Any

import pytest

from django_quota import Decision, Rule
from django_quota.core.overrides import Override, OverrideMode, OverrideTable
from django_quota.engine.answers import Answer, answered
from django_quota.engine.asks import Ask, Place
from django_quota.engine.codec import Flag, Flagged
from django_quota.engine.decide import Decide
from django_quota.engine.operations import DictStates
from django_quota.engine.resolving import Scope, resolve
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


def test_a_receipt_keeps_which_hit_took_units_of_which_grant() -> None:
    first = answer_to(Ask(API, USER, 1), Ask(SHADOW, USER, 1))
    reply = first.decoded()
    reply.flags = [Flagged(0, Flag.DRAWN_OF, 11), Flagged(1, Flag.DRAWN_OF, 12), Flagged(1, Flag.DRAWN, 3)]
    reply.flags += [Flagged(0, Flag.DRAWN, 2)]

    receipt = first._replace(numbers=None, reply=reply).receipt()

    assert {place.rule: hit.drawn for place, hit in receipt.taken.items()} == {"api": "11-2", "shadow": "12-3"}


FREE, NAMESAKE = Rule.make("free", None), Rule.make("free", "9/m")
EVERYBODY, NOBODY = Rule.make("free", None, daily=True), Rule.make("free", None, daily=False)
ASIDE = Rule.make("aside", "5/m", block=False)


def answer_under(override: OverrideMode | None, *asks: Ask) -> Answer:
    """Return the answer while an override of the rule `api`, if any, applies to everybody."""
    table = OverrideTable([] if override is None else [Override(1, "*", "api", override)])
    resolved = resolve(asks, table, START)
    hits = resolved.hits(Scope("quota"), START)
    answer = answered(resolved, hits, Decide(hits, "check").run(DictStates(), START))
    assert answer is not None
    return answer


@pytest.mark.parametrize(
    ("override", "asks", "counted"),
    [
        pytest.param(None, [Ask(FREE, USER, 3)], [("free", 3)], id="a hit without a limit"),
        pytest.param(None, [Ask(FREE, USER, 0)], [], id="no hit that costs nothing"),
        pytest.param(None, [Ask(FREE, "ip:192.0.2.1", 1)], [], id="no hit of an address"),
        pytest.param(None, [Ask(EVERYBODY, "ip:192.0.2.1", 1)], [("free", 1)], id="an address if the rule says so"),
        pytest.param(None, [Ask(NOBODY, USER, 1)], [], id="no user if the rule says so"),
        pytest.param(None, [Ask(FREE, USER, 2), Ask(FREE, USER, 2)], [("free", 2)], id="once what is asked twice"),
        pytest.param(None, [Ask(FREE, USER, 1), Ask(NAMESAKE, USER, 1)], [], id="nothing that its namesake counts"),
        pytest.param(None, [Ask(API, USER, 1)], [], id="no hit that a limit counts"),
        pytest.param(None, [Ask(FREE, USER, 1), Ask(API, USER, 6)], [], id="nothing beside a rule that refuses"),
        pytest.param(
            None, [Ask(FREE, USER, 1), Ask(ASIDE, USER, 6)], [("free", 1)], id="a hit beside one that lets pass"
        ),
        pytest.param(None, [Ask(FREE, USER, 1), Ask(SHADOW, USER, 6)], [("free", 1)], id="a hit beside a shadow"),
        pytest.param("exempt", [Ask(API, USER, 3)], [("api", 3)], id="a hit of an exempt user"),
        pytest.param("exempt", [Ask(API, USER, 0)], [], id="no exempt hit that costs nothing"),
        pytest.param("exempt", [Ask(API, "ip:192.0.2.1", 1)], [], id="no hit of an exempt address"),
        pytest.param(
            "exempt", [Ask(API, USER, 1), Ask(ASIDE, USER, 6)], [("api", 1)], id="an exempt hit that may pass"
        ),
        pytest.param("blocked", [Ask(Rule.make("api", "5/m", block=False), USER, 1)], [], id="no hit that is blocked"),
    ],
)
def test_only_the_day_counts(override: Any, asks: list[Ask], counted: list[tuple[str, int]]) -> None:
    answer = answer_under(override, *asks)

    assert [(ask.rule.name, ask.cost) for ask in answer.counted_by_day()] == counted


@pytest.mark.parametrize(("is_counted", "taken"), [(True, ["free"]), (False, [])], ids=["counted", "not yet"])
def test_a_receipt_has_what_only_the_day_counts_once_that_is_counted(is_counted: bool, taken: list[str]) -> None:
    receipt = answer_under(None, Ask(FREE, USER, 1)).receipt(is_counted=is_counted)

    assert [(place.rule, hit.limits) for place, hit in receipt.taken.items()] == [(name, {}) for name in taken]


@pytest.mark.parametrize("override", ["exempt", "blocked"])
def test_the_outcomes_are_in_the_order_of_what_was_asked_whoever_decided(override: Any) -> None:
    answer = answer_under(override, Ask(SHADOW, USER, 1), Ask(API, USER, 1), Ask(FREE, USER, 1), Ask(ASIDE, USER, 1))

    assert [outcome.rule for outcome in answer.decision.outcomes] == ["shadow", "shadow", "api", "aside"]
