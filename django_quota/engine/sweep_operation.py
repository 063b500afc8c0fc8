"""The sweep: it drops a limited number of expired entries of sorted sets in one call.

Redis alone runs it; its specification is in the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from django_quota.engine.operations import RedisOperation, Script, script


class Swept(NamedTuple):
    """What the reply says about one key."""

    is_set: bool
    """Whether the key is a sorted set that is swept."""
    removed: int
    left: int
    """How many expired entries it still has."""
    given: int
    """The TTL (milliseconds) that it was given, or would be; 0 if it has one."""


class Sweep(RedisOperation):
    """Drop at most `most` expired entries of these keys; the reply is that of `lua/sweep.lua`: see `read`.

    `sweepable`: which keys are swept if they are sorted sets. `lifetimes`: the TTL (milliseconds) for a key that has
    none and whose scores do not say one. `repairs`: whether keys without a TTL get one.
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
        treated = zip(sweepable, lifetimes, strict=True)
        super().__init__(keys, most, int(repairs), *(f"{swept:d} {lifetime}" for swept, lifetime in treated))
        self.sweepable = sweepable
        self.lifetimes = lifetimes
        self.most = most
        self.repairs = repairs

    @staticmethod
    def read(reply: Sequence[int]) -> list[Swept]:
        """Return what a reply says about each key."""
        return [Swept(bool(reply[i]), *reply[i + 1 : i + 4]) for i in range(0, len(reply), 4)]
