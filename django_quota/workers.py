"""How many processes share the limits, learned while Redis answers: so that each can take its part when it does not.

Every process that asks Redis says every ten seconds, and sooner at first, that it is alive, along with a call that is
made anyway. It must not know when Redis is gone; the limiter does.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from django_quota.clock import SECOND, frozen_now
from django_quota.conf import current
from django_quota.exceptions import RuleError
from django_quota.keys import system_key
from django_quota.operations.workers import Alive
from django_quota.rates import Rate
from django_quota.rules import Rule

EVERY = 10.0
"""Seconds between two signs of life."""

FIRST = 1.0
"""Seconds between the first two, and then twice as many each time: workers that begin together soon know each other."""

COUNTED = 30 * SECOND
"""Microseconds that a process is counted after its last one."""


class Workers:
    """How many there are: an errand of a store. Before it has learned anything, one."""

    is_on = True
    """Whether it says anything; for tests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.number = 1
        """Processes that share the limits, this one included, as far as was learned last; by a parent, at first."""
        self._begin()

    def _begin(self) -> None:
        self._token = secrets.token_hex(8)
        self._again = 0.0
        self._pause = FIRST
        self._knows_script = True
        self._pid = os.getpid()

    def question(self) -> Sequence[str | int] | None:
        """Return the command that says that this process is alive; None where it has just done so."""
        if self._pid != os.getpid():  # a forked worker is one more
            self._begin()
        now = self._clock()
        if now < self._again or not self.is_on:
            return None
        self._again = now + self._pause
        alive = Alive(system_key(current().prefix, "workers"), self._token, COUNTED)
        how = ("EVALSHA", alive.script.sha) if self._knows_script else ("EVAL", alive.script.text)
        moment = frozen_now()
        return [*how, len(alive.keys), *alive.keys, "" if moment is None else moment, *alive.arguments()]

    def answered(self, reply: Any) -> None:
        """Take the answer; after an error it is asked again with the next errands."""
        if not isinstance(reply, ResponseError):
            self.number = max(1, int(reply))
            self._pause = min(EVERY, 2 * self._pause)
            self._knows_script = True
            return
        if isinstance(reply, NoScriptError):
            self._knows_script = False
        self._again = 0.0

    def lost(self) -> None:
        """Ask again with the next errands; what was learned before holds."""
        self._again = 0.0

    def tell(self) -> None:
        """Nothing follows from it."""


def part_of(rule: Rule, workers: int) -> Rule:
    """Return a rule with the part of each of its rates that one of so many workers may admit, at least one hit.

    Together they admit no more than the rule does, or one each where there are more workers than that.
    """
    if workers <= 1:
        return rule
    try:
        return _part_of(rule, workers)
    except TypeError:  # an option that cannot be a key of the cache
        return _part_of.__wrapped__(rule, workers)


@lru_cache(maxsize=1024)
def _part_of(rule: Rule, workers: int) -> Rule:
    rates = tuple(
        replace(rate, count=_part(rate.count, workers)) if isinstance(rate, Rate) else rate for rate in rule.rates
    )
    burst = None if rule.burst is None else _part(rule.burst, workers)
    try:
        return replace(rule, rates=rates, burst=burst)
    except RuleError:  # the slowest of buckets: a part of it would be longer than can be counted
        return rule


def _part(count: int, workers: int) -> int:
    return max(1, count // workers) if count else 0
