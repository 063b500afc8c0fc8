"""The rules and slots that a project is known to have: those in the settings and those on the views of its URLs.

The rules of calls such as `check("10/m", ...)` are not known in advance. Only what they have counted shows them.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeVar

from django.conf import settings
from django.urls import get_resolver
from django.utils.translation import gettext_lazy

from django_quota.conf import current, limits_logins, rule_of
from django_quota.core.algorithms import ALGORITHMS
from django_quota.core.errors import ConfigurationError, RateError, RuleError, did_you_mean
from django_quota.core.rules import Rule, parts_of_key
from django_quota.runtime import runtime
from django_quota.subjects.addresses import own_prefixes, prefixes_of

NamedRule = Rule | str | list[Rule]
"""What a name stands for: a rule, a string that says why none can be read, or the rules that a rate may mean."""

UNNAMED = gettext_lazy(
    "neither the settings nor the views have this name, and it does not contain the rate and options"
)
"""Why the limits of a rule cannot be read."""

Finder = Callable[[Iterable[Any]], Iterable[Any]]
"""Finds rules, or the names of slots, on the views of URL patterns."""

rule_finders: list[Finder] = []
slot_finders: list[Finder] = []
"""`http.decorators` and the integrations add to these when they are imported."""

FinderT = TypeVar("FinderT", bound=Finder)


def register_rule_finder(finder: FinderT) -> FinderT:
    """Register a function that finds the rules of an integration, so that the admin and the commands know them.

    The function gets URL patterns and returns the rules that the integration decides on their views. This returns the
    function, so you can use it as a decorator.
    """
    rule_finders.append(finder)
    return finder


def known_rules() -> dict[str, Rule | str]:
    """Return every configured rule and every rule of a view by name; a string says why a rule cannot be read.

    Pages show such a string by `error_texts.text_in_words`.
    """
    rules: dict[str, Rule | str] = {}
    ours = current()
    for name in map(str, ours.rules):
        try:
            rules[name] = ours.rule(name)
        except RuleError as error:
            rules[name] = error.in_full
    for rule in rules_of_requests():
        rules.setdefault(rule.name, rule)
    return rules


def long_rules() -> list[str]:
    """Return the names of the known rules that count weeks, months or years, and not in the database of the site."""
    found = [rule for rule in known_rules().values() if isinstance(rule, Rule)]
    return [rule.name for rule in found if rule.store is None and rule.has_long_period]


def known_rule(given: str | Rule, options: Mapping[str, object] = MappingProxyType({})) -> Rule:
    """Return the rule that is meant by a rule, by its name in the settings or on a view, or by a rate.

    Raises `RuleError`.
    """
    try:
        return rule_of(given, options)
    except RateError as error:
        known = known_rules()
        found = known.get(given) if isinstance(given, str) else None
        if isinstance(found, Rule):  # the name of a rule on a view
            return found
        if looks_like_subject(given):
            raise order_error(given) from None
        if error.position or not isinstance(given, str):  # it is almost a rate
            raise
        raise RuleError(
            f"{given!r} is not a rate, nor a rule of the settings or the views.{did_you_mean(given, known)} For a rule "
            f"that only a call names, pass it: Rule.make({given!r}, rate)."
        ) from error


def looks_like_subject(given: object) -> bool:
    """Say whether a value that is not a rule is a subject: a string such as `user:42`, a user or a request."""
    if isinstance(given, str):
        return re.match(r"[a-z][\w.-]*:", given) is not None
    return hasattr(given, "pk") or hasattr(given, "META")


def order_error(given: object) -> RuleError:
    """Return the error of a call that got a subject where the rule belongs."""
    problem = f"{reprlib.repr(given)} is a subject, not a rule or a rate."
    return RuleError(problem, "Calls take the rule first, then the subject: check('10/m', 'user:42').")


def rules_named(name: str) -> NamedRule:
    """Return the rules that a rate used as a name may mean: one for each algorithm that takes this rate.

    If there is no such rule, return a string that says so.
    """
    rules = []
    for algorithm in ALGORITHMS:
        with suppress(RuleError):
            rules.append(rule_of(name, {"algorithm": algorithm}))
    return [rule for rule in rules if rule.name == name] or str(UNNAMED)


def rules_of_requests() -> Iterator[Rule]:
    """Yield the rules on the views and the rules of failed logins: their subjects come from requests."""
    yield from _found_by(rule_finders)
    yield from known_login_rules()


def known_login_rules() -> tuple[Rule, ...]:
    """Return the rules of failed logins, if the site limits them and they can be read."""
    with suppress(ConfigurationError):  # a system check reports it
        return current().login if limits_logins() else ()
    return ()


def known_keys() -> dict[str, list[object]]:
    """Return the parts of the keys of the known rules, by name. Rules whose key may be unused are left out.

    A configured rule with neither a key nor a match may be meant for calls in your code, which pass any subject.
    """
    of_requests = {rule.name for rule in rules_of_requests()}
    of_requests |= {name for name, given in current().rules.items() if isinstance(given, Mapping) and "key" in given}
    return {
        name: [key for option, key in parts_of_key(rule) if option == "key"]
        for name, rule in known_rules().items()
        if isinstance(rule, Rule) and (name in of_requests or rule.match)
    }


def known_sizes() -> set[tuple[int, int]]:
    """Return by which networks clients count, by the settings and the known rules: each the version of IP and bits."""
    own = own_prefixes()
    found = [
        prefixes_of(key) for rule in known_rules().values() if isinstance(rule, Rule) for _, key in parts_of_key(rule)
    ]
    fours, sixes = zip(own, *filter(None, found), strict=True)
    return {(4, four) for four in fours} | {(6, six) for six in sixes if six is not None}


def known_slots() -> list[str]:
    """Return the names of the slots that the settings and `@concurrency` limit."""
    return sorted({*current().slots(), *_found_by(slot_finders)})


def _found_by(finders: list[Finder]) -> Sequence[Any]:
    url_patterns()  # first: loading the views may register finders
    return _kept_findings.get()(tuple(finders))


def _found_on_views(finders: tuple[Finder, ...]) -> Sequence[Any]:
    """Return what finders find on all views. It is cached, because a walk over 1,000 URLs takes 20 ms."""
    return [found for finder in finders for found in finder(url_patterns())]


_kept_findings = runtime.part(lambda: lru_cache(maxsize=2)(_found_on_views))


def url_patterns() -> Sequence[Any]:
    """Return the URLs of the site; none without ROOT_URLCONF, as in a site that only runs tasks."""
    return get_resolver().url_patterns if getattr(settings, "ROOT_URLCONF", None) else ()
