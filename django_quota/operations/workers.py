"""How many workers share the limits: each says that it is alive, and is counted for a while. Pure.

`lua/workers.lua` twin.
"""

from __future__ import annotations

from typing import ClassVar

from django_quota.operations.base import Operation, Script, States, script


class Alive(Operation):
    """Count a worker for so many microseconds; the reply is how many there are."""

    script: ClassVar[Script] = script("clock", "workers")
    replies: type = int

    def __init__(self, key: str, token: str, lasts: int) -> None:
        self.keys = [key]
        self.token = token
        self.lasts = lasts

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/workers.lua` lists them."""
        return [self.token, self.lasts]

    def run(self, states: States, now: int) -> int:
        """Count it."""
        (key,) = self.keys
        workers = {token: stop for token, stop in (states.get(key, now) or {}).items() if stop > now}
        workers[self.token] = now + self.lasts
        states.put(key, workers, max(states.expiry(key), now + self.lasts))
        return len(workers)
