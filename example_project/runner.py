"""Run the example site: a Redis, a database in a temporary folder, and the server as a real process.

`running_site` stops everything that it started, however its block ends.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from errno import EADDRINUSE
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from types import FrameType
from typing import NoReturn

import django
from django.core.management import call_command
from django.core.management.utils import get_random_secret_key
from redis import RedisError

from django_quota.exceptions import StoreUnavailable
from django_quota.testing import running_redis
from example_project.client import Visitor
from example_project.initial_state import start_over
from example_project.people import Account, new_accounts
from example_project.traffic import send_traffic

HOST = "127.0.0.1"
START_TIMEOUT = 60.0
"""Seconds the server may take to answer its first request."""
STOP_TIMEOUT = 20.0
"""Seconds the server may take to end when asked to."""

_OTHER_PORT = "PORT=8001 make serve, or python -m example_project.serve --port 8001"


ProgressCallback = Callable[[str, int, int], object]
"""Called with the current task, how much is done, and how much there is; 0 and 0 if unknown."""


def _no_progress(_task: str, _done: int, _total: int) -> None:
    pass


class RunnerError(RuntimeError):
    """The site could not start; the message says why, and what to do."""


@dataclass(frozen=True)
class Site:
    port: int
    store: str
    """Where the site counts, in words."""
    process: subprocess.Popen[bytes]
    log: Path | None
    """The file of the server's output; None for the terminal."""
    accounts: Sequence[Account]
    """The users of the admin, with their passwords."""
    rows: int
    """How many daily counters the history has."""
    environment: Path
    """A file that sets the environment of the site in a shell, for commands beside it."""

    @property
    def url(self) -> str:
        """The URL of the front page."""
        return f"http://{HOST}:{self.port}/"

    @property
    def sign_ins(self) -> str:
        """The URL of the admin and its users. The passwords are printed once and stored nowhere."""
        lines = (f"  {a.username:<8} password {a.password}   {a.may}" for a in self.accounts)
        return "\n".join([f"Its admin is at {self.url}admin/, for", *lines])

    @property
    def commands(self) -> str:
        """How to run a command of the site in another terminal."""
        python = shlex.quote(os.path.relpath(sys.executable))
        return f"Commands beside it: (. {self.environment}; {python} example_project/manage.py quota_status 127.0.0.1)"

    def output(self) -> str:
        """Return the output of the server, indented."""
        text = self.log.read_text(errors="replace").strip() if self.log else ""
        return textwrap.indent(text or ("(nothing)" if self.log else "(see above)"), "    ")


@contextmanager
def running_site(
    *, prefix: str, port: int = 0, keep_log: bool = False, wsgi: bool = False, report: ProgressCallback = _no_progress
) -> Iterator[Site]:
    """Run the example site for as long as the block lasts. Raises `RunnerError`.

    `prefix`: the prefix of its keys in Redis. `port`: 0 takes any free port. `keep_log`: write the server's output to a
    file instead of the terminal. `wsgi`: serve by WSGI instead of ASGI. `report`: called with the progress.
    """
    report("The store", 0, 0)
    with (
        _listener(port) as listener,
        _store() as (redis_url, store),
        tempfile.TemporaryDirectory(prefix="quota-example-") as folder,
    ):
        os.environ.update(
            DJANGO_SETTINGS_MODULE="example_project.settings",
            REDIS_URL=redis_url,
            EXAMPLE_PREFIX=prefix,
            EXAMPLE_DATABASE=str(Path(folder, "example.sqlite3")),
            EXAMPLE_SECRET_KEY=get_random_secret_key(),
        )
        environment = _environment(Path(folder, "environment"))
        accounts, rows = _prepare(report)
        port = listener.getsockname()[1]
        log = Path(folder, "server.log") if keep_log else None
        report("The server", 0, 0)
        with _server(listener, log, "wsgi" if wsgi else "asgi") as process:
            site = Site(port, store, process, log, accounts, rows, environment)
            _wait_until_answering(site)
            report("Today's first requests", 0, 0)
            _send_traffic(site)
            yield site


