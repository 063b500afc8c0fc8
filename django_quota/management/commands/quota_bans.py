"""`manage.py quota_bans`: list, set and lift bans, which the limiter sets itself after too many refusals."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_quota.conf import current
from django_quota.core.clock import SECOND, in_words
from django_quota.features.bans import ActiveBan, ban, bans_in_force, lift_bans
from django_quota.features.events import iso
from django_quota.features.logins import with_addresses
from django_quota.features.subject_contents import read_contents
from django_quota.limiting.known_rules import known_rule, known_rules
from django_quota.management.console import (
    SUBJECT_HELP,
    QuotaCommand,
    add_by,
    add_verbs,
    author_of,
    duration_of,
    second_of,
    shared_store,
)
from django_quota.operating.lookup import parse_rule_input, parse_subject_input

_LONG = "a name too long to keep"


class Command(QuotaCommand):
    help = "List, set and lift bans. A ban is a temporary block under one rule that has ban=."

    def add_arguments(self, parser: CommandParser) -> None:
        meanings = {
            "list": "show those in force, the first to end first",
            "set": "ban a subject from now on",
            "lift": "end the bans of a subject; what was counted stays",
        }
        listing, setting, lifting = add_verbs(parser, meanings)
        listing.add_argument("--subject", help="only of this subject, for example user:42")
        listing.add_argument("--rule", metavar="NAME", help="only from this rule")
        setting.add_argument("rule", metavar="RULE", help="a rule with ban=")
        setting.add_argument("subject", help=SUBJECT_HELP)
        setting.add_argument("span", metavar="SPAN", help="how long, for example 30m, 2h or 7d")
        lifting.add_argument("subject", help=SUBJECT_HELP)
        lifting.add_argument("--rule", metavar="NAME", help="only from this rule (default: from all)")
        lifting.add_argument("--dry-run", action="store_true", help="only say what would be lifted")
        setting.add_argument("--reason", default="", metavar="TEXT", help="why, for those who read it later")
        add_by(setting)
        add_by(lifting)
        for verb in (listing, setting, lifting):
            verb.add_argument("--json", action="store_true", help="print JSON, with times in UTC")

    def handle(self, *_: Any, **options: Any) -> None:
        shared_store()
        if options["rule"] is not None:
            options["rule"] = parse_rule_input(options["rule"])
        if options["subject"] is not None:
            given, options["subject"] = options["subject"], parse_subject_input(options["subject"])
            self.note_subject(given, options["subject"], is_used=options["verb"] != "set")
        getattr(self, f"_{options['verb']}")(options)

    def _list(self, options: dict[str, Any]) -> None:
        subject, rule = options["subject"], options["rule"]
        if subject is not None:
            contents = read_contents(subject)
            found = [ActiveBan.of(subject, each, contents.now) for each in contents.bans(known_rules())]
        elif not current().events:
            raise CommandError('QUOTA["EVENTS"] is 0, so there is no list of bans. Give --subject.')
        else:
            total, bans = bans_in_force()
            found = bans or []
            if total > len(found):
                self.note(f"Note: of {total:,} bans, only the {len(found):,} that end first are looked at.")
        found = [each for each in found if rule in (None, each.rule)]
        if rule is not None and not found:
            self.note_rules([rule])
        rows = [{"subject": each.subject, "rule": each.rule, "until": iso(each.until)} for each in found]
        lines = [f"{each.subject or _LONG} from {each.rule or _LONG} until {second_of(each.until)}" for each in found]
        self.print_result(options, rows, lines or [_nobody(subject, rule)], is_asked=True)

    def _set(self, options: dict[str, Any]) -> None:
        subject, rule, span = options["subject"], known_rule(options["rule"]), duration_of("SPAN", options["span"]) or 0
        author = author_of(options)
        decision = ban(rule, subject, span, reason=author.reason, by=author.user or author.name or None)
        if decision.allowed:
            self.note(f"Note: the ban has no effect now. {decision.explain()}")
        ends_in = decision.retry_after or span
        row = {"subject": subject, "rule": rule.name, "ends_in": ends_in}
        self.print_result(options, row, [f"Banned {subject} from {rule.name} for {in_words(ends_in * SECOND)}."])

    def _lift(self, options: dict[str, Any]) -> None:
        author = author_of(options)
        found = [
            (subject, each)
            for subject in [options["subject"], *with_addresses(options["subject"])]
            for each in read_contents(subject).bans(known_rules())
            if options["rule"] in (None, each.rule)
        ]
        for subject, each in found if not options["dry_run"] else ():
            if lift_bans([each.field], subject):
                author.log(subject, f"Lift ban: {each.rule}")
        if options["rule"] is not None and not found:
            self.note_rules([options["rule"]])
        rows = [{"subject": subject, "rule": each.rule, "ends_in": each.ends_in} for subject, each in found]
        verb = "Would lift" if options["dry_run"] else "Lifted"
        lines = [f"{verb} the ban of {subject} from {each.rule}" for subject, each in found]
        nobody = f"No such ban of {options['subject']} is in force."
        self.print_result(options, {"bans": rows, "dry_run": options["dry_run"]}, lines or [nobody])


def _nobody(subject: str | None, rule: str | None) -> str:
    """Return that a list of bans is empty."""
    under = "" if rule is None else f" from {rule}"
    return f"{'Nobody' if subject is None else subject} is {'not ' if subject else ''}banned{under}."
