"""The admin page of bans: those in force, found by subject and rule, lifting many at once, and what began lately.

You search by POST, as on the page of a subject, so a plain value never becomes part of a URL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_quota.admin.admin_base import (
    MAX_NAMES,
    ReadOnlyAdmin,
    admin_url,
    may_see_users,
    names_among,
    rule_url,
    subject_url,
)
from django_quota.admin.admin_wording import moment_of
from django_quota.admin.subject_actions import ACTIONS
from django_quota.admin.subject_page import log_actions
from django_quota.admin.subject_views import MAX_URL, is_name
from django_quota.conf import current
from django_quota.core.errors import QuotaError, RuleError
from django_quota.core.keys import field
from django_quota.core.rules import Rule
from django_quota.features.bans import lift_bans
from django_quota.features.event_stream import Event
from django_quota.limiting.known_rules import known_rules
from django_quota.limiting.registry import get_limiter
from django_quota.models import Ban
from django_quota.operating.activity import ActiveBan
from django_quota.operating.bans import MOST, BanFilter, Fate, bans_lately, fates, find_bans, read_bans
from django_quota.operating.lookup import MAX_USERS, find_subjects
from django_quota.requests.subjects import named_subject

PER_PAGE = 50
"""Bans on a page, and bans that began lately."""

MAX_LIFTED = 1_000
"""Bans that one action lifts."""

MAX_NAMED = 20
"""Bans that the confirmation names."""

FATES: Mapping[Fate, Promise] = {
    "in force": gettext_lazy("in force"),
    "ended": gettext_lazy("ended"),
    "lifted": gettext_lazy("lifted"),
    "replaced": gettext_lazy("replaced by a newer one"),
}

LIFT = ACTIONS["lift"]


class BanRow(NamedTuple):
    """A ban in force, or one that began lately."""

    subject: str | None
    rule: str | None
    since: datetime | None
    """None if the events do not tell."""
    until: datetime
    level: int
    """The number of the ban in a row; 0 if it is unknown."""
    fate: str | Promise = ""
    value: str = ""
    """What the form sends to lift it: its subject and rule, as JSON. Empty if a name is too long to be known."""


@admin.register(Ban)
class BanAdmin(ReadOnlyAdmin):
    """The list of bans, and the confirmation before many are lifted."""

    def get_urls(self) -> list[URLPattern]:
        view, name = self.admin_site.admin_view, "django_quota_ban"
        return [
            path("", view(self.changelist_view), name=f"{name}_changelist"),
            path("lift/", view(self.lift_view), name=f"{name}_lift"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the bans; a POST searches for a subject."""
        self._check_view(request)
        trouble, wanted = "", BanFilter()
        try:
            wanted = _searched(request) if request.method == "POST" else _filter_of(request.GET)
        except RuleError as error:  # the typed text may hold a plain value, so it is not shown again
            trouble = str(error)
        url = self._url(wanted)
        if request.method == "POST" and not trouble and len(url) <= MAX_URL:
            return HttpResponseRedirect(url)
        context = {"title": _("Bans"), "wanted": wanted, "trouble": trouble, "MOST": MOST, **(extra_context or {})}
        try:
            context |= self._found(request, wanted)
        except QuotaError as error:
            context["problem"] = str(error)
        return self._show(request, "list", context)

    def lift_view(self, request: HttpRequest) -> HttpResponse:
        """Ask to confirm that these bans end, or end them when it is confirmed."""
        self._check_view(request)
        if not LIFT.has_permission(request.user):
            raise PermissionDenied
        try:
            wanted = _filter_of(request.POST)
            chosen = _chosen(request, wanted)
            if not chosen:
                self.message_user(request, _("Select the bans to lift."), messages.WARNING)
            elif len(chosen) > MAX_LIFTED:
                words = _("You can lift at most %d bans at once. Filter the list first.") % MAX_LIFTED
                self.message_user(request, words, messages.ERROR)
            elif "confirmed" in request.POST:
                self._lift(request, chosen)
            else:
                return self._show(request, "confirm", self._question(request, wanted, chosen))
        except QuotaError as error:
            wanted = BanFilter()
            self.message_user(request, str(error), messages.ERROR)
        return HttpResponseRedirect(self._url(wanted))

    def _check_view(self, request: HttpRequest) -> None:
        request.current_app = self.admin_site.name
        if not self.has_view_permission(request):
            raise PermissionDenied

    def _url(self, wanted: BanFilter) -> str:
        return f"{admin_url(self.admin_site.name, 'ban_changelist')}{_query(wanted)}"

    def _show(self, request: HttpRequest, template: str, context: dict[str, Any]) -> TemplateResponse:
        site = self.admin_site
        given = {
            **site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "subject_url": subject_url(request, site.name),
            "rule_url": rule_url(request, site.name),
            "list_url": admin_url(site.name, "ban_changelist"),
            **context,
        }
        return TemplateResponse(request, f"admin/django_quota/ban/{template}.html", given)

    def _found(self, request: HttpRequest, wanted: BanFilter) -> dict[str, Any]:
        """Return the context of the list. Raises `StoreUnavailable`."""
        found = find_bans(wanted)
        page = Paginator(found.bans, PER_PAGE).get_page(request.GET.get("p"))
        lately = bans_lately(wanted)
        newest = lately.events[:PER_PAGE]
        shown = [*(ban.subject for ban in page), *(event.subject for event in newest)]
        now, in_force = read_bans(shown)
        began = {(event.subject, event.rule, event.until): event.at for event in lately.events}
        rows = []
        for ban in page:
            status = in_force.get((ban.subject, ban.rule))
            rows.append(_row(ban, began.get((ban.subject, ban.rule, ban.until)), status.level if status else 0))
        history = [_of_event(event, fate) for event, fate in zip(newest, fates(newest, now, in_force), strict=True)]
        with_ban = [name for name, rule in known_rules().items() if isinstance(rule, Rule) and rule.ban]
        store = get_limiter().store
        return {
            "page": page,
            "rows": rows,
            "history": history,
            "since": moment_of(lately.since) if lately.since else None,
            "total": found.total,
            "rules": sorted({*with_ban, *found.rules[:MAX_NAMES], *filter(None, [wanted.rule])}),
            "names": names_among(request, [*wanted.subjects, *shown]),
            "query": _query(wanted) or "?",
            "may_lift": LIFT.has_permission(request.user),
            "is_memory": not store.is_shared,
            "has_events": bool(current().events),
            "is_enabled": current().enabled,
        }

    def _question(self, request: HttpRequest, wanted: BanFilter, chosen: list[tuple[str, str]]) -> dict[str, Any]:
        return {
            "title": _("Are you sure?"),
            "subtitle": LIFT.label,
            "number": len(chosen),
            "chosen": chosen[:MAX_NAMED],
            "more": max(0, len(chosen) - MAX_NAMED),
            "bans": json.dumps(chosen),
            "wanted": wanted,
            "names": names_among(request, (each[0] for each in chosen[:MAX_NAMED])),
            "back": self._url(wanted),
        }

    def _lift(self, request: HttpRequest, chosen: Iterable[tuple[str, str]]) -> None:
        """End these bans, and log for each subject how many were in force."""
        by_subject: dict[str, list[str]] = {}
        for subject, rule in chosen:
            by_subject.setdefault(subject, []).append(field(rule))
        lifted, problem = {}, ""
        try:
            for subject, fields in by_subject.items():
                lifted[subject] = lift_bans(subject, fields)
        except QuotaError as error:
            problem = str(error)
        done = {subject: f"{LIFT.label}: {_in_words(count)}" for subject, count in lifted.items() if count}
        log_actions(done, request.user)
        if done:
            self.message_user(request, _in_words(sum(lifted.values())), messages.SUCCESS)
        elif not problem:
            self.message_user(request, _("None of these bans was in force any more."), messages.WARNING)
        if problem:
            self.message_user(request, problem, messages.ERROR)


