"""`manage.py quota_override`: list, set, import and clear overrides. All processes follow within two seconds."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError
from django.utils import timezone

from django_quota.core.errors import did_you_mean
from django_quota.core.overrides import ALL_RULES
from django_quota.error_texts import some_of
from django_quota.features.authors import Author
from django_quota.limiting.override_rows import set_override, write_database
from django_quota.management.console import QuotaCommand, add_by, add_verbs, author_of, duration_of, quantity
from django_quota.models import QuotaOverride, QuotaOverrideQuerySet
from django_quota.operating.lookup import override_problems, parse_override_input, parse_rule_input
from django_quota.operating.override_lists import read_list, save_list
from django_quota.subjects.addresses import is_address

_RULE_HELP = {
    "list": "only of this rule; * for overrides of all rules",
    "set": "the rule that it changes (default: *, all rules)",
    "import": "the rule that they change (default: *, all rules)",
    "clear": "only of this rule (default: all overrides of the subject)",
}

OVERRIDE_SUBJECT_HELP = (
    "for example user:42, 203.0.113.9, 198.51.100.0/24 for a network, 'user:*' for all users, or '*' for everybody"
)

MAX_CLEARED = 20
"""Lines that `clear` prints; it counts the rest."""

MAX_OTHERS = 3
"""How many subjects that keep an override of their own `import` names."""


class Command(QuotaCommand):
    help = "List, set, import and clear overrides, which give subjects another rate, exempt them, or block them."

    def add_arguments(self, parser: CommandParser) -> None:
        meanings = {
            "list": "show them",
            "set": "add or change one",
            "import": "replace those with a label by a list of addresses and networks",
            "clear": "delete them",
        }
        verbs = add_verbs(parser, meanings)
        for name, verb in zip(meanings, verbs, strict=True):
            verb.add_argument("--json", action="store_true", help="print JSON, with times in UTC")
            verb.add_argument("--rule", metavar="NAME", help=_RULE_HELP[name])
            if name != "list":
                add_by(verb)
            if name in ("import", "clear"):
                verb.add_argument("--dry-run", action="store_true", help="only say what would change")
            if name in ("list", "clear"):
                verb.add_argument("--label", metavar="NAME", help="only with this label")
            else:
                verb.add_argument("--reason", default="", metavar="TEXT", help="why, for those who read it later")
                verb.add_argument("--force", action="store_true", help="also save what can have no effect")
                end = verb.add_mutually_exclusive_group()
                end.add_argument("--for", dest="span", metavar="SPAN", help="how long, for example 30m, 2h or 7d")
                end.add_argument("--until", metavar="WHEN", help="a date and time, for example 2030-01-31T12:00")
        listing, setting, importing, clearing = verbs
        listing.add_argument("--subject", help="only of this subject, for example user:42")
        listing.add_argument("--active", action="store_true", help="only those that hold now")
        setting.add_argument("subject", help=OVERRIDE_SUBJECT_HELP)
        setting.add_argument(
            "what",
            metavar="RATE|exempt|blocked|shadow",
            help="for example 100/m, '10/s; 500/h', +500 for 500 units more, or x2 for twice the rate",
        )
        setting.add_argument("--label", default="", metavar="NAME", help="the list that it belongs to")
        importing.add_argument("file", metavar="FILE", help="an address or a network a line; - for stdin")
        importing.add_argument("--label", required=True, metavar="NAME", help="the name of the list, such as crawlers")
        importing.add_argument(
            "--as", dest="what", default="blocked", metavar="WHAT", help="RATE, exempt, blocked (default) or shadow"
        )
        clearing.add_argument("subject", nargs="?", help=f"{OVERRIDE_SUBJECT_HELP}; not needed with --label")

    def handle(self, *_: Any, **options: Any) -> None:
        if options["rule"] is not None:
            options["rule"] = parse_rule_input(options["rule"])
        try:
            getattr(self, f"_{options['verb']}")(options)
        except ValidationError as error:
            problems = error.message_dict if hasattr(error, "error_dict") else {"": error.messages}
            parts = (f"{field}: {' '.join(map(str, each))}" for field, each in problems.items())
            raise CommandError(" ".join(parts)) from error

    def _list(self, options: dict[str, Any]) -> None:
        rows = _chosen(options)
        self._print(list(rows.active() if options["active"] else rows), options, "There are no such overrides.")

    def _set(self, options: dict[str, Any]) -> None:
        subject, rule = parse_override_input(options["subject"]), options["rule"] or ALL_RULES
        self.note_subject(options["subject"], subject, is_used=True)
        author = author_of(options)
        values = {**_values(options, author), "label": options["label"]}
        self._refuse_without_effect(rule, subject, options)
        row = set_override(rule, subject, values)
        author.log(row.subject, f"Set: {row}")
        self._print([row], options)

    def _import(self, options: dict[str, Any]) -> None:
        rule, label, is_dry = options["rule"] or ALL_RULES, options["label"], options["dry_run"]
        subjects, values = read_list(_lines_of(options["file"])), _values(options, author_of(options))
        if not label:
            raise CommandError("--label is empty. Use a name of the list, such as crawlers.")
        if not subjects:
            raise CommandError(
                f"{options['file']} has no address, and nothing is changed. To delete what the label had, use "
                f"quota_override clear --label {label}."
            )
        self._refuse_without_effect(rule, subjects[0], options)
        change = save_list(subjects, label, rule, values, dry_run=is_dry)
        numbers = {kind: len(getattr(change, kind)) for kind in ("added", "changed", "deleted")}
        result = {"label": label, "dry_run": is_dry, **numbers, "kept": change.kept, "skipped": change.others}
        done = "Would add {added:,}, change {changed:,} and delete {deleted:,}"
        done = done if is_dry else "Added {added:,}, changed {changed:,} and deleted {deleted:,}"
        lines = [f"{done.format(**numbers)} with the label {label}; {change.kept:,} stay as they are."]
        if change.others:
            others = some_of(change.others, MAX_OTHERS)
            lines.append(f"{len(change.others):,} have an override without this label, which stays: {others}.")
        self.print_result(options, result, lines)

    def _clear(self, options: dict[str, Any]) -> None:
        if options["subject"] is None and not options["label"]:
            raise CommandError("Say what to clear: a subject, for example user:42, or --label NAME.")
        rows = _chosen(options)
        cleared = list(rows)
        if not cleared and options["rule"] is not None:
            self.note_rules([options["rule"]])
        if not options["dry_run"]:
            author = author_of(options)
            rows.delete()
            author.log_each({row.subject: f"Cleared: {row}" for row in cleared})
        whose = "" if options["subject"] is None else f" for {parse_override_input(options['subject'])}"
        whose += f" of the rule {options['rule']}" if options["rule"] is not None else ""
        whose += f" with the label {options['label']}" if options["label"] else ""
        self._print(
            cleared, options, f"There was no override{whose}.", "Would clear " if options["dry_run"] else "Cleared "
        )

    def _refuse_without_effect(self, rule: str, subject: str, options: dict[str, Any]) -> None:
        """Raise `CommandError` if an override can have no effect, unless it is forced."""
        try:
            problems = override_problems(rule, subject)
        except (DatabaseError, ImproperlyConfigured):  # there is no table of users
            problems = override_problems(rule, subject, with_users=False)
        if options["force"]:
            self.note(*(f"Note: {problem}" for problem in problems))
        elif problems:
            raise CommandError(f"{' '.join(problems)} It would have no effect. Add --force to save it anyway.")

    def _print(self, rows: list[QuotaOverride], options: dict[str, Any], empty: str = "", prefix: str = "") -> None:
        shown = MAX_CLEARED if options["verb"] == "clear" else len(rows)
        lines = [prefix + _line(row) for row in rows[:shown]] or [empty]
        if len(rows) > shown:
            lines.append(f"{prefix}{quantity(len(rows) - shown, 'more override')}")
        found = [_as_json(row) for row in rows] if options["json"] else None
        self.print_result(options, found, lines, is_asked=options["verb"] == "list")


def _chosen(options: dict[str, Any]) -> QuotaOverrideQuerySet:
    """Return the rows that the options of `list` and `clear` choose."""
    rows = QuotaOverride.objects.db_manager(write_database()).get_queryset()
    if options["subject"] is not None:
        subjects = {parse_override_input(options["subject"])}
        if is_address(options["subject"]):  # code may have saved the address itself
            subjects.add(options["subject"])
        rows = rows.filter(subject__in=subjects)
    if options["rule"] is not None:
        rows = rows.filter(rule=options["rule"])
    return rows.filter(label=options["label"]) if options["label"] is not None else rows


def _lines_of(name: str) -> list[str]:
    """Return the lines of a file, or of stdin. Raises `CommandError` if it cannot be read."""
    try:
        return (sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()).decode("utf-8-sig").splitlines()
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror}. Use a file with an address a line, or - for stdin.") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}.") from error


def _values(options: dict[str, Any], author: Author) -> dict[str, Any]:
    """Return the fields that the options of `set` and `import` give."""
    what, modes = options["what"], ("exempt", "blocked", "shadow")
    if what not in modes and not any(char.isdigit() for char in what):
        near = did_you_mean(what, modes)
        raise CommandError(f"{what!r} is neither a rate, such as 100/m, nor 'exempt', 'blocked' or 'shadow'.{near}")
    mode, rate = (what, "") if what in modes else ("rate", what)
    said = {"reason": author.reason, "created_by": author.name}
    return {"mode": mode, "rate": rate, **said, "starts": None, "expires": _expiry(options)}


def _expiry(options: dict[str, Any]) -> datetime | None:
    """Return the end that the options ask for. Raises `CommandError` if it is not a moment in the future."""
    span, given = duration_of("--for", options["span"]), options["until"]
    if span is not None:
        return timezone.now() + timedelta(seconds=span)
    if given is None:
        return None
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise CommandError(f"--until {given!r} is not a date and time. Use, for example, 2030-01-31T12:00.") from None
    if timezone.is_naive(moment) == settings.USE_TZ:
        zone = timezone.get_default_timezone()
        moment = timezone.make_aware(moment, zone) if settings.USE_TZ else timezone.make_naive(moment, zone)
    if moment <= timezone.now():
        raise CommandError(f"--until {given!r} is in the past. Use a moment in the future.")
    return moment


def _line(row: QuotaOverride) -> str:
    ends = f"until {_second_of(row.expires)}" if row.expires else "without an end"
    begins = f"from {_second_of(row.starts)} " if row.starts else ""
    label = f" [{row.label}]" if row.label else ""
    said = ", ".join(filter(None, (row.reason, row.created_by and f"by {row.created_by}")))
    return f"{row}, {begins}{ends}{label}{f' ({said})' if said else ''}"


def _second_of(moment: datetime) -> str:
    return moment.isoformat(" ", "seconds").replace("+00:00", "Z")


def _as_json(row: QuotaOverride) -> dict[str, Any]:
    return {
        "subject": row.subject,
        "rule": row.rule,
        "mode": row.mode,
        "rate": row.rate or None,
        "reason": row.reason,
        "label": row.label,
        "created_by": row.created_by or None,
        "starts": row.starts and _in_utc(row.starts),
        "expires": row.expires and _in_utc(row.expires),
    }


def _in_utc(moment: datetime) -> str:
    aware = timezone.make_aware(moment, timezone.get_default_timezone()) if timezone.is_naive(moment) else moment
    return aware.astimezone(UTC).isoformat()
