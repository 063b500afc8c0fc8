"""What visitors read, in their language: rates, waits and the reason for a refusal.

It names no rule, view or subject. For operators and logs there is `Decision.explain`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from datetime import time as time_of_day
from http import HTTPStatus
from typing import NamedTuple

from django.utils.formats import date_format, number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy

from django_quota.conf import current, limits_logins
from django_quota.core.algorithms import Limit
from django_quota.core.algorithms.stock import Held, UnitsLeft
from django_quota.core.decisions import AtOnce, Decision, Outcome
from django_quota.core.rates import Rate

_EVERY = {
    "second": gettext_lazy("%(count)s per second"),
    "minute": gettext_lazy("%(count)s per minute"),
    "hour": gettext_lazy("%(count)s per hour"),
    "day": gettext_lazy("%(count)s per day"),
    "week": gettext_lazy("%(count)s per week"),
    "month": gettext_lazy("%(count)s per month"),
    "year": gettext_lazy("%(count)s per year"),
}
_EVERY_FEW = {
    "second": ngettext_lazy("%(count)s per %(n)d second", "%(count)s per %(n)d seconds", "n"),
    "minute": ngettext_lazy("%(count)s per %(n)d minute", "%(count)s per %(n)d minutes", "n"),
    "hour": ngettext_lazy("%(count)s per %(n)d hour", "%(count)s per %(n)d hours", "n"),
    "day": ngettext_lazy("%(count)s per %(n)d day", "%(count)s per %(n)d days", "n"),
    "week": ngettext_lazy("%(count)s per %(n)d week", "%(count)s per %(n)d weeks", "n"),
    "month": ngettext_lazy("%(count)s per %(n)d month", "%(count)s per %(n)d months", "n"),
    "year": ngettext_lazy("%(count)s per %(n)d year", "%(count)s per %(n)d years", "n"),
}


def rate_in_words(rate: Rate | AtOnce | UnitsLeft) -> str:
    """Return a rate as people say it: `"10 per minute"`, `"5 per 30 seconds"`, `"10 at once"`."""
    count = number_format(rate.count, use_l10n=True, force_grouping=True)
    if isinstance(rate, UnitsLeft):
        return _("%(count)s left") % {"count": count}
    if isinstance(rate, AtOnce):
        return _("%(count)s at once") % {"count": count}
    if rate.multiple == 1:
        return _EVERY[rate.unit] % {"count": count}
    return _EVERY_FEW[rate.unit] % {"count": count, "n": rate.multiple}


def wait_in_words(seconds: int) -> str:
    """Return seconds as people say it, in one unit, rounded up: `"90 seconds"`, `"3 hours"`, `"2 days"`."""
    if seconds < 120:  # noqa: PLR2004 — up to two minutes, seconds read well
        return ngettext("%(n)d second", "%(n)d seconds", seconds) % {"n": seconds}
    if seconds < 7_200:  # noqa: PLR2004 — up to two hours
        minutes = math.ceil(seconds / 60)
        return ngettext("%(n)d minute", "%(n)d minutes", minutes) % {"n": minutes}
    if seconds < 172_800:  # noqa: PLR2004 — up to two days
        hours = math.ceil(seconds / 3_600)
        return ngettext("%(n)d hour", "%(n)d hours", hours) % {"n": hours}
    days = math.ceil(seconds / 86_400)
    return ngettext("%(n)d day", "%(n)d days", days) % {"n": days}


def when_in_words(moment: datetime, now: datetime, style: str = "H:i:s") -> str:
    """Return a local time with its day, unless that is today: `"23:42:57 UTC"`, `"November 29, 23:42:57 UTC"`.

    At midnight the day is enough. `style`: Django's format of the time.
    """
    time = f"{date_format(moment, style)} {date_format(moment, 'T')}".rstrip()
    if moment.date() == now.date():
        return time
    day = date_format(moment, "MONTH_DAY_FORMAT" if moment.year == now.year else "DATE_FORMAT")
    return day if moment.time() == MIDNIGHT else _("%(day)s, %(time)s") % {"day": day, "time": time}


MIDNIGHT = time_of_day()


class RefusalDetails(NamedTuple):
    """What the answer to a refused request says."""

    status: HTTPStatus
    """429, or 503 if the store did not answer; without enough credits that of `CREDITS_STATUS`."""
    message: str
    """What a visitor reads, in the active language: the limit, and when to try again."""
    wait: int | None
    """The wait in whole seconds, rounded up, at least 1; None if waiting does not help."""


def refusal_details(decision: Decision) -> RefusalDetails:
    """Return the status, the message and the wait of a refusal, for an answer in a form of your own."""
    return RefusalDetails(refusal_status(decision), message(decision), whole_wait(decision))


def whole_wait(decision: Decision) -> int | None:
    """Return the wait in whole seconds, rounded up, at least 1; None if waiting does not help."""
    wait = None if _needs_captcha(decision) else decision.retry_after
    return None if wait is None else max(1, math.ceil(wait))


def refusal_status(decision: Decision) -> HTTPStatus:
    """Return the status of a refusal: 429, or 503 if it was refused because the store did not answer.

    If a counter holds too little, the setting `CREDITS_STATUS` says it.
    """
    if decision.degraded and decision.binding is None:
        return HTTPStatus.SERVICE_UNAVAILABLE
    is_of_credits = decision.binding is not None and isinstance(decision.binding.of, Held)
    return HTTPStatus(current().credits_status) if is_of_credits else HTTPStatus.TOO_MANY_REQUESTS


def title(decision: Decision, status: int) -> str:
    """Return the title of a refusal with this status: 429, 402 or 503."""
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return _("Service unavailable")
    if status == HTTPStatus.PAYMENT_REQUIRED:
        return _("Payment required")
    is_blocked = decision.binding is not None and decision.binding.why == "blocked"
    return _("Access blocked") if is_blocked else _("Too many requests")


def message(decision: Decision) -> str:
    """Return what a refused visitor reads, in the active language: why, and when to try again."""
    binding, wait = decision.binding, whole_wait(decision)
    if binding is None:
        return _("This cannot be served right now. Please try again shortly.")
    if _needs_captcha(decision):
        return _("There were failed logins. Please solve the CAPTCHA.")
    again = (
        _("Trying again will not help.")
        if wait is None
        else _("Please try again in %(wait)s.") % {"wait": wait_in_words(wait)}
    )
    if binding.why in ("banned", "blocked"):
        return _sentences(_("Access is blocked."), again)
    if binding.limit == 0 and not isinstance(binding.of, Held):
        return _("This is closed until further notice.")
    return _sentences(*_limit_sentences(binding), again)


def _needs_captcha(decision: Decision) -> bool:
    """Return whether the limits allow the login, and only a CAPTCHA is missing; see `contrib.auth.CaptchaRequired`."""
    return decision.binding is not None and decision.binding.allowed


def _limit_sentences(binding: Outcome) -> Iterator[str]:
    """Yield the sentences that say what the limit is, and why this request exceeds it."""
    numbers = {"cost": binding.cost, "left": binding.remaining or 0, "most": binding.of.capacity}
    words = {name: number_format(number, use_l10n=True, force_grouping=True) for name, number in numbers.items()}
    words["rate"] = rate_in_words(binding.rate)
    of = binding.of
    if isinstance(of, Held):
        yield _("This request needs %(cost)s credits, and %(left)s are left.") % words
        return
    if limits_logins() and any(binding.rule == rule.name for rule in current().login):
        yield _("Too many failed logins: the limit is %(rate)s.") % words
    elif isinstance(of, Limit) and of.algorithm_name == "distinct":
        yield _("The limit is %(rate)s, and each different value counts once.") % words
    elif isinstance(of, Limit) and of.options.burst is not None:
        yield _("The limit is %(rate)s, at most %(most)s at once.") % words
    else:
        yield _("The limit is %(rate)s.") % words
    if isinstance(of, Limit) and of.share < 1:
        yield _("Near it, other requests take precedence.")
    if binding.retry_after is None:
        yield _("This request counts as %(cost)s, more than the %(most)s that are ever left.") % words
    elif binding.cost > 1:
        yield _("This request counts as %(cost)s, and %(left)s of %(most)s are left.") % words


def _sentences(*sentences: str) -> str:
    """Join sentences with a space, or without one in Chinese."""
    return " ".join(sentences).replace("。 ", "。")
