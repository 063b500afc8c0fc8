"""The memory store: its lock, the sweeper thread."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_quota import Rule, check, check_all, peek
from django_quota.core.errors import StoreFull
from django_quota.testing import freeze
from tests.support.commands import wait_until
from tests.support.processes import forks, in_child, threads_ran
from tests.support.steps import SECOND, START, answers, decided, hits_of
from tests.support.stores import current_store, own_memory_store

pytestmark = pytest.mark.usefixtures("memory_store")

RULE = Rule.make("rule", "50/m")


def hit(store: Any, subject: str = "a", now: int = START) -> bool:
    """Ask a store that is not that of the settings."""
    return answers(decided(store, hits_of(RULE, subject=subject), "check", now))[0].allowed


@pytest.fixture
def threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("threads_take_turns_often")
def test_racing_threads_are_admitted_exactly_up_to_the_limit() -> None:
    with ThreadPoolExecutor(16) as threads:
        admitted = sum(threads.map(lambda _: check("50/m", "a").allowed, range(400)))
    assert admitted == 50


def test_racing_plans_over_several_subjects_count_for_all_or_none() -> None:
    one = [(RULE, f"a:{number}") for number in range(9)]
    with ThreadPoolExecutor(8) as threads:
        admitted = sum(threads.map(lambda n: check_all(one[::-1] if n % 2 else one).allowed, range(400)))
    assert admitted == 50
    assert [peek(*asked).remaining for asked in one] == [0] * 9


def test_a_plan_that_finds_no_room_changes_nothing() -> None:
    with own_memory_store(sweep_interval=3_600, max_keys=10) as store:
        for number in range(7):
            hit(store, f"a:{number}")
        before = dict(store._kept.of_key)
        plan = [each for subject in ("a:0", "b", "c") for each in hits_of(RULE, subject=subject)]
        with pytest.raises(StoreFull):
            decided(store, plan, "check", START)
        assert store._kept.of_key == before


def test_a_sweep_drops_what_has_expired_and_nothing_else() -> None:
    for number in range(100):
        with freeze(START + number * SECOND):
            check("50/m", f"a:{number}")
    store: Any = current_store()
    assert len(store) == 100
    assert store.sweep(START + 60 * SECOND + 49 * SECOND) == 50
    assert len(store) == 50


def test_a_request_leaves_the_sweep_of_a_full_store_to_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with own_memory_store(sweep_interval=3_600, max_keys=10) as store:
        for number in range(8):
            hit(store, f"a:{number}")
        later = START + 61 * SECOND
        with monkeypatch.context() as watched:
            watched.setattr(store, "sweep", lambda *_: pytest.fail("a request looks at every key"))
            assert hit(store, "a:0", later)
            with pytest.raises(StoreFull):
                hit(store, "late", later)
        assert store.sweep(later) == 7
        assert hit(store, "late", later)


def test_the_sweeper_thread_sweeps_by_itself() -> None:
    with own_memory_store(sweep_interval=0.001) as store:
        hit(store, "gone", START)
        hit(store, "there", START + 60 * SECOND)
        wait_until(lambda: len(store) == 1)
        assert "there" in "".join(store.names("*"))


def test_under_freeze_the_sweeper_thread_drops_nothing_that_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with own_memory_store(sweep_interval=0.001) as store:
        sweep, swept = store.sweep, list[int]()
        monkeypatch.setattr(store, "sweep", lambda: swept.append(sweep()))
        hit(store)  # long gone by the machine's clock
        wait_until(lambda: len(swept) > 3)
        assert (len(store), sum(swept)) == (1, 0)


def sweepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "django-quota-sweeper"]


def test_close_ends_the_sweeper_and_the_next_decision_starts_it() -> None:
    before = len(sweepers())
    with own_memory_store() as store:
        for _ in range(2):
            hit(store)
            assert len(sweepers()) == before + 1
            store.close()
            assert len(sweepers()) == before


def test_the_sweeper_ends_with_its_store() -> None:
    before = sweepers()
    store: Any = type(current_store())(sweep_interval=0.001)  # nobody closes it
    hit(store)
    (own,) = [thread for thread in sweepers() if thread not in before]
    del store
    gc.collect()
    own.join(60)
    assert not own.is_alive()


@forks
@threads_ran
def test_a_forked_worker_starts_a_sweeper_of_its_own() -> None:
    check("50/m", "a")
    store: Any = current_store()

    def work() -> bool:
        check("50/m", "a")
        return bool(store._sweeper is not None and store._sweeper.is_alive())

    assert in_child(work) == 1


def test_without_a_frozen_time_the_clock_of_the_machine_counts() -> None:
    with own_memory_store() as store:
        before = time.time_ns() // 1_000
        now = decided(store, hits_of(RULE), "check", None)[0]
        assert before <= now <= time.time_ns() // 1_000


@forks
@threads_ran
def test_a_lock_held_during_a_fork_does_not_block_the_child() -> None:
    with own_memory_store() as store:
        hit(store)
        with store._lock:
            assert in_child(lambda: hit(store)) == 1
