"""The decision on a request: its rules become one plan, and the plan is decided in one call to the store.

A body is read only when it is needed. If some rules limit by a field of it that is not read yet, the other rules
are decided first, in a call of their own. So a request that an address limit or a ban refuses costs no parsing.
"""

from __future__ import annotations

import logging
import reprlib
import secrets
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from time import perf_counter_ns
from typing import cast

from django.http import HttpRequest

from django_quota.conf import current, time_zone
from django_quota.core.clock import SECOND
from django_quota.core.decisions import Decision
from django_quota.core.errors import QuotaError, RateError, RuleError, did_you_mean
from django_quota.core.flow import Flow, run_async, run_sync
from django_quota.core.rates import validate_cost
from django_quota.core.rules import ANONYMOUS, AUTHENTICATED, Exemption, Rule, dotted_path
from django_quota.engine.codec import Reservation
from django_quota.engine.plans import Plan
from django_quota.services.addresses import is_from
from django_quota.services.observers import notify, receivers, timed
from django_quota.services.outages import ongoing
from django_quota.services.registry import get_limiter
from django_quota.services.subjects import (
    call_flow,
    digest,
    has_unread_body,
    ip_subject,
    subject_flow,
    user_flow,
)

logger = logging.getLogger("django_quota")


Pairs = Sequence[tuple[Rule, str]]
"""Rules, each with a subject that the caller names."""


def decide_request(rules: Sequence[Rule], request: HttpRequest, pairs: Pairs = ()) -> Decision:
    """Decide a request under these rules; see `request_flow`."""
    if ongoing and (decision := _allow_during_outage(rules, pairs)):
        return decision
    return run_sync(request_flow(rules, request, pairs))


async def adecide_request(rules: Sequence[Rule], request: HttpRequest, pairs: Pairs = ()) -> Decision:
    """Decide a request under these rules without blocking the event loop; see `request_flow`."""
    if ongoing and (decision := _allow_during_outage(rules, pairs)):
        return decision
    return await run_async(request_flow(rules, request, pairs))


def request_flow(rules: Sequence[Rule], request: HttpRequest, pairs: Pairs = ()) -> Flow[Decision]:
    """Decide a request under these rules, and subjects under theirs.

    If no rule applies, the request is allowed and has no outcomes.
    """
    if not current().enabled:
        return _NOT_LIMITED
    limiter = get_limiter()
    need_body = [rule for rule in rules if rule.reads_body and has_unread_body(request, rule.reads_body)]
    if need_body:
        others = [rule for rule in rules if not rule.reads_body or not has_unread_body(request, rule.reads_body)]
        if others or pairs:
            first = _with_pairs((yield from request_plan(others, request)), request, pairs)
            return (yield from limiter.two_step_flow(first, partial(request_plan, need_body, request)))
    plan = _with_pairs((yield from request_plan(rules, request)), request, pairs)
    return (yield from limiter.decision_flow(plan, "check"))


def _with_pairs(plan: Plan, request: HttpRequest, pairs: Pairs) -> Plan:
    for rule, subject in pairs:
        plan.add(rule, subject, cast("int", rule.cost))
        if rule.settles:
            _settle_later(plan, request)
    return plan


_NOT_LIMITED = Decision(allowed=True, rule="", subject="")


def _allow_during_outage(rules: Sequence[Rule], pairs: Pairs) -> Decision | None:
    """Allow a request without a look at it, if its rules allow everything during an outage.

    So limits cost next to nothing then. The Decision has no subject. None if the rules must be decided.
    """
    began = perf_counter_ns() if timed else 0
    if pairs:
        rules = [*rules, *(rule for rule, _ in pairs)]
    if not rules or not current().enabled or not get_limiter().allows_unasked(rules):
        return None
    decision = _allowed_during_outage(rules[0].name)
    if receivers:
        notify(decision, began)
    return decision


@lru_cache(maxsize=256)
def _allowed_during_outage(rule: str) -> Decision:
    return Decision(allowed=True, rule=rule, subject="", degraded=True)


# --- the plan ---------------------------------------------------------------------------------------------------------


