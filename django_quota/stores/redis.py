"""The Redis store: an operation is one EVALSHA. The one place where redis-py's errors are caught and turned into ours.

It talks over connections itself rather than through `execute_command`: that one repeats a command whose reply got lost,
and a hit must not count twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis import Redis, RedisError
from redis.exceptions import ClusterCrossSlotError, NoScriptError, ReadOnlyError, ResponseError

from django_quota.clock import SECOND
from django_quota.exceptions import ConfigurationError, QuotaError, StoreUnavailable
from django_quota.operations.base import Operation
from django_quota.operations.leases import Ring
from django_quota.stores.connections import AsyncClient, AsyncClients, SyncConnections, sync_client
from django_quota.stores.listening import Listener
from django_quota.stores.wire import FOR_COMMAND, Cancellation, packed

logger = logging.getLogger("django_quota")

WATCH_EVERY = 1.0
"""Seconds between two looks at the key that shows whether Redis has kept its memory."""


class Watch:
    """A key whose absence shows that Redis has lost its memory: looked at now and then, in a trip that is made anyway.

    `key` returns its name, empty where there is nothing to watch; `lost` is called where the key is not there.
    """

    def __init__(
        self, key: Callable[[], str], lost: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._key = key
        self._lost = lost
        self._clock = clock
        self._again = 0.0
        self._has_lost = False
        self._is_refused = False

    def look_now(self) -> None:
        """Look with the next trip: a server that does not know our script may be a new one."""
        self._again = 0.0

    def question(self) -> tuple[str, str] | None:
        """Return the command to send ahead of the next one; None where it is not time to look."""
        now = self._clock()
        if now < self._again:
            return None
        self._again = now + WATCH_EVERY
        key = self._key()
        return ("EXISTS", key) if key else None

    def answered(self, reply: int | ResponseError) -> None:
        """Take the answer; what follows from it waits for `tell`."""
        if isinstance(reply, ResponseError):
            if not self._is_refused:
                logger.error("Redis does not say whether it has kept the overrides: %s", reply)
            self._is_refused = True
        else:
            self._is_refused = False
            self._has_lost = not reply

    def tell(self) -> None:
        """Call `lost` where the answer was that the key is not there. What goes wrong there is nobody's request's."""
        if self._has_lost:
            self._has_lost = False
            try:
                self._lost()
            except Exception:
                logger.exception("The overrides could not be published again.")


class RedisStore:
    """States in the Redis of a cache alias. Its clock is Redis' own."""

    def __init__(self, alias: str, watch: Watch | None = None) -> None:
        self.alias = alias
        self._watch = watch or Watch(str, lambda: None)
        self._connections = SyncConnections(alias)
        self._async_clients = AsyncClients(alias)
        self._listener = Listener(alias)

    # --- sync ---------------------------------------------------------------------------------------------------------

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Do an operation; see `Store.run`."""
        command = _command(operation, now)
        try:
            try:
                return self._exchange(command)
            except NoScriptError:
                self._watch.look_now()
                self._exchange(("SCRIPT", "LOAD", operation.script.text))
                return self._exchange(command)
        except (RedisError, OSError) as error:
            raise ours(error) from error

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
        question = self._watch.question()
        try:
            if question is None:
                connection.send_packed_command((packed(command),))
            else:
                connection.send_packed_command((packed(question) + packed(command),))
                try:
                    self._watch.answered(connection.read_response())
                except ResponseError as error:
                    self._watch.answered(error)
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
            self._watch.tell()
        return reply

    # --- async --------------------------------------------------------------------------------------------------------

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Do an operation; see `Store.run`."""
        command = _command(operation, now)
        client = await self._async_clients.get()
        try:
            try:
                return await self._aexchange(client, command)
            except NoScriptError:
                self._watch.look_now()
                await self._aexchange(client, ("SCRIPT", "LOAD", operation.script.text))
                return await self._aexchange(client, command)
        except (RedisError, OSError) as error:
            raise ours(error) from error

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
            question = self._watch.question()
            try:
                if question is None:
                    await connection.send_packed_command((packed(command),))
                else:
                    await connection.send_packed_command((packed(question) + packed(command),))
                    try:
                        self._watch.answered(await connection.read_response())
                    except ResponseError as error:
                        self._watch.answered(error)
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
                self._watch.tell()
        cancellation.pass_on()
        return reply

    def close(self) -> None:
        """Close idle connections; an event loop closes its own client."""
        self._connections.close()
        self._listener.close()


def _command(operation: Operation, now: int | None) -> list[str | int]:
    keys = operation.keys
    return [
        "EVALSHA", operation.script.sha, len(keys), *keys, "" if now is None else now, *operation.arguments()
    ]  # fmt: skip


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


def ours(error: Exception) -> QuotaError:
    """Return our error for one of redis-py or of the socket."""
    if isinstance(error, ClusterCrossSlotError) or "CROSSSLOT" in str(error):  # by its name before redis-py 6
        return ConfigurationError(
            "This plan counts several subjects, which lie in several slots of a Redis Cluster; one script cannot.",
            "Limits of one subject, or a Redis without Cluster (with Sentinel, if need be), would do.",
        )
    return StoreUnavailable(f"{type(error).__name__}: {error}")
