"""Bans: what your code calls to set and lift one, what operators ask about them, and the operations of both.

A ban that your code sets looks like one that a rule with `ban=` sets itself, within the decision that refuses once too
often (`engine/events`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from asgiref.sync import sync_to_async

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.clock import SECOND, frozen_now
from django_quota.core.decisions import Decision
from django_quota.core.errors import RuleError, StoreUnavailable
from django_quota.core.flow import Flow, IOCall, run_async, run_sync
from django_quota.core.keys import escape, field, named, names_by_field, status_key, system_key
from django_quota.core.overrides import ALL_RULES
from django_quota.core.rates import Duration, parse_duration
from django_quota.core.rules import Rule
from django_quota.engine.asks import Ask
from django_quota.engine.events import NO_LOG, AppendEvents, EventLog, EventRecord, lifted_bans
from django_quota.engine.operations import Operation, Script, States, drop_field, fields_of, script, set_field, text
from django_quota.engine.resolving import event_log_of
from django_quota.engine.scatter import Scatter, SlotOf, scatter, write_events
from django_quota.features.authors import Author
from django_quota.features.events import EVENTS_A_PAGE, Event, event_log, iso
from django_quota.features.subject_contents import BanStatus, InspectSubject, contents_of
from django_quota.limiting.api import AnySubject, RuleOrRate, answer_flow, run_call, subject_under_flow
from django_quota.limiting.known_rules import known_rule, known_rules
from django_quota.limiting.registry import get_limiter, store_call
from django_quota.signals import announce, banned
from django_quota.stores.database.log import EventTable, LoggedBan
from django_quota.stores.scanning import time_of
from django_quota.subjects.subject import is_bare, parts_of, subject_of

logger = logging.getLogger("django_quota.bans")


def ban(rule: RuleOrRate, subject: AnySubject, duration: Duration, *, reason: str = "", by: object = None) -> Decision:
    """Ban a subject under a rule from now on; return the refusal that it gets.

    `rule`: the name of a rule in the settings or of a view, or a `Rule`. It needs `ban=`, because checks of other rules
    do not look for bans: block the subject by an override instead. `subject`: a string such as `"ip:203.0.113.9"`, a
    user, or a request, from which the rule's key takes the subject. `duration`: above 0 and up to 366 days. A ban that
    lasts longer already stays as it is; to shorten one, call `unban` first. `reason`, `by`: why, in at most 500
    characters, and who: a user, or the name of a program. The event and the page of bans show both. What a user did is
    also in the admin's log.

    The ban is an event and sends `banned`, the admin and `quota_status` show it, and `unban`, `reset` and the admin
    lift it. The next ban of this subject by the rule lasts for the next duration of `ban=`.

    Raises `RuleError` if an argument is wrong, or if a ban has no effect: under a rule without `ban=`, with
    `shadow=True`, or without a rate. Raises `StoreUnavailable` if the store does not answer.
    """
    return run_call(_ban_flow(rule, subject, duration, Author.of(by, reason)))


async def aban(
    rule: RuleOrRate, subject: AnySubject, duration: Duration, *, reason: str = "", by: object = None
) -> Decision:
    """Ban a subject without blocking the event loop; see `ban`."""
    return await run_async(_ban_flow(rule, subject, duration, Author.of(by, reason)))


def unban(rule: RuleOrRate, subject: AnySubject) -> int:
    """Lift the ban of a subject under a rule, or under all rules: `unban("*", user)`; return how many were in force.

    `rule` and `subject`: see `ban`. What was counted stays, and so do blocks. The next ban lasts for the first duration
    again. Raises `RuleError` and `StoreUnavailable`.
    """
    return run_call(_unban_flow(rule, subject))


async def aunban(rule: RuleOrRate, subject: AnySubject) -> int:
    """Lift bans without blocking the event loop; see `unban`."""
    return await run_async(_unban_flow(rule, subject))


def _ban_flow(given: RuleOrRate, subject: AnySubject, duration: Duration, author: Author) -> Flow[Decision]:
    rule, span = known_rule(given), parse_duration("duration", duration)
    name = yield from subject_under_flow(rule, subject, "a ban")
    if rule.shadow:
        raise RuleError(f"Rule {rule.name!r} is a shadow, which never refuses: a ban would have no effect.")
    if rule.ban is None:
        raise RuleError(
            f"Rule {rule.name!r} has no ban=, so its checks do not look for bans.",
            "Give it ban=, or block the subject by an override: `manage.py quota_override set <subject> blocked`.",
        )
    ask = _ask(rule, name)
    settings = current()
    if not settings.enabled:
        return Decision.without_limit(rule.name, name)
    operation = BanSubject(status_key(settings.prefix, name), field(rule.name), span, rule.ban.durations[-1])
    ends, level = yield store_call(operation)
    answer = yield from answer_flow([ask], "peek")
    decision = answer.decision
    if decision.degraded:
        raise StoreUnavailable("it has not answered since the ban was set")
    if level and settings.events:
        first = decision.outcomes[0]
        event = EventRecord(
            "banned", field(rule.name), escape(name), ends, level, first.of.capacity, first.remaining or 0
        )
        event = event._replace(user=author.subject, reason=author.reason)
        try:
            log = event_log_of(settings.prefix, settings.events, settings.event_days)
            yield store_call(AppendEvents(log, [event]))
        except StoreUnavailable as error:
            logger.warning("The event of a ban could not be written: %s", error)
        yield announce([(banned, {"rule": rule, "subject": name, "decision": decision})])
    if level and author.user is not None:
        what = f"Ban: {rule.name}, until {iso(ends)[:19]}Z"
        yield IOCall(author.log, sync_to_async(author.log), name, what)
    return decision


def _unban_flow(given: RuleOrRate, subject: AnySubject) -> Flow[int]:
    if given == ALL_RULES:
        return (yield from _lift_flow(None, subject_of(subject, "a ban")))
    rule = known_rule(given)
    name = yield from subject_under_flow(rule, subject, "a ban")
    return (yield from _lift_flow([field(rule.name)], name))


def lift_bans(fields: Collection[str] | None, subject: str) -> int:
    """End the bans of a subject; return how many were in force.

    `fields`: the names of their rules (`BanStatus.field`), or None for all. What was counted stays. The next ban is a
    first one again. Raises `StoreUnavailable`.
    """
    return run_sync(_lift_flow(fields, subject))


def _lift_flow(fields: Collection[str] | None, subject: str) -> Flow[int]:
    settings = current()
    key = status_key(settings.prefix, subject)
    if fields is None:
        _, words = yield store_call(InspectSubject(key, []))
        fields = [name.removeprefix("b:") for name in map(text, words[::2]) if name.startswith("b:")]
    lifting = LiftBans(key, list(fields), event_log_of(settings.prefix, settings.events, settings.event_days))
    try:
        return int((yield store_call(lifting)))
    finally:
        get_limiter().refusals.forget([subject])


def _ask(rule: Rule, subject: str) -> Ask:
    """Return an ask whose peek shows the ban. Raises `RuleError` if the rule never asks the store."""
    if rule.dynamic:  # its rates depend on a request; a ban holds whatever they are
        rule = rule.with_rates("1/m")
    if not rule.limits:
        raise RuleError(f"Rule {rule.name!r} has no rate, so it never asks the store: a ban would have no effect.")
    return Ask(rule, subject, 0)


# --- for operators ----------------------------------------------------------------------------------------------------


MOST_BANS = 10_000
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
    """The number of bans in force. Above `MOST_BANS`, not all of them were read."""


def find_bans(wanted: BanFilter) -> BanList:
    """Return the bans that fit a filter.

    They come from the store's list of bans. The memory store has no list, nor does a store without events: there, only
    bans of the filter's subjects are found. Raises `StoreUnavailable`.
    """
    total, listed = bans_in_force(MOST_BANS) if current().events else (0, None)
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
    rules = names_by_field(known_rules()) if any(named(ban.rule) is None for ban in found) else {}
    return number, [ActiveBan(named(ban.subject), rules.get(ban.rule) or named(ban.rule), ban.until) for ban in found]


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


# --- operations -------------------------------------------------------------------------------------------------------


class BanSubject(Operation):
    """Ban a subject under a rule. The reply: see `ban.lua`.

    `rule`: its name, escaped for fields of hashes. `span`, `remembered`: how long the ban lasts, and how long it is
    remembered after its end, in microseconds.
    """

    script: ClassVar[Script] = script("clock", "lifetimes", "features/ban")

    def __init__(self, status_key: str, rule: str, span: int, remembered: int) -> None:
        super().__init__([status_key], rule, span, remembered)

    def run(self, states: States, now: int) -> list[int]:
        (status_key,), (rule, span, kept) = self.keys, self.arguments()
        name = f"b:{rule}"
        ends, level, remembered = map(int, fields_of(states, status_key).get(name, "0 0 0").split(" "))
        stop = now + span
        if ends >= stop:
            return [ends, 0]
        if ends <= now:
            level = level + 1 if remembered > now else 1
        set_field(states, status_key, name, f"{stop} {level} {stop + kept}", stop + kept)
        return [stop, level]


class LiftBans(Operation):
    """End the bans of a subject under these rules. The reply is how many bans were in force.

    `rules`: their names, escaped for fields of hashes.
    """

    script: ClassVar[Script] = script("clock", "lifetimes", "features/lift_bans")

    def __init__(self, status_key: str, rules: Sequence[str], log: EventLog = NO_LOG) -> None:
        super().__init__([status_key] if log is NO_LOG else [status_key, log.bans], *rules)
        self.status_key = status_key
        self.rules = rules
        self.log = log

    def run(self, states: States, now: int) -> int:
        lifted = 0
        for rule in self.rules:
            ban = fields_of(states, self.status_key).get(f"b:{rule}", "0")
            lifted += int(ban.partition(" ")[0]) > now
            drop_field(states, self.status_key, f"b:{rule}")
        return lifted

    def log_keys(self) -> Sequence[str]:
        return self.log.keys

    def lifted(self) -> list[EventRecord]:
        """Return the events that end the bans."""
        return lifted_bans(self.log, ((self.status_key, rule) for rule in self.rules))

    def run_with_events(self, states: States, now: int) -> tuple[int, Sequence[EventRecord]]:
        return self.run(states, now), self.lifted()


@scatter.register
def _lift_bans(operation: LiftBans, slot_of: SlotOf) -> Scatter:  # noqa: ARG001 — all keys are of one subject
    (reply,) = yield [LiftBans(operation.status_key, operation.rules)]
    yield from write_events(operation.log, operation.lifted())
    return reply
