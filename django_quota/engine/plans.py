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
from django_quota.core.keys import BAN_EVENTS, subject_base, system_key
from django_quota.core.rules import Rule, name_conflict
from django_quota.engine.codec import (
    ALLOWED,
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
"""The last rate override of a subject (`Hit.base`) and a rule, as it was published."""


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
    _hits: list[Hit] | None = None
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
        if self._hits is None:
            self._hits = self._compile()
        return self._hits

    def _compile(self) -> list[Hit]:
        hits: dict[tuple[str, str], Hit] = {}
        self.timeless, self._groups = True, 0
        known, base, is_user = "", "", False
        for rule, subject, cost, value in self.asked:
            if rule.distinct is not None and cost > 1:
                raise RuleError(f"Rule {rule.name!r} counts different values: a hit costs 1, not {cost}.")
            if subject != known:  # mostly, all rules of a request have the same subject
                known, base = subject, subject_base(self._prefix, subject) + "}:"
                is_user = subject.startswith("user:") and "+" not in subject
            hit = hits.get((base, rule.name))
            if hit is not None:
                if (hit.cost, hit.value) != (cost, value) or not all(map(rule.is_compatible_with, hit.rules)):
                    raise name_conflict(rule, hit.rule)
                hit.other_rules = (*hit.other_rules, rule)
                self._set_limits(hit, hit.override)
            elif rule.limits:
                hits[base, rule.name] = hit = Hit(rule, base, subject, cost, value)
                self._prepare(hit, counts_day=is_user if rule.daily is None else rule.daily)
        return list(hits.values())

    def _prepare(self, hit: Hit, *, counts_day: bool) -> None:
        """Give a hit what its rule brings beside its limits, and the limits of an override that is known."""
        rule = hit.rule
        if hit.compiled is None:
            self.timeless = False
        published = _known.get((hit.base, hit.field), "") if _known else ""
        if published or hit.value:
            self._set_limits(hit, published)
        if rule.shadow or not rule.block:
            self._groups += 1
            hit.group = self._groups
        if rule.ban is not None and not rule.shadow:
            hit.refusals_key = f"{hit.base}b:{hit.field}"
        if counts_day:
            hit.day = _NO_DAY
            self.timeless = False
        if self._reservation is not None and self._reserves(rule):
            hit.reservation, hit.holds = self._reservation, hit.holds_key

    def _set_limits(self, hit: Hit, published: str) -> None:
        """Give a hit the limits of a rate override, if it fits; empty: those of its own rules."""
        hit.override, hit.compiled = published, None
        overridden = _overridden(hit.rule, published) if published else None
        limits: dict[str, CompiledLimit] = {}
        for rule in [overridden] if overridden else hit.rules:
            compiled = CompiledRule.of(rule)
            self.timeless = self.timeless and compiled.timeless
            for key, limit, parameters in compiled.limits:
                limits[key] = CompiledLimit(hit.base + key, limit, parameters._replace(value=hit.value))
        hit.limits = list(limits.values())

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
                hit.day = DayKey(f"{hit.base}day:{day.date}", day.begins, day.ends)

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
        self._decoded = compensated(before, mode, Reply.decode(raw, self.hits))
        return Decision.of(outcomes_of(self._decoded, self.hits))

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
        return Reset([RuleState.of(hit) for hit in self.hits], self._log)

    def revise(self, raw: Sequence[Any]) -> bool:
        """Bring the plan into the form that a reply asks for.

        Return whether it asks only for the keys of due holds. Their number is limited, so this may be repeated.
        """
        reply = Reply.decode(raw, self.hits)
        for index, reason, value in reply.flags:
            hit = self.hits[index]
            if reason == Flag.HOLDS_DUE:
                hit.holds = hit.holds_key
                missing = filter(None, value.split(","))
                hit.extra_keys = [*hit.extra_keys, *(f"{hit.base}r:{hit.field}:{window}" for window in missing)]
            else:
                _remember(hit, value)
                self._set_limits(hit, value)
        return {reason for _, reason, _ in reply.flags} == {Flag.HOLDS_DUE}

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

    def without_store(self, refusing: Sequence[Rule]) -> Decision:
        """Return the refusal by one of these rules, if any of them binds: by one that blocks, if there is one."""
        found = [
            Decision(allowed=False, rule=rule.name, subject=subject, degraded=True, enforced=rule.block)
            for rule, subject, _, _ in self.asked
            if rule in refusing and rule.limits and not rule.shadow
        ]
        return max(found, key=lambda refusal: refusal.enforced, default=self.unlimited(degraded=True))

    def only(self, rules: Sequence[Rule], changed: Callable[[Rule], Rule]) -> Plan:
        """Return the plan with only these rules, each `changed`, and without overrides, for another store."""
        asked = [(changed(rule), subject, cost, value) for rule, subject, cost, value in self.asked if rule in rules]
        return Plan("", zone=self._zone, asked=asked)  # no site has this prefix, so no override is remembered under it


_NO_DAY = DayKey("", 0, 0)
"""A day that is not known yet."""


def _remember(hit: Hit, published: str) -> None:
    place = (hit.base, hit.field)
    if not published:
        _known.pop(place, None)
        return
    if len(_known) >= MAX_KNOWN:
        _known.clear()  # the store sends them again
    _known[place] = published


def clear_known_overrides() -> None:
    """Forget the remembered rate overrides; the store sends them again."""
    _known.clear()


def _overridden(rule: Rule, published: str) -> Rule | None:
    """Return a rule with the rates of an override; None if they do not fit."""
    *_, rates = published.split(" ", 3)
    try:
        overridden = rule.with_rates(rates)
    except RuleError as error:
        _log_unfit_override(rule.name, rates, str(error))
        return None
    return overridden if overridden.limits else None


@lru_cache(maxsize=256)
def _log_unfit_override(rule: str, rates: str, why: str) -> None:
    """Log once that an override does not fit."""
    logger.error("The override %r does not fit rule %r and is ignored: %s", rates, rule, why)


@lru_cache(maxsize=16)
def event_log_of(prefix: str, events: int) -> EventLog:
    """Return the event log under a prefix that keeps this many events; 0: no events."""
    return EventLog([system_key(prefix, name) for name in ("events", "bans", BAN_EVENTS)], events) if events else NO_LOG
