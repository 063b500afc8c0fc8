"""`reset`: forget what rules have counted for a subject, and lift their bans; with its operation.

Overrides, slots, counters and daily counts stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, NamedTuple, Unpack

from asgiref.sync import sync_to_async

from django_quota.conf import current
from django_quota.core import keys
from django_quota.core.clock import frozen_now
from django_quota.core.errors import RuleError
from django_quota.core.flow import Flow, IOCall, run_async, run_sync
from django_quota.core.overrides import ALL_RULES
from django_quota.core.rules import CallOptions, Rule
from django_quota.engine.compiled import compiled
from django_quota.engine.events import NO_LOG, EventLog, EventRecord, lifted_bans
from django_quota.engine.operations import Operation, Script, States, drop_field, script
from django_quota.engine.resolving import event_log_of, rule_under
from django_quota.engine.scatter import Scatter, SlotOf, by_slot, scatter, write_events
from django_quota.features.subject_contents import read_contents, scan_keys
from django_quota.features.usage.days import recent_usage
from django_quota.limiting.api import (
    AnySubject,
    RuleOrRate,
    django_request,
    refuse_options_of_requests,
    rule_of_tier,
    rule_without_request,
    run_call,
    subject_under_flow,
)
from django_quota.limiting.asking import rates_flow
from django_quota.limiting.known_rules import NamedRule, known_rule, known_rules, rules_named
from django_quota.limiting.overrides import overrides
from django_quota.limiting.registry import counting_stores, get_limiter, store_call
from django_quota.limiting.stores import CountingStore
from django_quota.subjects.subject import subject_of

RULES_AT_ONCE = 100
"""Rules that one call to the store resets."""


def reset(rule: RuleOrRate, subject: AnySubject, **rule_options: Unpack[CallOptions]) -> int:
    """Delete what a rule has counted for a subject, and lift its ban; return how many counts and bans there were.

    `reset("login", user)`, or `reset("*", user)` for all rules: those of the settings and the views, and those that the
    subject's own bans, refusals and daily counts name. Rules that only calls in your code name may be missing.
    `manage.py quota_reset` finds these, too: it scans all keys of the store.

    `rule`: the name of a rule in the settings or of a view, a rate with its options, or a `Rule`. Without options, a
    rate stands for the rules of all algorithms. All tiers of a rule are reset, unless `tier=` names one. `subject`: as
    for `check`.

    What counts under an override is deleted, too. Overrides, slots, counters and daily counts stay. While the setting
    `ENABLED` is False, nothing is deleted. Raises `RuleError` if an argument is wrong, and `StoreUnavailable` if the
    store does not answer.
    """
    return run_call(_reset_flow(rule, subject, rule_options))


async def areset(rule: RuleOrRate, subject: AnySubject, **rule_options: Unpack[CallOptions]) -> int:
    """Delete what a rule has counted for a subject, and lift its ban; see `reset`."""
    return await run_async(_reset_flow(rule, subject, rule_options))


def reset_named(rule: str, subject: str) -> int:
    """Delete what a rule, or all (`"*"`), has counted, even while `ENABLED` is False; see `reset`."""
    return run_sync(_forget_flow(_rules_of([rule] if rule != ALL_RULES else _names_of(subject)), subject))


class ResetReport(NamedTuple):
    """What a search of the store has found for a subject."""

    rules: list[str]
    """The rules that have counted something or ban the subject."""
    deleted: int
    """How many counts and bans were deleted."""


def reset_found(rules: Collection[str] | None, subject: str, *, dry_run: bool = False) -> ResetReport:
    """Delete what these rules, or all (None), have counted, by scanning all keys of a shared store.

    `dry_run`: delete nothing. Raises `StoreUnavailable`.
    """
    found = [(each.reporting_store, _states_in_store(each, rules, subject)) for each in counting_stores()]
    deleted = 0
    if not dry_run:
        try:
            for store, states in found:
                if states:
                    deleted += int(store.run(_operation(list(states.values())), frozen_now()))
        finally:
            _forget_in_process(subject)
    return ResetReport(sorted({name for _, states in found for name in states}), deleted)


def _reset_flow(given: RuleOrRate, subject: AnySubject, options: Mapping[str, object]) -> Flow[int]:
    if given == ALL_RULES:
        if options:
            raise RuleError(f"{', '.join(options)}= is for one rule, and {ALL_RULES!r} stands for all rules.")
        name = subject_of(subject, "a reset of all rules")
        rules: Collection[Sequence[Rule]] = ()
    else:
        same, name = yield from _rules_flow(given, subject, options)
        rules = [same]
    if not current().enabled:
        return 0
    if given == ALL_RULES:
        names = yield IOCall(_names_of, sync_to_async(_names_of), name)
        rules = _rules_of(names)
    return (yield from _forget_flow(rules, name))


def _rules_flow(
    given: RuleOrRate, subject: AnySubject, options: Mapping[str, object]
) -> Flow[tuple[Sequence[Rule], str]]:
    """Return the rules of one name that are meant, such as one for each tier, and the name of the subject."""
    refuse_options_of_requests(options)
    tier = options.get("tier")
    if isinstance(tier, str):
        rule = rule_of_tier(known_rule(given, {name: value for name, value in options.items() if name != "tier"}), tier)
    else:
        rule = known_rule(given, options)
    name = yield from subject_under_flow(rule, subject, "a reset")
    if rule.dynamic and not rule.tiers:
        request = django_request(subject)
        asked = rule_without_request(rule, name, 0, None) if request is None else (yield from rates_flow(rule, request))
        return [asked], name
    is_rate = isinstance(given, str) and not options and given not in known_rules()
    return _each_of(rules_named(rule.name) if is_rate else rule), name


def _each_of(named: NamedRule) -> Sequence[Rule]:
    """Return the rule of each tier, or of each algorithm that a rate may mean; empty if no rule can be read."""
    if isinstance(named, Rule):
        return list(named.tiers.values()) or [named]
    return [] if isinstance(named, str) else named


def _names_of(subject: str) -> set[str]:
    """Return the names of the known rules, and of those in the subject's own keys and daily counts."""
    return known_rules().keys() | read_contents(subject).rules | set().union(*recent_usage(subject).values())


