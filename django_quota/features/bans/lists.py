"""The bans of all subjects, for operators: those in force, found by subject and rule, and those that began recently."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.clock import SECOND, frozen_now
from django_quota.core.keys import named, system_key
from django_quota.engine.operations import text
from django_quota.features.events.stream import EVENTS_A_PAGE, Event, event_log
from django_quota.features.subject_contents import BanStatus, contents_of
from django_quota.limiting.known_rules import known_rules
from django_quota.limiting.registry import get_limiter
from django_quota.stores.database.log import EventTable, LoggedBan
from django_quota.stores.scanning import time_of
from django_quota.subjects.subject import is_bare, parts_of

MOST = 10_000
"""How many bans are read: those that end first."""

NEWEST_EVENTS = 5_000
"""How many events are read: the newest."""

Fate = Literal["in force", "ended", "lifted", "replaced"]
"""What became of a ban. A newer ban of the same subject and rule replaces it, even one that only lasts longer."""

BanPair = tuple[str | None, str | None]
"""The subject and the rule of a ban. None for a name that is so long that only its digest is known."""


@dataclass(frozen=True, slots=True)
class ActiveBan:
    """A ban: its subject, its rule, and its end in microseconds."""

    subject: str | None
    rule: str | None
    until: int

    @classmethod
    def of(cls, subject: str, ban: BanStatus, now: int) -> ActiveBan:
        """Return a ban that was read with a subject at `now` (microseconds)."""
        return cls(subject, ban.rule, now + round(ban.ends_in * SECOND))


class BanFilter(NamedTuple):
    """Which bans to find: of which subjects, and by which rule."""

    subjects: Sequence[str] = ()
    """The subjects, alone or combined. A word that is not a subject matches each that contains it. Empty: all."""
    rule: str = ""
    """The rule's name. Empty: all."""

    def fits(self, rule: str | None, subject: str | None) -> bool:
        """Return whether the filter fits a ban."""
        if self.rule not in ("", rule) or not self.subjects:
            return self.rule in ("", rule)
        name = subject or ""
        parts = {name, *parts_of(name)}
        return any(each in (name if is_bare(each) else parts) for each in self.subjects)


class BanList(NamedTuple):
    """The bans in force that fit a filter, the first to end first."""

    bans: list[ActiveBan]
    rules: list[str]
    """The rules of all bans that were read, sorted."""
    total: int
    """The number of bans in force. Above `MOST`, not all of them were read."""


def find_bans(wanted: BanFilter) -> BanList:
    """Return the bans that fit a filter.

    They come from the store's list of bans. The memory store has no list, nor does a store without events: there, only
    bans of the filter's subjects are found. Raises `StoreUnavailable`.
    """
    total, listed = bans_in_force(MOST) if current().events else (0, None)
    found = [ban for ban in listed or () if wanted.fits(ban.rule, ban.subject)]
    pairs = {(ban.subject, ban.rule) for ban in found}
    known = known_rules() if wanted.subjects else {}
    for subject, contents in contents_of(wanted.subjects).items():
        found += [
            ActiveBan.of(subject, ban, contents.now)
            for ban in contents.bans(known)
            if wanted.rule in ("", ban.rule) and (subject, ban.rule) not in pairs
        ]
    rules = sorted({ban.rule for ban in listed or () if ban.rule})
    return BanList(sorted(found, key=lambda ban: ban.until), rules, total)


def bans_in_force(most: int = EVENTS_A_PAGE) -> tuple[int, list[ActiveBan] | None]:
    """Return how many bans are in force, and those that end first; 0 and None for the memory store, without an index.

    Raises `StoreUnavailable` if the store does not answer.
    """
    store, prefix = get_limiter().store, current().prefix
    if store.redis is not None:
        with store.redis.commands() as client:
            key, after = system_key(prefix, "bans"), f"({frozen_now() or time_of(client)}"
            number: Any = client.zcount(key, after, "+inf")
            members: Any = client.zrangebyscore(key, after, "+inf", start=0, num=most, withscores=True)
        pairs = [(text(member).partition(" "), int(until)) for member, until in members]
        found = [LoggedBan(subject, rule, until) for (subject, _, rule), until in pairs]
    elif store.database is not None:
        number, found = EventTable(store.database, system_key(prefix, "events")).bans(clock.now(), most)
    else:
        return 0, None
    return number, [ActiveBan(named(ban.subject), named(ban.rule), ban.until) for ban in found]


class RecentBans(NamedTuple):
    """The bans among the newest events."""

    events: list[Event]
    """The newest first."""
    since: int
    """The time of the oldest event that was read, in microseconds; 0 if there is none."""


def recent_bans(wanted: BanFilter) -> RecentBans:
    """Return the bans that began recently, from the events.

    Raises `StoreUnavailable`.
    """
    bans, since = event_log(get_limiter().store, current().prefix).newest_bans(NEWEST_EVENTS)
    return RecentBans([each for each in bans if wanted.fits(each.rule, each.subject)], since)


def read_bans(subjects: Iterable[str | None]) -> tuple[int, dict[BanPair, BanStatus]]:
    """Return the time of the store, and the bans of these subjects that are in force. Raises `StoreUnavailable`."""
    contents, known = contents_of(filter(None, subjects)), known_rules()
    now = max((read.now for read in contents.values()), default=clock.now())
    return now, {(subject, ban.rule): ban for subject, read in contents.items() for ban in read.bans(known)}


def fates(events: Sequence[Event], now: int, in_force: Collection[BanPair]) -> Iterator[Fate]:
    """Yield what became of each ban. `events`: when they began, the newest first. The others: see `read_bans`."""
    later: dict[BanPair, Event] = {}
    for event in events:
        pair = (event.subject, event.rule)
        newer = later.get(pair)
        if None not in pair:
            later[pair] = event
        if event.until <= (newer.at if newer else now):
            yield "ended"
        elif newer:
            yield "replaced"
        else:
            yield "in force" if None in pair or pair in in_force else "lifted"
