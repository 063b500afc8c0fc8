"""The scenes: in which place the workers are, what is done to it, and what may be lost by that."""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import inf
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import psycopg
import redis
from redis.sentinel import Sentinel

from tests.chaos.figures import Allowance
from tests.chaos.servers import WRITE, Server, running, until
from tests.chaos.site import ALLOW, BESIDE, BLOCKED, DEFAULT, DENY, LATER, LOCAL, PAIR, POLICIES, one_alias
from tests.chaos.worker import block
from tests.faults.sockets import Firewall, listening
from tests.support.clusters import Cluster, running_cluster, slot_of
from tests.support.databases import postgres_programs, running_postgres
from tests.support.ports import free_port
from tests.support.sentinels import behind, running_sentinel

KEYS = {policy.subject: f"{{{policy.subject}}}:chaos" for policy in (ALLOW, PAIR, BESIDE)}
"""A key of our own in the slot of each subject."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place(Generic[T]):
    """Where the workers' limits are kept, what the fault is done to, and whether all limits can be counted."""

    caches: Mapping[str, Any]
    target: T
    is_well: Callable[[], bool]
    database: Mapping[str, Any] | None = None
    """The database of the site, if it has one. Without `caches`, it counts."""


@dataclass(frozen=True, slots=True)
class Scene(Generic[T]):
    """One kind of failure. `place` takes a server program, and a folder for what it keeps."""

    name: str
    title: str
    fault: Callable[[T], AbstractContextManager[object]]
    place: Callable[[Path, Path], AbstractContextManager[Place[T]]]
    again: Callable[[T], object] | None = None
    """What is done over and over while the fault lasts."""
    every: float = 0.05
    """Seconds between two of those."""
    is_brief: bool = False
    """Whether all is well again at once."""
    allowance: Allowance = Allowance()  # noqa: RUF009 — it is frozen


@contextmanager
def one_server(program: Path, folder: Path, *options: str) -> Iterator[Place[Server]]:
    with running(Server(program, folder, *options)) as server:
        yield Place(one_alias(server.url), server, server.is_well)


def lasting_server(program: Path, folder: Path) -> AbstractContextManager[Place[Server]]:
    """Run one server that hands each change to the system before it answers: who kills the process loses none."""
    return one_server(program, folder, "--appendonly", "yes", "--appendfsync", "no")


@contextmanager
def behind_a_firewall(program: Path, folder: Path, how: str) -> Iterator[Place[Firewall]]:
    """Run one server behind a firewall, which the fault is done to."""
    with running(Server(program, folder, port=free_port())) as server:
        firewall = Firewall(server.port, how)
        with listening(firewall.serve) as port:
            yield Place(one_alias(f"redis://127.0.0.1:{port}/0"), firewall, server.is_well)


@contextmanager
def watched_by_sentinel(program: Path, folder: Path) -> Iterator[Place[Server]]:
    """Run a primary, its replica and a sentinel, which makes the one the other when it is gone."""
    sync_at_once = ("--repl-diskless-sync-delay", "0", "--appendonly", "no")
    soon = ("sentinel down-after-milliseconds quotas 1200", "sentinel failover-timeout quotas 2000")
    folders = [folder / name for name in ("primary", "replica")]
    for each in folders:
        each.mkdir()
    primary, replica = (Server(program, each, *sync_at_once, port=free_port()) for each in folders)
    with running(primary), running(replica):
        replica.client.replicaof("127.0.0.1", primary.port)
        until(lambda: replica.client.info("replication")["master_link_status"] == "up", "a replica in step")
        with running_sentinel(program, folder, primary.port, *soon) as port:
            asked = cast("Any", Sentinel)([("127.0.0.1", port)])  # redis-py leaves it untyped
            until(lambda: _answered(asked.discover_slaves, "quotas"), "a sentinel that knows the replica")

            def is_well() -> bool:
                found = _answered(asked.discover_master, "quotas")
                return found is not None and found[1] == replica.port and replica.is_well()

            yield Place({"default": behind(port)}, primary, is_well)
            asked.sentinels[0].close()


def _answered(ask: Callable[..., Any], *words: Any) -> Any:
    try:
        return ask(*words)
    except redis.RedisError:
        return None


@contextmanager
def _killed(server: Server) -> Iterator[None]:
    server.process.kill()
    yield
    server.start()


