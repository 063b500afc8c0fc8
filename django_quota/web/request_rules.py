"""The rules of a request: those of the settings, and those of `@quota` on its view.

The middleware decides the `@quota` on the outside of a view in one call with the configured rules. If another
decorator is above a `@quota`, that one must run first, and the `@quota` decides by itself.

Some rules wait until the view knows more about the request. Django REST framework reads tokens inside the view. Before
that, a rule by user would count all users with tokens as one anonymous visitor. So an integration says with
`decides_later` which views decide such rules themselves. The middleware and `@quota` then leave these rules on the
request, and decide the others at once. If the view has answered and has not decided them, for example because a wrong
token got a 401, they are decided then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any, TypeVar

from django.http import HttpRequest
from django.views import View

from django_quota.conf import current
from django_quota.core.caching import cached
from django_quota.core.rules import AFTER_RESPONSE, Rule, functions_of, key_parts
from django_quota.requests.site_rules import site_rules
from django_quota.web.limited_requests import decision_of, in_a_cache, state_of
from django_quota.web.view_kinds import called_view
from django_quota.web.view_marks import own

logger = logging.getLogger("django_quota")

F = TypeVar("F", bound=Callable[[Any], bool])

NameFor = Callable[[type | None], str]
"""Returns the name of the limits of a view, from its class (None for a function)."""


def rules_before(request: HttpRequest, view: Callable[..., Any]) -> list[Rule]:
    """Return the rules to decide before the view: those of the settings, and those of the view."""
    state = state_of(request)
    state.is_asked = True
    state.is_cached = in_a_cache(request)
    return rules_for_now(request, site_rules(request) + claim_view_rules(request, view), view)


def rules_after(request: HttpRequest, response: Any) -> Sequence[Rule]:
    """Return the rules to decide after the view: those that it did not decide, or all if there was no view."""
    state = state_of(request)
    if state.is_asked:
        return rules_left(request, response) if state.waiting else ()
    state.is_asked = True
    return site_rules(request)


# --- the `@quota` of a view -------------------------------------------------------------------------------------------


class RuleSource:
    """The rule of one `@quota`: the decorator's own, or one of the settings."""

    __slots__ = ("_made", "name_for", "rule")

    def __init__(self, rule: str | Rule, name_for: NameFor | None, made: dict[str, Rule]) -> None:
        self.rule: str | Rule = rule
        """The decorator's own rule, or the name of a configured rule."""
        self.name_for: NameFor | None = name_for
        """Returns the name of a rule that has none of its own: the path of the view."""
        self._made: dict[str, Rule] = made
        """The rules with such names. `@quota` keeps them: `method_decorator` applies it at each request."""

    def rule_for(self, owner: type | None) -> Rule:
        """Return the rule, for a view of this class (None for a function)."""
        rule = self.rule
        if isinstance(rule, str):
            return current().rule(rule)
        if self.name_for is None:
            return rule
        name = self.name_for(owner)
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = rule.renamed(name)
        return made


class Limited:
    """What `@quota` remembers of a view: the view, and the rules of all `@quota` directly on it."""

    __slots__ = ("_of_function", "may_settle", "names", "sources", "view")

    def __init__(self, view: Callable[..., Any], sources: tuple[RuleSource, ...]) -> None:
        self.view: Callable[..., Any] = view
        self.sources: tuple[RuleSource, ...] = sources
        rules = [source.rule for source in sources]
        self.names: list[str] = [rule for rule in rules if isinstance(rule, str)]
        """The names of its rules from the settings."""
        self.may_settle: bool = any(isinstance(rule, str) or rule.settles for rule in rules)
        """Whether a rule may look at the response; any configured rule may."""
        self._of_function: list[Rule] | None = None
        """The rules of a function, if none is from the settings: then they never change."""

    def names_by_view(self, owner: type | None) -> list[str]:
        """Return the names of its rules without `name=`, for a view of this class (None for a function)."""
        return [source.name_for(owner) for source in self.sources if source.name_for is not None]

    def rules(self, owner: type | None) -> list[Rule]:
        """Return its rules, for a view of this class (None for a function)."""
        if owner is None and self._of_function is not None:
            return self._of_function
        rules = [source.rule_for(owner) for source in self.sources]
        if owner is None and not self.names:
            self._of_function = rules
        return rules


def claim_view_rules(request: HttpRequest, view: Callable[..., Any]) -> list[Rule]:
    """Return the rules of the `@quota` on the outside of a view. The decorator will not decide them again."""
    spec, owner = _outermost(view)
    if spec is None and owner is not None:
        spec = own(_handler(owner, request.method), Limited)
    if spec is None:
        return []
    state_of(request).claimed = spec
    return spec.rules(owner)


