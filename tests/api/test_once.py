"""`once`: true the first time for any value, remembered for its ttl, and no secret in Redis."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from django_quota import aonce, once
from django_quota.exceptions import RuleError, StoreUnavailable
from django_quota.testing import freeze
from tests.support.inputs import inputs
from tests.support.steps import SECOND, START

both_stores = pytest.mark.usefixtures("either_store")
VALUES = st.one_of(st.text(), st.binary(), st.integers())


@both_stores
class TestSeen:
    def test_each_name_remembers_for_sync_and_async_though_limits_are_off(self, settings: Any) -> None:
        for name in ("event", "payment"):
            assert asyncio.run(aonce(name, "e1"))
            assert not once(name, "e1")
            assert not asyncio.run(aonce(name, "e1"))
            settings.QUOTA = {**settings.QUOTA, "ENABLED": False}

    def test_it_forgets_after_the_ttl_which_seeing_it_again_does_not_prolong(self) -> None:
        with freeze(START):
            assert once("event", "e1", ttl=10)
        with freeze(START + 9 * SECOND):
            assert not once("event", "e1", ttl=10)
        with freeze(START + 10 * SECOND - 1):
            assert not once("event", "e1", ttl=10)
        with freeze(START + 10 * SECOND):
            assert once("event", "e1", ttl=10)

    def test_of_many_who_bring_the_same_value_one_is_the_first(self) -> None:
        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(lambda _: once("event", "e1"), range(200))) == 1

    @inputs(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(values=st.lists(VALUES, max_size=20))
    def test_two_values_are_one_only_where_their_bytes_are(self, values: list[Any]) -> None:
        name = f"n{next(COUNTER)}"
        seen: set[bytes] = set()
        for value in values:
            data = value if isinstance(value, bytes) else str(value).encode()
            assert once(name, value) == (data not in seen)
            seen.add(data)


COUNTER = iter(range(10**9))


@pytest.mark.usefixtures("redis_cache")
class TestInRedis:
    def test_redis_holds_no_secret_and_memory_is_bounded(self, raw: redis.Redis, settings: Any) -> None:
        secret = "4111 1111 1111 1111 " * 1_000
        assert once("card", secret, ttl=60)
        keys: Any = raw.keys()
        assert len(keys) == 1
        assert keys[0].endswith(b"}:once:card")
        assert b"4111" not in keys[0]
        assert len(keys[0]) < 100
        assert 0 < raw.pttl(keys[0]) <= 60_001
        assert "4111" not in str(raw.get(keys[0]))
        settings.QUOTA = {**settings.QUOTA, "DIGEST_KEY": "another"}
        assert once("card", secret)

    def test_it_is_one_round_trip(self, raw: redis.Redis) -> None:
        once("event", "e1")
        before = raw.info("commandstats")["cmdstat_evalsha"]["calls"]
        once("event", "e1")
        assert raw.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 1

    def test_without_redis_it_does_not_guess(self, settings: Any) -> None:
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "unix:///nowhere.sock"}}
        with pytest.raises(StoreUnavailable):
            once("event", "e1")
        with pytest.raises(StoreUnavailable):
            asyncio.run(aonce("event", "e1"))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        *((name, "e1", "is not a name") for name in ("", " ", None, 7)),
        *(("event", value, "value=") for value in (None, 1.5, True, ["e1"], object())),
    ],
)
def test_what_is_no_name_or_no_value_is_an_error(name: Any, value: Any, words: str) -> None:
    with pytest.raises(RuleError, match=words):
        once(name, value)
