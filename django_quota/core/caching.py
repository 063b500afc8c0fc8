"""A cache of results that also takes arguments which cannot be hashed, such as a rule with a list among its options."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar, cast

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
