"""The memory store: one lock, and expired keys that are dropped on the way."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_quota import Rule, check, check_all, peek
from django_quota.core.clock import DAY, machine_now
from django_quota.core.errors import StoreFull
from django_quota.stores.memory import MemoryStore
from django_quota.testing import freeze
from tests.support.processes import forks, in_child
from tests.support.steps import SECOND, START, Clock, answers, decided, hits_of
from tests.support.stores import current_store

pytestmark = pytest.mark.usefixtures("memory_store")

RULE = Rule.make("rule", "50/m")


def hit(store: Any, subject: str = "a", now: int = START) -> bool:
    return answers(decided(store, hits_of(RULE, subject=subject), "check", now))[0].allowed


def test_racing_threads_are_admitted_exactly_up_to_the_limit_for_all_subjects_or_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = [(RULE, f"a:{number}") for number in range(9)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(16) as threads:
            assert sum(threads.map(lambda _: check("50/m", "a").allowed, range(400))) == 50
            plans = threads.map(lambda n: check_all(one[::-1] if n % 2 else one).allowed, range(400))
            assert sum(plans) == 50
    finally:
        sys.setswitchinterval(before)
    assert [peek(*asked).remaining for asked in one] == [0] * 9


def test_a_plan_that_finds_no_room_changes_nothing() -> None:
    store = MemoryStore(max_keys=10)
    for number in range(7):
        hit(store, f"a:{number}")
    before = dict(store._keys)
    with pytest.raises(StoreFull):
        decided(
            store, [each for subject in ("a:0", "b", "c") for each in hits_of(RULE, subject=subject)], "check", START
        )
    assert store._keys == before


def test_expired_keys_are_dropped_however_long_the_others_stay() -> None:
    store = MemoryStore()
    for number in range(100):
        hit(store, f"stays:{number}", START + 3_600 * SECOND)
        hit(store, f"goes:{number}")
    for _ in range(100):
        hit(store, "stays:0", START + 3_600 * SECOND)
    assert len(store) == 100
    assert not any(hit(store, "stays:0", START + 3_659 * SECOND) for _ in range(100))


@pytest.mark.parametrize("years", [-9, 9], ids=["past", "future"])
def test_a_test_that_sets_the_time_for_a_while_loses_no_count(years: int) -> None:
    """Meanwhile a thread in the background counts in the present, and other tests do before and after it."""
    moment = machine_now() + years * 365 * DAY
    check("2/m", "present", 2)
    with freeze(moment):
        check("2/m", "other time", 2)
        for number in range(9):
            check("2/m", f"another:{number}")
    for number in range(9):
        check("2/m", f"one more:{number}")
    with freeze(moment):
        assert not check("2/m", "other time")
    assert not check("2/m", "present")


class TestAClockThatSteps:
    """The clock of the machine, by which the store counts where no test sets the time."""

    @pytest.fixture(params=[-3_600, 3_600], ids=["back", "forth and back"])
    def pass_time(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
        """Two hits are counted before the clock steps, and then back; yields how to let time pass."""
        lasting, now = Clock(), START
        monkeypatch.setattr("django_quota.stores.memory.elapsed", lasting)
        monkeypatch.setattr("django_quota.stores.memory.machine_now", lambda: now)

        def pass_time(seconds: int, stepped: int = 0) -> None:
            nonlocal now
            lasting.now += seconds
            now += (seconds + stepped) * SECOND

        check("2/m", "a", 2)
        pass_time(1, request.param)
        self.ask_often()
        pass_time(1, -request.param)
        return pass_time

    def ask_often(self) -> None:
        for number in range(20):
            check("2/m", f"another:{number}")

    def test_loses_no_count(self, pass_time: Callable[[int], None]) -> None:
        assert not check("2/m", "a")

    def test_lets_keys_end_all_the_same(self, pass_time: Callable[[int], None]) -> None:
        pass_time(3_700)
        self.ask_often()

        assert not list(current_store().names("*{a}*"))


@forks
def test_a_lock_held_during_a_fork_does_not_block_the_child() -> None:
    store = MemoryStore()
    hit(store)
    with store._lock:
        assert in_child(lambda: hit(store)) == 1
