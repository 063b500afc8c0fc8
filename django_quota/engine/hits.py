"""A hit: one rule for one subject, with its limits compiled to what a store needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django_quota.core.algorithms import Algorithm, Limit, Parameters, Verdict
from django_quota.core.keys import field as field_of
from django_quota.core.rules import Rule
from django_quota.engine.operations import bulk


class CompiledLimit(NamedTuple):
    """One limit of a rule, for one subject and moment."""

    key: str
    """The key of its state."""
    limit: Limit
    parameters: Parameters

    @classmethod
    def of(cls, key: str, limit: Limit, now: int) -> CompiledLimit:
        """Compile a limit; `now` (microseconds) is used by calendar limits only."""
        return cls(key, limit, limit.timeless_parameters or limit.algorithm.parameters(limit.rate, limit.options, now))

    @property
    def algorithm(self) -> Algorithm[Any]:
        """The algorithm that decides it."""
        return self.limit.algorithm

    def at(self, now: int) -> CompiledLimit:
        """Return the limit for another moment; only a calendar limit changes."""
        return self if self.limit.timeless_parameters is not None else CompiledLimit.of(self.key, self.limit, now)


class DayKey(NamedTuple):
    """Where the checks of a day are counted, and when that day begins and ends (microseconds)."""

    key: str
    begins: int
    ends: int


class CompiledRule(NamedTuple):
    """What a rule brings to each hit, made once."""

    field: str
    """The rule's name as fields of hashes have it."""
    limits: tuple[CompiledLimit, ...]
    """Its limits. Their keys lack the beginning, `Hit.base`, and a calendar needs its edges; see `at`."""
    timeless: bool
    """Whether all limits are the same at any time."""
    before_cost: str
    """The argument of a hit before the cost, as Redis takes it."""
    after_cost: str
    """Those after it, up to those that not all hits of the rule share."""
    for_one_unit: str
    """All arguments of a hit that costs 1 and has no such options."""
    number_of_arguments: int
    """How many arguments that are."""

    @classmethod
    def of(cls, rule: Rule) -> CompiledRule:
        """Return the compiled rule."""
        if rule.compiled is None:
            object.__setattr__(rule, "compiled", cls._compile(rule))
        return rule.compiled  # type: ignore[no-any-return]

    @classmethod
    def _compile(cls, rule: Rule) -> CompiledRule:
        field = field_of(rule.name)
        limits = tuple(CompiledLimit.of(f"r:{field}:{limit.state_id}", limit, 0) for limit in rule.limits)
        arguments = _arguments(field, 1, rule, limits)
        return cls(
            field=field,
            limits=limits,
            timeless=all(limit.timeless_parameters is not None for limit in rule.limits),
            before_cost=bulk((field,)),
            after_cost=bulk(arguments[2:]),
            for_one_unit=bulk((*arguments, "")),
            number_of_arguments=len(arguments) + 1,
        )


def _arguments(field: str, cost: int, rule: Rule, limits: Sequence[CompiledLimit]) -> list[str | int]:
    """Return the arguments of a hit, up to the options that not all hits of the rule share."""
    arguments: list[str | int] = [field, cost, rule.warn_share, len(limits)]
    for limit in limits:
        arguments += limit.limit.encoded or limit.algorithm.encode(limit.parameters)
    for number, limit in enumerate(limits, 1):
        if limit.limit.options.count_refused:  # rules of one name may differ in it
            arguments += ("counted", str(number))
    return [*arguments, *rule.encoded]


