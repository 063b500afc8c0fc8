"""When the threads in the background work: what wakes them, when a round or a call is due, and what the end does."""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock, call, patch

import pytest

from django_quota import Rule, check
from django_quota.core import forks
from django_quota.engine.events import RecordHits
from django_quota.engine.system_operations import AddMetrics, RegisterWorker
from django_quota.features.slots.queues import SlotQueues
from django_quota.features.slots.renewal import Renewer
from django_quota.limiting.fallback import Workers
from django_quota.limiting.flusher import FLUSH_INTERVAL, Background, flusher
from django_quota.limiting.outages import Outages
from django_quota.limiting.override_rows import ReaderConnection
from django_quota.limiting.overrides import OverrideCopy
from django_quota.limiting.registry import get_limiter
from django_quota.limiting.stores import Cleaning
from django_quota.limiting.unasked import REFUSED_ONCE, TallyPlace
from django_quota.stores.breaker import Breaker
from django_quota.stores.cluster.store import ClusterStore
from django_quota.stores.database.connections import Pool, Turns
from django_quota.stores.database.store import DatabaseStore
from django_quota.stores.memory import MemoryStore
from django_quota.stores.redis.settings import GivenRedis
from django_quota.stores.redis.store import ServerClient
from django_quota.testing import freeze
from tests.support.commands import PATIENCE, wait_until
from tests.support.overridden import override
from tests.support.steps import SECOND, START, Clock
from tests.support.stores import current_store, spy

SUBJECT = "ip:203.0.113.9"
PLACE = TallyPlace("{user:1}:s", "{user:1}:day:2026-01-01", "api", "")


def repeat_a_refusal(woken: Mock) -> None:
    """The store has no part in the repetition: neither a day nor an event counts it."""
    check("0/m", SUBJECT, cache_refusals=0.5, daily=False)
    woken.reset_mock()
    check("0/m", SUBJECT, cache_refusals=0.5, daily=False)


def spend_what_was_taken_ahead(woken: Mock) -> None:
    rule = Rule.make("hot", "1000/m", prefetch=True)
    with freeze(START):
        while not check(rule, SUBJECT).approximate:
            woken.reset_mock()


def decide_by_an_exemption(_: Mock) -> None:
    override("x 0 0 ", "*", SUBJECT)
    check("9/m", SUBJECT)


def undo_a_refusal(woken: Mock) -> None:
    decision = check("0/m", SUBJECT)
    woken.reset_mock()
    get_limiter().metrics.count_only_refusals(START, decision)


COUNTS: list[Any] = [
    pytest.param(lambda _: check("9/m", SUBJECT), id="a check"),
    pytest.param(decide_by_an_exemption, id="an exemption"),
    pytest.param(repeat_a_refusal, id="a refusal from memory"),
    pytest.param(spend_what_was_taken_ahead, id="a unit that was taken ahead"),
    pytest.param(lambda _: get_limiter().metrics.count_spent(START, "hot:a", 3), id="the count of such units"),
    pytest.param(lambda _: get_limiter().unasked.add(PLACE, REFUSED_ONCE), id="a hit of the day"),
]
OTHERS: list[Any] = [
    pytest.param(lambda _: get_limiter().metrics.count_slot("user:1", "export", 3, SECOND), id="a slot"),
    pytest.param(undo_a_refusal, id="a refusal that is undone"),
]


@pytest.fixture
def woken(memory_store: None, monkeypatch: pytest.MonkeyPatch) -> Mock:
    wake = Mock()
    monkeypatch.setattr(flusher, "wake", wake)
    return wake


@pytest.mark.parametrize("count", [*COUNTS, *OTHERS])
def test_the_flusher_is_woken_by(count: Callable[[Mock], object], woken: Mock) -> None:
    count(woken)

    assert woken.called


@pytest.mark.parametrize("count", COUNTS)
def test_a_flusher_that_is_awake_is_not_woken_by(
    count: Callable[[Mock], object], woken: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher, "is_woken", True)

    count(woken)

    assert not woken.called


@pytest.mark.usefixtures("memory_store")
def test_at_the_end_of_a_process_what_was_counted_is_sent_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    alive, cleaning = Workers(current_store()), Cleaning(tables := Mock(), clock)
    clock.now += 60.0
    override("b 0 0 ", "*", "user:1")
    check(Rule.make("api", "9/m", daily=True), "user:1")
    check("0/m", SUBJECT, cache_refusals=0.5)
    asked: list[type] = []
    spy(monkeypatch, before=lambda operation: asked.append(type(operation)))

    try:
        assert flusher.flush(at_exit=True)
    finally:
        flusher.remove(alive, cleaning)

    assert {AddMetrics, RecordHits} <= set(asked)
    assert RegisterWorker not in asked
    assert not tables.mock_calls


