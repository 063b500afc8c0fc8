"""What is known of one subject: its limits, overrides, bans, leases and daily counts. Reading changes nothing.

By default everything is read by name in a few round trips: the rules of the settings and the views, the rules that the
subject's own keys name, and the slots of views. With `scan=True`, as in the commands, all keys of the store are
scanned, which also finds rules and slots that only calls in your code name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import groupby, zip_longest
from typing import NamedTuple, TypeVar

from django.utils.translation import gettext, gettext_lazy

from django_quota.conf import current, rule_of
from django_quota.core import keys
from django_quota.core.clock import SECOND, frozen_now
from django_quota.core.decisions import Outcome, Why
from django_quota.core.errors import RateError, RuleError, StoreOutOfMemory, StoreUnavailable, nearest
from django_quota.core.flow import run_sync
from django_quota.core.overrides import ALL_RULES, Override, OverrideTable
from django_quota.core.rules import ANONYMOUS, AUTHENTICATED, Rule
from django_quota.engine.asks import Ask
from django_quota.engine.operations import text
from django_quota.engine.resolving import hits_of
from django_quota.error_texts import error_in_words, text_in_words
from django_quota.features.bans import bans_in_force
from django_quota.features.counters import calls
from django_quota.features.counters.calls import CounterStatus, counters_of
from django_quota.features.events import EVENTS_A_PAGE, Event, newest_events
from django_quota.features.subject_contents import (
    BanStatus,
    Contents,
    HeldStatus,
    InspectSubject,
    read_contents,
    scan_keys,
)
from django_quota.features.usage.days import Count, last_tiers, recent_usage
from django_quota.limiting.known_rules import (
    NamedRule,
    known_keys,
    known_rules,
    known_slots,
    rules_named,
)
from django_quota.limiting.limiter import scope_of
from django_quota.limiting.overrides import overrides
from django_quota.limiting.registry import counting_stores, get_limiter
from django_quota.operating.activity import highest, subjects_seen
from django_quota.operating.health import is_full, refused_change
from django_quota.operating.who_counts import WhoCounts, who_counts
from django_quota.subjects.keys import is_given_by
from django_quota.subjects.site_functions import KnownStarts, starting_flow
from django_quota.subjects.subject import parts_of

RULES_PER_CALL = 100
"""Rules that one call of the script reads."""

MAX_RULES_NAMED = 500
"""How many rules outside the settings and the views are read."""

SLOTS_A_READ = 500
"""How many recently used slots, of all subjects, are searched for the slots of one subject."""

MAX_REFUSALS = 20
"""How many refusals `recent_refusals` returns."""

BY_REQUEST = gettext_lazy("its rates are functions of the request")
UNLIMITED = gettext_lazy("it is unlimited")
"""Why the limits of a rule cannot be read."""

WITHOUT_STORE = {
    "allow": gettext_lazy("the next hit is admitted, and not counted"),
    "deny": gettext_lazy("no hit is admitted while Redis refuses writes"),
    "local": gettext_lazy("each process decides by itself while Redis refuses writes"),
}
"""What happens to a hit while the store refuses writes, by `on_unavailable`."""

T = TypeVar("T")


# --- the values -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """One limit of one rule for the subject."""

    rule: str
    rate: str
    algorithm: str
    limit: int
    """How many units are left when nothing is used."""
    used: int
    remaining: int
    retry_after: float | None
    """Seconds until one more hit is admitted: 0.0 for now, None for never."""
    reset_after: float
    """Seconds until nothing is used any more."""
    why: Why
    """What takes precedence over the limit; see `Outcome.why`."""
    source: str
    """The key that holds the state."""
    tier: str = ""
    """The tier that the limit belongs to, where the rule has rates by tier."""
    is_last_tier: bool = False
    """Whether the subject had this tier at its last check. Otherwise it is one of several that it may have."""
    instead: str = ""
    """The `on_unavailable` that decides the next hit while the store refuses writes; else empty."""
    shadow: bool = False
    """Whether the limit only reports and never refuses."""
    taken_ahead: int = 0
    """Of the used units those that processes have taken ahead and not returned; see `prefetch`."""
    prefetch: float = 0.0
    """For how many seconds a process takes units ahead; 0.0 if it takes none."""

    @property
    def refuses(self) -> bool:
        """Whether the next hit is refused."""
        if self.instead:
            return self.instead == "deny"
        return self.retry_after != 0 and not self.shadow

    @classmethod
    def of(cls, outcome: Outcome, source: str, tier: str = "") -> LimitStatus:
        """Make the status from the outcome of a peek."""
        return cls(
            outcome.rule,
            str(outcome.rate),
            outcome.of.algorithm_name,
            outcome.of.capacity,
            max(0, outcome.of.capacity - (outcome.remaining or 0)) + outcome.over,
            outcome.remaining or 0,
            outcome.retry_after,
            outcome.reset_after,
            outcome.why,
            source,
            tier,
            shadow=outcome.shadow,
        )


@dataclass(slots=True)
class SubjectSnapshot:
    """What is known of a subject at one moment."""

    subject: str
    now: int
    """The store's time, in microseconds since 1970."""
    limits: list[LimitStatus] = field(default_factory=list)
    table: OverrideTable = field(default_factory=OverrideTable)
    """The overrides that concern the subject."""
    bans: list[BanStatus] = field(default_factory=list)
    leases: list[HeldStatus] = field(default_factory=list)
    counters: list[CounterStatus] = field(default_factory=list)
    """What counters hold for it."""
    days: dict[date, dict[str, Count]] = field(default_factory=dict)
    """Checks of the last days by day and rule."""
    tiers: dict[str, str] = field(default_factory=dict)
    """By rule, the tier that the subject had at its last check."""
    unread: dict[str, str] = field(default_factory=dict)
    """By rule, why its limits could not be read."""
    counted: list[str] = field(default_factory=list)
    """The rules in `unread` that have counted something. Only a scan finds them."""
    elsewhere: dict[str, str] = field(default_factory=dict)
    """By rule that can never count the subject, what it counts by, as a sentence. It has neither limits nor a reason
    in `unread`."""
    refuses: str = ""
    """The store's error while it refuses writes, so that nothing is counted; else empty."""

    @property
    def overrides(self) -> list[Override]:
        """The overrides that apply to the subject, the most specific first, even those that have not begun."""
        return self.table.of_subject(self.subject)

    def override_of(self, rule: str) -> Override | None:
        """Return the override that applies under a rule."""
        return self.table.find(rule, self.subject, self.now)


