"""What is known of a subject, on any store, as `quota_status --json` and the preview of an override show it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from django_quota.management.commands.quota_status import as_json
from django_quota.services.inspection import RuleChange, load_snapshot, preview_override
from django_quota.services.known_rules import known_slots
from django_quota.services.overrides import Override


def status_of(subject: str, rules: Collection[str] | None = None) -> dict[str, Any]:
    return as_json(load_snapshot(subject, rules))


def is_overridden(subject: str, rule: str) -> bool:
    """Say whether an override of a rule is in force now."""
    return load_snapshot(subject).is_overridden(rule)


def bans_of(subject: str) -> list[tuple[str, float, int]]:
    """Return the rule of each ban, for how long it lasts, and which in a row it is."""
    return [(each.rule, each.ends_in, each.level) for each in load_snapshot(subject).bans]


def slots_of_views() -> list[str]:
    """Return the names under which the status of a subject looks for slots of views."""
    return known_slots()


def previews(
    subject: str, rule: str, mode: Literal["rate", "exempt", "blocked"], rates: str = "", ends: int = 0
) -> dict[str, RuleChange]:
    """Return what an override would change, by rule; nothing if no rule has this name."""
    preview = preview_override(subject, rule, Override(mode, ends=ends, rates=rates))
    return {} if preview.is_unknown else {change.rule: change for change in preview.changes}
