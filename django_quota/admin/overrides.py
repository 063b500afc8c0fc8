"""Overrides in the admin: the list with its filters, search and bulk actions, and the form with its preview.

A saved or deleted row takes effect at once in this process, and within two seconds in the others; see
`limiting.overrides`.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import NON_FIELD_ERRORS, PermissionDenied
from django.db import transaction
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_quota.admin.base import (
    LOCKOUT,
    PageAdmin,
    StrictChangeList,
    admin_url,
    hidden_names_hint,
    labelled,
    lockout_of,
    may_see_users,
)
from django_quota.admin.wording import STATES, moment_in_words, override_state
from django_quota.core.errors import QuotaError, RuleError
from django_quota.core.overrides import ALL_RULES, Override, OverrideTable
from django_quota.error_texts import error_in_words
from django_quota.features.authors import log_actions
from django_quota.limiting.known_rules import known_rules
from django_quota.limiting.override_rows import override_of, write_database
from django_quota.models import QuotaOverride
from django_quota.operating.lookup import (
    has_page,
    is_group,
    named_override_subject,
    override_problems,
    parse_override_input,
    parse_rule_input,
)
from django_quota.subjects.addresses import is_address

if TYPE_CHECKING:
    from django_quota.operating.inspection import OverridePreview

# --- the form ---------------------------------------------------------------------------------------------------------


MAX_PREVIEWED = 20
"""The most subjects of a network, of a kind or of everybody for which a preview shows the effect."""

MAX_CHANGES = 30
"""The most rows in a preview."""


class OverrideForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's class takes no type argument
    """The form of an override. Its subject may be typed in any form, such as a user's name."""

    sees_users: ClassVar[bool] = False
    """Whether the request's user may see users."""
    request: ClassVar[Any] = None
    """The request; None: nobody can be locked out."""

    class Meta:
        model = QuotaOverride
        fields = ("subject", "rule", "mode", "rate", "starts", "expires", "reason", "label")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.problems: list[str] = []
        """Why the override can have no effect, once the form is checked."""
        self.lockout = ""
        """That the override blocks the request's own user, once the form is checked; empty if it does not."""
        if "subject" in self.fields:
            self.fields["subject"].help_text = _(
                "Who this applies to: a user's name or e-mail address, a subject such as user:42 or ip:203.0.113.9, a "
                "network such as ip:198.51.100.0/24, a kind such as user:*, or * for everybody."
            )
            self.fields["rule"].widget.attrs["list"] = "quota-known-rules"  # in the page's template

    def is_valid(self) -> bool:
        """Return whether to save the form: never after the button "Preview".

        An override without an effect, and one that blocks the request's own user, need a tick.
        """
        is_wanted = super().is_valid() and "_preview" not in self.data
        is_sure = not self.lockout or LOCKOUT in self.data
        return is_wanted and is_sure and (not self.problems or "_anyway" in self.data)

    def full_clean(self) -> None:
        """Check the form. A second override of a subject and rule is one error, on the subject, with a link."""
        super().full_clean()
        if not self.has_error(NON_FIELD_ERRORS, "unique_together"):
            return
        del self.errors[NON_FIELD_ERRORS]
        first = QuotaOverride.objects.using(write_database()).get(
            subject=self.instance.subject, rule=self.instance.rule
        )
        site = getattr(self.request, "current_app", None)
        url = admin_url(site, "django_quota_quotaoverride_change", first.pk)
        words = _("This subject and rule have an override already: %s") % first.effect
        self.add_error("subject", format_html('{} <a href="{}">{}</a>', words, url, _("Change it")))

    def clean_rule(self) -> str:
        """Return the name of the rule that was typed."""
        return parse_rule_input(self.cleaned_data["rule"])

    def clean_subject(self) -> str:
        """Return the subject that the input stands for, and show it in the field."""
        text = self.cleaned_data["subject"]
        is_new = text != self.instance.subject
        try:
            subject, number = named_override_subject(text, with_users=is_new and self.sees_users)
        except RuleError as error:
            raise forms.ValidationError(error_in_words(error)) from error
        if number > 1:
            raise forms.ValidationError(_("Several users have this name."))
        if subject != text:
            data: Any = cast("Any", self.data).copy()
            data[self.add_prefix("subject")] = subject
            self.data = data
        return subject

    def clean(self) -> dict[str, Any]:
        """Look for what is wrong with a subject and rule that are not saved yet."""
        cleaned = super().clean() or self.cleaned_data
        subject, rule = cleaned.get("subject"), cleaned.get("rule")
        if subject and rule and (subject, rule) != (self.instance.subject, self.instance.rule):
            self.problems = override_problems(rule, subject, with_users=self.sees_users)
            if hidden := hidden_names_hint(subject, sees_users=self.sees_users):
                self.problems.insert(0, hidden)
        is_block = cleaned.get("mode") == QuotaOverride.Mode.BLOCKED and self.has_changed()
        if subject and rule and is_block and self.request is not None:
            self.lockout = lockout_of(self.request, [(rule, subject)])
        return cleaned


