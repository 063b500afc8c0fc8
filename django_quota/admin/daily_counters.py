"""Daily counters in the admin: a read-only list with filters, search and CSV export.

Every page stays fast on a million rows. An index serves each order and filter that the list offers, so a page reads its
own rows and not the table. Django's date hierarchy and row count read all rows, so `date_choices` and
`BoundedPaginator` take their place.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator, Sequence
from datetime import date
from functools import partial
from itertools import islice
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ERROR_FLAG, ORDER_VAR, PAGE_VAR, SEARCH_VAR
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import connections
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect, QueryDict
from django.urls import URLPattern, path
from django.utils.formats import date_format, number_format
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_quota.admin.admin_base import (
    ReadOnlyAdmin,
    RuleFilter,
    StrictChangeList,
    admin_url,
    labelled,
    may_see_users,
    names_among,
)
from django_quota.admin.admin_wording import subject_in_words
from django_quota.admin.csv_export import BATCH_SIZE, csv_response
from django_quota.core.errors import RuleError
from django_quota.limiting.known_rules import known_rules
from django_quota.models import DailyCounter
from django_quota.operating.lookup import MAX_USERS, find_subjects

MAX_LISTED = 10_000
"""Rows that page numbers lead to. The list does not count further."""

MAX_YEARS = 50
"""Years that the date hierarchy offers."""

NEWEST = ("-day", "subject", "rule")
BY_SUBJECT = ("subject", "day", "rule")
"""The orders that an index holds. Each is total: no two rows compare equal."""

INDEXED_ORDERS = {
    "-1": NEWEST,
    "1": ("day", "-subject", "-rule"),
    "2": BY_SUBJECT,
    "-2": ("-subject", "-day", "-rule"),
}
"""By the list's `?o=`, the orders that an index serves to their last column; SQLite sorts all rows for any other."""

COLUMNS = ("subject", "rule", "day", "allowed", "refused", "units")
"""The columns of the CSV file."""

KINDS = {
    "user:": _("users"),
    "ip:": _("addresses"),
    "global": _("everybody together"),
    "header.": _("headers"),
    "cookie.": _("cookies"),
    "get.": _("query fields"),
    "post.": _("form fields"),
    "path:": _("paths"),
    "key.": _("functions"),
}
"""The kinds of subjects, by how their names begin."""


ALLOWED = labelled("allowed", _("allowed"))
REFUSED = labelled("refused", _("refused"))
UNITS = labelled("units", _("units"))


class BoundedPaginator(Paginator):  # type: ignore[type-arg]  # Django's class takes no type argument
    """A paginator that counts to `MAX_LISTED`: to count a million rows takes longer than to show a page of them."""

    @cached_property
    def count(self) -> int:
        """How many rows the list leads to."""
        rows: Any = self.object_list
        return int(rows.order_by()[:MAX_LISTED].count())


class KnownRuleFilter(RuleFilter):
    """Filters by rule. Offers the rules of the settings and the views; any other works in the URL."""

    def names(self, model: Any) -> list[str]:
        """Return the names to offer."""
        return sorted(known_rules())


