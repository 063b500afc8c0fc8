"""The usage page of a subject: a year as a heat map, its days as bars and as a table, and a CSV download.

Before the page reads the rows of a subject, it moves what the store has counted into them, as the roll-up does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, timedelta
from typing import Any, NamedTuple, TypeVar

from django.db import router
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect, QueryDict
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from django_quota.admin.base import PageAdmin, may_see_users, names_among
from django_quota.admin.charts import bar_chart, heat_map
from django_quota.admin.wording import subject_in_words
from django_quota.core.errors import ConfigurationError, RuleError, StoreUnavailable
from django_quota.core.keys import field as escaped_rule
from django_quota.error_texts import error_in_words
from django_quota.features.usage.days import Count, recent_days, row_name, row_part, today, total, waiting
from django_quota.features.usage.rollup import move
from django_quota.features.usage.spreadsheets import csv_response
from django_quota.limiting.registry import counting_stores
from django_quota.models import DailyCounter
from django_quota.operating.lookup import subject_hint
from django_quota.subjects.subject import named_subject

CSV_HEADER = ("subject", "rule", "day", *Count._fields)

PERIODS = ("30", "90", "year")
"""How many days the bars go back, by `?days=`; `"year"` stands for the year that the page shows."""

RECENT_DAYS = 90
"""Days before today that the page always reads."""

RULES_LISTED = 100
YEARS_LISTED = 12
"""Rules and years to choose from."""

T = TypeVar("T")


class UsageQuery(NamedTuple):
    """What the page's URL asks for; names are as rows have them."""

    subject: str
    rule: str
    """Empty for all rules."""
    year: int
    period: str

    @classmethod
    def of(cls, given: QueryDict) -> UsageQuery:
        """Read a URL, and ignore a year or period that does not exist. Raises `RuleError` if there is no subject."""
        subject, rule, year, period = (given.get(name, "") for name in ("subject", "rule", "year", "days"))
        return cls(
            row_name(row_part(named_subject(subject))),
            row_name(row_part(rule, escaped_rule)) if rule else "",
            int(year) if re.fullmatch(r"(19[7-9]|2[01]\d)\d", year, re.ASCII) else today().year,
            period if period in PERIODS else PERIODS[0],
        )


def usage_view(page: PageAdmin, request: HttpRequest) -> HttpResponse:
    """Show the usage of the subject in the URL, or the form that asks for one."""
    page.check_view(request)
    if request.method == "POST":
        return page.find(request, "usage")
    trouble = ""
    if request.GET.get("subject"):
        try:
            return page.show(request, "dailycounter/usage", _("Usage"), **_context(request, UsageQuery.of(request.GET)))
        except RuleError as error:
            trouble = error_in_words(error)
    return page.show(request, "subject/find", _("Usage"), trouble=trouble, find_url=page.url("usage"))


def usage_csv(page: PageAdmin, request: HttpRequest) -> HttpResponseBase:
    """Return the days of a subject's year as CSV."""
    page.check_view(request)
    try:
        asked = UsageQuery.of(request.GET)
    except RuleError:
        return HttpResponseRedirect(page.url("usage"))
    _move(asked.subject)
    days = _by_day(_read(asked), asked)
    rows = ((asked.subject, asked.rule or "*", day, *days[day]) for day in sorted(days) if day.year == asked.year)
    return csv_response(request, f"usage {asked.subject} {asked.year}", CSV_HEADER, rows)


def _move(subject: str) -> str:
    """Move what the store has counted to rows; return why that failed."""
    try:
        days = {each.of for each in waiting(recent_days(subject))}
        for store in counting_stores():
            move(store.reporting_store, {day for day in days if day.key.startswith(f"{store.prefix}:")})
    except (StoreUnavailable, ConfigurationError) as error:
        return error_in_words(error)
    return ""


