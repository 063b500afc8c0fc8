"""Real processes for tests: started by a fork, and never left over."""

import faulthandler
import os
import select
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.commands import PATIENCE

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def started(work: Callable[[], object], status: Callable[[Any], int] = lambda _: 0) -> int:
    """Start a process that does its work and ends, with status 0 where it went well, 99 where it raised; return its id.

    `status`: what it ends with instead, by what the work returned.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of threads, also of those of the test runner
        child = os.fork()
    if child == 0:
        # Where it waits for a thread that the fork did not copy, it prints its stacks and ends. By a signal: a watching
        # thread of faulthandler would make its own children wait for that thread.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.register(signal.SIGALRM, file=2, chain=True)
        signal.alarm(int(PATIENCE * 2))
        ends_with = 99
        try:
            ends_with = status(work())
        finally:
            os._exit(ends_with)
    return child


def ended(children: list[int]) -> list[int]:
    """Wait until all of these processes have ended; return their statuses."""
    statuses = []
    while children:
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(children[-1], 0)[1]))
        children.pop()
    return statuses


def heard(pipe: int, most: int = 1) -> bytes:
    """Read what a process writes to a pipe; fail if none writes anything, as when all have ended."""
    assert select.select([pipe], [], [], PATIENCE)[0], "no process has written anything"
    return os.read(pipe, most)


@contextmanager
def processes() -> Iterator[list[int]]:
    """Collect the ids of processes; none of them outlives the test."""
    children: list[int] = []
    try:
        yield children
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        ended(children)


def in_child(work: Callable[[], Any]) -> int:
    """Do something in another process, and return the number that it returned; 99 where it raised."""
    return ended([started(work, int)])[0]
