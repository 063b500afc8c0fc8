"""The Redis store: it runs an operation by one EVALSHA. What redis-py raises leaves it as our errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis import Redis, RedisError
from redis.exceptions import NoScriptError, ResponseError

from django_quota.core.clock import SECOND
from django_quota.engine.operations import Operation, pack_command
from django_quota.stores.redis.errors import is_passthrough, translate_error, translated
from django_quota.stores.redis.server_client import Command, ServerClient
from django_quota.stores.redis.wake_up import WakeUpChannel
from django_quota.stores.wait_queue import WaitQueue

Server = Any
"""One of the servers of a store; None if there is only one."""


class RedisStore:
    """The Redis of a cache alias. Its clock is that of Redis."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.server = ServerClient(alias)
        self.wait_queue = WaitQueue(self.run, self._channel)

    @property
    def all_nodes_healthy(self) -> bool:
        """Whether each server has answered when it was asked last. The caller knows that of a single server."""
        return True

    def is_refusing(self) -> bool:
        """Say whether the breaker refuses callers now."""
        return self.server.breaker.is_refusing()

    # --- sync ---------------------------------------------------------------------------------------------------------

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `Store.run`."""
        try:
            (reply,) = self.server.exchange(operation.evalsha(now))
            if isinstance(reply, NoScriptError):
                (reply,) = self.server.exchange(pack_command(operation.in_full(now)))
        except BaseException as error:
            if is_passthrough(error):
                raise
            raise translate_error(error) from None
        return _read(operation, reply)

    @contextmanager
    def commands(self, server: Server = None) -> Iterator[Redis]:  # noqa: ARG002 — there is only one
        """Lend a client for plain commands; its errors leave the block as ours.

        `server`: one of `servers` or `by_server`; None: that of the system keys.
        """
        with translated(only=(RedisError, OSError)), self.server.commands() as client:
            yield client

    def servers(self) -> Sequence[Server]:
        """Return all servers that hold keys: a walk over all keys goes to each of them."""
        return [None]

    def server_of(self, key: str) -> Server:  # noqa: ARG002 — there is only one
        """Return the server that holds a key."""
        return None

    def node_keys(self, key: str) -> list[str]:
        """Return the names of all copies of a system key that each server needs for itself."""
        return [key]

    def node_key(self, key: str, server: Server) -> str:  # noqa: ARG002 — there is only one
        """Return the one of `node_keys` that a server holds; empty if it holds none."""
        return key

    def by_server(self, keys: Iterable[str]) -> dict[Server, list[str]]:
        """Return keys by the server that holds them: one pipeline can serve those of one server."""
        found = list(keys)
        return {None: found} if found else {}

    def of_each(self, command: Sequence[str], keys: Sequence[str]) -> list[Any]:
        """Return the reply to a command on each key, for example `("HKEYS",)`: one round trip for each server."""
        if not keys:
            return []
        with self.commands() as client, client.pipeline(transaction=False) as lent:
            pipeline: Any = lent  # redis-py leaves it untyped
            for key in keys:
                pipeline.execute_command(*command, key)
            return list(pipeline.execute())

    def run_all(self, operations: Sequence[Operation], now: int | None) -> list[Any]:
        """Run operations of one script in one round trip. Each is atomic, all together are not."""
        return all_well(self.try_all(operations, now))

    def try_all(self, operations: Sequence[Operation], now: int | None) -> list[Any]:
        """Run operations as `run_all` does. One that fails has its error in place of its reply."""
        if not operations:
            return []
        with self.commands() as client, client.pipeline(transaction=False) as lent:
            pipeline: Any = lent  # redis-py leaves it untyped
            pipeline.execute_command("SCRIPT LOAD", operations[0].script.text)
            for operation in operations:
                pipeline.execute_command(*operation.command(now))
            loaded, *replies = pipeline.execute(raise_on_error=False)
            if isinstance(loaded, RedisError):
                raise loaded
        return [translate_error(reply) if isinstance(reply, RedisError) else reply for reply in replies]

    def _channel(self, process: str) -> WakeUpChannel:
        """Open the wake-up channel of a process."""
        return self.server.channel(process)

    # --- async --------------------------------------------------------------------------------------------------------

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `Store.run`."""
        try:
            (reply,) = await self.server.aexchange(operation.evalsha(now))
            if isinstance(reply, NoScriptError):
                (reply,) = await self.server.aexchange(pack_command(operation.in_full(now)))
        except BaseException as error:
            if is_passthrough(error):
                raise
            raise translate_error(error) from None
        return _read(operation, reply)

    async def acall(self, command: Command, seconds: float) -> Any:
        """Send a command that blocks for some seconds at most; return its raw reply. Raises `StoreUnavailable`."""
        with translated():
            return await self.server.acall(command, seconds)

    def close(self) -> None:
        """Close idle connections; an event loop closes its own client."""
        self.wait_queue.close()
        self.server.close()


def all_well(replies: list[Any]) -> list[Any]:
    """Return these replies. Raises the first error among them."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def time_of(client: Redis) -> int:
    """Return the server's time in microseconds."""
    seconds, microseconds = client.time()
    return int(seconds) * SECOND + int(microseconds)


def _read(operation: Operation, reply: Any) -> Any:
    """Return the reply to an operation. Raises our error for an error reply."""
    if isinstance(reply, ResponseError):
        raise translate_error(reply) from None
    return operation.read_reply(reply)
