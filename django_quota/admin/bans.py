"""The admin page of bans: those in force, by subject and rule; those that began recently; and lifting many at once.

The search is a POST, as on the page of a subject, so a plain value never becomes part of a URL.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_quota.admin.base import ReadOnlyAdmin, log_actions, may_see_users, names_among
from django_quota.admin.subject_actions import LiftBan, lifted_in_words
from django_quota.conf import current
from django_quota.core.errors import QuotaError, RuleError
from django_quota.core.keys import field
from django_quota.core.rules import Rule
from django_quota.error_texts import error_in_words
from django_quota.features.bans.calls import lift_bans
from django_quota.features.bans.lists import MOST, BanFilter, fates, find_bans, read_bans, recent_bans
from django_quota.limiting.known_rules import known_rules
from django_quota.limiting.registry import get_limiter
from django_quota.operating.health import nothing_is_limited
from django_quota.operating.lookup import MAX_USERS, find_subjects
from django_quota.subjects.subject import named_subject

PER_PAGE = 50
"""Rows on a page of bans, and in the list of bans that began recently."""

MAX_LIFTED = 1_000
"""The most bans that one action lifts."""

BANS_NAMED = 20
"""The most bans that the confirmation names."""

FATES = {
    "in force": gettext_lazy("in force"),
    "ended": gettext_lazy("ended"),
    "lifted": gettext_lazy("lifted"),
    "replaced": gettext_lazy("replaced by a newer one"),
}


class BanPages(ReadOnlyAdmin):
    """The list of bans, and the confirmation before many are lifted."""

    def get_urls(self) -> list[URLPattern]:
        view, name = self.admin_site.admin_view, "django_quota_ban"
        return [
            path("", view(self.changelist_view), name=f"{name}_changelist"),
            path("lift/", view(self.lift_view), name=f"{name}_lift"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the bans; a POST searches for a subject."""
        self.check_view(request)
        context: dict[str, Any] = {"wanted": BanFilter(), "MOST": MOST}
        try:
            if request.method == "POST":
                return self._list(_searched(request))
            context["wanted"] = _filter_of(request.GET)
        except RuleError as error:  # the input may hold a plain value, so it is not shown again
            context["trouble"] = error_in_words(error)
        try:
            context |= _found(request, context["wanted"])
        except QuotaError as error:
            context["problem"] = error_in_words(error)
        return self.show(request, "ban/list", _("Bans"), **context)

    def lift_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for confirmation; once that is given, lift the bans."""
        self.check_view(request)
        if not LiftBan.is_allowed(request.user):
            raise PermissionDenied
        wanted = BanFilter()
        try:
            wanted = _filter_of(request.POST)
            chosen = _chosen(request, wanted)
        except QuotaError as error:
            self.message_user(request, error_in_words(error), messages.ERROR)
            return self._list(wanted)
        if not chosen:
            self.message_user(request, _("Select the bans to lift."), messages.WARNING)
        elif len(chosen) > MAX_LIFTED:
            words = _("You can lift at most %d bans at once. Filter the list first.") % MAX_LIFTED
            self.message_user(request, words, messages.ERROR)
        elif "confirmed" in request.POST:
            self._lift(request, chosen)
        else:
            context = {
                "subtitle": LiftBan.label,
                "number": len(chosen),
                "chosen": chosen[:BANS_NAMED],
                "more": max(0, len(chosen) - BANS_NAMED),
                "bans": json.dumps(chosen),
                "wanted": wanted,
                "names": names_among(request, (subject for subject, _rule in chosen[:BANS_NAMED])),
                "back": self._list(wanted).url,
            }
            return self.show(request, "ban/confirm", _("Are you sure?"), **context)
        return self._list(wanted)

    def _list(self, wanted: BanFilter) -> HttpResponseRedirect:
        return HttpResponseRedirect(self.url("changelist") + _query(wanted))

    def _lift(self, request: HttpRequest, chosen: list[tuple[str, str]]) -> None:
        """End these bans, and log for each subject how many were in force."""
        by_subject: dict[str, list[str]] = {}
        for subject, rule in chosen:
            by_subject.setdefault(subject, []).append(field(rule))
        lifted: dict[str, int] = {}
        try:
            for subject, fields in by_subject.items():
                lifted[subject] = lift_bans(fields, subject)
        except QuotaError as error:
            self.message_user(request, error_in_words(error), messages.ERROR)
        else:
            if not any(lifted.values()):
                self.message_user(request, _("None of these bans was in force any more."), messages.WARNING)
        done = {subject: f"{LiftBan.label}: {lifted_in_words(count)}" for subject, count in lifted.items() if count}
        log_actions(done, request.user)
        if done:
            self.message_user(request, lifted_in_words(sum(lifted.values())), messages.SUCCESS)


def _found(request: HttpRequest, wanted: BanFilter) -> dict[str, Any]:
    """Return the context of the list. Raises `StoreUnavailable`."""
    found, recent = find_bans(wanted), recent_bans(wanted)
    page = Paginator(found.bans, PER_PAGE).get_page(request.GET.get("p"))
    newest = recent.events[:PER_PAGE]
    shown = [*(ban.subject for ban in page), *(event.subject for event in newest)]
    now, in_force = read_bans(shown)
    began = {(event.subject, event.rule, event.until): event.at for event in recent.events}
    rows = []
    for ban in page:
        status = in_force.get((ban.subject, ban.rule))
        value = "" if ban.subject is None or ban.rule is None else json.dumps([ban.subject, ban.rule])
        rows.append((ban, began.get((ban.subject, ban.rule, ban.until)), status.level if status else 0, value))
    with_ban = [name for name, rule in known_rules().items() if isinstance(rule, Rule) and rule.ban]
    return {
        "page": page,
        "rows": rows,
        "history": [(each, FATES[fate]) for each, fate in zip(newest, fates(newest, now, in_force), strict=True)],
        "since": recent.since,
        "total": found.total,
        "rules": sorted({*with_ban, *found.rules, wanted.rule} - {""}),
        "names": names_among(request, [*wanted.subjects, *shown]),
        "query": _query(wanted) or "?",
        "may_lift": LiftBan.is_allowed(request.user),
        "is_memory": not get_limiter().store.is_shared,
        "has_events": bool(current().events),
        "nothing_is_limited": nothing_is_limited(),
    }


def _searched(request: HttpRequest) -> BanFilter:
    """Return the filter of the search form. Raises `RuleError` for a string that cannot be a subject."""
    text = request.POST.get("find", "").strip()
    found = find_subjects(text, with_users=may_see_users(request)) if text else []
    return BanFilter([match.subject for match in found], request.POST.get("rule", ""))


def _filter_of(given: QueryDict) -> BanFilter:
    """Return the filter of a URL, or of a form. Raises `RuleError`."""
    subjects = given.getlist("subject")[:MAX_USERS]
    return BanFilter([named_subject(subject) for subject in subjects], given.get("rule", ""))


def _query(wanted: BanFilter) -> str:
    given = {"subject": wanted.subjects, **({"rule": wanted.rule} if wanted.rule else {})}
    query = urlencode(given, doseq=True, errors="replace")
    return f"?{query}" if query else ""


def _chosen(request: HttpRequest, wanted: BanFilter) -> list[tuple[str, str]]:
    """Return the subject and rule of each ban to lift: all that match the filter, or the selected ones.

    Raises `RuleError`, and `StoreUnavailable`.
    """
    if "all" in request.POST:
        bans = find_bans(wanted).bans
        return [(ban.subject, ban.rule) for ban in bans if ban.subject is not None and ban.rule is not None]
    try:
        pairs = json.loads(request.POST.get("bans") or f"[{','.join(request.POST.getlist('ban'))}]")
        return [(named_subject(subject), str(rule)) for subject, rule in pairs]
    except (ValueError, TypeError, RecursionError) as error:
        raise RuleError(_("The request names no ban.")) from error
