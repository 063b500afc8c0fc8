"""The overrides of this process: a copy of those in the database, which updates itself.

The table is authoritative. Each change of it is also a row of a log, written in the same transaction. A process reads
all overrides at its first decision, and later only the changes that are new to it. Transactions may be committed in
another order than the numbers of their changes: a number that is missing is asked for again, for up to an hour.

A decision makes the reader read: a thread with one persistent connection. If nothing was read for `WAIT_AFTER` seconds,
the decision waits for it. If the database has no connection left for a reader, or for a request of the site, the
readers of all processes close theirs for an hour. Meanwhile the thread of a decision reads, on the connection that it
has anyway.

What the process itself saves applies at once, until a rollback of the transaction undoes it.

Plain SQL changes rows and logs nothing. So all overrides are read again every `ALL_AFTER` seconds, or less often if
reading takes more than a hundredth of the time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple, Protocol

from asgiref.sync import sync_to_async
from django.db import connections, transaction

from django_quota.core import clock
from django_quota.core.flow import IOCall
from django_quota.core.forks import register_fork_aware
from django_quota.core.overrides import Override, OverrideTable
from django_quota.limiting.flusher import reader

logger = logging.getLogger("django_quota.overrides")

REFRESH_AFTER = 1.5
"""Seconds since the last refresh after which a decision starts another."""

WAIT_AFTER = 2.0
"""Seconds since the last refresh after which a decision waits for the next one."""

ALL_AFTER = 60.0
"""Seconds after which a refresh reads all overrides, whatever the log says."""

FIRST_WAIT, MAX_WAIT = 5.0, 1.0
"""For how many seconds after its start decisions wait for a refresh: of all overrides, and of changes. Then they use
what is known, and none waits again before a refresh succeeds."""

IDLE_AFTER = 120.0
"""Seconds without a refresh after which the reader closes its connection, before a firewall forgets it."""

HERE_FOR = 3600.0
"""Seconds for which decisions read on their own connections after the database had none left."""

OPEN_FOR = 3600.0
"""Seconds for which a missing number is asked for: its transaction may still be open."""

MAX_GAPS = 100
"""How many missing numbers are asked for; earlier ones are found when all overrides are read."""

MAX_NEWS = 500
"""How many changes are read by their numbers; if there are more, all overrides are read."""

MAX_OWN = 1_000
"""How many of its own changes a process remembers until a refresh has read them."""

MAX_OVERRIDES = 100_000
"""How many overrides a process can hold well: about 50 MB, read in 2 seconds. Use a tier for larger groups."""


class NoConnectionError(Exception):
    """The reader cannot connect to the database."""


class Change(NamedTuple):
    """One row of the log of changes."""

    removed: Collection[int]
    """The primary keys of the overrides that it deleted."""
    full: bool
    """Whether it changes nothing, but reports that the database had no connection left, within the last hour."""


class Rows(Protocol):
    """The overrides in the database; `limiting.override_rows` implements this."""

    @property
    def is_private(self) -> bool:
        """Whether only this process can change them: there is no database, or it is in memory."""
        ...

    @property
    def is_in_transaction(self) -> bool:
        """Whether the calling thread is in a transaction, which may not see what was committed after it began."""
        ...

    def read(self, work: Callable[[], None]) -> None:
        """Do work that reads, in the reader's thread, on its persistent connection. Raises `NoConnectionError`."""
        ...

    def read_here(self, work: Callable[[], None]) -> None:
        """Do work that reads, on the connection of the calling thread, unless that is in a transaction that failed."""
        ...

    def close(self) -> None:
        """Close the connection of the reader, in its thread."""
        ...

    def changes(self, known: int | None, others: Collection[int]) -> Mapping[int, Change]:
        """Return the logged changes from the number `known` on, and `others`, by their numbers; None: all."""
        ...

    def say_full(self) -> None:
        """Report to the readers of all processes that the database had no connection left."""
        ...

    def all(self) -> Iterable[Override]:
        """Return all overrides that have not ended."""
        ...

    def saved_by(self, changes: Collection[int]) -> Iterable[Override]:
        """Return the overrides whose last change is one of these, even those that have ended."""
        ...


