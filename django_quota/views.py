"""The limited views that a project's URLs lead to, and the rules that stand on them. It must not know what for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django_quota.decorators import Limited, marked
from django_quota.exceptions import RuleError
from django_quota.rules import Rule, path_of


def limited_views(patterns: Iterable[Any]) -> Iterator[tuple[str, type | None, Limited]]:
    """Find what `@quota` stands on: functions, classes, and methods of classes, each with its path and class."""
    for pattern in patterns:
        if hasattr(pattern, "url_patterns"):
            yield from limited_views(pattern.url_patterns)
            continue
        view_class = getattr(pattern.callback, "view_class", None)
        methods = [getattr(view_class, name, None) for name in getattr(view_class, "http_method_names", ())]
        for view in (pattern.callback, *methods):
            mark = marked(view)
            if mark is not None:
                yield path_of(view), view_class, mark


def rules_of_views(patterns: Iterable[Any]) -> Iterator[Rule]:
    """Return the rules of all limited views, as far as they can be read."""
    for _, view_class, view in limited_views(patterns):
        for source in view.sources:
            try:
                yield source(view_class)
            except RuleError:  # said by the system checks
                continue