class KindFilter(admin.SimpleListFilter):
    """Filters by kind of subject."""

    title = _("kind of subject")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return all kinds, also those without rows."""
        return list(KINDS.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        return queryset.filter(of_kind(chosen, queryset.db)) if chosen in KINDS else queryset


def of_kind(kind: str, using: str) -> Q:
    """Return the condition that a subject begins so, as a range of an index where the database has one."""
    # SQLite and PostgreSQL compare subjects byte by byte.
    if connections[using].vendor not in ("sqlite", "postgresql"):
        return Q(subject__startswith=kind)
    return Q(subject__gte=kind, subject__lte=f"{kind}\U0010ffff")


def is_bounded(parameters: QueryDict) -> bool:
    """Return whether the list is filtered by rule or day: the index by day holds these rows together."""
    return bool(parameters.get("rule")) or any(name.startswith("day__") for name in parameters)


def default_order(parameters: QueryDict) -> tuple[str, ...]:
    """Return the order of the list: newest first, or by subject if only the index by subject holds the rows."""
    return BY_SUBJECT if parameters.get("kind") in KINDS and not is_bounded(parameters) else NEWEST


def rows_in_order(
    queryset: QuerySet[DailyCounter], order: Sequence[str], batch_size: int = BATCH_SIZE
) -> Iterator[Sequence[Any]]:
    """Yield `COLUMNS` of all rows in `NEWEST` or `BY_SUBJECT` order, one batch at a time.

    Each batch starts after the last row of the one before. A database cursor would stay open during a slow download,
    and keep SQLite from writing.
    """
    ordered = queryset.order_by(*order).values_list(*COLUMNS)
    batch = list(ordered[:batch_size])
    yield from batch
    while len(batch) == batch_size:
        batch = list(ordered.filter(_behind(order, dict(zip(COLUMNS, batch[-1], strict=True))))[:batch_size])
        yield from batch


def _behind(order: Sequence[str], last: dict[str, Any]) -> Q:
    """Return the condition that a row comes after the row `last`."""
    condition = Q()
    for field in reversed(order):
        name = field.removeprefix("-")
        beyond = Q(**{f"{name}__{'gt' if field == name else 'lt'}": last[name]})
        condition = beyond | Q(**{name: last[name]}) & condition if condition else beyond
    # The condition on the first column alone lets the database start in the middle of the index.
    first = order[0].removeprefix("-")
    return Q(**{f"{first}__{'gte' if first == order[0] else 'lte'}": last[first]}) & condition


def search_counters(text: str, rows: QuerySet[DailyCounter], *, with_users: bool) -> tuple[Q, int]:
    """Return the condition on the rows that a text means, and how many subjects it means.

    The text means a rule of the settings or the views; else users and subjects, as in other searches; else a rule that
    only your code names. The names are looked up first, so the condition stays cheap on a million rows.
    """
    if not text or "\0" in text:  # Django's search form refuses a null character, as PostgreSQL does
        return Q(), 0
    if text in known_rules():
        return Q(rule=text), 0
    try:
        found = find_subjects(text, with_users=with_users)
    except RuleError:
        return Q(pk__in=()), 0
    of_subjects = Q(subject__in=[match.subject for match in found])
    if found[0].is_guess and not rows.filter(of_subjects).exists():
        return Q(rule=text), 0
    return of_subjects, len(found)


class CounterChangeList(StrictChangeList):
    """The list of daily counters."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Return the order: any for the rows of one day, else one that an index serves."""
        if request.GET.get("day__day"):
            return super().get_ordering(request, queryset)
        asked = str(self.params.get(ORDER_VAR, ""))
        if asked in INDEXED_ORDERS and self.list_display[abs(int(asked))] in (self.sortable_by or ()):
            return list(INDEXED_ORDERS[asked])
        return list(default_order(request.GET))

    def get_results(self, request: HttpRequest) -> None:
        """Read the page, and the names of its users in one more query, or two with failed logins."""
        super().get_results(request)
        rows = list(self.result_list)
        names = names_among(request, (row.subject for row in rows))
        for row in rows:
            row.user_name = names.get(row.subject, "") if row.user_pk else ""
            row.words = row.subject if row.user_name else subject_in_words(row.subject, names)
        self.result_list: Any = rows
        self.full_result_count = self.result_count  # hides "10000 results" beside the search field

    def date_choices(self) -> dict[str, Any]:
        """Return the context of Django's date hierarchy template: all years, months or days from the first row on.

        Django's own hierarchy reads every row to leave out times without rows. This one reads the first and the last
        day.
        """
        year, month, day = (int(self.params.get(f"day__{part}") or 0) for part in ("year", "month", "day"))
        if year and month and day:
            chosen = date(year, month, day)
            back = self._date_link(_month_name(chosen), day__year=year, day__month=month)
            return {"show": True, "back": back, "choices": [{"title": _day_name(chosen)}]}
        days = self.root_queryset.order_by("day").values_list("day", flat=True)
        if year:
            begins, ends = date(year, month or 1, 1), date(year, month or 12, monthrange(year, month or 12)[1])
            days = days.filter(day__range=(begins, ends))
        first, last = days.first(), days.last()
        if first is None or last is None:
            return {"show": False}
        if not year:
            years = range(max(first.year, last.year - MAX_YEARS + 1), last.year + 1)
            return {"show": True, "choices": [self._date_link(str(each), day__year=each) for each in years]}
        if not month:
            back = self._date_link(gettext("All dates"))
            choices = [
                self._date_link(_month_name(date(year, each, 1)), day__year=year, day__month=each)
                for each in range(first.month, last.month + 1)
            ]
        else:
            back = self._date_link(str(year), day__year=year)
            choices = [
                self._date_link(_day_name(date(year, month, each)), day__year=year, day__month=month, day__day=each)
                for each in range(first.day, last.day + 1)
            ]
        return {"show": True, "back": back, "choices": choices}

    def _date_link(self, title: str, **chosen: int) -> dict[str, str]:
        return {"title": title, "link": self.get_query_string(dict(chosen), ["day__"])}


def _month_name(day: date) -> str:
    return capfirst(date_format(day, "YEAR_MONTH_FORMAT"))


def _day_name(day: date) -> str:
    return capfirst(date_format(day, "MONTH_DAY_FORMAT"))


