"""The Redis store: it runs an operation by one EVALSHA. What redis-py raises leaves it as our errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis import Redis, RedisError
from redis.exceptions import NoScriptError, ResponseError

from django_quota.core.clock import SECOND
from django_quota.core.errors import StoreUnavailable
from django_quota.engine.operations import Operation
from django_quota.engine.resp import pack_command
from django_quota.stores.redis.blocking import BlockingConnections, WakeUpChannel
from django_quota.stores.redis.breaker import CLOSED, Breaker, probing
from django_quota.stores.redis.config import options_of
from django_quota.stores.redis.connections import (
    ConnectionsByLoop,
    SyncConnections,
    plain_client,
    sync_client,
)
from django_quota.stores.redis.errors import (
    AllInUseError,
    is_cut,
    is_passthrough,
    is_read_only,
    is_silence,
    translate_error,
    translated,
)
from django_quota.stores.redis.sentinel import shorten_sentinel_timeouts
from django_quota.stores.wait_queue import WaitQueue

Server = Any
"""One of the servers of a store; None if there is only one."""


class RedisStore:
    """The Redis of a cache alias. Its clock is that of Redis."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._connections = SyncConnections(alias)
        self._async_connections = ConnectionsByLoop(alias)
        self._blocking = BlockingConnections(SyncConnections(alias), ConnectionsByLoop(alias))
        self.wait_queue = WaitQueue(self.run, self._channel)
        self.breaker = Breaker()
        self._client: Redis | None = None

    @property
    def all_nodes_healthy(self) -> bool:
        """Whether each server has answered when it was asked last. The caller knows that of a single server."""
        return True

    def is_refusing(self) -> bool:
        """Say whether the breaker refuses callers now."""
        return self.breaker.is_refusing()

    # --- sync ---------------------------------------------------------------------------------------------------------

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `Store.run`."""
        packed = operation.evalsha(now)
        probe = self._acquire()
        try:
            try:
                reply = self._exchange(packed, probe)
            except NoScriptError:
                reply = self._exchange(pack_command(operation.in_full(now)), probe)
        except BaseException as error:
            self._note(error, probe)
            if is_passthrough(error):
                raise
            raise translate_error(error) from None
        return operation.read_reply(reply)

    @contextmanager
    def commands(self, server: Server = None) -> Iterator[Redis]:  # noqa: ARG002 — there is only one
        """Lend a client for plain commands; its errors leave the block as ours.

        `server`: one of `servers` or `by_server`; None: that of the system keys.
        """
        probe = self._acquire()
        try:
            if self._client is None:
                client = sync_client(self.alias)
                shorten_sentinel_timeouts(client.connection_pool, options_of(self.alias))
                self._client = plain_client(client)
            with probing(probe):
                yield self._client
        except (RedisError, OSError) as error:
            self._note(error, probe)
            raise translate_error(error) from None
        except BaseException:
            self.breaker.release(probe)
            raise
        self.breaker.succeeded()

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
        if not operations:
            return []
        with self.commands() as client, client.pipeline(transaction=False) as lent:
            pipeline: Any = lent  # redis-py leaves it untyped
            pipeline.execute_command("SCRIPT LOAD", operations[0].script.text)
            for operation in operations:
                pipeline.execute_command(*operation.command(now))
            return list(pipeline.execute()[1:])

    def _channel(self, process: str) -> WakeUpChannel:
        """Open the wake-up channel of a process."""
        return self._blocking.channel(process)

    def _exchange(self, packed: bytes, probe: int = CLOSED) -> Any:
        """Send one command and read its reply: one round trip, never repeated."""
        connection = self._connections.take(is_refusing=self.breaker.is_refusing if probe == CLOSED else None)
        try:
            connection.send_packed_command((packed,))
            reply = connection.read_response(disable_decoding=True)
        except ResponseError as error:
            self.breaker.succeeded()
            if is_read_only(error):
                self._connections.drop(connection)
            else:
                self._connections.release(connection)
            raise
        except BaseException:
            self._connections.drop(connection)  # a reply may still be under way: the next call must not read it
            raise
        else:
            self._connections.release(connection)
            self.breaker.succeeded()
            return reply

    # --- async --------------------------------------------------------------------------------------------------------

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `Store.run`."""
        packed = operation.evalsha(now)
        probe = self._acquire()
        try:
            try:
                reply = await self._aexchange(packed, probe)
            except NoScriptError:
                reply = await self._aexchange(pack_command(operation.in_full(now)), probe)
        except BaseException as error:
            self._note(error, probe)
            if is_passthrough(error):
                raise
            raise translate_error(error) from None
        return operation.read_reply(reply)

    async def _aexchange(self, packed: bytes, probe: int) -> Any:
        """Send one command and read its reply; see `_exchange`."""
        connections = await self._async_connections.get()
        connection = await connections.take(is_refusing=self.breaker.is_refusing if probe == CLOSED else None)
        reply = (await connections.exchange(connection, packed))[0]
        self.breaker.succeeded()
        if not isinstance(reply, ResponseError):
            connections.release(connection)
            return reply
        if is_read_only(reply):
            await connections.drop(connection)
        else:
            connections.release(connection)
        raise reply

    async def acall(self, command: Sequence[str | int], seconds: float) -> Any:
        """Send a command that blocks for some seconds at most; return its raw reply. Raises `StoreUnavailable`."""
        with translated():
            return await self._blocking.acall(command, seconds)

    # --- both ---------------------------------------------------------------------------------------------------------

    def _acquire(self) -> int:
        """Return what the breaker gives. Raises `StoreUnavailable` if it refuses."""
        probe = self.breaker.acquire()
        if probe is None:
            raise _not_asked()
        return probe

    def _note(self, error: BaseException, probe: int) -> None:
        """Tell the breaker what a failure says about the server."""
        if is_passthrough(error) or isinstance(error, AllInUseError) or is_cut(error):  # nothing
            self.breaker.release(probe)
        elif is_silence(error):
            self.breaker.failed(probe)
        else:
            self.breaker.succeeded()

    def close(self) -> None:
        """Close idle connections; an event loop closes its own client."""
        self.wait_queue.close()
        self._connections.close()
        self._blocking.close()
        self._client = None


def time_of(client: Redis) -> int:
    """Return the server's time in microseconds."""
    seconds, microseconds = client.time()
    return int(seconds) * SECOND + int(microseconds)


def _not_asked() -> StoreUnavailable:
    return StoreUnavailable("it has not answered several times in a row, and is asked again in a moment")
