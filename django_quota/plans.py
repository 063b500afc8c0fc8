"""A plan: the limits that one request asks for, with subjects and costs. It must not know how a store decides.

One plan is one script call. The reply is read into a Decision here, so that every store and every driver does it alike.
Where the reply says that the plan is stale (another day, a rate override, abandoned holds), `revise` brings it into the
form that the store asks for; rate overrides are remembered, so that a subject's next plan has that form at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from django_quota.algorithms import NUMBERS, Limit, Step
from django_quota.days import day_of
from django_quota.decisions import Decision, is_late, notes, outcomes_of
from django_quota.exceptions import RuleError
from django_quota.keys import BAN_EVENTS, field, key_of, state_key, subject_base, system_key
from django_quota.operations.base import text
from django_quota.operations.decide import ALLOWED, STALE, Decide, Log
from django_quota.operations.forget import Forget, Place
from django_quota.operations.hits import DayKey, Form, Hit, arguments_of
from django_quota.operations.spread import compensated, compensation, day_counting
from django_quota.operations.standing import BANNED, BLOCKED, EXEMPT, HOLDS_DUE
from django_quota.rules import Rule, shared_name

logger = logging.getLogger("django_quota")

MAX_KNOWN = 10_000
"""Rate overrides that a process remembers."""

_known: dict[tuple[str, str], str] = {}
"""The rate override last seen for a subject (the key of how it stands) and a rule, as it was published."""


class Plan:
    """The limits of one request, in order. A limit that is added twice counts once.

    `events`: how many events the log keeps; 0: none are told.
    """

    __slots__ = (
        "_base",
        "_groups",
        "_hits",
        "_is_of_user",
        "_log",
        "_prefix",
        "_remembers",
        "_reply",
        "_subject",
        "costs",
        "hits",
        "rules",
        "subjects",
        "timeless",
    )

    def __init__(self, prefix: str, events: int = 0) -> None:
        self._prefix = prefix
        self._log = log_of(prefix, events) if events else None
        self._reply: Sequence[int] | None = None
        self._groups = 0
        self._hits: dict[tuple[str, str], Hit] = {}
        self._remembers = True
        self._subject: str | None = None
        self._base = ""
        """What the keys of that subject begin with, which was added last."""
        self._is_of_user = False
        self.hits: list[Hit] = []
        self.rules: list[Rule] = []
        self.subjects: list[str] = []
        self.costs: list[int] = []
        self.timeless = True
        """Whether its form is the same at any time: it has no calendar limit, and counts no day."""

    def add(self, rule: Rule, subject: str, cost: int, value: str = "") -> None:
        """Ask all limits of a rule for a subject; `cost` is what the hit takes of each, `value` a digest to count.

        Rules of one name and subject are one hit. Raises `RuleError` where they differ in more than their rates.
        """
        self.rules.append(rule)
        self.subjects.append(subject)
        self.costs.append(cost)
        if rule.distinct is not None and cost > 1:
            raise RuleError(f"Rule {rule.name!r} counts different values: a hit costs 1, not {cost}.")
        if subject != self._subject:  # mostly, all rules of a request have one
            self._subject, self._base = subject, subject_base(self._prefix, subject)
            self._is_of_user = subject.startswith("user:") and "+" not in subject
        base = self._base
        form = _form(rule.name, rule.wire, rule.limits, cost)
        name = form.field if form else _field(rule.name)
        hit = self._hits.get((base, name))
        if hit is not None:
            self._extend(hit, rule, base, cost, value)
            return
        standing = f"{base}}}:s"
        published = _known.get((standing, name)) if _known and self._remembers else None
        if form is None or published or value:
            hit = Hit(rule, name, standing, subject, cost)
            own = _overridden(hit, published) if published else rule
            hit.steps = self._steps_of(own, base, subject, cost, value)
        else:
            hit = Hit(rule, name, standing, subject, cost, form, base)
        if not hit.limits:
            return
        self._hits[base, name] = hit
        self.hits.append(hit)
        if rule.shadow or not rule.block:
            self._groups += 1
            hit.group = self._groups
        if rule.ban is not None and not rule.shadow:
            hit.tally = key_of(base, "b", rule.name)
        if rule.daily or (self._is_of_user and rule.daily is None):
            hit.day = _NO_DAY
            self.timeless = False

    def _extend(self, hit: Hit, rule: Rule, base: str, cost: int, value: str) -> None:
        """Add the limits of a rule to the hit of its namesake."""
        if (hit.cost, hit.steps[0].parameters.value) != (cost, value) or not rule.agrees_with(hit.rule):
            raise shared_name(rule, hit.rule)
        if hit.replaced:  # an override has taken the place of all their limits
            return
        for step in self._steps_of(rule, base, hit.subject, cost, value):
            twin = next((other for other in hit.steps if other.key == step.key), None)
            if twin is None:
                hit.steps = [*hit.steps, step]
            elif twin.limit is not step.limit:
                raise shared_name(rule, hit.rule)

    def _steps_of(self, rule: Rule, base: str, subject: str, cost: int, value: str) -> list[Step]:
        steps = []
        for limit in rule.limits:
            steps.append(Step.of(state_key(base, limit), limit, subject, cost, 0, value))
            if limit.fixed is None:
                self.timeless = False
        return steps

    def __len__(self) -> int:
        return len(self.hits)

    @property
    def steps(self) -> Iterator[Step]:
        """All its limits, in the order of the reply."""
        for hit in self.hits:
            yield from hit.steps

    def operation(self, now: int, mode: str) -> Decide:
        """Return what a store is asked; `now` (microseconds) is a guess, which only days and calendars need."""
        if not self.timeless:
            self._aim(now)
        return Decide(self.hits, mode, self._log)

    def _aim(self, now: int) -> None:
        day = day_of(now)
        for hit in self.hits:
            if hit.form is None:  # else they are the same at any time
                hit.steps = [step.aimed(now) for step in hit.steps]
            if hit.day is not None:
                hit.day = DayKey(_beside(hit, f"day:{day.date}"), day.begins, day.ends)

    def holding(self) -> None:
        """Have every hit bring the key of its holds: to reserve, and to settle."""
        for hit in self.hits:
            hit.holds = _beside(hit, f"h:{hit.field}")

    def held(self, token: str, ttl: int) -> str:
        """Return how the hold is named that has just been taken under a token; empty where nothing was spent."""
        return f"{self._reply[0] + ttl} {token}" if self._reply and self.has_spent else ""

    @property
    def moment(self) -> int | None:
        """When the store decided it, in microseconds; None where it has not."""
        return self._reply[0] if self._reply else None

    def compensation(self) -> Decide | None:
        """Return the operation that gives back what it spent by the last reply, which is one to "take".

        None where it spent nothing, or somewhere else. Raises `StoreUnavailable` where that reply does not say enough.
        """
        return compensation(self.hits, self._reply, was_announced=True)[0] if self._reply else None

    def day_counting(self) -> Decide | None:
        """Return the operation that counts its hits for the day; None where there is nothing to count."""
        return day_counting(self.hits, self._reply) if self._reply else None

    def compensated(self, found: Sequence[int]) -> Decision:
        """Return the decision on it once its cost is given back; `found`: the reply to `compensation`."""
        before = self._reply or ()
        after = compensated(self.hits, before, compensation(self.hits, before)[1], found)
        return Decision.of(outcomes_of(after, self.hits))

    @property
    def has_spent(self) -> bool:
        """Whether any hit was spent, by the last reply, where that is one to a mode which spends."""
        reply = self._reply
        if reply is None or reply[1] != ALLOWED:
            return False
        found = notes(reply, sum(len(hit.limits) for hit in self.hits))
        stands_above = {index for index, what, _ in found if what in (EXEMPT, BLOCKED, BANNED)}
        position = 2  # behind now and the verdict
        for index, hit in enumerate(self.hits):
            end = position + NUMBERS * len(hit.limits)
            if hit.cost and index not in stands_above and all(reply[position:end:NUMBERS]):
                return True
            position = end
        return False

    def forgetting(self) -> Forget:
        """Return the operation that forgets all that it counted, and lifts bans."""
        self.holding()
        return Forget([self._place_of(hit) for hit in self.hits], self._log)

    def _place_of(self, hit: Hit) -> Place:
        """Return where a hit counts: under its own limits, and under those of an override."""
        base = subject_base(self._prefix, hit.subject)
        own = [state_key(base, limit) for rule in self._rules_of(hit) for limit in rule.limits]
        place = Place.of(hit)
        return place._replace(states=list(dict.fromkeys([*place.states, *own])))

    def revise(self, reply: Sequence[int | str | bytes]) -> bool:
        """Bring the plan into the form that a stale reply asks for.

        Return whether it asks for nothing but holds that are due: there are only so many of them.
        """
        for position in range(_REASONS, len(reply), 3):
            index, what, value = reply[position : position + 3]
            hit = self.hits[int(index)]
            if what == HOLDS_DUE:
                hit.holds = _beside(hit, f"h:{hit.field}")
                lacks = filter(None, text(value).split(","))  # type: ignore[arg-type]
                hit.beside += [_beside(hit, f"r:{hit.field}:{window}") for window in lacks]
            else:
                self._override(hit, text(value))  # type: ignore[arg-type]
        return len(reply) > _REASONS and all(what == HOLDS_DUE for what in reply[_REASONS + 1 :: 3])

    def _override(self, hit: Hit, published: str) -> None:
        """Give a hit the limits of a rate override; empty: those of its own rules."""
        _remember(hit, published)
        first = hit.steps[0]
        base = subject_base(self._prefix, first.subject)
        hit.override, hit.replaced = published, False
        overridden = _overridden(hit, published) if published else hit.rule
        rules = [overridden] if hit.replaced else self._rules_of(hit)
        steps: dict[str, Step] = {}
        for rule in rules:
            for step in self._steps_of(rule, base, first.subject, first.cost, first.parameters.value):
                steps.setdefault(step.key, step)
        hit.steps = list(steps.values())

    def _rules_of(self, hit: Hit) -> Iterator[Rule]:
        """Return the rules whose limits a hit stands for: those of its name and subject."""
        for rule, subject in zip(self.rules, self.subjects, strict=True):
            if (rule.name, subject) == (hit.rule.name, hit.subject):
                yield rule

    def read(self, reply: Sequence[int], *, degraded: bool = False) -> Decision | None:
        """Return the decision that a store's reply amounts to; None where the plan was stale."""
        if reply[1] == STALE:
            return None
        self._reply = reply
        outcomes = outcomes_of(reply, self.hits)
        return Decision.of(outcomes, degraded=degraded, late=is_late(reply, len(outcomes)))

    def unlimited(self, *, degraded: bool = False) -> Decision:
        """Return the decision where there is nothing to ask, or nobody to ask it."""
        if not self.rules:
            return Decision(allowed=True, rule="", subject="", degraded=degraded)
        return Decision(allowed=True, rule=self.rules[0].name, subject=self.subjects[0], degraded=degraded)

    def denied(self, rule: Rule) -> Decision:
        """Return the refusal of a rule that lets nobody in while the store does not answer."""
        subject = self.subjects[self.rules.index(rule)]
        return Decision(allowed=False, rule=rule.name, subject=subject, degraded=True, blocked=rule.block)

    def uncounted(self, rules: Sequence[Rule]) -> Decision:
        """Return the refusal by one of these rules where nothing more can be counted: it may be over its limit."""
        binding = [rule for rule in rules if rule.limits and not rule.shadow]
        if not binding:
            return self.unlimited(degraded=True)
        return self.denied(next((rule for rule in binding if rule.block), binding[0]))

    def only(self, rules: Sequence[Rule], changed: Callable[[Rule], Rule] = lambda rule: rule) -> Plan:
        """Return the plan with no other rules than these, each `changed`; their own limits decide its hits."""
        plan = Plan(self._prefix)
        plan._remembers = False
        values = {(hit.subject, hit.rule.name): hit.steps[0].parameters.value for hit in self.hits}
        for rule, subject, cost in zip(self.rules, self.subjects, self.costs, strict=True):
            if rule in rules:
                plan.add(changed(rule), subject, cost, values[subject, rule.name])
        return plan


