"""The actions on a subject in the admin: who may run each, what it warns of, and what it does.

New rates, exemptions and blocks are overrides. They are saved through the model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_quota.admin.admin_wording import moment_in_words, rule_in_words, sentence
from django_quota.admin.raising import FACTORS, Raising, Times, raisings, rules_of, tiers_to_raise
from django_quota.core.errors import QuotaError
from django_quota.core.keys import named
from django_quota.core.overrides import ALL_RULES
from django_quota.features.bans import lift_bans
from django_quota.features.logins import with_addresses
from django_quota.limiting.override_rows import set_override, write_database
from django_quota.models import QuotaOverride
from django_quota.operating.lookup import override_problems
from django_quota.operating.reset import reset_subject

SPANS = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "7d": timedelta(days=7)}
"""How long an override may last, besides until it is cleared."""

MAX_NAMED = 3
"""Rules of which a choice shows the new rates."""


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


class BlockForm(OverrideActionForm):
    """Requires a reason: a block keeps somebody out, and others ask why."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["reason"].required = True


class RaiseForm(OverrideActionForm):
    """Asks for the factor too."""

    factor = forms.TypedChoiceField(
        label=gettext_lazy("Raise to"), choices=[(factor, f"{factor}x") for factor in FACTORS], coerce=Times.read
    )
    field_order = ("factor", "span", "reason")


class Action:
    """Something that a user of the admin can do to a subject."""

    name: str
    label: Promise
    consequence: Promise
    """What will happen, for the confirmation page; it takes `subject` and `rule`."""
    destructive = False
    """Whether it takes something from the subject."""
    permission: str
    form: type[forms.Form] = forms.Form

    def has_permission(self, user: Any) -> bool:
        """Return whether a user has the permission for it."""
        return bool(user.has_perm(f"django_quota.{self.permission}"))

    def is_allowed(self, user: Any, target: ActionTarget, ruled: Collection[str] | None = None) -> bool:
        """Return whether a user may do it; `ruled` are the rules that have an override, looked up if it is None."""
        return self.has_permission(user)

    def form_for(self, target: ActionTarget, data: Any = None) -> forms.Form:
        """Return the form of the confirmation page."""
        return self.form(data, initial={"span": "1d"})

    def rule_words(self, target: ActionTarget) -> str:
        """Return the rule, as part of a sentence."""
        return rule_in_words(target.rule)

    def warning(self, target: ActionTarget, whose: str) -> str:
        """Return what will happen, for the confirmation page; `whose`: the subject, as people call it."""
        return str(self.consequence) % {"subject": whose, "rule": self.rule_words(target)}

    def do(self, target: ActionTarget, given: Mapping[str, Any], user: Any) -> str:
        """Do it, and return what was done. Raises `StoreUnavailable`, or `ValidationError` for fields of the form."""
        raise NotImplementedError


class ResetUsage(Action):
    """Forget what was counted, and lift bans."""

    name = "reset"
    label = gettext_lazy("Reset")
    consequence = gettext_lazy(
        "This forgets all that was counted for %(subject)s under %(rule)s and lifts its bans. "
        "Overrides and daily counts stay."
    )
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
    """What holds then, as the beginning of a sentence before the rule's name."""
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

    def warning(self, target: ActionTarget, whose: str) -> str:
        return " ".join(
            [super().warning(target, whose), *override_problems(target.subject, target.rule, with_users=False)]
        )

    def do(self, target: ActionTarget, given: Mapping[str, Any], user: Any) -> str:
        """Save the row, and return what holds now."""
        expires = given["span"] and timezone.now() + given["span"]
        self._save(target.subject, {target.rule: ""}, given["reason"], expires, user)
        words = {"result": self.result, "rule": self.rule_words(target), "until": _until(expires)}
        return _with_reason(sentence(_("%(result)s %(rule)s, %(until)s") % words), given["reason"])

    def _save(self, subject: str, rates: Mapping[str, str], reason: str, expires: datetime | None, user: Any) -> None:
        """Save a row for each rule. Raises `ValidationError`."""
        values = {"mode": self.mode, "reason": reason, "created_by": user, "starts": None, "expires": expires}
        may_replace = user.has_perm("django_quota.change_quotaoverride")
        try:
            with transaction.atomic(using=write_database()):
                for rule, rate in rates.items():
                    set_override(subject, rule, {**values, "rate": rate}, may_replace=may_replace)
        except IntegrityError as error:
            raise ValidationError(_("Somebody else has just created an override. Look at it first.")) from error


