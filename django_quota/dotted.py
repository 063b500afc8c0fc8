"""Dotted paths in the settings: `"shop.limits.tier"` stands for the function there. It must not know what for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from django.utils.module_loading import import_string

from django_quota.exceptions import RuleError

_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")

_OF_FUNCTIONS = ("cost", "skip", "tier")
"""The options of a rule that may be functions, and never texts."""


def is_path(value: object) -> bool:
    """Say whether a value is written like a dotted path."""
    return isinstance(value, str) and _PATH.fullmatch(value) is not None


def function_at(option: str, path: str, error: type[RuleError] = RuleError) -> Callable[..., Any]:
    """Return the function at a dotted path. Raises `error`, naming the option, where there is none."""
    try:
        function = import_string(path)
    except (ImportError, ValueError, TypeError) as problem:
        raise error(
            f"{option}={path!r} cannot be imported: {problem}.", "The path of a function would do."
        ) from problem
    if not callable(function):
        raise error(f"{option}={path!r} is {type(function).__name__}.", "A function of the request would do.")
    return function  # type: ignore[no-any-return]


def imported(option: str, value: object) -> object:
    """Return the value of a rule's option with functions in the place of dotted paths. Raises `RuleError`."""
    if option in _OF_FUNCTIONS and isinstance(value, str):
        return function_at(option, value)
    if option in ("rate", "exempt"):
        if isinstance(value, (list, tuple)) or (option == "exempt" and isinstance(value, (set, frozenset))):
            return [imported(option, each) for each in value]
        if is_path(value):
            return function_at(option, str(value))
    return value
