"""The form of an override: whom, which rule, what instead. It previews what it will do; it must not save anything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple, cast

from django import forms
from django.contrib.admin.widgets import AutocompleteSelect
from django.contrib.auth import get_user_model
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_quota.admin.names import user_key
from django_quota.admin.wording import LimitRow
from django_quota.exceptions import QuotaError, RuleError
from django_quota.hints import meant_subject, rule_hint, subject_hint
from django_quota.models import QuotaOverride
from django_quota.override_sync import as_published
from django_quota.overrides import ALL_RULES
from django_quota.previews import Preview, RuleChange, preview
from django_quota.status import LimitStatus, known_rules
from django_quota.subjects import user_subject


class SuggestingInput(forms.TextInput):
    """A text field that offers some texts and takes any."""

    def __init__(self, suggestions: Iterable[str], attrs: dict[str, Any] | None = None) -> None:
        self.suggestions = list(suggestions)
        super().__init__(attrs)

    def render(self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None) -> SafeString:
        """Render the field, and behind it the list that it offers."""
        list_id = f"{(attrs or {}).get('id', name)}_known"
        field = super().render(name, value, {**(attrs or {}), "list": list_id}, renderer)
        options = format_html_join("", '<option value="{}"></option>', ((text,) for text in self.suggestions))
        return format_html('{}<datalist id="{}">{}</datalist>', field, list_id, options)


class UserSelect(AutocompleteSelect):
    """The search for a user; what is no primary key chooses nobody."""

    def optgroups(self, name: str, value: Any, attrs: dict[str, Any] | None = None) -> Any:
        """Return the user who is chosen."""
        model = get_user_model()
        return super().optgroups(name, [key for key in value if key and user_key(model, key) is not None], attrs)


class OverrideForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's own takes none
    """An override; a user may be given in the place of a subject."""

    site: ClassVar[Any] = None
    """The admin that shows it; it decides whether users can be searched."""
    sees_users: ClassVar[bool] = False
    """Whether who fills it in may learn which users there are."""

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
            self._offer_users()
        if "subject" in self.fields:
            self.fields["subject"].required = False  # a user would do
        if "rule" in self.fields:
            self.fields["rule"].widget = SuggestingInput([ALL_RULES, *known_rules()], {"class": "vTextField"})

    def _offer_users(self) -> None:
        model: Any = get_user_model()
        field: Any = self.fields["user"]
        field.queryset = model._default_manager.all()
        shown = self.site._registry.get(model) if self.site else None
        if shown is not None and shown.search_fields:
            link = cast("Any", QuotaOverride._meta.get_field("created_by"))
            field.widget = UserSelect(link, self.site, attrs={"data-placeholder": _("Search a user")})
            field.widget.choices = field.choices
        else:
            field.widget = forms.TextInput(attrs={"class": "vTextField", "inputmode": "text"})
            field.help_text = _("The primary key of a user: fills in the subject, such as user:42.")

    def clean(self) -> dict[str, Any]:
        """Bring a user into the place of the subject."""
        cleaned = super().clean() or self.cleaned_data
        user, subject = cleaned.get("user"), cleaned.get("subject")
        if subject:
            subject = self._meant(subject)
        if user is not None:
            named = user_subject(user)
            if subject and subject != named:
                self.add_error("user", _("This user is %(user)s, and the subject is another one.") % {"user": named})
            cleaned["subject"] = named
        elif not subject and "subject" in self.fields and "subject" not in self.errors:
            self.add_error("subject", _("Say whom: a subject, or a user."))
        return cleaned

    def _meant(self, text: str) -> str | None:
        """Put the subject that a text means into its field, where it means one."""
        try:
            meant = meant_subject(text)
        except RuleError as error:
            self.add_error("subject", str(error))
            return None
        if meant == text:
            return meant
        shown: Any = cast("Any", self.data).copy()
        shown[self.add_prefix("subject")] = self.cleaned_data["subject"] = meant
        self.data = shown  # the field shows what is meant
        return meant


def hints_of(row: QuotaOverride, *, with_users: bool) -> list[str]:
    """Return why an override may never be met: its subject is none of a request's, or its rule is not known."""
    return [hint for hint in (subject_hint(row.subject, with_users=with_users), rule_hint(row.rule)) if hint]


MOST_CHANGES = 30
"""Rules that a preview shows."""


class ChangeRow(NamedTuple):
    """A rule as it stands, and as it would, a line a limit."""

    rule: str
    now: list[str]
    then: list[str]
    problem: str


class Previewed:
    """The preview of what a form says, in words, or why there is none; before it is sent, of its row."""

    def __init__(self, form: OverrideForm) -> None:
        self.result: Preview | None = None
        self.trouble = ""
        self.row = form.instance
        self.hints: list[str] = []
        if form.errors or not (form.is_bound or self.row.pk):
            return
        # Where a row is only opened, users are not asked for: that costs queries.
        self.hints = hints_of(self.row, with_users=form.sees_users and form.is_bound)
        override = as_published(self.row)
        if override is None:  # a rate that the form has let through, and nobody could read
            self.trouble = _("Its rate cannot be read.")
            return
        try:
            self.result = preview(self.row.subject, self.row.rule, override)
        except QuotaError as error:
            self.trouble = _("What it would do cannot be said now. %s") % error

    @property
    def is_ended(self) -> bool:
        """Whether it has ended already."""
        return self.row.expires is not None and self.row.expires <= timezone.now()

    @property
    def changes(self) -> list[ChangeRow]:
        """The rules, those first of which something is used."""
        found = [] if self.result is None else self.result.changes
        found = sorted(found, key=lambda change: not any(limit.used for limit in change.now))
        return [_in_words(change) for change in found[:MOST_CHANGES]]

    @property
    def more(self) -> int:
        """How many rules are not shown."""
        return max(0, 0 if self.result is None else len(self.result.changes) - MOST_CHANGES)


def _in_words(change: RuleChange) -> ChangeRow:
    own = _("An override of its own goes before this one: nothing changes.")
    problem = own if change.is_shadowed else change.problem
    return ChangeRow(change.rule, list(map(_line, change.now)), list(map(_line, change.then)), problem)


def _line(limit: LimitStatus) -> str:
    row = LimitRow(limit, 0)
    tier = f"{limit.tier}: " if limit.tier else ""
    above = f" ({row.why})" if row.why else ""
    return f"{tier}{limit.rate}: {row.figures}; {row.next}{above}"
