"""How many workers share the limits: each registers again and again, and counts for a while."""

from __future__ import annotations

from typing import ClassVar

from django_quota.engine.operations import Operation, Script, States, script


class RegisterWorker(Operation):
    """Count a worker for `ttl` microseconds; the reply is how many there are."""

    script: ClassVar[Script] = script("clock", "register_worker")

    def __init__(self, key: str, token: str, ttl: int) -> None:
        super().__init__([key], token, ttl)
        self.token = token
        self.ttl = ttl

    def run(self, states: States, now: int) -> int:
        """Register it."""
        (key,) = self.keys
        workers = {token: stop for token, stop in (states.get(key, now) or {}).items() if stop > now}
        workers[self.token] = now + self.ttl
        states.put(key, workers, max(states.expiry(key), now + self.ttl))
        return len(workers)
