"""Slots and locks: who gets in, what a refusal says, and what a block gives back."""

import asyncio
import math
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User

from django_quota import Decision, lock, slot
from django_quota.exceptions import QuotaExceeded, RuleError
from django_quota.metrics import observe, unobserve
from django_quota.testing import freeze
from django_quota.types import Slot
from tests.support.calls import both_ways
from tests.support.slots import tokens, within
from tests.support.steps import SECOND, START

both_stores = pytest.mark.usefixtures("either_store")
in_memory = pytest.mark.usefixtures("memory_store")


@both_stores
class TestWhoGetsIn:
    def test_as_many_callers_as_the_limit_hold_a_slot(self) -> None:
        export = slot("export", 2)

        leases = [export.acquire(), export.acquire()]

        assert set(tokens(export)) == {lease.token for lease in leases}

    def test_one_caller_more_than_the_limit_is_refused(self) -> None:
        export = slot("export", 2)
        leases = [export.acquire(), export.acquire()]

        with pytest.raises(QuotaExceeded):
            export.acquire()

        assert set(tokens(export)) == {lease.token for lease in leases}

    def test_a_slot_that_is_given_back_is_free_for_the_next_caller(self) -> None:
        first = lock("export").acquire()

        first.release()

        second = lock("export").acquire()
        assert tokens(lock("export")) == [second.token]

    def test_each_holder_has_a_name_that_nobody_guesses(self) -> None:
        export = slot("export", 2)

        names = {export.acquire().token for _ in range(2)}

        assert len(names) == 2
        assert all(re.fullmatch("[0-9a-f]{16}", name) for name in names)

    def test_a_second_release_changes_nothing(self) -> None:
        first = lock("export").acquire()
        first.release()
        second = lock("export").acquire()

        first.release()

        assert tokens(lock("export")) == [second.token]


@in_memory
class TestWhoShares:
    @pytest.mark.parametrize(
        "other",
        [lock("b"), lock("a", subject="user:1"), lock("a", subject="user:2")],
        ids=["name", "user", "other user"],
    )
    def test_a_slot_of_another_name_or_subject_is_another_slot(self, other: Slot) -> None:
        with lock("a"), other:
            assert len(lock("a").holders()) == len(other.holders()) == 1

    def test_a_user_is_a_subject(self) -> None:
        with lock("a", subject="user:1"), pytest.raises(QuotaExceeded, match="of user:1 is held"):
            lock("a", subject=User(pk=1)).acquire()

    def test_a_lock_is_a_slot_of_one(self) -> None:
        assert lock("a", lease=5, wait=2, subject="user:1", renew=True) == slot("a", 1, 5, 2, "user:1", renew=True)

    def test_slots_with_the_same_values_are_equal(self) -> None:
        assert len({slot("a", 2), slot("a", 2), slot("a", 3), slot("b", 2), slot("a", 2, lease=31)}) == 4

    def test_a_slot_that_is_held_equals_one_that_is_not(self) -> None:
        free, held = lock("a"), lock("a")

        with held:
            assert (held, repr(held)) == (free, repr(free))

    def test_a_slot_never_changes(self) -> None:
        with pytest.raises(FrozenInstanceError):
            slot("a", 2).limit = 3  # type: ignore[misc]


