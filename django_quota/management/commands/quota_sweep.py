"""`manage.py quota_sweep`: drop what has expired; see `django_quota.operating.sweep`.

Redis expires keys by itself, so there it drops expired entries of sorted sets. In a database it deletes expired rows.
If the site counts in both, it sweeps Redis first, and then the database.

You can stop or kill it at any time, and run it as often as you like. The next sweep of Redis continues where this one
stopped if it runs within an hour and Redis was not restarted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

from django.core.management.base import CommandError, CommandParser

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.clock import DAY
from django_quota.core.errors import StoreUnavailable
from django_quota.management.console import QuotaCommand, duration_of, progress, quantity, shared_stores
from django_quota.operating.sweep import RowReport, Sweeper, SweepReport, sweep_rows
from django_quota.stores.base import RedisServers, Tables
from django_quota.stores.database.log import KeptEvents, count_expired
from django_quota.stores.scanning import Patience

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
        parser.add_argument("--json", action="store_true", help="print one JSON object for each sweep")

    def handle(self, *_: Any, **options: Any) -> None:
        if not 1 <= options["budget_ms"] <= MAX_BUDGET_MS:
            raise CommandError(f"--budget-ms {options['budget_ms']}: use 1 to {MAX_BUDGET_MS:,}, for example 100.")

        def once(stop: threading.Event) -> None:
            for each in shared_stores():
                if each.store.database is not None:
                    self._sweep_rows(each.store.database, each.prefix, stop, options)
                else:
                    self._sweep_keys(cast("RedisServers", each.store.redis), stop, options)

        self.repeat(duration_of("--every", options["every"]), once)

    def _sweep_keys(self, store: RedisServers, stop: threading.Event, options: dict[str, Any]) -> None:
        budget_ms, is_dry = options["budget_ms"], options["dry_run"]
        sweeper = Sweeper(store, current().prefix, budget_ms=budget_ms, dry_run=is_dry)
        with progress(self.stderr, "Sweeping", sweeper.total()) as advance:
            report = sweeper.sweep(stop, advance)
        self.print_result(options, report.as_json(), _in_words(report, is_dry=is_dry))
        self.note_foreign("counter", report.foreign)
        if report.missed:
            missed = quantity(report.missed, "part")
            raise StoreUnavailable(f"{missed} of the Cluster did not answer. The next sweep looks at the missing keys")

    def _sweep_rows(self, store: Tables, prefix: str, stop: threading.Event, options: dict[str, Any]) -> None:
        settings, now = current(), clock.now()
        keep = KeptEvents(settings.events, settings.event_days * DAY)
        expired = Patience(stop)(partial(count_expired, store, now, keep))
        if options["dry_run"]:
            report = RowReport(expired, is_complete=True)
        else:
            with progress(self.stderr, "Deleting", sum(expired)) as advance:
                report = sweep_rows(store, prefix, now, keep, stop, advance, options["budget_ms"])
        states, bans, events = report.rows
        what = f"{quantity(states, 'expired state')}, {quantity(bans, 'ban')} and {quantity(events, 'event')}"
        lines = [f"{'Would delete' if options['dry_run'] else 'Deleted'} {what}."]
        lines += [f"Gave back {quantity(report.leases, 'lease')} of counters."] if report.leases else []
        lines += [] if report.is_complete else ["Stopped before the end."]
        self.print_result(options, report.as_json(), lines)
        self.note_foreign("counter", report.foreign)


def _in_words(report: SweepReport, *, is_dry: bool) -> Iterator[str]:
    if report.resumed:
        yield "Continued where the last sweep stopped."
    yield f"Examined {quantity(report.keys, 'key')}, {report.sets:,} of them sorted sets, in {report.seconds:.1f} s."
    entries = quantity(report.removed, "expired entry", "expired entries")
    yield f"{'Would remove' if is_dry else 'Removed'} {entries}."
    if report.repaired:
        yield f"{'Would give' if is_dry else 'Gave'} a TTL to {quantity(report.repaired, 'key')} that had none."
    if not report.complete and not report.missed:
        yield "Stopped before the end" + ("." if is_dry else ". The next sweep continues from there.")
