"""The rules of a request: those of the settings, and those of `@quota` on its view.

The middleware decides the `@quota` on the outside of a view in one call with the rules of the settings. If other code
runs before a `@quota`, it must run first, and the decorator decides for itself.

Some rules wait until the view knows more about the request. Django REST framework reads tokens inside the view. Before
that, a rule by user would limit all users of tokens as one anonymous visitor. So an integration says with
`decides_later` which views decide such rules themselves. The middleware and `@quota` then leave these rules on the
request, and decide the others at once. Rules that nobody has taken when the view has answered are decided then, for
example because a wrong token was answered with 401.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from django.http import HttpRequest
from django.views import View
from django.views.decorators.csrf import csrf_exempt

from django_quota.conf import current
from django_quota.core.rules import AFTER_RESPONSE, Rule, functions_of, key_parts
from django_quota.services.request_state import state_of
from django_quota.services.site_rules import site_rules
from django_quota.web.responses import decision_of
from django_quota.web.view_kinds import called_view

F = TypeVar("F", bound=Callable[[Any], bool])

NameFor = Callable[[type | None], str]
"""Returns the name of the limits of a view, from its class (None for a function)."""

MARK = "_django_quota"
"""The attribute of a view with what `@quota` keeps of it."""


def rules_before(request: HttpRequest, view: Callable[..., Any]) -> list[Rule]:
    """Return the rules to decide before the view: those of the settings, and those of the view."""
    state = state_of(request)
    if state.is_asked:
        return []
    state.is_asked = True
    return rules_for_now(request, site_rules(request) + claim_view_rules(request, view), view)


def rules_after(request: HttpRequest) -> Sequence[Rule]:
    """Return the rules to decide on the way back: those that the view has left, or all if there was no view."""
    state = state_of(request)
    if state.is_asked:
        return rules_left(request) if state.waiting else ()
    state.is_asked = True
    return site_rules(request)


# --- the `@quota` of a view -------------------------------------------------------------------------------------------


class RuleSource:
    """The rule of one `@quota`: the decorator's own, or one of the settings."""

    __slots__ = ("_made", "name_for", "rule")

    def __init__(self, rule: str | Rule, name_for: NameFor | None, made: dict[str, Rule]) -> None:
        self.rule: str | Rule = rule
        """The decorator's own rule, or the name of one of the settings."""
        self.name_for: NameFor | None = name_for
        """Returns the name of a rule that has none of its own: the path of the view."""
        self._made: dict[str, Rule] = made
        """The rules that have such names. The `@quota` keeps them, since `method_decorator` uses it once a request."""

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
    """What `@quota` keeps of a view: the view, and the rules of all `@quota` directly on it."""

    __slots__ = ("_of_function", "depth", "may_settle", "names", "sources", "view", "wrapper")

    def __init__(self, view: Callable[..., Any], sources: tuple[RuleSource, ...], depth: int) -> None:
        self.view: Callable[..., Any] = view
        self.sources: tuple[RuleSource, ...] = sources
        rules = [source.rule for source in sources]
        self.names: list[str] = [rule for rule in rules if isinstance(rule, str)]
        """The names of its rules from the settings."""
        self.may_settle: bool = any(isinstance(rule, str) or rule.settles for rule in rules)
        """Whether a rule may look at the response: one of the settings may."""
        self.depth: int = depth
        """How many `@quota` there are from here on, with those below other decorators."""
        self.wrapper: Callable[..., Any] | None = None
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


def marked(view: object) -> Limited | None:
    """Return what `@quota` keeps of a view, or of a view below it whose attributes were copied."""
    found = getattr(view, MARK, None)
    return found if isinstance(found, Limited) else None


def limited(view: object) -> Limited | None:
    """Return what `@quota` keeps of a view that it wraps itself; None for other views.

    `functools.wraps` copies attributes, so a view under `@login_required` also has the mark.
    """
    found = marked(view)
    return found if found is not None and found.wrapper is view else None


