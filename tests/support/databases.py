"""Databases for tests: SQLite in a file, and a private PostgreSQL, started and stopped by the session."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from django.core.management import call_command
from django.db import connections
from django.db.utils import ConnectionHandler

START_TIMEOUT = 60.0  # seconds a server may take to answer

UNPRIVILEGED = "nobody"  # who runs PostgreSQL where the tests run as root, whom it refuses


def postgres_programs() -> Path | None:
    """Return the folder of the PostgreSQL programs on PATH; None where there are none."""
    on_path = shutil.which("initdb")
    folder = Path(on_path).resolve().parent if on_path else None
    return folder if folder is not None and (folder / "postgres").exists() else None


@contextmanager
def running_postgres(programs: Path) -> Iterator[dict[str, Any]]:
    """Run a private PostgreSQL for as long as the block lasts; yields what goes into DATABASES."""
    who: dict[str, Any] = {"user": UNPRIVILEGED, "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="quota-pg-") as folder:
        if who:
            shutil.chown(folder, UNPRIVILEGED)
        data, log = Path(folder) / "data", Path(folder) / "log"
        options = ["--username", "quota", "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync"]
        made = subprocess.run(
            [str(programs / "initdb"), "-D", str(data), *options],
            check=False,
            capture_output=True,
            text=True,
            cwd=folder,
            **who,
        )
        assert made.returncode == 0, made.stderr
        command = [str(programs / "postgres"), "-D", str(data), "-k", folder, "-c", "listen_addresses=", "-F"]
        with log.open("wb") as words:
            server = subprocess.Popen(command, stdout=words, stderr=words, cwd=folder, **who)
        try:
            _wait_until_answering(folder, server, log)
            yield {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "quota", "HOST": folder}
        finally:
            server.send_signal(signal.SIGINT)  # a fast shutdown: it does not wait for clients
            server.wait()


PGBOUNCER_PORT = 6432  # it names the socket of a private PgBouncer; nothing listens on a port


@contextmanager
def running_pgbouncer(program: str, server: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
    """Run a PgBouncer that gives each transaction one of `size` sessions; yields what goes into DATABASES."""
    with tempfile.TemporaryDirectory(prefix="quota-pgb-") as folder:
        who: dict[str, Any] = {"user": UNPRIVILEGED, "extra_groups": []} if os.geteuid() == 0 else {}
        if who:
            shutil.chown(folder, UNPRIVILEGED)
        settings, log = Path(folder) / "pgbouncer.ini", Path(folder) / "log"
        settings.write_text(
            f"[databases]\n* = host={server['HOST']} user={server['USER']}\n"
            f"[pgbouncer]\npool_mode = transaction\ndefault_pool_size = {size}\nauth_type = any\n"
            f"unix_socket_dir = {folder}\nlisten_port = {PGBOUNCER_PORT}\n"
        )
        settings.chmod(0o644)
        with log.open("wb") as words:
            pooler = subprocess.Popen([program, str(settings)], stdout=words, stderr=words, cwd=folder, **who)
        try:
            _wait_until_answering(folder, pooler, log, PGBOUNCER_PORT)
            yield {**server, "HOST": folder, "PORT": str(PGBOUNCER_PORT)}
        finally:
            pooler.send_signal(signal.SIGTERM)  # at once; SIGINT would wait for its clients
            pooler.wait()


def _wait_until_answering(folder: str, server: subprocess.Popen[bytes], log: Path, port: int | None = None) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        try:
            psycopg.connect(host=folder, user="quota", dbname="postgres", port=port).close()
        except psycopg.OperationalError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        else:
            return


@contextmanager
def default_database(settings: dict[str, Any]) -> Iterator[None]:
    """Make a database Django's default for as long as the block lasts, in all threads."""
    before, known = connections["default"], connections.settings["default"]
    connections.settings["default"] = ConnectionHandler({"default": dict(settings)}).settings["default"]
    connections["default"] = connections.create_connection("default")
    try:
        yield
    finally:
        connections["default"].close()
        connections["default"] = before
        connections.settings["default"] = known


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
