"""The specifications of operations that run in Redis only."""

from collections.abc import Mapping, Sequence
from typing import Any

from django_quota.engine.operations import Operation, States
from django_quota.engine.system_operations import Sweep


def specify(operation: Operation, states: States, now: int) -> Any:
    """Run the specification of an operation over these states, and return the reply."""
    return _sweep(operation, states, now) if isinstance(operation, Sweep) else operation.run(states, now)


class Specified(Operation):
    def __init__(self, operation: Operation) -> None:
        self.keys = operation.keys
        self.operation = operation

    def arguments(self) -> list[str | int]:
        return []

    def run(self, states: States, now: int) -> Any:
        return specify(self.operation, states, now)


class Put(Specified):
    """Puts a value under a key, as it is."""

    def __init__(self, key: str, value: Any, expiry: int) -> None:
        self.keys = [key]
        self._put = (key, value, expiry)

    def run(self, states: States, now: int) -> None:
        states.put(*self._put)


class Drop(Specified):
    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys

    def run(self, states: States, now: int) -> None:
        for key in self.keys:
            states.drop(key)


def _sweep(operation: Sweep, states: States, now: int) -> list[int]:
    """Drop expired entries. A sorted set is a mapping from members to scores here, and every key has a TTL."""
    reply: list[int] = []
    most = operation.most
    for key, swept in zip(operation.keys, operation.sweepable, strict=True):
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
