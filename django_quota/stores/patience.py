"""Patience of long jobs: a late answer or a lost connection does not end a sweep or a roll-up of minutes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from django_quota.core.errors import StoreBusy, StoreConnectionLost, StoreUnavailable

PAUSES = (0.25, 1.0, 2.0)
"""Seconds before a call that was not answered is made again; after the last one, its error ends the job."""

T = TypeVar("T")


class AskedAgain(Protocol):
    """Makes a call to the store that may be made twice, and returns its answer."""

    def __call__(self, call: Callable[[], T], /) -> T:
        """Make the call."""
        ...


def asked_once(call: Callable[[], T], /) -> T:
    """Make a call once: for pages and requests, which do not wait."""
    return call()


class Patience:
    """Makes a call again that was not answered, after each of the `PAUSES`. `stop`: ends the job, also in a pause."""

    def __init__(self, stop: threading.Event | None = None) -> None:
        self._stop = stop or threading.Event()

    def __call__(self, call: Callable[[], T], /) -> T:
        """Make the call."""
        for pause in PAUSES:
            try:
                return call()
            except Exception as error:
                if not _is_silence(error) or self._stop.wait(pause):
                    raise
        return call()


def _is_silence(error: Exception) -> bool:
    """Say whether an error may be over in a moment: its class says no more than that there was no answer."""
    if isinstance(error, StoreUnavailable):
        return type(error) in (StoreUnavailable, StoreBusy, StoreConnectionLost)
    # Only a command that talks to Redis itself comes here: other stores work without this import.
    from redis.exceptions import ConnectionError as RedisConnectionError  # noqa: PLC0415
    from redis.exceptions import TimeoutError as RedisTimeoutError  # noqa: PLC0415

    return isinstance(error, RedisTimeoutError) or type(error) is RedisConnectionError
