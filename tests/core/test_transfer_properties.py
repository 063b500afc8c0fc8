"""A transfer between two slots changes both totals or neither, once, whatever fails, stops or overtakes another."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from django_quota import counter
from django_quota.core.keys import key_of, subject_base
from django_quota.engine import transfer_operations as transfers
from django_quota.engine.counter_operations import (
    DONE,
    MAX_INT64,
    NO_COUNTER,
    OVERFLOW,
    REFUSED,
    Set,
    Transfer,
    TransferRoute,
)
from django_quota.engine.operations import DictStates, Operation, text
from django_quota.engine.system_operations import Sweep
from django_quota.engine.transfer_operations import (
    LATE,
    LEASE,
    MARGIN,
    OVERDUE,
    PENDING_TTL,
    Close,
    FindOverdueTransfers,
    PendingTransfer,
    Receive,
    Send,
    Settle,
    Source,
    TransferFlow,
    read_overdue,
    resume,
    transfer_between_slots,
)
from django_quota.exceptions import StoreUnavailable
from django_quota.services.counters import BATCH_SIZE, resume_overdue
from django_quota.services.sweep import Sweeper
from django_quota.testing import freeze
from tests.support.selection import thorough
from tests.support.specifications import specify
from tests.support.steps import SECOND, START
from tests.support.stores import current_store

TTL = 60 * SECOND
Process = Callable[[], TransferFlow]


@pytest.fixture(autouse=True)
def nothing_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search goes through many thousand failures; those who look at the log turn it on."""
    monkeypatch.setattr(transfers.logger, "disabled", True)


def key(kind: str, subject: str) -> str:
    return key_of(subject_base("quota", subject), kind, "coins")


def home(name: str) -> str:
    return name[name.index("{") + 1 : name.index("}")]


def source_of(subject: str) -> Source:
    return Source(key("c", subject), key("m", subject))


def note_of(id_: str, amount: int = 3, destination: str = "b") -> PendingTransfer:
    return PendingTransfer(id_, amount, TTL, key("c", destination), key("n", destination))


def asked_of(id_: str, source: str, destination: str, amount: int) -> Transfer:
    return Transfer(
        [key("c", source), key("c", destination)],
        amount,
        TTL,
        TransferRoute(id_, key("m", source), key("n", destination)),
    )


# --- processes --------------------------------------------------------------------------------------------------------


def transfer(id_: str, source: str, destination: str, amount: int) -> Process:
    return lambda: transfer_between_slots(asked_of(id_, source, destination, amount))


def carrier(subject: str) -> Process:
    def steps() -> TransferFlow:
        source = source_of(subject)
        (reply,) = yield [FindOverdueTransfers(source.outbox, 0, 9)]
        for noted in read_overdue(reply):
            if note := PendingTransfer.read(noted.encoded, source.outbox):
                yield from resume(source, note, noted, reply[1])

    return steps


def setting(subject: str, total: int) -> Process:
    def steps() -> Generator[Sequence[Operation], list[Any], None]:
        yield [Set([key("c", subject)], total, TTL)]

    return steps


# --- every order in which steps can be done ---------------------------------------------------------------------------

FAILED_BEFORE, FAILED_AFTER, STOPPED = "the server was not reached", "the reply was lost", "the process was killed"

MOMENTS = (START, START + OVERDUE, START + 2 * OVERDUE + LEASE + LEASE + MARGIN)
"""When steps may be done: at first, when others carry on, and when all that was remembered of that may be forgotten."""


class World(NamedTuple):
    """All that a moment consists of."""

    kept: tuple[tuple[str, Any], ...]
    """The keys that there are, and what lies under them."""
    moment: int
    heard: tuple[tuple[Any, ...], ...]
    """What each process was answered."""
    faults: int
    """How many more may happen."""
    fates: tuple[tuple[str, str], ...] = ()
    """The state of each id: sent, received, returned."""

    @property
    def totals(self) -> dict[str, int]:
        return {home(name): total for name, total in self.kept if isinstance(total, int)}

    @property
    def outboxes(self) -> list[str]:
        return [name for name, _ in self.kept if ":m:" in name]


