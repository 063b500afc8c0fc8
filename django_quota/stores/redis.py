"""The Redis store: an operation is one EVALSHA. What redis-py raises leaves it as ours; see `errors`.

It talks over connections itself rather than through `execute_command`: that one repeats a command whose reply got lost,
and a hit must not count twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from redis import Redis, RedisError
from redis.exceptions import NoScriptError, ResponseError

from django_quota.clock import SECOND
from django_quota.exceptions import StoreUnavailable
from django_quota.operations.base import Operation, Repeated
from django_quota.stores.aliases import config_of, sync_client
from django_quota.stores.breaker import FREELY, Breaker, holding
from django_quota.stores.connections import AllInUseError, AsyncClient, AsyncClients, SyncConnections
from django_quota.stores.errands import Errand, Errands, Taken, ahear, along, hear
from django_quota.stores.errors import (
    check_replies,
    is_cut,
    is_of_redis_py,
    is_read_only,
    is_silence,
    ours,
    raise_cut_at_once,
    translated,
)
from django_quota.stores.listening import Listener, Subscription
from django_quota.stores.loops import reply_on
from django_quota.stores.plain import plain_client
from django_quota.stores.sentinel import ask_in_time
from django_quota.stores.waiters import Waiters
from django_quota.stores.wire import Cancellation, InParts, is_of_caller, note_answer, note_end, out_of_step, packed

Server = Any
"""One of the servers of a store; None where there is but one."""


class RedisStore:
    """States in the Redis of a cache alias. Its clock is Redis' own."""

    def __init__(self, alias: str, *errands: Errand) -> None:
        self.alias = alias
        self._errands = Errands(errands)
        self._connections = SyncConnections(alias)
        self._async_clients = AsyncClients(alias)
        self._listener = Listener(SyncConnections(alias), AsyncClients(alias))
        self.waiters = Waiters(self.run, self._subscribe)
        self.breaker = Breaker()
        """Keeps calls from a server that does not answer."""
        self._client: Redis | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all servers have done what they were last asked; without a Cluster the last call says so."""
        return True

    # --- sync ---------------------------------------------------------------------------------------------------------

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Do an operation; see `Store.run`."""
        wire = packed(command_of(operation, now))
        turn = self._enter()
        try:
            try:
                reply = self._exchange(wire, operation, turn)
            except NoScriptError:
                self._errands.hurry()  # a server that does not know our script may be a new one
                reply = self._exchange(packed(_in_full(operation, now)), operation, turn)
        except BaseException as error:
            self._note(error, turn)
            if is_of_caller(error):
                raise
            raise ours(error) from error
        return reply

    @contextmanager
    def commands(self, server: Server = None) -> Iterator[Redis]:  # noqa: ARG002 — there is but one
        """Lend a client for plain commands; its errors leave the block as ours.

        `server`: one of `servers`, or of `by_server`; None: the one that has the system's keys.
        """
        turn = self._enter()
        try:
            if self._client is None:
                client = sync_client(self.alias)
                ask_in_time(client.connection_pool, config_of(self.alias).get("OPTIONS") or {})
                self._client = plain_client(client)
            with holding(turn):
                yield self._client
        except BaseException as error:
            if not is_of_redis_py(error):
                self.breaker.left(turn)
                raise
            self._note(error, turn)
            raise ours(error) from error
        self.breaker.succeeded()

    def servers(self) -> Sequence[Server]:
        """Return all servers that have keys: a walk over all keys goes to each. Without a Cluster there is one."""
        return [None]

    def server_of(self, key: str) -> Server:  # noqa: ARG002 — there is but one
        """Return the server that has a key."""
        return None

    def twin(self, key: str, server: Server) -> str:  # noqa: ARG002 — there is but one
        """Return the name under which a server keeps a system key that each has one of."""
        return key

    def witnesses(self, key: str) -> list[str]:
        """Return the names of a system key by which all servers show that they have kept their memory."""
        return [key]

    def witness(self, key: str, server: Server) -> str:  # noqa: ARG002 — there is but one
        """Return one of `witnesses` that a server has; empty where it has none."""
        return key

    def by_server(self, keys: Iterable[str]) -> dict[Server, list[str]]:
        """Return keys by the server that has them: those of one go in one pipeline."""
        found = list(keys)
        return {None: found} if found else {}

    def of_each(self, command: Sequence[str], keys: Sequence[str]) -> list[Any]:
        """Return the reply to a command on each of these keys, such as `("HKEYS",)`: in one trip a server."""
        if not keys:
            return []
        with self.commands() as client, client.pipeline(transaction=False) as lent:
            pipeline: Any = lent  # redis-py leaves it untyped
            for key in keys:
                pipeline.execute_command(*command, key)
            return list(pipeline.execute())

    def run_all(self, operations: Sequence[Operation], now: int | None) -> list[Any]:
        """Do operations of one script in one trip. Each is undivided, all of them are not."""
        if not operations:
            return []
        with self.commands() as client, client.pipeline(transaction=False) as lent:
            pipeline: Any = lent  # redis-py leaves it untyped
            pipeline.execute_command("SCRIPT LOAD", operations[0].script.text)
            for operation in operations:
                pipeline.execute_command(*command_of(operation, now))
            replies: list[Any] = pipeline.execute()[1:]
            check_replies(operations, replies)
        return replies

    def _subscribe(self, process: str) -> Subscription:
        """Listen for the wake-ups of a process."""
        return self._listener.subscribe(process)

    def _exchange(self, wire: bytes, operation: Operation, turn: int = FREELY) -> Any:
        """Send one command and read its reply, which must fit: one round trip, never repeated."""
        connection = self._connection(turn)
        taken: Sequence[Taken] = ()
        try:
            taken = self._errands.due()
            connection.send_packed_command((along(taken, wire),))
            if taken:
                hear(taken, connection)
            reply = connection.read_response()
            if not operation.fits(reply):
                raise out_of_step(reply, operation.replies)  # noqa: TRY301 — the connection is of no use any more
        except ResponseError as error:
            self.breaker.succeeded()
            if is_read_only(error):
                self._connections.drop(connection)
            else:
                self._connections.give_back(connection)
            raise
        except BaseException as error:
            self._connections.drop(connection)  # a reply may still be under way: nobody else must read it
            raise_cut_at_once(error, connection)
            raise
        else:
            note_answer(connection)
            self._connections.give_back(connection)
            self.breaker.succeeded()  # before what follows from errands, which may ask too
        finally:
            for errand in taken:
                errand.over()
        return reply

    def _connection(self, turn: int) -> Any:
        """Return a connection to ask by."""
        try:
            return self._connections.take(in_vain=self.breaker.is_shut if turn == FREELY else None)
        except (RedisError, OSError) as error:
            raise_cut_at_once(error)
            raise

    # --- async --------------------------------------------------------------------------------------------------------

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Do an operation; see `Store.run`."""
        wire = packed(command_of(operation, now))
        turn = self._enter()
        with Cancellation() as cancellation:
            try:
                client = await self._async_clients.get()
                told = (client, turn, cancellation)
                try:
                    reply = await self._aexchange(told, wire, operation)
                except NoScriptError:
                    self._errands.hurry()  # a server that does not know our script may be a new one
                    reply = await self._aexchange(told, packed(_in_full(operation, now)), operation)
            except BaseException as error:
                self._note(error, turn)
                if is_of_caller(error):
                    raise
                raise ours(error) from error
        return reply

    async def _aexchange(self, told: tuple[AsyncClient, int, Cancellation], wire: bytes, operation: Operation) -> Any:
        """Send one command and read its reply; see `_exchange`."""
        client, turn, cancellation = told
        pool: Any = client.client.connection_pool
        has_waited = await client.enter()
        try:
            if has_waited and turn == FREELY and self.breaker.is_shut():  # others have found out meanwhile
                raise _not_asked()
            try:
                connection = await client.take()
            except (RedisError, OSError) as error:
                raise_cut_at_once(error)
                raise
            taken: Sequence[Taken] = ()
            try:
                taken = self._errands.due()
                await connection.send_packed_command((along(taken, wire),))
                cancellation.pass_on()
                if taken:
                    await ahear(taken, connection)
                reply = await reply_on(connection)
                if not operation.fits(reply):
                    raise out_of_step(reply, operation.replies)  # noqa: TRY301 — the connection is of no use any more
            except ResponseError as error:
                self.breaker.succeeded()
                if is_read_only(error):
                    await connection.disconnect(nowait=True)
                raise
            except BaseException as error:
                await connection.disconnect(nowait=True)  # a reply may still be under way: nobody else must read it
                raise_cut_at_once(error, connection)
                note_end(connection)
                raise
            else:
                note_answer(connection)
                self.breaker.succeeded()  # before what follows from errands, which may ask too
            finally:
                await pool.release(connection)
                for errand in taken:
                    errand.over()
        finally:
            client.slots.release()
        return reply

    async def acall(self, command: Sequence[str | int], seconds: float) -> Any:
        """Send a command that may wait up to so many seconds, beside the decisions' connections; return its raw reply.

        Raises `StoreUnavailable` where Redis does not answer.
        """
        with translated():
            return await self._listener.acall(command, seconds)

    # --- both ---------------------------------------------------------------------------------------------------------

    def _enter(self) -> int:
        """Return the breaker's turn; raise `StoreUnavailable` where the server has not answered several times."""
        turn = self.breaker.ask()
        if turn is None:
            raise _not_asked()
        return turn

    def _note(self, error: BaseException, turn: int) -> None:
        """Tell the breaker what a failure says of the server."""
        if is_of_caller(error) or isinstance(error, AllInUseError) or is_cut(error):  # which says nothing of it
            self.breaker.left(turn)
        elif is_silence(error):
            self.breaker.failed(turn)
        else:
            self.breaker.succeeded()

    def close(self) -> None:
        """Close idle connections; an event loop closes its own client."""
        self.waiters.close()
        self._connections.close()
        self._listener.close()
        self._client = None


def command_of(operation: Operation, now: int | None) -> Sequence[str | int]:
    """Return the EVALSHA that does an operation."""
    keys, parts = operation.keys, operation.parts()
    script, own = _evalsha(operation.script.sha, len(keys)), [*keys, "" if now is None else now]
    return InParts(script, own, parts) if parts else [*script.arguments, *own, *operation.arguments()]


@lru_cache(maxsize=256)
def _evalsha(sha: str, keys: int) -> Repeated:
    return Repeated("EVALSHA", sha, keys)


def _in_full(operation: Operation, now: int | None) -> list[str | int]:
    """Return the EVAL that does it: it brings the script along, which can be forgotten again right after a load."""
    return ["EVAL", operation.script.text, *command_of(operation, now)[2:]]


def time_of(client: Redis) -> int:
    """Return the server's time in microseconds."""
    seconds, microseconds = client.time()
    return int(seconds) * SECOND + int(microseconds)


def _not_asked() -> StoreUnavailable:
    return StoreUnavailable("it has not answered several times in a row, and is asked again in a moment")
