"""Daily counters in the admin: a list to look at, to search and to take away as CSV. Nothing in it can be changed."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ERROR_FLAG, ORDER_VAR, PAGE_VAR, SEARCH_VAR
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect, QueryDict
from django.urls import URLPattern, path, reverse
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_quota.admin import usage_page
from django_quota.admin.counter_list import (
    MOST_LISTED,
    BoundedPaginator,
    CounterList,
    KindFilter,
    is_bounded,
    order_of,
    sortable,
)
from django_quota.admin.exports import BY_SUBJECT, NEWEST, as_download, csv_lines, pages
from django_quota.admin.lists import RuleFilter
from django_quota.admin.names import MOST_SUBJECTS, Meant, look_up, may_see_users
from django_quota.models import DailyCounter


@admin.register(DailyCounter)
class DailyCounterAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django's own takes none
    """The list of daily counters; see the module, and `counter_list` for what keeps it quick."""

    list_display = ("day", "subject_link", "user_name", "rule", "allowed", "refused", "share")
    list_display_links = None
    list_filter = (RuleFilter, KindFilter)
    search_fields = ("subject",)
    search_help_text = _("How a subject begins, such as user:42; a user's name or e-mail address; or a rule.")
    date_hierarchy = "day"
    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_max_show_all = 0
    actions = ("export_selected",)
    change_list_template = "admin/django_quota/dailycounter/change_list.html"

    class Media:
        """What the list needs on a phone."""

        css: ClassVar = {"all": ["django_quota/usage.css"]}

    # --- who may do what ----------------------------------------------------------------------------------------------

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse: only the roll-up adds."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: it would not be what was counted."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: what Redis still holds of the row would be carried no more."""
        return False

    # --- pages --------------------------------------------------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        """Add the usage page and the downloads."""
        view = self.admin_site.admin_view
        return [
            path("usage/", view(partial(usage_page.usage_view, self)), name=usage_page.PAGE),
            path("usage/csv/", view(partial(usage_page.usage_csv, self)), name=usage_page.CSV),
            path("export/", view(self.export_view), name="django_quota_dailycounter_export"),
            *super().get_urls(),
        ]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[CounterList]:
        """Return the list that reads a page."""
        return CounterList

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the order whose index serves the filters."""
        return order_of(request.GET)

    def get_sortable_by(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the columns by which what is filtered can be sorted."""
        return sortable(request.GET)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list, with the link to all of it as CSV."""
        kept = request.GET.copy()
        for name in (PAGE_VAR, ORDER_VAR, ERROR_FLAG):
            kept.pop(name, None)
        context = {
            "export_link": f"{self._url('export')}?{kept.urlencode()}",
            "usage_link": self._url("usage"),
            "most_listed": MOST_LISTED,
            **(extra_context or {}),
        }
        return super().changelist_view(request, context)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[DailyCounter], search_term: str
    ) -> tuple[QuerySet[DailyCounter], bool]:
        """Find rows by the names that a text means; see `look_up`."""
        meant = self._meant(request, search_term)
        if len(meant.subjects) >= MOST_SUBJECTS:
            words = ngettext(
                "Only the first subject that begins so is searched: type more of it.",
                "Only the first %(count)s subjects that begin so are searched: type more of it.",
                MOST_SUBJECTS,
            )
            self.message_user(request, words % {"count": MOST_SUBJECTS}, messages.INFO, fail_silently=True)
        return queryset.filter(meant.condition), False

    def _meant(self, request: HttpRequest, text: str) -> Meant:
        return look_up(text.strip(), with_users=may_see_users(request))

    # --- downloads ----------------------------------------------------------------------------------------------------

    def export_view(self, request: HttpRequest) -> HttpResponseBase:
        """Return all that the filters leave, as CSV."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            listed = self.get_changelist_instance(request)
        except IncorrectLookupParameters:
            return HttpResponseRedirect(f"{self._url('changelist')}?e=1")
        return as_download(
            request, csv_lines(pages(listed.queryset, self._order(request, listed.query))), "daily-counters"
        )

    @admin.action(description=_("Export the selected ones as CSV"), permissions=["view"])
    def export_selected(self, request: HttpRequest, queryset: QuerySet[DailyCounter]) -> HttpResponseBase:
        """Return the selected rows as CSV; all that match, where that was chosen."""
        is_all = request.POST.get("select_across") == "1"
        order = self._order(request, request.GET.get(SEARCH_VAR, "")) if is_all else NEWEST
        return as_download(request, csv_lines(pages(queryset, order)), "daily-counters")

    def _order(self, request: HttpRequest, text: str) -> tuple[str, ...]:
        """Return the order in which all that match are read: rows of some subjects lie together only by subject."""
        order = order_of(request.GET)
        is_of_subjects = bool(text) and not is_bounded(request.GET) and bool(self._meant(request, text).subjects)
        return BY_SUBJECT if is_of_subjects else order

    # --- columns ------------------------------------------------------------------------------------------------------

    @admin.display(description=_("subject"), ordering="subject")
    def subject_link(self, row: DailyCounter) -> SafeString:
        """Link a subject to its usage."""
        query = QueryDict(mutable=True)
        query["subject"] = row.subject
        return format_html('<a href="{}?{}">{}</a>', self._url("usage"), query.urlencode(), row.subject)

    @admin.display(description=_("user"), empty_value="")
    def user_name(self, row: DailyCounter) -> str:
        """Return the name of the user whom it is about."""
        return getattr(row, "user_name", "")

    @admin.display(description=_("share refused"))
    def share(self, row: DailyCounter) -> str:
        """Return how many of a hundred checks were refused."""
        checks = row.allowed + row.refused
        return f"{number_format(100 * row.refused / checks, 1)}\N{NO-BREAK SPACE}%" if checks else ""

    def _url(self, page: str) -> str:
        return reverse(f"{self.admin_site.name}:django_quota_dailycounter_{page}")
