"""Harm done to a real Redis: each puts the server into the state that makes it fail, and mends it when it is left.

They must not know what is asked of it.
"""

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
from tests.ports import free_port

USER, PASSWORD = "app", "Sup3r-s3cret"
PERMITTED = ("on", f">{PASSWORD}", "~*", "&*", "+@all")


class Harm(NamedTuple):
    """One kind of failure; `words`: what the message says of it, as a regular expression."""

    name: str
    words: str
    do: Callable[[Place], AbstractContextManager[object]]
    is_anonymous: bool = False
    """Whether it meets who gives no password."""
    patience: float = 5.0
    """Seconds that calls wait for an answer."""
    since: int = 0
    """The first version of Redis that can be brought into the state."""

    def suits(self, place: Place) -> bool:
        return int(place.client.info("server")["redis_version"].split(".")[0]) >= self.since


class Place:
    """A server that may be harmed, and how it is reached."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.port = free_port()
        self.server = self.with_options()
        self.client = self.server.client

    def with_options(self, *options: str) -> Server:
        """Return the server as it is to be started in this place."""
        known = ("--rdbcompression", "no", "--lua-time-limit", "5", "--user", USER, *PERMITTED)
        return Server(self.program, self.folder, *known, *options, port=self.port)

    @property
    def url(self) -> str:
        return f"redis://{USER}:{PASSWORD}@127.0.0.1:{self.port}/0"

    @property
    def anonymous_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self.server.start()

    def permit(self) -> None:
        self.client.execute_command("ACL", "SETUSER", USER, "reset", *PERMITTED)

    def cut_off(self) -> None:
        """Close all connections but our own: who comes back must introduce himself."""
        self.client.client_kill_filter(_type="normal", skipme=True)


@contextmanager
def placed(program: Path, folder: Path) -> Iterator[Place]:
    """Start a server for as long as the block lasts."""
    made = Place(program, folder)
    made.start()
    try:
        yield made
    finally:
        made.server.end()


@contextmanager
def _refused(place: Place) -> Iterator[None]:
    place.server.process.kill()
    try:
        yield
    finally:
        place.start()


@contextmanager
def _hung(place: Place) -> Iterator[None]:
    place.server.process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        place.server.process.signal(signal.SIGCONT)


@contextmanager
def _loading(place: Place) -> Iterator[None]:
    with place.client.pipeline(transaction=False) as filling:
        for number in range(8_000):
            filling.set(f"filling:{number}", "x" * 1_000)
        filling.execute()
    place.client.save()
    place.server.process.kill()
    slowly = ("--key-load-delay", "5000", "--loading-process-events-interval-bytes", "1024")
    slow = place.with_options(*slowly)
    slow.process.start()
    try:
        until(lambda: _says(slow.client, "LOADING"), "a Redis that loads")
        yield
    finally:
        slow.end()
        (place.folder / "dump.rdb").unlink()
        place.start()


def _says(client: redis.Redis, word: str) -> bool:
    try:
        client.ping()
    except redis.RedisError as error:
        return word in f"{type(error).__name__} {error}".upper()
    return False


@contextmanager
def _read_only(place: Place) -> Iterator[None]:
    place.client.replicaof("127.0.0.1", 1)
    try:
        yield
    finally:
        place.client.replicaof("NO", "ONE")


@contextmanager
def _without_its_master(place: Place) -> Iterator[None]:
    place.client.config_set("replica-serve-stale-data", "no")
    place.client.replicaof("127.0.0.1", 1)
    try:
        yield
    finally:
        place.client.replicaof("NO", "ONE")


def _has_not_saved(place: Place) -> bool:
    told = place.client.info("persistence")
    return bool(told["rdb_last_bgsave_status"] == "err" and not told["rdb_bgsave_in_progress"])


@contextmanager
def _cannot_save(place: Place) -> Iterator[None]:
    in_the_way = place.folder / "dump.rdb"
    in_the_way.mkdir()
    place.client.config_set("save", "3600 1")
    place.client.bgsave()
    until(partial(_has_not_saved, place), "a BGSAVE that fails")
    try:
        yield
    finally:
        in_the_way.rmdir()
        place.client.config_set("save", "")


def _configured(name: str, harmful: str, harmless: str, *, cuts_off: bool = False) -> Any:
    @contextmanager
    def harm(place: Place) -> Iterator[None]:
        place.client.ping()  # so that it has a connection while nobody else gets one
        place.client.config_set(name, harmful)
        if cuts_off:
            place.cut_off()
        try:
            yield
        finally:
            place.client.config_set(name, harmless)

    return harm


def _ruled(*words: str, user: str = USER) -> Any:
    @contextmanager
    def harm(place: Place) -> Iterator[None]:
        place.client.execute_command("ACL", "SETUSER", user, *words)
        place.cut_off()
        try:
            yield
        finally:
            place.permit()

    return harm


@contextmanager
def _locked(place: Place) -> Iterator[None]:
    place.client.config_set("requirepass", PASSWORD)
    place.cut_off()
    try:
        yield
    finally:
        place.client.config_set("requirepass", "")


@contextmanager
def _busy(place: Place) -> Iterator[None]:
    endless = redis.Redis(port=place.port, socket_timeout=60)

    def run() -> None:
        with suppress(redis.ResponseError):
            endless.eval("while true do end", 0)

    thread = threading.Thread(target=run)
    thread.start()
    with redis.Redis(port=place.port) as asking:
        until(lambda: _says(asking, "BUSY"), "a Redis that is busy")
    try:
        yield
    finally:
        place.client.script_kill()
        thread.join()
        endless.close()


HARMS = (
    Harm("refused", "refused|Connect call failed", _refused),
    Harm("hung", "(?i)time-?d? ?out", _hung, patience=0.05),
    Harm("loading", "(?i)loading", _loading, since=7),  # before, one cannot say how often it looks up
    Harm("read-only", "READONLY|read only", _read_only),
    Harm("no-master", "MASTERDOWN|MASTER", _without_its_master),
    Harm("cannot-save", "MISCONF", _cannot_save),
    Harm("full", "OOM|maxmemory", _configured("maxmemory", "1", "0")),
    Harm("no-replicas", "NOREPLICAS", _configured("min-replicas-to-write", "1", "0")),
    Harm("max-clients", "max number of clients", _configured("maxclients", "1", "1000", cuts_off=True)),
    Harm("no-password", "(?i)auth", _locked, is_anonymous=True),
    Harm("wrong-password", "(?i)username-password|invalid", _ruled("resetpass", ">another-one")),
    Harm("user-off", "(?i)username-password|invalid", _ruled("off")),
    Harm("not-permitted", "(?i)permission", _ruled("-evalsha")),
    Harm("keys-not-permitted", "(?i)permission", _ruled("resetkeys", "~other:*")),
    Harm("busy", "BUSY", _busy),
)


def harm_named(name: str) -> Harm:
    """Return a harm. Raises `KeyError` where there is none of the name."""
    return {harm.name: harm for harm in HARMS}[name]
