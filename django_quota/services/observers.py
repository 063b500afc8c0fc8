"""Observers hear every decision of this process, for metrics and traces.

Signals report a refusal once a second at most, and none that is repeated from memory. An observer hears all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

from django_quota.core.decisions import Decision
from django_quota.core.errors import ConfigurationError
from django_quota.services.subjects import is_async_callable

logger = logging.getLogger("django_quota")

Receiver = TypeVar("Receiver", bound=Callable[[Decision], Any])

receivers: list[Callable[[Decision], Any]] = []
"""The observers. Callers look whether there are any before they call `notify`, so that none cost nothing."""


def observe(receiver: Receiver) -> Receiver:
    """Call a function with every Decision of this process, right after it is made. It can be used as a decorator.

    It hears checks, limited requests, reservations and slots; also refusals that are repeated from memory, and degraded
    decisions. A request is one decision. It does not hear `peek`, `refund`, `settle`, and what nothing limits. The
    function runs in the thread or event loop of the request, so it must be quick, sync and thread-safe. If it raises,
    the error is logged. A function that is given twice is called once.

    Raises `ConfigurationError` if it is not a sync function.
    """
    if not callable(cast("object", receiver)) or is_async_callable(receiver):
        raise ConfigurationError(
            f"observe() got {receiver!r}, which is not a sync function.",
            "Use a function of the decision: def count(decision): ...",
        )
    if receiver not in receivers:
        receivers.append(receiver)
    return receiver


def unobserve(receiver: Callable[[Decision], Any]) -> bool:
    """Stop calling a function; return whether it was an observer."""
    try:
        receivers.remove(receiver)
    except ValueError:
        return False
    return True


def notify(decision: Decision) -> None:
    """Call all observers."""
    for receiver in tuple(receivers):
        try:
            receiver(decision)
        except Exception:
            logger.exception("An observer of decisions failed: %r", receiver)
