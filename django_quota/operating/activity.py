"""Activity, for the overview: what all processes have allowed and refused, who is banned, and which slots are full.

The figures are those that `limiting.metrics` has sent to the store, the index of bans, and the leases of slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.clock import DAY, frozen_now
from django_quota.core.days import day_of
from django_quota.core.errors import StoreRefusesWrites
from django_quota.core.keys import named, part_base, system_key
from django_quota.engine.operations import text
from django_quota.engine.subject_operations import ReadDays
from django_quota.engine.system_operations import FIELDS, OTHER, OUTAGES
from django_quota.features.event_stream import PAGE, newest_events
from django_quota.limiting.metrics import MINUTE, OTHER_LABEL
from django_quota.limiting.registry import get_limiter
from django_quota.stores.base import Store
from django_quota.stores.database.log import EventTable
from django_quota.stores.scanning import Walk, time_of

if TYPE_CHECKING:
    from django_quota.stores.redis.store import RedisStore

MINUTES = 60
"""Minutes that the overview shows, up to now."""

RULES = 50
"""Rules that are listed one by one, those with most checks today. The others are summed up."""

SUBJECTS = 20
"""Subjects that are listed, those that were refused most."""

BANS = 50
"""Bans that are listed, those that end first."""

MAX_SLOTS_READ = 200
"""Slots that are read, those that were asked for last."""

SLOTS = 20
"""Slots that the overview lists, the fullest first."""


class Minute(NamedTuple):
    """What a rule decided in one minute."""

    allowed: int = 0
    refused: int = 0
    """With a shadow rule, refusals that were let through."""


@dataclass(slots=True)
class RuleActivity:
    """What a rule has decided today and in the last hour."""

    part: str
    """The rule's name as hash fields hold it; `OTHER` for the rules that are summed up."""
    allowed: int = 0
    refused: int = 0
    shadowed: int = 0
    """What a shadow rule would have refused, and let through."""
    minutes: list[Minute] = field(default_factory=list)
    """The last `MINUTES`, the oldest first; empty for the rules that are summed up."""
    rate: float = 0.0
    """Checks a minute now: those of this minute, and the share of the last minute that is less than 60 s ago."""

    @property
    def rule(self) -> str | None:
        """Its name; None if only a digest is known, or for the rules that are summed up."""
        return None if self.is_rest else named(self.part)

    @property
    def is_rest(self) -> bool:
        """Whether this is the sum of the rules that are not listed."""
        return self.part == OTHER

    @property
    def label(self) -> str:
        """What exporters call it: its name, the digest of a long name, or "other" for those that are summed up."""
        return OTHER_LABEL if self.is_rest else self.rule or self.part

    @property
    def fields(self) -> list[str]:
        """Its fields in the hashes of a day and of a minute, for the counts above zero."""
        counts = {":a": self.allowed, ":r": self.refused, ":s": self.shadowed}
        return [f"{self.part}{suffix}" for suffix, count in counts.items() if count]

    @property
    def total(self) -> int:
        """All checks of today."""
        return self.allowed + self.refused + self.shadowed


@dataclass(frozen=True, slots=True)
class RefusedSubject:
    """A subject that was refused today, and how often."""

    subject: str | None
    """None if the name is so long that only a digest is known."""
    count: int


@dataclass(frozen=True, slots=True)
class ActiveBan:
    """A ban: its subject, its rule, and its end in microseconds."""

    subject: str | None
    rule: str | None
    until: int


@dataclass(frozen=True, slots=True)
class SlotUse:
    """How many callers hold a slot, and how many may."""

    subject: str | None
    name: str | None
    held: int
    limit: int

    @property
    def label(self) -> str:
        """What exporters call it: its name, or "other" if that is so long that only a digest is known."""
        return self.name or OTHER_LABEL

    @property
    def is_full(self) -> bool:
        """Whether all places are taken."""
        return self.held >= self.limit


