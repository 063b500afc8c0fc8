"""Faults of a real Redis. Each is a context manager that puts a server into a state and takes it back at its end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import redis

from tests.chaos.servers import Server, until
from tests.support.ports import free_port

USER, PASSWORD = "app", "Sup3r-s3cret"
PERMITTED = ("on", f">{PASSWORD}", "~*", "&*", "+@all")


class Fault(NamedTuple):
    """One kind of failure. `words`: a regular expression that the error matches. `inject`: the context manager."""

    name: str
    words: str
    inject: Callable[[FaultyServer], AbstractContextManager[object]]
    timeout: float = 5.0
    """Seconds that calls wait for a reply."""


class FaultyServer:
    """A real Redis for faults."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.port = free_port()
        self.server = self.with_options()
        self.client = self.server.client

    def with_options(self, *options: str) -> Server:
        """Return the server with further options."""
        known = ("--rdbcompression", "no", "--lua-time-limit", "5", "--user", USER, *PERMITTED)
        return Server(self.program, self.folder, *known, *options, port=self.port)

    @property
    def url(self) -> str:
        return f"redis://{USER}:{PASSWORD}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self.server.start()

    def permit(self) -> None:
        self.client.execute_command("ACL", "SETUSER", USER, "reset", *PERMITTED)

    def cut_off(self) -> None:
        """Close all connections except this one: clients have to log in again."""
        self.client.client_kill_filter(_type="normal", skipme=True)


@contextmanager
def faulty_server(program: Path, folder: Path) -> Iterator[FaultyServer]:
    """Start a server for as long as the block lasts."""
    made = FaultyServer(program, folder)
    made.start()
    try:
        yield made
    finally:
        made.server.end()


@contextmanager
def _refused(server: FaultyServer) -> Iterator[None]:
    server.server.process.kill()
    try:
        yield
    finally:
        server.start()


@contextmanager
def _hung(server: FaultyServer) -> Iterator[None]:
    server.server.process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.server.process.signal(signal.SIGCONT)


@contextmanager
def _loading(server: FaultyServer) -> Iterator[None]:
    with server.client.pipeline(transaction=False) as filling:
        for number in range(8_000):
            filling.set(f"filling:{number}", "x" * 1_000)
        filling.execute()
    server.client.save()
    server.server.process.kill()
    slowly = ("--key-load-delay", "5000", "--loading-process-events-interval-bytes", "1024")
    slow = server.with_options(*slowly)
    slow.process.start()
    try:
        until(lambda: _says(slow.client, "LOADING"), "a Redis that loads")
        yield
    finally:
        slow.end()
        (server.folder / "dump.rdb").unlink()
        server.start()


def _says(client: redis.Redis, word: str) -> bool:
    try:
        client.ping()
    except redis.RedisError as error:
        return word in f"{type(error).__name__} {error}".upper()
    return False


@contextmanager
def _read_only(server: FaultyServer) -> Iterator[None]:
    server.client.replicaof("127.0.0.1", 1)
    try:
        yield
    finally:
        server.client.replicaof("NO", "ONE")


def _has_not_saved(server: FaultyServer) -> bool:
    persistence = server.client.info("persistence")
    return bool(persistence["rdb_last_bgsave_status"] == "err" and not persistence["rdb_bgsave_in_progress"])


@contextmanager
def _cannot_save(server: FaultyServer) -> Iterator[None]:
    in_the_way = server.folder / "dump.rdb"
    in_the_way.mkdir()
    server.client.config_set("save", "3600 1")
    server.client.bgsave()
    until(partial(_has_not_saved, server), "a BGSAVE that fails")
    try:
        yield
    finally:
        in_the_way.rmdir()
        server.client.config_set("save", "")


def _configured(name: str, harmful: str, harmless: str, *, cuts_off: bool = False) -> Any:
    @contextmanager
    def fault(server: FaultyServer) -> Iterator[None]:
        server.client.ping()  # so that it has a connection while nobody else gets one
        server.client.config_set(name, harmful)
        if cuts_off:
            server.cut_off()
        try:
            yield
        finally:
            server.client.config_set(name, harmless)

    return fault


def _ruled(*words: str, user: str = USER) -> Any:
    @contextmanager
    def fault(server: FaultyServer) -> Iterator[None]:
        server.client.execute_command("ACL", "SETUSER", user, *words)
        server.cut_off()
        try:
            yield
        finally:
            server.permit()

    return fault


@contextmanager
def _busy(server: FaultyServer) -> Iterator[None]:
    endless = redis.Redis(port=server.port, socket_timeout=60)

    def run() -> None:
        with suppress(redis.ResponseError):
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
        endless.close()


FAULTS = (
    Fault("refused", "refused|Connect call failed", _refused),
    Fault("hung", "(?i)time-?d? ?out", _hung, timeout=0.05),
    Fault("loading", "(?i)loading", _loading),
    Fault("read-only", "READONLY|read only", _read_only),
    Fault("cannot-save", "MISCONF", _cannot_save),
    Fault("full", "OOM|maxmemory", _configured("maxmemory", "1", "0")),
    Fault("no-replicas", "NOREPLICAS", _configured("min-replicas-to-write", "1", "0")),
    Fault("max-clients", "max number of clients", _configured("maxclients", "1", "1000", cuts_off=True)),
    Fault("wrong-password", "(?i)username-password|invalid", _ruled("resetpass", ">another-one")),
    Fault("user-off", "(?i)username-password|invalid", _ruled("off")),
    Fault("not-permitted", "(?i)permission", _ruled("-evalsha")),
    Fault("keys-not-permitted", "(?i)permission", _ruled("resetkeys", "~other:*")),
    Fault("busy", "BUSY", _busy),
)


def fault_named(name: str) -> Fault:
    """Return the fault of this name. Raises `KeyError`."""
    return {fault.name: fault for fault in FAULTS}[name]
