"""Registers how the rules and slots on views are found, and the slots of the settings.

The code that looks at views is imported when a finder is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django_quota.conf import current
from django_quota.core.rules import Rule
from django_quota.limiting.known_rules import register_rule_finder, slot_finders


@register_rule_finder
def _rules_of_views(patterns: Iterable[Any]) -> Iterator[Rule]:
    from django_quota.http.view_lookup import rules_of_decorators  # noqa: PLC0415 — the app starts without it

    return rules_of_decorators(patterns)


def _slots_of_views(patterns: Iterable[Any]) -> Iterator[str]:
    from django_quota.http.view_lookup import slots_of_views  # noqa: PLC0415 — the app starts without it

    return (name for name, _ in slots_of_views(patterns))


slot_finders += [_slots_of_views, lambda _: current().slots()]
