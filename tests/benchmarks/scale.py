"""How far it goes: checks a second on one Redis."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import redis

from tests.benchmarks.measure import Work, fresh_ips
from tests.benchmarks.processes import configure

Point = dict[str, Any]
"""What was measured at one place: `x`, and figures by name."""

NAMES = ("ours", "limits")
CALLERS = (1, 2, 4, 8)


def checks_a_second(url: str, seconds: float) -> list[Point]:
    """Return what one Redis serves to 1 to 8 processes.

    `x` is the number of processes. `a_second` is what all were served. `a_core` is what Redis would
    serve with a core of its own: what it was served, by the CPU time that it took.
    """
    configure(url)
    import tests.benchmarks.limiters  # noqa: F401 — so that no process has to

    return [{"x": number} | {name: _served(url, name, number, seconds) for name in NAMES} for number in CALLERS]


def _served(url: str, name: str, processes: int, seconds: float) -> Point:
    context = multiprocessing.get_context("fork")  # they have all modules, and no connection yet
    start, counts = context.Barrier(processes + 1), context.SimpleQueue()
    callers = [context.Process(target=_count, args=(counts, name, url, start, seconds)) for _ in range(processes)]
    for caller in callers:
        caller.start()
    with redis.Redis.from_url(url) as client:
        client.ping()
        start.wait(60)
        before = _cpu(client)
        done = [counts.get() for _ in callers]
        used = _cpu(client) - before
    for caller in callers:
        caller.join()
    if None in done:
        raise RuntimeError("a process that calls has failed; see above")
    return {"a_second": sum(done) / seconds, "a_core": sum(done) / used}


def _count(counts: Any, name: str, url: str, start: Any, seconds: float) -> None:
    done = None  # so that nobody waits for a process that failed
    try:
        done = _call(name, url, start, seconds)
    finally:
        counts.put(done)


def _cpu(client: Any) -> float:
    cpu = client.info("cpu")
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


def _work(name: str, url: str) -> Work:
    from tests.benchmarks import limiters

    ours = name == "ours"
    return limiters.check_work(limiters.ONE) if ours else limiters.limits_work(url, limiters.LIMITS_THREE[0])


def _call(name: str, url: str, start: Any, seconds: float) -> int:
    """Make checks for so long; return how many."""
    work, ips, done = _work(name, url), fresh_ips(), 0
    work.run(ips, 1)
    inputs = work.inputs(ips, 1)
    start.wait(60)
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        work.verify(work.answers(inputs))
        done += len(inputs)
    return done
