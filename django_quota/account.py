"""The account of a subject: how it stands under the rules that are known, read and settled in a few trips, no scan.

What `status` finds by a walk over all keys, for a command, is asked here by name, for a page: the rules of the settings
and the views, those that the subject's own hash and its days name, and the slots of the views. It must not know how it
is shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from itertools import zip_longest
from typing import Any

from django.urls import get_resolver

from django_quota.algorithms import ALGORITHMS
from django_quota.clock import SECOND, frozen_now
from django_quota.conf import current, rule_of
from django_quota.exceptions import RuleError, StoreUnavailable
from django_quota.health import refused_change
from django_quota.keys import escape, key_of, named, subject_base, system_key
from django_quota.keys import field as field_named
from django_quota.limiter import get_limiter
from django_quota.operations.base import text
from django_quota.operations.look import LiftBans, Look
from django_quota.overrides import ALL_RULES, Override, standing_key
from django_quota.plans import Plan, log_of
from django_quota.rules import Rule
from django_quota.status import BY_REQUEST, UNLIMITED, UNNAMED, Held, LimitStatus, known_rules, tiers_for
from django_quota.stores.redis import RedisStore
from django_quota.usage import Count, usage
from django_quota.views import slots_of_views

AT_ONCE = 100
"""Rules that are asked in one call."""

Asked = Rule | str | list[Rule]
"""What is asked by a name: a rule, the several that the name of a rate may stand for, or why none can be."""

MOST_NAMED = 500
"""Rules that only the subject's own keys name, of which no more are asked."""

MOST_SLOTS = 500
"""Slots that were used last, of anybody, among which those of a subject are looked for."""

_OF_RULES = frozenset("obdew")
"""The kinds of fields of how a subject stands that name a rule."""


@dataclass(frozen=True, slots=True)
class BanStatus:
    """A ban that is in force."""

    rule: str
    field: str
    """The rule's name as fields of hashes have it: what is left of one that is too long."""
    ends_in: float
    """Seconds."""
    level: int
    """Which it is in a row; 1 for the first."""


@dataclass(slots=True)
class Account:
    """All that is known of a subject."""

    subject: str
    now: int
    """The store's time when it was looked at, in microseconds since 1970."""
    limits: list[LimitStatus] = field(default_factory=list)
    overrides: dict[str, Override] = field(default_factory=dict)
    """What was published for it, by rule; `"*"` for all of them."""
    bans: list[BanStatus] = field(default_factory=list)
    leases: list[Held] = field(default_factory=list)
    holds: list[Held] = field(default_factory=list)
    days: dict[date, dict[str, Count]] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    """Why a rule could not be asked, by its name."""
    refuses: str = ""
    """What the store says to a change, where it takes none; nothing is counted then."""

    def in_force(self, rule: str) -> tuple[str, Override] | None:
        """Return the override that holds for a rule now, and what it is for: the rule itself, or `"*"`."""
        for name in (rule, ALL_RULES):
            override = self.overrides.get(name)
            if override is not None and override.in_force(self.now):
                return name, override
        return None


@dataclass(slots=True)
class _Found:
    """What a look at a subject has found."""

    now: int
    fields: dict[str, str]
    held: dict[str, Held]
    """By key."""

    @property
    def rules(self) -> set[str]:
        """The parts by which fields name rules."""
        parts = {name.partition(":")[2] for name in self.fields if name.partition(":")[0] in _OF_RULES}
        return parts - {"", ALL_RULES}