# --- reading a subject ------------------------------------------------------------------------------------------------


def load_snapshot(
    subject: str, names: Collection[str] | None = None, *, scan: bool = False, known: Iterable[tuple[str, str]] = ()
) -> SubjectSnapshot:
    """Read all that is known of a subject, for these rules, or for all that can be found.

    `known`: rules and subjects that these have counted, which helps to say which rules can never count this one.

    Without `scan` it takes six round trips, and one more for each further hundred rules, for each tier that the
    subject may have, to look up tiers, and for rules that only the subject's own keys name. With `scan` it reads the
    names of all keys of the store: use that in a command, not in a request. The memory store is always read by name.

    Raises `RuleError` for a name in `names` that is not a rule, `StoreUnavailable` if the store does not answer.
    """
    scanned = scan_keys(subject) if scan else None
    counted, leases, counters = _contents_of(scanned or {})
    slots = _possible_slots(subject)
    if scanned is None:
        base = keys.subject_base(current().prefix, subject)
        leases = {keys.key_of(base, "l", name): name for name in sorted(slots)}
    contents = read_contents(subject, leases)
    days = recent_usage(subject)
    rules: dict[str, NamedRule] = dict(known_rules())
    more = contents.rules.union(counted, *days.values()) - rules.keys()
    counted_in_database = _counted_in_database(subject, scan=scan) - rules.keys()
    more |= counted_in_database
    decided = more & {name for name, _, _ in calls.made}  # counters that are entries beside limits
    more -= decided
    rules |= {
        name: _in_database(rules_named(name)) if name in counted_in_database else rules_named(name)
        for name in sorted(more)[:MAX_RULES_NAMED]
    }
    counted |= counted_in_database
    if names is not None:
        rules = _chosen(names, rules)
    snapshot = _snapshot_of(subject, contents, rules)
    if names is not None:
        snapshot.bans = [ban for ban in snapshot.bans if ban.rule in rules]
    snapshot.leases = [replace(held, limit=slots.get(held.name)) for held in contents.leases]
    snapshot.days = days
    snapshot.counters = [] if names is not None else counters_of(subject, counters, decided)
    _read_limits(snapshot, rules)
    snapshot.counted = [name for name in snapshot.unread if name in counted]
    _drop_elsewhere(snapshot, rules, who_counts([*known, *((rule, subject) for rule in counted)]))
    return snapshot