def claim_view_rules(request: HttpRequest, view: Callable[..., Any]) -> list[Rule]:
    """Return the rules of the `@quota` on the outside of a view. The decorator will not decide them again."""
    spec, owner = _known(view)
    if spec is None and owner is not None:
        spec = limited(_handler(owner, request.method))
    if spec is None:
        return []
    state_of(request).claimed = spec
    return spec.rules(owner)


def _known(view: Any) -> tuple[Limited | None, type | None]:
    try:
        return _outermost(view)
    except TypeError:  # an unhashable view, such as an instance of a dataclass
        return _outermost.__wrapped__(view)


@lru_cache(maxsize=1024)
def _outermost(view: Any) -> tuple[Limited | None, type | None]:
    """Return the `@quota` on the outside of a view, and its class; only a class if each of its methods has its own."""
    found = limited(view)
    if found is not None:
        return found, None
    code = getattr(view, "__code__", None)
    if code in _CHANGE_NOTHING:
        return _outermost(view.__wrapped__)
    owner = view.view_class if code is _AS_VIEW else None
    if owner is None or owner.setup is not View.setup or not _CHOSEN_BY_THE_CLASS.isdisjoint(view.view_initkwargs):
        return None, None
    if owner.dispatch is View.dispatch:
        return None, owner
    found = limited(owner.dispatch)
    return found, None if found is None else owner


def _handler(owner: type, method: str | None) -> Any:
    """Return the method of a class-based view that answers, as `View.dispatch` does."""
    name = (method or "").lower()
    if name not in getattr(owner, "http_method_names", ()):
        return None
    return getattr(owner, name, None) or (getattr(owner, "get", None) if name == "head" else None)


def _nothing(request: HttpRequest) -> None: ...


async def _nothing_async(request: HttpRequest) -> None: ...


_AS_VIEW: Any = getattr(View.as_view(), "__code__", None)
"""The code of the function that `as_view()` returns. Wrappers copy its name and attributes, but not its code."""

_CHOSEN_BY_THE_CLASS = frozenset({"dispatch", "http_method_names", "setup"})
"""The attributes that choose the method which answers; `as_view()` may replace them."""

_CHANGE_NOTHING = {getattr(csrf_exempt(view), "__code__", None) for view in (_nothing, _nothing_async)} - {None}
"""The code of wrappers that only mark a view."""


# --- rules that wait for the view -------------------------------------------------------------------------------------

_finders: list[Callable[[Any], bool]] = []


def decides_later(finder: F) -> F:
    """Register a function that says whether a view decides its rules by itself; it can be used as a decorator.

    The function gets the view as Django calls it: a function, for example from `as_view()`, a class or its instance.
    Such a view must call `take_waiting_rules` (in `adapters`), and decide what that returns.
    """
    _finders.append(finder)
    return finder


def is_decided_later(view: Any) -> bool:
    """Say whether a view decides rules itself that need the user."""
    return any(finder(view) for finder in _finders)


def rules_left(request: HttpRequest) -> Sequence[Rule]:
    """Return the rules that still wait when the view has answered; none if the request is refused already.

    Rules that need the body are left out if the view has read it, so that it cannot be read again.
    """
    rules = state_of(request).take_waiting()
    decision = decision_of(request)
    if decision is not None and decision.enforced:
        return ()
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
        state = state_of(request)
        state.waiting = (*state.waiting, *waiting)
    return [rule for rule in rules if rule not in waiting]


def needs_view(rule: Rule) -> bool:
    """Say whether a rule needs the user, the body, or a function of the request, which may look at the user."""
    if rule.tiers or rule.reads_body or (rule.exempt is not None and rule.exempt.staff):
        return True
    if any(option not in AFTER_RESPONSE for option, _ in functions_of(rule)):
        return True
    return any(_is_about_the_user(part) for _, part in key_parts(rule))


def _is_about_the_user(part: object) -> bool:
    """Say whether a part of a key is the user, or a function, by itself or by its dotted path."""
    if isinstance(part, str):
        return part in ("user", "user_or_ip") or ("." in part and ":" not in part)
    return callable(part)