def _rules_of(names: Collection[str]) -> list[Sequence[Rule]]:
    """Return the rules of each of these names; an empty list for a name that is not a rule."""
    known = known_rules()
    return [_each_of(known.get(name) or rules_named(name)) for name in names]


def _forget_flow(rules: Collection[Sequence[Rule]], subject: str) -> Flow[int]:
    """Delete what these rules have counted, also under overrides. `rules`: one sequence for each name."""
    refreshing = overrides.refreshing()
    if refreshing is not None:
        yield refreshing
    deleted = 0
    try:
        for in_database in (False, True):
            of_store = [same for same in rules if same and (same[0].store is not None) == in_database]
            states = [_state_of(same, subject) for same in of_store]
            for first in range(0, len(states), RULES_AT_ONCE):
                operation = _operation(states[first : first + RULES_AT_ONCE])
                deleted += yield store_call(operation, in_database=in_database)
    finally:
        _forget_in_process(subject)
    return deleted


def _forget_in_process(subject: str) -> None:
    """Drop what this process remembers of a subject: its refusals, and units that were taken ahead."""
    limiter = get_limiter()
    limiter.refusals.forget([subject])
    limiter.prefetch.forget([subject])


def _state_of(rules: Sequence[Rule], subject: str) -> RuleState:
    changes = [each for each in overrides.table.matching(rules[0].name, subject) if each.mode == "rate"]
    under = [rule_under(rule, override) for override in changes for rule in rules]
    return RuleState.of([*rules, *under], keys.status_key(current().prefix_in(rules[0].store), subject))


def _states_in_store(counting: CountingStore, wanted: Collection[str] | None, subject: str) -> dict[str, RuleState]:
    """Return, by rule, what a store holds that a reset deletes."""
    states: dict[str, list[str]] = {}
    for key, read in (scan_keys(subject, counting) or {}).items():
        kind, _, rest = read.what.partition(":")
        if kind in ("r", "b"):  # states, and counts of refusals towards a ban
            states.setdefault(rest.partition(":")[0], []).append(key)
    for field in read_contents(subject, counting=counting).fields:
        if field.startswith("b:"):
            states.setdefault(field.removeprefix("b:"), [])
    names = keys.names_by_field(known_rules() if wanted is None else wanted)
    status = keys.status_key(counting.prefix, subject)
    return {
        names.get(part) or keys.named(part) or part: RuleState(part, status, of_rule)
        for part, of_rule in sorted(states.items())
        if wanted is None or part in names
    }


def _operation(states: Sequence[RuleState]) -> Reset:
    settings = current()
    return Reset(states, event_log_of(settings.prefix, settings.events, settings.event_days))


# --- the operation ----------------------------------------------------------------------------------------------------


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

    script: ClassVar[Script] = script("features/reset")
    is_slow: ClassVar[bool] = True

    def __init__(self, rule_states: Sequence[RuleState], log: EventLog = NO_LOG) -> None:
        keys = [key for found in rule_states for key in (found.status_key, *found.states)]
        arguments = [word for found in rule_states for word in (found.field, len(found.states))]
        super().__init__(keys if log is NO_LOG else [*keys, log.bans], *arguments)
        self.rule_states = rule_states
        self.log = log

    def run(self, states: States, now: int) -> int:  # noqa: ARG002 — expired states are dropped like the rest
        dropped = 0
        for field, status_key, of_states in self.rule_states:
            dropped += sum(states.drop(key) for key in of_states)
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
