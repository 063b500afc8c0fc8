"""How many processes share the limits: learned while Redis answers, used when it does not."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from django_quota import Rule, check
from django_quota.exceptions import RuleError
from django_quota.testing import clear, freeze
from tests.support.counts import count_what_waits
from tests.support.inputs import inputs
from tests.support.memory import another_process_is_alive, know_of_processes
from tests.support.outages import no_answer, with_clock
from tests.support.processes import ended, forks, processes, started, threads_ran
from tests.support.steps import SECOND, START, Clock

INTERVAL, TTL = 5, 30 * SECOND
"""A process says every five seconds that it is alive, and counts for thirty."""

WORKERS = "quota:1:{!}:workers"


def admitted(rule: str | Rule = "60/m", subject: str = "user:1", hits: int = 61) -> int:
    """Return how many hits this process admits by itself while Redis does not answer."""
    with no_answer():
        return sum(check(rule, subject).allowed for _ in range(hits))


@pytest.fixture
def share(redis_cache: object, clock: Clock) -> Iterator[Any]:
    """Let five seconds pass and a round of the background thread; return this process's share of sixty."""
    with_clock(clock)
    subjects = iter(range(100))

    def after(now: int = START) -> int:
        clock.now += INTERVAL
        with freeze(now):
            count_what_waits()
            return admitted(Rule.make("local", "60/m", on_unavailable="local"), f"user:{next(subjects)}")

    with freeze(START):
        yield after


def test_processes_share_a_limit_until_they_have_been_silent_for_long(share: Any, raw: redis.Redis) -> None:
    assert share() == 60
    another_process_is_alive()
    another_process_is_alive()
    assert [share(), share(START + TTL - 1), share(START + TTL)] == [20, 20, 20]
    assert share(START + TTL) == 60  # a lower number counts when it comes twice
    another_process_is_alive()
    assert share() == 30  # a higher one at once
    raw.delete(WORKERS)  # the others report again within the interval
    assert share() == 30
    another_process_is_alive()
    assert share() == 30
    raw.delete(WORKERS)
    assert [share(), share()] == [30, 60]


@forks
@threads_ran
def test_a_forked_process_is_one_more(share: Any, raw: redis.Redis) -> None:
    share()
    with processes() as children:
        children.append(started(count_what_waits))
        assert ended(children) == [0]
    assert raw.zcard(WORKERS) == 2
    assert 0 < raw.pttl(WORKERS) <= 30_000 + 3_600_000  # an hour longer, since the test sets the time


RATES = st.builds("{}/{}".format, st.integers(0, 50), st.sampled_from(["s", "m", "h", "5m"]))


@inputs(100)
@given(rates=st.lists(RATES, min_size=1, max_size=3), number=st.integers(1, 60))
def test_together_they_admit_no_more_than_the_rule_or_one_each(rates: list[str], number: int) -> None:
    try:
        rule = Rule.make("r", *rates, on_unavailable="local")
    except RuleError:
        return
    know_of_processes(number)
    clear()
    with freeze(START):
        mine = admitted(rule)
    least = min(int(rate.partition("/")[0]) for rate in rates)
    assert mine == max(least // number, min(least, 1))