@in_memory
class TestBlocks:
    @both_ways
    def test_a_block_gives_its_slot_back(self, is_async: bool) -> None:
        def look() -> None:
            assert len(lock("export").holders()) == 1

        within(lock("export"), look, is_async)

        assert lock("export").holders() == []

    @both_ways
    def test_a_block_gives_its_slot_back_after_an_error(self, is_async: bool) -> None:
        with pytest.raises(ZeroDivisionError):
            within(lock("export"), lambda: 1 / 0, is_async)

        assert lock("export").holders() == []

    def test_slots_are_held_though_limiting_is_off(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}

        with lock("export"), pytest.raises(QuotaExceeded):
            lock("export").acquire()

    def test_one_slot_object_serves_nested_blocks_of_many_threads(self) -> None:
        shared = slot("export", 8)
        inside = threading.Barrier(4)

        def hold() -> set[str]:
            with shared as outer, shared as inner:
                inside.wait(60)
                mine = {outer.token, inner.token}
                assert mine <= set(tokens(shared))
                inside.wait(60)
            return mine

        with ThreadPoolExecutor(4) as threads:
            held = [future.result() for future in [threads.submit(hold) for _ in range(4)]]

        assert len(set.union(*held)) == 8
        assert shared.holders() == []

    def test_a_block_of_a_task_releases_the_lease_of_that_task(self) -> None:
        async def hold() -> None:
            shared = slot("export", 2)
            mine = await shared.__aenter__()
            others = await asyncio.create_task(shared.__aenter__())
            await shared.__aexit__(None, None, None)
            assert tokens(shared) == [others.token] != [mine.token]

        asyncio.run(hold())

    def test_a_block_may_end_in_another_task_than_it_began_in(self) -> None:
        async def hold() -> None:
            shared = slot("export", 2)
            await asyncio.create_task(shared.__aenter__())
            await asyncio.create_task(shared.__aexit__(None, None, None))
            assert tokens(shared) == []

        asyncio.run(hold())

    def test_a_block_may_end_in_another_thread_than_it_began_in(self) -> None:
        shared = slot("export", 2)
        shared.__enter__()

        with ThreadPoolExecutor(1) as threads:
            threads.submit(shared.__exit__, None, None, None).result(60)

        assert tokens(shared) == []

    def test_a_block_within_another_releases_its_own_lease(self) -> None:
        shared = slot("export", 2)

        with shared as outer:
            with shared:
                pass

            assert tokens(shared) == [outer.token]

    def test_a_block_that_ends_elsewhere_releases_the_newest_lease(self) -> None:
        shared = slot("export", 2)
        older, newer = shared.__enter__(), shared.__enter__()

        with ThreadPoolExecutor(1) as threads:
            threads.submit(shared.__exit__, None, None, None).result(60)

        assert tokens(shared) == [older.token] != [newer.token]

    def test_a_block_that_ends_more_often_than_it_began_is_an_error(self) -> None:
        shared = slot("export", 2)
        with shared:
            pass

        with pytest.raises(RuntimeError) as caught:
            shared.__exit__(None, None, None)

        assert str(caught.value) == "Slot 'export' was exited more often than it was entered."


@in_memory
class TestDecisions:
    @pytest.fixture
    def export(self) -> Slot:
        """A slot of two: one lease since the start, the other for five seconds less."""
        export = slot("export", 2, subject="user:7")
        for seconds in (0, 5):
            with freeze(START + seconds * SECOND):
                export.acquire()
        return export

    @pytest.mark.parametrize("number", [1, 2])
    def test_a_decision_shows_how_many_slots_are_left(self, number: int) -> None:
        export = slot("export", 2)

        decision = [export.acquire() for _ in range(number)][-1].decision

        assert (decision.allowed, decision.limit, decision.remaining) == (True, 2, 2 - number)

    def test_a_decision_shows_when_the_next_and_the_last_lease_end(self) -> None:
        export = slot("export", 2)
        with freeze(START):
            export.acquire()

        with freeze(START + 5 * SECOND):
            decision = slot("export", 2, lease=2).acquire().decision

        (outcome,) = decision.outcomes
        assert (decision.reset_after, outcome.retry_after, outcome.next_after) == (25.0, 0.0, 2.0)

    def test_a_decision_explains_itself(self) -> None:
        export = slot("export", 2, subject="user:7")

        decision = [export.acquire(), export.acquire()][1].decision

        assert decision.explain() == "Allowed by rule 'export' for user:7; 0 of 2 are left."

    @pytest.fixture
    def heard(self) -> Iterator[list[Decision]]:
        heard: list[Decision] = []
        observe(heard.append)
        yield heard
        unobserve(heard.append)

    def test_an_observer_hears_of_each_decision(self, heard: list[Decision]) -> None:
        lease = lock("export").acquire()
        with pytest.raises(QuotaExceeded) as refused:
            lock("export").acquire()

        assert heard == [lease.decision, refused.value.decision]

    def test_a_refusal_says_when_the_next_lease_ends(self, export: Slot) -> None:
        with freeze(START + 7 * SECOND), pytest.raises(QuotaExceeded) as refused:
            export.acquire()

        decision = refused.value.decision
        assert (decision.allowed, decision.limit, decision.remaining, decision.retry_after) == (False, 2, 0, 23.0)
        assert str(refused.value) == "All 2 slots 'export' of user:7 are held; try again in 23 seconds."

    def test_a_refusal_of_a_lock_says_so(self) -> None:
        with freeze(START), lock("export"), pytest.raises(QuotaExceeded) as refused:
            lock("export").acquire()

        assert str(refused.value) == "Lock 'export' is held; try again in 30 seconds."

    def test_under_a_lower_limit_more_leases_have_to_end(self, export: Slot) -> None:
        with freeze(START + 7 * SECOND), pytest.raises(QuotaExceeded) as refused:
            lock("export", subject="user:7").acquire()

        assert refused.value.decision.retry_after == 28.0

    def test_a_refusal_can_be_pickled(self) -> None:
        with lock("export"), pytest.raises(QuotaExceeded) as refused:
            lock("export").acquire()

        assert pickle.loads(pickle.dumps(refused.value)).decision == refused.value.decision