def _environment(path: Path) -> Path:
    """Write what the settings read of the environment to a file, as a shell reads it."""
    names = [
        name for name in os.environ if name in ("DJANGO_SETTINGS_MODULE", "REDIS_URL") or name.startswith("EXAMPLE_")
    ]
    path.touch(mode=0o600)
    path.write_text("".join(f"export {name}={shlex.quote(os.environ[name])}\n" for name in sorted(names)))
    return path


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """End the block with `KeyboardInterrupt` on SIGTERM and SIGHUP, as Ctrl-C does.

    Only the first signal counts, so every `finally` runs to its end even if you press Ctrl-C twice.
    """
    watched = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        watched.append(signal.SIGHUP)

    def end(_signum: int, _frame: FrameType | None) -> NoReturn:
        for signum in watched:
            signal.signal(signum, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {signum: signal.signal(signum, end) for signum in watched}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def _listener(port: int) -> Iterator[socket.socket]:
    """Open the server's port now, so that no other program takes it meanwhile."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except (OSError, OverflowError) as error:
            why = "it is taken" if getattr(error, "errno", None) == EADDRINUSE else str(error).rstrip(".")
            raise RunnerError(f"Port {port} cannot be used: {why}. Use another port: {_OTHER_PORT}") from error
        yield listener


@contextmanager
def _store() -> Iterator[tuple[str, str]]:
    """Yield the URL of the Redis to use, that of REDIS_URL or a private one, and where the site counts.

    With EXAMPLE_STORE=database there is no Redis, and the URL is empty.
    """
    given = os.environ.get("REDIS_URL")
    store = os.environ.get("EXAMPLE_STORE") or "redis"
    if store not in ("redis", "database"):
        raise RunnerError(f"STORE={store} is not a store of the example site. Use STORE=redis or STORE=database.")
    if store == "database":
        yield "", "a database of its own, without Redis"
        return
    if given:
        yield given, "the Redis of REDIS_URL"
        return
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running_redis())
        except RuntimeError as error:  # there is no server, or it does not start; the error says what to do
            raise RunnerError(str(error)) from error
        yield server.url, f"a private Redis of its own ({server.program})"


def _prepare(report: ProgressCallback) -> tuple[Sequence[Account], int]:
    """Make the database with its history; delete the counts that an earlier run left in a shared Redis.

    Returns the users of the admin and the number of daily counters.
    """
    report("The database", 0, 0)
    django.setup()
    call_command("migrate", verbosity=0, interactive=False)
    from example_project.history import write_history, write_overrides, write_people  # noqa: PLC0415 — it has models

    report("Its people", 0, 0)
    accounts = new_accounts()
    users = write_people(accounts)
    rows = write_history(users, partial(report, "A year of history"))
    try:
        start_over()
        write_overrides(users)
    except (RedisError, StoreUnavailable) as error:
        raise RunnerError(f"Redis does not answer ({error}). Unset REDIS_URL to use a private Redis.") from error
    return accounts, rows


def _send_traffic(site: Site) -> None:
    try:
        send_traffic(site.port)
    except (OSError, HTTPException) as error:
        raise RunnerError(f"The server does not answer ({error}). Its output:\n{site.output()}") from error


@contextmanager
def _server(listener: socket.socket, log: Path | None, interface: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server process on the open port."""
    with ExitStack() as stack:
        output = stack.enter_context(log.open("wb")) if log else None
        process = subprocess.Popen(
            [sys.executable, "-m", "example_project.server", str(listener.fileno()), interface],
            pass_fds=[listener.fileno()],
            stdout=output,
            stderr=output,
            cwd=Path(__file__).resolve().parent.parent,
        )
    try:
        listener.close()  # the process has a copy; the port of a dead server must not look open
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_answering(site: Site) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        try:
            with Visitor(site.port) as visitor:
                status = visitor.get("/").status
        except (OSError, HTTPException):
            status = 0
        if status == HTTPStatus.OK:
            return
        if status or site.process.poll() is not None or time.monotonic() > deadline:
            happened = f"answers {status}" if status else "did not start"
            raise RunnerError(f"The server {happened}. Its output:\n{site.output()}")
        time.sleep(0.05)
