"""What a subject takes of Redis: bytes and CPU time, on a private server. `python -m tests.benchmarks.sizing`.

`--write` fills the tables of docs/redis.md. Bytes are those of `MEMORY USAGE`, of all keys of the subject. The CPU
time in Redis is that of `INFO commandstats`, as a ratio to the default algorithm, with the batches of all rows in turn.
"""

from __future__ import annotations

import logging
import os
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import django
from django.conf import settings

BATCH, LAPS = 100, 30
"""Checks of a batch, and batches of each row."""

SUBJECT = "ip:203.0.113.9"

PAGE = Path(__file__).parents[2] / "docs" / "redis.md"
BEGIN, END = "<!-- sizing: begin -->", "<!-- sizing: end -->"

Call = Callable[[str], object]


def rates() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the rules that are measured: the rate and the options of each, by what the page calls it."""
    names = ("sliding_window", "fixed_window", "calendar", "token_bucket", "leaky_bucket")
    rows: dict[str, tuple[str, dict[str, Any]]] = {f"`10/m`, `{name}`": ("10/m", {"algorithm": name}) for name in names}
    rows["`1000/m`, `sliding_window`"] = ("1000/m", {})
    rows["`1000/m`, `sliding_window`, `precision=1000`"] = ("1000/m", {"precision": 1000})
    rows["`1000000/d`, `sliding_window`"] = ("1000000/d", {})
    return rows


def others() -> dict[str, Call]:
    """Return what else takes memory for a subject: a function that makes it, by what the page calls it."""
    from django_quota import Rule, ban, check, counter, once, slot

    banning = Rule.make("ban", "10/m", ban={"after": "600/m", "for": "10m"})
    clicks, slots = counter("clicks"), slot("export", 10)

    def lease(subject: str) -> None:
        slots.subject = subject
        slots.acquire()

    def distinct(subject: str) -> None:
        for device in range(3):
            check("3/30d", subject, value=str(device), distinct=True)

    return {
        "three different values under `distinct=`, `3/30d`": distinct,
        "usage of a day (checks of users, or `daily=True`), one rule": lambda subject: check(
            "10/m", subject, daily=True
        ),
        "a ban": lambda subject: ban(subject, banning, 600),
        "a lease of a slot": lease,
        "a counter, with one day": clicks.incr,
        "`unique()` of a counter, 1,000 values": lambda subject: [clicks.unique(subject, n) for n in range(1_000)],
        "a value that `once` remembers": lambda subject: once("event", subject),
    }


def bytes_of(redis: Any, fill: Call, *, kind: str = "", without: str = "") -> int:
    """Return the bytes of the keys that a subject gets: all but those of the site, or those of one kind, or no kind."""
    redis.flushall()
    fill(SUBJECT)
    keys = [key for key in redis.scan_iter() if (f"}}:{kind}" in key if kind else "{!" not in key)]
    return sum(redis.memory_usage(key, samples=0) for key in keys if not without or f"}}:{without}:" not in key)


def fill_stream(_subject: str) -> None:
    """Refuse 10,000 clients."""
    from django_quota import check

    for number in range(10_000):
        check("0/m", f"ip:10.0.{number // 250}.{number % 250}")


def cpu_ratios(redis: Any) -> dict[str, float]:
    """Return the CPU time in Redis of an allowed check over that of the first row."""
    from django_quota import check

    found: dict[str, list[float]] = {name: [] for name in rates()}
    for lap in range(LAPS):
        for name, (rate, options) in random.sample(list(rates().items()), len(rates())):
            subjects = [f"ip:10.{lap}.0.{number % 40}" for number in range(BATCH)]
            for subject in subjects[:40]:
                check(rate, subject, **options)
            redis.config_resetstat()
            for subject in subjects:
                check(rate, subject, **options)
            stats = redis.info("commandstats")["cmdstat_evalsha"]
            found[name].append(stats["usec"] / stats["calls"])
    first = statistics.median(next(iter(found.values())))
    return {name: statistics.median(times) / first for name, times in found.items()}


def tables(redis: Any) -> Iterator[str]:
    """Yield the lines of the tables."""
    from django_quota import check

    ratios = cpu_ratios(redis)
    yield "| a limit of a subject | bytes after one hit | bytes when used up | CPU in Redis, a check |"
    yield "|---|---:|---:|---:|"
    for name, (rate, options) in rates().items():
        one = bytes_of(redis, partial(check, rate, **options))
        full = bytes_of(redis, partial(fill_up, rate, options))
        yield f"| {name} | {one:,} | {full:,} | {ratios[name]:.2f} |"
    yield "\n| what else a subject may have | bytes |\n|---|---:|"
    for name, fill in others().items():
        yield f"| {name} | {bytes_of(redis, fill, without='' if 'distinct' in name else 'r'):,} |"
    yield f"| 10,000 events in the stream, for the whole site | {bytes_of(redis, fill_stream, kind='events'):,} |"


def fill_up(rate: str, options: dict[str, Any], subject: str) -> None:
    """Use up a limit with hits spread over its window, so that it keeps as many entries as it can."""
    from django_quota import check
    from django_quota.core.rates import parse_rate
    from django_quota.testing import freeze
    from tests.support.steps import START

    parsed = parse_rate(rate)
    hits = min(parsed.count, options.get("precision", 100) + 20)
    for number in range(hits):
        with freeze(START * 2 + number * parsed.period // hits):  # far ahead: Redis must not expire it meanwhile
            check(rate, subject, max(1, parsed.count // hits), **options)


def main() -> None:
    """Measure on a private Redis, print the table, and write it if asked to."""
    from django_quota.testing import running_redis

    with running_redis() as server:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.support.settings")
        settings.CACHES["default"]["LOCATION"] = server.url
        logging.getLogger("django_quota").setLevel(logging.CRITICAL)  # at the end the metrics find no Redis
        django.setup()
        from django.core.management import call_command
        from redis import Redis

        from tests.support.stores import server_name

        call_command("migrate", verbosity=0)
        redis = Redis.from_url(server.url, decode_responses=True)
        lines = "\n".join(tables(redis))
        name = server_name(server.program)
    print(lines)
    if "--write" in sys.argv:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        head = f"Measured on {name}, 64 bit, by `python -m tests.benchmarks.sizing`."
        PAGE.write_text(f"{before}{BEGIN}\n\n{head}\n\n{lines}\n\n{END}{after}")


if __name__ == "__main__":
    main()
