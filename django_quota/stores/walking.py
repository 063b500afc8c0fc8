"""Going over all servers of a store: what one does not answer holds up none of the others, and is told at the end.

It must not know what is done on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django_quota.exceptions import StoreUnavailable
from django_quota.stores.base import Store
from django_quota.stores.redis import RedisStore, Server


class Walk:
    """One round over the servers of a store. Where there is but one, what it does not answer ends the round at once."""

    def __init__(self, store: Store) -> None:
        self.servers: Sequence[Server] = store.servers() if isinstance(store, RedisStore) else [None]
        self.missed = 0
        """Pieces of the way that were passed over."""
        self._first: StoreUnavailable | None = None

    @contextmanager
    def past(self) -> Iterator[None]:
        """Do a piece of the way; where it is not answered, go on behind it."""
        try:
            yield
        except StoreUnavailable as error:
            if len(self.servers) == 1:
                raise
            self.missed += 1
            self._first = self._first or error

    @property
    def problem(self) -> StoreUnavailable | None:
        """What is to be told at the end: the first of what was missed."""
        if self._first is None:
            return None
        return StoreUnavailable(
            f"a part of the Cluster did not answer, and the rest was done: {self._first.reason}",
            not_permitted=self._first.not_permitted,
        )

    def end(self) -> None:
        """Raise `StoreUnavailable` where something was missed."""
        if self.problem is not None:
            raise self.problem from self._first
