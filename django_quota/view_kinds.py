"""What kind of view a decorator stands on: a function or a method, sync or async, and what it is called.

It knows Django's views and `method_decorator`, and nothing of limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from django.http import HttpRequest

from django_quota.exceptions import ConfigurationError
from django_quota.rules import arguments_of, path_of
from django_quota.subjects import is_async_callable


def is_dispatch(view: Any) -> bool:
    """Say whether this is the method by which a class-based view is entered."""
    return getattr(view, "__name__", "") == "dispatch"


def is_a_trial(view: Any) -> bool:
    """Say whether this is the empty function on which `method_decorator` tries a decorator out."""
    return getattr(view, "__module__", "") == "django.utils.decorators"


def naming(view: Any, suffix: str = "") -> Callable[[type | None], str]:
    """Return a function that says what unnamed limits of a view are called, for its class (None: it has none).

    A function's name is its dotted path; a method's is its class's, also where the method is inherited.
    """
    method = "" if is_dispatch(view) else f".{getattr(view, '__name__', '')}"
    return partial(_name, _dotted_path(view) + suffix, method + suffix)


def _name(path: str, method: str, owner: type | None) -> str:
    return path if owner is None else path_of(owner) + method


def class_of(view: Any) -> type | None:
    """Return the class of what its `as_view()` returned; None for other views."""
    found = getattr(view, "view_class", None) or getattr(view, "cls", None)  # the second of Django REST framework
    return found if isinstance(found, type) else None


def given_to(view: Any) -> dict[str, Any]:
    """Return what `as_view()` was given; that of a ViewSet also takes the methods that answer."""
    given = (getattr(view, name, None) for name in ("actions", "initkwargs", "view_initkwargs"))
    return {name: value for each in given if isinstance(each, Mapping) for name, value in each.items()}


def _dotted_path(view: Any) -> str:
    """Return the dotted path of a view; for a bound method, the class of the view that it is bound to counts.

    What `as_view()` returned is called by its class and by what it was given: two of one class are two views.
    """
    bound_to = bound_to_class(view)
    if bound_to is not None:
        path = path_of(bound_to)
        return path if is_dispatch(view) else f"{path}.{getattr(view, '__name__', '')}"
    view_class, given = class_of(view), given_to(view)
    if view_class is None:
        return path_of(view)
    return path_of(view_class) + (arguments_of((), given) if given else "")


def bound_to_class(view: Any) -> type | None:
    """Return the class of the view instance (or the class) that a method is bound to; None where it is not bound."""
    bound_to = _bound_to(view)
    return bound_to if bound_to is None or isinstance(bound_to, type) else type(bound_to)


def _bound_to(view: Any) -> Any:
    """Return the view instance (or class) that a method is bound to; `method_decorator` hands over a partial of one."""
    return getattr(view.func if isinstance(view, partial) else view, "__self__", None)


def dispatch_of(cls: type, decorator: str) -> Callable[..., Any]:
    """Return the method by which a class of views is entered. Raises `ConfigurationError` where it is none."""
    dispatch = getattr(cls, "dispatch", None)
    if dispatch is None:
        raise ConfigurationError(f"{decorator} on {cls.__qualname__}: a class without dispatch() is not a view.")
    return cast("Callable[..., Any]", dispatch)


def is_async(view: Any) -> bool:
    """Say whether a view must be awaited; also one that `method_decorator` has bound to an async class-based view."""
    return is_async_callable(view) or bool(getattr(_bound_to(view), "view_is_async", False))


def request_of(args: tuple[Any, ...], kwargs: dict[str, Any], decorator: str) -> tuple[HttpRequest, type | None]:
    """Return the request of a call, and the class of the view where the first argument is a view instance."""
    if args and isinstance(args[0], HttpRequest):
        return args[0], None
    for position, candidate in enumerate((*args[:2], kwargs.get("request"))):
        found = candidate if isinstance(candidate, HttpRequest) else getattr(candidate, "_request", None)
        if isinstance(found, HttpRequest):  # Django REST framework's request holds Django's as _request
            return found, type(args[0]) if position and args else None
    raise ConfigurationError(f"{decorator} stands on a function that got no request: it limits views.")
