"""`manage.py quota_copy`: take along what the old store counted to a new one; see `django_quota.operating.copying`.

Stop what counts first. The command changes nothing in the store that it copies from. It ends with status 1 unless all
was copied; then copy again, with `--replace`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_quota.conf import QuotaSettings, current
from django_quota.core.rules import Rule
from django_quota.engine.resolving import event_log_of
from django_quota.limiting.known_rules import known_rules
from django_quota.limiting.registry import make_store, which_redis
from django_quota.management.console import QuotaCommand, foreign, place_of, progress, quantity, stopping
from django_quota.operating.copying import CopiedStore, Copier, CopyReport

WORDS = {
    "r": ("limit", ""),
    "b": ("count of refusals", "counts of refusals"),
    "a": ("share taken ahead", "shares taken ahead"),
    "s": ("status of a subject", "statuses of subjects"),
    "day": ("count of a day", "counts of days"),
    "c": ("counter", ""),
    "grants": ("counter with units that expire", "counters with units that expire"),
    "granted": ("id of a grant", "ids of grants"),
    "leased": ("lease of units", "leases of units"),
    "settled": ("settled reservation", ""),
    "u": ("count of different values", "counts of different values"),
    "l": ("held slot", ""),
    "once": ("value that was seen", "values that were seen"),
}
"""What a key of each kind is, and several; other kinds are the site's own counts."""

OF_THE_SITE = ("other count", "")

MUCH = 1.0
"""Seconds that the clocks of two servers may differ before a note says so."""


class Command(QuotaCommand):
    help = "Copy limits, bans, counters and all else that is counted from one store to another."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--from", dest="source", required=True, metavar="STORE", help="database or redis")
        parser.add_argument("--to", dest="target", required=True, metavar="STORE", help="database or redis")
        parser.add_argument("--replace", action="store_true", help="delete first what the new store has counted")
        parser.add_argument("--dry-run", action="store_true", help="only count, and change nothing")
        parser.add_argument("--json", action="store_true", help="print a JSON object")

    def handle(self, *_: Any, **options: Any) -> None:
        names = [_checked(option, options[dest]) for option, dest in (("--from", "source"), ("--to", "target"))]
        if names[0] == names[1]:
            raise CommandError(f"--from and --to are both {names[0]!r}. Use database and redis, in either order.")
        _verify_target(names[1], replaces=options["replace"])
        with ExitStack() as stack:
            source, target = (_place(name, stack) for name in names)
            self._copy(source, target, options)

    def _copy(self, source: CopiedStore, target: CopiedStore, options: dict[str, Any]) -> None:
        settings, is_dry = current(), options["dry_run"]
        log = event_log_of(target.prefix, settings.events, settings.event_days)
        copier = Copier(source, target, log, replaces=options["replace"], dry_run=is_dry)
        if abs(apart := copier.apart()) > MUCH:
            when = "later" if apart < 0 else "earlier"
            self.note(
                f"Note: the clocks of the stores differ by {abs(apart):,.1f} s: limits that run end so much {when}."
            )
        label = "Counting" if is_dry else "Copying"
        with (
            stopping() as stop,
            progress(self.stderr, label, copier.total() if self.stderr.isatty() else None) as advance,
        ):
            report = copier.copy(stop, advance)
        self.print_result(options, report.as_json(), _in_words(report, options))
        if not report.complete:
            again = "Nothing was changed" if is_dry else "Copy again, with --replace"
            raise CommandError(f"Stopped before the end. {again}.")


def _checked(option: str, name: str) -> str:
    if name == "memory":
        raise CommandError(f"{option} memory: other processes cannot see what a process keeps in memory.")
    if name not in ("database", "redis"):
        raise CommandError(f"{option} {name!r} is not a store. Use database or redis.")
    return name


def _verify_target(name: str, *, replaces: bool) -> None:
    """Raise `CommandError` if the target has counts that the site uses and that a copy would delete or mix."""
    known_rules()  # reads the rules of the settings and the views
    if name == "database" and current().store != "database" and Rule.any_in_database:
        raise CommandError(
            'The database has the counts of rules or counters with store="database". A copy cannot be put beside them, '
            'and --replace would delete them. Nothing was changed. Set "STORE": "database" without a copy: these rules '
            "and counters go on from what they have, and what only Redis has begins anew: the other limits and "
            "counters, bans, slots."
        )
    if replaces and name == current().store:
        raise CommandError(
            f"STORE is {name!r}, so --replace would delete what your site counts. Copy first, and change STORE after "
            "it. Nothing was changed."
        )


def _place(name: str, stack: ExitStack) -> CopiedStore:
    if name == "redis" and (problem := which_redis().problem()) is not None:
        # Not the whole hint: it advises the other store.
        raise CommandError(f"{problem.message} {problem.hint}")
    store = make_store(name)
    stack.callback(store.close)
    # The KEY_PREFIX of a cache alias is a part of the keys in Redis alone.
    return CopiedStore(store, QuotaSettings({**current().given, "STORE": name}).prefix, place_of(name))


def _in_words(report: CopyReport, options: dict[str, Any]) -> Iterator[str]:
    is_dry = options["dry_run"]
    if report.replaced:
        before = quantity(report.replaced, "key")
        yield f"{'Would delete' if is_dry else 'Deleted'} {before} of {options['target']} first."
    keys = quantity(report.keys.total(), "key")
    yield f"{'Would copy' if is_dry else 'Copied'} {keys} from {options['source']} to {options['target']}."
    counts: dict[tuple[str, str], int] = {}
    for kind, count in report.keys.items():
        words = WORDS.get(kind, OF_THE_SITE)
        counts[words] = counts.get(words, 0) + count
    yield from (f"  {quantity(counts[words], *words)}" for words in (*WORDS.values(), OF_THE_SITE) if words in counts)
    yield from [f"  {quantity(report.bans, 'ban')} in force"] if report.bans else []
    if report.distinct:
        distinct = quantity(report.distinct, *WORDS["u"])
        yield f"Left out {distinct}: Redis keeps an estimate, and not the values."
    if report.foreign:
        yield f"Left out {foreign('key', report.foreign)}."
