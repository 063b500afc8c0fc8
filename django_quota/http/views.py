"""A view as our decorators see it: its kind, the path that names it, and what they note on it.

Each decorator leaves one attribute on its wrapper, as `csrf_exempt` does. `functools.wraps` and `as_view()` copy it to
what is around the wrapper, so that the view behind a URL has it too. A decorator that does not use `functools.wraps`
hides the attribute, and what is below it cannot be found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial, wraps
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

from django.http import HttpRequest

from django_quota.conf import is_async_callable
from django_quota.core.errors import ConfigurationError
from django_quota.core.rules import dotted_path, format_arguments

V = TypeVar("V", bound=Callable[..., Any])
"""A view function, a method of a view, or a class of views."""

# --- what a decorator notes on a view ---------------------------------------------------------------------------------


class Noted(Protocol):
    """What one kind of decorator notes on a view."""

    attribute: ClassVar[str]
    """The attribute that has it."""


N = TypeVar("N", bound=Noted)


class Mark(Generic[N]):
    """What one decorator noted on one view. Two marks are never equal."""

    __slots__ = ("noted", "path", "view", "wrapper")

    def __init__(self, noted: N, view: Callable[..., Any], path: str, wrapper: Callable[..., Any]) -> None:
        self.noted: N = noted
        self.view: Callable[..., Any] = view
        """What the decorator is on."""
        self.path: str = path
        """The dotted path of that; see `path_of_view`."""
        self.wrapper: Callable[..., Any] = wrapper
        """What it returned. Other decorators copy the mark to their own wrappers."""


_functions: dict[str, Callable[..., Any]] = {}
"""The wrapper of each decorated function, by its dotted path. Each decoration registers itself here."""


def mark(wrapper: Any, view: Any, path: str, noted: Noted) -> None:
    """Note something on a wrapper, after what decorators of the same kind have noted on the view in it."""
    setattr(wrapper, noted.attribute, (*marks_of(view, type(noted)), Mark(noted, view, path, wrapper)))
    if class_of(view) is not None:  # what `as_view()` of a ViewSet returns has the path of its class
        return
    name = wrapper.__qualname__.rpartition("<locals>.")[2]
    if "." not in name and bound_to_class(view) is None:  # `method_decorator` decorates a method for each request
        _functions[f"{wrapper.__module__}.{name}"] = wrapper


def marks_of(view: Any, kind: type[N]) -> tuple[Mark[N], ...]:
    """Return what decorators of a kind noted on a view and on all that it wraps, the innermost first."""
    while isinstance(view, partial) and not hasattr(view, kind.attribute):
        view = view.func
    found = getattr(view, kind.attribute, ())
    return found if isinstance(found, tuple) else ()


def marks_of_function(view_class: type, kind: type[N]) -> tuple[Mark[N], ...]:
    """Return the marks of a function that a framework has turned into a class of the same path, as `@api_view` does."""
    return marks_of(_functions.get(dotted_path(view_class)), kind)


def own(view: object, kind: type[N]) -> N | None:
    """Return what a decorator noted on its own wrapper; None if this is another view."""
    marks = marks_of(view, kind)
    return marks[-1].noted if marks and marks[-1].wrapper is view else None


# --- kinds and paths --------------------------------------------------------------------------------------------------


def is_dispatch(view: Any) -> bool:
    """Return whether this is the `dispatch` of a class-based view."""
    return getattr(view, "__name__", "") == "dispatch"


def is_stand_in(view: Any) -> bool:
    """Return whether this is the empty function that `method_decorator` decorates to see which attributes are added."""
    return getattr(view, "__module__", "") == "django.utils.decorators"


def path_of_view(view: Any, owner: type | None = None) -> str:
    """Return the path that names the unnamed limits of a view. `owner`: its class, None for a function.

    A function has its dotted path. A method has the path of its class, even if it is inherited, and `dispatch` is the
    class itself. A view from `as_view()` has the path of its class with the arguments, since two views of one class may
    differ.
    """
    owner = owner or bound_to_class(view)
    if owner is not None:
        return dotted_path(owner) + ("" if is_dispatch(view) else f".{getattr(view, '__name__', '')}")
    view_class, given = class_of(view), given_to(view)
    if view_class is None:
        return dotted_path(view)
    return dotted_path(view_class) + (format_arguments((), given) if given else "")


def class_of(view: Any) -> type | None:
    """Return the class of a view that `as_view()` made; None for other views."""
    found = getattr(view, "view_class", None) or getattr(view, "cls", None)  # `cls` is Django REST framework's
    return found if isinstance(found, type) else None


def given_to(view: Any) -> dict[str, Any]:
    """Return the arguments of `as_view()`; those of a ViewSet include the methods that answer."""
    given = (getattr(view, name, None) for name in ("actions", "initkwargs", "view_initkwargs"))
    return {name: value for each in given if isinstance(each, Mapping) for name, value in each.items()}


def bound_to_class(view: Any) -> type | None:
    """Return the class that a method is bound to, by itself or by an instance; None if it is not bound."""
    bound_to = _bound_to(view)
    return bound_to if bound_to is None or isinstance(bound_to, type) else type(bound_to)


def _bound_to(view: Any) -> Any:
    """Return the instance or class that a method is bound to, also below decorators.

    `method_decorator` wraps the method in a partial.
    """
    while view is not None:
        found = getattr(view.func if isinstance(view, partial) else view, "__self__", None)
        if found is not None:
            return found
        view = getattr(view, "__wrapped__", None)
    return None


def dispatch_of(cls: type, decorator: str) -> Callable[..., Any]:
    """Return the `dispatch` of a class. Raises `ConfigurationError` if it has none."""
    dispatch = getattr(cls, "dispatch", None)
    if dispatch is None:
        raise ConfigurationError(f"{decorator} on {cls.__qualname__}: a class without dispatch() is not a view.")
    return cast("Callable[..., Any]", dispatch)


def is_async(view: Any) -> bool:
    """Return whether a view must be awaited; `method_decorator` may have bound it to an async class-based view."""
    return is_async_callable(view) or bool(getattr(_bound_to(view), "view_is_async", False))


@lru_cache(maxsize=1024)
def _is_async_class(owner: type) -> bool:
    """Return whether a class of views is async. Django looks at all its methods to find out."""
    return bool(getattr(owner, "view_is_async", False))


# --- wrappers ---------------------------------------------------------------------------------------------------------

ViewCall = Callable[[HttpRequest, "type | None", tuple[Any, ...], dict[str, Any]], Any]
"""Takes the request of a call, the class of the view (None for a function), and all arguments of the call."""


def wrap_view(view: Callable[..., Any], decorator: str, call: ViewCall, acall: ViewCall) -> Callable[..., Any]:
    """Return a wrapper of a view, which calls `call`, or awaits `acall` if the view is async."""
    if is_async(view):

        @wraps(view)
        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            return await acall(*_request_of(args, kwargs, decorator), args, kwargs)

        return async_wrapper

    @wraps(view)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        request, owner = _request_of(args, kwargs, decorator)
        if owner is not None and _is_async_class(owner):
            # The dispatch() of an async class-based view is a sync function that returns a coroutine.
            return acall(request, owner, args, kwargs)
        return call(request, owner, args, kwargs)

    return wrapper


def _request_of(args: tuple[Any, ...], kwargs: dict[str, Any], decorator: str) -> tuple[HttpRequest, type | None]:
    """Return the request of a call, and the class of the view if the first argument is its instance."""
    if args and isinstance(args[0], HttpRequest):
        return args[0], None
    for position, candidate in enumerate((*args[:2], kwargs.get("request"))):
        found = candidate if isinstance(candidate, HttpRequest) else getattr(candidate, "_request", None)
        if isinstance(found, HttpRequest):  # the request of Django REST framework wraps Django's
            return found, type(args[0]) if position else None
    raise ConfigurationError(f"{decorator} is on a function that got no request. Use it on a view.")


def called_view(view: Any, args: tuple[Any, ...]) -> Any:
    """Return what a call of a view calls: the instance if it is the `dispatch` of a class-based view, else itself."""
    if not args or not is_dispatch(view):
        return view
    return _bound_to(view) if isinstance(args[0], HttpRequest) else args[0]
