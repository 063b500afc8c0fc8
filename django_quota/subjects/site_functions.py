"""Calls, within a flow, of functions that a site writes: functions of the request or the subject, sync or async."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest
from django.utils.functional import LazyObject

from django_quota.core.errors import ConfigurationError
from django_quota.core.flow import Flow, IOCall


def call_flow(function: Callable[..., Any], given: Any) -> Flow[Any]:
    """Call a function of the request or the subject, sync or async, and return its result.

    Raises `ConfigurationError` for an async function where its result cannot be awaited.
    """
    try:
        value = function(given)
    except SynchronousOnlyOperation as error:  # it needs the database, which an event loop must ask in a thread
        return (yield IOCall(partial(_raise, error), partial(sync_to_async(function), given)))
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


def _raise(error: Exception) -> Any:
    raise error


def user_flow(request: HttpRequest) -> Flow[Any]:
    """Return the user of a request, loaded from the database if needed; None if no middleware has set one."""
    user: Any = getattr(request, "user", None)
    if not isinstance(user, LazyObject):
        return user

    # A lazy user is loaded from the database when it is first used, which async code must await. `request.auser` only
    # knows the user of Django's own middleware.
    def load() -> Any:
        bool(getattr(user, "is_authenticated", False))
        return user

    later: Any = sync_to_async(load)
    if getattr(user.__dict__.get("_setupfunc"), "__module__", "") == _DJANGOS_OWN:
        later = request.auser
    return (yield IOCall(load, later))


_DJANGOS_OWN = "django.contrib.auth.middleware"
