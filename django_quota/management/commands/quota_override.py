"""`manage.py quota_override`: list, set and clear overrides. Changes hold at once, in every process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from django_quota.core.errors import RateError, did_you_mean
from django_quota.core.rates import parse_duration
from django_quota.core.rules import is_valid_name
from django_quota.management.console import SUBJECT_HELP, QuotaCommand, parse_moment, printable
from django_quota.models import QuotaOverride
from django_quota.services.lookup import network_hint, parse_rule_input, parse_search_input, parse_subject_input
from django_quota.services.override_sync import are_pending, set_override, write_database
from django_quota.services.overrides import ALL_RULES
from django_quota.services.subjects import named_subject

_RULE_HELP = {
    "list": "only of this rule; * for overrides of all rules",
    "set": "the rule that it changes (default: *, all rules)",
    "clear": "only of this rule (default: all overrides of the subject)",
}


class Command(QuotaCommand):
    help = "List, set and clear overrides, which give a subject another rate, exempt it, or block it."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="list|set|clear")
        for name, meaning in (("list", "show them"), ("set", "add or change one"), ("clear", "delete them")):
            verb = verbs.add_parser(name, help=meaning)
            verb.add_argument("--json", action="store_true", help="print JSON, with times in UTC")
            if name == "list":
                verb.add_argument("--subject", help="only of this subject, for example user:42")
                verb.add_argument("--active", action="store_true", help="only those that hold now")
            else:
                verb.add_argument("subject", help=SUBJECT_HELP)
            verb.add_argument("--rule", metavar="NAME", help=_RULE_HELP[name])
        setting = verbs.choices["set"]
        setting.add_argument("what", metavar="RATE|exempt|blocked", help="for example 100/m, or '10/s; 500/h'")
        setting.add_argument("--reason", default="", metavar="TEXT", help="why, for people who look later")
        end = setting.add_mutually_exclusive_group()
        end.add_argument("--for", dest="span", metavar="SPAN", help="how long, for example 30m, 2h or 7d")
        end.add_argument("--until", metavar="WHEN", help="an ISO 8601 date and time, for example 2030-01-31T12:00")

    def handle(self, *_: Any, **options: Any) -> None:
        verbs: dict[str, Callable[[dict[str, Any]], None]] = {
            "list": self._list,
            "set": self._set,
            "clear": self._clear,
        }
        for option in ("rule", "reason"):
            given = options.get(option)
            if given and not is_valid_name(given):  # Python reads a byte that is not UTF-8 as half of a character
                raise CommandError(f"--{option} {given!r} is not UTF-8 text. Check the encoding of your terminal.")
        if options["rule"] is not None:
            options["rule"] = parse_rule_input(options["rule"])
        verbs[options["verb"]](options)

    def _list(self, options: dict[str, Any]) -> None:
        rows = QuotaOverride.objects.using(write_database()).all()
        if options["subject"] is not None:
            rows = rows.filter(subject__in=_spellings(options["subject"]))
        if options["rule"] is not None:
            rows = rows.filter(rule=options["rule"])
        self._print(list(rows.active() if options["active"] else rows), options, "There are no such overrides.")

    def _set(self, options: dict[str, Any]) -> None:
        given, rule = options["what"], options["rule"] or ALL_RULES
        mode = given if given in ("exempt", "blocked") else QuotaOverride.Mode.RATE
        if mode == QuotaOverride.Mode.RATE and not any(sign.isdigit() for sign in given):
            near = did_you_mean(given, ("exempt", "blocked"))
            raise CommandError(f"{given!r} is neither a rate, such as 100/m, nor 'exempt' or 'blocked'.{near}")
        values = {
            "mode": mode,
            "rate": given if mode == QuotaOverride.Mode.RATE else "",
            "reason": options["reason"],
            "starts": None,
            "expires": _expiry(options),
        }
        subject, database = parse_subject_input(options["subject"]), write_database()
        self.note_subject(options["subject"], subject)
        self.note_rules([rule])
        try:
            row = set_override(subject, rule, values)
        except ValidationError as error:
            raise CommandError(_problems(error)) from error
        self._print([row], options)
        self._check_published({subject}, database)

    def _clear(self, options: dict[str, Any]) -> None:
        subject, database = parse_search_input(options["subject"]), write_database()
        rows = QuotaOverride.objects.using(database).filter(subject__in=_spellings(options["subject"]))
        if options["rule"] is not None:
            rows = rows.filter(rule=options["rule"])
        cleared = list(rows)
        rows.delete()
        if not cleared and (problem := network_hint(subject)):
            self.note(f"Note: {problem}")
        self._print(cleared, options, f"There was no override for {printable(subject)}.", "Cleared ")
        self._check_published({subject, *(row.subject for row in cleared)}, database)

    def _print(self, rows: list[QuotaOverride], options: dict[str, Any], empty: str = "", prefix: str = "") -> None:
        lines = [prefix + printable(_line(row)) for row in rows] or [empty]
        self.print_result(options, [_as_json(row) for row in rows], lines)

    def _check_published(self, subjects: set[str], database: str) -> None:
        if are_pending(subjects, database):
            raise CommandError(
                "The change is saved, but Redis did not take it, so the old state still applies. It is published soon "
                "after Redis is back: by a process that serves requests, or by the next "
                "`manage.py quota_rollup` or `quota_sweep`."
            )


def _spellings(given: str) -> set[str]:
    """Return the subjects that a text may be saved as: code may have saved a bare address as it is."""
    return {named_subject(given), parse_search_input(given)}


def _expiry(options: dict[str, Any]) -> datetime | None:
    """Return the end that the options ask for. Raises `CommandError` if it is not a moment in the future."""
    if options["span"] is not None:
        try:
            return timezone.now() + timedelta(microseconds=parse_duration(options["span"]))
        except RateError as error:
            raise CommandError(f"--for {error}") from error
    if options["until"] is None:
        return None
    moment = parse_moment(options["until"])
    if moment is None:
        raise CommandError(f"--until {options['until']!r} is not a date and time. Use, for example, 2030-01-31T12:00.")
    moment = moment if settings.USE_TZ else timezone.make_naive(moment)
    if moment <= timezone.now():
        raise CommandError(f"--until {options['until']!r} is in the past. Use a moment in the future.")
    return moment


def _problems(error: ValidationError) -> str:
    problems = error.message_dict if hasattr(error, "error_dict") else {"": error.messages}
    return " ".join(f"{field}: {' '.join(map(str, texts))}" for field, texts in problems.items())


def _line(row: QuotaOverride) -> str:
    ends = f"until {_second_of(row.expires)}" if row.expires else "without an end"
    begins = f"from {_second_of(row.starts)} " if row.starts else ""
    return f"{row}, {begins}{ends}{f' ({row.reason})' if row.reason else ''}"


def _second_of(moment: datetime) -> str:
    return moment.isoformat(" ", "seconds").replace("+00:00", "Z")


def _as_json(row: QuotaOverride) -> dict[str, Any]:
    return {
        "subject": row.subject,
        "rule": row.rule,
        "mode": row.mode,
        "rate": row.rate or None,
        "reason": row.reason,
        "created_by": None if row.created_by_id is None else str(row.created_by_id),
        "starts": row.starts and _in_utc(row.starts),
        "expires": row.expires and _in_utc(row.expires),
    }


def _in_utc(moment: datetime) -> str:
    return (timezone.make_aware(moment) if timezone.is_naive(moment) else moment).astimezone(UTC).isoformat()
