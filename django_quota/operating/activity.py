"""Activity, for the overview: what all processes have allowed and refused, who is banned, and which slots are full.

The figures are those that `limiting.metrics` has sent to the store, the index of bans, and the leases of slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any, NamedTuple

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.algorithms.calendar import day_of
from django_quota.core.clock import frozen_now
from django_quota.core.errors import StoreRefusesWrites
from django_quota.core.keys import named, part_base, system_key
from django_quota.engine.operations import text
from django_quota.engine.system_operations import FIELD_ENDS, FIELDS, OTHER, OUTAGES, SPENT_END
from django_quota.features.bans import ActiveBan, bans_in_force
from django_quota.features.events import EVENTS_A_PAGE, newest_events
from django_quota.features.usage.days import ReadDays
from django_quota.limiting.metrics import MINUTE, OTHER_LABEL
from django_quota.limiting.registry import get_limiter
from django_quota.stores.base import Store
from django_quota.stores.scanning import Walk, time_of

MINUTES = 60
"""Minutes that the overview shows, up to now."""

RULES = 50
"""How many rules are listed one by one: those with most checks today. The others are summed up."""

SUBJECTS_SHOWN = 20
"""How many subjects are listed: those that were refused most."""

BANS = 50
"""How many bans are listed: those that end first."""

MAX_SLOTS_READ = 200
"""How many slots are read: those that were asked for last."""

SLOTS_SHOWN = 20
"""How many slots the overview lists, the fullest first."""


class Minute(NamedTuple):
    """What a rule decided in one minute."""

    allowed: int = 0
    refused: int = 0
    """With a shadow rule, hits that were let through although the limit was reached."""


@dataclass(slots=True)
class RuleActivity:
    """What a rule has decided today and in the last hour."""

    part: str
    """The rule's name as hash fields hold it; `OTHER` for the rules that are summed up."""
    allowed: int = 0
    refused: int = 0
    shadowed: int = 0
    """What a shadow rule let through although the limit was reached."""
    spent: int = 0
    """What was allowed without a call to the store, since it was taken ahead; see `prefetch`."""
    minutes: list[Minute] = field(default_factory=list)
    """The last `MINUTES`, the oldest first; empty for the rules that are summed up."""
    rate: float = 0.0
    """Checks in the last 60 s: all of this minute, and the share of the minute before that is recent enough."""

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
    def total(self) -> int:
        return self.allowed + self.refused + self.shadowed

    @property
    def fields(self) -> list[str]:
        """The fields of what it allowed, refused, shadowed and spent."""
        return [self.part + end for end in (*FIELD_ENDS.values(), SPENT_END)]

    def add(self, counts: Mapping[str, int]) -> None:
        """Add counts, by the letter of their field."""
        self.allowed += counts.get("a", 0) + counts.get("p", 0)
        self.spent += counts.get("p", 0)
        self.refused += counts.get("r", 0)
        self.shadowed += counts.get("s", 0)


@dataclass(frozen=True, slots=True)
class RefusedSubject:
    """A subject that was refused today, and how often."""

    subject: str | None
    """None if the name is so long that only a digest is known."""
    count: int


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
        """Whether as many callers hold it as may."""
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
        return self.allowed + self.refused

    @property
    def refused_share(self) -> float | None:
        """Percent that were refused; None without checks."""
        return 100 * self.refused / self.checks if self.checks else None


@dataclass(frozen=True, slots=True)
class Activity:
    """All figures at one moment of the store's clock."""

    now: int
    """Microseconds since 1970."""
    day: date
    rules: list[RuleActivity]
    """The rules with most checks today first."""
    today: DayTotal
    yesterday: DayTotal
    refused: list[RefusedSubject]
    bans: list[ActiveBan] | None
    """None for the memory store, which has no index of bans."""
    banned: int
    """The number of bans."""
    slots: list[SlotUse]
    """The fullest first."""

    @property
    def fullest_slots(self) -> list[SlotUse]:
        """The slots that the overview lists."""
        return self.slots[:SLOTS_SHOWN]


class RunningTotals(NamedTuple):
    """What all processes have decided since the site was set up, or since the store last lost its data."""

    rules: list[RuleActivity]
    """Only the totals of each. Rules that come after too many others are summed up, so no total ever falls."""
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
    now = _now(store)
    day = day_of(now, current().time_zone).date
    counts, before = _hashes(store, [f"metrics:{day}", f"metrics:{day - timedelta(days=1)}"])
    rules = _rules(counts)
    _add_minutes(store, now, [rule for rule in rules if not rule.is_rest])
    banned, bans = bans_in_force(BANS)
    return Activity(
        now,
        day,
        rules,
        DayTotal.of(rules),
        DayTotal.of(_rules(before)),
        [RefusedSubject(named(subject), count) for subject, count in highest(store, f"refused:{day}", SUBJECTS_SHOWN)],
        bans,
        banned,
        _slots(store, now),
    )


def running_totals() -> RunningTotals:
    """Send this process's own metrics, then read the totals, and the bans and slots of now.

    Raises `StoreUnavailable` if the store does not answer.
    """
    store = _store_with_metrics_sent()
    (counts,) = _hashes(store, ["totals"])
    banned, _ = bans_in_force(1)
    return RunningTotals(_rules(counts, FIELDS), counts.get(OUTAGES, 0), banned, _slots(store, _now(store)))


