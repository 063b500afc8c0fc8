"""A hit: one rule for one subject, with its limits compiled to what a store needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django_quota.core.algorithms import Algorithm, Limit, Parameters, Verdict, encode_limit
from django_quota.core.keys import field as field_of
from django_quota.core.keys import state_key
from django_quota.core.rules import Rule
from django_quota.engine.resp import bulk


class CompiledLimit(NamedTuple):
    """One limit of a rule, for one subject and moment."""

    key: str
    """The key of its state."""
    limit: Limit
    parameters: Parameters
    encoded: tuple[str, ...]
    """The limit as arguments of `lua/decide.lua`."""

    @classmethod
    def of(cls, key: str, limit: Limit, now: int, value: str = "") -> CompiledLimit:
        """Compile a limit.

        `now` (microseconds) is used by calendar limits only, `value` (a digest) by limits that count different values.
        """
        timeless = limit.timeless_parameters
        if timeless is not None:
            return cls(key, limit, timeless._replace(value=value) if value else timeless, limit.encoded)
        parameters = limit.algorithm.parameters(limit.rate, limit.options, now)
        return cls(key, limit, parameters, encode_limit(limit.algorithm, parameters))

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
    before_cost: str
    """The argument before the cost, as Redis takes it."""
    after_cost: str
    """Those after it, except for the options that depend on the hit. Of use only if the rule is timeless."""
    for_one_unit: str
    """All arguments of a hit that costs 1 and has no such options."""
    number_of_arguments: int
    """How many arguments that are."""
    timeless_limits: tuple[tuple[str, Limit, Parameters], ...]
    """For each limit that is the same at any time: what its key has behind the `subject_base`, and its parameters."""
    timeless: bool
    """Whether all limits are the same at any time."""
    decides_alone: bool
    """Whether its refusals do not refuse the plan: a shadow, or a rule that does not block."""

    @classmethod
    def of(cls, rule: Rule) -> CompiledRule:
        """Return the compiled rule."""
        made: CompiledRule | None = rule.compiled
        if made is None:
            made = cls._compile(rule)
            object.__setattr__(rule, "compiled", made)
        return made

    @classmethod
    def _compile(cls, rule: Rule) -> CompiledRule:
        field = field_of(rule.name)
        after = _after_cost(rule, [(limit, limit.encoded) for limit in rule.limits])
        timeless = tuple(
            (state_key("", limit), limit, limit.timeless_parameters)
            for limit in rule.limits
            if limit.timeless_parameters is not None
        )
        return cls(
            field=field,
            before_cost=bulk((field,)),
            after_cost=bulk(after),
            for_one_unit=bulk((field, 1, *after, "")),
            number_of_arguments=3 + len(after),
            timeless_limits=timeless,
            timeless=len(timeless) == len(rule.limits),
            decides_alone=rule.shadow or not rule.block,
        )


def _after_cost(rule: Rule, limits: Sequence[tuple[Limit, Sequence[str]]]) -> list[str | int]:
    """Return the arguments of a hit behind its cost, up to the options that not all hits of the rule share.

    `limits`: each with its own arguments.
    """
    arguments: list[str | int] = [rule.warn_share, len(limits)]
    for _, encoded in limits:
        arguments += encoded
    for number, (limit, _) in enumerate(limits, 1):
        if limit.options.count_refused:  # rules of one name may differ in it
            arguments += ("counted", str(number))
    return [*arguments, *rule.encoded]


class Hit:
    """One rule for one subject: its limits are decided together, under the overrides and bans of the subject."""

    compiled: CompiledRule | None = None
    """The compiled rule, if the hit has the limits of its rule and no others."""
    group = 0
    """0: a refusal refuses the plan. n: the hit belongs to the n-th rule that decides for itself alone."""
    override = ""
    """The rate override that the limits belong to, as it was published; empty for the rule's own limits."""
    has_override_limits = False
    """Whether the limits are those of the override: one that does not fit the rule is ignored."""
    refusals_key = ""
    """The key of the refusals that lead to a ban; empty if the rule has no ban."""
    day: DayKey | None = None
    holds = ""
    """The key of its holds; empty while they are not needed."""
    reservation: Any = None
    """The `Reservation` by which what the hit consumes is noted as a hold; None: it is not."""
    extra_keys: Sequence[str] = ()
    """The keys of other limits of the rule that due holds have consumed."""

    def __init__(
        self, rule: Rule, field: str, status_key: str, subject: str, cost: int, limits: Sequence[CompiledLimit] = ()
    ) -> None:
        self.rule = rule
        self.field = field
        """The rule's name as fields of hashes have it."""
        self.status_key = status_key
        """The key of the subject's status: overrides, bans, events."""
        self.subject = subject
        self.cost = cost
        self.limits = limits

    @property
    def value(self) -> str:
        """The digest that the hit brings, if its limits count different values."""
        return self.limits[0].parameters.value

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
        arguments: list[str | int] = [self.field, self.cost]
        arguments += _after_cost(self.rule, [(limit.limit, limit.encoded) for limit in self.limits])
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
        if compiled is None or self.group or self.holds or self.value:
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
