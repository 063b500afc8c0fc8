"""What is asked of any store or of the specification, at times that a test passes in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from django_quota.core.overrides import OverrideTable
from django_quota.engine.answers import Answer, answered
from django_quota.engine.asks import Ask, Place
from django_quota.engine.codec import RETRY_WITH, Flag, Reply
from django_quota.engine.decide import Decide
from django_quota.engine.events import NO_LOG
from django_quota.engine.hits import Ahead, Hit
from django_quota.engine.operations import Operation
from django_quota.engine.receipts import Receipt, Settlement
from django_quota.engine.resolving import Scope, event_log_of, resolve

QuestionMode = Literal["check", "force", "peek", "refund", "adjust"]

START = 1_763_700_000 * 1_000_000  # a moment to begin at: 2025-11-21 04:40 UTC


class Question:
    """Asks without overrides, or the settlement of what they took."""

    def __init__(
        self,
        asks: Sequence[Ask],
        *,
        with_events: bool = True,
        settlement: Settlement | None = None,
        ahead: Mapping[Place, Ahead] | None = None,
    ) -> None:
        self.asks = asks
        self.ahead = ahead or {}
        """What is said of units taken ahead, by place."""
        self.scope = Scope("quota", log=event_log_of("quota", 100, 30) if with_events else NO_LOG)
        self.settlement = settlement

    def hits_at(self, now: int) -> Sequence[Hit]:
        hits: Sequence[Hit] = resolve(self.asks, OverrideTable(), now).hits(self.scope, now)
        hits = hits if self.settlement is None else self.settlement.at(hits, now, self.scope)
        return [hit._replace(ahead=self.ahead.get(hit.place, hit.ahead)) for hit in hits]

    @property
    def hits(self) -> Sequence[Hit]:
        return self.hits_at(START)

    def operation(self, now: int, mode: QuestionMode) -> Decide:
        hits = self.hits_at(now)
        if self.settlement is not None:
            return Decide(hits, self.settlement.mode(hits, self.scope), emits=self.scope.log is not NO_LOG)
        assert mode != "adjust"
        return Decide(hits, mode, emits=mode in ("check", "force") and self.scope.log is not NO_LOG)

    def answer(self, reply: Sequence[Any]) -> Answer:
        """Return what a reply says."""
        resolved = resolve(self.asks, OverrideTable(), reply[0])
        answer = answered(resolved, resolved.hits(self.scope, reply[0]), reply)
        assert answer is not None
        return answer

    def receipt(self, reply: Sequence[Any]) -> Receipt:
        """Return what was taken, by the reply to a check."""
        return self.answer(reply).receipt()

    def granted(self, reply: Sequence[Any]) -> dict[Place, tuple[Ahead, int, int]]:
        """Return what was taken ahead, by the reply to a check: what was asked, the units, and for how long."""
        hits = self.hits_at(reply[0])
        flags = {(hit, flag): value for hit, flag, value in Reply.decode(reply, hits).flags}
        return {
            hit.place: (hit.ahead, flags[number, Flag.GRANTED], flags[number, Flag.LEASED])
            for number, hit in enumerate(hits)
            if hit.ahead is not None and (number, Flag.GRANTED) in flags
        }

    def settled(
        self, receipt: Receipt, actual: Sequence[int] = (), *, undone: bool = False, until: int = 0
    ) -> Question:
        """Return the question that settles what was taken; without `actual`, nothing was used."""
        settlement = Settlement.of(receipt, actual or [0] * len(receipt.asks), until=until)._replace(is_undone=undone)
        return Question(receipt.asks, with_events=self.scope.log is not NO_LOG, settlement=settlement)


def driven(
    run: Callable[[Operation, int], Any], question: Question, mode: QuestionMode, now: int, guess: int | None = None
) -> list[Any]:
    """Ask a store, and again if the edges do not fit the time, as the limiter does; return its last reply."""
    reply = run(question.operation(now if guess is None else guess, mode), now)
    if reply[1] == RETRY_WITH:
        reply = run(question.operation(reply[0], mode), now)
    assert reply[1] != RETRY_WITH, "the edges around the time of the store do not fit that time"
    return reply  # type: ignore[no-any-return]
