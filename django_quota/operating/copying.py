"""Copies what a store keeps into another store, for a site that changes its store.

All states go along, as they are: used limits, bans, counters, leases, what was seen, and the counts of days. The list
of bans is made anew from the bans of the subjects. These stay behind:

* events: they are a log of the past, and each store writes it in a way of its own
* counts of different values in Redis, a HyperLogLog each: the values cannot be read back
* what says something of the old store and its processes: how far a sweep has come, how many processes there are

The new store must be empty, or is emptied first: so no count is added to another one, and none is lowered. Nothing may
be counted meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

from django_quota.core.clock import SECOND, frozen_now
from django_quota.core.errors import QuotaError, StoreUnavailable
from django_quota.core.keys import KEY_KINDS, is_system, part_of_key, pattern, read, subject_part
from django_quota.engine.events import NO_LOG, AppendEvents, EventLog, EventRecord
from django_quota.engine.operations import Operation
from django_quota.engine.state_copies import NotCopied, ReadStates, StateCopy, WriteStates
from django_quota.stores.base import RedisServers, Statement, Store
from django_quota.stores.database.sql import forget_bans
from django_quota.stores.scanning import Patience, batched, time_of

KEYS_A_CALL = 100
"""Keys that one call reads or writes."""

KINDS_OF_SITE = frozenset({"metrics", "totals", "refused", "slots", "sent"})
"""The kinds of keys without a subject that are copied."""


class CopyError(QuotaError):
    """A copy could not begin, or did not end."""


def copied_kind(prefix: str, key: str) -> str | None:
    """Return the kind of a key that is copied; None for another key."""
    parts = read(prefix, key)
    if parts is None:
        return None
    kind = parts.what.partition(":")[0]
    return kind if kind in (KINDS_OF_SITE if is_system(prefix, key) else KEY_KINDS) else None


class CopiedStore(NamedTuple):
    """A store to copy from or to."""

    store: Store
    prefix: str
    """How its keys begin."""
    name: str
    """Which server or database it is, for errors."""

    @contextmanager
    def answers(self) -> Iterator[None]:
        """Do something with the store. Raises `CopyError`, which names the store, if it does not answer."""
        try:
            yield
        except StoreUnavailable as error:
            raise CopyError(f"{str(error).rstrip('.')}. It is {self.name}.") from error

    def keys(self, patience: Patience) -> Iterator[list[str]]:
        """Yield the keys that are copied, some at a time. A key may come again in a later batch."""
        names = self.store.names(pattern(self.prefix), patience)
        with self.answers():
            for batch in batched((key for key in names if copied_kind(self.prefix, key)), KEYS_A_CALL):
                yield list(dict.fromkeys(batch))

    def states(self, keys: Sequence[str], patience: Patience) -> dict[str, StateCopy | NotCopied]:
        """Return what these keys hold. Those that hold nothing are left out."""
        with self.answers():
            found = patience(partial(self.store.run, ReadStates(keys), frozen_now()))
        return {key: state for key, state in zip(keys, found, strict=True) if state is not None}

    def now(self) -> int:
        """Return the store's time, in microseconds."""
        with self.answers():
            if self.store.database is not None:
                ((now,),) = self.store.database.read(lambda dialect: Statement(f"SELECT {dialect.now}"))
                return int(now)
            with cast("RedisServers", self.store.redis).commands() as client:
                return time_of(client)


