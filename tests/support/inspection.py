"""What is known of a subject, on any store, as `quota_status --json` and the preview of an override show it."""

from collections.abc import Collection
from typing import Any

from django_quota.core.overrides import Mode, Override
from django_quota.limiting.known_rules import known_slots
from django_quota.limiting.overrides import overrides
from django_quota.management.commands.quota_status import as_json
from django_quota.operating.inspection import RuleChange, load_snapshot, preview_override


def status_of(subject: str, rules: Collection[str] | None = None) -> dict[str, Any]:
    return as_json(load_snapshot(subject, rules))


def bans_of(subject: str) -> list[tuple[str, float, int]]:
    """Return the rule of each ban, for how long it lasts, and which in a row it is."""
    return [(each.rule, each.ends_in, each.level) for each in load_snapshot(subject).bans]


def slots_of_views() -> list[str]:
    return known_slots()


def previews(subject: str, rule: str, mode: Mode, rates: str = "", ends: int = 0) -> dict[str, RuleChange]:
    """Return what an override would change, by rule; nothing if no rule has this name.

    It takes the place of the one of this subject and rule.
    """
    known = [each for each in overrides.table.of_subject(subject) if (each.subject, each.rule) == (subject, rule)]
    pk = known[0].pk if known else 0
    preview = preview_override(subject, Override(pk, subject, rule, mode, rates, ends=ends))
    return {} if preview.is_unknown else {change.rule: change for change in preview.changes}
