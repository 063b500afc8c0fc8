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

from django_quota import counter
from django_quota.exceptions import ConfigurationError, CounterError, RuleError, StoreUnavailable
from django_quota.testing import freeze
from django_quota.types import Counter
from tests.support.calls import calls_of
from tests.support.inputs import inputs
from tests.support.memory import with_a_store_whose_clock_runs, with_our_clock_off
from tests.support.steps import SECOND, START

REDIS = pytest.mark.usefixtures("redis_cache")
MEMORY = pytest.mark.usefixtures("memory_store")
DAY = 86_400 * SECOND
TODAY = datetime.fromtimestamp(START // SECOND, UTC).date()
VIEWS = counter("views")
COINS = counter("coins", group="shop")
"""A transfer on a Cluster needs a group."""
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


def dump(raw: redis.Redis) -> dict[bytes, bytes | None]:
    return {key: raw.dump(key) for key in raw.scan_iter()}


class Verbs:
    """What holds on every store."""

    @pytest.mark.parametrize(
        "steps",
        [
            [
                ("get", "user:1", 0), ("get", "user:1", TODAY, 0), ("pop", "user:1", 0), ("take", "user:1", False),
                ("unique_count", "user:1", 0), ("unique_count", "user:1", TODAY, 0),
            ],
            [("incr", "user:1", 1), ("incr", "user:1", 5, 6), ("incr", "user:1", -8, -2), ("incr", "user:1", 0, -2)],
            [("incr", "user:1", Weight.HEAVY, 3), ("take", "user:1", Weight.HEAVY, True), ("get", "user:1", 0)],
            [("set", "a:1", 5, None), *[("take", "a:1", n, n != 4) for n in (3, 4, 1, 1)], ("take", "a:1", False)],
            [("set", "a:1", -5, None), ("take", "a:1", False), ("get", "a:1", -5)],
            [("incr", "user:1", 7, 7), ("pop", "user:1", 7), ("pop", "user:1", 0), ("get", "user:1", 0)],
            [
                ("set", "a:1", 10, None), *[("transfer", "a:1", "a:2", n, n not in (7, 1)) for n in (4, 7, 6, 1, 0)],
                ("get", "a:1", 0), ("get", "a:2", 10),
            ],
            [
                ("set", "a:1", MAX_INT64, None), ("transfer", "a:1", "a:1", MAX_INT64, True),
                ("get", "a:1", MAX_INT64), ("set", "a:1", 3, None), ("transfer", "a:1", "a:1", 4, False),
                ("get", "a:1", 3),
            ],
            [
                ("set", "a:1", -5, None), ("set", "a:2", 5, None), ("transfer", "a:1", "a:2", 0, False),
                ("transfer", "a:2", "a:1", 3, True), ("get", "a:1", -2), ("get", "a:2", 2),
            ],
            [  # all but incr leave the days alone
                ("incr", "a:1", 9, 9), ("take", "a:1", 2, True), ("transfer", "a:1", "a:2", 3, True),
                ("pop", "a:1", 4), ("set", "a:1", 50, None), ("get", "a:1", TODAY, 9), ("get", "a:2", TODAY, 0),
            ],
            [  # numbers are exact next to 2^63: as doubles they would be one
                ("incr", "a:1", MAX_INT64 - 1, MAX_INT64 - 1), ("take", "a:1", MAX_INT64, False),
                ("transfer", "a:1", "a:2", MAX_INT64, False), ("incr", "a:1", MAX_INT64),
                ("get", "a:1", TODAY, MAX_INT64), ("take", "a:1", MAX_INT64 - 2, True), ("take", "a:1", 3, False),
                ("take", "a:1", 2, True), ("set", "a:2", MIN_INT64 + 1, None), ("pop", "a:2", MIN_INT64 + 1),
                ("set", "a:2", 2**53 + 1, None), ("get", "a:2", 2**53 + 1),
            ],
            *[  # what leaves 64 bits is refused, and changes nothing
                [
                    ("set", "a:1", start, None), ("incr", "a:1", n, "^Counter 'coins' of a:1: .*:c:coins:a%3A1 beyond"),
                    ("get", "a:1", start), ("get", "a:1", TODAY, 0),
                ]
                for start, n in [(MAX_INT64, 1), (1, MAX_INT64), (MIN_INT64, -1), (-1, MIN_INT64)]
            ],
            *[
                [
                    ("incr", "a:1", MAX_INT64, MAX_INT64), ("pop", "a:1", MAX_INT64), *before,
                    ("incr", "a:1", "c:coins:a%3A1:2025-11 beyond 64 bits"), ("get", "a:1", 17 if before else 0),
                    ("get", "a:1", TODAY, MAX_INT64),
                ]
                for before in ([], [("set", "a:1", 17, None)])
            ],
            [
                ("set", "a:1", 5, None), ("set", "a:2", MAX_INT64 - 4, None),
                ("transfer", "a:1", "a:2", 5, "^Counter 'coins' of a:2: .*:c:coins:a%3A2 beyond 64 bits"),
                ("get", "a:1", 5), ("get", "a:2", MAX_INT64 - 4),
            ],
        ],
    )  # fmt: skip
    def test_each_step_returns_a_value_or_raises_these_words(self, do: Do, steps: list[tuple[Any, ...]]) -> None:
        with freeze(START):
            for verb, *arguments, expected in steps:
                if isinstance(expected, str):
                    with pytest.raises(CounterError, match=expected):
                        do(COINS, verb, *arguments)
                else:
                    assert do(COINS, verb, *arguments) == expected, (verb, arguments)

    def test_incr_counts_in_all_and_the_day(self, do: Do) -> None:
        with freeze(START):
            do(VIEWS, "incr", "user:1", -2)
        with freeze(START + DAY):
            assert [do(VIEWS, "incr", "user:1", 10), do(VIEWS, "get", "user:1")] == [8, 8]
            assert [do(VIEWS, "get", "user:1", TODAY + timedelta(days=n)) for n in (0, 1)] == [-2, 10]

    def test_subjects_names_and_groups_are_apart(self, do: Do) -> None:
        do(VIEWS, "incr", "user:1")
        with freeze(START):
            do(COINS, "incr", "user:1")
        others = [counter("coins"), counter("coins", group="till"), counter("views", group="shop"), counter("views:2")]
        assert [do(other, "get", subject) for other in others for subject in ("user:1", "coins:user:1")] == [0] * 8
        assert [do(VIEWS, "get", "user:2"), do(counter("views"), "get", "user:1")] == [0, 1]
        assert do(COINS, "get", "user:1") == do(COINS, "get", "user:1", TODAY) == 1

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

    def test_a_range_of_no_days_or_too_many_and_what_is_no_date_are_refused(self, do: Do) -> None:
        for last in (TODAY - timedelta(days=1), TODAY + timedelta(days=3_660)):
            words = rf"^Counter 'views' of user:1: {TODAY} to {last} is not a range of 1 to 3660"
            with pytest.raises(CounterError, match=words):
                do(VIEWS, "series", "user:1", TODAY, last)
        for day in ("2026-11-21", datetime(2026, 11, 21, tzinfo=UTC), 20_261_121, True):
            for verb, *of in (("get", day), ("series", day, TODAY), ("series", TODAY, day), ("unique_count", day)):
                with pytest.raises(CounterError, match="is not a date"):
                    do(VIEWS, verb, "user:1", *of)

    def test_an_amount_that_is_none_is_refused(self, do: Do) -> None:
        do(VIEWS, "set", "user:1", 5)
        for n in (MAX_INT64 + 1, MIN_INT64 - 1, 10**5_000, 1.0, "1", None, True):
            for verb in ("incr", "set", "take"):
                with pytest.raises(CounterError, match=r"is not a whole number|does not fit into 64"):
                    do(VIEWS, verb, "user:1", n)
            with pytest.raises(CounterError, match=r"is not a whole number|does not fit into 64"):
                do(VIEWS, "transfer", "user:1", "user:1", n)
        for n in (0, -1, MIN_INT64):
            with pytest.raises(CounterError, match=f"{n} is less than 1"):
                do(VIEWS, "take", "user:1", n)
        with pytest.raises(CounterError, match="-1 is less than 0"):
            do(VIEWS, "transfer", "user:1", "user:1", -1)
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

    def test_any_text_or_number_is_a_value_and_nothing_else(self, do: Do) -> None:
        for value in ("", "\ud800", "x" * 100_000, "\x00", 2**70):
            assert [do(VIEWS, "unique", "page:1", value) for _ in range(2)] == [True, False]
        for wrong in (None, True, 1.5, b"a", ["a"]):
            with pytest.raises(CounterError, match="is not a value to count"):
                do(VIEWS, "unique", "page:1", wrong)

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
                do(COINS, "transfer", "user:42", nobody, 1)
        assert do(VIEWS, "get", "user:42") == 1

    def test_counters_count_where_limits_are_switched_off(self, do: Do, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
        assert [do(VIEWS, "incr", "user:1"), do(VIEWS, "take", "user:1")] == [1, True]

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
    """On a Redis Cluster, two subjects are in two slots, unless a group puts them in one."""

    def test_a_transfer_between_two_slots_names_both_counters_and_the_group(self, do: Do) -> None:
        do(VIEWS, "set", "user:1", 5)
        with pytest.raises(ConfigurationError) as error:
            do(VIEWS, "transfer", "user:1", "user:2", 5)
        assert str(error.value) == (
            "Counter 'views' of user:1 and counter 'views' of user:2 are in two slots of the Redis Cluster, and a "
            "transfer needs one. Give both the same group, for example counter('views', group='views')."
        )
        assert [do(VIEWS, "get", name) for name in ("user:1", "user:2")] == [5, 0]
        assert do(VIEWS, "transfer", "user:1", "user:1", 5) is True


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
        COINS.incr("user:1", 5)
        COINS.unique("user:1", "a")
    assert set(raw.scan_iter()) == {
        f"{BASE}:{what}".encode() for what in ("c:views", "c:views:2025-11", "u:views", "u:views:2025-11-21")
    } | {
        f"quota:1:{{group!shop}}:{what}".encode()
        for kind in ("c:coins:user%3A1", "u:coins:user%3A1")
        for what in (kind, f"{kind}:2025-11" if kind.startswith("c") else f"{kind}:2025-11-21")
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
@pytest.mark.parametrize(("of", "seconds"), [(counter("views", ttl=1_000), 1_000), (VIEWS, 400 * 86_400)])
def test_without_a_frozen_clock_a_key_lives_for_its_ttl_by_default_400_days(
    raw: redis.Redis, of: Counter, seconds: int
) -> None:
    for change in _changes(of):
        change()
    keys = list(raw.scan_iter())
    assert len(keys) == 5
    assert all(900 * seconds < raw.pttl(key) <= 1_000 * seconds + 1 for key in keys)


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


def refuses(raw: redis.Redis, key: str, verb: str, *arguments: Any) -> None:
    """Check that a verb tells which key is no counter, and of whom, and changes nothing."""
    before = dump(raw)
    with freeze(START), pytest.raises(CounterError, match="is not a counter") as error:
        getattr(VIEWS, verb)(*arguments)
    assert f"{key} in Redis is not a counter" in str(error.value)
    assert (error.value.counter, error.value.subject) == ("views", "user:2" if key == OTHER else "user:1")
    assert dump(raw) == before
    assert all(7_700 < raw.ttl(there) <= 7_777 for there in raw.scan_iter())


@REDIS
@pytest.mark.parametrize("value", NO_TOTALS, ids=repr)
def test_a_wrong_total_is_an_error_of_each_verb(raw: redis.Redis, value: Any) -> None:
    put(raw, TOTAL, value)
    put(raw, OTHER, b"50")
    for verb, *arguments in (
        ("incr",), ("incr", 0), ("get",), ("set", 5), ("take",), ("pop",), ("transfer", "user:2", 1),
        ("transfer", "user:1", 0),
    ):  # fmt: skip
        refuses(raw, TOTAL, verb, "user:1", *arguments)
    refuses(raw, TOTAL, "transfer", "user:2", "user:1", 1)
    refuses(raw, TOTAL, "transfer", "user:2", "user:1", 99)
    raw.delete(TOTAL)
    raw.rename(OTHER, TOTAL)
    put(raw, OTHER, value)
    refuses(raw, OTHER, "transfer", "user:1", "user:2", 1)


@REDIS
@pytest.mark.parametrize("value", [b"abc", b"12", ["a list"], {"21": "x"}, {"21": "1.5"}, {"21": b"\xff"}], ids=repr)
@pytest.mark.parametrize("total", [None, b"5"])
def test_wrong_days_are_an_error_and_the_total_stays(raw: redis.Redis, value: Any, total: bytes | None) -> None:
    put(raw, MONTH, value)
    if total is not None:
        put(raw, TOTAL, total)
    refuses(raw, MONTH, "incr", "user:1", 3)
    refuses(raw, MONTH, "get", "user:1", TODAY)
    refuses(raw, MONTH, "series", "user:1", TODAY - timedelta(days=90), TODAY + timedelta(days=90))


@REDIS
@pytest.mark.parametrize(
    "value", [b"abc", b"12", b"", ["a list"], {"a": "b"}, b"HYLL", b"HYLL\x01" + bytes(10) + b"\x80\xff\x00"], ids=repr
)
@pytest.mark.parametrize("known", [False, True])
def test_wrong_values_are_an_error_and_the_others_stay(raw: redis.Redis, value: Any, known: bool) -> None:
    for key, other, day in ((VALUES, DATE, []), (DATE, VALUES, [TODAY])):
        raw.flushall()
        if known:
            raw.pfadd(other, "a")
            raw.expire(other, 7_777)
        put(raw, key, value)
        refuses(raw, key, "unique", "user:1", "b")
        refuses(raw, key, "unique_count", "user:1", *day)


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


# --- what is wrong ----------------------------------------------------------------------------------------------------


@MEMORY
def test_a_store_whose_day_runs_away_is_asked_five_times(do: Do, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = with_a_store_whose_clock_runs(DAY, monkeypatch)
    with pytest.raises(StoreUnavailable, match="another day with each call"):
        do(VIEWS, "incr", "user:1")
    assert len(calls) == 5


@pytest.mark.parametrize(
    ("option", "values", "words"),
    [
        ("name", ["", " ", None, 7, b"views"], r"is not the name of a counter. Use, for example, 'pageviews'"),
        ("group", ["", " ", 7, b"shop"], r"is not the group of a counter. Use, for example, group='shop'"),
        ("ttl", [0.5, timedelta(days=36_601)], r"^ttl=.* is not a duration from 1 second to 36600 days"),
    ],
)
def test_a_wrong_option_is_refused(option: str, values: list[Any], words: str) -> None:
    for value in values:
        with pytest.raises(ConfigurationError, match=words):
            counter(**{"name": "views", option: value})


def test_a_counter_shows_itself() -> None:
    assert repr(counter("views", ttl=60)) == "counter('views', ttl=datetime.timedelta(seconds=60))"
    assert repr(COINS) == "counter('coins', ttl=datetime.timedelta(days=400), group='shop')"
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
