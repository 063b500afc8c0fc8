"""Floods: many refusals by one rule, as one line of a list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from django_quota.core.clock import SECOND
from django_quota.features.events.stream import Event

FLOOD = 5
"""How many subjects, or else how many refusals of one subject, are a flood."""

FLOOD_GAP = 600 * SECOND
"""Microseconds without a refusal after which a flood has ended."""


class Flood(NamedTuple):
    """Refusals by one rule, one soon after the other."""

    events: Sequence[Event]
    """The newest first."""
    subjects: int
    """How many subjects were refused."""

    @property
    def rule(self) -> str | None:
        """The rule that refused them."""
        return self.events[0].rule

    @property
    def subject(self) -> str | None:
        """The subject that was refused, if it was only one."""
        return self.events[0].subject if self.subjects == 1 else None

    @property
    def kind_of_subjects(self) -> str:
        """The kind of all subjects, such as "user"; empty if they differ, or if one has no single kind."""
        kinds = {(event.subject or "").partition(":")[0] for event in self.events if "+" not in (event.subject or "+")}
        return kinds.pop() if len(kinds) == 1 else ""

    @property
    def at(self) -> int:
        """The time of the last refusal, in microseconds."""
        return self.events[0].at

    @property
    def since(self) -> int:
        """The time of the first refusal, in microseconds."""
        return self.events[-1].at


def with_floods(events: Iterable[Event]) -> list[Event | Flood]:
    """Return events (the newest first) with floods in place of their refusals, each where its last refusal was."""
    runs: dict[str | None, list[Event]] = {}
    flood_of: dict[str, Flood] = {}
    all_events = list(events)
    ended: list[list[Event]] = []
    for event in all_events:
        if event.kind != "refused":
            continue
        run = runs.get(event.rule)
        if run is None or run[-1].at - event.at > FLOOD_GAP:
            run = runs[event.rule] = []
            ended.append(run)
        run.append(event)
    for run in ended:
        for flood in _floods(run):
            flood_of.update(dict.fromkeys((event.id for event in flood.events), flood))
    shown: list[Event | Flood] = []
    for event in all_events:
        of_event = flood_of.get(event.id)
        if of_event is None:
            shown.append(event)
        elif of_event.events[0] is event:
            shown.append(of_event)
    return shown


def _floods(run: Sequence[Event]) -> list[Flood]:
    """Return the floods among refusals by one rule: of many subjects, or else of single ones."""
    by_subject: dict[str | None, list[Event]] = {}
    for event in run:
        by_subject.setdefault(event.subject, []).append(event)
    if len(by_subject) >= FLOOD:
        return [Flood(run, len(by_subject))]
    return [Flood(of_subject, 1) for of_subject in by_subject.values() if len(of_subject) >= FLOOD]
