"""The memory store: shards, locks, the sweeper thread."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_quota import Rule
from django_quota.engine.hits import Hit
from django_quota.engine.subject_operations import Reset, RuleState
from django_quota.stores.memory import MemoryStore
from tests.support.commands import wait_until
from tests.support.steps import SECOND, START, adecided, answers, decided, hits_of

RULE = Rule.make("rule", "50/m")


def hit(store: MemoryStore, hits: list[Hit], now: int = START) -> bool:
    return answers(decided(store, hits, "check", now))[0].allowed


def test_racing_threads_are_admitted_exactly_up_to_the_limit() -> None:
    store = MemoryStore()
    hits = hits_of(RULE)
    with ThreadPoolExecutor(16) as threads:
        admitted = sum(threads.map(lambda _: hit(store, hits), range(400)))
    assert admitted == 50
    store.close()


def test_plans_over_several_shards_race_without_a_deadlock() -> None:
    store = MemoryStore(shards=4)
    one = hits_of(RULE, subject="a") + hits_of(RULE, subject="b")
    other = list(reversed(one))
    with ThreadPoolExecutor(8) as threads:
        admitted = sum(threads.map(lambda n: hit(store, other if n % 2 else one), range(400)))
    assert admitted == 50
    assert [answers(decided(store, [step], "peek", START))[0].remaining for step in one] == [0, 0]
    store.close()


def test_a_sweep_drops_what_has_expired_and_nothing_else() -> None:
    store = MemoryStore()
    for number in range(100):
        hit(store, hits_of(RULE, subject=f"device:{number}"), START + number * SECOND)
    assert len(store) == 100
    assert store.sweep(START + 60 * SECOND + 49 * SECOND) == 50
    assert len(store) == 50
    store.close()


def test_the_sweeper_thread_sweeps_by_itself() -> None:
    store = MemoryStore(sweep_interval=0.001)
    hit(store, hits_of(RULE, subject="gone"), START)
    hit(store, hits_of(RULE, subject="there"), START + 60 * SECOND)
    wait_until(lambda: len(store) == 1)
    assert not store.run(Reset([RuleState.of(hit_) for hit_ in hits_of(RULE, subject="gone")]), START)
    store.close()


def test_under_freeze_the_sweeper_thread_drops_nothing_that_still_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore(sweep_interval=0.001)
    swept: list[int] = []
    sweep = store.sweep

    def noted(now: int | None = None) -> int:
        swept.append(sweep(now))
        return swept[-1]

    monkeypatch.setattr(store, "sweep", noted)
    hit(store, hits_of(RULE), START)  # long gone by the machine's clock
    wait_until(lambda: len(swept) > 3)
    assert (len(store), sum(swept)) == (1, 0)
    store.close()


def sweepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "django-quota-sweeper"]


def test_close_ends_the_sweeper_and_the_next_decision_starts_it() -> None:
    before = len(sweepers())
    store = MemoryStore()
    hit(store, hits_of(RULE))
    assert len(sweepers()) == before + 1
    store.close()
    assert len(sweepers()) == before
    hit(store, hits_of(RULE))
    assert len(sweepers()) == before + 1
    store.close()


def test_the_sweeper_ends_with_its_store() -> None:
    before = sweepers()
    store = MemoryStore(sweep_interval=0.001)
    hit(store, hits_of(RULE))
    (own,) = [thread for thread in sweepers() if thread not in before]
    del store
    gc.collect()
    own.join(60)
    assert not own.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_worker_starts_a_sweeper_of_its_own() -> None:
    store = MemoryStore()
    hit(store, hits_of(RULE))
    child = os.fork()
    if child == 0:
        hit(store, hits_of(RULE))
        alive = store._sweeper is not None and store._sweeper.is_alive()
        os._exit(0 if alive else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.close()


def test_arun_returns_the_same_as_run() -> None:
    store = MemoryStore()
    hits = hits_of(RULE)
    reply = asyncio.run(adecided(store, hits, "check", START))
    assert answers(reply)[0].remaining == 49
    assert asyncio.run(store.arun(Reset([RuleState.of(hit_) for hit_ in hits]))) == 1
    assert store.run(Reset([RuleState.of(hit_) for hit_ in hits])) == 0
    store.close()


def test_without_a_frozen_time_the_clock_of_the_machine_counts() -> None:
    store = MemoryStore()
    before = MemoryStore.now()
    now = decided(store, hits_of(RULE), "check", None)[0]
    assert before <= now <= MemoryStore.now()
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_lock_held_during_a_fork_does_not_block_the_child() -> None:
    store = MemoryStore(shards=1)
    hit(store, hits_of(RULE))
    with store._shards[0].lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if hit(store, hits_of(RULE)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.close()
