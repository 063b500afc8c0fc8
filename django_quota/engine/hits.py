"""A hit: what one rule counts for one subject, with what a store needs to decide it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

from django_quota.core.algorithms import Verdict
from django_quota.core.algorithms.calendar import day_of
from django_quota.engine.asks import Asked, Place
from django_quota.engine.compiled import CompiledLimit, CompiledRule
from django_quota.engine.operations import packed


class DayKey(NamedTuple):
    """Where the checks of a day are counted, and when that day begins and ends (microseconds)."""

    key: str
    begins: int
    ends: int

    @classmethod
    def of(cls, base: str, moment: int, zone: str) -> DayKey:
        """Return the key of a subject for the day of a moment (microseconds) in a time zone."""
        _, begins, ends, name = day_of(moment, zone)
        return cls(f"{base}day:{name}", begins, ends)


def counts_day(rule: Asked, subject: str) -> bool:
    """Return whether the hits of a subject are counted by day: those of users, unless the rule's `daily` decides."""
    return subject.startswith("user:") and "+" not in subject if rule.daily is None else rule.daily


class Ahead(NamedTuple):
    """What a process says of the units that it takes ahead; see `engine/lua/ahead.lua`."""

    id: str = ""
    """The share that it returns; empty if it has none."""
    spent: int = 0
    """Units of it that the process has spent."""
    new_id: str = ""
    """The id of the share that it wishes to take."""
    wish: int = 0
    """How many units it wishes to take; 0 if none."""
    divisor: int = 2
    """It gets at most what is left divided by this."""
    lease: int = 0
    """For how long it takes them, in microseconds."""


NOTHING_AHEAD = Ahead()


class _HitFields(NamedTuple):
    compiled: CompiledRule
    base: str
    """What all its keys begin with."""
    subject: str
    cost: int
    value: str = ""
    """The digest of the hit's value, if its limits count different values."""
    group: int = 0
    """0: a refusal refuses the request. n: the hit belongs to the n-th rule that decides for itself alone."""
    is_estimate: bool = False
    """Whether the hit is an estimate, which is settled later. Until then it emits "near" only if it is refused."""
    is_overridden: bool = False
    """Whether the rates of the rule come from an override."""
    moment: int | None = None
    """The time for which its day and its calendars are (microseconds); None if it has neither."""
    day: DayKey | None = None
    ahead: Ahead | None = None
    """None if units of its rule are never taken ahead."""


