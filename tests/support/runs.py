"""What was run when: `pytest --record` adds a row to `tests/runs.json`, which the table in `docs/install.md` shows.

`make test-versions ARGS="-- --record"` records each session that runs all tests; `python -m tests.support.reference`
then writes the table. A row replaces the last one of the same versions, and says what was really run.
"""

import json
import platform
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import postgres_programs
from tests.support.stores import programs, server_name

RECORD = Path(__file__).parents[1] / "runs.json"
CLIENTS = ("redis", "hiredis", "django-redis")


@dataclass(frozen=True)
class Run:
    """A run of all tests."""

    python: str
    django: str
    clients: dict[str, str]
    """The versions of the packages that talk to Redis."""
    servers: list[str]
    on: str
    """The date."""
    passed: int
    skipped: int
    failed: int = 0
    more: bool = False
    """Whether `make test-all` ran, and not `make test`."""

    @property
    def what(self) -> tuple[object, ...]:
        """What a later run of the same replaces."""
        return minor(self.python), minor(self.django), *map(minor, self.clients.values()), *self.servers, self.more


def minor(number: str) -> str:
    """Return the first two numbers of a version."""
    return ".".join(number.split(".")[:2])


def recorded() -> list[Run]:
    return [Run(**row) for row in json.loads(RECORD.read_text())]


def keep(run: Run) -> None:
    runs = [*(each for each in recorded() if each.what != run.what), run]
    runs.sort(key=lambda each: (_numbers(each.python), _numbers(each.django), each.more, each.servers))
    RECORD.write_text("[\n" + ",\n".join(json.dumps(asdict(each)) for each in runs) + "\n]\n")


def _numbers(words: str) -> list[int]:
    return [int(word) for word in words.split(".") if word.isdigit()]


def table() -> str:
    """Return the table of the runs."""
    head = "| Python | Django | redis-py, django-redis | servers | tests | on |\n|---|---|---|---|---|---|"
    return "\n".join([head, *map(_row, recorded())])


def _row(run: Run) -> str:
    clients = (
        f"{run.clients['redis']}{'' if run.clients['hiredis'] else ' without hiredis'}, {run.clients['django-redis']}"
    )
    counts = [f"{run.passed:,} passed", f"{run.failed} failed" if run.failed else "", f"{run.skipped} skipped"]
    cells = (run.python, run.django, clients, ", ".join(run.servers), ", ".join(filter(None, counts)), run.on)
    return f"| {' | '.join(cells)} |"


# --- recording --------------------------------------------------------------------------------------------------------


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="add this run of all tests to the table of what was run")


class Recorder:
    """Records a run that was of all tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._more: bool = config.getoption("all")
        chosen = config.getoption("keyword") or config.getoption("markexpr")
        self._is_whole = not chosen and config.args == config.getini("testpaths")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._is_whole:
            terminalreporter.line("Not recorded: only some of the tests were run.")
            return
        passed, skipped, failed, broken = (
            len(terminalreporter.stats.get(outcome, ())) for outcome in ("passed", "skipped", "failed", "error")
        )
        servers = list(_servers(more=self._more))
        clients = dict(zip(CLIENTS, map(_version, CLIENTS), strict=True))
        today = f"{datetime.now(UTC):%Y-%m-%d}"
        python, django = platform.python_version(), version("django")
        run = Run(python, django, clients, servers, today, passed, skipped, failed + broken, self._more)
        keep(run)
        terminalreporter.line(_row(run))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _servers(*, more: bool) -> Iterator[str]:
    """Yield the servers that the tests use: all with `--all`, else the first one."""
    found: Iterable[Any] = programs() if more else programs()[:1]
    yield from (server_name(program.values[0]) for program in found)
    folder = postgres_programs()
    if more and folder is not None:
        words = subprocess.run(
            [str(folder / "postgres"), "--version"], capture_output=True, text=True, check=True
        ).stdout
        yield f"PostgreSQL {words.split()[2]}"
