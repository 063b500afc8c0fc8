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

from django_quota.admin.admin_wording import (
    STATES,
    LimitRow,
    lines,
    moment_of,
    ordinal,
    refused_until,
    span_in_words,
    state_of,
)
from django_quota.admin.subject_actions import ACTIONS, Action, ActionTarget
from django_quota.core import clock
from django_quota.core.errors import QuotaError
from django_quota.core.overrides import ALL_RULES
from django_quota.limiting.override_rows import write_database
from django_quota.limiting.overrides import overrides
from django_quota.models import QuotaOverride, Subject
from django_quota.operating.inspection import HeldStatus, SubjectSnapshot, load_snapshot, recent_refusals
from django_quota.operating.longer_subjects import longer_subjects
from django_quota.operating.lookup import is_given_by, known_keys

MAX_ROWS = 100
"""Overrides and daily counts on the page. The usage page has all days."""

MAX_ENTRIES = 10
"""Log entries on the page."""


class Button(NamedTuple):
    """An action that the user may run from here."""

    action: Action
    value: str
    """The value that the form sends: the rule, as JSON."""


class OverrideRow(NamedTuple):
    """An override that concerns the subject, and the actions on it."""

    row: QuotaOverride
    state: str | Promise
    """Whether it is in force now, in words."""
    holds_for: str
    """For which rules it decides, in words."""
    buttons: list[Button]


class RuleRow(NamedTuple):
    """A rule and its limits."""

    name: str
    limits: list[LimitRow]
    buttons: list[Button]
    override: QuotaOverride | None
    """The override that holds for this rule, unless it holds for all rules."""


class EndingRow(NamedTuple):
    """A ban or a lease, and when it ends."""

    name: str
    ends: datetime
    words: str
    note: str = ""
    buttons: Iterable[Button] = ()


class Answer(NamedTuple):
    """What refuses the subject, and until when."""

    words: str
    buttons: Iterable[Button] = ()


_FOR_RULES = ("raise", "exempt", "reset", "block")
"""The actions on a rule, or on all rules, in the order of their buttons."""

Allowed = Callable[..., list[Button]]
"""Returns the buttons that a user may press: of the actions with these names, on a rule."""


def build_page(subject: str, who: Any, other_names: Collection[str] = ()) -> dict[str, Any]:
    """Return the context of a subject's page, with the buttons that a user may press.

    `other_names`: see `longer_subjects`. If the store does not answer, `trouble` says why, and what only the store
    knows is missing.
    """
    try:
        snapshot, refused, trouble = load_snapshot(subject), lines(recent_refusals(subject)), ""
        longer = longer_subjects(subject, other_names)
        _drop_others(snapshot)
    except QuotaError as error:
        overrides.refresh()
        snapshot = SubjectSnapshot(subject, clock.now(), table=overrides.table)
        refused, longer, trouble = [], [], str(error)
    order = {override.pk: number for number, override in enumerate(snapshot.overrides)}
    database = QuotaOverride.objects.using(write_database()).select_related("created_by")
    rows = list(database.filter(Q(subject=subject) | Q(pk__in=order))[:MAX_ROWS])
    rows.sort(key=lambda row: order.get(row.pk, len(order)))  # those that have ended last
    own = [row for row in rows if row.subject == subject]
    ruled = {row.rule for row in own}

    def allowed(actions: Iterable[str], rule: str) -> list[Button]:
        target, value = ActionTarget(subject, rule), json.dumps([rule])
        chosen = [ACTIONS[name] for name in actions]
        return [Button(action, value) for action in chosen if action.is_allowed(who, target, ruled)]

    page: dict[str, Any] = {
        "overrides": list(_overrides(snapshot, rows, allowed)),
        "buttons": allowed(_FOR_RULES, ALL_RULES),
        "entries": log_entries(subject, [row.pk for row in own]),
        "refused": refused,
        "now": snapshot.now,
        "longer": longer,
        "trouble": trouble,
    }
    if not trouble:
        page |= _rules(snapshot, {row.pk: row for row in rows}, allowed) | _others(snapshot, allowed)
        page["buttons"][:0] = allowed(["lift"], ALL_RULES) if snapshot.bans else []
    return page


