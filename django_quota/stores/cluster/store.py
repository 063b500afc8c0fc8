"""The Redis store over a Cluster: each operation goes to the server that has its keys.

`engine.scatter` splits an operation whose keys are in several slots, and redis-py's clients find the server of a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from itertools import chain
from typing import Any

from redis import Redis, RedisError
from redis.cluster import get_node_name
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ClusterError,
    MovedError,
    NoScriptError,
    RedisClusterException,
    SlotNotCoveredError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota.core.errors import QuotaError
from django_quota.core.flow import Flow, run_async, run_sync
from django_quota.core.forks import register_fork_aware
from django_quota.engine.operations import Operation
from django_quota.engine.scatter import scatter
from django_quota.stores.base import Server, all_well
from django_quota.stores.breaker import Breaker, GuardedCall
from django_quota.stores.cluster.clients import AsyncSide, ClusterSettings, Side, SyncSide, node_address
from django_quota.stores.redis.async_wire import ByLoop, cancellable
from django_quota.stores.redis.connections import RedisCommand
from django_quota.stores.redis.errors import server_answered, translate_cluster_error, translated
from django_quota.stores.redis.settings import Address, WhichRedis
from django_quota.stores.redis.store import RedisStore, guarded

SYSTEM_TAG = "{!}"
"""The hash tag that puts the keys without a subject into one slot."""

MAX_TAGS = 1_000
"""Slots that are tried for a system key of a server."""

MAX_REDIRECTIONS = 16
"""How often a command is sent to the next server before its slot counts as lost between them."""

REDIRECTION_PAUSE = 0.05
"""Seconds before a command is sent again, if its keys are on both sides of a move for longer."""

ANY = "the Cluster"
"""Stands for the server in calls that may go to any of them."""

NO_SERVER = "no server"
"""Stands for the server in calls about a slot that no server has."""


def slot_of(key: str) -> int:
    """Return the slot of a key: from 0 to 16,383."""
    return int(key_slot(key.encode()))


class ClusterStore(RedisStore):
    """States in a Redis Cluster. Each subject's time is from the server that has its keys.

    A server is named `"<host>:<port>"`. A primary that is cut off from the others still answers for the node timeout of
    the Cluster, while a replica may have taken its place. During that time each of the two admits the full limit.
    """

    def __init__(self, which: WhichRedis) -> None:
        self.which = which
        self._is_closed = False
        self._by_loop = ByLoop(lambda: AsyncSide(self._settings))
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start without clients: another thread may have held a lock of redis-py at the fork."""
        self._breakers: dict[str, Breaker] = {}
        self._plain: dict[str, Redis] = {}
        self._latest: Any = None
        """The client that was used last, sync or async: it knows the servers."""
        self._sides: dict[str, SyncSide] = {}
        """What `_sync` returns, under an empty key: `setdefault` is atomic, so all threads get the same."""

    @cached_property
    def _settings(self) -> ClusterSettings:
        return ClusterSettings(self.which)

    @property
    def _sync(self) -> SyncSide:
        found = self._sides.get("")
        if found is None:
            found = self._sides.setdefault("", SyncSide(self._settings))
            if self._is_closed:  # after it was made known: another thread may be closing the store
                found.close()
        return found

    @property
    def all_nodes_healthy(self) -> bool:
        """Whether every server has run its last command."""
        return not any((breaker := self._breakers.get(name)) and breaker.has_failed for name in self._known())

    def is_refusing(self) -> bool:
        """Say whether the breakers of all servers refuse callers now."""
        return self._refuses(ANY) or (bool(known := self._known()) and all(map(self._refuses, known)))

    def _refuses(self, name: str) -> bool:
        breaker = self._breakers.get(name)
        return breaker is not None and breaker.is_refusing()

    def _known(self) -> list[str]:
        return [] if self._latest is None else [node.name for node in self._latest.get_primaries()]

    @contextmanager
    def _asking(self, name: str) -> Iterator[None]:
        """Ask a server if its breaker allows that, and report the result to the breaker. Raises only our errors."""
        with translated(translate_cluster_error), GuardedCall(self._breaker(name), server_answered, name):
            yield

    def _breaker(self, name: str) -> Breaker:
        return self._breakers.get(name) or self._breakers.setdefault(name, Breaker())

    # --- operations ---------------------------------------------------------------------------------------------------

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `Runner.run`. With keys in several slots, it is atomic in each slot."""
        return run_sync(scatter(operation, slot_of), lambda operations: self.run_all(operations, now))

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `run`."""
        return await cancellable(run_async(scatter(operation, slot_of), lambda each: self.arun_all(each, now)))

    def try_all(self, operations: Sequence[Operation], now: int | None) -> list[Any]:
        """Run operations of one slot each, one after the other. One that fails has its error in place of its reply."""
        return run_sync(self._tried(self._sync, operations, now), _run_call)

    async def arun_all(self, operations: Sequence[Operation], now: int | None) -> list[Any]:
        """Run operations of one slot each; see `run_all`."""
        return all_well(await run_async(self._tried(await self._by_loop.get(), operations, now), _run_call))

    def _tried(self, side: Side, operations: Sequence[Operation], now: int | None) -> Flow[list[Any]]:
        replies: list[Any] = []
        for operation in operations:
            try:
                replies.append((yield from self._one(side, operation, now)))
            except QuotaError as error:
                replies.append(error)
        return replies

    def _one(self, side: Side, operation: Operation, now: int | None) -> Flow[Any]:
        slot = slot_of(operation.keys[0])
        client, node = yield from self._place(side, slot)
        with translated(translate_cluster_error):
            try:
                reply = yield from self._sent(side, client, node, operation, operation.command(now))
            except NoScriptError:
                reply = yield from self._sent_with_text(side, client, node, operation, now)
            return operation.read_reply(reply)

    def _sent_with_text(self, side: Side, client: Any, node: Any, operation: Operation, now: int | None) -> Flow[Any]:
        """Run an operation whose script a server has forgotten. One of the tasks that notice sends the script."""
        script = node.name, operation.script.sha
        if (yield partial(side.is_loaded_by_another, script)):
            with suppress(NoScriptError):
                return (yield from self._sent(side, client, node, operation, operation.command(now)))
            return (yield from self._sent(side, client, node, operation, operation.in_full(now)))
        try:
            return (yield from self._sent(side, client, node, operation, operation.in_full(now)))
        finally:
            side.loaded(script)

    def _sent(self, side: Side, client: Any, node: Any, operation: Operation, command: RedisCommand) -> Flow[Any]:
        """Return the reply to a command of the server that has its slot, from wherever the servers redirect it."""
        server, is_asking = node_address(node), False
        for number in range(MAX_REDIRECTIONS):
            pool = side.pool(server, self._breaker(get_node_name(*server)), is_slow=operation.is_slow)
            try:
                return (yield partial(pool.execute, command, gives_back=operation.gives_back, is_asking=is_asking))
            except MovedError as error:  # before AskError: redis-py derives it from that
                server, is_asking = _redirected(client, error), False
                yield from self._note_move(side, client, error.slot_id, server)
            except AskError as error:
                server, is_asking = _redirected(client, error), True
            except TryAgainError:
                if number > MAX_REDIRECTIONS // 2:
                    yield partial(side.pause, REDIRECTION_PAUSE)
            except (RedisConnectionError, RedisTimeoutError, ClusterDownError):
                yield from self._read_slots_again(side, client, node.name)
                raise
        raise ClusterError(f"its servers keep redirecting a command, the last to {get_node_name(*server)}")

    def _note_move(self, side: Side, client: Any, slot: int, server: Address) -> Flow[None]:
        """Note where a slot is now. That it has moved says nothing about the others, unless its server is new."""
        primary = next((each for each in client.get_primaries() if node_address(each) == server), None)
        if primary is None:
            yield from self._read_slots_again(side, client)
        else:
            client.nodes_manager.slots_cache[slot] = [primary]

    def _read_slots_again(self, side: Side, client: Any, gone: str = "") -> Flow[None]:
        """Read the slot table, for the next calls. `gone`: the name of a server that did not answer, asked last."""
        if side.client is not client:
            return
        known = client.nodes_manager.startup_nodes
        if (last := known.pop(gone, None)) is not None:
            known[gone] = last
        try:
            yield side.read_slots
        except RedisClusterException:  # the client reached no server
            with suppress(RedisError, OSError):
                yield partial(side.leave, client)
        except (RedisError, OSError):
            pass

    def _place(self, side: Side, slot: int) -> Flow[tuple[Any, Any]]:
        """Return the client, and its node that has a slot."""
        client = side.client
        if client is None:
            with self._asking(ANY):
                client = yield side.connect
        self._latest = client
        nodes = client.nodes_manager.slots_cache.get(slot)
        if not nodes:
            with self._asking(NO_SERVER):
                yield side.read_slots  # for the next call
                raise SlotNotCoveredError(f"no server of the Cluster has slot {slot}")
        return client, nodes[0]

    # --- plain commands -----------------------------------------------------------------------------------------------

    @contextmanager
    def commands(self, server: Server = None) -> Iterator[Redis]:
        """Lend a client of one server for plain commands; None: the server of the system keys."""
        name = self.server_of(SYSTEM_TAG) if server is None else server
        client = self._plain.get(name) or self._plain.setdefault(name, self._settings.plain_client(name))
        with translated(translate_cluster_error, (RedisError, OSError)), guarded(client, self._breaker(name), name):
            yield client

    def servers(self) -> Sequence[Server]:
        """Return all primaries."""
        client, _ = self._place_now(SYSTEM_TAG)
        with self._asking(ANY):
            client.nodes_manager.initialize()  # a walk over all keys must not miss a new server
            return sorted(node.name for node in client.get_primaries())

    def server_of(self, key: str) -> Server:
        """Return the server that has a key."""
        return self._place_now(key)[1].name

    def _place_now(self, key: str) -> tuple[Any, Any]:
        return run_sync(self._place(self._sync, slot_of(key)), _run_call)

    def node_key(self, key: str, server: Server) -> str:
        """Return the name of a system key in a slot of a server; empty if it has none. No subject has such a name."""
        tags = chain([SYSTEM_TAG], (f"{{!{number}}}" for number in range(MAX_TAGS)))
        tag = next((tag for tag in tags if self.server_of(tag) == server), "")
        return tag and key.replace(SYSTEM_TAG, tag, 1)

    def close(self) -> None:
        """Close connections, and keep none for threads that still use it; an event loop closes its own."""
        self._is_closed = True
        for client in list(self._plain.values()):
            client.connection_pool.disconnect()  # `close` leaves a pool that the client was given as it is
        for side in list(self._sides.values()):
            side.close()


def _redirected(client: Any, error: AskError) -> Address:
    """Return the server that a server names, where the settings map it."""
    host, port = client.nodes_manager.remap_host_port(error.host, error.port)
    return Address(host, int(port))


def _run_call(call: Callable[[], Any]) -> Any:
    """Make the call that a flow yields; the async driver awaits the result."""
    return call()
