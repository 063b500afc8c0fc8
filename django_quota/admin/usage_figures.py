"""The figures of one subject's usage: what is rolled up into rows, and what only Redis has counted so far, told apart.

A check is in exactly one of both: of a hash that was carried in part, only what the row does not have yet is live. It
must not know how they are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta

from django.db.models import F, QuerySet, Sum, Value
from django.db.models.functions import Concat

from django_quota.charts import NOTHING, Figure
from django_quota.exceptions import ConfigurationError, StoreUnavailable
from django_quota.keys import field as escaped_rule
from django_quota.models import DailyCounter
from django_quota.rollup import Place, place_of, places_of, uncarried
from django_quota.subjects import named_subject
from django_quota.usage import Count, DayUsage, counted_days, row_name, row_part, today

MOST_RULES = 500
"""Rules of a subject that are told apart."""

RECENT = 90
"""Days that the bars go back."""


def subject_name(text: str) -> str:
    """Return the name that rows have of a subject, given so or as text. Raises `RuleError` where it is none."""
    return row_name(row_part(named_subject(text)))


def rule_name(text: str) -> str:
    """Return the name that rows have of a rule, given so or as it is; `""` for all rules."""
    return row_name(row_part(text, escaped_rule)) if text else ""


@dataclass(slots=True)
class Live:
    """What Redis has counted and no row has yet, by row."""

    counts: dict[Place, Count] = field(default_factory=dict)
    failure: str = ""
    """Why Redis did not answer; empty where it did."""

    @property
    def since(self) -> date | None:
        """The first day of which something is live."""
        return min((place.day for place in self.counts), default=None)

    @property
    def checks(self) -> int:
        """All that is live."""
        return sum(map(sum, self.counts.values()))


def live(subject: str) -> Live:
    """Return what is live of a subject, as rows have it.

    Redis is asked before the rows: a roll-up in between then shows as carried, and nothing is missed or doubled.
    """
    try:
        days = counted_days(subject)
    except (StoreUnavailable, ConfigurationError) as error:
        return Live(failure=str(error))
    if not days:
        return Live()
    rows = DailyCounter.objects.filter(subject=subject, day__range=(days[0].day, days[-1].day))
    return Live(dict(_uncarried(days, {place_of(row): row for row in rows})))


def _uncarried(days: list[DayUsage], rows: Mapping[Place, DailyCounter]) -> Iterator[tuple[Place, Count]]:
    for day in days:
        for place, count in places_of(day).items():
            row = rows.get(place)
            left = count if row is None else uncarried(row, day.incarnation, count)
            if any(left):
                yield place, left


@dataclass(slots=True)
class Figures:
    """The usage of a subject in a year, and of late."""

    subject: str
    rule: str
    year: int
    today: date
    days: Mapping[date, Figure]
    """Of each day with any checks, of the rule or of all: the days of the year, and the latest ones."""
    rules: Mapping[str, Figure]
    """Of each rule in the year, whichever was asked for: the one that was checked most goes first."""
    live: Live
    first: date | None
    """The first day that is rolled up, in any year."""
    rolled_until: date | None
    """The last one."""

    def between(self, first: date, last: date) -> Figure:
        """Return what was counted on these days together."""
        return sum((figure for day, figure in self.days.items() if first <= day <= last), NOTHING)

    def each(self, first: date, last: date) -> list[tuple[date, Figure]]:
        """Return each of these days, with what was counted on it."""
        numbers = range(first.toordinal(), last.toordinal() + 1)
        return [(day := date.fromordinal(number), self.days.get(day, NOTHING)) for number in numbers]


def figures(subject: str, rule: str = "", year: int | None = None) -> Figures:
    """Read the usage of a subject in a year, this one where none is given; names are as rows have them.

    It takes six queries of the subject's own rows at most, and one call to Redis.
    """
    now = today()
    chosen = year or now.year
    left = live(subject)
    rows = DailyCounter.objects.filter(subject=subject)
    # Compared as an expression, lest SQLite take the index of rules for it, and read all subjects' rows of the rule.
    of_rule = rows.annotate(named=Concat("rule", Value(""))).filter(named=rule) if rule else rows
    whole = (date(chosen, 1, 1), date(chosen, 12, 31))
    recent = (min(date(now.year, 1, 1), now - timedelta(days=RECENT)), now + timedelta(days=1))
    days: dict[date, Figure] = {}
    for first, last in {whole, recent}:
        days.update(_by_day(of_rule, first, last))
    rules = _by_rule(rows, *whole)
    for place, count in left.counts.items():
        figure = Figure(*count, *count)
        if rule in ("", place.rule):
            days[place.day] = days.get(place.day, NOTHING) + figure
        if place.day.year == chosen:
            rules[place.rule] = rules.get(place.rule, NOTHING) + figure
    ordered = sorted(rules.items(), key=lambda item: (-item[1].checks, item[0]))
    ends = rows.order_by("day").values_list("day", flat=True)
    return Figures(subject, rule, chosen, now, days, dict(ordered), left, ends.first(), ends.last())


def _by_day(rows: QuerySet[DailyCounter], first: date, last: date) -> dict[date, Figure]:
    summed = (
        rows.filter(day__range=(first, last)).order_by().values_list("day").annotate(Sum("allowed"), Sum("refused"))
    )
    return {day: Figure(int(allowed), int(refused)) for day, allowed, refused in summed}


def _by_rule(rows: QuerySet[DailyCounter], first: date, last: date) -> dict[str, Figure]:
    summed = rows.filter(day__range=(first, last)).order_by().values_list("rule")
    most = summed.annotate(Sum("allowed"), Sum("refused"), checks=Sum(F("allowed") + F("refused"))).order_by("-checks")
    return {rule: Figure(int(allowed), int(refused)) for rule, allowed, refused, _checks in most[:MOST_RULES]}
