"""Holds: what was reserved and is not settled yet. Pure; `lua/holds.lua` twin.

A hold is its member in a sorted set: token, units, and for each limit what the algorithm notes of what was spent there.
Whoever reserved names it by its token and the moment at which it is due, by which it is found again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django_quota.algorithms import Step
from django_quota.operations.base import States
from django_quota.operations.hits import Hit
from django_quota.operations.standing import drop_field, set_field

AT_ONCE = 100
"""Holds that one call gives back."""

Held = Mapping[str, int]
"""Holds by member, each with the moment (microseconds) at which it is given back by itself."""


def hold(states: States, hit: Hit, token: str, ttl: int, used_until: Sequence[int], now: int) -> None:
    """Note what the hit has just spent as a hold, which is given back `ttl` microseconds from now."""
    words = [token, str(hit.cost)]
    for step, stop in zip(hit.steps, used_until, strict=True):
        mark = step.limit.algorithm.mark(states.get(step.key), step.parameters, step.cost, stop, now)
        words.append(f"{_window_of(step)}={':'.join(map(str, mark))}")
    held = {**_held(states, hit), " ".join(words): now + ttl}
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


def states_after_due(states: States, hit: Hit, now: int) -> list[Any]:
    """Return how the limits would be if what is due were given back, for a peek, which writes nothing."""
    due = _due(_held(states, hit), now)
    found = []
    for step in hit.steps:
        state = states.get(step.key)
        for member in due:
            state = _given_back(state, step, member, _units(member), now)
        found.append(state)
    return found


def _due(held: Held, now: int) -> list[str]:
    return [member for _, member in sorted((stop, member) for member, stop in held.items() if stop <= now)][:AT_ONCE]


def settle(states: States, hit: Hit, token: str, due: int, actual: int, now: int) -> None:
    """Make what a hold spent what was really used, whatever the limit; nothing where it was settled or given back."""
    give_back_due(states, hit, now)
    held = dict(_held(states, hit))
    member = next((each for each, stop in held.items() if stop == due and each.startswith(f"{token} ")), None)
    if member is None:
        return
    del held[member]
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
        state = states.get(step.key)
        replace(states, step, state, _given_back(state, step, member, units, now))


def _given_back(state: Any, step: Step, member: str, units: int, now: int) -> Any:
    """Return the state of a limit with what still counts of a hold's units given back."""
    marks = dict(part.split("=") for part in member.split(" ")[2:])
    mark = marks.get(_window_of(step))
    if mark is None:  # an override has put other limits in the place of those that the hold spent of
        return state
    return step.limit.algorithm.give_back(state, step.parameters, units, list(map(int, mark.split(":"))), now)


def replace(states: States, step: Step, before: Any, after: Any) -> None:
    """Put another state of a limit in the place of the one that was found."""
    if after is None:
        states.drop(step.key)
    elif after is not before:
        states.put(step.key, after, step.limit.algorithm.expiry(after))


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
