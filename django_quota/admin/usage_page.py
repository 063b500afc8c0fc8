"""The usage page: a year of one subject as a heat map, its days as bars and as a table, and all of it as CSV.

It only shows: what the figures are is said by `usage_figures`, how they are drawn by `charts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse
from django.utils.dates import MONTHS_3, WEEKDAYS_ABBR
from django.utils.formats import date_format, get_format, number_format
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_quota.admin.exports import as_download, csv_lines
from django_quota.admin.finding import find
from django_quota.admin.names import may_see_users, user_names
from django_quota.admin.usage_figures import RECENT, Figures, figures, rule_name, subject_name
from django_quota.charts import Figure, Words, bar_key, bars, bounds, heat_key, heat_map
from django_quota.exceptions import RuleError
from django_quota.hints import subject_hint

TEMPLATE = "admin/django_quota/dailycounter/usage.html"
PAGE, CSV = "django_quota_dailycounter_usage", "django_quota_dailycounter_usage_csv"
"""The names of the URLs."""

SPANS = {"30": 30, "90": RECENT, "year": 0}
"""How many days the bars go back; 0: the year that is shown."""

MOST_SHOWN = 20
"""Rules that the page lists."""

YEARS = (1970, 2200)
TEXT = 10_000


class UsageForm(forms.Form):
    """Whose usage, of which rule, in which year."""

    who = forms.CharField(
        label=gettext_lazy("Subject or user"),
        max_length=TEXT,
        help_text=gettext_lazy("Such as user:42 or ip:203.0.113.9, or a user's name, e-mail address or key."),
    )
    rule = forms.CharField(label=gettext_lazy("Rule"), max_length=TEXT, required=False)
    year = forms.IntegerField(label=gettext_lazy("Year"), min_value=YEARS[0], max_value=YEARS[1], required=False)

    def __init__(self, *args: Any, rules: list[str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if rules:
            choices = [("", _("all rules")), *((rule, rule) for rule in rules)]
            self.fields["rule"].widget = forms.Select(choices=choices)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the page was asked for; names are as rows have them."""

    subject: str
    rule: str = ""
    year: int | None = None
    span: str = "30"

    @classmethod
    def read(cls, parameters: QueryDict) -> Asked:
        """Read it off a URL. Raises `RuleError` where the subject is none; what else is of no use is left out."""
        year = parameters.get("year", "")
        number = int(year) if year.isascii() and year.isdecimal() and len(year) == 4 else 0  # noqa: PLR2004
        span = parameters.get("days", "")
        return cls(
            subject_name(str(parameters["subject"])),
            rule_name(parameters.get("rule", "")),
            number if YEARS[0] <= number <= YEARS[1] else None,
            span if span in SPANS else "30",
        )

    def query(self, **other: Any) -> str:
        """Return the URL's query for this, or for something else in its place."""
        query = QueryDict(mutable=True)
        known = {"subject": self.subject, "rule": self.rule, "year": self.year, "days": self.span} | other
        query.update({name: str(value) for name, value in known.items() if value})
        return f"?{query.urlencode()}"


# --- views ------------------------------------------------------------------------------------------------------------


def usage_view(admin: ModelAdmin[Any], request: HttpRequest) -> HttpResponse:
    """Show the usage of a subject, or ask for one.

    The form is posted: it takes plain values too, such as a phone number, which must stand in no URL.
    """
    if not admin.has_view_permission(request):
        raise PermissionDenied
    context = {**admin.admin_site.each_context(request), "opts": admin.opts, "title": _("Usage")}
    given = request.POST if request.method == "POST" else request.GET
    if "who" in given:
        form = UsageForm(given)
        answer = _chosen(request, form)
        if answer is not None and len(answer) == 1:
            if answer[0]["is_guess"]:
                messages.info(request, _guess_note(request, str(answer[0]["subject"])))
            return HttpResponseRedirect(str(answer[0]["link"]))
        return TemplateResponse(request, TEMPLATE, context | {"form": form, "choices": answer or ()})
    if not request.GET.get("subject"):
        return TemplateResponse(request, TEMPLATE, context | {"form": UsageForm()})
    try:
        asked = Asked.read(request.GET)
    except RuleError as error:
        form = UsageForm({"who": request.GET["subject"]})
        form.add_error("who", str(error))
        return TemplateResponse(request, TEMPLATE, context | {"form": form}, status=400)
    return TemplateResponse(request, TEMPLATE, context | _shown(request, admin, asked))


