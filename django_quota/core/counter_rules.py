"""A counter as an entry of `check_all`: a rule whose only limit is what the counter holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, TypeVar

from django_quota.core.algorithms import STOCK, Limit, Options, Parameters
from django_quota.core.algorithms.base import MAX_USED
from django_quota.core.rates import Rate
from django_quota.core.rules import Rule

T = TypeVar("T")

_NO_RATE = Rate(1, "second")
"""A `Limit` needs a rate; nobody sees a counter's."""


@dataclass(frozen=True)
class CounterRule(Rule):
    """The rule of a counter. Counters are data: no overrides, events or counts of days; it fails closed."""

    group: str | None = None
    ttl: int = 0
    """How long the counter lives after its last change, in microseconds."""
    is_counter: ClassVar[bool] = True

    @cached_property
    def limits(self) -> tuple[Limit, ...]:
        """Its only limit."""
        parameters = Parameters(MAX_USED, self.ttl)
        return (Limit(self.name, _NO_RATE, STOCK, Options(), 1.0, "", parameters, STOCK.encode(parameters)),)


class CounterEntry:
    """What may be in an entry in place of a rule: the base of `Counter`, which is in a higher layer."""

    __slots__ = ()
    name: str
    group: str | None
    _ttl: int


def as_rule(given: T | CounterEntry) -> T | CounterRule:
    """Return the rule of a counter; anything else as it is."""
    return counter_rule(given.name, given.group, given._ttl) if isinstance(given, CounterEntry) else given  # noqa: SLF001


@lru_cache(maxsize=1024)
def counter_rule(name: str, group: str | None, ttl: int) -> CounterRule:
    """Return the rule of a counter; `ttl` in microseconds."""
    return CounterRule(name, (), daily=False, warn_at=None, on_unavailable="deny", group=group, ttl=ttl)
