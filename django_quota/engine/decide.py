"""The decision: any number of hits, each with any number of limits; all or nothing.

`Decide.run` is the specification of `engine/lua/decide.lua`. That script is a frame; a line of percent signs marks
where `MODULES` are inserted. Redis runs the whole text at each call, and making all its functions would take longer
than deciding. So `need(name)` makes a module when it is first needed, like Lua's `require`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from django_quota.core.algorithms import REGISTRY, STOCK, Verdict
from django_quota.core.algorithms.stock import Drawn, Total, drawn_text
from django_quota.engine.ahead import begin_ahead, take_ahead
from django_quota.engine.codec import (
    ALLOWED,
    PER_LIMIT,
    REFUSED,
    RETRY_WITH,
    Adjust,
    Adjustment,
    Flag,
    Flagged,
    Mode,
    Reply,
    SettledMark,
    encode_mode,
)
from django_quota.engine.compiled import CompiledLimit
from django_quota.engine.counter_totals import end_lease, give_back_ended, lease_member, take_for_lease
from django_quota.engine.events import (
    change_counts,
    count_day,
    emit,
    judge_near,
    judge_refused,
    load_status,
    shut_out,
)
from django_quota.engine.hits import Hit, HitContext
from django_quota.engine.operations import Operation, Script, States, lua_source, packed

MODULES: dict[str, tuple[str, ...]] = {
    "ahead": ("ahead",),
    **{name: (f"core/algorithms/{name}",) for name in REGISTRY},
    "stock": ("counter_common", "open_grants", "make_grants", "leased_units", "core/algorithms/stock"),
    "adjust": ("adjust",),
    "events": ("events",),
    "flag": ("flag",),
    "force": ("force",),
    "near": ("near",),
    "refusal": ("refusal",),
    "restore": ("restore",),
    "sliding_wait": ("core/algorithms/sliding_wait",),
    "subject_status": ("subject_status",),
    "try_write": ("try_write",),
}
"""The modules of the script, and the files that each consists of. The last one returns the module."""

PARTS = ("lifetimes", "constants", "core/algorithms/sliding_entries")
"""The files whose functions the plain plans, the frame and the modules share."""


def _composed() -> str:
    frame, constants = lua_source("decide"), lua_source("constants")
    modules = [f"if name == '{name}' then\n{''.join(map(lua_source, files))}end\n" for name, files in MODULES.items()]
    places = {
        "-- %% plain plans %%\n": "".join(map(lua_source, (*PARTS, "plain_plan"))),
        "-- %% parts %%\n": lua_source("count_day"),
        "-- %% modules %%\n": constants + "".join(modules),
    }
    for place, source in places.items():
        frame = frame.replace(place, source)
    return lua_source("clock") + frame


class Decide(Operation):
    """Decide hits. `read_reply` unpacks the reply of the script, and `codec.Reply` gives its numbers names.

    `mode`: see `codec.Mode`. `emits`: whether flags report events; the caller writes them (`AppendEvents`).
    """

    script: ClassVar[Script] = Script.of(_composed())

    def __init__(self, hits: Sequence[Hit], mode: Mode, *, emits: bool = False) -> None:
        self.hits = hits
        self.mode = mode
        self.emits = emits

    @property
    def keys(self) -> list[str]:  # type: ignore[override]
        """All keys of the operation, in the order that `engine/lua/decide.lua` lists."""
        keys = list[str]()
        for hit in self.hits:
            keys += hit.keys
        if isinstance(self.mode, Adjust):
            keys += self.mode.keys
        return keys

    @property
    def is_reading(self) -> bool:  # type: ignore[override]
        """Whether the operation never writes."""
        return self.mode == "peek"

    @property
    def gives_back(self) -> bool:  # type: ignore[override]
        """Whether it settles or refunds hits."""
        return self.mode not in ("check", "force", "peek")

    def arguments(self) -> list[str | int]:
        """Return the arguments that `engine/lua/decide.lua` lists."""
        arguments: list[str | int] = [encode_mode(self.mode), int(self.emits)]
        for hit in self.hits:
            arguments += hit.arguments
        return arguments

    def _packed(self, script: bytes, now: int | None) -> bytes:
        """Return a command that is joined from the bytes of compiled rules."""
        number_of_keys, number_of_arguments, all_keys, all_arguments = 0, 3, b"", b""
        for hit in self.hits:
            more_keys, keys, more_arguments, arguments = hit.packed()
            number_of_keys += more_keys
            number_of_arguments += more_arguments
            all_keys += keys
            all_arguments += arguments
        mode = encode_mode(self.mode)
        if isinstance(self.mode, Adjust):
            keys_of_mode = self.mode.keys
            number_of_keys += len(keys_of_mode)
            all_keys += packed(keys_of_mode)
        emits = int(self.emits)
        first = _packed_mode(mode, emits) if now is None else packed((now, mode, emits))
        head = b"*%d\r\n%s" % (3 + number_of_keys + number_of_arguments, script)
        return b"".join((head, _packed_number(number_of_keys), all_keys, first, all_arguments))

    def read_reply(self, reply: Any) -> Any:
        """Return the numbers in the text of a decision. A reply that asks for the hits again is a list already."""
        if isinstance(reply, bytes) and len(reply) % _NUMBER == 0:
            return list(_numbers_in(len(reply)).unpack(reply))
        return reply

    def run(self, states: States, now: int) -> list[Any]:
        """Decide over these states."""
        if any(_is_outside(hit, now, counts=self.mode in ("check", "force")) for hit in self.hits):
            return Reply(now, RETRY_WITH).encode()
        contexts = [HitContext(hit, index) for index, hit in enumerate(self.hits)]
        for context in contexts:
            load_status(states, context, now)
            context.limits, ahead = context.hit.limits, context.hit.ahead
            if ahead is not None:
                begin_ahead(states, context, ahead, now, writes=self.mode != "peek")
        self._restore(states, contexts, now)
        is_adjusting = isinstance(self.mode, Adjust)
        for context in contexts:
            hit = context.hit
            cost = 0 if is_adjusting else hit.cost
            context.verdicts = [_peek(states, context, limit, cost, now) for limit in context.limits]
            context.is_refused = any(not verdict.allowed for verdict in context.verdicts)
        refused = {context.hit.group for context in contexts if context.is_refused}
        flags = [Flagged(context.index, context.status, context.stop) for context in contexts if context.status]
        for context in contexts:
            ahead = context.hit.ahead
            if ahead is not None and ahead.spent and self.mode != "peek" and self.emits:
                flags += judge_near(states, context, ahead.spent, now, emits=True)
        for context in contexts:
            if self.mode == "force" and context.hit.cost > 0:
                flags += self._force(states, context, now)
            if self.mode == "check" and context.hit.cost > 0:
                flags += self._check(states, context, refused, now)
            flags += self._judge_near(states, context, now)
            self._answer(states, context)
        verdict = REFUSED if 0 in refused else ALLOWED
        return Reply(now, verdict, [context.verdicts for context in contexts], flags).encode()

    def _restore(self, states: States, contexts: Sequence[HitContext], now: int) -> None:
        """Adjust hits, or refund their costs. First, leases that have ended give their units back."""
        for context in contexts:
            if context.hit.compiled.leased and self.mode != "peek":
                for limit, *keys in zip(context.limits, context.hit.leased_keys, context.hit.grants_keys, strict=True):
                    give_back_ended(states, keys[0], limit.key, keys[1], now)
        if isinstance(self.mode, Adjust):
            for context, adjustment in zip(contexts, self.mode.of_hits, strict=True):
                if adjustment is not None and _is_first(states, context, adjustment.mark, now):
                    _adjust(states, context, adjustment, now)
        elif self.mode == "refund":
            for context in contexts:
                for limit in context.limits:
                    state = limit.state(states, now)
                    limit.put(states, state, limit.algorithm.refund(state, limit.parameters, context.hit.cost, now))

    def _judge_near(self, states: States, context: HitContext, now: int) -> list[Flagged]:
        """Say whether a limit is near after what was really used."""
        actual = 0 if self.mode == "refund" else None
        if isinstance(self.mode, Adjust):
            adjustment = self.mode.of_hits[context.index]
            actual = None if adjustment is None or not context.is_settled else adjustment.actual
        if actual is None:
            return []
        return judge_near(states, context, actual, now, emits=self.emits, lowers=True)

    def _answer(self, states: States, context: HitContext) -> None:
        """Show the first answer to a hit that was settled before; remember the answer to any other."""
        if not isinstance(self.mode, Adjust):
            return
        adjustment = self.mode.of_hits[context.index]
        mark = None if adjustment is None else adjustment.mark
        if mark is None:
            return
        if context.answer is not None:
            numbers = list(map(int, context.answer.split()))
            if len(numbers) == PER_LIMIT * len(context.limits):
                found = [numbers[at : at + PER_LIMIT] for at in range(0, len(numbers), PER_LIMIT)]
                context.verdicts = [Verdict(allowed == 1, *rest) for allowed, *rest in found]
        elif context.is_settled:
            answer = " ".join([str(int(number)) for verdict in context.verdicts for number in verdict])
            states.put(mark.key, answer, states.expiry(mark.key))

    def _force(self, states: States, context: HitContext, now: int) -> list[Flagged]:
        """Consume a hit whether or not there is room; return the flags. The verdicts say whether there was."""
        hit, flags = context.hit, list[Flagged]()
        for number, (limit, verdict) in enumerate(zip(context.limits, context.verdicts, strict=True)):
            if limit.parameters.capacity == 0:
                continue
            algorithm = limit.algorithm
            before = limit.state(states, now)
            state, after = algorithm.consume(before, limit.parameters, hit.cost, now, over=True)
            limit.put(states, before, state)
            flags += _flags_of(context, _drawn(before, state))
            context.verdicts[number] = after if verdict.allowed else _peek(states, context, limit, hit.cost, now)
        context.is_refused = False
        count_day(states, context, now, passed=True)
        return flags + judge_near(states, context, hit.cost, now, emits=self.emits)

    def _check(self, states: States, context: HitContext, refused: set[int], now: int) -> list[Flagged]:
        """Consume a hit, or count its refusal; return the flags."""
        hit = context.hit
        group_refused = hit.group in refused
        passed = not group_refused and 0 not in refused
        flags = judge_refused(states, context, now) if self.emits else []
        before = [limit.state(states, now) for limit in context.limits] if hit.compiled.grants else []
        if not context.status:
            context.verdicts = [
                _consume(states, hit, limit, verdict, now, passed=passed, group_refused=group_refused)
                for limit, verdict in zip(context.limits, context.verdicts, strict=True)
            ]
        count_day(states, context, now, passed=passed)
        for number, state in enumerate(before if passed else ()):
            limit = context.limits[number]
            drawn = _drawn(state, limit.state(states, now))
            flags += _flags_of(context, drawn)
            if hit.leased_keys:
                p, member = limit.parameters, lease_member(hit.value, hit.cost, drawn_text(drawn))
                take_for_lease(states, hit.leased_keys[number], member, now + p.b, now + p.a + p.b)
        flags += emit(states, context, now, passed=passed, emits=self.emits)
        if hit.ahead is not None and hit.ahead.wish and passed:
            flags += take_ahead(states, context, hit.ahead, now)
        return flags


def _drawn(before: Any, after: Any) -> list[Drawn]:
    """Return what a hit took of grants. `before` and `after`: the states of its limit."""
    return after.drawn_since(before) if isinstance(after, Total) else []


def _flags_of(context: HitContext, drawn: Iterable[Drawn]) -> list[Flagged]:
    """Return the flags that say what a hit took of grants."""
    pairs = [((Flag.DRAWN_OF, each.expires), (Flag.DRAWN, each.units)) for each in drawn]
    return [Flagged(context.index, flag, value) for pair in pairs for flag, value in pair]


@lru_cache(maxsize=64)
def _packed_number(number: int) -> bytes:
    return packed((number,))


@lru_cache(maxsize=64)
def _packed_mode(mode: str, emits: int) -> bytes:
    """Return the first arguments of a decision by the clock of Redis."""
    return packed(("", mode, emits))


@lru_cache(maxsize=64)
def _numbers_in(length: int) -> struct.Struct:
    """Return what unpacks this many bytes."""
    return struct.Struct(f"<{length // _NUMBER}q")


_NUMBER = 8
"""Bytes of a number in the script's reply."""


