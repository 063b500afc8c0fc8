"""The limits behind the URLs of the project, for the system checks and the admin."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, wraps
from inspect import getclosurevars
from types import MethodType
from typing import Any, NamedTuple, TypeVar, cast

from django.core.checks import CheckMessage
from django.urls import ResolverMatch
from django.utils.decorators import method_decorator

from django_quota.core.errors import ConfigurationError
from django_quota.core.rules import Rule, dotted_path
from django_quota.services.known_rules import finds_rules, slot_finders
from django_quota.web.concurrency import gate_of
from django_quota.web.decorators import under_a_bare_one
from django_quota.web.request_rules import Limited, limited, marked
from django_quota.web.view_kinds import bound_to_class, class_of, given_to, naming

MAX_LAYERS = 100
"""The most wrappers of a view that are followed: some objects have a new `__wrapped__` each time."""


ViewCheck = Callable[[Sequence[Any]], Iterable[CheckMessage]]
"""Finds what is wrong with the views of URL patterns."""

view_checks: list[ViewCheck] = []
"""The checks of integrations; see `checks_views`."""

C = TypeVar("C", bound=ViewCheck)


def checks_views(check: C) -> C:
    """Register a system check of the views of an integration; it can be used as a decorator.

    The check gets the URL patterns, and returns messages as any system check does.

    Django's own `register` is too late for a module that only the views import: the URLs are loaded by the first check
    that needs them, and by then Django has its list of checks.
    """
    view_checks.append(check)
    return check


class Endpoint(NamedTuple):
    """A view behind a URL, as a `Target` of rules with a `match`."""

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


def endpoints(patterns: Iterable[Any], path: str = "/", namespace: str = "") -> Iterator[Endpoint]:
    """Return the views behind all URLs."""
    for pattern in patterns:
        below = path + _ARGUMENT.sub("x", str(pattern.pattern)).translate(_OF_REGEX)
        if hasattr(pattern, "url_patterns"):
            inner = getattr(pattern, "namespace", None)
            yield from endpoints(pattern.url_patterns, below, f"{namespace}{inner}:" if inner else namespace)
        else:
            name = ResolverMatch(pattern.callback, (), {}, pattern.name).view_name
            yield Endpoint(below, f"{namespace}{name}", pattern)


_ARGUMENT = re.compile(r"\(\?P<\w+>(\[[^\]]*\]|[^()])*\)|<[^>]*>")
"""An argument in a route, or in a regular expression as routers of Django REST framework write it."""

_OF_REGEX = str.maketrans("", "", "^$\\")


class LimitedView(NamedTuple):
    """A `@quota` behind a URL, with those directly above it."""

    path: str
    """The dotted path of the function, the class or the method."""
    spec: Limited
    owner: type | None
    """The class of the view, if the rules need it; see `Limited.rules`."""
    called_by: type | None
    """The class whose `dispatch()` calls it; None if it runs before that, or if there is no class."""

    def rules(self) -> Iterator[Rule]:
        """Return the rules, without those that are wrong."""
        for source in self.spec.sources:
            try:
                yield source.rule_for(self.owner)
            except ConfigurationError:  # a system check reports it
                continue


def limited_views(patterns: Iterable[Any]) -> Iterator[LimitedView]:
    """Find every `@quota` on functions, classes and methods once, also below other decorators."""
    for layer in layers_of_all(patterns):
        spec = limited(layer.view)
        if spec is not None:
            yield LimitedView(naming(spec.view)(layer.owner), spec, layer.owner, layer.called_by)


def views_under_a_bare_quota(patterns: Iterable[Any]) -> Iterator[str]:
    """Return the paths of views under a `@quota` without parentheses."""
    for layer in layers_of_all(patterns):
        bare = under_a_bare_one(layer.view)
        if bare is not None:
            yield dotted_path(bare)


@finds_rules
def rules_of_views(patterns: Iterable[Any]) -> Iterator[Rule]:
    """Return the rules of all limited views, without those that are wrong."""
    for view in limited_views(patterns):
        yield from view.rules()


def slots_of_views(patterns: Iterable[Any]) -> Iterator[str]:
    """Return the names of the slots of `@concurrency` on views."""
    for layer in layers_of_all(patterns):
        gate = gate_of(layer.view)
        if gate is not None:
            yield gate.name_for(layer.owner)


slot_finders.append(slots_of_views)


def shared_names(patterns: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Return each decorator and name under which several views share a count only because their paths are equal."""
    known: dict[tuple[str, str], Any] = {}
    reported = set()
    for layer in layers_of_all(patterns):
        spec, gate = limited(layer.view), gate_of(layer.view)
        names = [] if spec is None else [("@quota", name) for name in spec.names_by_view(layer.owner)]
        if gate is not None and not gate.is_named:
            names.append(("@concurrency", gate.name_for(layer.owner)))
        for name in names:
            bare = _identity(layer)
            if known.setdefault(name, bare) != bare and name not in reported:
                reported.add(name)
                yield name


