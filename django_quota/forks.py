"""What must begin anew in a forked process: a lock that another thread held at the fork would never come free there.

It must not know what begins anew.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class OfAProcess(Protocol):
    """Something that a forked process must not share with its parent as it is."""

    def forget_parent(self) -> None:
        """Go on in a forked process, without what its parent's threads held or did."""
        ...


_all: weakref.WeakSet[OfAProcess] = weakref.WeakSet()


def begins_anew_in_children(one: OfAProcess) -> None:
    """Have it forget the parent in each forked process, for as long as there is it."""
    _all.add(one)


def _after_fork() -> None:
    for one in list(_all):
        one.forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