# --- one thread -------------------------------------------------------------------------------------------------------


@pytest.fixture
def thread(elapsed: Clock) -> Iterator[Background]:
    thread = Background("django-quota-test")
    yield thread
    thread.stop(PATIENCE)


def passes(thread: Background) -> None:
    """Let the thread look for what is due, and wait until it has done so twice."""
    for _ in range(2):
        done = threading.Event()
        assert thread.call_at(0.0, done.set)
        assert done.wait(PATIENCE)


def counting() -> Any:
    return Mock(purpose="count", at_exit=False)


def test_a_call_is_made_at_its_moment_and_not_before(thread: Background, elapsed: Clock) -> None:
    planned = Mock()

    assert thread.call_at(elapsed.now + 1.0, planned)
    passes(thread)
    before = planned.call_count
    elapsed.now += 1.0
    passes(thread)

    assert (before, planned.call_count) == (0, 1)


def test_a_round_begins_a_second_after_the_last_one(thread: Background, elapsed: Clock) -> None:
    thread.add(job := counting())
    thread.wake()
    wait_until(lambda: job.flush.call_count == 1 and not thread.is_woken)
    passes(thread)
    thread.wake()

    rounds = []
    for seconds in (0.75, 0.25):
        elapsed.now += seconds
        passes(thread)
        rounds.append(job.flush.call_count)

    assert rounds == [1, 2]


def test_a_round_that_takes_long_is_followed_by_a_second_of_rest(thread: Background, elapsed: Clock) -> None:
    def take_long() -> None:
        elapsed.now += 5.0

    thread.add(job := counting())
    job.flush.side_effect = take_long
    thread.wake()
    wait_until(lambda: job.flush.call_count == 1 and not thread.is_woken)
    passes(thread)

    thread.wake()
    passes(thread)

    assert job.flush.call_count == 1


def test_a_round_is_not_repeated_unless_it_is_woken(thread: Background, elapsed: Clock) -> None:
    thread.add(job := counting())
    thread.wake()
    wait_until(lambda: job.flush.call_count == 1 and not thread.is_woken)

    elapsed.now += 60.0
    passes(thread)

    assert job.flush.call_count == 1


def test_a_round_that_fails_is_repeated_though_nobody_wakes_it(thread: Background, elapsed: Clock) -> None:
    thread.add(job := counting())
    job.flush.side_effect = [RuntimeError("no answer"), None]
    thread.wake()
    wait_until(lambda: job.flush.call_count == 1 and thread.is_woken)

    elapsed.now += 1.0
    passes(thread)

    assert job.flush.call_count == 2
    assert not thread.is_woken


def test_what_wakes_it_during_a_round_makes_another_one(thread: Background, elapsed: Clock) -> None:
    thread.add(job := counting())
    job.flush.side_effect = lambda: thread.wake() if job.flush.call_count == 1 else None
    thread.wake()
    wait_until(lambda: job.flush.call_count == 1)
    passes(thread)

    elapsed.now += 1.0
    passes(thread)

    assert job.flush.call_count == 2


def test_waking_it_again_before_the_round_signals_nothing(thread: Background, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "_signal", signal := Mock(return_value=True))

    for _ in range(3):
        thread.wake()

    assert signal.call_count == 1


