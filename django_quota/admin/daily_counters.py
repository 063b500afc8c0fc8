"""Daily counters in the admin: a read-only list with filters, search and CSV export.

Every page stays fast on a million rows: an index serves the order and the filters that the list offers, so a page reads
its own rows and not the table. Django's date hierarchy and row count read all rows, so `date_choices` and
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
from django.contrib.admin.views.main import ERROR_FLAG, ORDER_VAR, PAGE_VAR
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import connections
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.formats import date_format, number_format
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_quota.admin.base import ReadOnlyAdmin, StrictChangeList, labelled, may_see_users, names_among
from django_quota.admin.wording import subject_in_words
from django_quota.core.errors import RuleError
from django_quota.features.usage.spreadsheets import ROWS_PER_CHUNK, csv_response
from django_quota.limiting.known_rules import known_rules
from django_quota.models import DailyCounter
from django_quota.operating.lookup import MAX_USERS, find_subjects

MAX_LISTED = 10_000
"""The most rows that the pages of the list reach. It does not count further."""

MAX_YEARS = 50
"""Years that the date hierarchy offers."""

NEWEST = ("-day", "subject", "rule")
BY_SUBJECT = ("subject", "day", "rule")
"""The orders of the list, which indexes hold. Each is total: no two rows compare equal."""

COLUMNS = ("subject", "rule", "day", "allowed", "refused", "units")
"""The columns of the CSV file."""

SUBJECT_KINDS = {
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

COUNTS = (labelled("allowed", _("allowed")), labelled("refused", _("refused")), labelled("units", _("units")))


class BoundedPaginator(Paginator):  # type: ignore[type-arg]  # Django's class takes no type argument
    """A paginator that counts to `MAX_LISTED`: to count a million rows takes longer than to show a page of them."""

    @cached_property
    def count(self) -> int:
        """How many rows the pages reach."""
        rows: Any = self.object_list
        return int(rows.order_by()[:MAX_LISTED].count())


class KnownRuleFilter(admin.SimpleListFilter):
    """Filters by rule. Offers the rules of the settings and the views; any other works in the URL."""

    title = _("rule")
    parameter_name = "rule"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the names to offer, and the one in the URL."""
        return [(name, name) for name in sorted({*known_rules(), self.value() or ""} - {""})]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(rule=self.value()) if self.value() else queryset


class KindFilter(admin.SimpleListFilter):
    title = _("kind of subject")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return all kinds, even those without rows."""
        return list(SUBJECT_KINDS.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        return queryset.filter(of_kind(chosen, queryset.db)) if chosen in SUBJECT_KINDS else queryset


def of_kind(kind: str, using: str) -> Q:
    """Return the condition that a subject begins with `kind`, as a range of an index if the database has one."""
    # SQLite and PostgreSQL compare subjects byte by byte.
    if connections[using].vendor not in ("sqlite", "postgresql"):
        return Q(subject__startswith=kind)
    return Q(subject__gte=kind, subject__lte=f"{kind}\U0010ffff")


def rows_in_order(
    queryset: QuerySet[DailyCounter], order: Sequence[str], batch_size: int = ROWS_PER_CHUNK
) -> Iterator[Sequence[Any]]:
    """Yield `COLUMNS` of all rows in `NEWEST` or `BY_SUBJECT` order, one batch at a time.

    Each batch starts after the last row of the one before. A database cursor would stay open during a slow download,
    and keep SQLite from writing.
    """
    ordered = queryset.order_by(*order).values_list(*COLUMNS)
    batch = list(ordered[:batch_size])
    yield from batch
    while len(batch) == batch_size:
        batch = list(ordered.filter(comes_after(order, dict(zip(COLUMNS, batch[-1], strict=True))))[:batch_size])
        yield from batch


def comes_after(order: Sequence[str], last: dict[str, Any]) -> Q:
    """Return the condition that a row comes after the row `last`."""
    condition = Q()
    for field in reversed(order):
        name = field.removeprefix("-")
        beyond = Q(**{f"{name}__{'gt' if field == name else 'lt'}": last[name]})
        condition = beyond | Q(**{name: last[name]}) & condition if condition else beyond
    # The condition on the first column alone lets the database start in the middle of the index.
    first = order[0].removeprefix("-")
    return Q(**{f"{first}__{'gte' if first == order[0] else 'lte'}": last[first]}) & condition


class CounterChangeList(StrictChangeList):
    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Return the order: any for the rows of one day, else one that an index serves."""
        if request.GET.get("day__day"):
            return super().get_ordering(request, queryset)
        return list(self.model_admin.get_ordering(request))

    def get_results(self, request: HttpRequest) -> None:
        """Read the page, and the names of its users in one more query, or two with failed logins."""
        super().get_results(request)
        rows = list(self.result_list)
        names = names_among(request, (row.subject for row in rows))
        for row in rows:
            row.words = subject_in_words(row.subject, names)
        self.result_list: Any = rows
        self.full_result_count = self.result_count  # hides "10000 results" beside the search field

    def date_choices(self) -> dict[str, Any]:
        """Return the context of Django's date hierarchy template: all years, months or days from the first row on.

        Django's own hierarchy reads every row to leave out times without rows. This one reads the first and the last
        day.
        """
        year, month, day = (int(self.params.get(f"day__{part}") or 0) for part in ("year", "month", "day"))
        month = month if year else 0
        back: dict[str, str] | None = None
        if month and day:
            back = self._date_link(date(year, month, 1), "YEAR_MONTH_FORMAT", "year", "month")
            title = capfirst(date_format(date(year, month, day), "MONTH_DAY_FORMAT"))
            return {"show": True, "back": back, "choices": [{"title": title}]}
        days = self.root_queryset.order_by("day").values_list("day", flat=True)
        if year:
            last_month = month or 12
            days = days.filter(
                day__range=(date(year, month or 1, 1), date(year, last_month, monthrange(year, last_month)[1]))
            )
        first, last = days.first(), days.last()
        if first is None or last is None:
            return {"show": False}
        if month:
            back = self._date_link(first, "Y", "year")
            every = [first.replace(day=each) for each in range(first.day, last.day + 1)]
            choices = [self._date_link(each, "MONTH_DAY_FORMAT", "year", "month", "day") for each in every]
        elif year:
            back = {"title": gettext("All dates"), "link": self.get_query_string(remove=["day__"])}
            every = [date(year, each, 1) for each in range(first.month, last.month + 1)]
            choices = [self._date_link(each, "YEAR_MONTH_FORMAT", "year", "month") for each in every]
        else:
            every = [date(each, 1, 1) for each in range(max(first.year, last.year - MAX_YEARS + 1), last.year + 1)]
            choices = [self._date_link(each, "Y", "year") for each in every]
        return {"show": True, "back": back, "choices": choices}

    def _date_link(self, day: date, style: str, *parts: str) -> dict[str, str]:
        chosen = {f"day__{part}": getattr(day, part) for part in parts}
        return {"title": capfirst(date_format(day, style)), "link": self.get_query_string(chosen, ["day__"])}


