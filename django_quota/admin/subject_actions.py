"""The actions on a subject in the admin: who may run each, what it warns of, and what it does.

New rates, exemptions and blocks are overrides. They are saved through the model, which publishes them on commit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db import IntegrityError
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_quota.admin.admin_wording import moment_in_words, rule_in_words, sentence
from django_quota.core.errors import QuotaError
from django_quota.core.keys import named
from django_quota.models import QuotaOverride
from django_quota.services.bans import lift_bans
from django_quota.services.logins import with_addresses
from django_quota.services.override_sync import set_override, write_database
from django_quota.services.overrides import ALL_RULES
from django_quota.services.reset import reset_subject

SPANS = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "7d": timedelta(days=7)}
"""How long an override may last, besides until it is cleared."""


@dataclass(frozen=True, slots=True)
class ActionTarget:
    """The subject and the rule that an action is about."""

    subject: str
    rule: str = ALL_RULES
    """A rule's name, or `"*"` for all rules. To lift a ban, it is `BanStatus.field`."""


class OverrideActionForm(forms.Form):
    """How long an override lasts, and why it was created."""

    span = forms.TypedChoiceField(
        label=gettext_lazy("For"),
        choices=(
            ("1h", gettext_lazy("an hour")),
            ("1d", gettext_lazy("a day")),
            ("7d", gettext_lazy("seven days")),
            ("", gettext_lazy("until it is cleared")),
        ),
        coerce=SPANS.get,
        empty_value=None,
        required=False,
    )
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=500,
        required=False,
        help_text=gettext_lazy("Tells others why."),
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )


class RaiseForm(OverrideActionForm):
    """The rate of the override, too."""

    rate = forms.CharField(
        label=gettext_lazy("Rate"),
        max_length=200,
        help_text=gettext_lazy("For example 100/m, or 10/s; 500/h. It replaces all rates of the rule."),
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )
    field_order = ("rate", "span", "reason")


class Action:
    """Something that a user of the admin can do to a subject."""

    name: str
    label: Promise
    consequence: Promise
    """What will happen, for the confirmation page; it takes `subject` and `rule`."""
    destructive = False
    """Whether it takes something from the subject, or cannot be undone."""
    permission: str
    form: type[forms.Form] = forms.Form

    def has_permission(self, user: Any) -> bool:
        """Return whether a user has the permission for it."""
        return bool(user.has_perm(f"django_quota.{self.permission}"))

    def is_allowed(self, user: Any, target: ActionTarget, ruled: Collection[str] | None = None) -> bool:
        """Return whether a user may do it; `ruled` are the rules that have an override, looked up if it is None."""
        return self.has_permission(user)

    def rule_words(self, target: ActionTarget) -> str:
        """Return the rule, as part of a sentence."""
        return rule_in_words(target.rule)

    def warning(self, target: ActionTarget) -> str:
        """Return what will happen, for the confirmation page."""
        return str(self.consequence) % {"subject": target.subject, "rule": self.rule_words(target)}

    def do(self, target: ActionTarget, given: Mapping[str, Any], user: Any) -> str:
        """Do it, and return what was done. Raises `StoreUnavailable`, or `ValidationError` for fields of the form."""
        raise NotImplementedError


class ResetUsage(Action):
    """Forget what was counted, and lift bans."""

    name = "reset"
    label = gettext_lazy("Reset")
    consequence = gettext_lazy(
        "This forgets all that was counted for %(subject)s under %(rule)s, lifts its bans and drops reservations "
        "that are not settled. Overrides and daily counts stay."
    )
    destructive = True
    permission = "reset_subject"

    def do(self, target: ActionTarget, given: Mapping[str, Any], user: Any) -> str:
        is_all = target.rule == ALL_RULES
        subjects = [target.subject, *(with_addresses(target.subject) if is_all else ())]
        if not sum(reset_subject(each, None if is_all else [target.rule]).dropped for each in subjects):
            return _("Nothing was counted under %s, so nothing was forgotten.") % self.rule_words(target)
        return _("What was counted under %s was forgotten.") % self.rule_words(target)


class LiftBan(Action):
    """End bans; what was counted stays."""

    name = "lift"
    label = gettext_lazy("Lift ban")
    consequence = gettext_lazy(
        "This ends the ban of %(subject)s from %(rule)s. What was counted stays. The next ban counts as the first "
        "again."
    )
    permission = "lift_ban"

    def rule_words(self, target: ActionTarget) -> str:
        return rule_in_words(target.rule if target.rule == ALL_RULES else named(target.rule) or target.rule)

    def do(self, target: ActionTarget, given: Mapping[str, Any], user: Any) -> str:
        lifted = lift_bans(target.subject, None if target.rule == ALL_RULES else [target.rule])
        if not lifted:
            return _("No ban from %s was in force.") % self.rule_words(target)
        return ngettext("%d ban was lifted.", "%d bans were lifted.", lifted) % lifted


