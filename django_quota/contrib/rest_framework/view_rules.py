"""What views say about their limits: their rules, for the admin and the commands, and the system checks of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured
from rest_framework import throttling
from rest_framework.settings import api_settings

from django_quota import Rule
from django_quota.adapters import checks_views, dotted_path, endpoints, finds_rules, rule_of
from django_quota.conf import current
from django_quota.contrib.rest_framework.throttles import (
    QuotaThrottle,
    ScopedRateThrottle,
    SimpleRateThrottle,
    as_rules,
    carries_a_throttle,
    named_rule,
    own_method,
    read_slot,
    rules_of_handler,
)
from django_quota.exceptions import ConfigurationError, RateError, RuleError
from django_quota.types import Endpoint, Rate

MAX_COST = 10**12
"""Units that one request takes at most."""


@finds_rules
def rules_of_views(patterns: Iterable[Any]) -> Iterator[Rule]:
    """Return the rules of all views with these throttles, without those that are wrong."""
    for endpoint in endpoints(patterns):
        for throttle in _throttles_of(endpoint):
            if issubclass(throttle, QuotaThrottle):
                for rule in _rules_of(endpoint):
                    with suppress(RuleError):  # a system check reports it
                        yield named_rule(rule, endpoint.view_class)
            with suppress(ImproperlyConfigured, ValueError, KeyError):  # the framework reports a wrong rate
                yield from (rule for _, rule in _rates_of_throttle(throttle, endpoint))


def _rates_of_throttle(throttle: type, view: Endpoint) -> Iterator[tuple[str, Rule]]:
    """Return the rate of one of the framework's throttles as it is written, and its rule."""
    throttle = ScopedRateThrottle if issubclass(throttle, QuotaThrottle) else throttle
    if not issubclass(throttle, SimpleRateThrottle):
        return
    made = throttle()
    if isinstance(made, ScopedRateThrottle):
        scope = _scope_of(view)
        if not scope or scope in current().rules:
            return
        made.use_scope(scope)
    if made.rate is not None:
        yield made.rate, made.rule


def _throttles_of(view: Endpoint) -> list[type]:
    """Return the classes of a view's throttles."""
    classes = view.given.get("throttle_classes", getattr(view.view_class, "throttle_classes", ()))
    return [each for each in classes if isinstance(each, type)]


def _scope_of(view: Endpoint) -> str | None:
    scope: str | None = view.given.get("throttle_scope", getattr(view.view_class, "throttle_scope", None))
    return scope


@checks_views
def check_throttles(patterns: Sequence[Any]) -> list[CheckMessage]:
    """Check what the views with these throttles say about their limits."""
    try:
        known = current().rules
    except ConfigurationError:
        return []  # reported with the values of the settings
    found: dict[str, CheckMessage] = {}
    by_address = None
    for endpoint in endpoints(patterns):
        classes = _throttles_of(endpoint)
        if any(issubclass(each, QuotaThrottle) for each in classes):
            for message in _check_names(endpoint, known):
                found.setdefault(message.msg, message)
        for message in _check_slots(endpoint):
            found.setdefault(message.msg, message)
        for message in _check_methods(endpoint):
            found.setdefault(message.msg, message)
        for message in _check_rates(endpoint, classes):
            found.setdefault(message.msg, message)
        by_address = by_address or next(filter(_trusts_the_header, classes), None)
    if by_address is not None and api_settings.NUM_PROXIES is None:
        found[""] = CheckWarning(
            f"{by_address.__name__} takes the address of a client from X-Forwarded-For as it comes, so a client "
            "escapes its limits by sending another one with each request.",
            hint="Set NUM_PROXIES in REST_FRAMEWORK: the number of your proxies, 0 for none.",
            id="django_quota.W018",
        )
    return list(found.values())


