"""The bans of all subjects, for the admin: those in force, found by subject and rule, and those that began lately."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.clock import SECOND
from django_quota.features.event_stream import Event, newest_events
from django_quota.limiting.known_rules import known_rules
from django_quota.limiting.registry import get_limiter
from django_quota.operating.activity import ActiveBan, bans_in_force
from django_quota.operating.inspection import BanStatus, Contents, contents_of
from django_quota.operating.lookup import is_bare, parts_of

MOST = 10_000
"""Bans that are looked at, those that end first."""

EVENTS = 5_000
"""Events that are looked at, the newest."""

Fate = Literal["in force", "ended", "lifted", "replaced"]
"""What became of a ban. A newer ban of the same subject and rule replaces it, also one that only lasts longer."""


class BanFilter(NamedTuple):
    """Whose bans, and from which rule."""

    subjects: Sequence[str] = ()
    """These, also together with others. A word that is no subject stands for those that contain it. Empty: all."""
    rule: str = ""
    """Empty: all."""

    def fits(self, subject: str | None, rule: str | None) -> bool:
        """Say whether a ban is meant."""
        name = subject or ""
        parts = {name, *parts_of(name)}
        is_meant = not self.subjects or any(each in (name if is_bare(each) else parts) for each in self.subjects)
        return is_meant and self.rule in ("", rule)


class BanList(NamedTuple):
    """The bans in force that a filter means, the first to end first."""

    bans: list[ActiveBan]
    rules: list[str]
    """The rules of all bans that were looked at."""
    total: int
    """The number of bans; above `MOST`, not all were looked at."""


def find_bans(wanted: BanFilter) -> BanList:
    """Return the bans that a filter means.

    The store's list of bans has them. The memory store has none, nor does a store without events: then only the bans
    of the subjects of the filter are found. Raises `StoreUnavailable`.
    """
    total, listed = bans_in_force(MOST) if current().events else (0, None)
    found = {(ban.subject, ban.rule): ban for ban in listed or () if wanted.fits(ban.subject, ban.rule)}
    for subject, contents in contents_of(wanted.subjects).items():
        for ban in contents.bans(known_rules()):
            if wanted.rule in ("", ban.rule):
                until = contents.now + round(ban.ends_in * SECOND)
                found.setdefault((subject, ban.rule), ActiveBan(subject, ban.rule, until))
    rules = sorted({ban.rule for ban in listed or () if ban.rule})
    return BanList(sorted(found.values(), key=lambda ban: ban.until), rules, total)


class BansLately(NamedTuple):
    """The bans among the newest events."""

    events: list[Event]
    """The newest first."""
    since: int
    """The time of the oldest event that was looked at, in microseconds; 0 if there is none."""


def bans_lately(wanted: BanFilter) -> BansLately:
    """Return the bans that began lately, as far as events tell; none of a store that keeps none.

    Raises `StoreUnavailable`.
    """
    events = newest_events(get_limiter().store, current().prefix, EVENTS)
    began = [each for each in events if each.kind == "banned" and wanted.fits(each.subject, each.rule)]
    return BansLately(began, events[-1].at if events else 0)


def status_in(contents: Mapping[str, Contents], subject: str | None, rule: str | None) -> BanStatus | None:
    """Return the ban of a subject under a rule, from what `contents_of` has read; None if there is none."""
    read = contents.get(subject or "")
    return next((ban for ban in read.bans(known_rules()) if ban.rule == rule), None) if read else None


def fates(events: Sequence[Event], contents: Mapping[str, Contents]) -> Iterator[Fate]:
    """Yield what became of bans that began, given as events, the newest first. `contents`: of their subjects."""
    later: dict[tuple[str | None, str | None], Event] = {}
    for event in events:
        pair = (event.subject, event.rule)
        newer = later.get(pair)
        later[pair] = event
        read = contents.get(event.subject or "")
        now = read.now if read else clock.now()
        if event.until <= (newer.at if newer else now):
            yield "ended"
        elif newer:
            yield "replaced"
        else:
            yield "in force" if None in pair or status_in(contents, *pair) else "lifted"
