"""`@concurrency`: a limit on requests that are in a view at once, sync, async or class-based.

A request takes a slot before its view runs and gives it back afterwards, or when its streaming response ends. The slots
of the settings and of integrations work the same way.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, aclosing
from dataclasses import replace
from functools import cache, partial
from inspect import isawaitable
from typing import Any, NamedTuple, Self, TypeAlias, TypedDict, TypeVar, Unpack, cast, get_args

from django.http import HttpRequest, HttpResponse, HttpResponseBase

from django_quota.conf import current, import_option
from django_quota.core.algorithms.base import filled
from django_quota.core.decisions import Decision, QuotaExceeded
from django_quota.core.errors import (
    LeaseLost,
    RuleError,
    StoreFull,
    StoreUnavailable,
    did_you_mean,
)
from django_quota.core.flow import Flow, IOCall, run_async, run_sync
from django_quota.core.rates import Duration
from django_quota.core.rule_options import OnUnavailable, Shares, read_share
from django_quota.core.rules import OPTIONS, check_default_shares, dotted_path, is_about_the_user
from django_quota.features.request_end import at_request_end
from django_quota.features.slots.slots import MAX_SLOTS, Lease, Slot
from django_quota.limiting.registry import get_limiter
from django_quota.requests.request_hits import tier_flow
from django_quota.requests.request_keys import compile_key, subject_flow
from django_quota.requests.subjects import GLOBAL
from django_quota.web.headers import decision_of
from django_quota.web.limited_requests import (
    add_decision,
    arefuse_in_view,
    log_untaken_slots,
    refuse_in_view,
    state_of,
    undo_flow,
    write_own_headers,
)
from django_quota.web.request_rules import is_decided_later
from django_quota.web.responses import arefusal, refusal
from django_quota.web.settlements import show
from django_quota.web.view_kinds import called_view, dispatch_of, naming, wrap_view
from django_quota.web.view_marks import mark

logger = logging.getLogger("django_quota")

V = TypeVar("V", bound=Callable[..., Any])
"""A view function, a method of a view, or a class of views."""


class SlotOptions(TypedDict, total=False):
    """The options of `@concurrency` beside its `key`."""

    lease: Duration
    wait: Duration | None
    renew: bool
    on_unavailable: OnUnavailable | None
    block: bool
    share: Mapping[str, float] | None
    tier: Callable[[Any], Any] | None


def concurrency(
    limit: int, key: Any = GLOBAL, *, name: str | None = None, **options: Unpack[SlotOptions]
) -> Callable[[V], V]:
    """Limit how many requests are in a view at once.

    `limit`: 1 to 1,000,000, for each subject. `key`: the key of a rule: `"user"`, `"ip"`, a function of the request;
    `"global"` counts all requests together. `lease`: the time after which a slot is free again, even if its worker was
    killed: above 0 and up to 366 days, by default 30 seconds. Choose more than the view takes. `wait`: how long to wait
    for a slot; None or 0: do not wait. `name`: the name of the slot, by default the path of the function, of the class,
    or of the class and the method. Views with the same name share it. `renew`: renew the lease in the background, for
    views that may take longer. `on_unavailable`: what happens while the store does not answer: `"allow"`, `"deny"`
    (503) or `"local"` (each process counts by itself); None for the setting. `block`: if False, a refusal only shows on
    `request.quota`, and the view runs without a slot. `share`: how much of the limit requests of each tier may fill,
    `{"critical": 1.0, "batch": 0.5}`: all count together, and batch is refused above half of the limit. `tier`: a
    function of the request that returns the tier; by default `"anonymous"` or `"authenticated"`.

    A `TemplateResponse` is rendered after the slot has been given back.

    Raises `RuleError` at import if an argument is wrong.
    """
    if callable(cast("object", limit)):
        raise RuleError(f"@concurrency has no limit on {dotted_path(limit)}. Write, for example, @concurrency(10).")
    slots = RequestSlot("@concurrency" if name is None else name, limit, key=key, **options)

    def decorate(view: Any) -> Any:
        if isinstance(view, type):
            cast("Any", view).dispatch = decorate(dispatch_of(view, "@concurrency"))
            return view
        if isinstance(view, HttpRequest) or not callable(view):
            raise RuleError(f"@concurrency is on {type(view).__name__}, not on a view.")
        name_for = naming(view) if name is None else lambda _: name

        def enter(request: HttpRequest, owner: type | None, args: tuple[Any, ...]) -> Flow[Entered]:
            return slots.enter_flow(request, name_for(owner), called_view(view, args))

        wrapped = _wrap(view, enter)
        mark(wrapped, Gate(name_for, name is not None, key), decorate)
        return wrapped

    return decorate


class Gate(NamedTuple):
    """What `@concurrency` remembers of a view."""

    name_for: Callable[[type | None], str]
    """Returns the name of the slot, for a view of this class (None for a function)."""
    is_named: bool
    """Whether the slot has a name of its own, and not the path of its view."""
    key: Any
    """Who holds the slot."""


Entered: TypeAlias = "tuple[Holding, HttpResponse | None]"
"""What a request holds, and the response if it is refused."""

SLOT_OPTIONS = ("at_once", "key", *SlotOptions.__annotations__)
"""The options of a slot in the settings and on views of frameworks."""


class RequestSlot:
    """A slot that requests hold, for an integration without views. It takes the arguments of `@concurrency`.

    `holding, refused = await slot.aenter(request)`. If `refused` is not None, it is the response to send. If not, do
    the work inside `async with holding:`, whose end gives the slot back. Raises `RuleError` if an argument is wrong.
    """

    def __init__(self, name: str, limit: int, *, key: Any = GLOBAL, **options: Unpack[SlotOptions]) -> None:
        _check_names(options)
        block, on_unavailable = options.get("block", True), options.get("on_unavailable")
        if not isinstance(cast("object", block), bool):
            raise RuleError(f"block={block!r} is not True or False.")
        if on_unavailable not in (None, *get_args(OnUnavailable)):
            raise RuleError(f"on_unavailable={on_unavailable!r} is not 'allow', 'deny' or 'local'.")
        self.name: str = name
        """Its name in keys, headers and errors."""
        self.key: Any = key
        """Who holds the slot."""
        self._block = block
        self._on_unavailable = on_unavailable
        self._limit = limit
        self._tier = options.get("tier")
        self._limits = _limits_of_tiers(limit, options.get("share"), self._tier)
        lease, wait, renew = options.get("lease", 30), options.get("wait"), options.get("renew", False)
        self._make = cache(partial(Slot, lease=lease, wait=wait, renew=renew))
        self._make(name, limit)
        compile_key(key)

    @classmethod
    def read(cls, name: str, given: Mapping[str, Any]) -> Self:
        """Make a slot from `at_once` and the options of `@concurrency`. Raises `RuleError` for a wrong one."""
        for option in given.keys() & (OPTIONS.keys() - {*SLOT_OPTIONS} | {"rate"}):
            raise RuleError(
                f"{option!r} cannot be combined with 'at_once', which limits how many run at once.",
                "Write two rules: one with 'rate', one with 'at_once'.",
            )
        _check_names(given)
        options: dict[str, Any] = {
            option: tuple(value) if isinstance(value, list) else import_option(option, value)
            for option, value in given.items()
        }
        limit = options.pop("at_once", None)
        if type(limit) is not int or not 1 <= limit <= MAX_SLOTS:
            raise RuleError(f"at_once={limit!r} is not a whole number from 1 to {MAX_SLOTS:,}.", "Use, for example, 3.")
        return cls(name, limit, **options)

    def around(self, view: Callable[..., Any], refuse: Callable[[Decision], Any]) -> Callable[..., Any]:
        """Return a view, sync or async, that runs another one while the request holds the slot.

        `refuse`: a function of the Decision that answers, or raises, if no slot is free.
        """

        def enter(request: HttpRequest, _owner: type | None, _args: tuple[Any, ...]) -> Flow[Entered]:
            holding = Holding()
            if not current().enabled:
                return holding, None
            decision = yield from self._fill_flow(holding, request, self.name)
            return holding, refuse(decision) if decision.enforced else None

        return _wrap(view, enter)

    def enter(self, request: HttpRequest) -> tuple[AbstractContextManager[Any], HttpResponse | None]:
        """Take a slot for a request; return a context manager that holds it, and a response if no slot is free."""
        return run_sync(self.enter_flow(request, self.name))

    async def aenter(self, request: HttpRequest) -> tuple[AbstractAsyncContextManager[Any], HttpResponse | None]:
        """Take a slot without blocking the event loop; see `enter`."""
        return await run_async(self.enter_flow(request, self.name))

    def enter_flow(
        self, request: HttpRequest, name: str, view: object = None, holding: Holding | None = None
    ) -> Flow[Entered]:
        """Take the slot of this name for a request; see `enter`.

        If the key is about the user, and `view` itself finds the user, the slot waits until the view takes it.
        `holding`: what the request holds until now.
        """
        holding = Holding() if holding is None else holding
        if not current().enabled:
            return holding, None
        fill = partial(self._fill_flow, holding, request, name)
        if is_about_the_user(self.key) and is_decided_later(view):
            state = state_of(request)
            state.waiting_slots = (*state.waiting_slots, fill)
            return holding, None
        decision = yield from fill()
        refused = (yield IOCall(refusal, arefusal, request, decision_of(request))) if decision.enforced else None
        return holding, refused

    def _fill_flow(self, holding: Holding, request: HttpRequest, name: str) -> Flow[Decision]:
        """Let a request hold a slot; return the decision, and add it to `request.quota`."""
        subject, limit = (yield from subject_flow(self.key, request)), self._limit
        if self._limits:
            limit = yield from tier_flow(name, self._limits, self._tier, request)
        decision = yield from self._take_flow(holding, self._make(name, limit), subject)
        if not self._block:
            decision = _not_enforced(decision)
        if decision.enforced:
            for settled in (yield from undo_flow(request)):
                show(request, settled)
        add_decision(request, state_of(request), decision)
        return decision

    def _take_flow(self, holding: Holding, slot: Slot, subject: str) -> Flow[Decision]:
        """Let a request hold a slot, unless it gets none; return the decision."""
        limiter = get_limiter()
        lease = Lease(slot, subject, limiter.reporting_store)
        try:
            return (yield from _lease_flow(holding, lease, slot.timeout))
        except StoreUnavailable as error:  # the store has reported it
            how = current().without_store(self._on_unavailable, type(error))
            how = "deny" if isinstance(error, StoreFull) else how
        denied = Decision.without_limit(slot.name, subject, allowed=False, enforced=True, degraded=True)
        decision = denied if how == "deny" else Decision.without_limit(slot.name, subject, degraded=True)
        if how == "local":
            local = Lease(slot, subject, limiter.fallback.local)
            try:
                decision = replace((yield from _lease_flow(holding, local, slot.timeout)), degraded=True)
            except StoreFull:
                decision = denied
        if decision.allowed and slot.renews:
            lease.count_later()
            holding.leases.append(lease)
        return decision


def _check_names(given: Mapping[str, Any]) -> None:
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


def _lease_flow(holding: Holding, lease: Lease, timeout: float) -> Flow[Decision]:
    try:
        yield from lease.taking(timeout)
    except QuotaExceeded as exceeded:
        return exceeded.decision
    holding.leases.append(lease)
    return lease.decision


def _not_enforced(decision: Decision) -> Decision:
    """Return the decision, not enforced."""
    outcomes = tuple(outcome._replace(enforced=False) for outcome in decision.outcomes)
    return replace(decision, enforced=False, _given=outcomes)


class Holding:
    """The leases of a request while its view runs, if there are any.

    The end of the `with` block gives them back, unless `pass_on` was called.
    """

    def __init__(self) -> None:
        self.leases: list[Lease] = []
        self._is_passed_on = False
        self._withdraw: Callable[[], None] | None = None

    def pass_on(self) -> Self:
        """Keep the leases after the end of the block."""
        self._is_passed_on = True
        return self

    def until_closed(self, response: HttpResponseBase) -> HttpResponseBase:
        """Keep the leases until a streaming response has been sent, or the request ends without that."""
        if not self.leases or not getattr(response, "streaming", False):
            return response
        self.pass_on()
        self._withdraw = at_request_end(self.release)  # a middleware may drop the response
        streaming = cast("Any", response)
        streaming._resource_closers.append(self.release)  # noqa: SLF001 — Django has no other way to hear of its close()
        if getattr(response, "file_to_stream", None) is None:  # the server sends a file itself, and closes it
            wrap = self._astreamed if streaming.is_async else self._streamed
            streaming.streaming_content = wrap(streaming.streaming_content)
        return response

    def _streamed(self, content: Iterator[bytes]) -> Iterator[bytes]:
        try:
            yield from content
        finally:
            self.release()

    async def _astreamed(self, content: Any) -> AsyncIterator[bytes]:
        try:
            async with aclosing(content):
                async for part in content:
                    yield part
        except GeneratorExit:
            raise  # the response is closed next; the event loop may be at its end
        except BaseException:
            await self.arelease()
            raise
        await self.arelease()

    def release(self) -> None:
        """Give the leases back. A second call does nothing."""
        run_sync(self._release_flow())

    async def arelease(self) -> None:
        """Give the leases back; see `release`."""
        await run_async(self._release_flow())

    def _release_flow(self) -> Flow[Any]:
        if self._withdraw is not None:
            self._withdraw()
        cancelled: CancelledError | None = None
        for lease in self.leases:
            try:
                yield IOCall(lease.release, lease.arelease)
            except LeaseLost as lost:
                logger.warning(
                    "A view took longer than its lease, so more requests than the limit may have been in it. %s", lost
                )
            except StoreUnavailable as error:
                logger.warning("A slot was not given back, and stays taken until its lease ends. %s", error)
            except CancelledError as error:  # this one has been given back, and the others follow
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def __enter__(self) -> Self:
        self._is_passed_on = False
        return self

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        if self.leases and (error is not None or not self._is_passed_on):
            self.release()

    async def __aenter__(self) -> Self:
        self._is_passed_on = False
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        if self.leases and (error is not None or not self._is_passed_on):
            await self.arelease()


# --- wrappers ---------------------------------------------------------------------------------------------------------


def _wrap(
    view: Callable[..., Any], enter: Callable[[HttpRequest, type | None, tuple[Any, ...]], Flow[Entered]]
) -> Callable[..., Any]:
    def call(request: HttpRequest, owner: type | None, args: Any, kwargs: Any) -> Any:
        holding, refused = run_sync(enter(request, owner, args))
        return _finish(request, partial(view, *args, **kwargs), holding) if refused is None else refused

    async def acall(request: HttpRequest, owner: type | None, args: Any, kwargs: Any) -> HttpResponseBase:
        holding, refused = await run_async(enter(request, owner, args))
        return await _afinish(request, partial(view, *args, **kwargs), holding) if refused is None else refused

    return wrap_view(view, "@concurrency", call, acall)


def _finish(request: HttpRequest, view: Callable[[], Any], holding: Holding) -> Any:
    """Call a view that holds a slot; return its response, or a coroutine if the view is async after all."""
    try:
        with holding:
            response = view()
            if isawaitable(response):  # an async view behind a sync wrapper
                return _afinish(request, lambda: response, holding.pass_on())
            log_untaken_slots(request, response)
            return holding.until_closed(write_own_headers(request, response))
    except QuotaExceeded as exceeded:
        return refuse_in_view(request, exceeded.decision)


async def _afinish(request: HttpRequest, view: Callable[[], Any], holding: Holding) -> HttpResponseBase:
    try:
        async with holding:
            response = view()
            if isawaitable(response):
                response = await response
            log_untaken_slots(request, response)
            return holding.until_closed(write_own_headers(request, response))
    except QuotaExceeded as exceeded:
        return await arefuse_in_view(request, exceeded.decision)
