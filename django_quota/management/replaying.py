"""The work of `quota_replay` in one process or in several: reading, deciding, searching."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from io import BufferedReader
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from signal import SIG_DFL, SIG_IGN, SIGINT, SIGTERM, default_int_handler, signal
from threading import current_thread, main_thread
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

from django.core.management.base import CommandError

from django_quota.services.replay import Block, LineReader, RuleSet, Share, Traffic, decide
from django_quota.services.tightest import Demand, Found, Search, demands

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 — an item

BLOCK = 2_000_000
"""Bytes of a log that are read as one."""

MAX_LINE = 8 * BLOCK
"""A log without a line end in so many bytes is no log."""

SAMPLE = 1_000
"""Lines that the format is found by."""

SHARES = 8
"""Shares of the requests for each process, so that progress shows and no process waits long for another."""

GZIP = b"\x1f\x8b"

Progress = Callable[[str, int | None], AbstractContextManager[Callable[[int], object]]]
"""Shows progress: a label and a total."""


def can_fork() -> bool:
    """Say whether this system can share what was read with other processes."""
    return "fork" in get_all_start_methods()


# --- processes --------------------------------------------------------------------------------------------------------


class _Worker(NamedTuple):
    process: BaseProcess
    pipe: Connection
    """Takes one piece of work at a time, and answers it."""


@contextmanager
def workers(number: int, shared: object) -> Iterator[Callable[[Callable[[Any, Any], T], Iterable[Any]], Iterator[T]]]:
    """Yield a function that does `work(shared, item)` for items, in their order, in this number of processes.

    A `multiprocessing.Pool` would wait for ever for what a killed process had taken, and a `ProcessPoolExecutor` would
    leave its processes behind when this one is killed. Here each process has a pipe of its own, so that both ends see
    the other one go.
    """
    if number == 1:
        yield lambda work, items: (work(shared, item) for item in items)
        return
    context = get_context("fork")
    started: list[_Worker] = []
    is_main = current_thread() is main_thread()  # only the main thread may handle signals
    before = signal(SIGTERM, default_int_handler) if is_main else None
    try:
        for _ in range(number):
            here, there = context.Pipe()
            ours = [each.pipe for each in started]
            process = context.Process(target=_serve, args=(there, shared, [here, *ours]), daemon=True)
            process.start()
            there.close()
            started.append(_Worker(process, here))
        yield partial(_do_in, {worker.pipe: worker for worker in started}, set())
    finally:
        for worker in started:
            worker.process.terminate()
        for worker in started:
            worker.process.join()
            worker.pipe.close()
        if is_main:
            signal(SIGTERM, before)


def _serve(pipe: Connection, shared: object, of_parent: Sequence[Connection]) -> None:
    """Do the work of one process, until its parent is gone."""
    signal(SIGINT, SIG_IGN)  # the parent ends it
    signal(SIGTERM, SIG_DFL)
    for each in of_parent:
        each.close()
    with suppress(EOFError, OSError):
        while True:
            work, item = pipe.recv()
            try:
                answer, problem = work(shared, item), None
            except Exception as error:  # noqa: BLE001 — raised by the parent
                answer, problem = None, error
            pipe.send((answer, problem))


def _do_in(
    started: Mapping[Connection, _Worker], busy: set[Connection], work: Callable[[Any, I], T], items: Iterable[I]
) -> Iterator[T]:
    """Yield `work` of items in their order. `busy`: the processes that do something."""
    while busy:  # what an earlier caller gave up
        for pipe in _answering(busy):
            _talk(started[pipe], pipe.recv)
            busy.remove(pipe)
    todo = enumerate(items)
    taken: dict[Connection, int] = {}
    done: dict[int, T] = {}
    at = 0
    while True:
        for pipe in started.keys() - busy if len(done) <= len(started) else ():
            number, item = next(todo, (-1, None))
            if number >= 0:
                taken[pipe] = number
                busy.add(pipe)
                _talk(started[pipe], partial(pipe.send, (work, item)))
        if not busy:
            return
        for pipe in _answering(busy):
            answer, error = _talk(started[pipe], pipe.recv)
            busy.remove(pipe)
            if error is not None:
                raise error
            done[taken[pipe]] = answer
        while at in done:
            yield done.pop(at)
            at += 1


def _answering(busy: set[Connection]) -> list[Connection]:
    return cast("list[Connection]", wait(busy))


def _talk(worker: _Worker, talk: Callable[[], T]) -> T:
    """Send to a process or receive from it. Raises `CommandError` if it is gone."""
    try:
        return talk()
    except (EOFError, OSError) as error:
        worker.process.join()
        raise CommandError(
            f"A process was killed (exit code {worker.process.exitcode}), perhaps because memory ran out. "
            "Use --processes 1."
        ) from error


# --- reading ----------------------------------------------------------------------------------------------------------


class Source:
    """The bytes of logs one after the other, unpacked, in blocks of whole lines."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        for name in names:
            if name != "-" and not Path(name).is_file():
                raise CommandError(f"{name!r} is not a file. Use the path of an access log, or - for stdin.")
        sizes = [Path(name).stat().st_size for name in names if name != "-"]
        self.size = sum(sizes) if len(sizes) == len(names) else None
        """Their bytes, packed as they are; None if that is not known."""
        self._blocks = self._read()
        first = next(self._blocks, None)
        self._first = () if first is None else (first,)

    @property
    def sample(self) -> list[str]:
        """The first lines."""
        lines = self._first[0].data.splitlines()[:SAMPLE] if self._first else []
        return [line.decode(errors="surrogateescape") for line in lines]

    def blocks(self) -> Iterator[Piece]:
        """Yield everything once."""
        yield from self._first
        self._first = ()
        yield from self._blocks

    def _read(self) -> Iterator[Piece]:
        for name in self.names:
            with ExitStack() as stack:
                raw = _stdin() if name == "-" else stack.enter_context(Path(name).open("rb"))
                try:
                    yield from _pieces(raw, name)
                except (EOFError, OSError, zlib.error) as error:
                    raise CommandError(f"{name!r} cannot be read to its end: {error}") from error


