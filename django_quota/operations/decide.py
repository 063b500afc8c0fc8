"""The decision: one plan, any number of limits of any algorithms, all or nothing. Pure.

`Decide.run` says in Python what `lua/decide.lua` says in Lua. The script is a frame, into which the algorithm files are
put where it says so, in the order of `ALGORITHMS`: a file may use what an earlier one defines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from django_quota.algorithms import ALGORITHMS, Step, Verdict, is_stale
from django_quota.operations.base import Operation, Script, States, lua_source

Mode = Literal["check", "peek", "refund"]

STALE, REFUSED, ALLOWED = -1, 0, 1
"""The verdicts of a reply."""

_PLACE = "-- %% algorithms %%"


def _put_together() -> str:
    frame = lua_source("decide")
    if frame.count(_PLACE) != 1:
        raise RuntimeError(f"lua/decide.lua must hold {_PLACE!r} exactly once")
    return frame.replace(_PLACE, "\n".join(lua_source(name) for name in ALGORITHMS))


class Decide(Operation):
    """Decide a plan; the reply is that of `lua/decide.lua`."""

    script: ClassVar[Script] = Script.of(_put_together())

    def __init__(self, steps: Sequence[Step], mode: Mode) -> None:
        self.steps = steps
        self.mode = mode
        self.keys = [step.key for step in steps]

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/decide.lua` lists them."""
        arguments: list[str | int] = [self.mode]
        for step in self.steps:
            arguments += (step.wire, step.cost)
        return arguments

    def run(self, states: States, now: int) -> list[int]:
        """Decide over these states."""
        return decide(states, self.steps, self.mode, now)


def decide(states: States, steps: Sequence[Step], mode: Mode, now: int) -> list[int]:
    """Decide a plan, all or nothing, over the states by key; `now` in microseconds.

    Returns what `lua/decide.lua` replies: now, the verdict, and ok, remaining, wait and reset of each limit.
    """
    if any(is_stale(step.parameters, now) for step in steps if not step.limit.algorithm.timeless):
        return [now, STALE]
    if mode == "refund":
        for step in steps:
            _give_back(states, step, now)
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
        verdict = _spend(states, step, now)
    elif step.limit.options.count_refused and step.parameters.capacity > 0 and step.group in refused:
        _spend(states, step, now)
        after = step.limit.algorithm.inspect(states.get(step.key), step.parameters, step.cost, now)
        verdict = after._replace(ok=verdict.ok, wait=0 if verdict.ok else after.wait)
    return verdict


def _spend(states: States, step: Step, now: int) -> Verdict:
    algorithm = step.limit.algorithm
    state, verdict = algorithm.spend(states.get(step.key), step.parameters, step.cost, now)
    states.put(step.key, state, algorithm.expiry(state))
    return verdict


def _give_back(states: States, step: Step, now: int) -> None:
    algorithm = step.limit.algorithm
    state = algorithm.refund(states.get(step.key), step.parameters, step.cost, now)
    if state is None:
        states.drop(step.key)
    else:
        states.put(step.key, state, algorithm.expiry(state))
