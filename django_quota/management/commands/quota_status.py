"""`manage.py quota_status`: show what is known of a subject, where each figure comes from, and until when it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser

from django_quota.conf import current
from django_quota.core.clock import SECOND, in_words
from django_quota.core.overrides import ALL_RULES, Override
from django_quota.features.event_stream import Event, iso
from django_quota.features.usage import Count
from django_quota.limiting.overrides import overrides
from django_quota.management.console import SUBJECT_HELP, QuotaCommand, counted, printable, second_of, shared_store
from django_quota.operating.inspection import (
    UNNAMED,
    WITHOUT_STORE,
    HeldStatus,
    LimitStatus,
    SubjectSnapshot,
    load_snapshot,
    recent_refusals,
)
from django_quota.operating.longer_subjects import longer_subjects
from django_quota.operating.lookup import composite_subjects, parse_rule_input, parse_search_input

BAR_WIDTH = 20


class Command(QuotaCommand):
    help = "Show the limits, overrides, bans and slots of a subject, and where each figure comes from."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("subject", help=SUBJECT_HELP)
        parser.add_argument("--rule", action="append", metavar="NAME", help="only this rule; you may repeat it")
        parser.add_argument("--all", action="store_true", help="also unused limits, and rules that cannot be read")
        parser.add_argument("--json", action="store_true", help="print one JSON object, with times in seconds")

    def handle(self, *_: Any, **options: Any) -> None:
        shared_store()
        subject = parse_search_input(options["subject"])
        names = options["rule"] and list(map(parse_rule_input, options["rule"]))
        self.note_subject(options["subject"], subject, is_used=True)
        snapshot = load_snapshot(subject, names, scan=True)
        refused, composite = recent_refusals(subject), composite_subjects(subject)
        longer = {each.subject: each.refusal and each.refusal.rule for each in longer_subjects(subject)}
        if options["json"]:
            events = [event.as_json() for event in refused]
            self.print_json({**as_json(snapshot), "refused": events, "composite": composite, "longer": longer})
            return
        if not current().enabled:
            self.note('Note: QUOTA["ENABLED"] is false, so nothing is limited.')
        if snapshot.refuses:
            self.note(f"Note: Redis takes no changes, so nothing is counted. It says: {snapshot.refuses}")
        if overrides.problem:
            self.note(f"Note: The overrides could not be read: {overrides.problem.rstrip('.')}.")
        wanted = [event for event in refused if not names or event.rule in names]
        for line in lines(snapshot, wanted, with_unused=bool(options["all"] or names)):
            self.stdout.write(printable(line))
        for name, whole in composite.items():
            self.stdout.write(printable(f"  composite {name} counts this together with more: ask for '{whole}'"))
        for whole, rule in longer.items():
            now = f"is refused by {rule}" if rule else "is not refused now"
            self.stdout.write(printable(f"  together  {whole} {now}"))
        self.note_subject(subject, subject, is_used=bool(refused) or _is_used(snapshot))


def as_json(snapshot: SubjectSnapshot) -> dict[str, Any]:
    """Return what `--json` prints of a snapshot."""
    return {
        "subject": snapshot.subject,
        "limits": [asdict(limit) for limit in snapshot.limits],
        "overrides": [
            {
                "subject": o.subject,
                "rule": o.rule,
                "mode": o.mode,
                "rates": o.rates,
                "begins": _moment(o.begins),
                "ends": _moment(o.ends),
            }
            for o in snapshot.overrides
        ],
        "bans": {ban.rule: ban.ends_in for ban in snapshot.bans},
        "leases": [asdict(held) for held in snapshot.leases],
        "days": {
            str(day): {rule: count._asdict() for rule, count in rules.items()} for day, rules in snapshot.days.items()
        },
        "unread": snapshot.unread,
        "refuses": snapshot.refuses or None,
        "overrides_problem": overrides.problem or None,
    }


def _is_used(snapshot: SubjectSnapshot) -> bool:
    """Return whether anything is known of the subject itself."""
    has_used_limits = any(limit.used or limit.why for limit in snapshot.limits)
    own = [override for override in snapshot.overrides if override.subject == snapshot.subject]
    others = (snapshot.states, own, snapshot.leases, snapshot.days)
    return has_used_limits or any(others)


def lines(snapshot: SubjectSnapshot, refused: Sequence[Event], *, with_unused: bool) -> Iterator[str]:
    """Return the lines that the command prints; `refused` are recent refusals."""
    yield snapshot.subject
    yield from _limit_lines(snapshot, with_unused=with_unused)
    for override in snapshot.overrides:
        yield f"  override  {_override(override, snapshot.subject)}"
    for ban in snapshot.bans:
        yield f"  ban       from {ban.rule}, for another {in_words(ban.ends_in * SECOND)}"
    for held in snapshot.leases:
        yield f"  in use    {held.name}: {counted(held.number, 'slot')}; the first is free in {_held(held)}"
    for event in refused:
        yield f"  {event.kind:<9} {_refused(event)}"
    for day, rules in sorted(snapshot.days.items()):
        counts = ", ".join(f"{rule} {_count(count)}" for rule, count in rules.items())
        yield f"  {day}  {counts}"
    for name, why in snapshot.unread.items() if with_unused else ():
        if name not in snapshot.states:
            yield f"  not read  {name}: {why}"


def _count(count: Count) -> str:
    units = f" ({counted(count.units, 'unit')})" if count.units != count.allowed else ""
    return f"{count.allowed} allowed{units} {count.refused} refused"


def _limit_lines(snapshot: SubjectSnapshot, *, with_unused: bool) -> Iterator[str]:
    shown = [limit for limit in snapshot.limits if with_unused or limit.used or _is_affected(limit, snapshot)]
    for limit in shown:
        yield from _limit(limit)
    for name, state_ids in snapshot.states.items():
        # `sw.3600s` counts over 3600s, `c.1month.UTC` over 1month.
        spans = " and ".join(dict.fromkeys(state_id.split(".")[1] for state_id in state_ids))
        why = snapshot.unread[name]
        reason = "only the code knows its rate" if why == str(UNNAMED) else why
        yield f"  {name}: something is counted over {spans}, but {reason}"
    if not shown and not snapshot.states:
        has_reason = snapshot.override_of(ALL_RULES) is not None
        yield f"  Nothing is used{'' if has_reason else ', and no override or ban is in force'}."
    if with_unused:
        return
    unused = len(snapshot.limits) - len(shown)
    unread = len(snapshot.unread.keys() - snapshot.states.keys())
    hidden = [counted(unused, "unused limit")] * bool(unused)
    hidden += [f"{counted(unread, 'rule')} that cannot be read"] * bool(unread)
    if hidden:
        yield f"  --all also shows {' and '.join(hidden)}"


def _is_affected(limit: LimitStatus, snapshot: SubjectSnapshot) -> bool:
    """Return whether a ban or an override is about this limit; an override for all rules has a line of its own."""
    override = snapshot.override_of(limit.rule)
    is_for_all = override is not None and override.rule == ALL_RULES
    return bool(limit.why) and not (limit.why != "banned" and is_for_all)


def _limit(limit: LimitStatus) -> Iterator[str]:
    filled = BAR_WIDTH if limit.limit == 0 else round(BAR_WIDTH * min(1.0, limit.used / limit.limit))
    bar = "█" * filled + "░" * (BAR_WIDTH - filled)
    tier = f" ({limit.tier})" if limit.tier else ""
    yield f"  {limit.rule}{tier}: {limit.rate} by {limit.algorithm}"
    yield f"    {bar} {limit.used} of {limit.limit} used, {limit.remaining} left; {_next_hit(limit)}"
    yield f"    from {limit.source}"


def _next_hit(limit: LimitStatus) -> str:
    why = {"": "", "override": " (by an override)"}.get(limit.why, f" ({limit.why})")
    why = " (a shadow rule: it only reports)" if limit.shadow else why
    if limit.instead:
        return str(WITHOUT_STORE[limit.instead])
    if limit.retry_after == 0:
        return f"the next hit is admitted{why}"
    if limit.retry_after is None:
        return f"no hit is admitted{why}"
    return f"the next hit is admitted in {in_words(limit.retry_after * SECOND)}{why}"


def _override(override: Override, subject: str) -> str:
    whose = "" if override.subject == subject else f" for {override.subject}"
    what = f"rate {override.rates}" if override.mode == "rate" else override.mode
    begins = f" from {second_of(override.begins)}" if override.begins else ""
    ends = f" until {second_of(override.ends)}" if override.ends else ""
    return f"{override.rule}{whose}: {what}{begins}{ends}"


def _refused(event: Event) -> str:
    until = f", until {second_of(event.until)}" if event.until else ""
    rule = event.rule or "a rule with a very long name"
    return f"{second_of(event.at)}{until}, by {rule} (limit {event.capacity})"


def _held(held: HeldStatus) -> str:
    """Return when the first lease ends, and the key that holds the leases."""
    return f"{in_words(held.ends_in[0] * SECOND)}, from {held.source}"


def _moment(microseconds: int) -> str | None:
    return iso(microseconds) if microseconds else None
