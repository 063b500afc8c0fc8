"""How many share the limits: learned while Redis answers, used when it does not."""

from __future__ import annotations

import os
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import NoScriptError, ResponseError

from django_quota import Rule, check
from django_quota.clock import SECOND
from django_quota.exceptions import RuleError
from django_quota.limiter import get_limiter
from django_quota.operations.base import DictStates
from django_quota.operations.workers import Alive
from django_quota.rates import Rate
from django_quota.testing import RedisServer, freeze
from django_quota.workers import COUNTED, EVERY, Workers, part_of
from tests.conftest import caches
from tests.steps import START

KEY = "quota:1:{!}:workers:of-this-test"


@pytest.fixture(autouse=True)
def workers_are_counted(no_worker_says_that_it_is_alive: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Workers, "is_on", True)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.usefixtures("either_store")
class TestAlive:
    def run(self, token: str, now: int) -> Any:
        return get_limiter().store.run(Alive(KEY, token, COUNTED), now)

    def test_each_worker_is_counted_once_until_it_has_been_silent_for_long(self) -> None:
        assert [self.run(token, START) for token in "aab"] == [1, 1, 2]
        assert self.run("a", START + COUNTED - 1) == 2
        assert self.run("a", START + COUNTED) == 1

    def test_the_key_goes_by_itself(self, settings: Any) -> None:
        if settings.QUOTA.get("STORE") == "memory":
            return
        self.run("a", 0)
        store: Any = get_limiter().store
        with store.commands() as client:
            assert 0 < client.pttl(KEY) <= COUNTED // 1_000 + 3_600_000


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 2 * COUNTED)), max_size=20))
def test_it_is_counted_as_a_plain_account_would(says: list[tuple[str, int]]) -> None:
    states, last, now = DictStates(), dict[str, int](), START
    for token, later in says:
        now += later
        last[token] = now
        alive = sum(now - when < COUNTED for when in last.values())
        assert Alive(KEY, token, COUNTED).run(states, now) == alive


class TestErrand:
    def test_it_says_so_now_and_then(self) -> None:
        clock = Clock()
        workers = Workers(clock)
        assert workers.question() is not None
        workers.answered(3)
        assert workers.number == 3
        assert workers.question() is None
        clock.now += EVERY
        assert workers.question() is not None

    def test_at_first_it_says_so_sooner_so_that_workers_that_begin_together_know_each_other(self) -> None:
        clock = Clock()
        workers = Workers(clock)
        asked = []
        for second in range(60):
            if workers.question() is not None:
                workers.answered(1)
                asked.append(second)
            clock.now += 1
        assert asked == [0, 1, 3, 7, 15, 25, 35, 45, 55]

    def test_a_server_that_does_not_know_the_script_is_sent_it(self) -> None:
        workers = Workers(Clock())
        assert (workers.question() or [""])[0] == "EVALSHA"
        workers.answered(NoScriptError("NOSCRIPT"))
        assert (workers.question() or [""])[0] == "EVAL"

    @pytest.mark.parametrize("happens", ["lost", "error"])
    def test_after_a_failure_it_is_asked_again_and_what_was_known_holds(self, happens: str) -> None:
        workers = Workers(Clock())
        workers.question()
        workers.answered(4)
        workers.lost() if happens == "lost" else workers.answered(ResponseError("OOM"))
        assert workers.question() is not None
        assert workers.number == 4

    def test_a_forked_process_is_one_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        workers = Workers(Clock())
        first = list(workers.question() or ())
        monkeypatch.setattr(os, "getpid", lambda: -1)
        second = list(workers.question() or ())
        assert first[-2] != second[-2]

    def test_a_forked_process_goes_by_what_its_parent_had_learned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        workers = Workers(Clock())
        workers.question()
        workers.answered(4)
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert workers.question() is not None
        assert workers.number == 4

    def test_two_processes_learn_of_each_other_along_with_their_checks(self, redis_cache: RedisServer) -> None:
        other = Workers()
        check("9/m", "user:1")
        with redis.Redis.from_url(redis_cache.url) as client:
            client.execute_command(*(other.question() or ()))  # the script is known: another process has sent it
        workers = get_limiter().workers
        assert workers is not None
        workers._again = 0.0
        get_limiter().store._errands.hurry()  # type: ignore[attr-defined]
        check("9/m", "user:1")
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

    def test_options_that_cannot_be_cached_are_no_matter(self) -> None:
        rule = Rule.make("r", "100/m", key=["ip", "path"])
        object.__setattr__(rule, "key", ["ip"])
        assert str(part_of(rule, 4).rates[0]) == "25/m"

    def test_alone_it_has_all(self) -> None:
        rule = Rule.make("r", "7/m")
        assert part_of(rule, 1) is rule


def test_while_redis_is_gone_each_takes_its_part(settings: Any, tmp_path: Any) -> None:
    settings.CACHES = caches(RedisServer(f"unix://{tmp_path}/gone.sock", 0, tmp_path))
    workers = get_limiter().workers
    assert workers is not None
    workers.answered(5)
    with freeze(START):
        decisions = [check("10/m", "user:1", on_unavailable="local") for _ in range(3)]
    assert [decision.allowed for decision in decisions] == [True, True, False]
    assert {decision.degraded for decision in decisions} == {True}
    with freeze(START + 61 * SECOND):
        assert check("10/m", "user:1", on_unavailable="local")
