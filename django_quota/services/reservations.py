"""Reservations: spend an estimate now, and settle it when the real cost is known.

For work whose cost is known only afterwards, such as the tokens of a language model. The estimate counts like any hit,
so the decisions in between are right. `settle()` gives back what was too much, `cancel()` gives back all of it. If
neither happens, all of it comes back after the ttl.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from django_quota.core.decisions import Decision
from django_quota.core.errors import RuleError
from django_quota.core.flow import Flow, run_async, run_sync
from django_quota.core.rates import parse_seconds, validate_cost
from django_quota.core.rules import CallOptions
from django_quota.engine.codec import HoldId, Mode, Reserve, Settle
from django_quota.engine.plans import Plan
from django_quota.services.api import RuleOrRate, Subject, decision_flow, plan_flow


class Hold:
    """A reservation that is not settled yet.

    Use it as a context manager, sync or async. An error inside cancels it. Without an error and without `settle()`, the
    estimate stays spent.
    """

    def __init__(self, plan: Plan, hold_id: HoldId | None, decision: Decision) -> None:
        self.decision = decision
        """The decision that allowed it."""
        _, _, self.cost, _ = plan.asked[0]
        """The estimate, in units."""
        self._plan = plan
        self._rule = decision.rule
        self._hold_id = hold_id
        """Its name in the store; None if nothing was spent: for an exempt subject, or while Redis did not answer."""

    @property
    def is_open(self) -> bool:
        """Whether it can still be settled or cancelled, and there is something to give back."""
        return self._hold_id is not None

    def settle(self, actual: int) -> Decision:
        """Replace the estimate with the real cost; return how the limit stands.

        `actual`: units, 0 to 10^12. If it is less than the estimate, the rest is given back as far as it still counts,
        and never more than that. A token bucket may give back less if much was given back meanwhile. With
        `leaky_bucket`, only the newest reservation can be returned. If it is more, the difference is spent, even past
        the limit, and the next hits wait.

        After the ttl the estimate has come back already. Then all of `actual` is spent now, even past the limit, and
        the Decision is `late`. A second call changes nothing. While the store does not answer, the Decision is
        `degraded`, and the reservation comes back after its ttl. Raises `RuleError` for another number.
        """
        return run_sync(decision_flow(self._plan, self._settle_mode(actual)))

    async def asettle(self, actual: int) -> Decision:
        """Replace the estimate with the real cost; see `settle`."""
        return await run_async(decision_flow(self._plan, self._settle_mode(actual)))

    def cancel(self) -> Decision:
        """Give back all of the estimate; see `settle`."""
        return self.settle(0)

    async def acancel(self) -> Decision:
        """Give back all of the estimate; see `settle`."""
        return await self.asettle(0)

    def _settle_mode(self, actual: int) -> Mode:
        hold_id, units = self._hold_id, validate_cost(actual, self._rule)
        self._hold_id = None
        return Settle(hold_id, units) if hold_id else "peek"

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
    """Spend an estimate; return the reservation, to settle it later.

    `with reserve("tokens", user, 2000) as hold: ...; hold.settle(1340)`.

    `rule_or_rate`, `subject`, `cost` and the options are those of `check`. `ttl`: seconds, up to 366 days, after which
    the estimate comes back by itself. Choose a longer one than the work may take. Raises `QuotaExceeded` if there is no
    room for the estimate, and `RuleError` if an argument is wrong.
    """
    return run_sync(_reserve_flow(rule_or_rate, subject, cost, parse_seconds("ttl", ttl, 60), rule_options))


def areserve(
    rule_or_rate: RuleOrRate,
    subject: Subject,
    cost: int | None = None,
    *,
    ttl: float = 60,
    **rule_options: Unpack[CallOptions],
) -> _Reserving:
    """Spend an estimate; await the result, or use it with `async with`. See `reserve`."""
    span = parse_seconds("ttl", ttl, 60)
    return _Reserving(partial(_reserve_flow, rule_or_rate, subject, cost, span, rule_options))


class _Reserving:
    """What `areserve` returns: await it, or use it with `async with`."""

    def __init__(self, make_flow: Callable[[], Flow[Hold]]) -> None:
        self._make_flow = make_flow
        self._hold: Hold | None = None

    def __await__(self) -> Generator[Any, Any, Hold]:
        return run_async(self._make_flow()).__await__()

    async def __aenter__(self) -> Hold:
        self._hold = await self
        return self._hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._hold is not None:
            await self._hold.__aexit__(kind, error, tb)


def _reserve_flow(
    rule_or_rate: RuleOrRate, subject: Subject, cost: int | None, ttl: int, options: Mapping[str, object]
) -> Flow[Hold]:
    plan = yield from plan_flow(rule_or_rate, subject, cost, None, options)
    for rule in plan.rules:
        if rule.distinct is not None:
            raise RuleError(f"Rule {rule.name!r} counts different values: a part of a value cannot be given back.")
    plan.include_holds()
    token = secrets.token_hex(8)
    decision = yield from decision_flow(plan, Reserve(token, ttl))
    decision.raise_if_refused()
    return Hold(plan, plan.hold_id(token, ttl), decision)