def preview_of(form: OverrideForm) -> dict[str, Any]:
    """Return what the override in a form would do, or why that is not known: the context of the preview.

    The preview of a network, of a kind or of everybody looks for subjects among those refused most today and those of
    the last events, at most `MAX_PREVIEWED`: the store knows no others by name.
    """
    from django_quota.operating.inspection import preview_override  # noqa: PLC0415 — no page is needed to start

    row = form.instance
    if form.errors or not (form.is_bound or row.pk):  # looking for errors fills the row
        return {"row": row}
    preview = {
        "row": row,
        "is_ended": override_state(row) == "ended",
        # Hints on users cost queries, so a row that is only opened has none.
        "hints": [*form.problems, *filter(None, [form.lockout])]
        if form.is_bound
        else override_problems(row.rule, row.subject, with_users=False),
        "is_group": is_group(row.subject),
    }
    override = override_of(row)
    try:
        subjects = _concerned(override) if preview["is_group"] else [row.subject]
        return preview | _effects({subject: preview_override(subject, override) for subject in subjects})
    except QuotaError as error:
        return preview | {"trouble": _("There is no preview now. %s") % error_in_words(error)}


def _concerned(override: Override) -> list[str]:
    from django_quota.operating.activity import subjects_seen  # noqa: PLC0415 — as above
    from django_quota.operating.who_counts import who_counts  # noqa: PLC0415 — as above

    alone, counts = OverrideTable([override]), who_counts()
    seen = [each for each in subjects_seen() if alone.of_subject(each) and counts.can_count(override.rule, each)]
    return seen[:MAX_PREVIEWED]


def _effects(found: dict[str, OverridePreview]) -> dict[str, Any]:
    """Return what the preview shows of the changes for each subject, first the rules that have counted something."""
    changes = [(subject, change) for subject, result in found.items() for change in result.changes]
    changes.sort(key=lambda pair: not any(limit.used for limit in pair[1].now))
    different = [pair for pair in changes if not pair[1].is_same]
    same = [pair for pair in changes if pair[1].is_same]
    refused = {subject for subject, change in changes if any(limit.refuses for limit in change.then or change.now)}
    return {
        "subjects": len(found),
        "refused": len(refused),
        "changes": different[:MAX_CHANGES],
        "more": max(0, len(different) - MAX_CHANGES),
        "same": same,
        "is_unknown": any(result.is_unknown for result in found.values()),
        "unread": {name: why for result in found.values() for name, why in result.unread.items()},
    }


# --- the pages --------------------------------------------------------------------------------------------------------


MAX_SEARCH_LENGTH = 200
MAX_REASON_SHOWN = 60
"""The most characters of a search term, and of a reason in the list."""

MAX_BULK_CHANGES = 5_000
"""The most overrides that one action changes."""

ROWS_NAMED = 20
"""The most overrides that the confirmation of an action names."""


class LabelFilter(admin.AllValuesFieldListFilter):
    """Filters by label. The choice "no label" shows a dash, so that you can press it."""

    def choices(self, changelist: Any) -> Any:
        for choice in super().choices(changelist):
            yield {**choice, "display": choice["display"] or self.empty_value_display}


class StateFilter(admin.SimpleListFilter):
    """Filters by whether an override is in force."""

    title = gettext_lazy("state")
    parameter_name = "state"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, Any]]:
        return [*STATES.items(), ("permanent", gettext_lazy("without an end"))]

    def queryset(self, request: Any, queryset: QuerySet[Any]) -> QuerySet[Any]:
        now = timezone.now()
        conditions = {
            "active": ~Q(starts__gt=now) & ~Q(expires__lte=now),
            "pending": Q(starts__gt=now),
            "ended": Q(expires__lte=now),
            "permanent": Q(expires__isnull=True),
        }
        return queryset.filter(conditions.get(self.value() or "", Q()))


WARNINGS = {
    "exempt_selected": gettext_lazy("No limit applies any more to the subjects of these overrides, under their rules."),
    "block_selected": gettext_lazy("Every request of the subjects of these overrides is refused, under their rules."),
    "expire_selected": gettext_lazy(
        "These overrides end now. The limits of the settings apply again with the next request."
    ),
}
"""What each action on the list will do."""