def _until(expires: datetime | None) -> str:
    return _("until it is cleared") if expires is None else _("until %s") % moment_in_words(expires)


def _with_reason(done: str, reason: str) -> str:
    return f"{done} ({reason})" if reason else done


class Raise(OverrideAction):
    """More of each rate, for a while: every rule by its own rates."""

    name = "raise"
    label = gettext_lazy("Raise for a day")
    consequence = gettext_lazy(
        "For %(subject)s, the rates of %(rule)s are multiplied from the next request on, for the time that you choose. "
        "What was used before still counts."
    )
    mode = QuotaOverride.Mode.RATE
    form = RaiseForm

    def form_for(self, target: ActionTarget, data: Any = None) -> forms.Form:
        form = super().form_for(target, data)
        choices: Any = form.fields["factor"]
        tiers = tiers_to_raise(target.subject, rules_of(target.subject, target.rule))
        choices.choices = [
            (f"{factor} {tier}".strip(), f"{factor}x {tier}".strip() + f": {_raised_in_words(found)}")
            for tier in [*tiers, ""]
            for factor, found in _in_a_day(target, tier).items()
        ]
        return form

    def is_allowed(self, user: Any, target: ActionTarget, ruled: Collection[str] | None = None) -> bool:
        """Return whether a user may add overrides. Those of all rules are one per rule, and need not replace any."""
        return self.has_permission(user) if target.rule == ALL_RULES else super().is_allowed(user, target, ruled)

    def warning(self, target: ActionTarget, whose: str) -> str:
        return " ".join(filter(None, [super().warning(target, whose), _not_raised(_in_a_day(target)[FACTORS[0]])]))

    def do(self, target: ActionTarget, given: Mapping[str, Any], user: Any) -> str:
        """Save a row for each rule that can be raised, and return which were and which were not."""
        expires = given["span"] and timezone.now() + given["span"]
        may_change = user.has_perm("django_quota.change_quotaoverride")
        rules = rules_of(target.subject, target.rule)
        found = raisings(target.subject, rules, given["factor"], expires, may_change=may_change)
        rates = {each.rule: each.rates for each in found if each.rates}
        if not rates:
            raise ValidationError(_not_raised(found) or _("No rule can be raised."))
        self._save(target.subject, rates, given["reason"], expires, user)
        raised = ", ".join(f"{rule} {rate}" for rule, rate in rates.items())
        done = sentence(_("Raised: %(rates)s, %(until)s") % {"rates": raised, "until": _until(expires)})
        return _with_reason(" ".join(filter(None, [done, _not_raised(found)])), given["reason"])


def _in_a_day(target: ActionTarget, tier: str = "") -> dict[int, list[Raising]]:
    rules, expires = rules_of(target.subject, target.rule), timezone.now() + SPANS["1d"]
    return {factor: raisings(target.subject, rules, Times(factor, tier), expires) for factor in FACTORS}


def _raised_in_words(found: Collection[Raising]) -> str:
    """Return the new rates of the first rules, each with its name unless it is the only one."""
    raised = [each for each in found if each.rates]
    if len(found) == 1:
        return ", ".join(each.rates for each in raised) or _("not possible")
    shown = [f"{each.rule} {each.rates}" for each in raised[:MAX_NAMED]]
    return ", ".join([*shown, *(["…"] if len(raised) > MAX_NAMED else [])]) or _("not possible")


def _not_raised(found: Collection[Raising]) -> str:
    left = ", ".join(f"{each.rule} ({each.problem.rstrip('.')})" for each in found if each.problem)
    return sentence(_("Not raised: %s") % left) if left else ""


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
    form = BlockForm
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
"""All actions by name."""


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
