"""The store as services see it that raise `StoreUnavailable`: what that says of an outage is told, once each way.

Decisions tell it themselves, since they go on without the store. It must not know what is asked, nor by whom.
"""

from __future__ import annotations

from typing import Any, Protocol

from django_quota.conf import current
from django_quota.exceptions import StoreFull, StoreUnavailable
from django_quota.keys import read
from django_quota.operations.base import Operation
from django_quota.outages import Outages
from django_quota.signals import asend, send
from django_quota.stores.base import Store
from django_quota.stores.waiters import Waiters


class Asked(Protocol):
    """Whose store it is: the sender of the signals."""

    store: Store
    outages: Outages


class TellingStore:
    """The store of a limiter: a `Store` that lets every failure through, and tells of outages."""

    __slots__ = ("_of",)

    def __init__(self, of: Asked) -> None:
        self._of = of

    @property
    def is_whole(self) -> bool:
        """Whether all of its servers have done what they were last asked."""
        return self._of.store.is_whole

    @property
    def waiters(self) -> Waiters:
        """Those of this process who wait for a slot; see `Store.waiters`."""
        return self._of.store.waiters

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Do an operation; see `Store.run`."""
        of = self._of
        try:
            reply = of.store.run(operation, now)
        except StoreFull:  # the memory store tells of it itself
            raise
        except StoreUnavailable as error:
            send(of.outages.failed(error, _subjects(operation), is_decision=False), type(of))
            raise
        if of.outages.is_on:
            send(of.outages.answered(wrote=operation.has_written(reply)), type(of))
        return reply

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Do an operation; see `run`."""
        of = self._of
        try:
            reply = await of.store.arun(operation, now)
        except StoreFull:
            raise
        except StoreUnavailable as error:
            await asend(of.outages.failed(error, _subjects(operation), is_decision=False), type(of))
            raise
        if of.outages.is_on:
            await asend(of.outages.answered(wrote=operation.has_written(reply)), type(of))
        return reply

    def close(self) -> None:
        """Let go of threads and connections of this process; see `Store.close`."""
        self._of.store.close()


def _subjects(operation: Operation) -> list[str]:
    """Return whose keys an operation touches."""
    keys = (read(current().prefix, key) for key in operation.keys)
    return [key.subject or "a subject of a long name" for key in keys if key is not None]
