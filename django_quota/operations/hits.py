"""A hit: one rule for one subject, as a store decides it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from django_quota.algorithms import Limit, Step
from django_quota.operations.base import Repeated
from django_quota.rules import Rule


class DayKey(NamedTuple):
    """Where the checks of a day are counted, and when that day begins and ends (microseconds)."""

    key: str
    begins: int
    ends: int


class Form(NamedTuple):
    """What all hits of a rule and a cost have in common, whoever they are for and whenever."""

    field: str
    """The rule's name as fields of hashes have it."""
    limits: tuple[Limit, ...]
    ends: tuple[str, ...]
    """What the key of each limit's state ends with, behind the subject."""
    arguments: Repeated
    """What `lua/decide.lua` is told of one in group 0 that counts no day, and brings no holds."""


class Hit:
    """One rule for one subject: limits that are decided together, under whatever else stands for the subject."""

    __slots__ = (
        "_steps", "base", "beside", "cost", "day", "field", "form", "group", "holds", "limits", "override", "replaced",
        "rule", "standing", "subject", "tally",
    )  # fmt: skip

    def __init__(
        self, rule: Rule, field: str, standing: str, subject: str, cost: int, form: Form | None = None, base: str = ""
    ) -> None:
        self.rule = rule
        self.field = field
        """The rule's name as fields of hashes have it."""
        self.standing = standing
        """The key of how the subject stands."""
        self.subject = subject
        """Who is limited."""
        self.cost = cost
        """What it takes of each of its limits."""
        self.group = 0
        """0 where a refusal refuses the plan; n where it belongs to the n-th rule that decides for itself alone."""
        self.override = ""
        """The rate override that the steps are those of, as it was published; empty for the rule's own."""
        self.replaced = False
        """Whether the steps are those of an override, which fits, and not the rule's own."""
        self.tally = ""
        """The key of the refusals on the way to a ban; empty where the rule has none."""
        self.day: DayKey | None = None
        self.holds = ""
        """The key of its holds, where they are needed; else empty."""
        self.beside: list[str] = []
        """The keys of other limits of the rule, of which holds that are due have spent."""
        self.form = form
        """Its form, while its limits are just those; None once it has steps of its own."""
        self.base = base
        """What the keys of its subject begin with, where it has a form."""
        self.limits: Sequence[Limit] = () if form is None else form.limits
        self._steps: list[Step] | None = None

    @property
    def steps(self) -> list[Step]:
        """Its limits, each with the key of its state; worked out where they are asked for, as few calls do."""
        if self._steps is None:
            form = self.form
            places = () if form is None else zip(form.ends, form.limits, strict=True)
            self._steps = [Step.of(self.base + end, limit, self.subject, self.cost, 0) for end, limit in places]
        return self._steps

    @steps.setter
    def steps(self, steps: list[Step]) -> None:
        self.form, self._steps, self.limits = None, steps, [step.limit for step in steps]

    @property
    def keys(self) -> list[str]:
        """Its keys, as `lua/decide.lua` lists them."""
        keys, form = [self.standing], self.form
        if form is None:
            keys += [step.key for step in self.steps]
        else:
            for end in form.ends:
                keys.append(self.base + end)
        if self.tally:
            keys.append(self.tally)
        if self.day:
            keys.append(self.day.key)
        if self.holds:
            keys.append(self.holds)
            keys += self.beside
        return keys

    @property
    def arguments(self) -> Repeated:
        """What `lua/decide.lua` is told of it: its head, the override, and two arguments for each of its limits."""
        form, day = self.form, self.day
        if form is not None and not (self.group or day or self.holds or self.override):
            return form.arguments
        begins, ends = (day.begins, day.ends) if day else (0, 0)
        steps = self.steps
        # What differs from value to value does not come again: it must not fill the cache.
        made = arguments_of.__wrapped__ if steps[0].parameters.value else arguments_of
        wires = [step.wire for step in steps]
        holds = 1 + len(self.beside) if self.holds else 0
        return made(self.field, self.group, self.rule.wire, self.override, begins, ends, holds, self.cost, *wires)


@lru_cache(maxsize=4096)
def arguments_of(
    field: str, group: int, rule: str, override: str, begins: int, ends: int, holds: int, cost: int, *limits: str
) -> Repeated:
    """Return what `lua/decide.lua` is told of a hit, the same object for the same."""
    head = f"{field} {group} {len(limits)} {rule} {begins} {ends} {holds}"
    return Repeated(head, override, *[argument for limit in limits for argument in (limit, cost)])
