"""All limits of a request or of a subject, read in one call to the store without taking anything; and the caller's own.

The caller sees their own as JSON at `path("limits/", include("django_quota.urls"))`, and by `{% quota_limits %}`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from http import HTTPStatus
from typing import Any
from zoneinfo import ZoneInfo

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_not_required
from django.db import Error as DatabaseError
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from django_quota.conf import current
from django_quota.core.algorithms import Limit
from django_quota.core.clock import DAY, moment_of, now
from django_quota.core.decisions import Decision, Outcome
from django_quota.core.errors import RuleError
from django_quota.core.flow import Flow, IOCall, run_async, run_sync
from django_quota.core.rule_options import Network
from django_quota.core.rules import Rule, default_tier_of, parts_of_key
from django_quota.engine.asks import Ask
from django_quota.features.usage.days import last_tiers
from django_quota.http.request_rules import site_rules
from django_quota.http.wording import when_in_words
from django_quota.limiting.api import ENTRIES_AT_ONCE, AnySubject, answer_flow, django_request, run_call
from django_quota.limiting.asking import asked_flow
from django_quota.limiting.known_rules import known_keys, known_rules, rule_finders
from django_quota.subjects.addresses import is_inside
from django_quota.subjects.keys import is_given_by
from django_quota.subjects.site_functions import KnownStarts, starting_flow
from django_quota.subjects.subject import subject_of

logger = logging.getLogger("django_quota.web")


def limits_of(request_or_subject: AnySubject, *, tier: str | None = None) -> Decision:
    """Return all limits that apply to a request or a subject; take nothing.

    The `outcomes` of the Decision have one entry for each limit: its rule, rate, how much is used and left, until when,
    and whether it admits one more unit. Under a tier without a limit, `limit` and `remaining` are None. No `cost`
    function is called. At most 1,000 rules are read.

    Of a request: the configured rules that match it and those on its view, if their `methods`, `skip` and `exempt`
    let them apply. Rules that read the body are left out.

    Of a subject, a string such as `"org:7"` or a user: the rules of the settings and of the views whose key can give
    this subject, and those of the settings that name neither a key nor a `match`, which calls use with any subject.
    Left out are rules whose rates are functions of the request, and those that exempt this address or this user, who is
    staff. `tier`: the tier of rules with rates by tier. By
    default, it is the tier of the subject's last request for rules with a `tier` function or another key than the user
    and the address, if their checks are counted by day; otherwise, a `user:` is "authenticated", and all others are
    "anonymous".

    It takes one call to the store, and one more to look up last tiers.

    Without limits, and while the store does not answer (`degraded`), there are no outcomes. Raises `RuleError` for a
    wrong subject, and for a tier that no rule has.
    """
    return run_call(_limits_flow(request_or_subject, tier))


async def alimits_of(request_or_subject: AnySubject, *, tier: str | None = None) -> Decision:
    """Return all limits of a request or a subject without blocking the event loop; see `limits_of`."""
    return await run_async(_limits_flow(request_or_subject, tier))


def _limits_flow(request_or_subject: AnySubject, tier: str | None) -> Flow[Decision]:
    request = django_request(request_or_subject)
    if request is None:
        subject = subject_of(request_or_subject, "limits_of()")
        known, exempt = _rules_for(subject, tier), current().exempt
        rules = [rule for rule in known if not _is_exempt(rule, subject, request_or_subject, exempt)]
        if tier is None:
            tiers = yield IOCall(last_tiers, sync_to_async(last_tiers), rules, subject)
        else:
            tiers = {rule.name: tier for rule in rules}
        return (yield from peek_flow((yield from _asked_of_flow(rules, subject, tiers))))
    return (yield from peek_flow((yield from asked_flow(rules_of_request(request), request, is_peek=True))))


def rules_of_request(request: HttpRequest) -> Iterator[Rule]:
    """Yield the configured rules that match a request, and those on the view that it resolves to."""
    yield from site_rules(request)
    match = request.resolver_match
    patterns = [path("", match.func)] if match is not None else []
    for finder in rule_finders:
        yield from finder(patterns)


def _rules_for(subject: str, tier: str | None) -> list[Rule]:
    """Return the known rules that can concern a subject."""
    keys, known = known_keys(), [rule for rule in known_rules().values() if isinstance(rule, Rule)]
    if tier is not None and not any(tier in rule.tiers for rule in known):
        raise RuleError(f"No rule has a tier {tier!r}.", "Name one of the tiers of a rule, or leave out tier=.")
    return [rule for rule in known if is_given_by(keys.get(rule.name, ()), subject)]


def _is_exempt(rule: Rule, subject: str, given: Any, networks: tuple[Network, ...]) -> bool:
    """Say whether `exempt`, or the site's `EXEMPT`, leaves out a subject: an address, or a user who is staff.

    `networks`: those in the site's `EXEMPT`.
    """
    if rule.exempt is not None:
        if rule.exempt.staff and getattr(given, "is_active", False) and getattr(given, "is_staff", False):
            return True
        networks += rule.exempt.networks
    kind, _, address = subject.partition(":")
    return kind == "ip" and is_inside(address, networks)


def _asked_of_flow(rules: Iterable[Rule], subject: str, tiers: Mapping[str, str]) -> Flow[list[Ask]]:
    """Return what rules ask for. `tiers`: the subject's tier by rule; a rule that is left out takes the default one."""
    default, known = default_tier_of(subject), KnownStarts()
    found = []
    for rule in rules:
        of_default = rule if rule.tier else rule.tiers.get(default, rule)
        of_tier = rule.tiers.get(tiers.get(rule.name, ""), of_default)
        found.append(Ask((yield from starting_flow(of_tier, subject, known)), subject, 1))
    return [ask for ask in found if ask.rule.limits or ask.rule.counting]


