"""The limited views that a project's URLs lead to, and the rules that stand on them. It must not know what for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from inspect import getclosurevars
from types import MethodType
from typing import Any, NamedTuple, cast

from django.utils.decorators import method_decorator

from django_quota.concurrency import gate_of
from django_quota.decorators import Limited, limited, marked, under_a_bare_one
from django_quota.exceptions import RuleError
from django_quota.leases import Slot
from django_quota.rules import Rule, path_of
from django_quota.view_kinds import bound_to_class, class_of, given_to, naming

MAX_LAYERS = 100
"""Wrappers of a view that are looked into: some objects bring another `__wrapped__` each time."""


class LimitedView(NamedTuple):
    """One `@quota` that a URL leads to, with those that stand directly on it."""

    path: str
    """The dotted path of the view: of its function, its class, or its method."""
    spec: Limited
    owner: type | None
    """The class of the view, where the rules ask for it; see `Limited.rules`."""
    called_by: type | None
    """The class whose `dispatch()` calls it; None where it stands in front of that, or there is no class."""

    def rules(self) -> Iterator[Rule]:
        """Return the rules, as far as they can be read."""
        for source in self.spec.sources:
            try:
                yield source(self.owner)
            except RuleError:  # said by the system checks
                continue


def limited_views(patterns: Iterable[Any]) -> Iterator[LimitedView]:
    """Find every `@quota` on functions, classes and methods, also below other decorators; each once."""
    for layer in _layers_of_all(patterns):
        spec = limited(layer.view)
        if spec is not None:
            yield LimitedView(naming(spec.view)(layer.owner), spec, layer.owner, layer.called_by)


def views_under_a_bare_quota(patterns: Iterable[Any]) -> Iterator[str]:
    """Return the paths of views that a `@quota` without a call stands on."""
    for layer in _layers_of_all(patterns):
        bare = under_a_bare_one(layer.view)
        if bare is not None:
            yield path_of(bare)


def rules_of_views(patterns: Iterable[Any]) -> Iterator[Rule]:
    """Return the rules of all limited views, as far as they can be read."""
    for view in limited_views(patterns):
        yield from view.rules()


def slots_of_views(patterns: Iterable[Any]) -> Iterator[Slot]:
    """Return the slots that `@concurrency` takes before views."""
    for layer in _layers_of_all(patterns):
        gate = gate_of(layer.view)
        if gate is not None:
            yield gate.slot(layer.owner)


def shared_names(patterns: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Return the names that several views have, as none was given, each with the decorator that shares a count."""
    known: dict[tuple[str, str], Any] = {}
    told = set()
    for layer in _layers_of_all(patterns):
        spec, gate = limited(layer.view), gate_of(layer.view)
        names = [] if spec is None else [("@quota", name) for name in spec.names_by_view(layer.owner)]
        if gate is not None and not gate.is_named:
            names.append(("@concurrency", gate.slot(layer.owner).name))
        for name in names:
            bare = _identity(layer)
            if known.setdefault(name, bare) != bare and name not in told:
                told.add(name)
                yield name


# --- what a view is wrapped in ----------------------------------------------------------------------------------------


class _Layer(NamedTuple):
    """A view, or what it is wrapped around."""

    view: Any
    owner: type | None
    called_by: type | None


def _layers_of_all(patterns: Iterable[Any], seen: set[Any] | None = None) -> Iterator[_Layer]:
    """Return the layers of all views; those of a view or a method that several routes lead to once."""
    seen = set() if seen is None else seen
    for pattern in patterns:
        if hasattr(pattern, "url_patterns"):
            yield from _layers_of_all(pattern.url_patterns, seen)
        else:
            yield from _layers_of_view(pattern.callback, seen)


def _layers_of_view(view: Any, seen: set[Any]) -> Iterator[_Layer]:
    """Return a view with all that it is wrapped around, outermost first, and those methods of its class that answer."""
    view_class = class_of(view)
    dispatch = getattr(view_class, "dispatch", None)
    if id(view) not in seen:
        seen.add(id(view))
        yield from _layers(view, None, None, None, dispatch)
    # A ViewSet names the methods that answer; a view of Django calls them like the HTTP methods.
    methods = [*_actions(view), *getattr(view_class, "http_method_names", ())]
    for name in dict.fromkeys(["dispatch", *methods]) if view_class is not None else ():
        if (view_class, name) not in seen:
            seen.add((view_class, name))
            called_by = None if name == "dispatch" else view_class
            yield from _layers(getattr(view_class, name, None), None, view_class, called_by)


def _actions(view: Any) -> Iterator[str]:
    actions = getattr(view, "actions", None)
    return (name for name in actions.values() if isinstance(name, str)) if isinstance(actions, dict) else iter(())


def _layers(view: Any, end: Any, owner: type | None, called_by: type | None, dispatch: Any = None) -> Iterator[_Layer]:
    """Return what a view is wrapped around, up to `end`; what `as_view()` copied from `dispatch` is none of it."""
    for _ in range(MAX_LAYERS):
        if view is None or view is end:
            return
        yield _Layer(view, owner, called_by)
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
    """Say whether a view was defined in a class or one that it derives from: @api_view puts a function into its own."""
    defined_in = getattr(view, "__qualname__", "").rpartition(".")[0]
    return any(defined_in == base.__qualname__ for base in owner.__mro__)


def _decorated(
    method: Callable[..., Any], decorators: Iterable[Callable[[Any], Any]], owner: type
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Decorate a method as `method_decorator` does at each request, for no instance; return it, and it undecorated."""
    decorated = bound = wraps(method)(partial(MethodType(method, owner)))
    try:
        for decorate in decorators:
            decorated = decorate(decorated)
    except Exception:  # noqa: BLE001 — each request fails of it: whoever only looks at the views does not
        return bound, bound
    return decorated, bound


def _wrapped_by(view: Any) -> Any:
    """Return what a view is wrapped around; a wrapper that does not say so is looked into, as that of @api_view is."""
    if isinstance(view, partial):
        return view.func
    if hasattr(view, "__wrapped__"):
        return view.__wrapped__
    for cell in getattr(view, "__closure__", None) or ():
        try:
            inner = cell.cell_contents
        except ValueError:  # empty as yet
            continue
        if callable(inner) and not isinstance(inner, type) and marked(inner) is not None:
            return inner
    return None


_BY_METHOD_DECORATOR = cast("Any", method_decorator)(path_of)(path_of).__code__
"""The code of what `method_decorator` returns."""


def _identity(layer: _Layer) -> Any:
    """Return what tells views apart that are called alike: the class and its arguments, or the innermost function."""
    bare = _wrapped_by(layer.view)
    owner = layer.owner or bound_to_class(bare)
    if owner is not None:
        return owner
    if class_of(bare) is not None:
        return class_of(bare), given_to(bare)
    *_, innermost = _layers(bare, None, None, None)
    return innermost.view
