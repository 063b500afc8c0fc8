"""`manage.py quota_status`: show what is known of a subject, where each figure comes from, and until when it holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from django_quota.conf import current, limits_logins
from django_quota.core.clock import SECOND, in_words, microseconds_of
from django_quota.core.errors import RuleError, StoreUnavailable
from django_quota.core.overrides import ALL_RULES, Override
from django_quota.features.events import Event, iso
from django_quota.features.usage.days import Count
from django_quota.limiting.override_rows import write_database
from django_quota.limiting.overrides import overrides
from django_quota.management.console import SUBJECT_HELP, QuotaCommand, bar, quantity, second_of, shared_store
from django_quota.models import QuotaOverride
from django_quota.operating.health import nothing_is_limited
from django_quota.operating.inspection import (
    WITHOUT_STORE,
    LimitStatus,
    LongerSubject,
    SubjectSnapshot,
    bans_begun,
    counted_as,
    load_snapshot,
    longer_subjects,
    recent_refusals,
    used_rules,
)
from django_quota.operating.lookup import (
    find_users,
    login_names,
    networks_around,
    parse_rule_input,
    parse_subject_input,
    related_subjects,
    user_names,
    user_of,
)
from django_quota.subjects.addresses import is_address
from django_quota.subjects.subject import is_bare, parts_of, user_subject

T = TypeVar("T")

_LONG = "a subject with a very long name"


class Reading(NamedTuple):
    """What was read of a subject."""

    snapshot: SubjectSnapshot
    overrides: list[Override]
    """Those of the rules that were asked for."""
    refused: list[Event]
    related: list[Reading]
    """What was read of the subjects that count beside it."""

    @property
    def related_subjects(self) -> list[str]:
        return [each.snapshot.subject for each in self.related]

    @property
    def is_used(self) -> bool:
        """Whether anything is known of the subject itself."""
        return bool(self.refused) or _is_used(self.snapshot)

    def as_json(self) -> dict[str, Any]:
        return {**snapshot_as_json(self.snapshot), "refused": [event.as_json() for event in self.refused]}


def _reading(snapshot: SubjectSnapshot, names: Collection[str] | None, related: Sequence[Reading] = ()) -> Reading:
    refused = [event for event in recent_refusals(snapshot.subject) if not names or event.rule in names]
    shown = [each for each in snapshot.overrides if not names or each.rule in (*names, ALL_RULES)]
    return Reading(snapshot, shown, refused, list(related))


class Command(QuotaCommand):
    help = "Show the limits, overrides, bans and slots of a subject, and where each figure comes from."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("subject", help=f"a user name, or {SUBJECT_HELP}")
        parser.add_argument("--rule", action="append", metavar="NAME", help="only this rule; you may repeat it")
        parser.add_argument(
            "--all", action="store_true", help="also unused limits, and rules that cannot be read or count others"
        )
        parser.add_argument(
            "--json", action="store_true", help="print one JSON object, with times in UTC and spans in seconds"
        )

    def handle(self, *_: Any, **options: Any) -> None:
        shared_store()
        names = options["rule"] and list(map(parse_rule_input, options["rule"]))
        found = self._read(parse_subject_input(options["subject"]), names)
        if not found.is_used and (meant := _user_meant(options["subject"])):
            self.note(f"Note: {options['subject']!r} is taken for {meant!r}.")
            found = self._read(meant, names)
        subject, snapshot = found.snapshot.subject, found.snapshot
        user = _without_users(partial(user_of, subject))
        own = login_names([user]) if user is not None and limits_logins() else {}
        as_others = counted_as(subject, found.refused)
        longer = longer_subjects(subject, own, [each for each in as_others if each not in found.related_subjects])
        together = {each.subject: each.refusal and each.refusal.rule for each in longer}
        self.note_subject(options["subject"], subject, is_used=found.is_used)
        self.note(nothing_is_limited())
        if snapshot.refuses:
            self.note(f"Note: Redis takes no changes, so nothing is counted. It says: {snapshot.refuses}")
        if overrides.problem:
            self.note(f"Note: The overrides could not be read: {overrides.problem.rstrip('.')}.")
        with_unused = bool(options["all"] or names)
        lines = [subject if user is None else f"{subject} ({user.get_username()})"]
        lines += [f"  {line}" for line in (*_headlines(found), *_locked(longer, own))]
        lines += [f"  {line}, as {each.snapshot.subject}" for each in found.related for line in _headlines(each)]
        lines += _lines(found, with_unused=with_unused)
        for whole, rule in together.items():
            if not (rule and own.keys() & set(parts_of(whole))):  # a headline says it
                lines.append(f"  together  {whole} {f'is refused by {rule}' if rule else 'is not refused now'}")
        for each in found.related:
            lines += [f"{each.snapshot.subject} (counts for {subject})", *_lines(each, with_unused=with_unused)]
        related = [each.as_json() for each in found.related]
        value = {**found.as_json(), "longer": together, "related": related}
        self.print_result(options, value, lines, is_asked=True)

    def _read(self, subject: str, names: Collection[str] | None) -> Reading:
        """Read a subject and those that count beside it, for these rules or for all."""
        try:
            related = [_reading(load_snapshot(each, names), names) for each in self._related_to(subject)]
            known = used_rules(each.snapshot for each in related)
            return _reading(load_snapshot(subject, names, scan=True, known=known), names, related)
        except StoreUnavailable as error:
            self.note(nothing_is_limited(error))
            raise

    def _related_to(self, subject: str) -> list[str]:
        """Return the networks of an address, and what `RELATED` has for a user. If it fails, print why."""
        user = None if current().related is None else _without_users(partial(user_of, subject))
        try:
            return networks_around(subject) if user is None else related_subjects(user)
        except RuleError as error:
            self.note(f"Note: {error}")
            return []


def snapshot_as_json(snapshot: SubjectSnapshot) -> dict[str, Any]:
    """Return what `--json` prints of a snapshot."""
    return {
        "subject": snapshot.subject,
        "limits": [asdict(limit) for limit in snapshot.limits],
        "overrides": [
            {name: getattr(override, name) for name in ("subject", "rule", "mode", "rates")}
            | {"starts": _moment(override.begins), "expires": _moment(override.ends)}
            for override in snapshot.overrides
        ],
        "bans": {ban.rule: ban.ends_in for ban in snapshot.bans},
        "leases": [asdict(held) for held in snapshot.leases],
        "counters": [
            {
                "counter": each.counter,
                "total": each.total,
                "grants": [asdict(grant) | {"expires": grant.expires.isoformat()} for grant in each.grants],
            }
            for each in snapshot.counters
        ],
        "days": {
            str(day): {rule: count._asdict() for rule, count in rules.items()} for day, rules in snapshot.days.items()
        },
        "unread": snapshot.unread,
        "elsewhere": snapshot.elsewhere,
        "refuses": snapshot.refuses or None,
        "overrides_problem": overrides.problem or None,
    }


def _user_meant(text: str) -> str:
    """Return the subject of the user with this key, name or e-mail address; empty if there is none.

    Raises `CommandError` if there are several.
    """
    found = _without_users(partial(find_users, text)) if is_bare(text) and not is_address(text) else None
    if not found:
        return ""
    if len(found) > 1:
        raise CommandError(f"{text!r} may be {', '.join(map(user_subject, found))}. Use one of them.")
    return user_subject(found[0])


def _without_users(look: Callable[[], T]) -> T | None:
    """Return what a look into the database finds; None without one, or without a table of users."""
    try:
        return look()
    except (DatabaseError, ImproperlyConfigured):
        return None


def _headlines(reading: Reading) -> Iterator[str]:
    """Yield what decides the next hit whatever is used, and what refuses it."""
    snapshot = reading.snapshot
    names = {ALL_RULES, *snapshot.unread, *(limit.rule for limit in snapshot.limits)}
    deciding = {found.pk for name in names if (found := snapshot.override_of(name)) is not None}
    held = [each for each in reading.overrides if each.pk in deciding and each.mode in ("blocked", "exempt")]
    notes = _notes(held)
    for each in held:
        rule = "" if each.rule == ALL_RULES else f" {'from' if each.mode == 'exempt' else 'under'} {each.rule}"
        whose = "" if each.subject == snapshot.subject else f" as {each.subject}"
        ends = f" until {second_of(each.ends)}" if each.ends else ", without an end"
        yield f"{each.mode.capitalize()}{rule}{whose}{ends}{notes.get(each.pk, '')}"
    began = bans_begun(snapshot.subject, reading.refused)
    for ban in snapshot.bans:
        event = began.get(ban.rule)
        why = _said(event) if event is not None else ""
        yield f"Banned from {ban.rule} for another {in_words(ban.ends_in * SECOND)}" + (f" ({why})" if why else "")
    for name, limits in groupby(snapshot.limits, key=lambda limit: limit.rule):
        refusing = [limit for limit in limits if limit.refuses and limit.why not in ("blocked", "banned")]
        if refusing:
            waits = [limit.retry_after for limit in refusing]
            wait = None if None in waits else max(filter(None, waits), default=0.0)
            yield f"Refused by {name} " + ("for good" if wait is None else f"for {in_words(wait * SECOND)}")

    for slot in snapshot.leases:
        if slot.is_full:
            used, most = f"{slot.number} of {slot.limit} are in use", in_words(slot.ends_in[0] * SECOND)
            yield f"Refused by {slot.name}, whose slots are full: {used}, for {most} at most"


def _notes(held: Iterable[Override]) -> dict[int, str]:
    """Return the reasons of overrides, and who made them, by the primary key."""
    keys = [each.pk for each in held]
    rows = (
        _without_users(lambda: list(QuotaOverride.objects.using(write_database()).filter(pk__in=keys))) if keys else []
    )
    found = {
        row.pk: ", ".join(filter(None, (row.reason, row.created_by and f"by {row.created_by}"))) for row in rows or ()
    }
    return {pk: f" ({words})" for pk, words in found.items() if words}


def _said(event: Event) -> str:
    """Return the reason of an event, and who set a ban; empty without these."""
    by = event.set_by
    names = _without_users(lambda: user_names({by})) if by else None
    return ", ".join(filter(None, (event.reason, by and f"by {(names or {}).get(by, by)}")))


def _locked(longer: Iterable[LongerSubject], own: Mapping[str, str]) -> Iterator[str]:
    """Yield which logins of a user are refused now. `own`: what the user may type, by its subject."""
    for each in longer:
        parts = parts_of(each.subject)
        name = next((own[part] for part in parts if part in own), None)
        if name is not None and each.refusal is not None:
            places = "".join(f" at {part.removeprefix('ip:')}" for part in parts if part not in own)
            wait = each.refusal.retry_after
            yield f"Login of {name} is locked{places}" + (f" for {in_words(wait * SECOND)}" if wait else "")


def _moment(microseconds: int) -> str | None:
    return iso(microseconds) if microseconds else None


def _is_used(snapshot: SubjectSnapshot) -> bool:
    """Return whether anything is known of the subject itself."""
    has_used_limits = any(limit.used or limit.why for limit in snapshot.limits)
    own = [override for override in snapshot.overrides if override.subject == snapshot.subject]
    return has_used_limits or any((snapshot.counted, own, snapshot.leases, snapshot.counters, snapshot.days))


def _counter_lines(snapshot: SubjectSnapshot) -> Iterator[str]:
    for held in snapshot.counters:
        yield f"  counter   {held.counter}: {held.total:,}" + (" left" if held.grants else "")
        for grant in held.grants:
            until = second_of(microseconds_of(grant.expires))
            yield f"            {grant.left:,} of {grant.granted:,} until {until}, {grant.id or 'of an unknown grant'}"


def _lines(found: Reading, *, with_unused: bool) -> Iterator[str]:
    snapshot = found.snapshot
    yield from _limit_lines(snapshot, with_unused=with_unused)
    for override in found.overrides:
        yield f"  override  {_override(override, snapshot.subject)}"
    for ban in snapshot.bans:
        yield f"  ban       from {ban.rule}, for another {in_words(ban.ends_in * SECOND)}"
    for held in snapshot.leases:
        first = f"the first is free in {in_words(held.ends_in[0] * SECOND)}, from {held.source}"
        most = f" of {held.limit}" if held.limit else ""
        yield f"  in use    {held.name}: {quantity(held.number, 'slot')}{most}; {first}"
    yield from _counter_lines(snapshot)
    for event in found.refused:
        until = f", until {second_of(event.until)}" if event.until else ""
        rule = event.rule or "a rule with a very long name"
        why = _said(event) or f"limit {event.capacity}"
        other = "" if event.subject == snapshot.subject else f", as {event.subject or _LONG}"
        yield f"  {event.kind:<9} {second_of(event.at)}{until}, by {rule} ({why}){other}"
    for day, rules in sorted(snapshot.days.items()):
        yield f"  {day}  {', '.join(f'{rule} {_count(count)}' for rule, count in rules.items())}"
    for name, why in snapshot.unread.items() if with_unused else ():
        if name not in snapshot.counted:
            yield f"  not read  {name}: {why}"
    for words in snapshot.elsewhere.values() if with_unused else ():
        yield f"  others    {words}"


def _limit_lines(snapshot: SubjectSnapshot, *, with_unused: bool) -> Iterator[str]:
    shown = [limit for limit in snapshot.limits if with_unused or limit.used or _is_affected(limit, snapshot)]
    for limit in shown:
        tier = f" ({limit.tier})" if limit.tier else ""
        prefetch = f", prefetch for {limit.prefetch:g} s" if limit.prefetch else ""
        yield f"  {limit.rule}{tier}: {limit.rate} by {limit.algorithm}{prefetch}"
        ahead = f" ({limit.taken_ahead} of them taken ahead)" if limit.taken_ahead else ""
        used = f"{limit.used} of {limit.limit} used{ahead}, {limit.remaining} left"
        yield f"    {bar(limit.used / limit.limit if limit.limit else 1)} {used}; {_next_hit(limit)}"
        yield f"    from {limit.source}"
    for name in snapshot.counted:
        yield f"  {name}: something is counted, but {snapshot.unread[name]}"
    if not (snapshot.limits or snapshot.unread):
        yield "  No rule counts this subject."
    elif not shown and not snapshot.counted:
        yield "  Nothing is used."
    if not with_unused:
        yield "  --all also shows unused limits, and rules that cannot be read or count others"


def _is_affected(limit: LimitStatus, snapshot: SubjectSnapshot) -> bool:
    """Return whether a ban or an override is about this limit; an override for all rules has a line of its own."""
    override = snapshot.override_of(limit.rule)
    is_for_all = override is not None and override.rule == ALL_RULES
    return bool(limit.why) and not (limit.why != "banned" and is_for_all)


def _next_hit(limit: LimitStatus) -> str:
    if limit.instead:
        return str(WITHOUT_STORE[limit.instead])
    why = {"": "", "override": " (by an override)"}.get(limit.why, f" ({limit.why})")
    why = " (a shadow rule: it only reports)" if limit.shadow else why
    if limit.retry_after is None:
        return f"no hit is admitted{why}"
    wait = f" in {in_words(limit.retry_after * SECOND)}" if limit.retry_after else ""
    return f"the next hit is admitted{wait}{why}"


def _override(override: Override, subject: str) -> str:
    whose = "" if override.subject == subject else f" for {override.subject}"
    what = f"rate {override.rates}" if override.mode == "rate" else override.mode
    begins = f" from {second_of(override.begins)}" if override.begins else ""
    ends = f" until {second_of(override.ends)}" if override.ends else ""
    return f"{override.rule}{whose}: {what}{begins}{ends}"


def _count(count: Count) -> str:
    units = f" ({quantity(count.units, 'unit')})" if count.units != count.allowed else ""
    return f"{count.allowed} allowed{units} {count.refused} refused"
