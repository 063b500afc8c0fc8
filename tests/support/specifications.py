"""The specifications of operations that run in Redis only."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import Any

from django_quota.engine.counter_operations import DONE, NO_COUNTER, OVERFLOW, REFUSED, FaultError, added
from django_quota.engine.operations import Operation, States
from django_quota.engine.override_operations import CompletePublication, RaiseGeneration
from django_quota.engine.subject_operations import DropDay
from django_quota.engine.system_operations import Sweep
from django_quota.engine.transfer_operations import (
    LATE,
    MAX_RESUMED,
    OVERDUE,
    PENDING_TTL,
    Close,
    FindOverdueTransfers,
    Receive,
    Send,
    Settle,
)

MAX_DROPPED = 100
"""How many expired entries of an inbox one call drops; see `lua/transfer_receive.lua`."""


@singledispatch
def specify(operation: Operation, states: States, now: int) -> Any:
    """Run the specification of an operation over these states, and return the reply."""
    return operation.run(states, now)


class Specified(Operation):
    """Lets a memory store run the specification of an operation."""

    def __init__(self, operation: Operation) -> None:
        self.keys = operation.keys
        self.operation = operation

    def arguments(self) -> list[str | int]:
        return []

    def run(self, states: States, now: int) -> Any:
        return specify(self.operation, states, now)


@specify.register
def _send(operation: Send, states: States, now: int) -> list[Any]:
    transfer, (total_key, outbox_key) = operation.transfer, operation.keys
    try:
        total, outbox = _total(states, total_key, now), states.get(outbox_key) or {}
    except FaultError as fault:
        return fault.reply
    overdue = _overdue(outbox, now, 0, MAX_RESUMED)
    if total < transfer.amount:
        return [REFUSED, now, *overdue]
    states.put(total_key, total - transfer.amount, now + transfer.ttl)
    _put(states, outbox_key, {**outbox, transfer.encoded: now + PENDING_TTL})
    return [DONE, now, *overdue]


@specify.register
def _receive(operation: Receive, states: States, now: int) -> list[Any]:
    transfer, (total_key, inbox_key) = operation.transfer, operation.keys
    *_, forget_at, late_at = map(int, operation.arguments()[3:])
    inbox = states.get(inbox_key) or {}
    for member, answer in _answers(transfer.id).items():
        if inbox.get(member, 0) > now:
            return answer
    if now >= late_at:
        return [LATE]
    old = sorted((stop, member) for member, stop in inbox.items() if stop <= now)[:MAX_DROPPED]
    kept = {member: stop for member, stop in inbox.items() if (stop, member) not in old}
    try:
        total = added(_total(states, total_key, now), transfer.amount, 1)
    except FaultError as fault:
        _put(states, inbox_key, {**kept, f"{transfer.id} {fault.reply[0]}": forget_at})
        return fault.reply
    _put(states, inbox_key, {**kept, transfer.id: forget_at})
    states.put(total_key, total, now + transfer.ttl)
    return [DONE]


@specify.register
def _settle(operation: Settle, states: States, now: int) -> list[Any]:
    total_key, outbox_key = operation.keys
    amount, _, encoded = operation.arguments()
    outbox = states.get(outbox_key) or {}
    if encoded not in outbox:
        return [DONE, now]
    if amount != "":  # 0 is an amount, too
        try:
            total = added(_total(states, total_key, now), operation.transfer.amount, 1)
        except FaultError as fault:
            return fault.reply
        states.put(total_key, total, now + operation.transfer.ttl)
    _put(states, outbox_key, {entry: stop for entry, stop in outbox.items() if entry != encoded})
    return [DONE, now]


@specify.register
def _close(operation: Close, states: States, now: int) -> list[Any]:
    inbox = states.get(operation.keys[0]) or {}
    id_, forget_at = str(operation.arguments()[0]), int(operation.arguments()[1])
    shorter = {member: forget_at for member in _answers(id_) if inbox.get(member, 0) > forget_at}
    if shorter:
        _put(states, operation.keys[0], {**inbox, **shorter})
    return [DONE]


@specify.register
def _find_overdue(operation: FindOverdueTransfers, states: States, now: int) -> list[Any]:
    outbox = states.get(operation.keys[0]) or {}
    *_, skipped, most = map(int, operation.arguments())
    return [DONE, now, *_overdue(outbox, now, skipped, most)]


@specify.register
def _raise_generation(operation: RaiseGeneration, states: States, now: int) -> int:
    (marker,), (least, wanted) = operation.keys, map(int, operation.arguments())
    shown = states.get(marker, now) or 0
    if shown < max(1, least):
        return 0
    raised = max(shown, wanted or shown + 1)
    states.put(marker, raised, states.expiry(marker))
    return int(raised)


@specify.register
def _complete_publication(operation: CompletePublication, states: States, now: int) -> int:
    (marker, count), (expected, generation, ttl) = operation.keys, map(int, operation.arguments())
    if states.get(count, now) != expected:
        return 0
    shown = max(states.get(marker, now) or 0, generation)
    states.put(marker, shown, now + ttl)
    states.drop(count)
    return int(shown)


@specify.register
def _drop_day(operation: DropDay, states: States, now: int) -> int:
    (key,), seen = operation.keys, operation.arguments()
    found = {field: str(value) for field, value in (states.get(key) or {}).items()}
    return int(found == dict(zip(seen[::2], seen[1::2], strict=True)) and states.drop(key))


@specify.register
def _sweep(operation: Sweep, states: States, now: int) -> list[int]:
    """Drop expired entries. A sorted set is a mapping from members to scores here, and every key has a TTL."""
    reply: list[int] = []
    most = operation.most
    for key, swept in zip(operation.keys, operation.sweepable, strict=True):
        entries = states.get(key)
        if not swept or not isinstance(entries, Mapping):
            reply += (0, 0, 0, 0)
            continue
        expired = sorted((score, member) for member, score in entries.items() if score <= now)
        gone = {member for _, member in expired[:most]}
        kept = {member: score for member, score in entries.items() if member not in gone}
        if kept and gone:
            states.put(key, kept, states.expiry(key))
        elif gone:
            states.drop(key)
        most -= len(gone)
        reply += (1, len(gone), len(expired) - len(gone), 0)
    return reply


def _total(states: States, key: str, now: int) -> int:
    value = states.get(key, now)
    if value is None:
        return 0
    if not isinstance(value, int):
        raise FaultError(NO_COUNTER, 1)
    return value


def _put(states: States, key: str, entries: Mapping[str, int]) -> None:
    """Keep a sorted set until its last entry expires; an empty one does not exist."""
    if entries:
        states.put(key, dict(entries), max(entries.values()))
    else:
        states.drop(key)


def _overdue(entries: Mapping[str, int], now: int, skipped: int, most: int) -> list[Any]:
    found = sorted((stop, entry) for entry, stop in entries.items() if now < stop <= now + PENDING_TTL - OVERDUE)
    return [part for stop, entry in found[skipped : skipped + most] for part in (entry, str(stop))]


def _answers(id_: str) -> dict[str, list[int]]:
    """Return what an inbox may remember of an id, and the reply that follows."""
    return {id_: [DONE], f"{id_} {NO_COUNTER}": [NO_COUNTER, 1], f"{id_} {OVERFLOW}": [OVERFLOW, 1]}
