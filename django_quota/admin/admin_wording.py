"""Durations, moments, limits and overrides in words, for the admin pages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import NamedTuple

from django.conf import settings
from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_quota.core.clock import SECOND
from django_quota.core.overrides import ALL_RULES
from django_quota.features.event_stream import Event
from django_quota.models import QuotaOverride
from django_quota.operating.inspection import WITHOUT_STORE, LimitStatus
from django_quota.operating.lookup import parts_of
from django_quota.requests.subjects import LOGIN
from django_quota.web.wording import wait_in_words

ALGORITHM_NAMES: dict[str, str | Promise] = {
    "sliding_window": gettext_lazy("sliding window"),
    "fixed_window": gettext_lazy("fixed window"),
    "calendar": gettext_lazy("calendar"),
    "token_bucket": gettext_lazy("token bucket"),
    "leaky_bucket": gettext_lazy("leaky bucket"),
    "distinct": gettext_lazy("different values"),
    "stock": gettext_lazy("counter"),
}

KIND_NAMES: dict[str, str | Promise] = {
    "refused": gettext_lazy("refused"),
    "banned": gettext_lazy("banned"),
    "near": gettext_lazy("near its limit"),
}
"""The kinds of events in words."""

WHYS: dict[str, str | Promise] = {
    "override": gettext_lazy("by an override"),
    "exempt": gettext_lazy("exempt by an override"),
    "blocked": gettext_lazy("blocked by an override"),
    "banned": gettext_lazy("banned"),
}


def span_in_words(seconds: float) -> str:
    """Return a duration in one unit, rounded up: `"90 seconds"`, `"3 hours"`."""
    return wait_in_words(max(1, ceil(seconds)))


def moment_of(now: int, seconds: float = 0.0) -> datetime:
    """Return the local time `seconds` after `now`, the store's time in microseconds."""
    moment = datetime.fromtimestamp(now / SECOND, UTC) + timedelta(seconds=seconds)
    return timezone.localtime(moment) if settings.USE_TZ else timezone.make_naive(moment)


def moment_in_words(moment: datetime, style: str = "DATETIME_FORMAT") -> str:
    """Return a moment in the language's format, with its time zone; `style` names one of Django's date formats."""
    shown = timezone.localtime(moment) if timezone.is_aware(moment) else moment
    return f"{date_format(shown, style)} {date_format(shown, 'T')}"


def sentence(words: str) -> str:
    """Return words with a full stop, unless they end with one, as `1:43 p.m.` does."""
    return words if words.endswith(".") else _("%(words)s.") % {"words": words}


def rule_in_words(rule: str) -> str:
    """Return a rule for use in a sentence: `rule "search"`, `all rules`."""
    return _("all rules") if rule in ("", ALL_RULES) else _('rule "%s"') % rule


def subject_in_words(subject: str, names: Mapping[str, str]) -> str:
    """Return a subject without whole digests: `Failed logins of ann at 203.0.113.9`, `ann (user:42)`.

    `names`: the names of users by part of a subject; see `names_among`.
    """
    parts = parts_of(subject)
    logins = [part for part in parts if part.startswith(LOGIN)]
    others = [
        f"{names[part]} ({part})" if part in names else _DIGEST.sub(r"\1…", part)
        for part in parts
        if part not in logins
    ]
    if not logins:
        return "+".join(others)
    words = {
        "name": names.get(logins[0], _("a user name")),
        "rest": " + ".join(part.removeprefix("ip:") for part in others),
    }
    return (_("Failed logins of %(name)s at %(rest)s") if others else _("Failed logins of %(name)s")) % words


_DIGEST = re.compile(
    r"((?:\A(?:header|cookie|get|post|json)\.[^:]*:|\Asession:)[0-9a-f]{6})[0-9a-f]{26}\Z|(?<=~[0-9a-f]{6})[0-9a-f]{58}\Z"
)


def refused_until(seconds: float | None, now: int, rule: str, why: str = "") -> str:
    """Return who refuses until when: `refused by login until 02:25:12 UTC (ban 1)`. `seconds`: None for ever.

    0 seconds: Redis takes no changes, so nobody knows until when.
    """
    words = {"rule": rule, "until": ""}
    if not seconds:
        text = (_("refused by %(rule)s") if seconds == 0 else _("refused by %(rule)s for good")) % words
    else:
        words["until"] = clock_time(moment_of(now, ceil(seconds)), moment_of(now))
        text = _("refused by %(rule)s until %(until)s") % words
    return f"{text} ({why})" if why else text


