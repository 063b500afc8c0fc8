"""What a store is: it keeps states and runs operations on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from django_quota.core.errors import StoreUnavailable
from django_quota.engine.operations import Operation
from django_quota.stores.patience import Asked, asked_once

if TYPE_CHECKING:
    from django_quota.stores.database.store import DatabaseStore
    from django_quota.stores.redis.store import RedisStore


class Runner(Protocol):
    """What runs operations: a store, or a layer around one. Raises `StoreUnavailable` if the store does not answer."""

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation atomically and return its reply. `now`: microseconds; None: the store's own clock."""
        ...

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `run`."""
        ...

    def try_all(self, operations: Sequence[Operation], now: int | None) -> list[Any]:
        """Run operations of one script. Each is atomic, and one that fails has its error in place of its reply."""
        ...


class Store(Runner, Protocol):
    """Redis, a Redis Cluster, a database, or the memory of a process.

    Raises `ConfigurationError` if it is set up wrong.
    """

    @property
    def is_shared(self) -> bool:
        """Whether all processes share its counts."""
        ...

    @property
    def redis(self) -> RedisStore | None:
        """The store with the plain commands of Redis, for events, health, sizes and lists; None if it is no Redis."""
        ...

    @property
    def database(self) -> DatabaseStore | None:
        """The store with the tables of a database, for events, bans and expired rows; None if it is no database."""
        ...

    @property
    def all_nodes_healthy(self) -> bool:
        """Whether each server has answered its last call."""
        ...

    def is_refusing(self) -> bool:
        """Say whether a call would fail at once, since the server did not answer the last ones."""
        ...

    def names(self, matching: str, asked: Asked = asked_once) -> Iterator[str]:
        """Yield the keys that match a pattern, such as `quota:1:*`. A key may come twice."""
        ...

    def clear_memory(self) -> None:
        """Forget what is counted in the memory of this process. A shared store keeps what it has."""
        ...

    def close(self) -> None:
        """Close threads and connections of this process. You may use the store again."""
        ...


def tried(run: Callable[[Operation, int | None], Any], operations: Sequence[Operation], now: int | None) -> list[Any]:
    """Run operations one after the other; see `Runner.try_all`."""
    replies: list[Any] = []
    for operation in operations:
        try:
            replies.append(run(operation, now))
        except StoreUnavailable as error:
            replies.append(error)
    return replies


def all_well(replies: list[Any]) -> list[Any]:
    """Return these replies. Raises the first error among them."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
