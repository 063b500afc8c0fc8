"""Measure a check beside bare redis-py and four other limiters, in one run on one private Redis server.

`python -m tests.benchmarks.bench [--checks N] [--json FILE]`, or `make bench`. It prints client CPU and wall
time a check, the ratio to one bare EVALSHA, round trips, SQL queries and Redis memory; then what each limiter
admits in a race and in the worst window.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import django
from django.conf import settings
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from django_quota.testing.redis_server import running_redis

if TYPE_CHECKING:
    from tests.benchmarks.measure import Contender, Row, Server
    from tests.benchmarks.report import Facts, Report

WIDTH = 150
"""Columns that the tables take unfolded."""


def main() -> None:
    """Run all measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checks", type=int, default=2000, metavar="N", help="timed checks a row (default 2000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, too")
    options = parser.parse_args()
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH  # a file or a log has no width of its own
    with running_redis() as server:
        configure(server.url)
        report = measure(server.url, options.checks, console)
    report.show(console)
    if options.json:
        report.save(options.json)


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
        RATELIMIT_BACKEND="tests.benchmarks.rivals.UnixSocketBackend",
        RATELIMIT_REDIS={"url": url},
        USE_TZ=True,
    )
    django.setup()
    from django.core.management import call_command

    from django_quota import overrides

    call_command("migrate", verbosity=0)  # so that whoever wants to ask the database, can
    overrides.on_due = lambda: None  # it is looked for, as on any site; there is nothing to publish


def measure(url: str, checks: int, console: Console) -> Report:
    """Take all measurements; the order matters only in that timing comes first, on a quiet machine."""
    # Only now is Django configured: these modules import parts of it that need settings.
    from tests.benchmarks import ours, rivals
    from tests.benchmarks.measure import BATCH, Server, count_trips, laps, time_rows
    from tests.benchmarks.report import Report

    rows = ours.rows(url) + rivals.rows(url)
    contenders = [ours.contender(), *rivals.contenders(url)]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawn between the laps only: a drawing thread would take time from the thread that is timed.
    with (
        Server(url) as server,
        Progress(*columns, console=console, auto_refresh=False, transient=True) as progress,
    ):
        for _ in progress.track(time_rows(rows, checks), total=laps(checks), description="Timing, in laps"):
            progress.refresh()
        for row in progress.track(rows, description="Counting round trips"):
            count_trips(row, server)
            progress.refresh()
        for row in progress.track([row for row in rows if row.fills], description="Filling 100/m"):
            row.memory = _memory(row, server)
            progress.refresh()
        facts = []
        for contender in progress.track(contenders, description="Who is right"):
            facts.append(_facts(contender, server))
            progress.refresh()
        return Report(server.version, laps(checks) * BATCH, rows, facts)


def _memory(row: Row, server: Server) -> int:
    from tests.benchmarks.measure import BATCH, bytes_a_subject

    work = row.build(("100/m",))
    return bytes_a_subject(lambda ip: work.run(ip, BATCH), server)


def _facts(contender: Contender, server: Server) -> Facts:
    from tests.benchmarks import facts
    from tests.benchmarks.report import Facts

    return Facts(
        package=contender.package,
        clock_held=contender.clock_windows,
        race=facts.admitted_in_a_race(contender),
        worst_window=facts.worst_window(contender),
        memory=facts.memory_by_rate(contender, server),
        memory_after_refusals=facts.memory_after_refusals(contender, server),
    )


if __name__ == "__main__":
    main()
