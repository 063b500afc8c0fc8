"""Compiled rules: all of a decision that does not depend on the subject or the time, made once for each rule.

A hit then joins what it needs from ready bytes: the ends of its keys, and the arguments around its cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any, ClassVar, NamedTuple

from django_quota.core.algorithms import STOCK, Algorithm, Limit, Parameters
from django_quota.core.algorithms.stock import StockLimit
from django_quota.core.keys import ahead_part, grants_key, grants_part, leased_part, state_part
from django_quota.core.keys import field as field_of
from django_quota.core.rules import Rule, name_conflict
from django_quota.engine.asks import Asked, Take
from django_quota.engine.counter_totals import put_total, read_total
from django_quota.engine.operations import States, key_parts, packed
from django_quota.engine.system_operations import FIELD_ENDS, SPENT_END


class CompiledLimit(NamedTuple):
    """One limit of a rule."""

    key: str
    """The key of its state; in a compiled rule, what comes after the beginning that all keys of a subject share."""
    limit: Limit | StockLimit
    parameters: Parameters

    @classmethod
    def of(cls, key: str, limit: Limit | StockLimit, now: int) -> CompiledLimit:
        """Compile a limit; `now` (microseconds) is used by calendar limits only."""
        return cls(key, limit, limit.parameters(now))

    @property
    def algorithm(self) -> Algorithm[Any]:
        """The algorithm of the limit."""
        return self.limit.algorithm

    def state(self, states: States, now: int) -> Any:
        """Return its state. That of a counter is in two keys; see `read_total`."""
        if self.algorithm is not STOCK:
            return states.get(self.key)
        return read_total(states, self.key, grants_key(self.key), now)

    def put(self, states: States, before: Any, after: Any) -> None:
        """Replace its state; None drops it."""
        if after is None:
            states.drop(self.key)
        elif after is before:
            return
        elif self.algorithm is STOCK:
            put_total(states, (self.key, grants_key(self.key)), after)
        else:
            states.put(self.key, after, self.algorithm.expiry(after))


class CompiledRule:
    """A rule, several rules of one name that differ only in their limits, or the take of a counter. It does not change.

    `subject`: only for a counter of a group, whose keys do not begin with those of the subject.
    """

    any_prefetches: ClassVar[bool] = False
    """Whether any compiled rule of this process has `prefetch`. Otherwise no call looks for units ahead."""

    def __init__(self, rules: Sequence[Asked], subject: str | None = None) -> None:
        self.rules = rules
        self.rule = rule = rules[0]
        self.name = rule.name
        self.field = field_of(rule.name)
        """The rule's name, escaped for fields of hashes."""
        end = "" if subject is None else f":{field_of(subject)}"
        limits = {state_part(limit) + end: limit for each in rules for limit in each.limits or each.counting}
        self.limits = tuple([CompiledLimit.of(key, limit, 0) for key, limit in limits.items()])
        self.is_unlimited = not any(each.limits for each in rules)
        """Whether its limits only count; see `Rule.counting`."""
        self.is_timeless = all(limit.timeless_parameters is not None for limit in limits.values())
        """Whether its limits are the same at any time: none is a calendar's."""
        self.decides_alone = rule.shadow or not rule.block
        """Whether its refusal refuses no other rule of the request."""
        self.refusals = f"b:{self.field}" if rule.ban is not None and not rule.shadow else ""
        """The end of the key of the refusals that lead to a ban; empty if the rule bans nobody."""
        self.allowed, self.refused, self.shadowed = (self.field + end for end in FIELD_ENDS.values())
        """The fields in which the metrics count what the rule allows, refuses, or would refuse as a shadow."""
        self.spent = self.field + SPENT_END
        """The field in which the metrics count the hits of the rule that were spent of what a process took ahead."""
        self.is_in_database = rule.store is not None
        """Whether it counts in the database, wherever the others count."""
        self.lease = min(rule.lease for rule in rules)
        """How long a process may spend units of the rule that it took ahead, in microseconds; 0 if it takes none."""
        self.ahead: list[str] = []
        """The ends of the keys of the units that processes have taken ahead, one for each limit."""
        if self.lease:
            self.ahead = [ahead_part(limit) for limit in limits.values() if isinstance(limit, Limit)]
            CompiledRule.any_prefetches = True
        self.grants = [grants_part(each) + end for each in limits.values() if isinstance(each, StockLimit)]
        """The end of the key of the units of a counter that expire; empty if it is a rule."""
        self.leased = [
            leased_part(each) + end for each in limits.values() if isinstance(each, StockLimit) and each.lease
        ]
        """The end of the key of the units of a counter that are taken for a lease; empty if none are."""
        refusals = [self.refusals] if self.refusals else []
        self.status = f"s{end}"
        """The end of the key of the subject's status."""
        self._key_ends = [self.status, *limits, *refusals, *self.ahead, *self.grants, *self.leased]
        self.number_of_keys = len(self._key_ends)
        """How many keys a hit has, without that of its day."""
        self._key_parts: dict[int, list[bytes]] = {}
        self.under: dict[str, Rule] = {}
        """The rule with the rates of overrides, by these; see `resolving.rule_under`."""
        self._packed_arguments: dict[tuple[int, bool], tuple[int, bytes]] = {}

    def key_parts(self, length: int) -> list[bytes]:
        """Return what is around the beginning of its keys, which is `length` bytes long; see `operations.key_parts`."""
        try:
            return self._key_parts[length]
        except KeyError:
            parts = self._key_parts[length] = key_parts(length, self._key_ends)
            return parts

    def packed_arguments(self, cost: int, *, is_estimate: bool) -> tuple[int, bytes]:
        """Return how many arguments a hit has up to its options, and these as words of a command.

        All limits must be timeless.
        """
        found = self._packed_arguments.get((cost, is_estimate))
        if found is None:
            arguments = self.arguments(self.limits, cost, is_estimate=is_estimate)
            found = len(arguments), packed(arguments)
            if len(self._packed_arguments) < MAX_COSTS:
                self._packed_arguments[cost, is_estimate] = found
        return found

    def arguments(self, limits: Sequence[CompiledLimit], cost: int, *, is_estimate: bool) -> list[str | int]:
        """Return the arguments of a hit up to its options; see `engine/lua/decide.lua`.

        `limits`: with their present edges.
        """
        warn_share = self.rule.lowest_warn_share
        if is_estimate and warn_share != "0":
            warn_share = f"-{warn_share}"
        arguments: list[str | int] = [self.field, cost, warn_share, len(limits)]
        for limit in limits:
            arguments += limit.limit.encoded or limit.algorithm.encode(limit.parameters)
        for number, limit in enumerate(limits, 1):
            if limit.limit.options.count_refused:  # rules of one name may differ in this
                arguments += ("counted", str(number))
        return [*arguments, *self.rule.encoded]


