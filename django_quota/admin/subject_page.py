"""The admin page of a subject: its limits, why and until when, its overrides, and the actions on it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from django_quota.admin.base import LOCKOUT, ReadOnlyAdmin, hidden_names_hint, lockout_of, may_see_users, names_among
from django_quota.admin.subject_actions import ACTIONS, run_action
from django_quota.admin.wording import STATES, WHYS, ban_in_words, override_state, refused_until, subject_in_words
from django_quota.conf import current, limits_logins
from django_quota.core import clock
from django_quota.core.errors import QuotaError, RuleError
from django_quota.core.overrides import ALL_RULES
from django_quota.error_texts import error_in_words
from django_quota.features.events import EVENTS_A_PAGE, Event, EventFilter, event_log
from django_quota.limiting.override_rows import write_database
from django_quota.limiting.overrides import overrides
from django_quota.limiting.registry import get_limiter
from django_quota.models import QuotaOverride, Subject
from django_quota.operating.health import nothing_is_limited
from django_quota.operating.inspection import (
    LimitStatus,
    SubjectSnapshot,
    bans_begun,
    counted_as,
    load_snapshot,
    longer_subjects,
    recent_refusals,
    used_rules,
)
from django_quota.operating.lookup import (
    login_names,
    networks_around,
    related_subjects,
    subject_hint,
    user_of,
)
from django_quota.subjects.subject import is_bare, named_subject

OVERRIDES_SHOWN = 100
"""Overrides on the page."""

LAST_REFUSED = 20
"""Subjects refused last, below the empty search."""

LOG_ENTRIES_SHOWN = 10
"""Log entries on the page."""

AnswerLine = tuple[str, str | None]
"""What refuses the subject, until when, and the rule of the ban that can be lifted."""


class SubjectPages(ReadOnlyAdmin):
    """The search form and the page of one subject. A subject has no row, and the actions have their own permissions."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.action_view)
        return [path("action/<slug:name>/", view, name="django_quota_subject_action"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the search form, or the page of a subject."""
        self.check_view(request)
        if request.method == "POST":
            return self.find(request, "changelist")
        subject, trouble = request.GET.get("subject", ""), ""
        if subject:
            try:
                return self._page(request, named_subject(subject))
            except RuleError as error:
                trouble = error_in_words(error)
        refused = [] if trouble else _refused_last()
        names = names_among(request, (event.subject for event in refused)) if refused else {}
        context = {"trouble": trouble, "asked": subject, "refused": refused, "names": names}
        return self.show(request, "subject/find", _("Find a subject"), **context)

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        """Redirect from a log entry to the page of its subject, which shows the history."""
        self.check_view(request)
        return HttpResponseRedirect(self.url("changelist", subject=unquote(object_id)))

    history_view = change_view

    def _page(self, request: HttpRequest, subject: str) -> HttpResponse:
        sees_users = may_see_users(request)
        user = user_of(subject) if sees_users else None
        own = login_names([user]) if user is not None and limits_logins() else {}
        related, related_trouble = _related_to(subject, user)
        page = build_page(subject, own, related)
        users = (event.user for event in page["refused"])
        names = names_among(request, [subject, *related, *users, *(longer for longer, _ in page["longer"])])
        words = subject_in_words(subject, names)
        hint = "" if page["is_met"] else subject_hint(subject, with_users=sees_users)
        if hint:
            hint = f"{hidden_names_hint(subject, sees_users=sees_users)} {hint}".strip()
        allowed = {
            name: (name, action.label, action.destructive)
            for name, action in ACTIONS.items()
            if action.is_allowed(request.user)
        }
        return self.show(
            request,
            "subject/page",
            _("Subject"),
            subtitle=Truncator(words).chars(80),
            words=words,
            names=names,
            user_found=user,
            user_opts=user and user._meta,
            failed_logins=next(reversed(own), ""),
            related_trouble=related_trouble,
            events_query=urlencode([("subject", each) for each in (subject, *related)], errors="replace"),
            hint=hint,
            is_nobody=bool(hint) and is_bare(subject),
            has_others=bool(page["longer"] or (subject.startswith("user:") and limits_logins())),
            buttons=[allowed[name] for name in ("raise", "exempt", "reset", "block") if name in allowed],
            lift=[allowed["lift"]] if "lift" in allowed else [],
            clear=[allowed["clear"]] if "clear" in allowed else [],
            nothing_is_limited=nothing_is_limited(),
            **page,
        )

    def action_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """Ask to confirm an action, or run it when it is confirmed."""
        self.check_view(request)
        if name not in ACTIONS:
            raise Http404
        if not ACTIONS[name].is_allowed(request.user):
            raise PermissionDenied
        given = request.POST if request.method == "POST" else request.GET
        try:
            action = ACTIONS[name](given.get("on", "").replace("\0", ""), named_subject(given.get("subject", "")))
        except RuleError as error:
            self.message_user(request, error_in_words(error), messages.ERROR)
            return HttpResponseRedirect(self.url("changelist"))
        page = self.url("changelist", subject=action.subject)
        lockout = lockout_of(request, [(action.rule, action.subject)]) if action.blocks else ""
        form = action.form_for(request.POST if "confirmed" in request.POST else None)
        is_sure = not lockout or LOCKOUT in request.POST
        done = run_action(action, form, request.user, action.label) if is_sure and form.is_valid() else ""
        if done:
            self.message_user(request, done, messages.SUCCESS)
            return HttpResponseRedirect(page)
        whose = subject_in_words(action.subject, names_among(request, [action.subject]))
        context = {
            "subtitle": Truncator(whose).chars(80),
            "warning": action.warning(whose),
            "lockout": lockout,
            "back": page,
        }
        return self.show(request, "subject/confirm", action.label, action=action, form=form, name=name, **context)


def _refused_last() -> list[Event]:
    """Return the last refusal of each subject, the newest first; empty if the store does not answer."""
    try:
        wanted = EventFilter(kinds=["refused", "banned"])
        found = event_log(get_limiter().store, current().prefix).search(EVENTS_A_PAGE, wanted).events
    except QuotaError:  # a search needs no store
        return []
    last: dict[str, Event] = {}
    for event in found:  # the newest first
        if event.subject is not None:
            last.setdefault(event.subject, event)
    return list(last.values())[:LAST_REFUSED]


def build_page(subject: str, other_names: Collection[str] = (), related: Collection[str] = ()) -> dict[str, Any]:
    """Return the context of a subject's page.

    `other_names`: see `longer_subjects`. `related`: subjects that count beside it; see `_related_to`.
    If the store does not answer, `trouble` says why, and what only the store knows is missing.
    """
    try:
        found = list(map(load_snapshot, related))
        snapshot = load_snapshot(subject, known=used_rules(found))
        refused, trouble = recent_refusals(subject), ""
        as_others = [each for each in counted_as(subject, refused) if each not in related]
        longer = longer_subjects(subject, other_names, as_others)
        others = [_view_of(each, _rows_of(each)) for each in found]
    except QuotaError as error:
        overrides.refresh()
        snapshot = SubjectSnapshot(subject, clock.now(), table=overrides.table)
        refused, longer, trouble, others = [], (), error_in_words(error), []
    rows = _rows_of(snapshot)
    of_all, by_pk = snapshot.override_of(ALL_RULES), {row.pk: row for row in rows}
    view = _view_of(snapshot, rows)
    counts = any(each["used"] or each["unused"] for each in (view, *others))
    began = bans_begun(subject, refused)
    return {
        **view,
        "trouble": trouble,
        "is_refused": any(each["answers"] for each in (view, *others)) or any(refusal for _, refusal in longer),
        "may_be_refused": any(each["refusing"] for each in (view, *others)),
        "is_counted": counts or bool(snapshot.unread),
        "is_clear": counts,
        "related": others,
        "bans": [(ban, began.get(ban.rule)) for ban in snapshot.bans],
        "longer": [(each, refusal and _refused(snapshot.now, refusal)) for each, refusal in longer],
        "for_all": by_pk.get(of_all.pk) if of_all else None,
        "overrides": list(_overrides(snapshot, rows)),
        "refused": refused,
        "days": [(day, snapshot.days[day]) for day in sorted(snapshot.days, reverse=True)],
        "entries": _log_entries(subject, rows),
        "is_met": any(
            (
                view["used"],
                refused,
                rows,
                snapshot.bans,
                snapshot.leases,
                snapshot.counters,
                snapshot.days,
                longer,
                others,
            )
        ),
    }


def _rows_of(snapshot: SubjectSnapshot) -> list[QuotaOverride]:
    """Return the rows of the overrides of the subject, the most specific first; those that do not hold come last."""
    order = {override.pk: number for number, override in enumerate(snapshot.overrides)}
    database = QuotaOverride.objects.using(write_database())
    rows = list(database.filter(pk__in=list(order)[:OVERRIDES_SHOWN]))
    idle = database.filter(subject=snapshot.subject).exclude(pk__in=order)
    return [*sorted(rows, key=lambda row: order[row.pk]), *idle[: OVERRIDES_SHOWN - len(rows)]]


def _view_of(snapshot: SubjectSnapshot, rows: Iterable[QuotaOverride]) -> dict[str, Any]:
    """Return the limits of a subject, by rule, and what refuses it: the part of the page that related subjects have."""
    by_pk, rules = {row.pk: row for row in rows}, []
    for name, limits in groupby(snapshot.limits, key=lambda limit: limit.rule):
        override = snapshot.override_of(name)
        rules.append((name, list(limits), by_pk.get(override.pk) if override and override.rule == name else None))
    used = [rule for rule in rules if any(limit.used or limit.why for limit in rule[1])]
    return {
        "subject": snapshot.subject,
        "snapshot": snapshot,
        "answers": list(_answers(snapshot, {name: limits for name, limits, _ in rules})),
        "refusing": [limit for _, limits, _ in rules if not _is_sure(limits) for limit in limits if limit.refuses],
        "used": used,
        "unused": [rule for rule in rules if rule not in used],
    }


def _related_to(subject: str, user: Any) -> tuple[list[str], str]:
    """Return the networks of an address, and what `RELATED` has for a user, or why it fails."""
    try:
        return networks_around(subject) + (related_subjects(user) if user is not None else []), ""
    except QuotaError as error:
        return [], error_in_words(error)


def _refused(now: int, refusal: Any) -> str:
    return refused_until(refusal.retry_after, now, refusal.rule, str(WHYS.get(refusal.why, "")))


def _overrides(snapshot: SubjectSnapshot, rows: Iterable[QuotaOverride]) -> Iterator[tuple[QuotaOverride, Any, str]]:
    """Yield each override with its state, and the rules for which it holds because none is more specific."""
    named = {row.rule for row in rows}
    deciding = {name: override.pk for name in sorted(named) if (override := snapshot.override_of(name))}
    for row in rows:
        names, state = [name for name, pk in deciding.items() if pk == row.pk], override_state(row)
        if ALL_RULES in names:
            others = ", ".join(sorted(named.difference(names)))
            holds_for = _("all rules but %s") % others if others else _("all rules")
        elif state == "active" and not names:
            holds_for = _("no rule: another override takes precedence")
        else:
            holds_for = ", ".join(names)
        yield row, STATES[state], holds_for


def _answers(snapshot: SubjectSnapshot, rules: Mapping[str, list[LimitStatus]]) -> Iterator[AnswerLine]:
    """Yield what refuses the next hit for sure: bans, limits in every tier that the subject may be in, full slots."""
    bans = {ban.rule: ban for ban in snapshot.bans}
    refused_by: dict[tuple[float | None, str], list[str]] = {}
    for name, limits in rules.items():
        refused = [limit for limit in limits if limit.refuses]
        if not refused:
            bans.pop(name, None)  # under an exemption, or in a shadow
        elif name not in bans and _is_sure(limits):
            waits = [limit.retry_after for limit in refused]
            wait = None if None in waits else max(filter(None, waits), default=0.0)
            refused_by.setdefault((wait, str(WHYS.get(refused[0].why, ""))), []).append(name)
    for ban in bans.values():
        yield refused_until(ban.ends_in, snapshot.now, ban.rule, ban_in_words(ban.level)), ban.rule
    for (wait, why), names in refused_by.items():
        yield refused_until(wait, snapshot.now, ", ".join(names), why), None
    for held in snapshot.leases:
        if held.is_full:
            why = _("all slots are in use: %(number)d of %(limit)d; until then at most")
            words = why % {"number": held.number, "limit": held.limit}
            yield refused_until(held.ends_in[0], snapshot.now, held.name, words), None


def _is_sure(limits: Iterable[LimitStatus]) -> bool:
    """Return whether a rule refuses the next hit in every tier that the subject may be in."""
    refuses: dict[str, bool] = {}
    for limit in limits:
        refuses[limit.tier] = limit.refuses or refuses.get(limit.tier, False)
    return all(refuses.values())


def _log_entries(subject: str, rows: Iterable[QuotaOverride]) -> list[LogEntry]:
    """Return the newest log entries about a subject and its overrides."""
    types, keys = ContentType.objects, [str(row.pk) for row in rows if row.subject == subject]
    about = Q(content_type=types.get_for_model(Subject, for_concrete_model=False), object_id=subject)
    about |= Q(content_type=types.get_for_model(QuotaOverride), object_id__in=keys)
    newest = LogEntry.objects.filter(about).select_related("user").order_by("-action_time", "-pk")
    return list(newest[:LOG_ENTRIES_SHOWN])
