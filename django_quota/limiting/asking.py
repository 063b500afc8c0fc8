"""The hits of a request: which rules apply to it, for which subject, and what each costs."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from django.http import HttpRequest

from django_quota.core.errors import QuotaError, RateError, RuleError
from django_quota.core.flow import Flow
from django_quota.core.rates import validate_cost
from django_quota.core.rules import ANONYMOUS, AUTHENTICATED, DEFAULT, Rule, dotted_path
from django_quota.engine.asks import Ask
from django_quota.subjects.addresses import ip_subject, is_from, is_from_exempt_network
from django_quota.subjects.keys import subject_flow
from django_quota.subjects.site_functions import call_flow, starting_flow, starts_of, user_flow
from django_quota.subjects.subject import digest

logger = logging.getLogger("django_quota.web")

T = TypeVar("T")
"""What a mapping by tier has for each tier."""


CountedPlaces = set[tuple[int, str]]
"""The rules with a `match` that a request has asked about: the `id` of each, with the subject."""


def asked_flow(
    rules: Iterable[Rule], request: HttpRequest, counted: CountedPlaces | None = None, *, is_peek: bool = False
) -> Flow[list[Ask]]:
    """Return the asks of a request under these rules, in their order; rules that do not apply are left out.

    A request from an exempt network asks for nothing. `counted`: what the request has asked about before; new places
    are added. A rule with a `match` counts once for a request and a subject, even if a decorator has the rule, too.
    `is_peek`: ask about one unit of each without calling `cost` functions, and leave out rules that read the body.
    """
    found: list[Ask] = []
    if is_from_exempt_network(request):
        return found
    key: object = None
    subject: str | None = None
    for rule in rules:
        if is_peek and rule.reads_body:
            continue
        is_plain = rule.is_plain  # most rules are
        if not is_plain and (yield from _is_skipped(rule, request)):
            continue
        if subject is None or rule.key != key:  # stacked rules mostly share their key
            key = rule.key
            if key == "ip":
                subject = ip_subject(request)
            else:
                reading = subject_flow(key, request)
                subject = yield from (_of_body(rule, reading) if rule.reads_body else reading)
        if subject is None or (rule.match is not None and not is_peek and _counts_again(rule, subject, counted)):
            continue
        if is_plain:
            units: Any = 1 if is_peek else rule.cost  # a number: the rule is plain
            found.append(Ask(rule, subject, units))
            continue
        cost = 1 if is_peek else (yield from _cost_flow(rule, request))
        value = "" if is_peek or rule.distinct is None else (yield from _of_body(rule, _value_flow(rule, request)))
        if value is not None:
            of_request = yield from _of_request_flow(rule, request, subject)
            found.append(Ask(of_request, subject, cost, value, rule.settles and not is_peek))
    return found


def asked_by_flow(rule: Rule, request: HttpRequest, cost: int | None, value: object) -> Flow[Ask]:
    """Return the ask of a request under one rule, whatever the rule's `methods`, `skip` and `exempt` say.

    `cost` and `value`: None takes the rule's own.
    """
    subject = yield from subject_flow(rule.key, request)
    rule = yield from _of_request_flow(rule, request, subject)
    units = (yield from _cost_flow(rule, request)) if cost is None else validate_cost(cost, rule.name)
    if rule.distinct is not None and value is None:
        return Ask(rule, subject, units, (yield from _value_flow(rule, request)))
    return Ask(rule, subject, units, value_digest(rule, value))


def _of_request_flow(rule: Rule, request: HttpRequest, subject: str) -> Flow[Rule]:
    """Return a rule with the rates and the periods that it has for a request and its subject."""
    if rule.dynamic:
        rule = yield from rates_flow(rule, request)
    if rule.needs_start:
        rule = yield from starting_flow(rule, subject, starts_of(request))
    return rule


def _of_body(rule: Rule, reading: Flow[str]) -> Flow[str | None]:
    """Return the result of a flow that reads the body; None if that fails and the rule is a shadow.

    A shadow rule must not answer the request with an error.
    """
    try:
        return (yield from reading)
    except QuotaError:
        raise
    except Exception:  # of Django, or of the framework that parses the body
        if not rule.shadow:
            raise
        return None


def _counts_again(rule: Rule, subject: str, counted: CountedPlaces | None) -> bool:
    """Return whether a request has asked about a rule and a subject before, and remember that it has."""
    if counted is None:
        return False
    place, before = (id(rule), subject), len(counted)
    counted.add(place)
    return len(counted) == before


def _cost_flow(rule: Rule, request: HttpRequest) -> Flow[int]:
    """Return the cost of a request under a rule: from `costs`, else from `cost`. Raises `RuleError` for a wrong one."""
    if rule.costs and request.resolver_match is not None:
        cost = dict(rule.costs).get(request.resolver_match.view_name)
        if cost is not None:
            return int(cost)
    if callable(rule.cost):
        return validate_cost((yield from call_flow(rule.cost, request)), rule.name)
    return rule.cost


def _is_skipped(rule: Rule, request: HttpRequest) -> Flow[bool]:
    """Return whether a rule does not apply to a request because of `methods`, `skip` or `exempt`."""
    if rule.methods is not None and request.method not in rule.methods:
        return True
    functions = [] if rule.skip is None else [rule.skip]
    if rule.exempt is not None:
        functions += rule.exempt.functions
        if rule.exempt.networks and is_from(request, rule.exempt.networks):
            return True
        if rule.exempt.staff:
            user = yield from user_flow(request)
            if getattr(user, "is_active", False) and getattr(user, "is_staff", False):
                return True
    for function in functions:
        if (yield from call_flow(function, request)):
            return True
    return False


def tier_flow(name: str, tiers: Mapping[str, T], tier_of: Any, request: HttpRequest, otherwise: T) -> Flow[T]:
    """Return the entry of `tiers` for the tier of a request. `name`: of the rule or slot, for the log.

    `tier_of`: the function of the request that returns the tier; None for the default tiers. A request without a known
    tier has its default tier, else "default", else `otherwise`.
    """
    tier = None if tier_of is None else (yield from call_flow(tier_of, request))
    if isinstance(tier, str) and tier in tiers:
        return tiers[tier]
    user = yield from user_flow(request)
    default = AUTHENTICATED if getattr(user, "is_authenticated", False) else ANONYMOUS
    found = next((each for each in (default, DEFAULT) if each in tiers), None)
    if tier is not None or found is None:
        _log_unknown_tier(name, reprlib.repr(default if tier is None else tier), found)
    return otherwise if found is None else tiers[found]


@lru_cache(maxsize=256)
def _log_unknown_tier(rule: str, tier: str, default: str | None) -> None:
    """Log, once for each, that a tier is unknown. `default`: the tier that the request gets instead; None: none."""
    if default is None:
        logger.error(
            "Rule %r has no tier %s and no tier 'default'. Such requests are refused, or have the smallest share.",
            rule,
            tier,
        )
    else:
        logger.error("Rule %r has no tier %s. It is treated as %r.", rule, tier, default)


def rates_flow(rule: Rule, request: HttpRequest) -> Flow[Rule]:
    """Return the rule with the rates for this request. Raises `RateError` if its functions return a wrong rate."""
    if rule.tiers:
        return (yield from tier_flow(rule.name, rule.tiers, rule.tier, request, rule.without_tier))
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
        raise RuleError(f"value= is {type(value).__name__}. Use a string, bytes or a whole number.")
    return digest(value if isinstance(value, bytes) else str(value))
