"""The Redis store: an operation is one EVALSHA. The one place where redis-py's errors are caught and turned into ours.

It talks over connections itself rather than through `execute_command`: that one repeats a command whose reply got lost,
and a hit must not count twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis import Redis, RedisError
from redis.exceptions import ClusterCrossSlotError, NoScriptError, OutOfMemoryError, ReadOnlyError, ResponseError

from django_quota.clock import SECOND
from django_quota.exceptions import ConfigurationError, QuotaError, StoreUnavailable
from django_quota.operations.base import Operation
from django_quota.operations.leases import Ring
from django_quota.stores.breaker import Breaker
from django_quota.stores.connections import AllInUseError, AsyncClient, AsyncClients, SyncConnections, sync_client
from django_quota.stores.errands import Errand, Errands, Taken
from django_quota.stores.listening import Listener
from django_quota.stores.wire import FOR_COMMAND, Cancellation, packed


class RedisStore:
    """States in the Redis of a cache alias. Its clock is Redis' own."""

    def __init__(self, alias: str, *errands: Errand) -> None:
        self.alias = alias
        self._errands = Errands(errands)
        self._connections = SyncConnections(alias)
        self._async_clients = AsyncClients(alias)
        self._listener = Listener(alias)
        self.breaker = Breaker()
        """Keeps calls from a server that does not answer."""

    # --- sync ---------------------------------------------------------------------------------------------------------

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Do an operation; see `Store.run`."""
        command = _command(operation, now)
        self._enter()
        try:
            try:
                reply = self._exchange(command)
            except NoScriptError:
                self._errands.hurry()  # a server that does not know our script may be a new one
                self._exchange(("SCRIPT", "LOAD", operation.script.text))
                reply = self._exchange(command)
        except (RedisError, OSError) as error:
            self._note(error)
            raise ours(error) from error
        self.breaker.succeeded()
        return reply

    @contextmanager
    def commands(self) -> Iterator[Redis]:
        """Lend the alias' client for plain commands; its errors leave the block as ours."""
        with commands(self.alias) as client:
            yield client

    def listen(self, bell: str, seconds: float) -> bool:
        """Wait at a bell; see `Store.listen`."""
        try:
            return self._listener.listen(bell, seconds)
        except (RedisError, OSError) as error:
            raise ours(error) from error

    def ring(self, bell: str) -> None:
        """Ring a bell; see `Store.ring`."""
        self.run(Ring(bell))

    def _exchange(self, command: Sequence[str | int]) -> Any:
        """Send one command and read its reply: one round trip, never repeated."""
        connection = self._connections.take()
        taken: Sequence[Taken] = ()
        try:
            taken = self._errands.due()
            if not taken:
                connection.send_packed_command((packed(command),))
            else:
                connection.send_packed_command((_along(taken, command),))
                for errand in taken:
                    try:
                        errand.answered(connection.read_response())
                    except ResponseError as error:
                        errand.answered(error)
            reply = connection.read_response()
        except ResponseError as error:
            if _is_read_only(error):
                self._connections.drop(connection)
            else:
                self._connections.give_back(connection)
            raise
        except BaseException:
            self._connections.drop(connection)  # a reply may still be under way: nobody else must read it
            raise
        else:
            self._connections.give_back(connection)
        finally:
            for errand in taken:
                errand.over()
        return reply

    # --- async --------------------------------------------------------------------------------------------------------

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Do an operation; see `Store.run`."""
        command = _command(operation, now)
        self._enter()
        client = await self._async_clients.get()
        try:
            try:
                reply = await self._aexchange(client, command)
            except NoScriptError:
                self._errands.hurry()  # a server that does not know our script may be a new one
                await self._aexchange(client, ("SCRIPT", "LOAD", operation.script.text))
                reply = await self._aexchange(client, command)
        except (RedisError, OSError) as error:
            self._note(error)
            raise ours(error) from error
        self.breaker.succeeded()
        return reply

    async def alisten(self, bell: str, seconds: float) -> bool:
        """Wait at a bell; see `Store.listen`."""
        try:
            return await self._listener.alisten(bell, seconds)
        except (RedisError, OSError) as error:
            raise ours(error) from error

    async def aring(self, bell: str) -> None:
        """Ring a bell; see `Store.ring`."""
        await self.arun(Ring(bell))

    async def _aexchange(self, client: AsyncClient, command: Sequence[str | int]) -> Any:
        """Send one command and read its reply: one round trip, never repeated."""
        pool: Any = client.client.connection_pool
        cancellation = Cancellation()
        async with client.slots:
            connection = await pool.get_connection(*FOR_COMMAND)
            taken: Sequence[Taken] = ()
            try:
                taken = self._errands.due()
                if not taken:
                    await connection.send_packed_command((packed(command),))
                else:
                    await connection.send_packed_command((_along(taken, command),))
                    for errand in taken:
                        try:
                            errand.answered(await connection.read_response())
                        except ResponseError as error:
                            errand.answered(error)
                reply = await connection.read_response()
            except ResponseError as error:
                if _is_read_only(error):
                    await connection.disconnect(nowait=True)
                raise
            except BaseException:
                await connection.disconnect(nowait=True)  # a reply may still be under way: nobody else must read it
                raise
            finally:
                await pool.release(connection)
                for errand in taken:
                    errand.over()
        cancellation.pass_on()
        return reply

    async def acall(self, command: Sequence[str | int], seconds: float) -> Any:
        """Send a command that may wait up to so many seconds, beside the decisions' connections; return its raw reply.

        Raises `StoreUnavailable` where Redis does not answer.
        """
        try:
            return await self._listener.acall(command, seconds)
        except (RedisError, OSError) as error:
            raise ours(error) from error

    # --- both ---------------------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Raise `StoreUnavailable` at once where the server has not answered several times in a row."""
        if not self.breaker.lets_through():
            raise StoreUnavailable("it has not answered several times in a row, and is asked again in a moment")

    def _note(self, error: Exception) -> None:
        """Tell the breaker what a failure says of the server."""
        if is_silence(error):
            self.breaker.failed()
        elif not isinstance(error, AllInUseError):  # which says nothing of it
            self.breaker.succeeded()

    def close(self) -> None:
        """Close idle connections; an event loop closes its own client."""
        self._connections.close()
        self._listener.close()


