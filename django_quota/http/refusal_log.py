"""The log line of a refusal: at most one a second for each rule."""

from __future__ import annotations

import logging
from functools import lru_cache
from http import HTTPStatus

from django.http import HttpResponseBase

from django_quota.core import clock
from django_quota.core.clock import SECOND
from django_quota.core.decisions import Decision
from django_quota.http.wording import refusal_status

_LOGGED = "_has_been_logged"
"""The attribute by which Django knows that a response has been logged."""

MAX_LOGGED = 200
"""Characters of a subject or the name of a rule in the log."""

logger = logging.getLogger("django.request")


def log_refusal(response: HttpResponseBase, decision: Decision) -> None:
    """Log a refusal, once a second for each rule. Django itself would log every refusal, with the whole path.

    An outage is logged once. Django would log each 503 as an error, and mail it to ADMINS.
    """
    if getattr(response, _LOGGED, False):
        return
    setattr(response, _LOGGED, True)
    last, now = _last_logged(decision.rule), clock.now()
    if refusal_status(decision) != HTTPStatus.SERVICE_UNAVAILABLE and not 0 <= now - last[0] < SECOND:
        last[0] = now
        extra = {"status_code": response.status_code, "request": None}  # what Django's own lines have
        rule, subject = decision.rule[:MAX_LOGGED], decision.subject[:MAX_LOGGED]
        logger.warning("Too many requests: rule %r refuses %r.", rule, subject, extra=extra)


@lru_cache(maxsize=1024)
def _last_logged(_rule: str) -> list[int]:
    """Return a list with one item: when a refusal of a rule was last logged, in microseconds."""
    return [0]
