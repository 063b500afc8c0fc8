"""The algorithms, by name, and the decision over a plan of them: the executable specification. Pure.

`decide` says in Python what `lua/decide.lua` says in Lua. The memory store runs it; a state machine in the tests
holds both to the same answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from django_quota.algorithms.base import NEVER, Algorithm, Limit, Options, Parameters, Step, Verdict
from django_quota.algorithms.calendar import Calendar, is_stale
from django_quota.algorithms.fixed_window import FixedWindow
from django_quota.algorithms.leaky_bucket import LeakyBucket
from django_quota.algorithms.sliding_window import SlidingWindow
from django_quota.algorithms.token_bucket import TokenBucket

__all__ = ["ALGORITHMS", "NEVER", "Algorithm", "Limit", "Mode", "Options", "Parameters", "Step", "Verdict", "decide"]

ALGORITHMS: dict[str, Algorithm[Any]] = {
    algorithm.name: algorithm
    for algorithm in (SlidingWindow(), FixedWindow(), Calendar(), TokenBucket(), LeakyBucket())
}
"""Every algorithm by its name; the first is the default."""

Mode = Literal["check", "peek", "refund"]

STALE, REFUSED, ALLOWED = -1, 0, 1
"""The verdicts of a reply."""


class States(Protocol):
    """Where the states of a plan lie, by key; a dict is one."""

    def get(self, key: str, /) -> Any: ...
    def __getitem__(self, key: str, /) -> Any: ...
    def __setitem__(self, key: str, state: Any, /) -> None: ...
    def pop(self, key: str, default: None, /) -> Any: ...


def decide(states: States, steps: Sequence[Step], mode: Mode, now: int) -> list[int]:
    """Decide a plan, all or nothing, over the states by key; `now` in microseconds.

    Returns what `lua/decide.lua` replies: now, the verdict, and ok, remaining, wait and reset of each limit.
    """
    if any(is_stale(step.parameters, now) for step in steps if not step.limit.algorithm.timeless):
        return [now, STALE]
    if mode == "refund":
        for step in steps:
            _put(states, step.key, step.limit.algorithm.refund(states.get(step.key), step.parameters, step.cost, now))
    verdicts = [step.limit.algorithm.inspect(states.get(step.key), step.parameters, step.cost, now) for step in steps]
    refused = {step.group for step, verdict in zip(steps, verdicts, strict=True) if not verdict.ok}
    if mode == "check":
        verdicts = [_take(states, step, verdict, refused, now) for step, verdict in zip(steps, verdicts, strict=True)]
    reply = [now, REFUSED if 0 in refused else ALLOWED]
    for verdict in verdicts:
        reply += (int(verdict.ok), verdict.remaining, verdict.wait, verdict.reset)
    return reply


def _take(states: States, step: Step, verdict: Verdict, refused: set[int], now: int) -> Verdict:
    """Spend the cost of one limit where the plan's verdicts say so; return its verdict after it."""
    if step.cost == 0:
        return verdict
    if 0 not in refused and step.group not in refused:
        states[step.key], verdict = step.limit.algorithm.spend(states.get(step.key), step.parameters, step.cost, now)
    elif step.limit.options.count_refused and step.parameters.capacity > 0 and step.group in refused:
        states[step.key], _ = step.limit.algorithm.spend(states.get(step.key), step.parameters, step.cost, now)
        after = step.limit.algorithm.inspect(states[step.key], step.parameters, step.cost, now)
        verdict = after._replace(ok=verdict.ok, wait=0 if verdict.ok else after.wait)
    return verdict


def _put(states: States, key: str, state: object) -> None:
    if state is None:
        states.pop(key, None)
    else:
        states[key] = state