@admin.register(QuotaOverride)
class QuotaOverrideAdmin(PageAdmin):
    form = OverrideForm
    list_display = (
        *("who", "rule_name", "instead", "state", "short_reason"),
        labelled("label", gettext_lazy("label")),
        labelled("created_by", gettext_lazy("set by")),
    )
    list_filter = ("mode", StateFilter, "rule", ("label", LabelFilter))
    search_fields = ("subject", "rule", "reason")
    search_help_text = gettext_lazy("The beginning of a subject or a rule (* for everybody), or a part of a reason.")
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # facets count all rows, once for each of a hundred rules
    ordering = ("subject", "rule")  # the order of the unique index
    sortable_by = ("who", "state")
    actions = tuple(WARNINGS)

    class Media:
        css: ClassVar = {"all": ["django_quota/subject.css", "django_quota/lists.css"]}
        js: ClassVar = ["django_quota/override.js"]

    # --- the list -----------------------------------------------------------------------------------------------------

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[StrictChangeList]:
        return StrictChangeList

    @admin.display(description=gettext_lazy("subject"), ordering="subject")
    def who(self, row: QuotaOverride) -> str:
        return row.subject_in_words

    @admin.display(description=gettext_lazy("rule"))
    def rule_name(self, row: QuotaOverride) -> str:
        return row.rule_in_words

    @admin.display(description=gettext_lazy("instead"))
    def instead(self, row: QuotaOverride) -> str:
        return row.effect

    @admin.display(description=gettext_lazy("state"), ordering="expires")
    def state(self, row: QuotaOverride) -> SafeString:
        """Return the state with a link to the subject's page, and from when until when the override is in force."""
        state = STATES[override_state(row)]
        url = (
            admin_url(self.admin_site.name, "django_quota_subject_changelist", subject=row.subject)
            if has_page(row.subject)
            else ""
        )
        if url:
            link = '<a href="{}">{}<span class="quota-hidden">: {}</span></a>'
            state = format_html(link, url, state, _("Show limits"))
        span = [
            words % moment_in_words(moment, "SHORT_DATETIME_FORMAT")
            for words, moment in ((_("from %s"), row.starts), (_("until %s"), row.expires))
            if moment
        ]
        return format_html('{} <span class="quota-span">{}</span>', state, " ".join(span))

    @admin.display(description=gettext_lazy("reason"))
    def short_reason(self, row: QuotaOverride) -> str | SafeString:
        """Return the beginning of the reason."""
        shown = Truncator(row.reason).chars(MAX_REASON_SHOWN)
        return shown if shown == row.reason else format_html('<span title="{}">{}</span>', row.reason, shown)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list, with a link to the page of each rule."""
        context = {"title": _("Overrides")}
        return super().changelist_view(request, context | (extra_context or {}))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Search by the beginning of a subject or a rule, or a part of a reason; addresses in any spelling."""
        term = search_term.strip()[:MAX_SEARCH_LENGTH].replace("\0", "")
        condition = Q(subject__startswith=term) | Q(rule__startswith=term) | Q(reason__icontains=term)
        if is_address(term.removeprefix("ip:")):
            with suppress(RuleError):
                condition |= Q(subject=parse_override_input(term))
        return queryset.filter(condition), False

    # --- the form -----------------------------------------------------------------------------------------------------

    def get_fields(self, request: HttpRequest, obj: QuotaOverride | None = None) -> Any:
        """Return the fields; of a saved override also who set it last, and when."""
        return [*OverrideForm.Meta.fields, *self.get_readonly_fields(request, obj)]

    def get_readonly_fields(self, request: HttpRequest, obj: QuotaOverride | None = None) -> Any:
        return () if obj is None else ("created_by", "created", "updated")

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form: Any = super().get_form(request, obj, change=change, **kwargs)
        form.sees_users, form.request = may_see_users(request), request
        return form

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Return the values in the URL, without moments: Django does not parse them, and the form needs them parsed."""
        given = super().get_changeform_initial_data(request)
        return {name: value for name, value in given.items() if name not in ("starts", "expires")}

    def render_change_form(self, request: Any, context: Any, *args: Any, **kwargs: Any) -> Any:
        """Add the preview when a row is opened, and after "Preview" was pressed."""
        row = kwargs.get("obj")
        is_opened = request.method == "GET" and row is not None and self.has_change_permission(request, row)
        if is_opened or "_preview" in request.POST:
            context["preview"] = preview_of(context["adminform"].form)
        context["known_rules"] = [ALL_RULES, *known_rules()]
        context["preview_url"] = self.url("preview", *(() if row is None else (row.pk,)))
        return super().render_change_form(request, context, *args, **kwargs)

    def get_urls(self) -> list[URLPattern]:
        from django_quota.admin.rule_page import rule_view  # noqa: PLC0415 — no page is needed to start

        view = self.admin_site.admin_view
        name = "django_quota_quotaoverride"
        return [
            path("preview/", view(self.preview_view), name=f"{name}_preview"),
            path("preview/<int:key>/", view(self.preview_view), name=f"{name}_preview"),
            path("rule/", view(partial(rule_view, self)), name=f"{name}_rule"),
            *super().get_urls(),
        ]

    def preview_view(self, request: HttpRequest, key: int | None = None) -> HttpResponse:
        """Return the preview of a form as an HTML fragment. Nothing is saved."""
        row = None if key is None else self.get_object(request, str(key))
        if key is not None and row is None:
            raise Http404
        if not (self.has_add_permission(request) if row is None else self.has_change_permission(request, row)):
            raise PermissionDenied
        form = self.get_form(request, row, change=row is not None)(request.POST or None, instance=row)
        context = {"preview": preview_of(form), "form": form, "is_live": True}
        return TemplateResponse(request, "admin/django_quota/quotaoverride/preview.html", context)

    # --- saving and deleting ------------------------------------------------------------------------------------------

    def save_model(self, request: HttpRequest, obj: QuotaOverride, form: Any, change: bool) -> None:
        """Save the row, and who set it last."""
        obj.created_by = request.user.get_username()
        super().save_model(request, obj, form, change)

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        """Log deletions for the subjects too, so that their pages show them."""
        deleted: dict[str, list[str]] = {}
        for row in queryset:
            deleted.setdefault(row.subject, []).append(str(row))
        log_actions({subject: _("Cleared: %s") % ". ".join(rows) for subject, rows in deleted.items()}, request.user)
        return super().log_deletions(request, queryset)

    # --- bulk actions -------------------------------------------------------------------------------------------------

    @admin.action(permissions=["change"], description=gettext_lazy("Exempt the selected subjects"))
    def exempt_selected(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        return self._replace_selected(request, queryset, "exempt_selected", QuotaOverride.Mode.EXEMPT)

    @admin.action(permissions=["change"], description=gettext_lazy("Block the selected subjects"))
    def block_selected(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        return self._replace_selected(request, queryset, "block_selected", QuotaOverride.Mode.BLOCKED)

    @admin.action(permissions=["change"], description=gettext_lazy("Expire the selected overrides now"))
    def expire_selected(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        """End the rows, even those that have not begun: such a row loses its start, which would be after its end."""
        return self._change_selected(request, queryset, "expire_selected", expires=timezone.now())

    def _replace_selected(
        self, request: HttpRequest, queryset: Any, action: str, mode: QuotaOverride.Mode
    ) -> HttpResponse | None:
        """Change what the rows do. Who set them before, and why, does not hold for that."""
        who = request.user.get_username()
        return self._change_selected(request, queryset, action, mode=mode, rate="", created_by=who, reason="")

    def _change_selected(self, request: HttpRequest, queryset: Any, action: str, **values: Any) -> HttpResponse | None:
        """Ask for confirmation; once that is given, change the rows and log each of them."""
        rows = list(queryset[: MAX_BULK_CHANGES + 1])
        if len(rows) > MAX_BULK_CHANGES:
            words = _("You can change at most %d overrides at once. Filter the list first.") % MAX_BULK_CHANGES
            self.message_user(request, words, messages.ERROR)
            return None
        if not rows:
            self.message_user(request, _("These overrides do not exist any more."), messages.WARNING)
            return None
        blocks = [(row.rule, row.subject) for row in rows] if action == "block_selected" else []
        lockout = lockout_of(request, blocks)
        if request.POST.get("confirmed") != "yes" or (lockout and LOCKOUT not in request.POST):
            return self._ask(request, rows, action, lockout)
        label = getattr(self, action).short_description
        words = _("%(action)s (with %(number)d chosen)") % {"action": label, "number": len(rows)}
        now = timezone.now()
        chosen = QuotaOverride.objects.filter(pk__in=[row.pk for row in rows])
        with transaction.atomic(using=write_database()):
            if "expires" in values:
                chosen.filter(starts__gte=values["expires"]).update(starts=None)
                chosen = chosen.exclude(expires__lte=now)
            changed = chosen.update(**values, updated=now)
            LogEntry.objects.log_actions(cast("int", request.user.pk), rows, CHANGE, words)
        words = ngettext("%d override was changed.", "%d overrides were changed.", changed) % changed
        self.message_user(request, words, messages.SUCCESS)
        return None

    def _ask(self, request: HttpRequest, rows: list[QuotaOverride], action: str, lockout: str) -> TemplateResponse:
        states = list(map(override_state, rows))
        is_all = request.POST.get("select_across") == "1"
        return self.show(
            request,
            "quotaoverride/confirm",
            _("Are you sure?"),
            warning=WARNINGS[action],
            lockout=lockout,
            LOCKOUT=LOCKOUT,
            action=action,
            rows=rows[:ROWS_NAMED],
            more=max(0, len(rows) - ROWS_NAMED),
            number=len(rows),
            **{state: states.count(state) for state in STATES},
            is_all=is_all,
            chosen=[] if is_all else [row.pk for row in rows],
            action_checkbox_name=ACTION_CHECKBOX_NAME,
        )
