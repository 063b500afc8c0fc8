"""Going over all servers of a store. One that does not answer does not stop the others, and is reported at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django_quota.core.errors import StorePermissionDenied, StoreUnavailable
from django_quota.stores.base import Store
from django_quota.stores.redis.store import RedisStore, Server


class Walk:
    """One round over the servers of a store. If there is only one, its first error ends the round."""

    def __init__(self, store: Store) -> None:
        self.servers: Sequence[Server] = store.servers() if isinstance(store, RedisStore) else [None]
        self.missed = 0
        """Parts that were skipped."""
        self._first: StoreUnavailable | None = None

    @contextmanager
    def past(self) -> Iterator[None]:
        """Do one part; skip it if the server does not answer."""
        try:
            yield
        except StoreUnavailable as error:
            if len(self.servers) == 1:
                raise
            self.missed += 1
            self._first = self._first or error

    @property
    def problem(self) -> StoreUnavailable | None:
        """The error to report at the end: the first one."""
        if self._first is None:
            return None
        kind = StorePermissionDenied if isinstance(self._first, StorePermissionDenied) else StoreUnavailable
        return kind(f"a part of the Cluster did not answer, and the rest was done: {self._first.reason}")

    def end(self) -> None:
        """Raise `StoreUnavailable` if a part was skipped."""
        if self.problem is not None:
            raise self.problem from self._first
