"""What the admin page of a rule shows: what the settings or a view say, and what overrides make of it now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields
from operator import itemgetter
from typing import Any, NamedTuple

from django.db.models import Q, QuerySet
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_quota.admin.admin_wording import ALGORITHM_NAMES, moment_of
from django_quota.admin.charts import sparkline
from django_quota.conf import current
from django_quota.core.errors import QuotaError
from django_quota.core.overrides import ALL_RULES, EVERYBODY
from django_quota.core.rules import Rule, option_in_words
from django_quota.features.event_stream import PAGE, event_log
from django_quota.limiting.known_rules import known_login_rules, known_rules
from django_quota.limiting.override_rows import write_database
from django_quota.limiting.registry import get_limiter
from django_quota.models import QuotaOverride
from django_quota.operating.activity import MINUTES, activity

MAX_ROWS = 20
"""Overrides that the page lists of each kind."""

_SHOWN = ("name", "rates", "key", "algorithm", "match", "exclude")
"""The fields of a rule that the page shows in words of its own, or in another place."""


class Group(NamedTuple):
    """The overrides of everybody, of kinds or of networks."""

    title: str | Promise
    rows: list[QuotaOverride]
    more: int


def build_rule_page(name: str, *, with_activity: bool) -> dict[str, Any]:
    """Return the context of a rule's page; with what it decided lately, for those who may see the overview.

    If the store does not answer, `trouble` says why.
    """
    known = known_rules().get(name)
    database = QuotaOverride.objects.using(write_database())
    rows = database.filter(rule__in=(name, ALL_RULES)).active()
    of_everybody = sorted(rows.filter(subject=EVERYBODY), key=lambda row: row.rule == ALL_RULES)
    of_kinds, of_networks = Q(subject__endswith=":*"), Q(subject__startswith="ip:", subject__contains="/")
    of_networks &= ~Q(subject__contains="+")
    of_subjects = rows.exclude(subject=EVERYBODY).exclude(of_kinds).exclude(of_networks)
    return {
        "rule": name,
        "facts": list(_facts(known)) if isinstance(known, Rule) else [],
        "source": _source(name, known),
        "problem": known if isinstance(known, str) else "",
        "for_everybody": of_everybody[0] if of_everybody else None,
        "groups": [
            Group(gettext_lazy("Everybody"), of_everybody, 0),
            _group(gettext_lazy("Kinds of subjects"), rows.filter(of_kinds)),
            _group(gettext_lazy("Networks"), rows.filter(of_networks)),
        ],
        "subjects": of_subjects.values("subject").distinct().count(),
        "own": database.filter(subject=EVERYBODY, rule=name).first(),
        "with_activity": with_activity,
        **(_lately(name) if with_activity else {}),
    }


def _lately(name: str) -> dict[str, Any]:
    """Return what a rule decided today and in the last hour, and whom it refused last, and when."""
    try:
        found = activity()
        today = next((each for each in found.rules if each.rule == name), None)
        log = event_log(get_limiter().store, current().prefix)
        events = [] if log is None else log.last(PAGE, lambda event: (event.kind, event.rule) == ("refused", name))
    except QuotaError as error:
        return {"trouble": str(error)}
    latest = {event.subject: moment_of(event.at) for event in events if event.subject is not None}
    refused = sorted(latest.items(), key=itemgetter(1), reverse=True)[:MAX_ROWS]
    hour = (moment_of(found.now, -60 * (MINUTES - 1)), moment_of(found.now))
    return {"today": today, "drawn": sparkline(today.minutes) if today else {}, "hour": hour, "refused": refused}


def _group(title: str | Promise, rows: QuerySet[QuotaOverride]) -> Group:
    shown = list(rows[: MAX_ROWS + 1])
    return Group(title, shown[:MAX_ROWS], rows.count() - MAX_ROWS if len(shown) > MAX_ROWS else 0)


def _source(name: str, known: Rule | str | None) -> str:
    """Return where the rule is defined."""
    if name in current().rules:
        return f'QUOTA["RULES"]["{name}"]'
    if known in known_login_rules():
        return 'QUOTA["LOGIN"]'
    if known is None:
        return _("Neither the settings nor the views have this rule. Calls in your code may use its name.")
    return _("A view names this rule.")


def _facts(rule: Rule) -> Iterator[tuple[str | Promise, str]]:
    """Yield what the settings or the view say: rates, key, match, algorithm, and each option that is set."""
    yield _("Rate"), "; ".join(map(option_in_words, rule.rates)) or _("unlimited")
    yield _("Key"), option_in_words(rule.key)
    for title, match in ((_("Match"), rule.match), (_("Exclude"), rule.exclude)):
        if match is not None:
            yield title, ", ".join(pattern.text for pattern in match.patterns)
    yield _("Algorithm"), str(ALGORITHM_NAMES.get(rule.algorithm, rule.algorithm))
    for field in fields(Rule):
        value = getattr(rule, field.name)
        if field.init and field.name not in _SHOWN and field.default is not MISSING and value != field.default:
            yield field.name, option_in_words(value)
