"""What transfers have left on the way, carried on: received where it was going to, or given back. No commands.

A transfer between two slots of a Cluster that was stopped, or that a server did not answer, leaves a note in the
giver's outbox; `operations.transfers` says what may be done with one. It must not know how keys are found.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from django_quota.exceptions import StoreUnavailable
from django_quota.keys import total_of
from django_quota.operations.base import Operation
from django_quota.operations.transfers import FindOverdue, Giver, Note, Overdue, Steps, carried, overdue_of

logger = logging.getLogger("django_quota")

AT_ONCE = 20
"""How many notes are read in one call."""

Run = Callable[[Operation], Any]
"""Does an operation; raises `StoreUnavailable`."""


def carry_on(run: Run, outbox: str, *, dry_run: bool = False) -> Iterator[bool]:
    """Carry on all that is overdue in an outbox; yield of each whether it came to its end, or, in a dry run, could.

    What could not be is logged, and stays on the way. Raises `StoreUnavailable` where the outbox cannot be read.
    """
    giver = Giver(total_of(outbox), outbox)
    left, before = 0, set[Overdue]()
    while overdue := overdue_of(reply := run(FindOverdue(outbox, left, AT_ONCE))):
        for noted in overdue:
            if noted in before:
                logger.warning("What was settled lies in %s still, and is left there: %r", outbox, noted.words)
            ended = noted not in before and _carried(run, giver, noted, reply[1], dry_run=dry_run)
            left += dry_run or not ended
            yield ended
        before = set(overdue)


def _carried(run: Run, giver: Giver, noted: Overdue, now: int, *, dry_run: bool) -> bool:
    note = Note.read(noted.words)
    if note is None:
        logger.warning("What lies in %s is no note of an amount on the way: %r", giver.outbox, noted.words)
        return False
    if not dry_run:
        try:
            _driven(run, carried(giver, note, noted, now))
        except StoreUnavailable as error:
            logger.warning("%d on the way from %s to %s stays so: %s", note.amount, giver.total, note.total, error)
            return False
    return True


def _driven(run: Run, steps: Steps) -> None:
    """Do steps one by one."""
    try:
        asked = next(steps)
        while True:
            try:
                replies = [run(operation) for operation in asked]
            except StoreUnavailable as error:
                asked = steps.throw(error)
            else:
                asked = steps.send(replies)
    except StopIteration:
        return
