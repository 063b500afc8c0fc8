"""The usage of all subjects, line by line: for bills, and for an export to a billing provider."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator
from datetime import date, timedelta
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from asgiref.sync import sync_to_async
from django.db import router
from django.db.models import Sum
from django.db.models.functions import TruncMonth

from django_quota.core.errors import RuleError, StoreDataError
from django_quota.features.usage.days import (
    DAYS_KEPT,
    LONGEST_PERIOD,
    PeriodsOfSubject,
    check_period,
    day_of_key,
    today,
)
from django_quota.limiting.registry import counting_stores

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from django_quota.models import DailyCounter

LinesBy = Literal["day", "month", "period"]

LINES_AT_ONCE = 1_000
"""How many lines are read from the database at once."""


class UsageLine(NamedTuple):
    """What a rule allowed and refused a subject in a period."""

    id: str
    """Always the same for this subject, rule and period: who gets a line twice can see that it is one."""
    subject: str
    """The subject, such as `"user:42"`, as the rows of `DailyCounter` have it."""
    rule: str
    """The name of the rule."""
    period: date
    """The day, or the first day of the month or period."""
    allowed: int
    """How many checks were allowed."""
    refused: int
    """How many checks were refused."""
    units: int
    """What the allowed checks cost."""


def usage_lines(since: date, until: date, by: LinesBy = "month", rule: str | None = None) -> Iterator[UsageLine]:
    """Yield what all subjects have used from the day `since` until the day before `until`: for bills.

    There is a line for each subject, rule and month (or day), ordered by subject; `rule`: only of this rule. With
    `by="period"` there is one for each of the customer's own periods that begins on these days; see `usage`. The memory
    that it takes does not grow with the number of subjects. What waits in the store is moved to the database first, as
    `quota_rollup` does it, so each check counts once. Then one query reads all lines. Days are in the zone
    `QUOTA["TIME_ZONE"]`.

    Raises `RuleError` for a wrong argument, and as it yields `StoreUnavailable` and Django's `DatabaseError`.
    """
    check_period(since, until, by, "day", "month", "period")
    if rule is not None and not isinstance(rule, str):
        raise RuleError(f"rule={rule!r} is not the name of a rule.", "Use, for example, rule='api', or None for all.")
    return _moved_lines(since, until, by, rule)


async def ausage_lines(
    since: date, until: date, by: LinesBy = "month", rule: str | None = None
) -> AsyncIterator[UsageLine]:
    """Yield what all subjects have used, without blocking the event loop; see `usage_lines`."""
    lines = usage_lines(since, until, by, rule)

    def next_lines() -> list[UsageLine]:
        return list(islice(lines, LINES_AT_ONCE))

    read = sync_to_async(next_lines)
    while batch := await read():
        for line in batch:
            yield line


def count_lines(since: date, until: date, rule: str | None) -> int:
    """Return how many lines of months there are now."""
    return _rows(since, until, "month", rule).count()


def _moved_lines(since: date, until: date, by: LinesBy, rule: str | None) -> Iterator[UsageLine]:
    move_waiting(until, by)
    yield from stored_lines(since, until, by, rule)


def stored_lines(since: date, until: date, by: LinesBy, rule: str | None) -> Iterator[UsageLine]:
    """Yield the lines of what is in the database; see `move_waiting`."""
    if by == "period":
        yield from _lines_of_periods(since, until, rule)
        return
    for row in _rows(since, until, by, rule).iterator(LINES_AT_ONCE):
        subject, name, period, *counts = row
        yield UsageLine(_id(subject, name, period, by), subject, name, period, *counts)


def _lines_of_periods(since: date, until: date, rule: str | None) -> Iterator[UsageLine]:
    days = _rows(since, until + LONGEST_PERIOD, "day", rule).iterator(LINES_AT_ONCE)
    for subject, of_subject in groupby(days, key=itemgetter(0)):
        periods = PeriodsOfSubject(subject)
        for (name, first), rows in groupby(of_subject, key=lambda row: (row[1], periods.first_day(row[1], row[2]))):
            counts = [sum(column) for column in list(zip(*rows, strict=True))[3:]]
            if since <= first < until:
                yield UsageLine(_id(subject, name, first, "period"), subject, name, first, *counts)


def move_waiting(until: date, by: LinesBy = "month") -> None:
    """Move to the database what waits in the store; nothing waits of days that the store no longer keeps.

    `until`, `by`: of the lines that are then read.
    """
    from django_quota.features.usage.rollup import roll_up  # noqa: PLC0415 — it needs the models

    last = until + LONGEST_PERIOD if by == "period" else until
    if last + timedelta(days=DAYS_KEPT + 1) >= today():
        left: list[tuple[str, bool]] = []
        for each in counting_stores():
            for moved in roll_up(each.store, prefix=each.prefix):
                left += [(key, each.store.database is not None) for key in moved.foreign if day_of_key(key) < last]
        if left:
            key, is_of_database = left[0]
            error = StoreDataError(f"{key} holds data of another program or version")
            error.is_of_database = is_of_database
            raise error


def _rows(since: date, until: date, by: Literal["day", "month"], rule: str | None) -> QuerySet[DailyCounter, Any]:
    from django_quota.models import DailyCounter  # noqa: PLC0415 — this module is imported before there are models

    rows = DailyCounter.objects.using(router.db_for_write(DailyCounter)).filter(day__gte=since, day__lt=until)
    if rule is not None:
        rows = rows.filter(rule=rule)
    if by == "day":
        return rows.order_by("subject", "rule", "day").values_list(
            "subject", "rule", "day", "allowed", "refused", "units"
        )
    sums = [Sum("allowed"), Sum("refused"), Sum("units")]
    of_month = rows.values("subject", "rule", month=TruncMonth("day")).annotate(a=sums[0], r=sums[1], u=sums[2])
    return of_month.order_by("subject", "rule", "month").values_list("subject", "rule", "month", "a", "r", "u")


def _id(subject: str, rule: str, period: date, by: str) -> str:
    """Return the digest of what a line is about: 32 hexadecimal digits, whatever the settings are."""
    day = period.isoformat()
    shown = {"month": day[:7], "day": day}.get(by, f"{day} {by}")
    return hashlib.sha256("\0".join((subject, rule, shown)).encode()).hexdigest()[:32]