@dataclass
class Search:
    """Does the steps of processes in every order, with every fault; each world that comes of it is looked at once."""

    processes: Sequence[Process]
    totals: Mapping[str, int]
    amounts: Mapping[str, int]
    """Of each id, in the order of the first processes."""
    faults: int = 0
    moments: Sequence[int] = MOMENTS
    skews: Mapping[str, int] = field(default_factory=dict)
    """How far the clock of a subject's server is from the others'."""
    changed: int = 0
    """How much a `setting` changes the sum by."""
    seen: set[World] = field(default_factory=set)
    fates: set[tuple[str, ...]] = field(default_factory=set)
    """What has become of the ids in the end."""
    _asked: dict[tuple[int, tuple[Any, ...]], Any] = field(default_factory=dict)

    def first(self) -> World:
        kept = tuple((key("c", subject), total) for subject, total in sorted(self.totals.items()))
        return World(kept, 0, tuple(() for _ in self.processes), self.faults)

    def all(self) -> Search:
        """Look at every world."""
        left = [self.first()]
        while left:
            world = left.pop()
            if world not in self.seen:
                self.seen.add(world)
                left += self.looked_at(world)
        return self

    def looked_at(self, world: World) -> list[World]:
        """Check a world; return those that may follow it."""
        self._check(world)
        following = list(self.following(world))
        if not following:
            self._end(world)
        return following

    def _check(self, world: World) -> None:
        """Check that nobody owes, and that what is in no total is on the way."""
        assert min(world.totals.values()) >= 0
        ended = [id_ for id_, what in world.fates if what != "sent"]
        assert len(set(ended)) == len(ended)  # nothing is received twice, nor received and given back
        on_the_way = {id_ for id_, what in world.fates if what == "sent"} - set(ended)
        total = sum(world.totals.values()) + sum(self.amounts[id_] for id_ in on_the_way)
        assert total - sum(self.totals.values()) in (0, self.changed)

    def _end(self, world: World) -> None:
        """Carry on what is left; check that each is both or neither, and what callers were told of it."""
        results = [self.asked(number, world.heard[number])[1] for number in range(len(self.amounts))]
        carriers = [carrier(home(outbox)) for outbox in world.outboxes]
        later = [self.moments[world.moment] + 2 * OVERDUE]
        rest = Search(carriers, self.totals, self.amounts, 0, later, self.skews, self.changed)
        end = world._replace(heard=tuple(() for _ in carriers), moment=0, faults=0)
        while following := list(rest.following(end)):
            end = following[0]
            rest._check(end)
        assert not end.outboxes
        fates = dict(fate for fate in end.fates if fate[1] != "sent")
        assert set(fates) == {id_ for id_, what in end.fates if what == "sent"}
        for id_, result in zip(self.amounts, results, strict=True):
            if isinstance(result, list):
                assert fates.get(id_) == {DONE: "received", REFUSED: None, OVERFLOW: "given back"}[result[0]]
        self.fates.add(tuple(fates.get(id_, "refused") for id_ in self.amounts))

    def following(self, world: World) -> Iterator[World]:
        if world.moment + 1 < len(self.moments):
            yield self._later(world)
        for number, heard in enumerate(world.heard):
            operation, _ = self.asked(number, heard)
            if operation is None:
                continue
            kept, reply, fates = self._run(world, operation)
            outcomes = [(kept, reply, fates, 0)]
            if world.faults:
                outcomes += [
                    (world.kept, FAILED_BEFORE, world.fates, 1),
                    (kept, FAILED_AFTER, fates, 1),
                    (world.kept, STOPPED, world.fates, 1),
                ]
            for after, answer, became, cost in outcomes:
                histories = (*world.heard[:number], (*heard, answer), *world.heard[number + 1 :])
                yield World(after, world.moment, histories, world.faults - cost, became)

    def asked(self, number: int, heard: tuple[Any, ...]) -> tuple[Operation | None, Any]:
        """Return what a process asks next; None and its result where it has come to an end."""
        if (number, heard) not in self._asked:
            self._asked[number, heard] = _replayed(self.processes[number](), heard)
        return self._asked[number, heard]  # type: ignore[no-any-return]

    def _run(self, world: World, operation: Operation) -> tuple[Any, Any, Any]:
        """Do an operation; return what is kept then, its reply, and what has become of ids."""
        states = _states(world)
        reply = specify(operation, states, self._now(world.moment, operation.keys[0]))
        fates = world.fates
        if isinstance(operation, (Send, Receive, Settle)):
            total, what = operation.keys[0], _FATES[type(operation)]
            change = (states.get(total) or 0) - dict(world.kept).get(total, 0)
            if change:
                assert change == (-operation.transfer.amount if what == "sent" else operation.transfer.amount)
                fates = tuple(sorted((*fates, (operation.transfer.id, what))))
        return _kept(states), tuple(reply), fates

    def _later(self, world: World) -> World:
        """Let time pass; what may be forgotten is, as by a sweep."""
        states = _states(world)
        for name, value in world.kept:
            if isinstance(value, tuple):
                specify(Sweep([name], [True], [1], 99, repairs=False), states, self._now(world.moment + 1, name))
        return world._replace(kept=_kept(states), moment=world.moment + 1)

    def _now(self, moment: int, name: str) -> int:
        return self.moments[moment] + self.skews.get(home(name), 0)


