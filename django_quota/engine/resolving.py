"""From asks to hits: the overrides in force decide some asks, and change the rules of others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence, Set
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from django_quota.core.clock import DAY, SECOND
from django_quota.core.decisions import Decision, Outcome
from django_quota.core.errors import RuleError
from django_quota.core.keys import KEY_VERSION, escape, group_base, system_key
from django_quota.core.overrides import Override, OverrideTable
from django_quota.core.rules import Rule, name_conflict
from django_quota.engine.asks import Ask, Asked, Place, Take
from django_quota.engine.compiled import CompiledRule, compiled, compiled_in_group, compiled_together
from django_quota.engine.events import NO_LOG, EventLog
from django_quota.engine.hits import NOTHING_AHEAD, DayKey, Hit, counts_day

logger = logging.getLogger("django_quota.rules")

AskMode = Literal["check", "force", "peek", "refund"]
"""What a store is asked to do; see `codec.Mode`."""


class Scope(NamedTuple):
    """What a site needs to count: the prefix of its keys, its time zone and its event log."""

    prefix: str
    """The beginning of all keys."""
    zone: Callable[[], str] = lambda: "UTC"
    """Returns the time zone in which days are counted."""
    log: EventLog = NO_LOG
    database_prefix: str = ""
    """The beginning of the keys of rules with `store="database"`; empty: the same."""


class ByOverride(NamedTuple):
    """A rule whose subject an override exempts or blocks."""

    ask: Ask
    override: Override
    is_blocked: bool
    """Whether the override blocks; otherwise it exempts."""
    is_skipped: bool
    """Whether no store is asked about it."""

    def outcomes(self, now: int) -> tuple[Outcome, ...]:
        """Return an outcome for each limit of the rule at a moment (microseconds)."""
        _, subject, cost, _, _ = self.ask
        rule: Any = self.ask.rule  # a counter has no overrides
        enforced = rule.block and not rule.shadow
        if not self.is_blocked:
            return tuple(
                [
                    Outcome(
                        limit, subject, cost, True, limit.capacity, 0.0, 0.0, None, 0.0, rule.shadow, enforced, "exempt"
                    )
                    for limit in rule.limits
                ]
            )
        wait = (self.override.ends - now) / SECOND if self.override.ends else None
        return tuple(
            [
                Outcome(limit, subject, cost, False, 0, wait, wait or 0.0, wait, 0.0, rule.shadow, enforced, "blocked")
                for limit in rule.limits or rule.with_rates("0/d").limits  # of a tier that is unlimited
            ]
        )


class Resolved(NamedTuple):
    """What is asked, after the overrides in force at a moment."""

    asked: Sequence[Ask]
    """What was asked, before overrides changed it."""
    for_store: Sequence[Ask]
    """The asks that overrides leave to the store, with the rules that hold now; some rules count nothing there."""
    now: int
    """The moment of the overrides, in microseconds."""
    by_override: Sequence[ByOverride] = ()
    """The rules whose subject an override exempts or blocks."""
    overridden: Set[Place] = frozenset()
    """The places whose rates come from an override."""

    def part(self, *, in_database: bool) -> Resolved:
        """Return what is for the store of the rules with or without `store="database"`."""
        asks = [ask for ask in self.for_store if (ask.rule.store is not None) == in_database]
        return Resolved(asks, asks, self.now, overridden=self.overridden)

    @property
    def is_blocked(self) -> bool:
        """Whether an override blocks the request."""
        return self.decision_by_overrides().enforced

    @property
    def skipped(self) -> set[Place]:
        """The places that no store is asked about, because of an override."""
        return {each.ask.place for each in self.by_override if each.is_skipped}

    @property
    def subjects(self) -> list[str]:
        """The subject of each ask, in order, with repetitions."""
        return [ask.subject for ask in self.asked]

    @property
    def rules(self) -> list[Asked]:
        """The rule of each ask, in order, with repetitions."""
        return [ask.rule for ask in self.asked]

    def hits(self, scope: Scope, moment: int) -> tuple[Hit, ...]:
        """Return the hits for the store at a moment of its clock (microseconds); see `hits_of`."""
        return hits_of(self.for_store, scope, moment, self.overridden)

    def decided_by_overrides(self) -> Sequence[ByOverride]:
        """Return what overrides decide without the store, one for each rule and subject.

        An exemption from a rule without limits is left out: it decides nothing.
        """
        found = [each for each in self.by_override if each.is_skipped and (each.is_blocked or each.ask.rule.limits)]
        return found if len(found) == 1 else list({each.ask.place: each for each in found}.values())

    def outcomes_by_override(self) -> dict[Place, tuple[Outcome, ...]]:
        """Return the outcomes of the rules whose subject an override exempts or blocks, by place."""
        found: dict[Place, tuple[Outcome, ...]] = {}
        for each in self.by_override:
            known = found.get(each.ask.place, ())
            found[each.ask.place] = known + tuple([new for new in each.outcomes(self.now) if new not in known])
        return found

    def decision_by_overrides(self) -> Decision:
        """Return the decision of the overrides alone, whatever the store would say."""
        has_outcome, allowed, enforced = False, True, False
        for ask, _, is_blocked, _ in self.by_override:
            if is_blocked:
                has_outcome, allowed = True, allowed and ask.rule.shadow
                enforced = enforced or (ask.rule.block and not ask.rule.shadow)
            elif ask.rule.limits:
                has_outcome = True
        return Decision(allowed, enforced, _given=self._outcomes) if has_outcome else self.unlimited()

    def _outcomes(self) -> tuple[Outcome, ...]:
        return tuple([outcome for of_place in self.outcomes_by_override().values() for outcome in of_place])

    def unlimited(self, *, degraded: bool = False) -> Decision:
        """Return the decision if nothing limits the request, or if no store can be asked."""
        if not self.asked:
            return Decision.without_limit(degraded=degraded)
        first = self.asked[0]
        return Decision.without_limit(first.rule.name, first.subject, degraded=degraded)

    def without_store(self, refusing: Sequence[Asked]) -> Decision:
        """Return the refusal by one of these rules, preferably one that blocks; allow the request if none limits it."""
        found = [
            Decision.without_limit(*ask.place, allowed=False, enforced=ask.rule.block, degraded=True)
            for ask in self.for_store
            if ask.rule in refusing and ask.rule.limits and not ask.rule.shadow
        ]
        return max(found, key=lambda refusal: refusal.enforced, default=self.unlimited(degraded=True))


def resolve(
    asks: Sequence[Ask],
    table: OverrideTable,
    now: int,
    *,
    mode: AskMode = "check",
    taken: Set[Place] = frozenset(),
    counters_only: bool = False,
) -> Resolved:
    """Return what is asked under the overrides at `now` (microseconds). Counters have no overrides.

    `taken`: the places whose hits are being settled: the store is asked about them whatever override is in force.
    A blocked subject can still get back what it has used, and a forced hit counts for it, too. `counters_only`: limits
    are off.
    """
    if counters_only:
        return Resolved(asks, [ask for ask in asks if isinstance(ask.rule, Take)], now)
    asked = asks
    if mode == "force":  # a hit that is counted even without room is refused by no rule
        asks = [Ask(ask.rule.but(block=False), *ask[1:]) for ask in asks if isinstance(ask.rule, Rule)]
    if not table.by_pk:
        return Resolved(asked, asks, now)
    for_store: list[Ask] = []
    by_override: list[ByOverride] = []
    overridden: set[Place] = set()
    for ask in asks:
        rule = ask.rule
        if isinstance(rule, Take) or (override := table.find(rule.name, ask.subject, now)) is None:
            for_store.append(ask)
        elif override.mode in ("exempt", "blocked"):
            is_blocked = override.mode == "blocked"
            is_asked = (is_blocked and mode in ("refund", "force")) or (bool(taken) and ask.place in taken)
            by_override.append(ByOverride(ask, override, is_blocked, not is_asked))
            if is_asked:
                for_store.append(ask)
        else:
            for_store.append(Ask(rule_under(rule, override), *ask[1:]))
            if override.mode == "rate":
                overridden.add(ask.place)
    return Resolved(asked, for_store, now, by_override, overridden)


def hits_of(asks: Sequence[Ask], scope: Scope, moment: int, overridden: Set[Place] = frozenset()) -> tuple[Hit, ...]:
    """Return the hits of asks at a moment (microseconds): one for each place. Rules that count nothing have none.

    Raises `RuleError` if rules of one name differ in more than their rates.
    """
    grouped: Iterable[Sequence[Ask]] = (asks,)
    if len(asks) != 1 or not asks[0].rule.limits:
        by_place: dict[tuple[str, str], list[Ask]] = {}
        for ask in asks:
            if ask.rule.limits or ask.rule.counting:
                by_place.setdefault((ask.rule.name, ask.subject), []).append(ask)
        grouped = by_place.values()
    groups, hits = 0, []
    for of_place in grouped:
        rule, subject, cost, value, is_estimate = of_place[0]
        of_rule = compiled(rule) if len(of_place) == 1 else _of_several(of_place)
        prefix = scope.database_prefix or scope.prefix if of_rule.is_in_database else scope.prefix
        base = f"{prefix}:{KEY_VERSION}:{{{escape(subject)}}}:"
        if rule.distinct is not None and cost > 1:
            raise RuleError(f"Rule {rule.name!r} counts different values: a hit costs 1, not {cost}.")
        if isinstance(rule, Take) and rule.group is not None:
            of_rule, base = compiled_in_group(rule, subject), group_base(prefix, rule.group) + "}:"
        group = 0
        if of_rule.decides_alone:
            groups += 1
            group = groups
        day = DayKey.of(base, moment, scope.zone()) if counts_day(rule, subject) else None
        at = None if day is None and of_rule.is_timeless else moment
        is_overridden = bool(overridden) and of_place[0].place in overridden
        ahead = NOTHING_AHEAD if of_rule.lease else None
        hits.append(Hit(of_rule, base, subject, cost, value, group, is_estimate, is_overridden, at, day, ahead))
    return tuple(hits)


def _of_several(asks: Sequence[Ask]) -> CompiledRule:
    """Return the compiled form of several rules of one name. Raises `RuleError` if they ask for different hits."""
    first, rules = asks[0], [ask.rule for ask in asks if isinstance(ask.rule, Rule)]
    for rule, other in zip(rules, asks, strict=True):
        if other._replace(rule=first.rule) != first:
            raise name_conflict(rule, rules[0])
    return compiled_together(rules)


def rule_under(rule: Rule, override: Override) -> Rule:
    """Return a rule with the rates of an override, or as a shadow; unchanged if the rates do not fit it."""
    if override.mode == "shadow":
        return rule.but(shadow=True)
    if override.mode != "rate":
        return rule
    known = compiled(rule).under
    found = known.get(override.rates)
    if found is None:
        try:
            found = rule.under(override.rates)
        except RuleError as error:
            _log_unfit_override(rule.name, override.rates, str(error))
            found = rule
        if len(known) < MAX_RATES:
            known[override.rates] = found
    return found


@lru_cache(maxsize=256)
def _log_unfit_override(rule: str, rates: str, why: str) -> None:
    """Log once for each override and reason."""
    logger.error("The override %r does not fit rule %r and is ignored: %s", rates, rule, why)


MAX_RATES = 256
"""How many rates of overrides a process remembers for each rule, with the changed rule."""


@lru_cache(maxsize=16)
def event_log_of(prefix: str, events: int, days: int) -> EventLog:
    """Return the event log under a prefix that keeps this many events, for so many days; 0: no events."""
    keys = [system_key(prefix, name) for name in ("events", "bans")]
    return EventLog(keys, events, days * DAY) if events else NO_LOG
