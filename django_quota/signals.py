"""Signals of this process: a hit was refused, a ban began, a limit is near; the store is gone, or back.

They must not know who listens. `refused`, `banned` and `near_limit` are sent after the decision, in the process and
thread (or event loop) that asked for it, at most once a second for a subject and rule while it is refused, and once for
a ban and for coming near. Each carries

`rule`      the `Rule` that it is about
`subject`   whom it is about, such as `"ip:203.0.113.9"`
`decision`  the `Decision` that was made

`store_lost` carries `reason`, a text without secrets; `store_back` carries `seconds`: for how long rules were decided
by their `on_unavailable`. Each is sent once, not once a request.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from django.dispatch import Signal

logger = logging.getLogger("django_quota")

refused = Signal()
"""A hit was refused."""

banned = Signal()
"""A ban began: a rule's refusals were too many."""

near_limit = Signal()
"""The share of a limit that the rule's `warn_at` names has been used up."""

store_lost = Signal()
"""The store does not answer: rules decide by `on_unavailable` from now on."""

store_back = Signal()
"""The store answers again."""


Announcement = tuple[Signal, dict[str, Any]]
"""A signal, and what it carries."""


def send(announcements: Iterable[Announcement], sender: type) -> None:
    """Send signals from a thread; what a receiver raises is Django's to log."""
    for signal, carried in announcements:
        try:
            signal.send_robust(sender, **carried)
        except RuntimeError:  # an async receiver cannot be waited for in the thread of an event loop: acheck() can
            logger.exception("Not all receivers of a signal could be told: %r", carried)


async def asend(announcements: Iterable[Announcement], sender: type) -> None:
    """Send signals from an event loop; see `send`."""
    for signal, carried in announcements:
        await signal.asend_robust(sender, **carried)