_FATES: dict[type[Operation], str] = {Send: "sent", Receive: "received", Settle: "given back"}


def _replayed(steps: TransferFlow, heard: Iterable[Any]) -> tuple[Operation | None, Any]:
    try:
        (operation,) = next(steps)
        for answer in heard:
            if answer == STOPPED:
                steps.close()
                return None, None
            if answer in (FAILED_BEFORE, FAILED_AFTER):
                (operation,) = steps.throw(StoreUnavailable(answer))
            else:
                (operation,) = steps.send([list(answer)])
    except StopIteration as ended:
        return None, ended.value
    except StoreUnavailable as error:
        return None, error
    return operation, None


def _states(world: World) -> DictStates:
    states = DictStates()
    for name, value in world.kept:
        states.put(name, dict(value) if isinstance(value, tuple) else value, 2**60)
    return states


def _kept(states: DictStates) -> tuple[tuple[str, Any], ...]:
    found = ((name, value) for name, (value, _) in states.kept.items())
    return tuple(sorted((name, tuple(sorted(it.items())) if isinstance(it, dict) else it) for name, it in found))


ONE = [transfer("x", "a", "b", 3)]
TWO = [*ONE, transfer("y", "a", "c", 4)]
CARRIERS = [carrier("a"), carrier("a")]


@pytest.mark.thorough("search")
@pytest.mark.parametrize("skew", [0, -LEASE, LEASE - OVERDUE - 1, -90 * LEASE], ids=str)
def test_a_transfer_resumed_by_two_is_all_or_nothing_under_any_two_faults(skew: int) -> None:
    search = Search([*ONE, *CARRIERS], {"a": 5, "b": 0}, {"x": 3}, faults=2, skews={"b": skew}).all()
    assert search.fates == {("received",), ("refused",)}
    assert len(search.seen) > 10_000


def test_two_transfers_never_make_a_source_negative() -> None:
    search = Search([*TWO, carrier("a")], {"a": 5, "b": 0, "c": 0}, {"x": 3, "y": 4}, faults=1).all()
    assert search.fates == {("received", "refused"), ("refused", "received")}
    assert len(search.seen) > 10_000


@pytest.mark.thorough("search")
def test_two_transfers_of_a_source_and_two_sweeps() -> None:
    search = Search([*TWO, *CARRIERS], {"a": 7, "b": 0, "c": 0}, {"x": 3, "y": 4}).all()
    assert search.fates == {("received", "received")}
    assert len(search.seen) > 10_000


@pytest.mark.parametrize("freed", [False, thorough("search", True)])
def test_what_cannot_be_received_is_given_back_once_though_there_may_be_room_later(freed: bool) -> None:
    processes = [transfer("x", "a", "b", 3), *([setting("b", 0)] if freed else []), *CARRIERS]
    search = Search(processes, {"a": 3, "b": MAX_INT64}, {"x": 3}, faults=1, changed=-MAX_INT64).all()
    assert search.fates == {("given back",), ("refused",), *([("received",)] if freed else [])}
    assert len(search.seen) > 5_000


def test_two_that_go_both_ways_are_apart() -> None:
    processes = [transfer("x", "a", "b", 3), transfer("y", "b", "a", 4), carrier("a"), carrier("b")]
    search = Search(processes, {"a": 3, "b": 3}, {"x": 3, "y": 4}, moments=MOMENTS[:2]).all()
    assert search.fates == {("received", "refused"), ("received", "received")}


ANY_TRANSFERS = st.lists(
    st.tuples(st.sampled_from(["ab", "ac", "bc", "ba", "ca", "cb"]), st.integers(0, 5)), min_size=1, max_size=6
)


