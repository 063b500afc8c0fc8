"""The measuring itself: what one way to make a check costs the client and Redis. Nothing here knows any limiter."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import redis

from tests.support.stores import server_name

SUBJECTS = 40
"""Subjects that take turns within a batch: no limiter gains from asking for the same subject again and again."""

EACH = 3
"""Checks that each subject of a batch makes. Many short batches meet the same disturbances, a few long ones do not."""

MICRO = 1e6

_addresses = itertools.count(int(ipaddress.ip_address("10.100.100.100")))


def fresh_ip() -> str:
    return str(ipaddress.ip_address(next(_addresses)))


def fresh_ips() -> list[str]:
    return [fresh_ip() for _ in range(SUBJECTS)]


@dataclass(frozen=True, slots=True)
class Work:
    """One way to make a check.

    `make_input(ip)` makes what one call is given (a request, say) before the clock starts; `call(input)` is what is
    timed, a coroutine function where `is_async`; `admitted(answer)` reads its answer, which must be `expected`: a row
    that measures something else is an error. `before(ip)` runs once for each subject, before the clock starts. The
    calls are made in the context of `within()`. Of coroutines, `tasks` run at once.
    """

    make_input: Callable[[str], Any]
    call: Callable[[Any], Any]
    admitted: Callable[[Any], bool]
    expected: bool = True
    before: Callable[[str], object] | None = None
    is_async: bool = False
    tasks: int = 1
    within: Callable[[], AbstractContextManager[object]] = nullcontext

    def admits(self, ip: str) -> bool:
        """Make one check, untimed."""
        return self.admitted(self.call(self.make_input(ip)))

    def warm(self, ips: Sequence[str]) -> None:
        """Make a check for each address, untimed, and verify the answers."""
        if self.before is not None:
            for ip in ips:
                self.before(ip)
        self.verify(self.answers(self.inputs(ips)))

    def inputs(self, ips: Sequence[str], each: int = 1) -> list[Any]:
        """Make the inputs of some checks for each address, in turn."""
        return [self.make_input(ip) for _ in range(each) for ip in ips]

    def answers(self, inputs: Sequence[Any]) -> list[Any]:
        call = self.call
        with self.within():
            if self.is_async:
                return _loop().run_until_complete(_awaited(call, inputs, self.tasks))
            return [call(given) for given in inputs]

    def verify(self, answers: Sequence[Any]) -> None:
        """Raise where an answer is not the one that this row claims to measure."""
        for number, answer in enumerate(answers):
            if self.admitted(answer) != self.expected:
                raise RuntimeError(f"check {number + 1} of {len(answers)} answered {answer!r}")


async def _awaited(call: Callable[[Any], Any], inputs: Sequence[Any], tasks: int) -> list[Any]:
    answers = []
    for first in range(0, len(inputs), tasks):
        answers += await asyncio.gather(*map(call, inputs[first : first + tasks]))
    return answers


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the one event loop of all rows: a site's loop runs all the time, too."""
    return asyncio.new_event_loop()


class Figures(NamedTuple):
    """What a check took: microseconds, and round trips."""

    cpu: float
    """CPU time of the client process, all of its threads."""
    wall: float
    redis: float
    """Time in Redis, by its own `commandstats`: the commands that arrive, with all that a script does."""
    trips: float


@dataclass(slots=True)
class Row:
    """A line of the table, and what was measured of it."""

    id: str
    package: str
    label: str
    work: Work
    fill: Callable[[str], object] | None = None
    """Fills a limit of 1000/m for an address, so that the memory of a subject can be measured."""
    bytes: int | None = None
    arriving: dict[str, float] = field(default_factory=dict)
    batches: list[Figures] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the lower quartiles of the batches: what disturbs a batch only adds to it."""
        figures = [sorted(figure)[len(self.batches) // 4] for figure in zip(*self.batches, strict=True)]
        told = {"id": self.id, "package": self.package, "label": self.label, "bytes": self.bytes}
        return told | Figures(*figures)._asdict()


@dataclass(frozen=True, slots=True)
class Counted:
    """A line of the table of instructions. What it takes is compared with what the rows `over` take together."""

    id: str
    package: str
    label: str
    work: Work
    over: Sequence[str] = ()
    most: float | None = None
    """The most that the ratio may be: one of our goals."""
    is_new: bool = False
    """Whether each call has a subject of its own."""


class Server:
    """What the Redis server itself says about the traffic, its time and the memory."""

    def __init__(self, url: str) -> None:
        self.client: Any = redis.Redis.from_url(url)  # redis-py leaves MONITOR untyped
        self.version = server_name(Path(self.client.info("server")["executable"]))

    def arriving(self, work: Work) -> dict[str, float]:
        """Return how many of each command arrive for a check.

        `commandstats` counts what a script calls twice: within the script and by itself. MONITOR tells them apart.
        """
        ips = fresh_ips()
        work.warm(ips)
        inputs = work.inputs(ips)
        arrived: Counter[str] = Counter()
        with self.client.monitor() as monitor:
            work.answers(inputs)
            self.client.echo("the end")
            for heard in monitor.listen():
                name = str(heard["command"]).partition(" ")[0].lower()
                if name == "echo":
                    break
                arrived[name] += heard["client_type"] != "lua"
        return {name: number / len(inputs) for name, number in arrived.items() if number}

    def bytes_a_subject(self, fill: Callable[[str], object]) -> int:
        """Return the memory that one more filled subject takes: keys that all subjects share are left out."""
        self.client.flushall()
        totals = []
        for _ in range(2):
            fill(fresh_ip())
            keys = self.client.scan_iter(count=1000)
            totals.append(sum(int(self.client.memory_usage(key, samples=0) or 0) for key in keys))
        return totals[1] - totals[0]


def time_rows(rows: Sequence[Row], server: Server, laps: int, each: int = EACH) -> None:
    """Time every row in laps, a batch each.

    Each lap takes the rows in another order: a machine that changes its speed changes it for all rows alike.
    """
    for row in rows:  # scripts get loaded, caches filled, connections opened
        row.arriving = server.arriving(row.work)
    order = list(rows)
    shuffle = random.Random(1).shuffle
    gc.collect()
    gc.freeze()
    for _ in range(laps):
        shuffle(order)
        for row in order:
            row.batches.append(time_batch(row, server, each))
    gc.unfreeze()


def time_batch(row: Row, server: Server, each: int) -> Figures:
    """Time one batch of checks of fresh subjects, from the second check of each on."""
    work, ips = row.work, fresh_ips()
    work.warm(ips)
    inputs = work.inputs(ips, each)
    server.client.config_resetstat()
    wall, cpu = time.perf_counter(), time.process_time()
    answers = work.answers(inputs)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    told = server.client.info("all")
    work.verify(answers)
    took = {name: told.get(f"cmdstat_{name}", {"usec_per_call": 0.0})["usec_per_call"] for name in row.arriving}
    return Figures(
        cpu=cpu / len(inputs) * MICRO,
        wall=wall / len(inputs) * MICRO,
        redis=sum(float(took[name]) * number for name, number in row.arriving.items()),
        # What a client sends before it waits arrives in one read. The question itself is a read, too.
        trips=(told["total_reads_processed"] - 1) / len(inputs),
    )
