"""A real Redis Cluster on private ports: primaries, and replicas of them, started and stopped by the tests."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot

from tests.support.commands import wait_until
from tests.support.ports import answers_ping, free_ports

SLOTS = 16_384
NODE_TIMEOUT = 500
"""Milliseconds after which a server that is silent counts as gone: while a cluster forms, and where one fails over."""
NEVER = 600_000  # where nothing fails over: a server that a busy machine stops for a while is not to be taken for gone


@dataclass
class Server:
    port: int
    command: Sequence[str]
    log: Path
    client: Any  # redis-py leaves its cluster commands untyped
    id: str = ""
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        """Start it, for the first time or once more in the same place, and wait until it answers."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env={**os.environ})
        wait_until(lambda: answers_ping(self.port))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Cluster:
    """Servers that know each other; the first ones are primaries with an equal share of the slots."""

    program: Path
    servers: list[Server] = field(default_factory=list)

    @property
    def location(self) -> list[str]:
        return [f"redis://127.0.0.1:{server.port}/0" for server in self.servers]

    @property
    def running(self) -> list[Server]:
        return [server for server in self.servers if server.process.poll() is None]

    def owner(self, key: str) -> Server:
        """Return the primary that has the slot of a key, by what the servers say."""
        for first, last, (_, port, *_), *_ in raw_slots(self.running[0].client):
            if first <= slot_of(key) <= last:
                return next(server for server in self.servers if server.port == port)
        raise LookupError(key)

    def primaries(self) -> list[Server]:
        ports = {primary[1] for _, _, primary, *_ in raw_slots(self.running[0].client)}
        return [server for server in self.servers if server.port in ports]

    def flush(self) -> None:
        for server in self.primaries():
            server.client.flushall()
            server.client.script_flush()

    def keys(self) -> set[str]:
        return {key.decode() for server in self.primaries() for key in server.client.scan_iter()}

    def move(self, slot: int, to: Server, *, pause: float = 0.0) -> None:
        """Move a slot with all its keys, one key at a time, as an operator's tool does."""
        first = {low: port for low, high, (_, port, *_), *_ in raw_slots(to.client) if low <= slot <= high}
        source = next(server for server in self.servers if server.port in first.values())
        to.client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", source.id)
        source.client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", to.id)
        while keys := source.client.execute_command("CLUSTER GETKEYSINSLOT", slot, 1):
            if pause:
                time.sleep(pause)
            source.client.execute_command("MIGRATE", "127.0.0.1", to.port, keys[0], 0, 5_000)
        for server in (to, source, *[other for other in self.primaries() if other not in (to, source)]):
            server.client.execute_command("CLUSTER SETSLOT", slot, "NODE", to.id)


def slot_of(key: str) -> int:
    """Return the slot of a key, as redis-py finds it."""
    return int(key_slot(key.encode()))


def raw_slots(client: Any) -> list[Any]:
    with client.client() as one:
        one.connection.send_command("CLUSTER", "SLOTS")
        return one.connection.read_response()  # type: ignore[no-any-return]


@contextmanager
def running_cluster(program: Path, primaries: int = 3, replicas: int = 0, **options: Any) -> Iterator[Cluster]:
    """Run a cluster; `replicas`: of each primary; `options` of its servers, such as `appendonly="yes"`.

    A server that is silent counts as gone where there are replicas, and nowhere else, unless the options say so.
    """
    patience = options.pop("cluster_node_timeout", NODE_TIMEOUT if replicas else NEVER)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quota-cluster-")))
        cluster = Cluster(program)
        for port in free_ports(primaries * (1 + replicas)):
            place = folder / str(port)
            place.mkdir()
            cluster.servers.append(stack.enter_context(running_server(program, place, port, options)))
        _join(cluster, primaries)
        for server in cluster.servers:
            server.client.config_set("cluster-node-timeout", patience)
        yield cluster


@contextmanager
def running_server(program: Path, folder: Path, port: int, given: dict[str, Any] | None = None) -> Iterator[Server]:
    """Run a server that has no slots and knows no other; `given`: more of its options."""
    options = {
        "port": port, "bind": "127.0.0.1", "dir": folder, "save": "", "appendonly": "no", "cluster-enabled": "yes",
        "cluster-node-timeout": NODE_TIMEOUT, "cluster-config-file": "nodes.conf", "repl-diskless-sync-delay": 0,
        "cluster-replica-validity-factor": 0,
        **{name.replace("_", "-"): value for name, value in (given or {}).items()},
    }  # fmt: skip
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    made: Any = redis.Redis(port=port, socket_timeout=5)
    with made as client:
        server = Server(port, [str(program), *words], folder / "log", client)
        try:
            server.start()
            server.id = client.execute_command("CLUSTER MYID").decode()
            yield server
        finally:
            server.kill()


def _join(cluster: Cluster, primaries: int) -> None:
    leaders = cluster.servers[:primaries]
    edges = [SLOTS * number // primaries for number in range(primaries + 1)]
    for number, leader in enumerate(leaders):
        leader.client.execute_command("CLUSTER ADDSLOTS", *range(edges[number], edges[number + 1]))
        leader.client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
    for server in cluster.servers[1:]:
        server.client.execute_command("CLUSTER MEET", "127.0.0.1", leaders[0].port)
    size = str(len(cluster.servers))
    wait_until(lambda: all(_info(server)["cluster_known_nodes"] == size for server in cluster.servers))
    for number, follower in enumerate(cluster.servers[primaries:]):
        follower.client.execute_command("CLUSTER REPLICATE", leaders[number % primaries].id)
    wait_until(lambda: all(_is_ready(server) for server in cluster.servers))


def _info(server: Server) -> dict[str, Any]:
    return server.client.execute_command("CLUSTER INFO")  # type: ignore[no-any-return]


def _is_ready(server: Server) -> bool:
    role = server.client.info("replication")
    linked = role["role"] == "master" or role["master_link_status"] == "up"
    return bool(_info(server)["cluster_state"] == "ok" and linked)
