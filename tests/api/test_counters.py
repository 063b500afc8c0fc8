"""Counters as users call them: every verb, sync and async, on Redis and in memory; their bounds, keys and errors."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from django.contrib.auth.models import AnonymousUser, User
from django.test import RequestFactory
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from django_quota import Counter, counter
from django_quota.exceptions import ConfigurationError, CounterError, RuleError, StoreUnavailable
from django_quota.testing import freeze
from tests.support.calls import calls_of
from tests.support.inputs import inputs
from tests.support.memory import with_a_store_whose_clock_runs, with_our_clock_off
from tests.support.steps import SECOND, START

REDIS = pytest.mark.usefixtures("redis_cache")
MEMORY = pytest.mark.usefixtures("memory_store")
DAY = 86_400 * SECOND
TODAY = datetime.fromtimestamp(START // SECOND, UTC).date()
VIEWS = counter("views")
MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1
BASE = "quota:1:{user:1}"

Do = Callable[..., Any]
"""Calls a verb of a counter: `do(counter, "incr", "user:1", 5)`."""


def _sync(of: Counter, verb: str, *arguments: Any) -> Any:
    return getattr(of, verb)(*arguments)


def _async(of: Counter, verb: str, *arguments: Any) -> Any:
    return asyncio.run(getattr(of, f"a{verb}")(*arguments))


@pytest.fixture(params=[_sync, _async], ids=["sync", "async"])
def do(request: pytest.FixtureRequest) -> Do:
    return request.param  # type: ignore[no-any-return]


class Weight(int, Enum):
    """Writes itself by its name."""

    HEAVY = 3


@REDIS
def test_an_amount_may_be_of_a_class_of_whole_numbers(do: Do) -> None:
    assert do(counter("weighed"), "incr", "user:1", Weight.HEAVY) == 3
    assert do(counter("weighed"), "take", "user:1", Weight.HEAVY)
    assert do(counter("weighed"), "get", "user:1") == 0


def dump(raw: redis.Redis) -> dict[bytes, bytes | None]:
    return {key: raw.dump(key) for key in raw.scan_iter()}


class Verbs:
    """What holds on every store."""

    def test_what_was_never_counted_is_zero(self, do: Do) -> None:
        assert do(VIEWS, "get", "user:1") == 0
        assert do(VIEWS, "get", "user:1", TODAY) == 0
        assert do(VIEWS, "pop", "user:1") == 0
        assert do(VIEWS, "unique_count", "user:1") == do(VIEWS, "unique_count", "user:1", TODAY) == 0
        assert do(VIEWS, "take", "user:1") is False

    def test_incr_counts_in_all_and_the_day(self, do: Do) -> None:
        with freeze(START):
            assert [do(VIEWS, "incr", "user:1", *n) for n in ((), (5,), (-8,), (0,))] == [1, 6, -2, -2]
        with freeze(START + DAY):
            assert do(VIEWS, "incr", "user:1", 10) == 8
            assert do(VIEWS, "get", "user:1") == 8
            assert do(VIEWS, "get", "user:1", TODAY) == -2
            assert do(VIEWS, "get", "user:1", TODAY + timedelta(days=1)) == 10

    def test_subjects_and_names_are_apart(self, do: Do) -> None:
        do(VIEWS, "incr", "user:1")
        assert do(VIEWS, "get", "user:2") == 0
        assert do(counter("views:2025-11"), "get", "user:1") == 0
        assert do(counter("views"), "get", "user:1") == 1

    def test_take_takes_all_or_nothing(self, do: Do) -> None:
        do(VIEWS, "set", "sku:1", 5)
        assert [do(VIEWS, "take", "sku:1", n) for n in (3, 3, 2, 1)] == [True, False, True, False]
        do(VIEWS, "set", "sku:1", -5)
        assert do(VIEWS, "take", "sku:1") is False
        assert do(VIEWS, "get", "sku:1") == -5

    def test_pop_reads_and_zeroes(self, do: Do) -> None:
        do(VIEWS, "incr", "user:1", 7)
        assert [do(VIEWS, "pop", "user:1"), do(VIEWS, "pop", "user:1"), do(VIEWS, "get", "user:1")] == [7, 0, 0]

    def test_transfer_moves_all_or_nothing(self, do: Do) -> None:
        do(VIEWS, "set", "user:1", 10)
        assert [do(VIEWS, "transfer", "user:1", "user:2", n) for n in (4, 7, 6, 1, 0)] == [
            True,
            False,
            True,
            False,
            True,
        ]
        assert [do(VIEWS, "get", name) for name in ("user:1", "user:2")] == [0, 10]

    def test_a_transfer_to_oneself_changes_nothing(self, do: Do) -> None:
        do(VIEWS, "set", "user:1", MAX_INT64)
        assert do(VIEWS, "transfer", "user:1", "user:1", MAX_INT64) is True
        assert do(VIEWS, "get", "user:1") == MAX_INT64
        do(VIEWS, "set", "user:1", 3)
        assert do(VIEWS, "transfer", "user:1", "user:1", 4) is False
        assert do(VIEWS, "get", "user:1") == 3

    def test_a_total_below_zero_gives_nothing_and_may_receive(self, do: Do) -> None:
        do(VIEWS, "set", "user:1", -5)
        do(VIEWS, "set", "user:2", 5)
        assert do(VIEWS, "transfer", "user:1", "user:2", 0) is False
        assert do(VIEWS, "transfer", "user:2", "user:1", 3) is True
        assert [do(VIEWS, "get", name) for name in ("user:1", "user:2")] == [-2, 2]

    def test_all_but_incr_leave_the_days_alone(self, do: Do) -> None:
        with freeze(START):
            do(VIEWS, "incr", "user:1", 9)
            do(VIEWS, "take", "user:1", 2)
            do(VIEWS, "transfer", "user:1", "user:2", 3)
            do(VIEWS, "pop", "user:1")
            do(VIEWS, "set", "user:1", 50)
            assert do(VIEWS, "get", "user:1", TODAY) == 9
            assert do(VIEWS, "get", "user:2", TODAY) == 0

    def test_a_series_has_every_day_over_months_and_years(self, do: Do) -> None:
        for days in (0, 40, 75):
            with freeze(START + days * DAY):
                do(VIEWS, "incr", "user:1", days + 1)
        first, last = TODAY - timedelta(days=1), TODAY + timedelta(days=80)
        series = do(VIEWS, "series", "user:1", first, last)
        assert list(series) == [first + timedelta(days=n) for n in range(82)]
        assert {day: n for day, n in series.items() if n} == {
            date(2025, 11, 21): 1,
            date(2025, 12, 31): 41,
            date(2026, 2, 4): 76,
        }

    def test_a_series_may_be_of_one_day_and_reach_the_ends_of_the_calendar(self, do: Do) -> None:
        assert do(VIEWS, "series", "user:1", date.max, date.max) == {date.max: 0}
        assert do(VIEWS, "series", "user:1", date.min, date(1, 2, 1))[date(1, 2, 1)] == 0
        assert len(do(VIEWS, "series", "user:1", TODAY - timedelta(days=3_659), TODAY)) == 3_660

    @pytest.mark.parametrize(
        ("first", "last"),
        [(TODAY, TODAY - timedelta(days=1)), (TODAY - timedelta(days=3_660), TODAY), (date.min, date.max)],
    )
    def test_a_range_of_no_days_or_too_many_is_refused(self, do: Do, first: date, last: date) -> None:
        with pytest.raises(
            CounterError, match=rf"Counter 'views' of user:1: {first} to {last} is not a range of 1 to 3660"
        ):
            do(VIEWS, "series", "user:1", first, last)

    @pytest.mark.parametrize("day", ["2026-11-21", datetime(2026, 11, 21, tzinfo=UTC), 20_261_121, True])
    def test_a_value_that_is_no_date_is_refused(self, do: Do, day: Any) -> None:
        for verb, days in (("get", [day]), ("series", [day, TODAY]), ("series", [TODAY, day]), ("unique_count", [day])):
            with pytest.raises(CounterError, match="is not a date"):
                do(VIEWS, verb, "user:1", *days)

    def test_numbers_of_64_bits_are_exact_to_the_end(self, do: Do) -> None:
        for value in (MAX_INT64, MIN_INT64, MAX_INT64 - 1, MIN_INT64 + 1, 2**53 + 1, -(2**53) - 1):
            do(VIEWS, "set", "user:1", value)
            assert do(VIEWS, "get", "user:1") == value
            assert do(VIEWS, "pop", "user:1") == value
        with freeze(START):
            assert do(VIEWS, "incr", "user:1", MAX_INT64 - 1) == MAX_INT64 - 1
            assert do(VIEWS, "incr", "user:1") == MAX_INT64
            assert do(VIEWS, "get", "user:1", TODAY) == MAX_INT64
            assert do(VIEWS, "take", "user:1", MAX_INT64 - 2) is True
            assert do(VIEWS, "take", "user:1", 3) is False
            assert do(VIEWS, "take", "user:1", 2) is True
            assert do(VIEWS, "get", "user:1") == 0

    def test_take_and_transfer_are_exact_next_to_2_63(self, do: Do) -> None:
        """As doubles they would be one number."""
        do(VIEWS, "set", "user:1", MAX_INT64 - 1)
        assert do(VIEWS, "take", "user:1", MAX_INT64) is False
        assert do(VIEWS, "transfer", "user:1", "user:2", MAX_INT64) is False
        assert do(VIEWS, "transfer", "user:1", "user:2", MAX_INT64 - 1) is True
        assert [do(VIEWS, "get", name) for name in ("user:1", "user:2")] == [0, MAX_INT64 - 1]

    @pytest.mark.parametrize(("start", "n"), [(MAX_INT64, 1), (1, MAX_INT64), (MIN_INT64, -1), (-1, MIN_INT64)])
    def test_a_result_beyond_64_bits_is_refused_and_changes_nothing(self, do: Do, start: int, n: int) -> None:
        do(VIEWS, "set", "user:1", start)
        with freeze(START), pytest.raises(CounterError, match=r"c:views beyond 64 bits"):
            do(VIEWS, "incr", "user:1", n)
        assert do(VIEWS, "get", "user:1") == start
        assert do(VIEWS, "get", "user:1", TODAY) == 0

    @pytest.mark.parametrize("before", [None, 0, 17])
    def test_a_day_that_would_leave_64_bits_keeps_the_total_back_too(self, do: Do, before: int | None) -> None:
        with freeze(START):
            do(VIEWS, "incr", "user:1", MAX_INT64)
            do(VIEWS, "pop", "user:1")
            if before is not None:
                do(VIEWS, "set", "user:1", before)
            with pytest.raises(CounterError, match=r"c:views:2025-11 beyond 64 bits"):
                do(VIEWS, "incr", "user:1")
            assert do(VIEWS, "get", "user:1") == (before or 0)
            assert do(VIEWS, "get", "user:1", TODAY) == MAX_INT64

    def test_a_transfer_that_the_receiver_cannot_hold_names_it_and_changes_nothing(self, do: Do) -> None:
        do(VIEWS, "set", "user:1", 5)
        do(VIEWS, "set", "user:2", MAX_INT64 - 4)
        with pytest.raises(CounterError) as error:
            do(VIEWS, "transfer", "user:1", "user:2", 5)
        assert (error.value.counter, error.value.subject) == ("views", "user:2")
        assert [do(VIEWS, "get", name) for name in ("user:1", "user:2")] == [5, MAX_INT64 - 4]

    @pytest.mark.parametrize(
        "n", [MAX_INT64 + 1, MIN_INT64 - 1, pytest.param(10**5_000, id="huge"), 1.0, "1", None, True]
    )
    def test_a_value_that_is_no_64_bit_number_is_refused(self, do: Do, n: Any) -> None:
        asked: list[tuple[str, tuple[str, ...]]] = [
            ("incr", ("user:1",)), ("set", ("user:1",)), ("take", ("user:1",)), ("transfer", ("user:1", "user:2")),
        ]  # fmt: skip
        for verb, subjects in asked:
            with pytest.raises(CounterError, match=r"is not a whole number|does not fit into 64"):
                do(VIEWS, verb, *subjects, n)
            assert do(VIEWS, "get", "user:1") == 0

    def test_taking_needs_one_and_moving_nothing_below_zero(self, do: Do) -> None:
        do(VIEWS, "set", "user:1", 5)
        for n in (0, -1, MIN_INT64):
            with pytest.raises(CounterError, match=f"{n} is less than 1"):
                do(VIEWS, "take", "user:1", n)
        with pytest.raises(CounterError, match="-1 is less than 0"):
            do(VIEWS, "transfer", "user:1", "user:2", -1)
        assert do(VIEWS, "get", "user:1") == 5

    def test_different_values_are_counted_once_in_all_and_a_day(self, do: Do) -> None:
        with freeze(START):
            assert [do(VIEWS, "unique", "page:1", value) for value in ("a", "b", "a", 7, "7")] == [
                True, True, False, True, False,
            ]  # fmt: skip
        with freeze(START + DAY):
            assert [do(VIEWS, "unique", "page:1", value) for value in ("a", "c")] == [False, True]
            assert do(VIEWS, "unique_count", "page:1") == 4
            assert do(VIEWS, "unique_count", "page:1", TODAY) == 3
            assert do(VIEWS, "unique_count", "page:1", TODAY + timedelta(days=1)) == 2
            assert do(VIEWS, "get", "page:1") == 0

    @pytest.mark.parametrize("value", ["", "\ud800", "x" * 100_000, "\x00", "Zoë", 2**70])
    def test_any_text_or_number_is_a_value(self, do: Do, value: str | int) -> None:
        assert [do(VIEWS, "unique", "page:1", value) for _ in range(2)] == [True, False]

    @pytest.mark.parametrize("value", [None, True, 1.5, b"a", ["a"]])
    def test_a_value_of_another_type_is_refused(self, do: Do, value: Any) -> None:
        with pytest.raises(CounterError, match="is not a value to count"):
            do(VIEWS, "unique", "page:1", value)

    def test_a_day_ends_at_midnight_of_the_zone(self, do: Do, settings: Any) -> None:
        """Berlin: 2025-10-26 has 25 hours, 2026-03-29 has 23."""
        settings.QUOTA = {**settings.QUOTA, "TIME_ZONE": "Europe/Berlin"}
        for day, hours in ((date(2025, 10, 26), 25), (date(2026, 3, 29), 23), (date(2026, 1, 1), 24)):
            midnight = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo("Europe/Berlin"))
            begins = int(midnight.timestamp()) * SECOND
            ends = begins + hours * 3_600 * SECOND
            for moment, n in ((begins - 1, 1), (begins, 10), (ends - 1, 100), (ends, 1_000)):
                with freeze(moment):
                    do(VIEWS, "incr", "user:1", n)
                    do(VIEWS, "unique", "user:1", n)
            days = [day + timedelta(days=n) for n in (-1, 0, 1)]
            assert [do(VIEWS, "get", "user:1", day) for day in days] == [1, 110, 1_000]
            assert [do(VIEWS, "unique_count", "user:1", day) for day in days] == [1, 2, 1]

    def test_the_stores_clock_decides_the_day_whatever_ours_says(
        self, do: Do, monkeypatch: pytest.MonkeyPatch, settings: Any
    ) -> None:
        settings.QUOTA = {**settings.QUOTA, "TIME_ZONE": "UTC"}
        before = datetime.now(UTC).date()
        for skew in (-3 * DAY, 5 * DAY):
            with_our_clock_off(skew, monkeypatch)
            do(VIEWS, "incr", "user:1", 1)
            calls = calls_of(monkeypatch)
            do(VIEWS, "incr", "user:1", 1)
            assert len(calls) == 1  # the first has told how far off we are
            with_our_clock_off(skew, monkeypatch)
            assert do(VIEWS, "unique", "user:1", skew) is True
        after = datetime.now(UTC).date()
        assert sum(do(VIEWS, "series", "user:1", before, after).values()) == 4
        assert sum(do(VIEWS, "unique_count", "user:1", day) for day in {before, after}) == 2

    def test_users_are_subjects_and_requests_and_nobody_are_not(self, do: Do) -> None:
        do(VIEWS, "incr", User(pk=42))
        assert do(VIEWS, "get", "user:42") == 1
        do(VIEWS, "incr", "ip:2001:DB8::1")
        assert do(VIEWS, "get", "ip:2001:db8::2") == 1
        for nobody in (AnonymousUser(), User(), None, 42, "", RequestFactory().get("/")):
            with pytest.raises(RuleError):
                do(VIEWS, "incr", nobody)
            with pytest.raises(RuleError):
                do(VIEWS, "transfer", "user:42", nobody, 1)
        assert do(VIEWS, "get", "user:42") == 1

    def test_counters_count_where_limits_are_switched_off(self, do: Do, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
        assert [do(VIEWS, "incr", "user:1"), do(VIEWS, "take", "user:1"), do(VIEWS, "take", "user:1")] == [
            1,
            True,
            False,
        ]

    @pytest.mark.always("decoded")
    def test_racing_takers_take_what_there_is(self) -> None:
        VIEWS.set("sku:1", 100)
        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(lambda _: VIEWS.take("sku:1", 3), range(200))) == 33
        assert VIEWS.get("sku:1") == 1


@REDIS
class TestOnRedis(Verbs):
    """On a real Redis, in both decode modes."""


@pytest.mark.usefixtures("cluster")
class TestOnACluster(Verbs):
    """On a Redis Cluster, two subjects are in two slots."""


@MEMORY
class TestInMemory(Verbs):
    """In this process's memory."""

    def test_a_counter_unchanged_for_its_ttl_is_forgotten(self, do: Do) -> None:
        short = counter("short", ttl=60)
        with freeze(START):
            for subject in ("user:1", "user:2"):
                do(short, "incr", subject, 5)
                do(short, "unique", subject, "a")
        with freeze(START + 59 * SECOND):
            do(short, "take", "user:2", 1)
            do(short, "unique", "user:2", "a")
        with freeze(START + 60 * SECOND):
            assert [do(short, "get", name) for name in ("user:1", "user:2")] == [0, 4]
            assert [do(short, "unique_count", name) for name in ("user:1", "user:2")] == [0, 1]
            assert do(short, "get", "user:1", TODAY) == 0
            assert do(short, "incr", "user:1") == 1