class OverrideAction(Action):
    """Create an override, or replace the one of this subject and rule."""

    mode: QuotaOverride.Mode
    result: Promise
    """What holds then, as the beginning of a sentence before the rule's name; `%s` is the rate."""
    permission = "add_quotaoverride"
    form = OverrideActionForm

    def is_allowed(self, user: Any, target: ActionTarget, ruled: Collection[str] | None = None) -> bool:
        """Return whether a user may add an override, and change it if there already is one."""
        if not super().is_allowed(user, target):
            return False
        if user.has_perm("django_quota.change_quotaoverride"):
            return True
        if ruled is None:
            return not overrides_of(target.subject).filter(rule=target.rule).exists()
        return target.rule not in ruled

    def do(self, target: ActionTarget, given: Mapping[str, Any], user: Any) -> str:
        """Save the row, and return what holds now."""
        values = {
            "mode": self.mode,
            "rate": given.get("rate", ""),
            "reason": given["reason"],
            "created_by": user,
            "starts": None,
            "expires": given["span"] and timezone.now() + given["span"],
        }
        may_replace = user.has_perm("django_quota.change_quotaoverride")
        try:
            row = set_override(target.subject, target.rule, values, may_replace=may_replace)
        except IntegrityError as error:
            raise ValidationError(_("Somebody else has just created an override. Look at it first.")) from error
        until = _("until it is cleared") if row.expires is None else _("until %s") % moment_in_words(row.expires)
        result = str(self.result) % row.rate if row.rate else self.result
        words = {"result": result, "rule": self.rule_words(target), "until": until}
        done = sentence(_("%(result)s %(rule)s, %(until)s") % words)
        return f"{done} ({row.reason})" if row.reason else done


class Raise(OverrideAction):
    """Another rate, for a while."""

    name = "raise"
    label = gettext_lazy("Raise for a day")
    consequence = gettext_lazy(
        "For %(subject)s, the rate below replaces the rates of %(rule)s from the next request on, for the time "
        "that you choose. What was used before still counts."
    )
    mode = QuotaOverride.Mode.RATE
    result = gettext_lazy("%s holds under")
    form = RaiseForm


class Exempt(OverrideAction):
    """No limit."""

    name = "exempt"
    label = gettext_lazy("Exempt")
    consequence = gettext_lazy(
        "From the next request on, %(subject)s is not limited under %(rule)s: every request is admitted, and none "
        "is counted."
    )
    mode = QuotaOverride.Mode.EXEMPT
    result = gettext_lazy("Exempt from")


class Block(OverrideAction):
    """Nothing is admitted."""

    name = "block"
    label = gettext_lazy("Block")
    consequence = gettext_lazy(
        "From the next request on, every request of %(subject)s under %(rule)s is refused, for the time that you "
        "choose."
    )
    destructive = True
    mode = QuotaOverride.Mode.BLOCKED
    result = gettext_lazy("Blocked under")


class Clear(Action):
    """Delete an override, so that the rule's own limits hold again."""

    name = "clear"
    label = gettext_lazy("Clear override")
    consequence = gettext_lazy(
        "This deletes the override of %(subject)s for %(rule)s. From the next request on, the limits of the "
        "settings hold again."
    )
    permission = "delete_quotaoverride"

    def do(self, target: ActionTarget, given: Mapping[str, Any], user: Any) -> str:
        row = overrides_of(target.subject).filter(rule=target.rule).first()
        if row is None:
            return _("There was no override for %s.") % self.rule_words(target)
        said = str(row)
        row.delete()
        return _("Cleared: %s") % said


ACTIONS: dict[str, Action] = {
    action.name: action for action in (Raise(), Exempt(), Block(), ResetUsage(), LiftBan(), Clear())
}
"""All actions by name, in the order of their buttons."""


def overrides_of(subject: str) -> Any:
    """Return the overrides of a subject in the database that they are written to."""
    return QuotaOverride.objects.using(write_database()).filter(subject=subject)


def add_form_error(error: ValidationError | QuotaError, form: forms.Form) -> None:
    """Add the error of an action to the fields of its form, or to the whole form."""
    if isinstance(error, ValidationError) and hasattr(error, "error_dict"):
        for name, errors in error.error_dict.items():
            form.add_error(name if name in form.fields else None, errors)
    else:
        form.add_error(None, str(error) if isinstance(error, QuotaError) else error)
