"""The scenes: in which place the workers are, what is done to it, and what may be lost by that."""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import redis
from redis.sentinel import Sentinel

from django_quota.stores.cluster.store_cluster import slot_of
from tests.chaos.figures import ONE_OUTAGE, Allowance
from tests.chaos.servers import WRITE, Process, Server, running, until
from tests.chaos.site import ALLOW, BESIDE, DEFAULT, DENY, LOCAL, PAIR, POLICIES, one_alias
from tests.support.clusters import Cluster, running_cluster
from tests.support.ports import free_ports

LASTING = ("--appendonly", "yes", "--appendfsync", "no")

KEYS = {policy.subject: f"{{{policy.subject}}}:chaos" for policy in (ALLOW, PAIR, BESIDE)}
"""A key of our own in the slot of each subject."""
MORE_KEYS = 100
"""The other keys in a slot that moves."""
BETWEEN_KEYS = 0.002
"""Seconds between two keys of a slot that moves: a move of all of them takes about a quarter of a second."""
PATIENT = 10_000
"""Milliseconds of silence after which servers of a cluster take another for gone: never, where nothing fails over."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place(Generic[T]):
    """Where the workers' limits are kept."""

    caches: Mapping[str, Any]
    target: T
    """What the fault is done to."""
    is_well: Callable[[], bool]
    """Whether all limits can be counted."""


@dataclass(frozen=True, slots=True)
class Scene(Generic[T]):
    """One kind of failure."""

    name: str
    title: str
    fault: Callable[[T], AbstractContextManager[object]]
    place: Callable[[Path, Path], AbstractContextManager[Place[T]]]
    """Takes a server program, and a folder for what it keeps."""
    again: Callable[[T], object] | None = None
    """What is done over and over while the fault lasts."""
    every: float = 0.05
    """Seconds between two of those."""
    allowance: Allowance = ONE_OUTAGE


@contextmanager
def one_server(program: Path, folder: Path, *options: str) -> Iterator[Place[Server]]:
    """Run one server on a unix socket."""
    with running(Server(program, folder, *options)) as server:
        yield Place(one_alias(server.url), server, server.is_well)


@contextmanager
def lasting_server(program: Path, folder: Path) -> Iterator[Place[Server]]:
    """Run one server that hands each change to the system before it answers: who kills the process loses none."""
    with one_server(program, folder, *LASTING) as place:
        yield place


@contextmanager
def watched_by_sentinel(program: Path, folder: Path) -> Iterator[Place[Server]]:
    """Run a primary, its replica and a sentinel, which makes the one the other when it is gone."""
    ports = free_ports(3)
    for name in ("primary", "replica", "sentinel"):
        (folder / name).mkdir()
    config = folder / "sentinel" / "sentinel.conf"
    lines = [f"port {ports[2]}", f"dir {config.parent}", f"sentinel monitor chaos 127.0.0.1 {ports[0]} 1"]
    lines += ["sentinel down-after-milliseconds chaos 1200", "sentinel failover-timeout chaos 2000"]
    config.write_text("\n".join(lines) + "\n")
    sync_at_once = ("--repl-diskless-sync-delay", "0", "--appendonly", "no")
    with ExitStack() as stack:
        primary = stack.enter_context(running(Server(program, folder / "primary", *sync_at_once, port=ports[0])))
        replica = Server(program, folder / "replica", *sync_at_once, port=ports[1])
        stack.callback(replica.end)
        replica.start()
        replica.client.replicaof("127.0.0.1", ports[0])
        until(lambda: replica.client.info("replication")["master_link_status"] == "up", "a replica in step")
        watcher = Process(str(program), str(config), "--sentinel")
        stack.callback(watcher.kill)
        watcher.start()
        asked = cast("Any", Sentinel)([("127.0.0.1", ports[2])])  # redis-py leaves it untyped
        stack.callback(asked.sentinels[0].close)
        until(partial(_knows_the_replica, asked), "a sentinel that knows the replica")
        options = {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
            "SENTINELS": [("127.0.0.1", ports[2])],
        }
        yield Place(one_alias("redis://chaos/0", **options), primary, lambda: _leads(asked, replica))


def _knows_the_replica(asked: Any) -> bool:
    try:
        return bool(asked.discover_slaves("chaos"))
    except redis.RedisError:
        return False


def _leads(asked: Any, replica: Server) -> bool:
    """Say whether clients find the replica where they look for the primary, and it takes writes."""
    try:
        return asked.discover_master("chaos")[1] == replica.port and replica.is_well()
    except redis.RedisError:
        return False


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


def _between(before: str, after: str) -> Callable[[Server], AbstractContextManager[object]]:
    """Return the fault that one command begins and another ends."""

    @contextmanager
    def fault(server: Server) -> Iterator[None]:
        server.client.execute_command(*before.split())
        yield
        server.client.execute_command(*after.split())

    return fault


@contextmanager
def _no_more_clients(server: Server) -> Iterator[None]:
    server.client.config_set("maxclients", "1")
    _cut_off(server)
    yield
    server.client.config_set("maxclients", "1000")


def _cut_off(server: Server) -> None:
    server.client.client_kill_filter(_type="normal", skipme=True)


def _forget_scripts(server: Server) -> None:
    server.client.script_flush()


def _nothing(_: Server) -> AbstractContextManager[object]:
    return nullcontext()


def _all_take_writes(cluster: Cluster) -> bool:
    """Say whether the servers of all subjects take a script that writes."""
    try:
        for key in KEYS.values():
            cluster.owner(key).client.eval(WRITE, 1, key)
    except redis.RedisError:
        return False
    return True


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

        def is_well() -> bool:
            return cluster.owner(KEYS[ALLOW.subject]) is not gone and _all_take_writes(cluster)

        caches = one_alias(cluster.location, CLIENT_CLASS="django_quota.stores.cluster.ClusterClient")
        yield Place(caches, cluster, is_well)


three_servers = partial(_cluster, keys=MORE_KEYS, cluster_node_timeout=PATIENT)
three_lasting_servers = partial(
    _cluster, cluster_node_timeout=PATIENT, cluster_require_full_coverage="no", appendonly="yes", appendfsync="no"
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
        cluster.move(slot_of(key), cluster.servers[(place + 1) % len(cluster.servers)], pause=BETWEEN_KEYS)


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
    Scene("max-clients", "No more clients (maxclients)", _no_more_clients, one_server),
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
)  # fmt: skip


def scene_named(name: str) -> Scene[Any]:
    return {scene.name: scene for scene in SCENES}[name]
