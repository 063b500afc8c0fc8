"""A plan: the limits that one request asks for, with subjects and costs.

One plan is one script call. Its reply becomes a Decision here, so that every store and every driver reads it alike. The
reply may ask for the plan in another form (another day, a rate override, abandoned holds): `revise` changes it. A
process remembers rate overrides, so that the next plan of a subject has the right form at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, cast

from django_quota.core.days import day_of
from django_quota.core.decisions import Decision
from django_quota.core.errors import RuleError
from django_quota.core.keys import BAN_EVENTS, key_of, state_key, subject_base, system_key
from django_quota.core.rules import Rule, name_conflict
from django_quota.engine.codec import (
    ALLOWED,
    HOLDS_DUE,
    RETRY_WITH,
    AllowedReply,
    Compensate,
    EventKind,
    Flag,
    HoldId,
    Mode,
    Reply,
    Reservation,
    allows_without_flags,
    consumes,
    emitted,
    outcomes_of,
)
from django_quota.engine.compensate import compensated, compensation
from django_quota.engine.decide import Decide
from django_quota.engine.events import NO_LOG, EventLog
from django_quota.engine.hits import CompiledLimit, CompiledRule, DayKey, Hit, all_limits
from django_quota.engine.scatter import day_record
from django_quota.engine.subject_operations import Reset, RuleState

logger = logging.getLogger("django_quota")

MAX_KNOWN = 10_000
"""How many rate overrides a process remembers."""

_known: dict[tuple[str, str], str] = {}
"""The last rate override of a subject (its status key) and a rule, as it was published."""


Asked = tuple[Rule, str, int, str]
"""What a rule asks for: the rule, the subject, the cost and the digest of the value to count."""


class Plan:
    """The limits of one request, in order. A limit that is added twice counts once.

    `events`: how many events the log keeps; 0: no events. `zone` returns the time zone in which days are counted.
    """

    timeless: bool = True
    """Whether the plan is the same at any time: it has no calendar limit, and counts no day. True of no rules."""
    counts_if_allowed = True
    """Whether metrics and observers hear of it if it is allowed."""
    _groups = 0
    _reservation: Reservation | None = None
    """How hits note what they consume as holds. Then the plan is used again."""
    _reserves: Callable[[Rule], bool]
    """Whether the hit of a rule does so."""
    _remembers = True
    """Whether rate overrides that the process remembers replace rates."""
    _compiled: list[Hit] | None = None
    _raw: Sequence[Any] | None = None
    """A reply that is not decoded yet, to a plan that all limits allowed."""
    _decoded: Reply | None = None

    def __init__(
        self, prefix: str, events: int = 0, zone: Callable[[], str] = lambda: "UTC", asked: list[Asked] | None = None
    ) -> None:
        self._prefix = prefix
        self._zone = zone
        self._log = event_log_of(prefix, events)
        self.asked: list[Asked] = [] if asked is None else asked
        """The rules that were added, each with its subject, cost and value."""

    def add(self, rule: Rule, subject: str, cost: int, value: str = "") -> None:
        """Add all limits of a rule for a subject; `cost` is what the hit takes of each, `value` a digest to count.

        Rules of one name and subject are one hit. All rules must be added before the first look at `hits`.
        """
        self.asked.append((rule, subject, cost, value))

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
        """What the store decides. It is made when it is first needed: a refusal from memory needs none of it.

        Raises `RuleError` if rules of one name differ in more than their rates.
        """
        hits = self._compiled
        if hits is None:
            hits = self._compile()
            if self._reservation is not None:
                for hit in filter(lambda hit: self._reserves(hit.rule), hits):
                    hit.reservation, hit.holds = self._reservation, _subject_key(hit, f"h:{hit.field}")
        return hits

    def _compile(self) -> list[Hit]:
        hits: dict[tuple[str, str], Hit] = {}
        self.timeless, self._groups = True, 0
        known = base = status_key = ""
        is_user = False
        for rule, subject, cost, value in self.asked:
            if rule.distinct is not None and cost > 1:
                raise RuleError(f"Rule {rule.name!r} counts different values: a hit costs 1, not {cost}.")
            if subject != known:  # mostly, all rules of a request have the same subject
                known, base = subject, subject_base(self._prefix, subject)
                status_key = f"{base}}}:s"
                is_user = subject.startswith("user:") and "+" not in subject
            compiled = CompiledRule.of(rule)
            place = (status_key, compiled.field)
            hit = hits.get(place)
            if hit is not None:
                self._extend(hit, rule, base, cost, value)
                continue
            hit = Hit(rule, compiled.field, status_key, subject, cost)
            published = _known.get(place) if _known and self._remembers else None
            limited_by = _overridden(hit, published) if published else rule
            hit.limits = self._limits_of(limited_by, base, value)
            if not hit.limits:
                continue
            hits[place] = hit
            if compiled.timeless and not published:
                hit.compiled = compiled
            if compiled.decides_alone:
                self._groups += 1
                hit.group = self._groups
            if rule.ban is not None and not rule.shadow:
                hit.refusals_key = key_of(base, "b", rule.name)
            if rule.daily or (is_user and rule.daily is None):
                hit.day = _NO_DAY
                self.timeless = False
        self._compiled = found = list(hits.values())
        return found

    def _extend(self, hit: Hit, rule: Rule, base: str, cost: int, value: str) -> None:
        """Add the limits of a rule to the hit of another rule of that name."""
        if (hit.cost, hit.value) != (cost, value) or not rule.is_compatible_with(hit.rule):
            raise name_conflict(rule, hit.rule)
        if hit.has_override_limits:  # they replace those of all rules of the name
            return
        for limit in self._limits_of(rule, base, value):
            same = next((other for other in hit.limits if other.key == limit.key), None)
            if same is None:
                hit.limits, hit.compiled = [*hit.limits, limit], None
            elif same.limit != limit.limit:
                raise name_conflict(rule, hit.rule)

    def _limits_of(self, rule: Rule, base: str, value: str) -> list[CompiledLimit]:
        compiled = CompiledRule.of(rule)
        if compiled.timeless and not value:
            return [
                CompiledLimit(base + suffix, limit, parameters, limit.encoded)
                for suffix, limit, parameters in compiled.timeless_limits
            ]
        self.timeless = self.timeless and compiled.timeless
        return [CompiledLimit.of(state_key(base, limit), limit, 0, value) for limit in rule.limits]

    def __len__(self) -> int:
        return len(self.hits)

    @property
    def limits(self) -> list[CompiledLimit]:
        """All its limits, in the order of the reply."""
        return all_limits(self.hits)

    def operation(self, now: int, mode: Mode) -> Decide:
        """Return the operation that decides it; `now` (microseconds) is a guess that only days and calendars need."""
        hits = self.hits
        if not self.timeless:
            self._move_to(now)
        return Decide(hits, mode, self._log if mode == "check" or consumes(mode) else NO_LOG)

    def _move_to(self, now: int) -> None:
        """Set the edges of days and calendar limits."""
        day = day_of(now, self._zone())
        for hit in self.hits:
            hit.limits = [limit.at(now) for limit in hit.limits]
            if hit.day is not None:
                hit.day = DayKey(_subject_key(hit, f"day:{day.date}"), day.begins, day.ends)

    def include_holds(self) -> None:
        """Send the keys of holds along, so that a reset drops them."""
        for hit in self.hits:
            hit.holds = _subject_key(hit, f"h:{hit.field}")

    def reserve(self, reservation: Reservation, reserves: Callable[[Rule], bool] = lambda _: True) -> None:
        """Let the hits of these rules note what they consume as holds. Call it before the first look at `hits`.

        Once the plan is decided, `holds` names the holds.
        """
        self._reservation, self._reserves = reservation, reserves

    @property
    def holds(self) -> list[HoldId | None]:
        """The hold of each hit that the last reply noted or renewed; None for a hit that consumed nothing."""
        found: list[HoldId | None] = [None] * len(self.hits)
        for index, flag, value in self._reply.flags if self._reply else ():
            if flag == Flag.HELD:
                found[index] = HoldId(value, self.hits[index].reservation.token)
        return found

    @property
    def decided_at(self) -> int | None:
        """When the store decided it, in microseconds; None if no store did."""
        return self._reply.now if self._reply else None

    def compensation(self) -> Decide | None:
        """Return the operation that takes back what a tentative decision consumed; None if it consumed nothing."""
        mode = self._reply and compensation(self.hits, self._reply, keep_near=True)
        return Decide(self.hits, mode) if mode else None

    def compensated(self, operation: Decide, raw: Sequence[Any]) -> Decision:
        """Return the decision after its costs were taken back; `raw`: the reply to the `operation` that did so."""
        before, mode = cast("Reply", self._reply), cast("Compensate", operation.mode)
        reply = compensated(before, mode, Reply.decode(raw, self.hits))
        return Decision.of(outcomes_of(reply, self.hits))

    def day_record(self) -> Decide | None:
        """Return the operation that counts its hits for the day; None if there is nothing to count."""
        return day_record(self.hits, self._reply) if self._reply else None

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

    def is_heard(self, decision: Decision) -> bool:
        """Say whether metrics and observers hear of its decision: of each refusal, and mostly of the others."""
        return self.counts_if_allowed or not decision.allowed

    @property
    def has_consumed(self) -> bool:
        """Whether the last reply, to a mode that consumes, consumed any hit."""
        reply = self._reply
        if reply is None or reply.verdict != ALLOWED:
            return False
        above = {index for index, flag, _ in reply.flags if flag in (Flag.EXEMPT, Flag.BLOCKED, Flag.BANNED)}
        return any(hit.cost and i not in above and reply.passed(i) for i, hit in enumerate(self.hits))

    def emitted(self) -> Iterator[tuple[EventKind, Hit]]:
        """Yield the events that the last reply reports, each with its hit."""
        reply = self._decoded  # a reply that is not decoded has no flags
        return emitted(reply, self.hits) if reply is not None and reply.flags else iter(())

    def reset_operation(self) -> Reset:
        """Return the operation that drops all that it counted, and lifts bans."""
        self.include_holds()
        return Reset([self._rule_state(hit) for hit in self.hits], self._log)

    def _rule_state(self, hit: Hit) -> RuleState:
        """Return where a hit counts: under its own limits, and under those of an override."""
        base = subject_base(self._prefix, hit.subject)
        own = [state_key(base, limit) for rule in self._rules_of(hit) for limit in rule.limits]
        found = RuleState.of(hit)
        return found._replace(states=list(dict.fromkeys([*found.states, *own])))

    def revise(self, raw: Sequence[Any]) -> bool:
        """Bring the plan into the form that a reply asks for.

        Return whether it asks only for the keys of due holds. Their number is limited, so this may be repeated.
        """
        reply = Reply.decode(raw, self.hits)
        for index, reason, value in reply.retries:
            hit = self.hits[index]
            if reason == HOLDS_DUE:
                hit.holds = _subject_key(hit, f"h:{hit.field}")
                missing = filter(None, value.split(","))
                hit.extra_keys = [
                    *hit.extra_keys,
                    *(_subject_key(hit, f"r:{hit.field}:{window}") for window in missing),
                ]
            else:
                self._override(hit, value)
        return bool(reply.retries) and all(retry.reason == HOLDS_DUE for retry in reply.retries)

    def _override(self, hit: Hit, published: str) -> None:
        """Give a hit the limits of a rate override; empty: those of its own rules."""
        _remember(hit, published)
        base, value = subject_base(self._prefix, hit.subject), hit.value
        hit.override, hit.has_override_limits, hit.compiled = published, False, None
        overridden = _overridden(hit, published) if published else hit.rule
        limits: dict[str, CompiledLimit] = {}
        for rule in [overridden] if hit.has_override_limits else self._rules_of(hit):
            for limit in self._limits_of(rule, base, value):
                limits.setdefault(limit.key, limit)
        hit.limits = list(limits.values())

    def _rules_of(self, hit: Hit) -> Iterator[Rule]:
        """Return the rules of a hit: those of its name and subject."""
        for rule, subject, _, _ in self.asked:
            if (rule.name, subject) == (hit.rule.name, hit.subject):
                yield rule

    def read(self, raw: Sequence[Any], *, degraded: bool = False, is_last: bool = False) -> Decision | None:
        """Return the decision that a store's reply says; None if it asks for the plan in another form.

        `is_last`: whether the plan is not used again, so that the decision may read its outcomes later.
        """
        if is_last and not self.has_groups and self._reservation is None and allows_without_flags(raw, self.hits):
            self._raw = raw
            return Decision.lazy(AllowedReply(raw, self.hits), allowed=True)
        reply = Reply.decode(raw, self.hits)
        if reply.verdict == RETRY_WITH:
            return None
        self._decoded = reply
        return Decision.of(outcomes_of(reply, self.hits), degraded=degraded, late=reply.is_late)

    def unlimited(self, *, degraded: bool = False) -> Decision:
        """Return the decision if nothing limits the request, or if no store can be asked."""
        if not self.asked:
            return Decision(allowed=True, rule="", subject="", degraded=degraded)
        rule, subject, _, _ = self.asked[0]
        return Decision(allowed=True, rule=rule.name, subject=subject, degraded=degraded)

    def denied(self, rule: Rule) -> Decision:
        """Return the refusal of a rule that denies everything while the store does not answer."""
        subject = self.subjects[self.rules.index(rule)]
        return Decision(allowed=False, rule=rule.name, subject=subject, degraded=True, enforced=rule.block)

    def uncounted(self, rules: Sequence[Rule]) -> Decision:
        """Return the refusal by one of these rules if nothing more can be counted: the limit may be reached."""
        binding = [rule for rule in rules if rule.limits and not rule.shadow]
        if not binding:
            return self.unlimited(degraded=True)
        return self.denied(next((rule for rule in binding if rule.block), binding[0]))

    def only(self, rules: Sequence[Rule], changed: Callable[[Rule], Rule] = lambda rule: rule) -> Plan:
        """Return the plan with only these rules, each `changed`, and without overrides."""
        plan = Plan(self._prefix, zone=self._zone)
        plan._remembers = False
        for rule, subject, cost, value in self.asked:
            if rule in rules:
                plan.add(changed(rule), subject, cost, value)
        return plan


_NO_DAY = DayKey("", 0, 0)
"""A day that is not known yet."""


def _subject_key(hit: Hit, what: str) -> str:
    """Return another key of the hit's subject; the status key is the base and `s`."""
    return hit.status_key.removesuffix("s") + what


