"""`manage.py quota_sync`: publish all overrides, and withdraw those that have no row any more.

Overrides are published when they are saved, and processes that serve requests publish what Redis lacks. This is for
rows that were changed by SQL, and for whoever does not want to wait. Run it at any time, beside any traffic.
"""

from __future__ import annotations

import json
from typing import Any

from django.core.exceptions import ImproperlyConfigured
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
        except (QuotaError, DatabaseError, ImproperlyConfigured) as error:
            raise CommandError(explained(error)) from error
        if options["json"]:
            self.stdout.write(json.dumps(done._asdict()))
        else:
            self.stdout.write(
                f"Published the overrides of {done.subjects:,} subjects; withdrew those of {done.withdrawn:,}."
            )