def used_rules(snapshots: Iterable[SubjectSnapshot]) -> list[tuple[str, str]]:
    """Return the rules that have counted these subjects, each with the subject."""
    return [(limit.rule, each.subject) for each in snapshots for limit in each.limits if limit.used]


def _drop_elsewhere(snapshot: SubjectSnapshot, rules: Iterable[str], counts: WhoCounts) -> None:
    """Move the rules that can never count the subject to `elsewhere`, unless something of it is counted."""
    used = {limit.rule for limit in snapshot.limits if limit.used}
    names = [name for name in rules if name not in used and not counts.can_count(name, snapshot.subject)]
    snapshot.elsewhere = {name: counts.in_words(name) for name in names}
    snapshot.limits = [limit for limit in snapshot.limits if limit.rule not in snapshot.elsewhere]
    for name in names:
        for place in [each for each in snapshot.unread if each == name or each.startswith(f"{name} (")]:
            del snapshot.unread[place]


def _of_rate(name: str, known: Iterable[str]) -> Rule:
    try:
        return rule_of(name, {})
    except RateError as error:
        near = nearest(name, known)
        names = f"The rules are {', '.join(sorted(known))}." if known else ""
        meant = f" Did you mean {near!r}?" if near else " A rate, such as '10/m', is a rule too."
        raise RuleError(f"There is no rule {name!r}.", f"{names}{meant}") from error


def _chosen(names: Collection[str], known: Mapping[str, NamedRule]) -> dict[str, NamedRule]:
    """Return the rules of these names. A rate has the same name however it is written: `10 per minute` is `10/m`."""
    chosen = {name: known.get(name) or _of_rate(name, known) for name in names}
    return {given.name if isinstance(given, Rule) else name: given for name, given in chosen.items()}


def recent_refusals(subject: str) -> list[Event]:
    """Return a subject's refusals and bans among the newest events of all subjects, the newest first.

    They include those of rules that only calls in your code name, and, of a user, the requests that were refused as
    another subject, such as the address. Empty if the store keeps no events. Raises `StoreUnavailable`.
    """
    events = newest_events(get_limiter().store, current().prefix, EVENTS_A_PAGE)
    refused = [event for event in events if event.kind in ("refused", "banned") and _is_about(event, subject)]
    return refused[:MAX_REFUSALS]


def _is_about(event: Event, subject: str) -> bool:
    """Return whether an event is about a subject, or about a request of this user."""
    return event.subject == subject or (event.user == subject and event.set_by is None)


def bans_begun(subject: str, refused: Iterable[Event]) -> dict[str | None, Event]:
    """Return the newest event of a ban of a subject, by rule. `refused`: see `recent_refusals`."""
    begun = [event for event in refused if event.kind == "banned" and event.subject == subject]
    return {event.rule: event for event in reversed(begun)}


def counted_as(subject: str, refused: Iterable[Event]) -> list[str]:
    """Return the other subjects as which requests of a user were refused. `refused`: see `recent_refusals`."""
    return list(dict.fromkeys(event.subject for event in refused if event.subject and event.subject != subject))


def _contents_of(scanned: Mapping[str, keys.Key]) -> tuple[set[str], dict[str, str], set[str]]:
    """Return the rules that have counted something, the slots by key, and the counters with units that expire.

    Rules and counters that are known only by a digest are left out.
    """
    counted, counters = set[str](), set[str]()
    leases: dict[str, str] = {}
    for key, read in scanned.items():
        kind, part, *_ = f"{read.what}:".split(":")
        name = keys.named(part)
        if kind == "r" and name is not None:
            counted.add(name)
        elif kind == "grants" and name is not None:
            counters.add(name)
        elif kind == "l":
            leases[key] = name or read.what
    return counted, leases, counters


def _counted_in_database(subject: str, *, scan: bool) -> set[str]:
    """Return the rules with `store="database"` that have counted something; empty if the site has no such rule."""
    found: set[str] = set()
    for counting in counting_stores()[1:]:
        found |= read_contents(subject, counting=counting).rules
        found |= _contents_of(scan_keys(subject, counting) or {})[0] if scan else set()
    return found


def _in_database(rules: NamedRule) -> NamedRule:
    """Return the rules that a rate may mean, as those that count in the database."""
    return [rule.but(store="database") for rule in rules] if isinstance(rules, list) else rules


