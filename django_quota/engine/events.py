"""What surrounds a decision: the counts of the day, bans after too many refusals, and events.

This is the specification of `subject_status.lua`, `count_day.lua`, `events.lua` and `near.lua` in `engine/lua/`. A
decision writes no event: its flags report them, and the caller writes them to the log, with what the request says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

from django_quota.core.algorithms import ALGORITHMS, NEVER, STOCK, Verdict
from django_quota.core.clock import DAY, SECOND
from django_quota.core.keys import escape, subject_part
from django_quota.engine.codec import EVENTS, EventKind, Flag, Flagged, Reply
from django_quota.engine.hits import Hit, HitContext
from django_quota.engine.operations import (
    SENT_TTL,
    Operation,
    Script,
    States,
    fields_of,
    is_repeated,
    note_counted,
    script,
    set_field,
)

DAY_TTL = 8 * DAY
"""How long the counts of a day wait for the roll-up, in microseconds."""

USED_UP = 1000
"""The share, in thousandths, of a limit that has nothing left."""


def load_status(states: States, context: HitContext, now: int) -> None:
    """Load the last ban of the subject into the context. A ban that has not ended takes precedence over the limits."""
    hit = context.hit
    ban = fields_of(states, hit.status_key).get(f"b:{hit.field}")
    if hit.refusals_key and ban is not None:
        ends, context.level, context.remembered = map(int, ban.split(" "))
        if ends > now:
            context.status, context.stop = Flag.BANNED, ends


def shut_out(verdict: Verdict, stop: int, now: int) -> Verdict:
    """Return the verdict under a ban: refused until the ban ends, or longer if the limit has no room by then."""

    def later(own: int) -> int:
        return NEVER if own == NEVER else max(stop - now, own)

    retry_after = later(0 if verdict.allowed else verdict.retry_after)
    more = later(0 if verdict.remaining > 0 else verdict.more)
    return verdict._replace(allowed=False, retry_after=retry_after, more=more)


def count_day(states: States, context: HitContext, now: int, *, passed: bool) -> None:
    """Count the hit for its subject and day, and store its tier. `passed`: the request was not refused."""
    hit = context.hit
    if hit.day is None or not (context.is_refused or passed):
        return
    counts = {f"{hit.field}:r": 1} if context.is_refused else {f"{hit.field}:a": 1, f"{hit.field}:u": hit.cost - 1}
    change_counts(states, hit.day.key, counts, now)
    note_tier(states, hit.day.key, hit.field, hit.rule.of_tier, now)


def change_counts(states: States, key: str, changes: Mapping[str, int], now: int) -> None:
    """Add to the counts of a day. A count may become negative, if a roll-up has moved its hits already."""
    counts = dict(states.get(key) or {})
    for field, change in changes.items():
        if change:
            counts[field] = counts.get(field, 0) + change
    if counts:
        states.put(key, counts, states.expiry(key) or now + DAY_TTL)


def note_tier(states: States, key: str, field: str, tier: str, now: int) -> None:
    """Store, with the counts of a day, the tier that the subject has under a rule; an empty tier is not stored."""
    if tier:
        states.put(key, {**(states.get(key) or {}), f"{field}:t": tier}, states.expiry(key) or now + DAY_TTL)


def emit(states: States, context: HitContext, now: int, *, passed: bool, emits: bool) -> list[Flagged]:
    """Begin a ban if it is due, and emit events; return the flags. `emits`: whether events are on at all."""
    hit = context.hit
    emits_own = emits and not hit.rule.is_quiet
    if context.is_refused:
        if hit.refusals_key and not context.status:
            flags = _count_refusal(states, context, now, emits=emits)
            if flags:
                return flags
        if emits_own and int(fields_of(states, hit.status_key).get(f"e:{hit.field}", 0)) <= now:
            set_field(states, hit.status_key, f"e:{hit.field}", str(now + SECOND), now + SECOND)
            waits = [v.retry_after for v in context.verdicts if not v.allowed]
            stop = 0 if NEVER in waits else now + max(waits)
            return [Flagged(context.index, Flag.REFUSAL_EMITTED, stop)]
    elif emits_own and passed:
        return judge_near(states, context, hit.cost, now, emits=True)
    return []


def judge_near(
    states: States, context: HitContext, units: int, now: int, *, emits: bool, lowers: bool = False
) -> list[Flagged]:
    """Emit "near" if these units made a limit reach a share of `warn_at` that no event has reported yet.

    A later event may report the share again when the limit is free again, or has another capacity. `lowers`: units
    were given back, so a share above the current use may be reported again, too.
    """
    if not context.hit.warn_shares or context.status:
        return []
    out = context.out or [0] * len(context.verdicts)
    used = [
        limit.parameters.capacity - verdict.remaining - ahead
        for limit, verdict, ahead in zip(context.hit.limits, context.verdicts, out, strict=True)
    ]
    return _report_shares(states, context, used, units, now, emits=emits, lowers=lowers)


def judge_refused(states: States, context: HitContext, now: int) -> list[Flagged]:
    """Emit "near" if a refused hit would have made a limit that has no room for it reach such a share.

    A hit that never fits reaches none. In a flood, one refusal a second is judged: the one that is an event.
    """
    hit = context.hit
    is_quiet = hit.rule.is_quiet or int(fields_of(states, hit.status_key).get(f"e:{hit.field}", 0)) > now
    if is_quiet or context.status or not context.is_refused or not hit.rule.warn_shares:
        return []
    out = context.out or [0] * len(context.verdicts)
    used = [
        None if verdict.allowed or hit.cost > capacity else capacity - verdict.remaining - ahead + hit.cost
        for capacity, verdict, ahead in zip(
            [limit.parameters.capacity for limit in hit.limits], context.verdicts, out, strict=True
        )
    ]
    return _report_shares(states, context, used, hit.cost, now, emits=True)


def _report_shares(  # the arguments of near.lua
    states: States,
    context: HitContext,
    used: Sequence[int | None],
    units: int,
    now: int,
    *,
    emits: bool,
    lowers: bool = False,
) -> list[Flagged]:
    """Report the highest share that the last units reached. `used`: of each limit; None: it is not judged."""
    hit, field = context.hit, f"w:{context.hit.field}"
    known = [int(word) for word in fields_of(states, hit.status_key).get(field, "").split()]
    records: list[tuple[int, int, int]] = []
    has_changed, near = False, 0
    for number, (limit, verdict, use) in enumerate(zip(hit.limits, context.verdicts, used, strict=True)):
        capacity = limit.parameters.capacity
        stop, reported, of_capacity = known[3 * number : 3 * number + 3] or (0, 0, 0)
        if stop <= now or of_capacity != capacity:
            stop, reported = now, 0
        if use is not None:
            highest, share = shares_reached(hit.rule.warn_shares, capacity, use, units)
            if lowers and reported > highest:
                reported, has_changed = highest, True
            if emits and share > reported:
                reported, stop, has_changed = share, now + max(verdict.reset, SECOND), True
                near = max(near, share)
        records.append((stop, reported, capacity))
    if has_changed:
        words = " ".join(str(number) for record in records for number in record)
        set_field(states, hit.status_key, field, words, max(stop for stop, _, _ in records))
    return [Flagged(context.index, Flag.NEAR_EMITTED, near)] if near else []


def _count_refusal(states: States, context: HitContext, now: int, *, emits: bool) -> list[Flagged]:
    """Count a refusal; if it is one too many, begin a ban. Return the flags of the ban, empty without one."""
    hit, ban = context.hit, context.hit.rule.ban
    sliding = ALGORITHMS["sliding_window"]
    refusals = states.get(hit.refusals_key)
    if sliding.peek(refusals, ban.window, 1, now).remaining > 1:
        after, _ = sliding.consume(refusals, ban.window, 1, now)
        states.put(hit.refusals_key, after, sliding.expiry(after))
        return []
    states.drop(hit.refusals_key)
    context.level = level = context.level + 1 if context.remembered > now else 1
    stop = now + ban.durations[min(level, len(ban.durations)) - 1]
    remembered = stop + ban.durations[-1]
    set_field(states, hit.status_key, f"b:{hit.field}", f"{stop} {level} {remembered}", remembered)
    context.verdicts = [shut_out(verdict, stop, now) for verdict in context.verdicts]
    flags = [Flagged(context.index, Flag.BANNED, stop)]
    if emits:
        flags += [Flagged(context.index, Flag.BAN_BEGAN, stop), Flagged(context.index, Flag.BAN_LEVEL, level)]
    return flags


def shares_reached(shares: Iterable[int], capacity: int, used: int, units: int) -> tuple[int, int]:
    """Return the highest of these shares that the use of a limit has reached, in thousandths; 0: none.

    Also return the highest share that was reached by these units. A limit so small that the next hit fills it is not
    near, only used up.
    """
    highest, share = 0, 0
    for each in shares:
        threshold = -(-capacity * each // 1000)
        if capacity and used >= threshold and (each == USED_UP or threshold < capacity):
            highest = each
            if used - units < threshold:
                share = each
    return highest, share


def limit_refusing_longest(verdicts: Sequence[Verdict]) -> int:
    """Return the index of the limit that refuses longest; 0 if none refuses."""
    refusing = [(number, verdict.retry_after) for number, verdict in enumerate(verdicts) if not verdict.allowed]
    return max(refusing, key=lambda one: math.inf if one[1] == NEVER else one[1], default=(0, 0))[0]


# --- the event log ----------------------------------------------------------------------------------------------------


class EventLog(NamedTuple):
    """Where events are written, and how many are kept."""

    keys: Sequence[str] = ()
    """The keys of the event stream and of the index of bans."""
    length: int = 0
    """How many events the stream keeps."""
    span: int = 0
    """For how long it keeps them, in microseconds."""

    @property
    def bans(self) -> str:
        """The key of the index of bans."""
        return self.keys[1]


NO_LOG = EventLog()
"""Events are off."""


class EventSource(NamedTuple):
    """What the events of a request say of it."""

    user: str = ""
    """The subject of its user, such as `"user:42"`; empty if there is none, or if nobody has loaded it."""
    method: str = ""
    path: str = ""


class EventRecord(NamedTuple):
    """One event, with the fields that `engine/lua/append_events.lua` lists."""

    kind: EventKind | Literal["lifted", "listed"]
    """"lifted" takes a ban off the list of bans, and "listed" puts one there: neither is an event of the log."""
    rule: str
    """The rule's name, escaped for fields of hashes."""
    subject: str
    """The subject, escaped for keys."""
    until: int = 0
    level: int = 0
    capacity: int = 0
    remaining: int = 0
    share: int = 0
    """The share of `warn_at` that a "near" event reports, in thousandths."""
    cost: int = 1
    """How many units the hit needed."""
    user: str = ""
    method: str = ""
    path: str = ""
    reason: str = ""
    """Why somebody set a ban; `user` says who. Of a refusal "blocked" or "banned", if no limit is the reason."""

    @property
    def is_logged(self) -> bool:
        """Whether it is an event of the log."""
        return self.kind not in ("lifted", "listed")

    @property
    def lists_ban(self) -> bool:
        """Whether it puts a ban on the list of bans."""
        return self.kind in ("banned", "listed")

    def of_request(self, source: EventSource) -> EventRecord:
        """Return the event with what the request says."""
        return self._replace(**source._asdict())


