"""The status of a subject under a rule, which goes before the limits: exempt, blocked or banned.

The specification of `lua/subject_status.lua`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from django_quota.core.algorithms import NEVER, Verdict
from django_quota.engine.codec import Flag, Flagged
from django_quota.engine.hits import HitContext
from django_quota.engine.operations import States, keep


class ActiveOverride(NamedTuple):
    """An override that is in force."""

    mode: str
    """r: other rates, x: exempt, b: blocked."""
    stop: int
    """When it ends, in microseconds; 0 for never."""
    published: str
    """The override as it was published."""


def load_status(states: States, context: HitContext, now: int) -> list[Flagged]:
    """Put the status of the subject on the context; return why the hit must be sent in another form."""
    hit = context.hit
    fields = fields_of(states, hit.status_key)
    of_all = active_override(fields.get("o:*"), now)
    override = active_override(fields.get(f"o:{hit.field}"), now) or of_all
    rates = override.published if override and override.mode == "r" else ""
    retries = []
    if rates != hit.override:
        retries.append(Flagged(context.index, Flag.OVERRIDDEN, rates))
    due = fields.get(f"d:{hit.field}")
    context.due = None if due is None else int(due)
    if context.due is not None and context.due <= now and not hit.holds:
        retries.append(Flagged(context.index, Flag.HOLDS_DUE, ""))
    banned_until = now
    ban = fields.get(f"b:{hit.field}")
    if ban is not None:
        banned_until, context.level, context.remembered = map(int, ban.split(" "))
    if override and override.mode == "x":
        context.status, context.stop = Flag.EXEMPT, override.stop
    elif override and override.mode == "b":
        # A block of all rules, or a ban, may last longer than the block of this rule.
        ends = [override.stop, banned_until, *([of_all.stop] if of_all and of_all.mode == "b" else [])]
        context.status, context.stop = Flag.BLOCKED, 0 if 0 in ends else max(ends)
    elif banned_until > now:
        context.status, context.stop = Flag.BANNED, banned_until
    return retries


def shut_out(verdict: Verdict, stop: int, now: int) -> Verdict:
    """Refuse until a ban or a block ends (0: never), and then for as long as the limit itself has no room."""

    def later(own: int) -> int:
        return NEVER if stop == 0 or own == NEVER else max(stop - now, own)

    retry_after = later(0 if verdict.allowed else verdict.retry_after)
    more = later(0 if verdict.remaining else verdict.more)
    return verdict._replace(allowed=False, retry_after=retry_after, more=more)


def active_override(published: str | None, now: int) -> ActiveOverride | None:
    """Read a published override; None if there is none, or if it is not in force now."""
    if not published:
        return None
    mode, begins, ends, *_ = published.split(" ")
    stop = int(ends)
    return ActiveOverride(mode, stop, published) if int(begins) <= now and (stop == 0 or stop > now) else None


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
