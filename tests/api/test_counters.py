"""Counters as users call them, and `once`: every verb, sync and async; their bounds, keys and errors."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from itertools import count
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest
import redis
from django.contrib.auth.models import AnonymousUser, User
from django.test import RequestFactory
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from django_quota import aonce, counter, once
from django_quota.engine.state_copies import ReadStates
from django_quota.exceptions import ConfigurationError, CounterError, RuleError, StoreUnavailable
from django_quota.features.counters import calls
from django_quota.features.counters.calls import counters_of
from django_quota.features.counters.operations import CounterOperation
from django_quota.testing import freeze
from django_quota.types import Counter
from tests.support.calls import operations_of
from tests.support.inputs import inputs
from tests.support.outages import no_answer
from tests.support.steps import SECOND, START
from tests.support.stores import current_store

REDIS = pytest.mark.usefixtures("redis_cache")
MEMORY = pytest.mark.usefixtures("memory_store")
DAY = 86_400 * SECOND
TODAY = datetime.fromtimestamp(START // SECOND, UTC).date()
VIEWS = counter("views")
COINS = counter("coins", group="shop")
"""A transfer on a Cluster needs a group."""
MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1
BASE = "quota:1:{user:1}"

NUMBERS = count()  # of subjects that no other test has

Do = Callable[..., Any]


def ado(of: Counter, verb: str) -> Callable[..., Any]:
    return lambda *arguments: asyncio.run(getattr(of, f"a{verb}")(*arguments))


@pytest.fixture(params=["sync", "async"])
def do(request: pytest.FixtureRequest) -> Do:
    """Call a verb of a counter: `do(counter, "incr", "user:1", 5)`."""
    chosen = getattr if request.param == "sync" else ado
    return lambda of, verb, *arguments: chosen(of, verb)(*arguments)


def row(identifier: str, *values: Any) -> Any:
    return pytest.param(*values, id=identifier)


class Pack(int, Enum):
    SMALL = 5


@pytest.mark.usefixtures("either_store")
class TestVerbs:
    """`start`: what the counter has before, None for a new one. `left`: what it has after."""

    @pytest.fixture(autouse=True)
    def the_day_stands(self, either_store: None) -> Iterator[None]:
        with freeze(START):
            yield

    @pytest.mark.parametrize(
        ("start", "verb", "arguments", "returned", "left"),
        [
            row("get of a new counter", None, "get", (), 0, 0),
            row("get of a counter below 0", -5, "get", (), -5, -5),
            row("pop of a new counter", None, "pop", (), 0, 0),
            row("pop returns all", 7, "pop", (), 7, 0),
            row("incr of a new counter", None, "incr", (), 1, 1),
            row("incr by more", 1, "incr", (5,), 6, 6),
            row("incr below 0", 6, "incr", (-8,), -2, -2),
            row("incr above 0 again", -2, "incr", (3,), 1, 1),
            row("take of a new counter", None, "take", (), False, 0),
            row("take of one", 5, "take", (), True, 4),
            row("take of more", 5, "take", (3,), True, 2),
            row("take of more than there is", 2, "take", (4,), False, 2),
            row("take of all", 1, "take", (1,), True, 0),
            row("take of none left", 0, "take", (1,), False, 0),
            row("take below 0", -5, "take", (), False, -5),
            row("set returns nothing", 5, "set", (-7,), None, -7),
            row("unique_count of a new counter", None, "unique_count", (), 0, 0),
            # As doubles these numbers would be one.
            row("incr to the largest number but one", None, "incr", (MAX_INT64 - 1,), MAX_INT64 - 1, MAX_INT64 - 1),
            row("incr to the largest number", MAX_INT64 - 1, "incr", (), MAX_INT64, MAX_INT64),
            row("take of one more than there is", MAX_INT64 - 1, "take", (MAX_INT64,), False, MAX_INT64 - 1),
            row("take of all but two", MAX_INT64, "take", (MAX_INT64 - 2,), True, 2),
            row("pop of a very small number", MIN_INT64 + 1, "pop", (), MIN_INT64 + 1, 0),
            row("get of a number that no double has", 2**53 + 1, "get", (), 2**53 + 1, 2**53 + 1),
        ],
    )
    def test_a_verb_returns(
        self, start: int | None, verb: str, arguments: tuple[Any, ...], returned: Any, left: int, do: Do
    ) -> None:
        if start is not None:
            COINS.set("a:1", start)

        assert do(COINS, verb, "a:1", *arguments) == returned
        assert COINS.get("a:1") == left

    @pytest.mark.parametrize(
        ("verb", "arguments", "counted"),
        [
            row("incr counts", "incr", (5,), 7),
            row("incr by less than 0 counts back", "incr", (-8,), -6),
            row("pop leaves it", "pop", (), 2),
            row("set leaves it", "set", (9,), 2),
            row("take leaves it", "take", (1,), 2),
            row("transfer leaves it", "transfer", ("a:2", 1), 2),
        ],
    )
    def test_the_count_of_the_day_is_that_of_incr(
        self, verb: str, arguments: tuple[Any, ...], counted: int, do: Do
    ) -> None:
        COINS.incr("a:1", 2)

        do(COINS, verb, "a:1", *arguments)

        assert do(COINS, "get", "a:1", TODAY) == counted

    def test_a_day_without_a_count_has_0(self, do: Do) -> None:
        assert (do(COINS, "get", "a:1", TODAY), do(COINS, "unique_count", "a:1", TODAY)) == (0, 0)

    def test_a_day_counts_exactly(self, do: Do) -> None:
        COINS.incr("a:1", MAX_INT64 - 1)
        COINS.incr("a:1")

        assert do(COINS, "get", "a:1", TODAY) == MAX_INT64

    @pytest.mark.parametrize(
        ("start", "amount", "is_moved", "left"),
        [
            row("a part", 10, 4, True, (6, 4)),
            row("all", 6, 6, True, (0, 6)),
            row("more than there is", 6, 7, False, (6, 0)),
            row("of nothing", 0, 1, False, (0, 0)),
            row("nothing", 0, 0, True, (0, 0)),
            row("nothing of less than 0", -5, 0, False, (-5, 0)),
        ],
    )
    def test_a_transfer_moves_what_there_is(
        self, start: int, amount: int, is_moved: bool, left: tuple[int, int], do: Do
    ) -> None:
        COINS.set("a:1", start)

        assert do(COINS, "transfer", "a:1", "a:2", amount) is is_moved
        assert (COINS.get("a:1"), COINS.get("a:2")) == left

    @pytest.mark.parametrize("verb", ["incr", "set", "take"])
    def test_a_member_of_an_enum_is_its_number(self, verb: str, do: Do) -> None:
        COINS.set("a:1", 7)

        do(COINS, verb, "a:1", Pack.SMALL)

        assert COINS.get("a:1") == {"incr": 12, "set": 5, "take": 2}[verb]

    def test_a_transfer_fills_what_is_below_0(self, do: Do) -> None:
        COINS.set("a:1", 10)
        COINS.set("a:2", -5)

        assert do(COINS, "transfer", "a:1", "a:2", 3)
        assert (COINS.get("a:1"), COINS.get("a:2")) == (7, -2)

    def test_a_transfer_to_the_same_subject_changes_nothing(self, do: Do) -> None:
        COINS.set("a:1", 10)

        assert do(COINS, "transfer", "a:1", "a:1", 10)
        assert COINS.get("a:1") == 10

    @pytest.mark.parametrize(
        ("start", "verb", "arguments", "subject"),
        [
            row("incr", MAX_INT64, "incr", (), "a:1"),
            row("incr by less than 0", -1, "incr", (MIN_INT64,), "a:1"),
            row("transfer", 5, "transfer", ("a:full", 5), "a:full"),
        ],
    )
    def test_a_total_beyond_64_bits_is_an_error_that_changes_nothing(
        self, start: int, verb: str, arguments: tuple[Any, ...], subject: str, do: Do
    ) -> None:
        COINS.set("a:1", start)
        COINS.set("a:full", MAX_INT64 - 4)

        with pytest.raises(CounterError) as caught:
            do(COINS, verb, "a:1", *arguments)

        assert str(caught.value) == (
            f"Counter 'coins' of {subject}: the change would take "
            f"quota:1:{{group!shop}}:c:coins:{quote(subject)} beyond 64 bits"
        )
        assert (COINS.get("a:1"), COINS.get("a:full"), COINS.get("a:1", TODAY)) == (start, MAX_INT64 - 4, 0)

    def test_a_day_beyond_64_bits_is_an_error_that_changes_nothing(self, do: Do) -> None:
        COINS.incr("a:1", MAX_INT64)
        COINS.pop("a:1")

        with pytest.raises(CounterError) as caught:
            do(COINS, "incr", "a:1")

        assert str(caught.value) == (
            "Counter 'coins' of a:1: the change would take quota:1:{group!shop}:c:coins:a%3A1:2025-11 beyond 64 bits"
        )
        assert (COINS.get("a:1"), COINS.get("a:1", TODAY)) == (0, MAX_INT64)


@MEMORY
class TestDays:
    @pytest.mark.parametrize(
        "other",
        [
            row("another name", counter("coins")),
            row("another group", counter("coins", group="till")),
            row("another name of the group", counter("views", group="shop")),
            row("a name with a colon", counter("views:2")),
        ],
    )
    @pytest.mark.parametrize("subject", ["user:1", "coins:user:1"])
    def test_counters_are_apart(self, other: Counter, subject: str) -> None:
        VIEWS.incr("user:1")
        COINS.incr("user:1")

        assert other.get(subject) == 0

    @pytest.mark.parametrize("of", [VIEWS, COINS], ids=["without a group", "in a group"])
    def test_subjects_are_apart(self, of: Counter) -> None:
        of.incr("user:1")

        assert of.get("user:2") == 0

    def test_a_series_has_every_day(self, do: Do) -> None:
        for days in (0, 40, 75):
            with freeze(START + days * DAY):
                do(VIEWS, "incr", "user:1", days + 1)

        first, last = TODAY - timedelta(days=1), TODAY + timedelta(days=80)
        with freeze(START + 80 * DAY):
            series = do(VIEWS, "series", "user:1", first, last)

        assert list(series) == [first + timedelta(days=n) for n in range(82)]
        counted = {date(2025, 11, 21): 1, date(2025, 12, 31): 41, date(2026, 2, 4): 76}
        assert {day: n for day, n in series.items() if n} == counted

    def test_a_series_reads_a_key_for_each_month(self, do: Do, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = operations_of(monkeypatch, CounterOperation)

        do(VIEWS, "series", "user:1", date(2025, 11, 20), date(2026, 1, 2))

        months = [[key.rpartition(":")[2] for key in operation.keys] for operation in asked]
        assert months == [["2025-11", "2025-12", "2026-01"]]

    def test_a_different_value_is_kept_in_thirty_two_characters(self, do: Do) -> None:
        for value in ("a", "a" * 1_000):
            do(VIEWS, "unique", "page:1", value)

        (kept,) = current_store().run(ReadStates(["quota:1:{page:1}:u:views"]), None)

        assert [len(each) for each in kept.value] == [32, 32]

    @pytest.mark.parametrize(
        ("first", "last", "days"),
        [
            row("the last day there is", date.max, date.max, 1),
            row("ten years", TODAY - timedelta(days=3_659), TODAY, 3_660),
        ],
    )
    def test_a_series_may_be(self, first: date, last: date, days: int, do: Do) -> None:
        series = do(VIEWS, "series", "user:1", first, last)

        assert (len(series), set(series.values())) == (days, {0})

    def test_a_different_value_is_counted_once(self, do: Do) -> None:
        values = ("a", "b", "a", 7, "7", "", "\ud800", "\ud801", "?", 2**70)

        found = [do(VIEWS, "unique", "page:1", value) for value in values]

        assert found == [True, True, False, True, False, True, True, True, True, True]
        assert do(VIEWS, "unique_count", "page:1") == 8

    def test_a_value_that_was_seen_on_an_earlier_day_is_not_new(self, do: Do) -> None:
        with freeze(START):
            assert [do(VIEWS, "unique", "page:1", value) for value in ("a", "b")] == [True, True]

        with freeze(START + DAY):
            assert [do(VIEWS, "unique", "page:1", value) for value in ("a", "c")] == [False, True]

    def test_a_value_that_was_seen_on_an_earlier_day_counts_again_that_day_alone(self, do: Do) -> None:
        for days, values in enumerate((("a", "b"), ("a", "c"))):
            with freeze(START + days * DAY):
                for value in values:
                    do(VIEWS, "unique", "page:1", value)

        with freeze(START + DAY):
            assert do(VIEWS, "unique_count", "page:1") == 3
            assert [do(VIEWS, "unique_count", "page:1", TODAY + timedelta(days=n)) for n in (0, 1)] == [2, 2]

    def test_different_values_are_no_units(self, do: Do) -> None:
        do(VIEWS, "unique", "page:1", "a")

        assert do(VIEWS, "get", "page:1") == 0

    @pytest.mark.parametrize(
        ("day", "hours"),
        [
            row("of 25 hours", date(2025, 10, 26), 25),
            row("of 23 hours", date(2026, 3, 29), 23),
            row("of 24 hours", date(2026, 1, 1), 24),
        ],
    )
    def test_a_day_ends_at_midnight_of_the_zone(self, day: date, hours: int, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "TIME_ZONE": "Europe/Berlin"}
        midnight = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo("Europe/Berlin"))
        begins = int(midnight.timestamp()) * SECOND
        ends = begins + hours * 3_600 * SECOND

        for moment, n in ((begins - 1, 1), (begins, 10), (ends - 1, 100), (ends, 1_000)):
            with freeze(moment):
                VIEWS.incr("user:1", n)
                VIEWS.unique("user:1", n)

        days = [day + timedelta(days=n) for n in (-1, 0, 1)]
        with freeze(ends):
            assert [VIEWS.get("user:1", day) for day in days] == [1, 110, 1_000]
            assert [VIEWS.unique_count("user:1", day) for day in days] == [1, 2, 1]


@MEMORY
class TestTtl:
    """Of a counter that lives for 60 seconds."""

    SHORT = counter("short", ttl=60)

    @pytest.fixture(autouse=True)
    def counted(self, memory_store: None) -> None:
        with freeze(START):
            self.SHORT.incr("user:1", 5)
            self.SHORT.unique("user:1", "a")

    def test_a_counter_unchanged_for_its_ttl_is_forgotten(self, do: Do) -> None:
        with freeze(START + 60 * SECOND):
            assert do(self.SHORT, "get", "user:1") == 0
            assert do(self.SHORT, "unique_count", "user:1") == 0
            assert do(self.SHORT, "get", "user:1", TODAY) == 0

    def test_a_change_lets_a_counter_live_for_its_ttl_again(self, do: Do) -> None:
        with freeze(START + 59 * SECOND):
            do(self.SHORT, "take", "user:1", 1)
            do(self.SHORT, "unique", "user:1", "a")

        with freeze(START + 60 * SECOND):
            assert do(self.SHORT, "get", "user:1") == 4
            assert do(self.SHORT, "unique_count", "user:1") == 1


MOMENT = datetime(2026, 11, 21, tzinfo=UTC)
NO_DATE = "is not a date. Use, for example, date(2026, 11, 21)"
NO_NUMBER = "is not a whole number. Use, for example, 1"
NO_VALUE = "is not a value to count. Use a string or a whole number"


@MEMORY
@pytest.mark.parametrize(
    ("verb", "arguments", "problem"),
    [
        row(
            "a range that ends before it begins",
            "series",
            (TODAY, TODAY - timedelta(days=1)),
            "2025-11-21 to 2025-11-20 is not a range of 1 to 3660 days",
        ),
        row(
            "a range that is too long",
            "series",
            (TODAY, TODAY + timedelta(days=3_660)),
            "2025-11-21 to 2035-11-29 is not a range of 1 to 3660 days",
        ),
        row("a date as a string", "get", ("2026-11-21",), f"'2026-11-21' {NO_DATE}"),
        row("a moment as a date", "get", (MOMENT,), f"{MOMENT!r} {NO_DATE}"),
        row("a bool as a date", "get", (True,), f"True {NO_DATE}"),
        row("a string as a day of values", "unique_count", ("2026-11-21",), f"'2026-11-21' {NO_DATE}"),
        row("a first date as a string", "series", ("2026-11-21", TODAY), f"'2026-11-21' {NO_DATE}"),
        row("a last date as a string", "series", (TODAY, "2026-11-21"), f"'2026-11-21' {NO_DATE}"),
        row("a number of 65 bits", "incr", (MAX_INT64 + 1,), "a number of 65 bits does not fit into 64"),
        row("a number of thousands of digits", "incr", (2**20_000,), "a number of 20002 bits does not fit into 64"),
        row("a small number of 65 bits", "set", (MIN_INT64 - 1,), "a number of 65 bits does not fit into 64"),
        row("a float", "incr", (1.0,), f"1.0 {NO_NUMBER}"),
        row("a bool", "incr", (True,), f"True {NO_NUMBER}"),
        row("a string", "take", ("1",), f"'1' {NO_NUMBER}"),
        row("taking nothing", "take", (0,), "0 is less than 1. Use 1 or more"),
        row("taking less than nothing", "take", (MIN_INT64,), f"{MIN_INT64} is less than 1. Use 1 or more"),
        row("moving less than nothing", "transfer", ("user:2", -1), "-1 is less than 0. Use 0 or more"),
        row("moving a float", "transfer", ("user:2", 1.0), f"1.0 {NO_NUMBER}"),
        row("None as a value", "unique", (None,), f"None {NO_VALUE}"),
        row("a bool as a value", "unique", (True,), f"True {NO_VALUE}"),
        row("a float as a value", "unique", (1.5,), f"1.5 {NO_VALUE}"),
        row("bytes as a value", "unique", (b"a",), f"b'a' {NO_VALUE}"),
        row("a list as a value", "unique", (["a"],), f"['a'] {NO_VALUE}"),
    ],
)
def test_a_wrong_argument_is_an_error_that_changes_nothing(verb: str, arguments: Any, problem: str, do: Do) -> None:
    VIEWS.set("user:1", 5)

    with pytest.raises(CounterError) as caught:
        do(VIEWS, verb, "user:1", *arguments)

    assert str(caught.value) == f"Counter 'views' of user:1: {problem}"
    assert VIEWS.get("user:1") == 5


@MEMORY
class TestSubjects:
    @pytest.fixture(autouse=True)
    def limits_are_off(self, memory_store: None, settings: Any) -> None:
        """Counters work all the same."""
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}

    @pytest.mark.parametrize("verb", ["get", "take"])
    def test_a_user_is_the_subject_of_its_key(self, verb: str, do: Do) -> None:
        do(VIEWS, "incr", User(pk=42))

        assert do(VIEWS, verb, "user:42") == 1

    def test_the_addresses_of_one_client_are_one_subject(self, do: Do) -> None:
        do(VIEWS, "incr", "ip:2001:DB8::1")

        assert do(VIEWS, "get", "ip:2001:db8::2") == 1

    @pytest.mark.parametrize(
        "nobody",
        [
            row("nobody logged in", AnonymousUser()),
            row("a user that is not saved", User()),
            row("None", None),
            row("an empty string", ""),
            row("a request", RequestFactory().get("/")),
        ],
    )
    @pytest.mark.parametrize("is_target", [False, True], ids=["counted", "moved to"])
    def test_it_is_no_subject(self, nobody: Any, is_target: bool, do: Do) -> None:
        with pytest.raises(RuleError):
            do(VIEWS, "transfer", "user:42", nobody, 1) if is_target else do(VIEWS, "incr", nobody)


ALL_VERBS: list[tuple[Any, ...]] = [
    ("incr", 5),
    ("set", 9),
    ("take",),
    ("transfer", "user:2", 1),
    ("unique", "a"),
    ("unique", "a"),
    ("incr", 0),
    ("get",),
    ("series", TODAY - timedelta(days=3_000), TODAY),
    ("unique_count", TODAY),
    ("pop",),
]


@REDIS
def test_each_verb_is_one_call(raw: redis.Redis) -> None:
    for verb, *arguments in ALL_VERBS:  # loads the scripts
        getattr(VIEWS, verb)("user:1", *arguments)
    raw.config_resetstat()

    for verb, *arguments in ALL_VERBS:
        getattr(VIEWS, verb)("user:1", *arguments)

    assert raw.info("commandstats")["cmdstat_evalsha"]["calls"] == len(ALL_VERBS)


@REDIS
@pytest.mark.parametrize(
    ("of", "keys"),
    [
        row("without a group", VIEWS, ["user:1}:c:views", "user:1}:u:views"]),
        row("in a group", COINS, ["group!shop}:c:coins:user%3A1", "group!shop}:u:coins:user%3A1"]),
    ],
)
def test_a_counter_has_a_key_for_all_with_one_for_a_month_or_day(
    raw: redis.Redis, of: Counter, keys: list[str]
) -> None:
    with freeze(START):
        of.incr("user:1", 5)
        of.unique("user:1", "a")

    units, values = (f"quota:1:{{{key}" for key in keys)
    assert {key.decode() for key in raw.scan_iter()} == {units, f"{units}:2025-11", values, f"{values}:2025-11-21"}


@REDIS
@pytest.mark.parametrize(
    ("of", "seconds"),
    [row("by default 400 days", VIEWS, 400 * 86_400), row("as long as ttl= says", counter("views", ttl=1_000), 1_000)],
)
def test_each_key_lives(raw: redis.Redis, of: Counter, seconds: int) -> None:
    lifetimes: dict[tuple[str, bytes], int] = {}

    for verb, *arguments in ALL_VERBS:
        getattr(of, verb)("user:1", *arguments)
        lifetimes |= {(verb, key): raw.pttl(key) for key in raw.scan_iter()}

    assert {at: ms for at, ms in lifetimes.items() if not 900 * seconds < ms <= 1_000 * seconds + 1} == {}


@REDIS
class TestFullRedis:
    @pytest.fixture(autouse=True)
    def full(self, redis_cache: Any, raw: redis.Redis) -> Iterator[None]:
        for verb, *arguments in ALL_VERBS:  # loads the scripts
            getattr(VIEWS, verb)("user:1", *arguments)
        VIEWS.set("user:1", 5)
        raw.config_set("maxmemory", 1)
        yield
        raw.config_set("maxmemory", 0)

    @pytest.mark.parametrize(
        ("verb", "arguments"),
        [("incr", ()), ("set", (1,)), ("take", ()), ("transfer", ("user:2", 1)), ("unique", ("b",))],
        ids=["incr", "set", "take", "transfer", "unique"],
    )
    def test_a_change_is_an_error_that_changes_nothing(
        self, raw: redis.Redis, verb: str, arguments: tuple[Any, ...], do: Do
    ) -> None:
        before = {key: raw.dump(key) for key in raw.scan_iter()}

        with pytest.raises(StoreUnavailable, match=r"OOM|OutOfMemory"):
            do(VIEWS, verb, "user:1", *arguments)

        assert {key: raw.dump(key) for key in raw.scan_iter()} == before

    def test_it_can_be_read(self, do: Do) -> None:
        assert do(VIEWS, "get", "user:1") == 5


@pytest.mark.thorough("slow")
@REDIS
def test_a_crowd_of_values_is_counted_in_12_kilobytes(raw: redis.Redis) -> None:
    for value in range(5_000):
        VIEWS.unique("page:1", value)

    assert abs(VIEWS.unique_count("page:1") - 5_000) < 150
    assert raw.strlen("quota:1:{page:1}:u:views") <= 12_304


@pytest.mark.usefixtures("either_store")
def test_takers_at_once_take_what_there_is() -> None:
    VIEWS.set("sku:1", 100)

    with ThreadPoolExecutor(8) as threads:
        taken = sum(threads.map(lambda _: VIEWS.take("sku:1", 3), range(100)))

    assert (taken, VIEWS.get("sku:1")) == (33, 1)


@MEMORY
def test_a_store_whose_day_runs_away_is_asked_five_times(do: Do, monkeypatch: pytest.MonkeyPatch) -> None:
    store, calls = current_store(), list[int]()
    run = store.run

    def a_day_later(operation: Any, now: int | None = None) -> Any:
        calls.append(1)
        return run(operation, START + len(calls) * DAY)

    monkeypatch.setattr(store, "run", a_day_later)

    with pytest.raises(StoreUnavailable, match="its clock keeps changing day"):
        do(VIEWS, "incr", "user:1")

    assert len(calls) == 5


@MEMORY
@inputs(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    hits=st.lists(st.tuples(st.integers(0, 40 * 3_600), st.integers(-50, 50)), max_size=30),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Pacific/Apia", "Asia/Kolkata"]),
)
def test_the_days_of_a_series_add_up_to_the_total(hits: list[tuple[int, int]], zone: str, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "TIME_ZONE": zone}
    subject, now, expected = f"user:{next(NUMBERS)}", START, dict[date, int]()

    for gap, n in hits:
        now += gap * SECOND
        with freeze(now):
            VIEWS.incr(subject, n)
        day = datetime.fromtimestamp(now // SECOND, ZoneInfo(zone)).date()
        expected[day] = expected.get(day, 0) + n

    with freeze(now):
        series = VIEWS.series(subject, TODAY - timedelta(days=1), TODAY + timedelta(days=60))
        assert {day: n for day, n in series.items() if n} == {day: n for day, n in expected.items() if n}
        assert sum(series.values()) == VIEWS.get(subject)


@pytest.mark.parametrize(
    ("of", "shown"),
    [
        row("without a group", counter("views", ttl=60), "counter('views', ttl=datetime.timedelta(seconds=60))"),
        row("in a group", COINS, "counter('coins', ttl=datetime.timedelta(days=400), group='shop')"),
    ],
)
def test_a_counter_shows_itself(of: Counter, shown: str) -> None:
    assert repr(of) == shown


def test_a_counter_in_the_database_shows_its_store() -> None:
    of = Counter("prepaid", store="database")

    assert repr(of) == "counter('prepaid', ttl=datetime.timedelta(days=400), store='database')"


TOTAL, MONTH, VALUES, GRANTS = (f"{BASE}:{what}" for what in ("c:views", "c:views:2025-11", "u:views", "grants:views"))


FOREIGN: list[tuple[str, str, Any, list[tuple[Any, ...]]]] = [
    *[
        (f"a total that is {value!r}", TOTAL, value, [
            ("incr",), ("get",), ("set", 5), ("take",), ("pop",), ("transfer", "user:2", 1),
        ])
        for value in (b"", b" 1", b"+1", b"1e3", b"007", b"-0", b"9223372036854775808", ["1"])
    ],
    *[
        (f"grants that are {value!r}", GRANTS, value, [
            ("incr",), ("get",), ("set", 5), ("take",), ("pop",), ("transfer", "user:2", 1), ("grants",),
        ])
        for value in (b"12", ["1"])
    ],
    *[
        (f"a month that is {value!r}", MONTH, value, [
            ("incr", 3), ("get", TODAY), ("series", TODAY, TODAY + timedelta(days=90)),
        ])
        for value in (b"12", {"21": "1.5"})
    ],
    ("a month whose second day is '1.5'", MONTH, {"22": "1.5"}, [("series", TODAY, TODAY + timedelta(days=90))]),
    *[
        (f"values that are {name}", VALUES, value, [("unique", "b"), ("unique_count",)])
        for name, value in {"a number": b"12", "broken": b"HYLL\x01" + bytes(10) + b"\x80\xff\x00"}.items()
    ],
]  # fmt: skip


@REDIS
@pytest.mark.parametrize(
    ("key", "value", "verb", "arguments"),
    [
        row(f"{verb} of {name}", key, value, verb, arguments)
        for name, key, value, verbs in FOREIGN
        for verb, *arguments in verbs
    ],
)
def test_a_key_that_holds_something_else_is_named_in_an_error_that_changes_nothing(
    raw: redis.Redis, key: str, value: Any, verb: str, arguments: list[Any], do: Do
) -> None:
    if isinstance(value, bytes):
        raw.set(key, value)
    else:
        raw.hset(key, mapping=value) if isinstance(value, dict) else raw.rpush(key, *value)
    raw.expire(key, 7_777)
    before = raw.dump(key)

    with freeze(START), pytest.raises(CounterError, match=f"{key} in the store is not a counter") as error:
        do(VIEWS, verb, "user:1", *arguments)

    assert (error.value.counter, error.value.subject) == ("views", "user:1")
    assert ([each.decode() for each in raw.scan_iter()], raw.dump(key)) == ([key], before)
    assert 7_700 < int(raw.ttl(key)) <= 7_777


@REDIS
@pytest.mark.parametrize("what", ["c:views", "grants:views"], ids=["its total", "its grants"])
@pytest.mark.parametrize("subject", ["user:1", "user:2"], ids=["moved from", "moved to"])
def test_a_transfer_names_the_counter_that_holds_something_else(
    subject: str, what: str, raw: redis.Redis, do: Do
) -> None:
    raw.rpush(f"quota:1:{{{subject}}}:{what}", "foreign")

    with pytest.raises(CounterError, match="in the store is not a counter") as error:
        do(VIEWS, "transfer", "user:1", "user:2", 0)

    assert error.value.subject == subject


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        row("an empty name", "name", "", "'' is not the name of a counter. Use, for example, 'pageviews'."),
        row("a blank name", "name", " ", "' ' is not the name of a counter. Use, for example, 'pageviews'."),
        row("no name", "name", None, "None is not the name of a counter. Use, for example, 'pageviews'."),
        row("an empty group", "group", "", "'' is not the group of a counter. Use, for example, group='shop'."),
        row(
            "bytes as a group",
            "group",
            b"shop",
            "b'shop' is not the group of a counter. Use, for example, group='shop'.",
        ),
        row(
            "a store of another kind",
            "store",
            "redis",
            "counter('views', store='redis') is not a store of its own. Use 'database', or leave it out: then "
            'QUOTA["STORE"] counts.',
        ),
    ],
)
def test_a_wrong_option_is_refused(option: str, value: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        counter(**{"name": "views", option: value})

    assert str(caught.value) == problem


@pytest.mark.parametrize("ttl", [0.5, timedelta(days=36_601)], ids=["below a second", "of centuries"])
def test_a_wrong_ttl_is_refused(ttl: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^ttl=.* is not a duration from 1 second to 36600 days"):
        counter("views", ttl=ttl)


@pytest.mark.parametrize(
    ("ttl", "found"),
    [(1, timedelta(seconds=1)), (timedelta(days=36_600), timedelta(days=36_600))],
    ids=["a second", "a hundred years"],
)
def test_a_counter_lives_for_its_ttl(ttl: Any, found: timedelta) -> None:
    assert counter("views", ttl=ttl).ttl == found


def test_a_counter_lives_for_400_days_by_default() -> None:
    assert counter("views").ttl == timedelta(days=400)


@MEMORY
class TestWhatCountersHold:
    """What the pages of operators show of a subject's counters."""

    @pytest.fixture(autouse=True)
    def none_is_made(self, memory_store: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(calls, "made", {})

    def held(self, *names: str, **options: Any) -> list[tuple[str, int]]:
        return [(of.counter, of.total) for of in counters_of("user:1", names, **options)]

    def test_they_are_in_the_order_of_their_names(self) -> None:
        for number, name in enumerate(("b", "c", "a"), 1):
            counter(name).set("user:1", number)

        assert self.held() == [("a", 3), ("b", 1), ("c", 2)]

    def test_one_that_holds_nothing_is_left_out(self) -> None:
        counter("views").set("user:2", 5)

        assert self.held() == []

    def test_one_that_holds_nothing_is_there_if_a_request_has_asked_for_units_of_it(self) -> None:
        counter("views")

        assert self.held(decided=["views", "others"]) == [("views", 0)]

    def test_one_that_owes_units_is_there(self) -> None:
        counter("views").set("user:1", -5)

        assert self.held() == [("views", -5)]

    def test_one_that_another_process_has_made_is_found_by_its_name(self) -> None:
        counter("views").set("user:1", 5)
        calls.made.clear()

        assert (self.held(), self.held("views")) == ([], [("views", 5)])

    def test_each_is_there_once(self, settings: Any, states_on_sqlite: str) -> None:
        settings.QUOTA = {"STORE": "memory", "DATABASE": states_on_sqlite}
        counter("views").set("user:1", 5)
        counter("prepaid", store="database").set("user:1", 7)

        assert self.held() == [("prepaid", 7), ("views", 5)]

    def test_a_group_has_its_own(self) -> None:
        counter("coins", group="shop").set("user:1", 5)
        counter("coins", group="till").set("user:1", 7)

        assert self.held() == [("coins", 5), ("coins", 7)]

    def test_a_process_remembers_two_hundred(self) -> None:
        for number in range(201):
            counter(f"counter-{number}")

        assert (len(calls.made), ("counter-200", None, None) in calls.made) == (200, False)

    def test_they_are_as_many_as_a_process_remembers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(calls, "MAX_MADE", 2)
        for name in "abc":
            counter(name).set("user:1", 1)

        assert self.held() == [("a", 1), ("b", 1)]


@REDIS
def test_a_key_that_is_no_counter_hides_none_of_the_others(raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "made", {})
    counter("views").set("user:1", 5)
    raw.rpush(f"{BASE}:c:coins", "foreign")

    assert [of.counter for of in counters_of("user:1", ["coins"])] == ["views"]


@pytest.fixture(params=["sync", "async"])
def is_first(request: pytest.FixtureRequest) -> Callable[..., bool]:
    """Call `once`, or its async twin."""
    if request.param == "sync":
        return once
    return lambda *given, **options: asyncio.run(aonce(*given, **options))


@pytest.mark.usefixtures("either_store")
class TestOnce:
    @pytest.mark.parametrize(
        ("later", "is_new"),
        [
            row("at once", 0, False),
            row("just before the ttl has passed", 10 * SECOND - 1, False),
            row("when the ttl has passed", 10 * SECOND, True),
        ],
    )
    def test_a_value_is_remembered_until_its_ttl_has_passed(
        self, later: int, is_new: bool, is_first: Callable[..., bool]
    ) -> None:
        with freeze(START):
            assert is_first("event", "e1", ttl=10)

        with freeze(START + later):
            assert is_first("event", "e1", ttl=10) is is_new

    @pytest.mark.parametrize(
        ("later", "is_new"), [row("before an hour has passed", -1, False), row("when it has passed", 0, True)]
    )
    def test_a_value_is_remembered_for_an_hour_by_default(
        self, later: int, is_new: bool, is_first: Callable[..., bool]
    ) -> None:
        with freeze(START):
            is_first("event", "e1")

        with freeze(START + 3_600 * SECOND + later):
            assert is_first("event", "e1") is is_new

    def test_a_later_call_does_not_remember_a_value_for_longer(self, is_first: Callable[..., bool]) -> None:
        for moment in (0, 9 * SECOND):
            with freeze(START + moment):
                is_first("event", "e1", ttl=10)

        with freeze(START + 10 * SECOND):
            assert is_first("event", "e1", ttl=10)

    def test_each_name_remembers_its_own_values(self, is_first: Callable[..., bool]) -> None:
        is_first("event", "e1")

        assert is_first("payment", "e1")

    def test_it_remembers_though_limits_are_off(self, is_first: Callable[..., bool], settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}

        assert [is_first("event", "e1") for _ in range(2)] == [True, False]

    def test_of_many_who_bring_the_same_value_one_is_the_first(self) -> None:
        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(lambda _: once("event", "e1"), range(64))) == 1


