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
    """What it does, for the log: "send the metrics"."""
    at_exit: bool
    """Whether it is done at the end of the process too."""

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
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing: weakref.WeakSet[Job] = weakref.WeakSet()

    def add(self, job: Job) -> None:
        """Do this job in each round from now on."""
        with self._changing:
            self._jobs.add(job)

    def remove(self, *jobs: Job | None) -> None:
        """Do these jobs no longer."""
        with self._changing:
            for job in jobs:
                if job is not None:
                    self._jobs.discard(job)

    def wake(self) -> None:
        """Have the thread do a round, at once or a second after the last one. Call it as often as you like."""
        if self._wakeups.empty() and (self._thread is not None or self._start()):
            self._wakeups.put(None)

    def flush(self, *, at_exit: bool = False) -> bool:
        """Do a round of all jobs in the calling thread; return whether all went well. A problem is logged once."""
        is_done = True
        with self._changing:
            jobs = list(self._jobs)
        for job in jobs:
            if at_exit and not job.at_exit:
                continue
            try:
                job.flush()
            except Exception as error:  # noqa: BLE001 — the other jobs go on, and the next round tries again
                is_done = False
                if job not in self._failing:
                    self._failing.add(job)
                    logger.warning("Cannot %s, and will try again: %s", job.purpose, error)
            else:
                self._failing.discard(job)
        return is_done

    def stop(self, timeout: float = EXIT_TIMEOUT) -> None:
        """Do the last round and end the thread; wait for it for some seconds at most."""
        self._ending.set()
        self._wakeups.put(None)
        thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _start(self) -> bool:
        with self._changing:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="django-quota-flusher", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no more threads, or the process is ending
                    return False
                self._thread = thread
            return True

    def _run(self) -> None:
        try:
            self._do_rounds()
        finally:
            if not self._ending.is_set():  # a handler of the log failed, for example
                with self._changing:
                    self._thread = None  # the next `wake` starts another

    def _do_rounds(self) -> None:
        is_ending = False
        while not is_ending:
            self._wakeups.get()
            is_ending = self._ending.is_set()
            is_done = self.flush(at_exit=is_ending)
            self._ending.wait(INTERVAL)
            if not is_done:
                self.wake()


flusher = Flusher()
"""The flusher of this process."""

atexit.register(flusher.stop)
