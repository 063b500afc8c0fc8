"""What a store is: it keeps states and runs operations over them. It must not know rules, requests or Decisions."""

from __future__ import annotations

from typing import Any, Protocol

from django_quota.operations.base import Operation


class Store(Protocol):
    """A place that decides. Every verb has an async twin that takes and returns the same.

    Each raises `StoreUnavailable` where the store does not answer, and `ConfigurationError` where it is set up wrong.
    """

    @property
    def is_whole(self) -> bool:
        """Whether all of its servers have done what they were last asked."""
        ...

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Do an operation, undivided, and return its reply; `now` None is the store's own clock (microseconds)."""
        ...

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Do an operation; see `run`."""
        ...

    def listen(self, bell: str, seconds: float) -> bool:
        """Wait at a bell until it rings, up to so many seconds; say whether it did.

        Only one may wait at a bell. A ring may get lost, and a span of a second or more may end a tenth early: whoever
        waits looks for itself what has become of what it waits for.
        """
        ...

    async def alisten(self, bell: str, seconds: float) -> bool:
        """Wait at a bell; see `listen`."""
        ...

    def ring(self, bell: str) -> None:
        """Wake whoever waits at a bell, or comes to it within a few seconds."""
        ...

    async def aring(self, bell: str) -> None:
        """Ring a bell; see `ring`."""
        ...

    def close(self) -> None:
        """Let go of threads and connections of this process; the store may be used again."""
        ...
