"""Leases that are renewed in the background: when, what becomes of a lost one, and when it stops."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from django_quota import lock
from django_quota.adapters import SlotRule
from django_quota.core.flow import Flow, run_sync
from django_quota.exceptions import LeaseLost, QuotaExceeded, StoreUnavailable
from django_quota.features.slots.renewal import RETRY, Renewer
from django_quota.limiting.flusher import flusher
from django_quota.types import Lease
from tests.support.calls import both_ways, get
from tests.support.commands import wait_until
from tests.support.outages import no_answer
from tests.support.slots import (
    asked_elsewhere,
    calls,
    counting_held_up,
    forget,
    is_count,
    nobody_renews,
    release,
    released_elsewhere,
    tokens,
    within,
)

both_stores = pytest.mark.usefixtures("either_store")
in_memory = pytest.mark.usefixtures("memory_store")
renews_all_the_time = pytest.mark.usefixtures("renewed_often")


@in_memory
def test_a_lease_is_renewed_every_third_of_its_time(renewed_often: list[float]) -> None:
    with lock("export", lease=60, renew=True):
        pass

    assert renewed_often == [20.0]


@in_memory
def test_a_lease_is_not_renewed_unless_asked(renewed_often: list[float]) -> None:
    with lock("export", lease=60):
        pass

    assert renewed_often == []


@both_stores
@renews_all_the_time
@both_ways
def test_a_renewed_lease_lasts_as_long_as_at_first(is_async: bool) -> None:
    def shorten() -> None:
        (lease,) = held._held
        lease.renew(20)
        wait_until(lambda: lock("export").holders()[0][1] > 30)

    held = lock("export", lease=60, renew=True)

    within(held, shorten, is_async)


@both_stores
@renews_all_the_time
@both_ways
def test_a_holder_whose_lease_was_lost_is_counted_again(is_async: bool) -> None:
    def lose() -> None:
        (lease,) = held._held
        forget("export")
        wait_until(lambda: tokens(lock("export")) == [lease.token])

    held = lock("export", renew=True)

    with pytest.raises(LeaseLost):
        within(held, lose, is_async)

    assert lock("export").holders() == []


@in_memory
@renews_all_the_time
@both_ways
def test_nothing_is_renewed_after_the_release(is_async: bool) -> None:
    within(lock("export", renew=True), lambda: None, is_async)

    wait_until(nobody_renews)


@both_stores
@renews_all_the_time
class TestMoreHoldersThanTheLimit:
    """A lock whose lease was lost, so that another caller holds it too."""

    @pytest.fixture
    def lease(self) -> Iterator[Lease]:
        def is_asked_after_a_loss() -> bool:
            forget("export")
            return asked_elsewhere("export")

        lease = lock("export", renew=True).acquire()
        wait_until(is_asked_after_a_loss)
        wait_until(lambda: len(lock("export").holders()) == 2)
        yield lease
        with suppress(LeaseLost):
            lease.release()

    def test_nobody_is_let_in_until_enough_have_left(self, lease: Lease) -> None:
        released_elsewhere("export")

        with pytest.raises(QuotaExceeded):
            lock("export").acquire()

    def test_the_release_says_that_the_lease_was_lost(self, lease: Lease) -> None:
        with pytest.raises(LeaseLost):
            lease.release()

    def test_the_next_caller_is_let_in_once_all_have_left(self, lease: Lease) -> None:
        released_elsewhere("export")
        with pytest.raises(LeaseLost):
            lease.release()

        lock("export").acquire().release()


@in_memory
def test_a_forgotten_lease_ends_by_itself() -> None:
    lock("export", lease=0.1, renew=True).acquire()

    wait_until(lambda: not lock("export").holders() and nobody_renews())


@both_stores
@renews_all_the_time
@both_ways
def test_a_renewal_under_way_takes_no_slot_that_was_given_back(is_async: bool) -> None:
    with counting_held_up() as (under_way, goes_on):
        lease = lock("export", renew=True).acquire()
        forget("export")
        assert under_way.wait(60)

        with pytest.raises(LeaseLost):
            release(lease, is_async)

        goes_on.set()
        wait_until(nobody_renews)
    assert lock("export").holders() == []


@in_memory
class TestALateRenewal:
    """A renewal that finds no lease in the store. It would take the slot again, were it not for what came before."""

    @pytest.fixture
    def taken(self) -> Iterator[list[Any]]:
        """The renewals that take a slot, even if none is free."""
        taken: list[Any] = []
        with calls(before=lambda operation: taken.append(operation) if is_count(operation) else None):
            yield taken

    def test_takes_nothing_after_a_release(self, taken: list[Any]) -> None:
        lease = lock("export").acquire()
        lease.release()

        run_sync(lease.keeping())

        assert taken == []

    def test_takes_nothing_after_a_release_whose_answer_was_lost(self, taken: list[Any]) -> None:
        lease = lock("export").acquire()
        with no_answer(done=True), pytest.raises(StoreUnavailable):
            lease.release()

        run_sync(lease.keeping())

        assert taken == []

    def test_takes_nothing_for_a_caller_that_was_interrupted(
        self, taken: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(self: Renewer, lease: Lease, interval: float) -> None:
            leases.append(lease)
            raise KeyboardInterrupt

        leases: list[Any] = []
        monkeypatch.setattr(Renewer, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock("export", renew=True).acquire()

        run_sync(leases[0].keeping())

        assert taken == []


class Held:
    """A lease that counts its renewals. Each raises the error, if there is one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.renewals = 0
        self.meanwhile: Callable[[], object] = bool

    def keeping(self) -> Flow[None]:
        yield from ()
        self.renewals += 1
        self.meanwhile()
        if self.error is not None:
            raise self.error


