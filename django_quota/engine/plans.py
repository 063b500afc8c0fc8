"""A plan: the limits that one request asks for, with subjects and costs.

One plan is one script call. Its reply becomes a Decision here, so that every store and every driver reads it alike. The
reply may say that another day or period has begun: then the plan is sent again. Rules whose subject is exempt or
blocked by an override are decided here, and no store is asked about them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import combinations, groupby
from typing import Any, Literal, NamedTuple

from django_quota.core.clock import SECOND
from django_quota.core.counter_rules import CounterRule
from django_quota.core.days import day_of
from django_quota.core.decisions import Decision, Outcome
from django_quota.core.errors import RuleError
from django_quota.core.keys import group_base, key_of, subject_base, system_key
from django_quota.core.overrides import Override, OverrideTable
from django_quota.core.rules import Rule, name_conflict
from django_quota.engine.codec import (
    RETRY_WITH,
    Adjust,
    Adjustment,
    EventKind,
    Reply,
    allows_without_flags,
    emitted,
    outcomes_of,
    read_outcomes,
)
from django_quota.engine.decide import Decide
from django_quota.engine.events import NO_LOG, EventLog
from django_quota.engine.hits import CompiledLimit, DayKey, Hit
from django_quota.engine.subject_operations import Reset, RuleState

logger = logging.getLogger("django_quota")

Asked = tuple[Rule, str, int, str]
"""What a rule asks for: the rule, the subject, the cost and the digest of the value to count."""

Place = tuple[str, str]
"""The name of a rule, and a subject."""

PlanMode = Literal["check", "force", "peek", "refund", "adjust"]
"""What a store does with a plan; see `Mode`. "adjust" is for the plans that `Plan.settled` returns."""


class Taken(NamedTuple):
    """What a hit took."""

    moment: int
    """When the store decided it, in microseconds."""
    limits: Mapping[str, tuple[str, ...]]
    """The limits that counted the hit, by the keys of their states: each as it was then, `Limit.encoded`."""


class Settlement(NamedTuple):
    """What a plan is to settle."""

    taken: Mapping[Place, Taken]
    actual: Mapping[Place, int]
    """What was really used."""
    undone: bool
    """Whether the request was refused after all. A limit that counts refused hits keeps the hit then."""

    def of(self, hit: Hit) -> Adjustment | None:
        """Return how to settle a hit; None if it took nothing."""
        place = (hit.rule.name, hit.subject)
        taken = self.taken.get(place)
        if taken is None:
            return None
        keeps = self.undone and hit.group == 0
        places = [
            _counts_in(limit, taken.limits.get(limit.key)) and not (keeps and limit.limit.options.count_refused)
            for limit in hit.limits
        ]
        return Adjustment(taken.moment, self.actual[place], places)


def _counts_in(limit: CompiledLimit, then: tuple[str, ...] | None) -> bool:
    """Say whether a limit still holds the hit that `then` counted: its override may have another rate by now."""
    return then is not None and (limit.algorithm.counts_units or limit.limit.encoded == then)


class Plan:
    """The limits of one request, in order. A limit that is added twice counts once.

    `events`: how many events the log keeps; 0: no events. `zone` returns the time zone in which days are counted.
    """

    timeless: bool = True
    """Whether the plan is the same at any time: it has no calendar limit, and counts no day. True without rules."""
    counts_if_allowed = True
    """Whether metrics and observers get a decision that allows the plan."""
    _groups = 0
    _estimates: Callable[[Rule], bool] | None = None
    """Whether the hit of a rule is an estimate."""
    _settlement: Settlement | None = None
    """What the plan settles, in the mode "adjust"."""
    is_undone = False
    """Whether the plan has given back what it took, because its request was refused after all."""
    exempt: dict[Place, int]
    """When hits that no limit counted were counted for the day, in microseconds: an override exempts them, or no limit
    applies."""
    unlimited_hits: Mapping[Place, tuple[Rule, int]] = {}
    """The hits of rules without a limit that are counted by day, each with its rule and cost."""
    _given: list[Asked] | None = None
    """What was asked before overrides changed that; None if none did."""
    _hits: list[Hit] | None = None
    _raw: Sequence[Any] | None = None
    """A reply that is not decoded yet, to a plan that all limits allowed."""
    _decoded: Reply | None = None
    _overridden: Collection[Place] = ()
    """The rules and subjects that have another rate by an override."""
    unsent: Collection[Place] = ()
    """The rules and subjects that no store is asked about."""

    def __init__(
        self, prefix: str, events: int = 0, zone: Callable[[], str] = lambda: "UTC", asked: list[Asked] | None = None
    ) -> None:
        self._prefix = prefix
        self._zone = zone
        self._log = event_log_of(prefix, events)
        self.asked: list[Asked] = [] if asked is None else asked
        """The rules that were added, each with its subject, cost and value."""
        self.exempt = {}
        self.here: dict[Place, tuple[Outcome, ...]] = {}
        """The outcomes of rules whose subject is exempt or blocked by an override."""

    def override(self, table: OverrideTable, now: int, mode: PlanMode) -> None:
        """Give the rules the overrides of their subjects at `now` (microseconds).

        An override with another rate, or that makes a rule only report, changes the rule. Exempt and blocked subjects
        are decided here. Call this before the first look at `hits`. A blocked subject can still get back what it has
        used, and a hit is settled whatever override holds now. A forced hit counts for a blocked subject, too. Counters
        have no overrides.
        """
        self._given = list(self.asked)
        found: dict[Place, Override | None] = {}
        for number, (rule, subject, cost, value) in enumerate(self.asked):
            place = (rule.name, subject)
            if place not in found:
                found[place] = None if rule.is_counter else table.find(subject, rule.name, now)
            override = found[place]
            if override is None:
                continue
            self.asked[number] = (rule_under(rule, override), subject, cost, value)
            if override.mode in ("exempt", "blocked"):
                known = self.here.get(place, ())
                outcomes = outcomes_under(override, rule, subject, cost, now)
                self.here[place] = (*known, *(outcome for outcome in outcomes if outcome not in known))
        self._overridden = {place for place, override in found.items() if override and override.mode == "rate"}
        taken = self._settlement.taken if self._settlement else {}
        sent = {place for place, hit in taken.items() if hit.limits}
        if mode in ("refund", "force"):
            sent = {place for place, override in found.items() if override and override.mode == "blocked"}
        self.unsent = self.here.keys() - sent

    def add(self, rule: Rule, subject: str, cost: int, value: str = "") -> None:
        """Add all limits of a rule for a subject; `cost` is what the hit takes of each, `value` a digest to count.

        Rules of one name and subject are one hit. All rules must be added before the first look at `hits`.
        """
        self.asked.append((rule, subject, cost, value))

    def ask_counters_only(self) -> bool:
        """Ask the store about counters only, because limits are off; say whether there is any."""
        self.unsent = {(rule.name, subject) for rule, subject, _, _ in self.asked if not rule.is_counter}
        return bool(self)

    @property
    def given(self) -> list[Asked]:
        """What was asked before overrides changed that."""
        return self.asked if self._given is None else self._given

    @property
    def sent(self) -> list[Asked]:
        """What the store is asked about."""
        if not self.unsent:
            return self.asked
        return [asked for asked in self.asked if (asked[0].name, asked[1]) not in self.unsent]

    @property
    def is_blocked(self) -> bool:
        """Whether an override blocks the plan, so that no store need be asked."""
        return any(not outcome.allowed and outcome.enforced for of_place in self.here.values() for outcome in of_place)

    @property
    def is_decided_here(self) -> bool:
        """Whether a check needs no store: an override blocks the plan, or exempts it from all limits."""
        return bool(self.here) and (not self or self.is_blocked)

    def decided_here(self) -> Decision:
        """Return the decision on only the rules whose subject is exempt or blocked by an override."""
        outcomes = tuple(outcome for of_place in self.here.values() for outcome in of_place)
        return Decision.of(outcomes) if outcomes else self.unlimited()

    @property
    def rules(self) -> list[Rule]:
        """The rules that were added."""
        return [rule for rule, _, _, _ in self.asked]

    @property
    def subjects(self) -> list[str]:
        """The subject of each rule."""
        return [subject for _, subject, _, _ in self.asked]

    @property
    def hits(self) -> list[Hit]:
        """What the store decides. The hits are made when first needed: a refusal from memory needs none.

        Raises `RuleError` if rules of one name differ in more than their rates.
        """
        if self._hits is None:
            self._hits = self._compile()
        return self._hits

    def _compile(self) -> list[Hit]:
        self.timeless, self._groups = True, 0
        by_place: dict[Place, list[Asked]] = {}
        for asked in self.sent:
            rule, subject, cost, _ = asked
            place = (rule.name, subject)
            if rule.limits:
                by_place.setdefault(place, []).append(asked)
            elif cost and place not in by_place and counts_day(rule, subject):
                self.unlimited_hits = {**self.unlimited_hits, place: (rule, cost)}
        return [self._hit(place, of_place) for place, of_place in by_place.items()]

    def _hit(self, place: Place, asked: Sequence[Asked]) -> Hit:
        """Return the hit of rules of one name."""
        rule, subject, cost, value = asked[0]
        if rule.distinct is not None and cost > 1:
            raise RuleError(f"Rule {rule.name!r} counts different values: a hit costs 1, not {cost}.")
        for (one, *_), (other, *costs) in combinations(asked, 2):
            if costs != [subject, cost, value] or not one.is_compatible_with(other):
                raise name_conflict(other, one)
        hit = Hit([each[0] for each in asked], subject_base(self._prefix, subject) + "}:", subject, cost, value)
        hit.is_overridden = place in self._overridden
        if rule.shadow or not rule.block:
            self._groups += 1
            hit.group = self._groups
        if rule.ban is not None and not rule.shadow:
            hit.refusals_key = f"{hit.base}b:{hit.field}"
        if counts_day(rule, subject):
            hit.day = _NO_DAY
        self.timeless = self.timeless and hit.timeless and hit.day is None
        hit.is_estimate = self.settles_later(rule)
        if isinstance(rule, CounterRule) and rule.group is not None:
            base = group_base(self._prefix, rule.group)
            hit.move_to(base + "}:", key_of(base, "c", rule.name, subject))
        return hit

    @property
    def is_compiled(self) -> bool:
        """Whether somebody has looked at `hits`."""
        return self._hits is not None

    def __len__(self) -> int:
        return len(self.hits)

    @property
    def limits(self) -> list[CompiledLimit]:
        """All limits of the hits, in the order of the reply."""
        return [limit for hit in self.hits for limit in hit.limits]

    def operation(self, now: int, mode: PlanMode) -> Decide:
        """Return the operation of the plan; `now` (microseconds) is a guess that only days and calendars need."""
        hits = self.hits
        if not self.timeless:
            self._move_to(now)
        log = self._log if mode in ("check", "force", "adjust") else NO_LOG
        if mode != "adjust":
            return Decide(hits, mode, log)
        return Decide(hits, Adjust([self._settlement and self._settlement.of(hit) for hit in hits]), log)

    def _move_to(self, now: int) -> None:
        """Set the edges of days and calendar limits. What is settled counts for the day of its hit."""
        taken = self._settlement.taken if self._settlement else {}
        for hit in self.hits:
            hit.limits = [limit.at(now) for limit in hit.limits]
            if hit.day is not None:
                found = taken.get((hit.rule.name, hit.subject))
                day = day_of(found.moment if found else now, self._zone())
                hit.day = DayKey(f"{hit.base}day:{day.date}", day.begins, day.ends)

    def estimate(self, estimates: Callable[[Rule], bool] = lambda _: True) -> None:
        """Treat the costs of these rules as estimates, to settle later. Call this before the first look at `hits`."""
        self._estimates = estimates

    def settles_later(self, rule: Rule) -> bool:
        """Say whether the cost of a rule is an estimate."""
        return self._estimates is not None and self._estimates(rule)

    @property
    def decided_at(self) -> int | None:
        """When the store decided the plan, in microseconds; None if no store did."""
        if self._decoded is not None:
            return self._decoded.now
        return None if self._raw is None else int(self._raw[0])

    @property
    def taken(self) -> dict[Place, Taken]:
        """What the hits took in a check and have not given back. An exempt hit took nothing of any limit."""
        consumed = self._reply.consumed(self.hits) if self._reply and not self.is_undone else ()
        found = ((self.hits[index], moment) for index, moment in consumed)
        return {place: Taken(moment, {}) for place, moment in self.exempt.items()} | {
            (hit.rule.name, hit.subject): Taken(moment, {limit.key: limit.limit.encoded for limit in hit.limits})
            for hit, moment in found
        }

    def settled_here(self) -> Iterator[tuple[Rule, str, Taken, int, bool]]:
        """Yield the hits to settle that no limit counted: each with its rule, subject, and what it took.

        After these, how many more units the hit really used, and whether it used none at all.
        """
        settlement = self._settlement
        if settlement is None:
            return
        for rule, subject, cost, _ in self.asked:
            taken = settlement.taken.get((rule.name, subject))
            if taken is not None and not taken.limits:
                actual = settlement.actual[rule.name, subject]
                yield rule, subject, taken, actual - cost, actual == 0

    def settled(self, taken: Mapping[Place, Taken], actual: Sequence[int] = (), *, undone: bool = False) -> Plan:
        """Return the plan that settles what this one took, by the limits that hold now.

        `actual`: what was really used, for each rule that was added; empty: nothing.
        """
        plan = Plan(self._prefix, zone=self._zone, asked=list(self.given))
        plan._log = self._log
        places = [(rule.name, subject) for rule, subject, _, _ in plan.asked]
        plan._settlement = Settlement(taken, dict(zip(places, actual or [0] * len(places), strict=True)), undone)
        return plan

    @property
    def has_groups(self) -> bool:
        """Whether a rule decides for itself: a shadow, or one that does not block."""
        return self._groups > 0

    @property
    def _reply(self) -> Reply | None:
        """The last reply."""
        if self._decoded is None and self._raw is not None:
            self._decoded = Reply.decode(self._raw, self.hits)
        return self._decoded

    def is_reported(self, decision: Decision) -> bool:
        """Say whether metrics and observers get the plan's decision: always if it refuses, mostly if it allows."""
        return self.counts_if_allowed or not decision.allowed

    def emitted(self) -> Iterator[tuple[EventKind, Hit, int]]:
        """Yield the events that the last reply reports; see `codec.emitted`."""
        reply = self._decoded  # a reply that is not decoded has no flags
        return emitted(reply, self.hits) if reply is not None and reply.flags else iter(())

    def reset_operation(self, table: OverrideTable) -> Reset:
        """Return the operation that drops all counts of the plan, also under the rates of overrides, and lifts bans."""
        states = []
        for hit in self.hits:
            rates = [each for each in table.matching(hit.subject, hit.rule.name) if each.mode == "rate"]
            states.append(RuleState.of(hit, [rule_under(hit.rule, override) for override in rates]))
        return Reset(states, self._log)

    def read(self, raw: Sequence[Any], *, degraded: bool = False, is_last: bool = False) -> Decision | None:
        """Return the decision in a store's reply; None if another day or period has begun.

        `is_last`: whether the plan is not used again, so that the decision may read its outcomes later.
        """
        if is_last and not self.here and not self.has_groups and allows_without_flags(raw, self.hits):
            self._raw = raw
            return Decision.lazy(partial(read_outcomes, raw, self.hits), allowed=True)
        reply = Reply.decode(raw, self.hits)
        if reply.verdict == RETRY_WITH:
            return None
        self._decoded = reply
        outcomes = outcomes_of(reply, self.hits)
        if self.here:
            of_store = groupby(outcomes, key=lambda outcome: (outcome.rule, outcome.subject))
            by_place = {place: tuple(of_place) for place, of_place in of_store} | self.here
            places = dict.fromkeys((rule.name, subject) for rule, subject, _, _ in self.asked)
            outcomes = tuple(outcome for place in places for outcome in by_place.get(place, ()))
        return Decision.of(outcomes, degraded=degraded)

    def unlimited(self, *, degraded: bool = False) -> Decision:
        """Return the decision if nothing limits the request, or if no store can be asked."""
        if not self.asked:
            return Decision(allowed=True, rule="", subject="", degraded=degraded)
        rule, subject, _, _ = self.asked[0]
        return Decision(allowed=True, rule=rule.name, subject=subject, degraded=degraded)

    def without_store(self, refusing: Sequence[Rule]) -> Decision:
        """Return the refusal by one of these rules, preferably one that blocks; allow the plan if none limits it."""
        found = [
            Decision(allowed=False, rule=rule.name, subject=subject, degraded=True, enforced=rule.block)
            for rule, subject, _, _ in self.sent
            if rule in refusing and rule.limits and not rule.shadow
        ]
        return max(found, key=lambda refusal: refusal.enforced, default=self.unlimited(degraded=True))

    def only(self, rules: Sequence[Rule], changed: Callable[[Rule], Rule]) -> Plan:
        """Return the plan with only these rules, each `changed`, for another store."""
        asked = [(changed(rule), subject, cost, value) for rule, subject, cost, value in self.sent if rule in rules]
        plan = Plan("", zone=self._zone, asked=asked)
        plan._overridden = self._overridden
        return plan


