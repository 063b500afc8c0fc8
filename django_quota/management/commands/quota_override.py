"""`manage.py quota_override`: list, set and clear overrides. What it does holds at once, in every process."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError, transaction
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from django_quota.conf import current
from django_quota.exceptions import QuotaError, RateError, did_you_mean
from django_quota.hints import meant_subject, network_hint, sought_subject
from django_quota.management.console import (
    SUBJECT_HELP,
    PrintingCommand,
    address_note,
    explained,
    printable,
    subject_note,
)
from django_quota.models import QuotaOverride
from django_quota.names import is_name
from django_quota.override_sync import is_pending, write_database
from django_quota.overrides import ALL_RULES
from django_quota.rates import parse_span
from django_quota.subjects import named_subject


class Command(PrintingCommand):
    """The command; see the module."""

    help = "List, set and clear overrides: another rate for a subject, none at all, or nothing allowed."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the verbs and their options."""
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="list|set|clear")
        for name, meaning in (("list", "show them"), ("set", "add one, or change it"), ("clear", "remove them")):
            verb = verbs.add_parser(name, help=meaning)
            verb.add_argument("--json", action="store_true", help="as JSON; times in UTC")
            if name == "list":
                verb.add_argument("--subject", help="only of this subject, such as user:42")
                verb.add_argument("--active", action="store_true", help="only those that hold now")
            else:
                verb.add_argument("subject", help=SUBJECT_HELP)
            verb.add_argument("--rule", metavar="NAME", help=_RULE_HELP[name])
        _add_setting(verbs.choices["set"])

    def handle(self, *_: Any, **options: Any) -> None:
        """Do what the verb says."""
        verbs: dict[str, Callable[[dict[str, Any]], None]] = {
            "list": self._list,
            "set": self._set,
            "clear": self._clear,
        }
        for option in ("rule", "reason"):
            given = options.get(option)
            if given and not is_name(given):  # Python reads a byte that is no UTF-8 as half of a character
                raise CommandError(f"--{option} {given!r} is not UTF-8 text. Check the encoding of your terminal.")
        try:
            verbs[options["verb"]](options)
        except (QuotaError, DatabaseError, ImproperlyConfigured) as error:
            raise CommandError(explained(error)) from error

    def _list(self, options: dict[str, Any]) -> None:
        rows = QuotaOverride.objects.using(write_database()).all()
        if options["subject"] is not None:
            rows = rows.filter(subject__in=_spellings(options["subject"]))
        if options["rule"] is not None:
            rows = rows.filter(rule=options["rule"])
        self._show(list(rows.active() if options["active"] else rows), options, "There are none.")

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
        subject = meant_subject(options["subject"])
        database = write_database()
        self._warn_of_subject(options["subject"], subject)
        self._warn_of_unknown(rule)
        with transaction.atomic(using=database):
            row = QuotaOverride.objects.using(database).filter(subject=subject, rule=rule).first()
            row = row or QuotaOverride(subject=subject, rule=rule)
            for name, value in values.items():
                setattr(row, name, value)
            try:
                row.full_clean()
            except ValidationError as error:
                raise CommandError(_explained(error)) from error
            row.save(using=database)
        self._show([row], options, "")
        self._refuse_pending(subject, database)

    def _clear(self, options: dict[str, Any]) -> None:
        subject, database = sought_subject(options["subject"]), write_database()
        rows = QuotaOverride.objects.using(database).filter(subject__in=_spellings(options["subject"]))
        if options["rule"] is not None:
            rows = rows.filter(rule=options["rule"])
        cleared = list(rows)
        rows.delete()
        if not cleared and (problem := network_hint(subject)):
            self.stderr.write(f"Note: {printable(problem)}")
        self._show(cleared, options, f"There was none for {printable(subject)}.", "Cleared ")
        for changed in {subject, *(row.subject for row in cleared)}:
            self._refuse_pending(changed, database)

    def _show(self, rows: list[QuotaOverride], options: dict[str, Any], empty: str, prefix: str = "") -> None:
        if options["json"]:
            self.stdout.write(json.dumps([_as_json(row) for row in rows]))
        else:
            self.stdout.write("\n".join(prefix + printable(_line(row)) for row in rows) or empty)

    def _warn_of_subject(self, given: str, subject: str) -> None:
        """Say what a subject was taken for, and why no request may have it."""
        for note in (address_note(given, subject), subject_note(subject)):
            if note:
                self.stderr.write(note)

    def _warn_of_unknown(self, rule: str) -> None:
        known = list(map(str, current().rules))
        if rule != ALL_RULES and rule not in known:
            self.stderr.write(
                f"Note: {rule!r} is no rule of the settings; it holds where a decorator or a call uses the name."
                f"{did_you_mean(rule, known)}"
            )

    def _refuse_pending(self, subject: str, database: str) -> None:
        if is_pending(subject, database):
            raise CommandError(
                "The database has it, but Redis could not be told, so what held before holds still. It is published "
                "soon after Redis is back: by a process that serves requests, or by the next "
                "`manage.py quota_rollup` or `quota_sweep`."
            )


def _spellings(given: str) -> set[str]:
    """Return the subjects that a text may be saved as: a bare address also as it stands, by code."""
    return {named_subject(given), sought_subject(given)}


_RULE_HELP = {
    "list": "only of this rule; * for those of all rules",
    "set": "the rule that it is for (* for all, which is what holds without this)",
    "clear": "only that of this rule; without it, all of the subject",
}


def _add_setting(parser: Any) -> None:
    parser.add_argument("what", metavar="RATE|exempt|blocked", help="such as 100/m, or '10/s; 500/h'")
    parser.add_argument("--reason", default="", metavar="TEXT", help="why; whoever looks later sees it")
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--for", dest="span", metavar="SPAN", help="how long, such as 30m, 2h or 7d; else without an end")
    end.add_argument("--until", metavar="WHEN", help="until then: an ISO 8601 date and time, such as 2030-01-31T12:00")


def _expiry(options: dict[str, Any]) -> datetime | None:
    """Return the end that the options name. Raises `CommandError` where they name none that lies ahead."""
    if options["span"] is not None:
        try:
            return timezone.now() + timedelta(microseconds=parse_span(options["span"]))
        except RateError as error:
            raise CommandError(f"--for {error}") from error
    if options["until"] is None:
        return None
    moment = _moment(options["until"])
    if moment is None:
        raise CommandError(f"--until {options['until']!r} is no date and time; 2030-01-31T12:00 would do.")
    if settings.USE_TZ and timezone.is_naive(moment):
        moment = timezone.make_aware(moment)
    elif not settings.USE_TZ and timezone.is_aware(moment):
        moment = timezone.make_naive(moment)
    if moment <= timezone.now():
        raise CommandError(f"--until {options['until']!r} is over; a moment to come would do.")
    return moment


def _moment(text: str) -> datetime | None:
    """Read a moment, or a date, whose beginning is meant; None where it is neither."""
    try:
        day = parse_date(text)
        return parse_datetime(text) if day is None else datetime.combine(day, time.min)
    except ValueError:  # well written, but no such day or hour
        return None


def _explained(error: ValidationError) -> str:
    problems = error.message_dict if hasattr(error, "error_dict") else {"": error.messages}
    return " ".join(f"{field}: {' '.join(map(str, texts))}" for field, texts in problems.items())


def _line(row: QuotaOverride) -> str:
    ends = f"until {row.expires.isoformat()}" if row.expires else "without an end"
    begins = f"from {row.starts.isoformat()} " if row.starts else ""
    return f"{row}, {begins}{ends}{f' ({row.reason})' if row.reason else ''}"


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
