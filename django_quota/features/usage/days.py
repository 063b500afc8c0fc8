"""Usage: what the rules allowed and refused a subject on each day, in checks and in units.

The decision script counts into one hash for each subject and day, in the store. `rollup` moves the counts to rows of
`DailyCounter`. While it does, they are set aside in a second hash under a token. The operations are at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple
from zoneinfo import ZoneInfo

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, router

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.algorithms import Limit
from django_quota.core.algorithms.calendar import day_of
from django_quota.core.clock import DAY, SECOND, frozen_now
from django_quota.core.errors import RuleError, StoreDataError, StoreUnavailable
from django_quota.core.flow import run_sync
from django_quota.core.keys import escape, is_digest, key_of, named, part_base, pattern, read
from django_quota.core.rules import Rule
from django_quota.engine.events import DAY_TTL
from django_quota.engine.operations import Operation, Script, States, script, text
from django_quota.limiting.known_rules import known_rules
from django_quota.limiting.registry import counting_stores
from django_quota.stores.base import AskedAgain, Store, asked_once
from django_quota.stores.scanning import batched, scan
from django_quota.subjects.site_functions import KnownStarts, starting_flow
from django_quota.subjects.subject import is_user, named_subject, user_subject

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from django_quota.models import DailyCounter


logger = logging.getLogger("django_quota.usage")

DAYS_KEPT = DAY_TTL // DAY
"""Days for which the store keeps the counts of a day."""

ASIDE = ":aside"
"""The end of the key of counts that are set aside."""


class Count(NamedTuple):
    """How many checks were allowed and refused, and what the allowed ones cost."""

    allowed: int = 0
    refused: int = 0
    units: int = 0

    @property
    def checks(self) -> int:
        return self.allowed + self.refused


class _ByRule(dict[str, Count]):
    """The counts of rules; a rule without checks has zeros."""

    def __missing__(self, rule: str) -> Count:
        if hasattr(dict, rule):  # Django's templates look for `.items` here first
            raise KeyError(rule)
        return Count()


class _ByPeriod(dict[date, dict[str, Count]]):
    """The counts of days or months; one without checks has no rules."""

    def __missing__(self, period: date) -> dict[str, Count]:
        if not isinstance(period, date):
            raise KeyError(period)
        return _ByRule()


def total(counts: Iterable[Count]) -> Count:
    return Count(*map(sum, zip(*counts, strict=True)))


class RowKey(NamedTuple):
    """What one row of `DailyCounter` counts."""

    subject: str
    day: date
    rule: str

    @classmethod
    def of(cls, row: DailyCounter) -> RowKey:
        return cls(row.subject, row.day, row.rule)


class SubjectDay(NamedTuple):
    """A day of a subject, and the key of its counts in the store."""

    key: str
    subject: str
    """The subject's name in rows; see `row_name`."""
    day: date


@dataclass(frozen=True, slots=True)
class DayCounts:
    """Counts of a day in the store."""

    of: SubjectDay
    token: int
    """The token under which they were set aside; 0 if they were not."""
    counts: Mapping[RowKey, Count]
    tiers: Mapping[RowKey, str]
    """The tier of the last check, for rules that have a `tier` function."""

    @classmethod
    def read(cls, of: SubjectDay, flat: Iterable[Any]) -> DayCounts:
        """Read a hash: its fields and values, one after the other."""
        texts = iter(map(text, flat))
        token, counts, tiers = 0, dict[RowKey, Count](), dict[RowKey, str]()
        for field, value in zip(texts, texts, strict=True):
            part, _, kind = field.rpartition(":")
            if field == TOKEN_FIELD:
                token = _whole(value)
            elif part and kind in _FIELDS:
                place = RowKey(of.subject, of.day, row_name(part))
                counts[place] = total([counts.get(place, Count()), _FIELDS[kind](_whole(value))])
            elif part and kind == "t":
                tiers[RowKey(of.subject, of.day, row_name(part))] = value[:MAX_TIER]
        return cls(of, token, counts, tiers)


