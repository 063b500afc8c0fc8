"""Operations on one subject: inspect it, ban it, reset what its rules have counted, read its days, remember a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from django_quota.core.rules import Rule
from django_quota.engine.compiled import compiled
from django_quota.engine.events import DAY_TTL, NO_LOG, EventLog, EventRecord, change_counts, lifted_bans, note_tier
from django_quota.engine.operations import (
    Operation,
    Script,
    States,
    drop_field,
    fields_of,
    is_repeated,
    note_counted,
    script,
    set_field,
)

MAX_READ = 100
"""How many leases of one name are read."""

TOKEN_FIELD = "#"  # noqa: S105 — it is a field, no password
"""The field for the token, in counts that were set aside."""

RESET_FIELDS = "bew"
"""The kinds of status fields that a reset drops, the ban first."""


class InspectSubject(Operation):
    """Read the status of a subject and its leases. The reply: see `lua/inspect_subject.lua`."""

    script: ClassVar[Script] = script("clock", "lifetimes", "inspect_subject")
    is_slow: ClassVar[bool] = True
    is_reading: ClassVar[bool] = True

    def __init__(self, status_key: str, sets: Sequence[str]) -> None:
        super().__init__([status_key, *sets], MAX_READ)

    def run(self, states: States, now: int) -> list[Any]:
        """Read the subject; nothing is written."""
        fields = [part for pair in fields_of(states, self.keys[0]).items() for part in pair]
        return [now, fields, *(_live(states, key, now) for key in self.keys[1:])]


def _live(states: States, key: str, now: int) -> list[Any]:
    members: dict[str, int] = states.get(key) or {}
    live = sorted((stop, member) for member, stop in members.items() if stop > now)
    return [len(live), *(part for stop, member in live[:MAX_READ] for part in (member, stop))]


class BanSubject(Operation):
    """Ban a subject under a rule. The reply: see `lua/ban.lua`.

    `rule`: its name, escaped for fields of hashes. `span`, `remembered`: how long the ban lasts, and how long it is
    remembered after its end, in microseconds.
    """

    script: ClassVar[Script] = script("clock", "lifetimes", "ban")

    def __init__(self, status_key: str, rule: str, span: int, remembered: int) -> None:
        super().__init__([status_key], rule, span, remembered)

    def run(self, states: States, now: int) -> list[int]:
        """Ban the subject, unless it is banned for longer already."""
        (status_key,), (rule, span, kept) = self.keys, self.arguments()
        name = f"b:{rule}"
        ends, level, remembered = map(int, fields_of(states, status_key).get(name, "0 0 0").split(" "))
        stop = now + span
        if ends >= stop:
            return [ends, 0]
        if ends <= now:
            level = level + 1 if remembered > now else 1
        remembered = max(remembered, stop + kept)
        set_field(states, status_key, name, f"{stop} {level} {remembered}", remembered)
        return [stop, level]


class LiftBans(Operation):
    """End the bans of a subject under these rules. The reply is how many bans were in force.

    `rules`: their names, escaped for fields of hashes.
    """

    script: ClassVar[Script] = script("clock", "lifetimes", "lift_bans")

    def __init__(self, status_key: str, rules: Sequence[str], log: EventLog = NO_LOG) -> None:
        super().__init__([status_key] if log is NO_LOG else [status_key, log.bans], *rules)
        self.status_key = status_key
        self.rules = rules
        self.log = log

    def run(self, states: States, now: int) -> int:
        """End the bans."""
        lifted = 0
        for rule in self.rules:
            ban = fields_of(states, self.status_key).get(f"b:{rule}", "0")
            lifted += int(ban.partition(" ")[0]) > now
            drop_field(states, self.status_key, f"b:{rule}")
        return lifted

    def log_keys(self) -> Sequence[str]:
        """Return the keys of the event log."""
        return self.log.keys

    def lifted(self) -> list[EventRecord]:
        """Return the events that end the bans."""
        return lifted_bans(self.log, ((self.status_key, rule) for rule in self.rules))

    def run_with_events(self, states: States, now: int) -> tuple[int, Sequence[EventRecord]]:
        """End the bans; return the reply and the events."""
        return self.run(states, now), self.lifted()


class RuleState(NamedTuple):
    """The keys under which one rule counts for one subject."""

    field: str
    """The rule's name, escaped for fields of hashes."""
    status_key: str
    """The key of the subject's status."""
    states: Sequence[str]
    """The keys of limits and refusals."""

    @classmethod
    def of(cls, rules: Sequence[Rule], status_key: str) -> RuleState:
        """Return the keys of rules of one name, which differ in their limits, under the subject of a status."""
        base, first = status_key.removesuffix("s"), compiled(rules[0])
        limits = [limit.key for rule in rules for limit in compiled(rule).limits]
        return cls(first.field, status_key, [base + part for part in dict.fromkeys([*limits, f"b:{first.field}"])])


