"""A transfer between two totals in different slots of a Redis Cluster.

No script reaches both totals. So the amount goes in steps, and each step is atomic in its slot:

1. *send*, at the source: the amount leaves the total, and the outbox notes a pending transfer.
2. *receive*, at the destination: the amount is added, and the inbox remembers the transfer. If the total cannot take
   it, the inbox remembers that instead, and the amount can never be added.
3. *settle*, at the source: the pending transfer goes. An amount that could not be added returns to the source.
4. *close*, at the destination: the inbox may soon forget the transfer.

A process that stops between two steps leaves the pending transfer behind. Any process can resume it, also several at
once and each step repeatedly: an amount is added once, or returned once.

An inbox remembers a transfer for longer than anybody can still deliver it, by its own server's clock. A process may
deliver a pending transfer for `LEASE` after it was read, and the inbox remembers it for `LEASE` and `MARGIN` after it
has gone. So no amount arrives twice, however long a process sleeps between two steps, and even if one server's clock
goes back by `MARGIN`, as when a replica takes over. If the clock of the destination is ahead of the source's by `LEASE`
or more, nothing can be delivered until the clocks agree: the transfer stays pending.

All of this needs servers that remember their writes. A replica that takes over without the last writes has forgotten
its part of the last transfers.

Only Redis Cluster runs these steps. Their specification is in the tests.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Sequence
from typing import Any, ClassVar, NamedTuple

from django_quota.core.clock import DAY, SECOND
from django_quota.core.errors import StoreUnavailable
from django_quota.engine.counter_operations import DONE, NO_COUNTER, OVERFLOW, REFUSED, Transfer
from django_quota.engine.operations import Operation, RedisOperation, Script, script, text

logger = logging.getLogger("django_quota")

LATE = -4
"""The status of an amount that is delivered too late; see `lua/transfer_receive.lua`."""

OVERDUE = 5 * SECOND
"""The age from which others resume a transfer: by then its own process has usually ended."""

PENDING_TTL = 400 * DAY
"""How long a pending transfer can be resumed."""

LEASE = 3_600 * SECOND
"""How long a pending transfer may be delivered after it was read."""

MARGIN = 3_600 * SECOND
"""How much longer its arrival is remembered: the clock of a server may go back by as much."""

MAX_RESUMED = 3
"""How many overdue transfers a transfer resumes beside its own."""

TransferFlow = Generator[Sequence[Operation], list[Any], Any]
"""Yields operations of one slot each, and takes their replies; see `scatter.Scatter`."""


class Source(NamedTuple):
    """The keys of the total that an amount leaves."""

    total: str
    outbox: str


class PendingTransfer(NamedTuple):
    """An amount that has left its source; the destination's total lives for `ttl` (microseconds) after its arrival."""

    id: str
    amount: int
    ttl: int
    total: str
    inbox: str

    @property
    def encoded(self) -> str:
        """The transfer as an outbox has it."""
        return json.dumps(self, separators=(",", ":"))

    @classmethod
    def read(cls, encoded: str, outbox: str) -> PendingTransfer | None:
        """Read an entry of an outbox; None, with a warning in the log, if it is no transfer."""
        try:
            found = cls(*json.loads(encoded))
            if list(map(type, found)) == [str, int, int, str, str]:
                return found
        except (ValueError, TypeError):
            pass
        logger.warning("An entry of %s is no pending transfer: %r", outbox, encoded)
        return None


class OutboxEntry(NamedTuple):
    """An entry of an outbox."""

    encoded: str
    until: int
    """Until when it can be resumed (microseconds)."""


def read_overdue(reply: Sequence[Any]) -> list[OutboxEntry]:
    """Return the overdue entries of a reply, which follow its status and its time."""
    return [OutboxEntry(text(reply[i]), int(reply[i + 1])) for i in range(2, len(reply), 2)]


# --- the steps --------------------------------------------------------------------------------------------------------


def _script(name: str) -> Script:
    return script("clock", "counter_common", "transfer_common", name)


class Send(RedisOperation):
    """Take an amount off the source's total. The reply is DONE or REFUSED, the time, and overdue entries."""

    script: ClassVar[Script] = _script("transfer_send")

    def __init__(self, source: Source, transfer: PendingTransfer) -> None:
        super().__init__(source, transfer.amount, transfer.ttl, transfer.encoded, PENDING_TTL, OVERDUE, MAX_RESUMED)
        self.transfer = transfer