def _command(operation: Operation, now: int | None) -> list[str | int]:
    keys = operation.keys
    return [
        "EVALSHA", operation.script.sha, len(keys), *keys, "" if now is None else now, *operation.arguments()
    ]  # fmt: skip


def _along(taken: Sequence[Taken], command: Sequence[str | int]) -> bytes:
    """Return a command with the errands in front of it."""
    return b"".join([*(errand.wire for errand in taken), packed(command)])


def time_of(client: Redis) -> int:
    """Return the server's time in microseconds."""
    seconds, microseconds = client.time()
    return int(seconds) * SECOND + int(microseconds)


@contextmanager
def commands(alias: str) -> Iterator[Redis]:
    """Lend the client of a cache alias for plain commands; its errors leave the block as ours."""
    client = sync_client(alias)
    try:
        yield client
    except (RedisError, OSError) as error:
        raise ours(error) from error


def _is_read_only(error: ResponseError) -> bool:
    """Say whether this server has become a replica: its connection must lead to the new primary next time."""
    return isinstance(error, ReadOnlyError) or "READONLY" in str(error)  # Redis 6 wraps what a script ran into


_WRITE_ERRORS = (ReadOnlyError, OutOfMemoryError)  # redis-py takes the word off those that it knows

_OF_WRITES = ("READONLY", "OOM", "MISCONF", "NOREPLICAS")
"""What they say where only what changes nothing is answered, such as a refusal."""


_CUT = ("closed by server", "reset by peer", "broken pipe")
"""What redis-py says of a connection that was cut."""


def is_silence(error: Exception) -> bool:
    """Say whether the server is there no longer, or does not answer: so that asking it again would be in vain.

    An error reply is an answer, and none had to wait for it. A connection that was cut says nothing of the next one:
    where the server is gone, connecting fails.
    """
    if isinstance(error, (ResponseError, AllInUseError, ConnectionResetError, BrokenPipeError)):
        return False
    return not any(word in str(error).lower() for word in _CUT)


def ours(error: Exception) -> QuotaError:
    """Return our error for one of redis-py or of the socket."""
    if isinstance(error, ClusterCrossSlotError) or "CROSSSLOT" in str(error):  # by its name before redis-py 6
        return ConfigurationError(
            "This plan counts several subjects, which lie in several slots of a Redis Cluster; one script cannot.",
            "Limits of one subject, or a Redis without Cluster (with Sentinel, if need be), would do.",
        )
    return StoreUnavailable(f"{type(error).__name__}: {error}", only_writes=_is_of_writes(error))


def _is_of_writes(error: Exception) -> bool:
    if not isinstance(error, ResponseError):
        return False
    return isinstance(error, _WRITE_ERRORS) or any(word in str(error) for word in _OF_WRITES)
