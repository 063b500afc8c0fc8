"""The actions on a subject in the admin: who may run each, what it warns of, and what it does.

New rates, exemptions and blocks are overrides. They are saved through the model. Which rules can be raised, and why
others cannot, is at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone
from django.utils.functional import Promise, cached_property
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_quota.admin.base import hidden_names_hint
from django_quota.admin.wording import moment_in_words, rule_in_words
from django_quota.core import clock
from django_quota.core.errors import QuotaError, RuleError
from django_quota.core.keys import field
from django_quota.core.overrides import ALL_RULES, Override
from django_quota.core.rules import Rule
from django_quota.error_texts import error_in_words, some_of, text_in_words
from django_quota.features.authors import log_actions
from django_quota.features.bans import lift_bans
from django_quota.features.logins import with_addresses
from django_quota.features.resets import reset_named
from django_quota.limiting.known_rules import NamedRule, known_login_rules, known_rules
from django_quota.limiting.override_rows import set_override, write_database
from django_quota.limiting.overrides import overrides
from django_quota.models import QuotaOverride
from django_quota.operating.inspection import UNLIMITED, rules_for
from django_quota.operating.lookup import named_override_subject, override_problems, subject_hint
from django_quota.operating.who_counts import who_counts
from django_quota.subjects.subject import is_bare

SPANS = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "7d": timedelta(days=7)}
"""How long an override may last, besides until it is cleared."""

FACTORS = (2, 5, 10)
"""By how much the rates of a rule can be multiplied."""

RULES_SHOWN = 3
"""Rules of which a choice shows the new rates."""


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
    """Asks for the end as a moment too, and for a note. A block needs a reason, because others will ask why."""

    until = forms.DateTimeField(
        label=gettext_lazy("Or until"),
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        help_text=gettext_lazy("A moment of your own."),
    )
    note = forms.CharField(
        label=gettext_lazy("Note"),
        max_length=2000,
        required=False,
        help_text=gettext_lazy("More for the history, such as a link to a report."),
        widget=forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField"}),
    )
    field_order: Sequence[str] = ("span", "until", "reason", "note")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["reason"].required = True

    def clean_until(self) -> datetime | None:
        until: datetime | None = self.cleaned_data["until"]
        if until is not None and until <= timezone.now():
            raise ValidationError(_("It must be in the future."))
        return until


class BanForm(BlockForm):
    """Asks for the subject, in any form, and the rule too."""

    sees_users = False
    """Whether the request's user may see users."""
    subject = forms.CharField(
        label=gettext_lazy("Subject"),
        max_length=500,
        help_text=gettext_lazy(
            "A user's name or e-mail address, an IP address, a network such as 198.51.100.0/24, or a subject."
        ),
        widget=forms.TextInput(attrs={"class": "vTextField", "autocapitalize": "none", "autocomplete": "off"}),
    )
    rule = forms.ChoiceField(label=gettext_lazy("Rule"), required=False)
    field_order = ("subject", "rule", "span", "until", "reason", "note")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rule: Any = self.fields["rule"]
        rule.choices = [("", _("all rules")), *((name, name) for name in sorted(known_rules()))]

    def clean_subject(self) -> str:
        """Return the subject that the input stands for."""
        try:
            subject, number = named_override_subject(self.cleaned_data["subject"], with_users=self.sees_users)
        except RuleError as error:
            raise ValidationError(error_in_words(error)) from error
        if number > 1:
            raise ValidationError(_("Several users have this name."))
        if problem := subject_hint(subject, with_users=self.sees_users) if is_bare(subject) else "":
            raise ValidationError(f"{hidden_names_hint(subject, sees_users=self.sees_users)} {problem}".strip())
        return subject


class RaiseForm(OverrideActionForm):
    """Asks for the factor too."""

    factor = forms.TypedChoiceField(label=gettext_lazy("Raise to"), coerce=int)
    field_order = ("factor", "span", "reason")


