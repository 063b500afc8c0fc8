"""What a store is: it keeps states and decides plans over them. It must not know rules, requests or Decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from django_quota.algorithms import Mode, Step


class Store(Protocol):
    """A place that decides. Every verb has an async twin that takes and returns the same.

    Each raises `StoreUnavailable` where the store does not answer, and `ConfigurationError` where it is set up wrong.
    """

    def decide(self, steps: Sequence[Step], mode: Mode, now: int | None) -> list[int]:
        """Decide a plan as `algorithms.decide` does, at once; `now` None is the store's own clock (microseconds)."""
        ...

    async def adecide(self, steps: Sequence[Step], mode: Mode, now: int | None) -> list[int]:
        """Decide a plan; see `decide`."""
        ...

    def delete(self, keys: Sequence[str]) -> int:
        """Drop the states under these keys; return how many there were."""
        ...

    async def adelete(self, keys: Sequence[str]) -> int:
        """Drop states; see `delete`."""
        ...

    def close(self) -> None:
        """Let go of threads and connections of this process; the store may be used again."""
        ...
