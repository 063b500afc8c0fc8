"""The decision: one plan, any number of hits, each with any number of limits; all or nothing.

`Decide.run` is the specification of `lua/decide.lua`. That script is a frame, and `MODULES` go in where a line of
percent signs says so. Redis runs the whole text at each call, and making all its functions would take longer than
deciding: so a module is made when it is first needed, by `need(name)`, as Lua's `require` does it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, ClassVar

from django_quota.core.algorithms import REGISTRY, Verdict, is_outside
from django_quota.engine.codec import (
    ALLOWED,
    REFUSED,
    RETRY_WITH,
    Compensate,
    Flag,
    Flagged,
    HoldMode,
    Mode,
    Reply,
    Settle,
    consumes,
    encode_mode,
)
from django_quota.engine.compensate import compensate
from django_quota.engine.events import NO_LOG, REMOTE_LOG, EventLog, count_day, emit
from django_quota.engine.hits import CompiledLimit, Hit, HitContext
from django_quota.engine.holds import (
    hold,
    missing_limits,
    receipts_of,
    renew,
    replace,
    restore_due,
    settle,
    states_without_due,
)
from django_quota.engine.operations import Operation, Script, States, bulk, lua_source
from django_quota.engine.subject_status import load_status, shut_out

MODULES: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in REGISTRY},
    "compensate": ("compensate",),
    "events": ("event_log", "events"),
    "flag": ("flag",),
    "holds": ("holds",),
    "refusal": ("refusal",),
    "restore": ("restore",),
    "sliding_wait": ("sliding_wait",),
    "subject_status": ("subject_status",),
    "try_write": ("try_write",),
}
"""The modules of the script, and the files that each consists of. The last one returns the module."""

PLAIN_PLANS = ("sliding_entries", "count_day", "plain_plan")
"""The files before the frame: what decides plain plans, and what the modules use of it."""


def _composed() -> str:
    frame, constants = lua_source("decide"), lua_source("constants")
    modules = [f"if name == '{name}' then\n{''.join(map(lua_source, files))}end\n" for name, files in MODULES.items()]
    plain = map(lua_source, PLAIN_PLANS)
    parts = {"-- %% plain plans %%\n": constants + "".join(plain), "-- %% modules %%\n": constants + "".join(modules)}
    for place, source in parts.items():
        frame = frame.replace(place, source)
    return lua_source("clock") + frame


class Decide(Operation):
    """Decide hits. `read_reply` unpacks the reply of `lua/decide.lua`, and `codec.Reply` gives its numbers names.

    `mode`: see `codec.Mode`. `log`: where events are written.
    """

    script: ClassVar[Script] = Script.of(_composed())

    def __init__(self, hits: Sequence[Hit], mode: Mode, log: EventLog = NO_LOG) -> None:
        self.hits = hits
        self.mode = mode
        self.log = log

    @property
    def keys(self) -> list[str]:  # type: ignore[override]
        """All keys that it uses, in the order that `lua/decide.lua` lists."""
        keys = list[str]()
        for hit in self.hits:
            keys += hit.keys
        return [*keys, *self.log.keys]

    def arguments(self) -> list[str | int]:
        """Return the arguments that `lua/decide.lua` lists."""
        arguments: list[str | int] = [encode_mode(self.mode), self.log.length]
        for hit in self.hits:
            arguments += hit.arguments
        return arguments

    def evalsha(self, now: int | None) -> bytes:
        """Return the command as Redis takes it, from what the rules and the log have ready."""
        log, keys, arguments, words = self.log, list[str](), "", 6
        for hit in self.hits:
            keys += hit.keys
            number, packed = hit.packed_arguments
            words += number
            arguments += packed
        number_of_keys = len(keys) + len(log.keys)
        packed_keys = "".join([f"${len(key)}\r\n{key}\r\n" for key in keys])
        head = _PACKED_CHECK if now is None and self.mode == "check" else bulk((now or "", encode_mode(self.mode)))
        text = (
            f"*{words + number_of_keys}\r\n{_EVALSHA}${len(str(number_of_keys))}\r\n{number_of_keys}\r\n"
            f"{packed_keys}{log.packed_keys}{head}{log.packed_length}{arguments}"
        )
        return text.encode() if text.isascii() else super().evalsha(now)

    def read_reply(self, reply: Any) -> Any:
        """Return the numbers in the text of a decision. A request for another form is a list already."""
        if isinstance(reply, bytes) and len(reply) % _NUMBER == 0:
            return list(struct.unpack(f"<{len(reply) // _NUMBER}q", reply))
        return reply

    def run(self, states: States, now: int) -> list[Any]:
        """Decide over these states."""
        if self.mode == "record_day":
            for index, hit in enumerate(self.hits):
                count_day(states, HitContext(hit, index), now, passed=True)
            return Reply(now, ALLOWED).encode()
        contexts = [HitContext(hit, index) for index, hit in enumerate(self.hits)]
        flags: list[Flagged] = []
        retries = self._prepare(states, contexts, flags, now)
        if retries is not None:
            return Reply(now, RETRY_WITH, flags=retries).encode()
        for context in contexts:
            context.verdicts = [_peek(states, context, number, now) for number in range(len(context.hit.limits))]
            context.is_refused = any(not verdict.allowed for verdict in context.verdicts)
        refused = {context.hit.group for context in contexts if context.is_refused}
        if self.mode == "record_refusal":
            refused.add(0)
        flags += [Flagged(context.index, context.status, context.stop) for context in contexts if context.status]
        if consumes(self.mode):
            for context in contexts:
                if context.hit.cost > 0:
                    flags += self._leave_traces(states, context, refused, now)
        verdict = REFUSED if 0 in refused else ALLOWED
        return Reply(now, verdict, [context.verdicts for context in contexts], flags).encode()

    def _prepare(
        self, states: States, contexts: Sequence[HitContext], flags: list[Flagged], now: int
    ) -> list[Flagged] | None:
        """Do what comes before the limits are read; return why the plan must be sent again, if it must."""
        mode = self.mode
        if isinstance(mode, Compensate):
            for hit, consumed in zip(self.hits, mode.of_hits, strict=True):
                if consumed is not None:
                    compensate(states, hit, consumed, now)
            return None
        if any(_is_outside(context.hit, now) for context in contexts):
            return []
        if isinstance(mode, HoldMode):
            act, flag = (settle, Flag.SETTLED_LATE) if isinstance(mode, Settle) else (renew, Flag.HELD)
            for context, change in zip(contexts, mode.of_hits, strict=True):
                due = 0 if change is None else act(states, context.hit, change, now)
                if due:
                    flags.append(Flagged(context.index, flag, due))
                context.states = states_without_due(states, context.hit, now)
            return None
        retries = [reason for context in contexts for reason in load_status(states, context, now)]
        for context in contexts:
            missing = missing_limits(states, context.hit, now) if context.hit.holds and mode != "peek" else ""
            if missing:
                retries.append(Flagged(context.index, Flag.HOLDS_DUE, missing))
        return retries or _restore(states, contexts, mode, now) or None

    def _leave_traces(self, states: States, context: HitContext, refused: set[int], now: int) -> list[Flagged]:
        """Consume a hit, or count its refusal; return the flags."""
        hit, mode = context.hit, self.mode
        passed = not refused & {0, hit.group}
        consumed = passed and not context.status
        known = [
            number
            for limit in hit.limits
            for number in limit.algorithm.known_before(states.get(limit.key), limit.parameters, now)
        ]
        if not context.status:
            context.verdicts = [
                _consume(states, hit, limit, verdict, refused, now)
                for limit, verdict in zip(hit.limits, context.verdicts, strict=True)
            ]
        held = []
        if hit.reservation and consumed:
            due = hold(states, hit, receipts_of(hit, context.verdicts, known, now), now)
            held.append(Flagged(context.index, Flag.HELD, due))
        if mode != "tentative" or context.is_refused:
            count_day(states, context, now, passed=passed)
        flags = emit(states, context, now, passed=passed, emits=self.log is not NO_LOG)
        if self.log is REMOTE_LOG and any(flagged.flag == Flag.BAN_BEGAN for flagged in flags):
            flags.append(Flagged(context.index, Flag.BAN_LEVEL, context.level))
        if mode == "tentative" and consumed:
            flags += [Flagged(context.index, Flag.KNOWN_BEFORE, number) for number in known]
        return held + flags


_NUMBER = 8
"""Bytes of a number in the script's reply."""