# --- what lies in Redis -----------------------------------------------------------------------------------------------


@REDIS
def test_the_keys_are_those_that_are_listed(raw: redis.Redis) -> None:
    with freeze(START):
        VIEWS.incr("user:1", 5)
        VIEWS.unique("user:1", "a")
    assert set(raw.scan_iter()) == {
        f"{BASE}:{what}".encode() for what in ("c:views", "c:views:2025-11", "u:views", "u:views:2025-11-21")
    }
    assert raw.get(f"{BASE}:c:views") == b"5"
    assert raw.hgetall(f"{BASE}:c:views:2025-11") == {b"21": b"5"}


def _changes(of: Counter) -> list[Callable[[], object]]:
    return [
        lambda: of.incr("user:1", 5),
        lambda: of.set("user:1", 9),
        lambda: of.take("user:1"),
        lambda: of.transfer("user:1", "user:2", 1),
        lambda: of.transfer("user:1", "user:2", 0),
        lambda: of.unique("user:1", "a"),
        lambda: of.unique("user:1", "a"),
        lambda: of.incr("user:1", 0),
    ]


@REDIS
def test_every_change_renews_the_ttl_of_its_keys(raw: redis.Redis) -> None:
    brief, lasting = counter("views", ttl=timedelta(seconds=1, milliseconds=1)), counter("views", ttl=1_000)
    with freeze(START):
        for change, again in zip(_changes(brief), _changes(lasting), strict=True):
            raw.flushall()
            raw.set(f"{BASE}:c:views", 9, ex=5)
            change()
            # An hour more than its ttl, since the test passes the time in; a key of another subject may be left.
            touched = {key for key in raw.scan_iter() if raw.pttl(key) > 3_590_000}
            assert touched
            assert all(raw.pttl(key) <= 3_601_001 for key in touched)
            again()
            assert all(raw.pttl(key) > 4_500_000 for key in touched)


