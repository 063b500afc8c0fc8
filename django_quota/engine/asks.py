"""What a request or a call asks for: who is limited by which rule, and for how much.

Or a take: units of a counter that a request takes together with its limits, all or nothing. Counters are data, not
limits, so a take has no overrides and no daily counts. It is refused if the store does not answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from django_quota.core.algorithms.stock import StockLimit
from django_quota.core.rule_options import RuleStore
from django_quota.core.rules import Rule


@dataclass(frozen=True)
class Take:
    """What a decision takes of a counter. It has the attributes of a `Rule`, so that both can be in one decision."""

    name: str
    """The name of the counter."""
    group: str | None = None
    """The group of the counter; see `counter`."""
    ttl: int = 0
    """How long the counter lives after its last change, in microseconds."""
    leased_for: int = 0
    """For how long its units are taken unless the lease is renewed, in microseconds; 0: for good."""
    store: RuleStore | None = None
    """Where the counter is; see `Rule.store`."""
    cost: ClassVar[int] = 1
    """The units that it takes unless the entry gives a cost."""
    shadow: ClassVar[bool] = False
    is_quiet: ClassVar[bool] = False
    block: ClassVar[bool] = True
    daily: ClassVar[bool] = False
    ban: ClassVar[Any] = None
    distinct: ClassVar[None] = None
    lease: ClassVar[int] = 0
    count_refused: ClassVar[bool] = False
    cache_refusals: ClassVar[float] = 0.0
    settle: ClassVar[None] = None
    count_when: ClassVar[None] = None
    reads_body: ClassVar[Literal[""]] = ""
    on_unavailable: ClassVar[Literal["deny"]] = "deny"
    of_tier: ClassVar[str] = ""
    warn_shares: ClassVar[tuple[int, ...]] = ()
    counting: ClassVar[tuple[StockLimit, ...]] = ()
    lowest_warn_share: ClassVar[str] = "0"

    def __post_init__(self) -> None:
        if self.store is not None:
            Rule.any_in_database = True

    @property
    def encoded(self) -> tuple[str, ...]:
        """Its options, encoded for `engine/lua/decide.lua`."""
        return ("grants", *(("leased",) if self.leased_for else ()))

    @property
    def limits(self) -> tuple[StockLimit, ...]:
        """Its only limit: what the counter holds."""
        return (StockLimit(self.name, self.ttl, self.leased_for),)


Asked = Rule | Take
"""What a request asks for: room under a rule, or units of a counter."""


class CounterEntry:
    """The base of `Counter`, which may replace the rule in an entry. `Counter` itself is in a higher layer."""

    __slots__ = ()

    @property
    def as_take(self) -> Take:
        """What an entry asks of the counter."""
        raise NotImplementedError


class Place(NamedTuple):
    """Where a hit counts: asks of one place are one hit."""

    rule: str
    """The name of the rule."""
    subject: str


class Ask(NamedTuple):
    """One rule for one subject, or units of a counter."""

    rule: Asked
    subject: str
    cost: int
    """Units, from 0 up; 0 only asks whether there is room."""
    value: str = ""
    """The digest of the value that a rule with `distinct=` counts; empty for other rules."""
    is_estimate: bool = False
    """Whether the cost is an estimate, which is settled later. Until then it emits "near" only if it is refused."""

    @property
    def place(self) -> Place:
        """Where the hit counts."""
        return Place(self.rule.name, self.subject)