@admin.register(DailyCounter)
class DailyCounterAdmin(ReadOnlyAdmin):
    """The list, the usage page of a subject, and the downloads. Only `quota_rollup` writes these rows."""

    list_display = ("day", "subject_link", "user_name", "rule", ALLOWED, REFUSED, "share_refused", UNITS)
    list_display_links = None
    list_filter = (KnownRuleFilter, KindFilter)
    search_fields = ("subject",)
    search_help_text = _("The beginning of a subject, such as user:42; a user's name or e-mail address; or a rule.")
    date_hierarchy = "day"
    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_max_show_all = 0
    actions = ("export_selected",)
    change_list_template = "admin/django_quota/dailycounter/change_list.html"

    class Media:
        """The style sheet that fits the list to a phone."""

        css: ClassVar = {"all": ["django_quota/lists.css"]}

    def get_urls(self) -> list[URLPattern]:
        from django_quota.admin import usage_page  # noqa: PLC0415 — no page is needed to start

        view, name = self.admin_site.admin_view, "django_quota_dailycounter"
        return [
            path("usage/", view(partial(usage_page.usage_view, self)), name=f"{name}_usage"),
            path("usage/csv/", view(partial(usage_page.usage_csv, self)), name=f"{name}_usage_csv"),
            path("export/", view(self.export_view), name=f"{name}_export"),
            *super().get_urls(),
        ]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[CounterChangeList]:
        return CounterChangeList

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        return default_order(request.GET)

    def get_sortable_by(self, request: HttpRequest) -> Any:
        """Return the columns that the rows can be sorted by without reading all of them."""
        if request.GET.get("day__day"):
            return ("subject_link", "rule", ALLOWED, REFUSED, UNITS)
        if request.GET.get("rule"):
            return ("day",)
        return ("subject_link",) if default_order(request.GET) == BY_SUBJECT else ("day", "subject_link")

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list, with the links to the usage page and to the CSV file."""
        filters = request.GET.copy()
        for name in (PAGE_VAR, ORDER_VAR, ERROR_FLAG):
            filters.pop(name, None)
        context = {
            "export_url": f"{self._url('export')}?{filters.urlencode()}",
            "usage_url": self._url("usage"),
            "max_listed": MAX_LISTED,
            **(extra_context or {}),
        }
        return super().changelist_view(request, context)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[DailyCounter], search_term: str
    ) -> tuple[QuerySet[DailyCounter], bool]:
        """Search by subject, user or rule: the names first, then the rows that have them; see `search_counters`."""
        condition, found = search_counters(search_term.strip(), queryset, with_users=may_see_users(request))
        if found >= MAX_USERS:
            words = ngettext(
                "This shows only the first subject that begins so. Type more of it to see others.",
                "This shows only the first %(count)s subjects that begin so. Type more to see others.",
                MAX_USERS,
            )
            self.message_user(request, words % {"count": MAX_USERS}, messages.INFO, fail_silently=True)
        return queryset.filter(condition), False

    # --- downloads ----------------------------------------------------------------------------------------------------

    def export_view(self, request: HttpRequest) -> HttpResponseBase:
        """Return all rows that the filters leave as CSV."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            rows = self.get_changelist_instance(request).queryset
        except IncorrectLookupParameters:
            return HttpResponseRedirect(f"{self._url('changelist')}?e=1")
        return csv_response(request, "daily-counters", COLUMNS, rows_in_order(rows, self._export_order(request)))

    @admin.action(description=_("Export selected daily counters as CSV"), permissions=["view"])
    def export_selected(self, request: HttpRequest, queryset: QuerySet[DailyCounter]) -> HttpResponseBase:
        """Return the selected rows as CSV; with "select all", as many as the list counts."""
        rows = islice(rows_in_order(queryset, self._export_order(request)), MAX_LISTED)
        return csv_response(request, "daily-counters", COLUMNS, rows)

    def _export_order(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the order whose index holds the rows together: those of a few subjects are together by subject."""
        text = request.GET.get(SEARCH_VAR, "").strip()
        if not is_bounded(request.GET):
            _, found = search_counters(text, DailyCounter.objects.all(), with_users=may_see_users(request))
            return BY_SUBJECT if found else default_order(request.GET)
        return default_order(request.GET)

    # --- columns ------------------------------------------------------------------------------------------------------

    @admin.display(description=_("subject"), ordering="subject")
    def subject_link(self, row: DailyCounter) -> SafeString:
        """Return a link to the subject's usage."""
        return format_html(
            '<a href="{}">{}</a>', self._url("usage", subject=row.subject), getattr(row, "words", row.subject)
        )

    @admin.display(description=_("user"), empty_value="")
    def user_name(self, row: DailyCounter) -> str:
        return getattr(row, "user_name", "")

    @admin.display(description=_("share refused"))
    def share_refused(self, row: DailyCounter) -> str:
        """Return the share of checks that were refused, in percent."""
        checks = row.allowed + row.refused
        return f"{number_format(100 * row.refused / checks, 1)}\N{NO-BREAK SPACE}%" if checks else ""

    def _url(self, page: str, **query: str) -> str:
        return admin_url(self.admin_site.name, f"dailycounter_{page}", **query)