@contextmanager
def _killed_for_good(server: Server) -> Iterator[None]:
    server.process.kill()
    yield


@contextmanager
def _hung(server: Server) -> Iterator[None]:
    server.process.signal(signal.SIGSTOP)
    yield
    server.process.signal(signal.SIGCONT)


@contextmanager
def _restarted_empty(server: Server) -> Iterator[None]:
    server.process.kill()
    server.start()
    yield


def _between(before: str, after: str, *, cuts_off: bool = False) -> Callable[[Server], AbstractContextManager[object]]:
    """Return the fault that one command begins and another ends."""

    @contextmanager
    def fault(server: Server) -> Iterator[None]:
        server.client.execute_command(*before.split())
        if cuts_off:
            _cut_off(server)
        yield
        server.client.execute_command(*after.split())

    return fault


def _cut_off(server: Server) -> None:
    server.client.client_kill_filter(_type="normal", skipme=True)


def _forget_scripts(server: Server) -> None:
    server.client.script_flush()


@contextmanager
def _forgotten(firewall: Firewall) -> Iterator[None]:
    firewall.forget()
    yield


def _nothing(_: object) -> AbstractContextManager[object]:
    return nullcontext()


@contextmanager
def _cluster(program: Path, folder: Path, *, keys: int = 0, **options: Any) -> Iterator[Place[Cluster]]:
    """Run a cluster of three primaries, with so many keys in the slot of each subject.

    With replicas it is well again when another server has the place of the one that was killed.
    """
    with running_cluster(program, **options) as cluster:
        for key in KEYS.values():
            for number in range(keys):
                cluster.owner(key).client.set(f"{key}:{number}", "a key of somebody else's", ex=3600)
        gone = cluster.owner(KEYS[ALLOW.subject]) if options.get("replicas") else None

        def takes_writes(key: str) -> bool:
            return _answered(cluster.owner(key).client.eval, WRITE, 1, key) is not None

        def is_well() -> bool:
            return cluster.owner(KEYS[ALLOW.subject]) is not gone and all(map(takes_writes, KEYS.values()))

        caches = one_alias(cluster.location, CLIENT_CLASS="django_quota.stores.cluster.ClusterClient")
        yield Place(caches, cluster, is_well)


# Where nothing fails over no silence is taken for the end of a server. A move of all keys takes a quarter of a second.
three_servers = partial(_cluster, keys=100, cluster_node_timeout=10_000)
three_lasting_servers = partial(
    _cluster, cluster_node_timeout=10_000, cluster_require_full_coverage="no", appendonly="yes", appendfsync="no"
)
replicated_cluster = partial(_cluster, replicas=1, cluster_node_timeout=1_000)


@contextmanager
def _primary_killed(cluster: Cluster) -> Iterator[None]:
    cluster.owner(KEYS[ALLOW.subject]).kill()
    yield


@contextmanager
def _one_of_two_killed(cluster: Cluster) -> Iterator[None]:
    server = cluster.owner(KEYS[PAIR.subject])
    server.kill()
    yield
    server.start()


def _move_slots(cluster: Cluster) -> None:
    """Move the slot of each subject to the next server, one after the other."""
    for key in KEYS.values():
        place = cluster.servers.index(cluster.owner(key))
        cluster.move(slot_of(key), cluster.servers[(place + 1) % len(cluster.servers)], pause=0.002)


class Others:
    """Programs that use all connections of a PostgreSQL."""

    def __init__(self, database: Mapping[str, Any]) -> None:
        self.database = database
        self._address = {"host": database["HOST"], "user": database["USER"], "dbname": database["NAME"]}
        self._sessions: list[Any] = []

    def come(self) -> None:
        """Take each connection that is free, and those of the workers."""
        while self._connects():
            pass
        ours = [session.info.backend_pid for session in self._sessions]
        self._sessions[0].execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND NOT pid = ANY(%s)",
            [ours],
        )

    def leave(self) -> None:
        while self._sessions:
            self._sessions.pop().close()

    def are_gone(self) -> bool:
        """Say whether the server has a connection for whoever asks."""
        if not self._connects():
            return False
        self.leave()
        return True

    def _connects(self) -> bool:
        try:
            self._sessions.append(psycopg.connect(**self._address, autocommit=True))
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def with_a_database(program: Path, folder: Path, *, counts: bool) -> Iterator[Place[Others]]:
    """Run a PostgreSQL of a few connections, in which a subject is blocked. If it does not count, a Redis does."""
    with (
        running_postgres(cast("Path", postgres_programs()), "-c", "max_connections=60") as database,
        one_server(program, folder) as redis_place,
    ):
        _block(database, BLOCKED.subject)
        others = Others(database)
        yield Place({} if counts else redis_place.caches, others, others.are_gone, database)


