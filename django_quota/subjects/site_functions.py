"""Calls, within a flow, of functions that a site writes: functions of the request or the subject, sync or async.

A site says by functions who is limited, what a hit costs, which tier somebody has, and where the periods of a subject
begin.
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable
from datetime import date, datetime
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest
from django.utils.functional import LazyObject

from django_quota.core.caching import kept_on
from django_quota.core.errors import ConfigurationError, RuleError
from django_quota.core.flow import Flow, IOCall
from django_quota.core.rules import Rule, dotted_path, is_day


def call_flow(function: Callable[..., Any], given: Any) -> Flow[Any]:
    """Call a function of the request or the subject, sync or async, and return its result.

    Raises `ConfigurationError` for an async function where its result cannot be awaited.
    """
    try:
        value = function(given)
    except SynchronousOnlyOperation as error:  # it needs the database, which an event loop must ask in a thread
        return (yield IOCall(partial(_raise, error), partial(sync_to_async(function), given)))
    if isinstance(value, LazyObject):  # of the database, perhaps
        return (yield IOCall(_loaded, sync_to_async(_loaded), value))
    if not inspect.isawaitable(value):
        return value

    async def wait() -> Any:
        return await value

    def run() -> Any:
        try:
            return async_to_sync(wait)()
        except RuntimeError as error:
            if not inspect.iscoroutine(value) or inspect.getcoroutinestate(value) != inspect.CORO_CREATED:
                raise
            value.close()
            name = getattr(function, "__qualname__", repr(function))
            hint = "Use the async form of the function that you called, or write a sync function."
            raise ConfigurationError(f"{name} is async and cannot be awaited here.", hint) from error

    return (yield IOCall(run, wait))


def _loaded(lazy: Any) -> Any:
    """Load a lazy object, such as `request.user` or the organization that a middleware has set."""
    lazy.__class__  # noqa: B018 - any attribute loads it
    return lazy


def _raise(error: Exception) -> Any:
    raise error


def user_flow(request: HttpRequest) -> Flow[Any]:
    """Return the user of a request, loaded from the database if needed; None if no middleware has set one."""
    user: Any = getattr(request, "user", None)
    if not isinstance(user, LazyObject):
        return user

    # A lazy user is loaded from the database when it is first used, which async code must await. `request.auser` only
    # knows the user of Django's own middleware.
    load = partial(_loaded, user)
    is_of_django = getattr(user.__dict__.get("_setupfunc"), "__module__", "") == _DJANGOS_OWN
    return (yield IOCall(load, request.auser if is_of_django else sync_to_async(load)))


_DJANGOS_OWN = "django.contrib.auth.middleware"


# --- where the periods of a subject begin -----------------------------------------------------------------------------


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
