"""What a store is: it keeps states and runs operations on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from django_quota.core.errors import StoreUnavailable
from django_quota.engine.operations import Operation

if TYPE_CHECKING:
    from redis import Redis


T = TypeVar("T")


class AskedAgain(Protocol):
    """Makes a call to the store that may be made twice, and returns its answer."""

    def __call__(self, call: Callable[[], T], /) -> T:
        """Make the call."""
        ...


def asked_once(call: Callable[[], T], /) -> T:
    """Make a call once: for pages and requests, which do not wait."""
    return call()


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
    def redis(self) -> RedisServers | None:
        """The store with the plain commands of Redis, for events, health, sizes and lists; None without Redis."""
        ...

    @property
    def database(self) -> Tables | None:
        """The store with the tables of a database, for events, bans and expired rows; None without a database."""
        ...

    @property
    def all_nodes_healthy(self) -> bool:
        """Whether each server has answered its last call."""
        ...

    def is_refusing(self) -> bool:
        """Say whether a call would fail at once, since the server did not answer the last ones."""
        ...

    def names(self, matching: str, asked: AskedAgain = asked_once) -> Iterator[str]:
        """Yield the keys that match a pattern, such as `quota:1:*`. A key may come twice."""
        ...

    def clear_memory(self) -> None:
        """Forget what is counted in the memory of this process. A shared store keeps what it has."""
        ...

    def close(self) -> None:
        """Close threads and connections of this process. You may use the store again."""
        ...


Server = Any
"""One of the servers of a store; None if there is only one."""


class RedisServers(Store, Protocol):
    """A store that is one or several servers of Redis, and takes its plain commands."""

    def commands(self, server: Server = None) -> AbstractContextManager[Redis]:
        """Lend a client for plain commands; the block raises our errors in place of redis-py's.

        `server`: one of `servers` or `by_server`; None: the server of the system keys.
        """
        ...

    def servers(self) -> Sequence[Server]:
        """Return all servers that hold keys: a walk over all keys goes to each of them."""
        ...

    def server_of(self, key: str) -> Server:
        """Return the server that holds a key."""
        ...

    def node_key(self, key: str, server: Server) -> str:
        """Return the name of a system key that a server holds; empty if it holds none."""
        ...

    def by_server(self, keys: Iterable[str]) -> dict[Server, list[str]]:
        """Return keys by the server that holds them: one pipeline can serve all keys of one server."""
        ...


class Statement(NamedTuple):
    """A statement of SQL, and its parameters."""

    text: str
    """With a `?` for each parameter, and no other question mark."""
    values: Sequence[str | int] = ()


class Dialect(Protocol):
    """The parts of a statement that differ between databases."""

    now: str
    """The SQL of the clock."""
    batch: str
    """The SQL of the number of the transaction."""
    settled: str
    """The SQL that says whether no earlier event can still come."""
    skip_locked: str
    """The end of a query for rows to delete: with it, the query waits for nobody."""


class Tables(Store, Protocol):
    """A store with the tables of a database, and what is asked of them beside operations; see `Store`."""

    def ping(self) -> None:
        """Ask the database for an answer."""
        ...

    def read(self, query: Callable[[Dialect], Statement]) -> Sequence[Sequence[Any]]:
        """Return what a query finds."""
        ...

    def write(self, statement: Callable[[Dialect], Statement]) -> Sequence[Sequence[Any]]:
        """Run a statement in a transaction of its own, which locks no subject; return the rows that it returns."""
        ...


MAX_REASON_LENGTH = 400
"""Characters of a driver's text that are passed on. What answered instead of a server may have sent anything."""


def reason_of(error: BaseException, text: str) -> str:
    """Return why a store is unavailable: the class of a driver's error, and its text in short."""
    return f"{type(error).__name__}: {text if len(text) <= MAX_REASON_LENGTH else f'{text[:MAX_REASON_LENGTH]}...'}"


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


class Draft:
    """States as an operation finds and leaves them; see `engine.operations.States`.

    `found`: the value of each key and when it expires, as the store keeps them.
    """

    def __init__(self, found: Mapping[str, Any]) -> None:
        self._found = found
        self.changed: dict[str, tuple[Any, int] | None] = {}
        """The value and the expiry of each key that was put; None for one that was dropped."""

    def _state(self, key: str) -> Any:
        return self.changed[key] if key in self.changed else self._found.get(key)

    def get(self, key: str, now: int | None = None) -> Any:
        """Return the value of a key; see `States.get`."""
        state = self._state(key)
        return None if state is None or (now is not None and state[1] <= now) else self.read(key, state)

    def read(self, key: str, state: Any) -> Any:  # noqa: ARG002 — others name the key in an error
        """Return the value of a state."""
        return state[0]

    def put(self, key: str, value: Any, expiry: int) -> None:
        """Keep a value."""
        self.changed[key] = (value, expiry)

    def expiry(self, key: str) -> int:
        """Return when a key expires; 0 if there is none."""
        state = self._state(key)
        return int(state[1]) if state else 0

    def drop(self, key: str) -> bool:
        """Drop a key; say whether it existed."""
        existed = self._state(key) is not None
        self.changed[key] = None
        return existed
