"""The decision: one plan, any number of hits, each with any number of limits; all or nothing. Pure.

`Decide.run` says in Python what `lua/decide.lua` says in Lua. The script is a frame, into which its parts are put where
it says so: the algorithm files in the order of `EVERY`, then `PARTS`; a file may use what an earlier one defines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Literal

from django_quota.algorithms import EVERY, NUMBERS, Step, Verdict, is_stale
from django_quota.operations.base import Operation, Repeated, Script, States, lua_source, text
from django_quota.operations.hits import Hit
from django_quota.operations.holds import give_back_due, hold, lacking, replace, settle, states_after_due
from django_quota.operations.shapes import are_whole, is_rows, moment, whole, words
from django_quota.operations.standing import (
    BAN_BEGAN,
    BAN_LEVEL,
    EXEMPT,
    HOLDS_DUE,
    OVERRIDDEN,
    SETTLED_LATE,
    Case,
    shut_out,
    stand,
)
from django_quota.operations.telling import count, tell
from django_quota.operations.undo import known_before, undo_all

Mode = Literal["check", "peek", "refund"]

SPENDING = frozenset({"check", "reserve", "take", "late"})
"""The modes in which a hit that passes is spent, and one that is refused is told."""

STALE, REFUSED, ALLOWED = -1, 0, 1
"""The verdicts of a reply."""

_PLACE = "-- %% parts %%"
PARTS = (*EVERY, "holds", "standing", "log", "telling", "undo")


def _put_together() -> str:
    frame = lua_source("decide")
    if frame.count(_PLACE) != 1:
        raise RuntimeError(f"lua/decide.lua must hold {_PLACE!r} exactly once")
    return lua_source("clock") + frame.replace(_PLACE, "\n".join(map(lua_source, PARTS)))


class Log:
    """Where events are told: the keys of the stream, of the index of bans and of the bans' own stream.

    `length`: how many events each stream keeps.
    """

    __slots__ = ("keys", "length")

    def __init__(self, stream: str, bans: str, banned: str, length: int) -> None:
        self.keys = [stream, bans, banned]
        self.length = length


class FarLog(Log):
    """A log that no script of the decision reaches: its notes say what there is to tell, and the caller writes it."""

    __slots__ = ()

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.length = -1


FAR_LOG = FarLog()


class Decide(Operation):
    """Decide a plan; the reply is that of `lua/decide.lua`.

    `mode`: "check", "peek" or "refund"; or `reserving(...)`, `settling(...)` of a plan of one hit; "take", "late",
    "count" and `undoing(...)` are for plans that are decided in parts, see `spread` and `Limiter.in_turn`. `log`: where
    events are told; None: nowhere.
    """

    script: ClassVar[Script] = Script.of(_put_together())

    def __init__(self, hits: Sequence[Hit], mode: str, log: Log | None = None) -> None:
        self.hits = hits
        self.mode = mode
        self.log = log
        self.keys = list[str]()
        for hit in hits:
            self.keys += hit.keys
        if log is not None:
            self.keys += log.keys

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/decide.lua` lists them."""
        return [argument for part in self.parts() for argument in part.arguments]

    def parts(self) -> list[Repeated]:
        """Return the arguments in parts: how to decide, then each hit."""
        # What names a hold, or what is to be undone, does not come again: it must not fill the cache.
        made = _how.__wrapped__ if " " in self.mode else _how
        return [made(self.mode, 0 if self.log is None else self.log.length), *[hit.arguments for hit in self.hits]]

    def fits(self, reply: Any) -> bool:
        """Say whether a reply can be the one to this."""
        if not isinstance(reply, list) or len(reply) < 2 or not moment(reply[0]):  # noqa: PLR2004 — now and the verdict
            return False
        if reply[1] == STALE:
            reasons = reply[2:]
            return (
                not self.mode.startswith(("undo", "count"))
                and is_rows(reasons, self._is_index, whole, words)
                and all(_is_reason(*reasons[at + 1 : at + 3]) for at in range(0, len(reasons), 3))
            )
        end = 2
        for hit in self.hits:
            end += NUMBERS * len(hit.limits)
        if len(reply) < end or (len(reply) - end) % 3 or not are_whole(reply):
            return False
        return len(reply) == end or all(map(self._is_index, reply[end::3]))

    def _is_index(self, part: object) -> bool:
        return isinstance(part, int) and 0 <= part < len(self.hits)

    def run(self, states: States, now: int) -> list[int | str]:
        """Decide over these states."""
        cases = [Case(hit, index) for index, hit in enumerate(self.hits)]
        mode, *arguments = self.mode.split(" ", 2)
        stale = self._begin(states, cases, now)
        if stale is not None:
            return [now, STALE, *stale]
        for case in cases:
            case.verdicts = [_inspect(states, case, number, now) for number in range(len(case.hit.steps))]
            case.is_refused = any(not verdict.ok for verdict in case.verdicts)
        refused = {case.hit.group for case in cases if case.is_refused}
        if mode == "late":
            refused.add(0)
        notes = [number for case in cases if case.standing for number in (case.index, case.standing, case.stop)]
        notes += [number for case in cases if case.late for number in (case.index, SETTLED_LATE, case.late)]
        for case in cases:
            if mode in SPENDING and case.hit.cost > 0:
                passed = not refused & {0, case.hit.group}
                known = known_before(states, case, now) if mode == "take" and passed and not case.standing else ()
                _spend(states, case, refused, now)
                if mode == "reserve" and passed and not case.standing:
                    used_until = [now + verdict.reset for verdict in case.verdicts]
                    hold(states, case.hit, arguments[0], int(arguments[1]), used_until, now)
                if mode != "take" or case.is_refused:
                    count(states, case, passed, now)
                told = tell(states, case, passed, self.log is not None, now)
                if self.log is FAR_LOG and BAN_BEGAN in told[1::3]:
                    told += [case.index, BAN_LEVEL, case.level]
                notes += (*told, *known)
        return [now, REFUSED if 0 in refused else ALLOWED, *_numbers(cases), *notes]

    def _begin(self, states: States, cases: Sequence[Case], now: int) -> Sequence[int | str] | None:
        """Do what comes before the limits are looked at; return why the plan is stale, where it is."""
        mode, _, arguments = self.mode.partition(" ")
        if mode == "undo":
            undo_all(states, self.hits, arguments, now)
            return None
        if mode == "count":
            for case in cases:
                count(states, case, passed=True, now=now)
            return None
        if any(_is_stale(case.hit, now) for case in cases):
            return ()
        if mode == "settle":
            actual, due, token = arguments.split(" ")
            case = cases[0]
            case.late = int(due) if settle(states, case.hit, token, int(due), int(actual), now) else 0
            case.states = states_after_due(states, case.hit, now)
            return None
        stale = [reason for case in cases for reason in stand(states, case, now)]
        for case in cases:
            lacks = lacking(states, case.hit, now) if case.hit.holds and mode != "peek" else ""
            if lacks:
                stale += (case.index, HOLDS_DUE, lacks)
        return stale or _take_back(states, cases, mode, now) or None


