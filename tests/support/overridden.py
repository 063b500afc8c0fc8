"""Overrides for tests that need no database: they are put into the copy of this process."""

from itertools import count

from django_quota.core.overrides import Override, OverrideMode
from django_quota.limiting.overrides import overrides

MODES: dict[str, OverrideMode] = {"r": "rate", "x": "exempt", "b": "blocked", "s": "shadow"}

_numbers = count(1_000_000)


def override(value: str, rule: str = "10/m", subject: str = "ip:203.0.113.9") -> None:
    """Set the override of a subject and a rule: `"<mode> <begins> <ends> <rates>"`, times in microseconds, 0 for none.

    The modes are the keys of `MODES`. An empty string clears it.
    """
    for known in overrides.table.of_subject(subject):
        if (known.subject, known.rule) == (subject, rule):
            overrides.table.drop(known.pk)
    if value:
        mode, begins, ends, rates = value.split(" ", 3)
        overrides.table.put(
            Override(next(_numbers), subject, rule, MODES[mode], rates, begins=int(begins), ends=int(ends))
        )


def forget_overrides() -> None:
    overrides.after_fork()
    overrides.clear()
