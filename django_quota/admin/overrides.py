"""Overrides in the admin: the list, its filters and search, the form with its preview. It publishes nothing itself."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Q, QuerySet
from django.forms.utils import from_current_timezone
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_quota.admin.lists import CheckedList, RuleFilter
from django_quota.admin.names import may_see_users
from django_quota.admin.override_actions import OverrideActions
from django_quota.admin.override_form import OverrideForm, Previewed, hints_of
from django_quota.admin.subject_page import note
from django_quota.admin.waiting import tell_what_waits
from django_quota.admin.wording import STATES, mode_in_words, moment_in_words, state_of
from django_quota.hints import is_address, meant_subject, network_hint
from django_quota.models import QuotaOverride, Subject
from django_quota.overrides import ALL_RULES

LONGEST_TERM = 200
"""Characters that a search looks for."""

MOST_OF_REASON = 60
"""Characters of a reason that the list shows."""


class StateFilter(admin.SimpleListFilter):
    """Whether an override holds now."""

    title = gettext_lazy("state")
    parameter_name = "state"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, Any]]:
        """Offer the states."""
        return [*STATES.items(), ("permanent", gettext_lazy("without an end"))]

    def queryset(self, request: Any, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the rows of a state."""
        now = timezone.now()
        chosen = {
            "active": ~Q(starts__gt=now) & ~Q(expires__lte=now),
            "pending": Q(starts__gt=now) & ~Q(expires__lte=now),
            "ended": Q(expires__lte=now),
            "permanent": Q(expires__isnull=True),
        }
        return queryset.filter(chosen[self.value()]) if self.value() in chosen else queryset  # type: ignore[index]