def usage_csv(admin: ModelAdmin[Any], request: HttpRequest) -> HttpResponseBase:
    """Return the days of a subject's year as CSV, rolled up and live told apart."""
    if not admin.has_view_permission(request):
        raise PermissionDenied
    try:
        asked = Asked.read(request.GET)
    except (RuleError, KeyError):
        return HttpResponseRedirect(reverse(f"{admin.admin_site.name}:{PAGE}"))
    found = figures(asked.subject, asked.rule, asked.year)
    header = ("subject", "rule", "day", "allowed", "refused", "live_allowed", "live_refused")
    return as_download(request, csv_lines(_csv_rows(found), header), f"usage-{asked.subject}-{found.year}")


def _csv_rows(found: Figures) -> Iterator[tuple[Any, ...]]:
    for day, figure in sorted(found.days.items()):
        if day.year == found.year:
            counts = (figure.allowed, figure.refused, figure.live_allowed, figure.live_refused)
            yield found.subject, found.rule or "*", day, *counts


def _chosen(request: HttpRequest, form: UsageForm) -> list[dict[str, str | bool]] | None:
    """Return whom the form may mean, each with the link to it; None where it cannot be said."""
    if not form.is_valid():
        return None
    try:
        found = find(form.cleaned_data["who"], with_users=may_see_users(request))
        named = [(subject_name(one.subject), one) for one in found]
    except RuleError as error:
        form.add_error("who", str(error))
        return None
    year, rule = form.cleaned_data["year"], rule_name(form.cleaned_data["rule"])
    return [
        {
            "link": Asked(subject, rule, year, "").query(),
            "subject": subject,
            "name": str(one.user or ""),
            "is_guess": one.is_guess,
        }
        for subject, one in named
    ]


def _guess_note(request: HttpRequest, subject: str) -> str:
    """Say that a name was taken for a subject; who may not see users is not told whether there is such a user."""
    if may_see_users(request):
        return _("No user is called so: this is the usage of a subject of that name.")
    return subject_hint(subject, with_users=False)


# --- what is shown ----------------------------------------------------------------------------------------------------


def _shown(request: HttpRequest, admin: ModelAdmin[Any], asked: Asked) -> dict[str, Any]:
    found = figures(asked.subject, asked.rule, asked.year)
    name = user_names([asked.subject]).get(asked.subject, "") if may_see_users(request) else ""
    first, last = _span(found, asked.span)
    each = found.each(first, last)
    rules = list(found.rules)
    offered = rules if not asked.rule or asked.rule in rules else [*rules, asked.rule]
    year = {day: figure for day, figure in found.days.items() if day.year == found.year}
    return {
        "title": _("Usage of %s") % _short(asked.subject),
        "form": UsageForm(initial={"who": asked.subject, "rule": asked.rule, "year": found.year}, rules=offered),
        "asked": asked,
        "found": found,
        "name": name,
        "subject_link": _subject_link(request, admin, asked.subject),
        "csv_link": reverse(f"{admin.admin_site.name}:{CSV}") + asked.query(days=""),
        "totals": [(title, _texts(figure)) for title, figure in _totals(found)],
        "years": _years(found, asked),
        "heat_map": _heat_map(found, year),
        "heat_keys": _heat_keys(year),
        "is_late": found.year == found.today.year and found.today.month > 6,  # noqa: PLR2004 — the year's later half
        "spans": _spans(found, asked),
        "bars": _bars(each),
        "bar_keys": [(_safe(bar_key(kind)), text) for kind, text in _bar_keys().items()],
        "each": [(day, _texts(figure)) for day, figure in reversed(each) if figure.checks],
        "rules": [
            (rule, _texts(figure), asked.query(rule="" if rule == asked.rule else rule))
            for rule, figure in list(found.rules.items())[:MOST_SHOWN]
        ],
        "more_rules": max(0, len(rules) - MOST_SHOWN),
        "all_rules": asked.query(rule=""),
    }


