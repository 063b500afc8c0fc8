"""The Redis store over a Cluster: each operation goes to the server that has its keys.

What an operation comes to whose keys lie in several slots, `operations.spread` says; how a command finds its server,
`routing`. Here both are driven: over threads, and over event loops.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from redis import Redis, RedisError
from redis.exceptions import NoScriptError, ResponseError

from django_quota.exceptions import ConfigurationError
from django_quota.operations.base import Operation
from django_quota.operations.spread import spread
from django_quota.stores.aliases import alias_problem
from django_quota.stores.breaker import FREELY
from django_quota.stores.cluster import is_cluster, remap_of, seeds
from django_quota.stores.cluster_errands import SYSTEM_SLOT, SYSTEM_TAG, ClusterErrands, Twins, in_each_region
from django_quota.stores.cluster_errors import translated, translated_around_caller
from django_quota.stores.connections import AllInUseError
from django_quota.stores.errands import Errand, Taken, aanswer_on, ahear, along, answer_on, hear
from django_quota.stores.errors import check_replies
from django_quota.stores.nodes import AllBreakers, Node, Nodes
from django_quota.stores.redis import RedisStore, Server, command_of
from django_quota.stores.routing import Asked, Command, NotSentError, Pause, Router, Trip, Way
from django_quota.stores.slots import SlotTable, slot_of
from django_quota.stores.wire import Cancellation, note_answer, packed, paired

AT_ONCE = 200
"""Operations that go in one trip, at most."""


class ClusterStore(RedisStore):
    """States in the Redis Cluster of a cache alias. A subject's clock is that of the server that has its keys.

    A primary that is cut off from the others answers for the cluster's node timeout more, while a replica may have
    taken its place: for that long each of the two admits as many as a limit says.
    """

    def __init__(self, alias: str, *errands: Errand) -> None:
        self.alias = alias
        self._nodes = Nodes(alias, lambda: self._router.table.known)
        self.breaker = AllBreakers(self.are_all_shut)
        self._twins = Twins(self._table)
        self._along = ClusterErrands(errands, self._table)

    def _table(self) -> SlotTable:
        return self._router.table

    @property
    def _router(self) -> Router:
        known: Router | None = vars(self).get("known_router")
        if known is None:
            problem = alias_problem(self.alias)
            if problem is not None:
                raise ConfigurationError(problem.message, problem.hint)
            made = Router(SlotTable(seeds(self.alias), remap_of(self.alias)))
            known = vars(self).setdefault("known_router", made)  # both of two threads
        return known

    @property
    def is_whole(self) -> bool:
        """Whether all servers have done what they were last asked."""
        return self._router.is_whole

    def are_all_shut(self) -> bool:
        """Say whether no server at all would be asked at the moment: none has answered, several times in a row."""
        table = self._router.table
        return self._nodes.are_shut(table.primaries or table.known)

    # --- sync ---------------------------------------------------------------------------------------------------------

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Do an operation; see `Store.run`. Where its keys lie in several slots it is undivided in each of them."""
        way = spread(operation, slot_of)
        try:
            operations = next(way)
            while True:
                try:
                    replies = self.run_all(operations, now)
                except Exception as error:  # noqa: BLE001 — the way decides what follows from it
                    operations = way.throw(error)
                else:
                    operations = way.send(replies)
        except StopIteration as done:
            return done.value

    def run_all(self, operations: Sequence[Operation], now: int | None) -> list[Any]:
        """Do operations that lie in one slot each; each is undivided, all of them are not."""
        replies = []
        with translated():
            for way in self._ways(operations, now):
                replies += self._drive(way)
            check_replies(operations, replies)
        if self._along.are_late:
            self._drive(self._errands_alone())
        return replies

    def _ways(self, operations: Sequence[Operation], now: int | None) -> Iterator[Way]:
        """Yield the ways of operations, so many at once."""
        asked = [Asked(slot_of(each.keys[0]), command_of(each, now), each.script) for each in operations]
        for first in range(0, len(asked), AT_ONCE):
            yield self._router.reach_all(asked[first : first + AT_ONCE])

    def _drive(self, way: Way) -> Any:
        try:
            step = next(way)
            while True:
                try:
                    outcome = self._step(step)
                except (RedisError, OSError) as error:
                    step = way.throw(error)
                else:
                    step = way.send(outcome)
        except StopIteration as done:
            return done.value

    def _step(self, step: Trip | Pause) -> Any:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        return self._trip(self._nodes[step.at], step.commands)

    def _trip(self, node: Node, commands: Sequence[Command]) -> list[Any]:
        """Send commands to one server and read their replies: one round trip, never repeated."""
        connections, wire = node.connections, b"".join(map(packed, commands))
        turn = node.knock()
        try:
            connection = connections.take(in_vain=node.breaker.is_shut if turn == FREELY else None)
        except BaseException as error:
            node.not_sent(error, turn)
            raise
        taken: Sequence[Taken] = ()
        try:
            taken = self._along.due(node.address)
            connection.send_packed_command((along(taken, wire),))
            hear(taken, connection)
            replies = [answer_on(connection) for _ in commands]
        except BaseException as error:
            connections.drop(connection)  # a reply may still be under way: nobody else must read it
            node.lost(error, turn, connection)
            raise
        else:
            note_answer(connection)
            connections.give_back(connection)
            node.breaker.succeeded()  # before what follows from errands, which may ask too
        finally:
            for errand in taken:
                errand.over()
        if any(isinstance(reply, NoScriptError) for reply in replies):
            self._along.hurry()
        return replies

    # --- async --------------------------------------------------------------------------------------------------------

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Do an operation; see `run`."""
        way = spread(operation, slot_of)
        try:
            operations = next(way)
            while True:
                try:
                    replies = await self.arun_all(operations, now)
                except Exception as error:  # noqa: BLE001 — the way decides what follows from it
                    operations = way.throw(error)
                else:
                    operations = way.send(replies)
        except StopIteration as done:
            return done.value

    async def arun_all(self, operations: Sequence[Operation], now: int | None) -> list[Any]:
        """Do operations that lie in one slot each; see `run_all`."""
        replies = []
        with Cancellation(), translated():
            for way in self._ways(operations, now):
                replies += await self._adrive(way)
            check_replies(operations, replies)
        if self._along.are_late:
            await self._adrive(self._errands_alone())
        return replies

    async def _adrive(self, way: Way) -> Any:
        try:
            step = next(way)
            while True:
                try:
                    outcome = await self._astep(step)
                except (RedisError, OSError) as error:
                    step = way.throw(error)
                else:
                    step = way.send(outcome)
        except StopIteration as done:
            return done.value

    async def _astep(self, step: Trip | Pause) -> Any:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        return await self._atrip(self._nodes[step.at], step.commands)

    async def _atrip(self, node: Node, commands: Sequence[Command]) -> list[Any]:
        """Send commands to one server and read their replies: one round trip, never repeated."""
        client = await node.clients.get()
        pool: Any = client.client.connection_pool
        wire = b"".join(map(packed, commands))
        try:
            await client.enter()
        except AllInUseError as error:
            raise NotSentError(f"{node.address}: {error}") from error
        try:
            turn = node.knock()
            try:
                connection = await client.take()
            except BaseException as error:
                node.not_sent(error, turn)
                raise
            taken: Sequence[Taken] = ()
            try:
                taken = self._along.due(node.address)
                await connection.send_packed_command((along(taken, wire),))
                await ahear(taken, connection)
                replies = [await aanswer_on(connection) for _ in commands]
            except BaseException as error:
                await connection.disconnect(nowait=True)  # a reply may still be under way: nobody else must read it
                node.lost(error, turn, connection)
                raise
            else:
                note_answer(connection)
                node.breaker.succeeded()
            finally:
                await pool.release(connection)
                for errand in taken:
                    errand.over()
        finally:
            client.slots.release()
        if any(isinstance(reply, NoScriptError) for reply in replies):
            self._along.hurry()
        return replies

    def _errands_alone(self) -> Way:
        """Make a trip for the errands, where no call has gone their way for long."""
        with suppress(RedisError, OSError):  # an errand that fails is told so, and never fails the call
            yield Trip((yield from self._router.server_of(SYSTEM_SLOT)), [("PING",)])

    # --- bells, and what waits ----------------------------------------------------------------------------------------

    def listen(self, bell: str, seconds: float) -> bool:
        """Wait at a bell; see `Store.listen`."""
        with translated():
            node = self._nodes[self._drive(self._router.server_of(slot_of(bell)))]
            try:
                return node.listener.listen(bell, seconds)
            except ResponseError:
                self._router.table.doubt()  # the bell is on the move: the ring is lost, and whoever waits looks
                return False

    async def alisten(self, bell: str, seconds: float) -> bool:
        """Wait at a bell; see `Store.listen`."""
        with translated():
            node = self._nodes[await self._adrive(self._router.server_of(slot_of(bell)))]
            try:
                return await node.listener.alisten(bell, seconds)
            except ResponseError:
                self._router.table.doubt()
                return False

    async def acall(self, command: Sequence[str | int], seconds: float) -> Any:
        """Send a command on a system key that may wait so many seconds; see `RedisStore.acall`."""
        with translated():
            node = self._nodes[await self._adrive(self._router.server_of(SYSTEM_SLOT))]
            try:
                return await node.listener.acall(command, seconds)
            except BaseException:
                self._router.table.doubt()
                raise

    # --- plain commands -----------------------------------------------------------------------------------------------

    @contextmanager
    def commands(self, server: Server = None) -> Iterator[Redis]:
        """Lend a client of one server for plain commands; None: that of the system's keys."""
        with translated_around_caller():
            at = self.server_of(SYSTEM_TAG) if server is None else server
            try:
                with self._nodes[at].commands() as client:
                    yield client
            except (RedisError, OSError):
                self._router.table.doubt()
                raise

    def servers(self) -> Sequence[Server]:
        """Return all primaries."""
        with translated():
            self._router.table.doubt()  # a walk over all keys must not miss a server that is new
            self._drive(self._router.refreshed())
            return self._router.table.primaries

    def server_of(self, key: str) -> Server:
        """Return the server that has a key."""
        with translated():
            return self._drive(self._router.server_of(slot_of(key)))

    def twin(self, key: str, server: Server) -> str:
        """Return the name under which a server keeps a system key: in a slot that it has."""
        return self._twins.name(key, server)

    def witnesses(self, key: str) -> list[str]:
        """Return the names of a system key by which all servers show what they have kept; see `in_each_region`."""
        return in_each_region(key)

    def witness(self, key: str, server: Server) -> str:
        """Return one of these that a server has; empty where it has none."""
        return self._twins.in_a_region(key, server)

    def of_each(self, command: Sequence[str], keys: Sequence[str]) -> list[Any]:
        """Return the reply to a command on each of these keys, wherever it is by now; see `RedisStore.of_each`."""
        replies: list[Any] = []
        with translated():
            for first in range(0, len(keys), AT_ONCE):
                some = [Asked(slot_of(key), (*command, key)) for key in keys[first : first + AT_ONCE]]
                replies += self._drive(self._router.reach_all(some))
            return [paired(flat) for flat in replies] if command[0] == "HGETALL" else replies

    def by_server(self, keys: Iterable[str]) -> dict[Server, list[str]]:
        """Return keys by the server that has them."""
        found: dict[Server, list[str]] = {}
        for key in keys:
            found.setdefault(self.server_of(key), []).append(key)
        return found

    def close(self) -> None:
        """Close idle connections; an event loop closes its own."""
        self._nodes.close()
        vars(self).pop("known_router", None)


def store_of(alias: str, *errands: Errand) -> RedisStore:
    """Return the store of a cache alias: one server, or a Cluster."""
    return ClusterStore(alias, *errands) if is_cluster(alias) else RedisStore(alias, *errands)
