"""The overview: what the limiter does now and has done today, who is refused and banned, how the store is.

One page, and a part of it that is fetched again and again. It only shows what `activity`, `health` and `sizes` read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.db.models import Max
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template.defaultfilters import filesizeformat
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from django_quota.activity import MINUTES, activity
from django_quota.admin import live
from django_quota.admin.sparkline import sparkline
from django_quota.admin.wording import moment_of
from django_quota.clock import SECOND
from django_quota.conf import current
from django_quota.events import BEGINNING
from django_quota.exceptions import QuotaError, StoreUnavailable
from django_quota.feeds import SHOWN
from django_quota.health import Health, health
from django_quota.limiter import get_limiter
from django_quota.models import DailyCounter, Overview
from django_quota.override_sync import how_many_wait, write_database
from django_quota.sizes import KindSize, sizes
from django_quota.stores.redis import RedisStore
from django_quota.wording import wait_in_words

MOST_WAITING = 1_000
"""Unpublished overrides that are counted."""

REFRESHED_EVERY = 5
"""Seconds between two looks at the figures of a page that is open."""


@admin.register(Overview)
class OverviewAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django's own takes none
    """The page in the place of a list of rows; there is nothing to add, change or delete."""

    def get_urls(self) -> list[URLPattern]:
        """Return the page, what it fetches, and nothing else."""
        name = "django_quota_overview"
        site = self.admin_site
        return [
            path("", site.admin_view(self.changelist_view), name=f"{name}_changelist"),
            path("figures/", site.admin_view(self.figures_view), name=f"{name}_figures"),
            path("events/", site.admin_view(self.events_view), name=f"{name}_events"),
            path("stream/", site.admin_view(self.stream_view), name=f"{name}_stream"),
        ]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Say no: nothing is stored."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Overview | None = None) -> bool:
        """Say no: it is only looked at."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Overview | None = None) -> bool:
        """Say no: nothing is stored."""
        return False

    # --- the views ----------------------------------------------------------------------------------------------------

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the page."""
        self._refuse_others(request)
        stored = isinstance(get_limiter().store, RedisStore)
        context = {
            **self.admin_site.each_context(request),
            "title": _("Overview"),
            "opts": self.opts,
            "figures_url": self._url("figures"),
            "events_url": self._url("events") if stored else "",
            "stream_url": self._url("stream") if stored and isinstance(request, ASGIRequest) else "",
            "refreshed_every": REFRESHED_EVERY,
            "shown": SHOWN,
            **self._figures(request),
            **self._newest(),
            **(extra_context or {}),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/django_quota/overview.html", context)

    def figures_view(self, request: HttpRequest) -> HttpResponse:
        """Show the part of the page that holds figures, to be put in the place of the old one."""
        self._refuse_others(request)
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/django_quota/overview_figures.html", self._figures(request))

    def events_view(self, request: HttpRequest) -> HttpResponse:
        """Answer with the events behind one, in JSON."""
        self._refuse_others(request)
        return live.events(request, self._subject_url(request))

    def stream_view(self, request: HttpRequest) -> HttpResponseBase:
        """Answer with the events as they come, without an end."""
        self._refuse_others(request)
        return live.stream(request, self._subject_url(request))

    def _refuse_others(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    def _url(self, what: str) -> str:
        return reverse(f"admin:django_quota_overview_{what}", current_app=self.admin_site.name)

    def _subject_url(self, request: HttpRequest) -> str:
        """Return the page of a subject, empty where the user may not see it."""
        if not request.user.has_perm("django_quota.view_subject"):
            return ""
        try:
            return reverse("admin:django_quota_subject_changelist", current_app=self.admin_site.name)
        except NoReverseMatch:  # this admin site does not show subjects
            return ""

    # --- what it shows ------------------------------------------------------------------------------------------------

    def _figures(self, request: HttpRequest) -> dict[str, Any]:
        """Return what the part with figures shows; `problem` where the store does not answer."""
        limiter, prefix = get_limiter(), current().prefix
        shown: dict[str, Any] = {
            "subject_url": self._subject_url(request),
            "with_sizes": "sizes" in request.GET,
            "minutes": MINUTES,
            "is_enabled": current().enabled,
            "is_memory": not isinstance(limiter.store, RedisStore),
        }
        try:
            found = activity()
            shown["activity"] = found
            shown["rules"] = [(rule, sparkline(rule.minutes)) for rule in found.rules]
            shown["bans"] = [(ban, moment_of(ban.until), _left(ban.until - found.now)) for ban in found.bans or ()]
            if isinstance(limiter.store, RedisStore):
                shown["health"] = of_redis = health(limiter.store, prefix)
                shown["latency"] = f"{of_redis.latency * 1_000:.2f}"
                shown["fullest"] = None if of_redis.fullest is None else round(100 * of_redis.fullest)
                shown["uptime"] = None if of_redis.uptime is None else wait_in_words(of_redis.uptime)
                shown["warnings"] = [*_warnings(of_redis), *_database_warnings()]
                shown["rolled_up"] = DailyCounter.objects.aggregate(Max("day"))["day__max"]
                if shown["with_sizes"]:
                    shown["sizes"] = estimate = sizes(limiter.store, prefix)
                    shown["kinds"] = [(kind, _of(kind).get(kind.kind, "")) for kind in estimate.kinds]
        except QuotaError as error:
            shown["problem"] = str(error)
            shown["is_denied"] = _is_denied(error)
            shown["warnings"] = _database_warnings()
        return shown

    def _newest(self) -> dict[str, Any]:
        """Return the last events, the newest first, and the id of the last one."""
        try:
            entries = live.newest(BEGINNING)
        except QuotaError as error:  # the figures say why
            return {"lines": [], "last_id": BEGINNING, "is_silent": True, "may_not_look": _is_denied(error)}
        events = [entry.event for entry in reversed(entries) if entry.event is not None]
        return {"lines": live.lines(events), "last_id": entries[-1].id if entries else BEGINNING}


def _is_denied(error: QuotaError) -> bool:
    """Say whether the store answers, and does not permit what is asked: then the limits may well hold."""
    return isinstance(error, StoreUnavailable) and error.not_permitted


_KINDS = {
    "r": _lazy("limits"),
    "s": _lazy("overrides and bans"),
    "b": _lazy("refusals on the way to a ban"),
    "h": _lazy("reservations"),
    "day": _lazy("checks of a day"),
    "c": _lazy("counters"),
    "m": _lazy("amounts on the way"),
    "n": _lazy("amounts that have come"),
    "u": _lazy("different values"),
    "l": _lazy("leases"),
    "q": _lazy("who waits for a slot"),
    "a": _lazy("who of them is alive"),
    "once": _lazy("values that were seen"),
}
_SYSTEM_KINDS = {
    "events": _lazy("events"),
    "dead": _lazy("events that were given up"),
    "bans": _lazy("the list of bans"),
    "overrides": _lazy("whether overrides are published"),
    "sweep": _lazy("how far the sweep is"),
    "tally": _lazy("checks by rule"),
    "refused": _lazy("who was refused most"),
    "slots": _lazy("slots that were asked for"),
    "told": _lazy("what each process has told"),
    "workers": _lazy("processes that share the limits"),
}


def _of(kind: KindSize) -> Mapping[str, object]:
    return _SYSTEM_KINDS if kind.is_system else _KINDS


def _left(microseconds: int) -> str:
    return wait_in_words(-(-microseconds // SECOND))


def _warnings(redis: Health) -> list[str]:
    """Say what about Redis may harm the limits."""
    found = []
    if redis.silent:
        names = {"silent": len(redis.silent), "all": redis.servers, "names": ", ".join(redis.silent)}
        found.append(_("%(silent)d of the %(all)d servers of the Cluster do not answer: %(names)s.") % names)
    if redis.is_full:
        found.append(
            _(
                "The memory of Redis is full, %(used)s of %(most)s: it takes no changes. Rules decide by their "
                "on_unavailable; where a rule has none, each process counts by itself."
            )
            % {"used": filesizeformat(redis.used or 0), "most": filesizeformat(redis.most or 0)}
        )
    elif redis.refuses:
        found.append(
            _("Redis takes no changes, so nothing is counted, and rules decide by on_unavailable. It says: %s")
            % redis.refuses
        )
    if redis.is_replica:
        found.append(_("This Redis is a replica and takes no writes: nothing can be counted in it."))
    if redis.may_evict:
        found.append(
            _("Redis drops keys when its memory is full (maxmemory-policy %s): limits may be forgotten then.")
            % redis.policy
        )
    if redis.is_nearly_full and not redis.is_full:
        found.append(_("The memory of Redis is nearly full."))
    return found


def _database_warnings() -> list[str]:
    """Say what Redis has not been told."""
    waiting = how_many_wait(write_database(), MOST_WAITING)
    if not waiting:
        return []
    words = _(
        "Overrides that wait to be published to Redis: %d. They are soon after Redis is back; the command quota_sync "
        "publishes them at once."
    )
    return [words % waiting]
