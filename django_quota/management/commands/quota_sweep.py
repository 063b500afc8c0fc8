"""`manage.py quota_sweep`: drop what has expired from the sorted sets in Redis; see `django_quota.sweeping`.

It may be stopped or killed at any time, and run as often as one likes: the next one goes on where it was stopped,
within an hour, on the same run of the server, and with the same --rule.
"""

from __future__ import annotations

import json
import threading
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_quota.conf import current
from django_quota.exceptions import QuotaError, StoreUnavailable
from django_quota.management.console import PrintingCommand, redis_store, rule_notes, stopping
from django_quota.management.progress import progress
from django_quota.sweeping import Report, Sweeper

MOST_MS = 1_000


LONGEST_PAUSE = 86_400.0
"""The most seconds between two sweeps."""


class Command(PrintingCommand):
    """The command; see the module."""

    help = "Drop what has expired from the sorted sets in Redis, and give a TTL to keys that have none."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--dry-run", action="store_true", help="only count; change nothing")
        parser.add_argument("--every", type=float, metavar="SECONDS", help="sweep again and again, so long apart")
        parser.add_argument(
            "--budget-ms",
            type=int,
            default=100,
            metavar="MS",
            help="how many milliseconds of each second Redis may be used: 1 to 1000 (100)",
        )
        parser.add_argument("--rule", metavar="NAME", help="only this rule's keys")
        parser.add_argument("--json", action="store_true", help="one JSON object for each sweep")

    def handle(self, *_: Any, **options: Any) -> None:
        """Sweep once, or again and again."""
        if not 1 <= options["budget_ms"] <= MOST_MS:
            raise CommandError(f"--budget-ms {options['budget_ms']} is not within 1 to {MOST_MS}.")
        if options["every"] is not None and not 0 < options["every"] <= LONGEST_PAUSE:
            raise CommandError(f"--every {options['every']:g} is not above 0 and up to a day of seconds; 60 would do.")
        for note in rule_notes([] if options["rule"] is None else [options["rule"]]):
            self.stderr.write(note)
        with stopping() as stop:
            while True:
                try:
                    missed = self._sweep(stop, options)
                    if missed and options["every"] is None:
                        raise CommandError("Not all of the Cluster was swept.")
                except StoreUnavailable as error:
                    if options["every"] is None:
                        raise CommandError(str(error)) from error
                    self.stderr.write(str(error))
                except QuotaError as error:
                    raise CommandError(str(error)) from error
                if options["every"] is None or stop.wait(options["every"]):
                    return

    def _sweep(self, stop: threading.Event, options: dict[str, Any]) -> int:
        """Sweep once, and return how much of a Cluster did not answer."""
        sweeper = Sweeper(
            redis_store(),
            current().prefix,
            budget_ms=options["budget_ms"],
            rule=options["rule"],
            dry_run=options["dry_run"],
        )
        with progress(self.stderr, "Sweeping", sweeper.total()) as advance:
            report = sweeper.sweep(stop, advance)
        if options["json"]:
            self.stdout.write(json.dumps(report.as_json()))
        else:
            self.stdout.write("\n".join(_in_words(report, is_dry=options["dry_run"])))
        self.stdout.flush()
        return report.missed


def _in_words(report: Report, *, is_dry: bool) -> list[str]:
    lines = []
    if report.resumed:
        lines.append("Went on where the last sweep was stopped.")
    lines.append(f"Looked at {report.keys:,} keys, {report.sets:,} of them sorted sets that are swept.")
    if is_dry:
        lines.append(f"Would remove {report.removed:,} expired entries from {report.changed:,} sets.")
    else:
        lines.append(
            f"Removed {report.removed:,} expired entries from {report.changed:,} sets, {report.emptied:,} of which are "
            f"gone; {_bytes(report.freed)} came free, by what MEMORY USAGE says (it estimates large sets)."
        )
    if report.carried or report.on_the_way:
        done = "Would carry on" if is_dry else "Carried on"
        left = f"; {report.on_the_way:,} could not be, and stay on the way" if report.on_the_way else ""
        lines.append(f"{done} {report.carried:,} amounts that transfers had left on the way{left}.")
    if report.repaired:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(report.repaired.items()))
        done = "Would give" if is_dry else "Gave"
        lines.append(f"{done} a TTL to {report.repaired.total():,} keys that had none, by kind: {kinds}.")
    lines.append(
        f"It took {report.seconds:.1f} s, the longest call {report.slowest * 1_000:.1f} ms, as seen from here."
    )
    if report.missed:
        lines.append(f"{report.missed:,} parts of the Cluster did not answer: the next sweep looks at their keys.")
    elif not report.complete:
        lines.append("Stopped before the end" + ("." if is_dry else ": the next sweep goes on from there."))
    return lines


def _bytes(count: int) -> str:
    size, units = float(count), ["bytes", "KB", "MB", "GB", "TB"]
    while abs(size) >= 1_000 and len(units) > 1:  # noqa: PLR2004 — a kilo
        size /= 1_000
        del units[0]
    return f"{count:,} bytes" if units[0] == "bytes" else f"{size:,.1f} {units[0]}"
