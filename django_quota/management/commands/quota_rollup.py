"""`manage.py quota_rollup`: carry the usage that Redis has counted to the rows of `DailyCounter`.

It may be stopped or killed at any time, and run as often as one likes, by several processes at once: see `rollup`.
Redis keeps what was counted on a day for eight days; once an hour is often enough, once a minute costs little.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, DatabaseError, close_old_connections

from django_quota.exceptions import QuotaError, StoreUnavailable
from django_quota.management.console import PrintingCommand, explained, redis_store, stopping
from django_quota.management.progress import progress
from django_quota.rollup import BATCH, Carried, roll_up
from django_quota.stores.redis import RedisStore

MOST = 5_000
"""The largest batch: its rows stay locked until it is committed."""


class Command(PrintingCommand):
    """The command; see the module."""

    help = "Carry the usage of each day from Redis to the database; exact, however often it is run, stopped or killed."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--batch",
            type=int,
            default=BATCH,
            metavar="N",
            help=f"subjects and days a transaction, 1 to {MOST} ({BATCH})",
        )
        parser.add_argument(
            "--every", type=float, metavar="SECONDS", help="do it again and again, so long after it ended"
        )
        parser.add_argument("--json", action="store_true", help="say what was done as one JSON object a round")
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="the alias in DATABASES (default)")

    def handle(self, *_: Any, **options: Any) -> None:
        """Roll up, once or again and again."""
        if not 1 <= options["batch"] <= MOST:
            raise CommandError(f"--batch {options['batch']} is not from 1 to {MOST}; {BATCH} would do.")
        every = options["every"]
        if every is not None and not 0 < every < threading.TIMEOUT_MAX:
            raise CommandError(f"--every {every:g} is no time to wait; 60 would do.")
        try:
            with stopping() as stop:
                self._round(redis_store(), stop, options)
                while every is not None and not stop.wait(every):
                    self._later_round(redis_store(), stop, options)
        except (QuotaError, DatabaseError) as error:
            raise CommandError(explained(error)) from error

    def _later_round(self, store: RedisStore, stop: threading.Event, options: dict[str, Any]) -> None:
        """Roll up; where Redis or the database is away by now, say so, and leave it to the next round."""
        close_old_connections()
        try:
            self._round(store, stop, options)
        except (StoreUnavailable, DatabaseError) as error:
            self.stderr.write(f"{str(error).rstrip('.')}. It is tried again in {options['every']:g} s.")

    def _round(self, store: RedisStore, stop: threading.Event, options: dict[str, Any]) -> None:
        done, problem = Carried(), None
        with progress(self.stderr, "Rolling up", None) as advance:
            try:
                for carried in _until(stop, roll_up(store, options["batch"], options["database"])):
                    done.add(carried)
                    advance(carried.days, f"{done.rows:,} rows changed")
            except StoreUnavailable as error:
                problem = error
        self.stdout.write(
            json.dumps(asdict(done) | {"stopped": stop.is_set()}) if options["json"] else _told(done, stop)
        )
        self.stdout.flush()
        if problem is not None:
            raise problem


def _until(stop: threading.Event, batches: Iterator[Carried]) -> Iterator[Carried]:
    for carried in batches:
        yield carried
        if stop.is_set():
            return


def _told(done: Carried, stop: threading.Event) -> str:
    stopped = "Stopped before the end. " if stop.is_set() else ""
    return (
        f"{stopped}Looked at {done.days:,} subjects and days; changed {done.rows:,} rows by {done.allowed:,} allowed "
        f"and {done.refused:,} refused checks; dropped {done.dropped:,} finished days from Redis."
    )