def events_of(hits: Sequence[Hit], reply: Reply) -> list[EventRecord]:
    """Return the events that the flags of a decision report."""
    events = []
    levels = {index: value for index, flag, value in reply.flags if flag == Flag.BAN_LEVEL}
    banned = {index for index, flag, _ in reply.flags if flag == Flag.BANNED}
    for index, flag, value in reply.flags:
        if (kind := EVENTS.get(flag)) is None:
            continue
        hit, verdicts, place = hits[index], reply.hits[index], 0
        if kind == "refused":
            place = limit_refusing_longest(verdicts)
        elif kind == "near":
            place = _limit_near(hit, verdicts, value)
        limit, remaining = hit.limits[place], max(0, verdicts[place].remaining)
        capacity = remaining if limit.algorithm is STOCK else limit.parameters.capacity  # what a counter holds
        until, share = (0, value) if kind == "near" else (value, 0)
        subject, level = escape(hit.subject), levels.get(index, 0)
        event = EventRecord(kind, hit.field, subject, until, level, capacity, remaining, share, hit.cost)
        events.append(event._replace(reason="banned") if kind == "refused" and index in banned else event)
    return events


def _limit_near(hit: Hit, verdicts: Sequence[Verdict], share: int) -> int:
    """Return the index of the limit that has reached a share, in thousandths: of several, the one just past it.

    A limit without room for the hit has reached what it would have used.
    """
    past = {}
    for number, (limit, verdict) in enumerate(zip(hit.limits, verdicts, strict=True)):
        capacity = limit.parameters.capacity
        used = capacity - verdict.remaining + (0 if verdict.allowed else hit.cost)
        past[number] = capacity and used / capacity - share / 1000
    return min(past, key=lambda number: (past[number] < 0, abs(past[number])))


