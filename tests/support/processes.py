"""Real processes for tests: started by a fork, and never left over."""

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.commands import PATIENCE

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
threads_ran = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def started(work: Callable[[], object]) -> int:
    """Start a process that does its work and ends, with status 0 where it went well; return its id."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return child


def ended(children: list[int]) -> list[int]:
    """Wait until all of these processes have ended; return their statuses."""
    statuses = []
    while children:
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(children[-1], 0)[1]))
        children.pop()
    return statuses


def heard(pipe: int, most: int = 1) -> bytes:
    """Read what a process tells by a pipe; fail where none tells anything, as when all have ended."""
    assert select.select([pipe], [], [], PATIENCE)[0], "no process has told anything"
    return os.read(pipe, most)


@contextmanager
def processes() -> Iterator[list[int]]:
    """Collect the ids of processes; whatever happens, none of them is left over."""
    children: list[int] = []
    try:
        yield children
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        ended(children)


def in_child(work: Any) -> int:
    """Fork, do something in the child, and return its exit status; 99 where it raised."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # where it waits for what is not in it
        status = 99
        try:
            status = int(work())
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
