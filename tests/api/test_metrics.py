"""Metrics: exact over threads and processes, sent by the flusher and at exit, and bounded."""

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from django_quota import Rule, acheck, check, check_all, peek, refund, reserve, slot
from django_quota.exceptions import QuotaExceeded
from django_quota.testing import RedisServer, freeze
from tests.support.commands import managing, wait_until
from tests.support.counts import (
    checks_a_minute,
    checks_by_minute,
    checks_of_today,
    count_what_waits,
    refused_today,
    slots_in_use,
)
from tests.support.memory import metrics_that_wait, with_room_for_metrics
from tests.support.outages import no_answer
from tests.support.processes import ended, forks, processes, started, threads_ran
from tests.support.selection import thorough
from tests.support.steps import SECOND, START
from tests.support.stores import caches

SUBJECT = "ip:203.0.113.9"


@pytest.mark.usefixtures("either_store")
class TestWhatIsCounted:
    def test_checks_by_rule_allowed_and_refused_and_who_was_refused_most(self) -> None:
        for subject, times in (("user:1", 3), ("user:2", 4)):
            for _ in range(times):
                check("2/m", subject, name="a")
        asyncio.run(acheck("3/m", SUBJECT, name="b"))
        assert checks_of_today() == {"a": (4, 3, 0), "b": (1, 0, 0)}
        assert refused_today() == [("user:2", 2), ("user:1", 1)]

    def test_a_reservation_is_a_check_and_a_look_a_refund_and_a_settling_are_none(self) -> None:
        with reserve("10/m", SUBJECT, 5, name="a") as hold:
            hold.settle(3)
        with pytest.raises(QuotaExceeded):
            reserve("10/m", SUBJECT, 9, name="a")
        peek("10/m", SUBJECT, name="a")
        refund("10/m", SUBJECT, name="a")
        check(Rule.make("a", "10/m", cost=lambda request: 0), SUBJECT, 0)
        assert not check(Rule.make("b", "0/m", cost=lambda request: 0), SUBJECT, 0)
        assert checks_of_today() == {"a": (1, 1, 0)}

    def test_of_a_refused_plan_only_the_refusing_rules_count_and_shadows_apart(self) -> None:
        soft, ghost = Rule.make("soft", "9/m", block=False), Rule.make("ghost", "2/m", shadow=True)
        rules = [Rule.make("strict", "1/m"), Rule.make("wide", "9/m"), soft, ghost]
        for _ in range(3):
            check("1/m", SUBJECT, name="a", shadow=True)
        assert refused_today() == []
        for _ in range(3):
            check_all([(rule, SUBJECT) for rule in rules])
        assert checks_of_today() == {
            "a": (1, 0, 2), "strict": (1, 2, 0), "wide": (1, 0, 0), "soft": (1, 0, 0), "ghost": (1, 0, 0),
        }  # fmt: skip

    def test_a_minute_and_a_day_by_the_clock_that_decided_and_the_rate_of_the_last_60_seconds(self) -> None:
        begins = START // (60 * SECOND) * 60 * SECOND
        for at, times in ((0, 1), (60, 8), (135, 2)):
            with freeze(begins + at * SECOND):
                for _ in range(times):
                    check("8/d", SUBJECT, name="a")
                count_what_waits()
        with freeze(begins + 135 * SECOND):
            assert checks_by_minute("a")[-4:] == [(0, 0), (1, 0), (7, 1), (0, 2)]
            assert len(checks_by_minute("a")) == 60
            assert checks_a_minute("a") == 2 + 8 * 0.75
        with freeze(begins + 86_400 * SECOND):
            assert checks_of_today() == {}

    def test_slots_with_who_holds_them_the_full_ones_first_until_nobody_asks_for_them(self) -> None:
        with slot("wide", 10), slot("export", 1, subject=SUBJECT):
            with pytest.raises(QuotaExceeded), slot("export", 1, subject=SUBJECT):
                pass
            with no_answer():
                assert not count_what_waits()
            assert slots_in_use() == [("export", SUBJECT, 1, 1), ("wide", "global", 1, 10)]
        with freeze(START), slot("late", 1, lease=5):
            assert ("late", "global", 1, 1) in slots_in_use()
        with freeze(START + 601 * SECOND):
            assert "late" not in [found[0] for found in slots_in_use()]


