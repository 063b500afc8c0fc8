"""A circuit breaker: callers stop asking a server that does not answer.

Source: the pattern of that name in Michael Nygard's "Release It!". Closed: every caller may ask. Open, after a few
failures in a row: no caller may ask. When the reset timeout is over, one caller may ask: the probe. Its result decides
for all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import count
from types import TracebackType

from django_quota.core.errors import StoreUnavailable
from django_quota.core.forks import register_fork_aware

FAILURES = 3
"""Failures in a row that open the breaker. A single failure may only be a connection that was closed while idle."""

RESET_TIMEOUT = 1.0
"""Seconds that the breaker stays open before a probe."""

PROBE_TIMEOUT = 5.0
"""Seconds after which a probe without a result counts as lost, and another caller may probe."""

CLOSED = 0
"""What `Breaker.acquire` returns while the breaker is closed; other numbers name a probe."""

_numbers = count(1)

_Errors = type[BaseException] | tuple[type[BaseException], ...]


class Breaker:
    """The breaker of one server, shared by all threads and event loops of a process.

    Ask the server within a `Call`.

    `failures`: in a row, at least 1. `reset_timeout`: seconds. `clock`: returns seconds and never goes back.
    """

    def __init__(
        self,
        failures: int = FAILURES,
        reset_timeout: float = RESET_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threshold = failures
        self._reset_timeout = reset_timeout
        self._clock = clock
        self._failed = 0
        self._probe_from = 0.0
        self._probe_expires = 0.0
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start over in a forked process: the thread that holds the lock or the probe is not in it."""
        self._lock = threading.Lock()
        self._probe = CLOSED
        """The running probe; `CLOSED` if there is none."""

    @property
    def is_open(self) -> bool:
        """Whether only a probe may ask."""
        return self._failed >= self._threshold

    @property
    def has_failed(self) -> bool:
        """Whether the server has not answered since it failed."""
        return self._failed > 0

    def acquire(self) -> int | None:
        """Return `CLOSED` or the number of a probe if you may ask; None if you may not."""
        if self._failed < self._threshold:
            return CLOSED
        with self._lock:
            if self._failed < self._threshold:  # another thread has closed it: nobody would end this probe
                return CLOSED
            if self._is_waiting():
                return None
            self._probe = next(_numbers)
            self._probe_expires = self._clock() + PROBE_TIMEOUT
            return self._probe

    def is_refusing(self) -> bool:
        """Say whether `acquire` would return None now."""
        return self.is_open and self._is_waiting()

    def _is_waiting(self) -> bool:
        now = self._clock()
        return now < self._probe_from or (self._probe != CLOSED and now < self._probe_expires)

    def succeeded(self) -> None:
        """Note an answer of the server: the breaker closes."""
        if self._failed:
            with self._lock:
                self._failed = 0
                self._probe = CLOSED

    def failed(self, probe: int = CLOSED) -> None:
        """Note that the server did not answer. `probe`: what `acquire` returned."""
        with self._lock:
            self._end(probe)
            self._failed += 1
            if self._failed >= self._threshold:
                self._probe_from = self._clock() + self._reset_timeout

    def tell(self, error: BaseException, probe: int) -> None:
        """Note what a failure says about a Redis. `probe`: what `acquire` returned."""
        # The database store has a breaker, too, and needs no package of Redis.
        from django_quota.stores.redis.errors import is_answer, tells_nothing  # noqa: PLC0415

        if tells_nothing(error):
            self.release(probe)
        elif is_answer(error):
            self.succeeded()
        else:
            self.failed(probe)

    def release(self, probe: int) -> None:
        """End a probe that learned nothing, because its caller was cancelled, for example. Another may start now."""
        if probe != CLOSED:
            with self._lock:
                self._end(probe)

    def _end(self, probe: int) -> None:
        if probe == self._probe:  # not one that counts as lost
            self._probe = CLOSED


class Call:
    """The context of a call to a server. It raises `StoreUnavailable` while the breaker refuses callers.

    `name`: the server's name, for the error. `only`: the errors that tell something about the server.
    """

    __slots__ = ("_breaker", "_name", "_only", "_probe")

    def __init__(self, breaker: Breaker, name: str = "it", only: _Errors = BaseException) -> None:
        self._breaker, self._name, self._only, self._probe = breaker, name, only, CLOSED

    @property
    def is_probe(self) -> bool:
        """Whether its result decides for all."""
        return self._probe != CLOSED

    def is_refused(self) -> bool:
        """Say whether the breaker has opened since the call began."""
        return self._probe == CLOSED and self._breaker.is_refusing()

    def __enter__(self) -> Call:
        probe = self._breaker.acquire()
        if probe is None:
            what = "has not answered several times in a row, and is asked again in a moment"
            raise StoreUnavailable(f"{self._name} {what}")
        self._probe = probe
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._breaker.succeeded()
        elif isinstance(error, self._only):
            self._breaker.tell(error, self._probe)
        else:
            self._breaker.release(self._probe)
