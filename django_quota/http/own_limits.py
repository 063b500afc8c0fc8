"""The caller's own limits: as JSON at `path("limits/", include("django_quota.urls"))`, and for `{% quota_limits %}`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from http import HTTPStatus
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib.auth.decorators import login_not_required
from django.db import Error as DatabaseError
from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from django_quota.conf import current
from django_quota.core.algorithms import Limit
from django_quota.core.clock import DAY, moment_of, now
from django_quota.core.decisions import Decision, Outcome
from django_quota.core.errors import RuleError
from django_quota.core.flow import Flow, run_sync
from django_quota.core.rules import Rule, parts_of_key
from django_quota.engine.asks import Ask
from django_quota.http.limits import peek_flow
from django_quota.limiting.api import django_request
from django_quota.limiting.asking import asked_flow

logger = logging.getLogger("django_quota")

_OF_THE_PAGE = frozenset({"global", "path", "get", "kwarg", "post", "json"})
"""The kinds of keys that say nothing about the caller."""


def own_limits(request: Any) -> Decision:
    """Return the limits of the configured rules that are about the caller of a request, wherever they match.

    These are the rules whose key is the user, the address, the session, a header, a cookie or a function. `skip` and
    `exempt` count; `methods` do not, since they are about other requests. Shadow rules are left out, and so are rules
    with a function that fails for this request, which is logged once.

    `request`: Django's, or one that wraps it and has put its user on it, as Django REST framework's does.
    """
    return run_sync(_own_limits_flow(django_request(request) or request))


def _own_limits_flow(request: HttpRequest) -> Flow[Decision]:
    asked: list[Ask] = []
    for rule in _rules_about_callers():
        try:
            asked += yield from asked_flow([rule], request, is_peek=True)
        except DatabaseError:
            raise
        except Exception:  # noqa: BLE001 — a function of the site that expects the request of the limited view
            _log_left_out(rule.name)
    return (yield from peek_flow(asked))


@lru_cache(maxsize=256)
def _log_left_out(rule: str) -> None:
    """Log once, with the error that is being handled, that a rule is not shown."""
    logger.exception(  # noqa: LOG004 — the caller handles it
        "Rule %r is left out of the caller's limits: its functions failed for this request. They get the request of "
        "the page that shows the limits.",
        rule,
    )


def _rules_about_callers() -> Iterator[Rule]:
    settings = current()
    for name in settings.rules:
        with suppress(RuleError):  # a system check reports it
            rule = settings.rule(name)
            kinds = {str(key).partition(":")[0] for option, key in parts_of_key(rule) if option == "key"}
            if not rule.shadow and kinds.isdisjoint(_OF_THE_PAGE):
                yield rule.but(methods=None)


@login_not_required
@require_safe
def limits_view(request: Any) -> JsonResponse:
    """Answer with the limits of the configured rules that are about the caller; 503 if the store does not answer.

    `request`: Django's request, or one that wraps it, such as Django REST framework's, after authentication.
    """
    decision = own_limits(request)
    status = HTTPStatus.SERVICE_UNAVAILABLE if decision.degraded else HTTPStatus.OK
    limits = [_as_json(outcome) for outcome in decision.outcomes]
    return JsonResponse({"limits": limits}, status=status, headers={"Cache-Control": "private, no-store"})


def _as_json(outcome: Outcome) -> dict[str, object]:
    until = until_of(outcome)
    return {
        "rule": outcome.rule,
        "rate": str(outcome.rate),
        "limit": outcome.limit,
        "used": outcome.used,
        "remaining": outcome.remaining,
        "until": until and until.isoformat(timespec="seconds"),
        "state": outcome.why,
    }


def until_of(outcome: Outcome) -> datetime | None:
    """Return when all of a limit is left again, or a block ends, in the rule's time zone or the current one.

    None if nothing is used, or if a block has no end.
    """
    seconds = outcome.retry_after if outcome.is_shut_out else outcome.reset_after
    if not seconds:
        return None
    calendar = _calendar(outcome)
    tz = ZoneInfo(calendar.options.tz or "UTC") if calendar else None
    return timezone.localtime(moment_of(now()) + timedelta(seconds=seconds), tz)


def _calendar(outcome: Outcome) -> Limit | None:
    """Return the limit of an outcome if it is a calendar limit; else None."""
    return outcome.of if isinstance(outcome.of, Limit) and not outcome.of.algorithm.timeless else None


def limit_in_words(outcome: Outcome) -> str:
    """Return how much of a limit is left, until when: `"9,995 of 10,000 left until 1 December"`."""
    if outcome.why == "exempt":
        return _("unlimited")
    if outcome.limit == 0 and not outcome.is_shut_out:
        return _("closed")
    until = until_of(outcome)
    numbers = [number_format(number, force_grouping=True) for number in (outcome.remaining, outcome.limit)]
    words = {"left": numbers[0], "limit": numbers[1], "until": until and _moment_in_words(outcome, until)}
    if outcome.is_shut_out:
        return _("blocked until %(until)s") % words if until else _("blocked")
    if until is None:
        return _("%(left)s of %(limit)s left") % words
    if outcome.of.algorithm_name in ("calendar", "fixed_window"):
        return _("%(left)s of %(limit)s left until %(until)s") % words
    return _("%(left)s of %(limit)s left, all of them from %(until)s") % words


def _moment_in_words(outcome: Outcome, until: datetime) -> str:
    """Return the day on which a period of days ends; otherwise a time and its zone, with the date if it is far away."""
    calendar = _calendar(outcome)
    if not outcome.is_shut_out and calendar and calendar.rate.period >= DAY:
        # Half an hour more: the clocks may differ by seconds, and this must not name the day before the end.
        return date_format(until + timedelta(minutes=30), "MONTH_DAY_FORMAT")
    is_near = until - moment_of(now()) < timedelta(days=1)
    return f"{date_format(until, 'TIME_FORMAT' if is_near else 'SHORT_DATETIME_FORMAT')} {until:%Z}"
