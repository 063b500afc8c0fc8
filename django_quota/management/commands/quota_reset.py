"""`manage.py quota_reset`: delete what rules have counted for a subject, and lift its bans. Overrides stay.

A user name, as in `login:username=ann`, is unlocked at every address.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from django_quota.features.logins import with_addresses
from django_quota.features.resets import reset_found
from django_quota.management.console import SUBJECT_HELP, QuotaCommand, add_by, author_of, shared_store
from django_quota.operating.lookup import parse_rule_input, parse_subject_input


class Command(QuotaCommand):
    help = "Delete what rules have counted for a subject, and lift its bans. Overrides stay."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("subject", help=SUBJECT_HELP)
        parser.add_argument("--rule", action="append", metavar="NAME", help="only this rule; you may repeat it")
        parser.add_argument("--dry-run", action="store_true", help="print what would be reset, and change nothing")
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        add_by(parser)

    def handle(self, *_: Any, **options: Any) -> None:
        shared_store()
        author = author_of(options)
        subject, is_dry = parse_subject_input(options["subject"]), options["dry_run"]
        rules = options["rule"] and list(map(parse_rule_input, options["rule"]))
        reports = {each: reset_found(rules, each, dry_run=is_dry) for each in [subject, *with_addresses(subject)]}
        done = [(name, each) for each, report in reports.items() for name in report.rules]
        found = list(dict.fromkeys(name for name, _ in done))
        if not is_dry:
            author.log_each(
                {each: f"Reset: {', '.join(report.rules)}" for each, report in reports.items() if report.rules}
            )
        self.note_subject(options["subject"], subject, is_used=bool(done))
        self.note_rules(name for name in rules or () if name not in found)
        verb, deleted = "Would reset" if is_dry else "Reset", sum(report.deleted for report in reports.values())
        under = f" under {', '.join(rules)}" if rules else ""
        self.print_result(
            options,
            {"subject": subject, "rules": found, "deleted": deleted, "dry_run": is_dry},
            [f"{verb} {name} for {each}" for name, each in done] or [f"Nothing was counted for {subject}{under}."],
        )
