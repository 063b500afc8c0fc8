"""What an operator may do to a subject: each act says who may, what will happen, and does it. It knows no page.

Other rates, exemptions and blocks are overrides, saved through the model, so that they are published on commit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from django import forms
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_quota.account import forget_known, lift_bans
from django_quota.admin.wording import moment_in_words, rule_in_words, sentence
from django_quota.exceptions import QuotaError
from django_quota.keys import named
from django_quota.models import QuotaOverride, begin_writing
from django_quota.override_sync import write_database
from django_quota.overrides import ALL_RULES

SPANS: Mapping[str, timedelta] = {
    "1h": timedelta(hours=1),
    "1d": timedelta(days=1),
    "7d": timedelta(days=7),
}
"""How long an override may last, besides for good."""

_SPAN_CHOICES = (
    ("1h", gettext_lazy("an hour")),
    ("1d", gettext_lazy("a day")),
    ("7d", gettext_lazy("seven days")),
    ("", gettext_lazy("until it is cleared")),
)

MODES = {
    "raise": QuotaOverride.Mode.RATE,
    "exempt": QuotaOverride.Mode.EXEMPT,
    "block": QuotaOverride.Mode.BLOCKED,
}
"""The mode of the override that each of these acts makes."""


@dataclass(frozen=True, slots=True)
class Target:
    """Whom an act is about, and under which rule."""

    subject: str
    rule: str = ALL_RULES
    """A rule's name; `"*"` for all. To lift a ban: the name as fields of hashes have it."""

    @property
    def words(self) -> str:
        """The rule, as a sentence names it."""
        return rule_in_words(self.rule)


class ActForm(forms.Form):
    """What an act without a choice asks: nothing but to confirm."""


class OverrideActForm(forms.Form):
    """How long an override lasts, and why it is made."""

    span = forms.ChoiceField(label=gettext_lazy("For"), choices=_SPAN_CHOICES, required=False)
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=500,
        required=False,
        help_text=gettext_lazy("Whoever looks later sees it."),
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )


class RaiseForm(OverrideActForm):
    """Which rate holds instead, too."""

    rate = forms.CharField(
        label=gettext_lazy("Rate"),
        max_length=200,
        help_text=gettext_lazy("Such as 100/m, or 10/s; 500/h. It takes the place of all rates of the rule."),
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )
    field_order = ("rate", "span", "reason")


class Act:
    """Something that can be done to a subject."""

    name = ""
    label: str | Promise = ""
    is_harsh = False
    """Whether it takes something away from the subject, or cannot be undone."""
    permission = ""
    form: type[forms.Form] = ActForm

    def may_be_allowed(self, user: Any) -> bool:
        """Say whether a user may do it to anybody."""
        return bool(user.has_perm(f"django_quota.{self.permission}"))

    def is_allowed(self, user: Any, target: Target, ruled: Collection[str] | None = None) -> bool:
        """Say whether a user may do it; `ruled`: the rules that the subject has rows for, asked for where None."""
        return self.may_be_allowed(user)

    def warning(self, target: Target) -> str:
        """Say what will happen, and to whom."""
        raise NotImplementedError

    def do(self, target: Target, given: Mapping[str, Any], user: Any) -> str:
        """Do it, and say what was done. Raises `StoreUnavailable`, or `ValidationError` of the form's fields."""
        raise NotImplementedError


class Reset(Act):
    """Forget what was counted, and lift bans."""

    name = "reset"
    label = gettext_lazy("Reset")
    is_harsh = True
    permission = "reset_subject"

    def warning(self, target: Target) -> str:
        """Say what will be forgotten."""
        words = {"subject": target.subject, "rule": target.words}
        return _(
            "All that was counted for %(subject)s under %(rule)s is forgotten, its bans are lifted, and holds that are "
            "not settled are dropped. It begins anew with nothing used. Overrides and counts of days stay."
        ) % words  # fmt: skip

    def do(self, target: Target, given: Mapping[str, Any], user: Any) -> str:
        """Forget it."""
        dropped = forget_known(target.subject, None if target.rule == ALL_RULES else [target.rule])
        if not dropped:
            return _("Nothing was counted under %s, so nothing was forgotten.") % target.words
        return _("What was counted under %s was forgotten.") % target.words


class LiftBan(Act):
    """End bans; what was counted stays."""

    name = "lift"
    label = gettext_lazy("Lift ban")
    permission = "lift_ban"

    def warning(self, target: Target) -> str:
        """Say which bans end."""
        words = {"subject": target.subject, "rule": self._words(target)}
        return _(
            "The ban of %(subject)s from %(rule)s ends now. What was counted for its limits stays; the "
            "next ban, if there is one, is a first one again."
        ) % words  # fmt: skip

    def do(self, target: Target, given: Mapping[str, Any], user: Any) -> str:
        """End them."""
        lifted = lift_bans(target.subject, None if target.rule == ALL_RULES else [target.rule])
        if not lifted:
            return _("There was no ban from %s any more.") % self._words(target)
        return ngettext("%d ban was lifted.", "%d bans were lifted.", lifted) % lifted

    def _words(self, target: Target) -> str:
        return target.words if target.rule == ALL_RULES else rule_in_words(named(target.rule) or target.rule)