def _is_reason(what: int, value: str | bytes) -> bool:
    """Say whether it can be why a plan is stale: a rate override as it is published or none, or the names of limits."""
    if what == OVERRIDDEN:
        return not value or text(value).count(" ") >= 3  # noqa: PLR2004
    return not value or (what == HOLDS_DUE and _LIMITS.fullmatch(text(value)) is not None)


_LIMITS = re.compile(r"(?:sw|fw|cal|tb|lb)\.[^\s:={},]+(?:,(?:sw|fw|cal|tb|lb)\.[^\s:={},]+)*")


def _numbers(cases: Sequence[Case]) -> Iterator[int]:
    for case in cases:
        for ok, *others in case.verdicts:
            yield from (int(ok), *others)


def reserving(token: str, ttl: int) -> str:
    """Return the mode that checks, and notes what was spent as a hold of so many microseconds."""
    return f"reserve {token} {ttl}"


@lru_cache(maxsize=64)
def _how(mode: str, events: int) -> Repeated:
    return Repeated(mode, events)


def settling(held: str, actual: int) -> str:
    """Return the mode that makes what a hold (as `Plan.held` names it) spent what was really used."""
    return f"settle {actual} {held}"


def _is_stale(hit: Hit, now: int) -> bool:
    if hit.day is not None and not hit.day.begins <= now < hit.day.ends:
        return True
    return any(is_stale(step.parameters, now) for step in hit.steps if not step.limit.algorithm.timeless)


def _take_back(states: States, cases: Sequence[Case], mode: str, now: int) -> list[int | str]:
    """Give back abandoned holds, and, where that is the mode, the costs; return why the plan is stale, if it is."""
    stale: list[int | str] = []
    for case in cases:
        if case.hit.holds and mode == "peek":
            case.states = states_after_due(states, case.hit, now)
        elif case.hit.holds and give_back_due(states, case.hit, now, case.due):
            stale += (case.index, HOLDS_DUE, "")
    if stale:
        return stale
    for case in cases:
        if mode == "refund" and case.standing != EXEMPT:
            for step in case.hit.steps:
                state = states.get(step.key)
                algorithm = step.limit.algorithm
                replace(states, step.key, algorithm, state, algorithm.refund(state, step.parameters, step.cost, now))
    return stale


def _inspect(states: States, case: Case, number: int, now: int) -> Verdict:
    step = case.hit.steps[number]
    state = states.get(step.key) if case.states is None else case.states[number]
    verdict = step.limit.algorithm.inspect(state, step.parameters, step.cost, now)
    if case.standing == EXEMPT:
        return verdict._replace(ok=True, wait=0)
    if case.standing:
        return shut_out(verdict, case.stop, now)
    return verdict


def _spend(states: States, case: Case, refused: set[int], now: int) -> None:
    """Spend the cost of a hit where the plan's verdicts say so; put the verdicts after it on the case."""
    if case.standing:
        return
    case.verdicts = [
        _spend_one(states, step, verdict, case.hit.group, refused, now)
        for step, verdict in zip(case.hit.steps, case.verdicts, strict=True)
    ]


def _spend_one(states: States, step: Step, verdict: Verdict, group: int, refused: set[int], now: int) -> Verdict:
    algorithm = step.limit.algorithm
    passed = not refused & {0, group}
    counted = step.limit.options.count_refused and step.parameters.capacity > 0 and group in refused
    before = states.get(step.key)
    if not passed and not counted:
        replace(states, step.key, algorithm, before, algorithm.follow_clock(before, now))
        return verdict
    state, spent = algorithm.spend(before, step.parameters, step.cost, now)
    states.put(step.key, state, algorithm.expiry(state))
    if passed:
        return spent
    # What a refused hit has filled refuses the next one: so it is said to, and how long.
    return algorithm.inspect(state, step.parameters, step.cost, now)
