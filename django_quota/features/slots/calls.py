"""Slots, which a limited number of callers hold at a time, and locks, which are slots of one.

A `Slot` has a name, a limit and a subject. A caller that takes it gets a `Lease`, and holds the slot until the lease is
released or ends.

Slots and locks guard work that must not run twice at a time. So they ignore the setting `ENABLED`, and raise
`StoreUnavailable` if the store does not answer, rather than let a caller in. The operations are at the end.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, cast

from django_quota.conf import current
from django_quota.core.clock import SECOND, elapsed, frozen_now
from django_quota.core.decisions import Concurrency, Decision, Outcome, QuotaExceeded
from django_quota.core.errors import LeaseLost, QuotaError, RuleError, StoreUnavailable
from django_quota.core.flow import Flow, FlowBlock, IOCall, run_async, run_sync, run_to_the_end, to_the_end
from django_quota.core.keys import key_of, subject_base
from django_quota.core.rates import Duration, parse_duration
from django_quota.core.rules import is_valid_name
from django_quota.engine.operations import Operation, Script, States, keep, script, text
from django_quota.features.slots.queues import SlotInStore, pause_before, running_loop, slot_queues
from django_quota.features.slots.renewal import RETRY, renewer
from django_quota.limiting.metrics import notify, receivers
from django_quota.limiting.registry import get_limiter, store_call
from django_quota.stores.base import Runner
from django_quota.subjects.subject import GLOBAL, subject_of

MOST_AT_ONCE = 1_000_000
"""The highest limit of a slot."""


class Lease(FlowBlock["Lease"]):
    """A slot that you hold, until you release it or its lease ends. `Slot.acquire` returns one."""

    decision: Decision
    """The Decision when you took the slot: its `limit`, and how many slots were left (`remaining`)."""

    def __init__(self, slot: Slot, store: Runner) -> None:
        self.token: str = secrets.token_hex(8)
        """The name of the holder in the store."""
        self._slot = slot
        self._store = store
        self._keys = _keys_of(slot)
        self._span = round(slot.lease * SECOND)
        self._since: int | None = None
        """When the lease began, by the store's clock; None while that is unknown."""
        self._may_hold = False
        """Whether the lease may have begun: the store was asked, and has not refused."""
        self._is_counted = False
        """Whether the lease has begun in the store. It has not if its holder was let in without the store."""
        self._was_lost = False
        """Whether the lease had ended before a renewal in the background: another caller may have held the slot."""
        self._was_tried = False
        """Whether a release was sent before. The store may have done it even if its answer was lost."""
        self._is_released = False

    def __repr__(self) -> str:
        return f"<Lease {self.token} of slot {self._slot.name!r} for {self._slot.subject}>"

    def renew(self, lease: Duration | None = None) -> None:
        """Start the lease again from now.

        `lease`: above 0 and up to 366 days; None: as long as the slot's other leases. Raises `LeaseLost` if the
        lease has ended or was released, `RuleError` for a wrong duration, and `StoreUnavailable`.
        """
        run_sync(self.renewing(lease))

    async def arenew(self, lease: Duration | None = None) -> None:
        """Start the lease again from now; see `renew`."""
        await run_async(self.renewing(lease))

    def release(self) -> None:
        """Give the slot back. A second call does nothing.

        Raises `LeaseLost` if the lease had ended before, so another caller may have held the slot too. Raises
        `StoreUnavailable` if the store does not answer. Then try again, or let the lease end by itself.
        """
        run_sync(self.releasing())

    async def arelease(self) -> None:
        """Give the slot back, and only then raise `CancelledError` if the task was cancelled; see `release`."""
        await run_to_the_end(self.releasing())

    def taking(self, timeout: float) -> Flow[Lease]:
        """Wait for the slot; the flow's result is the lease, which now holds it. Raises `QuotaExceeded`."""
        try:
            self.decision = yield from self._waiting(timeout)
            self._is_counted = True
            if self._slot.renew:
                renewer.add(self, self._slot.lease / 3)
        except (QuotaExceeded, StoreUnavailable, GeneratorExit):
            raise
        except BaseException:  # interrupted or cancelled
            if self._may_hold:
                yield to_the_end(self._abandoning())
            raise
        return self

    def renewing(self, lease: Duration | None = None) -> Flow[None]:
        """Start the lease again from now; see `renew`."""
        span = self._span if lease is None else parse_duration("lease", lease)
        if not (yield self._call(Renew(self._keys, self.token, span))):
            raise self._lost()

    def keeping(self) -> Flow[None]:
        """Start the lease again. If it has ended or never began, as in an outage, take the slot even if none is free.

        So there may be more holders than the limit. No other caller gets in until enough of them have left.
        """
        try:
            yield from self.renewing()
        except LeaseLost:
            if self._is_over():
                return
            self._was_lost = self._is_counted
            yield self._call(Renew(self._keys, self.token, self._span, again=True))
            if self._was_tried:  # a release in another thread did not wait for this renewal
                yield from self._abandoning()
                return
        self._is_counted = True

    def releasing(self) -> Flow[None]:
        """Give the slot back; see `release`."""
        if self._is_released:
            return
        was_tried, self._was_tried = self._was_tried, True
        renewer.remove(self)
        if not self._is_counted:
            yield from self._abandoning()
            return
        try:
            held = yield from self._giving_back()
        except (StoreUnavailable, GeneratorExit):
            raise
        except BaseException:  # interrupted or cancelled, perhaps before it was sent
            yield from self._abandoning()
            raise
        if self._was_lost or not (held or was_tried):  # an earlier try may have released it
            raise self._lost()

    def entering(self) -> Flow[Lease]:
        """Hold the slot that the lease has."""
        yield from ()
        return self

    def leaving(self, error: BaseException | None) -> Flow[None]:
        """Give the slot back; the error of a block takes precedence over that of the release."""
        try:
            yield from self.releasing()
        except QuotaError:
            if error is None:
                raise

    def _is_over(self) -> bool:
        return self._is_released or self._was_tried

    def _waiting(self, timeout: float) -> Flow[Decision]:
        """Wait for the slot; the flow's result is the decision."""
        slot = self._slot
        get_limiter().metrics.count_slot(slot.subject, slot.name, slot.limit, self._span)
        if not timeout:
            return self._answered((yield to_the_end(self._asking())))
        deadline = elapsed() + timeout
        with slot_queues.joined(self._place, slot.limit, (yield running_loop())) as caller:
            while True:
                pause = left = deadline - elapsed()
                if caller.is_first or left <= 0:
                    reply = yield to_the_end(self._asking())
                    granted, _, estimate, *_ = reply
                    if granted or left <= 0:
                        return self._answered(reply)
                    pause = min(pause_before(estimate), left)
                yield from caller.waiting(pause)

    def _asking(self) -> Flow[Sequence[int]]:
        """Ask for the slot. Run it to the end: a call that is cut off may reach the store after the release."""
        self._may_hold = True
        reply: Sequence[int] = yield self._call(Acquire(self._keys, self.token, self._slot.limit, self._span))
        self._may_hold = bool(reply[0])
        return reply

    def _answered(self, reply: Sequence[int]) -> Decision:
        """Return the decision of a granted slot. Raises `QuotaExceeded` for a refusal."""
        granted, free, wait, reset, now = reply
        limit, next_after = Concurrency(self._slot.name, self._slot.limit), wait / SECOND
        retry_after = 0.0 if granted else next_after
        decision = Decision.of(
            (Outcome(limit, self._slot.subject, 1, bool(granted), free, retry_after, reset / SECOND, next_after),)
        )
        if receivers:
            notify(decision)
        if not granted:
            raise QuotaExceeded(decision)
        self._since = now
        return decision

    def _abandoning(self) -> Flow[None]:
        """Give the slot back if the store answers. If not, the lease ends by itself."""
        with suppress(StoreUnavailable):
            yield from self._giving_back()

    def _giving_back(self) -> Flow[bool]:
        """Give the slot back, and wake the next caller; the flow's result is whether the lease held it."""
        held = yield self._call(Release(self._keys, self.token, self._since, self._span))
        self._is_released = True
        slot_queues.wake_next(self._place)
        return bool(held)

    @property
    def _place(self) -> SlotInStore:
        """What its callers in this process queue for."""
        return self._store, self._keys.leases

    def _call(self, operation: Operation) -> IOCall:
        return IOCall(self._store.run, self._store.arun, operation, frozen_now())

    def _lost(self) -> LeaseLost:
        return LeaseLost(self._slot.name, self._slot.subject)