def _remember(hit: Hit, published: str) -> None:
    place = (hit.status_key, hit.field)
    if not published:
        _known.pop(place, None)
        return
    if len(_known) >= MAX_KNOWN:
        _known.clear()  # the store sends them again
    _known[place] = published


def clear_known_overrides() -> None:
    """Forget the remembered rate overrides; the store sends them again."""
    _known.clear()


def _overridden(hit: Hit, published: str) -> Rule:
    """Return the rule of a hit with the rates of an override, and note on the hit whose limits those are."""
    hit.override = published
    *_, rates = published.split(" ", 3)
    try:
        rule = hit.rule.with_rates(rates)
    except RuleError as error:
        _log_unfit_override(hit.rule.name, rates, str(error))
        return hit.rule
    hit.has_override_limits = bool(rule.limits)
    return rule if hit.has_override_limits else hit.rule


@lru_cache(maxsize=256)
def _log_unfit_override(rule: str, rates: str, why: str) -> None:
    """Log once that an override does not fit."""
    logger.error("The override %r does not fit rule %r and is ignored: %s", rates, rule, why)


@lru_cache(maxsize=16)
def event_log_of(prefix: str, events: int) -> EventLog:
    """Return the event log under a prefix that keeps this many events; 0: no events."""
    return EventLog([system_key(prefix, name) for name in ("events", "bans", BAN_EVENTS)], events) if events else NO_LOG