def peek_flow(asked: Iterable[Ask]) -> Flow[Decision]:
    """Return what is left of each limit, even if an override blocks the subject of another one."""
    once = list({ask.place: ask for ask in asked}.values())[:ENTRIES_AT_ONCE]
    answer = yield from answer_flow(once, "peek")
    skipped = answer.resolved.skipped
    others = [ask for ask in once if ask.place not in skipped]
    if answer.resolved.is_blocked and others:  # then the store was not asked
        left = yield from answer_flow(others, "peek")
        return answer.decision.combined_with(left.decision)
    return answer.decision


# --- the caller's own limits ------------------------------------------------------------------------------------------

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
        except Exception:  # noqa: BLE001 — a function of the site may expect the request of the limited view
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
        "rate": None if outcome.remaining is None else str(outcome.rate),
        "limit": outcome.limit,
        "used": outcome.used,
        "remaining": outcome.remaining,
        "until": until and until.isoformat(timespec="seconds"),
        "state": outcome.why,
    }


def until_of(outcome: Outcome) -> datetime | None:
    """Return when nothing of a limit is used any more, or a block ends, in the rule's time zone or the current one.

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
    """Return how much of a limit is left, and until when: `"9,995 of 10,000 left until 1 December"`."""
    if outcome.why == "exempt" or outcome.remaining is None:
        return _("unlimited")
    if outcome.limit == 0 and not outcome.is_shut_out:
        return _("closed")
    until = until_of(outcome)
    numbers = [number_format(number, force_grouping=True) for number in (outcome.remaining, outcome.of.capacity)]
    words = {"left": numbers[0], "limit": numbers[1], "until": until and _moment_in_words(outcome, until)}
    if outcome.is_shut_out:
        return _("blocked until %(until)s") % words if until else _("blocked")
    if until is None:
        return _("%(left)s of %(limit)s left") % words
    if outcome.of.algorithm_name in ("calendar", "fixed_window"):
        return _("%(left)s of %(limit)s left until %(until)s") % words
    return _("%(left)s of %(limit)s left, all of them from %(until)s") % words


def _moment_in_words(outcome: Outcome, until: datetime) -> str:
    """Return the day on which a period of days ends; or a time and its zone, with the day unless that is today."""
    calendar = _calendar(outcome)
    if not outcome.is_shut_out and calendar and calendar.rate.period >= DAY:
        # Half an hour more: the clocks may differ by seconds, and this must not name the day before the end.
        return date_format(until + timedelta(minutes=30), "MONTH_DAY_FORMAT")
    return when_in_words(until, moment_of(now()).astimezone(until.tzinfo), "TIME_FORMAT")
