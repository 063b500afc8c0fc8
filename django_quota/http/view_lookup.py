"""The limits behind the URLs of the project, for the system checks and the admin."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from inspect import unwrap
from typing import Any, Generic, NamedTuple, TypeVar

from django.core.checks import CheckMessage
from django.urls import ResolverMatch

from django_quota.conf import current
from django_quota.core.errors import ConfigurationError, RuleError
from django_quota.core.rules import Rule
from django_quota.http.request_rules import Limited, applies_to
from django_quota.http.request_slots import SlotRule
from django_quota.http.views import (
    Mark,
    Noted,
    bound_to_class,
    class_of,
    given_to,
    marks_of,
    marks_of_function,
    path_of_view,
)

N = TypeVar("N", bound=Noted)

ViewCheck = Callable[[Sequence[Any]], Iterable[CheckMessage]]
"""Finds what is wrong with the views of URL patterns."""

view_checks: list[ViewCheck] = []
"""The checks of integrations; see `register_view_check`."""

C = TypeVar("C", bound=ViewCheck)


def register_view_check(check: C) -> C:
    """Register a system check of the views of an integration; it can be used as a decorator.

    The check gets the URL patterns, and returns messages as any system check does. A message about several views is
    reported once. A `ConfigurationError` ends the check, because other checks report wrong settings.

    Django's own `register` is too late for a module that only the views import: the first check that needs the URLs
    loads them, and by then Django has its list of checks.
    """
    view_checks.append(check)
    return check


class Endpoint(NamedTuple):
    """A view behind a URL, with what a rule's `match` looks at."""

    path: str
    """Its path as people write it: `/orders/<int:pk>/`."""
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
        """The configured rules and those of `@quota` that wait for the view, if `register_late_views` says so."""
        for name in current().rules:
            with suppress(RuleError):  # a system check reports it
                rule = current().rule(name)
                if applies_to(rule, self) and rule.needs_view:
                    yield rule
        for found in limited_views([self.pattern]):
            rules = rules_on(found) if found.called_by is None else ()
            yield from (rule for rule in rules if rule.needs_view)


def endpoints(patterns: Iterable[Any], before: str = "", namespace: str = "") -> Iterator[Endpoint]:
    """Return the views behind all URLs."""
    for pattern in patterns:
        below = before + str(pattern.pattern)
        if hasattr(pattern, "url_patterns"):
            inner = getattr(pattern, "namespace", None)
            yield from endpoints(pattern.url_patterns, below, f"{namespace}{inner}:" if inner else namespace)
        else:
            name = ResolverMatch(pattern.callback, (), {}, pattern.name).view_name
            yield Endpoint(path_of(below), f"{namespace}{name}", pattern)


@lru_cache(1_024)  # each check walks through all URLs, and this is most of a walk
def path_of(pattern: str) -> str:
    """Return the path of routes or regular expressions as people write it, each argument in angle brackets."""
    from django.contrib.admindocs.views import simplify_regex  # noqa: PLC0415 — only checks and commands need it

    return _FORMAT.sub(".<format>", simplify_regex(pattern).replace("\\", ""))


_FORMAT = re.compile(r"<drf_format_suffix[^>]*>|\.<format>/$")
"""A format suffix, as `format_suffix_patterns` of Django REST framework adds it to a route or a regular expression."""


class DecoratedView(NamedTuple, Generic[N]):
    """A view behind a URL with one decorator of ours."""

    mark: Mark[N]
    owner: type | None = None
    """The class of the view, if the decorator is on a method of it."""
    method: Any = None
    """The method that the decorator is on; None if it is on the whole view."""
    called_by: type | None = None
    """The class whose `dispatch()` calls it; None if it runs before that, or if there is no class."""

    @property
    def path(self) -> str:
        """The dotted path of the function, the class or the method."""
        return self.mark.path if self.owner is None else path_of_view(self.method, self.owner)

    @property
    def identity(self) -> Any:
        """What the decorator is on, under any name: a class and its arguments, or the innermost function."""
        view = self.mark.view
        owner = self.owner or bound_to_class(view)
        if owner is not None:
            return owner
        return unwrap(view) if class_of(view) is None else (class_of(view), given_to(view))


