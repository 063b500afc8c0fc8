"""The threads of a process for work that requests need not wait for.

There are two, and each starts when it is first needed:

* The flusher calls the store. About once a second while the process serves requests, it sends the metrics, counts
  what was decided without the store, reports that this worker is alive, and deletes expired rows. It also renews
  leases.
* The reader reads overrides from the database.

They are two because the reader may hang with the database. In one thread, leases would then end, and other workers
would consider this one dead. A forked process starts its own threads. At exit, the flusher sends what is left.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Protocol

from django_quota.core import clock
from django_quota.core.forks import register_fork_aware

logger = logging.getLogger("django_quota.background")

FLUSH_INTERVAL = 1.0
"""Seconds between two rounds."""

EXIT_TIMEOUT = 0.5
"""Seconds that the end of a process waits for the last round."""


class Job(Protocol):
    """Work that is done in each round."""

    purpose: str
    """What the job does, for the log line "Cannot ..., and will try again": "send the metrics"."""
    at_exit: bool
    """Whether to do the job at the end of the process, too."""

    def flush(self) -> None:
        """Do what is due. It may raise: the next round tries again."""
        ...


class Background:
    """One thread. It does a round of jobs when it is woken, and calls functions at given moments.

    It holds the jobs weakly, so a job ends with its owner.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        """The name of the thread."""
        self._jobs: weakref.WeakSet[Job] = weakref.WeakSet()
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start without a thread and without plans: in a forked process, those are the parent's."""
        # A signal handler may check a limit in the middle of `wake`: so the lock and the queue are reentrant.
        self._changing = threading.RLock()
        self._signals: SimpleQueue[None] = SimpleQueue()
        """An item ends the sleep of the thread."""
        self._planned: dict[Callable[[], object], float] = {}
        """What to call, and when, by `clock.elapsed`."""
        self.is_woken = False
        """Whether a round is due, or will be when a second has passed since the last one."""
        self._is_ending = False
        self._thread: threading.Thread | None = None
        self._failing: weakref.WeakSet[Job] = weakref.WeakSet()

    def add(self, job: Job) -> None:
        """Do this job in each round from now on."""
        with self._changing:
            self._jobs.add(job)

    def remove(self, *jobs: Job | None) -> None:
        """Stop doing these jobs."""
        with self._changing:
            self._jobs.difference_update(job for job in jobs if job is not None)

    def wake(self) -> None:
        """Make the thread do a round: at once, or a second after the last one. Further calls before that are cheap."""
        if not self.is_woken:
            self.is_woken = True
            if not self._signal():
                self.is_woken = False

    def call_at(self, moment: float, function: Callable[[], object]) -> bool:
        """Call a function in the thread, once, at a moment of `clock.elapsed`; this replaces an earlier plan for it.

        Return whether the thread runs: not if the process can start no thread.
        """
        with self._changing:
            self._planned[function] = moment
        return self._signal()

    def flush(self, *, at_exit: bool = False) -> bool:
        """Do all jobs once in the calling thread; return whether none failed. A repeated failure is logged once."""
        with self._changing:
            jobs = [job for job in self._jobs if job.at_exit or not at_exit]
        failing: weakref.WeakSet[Job] = weakref.WeakSet()
        for job in jobs:
            try:
                job.flush()
            except Exception as error:  # noqa: BLE001 — the other jobs go on, and the next round tries again
                failing.add(job)
                if job not in self._failing:
                    logger.warning("Cannot %s, and will try again: %s", job.purpose, error)
        self._failing = failing
        return not failing

    def stop(self, timeout: float = EXIT_TIMEOUT) -> None:
        """End the thread after a last round; wait for it for `timeout` seconds at most."""
        self._is_ending = True
        self._signals.put(None)
        if self._thread is not None:
            self._thread.join(timeout)

    def _signal(self) -> bool:
        """End the sleep of the thread, and start it if there is none; return whether it runs."""
        with self._changing:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no more threads, or the process is ending
                    return False
                self._thread = thread
        self._signals.put(None)
        return True

    def _run(self) -> None:
        try:
            next_round = 0.0
            while not self._is_ending:
                now = clock.elapsed()
                for function in self._due(now):
                    function()
                if self.is_woken and next_round <= now:
                    self.is_woken = False  # first: what is counted from now on wakes the thread again
                    is_done = self.flush()
                    next_round = clock.elapsed() + FLUSH_INTERVAL
                    self.is_woken = self.is_woken or not is_done
                self._sleep(next_round)
            self.flush(at_exit=True)
        finally:
            if not self._is_ending:  # a handler of the log failed, for example
                with self._changing:
                    self._thread = None  # the next signal starts another
                    self.is_woken = False

    def _due(self, now: float) -> list[Callable[[], object]]:
        """Remove the functions that are due from the plan, and return them."""
        with self._changing:
            planned = self._planned.copy()  # the garbage collector may run here, and plan the end of a stream
            due = [function for function, moment in planned.items() if moment <= now]
            for function in due:
                del self._planned[function]
        return due

    def _sleep(self, next_round: float) -> None:
        with self._changing:
            moments = list(self._planned.values())
        if self.is_woken:
            moments.append(next_round)
        seconds = max(0.0, min(moments) - clock.elapsed()) if moments else None
        try:
            self._signals.get(timeout=seconds)
            while True:  # take all signals: one pass of the loop answers them all
                self._signals.get_nowait()
        except Empty:
            pass


flusher = Background("django-quota-flusher")
"""The thread that calls the store."""

reader = Background("django-quota-overrides")
"""The thread that reads overrides from the database."""

atexit.register(flusher.stop)
