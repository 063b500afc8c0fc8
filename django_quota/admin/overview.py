"""The overview: what the limiter does now and has done today, who is refused or banned, and how the store is.

A script fetches the content of the open page again every few seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from time import perf_counter
from typing import Any

from django.db import router
from django.db.models import Max
from django.http import HttpRequest, HttpResponse
from django.template.defaultfilters import filesizeformat
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _

from django_quota.admin.base import ReadOnlyAdmin, names_among
from django_quota.admin.charts import sparkline
from django_quota.admin.events_page import events_view
from django_quota.admin.wording import KIND_NAMES, local_moment
from django_quota.conf import current
from django_quota.core.errors import QuotaError, StorePermissionDenied, StoreUnavailable
from django_quota.documentation import page
from django_quota.error_texts import error_in_words
from django_quota.features.events import (
    EVENTS_A_PAGE,
    SEARCHED,
    Event,
    EventFilter,
    Flood,
    event_log,
    with_floods,
)
from django_quota.limiting.known_rules import long_rules
from django_quota.limiting.overrides import overrides
from django_quota.limiting.registry import counting_stores, get_limiter
from django_quota.models import DailyCounter
from django_quota.operating.activity import MINUTES, activity
from django_quota.operating.health import Health, health, nothing_is_limited
from django_quota.stores.base import Store

REFRESH_INTERVAL = 5
"""Seconds between two requests for the content of an open page."""

EVENTS_SHOWN = 50
"""Events and floods that the page shows; it looks at `EVENTS_A_PAGE` events for them."""


class OverviewPages(ReadOnlyAdmin):
    """One page in place of a list of rows."""

    def get_urls(self) -> list[URLPattern]:
        view, name = self.admin_site.admin_view, "django_quota_overview"
        return [
            path("", view(self.changelist_view), name=f"{name}_changelist"),
            path("content/", view(self.content_view), name=f"{name}_content"),
            path("events/", view(partial(events_view, self)), name=f"{name}_events"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        self.check_view(request)
        url = self.url("content", **request.GET.dict())
        context = {"content_url": url, "refresh_interval": REFRESH_INTERVAL, **_content(request)}
        return self.show(request, "overview", _("Overview"), **context)

    def content_view(self, request: HttpRequest) -> HttpResponse:
        """Return the part of the page that changes."""
        self.check_view(request)
        return TemplateResponse(request, "admin/django_quota/overview_content.html", _content(request))


def _content(request: HttpRequest) -> dict[str, Any]:
    """Return the context of the content; with `problem` if the store does not answer."""
    store = get_limiter().store
    shown: dict[str, Any] = {
        "minutes": MINUTES,
        "is_memory": not store.is_shared,
        "kinds_of_events": KIND_NAMES.items(),
    }
    subjects: list[str | None] = []
    failure = None
    try:
        shown |= _figures(store)
        found = shown["activity"]
        subjects += [each.subject for each in (*found.refused, *(found.bans or ()), *found.fullest_slots)]
    except QuotaError as error:
        failure = error
        shown |= {
            "problem": error_in_words(error),
            "is_denied": isinstance(error, StorePermissionDenied),
            "commands_page": page("going_live"),
        }
    shown["nothing_is_limited"] = nothing_is_limited(failure)
    if overrides.problem:
        words = _("The overrides cannot be read from the database. Those that were read last hold: %s")
        shown["warnings"] = [*shown.get("warnings", ()), words % overrides.problem]
    shown["wanted"] = wanted = {name: request.GET.get(name, "").strip() for name in ("kind", "rule", "subject")}
    if wanted["kind"] not in KIND_NAMES:
        wanted["kind"] = ""
    kinds = [wanted["kind"]] if wanted["kind"] else ()
    chosen = EventFilter(kinds, rule=wanted["rule"], subject=wanted["subject"])
    events: list[Event | Flood] = []
    try:
        search = event_log(store, current().prefix).search(EVENTS_A_PAGE, chosen)
        events, shown["searched"] = with_floods(search.events)[:EVENTS_SHOWN], None if search.is_whole else SEARCHED
    except QuotaError as error:  # the figures say why
        shown["silent"] = "denied" if isinstance(error, StorePermissionDenied) else "silent"
    subjects += [subject for event in events for subject in (event.subject, getattr(event, "user", None))]
    names = names_among(request, subjects)
    return shown | {"events": events, "is_filtered": any(wanted.values()), "names": names}


def _figures(store: Store) -> dict[str, Any]:
    """Return what is counted, and how the store is. Raises `StoreUnavailable`."""
    found = activity()
    by_refused = sorted(found.rules, key=lambda rule: (rule.is_rest, -rule.refused, -rule.total))
    shown: dict[str, Any] = {
        "activity": found,
        "rules": [(rule, sparkline(rule.minutes)) for rule in by_refused],
        "hour": [local_moment(found.now, -60 * (MINUTES - 1)), local_moment(found.now)],
    }
    latency = 0.0
    if store.database is not None:
        began = perf_counter()
        store.database.ping()
        latency = perf_counter() - began
    if store.redis is not None:
        shown["health"] = of_redis = health(store.redis, current().prefix)
        latency = of_redis.latency
        shown["warnings"] = [*_warnings(of_redis), *_database_warnings()]
    if store.is_shared:
        shown["latency"] = f"{latency * 1_000:.2f}"
        shown["rolled_up"] = DailyCounter.objects.using(router.db_for_write(DailyCounter)).aggregate(Max("day"))[
            "day__max"
        ]
    return shown


def _database_warnings() -> Iterator[str]:
    """Yield a warning if the database does not answer that some rules count in beside Redis."""
    for each in counting_stores()[1:]:
        try:
            if each.store.database is not None:
                each.store.database.ping()
        except StoreUnavailable as error:
            yield _('The database of rules with store="database" does not answer: %s') % error_in_words(error)


def _warnings(redis: Health) -> Iterator[str]:
    """Yield a warning for everything about Redis that puts the limits at risk."""
    if redis.silent:
        names = {"silent": len(redis.silent), "all": redis.servers, "names": ", ".join(redis.silent)}
        yield _("%(silent)d of the %(all)d servers of the Cluster do not answer: %(names)s.") % names
    if redis.is_full:
        words = _(
            "The memory of Redis is full (%(used)s of %(most)s), so it accepts no changes. Rules follow their "
            "on_unavailable setting; without one, each process counts by itself."
        )
        yield words % {"used": filesizeformat(redis.used or 0), "most": filesizeformat(redis.most or 0)}
    elif redis.refuses:
        words = _(
            "Redis accepts no changes, so nothing is counted. Rules follow their on_unavailable setting. Redis says: %s"
        )
        yield words % redis.refuses
    if redis.is_replica:
        yield _("This Redis is a replica. It accepts no writes, so nothing is counted.")
    if redis.may_evict:
        words = _("Redis drops keys when its memory is full (maxmemory-policy %s). Limits may be forgotten then.")
        yield words % redis.policy
        if rules := long_rules():
            words = _('These rules count weeks, months or years there: %s. store="database" keeps their counts.')
            yield words % ", ".join(rules)
    if redis.is_nearly_full and not redis.is_full:
        yield _("The memory of Redis is nearly full.")