def _possible_slots(subject: str) -> dict[str, int | None]:
    """Return the slots that a subject may hold, with their limits: those of views, and those that calls used recently.

    The limit is None if nobody has asked for the slot recently.
    """
    limits: dict[str, int | None] = dict.fromkeys(known_slots())
    for member, _until in highest(get_limiter().store, "slots", SLOTS_A_READ):
        holder, part, limit = member.split(" ")
        name = keys.named(part)
        if holder == keys.escape(subject) and name is not None:
            limits[name] = max(limits.get(name) or 0, int(limit))  # tiers may have fewer
    return limits


def _snapshot_of(subject: str, contents: Contents, rules: Iterable[str]) -> SubjectSnapshot:
    """Return a snapshot with the overrides and the bans; limits, leases and days are still empty."""
    snapshot = SubjectSnapshot(subject, contents.now, bans=list(contents.bans(rules)))
    overrides.refresh()
    snapshot.table = OverrideTable(overrides.table.of_subject(subject))
    redis = get_limiter().store.redis
    if redis is not None:
        snapshot.refuses = refused_change(redis, keys.status_key(current().prefix, subject))
    return snapshot


# --- limits -----------------------------------------------------------------------------------------------------------


def possible_tiers(rule: Rule, subject: str, last_tiers: Mapping[str, str]) -> dict[str, Rule]:
    """Return the tiers of a rule that a subject may be in, or all tiers if that leaves none.

    `last_tiers`: the tiers that the subject had last, by rule. If a rule is not in it, a user is not anonymous; a
    subject that is not a user is not signed in if the key is `"user"`, and may be signed in if the key is another one,
    such as the address.
    """
    known = last_tiers.get(rule.name, "")
    if rule.notes_tier and known in rule.tiers:
        return {known: rule.tiers[known]}
    parts = rule.key if isinstance(rule.key, tuple) else (rule.key,)
    if any(part.startswith("user:") for part in subject.split("+")):
        impossible = ANONYMOUS
    else:
        impossible = AUTHENTICATED if "user" in parts else ""
    return {tier: of_tier for tier, of_tier in rule.tiers.items() if tier != impossible} or dict(rule.tiers)


_Question = tuple[str, str, Rule | list[Rule]]
"""A name, a tier, and the rule of that name; for a rate, the rules that a call may mean by it."""


def _read_limits(snapshot: SubjectSnapshot, rules: Mapping[str, NamedRule]) -> None:
    """Add the limits of these rules, or why they cannot be read."""
    snapshot.tiers = last_tiers(rules.values(), snapshot.subject)
    plain: list[_Question] = []
    by_tier: list[list[_Question]] = []
    starts = KnownStarts()
    for name, given in rules.items():
        if isinstance(given, str):
            snapshot.unread[name] = text_in_words(given)
        elif isinstance(given, Rule) and given.tiers:
            tiers = possible_tiers(given, snapshot.subject, snapshot.tiers).items()
            read = [(tier, _readable(snapshot, rule, starts, tier)) for tier, rule in tiers]
            by_tier.append([(name, tier, rule) for tier, rule in read if rule is not None])
        elif (rule_or_rules := given if isinstance(given, list) else _readable(snapshot, given, starts)) is not None:
            plain.append((name, "", rule_or_rules))
    for questions in batches(plain, by_tier):
        snapshot.limits += _peek_at(snapshot, questions)
    order = {name: number for number, name in enumerate(rules)}
    snapshot.limits.sort(key=lambda limit: order[limit.rule])  # a stable sort, which keeps the order of tiers


def _readable(snapshot: SubjectSnapshot, rule: Rule, starts: KnownStarts, tier: str = "") -> Rule | None:
    """Return the rule with the periods of the subject; None, noting why, if its limits cannot be read."""
    place = f"{rule.name} ({tier})" if tier else rule.name
    if rule.dynamic or not rule.limits:
        snapshot.unread[place] = str(BY_REQUEST if rule.dynamic else UNLIMITED)
        return None
    found = _started(rule, snapshot.subject, starts)
    if isinstance(found, Rule):
        return found
    snapshot.unread[place] = found
    return None


def _started(rule: Rule, subject: str, starts: KnownStarts) -> Rule | str:
    """Return the rule with the periods of a subject, or why its function failed: other limits can still be read."""
    try:
        return run_sync(starting_flow(rule, subject, starts))
    except Exception as error:  # noqa: BLE001 — of the site
        return f"starts=: {type(error).__name__}: {error}"