_FIELDS: Mapping[str, Callable[[int], Count]] = {
    "a": lambda number: Count(allowed=number, units=number),
    "r": lambda number: Count(refused=number),
    "u": lambda number: Count(units=number),
}
"""What a field of a hash counts; see `engine/lua/count_day.lua`."""

MAX_TIER = 100
"""Characters of a tier that are kept."""

MAX_TIER_ROWS = 50
"""How many rows, the newest, are searched for the tiers that a subject had last."""


def _whole(value: str) -> int:
    """Return a count; 0 for a value that another program has written."""
    return int(value) if value.isascii() and value.removeprefix("-").isdecimal() else 0


def row_name(part: str) -> str:
    """Return the name of a subject or rule for a row, from the part of a key or field.

    Usually, this is the name itself. If a database cannot hold the name (lone surrogates, null characters), or if the
    name itself starts with a tilde, it is a tilde and the part. If only a digest is known, it is the digest, which
    starts with a tilde. So two names never become one.
    """
    name = named(part)
    if name is None:
        return part
    is_plain = not name.startswith("~") and "\0" not in name and not any("\ud800" <= each <= "\udfff" for each in name)
    return name if is_plain else f"~{part}"


def row_part(name: str, escaped: Callable[[str], str] = escape) -> str:
    """Return the part of a key from a name that a person wrote or that a row holds; the inverse of `row_name`.

    `escaped`: how a name becomes a part, `escape` for a subject and `field` for a rule.
    """
    if name.startswith("~"):
        part = name if is_digest(name) else name[1:]
        if row_name(part) == name:
            return part
    return escaped(name)


# --- the counts of one subject ----------------------------------------------------------------------------------------


def usage(
    subject: Any, since: date, until: date, by: Literal["day", "month", "period"] = "day"
) -> dict[date, dict[str, Count]]:
    """Return what a subject has used from the day `since` until the day before `until`: for a bill.

    The result has, for each day (or month, by its first day), the rules with `allowed`, `refused` and `units`, the cost
    of the allowed checks; `usage(...)[day]["api"]` is zeros if there were no checks. With `by="period"`, it has the
    whole periods that begin on these days, by their first day: of several rates of a rule, the longest of the calendar
    counts, as it is for the subject now; a rule without one is reported by day. It includes what a roll-up has not
    moved yet. Each check counts once, even while a roll-up runs or after one was killed. Days are in the zone
    `QUOTA["TIME_ZONE"]`.

    `subject`: a string such as `"org:7"`, or a user. Raises `RuleError` for a wrong argument, `StoreUnavailable`, and
    Django's `DatabaseError`: it never leaves out what it cannot read.
    """
    check_period(since, until, by, "day", "month", "period")
    recent = recent_days(subject)
    last = until + LONGEST_PERIOD if by == "period" else until
    days = [day for day in recent if since <= day.day < last]
    rows = _rows(recent[0].subject, since, last)
    while True:
        found = waiting(days) if days else []
        again = _rows(recent[0].subject, since, last)
        if rows == again:
            break
        rows = again  # a roll-up moved counts between the two reads
    if by == "period":
        summed = _summed(rows, found, PeriodsOfSubject(recent[0].subject).first_day_of)
        return {first: rules for first, rules in summed.items() if since <= first < until}
    return _summed(rows, found, _first_of_month if by == "month" else _same_day)


def check_period(since: date, until: date, by: str, *known: str) -> None:
    """Raise `RuleError` unless these are two days, the second after the first, and `by` is one of the known words."""
    given: list[tuple[str, object]] = [("since", since), ("until", until)]
    for name, day in given:
        if not isinstance(day, date) or isinstance(day, datetime):
            raise RuleError(f"{name}={day!r} is not a date.", f"Use, for example, {name}=date(2026, 11, 1).")
    if until <= since:
        raise RuleError(f"until={until!r} is not after since={since!r}.", "The day `until` is not part of the usage.")
    if by not in known:
        *others, last = map(repr, known)
        words = ", ".join(others)
        raise RuleError(f"by={by!r} is not {words} or {last}.", f"Use, for example, by={others[-1]}.")


