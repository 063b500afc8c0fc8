"""A real Redis Cluster on private ports: primaries, and replicas of them, started and stopped by the tests."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot

from tests.chaos.servers import Process
from tests.support.commands import wait_until
from tests.support.ports import answers_ping, free_ports

SLOTS = 16_384
NODE_TIMEOUT = 500
"""Milliseconds after which a server that is silent counts as gone: while a cluster forms, and where one fails over."""
NEVER = 600_000  # where nothing fails over: a server that a busy machine stops for a while must not count as gone


def slot_of(key: str) -> int:
    return int(key_slot(key.encode()))


class Server(Process):
    """A server that has no slots and knows no other server; `given`: more options, such as `appendonly="yes"`."""

    def __init__(self, program: Path, folder: Path, port: int, **given: Any) -> None:
        folder.mkdir(exist_ok=True)
        options = {
            "port": port, "bind": "127.0.0.1", "dir": folder, "save": "", "appendonly": "no", "cluster-enabled": "yes",
            "cluster-node-timeout": NODE_TIMEOUT, "cluster-config-file": "nodes.conf", "repl-diskless-sync-delay": 0,
            "cluster-replica-validity-factor": 0,
            **{name.replace("_", "-"): value for name, value in given.items()},
        }  # fmt: skip
        super().__init__(str(program), *(word for name, value in options.items() for word in (f"--{name}", str(value))))
        self.port = port
        self.client: Any = redis.Redis(port=port, socket_timeout=5)  # redis-py leaves its cluster commands untyped

    def start(self) -> None:
        """Start it, for the first time or once more in the same place, and wait until it answers."""
        super().start()
        wait_until(lambda: answers_ping(self.port))

    def cluster(self, *words: object) -> Any:
        return self.client.execute_command(f"CLUSTER {words[0]}", *words[1:])

    @property
    def id(self) -> str:
        return str(self.cluster("MYID").decode())

    @property
    def is_ready(self) -> bool:
        role = self.client.info("replication")
        linked = role["role"] == "master" or role["master_link_status"] == "up"
        return bool(self.cluster("INFO")["cluster_state"] == "ok" and linked)


class Cluster:
    """Servers that know each other; the first ones are primaries with an equal share of the slots."""

    def __init__(self, program: Path, servers: list[Server]) -> None:
        self.program, self.servers = program, servers

    @property
    def location(self) -> list[str]:
        return [f"redis://127.0.0.1:{server.port}/0" for server in self.servers]

    def slots(self) -> list[tuple[int, int, Server]]:
        """Return the first and the last slot of each range, and its primary, by what a running server says."""
        running = next(server for server in self.servers if server.process.poll() is None)
        with running.client.client() as one:
            one.connection.send_command("CLUSTER", "SLOTS")
            found = one.connection.read_response()
        by_port = {server.port: server for server in self.servers}
        return [(first, last, by_port[port]) for first, last, (_, port, *_), *_ in found if port in by_port]

    def owner(self, key: str) -> Server:
        """Return the primary that has the slot of a key."""
        return self._owner_of(slot_of(key))

    def _owner_of(self, slot: int) -> Server:
        return next(server for first, last, server in self.slots() if first <= slot <= last)

    def primaries(self) -> list[Server]:
        return list(dict.fromkeys(server for _, _, server in self.slots()))

    def flush(self) -> None:
        for server in self.primaries():
            server.client.flushall()

    def keys(self) -> set[str]:
        return {key.decode() for server in self.primaries() for key in server.client.scan_iter()}

    def move(self, slot: int, to: Server, *, pause: float = 0.0) -> None:
        """Move a slot with all its keys, one key at a time, as an operator's tool does."""
        source = self._owner_of(slot)
        to.cluster("SETSLOT", slot, "IMPORTING", source.id)
        source.cluster("SETSLOT", slot, "MIGRATING", to.id)
        while keys := source.cluster("GETKEYSINSLOT", slot, 1):
            if pause:
                time.sleep(pause)
            source.client.execute_command("MIGRATE", "127.0.0.1", to.port, keys[0], 0, 5_000)
        for server in (to, source, *[other for other in self.primaries() if other not in (to, source)]):
            server.cluster("SETSLOT", slot, "NODE", to.id)


@contextmanager
def running_cluster(program: Path, primaries: int = 3, replicas: int = 0, **options: Any) -> Iterator[Cluster]:
    """Run a cluster; `replicas`: of each primary; `options` of its servers.

    A server that is silent counts as gone where there are replicas, and nowhere else, unless the options say so.
    """
    patience = options.pop("cluster_node_timeout", NODE_TIMEOUT if replicas else NEVER)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quota-cluster-")))
        ports = free_ports(primaries * (1 + replicas))
        made = [stack.enter_context(running_server(program, folder / str(port), port, options)) for port in ports]
        _join(made, primaries)
        for server in made:
            server.client.config_set("cluster-node-timeout", patience)
        yield Cluster(program, made)


@contextmanager
def running_server(program: Path, folder: Path, port: int, given: dict[str, Any] | None = None) -> Iterator[Server]:
    server = Server(program, folder, port, **(given or {}))
    try:
        server.start()
        yield server
    finally:
        server.kill()
        server.client.close()


def _join(servers: list[Server], primaries: int) -> None:
    leaders = servers[:primaries]
    edges = [SLOTS * number // primaries for number in range(primaries + 1)]
    for number, leader in enumerate(leaders):
        leader.cluster("ADDSLOTS", *range(edges[number], edges[number + 1]))
        leader.cluster("SET-CONFIG-EPOCH", number + 1)
    for server in servers[1:]:
        server.cluster("MEET", "127.0.0.1", leaders[0].port)
    size = str(len(servers))
    wait_until(lambda: all(server.cluster("INFO")["cluster_known_nodes"] == size for server in servers))
    for number, follower in enumerate(servers[primaries:]):
        follower.cluster("REPLICATE", leaders[number % primaries].id)
    wait_until(lambda: all(server.is_ready for server in servers))
