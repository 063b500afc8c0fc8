"""Activity: what all processes have allowed and refused, whom, who is banned, which slots are full. It only reads.

The figures come from what `tallies` has carried to the store, and from the index of bans. They are read in two trips,
whatever they hold; on a Cluster, slots in one more for each server. It must not know how they are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, NamedTuple

from django_quota.clock import SECOND, frozen_now
from django_quota.conf import current
from django_quota.days import day_of
from django_quota.exceptions import StoreUnavailable
from django_quota.keys import named, subject_base, system_key
from django_quota.limiter import get_limiter
from django_quota.operations.base import text
from django_quota.operations.tallies import OTHER
from django_quota.operations.usage import ReadDays
from django_quota.stores.base import Store
from django_quota.stores.memory import MemoryStore
from django_quota.stores.redis import RedisStore
from django_quota.stores.walking import Walk
from django_quota.tallies import MINUTE

MINUTES = 60
"""Minutes that are looked back upon."""

RULES = 50
"""Rules that are told apart, those with most checks today; the rest are counted together."""

SUBJECTS = 20
"""Subjects that are named, those that were refused most."""

BANS = 50
"""Bans that are named, those that end first."""

SLOTS_LOOKED_AT = 200
SLOTS = 20
"""Slots that are named, the fullest first, of those that were asked for last."""


class Minute(NamedTuple):
    """What a rule decided in a minute."""

    allowed: int = 0
    refused: int = 0
    """By a shadow rule: let through all the same."""


@dataclass(slots=True)
class RuleActivity:
    """What a rule has decided today and in the last hour."""

    part: str
    """Its name as fields of hashes have it; `OTHER` for all rules that are not told apart."""
    allowed: int = 0
    refused: int = 0
    shadowed: int = 0
    """What it would have refused, were it not a shadow rule; it was let through."""
    minutes: list[Minute] = field(default_factory=list)
    """The last `MINUTES`, the oldest first; empty for the rest of the rules."""
    rate: float = 0.0
    """Checks a minute now: those of this minute, and the part of the last one that is less than a minute ago."""

    @property
    def rule(self) -> str | None:
        """Its name; None where only a digest is known, or where it stands for several."""
        return None if self.is_rest else named(self.part)

    @property
    def is_rest(self) -> bool:
        """Whether it stands for all rules that are not told apart."""
        return self.part == OTHER

    @property
    def fields(self) -> list[str]:
        """Its fields in the hashes of a day and of a minute, where there is anything in them."""
        counts = {":a": self.allowed, ":r": self.refused, ":s": self.shadowed}
        return [f"{self.part}{suffix}" for suffix, count in counts.items() if count]

    @property
    def total(self) -> int:
        """All checks of today."""
        return self.allowed + self.refused + self.shadowed


@dataclass(frozen=True, slots=True)
class RefusedSubject:
    """Who was refused, and how often today."""

    subject: str | None
    """None where the name is so long that only its digest is known."""
    count: int


@dataclass(frozen=True, slots=True)
class ActiveBan:
    """Who is banned from what, and until when (microseconds)."""

    subject: str | None
    rule: str | None
    until: int


@dataclass(frozen=True, slots=True)
class SlotUse:
    """How many hold a slot, of how many, and how many wait for one."""

    subject: str | None
    name: str | None
    held: int
    limit: int
    waiting: int

    @property
    def is_full(self) -> bool:
        """Whether nobody else gets in."""
        return self.held >= self.limit


@dataclass(slots=True)
class Activity:
    """All of it, at one moment of the store's clock."""

    now: int
    """Microseconds since 1970."""
    day: date
    rules: list[RuleActivity] = field(default_factory=list)
    """Those with most checks today first."""
    refused: list[RefusedSubject] = field(default_factory=list)
    bans: list[ActiveBan] | None = field(default_factory=list)
    """None where the store keeps no index of them: the memory store."""
    banned: int = 0
    """How many bans there are."""
    slots: list[SlotUse] = field(default_factory=list)


