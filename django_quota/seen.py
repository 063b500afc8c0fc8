"""Seen before: says of a value whether it comes for the first time. No HTTP, no models.

For events that may be delivered twice. Each value is remembered for a span, so that memory is bounded by what comes
within it; what lies in the store is a keyed digest, so that no secret does. It works whatever the setting `ENABLED`
says.
"""

from __future__ import annotations

from django_quota.clock import frozen_now
from django_quota.conf import current
from django_quota.exceptions import RuleError
from django_quota.keys import key_of, subject_base
from django_quota.limiter import get_limiter
from django_quota.operations.once import Once
from django_quota.rates import span_of
from django_quota.subjects import digest

Value = str | bytes | int


def once(name: str, value: Value, ttl: float = 3600) -> bool:
    """Say whether a value comes for the first time.

    `if once("payment", event_id): ...`. `name`: what kind of values they are; the same value under another name is
    another one. `value`: a text, bytes or a whole number, of any length; a number is its digits, and a text its UTF-8.
    `ttl`: seconds, above 0 and up to 366 days, for which it is remembered from the first time on; seeing it again does
    not prolong that.

    Raises `RuleError` where an argument is wrong, and `StoreUnavailable`.
    """
    return bool(get_limiter().telling.run(_operation(name, value, ttl), frozen_now()))


async def aonce(name: str, value: Value, ttl: float = 3600) -> bool:
    """Say whether a value comes for the first time; see `once`."""
    return bool(await get_limiter().telling.arun(_operation(name, value, ttl), frozen_now()))


def _operation(name: object, value: object, ttl: object) -> Once:
    if not isinstance(name, str) or not name.strip():
        raise RuleError(f"{name!r} is no name for the values; 'payment' would do.")
    if not isinstance(value, (str, bytes, int)) or isinstance(value, bool):
        raise RuleError(f"value= is {type(value).__name__}; a text, bytes or a whole number would do.")
    mark = digest(value if isinstance(value, bytes) else str(value))
    key = key_of(subject_base(current().prefix, f"once:{mark}"), "once", name)
    return Once(key, span_of("ttl", ttl, 3600))
