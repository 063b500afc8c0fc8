"""Objects that must reset themselves in a forked process.

A lock that another thread held at the fork would never be released in the child, and both processes would use the same
connections.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """An object that a child process must not use as it was in the parent."""

    def after_fork(self) -> None:
        """Reset what the parent's threads held or did. Called in the child."""
        ...


_registered: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def register_fork_aware(instance: ForkAware) -> None:
    """Call `after_fork` in each child process, for as long as the object lives."""
    _registered.add(instance)


def _after_fork() -> None:
    for instance in list(_registered):
        instance.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