@dataclass
class CopyReport:
    """What was copied, or what would be in a dry run."""

    keys: Counter[str] = field(default_factory=Counter)
    """How many keys of each kind were copied."""
    bans: int = 0
    """How many bans are in force, and on the list of bans."""
    distinct: int = 0
    """Counts of different values that cannot be read."""
    foreign: list[str] = field(default_factory=list)
    """Keys with data of another program or version. They are not copied."""
    replaced: int = 0
    """How many keys the target had before, which were deleted."""
    complete: bool = False
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the report for `--json`."""
        return {
            "keys": self.keys.total(),
            "kinds": dict(sorted(self.keys.items())),
            "bans": self.bans,
            "distinct": self.distinct,
            "foreign": self.foreign,
            "replaced": self.replaced,
            "complete": self.complete,
            "seconds": self.seconds,
        }


class Copier:
    """Copies all states from one store to another. `log`: the target's, for its list of bans; `NO_LOG`: it has none.

    `replaces`: delete what the target has first; without it, the target must be empty. `dry_run`: change nothing.
    """

    def __init__(
        self, source: CopiedStore, target: CopiedStore, log: EventLog, *, replaces: bool, dry_run: bool
    ) -> None:
        self._source = source
        self._target = target
        self._log = log
        self._replaces = replaces
        self._dry_run = dry_run

    def total(self) -> int:
        """Return how many keys there are to copy."""
        return sum(map(len, self._source.keys(Patience())))

    def apart(self) -> float:
        """Return how many seconds the clock of the target is ahead of that of the source."""
        return (self._target.now() - self._source.now()) / SECOND

    def copy(self, stop: threading.Event, advance: Callable[[int], object]) -> CopyReport:
        """Copy until the end, or until `stop` is set. `advance` gets the number of keys that were looked at.

        Raises `CopyError` if the target is not empty, if it would be emptied for nothing, if something else writes to
        it, or if a store does not answer.
        """
        report, began, patience = CopyReport(), time.monotonic(), Patience(stop)
        self._make_room(report, patience)
        now = frozen_now() or self._target.now()
        for keys in self._source.keys(patience):
            if stop.is_set():
                break
            found = self._source.states(keys, patience)
            copies = {self._renamed(key): state for key, state in found.items() if isinstance(state, StateCopy)}
            bans = [ban for key, state in copies.items() for ban in _bans(key, state, now)]
            copied = self._write(copies, bans, patience)
            report.keys.update(part_of_key(key).partition(":")[0] for key in copied)
            report.bans += len(bans)
            report.distinct += sum(state == "distinct" for state in found.values())
            report.foreign += [key for key, state in found.items() if state == "foreign"]
            advance(len(keys))
        else:
            report.complete = True
        report.seconds = time.monotonic() - began
        return report

    def _renamed(self, key: str) -> str:
        """Return the name of a key in the target."""
        return self._target.prefix + key.removeprefix(self._source.prefix)

    def _make_room(self, report: CopyReport, patience: Patience) -> None:
        """Empty the target, or check that it is empty."""
        target = self._target
        if self._replaces and not any(self._source.keys(patience)):
            raise CopyError(f"Nothing is counted in the old store, so nothing was deleted. It is {self._source.name}.")
        for keys in target.keys(patience):
            found = target.states(keys, patience)
            if found and not self._replaces:
                raise CopyError(
                    f"The new store has counts already, such as {next(iter(found))}, so nothing was copied. "
                    f"Use --replace to delete what it has first. It is {target.name}."
                )
            report.replaced += len(found)
            if self._replaces and not self._dry_run:
                self._run(WriteStates(dict.fromkeys(keys)), patience)
        if self._replaces and not self._dry_run and self._log is not NO_LOG:
            self._forget_bans(patience)

    def _forget_bans(self, patience: Patience) -> None:
        """Empty the target's list of bans."""
        database, log = self._target.store.database, self._log
        if database is None:
            self._run(WriteStates({log.bans: None}), patience)
            return
        with self._target.answers():
            patience(partial(database.write, lambda _: forget_bans(log.keys[0])))

    def _write(self, copies: Mapping[str, StateCopy], bans: Sequence[EventRecord], patience: Patience) -> Sequence[str]:
        """Write to the target; return the keys that were written. Raises `CopyError` if something else did before."""
        if self._dry_run or not copies:
            return list(copies)
        put = dict(zip(copies, self._run(WriteStates(copies), patience), strict=True))
        # A key comes twice if SCAN repeats it, or if a call was made again.
        taken = [key for key in copies if not put[key]]
        for key, state in self._target.states(taken, patience).items() if taken else ():
            if state == "foreign" or (isinstance(state, StateCopy) and state.value != copies[key].value):
                raise CopyError(
                    f"Something counts in the new store meanwhile, and has changed {key}. Stop it, and copy again with "
                    f"--replace. It is {self._target.name}."
                )
        if bans and self._log is not NO_LOG:
            self._run(AppendEvents(self._log, bans), patience)
        return [key for key in copies if put[key]]

    def _run(self, operation: Operation, patience: Patience) -> Any:
        """Run an operation on the target, again if there is no answer."""
        with self._target.answers():
            return patience(partial(self._target.store.run, operation, frozen_now()))


def _bans(key: str, state: StateCopy, now: int) -> Iterator[EventRecord]:
    """Yield the bans in force in the status of a subject, for the list of bans."""
    if part_of_key(key) != "s":
        return
    for name, value in state.value.items():
        kind, _, rule = name.partition(":")
        if kind == "b" and (until := int(value.partition(" ")[0])) > now:
            yield EventRecord("listed", rule, subject_part(key), until)
