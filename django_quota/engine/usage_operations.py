"""Operations of the counts of days: read them, and drop them after the roll-up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from django_quota.engine.operations import Operation, RedisOperation, Script, States, script


class ReadDays(Operation):
    """Read what was counted under these keys, all of one subject; the reply is that of `lua/read_days.lua`."""

    script: ClassVar[Script] = script("read_days")

    def run(self, states: States, now: int) -> list[list[str]]:  # noqa: ARG002 — a day is kept until it is copied
        """Read them."""
        days = [states.get(key) or {} for key in self.keys]
        return [[str(part) for pair in day.items() for part in pair] for day in days]


class DropDay(RedisOperation):
    """Drop a day's counts if nothing was counted since; the reply is 1 if they were dropped, else 0."""

    script: ClassVar[Script] = script("drop_day")

    def __init__(self, key: str, fields: Mapping[str, str]) -> None:
        super().__init__([key], *(word for pair in fields.items() for word in pair))
