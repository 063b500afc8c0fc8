"""The measuring itself: client time, round trips, SQL queries and Redis memory of one way to make a check.

Nothing here knows any limiter. A way to make a check is a `Work`; a line of the table is a `Row`; what one
limiter does outside the table (racing, filling, its clock) is a `Contender`.
"""

from __future__ import annotations

import gc
import ipaddress
import itertools
import random
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import redis
from django.db import connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

BATCH = 100
"""Checks a subject gets before the next one takes over: as many as a 100/m limit admits, so that a limiter whose
cost grows with the hits that it keeps is measured half full."""

COUNTED = 20
"""Checks over which round trips and queries are counted."""

MICRO = 1e6

_addresses = itertools.count(int(ipaddress.ip_address("10.100.100.100")))


def fresh_ip() -> str:
    """Return an address that no row has used yet."""
    return str(ipaddress.ip_address(next(_addresses)))


@dataclass(frozen=True, slots=True)
class Work:
    """One way to make a check.

    `inputs(ip, count)` makes what the calls are given (requests, say) before the clock starts; `call(input)` is
    what is timed; `admitted(answer)` reads its answer, which must be `expected`: a row that measures something
    else is an error.
    """

    inputs: Callable[[str, int], Sequence[Any]]
    call: Callable[[Any], Any]
    admitted: Callable[[Any], bool]
    expected: bool = True

    def run(self, ip: str, count: int) -> None:
        """Make `count` checks for this address, untimed, and hold the answers to what was expected."""
        self.verify([self.call(given) for given in self.inputs(ip, count)])

    def verify(self, answers: Sequence[Any]) -> None:
        """Raise where an answer is not the one that this row claims to measure."""
        for number, answer in enumerate(answers):
            if self.admitted(answer) != self.expected:
                raise RuntimeError(f"check {number + 1} of {len(answers)} answered {answer!r}")


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
    wall: float = 0.0
    ratio: float = 0.0
    trips: float = 0.0
    queries: float = 0.0
    memory: int | None = None
    batches: list[Batch] = field(default_factory=list, repr=False)
    ratios: list[float] = field(default_factory=list, repr=False)
    """CPU over that of the baseline's batches on both sides, one a batch."""


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
    """What the Redis server itself says about the traffic and the memory."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._client.ping()  # so that connecting is never counted

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @property
    def version(self) -> str:
        """Return the version of the server."""
        return str(self._client.info("server")["redis_version"])

    def reads(self) -> int:
        """Return how often the server has read from a socket, this question included.

        This is how round trips are counted: what a client sends before it waits (one command, or a whole
        pipeline) arrives in one read while it is smaller than the 16 KB that the server reads at once; commands
        that a script calls inside the server never arrive at all. It takes no client's word: whoever talks to
        this server is counted, also from another thread.
        """
        return int(self._client.info("stats")["total_reads_processed"])

    def total_bytes(self) -> int:
        """Return MEMORY USAGE of every key, summed, all elements counted."""
        keys = list(self._client.scan_iter(count=1000))
        return sum(int(self._client.memory_usage(key, samples=0) or 0) for key in keys)

    def empty(self) -> None:
        """Drop every key."""
        self._client.flushall()


def time_rows(rows: Sequence[Row], checks: int) -> Iterator[int]:
    """Time every row in laps, a batch each, and yield the number of each finished lap; the first row is the baseline.

    Each lap takes the rows in another order, and every batch stands between two batches of the baseline: a machine
    that changes its speed while it measures changes a row and what it is compared with alike.
    """
    (baseline, bare), *others = [(row, row.build(row.rates)) for row in rows]
    for work in (bare, *(work for _, work in others)):  # scripts get loaded, caches filled, connections opened
        work.run(fresh_ip(), BATCH)
    gc.collect()
    gc.freeze()
    shuffle = random.Random(1).shuffle
    for lap in range(laps(checks)):
        shuffle(others)
        before = _time_batch(bare)
        for row, work in others:
            batch, after = _time_batch(work), _time_batch(bare)
            row.batches.append(batch)
            row.ratios.append(batch.cpu / ((before.cpu + after.cpu) / 2))
            baseline.batches.append(after)
            before = after
        yield lap + 1
    gc.unfreeze()
    baseline.ratios.append(1.0)
    for row in rows:
        row.cpu = statistics.median(batch.cpu for batch in row.batches)
        row.wall = statistics.median(batch.wall for batch in row.batches)
        row.ratio = statistics.median(row.ratios)


def laps(checks: int) -> int:
    """Return how many batches make up that many checks a row."""
    return max(1, -(-checks // BATCH))


def _time_batch(work: Work) -> Batch:
    inputs = work.inputs(fresh_ip(), BATCH)
    call = work.call
    wall, cpu = time.perf_counter(), time.thread_time()
    answers = [call(given) for given in inputs]
    cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
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

    first, *rest = work.inputs(fresh_ip(), 1 + COUNTED)
    work.verify([work.call(first)])
    with connection.execute_wrapper(count):
        before = server.reads()
        answers = [work.call(given) for given in rest]
        # The second question is a read as well: it is no check's.
        reads = server.reads() - before - 1
    work.verify(answers)
    row.trips, row.queries = reads / COUNTED, queries / COUNTED


def bytes_a_subject(fill: Callable[[str], object], server: Server) -> int:
    """Return the memory that one more filled subject takes.

    The second subject minus the first: keys that all subjects share are charged only by what they grow.
    """
    server.empty()
    fill(fresh_ip())
    one = server.total_bytes()
    fill(fresh_ip())
    return server.total_bytes() - one
