"""`manage.py quota_reset`: forget what rules have counted for a subject, and lift its bans. Overrides stay."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_quota.exceptions import QuotaError
from django_quota.hints import sought_subject
from django_quota.management.console import (
    SUBJECT_HELP,
    PrintingCommand,
    address_note,
    printable,
    rule_notes,
    subject_note,
)
from django_quota.status import counted, forget


class Command(PrintingCommand):
    """The command; see the module."""

    help = "Forget what rules have counted for a subject, and lift its bans. Overrides stay."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("subject", help=SUBJECT_HELP)
        parser.add_argument("--rule", action="append", metavar="NAME", help="only this rule; may be repeated")
        parser.add_argument("--dry-run", action="store_true", help="only say what would be forgotten")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *_: Any, **options: Any) -> None:
        """Forget, and say what."""
        try:
            subject = sought_subject(options["subject"])
            places = counted(subject, options["rule"])
            dropped = 0 if options["dry_run"] or not places else forget(places.values())
        except QuotaError as error:
            raise CommandError(str(error)) from error
        missing = [name for name in options["rule"] or () if name not in places]
        for note in [
            address_note(options["subject"], subject),
            *rule_notes(missing),
            "" if places else subject_note(subject),
        ]:
            if note:
                self.stderr.write(note)
        if options["json"]:
            report = {"subject": subject, "rules": list(places), "dropped": dropped, "dry_run": options["dry_run"]}
            self.stdout.write(json.dumps(report))
        elif not places:
            self.stdout.write(f"Nothing was counted for {printable(subject)}.")
        else:
            verb = "Would forget" if options["dry_run"] else "Forgot"
            self.stdout.write("\n".join(f"{verb} {printable(name)} for {printable(subject)}" for name in places))
