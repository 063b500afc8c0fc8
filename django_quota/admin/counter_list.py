"""The list of daily counters on a million rows: its page numbers, its filters, its orders, its levels of days.

Whatever is asked of the list, an index holds the answer in its order: a page reads a page. What no index could serve is
not offered, or only where a single day bounds it.
"""

from __future__ import annotations

from calendar import monthrange
from datetime import date
from typing import Any

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.views.main import ORDER_VAR
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, QueryDict
from django.utils.formats import date_format
from django.utils.functional import cached_property
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_quota.admin.exports import BY_SUBJECT, NEWEST
from django_quota.admin.lists import RULE, CheckedList
from django_quota.admin.names import beginning, may_see_users, user_names

MOST_LISTED = 10_000
"""Rows that page numbers lead to: further ones are not even counted."""

KIND = "kind"


class BoundedPaginator(Paginator):  # type: ignore[type-arg]  # Django's own takes none
    """Pages that are counted up to a bound: counting a million rows would take longer than showing a page of them."""

    @cached_property
    def _counted(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by()[: MOST_LISTED + 1].count())

    @cached_property
    def count(self) -> int:
        """How many rows are listed."""
        return min(self._counted, MOST_LISTED)

    @property
    def is_more(self) -> bool:
        """Whether there are more than are listed."""
        return self._counted > MOST_LISTED


KINDS = {
    "user:": gettext_lazy("users"),
    "ip:": gettext_lazy("addresses"),
    "global": gettext_lazy("everybody together"),
    "header.": gettext_lazy("headers"),
    "cookie.": gettext_lazy("cookies"),
    "get.": gettext_lazy("query fields"),
    "post.": gettext_lazy("form fields"),
    "path:": gettext_lazy("paths"),
    "key.": gettext_lazy("functions"),
}
"""Kinds of subjects, by how their names begin."""


class KindFilter(SimpleListFilter):
    """By kind of subject."""

    title = gettext_lazy("kind of subject")
    parameter_name = KIND

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return all kinds; which of them have rows is not asked."""
        return list(KINDS.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows of the kind."""
        chosen = self.value()
        return queryset.filter(beginning("subject", chosen, queryset.db)) if chosen in KINDS else queryset


def order_of(parameters: QueryDict) -> tuple[str, ...]:
    """Return the order whose index serves these filters: all rows of a kind lie together only by subject."""
    return BY_SUBJECT if parameters.get(KIND) in KINDS and not is_bounded(parameters) else NEWEST


def is_bounded(parameters: QueryDict) -> bool:
    """Say whether rows are those of a rule or of some days, which lie together the newest first."""
    return bool(parameters.get(RULE)) or any(name.startswith("day__") for name in parameters)


def sortable(parameters: QueryDict) -> tuple[str, ...]:
    """Return the columns by which these rows can be sorted without reading them all; those of one day, by any."""
    if parameters.get("day__day"):
        return ("subject_link", "rule", "allowed", "refused")
    if parameters.get(RULE):
        return ("day",)
    return ("subject_link",) if order_of(parameters) == BY_SUBJECT else ("day", "subject_link")


def _backwards(order: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.removeprefix("-") if name.startswith("-") else f"-{name}" for name in order)


_WHOLE = {order[0]: order for each in (NEWEST, BY_SUBJECT) for order in (each, _backwards(each))}
"""By its first column, an order that an index holds to the last one: SQLite may sort all rows rather than the rest."""


class CounterList(CheckedList):
    """The list; its rows know the names of their users, for those who may see users."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Return the order, without what was asked for by hand and no index serves."""
        asked = str(self.params.get(ORDER_VAR, "")).split(".")[0]
        if not self._is_sortable(asked):
            self.params.pop(ORDER_VAR, None)
            self.filter_params.pop(ORDER_VAR, None)
        else:
            self.params[ORDER_VAR] = asked
        ordering = super().get_ordering(request, queryset)
        return list(_WHOLE.get(str(ordering[0]), ordering))

    def _is_sortable(self, asked: str) -> bool:
        number = asked.removeprefix("-")
        is_place = number.isascii() and number.isdecimal() and int(number) < len(self.list_display)
        return is_place and self.list_display[int(number)] in (self.sortable_by or ())

    def get_results(self, request: HttpRequest) -> None:
        """Read the page, and the names of its users in one more query."""
        super().get_results(request)
        rows = list(self.result_list)
        names = user_names({row.subject for row in rows}) if may_see_users(request) else {}
        for row in rows:
            row.user_name = names.get(row.subject, "")
        self.result_list: Any = rows
        self.full_result_count = self.result_count  # the search form has no figures of its own

    @property
    def is_more(self) -> bool:
        """Whether there are more rows than are listed."""
        return bool(getattr(self.paginator, "is_more", False))

    # --- levels of days -----------------------------------------------------------------------------------------------

    def levels(self) -> dict[str, Any]:
        """Return the years, months or days to choose from, as Django's template of the date hierarchy has them.

        Django's own would read all rows for it. Here it takes the first and the last day of the level: two queries, of
        one entry of an index each. So a level offers all between them, whatever the other filters are.
        """
        year, month, day = (self._number(f"day__{part}") for part in ("year", "month", "day"))
        if year and month and day:
            chosen = date(year, month, day)
            back = self._level(_month(chosen), day__year=year, day__month=month)
            return {"show": True, "back": back, "choices": [{"title": _day(chosen)}]}
        first, last = self._ends(year, month if year else None)
        if first is None or last is None:
            return {"show": False}
        if year and month:
            choices = [
                self._level(_day(choice), day__year=year, day__month=month, day__day=choice.day)
                for choice in (date(year, month, number) for number in range(first.day, last.day + 1))
            ]
            return {"show": True, "back": self._level(str(year), day__year=year), "choices": choices}
        if year:
            choices = [
                self._level(_month(date(year, number, 1)), day__year=year, day__month=number)
                for number in range(first.month, last.month + 1)
            ]
            return {"show": True, "back": self._level(_("All dates")), "choices": choices}
        years = range(max(first.year, last.year - 49), last.year + 1)
        return {"show": True, "back": None, "choices": [self._level(str(number), day__year=number) for number in years]}

    def _number(self, name: str) -> int | None:
        """Return a part of the day that was chosen; what is no number was refused before."""
        value = self.params.get(name)
        return int(value) if value else None

    def _ends(self, year: int | None, month: int | None) -> tuple[date | None, date | None]:
        days = self.root_queryset.order_by("day").values_list("day", flat=True)
        if year:
            first, last = date(year, month or 1, 1), date(year, month or 12, monthrange(year, month or 12)[1])
            days = days.filter(day__range=(first, last))
        return days.first(), days.last()

    def _level(self, title: str, **chosen: int) -> dict[str, str]:
        return {"title": title, "link": self.get_query_string(dict(chosen), ["day__"])}


def _month(day: date) -> str:
    return capfirst(date_format(day, "YEAR_MONTH_FORMAT"))


def _day(day: date) -> str:
    return capfirst(date_format(day, "MONTH_DAY_FORMAT"))