def _is_outside(hit: Hit, now: int, *, counts: bool) -> bool:
    """Say whether `now` is outside a calendar period that was sent, or, if the hit `counts`, outside its day."""
    if counts and hit.day is not None and not hit.day.begins <= now < hit.day.ends:
        return True
    return any(
        limit.algorithm.is_outside(limit.parameters, now) for limit in hit.limits if not limit.algorithm.timeless
    )


def _peek(states: States, context: HitContext, limit: CompiledLimit, cost: int, now: int) -> Verdict:
    verdict = limit.algorithm.peek(limit.state(states, now), limit.parameters, cost, now)
    return shut_out(verdict, context.stop, now) if context.status else verdict


def _consume(
    states: States, hit: Hit, limit: CompiledLimit, verdict: Verdict, now: int, *, passed: bool, group_refused: bool
) -> Verdict:
    """Consume the cost of a limit if the hit passed; return the verdict after it.

    `passed`: all that must allow the hit do. `group_refused`: a rule that decides together with its rule refused.
    """
    algorithm = limit.algorithm
    counts = limit.limit.options.count_refused and limit.parameters.capacity > 0 and group_refused
    before = limit.state(states, now)
    if not passed and not counts:
        limit.put(states, before, algorithm.follow_clock(before, now))
        return verdict
    state, after = algorithm.consume(before, limit.parameters, hit.cost, now)
    limit.put(states, before, state)
    if passed:
        return after
    # A limit that a refused hit has filled refuses the next hit, too: the reply says for how long.
    return algorithm.peek(state, limit.parameters, hit.cost, now)