def new_plan(kind: type[Plan] = Plan) -> Plan:
    """Return an empty plan, by the settings."""
    settings = current()
    return kind(settings.prefix, settings.events, time_zone)


def request_plan(rules: Iterable[Rule], request: HttpRequest) -> Flow[Plan]:
    """Return the plan of a request: the rules that apply to it, each with its subject and cost."""
    plan = new_plan()
    key: object = None
    subject: str | None = None
    for rule in rules:
        is_plain = rule.is_plain  # most rules have no other options than a match
        if not is_plain and (yield from _is_skipped(rule, request)):
            continue
        if subject is None or rule.key != key:  # stacked rules mostly share their key
            key = rule.key
            if key == "ip":
                subject = ip_subject(request)
            else:
                reading = subject_flow(key, request)
                subject = yield from (_of_body(rule, reading) if rule.reads_body else reading)
        if subject is None:
            continue
        if rule.match is not None and _is_decided(rule, subject, request):
            continue
        if is_plain:
            plan.add(rule, subject, cast("int", rule.cost))
            continue
        cost = (
            validate_cost((yield from call_flow(rule.cost, request)), rule.name) if callable(rule.cost) else rule.cost
        )
        value = "" if rule.distinct is None else (yield from _of_body(rule, _value_flow(rule, request)))
        if value is None:
            continue
        plan.add((yield from _rates_flow(rule, request)) if rule.dynamic else rule, subject, cost, value)
        if rule.settles:
            _settle_later(plan, request)
    return plan


def _of_body(rule: Rule, reading: Flow[str]) -> Flow[str | None]:
    """Return what a flow reads; None if the body cannot be read and the rule is a shadow, which refuses nothing."""
    try:
        return (yield from reading)
    except QuotaError:
        raise
    except Exception:  # of Django, or of the framework that parses the body
        if not rule.shadow:
            raise
        return None


def _settle_later(plan: Plan, request: HttpRequest) -> None:
    """Let the rules of a plan that look at the response take reservations, and note the plan on the request."""
    plans = request.__dict__.setdefault(UNSETTLED, [])
    if plan not in plans:
        plan.reserve(Reservation(secrets.token_hex(8), VIEW_TTL), attrgetter("settles"))
        plans.append(plan)


UNSETTLED = "_django_quota_unsettled"
"""The attribute of a request with the plans whose rules look at the response; see `web/settlements`."""

VIEW_TTL = 600 * SECOND
"""Microseconds after which what a request took comes back if its process ended before the view answered."""


def rule_plan_flow(
    rule: Rule, request: HttpRequest, cost: int | None, value: object, plan: Plan | None = None
) -> Flow[Plan]:
    """Add one rule to a plan for a request, whatever its `methods`, `skip` and `exempt` say; return the plan."""
    subject = yield from subject_flow(rule.key, request)
    if rule.dynamic:
        rule = yield from _rates_flow(rule, request)
    units: object = cost
    if units is None:
        units = (yield from call_flow(rule.cost, request)) if callable(rule.cost) else rule.cost
    digested = value_digest(rule, value)
    if rule.distinct is not None and value is None:
        digested = yield from _value_flow(rule, request)
    plan = new_plan() if plan is None else plan
    plan.add(rule, subject, validate_cost(units, rule.name), digested)
    return plan


_DECIDED = "_django_quota_decided"
"""The attribute of a request with the rules of the settings that have been decided, and their Decision."""


def note_decided(request: HttpRequest, rules: Sequence[Rule], decision: Decision) -> None:
    """Note the rules of the settings that a Decision is about, so that a decorator does not count them again."""
    of_settings = [rule for rule in rules if rule.match is not None]
    if not of_settings:
        return
    earlier: tuple[list[Rule], Decision] | None = getattr(request, _DECIDED, None)
    if earlier is not None:
        of_settings, decision = of_settings + earlier[0], decision.combined_with(earlier[1])
    setattr(request, _DECIDED, (of_settings, decision))