class SubjectAction:
    """Something that a user of the admin can do to a subject."""

    label: Promise
    consequence: Promise
    """What will happen, for the confirmation page, with the placeholders `subject` and `rule`."""
    destructive = False
    """Whether the subject loses something by it."""
    blocks = False
    """Whether all requests of the subject are refused after it."""
    permissions: tuple[str, ...]
    """The permissions that a user needs, all of them."""
    form: type[forms.Form] = forms.Form

    def __init__(self, rule: str, subject: str) -> None:
        self.subject = subject
        self.rule = rule or ALL_RULES
        """A rule's name, or `"*"` for all rules."""
        self.about = rule_in_words(self.rule)

    @classmethod
    def is_allowed(cls, user: Any) -> bool:
        return all(user.has_perm(f"django_quota.{permission}") for permission in cls.permissions)

    def form_for(self, data: Any = None) -> forms.Form:
        """Return the form of the confirmation page."""
        return self.form(data, initial={"span": "1d"})

    def warning(self, whose: str) -> str:
        """Return what will happen, for the confirmation page; `whose`: the subject, as people call it."""
        return str(self.consequence) % {"subject": whose, "rule": self.about}

    def do(self, given: Mapping[str, Any], user: Any) -> str:
        """Act, and return what was done. Raises `StoreUnavailable`, or `ValidationError` for fields of the form."""
        raise NotImplementedError


class ResetUsage(SubjectAction):
    """Forget what was counted, and lift bans."""

    label = gettext_lazy("Reset")
    consequence = gettext_lazy(
        "This forgets all that was counted for %(subject)s under %(rule)s and lifts its bans. "
        "Overrides and daily counts stay."
    )
    permissions = ("reset_subject",)

    def do(self, given: Mapping[str, Any], user: Any) -> str:
        more = with_addresses(self.subject) if self.rule == ALL_RULES else []
        if not sum(reset_named(self.rule, each) for each in [self.subject, *more]):
            return _("Nothing was counted under %s, so nothing was forgotten.") % self.about
        return _("What was counted under %s was forgotten.") % self.about


class LiftBan(SubjectAction):
    """End bans; what was counted stays."""

    label = gettext_lazy("Lift ban")
    consequence = gettext_lazy(
        "This ends the ban of %(subject)s from %(rule)s. What was counted stays. The next ban counts as the first "
        "again."
    )
    permissions = ("lift_ban",)

    def do(self, given: Mapping[str, Any], user: Any) -> str:
        lifted = lift_bans(None if self.rule == ALL_RULES else [field(self.rule)], self.subject)
        return lifted_in_words(lifted) if lifted else _("No ban from %s was in force.") % self.about


def lifted_in_words(lifted: int) -> str:
    return ngettext("%d ban was lifted.", "%d bans were lifted.", lifted) % lifted


class OverrideAction(SubjectAction):
    """Create an override, or replace the one of this subject and rule."""

    mode: QuotaOverride.Mode
    permissions = ("add_quotaoverride", "change_quotaoverride")
    form = OverrideActionForm

    def warning(self, whose: str) -> str:
        return " ".join([super().warning(whose), *override_problems(self.rule, self.subject, with_users=False)])

    def do(self, given: Mapping[str, Any], user: Any) -> str:
        """Save the row, and return what holds now. Raises `ValidationError`."""
        return self.save({self.rule: ""}, _ends(given), given["reason"], user)

    def save(self, rates: Mapping[str, str], expires: datetime | None, reason: str, user: Any) -> str:
        """Save a row for each rule, and return what holds now. Raises `ValidationError`."""
        values = {
            "mode": self.mode,
            "reason": reason,
            "created_by": user.get_username(),
            "starts": None,
            "expires": expires,
        }
        with transaction.atomic(using=write_database()):
            rows = [set_override(rule, self.subject, {**values, "rate": rate}) for rule, rate in rates.items()]
        until = _("until it is cleared") if expires is None else _("until %s") % moment_in_words(expires)
        done = ", ".join(f"{row.rule_in_words} {row.effect}" for row in rows)
        return f"{done}, {until} ({reason})" if reason else f"{done}, {until}"


