"""From what is asked to hits: the overrides of the moment decide some asks, and change the rules of others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import lru_cache
from operator import attrgetter
from typing import Literal, NamedTuple

from django_quota.core.clock import SECOND
from django_quota.core.decisions import Decision, Outcome
from django_quota.core.errors import RuleError
from django_quota.core.keys import KEY_VERSION, escape, group_base, system_key
from django_quota.core.overrides import Override, OverrideTable
from django_quota.core.rules import Rule, name_conflict
from django_quota.core.takes import Asked, Take
from django_quota.engine.asks import Ask, Place, counts_day
from django_quota.engine.compiled import CompiledRule, compiled, compiled_together
from django_quota.engine.events import NO_LOG, EventLog
from django_quota.engine.hits import DayKey, Hit

logger = logging.getLogger("django_quota")

AskMode = Literal["check", "force", "peek", "refund"]
"""What is asked of a store; see `codec.Mode`."""


class Scope(NamedTuple):
    """Where a site counts."""

    prefix: str
    """What its keys begin with."""
    zone: Callable[[], str] = lambda: "UTC"
    """Returns the time zone in which days are counted."""
    log: EventLog = NO_LOG


class Resolved(NamedTuple):
    """What is asked, under the overrides of a moment."""

    asked: Sequence[Ask]
    """What was asked, before overrides changed that."""
    for_store: Sequence[Ask]
    """The asks that overrides leave to the store, with the rules that hold now; those without a limit have no hit."""
    hits: Sequence[Hit]
    now: int
    """The moment of the overrides, in microseconds."""
    by_override: Mapping[Place, tuple[Outcome, ...]] = {}
    """The outcomes of rules whose subject an override exempts or blocks."""
    skipped: Set[Place] = frozenset()
    """The places that no store is asked about."""
    has_groups: bool = False
    """Whether a rule decides for itself: a shadow, or one that does not block."""

    @property
    def has_unlimited(self) -> bool:
        """Whether a rule may be without a limit. Rules of one name, which are one hit, say so too."""
        return len(self.hits) != len(self.for_store)

    @property
    def is_blocked(self) -> bool:
        """Whether an override blocks the request."""
        return any(
            not outcome.allowed and outcome.enforced for of_place in self.by_override.values() for outcome in of_place
        )

    @property
    def subjects(self) -> list[str]:
        """The subject of each ask."""
        return [ask.subject for ask in self.asked]

    @property
    def rules(self) -> list[Asked]:
        """The rule of each ask."""
        return [ask.rule for ask in self.asked]

    def counted_by_day(self) -> list[Ask]:
        """Return the asks that only the day counts: their rules have no limit, as those of a tier that is unlimited."""
        found: dict[Place, Ask] = {}
        limited = {hit.place for hit in self.hits}
        for ask in self.for_store:
            if ask.cost and not ask.rule.limits and ask.place not in limited and counts_day(ask.rule, ask.subject):
                found.setdefault(ask.place, ask)
        return list(found.values())

    def decided_by_overrides(self) -> list[tuple[Ask, Outcome]]:
        """Return the asks about which no store is asked because of an override, each with its first outcome."""
        found: dict[Place, tuple[Ask, Outcome]] = {}
        for ask in self.asked:
            place = ask.place
            outcomes = self.by_override.get(place)
            if outcomes and place in self.skipped:
                found[place] = ask, outcomes[0]
        return list(found.values())

    def decision_by_overrides(self) -> Decision:
        """Return the decision by only the overrides."""
        outcomes = tuple(outcome for of_place in self.by_override.values() for outcome in of_place)
        return Decision.of(outcomes) if outcomes else self.unlimited()

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
    scope: Scope,
    table: OverrideTable,
    now: int,
    *,
    mode: AskMode = "check",
    taken: Set[Place] = frozenset(),
    skew: int = 0,
    counters_only: bool = False,
) -> Resolved:
    """Return what is asked under the overrides at `now` (microseconds). Counters have no overrides.

    `taken`: of whom the store is asked whatever override holds now, because their hits are to be settled. A blocked
    subject can still get back what it has used, and a forced hit counts for it, too. `skew`: how far the clock of the
    store is ahead, in microseconds. `counters_only`: because limits are off. Raises `RuleError` if rules of one name
    differ in more than their rates.
    """
    if counters_only:
        limited = {ask.place for ask in asks if not isinstance(ask.rule, Take)}
        counters = [ask for ask in asks if isinstance(ask.rule, Take)]
        return Resolved(asks, counters, hits_of(counters, scope, now + skew), now, skipped=limited)
    found = _overrides_of(asks, table, now) if table.by_pk else None
    if not found:
        hits = hits_of(asks, scope, now + skew)
        return Resolved(asks, asks, hits, now, {}, _NONE, _has_groups(hits))
    by_override: dict[Place, tuple[Outcome, ...]] = {}
    skipped: set[Place] = set()
    overridden: set[Place] = set()
    for_store: list[Ask] = []
    for ask in asks:
        place = ask.place
        override = found.get(place)
        if override is None or isinstance(ask.rule, Take):
            for_store.append(ask)
        elif override.mode in ("exempt", "blocked"):
            known, outcomes = by_override.get(place, ()), _outcomes_under(override, ask.rule, ask, now)
            by_override[place] = known + tuple([each for each in outcomes if each not in known])
            if place in taken or (override.mode == "blocked" and mode in ("refund", "force")):
                for_store.append(ask)
            else:
                skipped.add(place)
        else:
            for_store.append(Ask(rule_under(ask.rule, override), *ask[1:]))
            if override.mode == "rate":
                overridden.add(place)
    hits = hits_of(for_store, scope, now + skew, overridden)
    return Resolved(asks, for_store, hits, now, by_override, skipped, _has_groups(hits))


_NONE: frozenset[Place] = frozenset()


def _has_groups(hits: Sequence[Hit]) -> bool:
    return any(map(_group_of, hits))


_group_of = attrgetter("group")


def _overrides_of(asks: Sequence[Ask], table: OverrideTable, now: int) -> dict[Place, Override]:
    found = {}
    for ask in asks:
        override = None if isinstance(ask.rule, Take) else table.find(ask.rule.name, ask.subject, now)
        if override is not None:
            found[ask.place] = override
    return found


def hits_of(asks: Sequence[Ask], scope: Scope, moment: int, overridden: Set[Place] = frozenset()) -> tuple[Hit, ...]:
    """Return the hits of asks at a moment (microseconds): one for each place. Rules without a limit have none."""
    grouped: Iterable[Sequence[Ask]] = (asks,)
    if len(asks) != 1 or not asks[0].rule.limits:
        by_place: dict[tuple[str, str], list[Ask]] = {}
        for ask in asks:
            if ask.rule.limits:
                by_place.setdefault((ask.rule.name, ask.subject), []).append(ask)
        grouped = by_place.values()
    groups, hits = 0, []
    for of_place in grouped:
        rule, subject, cost, value, is_estimate = of_place[0]
        of_rule = compiled(rule) if len(of_place) == 1 else _of_several(of_place)
        base = f"{scope.prefix}:{KEY_VERSION}:{{{escape(subject)}}}:"
        if rule.distinct is not None and cost > 1:
            raise RuleError(f"Rule {rule.name!r} counts different values: a hit costs 1, not {cost}.")
        if isinstance(rule, Take) and rule.group is not None:
            of_rule, base = CompiledRule((rule,), subject), group_base(scope.prefix, rule.group) + "}:"
        group = 0
        if of_rule.decides_alone:
            groups += 1
            group = groups
        day = DayKey.of(base, moment, scope.zone()) if counts_day(rule, subject) else None
        at = None if day is None and of_rule.is_timeless else moment
        is_overridden = bool(overridden) and of_place[0].place in overridden
        hits.append(Hit(of_rule, base, subject, cost, value, group, is_estimate, is_overridden, at, day))
    return tuple(hits)


def _of_several(asks: Sequence[Ask]) -> CompiledRule:
    """Return the compiled form of several rules of one name."""
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
    """Log once that an override does not fit."""
    logger.error("The override %r does not fit rule %r and is ignored: %s", rates, rule, why)


MAX_RATES = 256
"""For how many rates of overrides a process keeps the rule that has them, for each rule."""


def _outcomes_under(override: Override, rule: Rule, ask: Ask, now: int) -> tuple[Outcome, ...]:
    """Return an outcome for each limit of a rule whose subject an override exempts or blocks."""
    subject, cost = ask.subject, ask.cost
    enforced = rule.block and not rule.shadow
    if override.mode == "exempt":
        return tuple(
            [
                Outcome(
                    limit, subject, cost, True, limit.capacity, 0.0, 0.0, None, 0.0, rule.shadow, enforced, "exempt"
                )
                for limit in rule.limits
            ]
        )
    wait = (override.ends - now) / SECOND if override.ends else None
    return tuple(
        [
            Outcome(limit, subject, cost, False, 0, wait, wait or 0.0, wait, 0.0, rule.shadow, enforced, "blocked")
            for limit in rule.limits or rule.with_rates("0/d").limits  # of a tier that is unlimited
        ]
    )


@lru_cache(maxsize=16)
def event_log_of(prefix: str, events: int) -> EventLog:
    """Return the event log under a prefix that keeps this many events; 0: no events."""
    return EventLog([system_key(prefix, name) for name in ("events", "bans")], events) if events else NO_LOG
