"""What an override would do to a subject now: each rule as it stands, and as it would. Nothing is spent or written.

It must not know who asks, nor the form that is filled in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from django_quota.account import AT_ONCE, Account, account_of
from django_quota.algorithms import Step
from django_quota.clock import SECOND, frozen_now
from django_quota.conf import current, rule_of
from django_quota.decisions import Outcome, outcomes_of
from django_quota.exceptions import RuleError, StoreUnavailable
from django_quota.keys import field as field_named
from django_quota.keys import key_of, state_key, subject_base
from django_quota.limiter import MAX_GUESSES, get_limiter
from django_quota.operations.decide import STALE, Decide
from django_quota.operations.hits import Hit
from django_quota.overrides import ALL_RULES, Override
from django_quota.rules import Rule
from django_quota.status import LimitStatus, known_rules


@dataclass(slots=True)
class RuleChange:
    """A rule as it stands, and as it would under the override."""

    rule: str
    now: list[LimitStatus]
    then: list[LimitStatus] = field(default_factory=list)
    """Empty where the override changes nothing."""
    problem: str = ""
    """Why the override does not fit the rule."""
    is_shadowed: bool = False
    """Whether an override of the rule's own goes before one for all."""


@dataclass(slots=True)
class Preview:
    """What an override would do."""

    at: int
    """The store's time, in microseconds since 1970."""
    changes: list[RuleChange]
    is_unknown: bool = False
    """Whether no rule of this name is known here: a decorator or a call may use it."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Why a rule could not be asked, by its name."""


def preview(subject: str, rule: str, override: Override) -> Preview:
    """Return what an override of a rule (`"*"`: of all) would do to a subject, as if it held from now on.

    Raises `RuleError` where the subject is none, `StoreUnavailable`.
    """
    rules = _rules(rule)
    account = account_of(subject, rules)
    shown = Preview(account.now, [], is_unknown=not rules, unread=account.unread)
    reached: dict[str, Rule] = {}
    for name, limits in groupby(account.limits, key=lambda limit: limit.rule):
        change = RuleChange(name, list(limits))
        shown.changes.append(change)
        own = account.in_force(name)
        if rule == ALL_RULES and own is not None and own[0] == name:
            change.is_shadowed = True
            continue
        given = rules[name]
        asked = next(iter(given.tiers.values()), given) if isinstance(given, Rule) else None
        if asked is not None:
            reached[name] = asked
    _fill(shown, account, reached, override)
    return shown


def _rules(name: str) -> dict[str, Rule | str]:
    """Return the rules that an override of this name may be about."""
    known = known_rules()
    if name == ALL_RULES:
        return known
    if name in known:
        return {name: known[name]}
    try:
        rule = rule_of(name, {})
    except RuleError:
        return {}
    return {name: rule} if rule.name == name else {}


def _fill(shown: Preview, account: Account, reached: Mapping[str, Rule], override: Override) -> None:
    if override.mode != "rate":
        for change in shown.changes:
            if change.rule in reached:
                change.then = [_standing(limit, account.now, override) for limit in change.now]
        return
    changes = {change.rule: change for change in shown.changes}
    asked = []
    for name, rule in reached.items():
        try:
            # Without its ban: that stands above, and is taken from how it stands now.
            asked.append(replace(rule.with_rates(override.rates), ban=None))
        except RuleError as error:
            changes[name].problem = str(error)
    bans = {ban.rule: ban.ends_in for ban in account.bans}
    for outcome in _as_if(account.subject, asked, account.now):
        change = changes[outcome.rule]
        limit = replace(LimitStatus.of(outcome, ""), why="override")
        if outcome.rule in bans and any(other.why == "banned" for other in change.now):
            limit = replace(limit, why="banned", retry_after=_later(bans[outcome.rule], limit.retry_after))
        change.then.append(limit)


def _standing(limit: LimitStatus, now: int, override: Override) -> LimitStatus:
    """Return a limit as it stands under an override that lets all in, or nobody."""
    if override.mode == "exempt":
        return replace(limit, why="exempt", retry_after=0.0)
    ends_in = (override.ends - now) / SECOND if override.ends else None
    own = limit.retry_after
    if limit.why in ("exempt", "blocked"):  # which hides how long the limit itself refuses
        own = 0.0 if limit.remaining else limit.reset_after if limit.limit else None
    return replace(limit, why="blocked", retry_after=_later(ends_in, own))


def _later(one: float | None, other: float | None) -> float | None:
    """Return the longer of two waits; None is never."""
    return None if one is None or other is None else max(one, other)


def _as_if(subject: str, rules: Sequence[Rule], now: int) -> Iterator[Outcome]:
    """Peek at rules as if nothing stood above them."""
    base = subject_base(current().prefix, subject)
    nowhere = key_of(base, "s", "preview")  # a hash that nobody writes: no override is in it
    hits = []
    for rule in rules:
        hit = Hit(rule, field_named(rule.name), nowhere, subject, 1)
        hit.steps = [Step.of(state_key(base, limit), limit, subject, 1, now, "") for limit in rule.limits]
        hit.holds = key_of(base, "h", rule.name)
        hits.append(hit)
    for first in range(0, len(hits), AT_ONCE):
        yield from _peek(hits[first : first + AT_ONCE], now)


def _peek(hits: Sequence[Hit], now: int) -> Sequence[Outcome]:
    store = get_limiter().store
    for _ in range(MAX_GUESSES):
        for hit in hits:
            hit.steps = [step.aimed(now) for step in hit.steps]
        reply = store.run(Decide(hits, "peek"), frozen_now())
        if reply[1] != STALE:
            return outcomes_of(reply, hits)
        now = reply[0]
    raise StoreUnavailable("its answers take longer than the periods of a calendar limit last")
