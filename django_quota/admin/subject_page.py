"""What the admin page of a subject shows: its limits, its overrides, and what was done to it.

Overrides are read from the database first, so the page shows them even if the store does not answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import groupby
from typing import Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import Q
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _

from django_quota.admin.admin_wording import (
    KIND_NAMES,
    STATES,
    LimitRow,
    mode_in_words,
    moment_of,
    ordinal,
    span_in_words,
    state_of,
)
from django_quota.admin.subject_actions import ACTIONS, Action, ActionTarget, overrides_of
from django_quota.core.errors import QuotaError, RateError
from django_quota.core.rates import MAX_COUNT, Rate, parse_rates
from django_quota.models import QuotaOverride, Subject
from django_quota.services.event_stream import Event
from django_quota.services.inspection import (
    BanStatus,
    HeldStatus,
    LimitStatus,
    SubjectSnapshot,
    load_snapshot,
    recent_refusals,
)
from django_quota.services.lookup import user_of
from django_quota.services.override_sync import are_pending
from django_quota.services.overrides import ALL_RULES

MAX_ROWS = 100
"""Overrides and daily counts on the page. The usage page has all days."""

MAX_ENTRIES = 10
"""Log entries on the page."""


@dataclass(frozen=True, slots=True)
class Button:
    """An action that the user may run from here."""

    action: Action
    rule: str
    rate: str = ""
    """The rate that the form suggests."""

    @property
    def value(self) -> str:
        """The value that the form sends: the rule and the rate as JSON."""
        return json.dumps([self.rule, self.rate]) if self.rate else json.dumps([self.rule])


@dataclass(slots=True)
class RuleRow:
    """A rule and its limits."""

    name: str
    limits: list[LimitRow]
    buttons: list[Button]
    reasons: list[OverrideRow]
    """The override of this rule, if one is in force."""

    @property
    def is_used(self) -> bool:
        """Whether something is used, or a ban or an override is in force."""
        return any(limit.status.used or limit.status.why for limit in self.limits)


@dataclass(slots=True)
class OverrideRow:
    """An override and the actions on it."""

    row: QuotaOverride
    now: datetime
    buttons: list[Button] = field(default_factory=list)

    @property
    def what(self) -> str:
        """The rate or the mode, in words."""
        return mode_in_words(self.row)

    @property
    def state(self) -> str | Promise:
        """Whether it holds now, in words."""
        return STATES[state_of(self.row, self.now)]

    @property
    def is_for_all(self) -> bool:
        """Whether it holds for all rules."""
        return self.row.rule == ALL_RULES


@dataclass(frozen=True, slots=True)
class EndingRow:
    """A ban, a lease or a reservation, and when it ends."""

    name: str
    ends: datetime
    words: str
    note: str = ""
    buttons: tuple[Button, ...] = ()


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A refusal or a ban from the event stream."""

    rule: str | None
    """None if the name is so long that only a digest is known."""
    what: str | Promise
    capacity: int
    """The limit."""
    at: datetime
    until: datetime | None
    """None if waiting does not help."""


@dataclass(slots=True)
class SubjectPage:
    """What the page shows."""

    subject: str
    user: Any
    overrides: list[OverrideRow]
    is_pending: bool
    """Whether a saved change is not yet published to Redis."""
    buttons: list[Button]
    entries: list[LogEntry]
    trouble: str = ""
    """Why the store did not answer; empty if it did."""
    refusing: list[LimitRow] = field(default_factory=list)
    """The limits that refuse the next hit."""
    is_refused: bool = False
    """Whether some rule refuses it in every tier that the subject may be in."""
    used: list[RuleRow] = field(default_factory=list)
    unused: list[RuleRow] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)
    bans: list[EndingRow] = field(default_factory=list)
    leases: list[EndingRow] = field(default_factory=list)
    holds: list[EndingRow] = field(default_factory=list)
    days: list[tuple[date, str, int, int]] = field(default_factory=list)
    for_all: OverrideRow | None = None
    """The override of all rules, if one is in force."""
    refused: list[RefusedRow] = field(default_factory=list)


_FOR_RULES = ("raise", "exempt", "block", "reset")
"""The actions on a rule, or on all rules."""