def _block(database: Mapping[str, Any], subject: str) -> None:
    process = get_context("spawn").Process(target=block, args=(database, subject))
    process.start()
    process.join()
    assert process.exitcode == 0


@contextmanager
def _crowded(others: Others) -> Iterator[None]:
    """Leave no connection; when they are free again, block a second subject."""
    others.come()
    yield
    others.leave()
    _block(others.database, LATER.subject)


DATABASE_SCENES: tuple[Scene[Any], ...] = (
    Scene("crowded-store", "PostgreSQL counts, and others use all its connections", _crowded,
          partial(with_a_database, counts=True), again=Others.come,
          allowance=Allowance(outages=(1, inf), spared=(BLOCKED,))),
    Scene("crowded-overrides", "Redis counts, and others use all connections of the database", _crowded,
          partial(with_a_database, counts=False), again=Others.come,
          allowance=Allowance(outages=(0, 0), spared=(*POLICIES, BLOCKED, LATER), gives_back=True)),
)  # fmt: skip

SCENES: tuple[Scene[Any], ...] = (
    Scene("killed", "Killed; started again from its disk", _killed, lasting_server),
    Scene("hung", "Hangs (SIGSTOP), goes on (SIGCONT)", _hung, one_server),
    Scene("emptied", "Killed; started again empty", _restarted_empty, one_server,
          allowance=Allowance(losses=1, outages=(0, 1))),
    Scene("read-only", "Read-only (a replica of a dead server)",
          _between("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"), one_server),
    Scene("full", "Full (maxmemory, noeviction)",
          _between("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"), one_server,
          allowance=Allowance(local=(LOCAL, DEFAULT))),
    Scene("scripts", "Scripts flushed, 20 times a second", _nothing, one_server, again=_forget_scripts,
          allowance=Allowance(outages=(0, 0), spared=POLICIES, gives_back=True)),
    Scene("cut-off", "Connections killed, 20 times a second", _nothing, one_server, again=_cut_off,
          allowance=Allowance(outages=(0, inf))),
    Scene("reset", "Connections forgotten on the way (RST), once a second", _nothing,
          partial(behind_a_firewall, how="reset"), again=Firewall.forget, every=1,
          allowance=Allowance(outages=(0, inf))),
    Scene("silent", "Dies silently, while its address answers from elsewhere", _forgotten,
          partial(behind_a_firewall, how="silence"), is_brief=True),
    Scene("max-clients", "No more clients (maxclients)",
          _between("CONFIG SET maxclients 1", "CONFIG SET maxclients 1000", cuts_off=True), one_server),
    Scene("forbidden", "Not permitted (ACL takes EVALSHA away)",
          _between("ACL SETUSER default -evalsha", "ACL SETUSER default +evalsha"), one_server),
    Scene("failover", "Sentinel: primary killed, replica promoted", _killed_for_good, watched_by_sentinel,
          allowance=Allowance(losses=1)),
    Scene("cluster-failover", "Cluster: primary killed, replica promoted", _primary_killed, replicated_cluster,
          allowance=Allowance(losses=1)),
    Scene("slot-migration", "Cluster: the slots of the subjects moved, over and over", _nothing, three_servers,
          again=_move_slots, every=0.2, allowance=Allowance(outages=(0, inf))),
    Scene("half-a-plan", "Cluster: one of a plan's two servers killed; started again", _one_of_two_killed,
          three_lasting_servers, allowance=Allowance(spared=(ALLOW, DENY, LOCAL, DEFAULT), gives_back=True)),
    *(DATABASE_SCENES if postgres_programs() else ()),
)  # fmt: skip


def scene_named(name: str) -> Scene[Any]:
    return {scene.name: scene for scene in SCENES}[name]
