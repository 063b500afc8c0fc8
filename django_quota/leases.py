"""Slots that so many may hold at once, and locks, which are slots of one. It knows neither HTTP nor models.

What is asked of the store stands in flows, once; the sync and the async verbs differ in how they wait. Slots and locks
guard what must not happen at once: they hold whatever the setting `ENABLED` says, and where the store does not answer
they raise `StoreUnavailable` rather than let anybody in.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, cast

from django_quota.algorithms.concurrency import Concurrency
from django_quota.clock import SECOND, frozen_now
from django_quota.conf import current
from django_quota.decisions import Decision, Outcome
from django_quota.exceptions import LeaseLost, QuotaError, QuotaExceeded, RuleError, StoreUnavailable
from django_quota.keys import key_of, subject_base
from django_quota.limiter import get_limiter
from django_quota.names import is_name
from django_quota.operations.base import Operation, text
from django_quota.operations.leases import Acquire, Holders, Release, Renew, SlotKeys
from django_quota.rates import span_of
from django_quota.renewing import Renewal
from django_quota.stores.base import Store
from django_quota.subjects import GLOBAL, Ask, Flow, aanswer, answer, subject_of

MOST_SLOTS = 1_000_000
"""The highest limit of a slot."""

ASK_AGAIN = 1.0
"""Seconds after which whoever waits asks again though nobody has rung."""

PATIENCE = 3 * SECOND
"""Microseconds after which whoever waits and has not asked again is passed over."""

RETRY = 0.2
"""Seconds until whoever waits asks again where the store did not answer."""


class Lease:
    """A slot that is held, until it is released or its lease ends. `Slot.acquire` makes it."""

    def __init__(self, place: _Place, token: str, decision: Decision) -> None:
        self.token = token
        """What names the holder in the store."""
        self.decision = decision
        """The decision that let it in: how many slots there are, and how many are left."""
        self._place = place
        self._renewal: Renewal | None = None
        self._is_released = False

    def __repr__(self) -> str:
        return f"<Lease {self.token} of slot {self._place.slot.name!r} for {self._place.subject}>"

    def renew(self, lease: float | None = None) -> None:
        """Let the lease last from now on: so many seconds, or as many as the slot says.

        Raises `LeaseLost` where it has ended or was released, `RuleError` where the seconds are none, and
        `StoreUnavailable`.
        """
        answer(self._renewing(lease))

    async def arenew(self, lease: float | None = None) -> None:
        """Let the lease last from now on; see `renew`."""
        await aanswer(self._renewing(lease))

    def release(self) -> None:
        """Give the slot back; a second time, nothing happens.

        Raises `LeaseLost` where the lease had ended before: somebody else may have held the slot meanwhile. Raises
        `StoreUnavailable` where the store does not answer: then the lease ends by itself.
        """
        answer(self._releasing())

    async def arelease(self) -> None:
        """Give the slot back; see `release`."""
        await aanswer(self._releasing())

    def keeping(self) -> Flow:
        """Return the flow that has the lease renewed in the background, until it is released."""
        self._renewal = Renewal(self, self._place.slot.lease / 3)
        yield Ask(self._renewal.start, self._renewal.astart)

    def _renewing(self, lease: float | None) -> Flow:
        span = self._place.slot.span if lease is None else span_of("lease", lease, 30)
        if self._is_released or not (yield self._place.asking(Renew(self._place.keys, self.token, span))):
            raise self._lost()

    def _releasing(self) -> Flow:
        if self._is_released:
            return
        self._is_released = True
        if self._renewal is not None:
            yield Ask(self._renewal.stop, self._renewal.astop)
        try:
            held, wake = yield self._place.asking(Release(self._place.keys, self.token))
        except StoreUnavailable:
            self._is_released = False
            raise
        yield from self._place.waking(wake)
        if not held:
            raise self._lost()

    def _lost(self) -> LeaseLost:
        return LeaseLost(self._place.slot.name, self._place.subject)


class Slot:
    """So many may hold it at once, each for as long as a lease lasts; `slot` makes it.

    A context manager, sync and async, for any number of threads and tasks. An error inside is not hidden by a lease
    that was lost meanwhile.
    """

    def __init__(
        self, name: str, limit: int, lease: float = 30, wait: float | None = None, *, renew: bool = False
    ) -> None:
        if not is_name(name) or not name.strip():
            raise RuleError(f"{name!r} is no name of a slot; 'export' would do.")
        is_whole = isinstance(cast("object", limit), int) and not isinstance(limit, bool)
        if not is_whole or not 1 <= limit <= MOST_SLOTS:
            raise RuleError(f"limit={limit!r} of slot {name!r} is not a whole number from 1 to {MOST_SLOTS}.")
        if not isinstance(cast("object", renew), bool):
            raise RuleError(f"renew={renew!r} of slot {name!r} is not True or False.")
        self.name = name
        """What it is called in keys and errors."""
        self.limit = limit
        """How many may hold it at once."""
        self.span = span_of("lease", lease, 30)
        """How long a lease lasts, in microseconds."""
        self.patience = 0.0 if wait is None or wait == 0 else span_of("wait", wait, 5) / SECOND
        """How long to wait for a free slot, in seconds."""
        self.renews = renew
        """Whether leases are renewed in the background."""
        self.subject = GLOBAL
        """Whose slot it is."""
        self._held: dict[object, list[Lease]] = {}

    @property
    def lease(self) -> float:
        """How long a lease lasts, in seconds."""
        return self.span / SECOND

    def acquire(self) -> Lease:
        """Take a slot, waiting for it as long as the slot says; return the lease, to be released.

        Raises `QuotaExceeded` where none came free, and `StoreUnavailable`.
        """
        return cast("Lease", answer(self.acquiring(self.subject, get_limiter().telling)))

    async def aacquire(self) -> Lease:
        """Take a slot; see `acquire`. Where the task is cancelled while it waits, its place goes to the next."""
        return cast("Lease", await aanswer(self.acquiring(self.subject, get_limiter().telling)))

    def holders(self) -> list[tuple[str, float]]:
        """Return who holds a slot: each token, and the seconds until its lease ends, who ends first coming first.

        Nothing is written. Raises `StoreUnavailable`.
        """
        return cast("list[tuple[str, float]]", answer(self._holders()))

    async def aholders(self) -> list[tuple[str, float]]:
        """Return who holds a slot; see `holders`."""
        return cast("list[tuple[str, float]]", await aanswer(self._holders()))

    def _holders(self) -> Flow:
        place = _Place(self, self.subject, get_limiter().telling)
        reply = yield place.asking(Holders(place.keys))
        return [(text(token), ends / SECOND) for token, ends in zip(reply[::2], reply[1::2], strict=True)]

    def acquiring(self, subject: str, store: Store) -> Flow:
        """Return (as the flow's result) the lease of a slot for this subject in this store; see `acquire`."""
        place, token = _Place(self, subject, store), secrets.token_hex(8)
        try:
            lease = Lease(place, token, (yield from place.entering(token)))
            if self.renews:
                yield from lease.keeping()
        except (QuotaExceeded, StoreUnavailable, GeneratorExit):
            raise  # out of the queue already; or dropped there by itself, since nobody can be told now
        except BaseException:  # interrupted, or cancelled
            yield from place.giving_up(token)
            raise
        return lease

    def __enter__(self) -> Lease:
        return self._entered(self.acquire())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with suppress(*_HIDDEN if error else ()):
            self._left().release()

    async def __aenter__(self) -> Lease:
        return self._entered(await self.aacquire())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        with suppress(*_HIDDEN if error else ()):
            await self._left().arelease()

    def _entered(self, lease: Lease) -> Lease:
        self._held.setdefault(_here(), []).append(lease)
        return lease

    def _left(self) -> Lease:
        here = _here()
        leases = self._held[here]
        lease = leases.pop()
        if not leases:
            del self._held[here]
        return lease


_HIDDEN = (QuotaError,)
"""What the end of a block must not put in the place of the error that ended it."""


def _here() -> object:
    """Return what a block that is entered is left in: the running task, or else the thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task or threading.get_ident()


class _Place:
    """Where a slot lies for a subject: what its flows ask of the store."""

    def __init__(self, slot: Slot, subject: str, store: Store) -> None:
        self.slot = slot
        self.subject = subject
        self._store = store
        self._base = base = subject_base(current().prefix, subject)
        self.keys = SlotKeys(*(key_of(base, kind, slot.name) for kind in "lqa"))

    def asking(self, operation: Operation) -> Ask:
        """Return the question that an operation is."""
        now = frozen_now()
        return Ask(partial(self._store.run, operation, now), partial(self._store.arun, operation, now))

    def entering(self, token: str) -> Flow:
        """Return (as the flow's result) the decision that lets a token in; raise `QuotaExceeded` where none does."""
        tally = get_limiter().tally
        if tally is not None:
            tally.saw_slot(self.subject, self.slot.name, self.slot.limit, self.slot.span)
        deadline = time.monotonic() + self.slot.patience
        queued = False
        while True:
            left = deadline - time.monotonic()
            asked = Acquire(self.keys, token, self.slot.limit, self.slot.span, PATIENCE if left > 0 else 0)
            try:
                granted, free, wait, reset, first, wake = yield self.asking(asked)
            except StoreUnavailable:
                if not queued or left <= 0:
                    raise
                yield _pause(min(RETRY, left))  # it may be restarting: whoever waits has the time
                continue
            yield from self.waking(wake)
            if granted:
                return self._decision(True, free, wait, reset)
            if left <= 0:
                raise QuotaExceeded(self._decision(False, free, wait, reset))
            queued = True
            # Only the first minds when the next lease ends: the others would ask in vain.
            until_free = wait / SECOND + 0.001 if first else ASK_AGAIN
            yield from self._listening(token, min(left, until_free, ASK_AGAIN))

    def giving_up(self, token: str) -> Flow:
        """Return the flow that takes a token out of the queue, and what it may hold from it."""
        with suppress(StoreUnavailable):  # it is dropped by itself
            _, wake = yield self.asking(Release(self.keys, token))
            yield from self.waking(wake)

    def waking(self, wake: str | bytes) -> Flow:
        """Return the flow that rings the bell of the one who should ask again."""
        if wake:
            bell = self._bell(text(wake))
            with suppress(StoreUnavailable):  # a hint: who waits asks again anyway
                yield Ask(partial(self._store.ring, bell), partial(self._store.aring, bell))

    def _listening(self, token: str, seconds: float) -> Flow:
        bell = self._bell(token)
        try:
            yield Ask(partial(self._store.listen, bell, seconds), partial(self._store.alisten, bell, seconds))
        except StoreUnavailable:
            yield _pause(min(RETRY, seconds))

    def _bell(self, token: str) -> str:
        return key_of(self._base, "w", self.slot.name, token)

    def _decision(self, granted: bool, free: int, wait: int, reset: int) -> Decision:
        limit, next_after = Concurrency(self.slot.name, self.slot.limit), wait / SECOND
        retry_after = 0.0 if granted else next_after
        return Decision.of((Outcome(limit, self.subject, 1, granted, free, retry_after, reset / SECOND, next_after),))


def _pause(seconds: float) -> Ask:
    return Ask(partial(time.sleep, seconds), partial(asyncio.sleep, seconds))


def slot(
    name: str,
    limit: int,
    lease: float = 30,
    wait: float | None = None,
    subject: Any = None,
    *,
    renew: bool = False,
) -> Slot:
    """Return a slot that so many may hold at once.

    `with slot("export", 10, lease=30, wait=5) as lease: ...`, or `async with`.

    `limit`: how many, 1 to 1,000,000. `lease`: seconds, above 0 and up to 366 days, after which a slot comes free by
    itself, so that one who crashed does not keep it. `wait`: seconds to wait for a slot where all are held, first come,
    first served; None or 0: not at all. `subject`: whose slot it is, a text (`"user:42"`) or a user; None: everybody's.
    `renew`: renew the lease in the background, by a thread (or a task), for work that may take longer.

    Raises `RuleError` where an argument is wrong. Entering it raises `QuotaExceeded` where no slot came free, and
    `StoreUnavailable`; leaving it raises `LeaseLost` where the lease ended before the block did.
    """
    made = Slot(name, limit, lease, wait, renew=renew)
    if subject is not None:
        made.subject = subject_of(subject, "a slot")
    return made


def lock(name: str, lease: float = 30, wait: float | None = None, subject: Any = None, *, renew: bool = False) -> Slot:
    """Return a lock, which one may hold at a time: a slot of one; see `slot`."""
    return slot(name, 1, lease, wait, subject, renew=renew)
