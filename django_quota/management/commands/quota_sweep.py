"""`manage.py quota_sweep`: drop what has expired; see `django_quota.operating.sweep`.

Redis expires keys by itself, so there it drops expired entries of sorted sets. In a database it deletes expired rows.

You can stop or kill it at any time, and run it as often as you like. The next sweep of Redis
continues where this one stopped if it runs within an hour, with the same --rule, and Redis was not restarted.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from django.core.management.base import CommandError, CommandParser
from django.db import close_old_connections
from django.template.defaultfilters import filesizeformat

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.errors import StoreUnavailable
from django_quota.management.console import QuotaCommand, counted, duration_of, progress, shared_store, stopping
from django_quota.operating.lookup import parse_rule_input
from django_quota.operating.row_sweep import RowReport, sweep_rows
from django_quota.operating.sweep import Report, Sweeper
from django_quota.stores.database.log import count_expired

if TYPE_CHECKING:
    from django_quota.stores.database.store import DatabaseStore
    from django_quota.stores.redis.store import RedisStore

MAX_BUDGET_MS = 1_000


class Command(QuotaCommand):
    help = "Drop expired entries from sorted sets in Redis, or expired rows of the database store."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="only count, and change nothing")
        parser.add_argument("--every", metavar="TIME", help="repeat, with this pause in between: 60, or 10m")
        parser.add_argument(
            "--budget-ms",
            type=int,
            default=100,
            metavar="MS",
            help="milliseconds of each second that it may use the store: 1 to 1,000 (default: 100)",
        )
        parser.add_argument("--rule", metavar="NAME", help="only keys of this rule, in Redis")
        parser.add_argument("--json", action="store_true", help="print one JSON object for each sweep")

    def handle(self, *_: Any, **options: Any) -> None:
        every = duration_of("--every", options["every"])
        if not 1 <= options["budget_ms"] <= MAX_BUDGET_MS:
            raise CommandError(f"--budget-ms {options['budget_ms']}: use 1 to {MAX_BUDGET_MS:,}, for example 100.")
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
        missed = self._sweep(stop, options)
        if missed and options["every"] is None:
            raise CommandError("Not all of the Cluster was swept.")

    def _sweep(self, stop: threading.Event, options: dict[str, Any]) -> int:
        """Sweep once, and return how many parts of a Cluster did not answer."""
        store = shared_store()
        if store.database is not None:
            self._sweep_rows(store.database, stop, options)
            return 0
        sweeper = Sweeper(
            cast("RedisStore", store.redis),
            current().prefix,
            budget_ms=options["budget_ms"],
            rule=options["rule"],
            dry_run=options["dry_run"],
        )
        with progress(self.stderr, "Sweeping", sweeper.total()) as advance:
            report = sweeper.sweep(stop, advance)
        self.print_result(options, report.as_json(), list(_in_words(report, is_dry=options["dry_run"])))
        return report.missed

    def _sweep_rows(self, store: DatabaseStore, stop: threading.Event, options: dict[str, Any]) -> None:
        if options["rule"] is not None:
            raise CommandError("--rule needs Redis: the rows of a database do not tell their rule. Leave it out.")
        keep, now = current().events, clock.now()
        expired = count_expired(store, now, keep)
        if options["dry_run"]:
            report = RowReport(expired, is_complete=True)
        else:
            with progress(self.stderr, "Deleting", sum(expired)) as advance:
                report = sweep_rows(store, now, keep, stop, advance, options["budget_ms"])
        self.print_result(options, report.as_json(), _rows_in_words(report, is_dry=options["dry_run"]))


def _rows_in_words(report: RowReport, *, is_dry: bool) -> list[str]:
    states, bans, events = report.rows
    what = f"{counted(states, 'expired state')}, {counted(bans, 'ban')} and {counted(events, 'event')}"
    if is_dry:
        return [f"Would delete {what}."]
    lines = [f"Deleted {what}.", f"It took {report.seconds:.1f} s."]
    return lines if report.is_complete else [*lines, "Stopped before the end."]


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
