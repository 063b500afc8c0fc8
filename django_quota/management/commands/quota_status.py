"""`manage.py quota_status`: how a subject stands under every rule, why, and until when."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_quota.clock import SECOND, in_words
from django_quota.conf import current
from django_quota.events import Event, iso
from django_quota.exceptions import QuotaError
from django_quota.hints import composite_subjects, sought_subject
from django_quota.management.console import (
    SUBJECT_HELP,
    PrintingCommand,
    address_note,
    printable,
    redis_store,
    subject_note,
)
from django_quota.management.waiting import what_waits
from django_quota.overrides import ALL_RULES, Override
from django_quota.refusals import refused_lately
from django_quota.status import INSTEAD, UNNAMED, Held, LimitStatus, SubjectStatus, status_of


class Command(PrintingCommand):
    """The command; see the module."""

    help = "Say how a subject stands: limits, overrides, bans, leases, and where each figure comes from."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("subject", help=SUBJECT_HELP)
        parser.add_argument("--rule", action="append", metavar="NAME", help="only this rule; may be repeated")
        parser.add_argument("--all", action="store_true", help="unused limits and rules that cannot be asked, too")
        parser.add_argument("--json", action="store_true", help="print one JSON object; times in seconds")

    def handle(self, *_: Any, **options: Any) -> None:
        """Ask, and show."""
        try:
            redis_store()
            subject = sought_subject(options["subject"])
            if note := address_note(options["subject"], subject):
                self.stderr.write(note)
            waiting = what_waits(subject)
            if waiting.note:
                self.stderr.write(f"Note: {waiting.note}")
            status = status_of(subject, options["rule"])
            refused = refused_lately(status.subject)
            composite = composite_subjects(status.subject)
        except QuotaError as error:
            raise CommandError(str(error)) from error
        if options["json"]:
            said = {**as_json(status), "refused": [event.as_json() for event in refused], "waiting": waiting.left}
            self.stdout.write(json.dumps({**said, "composite": composite}))
            return
        if not current().enabled:
            self.stderr.write('Note: QUOTA["ENABLED"] is false, so nothing is limited.')
        if status.refuses:
            self.stderr.write(f"Note: Redis takes no changes, so nothing is counted. It says: {status.refuses}")
        wanted = [event for event in refused if not options["rule"] or event.rule in options["rule"]]
        for line in lines(status, wanted, with_unused=bool(options["all"] or options["rule"])):
            self.stdout.write(printable(line))
        for name, whole in composite.items():
            self.stdout.write(printable(f"  composite {name} counts this together with more: ask for '{whole}'"))
        note = "" if refused or _is_met(status) else subject_note(status.subject)
        if note:
            self.stderr.write(note)


def as_json(status: SubjectStatus) -> dict[str, Any]:
    """Return what the command prints for machines."""
    return {
        "subject": status.subject,
        "limits": [asdict(limit) for limit in status.limits],
        "overrides": [
            {"rule": rule, "mode": o.mode, "rates": o.rates, "begins": _moment(o.begins), "ends": _moment(o.ends)}
            for rule, o in status.overrides.items()
        ],
        "bans": status.bans,
        "leases": [asdict(held) for held in status.leases],
        "holds": [asdict(held) for held in status.holds],
        "days": {
            str(day): {rule: {"allowed": count.allowed, "refused": count.refused} for rule, count in rules.items()}
            for day, rules in status.days.items()
        },
        "unread": status.unread,
        "refuses": status.refuses or None,
    }


def _is_met(status: SubjectStatus) -> bool:
    """Say whether anything is known of a subject, besides that rules could be asked."""
    is_used = any(limit.used or limit.why for limit in status.limits)
    return bool(is_used or status.states or status.overrides or status.leases or status.holds or status.days)


def lines(status: SubjectStatus, refused: Sequence[Event] = (), *, with_unused: bool = True) -> Iterator[str]:
    """Return what the command prints for people, a line each; `refused`: the last refusals, the newest first."""
    yield status.subject
    yield from _used_lines(status, with_unused=with_unused)
    for rule, override in status.overrides.items():
        yield f"  override  {_override(rule, override)}"
    for rule, seconds in status.bans.items():
        yield f"  ban       from {rule}, for another {in_words(seconds * SECOND)}"
    for held in status.leases:
        yield f"  leases    {_held(held)}"
    for held in status.holds:
        yield f"  holds     {_held(held)}"
    for event in refused:
        yield f"  {event.kind:<9} {_refused(event)}"
    for day, rules in sorted(status.days.items()):
        counts = ", ".join(f"{rule} {count.allowed} allowed {count.refused} refused" for rule, count in rules.items())
        yield f"  {day}  {counts}"
    for name, why in status.unread.items() if with_unused else ():
        if name not in status.states:
            yield f"  not asked {name}: {why}"


def _used_lines(status: SubjectStatus, *, with_unused: bool) -> Iterator[str]:
    """Return the limits of which something is used, and how many others there are."""
    shown = [limit for limit in status.limits if with_unused or limit.used or _stands_above(limit, status)]
    for limit in shown:
        yield from _limit_lines(limit)
    for name, states in status.states.items():
        yield f"  {name}: something is counted over {_spans(states)}, but {_unread(status.unread[name])}"
    if not shown and not status.states:
        by_all = ALL_RULES in status.overrides
        yield f"  Nothing is used{'' if by_all else ', and nothing stands above its limits'}."
    unread = status.unread.keys() - status.states.keys()
    hidden = len(status.limits) - len(shown) + (0 if with_unused else len(unread))
    if hidden:
        yield f"  {hidden} more can be seen with --all: limits that are unused, and rules that cannot be asked"


def _stands_above(limit: LimitStatus, status: SubjectStatus) -> bool:
    """Say whether something is about this limit; an override for all rules is told once, and not of each."""
    by_override = limit.why in ("override", "exempt", "blocked")
    return bool(limit.why) and not (
        by_override and ALL_RULES in status.overrides and limit.rule not in status.overrides
    )


BAR = 20


def _limit_lines(limit: LimitStatus) -> Iterator[str]:
    filled = BAR if limit.limit == 0 else round(BAR * min(1.0, limit.used / limit.limit))
    bar = "█" * filled + "░" * (BAR - filled)
    tier = f" ({limit.tier})" if limit.tier else ""
    yield f"  {limit.rule}{tier}: {limit.rate} by {limit.algorithm}"
    yield f"    {bar} {limit.used} of {limit.limit} used, {limit.remaining} left; {_next(limit)}"
    yield f"    from {limit.source}"


def _next(limit: LimitStatus) -> str:
    above = {"": "", "override": " (by an override)", "exempt": " (exempt)"}.get(limit.why, f" ({limit.why})")
    if limit.instead:
        return str(INSTEAD[limit.instead])
    if limit.retry_after == 0:
        return f"the next hit is admitted{above}"
    if limit.retry_after is None:
        return f"no hit is admitted{above}"
    return f"the next hit is admitted in {in_words(limit.retry_after * SECOND)}{above}"


def _override(rule: str | None, override: Override) -> str:
    what = f"rate {override.rates}" if override.mode == "rate" else override.mode
    begins, ends = _moment(override.begins), _moment(override.ends)
    return f"{rule}: {what}{f' from {begins}' if begins else ''}{f' until {ends}' if ends else ''}"


def _spans(states: Iterable[str]) -> str:
    """Return over what the limits of these states count: `sw.3600s` over 3600s, `c.1month.UTC` over 1month."""
    return " and ".join(dict.fromkeys(state.split(".")[1] for state in states))


def _unread(why: str) -> str:
    return "only the code knows its rate" if why == str(UNNAMED) else why


def _refused(event: Event) -> str:
    until = f", until {iso(event.until)}" if event.until else ""
    rule = event.rule or "a rule whose name is too long to be kept"
    return f"by {rule}, limit {event.capacity}, at {iso(event.at)}{until}"


def _held(held: Held) -> str:
    soonest = in_words(held.ends_in[0] * SECOND)
    return f"{held.name}: {len(held.ends_in)}, the first ends in {soonest}, from {held.source}"


def _moment(microseconds: int) -> str | None:
    return datetime.fromtimestamp(microseconds / SECOND, UTC).isoformat() if microseconds else None
