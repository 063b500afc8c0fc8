"""The measuring itself: what one way to make a check costs the client and Redis.

Nothing here knows any limiter. A way to make a check is a `Work`; a line of the table is a `Row`; what one
limiter does outside the table (racing, filling, its clock) is a `Contender`.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import itertools
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import redis
from django.db import connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

SUBJECTS = 40
"""Subjects that take turns within a batch: no limiter gains from asking for the same subject again and again."""

EACH = 25
"""Checks that each subject of a batch makes."""

BATCH = SUBJECTS * EACH

COUNTED = 20
"""Checks over which round trips, queries and commands are counted."""

MICRO = 1e6

_addresses = itertools.count(int(ipaddress.ip_address("10.100.100.100")))


def fresh_ip() -> str:
    """Return an address that no row has used yet."""
    return str(ipaddress.ip_address(next(_addresses)))


@dataclass(frozen=True, slots=True)
class Work:
    """One way to make a check.

    `make_input(ip)` makes what one call is given (a request, say) before the clock starts; `call(input)` is what is
    timed, a coroutine function where `is_async`; `admitted(answer)` reads its answer, which must be `expected`: a row
    that measures something else is an error. `before(ip)` runs once for each subject, before the clock starts.
    """

    make_input: Callable[[str], Any]
    call: Callable[[Any], Any]
    admitted: Callable[[Any], bool]
    expected: bool = True
    before: Callable[[str], object] | None = None
    is_async: bool = False

    def run(self, ips: Sequence[str], count: int) -> None:
        """Make `count` checks for each address, in turn, untimed, and verify the answers."""
        self.verify(self.answers(self.inputs(ips, count)))

    def inputs(self, ips: Sequence[str], count: int) -> list[Any]:
        """Make the inputs of `count` checks for each address, in turn."""
        for ip in ips if self.before else ():
            self.before(ip)  # type: ignore[misc]
        return [self.make_input(ip) for _ in range(count) for ip in ips]

    def answers(self, inputs: Sequence[Any]) -> list[Any]:
        """Make the calls."""
        call = self.call
        if self.is_async:
            return _loop().run_until_complete(_awaited(call, inputs))
        return [call(given) for given in inputs]

    def verify(self, answers: Sequence[Any]) -> None:
        """Raise where an answer is not the one that this row claims to measure."""
        for number, answer in enumerate(answers):
            if self.admitted(answer) != self.expected:
                raise RuntimeError(f"check {number + 1} of {len(answers)} answered {answer!r}")


async def _awaited(call: Callable[[Any], Any], inputs: Sequence[Any]) -> list[Any]:
    return [await call(given) for given in inputs]


_loops: list[asyncio.AbstractEventLoop] = []


def _loop() -> asyncio.AbstractEventLoop:
    """Return the one event loop of all rows: a site's loop runs all the time, too."""
    if not _loops:
        _loops.append(asyncio.new_event_loop())
    return _loops[0]


class Batch(NamedTuple):
    """What one batch took, in microseconds a check."""

    cpu: float
    wall: float


@dataclass(slots=True)
class Row:
    """A line of the table, and what was measured of it (in microseconds a check)."""

    package: str
    label: str
    rates: tuple[str, ...]
    build: Callable[[tuple[str, ...]], Work]
    fills: bool = False
    """Whether to measure the memory of a filled 100/m limit made this way."""
    cpu: float = 0.0
    """CPU time of the client process, all of its threads."""
    wall: float = 0.0
    redis_cpu: float = 0.0
    """CPU time in Redis, by its own `commandstats`."""
    trips: float = 0.0
    queries: float = 0.0
    memory: int | None = None
    batches: list[Batch] = field(default_factory=list, repr=False)

    def figures(self) -> dict[str, Any]:
        """Return what was measured, as JSON takes it."""
        names = ("package", "label", "rates", "cpu", "wall", "redis_cpu", "trips", "queries", "memory")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class Contender:
    """One limiter, for what is measured outside the table.

    `check(rate)` returns a function that takes an address and says whether it was admitted. `at(seconds)` puts
    its clock to a moment within the block. `fill(rate, ip)` makes as many hits as the rate admits, in the way
    that leaves the most behind in Redis; where that is one by one, `fills_up_to` keeps the run short.
    `clock_windows`: its windows start by the clock, so a race must be held inside one.
    """

    package: str
    check: Callable[[str], Callable[[str], bool]]
    at: Callable[[float], AbstractContextManager[object]]
    fill: Callable[[str, str], None]
    fills_up_to: int = 1000
    clock_windows: bool = False


