"""The form of an override, and the preview of what it would do."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from django import forms
from django.contrib.admin.widgets import AutocompleteSelect
from django.contrib.auth import get_user_model
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_quota.admin.admin_wording import LimitRow
from django_quota.core.errors import QuotaError, RuleError
from django_quota.models import QuotaOverride
from django_quota.services.inspection import LimitStatus, preview_override
from django_quota.services.lookup import parse_rule_input, parse_subject_input, parse_user_key, rule_hint, subject_hint
from django_quota.services.override_sync import as_published
from django_quota.services.subjects import user_subject

MAX_CHANGES = 30
"""Rules in a preview."""


class UserSelect(AutocompleteSelect):
    """The admin's search for a user. Ignores a value that cannot be a primary key."""

    def optgroups(self, name: str, value: Any, attrs: dict[str, Any] | None = None) -> Any:
        return super().optgroups(name, [key for key in value if key and parse_user_key(key) is not None], attrs)


class OverrideForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's class takes no type argument
    """An override. It takes a user in place of a subject."""

    site: ClassVar[Any] = None
    """The admin site, which searches users."""
    sees_users: ClassVar[bool] = False
    """Whether the request's user may see users."""

    user: Any = forms.ModelChoiceField(
        queryset=None,
        required=False,
        label=gettext_lazy("or a user"),
        help_text=gettext_lazy("Fills in the subject, such as user:42."),
    )

    class Meta:
        """The fields that people fill in."""

        model = QuotaOverride
        fields = ("subject", "rule", "mode", "rate", "starts", "expires", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "user" in self.fields:
            field: Any = self.fields["user"]
            field.queryset = get_user_model()._default_manager.all()
            relation = cast("Any", QuotaOverride._meta.get_field("created_by"))
            field.widget = UserSelect(relation, self.site, attrs={"data-placeholder": _("Search a user")})
            field.widget.choices = field.choices
        if "subject" in self.fields:
            self.fields["subject"].required = False  # `clean` asks for a subject or a user
        if "rule" in self.fields:
            self.fields["rule"].widget.attrs["list"] = "quota-known-rules"  # in the page's template

    def is_valid(self) -> bool:
        """Return whether the form can be saved: never after the button "Preview"."""
        return super().is_valid() and "_preview" not in self.data

    def clean(self) -> dict[str, Any]:
        """Set the rule as the text is understood, and the subject: of the user, or as the text is understood."""
        cleaned = super().clean() or self.cleaned_data
        if "rule" in cleaned:
            cleaned["rule"] = parse_rule_input(cleaned["rule"])
        user, subject = cleaned.get("user"), cleaned.get("subject")
        if subject:
            subject = self._parse_subject(subject)
        if user is not None:
            of_user = user_subject(user)
            if subject and subject != of_user:
                words = _("This user is %(user)s, but the field above names another subject. Clear one of them.")
                self.add_error("user", words % {"user": of_user})
            cleaned["subject"] = of_user
        elif not subject and "subject" in self.fields and "subject" not in self.errors:
            self.add_error("subject", _("Enter a subject, or choose a user."))
        return cleaned

    def _parse_subject(self, text: str) -> str | None:
        """Return the subject that a text means, and show it in the field."""
        try:
            subject = parse_subject_input(text)
        except RuleError as error:
            self.add_error("subject", str(error))
            return None
        if subject != text:
            data: Any = cast("Any", self.data).copy()
            data[self.add_prefix("subject")] = self.cleaned_data["subject"] = subject
            self.data = data
        return subject


def hints_of(row: QuotaOverride, *, with_users: bool) -> list[str]:
    """Return why an override may have no effect: no request has its subject, or its rule is unknown."""
    return [hint for hint in (subject_hint(row.subject, with_users=with_users), rule_hint(row.rule)) if hint]


def preview_of(form: OverrideForm) -> dict[str, Any]:
    """Return what the override in a form would do, or why that is not known: the context of the preview."""
    row = form.instance
    if form.errors or not (form.is_bound or row.pk):  # to look for errors fills the row
        return {"row": row}
    preview = {
        "row": row,
        "is_ended": row.expires is not None and row.expires <= timezone.now(),
        # Hints on users cost queries, so a row that is only opened goes without them.
        "hints": hints_of(row, with_users=form.sees_users and form.is_bound),
    }
    override = as_published(row)
    if override is None:
        return preview | {"trouble": _("The rate cannot be read.")}
    try:
        result = preview_override(row.subject, row.rule, override)
    except QuotaError as error:
        return preview | {"trouble": _("There is no preview now. %s") % error}
    used_first = sorted(result.changes, key=lambda change: not any(limit.used for limit in change.now))
    changes = [
        (change.rule, list(map(_line, change.now)), list(map(_line, change.then)), change.problem)
        for change in used_first[:MAX_CHANGES]
    ]
    return preview | {"result": result, "changes": changes, "more": len(used_first) - len(changes)}


def _line(limit: LimitStatus) -> str:
    row = LimitRow(limit, 0)
    tier = f"{limit.tier}: " if limit.tier else ""
    reason = f" ({row.why})" if row.why else ""
    return f"{tier}{limit.rate}: {row.usage}; {row.next}{reason}"
