"""The flusher: one thread of a process that sends what requests need not wait for.

A request only counts in memory. While the process serves requests, the thread sends the metrics about once a second,
counts what overrides decided, and says that this worker is alive. Between requests it sleeps. A forked
process starts a thread of its own. At exit, the thread sends what is left.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from queue import SimpleQueue
from typing import Protocol

from django_quota.core.forks import register_fork_aware

logger = logging.getLogger("django_quota")

INTERVAL = 1.0
"""Seconds between two rounds."""

EXIT_TIMEOUT = 0.5
"""Seconds that the end of a process waits for the last round."""


class Job(Protocol):
    """Something to do in each round."""

    purpose: str
    """What the job does, for the log: "send the metrics"."""
    at_exit: bool
    """Whether to do the job at the end of the process, too."""

    def flush(self) -> None:
        """Do what is due. It may raise: the next round tries again."""
        ...


class Flusher:
    """The thread and its jobs. It holds the jobs weakly, so a job ends with its owner."""

    def __init__(self) -> None:
        self._jobs: weakref.WeakSet[Job] = weakref.WeakSet()
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start without a thread, as a forked process does."""
        # A signal handler may check a limit in the middle of `wake`: so the lock and the queue are reentrant.
        self._changing = threading.RLock()
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self.is_asleep = self._wakeups.empty
        """Returns whether the thread needs a `wake`."""
        self._ending = threading.Event()
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
        """Have the thread do a round, at once or a second after the last one. Call it as often as you like."""
        if not self.is_asleep():
            return
        with self._changing:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="django-quota-flusher", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no more threads, or the process is ending
                    return
                self._thread = thread
        self._wakeups.put(None)

    def flush(self, *, at_exit: bool = False) -> bool:
        """Do a round of all jobs in the calling thread; return whether all went well. A problem is logged once."""
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
        """Do the last round and end the thread; wait for it for some seconds at most."""
        self._ending.set()
        self._wakeups.put(None)
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            is_ending = False
            while not is_ending:
                self._wakeups.get()
                is_ending = self._ending.is_set()
                is_done = self.flush(at_exit=is_ending)
                self._ending.wait(INTERVAL)
                if not is_done:
                    self.wake()
        finally:
            if not self._ending.is_set():  # a handler of the log failed, for example
                with self._changing:
                    self._thread = None  # the next `wake` starts another


flusher = Flusher()
"""The flusher of this process."""

atexit.register(flusher.stop)
