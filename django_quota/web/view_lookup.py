"""The limits behind the URLs of the project, for the system checks and the admin."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial, wraps
from inspect import unwrap
from types import MethodType
from typing import Any, NamedTuple, TypeVar, cast

from django.core.checks import CheckMessage
from django.urls import ResolverMatch

from django_quota.conf import current
from django_quota.core.errors import ConfigurationError, RuleError
from django_quota.core.rules import Rule
from django_quota.requests.site_rules import applies_to
from django_quota.web.request_rules import Limited
from django_quota.web.request_slots import SlotRule
from django_quota.web.view_kinds import bound_to_class, class_of, given_to, is_a_trial, naming
from django_quota.web.view_marks import Mark, marks_of, marks_of_function

K = TypeVar("K")

ViewCheck = Callable[[Sequence[Any]], Iterable[CheckMessage]]
"""Finds what is wrong with the views of URL patterns."""

view_checks: list[ViewCheck] = []
"""The checks of integrations; see `checks_views`."""

C = TypeVar("C", bound=ViewCheck)


def checks_views(check: C) -> C:
    """Register a system check of the views of an integration; it can be used as a decorator.

    The check gets the URL patterns, and returns messages as any system check does. A message of several views is
    reported once; a `ConfigurationError` ends the check, since the values of the settings are reported anyway.

    Django's own `register` is too late for a module that only the views import: the URLs are loaded by the first check
    that needs them, and by then Django has its list of checks.
    """
    view_checks.append(check)
    return check


class Endpoint(NamedTuple):
    """A view behind a URL, with what a rule's `match` looks at."""

    path: str
    """Its path, with "x" for each argument."""
    view: str
    """Its name with its namespaces."""
    pattern: Any
    host: str | None = None

    @property
    def callback(self) -> Any:
        """The view as Django calls it."""
        return self.pattern.callback

    @property
    def view_class(self) -> type | None:
        """The class of a view that `as_view()` made; None for other views."""
        return class_of(self.callback)

    @property
    def given(self) -> dict[str, Any]:
        """The arguments of `as_view()`; those of a ViewSet include the methods that answer."""
        return given_to(self.callback)

    @property
    def rules_that_wait(self) -> Iterator[Rule]:
        """The configured rules and those of `@quota` that wait for the view, if it takes them; see `decides_later`."""
        for name in current().rules:
            with suppress(RuleError):  # a system check reports it
                rule = current().rule(name)
                if applies_to(rule, self) and rule.needs_view:
                    yield rule
        for found in limited_views([self.pattern]):
            rules = found.rules() if found.called_by is None else ()
            yield from (rule for rule in rules if rule.needs_view)


def endpoints(patterns: Iterable[Any], path: str = "/", namespace: str = "") -> Iterator[Endpoint]:
    """Return the views behind all URLs."""
    for pattern in patterns:
        below = path + path_of(pattern)
        if hasattr(pattern, "url_patterns"):
            inner = getattr(pattern, "namespace", None)
            yield from endpoints(pattern.url_patterns, below, f"{namespace}{inner}:" if inner else namespace)
        else:
            name = ResolverMatch(pattern.callback, (), {}, pattern.name).view_name
            yield Endpoint(below, f"{namespace}{name}", pattern)


def path_of(pattern: Any) -> str:
    """Return the path of a URL pattern, with "x" for each argument."""
    return _ARGUMENT.sub("x", _FORMAT.sub(".x", str(pattern.pattern))).translate(_OF_REGEX)


_FORMAT = re.compile(r"<drf_format_suffix[^>]*>|\\\.\(\?P<format>.+\)/\?")
"""A format suffix, as `format_suffix_patterns` of Django REST framework adds it to a route or a regular expression."""

_ARGUMENT = re.compile(r"\(\?P<\w+>(\[[^\]]*\]|[^()])*\)|<[^>]*>")
"""An argument in a route, or in a regular expression as routers of Django REST framework write it."""

_OF_REGEX = str.maketrans("", "", "^$\\")


class Found(NamedTuple):
    """A decorator of ours on a view behind a URL."""

    mark: Mark
    owner: type | None
    """The class of the view, if the decorator is on a method of it."""
    called_by: type | None
    """The class whose `dispatch()` calls it; None if it runs before that, or if there is no class."""

    @property
    def path(self) -> str:
        """The dotted path of the function, the class or the method under a `@quota`."""
        return naming(self.mark.kept.view)(self.owner)

    def rules(self) -> Iterator[Rule]:
        """Return the rules of a `@quota`, with those directly below it, and without those that are wrong."""
        for source in self.mark.kept.sources:
            with suppress(ConfigurationError):  # a system check reports it
                yield source.rule_for(self.owner)

    @property
    def identity(self) -> Any:
        """What the mark is on, under any name: a class and its arguments, or the innermost function."""
        view = cast("Any", self.mark.wrapper).__wrapped__
        owner = self.owner or bound_to_class(view)
        if owner is not None:
            return owner
        return unwrap(view) if class_of(view) is None else (class_of(view), given_to(view))


