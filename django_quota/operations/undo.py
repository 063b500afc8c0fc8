"""Undoing: what hits have just spent is taken back, since a later part of their plan was refused. Pure.

`lua/undo.lua` twin. What others have done meanwhile stays. Where it cannot be told apart, less is given back, never
more: an undone hit never makes room that it did not take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from django_quota.algorithms import Parameters, Step
from django_quota.algorithms.fixed_window import Tally
from django_quota.algorithms.sliding_window import WRAP, Entry, SlidingWindow
from django_quota.operations.base import States
from django_quota.operations.hits import Hit
from django_quota.operations.standing import KNOWN_BEFORE, Case, drop_field


class Mark(NamedTuple):
    """What tells of one limit what a hit spent there."""

    stop: int
    """The moment from which on nothing of it is used any more; of a limit that counts values, the value's expiry."""
    before: int = 0
    """Until when the value was known before; 0: it was not, or the limit counts none."""

    def words(self, *, of_values: bool) -> str:
        """Return it as `lua/undo.lua` reads it."""
        return f"{self.stop}:{self.before}" if of_values else str(self.stop)

    @classmethod
    def read(cls, words: str) -> Mark:
        """Read what `words` has written."""
        stop, _, before = words.partition(":")
        return cls(int(stop), int(before or 0))


class Spent(NamedTuple):
    """What a hit has spent: a mark for each of its limits, and whether it was told to be near one of them."""

    marks: Sequence[Mark]
    near: bool


def undoing(hits: Sequence[Hit], spent: Sequence[Spent]) -> str:
    """Return the mode that undoes these hits, which passed."""
    words = ["undo"]
    for hit, (marks, near) in zip(hits, spent, strict=True):
        each = [mark.words(of_values=_counts_values(step)) for step, mark in zip(hit.steps, marks, strict=True)]
        words.append(("n" if near else "-") + ",".join(each))
    return " ".join(words)


def undo_all(states: States, hits: Sequence[Hit], words: str, now: int) -> None:
    """Undo these hits, as the mode says behind its first word."""
    for hit, said in zip(hits, words.split(" "), strict=True):
        for step, mark in zip(hit.steps, map(Mark.read, said[1:].split(",")), strict=True):
            _undo(states, hit, step, mark, now)
        _uncount(states, hit)
        if said[0] == "n":
            drop_field(states, hit.standing, f"w:{hit.field}")


def known_before(states: States, case: Case, now: int) -> list[int]:
    """Return notes of what was known of a hit's value, for each limit that counts values, before it is spent."""
    notes = []
    for step in case.hit.steps:
        if _counts_values(step):
            before = (states.get(step.key) or {}).get(step.parameters.value, 0)
            notes += [case.index, KNOWN_BEFORE, before if before > now else 0]
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


def _uncount(states: States, hit: Hit) -> None:
    counts = dict((hit.day and states.get(hit.day.key)) or {})
    field = f"{hit.field}:a"
    if hit.day is None or field not in counts:
        return
    counts[field] -= 1
    if counts[field] < 1:
        del counts[field]
    states.put(hit.day.key, counts, states.expiry(hit.day.key))


def _counts_values(step: Step) -> bool:
    return step.limit.algorithm.name == "distinct"


def _of_sliding(state: tuple[Entry, ...] | None, p: Parameters, cost: int, mark: Mark, now: int) -> Any:
    last = state[-1] if state else None
    if not state or last is None or last.expiry <= now:
        return state
    if last.expiry == mark.stop and last.cost >= cost:  # it is still the last one: as if it had never been
        if last.cost == cost:
            return state[:-1] or None
        return (*state[:-1], Entry((last.total - cost) % WRAP, last.cost - cost, last.expiry))
    return SlidingWindow().refund(state, p, cost, now)


def _of_values(state: dict[str, int] | None, p: Parameters, cost: int, mark: Mark, now: int) -> Any:  # noqa: ARG001
    if not state or state.get(p.value) != mark.stop:
        return state
    others = {value: expiry for value, expiry in state.items() if value != p.value}
    return ({**others, p.value: mark.before} if mark.before > now else others) or None


def _of_bucket(state: int | None, p: Parameters, cost: int, mark: Mark, now: int) -> Any:
    after = (state or 0) - min(cost * p.a, mark.stop - now)
    return after if after > now else None


def _of_tally(state: Tally | None, p: Parameters, cost: int, mark: Mark, now: int) -> Any:  # noqa: ARG001
    if state is None or state.end != mark.stop:  # a window that was emptied and opened again ends at another moment
        return state
    return Tally(state.used - cost, state.end) if state.used > cost else None


_WAYS: dict[str, Callable[[Any, Parameters, int, Mark, int], Any]] = {
    "sliding_window": _of_sliding,
    "distinct": _of_values,
    "token_bucket": _of_bucket,
    "leaky_bucket": _of_bucket,
    "fixed_window": _of_tally,
    "calendar": _of_tally,
}
