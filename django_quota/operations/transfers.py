"""A transfer between two totals that lie in two places, such as two slots of a Redis Cluster. Pure.

No script reaches both. So an amount goes in steps, each of which is undivided where it is done:

1. *send*, where the giver lies: the amount leaves the total, and a note in the outbox says that it is on the way.
2. *receive*, where the taker lies: it is added to the total, and the inbox remembers that it has come. Where it cannot
   be added, the inbox remembers that instead: then it never can.
3. *settle*, where the giver lies: the note goes. What could not be received is given back, in the same step.
4. *close*, where the taker lies: the inbox need not remember it for long any more.

Whoever is stopped between two steps leaves the note. Anybody may carry on from it, several at once, and each step as
often as they like: an amount is added once, or given back once.

What was received is remembered for longer than anybody can still bring it, by the clock of its own server: whoever has
read a note may bring it for `LEASE` from then on, and that it has come is remembered for `LEASE` and `MARGIN` after the
note has gone. So no amount comes twice, however long a process sleeps between two steps and whatever the clocks of two
servers say; one server's may go back by `MARGIN`, as where a replica takes over. Where the taker's is ahead of the
giver's by `LEASE` or more nothing can be brought until they agree: it stays on the way.

All that holds as long as servers remember what they have done: a replica that takes over without the last writes has
forgotten its part of the last transfers.

Beside each script stands its specification. It must not know what keys are called.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from django_quota.clock import SECOND
from django_quota.exceptions import StoreUnavailable
from django_quota.operations.base import Operation, Script, States, script, text
from django_quota.operations.counters import (
    DONE,
    MILLISECOND,
    NO_COUNTER,
    OVERFLOW,
    REFUSED,
    CounterOperation,
    FaultError,
    Transfer,
    added,
)
from django_quota.operations.shapes import Shape, digits, moment, words

logger = logging.getLogger("django_quota")

LATE = -4
"""The status of what is brought too late; see `lua/counter_receive.lua`."""

OVERDUE = 5 * SECOND
"""From which age on others carry on what is on the way: by then its own caller has come to an end, as a rule."""

KEPT = 400 * 86_400 * SECOND
"""For how long what is on the way is carried on."""

LEASE = 3_600 * SECOND
"""For how long what was read of a note may be brought."""

MARGIN = 3_600 * SECOND
"""For how much longer it is remembered that it has come: by so much the clock of one server may go back."""

MOST_ALONG = 3
"""How many overdue ones a transfer carries on beside its own."""

MOST_FORGOTTEN = 100
"""How many entries of an inbox one call drops; see `lua/counter_receive.lua`."""

Steps = Generator[Sequence[Operation], list[Any], Any]
"""As `operations.spread.Spread`: operations of one place each, and their replies."""


class Giver(NamedTuple):
    """The keys of the total that gives."""

    total: str
    outbox: str


class Note(NamedTuple):
    """What is on the way: `amount` to the total of a taker, which lives for `ttl` (microseconds) from its coming on."""

    id: str
    amount: int
    ttl: int
    total: str
    inbox: str

    @property
    def words(self) -> str:
        """Return it as it lies in an outbox."""
        return json.dumps(self, separators=(",", ":"))

    @classmethod
    def read(cls, words: str) -> Note | None:
        """Read what `words` has written; None where it is no note."""
        try:
            noted = cls(*json.loads(words))
        except (ValueError, TypeError):
            return None
        kinds = (str, int, int, str, str)
        return noted if all(type(part) is kind for part, kind in zip(noted, kinds, strict=True)) else None


class Overdue(NamedTuple):
    """A note as it lies in an outbox."""

    words: str
    until: int
    """Until when it is carried on."""


def overdue_of(reply: Sequence[Any]) -> list[Overdue]:
    """Return the overdue notes that a reply names behind its status and its time."""
    return [Overdue(text(reply[i]), int(reply[i + 1])) for i in range(2, len(reply), 2)]


# --- one step each ----------------------------------------------------------------------------------------------------


def _script(name: str) -> Script:
    return script("counter_common", "counter_notes", name)


def _put(states: States, key: str, entries: Mapping[str, int]) -> None:
    """Keep a sorted set until its last entry expires; an empty one is none."""
    if entries:
        states.put(key, dict(entries), max(entries.values()))
    else:
        states.drop(key)


def _overdue(entries: Mapping[str, int], now: int, skipped: int, most: int) -> list[Any]:
    found = sorted((stop, words) for words, stop in entries.items() if now < stop <= now + KEPT - OVERDUE)
    return [part for stop, words in found[skipped : skipped + most] for part in (words, str(stop))]


class Send(CounterOperation):
    """Take an amount off the giver's total and note it; the reply is DONE or REFUSED, the time, and overdue notes."""

    script: ClassVar[Script] = _script("counter_send")
    answers: ClassVar[Mapping[int, Sequence[Shape]]] = {DONE: (moment,), REFUSED: (moment,)}
    rows: ClassVar[Sequence[Shape]] = (words, digits)

    def __init__(self, giver: Giver, note: Note) -> None:
        self.keys = giver
        self.note = note

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/counter_send.lua` lists them."""
        return [self.note.amount, self.note.ttl // MILLISECOND, self.note.words, KEPT, OVERDUE, MOST_ALONG]

    def apply(self, states: States, now: int) -> list[Any]:
        """Take all of it or nothing."""
        total, outbox = self.read(states, now, 1, 0), states.get(self.keys[1]) or {}
        overdue = _overdue(outbox, now, 0, MOST_ALONG)
        if total < self.note.amount:
            return [REFUSED, now, *overdue]
        states.put(self.keys[0], total - self.note.amount, now + self.note.ttl)
        _put(states, self.keys[1], {**outbox, self.note.words: now + KEPT})
        return [DONE, now, *overdue]


class Receive(CounterOperation):
    """Add what is on the way to the taker's total, once; the reply is DONE, why it never can be, or LATE.

    `forgotten`: from when on (microseconds) it need not be remembered; `late`: from when on it cannot be brought.
    """

    script: ClassVar[Script] = _script("counter_receive")
    answers: ClassVar[Mapping[int, Sequence[Shape]]] = {DONE: (), LATE: ()}

    def __init__(self, note: Note, forgotten: int, late: int) -> None:
        self.keys = [note.total, note.inbox]
        self.note = note
        self.forgotten = forgotten
        self.late = late

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/counter_receive.lua` lists them."""
        note = self.note
        return [note.amount, note.ttl // MILLISECOND, note.id, self.forgotten, self.late]

    def apply(self, states: States, now: int) -> list[Any]:
        """Add it where neither this nor that it could not be is remembered."""
        inbox = states.get(self.keys[1]) or {}
        for member, answer in _answers(self.note.id).items():
            if inbox.get(member, 0) > now:
                return answer
        if now >= self.late:
            return [LATE]
        old = sorted((stop, member) for member, stop in inbox.items() if stop <= now)[:MOST_FORGOTTEN]
        kept = {member: stop for member, stop in inbox.items() if (stop, member) not in old}
        try:
            total = added(self.read(states, now, 1, 0), self.note.amount, 1)
        except FaultError as fault:
            _put(states, self.keys[1], {**kept, f"{self.note.id} {fault.reply[0]}": self.forgotten})
            raise
        _put(states, self.keys[1], {**kept, self.note.id: self.forgotten})
        states.put(self.keys[0], total, now + self.note.ttl)
        return [DONE]


def _answers(id_: str) -> dict[str, list[int]]:
    """Return what an inbox may remember of an id, and the reply that follows from it."""
    return {id_: [DONE], f"{id_} {NO_COUNTER}": [NO_COUNTER, 1], f"{id_} {OVERFLOW}": [OVERFLOW, 1]}


class Settle(CounterOperation):
    """Forget a note; with `gives_back` the amount is the giver's again, if the note was there.

    `words`: the note as it lies in the outbox; who else wrote it may have spaced it otherwise than `Note.words` does.
    The reply is DONE and the time, or why the giver's total cannot take it: then the note stays.
    """

    script: ClassVar[Script] = _script("counter_settle")
    answers: ClassVar[Mapping[int, Sequence[Shape]]] = {DONE: (moment,)}

    def __init__(self, giver: Giver, note: Note, words: str, *, gives_back: bool) -> None:
        self.keys = giver
        self.note = note
        self.words = words
        self.gives_back = gives_back

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/counter_settle.lua` lists them."""
        return [self.note.amount if self.gives_back else "", self.note.ttl // MILLISECOND, self.words]

    def apply(self, states: States, now: int) -> list[Any]:
        """Take the note, and do what follows from it."""
        outbox = states.get(self.keys[1]) or {}
        if self.words not in outbox:
            return [DONE, now]
        if self.gives_back:
            total = added(self.read(states, now, 1, 0), self.note.amount, 1)
            states.put(self.keys[0], total, now + self.note.ttl)
        _put(states, self.keys[1], {words: stop for words, stop in outbox.items() if words != self.words})
        return [DONE, now]


class Close(CounterOperation):
    """Let an inbox forget what has become of an id from a moment on (microseconds), or before; the reply is DONE."""

    script: ClassVar[Script] = _script("counter_close")

    def __init__(self, note: Note, forgotten: int) -> None:
        self.keys = [note.inbox]
        self.id = note.id
        self.forgotten = forgotten

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/counter_close.lua` lists them."""
        return [self.id, self.forgotten]

    def apply(self, states: States, now: int) -> list[Any]:  # noqa: ARG002 — moments of an inbox are the caller's
        """Remember it for less long."""
        inbox = states.get(self.keys[0]) or {}
        shorter = {member: self.forgotten for member in _answers(self.id) if inbox.get(member, 0) > self.forgotten}
        if shorter:
            _put(states, self.keys[0], {**inbox, **shorter})
        return [DONE]


class FindOverdue(CounterOperation):
    """Name what an outbox has had on the way for long; the reply is DONE, the time, and the notes: see `overdue_of`."""

    script: ClassVar[Script] = _script("counter_overdue")
    answers: ClassVar[Mapping[int, Sequence[Shape]]] = {DONE: (moment,)}
    rows: ClassVar[Sequence[Shape]] = (words, digits)

    def __init__(self, outbox: str, skipped: int, most: int) -> None:
        self.keys = [outbox]
        self.skipped = skipped
        self.most = most

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/counter_overdue.lua` lists them."""
        return [KEPT, OVERDUE, self.skipped, self.most]

    def apply(self, states: States, now: int) -> list[Any]:
        """Read them."""
        return [DONE, now, *_overdue(states.get(self.keys[0]) or {}, now, self.skipped, self.most)]


# --- the whole --------------------------------------------------------------------------------------------------------


def moved(transfer: Transfer) -> Steps:
    """Return (as the steps' result) the reply to a transfer whose totals lie in two places.

    Raises `StoreUnavailable` where it is not known how it ends: the note stays then, and others carry on from it.
    """
    passage = transfer.passage
    giver = Giver(transfer.keys[0], passage.outbox)
    note = Note(passage.id, transfer.amount, transfer.ttl, transfer.keys[1], passage.inbox)
    (sent,) = yield [Send(giver, note)]
    status, *rest = sent
    if status not in (DONE, REFUSED):
        return sent
    now = rest[0]
    if status == DONE:
        (status, *rest) = yield from carried(giver, note, Overdue(note.words, now + KEPT), now)
    yield from _along(giver, overdue_of(sent), now)
    return [status, 2] if status in (NO_COUNTER, OVERFLOW) else [status]


def carried(giver: Giver, note: Note, noted: Overdue, now: int) -> Steps:
    """Return (as the steps' result) what has become of a note that was read at `now`: the reply to its receiving.

    `noted`: the note as it lies in the outbox.

    Raises `StoreUnavailable` where that is not known, or it could not be given back: the note stays then.
    """
    (received,) = yield [Receive(note, noted.until + LEASE + MARGIN, now + LEASE)]
    if received[0] == LATE:
        raise StoreUnavailable("an amount on the way came too late to be added: do the clocks of the servers agree?")
    (settled,) = yield [Settle(giver, note, noted.words, gives_back=received[0] != DONE)]
    if settled[0] != DONE:
        raise StoreUnavailable(f"an amount that {note.total} cannot take cannot be given back to {giver.total} either")
    try:
        yield [Close(note, settled[1] + LEASE + MARGIN)]
    except StoreUnavailable as error:
        logger.warning("That an amount has come is remembered for longer than it need be: %s", error)
    return received


def _along(giver: Giver, overdue: Sequence[Overdue], now: int) -> Steps:
    """Carry on what others have left; where that cannot be done now, the next one tries."""
    try:
        for note, noted in read_all(giver.outbox, overdue):
            yield from carried(giver, note, noted, now)
    except StoreUnavailable as error:
        logger.info("What is on the way from %s stays so for now: %s", giver.total, error)  # the sweep warns


def read_all(outbox: str, overdue: Sequence[Overdue]) -> Iterator[tuple[Note, Overdue]]:
    """Yield notes, each with how it lies in the outbox; what is none is passed over."""
    for noted in overdue:
        note = Note.read(noted.words)
        if note is None:
            logger.warning("What lies in %s is no note of an amount on the way: %r", outbox, noted.words)
        else:
            yield note, noted
