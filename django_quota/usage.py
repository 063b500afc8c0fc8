"""Usage: how many checks of each rule a subject made on a day, as Redis has counted them. No models.

The decision script counts into one hash a subject and day, which is kept for eight days; `rollup` carries it further. A
hash says when it was opened: its incarnation. By it one tells a Redis that goes on from one that has begun anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, NamedTuple

from django_quota.clock import frozen_now
from django_quota.conf import current
from django_quota.days import day_of
from django_quota.exceptions import RuleError
from django_quota.keys import escape, key_of, named, part_base, pattern, read
from django_quota.limiter import get_limiter
from django_quota.operations.base import text
from django_quota.operations.usage import DropDay, ReadDays
from django_quota.stores.memory import MemoryStore
from django_quota.stores.redis import RedisStore, Server, time_of
from django_quota.stores.walking import Walk
from django_quota.subjects import is_user, named_subject, user_subject

KEPT = 8
"""Days that Redis keeps what was counted on a day."""

ALLOWED, REFUSED, OPENED = "a", "r", "#"


class Count(NamedTuple):
    """How many checks were allowed and refused."""

    allowed: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class DayUsage:
    """What Redis has counted for one subject on one day."""

    key: str
    subject: str
    """The subject as rows have it; see `row_name`."""
    day: date
    fields: Mapping[str, str]
    """The hash as it lies in Redis; empty where there is none."""

    @property
    def incarnation(self) -> int:
        """When the hash was opened, in microseconds since 1970; 0 where it does not say."""
        return _whole(self.fields.get(OPENED, "0"))

    @property
    def counts(self) -> dict[str, Count]:
        """The counts by rule, whose names are as rows have them; see `row_name`."""
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
    """Return a count; 0 for what is none, which only another program can have put there."""
    return int(value) if value.isascii() and value.isdecimal() else 0


def row_name(part: str) -> str:
    """Return the name of a subject or a rule, as a part of a key or field has it, in the form that a row holds.

    That is the name itself. Where only a digest is known, or where a database could not hold the name (lone surrogates,
    null characters), it is a tilde and that part; and so it is for a name with a tilde of its own, lest two be one.
    """
    name = named(part)
    if name is None:
        return part
    is_plain = not name.startswith("~") and "\0" not in name and not any("\ud800" <= sign <= "\udfff" for sign in name)
    return name if is_plain else f"~{part}"


def row_part(name: str, escaped: Callable[[str], str] = escape) -> str:
    """Return the part of a key that `row_name` made this of; of a plain name, its part.

    `escaped`: how a name becomes a part, `escape` for a subject and `field` for a rule. So a name may be given as
    people write it or as a row has it.
    """
    if name.startswith("~"):
        part = name if _DIGEST.fullmatch(name) else name[1:]
        if part and row_name(part) == name:
            return part
    return escaped(name)


_DIGEST = re.compile(r"~[0-9a-f]{64}")


# --- one subject ------------------------------------------------------------------------------------------------------


def usage(subject: Any) -> dict[date, dict[str, Count]]:
    """Return what Redis has counted for a subject, by day and rule: the days of the last eight with any checks.

    `subject`: a text such as `"ip:203.0.113.9"`, or a user. Rows may hold more: what was counted before. Raises
    `RuleError` where the subject is none, `StoreUnavailable` where the store does not answer.
    """
    return {day.day: day.counts for day in counted_days(subject)}


async def ausage(subject: Any) -> dict[date, dict[str, Count]]:
    """Return what Redis has counted for a subject; see `usage`."""
    return {day.day: day.counts for day in await acounted_days(subject)}


def counted_days(subject: Any) -> list[DayUsage]:
    """Return the days of `usage`, each with its incarnation, oldest first.

    `subject` may also be a text as rows have it; see `row_name`. Raises as `usage` does.
    """
    asked = _days_of(subject)
    return _counted(asked, get_limiter().telling.run(ReadDays(list(asked)), frozen_now()))


async def acounted_days(subject: Any) -> list[DayUsage]:
    """Return the days of a subject; see `counted_days`."""
    asked = _days_of(subject)
    return _counted(asked, await get_limiter().telling.arun(ReadDays(list(asked)), frozen_now()))


def today() -> date:
    """Return the day that is counted now, by this process's clock."""
    return day_of(frozen_now() or MemoryStore.now()).date


def _days_of(subject: Any) -> dict[str, DayUsage]:
    """Return the days that may be counted, empty yet, by key: one more at either end, for clocks that differ."""
    if isinstance(subject, str):
        name = named_subject(subject)
    elif is_user(subject):
        name = user_subject(subject)
    else:
        raise RuleError(f"{subject!r} is no subject: a text such as 'ip:203.0.113.9' or a user would do.")
    part = row_part(name)
    base = part_base(current().prefix, part)
    last = today() + timedelta(days=1)
    days = [last - timedelta(days=back) for back in range(KEPT + 2, -1, -1)]
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
    """Find the keys of all days that Redis holds counts of, about `batch` at a time; a key may come twice.

    Of a Cluster, what moves meanwhile may not come at all: it does the next time. Raises `StoreUnavailable` where Redis
    does not answer; where it is a part of the servers, after all others.
    """
    walk = Walk(store)
    for server in walk.servers:
        with walk.past():
            yield from _find_on(store, server, prefix, batch)
    walk.end()


def _find_on(store: RedisStore, server: Server, prefix: str, batch: int) -> Iterator[list[str]]:
    cursor, found = 0, dict[str, None]()
    while True:
        with store.commands(server) as client:
            cursor, keys = client.scan(cursor, match=f"{pattern(prefix)}}}:day:*", count=batch, _type="HASH")
        found.update(dict.fromkeys(map(text, keys)))
        if len(found) >= batch or (cursor == 0 and found):
            yield list(found)
            found.clear()
        if cursor == 0:
            break


def read_all(store: RedisStore, prefix: str, keys: Iterable[str]) -> list[DayUsage]:
    """Read what was counted under these keys, in one trip a server; what is no day of ours, or gone, is left out."""
    days = {key: named_day for key in keys if (named_day := _named_day(prefix, key)) is not None}
    replies = store.of_each(("HGETALL",), list(days))
    return [
        DayUsage(key, subject, day, {text(name): text(value) for name, value in fields.items()})
        for (key, (subject, day)), fields in zip(days.items(), replies, strict=True)
        if fields
    ]


def _named_day(prefix: str, key: str) -> tuple[str, date] | None:
    """Return the subject, as rows have it, and the day of a key; None where it is no day's."""
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
    """Return the day before today, by Redis' slowest clock: nothing is counted any more on the days before it."""
    times, walk = [], Walk(store)
    for server in walk.servers:
        with walk.past(), store.commands(server) as client:
            times.append(time_of(client))
    if not times:
        walk.end()
    return day_of(min(times)).date - timedelta(days=1)
