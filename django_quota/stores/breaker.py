"""A circuit breaker: callers stop asking a server that does not answer.

Source: the pattern of that name in Michael Nygard's "Release It!". Closed: every caller may ask. Open, after a few
failures in a row: no caller may ask. When the reset timeout is over, one caller may ask: the probe. Its result decides
for all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from django_quota.core.errors import StoreUnavailable
from django_quota.core.forks import register_fork_aware

FAILURES = 3
"""Failures in a row that open the breaker. A single failure may only be a connection that was closed while idle."""

RESET_TIMEOUT = 1.0
"""Seconds that the breaker stays open before a probe."""

PROBE_TIMEOUT = 5.0
"""Seconds after which a probe without a result counts as lost, and another caller may probe."""


class Breaker:
    """The breaker of one server, shared by all threads and event loops of a process.

    Ask the server within a `GuardedCall`, or between `enter` and `leave`.

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
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start over in a forked process: the thread that holds the lock or the probe is not in it."""
        self._lock = threading.Lock()
        self._probe_from = 0.0
        """When the next caller may ask, while the breaker is open (seconds of the clock)."""

    @property
    def is_open(self) -> bool:
        """Whether only a probe may ask."""
        return self._failed >= self._threshold

    @property
    def has_failed(self) -> bool:
        """Whether the server has not answered since it failed."""
        return self._failed > 0

    def acquire(self) -> bool | None:
        """Return whether you are the probe if you may ask; None if you may not."""
        if self._failed < self._threshold:
            return False
        with self._lock:
            now = self._clock()
            if now < self._probe_from:
                return None
            self._probe_from = now + PROBE_TIMEOUT
            return True

    def enter(self, name: str = "it") -> bool:
        """Begin a call to the server, and return whether it is the probe. `leave` ends it.

        Raises `StoreUnavailable` while callers are refused. `name`: the server's.
        """
        is_probe = self.acquire()
        if is_probe is None:
            raise refused_call(name)
        return is_probe

    def leave(self, answered: bool | None, *, is_probe: bool) -> None:
        """End a call: whether the server has answered; None: the call does not show it."""
        if answered:
            self.succeeded()
        elif answered is not None:
            self.failed()
        elif is_probe:
            self.release()

    def is_refusing(self) -> bool:
        """Say whether `acquire` would return None now."""
        return self.is_open and self._clock() < self._probe_from

    def succeeded(self) -> None:
        """Note an answer of the server: the breaker closes."""
        if self._failed:
            with self._lock:
                self._failed = 0
                self._probe_from = 0.0

    def failed(self) -> None:
        """Note that the server did not answer."""
        with self._lock:
            self._failed += 1
            if self._failed >= self._threshold:
                self._probe_from = self._clock() + self._reset_timeout

    def release(self) -> None:
        """End a probe that learned nothing, because its caller was cancelled, for example. Another may start now."""
        with self._lock:
            self._probe_from = 0.0


def refused_call(name: str = "it") -> StoreUnavailable:
    """Return the error for a caller that the breaker refuses. `name`: the server's."""
    return StoreUnavailable(f"{name} has failed several times in a row, and is asked again in a moment")


class GuardedCall:
    """The context of a call to a server. It raises `StoreUnavailable` while the breaker refuses callers.

    `answered`: says whether an error is an answer of the server; None: it does not show that. `name`: the server's.
    """

    __slots__ = ("_answered", "_breaker", "_name", "is_probe")

    def __init__(self, breaker: Breaker, answered: Callable[[BaseException], bool | None], name: str = "it") -> None:
        self._breaker, self._answered, self._name = breaker, answered, name
        self.is_probe = False
        """Whether its result decides for all."""

    def __enter__(self) -> GuardedCall:
        self.is_probe = self._breaker.enter(self._name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._breaker.leave(error is None or self._answered(error), is_probe=self.is_probe)
