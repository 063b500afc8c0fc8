"""Building blocks for tests of algorithms and stores: steps, and replies with names."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from django_quota import Rule
from django_quota.engine.asks import Ask, Asked
from django_quota.engine.codec import PER_LIMIT, Mode, Reply
from django_quota.engine.decide import Decide
from django_quota.engine.hits import Hit
from django_quota.engine.operations import DictStates
from django_quota.engine.receipts import Receipt
from django_quota.stores.base import Store
from tests.support import questions
from tests.support.questions import Question, QuestionMode, driven

SECOND = 1_000_000  # in microseconds, the unit of all times

MINUTE = 60 * SECOND

START = questions.START

ALGORITHMS = ("sliding_window", "fixed_window", "calendar", "token_bucket", "leaky_bucket")


class Clock:
    """A monotonic clock, in seconds, that stands still until a test sets `now`."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Answer(NamedTuple):
    allowed: bool
    remaining: int
    retry_after: int
    reset: int
    more: int


SUBJECT = "ip:203.0.113.9"


def hits_of(*rules: Asked, subject: str = SUBJECT, cost: int = 1, now: int = START, value: str = "") -> list[Hit]:
    return list(Question([Ask(rule, subject, cost, value) for rule in rules]).hits_at(now))


def decided(store: Store, hits: Sequence[Hit], mode: Mode, now: int | None) -> list[int]:
    """Decide hits on a store; return its reply."""
    return store.run(Decide(hits, mode), now)  # type: ignore[no-any-return]


def answers(reply: Sequence[Any]) -> list[Answer]:
    """Return a reply's part for each limit; there must be no notes after them."""
    assert len(reply) % PER_LIMIT == 2
    return [Answer(bool(reply[i]), *reply[i + 1 : i + PER_LIMIT]) for i in range(2, len(reply), PER_LIMIT)]


class Spec:
    """One subject under one rule in the executable specification, at a time that the test moves."""

    def __init__(self, rate: str | Rule = "60/m", algorithm: str = "sliding_window", **options: Any) -> None:
        self.rule = rate if isinstance(rate, Rule) else Rule.make("r", rate, algorithm=algorithm, **options)
        self.states = DictStates()
        self.now = START

    def question(self, cost: int = 1, value: str = "a", *, is_estimate: bool = False) -> Question:
        asked = (min(cost, 1), value) if self.rule.distinct else (cost, "")
        return Question([Ask(self.rule, SUBJECT, *asked, is_estimate)])

    def decide(self, question: Question, mode: QuestionMode, later: int = 0) -> list[Any]:
        return driven(lambda operation, now: operation.run(self.states, now), question, mode, self.now + later)

    def run(self, mode: QuestionMode = "check", cost: int = 1) -> Answer:
        return answers(self.decide(self.question(cost), mode)[: 2 + PER_LIMIT])[0]

    def check(self, cost: int = 1, *, is_estimate: bool = False) -> Receipt:
        """Take a hit; return what it took, which can be adjusted."""
        question = self.question(cost, is_estimate=is_estimate)
        return question.receipt(self.decide(question, "check"))

    def adjust(self, receipt: Receipt, actual: int = 0, *, undone: bool = False) -> Reply:
        settled = self.question().settled(receipt, [actual], undone=undone)
        return Reply.decode(self.decide(settled, "adjust"), settled.hits)

    @property
    def used(self) -> int:
        """The units that count, which may be more than the limit."""
        question = self.question(0)
        (peeked,) = Reply.decode(self.decide(question, "peek"), question.hits).hits[0]
        return question.hits[0].limits[0].parameters.capacity - peeked.remaining
