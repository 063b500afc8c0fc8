"""`@concurrency`: so many requests at once in a view, sync, async or class-based. The slots are those of `leases`.

A slot is taken before the view and given back after it: where the response streams, once it has been sent or closed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial, wraps
from inspect import isawaitable
from types import TracebackType
from typing import Any, Self, TypeVar, cast, get_args

from django.http import HttpRequest, HttpResponse, HttpResponseBase

from django_quota.conf import current
from django_quota.decisions import Decision
from django_quota.edge import aenter, arefuse_in_view, enter, leave, refuse_in_view
from django_quota.exceptions import LeaseLost, QuotaExceeded, RuleError, StoreFull, StoreUnavailable
from django_quota.leases import Lease, Slot
from django_quota.limiter import get_limiter
from django_quota.rules import OnUnavailable, path_of
from django_quota.stores.base import Store
from django_quota.subjects import GLOBAL, Ask, Flow, aanswer, answer, compile_key, subject_flow
from django_quota.view_kinds import dispatch_of, is_async, naming, request_of

logger = logging.getLogger("django_quota")

V = TypeVar("V", bound=Callable[..., Any])
"""A view function, a method of a view, or a class of views."""


def concurrency(
    limit: int,
    key: Any = GLOBAL,
    lease: float = 30,
    wait: float | None = None,
    name: str | None = None,
    *,
    renew: bool = False,
    on_unavailable: OnUnavailable | None = None,
    block: bool = True,
) -> Callable[[V], V]:
    """Let so many requests at once into a view.

    `limit`: how many, 1 to 1,000,000, for each subject that `key` tells, as that of a rule does (`"user"`, `"ip"`, a
    function of the request); `"global"`: in all. `lease`: seconds after which a slot comes free by itself, as one does
    that a killed worker held: longer than the view takes. `wait`: seconds to wait for a slot, first come, first served;
    None or 0: not at all. `name`: what the slot is called; by default the path of the view's function or class; views
    that name the same one share it. `renew`: renew the lease in the background, for views that may take longer.
    `on_unavailable`: what holds while the store does not answer: `"allow"`, `"deny"` (503) or `"local"` (each process
    by itself); None for the setting's. `block`: whether a refusal answers the request with 429, or only shows on
    `request.quota`, and the view goes on without a slot.

    A response that is rendered later (a `TemplateResponse`) is rendered after the slot has been given back.

    Raises `RuleError` at import where an argument is wrong.
    """
    if callable(cast("object", limit)):
        raise RuleError(f"@concurrency stands bare on {path_of(limit)}. Write it with a limit: @concurrency(10).")
    made = partial(Slot, limit=limit, lease=lease, wait=wait, renew=renew)
    made("unnamed" if name is None else name)
    compile_key(key)
    if on_unavailable not in (None, *get_args(OnUnavailable)):
        raise RuleError(f"on_unavailable={on_unavailable!r} is not 'allow', 'deny' or 'local'.")
    if not isinstance(cast("object", block), bool):
        raise RuleError(f"block={block!r} is not True or False.")

    def decorate(view: Any) -> Any:
        if isinstance(view, type):
            cast("Any", view).dispatch = decorate(dispatch_of(view, "@concurrency"))
            return view
        if isinstance(view, HttpRequest) or not callable(view):
            raise RuleError(f"@concurrency stands on {type(view).__name__}, not on a view.")
        name_for = naming(view) if name is None else lambda _: name
        gate = Gate(made, name_for, key, on_unavailable, block=block, is_named=name is not None)
        wrapped = _wrap(view, gate)
        gate.wrapper = wrapped
        setattr(wrapped, _MARK, gate)
        return wrapped

    return decorate


_MARK = "_django_quota_gate"


def gate_of(view: object) -> Gate | None:
    """Return what `@concurrency` keeps of a view that it wraps itself; None for others."""
    gate = getattr(view, _MARK, None)  # which functools.wraps copies to others, too
    return gate if isinstance(gate, Gate) and gate.wrapper is view else None


class Gate:
    """What lets requests into one view."""

    def __init__(
        self,
        make: Callable[[str], Slot],
        name_for: Callable[[type | None], str],
        key: object,
        on_unavailable: OnUnavailable | None,
        *,
        block: bool,
        is_named: bool,
    ) -> None:
        self.is_named = is_named
        """Whether it was given a name, and is not called by its view's path."""
        self._make = make
        self._name_for = name_for
        self._key = key
        self._on_unavailable = on_unavailable
        self._block = block
        self.wrapper: Callable[..., Any] | None = None
        self._slots: dict[str, Slot] = {}

    def entering(self, request: HttpRequest, owner: type | None) -> Flow:
        """Return (as the flow's result) what the request holds, and the answer where it is refused."""
        if not current().enabled:
            return _Holding(None), None
        slot = self.slot(owner)
        subject = yield from subject_flow(self._key, request)
        lease, decision = yield from self._taking(slot, subject)
        holding = _Holding(lease)
        told = (request, decision if self._block else _aside(decision))
        return holding, (yield Ask(partial(enter, *told), partial(aenter, *told)))

    def slot(self, owner: type | None) -> Slot:
        """Return the slot that a view of this class takes; None: a function."""
        name = self._name_for(owner)
        slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = self._make(name)
        return slot

    def _taking(self, slot: Slot, subject: str) -> Flow:
        """Return (as the flow's result) the lease, None where there is none, and the decision."""
        limiter = get_limiter()
        try:
            return (yield from _trying(slot, subject, limiter.telling))
        except StoreFull:
            return None, Decision(False, slot.name, subject, degraded=True, blocked=True)
        except StoreUnavailable as error:  # told of by the store
            how = self._on_unavailable or current().without_store(is_full=error.out_of_memory)
        if how == "local":
            try:
                lease, decision = yield from _trying(slot, subject, limiter.local)
            except StoreFull:
                how = "deny"
            else:
                return lease, replace(decision, degraded=True)
        denied = how == "deny"
        return None, Decision(not denied, slot.name, subject, degraded=True, blocked=denied)


