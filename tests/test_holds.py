"""Holds in Redis, and while there is none."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from django_quota import QuotaExceeded, reserve

SUBJECT = "user:42"


class TestWithoutTheStore:
    @pytest.fixture(autouse=True)
    def no_redis(self, settings: Any) -> None:
        settings.CACHES = {
            "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/redis.sock"}
        }
        settings.QUOTA = {}

    def test_a_rule_that_allows_reserves_unseen_and_settling_does_nothing(self) -> None:
        hold = reserve("1000/h", SUBJECT, 600)
        assert hold.decision.degraded
        assert not hold.is_open
        assert hold.settle(100) is hold.decision

    def test_a_rule_that_denies_refuses(self) -> None:
        with pytest.raises(QuotaExceeded) as caught:
            reserve("1000/h", SUBJECT, 600, on_unavailable="deny")
        assert caught.value.decision.degraded


@pytest.mark.usefixtures("redis_cache")
def test_nothing_of_a_hold_stays_behind_in_redis_without_a_ttl(raw: redis.Redis) -> None:
    reserve("1000/h", SUBJECT, 600, ttl=5)
    keys = {key.decode().rpartition("}:")[2]: raw.pttl(key) for key in raw.scan_iter()}
    assert {name.partition(":")[0] for name in keys} == {"h", "s", "r", "day"}
    assert all(0 < ttl <= 8 * 86_400_000 + 1 for ttl in keys.values())
