"""Tallies: exact over threads, processes and lost answers; carried along, by a thread, and at the end; bounded."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from redis.exceptions import ConnectionError as RedisConnectionError

from django_quota import QuotaExceeded, acheck, check, peek, refund, reserve, slot, tallies
from django_quota.activity import Activity, activity
from django_quota.clock import SECOND
from django_quota.limiter import get_limiter
from django_quota.operations.decide import Decide
from django_quota.operations.tallies import FIELDS, OTHER, SUBJECTS, AddTally, TallyKeys
from django_quota.rules import Rule
from django_quota.stores.redis import RedisStore
from django_quota.tallies import MOST_PAGES, MOST_RULES, MOST_SUBJECTS, Page, Tally
from django_quota.testing import RedisServer, freeze
from tests.commands import managing, wait_until
from tests.conftest import caches
from tests.processes import ended, forks, processes, started, threads_ran
from tests.steps import START

SUBJECT = "ip:203.0.113.9"
FLUSH = Tally.flush_what_is_left


@pytest.fixture(autouse=True)
def tallying(nothing_is_tallied: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count; the thread leaves it alone unless a test says otherwise."""
    monkeypatch.setattr(Tally, "is_on", True)
    monkeypatch.setattr(Tally, "flush_what_is_left", lambda *_, **__: None)


@pytest.fixture
def carrying(monkeypatch: pytest.MonkeyPatch, tallying: None) -> None:
    """Let the thread do its work."""
    monkeypatch.setattr(Tally, "flush_what_is_left", FLUSH)


def tally() -> Tally:
    found = get_limiter().tally
    assert found is not None
    return found


def store() -> RedisStore:
    found = get_limiter().store
    assert isinstance(found, RedisStore)
    return found


def counts(found: Activity | None = None) -> dict[str | None, tuple[int, int, int]]:
    """Return allowed, refused and shadowed of today by rule, as the page reads them."""
    return {rule.rule: (rule.allowed, rule.refused, rule.shadowed) for rule in (found or activity()).rules}