@both_stores
class TestRecentHolders:
    """A refusal estimates when the next slot comes free, from how long slots were recently held."""

    @staticmethod
    def held_for(*seconds: float) -> float:
        """Hold a lock for some times, one after the other; return the wait of a refusal after them."""
        now = START
        for each in seconds:
            with freeze(now):
                lease = lock("export").acquire()
            now += int(each * SECOND)
            with freeze(now):
                lease.release()
        with freeze(now), lock("export"), pytest.raises(QuotaExceeded) as refused:
            lock("export").acquire()
        return float(refused.value.decision.retry_after or 0)

    def test_nobody_has_given_a_slot_back_yet(self) -> None:
        assert self.held_for() == 30.0

    def test_the_first_holder_sets_the_estimate(self) -> None:
        assert self.held_for(8) == 8.0

    def test_each_later_holder_changes_it_by_an_eighth(self) -> None:
        assert self.held_for(8, 16) == 9.0

    def test_it_is_rounded_down_to_microseconds(self) -> None:
        assert self.held_for(8, 8 + 1.5 / SECOND) == 8.0

    def test_a_slot_that_was_never_full_has_no_estimate(self) -> None:
        export = slot("export", 2)
        with freeze(START):
            lease = export.acquire()
        with freeze(START + 8 * SECOND):
            lease.release()
            leases = [export.acquire(), export.acquire()]
            with pytest.raises(QuotaExceeded) as refused:
                export.acquire()

        assert (len(leases), refused.value.decision.retry_after) == (2, 30.0)

    @pytest.mark.parametrize("held", [3, 1], ids=["of three microseconds", "of one, so of none"])
    def test_of_two_holders_one_leaves_in_half_the_time_rounded_down(self, held: int) -> None:
        export = slot("export", 2)
        with freeze(START):
            leases = [export.acquire(), export.acquire()]
        with freeze(START + held):
            leases[0].release()
            export.acquire()
            with pytest.raises(QuotaExceeded) as refused:
                export.acquire()

        assert refused.value.decision.retry_after == 1 / SECOND

    def test_a_holder_of_no_time_counts_as_one_microsecond(self) -> None:
        assert self.held_for(0) == 1 / SECOND


def test_a_slot_has_the_values_of_its_arguments() -> None:
    made = slot("export", 3, lease="1m", wait=2.5, subject="user:7", renew=True)

    assert (made.name, made.limit, made.subject) == ("export", 3, "user:7")
    assert (made.lease, made.wait, made.renew) == (60.0, 2.5, True)


def test_a_slot_is_for_everybody_for_thirty_seconds_unless_told_otherwise() -> None:
    made = slot("export", 3)

    assert (made.subject, made.lease, made.wait, made.renew) == ("global", 30.0, 0.0, False)


LONG = 366 * 86_400
OF_LEASE = "is not a duration above 0 and up to 366 days. Use, for example, 30 (seconds), '10m' or timedelta(days=1)."
OF_WAIT = "is not a duration from 0 to 366 days. Use, for example, 30 (seconds), '10m' or timedelta(days=1)."
OF_LIMIT = "of slot 'export' is not a whole number from 1 to 1,000,000. Use, for example, 3."

