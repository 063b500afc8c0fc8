"""What the page of a subject shows, gathered: its account, its overrides, and what was done to it. No HTML, no request.

The rows of overrides are read first, so that they show where the store does not answer.
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

from django_quota.account import Account, BanStatus, account_of
from django_quota.admin.finding import user_of
from django_quota.admin.subject_acts import ACTS, Act, Target, rows_of
from django_quota.admin.wording import (
    KIND_NAMES,
    STATES,
    LimitRow,
    mode_in_words,
    moment_of,
    ordinal,
    span_in_words,
    state_of,
)
from django_quota.events import Event
from django_quota.exceptions import QuotaError, RateError
from django_quota.keys import escape
from django_quota.models import QuotaOverride, Subject
from django_quota.override_sync import is_pending
from django_quota.overrides import ALL_RULES
from django_quota.rates import MAX_COUNT, Rate, parse_rates
from django_quota.refusals import refused_lately
from django_quota.status import Held, LimitStatus

MOST_ROWS = 100
"""Overrides of one subject, and counts of its days, that are shown; its page of usage has all days."""

MOST_ENTRIES = 10
"""Entries of the log that are shown."""

DIGESTED = "~"
"""What the digest of a very long subject begins with; no other escaped part does."""


@dataclass(frozen=True, slots=True)
class Button:
    """An act that may be done here."""

    act: Act
    rule: str
    rate: str = ""
    """What a raise begins with."""

    @property
    def value(self) -> str:
        """What is sent with it."""
        return json.dumps([self.rule, self.rate]) if self.rate else json.dumps([self.rule])


@dataclass(slots=True)
class RuleRow:
    """A rule and its limits."""

    name: str
    limits: list[LimitRow]
    buttons: list[Button]
    reasons: list[OverrideRow]
    """The override of its own that stands above it, with its row."""

    @property
    def is_used(self) -> bool:
        """Whether anything of it is used, or stands above it."""
        return any(limit.status.used or limit.status.why for limit in self.limits)


@dataclass(slots=True)
class OverrideRow:
    """An override and what may be done with it."""

    row: QuotaOverride
    now: datetime
    buttons: list[Button] = field(default_factory=list)

    @property
    def what(self) -> str:
        """Its rate, or its mode."""
        return mode_in_words(self.row)

    @property
    def state(self) -> str | Promise:
        """How it stands now."""
        return STATES[state_of(self.row, self.now)]

    @property
    def is_for_all(self) -> bool:
        """Whether it holds for all rules."""
        return self.row.rule == ALL_RULES


@dataclass(frozen=True, slots=True)
class EndingRow:
    """A ban, a lease or a hold, and when it ends."""

    name: str
    ends: datetime
    words: str
    note: str = ""
    buttons: tuple[Button, ...] = ()


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A refusal or a ban that the event stream tells of."""

    rule: str | None
    """None where the name is too long to be kept."""
    what: str | Promise
    capacity: int
    """The limit."""
    at: datetime
    until: datetime | None
    """None where no time helps."""


@dataclass(slots=True)
class Page:
    """What is shown of a subject."""

    subject: str
    user: Any
    overrides: list[OverrideRow]
    is_pending: bool
    """Whether a change was saved that Redis has not been told of."""
    buttons: list[Button]
    entries: list[LogEntry]
    trouble: str = ""
    """Why the store did not answer; empty where it did."""
    used: list[RuleRow] = field(default_factory=list)
    unused: list[RuleRow] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)
    bans: list[EndingRow] = field(default_factory=list)
    leases: list[EndingRow] = field(default_factory=list)
    holds: list[EndingRow] = field(default_factory=list)
    days: list[tuple[date, str, int, int]] = field(default_factory=list)
    for_all: OverrideRow | None = None
    """The override that stands above all rules now, but those with one of their own."""
    refused: list[RefusedRow] = field(default_factory=list)


_FOR_RULES = ("raise", "exempt", "block", "reset")
"""The acts on a rule, or on all of them."""


