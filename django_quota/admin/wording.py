"""Durations, moments, limits and subjects in words, for the admin pages. Their templates use these as filters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from math import ceil
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.functional import Promise
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_quota.core import clock
from django_quota.core.clock import SECOND
from django_quota.core.overrides import ALL_RULES
from django_quota.core.rates import RateChange, parse_override_rates
from django_quota.core.rule_options import BanOption, Exemption, Shares
from django_quota.core.rules import Rule, Tiers, option_in_words
from django_quota.http.wording import wait_in_words, when_in_words
from django_quota.limiting.known_rules import known_rules
from django_quota.models import QuotaOverride
from django_quota.subjects.subject import LOGIN, parts_of

if TYPE_CHECKING:
    from django_quota.features.events import Event, Flood
    from django_quota.operating.inspection import LimitStatus

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

BAN_NAMES: dict[int, str | Promise] = {
    1: gettext_lazy("first ban"),
    2: gettext_lazy("second ban"),
    3: gettext_lazy("third ban"),
    4: gettext_lazy("fourth ban"),
    5: gettext_lazy("fifth ban"),
}

WHYS: dict[str, str | Promise] = {
    "override": gettext_lazy("by an override"),
    "exempt": gettext_lazy("exempt by an override"),
    "blocked": gettext_lazy("blocked by an override"),
    "banned": gettext_lazy("banned"),
}


def span_in_words(seconds: float) -> str:
    """Return a duration in one unit, rounded up: `"90 seconds"`, `"3 hours"`."""
    return wait_in_words(max(1, ceil(seconds)))


def duration_in_words(microseconds: int) -> str:
    """Return an exact duration in its largest whole unit: `"1 minute"`, `"90 minutes"`, `"1 day"`."""
    seconds = ceil(microseconds / SECOND)
    if seconds % 86_400 == 0:
        return ngettext("%(n)d day", "%(n)d days", seconds // 86_400) % {"n": seconds // 86_400}
    if seconds % 3_600 == 0:
        return ngettext("%(n)d hour", "%(n)d hours", seconds // 3_600) % {"n": seconds // 3_600}
    if seconds % 60 == 0:
        return ngettext("%(n)d minute", "%(n)d minutes", seconds // 60) % {"n": seconds // 60}
    return ngettext("%(n)d second", "%(n)d seconds", seconds) % {"n": seconds}


def time_left_in_words(until: int, now: int) -> str:
    """Return the time from one moment to another, both in microseconds."""
    return span_in_words((until - now) / SECOND)


def local_moment(now: int, seconds: float = 0.0) -> datetime:
    """Return the local time `seconds` after `now`, the store's time in microseconds, rounded up to a second."""
    moment = datetime.fromtimestamp(-(-(now + round(seconds * SECOND)) // SECOND), UTC)
    if settings.USE_TZ:
        return timezone.localtime(moment)
    # The time zone of the settings, not the one that a request has activated.
    return timezone.make_naive(moment, timezone.get_default_timezone())


def moment_in_words(moment: datetime, style: str = "DATETIME_FORMAT") -> str:
    """Return a moment in the language's format, with its time zone; `style` names one of Django's date formats."""
    shown = timezone.localtime(moment) if timezone.is_aware(moment) else moment
    return f"{date_format(shown, style)} {date_format(shown, 'T')}"


def second_in_words(moment: int) -> str:
    """Return a moment (microseconds) in local time to the second, with its day unless that is today."""
    return when_in_words(local_moment(moment), local_moment(clock.now()))


def event_in_words(event: Event) -> str:
    """Return what an event says of its limit: `needed 50, 49 of 600 are left, until December 1`."""
    numbers = {"cost": event.cost, "left": event.remaining, "limit": event.capacity}
    words: dict[str, Any] = {name: number_format(each, force_grouping=True) for name, each in numbers.items()}
    words["share"] = f"{100 * event.share:.4g}"
    if event.kind == "near":
        return _("%(share)s %% used, %(left)s of %(limit)s are left") % words
    until = _("until %s") % second_in_words(event.until) if event.until else _("for good")
    if event.kind == "banned":
        which = f"{ban_in_words(event.level)}, {until}"
        return f"{which}: {event.reason}" if event.reason else which
    if event.reason:  # no limit has refused it
        return f"{WHYS.get(event.reason, event.reason)}, {until}"
    return f"{_('needed %(cost)s, %(left)s of %(limit)s are left') % words}, {until}"


def ban_in_words(level: int) -> str:
    """Return which ban in a row this is: `first ban`."""
    return str(BAN_NAMES[level]) if level in BAN_NAMES else _("ban number %d") % level


def sender_in_words(event: Event, names: Mapping[str, str]) -> str:
    """Return who sent the request of an event, and what: `ann GET /api/reports/`; empty if nothing is known.

    A user who is the subject is left out. `names`: the names of users by subject; see `names_among`.
    """
    is_subject = event.user in parts_of(event.subject or "")  # then it is beside it already
    user = "" if is_subject else names.get(event.user or "", event.user or "")
    return " ".join(filter(None, (user, event.method, event.path)))


def reason_in_words(event: Event, names: Mapping[str, str]) -> str:
    """Return why somebody set a ban, and who: `spam (by ann)`; empty if the limiter has set it.

    `names`: the names of users by subject; see `names_among`.
    """
    who = event.set_by
    by = _("by %(sender)s") % {"sender": names.get(who, who)} if who else ""
    return f"{event.reason} ({by})" if event.reason and by else event.reason or by


def flood_in_words(flood: Flood) -> str:
    """Return how many subjects a rule refused, or how often it refused one, and since when."""
    words = {"n": number_format(flood.subjects, force_grouping=True), "since": second_in_words(flood.since)}
    if flood.subjects == 1:
        number = len(flood.events)
        words["n"] = number_format(number, force_grouping=True)
        return ngettext("%(n)s time since %(since)s", "%(n)s times since %(since)s", number) % words
    if flood.kind_of_subjects == "user":
        text = ngettext("refused %(n)s user since %(since)s", "refused %(n)s users since %(since)s", flood.subjects)
    elif flood.kind_of_subjects == "ip":
        text = ngettext(
            "refused %(n)s address since %(since)s", "refused %(n)s addresses since %(since)s", flood.subjects
        )
    else:
        text = ngettext(
            "refused %(n)s subject since %(since)s", "refused %(n)s subjects since %(since)s", flood.subjects
        )
    return text % words


def rule_in_words(rule: str) -> str:
    """Return a rule for use in a sentence: `rule "search"`, `all rules`."""
    return _("all rules") if rule in ("", ALL_RULES) else _('rule "%s"') % rule


def breakable(name: str) -> SafeString:
    """Return a rule's name that may break after its dots and underscores: it is often the dotted path of a view."""
    return mark_safe(_BREAKS.sub(r"\g<0><wbr>", escape(name)))  # noqa: S308 — it is escaped


_BREAKS = re.compile(r"[._]+(?=.)")


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
    """Say what refuses, and until when: `refused by login until 02:25:12 UTC (first ban)`.

    `seconds`: None for good; 0 if the end is not known, because the store accepts no changes.
    """
    words = {"rule": rule, "until": ""}
    if seconds:
        words["until"] = when_in_words(local_moment(now, seconds), local_moment(now))
        text = _("refused by %(rule)s until %(until)s")
    else:
        text = _("refused by %(rule)s") if seconds == 0 else _("refused by %(rule)s for good")
    return text % words + (f" ({why})" if why else "")


def raise_in_words(limit: LimitStatus, row: QuotaOverride | None) -> str:
    """Return what a top-up adds: `600 = 100 of plan free + 500 until December 1`; empty for other overrides.

    `row`: the override of the limit's rule.
    """
    rule = known_rules().get(limit.rule)
    change = parse_override_rates(row.rate) if row is not None and limit.why == "override" and row.rate else None
    if not isinstance(rule, Rule) or not isinstance(change, RateChange) or change.factor != 1 or not change.units:
        return ""
    base, own = limit.limit - change.units, rule.tiers.get(limit.tier, rule).limits
    if base not in [each.rate.count for each in own]:
        return ""
    numbers = {"limit": limit.limit, "base": base, "units": change.units}
    words: dict[str, Any] = {name: number_format(each, force_grouping=True) for name, each in numbers.items()}
    words["tier"] = limit.tier
    text = _("%(limit)s = %(base)s of plan %(tier)s + %(units)s") if limit.tier else "%(limit)s = %(base)s + %(units)s"
    if row is None or row.expires is None:
        return text % words
    until = timezone.localtime(row.expires) if timezone.is_aware(row.expires) else row.expires
    return f"{text % words} {_('until %s') % when_in_words(until, local_moment(clock.now()))}"


STATES: dict[str, str | Promise] = {
    "active": gettext_lazy("active"),
    "pending": gettext_lazy("not yet begun"),
    "ended": gettext_lazy("ended"),
}


def override_state(row: QuotaOverride) -> str:
    """Return the state of an override now: a key of `STATES`."""
    now = timezone.now()
    if row.expires is not None and row.expires <= now:
        return "ended"
    return "pending" if row.starts is not None and row.starts > now else "active"


def value_in_words(value: object) -> str:
    """Return the value of a rule's option. A ban, tiers and who is exempt are sentences; other values are code."""
    if isinstance(value, BanOption):
        number = value.after.count
        words = {
            "n": number,
            "window": duration_in_words(value.after.period),
            "durations": ", ".join(duration_in_words(each) for each in value.durations),
        }
        after = ngettext(
            "after %(n)d refusal in %(window)s, for %(durations)s",
            "after %(n)d refusals in %(window)s, for %(durations)s",
            number,
        )
        return after % words
    if isinstance(value, Tiers):
        tiers = ((name, "; ".join(map(str, rates)) or _("unlimited")) for name, rates in value.rates)
        return ", ".join(_("%(rate)s for %(tier)s") % {"rate": rate, "tier": tier} for tier, rate in tiers)
    if isinstance(value, Shares):
        return ", ".join(_("%(rate)s for %(tier)s") % {"rate": part, "tier": tier} for tier, part in value.of_tiers)
    if isinstance(value, Exemption):
        staff = [_("staff users")] if value.staff else []
        return ", ".join([*map(str, value.networks), *staff, *map(option_in_words, value.functions)])
    return option_in_words(value)


def algorithm_in_words(name: str) -> str | Promise:
    return ALGORITHM_NAMES.get(name, name)


def kind_in_words(kind: str) -> str | Promise:
    return KIND_NAMES[kind]


def next_in_words(limit: LimitStatus) -> str:
    """Return when the next hit is admitted."""
    from django_quota.operating.inspection import WITHOUT_STORE  # noqa: PLC0415 — no page is needed to start

    if limit.instead:
        return str(WITHOUT_STORE[limit.instead])
    if limit.retry_after is None:
        return _("no hit is admitted")
    if limit.retry_after == 0:
        return _("the next hit is admitted")
    return _("the next hit is admitted in %s") % span_in_words(limit.retry_after)


def why_in_words(limit: LimitStatus) -> str | Promise:
    """Return what replaces a limit, or why it refuses nobody; empty if it counts as its rule says."""
    return _("a shadow rule: it only reports") if limit.shadow else WHYS.get(limit.why, "")
