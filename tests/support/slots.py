"""Slots as the store has them: who waits, what another process does, and a store that forgets."""

from __future__ import annotations

from typing import Any

import pytest

from django_quota.engine.lease_operations import Acquire, Release, Renew, SlotKeys, make_token
from django_quota.engine.operations import text
from django_quota.services.leases import LeaseRefresher
from django_quota.stores.memory import MemoryStore
from django_quota.stores.wait_queue import Waiter, WaitQueue
from tests.support.steps import SECOND
from tests.support.stores import current_store

ELSEWHERE = make_token("elsewhere", 1, 1, 60 * SECOND)
"""A caller of another process that asks for a lock."""


def keys_of(name: str) -> SlotKeys:
    return SlotKeys(*(f"quota:1:{{global}}:{kind}:{name}" for kind in "lqa"))


def waiting(name: str) -> list[str]:
    """Return who waits for a slot."""
    key, store = keys_of(name)[1], current_store()
    if isinstance(store, MemoryStore):
        return list(store._shard(key).get(key) or ())
    with store.commands(store.server_of(key)) as client:
        return [text(token) for token in client.lrange(key, 0, -1)]


def forget(name: str) -> None:
    """Lose all leases of a slot, as when Redis loses its memory."""
    keys, store = list(keys_of(name)), current_store()
    if isinstance(store, MemoryStore):
        for key in keys:
            store._shard(key).drop(key)
        return
    with store.commands(store.server_of(keys[0])) as client:
        client.delete(*keys)


def asked_elsewhere(name: str, wait: float) -> bool:
    """Have another process ask for a lock, and wait if it is taken; say whether it has it."""
    return bool(current_store().run(Acquire(keys_of(name), ELSEWHERE, int(wait * SECOND)))[0])


def released_elsewhere(name: str) -> None:
    """Have the other process give its lock back."""
    current_store().run(Release(keys_of(name), ELSEWHERE))


def lease_lasts(name: str, token: str, seconds: int) -> None:
    """Let the lease of a token end after so many seconds."""
    assert current_store().run(Renew(keys_of(name), token, seconds * SECOND))


def waits(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Call `act` with the token and the seconds each time that a thread is about to wait."""
    wait = Waiter.wait

    def spy(waiter: Waiter, seconds: float) -> None:
        act(waiter.token, seconds)
        wait(waiter, seconds)

    monkeypatch.setattr(Waiter, "wait", spy)


def nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose each wake-up."""
    monkeypatch.setattr(WaitQueue, "grant", lambda *_: None)


def is_asked_for_by(operation: Any) -> str | None:
    """Return the token of an operation that asks for a slot."""
    return operation.token if isinstance(operation, Acquire) else None


def is_release(operation: Any) -> bool:
    return isinstance(operation, Release)


def renew_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew leases and reservations without a pause, whatever their ttl."""
    made = LeaseRefresher.__init__
    monkeypatch.setattr(LeaseRefresher, "__init__", lambda self, renew, interval: made(self, renew, 0.001))
