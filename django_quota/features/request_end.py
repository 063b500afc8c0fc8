"""What has to happen at the end of the present request, whatever became of its response.

A middleware may replace a streaming response or raise an error, and a client may leave before the stream begins. Then
nobody reads the response, and nobody closes it. But Django always sends `request_finished`: when the server has closed
the response that it was given, or once the task of the request was cancelled. Only under ASGI it does not if the
server fails to send, or cancels the application itself. Then what is left is done once the request is collected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, finalize

from asgiref.sync import SyncToAsync
from django.core.signals import request_finished, request_started

from django_quota.core import clock
from django_quota.limiting.flusher import flusher
from django_quota.runtime import runtime

logger = logging.getLogger("django_quota")

AtEnd = Callable[[], object]

_of_context: ContextVar[list[AtEnd] | None] = ContextVar("django_quota_request_end", default=None)
"""The actions of a request that a thread serves, as under WSGI."""

_of_request: WeakKeyDictionary[Any, list[AtEnd]] = WeakKeyDictionary()
"""The actions of a request under ASGI, whose tasks have contexts of their own: by an object that each request has."""


def at_request_end(action: AtEnd) -> Callable[[], None]:
    """Call a function when the present request ends, in a thread that may block; return how to withdraw it.

    Outside of a request it is never called.
    """
    if hearing.made is None:  # the app is not in INSTALLED_APPS: nobody has heard this request begin
        hearing.get()
        _begin()
    actions = _actions()
    if actions is None:
        return lambda: None
    actions.append(action)

    def withdraw() -> None:
        with suppress(ValueError):  # the request has ended
            actions.remove(action)

    return withdraw


def closers_of(response: Any) -> list[AtEnd]:
    """Return the functions that a response calls when it is closed; its `close()` also says that the request is over.

    Django has no public way to add one.
    """
    found: list[AtEnd] = getattr(response, "_resource_closers", [])
    return found


def _actions() -> list[AtEnd] | None:
    """Return the actions of the present request; None outside of one."""
    request = SyncToAsync.thread_sensitive_context.get(None)
    if request is None:
        return _of_context.get()
    new: list[AtEnd] = []
    actions = _of_request.setdefault(request, new)
    if actions is new:
        finalize(request, _leave, actions).atexit = False
    return actions


def _begin(**_: Any) -> None:
    _of_context.set([])


def _end(**_: Any) -> None:
    request = SyncToAsync.thread_sensitive_context.get(None)
    actions = _of_context.get() if request is None else _of_request.pop(request, None)
    _of_context.set(None)
    _do(actions or [])


def _leave(actions: list[AtEnd]) -> None:
    """Have the thread in the background do what is left: an event loop may run here."""
    if actions:
        flusher.call_at(clock.elapsed(), partial(_do, actions))


def _do(actions: list[AtEnd]) -> None:
    while actions:
        try:
            actions.pop()()
        except Exception:
            logger.exception("A request is over, and a part of what it held was not given back.")


def _hear() -> bool:
    request_started.connect(_begin)
    request_finished.connect(_end)
    return True


hearing = runtime.part(_hear, depends=lambda *_: False)
"""Whether this process hears requests begin and end. `AppConfig.ready` makes it so."""