def account_of(subject: str, rules: Mapping[str, Rule | str] | None = None) -> Account:
    """Return how a subject stands, under these rules (None: under all that are known).

    Five trips to Redis, and one more for each further hundred rules, for each tier, and for what only the subject's own
    hash names. Raises `StoreUnavailable`.
    """
    asked: dict[str, Asked] = dict(known_rules() if rules is None else rules)
    holds = {_key(subject, "h", name): name for name in asked}
    leases = {_key(subject, "l", name): name for name in (_slots_of(subject) if rules is None else ())}
    found = _look(subject, {**holds, **leases})
    account = Account(subject, found.now)
    store = get_limiter().store
    if isinstance(store, RedisStore):
        account.refuses = refused_change(store, standing_key(current().prefix, subject))
    if rules is None:
        account.days = usage(subject)
        counted = {name for day in account.days.values() for name in day}
        counted |= {name for part in found.rules if (name := named(part)) is not None}
        asked.update((name, _variants(name)) for name in sorted(counted - asked.keys())[:MOST_NAMED])
        more = {key: name for name in asked if (key := _key(subject, "h", name)) not in holds}
        if more:
            found.held.update(_look(subject, more).held)
            holds.update(more)
    account.overrides = _overrides(found)
    account.bans = list(_bans(found, asked))
    account.holds = [held for key, held in found.held.items() if key in holds]
    account.leases = [held for key, held in found.held.items() if key in leases]
    _ask(account, asked)
    return account


def known_slots() -> list[str]:
    """Return the names of the slots that stand before views."""
    return sorted({slot.name for slot in slots_of_views(get_resolver().url_patterns)})


def _slots_of(subject: str) -> list[str]:
    """Return the slots that a subject may hold: those of views, and of calls that were among the last of all."""
    names = set(known_slots())
    store, prefix = get_limiter().store, current().prefix
    if isinstance(store, RedisStore):
        with store.commands() as client:
            last: Any = client.zrevrange(system_key(prefix, "slots"), 0, MOST_SLOTS - 1)
        for member in map(text, last):
            whose, part, _limit = member.split(" ")
            name = named(part)
            if whose == escape(subject) and name is not None:
                names.add(name)
    return sorted(names)


def _key(subject: str, kind: str, name: str) -> str:
    return key_of(subject_base(current().prefix, subject), kind, name)


def _look(subject: str, sets: Mapping[str, str]) -> _Found:
    """Look at a subject, and at sorted sets by key; each has a name."""
    operation = Look(standing_key(current().prefix, subject), list(sets))
    now, flat, *lists = get_limiter().telling.run(operation, frozen_now())
    fields = list(map(text, flat))
    held = {}
    for (key, name), (number, *live) in zip(sets.items(), lists, strict=True):
        if number:
            held[key] = Held(name, tuple((float(stop) - now) / SECOND for stop in live[1::2]), key, int(number))
    return _Found(int(now), dict(zip(fields[::2], fields[1::2], strict=True)), held)


def _overrides(found: _Found) -> dict[str, Override]:
    return {
        (ALL_RULES if name == f"o:{ALL_RULES}" else named(name[2:]) or name[2:]): Override.read(value)
        for name, value in found.fields.items()
        if name.startswith("o:")
    }


def _bans(found: _Found, asked: Iterable[str]) -> Iterator[BanStatus]:
    names = {field_named(name): name for name in asked}
    for name, value in sorted(found.fields.items()):
        part = name.removeprefix("b:")
        if part != name:
            ends, level, _ = map(int, value.split(" "))
            if ends > found.now:
                yield BanStatus(names.get(part, named(part) or part), part, (ends - found.now) / SECOND, level)


# --- asking -----------------------------------------------------------------------------------------------------------


def _variants(name: str) -> Asked:
    """Return what a name that is a rate may stand for: that rate, by any algorithm that takes it."""
    rules = []
    for algorithm in ALGORITHMS:
        with suppress(RuleError):
            rules.append(rule_of(name, {"algorithm": algorithm}))
    rules = [rule for rule in rules if rule.name == name]
    return rules or str(UNNAMED)