class DayTotal(NamedTuple):
    """All checks of a day, without those that a shadow rule would have refused."""

    allowed: int = 0
    refused: int = 0

    @classmethod
    def of(cls, rules: Sequence[RuleActivity]) -> DayTotal:
        """Return the total of what all rules decided that day."""
        return cls(sum(rule.allowed for rule in rules), sum(rule.refused for rule in rules))

    @property
    def checks(self) -> int:
        """All of them."""
        return self.allowed + self.refused

    @property
    def refused_share(self) -> float | None:
        """Percent that were refused; None without checks."""
        return 100 * self.refused / self.checks if self.checks else None


@dataclass(slots=True)
class Activity:
    """All figures at one moment of the store's clock."""

    now: int
    """Microseconds since 1970."""
    day: date
    rules: list[RuleActivity] = field(default_factory=list)
    """Those with most checks today first."""
    today: DayTotal = field(default_factory=DayTotal)
    yesterday: DayTotal = field(default_factory=DayTotal)
    refused: list[RefusedSubject] = field(default_factory=list)
    bans: list[ActiveBan] | None = field(default_factory=list)
    """None for the memory store, which has no index of bans."""
    banned: int = 0
    """The number of bans."""
    slots: list[SlotUse] = field(default_factory=list)
    """The fullest first."""

    @property
    def fullest_slots(self) -> list[SlotUse]:
        """The slots that the overview lists."""
        return self.slots[:SLOTS]


class RunningTotals(NamedTuple):
    """What all processes have decided since the site was set up, or since Redis last lost its memory."""

    rules: list[RuleActivity]
    """Only the totals of each. Rules that came after too many others are summed up, so no total ever falls."""
    outages: int
    """Outages of the store, as each process has seen them: with four workers, an outage counts four times."""
    banned: int
    """The number of bans now; 0 for the memory store, which has no index of bans."""
    slots: list[SlotUse]


def activity() -> Activity:
    """Send this process's own metrics, then read all figures.

    Raises `StoreUnavailable` if the store does not answer.
    """
    store = _store_with_metrics_sent()
    found, counts = _read(store, None)
    found.rules = _rules(counts)
    found.today = DayTotal.of(found.rules)
    _add_minutes(store, found)
    return found


def running_totals() -> RunningTotals:
    """Send this process's own metrics, then read the totals, and the bans and slots of now.

    Raises `StoreUnavailable` if the store does not answer.
    """
    found, counts = _read(_store_with_metrics_sent(), "totals")
    return RunningTotals(_rules(counts, FIELDS), counts.get(OUTAGES, 0), found.banned, found.slots)


def subjects_seen(days: int = 1) -> list[str]:
    """Return the subjects that the store knows by name: first those refused most today, then those of the last events.

    `days`: how many days to look at, up to today. Raises `StoreUnavailable` if the store does not answer.
    """
    store = _store_with_metrics_sent()
    found: list[str | None] = []
    if store.redis is not None:
        with store.redis.commands() as client:
            for key in _refused_keys(frozen_now() or time_of(client), days):
                subjects: Any = client.zrevrange(key, 0, -1)
                found += [named(text(subject)) for subject in subjects]
    else:
        for counts in _hashes(store, _refused_keys(clock.now(), days)):
            found += map(named, sorted(counts, key=lambda subject: -counts[subject]))
    found += [event.subject for event in newest_events(store, current().prefix, PAGE)]
    return list(dict.fromkeys(filter(None, found)))


def _refused_keys(now: int, days: int) -> list[str]:
    return [_at(now - ago * DAY, None)[2] for ago in range(days)]