@REDIS
def test_without_a_frozen_clock_a_key_lives_for_its_ttl(raw: redis.Redis) -> None:
    for change in _changes(counter("views", ttl=1_000)):
        change()
    keys = list(raw.scan_iter())
    assert len(keys) == 5
    assert all(900_000 < raw.pttl(key) <= 1_000_001 for key in keys)


@REDIS
def test_400_days_are_the_default(raw: redis.Redis) -> None:
    VIEWS.incr("user:1")
    assert VIEWS.ttl == timedelta(days=400)
    assert all(399 * 86_400_000 < raw.pttl(key) <= 400 * 86_400_000 + 1 for key in raw.scan_iter())


@REDIS
def test_a_verb_is_one_call(raw: redis.Redis) -> None:
    verbs: list[Callable[[], object]] = [
        *_changes(VIEWS),
        lambda: VIEWS.get("user:1"),
        lambda: VIEWS.series("user:1", TODAY - timedelta(days=3_000), TODAY),
        lambda: VIEWS.unique_count("user:1", TODAY),
        lambda: VIEWS.pop("user:1"),
    ]
    for verb in verbs:
        verb()  # loads its script
    raw.config_resetstat()
    for verb in verbs:
        verb()
    assert raw.info("commandstats")["cmdstat_evalsha"]["calls"] == len(verbs)


