"""Which subjects a rule counts: by its key, and by the subjects that it is known to have counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from django.utils.translation import gettext as _

from django_quota.conf import current
from django_quota.core.errors import StoreUnavailable
from django_quota.core.rules import dotted_path
from django_quota.features.events import EVENTS_A_PAGE, newest_events
from django_quota.features.usage.days import subjects_of_rules
from django_quota.limiting.known_rules import known_keys
from django_quota.limiting.overrides import overrides
from django_quota.limiting.registry import get_limiter
from django_quota.subjects.keys import is_function, is_given_by

READ = EVENTS_A_PAGE
"""How many events, and how many rows of usage, are read."""

EXAMPLES = 2
"""How many subjects show what a rule counts by."""


@dataclass(frozen=True)
class WhoCounts:
    """The keys of the known rules, and subjects that they have counted."""

    keys: Mapping[str, list[object]]
    known: Sequence[tuple[str, str]] = ()
    """Pairs of a rule and a subject that it has counted."""

    @cached_property
    def subjects(self) -> Mapping[str, list[str]]:
        """The subjects that the rules have counted: those of `known`, and those of the last events.

        For a rule without any, the rows of its usage say it, and then its overrides. What does not answer is left out.
        They are read when first needed: a preview, which is made while somebody types, needs them for functions alone.
        """
        pairs = list(self.known)
        with suppress(StoreUnavailable):
            pairs += [
                (each.rule, each.subject)
                for each in newest_events(get_limiter().store, current().prefix, READ)
                if each.rule and each.subject
            ]
        found = _by_rule(pairs)
        open_rules = {rule for rule, parts in self.keys.items() if rule not in found and any(map(is_function, parts))}
        found |= _by_rule(subjects_of_rules(open_rules, READ))
        overrides.refresh()
        rows = [(each.rule, each.subject) for each in list(overrides.table.by_pk.values()) if each.rule in self.keys]
        return _by_rule(pair for pair in rows if not pair[1].endswith("*")) | found

    def can_count(self, rule: str, subject: str, *, is_group: bool = False) -> bool:
        """Return whether a rule can count a subject, or one of a kind such as `user:*`.

        False for the kinds that its key cannot make. A function may return any kind: what it is known to have
        returned decides. `is_group`: see `is_given_by`.
        """
        parts = self.keys.get(rule, [])
        known = self.subjects.get(rule, ()) if any(map(is_function, parts)) else ()
        return is_given_by(parts, subject, known, is_group=is_group)

    def key_of(self, rule: str) -> str:
        """Return the key of a rule as one string: `ip+post:username`, or the path of a function."""
        return "+".join(key if isinstance(key, str) else dotted_path(key) for key in self.keys.get(rule, []))

    def look_of(self, rule: str) -> str:
        """Return the sentence that shows subjects of a rule; empty if none is known."""
        known = sorted(self.subjects.get(rule, []), key=lambda each: each.startswith("ip:"))[:EXAMPLES]
        return _("Subjects look like %s.") % ", ".join(known) if known else ""

    def in_words(self, rule: str) -> str:
        """Return what a rule counts by, such as "units counts by shop.plans.organization. Subjects look like org:7"."""
        words = {"rule": rule, "key": self.key_of(rule)}
        return " ".join(filter(None, (_("%(rule)s counts by %(key)s.") % words, self.look_of(rule))))


def who_counts(more: Iterable[tuple[str, str]] = ()) -> WhoCounts:
    """Return which subjects the rules have counted. `more`: pairs of a rule and a subject, beside what is read."""
    return WhoCounts(known_keys(), tuple(more))


def _by_rule(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, dict[str, None]] = {}
    for rule, subject in pairs:
        found.setdefault(rule, {})[subject] = None
    return {rule: list(subjects) for rule, subjects in found.items()}