def bans_in_force(most: int = PAGE) -> tuple[int, list[ActiveBan] | None]:
    """Return how many bans are in force, and those that end first; 0 and None for the memory store, without an index.

    Raises `StoreUnavailable` if the store does not answer.
    """
    store = get_limiter().store
    if store.redis is not None:
        with store.redis.commands() as client:
            after = f"({frozen_now() or time_of(client)}"
            number: Any = client.zcount(_key("bans"), after, "+inf")
            bans: Any = client.zrangebyscore(_key("bans"), after, "+inf", start=0, num=most, withscores=True)
        return number, [_ban(text(member), int(stop)) for member, stop in bans]
    if store.database is None:
        return 0, None
    total, rows = EventTable(store.database, _key("events")).bans(clock.now(), most)
    return total, [ActiveBan(named(ban.subject), named(ban.rule), ban.until) for ban in rows]


def _store_with_metrics_sent() -> Store:
    """Send what this process has counted; return its store."""
    limiter = get_limiter()
    if limiter.metrics is not None:
        with suppress(StoreRefusesWrites):  # the store can still be read, and `health` reports this
            limiter.metrics.flush()
    return limiter.store


# --- of a store -------------------------------------------------------------------------------------------------------


def _read(store: Store, what: str | None) -> tuple[Activity, dict[str, int]]:
    """Return all figures except those of rules, and the counts of the rules: today's, or those under `what`."""
    redis = store.redis
    if redis is None:
        return _read_by_operations(store, what)
    with redis.commands() as client:
        found, counts, refused = _at(frozen_now() or time_of(client), what)
        after = f"({found.now}"
        with client.pipeline(transaction=False) as lent:
            pipeline: Any = lent  # redis-py leaves it untyped
            pipeline.hgetall(counts)
            pipeline.hgetall(_day_before(found.day))
            pipeline.zrevrange(refused, 0, SUBJECTS - 1, withscores=True)
            pipeline.zcount(_key("bans"), after, "+inf")
            pipeline.zrangebyscore(_key("bans"), after, "+inf", start=0, num=BANS, withscores=True)
            pipeline.zrevrangebyscore(_key("slots"), "+inf", after, start=0, num=MAX_SLOTS_READ)
            counted, before, most_refused, found.banned, bans, slots = pipeline.execute()
    found.yesterday = DayTotal.of(_rules(_counts(before)))
    found.refused = [RefusedSubject(named(text(subject)), int(count)) for subject, count in most_refused]
    found.bans = [_ban(text(member), int(stop)) for member, stop in bans]
    found.slots = _slots(redis, [text(slot) for slot in slots], after)
    return found, _counts(counted)


def _counts(reply: Mapping[Any, Any]) -> dict[str, int]:
    return {text(name): int(count) for name, count in reply.items()}


def _day_before(day: date) -> str:
    """Return the key of the counts of the day before."""
    return _key(f"metrics:{(day - timedelta(days=1)).isoformat()}")


def _read_by_operations(store: Store, what: str | None) -> tuple[Activity, dict[str, int]]:
    """Return the figures of a store that is no Redis; see `_read`."""
    found, *keys = _at(clock.now(), what)
    found.banned, found.bans = bans_in_force(BANS)
    counts, refused, slots, before = _hashes(store, [*keys, _key("slots"), _day_before(found.day)])
    found.yesterday = DayTotal.of(_rules(before))
    most = sorted(refused.items(), key=lambda pair: -pair[1])[:SUBJECTS]
    found.refused = [RefusedSubject(named(subject), count) for subject, count in most]
    for slot in [slot for slot, stop in slots.items() if stop > found.now][:MAX_SLOTS_READ]:
        (ends,) = _hashes(store, [_leases_key(slot)])
        found.slots.append(_slot_use(slot, sum(stop > found.now for stop in ends.values())))
    found.slots.sort(key=_emptiness)
    return found, counts


def _at(now: int, what: str | None) -> tuple[Activity, str, str]:
    """Return the activity at a moment, still empty, and the keys of the counts and of who was refused that day."""
    day = day_of(now, current().time_zone).date
    return Activity(now, day), _key(what or f"metrics:{day.isoformat()}"), _key(f"refused:{day.isoformat()}")


