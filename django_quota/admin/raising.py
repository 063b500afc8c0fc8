"""Raising a subject's limits: which rules can be raised, and why others can't."""

from __future__ import annotations

from typing import NamedTuple

from django.utils.translation import gettext as _

from django_quota.admin.wording import state_of
from django_quota.core import clock
from django_quota.core.rules import Rule
from django_quota.limiting.override_rows import write_database
from django_quota.limiting.overrides import overrides
from django_quota.models import QuotaOverride
from django_quota.operating.inspection import UNLIMITED, NamedRule, rules_for
from django_quota.operating.lookup import is_given_by, known_keys

FACTORS = (2, 5, 10)


class Raising(NamedTuple):
    """A rule that may limit the subject."""

    name: str
    rule: Rule | None
    problem: str
    """Why it cannot be raised; empty if it can."""

    def raised(self, factor: int) -> str:
        """Return the rates of the raised rule, of each tier; empty if only a request tells them."""
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


def raisings(subject: str, name: str) -> list[Raising]:
    """Return the rules of this name (`*`: all known rules) that may limit a subject.

    Where an override holds already, nothing is raised: it would be replaced or hidden. A raise may replace a raise.
    """
    overrides.refresh()
    rows = {row.rule: row for row in QuotaOverride.objects.using(write_database()).filter(subject=subject)}
    keys = known_keys()
    return [
        Raising(rule, given if isinstance(given, Rule) else None, _problem(subject, rule, given, rows.get(rule)))
        for rule, given in rules_for(name).items()
        if is_given_by(keys.get(rule, []), subject)
    ]


def _problem(subject: str, name: str, rule: NamedRule, own: QuotaOverride | None) -> str:
    """Return why a rule cannot be raised; `own`: the override of this subject and rule."""
    held = overrides.table.find(subject, name, clock.now())
    is_raise = own is not None and own.rate.startswith("x") and "+" not in own.rate
    if held is not None and not (own is not None and held.pk == own.pk and is_raise):
        return _("an override is in force: %s") % (held.rates or QuotaOverride.Mode(held.mode).label)
    if own is not None and state_of(own) == "pending":
        return _("its own override would be lost: %s") % own.effect
    if not isinstance(rule, Rule):
        return str(rule)
    if not rule.rates:
        return str(UNLIMITED)
    is_closed = bool(rule.limits) and not any(limit.rate.count for limit in rule.limits)
    return _("it admits nothing") if is_closed else ""
