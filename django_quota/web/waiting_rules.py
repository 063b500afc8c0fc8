"""Rules that wait until the view knows more about the request.

Django REST framework reads tokens inside the view. Before that, a rule by user would limit all users of tokens as one
anonymous visitor. So an integration says with `decides_later` which views decide such rules themselves. The middleware
and `@quota` then leave these rules on the request, and decide the others at once. Rules that nobody has taken when the
view has answered are decided then, for example because a wrong token was answered with 401.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from django.http import HttpRequest

from django_quota.core.rules import Rule
from django_quota.web.responses import decision_of
from django_quota.web.view_kinds import called_view

F = TypeVar("F", bound=Callable[[Any], bool])

WAITING = "_django_quota_waiting"
"""The attribute of a request with the rules that wait."""

_finders: list[Callable[[Any], bool]] = []


def decides_later(finder: F) -> F:
    """Register a function that says whether a view decides rules itself; return it, so that it can be decorated.

    The function gets the view as Django calls it: a function, for example from `as_view()`, a class or its instance.
    Such a view must call `take_waiting_rules`, and decide what that returns.
    """
    _finders.append(finder)
    return finder


def is_decided_later(view: Any) -> bool:
    """Say whether a view decides rules itself that need the user."""
    return any(finder(view) for finder in _finders)


def take_waiting_rules(request: HttpRequest) -> list[Rule]:
    """Return the rules of the settings and of `@quota` that the view must decide; they wait no longer."""
    rules: list[Rule] = request.__dict__.pop(WAITING, [])
    return rules


def rules_left(request: HttpRequest) -> list[Rule]:
    """Return the rules that still wait when the view has answered; none if the request is refused already.

    Rules that need the body are left out if the view has read it, so that it cannot be read again.
    """
    rules = take_waiting_rules(request)
    if not rules:
        return rules
    decision = decision_of(request)
    if decision is not None and decision.enforced:
        return []
    is_readable = not getattr(request, "_read_started", False) or hasattr(request, "_body")
    return [rule for rule in rules if is_readable or not rule.reads_body]


def rules_for_now(request: HttpRequest, rules: list[Rule], view: Any, args: tuple[Any, ...] = ()) -> list[Rule]:
    """Return the rules to decide before the view; the others wait on the request, if the view decides them.

    `args`: those of the call, if `view` may be the method of a class.
    """
    if not _finders or not is_decided_later(called_view(view, args)):
        return rules
    waiting = [rule for rule in rules if needs_view(rule)]
    if waiting:
        setattr(request, WAITING, [*getattr(request, WAITING, ()), *waiting])
    return [rule for rule in rules if rule not in waiting]


def needs_view(rule: Rule) -> bool:
    """Say whether a rule needs the user, the body, or a function of the request, which may look at the user."""
    functions: Sequence[object] = (rule.cost, rule.skip, rule.tier, *rule.rates)
    if rule.tiers or rule.reads_body or any(map(callable, functions)):
        return True
    if rule.exempt is not None and (rule.exempt.staff or rule.exempt.functions):
        return True
    return any(_is_about_the_user(part) for key in (rule.key, rule.distinct) for part in _parts(key))


def _parts(key: object) -> tuple[object, ...]:
    return key if isinstance(key, tuple) else (key,)


def _is_about_the_user(part: object) -> bool:
    """Say whether a part of a key is the user, or a function, by itself or by its dotted path."""
    if isinstance(part, tuple):
        return any(map(_is_about_the_user, part))
    if isinstance(part, str):
        return part in ("user", "user_or_ip") or ("." in part and ":" not in part)
    return callable(part)