def page_of(subject: str, who: Any) -> Page:
    """Return what a user may see, and do, of a subject."""
    now = timezone.now()
    rows = [OverrideRow(row, now) for row in rows_of(subject).select_related("created_by")[:MOST_ROWS]]
    ruled = {row.row.rule for row in rows}
    allowed = _allowing(subject, who, ruled)
    for row in rows:
        row.buttons = allowed(["clear"], row.row.rule)
    page = Page(
        subject,
        user_of(subject),
        rows,
        is_pending(subject, rows_of(subject).db),
        allowed(_FOR_RULES, ALL_RULES),
        entries_of(subject, [row.row.pk for row in rows]),
    )
    try:
        _fill(page, account_of(subject), allowed)
        page.refused = [_refused(event) for event in refused_lately(subject)]
    except QuotaError as error:
        page.trouble = str(error)
    return page


Allowing = Callable[[Iterable[str], str], list[Button]]


def _allowing(subject: str, who: Any, ruled: set[str]) -> Allowing:
    def allowed(acts: Iterable[str], rule: str, rate: str = "") -> list[Button]:
        target = Target(subject, rule)
        chosen = [ACTS[name] for name in acts]
        return [Button(act, rule, rate) for act in chosen if act.is_allowed(who, target, ruled)]

    return allowed


def _fill(page: Page, account: Account, allowed: Any) -> None:
    by_rule = {row.row.rule: row for row in page.overrides}
    if account.in_force(ALL_RULES) is not None:
        page.for_all = by_rule.get(ALL_RULES)
    for name, limits in groupby(account.limits, key=lambda limit: limit.rule):
        shown = [LimitRow(limit, account.now) for limit in limits]
        force = account.in_force(name)
        is_own = force is not None and force[0] == name and name in by_rule
        reasons = [by_rule[name]] if is_own else []
        rate = doubled([row.status for row in shown])
        buttons = allowed(_FOR_RULES, name, rate)
        rule = RuleRow(name, shown, buttons, reasons)
        (page.used if rule.is_used else page.unused).append(rule)
    page.unread = account.unread
    page.bans = [_ban(ban, account.now, allowed) for ban in account.bans]
    page.leases = [row for held in account.leases for row in _held(held, account.now)]
    page.holds = [row for held in account.holds for row in _held(held, account.now)]
    page.days = [
        (day, rule, count.allowed, count.refused)
        for day, rules in sorted(account.days.items(), reverse=True)
        for rule, count in sorted(rules.items())
    ][:MOST_ROWS]
    if account.bans:
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


def _held(held: Held, now: int) -> Iterable[EndingRow]:
    for ends_in in held.ends_in:
        yield EndingRow(held.name, moment_of(now, ends_in), span_in_words(ends_in))
    rest = held.number - len(held.ends_in)
    if rest > 0:
        last = held.ends_in[-1]
        yield EndingRow(held.name, moment_of(now, last), span_in_words(last), _("and %d more, later") % rest)


def doubled(limits: Iterable[LimitStatus]) -> str:
    """Return twice the rates of a rule's limits; empty where its tiers differ."""
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


def log_id(subject: str) -> str:
    """Return what a subject is called in the log: itself, or a digest where it is very long."""
    escaped = escape(subject)
    return escaped if escaped.startswith(DIGESTED) else subject


def note(done: Mapping[str, str], user: Any) -> None:
    """Write into the log what was done to subjects."""
    about = _content_type(Subject)
    LogEntry.objects.bulk_create(
        LogEntry(
            user_id=user.pk,
            content_type=about,
            object_id=log_id(subject),
            object_repr=subject[:200],
            action_flag=CHANGE,
            change_message=what,
        )
        for subject, what in done.items()
    )


def entries_of(subject: str, overrides: Iterable[int]) -> list[LogEntry]:
    """Return the last entries about a subject, and about its overrides."""
    about = Q(content_type=_content_type(Subject), object_id=log_id(subject))
    keys = [str(key) for key in overrides]
    if keys:
        about |= Q(content_type=_content_type(QuotaOverride), object_id__in=keys)
    return list(LogEntry.objects.filter(about).select_related("user").order_by("-action_time", "-pk")[:MOST_ENTRIES])


def _content_type(model: Any) -> ContentType:
    return ContentType.objects.get_for_model(model, for_concrete_model=False)
