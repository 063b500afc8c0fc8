"""Lists of addresses and networks, such as those of crawlers and clouds: the overrides with one label are one list."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.db import IntegrityError, OperationalError, transaction
from django.db.models import Q
from django.utils import timezone

from django_quota.core.errors import RuleError
from django_quota.limiting.known_rules import known_sizes
from django_quota.limiting.override_rows import TRIES, write_database
from django_quota.models import QuotaOverride, next_change
from django_quota.operating.lookup import smaller_hint
from django_quota.subjects.addresses import is_address
from django_quota.subjects.subject import override_subject

ROWS_PER_QUERY = 1_000
"""Rows that one statement changes."""

MAX_PROBLEMS = 10
"""How many wrong lines an error names."""

MAX_SHOWN = 50
"""How many characters of a wrong line an error shows."""

T = TypeVar("T")


def read_list(lines: Iterable[str]) -> list[str]:
    """Return the subjects of a list: one address or network per line. A `#` begins a comment.

    Raises `RuleError`, which names the wrong lines.
    """
    subjects: dict[str, None] = {}
    sizes = known_sizes()
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip().removeprefix("ip:")
        try:
            if text:
                subjects[_subject_of(text, sizes)] = None
        except RuleError as error:
            problems.append(f"Line {number}: {error}")
    if problems:
        named, more = problems[:MAX_PROBLEMS], len(problems) - MAX_PROBLEMS
        if more > 0:
            named.append("1 more line is wrong." if more == 1 else f"{more:,} more lines are wrong.")
        raise RuleError("\n".join(named))
    return list(subjects)


def _subject_of(text: str, sizes: Collection[tuple[int, int]]) -> str:
    if not is_address(text):
        example = "Write, for example, 203.0.113.9 or 198.51.100.0/24."
        raise RuleError(f"{text[:MAX_SHOWN]!r} is neither an address nor a network.", example)
    if problem := smaller_hint(text, sizes) if "/" in text else "":
        raise RuleError(problem)
    return override_subject(f"ip:{text}")


@dataclass
class ListChange:
    """What a list changes, as primary keys or subjects."""

    added: list[str] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    deleted: list[int] = field(default_factory=list)
    kept: int = 0
    others: list[str] = field(default_factory=list)
    """Subjects that already have an override under the rule with another label or none. They keep it."""


def save_list(
    subjects: Collection[str],
    label: str,
    rule: str,
    values: Mapping[str, Any],
    *,
    dry_run: bool = False,
) -> ListChange:
    """Replace the overrides with a label by overrides of these subjects. One transaction writes the difference.

    `values`: the other fields of each row. Raises `ValidationError` for a wrong value.
    """
    database = write_database()
    probe = QuotaOverride(subject="ip:203.0.113.9", label=label, rule=rule, **values)
    probe.full_clean(validate_constraints=False)
    tries = 0
    while True:
        tries += 1
        try:
            with transaction.atomic(using=database):
                if not dry_run:
                    next_change(database)  # first: SQLite refuses a transaction that reads before it writes
                    _lock(label)
                change = _difference(set(subjects), label, rule, values)
                if not dry_run:
                    _write(change, label, rule, values)
                return change
        except (IntegrityError, OperationalError):  # another process has added the same rows, or it is a deadlock
            if tries == TRIES:
                raise


def _lock(label: str) -> None:
    """Wait for other saves of the same list. All lock its rows in the same order, so there is no deadlock."""
    rows = QuotaOverride.objects.using(write_database()).filter(label=label)
    list(rows.select_for_update().order_by("pk").values_list("pk"))


def _difference(wanted: set[str], label: str, rule: str, values: Mapping[str, Any]) -> ListChange:
    change = ListChange()
    rows = QuotaOverride.objects.using(write_database()).filter(Q(label=label) | Q(rule=rule))
    found = set[str]()
    for pk, subject, of_rule, of_label, *present in rows.values_list("pk", "subject", "rule", "label", *values):
        if of_label != label:
            if subject in wanted:
                change.others.append(subject)
                found.add(subject)
        elif of_rule != rule or subject not in wanted:
            change.deleted.append(pk)
        else:
            found.add(subject)
            if present == list(values.values()):
                change.kept += 1
            else:
                change.changed.append(pk)
    change.added = sorted(wanted - found)
    return change


def _write(change: ListChange, label: str, rule: str, values: Mapping[str, Any]) -> None:
    rows = QuotaOverride.objects.using(write_database())
    for pks in _batches(change.deleted):
        rows.filter(pk__in=pks).delete()
    for pks in _batches(change.changed):
        rows.filter(pk__in=pks).update(**values, updated=timezone.now())
    for subjects in _batches(change.added):
        rows.bulk_create(QuotaOverride(subject=subject, rule=rule, label=label, **values) for subject in subjects)


def _batches(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    return (rows[first : first + ROWS_PER_QUERY] for first in range(0, len(rows), ROWS_PER_QUERY))
