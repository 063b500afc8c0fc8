"""The limits of views: their rules, for the admin and the commands, and the system checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, cast

from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured
from rest_framework import throttling
from rest_framework.settings import api_settings

from django_quota import Rule
from django_quota.adapters import dotted_path, endpoints, read_rule, register_rule_finder, register_view_check
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
from django_quota.exceptions import RateError, RuleError
from django_quota.types import Endpoint, Rate


def _given(view: Endpoint, name: str, default: Any = None) -> Any:
    """Return an attribute of a view: what `as_view()` got, or the attribute of its class."""
    return view.given.get(name, getattr(view.view_class, name, default))


def _throttles_of(view: Endpoint) -> list[type]:
    """Return the classes of a view's throttles."""
    return [each for each in _given(view, "throttle_classes", ()) if isinstance(each, type)]


def _names_rules(view: Endpoint) -> bool:
    return any(issubclass(throttle, QuotaThrottle) for throttle in _throttles_of(view))


def _rules_of(view: Endpoint) -> Iterator[Any]:
    """Return all `quota_rules` of a view, and of its methods."""
    view_class: Any = view.view_class
    yield from as_rules(_given(view, "quota_rules", ()))
    actions = getattr(view.callback, "actions", None)
    for name in actions.values() if actions else view_class.http_method_names:
        yield from as_rules(rules_of_handler(getattr(view_class, name, None)) or ())


def _rates_of(view: Endpoint) -> Iterator[tuple[type, str, Rule]]:
    """Return the rates of the framework's throttles as they are written, and their rules."""
    for throttle in _throttles_of(view):
        kind = ScopedRateThrottle if issubclass(throttle, QuotaThrottle) else throttle
        if issubclass(kind, SimpleRateThrottle):
            with suppress(ImproperlyConfigured, ValueError, KeyError):  # the framework reports a wrong rate
                made = kind()
                if isinstance(made, ScopedRateThrottle):
                    scope = _given(view, "throttle_scope")
                    if issubclass(throttle, QuotaThrottle) and scope in current().rules:
                        continue
                    made.use_scope(scope)
                if made.rate is not None:
                    yield throttle, made.rate, made.rule


@register_rule_finder
def rules_of_api_views(patterns: Iterable[Any]) -> Iterator[Rule]:
    """Return the rules of all views with these throttles, without those that are wrong."""
    for view in endpoints(patterns):
        for rule in _rules_of(view) if _names_rules(view) else ():
            with suppress(RuleError):  # a system check reports it
                yield named_rule(rule, view.view_class)
        yield from (rule for *_, rule in _rates_of(view))


# --- system checks ----------------------------------------------------------------------------------------------------


@register_view_check
def check_throttles(patterns: Iterable[Any]) -> Iterator[CheckMessage]:
    """Check the limits of the views with these throttles."""
    for view in endpoints(patterns):
        for check in (_check_names, _check_slots, _check_methods, _check_rates, _check_proxies):
            yield from check(view)


def _check_names(view: Endpoint) -> Iterator[CheckMessage]:
    """Find rules that a view names and that do not exist, and a cost that is wrong or above the limit of a rule."""
    if not _names_rules(view):
        return
    path, scope, cost = dotted_path(view.view_class), _given(view, "throttle_scope"), _given(view, "quota_cost")
    wrong, named = [], list[Rule]()
    for rule in _rules_of(view):
        try:
            named.append(named_rule(rule, view.view_class))
        except RuleError as error:
            wrong.append((error.problem, error.hint))
    if scope and scope not in current().rules and scope not in ScopedRateThrottle.THROTTLE_RATES:
        hint = 'Add it to QUOTA["RULES"], or to DEFAULT_THROTTLE_RATES in REST_FRAMEWORK.'
        wrong.append((f"throttle_scope={scope!r} of {path} is not the name of a rule.", hint))
    for problem, hint in wrong:
        yield Error(problem, hint=hint, id="django_quota.E016")
    if cost is not None and (type(cost) is not int or not 1 <= cost <= Rate.max_count):
        yield Error(
            f"quota_cost={cost!r} of {path} is not a whole number from 1 to {Rate.max_count:,}.",
            hint="Use, for example, 50.",
            id="django_quota.E034",
        )
    elif cost is not None:
        if scope in current().rules:
            with suppress(RuleError):  # the check of the settings reports it
                named.append(current().rule(scope))
        yield from _costs_above(dict.fromkeys(named), cost, path)


def _costs_above(rules: Iterable[Rule], cost: int, path: str) -> Iterator[CheckMessage]:
    """Find rules of a view whose limit is below what the view takes."""
    for rule in rules:
        if (room := rule.most_units) is not None and 0 < room < cost:
            yield CheckWarning(
                f"{path} has quota_cost={cost:,}, and rule {rule.name!r} a limit of {room:,}: each request is refused.",
                hint="Raise the rate, or the burst of a bucket, to the cost at least, or lower the cost.",
                id="django_quota.W051",
            )


def _check_slots(view: Endpoint) -> Iterator[CheckMessage]:
    """Find `quota_slots` that are wrong, or that no throttle takes."""
    slots = _given(view, "quota_slots")
    if slots is None:
        return
    try:
        read_slot(cast("type", view.view_class), slots)
    except RuleError as error:
        yield Error(error.problem, hint=error.hint or None, id="django_quota.E031")
        return
    if not carries_a_throttle(view.callback):
        yield CheckWarning(
            f"{dotted_path(view.view_class)} has quota_slots, but no throttle that takes them: nothing is limited.",
            hint="Add 'django_quota.contrib.rest_framework.QuotaThrottle' to its throttle_classes.",
            id="django_quota.W036",
        )


def _check_methods(view: Endpoint) -> Iterator[CheckMessage]:
    """Find views that may leave out their throttles, so that no rule waits for them."""
    own = own_method(view.callback) if carries_a_throttle(view.callback) else None
    for rule in view.rules_that_wait if own else ():
        yield CheckWarning(
            f"{dotted_path(view.view_class)} has its own {own}(), so rule {rule.name!r} is decided before the "
            "framework has found the user.",
            hint=f"Remove {own}(), or exclude the view from the rule.",
            id="django_quota.W029",
        )


def _check_rates(view: Endpoint) -> Iterator[CheckMessage]:
    """Find rates with a unit that is not what the framework reads, which is only its first letter."""
    for throttle, given, rule in _rates_of(view):
        (rate,) = cast("tuple[Rate]", rule.rates)
        with suppress(RateError):
            if [each.period for each in cast("tuple[Rate, ...]", read_rule(given).rates)] == [rate.period]:
                continue
        yield CheckWarning(
            f"{throttle.__name__} of {dotted_path(view.view_class)} reads {given!r} as {rate.in_words()}, as Django "
            "REST framework does.",
            hint=f"Write {str(rate)!r} if that is meant. Else use a configured rule, in quota_rules.",
            id="django_quota.W024",
        )


def _check_proxies(view: Endpoint) -> Iterator[CheckMessage]:
    """Find throttles that take the address as the framework does, which by default believes the client."""
    if api_settings.NUM_PROXIES is None and any(
        issubclass(each, SimpleRateThrottle) and each.get_ident is throttling.BaseThrottle.get_ident
        for each in _throttles_of(view)
    ):
        yield CheckWarning(
            "A throttle of Django REST framework believes X-Forwarded-For, so a client escapes its limits by sending "
            "another address with each request.",
            hint="Set NUM_PROXIES in REST_FRAMEWORK: the number of your proxies, 0 for none.",
            id="django_quota.W018",
        )