def _drop_others(snapshot: SubjectSnapshot) -> None:
    """Drop the rules that can never concern the subject, unless they have counted something."""
    keys, subject = known_keys(), snapshot.subject
    is_given = {name: is_given_by(parts, subject) for name, parts in keys.items()}
    snapshot.limits = [limit for limit in snapshot.limits if limit.used or is_given.get(limit.rule, True)]
    snapshot.unread = {name: why for name, why in snapshot.unread.items() if is_given.get(name, True)}


def _overrides(snapshot: SubjectSnapshot, rows: Iterable[QuotaOverride], allowed: Allowed) -> Iterator[OverrideRow]:
    """Yield the overrides, each with the rules for which it holds because none is more specific."""
    named = {row.rule for row in rows} | {limit.rule for limit in snapshot.limits} | snapshot.unread.keys()
    deciding = {name: snapshot.override_of(name) for name in sorted(named)}
    for row in rows:
        names = [name for name, override in deciding.items() if override is not None and override.pk == row.pk]
        if ALL_RULES in names:
            others = sorted(name for name in named if name not in names)
            holds_for = _("all rules but %s") % ", ".join(others) if others else _("all rules")
        else:
            holds_for = ", ".join(names)
        state = state_of(row, timezone.now())
        if state == "active" and not names:
            holds_for = _("no rule: another override takes precedence")
        buttons = allowed(["clear"], row.rule) if row.subject == snapshot.subject else []
        yield OverrideRow(row, STATES[state], holds_for, buttons)


def _rules(snapshot: SubjectSnapshot, rows: Mapping[int, QuotaOverride], allowed: Allowed) -> dict[str, Any]:
    """Return the rules with their limits, which limits refuse the next hit, and the answers that say so."""
    refusing: list[LimitRow] = []
    of_all = snapshot.override_of(ALL_RULES)
    used: list[RuleRow] = []
    unused: list[RuleRow] = []
    bans = {ban.rule: ban for ban in snapshot.bans}
    refused_by: dict[tuple[float | None, str], list[str]] = {}
    for name, limits in groupby(snapshot.limits, key=lambda limit: limit.rule):
        shown = [LimitRow(limit, snapshot.now) for limit in limits]
        refused = [row for row in shown if row.status.refuses]
        refusing += refused
        if not refused:
            bans.pop(name, None)  # under an exemption, or in a shadow
        elif name not in bans and {row.status.tier for row in refused} == {row.status.tier for row in shown}:
            # A hit is refused for sure if it is in every tier that the subject may be in.
            waits = [row.status.retry_after for row in refused]
            wait = None if None in waits else max(filter(None, waits), default=0.0)
            refused_by.setdefault((wait, str(refused[0].why)), []).append(name)
        buttons = allowed(_FOR_RULES, name)
        override = snapshot.override_of(name)
        row = rows.get(override.pk) if override and override.rule == name else None
        rule = RuleRow(name, shown, buttons, row)
        (used if any(limit.status.used or limit.status.why for limit in shown) else unused).append(rule)
    answers = [
        Answer(
            refused_until(ban.ends_in, snapshot.now, ban.rule, _("ban %d") % ban.level), allowed(["lift"], ban.field)
        )
        for ban in bans.values()
    ]
    for (wait, why), names in refused_by.items():
        answers.append(Answer(refused_until(wait, snapshot.now, ", ".join(names), why)))
    for_all = rows.get(of_all.pk) if of_all else None
    return {"refusing": refusing, "answers": answers, "used": used, "unused": unused, "for_all": for_all}


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
        "days": days[:MAX_ROWS],
    }


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