def _ends(given: Mapping[str, Any]) -> datetime | None:
    return timezone.now() + given["span"] if given["span"] else None


class Raise(OverrideAction):
    """Multiply the rates of each rule for a while."""

    label = gettext_lazy("Raise for a day")
    consequence = gettext_lazy(
        "For %(subject)s, the rates of %(rule)s are multiplied from the next request on, for the time that you choose. "
        "What was used before still counts."
    )
    mode = QuotaOverride.Mode.RATE
    form = RaiseForm

    def form_for(self, data: Any = None) -> forms.Form:
        form = super().form_for(data)
        factor: Any = form.fields["factor"]
        factor.choices = [(number, f"x{number}: {self._raised(number)}".rstrip(": ")) for number in FACTORS]
        return form

    @cached_property
    def found(self) -> list[Raising]:
        """The rules that may limit the subject."""
        return raisings(self.rule, self.subject)

    def warning(self, whose: str) -> str:
        return f"{super().warning(whose)} {self._not_raised}".strip()

    def do(self, given: Mapping[str, Any], user: Any) -> str:
        """Save a row for each rule that can be raised, and return which were and which were not."""
        rates = {each.name: f"x{given['factor']}" for each in self.found if not each.problem}
        if not rates:
            raise ValidationError(self._not_raised or _("No rule can be raised."))
        return f"{self.save(rates, _ends(given), given['reason'], user)}. {self._not_raised}".strip(". ")

    def _raised(self, factor: int) -> str:
        """Return the new rates of the first rules, each with its name unless it is the only one."""
        able = [each for each in self.found if not each.problem]
        words = [each.raised(factor) if len(self.found) == 1 else each.named(factor) for each in able]
        return some_of(words, RULES_SHOWN) or _("not possible")

    @property
    def _not_raised(self) -> str:
        left = ", ".join(f"{each.name} ({each.problem.rstrip('.')})" for each in self.found if each.problem)
        return _("Not raised: %s.") % left if left else ""


class Exempt(OverrideAction):
    """Admit everything."""

    label = gettext_lazy("Exempt")
    consequence = gettext_lazy(
        "From the next request on, %(subject)s is not limited under %(rule)s: every request is admitted."
    )
    mode = QuotaOverride.Mode.EXEMPT


class Block(OverrideAction):
    """Admit nothing."""

    label = gettext_lazy("Block")
    consequence = gettext_lazy(
        "From the next request on, every request of %(subject)s under %(rule)s is refused, for the time that you "
        "choose."
    )
    destructive = True
    blocks = True
    mode = QuotaOverride.Mode.BLOCKED
    form = BlockForm

    def do(self, given: Mapping[str, Any], user: Any) -> str:
        """Save the row, and return what holds now, with the note. Raises `ValidationError`."""
        done = self.save({self.rule: ""}, given["until"] or _ends(given), given["reason"], user)
        names, more = ", ".join(self._not_blocked()), ""
        if names:
            more = _("These rules have an override of their own, which takes precedence: %s") % names
        return ". ".join(filter(None, (done, more, given["note"])))

    def _not_blocked(self) -> list[str]:
        """Return the rules that a block of all rules leaves alone, because another override is about each."""
        if self.rule != ALL_RULES:
            return []
        rows = QuotaOverride.objects.active().using(write_database()).filter(subject=self.subject)
        return sorted(rows.exclude(rule=ALL_RULES).exclude(mode=self.mode).values_list("rule", flat=True))


class Clear(SubjectAction):
    """Delete an override, so that the rule's own limits hold again."""

    label = gettext_lazy("Clear override")
    consequence = gettext_lazy(
        "This deletes the override of %(subject)s for %(rule)s. From the next request on, the limits of the "
        "settings hold again."
    )
    permissions = ("delete_quotaoverride",)

    def do(self, given: Mapping[str, Any], user: Any) -> str:
        row = QuotaOverride.objects.using(write_database()).filter(subject=self.subject, rule=self.rule).first()
        if row is None:
            return _("There was no override for %s.") % self.about
        row.delete()
        return _("Cleared: %s") % row


