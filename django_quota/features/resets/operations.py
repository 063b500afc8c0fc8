"""The operation that deletes what rules have counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from django_quota.core.rules import Rule
from django_quota.engine.compiled import compiled
from django_quota.engine.events import NO_LOG, EventLog, EventRecord, lifted_bans
from django_quota.engine.operations import Operation, Script, States, drop_field, script
from django_quota.engine.scatter import Scatter, SlotOf, by_slot, scatter, write_events

RESET_FIELDS = "bew"
"""The kinds of status fields that a reset drops, the ban first."""


class RuleState(NamedTuple):
    """The keys under which one rule counts for one subject."""

    field: str
    """The rule's name, escaped for fields of hashes."""
    status_key: str
    """The key of the subject's status."""
    states: Sequence[str]
    """The keys of limits and refusals."""

    @classmethod
    def of(cls, rules: Sequence[Rule], status_key: str) -> RuleState:
        """Return the keys of rules of one name, which differ in their limits. `status_key`: that of the subject."""
        base, first = status_key.removesuffix("s"), compiled(rules[0])
        limits = [limit.key for rule in rules for limit in compiled(rule).limits]
        return cls(first.field, status_key, [base + part for part in dict.fromkeys([*limits, f"b:{first.field}"])])


class Reset(Operation):
    """Drop all that rules have counted, and lift their bans. The reply is how many states and bans there were."""

    script: ClassVar[Script] = script("features/resets/reset")
    is_slow: ClassVar[bool] = True

    def __init__(self, rule_states: Sequence[RuleState], log: EventLog = NO_LOG) -> None:
        keys = [key for found in rule_states for key in (found.status_key, *found.states)]
        arguments = [word for found in rule_states for word in (found.field, len(found.states))]
        super().__init__(keys if log is NO_LOG else [*keys, log.bans], *arguments)
        self.rule_states = rule_states
        self.log = log

    def run(self, states: States, now: int) -> int:  # noqa: ARG002 — expired states are dropped like the rest
        dropped = 0
        for field, status_key, keys in self.rule_states:
            dropped += sum(states.drop(key) for key in keys)
            had_field = [drop_field(states, status_key, f"{kind}:{field}") for kind in RESET_FIELDS]
            dropped += had_field[0]
        return dropped

    def log_keys(self) -> Sequence[str]:
        return self.log.keys

    def lifted(self) -> list[EventRecord]:
        """Return the events that end the bans."""
        return lifted_bans(self.log, ((state.status_key, state.field) for state in self.rule_states))

    def run_with_events(self, states: States, now: int) -> tuple[int, Sequence[EventRecord]]:
        return self.run(states, now), self.lifted()


@scatter.register
def _reset(operation: Reset, slot_of: SlotOf) -> Scatter:
    states = operation.rule_states
    slots = by_slot((state.status_key for state in states), slot_of)
    replies = yield [Reset([states[place] for place in places]) for places in slots]
    yield from write_events(operation.log, operation.lifted())
    return sum(replies)