_EVALSHA = bulk(("EVALSHA", Decide.script.sha))

_PACKED_CHECK = bulk(("", "check"))
"""The time and the mode of most decisions."""


def _is_outside(hit: Hit, now: int) -> bool:
    """Say whether the day or a calendar period that was sent is over, or has not begun."""
    if hit.day is not None and not hit.day.begins <= now < hit.day.ends:
        return True
    return any(is_outside(limit.parameters, now) for limit in hit.limits if not limit.algorithm.timeless)


def _restore(states: States, contexts: Sequence[HitContext], mode: Mode, now: int) -> list[Flagged]:
    """Restore abandoned holds and, for a refund, the costs; return why the plan must be sent again, if it must."""
    retries = []
    for context in contexts:
        if context.hit.holds and mode == "peek":
            context.states = states_without_due(states, context.hit, now)
        elif context.hit.holds and restore_due(states, context.hit, now, context.due):
            retries.append(Flagged(context.index, Flag.HOLDS_DUE, ""))
    if retries or mode != "refund":
        return retries
    for context in contexts:
        if context.status != Flag.EXEMPT:
            for limit in context.hit.limits:
                state = states.get(limit.key)
                after = limit.algorithm.refund(state, limit.parameters, context.hit.cost, now)
                replace(states, limit.key, limit.algorithm, state, after)
    return retries


def _peek(states: States, context: HitContext, number: int, now: int) -> Verdict:
    limit = context.hit.limits[number]
    state = states.get(limit.key) if context.states is None else context.states[number]
    verdict = limit.algorithm.peek(state, limit.parameters, context.hit.cost, now)
    if context.status == Flag.EXEMPT:
        return verdict._replace(allowed=True, retry_after=0)
    if context.status:
        return shut_out(verdict, context.stop, now)
    return verdict


def _consume(states: States, hit: Hit, limit: CompiledLimit, verdict: Verdict, refused: set[int], now: int) -> Verdict:
    """Consume the cost of a limit if the plan allows it; return the verdict after it."""
    algorithm = limit.algorithm
    passed = not refused & {0, hit.group}
    counts = limit.limit.options.count_refused and limit.parameters.capacity > 0 and hit.group in refused
    before = states.get(limit.key)
    if not passed and not counts:
        replace(states, limit.key, algorithm, before, algorithm.follow_clock(before, now))
        return verdict
    state, after = algorithm.consume(before, limit.parameters, hit.cost, now)
    states.put(limit.key, state, algorithm.expiry(state))
    if passed:
        return after
    # What a refused hit has filled also refuses the next one: the reply says for how long.
    return algorithm.peek(state, limit.parameters, hit.cost, now)
