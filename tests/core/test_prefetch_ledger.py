"""Real processes that take units ahead, killed, stopped, forked or reset, beside a ledger that trusts none of them.

Each process writes down when it asked and when it was allowed.
"""

import os
import signal
import struct
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from django_quota import Rule, check, reset
from django_quota.limiting.prefetch import MIN_DEMAND
from django_quota.testing import freeze, server_programs
from tests.support.processes import ended, forks, in_child, processes, started
from tests.support.steps import START
from tests.support.turns import Turns, in_turn
from tests.support.windows import Hit, most_in_a_window, paced

SUBJECT = "user:1"
PROCESSES = 4

pytestmark = [pytest.mark.thorough("processes"), forks]


on_each_store = pytest.mark.parametrize(
    "either_store", [*server_programs()[:1], "postgresql"], indirect=True, ids=["redis", "postgresql"]
)


def ask(rule: Rule, file: Path, until: int, pause: int) -> None:
    """Ask in turn every `pause` nanoseconds until a moment; write each answer down at once."""
    out = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for asked in paced(until, pause):
        allowed = check(rule, SUBJECT).allowed
        os.write(out, struct.pack("<qq", asked, time.monotonic_ns() if allowed else 0))


def ask_and_fork(rule: Rule, file: Path, until: int, pause: int) -> None:
    """Ask, and have a child go on in the middle, with a copy of all that this process knows."""
    middle = (time.monotonic_ns() + until) // 2
    ask(rule, file, middle, pause)
    child = started(partial(ask, rule, file.with_suffix(".child"), until, pause))
    ask(rule, file, until, pause)
    assert ended([child]) == [0]


