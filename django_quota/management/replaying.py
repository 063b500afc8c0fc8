"""The work of `quota_replay` in one process or in several: reading, deciding, searching."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from io import BufferedReader
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from signal import SIG_IGN, SIGINT, signal
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

_shared: Any = None
"""What the processes of a pool inherit. It is set before they are forked, so nothing has to be pickled."""


def _start(shared: object) -> None:
    global _shared  # noqa: PLW0603 — of this process
    _shared = shared
    signal(SIGINT, SIG_IGN)  # the parent ends them


def _run(work: Callable[[Any, I], T], item: I) -> T:
    return work(_shared, item)


@contextmanager
def workers(number: int, shared: object) -> Iterator[Callable[[Callable[[Any, Any], T], Iterable[Any]], Iterator[T]]]:
    """Yield a function that does `work(shared, item)` for items, in their order, in this number of processes."""
    if number == 1:
        yield lambda work, items: (work(shared, item) for item in items)
        return
    with get_context("fork").Pool(number, _start, (shared,)) as pool:
        yield lambda work, items: pool.imap(partial(_run, work), items)


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
                stdin = cast("BufferedReader", sys.stdin.buffer)
                raw = stdin if name == "-" else stack.enter_context(Path(name).open("rb"))
                try:
                    yield from _pieces(raw, name)
                except (EOFError, OSError, zlib.error) as error:
                    raise CommandError(f"{name!r} cannot be read to its end: {error}") from error


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