_REASONS = 2
"""Where in a stale reply the reasons begin: behind now and the verdict."""

_NO_DAY = DayKey("", 0, 0)
"""Stands where a day is counted, until the plan is aimed at one."""


def _beside(hit: Hit, what: str) -> str:
    """Return another key of a hit's subject: that of how it stands ends with the `s` of its kind."""
    return hit.standing.removesuffix("s") + what


def _remember(hit: Hit, published: str) -> None:
    place = (hit.standing, hit.field)
    if not published:
        _known.pop(place, None)
        return
    if len(_known) >= MAX_KNOWN:
        _known.clear()  # the store tells them again
    _known[place] = published


def forget_published() -> None:
    """Forget which overrides the store has told; it tells them again."""
    _known.clear()


def _overridden(hit: Hit, published: str) -> Rule:
    """Return the hit's rule with the rates of an override, noting that its limits are those."""
    hit.override = published
    rates = published.split(" ", 3)[3]
    try:
        rule = hit.rule.with_rates(rates)
    except RuleError as error:
        _complain(hit.rule.name, rates, str(error))
        return hit.rule
    hit.replaced = bool(rule.limits)
    return rule if hit.replaced else hit.rule


@lru_cache(maxsize=256)
def _complain(rule: str, rates: str, why: str) -> None:
    """Say once that an override does not fit."""
    logger.error("The override %r does not fit rule %r and is left out: %s", rates, rule, why)


@lru_cache(maxsize=4096)
def _field(name: str) -> str:
    return field(name)


@lru_cache(maxsize=4096)
def _form(name: str, wire: str, limits: tuple[Limit, ...], cost: int) -> Form | None:
    """Return the form of the hits of a rule; None where its limits depend on the time."""
    if any(limit.fixed is None for limit in limits):
        return None
    ends = tuple(state_key("", limit) for limit in limits)
    arguments = arguments_of(_field(name), 0, wire, "", 0, 0, 0, cost, *[limit.wire for limit in limits])
    return Form(_field(name), limits, ends, arguments)


@lru_cache(maxsize=16)
def log_of(prefix: str, events: int) -> Log:
    """Return the log under a prefix that keeps so many events."""
    return Log(system_key(prefix, "events"), system_key(prefix, "bans"), system_key(prefix, BAN_EVENTS), events)
