"""`manage.py quota_status`: how a subject stands under every rule, why, and until when."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_quota.clock import SECOND, in_words
from django_quota.conf import current
from django_quota.exceptions import QuotaError
from django_quota.management.console import printable, redis_store
from django_quota.overrides import Override
from django_quota.status import Held, LimitStatus, SubjectStatus, status_of
from django_quota.subjects import named_subject


class Command(BaseCommand):
    """The command; see the module."""

    help = "Say how a subject stands: limits, overrides, bans, leases, and where each figure comes from."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("subject", help="such as user:42 or ip:203.0.113.9")
        parser.add_argument("--rule", action="append", metavar="NAME", help="only this rule; may be repeated")
        parser.add_argument("--all", action="store_true", help="unused limits and rules that cannot be asked, too")
        parser.add_argument("--json", action="store_true", help="print one JSON object; times in seconds")

    def handle(self, *_: Any, **options: Any) -> None:
        """Ask, and show."""
        try:
            redis_store()
            status = status_of(named_subject(options["subject"]), options["rule"])
        except QuotaError as error:
            raise CommandError(str(error)) from error
        if options["json"]:
            self.stdout.write(json.dumps(as_json(status)))
            return
        if not current().enabled:
            self.stderr.write('Note: QUOTA["ENABLED"] is false, so nothing is limited.')
        for line in lines(status, with_unused=bool(options["all"] or options["rule"])):
            self.stdout.write(printable(line))


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
    }


def lines(status: SubjectStatus, *, with_unused: bool = True) -> Iterator[str]:
    """Return what the command prints for people, a line each."""
    yield status.subject
    shown = [limit for limit in status.limits if with_unused or limit.used or limit.why]
    for limit in shown:
        yield from _limit_lines(limit)
    if not shown:
        yield "  Nothing is used, and nothing stands above its limits."
    hidden = len(status.limits) - len(shown) + (0 if with_unused else len(status.unread))
    if hidden:
        yield f"  {hidden} more can be seen with --all: limits that are unused, and rules that cannot be asked"
    for rule, override in status.overrides.items():
        yield f"  override  {_override(rule, override)}"
    for rule, seconds in status.bans.items():
        yield f"  ban       from {rule}, for another {in_words(seconds * SECOND)}"
    for held in status.leases:
        yield f"  leases    {_held(held)}"
    for held in status.holds:
        yield f"  holds     {_held(held)}"
    for day, rules in sorted(status.days.items()):
        counts = ", ".join(f"{rule} {count.allowed} allowed {count.refused} refused" for rule, count in rules.items())
        yield f"  {day}  {counts}"
    for name, why in status.unread.items() if with_unused else ():
        yield f"  not asked {name}: {why}"


BAR = 20


def _limit_lines(limit: LimitStatus) -> Iterator[str]:
    filled = BAR if limit.limit == 0 else round(BAR * min(1.0, limit.used / limit.limit))
    bar = "█" * filled + "░" * (BAR - filled)
    yield f"  {limit.rule}: {limit.rate} by {limit.algorithm}"
    yield f"    {bar} {limit.used} of {limit.limit} used, {limit.remaining} left; {_next(limit)}"
    yield f"    from {limit.source}"


def _next(limit: LimitStatus) -> str:
    above = {"": "", "override": " (by an override)", "exempt": " (exempt)"}.get(limit.why, f" ({limit.why})")
    if limit.retry_after == 0:
        return f"the next hit is admitted{above}"
    if limit.retry_after is None:
        return f"no hit is admitted{above}"
    return f"the next hit is admitted in {in_words(limit.retry_after * SECOND)}{above}"


def _override(rule: str | None, override: Override) -> str:
    what = f"rate {override.rates}" if override.mode == "rate" else override.mode
    begins, ends = _moment(override.begins), _moment(override.ends)
    return f"{rule}: {what}{f' from {begins}' if begins else ''}{f' until {ends}' if ends else ''}"


def _held(held: Held) -> str:
    soonest = in_words(held.ends_in[0] * SECOND)
    return f"{held.name}: {len(held.ends_in)}, the first ends in {soonest}, from {held.source}"


def _moment(microseconds: int) -> str | None:
    return datetime.fromtimestamp(microseconds / SECOND, UTC).isoformat() if microseconds else None
