"""Looking at a subject, and lifting its bans. Pure; `lua/look.lua` and `lua/lift_bans.lua` twin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django_quota.operations.base import Operation, Script, States, script
from django_quota.operations.decide import Log
from django_quota.operations.shapes import is_rows, moment, score, whole, words
from django_quota.operations.standing import drop_field, fields_of

MOST_READ = 100
"""Leases, or holds, that are read of one name."""


class Look(Operation):
    """Read how a subject stands, and what lies in its sets; the reply is that of `lua/look.lua`."""

    script: ClassVar[Script] = script("clock", "look")

    def __init__(self, standing: str, sets: Sequence[str]) -> None:
        self.keys = [standing, *sets]

    def arguments(self) -> list[str | int]:
        """Return the most that is read of each set."""
        return [MOST_READ]

    def fits(self, reply: Any) -> bool:
        """Say whether a reply can be the one to this."""
        if not isinstance(reply, list) or len(reply) != 1 + len(self.keys) or not moment(reply[0]):
            return False
        return is_rows(reply[1], words, words) and all(map(_is_live, reply[2:]))

    def run(self, states: States, now: int) -> list[Any]:
        """Look, and write nothing."""
        fields = [part for pair in fields_of(states, self.keys[0]).items() for part in pair]
        return [now, fields, *(_live(states, key, now) for key in self.keys[1:])]


def _is_live(found: Any) -> bool:
    return isinstance(found, list) and whole(next(iter(found), None)) and is_rows(found[1:], words, score)


def _live(states: States, key: str, now: int) -> list[Any]:
    members: dict[str, int] = states.get(key) or {}
    live = sorted((stop, member) for member, stop in members.items() if stop > now)
    return [len(live), *(part for stop, member in live[:MOST_READ] for part in (member, stop))]


class LiftBans(Operation):
    """End the bans of a subject under these rules (named as fields have them); the reply is how many were in force."""

    script: ClassVar[Script] = script("clock", "lift_bans")
    replies: type = int

    def __init__(self, standing: str, rules: Sequence[str], log: Log | None = None) -> None:
        self.standing = standing
        self.rules = rules
        self.log = log
        self.keys = [standing] if log is None else [standing, log.keys[1]]

    def arguments(self) -> list[str | int]:
        """Return the rules."""
        return list(self.rules)

    def run(self, states: States, now: int) -> int:
        """End them."""
        lifted = 0
        for rule in self.rules:
            ban = fields_of(states, self.standing).get(f"b:{rule}", "0")
            lifted += int(ban.partition(" ")[0]) > now
            drop_field(states, self.standing, f"b:{rule}")
        return lifted
