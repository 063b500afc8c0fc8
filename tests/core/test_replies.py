"""How the reply of a store to a decision is read."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from django_quota import Rule, counter
from django_quota.core.algorithms import NEVER
from django_quota.core.errors import StoreDataError
from django_quota.engine.asks import Ask, Asked
from django_quota.engine.codec import (
    ALLOWED,
    REFUSED,
    RETRY_WITH,
    Flag,
    Flagged,
    Reply,
    allows_all,
    outcomes_of,
    outcomes_without_flags,
)
from django_quota.engine.hits import Hit
from django_quota.types import Outcome
from tests.support.questions import Question
from tests.support.steps import SECOND, START

USER = "user:1"
API, SHADOW, ASIDE = (Rule.make("api", "5/m", **more) for more in ({}, {"shadow": True}, {"block": False}))
ADMITTED = [1, 4, 0, 60 * SECOND, 60 * SECOND]
"""The numbers of a limit of five that has admitted a hit."""


def hits_of(*rules: Asked, cost: int = 1) -> Sequence[Hit]:
    return Question([Ask(rule, USER, cost) for rule in rules]).hits


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(b"+PONG", id="bytes"),
        pytest.param(None, id="nothing"),
        pytest.param((START, ALLOWED, *ADMITTED), id="a tuple"),
        pytest.param([], id="an empty list"),
        pytest.param([START], id="only the time"),
        pytest.param([START, ALLOWED], id="no limit"),
        pytest.param([START, ALLOWED, *ADMITTED[:4]], id="a part of a limit"),
        pytest.param([START, ALLOWED, *ADMITTED, 0], id="a part of a flag"),
        pytest.param([START, ALLOWED, *ADMITTED, 1, Flag.BANNED, START], id="a flag of a hit after the last"),
        pytest.param([START, ALLOWED, *ADMITTED, -1, Flag.BANNED, START], id="a flag of a hit before the first"),
        pytest.param([START, ALLOWED, *ADMITTED, "x", Flag.BANNED, START], id="a flag of no hit"),
    ],
)
def test_a_reply_to_something_else_is_an_error_that_shows_it(reply: Any) -> None:
    with pytest.raises(StoreDataError) as caught:
        Reply.decode(reply, hits_of(API))

    assert caught.value.reason.startswith("the reply to a decision cannot be read: ")


def test_a_reply_that_asks_for_other_edges_has_no_limits() -> None:
    assert Reply.decode([START, RETRY_WITH], hits_of(API)) == Reply(START, RETRY_WITH)


def test_a_reply_is_read_back_with_its_flags() -> None:
    numbers = [START, REFUSED, *ADMITTED, 0, 0, 7, 8, 9, 1, Flag.BANNED, START, 0, Flag.NEAR_EMITTED, 800]

    reply = Reply.decode(numbers, hits_of(API, Rule.make("login", "5/m")))

    assert [[verdict.allowed for verdict in of_hit] for of_hit in reply.hits] == [[True], [False]]
    assert reply.flags == [Flagged(1, Flag.BANNED, START), Flagged(0, Flag.NEAR_EMITTED, 800)]
    assert reply.encode() == numbers


def test_a_hit_was_decided_when_its_own_server_did() -> None:
    hits = hits_of(API, Rule.make("login", "5/m"), Rule.make("mail", "5/m"))
    numbers = [START, ALLOWED, *ADMITTED * 3, 1, Flag.DECIDED_AT, START - 7]

    assert [*Reply.decode(numbers, hits).consumed(hits)] == [(0, START), (1, START - 7), (2, START)]


@pytest.mark.parametrize(
    ("rules", "reply", "is_plain"),
    [
        pytest.param([API], [START, ALLOWED, *ADMITTED], True, id="all have room"),
        pytest.param([API], [START, REFUSED, *ADMITTED], False, id="a refusal"),
        pytest.param([API], [START, RETRY_WITH], False, id="other edges"),
        pytest.param([API], [START, ALLOWED, *ADMITTED, 0, Flag.NEAR_EMITTED, 800], False, id="a flag"),
        pytest.param([API], [START, ALLOWED, *ADMITTED[:4]], False, id="too short"),
        pytest.param([API], (START, ALLOWED, *ADMITTED), False, id="no list"),
        pytest.param([SHADOW], [START, ALLOWED, *ADMITTED], False, id="a shadow"),
        pytest.param([ASIDE], [START, ALLOWED, *ADMITTED], False, id="a rule that does not block"),
    ],
)
def test_a_reply_is_read_later_if_it_allows_all_and_reports_nothing(rules: Any, reply: Any, is_plain: bool) -> None:
    assert allows_all(reply, hits_of(*rules)) is is_plain


Reader = Callable[[list[int], Sequence[Hit]], Sequence[Outcome]]
READ: dict[str, Reader] = {
    "at once": lambda numbers, hits: outcomes_of(Reply.decode(numbers, hits), hits),
    "later": outcomes_without_flags,
}
read_at_any_time = pytest.mark.parametrize("read", READ.values(), ids=READ)


@read_at_any_time
@pytest.mark.parametrize(
    ("numbers", "left", "over", "retry_after", "next_after", "delay"),
    [
        pytest.param([1, 4, 0, 9, 6], 4, 0, 0.0, 6.0, 0.0, id="admitted"),
        pytest.param([1, 4, 3, 9, 6], 4, 0, 0.0, 6.0, 3.0, id="admitted after a delay"),
        pytest.param([1, 5, 0, 0, NEVER], 5, 0, 0.0, None, 0.0, id="nothing is used"),
        pytest.param([0, 0, 6, 9, 6], 0, 0, 6.0, 6.0, 0.0, id="refused"),
        pytest.param([0, -2, 4, 9, 6], 0, 2, 4.0, 4.0, 0.0, id="more is used than the limit"),
        pytest.param([0, 3, 8, 9, 6], 3, 0, 8.0, 6.0, 0.0, id="refused, though something is left"),
        pytest.param([0, 3, NEVER, 9, 6], 3, 0, None, 6.0, 0.0, id="more than it ever admits"),
    ],
)
def test_the_outcome_of_a_limit_has_its_numbers_in_seconds(
    read: Reader, numbers: list[int], left: int, over: int, retry_after: Any, next_after: Any, delay: float
) -> None:
    in_microseconds = [*numbers[:2], *(each if each == NEVER else each * SECOND for each in numbers[2:])]

    (found,) = read([START, numbers[0], *in_microseconds], hits_of(API, cost=3))

    assert (found.rule, found.subject, found.cost, found.allowed) == ("api", USER, 3, bool(numbers[0]))
    assert (found.remaining, found.over, found.retry_after, found.next_after, found.delay) == (
        left, over, retry_after, next_after, delay,
    )  # fmt: skip
    assert found.reset_after == numbers[3]


@read_at_any_time
@pytest.mark.parametrize(
    ("rule", "shadow", "enforced"),
    [(API, False, True), (SHADOW, True, False), (ASIDE, False, False)],
    ids=["a rule", "a shadow", "a rule that does not block"],
)
def test_the_outcome_of_a_rule_says_whether_it_refuses(read: Reader, rule: Rule, shadow: bool, enforced: bool) -> None:
    (found,) = read([START, ALLOWED, *ADMITTED], hits_of(rule))

    assert (found.shadow, found.enforced) == (shadow, enforced)


@read_at_any_time
def test_each_outcome_is_of_its_own_limit(read: Reader) -> None:
    hits = hits_of(Rule.make("api", "5/m; 9/h"), Rule.make("login", "7/m"))

    found = read([START, ALLOWED, *ADMITTED, 1, 8, 0, 2, 2, 1, 6, 0, 3, 3], hits)

    assert [(each.rule, str(each.rate), each.remaining) for each in found] == [
        ("api", "5/m", 4), ("api", "9/h", 8), ("login", "7/m", 6),
    ]  # fmt: skip


@read_at_any_time
@pytest.mark.parametrize(
    ("remaining", "left", "owed"), [(7, 7, 0), (0, 0, 0), (-3, 0, 3)], ids=["some", "none", "owed"]
)
def test_a_counter_is_shown_by_what_it_holds(read: Reader, remaining: int, left: int, owed: int) -> None:
    (found,) = read([START, ALLOWED, 1, remaining, 0, 0, NEVER], hits_of(counter("credits").as_take))

    assert (found.limit, found.remaining, found.over, str(found.rate)) == (left, left, owed, f"{left} left")


@read_at_any_time
def test_a_tier_without_a_limit_has_only_what_is_used(read: Reader) -> None:
    unlimited = Rule.make("api", {"free": "5/m", "staff": None}, tier=lambda _: "staff").tiers["staff"]
    (limit,) = unlimited.counting

    (found,) = read([START, ALLOWED, 1, limit.capacity - 7, 0, 9, 9], hits_of(unlimited))

    assert (found.limit, found.remaining, found.used) == (None, None, 7)


@pytest.mark.parametrize(
    ("is_overridden", "flags", "why"),
    [
        pytest.param(False, [], "", id="the rule"),
        pytest.param(True, [], "override", id="another rate"),
        pytest.param(False, [0, Flag.BANNED, START], "banned", id="a ban"),
        pytest.param(True, [0, Flag.BANNED, START], "banned", id="a ban under another rate"),
        pytest.param(False, [0, Flag.NEAR_EMITTED, 800], "", id="the rule, which is near"),
    ],
)
def test_an_outcome_says_what_replaces_the_rate(is_overridden: bool, flags: list[int], why: str) -> None:
    hits = [hit._replace(is_overridden=is_overridden) for hit in hits_of(API)]

    (found,) = outcomes_of(Reply.decode([START, ALLOWED, *ADMITTED, *flags], hits), hits)

    assert found.why == why


def test_a_ban_is_of_its_own_hit() -> None:
    hits = hits_of(API, Rule.make("login", "5/m"))
    numbers = [START, REFUSED, *ADMITTED, 0, 4, 9, 9, 9, 1, Flag.BANNED, START]

    assert [each.why for each in outcomes_of(Reply.decode(numbers, hits), hits)] == ["", "banned"]


def test_an_outcome_that_is_read_later_says_that_the_rate_is_another_one() -> None:
    hits = [hit._replace(is_overridden=hit.cost == 2) for cost in (1, 2) for hit in hits_of(API, cost=cost)]

    assert [each.why for each in outcomes_without_flags([START, ALLOWED, *ADMITTED * 2], hits)] == ["", "override"]
