"""What was counted in the store, what this process has not counted there yet, and what is known of a subject."""

from collections.abc import Collection, Iterable
from datetime import date
from typing import Any

from django_quota.core.keys import grants_key
from django_quota.core.overrides import Override, OverrideMode
from django_quota.features.usage.days import recent_usage
from django_quota.limiting.flusher import flusher
from django_quota.limiting.overrides import overrides
from django_quota.management.commands.quota_status import snapshot_as_json
from django_quota.operating.activity import RuleActivity, activity
from django_quota.operating.inspection import LimitStatus, RuleChange, load_snapshot, preview_override


def count_what_waits() -> bool:
    """Run one round of the background thread; return whether all of its work succeeded."""
    return flusher.flush()


def checks_of_today() -> dict[str | None, tuple[int, int, int]]:
    """Return how many checks each rule has allowed, refused, and would have refused, as the overview shows them."""
    return {rule.rule: (rule.allowed, rule.refused, rule.shadowed) for rule in activity().rules}


def checks_by_minute(rule: str) -> list[tuple[int, int]]:
    return [(minute.allowed, minute.refused) for minute in _activity_of(rule).minutes]


def checks_a_minute(rule: str) -> float:
    return _activity_of(rule).rate


def _activity_of(rule: str) -> RuleActivity:
    return next(each for each in activity().rules if each.rule == rule)


def refused_today() -> list[tuple[str | None, int]]:
    """Return who was refused how often; who was refused most comes first."""
    return [(each.subject, each.count) for each in activity().refused]


def days_of(subject: Any) -> dict[date, dict[str, tuple[int, int]]]:
    """Return how many checks of a subject each rule has allowed and refused, by day."""
    return {
        day: {rule: (count.allowed, count.refused) for rule, count in rules.items()}
        for day, rules in recent_usage(subject).items()
    }


def units_of(subject: Any) -> dict[str, int]:
    (rules,) = recent_usage(subject).values()
    return {rule: count.units for rule, count in rules.items()}


def checks_of(subject: Any) -> dict[str, tuple[int, int]]:
    (rules,) = days_of(subject).values()
    return rules


def status_of(subject: str, rules: Collection[str] | None = None) -> dict[str, Any]:
    return snapshot_as_json(load_snapshot(subject, rules))


def bans_of(subject: str) -> list[tuple[str, float, int]]:
    """Return the rule of each ban, for how long it lasts, and which in a row it is."""
    return [(each.rule, each.ends_in, each.level) for each in load_snapshot(subject).bans]


def previews(
    subject: str, rule: str, mode: OverrideMode, rates: str = "", *, begins: int = 0, ends: int = 0
) -> dict[str, RuleChange]:
    """Return what an override would change, by rule; nothing if no rule has this name.

    It takes the place of the one of this subject and rule.
    """
    known = [each for each in overrides.table.of_subject(subject) if (each.subject, each.rule) == (subject, rule)]
    pk = known[0].pk if known else 0
    preview = preview_override(subject, Override(pk, subject, rule, mode, rates, begins=begins, ends=ends))
    return {} if preview.is_unknown else {change.rule: change for change in preview.changes}


def limits_in(part: Iterable[LimitStatus]) -> list[tuple[str, int, int, float | None, str]]:
    """Return what a part of a preview says of each limit: the rate, what is used and left, the wait, and why."""
    return [(limit.rate, limit.used, limit.remaining, limit.retry_after, limit.why) for limit in part]


def keys_of(total_key: str) -> tuple[str, str]:
    """Return the keys of a counter's total, and of the units of it that expire."""
    return total_key, grants_key(total_key)