ACTIONS: dict[str, type[SubjectAction]] = {
    "raise": Raise,
    "exempt": Exempt,
    "reset": ResetUsage,
    "block": Block,
    "lift": LiftBan,
    "clear": Clear,
}
"""All actions by name; the first four are on a rule, or on all rules, in the order of their buttons."""


def run_action(action: SubjectAction, form: forms.Form, user: Any, label: object) -> str:
    """Run an action with what the form asks for, and log it under the label; return what was done.

    Empty if it failed: the form has the error, at the field that it is about or above all fields.
    """
    try:
        done = action.do(form.cleaned_data, user)
    except ValidationError as error:
        for name, errors in getattr(error, "error_dict", {None: error}).items():
            form.add_error(name if name in form.fields else None, errors)
        return ""
    except QuotaError as error:
        form.add_error(None, error_in_words(error))
        return ""
    log_actions({action.subject: f"{label}: {done}"}, user)
    return done


# --- raising the limits of a subject ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Raising:
    """A rule that may limit the subject."""

    name: str
    rule: Rule | None
    problem: str
    """Why it cannot be raised; empty if it can."""

    def raised(self, factor: int) -> str:
        """Return the rates of the raised rule, of each tier; empty if they depend on the request."""
        if self.rule is None:
            return ""
        tiers = [f"{tier} {_raised_rates(rule, factor) or _('unlimited')}" for tier, rule in self.rule.tiers.items()]
        return ", ".join(tiers) or _raised_rates(self.rule, factor)

    def named(self, factor: int) -> str:
        """Return its name with these rates: `api (free 200/d, pro 2000/d)`."""
        rates = self.raised(factor)
        return f"{self.name} ({rates})" if rates else self.name


def _raised_rates(rule: Rule, factor: int) -> str:
    return "; ".join(str(limit.rate) for limit in rule.under(f"x{factor}").limits)


def raisings(name: str, subject: str) -> list[Raising]:
    """Return the rules of this name (`*`: all known rules) that may limit a subject.

    All rules leave out those of failed logins: whoever needs more searches does not need more guesses. A rule with an
    override in force is not raised: that override would be replaced or hidden. Only a raise may replace
    an earlier raise.
    """
    overrides.refresh()
    counts, logins = who_counts(), {rule.name for rule in known_login_rules()}
    return [
        Raising(rule, given if isinstance(given, Rule) else None, _why_not_raised(rule, subject, given))
        for rule, given in rules_for(name).items()
        if name != ALL_RULES or rule not in logins
        if counts.can_count(rule, subject)
    ]


def _why_not_raised(name: str, subject: str, rule: NamedRule) -> str:
    """Return why a rule cannot be raised; empty if it can."""
    now = clock.now()
    held = overrides.table.find(name, subject, now)
    if held is not None and not _is_raise(held, name, subject):
        return _("an override is in force: %s") % _override_in_words(held)
    for each in overrides.table.matching(name, subject):
        if (each.subject, each.rule) == (subject, name) and each.begins > now:
            return _("its own override would be lost: %s") % _override_in_words(each)
    if not isinstance(rule, Rule):
        return text_in_words(rule)
    if not rule.rates:
        return str(UNLIMITED)
    is_closed = bool(rule.limits) and not any(limit.rate.count for limit in rule.limits)
    return _("it admits nothing") if is_closed else ""


def _is_raise(held: Override, name: str, subject: str) -> bool:
    """Return whether an override of exactly this subject and rule multiplies the rates, and adds no units."""
    return (held.subject, held.rule) == (subject, name) and held.rates.startswith("x") and "+" not in held.rates


def _override_in_words(override: Override) -> str:
    return override.rates or str(QuotaOverride.Mode(override.mode).label)