def count_later(lease: Lease, slot: Slot) -> None:
    """Let a lease that began without the store take its slot when the store answers again, even if none is free."""
    renewer.add(lease, slot.lease / 3, first=RETRY)


@dataclass(frozen=True)
class Slot(FlowBlock[Lease]):
    """A slot that a limited number of callers hold at a time, each until its lease ends. `slot` makes it.

    It is a sync and async context manager that any number of threads and tasks may share. A block may end in another
    thread or task than the one it began in. If the block raises, that error is raised even if the lease was lost.
    """

    name: str
    """Its name in keys and errors."""
    limit: int
    """How many may hold it at a time."""
    subject: str
    """The subject that the slot belongs to."""
    lease: float
    """How long a lease lasts, in seconds."""
    wait: float
    """How long to wait for a free slot, in seconds."""
    renew: bool
    """Whether leases are renewed in the background."""
    _held: dict[Lease, object] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The leases of open `with` blocks, each with the task or thread that opened it."""

    def acquire(self, timeout: Duration | None = None) -> Lease:
        """Take a slot and return its lease, which you release; the lease is a context manager, too.

        `timeout`: how long to wait if all slots are held; 0: do not wait; None: the slot's own `wait`.

        Raises `QuotaExceeded` if no slot came free, `RuleError` for a wrong duration, and `StoreUnavailable`.
        """
        return run_sync(self._acquiring(timeout))

    async def aacquire(self, timeout: Duration | None = None) -> Lease:  # noqa: ASYNC109 — the flow keeps it
        """Take a slot; see `acquire`. A task that is cancelled while it waits leaves the queue of its process."""
        return await run_async(self._acquiring(timeout))

    def holders(self) -> list[tuple[str, float]]:
        """Return who holds the slot: each token, and the seconds until its lease ends, the first to end first.

        Raises `StoreUnavailable`.
        """
        return run_sync(self._listing())

    async def aholders(self) -> list[tuple[str, float]]:
        """Return the holders; see `holders`."""
        return await run_async(self._listing())

    def _acquiring(self, timeout: Duration | None = None) -> Flow[Lease]:
        seconds = self.wait if timeout is None else _in_seconds("timeout", timeout)
        return Lease(self, get_limiter().reporting_store).taking(seconds)

    def _listing(self) -> Flow[list[tuple[str, float]]]:
        reply = yield store_call(Holders(_keys_of(self)))
        return [(text(token), ends / SECOND) for token, ends in zip(reply[::2], reply[1::2], strict=True)]

    def entering(self) -> Flow[Lease]:
        """Take a slot; see `acquire`."""
        lease = yield from self._acquiring()
        self._held[lease] = _here()
        return lease

    def leaving(self, error: BaseException | None) -> Flow[None]:
        """Release the lease of the block that ends."""
        return self._left().leaving(error)  # found here: the flow may run in another task

    def _left(self) -> Lease:
        """Return the last lease of this task or thread, or else the last lease of any other."""
        here = _here()
        while True:
            held = list(self._held.items())
            if not held:
                raise RuntimeError(f"Slot {self.name!r} was exited more often than it was entered.")
            lease = next((lease for lease, owner in reversed(held) if owner == here), held[-1][0])
            if self._held.pop(lease, None) is not None:  # else another thread has just taken it
                return lease


def _keys_of(slot: Slot) -> SlotKeys:
    base = subject_base(current().prefix, slot.subject)
    return SlotKeys(*(key_of(base, kind, slot.name) for kind in ("l", "lately")))


def _in_seconds(option: str, given: Duration, *, least: int = 0) -> float:
    return parse_duration(option, given, least=least) / SECOND


def _here() -> object:
    """Return the running task, or else the thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task or threading.get_ident()


