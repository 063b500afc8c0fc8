"""Databases for tests: SQLite in a file, and a private PostgreSQL, started and stopped by the session."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from django.core.management import call_command
from django.db import connections
from django.db.utils import ConnectionHandler

from tests.support.commands import wait_until

UNPRIVILEGED = "nobody"  # who runs PostgreSQL if the tests run as root, which it refuses
WHO: dict[str, Any] = {"user": UNPRIVILEGED, "extra_groups": []} if os.geteuid() == 0 else {}

SOCKET = ".s.PGSQL.5432"
PGBOUNCER_PORT = 6432  # it names the socket of a private PgBouncer; nothing listens on a port


def postgres_programs() -> Path | None:
    """Return the folder of the PostgreSQL programs on PATH; None where there are none."""
    on_path = shutil.which("initdb")
    folder = Path(on_path).resolve().parent if on_path else None
    return folder if folder is not None and (folder / "postgres").exists() else None


@contextmanager
def running_postgres(programs: Path, *more: str) -> Iterator[dict[str, Any]]:
    """Run a private PostgreSQL for as long as the block lasts; yields what goes into DATABASES.

    `more`: further options of the server.
    """
    with _private_folder("quota-pg-") as folder:
        data = f"{folder}/data"
        options = ["--username", "quota", "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync"]
        words = [str(programs / "initdb"), "-D", data, *options]
        made = subprocess.run(words, check=False, capture_output=True, text=True, cwd=folder, **WHO)
        assert made.returncode == 0, made.stderr
        command = [str(programs / "postgres"), "-D", data, "-k", folder, "-c", "listen_addresses=", "-F", *more]
        with _running(command, folder, signal.SIGINT):  # a fast shutdown: it does not wait for clients
            yield {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "quota", "HOST": folder}


@contextmanager
def running_replica(programs: Path, primary: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run a replica of a PostgreSQL, which only reads; yields what goes into DATABASES."""
    with _private_folder("quota-pgr-") as folder:
        data = f"{folder}/data"
        words = [str(programs / "pg_basebackup"), "-h", primary["HOST"], "-U", primary["USER"], "-D", data]
        words += ["--write-recovery-conf", "--checkpoint", "fast", "--no-sync"]
        made = subprocess.run(words, check=False, capture_output=True, text=True, cwd=folder, **WHO)
        assert made.returncode == 0, made.stderr
        command = [str(programs / "postgres"), "-D", data, "-k", folder, "-c", "listen_addresses=", "-F"]
        with _running(command, folder, signal.SIGINT):
            yield {**primary, "HOST": folder}


class Address:
    """A folder with the socket of a server. It can be switched to another server, as a failover does to an address."""

    def __init__(self, folder: str, server: dict[str, Any]) -> None:
        self._socket = Path(folder) / SOCKET
        self.database = {**server, "HOST": folder}
        self.lead_to(server)

    def lead_to(self, server: dict[str, Any]) -> None:
        self._socket.unlink(missing_ok=True)
        self._socket.symlink_to(Path(server["HOST"]) / SOCKET)


@contextmanager
def address_of(server: dict[str, Any]) -> Iterator[Address]:
    """Make an address that leads to a server."""
    # Not below a test's own folder: a path of a socket has at most 107 bytes.
    with _private_folder("quota-pga-") as folder:
        yield Address(folder, server)


def end_sessions(server: dict[str, Any]) -> None:
    """End all sessions of a server, and wait until they are gone."""
    with psycopg.connect(host=server["HOST"], user="quota", dbname="postgres", autocommit=True) as other:
        theirs = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        other.execute(f"SELECT pg_terminate_backend(pid) {theirs}")
        wait_until(lambda: other.execute(f"SELECT count(*) {theirs}").fetchone() == (0,))


@contextmanager
def running_pgbouncer(program: str, server: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
    """Run a PgBouncer that gives each transaction one of `size` sessions; yields what goes into DATABASES."""
    with _private_folder("quota-pgb-") as folder:
        settings = Path(folder) / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host={server['HOST']} user={server['USER']}\n"
            f"[pgbouncer]\npool_mode = transaction\ndefault_pool_size = {size}\nauth_type = any\n"
            f"unix_socket_dir = {folder}\nlisten_port = {PGBOUNCER_PORT}\n"
        )
        settings.chmod(0o644)
        # At once; SIGINT would wait for its clients.
        with _running([program, str(settings)], folder, signal.SIGTERM, PGBOUNCER_PORT):
            yield {**server, "HOST": folder, "PORT": str(PGBOUNCER_PORT)}


@contextmanager
def _private_folder(prefix: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        if WHO:
            shutil.chown(folder, UNPRIVILEGED)
        yield folder


@contextmanager
def _running(command: list[str], folder: str, end: signal.Signals, port: int | None = None) -> Iterator[None]:
    log = Path(folder) / "log"
    with log.open("wb") as words:
        server = subprocess.Popen(command, stdout=words, stderr=words, cwd=folder, **WHO)

    def answers() -> bool:
        assert server.poll() is None, log.read_text()
        try:
            psycopg.connect(host=folder, user="quota", dbname="postgres", port=port).close()
        except psycopg.OperationalError:
            return False
        return True

    try:
        wait_until(answers)
        yield
    finally:
        server.send_signal(end)
        server.wait()


@contextmanager
def default_database(settings: dict[str, Any]) -> Iterator[None]:
    """Make a database Django's default for as long as the block lasts, in all threads."""
    from django.contrib.contenttypes.models import ContentType  # some import this module before they set Django up

    before, known = connections["default"], connections.settings["default"]
    connections.settings["default"] = ConnectionHandler({"default": dict(settings)}).settings["default"]
    connections["default"] = connections.create_connection("default")
    ContentType.objects.clear_cache()  # each database has its own
    try:
        yield
    finally:
        connections["default"].close()
        connections["default"] = before
        connections.settings["default"] = known
        ContentType.objects.clear_cache()


@contextmanager
def another_database(alias: str, settings: dict[str, Any]) -> Iterator[None]:
    """Have a database under an alias beside the default one for as long as the block lasts."""
    connections.settings[alias] = ConnectionHandler({"default": dict(settings)}).settings["default"]
    try:
        yield
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]


class OverridesElsewhere:
    """A router that sends overrides to the database with the alias `other`."""

    def db_for_write(self, model: Any, **_: Any) -> str | None:
        return "other" if model.__name__.startswith(("QuotaOverride", "OverrideChange")) else None


class LaggingReplica:
    """A router that reads from a replica. There is none: whoever asks it fails."""

    def db_for_read(self, *_: Any, **__: Any) -> str:
        return "replica"


class OwnReplicaLags(LaggingReplica):
    """The same, for the tables of this package alone."""

    def db_for_read(self, model: Any, **_: Any) -> str | None:  # type: ignore[override]
        return "replica" if model._meta.app_label == "django_quota" else None


def forget_connection() -> None:
    """Let go of this thread's connection: one that outlives its test still leads to the database of that test."""
    if hasattr(connections._connections, "default"):  # type: ignore[attr-defined]
        connections["default"].close()
        del connections["default"]


def sqlite_database(file: Path) -> dict[str, Any]:
    """Return what goes into DATABASES for a file: writers wait long for each other, and not for the disk."""
    options = {"timeout": 60, "init_command": "PRAGMA synchronous=OFF"}
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(file), "OPTIONS": options}


def migrate(settings: dict[str, Any]) -> None:
    with default_database(settings):
        call_command("migrate", verbosity=0)


def empty() -> None:
    call_command("flush", verbosity=0, interactive=False, inhibit_post_migrate=True)