MAX_COSTS = 256
"""For how many costs a compiled rule keeps its arguments."""

MAX_RULES = 4_096
"""How many compiled rules a process keeps. Above that it forgets all, and compiles again what it meets."""

_compiled: dict[int | tuple[int, ...] | Take, CompiledRule] = {}
"""By the `id` of the rule, or of several rules; a take by its value, since each call makes a new one.

A compiled rule keeps its rules alive, so no other rule gets the `id` of one.
"""


def compiled(rule: Asked) -> CompiledRule:
    """Return the compiled form of a rule, made when first needed."""
    found = _compiled.get(id(rule))
    if found is not None:
        return found
    if isinstance(rule, Take):
        return _compiled.get(rule) or _keep(rule, CompiledRule((rule,)))
    return _keep(id(rule), CompiledRule((rule,)))


@lru_cache(maxsize=1_024)
def compiled_in_group(take: Take, subject: str) -> CompiledRule:
    """Return the compiled form of the take of a counter of a group, whose keys end with the subject."""
    return CompiledRule((take,), subject)


def compiled_together(rules: Sequence[Rule]) -> CompiledRule:
    """Return the compiled form of several rules of one name. Raises `RuleError` if they differ in more than limits."""
    key = tuple([id(rule) for rule in rules])
    found = _compiled.get(key)
    if found is not None:
        return found
    for one, other in combinations(rules, 2):
        if not one.is_compatible_with(other):
            raise name_conflict(other, one)
    return _keep(key, CompiledRule(rules))


def _keep(key: int | tuple[int, ...] | Take, made: CompiledRule) -> CompiledRule:
    if len(_compiled) >= MAX_RULES:
        forget_compiled()
        CompiledRule.any_prefetches = bool(made.lease)
    _compiled[key] = made
    return made


def forget_compiled() -> None:
    """Forget all compiled rules. Each is compiled again when it is next needed."""
    _compiled.clear()
    CompiledRule.any_prefetches = False