_NO_DAY = DayKey("", 0, 0)
"""A day that is not known yet."""


def counts_day(rule: Rule, subject: str) -> bool:
    """Say whether the hits of a subject are counted by day."""
    return subject.startswith("user:") and "+" not in subject if rule.daily is None else rule.daily


def rule_under(rule: Rule, override: Override) -> Rule:
    """Return a rule with the rates of an override, or as a shadow; unchanged if the rates do not fit it."""
    if override.mode == "shadow":
        return rule.but(shadow=True)
    if override.mode != "rate":
        return rule
    try:
        return rule.under(override.rates)
    except RuleError as error:
        _log_unfit_override(rule.name, override.rates, str(error))
        return rule


@lru_cache(maxsize=256)
def _log_unfit_override(rule: str, rates: str, why: str) -> None:
    """Log once that an override does not fit."""
    logger.error("The override %r does not fit rule %r and is ignored: %s", rates, rule, why)


def outcomes_under(override: Override, rule: Rule, subject: str, cost: int, now: int) -> tuple[Outcome, ...]:
    """Return an outcome for each limit of a rule whose subject is exempt or blocked by an override."""
    enforced = rule.block and not rule.shadow
    if override.mode == "exempt":
        return tuple(
            Outcome(limit, subject, cost, True, limit.capacity, 0.0, 0.0, None, 0.0, rule.shadow, enforced, "exempt")
            for limit in rule.limits
        )
    wait = (override.ends - now) / SECOND if override.ends else None
    return tuple(
        Outcome(limit, subject, cost, False, 0, wait, wait or 0.0, wait, 0.0, rule.shadow, enforced, "blocked")
        for limit in rule.limits or rule.with_rates("0/d").limits  # of a tier that is unlimited
    )


@lru_cache(maxsize=16)
def event_log_of(prefix: str, events: int) -> EventLog:
    """Return the event log under a prefix that keeps this many events; 0: no events."""
    return EventLog([system_key(prefix, name) for name in ("events", "bans")], events) if events else NO_LOG
