"""Holds in Redis, and while there is none."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.test import override_settings

from django_quota import QuotaExceeded, check, refund, reserve
from django_quota.testing import freeze
from tests.support.calls import calls_of
from tests.support.steps import SECOND, START

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
        assert hold.settle(100).degraded

    def test_a_rule_that_counts_locally_reserves_and_settles_here(self) -> None:
        with reserve("1000/h", SUBJECT, 600, on_unavailable="local") as hold:
            assert hold.decision.degraded
        with pytest.raises(QuotaExceeded):
            reserve("1000/h", SUBJECT, 600, on_unavailable="local")

    def test_a_hold_that_was_taken_before_is_settled_without_an_error(self) -> None:
        settings_of_redis = override_settings(QUOTA={"STORE": "memory"})
        with settings_of_redis:
            hold = reserve("1000/h", SUBJECT, 600, on_unavailable="local")
        assert hold.settle(100).degraded

    def test_a_rule_that_denies_refuses(self) -> None:
        with pytest.raises(QuotaExceeded) as caught:
            reserve("1000/h", SUBJECT, 600, on_unavailable="deny")
        assert caught.value.decision.degraded


@pytest.mark.usefixtures("redis_cache")
class TestWhatIsLostMeanwhile:
    """Keys that are gone by their TTL, or because somebody deleted them."""

    def keys(self) -> tuple[str, str]:
        return f"quota:1:{{{SUBJECT}}}:s", f"quota:1:{{{SUBJECT}}}:h:1000/h"

    def test_how_the_subject_stands_has_a_ttl_again(self, raw: redis.Redis) -> None:
        status_key, _ = self.keys()
        holds = [reserve("1000/h", SUBJECT, 5) for _ in range(2)]
        raw.delete(status_key)
        holds[1].settle(0)
        assert 0 < raw.pttl(status_key) <= 3_700_000

    def test_holds_that_are_gone_are_asked_for_once(self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        status_key, holds = self.keys()
        with freeze(START):
            reserve("1000/h", SUBJECT, 5, ttl=1)
            raw.delete(holds)
        calls = calls_of(monkeypatch)
        with freeze(START + 2 * SECOND):
            for _ in range(4):
                check("1000/h", SUBJECT)
        assert len(calls) == 5
        assert not raw.hexists(status_key, "d:1000/h")


@pytest.mark.usefixtures("redis_cache")
def test_what_was_given_back_of_a_bucket_is_kept_as_long_as_a_hold_may_ask_for_it(raw: redis.Redis) -> None:
    check("6/h", SUBJECT, 3, algorithm="token_bucket")
    refund("6/h", SUBJECT, 3, algorithm="token_bucket")
    (key,) = raw.scan_iter(match="*:tb.*")
    assert 1_790_000 < raw.pttl(key) <= 1_800_001


@pytest.mark.usefixtures("redis_cache")
def test_nothing_of_a_hold_stays_behind_in_redis_without_a_ttl(raw: redis.Redis) -> None:
    reserve("1000/h", SUBJECT, 600, ttl=5)
    keys = {key.decode().rpartition("}:")[2]: raw.pttl(key) for key in raw.scan_iter()}
    assert {name.partition(":")[0] for name in keys} == {"h", "s", "r", "day"}
    assert all(0 < ttl <= 8 * 86_400_000 + 1 for ttl in keys.values())


@pytest.mark.usefixtures("redis_cache")
def test_a_hold_is_kept_as_long_as_there_is_anything_to_give_back(raw: redis.Redis) -> None:
    """A hold is kept after it is due: a call an hour later still finds it."""
    reserve("1000/h", SUBJECT, 600, ttl=5)
    for what in ("h:1000/h", "s"):
        assert 3_590_000 < raw.pttl(f"quota:1:{{{SUBJECT}}}:{what}") <= 3_636_001


@pytest.mark.usefixtures("redis_cache")
def test_settling_above_the_limit_adds_at_most_as_many_entries_as_the_limit(raw: redis.Redis) -> None:
    holds = []
    for number in range(5):  # each five is given back a second later: so many more fit than the limit says
        with freeze(START + 2 * number * SECOND):
            holds += [reserve("5/d", SUBJECT, ttl=1) for _ in range(5)]
    for number, hold in enumerate(holds):
        for key in raw.scan_iter(match="*:sw.*"):
            raw.pexpire(key, 1_000)
        with freeze(START + 20 * SECOND + number):
            hold.settle(1)
        (key,) = raw.scan_iter(match="*:sw.*")
        assert raw.pttl(key) > 86_400_000
    assert raw.zcard(key) <= 6
    with freeze(START + 86_420 * SECOND + len(holds)):
        assert check("5/d", SUBJECT, 5)