async def ausage(
    subject: Any, since: date, until: date, by: Literal["day", "month", "period"] = "day"
) -> dict[date, dict[str, Count]]:
    """Return what a subject has used, without blocking the event loop; see `usage`."""
    return await sync_to_async(usage)(subject, since, until, by)


def _rows(subject: str, since: date, until: date) -> dict[RowKey, tuple[Count, int]]:
    """Return the counts and the token of each row of a subject."""
    return _counted(_saved().filter(subject=subject, day__gte=since, day__lt=until))


def _counted(rows: Iterable[DailyCounter]) -> dict[RowKey, tuple[Count, int]]:
    return {RowKey.of(row): (Count(row.allowed, row.refused, row.units), row.token) for row in rows}


LONGEST_PERIOD = timedelta(days=366)


def _same_day(place: RowKey) -> date:
    return place.day


def _first_of_month(place: RowKey) -> date:
    return place.day.replace(day=1)


class PeriodsOfSubject:
    """The periods in which rules count a subject, as they are for it now."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._limits: dict[str, Limit | None] = {}
        self._starts = KnownStarts()

    def first_day_of(self, place: RowKey) -> date:
        """Return the first day of the period that a row is in; see `first_day`."""
        return self.first_day(place.rule, place.day)

    def first_day(self, rule: str, day: date) -> date:
        """Return the first day of the period of a rule that has a day; the day itself if the rule has no period."""
        if rule not in self._limits:
            self._limits[rule] = self._limit_of(rule)
        limit = self._limits[rule]
        if limit is None:
            return day
        zone = ZoneInfo(limit.options.tz or "UTC")
        noon = int(datetime.combine(day, time(12), zone).timestamp()) * SECOND
        return datetime.fromtimestamp(limit.parameters(noon).a // SECOND, zone).date()

    def _limit_of(self, name: str) -> Limit | None:
        """Return the limit of a rule with the longest period of the calendar; None if it has none."""
        rule = known_rules().get(name)
        if not isinstance(rule, Rule):
            return None
        rules = [run_sync(starting_flow(each, self._subject, self._starts)) for each in rule.tiers.values() or [rule]]
        limits = [limit for each in rules for limit in each.limits if not limit.algorithm.timeless]
        return max(limits, key=lambda limit: limit.rate.period, default=None)


def add_unmoved(counts: dict[RowKey, Count], found: Iterable[DayCounts], tokens: Mapping[RowKey, int]) -> None:
    """Add the store's counts, without those that rows have already, since a move was killed after it had added them.

    `tokens`: those of the rows.
    """
    for each in found:
        for place, count in each.counts.items():
            if not 0 < each.token <= tokens.get(place, 0):
                counts[place] = total([counts.get(place, Count()), count])


def _summed(
    rows: Mapping[RowKey, tuple[Count, int]],
    found: Iterable[DayCounts],
    first_day: Callable[[RowKey], date] = _same_day,
) -> dict[date, dict[str, Count]]:
    """Return the sum of the rows and the store's counts, without counts set aside that the rows already have."""
    counts = {place: count for place, (count, _) in rows.items()}
    add_unmoved(counts, found, {place: token for place, (_, token) in rows.items()})
    summed: dict[date, dict[str, Count]] = _ByPeriod()
    for place, count in sorted(counts.items()):
        rules = summed.setdefault(first_day(place), _ByRule())
        rules[place.rule] = total([rules.get(place.rule, Count()), count])
    return summed


def recent_usage(subject: Any) -> dict[date, dict[str, Count]]:
    """Return the counts of a subject by day and rule, for the days with checks among the last eight.

    `subject`: a string such as `"ip:203.0.113.9"`, or a user. Older counts are only in `DailyCounter` rows. Raises
    `RuleError` for a wrong subject, and `StoreUnavailable`. It reads the store before the rows, so counts that a
    roll-up moves in between count twice in this result. Without a database, it returns the store's counts.
    """
    days = recent_days(subject)
    found = waiting(days)
    return _summed(_counted(moved(days)), found)


