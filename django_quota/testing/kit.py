"""What a test says about limits: the time it is, that a limit is used up, how much is used."""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Unpack
from unittest.mock import patch

from django.conf import settings
from django.test import override_settings

from django_quota.conf import current
from django_quota.core.clock import freeze_for_all, frozen_now, moment_of
from django_quota.core.decisions import Decision
from django_quota.core.errors import RuleError
from django_quota.core.rules import CallOptions, Rule
from django_quota.services.addresses import is_address
from django_quota.services.api import RuleOrRate, Subject, check, peek, reset
from django_quota.services.flusher import flusher
from django_quota.services.known_rules import known_rules
from django_quota.services.registry import clear_memory
from django_quota.services.subjects import named_subject


def _find_rule(rule: RuleOrRate, subject: Subject) -> RuleOrRate:
    """Return the rule of the view that a text names; else what was given.

    Raises `RuleError` for a subject that is an address without `ip:`. Code may count such a subject, but no request has
    it, so a test of a view would wait for a refusal in vain.
    """
    if isinstance(subject, str) and is_address(subject):
        raise RuleError(f"No request has the subject {subject!r}. Use {named_subject(f'ip:{subject}')!r}.")
    if not isinstance(rule, str) or rule in current().rules or rule[:1].isdigit():  # no rate begins with a letter
        return rule
    found = known_rules().get(rule)
    return found if isinstance(found, Rule) else rule


class QuotaKit:
    """What a test says about limits. The fixture `quota` and `QuotaTestMixin` make one for each test.

    Each count starts at zero and lies in the memory of this process. The clock stands still, for all threads and tasks,
    until the test moves it. So a limit of 10 a minute refuses the eleventh request of a test, however slow it is.

    A rule is the name of a rule in the settings or of a view (`shop.views.search`), a rate with its options, or a
    `Rule`; a subject is a text, a user or a request, as for `check`. They raise `RuleError` if one is wrong.
    """

    @property
    def now(self) -> datetime:
        """The time that limits see, in UTC; set it to any datetime that has a time zone."""
        return moment_of(frozen_now() or 0)

    @now.setter
    def now(self, moment: datetime) -> None:
        freeze_for_all(moment)

    def advance(self, by: float | timedelta) -> None:
        """Move the clock on by seconds or a timedelta, for example until a window has passed."""
        self.now += by if isinstance(by, timedelta) else timedelta(seconds=by)

    def exhaust(self, rule: RuleOrRate, subject: Subject, **options: Unpack[CallOptions]) -> Decision:
        """Use a limit up, so that the next hit is refused; return how it stands then.

        Raises `AssertionError` if nothing limits the subject, as with an override that makes it exempt.
        """
        rule = _find_rule(rule, subject)
        while (decision := peek(rule, subject, **options)).allowed:
            if not decision.remaining:
                raise AssertionError(f"{decision.explain()} So it cannot be used up.")
            check(rule, subject, decision.remaining, **options)
        return decision

    def used(self, rule: RuleOrRate, subject: Subject, **options: Unpack[CallOptions]) -> int:
        """Return how much of a limit is used; of several limits, that of the one with the fewest hits left."""
        decision = peek(_find_rule(rule, subject), subject, **options)
        return (decision.limit or 0) - (decision.remaining or 0)

    def left(self, rule: RuleOrRate, subject: Subject, **options: Unpack[CallOptions]) -> int | None:
        """Return how much of a limit is left; None if nothing limits the subject."""
        return peek(_find_rule(rule, subject), subject, **options).remaining

    def reset(self, rule: RuleOrRate, subject: Subject, **options: Unpack[CallOptions]) -> None:
        """Forget what a rule has counted for a subject."""
        reset(_find_rule(rule, subject), subject, **options)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Allow everything in the block. Counts stay as they are."""
        with patch.object(current(), "enabled", False):  # a change of the setting would empty the memory
            yield


@contextmanager
def quota_kit() -> Iterator[QuotaKit]:
    """Give a block its own counts, in memory, and a clock that stands still."""
    with isolated():
        freeze_for_all(datetime.now(UTC))
        try:
            yield QuotaKit()
        finally:
            freeze_for_all(None)


@contextmanager
def isolated(*, memory: bool = True, enabled: bool | None = None) -> Iterator[None]:
    """Keep the counts of a block out of what comes after it.

    `memory`: count in the memory of this process, whatever the settings say; if False, Redis keeps what it counts.
    `enabled`: the setting `ENABLED` in the block; None for that of the settings.
    """
    changed: dict[str, Any] = {"STORE": "memory"} if memory else {}
    if enabled is not None:
        changed["ENABLED"] = enabled
    # The thread of the flusher would ask Redis and the database between tests.
    with patch.object(flusher, "wake", lambda: None), override_settings(QUOTA={**_given(), **changed}):
        clear_memory()
        try:
            yield
        finally:
            clear_memory()


def _given() -> dict[str, Any]:
    return dict(getattr(settings, "QUOTA", None) or {})


class QuotaTestMixin(unittest.TestCase):
    """For a `TestCase` without pytest: `self.quota` is a `QuotaKit`, and no count stays for the next test."""

    quota: QuotaKit

    def setUp(self) -> None:
        """Start the test with no counts and a clock that stands still."""
        super().setUp()
        self.quota = self.enterContext(quota_kit())
