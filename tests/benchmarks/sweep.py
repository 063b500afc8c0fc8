"""How long does a sweep of a million expired entries hold Redis up? Run by hand: `python -m tests.benchmarks.sweep`.

Half of the entries lie in a few huge sorted sets, half in many small ones. While the real command sweeps them in a
process of its own, a client in another one asks a trifle a thousand times a second and notes its longest wait; then it
does the same for as long without a sweep, so that what the machine itself does to it is known. `SLOWLOG` says how long
the commands took inside Redis. The machine must be quiet: what else runs is measured with it (as root, `chrt -f 10`
before the command makes it as good as quiet).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from multiprocessing.synchronize import Event as ProcessEvent
from pathlib import Path
from typing import Any, NamedTuple, cast

import redis

from django_quota.core.keys import key_of, subject_base
from django_quota.testing import RedisServer, running_redis, server_programs
from tests.support.commands import managing
from tests.support.stores import caches

ENTRIES = 1_000_000
HUGE = 5
"""Huge sets: together they hold half of the entries."""
SMALL = 100
"""Entries of a small set, about what the precision of a sliding window leaves."""
LIVE = 1
"""Live entries of each set, which must be there afterwards."""

SLOW = 2_000
"""Microseconds that no command of ours may take."""
NOTED = 300
"""Microseconds from which on Redis is asked to note a command, to find the longest."""
STALL = 5_000
"""Microseconds that the client may wait at most, aimed at."""

PAUSE = 0.001
"""Seconds between two questions of the client: one that asks without a pause would itself take a processor."""

FUTURE = 4_102_444_800_000_000
"""The year 2100, in microseconds."""


class Waits(NamedTuple):
    """How long the client waited for its answers, in microseconds."""

    answers: int
    median: float
    p999: float
    longest: float


def fill(raw: redis.Redis) -> int:
    """Write the expired entries, a live one in each set; return how many sets there are."""
    half = ENTRIES // 2
    for number in range(HUGE):
        _write(raw, f"huge:{number}", half // HUGE)
    for number in range(half // SMALL):
        _write(raw, f"small:{number}", SMALL)
    return HUGE + half // SMALL


def _write(raw: redis.Redis, subject: str, count: int) -> None:
    key = key_of(subject_base("quota", subject), "r", "a", "60")
    for start in range(0, count, 10_000):
        raw.zadd(key, {f"{number}:1": number + 1 for number in range(start, min(start + 10_000, count))})
    raw.zadd(key, {f"{count + number}:1": FUTURE for number in range(LIVE)})
    raw.expire(key, 86_400)


def ask(url: str, stop: ProcessEvent, waits: Any) -> None:
    """Ask a trifle again and again until told to stop; send how long the answers took."""
    took = []
    with redis.Redis.from_url(url, single_connection_client=True) as client:
        client.ping()
        waits.send(None)
        while not stop.is_set():
            began = time.perf_counter()
            client.get("trifle")
            took.append(time.perf_counter() - began)
            time.sleep(PAUSE)
    took.sort()
    median, p999, longest = (took[int((len(took) - 1) * share)] * 1e6 for share in (0.5, 0.999, 1))
    waits.send(Waits(len(took), median, p999, longest))


class Asking:
    """A client in a process of its own, for as long as a block lasts; `waits` is there afterwards."""

    def __init__(self, url: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._stop = context.Event()
        self._process = context.Process(target=ask, args=(url, self._stop, theirs))
        self.waits = Waits(0, 0, 0, 0)

    def __enter__(self) -> Asking:
        self._process.start()
        self._ours.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.waits = self._ours.recv()
        self._process.join()


def measure(server: RedisServer, budget_ms: int) -> None:
    """Measure one sweep, and print what came out."""
    with redis.Redis.from_url(server.url) as raw, tempfile.TemporaryDirectory() as folder:
        raw.flushall()
        sets = fill(raw)
        version = raw.info("server")["redis_version"]
        print(f"\nRedis {version}: {ENTRIES:,} expired entries in {sets:,} sets, --budget-ms {budget_ms}", flush=True)
        raw.config_set("slowlog-log-slower-than", NOTED)
        raw.config_set("slowlog-max-len", 100_000)
        raw.slowlog_reset()
        with managing(Path(folder), caches(server)) as manage, Asking(server.url) as swept:
            process = manage.start("quota_sweep", "--json", "--budget-ms", str(budget_ms))
            assert process.stdout is not None
            report = json.loads(process.stdout.read())
            assert process.wait() == 0
        noted = [entry["duration"] for entry in cast("Any", raw).slowlog_get(100_000) if _is_ours(entry)]
        members = sum(cast("Any", raw).zcard(key) for key in raw.scan_iter("quota:*", count=1_000))
        with Asking(server.url) as quiet:
            time.sleep(report["seconds"])
    assert report["removed"] == ENTRIES, report
    assert members == sets * LIVE, members
    print(f"  swept in {report['seconds']:.1f} s; {report['freed'] / 1e6:.1f} MB came free")
    print(f"  {'the client waited (ms)':<34}{'answers':>10}{'median':>9}{'99.9 %':>9}{'longest':>9}")
    for name, waits in (("without a sweep", quiet.waits), ("during the sweep", swept.waits)):
        figures = "".join(f"{value / 1e3:>9.3f}" for value in waits[1:])
        print(f"  {name:<34}{waits.answers:>10,}{figures}")
    slow = sum(duration > SLOW for duration in noted)
    longest = max(noted, default=NOTED)
    print(f"  commands of ours over {SLOW / 1e3:g} ms in SLOWLOG: {slow}; the longest took {longest / 1e3:.3f} ms")
    verdict = "kept" if swept.waits.longest <= STALL and not slow else "MISSED"
    print(f"  aim (no stall over {STALL / 1e3:g} ms, no command over {SLOW / 1e3:g} ms): {verdict}", flush=True)


def _is_ours(entry: dict[str, Any]) -> bool:
    return bytes(entry["command"]).split(b" ")[0].upper() in {b"EVALSHA", b"SCAN", b"MEMORY", b"SET", b"SCRIPT"}


def main() -> None:
    """Measure with each Redis at hand and some budgets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget-ms", type=int, action="append", help="100 and 1000")
    budgets = parser.parse_args().budget_ms or [100, 1_000]
    for program in server_programs():
        with running_redis(program) as server:
            for budget_ms in budgets:
                measure(server, budget_ms)


if __name__ == "__main__":
    main()
