"""What our decorators note on a view: marks, which `functools.wraps` carries outwards through other decorators.

So the outermost wrapper of a view has the marks of all decorators below it. Each mark is an attribute with a name of
its own, since `wraps` would replace an attribute of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeVar

from django_quota.core.rules import dotted_path
from django_quota.web import finders  # noqa: F401 — without the app, this registers what finds our marks
from django_quota.web.view_kinds import class_of

K = TypeVar("K")

_numbers = count(1)

_registered: dict[str, Callable[..., Any]] = {}
"""Our outermost wrapper of each function that is not a method, by its module and name."""


class Mark(NamedTuple):
    """What one decorator noted on a view."""

    number: int
    """The place in the order in which the decorators ran: the innermost has the lowest number."""
    kept: Any
    """What the decorator remembers of the view."""
    wrapper: Callable[..., Any]
    """What the decorator returned. Others carry the mark outwards."""
    decorate: Callable[[Any], Any]
    """The decorator itself, to decorate another method as `method_decorator` does at each request."""

    @property
    def name(self) -> str:
        """The name of the attribute."""
        return f"_django_quota_{self.number}"


def mark(wrapper: Any, kept: object, decorate: Callable[[Any], Any]) -> None:
    """Note on a wrapper what the decorator that has just made it remembers of the view."""
    noted = Mark(next(_numbers), kept, wrapper, decorate)
    setattr(wrapper, noted.name, noted)
    name = wrapper.__qualname__.rpartition("<locals>.")[2] if hasattr(wrapper, "__wrapped__") else "."
    if "." not in name and class_of(wrapper) is None:
        _registered[f"{wrapper.__module__}.{name}"] = wrapper


def marks_of(view: Any) -> list[Mark]:
    """Return the marks of a view and of all that it wraps, the innermost first."""
    while isinstance(view, partial) and not hasattr(view, "__wrapped__"):
        view = view.func
    attributes = getattr(view, "__dict__", None)
    noted = list(attributes.values()) if isinstance(attributes, Mapping) else []
    return sorted(each for each in noted if isinstance(each, Mark))


def marks_of_function(view_class: type) -> list[Mark]:
    """Return the marks of a function that a framework has turned into a class of the same path, as `@api_view` does."""
    return marks_of(_registered.get(dotted_path(view_class)))


def own(view: object, kind: type[K]) -> K | None:
    """Return what a decorator remembers of a view that it wraps itself; None for other views."""
    return next((each.kept for each in marks_of(view) if each.wrapper is view and isinstance(each.kept, kind)), None)
