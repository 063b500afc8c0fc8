"""Announcing: what decisions in other slots of a Cluster have told is written to the log. Pure.

Where a script can reach both, `lua/telling.lua` writes it at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

from django_quota.operations.base import Operation, Script, States, script
from django_quota.operations.decide import Log


class News(NamedTuple):
    """One thing to tell, as `lua/announce.lua` lists it."""

    kind: Literal["refused", "banned", "near", "lifted"]
    rule: str
    """The rule's name as fields of hashes have it."""
    subject: str
    """As keys have it."""
    until: int = 0
    level: int = 0
    capacity: int = 0
    remaining: int = 0


class Announce(Operation):
    """Write to the log; the reply is how many there were."""

    script: ClassVar[Script] = script("clock", "log_keys", "log", "announce")
    replies: type = int

    def __init__(self, log: Log, news: Sequence[News]) -> None:
        self.keys = log.keys
        self.length = log.length
        self.news = news

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/announce.lua` lists them."""
        return [self.length, *(word for one in self.news for word in one)]

    def run(self, states: States, now: int) -> int:  # noqa: ARG002 — the log is Redis' alone
        """Say how many there were."""
        return len(self.news)
