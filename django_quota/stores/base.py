"""What a store is: it keeps states and runs operations over them. It must not know rules, requests or Decisions."""

from __future__ import annotations

from typing import Any, Protocol

from django_quota.operations.base import Operation
from django_quota.stores.waiters import Waiters


class Store(Protocol):
    """A place that decides. Every verb has an async twin that takes and returns the same.

    Each raises `StoreUnavailable` where the store does not answer, and `ConfigurationError` where it is set up wrong.
    """

    @property
    def is_whole(self) -> bool:
        """Whether all of its servers have done what they were last asked."""
        ...

    @property
    def waiters(self) -> Waiters:
        """Those of this process who wait for a slot of this store."""
        ...

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Do an operation, undivided, and return its reply; `now` None is the store's own clock (microseconds)."""
        ...

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Do an operation; see `run`."""
        ...

    def close(self) -> None:
        """Let go of threads and connections of this process; the store may be used again."""
        ...