class Receive(RedisOperation):
    """Add the amount to the destination's total, once. The reply is DONE, why it can never be added, or LATE.

    `forget_at`: when its arrival may be forgotten; `late_at`: when it can no longer be delivered (microseconds).
    """

    script: ClassVar[Script] = _script("transfer_receive")

    def __init__(self, transfer: PendingTransfer, forget_at: int, late_at: int) -> None:
        super().__init__(
            [transfer.total, transfer.inbox], transfer.amount, transfer.ttl, transfer.id, forget_at, late_at
        )
        self.transfer = transfer


class Settle(RedisOperation):
    """Drop a pending transfer; with `gives_back`, return the amount to the source if the transfer was still there.

    `encoded`: the entry as the outbox has it, which may have other spaces than `PendingTransfer.encoded`. The reply
    is DONE and the time, or why the source's total cannot take the amount: then the entry stays.
    """

    script: ClassVar[Script] = _script("transfer_settle")

    def __init__(self, source: Source, transfer: PendingTransfer, encoded: str, *, gives_back: bool) -> None:
        super().__init__(source, transfer.amount if gives_back else "", transfer.ttl, encoded)
        self.transfer = transfer


class Close(RedisOperation):
    """Let an inbox forget a transfer at a moment (microseconds), or before. The reply is DONE."""

    script: ClassVar[Script] = _script("transfer_close")

    def __init__(self, transfer: PendingTransfer, forget_at: int) -> None:
        super().__init__([transfer.inbox], transfer.id, forget_at)


class FindOverdueTransfers(RedisOperation):
    """Name the overdue entries of an outbox. The reply is DONE, the time, and the entries: see `read_overdue`."""

    script: ClassVar[Script] = _script("transfer_overdue")

    def __init__(self, outbox: str, skipped: int, most: int) -> None:
        super().__init__([outbox], PENDING_TTL, OVERDUE, skipped, most)


# --- the whole --------------------------------------------------------------------------------------------------------


def transfer_between_slots(operation: Transfer) -> TransferFlow:
    """Return (as the flow's result) the reply to a transfer whose totals are in two slots.

    Raises `StoreUnavailable` if its end is not known: the transfer stays pending, and others resume it.
    """
    route = operation.route
    source = Source(operation.keys[0], route.outbox)
    transfer = PendingTransfer(route.id, operation.amount, operation.ttl, operation.keys[1], route.inbox)
    (sent,) = yield [Send(source, transfer)]
    status, *rest = sent
    if status not in (DONE, REFUSED):
        return sent
    now = rest[0]
    if status == DONE:
        (status, *rest) = yield from resume(source, transfer, OutboxEntry(transfer.encoded, now + PENDING_TTL), now)
    yield from _resume_others(source, read_overdue(sent), now)
    return [status, 2] if status in (NO_COUNTER, OVERFLOW) else [status]


def resume(source: Source, transfer: PendingTransfer, entry: OutboxEntry, now: int) -> TransferFlow:
    """Deliver a pending transfer that was read at `now`; return (as the flow's result) the reply of its arrival.

    `entry`: the transfer as the outbox has it. Raises `StoreUnavailable` if its end is not known, or if the amount
    could not be returned: the transfer stays pending.
    """
    (received,) = yield [Receive(transfer, entry.until + LEASE + MARGIN, now + LEASE)]
    if received[0] == LATE:
        raise StoreUnavailable("an amount in transfer came too late to be added: do the clocks of the servers agree?")
    (settled,) = yield [Settle(source, transfer, entry.encoded, gives_back=received[0] != DONE)]
    if settled[0] != DONE:
        raise StoreUnavailable(
            f"{transfer.total} cannot take an amount in transfer, and it cannot be returned to {source.total} either"
        )
    try:
        yield [Close(transfer, settled[1] + LEASE + MARGIN)]
    except StoreUnavailable as error:
        logger.warning("The arrival of an amount is remembered for longer than needed: %s", error)
    return received


def _resume_others(source: Source, overdue: Sequence[OutboxEntry], now: int) -> TransferFlow:
    """Resume what other processes left; if that fails, the next transfer tries again."""
    try:
        for entry in overdue:
            transfer = PendingTransfer.read(entry.encoded, source.outbox)
            if transfer is not None:
                yield from resume(source, transfer, entry, now)
    except StoreUnavailable as error:
        logger.info(
            "Amounts in transfer from %s stay in transfer for now: %s", source.total, error
        )  # quota_sweep warns