@pytest.mark.usefixtures("memory_store")
def test_what_waits_to_be_sent_is_bounded_and_no_count_of_a_rule_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with_room_for_metrics(100, 50, monkeypatch)
    with freeze(START):
        for number in range(200):
            check("0/m", f"user:{number}", name=f"rule{number}")
            if number == 150:
                with no_answer():
                    assert not count_what_waits()
        assert metrics_that_wait() == (101, 50)
        assert sum(refused for _, refused, _ in checks_of_today().values()) == 200


def sent(raw: redis.Redis) -> dict[str, int]:
    """Return the counts of all days in Redis."""
    found: dict[str, int] = {}
    client: Any = raw  # redis-py leaves its replies open
    for key in client.keys("quota:1:{!}:metrics:20*-*"):
        for name, count in client.hgetall(key).items():
            found[name.decode()] = found.get(name.decode(), 0) + int(count)
    return found


@pytest.mark.usefixtures("redis_cache")
class TestTheWay:
    def test_what_was_not_sent_is_sent_with_the_next_and_a_lost_answer_counts_once_more(self, raw: redis.Redis) -> None:
        check("9/m", SUBJECT, name="a")
        for is_done, counted in ((False, {}), (True, {"a:a": 1})):
            with no_answer(done=is_done):
                assert not count_what_waits()
            assert sent(raw) == counted
        check("9/m", SUBJECT, name="a")
        count_what_waits()
        count_what_waits()
        assert sent(raw) == {"a:a": 3}

    def test_metrics_that_redis_refuses_fail_no_request_and_are_kept(
        self, raw: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        check("9/m", SUBJECT, name="a")
        count_what_waits()
        (day,) = raw.scan_iter("quota:1:{!}:metrics:20*-*")
        raw.rename(day, "aside")
        raw.rpush(day, "not a count")
        for _ in range(4):
            assert check("9/m", SUBJECT, name="a")
            assert not count_what_waits()
        assert caplog.text.count("Cannot send the metrics") == 1
        raw.rename("aside", day)
        assert count_what_waits()
        assert sent(raw) == {"a:a": 5}

    def test_racing_threads_lose_and_double_nothing(self, raw: redis.Redis) -> None:
        def ask(number: int) -> bool:
            if number % 20 == 0:
                count_what_waits()
            return bool(check("100/m", SUBJECT, name="a"))

        with ThreadPoolExecutor(8) as threads:
            allowed = sum(threads.map(ask, range(8 * 60)))
        count_what_waits()
        assert allowed == 100
        assert sent(raw) == {"a:a": 100, "a:r": 380}
        (refused,) = cast("Any", raw).keys("quota:1:{!}:refused:*")
        assert raw.zscore(refused, SUBJECT) == 380

    @pytest.mark.usefixtures("the_flusher_runs")
    def test_an_idle_process_sends_its_counts_by_itself(self, raw: redis.Redis) -> None:
        check("9/m", SUBJECT, name="a")
        wait_until(lambda: sent(raw) == {"a:a": 1})

    @forks
    @threads_ran
    def test_a_forked_process_sends_its_own_counts_and_not_its_parents(self, raw: redis.Redis) -> None:
        check("90/m", SUBJECT, name="a")

        def work() -> None:
            for _ in range(3):
                check("90/m", SUBJECT, name="a")
            count_what_waits()

        with processes() as children:
            children += [started(work) for _ in range(4)]
            assert ended(children) == [0] * 4
        assert sent(raw) == {"a:a": 12}
        count_what_waits()
        assert sent(raw) == {"a:a": 13}


ASKING = """
import sys, threading
import django
django.setup()
from django_quota import check
from tests.support.stores import current_store

if "hangs" in sys.argv:
    run = current_store().run
    def hang_in_the_background(*asked):
        if threading.current_thread() is not threading.main_thread():
            threading.Event().wait()
        return run(*asked)
    current_store().run = hang_in_the_background
for _ in range(7):
    check("90/m", "ip:203.0.113.9", name="a")
"""


@pytest.mark.parametrize(("word", "counted"), [("", {"a:a": 7}), thorough("processes", "hangs", {})])
def test_the_last_counts_are_sent_at_the_end_which_a_store_that_hangs_does_not_delay(
    word: str, counted: dict[str, int], redis_server: RedisServer, raw: redis.Redis, tmp_path: Path
) -> None:
    (tmp_path / "asking.py").write_text(ASKING)
    with managing(tmp_path, caches(redis_server)) as manage:
        words = [sys.executable, "-W", "error", str(tmp_path / "asking.py"), word]
        subprocess.run(words, env=manage.environment, check=True, timeout=60)
    assert sent(raw) == counted