class Hit(_HitFields):
    """The rules of one name for one subject: their limits are decided together, under the bans of the subject."""

    def at(self, moment: int, zone: str) -> Hit:
        """Return the hit with the edges of days and calendars at a moment (microseconds). `zone`: that of days."""
        if self.moment is None:
            return self
        return self._replace(moment=moment, day=None if self.day is None else DayKey.of(self.base, moment, zone))

    @property
    def rule(self) -> Asked:
        """The rule, the first of several, or the take of a counter."""
        return self.compiled.rule

    @property
    def field(self) -> str:
        """The rule's name, escaped for fields of hashes."""
        return self.compiled.field

    @property
    def place(self) -> Place:
        """Where it counts."""
        return Place(self.compiled.name, self.subject)

    @property
    def status_key(self) -> str:
        """The key of the subject's status: bans, and the last events."""
        return self.base + self.compiled.status

    @property
    def refusals_key(self) -> str:
        """The key of the refusals that lead to a ban; empty if the rule bans nobody."""
        return self.base + self.compiled.refusals if self.compiled.refusals else ""

    @property
    def ahead_keys(self) -> list[str]:
        """For each limit the key of the units that processes have taken ahead; empty if they never do."""
        return [self.base + end for end in self.compiled.ahead]

    @property
    def grants_keys(self) -> list[str]:
        """The key of the units of a counter that expire; empty if it is a rule."""
        return [self.base + end for end in self.compiled.grants]

    @property
    def leased_keys(self) -> list[str]:
        """The key of the units of a counter that are taken for a lease; empty if the hit has no lease."""
        return [self.base + end for end in self.compiled.leased]

    @cached_property
    def limits(self) -> Sequence[CompiledLimit]:
        """Its limits, with their whole keys and the edges of their periods."""
        base, moment, value, of_rule = self.base, self.moment, self.value, self.compiled
        limits = [
            CompiledLimit(base + key, limit, parameters if of_rule.is_timeless else limit.parameters(moment or 0))
            for key, limit, parameters in of_rule.limits
        ]
        if value:
            limits = [limit._replace(parameters=limit.parameters._replace(value=value)) for limit in limits]
        return limits

    @property
    def warn_shares(self) -> Sequence[int]:
        """The shares of a limit that emit "near" if the hit is counted, in thousandths, in rising order."""
        return () if self.is_estimate else self.rule.warn_shares

    @property
    def keys(self) -> list[str]:
        """Its keys, in the order that `engine/lua/decide.lua` lists."""
        keys = [self.status_key, *[limit.key for limit in self.limits]]
        if self.refusals_key:
            keys.append(self.refusals_key)
        keys += self.ahead_keys
        if self.compiled.grants:
            keys += self.grants_keys
            keys += self.leased_keys
        if self.day:
            keys.append(self.day.key)
        return keys

    @property
    def arguments(self) -> list[str | int]:
        """Its arguments, in the order that `engine/lua/decide.lua` lists."""
        shared = self.compiled.arguments(self.limits, self.cost, is_estimate=self.is_estimate)
        return [*shared, *self._options, ""]

    @property
    def _options(self) -> list[str | int]:
        """Its arguments that not every hit of the rule has."""
        options: list[str | int] = []
        if self.value:
            options += ("value", self.value)
        if self.group:
            options += ("group", self.group)
        if self.ahead is not None:
            options += ("ahead", *self.ahead)
        if self.day:
            options += ("day", self.day.begins, self.day.ends, self.rule.of_tier)
        return options

    def packed(self) -> tuple[int, bytes, int, bytes]:
        """Return how many keys it has, and these keys as words of a command; then the same of its arguments."""
        of_rule, base = self.compiled, self.base.encode()
        number_of_keys, keys = of_rule.number_of_keys, base.join(of_rule.key_parts(len(base)))
        if self.day is not None:
            number_of_keys, keys = number_of_keys + 1, keys + packed((self.day.key,))
        if not of_rule.is_timeless:
            arguments = self.arguments
            return number_of_keys, keys, len(arguments), packed(arguments)
        number, shared = of_rule.packed_arguments(self.cost, is_estimate=self.is_estimate)
        if not self.group and not self.value and self.day is None and self.ahead is None:  # as most hits
            return number_of_keys, keys, number + 1, shared + _END
        options = self._options
        # The ids of what is taken ahead are new each time: nothing would find the options again.
        more = _packed_options(*options) if self.ahead is None else packed(options)
        return number_of_keys, keys, number + len(options) + 1, shared + more + _END


_END = packed(("",))
"""The word after the options of a hit."""


@lru_cache(maxsize=256)
def _packed_options(*options: str | int) -> bytes:
    """Return options as words of a command: most hits of a day have the same."""
    return packed(options)


@dataclass(slots=True)
class HitContext:
    """A hit while the specification decides it: what was found, and what follows."""

    hit: Hit
    index: int
    """The place of the hit in the operation."""
    status: int = 0
    """`Flag.BANNED`, or 0."""
    stop: int = 0
    """When the ban ends."""
    level: int = 0
    """The number of the last ban in its series."""
    remembered: int = 0
    """Until when the last ban makes the next one longer."""
    verdicts: list[Verdict] = field(default_factory=list)
    limits: Sequence[CompiledLimit] = ()
    """The limits of the hit. If units are taken ahead, they count what is out."""
    out: Sequence[int] = ()
    """For each limit how many units are out; empty if none are."""
    is_settled: bool = False
    """Whether it is settled now."""
    answer: str | None = None
    """The first answer, if it was settled before."""
    is_refused: bool = False
    """Whether any of its limits refused it, before a ban or a counted refusal changed them."""
