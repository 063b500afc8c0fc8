"""The operations of bans: set one, lift some. After too many refusals, a decision sets the ban itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from django_quota.engine.events import NO_LOG, EventLog, EventRecord, lifted_bans
from django_quota.engine.operations import Operation, Script, States, drop_field, fields_of, script, set_field
from django_quota.engine.scatter import Scatter, SlotOf, scatter, write_events


class BanSubject(Operation):
    """Ban a subject under a rule. The reply: see `ban.lua`.

    `rule`: its name, escaped for fields of hashes. `span`, `remembered`: how long the ban lasts, and how long it is
    remembered after its end, in microseconds.
    """

    script: ClassVar[Script] = script("clock", "lifetimes", "features/bans/ban")

    def __init__(self, status_key: str, rule: str, span: int, remembered: int) -> None:
        super().__init__([status_key], rule, span, remembered)

    def run(self, states: States, now: int) -> list[int]:
        (status_key,), (rule, span, kept) = self.keys, self.arguments()
        name = f"b:{rule}"
        ends, level, remembered = map(int, fields_of(states, status_key).get(name, "0 0 0").split(" "))
        stop = now + span
        if ends >= stop:
            return [ends, 0]
        if ends <= now:
            level = level + 1 if remembered > now else 1
        set_field(states, status_key, name, f"{stop} {level} {stop + kept}", stop + kept)
        return [stop, level]


class LiftBans(Operation):
    """End the bans of a subject under these rules. The reply is how many bans were in force.

    `rules`: their names, escaped for fields of hashes.
    """

    script: ClassVar[Script] = script("clock", "lifetimes", "features/bans/lift_bans")

    def __init__(self, status_key: str, rules: Sequence[str], log: EventLog = NO_LOG) -> None:
        super().__init__([status_key] if log is NO_LOG else [status_key, log.bans], *rules)
        self.status_key = status_key
        self.rules = rules
        self.log = log

    def run(self, states: States, now: int) -> int:
        lifted = 0
        for rule in self.rules:
            ban = fields_of(states, self.status_key).get(f"b:{rule}", "0")
            lifted += int(ban.partition(" ")[0]) > now
            drop_field(states, self.status_key, f"b:{rule}")
        return lifted

    def log_keys(self) -> Sequence[str]:
        return self.log.keys

    def lifted(self) -> list[EventRecord]:
        """Return the events that end the bans."""
        return lifted_bans(self.log, ((self.status_key, rule) for rule in self.rules))

    def run_with_events(self, states: States, now: int) -> tuple[int, Sequence[EventRecord]]:
        return self.run(states, now), self.lifted()


@scatter.register
def _lift_bans(operation: LiftBans, slot_of: SlotOf) -> Scatter:  # noqa: ARG001 — all keys are of one subject
    (reply,) = yield [LiftBans(operation.status_key, operation.rules)]
    yield from write_events(operation.log, operation.lifted())
    return reply
