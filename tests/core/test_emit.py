"""What happens around a decision: the events, and the counts of the day."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.http import HttpResponse

from django_quota import Decision, acheck, check, peek, quota, refund, reset
from django_quota.signals import banned, near_limit, refused
from django_quota.testing import freeze
from tests.support.calls import calls_of, get, run
from tests.support.steps import SECOND, START

SUBJECT = "ip:203.0.113.9"
MINUTE, HOUR, DAY = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND
BAN = {"after": "3/m", "for": ["10m", "1h", "1d"]}


@pytest.mark.usefixtures("either_store")
class TestEmittedSignals:
    @pytest.fixture
    def emitted(self) -> Iterator[list[tuple[str, str, str]]]:
        """The signals that were sent: which, rule, subject."""
        found: list[tuple[str, str, str]] = []

        def record(name: str) -> Callable[..., None]:
            def receiver(rule: Any, subject: str, decision: Decision, **_: Any) -> None:
                assert isinstance(decision, Decision)
                found.append((name, rule.name, subject))

            return receiver

        with ExitStack() as stack:
            for name, signal in (("refused", refused), ("banned", banned), ("near", near_limit)):
                receiver = record(name)
                signal.connect(receiver)
                stack.callback(signal.disconnect, receiver)
            yield found

    def test_a_refusal_is_emitted_once_a_second_and_subject(self, emitted: list[Any]) -> None:
        for moment in (0, 1, SECOND - 1, SECOND, SECOND + 5):
            with freeze(START + moment):
                check("0/m", SUBJECT)
                check("0/m", "ip:192.0.2.1")
        assert emitted == [("refused", "0/m", SUBJECT), ("refused", "0/m", "ip:192.0.2.1")] * 2

    def test_coming_near_is_emitted_once_a_window(self, emitted: list[Any]) -> None:
        with freeze(START):
            for _ in range(8):
                assert emitted == []
                check("10/m", SUBJECT)
        assert emitted == [("near", "10/m", SUBJECT)]
        with freeze(START):
            refund("10/m", SUBJECT)
            check("10/m", SUBJECT)
        assert len(emitted) == 1

    def test_warn_at_says_from_where_on(self, emitted: list[Any]) -> None:
        with freeze(START):
            check("10/m", SUBJECT, warn_at=0.2)
            assert emitted == []
            check("10/m", SUBJECT, warn_at=0.2)
            check("9/m", SUBJECT, warn_at=None, cost=9)
        assert emitted == [("near", "10/m", SUBJECT)]

    def test_only_the_hit_that_crosses_the_share_emits_near(self, emitted: list[Any]) -> None:
        with freeze(START):
            check("10/30d", SUBJECT, cost=8)
        with freeze(START + DAY + 1):  # when a warning may be emitted again
            check("10/30d", SUBJECT)
        assert emitted == [("near", "10/30d", SUBJECT)]

    def test_coming_near_again_is_emitted_after_a_day_though_the_window_is_longer(self, emitted: list[Any]) -> None:
        for moment, times in ((START, 1), (START + DAY - 1, 1), (START + DAY + 1, 2)):
            with freeze(moment):
                refund("10/30d", SUBJECT, 8)
                check("10/30d", SUBJECT, 8)
            assert emitted == [("near", "10/30d", SUBJECT)] * times

    def test_coming_near_again_after_a_reset_is_emitted(self, emitted: list[Any]) -> None:
        with freeze(START):
            for times in (1, 2):
                check("10/30d", SUBJECT, 8)
                assert emitted == [("near", "10/30d", SUBJECT)] * times
                reset("10/30d", SUBJECT)

    def test_a_limit_too_small_to_be_near_emits_nothing(self, emitted: list[Any]) -> None:
        with freeze(START):
            for _ in range(4):
                check("4/m", SUBJECT)
        assert emitted == []

    def test_a_ban_is_emitted_once_and_not_as_a_refusal(self, emitted: list[Any]) -> None:
        with freeze(START):
            check("1/h", SUBJECT, ban={"after": "1/m", "for": "1h"})
            check("1/h", SUBJECT, ban={"after": "1/m", "for": "1h"})
        assert emitted == [("banned", "1/h", SUBJECT)]

    def test_a_shadow_rule_emits_nothing(self, emitted: list[Any]) -> None:
        with freeze(START):
            for _ in range(5):
                check("5/m", SUBJECT, shadow=True, cost=4)
        assert emitted == []

    def test_an_async_check_calls_async_receivers_too(self, emitted: list[Any]) -> None:
        heard = []

        async def receiver(subject: str, **_: Any) -> None:
            await asyncio.sleep(0)
            heard.append(subject)

        refused.connect(receiver)
        try:
            with freeze(START):
                asyncio.run(acheck("0/m", SUBJECT))
        finally:
            refused.disconnect(receiver)
        assert heard == [SUBJECT]
        assert emitted == [("refused", "0/m", SUBJECT)]

    def test_a_receiver_that_fails_does_not_fail_the_check_and_is_logged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def receiver(**_: Any) -> None:
            raise ValueError("a receiver of somebody's")

        refused.connect(receiver)
        try:
            with freeze(START):
                assert not check("0/m", SUBJECT)
        finally:
            refused.disconnect(receiver)
        assert "a receiver of somebody's" in caplog.text

    def test_events_0_emits_nothing(self, emitted: list[Any], settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "EVENTS": 0}
        with freeze(START):
            check("0/m", SUBJECT)
            for _ in range(3):
                decision = check("1/h", SUBJECT, ban={"after": "1/m", "for": "1h"})
        assert decision.outcomes[0].why == "banned"
        assert emitted == []

    def test_an_async_receiver_does_not_fail_a_sync_check_in_an_event_loop(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def receiver(**_: Any) -> None: ...

        async def work() -> Decision:
            return check("0/m", SUBJECT)

        refused.connect(receiver)
        try:
            with freeze(START):
                assert not asyncio.run(work())
        finally:
            refused.disconnect(receiver)
        assert "receivers of a signal were called" in caplog.text


@pytest.mark.usefixtures("redis_cache")
class TestDays:
    def counts(self, raw: redis.Redis, subject: str = "user:42", day: str = "2025-11-21") -> dict[str, int]:
        found: Any = raw.hgetall(f"quota:1:{{{subject}}}:day:{day}")
        return {name.decode(): int(count) for name, count in found.items() if name != b"#"}

    def test_a_users_checks_are_counted_by_rule_and_day(self, raw: redis.Redis) -> None:
        with freeze(START):
            for _ in range(3):
                check("2/m", User(pk=42))
            check("9/h", "user:42")
            check("9/h", SUBJECT)
        with freeze(START + DAY):
            check("2/m", "user:42")
        assert self.counts(raw) == {"2/m:a": 2, "2/m:r": 1, "9/h:a": 1}
        assert self.counts(raw, day="2025-11-22") == {"2/m:a": 1}
        assert self.counts(raw, subject=SUBJECT) == {}

    def test_daily_says_otherwise(self, raw: redis.Redis) -> None:
        with freeze(START):
            check("2/m", SUBJECT, daily=True)
            check("2/m", "user:42", daily=False)
        assert self.counts(raw, subject=SUBJECT) == {"2/m:a": 1}
        assert self.counts(raw) == {}

    def test_peeks_refunds_and_free_hits_are_not_counted(self, raw: redis.Redis) -> None:
        with freeze(START):
            peek("2/m", "user:42")
            refund("2/m", "user:42")
            check("2/m", "user:42", cost=0)
        assert self.counts(raw) == {}

    def test_a_request_that_another_rule_refuses_is_counted_where_it_was_refused(self, raw: redis.Redis) -> None:
        @quota("1/m", key="user", name="narrow")
        @quota("9/m", key="user", name="wide")
        def view(request: Any) -> Any:
            return HttpResponse()

        asked = get()
        asked.user = User(pk=42)
        with freeze(START):
            assert [run(view, asked).status_code for _ in range(2)] == [200, 429]
        assert self.counts(raw) == {"narrow:a": 1, "narrow:r": 1, "wide:a": 1}

    def test_the_zone_of_the_settings_parts_the_days(self, raw: redis.Redis, settings: Any) -> None:
        settings.QUOTA = {"TIME_ZONE": "Pacific/Auckland"}
        with freeze(START + 7 * HOUR):  # 11:40 UTC, after midnight there
            check("2/m", "user:42")
        assert self.counts(raw, day="2025-11-22") == {"2/m:a": 1}

    def test_the_stores_clock_decides_the_day(self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_quota.core.clock.time.time_ns", lambda: START * 1_000)
        check("2/m", "user:42")
        today = datetime.fromtimestamp(int(raw.time()[0]), UTC).date()
        assert self.counts(raw, day=str(today)) == {"2/m:a": 1}

    def test_the_counts_of_a_day_wait_eight_days_for_the_roll_up(self, raw: redis.Redis) -> None:
        check("2/m", "user:42")
        (key,) = raw.scan_iter(match="*:day:*")
        assert 8 * 86_400_000 - 60_000 < raw.pttl(key) <= 8 * 86_400_000 + 1

    def test_it_takes_no_call_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = calls_of(monkeypatch)
        with freeze(START):
            check("2/m", "user:42")
        assert len(calls) == 1


@pytest.mark.usefixtures("redis_cache")
def test_the_stream_and_the_index_of_bans_have_it(raw: redis.Redis) -> None:
    with freeze(START):
        check("5/m", SUBJECT, cost=4, ban=BAN)
        for _ in range(4):
            check("5/m", SUBJECT, cost=3, ban=BAN)
    entries: Any = raw.xrange("quota:1:{!}:events")
    kinds = [(fields[b"kind"], fields[b"until"], fields[b"level"], fields[b"remaining"]) for _, fields in entries]
    assert kinds == [
        (b"near", b"0", b"0", b"1"),
        (b"refused", str(START + MINUTE).encode(), b"0", b"1"),
        (b"banned", str(START + 10 * MINUTE).encode(), b"1", b"1"),
    ]
    assert {(fields[b"rule"], fields[b"subject"]) for _, fields in entries} == {(b"5/m", SUBJECT.encode())}
    assert raw.zrange("quota:1:{!}:bans", 0, -1, withscores=True) == [
        (f"{SUBJECT} 5/m".encode(), float(START + 10 * MINUTE))
    ]
    reset("5/m", SUBJECT, ban=BAN)
    assert raw.zcard("quota:1:{!}:bans") == 0
