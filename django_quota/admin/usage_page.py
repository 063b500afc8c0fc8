"""The usage page of a subject: a year as a heat map, its days as bars and as a table, and a CSV download.

Before the page reads the rows of a subject, it moves what the store has counted into them, as the roll-up does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.core.exceptions import PermissionDenied
from django.db import router
from django.db.models import F, QuerySet, Sum, Value
from django.db.models.functions import Concat
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.utils.formats import get_format
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_quota.admin.admin_base import admin_url, may_see_users, subject_url
from django_quota.admin.admin_wording import subject_in_words
from django_quota.admin.charts import bar_chart, heat_map
from django_quota.admin.csv_export import csv_response
from django_quota.core.errors import ConfigurationError, RuleError, StoreUnavailable
from django_quota.core.keys import field as escaped_rule
from django_quota.features.rollup import move
from django_quota.features.usage import Count, recent_days, row_name, row_part, today, total, waiting
from django_quota.limiting.registry import get_limiter
from django_quota.models import DailyCounter
from django_quota.operating.lookup import SubjectMatch, find_subjects, subject_hint, user_names
from django_quota.requests.subjects import named_subject

TEMPLATE = "admin/django_quota/dailycounter/usage.html"
CSV_HEADER = ("subject", "rule", "day", *Count._fields)

RECENT_DAYS = 90
"""Days before today that the page always reads."""

PERIODS = {"30": 30, "90": RECENT_DAYS, "year": 0}
"""How many days the bars go back, by `?days=`; 0 stands for the year that the page shows."""

MAX_RULES = 500
"""Rules that the form offers."""

MAX_RULES_LISTED = 20
MAX_YEARS_LISTED = 12
MIN_YEAR, MAX_YEAR = 1970, 2200
MAX_TEXT = 10_000


# --- usage ------------------------------------------------------------------------------------------------------------


def subject_name(text: str) -> str:
    """Return the name that rows give a subject. Raises `RuleError` where the text is no subject."""
    return row_name(row_part(named_subject(text)))


def rule_name(text: str) -> str:
    """Return the name that rows give a rule; `""` for all rules."""
    return row_name(row_part(text, escaped_rule)) if text else ""


@dataclass(slots=True)
class SubjectUsage:
    """The usage of a subject in one year and in the last days."""

    subject: str
    rule: str
    year: int
    today: date
    days: Mapping[date, Count]
    """The days with checks of the rule, or of all rules: those of the year and the last ones."""
    rules: Mapping[str, Count]
    """Every rule checked in the year, the busiest first."""
    first_day: date | None
    """The first day with checks, of any year."""
    problem: str
    """Why the store did not answer; empty if it did."""

    def between(self, first: date, last: date) -> Count:
        """Return the checks from one day to another."""
        return total(counts for day, counts in self.days.items() if first <= day <= last)

    @property
    def days_of_year(self) -> dict[date, Count]:
        """The days of the year that have checks."""
        return {day: counts for day, counts in sorted(self.days.items()) if day.year == self.year}


def load_usage(subject: str, rule: str = "", year: int | None = None) -> SubjectUsage:
    """Read the usage of a subject in a year, by default this one; names are as rows have them.

    If the store has nothing to move, this takes four queries of the subject's own rows and one call to Redis.
    """
    now = today()
    year = year or now.year
    problem = _move(subject)
    rows = DailyCounter.objects.using(router.db_for_write(DailyCounter)).filter(subject=subject)  # a replica may lag
    # An expression keeps SQLite from using the index by rule, where it would read the rows of all subjects.
    of_rule = rows.annotate(named=Concat("rule", Value(""))).filter(named=rule) if rule else rows
    whole_year = (date(year, 1, 1), date(year, 12, 31))
    recent = (min(date(now.year, 1, 1), now - timedelta(days=RECENT_DAYS)), now + timedelta(days=1))
    days: dict[date, Count] = {}
    for period in {whole_year, recent}:
        days.update(_by_day(of_rule, period))
    first_day = rows.order_by("day").values_list("day", flat=True).first()
    return SubjectUsage(subject, rule, year, now, days, _by_rule(rows, whole_year), first_day, problem)


def _move(subject: str) -> str:
    """Move what the store has counted to rows; return why that failed."""
    try:
        move(get_limiter().reporting_store, {each.of for each in waiting(recent_days(subject))})
    except (StoreUnavailable, ConfigurationError) as error:
        return str(error)
    return ""


def _by_day(rows: QuerySet[DailyCounter], period: tuple[date, date]) -> dict[date, Count]:
    sums = rows.filter(day__range=period).order_by().values_list("day").annotate(*map(Sum, Count._fields))
    return {day: Count(*map(int, counts)) for day, *counts in sums}


def _by_rule(rows: QuerySet[DailyCounter], period: tuple[date, date]) -> dict[str, Count]:
    sums = rows.filter(day__range=period).values_list("rule").annotate(*map(Sum, Count._fields))
    busiest = sums.annotate(checks=Sum(F("allowed") + F("refused"))).order_by("-checks", "rule")[:MAX_RULES]
    return {rule: Count(*map(int, counts)) for rule, *counts, _checks in busiest}


# --- the form and the URL ---------------------------------------------------------------------------------------------


class UsageForm(forms.Form):
    """Asks whose usage to show. It is posted, since it takes plain values such as a phone number."""

    who = forms.CharField(
        label=gettext_lazy("Subject or user"),
        max_length=MAX_TEXT,
        help_text=gettext_lazy("Such as user:42 or ip:203.0.113.9, or a user's name, e-mail address or key."),
    )
    rule = forms.CharField(label=gettext_lazy("Rule"), max_length=MAX_TEXT, required=False)
    year = forms.IntegerField(label=gettext_lazy("Year"), min_value=MIN_YEAR, max_value=MAX_YEAR, required=False)

    def __init__(self, *args: Any, rules: list[str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if rules:
            choices = [("", _("all rules")), *((rule, rule) for rule in rules)]
            self.fields["rule"].widget = forms.Select(choices=choices)


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """What the page's URL asks for; names are as rows have them."""

    subject: str
    rule: str = ""
    year: int | None = None
    period: str = "30"

    @classmethod
    def from_url(cls, parameters: QueryDict) -> UsageQuery:
        """Read a URL, and ignore a year or period that does not exist. Raises `RuleError` if there is no subject."""
        year, period = parameters.get("year", ""), parameters.get("days", "")
        number = int(year) if year.isascii() and year.isdecimal() and len(year) <= 4 else 0  # noqa: PLR2004
        return cls(
            subject_name(str(parameters.get("subject", ""))),
            rule_name(parameters.get("rule", "")),
            number if MIN_YEAR <= number <= MAX_YEAR else None,
            period if period in PERIODS else "30",
        )

    def url(self, **changed: Any) -> str:
        """Return these values as the query of a URL, with some changed."""
        query = QueryDict(mutable=True)
        given = {"subject": self.subject, "rule": self.rule, "year": self.year, "days": self.period} | changed
        query.update({name: str(value) for name, value in given.items() if value})
        return f"?{query.urlencode()}"