def asks_in(folder: Path) -> list[Hit]:
    """Return all asks, by when they were made. A process may be killed while it writes."""
    asks = list[Hit]()
    for file in folder.iterdir():
        written = file.read_bytes()
        asks += struct.iter_unpack("<qq", written[: len(written) // 16 * 16])
    return sorted(asks)


def hits_in(folder: Path) -> list[Hit]:
    return [ask for ask in asks_in(folder) if ask[1]]


LIMIT, WINDOW = 1_000, 2
HOT = Rule.make("hot", f"{LIMIT}/{WINDOW}s", key="user", prefetch=True)

on_each_demand = pytest.mark.parametrize("times", [1.1, 5.0], ids=["1.1 times the limit", "5 times the limit"])


@on_each_store
@on_each_demand
def test_processes_admit_never_more_than_the_limit(either_store: None, tmp_path: Path, times: float) -> None:
    until = time.monotonic_ns() + 4 * WINDOW * 10**9
    pause = int(10**9 * PROCESSES * WINDOW / LIMIT / times)

    with processes() as children:
        children.extend(started(partial(ask, HOT, tmp_path / str(each), until, pause)) for each in range(PROCESSES))
        assert ended(children) == [0] * PROCESSES

    assert most_in_a_window(hits_in(tmp_path), WINDOW * 10**9) <= LIMIT


@on_each_store
@on_each_demand
def test_processes_admit_the_limit_less_the_lease(either_store: None, tmp_path: Path, times: float) -> None:
    windows = 4
    step, last = WINDOW * 1e6 / LIMIT / times, int(LIMIT * times * windows)

    def ask_at_its_moments(each: int, turns: Turns) -> None:
        out = os.open(tmp_path / str(each), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        for number in turns:
            moment = int(number * step)
            with freeze(START + moment):
                allowed = check(HOT, SUBJECT).allowed
            os.write(out, struct.pack("<qq", moment, moment + 1 if allowed else 0))

    in_turn(ask_at_its_moments, PROCESSES, last)

    at_least = 0.98 * WINDOW / (WINDOW + HOT.lease / 1e6)
    assert len(asks_in(tmp_path)) == last
    assert len(hits_in(tmp_path)) >= at_least * LIMIT * windows


BOUNDS = {"sliding_window": 1, "fixed_window": 2, "calendar": 2, "token_bucket": 2}
SPANS = (0.04, 0.4, 1.2)
"""For how many seconds a process is stopped, less and more than a lease and a window, before another one is killed."""


@on_each_store
@pytest.mark.parametrize("algorithm", BOUNDS)
def test_no_window_is_above_the_bound_whatever_happens_to_processes(
    either_store: None, tmp_path: Path, algorithm: Any
) -> None:
    limit = 500
    rule = Rule.make("hot", f"{limit}/s", key="user", algorithm=algorithm, prefetch=0.05)
    until = time.monotonic_ns() + 5 * 10**9
    pause = int(10**9 * PROCESSES / limit / 3)

    def start(work: Callable[..., None], name: str) -> int:
        return started(partial(work, rule, tmp_path / name, until, pause))

    with processes() as children:
        children.extend(start(ask, f"stays-{each}") for each in range(2))
        children.append(start(ask_and_fork, "forks"))
        stopped = start(ask, "stopped")
        children.append(stopped)
        for span in SPANS:
            victim = start(ask, f"killed-{span}")
            children.append(victim)
            time.sleep(0.3)
            os.kill(stopped, signal.SIGSTOP)
            time.sleep(span)
            os.kill(victim, signal.SIGKILL)
            os.kill(stopped, signal.SIGCONT)
        statuses = ended(children)
    assert sorted(statuses) == [-signal.SIGKILL] * len(SPANS) + [0] * 4
    assert most_in_a_window(hits_in(tmp_path), 10**9) <= BOUNDS[algorithm] * limit


@on_each_store
def test_a_reset_lets_no_later_window_be_above_the_limit(either_store: None, tmp_path: Path) -> None:
    limit = 500
    rule = Rule.make("hot", f"{limit}/s", key="user", prefetch=0.05)
    until = time.monotonic_ns() + 3 * 10**9
    pause = int(10**9 * PROCESSES / limit / 3)
    resets = []

    with processes() as children:
        children.extend(started(partial(ask, rule, tmp_path / str(each), until, pause)) for each in range(PROCESSES))
        for _ in range(3):
            time.sleep(0.7)
            began = time.monotonic_ns()
            reset(rule, SUBJECT)
            resets.append((began, time.monotonic_ns()))
        assert ended(children) == [0] * PROCESSES

    hits, edges = hits_in(tmp_path), [(0, 0), *resets, (until * 2, 0)]
    most = [
        most_in_a_window([hit for hit in hits if after <= hit[0] and hit[1] <= before], 10**9)
        for (_, after), (before, _) in pairwise(edges)
    ]
    assert max(most) <= limit, most


SLOW = Rule.make("slow", "400/2s", key="user", prefetch=0.1)
"""A rule of which a process still has units when something happens to it."""


def take_a_share() -> int:
    """Ask until a hit is spent of a share; return how many hits that took."""
    for number in range(1, 100):
        if check(SLOW, SUBJECT).approximate:
            return number
    raise AssertionError("no share was taken")


def allowed(asks: int) -> int:
    return sum(check(SLOW, SUBJECT).allowed for _ in range(asks))


@on_each_store
def test_a_process_that_was_stopped_for_a_window_spends_nothing_of_what_it_had_taken(either_store: None) -> None:
    def stop_in_the_middle() -> int:
        take_a_share()
        os.kill(os.getpid(), signal.SIGSTOP)
        return allowed(100)

    with processes() as children:
        children.append(started(stop_in_the_middle, int))
        os.waitpid(children[0], os.WUNTRACED)
        time.sleep(2.2)
        assert allowed(500) == 400
        os.kill(children[0], signal.SIGCONT)
        assert ended(children) == [0]


@on_each_store
def test_what_a_killed_process_had_taken_is_missing_until_it_comes_back(either_store: None) -> None:
    def kill_itself() -> None:
        take_a_share()
        os.kill(os.getpid(), signal.SIGKILL)

    with processes() as children:
        children.append(started(kill_itself))
        assert ended(children) == [-signal.SIGKILL]
    hits = MIN_DEMAND + 1  # those until it has a share, and one of the share
    assert 0 < 400 - allowed(500) - hits <= 200
    time.sleep(2.2)
    assert allowed(500) == 400


@on_each_store
def test_a_forked_process_spends_nothing_of_what_its_parent_has_taken(either_store: None) -> None:
    taken = take_a_share()
    assert not in_child(lambda: int(check(SLOW, SUBJECT).approximate))
    by_child = 2 * in_child(lambda: allowed(500) // 2)
    assert taken + 1 + by_child + allowed(500) <= 400 + 1  # the half was rounded down
