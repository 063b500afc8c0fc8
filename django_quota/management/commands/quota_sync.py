"""`manage.py quota_sync`: publish all overrides, and withdraw those that have no row any more.

Overrides are published when they are saved; this is for when Redis was away then and no process was left to try again,
when rows were changed by SQL, or when Redis was given another memory. It may be run at any time, beside any traffic.
"""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from django_quota.exceptions import QuotaError
from django_quota.management.console import PrintingCommand, explained, redis_store
from django_quota.management.progress import progress
from django_quota.override_sync import count_subjects, republish, write_database


class Command(PrintingCommand):
    """The command; see the module."""

    help = "Publish all overrides to Redis, the blocking ones first, and withdraw those that have no row any more."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--json", action="store_true", help="say what was done as a JSON object")
        parser.add_argument("--database", metavar="ALIAS", help="the alias in DATABASES (the one that is written to)")

    def handle(self, *_: Any, **options: Any) -> None:
        """Publish them."""
        redis_store()
        database = options["database"] or write_database()
        try:
            with progress(self.stderr, "Publishing", count_subjects(database)) as advance:
                done = republish(database, advance)
        except (QuotaError, DatabaseError) as error:
            raise CommandError(explained(error)) from error
        if options["json"]:
            self.stdout.write(json.dumps(done._asdict()))
        else:
            self.stdout.write(
                f"Published the overrides of {done.subjects:,} subjects; withdrew those of {done.withdrawn:,}."
            )
