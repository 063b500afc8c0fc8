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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from errno import EADDRINUSE
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
from example_project.start import start_over

HOST = "127.0.0.1"
START_TIMEOUT = 20.0
"""Seconds the server may take to answer its first request."""
STOP_TIMEOUT = 5.0
"""Seconds the server may take to end when asked to."""

_OTHER_PORT = "PORT=8001 make serve, or python -m example_project.serve --port 8001"


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

    @property
    def url(self) -> str:
        """Where the front page is."""
        return f"http://{HOST}:{self.port}/"

    def wrote(self) -> str:
        """Return what the server has written, as an indented block."""
        text = self.log.read_text(errors="replace").strip() if self.log else ""
        return textwrap.indent(text or ("(nothing)" if self.log else "(see above)"), "    ")


@contextmanager
def running_site(*, prefix: str, port: int = 0, keep_log: bool = False) -> Iterator[Site]:
    """Run the example site for as long as the block lasts. Raises `StageError`.

    `prefix`: what its keys in Redis begin with. `port`: 0 is any free one. `keep_log`: whether what the server writes
    goes to a file, and not to the terminal.
    """
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
        _prepare()
        port = listener.getsockname()[1]
        log = Path(folder, "server.log") if keep_log else None
        with _server(listener, log) as process:
            site = Site(port, redis_words, process, log)
            _wait_until_answering(site)
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


def _prepare() -> None:
    """Make the database, forget what an earlier run has counted in a Redis that outlived it, fill the stock."""
    django.setup()
    call_command("migrate", verbosity=0, interactive=False)
    try:
        start_over()
    except (RedisError, StoreUnavailable) as error:
        raise StageError(
            f"Redis does not answer ({error}). Without REDIS_URL a private one would be started."
        ) from error


@contextmanager
def _server(listener: socket.socket, log: Path | None) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server process on the open port."""
    with ExitStack() as stack:
        output = stack.enter_context(log.open("wb")) if log else None
        process = subprocess.Popen(
            [sys.executable, "-m", "example_project.server", str(listener.fileno())],
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