@REDIS
def test_reading_and_being_refused_write_nothing(raw: redis.Redis) -> None:
    with freeze(START):
        VIEWS.incr("user:1", 2)
        VIEWS.unique("user:1", "a")
        VIEWS.unique_count("user:1")  # a HyperLogLog remembers its last count
        before = dump(raw)
        for key in raw.scan_iter():
            raw.expire(key, 99)
        VIEWS.get("user:1")
        VIEWS.get("user:2", TODAY)
        VIEWS.series("user:1", TODAY, TODAY)
        VIEWS.unique_count("user:1")
        VIEWS.take("user:1", 3)
        VIEWS.take("user:2", 3)
        VIEWS.transfer("user:1", "user:2", 3)
        VIEWS.pop("user:2")
    assert dump(raw) == before
    assert all(0 < raw.ttl(key) <= 99 for key in raw.scan_iter())


# --- keys that hold something else ------------------------------------------------------------------------------------

TOTAL, MONTH, VALUES, DATE = (
    f"{BASE}:{what}" for what in ("c:views", "c:views:2025-11", "u:views", "u:views:2025-11-21")
)
OTHER = "quota:1:{user:2}:c:views"
NO_TOTALS: list[Any] = [
    b"abc", b"", b" 1", b"1 ", b"+1", b"1.5", b"1e3", b"0x1", b"007", b"-0", b"--1", b"1\n", b"\xff\xfe", b"1\x00",
    b"9223372036854775808", b"-9223372036854775809", b"9" * 400, ["a list"], {"1": "2"}, {"a set"},
]  # fmt: skip


