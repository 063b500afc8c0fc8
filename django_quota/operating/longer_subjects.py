"""Subjects of several parts, found from each part: the lock-out of a user name at an address, from either."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from django_quota.core.decisions import Outcome
from django_quota.core.rules import Rule
from django_quota.engine.asks import Ask
from django_quota.features.bans.lists import bans_in_force
from django_quota.limiting.known_rules import known_keys, known_rules
from django_quota.limiting.registry import get_limiter
from django_quota.operating.activity import subjects_seen
from django_quota.subjects.keys import is_given_by
from django_quota.subjects.subject import parts_of

MAX_LONGER = 20
"""Subjects that are looked at."""


class LongerSubject(NamedTuple):
    """A subject that another one is a part of."""

    subject: str
    refusal: Outcome | None
    """What refuses its next hit for longest; None if no rule of the settings and the views does."""


def longer_subjects(subject: str, other_names: Collection[str] = ()) -> Sequence[LongerSubject]:
    """Return the subjects that count a subject together with others, those refused now first.

    It finds subjects that were refused today, yesterday or in the last events, or are banned. Nothing is taken.
    `other_names`: subjects that mean the same person, such as the failed logins of a user's name; they are looked at
    themselves, too.

    Raises `StoreUnavailable` if the store does not answer.
    """
    wanted = {subject, *other_names}
    banned = [ban.subject for ban in bans_in_force()[1] or () if ban.subject]
    seen = [each for each in [*banned, *subjects_seen(days=2)] if wanted.intersection(parts_of(each))]
    found = [each for each in dict.fromkeys([*other_names, *seen]) if each != subject][:MAX_LONGER]
    longer = [LongerSubject(each, _refusal_of(each)) for each in found]
    known = [each for each in longer if each.refusal is not None or each.subject in seen]
    return sorted(known, key=lambda each: each.refusal is None)


def _refusal_of(subject: str) -> Outcome | None:
    rules, keys = known_rules(), known_keys()
    asked = [
        Ask(rule, subject, 1)
        for name, parts in keys.items()
        if is_given_by(parts, subject) and isinstance(rule := rules[name], Rule) and rule.limits
    ]
    decision = get_limiter().decide(asked, "peek")
    return decision.binding if decision.enforced else None
