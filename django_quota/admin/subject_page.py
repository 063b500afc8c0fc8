"""What the admin page of a subject shows: its limits, its overrides, and what was done to it.

Overrides are read from the database first, so the page shows them even if the store does not answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import Q
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _

from django_quota.admin.admin_wording import STATES, LimitRow, moment_of, ordinal, span_in_words, state_of
from django_quota.admin.live import lines
from django_quota.admin.subject_actions import ACTIONS, Action, ActionTarget, overrides_of
from django_quota.core.errors import QuotaError, RateError
from django_quota.core.rates import MAX_COUNT, Rate, parse_rates
from django_quota.models import QuotaOverride, Subject
from django_quota.services.inspection import HeldStatus, LimitStatus, SubjectSnapshot, load_snapshot, recent_refusals
from django_quota.services.override_sync import are_pending
from django_quota.services.overrides import ALL_RULES

MAX_ROWS = 100
"""Overrides and daily counts on the page. The usage page has all days."""

MAX_ENTRIES = 10
"""Log entries on the page."""


class Button(NamedTuple):
    """An action that the user may run from here."""

    action: Action
    value: str
    """The value that the form sends: the rule and the rate that the form suggests, as JSON."""


class OverrideRow(NamedTuple):
    """An override and the actions on it."""

    row: QuotaOverride
    state: str | Promise
    """Whether it holds now, in words."""
    buttons: list[Button]


class RuleRow(NamedTuple):
    """A rule and its limits."""

    name: str
    limits: list[LimitRow]
    buttons: list[Button]
    override: QuotaOverride | None
    """The override of this rule, if one is in force."""


class EndingRow(NamedTuple):
    """A ban, a lease or a reservation, and when it ends."""

    name: str
    ends: datetime
    words: str
    note: str = ""
    buttons: Iterable[Button] = ()


_FOR_RULES = ("raise", "exempt", "block", "reset")
"""The actions on a rule, or on all rules."""

Allowed = Callable[..., list[Button]]
"""Returns the buttons that a user may press: of the actions with these names, on a rule."""


def build_page(subject: str, who: Any) -> dict[str, Any]:
    """Return the context of a subject's page, with the buttons that a user may press.

    If the store does not answer, `trouble` says why, and what only it knows is missing.
    """
    now = timezone.now()
    rows = list(overrides_of(subject).select_related("created_by")[:MAX_ROWS])
    ruled = {row.rule for row in rows}

    def allowed(actions: Iterable[str], rule: str, rate: str = "") -> list[Button]:
        target, value = ActionTarget(subject, rule), json.dumps([rule, rate] if rate else [rule])
        chosen = [ACTIONS[name] for name in actions]
        return [Button(action, value) for action in chosen if action.is_allowed(who, target, ruled)]

    page: dict[str, Any] = {
        "overrides": [OverrideRow(row, STATES[state_of(row, now)], allowed(["clear"], row.rule)) for row in rows],
        "is_pending": are_pending([subject], overrides_of(subject).db),
        "buttons": allowed(_FOR_RULES, ALL_RULES),
        "entries": log_entries(subject, [row.pk for row in rows]),
    }
    try:
        snapshot = load_snapshot(subject)
        page |= _rules(snapshot, {row.rule: row for row in rows}, allowed) | _others(snapshot, allowed)
        page["buttons"] += allowed(["lift"], ALL_RULES) if snapshot.bans else []
        page["refused"] = lines(recent_refusals(subject))
    except QuotaError as error:
        page["trouble"] = str(error)
    return page


def _rules(snapshot: SubjectSnapshot, overrides: Mapping[str, QuotaOverride], allowed: Allowed) -> dict[str, Any]:
    """Return the rules with their limits, and which limits refuse the next hit."""
    refusing: list[LimitRow] = []
    used: list[RuleRow] = []
    unused: list[RuleRow] = []
    is_refused = False
    for name, limits in groupby(snapshot.limits, key=lambda limit: limit.rule):
        shown = [LimitRow(limit, snapshot.now) for limit in limits]
        refused = [row for row in shown if row.status.refuses]
        refusing += refused
        # A hit is refused for sure if it is in every tier that the subject may be in.
        is_refused |= bool(refused) and {row.status.tier for row in refused} == {row.status.tier for row in shown}
        buttons = allowed(_FOR_RULES, name, double_rates([row.status for row in shown]))
        rule = RuleRow(name, shown, buttons, overrides.get(name) if snapshot.is_overridden(name) else None)
        (used if any(limit.status.used or limit.status.why for limit in shown) else unused).append(rule)
    for_all = overrides.get(ALL_RULES) if snapshot.is_overridden(ALL_RULES) else None
    return {"refusing": refusing, "is_refused": is_refused, "used": used, "unused": unused, "for_all": for_all}


def _others(snapshot: SubjectSnapshot, allowed: Allowed) -> dict[str, Any]:
    """Return what the page shows besides the rules."""

    def ending(name: str, seconds: float, note: str = "", buttons: Iterable[Button] = ()) -> EndingRow:
        return EndingRow(name, moment_of(snapshot.now, seconds), span_in_words(seconds), note, buttons)

    def held(slots: Iterable[HeldStatus]) -> Iterator[EndingRow]:
        for slot in slots:
            yield from (ending(slot.name, seconds) for seconds in slot.ends_in)
            if rest := max(0, slot.number - len(slot.ends_in)):
                yield ending(slot.name, slot.ends_in[-1], _("and %d more, later") % rest)

    days = [
        (day, rule, *count)
        for day, rules in sorted(snapshot.days.items(), reverse=True)
        for rule, count in sorted(rules.items())
    ]
    return {
        "unread": snapshot.unread,
        "bans": [
            ending(ban.rule, ban.ends_in, ordinal(ban.level), allowed(["lift"], ban.field)) for ban in snapshot.bans
        ],
        "leases": list(held(snapshot.leases)),
        "holds": list(held(snapshot.holds)),
        "days": days[:MAX_ROWS],
    }


def double_rates(limits: Collection[LimitStatus]) -> str:
    """Return twice the rates of a rule; empty if the tiers have different rates."""
    if len({limit.tier for limit in limits}) > 1:
        return ""
    try:
        rates = [rate for limit in limits for rate in parse_rates(limit.rate)]
    except RateError:
        return ""
    twice = [Rate(min(MAX_COUNT, max(1, 2 * rate.count)), rate.unit, rate.multiple) for rate in rates]
    return "; ".join(map(str, twice))


# --- the log ----------------------------------------------------------------------------------------------------------


def log_actions(done: Mapping[str, str], user: Any) -> None:
    """Write to the log what was done, given by subject."""
    about = _content_type(Subject)
    LogEntry.objects.bulk_create(
        LogEntry(
            user_id=user.pk,
            content_type=about,
            object_id=subject,
            object_repr=subject[:200],
            action_flag=CHANGE,
            change_message=what,
        )
        for subject, what in done.items()
    )


def log_entries(subject: str, overrides: Iterable[int]) -> list[LogEntry]:
    """Return the newest log entries about a subject and its overrides."""
    about = Q(content_type=_content_type(Subject), object_id=subject)
    keys = [str(key) for key in overrides]
    if keys:
        about |= Q(content_type=_content_type(QuotaOverride), object_id__in=keys)
    return list(LogEntry.objects.filter(about).select_related("user").order_by("-action_time", "-pk")[:MAX_ENTRIES])


def _content_type(model: Any) -> ContentType:
    return ContentType.objects.get_for_model(model, for_concrete_model=False)
