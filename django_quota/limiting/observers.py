"""Observers get every decision of this process, for metrics and traces.

Signals report a refusal once a second at most, and none that is repeated from memory. An observer gets all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, TypeVar, cast

from django_quota.conf import is_async_callable
from django_quota.core.decisions import Decision
from django_quota.core.errors import ConfigurationError

logger = logging.getLogger("django_quota")

Receiver = TypeVar("Receiver", bound=Callable[..., Any])

receivers: list[tuple[Callable[..., Any], bool]] = []
"""The observers, each with whether it gets the duration of a decision. Without observers, callers neither look at the
clock nor call `notify`, so that costs nothing."""


def observe(receiver: Receiver, *, duration: bool = False) -> Receiver:
    """Call a function with every Decision of this process, right after it is made. It can be used as a decorator.

    The function is called for checks, limited requests, reservations and slots; also for refusals that are repeated
    from memory, and degraded decisions. A request is one decision. The function is not called for `peek`, `refund`,
    `settle`, and what nothing limits. It runs in the thread or event loop of the request, so it must be quick, sync and
    thread-safe. If it raises, the error is logged. A function that is given twice is called once.

    `duration`: pass as a second argument the seconds that the decision took: mostly the call to the store, without the
    time to read the request. None for slots, because a caller may wait for one in a queue.

    Raises `ConfigurationError` if it is not a sync function.
    """
    if not callable(cast("object", receiver)) or is_async_callable(receiver):
        raise ConfigurationError(
            f"observe() got {receiver!r}, which is not a sync function.",
            "Use a function of the decision: def count(decision): ...",
        )
    unobserve(receiver)
    receivers.append((receiver, duration))
    return receiver


def unobserve(receiver: Callable[..., Any]) -> bool:
    """Stop calling a function; return whether it was an observer."""
    before = len(receivers)
    receivers[:] = [each for each in receivers if each[0] != receiver]  # some, such as dataclasses, have no hash
    return len(receivers) < before


def notify(decision: Decision, began: int = 0) -> None:
    """Call all observers. `began`: the `perf_counter_ns()` at which the decision began; 0 if nobody looked."""
    seconds = (perf_counter_ns() - began) / 1e9 if began else None
    for receiver, is_told in tuple(receivers):
        try:
            if is_told:
                receiver(decision, seconds)
            else:
                receiver(decision)
        except Exception:
            logger.exception("An observer of decisions failed: %r", receiver)
