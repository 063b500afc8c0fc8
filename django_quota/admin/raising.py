"""Raising a subject's limits: which rules can be raised, and why others cannot."""

from __future__ import annotations

from typing import NamedTuple

from django.utils.translation import gettext as _

from django_quota.core import clock
from django_quota.core.overrides import ALL_RULES, Override
from django_quota.core.rules import Rule
from django_quota.error_texts import text_in_words
from django_quota.limiting.known_rules import NamedRule, known_login_rules
from django_quota.limiting.overrides import overrides
from django_quota.models import QuotaOverride
from django_quota.operating.inspection import UNLIMITED, rules_for
from django_quota.operating.who_counts import who_counts

FACTORS = (2, 5, 10)


class Raising(NamedTuple):
    """A rule that may limit the subject."""

    name: str
    rule: Rule | None
    problem: str
    """Why it cannot be raised; empty if it can."""

    def raised(self, factor: int) -> str:
        """Return the rates of the raised rule, of each tier; empty if they depend on the request."""
        if self.rule is None:
            return ""
        tiers = [f"{tier} {_rates(rule, factor) or _('unlimited')}" for tier, rule in self.rule.tiers.items()]
        return ", ".join(tiers) or _rates(self.rule, factor)

    def named(self, factor: int) -> str:
        """Return its name with these rates: `api (free 200/d, pro 2000/d)`."""
        rates = self.raised(factor)
        return f"{self.name} ({rates})" if rates else self.name


def _rates(rule: Rule, factor: int) -> str:
    return "; ".join(str(limit.rate) for limit in rule.under(f"x{factor}").limits)


def raisings(name: str, subject: str) -> list[Raising]:
    """Return the rules of this name (`*`: all known rules) that may limit a subject.

    All rules leave out those of failed logins: whoever needs more searches does not need more guesses. A rule with an
    override in force is not raised: that override would be replaced or hidden. Only a raise may replace
    an earlier raise.
    """
    overrides.refresh()
    counts, logins = who_counts(), {rule.name for rule in known_login_rules()}
    return [
        Raising(rule, given if isinstance(given, Rule) else None, _problem(rule, subject, given))
        for rule, given in rules_for(name).items()
        if name != ALL_RULES or rule not in logins
        if counts.can_count(rule, subject)
    ]


def _problem(name: str, subject: str, rule: NamedRule) -> str:
    """Return why a rule cannot be raised; empty if it can."""
    now = clock.now()
    held = overrides.table.find(name, subject, now)
    if held is not None and not _is_raise(held, name, subject):
        return _("an override is in force: %s") % _in_words(held)
    for each in overrides.table.matching(name, subject):
        if (each.subject, each.rule) == (subject, name) and each.begins > now:
            return _("its own override would be lost: %s") % _in_words(each)
    if not isinstance(rule, Rule):
        return text_in_words(rule)
    if not rule.rates:
        return str(UNLIMITED)
    is_closed = bool(rule.limits) and not any(limit.rate.count for limit in rule.limits)
    return _("it admits nothing") if is_closed else ""


def _is_raise(held: Override, name: str, subject: str) -> bool:
    """Return whether an override of exactly this subject and rule multiplies the rates, and adds no units."""
    return (held.subject, held.rule) == (subject, name) and held.rates.startswith("x") and "+" not in held.rates


def _in_words(override: Override) -> str:
    return override.rates or str(QuotaOverride.Mode(override.mode).label)