def last_tiers(rules: Iterable[object], subject: Any) -> dict[str, str]:
    """Return, by rule, the tier that a subject had at its last check of a rule that notes it; see `Rule.notes_tier`.

    Only subjects whose checks are counted by day have any. If none of these rules notes it, nothing is read.
    While the store does not answer, the result is empty; without a database, it is what the store has. Raises
    `RuleError` for a wrong subject.
    """
    if not any(isinstance(rule, Rule) and rule.tiers and rule.notes_tier for rule in rules):
        return {}
    days = recent_days(subject)
    try:
        counted = waiting(days)  # before the rows: a roll-up may move counts to them in between
    except StoreUnavailable:
        return {}
    rows = _saved().filter(subject=days[0].subject).exclude(tier="").order_by("-day")[:MAX_TIER_ROWS]
    found = [(RowKey.of(row), row.tier) for row in _readable(rows)]
    found += [each for day in counted for each in day.tiers.items()]
    found.sort(key=lambda each: each[0].day)  # stable: of one day, the store's tier is newer, and stays after the row's
    return {place.rule: tier for place, tier in found}


def subjects_of_rules(rules: Collection[str], most: int) -> list[tuple[str, str]]:
    """Return the rule and the subject of the newest rows of these rules; empty if the database does not answer."""
    if not rules:
        return []
    rows = _saved().filter(rule__in=rules).order_by("-day")[:most]
    return [(row.rule, row.subject) for row in _readable(rows)]


def moved(days: Sequence[SubjectDay]) -> list[DailyCounter]:
    """Return the rows of these days of one subject; empty if the database does not answer, which is logged."""
    return _readable(_saved().filter(subject=days[0].subject, day__range=(days[0].day, days[-1].day)))


def _saved() -> QuerySet[DailyCounter]:
    """Return all rows, from the database that a roll-up writes to: a replica may not have them yet."""
    from django_quota.models import DailyCounter  # noqa: PLC0415 — this module is imported before there are models

    return DailyCounter.objects.using(router.db_for_write(DailyCounter))


def _readable(rows: Iterable[DailyCounter]) -> list[DailyCounter]:
    """Return rows; empty if the database does not answer, which is logged."""
    try:
        return list(rows)
    except (DatabaseError, ImproperlyConfigured) as error:  # the second: there is no database
        logger.warning("Usage does not include the days in the database, which does not answer: %s", error)
        return []


def recent_days(subject: Any) -> list[SubjectDay]:
    """Return the days of a subject for which the store may have counts, the oldest first.

    Clocks differ, so there is one extra day at each end. `subject`: as for `recent_usage`, or its name in rows; see
    `row_name`. Raises `RuleError` for a wrong one.
    """
    if isinstance(subject, str):
        name = named_subject(subject)
    elif is_user(subject):
        name = user_subject(subject)
    else:
        raise RuleError(f"{subject!r} is not a subject. Use a string such as 'ip:203.0.113.9', or a user.")
    part = row_part(name)
    base, last = part_base(current().prefix, part), today() + timedelta(days=1)
    days = [last - timedelta(days=back) for back in range(DAYS_KEPT + 2, -1, -1)]
    return [SubjectDay(day_key(base, day), row_name(part), day) for day in days]


def waiting(days: Iterable[SubjectDay]) -> list[DayCounts]:
    """Return what the store has counted on these days of one subject; counts that were set aside come first.

    Raises `StoreUnavailable`.
    """
    found = []
    for each in counting_stores():
        own = [day._replace(key=each.prefix + day.key.removeprefix(current().prefix)) for day in days]
        keys = [(day, key) for day in own for key in (day.key + ASIDE, day.key)]
        replies = each.reporting_store.run(ReadDays([key for _, key in keys]), frozen_now())
        found += [DayCounts.read(day, flat) for (day, _), flat in zip(keys, replies, strict=True)]
    return [each for each in found if each.counts]


def today() -> date:
    """Return the current day by the clock of this process."""
    return day_of(clock.now(), current().time_zone).date


def day_key(base: str, day: date) -> str:
    """Return the key of a day's counts; `base` is its subject's `subject_base`."""
    return key_of(base, "day", day.isoformat())


