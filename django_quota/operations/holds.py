"""Holds: what was reserved and is not settled yet. Pure; `lua/holds.lua` twin.

A hold is its member in a sorted set: token, units, and for each limit what the algorithm notes of what was spent there.
Whoever reserved names it by its token and the moment at which it is due, by which it is found again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django_quota.algorithms import BY_CODE, Algorithm, Parameters
from django_quota.operations.base import States
from django_quota.operations.hits import Hit
from django_quota.operations.standing import drop_field, set_field

AT_ONCE = 100
"""Holds that one call gives back; the caller asks again where there are more."""

FORESEEN = 1_000
"""Holds that a peek foresees to be given back."""

Held = Mapping[str, int]
"""Holds by member, each with the moment (microseconds) at which it is given back by itself."""

NOTHING = Parameters(0, 0)
"""The parameters of a limit to which holds only give back."""


def hold(states: States, hit: Hit, token: str, ttl: int, used_until: Sequence[int], now: int) -> None:
    """Note what the hit has just spent as a hold, which is given back `ttl` microseconds from now."""
    words = [token, str(hit.cost)]
    for step, stop in zip(hit.steps, used_until, strict=True):
        mark = step.limit.algorithm.mark(states.get(step.key), step.parameters, step.cost, stop, now)
        words.append(f"{_window_of(step.key)}={':'.join(map(str, mark))}")
    held = {**_held(states, hit), " ".join(words): now + ttl}
    keep_until = max(now + ttl, *used_until)
    states.put(hit.holds, held, max(states.expiry(hit.holds), keep_until))
    _note_first_due(states, hit, keep_until)


def lacking(states: States, hit: Hit, now: int) -> str:
    """Return the names of the limits whose keys the hit needs to give back what is due; see `lua/holds.lua`."""
    brought = {_window_of(key) for key, _, _ in _places(hit)}
    lacks = dict[str, None]()
    for member in _due(_held(states, hit), now, AT_ONCE):
        for window, mark in _marks(member).items():
            if window not in brought and mark[0] > now:
                lacks[window] = None
    return ",".join(lacks)


def give_back_due(states: States, hit: Hit, now: int, noted: int | None = None) -> bool:
    """Give back abandoned holds; `noted`: when the first was said to be due. Return whether there are more of them."""
    held = dict(_held(states, hit))
    due = _due(held, now, AT_ONCE)
    for member in due:
        _give_back(states, hit, member, _units(member), now)
        del held[member]
    if due or (noted is not None and noted <= now):
        _put(states, hit, held)
    return bool(_due(held, now, 1))


def states_after_due(states: States, hit: Hit, now: int) -> list[Any]:
    """Return how the limits would be if what is due were given back, for a peek, which writes nothing."""
    due = _due(_held(states, hit), now, FORESEEN)
    found = []
    for step in hit.steps:
        state = states.get(step.key)
        for member in due:
            state = _given_back(state, (step.key, step.limit.algorithm, step.parameters), member, _units(member), now)
        found.append(state)
    return found


def _due(held: Held, now: int, most: int) -> list[str]:
    return [member for _, member in sorted((stop, member) for member, stop in held.items() if stop <= now)][:most]


def settle(states: States, hit: Hit, token: str, due: int, actual: int, now: int) -> bool:
    """Make what a hold spent what was really used, whatever the limit; return whether it is late.

    What a late one had spent has been given back, or is now, and what was really used is spent now. One that is gone
    before it was due was settled, or forgotten by a reset: then nothing changes.
    """
    is_late = due <= now
    held = dict(_held(states, hit))
    member = next((each for each, stop in held.items() if stop == due and each.startswith(f"{token} ")), None)
    units = 0
    if member is not None:
        del held[member]
        _put(states, hit, held)
        units = 0 if is_late else _units(member)
        if is_late or actual < units:
            _give_back(states, hit, member, _units(member) if is_late else units - actual, now)
    elif not is_late:
        return False
    for step in hit.steps:
        if actual > units and step.parameters.capacity > 0:
            algorithm = step.limit.algorithm
            state, _ = algorithm.spend(states.get(step.key), step.parameters, actual - units, now, over=True)
            states.put(step.key, state, algorithm.expiry(state))
    return is_late


def _give_back(states: States, hit: Hit, member: str, units: int, now: int) -> None:
    given = set[str]()
    for key, algorithm, parameters in _places(hit):
        if key not in given:
            given.add(key)
            state = states.get(key)
            after = _given_back(state, (key, algorithm, parameters), member, units, now)
            replace(states, key, algorithm, state, after)


def _given_back(state: Any, place: _Place, member: str, units: int, now: int) -> Any:
    """Return the state of a limit with what still counts of a hold's units given back."""
    key, algorithm, parameters = place
    mark = _marks(member).get(_window_of(key))
    if mark is None:  # an override has put other limits in the place of those that the hold spent of
        return state
    return algorithm.give_back(state, parameters, units, mark, now)


_Place = tuple[str, Algorithm[Any], Parameters]
"""Where a hold may have spent: the key of the state, and what gives back to it."""


def _places(hit: Hit) -> Iterator[_Place]:
    """Yield the limits of a hit, then those beside them."""
    for step in hit.steps:
        yield step.key, step.limit.algorithm, step.parameters
    for key in hit.beside:
        yield key, BY_CODE[_window_of(key).partition(".")[0]], NOTHING


def _marks(member: str) -> dict[str, list[int]]:
    """Return what a hold has noted, by the name of the limit."""
    noted = (part.split("=") for part in member.split(" ")[2:])
    return {window: list(map(int, mark.split(":"))) for window, mark in noted}


def replace(states: States, key: str, algorithm: Algorithm[Any], before: Any, after: Any) -> None:
    """Put another state of a limit in the place of the one that was found."""
    if after is None:
        states.drop(key)
    elif after is not before:
        states.put(key, after, algorithm.expiry(after))


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


def _window_of(key: str) -> str:
    """Return the name of a limit within its rule."""
    return key.rpartition(":")[2]
