"""Measure a check beside a bare EVALSHA and six other limiters, on private Redis servers.

`python -m tests.benchmarks.bench [--laps N] [--json FILE]`, or `make bench`. For each Redis on this machine, and for
redis-py with hiredis and without, it prints what a check costs: CPU time of the client, wall time, CPU time in Redis,
round trips, SQL queries and memory. Then it prints the ratios that matter, and what each limiter admits in a race and
in the worst window.

All rows of a table are measured in one process, in turn. A process of the lowest priority keeps each core awake: else
the time that an idle core takes to wake up hides everything else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django
from django.conf import settings
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from django_quota.testing.redis_server import running_redis, server_programs
from tests.benchmarks.report import Facts, Report, Run
from tests.support.ports import free_port

if TYPE_CHECKING:
    from tests.benchmarks.measure import Contender, Row, Server

WIDTH = 150
"""Columns that the tables take unfolded."""

_RUN = "import runpy; runpy.run_module('tests.benchmarks.bench', run_name='__main__')"
STARTS = {"hiredis": _RUN, "python": f"import sys; sys.modules['hiredis'] = None; {_RUN}"}
"""How a process that measures starts, by what reads the replies: the C extension, or redis-py without it."""


def main() -> None:
    """Run all measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--laps", type=int, default=10, metavar="N", help="batches of 1,000 checks a row (default 10)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, too")
    parser.add_argument("--quick", action="store_true", help="one Redis and hiredis only, without races and memory")
    parser.add_argument("--child", nargs=2, metavar=("URL", "PARSER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        url, reader = options.child
        measure(url, reader, options.laps, options.json, quick=options.quick)
        return
    report = Report(options.laps)
    with awake_cores():
        for program in server_programs()[: 1 if options.quick else None]:
            for each in list(STARTS)[: 1 if options.quick else None]:
                report.runs.append(run_apart(program, each, options))
    report.show(_console())
    if options.json:
        report.save(options.json)


def _console() -> Console:
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH  # a file or a log has no width of its own
    return console


@contextmanager
def awake_cores() -> Iterator[None]:
    """Keep each core from falling asleep, with a process that gives way to all others."""
    spin = "import os\nos.nice(19)\nwhile True: pass"
    spinners = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def run_apart(program: Path, parser: str, options: argparse.Namespace) -> Run:
    """Measure on a new server of this program in a new process, which reads replies with this parser."""
    port = str(free_port())
    with running_redis(program, "--port", port, "--bind", "127.0.0.1"), tempfile.NamedTemporaryFile() as found:
        words = [sys.executable, "-c", STARTS[parser], "--child", f"redis://127.0.0.1:{port}/0", parser]
        words += ["--laps", str(options.laps), "--json", found.name, *(["--quick"] if options.quick else [])]
        subprocess.run(words, check=True)
        return Run.from_json(json.loads(Path(found.name).read_text()))


def configure(url: str) -> None:
    """Set Django up with all the limiters on the same server."""
    settings.configure(
        SECRET_KEY="bench",
        ALLOWED_HOSTS=["testserver"],
        INSTALLED_APPS=[
            "django.contrib.contenttypes",
            "django.contrib.auth",
            "django_quota",
            "django_smart_ratelimit",
            "rest_framework",
        ],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}},
        QUOTA={"CACHE": "default"},
        RATELIMIT_BACKEND="django_smart_ratelimit.backends.redis_backend.RedisBackend",
        RATELIMIT_REDIS={"url": url},
        USE_TZ=True,
    )
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)  # some limiters ask the database


def measure(url: str, parser: str, laps: int, found: Path, *, quick: bool) -> None:
    """Take all measurements of one run; the order matters only in that timing comes first, in a young process."""
    configure(url)
    # Only now is Django configured: these modules import parts of it that need settings.
    from tests.benchmarks import ours, peers
    from tests.benchmarks.measure import Server, count_trips, measure_redis_cpu, time_rows

    rows = ours.rows(url) + peers.rows(url)
    contenders = [] if quick else [ours.contender(), *peers.contenders(url)]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawn between the laps only: a drawing thread would take time from the thread that is timed.
    with (
        Server(url) as server,
        Progress(*columns, console=_console(), auto_refresh=False, transient=True) as progress,
    ):
        where = f"Redis {server.version}, {parser}"
        for _ in progress.track(time_rows(rows, laps), total=laps, description=f"{where}: timing, in laps"):
            progress.refresh()
        for row in progress.track(rows, description=f"{where}: round trips, CPU in Redis"):
            count_trips(row, server)
            measure_redis_cpu(row, server)
            progress.refresh()
        filled = [] if quick else [row for row in rows if row.fills]
        for row in progress.track(filled, description=f"{where}: filling 100/m"):
            row.memory = _memory(row, server)
            progress.refresh()
        facts = []
        for contender in progress.track(contenders, description=f"{where}: who is right"):
            facts.append(_facts(contender, server))
            progress.refresh()
        run = Run(server.version, parser, [row.figures() for row in rows], facts)
    found.write_text(json.dumps(run.as_json()))


def _memory(row: Row, server: Server) -> int:
    from tests.benchmarks.measure import bytes_a_subject

    work = row.build(("100/m",))
    return bytes_a_subject(lambda ip: work.run([ip], 100), server)


def _facts(contender: Contender, server: Server) -> dict[str, Any]:
    from tests.benchmarks import facts

    return Facts(
        package=contender.package,
        clock_held=contender.clock_windows,
        race=facts.admitted_in_a_race(contender),
        worst_window=facts.worst_window(contender),
        memory=facts.memory_by_rate(contender, server),
        memory_after_refusals=facts.memory_after_refusals(contender, server),
    ).as_json()


if __name__ == "__main__":
    main()
