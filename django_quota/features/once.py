"""Deduplication: `once` says whether a value is new, for events that may be delivered twice.

Each value is remembered for a time, so memory is bounded by the values of that time. The store keeps keyed digests and
no secrets. The setting `ENABLED` changes nothing.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django_quota.conf import current
from django_quota.core.errors import RuleError
from django_quota.core.flow import Flow, run_async
from django_quota.core.keys import key_of, subject_base
from django_quota.core.rates import Duration, parse_duration
from django_quota.engine.operations import Operation, Script, States, script
from django_quota.limiting.api import run_call
from django_quota.limiting.registry import store_call
from django_quota.subjects.subject import digest

Value = str | bytes | int


def once(name: str, value: Value, ttl: Duration = 3600) -> bool:
    """Return whether a value is new, and remember the value.

    `if once("payment", event_id): ...`. `name`: what the values are; the same value under two names counts as two.
    `value`: a string, bytes or a whole number, of any length. A number equals the string of its digits, and a string
    equals its UTF-8 bytes. `ttl`: how long the value is remembered from the first time on, above 0 and up to 366
    days. A repeated value does not extend that.

    Raises `RuleError` for a wrong argument, and `StoreUnavailable`.
    """
    return run_call(_once_flow(name, value, ttl))


async def aonce(name: str, value: Value, ttl: Duration = 3600) -> bool:
    """Return whether a value is new; see `once`."""
    return await run_async(_once_flow(name, value, ttl))


def _once_flow(name: object, value: object, ttl: object) -> Flow[bool]:
    return bool((yield store_call(_operation(name, value, ttl))))


def _operation(name: object, value: object, ttl: object) -> Once:
    if not isinstance(name, str) or not name.strip():
        raise RuleError(f"{name!r} is not a name for the values. Use, for example, 'payment'.")
    if not isinstance(value, (str, bytes, int)) or isinstance(value, bool):
        raise RuleError(f"value= is {type(value).__name__}. Use a string, bytes or a whole number.")
    digested = digest(value if isinstance(value, bytes) else str(value))
    key = key_of(subject_base(current().prefix, f"once:{digested}"), "once", name)
    return Once(key, parse_duration("ttl", ttl))


class Once(Operation):
    """Remember a value under its key for `span` microseconds; the reply is 1 the first time, else 0."""

    script: ClassVar[Script] = script("clock", "lifetimes", "features/once")

    def __init__(self, key: str, span: int) -> None:
        super().__init__([key], span)

    def has_written(self, reply: Any) -> bool:
        return bool(reply)

    def run(self, states: States, now: int) -> int:
        (key,), (span,) = self.keys, self.arguments()
        if states.get(key, now) is not None:
            return 0
        states.put(key, now + span, now + span)
        return 1