class OwnChange:
    """What this process changed in a transaction. It is also the hook that the connection calls at the commit."""

    def __init__(self, connection: Any, put: Collection[Override], removed: Collection[int]) -> None:
        self.connection = connection
        self._put = put
        self._removed = removed
        self.is_committed = False

    def __call__(self) -> None:
        """Record the commit. A test may call the hook in a transaction that is rolled back later."""
        self.is_committed = not self.connection.in_atomic_block

    def apply(self, table: OverrideTable) -> None:
        """Apply the change to a table."""
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
    """The copy of this process. Any thread may look overrides up; one at a time reads the database."""

    def __init__(self) -> None:
        self.rows: Rows | None = None
        """The overrides in the database; None while the app is not installed."""
        self._own: list[OwnChange] = []
        """What this process changed, and what no refresh has read from the database yet."""
        self._running: Future[None] | None = None
        """The refresh that is reading; None if none is. An earlier one that is late must not change anything."""
        self.after_fork()
        self.clear()
        register_fork_aware(self)

    def clear(self) -> None:
        """Forget all that was read. The next decision reads all overrides."""
        self.table = OverrideTable()
        self.problem = ""
        """Why the overrides could not be read; empty if they were."""
        self._failed = float("-inf")
        """When the problem was noticed."""
        self._known: int | None = None
        """The highest number of a change that was read; None: all overrides must be read."""
        self._gaps: dict[int, float] = {}
        """Lower numbers that were missing, and when this was noticed."""
        self._looked = float("-inf")
        """When the last refresh began."""
        self._all_due = 0.0
        """When all overrides are read again."""
        self._is_alone = False
        """Whether no other process can change the overrides."""
        self._is_late = False
        """Whether a decision has waited for a refresh that did not end in time, and none has succeeded since."""
        self._here_until = float("-inf")
        """Until when decisions read on the connections of their own threads."""
        self._is_refused = False
        """Whether the reader or the site got no connection. If the next refresh succeeds, there was none left."""
        self._running = None

    def after_fork(self) -> None:
        """In a forked process, forget what only the parent can finish: its refresh, and its transactions."""
        self._lock = threading.RLock()
        self._reading_here = threading.RLock()
        """Held by the thread that reads on its own connection."""
        self._running = None
        self._started = 0.0
        """When this refresh was started."""
        if self._own:
            self._own.clear()
            self._known = None

    # --- decisions ----------------------------------------------------------------------------------------------------

    def refreshing(self) -> IOCall | None:
        """Start a refresh if one is due; return the call that waits for it, or None if there is no need to wait."""
        if self._own and _rolled_back(self._own):
            self._known = None
        if self._known is not None and (self._is_alone or clock.elapsed() - self._looked < REFRESH_AFTER):
            return None
        return None if self.rows is None else self._refreshing(self.rows)

    def _refreshing(self, rows: Rows) -> IOCall | None:
        now = clock.elapsed()
        if now - self._failed < REFRESH_AFTER:
            return None
        if self._reads_here(rows):
            return IOCall(self._read_due, sync_to_async(self._read_due), rows)
        running = self._start(rows)
        if self._is_late or (self._known is not None and now - self._looked < WAIT_AFTER):
            return None
        return IOCall(self._wait, self._await, rows, running)

    def refresh(self) -> None:
        """Read what has changed, and wait for it. A problem is logged once, and what is known stays in use."""
        rows = self.rows
        if rows is None:
            return
        if self._reads_here(rows):
            self._read_here(rows)
        else:  # the reader sees what is committed, whatever the transaction of this thread sees
            self._wait(rows, self._start(rows))

    def note_refusal(self) -> None:
        """Record that a request of the site got no connection, and check whether the reader still has one."""
        if self.rows is None or self.problem or self._is_alone or clock.elapsed() < self._here_until:
            return
        self._is_refused = True
        self._start(self.rows)

    # --- the reader ---------------------------------------------------------------------------------------------------

    def _start(self, rows: Rows) -> Future[None]:
        with self._lock:
            running = self._running
            if running is not None and not running.done():
                return running
            self._running = running = Future()
            self._started = clock.elapsed()
            # The reader needs the context: `freeze` sets a context variable.
            is_started = reader.call_at(self._started, partial(copy_context().run, self._run, rows, running))
        if not is_started:
            running.set_result(None)
            self._fail(RuntimeError("this process can start no thread"))
        return running

    def _run(self, rows: Rows, running: Future[None]) -> None:
        reader.call_at(clock.elapsed() + IDLE_AFTER, rows.close)
        try:
            rows.read(partial(self._read, rows, running))
        except NoConnectionError as error:
            if clock.elapsed() - self._started < MAX_WAIT:  # the server has answered, so it may have no connection left
                self._is_refused = True
                self._read_here_from_now_on()
            elif running is self._running:
                self._is_late = True
                self._fail(error)
        except Exception as error:  # noqa: BLE001 — a test runner forbids queries by errors of its own
            if running is self._running:
                self._fail(error)
        finally:
            running.set_result(None)

    def _wait(self, rows: Rows, running: Future[None]) -> None:
        wait([running], self._patience())
        if self._waited(running):
            self._read_due(rows)

    async def _await(self, rows: Rows, running: Future[None]) -> None:
        await asyncio.wait([asyncio.wrap_future(running)], timeout=self._patience())
        if self._waited(running):
            await sync_to_async(self._read_due)(rows)

    def _patience(self) -> float:
        """Return how many seconds a decision waits for the refresh that runs."""
        if self._is_late:
            return 0.0
        return max(0.0, self._started + (MAX_WAIT if self._known is not None else FIRST_WAIT) - clock.elapsed())

    def _waited(self, running: Future[None]) -> bool:
        """Return whether the calling thread must read, because the reader has no connection."""
        if running.done():
            return clock.elapsed() < self._here_until
        if not self._is_late:
            self._is_late = True
            self._fail(TimeoutError("the database does not answer"))
        return False

    # --- the thread of a decision -------------------------------------------------------------------------------------

    def _reads_here(self, rows: Rows) -> bool:
        return rows.is_private or clock.elapsed() < self._here_until  # only this thread sees a database in memory

    def _read_here_from_now_on(self) -> None:
        with self._lock:
            self._running = None
            self._here_until = clock.elapsed() + HERE_FOR

    def _read_due(self, rows: Rows) -> None:
        """Read, unless another thread is reading. If nothing was ever read, wait for that thread."""
        waits = self._known is None and not self._is_late
        if not self._reading_here.acquire(timeout=FIRST_WAIT if waits else 0):
            self._is_late = self._is_late or waits
            return
        try:
            now = clock.elapsed()
            is_old = self._known is None or now - self._looked >= REFRESH_AFTER
            if is_old and now - self._failed >= REFRESH_AFTER:
                self._read_here(rows)
        finally:
            self._reading_here.release()

    def _read_here(self, rows: Rows) -> None:
        try:
            with self._reading_here:
                rows.read_here(partial(self._read, rows, None))
        except Exception as error:  # noqa: BLE001 — a test runner forbids queries by errors of its own
            self._here_until, self._is_refused = float("-inf"), False
            self._fail(error)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        is_new = not self.problem
        self.problem, self._failed = str(error) or type(error).__name__, clock.elapsed()
        if is_new:  # last: a log handler may take a decision
            logger.error(
                "The overrides cannot be read: %s. This process keeps using the %d that it knows.",
                self.problem.rstrip("."),
                len(self.table),
            )

    def _read(self, rows: Rows, running: Future[None] | None) -> None:
        began = clock.elapsed()
        own = list(self._own)
        undone = _rolled_back(own)
        done = {id(each) for each in own if each.is_committed}.union(map(id, undone))  # what is read now contains them
        known, gaps = self._known, self._gaps
        found = rows.changes(known, gaps)
        if known and known not in found:  # the table went back in time, or this process slept for an hour
            if rows.is_in_transaction and not undone:  # or it sees the state at the beginning of its transaction
                return
            known, gaps, found = None, {}, rows.changes(None, ())
        new = found.keys() - {known}
        table, all_due, changed = None, self._all_due, list[Override]()
        if known is None or undone or began >= all_due or len(new) > MAX_NEWS:
            table = OverrideTable(rows.all())
            all_due = began + max(ALL_AFTER, 100 * (clock.elapsed() - began))
        elif new:
            changed = list(rows.saved_by(new))
        with self._lock:
            if running is not None and running is not self._running:  # this refresh came too late
                return
            if table is None:
                table = self._changed({pk for number in new for pk in found[number].removed}, changed)
            self._own = [each for each in self._own if id(each) not in done]
            for each in self._own:
                each.apply(table)
            self.table, self._looked, self._all_due = table, began, all_due
            self._known, self._gaps = max(found, default=0), _gaps(gaps, known, found, began)
            self._is_alone = rows.is_private
            was_failing, self.problem, self._failed, self._is_late = bool(self.problem), "", float("-inf"), False
            self._running = None  # later decisions need a newer refresh, even before this one reports its end
        if was_failing:
            logger.warning("The overrides can be read again.")
        if self._is_refused or any(found[number].full for number in new):
            self._give_way(rows)

    def _give_way(self, rows: Rows) -> None:
        """Leave the connection of the reader to the site, and make the readers of other processes do the same."""
        is_first = self._is_refused and not rows.is_in_transaction
        self._read_here_from_now_on()
        if is_first:
            self._is_refused = False
            rows.say_full()
            logger.warning(
                "The database had no connection left. For an hour, overrides are read on the connections of the site's "
                "threads."
            )
        reader.call_at(clock.elapsed(), rows.close)

    def _changed(self, removed: Collection[int], put: Collection[Override]) -> OverrideTable:
        """Apply these changes to the table, and return it."""
        for pk in removed:
            self.table.drop(pk)
        for override in put:
            self.table.put(override)
        if put:
            self.table.drop_ended(clock.now())
        return self.table

    # --- changes ------------------------------------------------------------------------------------------------------

    def change(self, using: str, put: Collection[Override], removed: Collection[int] = ()) -> None:
        """Use what this process has just saved or deleted in a transaction."""
        own = OwnChange(connections[using], put, removed)
        transaction.on_commit(own, using=using)
        with self._lock:
            if self._is_alone or len(self._own) >= MAX_OWN:  # no refresh may come
                self._own = [each for each in self._own if not each.is_committed]
            self._own.append(own)
            own.apply(self.table)


def _gaps(before: Mapping[int, float], known: int | None, found: Iterable[int], now: float) -> dict[int, float]:
    """Return the missing numbers, each with when it was noticed: those of before, and those between the new ones."""
    numbers = sorted(found)
    gaps = {number: since for number, since in before.items() if number not in found and now - since < OPEN_FOR}
    if known is None:
        known = numbers[0] if numbers and numbers[0] > MAX_GAPS else 0
    for number in numbers:
        gaps |= dict.fromkeys(range(max(known + 1, number - MAX_GAPS), number), now)
        known = max(known, number)
    return dict(list(gaps.items())[-MAX_GAPS:])


overrides = OverrideCopy()
"""The overrides of this process."""
