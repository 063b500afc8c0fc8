"""The admin page of a rule: what the settings or a view say, and what overrides make of it now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields
from operator import itemgetter
from typing import Any

from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from django_quota.admin.base import PageAdmin, names_among
from django_quota.admin.charts import sparkline
from django_quota.admin.wording import algorithm_in_words, local_moment, value_in_words
from django_quota.conf import current
from django_quota.core.clock import SECOND
from django_quota.core.errors import QuotaError
from django_quota.core.overrides import ALL_RULES, EVERYBODY
from django_quota.core.rules import Rule, is_valid_name
from django_quota.error_texts import error_in_words, text_in_words
from django_quota.features.events import EVENTS_A_PAGE, SEARCHED, EventFilter, event_log
from django_quota.limiting.known_rules import known_login_rules, known_rules
from django_quota.limiting.override_rows import write_database
from django_quota.limiting.registry import get_limiter
from django_quota.models import QuotaOverride
from django_quota.operating.activity import MINUTES, activity

ROWS_SHOWN = 50
"""Overrides, and subjects refused last, that the page lists."""

_SHOWN = ("name", "rates", "key", "algorithm", "match", "exclude")
"""The fields of a rule that the page shows in words of its own, or in another place."""


def rules_view(page: PageAdmin, request: HttpRequest) -> HttpResponse:
    """List the rules of the settings and the views, with the rate, the key and the place of each."""
    page.check_view(request)
    rows = []
    for name, known in sorted(known_rules().items()):
        facts = dict(_facts(known)) if isinstance(known, Rule) else {}
        rate, key = facts.get(_("Rate"), ""), facts.get(_("Key"), "")
        problem = text_in_words(known) if isinstance(known, str) else ""
        rows.append((name, rate, key, _source(name, known), problem))
    return page.show(request, "quotaoverride/rules", _("Rules"), rules=rows)


def rule_view(page: PageAdmin, request: HttpRequest) -> HttpResponse:
    """Show the rule in `?name=`. Users who may view the overview also see what it decided recently."""
    page.check_view(request)
    rule, user = request.GET.get("name", ""), request.user
    if rule == ALL_RULES or not is_valid_name(rule) or "\0" in rule:
        raise Http404
    known = known_rules().get(rule)
    database = QuotaOverride.objects.db_manager(write_database())
    rows = database.active().filter(rule__in=(rule, ALL_RULES))
    of_everybody = sorted(rows.filter(subject=EVERYBODY), key=lambda row: row.rule == ALL_RULES)
    is_network = Q(subject__startswith="ip:", subject__contains="/") & ~Q(subject__contains="+")
    of_groups = rows.filter(Q(subject__endswith=":*") | is_network)
    of_subjects = rows.exclude(subject=EVERYBODY).exclude(subject__endswith=":*").exclude(is_network)
    with_activity = user.has_perm("django_quota.view_overview")
    recent = _recent_decisions(rule) if with_activity else {}
    return page.show(
        request,
        "quotaoverride/rule",
        _("Rule"),
        subtitle=Truncator(rule).chars(80),
        rule=rule,
        facts=_facts(known) if isinstance(known, Rule) else (),
        source=_source(rule, known),
        problem=text_in_words(known) if isinstance(known, str) else "",
        for_everybody=next(iter(of_everybody), None),
        groups=[*of_everybody, *of_groups[:ROWS_SHOWN]],
        more=max(0, of_groups.count() - ROWS_SHOWN),
        subjects=of_subjects.values("subject").distinct().count(),
        own=database.filter(subject=EVERYBODY, rule=rule).first(),
        with_activity=with_activity,
        names=names_among(request, (subject for subject, _at in recent.get("refused", ()))),
        **recent,
    )


def _recent_decisions(name: str) -> dict[str, Any]:
    """Return what a rule decided today and in the last hour, who it refused last, and when."""
    try:
        found = activity()
        today = next((each for each in found.rules if each.rule == name), None)
        wanted = EventFilter(kinds=["refused"], rules=[name])
        search = event_log(get_limiter().store, current().prefix).search(EVENTS_A_PAGE, wanted)
    except QuotaError as error:
        return {"trouble": error_in_words(error)}
    latest = {event.subject: event.at for event in reversed(search.events) if event.subject is not None}
    return {
        "today": today,
        "drawn": sparkline(today.minutes) if today else {},
        "hour": [local_moment(found.now, -60 * (MINUTES - 1)), local_moment(found.now)],
        "searched": None if search.is_whole else SEARCHED,
        "refused": sorted(latest.items(), key=itemgetter(1), reverse=True)[:ROWS_SHOWN],
    }


def _source(name: str, known: Rule | str | None) -> str:
    """Return where the rule is defined."""
    if name in current().rules:
        return f'QUOTA["RULES"]["{name}"]'
    if known in known_login_rules():
        return 'QUOTA["LOGIN"]'
    if known is None:
        return _("Neither the settings nor the views have this rule. Calls in your code may use its name.")
    return _("A view names this rule.")


def _facts(rule: Rule) -> Iterator[tuple[str | Promise, str | Promise]]:
    """Yield what the settings or the view say: rates, key, match, algorithm, and each option that is set."""
    yield _("Rate"), "; ".join(map(value_in_words, rule.rates)) or _("unlimited")
    yield _("Key"), value_in_words(rule.key)
    for title, match in ((_("Match"), rule.match), (_("Exclude"), rule.exclude)):
        if match is not None:
            yield title, ", ".join(pattern.text for pattern in match.patterns)
    yield _("Algorithm"), algorithm_in_words(rule.algorithm)
    if rule.lease:
        words = _("each process for %(seconds)s s, all processes at most half of what is left")
        yield _("Taken ahead"), words % {"seconds": f"{rule.lease / SECOND:g}"}
    for field in fields(Rule):
        value = getattr(rule, field.name)
        if field.init and field.name not in _SHOWN and field.default is not MISSING and value != field.default:
            # The name of an option is code: it is the same in all languages.
            yield format_html("<code>{}</code>", field.name), value_in_words(value)
