"""Reservations: spend an estimate now, and settle for what was really used. It must not know how a store holds it.

For work whose cost is known only afterwards, such as the tokens of a language model: the estimate is spent like any
hit, so that those who come meanwhile are decided rightly; what was too much comes back when the hold is settled, and
all of it when it is cancelled, or, where nobody ever does either, by itself at its ttl.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any, Self, Unpack

from django_quota.decisions import Decision
from django_quota.exceptions import RuleError
from django_quota.limiter import adecide_plan, decide_plan
from django_quota.operations.decide import reserving, settling
from django_quota.planning import RuleOrRate, Subject, plan_of
from django_quota.plans import Plan
from django_quota.rates import check_cost, span_of
from django_quota.rules import CallOptions
from django_quota.subjects import aanswer, answer


class Hold:
    """What was reserved.

    A context manager, sync and async: an error inside cancels it; else, unless it was settled, the estimate is kept.
    """

    def __init__(self, plan: Plan, token: str, ttl: int, decision: Decision, cost: int) -> None:
        self.decision = decision
        """The decision that let it through."""
        self.cost = cost
        """The estimate, in units."""
        self._plan = plan
        self._rule = decision.rule
        self._held = plan.held(token, ttl)
        """How it is found; empty where nothing was spent: an exempt subject, or a store that did not answer."""

    @property
    def is_open(self) -> bool:
        """Whether it is neither settled nor cancelled yet, and there is anything to settle."""
        return bool(self._held)

    def settle(self, actual: int) -> Decision:
        """Make it what was really used; return how the limit stands.

        `actual`: units, 0 to 10^12. Less than the estimate gives the rest back, as far as it still counts: never more,
        and where much was given back meanwhile under a token bucket, maybe less; under a leaky bucket only while nobody
        stands behind it, who has been told when to leave. More takes the difference, past the limit if it must: then
        the next hits wait. A second time, and after the ttl, nothing changes. Raises `RuleError` for another number.
        While the store does not answer, the Decision is `degraded`, and the hold is given back at its ttl.
        """
        return decide_plan(self._plan, self._settling(actual))

    async def asettle(self, actual: int) -> Decision:
        """Make it what was really used; see `settle`."""
        return await adecide_plan(self._plan, self._settling(actual))

    def cancel(self) -> Decision:
        """Give all of it back; see `settle`."""
        return self.settle(0)

    async def acancel(self) -> Decision:
        """Give all of it back; see `settle`."""
        return await self.asettle(0)

    def _settling(self, actual: int) -> str:
        """Return the mode that settles, or where that would change nothing, the one that looks."""
        held, units = self._held, check_cost(actual, self._rule)
        self._held = ""
        return settling(held, units) if held else "peek"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.is_open:
            self.settle(self.cost if error is None else 0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self.is_open:
            await self.asettle(self.cost if error is None else 0)


def reserve(
    rule_or_rate: RuleOrRate,
    subject: Subject,
    cost: int | None = None,
    *,
    ttl: float = 60,
    **rule_options: Unpack[CallOptions],
) -> Hold:
    """Spend an estimate, and return the hold that settles it.

    `with reserve("tokens", user, 2000) as hold: ...; hold.settle(1340)`.

    `rule_or_rate`, `subject`, `cost` and the options are those of `check`. `ttl`: seconds, up to 366 days, after which
    the hold is given back by itself: longer than the work may take. Raises `QuotaExceeded` where the estimate has no
    room, and `RuleError` where an argument is wrong.
    """
    token, span = _token(), _span(ttl)
    plan = _holding(answer(plan_of(rule_or_rate, subject, cost, None, rule_options)))
    return Hold(plan, token, span, decide_plan(plan, reserving(token, span)).raise_if_refused(), _cost(plan))


def areserve(
    rule_or_rate: RuleOrRate,
    subject: Subject,
    cost: int | None = None,
    *,
    ttl: float = 60,
    **rule_options: Unpack[CallOptions],
) -> _Reserving:
    """Spend an estimate, to be awaited or entered by `async with`; see `reserve`."""
    return _Reserving(rule_or_rate, subject, cost, ttl, rule_options)


class _Reserving:
    """What `areserve` returns: to be awaited, or entered."""

    def __init__(
        self,
        rule_or_rate: RuleOrRate,
        subject: Subject,
        cost: int | None,
        ttl: float,
        rule_options: Mapping[str, object],
    ) -> None:
        self._ttl = _span(ttl)
        self._asked = (rule_or_rate, subject, cost, None, rule_options)
        self._hold: Hold | None = None

    async def _reserve(self) -> Hold:
        plan = _holding(await aanswer(plan_of(*self._asked)))
        token = _token()
        decision = await adecide_plan(plan, reserving(token, self._ttl))
        return Hold(plan, token, self._ttl, decision.raise_if_refused(), _cost(plan))

    def __await__(self) -> Generator[Any, Any, Hold]:
        return self._reserve().__await__()

    async def __aenter__(self) -> Hold:
        self._hold = await self._reserve()
        return self._hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._hold is not None:
            await self._hold.__aexit__(kind, error, tb)


def _token() -> str:
    return secrets.token_hex(8)


def _span(ttl: float) -> int:
    return span_of("ttl", ttl, 60)


def _holding(plan: Plan) -> Plan:
    for rule in plan.rules:
        if rule.distinct is not None:
            raise RuleError(f"Rule {rule.name!r} counts different values: there is no part of one to give back.")
    plan.holding()
    return plan


def _cost(plan: Plan) -> int:
    return plan.costs[0]
