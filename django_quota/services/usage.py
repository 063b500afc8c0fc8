"""Usage: how many checks of each rule a subject made on a day, as Redis has counted them.

The decision script counts into one hash for each subject and day, which Redis keeps for eight days. `rollup` copies the
counts to the database. A hash holds the time of its first count, its incarnation: a Redis that lost its memory starts a
hash with a later one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, NamedTuple

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.clock import DAY, frozen_now
from django_quota.core.days import day_of
from django_quota.core.errors import RuleError
from django_quota.core.keys import escape, key_of, named, part_base, pattern, read
from django_quota.engine.events import DAY_TTL
from django_quota.engine.operations import text
from django_quota.engine.subject_operations import DropDay, ReadDays
from django_quota.services.registry import get_limiter
from django_quota.services.scanning import Walk, find_hashes
from django_quota.services.subjects import is_user, named_subject, user_subject
from django_quota.stores.redis.store import RedisStore, time_of

DAYS_KEPT = DAY_TTL // DAY
"""Days for which Redis keeps the counts of a day."""

ALLOWED, REFUSED, OPENED = "a", "r", "#"


class Count(NamedTuple):
    """How many checks were allowed and refused."""

    allowed: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class DayUsage:
    """The counts of one subject and day in Redis."""

    key: str
    subject: str
    """The subject as rows hold it; see `row_name`."""
    day: date
    fields: Mapping[str, str]
    """The hash in Redis; empty if there is none."""

    @property
    def incarnation(self) -> int:
        """The time of the first count in microseconds since 1970; 0 if the hash has none."""
        return _whole(self.fields.get(OPENED, "0"))

    @property
    def counts(self) -> dict[str, Count]:
        """The counts by rule, with names as rows hold them; see `row_name`."""
        counts: dict[str, Count] = {}
        for field, value in self.fields.items():
            part, colon, kind = field.rpartition(":")
            if colon and kind in (ALLOWED, REFUSED):
                rule = row_name(part)
                count = counts.get(rule, Count())
                number = _whole(value)
                counts[rule] = count._replace(allowed=number) if kind == ALLOWED else count._replace(refused=number)
        return counts

    @property
    def dropping(self) -> DropDay:
        """The operation that drops the hash, if nothing was counted since it was read."""
        return DropDay(self.key, self.fields)


def _whole(value: str) -> int:
    """Return a count; 0 for a value that another program has written."""
    return int(value) if value.isascii() and value.isdecimal() else 0


def row_name(part: str) -> str:
    """Return the name of a subject or rule for a row, from the part of a key or field.

    It is the name itself. It is a tilde and the part if only a digest is known, if a database cannot hold the
    name (lone surrogates, null characters), and if the name itself starts with a tilde, so that no two names become
    one.
    """
    name = named(part)
    if name is None:
        return part
    is_plain = not name.startswith("~") and "\0" not in name and not any("\ud800" <= sign <= "\udfff" for sign in name)
    return name if is_plain else f"~{part}"


def row_part(name: str, escaped: Callable[[str], str] = escape) -> str:
    """Return the part of a key from a name that a person wrote or that a row holds; the inverse of `row_name`.

    `escaped`: how a name becomes a part, `escape` for a subject and `field` for a rule.
    """
    if name.startswith("~"):
        part = name if _DIGEST.fullmatch(name) else name[1:]
        if part and row_name(part) == name:
            return part
    return escaped(name)


_DIGEST = re.compile(r"~[0-9a-f]{64}")


# --- one subject ------------------------------------------------------------------------------------------------------


def usage(subject: Any) -> dict[date, dict[str, Count]]:
    """Return the counts of a subject in Redis by day and rule, for those of the last eight days that have checks.

    `subject`: a text such as `"ip:203.0.113.9"`, or a user. Older counts are in `DailyCounter` rows. Raises `RuleError`
    for a wrong subject, and `StoreUnavailable`.
    """
    return {day.day: day.counts for day in counted_days(subject)}


def counted_days(subject: Any) -> list[DayUsage]:
    """Return the days of `usage` with their incarnations, oldest first.

    `subject` may also be a name as rows hold it; see `row_name`. Raises what `usage` raises.
    """
    asked = _days_of(subject)
    return _counted(asked, get_limiter().reporting_store.run(ReadDays(list(asked)), frozen_now()))


def today() -> date:
    """Return the current day by the clock of this process."""
    return day_of(clock.now(), current().time_zone).date


def _days_of(subject: Any) -> dict[str, DayUsage]:
    """Return the days that may have counts, without them, by key. Clocks differ: so it adds a day at either end."""
    if isinstance(subject, str):
        name = named_subject(subject)
    elif is_user(subject):
        name = user_subject(subject)
    else:
        raise RuleError(f"{subject!r} is not a subject. Use a text such as 'ip:203.0.113.9', or a user.")
    part = row_part(name)
    base = part_base(current().prefix, part)
    last = today() + timedelta(days=1)
    days = [last - timedelta(days=back) for back in range(DAYS_KEPT + 2, -1, -1)]
    return {(key := day_key(base, day)): DayUsage(key, row_name(part), day, {}) for day in days}


def _counted(asked: Mapping[str, DayUsage], reply: Sequence[Any]) -> list[DayUsage]:
    found = [
        DayUsage(empty.key, empty.subject, empty.day, _pairs(flat))
        for empty, flat in zip(asked.values(), reply, strict=True)
    ]
    return [day for day in found if day.counts]


def _pairs(flat: Sequence[Any]) -> dict[str, str]:
    texts = [text(part) for part in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def day_key(base: str, day: date) -> str:
    """Return the key of a day's counts; `base` is its subject's `subject_base`."""
    return key_of(base, "day", day.isoformat())


# --- all of them ------------------------------------------------------------------------------------------------------


def find(store: RedisStore, prefix: str, batch: int) -> Iterator[list[str]]:
    """Yield the keys of all days with counts; see `find_hashes`."""
    return find_hashes(store, f"{pattern(prefix)}}}:day:*", batch)


def read_all(store: RedisStore, prefix: str, keys: Iterable[str]) -> list[DayUsage]:
    """Read the days of these keys, in one round trip for each server. It leaves out keys that are not days, or gone."""
    days = {key: named_day for key in keys if (named_day := _named_day(prefix, key)) is not None}
    replies = store.of_each(("HGETALL",), list(days))
    return [
        DayUsage(key, subject, day, {text(name): text(value) for name, value in fields.items()})
        for (key, (subject, day)), fields in zip(days.items(), replies, strict=True)
        if fields
    ]


def _named_day(prefix: str, key: str) -> tuple[str, date] | None:
    """Return the subject, as rows hold it, and the day of a key; None for a key that is not a day's."""
    parts = read(prefix, key)
    if parts is None:
        return None
    kind, _, day = parts.what.partition(":")
    try:
        when = date.fromisoformat(day) if kind == "day" else None
    except ValueError:
        return None
    subject = key.removeprefix(part_base(prefix, "")).partition("}")[0]
    return None if when is None else (row_name(subject), when)


def finished_before(store: RedisStore) -> date:
    """Return the day before today by the slowest clock of Redis. Days before it get no more counts."""
    times, walk = [], Walk(store)
    for server in walk.servers:
        with walk.past(), store.commands(server) as client:
            times.append(time_of(client))
    if not times:
        walk.end()
    return day_of(min(times), current().time_zone).date - timedelta(days=1)
