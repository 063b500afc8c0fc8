"""The overrides of this process: a copy of those in the database, which updates itself.

The table is the truth. Each change of it has a number, which is raised in the same transaction, so changes are
committed in the order of their numbers. A process reads all overrides at its first decision, and later only changes
with a higher number than it knows. Decisions start a thread that reads; if nothing was read for `WAIT_AFTER` seconds,
the next decision waits for the thread. What the process itself saves holds at once, until a rollback of the transaction
undoes it.

Plain SQL changes rows without a number. So all overrides are read again every `ALL_AFTER` seconds, or more rarely if
that takes more than a hundredth of the time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Collection, Iterable
from concurrent.futures import Future, wait
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol

from asgiref.sync import sync_to_async
from django.db import connections, transaction

from django_quota.core import clock
from django_quota.core.flow import IOCall
from django_quota.core.forks import register_fork_aware
from django_quota.core.overrides import Override, OverrideTable

logger = logging.getLogger("django_quota")

REFRESH_AFTER = 1.5
"""Seconds after which a decision starts a refresh in a thread."""

WAIT_AFTER = 2.0
"""Seconds after which a decision waits for the refresh."""

ALL_AFTER = 60.0
"""Seconds after which a refresh reads all overrides, whatever their numbers say."""

FIRST_WAIT, MAX_WAIT = 5.0, 1.0
"""Seconds that a decision waits at most: for all overrides, and for changes. After that it uses what is known."""

GIVE_UP_AFTER = 10.0
"""Seconds after which a refresh that hangs is left alone, and another one started."""

MAX_OWN = 1_000
"""Changes of its own that a process remembers until a refresh has read them."""

MAX_OVERRIDES = 100_000
"""How many overrides a process holds with ease: about 50 MB, read in 2 seconds. Give larger groups a tier."""


class Rows(Protocol):
    """The overrides in the database; `limiting.override_rows` implements this."""

    @property
    def is_private(self) -> bool:
        """Whether only this process can change them: there is no database, or it is in memory."""
        ...

    def latest(self) -> tuple[int, int]:
        """Return the numbers of the latest change, and of the latest one that deleted rows."""
        ...

    def all(self) -> Iterable[Override]:
        """Return all overrides that have not ended."""
        ...

    def since(self, number: int) -> Iterable[Override]:
        """Return the overrides that were saved after the change with this number, even those that have ended."""
        ...

    def pks(self) -> Collection[int]:
        """Return the primary keys of `all`."""
        ...


class OwnChange:
    """What this process changed in a transaction; a commit hook of the connection."""

    def __init__(self, connection: Any, number: int, put: Collection[Override], removed: Collection[int]) -> None:
        self.connection = connection
        self.number = number
        self._put = put
        self._removed = removed
        self.is_committed = False

    def __call__(self) -> None:
        """Note the commit. A test may run the hooks of a transaction that it will roll back."""
        self.is_committed = not self.connection.in_atomic_block

    def apply(self, table: OverrideTable) -> None:
        """Make the change in a table."""
        for override in self._put:
            table.put(override)
        for pk in self._removed:
            table.drop(pk)


def _rolled_back(changes: Iterable[OwnChange]) -> list[OwnChange]:
    """Return the changes whose transaction, or savepoint, was rolled back: the connection has forgotten their hooks."""
    waiting = [each for each in changes if not each.is_committed]
    used = {id(each.connection): each.connection for each in waiting}
    hooks = {id(hook[1]) for connection in used.values() for hook in connection.run_on_commit}
    return [each for each in waiting if id(each) not in hooks]


class OverrideCopy:
    """The copy of this process. Any thread may look up; one at a time reads the database."""

    def __init__(self) -> None:
        self.rows: Rows | None = None
        """The overrides in the database; None while the app is not installed."""
        self._own: list[OwnChange] = []
        """What this process changed and no refresh has read from the database yet."""
        self.clear()
        self.after_fork()
        register_fork_aware(self)

    def clear(self) -> None:
        """Forget all that was read. The next decision reads all overrides."""
        self.table = OverrideTable()
        self.problem = ""
        """Why the overrides could not be read; empty if they were."""
        self._failed = float("-inf")
        """When that was noticed."""
        self._known: int | None = None
        """The number of the latest change that was read; None: all overrides must be read."""
        self._looked = float("-inf")
        """When the last refresh began."""
        self._all_due = 0.0
        """When all overrides are read again."""
        self._is_alone = False
        """Whether no other process can change the overrides."""

    def after_fork(self) -> None:
        """Forget what only the parent can finish: its threads, and its transactions."""
        self._lock = threading.RLock()
        self._running: Future[None] | None = None
        """The refresh that reads; None if none does. An earlier one must not change anything."""
        self._started = 0.0
        """When this refresh was started."""
        self._is_late = False
        """Whether somebody has waited for this refresh in vain."""
        if self._own:
            self._own.clear()
            self._known = None

    # --- decisions ----------------------------------------------------------------------------------------------------

    def refreshing(self) -> IOCall | None:
        """Start a refresh if one is due; return the call that waits for it, or None if nobody needs to wait."""
        if self._own and _rolled_back(self._own):
            self._known = None
        if self._known is not None and (self._is_alone or clock.elapsed() - self._looked < REFRESH_AFTER):
            return None
        return None if self.rows is None else self._refreshing(self.rows)

    def _refreshing(self, rows: Rows) -> IOCall | None:
        now = clock.elapsed()
        if now - self._failed < REFRESH_AFTER:
            return None
        if rows.is_private:  # another thread would not find such a database
            return IOCall(self.refresh, sync_to_async(self.refresh))
        running = self._start(rows, now)
        if self._is_late or (self._known is not None and now - self._looked < WAIT_AFTER):
            return None
        return IOCall(self._wait, self._await, running, MAX_WAIT if self._known is not None else FIRST_WAIT)

    def refresh(self) -> None:
        """Read what has changed, and wait for it. A problem is logged once, and what is known stays in use."""
        if self.rows is None:
            return
        if self.rows.is_private:
            self._refresh(self.rows, None)
        else:  # a new thread sees what is committed, whatever the transaction of this thread sees
            self._wait(self._start(self.rows, clock.elapsed()), 0.0 if self._is_late else FIRST_WAIT)

    def _start(self, rows: Rows, now: float) -> Future[None]:
        with self._lock:
            running = self._running
            if running is not None and not running.done() and now - self._started < GIVE_UP_AFTER:
                return running
            self._running = running = Future()
            self._started, self._is_late = now, False
            work = partial(copy_context().run, self._run, rows, running)  # `freeze` sets a context variable
            thread = threading.Thread(target=work, name="django-quota-overrides", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the process is ending
            running.set_result(None)
            self._fail(error)
        return running

    def _run(self, rows: Rows, running: Future[None]) -> None:
        try:
            self._refresh(rows, running)
        finally:
            try:
                connections.close_all()
            finally:
                running.set_result(None)

    def _wait(self, running: Future[None], seconds: float) -> None:
        wait([running], seconds)
        self._waited(running)

    async def _await(self, running: Future[None], seconds: float) -> None:
        await asyncio.wait([asyncio.wrap_future(running)], timeout=seconds)
        self._waited(running)

    def _waited(self, running: Future[None]) -> None:
        if not running.done() and not self._is_late:
            self._is_late = True  # nobody waits for this refresh again
            self._fail(TimeoutError("the database does not answer"))

    # --- reading ------------------------------------------------------------------------------------------------------

    def _refresh(self, rows: Rows, running: Future[None] | None) -> None:
        began = clock.elapsed()
        try:
            self._read(rows, running, began)
        except Exception as error:  # noqa: BLE001 — a test runner forbids queries by errors of its own
            if running in (None, self._running):
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        is_new = not self.problem
        self.problem, self._failed = str(error) or type(error).__name__, clock.elapsed()
        if is_new:  # last: a log handler may take a decision
            logger.error(
                "The overrides cannot be read: %s. Those that this process knows hold; there are %d.",
                self.problem.rstrip("."),
                len(self.table),
            )

    def _read(self, rows: Rows, running: Future[None] | None, began: float) -> None:
        own = list(self._own)
        undone = _rolled_back(own)
        done = {id(each) for each in own if each.is_committed}.union(map(id, undone))  # what is read now says the same
        number, removed = rows.latest()
        table, known, all_due = None, self._known, self._all_due
        changed, kept = list[Override](), None
        if known is None or undone or number < known or began >= all_due:
            table = OverrideTable(rows.all())
            all_due = began + max(ALL_AFTER, 100 * (clock.elapsed() - began))
        elif number > known:
            changed = list(rows.since(known))
            kept = rows.pks() if removed > known else None
        with self._lock:
            if running not in (None, self._running):  # this refresh came too late
                return
            table = self._changed(changed, kept) if table is None else table
            self._own = [each for each in self._own if id(each) not in done]
            for each in self._own:
                if each.number > number:  # what was read has the others, or what came after them
                    each.apply(table)
            self.table, self._known, self._looked, self._all_due = table, number, began, all_due
            self._is_alone = rows.is_private
            was_failing, self.problem, self._failed = bool(self.problem), "", float("-inf")
            self._running = None  # later decisions need a newer refresh, even while this thread closes its connection
        if was_failing:
            logger.warning("The overrides can be read again.")

    def _changed(self, changed: Iterable[Override], kept: Collection[int] | None) -> OverrideTable:
        """Return the table with these overrides; `kept`: the primary keys that are left, if some were deleted."""
        for override in changed:
            self.table.put(override)
        if kept is not None:
            self.table.keep(kept)
        if changed:
            self.table.drop_ended(clock.now())
        return self.table

    # --- changes ------------------------------------------------------------------------------------------------------

    def change(self, using: str, number: int, put: Collection[Override], removed: Collection[int] = ()) -> None:
        """Use what this process has just saved or deleted in a transaction; `number`: the number of the change."""
        own = OwnChange(connections[using], number, put, removed)
        transaction.on_commit(own, using=using)
        with self._lock:
            if self._is_alone or len(self._own) >= MAX_OWN:  # no refresh may come
                self._own = [each for each in self._own if not each.is_committed]
            self._own.append(own)
            own.apply(self.table)


overrides = OverrideCopy()
"""The overrides of this process."""
