"""`manage.py quota_usage`: what all subjects have used in a month, a line for each subject and rule.

Each line has an id that is always the same for its subject, rule and month. So a program that reads the lines twice can
tell which ones it has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, timedelta
from io import StringIO
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_quota.features.usage.days import today
from django_quota.features.usage.lines import UsageLine, count_lines, move_waiting, stored_lines
from django_quota.features.usage.spreadsheets import csv_lines
from django_quota.management.console import QuotaCommand, printable, progress, quantity

_MONTH = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])")


class Command(QuotaCommand):
    help = "Print what all subjects have used in a month: a line for each subject and rule, for bills."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--month", metavar="MONTH", help="such as 2026-10 (default: the last whole month)")
        parser.add_argument(
            "--by",
            choices=("month", "period"),
            default="month",
            help="period: the customers' own periods that begin in the month, of rules with starts=",
        )
        parser.add_argument(
            "--rule", action="append", metavar="NAME", help="only of this rule; you may repeat it", default=[]
        )
        formats = parser.add_mutually_exclusive_group()
        formats.add_argument("--csv", action="store_true", help="print CSV, with a header")
        formats.add_argument("--json", action="store_true", help="print one JSON object a line")

    def handle(self, *_: Any, **options: Any) -> None:
        since, until = _month(options["month"])
        rules: list[str | None] = list(dict.fromkeys(options["rule"])) or [None]
        self.note_rules(filter(None, rules))
        by = options["by"]
        move_waiting(until, by)
        expected = sum(count_lines(since, until, rule) for rule in rules) if by == "month" else 0
        total = units = 0
        # Between lines on a terminal, a bar would be in the way.
        with progress(StringIO() if self.stdout.isatty() else self.stderr, "Printing", expected or None) as advance:

            def lines() -> Iterator[UsageLine]:
                nonlocal total, units
                for rule in rules:
                    for line in stored_lines(since, until, by, rule):
                        total, units = total + 1, units + line.units
                        advance(1)
                        yield line

            self._print(lines(), options)
        if options["verbosity"]:
            self.note(f"{quantity(total, 'line')} of {since:%Y-%m}, {quantity(units, 'unit')}.")

    def _print(self, lines: Iterator[UsageLine], options: dict[str, Any]) -> None:
        if options["csv"]:
            for batch in csv_lines(UsageLine._fields, (_shown(line, options["by"]) for line in lines)):
                self.stdout.write(batch, ending="")
            return
        for line in lines:
            if options["json"]:
                self.print_json(dict(zip(UsageLine._fields, _shown(line, options["by"]), strict=True)))
            else:
                begins = f", period of {line.period}" if options["by"] == "period" else ""
                words = f"{line.subject}  {line.rule}{begins}: {quantity(line.units, 'unit')}"
                self.stdout.write(printable(f"{words}, {line.allowed:,} allowed, {line.refused:,} refused"))


def _shown(line: UsageLine, by: str) -> tuple[Any, ...]:
    """Return the fields of a line, with its month as the option has it, or the first day of its period."""
    return *line[:3], f"{line.period:%Y-%m}" if by == "month" else f"{line.period}", *line[4:]


def _month(given: str | None) -> tuple[date, date]:
    """Return the first day of a month, and of the next one. Raises `CommandError`."""
    if given is None:
        until = today().replace(day=1)
        return (until - timedelta(days=1)).replace(day=1), until
    match = _MONTH.fullmatch(given)
    if match is None or given.startswith("0000") or given == "9999-12":
        raise CommandError(f"--month {given}: use a year and a month, for example 2026-10.")
    since = date(int(match[1]), int(match[2]), 1)
    return since, (since + timedelta(days=31)).replace(day=1)
