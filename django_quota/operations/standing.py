"""How a subject stands with a rule, whatever its limits say: exempt, blocked or banned. Pure.

`lua/standing.lua` twin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django_quota.algorithms import Verdict
from django_quota.operations.base import States
from django_quota.operations.hits import Hit

EXEMPT, BLOCKED, BANNED, BAN_BEGAN, REFUSAL_TOLD, NEAR_TOLD, BAN_LEVEL, KNOWN_BEFORE, SETTLED_LATE = range(1, 10)
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
    late: int = 0
    """When the hold was due that is settled now; 0 where it is in time."""
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
    if override and override.mode != "r":
        case.standing, case.stop = EXEMPT if override.mode == "x" else BLOCKED, override.stop
    elif case.hit.tally and f"b:{rule}" in fields:
        ends, case.level, case.remembered = map(int, fields[f"b:{rule}"].split(" "))
        if ends > now:
            case.standing, case.stop = BANNED, ends
    return stale


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
