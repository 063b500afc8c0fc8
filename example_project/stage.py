"""Sets the stage for the demo and for `serve`: Redis, a database in a temporary folder, and the site as a real process.

Whatever is started here is ended here, by its own process id, however the block ends.
"""

from __future__ import annotations

import os
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

from django_quota import StoreUnavailable
from django_quota.testing import running_redis
from example_project.client import Visitor
from example_project.people import Account, new_accounts
from example_project.start import start_over
from example_project.traffic import send_traffic

HOST = "127.0.0.1"
START_TIMEOUT = 60.0
"""Seconds the server may take to answer its first request."""
STOP_TIMEOUT = 20.0
"""Seconds the server may take to end when asked to."""

_OTHER_PORT = "PORT=8001 make serve, or python -m example_project.serve --port 8001"


Told = Callable[[str, int, int], object]
"""Is told what is being done, how far it is, and of how much; 0 of 0 where that is not known."""


def _unheard(_what: str, _done: int, _total: int) -> None:
    pass


class StageError(RuntimeError):
    """The site could not be set up; the message says why, and what would do."""


@dataclass(frozen=True)
class Site:
    """The running site."""

    port: int
    redis: str
    """In words, where its Redis is from."""
    process: subprocess.Popen[bytes]
    """The server."""
    log: Path | None
    """Where the server writes; None for the terminal."""
    accounts: Sequence[Account]
    """Who may sign in to its admin, with their passwords."""
    rows: int
    """How many daily counters its history has."""

    @property
    def url(self) -> str:
        """Where the front page is."""
        return f"http://{HOST}:{self.port}/"

    @property
    def sign_ins(self) -> str:
        """Where the admin is, and who may sign in there: they are told here, and kept nowhere."""
        lines = (f"  {a.username:<8} password {a.password}   {a.may}" for a in self.accounts)
        return "\n".join([f"Its admin is at {self.url}admin/, for", *lines])

    def wrote(self) -> str:
        """Return what the server has written, as an indented block."""
        text = self.log.read_text(errors="replace").strip() if self.log else ""
        return textwrap.indent(text or ("(nothing)" if self.log else "(see above)"), "    ")


@contextmanager
def running_site(
    *, prefix: str, port: int = 0, keep_log: bool = False, wsgi: bool = False, told: Told = _unheard
) -> Iterator[Site]:
    """Run the example site for as long as the block lasts. Raises `StageError`.

    `prefix`: what its keys in Redis begin with. `port`: 0 is any free one. `keep_log`: whether what the server writes
    goes to a file, and not to the terminal. `wsgi`: whether it is served by WSGI in the place of ASGI. `told`: is told
    what is being done, how far it is, and of how much.
    """
    told("Redis", 0, 0)
    with (
        _listener(port) as listener,
        _redis() as (redis_url, redis_words),
        tempfile.TemporaryDirectory(prefix="quota-example-") as folder,
    ):
        os.environ.update(
            DJANGO_SETTINGS_MODULE="example_project.settings",
            REDIS_URL=redis_url,
            EXAMPLE_PREFIX=prefix,
            EXAMPLE_DATABASE=str(Path(folder, "example.sqlite3")),
            EXAMPLE_SECRET_KEY=get_random_secret_key(),
        )
        accounts, rows = _prepare(told)
        port = listener.getsockname()[1]
        log = Path(folder, "server.log") if keep_log else None
        told("The server", 0, 0)
        with _server(listener, log, "wsgi" if wsgi else "asgi") as process:
            site = Site(port, redis_words, process, log, accounts, rows)
            _wait_until_answering(site)
            told("Today's first requests", 0, 0)
            _send_traffic(site)
            yield site


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, by `KeyboardInterrupt`; only the first of them counts.

    So every `finally` runs to its end, also where somebody presses Ctrl-C twice.
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
    """Open the port that the server will listen on, so that nobody else takes it meanwhile."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except (OSError, OverflowError) as error:
            why = "it is taken" if getattr(error, "errno", None) == EADDRINUSE else str(error).rstrip(".")
            raise StageError(f"Port {port} cannot be used: {why}. Another would do, such as: {_OTHER_PORT}") from error
        yield listener


@contextmanager
def _redis() -> Iterator[tuple[str, str]]:
    """Yield the URL of the Redis to use and where it is from: REDIS_URL's where that is set, else a private one."""
    given = os.environ.get("REDIS_URL")
    if given:
        yield given, "the Redis of REDIS_URL"
        return
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running_redis())
        except (
            RuntimeError
        ) as error:  # there is none on this machine, or it does not start: its words say what would do
            raise StageError(str(error)) from error
        yield server.url, f"a private Redis of its own ({server.program})"


def _prepare(told: Told) -> tuple[Sequence[Account], int]:
    """Make the database and its past; forget what an earlier run has counted in a Redis that outlived it.

    Returns who may sign in to the admin, and how many daily counters there are.
    """
    told("The database", 0, 0)
    django.setup()
    call_command("migrate", verbosity=0, interactive=False)
    from example_project.history import write_history, write_overrides, write_people  # noqa: PLC0415 — it has models

    told("Its people", 0, 0)
    accounts = new_accounts()
    users = write_people(accounts)
    rows = write_history(users, partial(told, "A year of history"))
    try:
        start_over()
        write_overrides(users)
    except (RedisError, StoreUnavailable) as error:
        raise StageError(
            f"Redis does not answer ({error}). Without REDIS_URL a private one would be started."
        ) from error
    return accounts, rows


def _send_traffic(site: Site) -> None:
    try:
        send_traffic(site.port)
    except (OSError, HTTPException) as error:
        raise StageError(f"The server does not answer ({error}). It wrote:\n{site.wrote()}") from error


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
        listener.close()  # the process has its own; a dead server's port must not look open
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
            raise StageError(f"The server {happened}. It wrote:\n{site.wrote()}")
        time.sleep(0.05)
