"""Holds: what was reserved and is not settled yet. Pure; `lua/holds.lua` twin.

A hold is its member in a sorted set: token, units, and for each limit the moment from which on nothing of what it spent
is used any more. Both the script and whoever reserved write it alike, so that the reply need not repeat it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django_quota.algorithms import Step
from django_quota.operations.base import States
from django_quota.operations.hits import Hit
from django_quota.operations.standing import drop_field, set_field

AT_ONCE = 100
"""Holds that one call gives back."""

Held = Mapping[str, int]
"""Holds by member, each with the moment (microseconds) at which it is given back by itself."""


def member_of(token: str, steps: Sequence[Step], used_until: Sequence[int]) -> str:
    """Return the member of a hold that has just been spent of these limits."""
    windows = [f"{_window_of(step)}={stop}" for step, stop in zip(steps, used_until, strict=True)]
    return " ".join((token, str(steps[0].cost), *windows))


def hold(states: States, hit: Hit, token: str, ttl: int, used_until: Sequence[int], now: int) -> None:
    """Note what the hit has just spent as a hold, which is given back `ttl` microseconds from now."""
    held = {**_held(states, hit), member_of(token, hit.steps, used_until): now + ttl}
    keep_until = max(now + ttl, *used_until)
    states.put(hit.holds, held, max(states.expiry(hit.holds), keep_until))
    _note_first_due(states, hit, keep_until)


def give_back_due(states: States, hit: Hit, now: int, noted: int | None = None) -> None:
    """Give back the holds that were abandoned; `noted`: when the first was said to be due."""
    held = dict(_held(states, hit))
    due = _due(held, now)
    for member in due:
        _give_back(states, hit, member, _units(member), now)
        del held[member]
    if due or (noted is not None and noted <= now):
        _put(states, hit, held)


def credits_due(states: States, hit: Hit, now: int) -> list[int]:
    """Return what would be given back to each limit, for a peek, which writes nothing."""
    return [
        sum(_still_used(step, member, _units(member), now) for member in _due(_held(states, hit), now))
        for step in hit.steps
    ]


def _due(held: Held, now: int) -> list[str]:
    return [member for _, member in sorted((stop, member) for member, stop in held.items() if stop <= now)][:AT_ONCE]


def settle(states: States, hit: Hit, member: str, actual: int, now: int) -> None:
    """Make what a hold spent what was really used, whatever the limit; nothing where it was settled or given back."""
    give_back_due(states, hit, now)
    held = dict(_held(states, hit))
    if held.pop(member, None) is None:
        return
    _put(states, hit, held)
    units = _units(member)
    if actual < units:
        _give_back(states, hit, member, units - actual, now)
    for step in hit.steps:
        if actual > units and step.parameters.capacity > 0:
            algorithm = step.limit.algorithm
            state, _ = algorithm.spend(states.get(step.key), step.parameters, actual - units, now, over=True)
            states.put(step.key, state, algorithm.expiry(state))


def _give_back(states: States, hit: Hit, member: str, units: int, now: int) -> None:
    for step in hit.steps:
        still_used = _still_used(step, member, units, now)
        if still_used:
            give_back(states, step, still_used, now)


def _still_used(step: Step, member: str, units: int, now: int) -> int:
    """Return how many of a hold's units still count in a limit."""
    used_until = dict(part.split("=") for part in member.split(" ")[2:])
    stop = used_until.get(_window_of(step))
    if stop is None:  # an override has put other limits in the place of those that the hold spent of
        return 0
    return step.limit.algorithm.still_used(step.parameters, units, int(stop), now)


def give_back(states: States, step: Step, units: int, now: int) -> None:
    """Give units back to one limit."""
    algorithm = step.limit.algorithm
    state = algorithm.refund(states.get(step.key), step.parameters, units, now)
    if state is None:
        states.drop(step.key)
    else:
        states.put(step.key, state, algorithm.expiry(state))


def _put(states: States, hit: Hit, held: Held) -> None:
    if held:
        states.put(hit.holds, held, states.expiry(hit.holds))
    else:
        states.drop(hit.holds)
    _note_first_due(states, hit, states.expiry(hit.holds))


def _note_first_due(states: States, hit: Hit, keep_until: int) -> None:
    held = _held(states, hit)
    if held:
        set_field(states, hit.standing, f"d:{hit.field}", str(min(held.values())), keep_until)
    else:
        drop_field(states, hit.standing, f"d:{hit.field}")


def _held(states: States, hit: Hit) -> Held:
    return states.get(hit.holds) or {}


def _units(member: str) -> int:
    return int(member.split(" ")[1])


def _window_of(step: Step) -> str:
    """Return the name of a limit within its rule."""
    return step.key.rpartition(":")[2]