def build_page(subject: str, who: Any) -> SubjectPage:
    """Return the page of a subject with the buttons that a user may press."""
    now = timezone.now()
    rows = [OverrideRow(row, now) for row in overrides_of(subject).select_related("created_by")[:MAX_ROWS]]
    ruled = {row.row.rule for row in rows}
    allowed = _allowing(subject, who, ruled)
    for row in rows:
        row.buttons = allowed(["clear"], row.row.rule)
    page = SubjectPage(
        subject,
        user_of(subject),
        rows,
        are_pending([subject], overrides_of(subject).db),
        allowed(_FOR_RULES, ALL_RULES),
        log_entries(subject, [row.row.pk for row in rows]),
    )
    try:
        _fill(page, load_snapshot(subject), allowed)
        page.refused = [_refused(event) for event in recent_refusals(subject)]
    except QuotaError as error:
        page.trouble = str(error)
    return page


Allowing = Callable[[Iterable[str], str], list[Button]]


def _allowing(subject: str, who: Any, ruled: set[str]) -> Allowing:
    def allowed(actions: Iterable[str], rule: str, rate: str = "") -> list[Button]:
        target = ActionTarget(subject, rule)
        chosen = [ACTIONS[name] for name in actions]
        return [Button(action, rule, rate) for action in chosen if action.is_allowed(who, target, ruled)]

    return allowed


def _fill(page: SubjectPage, snapshot: SubjectSnapshot, allowed: Any) -> None:
    by_rule = {row.row.rule: row for row in page.overrides}
    if snapshot.override_for(ALL_RULES) is not None:
        page.for_all = by_rule.get(ALL_RULES)
    for name, limits in groupby(snapshot.limits, key=lambda limit: limit.rule):
        shown = [LimitRow(limit, snapshot.now) for limit in limits]
        refusing = [row for row in shown if row.status.refuses]
        page.refusing += refusing
        page.is_refused |= bool(refusing) and {row.status.tier for row in refusing} == {
            row.status.tier for row in shown
        }
        force = snapshot.override_for(name)
        is_own = force is not None and force[0] == name and name in by_rule
        reasons = [by_rule[name]] if is_own else []
        rate = double_rates([row.status for row in shown])
        buttons = allowed(_FOR_RULES, name, rate)
        rule = RuleRow(name, shown, buttons, reasons)
        (page.used if rule.is_used else page.unused).append(rule)
    page.unread = snapshot.unread
    page.bans = [_ban(ban, snapshot.now, allowed) for ban in snapshot.bans]
    page.leases = [row for held in snapshot.leases for row in _held(held, snapshot.now)]
    page.holds = [row for held in snapshot.holds for row in _held(held, snapshot.now)]
    page.days = [
        (day, rule, count.allowed, count.refused)
        for day, rules in sorted(snapshot.days.items(), reverse=True)
        for rule, count in sorted(rules.items())
    ][:MAX_ROWS]
    if snapshot.bans:
        page.buttons += allowed(["lift"], ALL_RULES)


def _ban(ban: BanStatus, now: int, allowed: Any) -> EndingRow:
    ends = moment_of(now, ban.ends_in)
    return EndingRow(
        ban.rule, ends, span_in_words(ban.ends_in), ordinal(ban.level), tuple(allowed(["lift"], ban.field))
    )


def _refused(event: Event) -> RefusedRow:
    until = moment_of(event.until) if event.until else None
    what = KIND_NAMES[event.kind]
    return RefusedRow(event.rule, what, event.capacity, moment_of(event.at), until)


def _held(held: HeldStatus, now: int) -> Iterable[EndingRow]:
    for ends_in in held.ends_in:
        yield EndingRow(held.name, moment_of(now, ends_in), span_in_words(ends_in))
    rest = held.number - len(held.ends_in)
    if rest > 0:
        last = held.ends_in[-1]
        yield EndingRow(held.name, moment_of(now, last), span_in_words(last), _("and %d more, later") % rest)


def double_rates(limits: Iterable[LimitStatus]) -> str:
    """Return twice the rates of a rule; empty if the tiers have different rates."""
    shown = list(limits)
    if len({limit.tier for limit in shown}) > 1:
        return ""
    try:
        rates = [rate for limit in shown for rate in parse_rates(limit.rate)]
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
