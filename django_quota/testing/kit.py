"""What a test does with limits: it sets the time, uses a limit up, reads how much is used."""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Unpack
from unittest.mock import patch

from django_quota.conf import current, force_enabled
from django_quota.core.clock import MovableClock, frozen_now, machine_now, moment_of, use_clock
from django_quota.core.decisions import Decision
from django_quota.core.errors import RuleError, did_you_mean
from django_quota.core.rates import Duration, parse_duration
from django_quota.core.rules import CallOptions, Rule
from django_quota.features.counters.calls import MAX_TTL
from django_quota.features.resets import reset
from django_quota.limiting.api import AnySubject, RuleOrRate, check, peek
from django_quota.limiting.flusher import flusher
from django_quota.limiting.known_rules import known_rules
from django_quota.limiting.registry import force_store
from django_quota.stores.memory import MemoryStore
from django_quota.subjects.addresses import is_address
from django_quota.subjects.subject import named_subject


def _find_rule(rule: RuleOrRate, subject: AnySubject) -> RuleOrRate:
    """Return the rule of the view that a string names; else what was given.

    Raises `RuleError` for a name that no rule has, and for a subject that is an address without `ip:`. Code may count
    such a subject, but no request has it, so a test would never see its view refuse.
    """
    if isinstance(subject, str) and is_address(subject):
        raise RuleError(f"No request has the subject {subject!r}. Use {named_subject(f'ip:{subject}')!r}.")
    is_rate = isinstance(rule, str) and rule.strip()[:1].isdigit()
    if not isinstance(rule, str) or is_rate or rule in current().rules:
        return rule
    known = known_rules()
    found = known.get(rule)
    if found is None:
        hint = did_you_mean(rule, known).strip()
        raise RuleError(f"No rule of the settings or of a view has the name {rule!r}.", hint)
    return found if isinstance(found, Rule) else rule


class QuotaKit:
    """What a test does with limits. The fixture `quota` and `QuotaTestMixin` make one for each test.

    Each count starts at zero, in the memory of this process. The clock stands still, for all threads and tasks, until
    the test moves it. So a limit of 10 a minute refuses the eleventh request of a test, however slow it is.

    A rule is the name of a rule in the settings or of a view (`shop.views.search`), a rate with its options, or a
    `Rule`; a subject is a string, a user or a request, as for `check`. The methods raise `RuleError` if one is wrong.
    """

    def __init__(self, clock: MovableClock | None = None) -> None:
        self._clock = clock or MovableClock()

    @property
    def now(self) -> datetime:
        """The time that limits see, in UTC; set it to any datetime that has a time zone."""
        now = frozen_now()
        return moment_of(machine_now() if now is None else now)

    @now.setter
    def now(self, moment: datetime) -> None:
        self._clock.set(moment)
        use_clock(self._clock)

    def advance(self, by: Duration) -> None:
        """Move the clock on, for example until a window has passed."""
        self.now += timedelta(microseconds=parse_duration("by", by, least=0, most=MAX_TTL))

    def exhaust(self, rule: RuleOrRate, subject: AnySubject, **options: Unpack[CallOptions]) -> Decision:
        """Use a limit up, so that the next hit is refused; return the refusal.

        Raises `AssertionError` if nothing limits the subject, as with an override that makes it exempt.
        """
        rule = _find_rule(rule, subject)
        while (decision := peek(rule, subject, **options)).allowed:
            if not decision.remaining:
                raise AssertionError(f"{decision.explain()} So it cannot be used up.")
            check(rule, subject, decision.remaining, **options)
        return decision

    def used(self, rule: RuleOrRate, subject: AnySubject, **options: Unpack[CallOptions]) -> int:
        """Return how much of a limit is used; of several limits, of the one with the fewest hits left."""
        binding = peek(_find_rule(rule, subject), subject, **options).binding
        return binding.used if binding else 0

    def left(self, rule: RuleOrRate, subject: AnySubject, **options: Unpack[CallOptions]) -> int | None:
        """Return how much of a limit is left; None if nothing limits the subject."""
        return peek(_find_rule(rule, subject), subject, **options).remaining

    def reset(self, rule: RuleOrRate, subject: AnySubject, **options: Unpack[CallOptions]) -> None:
        """Forget what a rule has counted for a subject."""
        reset(_find_rule(rule, subject), subject, **options)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Allow everything in the block. Counts stay as they are."""
        before = force_enabled(enabled=False)
        try:
            yield
        finally:
            force_enabled(before)


@contextmanager
def quota_kit() -> Iterator[QuotaKit]:
    """Give a block its own counts, in memory, and a clock that stands still."""
    clock = MovableClock(machine_now())
    with isolated(clock=clock):
        yield QuotaKit(clock)


@contextmanager
def isolated(*, memory: bool = True, enabled: bool | None = None, clock: MovableClock | None = None) -> Iterator[None]:
    """Keep the counts of a block out of what comes after it, however the settings change in it.

    `memory`: count in the memory of this process, whatever the settings say; if False, count where the settings say,
    and the store keeps its counts. `enabled`: the setting `ENABLED` in the block; None keeps the setting of the site.
    `clock`: None takes the store's clock, until freezegun or time-machine move it.
    """
    with ExitStack() as after:
        # The thread of the flusher would ask the store and the database between tests.
        after.enter_context(patch.object(flusher, "wake", lambda: None))
        after.callback(force_store, force_store(MemoryStore() if memory else None))
        after.callback(use_clock, use_clock(clock or MovableClock()))
        if enabled is not None:
            after.callback(force_enabled, force_enabled(enabled))
        yield


class QuotaTestMixin(unittest.TestCase):
    """For a `TestCase` without pytest: `self.quota` is a `QuotaKit`, and no count stays for the next test."""

    quota: QuotaKit

    def setUp(self) -> None:
        """Start the test with no counts and a clock that stands still."""
        super().setUp()
        self.quota = self.enterContext(quota_kit())
