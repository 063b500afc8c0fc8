"""The memory store: one lock, and expired keys that are dropped on the way."""

import logging
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_quota import Rule, check, check_all, peek
from django_quota.core.clock import DAY, machine_now
from django_quota.core.errors import StoreFull
from django_quota.features.counters.operations import Get, Pop, Set
from django_quota.stores.memory import LINGERS, MemoryStore
from django_quota.testing import freeze
from tests.support.counts import keys_of
from tests.support.processes import forks, in_child
from tests.support.steps import SECOND, START, Clock, answers, decided, hits_of
from tests.support.stores import current_store

pytestmark = pytest.mark.usefixtures("memory_store")

RULE = Rule.make("rule", "50/m")


def hit(store: Any, subject: str = "a", now: int = START) -> bool:
    return answers(decided(store, hits_of(RULE, subject=subject), "check", now))[0].allowed


@pytest.mark.thorough("slow")
def test_racing_threads_are_admitted_exactly_up_to_the_limit_for_all_subjects_or_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = [(RULE, f"a:{number}") for number in range(9)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(16) as threads:
            assert sum(threads.map(lambda _: check("50/m", "a").allowed, range(400))) == 50
            plans = threads.map(lambda n: check_all(one[::-1] if n % 2 else one).allowed, range(400))
            assert sum(plans) == 50
    finally:
        sys.setswitchinterval(before)
    assert [peek(*asked).remaining for asked in one] == [0] * 9


def test_a_plan_that_finds_no_room_changes_nothing() -> None:
    store = MemoryStore(max_keys=10)
    for number in range(7):
        hit(store, f"a:{number}")
    before = dict(store._keys)
    with pytest.raises(StoreFull):
        decided(
            store, [each for subject in ("a:0", "b", "c") for each in hits_of(RULE, subject=subject)], "check", START
        )
    assert store._keys == before


class TestTheLock:
    """Another thread may use the store at any moment, so all that touches its keys has the lock."""

    @pytest.fixture
    def store(self) -> MemoryStore:
        """A store with a key, which fails whoever touches its keys without the lock."""
        store = MemoryStore()

        class Watched(OrderedDict[str, Any]):
            def __iter__(self) -> Iterator[str]:
                assert store._lock.locked()
                return super().__iter__()

            def clear(self) -> None:
                assert store._lock.locked()
                super().clear()

        hit(store)
        store._keys = Watched(store._keys)
        return store

    def test_is_held_by_an_operation(self, store: MemoryStore) -> None:
        assert hit(store, "b")

    def test_is_held_while_the_names_are_read(self, store: MemoryStore) -> None:
        assert len(list(store.names("*"))) == 1

    def test_is_free_while_the_names_are_used(self, store: MemoryStore) -> None:
        for _ in store.names("*"):
            assert hit(store, "b")

    def test_is_held_while_the_keys_are_dropped(self, store: MemoryStore) -> None:
        store.clear_memory()

        assert len(store) == 0

    def test_is_free_after_an_operation_that_failed(self, store: MemoryStore) -> None:
        with pytest.raises(AttributeError):
            store.run(None)  # type: ignore[arg-type]  # a bug
        assert hit(store, "b")


@pytest.mark.parametrize(
    ("pattern", "subjects"),
    [("*", "ab"), ("*{a}*", "a"), ("quota:1:{[a-b]}*", "ab"), ("QUOTA:*", ""), ("quota:1:{a}", "")],
)
def test_names_are_those_that_match_a_pattern(pattern: str, subjects: str) -> None:
    store = MemoryStore()
    for subject in "ab":
        hit(store, subject)

    assert [name.partition("{")[2][0] for name in store.names(pattern)] == list(subjects)


class TestAStoreOfTenKeys:
    """Of which one rule may hold eight."""

    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore(max_keys=10)

    def put(self, store: MemoryStore, counter: str, *subjects: int, now: int = START) -> list[bool]:
        """Count for some subjects; say which found room."""
        found = []
        for subject in subjects:
            key = keys_of(f"quota:1:{{user:{subject}}}:c:{counter}")
            (reply,) = store.try_all([Set(key, 1, SECOND)], now)
            found.append(not isinstance(reply, StoreFull))
        return found

    def test_holds_eight_keys_of_a_counter(self, store: MemoryStore) -> None:
        assert self.put(store, "clicks", *range(9)) == [True] * 8 + [False]

    def test_holds_ten_keys_of_several_counters(self, store: MemoryStore) -> None:
        self.put(store, "clicks", *range(8))

        assert self.put(store, "sales", *range(3)) == [True, True, False]

    def test_has_no_room_for_two_rules_where_one_key_is_free(self, store: MemoryStore) -> None:
        self.put(store, "clicks", *range(8))
        self.put(store, "sales", 0)
        asked = hits_of(Rule.make("one", "50/m"), Rule.make("two", "50/m"))

        with pytest.raises(StoreFull):
            decided(store, asked, "check", START)

    def test_writes_to_a_key_that_it_has(self, store: MemoryStore) -> None:
        self.put(store, "clicks", *range(9))

        assert self.put(store, "clicks", 7) == [True]

    def test_has_room_for_a_counter_of_which_a_key_has_expired(self, store: MemoryStore) -> None:
        self.put(store, "clicks", *range(8))
        after = START + SECOND + LINGERS

        assert self.put(store, "clicks", 8, 9, 10, now=after) == [True] * 3

    def test_counts_the_days_of_subjects_for_their_rule(self, store: MemoryStore) -> None:
        def has_room(subject: int) -> bool:
            asked = hits_of(Rule.make("rule", "50/m", daily=True), subject=f"user:{subject}")
            try:
                return bool(decided(store, asked, "check", START))
            except StoreFull:
                return False

        found = [has_room(subject) for subject in range(6)]

        assert len(store) == 8
        assert found == [True] * 4 + [False] * 2

    def test_has_room_for_a_rule_again_though_another_has_written_to_its_keys(self, store: MemoryStore) -> None:
        """The days of a subject count for the rule that came first, also when they end."""
        rules = [Rule.make(name, "50/m", daily=True) for name in ("first", "second")]

        found = [
            answers(decided(store, hits_of(rule, now=moment), "check", moment))[0].allowed
            for moment in range(START, START + 900 * DAY, 100 * DAY)
            for rule in rules
        ]

        assert found == [True] * 18

    def test_forgets_a_counter_of_which_it_has_no_key(self, store: MemoryStore) -> None:
        """Else names that come once would fill the memory."""
        for number in range(20):
            self.put(store, f"clicks-{number}", 1)
            store.run(Pop(keys_of(f"quota:1:{{user:1}}:c:clicks-{number}")), START)

        assert len(store._held) == 0

    def test_has_room_for_everybody_after_it_forgot_all(self, store: MemoryStore) -> None:
        self.put(store, "clicks", *range(9))
        store.clear_memory()

        assert self.put(store, "clicks", *range(8)) == [True] * 8

    @pytest.fixture
    def logged(self, caplog: pytest.LogCaptureFixture) -> Callable[[], int]:
        """Return how often the log said that the store is full."""
        return lambda: sum(each.levelno == logging.ERROR for each in caplog.records)

    def test_logs_once_that_it_is_full(self, store: MemoryStore, logged: Callable[[], int]) -> None:
        self.put(store, "clicks", *range(12))

        assert logged() == 1

    @pytest.mark.parametrize(("held", "times"), [(7, 1), (6, 2)], ids=["at seven keys", "below seven keys"])
    def test_logs_it_again_after_it_had_much_room(
        self, held: int, times: int, store: MemoryStore, logged: Callable[[], int]
    ) -> None:
        self.put(store, "clicks", *range(9))
        for subject in range(held, 8):
            store.run(Pop(keys_of(f"quota:1:{{user:{subject}}}:c:clicks")), START)
        assert len(store) == held

        self.put(store, "clicks", *range(10, 20))

        assert logged() == times

    def test_logs_it_again_after_it_forgot_all(self, store: MemoryStore, logged: Callable[[], int]) -> None:
        for _ in range(2):
            self.put(store, "clicks", *range(9))
            store.clear_memory()

        assert logged() == 2

    def test_says_in_the_log_how_full_it_is(self, store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
        self.put(store, "clicks", *range(9))

        (message,) = caplog.messages
        assert message == (
            'This process counts with 8 of the 10 keys that QUOTA["MEMORY_KEYS"] allows, and '
            "'clicks' may have no more keys in the memory of this process. New subjects are refused there."
        )


@pytest.mark.parametrize("later", [SECOND, -SECOND], ids=["now", "not yet"])
def test_an_operation_looks_at_two_keys(later: int) -> None:
    """So none takes long, however many have expired at once."""
    store = MemoryStore()
    for number in range(9):
        store.run(Set(keys_of(f"quota:1:{{user:{number}}}:c:a"), 1, SECOND), START)
    before = list(store.names("*"))

    store.run(Get(keys_of("quota:1:{b}:c:a")), START + SECOND + LINGERS + later)

    after = before[2:] if later > 0 else before[2:] + before[:2]
    assert list(store.names("*")) == after


def test_one_counter_may_have_eighty_thousand_keys_by_default() -> None:
    store = MemoryStore()
    store._held["a"] = 80_000

    (reply,) = store.try_all([Set(keys_of("quota:1:{user:1}:c:a"), 1, SECOND)], START)
    store._held["a"] -= 1
    (again,) = store.try_all([Set(keys_of("quota:1:{user:1}:c:a"), 1, SECOND)], START)

    assert (type(reply), again) == (StoreFull, [1])


def test_the_memory_of_a_process_has_no_server_that_could_fail() -> None:
    store = MemoryStore()

    found = (store.is_shared, store.database, store.redis, store.all_nodes_healthy, store.is_refusing())
    assert found == (False, None, None, True, False)


@pytest.mark.parametrize(("later", "is_kept"), [(1_999_999, True), (2_000_000, False)], ids=["not yet", "then"])
def test_an_expired_key_stays_for_as_long_as_a_clock_may_step_back(later: int, is_kept: bool) -> None:
    store = MemoryStore()
    store.run(Set(keys_of("quota:1:{a}:c:clicks"), 1, SECOND), START - SECOND)

    store.run(Get(keys_of("quota:1:{b}:c:clicks")), START + later)

    assert len(store) == is_kept


def test_expired_keys_are_dropped_however_long_the_others_stay() -> None:
    store = MemoryStore()
    for number in range(100):
        hit(store, f"stays:{number}", START + 3_600 * SECOND)
        hit(store, f"goes:{number}")
    for _ in range(100):
        hit(store, "stays:0", START + 3_600 * SECOND)
    assert len(store) == 100
    assert not any(hit(store, "stays:0", START + 3_659 * SECOND) for _ in range(100))


@pytest.mark.parametrize("years", [-9, 9], ids=["past", "future"])
def test_a_test_that_sets_the_time_for_a_while_loses_no_count(years: int) -> None:
    """Meanwhile a thread in the background counts in the present, and other tests do before and after it."""
    moment = machine_now() + years * 365 * DAY
    check("2/m", "present", 2)
    with freeze(moment):
        check("2/m", "other time", 2)
        for number in range(9):
            check("2/m", f"another:{number}")
    for number in range(9):
        check("2/m", f"one more:{number}")
    with freeze(moment):
        assert not check("2/m", "other time")
    assert not check("2/m", "present")


class TestAClockThatSteps:
    """The clock of the machine, by which the store counts where no test sets the time."""

    @pytest.fixture(params=[-3_600, 3_600], ids=["back", "forth and back"])
    def pass_time(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        """Two hits are counted before the clock steps, and then back; yields how to let time pass."""
        lasting, now = Clock(), START
        monkeypatch.setattr("django_quota.stores.memory.elapsed", lasting)
        monkeypatch.setattr("django_quota.stores.memory.machine_now", lambda: now)

        def pass_time(seconds: int, stepped: int = 0) -> None:
            nonlocal now
            lasting.now += seconds
            now += (seconds + stepped) * SECOND

        check("2/m", "a", 2)
        pass_time(1, request.param)
        self.ask_often()
        pass_time(1, -request.param)
        return pass_time

    @pytest.mark.parametrize(("later", "is_kept"), [(1, True), (2, False)], ids=["not yet", "then"])
    def test_does_not_shorten_how_long_an_expired_key_stays(
        self, later: int, is_kept: bool, pass_time: Callable[..., None]
    ) -> None:
        store, key = MemoryStore(), keys_of("quota:1:{a}:c:clicks")
        store.run(Set(key, 1, SECOND))
        pass_time(1 + later, 3_600)

        store.run(Get(keys_of("quota:1:{b}:c:clicks")))

        assert len(store) == is_kept

    def test_keeps_a_key_that_has_not_expired_by_it(self, pass_time: Callable[..., None]) -> None:
        store = MemoryStore()
        store.run(Set(keys_of("quota:1:{a}:c:clicks"), 1, SECOND))
        pass_time(10, -3_600)

        store.run(Get(keys_of("quota:1:{b}:c:clicks")))

        assert len(store) == 1

    def ask_often(self) -> None:
        for number in range(20):
            check("2/m", f"another:{number}")

    def test_loses_no_count(self, pass_time: Callable[[int], None]) -> None:
        assert not check("2/m", "a")

    def test_lets_keys_end_all_the_same(self, pass_time: Callable[[int], None]) -> None:
        pass_time(3_700)
        self.ask_often()

        assert not list(current_store().names("*{a}*"))


@forks
def test_a_lock_held_during_a_fork_does_not_block_the_child() -> None:
    store = MemoryStore()
    hit(store)
    with store._lock:
        assert in_child(lambda: hit(store)) == 1


class PutEach(Get):
    """Puts a value under each of its keys, as a decision of several rules does."""

    def run(self, states: Any, now: int) -> Any:
        for key in self.keys:
            states.put(key, 1, now + DAY)


def test_each_key_of_several_rules_counts_for_its_own() -> None:
    store = MemoryStore(20)

    for number in range(10):
        store.run(PutEach([f"quota:1:{{user:{number}}}:r:{rule}:60" for rule in ("one", "two")]), START)

    assert len(store) == 20