def slot(
    name: str,
    limit: int,
    lease: Duration = 30,
    wait: Duration | None = None,
    subject: Any = None,
    *,
    renew: bool = False,
) -> Slot:
    """Return a slot that a limited number of callers hold at a time.

    `with slot("export", 10, lease=30, wait=5) as lease: ...`, or `async with`.

    `limit`: how many, 1 to 1,000,000. `lease`: above 0 and up to 366 days. After it the slot is free again, so a caller
    that crashed does not keep it. `wait`: how long to wait for a slot if all are held; None or 0: do not wait.
    `subject`: whose slot it is, a string (`"user:42"`) or a user; None: one slot for everybody. `renew`: renew the
    lease in the background, by one thread of the process, for work that may take longer; a holder whose lease ended in
    an outage is counted again, even above the limit.

    Raises `RuleError` for a wrong argument. Entering the slot raises `QuotaExceeded` if no slot came free, and
    `StoreUnavailable`. Leaving it raises `LeaseLost` if the lease ended before the block did.
    """
    if not is_valid_name(name) or not name.strip():
        raise RuleError(f"{name!r} is not the name of a slot. Use, for example, 'export'.")
    is_whole = isinstance(cast("object", limit), int) and not isinstance(limit, bool)
    if not is_whole or not 1 <= limit <= MOST_AT_ONCE:
        raise RuleError(
            f"limit={limit!r} of slot {name!r} is not a whole number from 1 to {MOST_AT_ONCE:,}.",
            "Use, for example, 3.",
        )
    if not isinstance(cast("object", renew), bool):
        raise RuleError(f"renew={renew!r} of slot {name!r} is not True or False.")
    span, pause = _in_seconds("lease", lease, least=1), 0.0 if wait is None else _in_seconds("wait", wait)
    owner = GLOBAL if subject is None else subject_of(subject, "a slot")
    return Slot(name, limit, owner, span, pause, renew)


