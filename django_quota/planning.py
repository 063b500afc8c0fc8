"""From what a caller asks (rules and a request, or one rule and a subject) to a plan. It knows no store.

What cannot be known without waiting is a flow, which the driver answers; see `subjects`.
"""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, cast

from django.http import HttpRequest

from django_quota.addresses import is_from
from django_quota.conf import current, rule_of
from django_quota.decisions import Decision
from django_quota.exceptions import RateError, RuleError, did_you_mean
from django_quota.exemptions import Exemption
from django_quota.plans import Plan
from django_quota.rates import check_cost
from django_quota.rules import Rule, path_of
from django_quota.subjects import (
    Flow,
    call,
    digest,
    ip_subject,
    is_user,
    named_subject,
    subject_flow,
    user_flow,
    user_subject,
)
from django_quota.tiers import ANONYMOUS, AUTHENTICATED

logger = logging.getLogger("django_quota")

RuleOrRate = str | Rule
Subject = Any
"""A text such as "ip:203.0.113.9", a user, or a request."""


def request_plan(rules: Iterable[Rule], request: HttpRequest) -> Flow:
    """Return (as the flow's result) the plan of a request: the rules that hold for it, with their costs."""
    settings = current()
    plan = Plan(settings.prefix, settings.events)
    if not settings.enabled:
        return plan
    key: object = None
    subject: str | None = None
    for rule in rules:
        is_plain = rule.is_plain  # as most are: then none of these questions matters
        if not is_plain and (yield from _is_left_out(rule, request)):
            continue
        if subject is None or rule.key != key:  # stacked rules mostly share their key
            key = rule.key
            # The address, by which most are told apart, needs no flow.
            subject = ip_subject(request) if key == "ip" else (yield from subject_flow(key, request))
        if is_plain:
            plan.add(rule, subject, cast("int", rule.cost))
            continue
        if rule.match is not None and _is_applied(rule, subject, request):
            continue
        cost = check_cost((yield from call(rule.cost, request)), rule.name) if callable(rule.cost) else rule.cost
        value = "" if rule.distinct is None else (yield from _value_flow(rule, request))
        plan.add((yield from _with_rates(rule, request)) if rule.dynamic else rule, subject, cost, value)
    return plan


def _is_left_out(rule: Rule, request: HttpRequest) -> Flow:
    """Return (as the flow's result) whether a rule does not hold for a request, whoever it comes from."""
    if rule.methods is not None and request.method not in rule.methods:
        return True
    if rule.skip is not None and (yield from call(rule.skip, request)):
        return True
    return rule.exempt is not None and (yield from _is_exempt(rule.exempt, request))


APPLIED = "_django_quota_applied"
"""Where a request has the rules of the settings that hold by themselves for it, with what was decided of them."""


def _is_applied(rule: Rule, subject: str, request: HttpRequest) -> bool:
    """Say whether a rule of the settings that a decorator names has been decided for the request and this subject."""
    applied: tuple[list[Rule], Decision] | None = getattr(request, APPLIED, None)
    if applied is None or rule not in applied[0]:
        return False
    return any((outcome.rule, outcome.subject) == (rule.name, subject) for outcome in applied[1].outcomes)


def plan_of(
    rule_or_rate: RuleOrRate, subject: Subject, cost: int | None, value: object, options: Mapping[str, object]
) -> Plan | Flow:
    """Return the plan of one rule for a subject as the verbs take it; a flow of it where a request must be asked."""
    rule = rule_of(rule_or_rate, options)
    if isinstance(subject, str):
        name = named_subject(subject)
    elif (request := _request_of(subject)) is not None:
        return _asked_plan(rule, request, cost, value)
    elif is_user(subject):
        name = user_subject(subject)
    else:
        raise RuleError(f"{subject!r} is no subject: a text such as 'ip:203.0.113.9', a user or a request would do.")
    if rule.tiers and rule.tier is None:
        rule = rule.tiers[AUTHENTICATED if name.startswith("user:") else ANONYMOUS]
    if rule.dynamic:
        raise RuleError(f"The rates of rule {rule.name!r} are functions of the request: pass the request as subject.")
    if cost is None and callable(rule.cost):
        raise RuleError(f"The cost of rule {rule.name!r} is a function of the request: pass cost= here.")
    settings = current()
    plan = Plan(settings.prefix, settings.events)
    if rule.distinct is not None and value is None and cost != 0:
        raise RuleError(
            f"Rule {rule.name!r} counts different values: check() and peek() take the one at hand as value=.",
            "reset() forgets them; refund() and reserve() do not go with them.",
        )
    plan.add(rule, name, check_cost(rule.cost if cost is None else cost, rule.name), _digest(rule, value))
    return plan


