"""Faults of a real Redis. Each is a context manager that puts a server into a state and takes it back at its end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import redis

from tests.chaos.servers import Server, until
from tests.support.ports import free_port

USER, PASSWORD = "app", "Sup3r-s3cret"
PERMITTED = ("on", f">{PASSWORD}", "~*", "&*", "+@all")


class FaultyServer:
    """A real Redis for faults."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.port = free_port()
        self.server = self.with_options()
        self.client = self.server.client
        self.url = f"redis://{USER}:{PASSWORD}@127.0.0.1:{self.port}/0"

    def with_options(self, *options: str) -> Server:
        """Return the server with further options."""
        known = ("--rdbcompression", "no", "--lua-time-limit", "5", "--user", USER, *PERMITTED)
        return Server(self.program, self.folder, *known, *options, port=self.port)

    def permit(self, *words: str) -> None:
        """Change what our user may do, or give back all of it, and close all connections except this one."""
        self.client.execute_command("ACL", "SETUSER", USER, *(words or ("reset", *PERMITTED)))
        if words:
            self.client.client_kill_filter(_type="normal", skipme=True)


Step = Callable[[FaultyServer], object]
Inject = Callable[[FaultyServer], AbstractContextManager[object]]


class Fault(NamedTuple):
    """One kind of failure. `words`: a regular expression that the error matches. `inject`: the context manager."""

    name: str
    words: str
    inject: Inject
    timeout: float = 5.0
    """Seconds that calls wait for a reply."""


def _between(breaks: Step, mends: Step) -> Inject:
    @contextmanager
    def inject(server: FaultyServer) -> Iterator[None]:
        breaks(server)
        try:
            yield
        finally:
            mends(server)

    return inject


def _configured(name: str, harmful: str, harmless: str) -> Inject:
    return _between(lambda to: to.client.config_set(name, harmful), lambda to: to.client.config_set(name, harmless))


def _permitted(*words: str) -> Inject:
    return _between(lambda to: to.permit(*words), lambda to: to.permit())


def _take_all_connections(server: FaultyServer) -> None:
    server.client.ping()  # so that it has a connection while nobody else gets one
    server.client.config_set("maxclients", "1")
    server.client.client_kill_filter(_type="normal", skipme=True)


def _says(client: redis.Redis, word: str) -> bool:
    try:
        client.ping()
    except redis.RedisError as error:
        return word in f"{type(error).__name__} {error}".upper()
    return False


@contextmanager
def _loading(server: FaultyServer) -> Iterator[None]:
    with server.client.pipeline(transaction=False) as filling:
        for number in range(8_000):
            filling.set(f"filling:{number}", "x" * 1_000)
        filling.execute()
    server.client.save()
    server.server.process.kill()
    slow = server.with_options("--key-load-delay", "5000", "--loading-process-events-interval-bytes", "1024")
    slow.process.start()
    try:
        until(lambda: _says(slow.client, "LOADING"), "a Redis that loads")
        yield
    finally:
        slow.end()
        (server.folder / "dump.rdb").unlink()
        server.server.start()


@contextmanager
def _cannot_save(server: FaultyServer) -> Iterator[None]:
    def has_failed() -> bool:
        persistence: dict[str, Any] = server.client.info("persistence")
        return persistence["rdb_last_bgsave_status"] == "err" and not persistence["rdb_bgsave_in_progress"]

    in_the_way = server.folder / "dump.rdb"
    in_the_way.mkdir()
    server.client.config_set("save", "3600 1")
    server.client.bgsave()
    until(has_failed, "a BGSAVE that fails")
    try:
        yield
    finally:
        in_the_way.rmdir()
        server.client.config_set("save", "")


@contextmanager
def _busy(server: FaultyServer) -> Iterator[None]:
    def run() -> None:
        with suppress(redis.ResponseError), redis.Redis(port=server.port, socket_timeout=60) as endless:
            endless.eval("while true do end", 0)

    thread = threading.Thread(target=run)
    thread.start()
    with redis.Redis(port=server.port) as asking:
        until(lambda: _says(asking, "BUSY"), "a Redis that is busy")
    try:
        yield
    finally:
        server.client.script_kill()
        thread.join()


_REFUSED = _between(lambda to: to.server.process.kill(), lambda to: to.server.start())
_HUNG = _between(
    lambda to: to.server.process.signal(signal.SIGSTOP), lambda to: to.server.process.signal(signal.SIGCONT)
)
_READ_ONLY = _between(lambda to: to.client.replicaof("127.0.0.1", 1), lambda to: to.client.replicaof("NO", "ONE"))
_MAX_CLIENTS = _between(_take_all_connections, lambda to: to.client.config_set("maxclients", "1000"))

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("refused", "refused|Connect call failed", _REFUSED),
        Fault("hung", "(?i)time-?d? ?out", _HUNG, timeout=0.05),
        Fault("loading", "(?i)loading", _loading),
        Fault("read-only", "READONLY|read only", _READ_ONLY),
        Fault("cannot-save", "MISCONF", _cannot_save),
        Fault("full", "OOM|maxmemory", _configured("maxmemory", "1", "0")),
        Fault("no-replicas", "NOREPLICAS", _configured("min-replicas-to-write", "1", "0")),
        Fault("max-clients", "max number of clients", _MAX_CLIENTS),
        Fault("wrong-password", "(?i)username-password|invalid", _permitted("resetpass", ">another-one")),
        Fault("user-off", "(?i)username-password|invalid", _permitted("off")),
        Fault("not-permitted", "(?i)permission", _permitted("-evalsha")),
        Fault("keys-not-permitted", "(?i)permission", _permitted("resetkeys", "~other:*")),
        Fault("busy", "BUSY", _busy),
    )
}
