"""The overview: what the limiter does now and has done today, who is refused or banned, and how the store is.

A script fetches the content of the open page again every few seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any, NamedTuple

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Max
from django.http import HttpRequest, HttpResponse
from django.template.defaultfilters import filesizeformat
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _

from django_quota.admin.admin_base import ReadOnlyAdmin, admin_url, may_see, names_among, rule_url, subject_url
from django_quota.admin.admin_wording import KIND_NAMES, lines, moment_of
from django_quota.admin.charts import sparkline
from django_quota.conf import current
from django_quota.core.clock import SECOND
from django_quota.core.errors import QuotaError, StorePermissionDenied
from django_quota.features.event_stream import Event, event_log
from django_quota.limiting.overrides import overrides
from django_quota.limiting.registry import get_limiter
from django_quota.models import Ban, DailyCounter, Overview
from django_quota.operating.activity import MINUTES, Activity, activity
from django_quota.operating.health import Health, health
from django_quota.web.wording import wait_in_words

REFRESH_INTERVAL = 5
"""Seconds between two requests for the content of an open page."""

EVENTS = 50
"""Events that the page shows."""


@admin.register(Overview)
class OverviewAdmin(ReadOnlyAdmin):
    """One page in place of a list of rows."""

    def get_urls(self) -> list[URLPattern]:
        view, name = self.admin_site.admin_view, "django_quota_overview"
        return [
            path("", view(self.changelist_view), name=f"{name}_changelist"),
            path("content/", view(self.content_view), name=f"{name}_content"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        self._check_permission(request)
        context = {
            **self.admin_site.each_context(request),
            "title": _("Overview"),
            "opts": self.opts,
            "content_url": admin_url(self.admin_site.name, "overview_content", **request.GET.dict()),
            "refresh_interval": REFRESH_INTERVAL,
            **self._content(request),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/django_quota/overview.html", context)

    def content_view(self, request: HttpRequest) -> HttpResponse:
        """Return the part of the page that changes."""
        self._check_permission(request)
        return TemplateResponse(request, "admin/django_quota/overview_content.html", self._content(request))

    def _check_permission(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied
        request.current_app = self.admin_site.name

    def _content(self, request: HttpRequest) -> dict[str, Any]:
        """Return the context of the content; with `problem` if the store does not answer."""
        store, prefix = get_limiter().store, current().prefix
        shown: dict[str, Any] = {
            "subject_url": subject_url(request, self.admin_site.name),
            "rule_url": rule_url(request, self.admin_site.name),
            "bans_url": admin_url(self.admin_site.name, "ban_changelist") if may_see(request, Ban) else "",
            "minutes": MINUTES,
            "is_enabled": current().enabled,
            "is_memory": not store.is_shared,
        }
        try:
            found = activity()
            shown["activity"] = found
            by_refused = sorted(found.rules, key=lambda rule: (rule.is_rest, -rule.refused, -rule.total))
            shown["rules"] = [(rule, sparkline(rule.minutes)) for rule in by_refused]
            shown["hour"] = [moment_of(found.now, -60 * (MINUTES - 1)), moment_of(found.now)]
            shown["bans"] = [
                (ban, moment_of(ban.until), wait_in_words(-(-(ban.until - found.now) // SECOND)))
                for ban in found.bans or ()
            ]
            redis = store.redis
            if store.database is not None:
                began = perf_counter()
                store.database.read(lambda _: "SELECT 1")
                shown["latency"] = f"{(perf_counter() - began) * 1_000:.2f}"
                shown["warnings"] = _override_warnings()
                shown["rolled_up"] = DailyCounter.objects.aggregate(Max("day"))["day__max"]
            if redis is not None:
                shown["health"] = of_redis = health(redis, prefix)
                shown["latency"] = f"{of_redis.latency * 1_000:.2f}"
                shown["fullest"] = None if of_redis.fullest is None else round(100 * of_redis.fullest)
                shown["uptime"] = None if of_redis.uptime is None else wait_in_words(of_redis.uptime)
                shown["warnings"] = [*_warnings(of_redis), *_override_warnings()]
                shown["rolled_up"] = DailyCounter.objects.aggregate(Max("day"))["day__max"]
        except QuotaError as error:
            shown["problem"] = str(error)
            shown["is_denied"] = _is_denied(error)
            shown["warnings"] = _override_warnings()
        shown |= _last_events(EventFilter.of(request))
        shown["names"] = names_among(request, _subjects_on(shown))
        return shown


class EventFilter(NamedTuple):
    """Which events the page shows."""

    kind: str
    """One of `KINDS`; empty for all."""
    rule: str
    """A part of the rule's name."""
    subject: str
    """A part of the subject."""

    @classmethod
    def of(cls, request: HttpRequest) -> EventFilter:
        """Return what the page was asked for. An unknown kind is none."""
        kind, rule, subject = (request.GET.get(name, "").strip() for name in cls._fields)
        return cls(kind if kind in KIND_NAMES else "", rule, subject)

    def fits(self, event: Event) -> bool:
        """Say whether to show an event."""
        is_kind = self.kind in ("", event.kind)
        return is_kind and self.rule in (event.rule or "") and self.subject in (event.subject or "")


