"""The slots that requests hold: each takes them before its view, and gives them back after its response has been sent.

A `SlotRule` says which slot a request takes. `@concurrency` on a view, an entry of `RULES` with `at_once`, and
integrations each make one. A `Holding` has the leases of one request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from inspect import isawaitable
from typing import Any, ClassVar, TypedDict, Unpack, cast, get_args

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse

from django_quota.conf import QuotaSettings, current, import_option
from django_quota.core.algorithms.base import filled
from django_quota.core.decisions import Decision, QuotaExceeded
from django_quota.core.errors import LeaseLost, RuleError, StoreFull, StoreUnavailable, did_you_mean
from django_quota.core.flow import Flow, FlowBlock, IOCall, run_async, run_sync, to_the_end
from django_quota.core.matching import Match
from django_quota.core.rates import Duration
from django_quota.core.rule_options import OnUnavailable, Shares, read_share
from django_quota.core.rules import OPTIONS, check_default_shares, is_about_the_user
from django_quota.features.request_end import at_stream_end
from django_quota.features.slots.calls import MOST_AT_ONCE, Lease, Slot, count_later, slot
from django_quota.http.limited_requests import (
    add_decision,
    arefuse_in_view,
    log_untaken_slots,
    refuse_in_view,
    request_state,
    undo_flow,
    write_own_headers,
)
from django_quota.http.request_rules import RuleIndex, is_decided_later
from django_quota.http.responses import aanswer_refusal, answer_refusal, decision_of
from django_quota.http.settlements import show
from django_quota.http.views import called_view, wrap_view
from django_quota.limiting.asking import tier_flow
from django_quota.limiting.registry import get_limiter
from django_quota.subjects.addresses import is_from_exempt_network
from django_quota.subjects.keys import compile_key, subject_flow
from django_quota.subjects.subject import GLOBAL

logger = logging.getLogger("django_quota.slots")


class SlotOptions(TypedDict, total=False):
    """The options of `@concurrency` besides its `key`."""

    lease: Duration
    wait: Duration | None
    renew: bool
    on_unavailable: OnUnavailable | None
    block: bool
    share: Mapping[str, float] | None
    tier: Callable[[Any], Any] | None


SLOT_OPTIONS = ("at_once", "key", *SlotOptions.__annotations__)
"""The options of a slot in the settings and on views of frameworks."""


# --- which slot a request takes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SlotRule:
    """Which slot a request takes. An integration makes one with the arguments of `@concurrency`, and holds it.

    `async with rule.hold(request) as refused:`. If `refused` is not None, it is the response to send. If not, do the
    work in the block, whose end gives the slot back.
    """

    attribute: ClassVar[str] = "django_quota_slots"
    """What `@concurrency` leaves on a view; see `views.Noted`."""

    slot: Slot
    """The slot, without its subject."""
    key: Any
    """A key as rules have it: it gives the subject that takes the slot."""
    on_unavailable: OnUnavailable | None
    """What happens while the store does not answer; None for the setting."""
    blocks: bool
    """Whether a request without a slot is refused."""
    limits: Mapping[str, int]
    """How many requests of each tier may hold the slot; empty: as many as the slot has."""
    tier: Callable[[Any], Any] | None
    """Returns the tier of a request; None for the default tiers."""
    name_for: Callable[[type | None], str] | None = None
    """Names the slot by the class of its view (None for a function), if it has no name of its own."""
    match: Match | None = None
    """Where the middleware takes it."""
    exclude: Match | None = None
    """Where the middleware does not take it, even if `match` fits."""

    @classmethod
    def make(cls, name: str, limit: int, *, key: Any = GLOBAL, **options: Unpack[SlotOptions]) -> SlotRule:
        """Make a rule from the arguments of `@concurrency`. Raises `RuleError` if one is wrong."""
        _check_slot_options(options)
        block, on_unavailable, tier = options.get("block", True), options.get("on_unavailable"), options.get("tier")
        if not isinstance(cast("object", block), bool):
            raise RuleError(f"block={block!r} is not True or False.")
        if on_unavailable not in (None, *get_args(OnUnavailable)):
            raise RuleError(f"on_unavailable={on_unavailable!r} is not 'allow', 'deny' or 'local'.")
        limits = _limits_of_tiers(limit, options.get("share"), tier)
        renew = options.get("renew", False)
        whole = slot(name, limit, options.get("lease", 30), options.get("wait"), renew=renew)
        compile_key(key)
        return cls(whole, key, on_unavailable, block, limits, tier)

    @classmethod
    def read(cls, name: str, given: Mapping[str, Any]) -> SlotRule:
        """Make a rule from `at_once` and the options of `@concurrency`. Raises `RuleError` for a wrong one."""
        for option in given.keys() & (OPTIONS.keys() - {*SLOT_OPTIONS} | {"rate"}):
            raise RuleError(
                f"{option!r} cannot be combined with 'at_once', which limits how many run at once.",
                "Write two rules: one with 'rate', one with 'at_once'.",
            )
        _check_slot_options(given)
        options: dict[str, Any] = {
            option: tuple(value) if isinstance(value, list) else import_option(option, value)
            for option, value in given.items()
        }
        limit = options.pop("at_once", None)
        if type(limit) is not int or not 1 <= limit <= MOST_AT_ONCE:
            raise RuleError(
                f"at_once={limit!r} is not a whole number from 1 to {MOST_AT_ONCE:,}.", "Use, for example, 3."
            )
        return cls.make(name, limit, **options)

    @property
    def name(self) -> str:
        """Its name in keys, headers and errors, unless its view has a name for it."""
        return self.slot.name

    def name_on(self, owner: type | None) -> str:
        """Return the name of the slot for a view of this class; None for a function."""
        return self.slot.name if self.name_for is None else self.name_for(owner)

    def hold(self, request: HttpRequest) -> Holding:
        """Return a sync and async context manager that holds the slot for a request.

        Entering it returns the response to send if no slot is free, else None.
        """
        return Holding(partial(self.enter_flow, request))

    def around(self, view: Callable[..., Any], refuse: Callable[[Decision], Any] | None = None) -> Callable[..., Any]:
        """Return a view, sync or async, that runs another one while the request holds the slot.

        `refuse`: a function of the Decision that answers, or raises, if no slot is free; None: the usual response. If
        it is given, the user is known, so the slot never waits for the view.
        """

        def call_flow(request: HttpRequest, owner: type | None, args: Any, kwargs: Any) -> Flow[Any]:
            holding, called = Holding(), None if refuse else called_view(view, args)
            refused = yield from self.enter_flow(request, holding, owner, called, refuse)
            if refused is not None:
                return refused
            return (yield from _view_flow(request, holding, partial(view, *args, **kwargs)))

        def call(*given: Any) -> Any:
            return run_sync(call_flow(*given))

        def acall(*given: Any) -> Any:
            return run_async(call_flow(*given))

        return wrap_view(view, "@concurrency", call, acall)

    def enter_flow(
        self,
        request: HttpRequest,
        holding: Holding,
        owner: type | None = None,
        view: object = None,
        refuse: Callable[[Decision], Any] | None = None,
    ) -> Flow[Any]:
        """Let a request hold the slot; the flow's result is the response if no slot is free, else None.

        If the key is about the user, and `view` itself finds the user, the slot waits until the view takes it.
        """
        if not current().enabled or is_from_exempt_network(request):
            return None
        if is_about_the_user(self.key) and is_decided_later(view):
            state = request_state(request)
            state.waiting_slots = (*state.waiting_slots, partial(self.take_flow, request, holding, owner))
            return None
        decision = yield from self.take_flow(request, holding, owner)
        if not decision.enforced:
            return None
        if refuse is not None:
            return refuse(decision)
        return (yield IOCall(answer_refusal, aanswer_refusal, request, decision_of(request)))

    def take_flow(self, request: HttpRequest, holding: Holding, owner: type | None) -> Flow[Decision]:
        """Let a request hold the slot; return the decision, and add it to `request.quota`."""
        name, limit = self.name_on(owner), self.slot.limit
        subject = yield from subject_flow(self.key, request)
        if self.limits:
            limit = yield from tier_flow(name, self.limits, self.tier, request, min(self.limits.values()))
        asked = Slot(name, limit, subject, self.slot.lease, self.slot.wait, self.slot.renew)
        decision = yield from self._decide_flow(holding, asked)
        if not self.blocks:
            decision = _not_enforced(decision)
        if decision.enforced:
            for settled in (yield from undo_flow(request)):
                show(request, settled)
        add_decision(request, request_state(request), decision)
        return decision

    def _decide_flow(self, holding: Holding, asked: Slot) -> Flow[Decision]:
        """Take a lease, as `on_unavailable` says if the store does not answer; return the decision."""
        limiter = get_limiter()
        lease = Lease(asked, limiter.reporting_store)
        try:
            return (yield from holding.lease_flow(lease, asked.wait))
        except StoreUnavailable as error:  # the store has reported it
            how = current().without_store(self.on_unavailable, type(error))
            how = "deny" if isinstance(error, StoreFull) else how
        denied = Decision.without_limit(asked.name, asked.subject, allowed=False, enforced=True, degraded=True)
        decision = denied if how == "deny" else Decision.without_limit(asked.name, asked.subject, degraded=True)
        if how == "local":
            local = Lease(asked, limiter.fallback.local)
            try:
                decision = replace((yield from holding.lease_flow(local, asked.wait)), degraded=True)
            except StoreFull:
                decision = denied
        if decision.allowed and asked.renew:
            count_later(lease, asked)
            holding.leases.append(lease)
        return decision


def _check_slot_options(given: Mapping[str, Any]) -> None:
    for option in given.keys() - {*SLOT_OPTIONS}:
        raise RuleError(f"{option!r} is not an option of a slot.", did_you_mean(str(option), SLOT_OPTIONS).strip())


def _limits_of_tiers(limit: int, share: object, tier: object) -> dict[str, int]:
    """Return how many requests of each tier may hold a slot; empty if `share` is None. Raises `RuleError`."""
    if tier is not None and (share is None or not callable(tier)):
        wrong = "needs share=, the shares of the tiers" if share is None else "is not a function of the request"
        raise RuleError(f"tier={tier!r} {wrong}.", "Use, for example, share={'critical': 1.0, 'batch': 0.5}.")
    if share is None:
        return {}
    shares = read_share(share)
    if not isinstance(shares, Shares):
        raise RuleError(f"share={share!r} is not a dict of shares by tier.", "For all requests, give a lower limit.")
    if tier is None:
        check_default_shares(shares)
    return {name: filled(limit, part) for name, part in shares.of_tiers}


def _not_enforced(decision: Decision) -> Decision:
    """Return the decision, not enforced."""
    outcomes = tuple(outcome._replace(enforced=False) for outcome in decision.outcomes)
    return replace(decision, enforced=False, _given=outcomes)


# --- holding ----------------------------------------------------------------------------------------------------------


def _nothing(_: Holding) -> Flow[HttpResponse | None]:
    yield from ()
    return None


class Holding(FlowBlock["HttpResponse | None"]):
    """The leases of one request. It takes them before the work, and gives them back after its response has been sent.

    `enter`: the flow that takes them at the beginning of a `with` block.
    """

    def __init__(self, enter: Callable[[Holding], Flow[HttpResponse | None]] = _nothing) -> None:
        self.leases: list[Lease] = []
        self._enter = enter

    def lease_flow(self, lease: Lease, timeout: float) -> Flow[Decision]:
        """Take a lease if a slot is free within `timeout` seconds; return the decision. Raises `StoreUnavailable`."""
        try:
            yield from lease.taking(timeout)
        except QuotaExceeded as exceeded:
            return exceeded.decision
        self.leases.append(lease)
        return lease.decision

    def while_flow(self, work: Callable[[], Any]) -> Flow[Any]:
        """Do work, then give the leases back; return the response of the work.

        A streaming response keeps the leases until it has been sent or the request ends. If sync code gets an awaitable
        response, it awaits it in another `while_flow`, which gives the leases back.
        """
        try:
            response = yield IOCall(work, partial(_answered, work))
        except GeneratorExit:
            raise
        except BaseException:
            yield to_the_end(self.release_flow())
            raise
        if not self.leases or isawaitable(response):
            return response
        if isinstance(response, StreamingHttpResponse):
            return at_stream_end(response, self.release_flow)
        yield to_the_end(self.release_flow())
        return response

    def release_flow(self) -> Flow[None]:
        """Give the leases back. A second call does nothing."""
        for lease in self.leases:
            try:
                yield from lease.releasing()
            except LeaseLost as lost:
                logger.warning(
                    "A view took longer than its lease, so more requests than the limit may have run at once. %s", lost
                )
            except StoreUnavailable as error:
                logger.warning("A slot was not given back, and stays taken until its lease ends. %s", error)

    def entering(self) -> Flow[HttpResponse | None]:
        """Take the leases; the flow's result is the response if the request is refused."""
        return self._enter(self)

    def leaving(self, error: BaseException | None) -> Flow[None]:  # noqa: ARG002 — it is the same after an error
        """Give the leases back."""
        return self.release_flow()