def put(raw: redis.Redis, key: str, value: Any) -> None:
    if isinstance(value, bytes):
        raw.set(key, value)
    elif isinstance(value, dict):
        raw.hset(key, mapping=value)
    elif isinstance(value, set):
        raw.sadd(key, *value)
    else:
        raw.rpush(key, *value)
    raw.expire(key, 7_777)


def refuses(do: Do, raw: redis.Redis, key: str, verb: str, *arguments: Any) -> None:
    """Check that a verb tells which key is no counter, and of whom, and changes nothing."""
    before = dump(raw)
    with freeze(START), pytest.raises(CounterError, match="is not a counter") as error:
        do(VIEWS, verb, *arguments)
    assert f"{key} in Redis is not a counter" in str(error.value)
    assert (error.value.counter, error.value.subject) == ("views", "user:2" if key == OTHER else "user:1")
    assert dump(raw) == before
    assert all(7_700 < raw.ttl(there) <= 7_777 for there in raw.scan_iter())


@REDIS
@pytest.mark.parametrize("value", NO_TOTALS, ids=repr)
def test_a_wrong_total_is_an_error_of_each_verb(do: Do, raw: redis.Redis, value: Any) -> None:
    put(raw, TOTAL, value)
    put(raw, OTHER, b"50")
    for verb, *arguments in (
        ("incr",), ("incr", 0), ("get",), ("set", 5), ("take",), ("pop",), ("transfer", "user:2", 1),
        ("transfer", "user:1", 0),
    ):  # fmt: skip
        refuses(do, raw, TOTAL, verb, "user:1", *arguments)
    refuses(do, raw, TOTAL, "transfer", "user:2", "user:1", 1)
    refuses(do, raw, TOTAL, "transfer", "user:2", "user:1", 99)
    raw.delete(TOTAL)
    raw.rename(OTHER, TOTAL)
    put(raw, OTHER, value)
    refuses(do, raw, OTHER, "transfer", "user:1", "user:2", 1)