def day_of_key(key: str) -> date:
    """Return the day whose counts are under a key; the inverse of `day_key`."""
    return date.fromisoformat(key.rpartition(":")[2])


# --- the days of all subjects -----------------------------------------------------------------------------------------


def find_days(store: Store, prefix: str, batch: int, asked: AskedAgain = asked_once) -> Iterator[set[SubjectDay]]:
    """Yield all days for which the store has counts, at most `batch` at a time; see `Store.names`."""
    matching = f"{pattern(prefix)}}}:day:*"
    if store.redis is None:
        pages = batched(store.names(matching, asked), batch)
    else:
        pages = scan(store.redis, matching, batch, asked)
    for keys in pages:
        yield {day for key in keys if (day := _named_day(prefix, key.removesuffix(ASIDE))) is not None}


def _named_day(prefix: str, key: str) -> SubjectDay | None:
    """Return the day and subject of a key; None for a key that is not of a day."""
    parts = read(prefix, key)
    if parts is None:
        return None
    kind, _, day = parts.what.partition(":")
    try:
        when = date.fromisoformat(day) if kind == "day" else None
    except ValueError:
        return None
    subject = key.removeprefix(part_base(prefix, "")).partition("}")[0]
    return None if when is None else SubjectDay(key, row_name(subject), when)


# --- operations on the counts of a day --------------------------------------------------------------------------------


TOKEN_FIELD = "#"  # noqa: S105 — it is a field, not a password
"""The field for the token, in counts that were set aside."""


class ReadDays(Operation):
    """Read what was counted under these keys, all of one subject; the reply: see `read_days.lua`."""

    script: ClassVar[Script] = script("features/usage/read_days")
    is_slow: ClassVar[bool] = True
    is_reading: ClassVar[bool] = True

    def run(self, states: States, now: int) -> list[list[str]]:  # noqa: ARG002 — a day is kept until it is moved
        days = [_counts(states, key) or {} for key in self.keys]
        return [[str(part) for pair in day.items() for part in pair] for day in days]


class SetAside(Operation):
    """Set a day's counts aside, unless earlier ones are aside; the reply: see `set_aside.lua`.

    `known`: the token that the database knows. The new one is larger.
    """

    script: ClassVar[Script] = script("clock", "lifetimes", "features/usage/set_aside")
    is_slow: ClassVar[bool] = True

    def __init__(self, day_key: str, aside_key: str, known: int) -> None:
        super().__init__([day_key, aside_key], known)

    def run(self, states: States, now: int) -> list[Any]:
        (day, aside), (known,) = self.keys, self.arguments()
        fields = _counts(states, aside)
        if fields is None:
            counts = _counts(states, day)
            if counts is None:
                return [0, []]
            fields = {**counts, TOKEN_FIELD: max(now, known + 1)}
            states.put(aside, fields, states.expiry(day))
            states.drop(day)
        elif not isinstance(token := fields.get(TOKEN_FIELD), int) or token < 1:
            raise StoreDataError(f"{aside} holds no counts that were set aside")
        return [int(states.get(day) is not None), [str(part) for pair in fields.items() for part in pair]]


class DropAside(Operation):
    """Delete the counts that were set aside under a token; the reply is 1 if they were deleted, else 0."""

    script: ClassVar[Script] = script("features/usage/drop_aside")
    is_slow: ClassVar[bool] = True

    def __init__(self, aside_key: str, token: int) -> None:
        super().__init__([aside_key], token)

    def run(self, states: States, now: int) -> int:  # noqa: ARG002 — they are kept until they are in the database
        (aside,), (token,) = self.keys, self.arguments()
        return int((_counts(states, aside) or {}).get(TOKEN_FIELD) == token and states.drop(aside))


def _counts(states: States, key: str) -> Mapping[str, Any] | None:
    """Return the counts under a key; None if there are none. Raises `StoreDataError` for anything else."""
    found = states.get(key)
    if found is None or isinstance(found, Mapping):
        return found
    raise StoreDataError(f"{key} holds no counts of a day")
