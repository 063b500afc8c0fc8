"""Bulk actions on overrides: exempt, block, expire now. Each is confirmed with its counts, and logged row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, cast

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_quota.admin.waiting import tell_what_waits
from django_quota.admin.wording import state_of
from django_quota.models import QuotaOverride
from django_quota.override_sync import BATCH, write_database

MOST_AT_ONCE = 5_000
"""Overrides that one action changes: each is published before the answer is sent."""

MOST_SHOWN = 20
"""Overrides that a confirmation names."""

Change = Callable[[Sequence[QuotaOverride], datetime], int]


class OverrideActions:
    """The actions, as a mixin of the overrides' ModelAdmin."""

    actions: Any = ("exempt_selected", "block_selected", "expire_selected")

    @admin.action(permissions=["change"], description=gettext_lazy("Exempt the selected subjects"))
    def exempt_selected(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        """Make them exemptions."""
        said = _("No limit holds any more for the subjects of these overrides, under their rules.")
        return _confirmed(self, request, queryset, "exempt_selected", said, _to_mode(QuotaOverride.Mode.EXEMPT))

    @admin.action(permissions=["change"], description=gettext_lazy("Block the selected subjects"))
    def block_selected(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        """Make them blocks."""
        said = _("Every request of the subjects of these overrides is refused, under their rules.")
        return _confirmed(self, request, queryset, "block_selected", said, _to_mode(QuotaOverride.Mode.BLOCKED))

    @admin.action(permissions=["change"], description=gettext_lazy("Expire the selected overrides now"))
    def expire_selected(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        """End them; those that have not begun never will."""
        said = _("These overrides end now: the limits of the settings hold again with the next request.")
        return _confirmed(self, request, queryset, "expire_selected", said, _expire)


def _confirmed(
    model_admin: Any, request: HttpRequest, queryset: Any, action: str, said: str, change: Change
) -> HttpResponse | None:
    """Ask, or where that was confirmed, change the rows and say so."""
    if not model_admin.has_change_permission(request):
        raise PermissionDenied
    rows = list(queryset[: MOST_AT_ONCE + 1])
    if len(rows) > MOST_AT_ONCE:
        model_admin.message_user(
            request, _("That is more than %d at once: filter the list first.") % MOST_AT_ONCE, messages.ERROR
        )
        return None
    if not rows:  # others have deleted them meanwhile
        model_admin.message_user(request, _("None of these overrides is there any more."), messages.WARNING)
        return None
    if request.POST.get("confirmed") != "yes":
        return _asked(model_admin, request, rows, action, said)
    label = getattr(model_admin, action).short_description
    with transaction.atomic(using=write_database()):
        changed = change(rows, timezone.now())
        LogEntry.objects.log_actions(
            cast("int", request.user.pk),
            rows,
            CHANGE,
            _("%(action)s (with %(number)d chosen)") % {"action": label, "number": len(rows)},
        )
    words = ngettext("%d override was changed.", "%d overrides were changed.", changed) % changed
    model_admin.message_user(request, words, messages.SUCCESS)
    tell_what_waits(model_admin, request, {row.subject for row in rows})
    return None


def _asked(
    model_admin: Any, request: HttpRequest, rows: Sequence[QuotaOverride], action: str, said: str
) -> TemplateResponse:
    now = timezone.now()
    states = [state_of(row, now) for row in rows]
    is_all = request.POST.get("select_across") == "1"
    context = {
        **model_admin.admin_site.each_context(request),
        "title": _("Are you sure?"),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "said": said,
        "action": action,
        "rows": rows[:MOST_SHOWN],
        "more": max(0, len(rows) - MOST_SHOWN),
        "number": len(rows),
        "active": states.count("active"),
        "pending": states.count("pending"),
        "ended": states.count("ended"),
        "is_all": is_all,
        "chosen": [] if is_all else [row.pk for row in rows],
        "action_checkbox_name": ACTION_CHECKBOX_NAME,
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, "admin/django_quota/quotaoverride/confirm.html", context)


def _to_mode(mode: QuotaOverride.Mode) -> Change:
    def change(rows: Sequence[QuotaOverride], now: datetime) -> int:
        return sum(
            QuotaOverride.objects.filter(pk__in=some).update(mode=mode, rate="", updated=now) for some in _batches(rows)
        )

    return change


def _expire(rows: Sequence[QuotaOverride], now: datetime) -> int:
    """End rows; what has ended stays as it is, and what has not begun gets a beginning before its end: none."""
    changed = 0
    for some in _batches([row for row in rows if row.expires is None or row.expires > now]):
        mine = QuotaOverride.objects.filter(pk__in=some)
        mine.filter(starts__gte=now).update(starts=None)
        changed += mine.update(expires=now, updated=now)
    return changed


def _batches(rows: Sequence[QuotaOverride]) -> Iterator[list[int]]:
    keys = [row.pk for row in rows]
    for first in range(0, len(keys), BATCH):
        yield keys[first : first + BATCH]
