"""The Redis store: it runs an operation by one EVALSHA. It raises our errors in place of redis-py's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import chain
from typing import Any

from redis import Redis, RedisError
from redis.exceptions import NoScriptError

from django_quota.core.forks import register_fork_aware
from django_quota.engine.operations import Operation
from django_quota.stores.base import AskedAgain, Server, all_well, asked_once
from django_quota.stores.breaker import Breaker, GuardedCall
from django_quota.stores.redis.async_wire import AsyncWire, ByLoop, async_wire
from django_quota.stores.redis.connections import SyncPool, sync_pool
from django_quota.stores.redis.errors import answered_plain, is_passthrough, translate_error, translated
from django_quota.stores.redis.settings import PLAIN_TIMEOUT, WhichRedis, pool_of, with_timeouts
from django_quota.stores.scanning import scan


@contextmanager
def guarded(client: Redis, breaker: Breaker, name: str = "it") -> Iterator[Redis]:
    """Lend a client of one server for plain commands, if its breaker allows that. `name`: the server's."""
    with GuardedCall(breaker, answered_plain, name) as call:
        if call.is_probe:  # calls within the block would be refused until it has ended
            client.eval("return 1", 0)
            breaker.succeeded()
        yield client


class ServerClient:
    """The client of one server. It raises redis-py's errors."""

    def __init__(self, which: WhichRedis) -> None:
        self.breaker = Breaker()
        self.wires = ByLoop(lambda: async_wire(pool_of(which), which.option, self.breaker))
        self._which = which
        self._is_closed = False
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start without connections: a forked worker must not write to the sockets of its parent."""
        self._made: dict[str, tuple[SyncPool, Redis]] = {}
        """What `_connections` returns, under an empty key: `setdefault` is atomic, so all threads get the same."""

    def _connections(self) -> tuple[SyncPool, Redis]:
        """Return the connections of all threads, and a client for plain commands, which may take longer."""
        found = self._made.get("")
        if found is None:
            pool = pool_of(self._which)
            ours = sync_pool(pool, self._which.option, self.breaker)
            pool.connection_kwargs.update(with_timeouts(pool.connection_kwargs, PLAIN_TIMEOUT))
            found = self._made.setdefault("", (ours, Redis(connection_pool=pool)))
            if self._is_closed:  # after it was made known: another thread may be closing the store
                found[0].close()
        return found

    @property
    def pool(self) -> SyncPool:
        """The connections of all threads."""
        return self._connections()[0]

    def commands(self) -> AbstractContextManager[Redis]:
        """Lend a client for plain commands on this server alone."""
        return guarded(self._connections()[1], self.breaker)

    def close(self) -> None:
        """Close connections, and keep none for threads that still use it; an event loop closes its own."""
        self._is_closed = True
        for ours, plain in list(self._made.values()):
            ours.close()
            plain.connection_pool.disconnect()


class RedisStore:
    """States in a Redis. Its clock is Redis' own."""

    is_shared = True
    database = None

    def __init__(self, which: WhichRedis) -> None:
        self.which = which
        self.server = ServerClient(which)

    @property
    def redis(self) -> RedisStore:
        """This store."""
        return self

    @property
    def all_nodes_healthy(self) -> bool:
        """True: there is only one server, and it has answered."""
        return True

    def is_refusing(self) -> bool:
        """Say whether the breaker refuses callers now."""
        return self.server.breaker.is_refusing()

    # --- sync ---------------------------------------------------------------------------------------------------------

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `Runner.run`."""
        pool, ours = self.server.pool, None
        try:
            try:
                reply = pool.execute(operation.command(now), gives_back=operation.gives_back)
            except NoScriptError:
                reply = pool.execute(operation.in_full(now), gives_back=operation.gives_back)
        except BaseException as error:
            if is_passthrough(error):
                raise
            ours = translate_error(error)
        if ours is not None:  # raised here, it has no context: the frames of redis-py hold the password
            raise ours
        return operation.read_reply(reply)

    @contextmanager
    def commands(self, server: Server = None) -> Iterator[Redis]:  # noqa: ARG002 — there is only one
        """Lend a client for plain commands; see `RedisServers.commands`."""
        with translated(only=(RedisError, OSError)), self.server.commands() as client:
            yield client

    def names(self, matching: str, asked: AskedAgain = asked_once) -> Iterator[str]:
        """Yield the keys that match a pattern; see `Store.names`.

        In a Cluster, a key that moves meanwhile may be missing. Raises `StoreUnavailable` if Redis does not answer; for
        a part of a Cluster, only after the keys of all other servers.
        """
        return chain.from_iterable(scan(self, matching, asked=asked))

    def clear_memory(self) -> None:
        """Do nothing: Redis keeps what it has."""

    def servers(self) -> Sequence[Server]:
        """Return all servers that hold keys: a walk over all keys goes to each of them."""
        return [None]

    def server_of(self, key: str) -> Server:  # noqa: ARG002 — there is only one
        """Return the server that holds a key."""
        return None

    def node_key(self, key: str, server: Server) -> str:  # noqa: ARG002 — there is only one
        """Return the name of a system key that a server holds; empty if it holds none."""
        return key

    def by_server(self, keys: Iterable[str]) -> dict[Server, list[str]]:
        """Return keys by the server that holds them: one pipeline can serve all keys of one server."""
        found: dict[Server, list[str]] = {}
        for key in keys:
            found.setdefault(self.server_of(key), []).append(key)
        return found

    def run_all(self, operations: Sequence[Operation], now: int | None) -> list[Any]:
        """Run operations of one script in one round trip. Each is atomic, all together are not."""
        return all_well(self.try_all(operations, now))

    def try_all(self, operations: Sequence[Operation], now: int | None) -> list[Any]:
        """Run operations in one round trip; see `Runner.try_all`."""
        if not operations:
            return []
        with self.commands() as client, client.pipeline(transaction=False) as lent:
            pipeline: Any = lent  # redis-py leaves it untyped
            pipeline.execute_command("SCRIPT LOAD", operations[0].script.text)
            for operation in operations:
                pipeline.execute_command("EVALSHA", operation.script.sha, *operation.words(now))
            loaded, *replies = pipeline.execute(raise_on_error=False)
            if isinstance(loaded, RedisError):
                raise loaded
        return [translate_error(reply) if isinstance(reply, RedisError) else reply for reply in replies]

    # --- async --------------------------------------------------------------------------------------------------------

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `Runner.run`."""
        wires = self.server.wires
        try:
            wire = wires.known() or await wires.get()
            if operation.is_slow:
                wire = wire.beside()
            try:
                reply = await wire.execute(operation.command(now), gives_back=operation.gives_back)
            except NoScriptError:
                reply = await self._sent_in_full(wire, operation, now)
            return operation.read_reply(reply)
        except Exception as error:
            if is_passthrough(error):
                raise
            ours = translate_error(error)
        raise ours

    async def _sent_in_full(self, wire: AsyncWire, operation: Operation, now: int | None) -> Any:
        """Run an operation whose script Redis has forgotten. One of the tasks that notice sends the script."""
        sha = operation.script.sha
        if await wire.loading.by_another(sha):
            with suppress(NoScriptError):
                return await wire.execute(operation.command(now), gives_back=operation.gives_back)
            return await wire.execute(operation.in_full(now), gives_back=operation.gives_back)
        try:
            return await wire.execute(operation.in_full(now), gives_back=operation.gives_back)
        finally:
            wire.loading.done(sha)

    def close(self) -> None:
        """Close idle connections; an event loop closes its own."""
        self.server.close()