class TestRounds:
    """The rounds of a renewer, by the moments at which it plans them; it begins at 1,000 seconds."""

    @pytest.fixture(autouse=True)
    def moments(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """The moments of the planned rounds."""
        moments: list[float] = []
        monkeypatch.setattr(flusher, "call_at", lambda moment, _: moments.append(moment))
        self.at(1_000.0, monkeypatch)
        return moments

    @staticmethod
    def at(moment: float, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_quota.core.clock.elapsed", lambda: moment)

    @pytest.mark.parametrize("interval", [0.5, 20.0])
    def test_a_renewal_that_was_not_answered_is_tried_again_within_a_second(
        self, moments: list[float], interval: float
    ) -> None:
        own, lease = Renewer(), Held(StoreUnavailable("gone"))
        own.add(lease, interval, first=0.0)

        own._renew_due()

        assert moments == [1_000.0, 1_000.0 + min(interval, RETRY)]

    @pytest.mark.parametrize("interval", [0.5, 20.0])
    def test_after_an_outage_a_lease_is_renewed_at_its_interval(
        self, moments: list[float], interval: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own, lease = Renewer(), Held(StoreUnavailable("gone"))
        own.add(lease, interval, first=0.0)
        own._renew_due()

        self.at(1_001.0, monkeypatch)
        lease.error = None
        own._renew_due()

        assert moments[-1] == 1_001.0 + interval

    @pytest.mark.parametrize(("first", "due"), [(None, 1_020.0), (1.0, 1_001.0), (60.0, 1_020.0)])
    def test_the_first_renewal_may_come_earlier_than_the_others(
        self, moments: list[float], first: float | None, due: float
    ) -> None:
        lease = Held()

        Renewer().add(lease, 20.0, first=first)

        assert moments == [due]

    @in_memory
    def test_a_request_that_was_let_in_without_an_answer_is_counted_within_a_second(self, moments: list[float]) -> None:
        rule = SlotRule.make("view", 1, lease=60, renew=True, on_unavailable="allow")

        with no_answer():
            holding = rule.hold(get())
            holding.__enter__()

        assert moments == [1_001.0]

    @in_memory
    def test_a_request_that_is_counted_later_is_renewed_every_third_of_its_time(
        self, moments: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own, rule = Renewer(), SlotRule.make("view", 1, lease=60, renew=True, on_unavailable="allow")
        monkeypatch.setattr("django_quota.features.slots.calls.renewer", own)
        with no_answer():
            holding = rule.hold(get())
            holding.__enter__()

        self.at(1_001.0, monkeypatch)
        own._renew_due()

        assert moments == [1_001.0, 1_021.0]
        assert len(holding.leases) == 1

    def test_only_the_leases_that_are_due_are_renewed(
        self, moments: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own, due, later = Renewer(), Held(), Held()
        own.add(due, 10.0)
        own.add(later, 25.0)

        self.at(1_010.0, monkeypatch)
        own._renew_due()

        assert (due.renewals, later.renewals) == (1, 0)
        assert moments == [1_010.0, 1_020.0]

    def test_a_lease_that_is_due_earlier_brings_the_round_forward(self, moments: list[float]) -> None:
        own, late, soon = Renewer(), Held(), Held()

        own.add(late, 20.0)
        own.add(soon, 10.0)

        assert moments == [1_020.0, 1_010.0]

    def test_no_round_is_planned_without_leases(self, moments: list[float]) -> None:
        own, lease = Renewer(), Held()
        own.add(lease, 0.0)
        own.remove(lease)

        own._renew_due()

        assert moments == [1_000.0]

    def test_a_lease_that_is_added_after_an_empty_round_plans_the_next(self, moments: list[float]) -> None:
        own, gone, lease = Renewer(), Held(), Held()
        own.add(gone, 0.0)
        own.remove(gone)
        own._renew_due()

        own.add(lease, 20.0)

        assert moments == [1_000.0, 1_020.0]

    @pytest.mark.parametrize("late", [0.0, 10.0], ids=["just now", "ten seconds ago"])
    def test_a_round_that_was_missed_is_made_up_for_by_the_next_lease(
        self, moments: list[float], late: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own, leases = Renewer(), [Held(), Held()]
        own.add(leases[0], 10.0)

        self.at(1_010.0 + late, monkeypatch)
        own.add(leases[1], 20.0)

        assert moments == [1_010.0, 1_030.0 + late]

    def test_a_lease_that_is_released_during_its_renewal_is_renewed_no_more(self, moments: list[float]) -> None:
        own, lease = Renewer(), Held(StoreUnavailable("gone"))
        lease.meanwhile = lambda: own.remove(lease)
        own.add(lease, 0.0)

        own._renew_due()

        assert (len(own), moments) == (0, [1_000.0])

    def test_a_lease_that_is_collected_at_the_end_of_a_round_ends_no_thread(self, moments: list[float]) -> None:
        class CollectedOnceCounted(weakref.WeakKeyDictionary[Any, Any]):
            def __len__(self) -> int:
                number = super().__len__()
                leases.clear()
                return number

        own, leases = Renewer(), [Held()]
        own._due = CollectedOnceCounted()
        own.add(leases[0], 20.0)

        own._renew_due()

        assert moments[:1] == [1_020.0]

    def test_a_renewal_that_fails_holds_up_no_other_lease(self, caplog: pytest.LogCaptureFixture) -> None:
        own, leases = Renewer(), [Held(ZeroDivisionError()) for _ in range(2)]
        for lease in leases:
            own.add(lease, 0.0)

        own._renew_due()

        assert [lease.renewals for lease in leases] == [1, 1]
        assert [(each.name, each.getMessage(), each.exc_info is None) for each in caplog.records] == [
            ("django_quota.slots", "A lease could not be renewed; the next round tries again.", False)
        ] * 2

    def test_an_error_of_the_log_ends_no_later_renewal(
        self, moments: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise OSError("no space is left")

        own, lease = Renewer(), Held(ZeroDivisionError())
        monkeypatch.setattr("django_quota.features.slots.renewal.logger.exception", fail)  # as a handler may
        own.add(lease, 0.0)

        with pytest.raises(OSError, match="no space"):
            own._renew_due()

        assert len(moments) == 2
