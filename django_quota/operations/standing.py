"""How a subject stands with a rule, whatever its limits say: exempt, blocked or banned. Pure.

`lua/standing.lua` twin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django_quota.algorithms import NEVER, Verdict
from django_quota.operations.base import States
from django_quota.operations.hits import Hit

EXEMPT, BLOCKED, BANNED, BAN_BEGAN, REFUSAL_TOLD, NEAR_TOLD, BAN_LEVEL, KNOWN_BEFORE = range(1, 9)
"""What a note of a reply says."""

OVERRIDDEN, HOLDS_DUE = 1, 2
"""Why a plan must be sent in another form."""


class InForce(NamedTuple):
    """An override that holds now: its mode, its end (0: none), and how it was published."""

    mode: str
    stop: int
    published: str


@dataclass(slots=True)
class Case:
    """A hit while it is decided: what was found, and what it comes to."""

    hit: Hit
    index: int
    standing: int = 0
    """EXEMPT, BLOCKED or BANNED; 0 for neither."""
    stop: int = 0
    """When that ends; 0 for never."""
    due: int | None = None
    """When the first hold that is not settled is due."""
    states: list[Any] | None = None
    """How its limits would be, for a peek, if what is due were given back."""
    level: int = 0
    remembered: int = 0
    verdicts: list[Verdict] = field(default_factory=list)
    is_refused: bool = False
    """Whether any of its limits refuses it; what it does to them afterwards does not count."""


def stand(states: States, case: Case, now: int) -> list[int | str]:
    """Put how the subject stands on the case; return why the plan is stale for it, if it is."""
    fields = fields_of(states, case.hit.standing)
    rule = case.hit.field
    override = in_force(fields.get(f"o:{rule}"), now) or in_force(fields.get("o:*"), now)
    rates = override.published if override and override.mode == "r" else ""
    stale: list[int | str] = []
    if rates != case.hit.override:
        stale += (case.index, OVERRIDDEN, rates)
    due = fields.get(f"d:{rule}")
    case.due = None if due is None else int(due)
    if case.due is not None and case.due <= now and not case.hit.holds:
        stale += (case.index, HOLDS_DUE, "")
    banned_until = now
    if case.hit.tally and f"b:{rule}" in fields:
        banned_until, case.level, case.remembered = map(int, fields[f"b:{rule}"].split(" "))
    if override and override.mode == "x":
        case.standing, case.stop = EXEMPT, override.stop
    elif override and override.mode == "b":
        # Where it ends, a block of all rules or a ban may go on.
        of_all = in_force(fields.get("o:*"), now)
        ends = [override.stop, banned_until, *([of_all.stop] if of_all and of_all.mode == "b" else [])]
        case.standing, case.stop = BLOCKED, 0 if 0 in ends else max(ends)
    elif banned_until > now:
        case.standing, case.stop = BANNED, banned_until
    return stale


def shut_out(verdict: Verdict, stop: int, now: int) -> Verdict:
    """Refuse until a ban or a block ends (0: it has no end), and then for as long as the limit itself has no room."""

    def later(own: int) -> int:
        return max(stop - now, own) if stop and own != NEVER else NEVER

    wait = later(0 if verdict.ok else verdict.wait)
    return verdict._replace(ok=False, wait=wait, more=later(0 if verdict.remaining else verdict.more))


def in_force(published: str | None, now: int) -> InForce | None:
    """Read an override as it was published; None where there is none, or where it does not hold now."""
    if not published:
        return None
    mode, begins, ends, *_ = published.split(" ")
    stop = int(ends)
    return InForce(mode, stop, published) if int(begins) <= now and (stop == 0 or stop > now) else None


def fields_of(states: States, standing: str) -> Mapping[str, str]:
    """Return the fields of how a subject stands."""
    return states.get(standing) or {}


def set_field(states: States, standing: str, name: str, value: str, keep_until: int) -> None:
    """Set a field of how a subject stands, and keep it until a moment (microseconds) at least."""
    fields = {**fields_of(states, standing), name: value}
    states.put(standing, fields, max(states.expiry(standing), keep_until))


def drop_field(states: States, standing: str, name: str) -> bool:
    """Drop a field of how a subject stands; say whether it was there."""
    fields = dict(fields_of(states, standing))
    if fields.pop(name, None) is None:
        return False
    if fields:
        states.put(standing, fields, states.expiry(standing))
    else:
        states.drop(standing)
    return True
