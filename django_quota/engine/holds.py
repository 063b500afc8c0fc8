"""Holds: what was reserved and is not settled yet. The specification of `lua/holds.lua`.

A hold is a member of a sorted set: its token, its units, and for each limit a receipt of what was consumed there. Its
token and the moment at which it is due name it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from django_quota.core.algorithms import BY_CODE, Algorithm, Parameters, Verdict
from django_quota.engine.codec import HoldChange, HoldId
from django_quota.engine.hits import CompiledLimit, Hit
from django_quota.engine.operations import States, keep
from django_quota.engine.subject_status import drop_field, set_field

BATCH_SIZE = 100
"""How many due holds one call restores; the caller asks again if there are more."""

MAX_FORESEEN = 1_000
"""How many due holds a peek takes into account."""

Holds = Mapping[str, int]
"""Holds by member, each with the moment (microseconds) at which it is restored by itself."""


_Place = tuple[str, Algorithm[Any], Parameters]
"""A limit that a hold may have consumed: its key, its algorithm and its parameters."""


def receipts_of(hit: Hit, verdicts: Sequence[Verdict], known: Iterable[int], now: int) -> list[Sequence[int]]:
    """Return a receipt for each limit of a hit that was just consumed.

    `known`: what `Algorithm.known_before` has returned for the limits, one after the other.
    """
    numbers, receipts = iter(known), list[Sequence[int]]()
    for limit, verdict in zip(hit.limits, verdicts, strict=True):
        algorithm, stop = limit.algorithm, now + verdict.reset
        of_limit = list(islice(numbers, algorithm.knows))
        receipts.append(algorithm.receipt(limit.parameters, hit.cost, stop, of_limit, now))
    return receipts


def hold(states: States, hit: Hit, receipts: Sequence[Sequence[int]], now: int) -> int:
    """Note what the hit has just consumed as a hold; return when it is due."""
    due = now + hit.reservation.ttl
    words = [hit.reservation.token, str(hit.cost)]
    for limit, receipt in zip(hit.limits, receipts, strict=True):
        words.append(f"{_window_of(limit.key)}={':'.join(map(str, receipt))}")
    holds = {**_holds_of(states, hit), " ".join(words): due}
    keep_until = max(due, *(receipt[0] for receipt in receipts))
    keep(states, hit.holds, holds, keep_until)
    _note_first_due(states, hit, keep_until)
    return int(due)


def missing_limits(states: States, hit: Hit, now: int) -> str:
    """Return the limits that due holds consumed and whose keys the hit lacks: their names, joined by commas."""
    present = {_window_of(key) for key, _, _ in _places(hit)}
    missing = dict[str, None]()
    for member in _due(_holds_of(states, hit), now, BATCH_SIZE):
        for window, receipt in _receipts(member).items():
            if window not in present and receipt[0] > now:
                missing[window] = None
    return ",".join(missing)


def restore_due(states: States, hit: Hit, now: int, noted: int | None = None) -> bool:
    """Restore abandoned holds; return whether more are due. `noted`: when the status says that the first is due."""
    holds = dict(_holds_of(states, hit))
    due = _due(holds, now, BATCH_SIZE)
    for member in due:
        _restore(states, hit, member, _units(member), now)
        del holds[member]
    if due or (noted is not None and noted <= now):
        _put(states, hit, holds)
    return bool(_due(holds, now, 1))


def states_without_due(states: States, hit: Hit, now: int) -> list[Any]:
    """Return how the limits would be without the holds that are due, for a peek."""
    due = _due(_holds_of(states, hit), now, MAX_FORESEEN)
    found = []
    for limit in hit.limits:
        state = states.get(limit.key)
        for member in due:
            state = _restored(state, _place(limit), member, _units(member), now)
        found.append(state)
    return found


def settle(states: States, hit: Hit, change: HoldChange, now: int) -> int:
    """Replace what a hold consumed by what was really used, whatever the limit; return when it was due if that is over.

    A late hold was restored, or is restored now, and everything that was used is consumed now. A hold that vanished
    before it was due was settled or reset: then nothing changes. Return 0 if the hold is in time.
    """
    hold_id, actual = change
    member, due = drop(states, hit, hold_id)
    is_late, held = due <= now, 0
    if member:
        held = 0 if is_late else _units(member)
        if is_late or actual < held:
            _restore(states, hit, member, _units(member) if is_late else held - actual, now)
    elif not is_late:
        return 0
    for limit in hit.limits:
        if actual > held and limit.parameters.capacity > 0:
            state, _ = limit.algorithm.consume(states.get(limit.key), limit.parameters, actual - held, now, over=True)
            states.put(limit.key, state, limit.algorithm.expiry(state))
    return hold_id.due if is_late else 0


def drop(states: States, hit: Hit, hold_id: HoldId) -> tuple[str, int]:
    """Drop a hold; return its member (empty if there is none), and when it was due."""
    holds = dict(_holds_of(states, hit))
    member, due = _find(holds, hold_id)
    if member:
        del holds[member]
        _put(states, hit, holds)
    return member, due


def renew(states: States, hit: Hit, change: HoldChange, now: int) -> int:
    """Let a hold last longer, never shorter; return when it is due. 0 if it is gone, or was due already."""
    holds = dict(_holds_of(states, hit))
    member, due = _find(holds, change.hold)
    if not member or due <= now:
        return 0
    holds[member] = due = max(due, now + change.amount)
    keep(states, hit.holds, holds, due)
    _note_first_due(states, hit, states.expiry(hit.holds))
    return due


def replace(states: States, key: str, algorithm: Algorithm[Any], before: Any, after: Any) -> None:
    """Replace the state of a limit; None drops it."""
    if after is None:
        states.drop(key)
    elif after is not before:
        states.put(key, after, algorithm.expiry(after))


def _due(holds: Holds, now: int, most: int) -> list[str]:
    return [member for _, member in sorted((stop, member) for member, stop in holds.items() if stop <= now)][:most]


def _restore(states: States, hit: Hit, member: str, units: int, now: int) -> None:
    for key, place in {place[0]: place for place in _places(hit)}.items():
        state = states.get(key)
        replace(states, key, place[1], state, _restored(state, place, member, units, now))


def _restored(state: Any, place: _Place, member: str, units: int, now: int) -> Any:
    """Return the state of a limit after those units of a hold that still count were restored."""
    key, algorithm, parameters = place
    receipt = _receipts(member).get(_window_of(key))
    if receipt is None:  # an override has replaced the limits that the hold consumed
        return state
    return algorithm.restore(state, parameters, units, receipt, now)


def _places(hit: Hit) -> Iterator[_Place]:
    """Yield the limits of a hit, then those of its extra keys."""
    yield from map(_place, hit.limits)
    for key in hit.extra_keys:
        yield key, BY_CODE[_window_of(key).partition(".")[0]], Parameters(0, 0)


def _place(limit: CompiledLimit) -> _Place:
    return limit.key, limit.algorithm, limit.parameters


def _receipts(member: str) -> dict[str, list[int]]:
    """Return the receipts of a hold, by the name of the limit."""
    words = (part.split("=") for part in member.split(" ")[2:])
    return {window: list(map(int, receipt.split(":"))) for window, receipt in words}


def _put(states: States, hit: Hit, holds: Holds) -> None:
    keep(states, hit.holds, holds, 0)
    _note_first_due(states, hit, states.expiry(hit.holds))


def _note_first_due(states: States, hit: Hit, keep_until: int) -> None:
    holds = _holds_of(states, hit)
    if holds:
        set_field(states, hit.status_key, f"d:{hit.field}", str(min(holds.values())), keep_until)
    else:
        drop_field(states, hit.status_key, f"d:{hit.field}")


def _find(holds: Holds, hold_id: HoldId) -> tuple[str, int]:
    """Return the member of a hold, and when it is due; an empty text and when it was due if there is none.

    It is due later than its name says if the reply to a renewal was lost.
    """
    later = sorted((stop, member) for member, stop in holds.items() if stop >= hold_id.due)[:MAX_FORESEEN]
    found = ((member, stop) for stop, member in later if member.startswith(f"{hold_id.token} "))
    return next(found, ("", hold_id.due))


def _holds_of(states: States, hit: Hit) -> Holds:
    return states.get(hit.holds) or {}


def _units(member: str) -> int:
    return int(member.split(" ")[1])


def _window_of(key: str) -> str:
    """Return the name of a limit within its rule."""
    return key.rpartition(":")[2]