def batches(plain: Sequence[T], by_tier: Iterable[Sequence[T]] = ()) -> Iterator[Sequence[T]]:
    """Split rules into batches for one operation each. Two tiers of a rule share its name, so no batch has both."""
    for first in range(0, len(plain), RULES_PER_CALL):
        yield plain[first : first + RULES_PER_CALL]
    for tiers in zip_longest(*by_tier):
        yield [tier for tier in tiers if tier is not None]


def _peek_at(
    snapshot: SubjectSnapshot, questions: Sequence[_Question], table: OverrideTable | None = None
) -> Iterator[LimitStatus]:
    """Yield the limits of these rules under the overrides of the subject, or of another table."""
    asked = {name: (tier, given if isinstance(given, list) else [given]) for name, tier, given in questions}
    asks = [Ask(rule, snapshot.subject, 1) for _, given in asked.values() for rule in given]
    out = _taken_ahead(asks)
    for standing in get_limiter().look(asks, snapshot.table if table is None else table):
        outcome = standing.outcome
        tier, (rule, *others) = asked[outcome.rule]
        limit = _under(standing.instead, LimitStatus.of(outcome, standing.key, tier))
        is_last_tier = tier != "" and snapshot.tiers.get(outcome.rule) == tier
        limit = replace(
            limit,
            is_last_tier=is_last_tier,
            source=f"{standing.key} (in the database)" if rule.store else standing.key,
            taken_ahead=out.get(keys.ahead_key(standing.key), 0),
            prefetch=rule.lease / SECOND,
        )
        if others and not limit.used:
            continue
        if (
            snapshot.refuses
            and rule.store is None
            and limit.retry_after == 0
            and limit.why != "exempt"
            and not rule.shadow
        ):
            failure = StoreOutOfMemory if is_full(snapshot.refuses) else StoreUnavailable
            without = current().without_store(rule.on_unavailable, failure, is_precious=bool(rule.reads_body))
            limit = replace(limit, instead=without)
        yield limit


def _taken_ahead(asks: Sequence[Ask]) -> dict[str, int]:
    """Return how many units of one subject are taken ahead, by key, under the rules that may do so."""
    hits = hits_of([ask for ask in asks if ask.rule.lease], scope_of(current()), 0)
    sets = {key: key for hit in hits for key in hit.ahead_keys}
    if not sets:
        return {}
    _, _, *lists = get_limiter().reporting_store.run(InspectSubject(hits[0].status_key, list(sets)), frozen_now())
    return {
        key: sum(int(text(member).split(":")[1]) for member in live[::2])
        for key, (_, *live) in zip(sets, lists, strict=True)
    }


def _under(override: Outcome | None, limit: LimitStatus) -> LimitStatus:
    """Return a limit as it is under an override that exempts or blocks."""
    if override is None:
        return limit
    wait = 0.0 if override.allowed else _longer(override.retry_after, limit.retry_after)
    return replace(limit, why=override.why, retry_after=wait)


def _longer(one: float | None, other: float | None) -> float | None:
    """Return the longer of two waits; None is forever."""
    return None if one is None or other is None else max(one, other)


# --- the effect of an override ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class RuleChange:
    """The limits of a rule without the override, and under it."""

    rule: str
    now: list[LimitStatus]
    then: list[LimitStatus] = field(default_factory=list)
    """Empty if the override changes nothing."""
    problem: str = ""
    """Why the override changes nothing: it has ended, does not fit the rule, or the rule has an override of its own."""

    @property
    def is_same(self) -> bool:
        """Whether the limits stay as they are."""
        now, then = (
            [replace(each, why="") if each.why == "override" else each for each in limits]
            for limits in (self.now, self.then)
        )
        return bool(self.problem) or now == then