@REDIS
@pytest.mark.parametrize("value", [b"abc", b"12", ["a list"], {"21": "x"}, {"21": "1.5"}, {"21": b"\xff"}], ids=repr)
@pytest.mark.parametrize("total", [None, b"5"])
def test_wrong_days_are_an_error_and_the_total_stays(do: Do, raw: redis.Redis, value: Any, total: bytes | None) -> None:
    put(raw, MONTH, value)
    if total is not None:
        put(raw, TOTAL, total)
    refuses(do, raw, MONTH, "incr", "user:1", 3)
    refuses(do, raw, MONTH, "get", "user:1", TODAY)
    refuses(do, raw, MONTH, "series", "user:1", TODAY - timedelta(days=90), TODAY + timedelta(days=90))


@REDIS
@pytest.mark.parametrize(
    "value", [b"abc", b"12", b"", ["a list"], {"a": "b"}, b"HYLL", b"HYLL\x01" + bytes(10) + b"\x80\xff\x00"], ids=repr
)
@pytest.mark.parametrize("known", [False, True])
def test_wrong_values_are_an_error_and_the_others_stay(do: Do, raw: redis.Redis, value: Any, known: bool) -> None:
    for key, other, day in ((VALUES, DATE, []), (DATE, VALUES, [TODAY])):
        raw.flushall()
        if known:
            raw.pfadd(other, "a")
            raw.expire(other, 7_777)
        put(raw, key, value)
        refuses(do, raw, key, "unique", "user:1", "b")
        refuses(do, raw, key, "unique_count", "user:1", *day)