def _short(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _subject_link(request: HttpRequest, admin: ModelAdmin[Any], subject: str) -> str:
    """Return the link to the subject's limits; empty for those who may not see them, or where that page is not."""
    if not request.user.has_perm("django_quota.view_subject"):
        return ""
    query = QueryDict(mutable=True)
    query["subject"] = subject
    try:
        return f"{reverse(f'{admin.admin_site.name}:django_quota_subject_changelist')}?{query.urlencode()}"
    except NoReverseMatch:
        return ""


def _span(found: Figures, span: str) -> tuple[date, date]:
    if SPANS[span]:
        return found.today - timedelta(days=SPANS[span] - 1), found.today
    last = date(found.year, 12, 31)
    return date(found.year, 1, 1), min(last, found.today) if found.year <= found.today.year else last


def _spans(found: Figures, asked: Asked) -> list[tuple[str, str, bool]]:
    names = {"30": _("Last 30 days"), "90": _("Last 90 days"), "year": str(found.year)}
    return [(name, asked.query(days=span), span == asked.span) for span, name in names.items()]


def _years(found: Figures, asked: Asked) -> list[tuple[int, str, bool]]:
    now = found.today.year
    first = min(found.first.year if found.first else now, found.year)
    years = range(max(first, max(now, found.year) - 11), max(now, found.year) + 1)
    return [(year, asked.query(year=year), year == found.year) for year in years]


def _totals(found: Figures) -> Iterator[tuple[str, Figure]]:
    now = found.today
    if found.year != now.year:
        yield str(found.year), found.between(date(found.year, 1, 1), date(found.year, 12, 31))
    tomorrow = now + timedelta(days=1)  # Redis' clock may be ahead of this one
    yield _("This year"), found.between(date(now.year, 1, 1), tomorrow)
    yield _("This month"), found.between(now.replace(day=1), tomorrow)
    yield _("Today"), found.between(now, tomorrow)


def _heat_map(found: Figures, year: dict[date, Figure]) -> SafeString:
    total = sum(figure.checks for figure in year.values())
    refused = sum(figure.refused for figure in year.values())
    summary = ngettext(
        "%(checks)s check on %(days)s day, %(refused)s of them refused.",
        "%(checks)s checks on %(days)s days, %(refused)s of them refused.",
        total,
    ) % {"checks": _number(total), "days": _number(len(year)), "refused": _number(refused)}
    if year:
        busiest = max(year, key=lambda day: (year[day].checks, -day.toordinal()))
        summary += " " + _("The busiest day: %s.") % _described(busiest, year[busiest])
    words = _words(_("A heat map of %(year)s") % {"year": found.year}, summary)
    first_weekday = (int(get_format("FIRST_DAY_OF_WEEK")) - 1) % 7  # Django's is 0 for Sunday
    last = max([found.today, *year])  # Redis' clock may be ahead of this one
    return _safe(heat_map(found.year, year, words, last=last, first_weekday=first_weekday))


def _bars(each: list[tuple[date, Figure]]) -> SafeString:
    together = sum((figure for _day, figure in each), Figure())
    summary = _("%(allowed)s allowed and %(refused)s refused; %(live)s of these are live.") % {
        "allowed": _number(together.allowed),
        "refused": _number(together.refused),
        "live": _number(together.live),
    }
    title = _("A bar for each day from %(first)s to %(last)s") % {
        "first": date_format(each[0][0]),
        "last": date_format(each[-1][0]),
    }
    return _safe(bars(each, _words(title, summary)))


def _words(title: str, summary: str) -> Words:
    months = tuple(str(MONTHS_3[number]).capitalize() for number in range(1, 13))
    weekdays = tuple(str(WEEKDAYS_ABBR[number]) for number in range(7))
    return Words(title, summary, _described, _number, months, weekdays)


def _described(day: date, figure: Figure) -> str:
    if not figure.checks:
        return _("%s: no checks") % date_format(day)
    words = _("%(day)s: %(allowed)s allowed, %(refused)s refused") % {
        "day": date_format(day),
        "allowed": _number(figure.allowed),
        "refused": _number(figure.refused),
    }
    return f"{words}, {_('%s of them live') % _number(figure.live)}" if figure.live else words


def _number(value: int) -> str:
    return str(number_format(value, force_grouping=True))


def _texts(figure: Figure) -> dict[str, str]:
    names = ("allowed", "refused", "live", "live_allowed", "live_refused")
    return {name: _number(getattr(figure, name)) for name in names}


def _heat_keys(year: dict[date, Figure]) -> list[tuple[SafeString, str]]:
    highest = bounds(figure.checks for figure in year.values())
    keys = [(_safe(heat_key(0)), _("none"))]
    low = 1
    for shade, high in enumerate(highest, start=1):
        if high >= low:
            keys.append(
                (_safe(heat_key(shade)), _number(low) if low == high else f"{_number(low)}\N{EN DASH}{_number(high)}")
            )
        low = max(low, high + 1)
    if highest and max(figure.checks for figure in year.values()) >= low:
        keys.append((_safe(heat_key(len(highest) + 1)), _("%s or more") % _number(low)))
    return [
        *keys,
        (_safe(heat_key(0, "refused")), _("some refused")),
        (_safe(heat_key(0, "live")), _("live, not rolled up yet")),
    ]


def _bar_keys() -> dict[str, str]:
    return {
        "allowed": _("allowed"),
        "allowed live": _("allowed, live"),
        "refused": _("refused"),
        "refused live": _("refused, live"),
    }


def _safe(svg: str) -> SafeString:
    """Let SVG of `charts` into a page: all text in it is escaped there."""
    return mark_safe(svg)  # noqa: S308 — see above