@pytest.mark.usefixtures("either_store")
class TestWhatIsCounted:
    def test_checks_by_rule_allowed_and_refused(self) -> None:
        for _ in range(5):
            check("3/m", SUBJECT, name="a")
        check("3/m", SUBJECT, name="b")
        assert counts() == {"a": (3, 2, 0), "b": (1, 0, 0)}

    def test_the_async_verbs_too(self) -> None:
        async def ask() -> None:
            for _ in range(3):
                await acheck("2/m", SUBJECT, name="a")

        asyncio.run(ask())
        assert counts() == {"a": (2, 1, 0)}

    def test_a_reservation_is_a_check_and_a_look_a_refund_and_a_settling_are_none(self) -> None:
        with reserve("10/m", SUBJECT, 5, name="a") as hold:
            hold.settle(3)
        with pytest.raises(QuotaExceeded):
            reserve("10/m", SUBJECT, 9, name="a")
        peek("10/m", SUBJECT, name="a")
        refund("10/m", SUBJECT, name="a")
        check("10/m", SUBJECT, 0, name="a")
        assert counts() == {"a": (1, 1, 0)}

    def test_what_a_shadow_rule_would_refuse_is_told_apart(self) -> None:
        for _ in range(3):
            check("1/m", SUBJECT, name="a", shadow=True)
        found = activity()
        assert counts(found) == {"a": (1, 0, 2)}
        assert found.refused == []

    def test_of_a_refused_plan_only_who_refused_counts(self) -> None:
        from django_quota.limiter import decide_plan
        from django_quota.plans import Plan

        for _ in range(3):
            plan = Plan("quota")
            for rule in (
                Rule.make("strict", "1/m"),
                Rule.make("wide", "9/m"),
                Rule.make("soft", "9/m", block=False),
                Rule.make("ghost", "2/m", shadow=True),
            ):
                plan.add(rule, SUBJECT, 1)
            decide_plan(plan, "check")
        assert counts() == {"strict": (1, 2, 0), "wide": (1, 0, 0), "soft": (1, 0, 0), "ghost": (1, 0, 0)}

    def test_a_minute_and_a_day_by_the_clock_that_decided(self) -> None:
        minute = START // tallies.MINUTE
        for at in (START, START + 60 * SECOND, START + 61 * SECOND):
            with freeze(at):
                check("2/d", SUBJECT, name="a")
        with freeze(START + 120 * SECOND):
            (rule,) = activity().rules
        assert minute + 2 == (START + 120 * SECOND) // tallies.MINUTE
        assert [tuple(each) for each in rule.minutes[-3:]] == [(1, 0), (1, 1), (0, 0)]
        assert len(rule.minutes) == 60
        with freeze(START + 86_400 * SECOND):
            assert activity().rules == []

    def test_the_rate_is_that_of_the_last_sixty_seconds_about(self) -> None:
        begins = START // tallies.MINUTE * tallies.MINUTE
        with freeze(begins):
            for _ in range(8):
                check("100/d", SUBJECT, name="a")
        with freeze(begins + 75 * SECOND):
            check("100/d", SUBJECT, name="a")
            (rule,) = activity().rules
        assert rule.rate == 1 + 8 * 0.75

    def test_who_was_refused_most_comes_first(self) -> None:
        for address, refusals in (("192.0.2.1", 1), ("192.0.2.2", 3), ("192.0.2.3", 2)):
            for _ in range(refusals):
                check("0/m", f"ip:{address}", name="a")
        assert [(each.subject, each.count) for each in activity().refused] == [
            ("ip:192.0.2.2", 3),
            ("ip:192.0.2.3", 2),
            ("ip:192.0.2.1", 1),
        ]

    def test_slots_with_who_holds_them_the_full_ones_first(self) -> None:
        with slot("wide", 10), slot("export", 1, subject=SUBJECT):
            with pytest.raises(QuotaExceeded), slot("export", 1, subject=SUBJECT):
                pass
            found = activity().slots
        uses = [(use.name, use.subject, use.held, use.limit, use.waiting, use.is_full) for use in found]
        assert uses == [("export", SUBJECT, 1, 1, 0, True), ("wide", "global", 1, 10, 0, False)]

    def test_a_slot_is_forgotten_when_nobody_has_asked_for_it(self) -> None:
        with freeze(START), slot("export", 1, lease=5):
            assert len(activity().slots) == 1
        with freeze(START + tallies.REMEMBERED + SECOND):
            assert activity().slots == []

    def test_rules_past_the_bound_of_a_hash_are_counted_together(self) -> None:
        keys = TallyKeys("{!}d", "{!}m", "{!}r", "{!}s", "{!}n")
        many = {f"rule{number}:a": 1 for number in range(FIELDS + 7)}
        run = get_limiter().store.run
        assert run(AddTally(keys, 1, many, {}, {})) == 1
        assert run(AddTally(keys, 2, {"rule0:a": 1, "one-more:a": 1, "one-more:r": 4}, {}, {})) == 1
        from django_quota.operations.usage import ReadDays

        (flat,) = run(ReadDays(["{!}d"]))
        words = [word.decode() if isinstance(word, bytes) else word for word in flat]
        found = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        assert found["rule0:a"] == 2
        assert (found[f"{OTHER}:a"], found[f"{OTHER}:r"]) == (8, 4)
        assert len(found) <= FIELDS + 3

    def test_subjects_past_the_bound_go_the_least_refused_first(self) -> None:
        keys = TallyKeys("{!}d", "{!}m", "{!}r", "{!}s", "{!}n")
        many = {f"ip:{number}": 1 + (number == 5) for number in range(SUBJECTS * 3 // 2 + 1)}
        get_limiter().store.run(AddTally(keys, 1, {}, many, {}))
        from django_quota.operations.usage import ReadDays

        if isinstance(get_limiter().store, RedisStore):
            with store().commands() as client:
                assert client.zcard("{!}r") == SUBJECTS
                assert client.zscore("{!}r", "ip:5") == 2
        else:
            (flat,) = get_limiter().store.run(ReadDays(["{!}r"]))
            assert len(flat) == 2 * SUBJECTS
            assert "ip:5" in flat

    def test_a_wrong_time_zone_fails_no_check(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "TIME_ZONE": "Nowhere/Atall"}
        assert check("3/m", SUBJECT, name="a")

    def test_a_number_is_added_once(self) -> None:
        keys = TallyKeys("{!}d", "{!}m", "{!}r", "{!}s", "{!}n")
        add = AddTally(keys, 3, {"a:a": 1}, {}, {})
        earlier = AddTally(keys, 2, {"a:a": 1}, {}, {})
        run = get_limiter().store.run
        assert [run(add), run(add), run(earlier)] == [1, 0, 0]


class TestTheMemoryOfAProcess:
    """What is kept while nobody takes it is bounded."""

    def test_rules_and_subjects_of_a_page_are(self) -> None:
        page = Page.at(START)
        for number in range(MOST_RULES + 10):
            page.row(f"rule{number}")[0] += 1
        assert len(page.counts) == MOST_RULES + 1
        assert sum(row[0] for row in page.counts.values()) == MOST_RULES + 10
        other = Page.at(START)
        other.refused.update({f"ip:{number}": 1 for number in range(MOST_SUBJECTS + 10)})
        page.take_in(other)
        assert len(page.refused) == MOST_SUBJECTS

    def test_minutes_are_and_nothing_of_them_is_lost(self) -> None:
        mine = Tally()
        for minute in range(MOST_PAGES * 3):
            mine._turn(START + minute * tallies.MINUTE)
            mine._pages[-1].row("a")[0] += 1
        assert len(mine._pages) == MOST_PAGES
        assert sum(page.counts["a"][0] for page in mine._pages) == MOST_PAGES * 3


@pytest.mark.usefixtures("redis_cache")
class TestTheWay:
    def day(self, raw: redis.Redis) -> dict[str, int]:
        """Return what lies in Redis of all days."""
        found: dict[str, int] = {}
        client: Any = raw  # redis-py leaves its replies open
        for key in client.keys("quota:1:{!}:tally:20*-*"):
            for name, count in client.hgetall(key).items():
                found[name.decode()] = found.get(name.decode(), 0) + int(count)
        return found

    @pytest.mark.parametrize("way", ["sync", "async"])
    def test_it_goes_along_with_a_call_once_a_second_in_the_same_trip(self, raw: redis.Redis, way: str) -> None:
        def ask() -> None:
            if way == "sync":
                check("9/m", SUBJECT, name="a")
            else:
                asyncio.run(acheck("9/m", SUBJECT, name="a"))

        get_limiter()
        store()._errands._clock = iter([100.0, 100.5, 101.2]).__next__
        for script in (AddTally.script, Decide.script):
            raw.script_load(script.text)
        ask()  # due, but there is nothing yet
        ask()
        assert self.day(raw) == {}
        before = raw.info("stats")["total_reads_processed"]
        ask()
        if way == "sync":  # an event loop's connection is a new one, and says more
            assert raw.info("stats")["total_reads_processed"] - before == 2  # ours, and this question
        assert self.day(raw) == {"a:a": 2}

    def test_a_server_that_does_not_know_the_script_gets_its_text_next_time(self, raw: redis.Redis) -> None:
        get_limiter()
        store()._errands._clock = iter(range(100, 200)).__next__
        for _ in range(4):
            check("9/m", SUBJECT, name="a")
        assert self.day(raw)["a:a"] >= 1
        activity()
        assert self.day(raw) == {"a:a": 4}

    def test_an_answer_that_was_lost_counts_nothing_twice(
        self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        check("9/m", SUBJECT, name="a")
        run = RedisStore.run

        def lose(self: RedisStore, operation: Any, now: int | None = None) -> Any:
            run(self, operation, now)
            raise RedisConnectionError("lost")

        monkeypatch.setattr(RedisStore, "run", lose)
        with pytest.raises(RedisConnectionError):
            tally().flush()
        monkeypatch.setattr(RedisStore, "run", run)
        assert self.day(raw) == {"a:a": 1}
        check("9/m", SUBJECT, name="a")
        tally().flush()
        assert self.day(raw) == {"a:a": 2}
        assert tally().is_empty

    def test_a_refusal_of_it_fails_no_request_and_is_kept(
        self, raw: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        get_limiter()
        store()._errands._clock = iter(range(100, 200)).__next__
        number = f"quota:1:{{!}}:told:{tally()._token}"
        raw.rpush(number, "not a number")
        for _ in range(4):
            assert check("9/m", SUBJECT, name="a")
        assert caplog.text.count("are kept") == 1
        assert self.day(raw) == {}
        raw.delete(number)
        tally().flush()
        assert self.day(raw) == {"a:a": 4}

    def test_whatever_the_store_raises_the_thread_that_carries_it_goes_on(
        self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(*_: Any) -> Any:
            raise RuntimeError("no event loop")

        check("9/m", SUBJECT, name="a")
        with monkeypatch.context() as broken:
            broken.setattr(RedisStore, "run", fail)
            FLUSH(tally(), at_once=True)
        assert "are kept: no event loop" in caplog.text
        FLUSH(tally(), at_once=True)
        assert self.day(raw) == {"a:a": 1}

    def test_racing_threads_lose_and_double_nothing(self, raw: redis.Redis) -> None:
        get_limiter()
        store()._errands._clock = iter(range(100, 10**9)).__next__  # along with every call
        with ThreadPoolExecutor(8) as threads:
            allowed = sum(map(bool, threads.map(lambda _: check("500/m", SUBJECT, name="a"), range(8 * 250))))
        tally().flush()
        assert allowed == 500
        assert self.day(raw) == {"a:a": 500, "a:r": 1500}
        (refused,) = cast("Any", raw).keys("quota:1:{!}:refused:*")
        assert raw.zscore(refused, SUBJECT) == 1500

    def test_every_key_has_a_ttl(self, raw: redis.Redis) -> None:
        check("0/m", SUBJECT, name="a")
        with slot("export", 1):
            activity()
        client: Any = raw
        keys = [key for key in client.keys("*") if b"{!}" in key]
        assert len(keys) >= 5
        assert all(client.pttl(key) > 0 for key in keys)

    @pytest.mark.usefixtures("carrying")
    def test_what_an_idle_process_holds_goes_by_itself(self, raw: redis.Redis) -> None:
        check("9/m", SUBJECT, name="a")
        wait_until(lambda: self.day(raw) == {"a:a": 1})

    @forks
    @threads_ran
    def test_a_forked_process_tells_its_own_and_not_its_parents(self, raw: redis.Redis) -> None:
        check("90/m", SUBJECT, name="a")

        def work() -> None:
            assert tally().is_empty
            for _ in range(3):
                check("90/m", SUBJECT, name="a")
            tally().flush()

        with processes() as children:
            children += [started(work) for _ in range(4)]
            assert ended(children) == [0] * 4
        assert self.day(raw) == {"a:a": 12}
        tally().flush()
        assert self.day(raw) == {"a:a": 13}


ASKING = """
import os, sys, threading
import django
django.setup()
from django_quota import check
from django_quota.limiter import get_limiter

class Hung:
    def run(self, *_):
        threading.Event().wait()

tally = get_limiter().tally
hung = Hung()
if "hangs" in sys.argv:
    tally.carried_to(hung)
for _ in range(7):
    check("90/m", "ip:203.0.113.9", name="a")
if "killed" in sys.argv:
    while not tally.is_empty:
        threading.Event().wait(0.005)
    check("90/m", "ip:203.0.113.9", name="a")
    os.kill(os.getpid(), 9)
"""


class TestTheEndOfAProcess:
    def test_the_last_tally_is_told(self, redis_server: RedisServer, raw: redis.Redis, tmp_path: Path) -> None:
        assert self.run(redis_server, tmp_path) == 0
        assert self.told(raw) == 7

    @forks
    def test_one_that_is_killed_takes_no_more_along_than_what_was_not_told_yet(
        self, redis_server: RedisServer, raw: redis.Redis, tmp_path: Path
    ) -> None:
        assert self.run(redis_server, tmp_path, "killed") == -9
        assert self.told(raw) == 7

    def test_a_store_that_hangs_does_not_keep_it(
        self, redis_server: RedisServer, raw: redis.Redis, tmp_path: Path
    ) -> None:
        assert self.run(redis_server, tmp_path, "hangs") == 0
        assert self.told(raw) == 0

    def told(self, raw: redis.Redis) -> int:
        keys: Any = raw.keys("quota:1:{!}:tally:20*-*")
        return sum(int(count) for key in keys for count in cast("Any", raw).hvals(key))

    def run(self, server: RedisServer, folder: Path, *words: str) -> int:
        program = folder / "asking.py"
        program.write_text(ASKING)
        with managing(folder, caches(server)) as manage:
            done = subprocess.run(
                [sys.executable, "-W", "error", str(program), *words], env=manage.environment, check=False, timeout=60
            )
        return done.returncode