@REDIS
def test_a_redis_that_is_full_is_unavailable_and_nothing_is_changed_by_half(do: Do, raw: redis.Redis) -> None:
    do(VIEWS, "set", "user:1", 5)
    changes: list[tuple[Any, ...]] = [("incr",), ("unique", "a"), ("take",), ("transfer", "user:2", 1)]
    for verb, *arguments in changes:
        do(VIEWS, verb, "user:1", *arguments)  # loads its script
    before = dump(raw)
    raw.config_set("maxmemory", 1)
    try:
        for verb, *arguments in [*changes, ("set", 1)]:
            with pytest.raises(StoreUnavailable, match=r"OOM|OutOfMemory"):
                do(VIEWS, verb, "user:1", *arguments)
        assert do(VIEWS, "get", "user:1") == 4
    finally:
        raw.config_set("maxmemory", 0)
    assert dump(raw) == before


@REDIS
def test_a_hyperloglog_counts_a_crowd_in_12_kilobytes(raw: redis.Redis) -> None:
    for value in range(5_000):
        VIEWS.unique("page:1", value)
    assert abs(VIEWS.unique_count("page:1") - 5_000) < 150
    assert raw.strlen("quota:1:{page:1}:u:views") <= 12_304


# --- without a store, without a name ----------------------------------------------------------------------------------


def test_without_a_store_every_verb_says_so(do: Do) -> None:
    for verb, *arguments in (
        ("incr",), ("get",), ("get", TODAY), ("series", TODAY, TODAY), ("set", 1), ("take",), ("pop",),
        ("transfer", "user:2", 1), ("unique", "a"), ("unique_count",),
    ):  # fmt: skip
        with pytest.raises(StoreUnavailable):
            do(VIEWS, verb, "user:1", *arguments)


@MEMORY
def test_a_store_whose_day_runs_away_is_asked_five_times(do: Do, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = with_a_store_whose_clock_runs(DAY, monkeypatch)
    with pytest.raises(StoreUnavailable, match="another day with each call"):
        do(VIEWS, "incr", "user:1")
    assert len(calls) == 5


@pytest.mark.parametrize("name", ["", " ", None, 7, b"views"])
def test_a_wrong_name_is_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"is not the name of a counter. Use, for example, 'pageviews'"):
        counter(name)


@pytest.mark.parametrize("ttl", [0, -1, 0.5, True, None, "60", 10**30, timedelta(0), timedelta(days=36_601)])
def test_a_wrong_ttl_is_refused(ttl: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^ttl=.* is not a time from one second to a hundred years"):
        counter("views", ttl=ttl)


def test_a_counter_shows_itself() -> None:
    assert repr(counter("views", ttl=60)) == "counter('views', ttl=datetime.timedelta(seconds=60))"
    assert counter("views", ttl=36_600 * 86_400).ttl == timedelta(days=36_600)


_names = itertools.count()


@MEMORY
@inputs(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    hits=st.lists(st.tuples(st.integers(0, 40 * 3_600), st.integers(-50, 50)), max_size=30),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Pacific/Apia", "Asia/Kolkata"]),
)
def test_the_days_of_a_series_add_up_to_the_total(hits: list[tuple[int, int]], zone: str, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "TIME_ZONE": zone}
    subject, now, expected = f"user:{next(_names)}", START, dict[date, int]()
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
