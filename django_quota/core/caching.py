"""Caches for the results of functions, for attributes, and for what belongs to another object."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


def cached(maxsize: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Cache the results of a function as `lru_cache` does. A call with an unhashable argument is not cached."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        remembered = cast("Callable[P, R]", lru_cache(maxsize)(function))

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return remembered(*args, **kwargs)
            except TypeError:
                return function(*args, **kwargs)

        return call

    return decorate


def kept_on(owner: Any, name: str, make: Callable[[], R]) -> R:
    """Return the attribute of an object of somebody else, such as a request; made when it is first needed."""
    found: R | None = getattr(owner, name, None)
    if found is None:
        found = make()
        setattr(owner, name, found)
    return found


class lazy_attribute(Generic[R]):  # noqa: N801 — a decorator, as `property`
    """An attribute that is computed when it is first read.

    `functools.cached_property` takes a lock before Python 3.12, which costs more than most of our attributes.
    """

    def __init__(self, compute: Callable[[Any], R]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> R:
        """Compute the value and store it in `__dict__`, where Python finds it first from then on."""
        if instance is None:
            raise AttributeError(f"{owner.__name__}.{self._name} is an attribute of instances.")
        found = instance.__dict__[self._name] = self._compute(instance)
        return found
