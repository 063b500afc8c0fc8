"""A hit: one rule for one subject, with its limits compiled to what a store needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django_quota.core.algorithms import STOCK, Algorithm, Limit, Parameters, Verdict
from django_quota.core.algorithms.stock import Total
from django_quota.core.errors import StoreDataError
from django_quota.core.keys import field as field_of
from django_quota.core.keys import state_part
from django_quota.core.rules import Rule
from django_quota.engine.operations import States


class CompiledLimit(NamedTuple):
    """One limit of a rule, for one subject and moment."""

    key: str
    """The key of its state."""
    limit: Limit
    parameters: Parameters

    @classmethod
    def of(cls, key: str, limit: Limit, now: int) -> CompiledLimit:
        """Compile a limit; `now` (microseconds) is used by calendar limits only."""
        return cls(key, limit, limit.parameters(now))

    @property
    def algorithm(self) -> Algorithm[Any]:
        """The algorithm of the limit."""
        return self.limit.algorithm

    def state(self, states: States, now: int) -> Any:
        """Return its state. A counter keeps its plain total: the state is the total with its expiry.

        Raises `StoreDataError` if the key of a counter holds something else.
        """
        if self.algorithm is not STOCK:
            return states.get(self.key)
        units = states.get(self.key, now)
        if units is not None and not isinstance(units, int):
            raise StoreDataError(f"{self.key} is not a counter")
        return None if units is None else Total(units, states.expiry(self.key))

    def put(self, states: States, before: Any, after: Any) -> None:
        """Replace its state; None drops it."""
        if after is None:
            states.drop(self.key)
        elif after is not before:
            value = after.units if self.algorithm is STOCK else after
            states.put(self.key, value, self.algorithm.expiry(after))

    def at(self, now: int) -> CompiledLimit:
        """Return the limit for another moment; only a calendar limit changes."""
        return self if self.limit.timeless_parameters is not None else CompiledLimit.of(self.key, self.limit, now)


class DayKey(NamedTuple):
    """Where the checks of a day are counted, and when that day begins and ends (microseconds)."""

    key: str
    begins: int
    ends: int


class CompiledRule(NamedTuple):
    """What all hits of a rule share, computed once."""

    field: str
    """The rule's name, escaped for fields of hashes."""
    limits: tuple[CompiledLimit, ...]
    """Its limits. Their keys lack the beginning, `Hit.base`, and a calendar its edges; see `CompiledLimit.at`."""
    timeless: bool
    """Whether all limits are the same at any time."""
    arguments: tuple[str | int, ...]
    """The arguments after a hit's cost that all hits of the rule share."""

    @classmethod
    def of(cls, rule: Rule) -> CompiledRule:
        """Return the compiled rule."""
        if rule.compiled is None:
            object.__setattr__(rule, "compiled", cls._compile(rule))
        return rule.compiled  # type: ignore[no-any-return]

    @classmethod
    def _compile(cls, rule: Rule) -> CompiledRule:
        field = field_of(rule.name)
        limits = tuple(CompiledLimit.of(state_part(limit), limit, 0) for limit in rule.limits)
        timeless = all(limit.timeless_parameters is not None for limit in rule.limits)
        return cls(field, limits, timeless, tuple(_arguments(rule, limits)))


def _arguments(rule: Rule, limits: Sequence[CompiledLimit]) -> list[str | int]:
    """Return the arguments after a hit's cost that all hits of the rule share."""
    arguments: list[str | int] = [rule.lowest_warn_share, len(limits)]
    for limit in limits:
        arguments += limit.limit.encoded or limit.algorithm.encode(limit.parameters)
    for number, limit in enumerate(limits, 1):
        if limit.limit.options.count_refused:  # rules of one name may differ in this
            arguments += ("counted", str(number))
    return [*arguments, *rule.encoded]


class Hit:
    """The rules of one name for one subject: their limits are decided together, under the bans of the subject."""

    group = 0
    """0: a refusal refuses the plan. n: the hit belongs to the n-th rule that decides for itself alone."""
    is_overridden = False
    """Whether the rates of the rule come from an override."""
    refusals_key = ""
    """The key of the refusals that lead to a ban; empty if the rule has no ban."""
    day: DayKey | None = None
    is_estimate = False
    """Whether the hit is an estimate, which is adjusted later. Until then it emits no "near" event."""

    def __init__(self, rules: Sequence[Rule], base: str, subject: str, cost: int, value: str = "") -> None:
        self.rule = rules[0]
        self.rules = rules
        """Rules that have their own limits, and all else in common."""
        compiled = [CompiledRule.of(rule) for rule in rules]
        limits = {each.key: each for of_rule in compiled for each in of_rule.limits}
        self.timeless = all(each.timeless for each in compiled)
        """Whether all limits are the same at any time."""
        self.compiled = compiled[0] if len(rules) == 1 and self.timeless else None
        """The compiled rule, if the hit has exactly its limits, and they are the same at any time."""
        self.limits: Sequence[CompiledLimit] = [
            CompiledLimit(base + key, limit, parameters._replace(value=value) if value else parameters)
            for key, limit, parameters in limits.values()
        ]
        self.field = compiled[0].field
        """The rule's name, escaped for fields of hashes."""
        self.base = base
        """What all its keys begin with."""
        self.status_key = base + "s"
        """The key of the subject's status: bans, and the last events."""
        self.subject = subject
        self.cost = cost
        self.value = value
        """The digest of the hit's value, if its limits count different values."""

    def move_to(self, base: str, key: str) -> None:
        """Give the hit the keys of a counter in a group. `base`: what they begin with; `key`: the total's."""
        self.base, self.status_key = base, base + "s"
        self.limits = [limit._replace(key=key) for limit in self.limits]

    @property
    def warn_shares(self) -> Sequence[int]:
        """The shares of a limit that emit "near", in thousandths, in rising order."""
        return () if self.is_estimate else self.rule.warn_shares

    @property
    def keys(self) -> list[str]:
        """Its keys, in the order that `lua/decide.lua` lists."""
        keys = [self.status_key, *[limit.key for limit in self.limits]]
        if self.refusals_key:
            keys.append(self.refusals_key)
        if self.day:
            keys.append(self.day.key)
        return keys

    @property
    def arguments(self) -> list[str | int]:
        """Its arguments, in the order that `lua/decide.lua` lists."""
        compiled = self.compiled
        shared = _arguments(self.rule, self.limits) if compiled is None else compiled.arguments
        arguments: list[str | int] = [self.field, self.cost, *shared]
        if self.is_estimate:
            arguments[2] = 0
        if self.value:
            arguments += ("value", self.value)
        if self.group:
            arguments += ("group", self.group)
        if self.day:
            arguments += ("day", self.day.begins, self.day.ends, self.rule.of_tier)
        arguments.append("")
        return arguments


@dataclass(slots=True)
class HitContext:
    """A hit while the specification decides it: what was found, and what follows."""

    hit: Hit
    index: int
    """The place of the hit in the plan."""
    status: int = 0
    """`Flag.BANNED`, or 0."""
    stop: int = 0
    """When the ban ends."""
    level: int = 0
    """The number of the last ban in its series."""
    remembered: int = 0
    """Until when the last ban makes the next one longer."""
    verdicts: list[Verdict] = field(default_factory=list)
    is_refused: bool = False
    """Whether any of its limits refused it, before a ban or a counted refusal changed them."""