def test_a_call_is_not_planned_if_the_process_can_start_no_thread(
    thread: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        assert thread.call_at(0.0, Mock()) is False

    assert thread.call_at(0.0, Mock()) is True


def test_the_thread_does_not_keep_the_process_alive(thread: Background) -> None:
    passes(thread)

    (own,) = [each for each in threading.enumerate() if each.name == "django-quota-test"]
    assert own.daemon


def test_the_end_waits_for_the_last_round(thread: Background) -> None:
    thread.add(job := Mock(purpose="count", at_exit=True))
    passes(thread)
    job.flush.side_effect = lambda: threading.Event().wait(0.05)

    thread.stop(PATIENCE)

    assert "django-quota-test" not in {each.name for each in threading.enumerate()}
    assert job.flush.call_count == 1


def test_a_thread_that_never_ran_ends_at_once() -> None:
    Background("django-quota-test").stop(PATIENCE)


@pytest.mark.parametrize(
    ("at_exit", "done"), [(False, ["a", "b"]), (True, ["a"])], ids=["each round", "the last round"]
)
def test_the_jobs_of(at_exit: bool, done: list[str], thread: Background) -> None:
    found: list[str] = []
    jobs = [Mock(purpose=name, at_exit=name == "a") for name in "ab"]
    for job in jobs:
        job.flush.side_effect = lambda name=job.purpose: found.append(name)
        thread.add(job)

    assert thread.flush(at_exit=at_exit) is True
    assert sorted(found) == done


def test_a_round_with_a_failure_says_so(thread: Background) -> None:
    jobs = [counting() for _ in range(2)]
    for job in jobs:
        thread.add(job)
    jobs[0].flush.side_effect = RuntimeError("no answer")

    assert thread.flush() is False


def test_a_failure_is_logged_though_that_of_another_job_goes_on(
    thread: Background, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [counting() for _ in range(2)]
    for number, job in enumerate(jobs, 1):
        thread.add(job)
        job.flush.side_effect = RuntimeError(f"no answer to job {number}")
        thread.flush()

    assert caplog.messages == [f"Cannot count, and will try again: no answer to job {number}" for number in (1, 2)]


def test_the_end_waits_half_a_second_for_a_round_that_hangs(thread: Background) -> None:
    passes(thread)

    with patch.object(threading.Thread, "join") as join:
        thread.stop()

    join.assert_called_once_with(0.5)


def test_rounds_are_a_second_apart() -> None:
    assert FLUSH_INTERVAL == 1.0


@pytest.mark.parametrize(
    ("purpose", "of"),
    [
        pytest.param(
            "send the metrics of the overview, which stay in memory", lambda: get_limiter().metrics, id="metrics"
        ),
        pytest.param(
            "count what was decided without the store", lambda: get_limiter().unasked, id="hits that no store decided"
        ),
        pytest.param("forget refusals that are over", lambda: get_limiter().refusals, id="refusals"),
        pytest.param("say that this process is alive", lambda: Workers(current_store()), id="signs of life"),
        pytest.param("delete expired rows", lambda: Cleaning(Mock()), id="cleaning"),
    ],
)
@pytest.mark.usefixtures("memory_store")
def test_the_log_says_what_a_job_that_failed_is_for(
    purpose: str, of: Callable[[], Any], thread: Background, caplog: pytest.LogCaptureFixture
) -> None:
    job = of()
    thread.add(job)

    with patch.object(job, "flush", side_effect=RuntimeError("no answer")):
        thread.flush()

    flusher.remove(job)
    assert caplog.record_tuples == [
        ("django_quota.background", logging.WARNING, f"Cannot {purpose}, and will try again: no answer")
    ]


AT_EXIT = """
from django_quota.limiting.flusher import flusher

class Job:
    at_exit = True
    purpose = "count"

    def flush(self):
        print("a round", flush=True)

flusher.add(job := Job())
flusher.call_at(10.0**9, print)  # starts the thread, which then waits
"""


def test_the_end_of_a_process_does_a_last_round() -> None:
    run = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=True, timeout=PATIENCE)

    assert run.stdout == "a round\n"


# --- forks ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: get_limiter().metrics, id="metrics"),
        pytest.param(lambda: get_limiter().unasked, id="hits that wait"),
        pytest.param(lambda: get_limiter().refusals, id="refusals"),
        pytest.param(lambda: get_limiter().prefetch, id="units taken ahead"),
        pytest.param(lambda: get_limiter().outages, id="outages"),
        pytest.param(lambda: Workers(current_store()), id="signs of life"),
        pytest.param(lambda: Background("django-quota-test"), id="a thread"),
        pytest.param(OverrideCopy, id="overrides"),
        pytest.param(ReaderConnection, id="the connection of the reader"),
        pytest.param(Outages, id="outages of a store"),
        pytest.param(MemoryStore, id="the memory store"),
        pytest.param(lambda: ServerClient(GivenRedis("redis://127.0.0.1")), id="the connections to Redis"),
        pytest.param(lambda: ClusterStore(GivenRedis("redis+cluster://127.0.0.1")), id="the clients of a Cluster"),
        pytest.param(lambda: DatabaseStore("default"), id="the threads of the database store"),
        pytest.param(lambda: Pool(1, str, Mock()), id="the connections to a database"),
        pytest.param(lambda: Turns(1, "busy"), id="turns"),
        pytest.param(Breaker, id="a breaker"),
        pytest.param(Renewer, id="leases to renew"),
        pytest.param(SlotQueues, id="queues for slots"),
    ],
)
def test_a_forked_process_resets(made: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    each = made()
    monkeypatch.setattr(forks, "_registered", [known for known in forks._registered if known is each])

    with patch.object(type(each), "after_fork", autospec=True) as reset:
        forks._after_fork()

    assert reset.mock_calls == [call(each)]
