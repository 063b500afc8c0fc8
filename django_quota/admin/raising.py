"""Raising a subject's limits: the rates of each rule times a factor, or why a rule cannot be raised."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.utils.translation import gettext as _

from django_quota.admin.wording import state_of
from django_quota.core import clock
from django_quota.core.errors import RuleError
from django_quota.core.overrides import Override
from django_quota.core.rates import MAX_COUNT, Rate
from django_quota.core.rules import Rule
from django_quota.engine.plans import rule_under
from django_quota.limiting.override_rows import write_database
from django_quota.limiting.overrides import overrides
from django_quota.models import QuotaOverride
from django_quota.operating.inspection import BY_REQUEST, UNLIMITED, UNNAMED, NamedRule, possible_tiers, rules_for
from django_quota.operating.lookup import is_given_by, known_keys

FACTORS = (2, 5, 10)


class Raising(NamedTuple):
    """A rule, and the rates that it would have for the subject."""

    rule: str
    rates: str
    """Empty if it cannot be raised."""
    problem: str = ""
    """Why it cannot be raised."""


def rules_of(subject: str, name: str) -> dict[str, NamedRule]:
    """Return the rules of this name (`*`: all known rules) that may limit a subject."""
    keys = known_keys()
    return {rule: given for rule, given in rules_for(name).items() if is_given_by(keys.get(rule, []), subject)}


class Times(NamedTuple):
    """How much to raise: the rates of a tier, or the highest that the subject may have, times a factor."""

    factor: int
    tier: str = ""

    @classmethod
    def read(cls, text: str) -> Times:
        """Read `"2"`, or `"2 pro"`."""
        factor, _space, tier = text.partition(" ")
        return cls(int(factor), tier)

    def __str__(self) -> str:
        return f"{self.factor} {self.tier}".strip()


def tiers_to_raise(subject: str, rules: Mapping[str, NamedRule], last_tiers: Mapping[str, str]) -> list[str]:
    """Return the tiers to choose from: those of a single rule that the subject may be in, if there are several.

    `last_tiers`: the tiers that the subject had last, by rule.
    """
    (given, *others) = rules.values() or [None]
    tiers = list(possible_tiers(given, subject, last_tiers)) if isinstance(given, Rule) and not others else []
    return tiers if len(tiers) > 1 else []


def raisings(
    subject: str,
    rules: Mapping[str, NamedRule],
    last_tiers: Mapping[str, str],
    times: Times,
    expires: datetime | None,
) -> list[Raising]:
    """Return what each rule would be raised to; `last_tiers`: the tiers that the subject had last, by rule.

    A rule is not raised if that could lower a limit, or lose an override that the subject has.
    """
    overrides.refresh()
    rows = {row.rule: row for row in QuotaOverride.objects.using(write_database()).filter(subject=subject)}
    found = []
    for rule_name, given in rules.items():
        rates = problem = ""
        if not isinstance(given, Rule):
            problem = given if isinstance(given, str) else str(UNNAMED)
        elif given.dynamic and not given.tiers:
            problem = str(BY_REQUEST)
        else:
            in_force = overrides.table.find(subject, rule_name, clock.now())
            tiers = possible_tiers(given, subject, last_tiers)
            chosen = [tiers[times.tier]] if times.tier in tiers else tiers.values() or [given]
            rates, problem = _raised(given, chosen, times.factor, in_force)
            problem = problem or _loss(rows.get(rule_name), expires)
        found.append(Raising(rule_name, "" if problem else rates, problem))
    return found


def _raised(rule: Rule, tiers: Collection[Rule], factor: int, in_force: Override | None) -> tuple[str, str]:
    """Return the new rates and an empty problem, or empty rates and the problem."""
    known: list[Sequence[Any]] = [tier.rates for tier in tiers]
    if not all(known):
        return "", str(UNLIMITED)
    raised = [[Rate(min(MAX_COUNT, rate.count * factor), rate.unit, rate.multiple) for rate in each] for each in known]
    best = next((new for new in raised if not any(lowers(new, old) for old in known)), None)
    if best is None:
        return "", _("its rates depend on the tier")
    if best in map(list, known):
        return "", _("it admits nothing")
    if in_force is not None and (
        in_force.mode != "rate"
        or any(lowers(best, [each.rate for each in rule_under(tier, in_force).limits]) for tier in tiers)
    ):
        words = in_force.rates or QuotaOverride.Mode(in_force.mode).label
        return "", _("an override is in force: %s") % words
    text = "; ".join(map(str, best))
    try:
        rule.with_rates(text)
    except RuleError as error:
        return "", str(error)
    return text, ""


def _loss(row: QuotaOverride | None, expires: datetime | None) -> str:
    """Return why a row of the subject and the rule must stay; empty if it may be replaced."""
    if row is None or (state := state_of(row)) == "ended":
        return ""
    is_longer = expires is not None and (row.expires is None or row.expires > expires)
    if is_longer or state == "pending":
        return _("its own override would be lost: %s") % row.effect
    return ""


def lowers(new: Sequence[Rate], old: Sequence[Any]) -> bool:
    """Return whether new rates refuse in some window what old ones admit."""
    return any(rate.count < min(other.count * -(-rate.period // other.period) for other in old) for rate in new)
