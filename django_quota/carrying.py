"""The thread that carries tallies to the store where no call comes to take them along; and the end of the process.

It sleeps while nothing is counted. A forked process begins with none, and with empty tallies. It must not know what is
counted.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import Protocol

LEFT_FOR = 2.0
"""Seconds that a tally waits for a call to go along with, before the thread carries it."""

AT_THE_END = 0.5
"""Seconds that the end of a process waits for its last tally."""


class Carried(Protocol):
    """What is carried."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to carry."""
        ...

    def flush_what_is_left(self, *, at_once: bool = False) -> None:
        """Tell the store what has waited for long enough, or all. It raises nothing."""
        ...

    def forget(self) -> None:
        """Begin anew, in a forked process."""
        ...


class _Thread:
    """The thread and what it waits for, of this process."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.starting = threading.Lock()
        self.counted = threading.Event()
        self.ending = threading.Event()

    def start(self) -> None:
        with self.starting:
            if self.thread is None and not self.ending.is_set():
                thread = threading.Thread(target=self.rounds, name="django-quota-tallies", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the process is ending, or may not have threads: calls take it along
                    return
                self.thread = thread

    def rounds(self) -> None:
        is_ending = False
        while not is_ending:
            self.counted.wait()
            is_ending = self.ending.wait(LEFT_FOR / 2)
            self.counted.clear()
            for tally in list(_tallies):
                tally.flush_what_is_left(at_once=is_ending)
                if not tally.is_empty:
                    self.counted.set()

    def end(self) -> None:
        self.ending.set()
        self.counted.set()
        if self.thread is not None and not all(tally.is_empty for tally in list(_tallies)):
            self.thread.join(AT_THE_END)


_tallies: weakref.WeakSet[Carried] = weakref.WeakSet()
_thread = _Thread()


def add(tally: Carried) -> None:
    """Carry this one for as long as there is one."""
    _tallies.add(tally)


def wake() -> None:
    """Say that something has been counted; starts the thread where there is none."""
    _thread.counted.set()
    if _thread.thread is None:
        _thread.start()


def _after_fork() -> None:
    global _thread  # noqa: PLW0603 — locks that other threads held at the fork would never come free
    _thread = _Thread()
    for tally in list(_tallies):
        tally.forget()


def _at_the_end() -> None:
    _thread.end()


atexit.register(_at_the_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
