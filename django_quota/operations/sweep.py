"""Sweeping: expired entries of sorted sets are dropped, so many at most in one call. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from django_quota.operations.base import Operation, Script, States, script
from django_quota.operations.shapes import are_whole


class Swept(NamedTuple):
    """What the reply says of one key."""

    is_set: bool
    """Whether it is a sorted set that is swept."""
    removed: int
    left: int
    """How many expired entries it still has."""
    given: int
    """The TTL (milliseconds) that it was given, or would be; 0 where it has one."""


class Sweep(Operation):
    """Drop expired entries of these keys, `most` at most; the reply is that of `lua/sweep.lua`: see `read`.

    `sweepable` says which of the keys are swept where they are sorted sets, `lifetimes` what TTL (milliseconds) a key
    that has none is given where no score says it; without `repairs` none is given.
    """

    script: ClassVar[Script] = script("clock", "sweep")

    def __init__(
        self,
        keys: Sequence[str],
        sweepable: Sequence[bool],
        lifetimes: Sequence[int],
        most: int,
        *,
        repairs: bool,
    ) -> None:
        self.keys = keys
        self.sweepable = sweepable
        self.lifetimes = lifetimes
        self.most = most
        self.repairs = repairs

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/sweep.lua` lists them."""
        treated = zip(self.sweepable, self.lifetimes, strict=True)
        return [self.most, int(self.repairs), *(f"{swept:d} {lifetime}" for swept, lifetime in treated)]

    def fits(self, reply: Any) -> bool:
        """Say whether a reply can be the one to this."""
        return isinstance(reply, list) and len(reply) == 4 * len(self.keys) and (not reply or are_whole(reply))

    def run(self, states: States, now: int) -> list[int]:
        """Drop them; a sorted set is a mapping from members to scores here, and no key is without a TTL."""
        reply: list[int] = []
        most = self.most
        for key, swept in zip(self.keys, self.sweepable, strict=True):
            entries = states.get(key)
            if not swept or not isinstance(entries, Mapping):
                reply += (0, 0, 0, 0)
                continue
            expired = sorted((score, member) for member, score in entries.items() if score <= now)
            gone = {member for _, member in expired[:most]}
            kept = {member: score for member, score in entries.items() if member not in gone}
            if kept and gone:
                states.put(key, kept, states.expiry(key))
            elif gone:
                states.drop(key)
            most -= len(gone)
            reply += (1, len(gone), len(expired) - len(gone), 0)
        return reply

    @staticmethod
    def read(reply: Sequence[int]) -> list[Swept]:
        """Return what a reply says, key by key."""
        return [Swept(bool(reply[i]), *reply[i + 1 : i + 4]) for i in range(0, len(reply), 4)]