def _rows(asked: UsageQuery) -> Any:
    return DailyCounter.objects.using(router.db_for_write(DailyCounter)).filter(subject=asked.subject)  # replicas lag


def _read(asked: UsageQuery) -> list[tuple[date, str, Count]]:
    """Return what the subject used of each rule on each day of the year, of this year, and of the last days."""
    now = today()
    recent = min(date(now.year, 1, 1), now - timedelta(days=RECENT_DAYS))
    rows = _rows(asked).filter(Q(day__year=asked.year) | Q(day__range=(recent, now + timedelta(days=1))))
    return [(day, rule, Count(*counts)) for day, rule, *counts in rows.values_list("day", "rule", *Count._fields)]


def _summed(counts: Iterable[tuple[T, Count]]) -> dict[T, Count]:
    found: dict[T, Count] = {}
    for key, count in counts:
        found[key] = total([found.get(key, Count()), count])
    return found


def _by_day(counts: Iterable[tuple[date, str, Count]], asked: UsageQuery) -> dict[date, Count]:
    return _summed((day, count) for day, rule, count in counts if asked.rule in ("", rule))


def _context(request: HttpRequest, asked: UsageQuery) -> dict[str, Any]:
    problem, now = _move(asked.subject), today()
    counts = _read(asked)
    days = _by_day(counts, asked)
    of_year = {day: count for day, count in sorted(days.items()) if day.year == asked.year}
    rules = _summed((rule, count) for day, rule, count in counts if day.year == asked.year)
    busiest = sorted(rules.items(), key=lambda each: (-each[1].checks, each[0]))
    names = names_among(request, [asked.subject])
    words = subject_in_words(asked.subject, names)
    first_day = _rows(asked).order_by("day").values_list("day", flat=True).first()
    first_year = min(now.year, asked.year, *([first_day.year] if first_day else []))
    last_year = max(now.year, asked.year)
    bars = _days_of_period(days, asked, now)

    def since(first: date) -> Count:
        return total(count for day, count in days.items() if first <= day <= now + timedelta(days=1))

    totals = [(_("This year"), date(now.year, 1, 1)), (_("This month"), now.replace(day=1)), (_("Today"), now)]
    of_another = [] if asked.year == now.year else [(str(asked.year), total(of_year.values()))]
    return {
        "title": _("Usage of %s") % Truncator(words).chars(80),
        "words": words,
        "asked": asked,
        "problem": problem,
        "first_day": first_day,
        "is_busy_year": any(counts.checks for counts in of_year.values()),
        "hint": "" if first_day else subject_hint(asked.subject, with_users=may_see_users(request)),
        "totals": [*of_another, *((title, since(first)) for title, first in totals)],
        "years": range(max(first_year, last_year - YEARS_LISTED + 1), last_year + 1),
        # The clock of the store may be ahead of this one, so the last day of the map may be tomorrow.
        "heat_map": heat_map(asked.year, of_year, max([now, *of_year])),
        "is_late_in_year": asked.year == now.year and now.month > 6,  # noqa: PLR2004
        "periods": zip(PERIODS, (_("Last 30 days"), _("Last 90 days"), str(asked.year)), strict=True),
        "bar_chart": bar_chart(bars),
        "days": [(day, count) for day, count in reversed(bars) if count.checks],
        "rules": busiest[:RULES_LISTED],
        "more_rules": max(0, len(busiest) - RULES_LISTED),
    }


def _days_of_period(days: dict[date, Count], asked: UsageQuery, now: date) -> list[tuple[date, Count]]:
    """Return every day of the period of the bars, with its checks."""
    if asked.period == "year":
        first, last = date(asked.year, 1, 1), date(asked.year, 12, 31)
        last = min(last, now) if first <= now else last
    else:
        first, last = now - timedelta(days=int(asked.period) - 1), now
    every = (first + timedelta(days=number) for number in range((last - first).days + 1))
    return [(day, days.get(day, Count())) for day in every]
