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
from django_quota.core.overrides import Override, OverrideTable
from django_quota.limiting.override_rows import override_of
from django_quota.models import QuotaOverride
from django_quota.operating.activity import subjects_seen
from django_quota.operating.inspection import LimitStatus, OverridePreview, preview_override
from django_quota.operating.lookup import (
    is_given_by,
    is_group,
    known_keys,
    override_problems,
    parse_override_input,
    parse_rule_input,
    parse_user_key,
)
from django_quota.requests.subjects import user_subject

MAX_PREVIEWED = 20
"""Subjects of a network, of a kind or of everybody for which a preview looks at the effect."""

MAX_CHANGES = 30
"""Rows in a preview."""


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
        fields = ("subject", "rule", "mode", "rate", "starts", "expires", "reason", "label")

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
            self.fields["subject"].help_text = _(
                "Whom it is about: a subject such as user:42 or ip:203.0.113.9, a network such as "
                "ip:198.51.100.0/24, a kind such as user:*, or * for everybody."
            )
        self.problems: list[str] = []
        """Why the override can have no effect, once the form is checked."""
        if "rule" in self.fields:
            self.fields["rule"].widget.attrs["list"] = "quota-known-rules"  # in the page's template

    def is_valid(self) -> bool:
        """Return whether to save the form: never after the button "Preview", and not if it would have no effect."""
        is_wanted = super().is_valid() and "_preview" not in self.data
        return is_wanted and (not self.problems or "_anyway" in self.data)

    def clean(self) -> dict[str, Any]:
        """Set the rule that the text means, and the subject: that of the user, or the one that the text means."""
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
        subject, rule = cleaned.get("subject"), cleaned.get("rule")
        was_saved_so = (subject, rule) == (self.instance.subject, self.instance.rule)
        if subject and rule and not was_saved_so:
            self.problems = override_problems(subject, rule, with_users=self.sees_users)
        return cleaned

    def _parse_subject(self, text: str) -> str | None:
        """Return the subject that a text means, and show it in the field."""
        try:
            subject = parse_override_input(text)
        except RuleError as error:
            self.add_error("subject", str(error))
            return None
        if subject != text:
            data: Any = cast("Any", self.data).copy()
            data[self.add_prefix("subject")] = self.cleaned_data["subject"] = subject
            self.data = data
        return subject


def preview_group(override: Override) -> dict[str, OverridePreview]:
    """Return what an override of a network, of a kind or of everybody would do, by subject.

    The preview looks for subjects that the override concerns among those refused most today and those of the last
    events, at most `MAX_PREVIEWED`: the store knows no others by name. Raises `StoreUnavailable`.
    """
    alone, keys = OverrideTable([override]), known_keys().get(override.rule, [])
    concerned = [each for each in subjects_seen() if alone.of_subject(each) and is_given_by(keys, each)]
    return {subject: preview_override(subject, override) for subject in concerned[:MAX_PREVIEWED]}


def preview_of(form: OverrideForm) -> dict[str, Any]:
    """Return what the override in a form would do, or why that is not known: the context of the preview."""
    row = form.instance
    if form.errors or not (form.is_bound or row.pk):  # looking for errors fills the row
        return {"row": row}
    preview = {
        "row": row,
        "is_ended": row.expires is not None and row.expires <= timezone.now(),
        # Hints on users cost queries, so a row that is only opened has none.
        "hints": form.problems if form.is_bound else override_problems(row.subject, row.rule, with_users=False),
        "is_group": is_group(row.subject),
    }
    override = override_of(row)
    try:
        if preview["is_group"]:
            return preview | _effects(preview_group(override))
        return preview | _effects({row.subject: preview_override(row.subject, override)})
    except QuotaError as error:
        return preview | {"trouble": _("There is no preview now. %s") % error}


def _effects(found: dict[str, OverridePreview]) -> dict[str, Any]:
    """Return what the preview shows of the changes for each subject, first the rules that have counted something."""
    changes = [(subject, change) for subject, result in found.items() for change in result.changes]
    used_first = sorted(changes, key=lambda pair: not any(limit.used for limit in pair[1].now))
    shown = [
        (subject, change.rule, list(map(_line, change.now)), list(map(_line, change.then)), change.problem)
        for subject, change in used_first[:MAX_CHANGES]
    ]
    refused = {subject for subject, change in changes if any(limit.refuses for limit in change.then or change.now)}
    return {
        "subjects": len(found),
        "refused": len(refused),
        "changes": shown,
        "more": len(changes) - len(shown),
        "is_unknown": any(result.is_unknown for result in found.values()),
        "unread": {name: why for result in found.values() for name, why in result.unread.items()},
    }


def _line(limit: LimitStatus) -> str:
    row = LimitRow(limit, 0)
    tier = f"{limit.tier}: " if limit.tier else ""
    reason = f" ({row.why})" if row.why else ""
    return f"{tier}{limit.rate}: {row.usage}; {row.next}{reason}"