def _is_first(states: States, context: HitContext, mark: SettledMark | None, now: int) -> bool:
    """Return whether the hit is settled now: not if it was settled before, or if it is too late."""
    if mark is not None:
        context.answer = states.get(mark.key, now)
        if context.answer is not None or mark.stop <= now:
            return False
        states.put(mark.key, "", mark.stop)
    context.is_settled = True
    return True


def _adjust(states: States, context: HitContext, adjustment: Adjustment, now: int) -> None:
    """Charge what a hit used beyond what it took, even past the limit, or give back what it did not use.

    This settles a reservation, and undoes a request that is refused after all. `engine/lua/adjust.lua` is the script.
    """
    hit = context.hit
    for portion in adjustment.portions:
        moment, cost, actual, places, lease, drawn, day_key = portion
        for number, (limit, is_counted) in enumerate(zip(context.limits, places, strict=True)):
            took = cost
            if hit.leased_keys and not end_lease(states, hit.leased_keys[number], lease_member(lease, cost, drawn)):
                took = 0  # the lease has ended, and its units have gone back already
            more = actual - took
            algorithm, parameters, state = limit.algorithm, limit.parameters, limit.state(states, now)
            if more > 0 and parameters.capacity > 0:
                limit.put(states, state, algorithm.consume(state, parameters, more, now, over=True)[0])
            elif more < 0 and is_counted and algorithm is STOCK:
                limit.put(states, state, STOCK.give_back(state, parameters, -more, cost, moment, now, drawn))
            elif more < 0 and is_counted:
                limit.put(states, state, algorithm.give_back(state, parameters, -more, cost, moment, now))
        if hit.day is not None and actual != cost:  # a hit that used nothing does not count
            hits = -1 if actual == 0 else 0
            counts = {f"{hit.field}:a": hits, f"{hit.field}:u": actual - cost - hits}
            change_counts(states, day_key or hit.day.key, counts, now)