# --- views ------------------------------------------------------------------------------------------------------------


def usage_view(admin: ModelAdmin[Any], request: HttpRequest) -> HttpResponse:
    """Show the usage of the subject in the URL, or the form that asks for one."""
    if not admin.has_view_permission(request):
        raise PermissionDenied
    context = {**admin.admin_site.each_context(request), "opts": admin.opts, "title": _("Usage")}
    given = request.POST if request.method == "POST" else request.GET
    if "who" in given:
        form = UsageForm(given)
        found = _find(request, form)
        if len(found) == 1:
            ((subject, url, match),) = found
            if match.is_guess:
                messages.info(request, _guess_message(request, subject))
            return HttpResponseRedirect(url)
        return TemplateResponse(request, TEMPLATE, context | {"form": form, "choices": found})
    if not request.GET.get("subject"):
        return TemplateResponse(request, TEMPLATE, context | {"form": UsageForm()})
    try:
        query = UsageQuery.from_url(request.GET)
    except RuleError as error:
        form = UsageForm({"who": request.GET["subject"]})
        form.add_error("who", str(error))
        return TemplateResponse(request, TEMPLATE, context | {"form": form}, status=400)
    return TemplateResponse(request, TEMPLATE, context | _usage_context(request, admin.admin_site.name, query))


def usage_csv(admin: ModelAdmin[Any], request: HttpRequest) -> HttpResponseBase:
    """Return the days of a subject's year as CSV."""
    if not admin.has_view_permission(request):
        raise PermissionDenied
    try:
        query = UsageQuery.from_url(request.GET)
    except RuleError:
        return HttpResponseRedirect(admin_url(admin.admin_site.name, "dailycounter_usage"))
    usage = load_usage(query.subject, query.rule, query.year)
    rows = ((usage.subject, usage.rule or "*", day, *counts) for day, counts in usage.days_of_year.items())
    return csv_response(request, f"usage {usage.subject} {usage.year}", CSV_HEADER, rows)


