"""The scenes: in which place the workers are, what is done to it, and what may be lost by that.

A scene is an entry of `SCENES`. Its `place` is a context manager that runs servers; its `harm` one that does the harm
when it is entered and mends it when it is left.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import redis
from redis.sentinel import Sentinel

from tests.chaos.servers import Process, Server, free_port, running, until
from tests.chaos.site import one_alias


@dataclass(frozen=True, slots=True)
class Place:
    """Where the workers' limits are kept."""

    caches: Mapping[str, Any]
    server: Server
    """The server that harm is done to."""
    is_well: Callable[[], bool]
    """Whether the limits can be counted."""


PlaceMaker = Callable[[Path, Path], AbstractContextManager[Place]]
Harm = Callable[[Server], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Scene:
    """One kind of failure."""

    name: str
    title: str
    harm: Harm
    place: PlaceMaker
    again: Callable[[Server], object] | None = None
    """What is done over and over, twenty times a second, while the harm lasts."""
    losses: int = 0
    """How often the server loses what it has counted, or a part of it."""
    outages: int | None = 1
    """How often a worker finds Redis gone; None where that depends on what was under way."""


@contextmanager
def one_server(program: Path, folder: Path, *options: str) -> Iterator[Place]:
    """Run one server on a unix socket."""
    with running(Server(program, folder, "--appendonly", "no", *options)) as server:
        yield Place(one_alias(server.url), server, server.is_well)


@contextmanager
def lasting_server(program: Path, folder: Path) -> Iterator[Place]:
    """Run one server that writes each change to its disk before it answers."""
    with running(Server(program, folder, "--appendonly", "yes", "--appendfsync", "always")) as server:
        yield Place(one_alias(server.url), server, server.is_well)


@contextmanager
def watched_by_sentinel(program: Path, folder: Path) -> Iterator[Place]:
    """Run a primary, its replica and a sentinel, which makes the one the other when it is gone."""
    ports = [free_port() for _ in range(3)]
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


@contextmanager
def _read_only(server: Server) -> Iterator[None]:
    server.client.replicaof("127.0.0.1", 1)
    yield
    server.client.replicaof("NO", "ONE")


@contextmanager
def _full(server: Server) -> Iterator[None]:
    server.client.config_set("maxmemory", "1")
    yield
    server.client.config_set("maxmemory", "0")


@contextmanager
def _no_more_clients(server: Server) -> Iterator[None]:
    server.client.config_set("maxclients", "1")
    _cut_off(server)
    yield
    server.client.config_set("maxclients", "1000")


@contextmanager
def _forbidden(server: Server) -> Iterator[None]:
    server.client.execute_command("ACL", "SETUSER", "default", "-evalsha")
    yield
    server.client.execute_command("ACL", "SETUSER", "default", "+evalsha")


def _cut_off(server: Server) -> None:
    server.client.client_kill_filter(_type="normal", skipme=True)


def _forget_scripts(server: Server) -> None:
    server.client.script_flush()


def _nothing(_: Server) -> AbstractContextManager[object]:
    return nullcontext()


SCENES = (
    Scene("killed", "Killed; started again from its disk", _killed, lasting_server),
    Scene("hung", "Hangs (SIGSTOP), goes on (SIGCONT)", _hung, one_server),
    Scene("emptied", "Killed; started again empty", _restarted_empty, one_server, losses=1, outages=None),
    Scene("read-only", "Read-only (a replica of a dead server)", _read_only, one_server),
    Scene("full", "Full (maxmemory, noeviction)", _full, one_server),
    Scene("scripts", "Scripts flushed, 20 times a second", _nothing, one_server, again=_forget_scripts, outages=0),
    Scene("cut-off", "Connections killed, 20 times a second", _nothing, one_server, again=_cut_off, outages=None),
    Scene("max-clients", "No more clients (maxclients)", _no_more_clients, one_server),
    Scene("forbidden", "Not permitted (ACL takes EVALSHA away)", _forbidden, one_server),
    Scene("failover", "Sentinel: primary killed, replica promoted", _killed_for_good, watched_by_sentinel, losses=1),
)
"""All of them; another is one more entry."""


def scene_named(name: str) -> Scene:
    """Return a scene. Raises `KeyError` where there is none of the name."""
    return {scene.name: scene for scene in SCENES}[name]
