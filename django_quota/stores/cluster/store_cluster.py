"""The Redis store over a Cluster: each operation goes to the server that has its keys.

`engine.scatter` splits an operation whose keys are in several slots, and `routing` finds the server of each command.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

from redis import Redis, RedisError
from redis.exceptions import AskError

from django_quota.core.errors import ConfigurationError, QuotaError, StoreUnavailable
from django_quota.core.flow import run_async, run_sync
from django_quota.engine.operations import Operation
from django_quota.engine.scatter import scatter
from django_quota.stores.cluster.client import remap_of, seeds
from django_quota.stores.cluster.routing import Router, SlotCommand
from django_quota.stores.cluster.slots import SYSTEM_SLOT, SYSTEM_TAG, name_on, node_keys, slot_of
from django_quota.stores.redis import errors
from django_quota.stores.redis.config_checks import alias_problem
from django_quota.stores.redis.server_client import Command, ServerClient
from django_quota.stores.redis.store import RedisStore, Server, all_well
from django_quota.stores.redis.wake_up import WakeUpChannel
from django_quota.stores.wait_queue import WaitQueue


def _translate_error(error: BaseException) -> QuotaError:
    """Return our error for one of redis-py or of the socket."""
    if isinstance(error, AskError):  # and MOVED: the answer to a plain command, which is not sent to another server
        return StoreUnavailable(f"a slot is moving to another server: {error}")
    if "ClusterCrossSlot" in type(error).__name__ or "CROSSSLOT" in str(error):
        return ConfigurationError(
            "The keys of a command are in several slots of a Redis Cluster, which runs it in one slot or not at all.",
            "Keys with the same part in braces are in one slot.",
        )
    return errors.translate_error(error)


_translated = partial(errors.translated, _translate_error)


class ClusterStore(RedisStore):
    """States in the Redis Cluster of a cache alias. A subject's clock is that of the server that has its keys.

    A primary that is cut off from the others still answers for the node timeout of the Cluster, while a replica may
    have taken its place. During that time each of the two admits the full limit.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.wait_queue = WaitQueue(self.run, self._channel)

    @cached_property
    def _router(self) -> Router:
        problem = alias_problem(self.alias)
        if problem is not None:
            raise ConfigurationError(problem.message, problem.hint)
        return Router(seeds(self.alias), partial(ServerClient, self.alias), remap_of(self.alias))

    @property
    def all_nodes_healthy(self) -> bool:
        """Whether every server has run its last command."""
        return self._router.all_nodes_healthy

    def is_refusing(self) -> bool:
        """Say whether the breakers of all servers refuse callers now."""
        return self._router.is_refusing()

    # --- sync ---------------------------------------------------------------------------------------------------------

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `Store.run`. With keys in several slots, it is atomic in each slot."""
        return run_sync(scatter(operation, slot_of), lambda operations: self.run_all(operations, now))

    def try_all(self, operations: Sequence[Operation], now: int | None) -> list[Any]:
        """Run operations of one slot each. One that fails has its error in place of its reply."""
        with _translated():
            return _read(operations, run_sync(self._router.reach(_slot_commands(operations, now))))

    # --- async --------------------------------------------------------------------------------------------------------

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `run`."""
        return await run_async(scatter(operation, slot_of), lambda operations: self.arun_all(operations, now))

    async def arun_all(self, operations: Sequence[Operation], now: int | None) -> list[Any]:
        """Run operations of one slot each; see `run_all`."""
        with _translated():
            replies = await run_async(self._router.reach(_slot_commands(operations, now)))
            return all_well(_read(operations, replies))

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _channel(self, process: str) -> WakeUpChannel:
        """Open the wake-up channel of a process. Every server receives what is published on another one."""
        node = self._router.node(run_sync(self._router.server_of(SYSTEM_SLOT)))
        with self._stale_after_errors():
            return node.channel(process)

    async def acall(self, command: Command, seconds: float) -> Any:
        """Send a command on a system key that blocks for some seconds at most; see `RedisStore.acall`."""
        with _translated():
            node = self._router.node(await run_async(self._router.server_of(SYSTEM_SLOT)))
            with self._stale_after_errors():
                return await node.acall(command, seconds)

    @contextmanager
    def _stale_after_errors(self) -> Iterator[None]:
        """Read the slot table again after an error: another server may have the slot by now."""
        try:
            yield
        except BaseException:
            self._router.is_stale = True
            raise

    # --- plain commands -----------------------------------------------------------------------------------------------

    @contextmanager
    def commands(self, server: Server = None) -> Iterator[Redis]:
        """Lend a client of one server for plain commands; None: the server of the system keys."""
        with _translated((RedisError, OSError)), self._stale_after_errors():
            at = self.server_of(SYSTEM_TAG) if server is None else server
            with self._router.node(at).commands() as client:
                yield client

    def servers(self) -> Sequence[Server]:
        """Return all primaries."""
        with _translated():
            self._router.is_stale = True  # a walk over all keys must not miss a new server
            run_sync(self._router.refresh())
            return self._router.primaries

    def server_of(self, key: str) -> Server:
        """Return the server that has a key."""
        with _translated():
            return run_sync(self._router.server_of(slot_of(key)))

    def node_keys(self, key: str) -> list[str]:
        """Return the names of all copies of a system key; see `slots.node_keys`."""
        return node_keys(key)

    def node_key(self, key: str, server: Server) -> str:
        """Return the one of these that a server has; empty if it has none."""
        return name_on(key, server, self._router.owner)

    def of_each(self, command: Sequence[str], keys: Sequence[str]) -> list[Any]:
        """Return the reply to a command on each key, even if its slot moves; see `RedisStore.of_each`."""
        asked = [SlotCommand(slot_of(key), (*command, key)) for key in keys]
        with _translated():
            replies = all_well(run_sync(self._router.reach(asked)))
        if command[0] != "HGETALL":
            return replies
        return [flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True)) for flat in replies]

    def by_server(self, keys: Iterable[str]) -> dict[Server, list[str]]:
        """Return keys by the server that has them."""
        found: dict[Server, list[str]] = {}
        for key in keys:
            found.setdefault(self.server_of(key), []).append(key)
        return found

    def close(self) -> None:
        """Close idle connections; an event loop closes its own."""
        self.wait_queue.close()
        router: Router | None = vars(self).pop("_router", None)
        for node in list(router.nodes.values()) if router else ():
            node.close()


def _slot_commands(operations: Sequence[Operation], now: int | None) -> list[SlotCommand]:
    return [SlotCommand(slot_of(each.keys[0]), each.command(now), each.script) for each in operations]


def _read(operations: Sequence[Operation], replies: Sequence[Any]) -> list[Any]:
    """Return the replies to operations, with our errors."""
    return [
        _translate_error(reply) if isinstance(reply, Exception) else operation.read_reply(reply)
        for operation, reply in zip(operations, replies, strict=True)
    ]
