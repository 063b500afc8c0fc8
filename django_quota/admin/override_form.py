"""The form of an override, and the preview of what it would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS
from django.utils.html import format_html
from django.utils.translation import gettext as _

from django_quota.admin.base import admin_url
from django_quota.admin.lockouts import LOCKOUT, lockout_of
from django_quota.admin.wording import override_state
from django_quota.core.errors import QuotaError, RuleError
from django_quota.core.overrides import Override, OverrideTable
from django_quota.error_texts import error_in_words
from django_quota.limiting.override_rows import override_of, write_database
from django_quota.models import QuotaOverride
from django_quota.operating.lookup import (
    is_group,
    named_override_subject,
    override_problems,
    parse_rule_input,
)

if TYPE_CHECKING:
    from django_quota.operating.inspection import OverridePreview

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