class Server:
    """What the Redis server itself says about the traffic, its CPU time and the memory."""

    def __init__(self, url: str) -> None:
        self.client: Any = redis.Redis.from_url(url)  # redis-py leaves MONITOR untyped
        self.client.ping()  # so that connecting is never counted

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    @property
    def version(self) -> str:
        """Return the version of the server."""
        return str(self.client.info("server")["redis_version"])

    def reads(self) -> int:
        """Return how often the server has read from a socket, this question included.

        This is how round trips are counted: what a client sends before it waits (one command, or a whole
        pipeline) arrives in one read while it is smaller than the 16 KB that the server reads at once; commands
        that a script calls inside the server never arrive at all. It takes no client's word: whoever talks to
        this server is counted, also from another thread.
        """
        return int(self.client.info("stats")["total_reads_processed"])

    def microseconds_a_call(self) -> dict[str, float]:
        """Return what a call of each command has taken since the figures were reset."""
        stats = self.client.info("commandstats")
        return {name.removeprefix("cmdstat_"): float(told["usec_per_call"]) for name, told in stats.items()}

    def total_bytes(self) -> int:
        """Return MEMORY USAGE of every key, summed, all elements counted."""
        keys = list(self.client.scan_iter(count=1000))
        return sum(int(self.client.memory_usage(key, samples=0) or 0) for key in keys)

    def empty(self) -> None:
        """Drop every key."""
        self.client.flushall()


def time_rows(rows: Sequence[Row], laps: int) -> Iterator[int]:
    """Time every row in laps, a batch each, and yield the number of each finished lap.

    Each lap takes the rows in another order: a machine that changes its speed changes it for all rows alike.
    """
    works = [(row, row.build(row.rates)) for row in rows]
    for _, work in works:  # scripts get loaded, caches filled, connections opened
        work.run([fresh_ip() for _ in range(SUBJECTS)], 2)
    gc.collect()
    gc.freeze()
    shuffle = random.Random(1).shuffle
    for lap in range(laps):
        shuffle(works)
        for row, work in works:
            row.batches.append(_time_batch(work))
        yield lap + 1
    gc.unfreeze()
    for row in rows:
        row.cpu = statistics.median(batch.cpu for batch in row.batches)
        row.wall = statistics.median(batch.wall for batch in row.batches)


def _time_batch(work: Work) -> Batch:
    inputs = work.inputs([fresh_ip() for _ in range(SUBJECTS)], EACH)
    wall, cpu = time.perf_counter(), time.process_time()
    answers = work.answers(inputs)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    work.verify(answers)
    return Batch(cpu / BATCH * MICRO, wall / BATCH * MICRO)


def count_trips(row: Row, server: Server) -> None:
    """Count the round trips and SQL queries of a check, from a subject's second check on."""
    work = row.build(row.rates)
    queries = 0

    def count(execute: Any, *args: Any) -> Any:
        nonlocal queries
        queries += 1
        return execute(*args)

    ip = fresh_ip()
    work.run([ip], 1)
    inputs = [work.make_input(ip) for _ in range(COUNTED)]
    with connection.execute_wrapper(count):
        before = server.reads()
        answers = work.answers(inputs)
        # The second question is a read as well: it is no check's.
        reads = server.reads() - before - 1
    work.verify(answers)
    row.trips, row.queries = reads / COUNTED, queries / COUNTED


def measure_redis_cpu(row: Row, server: Server) -> None:
    """Measure the CPU time that a check takes in Redis: the commands that it sends, at what each takes on average.

    `commandstats` counts what a script calls once with the script and once by itself. MONITOR tells them apart: so
    only what arrives from the client is added up.
    """
    work = row.build(row.rates)
    ips = [fresh_ip() for _ in range(SUBJECTS)]
    work.run(ips, 1)
    inputs = [work.make_input(ip) for ip in ips[:COUNTED]]
    arrived: Counter[str] = Counter()
    with server.client.monitor() as monitor:
        answers = work.answers(inputs)
        server.client.echo("the end")
        for heard in monitor.listen():
            name = str(heard["command"]).partition(" ")[0].lower()
            if name == "echo":
                break
            arrived[name] += heard["client_type"] != "lua"
    work.verify(answers)
    inputs = [work.make_input(ip) for _ in range(EACH - 1) for ip in ips]
    server.client.config_resetstat()
    answers = work.answers(inputs)
    took = server.microseconds_a_call()
    work.verify(answers)
    row.redis_cpu = sum(took[name] * number for name, number in arrived.items() if name in took) / COUNTED


def bytes_a_subject(fill: Callable[[str], object], server: Server) -> int:
    """Return the memory that one more filled subject takes.

    The second subject minus the first: keys that all subjects share are charged only by what they grow.
    """
    server.empty()
    fill(fresh_ip())
    one = server.total_bytes()
    fill(fresh_ip())
    return server.total_bytes() - one