@given(
    asked=ANY_TRANSFERS, carriers=st.lists(st.sampled_from("abc"), max_size=4), faults=st.integers(0, 6), data=st.data()
)
def test_any_transfers_in_any_order_with_any_faults_keep_the_sum(
    asked: list[tuple[str, int]], carriers: list[str], faults: int, data: st.DataObject
) -> None:
    # An amount of nothing has no fate that could be told.
    named = {f"id{number}": (both, amount + 1) for number, (both, amount) in enumerate(asked)}
    processes = [transfer(id_, both[0], both[1], amount) for id_, (both, amount) in named.items()]
    totals = {"a": 5, "b": 4, "c": MAX_INT64 - 3}
    amounts = {id_: amount for id_, (_, amount) in named.items()}
    search = Search([*processes, *map(carrier, carriers)], totals, amounts, faults)
    world = search.first()
    while following := search.looked_at(world):
        world = following[data.draw(st.integers(0, len(following) - 1))]


# --- one after the other ----------------------------------------------------------------------------------------------


MOST_CARRIED = 1_000


class Apart:
    """States of each subject in a place of its own, with a clock for all and, for each, how far its own is off."""

    def __init__(self, **totals: int) -> None:
        self.places: dict[str, DictStates] = {}
        self.now = START
        self.skews: dict[str, int] = {}
        self.fails: Callable[[Operation], bool] = lambda operation: False
        self.forgets: Callable[[Operation], bool] = lambda operation: False
        """What is answered and not done, as by a server whose replica takes over without it."""
        self.asked: list[Operation] = []
        for subject, total in totals.items():
            self.run(Set([key("c", subject)], total, TTL))

    def run(self, operation: Operation) -> Any:
        (place,) = {home(name) for name in operation.keys}
        self.asked.append(operation)
        if self.fails(operation):
            raise StoreUnavailable("gone")
        if self.forgets(operation):
            return [DONE, self.now]
        return specify(operation, self.places.setdefault(place, DictStates()), self.now + self.skews.get(place, 0))

    def transfer(self, id_: str, source: str, destination: str, amount: int) -> Any:
        steps = transfer_between_slots(asked_of(id_, source, destination, amount))
        try:
            (operation,) = next(steps)
            while True:
                try:
                    reply = self.run(operation)
                except StoreUnavailable as error:
                    (operation,) = steps.throw(error)
                else:
                    (operation,) = steps.send([reply])
        except StopIteration as ended:
            return ended.value

    def stopped(self, *transfers: tuple[str, str, str, int]) -> None:
        """Leave transfers on the way."""
        before, self.fails = self.fails, lambda operation: isinstance(operation, Receive)
        for each in transfers:
            with pytest.raises(StoreUnavailable):
                self.transfer(*each)
        self.fails = before

    def resume_overdue(self, subject: str, **options: bool) -> list[bool]:
        found = list(itertools.islice(resume_overdue(self.run, key("m", subject), **options), MOST_CARRIED))
        assert len(found) < MOST_CARRIED, "it goes round for ever"
        return found

    def total(self, subject: str) -> int:
        return self.places[subject].get(key("c", subject), self.now) or 0

    def entries(self, kind: str, subject: str) -> dict[str, int]:
        return self.places[subject].get(key(kind, subject)) or {}


def test_a_transfer_is_four_calls_and_a_refused_one_is_one() -> None:
    world = Apart(a=5, b=1)
    world.asked.clear()
    assert world.transfer("x", "a", "b", 4) == [DONE]
    assert [type(operation) for operation in world.asked] == [Send, Receive, Settle, Close]
    world.asked.clear()
    assert world.transfer("y", "a", "b", 2) == [REFUSED]
    assert [type(operation) for operation in world.asked] == [Send]
    assert (world.total("a"), world.total("b")) == (1, 5)


def test_what_came_is_remembered_for_as_long_as_it_can_be_brought_and_a_margin() -> None:
    world = Apart(a=5)
    world.stopped(("x", "a", "b", 1))
    assert world.entries("m", "a") == {note_of("x", 1).encoded: START + PENDING_TTL}
    world.fails = lambda operation: isinstance(operation, Settle)
    with pytest.raises(StoreUnavailable):
        world.transfer("y", "a", "b", 1)
    assert world.entries("n", "b") == {"y": START + PENDING_TTL + LEASE + MARGIN}
    world.fails = lambda operation: False
    world.now += OVERDUE
    assert world.resume_overdue("a") == [True, True]
    assert world.entries("n", "b") == dict.fromkeys("xy", world.now + LEASE + MARGIN)
    assert not world.entries("m", "a")


def test_a_close_that_fails_leaves_the_transfer_done(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transfers.logger, "disabled", False)
    world = Apart(a=5)
    world.fails = lambda operation: isinstance(operation, Close)
    assert world.transfer("x", "a", "b", 4) == [DONE]
    assert world.entries("n", "b") == {"x": START + PENDING_TTL + LEASE + MARGIN}
    assert "remembered for longer than needed" in caplog.text