def activity() -> Activity:
    """Read it, this process's own tally included, where the store takes changes.

    Raises `StoreUnavailable` where it does not answer.
    """
    limiter = get_limiter()
    if limiter.tally is not None:
        try:
            limiter.tally.flush()
        except StoreUnavailable as error:
            if not error.only_writes:  # full, or a replica: it can be read, and `health` tells of it
                raise
    now = frozen_now() or MemoryStore.now()
    if not isinstance(limiter.store, RedisStore):
        return _of_memory(limiter.store, now)
    found = _of_redis(limiter.store, now)
    is_same_day = found.day == day_of(found.now).date
    return found if is_same_day else _of_redis(limiter.store, found.now)  # our clock is off, around midnight


# --- of a store -------------------------------------------------------------------------------------------------------


def _of_redis(store: RedisStore, guess: int) -> Activity:
    """Read Redis, in two trips; `guess`: what time it is there."""
    prefix, day = current().prefix, day_of(guess).date
    after = f"({guess}"
    with store.commands() as client, client.pipeline(transaction=False) as lent:
        pipeline: Any = lent  # redis-py leaves it untyped
        pipeline.time()
        pipeline.hgetall(system_key(prefix, f"tally:{day.isoformat()}"))
        pipeline.zrevrange(system_key(prefix, f"refused:{day.isoformat()}"), 0, SUBJECTS - 1, withscores=True)
        pipeline.zcount(system_key(prefix, "bans"), after, "+inf")
        pipeline.zrangebyscore(system_key(prefix, "bans"), after, "+inf", start=0, num=BANS, withscores=True)
        pipeline.zrevrangebyscore(system_key(prefix, "slots"), "+inf", after, start=0, num=SLOTS_LOOKED_AT)
        clock, counts, refused, banned, bans, slots = pipeline.execute()
    found = Activity(frozen_now() or int(clock[0]) * SECOND + int(clock[1]), day, banned=int(banned))
    found.rules = _rules({text(name): int(count) for name, count in counts.items()})
    found.refused = [RefusedSubject(named(text(subject)), int(count)) for subject, count in refused]
    found.bans = [_ban(text(member), int(stop)) for member, stop in bans]
    _read_more(store, found, [text(slot) for slot in slots])
    return found


def _read_more(store: RedisStore, found: Activity, slots: Sequence[str]) -> None:
    """Read the minutes of the rules that are told apart, and how the slots are held."""
    prefix, after = current().prefix, f"({found.now}"
    fields = [name for rule in found.rules if not rule.is_rest for name in rule.fields]
    minutes = _minutes(found.now) if fields else ()
    if not minutes and not slots:
        return
    tallies = [system_key(prefix, f"tally:{minute}") for minute in minutes]
    places = [key for slot in slots for key in _slot_keys(slot)]
    replies: dict[str, Any] = {}
    walk = Walk(store)
    for server, keys in store.by_server([*tallies, *places]).items():
        # A server of a Cluster that does not answer leaves out the slots that it has.
        with walk.past(), store.commands(server) as client, client.pipeline(transaction=False) as lent:
            pipeline: Any = lent
            for key in keys:
                if key in tallies:
                    pipeline.hmget(key, fields)
                else:
                    pipeline.zcount(key, after, "+inf")
            replies.update(zip(keys, pipeline.execute(), strict=True))
    nothing = [None] * len(fields)
    _put_minutes(found, [dict(zip(fields, map(_whole, replies.get(key, nothing)), strict=True)) for key in tallies])
    known = [(slot, _slot_keys(slot)) for slot in slots if replies.keys() >= set(_slot_keys(slot))]
    found.slots = _fullest(_slot_use(slot, *(replies[key] for key in keys)) for slot, keys in known)


