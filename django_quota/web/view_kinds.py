"""The kind of a view: a function or a method, sync or async; and the path that names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial, wraps
from typing import Any, TypeVar, cast

from django.http import HttpRequest

from django_quota.conf import is_async_callable
from django_quota.core.errors import ConfigurationError
from django_quota.core.rules import dotted_path, format_arguments

V = TypeVar("V", bound=Callable[..., Any])
"""A view function, a method of a view, or a class of views."""


def is_dispatch(view: Any) -> bool:
    """Return whether this is the `dispatch` of a class-based view."""
    return getattr(view, "__name__", "") == "dispatch"


def is_a_trial(view: Any) -> bool:
    """Return whether this is the empty function on which `method_decorator` tries a decorator."""
    return getattr(view, "__module__", "") == "django.utils.decorators"


def naming(view: Any, suffix: str = "") -> Callable[[type | None], str]:
    """Return a function that names the unnamed limits of a view, by its class (None for a function).

    A function is named by its dotted path, a method by the path of its class, even if it is inherited.
    """
    method = "" if is_dispatch(view) else f".{getattr(view, '__name__', '')}"
    return partial(_name, _dotted_path(view) + suffix, method + suffix)


def _name(path: str, method: str, owner: type | None) -> str:
    return path if owner is None else dotted_path(owner) + method


def class_of(view: Any) -> type | None:
    """Return the class of a view that `as_view()` made; None for other views."""
    found = getattr(view, "view_class", None) or getattr(view, "cls", None)  # `cls` is Django REST framework's
    return found if isinstance(found, type) else None


def given_to(view: Any) -> dict[str, Any]:
    """Return the arguments of `as_view()`; those of a ViewSet include the methods that answer."""
    given = (getattr(view, name, None) for name in ("actions", "initkwargs", "view_initkwargs"))
    return {name: value for each in given if isinstance(each, Mapping) for name, value in each.items()}


def _dotted_path(view: Any) -> str:
    """Return the dotted path of a view; a bound method has the path of the class that it is bound to.

    A view from `as_view()` has the path of its class and the arguments, since two views of one class may differ.
    """
    bound_to = bound_to_class(view)
    if bound_to is not None:
        path = dotted_path(bound_to)
        return path if is_dispatch(view) else f"{path}.{getattr(view, '__name__', '')}"
    view_class, given = class_of(view), given_to(view)
    if view_class is None:
        return dotted_path(view)
    return dotted_path(view_class) + (format_arguments((), given) if given else "")


def bound_to_class(view: Any) -> type | None:
    """Return the class that a method is bound to, by itself or by an instance; None if it is not bound."""
    bound_to = _bound_to(view)
    return bound_to if bound_to is None or isinstance(bound_to, type) else type(bound_to)


def _bound_to(view: Any) -> Any:
    """Return the instance or class that a method is bound to; `method_decorator` wraps the method in a partial."""
    return getattr(view.func if isinstance(view, partial) else view, "__self__", None)


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


Call = Callable[[HttpRequest, "type | None", tuple[Any, ...], dict[str, Any]], Any]
"""Takes the request of a call, the class of the view (None for a function), and all arguments of the call."""


def wrap_view(view: Callable[..., Any], decorator: str, call: Call, acall: Call) -> Callable[..., Any]:
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
            return found, type(args[0]) if position and args else None
    raise ConfigurationError(f"{decorator} is on a function that got no request. Use it on a view.")


def called_view(view: Any, args: tuple[Any, ...]) -> Any:
    """Return what a call of a view calls: the instance if it is the `dispatch` of a class-based view, else itself."""
    if not args or not is_dispatch(view):
        return view
    return _bound_to(view) if isinstance(args[0], HttpRequest) else args[0]
