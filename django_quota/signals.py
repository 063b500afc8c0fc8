"""Signals of this process: a hit was refused, a ban began, a limit is near; the store does not answer, or does again.

`refused`, `banned` and `near_limit` are sent after the decision, in the process and thread (or event loop) that asked
for it. `refused` is sent at most once a second for each subject and rule; a refusal that a process repeats from memory
(`cache_refusals`) does not send it. `banned` is sent once for each ban, `near_limit` once in a window for each share
of `warn_at`, by the hit that reaches it or no longer fits, and again after a refund or a higher limit brought the use
below it. Each carries

`rule`      the `Rule`
`subject`   the subject, such as `"ip:203.0.113.9"`
`decision`  the `Decision`
`share`     which share of `warn_at` was reached, such as 0.8; `near_limit` only

`store_lost` carries `reason`, a string without secrets. `store_back` carries `seconds`, for which rules were decided by
their `on_unavailable`. Each is sent once for an outage, not for each request.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from django.dispatch import Signal

from django_quota.core.flow import IOCall

logger = logging.getLogger("django_quota.signals")

refused: Signal = Signal()
"""A hit was refused: `rule`, `subject`, `decision`. At most once a second for each subject and rule."""

banned: Signal = Signal()
"""A ban began, after too many refusals or by `ban()`: `rule`, `subject`, `decision`."""

near_limit: Signal = Signal()
"""The used share of a limit has reached `share`, one of `warn_at`: `rule`, `subject`, `decision`. Once in a window."""

store_lost: Signal = Signal()
"""The store does not answer, and rules follow `on_unavailable` from now on: `reason`, a string without secrets."""

store_back: Signal = Signal()
"""The store answers again: `seconds`, for which rules followed `on_unavailable`."""

Announcement = tuple[Signal, dict[str, Any]]
"""A signal, and what it carries."""


def announce(announcements: Iterable[Announcement]) -> IOCall:
    """Return the call that sends signals. Their sender is None."""
    return IOCall(send, asend, announcements)


def send(announcements: Iterable[Announcement]) -> None:
    """Send signals from a thread. Django logs what a receiver raises."""
    for signal, values in announcements:
        try:
            signal.send_robust(None, **values)
        except RuntimeError:  # an async receiver in the thread of an event loop: use acheck()
            logger.exception("Not all receivers of a signal were called: %r", values)


async def asend(announcements: Iterable[Announcement]) -> None:
    """Send signals from an event loop; see `send`."""
    for signal, values in announcements:
        await signal.asend_robust(None, **values)
