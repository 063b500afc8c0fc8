"""Undoing: what hits have just spent is taken back, since a later part of their plan was refused. Pure.

`lua/undo.lua` twin. What others have done meanwhile stays. Where it cannot be told apart, less is given back, never
more: an undone hit never makes room that it did not take, or that somebody was told is theirs.

| algorithm | what is given back | what is not |
|---|---|---|
| sliding window | the hit's own entry, or its part of a slice | what a refund has given back already |
| fixed window, calendar | its part of the count, while that window lasts | |
| token bucket | what has not flowed back by itself | the time that others, who gave back, may have won for it |
| leaky bucket | its place, while it is the last in the queue | else nothing: those behind it know when they leave |
| distinct | the value as it was known before | nothing, where somebody has used the value since |

A reset in between forgets what the hit has spent, of which a calendar, a slice or a bucket keeps no trace: as much may
then be taken off what came after the reset, once for each hit that was under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from django_quota.algorithms import Parameters, Step
from django_quota.algorithms.fixed_window import Tally
from django_quota.algorithms.leaky_bucket import LeakyBucket
from django_quota.algorithms.sliding_window import WRAP, Entry
from django_quota.algorithms.token_bucket import Bucket, Queued, TokenBucket, known_of
from django_quota.operations.base import States
from django_quota.operations.hits import Hit
from django_quota.operations.standing import KNOWN_BEFORE, Case, drop_field


class Mark(NamedTuple):
    """What tells of one limit what a hit spent there."""

    stop: int
    """The moment from which on nothing of it is used any more; of a limit that counts values, the value's expiry."""
    before: int | None = None
    """Until when the value was known before (0: it was not), or how much had been given back of a bucket."""
    refunded: int | None = None
    """How much had been refunded of a bucket."""
    alone: int | None = None
    """When it would have flowed back if it had been alone, of a bucket."""

    def words(self) -> str:
        """Return it as `lua/undo.lua` reads it."""
        return ":".join(str(number) for number in self if number is not None)

    @classmethod
    def read(cls, words: str) -> Mark:
        """Read what `words` has written."""
        return cls(*map(int, words.split(":")))


class Spent(NamedTuple):
    """What a hit has spent: a mark for each of its limits, and whether it was told to be near one of them."""

    marks: Sequence[Mark]
    near: bool


def undoing(spent: Sequence[Spent]) -> str:
    """Return the mode that undoes hits, which passed, by what each of them spent."""
    words = ["undo"]
    for marks, near in spent:
        words.append(("n" if near else "-") + ",".join(mark.words() for mark in marks))
    return " ".join(words)


def undo_all(states: States, hits: Sequence[Hit], words: str, now: int) -> None:
    """Undo these hits, as the mode says behind its first word."""
    for hit, said in zip(hits, words.split(" "), strict=True):
        for step, mark in zip(hit.steps, map(Mark.read, said[1:].split(",")), strict=True):
            _undo(states, hit, step, mark, now)
        if said[0] == "n":
            drop_field(states, hit.standing, f"w:{hit.field}")


def known_before(states: States, case: Case, now: int) -> list[int]:
    """Return notes of what is known before a hit is spent, for each limit where undoing it takes that."""
    notes = []
    for step in case.hit.steps:
        if is_noted(step):
            state = states.get(step.key)
            if counts_values(step):
                before = (state or {}).get(step.parameters.value, 0)
                known = [before if before > now else 0]
            else:
                known = list(known_of(state, now)[1:3])
            for number in known:
                notes += [case.index, KNOWN_BEFORE, number]
    return notes


def _undo(states: States, hit: Hit, step: Step, mark: Mark, now: int) -> None:
    # A refused hit is spent all the same where the limit counts those.
    if (step.limit.options.count_refused and hit.group == 0) or mark.stop <= now:
        return
    state = states.get(step.key)
    after = _WAYS[step.limit.algorithm.name](state, step.parameters, step.cost, mark, now)
    if after is None:
        states.drop(step.key)
    elif after != state:
        states.put(step.key, after, step.limit.algorithm.expiry(after))


def counts_values(step: Step) -> bool:
    """Say whether a limit counts different values."""
    return step.limit.algorithm.name == "distinct"


def is_noted(step: Step) -> bool:
    """Say whether it is noted how a limit was before a hit is spent."""
    return _is_bucket(step) or counts_values(step)


def _is_bucket(step: Step) -> bool:
    return isinstance(step.limit.algorithm, TokenBucket)


def _of_sliding(state: tuple[Entry, ...] | None, p: Parameters, cost: int, mark: Mark, now: int) -> Any:  # noqa: ARG001
    at = next((at for at, entry in enumerate(state or ()) if entry.expiry == mark.stop), None)
    if not state or at is None:
        return state
    own, less = state[at], min(cost, state[at].cost)
    lowered = [Entry((entry.total - less) % WRAP, entry.cost, entry.expiry) for entry in state[at:]]
    lowered[0] = lowered[0]._replace(cost=own.cost - less)
    return (*state[:at], *(entry for entry in lowered if entry.cost or entry.expiry != own.expiry)) or None


def _of_values(state: dict[str, int] | None, p: Parameters, cost: int, mark: Mark, now: int) -> Any:  # noqa: ARG001
    if not state or state.get(p.value) != mark.stop:
        return state
    others = {value: expiry for value, expiry in state.items() if value != p.value}
    before = mark.before or 0
    return ({**others, p.value: before} if before > now else others) or None


def _of_token_bucket(state: Bucket | None, p: Parameters, cost: int, mark: Mark, now: int) -> Any:
    queued = Queued(mark.stop, mark.before or 0, mark.refunded or 0, mark.alone or 0, p.a)
    return _BUCKET.give_back(state, p, cost, queued, now)


def _of_leaky_bucket(state: Bucket | None, p: Parameters, cost: int, mark: Mark, now: int) -> Any:
    return _LEAKY.give_back(state, p, cost, Queued(mark.stop, 0, 0, 0, p.a), now)


def _of_tally(state: Tally | None, p: Parameters, cost: int, mark: Mark, now: int) -> Any:  # noqa: ARG001
    if state is None or state.end != mark.stop:  # a window that was emptied and opened again ends at another moment
        return state
    return Tally(state.used - cost, state.end) if state.used > cost else None


_BUCKET, _LEAKY = TokenBucket(), LeakyBucket()

_WAYS: dict[str, Callable[[Any, Parameters, int, Mark, int], Any]] = {
    "sliding_window": _of_sliding,
    "distinct": _of_values,
    "token_bucket": _of_token_bucket,
    "leaky_bucket": _of_leaky_bucket,
    "fixed_window": _of_tally,
    "calendar": _of_tally,
}