def subjects_seen(days: int = 1) -> list[str]:
    """Return the subjects that the store knows by name: first those refused most today, then those of the last events.

    `days`: how many days to look at, up to today. Raises `StoreUnavailable` if the store does not answer.
    """
    store = _store_with_metrics_sent()
    today = day_of(_now(store), current().time_zone).date
    found: list[str | None] = []
    for ago in range(days):
        found += [named(subject) for subject, _ in highest(store, f"refused:{today - timedelta(days=ago)}")]
    found += [event.subject for event in newest_events(store, current().prefix, EVENTS_A_PAGE)]
    return list(dict.fromkeys(filter(None, found)))


def highest(store: Store, what: str, most: int = 0) -> list[tuple[str, int]]:
    """Return the members of a sorted set of the whole site with the highest scores; all if `most` is 0."""
    if store.redis is not None:
        with store.redis.commands() as client:
            found: Any = client.zrevrange(_key(what), 0, most - 1, withscores=True)
        return [(text(member), int(score)) for member, score in found]
    (scores,) = _hashes(store, [what])
    return sorted(scores.items(), key=lambda pair: -pair[1])[: most or None]


def _store_with_metrics_sent() -> Store:
    """Send what this process has counted; return its store."""
    limiter = get_limiter()
    with suppress(StoreRefusesWrites):  # the store can still be read, and `health` reports this
        limiter.metrics.flush()
    return limiter.store


def _now(store: Store) -> int:
    if store.redis is None:
        return clock.now()
    with store.redis.commands() as client:
        return frozen_now() or time_of(client)


def _key(what: str) -> str:
    return system_key(current().prefix, what)


def _hashes(store: Store, names: Sequence[str]) -> list[dict[str, int]]:
    return _read(store, list(map(_key, names)))


def _read(store: Store, keys: Sequence[str]) -> list[dict[str, int]]:
    """Return hashes of one subject, or of the site."""
    reply = store.run(ReadDays(keys), frozen_now())
    return [dict(zip(map(text, flat[::2]), map(int, flat[1::2]), strict=True)) for flat in reply]


def _add_minutes(store: Store, now: int, rules: Sequence[RuleActivity]) -> None:
    """Add what these rules decided in each minute, and their rates."""
    fields = [name for rule in rules for name in rule.fields]
    last = now // MINUTE
    names = [f"metrics:{minute}" for minute in range(last - MINUTES + 1, last + 1)]
    if not fields:
        return
    if store.redis is not None:  # Redis sends only the fields of the listed rules
        with store.redis.commands() as client, client.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.hmget(_key(name), fields)
            minutes = [dict(zip(fields, (int(value or 0) for value in row), strict=True)) for row in pipeline.execute()]
    else:
        minutes = _hashes(store, names)
    for rule in rules:
        a, r, s, p = rule.fields
        rule.minutes = [Minute(each.get(a, 0) + each.get(p, 0), each.get(r, 0) + each.get(s, 0)) for each in minutes]
        rule.rate = sum(rule.minutes[-1]) + sum(rule.minutes[-2]) * (1 - now % MINUTE / MINUTE)


def _rules(counts: Mapping[str, int], most: int = RULES) -> list[RuleActivity]:
    """Return the rules of a hash, those with most checks first, and the others summed up."""
    rules: dict[str, RuleActivity] = {}
    for name, count in counts.items():
        part, _, kind = name.rpartition(":")
        if name != OUTAGES:
            rules.setdefault(part, RuleActivity(part)).add({kind: count})
    rest = rules.pop(OTHER, RuleActivity(OTHER))
    order = sorted(rules.values(), key=lambda rule: (-rule.total, rule.part))
    for rule in order[most:]:
        rest.add({"a": rule.allowed - rule.spent, "p": rule.spent, "r": rule.refused, "s": rule.shadowed})
    return [*order[:most], *([rest] if rest.total else [])]


def _holders(client: Any, keys: Sequence[str], now: int) -> Iterator[tuple[str, int]]:
    """Yield how many hold each slot, by the key of its leases; none for a key with data of another program."""
    with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.zcount(key, f"({now}", "+inf")
        replies = pipeline.execute(raise_on_error=False)
    for key, reply in zip(keys, replies, strict=True):
        if not isinstance(reply, Exception):
            yield key, reply
        elif "WRONGTYPE" not in str(reply):
            raise reply


def _slots(store: Store, now: int) -> list[SlotUse]:
    """Return how slots are used, the fullest first. Slots on a silent server of a Cluster are left out."""
    keys = {}
    for slot, until in highest(store, "slots", MAX_SLOTS_READ):
        subject, name, _ = slot.split(" ")
        if until > now:
            keys[slot] = f"{part_base(current().prefix, subject)}}}:l:{name}"  # both names are escaped already
    held: dict[str, int] = {}
    if store.redis is None:
        held = {key: sum(end > now for end in _read(store, [key])[0].values()) for key in keys.values()}
    else:
        walk = Walk(store)
        for server, its_keys in store.redis.by_server(keys.values()).items():
            with walk.part(), store.redis.commands(server) as client:
                held.update(_holders(client, its_keys, now))
    found = []
    for slot, key in keys.items():
        subject, name, limit = slot.split(" ")
        if key in held:
            found.append(SlotUse(named(subject), named(name), held[key], int(limit)))
    return sorted(found, key=lambda use: (-use.held / use.limit, use.name or ""))