def _last_events(wanted: EventFilter) -> dict[str, Any]:
    """Return the context of the events, the newest first."""
    shown = {"wanted": wanted, "is_filtered": any(wanted), "kinds_of_events": KIND_NAMES.items()}
    log = event_log(get_limiter().store, current().prefix)
    try:
        events = [] if log is None else log.last(EVENTS, wanted.fits)[::-1]
    except QuotaError as error:  # the metrics say why
        return {**shown, "is_silent": True, "may_not_look": _is_denied(error)}
    return {**shown, "lines": lines(events)}


def _subjects_on(shown: dict[str, Any]) -> Iterator[str | None]:
    """Yield the subjects on the page."""
    found: Activity | None = shown.get("activity")
    listed = [*found.refused, *(found.bans or ()), *found.fullest_slots] if found else []
    yield from (each.subject for each in listed)
    yield from (line.event.subject for line in shown.get("lines", ()))


def _is_denied(error: QuotaError) -> bool:
    """Return whether the store answers but does not permit a command. Limits may still work then."""
    return isinstance(error, StorePermissionDenied)


def _warnings(redis: Health) -> list[str]:
    """Return what about Redis puts the limits at risk."""
    found = []
    if redis.silent:
        names = {"silent": len(redis.silent), "all": redis.servers, "names": ", ".join(redis.silent)}
        found.append(_("%(silent)d of the %(all)d servers of the Cluster do not answer: %(names)s.") % names)
    if redis.is_full:
        words = _(
            "The memory of Redis is full (%(used)s of %(most)s), so it accepts no changes. Rules follow their "
            "on_unavailable setting; without one, each process counts by itself."
        )
        found.append(words % {"used": filesizeformat(redis.used or 0), "most": filesizeformat(redis.most or 0)})
    elif redis.refuses:
        words = _(
            "Redis accepts no changes, so nothing is counted. Rules follow their on_unavailable setting. Redis says: %s"
        )
        found.append(words % redis.refuses)
    if redis.is_replica:
        found.append(_("This Redis is a replica. It accepts no writes, so nothing is counted."))
    if redis.may_evict:
        words = _("Redis drops keys when its memory is full (maxmemory-policy %s). Limits may be forgotten then.")
        found.append(words % redis.policy)
    if redis.is_nearly_full and not redis.is_full:
        found.append(_("The memory of Redis is nearly full."))
    return found


def _override_warnings() -> list[str]:
    """Return a warning if this process could not read the overrides."""
    if not overrides.problem:
        return []
    return [_("The overrides cannot be read from the database. Those that were read last hold: %s") % overrides.problem]