def _of_memory(store: Store, now: int) -> Activity:
    """Read a store by its operations; it has no index of bans."""
    prefix, day = current().prefix, day_of(now).date

    def read(keys: Iterable[str]) -> list[dict[str, int]]:
        reply = store.run(ReadDays(list(keys)), now)
        return [dict(zip(flat[::2], map(int, flat[1::2]), strict=True)) for flat in reply]

    today = day.isoformat()
    counts, refused, slots = read(system_key(prefix, what) for what in (f"tally:{today}", f"refused:{today}", "slots"))
    found = Activity(now, day, _rules(counts), bans=None)
    most = sorted(refused.items(), key=lambda pair: -pair[1])[:SUBJECTS]
    found.refused = [RefusedSubject(named(subject), count) for subject, count in most]
    if found.rules:
        _put_minutes(found, read(system_key(prefix, f"tally:{minute}") for minute in _minutes(now)))
    live = [slot for slot, stop in slots.items() if stop > now][:SLOTS_LOOKED_AT]
    held = [[sum(stop > now for stop in ends.values()) for ends in read(_slot_keys(slot))] for slot in live]
    found.slots = _fullest(_slot_use(slot, *counted) for slot, counted in zip(live, held, strict=True))
    return found


# --- what the figures say ---------------------------------------------------------------------------------------------


def _minutes(now: int) -> range:
    """Return the minutes looked back upon, the oldest first."""
    last = now // MINUTE
    return range(last - MINUTES + 1, last + 1)


def _whole(value: str | bytes | None) -> int:
    return int(value or 0)


def _rules(counts: Mapping[str, int]) -> list[RuleActivity]:
    """Return the rules of a day's hash, those with most checks first, and what is left of them as one."""
    rules: dict[str, RuleActivity] = {}
    for name, count in counts.items():
        part, _, kind = name.rpartition(":")
        rule = rules.setdefault(part, RuleActivity(part))
        if kind == "a":
            rule.allowed = count
        elif kind == "r":
            rule.refused = count
        else:
            rule.shadowed = count
    rest = rules.pop(OTHER, RuleActivity(OTHER))
    order = sorted(rules.values(), key=lambda rule: (-rule.total, rule.part))
    for rule in order[RULES:]:
        rest.allowed += rule.allowed
        rest.refused += rule.refused
        rest.shadowed += rule.shadowed
    return [*order[:RULES], *([rest] if rest.total else [])]


def _put_minutes(found: Activity, minutes: Sequence[Mapping[str, int]]) -> None:
    part_of_last = 1 - found.now % MINUTE / MINUTE
    for rule in found.rules:
        if rule.is_rest:
            continue
        a, r, s = (f"{rule.part}{suffix}" for suffix in (":a", ":r", ":s"))
        rule.minutes = [Minute(each.get(a, 0), each.get(r, 0) + each.get(s, 0)) for each in minutes]
        before, this = sum(rule.minutes[-2]), sum(rule.minutes[-1])
        rule.rate = this + before * part_of_last


def _ban(member: str, until: int) -> ActiveBan:
    subject, _, rule = member.partition(" ")
    return ActiveBan(named(subject), named(rule), until)


def _slot_keys(slot: str) -> list[str]:
    """Return the keys of a slot's leases, and of who of those waiting is alive."""
    subject, name, _ = slot.split(" ")
    # Both are as keys have them already.
    base = subject_base(current().prefix, "").removesuffix("}") + subject
    return [f"{base}}}:{kind}:{name}" for kind in ("l", "a")]


def _slot_use(slot: str, held: int, waiting: int) -> SlotUse:
    subject, name, limit = slot.split(" ")
    return SlotUse(named(subject), named(name), int(held), int(limit), int(waiting))


def _fullest(slots: Iterable[SlotUse]) -> list[SlotUse]:
    return sorted(slots, key=lambda use: (-use.held / use.limit, -use.waiting, use.name or ""))[:SLOTS]
