"""`manage.py quota_sync`: publish all overrides, and withdraw published ones that have no row.

Overrides are published when they are saved, and processes that serve requests publish what Redis lacks. Use this after
you changed rows by SQL, or to publish at once. You can run it at any time.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from django_quota.management.console import QuotaCommand, counted, progress, redis_store
from django_quota.services.override_sync import count_subjects, republish, write_database


class Command(QuotaCommand):
    help = "Publish all overrides to Redis, blocks first, and withdraw published ones that have no row."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print what was done as one JSON object")
        parser.add_argument("--database", metavar="ALIAS", help="an alias of DATABASES (default: the one written to)")

    def handle(self, *_: Any, **options: Any) -> None:
        redis_store()
        database = options["database"] or write_database()
        with progress(self.stderr, "Publishing", count_subjects(database)) as advance:
            done = republish(database, advance)
        line = f"Published the overrides of {counted(done.subjects, 'subject')}; withdrew those of {done.withdrawn:,}."
        self.print_result(options, done._asdict(), [line])
