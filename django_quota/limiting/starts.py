"""Where the periods of a subject begin: calls of the `starts` functions of rules."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.http import HttpRequest

from django_quota.core.caching import kept_on
from django_quota.core.errors import RuleError
from django_quota.core.flow import Flow
from django_quota.core.rules import Rule, dotted_path, is_day
from django_quota.subjects.site_functions import call_flow

KnownStarts = dict[tuple[Callable[[str], Any], str], Any]
"""What `starts` functions have returned, by the function and the subject."""

STARTS = "_django_quota_starts"
"""The attribute of a request that holds its `KnownStarts`."""


def starts_of(request: HttpRequest) -> KnownStarts:
    """Return what `starts` functions have returned for a request, so that it calls each once for a subject."""
    return kept_on(request, STARTS, KnownStarts)


def starting_flow(rule: Rule, subject: str, known: KnownStarts) -> Flow[Rule]:
    """Return the rule with the periods of a subject; unchanged if these do not depend on the subject.

    `known`: what is known already; it is added to. Raises `RuleError` if the function returns no day.
    """
    if not rule.needs_start:
        return rule
    function = rule.starts
    if (function, subject) not in known:
        known[function, subject] = yield from call_flow(function, subject)
    return rule.starting(_day_of(rule, subject, known[function, subject]))


def started_flow(rule: Rule, subject: str) -> Flow[Rule]:
    """Return the rule, and so the rules of its tiers, with the periods of a subject."""
    if not callable(rule.starts):
        return rule
    return rule.starting(_day_of(rule, subject, (yield from call_flow(rule.starts, subject))))


def _day_of(rule: Rule, subject: str, given: Any) -> date | None:
    """Return the day of a result of `starts`, in the time zone of the rule. Raises `RuleError`."""
    if isinstance(given, datetime):
        return (given if given.tzinfo is None else given.astimezone(ZoneInfo(rule.tz or "UTC"))).date()
    if given is None or is_day(given):
        return given
    raise RuleError(
        f"{dotted_path(rule.starts)}, starts= of rule {rule.name!r}, returned {reprlib.repr(given)} for {subject}.",
        "Return a date or a datetime, or None for the weeks, months and years of the calendar.",
    )