def test_the_next_transfer_resumes_three_overdue_ones_and_the_sweep_the_rest() -> None:
    world = Apart(a=50)
    world.stopped(*((f"x{number}", "a", "b", 1) for number in range(5)))
    world.now += OVERDUE - 1
    assert world.transfer("y", "a", "c", 1) == [DONE]
    assert (world.total("a"), world.resume_overdue("a")) == (44, [])
    world.now += 1
    assert world.transfer("z", "a", "c", 99) == [REFUSED]
    assert (world.total("b"), len(world.entries("m", "a"))) == (3, 2)
    assert world.resume_overdue("a", dry_run=True) == [True, True]
    assert (world.total("b"), world.resume_overdue("a"), world.total("b")) == (3, [True, True], 5)


def test_a_transfer_that_cannot_be_resumed_blocks_no_other() -> None:
    world = Apart(a=70)
    world.stopped(*((f"x{number}", "a", "bcd"[number % 3], 1) for number in range(3 * BATCH_SIZE)))
    world.now += OVERDUE
    world.fails = lambda operation: home(operation.keys[0]) == "b"
    world.places["a"].put(
        key("m", "a"), {**world.entries("m", "a"), "no note": world.now + PENDING_TTL - OVERDUE}, 2**60
    )
    assert world.transfer("y", "a", "d", 1) == [DONE]
    ended = world.resume_overdue("a")
    assert (ended.count(True), ended.count(False)) == (2 * BATCH_SIZE, BATCH_SIZE + 1)
    assert [world.total(subject) for subject in "acd"] == [9, 20, 21]
    world.fails = lambda operation: False
    assert world.resume_overdue("a").count(True) == BATCH_SIZE
    assert list(world.entries("m", "a")) == ["no note"]


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("by", ["the sweep", "the next transfer"])
def test_a_note_is_settled_however_it_is_spaced(by: str, is_full: bool) -> None:
    world = Apart(a=5, b=MAX_INT64 if is_full else 0, c=0)
    words = json.dumps(note_of("x", 3), indent=1)
    world.places["a"].put(key("m", "a"), {words: world.now + PENDING_TTL - OVERDUE}, 2**60)
    if by == "the sweep":
        assert world.resume_overdue("a") == [True]
    else:
        assert world.transfer("y", "a", "c", 1) == [DONE]
    assert world.entries("m", "a") == {}
    assert world.total("a") + world.total("c") == (8 if is_full else 5)
    assert world.total("b") == (MAX_INT64 if is_full else 3)


def test_the_sweep_leaves_a_note_that_stays_though_it_was_settled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transfers.logger, "disabled", False)
    world = Apart(a=50)
    world.stopped(*((f"x{number:02}", "a", "b", 1) for number in range(2 * BATCH_SIZE)))
    world.now += OVERDUE
    world.forgets = lambda operation: isinstance(operation, Settle) and operation.transfer.id < "x10"
    found = world.resume_overdue("a")
    assert (found.count(True), found.count(False)) == (2 * BATCH_SIZE, 10)
    assert len(world.entries("m", "a")) == 10
    assert caplog.text.count("is still noted") == 10
    assert world.total("b") == 2 * BATCH_SIZE


def test_a_destination_with_a_fast_clock_gets_nothing_until_it_agrees() -> None:
    world = Apart(a=5)
    world.skews["b"] = LEASE
    with pytest.raises(StoreUnavailable, match="do the clocks of the servers agree"):
        world.transfer("x", "a", "b", 3)
    world.now += OVERDUE
    assert world.resume_overdue("a") == [False]
    assert (world.total("a"), world.total("b")) == (2, 0)
    world.skews["b"] = LEASE - 1
    assert world.resume_overdue("a") == [True]
    assert (world.total("a"), world.total("b")) == (2, 3)


def test_what_can_neither_be_received_nor_given_back_stays_on_the_way_until_it_can() -> None:
    world = Apart(a=5, b=MAX_INT64)

    def fill(operation: Operation) -> bool:
        if isinstance(operation, Settle):
            world.run(Set([key("c", "a")], MAX_INT64, TTL))
        return False

    world.fails = fill
    with pytest.raises(StoreUnavailable, match="cannot be returned"):
        world.transfer("x", "a", "b", 3)
    world.fails = lambda operation: False
    world.now += OVERDUE
    assert world.resume_overdue("a") == [False]
    world.run(Set([key("c", "a")], 2, TTL))
    assert world.resume_overdue("a") == [True]
    assert (world.total("a"), world.total("b")) == (5, MAX_INT64)