def _slots(store: RedisStore, slots: Sequence[str], after: str) -> list[SlotUse]:
    """Return how slots are used. Those on a server of a Cluster that does not answer are left out."""
    counts: dict[str, int] = {}
    walk = Walk(store)
    for server, keys in store.by_server(map(_leases_key, slots)).items():
        with walk.past(), store.commands(server) as client, client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.zcount(key, after, "+inf")
            counts.update(zip(keys, pipeline.execute(), strict=True))
    known = [(slot, counts[key]) for slot in slots if (key := _leases_key(slot)) in counts]
    return sorted((_slot_use(slot, held) for slot, held in known), key=_emptiness)


def _add_minutes(store: Store, found: Activity) -> None:
    """Add what the listed rules decided in each minute, and their rates."""
    listed = [rule for rule in found.rules if not rule.is_rest]
    fields = [name for rule in listed for name in rule.fields]
    last = found.now // MINUTE
    keys = [_key(f"metrics:{minute}") for minute in range(last - MINUTES + 1, last + 1)]
    if not fields:
        return
    if store.redis is not None:
        with store.redis.commands() as client, client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.hmget(key, fields)
            minutes = [dict(zip(fields, map(_whole, row), strict=True)) for row in pipeline.execute()]
    else:
        minutes = _hashes(store, keys)
    part_of_last = 1 - found.now % MINUTE / MINUTE
    for rule in listed:
        a, r, s = (f"{rule.part}{suffix}" for suffix in (":a", ":r", ":s"))
        rule.minutes = [Minute(each.get(a, 0), each.get(r, 0) + each.get(s, 0)) for each in minutes]
        before, this = sum(rule.minutes[-2]), sum(rule.minutes[-1])
        rule.rate = this + before * part_of_last


def _hashes(store: Store, keys: Sequence[str]) -> list[dict[str, int]]:
    reply = store.run(ReadDays(keys), frozen_now())
    return [dict(zip(flat[::2], map(int, flat[1::2]), strict=True)) for flat in reply]


# --- what the figures say ---------------------------------------------------------------------------------------------


def _key(what: str) -> str:
    return system_key(current().prefix, what)


def _whole(value: str | bytes | None) -> int:
    return int(value or 0)


def _rules(counts: Mapping[str, int], most: int = RULES) -> list[RuleActivity]:
    """Return the rules of a hash, those with most checks first, and the others summed up."""
    rules: dict[str, RuleActivity] = {}
    for name, count in counts.items():
        part, _, kind = name.rpartition(":")
        if name == OUTAGES:
            continue
        rule = rules.setdefault(part, RuleActivity(part))
        if kind == "a":
            rule.allowed = count
        elif kind == "r":
            rule.refused = count
        else:
            rule.shadowed = count
    rest = rules.pop(OTHER, RuleActivity(OTHER))
    order = sorted(rules.values(), key=lambda rule: (-rule.total, rule.part))
    for rule in order[most:]:
        rest.allowed += rule.allowed
        rest.refused += rule.refused
        rest.shadowed += rule.shadowed
    return [*order[:most], *([rest] if rest.total else [])]


def _ban(member: str, until: int) -> ActiveBan:
    subject, _, rule = member.partition(" ")
    return ActiveBan(named(subject), named(rule), until)


def _leases_key(slot: str) -> str:
    """Return the key of a slot's leases."""
    subject, name, _ = slot.split(" ")
    return f"{part_base(current().prefix, subject)}}}:l:{name}"  # both names are escaped already


def _slot_use(slot: str, held: int) -> SlotUse:
    subject, name, limit = slot.split(" ")
    return SlotUse(named(subject), named(name), held, int(limit))


def _emptiness(use: SlotUse) -> tuple[float, str]:
    """Sort the fullest slots first."""
    return -use.held / use.limit, use.name or ""
