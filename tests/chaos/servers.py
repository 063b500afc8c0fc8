"""Redis servers that can be killed, stopped and started again on the same port; each ends with its block."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

START_TIMEOUT = 60.0
"""Seconds that a server may take to answer."""

WRITE = "return redis.call('SET', KEYS[1], '1', 'PX', 1)"


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for a condition. Raises `RuntimeError` where it does not come to hold."""
    deadline = time.monotonic() + START_TIMEOUT
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"In vain was waited for this: {what}.")
        time.sleep(0.005)


class Process:
    """A server process, of a command line that starts it again in the same place."""

    def __init__(self, *command: str) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        # A copy: scenes start servers from threads, and another thread may change the environment meanwhile (EFAULT).
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ}
        )

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once, whether or not it hangs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Server:
    """One Redis; `url` is where it is, dead or alive."""

    def __init__(self, program: Path, folder: Path, *options: str, port: int = 0) -> None:
        place = folder / "redis.sock"
        self.port = port
        self.url = f"redis://127.0.0.1:{port}/0" if port else f"unix://{place}"
        listening = ("--port", str(port)) if port else ("--port", "0", "--unixsocket", str(place))
        self.process = Process(str(program), *listening, "--dir", str(folder), "--save", "", *options)
        # One connection, which is kept: while the server is full, there is no other.
        self.client: Any = redis.Redis.from_url(self.url, socket_timeout=5, single_connection_client=False)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.process.start()
        until(self.is_well, "a Redis that answers")

    def is_well(self) -> bool:
        """Say whether it takes a script that writes."""
        try:
            self.client.eval(WRITE, 1, "chaos-is-it-well")
        except redis.RedisError:
            return False
        return True

    def end(self) -> None:
        """End it, and close the connection to it."""
        self.process.kill()
        self.client.close()


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Run a server for as long as the block lasts."""
    try:
        server.start()
        yield server
    finally:
        server.end()
