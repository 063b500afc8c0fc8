"""What a store is: it keeps states and runs operations on them."""

from __future__ import annotations

from typing import Any, Protocol

from django_quota.engine.operations import Operation
from django_quota.stores.wait_queue import WaitQueue


class Store(Protocol):
    """Redis, a Redis Cluster, or the memory of a process.

    Raises `StoreUnavailable` if the store does not answer, and `ConfigurationError` if it is set up wrong.
    """

    @property
    def all_nodes_healthy(self) -> bool:
        """Whether each server has answered when it was asked last."""
        ...

    @property
    def wait_queue(self) -> WaitQueue:
        """The callers of this process that wait for a slot."""
        ...

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation atomically and return its reply. `now`: microseconds; None: the store's own clock."""
        ...

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `run`."""
        ...

    def close(self) -> None:
        """Close threads and connections of this process. You may use the store again."""
        ...