class _Overriding(Act):
    """Put an override in the place of whatever there is for the rule."""

    is_harsh = False
    permission = "add_quotaoverride"
    form = OverrideActForm

    def is_allowed(self, user: Any, target: Target, ruled: Collection[str] | None = None) -> bool:
        """Say whether a user may: also change the row that there is, where there is one."""
        if not super().is_allowed(user, target):
            return False
        if user.has_perm("django_quota.change_quotaoverride"):
            return True
        if ruled is None:
            return not rows_of(target.subject).filter(rule=target.rule).exists()
        return target.rule not in ruled

    def do(self, target: Target, given: Mapping[str, Any], user: Any) -> str:
        """Save the row, and say what holds now."""
        span = SPANS.get(given.get("span") or "")
        values = {
            "mode": MODES[self.name],
            "rate": given.get("rate", ""),
            "reason": given.get("reason", ""),
            "created_by": user,
            "starts": None,
            "expires": None if span is None else timezone.now() + span,
        }
        try:
            row = _saved(target, values, with_change=user.has_perm("django_quota.change_quotaoverride"))
        except IntegrityError as error:
            raise ValidationError(_("Somebody else has just made one: look at it first.")) from error
        until = _("until it is cleared") if row.expires is None else _("until %s") % moment_in_words(row.expires)
        done = self.done(row)
        return sentence(f"{done} {target.words}, {until}") + (f" ({row.reason})" if row.reason else "")

    def done(self, row: QuotaOverride) -> str:
        """Say what holds, up to the rule's name."""
        raise NotImplementedError


def _saved(target: Target, values: Mapping[str, Any], *, with_change: bool) -> QuotaOverride:
    """Put these values into the row of a subject and rule, a new one where there is none.

    `with_change`: whether one that there is may be changed. Raises `IntegrityError` where not.
    """
    database = write_database()
    with transaction.atomic(using=database):
        begin_writing(database)
        row = rows_of(target.subject).filter(rule=target.rule).first()
        if row is not None and not with_change:  # made since the permission was looked at
            raise IntegrityError
        row = row or QuotaOverride(subject=target.subject, rule=target.rule)
        for name, value in values.items():
            setattr(row, name, value)
        row.full_clean()
        row.save(using=database)
    return cast("QuotaOverride", row)


class Raise(_Overriding):
    """Another rate, for a while."""

    name = "raise"
    label = gettext_lazy("Raise for a day")
    form = RaiseForm

    def warning(self, target: Target) -> str:
        """Say what holds instead."""
        words = {"subject": target.subject, "rule": target.words}
        return _(
            "For %(subject)s the rate below takes the place of the rates of %(rule)s, as long as is chosen here. "
            "It holds with the next request. What was used so far stays used."
        ) % words  # fmt: skip

    def done(self, row: QuotaOverride) -> str:
        """Say which rate holds."""
        return _("%s holds under") % row.rate


class Exempt(_Overriding):
    """No limit."""

    name = "exempt"
    label = gettext_lazy("Exempt")

    def warning(self, target: Target) -> str:
        """Say that nothing is limited."""
        words = {"subject": target.subject, "rule": target.words}
        return _(
            "%(subject)s is no longer limited under %(rule)s: every request is admitted, and nothing is counted "
            "against its limits. It holds with the next request."
        ) % words  # fmt: skip

    def done(self, row: QuotaOverride) -> str:
        """Say that nothing is limited."""
        return _("Exempt from")


class Block(_Overriding):
    """Nothing is admitted."""

    name = "block"
    label = gettext_lazy("Block")
    is_harsh = True

    def warning(self, target: Target) -> str:
        """Say that nothing is admitted."""
        words = {"subject": target.subject, "rule": target.words}
        return _(
            "Every request of %(subject)s under %(rule)s is refused, as long as is chosen here. It holds with the "
            "next request."
        ) % words  # fmt: skip

    def done(self, row: QuotaOverride) -> str:
        """Say that nothing is admitted."""
        return _("Blocked under")


class Clear(Act):
    """Delete an override: the rule's own limits hold again."""

    name = "clear"
    label = gettext_lazy("Clear override")
    permission = "delete_quotaoverride"

    def warning(self, target: Target) -> str:
        """Say what holds again."""
        words = {"subject": target.subject, "rule": target.words}
        return _(
            "The override of %(subject)s for %(rule)s is deleted: the limits of the settings hold again with the next "
            "request."
        ) % words  # fmt: skip

    def do(self, target: Target, given: Mapping[str, Any], user: Any) -> str:
        """Delete it."""
        row = rows_of(target.subject).filter(rule=target.rule).first()
        if row is None:
            return _("There was no override for %s any more.") % target.words
        said = str(row)
        row.delete()
        return _("Cleared: %s") % said


ACTS: dict[str, Act] = {act.name: act for act in (Raise(), Exempt(), Block(), Reset(), LiftBan(), Clear())}
"""All acts by name, in the order of their buttons."""


def rows_of(subject: str) -> Any:
    """Return the rows of a subject, of the database that they are written to."""
    return QuotaOverride.objects.using(write_database()).filter(subject=subject)


def explained(error: ValidationError | QuotaError, form: forms.Form) -> None:
    """Put an error of an act on the fields of its form, or above them."""
    if isinstance(error, ValidationError) and hasattr(error, "error_dict"):
        for name, errors in error.error_dict.items():
            form.add_error(name if name in form.fields else None, errors)
    else:
        form.add_error(None, str(error) if isinstance(error, QuotaError) else error)
