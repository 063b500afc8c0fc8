"""The operations on the counts of a day: read them, set them aside for the roll-up, and delete them after it."""

from __future__ import annotations

from typing import Any, ClassVar

from django_quota.engine.operations import Operation, Script, States, script

TOKEN_FIELD = "#"  # noqa: S105 — it is a field, not a password
"""The field for the token, in counts that were set aside."""


class ReadDays(Operation):
    """Read what was counted under these keys, all of one subject; the reply: see `read_days.lua`."""

    script: ClassVar[Script] = script("features/usage/read_days")
    is_slow: ClassVar[bool] = True
    is_reading: ClassVar[bool] = True

    def run(self, states: States, now: int) -> list[list[str]]:  # noqa: ARG002 — a day is kept until it is moved
        days = [states.get(key) or {} for key in self.keys]
        return [[str(part) for pair in day.items() for part in pair] for day in days]


class SetAside(Operation):
    """Set a day's counts aside, unless earlier ones are aside; the reply: see `set_aside.lua`.

    `known`: the token that the database knows. The new one is larger.
    """

    script: ClassVar[Script] = script("clock", "lifetimes", "features/usage/set_aside")
    is_slow: ClassVar[bool] = True

    def __init__(self, day_key: str, aside_key: str, known: int) -> None:
        super().__init__([day_key, aside_key], known)

    def run(self, states: States, now: int) -> list[Any]:
        (day, aside), (known,) = self.keys, self.arguments()
        counts = states.get(day)
        if counts is not None and states.get(aside) is None:
            states.put(aside, {**counts, TOKEN_FIELD: max(now, known + 1)}, states.expiry(day))
            states.drop(day)
        fields = states.get(aside) or {}
        return [int(states.get(day) is not None), [str(part) for pair in fields.items() for part in pair]]


class DropAside(Operation):
    """Delete the counts that were set aside under a token; the reply is 1 if they were deleted, else 0."""

    script: ClassVar[Script] = script("features/usage/drop_aside")
    is_slow: ClassVar[bool] = True

    def __init__(self, aside_key: str, token: int) -> None:
        super().__init__([aside_key], token)

    def run(self, states: States, now: int) -> int:  # noqa: ARG002 — they are kept until they are in the database
        (aside,), (token,) = self.keys, self.arguments()
        return int((states.get(aside) or {}).get(TOKEN_FIELD) == token and states.drop(aside))
