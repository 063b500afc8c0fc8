"""Reservations: spend an estimate now, and settle it when the real cost is known.

For work whose cost is known only afterwards, such as the tokens of a language model. The estimate counts like any hit,
so the decisions in between are right. `settle()` gives back what was too much, and `cancel()` gives back everything, in
the window where it was counted. If neither is called, the estimate stays spent until its window has passed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any, Self, Unpack

from django.core import signing

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.clock import SECOND
from django_quota.core.decisions import Decision
from django_quota.core.errors import RuleError, did_you_mean
from django_quota.core.flow import Flow, run_async, run_sync, run_to_the_end, to_the_end
from django_quota.core.rates import Duration, validate_cost
from django_quota.core.rules import CallOptions, Rule
from django_quota.engine.answers import Answer
from django_quota.engine.asks import Ask, Asked, CounterEntry, Place, Take
from django_quota.engine.receipts import Receipt, Settlement, Taken
from django_quota.features.request_end import StreamT, at_stream_end
from django_quota.features.reservations.leases import lease_of, renewals_of, with_lease, with_new_lease
from django_quota.features.slots.renewal import RETRY, renewer
from django_quota.limiting.api import (
    AnyEntry,
    AnySubject,
    RuleOrRate,
    answer_flow,
    ask_all_flow,
    ask_flow,
    check_costs,
    refuse_distinct,
    rule_of_tier,
    rule_without_request,
    run_call,
    settlement_flow,
)
from django_quota.limiting.registry import store_call

logger = logging.getLogger("django_quota.reservations")

Actual = int | Sequence[int] | Mapping[str, int]
"""What was really used: one number for all entries, one for each, or some by the name of their rule or counter."""


class Reservation:
    """A reservation that is not settled yet.

    Use it as a context manager, sync or async. An error inside cancels it. Without an error and without `settle()`, the
    estimate stays spent.
    """

    def __init__(self, receipt: Receipt, decision: Decision) -> None:
        self.decision = decision
        """The decision that allowed it."""
        self.costs: tuple[int, ...] = receipt.costs
        """The estimate of each entry, in units, with what `extend` has added."""
        self.decided_at: int | None = receipt.decided_at
        """When the store counted it, in microseconds since 1970; None if the store did not answer."""
        self._receipt = receipt
        """What it took: nothing if nothing was counted, or if the store did not answer."""
        self._is_shared = False
        """Whether a string of it may be settled elsewhere: then the store remembers that it was settled."""
        self._unsettled = [receipt.id]
        """Empty from the moment on when a thread settles it."""
        self._answer: Decision | None = None
        """The answer of the first `settle`."""
        self._has_stream = False
        """Whether a stream settles it. Then the end of a `with` block leaves it open."""
        self._renew_leases()

    @property
    def cost(self) -> int:
        """The estimate in units; with several entries, the estimate of the first."""
        return self.costs[0]

    @property
    def is_open(self) -> bool:
        """Whether it can still be settled or cancelled, and there is something to give back."""
        return bool(self._unsettled) and self._receipt.took_anything

    def settle(self, actual: Actual) -> Decision:
        """Replace the estimate with the real cost; return what the limits have left.

        `actual`: units, 0 to 10^12. After `reserve_all` also a list with one number for each entry, or a mapping by the
        name of the rule or counter: `settle({"tpm": 640})` leaves the other entries at their estimates. One number is
        for all entries, if they have the same estimate.

        If `actual` is less than the estimate, the rest is given back, as far as it still counts. With `leaky_bucket`,
        only the newest hit can be given back. If `actual` is more, the difference is spent now, even past the limit,
        and the next hits wait. With a counter, the difference is always given back or taken, even below zero: then the
        customer owes it, `over` of the outcome says how much, and the next top-up pays it.

        The limits are those that apply now: an override may have changed them since.

        A reservation is settled once. A second call changes nothing and returns the first answer, in any process. While
        the store does not answer, the Decision is `degraded`, and the estimate stays spent; a reservation with a string
        (see `dumps`) can then be settled again.

        Raises `RuleError` for any other value, and seven days after the estimate was spent if there is a string of it.
        """
        return run_sync(self.settling(actual))

    async def asettle(self, actual: Actual) -> Decision:
        """Replace the estimate with the real cost, even if the task is cancelled; see `settle`."""
        return await run_to_the_end(self.settling(actual))

    def cancel(self) -> Decision:
        """Give back all of the estimate; see `settle`."""
        return self.settle(0)

    async def acancel(self) -> Decision:
        """Give back all of the estimate; see `settle`."""
        return await self.asettle(0)

    def extend(self, units: Actual) -> Decision:
        """Take more for the same work, all or nothing; the next `settle` settles the whole.

        `units`: 1 to 10^12. After `reserve_all` also a mapping by the name of the rule or counter, or a list. Strings
        that `dumps` returned before do not know what was added: store a new one.

        Raises `QuotaExceeded` if there is no room, and the reservation stays as it was; `RuleError` for any other
        value, and if the reservation is settled.
        """
        return run_call(self._extend_flow(units))

    async def aextend(self, units: Actual) -> Decision:
        """Take more for the same work; see `extend`."""
        return await run_async(self._extend_flow(units))

    def stream(self, response: StreamT, used: Callable[[], Actual]) -> StreamT:
        """Settle when a stream ends or its client goes away; return the stream to send instead.

        `return reservation.stream(StreamingHttpResponse(parts()), used=lambda: tokens.count)`.

        `response`: a `StreamingHttpResponse`, or any sync or async iterator. `used`: called once, when the stream has
        ended, failed or was closed; it returns what `settle` takes.

        If `used` raises, the error is logged and the estimate stays spent. The end of a `with` block leaves the
        reservation to the stream. If you leave a loop over an iterator early, call its `close()` or `aclose()`.

        Raises `RuleError` if the response is not streaming: then call `settle`.
        """
        stream = at_stream_end(response, partial(self._settling_used, used))
        self._has_stream = True
        return stream

    def dumps(self) -> str:
        """Return a signed string to store with your job; any process can settle `Reservation.loads(string)`.

        It is settled once, here or there, within seven days: the store remembers that for so long. The string has under
        1,000 characters for a usual entry. It is signed with `SECRET_KEY`, so it cannot be changed; but anybody who has
        it can settle it, so keep it on your servers. The end of a `with` block leaves the reservation to the string.
        """
        self._is_shared, self._receipt = True, self._receipt.for_others()
        return sign_receipt(self._receipt if self._unsettled else self._receipt.emptied())

    @classmethod
    def loads(cls, text: str) -> Self:
        """Return the reservation from a string that `dumps` made, in any process.

        A configured rule has its present limits, any other rule keeps its own. The `decision` has no outcomes. This
        process renews its lease from now on, if it has one.

        Raises `RuleError` for any other string, and if a configured rule or its tier no longer exists.
        """
        receipt = read_receipt(text)
        first = receipt.asks[0]
        reservation = cls(receipt, Decision.without_limit(first.rule.name, first.subject))
        reservation._is_shared = True
        reservation._renew_leases(first=RETRY)
        return reservation

    def settling(self, actual: Actual) -> Flow[Decision]:
        """Replace the estimate with the real cost; see `settle`."""
        costs = self._costs_of(actual)
        until = self._receipt.until if self._is_shared else 0
        if 0 < until <= clock.now():
            raise RuleError(
                f"The estimate of {self._receipt.asks[0].rule.name!r} was spent more than seven days ago.",
                "It stays counted: settle a reservation with a string within seven days.",
            )
        try:
            claim = self._unsettled.pop()
        except IndexError:  # it is settled, or another thread is about to
            if self._answer is not None:
                return self._answer
            return (yield from settlement_flow(Settlement.of(self._receipt.emptied(), costs)))
        renewer.remove(self)
        answer: Decision | None = None
        try:
            answer = self._answer = yield from settlement_flow(Settlement.of(self._receipt, costs, until=until))
        finally:
            if until and (answer is None or answer.degraded):  # the store knows whether it was settled
                self._unsettled.append(claim)
        return answer

    def _extend_flow(self, units: Actual) -> Flow[Decision]:
        more = self._numbers_of(units, "extend", [0] * len(self.costs))
        if not self._unsettled:
            raise RuleError("The reservation is settled, so it cannot be extended.", "Reserve again.")
        if not any(more):
            raise RuleError(f"extend({units!r}) takes nothing.", "Use 1 or more.")
        pairs = zip(self._receipt.asks, more, strict=True)
        answer = yield from _taken_flow([with_new_lease(ask._replace(cost=cost)) for ask, cost in pairs if cost])
        answer.decision.raise_if_refused()
        self._receipt = self._receipt.extended(answer.receipt())
        self.costs = self._receipt.costs
        return answer.decision

    def _renew_leases(self, first: float | None = None) -> None:
        """Renew its leases in the background. `first`: seconds until the first time, if fewer than usual."""
        lease = max(lease_of(ask.rule) for ask in self._receipt.asks)  # all that have one have the same
        if lease and self.is_open:
            renewer.add(self, lease / SECOND / 3, first=first)

    def keeping(self) -> Flow[None]:
        """Renew its leases once. One that has ended is not renewed if its units have gone back."""
        for take, operation in renewals_of(self._receipt):
            yield store_call(operation, in_database=take.store is not None)

    def _settling_used(self, used: Callable[[], Actual]) -> Flow[Decision]:
        try:
            actual: Actual = self._costs_of(used())
        except Exception:
            logger.exception("used= failed after a stream had ended: the estimate of its reservation stays spent.")
            actual = self.costs
        return (yield from self.settling(actual))

    def _costs_of(self, actual: Actual) -> list[int]:
        """Return the real cost of each entry."""
        return self._numbers_of(actual, "settle", self.costs)

    def _numbers_of(self, given: Actual, call: str, otherwise: Sequence[int]) -> list[int]:
        """Return a number for each entry, as `settle` or `extend` takes them. `otherwise`: for those that are left out.

        Raises `RuleError`.
        """
        names = [ask.rule.name for ask in self._receipt.asks]
        if isinstance(given, Mapping):
            for name in given:
                if name not in names:
                    problem = f"{call}() names {name!r}, which is not in the reservation."
                    raise RuleError(problem, did_you_mean(str(name), names).strip())
                if names.count(name) > 1:
                    raise RuleError(f"Rule {name!r} has several entries.", f"Use a list of {len(names)} numbers.")
            numbers: Sequence[object] = [given.get(name, each) for name, each in zip(names, otherwise, strict=True)]
        elif isinstance(given, (list, tuple)):
            if len(given) != len(names):
                raise RuleError(f"{given!r} has {len(given)} numbers, but the reservation has {len(names)} entries.")
            numbers = given
        else:
            if given and len(set(self.costs)) > 1:
                raise RuleError(
                    f"{call}() got one number, {given!r}, for {len(names)} entries with different estimates, "
                    f"{self.costs}.",
                    f"Name the entry: {call}({{{names[-1]!r}: {given!r}}}); the others stay as they are.",
                )
            numbers = [given] * len(names)
        return [validate_cost(cost, name) for cost, name in zip(numbers, names, strict=True)]

    def _is_left_to_block(self, error: BaseException | None) -> bool:
        """Return whether the end of a block settles it: not if the block tried to, or left it to a stream or string."""
        is_left = (self._has_stream or self._is_shared) and error is None
        return self.is_open and self._answer is None and not is_left

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        if self._is_left_to_block(error):
            self.settle(self.costs if error is None else 0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        if self._is_left_to_block(error):
            await self.asettle(self.costs if error is None else 0)


def reserve(
    rule_or_rate: RuleOrRate | CounterEntry,
    subject: AnySubject,
    cost: int | None = None,
    *,
    lease: Duration | None = None,
    **rule_options: Unpack[CallOptions],
) -> Reservation:
    """Spend an estimate; return the reservation, to settle it later.

    `with reserve("tokens", user, 2000) as reservation: ...; reservation.settle(1340)`.

    `rule_or_rate`, `subject`, `cost` and the options are those of `check`; a counter may replace the rule. `lease`: for
    a counter, above 0 and up to 366 days. A process that has the reservation renews it in the background. If all such
    processes are killed, the lease ends, and the units go back: with the next reservation of this counter and subject
    that has a lease, or with the sweep. If you settle after that, the real cost is taken.

    Raises `QuotaExceeded` if there is no room for the estimate, and `RuleError` if an argument is wrong.
    """
    return run_call(_reserve_flow(_ask_one_flow(rule_or_rate, subject, cost, rule_options), lease))


def areserve(
    rule_or_rate: RuleOrRate | CounterEntry,
    subject: AnySubject,
    cost: int | None = None,
    *,
    lease: Duration | None = None,
    **rule_options: Unpack[CallOptions],
) -> _Reserving:
    """Spend an estimate; await the result, or use it with `async with`. See `reserve`."""
    return _Reserving(_reserve_flow(_ask_one_flow(rule_or_rate, subject, cost, rule_options), lease))


class _Reserving:
    """What `areserve` returns: await it, or use it with `async with`."""

    def __init__(self, flow: Flow[Reservation]) -> None:
        self._reserving = run_async(flow)  # Python warns if it is never awaited

    def __await__(self) -> Generator[Any, Any, Reservation]:
        return self._reserving.__await__()

    async def __aenter__(self) -> Reservation:
        self._reservation = await self
        return self._reservation

    async def __aexit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        await self._reservation.__aexit__(kind, error, tb)


def reserve_all(entries: Iterable[AnyEntry], *, lease: Duration | None = None) -> Reservation:
    """Spend an estimate under several rules, all or nothing; return one reservation, to settle it later.

    `with reserve_all([("rpm", user), ("tpm", user, 900)]) as reservation: ...; reservation.settle({"tpm": 640})`.

    The entries are those of `check_all`; `lease` is that of `reserve`, for the counters among them. Raises
    `QuotaExceeded` if any entry has no room, and `RuleError` if an argument is wrong.
    """
    return run_call(_reserve_flow(ask_all_flow(entries), lease))


def areserve_all(entries: Iterable[AnyEntry], *, lease: Duration | None = None) -> _Reserving:
    """Spend an estimate under several rules; await the result, or use it with `async with`. See `reserve_all`."""
    return _Reserving(_reserve_flow(ask_all_flow(entries), lease))


def _ask_one_flow(
    rule: RuleOrRate | CounterEntry, subject: AnySubject, cost: int | None, options: CallOptions
) -> Flow[Sequence[Ask]]:
    """Return the flow that makes the ask of a reservation with one entry."""
    if not isinstance(rule, CounterEntry):
        return ask_flow(rule, subject, cost, None, options)
    if options:
        raise RuleError(f"{next(iter(options))}= is for rules, and {rule!r} is a counter.", "Leave it out.")
    return ask_all_flow([(rule, subject, cost)])


def _reserve_flow(asking: Flow[Sequence[Ask]], lease: Duration | None) -> Flow[Reservation]:
    asks = yield from asking
    refuse_distinct(asks, "a part of a value cannot be given back")
    check_costs(asks)
    answer = yield from _taken_flow(asks if lease is None else with_lease(asks, lease))
    answer.decision.raise_if_refused()
    return Reservation(answer.receipt(), answer.decision)


def _taken_flow(asks: Sequence[Ask]) -> Flow[Answer]:
    """Spend estimates; return the answer. If the caller is cancelled, they are given back."""
    answers: list[Answer] = []
    estimates = [ask._replace(is_estimate=True) for ask in asks]
    try:
        yield to_the_end(_spend_flow(estimates, answers))
    except asyncio.CancelledError:
        if answers and (receipt := answers[0].receipt()).taken:  # the caller does not get the reservation
            yield to_the_end(settlement_flow(Settlement.undone(receipt, is_refused=False)))
        raise
    return answers[0]


def _spend_flow(estimates: Sequence[Ask], answers: list[Answer]) -> Flow[None]:
    """Spend estimates, and note the answer: a flow that is run to the end returns nothing to a cancelled caller."""
    answers.append((yield from answer_flow(estimates, "check")))


# --- reservations as signed strings -----------------------------------------------------------------------------------

FORMAT_VERSION = 1

_SALT = "django_quota.reservation"

_OPTIONS = (
    *("algorithm", "burst", "precision", "tz", "count_refused", "share", "prefetch"),
    *("block", "shadow", "daily", "on_unavailable", "warn_at", "store"),
)
"""The options of a rule outside the settings that settling needs. The others matter to requests and refusals."""


def sign_receipt(receipt: Receipt) -> str:
    """Return the reservation as a signed string."""
    parts = []
    for part in receipt.parts:
        entries = []
        for ask in part.asks:
            taken = part.taken.get(ask.place)
            found = None if taken is None else (taken.moment, taken.limits, taken.drawn)
            entries.append((_written(ask.rule), ask.subject, ask.cost, ask.value, found))
        parts.append((part.id, part.decided_at, entries))
    return signing.dumps({"reservation": FORMAT_VERSION, "parts": parts}, salt=_SALT)


def read_receipt(text: str) -> Receipt:
    """Return what a reservation took. Raises `RuleError`."""
    try:
        read = signing.loads(text, salt=_SALT)
    except (signing.BadSignature, AttributeError, TypeError):  # it was changed, is of another site, or is not a string
        read = {}
    if read.get("reservation") != FORMAT_VERSION:
        raise RuleError(
            f"{str(text)[:40]!r} is not a reservation of this site.",
            "Use what reservation.dumps() returned, unchanged, and the same SECRET_KEY.",
        )
    first, *extensions = [_read_part(*part) for part in read["parts"]]
    return first._replace(extensions=extensions)


def _read_part(name: str, decided_at: int | None, entries: Iterable[Any]) -> Receipt:
    asks: list[Ask] = []
    taken: dict[Place, Taken] = {}
    for written, subject, cost, value, found in entries:
        rule = _rule_of(written, subject, cost)
        asks.append(Ask(rule, subject, validate_cost(cost, rule.name), value))
        if found:
            moment, limits, drawn = found
            taken[asks[-1].place] = Taken(moment, {key: tuple(limits[key]) for key in limits}, drawn=drawn)
    return Receipt(asks, taken, decided_at, name)


def _written(rule: Asked) -> dict[str, Any]:
    """Return what is needed to find or make a rule again: its name, with its rates and options or a counter's group."""
    if isinstance(rule, Take):
        return {
            "counter": rule.name,
            "group": rule.group,
            "ttl": rule.ttl,
            "lease": rule.leased_for,
            "store": rule.store,
        }
    if rule.name in current().rules:
        configured = current().rule(rule.name)
        for tier, of_tier in {"": configured, **configured.tiers}.items():
            if rule == (of_tier.starting(rule.starts) if of_tier.needs_start else of_tier):
                return {"name": rule.name, "tier": tier, **_written_start(rule)}
    options = {option: getattr(rule, option) for option in _OPTIONS if getattr(rule, option) != getattr(Rule, option)}
    return {"name": rule.name, "rates": [str(rate) for rate in rule.rates], **options, **_written_start(rule)}


def _written_start(rule: Rule) -> dict[str, str]:
    """Return the day on which the periods of the subject began when the hit was counted."""
    return {} if rule.starts is None else {"starts": rule.starts.isoformat()}


def _rule_of(written: dict[str, Any], subject: str, cost: int) -> Asked:
    """Return the rule that `_written` wrote; a configured one as it is now. Raises `RuleError` if that is gone."""
    if "counter" in written:
        return Take(written["counter"], written["group"], written["ttl"], written["lease"], written["store"])
    options = dict(written)
    name, start = options.pop("name"), options.pop("starts", None)
    day = None if start is None else date.fromisoformat(start)
    if "rates" in options:
        return Rule.make(name, *options.pop("rates"), starts=day, **options)
    rule = current().rule(name)
    if rule.tiers and written["tier"]:
        rule = rule_of_tier(rule, written["tier"])
    else:
        rule = rule_without_request(rule, subject, cost, None)
    return rule.starting(day) if rule.needs_start else rule
