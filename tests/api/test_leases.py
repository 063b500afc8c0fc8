"""Leases: when they end, what a lost one says, and how one is renewed."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest

from django_quota import lock, slot
from django_quota.exceptions import LeaseLost, QuotaExceeded, StoreUnavailable
from django_quota.testing import freeze
from django_quota.types import Lease
from tests.support.calls import both_ways
from tests.support.outages import no_answer
from tests.support.slots import acquired, calls, forget, is_asked_for_by, is_release, release, tokens, within
from tests.support.steps import SECOND, START

pytestmark = pytest.mark.usefixtures("memory_store")

END = START + 30 * SECOND

ACTS: dict[str, Callable[[Lease], Any]] = {
    "renew": Lease.renew,
    "arenew": lambda lease: asyncio.run(lease.arenew()),
    "release": Lease.release,
    "arelease": lambda lease: asyncio.run(lease.arelease()),
}
each_act = pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)


def test_a_lease_lasts_until_its_last_microsecond() -> None:
    with freeze(START):
        lock("export").acquire()

    with freeze(END - 1), pytest.raises(QuotaExceeded):
        lock("export").acquire()


@pytest.fixture
def lease(memory_store: None) -> Lease:
    return lock("export").acquire()


@each_act
def test_a_lease_that_has_ended_is_lost(act: Callable[[Lease], Any]) -> None:
    with freeze(START):
        lease = lock("export", subject="user:7").acquire()

    with freeze(END), pytest.raises(LeaseLost) as lost:
        act(lease)

    assert (lost.value.slot, lost.value.subject) == ("export", "user:7")


@each_act
def test_a_lost_lease_leaves_the_next_holder_alone(act: Callable[[Lease], Any]) -> None:
    with freeze(START):
        lost = lock("export").acquire()

    with freeze(END):
        held = lock("export").acquire()
        with pytest.raises(LeaseLost):
            act(lost)
        assert tokens(lock("export")) == [held.token]


def test_a_lease_that_was_released_cannot_be_renewed() -> None:
    lease = lock("export").acquire()
    lease.release()

    with pytest.raises(LeaseLost):
        lease.renew()

    assert lock("export").holders() == []


@both_ways
def test_the_end_of_a_block_says_that_the_lease_was_lost(is_async: bool) -> None:
    with pytest.raises(LeaseLost):
        within(lock("export"), lambda: forget("export"), is_async)


@both_ways
class TestErrorsOfABlock:
    """The end of a block hides no error of the block."""

    @staticmethod
    def fail_after(loss: Callable[[], object]) -> None:
        loss()
        _ = 1 / 0

    def test_a_lost_lease_does_not_hide_it(self, is_async: bool) -> None:
        with pytest.raises(ZeroDivisionError):
            within(lock("export"), lambda: self.fail_after(lambda: forget("export")), is_async)

    def test_a_store_that_does_not_answer_does_not_hide_it(self, is_async: bool) -> None:
        with ExitStack() as outage, pytest.raises(ZeroDivisionError):
            within(lock("export"), lambda: self.fail_after(lambda: outage.enter_context(no_answer())), is_async)


@both_ways
def test_the_end_of_a_block_says_that_the_store_did_not_answer(is_async: bool) -> None:
    with ExitStack() as outage, pytest.raises(StoreUnavailable):
        within(lock("export"), lambda: outage.enter_context(no_answer()), is_async)


def test_a_lease_itself_is_a_block() -> None:
    with lock("export").acquire() as lease:
        assert tokens(lock("export")) == [lease.token]

    assert lock("export").holders() == []


def test_a_lease_itself_is_an_async_block() -> None:
    async def hold() -> None:
        async with await lock("export").aacquire() as lease:
            assert tokens(lock("export")) == [lease.token]

    asyncio.run(hold())
    assert lock("export").holders() == []


@pytest.mark.parametrize(("given", "lasts"), [(None, 30.0), (50, 50.0), ("2m", 120.0), (0.5, 0.5)])
@both_ways
def test_a_renewed_lease_lasts_from_then_on(given: Any, lasts: float, is_async: bool) -> None:
    with freeze(START):
        lease = lock("export").acquire()

    with freeze(START + 20 * SECOND):
        asyncio.run(lease.arenew(given)) if is_async else lease.renew(given)
        assert lock("export").holders() == [(lease.token, lasts)]


@both_ways
def test_holders_are_listed_by_their_ends(is_async: bool) -> None:
    export = slot("export", 3)
    with freeze(START):
        late = export.acquire()
        soon = slot("export", 3, lease=2).acquire()
        later = slot("export", 3, lease=60).acquire()

    with freeze(START + SECOND):
        listed = asyncio.run(export.aholders()) if is_async else export.holders()

    assert listed == [(soon.token, 1.0), (late.token, 29.0), (later.token, 59.0)]


def test_a_lease_that_has_ended_is_not_listed() -> None:
    with freeze(START):
        lock("export").acquire()

    with freeze(END):
        assert lock("export").holders() == []


@pytest.mark.parametrize("is_done", [False, True], ids=["the call is lost", "the reply is lost"])
@both_ways
def test_a_release_that_was_not_answered_may_be_tried_again(is_done: bool, is_async: bool) -> None:
    lease = lock("export").acquire()
    with no_answer(done=is_done), pytest.raises(StoreUnavailable):
        release(lease, is_async)

    release(lease, is_async)

    assert lock("export").holders() == []


def interrupts(is_interrupted: Callable[[Any], bool], *, done: bool) -> AbstractContextManager[None]:
    """Interrupt the first call of some operations as Ctrl-C does; `done`: when the store has done it."""
    left = [1]

    def interrupt(operation: Any) -> None:
        if is_interrupted(operation) and left:
            left.pop()
            raise KeyboardInterrupt

    return calls(after=interrupt) if done else calls(before=interrupt)


@pytest.mark.parametrize("is_done", [False, True], ids=["before it is sent", "after it is done"])
class TestInterruptedCalls:
    def test_a_release_that_is_interrupted_gives_the_slot_back(self, is_done: bool) -> None:
        lease = lock("export").acquire()

        with interrupts(is_release, done=is_done), pytest.raises(KeyboardInterrupt):
            lease.release()

        assert lock("export").holders() == []

    def test_a_caller_that_is_interrupted_holds_no_slot(self, is_done: bool) -> None:
        with interrupts(lambda each: is_asked_for_by(each) is not None, done=is_done), pytest.raises(KeyboardInterrupt):
            lock("export").acquire()

        assert lock("export").holders() == []


@both_ways
def test_a_second_release_succeeds_though_the_store_does_not_answer(lease: Lease, is_async: bool) -> None:
    release(lease, is_async)

    with no_answer():
        release(lease, is_async)


class TestClosedCoroutines:
    """Python closes a coroutine that nobody goes on with, as when its event loop was closed. It may await no more."""

    def test_one_that_asks_for_a_slot_ends_at_once(self) -> None:
        asking = lock("export").entering()
        next(asking).run_sync()

        asking.close()

        assert len(lock("export").holders()) == 1, "until its lease ends"

    def test_one_that_gives_a_slot_back_ends_at_once(self) -> None:
        leaving = lock("export").acquire().releasing()
        next(leaving).run_sync()

        leaving.close()

        assert lock("export").holders() == []


@both_ways
class TestCallsWithoutAnAnswer:
    """The store is asked once: each further call may take as long as its timeout."""

    @pytest.fixture
    def asked(self, memory_store: None) -> Iterator[list[str]]:
        asked: list[str] = []
        with no_answer(), calls(before=lambda each: asked.append(type(each).__name__)):
            yield asked

    def test_taking_a_slot_asks_the_store_once(self, asked: list[str], is_async: bool) -> None:
        with pytest.raises(StoreUnavailable):
            acquired(lock("export"), is_async)

        assert asked == ["Acquire"]

    def test_giving_a_slot_back_asks_the_store_once(self, lease: Lease, asked: list[str], is_async: bool) -> None:
        with pytest.raises(StoreUnavailable):
            release(lease, is_async)

        assert asked == ["Release"]


def test_a_lease_names_its_holder_in_reports() -> None:
    lease = lock("export", subject="user:7").acquire()

    assert repr(lease) == f"<Lease {lease.token} of slot 'export' for user:7>"