async def _answered(work: Callable[[], Any]) -> Any:
    response = work()
    return (await response) if isawaitable(response) else response


def _view_flow(request: HttpRequest, holding: Holding, view: Callable[[], Any]) -> Flow[Any]:
    """Call a view that holds slots; return its response, or a coroutine if the view is async after all."""
    try:
        response = yield from holding.while_flow(view)
    except QuotaExceeded as exceeded:
        return (yield IOCall(refuse_in_view, arefuse_in_view, request, exceeded.decision))
    if isawaitable(response):  # an async view behind a sync wrapper
        return run_async(_view_flow(request, holding, lambda: response))
    log_untaken_slots(request, response)
    return write_own_headers(request, response)


# --- slots of the settings --------------------------------------------------------------------------------------------


def site_slot(name: str, given: Mapping[str, Any]) -> SlotRule:
    """Read an entry of `RULES` with `at_once`. Raises `RuleError` with its place."""
    try:
        rule = SlotRule.read(name, {each: given[each] for each in given if each not in ("match", "exclude")})
        if given.get("match") is None:
            raise RuleError(  # noqa: TRY301
                "it has no 'match', so it limits nothing.",
                "Use, for example, 'match': '/export/', or @concurrency on a view.",
            )
        exclude = given.get("exclude")
        match = Match.read("match", given["match"])
        return replace(rule, match=match, exclude=None if exclude is None else Match.read("exclude", exclude))
    except RuleError as error:
        raise RuleError(f'QUOTA["RULES"][{name!r}]: {error}') from error


def take_slots_flow(holding: Holding, request: HttpRequest, view: object) -> Flow[HttpResponse | None]:
    """Take the configured slots that fit a request; return the response if one is not free."""
    for rule in slot_index(current()).find(request):
        refused: HttpResponse | None = yield from rule.enter_flow(request, holding, view=view)
        if refused is not None:
            return refused
    return None


@lru_cache(maxsize=1)
def slot_index(settings: QuotaSettings) -> RuleIndex[SlotRule]:
    """Return the slots of the settings."""
    return RuleIndex([site_slot(*entry) for entry in settings.slots().items()])
