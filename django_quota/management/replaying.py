"""The work of `quota_replay` in one process or in several: reading, deciding, searching."""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from io import BufferedReader
from itertools import chain
from multiprocessing import get_all_start_methods, get_context, parent_process
from pathlib import Path
from signal import SIG_DFL, SIGINT, signal
from threading import Thread
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

from django.core.management.base import CommandError

from django_quota.services.replay import LineReader, Refusals, RuleSet, Traffic, decide
from django_quota.services.tightest import Demand, Search, demands

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 — an item

BLOCK = 2_000_000
"""Bytes of a log that are read as one."""

MAX_LINE = 8 * BLOCK
"""A log without a line end in so many bytes is no log."""

SAMPLE = 1_000
"""Lines that the format is found by."""

PARTS = 8
"""Parts of the requests for each process, so that progress shows and no process waits long for another."""

GZIP = b"\x1f\x8b"

Progress = Callable[[str, int | None], AbstractContextManager[Callable[[int], object]]]
"""Shows progress: a label and a total."""


def can_fork() -> bool:
    """Say whether this system can share what was read with other processes."""
    return "fork" in get_all_start_methods()


# --- processes --------------------------------------------------------------------------------------------------------


@contextmanager
def workers(number: int, shared: object) -> Iterator[Callable[[Callable[[Any, Any], T], Iterable[Any]], Iterator[T]]]:
    """Yield a function that does `work(shared, item)` for items, in their order, in this number of processes.

    Raises `CommandError` if a process is killed.
    """
    if number == 1:
        yield lambda work, items: (work(shared, item) for item in items)
        return
    pool = ProcessPoolExecutor(number, get_context("fork"), _begin, (shared,))
    try:
        pool.submit(int).result()  # forks all of them, before a progress bar starts a thread
        yield partial(_in_order, pool, 2 * number)
    except BrokenProcessPool as error:
        raise CommandError("A process was killed, perhaps because memory ran out. Use --processes 1.") from error
    finally:
        pool.shutdown(cancel_futures=True)


_shared: Any = None
"""What the processes of a pool have in common."""


def _begin(shared: object) -> None:
    global _shared  # noqa: PLW0603 — forking copies it, however large it is; arguments of each call would be sent
    _shared = shared
    signal(SIGINT, SIG_DFL)  # Ctrl-C ends all of them at once
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent does, even by SIGKILL. A process of a pool would wait for it for ever."""
    cast("Any", parent_process()).join()
    os._exit(1)


def _do(work: Callable[[Any, I], T], item: I) -> T:
    return work(_shared, item)


def _in_order(pool: ProcessPoolExecutor, ahead: int, work: Callable[[Any, I], T], items: Iterable[I]) -> Iterator[T]:
    """Yield `work` of items in their order. No more than `ahead` are begun, so that a log may be larger than memory."""
    running: deque[Future[T]] = deque()
    for item in items:
        running.append(pool.submit(_do, work, item))
        if len(running) > ahead:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()


# --- reading ----------------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """Whole lines of a log, and how many bytes of its file they took."""

    data: bytes
    size: int


class Source:
    """The bytes of logs one after the other, unpacked."""

    def __init__(self, names: Sequence[str]) -> None:
        for name in names:
            if name != "-" and not Path(name).is_file():
                raise CommandError(f"{name!r} is not a file. Use the path of an access log, or - for stdin.")
        self.size = None if "-" in names else sum(Path(name).stat().st_size for name in names)
        """Their bytes, packed as they are; None if that is not known."""
        blocks = chain.from_iterable(map(_blocks, names))
        first = next(blocks, Block(b"", 0))
        self.sample = [line.decode(errors="surrogateescape") for line in first.data.splitlines()[:SAMPLE]]
        """The first lines."""
        self.blocks = chain([first], blocks)
        """Everything, once."""


def _blocks(name: str) -> Iterator[Block]:
    with ExitStack() as stack:
        if name != "-":
            raw = stack.enter_context(Path(name).open("rb"))
        elif sys.stdin is None:
            raise CommandError("stdin is closed. Give it the log: manage.py quota_replay - < access.log")
        else:
            raw = cast("BufferedReader", sys.stdin.buffer)
        try:
            unpacked: BinaryIO = cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if raw.peek(2)[:2] == GZIP else raw
            rest, read, done = b"", 0, 0
            while chunk := unpacked.read(BLOCK):
                lines, end, rest = (rest + chunk).rpartition(b"\n")
                if len(rest) > MAX_LINE:
                    raise CommandError(f"{name!r} has no line end in {MAX_LINE:,} bytes: it is not an access log.")
                read += len(chunk)
                if end:
                    at = raw.tell() if raw.seekable() else read
                    yield Block(lines + end, at - done)
                    done = at
            yield Block(rest, 0)
        except (EOFError, OSError, zlib.error) as error:
            raise CommandError(f"{name!r} cannot be read to its end: {error}") from error


def read_traffic(
    source: Source, reader: LineReader, sets: Sequence[RuleSet], processes: int, show: Progress
) -> Traffic:
    """Read all of a log."""
    traffic = Traffic(len(sets))
    with workers(processes, reader) as work, show("Reading bytes", source.size) as advance:

        def data() -> Iterator[bytes]:
            for block in source.blocks:
                advance(block.size)
                yield block.data

        for part in work(LineReader.read, data()):
            traffic.add(part)
    traffic.sort()
    return traffic


# --- deciding and searching -------------------------------------------------------------------------------------------


class Results(NamedTuple):
    """What came of one set of rules."""

    rules: RuleSet
    refusals: Refusals
    demands: Mapping[str, Demand]
    tightest: Mapping[str, list[list[int | None]]]
    """For each rule and each of its limits, the tightest count for each of `SHARES`."""


class _Work(NamedTuple):
    traffic: Traffic
    sets: Sequence[RuleSet]
    searches: list[Search]
    parts: int


def replay(traffic: Traffic, sets: Sequence[RuleSet], processes: int, show: Progress) -> list[Results]:
    """Decide all requests under each set of rules, and search for the tightest rates."""
    of_sets = [demands(rules, traffic, index) for index, rules in enumerate(sets)]
    searches = [Search(each, limit) for found in of_sets for each in found.values() for limit in each.limits]
    number = 1 if processes == 1 else processes * PARTS
    todo = [(index, part) for index in range(len(sets)) for part in traffic.parts(index, number)]
    refusals = [Refusals() for _ in sets]
    with workers(processes, _Work(traffic, sets, searches, processes)) as work:
        with show("Deciding requests", sum(len(part) for _, part in todo)) as advance:
            for (index, positions), part in zip(todo, work(_decide, todo), strict=True):
                refusals[index].add(part)
                advance(len(positions))

        def find(at: int) -> list[int | None]:
            def refused(count: int, most: int) -> int:
                return sum(work(_refused, [(at, count, most, part) for part in range(processes)]))

            return searches[at].find(refused)

        found: list[list[int | None]] = []
        with show("Searching rates", len(searches)) as advance:
            for at in range(len(searches)):
                found.append(find(at))
                advance(1)
    counts = iter(found)
    return [
        Results(rules, each, of_set, {name: [next(counts) for _ in demand.limits] for name, demand in of_set.items()})
        for rules, each, of_set in zip(sets, refusals, of_sets, strict=True)
    ]


def _decide(work: _Work, item: tuple[int, Sequence[int]]) -> Refusals:
    index, positions = item
    return decide(work.sets[index], work.traffic, index, positions)


def _refused(work: _Work, item: tuple[int, int, int, int]) -> int:
    at, count, most, part = item
    return work.searches[at].refused(count, most, part, work.parts)