class Hit:
    """One rule for one subject: its limits are decided together, under the overrides and bans of the subject."""

    group = 0
    """0: a refusal refuses the plan. n: the hit belongs to the n-th rule that decides for itself alone."""
    override = ""
    """The rate override that the limits belong to, as it was published; empty for the rule's own limits."""
    refusals_key = ""
    """The key of the refusals that lead to a ban; empty if the rule has no ban."""
    day: DayKey | None = None
    holds = ""
    """The key of its holds; empty while they are not needed."""
    reservation: Any = None
    """The `Reservation` by which what the hit consumes is noted as a hold; None: it is not."""
    other_rules: Sequence[Rule] = ()
    """Further rules of that name; they have their own limits, and all else in common."""
    extra_keys: Sequence[str] = ()
    """The keys of other limits of the rule that due holds have consumed."""

    def __init__(self, rule: Rule, base: str, subject: str, cost: int, value: str = "") -> None:
        self.rule = rule
        compiled = CompiledRule.of(rule)
        self.compiled = compiled if compiled.timeless else None
        """The compiled rule, if the hit has its limits and no others, and they are the same at any time."""
        self.limits: Sequence[CompiledLimit] = [
            CompiledLimit(base + key, limit, parameters) for key, limit, parameters in compiled.limits
        ]
        self.field = compiled.field
        """The rule's name as fields of hashes have it."""
        self.base = base
        """What all its keys begin with."""
        self.status_key = base + "s"
        """The key of the subject's status: overrides, bans, events."""
        self.subject = subject
        self.cost = cost
        self.value = value
        """The digest that the hit brings, if its limits count different values."""

    @property
    def rules(self) -> list[Rule]:
        """All its rules."""
        return [self.rule, *self.other_rules]

    @property
    def holds_key(self) -> str:
        """The key of its holds, whether or not they are needed."""
        return f"{self.base}h:{self.field}"

    @property
    def keys(self) -> list[str]:
        """Its keys, in the order that `lua/decide.lua` lists."""
        keys = [self.status_key, *[limit.key for limit in self.limits]]
        if self.refusals_key:
            keys.append(self.refusals_key)
        if self.day:
            keys.append(self.day.key)
        if self.holds:
            keys.append(self.holds)
            keys += self.extra_keys
        return keys

    @property
    def arguments(self) -> list[str | int]:
        """Its arguments, in the order that `lua/decide.lua` lists."""
        arguments = _arguments(self.field, self.cost, self.rule, self.limits)
        if self.override:
            arguments += ("override", self.override)
        if self.value:
            arguments += ("value", self.value)
        if self.group:
            arguments += ("group", self.group)
        if self.day:
            arguments += ("day", self.day.begins, self.day.ends)
        if self.holds:
            arguments += ("holds", 1 + len(self.extra_keys))
        if self.reservation:
            arguments += ("hold", *self.reservation)
        arguments.append("")
        return arguments

    @property
    def packed_arguments(self) -> tuple[int, str]:
        """The number of its arguments, and the arguments as Redis takes them."""
        compiled = self.compiled
        if compiled is None or self.group or self.holds:
            arguments = self.arguments
            return len(arguments), bulk(arguments)
        if self.cost == 1 and not self.day:
            return compiled.number_of_arguments, compiled.for_one_unit
        options = ("day", self.day.begins, self.day.ends, "") if self.day else ("",)
        text = f"{compiled.before_cost}{bulk((self.cost,))}{compiled.after_cost}{bulk(options)}"
        return compiled.number_of_arguments - 1 + len(options), text


@dataclass(slots=True)
class HitContext:
    """A hit while the specification decides it: what was found, and what follows."""

    hit: Hit
    index: int
    """The place of the hit in the plan."""
    status: int = 0
    """`Flag.EXEMPT`, `Flag.BLOCKED` or `Flag.BANNED`; 0 for none of them."""
    stop: int = 0
    """When that ends; 0 for never."""
    due: int | None = None
    """When the first open hold is due."""
    states: list[Any] | None = None
    """For a peek: how the limits would be without the holds that are due."""
    level: int = 0
    """The number of the last ban in its row."""
    remembered: int = 0
    """Until when that ban counts for the next one."""
    verdicts: list[Verdict] = field(default_factory=list)
    is_refused: bool = False
    """Whether any of its limits refused it, before a ban or a counted refusal changed them."""


def all_limits(hits: Iterable[Hit]) -> list[CompiledLimit]:
    """Return the limits of all hits, in the order of the reply."""
    return [limit for hit in hits for limit in hit.limits]
