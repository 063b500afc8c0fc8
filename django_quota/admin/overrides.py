"""Overrides in the admin: the list, its filters and search, the form with its preview. It publishes nothing itself."""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_quota.addresses import FULL_IPV6, canonical
from django_quota.admin.override_actions import OverrideActions
from django_quota.admin.override_form import OverrideForm, Previewed
from django_quota.admin.subject_page import note
from django_quota.admin.wording import STATES, mode_in_words, moment_in_words, state_of
from django_quota.models import QuotaOverride
from django_quota.overrides import ALL_RULES
from django_quota.status import known_rules
from django_quota.subjects import named_subject

LONGEST_TERM = 200
"""Characters that a search looks for."""


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


class RuleFilter(admin.SimpleListFilter):
    """Which rule: those that are known are offered, so that no row is read for it."""

    title = gettext_lazy("rule")
    parameter_name = "rule"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, Any]]:
        """Offer the known rules, and the one that is chosen."""
        chosen = request.GET.get(self.parameter_name, ALL_RULES)
        names = sorted({*known_rules(), chosen} - {ALL_RULES})
        return [(ALL_RULES, gettext_lazy("all rules")), *((name, name) for name in names)]

    def queryset(self, request: Any, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the rows of a rule."""
        return queryset.filter(rule=self.value()) if self.value() else queryset


@admin.register(QuotaOverride)
class QuotaOverrideAdmin(OverrideActions, admin.ModelAdmin):  # type: ignore[type-arg]  # Django's own takes none
    """The overrides."""

    form = OverrideForm
    list_display = ("subject", "rule_shown", "instead", "state", "begins", "ends", "reason", "created_by", "stands")
    list_filter = ("mode", StateFilter, RuleFilter)
    list_select_related = ("created_by",)
    search_fields = ("subject", "rule", "reason")
    search_help_text = gettext_lazy("The beginning of a subject or a rule, or a part of a reason.")
    show_full_result_count = False
    ordering = ("subject", "rule")  # the order of the unique index
    sortable_by = ("subject", "ends")
    readonly_fields = ("created_by", "created", "updated")
    save_as = False

    class Media:
        """What the form's preview needs."""

        css: ClassVar = {"all": ["django_quota/subject.css"]}
        js: ClassVar = ["django_quota/override.js"]

    # --- the list -----------------------------------------------------------------------------------------------------

    @admin.display(description=gettext_lazy("rule"))
    def rule_shown(self, row: QuotaOverride) -> str:
        """Return the rule's name, or that it is for all."""
        return _("all rules") if row.rule == ALL_RULES else row.rule

    @admin.display(description=gettext_lazy("instead"))
    def instead(self, row: QuotaOverride) -> str:
        """Return the rate or the mode."""
        return mode_in_words(row)

    @admin.display(description=gettext_lazy("state"))
    def state(self, row: QuotaOverride) -> Any:
        """Return how it stands now."""
        return STATES[state_of(row, timezone.now())]

    @admin.display(description=gettext_lazy("starts"))
    def begins(self, row: QuotaOverride) -> str:
        """Return when it starts."""
        return moment_in_words(row.starts, "SHORT_DATETIME_FORMAT") if row.starts else "-"

    @admin.display(description=gettext_lazy("expires"), ordering="expires")
    def ends(self, row: QuotaOverride) -> str:
        """Return when it expires."""
        return moment_in_words(row.expires, "SHORT_DATETIME_FORMAT") if row.expires else _("never")

    @admin.display(description=gettext_lazy("page"))
    def stands(self, row: QuotaOverride) -> str:
        """Link to how the subject stands."""
        url = reverse("admin:django_quota_subject_changelist", current_app=self.admin_site.name)
        return format_html('<a href="{}?{}">{}</a>', url, urlencode({"subject": row.subject}), _("How it stands"))

    def get_list_display(self, request: HttpRequest) -> Any:
        """Leave the link out for those who may not follow it."""
        user: Any = request.user
        return self.list_display if user.has_perm("django_quota.view_subject") else self.list_display[:-1]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find by the beginning of a subject or a rule, or a part of a reason; an address in any spelling."""
        term = search_term.strip()[:LONGEST_TERM].replace("\0", "")
        if not term:
            return queryset, False
        wanted = Q(subject__startswith=term) | Q(rule__startswith=term) | Q(reason__icontains=term)
        if canonical(term.removeprefix("ip:").partition("/")[0], FULL_IPV6) is not None:
            wanted |= Q(subject=named_subject(f"ip:{term.removeprefix('ip:')}"))
        return queryset.filter(wanted), False

    # --- the form -----------------------------------------------------------------------------------------------------

    def get_fields(self, request: HttpRequest, obj: QuotaOverride | None = None) -> Any:
        """Offer users where a row is added, to those who may see users."""
        fields = ["subject", "rule", "mode", "rate", "starts", "expires", "reason"]
        if obj is None:
            return ["subject", "user", *fields[1:]] if self._may_see_users(request) else fields
        return [*fields, *self.readonly_fields]

    def get_readonly_fields(self, request: HttpRequest, obj: QuotaOverride | None = None) -> Any:
        """Show who made a row, and when."""
        return () if obj is None else self.readonly_fields

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        """Return the form; one that only previews never is valid, so that nothing is saved."""
        form = super().get_form(request, obj, change=change, **kwargs)
        attributes: dict[str, Any] = {"site": self.admin_site}
        if "_preview" in request.POST:
            attributes["is_valid"] = lambda form: bool(form.errors) and False
        return type(form.__name__, (form,), attributes)

    def render_change_form(self, request: Any, context: Any, *args: Any, **kwargs: Any) -> Any:
        """Add the preview, where it was asked for."""
        form = context["adminform"].form
        if "_preview" in request.POST:
            context["preview"] = Previewed(form)
        context["preview_url"] = self._preview_url(kwargs.get("obj"))
        return super().render_change_form(request, context, *args, **kwargs)

    def save_model(self, request: HttpRequest, obj: QuotaOverride, form: Any, change: bool) -> None:
        """Note who made it."""
        if not change:
            obj.created_by = request.user  # type: ignore[assignment]
        super().save_model(request, obj, form, change)

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

    def _may_see_users(self, request: HttpRequest) -> bool:
        user: Any = request.user
        opts = user._meta
        return any(user.has_perm(f"{opts.app_label}.{verb}_{opts.model_name}") for verb in ("view", "change"))
