"""Slots as the store has them: who waits here, what another process does, and a store that forgets."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from django_quota.features.slots.calls import Acquire, Release, Renew, SlotKeys
from django_quota.features.slots.queues import slot_queues
from django_quota.features.slots.renewal import renewer
from django_quota.limiting.flusher import flusher
from django_quota.limiting.registry import get_limiter
from django_quota.stores.database.store import DatabaseStore
from django_quota.stores.memory import MemoryStore
from django_quota.types import Lease, Slot
from tests.support.outages import no_answer
from tests.support.specifications import Drop
from tests.support.steps import SECOND
from tests.support.stores import current_store, memory_states, spy

ELSEWHERE = "elsewhere"  # a caller of another process that asks for a lock


def keys_of(name: str, subject: str = "global") -> SlotKeys:
    return SlotKeys(*(f"quota:1:{{{subject}}}:{kind}:{name}" for kind in ("l", "lately")))


def waiting(name: str, subject: str = "global") -> int:
    key = keys_of(name, subject).leases
    return sum(len(queue) for ((_, found), _), queue in slot_queues._queues.items() if found == key)


@pytest.fixture
def unpolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no waiter ask the store a second time, unless it is woken or its time is up."""
    for name in ("SHORTEST_PAUSE", "LONGEST_PAUSE"):
        monkeypatch.setattr(f"django_quota.features.slots.queues.{name}", 600.0)


def wake_next(name: str) -> None:
    slot_queues.wake_next((get_limiter().reporting_store, keys_of(name).leases))


def forget(name: str) -> None:
    """Lose all leases of a slot, as when Redis loses its memory."""
    keys, store = list(keys_of(name)), current_store()
    if isinstance(store, MemoryStore):
        for key in keys:
            memory_states(store).drop(key)
        return
    if store.database is not None:
        DatabaseStore.run(store.database, Drop(keys))  # not that of the store, which a test may have replaced
        return
    with store.commands(store.server_of(keys[0])) as client:
        client.delete(*keys)


def asked_elsewhere(name: str) -> bool:
    """Have another process ask for a lock; say whether it has it."""
    return bool(current_store().run(Acquire(keys_of(name), ELSEWHERE, 1, 60 * SECOND))[0])


def released_elsewhere(name: str) -> None:
    current_store().run(Release(keys_of(name), ELSEWHERE, None, SECOND))


def nobody_renews() -> bool:
    """Say whether nothing is renewed, and no renewal is under way."""
    after_the_others = threading.Event()
    flusher.call_at(0.0, after_the_others.set)
    return after_the_others.wait(60) and not renewer


def is_asked_for_by(operation: Any) -> str | None:
    return operation.token if isinstance(operation, Acquire) else None


def is_release(operation: Any) -> bool:
    return isinstance(operation, Release)


def is_renewal(operation: Any) -> bool:
    return isinstance(operation, Renew)


def is_count(operation: Any) -> bool:
    """Say whether a renewal takes the slot again, or for the first time, even if none is free."""
    return is_renewal(operation) and bool(operation.arguments()[-1])


@contextmanager
def calls(before: Callable[[Any], object] = bool, after: Callable[[Any], object] = bool) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        spy(patched, before, after)
        yield


@contextmanager
def counting_held_up() -> Iterator[tuple[threading.Event, threading.Event]]:
    """Hold up the renewal that takes a slot; yield when it is under way, and when it may go on."""

    def stop(operation: Any) -> None:
        if is_count(operation):
            under_way.set()
            goes_on.wait(60)

    under_way, goes_on = threading.Event(), threading.Event()
    with calls(before=stop):
        yield under_way, goes_on


@contextmanager
def goes_away_after_an_answer() -> Iterator[None]:
    """Let the store answer one call, and no other."""
    with calls(after=lambda _: outage.enter_context(no_answer())), ExitStack() as outage:
        yield


def within(held: Slot, work: Callable[[], object], is_async: bool) -> None:
    """Do work in a block that holds a slot."""

    async def hold() -> None:
        async with held:
            work()

    if is_async:
        asyncio.run(hold())
    else:
        with held:
            work()


def acquired(line: Slot, is_async: bool, *timeout: float) -> Lease:
    return asyncio.run(line.aacquire(*timeout)) if is_async else line.acquire(*timeout)


def release(lease: Lease, is_async: bool) -> None:
    if is_async:
        asyncio.run(lease.arelease())
    else:
        lease.release()


def tokens(line: Slot) -> list[str]:
    return [token for token, _ in line.holders()]
