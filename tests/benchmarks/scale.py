"""How far it goes: checks a second on one Redis, and how a check grows with rules, limits a plan and subjects."""

from __future__ import annotations

import ipaddress
import multiprocessing
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import redis
from django.conf import settings

from tests.benchmarks.measure import EACH, Figures, Server, Work, fresh_ips, time_batch, typical
from tests.benchmarks.processes import SITE_RULE, configure

Point = dict[str, Any]
"""What was measured at one place: `x`, and figures by name."""

# --- checks a second --------------------------------------------------------------------------------------------------

NAMES = ("ours", "limits")
CALLERS = (1, 2, 4, 8)


def checks_a_second(url: str, seconds: float) -> list[Point]:
    """Return what one Redis serves to 1 to 8 processes, and to two that send faster than it answers; in this process.

    `x` is the number of processes, 0 for the last. `a_second` is what all were served. `a_core` is what Redis would
    serve with a core of its own: what it was served, by the CPU time that it took.
    """
    configure(url)
    import tests.benchmarks.limiters  # noqa: F401 — so that no process has to

    calling = [
        {"x": number} | {name: _served(url, partial(_call, name), number, seconds) for name in NAMES}
        for number in CALLERS
    ]
    return [*calling, {"x": 0} | {name: _served(url, partial(_replay, name), 2, seconds) for name in NAMES}]


def _served(url: str, run: Callable[..., int], processes: int, seconds: float) -> Point:
    context = multiprocessing.get_context("fork")  # they have all modules, and no connection yet
    start, counts = context.Barrier(processes + 1), context.SimpleQueue()
    callers = [context.Process(target=_count, args=(run, counts, url, start, seconds)) for _ in range(processes)]
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


def _count(run: Callable[..., int], counts: Any, *given: object) -> None:
    done = None  # so that nobody waits for a process that failed
    try:
        done = run(*given)
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


def _replay(name: str, url: str, start: Any, seconds: float) -> int:
    """Send what checks have sent, over and over and a batch at a time: only so are two cores enough to fill Redis."""
    import hiredis

    work, ips, heard = _work(name, url), fresh_ips(), list[bytes]()
    work.run(ips, 1)
    send, caller = socket.socket.sendall, threading.get_ident()

    def note(one: socket.socket, data: bytes) -> None:
        if threading.get_ident() == caller:  # and not the thread that sends the metrics
            heard.append(bytes(data))
        send(one, data)

    with mock.patch.object(socket.socket, "sendall", note):
        work.run(ips, EACH)
    commands, replies = _reader(hiredis, heard), hiredis.Reader()
    batch, size, done = b"".join(heard), sum(1 for _ in commands), 0
    with socket.create_connection(("127.0.0.1", urlsplit(url).port)) as wire:
        start.wait(60)
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            wire.sendall(batch)
            missing = size
            while missing:
                replies.feed(wire.recv(65536))
                missing -= sum(1 for _ in _read(replies))
            done += EACH * len(ips)
    return done


def _reader(hiredis: Any, heard: list[bytes]) -> Iterator[Any]:
    """Return the commands in what was sent: the protocol writes them as it writes replies."""
    reader = hiredis.Reader()
    for data in heard:
        reader.feed(data)
    return _read(reader)


def _read(reader: Any) -> Iterator[Any]:
    while (reply := reader.gets()) is not False:
        if isinstance(reply, Exception):
            raise reply
        yield reply


# --- how a check grows ------------------------------------------------------------------------------------------------

RULES = (1, 10, 100, 1000)
LIMITS = (1, 2, 3, 5, 10, 15, 20)
SUBJECTS = (1_000, 10_000, 100_000, 1_000_000)

FIRST = int(ipaddress.ip_address("10.0.0.0"))

_COPY = """
for number = tonumber(ARGV[3]), tonumber(ARGV[4]) do
  local ip = {10, math.floor(number / 65536) % 256, math.floor(number / 256) % 256, number % 256}
  redis.call('COPY', KEYS[1], ARGV[1] .. table.concat(ip, '.') .. ARGV[2])
end
"""
"""Copies the key of one subject to many others: a million checks would take minutes."""


def growth(url: str, laps: int, most: int) -> dict[str, list[Point]]:
    """Measure all three in this process, with so many subjects at most."""
    configure(url)
    with Server(url) as server:
        return {
            "rules": by_rules(server, laps),
            "limits": by_limits(url, server, laps),
            "subjects": by_subjects(url, server, laps, most),
        }


def by_rules(server: Server, laps: int) -> list[Point]:
    """A request through the middleware of a site with so many rules, each for a path of its own; one fits."""
    from django.test.utils import override_settings

    from tests.benchmarks import limiters

    found: dict[int, list[Figures]] = {number: [] for number in RULES}
    for _ in range(laps):
        for number, figures in found.items():
            rules = {f"r{i}": {"rate": limiters.ONE, "match": f"/part{i}/"} for i in range(number - 1)}
            with override_settings(QUOTA={**settings.QUOTA, "RULES": {**rules, "site": SITE_RULE}}):
                work = limiters.view_work(limiters.site_view())
                work.run(fresh_ips(), 2)
                figures.append(time_batch(work, server, {}, each=10))
    return [{"x": number, "ours": typical(figures)._asdict()} for number, figures in found.items()]


def by_limits(url: str, server: Server, laps: int) -> list[Point]:
    """One `check()` of so many limits, and as many `hit()` of limits."""
    from tests.benchmarks import limiters

    def works(number: int) -> dict[str, Work]:
        minutes = range(1, number + 1)
        return {
            "ours": limiters.check_work(*(f"1000000/{each}m" for each in minutes)),
            "limits": limiters.limits_work(url, *(f"1000000 per {each} minute" for each in minutes)),
        }

    return _grown({number: works(number) for number in LIMITS}, server, laps)


def by_subjects(url: str, server: Server, laps: int, most: int) -> list[Point]:
    """One check of any subject, where Redis has so many."""
    points: list[Point] = []
    works = {name: _work(name, url) for name in NAMES}
    for number in (each for each in SUBJECTS if each <= most):
        server.client.flushall()
        for work in works.values():
            _fill(server, work, number)
        points += _grown({number: works}, server, laps, among=number)
    return points


def _fill(server: Server, work: Work, number: int) -> None:
    """Write what one check of each subject would leave."""
    work.run(["10.0.0.0"], 1)
    for key in server.client.scan_iter("*10.0.0.0*"):
        before, _, after = key.partition(b"10.0.0.0")
        for first in range(1, number, 10_000):
            server.client.eval(_COPY, 1, key, before, after, first, min(first + 10_000, number) - 1)


def _grown(works: dict[int, dict[str, Work]], server: Server, laps: int, among: int = 0) -> list[Point]:
    """Time each work at each place, for fresh subjects, or for any among so many."""
    arriving = {(x, name): server.arriving(work) for x, of_point in works.items() for name, work in of_point.items()}
    found: dict[tuple[int, str], list[Figures]] = {place: [] for place in arriving}
    for _ in range(laps):
        for (x, name), figures in found.items():
            ips = [str(ipaddress.ip_address(FIRST + random.randrange(among))) for _ in range(400)] if among else ()
            figures.append(time_batch(works[x][name], server, arriving[x, name], ips, each=1 if among else 3))
    return [{"x": x} | {name: typical(found[x, name])._asdict() for name in of_point} for x, of_point in works.items()]