def clock_time(moment: datetime, now: datetime) -> str:
    """Return a moment to the second, with its time zone, and with its date unless that is today's: `02:25:12 UTC`."""
    return f"{moment:{'' if moment.date() == now.date() else '%Y-%m-%d '}%H:%M:%S %Z}".rstrip()


STATES: dict[str, str | Promise] = {
    "active": gettext_lazy("active"),
    "pending": gettext_lazy("not yet begun"),
    "ended": gettext_lazy("ended"),
}


def state_of(row: QuotaOverride, now: datetime) -> str:
    """Return the state of an override: a key of `STATES`."""
    if row.expires is not None and row.expires <= now:
        return "ended"
    return "pending" if row.starts is not None and row.starts > now else "active"


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A limit in words."""

    status: LimitStatus
    now: int
    """The store's time in microseconds."""

    @property
    def title(self) -> str:
        """The rate and the algorithm."""
        words = {"rate": self.status.rate, "algorithm": ALGORITHM_NAMES.get(self.status.algorithm, "")}
        return _("%(rate)s by %(algorithm)s") % words

    @property
    def usage(self) -> str:
        """How much is used and how much is left."""
        numbers = {"used": self.status.used, "limit": self.status.limit, "left": self.status.remaining}
        words = {name: number_format(number, force_grouping=True) for name, number in numbers.items()}
        return _("%(used)s of %(limit)s used, %(left)s left") % words

    @property
    def next(self) -> str:
        """When the next hit is admitted."""
        if self.status.instead:
            return str(WITHOUT_STORE[self.status.instead])
        return next_in_words(self.status.retry_after)

    @property
    def next_moment(self) -> datetime | None:
        """The moment when the next hit is admitted; None for now and for never."""
        return moment_of(self.now, self.status.retry_after) if self.status.retry_after else None

    @property
    def reset(self) -> str:
        """When nothing is used any more; empty if nothing is used."""
        if not self.status.used:
            return ""
        return _("fully available in %s") % span_in_words(self.status.reset_after)

    @property
    def why(self) -> str | Promise:
        """What replaces the limit, or why it refuses nobody."""
        return _("a shadow rule: it only reports") if self.status.shadow else WHYS.get(self.status.why, "")

    @property
    def refusal(self) -> str:
        """Why the next hit is refused, in a few words: a ban or a block, or how much is used."""
        if self.status.why in ("banned", "blocked"):
            return str(self.why)
        return f"{self.usage} ({self.why})" if self.why else self.usage

    @property
    def maximum(self) -> int:
        """The length of the bar; at least 1, since a bar needs a length."""
        return max(1, self.status.limit)

    @property
    def low(self) -> float:
        """Where the bar turns to a warning. A browser shows three colours only where this is above 0."""
        return max(0.5, min(self.maximum * 4 // 5, self.high))

    @property
    def high(self) -> int:
        """Above this the bar is red: the limit is used up."""
        return self.maximum - 1

    @property
    def filled(self) -> int:
        """How much of the bar is filled: all of it if the limit is 0."""
        return min(self.status.used, self.maximum) if self.status.limit else self.maximum


def next_in_words(retry_after: float | None) -> str:
    """Return when the next hit is admitted; None means never."""
    if retry_after is None:
        return _("no hit is admitted")
    if retry_after == 0:
        return _("the next hit is admitted")
    return _("the next hit is admitted in %s") % span_in_words(retry_after)


def ordinal(level: int) -> str:
    """Return which ban in a row this is."""
    return ngettext("the first ban", "ban number %(level)d in a row", level) % {"level": level}


# --- events -----------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """An event on the page."""

    event: Event
    what: str
    """Its kind in words."""
    at: datetime
    until: datetime | None


def lines(found: Sequence[Event]) -> list[Line]:
    """Return events as the page shows them."""
    return [
        Line(event, str(KIND_NAMES[event.kind]), moment_of(event.at), moment_of(event.until) if event.until else None)
        for event in found
    ]