def _find(request: HttpRequest, form: UsageForm) -> list[tuple[str, str, SubjectMatch]]:
    """Return whom the form may mean, as rows name them and with URLs; nobody where the form has errors."""
    if not form.is_valid():
        return []
    try:
        found = find_subjects(form.cleaned_data["who"], with_users=may_see_users(request))
        names = [subject_name(match.subject) for match in found]
    except RuleError as error:
        form.add_error("who", str(error))
        return []
    year, rule = form.cleaned_data["year"], rule_name(form.cleaned_data["rule"])
    urls = [UsageQuery(name, rule, year, "").url() for name in names]
    return list(zip(names, urls, found, strict=True))


def _guess_message(request: HttpRequest, subject: str) -> str:
    """Say that the text was taken as a subject; mention users only to people who may see them."""
    if may_see_users(request):
        return _("There is no user of this name. This is the usage of the subject with this name.")
    return subject_hint(subject, with_users=False)


def _usage_context(request: HttpRequest, site: str, query: UsageQuery) -> dict[str, Any]:
    usage = load_usage(query.subject, query.rule, query.year)
    name = user_names([query.subject]).get(query.subject, "") if may_see_users(request) else ""
    days, words = _days_of_period(usage, query.period), subject_in_words(query.subject, {})
    year = usage.days_of_year
    rules = list(usage.rules)
    offered = rules if not query.rule or query.rule in rules else [*rules, query.rule]
    monday_based = (int(get_format("FIRST_DAY_OF_WEEK")) - 1) % 7  # Django's 0 is Sunday
    # The clock of Redis may be ahead of this one, so the last day of the map may be tomorrow.
    last_day = max([usage.today, *year])
    return {
        "title": _("Usage of %s") % Truncator(words).chars(80),
        "words": words,
        "form": UsageForm(initial={"who": query.subject, "rule": query.rule, "year": usage.year}, rules=offered),
        "usage": usage,
        "user_name": name,
        "subject_url": subject_url(request, site, subject=query.subject),
        "csv_url": admin_url(site, "dailycounter_usage_csv") + query.url(days=""),
        "all_rules_url": query.url(rule=""),
        "totals": list(_totals(usage)),
        "years": [(year, query.url(year=year), year == usage.year) for year in _years(usage)],
        "heat_map": heat_map(usage.year, year, last_day, monday_based),
        "is_late_in_year": usage.year == usage.today.year and usage.today.month > 6,  # noqa: PLR2004
        "periods": [
            (words, query.url(days=period), period == query.period)
            for period, words in (("30", _("Last 30 days")), ("90", _("Last 90 days")), ("year", str(usage.year)))
        ],
        "bar_chart": bar_chart(days),
        "days": [(day, counts) for day, counts in reversed(days) if counts.checks],
        "rules": [
            (rule, counts, query.url(rule="" if rule == query.rule else rule))
            for rule, counts in list(usage.rules.items())[:MAX_RULES_LISTED]
        ],
        "more_rules": max(0, len(rules) - MAX_RULES_LISTED),
    }


def _days_of_period(usage: SubjectUsage, period: str) -> list[tuple[date, Count]]:
    """Return every day of the period of the bars, with its checks."""
    if PERIODS[period]:
        first, last = usage.today - timedelta(days=PERIODS[period] - 1), usage.today
    else:
        first, last = date(usage.year, 1, 1), date(usage.year, 12, 31)
        if usage.year <= usage.today.year:
            last = min(last, usage.today)
    days = (first + timedelta(days=number) for number in range((last - first).days + 1))
    return [(day, usage.days.get(day, Count())) for day in days]


def _years(usage: SubjectUsage) -> range:
    """Return the years to choose from: from the first with rows to this one."""
    last = max(usage.today.year, usage.year)
    first = min(usage.first_day.year if usage.first_day else last, usage.year, usage.today.year)
    return range(max(first, last - MAX_YEARS_LISTED + 1), last + 1)


def _totals(usage: SubjectUsage) -> Iterator[tuple[str, Count]]:
    now = usage.today
    if usage.year != now.year:
        yield str(usage.year), total(usage.days_of_year.values())
    tomorrow = now + timedelta(days=1)  # the clock of Redis may be ahead of this one
    yield _("This year"), usage.between(date(now.year, 1, 1), tomorrow)
    yield _("This month"), usage.between(now.replace(day=1), tomorrow)
    yield _("Today"), usage.between(now, tomorrow)