@admin.register(QuotaOverride)
class QuotaOverrideAdmin(OverrideActions, admin.ModelAdmin):  # type: ignore[type-arg]  # Django's own takes none
    """The overrides."""

    form = OverrideForm
    list_display = ("subject", "rule_shown", "instead", "state_link", "why", "by")
    list_filter = ("mode", StateFilter, RuleFilter)
    list_select_related = ("created_by",)
    search_fields = ("subject", "rule", "reason")
    search_help_text = gettext_lazy("The beginning of a subject or a rule, or a part of a reason.")
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # a count of all rows for each of a hundred rules
    ordering = ("subject", "rule")  # the order of the unique index
    sortable_by = ("subject", "state", "state_link")
    readonly_fields = ("created_by", "created", "updated")
    save_as = False

    class Media:
        """What the form's preview needs."""

        css: ClassVar = {"all": ["django_quota/subject.css"]}
        js: ClassVar = ["django_quota/override.js"]

    # --- the list -----------------------------------------------------------------------------------------------------

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[CheckedList]:
        """Return the list that no parameter breaks."""
        return CheckedList

    @admin.display(description=gettext_lazy("rule"))
    def rule_shown(self, row: QuotaOverride) -> str:
        """Return the rule's name, or that it is for all."""
        return _("all rules") if row.rule == ALL_RULES else row.rule

    @admin.display(description=gettext_lazy("instead"))
    def instead(self, row: QuotaOverride) -> str:
        """Return the rate or the mode."""
        return mode_in_words(row)

    @admin.display(description=gettext_lazy("state"), ordering="expires")
    def state(self, row: QuotaOverride) -> SafeString:
        """Return how it stands now, and from when until when."""
        return format_html("{} {}", *self._state(row))

    def _state(self, row: QuotaOverride) -> tuple[str | Promise, SafeString]:
        state, span = state_of(row, timezone.now()), ""
        if state == "pending" and row.expires is not None:
            words = {"starts": _short(row.starts), "expires": _short(row.expires)}
            span = _("from %(starts)s until %(expires)s") % words
        elif state == "pending":
            span = _("from %s") % _short(row.starts)
        elif row.expires is not None:
            span = (_("on %s") if state == "ended" else _("until %s")) % _short(row.expires)
        return STATES[state], format_html('<span class="quota-span">{}</span>', span) if span else SafeString()

    @admin.display(description=gettext_lazy("reason"))
    def why(self, row: QuotaOverride) -> str | SafeString:
        """Return the reason, a long one shortened."""
        shown = Truncator(row.reason).chars(MOST_OF_REASON)
        return shown if shown == row.reason else format_html('<span title="{}">{}</span>', row.reason, shown)

    @admin.display(description=gettext_lazy("by"))
    def by(self, row: QuotaOverride) -> str:
        """Return who made it."""
        return str(row.created_by or "-")

    @admin.display(description=gettext_lazy("state"), ordering="expires")
    def state_link(self, row: QuotaOverride) -> SafeString:
        """Return the same, with a link to how the subject stands."""
        url = reverse("admin:django_quota_subject_changelist", current_app=self.admin_site.name)
        link = '<a href="{}?{}">{}<span class="quota-hidden">: {}</span></a> {}'
        word, span = self._state(row)
        return format_html(link, url, urlencode({"subject": row.subject}), word, _("How it stands"), span)

    def get_list_display(self, request: HttpRequest) -> Any:
        """Leave the link out for those who may not follow it, and where this admin has no such page."""
        user: Any = request.user
        if user.has_perm("django_quota.view_subject") and self.admin_site.is_registered(Subject):
            return self.list_display
        return ["state" if name == "state_link" else name for name in self.list_display]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list; say why a network that is looked for is no subject."""
        problem = network_hint(request.GET.get("q", "").strip()[:LONGEST_TERM]) if request.method == "GET" else ""
        if problem:
            self.message_user(request, problem, messages.WARNING)
        return super().changelist_view(request, extra_context)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find by the beginning of a subject or a rule, or a part of a reason; an address in any spelling."""
        term = search_term.strip()[:LONGEST_TERM].replace("\0", "")
        if not term:
            return queryset, False
        wanted = Q(subject__startswith=term) | Q(rule__startswith=term) | Q(reason__icontains=term)
        address = term.removeprefix("ip:")
        if is_address(address) and not network_hint(address):
            wanted |= Q(subject=meant_subject(address))
        return queryset.filter(wanted), False

    # --- the form -----------------------------------------------------------------------------------------------------

    def get_fields(self, request: HttpRequest, obj: QuotaOverride | None = None) -> Any:
        """Offer users where a row is added, to those who may see users."""
        fields = ["subject", "rule", "mode", "rate", "starts", "expires", "reason"]
        if obj is None:
            return ["subject", "user", *fields[1:]] if may_see_users(request) else fields
        return [*fields, *self.readonly_fields]

    def get_readonly_fields(self, request: HttpRequest, obj: QuotaOverride | None = None) -> Any:
        """Show who made a row, and when."""
        return () if obj is None else self.readonly_fields

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        """Return the form; one that only previews never is valid, so that nothing is saved."""
        form = super().get_form(request, obj, change=change, **kwargs)
        attributes: dict[str, Any] = {"site": self.admin_site, "sees_users": may_see_users(request)}
        if "_preview" in request.POST:
            attributes["is_valid"] = lambda form: bool(form.errors) and False
        return type(form.__name__, (form,), attributes)

    def render_change_form(self, request: Any, context: Any, *args: Any, **kwargs: Any) -> Any:
        """Add the preview, where a row is opened or where it was asked for."""
        form = context["adminform"].form
        row = kwargs.get("obj")
        is_opened = request.method == "GET" and row is not None and self.has_change_permission(request, row)
        if is_opened or "_preview" in request.POST:
            context["preview"] = Previewed(form)
        context["preview_url"] = self._preview_url(row)
        return super().render_change_form(request, context, *args, **kwargs)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Take moments from the URL where they can be read; nothing else would be shown."""
        given: dict[str, Any] = super().get_changeform_initial_data(request)
        for name in ("starts", "expires"):
            if name in given:
                given[name] = _moment(given[name])
        return given

    def save_model(self, request: HttpRequest, obj: QuotaOverride, form: Any, change: bool) -> None:
        """Note who made it."""
        if not change:
            obj.created_by = request.user  # type: ignore[assignment]
        super().save_model(request, obj, form, change)
        for hint in hints_of(obj, with_users=form.sees_users):
            self.message_user(request, hint, messages.WARNING)
        tell_what_waits(self, request, {obj.subject, form.initial.get("subject") or obj.subject})

    def delete_model(self, request: HttpRequest, obj: QuotaOverride) -> None:
        """Delete a row; say where what it said holds still."""
        super().delete_model(request, obj)
        tell_what_waits(self, request, {obj.subject})

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Delete rows; say where what they said holds still."""
        subjects = set(queryset.values_list("subject", flat=True))
        super().delete_queryset(request, queryset)
        tell_what_waits(self, request, subjects)

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        """Log what is deleted, about the subjects too: their pages show it when the rows are gone."""
        rows: dict[str, list[str]] = {}
        for row in queryset:
            rows.setdefault(row.subject, []).append(str(row))
        note({subject: _("Cleared: %s") % ". ".join(said) for subject, said in rows.items()}, request.user)
        return super().log_deletions(request, queryset)

    # --- the preview --------------------------------------------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        """Add the preview."""
        view = self.admin_site.admin_view(self.preview_view)
        name = "django_quota_quotaoverride_preview"
        return [path("preview/", view, name=name), path("preview/<int:key>/", view, name=name), *super().get_urls()]

    def preview_view(self, request: HttpRequest, key: int | None = None) -> HttpResponse:
        """Answer a form with the preview of what saving it would do, as a piece of HTML. Nothing is saved."""
        row = None if key is None else self.get_object(request, str(key))
        if key is not None and row is None:
            raise Http404
        if not (self.has_add_permission(request) if row is None else self.has_change_permission(request, row)):
            raise PermissionDenied
        form = self.get_form(request, row, change=row is not None)(request.POST or None, instance=row)
        context = {"preview": Previewed(form), "form": form}
        return TemplateResponse(request, "admin/django_quota/quotaoverride/preview.html", context)

    def _preview_url(self, row: QuotaOverride | None) -> str:
        args = [] if row is None or row.pk is None else [row.pk]
        return reverse("admin:django_quota_quotaoverride_preview", args=args, current_app=self.admin_site.name)


def _short(moment: datetime | None) -> str:
    return moment_in_words(moment, "SHORT_DATETIME_FORMAT") if moment else ""


def _moment(given: str) -> datetime | None:
    """Read a moment of a URL; None where it is none."""
    try:
        moment = parse_datetime(given)
        return from_current_timezone(moment) if moment is not None and timezone.is_naive(moment) else moment
    except (ValueError, OverflowError, ValidationError):
        return None