def _check_slots(view: Endpoint) -> Iterator[CheckMessage]:
    """Find `quota_slots` that are wrong, or that no throttle takes."""
    view_class: Any = view.view_class
    found = view.given.get("quota_slots", getattr(view_class, "quota_slots", None))
    if found is None:
        return
    try:
        read_slot(view_class, found)
    except RuleError as error:
        yield Error(error.problem, hint=error.hint or None, id="django_quota.E031")
    else:
        if not carries_a_throttle(view.callback):
            yield CheckWarning(
                f"{dotted_path(view.view_class)} has quota_slots, but no throttle that takes them: nothing is limited.",
                hint="Add 'django_quota.contrib.rest_framework.QuotaThrottle' to its throttle_classes, or to "
                "DEFAULT_THROTTLE_CLASSES.",
                id="django_quota.W036",
            )


def _check_methods(view: Endpoint) -> Iterator[CheckMessage]:
    """Find views that may leave out their throttles, so that no rule waits for them."""
    own = own_method(view.callback) if carries_a_throttle(view.callback) else None
    for rule in view.rules_that_wait if own else ():
        yield CheckWarning(
            f"{dotted_path(view.view_class)} has its own {own}(), so rule {rule.name!r} does not wait for it: the rule "
            "is decided before the framework has found the user.",
            hint=f"Remove {own}(). If it asks the throttles, you may name the rule in quota_rules instead, and exclude "
            "the view from the rule.",
            id="django_quota.W029",
        )


def _check_rates(view: Endpoint, classes: Sequence[type]) -> Iterator[CheckMessage]:
    """Find rates with a unit that is not what the framework reads, which is only its first letter."""
    for throttle in classes:
        with suppress(ImproperlyConfigured, ValueError, KeyError):  # the framework reports a wrong rate
            for text, rule in _rates_of_throttle(throttle, view):
                (rate,) = cast("tuple[Rate]", rule.rates)
                with suppress(RateError):
                    if [each.period for each in cast("tuple[Rate, ...]", rule_of(text).rates)] == [rate.period]:
                        continue
                yield CheckWarning(
                    f"{throttle.__name__} of {dotted_path(view.view_class)} reads {text!r} as {rate.in_words()}, as "
                    "Django REST framework does.",
                    hint=f"Write {str(rate)!r} if that is meant. Else use a configured rule, in quota_rules.",
                    id="django_quota.W024",
                )


def _check_names(view: Endpoint, known: Any) -> Iterator[CheckMessage]:
    """Find rules that a view names and that do not exist."""
    view_class: Any = view.view_class
    scope = _scope_of(view)
    problems = []
    for rule in _rules_of(view):
        try:
            named_rule(rule, view_class)
        except RuleError as error:
            problems.append((error.problem, error.hint))
    if scope and scope not in known and scope not in ScopedRateThrottle.THROTTLE_RATES:
        hint = 'Add it to QUOTA["RULES"], or to DEFAULT_THROTTLE_RATES in REST_FRAMEWORK.'
        problems.append((f"throttle_scope={scope!r} of {dotted_path(view_class)} names no rule.", hint))
    cost = view.given.get("quota_cost", getattr(view_class, "quota_cost", None))
    if cost is not None and (type(cost) is not int or not 1 <= cost <= MAX_COST):
        yield Error(
            f"quota_cost={cost!r} of {dotted_path(view_class)} is not a whole number from 1 to {MAX_COST:,}.",
            hint="Use, for example, 50.",
            id="django_quota.E034",
        )
    for problem, hint in problems:
        yield Error(problem, hint=hint or None, id="django_quota.E016")


def _rules_of(view: Endpoint) -> Iterator[Any]:
    """Return all `quota_rules` of a view, and of its methods."""
    view_class: Any = view.view_class
    yield from as_rules(view.given.get("quota_rules", getattr(view_class, "quota_rules", ())))
    actions = getattr(view.callback, "actions", None)
    for name in actions.values() if actions else view_class.http_method_names:
        yield from as_rules(rules_of_handler(getattr(view_class, name, None)) or ())


def _trusts_the_header(throttle: Any) -> bool:
    """Say whether a throttle is one of these, and finds the address as the framework does."""
    return issubclass(throttle, SimpleRateThrottle) and throttle.get_ident is throttling.BaseThrottle.get_ident
