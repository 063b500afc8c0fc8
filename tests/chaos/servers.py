"""Redis servers that can be killed, stopped and started again on the same port; each ends with its block."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from tests.support.commands import wait_until

WRITE = "redis.call('SET', KEYS[1], '1', 'PX', 1) return redis.call('DEL', KEYS[1])"

until = wait_until


class Process:
    """A server process, of a command line that starts it again in the same place."""

    process: subprocess.Popen[bytes]

    def __init__(self, *command: str) -> None:
        self._command = command

    def start(self) -> None:
        # A copy: scenes start servers from threads, and another thread may change the environment meanwhile (EFAULT).
        nowhere = subprocess.DEVNULL
        self.process = subprocess.Popen(self._command, stdout=nowhere, stderr=nowhere, env={**os.environ})

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it at once, whether or not it hangs."""
        self.process.kill()
        self.process.wait()


class Server:
    """One Redis; `url` is where it is, dead or alive."""

    def __init__(self, program: Path, folder: Path, *options: str, port: int = 0) -> None:
        place = folder / "redis.sock"
        self.port = port
        self.url = f"redis://127.0.0.1:{port}/0" if port else f"unix://{place}"
        listening = ("--port", str(port)) if port else ("--port", "0", "--unixsocket", str(place))
        self.process = Process(str(program), *listening, "--dir", str(folder), "--save", "", *options)
        self.client: Any = redis.Redis.from_url(self.url, socket_timeout=5)

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
        self.process.kill()
        self.client.close()


@contextmanager
def running(server: Server) -> Iterator[Server]:
    try:
        server.start()
        yield server
    finally:
        server.end()