def rules_on(found: DecoratedView[Limited]) -> Iterator[Rule]:
    """Return the rules of a `@quota`, with those directly below it, and without those that are wrong."""
    for source in found.mark.noted.sources:
        with suppress(ConfigurationError):  # a system check reports it
            yield source.rule_for(found.path)


def limited_views(patterns: Iterable[Any]) -> Iterator[DecoratedView[Limited]]:
    """Find every `@quota` on functions, classes and methods once, even below other decorators."""
    return decorated_views(patterns, Limited)


def rules_of_endpoint(view: Any, method: str) -> list[Rule]:
    """Return the rules of the `@quota` that a request of this method meets at a view, the outermost first."""
    name = (getattr(view, "actions", None) or {}).get(method.lower(), method.lower())
    if name == "head" and not hasattr(class_of(view), "head"):
        name = "get"  # which Django calls then
    met = list(_decorated(view, Limited, set(), (name,)))
    met.reverse()  # the marks of a function have the innermost first
    met.sort(key=lambda found: (found.called_by is not None, found.owner is not None))
    return [rule for found in met for rule in rules_on(found)]


def rules_of_decorators(patterns: Iterable[Any]) -> Iterator[Rule]:
    """Return the rules of all limited views, without those that are wrong."""
    for found in limited_views(patterns):
        yield from rules_on(found)


def slots_of_views(patterns: Iterable[Any], *, before: bool = False) -> Iterator[tuple[str, SlotRule]]:
    """Return the slots of `@concurrency` with their names; `before`: only those that are taken before `dispatch()`."""
    for found in decorated_views(patterns, SlotRule):
        if found.called_by is None or not before:
            rule = found.mark.noted
            yield (rule.name if rule.name_for is None else found.path), rule


def shared_names(patterns: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Return each decorator and name under which several views share a count only because their paths are equal."""
    named: list[tuple[str, str, Any]] = []
    for limited in limited_views(patterns):
        sources = [source for source in limited.mark.noted.sources if source.suffix is not None]
        named += [("@quota", f"{limited.path}{source.suffix}", limited.identity) for source in sources]
    for held in decorated_views(patterns, SlotRule):
        named += [] if held.mark.noted.name_for is None else [("@concurrency", held.path, held.identity)]
    known: dict[tuple[str, str], Any] = {}
    clashing = [(by, name) for by, name, identity in named if known.setdefault((by, name), identity) != identity]
    yield from dict.fromkeys(clashing)


# --- finding decorators -----------------------------------------------------------------------------------------------


def decorated_views(patterns: Iterable[Any], kind: type[N]) -> Iterator[DecoratedView[N]]:
    """Find the views with a decorator of ours, each view and method once if it is behind several routes."""
    seen = set[object]()
    for endpoint in endpoints(patterns):
        yield from _decorated(endpoint.callback, kind, seen)


def _decorated(
    view: Any, kind: type[N], seen: set[object], methods: Iterable[str] | None = None
) -> Iterator[DecoratedView[N]]:
    """Find the decorators on a view and on the methods of its class, or on `dispatch` and `methods` alone."""
    view_class = class_of(view)
    of_dispatch = marks_of(getattr(view_class, "dispatch", None), kind)  # `as_view()` copies them
    of_function = () if view_class is None else marks_of_function(view_class, kind)
    for each in (*marks_of(view, kind), *of_function):
        if each not in of_dispatch and each not in seen:
            seen.add(each)
            yield DecoratedView(each, called_by=view_class if each in of_function else None)
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
            method = getattr(view_class, name, None)
            for each in marks_of(method, kind):
                yield DecoratedView(each, view_class, method, None if name == "dispatch" else view_class)