def lock(
    name: str, lease: Duration = 30, wait: Duration | None = None, subject: Any = None, *, renew: bool = False
) -> Slot:
    """Return a lock: `lock(name)` is `slot(name, 1)`, with the same options. See `slot`."""
    return slot(name, 1, lease, wait, subject, renew=renew)


# --- operations -------------------------------------------------------------------------------------------------------
#
# Take, renew and release a slot, and list the holders. Each class specifies the `lease_*.lua` of its name.


def _lease_script(name: str) -> Script:
    return script("clock", "lifetimes", "features/slots/lease_common", f"features/slots/lease_{name}")


class SlotKeys(NamedTuple):
    """The keys of a slot."""

    leases: str
    recent: str
    """How long holders have kept the slot recently."""


class _LeaseOperation(Operation):
    """An operation of one token on a slot."""

    @property
    def token(self) -> str:
        return str(self.arguments()[0])

    def held(self, states: States) -> Mapping[str, int]:
        """Return all leases, each with its end."""
        return states.get(self.keys[0]) or {}

    def put(self, states: States, leases: Mapping[str, int]) -> None:
        keep(states, self.keys[0], leases, max(leases.values(), default=0))


class Acquire(_LeaseOperation):
    """Take a slot if one is free; the reply: see `lease_acquire.lua`.

    Its arguments: the token, how many slots there are, and how long the lease lasts, in microseconds.
    """

    script: ClassVar[Script] = _lease_script("acquire")

    def has_written(self, reply: Any) -> bool:
        return bool(reply[0])

    def run(self, states: States, now: int) -> list[int]:
        asking, limit, span = self.arguments()
        live = {token: stop for token, stop in self.held(states).items() if stop > now}
        recent, granted = states.get(self.keys[1]), asking in live or len(live) < limit
        if granted:
            live[asking] = now + span
            self.put(states, live)
            if len(live) >= limit and recent is None:
                states.put(self.keys[1], 0, now + span)
        over, ends = max(0, len(live) - limit), sorted(live.values())
        wait = ends[over] - now
        if recent:
            wait = max(1, min(wait, recent * (over + 1) // len(live)))
        return [int(granted), max(0, limit - len(live)), wait, ends[-1] - now, now]


class Renew(_LeaseOperation):
    """Extend a lease for `span` microseconds from now; the reply is 1, or 0 if it has ended.

    `again`: if the lease has ended, take the slot again even if all are held: its holder is still working, and must
    be counted.
    """

    script: ClassVar[Script] = _lease_script("renew")
    gives_back: ClassVar[bool] = True

    def __init__(self, keys: SlotKeys, token: str, span: int, *, again: bool = False) -> None:
        super().__init__(keys[:1], token, span, int(again))

    def run(self, states: States, now: int) -> int:
        token, span, again = self.arguments()
        leases = self.held(states)
        if not again and leases.get(token, 0) <= now:
            return 0
        self.put(states, {**leases, token: now + span})
        return 1


class Release(_LeaseOperation):
    """Give a slot back; the reply is 1, or 0 if the lease has ended.

    `since`: when it was taken, in microseconds of the store's clock; None if that is not known. `span`: how long a
    lease lasts, in microseconds. For the same time, the store remembers how long the slot was held.
    """

    script: ClassVar[Script] = _lease_script("release")
    gives_back: ClassVar[bool] = True

    def __init__(self, keys: SlotKeys, token: str, since: int | None, span: int) -> None:
        super().__init__(keys, token, "" if since is None else since, span)

    def run(self, states: States, now: int) -> int:
        token, since, span = self.arguments()
        leases = dict(self.held(states))
        stop = leases.pop(token, None)
        if stop is not None:
            self.put(states, leases)
        if stop is None or stop <= now:
            return 0
        recent = states.get(self.keys[1])
        if recent is not None and since != "":
            took = max(1, now - since)
            states.put(self.keys[1], (7 * recent + took) // 8 if recent else took, now + span)
        return 1


class Holders(_LeaseOperation):
    """Read who holds a slot; the reply has for each the token, and the microseconds until its lease ends."""

    script: ClassVar[Script] = _lease_script("holders")
    is_reading: ClassVar[bool] = True

    def __init__(self, keys: SlotKeys) -> None:
        super().__init__(keys[:1], "")

    def run(self, states: States, now: int) -> list[int | str]:
        live = sorted((stop, token) for token, stop in self.held(states).items() if stop > now)
        return [part for stop, token in live for part in (token, stop - now)]
