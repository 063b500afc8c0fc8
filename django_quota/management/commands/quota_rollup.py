"""`manage.py quota_rollup`: move the usage counted in the store to the rows of `DailyCounter`.

You can stop or kill it at any time, run it as often as you like, and in several processes at once; see `rollup`. The
store keeps the counts of a day for eight days. Once an hour is often enough, and once a minute costs little.
"""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, connections

from django_quota.core.errors import StoreUnavailable
from django_quota.features.usage.rollup import DAYS_AT_ONCE, RollupResult, preview, roll_up
from django_quota.management.console import QuotaCommand, duration_of, progress, quantity, shared_stores

MAX_BATCH = 5_000
"""The largest batch, whose rows stay locked until it is committed."""


class Command(QuotaCommand):
    help = "Move the usage of each day out of the store into the daily counters, exactly once even if killed."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--batch",
            type=int,
            default=DAYS_AT_ONCE,
            metavar="N",
            help=f"subjects and days in one transaction, 1 to {MAX_BATCH:,} (default: {DAYS_AT_ONCE})",
        )
        parser.add_argument("--every", metavar="TIME", help="repeat, with this pause in between: 60, or 10m")
        parser.add_argument("--dry-run", action="store_true", help="only say what would be moved")
        parser.add_argument("--json", action="store_true", help="print what was done as one JSON object a round")
        parser.add_argument(
            "--database",
            default=DEFAULT_DB_ALIAS,
            choices=tuple(connections),
            metavar="ALIAS",
            help="an alias of DATABASES (default: default)",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        if not 1 <= options["batch"] <= MAX_BATCH:
            raise CommandError(f"--batch {options['batch']}: use 1 to {MAX_BATCH:,}, for example {DAYS_AT_ONCE}.")
        self.repeat(duration_of("--every", options["every"]), lambda stop: self._round(stop, options))

    def _round(self, stop: threading.Event, options: dict[str, Any]) -> None:
        done, is_dry = RollupResult(), options["dry_run"]
        problem: StoreUnavailable | None = None
        walk = preview if is_dry else roll_up
        with progress(self.stderr, "Rolling up", None) as advance:
            for each in shared_stores():
                try:
                    for moved in walk(each.store, options["batch"], options["database"], stop, each.prefix):
                        done.add(moved)
                        advance(moved.days)
                        if stop.is_set():
                            break
                except StoreUnavailable as error:  # the other one may answer
                    problem = problem or error
        if problem is not None and not (done.days or done.foreign):
            raise problem
        stopped, verb = "Stopped before the end. " if stop.is_set() else "", "Would move" if is_dry else "Moved"
        words = (
            f"{stopped}{verb} {quantity(done.days, 'day')} of subjects: "
            f"{done.allowed:,} allowed and {done.refused:,} refused checks, {quantity(done.units, 'unit')}, "
            f"to {quantity(done.rows, 'row')}."
        )
        self.print_result(options, asdict(done) | {"stopped": stop.is_set(), "dry_run": is_dry}, [words])
        self.note_foreign("day", done.foreign)
        if problem is not None:
            raise problem
