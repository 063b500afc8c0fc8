"""The limited views that a project's URLs lead to, and the rules that stand on them. It must not know what for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django_quota.concurrency import slot_of
from django_quota.decorators import Limited, marked, under_a_bare_one
from django_quota.exceptions import RuleError
from django_quota.leases import Slot
from django_quota.rules import Rule, path_of


def limited_views(patterns: Iterable[Any]) -> Iterator[tuple[str, type | None, Limited]]:
    """Find what `@quota` stands on: functions, classes, and methods of classes, each with its path and class."""
    for view, view_class in _views(patterns):
        mark = marked(view)
        if mark is not None:
            yield path_of(view), view_class, mark


def views_under_a_bare_quota(patterns: Iterable[Any]) -> Iterator[str]:
    """Return the paths of views that a `@quota` without a call stands on."""
    for view, _ in _views(patterns):
        bare = under_a_bare_one(view)
        if bare is not None:
            yield path_of(bare)


def _views(patterns: Iterable[Any]) -> Iterator[tuple[Any, type | None]]:
    """Find all views, and those methods of class-based ones that answer requests, each with its class."""
    for pattern in patterns:
        if hasattr(pattern, "url_patterns"):
            yield from _views(pattern.url_patterns)
            continue
        view_class = getattr(pattern.callback, "view_class", None)
        methods = [getattr(view_class, name, None) for name in getattr(view_class, "http_method_names", ())]
        for view in (pattern.callback, *methods):
            yield view, view_class


def rules_of_views(patterns: Iterable[Any]) -> Iterator[Rule]:
    """Return the rules of all limited views, as far as they can be read."""
    for _, view_class, view in limited_views(patterns):
        for source in view.sources:
            try:
                yield source(view_class)
            except RuleError:  # said by the system checks
                continue


def slots_of_views(patterns: Iterable[Any]) -> Iterator[Slot]:
    """Return the slots that `@concurrency` takes before views."""
    for view, view_class in _views(patterns):
        slot = slot_of(view, view_class)
        if slot is not None:
            yield slot