def test_a_transfer_is_not_resumed_after_400_days() -> None:
    world = Apart(a=5)
    world.stopped(("x", "a", "b", 3))
    world.now += PENDING_TTL - 1
    assert world.resume_overdue("a", dry_run=True) == [True]
    world.now += 1
    assert world.resume_overdue("a") == []


@given(st.builds(note_of, st.text(), st.integers(0, MAX_INT64), st.text()))
def test_a_note_reads_back(note: PendingTransfer) -> None:
    assert PendingTransfer.read(note.encoded, "m") == note


@pytest.mark.parametrize(
    "words", ["", "x", "null", "[]", '["a",1,2,"b"]', '["a","1",2,"b","c"]', '["a",true,2,"b","c"]']
)
def test_what_is_no_note_is_none(words: str) -> None:
    assert PendingTransfer.read(words, "m") is None


def test_an_inbox_forgets_a_hundred_at_a_time_by_itself() -> None:
    states = DictStates()
    for number in range(150):
        specify(Receive(note_of(f"id{number}", 0), START + 1, START + 1), states, START)
    specify(Receive(note_of("last", 0), START + 9, START + 9), states, START + 1)
    assert len(states.get(key("n", "b"))) == 51
    assert specify(Receive(note_of("late"), START + 9, START + 1), states, START + 1) == [LATE]


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(("age", "is_named"), [(OVERDUE - 1, 0), (OVERDUE, 1), (PENDING_TTL - 1, 1), (PENDING_TTL, 0)])
def test_a_note_is_overdue_from_five_seconds_to_400_days_to_the_microsecond(age: int, is_named: int) -> None:
    store: Any = current_store()
    note, states = note_of("x"), DictStates()
    for operation in (Set([source_of("a").total], 3, TTL), Send(source_of("a"), note)):
        assert store.run(operation, START) == specify(operation, states, START)
    asked = FindOverdueTransfers(source_of("a").outbox, 0, 9)
    found = read_overdue(store.run(asked, START + age))
    assert (
        found == read_overdue(specify(asked, states, START + age)) == [(note.encoded, START + PENDING_TTL)] * is_named
    )


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("is_full", [False, True])
def test_what_redis_cannot_return_stays_in_the_outbox_until_it_can(raw: redis.Redis, is_full: bool) -> None:
    store: Any = current_store()
    source, note = source_of("a"), note_of("x")
    store.run(Set([source.total], 3, TTL), START)
    store.run(Send(source, note), START)
    raw.delete(source.total)
    raw.set(source.total, MAX_INT64) if is_full else raw.rpush(source.total, "x")
    settle = Settle(source, note, note.encoded, gives_back=True)
    for _ in range(2):
        assert store.run(settle, START) == [OVERFLOW if is_full else NO_COUNTER, 1]
        assert raw.zscore(source.outbox, note.encoded) == START + PENDING_TTL
        assert raw.pttl(source.outbox) > PENDING_TTL / 1_000
    raw.delete(source.total)
    for _ in range(2):
        assert store.run(settle, START) == [DONE, START]
        assert (raw.get(source.total), raw.exists(source.outbox)) == (b"3", 0)


@pytest.mark.usefixtures("redis_cache")
def test_transfers_of_a_cluster_are_resumed_after_it_became_one_server(raw: redis.Redis) -> None:
    store: Any = current_store()
    for subject, total in (("a", 9), ("b", 1), ("c", MAX_INT64)):
        counter("coins").set(subject, total)
    began = time.time_ns() // 1_000
    for number, destination in enumerate("bbc"):
        assert store.run(Send(source_of("a"), note_of(f"id{number}", number + 1, destination)), began)[0] == DONE
    with freeze(began + OVERDUE):
        report = Sweeper(store, "quota").sweep(threading.Event(), lambda count: None)
    assert (report.transfers_finished, report.transfers_pending) == (3, 0)
    assert [counter("coins").get(subject) for subject in "abc"] == [6, 4, MAX_INT64]
    assert {text(name) for name in raw.scan_iter()} == {key("c", name) for name in "abc"} | {
        key("n", "b"),
        key("n", "c"),
    }
    assert raw.zrange(key("n", "c"), 0, -1) == [f"id2 {OVERFLOW}".encode()]
