"""`manage.py quota_sweep`: drop expired entries from sorted sets in Redis; see `django_quota.services.sweep`.

Pending overrides are published first.

You can stop or kill it at any time, and run it as often as you like. The next sweep continues where this one stopped if
it runs within an hour, with the same --rule, and Redis was not restarted.
"""

from __future__ import annotations

import threading
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import close_old_connections
from django.template.defaultfilters import filesizeformat

from django_quota.conf import current
from django_quota.core.errors import StoreUnavailable
from django_quota.management.console import QuotaCommand, counted, progress, redis_store, stopping
from django_quota.management.pending_overrides import (
    PendingReport,
    publish_pending_overrides,
    report_pending_overrides,
)
from django_quota.services.lookup import parse_rule_input
from django_quota.services.sweep import Report, Sweeper

MAX_BUDGET_MS = 1_000

MAX_PAUSE = 86_400.0
"""Seconds."""


class Command(QuotaCommand):
    help = (
        "Publish pending overrides, drop expired entries from sorted sets in Redis, and give a TTL to keys that have "
        "none."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="only count, and change nothing")
        parser.add_argument("--every", type=float, metavar="SECONDS", help="repeat, with this pause in between")
        parser.add_argument(
            "--budget-ms",
            type=int,
            default=100,
            metavar="MS",
            help="milliseconds of each second that it may use Redis: 1 to 1000 (default: 100)",
        )
        parser.add_argument("--rule", metavar="NAME", help="only keys of this rule")
        parser.add_argument("--json", action="store_true", help="print one JSON object for each sweep")

    def handle(self, *_: Any, **options: Any) -> None:
        every = options["every"]
        if not 1 <= options["budget_ms"] <= MAX_BUDGET_MS:
            raise CommandError(f"--budget-ms {options['budget_ms']}: use 1 to {MAX_BUDGET_MS}, for example 100.")
        if every is not None and not 0 < every <= MAX_PAUSE:
            raise CommandError(f"--every {every:g}: use a number of seconds above 0 and up to a day, for example 60.")
        if options["rule"] is not None:
            options["rule"] = parse_rule_input(options["rule"])
            self.note_rules([options["rule"]])
        with stopping() as stop:
            while True:
                try:
                    self._round(stop, options)
                except StoreUnavailable as error:
                    if every is None:
                        raise
                    self.note(str(error))
                if every is None or stop.wait(every):
                    return
                close_old_connections()

    def _round(self, stop: threading.Event, options: dict[str, Any]) -> None:
        """Publish and sweep once. If publishing fails, it sweeps all the same, and raises that error at the end."""
        pending = report_pending_overrides() if options["dry_run"] else publish_pending_overrides()
        self.note(pending.note)
        missed = self._sweep(stop, options, pending)
        if missed and options["every"] is None:
            raise CommandError("Not all of the Cluster was swept.")
        if pending.problem is not None:
            raise pending.problem

    def _sweep(self, stop: threading.Event, options: dict[str, Any], pending: PendingReport) -> int:
        """Sweep once, and return how many parts of a Cluster did not answer."""
        sweeper = Sweeper(
            redis_store(),
            current().prefix,
            budget_ms=options["budget_ms"],
            rule=options["rule"],
            dry_run=options["dry_run"],
        )
        with progress(self.stderr, "Sweeping", sweeper.total()) as advance:
            report = sweeper.sweep(stop, advance)
        lines = [*pending.lines, *_in_words(report, is_dry=options["dry_run"])]
        self.print_result(options, {**report.as_json(), **pending.as_json()}, lines)
        return report.missed


def _in_words(report: Report, *, is_dry: bool) -> list[str]:
    lines = []
    if report.resumed:
        lines.append("Continued where the last sweep stopped.")
    lines.append(f"Looked at {counted(report.keys, 'key')}, {counted(report.sets, 'sorted set')} to sweep among them.")
    entries = counted(report.removed, "expired entry", "expired entries")
    sets = counted(report.changed, "set")
    if is_dry:
        lines.append(f"Would remove {entries} from {sets}.")
    else:
        lines.append(
            f"Removed {entries} from {sets} ({report.emptied:,} now gone); {filesizeformat(report.freed)} came free by "
            "MEMORY USAGE, which estimates large sets."
        )
    if report.transfers_finished or report.transfers_pending:
        done = "Would resume" if is_dry else "Resumed"
        left = f"; {report.transfers_pending:,} could not be finished" if report.transfers_pending else ""
        lines.append(f"{done} {counted(report.transfers_finished, 'interrupted transfer')}{left}.")
    if report.repaired:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(report.repaired.items()))
        done = "Would give" if is_dry else "Gave"
        lines.append(f"{done} a TTL to {counted(report.repaired.total(), 'key')} that had none, by kind: {kinds}.")
    lines.append(
        f"It took {report.seconds:.1f} s, and the longest call {report.slowest * 1_000:.1f} ms with the network."
    )
    if report.missed:
        missed = counted(report.missed, "part")
        lines.append(f"{missed} of the Cluster did not answer. The next sweep looks at the missing keys.")
    elif not report.complete:
        lines.append("Stopped before the end" + ("." if is_dry else ". The next sweep continues from there."))
    return lines
