"""What happens around a decision: the events, and the counts of the day."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User

from django_quota import Decision, Rule, acheck, check, peek, refund, reset
from django_quota.signals import banned, near_limit, refused
from django_quota.testing import freeze
from tests.support.steps import MINUTE, SECOND, START, SUBJECT

HOUR, DAY = 3_600 * SECOND, 86_400 * SECOND
BAN = {"after": "3/m", "for": ["10m", "1h", "1d"]}


@contextmanager
def received(signal: Any, receiver: Callable[..., Any]) -> Iterator[None]:
    signal.connect(receiver)
    try:
        yield
    finally:
        signal.disconnect(receiver)


@pytest.fixture
def emitted(memory_store: None) -> Iterator[list[tuple[str, str, str]]]:
    """The signals that were sent: which, rule, subject."""
    found: list[tuple[str, str, str]] = []

    def to(name: str) -> Callable[..., None]:
        def receiver(rule: Any, subject: str, decision: Decision, **_: Any) -> None:
            assert isinstance(decision, Decision)
            found.append((name, rule.name, subject))

        return receiver

    with received(refused, to("refused")), received(banned, to("banned")), received(near_limit, to("near")):
        yield found


@pytest.mark.parametrize(
    ("rate", "options", "steps", "heard"),
    [
        # A hit that crosses the share of 0.8 emits it once, and again after use fell below.
        ("10/m", {}, [*[(0, check, 1)] * 9, (0, refund, 1), (0, refund, 1), (0, check, 1)], [7, 11]),
        # Coming near again is emitted after a day, though the window is longer, and after a reset at once. At the
        # last hit the first two units have expired.
        ("10/30d", {}, [(0, check, 2), (30 * DAY - 1, check, 6), (31 * DAY - 2, check, 2)], [1]),
        ("10/30d", {}, [(0, check, 2), (30 * DAY - 1, check, 6), (31 * DAY - 1, check, 2)], [1, 2]),
        ("10/30d", {}, [(0, check, 8), (0, reset, None), (0, check, 8)], [0, 2]),
    ],
)
def test_near_is_emitted_by_the_hits_that_cross_the_share(
    rate: str, options: dict[str, Any], steps: list[Any], heard: list[int], emitted: list[Any]
) -> None:
    """`heard`: the steps that emit it."""
    found = []
    for number, (moment, call, cost) in enumerate(steps):
        with freeze(START + moment):
            call(rate, SUBJECT, *([] if cost is None else [cost]), **options)
        found += [number] * len(emitted)
        assert set(emitted) <= {("near", rate, SUBJECT)}
        emitted.clear()
    assert found == heard


def test_each_of_several_shares_is_told_once_and_again_after_use_fell_below_it(memory_store: None) -> None:
    found: list[tuple[str, float]] = []

    def hear(rule: Any, share: float, **_: Any) -> None:
        found.append((rule.name, share))

    def told(work: Callable[..., Any], cost: int, rate: str = "10/m", **options: Any) -> list[float]:
        found.clear()
        work(rate, SUBJECT, cost, warn_at=[1.0, 0.5, 0.8], **options)
        return [share for name, share in found if name == rate]

    with received(near_limit, hear), freeze(START):
        assert [told(check, cost) for cost in (4, 1, 2, 1, 1, 1)] == [[], [0.5], [], [0.8], [], [1.0]]
        assert told(refund, 1) + told(check, 1) == [1.0]
        assert told(refund, 3) + told(check, 1) + told(check, 2) == [0.8, 1.0]
        assert told(refund, 6) + told(check, 6) == [1.0]
        assert [told(check, cost, "3/h") for cost in (2, 1)] == [[0.5], [1.0]], "0.8 of 3 are all of them"
        assert [told(check, cost, "2/d", algorithm="calendar") for cost in (1, 1)] == [[0.5], [1.0]]
        check("0/m", SUBJECT, warn_at=1.0)
        assert told(check, 1, "1/h", shadow=True) == []
    with received(near_limit, hear), freeze(START + MINUTE):  # another period
        assert told(check, 10) == [1.0]


def test_receivers_are_called_and_one_that_cannot_be_fails_no_check_and_is_logged(
    emitted: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    heard = []

    async def hears(subject: str, **_: Any) -> None:
        await asyncio.sleep(0)
        heard.append(subject)

    def fails(**_: Any) -> None:
        raise ValueError("a receiver of somebody's")

    async def work() -> list[Decision]:
        return [check("0/m", "ip:192.0.2.1"), await acheck("0/m", SUBJECT)]

    with freeze(START), received(refused, hears), received(refused, fails):
        assert not any(asyncio.run(work()))  # a sync check in an event loop calls no async receiver
    assert heard == [SUBJECT]
    assert emitted == [("refused", "0/m", "ip:192.0.2.1"), ("refused", "0/m", SUBJECT)]
    assert "receivers of a signal were called" in caplog.text
    assert "a receiver of somebody's" in caplog.text


def test_a_refusal_is_emitted_once_a_second_a_ban_once_and_without_events_nothing(
    emitted: list[Any], settings: Any
) -> None:
    ban: Any = {"after": "1/m", "for": "1h"}
    for moment in (0, 1, SECOND - 1, SECOND, SECOND + 5):
        with freeze(START + moment):
            check("0/m", SUBJECT)
            check("0/m", "ip:192.0.2.1")
    assert emitted == [("refused", "0/m", SUBJECT), ("refused", "0/m", "ip:192.0.2.1")] * 2
    emitted.clear()
    with freeze(START):
        assert [check("1/h", SUBJECT, ban=ban).allowed for _ in range(2)] == [True, False]
        settings.QUOTA = {**settings.QUOTA, "EVENTS": 0}
        decisions = [check("1/h", "ip:192.0.2.1", ban=ban) for _ in range(3)]
    assert decisions[-1].outcomes[0].why == "banned"
    assert emitted == [("banned", "1/h", SUBJECT)]


def counts(raw: redis.Redis, subject: str = "user:42", day: str = "2025-11-21") -> dict[str, int]:
    found: Any = raw.hgetall(f"quota:1:{{{subject}}}:day:{day}")
    return {name.decode(): int(count) for name, count in found.items()}


@pytest.mark.usefixtures("redis_cache")
def test_checks_are_counted_by_rule_and_day_of_users_and_where_daily_says_so(raw: redis.Redis) -> None:
    with freeze(START):
        for _ in range(3):
            check("2/m", User(pk=42))
        check("9/h", "user:42")
        check("9/h", SUBJECT)
        check("2/m", "ip:192.0.2.1", daily=True)
        check("2/h", "user:42", daily=False)
        peek("2/m", "user:42")
        refund("2/m", "user:42")
        check(Rule.make("free", "2/m", cost=lambda request: 0), "user:42", cost=0)
    with freeze(START + DAY):
        check("2/m", "user:42")
    assert counts(raw) == {"2/m:a": 2, "2/m:r": 1, "9/h:a": 1}
    assert counts(raw, day="2025-11-22") == {"2/m:a": 1}
    assert (counts(raw, SUBJECT), counts(raw, "ip:192.0.2.1")) == ({}, {"2/m:a": 1})


@pytest.mark.usefixtures("redis_cache")
def test_the_stores_clock_and_the_zone_of_the_settings_part_the_days(
    raw: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("django_quota.core.clock.time.time_ns", lambda: START * 1_000)
        check("2/m", "user:7")
    today = datetime.fromtimestamp(int(raw.time()[0]), UTC).date()
    assert counts(raw, "user:7", str(today)) == {"2/m:a": 1}
    settings.QUOTA = {"TIME_ZONE": "Pacific/Auckland"}
    with freeze(START + 7 * HOUR):  # 11:40 UTC, after midnight there
        check("2/m", "user:42")
    assert counts(raw, day="2025-11-22") == {"2/m:a": 1}


@pytest.mark.usefixtures("redis_cache")
def test_the_index_has_a_ban_until_it_ends_or_is_lifted(raw: Any) -> None:
    index = "quota:1:{!}:bans"
    with freeze(START):
        for _ in range(4):
            check("1/m", SUBJECT, ban=BAN)
    assert raw.zrange(index, 0, -1, withscores=True) == [(f"{SUBJECT} 1/m".encode(), float(START + 10 * MINUTE))]
    reset("1/m", SUBJECT, ban=BAN)
    assert raw.zcard(index) == 0
    for number in range(60):
        with freeze(START + number * SECOND):
            check("0/m", f"ip:192.0.2.{number}", ban={"after": "1/m", "for": "1s"})
    assert 1 <= raw.zcard(index) <= 2