def _asked_plan(rule: Rule, request: HttpRequest, cost: int | None, value: object) -> Flow:
    """Return (as the flow's result) the plan of one rule for a request."""
    subject = yield from subject_flow(rule.key, request)
    if rule.dynamic:
        rule = yield from _with_rates(rule, request)
    asked = cost
    if asked is None:
        asked = (yield from call(rule.cost, request)) if callable(rule.cost) else rule.cost
    settings = current()
    plan = Plan(settings.prefix, settings.events)
    known = _digest(rule, value)
    if rule.distinct is not None and value is None:
        known = yield from _value_flow(rule, request)
    plan.add(rule, subject, check_cost(asked, rule.name), known)
    return plan


def _value_flow(rule: Rule, request: HttpRequest) -> Flow:
    """Return (as the flow's result) the digest of the value that a request brings under a rule with `distinct=`."""
    if rule.distinct is True:
        raise RuleError(
            f"Rule {rule.name!r} counts different values, but does not say of what.",
            "distinct='header:X-Device' would do, or check(..., value=).",
        )
    return digest((yield from subject_flow(rule.distinct, request, exact=True)))


def _digest(rule: Rule, value: object) -> str:
    """Return the digest of a value that a caller brings; empty where there is none."""
    if value is None:
        return ""
    if rule.distinct is None:
        raise RuleError(
            f"value= is given, but rule {rule.name!r} counts hits, not different values; distinct=True would do."
        )
    if not isinstance(value, (str, bytes, int)):
        raise RuleError(f"value= is {type(value).__name__}; a text, bytes or a whole number would do.")
    return digest(value if isinstance(value, bytes) else str(value))


def _is_exempt(exemption: Exemption, request: HttpRequest) -> Flow:
    """Return (as the flow's result) whether a request is exempt."""
    if exemption.networks and is_from(request, exemption.networks):
        return True
    if exemption.staff:
        user = yield from user_flow(request)
        if getattr(user, "is_active", False) and getattr(user, "is_staff", False):
            return True
    for function in exemption.functions:
        if (yield from call(function, request)):
            return True
    return False


def _tier(rule: Rule, request: HttpRequest) -> Flow:
    """Return (as the flow's result) the rule of a request's tier."""
    tier = None if rule.tier is None else (yield from call(rule.tier, request))
    if isinstance(tier, str) and tier in rule.tiers:
        return rule.tiers[tier]
    user = yield from user_flow(request)
    default = AUTHENTICATED if getattr(user, "is_authenticated", False) else ANONYMOUS
    found = rule.tiers.get(default)
    if found is None:
        raise RuleError(_no_tier(rule.name, reprlib.repr(default if tier is None else tier), tuple(rule.tiers)))
    if tier is not None:
        _complain_of_tier(rule.name, reprlib.repr(tier), default, tuple(rule.tiers))
    return found


def _no_tier(rule: str, tier: str, known: tuple[str, ...]) -> str:
    near = did_you_mean(tier.strip("'"), known)
    return f"Rule {rule!r} has no rate for the tier {tier}.{near}"


@lru_cache(maxsize=256)
def _complain_of_tier(rule: str, tier: str, default: str, known: tuple[str, ...]) -> None:
    """Say once that a tier is not known: the request goes on, under the rate that it would have without a function."""
    logger.error("%s It is treated as %r.", _no_tier(rule, tier, known), default)


def _with_rates(rule: Rule, request: HttpRequest) -> Flow:
    """Return the rule with the rates that depend on the request."""
    if rule.tiers:
        return (yield from _tier(rule, request))
    rates: list[object] = []
    for rate in rule.rates:
        given = (yield from call(rate, request)) if callable(rate) else rate
        rates += given if isinstance(given, (list, tuple)) else (given,)
    try:
        return rule.with_rates(*rates)
    except RateError as error:
        functions = ", ".join(path_of(rate) for rate in rule.rates if callable(rate))
        hint = f"{error.hint} It came from {functions}, for rule {rule.name!r}."
        raise RateError(error.text, error.position, error.problem, hint) from error


def _request_of(subject: Subject) -> HttpRequest | None:
    if isinstance(subject, HttpRequest):
        return subject
    wrapped = getattr(subject, "_request", None)  # Django REST framework's request holds Django's
    return wrapped if isinstance(wrapped, HttpRequest) else None