@cached(maxsize=1024)
def _outermost(view: Any) -> tuple[Limited | None, type | None]:
    """Return the outermost `@quota` of a view, and the class; only the class if each method has its own `@quota`."""
    found = own(view, Limited)
    if found is not None:
        return found, None
    owner: Any = getattr(view, "view_class", None)
    if owner is None or owner.setup is not View.setup or not _CHOSEN_BY_THE_CLASS.isdisjoint(view.view_initkwargs):
        return None, None
    if getattr(view, "__wrapped__", None) is not getattr(owner.dispatch, "__wrapped__", None):
        return None, None  # it is around the view that `as_view()` made, whose attributes are those of dispatch()
    if owner.dispatch is View.dispatch:
        return None, owner
    found = own(owner.dispatch, Limited)
    return found, None if found is None else owner


def _handler(owner: type, method: str | None) -> Any:
    """Return the method of a class-based view that answers, as `View.dispatch` does."""
    name = (method or "").lower()
    if name not in getattr(owner, "http_method_names", ()):
        return None
    return getattr(owner, name, None) or (getattr(owner, "get", None) if name == "head" else None)


_CHOSEN_BY_THE_CLASS = frozenset({"dispatch", "http_method_names", "setup"})
"""The attributes that choose the method which answers; `as_view()` may replace them."""

# --- rules that wait for the view -------------------------------------------------------------------------------------

_finders: list[Callable[[Any], bool]] = []


def decides_later(finder: F) -> F:
    """Register a function that says whether a view decides its rules by itself; it can be used as a decorator.

    The function gets the view as Django calls it: a function, for example from `as_view()`, a class or its instance.
    Such a view must call `take_waiting_rules` (in `adapters`), and decide what that returns; if it is allowed, also
    `take_waiting_slots`.
    """
    _finders.append(finder)
    return finder


def is_decided_later(view: Any) -> bool:
    """Say whether a view itself decides the rules that need the user."""
    return any(finder(view) for finder in _finders)


def rules_left(request: HttpRequest, response: Any) -> Sequence[Rule]:
    """Return the rules that still wait when the view has answered; none if the request is refused already.

    Rules that need the body are left out if the view has read it, because it cannot be read again.
    """
    rules = state_of(request).take_waiting()
    decision = decision_of(request)
    if decision is not None and decision.enforced:
        return ()
    if rules and _is_done(response):
        names = ", ".join([repr(rule.name) for rule in rules])
        _log_late(
            _name_of_view(request),
            response.status_code,
            f"these rules waited for it: {names}. They are decided after it, which is too late",
        )
    is_readable = not getattr(request, "_read_started", False) or hasattr(request, "_body")
    return [rule for rule in rules if is_readable or not rule.reads_body]


@lru_cache(maxsize=1024)  # once for a view: clients may cause it often
def _log_late(view: str, status: int, what: str) -> None:
    logger.error(
        "The view %r answered %s while %s. Let the view ask its throttles, or take the limits off it.",
        view,
        status,
        what,
    )


def log_untaken_slots(request: HttpRequest, response: Any) -> None:
    """Log that a view has answered without taking the slots that waited for it."""
    if state_of(request).take_waiting_slots() and _is_done(response):
        what = "a slot waited for it. Nothing has limited how many run at once"
        _log_late(_name_of_view(request), response.status_code, what)


def _is_done(response: Any) -> bool:
    """Say whether a view has done what was asked of it."""
    return bool(getattr(response, "status_code", HTTPStatus.BAD_REQUEST) < HTTPStatus.BAD_REQUEST)


def _name_of_view(request: HttpRequest) -> str:
    match = request.resolver_match
    return match.view_name if match else request.path


def rules_for_now(request: HttpRequest, rules: list[Rule], view: Any, args: tuple[Any, ...] = ()) -> list[Rule]:
    """Return the rules to decide before the view; the others wait on the request, if the view decides them.

    `args`: the arguments of the call, if `view` may be the method of a class.
    """
    if not _finders or not is_decided_later(called_view(view, args)):
        return rules
    waiting = [rule for rule in rules if needs_view(rule)]
    if waiting:
        state = state_of(request)
        state.waiting = (*state.waiting, *waiting)
    return [rule for rule in rules if rule not in waiting]


def needs_view(rule: Rule) -> bool:
    """Say whether a rule needs the user, the body, or a function of the request, which may look at the user."""
    if rule.tiers or rule.reads_body or (rule.exempt is not None and rule.exempt.staff):
        return True
    if any(option not in AFTER_RESPONSE for option, _ in functions_of(rule)):
        return True
    return any(is_about_the_user(part) for _, part in key_parts(rule))


def is_about_the_user(part: object) -> bool:
    """Say whether a key, or a part of one, is the user, or a function, by itself or by its dotted path."""
    if isinstance(part, tuple):
        return any(map(is_about_the_user, part))
    if isinstance(part, str):
        return part in ("user", "user_or_ip") or ("." in part and ":" not in part)
    return callable(part)