def lifted_bans(log: EventLog, bans: Iterable[tuple[str, str]]) -> list[EventRecord]:
    """Return the events that report lifted bans; empty if events are off.

    `bans`: for each, the key of the subject's status, and the rule as in fields of hashes.
    """
    if log is NO_LOG:
        return []
    return [EventRecord("lifted", rule, subject_part(status_key)) for status_key, rule in bans]


class LoggedRecord(NamedTuple):
    """An event in the log of a process' memory."""

    id: str
    """`<milliseconds>-<number>`, as in Redis; each id is above those before it."""
    record: EventRecord


class AppendEvents(Operation):
    """Write the events that decisions reported. The reply is the number of events.

    The log keeps about so many events, and none for longer than its span. Its specification keeps no list of bans.
    """

    script: ClassVar[Script] = script("clock", "lifetimes", "append_events")

    def __init__(self, log: EventLog, events: Sequence[EventRecord]) -> None:
        super().__init__(log.keys, len(events), log.length, log.span, *(word for event in events for word in event))
        self.log = log
        self.events = events

    def log_keys(self) -> Sequence[str]:
        """Return all keys: the operation has no others."""
        return self.log.keys

    def run_with_events(self, states: States, now: int) -> tuple[int, Sequence[EventRecord]]:  # noqa: ARG002
        """Return the number of events, and the events, which the caller writes to its own log."""
        return len(self.events), self.events

    def run(self, states: States, now: int) -> int:
        """Write to a log in the states: a tuple of `LoggedRecord`, the oldest first."""
        key, logged = self.log.keys[0], [event for event in self.events if event.is_logged]
        kept: tuple[LoggedRecord, ...] = states.get(key, now) or ()
        moment, number = (int(part) for part in kept[-1].id.split("-")) if kept else (0, 0)
        for event in logged:
            moment, number = (now // 1_000, 0) if now // 1_000 > moment else (moment, number + 1)
            kept += (LoggedRecord(f"{moment}-{number}", event),)
        oldest = (now - self.log.span) // 1_000
        kept = tuple(each for each in kept[-self.log.length :] if int(each.id.partition("-")[0]) >= oldest)
        if logged and kept:
            states.put(key, kept, now + self.log.span)
        return len(self.events)


class ReadEvents(Operation):
    """Read the log in the memory of a process, the oldest event first. Other stores have readers of their own."""

    script: ClassVar[Script] = Script.of("")
    is_reading: ClassVar[bool] = True

    def run(self, states: States, now: int) -> Sequence[LoggedRecord]:
        """Return the events."""
        found: Sequence[LoggedRecord] = states.get(self.keys[0], now) or ()
        return found


# --- hits that no store has decided -----------------------------------------------------------------------------------


class RecordHits(Operation):
    """Count hits of a rule for the day of a subject. The reply is 1 if a "refused" event is due, else 0.

    They are, for example, refusals that a process repeats from memory.

    `field`: the rule's name, escaped for fields of hashes. `number`: of the message, so that it is counted only once;
    `sent_key`: where the number is remembered. `day_key`: where the day is counted; empty if it is not.
    `counts`: how its fields change. `span`: microseconds from one event to the next; 0: no event. `tier`: the tier of
    the subject under the rule; empty if no function of the request says it. `until`: until when the number is
    remembered, in microseconds; 0: for an hour.
    """

    script: ClassVar[Script] = script("clock", "lifetimes", "repeated", "record_hits")

    def __init__(
        self,
        status_key: str,
        sent_key: str,
        day_key: str,
        number: int,
        field: str,
        counts: Mapping[str, int],
        span: int,
        tier: str,
        until: int = 0,
    ) -> None:
        keys = [status_key, sent_key, day_key] if day_key else [status_key, sent_key]
        changes = [word for kind, change in counts.items() if change for word in (f"{field}:{kind}", change)]
        super().__init__(keys, field, span, DAY_TTL, tier, number, until, *changes)
        self.number = number
        self.field = field
        self.tier = tier
        self.counts = counts
        self.span = span
        self.until = until

    def run(self, states: States, now: int) -> int:
        """Count the hits, unless the message has been counted before."""
        status_key, sent_key, *days = self.keys
        if is_repeated(states, sent_key, self.number) or 0 < self.until <= now:
            return 0
        for key in days:
            change_counts(states, key, {f"{self.field}:{kind}": change for kind, change in self.counts.items()}, now)
            note_tier(states, key, self.field, self.tier, now)
        note_counted(states, sent_key, self.number, self.until or now + SENT_TTL)
        quiet_until = int(fields_of(states, status_key).get(f"e:{self.field}", 0))
        if not self.span or quiet_until > now:
            return 0
        set_field(states, status_key, f"e:{self.field}", str(now + self.span), now + self.span)
        return 1
