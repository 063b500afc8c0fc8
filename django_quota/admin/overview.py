"""The overview: what the limiter does now and has done today, who is refused or banned, and how the store is.

A script fetches the metrics of the open page again and again, and its events as they come; see `live`.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.db.models import Max
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template.defaultfilters import filesizeformat
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_quota.admin import live
from django_quota.admin.admin_base import ReadOnlyAdmin, admin_url, subject_url
from django_quota.admin.admin_wording import moment_of
from django_quota.admin.charts import sparkline
from django_quota.conf import current
from django_quota.core.clock import SECOND
from django_quota.core.errors import QuotaError, StorePermissionDenied
from django_quota.models import DailyCounter, Overview
from django_quota.services.activity import MINUTES, activity
from django_quota.services.broadcast import SHOWN
from django_quota.services.event_stream import BEGINNING
from django_quota.services.health import Health, KindSize, health, sizes
from django_quota.services.override_sync import count_pending, write_database
from django_quota.services.registry import get_limiter
from django_quota.stores.redis.store import RedisStore
from django_quota.web.wording import wait_in_words

MAX_UNPUBLISHED = 1_000
"""Unpublished overrides that the page counts."""

REFRESH_INTERVAL = 5
"""Seconds between two requests for the metrics of an open page."""


@admin.register(Overview)
class OverviewAdmin(ReadOnlyAdmin):
    """One page in place of a list of rows."""

    def get_urls(self) -> list[URLPattern]:
        view, name = self.admin_site.admin_view, "django_quota_overview"
        return [
            path("", view(self.changelist_view), name=f"{name}_changelist"),
            path("metrics/", view(self.metrics_view), name=f"{name}_metrics"),
            path("events/", view(self.events_view), name=f"{name}_events"),
            path("stream/", view(self.stream_view), name=f"{name}_stream"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        self._check_permission(request)
        site, has_events = self.admin_site.name, isinstance(get_limiter().store, RedisStore)
        context = {
            **self.admin_site.each_context(request),
            "title": _("Overview"),
            "opts": self.opts,
            "metrics_url": admin_url(site, "overview_metrics"),
            "events_url": admin_url(site, "overview_events") if has_events else "",
            "stream_url": admin_url(site, "overview_stream") if has_events and isinstance(request, ASGIRequest) else "",
            "refresh_interval": REFRESH_INTERVAL,
            "shown": SHOWN,
            **self._metrics(request),
            **_last_events(),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/django_quota/overview.html", context)

    def metrics_view(self, request: HttpRequest) -> HttpResponse:
        """Return the part of the page that holds metrics."""
        self._check_permission(request)
        return TemplateResponse(request, "admin/django_quota/overview_metrics.html", self._metrics(request))

    def events_view(self, request: HttpRequest) -> HttpResponse:
        """Return the events after one, in JSON."""
        self._check_permission(request)
        return live.events(request, subject_url(request, self.admin_site.name))

    def stream_view(self, request: HttpRequest) -> HttpResponseBase:
        """Return the events as they come."""
        self._check_permission(request)
        return live.stream(request, subject_url(request, self.admin_site.name))

    def _check_permission(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied
        request.current_app = self.admin_site.name

    def _metrics(self, request: HttpRequest) -> dict[str, Any]:
        """Return the context of the metrics; with `problem` if the store does not answer."""
        store, prefix = get_limiter().store, current().prefix
        shown: dict[str, Any] = {
            "subject_url": subject_url(request, self.admin_site.name),
            "with_sizes": "sizes" in request.GET,
            "minutes": MINUTES,
            "is_enabled": current().enabled,
            "is_memory": not isinstance(store, RedisStore),
        }
        try:
            found = activity()
            shown["activity"] = found
            shown["rules"] = [(rule, sparkline(rule.minutes)) for rule in found.rules]
            shown["bans"] = [
                (ban, moment_of(ban.until), wait_in_words(-(-(ban.until - found.now) // SECOND)))
                for ban in found.bans or ()
            ]
            if isinstance(store, RedisStore):
                shown["health"] = of_redis = health(store, prefix)
                shown["latency"] = f"{of_redis.latency * 1_000:.2f}"
                shown["fullest"] = None if of_redis.fullest is None else round(100 * of_redis.fullest)
                shown["uptime"] = None if of_redis.uptime is None else wait_in_words(of_redis.uptime)
                shown["warnings"] = [*_warnings(of_redis), *_database_warnings()]
                shown["rolled_up"] = DailyCounter.objects.aggregate(Max("day"))["day__max"]
                if shown["with_sizes"]:
                    shown["sizes"] = estimate = sizes(store, prefix)
                    shown["kinds"] = [(kind, _kind_name(kind)) for kind in estimate.kinds]
        except QuotaError as error:
            shown["problem"] = str(error)
            shown["is_denied"] = _is_denied(error)
            shown["warnings"] = _database_warnings()
        return shown


def _last_events() -> dict[str, Any]:
    """Return the context of the events, the newest first, and the id of the last one."""
    try:
        entries = live.newest(BEGINNING)
    except QuotaError as error:  # the metrics say why
        return {"lines": [], "last_id": BEGINNING, "is_silent": True, "may_not_look": _is_denied(error)}
    events = [entry.event for entry in reversed(entries) if entry.event is not None]
    return {"lines": live.lines(events), "last_id": entries[-1].id if entries else BEGINNING}


def _is_denied(error: QuotaError) -> bool:
    """Return whether the store answers but does not permit a command. Limits may still work then."""
    return isinstance(error, StorePermissionDenied)


_KINDS = {
    "r": gettext_lazy("limits"),
    "s": gettext_lazy("overrides and bans"),
    "b": gettext_lazy("refusals that may lead to a ban"),
    "h": gettext_lazy("reservations"),
    "day": gettext_lazy("checks of a day"),
    "c": gettext_lazy("counters"),
    "m": gettext_lazy("unfinished transfers"),
    "n": gettext_lazy("transfers received"),
    "u": gettext_lazy("different values"),
    "l": gettext_lazy("leases"),
    "q": gettext_lazy("callers waiting for a slot"),
    "a": gettext_lazy("heartbeats of waiting callers"),
    "once": gettext_lazy("values already seen"),
}
_SYSTEM_KINDS = {
    "events": gettext_lazy("events"),
    "dead": gettext_lazy("events that failed"),
    "bans": gettext_lazy("the list of bans"),
    "overrides": gettext_lazy("whether overrides are published"),
    "sweep": gettext_lazy("progress of the sweep"),
    "metrics": gettext_lazy("checks by rule"),
    "totals": gettext_lazy("running totals of checks"),
    "refused": gettext_lazy("subjects refused most"),
    "slots": gettext_lazy("slots used lately"),
    "sent": gettext_lazy("last report of each process"),
    "workers": gettext_lazy("processes that share the limits"),
}


def _kind_name(kind: KindSize) -> object:
    return (_SYSTEM_KINDS if kind.is_system else _KINDS).get(kind.kind, "")


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


def _database_warnings() -> list[str]:
    """Return a warning about overrides that Redis does not have."""
    waiting = count_pending(write_database(), MAX_UNPUBLISHED)
    if not waiting:
        return []
    words = ngettext(
        "%d override is not published to Redis yet. That happens soon after Redis is back, or at once with the "
        "command quota_sync.",
        "%d overrides are not published to Redis yet. That happens soon after Redis is back, or at once with the "
        "command quota_sync.",
        waiting,
    )
    return [words % waiting]