def _ask(account: Account, asked: Mapping[str, Asked]) -> None:
    plain: list[tuple[str, list[Rule]]] = []
    by_tier: list[list[tuple[str, list[Rule]]]] = []
    for name, given in asked.items():
        if isinstance(given, list):
            plain.append(("", given))
        elif isinstance(given, str):
            account.unread[name] = given
        elif given.tiers:
            tiers = tiers_for(given, account.subject)
            by_tier.append([(tier, [rule]) for tier, rule in tiers.items() if rule.limits])
        elif given.dynamic:
            account.unread[name] = str(BY_REQUEST)
        elif not given.limits:
            account.unread[name] = str(UNLIMITED)
        else:
            plain.append(("", [given]))
    batches = [plain[first : first + AT_ONCE] for first in range(0, len(plain), AT_ONCE)]
    # Two tiers of a rule share its name, and cannot be asked in one plan.
    batches += [[tier for tier in tiers if tier is not None] for tiers in zip_longest(*by_tier)]
    for batch in batches:
        account.limits += _asked(account, batch)
    order = {name: number for number, name in enumerate(asked)}
    account.limits.sort(key=lambda limit: order[limit.rule])  # a stable sort: tiers stay in their order


def _asked(account: Account, batch: Sequence[tuple[str, list[Rule]]]) -> Iterator[LimitStatus]:
    plan = _plan([rule for _, rules in batch for rule in rules], account.subject)
    by_name = {rules[0].name: rules[0] for _, rules in batch}
    tiers = {rules[0].name: tier for tier, rules in batch}
    guessed = {rules[0].name for _, rules in batch if len(rules) > 1}
    for outcome, key in zip(_peek(plan), [step.key for step in plan.steps], strict=True):
        limit = LimitStatus.of(outcome, key, tiers[outcome.rule])
        if limit.used or outcome.rule not in guessed:
            yield limit.while_store(account.refuses, by_name[outcome.rule])


def _plan(rules: Iterable[Rule], subject: str) -> Plan:
    settings = current()
    plan = Plan(settings.prefix, settings.events)
    for rule in rules:
        plan.add(rule, subject, 1)
    return plan


def _peek(plan: Plan) -> Sequence[Any]:
    if not plan:
        return ()
    decision = get_limiter().decide(plan, "peek")
    if decision.degraded:
        raise StoreUnavailable("it did not say how the limits stand")
    return decision.outcomes


# --- settling ---------------------------------------------------------------------------------------------------------


def forget_known(subject: str, rules: Collection[str] | None = None) -> int:
    """Forget what these rules (None: all that are known) have counted for a subject, and lift their bans.

    Returns how many states and bans there were. Overrides and leases stay. A name that is no rule's counts for a rate.
    Raises `StoreUnavailable`.
    """
    asked: dict[str, Asked] = dict(known_rules())
    names = set(asked) if rules is None else set(rules)
    if rules is None:
        found = _look(subject, {})
        names |= {name for part in found.rules if (name := named(part)) is not None}
        names |= {name for day in usage(subject).values() for name in day}
    chosen = {name: asked.get(name) or _variants(name) for name in names}
    dropped = 0
    for batch in _batches(chosen):
        plan = _plan(batch, subject)
        if plan:
            _peek(plan)  # brings the limits of an override into the plan
            dropped += int(get_limiter().telling.run(plan.forgetting(), frozen_now()))
    return dropped


def _batches(chosen: Mapping[str, Asked]) -> Iterator[list[Rule]]:
    """Part rules into plans: no more than `AT_ONCE` in one, and no two tiers of a rule."""
    plain = [rule for given in chosen.values() if isinstance(given, list) for rule in given]
    plain += [given for given in chosen.values() if isinstance(given, Rule) and given.limits]
    for first in range(0, len(plain), AT_ONCE):
        yield plain[first : first + AT_ONCE]
    tiers = [list(given.tiers.values()) for given in chosen.values() if isinstance(given, Rule)]
    for batch in zip_longest(*tiers):
        yield [rule for rule in batch if rule is not None and rule.limits]


def lift_bans(subject: str, parts: Collection[str] | None = None) -> int:
    """End the bans of a subject under these rules (`BanStatus.field`; None: all); return how many were in force.

    What was counted for its limits stays; how many bans there were in a row is forgotten. Raises `StoreUnavailable`.
    """
    settings = current()
    if parts is None:
        parts = [ban.field for ban in _bans(_look(subject, {}), ())]
    log = log_of(settings.prefix, settings.events) if settings.events else None
    operation = LiftBans(standing_key(settings.prefix, subject), list(parts), log)
    return int(get_limiter().telling.run(operation, frozen_now()))
