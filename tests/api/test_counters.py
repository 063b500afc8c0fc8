"""Counters as users call them, and `once`: every verb, sync and async; their bounds, keys and errors."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from django.contrib.auth.models import AnonymousUser, User
from django.test import RequestFactory

from django_quota import aonce, counter, once
from django_quota.exceptions import ConfigurationError, CounterError, RuleError
from django_quota.testing import freeze
from django_quota.types import Counter
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


def ado(of: Counter, verb: str) -> Callable[..., Any]:
    return lambda *arguments: asyncio.run(getattr(of, f"a{verb}")(*arguments))


@pytest.fixture(params=["sync", "async"])
def do(request: pytest.FixtureRequest) -> Do:
    """Call a verb of a counter: `do(counter, "incr", "user:1", 5)`."""
    chosen = getattr if request.param == "sync" else ado
    return lambda of, verb, *arguments: chosen(of, verb)(*arguments)


NEW, COUNTED, TAKEN, MOVED = (
    [
        ("get", "a:1", 0), ("get", "a:1", TODAY, 0), ("pop", "a:1", 0), ("take", "a:1", False),
        ("unique_count", "a:1", 0), ("unique_count", "a:1", TODAY, 0),
    ],
    [
        ("incr", "a:1", 1), ("incr", "a:1", 5, 6), ("incr", "a:1", -8, -2), ("incr", "a:1", 3, 1),
        ("pop", "a:1", 1), ("get", "a:1", 0), ("get", "a:1", TODAY, 1),
    ],
    [
        ("set", "a:1", 5, None), *[("take", "a:1", n, n != 4) for n in (3, 4, 1, 1)], ("take", "a:1", False),
        ("set", "a:1", -5, None), ("take", "a:1", False), ("get", "a:1", -5), ("get", "a:1", TODAY, 0),
    ],
    [
        ("set", "a:1", 10, None), *[("transfer", "a:1", "a:2", n, n not in (7, 1)) for n in (4, 7, 6, 1, 0)],
        ("get", "a:1", 0), ("get", "a:2", 10), ("transfer", "a:2", "a:2", 10, True), ("get", "a:2", 10),
        ("set", "a:1", -5, None), ("transfer", "a:1", "a:2", 0, False), ("transfer", "a:2", "a:1", 3, True),
        ("get", "a:1", -2), ("get", "a:2", TODAY, 0),
    ],
)  # fmt: skip
EXACT = [  # as doubles these numbers would be one
    ("incr", "a:1", MAX_INT64 - 1, MAX_INT64 - 1), ("take", "a:1", MAX_INT64, False), ("incr", "a:1", MAX_INT64),
    ("get", "a:1", TODAY, MAX_INT64), ("take", "a:1", MAX_INT64 - 2, True), ("take", "a:1", 3, False),
    ("set", "a:2", MIN_INT64 + 1, None), ("pop", "a:2", MIN_INT64 + 1), ("set", "a:2", 2**53 + 1, None),
    ("get", "a:2", 2**53 + 1),
]  # fmt: skip
TOO_LARGE = [  # it changes nothing
    ("set", "a:1", MAX_INT64, None), ("incr", "a:1", "^Counter 'coins' of a:1: .*:c:coins:a%3A1 beyond 64"),
    ("get", "a:1", MAX_INT64), ("get", "a:1", TODAY, 0), ("set", "a:1", -1, None),
    ("incr", "a:1", MIN_INT64, "beyond 64 bits"), ("set", "a:1", 5, None), ("set", "a:2", MAX_INT64 - 4, None),
    ("transfer", "a:1", "a:2", 5, "^Counter 'coins' of a:2: .*:c:coins:a%3A2 beyond 64 bits"), ("get", "a:1", 5),
    ("set", "a:3", 0, None), ("incr", "a:3", MAX_INT64, MAX_INT64), ("pop", "a:3", MAX_INT64),
    ("incr", "a:3", "c:coins:a%3A3:2025-11 beyond 64 bits"), ("get", "a:3", 0), ("get", "a:3", TODAY, MAX_INT64),
]  # fmt: skip


@pytest.mark.usefixtures("either_store")
@pytest.mark.parametrize("steps", [NEW, COUNTED, TAKEN, MOVED, EXACT, TOO_LARGE])
def test_each_verb_returns_a_value_or_raises_these_words(steps: list[tuple[Any, ...]]) -> None:
    with freeze(START):
        for number, (verb, *arguments, expected) in enumerate(steps):
            do = ado if number % 2 else getattr
            if isinstance(expected, str):
                with pytest.raises(CounterError, match=expected):
                    do(COINS, verb)(*arguments)
            else:
                assert do(COINS, verb)(*arguments) == expected, (verb, arguments)


@MEMORY
class TestDays:
    def test_subjects_names_and_groups_are_apart(self) -> None:
        VIEWS.incr("user:1")
        COINS.incr("user:1")
        others = [counter("coins"), counter("coins", group="till"), counter("views", group="shop"), counter("views:2")]
        assert [other.get(subject) for other in others for subject in ("user:1", "coins:user:1")] == [0] * 8
        assert (VIEWS.get("user:2"), COINS.get("user:2")) == (0, 0)

    def test_a_series_has_every_day_over_months_and_years(self, do: Do) -> None:
        for days in (0, 40, 75):
            with freeze(START + days * DAY):
                do(VIEWS, "incr", "user:1", days + 1)
        first, last = TODAY - timedelta(days=1), TODAY + timedelta(days=80)
        series = do(VIEWS, "series", "user:1", first, last)
        assert list(series) == [first + timedelta(days=n) for n in range(82)]
        assert {day: n for day, n in series.items() if n} == {
            date(2025, 11, 21): 1, date(2025, 12, 31): 41, date(2026, 2, 4): 76,
        }  # fmt: skip
        assert do(VIEWS, "series", "user:1", date.max, date.max) == {date.max: 0}
        assert len(do(VIEWS, "series", "user:1", TODAY - timedelta(days=3_659), TODAY)) == 3_660

    def test_different_values_are_counted_once_in_all_and_a_day(self, do: Do) -> None:
        with freeze(START):
            found = [do(VIEWS, "unique", "page:1", value) for value in ("a", "b", "a", 7, "7", "", "\ud800", 2**70)]
            assert found == [True, True, False, True, False, True, True, True]
        with freeze(START + DAY):
            assert [do(VIEWS, "unique", "page:1", value) for value in ("a", "c")] == [False, True]
            assert do(VIEWS, "unique_count", "page:1") == 7
            assert [do(VIEWS, "unique_count", "page:1", TODAY + timedelta(days=n)) for n in (0, 1)] == [6, 2]
            assert do(VIEWS, "get", "page:1") == 0

    def test_a_day_ends_at_midnight_of_the_zone(self, settings: Any) -> None:
        """Berlin: 2025-10-26 has 25 hours, 2026-03-29 has 23."""
        settings.QUOTA = {**settings.QUOTA, "TIME_ZONE": "Europe/Berlin"}
        for day, hours in ((date(2025, 10, 26), 25), (date(2026, 3, 29), 23), (date(2026, 1, 1), 24)):
            midnight = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo("Europe/Berlin"))
            begins = int(midnight.timestamp()) * SECOND
            ends = begins + hours * 3_600 * SECOND
            for moment, n in ((begins - 1, 1), (begins, 10), (ends - 1, 100), (ends, 1_000)):
                with freeze(moment):
                    VIEWS.incr("user:1", n)
                    VIEWS.unique("user:1", n)
            days = [day + timedelta(days=n) for n in (-1, 0, 1)]
            assert [VIEWS.get("user:1", day) for day in days] == [1, 110, 1_000]
            assert [VIEWS.unique_count("user:1", day) for day in days] == [1, 2, 1]

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
            found = [(do(short, "get", name), do(short, "unique_count", name)) for name in ("user:1", "user:2")]
            assert (found, do(short, "get", "user:1", TODAY)) == ([(0, 0), (4, 1)], 0)


@MEMORY
@pytest.mark.parametrize(
    ("verb", "arguments", "words"),
    [
        *[("series", (TODAY, TODAY + timedelta(days=n)), "not a range of 1 to 3660") for n in (-1, 3_660)],
        *[("get", (day,), "is not a date") for day in ("2026-11-21", datetime(2026, 11, 21, tzinfo=UTC), True)],
        ("series", (TODAY, "2026-11-21"), "is not a date"),
        *[("incr", (n,), "is not a whole number|does not fit into 64") for n in (MAX_INT64 + 1, 10**5_000, 1.0, True)],
        ("set", (MIN_INT64 - 1,), "does not fit into 64"), ("take", ("1",), "is not a whole number"),
        *[("take", (n,), f"{n} is less than 1") for n in (0, MIN_INT64)],
        ("transfer", ("user:1", -1), "-1 is less than 0"), ("transfer", ("user:1", 1.0), "is not a whole number"),
        *[("unique", (wrong,), "is not a value to count") for wrong in (None, True, 1.5, b"a", ["a"])],
    ],
)  # fmt: skip
def test_what_is_no_day_amount_or_value_is_refused(verb: str, arguments: Any, words: str) -> None:
    for do in (getattr, ado):
        VIEWS.set("user:1", 5)
        with pytest.raises(CounterError, match=f"^Counter 'views' of user:1: .*({words})"):
            do(VIEWS, verb)("user:1", *arguments)
        assert VIEWS.get("user:1") == 5


@MEMORY
def test_users_are_subjects_and_requests_and_nobody_are_not_though_limits_are_off(do: Do, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
    do(VIEWS, "incr", User(pk=42))
    assert [do(VIEWS, "get", "user:42"), do(VIEWS, "take", "user:42")] == [1, True]
    do(VIEWS, "incr", "ip:2001:DB8::1")
    assert do(VIEWS, "get", "ip:2001:db8::2") == 1
    for nobody in (AnonymousUser(), User(), None, "", RequestFactory().get("/")):
        for verb, arguments in (("incr", (nobody,)), ("transfer", ("user:42", nobody, 1))):
            with pytest.raises(RuleError):
                do(VIEWS, verb, *arguments)


@pytest.mark.usefixtures("cluster")
def test_a_transfer_between_two_slots_of_a_cluster_names_both_counters_and_the_group() -> None:
    VIEWS.set("user:1", 5)
    with pytest.raises(ConfigurationError, match=r"of user:1 and .*of user:2 are in two slots .*group='views'\)"):
        VIEWS.transfer("user:1", "user:2", 5)
    assert (VIEWS.get("user:1"), VIEWS.get("user:2")) == (5, 0)
    assert VIEWS.transfer("user:1", "user:1", 5)


@REDIS
@pytest.mark.parametrize(("of", "seconds"), [(counter("views", ttl=1_000), 1_000), (VIEWS, 400 * 86_400)])
def test_a_verb_is_one_call_and_a_key_lives_for_its_ttl_by_default_400_days(
    raw: redis.Redis, of: Counter, seconds: int
) -> None:
    verbs: list[tuple[Any, ...]] = [
        ("incr", 5), ("set", 9), ("take",), ("transfer", "user:2", 1), ("unique", "a"), ("unique", "a"), ("incr", 0),
        ("get",), ("series", TODAY - timedelta(days=3_000), TODAY), ("unique_count", TODAY), ("pop",),
    ]  # fmt: skip
    for _ in range(2):  # the first round loads the scripts
        raw.config_resetstat()
        for verb, *arguments in verbs:
            getattr(of, verb)("user:1", *arguments)
            keys = list(raw.scan_iter())
            assert all(900 * seconds < raw.pttl(key) <= 1_000 * seconds + 1 for key in keys)
    assert raw.info("commandstats")["cmdstat_evalsha"]["calls"] == len(verbs)


TOTAL, MONTH, VALUES = (f"{BASE}:{what}" for what in ("c:views", "c:views:2025-11", "u:views"))


@REDIS
@pytest.mark.parametrize(
    ("key", "values", "verbs"),
    [
        (
            TOTAL, [b"", b" 1", b"+1", b"1e3", b"007", b"-0", b"9223372036854775808", ["1"]],
            [("incr",), ("get",), ("set", 5), ("take",), ("pop",), ("transfer", "user:2", 1)],
        ),
        (MONTH, [b"12", {"21": "1.5"}], [("incr", 3), ("get", TODAY), ("series", TODAY, TODAY + timedelta(days=90))]),
        (VALUES, [b"12", b"HYLL\x01" + bytes(10) + b"\x80\xff\x00"], [("unique", "b"), ("unique_count",)]),
    ],
)  # fmt: skip
def test_a_key_that_holds_something_else_is_named_and_nothing_changes(
    raw: redis.Redis, key: str, values: list[Any], verbs: list[Any]
) -> None:
    for value in values:
        raw.flushall()
        if isinstance(value, bytes):
            raw.set(key, value)
        else:
            raw.hset(key, mapping=value) if isinstance(value, dict) else raw.rpush(key, *value)
        raw.expire(key, 7_777)
        before = raw.dump(key)
        for verb, *arguments in verbs:
            with freeze(START), pytest.raises(CounterError, match=f"{key} in the store is not a counter") as error:
                getattr(VIEWS, verb)("user:1", *arguments)
            assert (error.value.counter, error.value.subject) == ("views", "user:1")
        assert ([each.decode() for each in raw.scan_iter()], raw.dump(key)) == ([key], before)
        assert 7_700 < int(raw.ttl(key)) <= 7_777


def test_a_wrong_option_is_refused() -> None:
    wrong: list[tuple[str, list[Any], str]] = [
        ("name", ["", " ", None], r"is not the name of a counter. Use, for example, 'pageviews'"),
        ("group", ["", b"shop"], r"is not the group of a counter. Use, for example, group='shop'"),
        ("ttl", [0.5, timedelta(days=36_601)], r"^ttl=.* is not a duration from 1 second to 36600 days"),
    ]
    for option, values, words in wrong:
        for value in values:
            with pytest.raises(ConfigurationError, match=words):
                counter(**{"name": "views", option: value})


@pytest.mark.usefixtures("either_store")
class TestOnce:
    def test_each_name_remembers_until_the_ttl_has_passed_though_limits_are_off(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
        for moment, is_first in ((0, True), (9 * SECOND, False), (10 * SECOND - 1, False), (10 * SECOND, True)):
            with freeze(START + moment):
                assert asyncio.run(aonce("event", "e1", ttl=10)) == is_first
                assert not once("event", "e1", ttl=10)
                assert once("payment", moment, ttl=10)

    def test_of_many_who_bring_the_same_value_one_is_the_first(self) -> None:
        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(lambda _: once("event", "e1"), range(64))) == 1


@MEMORY
def test_two_values_of_once_are_one_only_where_their_bytes_are() -> None:
    values: list[Any] = ["7", 7, b"7", "é", "é".encode(), "e\u0301", "", b"\xff", 2**70, str(2**70), "a b", "a  b"]
    seen = set[bytes]()
    for value in values:
        data = value if isinstance(value, bytes) else str(value).encode()
        assert once("event", value) == (data not in seen)
        seen.add(data)
    for given in (("", "e1"), (7, "e1"), ("event", None), ("event", 1.5), ("event", True)):
        with pytest.raises(RuleError, match=r"is not a name|value="):
            once(*given)


@REDIS
def test_once_keeps_no_secret_is_bounded_and_one_round_trip(raw: redis.Redis, settings: Any) -> None:
    secret = "4111 1111 1111 1111 " * 1_000
    assert once("card", secret, ttl=60)
    (key,) = raw.scan_iter()
    assert b"4111" not in key + (raw.get(key) or b"")
    assert len(key) < 100
    assert 0 < raw.pttl(key) <= 60_001
    raw.config_resetstat()
    assert not once("card", secret, ttl=60)
    assert raw.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
    settings.QUOTA = {**settings.QUOTA, "DIGEST_KEY": "another"}
    assert once("card", secret)
