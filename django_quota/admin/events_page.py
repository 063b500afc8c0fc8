"""The admin page of events: who was refused, when and why, by user, subject, rule, path and time.

The search is a POST, as on the page of a subject, so a plain value never becomes part of a URL.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase, HttpResponseRedirect, QueryDict
from django.utils import timezone
from django.utils.translation import gettext as _

from django_quota.admin.base import PageAdmin, may_see_users, names_among
from django_quota.admin.wording import KIND_NAMES
from django_quota.conf import current
from django_quota.core.clock import SECOND
from django_quota.core.errors import QuotaError, RuleError
from django_quota.error_texts import error_in_words
from django_quota.features.events import SEARCHED, Event, EventFilter, Search, event_log, iso
from django_quota.features.usage.spreadsheets import csv_response
from django_quota.limiting.registry import get_limiter
from django_quota.operating.lookup import find_subjects, related_subjects

PER_EVENTS_PAGE = 100
"""Events on a page of the list."""

MAX_FILTER = 320
"""Characters of a filter that are used."""

FILTERS = ("kind", "rule", "path", "since", "until")
"""The filters of the form besides the subject."""

_COLUMNS = (
    *("at", "kind", "rule", "subject", "user", "method", "path", "cost", "capacity", "remaining", "until", "level"),
    "share",
)


def events_view(page: PageAdmin, request: HttpRequest) -> HttpResponseBase:
    """Show the events that a filter finds, the newest first, or send them as CSV; a POST sets the filter."""
    page.check_view(request)
    trouble = ""
    if request.method == "POST":
        try:
            return HttpResponseRedirect(f"{page.url('events')}?{_query_of(request)}")
        except RuleError as error:  # the input may hold a plain value, so it is not shown again
            trouble = error_in_words(error)
    asked = request.GET
    wanted, log = wanted_of(asked), event_log(get_limiter().store, current().prefix)
    before = asked.get("before", "")
    before = before if log.id_pattern.fullmatch(before) else ""
    is_csv = "csv" in asked
    try:
        search = log.search(SEARCHED if is_csv else PER_EVENTS_PAGE, wanted, before=before)
    except QuotaError as error:
        search, trouble = Search([], is_whole=True), error_in_words(error)
    if is_csv and not trouble:
        return csv_response(request, "events", _COLUMNS, map(_row, search.events))
    chosen = _without(asked, "before", "csv")
    names = names_among(request, [*wanted.subjects, *(part for e in search.events for part in (e.subject, e.user))])
    return page.show(
        request,
        "events",
        _("Events"),
        trouble=trouble,
        is_off=not current().events,
        events=search.events,
        searched=None if search.is_whole else SEARCHED,
        older=f"?{_encoded(chosen, before=search.last)}" if search.last else "",
        newest=f"?{_encoded(chosen)}" if before else "",
        csv=f"?{_encoded(_without(asked, 'csv'), csv='1')}",
        wanted=wanted._asdict(),  # a template would call the filter
        given={name: asked.get(name, "")[:MAX_FILTER] for name in FILTERS},
        is_filtered=bool(chosen),
        kinds_of_events=KIND_NAMES.items(),
        names=names,
    )


def wanted_of(asked: QueryDict) -> EventFilter:
    """Return which events the parameters of a URL ask for; wrong ones choose nothing."""
    text = {name: asked.get(name, "")[:MAX_FILTER] for name in ("part", *FILTERS)}
    return EventFilter(
        kinds=[text["kind"]] if text["kind"] in KIND_NAMES else (),
        rule=text["rule"],
        subjects=asked.getlist("subject")[:MAX_FILTER],
        subject=text["part"],
        path=text["path"],
        since=_moment_of(text["since"]),
        until=_moment_of(text["until"], ends=True),
    )


def _query_of(request: HttpRequest) -> str:
    """Return the parameters of the URL that shows what a form asks for.

    Raises `RuleError` for a string that cannot be a subject.
    """
    given = request.POST
    fields = {name: given.get(name, "").strip().replace("\0", "") for name in FILTERS}
    asked = [(name, value[:MAX_FILTER]) for name, value in fields.items() if value]
    if who := given.get("find", "").strip():
        found = find_subjects(who, with_users=may_see_users(request))
        asked += [("part" if each.is_guess else "subject", each.subject) for each in found]
        users = [each.user for each in found if each.user is not None]
        asked += [("subject", subject) for user in users for subject in related_subjects(user)]
    return urlencode(asked, errors="replace")


def _moment_of(text: str, *, ends: bool = False) -> int:
    """Return a local time of a form in microseconds; 0 if it is not one. `ends`: its whole minute is meant."""
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=_zone())
        return max(1, int(moment.astimezone(UTC).timestamp()) * SECOND + (60 * SECOND - 1 if ends else 0))
    return 0


def _zone() -> Any:
    return timezone.get_current_timezone() if settings.USE_TZ else timezone.get_default_timezone()


def _without(asked: QueryDict, *names: str) -> Mapping[str, list[str]]:
    return {name: values for name, values in asked.lists() if name not in names}


def _encoded(asked: Mapping[str, list[str]], **more: str) -> str:
    return urlencode({**asked, **more}, doseq=True, errors="replace")


def _row(event: Event) -> list[Any]:
    moments = {"at": iso(event.at), "until": iso(event.until) if event.until else ""}
    return [moments[name] if name in moments else getattr(event, name) for name in _COLUMNS]