def _stdin() -> BufferedReader:
    if sys.stdin is None:
        raise CommandError("stdin is closed. Give it the log: manage.py quota_replay - < access.log")
    return cast("BufferedReader", sys.stdin.buffer)


class Piece(NamedTuple):
    """Whole lines of a log, and how many bytes of its file they took."""

    data: bytes
    size: int


def _pieces(raw: BufferedReader, name: str) -> Iterator[Piece]:
    unpacked: BinaryIO = cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if raw.peek(2)[:2] == GZIP else raw
    is_file = raw.seekable()
    rest, done, read = b"", 0, 0
    while chunk := unpacked.read(BLOCK):
        read += len(chunk)
        data = rest + chunk
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        if len(rest) > MAX_LINE:
            raise CommandError(f"{name!r} has no line end in {MAX_LINE:,} bytes: it is not an access log.")
        at = raw.tell() if is_file else read
        yield Piece(data[:end], at - done)
        done = at
    yield Piece(rest, 0)


def read_traffic(
    source: Source, reader: LineReader, sets: Sequence[RuleSet], processes: int, show: Progress
) -> Traffic:
    """Read all of a log."""
    traffic = Traffic(sets)
    sizes: deque[int] = deque()

    def data() -> Iterator[bytes]:
        for piece in source.blocks():
            sizes.append(piece.size)
            yield piece.data

    # Processes are forked before the progress bar starts a thread.
    with workers(processes, reader) as work, show("Reading bytes", source.size) as advance:
        for block in work(_read, data()):
            traffic.add(block)
            advance(sizes.popleft())
    traffic.finish()
    return traffic


def _read(reader: LineReader, data: bytes) -> Block:
    return reader.read(data)


# --- deciding and searching -------------------------------------------------------------------------------------------


class Results(NamedTuple):
    """What came of one set of rules."""

    share: Share
    """What was refused."""
    demands: Mapping[str, Demand]
    rates: Mapping[str, list[list[Found]]]
    """The tightest rates: for each rule, for each of its limits."""


class _Work(NamedTuple):
    traffic: Traffic
    searches: list[Search]
    parts: int


def replay(traffic: Traffic, processes: int, show: Progress) -> list[Results]:
    """Decide all requests under each set of rules, and search for the tightest rates."""
    of_sets = [demands(traffic, index) for index in range(len(traffic.sets))]
    searches = [Search(each, limit) for found in of_sets for each in found.values() for limit in each.limits]
    number = 1 if processes == 1 else processes * SHARES
    todo = [(index, share) for index in range(len(of_sets)) for share in traffic.shares(index, number)]
    with workers(processes, _Work(traffic, searches, processes)) as work:
        shares = [Share() for _ in of_sets]
        with show("Deciding requests", sum(len(share) for _, share in todo)) as advance:
            for (index, positions), share in zip(todo, work(_decide, todo), strict=True):
                shares[index].add(share)
                advance(len(positions))

        def find(at: int) -> list[Found]:
            def refused(count: int, most: int) -> int:
                return sum(work(_refused, [(at, count, most, part) for part in range(processes)]))

            return searches[at].find(refused)

        found: list[list[Found]] = []
        with show("Searching rates", len(searches)) as advance:
            for at in range(len(searches)):
                found.append(find(at))
                advance(1)
    results, remaining = [], iter(found)
    for share, of_set in zip(shares, of_sets, strict=True):
        rates = {name: [next(remaining) for _ in each.limits] for name, each in of_set.items()}
        results.append(Results(share, of_set, rates))
    return results


def _decide(work: _Work, item: tuple[int, Sequence[int]]) -> Share:
    index, positions = item
    return decide(work.traffic, index, positions)


def _refused(work: _Work, item: tuple[int, int, int, int]) -> int:
    at, count, most, part = item
    return work.searches[at].refused(count, most, part, work.parts)
