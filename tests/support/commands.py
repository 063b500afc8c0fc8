"""Commands of `manage.py`: what they print as JSON, and in processes of their own with the settings of the tests."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

from django.core.management import call_command

import django_quota

ROOT = Path(django_quota.__file__).parent.parent

PATIENCE = 60.0  # seconds to wait for a condition before the test fails


def wait_until(holds: Callable[[], Any], what: str = "a condition that holds") -> None:
    """Wait for a condition, and fail if it never holds."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"There never was {what}."
        threading.Event().wait(0.005)


def json_of(command: str, **options: Any) -> list[Any]:
    """Return what a command prints with `--json`, one object a line."""
    printed = StringIO()
    call_command(command, json=True, stdout=printed, stderr=StringIO(), **options)
    return [json.loads(line) for line in printed.getvalue().splitlines()]


class Terminal(StringIO):
    """What a command writes to a terminal."""

    def isatty(self) -> bool:
        return True


class Reader(StringIO):
    """Has what a program reads at the other end of a pipe: what was flushed."""

    read_so_far = ""

    def flush(self) -> None:
        self.read_so_far = self.getvalue()


def said(*words: str) -> Any:
    """Run a command; return its output and then its notes, or with `--json` the value that it prints."""
    out, notes = StringIO(), StringIO()
    call_command(*words, stdout=out, stderr=notes)
    return json.loads(out.getvalue()) if "--json" in words else out.getvalue() + notes.getvalue()


class Manage:
    """Starts commands in processes of their own; see `managing`."""

    def __init__(self, folder: Path, caches: Mapping[str, Any], databases: Mapping[str, Any] | None = None) -> None:
        module = folder / "settings_of_a_process.py"
        tables = "" if databases is None else f"DATABASES = {databases!r}\n"
        module.write_text(f"from tests.support.settings import *\nCACHES = {caches!r}\n{tables}")
        path = f"{ROOT}{os.pathsep}{folder}"
        self.environment = {**os.environ, "PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": module.stem}
        self.started: list[tuple[subprocess.Popen[str], Path]] = []
        self._folder = folder

    def start(self, *words: str, stderr: Path | None = None, stdout: Any = subprocess.PIPE) -> subprocess.Popen[str]:
        """Start a command. Its stdout is a pipe unless you give another, its stderr is a file."""
        said = stderr or self._folder / f"stderr-{len(self.started)}"
        command = [sys.executable, "-W", "error", "-m", "django", *words]
        with said.open("w") as errors:
            process = subprocess.Popen(command, env=self.environment, cwd=ROOT, stdout=stdout, stderr=errors, text=True)
        self.started.append((process, said))
        return process

    def stop(self, process: subprocess.Popen[str], number: signal.Signals) -> str:
        """Send a signal, read stdout until the process ends with status 0, and return what was read."""
        process.send_signal(number)
        said, _ = process.communicate()
        assert process.returncode == 0
        return said


@contextmanager
def managing(folder: Path, caches: Mapping[str, Any], databases: Mapping[str, Any] | None = None) -> Iterator[Manage]:
    """Yield a `Manage`. At the end, commands that still run are killed; pytest shows what all of them printed."""
    manage = Manage(folder, caches, databases)
    try:
        yield manage
    finally:
        for process, said in manage.started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
            print(said.read_text(), end="")
