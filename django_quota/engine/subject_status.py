"""The status of a subject under a rule: a ban takes precedence over the limits.

The specification of `lua/subject_status.lua`.
"""

from __future__ import annotations

from collections.abc import Mapping

from django_quota.core.algorithms import NEVER, Verdict
from django_quota.engine.codec import Flag
from django_quota.engine.hits import HitContext
from django_quota.engine.operations import States, keep


def load_status(states: States, context: HitContext, now: int) -> None:
    """Put the status of the subject on the context."""
    hit = context.hit
    ban = fields_of(states, hit.status_key).get(f"b:{hit.field}")
    if hit.refusals_key and ban is not None:
        ends, context.level, context.remembered = map(int, ban.split(" "))
        if ends > now:
            context.status, context.stop = Flag.BANNED, ends


def shut_out(verdict: Verdict, stop: int, now: int) -> Verdict:
    """Refuse until a ban ends, and then for as long as the limit itself has no room."""

    def later(own: int) -> int:
        return NEVER if own == NEVER else max(stop - now, own)

    retry_after = later(0 if verdict.allowed else verdict.retry_after)
    more = later(0 if verdict.remaining > 0 else verdict.more)
    return verdict._replace(allowed=False, retry_after=retry_after, more=more)


def fields_of(states: States, status_key: str) -> Mapping[str, str]:
    """Return the fields of a subject's status."""
    return states.get(status_key) or {}


def set_field(states: States, status_key: str, name: str, value: str, keep_until: int) -> None:
    """Set a field of a subject's status, and keep the status until a moment (microseconds) at least."""
    keep(states, status_key, {**fields_of(states, status_key), name: value}, keep_until)


def drop_field(states: States, status_key: str, name: str) -> bool:
    """Drop a field of a subject's status; say whether it was there."""
    fields = dict(fields_of(states, status_key))
    if fields.pop(name, None) is None:
        return False
    keep(states, status_key, fields, 0)
    return True