@MEMORY
class TestValuesOfOnce:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            row("a number, its digits", 7, "7"),
            row("a string, its bytes", "é", "é".encode()),
            row("a large number, its digits", 2**70, str(2**70)),
        ],
    )
    def test_they_are_one_where_their_bytes_are(self, one: Any, other: Any) -> None:
        once("event", one)

        assert not once("event", other)

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            row("two ways to write a letter", "é", "e\u0301"),
            row("one space, two spaces", "a b", "a  b"),
            row("nothing, a byte", "", b"\xff"),
        ],
    )
    def test_they_differ_where_their_bytes_do(self, one: Any, other: Any) -> None:
        once("event", one)

        assert once("event", other)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            row("an empty name", "", "e1"),
            row("a name of spaces", "  ", "e1"),
            row("a number as a name", 7, "e1"),
            row("None as a value", "event", None),
            row("a float as a value", "event", 1.5),
            row("a bool as a value", "event", True),
        ],
    )
    def test_it_is_an_error(self, name: Any, value: Any, is_first: Callable[..., bool]) -> None:
        with pytest.raises(RuleError, match=r"is not a name|value="):
            is_first(name, value)


def test_once_does_not_guess_without_the_store(is_first: Callable[..., bool]) -> None:
    with no_answer(), pytest.raises(StoreUnavailable):
        is_first("event", "e1")


@REDIS
class TestKeyOfOnce:
    SECRET = "4111 1111 1111 1111 " * 1_000

    def test_it_does_not_have_the_value(self, raw: redis.Redis) -> None:
        once("card", self.SECRET)

        (key,) = raw.scan_iter()
        assert b"4111" not in key + (raw.get(key) or b"")

    def test_it_is_short_however_long_the_value_is(self, raw: redis.Redis) -> None:
        once("card", self.SECRET)

        (key,) = raw.scan_iter()
        assert len(key) < 100

    def test_it_lives_for_the_ttl(self, raw: redis.Redis) -> None:
        once("card", self.SECRET, ttl=60)

        (key,) = raw.scan_iter()
        assert 0 < raw.pttl(key) <= 60_001

    def test_a_call_is_one_trip(self, raw: redis.Redis) -> None:
        once("card", self.SECRET)
        raw.config_resetstat()

        once("card", self.SECRET)

        assert raw.info("commandstats")["cmdstat_evalsha"]["calls"] == 1

    def test_another_digest_key_makes_it_another(self, settings: Any) -> None:
        once("card", self.SECRET)

        settings.QUOTA = {**settings.QUOTA, "DIGEST_KEY": "another"}

        assert once("card", self.SECRET)