def limited_views(patterns: Iterable[Any]) -> Iterator[Found]:
    """Find every `@quota` on functions, classes and methods once, even below other decorators."""
    for _, found in marked_views(patterns, Limited):
        yield found


def rules_of_endpoint(view: Any, method: str) -> list[Rule]:
    """Return the rules of the `@quota` that a request of this method meets at a view, the outermost first."""
    name = (getattr(view, "actions", None) or {}).get(method.lower(), method.lower())
    if name == "head" and not hasattr(class_of(view), "head"):
        name = "get"  # which Django calls then
    met = [found for found in _marks_of_view(view, set(), (name,)) if isinstance(found.mark.kept, Limited)]
    met.reverse()  # the marks of a function have the innermost first
    met.sort(key=lambda found: (found.called_by is not None, found.owner is not None))
    return [rule for found in met for rule in found.rules()]


def rules_of_views(patterns: Iterable[Any]) -> Iterator[Rule]:
    """Return the rules of all limited views, without those that are wrong."""
    for found in limited_views(patterns):
        yield from found.rules()


def slots_of_views(patterns: Iterable[Any], *, before: bool = False) -> Iterator[tuple[str, SlotRule]]:
    """Return the slots of `@concurrency` with their names; `before`: only those that are taken before `dispatch()`."""
    for rule, found in marked_views(patterns, SlotRule):
        if found.called_by is None or not before:
            yield rule.name_on(found.owner), rule


def shared_names(patterns: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Return each decorator and name under which several views share a count only because their paths are equal."""
    named: list[tuple[str, str, Any]] = []
    for spec, found in marked_views(patterns, Limited):
        named += [("@quota", name, found.identity) for name in spec.names_by_view(found.owner)]
    for rule, found in marked_views(patterns, SlotRule):
        named += [("@concurrency", rule.name_for(found.owner), found.identity)] if rule.name_for else []
    known: dict[tuple[str, str], Any] = {}
    clashing = [(by, name) for by, name, identity in named if known.setdefault((by, name), identity) != identity]
    yield from dict.fromkeys(clashing)


# --- the marks of views -----------------------------------------------------------------------------------------------


def marked_views(patterns: Iterable[Any], kind: type[K]) -> Iterator[tuple[K, Found]]:
    """Return what a decorator of ours remembers of each view, once for a view or a method behind several routes."""
    seen = set[object]()
    for endpoint in endpoints(patterns):
        for found in _marks_of_view(endpoint.callback, seen):
            if isinstance(found.mark.kept, kind):
                yield found.mark.kept, found


def _marks_of_view(view: Any, seen: set[object], methods: Iterable[str] | None = None) -> Iterator[Found]:
    """Return the marks of a view and of the methods of its class, or of `dispatch` and `methods` alone."""
    view_class = class_of(view)
    of_dispatch = marks_of(getattr(view_class, "dispatch", None))  # `as_view()` copies them
    of_function = [] if view_class is None else marks_of_function(view_class)
    for each in [*marks_of(view), *of_function]:
        if each not in of_dispatch and each.number not in seen:
            seen.add(each.number)
            yield Found(each, None, view_class if each in of_function else None)
    if view_class is None:
        return
    if methods is None:
        # A ViewSet names the methods that answer. In a Django view they have the names of HTTP methods.
        actions = getattr(view, "actions", None)
        named = [name for name in actions.values() if isinstance(name, str)] if isinstance(actions, dict) else []
        methods = [*named, *getattr(view_class, "http_method_names", ())]
    for name in dict.fromkeys(["dispatch", *methods]):
        if (view_class, name) not in seen:
            seen.add((view_class, name))
            for each in _marks_of_method(getattr(view_class, name, None), view_class):
                yield Found(each, view_class, None if name == "dispatch" else view_class)


def _marks_of_method(method: Any, owner: type) -> list[Mark]:
    """Return the marks of a method, with those that `method_decorator` makes at each request.

    `method_decorator` has tried its decorators on an empty function, and copied the marks of that function.
    """
    marks = marks_of(method)
    tried = [each for each in marks if is_a_trial(each.wrapper)]
    if not tried:
        return marks
    decorated: Any = wraps(method)(partial(MethodType(method, owner)))
    for each in tried:
        delattr(decorated, each.name)
    for each in tried:
        decorated = each.decorate(decorated)
    return marks_of(decorated)