WRONG: list[tuple[str, list[Any], Callable[[Any], object]]] = [
    (
        "{0!r} is not the name of a slot. Use, for example, 'export'.",
        ["", "  ", None, "\ud800"],
        lambda name: slot(name, 1),
    ),
    (f"limit={{0!r}} {OF_LIMIT}", [0, 1.5, True, "10", 10**6 + 1], lambda n: slot("export", n)),
    (f"lease={{0!r}} {OF_LEASE}", [0, None, "5", True, math.nan, LONG + 1], lambda each: slot("export", 1, each)),
    (f"lease={{0!r}} {OF_LEASE}", [-1, 0, math.inf], lambda lease: lock("export").acquire().renew(lease)),
    (f"wait={{0!r}} {OF_WAIT}", [-1, "", math.nan, LONG + 1], lambda wait: lock("export", wait=wait)),
    (f"timeout={{0!r}} {OF_WAIT}", [-1, "", math.inf], lambda timeout: lock("export").acquire(timeout)),
    ("renew={0!r} of slot 'export' is not True or False.", [1], lambda renew: lock("export", renew=renew)),
    (
        "{0!r} is not a subject of a slot. Use a string such as 'user:42', or a user.",
        [7],
        lambda subject: lock("export", subject=subject),
    ),
    (
        "An empty string is not a subject. Use, for example, 'ip:203.0.113.9', 'user:42' or 'global'.",
        [""],
        lambda subject: lock("export", subject=subject),
    ),
]


@in_memory
@pytest.mark.parametrize(
    ("problem", "value", "use"),
    [
        pytest.param(problem.format(value), value, use, id=f"{problem[:6]} {value!a}")
        for problem, values, use in WRONG
        for value in values
    ],
)
def test_a_wrong_argument_is_named(problem: str, value: object, use: Callable[[Any], object]) -> None:
    with pytest.raises(RuleError) as caught:
        use(value)

    assert str(caught.value) == problem


@pytest.mark.parametrize(("lease", "wait"), [(1 / SECOND, 0), (LONG, LONG)], ids=["the shortest", "the longest"])
def test_a_lease_lasts_from_a_microsecond_to_a_year_and_a_wait_from_0(lease: float, wait: float) -> None:
    made = slot("export", 1, lease, wait)

    assert (made.lease, made.wait) == (lease, wait)


@pytest.mark.parametrize(("name", "limit"), [("a", 1), ("a", 1_000_000)])
def test_a_limit_is_from_one_to_a_million(name: str, limit: int) -> None:
    assert slot(name, limit).limit == limit


@pytest.mark.usefixtures("redis_cache")
class TestOnRedis:
    KEY, RECENT = "quota:1:{user:7}:l:export", "quota:1:{user:7}:lately:export"

    @pytest.fixture
    def export(self, raw: redis.Redis) -> Slot:
        """A slot of two, on an empty server that knows the scripts."""
        export = slot("export", 2, lease=20, wait=60, subject="user:7")
        export.acquire().release()
        raw.flushdb()
        raw.config_resetstat()
        return export

    def test_a_slot_is_one_command_to_take_it_or_give_it_back(self, export: Slot, raw: redis.Redis) -> None:
        with export:
            pass

        assert raw.info("commandstats")["cmdstat_evalsha"]["calls"] == 2

    def test_its_leases_expire_with_the_last_one(self, export: Slot, raw: redis.Redis) -> None:
        with export:
            assert 0 < int(raw.pttl(self.KEY)) <= 20_001

    def test_a_lease_that_is_renewed_for_longer_expires_later(self, export: Slot, raw: redis.Redis) -> None:
        export.acquire().renew(300)

        assert int(raw.pttl(self.KEY)) > 290_000

    def test_a_lease_that_has_ended_is_gone_when_the_next_begins(self, export: Slot, raw: redis.Redis) -> None:
        with freeze(START):
            export.acquire()

        with freeze(START + 20 * SECOND):
            lease = export.acquire()

        assert raw.zrange(self.KEY, 0, -1) == [lease.token.encode()]

    def test_an_unused_slot_leaves_no_key(self, export: Slot, raw: redis.Redis) -> None:
        with export:
            assert raw.keys() == [self.KEY.encode()]

        assert raw.keys() == []

    def test_how_long_a_full_slot_was_held_is_known_for_as_long_as_a_lease(
        self, export: Slot, raw: redis.Redis
    ) -> None:
        with export, export:
            pass

        assert raw.keys() == [self.RECENT.encode()]
        assert 0 < int(raw.pttl(self.RECENT)) <= 20_001