def _trying(slot: Slot, subject: str, store: Store) -> Flow:
    try:
        lease = yield from slot.acquiring(subject, store)
    except QuotaExceeded as exceeded:
        return None, exceeded.decision
    return lease, lease.decision


def _aside(decision: Decision) -> Decision:
    """Return a decision that does not block."""
    outcomes = tuple(outcome._replace(blocks=False) for outcome in decision.outcomes)
    return replace(decision, outcomes=outcomes, binding=outcomes[0] if outcomes else None, blocked=False)


class _Holding:
    """What a request holds while the view runs: a lease, or nothing.

    Leaving its block gives it back, unless it was passed on within.
    """

    def __init__(self, lease: Lease | None) -> None:
        self._lease = lease
        self._is_passed_on = False

    def pass_on(self) -> Self:
        """Keep the lease past the end of the block: somebody else gives it back."""
        self._is_passed_on = True
        return self

    def until_closed(self, response: HttpResponseBase) -> HttpResponseBase:
        """Keep the lease, where the response streams, until it has been sent or is closed."""
        if self._lease is None or not getattr(response, "streaming", False):
            return response
        self.pass_on()
        streaming = cast("Any", response)
        streaming._resource_closers.append(self.let_go)  # noqa: SLF001 — Django has no other way to hear of the end
        if getattr(response, "file_to_stream", None) is None:  # the server itself sends a file, and closes it
            wrap = self._astreamed if streaming.is_async else self._streamed
            streaming.streaming_content = wrap(streaming.streaming_content)
        return response

    def _streamed(self, content: Iterator[bytes]) -> Iterator[bytes]:
        try:
            yield from content
        finally:
            self.let_go()

    async def _astreamed(self, content: Any) -> AsyncIterator[bytes]:
        try:
            async with aclosing(content):
                async for part in content:
                    yield part
        except GeneratorExit:
            raise  # whoever cuts a response short closes it; this may be the end of the event loop
        except BaseException:
            await self.alet_go()
            raise
        await self.alet_go()

    def let_go(self) -> None:
        """Give the lease back; a second time, nothing happens."""
        answer(self._letting_go())

    async def alet_go(self) -> None:
        """Give the lease back; see `let_go`."""
        await aanswer(self._letting_go())

    def _letting_go(self) -> Flow:
        if self._lease is None:
            return
        try:
            yield Ask(self._lease.release, self._lease.arelease)
        except LeaseLost as lost:
            logger.warning("A view has taken longer than its lease, and others may have been in it. %s", lost)
        except StoreUnavailable as error:
            logger.warning("A slot was not given back, and comes free when its lease ends. %s", error)

    def __enter__(self) -> Self:
        self._is_passed_on = False
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None or not self._is_passed_on:
            self.let_go()

    async def __aenter__(self) -> Self:
        self._is_passed_on = False
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if error is not None or not self._is_passed_on:
            await self.alet_go()


# --- wrappers ---------------------------------------------------------------------------------------------------------


def _wrap(view: Callable[..., Any], gate: Gate) -> Callable[..., Any]:
    async def acall(request: HttpRequest, owner: type | None, args: Any, kwargs: Any) -> HttpResponseBase:
        holding, refused = await aanswer(gate.entering(request, owner))
        if refused is not None:
            return cast("HttpResponse", refused)
        return await _afinish(request, partial(view, *args, **kwargs), holding)

    if is_async(view):

        @wraps(view)
        async def guarded_async_view(*args: Any, **kwargs: Any) -> HttpResponseBase:
            return await acall(*request_of(args, kwargs, "@concurrency"), args, kwargs)

        return guarded_async_view

    @wraps(view)
    def guarded_view(*args: Any, **kwargs: Any) -> Any:
        request, owner = request_of(args, kwargs, "@concurrency")
        if owner is not None and getattr(owner, "view_is_async", False):
            # dispatch() of an async class-based view: a plain function that returns a coroutine.
            return acall(request, owner, args, kwargs)
        holding, refused = answer(gate.entering(request, owner))
        if refused is not None:
            return refused
        return _finish(request, partial(view, *args, **kwargs), holding)

    return guarded_view


def _finish(request: HttpRequest, view: Callable[[], Any], holding: _Holding) -> Any:
    """Call a view that holds a slot; return its response, or what finishes it where it must be awaited after all."""
    try:
        with holding:
            response = view()
            if isawaitable(response):  # an async view that does not say so
                return _afinish(request, lambda: response, holding.pass_on())
            return holding.until_closed(leave(request, response))
    except QuotaExceeded as exceeded:
        return refuse_in_view(request, exceeded.decision)


async def _afinish(request: HttpRequest, view: Callable[[], Any], holding: _Holding) -> HttpResponseBase:
    try:
        async with holding:
            response = view()
            if isawaitable(response):
                response = await response
            return holding.until_closed(leave(request, cast("HttpResponse", response)))
    except QuotaExceeded as exceeded:
        return await arefuse_in_view(request, exceeded.decision)