@admin.register(DailyCounter)
class DailyCounterAdmin(ReadOnlyAdmin):
    """The list, the usage page of a subject, and the downloads. Only `quota_rollup` writes these rows."""

    list_display = ("day", "subject_link", "rule", *COUNTS[:2], "share_refused", COUNTS[2])
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
        """Return newest first; for one kind, by subject: only that index keeps the rows of a kind together."""
        is_bounded = request.GET.get("rule") or any(name.startswith("day__") for name in request.GET)
        return BY_SUBJECT if request.GET.get("kind") in SUBJECT_KINDS and not is_bounded else NEWEST

    def get_sortable_by(self, request: HttpRequest) -> Any:
        """Return the columns by which the rows of one day can be sorted. Sorting more rows would read all of them."""
        return ("subject_link", "rule", *COUNTS) if request.GET.get("day__day") else ()

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list, with the links to the usage page and to the CSV file."""
        filters = request.GET.copy()
        for name in (PAGE_VAR, ORDER_VAR, ERROR_FLAG):
            filters.pop(name, None)
        context = {"export_url": f"{self.url('export')}?{filters.urlencode()}", "max_listed": MAX_LISTED}
        return super().changelist_view(request, context | (extra_context or {}))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[DailyCounter], search_term: str
    ) -> tuple[QuerySet[DailyCounter], bool]:
        """Search by rule, subject or user.

        The term is read as a rule of the settings or the views; else as users and subjects, as in other searches; else
        as a rule that only your code names. Names are looked up first, so the query stays cheap on a million rows.
        """
        text = search_term.strip()
        if not text:
            return queryset, False
        if text in known_rules():
            return queryset.filter(rule=text), False
        try:
            found = find_subjects(text, with_users=may_see_users(request))
        except RuleError:
            return queryset.none(), False
        if len(found) >= MAX_USERS:
            words = gettext("This shows only the first %(count)s subjects that begin so. Type more to see others.")
            self.message_user(request, words % {"count": MAX_USERS}, messages.INFO, fail_silently=True)
        of_subjects = queryset.filter(subject__in=[match.subject for match in found])
        is_rule = found[0].is_guess and not of_subjects.exists()
        return queryset.filter(rule=text) if is_rule else of_subjects, False

    # --- downloads ----------------------------------------------------------------------------------------------------

    def export_view(self, request: HttpRequest) -> HttpResponseBase:
        """Return all rows that the filters leave as CSV."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            rows = self.get_changelist_instance(request).queryset
        except IncorrectLookupParameters:
            return HttpResponseRedirect(f"{self.url('changelist')}?e=1")
        return csv_response(request, "daily-counters", COLUMNS, rows_in_order(rows, self.get_ordering(request)))

    @admin.action(description=_("Export selected daily counters as CSV"), permissions=["view"])
    def export_selected(self, request: HttpRequest, queryset: QuerySet[DailyCounter]) -> HttpResponseBase:
        """Return the selected rows as CSV; with "select all", as many as the list counts."""
        rows = islice(rows_in_order(queryset, self.get_ordering(request)), MAX_LISTED)
        return csv_response(request, "daily-counters", COLUMNS, rows)

    # --- columns ------------------------------------------------------------------------------------------------------

    @admin.display(description=_("subject"), ordering="subject")
    def subject_link(self, row: DailyCounter) -> SafeString:
        words = getattr(row, "words", row.subject)
        return format_html('<a href="{}">{}</a>', self.url("usage", subject=row.subject), words)

    @admin.display(description=_("share refused"))
    def share_refused(self, row: DailyCounter) -> str:
        """Return the share of checks that were refused, in percent."""
        checks = row.allowed + row.refused
        return f"{number_format(100 * row.refused / checks, 1)}\N{NO-BREAK SPACE}%" if checks else ""