# --- the wrappers of a view -------------------------------------------------------------------------------------------


class Layer(NamedTuple):
    """A view or one of its wrappers."""

    view: Any
    owner: type | None
    called_by: type | None


def layers_of_all(patterns: Iterable[Any], seen: set[Any] | None = None) -> Iterator[Layer]:
    """Return the layers of all views, once for a view or a method behind several routes."""
    seen = set() if seen is None else seen
    for pattern in patterns:
        if hasattr(pattern, "url_patterns"):
            yield from layers_of_all(pattern.url_patterns, seen)
        else:
            yield from _layers_of_view(pattern.callback, seen)


def _layers_of_view(view: Any, seen: set[Any]) -> Iterator[Layer]:
    """Return the layers of a view, the outermost first, and those of the methods of its class."""
    view_class = class_of(view)
    dispatch = getattr(view_class, "dispatch", None)
    if id(view) not in seen:
        seen.add(id(view))
        yield from _layers(view, None, None, None, dispatch)
    # A ViewSet names the methods that answer. In a Django view they have the names of HTTP methods.
    methods = [*_actions(view), *getattr(view_class, "http_method_names", ())]
    for name in dict.fromkeys(["dispatch", *methods]) if view_class is not None else ():
        if (view_class, name) not in seen:
            seen.add((view_class, name))
            called_by = None if name == "dispatch" else view_class
            yield from _layers(getattr(view_class, name, None), None, view_class, called_by)


def _actions(view: Any) -> Iterator[str]:
    actions = getattr(view, "actions", None)
    return (name for name in actions.values() if isinstance(name, str)) if isinstance(actions, dict) else iter(())


def _layers(view: Any, end: Any, owner: type | None, called_by: type | None, dispatch: Any = None) -> Iterator[Layer]:
    """Return a view and what it wraps, up to `end`; without what `as_view()` copied from `dispatch`."""
    for _ in range(MAX_LAYERS):
        if view is None or view is end:
            return
        yield Layer(view, owner, called_by)
        if getattr(view, "__code__", None) is _BY_METHOD_DECORATOR and owner is not None:
            given = getclosurevars(view).nonlocals
            method, decorators = given["method"], given["decorators"]
            yield from _layers(*_decorated(method, decorators, owner), None, called_by)
            view = method
            continue
        inner = _wrapped_by(view)
        if dispatch is not None and (inner is dispatch or inner is getattr(dispatch, "__wrapped__", None)):
            return
        if owner is not None and not hasattr(view, "__wrapped__") and not _is_method(inner, owner):
            owner = None
        view = inner


def _is_method(view: Any, owner: type) -> bool:
    """Return whether a class or a base of it defines a view: @api_view puts a function into a class of its own."""
    defined_in = getattr(view, "__qualname__", "").rpartition(".")[0]
    return any(defined_in == base.__qualname__ for base in owner.__mro__)


def _decorated(
    method: Callable[..., Any], decorators: Iterable[Callable[[Any], Any]], owner: type
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Decorate a method as `method_decorator` does at each request; return it with and without the decorators."""
    decorated = bound = wraps(method)(partial(MethodType(method, owner)))
    try:
        for decorate in decorators:
            decorated = decorate(decorated)
    except Exception:  # noqa: BLE001 — each request shows it; a look at the views need not
        return bound, bound
    return decorated, bound


def _wrapped_by(view: Any) -> Any:
    """Return what a view wraps. A wrapper without `__wrapped__`, like that of @api_view, has it in its closure."""
    if isinstance(view, partial):
        return view.func
    if hasattr(view, "__wrapped__"):
        return view.__wrapped__
    for cell in getattr(view, "__closure__", None) or ():
        try:
            inner = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if callable(inner) and not isinstance(inner, type) and marked(inner) is not None:
            return inner
    return None


_BY_METHOD_DECORATOR = cast("Any", method_decorator)(dotted_path)(dotted_path).__code__
"""The code of what `method_decorator` returns."""


def _identity(layer: Layer) -> Any:
    """Return the identity of a view, whatever its name: its class and arguments, or the innermost function."""
    bare = _wrapped_by(layer.view)
    owner = layer.owner or bound_to_class(bare)
    if owner is not None:
        return owner
    if class_of(bare) is not None:
        return class_of(bare), given_to(bare)
    *_, innermost = _layers(bare, None, None, None)
    return innermost.view