def _is_decided(rule: Rule, subject: str, request: HttpRequest) -> bool:
    """Return whether a rule of the settings, which a decorator names too, has been decided already."""
    decided: tuple[list[Rule], Decision] | None = getattr(request, _DECIDED, None)
    if decided is None or rule not in decided[0]:
        return False
    return any((outcome.rule, outcome.subject) == (rule.name, subject) for outcome in decided[1].outcomes)


def _is_skipped(rule: Rule, request: HttpRequest) -> Flow[bool]:
    """Return whether a rule does not apply to a request because of `methods`, `skip` or `exempt`."""
    if rule.methods is not None and request.method not in rule.methods:
        return True
    if rule.skip is not None and (yield from call_flow(rule.skip, request)):
        return True
    return rule.exempt is not None and (yield from _is_exempt(rule.exempt, request))


def _is_exempt(exemption: Exemption, request: HttpRequest) -> Flow[bool]:
    """Return whether a request is exempt."""
    if exemption.networks and is_from(request, exemption.networks):
        return True
    if exemption.staff:
        user = yield from user_flow(request)
        if getattr(user, "is_active", False) and getattr(user, "is_staff", False):
            return True
    for function in exemption.functions:
        if (yield from call_flow(function, request)):
            return True
    return False


def _tier_flow(rule: Rule, request: HttpRequest) -> Flow[Rule]:
    """Return the rule of the tier of a request."""
    tier = None if rule.tier is None else (yield from call_flow(rule.tier, request))
    if isinstance(tier, str) and tier in rule.tiers:
        return rule.tiers[tier]
    user = yield from user_flow(request)
    default = AUTHENTICATED if getattr(user, "is_authenticated", False) else ANONYMOUS
    found = rule.tiers.get(default)
    if found is None:
        raise RuleError(_no_tier(rule.name, reprlib.repr(default if tier is None else tier), tuple(rule.tiers)))
    if tier is not None:
        _log_unknown_tier(rule.name, reprlib.repr(tier), default, tuple(rule.tiers))
    return found


def _no_tier(rule: str, tier: str, known: tuple[str, ...]) -> str:
    near = did_you_mean(tier.strip("'"), known)
    return f"Rule {rule!r} has no rate for the tier {tier}.{near}"


@lru_cache(maxsize=256)
def _log_unknown_tier(rule: str, tier: str, default: str, known: tuple[str, ...]) -> None:
    """Log once that a tier is unknown. The request goes on with the tier that it has by default."""
    logger.error("%s It is treated as %r.", _no_tier(rule, tier, known), default)


def _rates_flow(rule: Rule, request: HttpRequest) -> Flow[Rule]:
    """Return the rule with the rates for this request."""
    if rule.tiers:
        return (yield from _tier_flow(rule, request))
    rates: list[object] = []
    for rate in rule.rates:
        given = (yield from call_flow(rate, request)) if callable(rate) else rate
        rates += given if isinstance(given, (list, tuple)) else (given,)
    try:
        return rule.with_rates(*rates)
    except RateError as error:
        functions = ", ".join(dotted_path(rate) for rate in rule.rates if callable(rate))
        hint = f"{error.hint} It came from {functions}, for rule {rule.name!r}."
        raise RateError(error.text, error.position, error.problem, hint) from error


def _value_flow(rule: Rule, request: HttpRequest) -> Flow[str]:
    """Return the digest of the value that a rule with `distinct=` counts for a request."""
    if rule.distinct is True:
        raise RuleError(
            f"Rule {rule.name!r} counts different values, but does not say which.",
            "Use, for example, distinct='header:X-Device', or check(..., value=).",
        )
    return digest((yield from subject_flow(rule.distinct, request, exact=True)))


def value_digest(rule: Rule, value: object) -> str:
    """Return the digest of a `value=`; empty if there is none. Raises `RuleError` if the rule counts no values."""
    if value is None:
        return ""
    if rule.distinct is None:
        raise RuleError(f"value= is given, but rule {rule.name!r} counts hits, not values.", "Use distinct=True.")
    if not isinstance(value, (str, bytes, int)):
        raise RuleError(f"value= is {type(value).__name__}. Use a text, bytes or a whole number.")
    return digest(value if isinstance(value, bytes) else str(value))