class Reset(Operation):
    """Drop all that rules have counted, and lift their bans. The reply is how many states and bans there were."""

    script: ClassVar[Script] = script("reset")
    is_slow: ClassVar[bool] = True

    def __init__(self, rule_states: Sequence[RuleState], log: EventLog = NO_LOG) -> None:
        keys = [key for found in rule_states for key in (found.status_key, *found.states)]
        arguments = [word for found in rule_states for word in (found.field, len(found.states))]
        super().__init__(keys if log is NO_LOG else [*keys, log.bans], *arguments)
        self.rule_states = rule_states
        self.log = log

    def run(self, states: States, now: int) -> int:  # noqa: ARG002 — expired states are dropped like the rest
        """Drop everything."""
        dropped = 0
        for field, status_key, keys in self.rule_states:
            dropped += sum(states.drop(key) for key in keys)
            had_field = [drop_field(states, status_key, f"{kind}:{field}") for kind in RESET_FIELDS]
            dropped += had_field[0]
        return dropped

    def log_keys(self) -> Sequence[str]:
        """Return the keys of the event log."""
        return self.log.keys

    def lifted(self) -> list[EventRecord]:
        """Return the events that end the bans."""
        return lifted_bans(self.log, ((state.status_key, state.field) for state in self.rule_states))

    def run_with_events(self, states: States, now: int) -> tuple[int, Sequence[EventRecord]]:
        """Drop everything; return the reply and the events."""
        return self.run(states, now), self.lifted()


class ReadDays(Operation):
    """Read what was counted under these keys, all of one subject; the reply: see `lua/read_days.lua`."""

    script: ClassVar[Script] = script("read_days")
    is_slow: ClassVar[bool] = True
    is_reading: ClassVar[bool] = True

    def run(self, states: States, now: int) -> list[list[str]]:  # noqa: ARG002 — a day is kept until it is moved
        """Read the counts."""
        days = [states.get(key) or {} for key in self.keys]
        return [[str(part) for pair in day.items() for part in pair] for day in days]


class SetAside(Operation):
    """Set a day's counts aside, unless earlier ones are aside; the reply: see `lua/set_aside.lua`.

    `known`: the token that the database knows. The new one is larger.
    """

    script: ClassVar[Script] = script("clock", "lifetimes", "set_aside")
    is_slow: ClassVar[bool] = True

    def __init__(self, day_key: str, aside_key: str, known: int) -> None:
        super().__init__([day_key, aside_key], known)

    def run(self, states: States, now: int) -> list[Any]:
        """Set the counts aside."""
        (day, aside), (known,) = self.keys, self.arguments()
        counts = states.get(day)
        if counts is not None and states.get(aside) is None:
            states.put(aside, {**counts, TOKEN_FIELD: max(now, known + 1)}, states.expiry(day))
            states.drop(day)
        fields = states.get(aside) or {}
        return [int(states.get(day) is not None), [str(part) for pair in fields.items() for part in pair]]


class DropAside(Operation):
    """Delete the counts that were set aside under a token; the reply is 1 if they were deleted, else 0."""

    script: ClassVar[Script] = script("drop_aside")
    is_slow: ClassVar[bool] = True

    def __init__(self, aside_key: str, token: int) -> None:
        super().__init__([aside_key], token)

    def run(self, states: States, now: int) -> int:  # noqa: ARG002 — they are kept until they are in the database
        """Delete the counts."""
        (aside,), (token,) = self.keys, self.arguments()
        return int((states.get(aside) or {}).get(TOKEN_FIELD) == token and states.drop(aside))


class RecordHits(Operation):
    """Count hits of a rule for the day of a subject. The reply is 1 if a "refused" event is due, else 0.

    `field`: the rule's name, escaped for fields of hashes. `sent_key`, `number`: the number of the message, which is
    counted once, and where that is remembered. `day_key`: where the day is counted; empty if it is not.
    `counts`: how its fields change. `span`: microseconds from one event to the next; 0: no event. `tier`: the tier of
    the subject under the rule; empty if no function of the request says it.
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
        tier: str = "",
    ) -> None:
        keys = [status_key, sent_key, day_key] if day_key else [status_key, sent_key]
        changes = [word for kind, change in counts.items() if change for word in (f"{field}:{kind}", change)]
        super().__init__(keys, field, span, DAY_TTL, tier, number, *changes)
        self.number = number
        self.field = field
        self.tier = tier
        self.counts = counts
        self.span = span

    def run(self, states: States, now: int) -> int:
        """Count the hits."""
        status_key, sent_key, *days = self.keys
        if is_repeated(states, sent_key, self.number):
            return 0
        for key in days:
            change_counts(states, key, {f"{self.field}:{kind}": change for kind, change in self.counts.items()}, now)
            note_tier(states, key, self.field, self.tier, now)
        note_counted(states, sent_key, self.number, now)
        quiet_until = int(fields_of(states, status_key).get(f"e:{self.field}", 0))
        if not self.span or quiet_until > now:
            return 0
        set_field(states, status_key, f"e:{self.field}", str(now + self.span), now + self.span)
        return 1


class Once(Operation):
    """Remember a value under its key for `span` microseconds; the reply is 1 the first time, else 0."""

    script: ClassVar[Script] = script("clock", "lifetimes", "once")

    def __init__(self, key: str, span: int) -> None:
        super().__init__([key], span)

    def has_written(self, reply: Any) -> bool:
        """Say whether the value is new."""
        return bool(reply)

    def run(self, states: States, now: int) -> int:
        """Look for the value, and remember it."""
        (key,), (span,) = self.keys, self.arguments()
        if states.get(key, now) is not None:
            return 0
        states.put(key, now + span, now + span)
        return 1