def _in_words(lifted: int) -> str:
    return ngettext("%d ban was lifted.", "%d bans were lifted.", lifted) % lifted


def _row(ban: ActiveBan, since: int | None, level: int) -> BanRow:
    value = "" if ban.subject is None or ban.rule is None else json.dumps([ban.subject, ban.rule])
    return BanRow(ban.subject, ban.rule, moment_of(since) if since else None, moment_of(ban.until), level, "", value)


def _of_event(event: Event, fate: Fate) -> BanRow:
    return BanRow(event.subject, event.rule, moment_of(event.at), moment_of(event.until), event.level, FATES[fate])


# --- what is asked for ------------------------------------------------------------------------------------------------


def _searched(request: HttpRequest) -> BanFilter:
    """Return the filter of the search form. Raises `RuleError` for a text that cannot be a subject."""
    text, rule = request.POST.get("find", "").strip(), _rule_of(request.POST)
    found = find_subjects(text, with_users=may_see_users(request)) if text else []
    return BanFilter([match.subject for match in found], rule)


def _filter_of(given: QueryDict) -> BanFilter:
    """Return the filter of a URL, or of a form. Raises `RuleError`."""
    return BanFilter([named_subject(subject) for subject in given.getlist("subject")[:MAX_USERS]], _rule_of(given))


def _rule_of(given: QueryDict) -> str:
    rule = given.get("rule", "")
    return rule if is_name(rule) else ""


def _query(wanted: BanFilter) -> str:
    pairs = [*(("subject", subject) for subject in wanted.subjects), *([("rule", wanted.rule)] if wanted.rule else [])]
    return f"?{urlencode(pairs, errors='replace')}" if pairs else ""


def _chosen(request: HttpRequest, wanted: BanFilter) -> list[tuple[str, str]]:
    """Return the subjects and rules of the bans to lift: all that the filter means, or those of the form.

    Raises `RuleError`, and `StoreUnavailable`.
    """
    if "all" in request.POST:
        bans = find_bans(wanted).bans
        return [(ban.subject, ban.rule) for ban in bans if ban.subject is not None and ban.rule is not None]
    try:
        pairs = json.loads(request.POST.get("bans") or f"[{','.join(request.POST.getlist('ban'))}]")
        return [(named_subject(subject), rule) for subject, rule in pairs if is_name(subject) and is_name(rule)]
    except (ValueError, TypeError, RecursionError) as error:
        raise RuleError(_("The request names no ban.")) from error
