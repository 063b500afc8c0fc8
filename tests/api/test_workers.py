"""How many processes share the limits: learned while Redis answers, used when it does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_quota import Rule, check
from django_quota.core.rates import Rate
from django_quota.engine.operations import DictStates
from django_quota.engine.system_operations import RegisterWorker
from django_quota.exceptions import RuleError, StoreUnavailable
from django_quota.services import registry
from django_quota.services.flusher import flusher
from django_quota.services.limiter import Limiter
from django_quota.services.registry import get_limiter
from django_quota.services.workers import INTERVAL, TTL, Workers, part_of
from django_quota.testing import RedisServer, freeze
from tests.support.steps import SECOND, START, Clock
from tests.support.stores import caches, current_store

KEY = "quota:1:{!}:workers:of-this-test"


@pytest.mark.usefixtures("either_store")
class TestAlive:
    def run(self, token: str, now: int) -> Any:
        return current_store().run(RegisterWorker(KEY, token, TTL), now)

    def test_each_worker_is_counted_once_until_it_has_been_silent_for_long(self) -> None:
        assert [self.run(token, START) for token in "aab"] == [1, 1, 2]
        assert self.run("a", START + TTL - 1) == 2
        assert self.run("a", START + TTL) == 1

    def test_the_key_expires_by_itself(self, settings: Any) -> None:
        if settings.QUOTA.get("STORE") == "memory":
            return
        self.run("a", 0)
        store: Any = current_store()
        with store.commands() as client:
            assert 0 < client.pttl(KEY) <= TTL // 1_000 + 3_600_000


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 2 * TTL)), max_size=20))
def test_it_is_counted_as_a_plain_account_would(says: list[tuple[str, int]]) -> None:
    states, last, now = DictStates(), dict[str, int](), START
    for token, later in says:
        now += later
        last[token] = now
        alive = sum(now - when < TTL for when in last.values())
        assert RegisterWorker(KEY, token, TTL).run(states, now) == alive


class Counted:
    """A store that answers how many workers there are, or not at all; it notes who says that it is alive."""

    def __init__(self) -> None:
        self.number = 1
        self.is_away = False
        self.tokens: list[str] = []

    def run(self, operation: RegisterWorker, now: int | None = None) -> int:
        if self.is_away:
            raise StoreUnavailable("it is away")
        self.tokens.append(operation.token)
        return self.number


class TestSignsOfLife:
    def made(self) -> tuple[Workers, Any, Clock]:
        store: Any = Counted()
        clock = Clock()
        return Workers(store, clock), store, clock

    def test_it_registers_at_an_interval(self) -> None:
        workers, store, clock = self.made()
        store.number = 3
        workers.flush()
        assert workers.number == 3
        workers.flush()
        assert len(store.tokens) == 1
        clock.now += INTERVAL
        workers.flush()
        assert len(store.tokens) == 2

    def test_after_a_failure_it_tries_again_and_keeps_the_number(self) -> None:
        workers, store, clock = self.made()
        store.number = 4
        workers.flush()
        clock.now += INTERVAL
        store.is_away = True
        workers.flush()
        assert workers.number == 4
        store.is_away, store.number = False, 5
        workers.flush()
        assert workers.number == 5

    def test_a_lower_number_counts_when_it_comes_twice(self) -> None:
        workers, store, clock = self.made()
        known = []
        for store.number in (4, 1, 4, 2, 2, 3):
            workers.flush()
            known.append(workers.number)
            clock.now += INTERVAL
        assert known == [4, 4, 4, 4, 2, 3]

    def test_a_lower_number_waits_for_the_others_to_report(self) -> None:
        workers, store, clock = self.made()
        store.number = 2
        workers.flush()
        clock.now += INTERVAL
        store.number = 1
        workers.flush()
        clock.now += INTERVAL - 0.1
        workers.flush()
        assert (workers.number, len(store.tokens)) == (2, 2)

    def test_threads_making_the_limiter_at_once_are_one_worker(
        self, monkeypatch: pytest.MonkeyPatch, settings: Any
    ) -> None:
        make = registry._make_limiter

        def slow() -> Limiter:
            made = make()
            monkeypatch.setattr(registry, "_make_limiter", make)
            get_limiter()
            return made

        settings.QUOTA = {}
        monkeypatch.setattr(registry, "_make_limiter", slow)
        before = set(flusher._jobs)
        limiter = get_limiter()
        assert {job for job in set(flusher._jobs) - before if isinstance(job, Workers)} == {limiter.workers}

    def test_a_forked_process_is_one_more_worker(self) -> None:
        workers, store, _ = self.made()
        store.number = 4
        workers.flush()
        workers.after_fork()
        assert workers.number == 4
        workers.flush()
        assert len(set(store.tokens)) == 2

    @pytest.mark.usefixtures("redis_cache")
    def test_two_processes_learn_of_each_other_while_they_serve_requests(self) -> None:
        check("9/m", "user:1")
        Workers(current_store()).flush()
        flusher.flush()
        workers = get_limiter().workers
        assert workers is not None
        assert workers.number == 2


RATES = st.builds(Rate, st.integers(0, 50), st.sampled_from(["second", "minute", "hour"]), st.integers(1, 5))


class TestParts:
    @given(st.lists(RATES, max_size=3), st.integers(1, 60))
    def test_together_they_admit_no_more_than_the_rule_or_one_each(self, rates: list[Rate], workers: int) -> None:
        try:
            rule = Rule.make("r", *rates)
        except RuleError:
            return
        parts = part_of(rule, workers).rates
        for rate, part in zip(rule.rates, parts, strict=True):
            assert isinstance(rate, Rate)
            assert isinstance(part, Rate)
            assert part.count * workers <= max(rate.count, workers)
            assert (part.count > 0) is (rate.count > 0)
            assert part.window == rate.window

    def test_a_burst_is_divided_too(self) -> None:
        rule = part_of(Rule.make("r", "100/m", algorithm="token_bucket", burst=20), 4)
        assert (str(rule.rates[0]), rule.burst) == ("25/m", 5)

    def test_unhashable_options_work_too(self) -> None:
        rule = Rule.make("r", "100/m", key=["ip", "path"])
        object.__setattr__(rule, "key", ["ip"])
        assert str(part_of(rule, 4).rates[0]) == "25/m"

    def test_a_single_worker_has_the_whole_rate(self) -> None:
        rule = Rule.make("r", "7/m")
        assert part_of(rule, 1) is rule


def test_without_redis_each_worker_takes_its_part(settings: Any, tmp_path: Any) -> None:
    settings.CACHES = caches(RedisServer(f"unix://{tmp_path}/gone.sock", 0, tmp_path))
    workers = get_limiter().workers
    assert workers is not None
    workers.number = 5
    with freeze(START):
        decisions = [check("10/m", "user:1", on_unavailable="local") for _ in range(3)]
    assert [decision.allowed for decision in decisions] == [True, True, False]
    assert {decision.degraded for decision in decisions} == {True}
    with freeze(START + 61 * SECOND):
        assert check("10/m", "user:1", on_unavailable="local")
