"""What the lists of rows share: parameters that no text can break, and the filter by rule. It must not know a list."""

from __future__ import annotations

from typing import Any

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_quota.admin.names import MOST_NAMES, distinct
from django_quota.overrides import ALL_RULES

RULE = "rule"


class CheckedList(ChangeList):
    """A list that takes what is no parameter for a wrong one, as Django does with most, and not for an error."""

    def get_filters(self, request: HttpRequest) -> Any:
        """Return the filters. Raises `IncorrectLookupParameters`."""
        try:
            return super().get_filters(request)
        except (ValueError, OverflowError) as error:  # a year after the last one
            raise IncorrectLookupParameters(error) from error

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """Return the rows; none where a filter has a null character, which PostgreSQL takes in no text."""
        found = super().get_queryset(request, exclude_parameters)
        asked = [value for name, values in request.GET.lists() if name != SEARCH_VAR for value in values]
        return found.none() if any("\0" in value for value in asked) else found


class RuleFilter(SimpleListFilter):
    """By rule: the first hundred that rows have, found by jumping through an index."""

    title = gettext_lazy("rule")
    parameter_name = RULE

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the rules, and the one that was asked for though it is not among them."""
        names = distinct(RULE, model=model_admin.model)
        chosen = self.value()
        if len(names) == MOST_NAMES and chosen and chosen not in names:
            names.append(chosen)
        return [(name, _("all rules") if name == ALL_RULES else name) for name in names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows of the rule."""
        chosen = self.value()
        return queryset.filter(rule=chosen) if chosen else queryset