@dataclass(slots=True)
class OverridePreview:
    """What an override would do."""

    changes: list[RuleChange]
    is_unknown: bool = False
    """Whether neither the settings nor the views have this rule. A decorator or a call may still use the name."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """By rule, why its limits could not be read."""


def preview_override(subject: str, override: Override) -> OverridePreview:
    """Return what an override would do to a subject from now on, if it replaced the saved one with its primary key.

    Nothing is saved. Raises `RuleError` for a string that cannot be a subject, `StoreUnavailable`.
    """
    rules = rules_for(override.rule)
    if override.rule == ALL_RULES:
        counts = who_counts()
        rules = {name: given for name, given in rules.items() if counts.can_count(name, subject)}
    snapshot = _snapshot_of(subject, read_contents(subject), rules)
    snapshot.table = OverrideTable([each for each in snapshot.overrides if each.pk != override.pk])
    _read_limits(snapshot, rules)
    table = OverrideTable([*snapshot.overrides, override])
    preview = OverridePreview([], is_unknown=not rules, unread=snapshot.unread)
    changed: list[_Question] = []
    starts = KnownStarts()
    for name, limits in groupby(snapshot.limits, key=lambda limit: limit.rule):
        change = RuleChange(name, list(limits))
        preview.changes.append(change)
        given = rules[name]
        rule = given if isinstance(given, Rule) else None
        if rule is not None:
            rule = next(iter(possible_tiers(rule, subject, snapshot.tiers).values()), rule)
            started = _started(rule, subject, starts)
            rule = started if isinstance(started, Rule) else rule
        found = table.find(name, subject, max(override.begins, snapshot.now))
        change.problem = _why_nothing_changes(override, found, rule, snapshot.now)
        if rule is not None and not change.problem:
            changed.append((name, "", rule))
    changes = {change.rule: change for change in preview.changes}
    table = OverrideTable([override._replace(begins=0)])
    for questions in batches(changed):
        for limit in _peek_at(snapshot, questions, table):
            changes[limit.rule].then.append(limit)
    return preview


def _why_nothing_changes(override: Override, found: Override | None, rule: Rule | None, now: int) -> str:
    """Return why an override does not change a rule under which `found` applies; nothing if it does."""
    if 0 < override.ends <= now:
        return gettext("Nothing changes, since this override has ended.")
    if found is None or found.pk != override.pk:
        return gettext("Nothing changes, since this rule has an override of its own.")
    if rule is not None and override.mode == "rate":
        try:
            rule.under(override.rates)
        except RuleError as error:
            return error_in_words(error)
    return ""


def rules_for(name: str) -> dict[str, NamedRule]:
    """Return the rules that an override with this rule name applies to, by name; empty if none is known."""
    known = known_rules()
    if name == ALL_RULES:
        return dict(known)
    if name in known:
        return {name: known[name]}
    with suppress(RuleError):
        rule = rule_of(name, {})
        if rule.name == name:
            return {name: rule}
    return {}


# --- subjects that have this one as a part ----------------------------------------------------------------------------

MAX_LONGER = 20
"""How many subjects are read."""


class LongerSubject(NamedTuple):
    """A subject that counts what another one does: as a part, such as `user:42+ip:203.0.113.9`, or by its address."""

    subject: str
    refusal: Outcome | None
    """What refuses its next hit for longest; None if no rule of the settings and the views does."""


def longer_subjects(
    subject: str, other_names: Collection[str] = (), refused_as: Collection[str] = ()
) -> Sequence[LongerSubject]:
    """Return the subjects that have a subject as a part, and `refused_as`; those refused now first.

    It finds subjects that were refused today, yesterday or in the last events, or are banned. Nothing is taken.
    `refused_as`: see `counted_as`.
    `other_names`: subjects that mean the same person, such as the failed logins of a user's name. They are in the
    result themselves, too, if they are refused or were found.

    Raises `StoreUnavailable` if the store does not answer.
    """
    wanted = {subject, *other_names}
    banned = [ban.subject for ban in bans_in_force()[1] or () if ban.subject]
    seen = [each for each in [*banned, *subjects_seen(days=2)] if wanted.intersection(parts_of(each))]
    seen = [*refused_as, *seen]
    found = [each for each in dict.fromkeys([*other_names, *seen]) if each != subject][:MAX_LONGER]
    longer = [LongerSubject(each, _refusal_of(each)) for each in found]
    known = [each for each in longer if each.refusal is not None or each.subject in seen]
    return sorted(known, key=lambda each: each.refusal is None)


def _refusal_of(subject: str) -> Outcome | None:
    rules, keys, starts = known_rules(), known_keys(), KnownStarts()
    asked = [
        Ask(started, subject, 1)
        for name, parts in keys.items()
        if is_given_by(parts, subject) and isinstance(rule := rules[name], Rule) and rule.limits
        if isinstance(started := _started(rule, subject, starts), Rule)
    ]
    decision = get_limiter().decide(asked, "peek")
    return decision.binding if decision.enforced else None
