"""What happens around a decision: the events, and the counts of the day."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest
import redis
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import RequestFactory

from django_quota import Decision, Rule, acheck, check, check_all, peek, refund, reserve, reset
from django_quota.adapters import decide, settle
from django_quota.exceptions import QuotaExceeded
from django_quota.signals import banned, near_limit, refused
from django_quota.testing import freeze
from tests.support.calls import calls_of
from tests.support.commands import PATIENCE
from tests.support.signals import received
from tests.support.steps import MINUTE, SECOND, START, SUBJECT

HOUR, DAY = 3_600 * SECOND, 86_400 * SECOND
BAN = {"after": "3/m", "for": ["10m", "1h", "1d"]}


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


CROSS = [(0, check, 1)] * 9  # the eighth has used 0.8 of 10
FALL = [(0, refund, 1), (0, refund, 1)]


@pytest.mark.parametrize(
    ("rate", "steps", "heard"),
    [
        pytest.param("10/m", CROSS, [7], id="once by the hit that crosses it"),
        pytest.param("10/m", [*CROSS, *FALL, (0, check, 1)], [7, 11], id="again after use fell below it"),
        pytest.param("10/m", [(0, check, 10)], [0], id="by a hit that crosses it from far below"),
        # At the last hit the first two units have expired, so that it crosses the share.
        pytest.param(
            "10/30d", [(0, check, 2), (30 * DAY - 1, check, 6), (59 * DAY, check, 2)], [1], id="not within a window"
        ),
        pytest.param(
            "10/30d",
            [(0, check, 2), (30 * DAY - 1, check, 6), (60 * DAY, check, 8)],
            [1, 2],
            id="again after a window",
        ),
        pytest.param("10/30d", [(0, check, 8), (0, reset, None), (0, check, 8)], [0, 2], id="at once after a reset"),
    ],
)
def test_a_share_of_the_limit_is_emitted(rate: str, steps: list[Any], heard: list[int], emitted: list[Any]) -> None:
    """`heard`: the steps that emit it."""
    found = []

    for number, (moment, call, cost) in enumerate(steps):
        with freeze(START + moment):
            call(rate, SUBJECT, *([] if cost is None else [cost]))
        found += [(number, *each) for each in emitted]
        emitted.clear()

    assert found == [(number, "near", rate, SUBJECT) for number in heard]


class TestSeveralShares:
    """`warn_at=[1.0, 0.5, 0.8]`."""

    @pytest.fixture
    def shares(self, either_store: None) -> Iterator[Callable[..., list[float]]]:
        """Call a verb with a cost; return the shares that this emitted."""
        found: list[float] = []

        def hear(share: float, **_: Any) -> None:
            found.append(share)

        def shares(work: Callable[..., Any], cost: int, rate: str = "10/m", **options: Any) -> list[float]:
            found.clear()
            work(rate, SUBJECT, cost, **{"warn_at": [1.0, 0.5, 0.8], **options})
            return [*found]

        with received(near_limit, hear), freeze(START):
            yield shares

    def test_each_is_emitted_by_the_hit_that_crosses_it(self, shares: Callable[..., list[float]]) -> None:
        assert [shares(check, cost) for cost in (4, 1, 2, 1, 1, 1)] == [[], [0.5], [], [0.8], [], [1.0]]

    @pytest.mark.parametrize(
        ("refunded", "costs", "emitted"),
        [
            pytest.param(1, [1], [[1.0]], id="the last alone"),
            pytest.param(3, [1, 2], [[0.8], [1.0]], id="the last two, one by one"),
            pytest.param(6, [6], [[1.0]], id="the highest of three that are crossed at once"),
        ],
    )
    def test_after_use_fell_below_it_the_next_hit_emits(
        self, refunded: int, costs: list[int], emitted: list[Any], shares: Callable[..., list[float]]
    ) -> None:
        shares(check, 10)
        shares(refund, refunded)

        assert [shares(check, cost) for cost in costs] == emitted

    def test_a_refund_emits_none(self, shares: Callable[..., list[float]]) -> None:
        shares(check, 10)

        assert shares(refund, 1) == []

    @pytest.mark.parametrize(
        ("rate", "options", "costs"),
        [
            pytest.param("3/h", {}, [2, 1], id="0.8 of 3 is all of them"),
            pytest.param("2/d", {"algorithm": "calendar"}, [1, 1], id="by the calendar"),
        ],
    )
    def test_shares_of_one_number_of_units_are_emitted_once(
        self, rate: str, options: dict[str, Any], costs: list[int], shares: Callable[..., list[float]]
    ) -> None:
        assert [shares(check, cost, rate, **options) for cost in costs] == [[0.5], [1.0]]

    @pytest.mark.parametrize(
        ("rate", "options"),
        [pytest.param("0/m", {}, id="admits nothing"), pytest.param("1/h", {"shadow": True}, id="is a shadow")],
    )
    def test_none_is_emitted_of_a_rule_that(
        self, rate: str, options: dict[str, Any], shares: Callable[..., list[float]]
    ) -> None:
        assert shares(check, 1, rate, warn_at=1.0, **options) == []

    def test_another_period_emits_them_again(self, shares: Callable[..., list[float]]) -> None:
        shares(check, 10)

        with freeze(START + MINUTE):
            assert shares(check, 10) == [1.0]

    @pytest.mark.parametrize(
        ("limit", "costs", "emitted"),
        [
            pytest.param(600, [380, 119], [[0.8], []], id="raised far above the use"),
            pytest.param(110, [9, 1], [[], [1.0]], id="raised by less than the highest share"),
            pytest.param(500, [149, 1], [[], [0.5]], id="raised so that all shares are above the use"),
        ],
    )
    def test_they_are_emitted_again_under_a_higher_limit(
        self, limit: int, costs: list[int], emitted: list[Any], shares: Callable[..., list[float]]
    ) -> None:
        month = {"name": "api", "algorithm": "calendar"}
        shares(check, 100, "100/month", **month)

        assert [shares(check, cost, f"{limit}/month", **month) for cost in costs] == emitted

    def test_each_limit_of_a_rule_emits_it(self, shares: Callable[..., list[float]]) -> None:
        assert [shares(check, cost, "10/m; 12/h", warn_at=0.8) for cost in (8, 1, 1)] == [[0.8], [], [0.8]]


class TestSharesOfRefusedHits:
    """Hits that no longer fit, under `warn_at=[0.5, 0.8]` unless the case says otherwise."""

    @pytest.fixture
    def emitted(self, either_store: None) -> Iterator[Callable[..., list[float]]]:
        """Use some units, then check costs, one a second; return the shares that these checks emitted."""
        found: list[float] = []

        def emitted(
            used: int, *costs: int, rate: str = "10/h", every: int = SECOND, ask: Any = check, **options: Any
        ) -> list[float]:
            options = {"warn_at": [0.5, 0.8], **options}
            if used:
                check(rate, SUBJECT, used, **options)
            found.clear()
            for number, cost in enumerate(costs):
                with freeze(START + number * every):
                    ask(rate, SUBJECT, cost, **options)
            return [*found]

        with received(near_limit, lambda share, **_: found.append(share)), freeze(START):
            yield emitted

    @pytest.mark.parametrize(
        ("used", "costs", "options", "shares"),
        [
            pytest.param(4, [7], {}, [0.8], id="the highest that it would reach"),
            pytest.param(4, [7], {"warn_at": 1.0}, [1.0], id="all of the limit"),
            pytest.param(4, [7, 7], {}, [0.8], id="once"),
            pytest.param(4, [7, 3], {}, [0.8], id="not again by the hit that fits"),
            pytest.param(4, [7, 7, 7], {"every": DAY, "rate": "10/30d"}, [0.8], id="once in a window of many days"),
            pytest.param(8, [7], {}, [], id="none that was reached before"),
            pytest.param(0, [11], {}, [], id="none by a hit that never fits"),
            pytest.param(4, [7], {"shadow": True}, [], id="none of a shadow rule"),
            pytest.param(4, [7], {"warn_at": None}, [], id="none without shares"),
            pytest.param(4, [7], {"rate": "10/h; 100/d"}, [0.8], id="of the limit that has no room"),
            pytest.param(4, [7], {"count_refused": True}, [0.8], id="under a limit that counts refused hits"),
            pytest.param(4, [7], {"ban": {"after": "1/m", "for": "1m"}}, [0.8], id="by one that begins a ban"),
            pytest.param(
                4, [8, 7], {"rate": "10/month", "algorithm": "calendar"}, [0.8], id="of a month of the calendar"
            ),
        ],
    )
    def test_a_hit_that_no_longer_fits_emits_the_share_that_it_would_reach(
        self, used: int, costs: list[int], options: dict[str, Any], shares: list[float], emitted: Any
    ) -> None:
        assert emitted(used, *costs, **options) == shares

    def test_a_refused_reservation_emits_it(self, emitted: Callable[..., list[float]]) -> None:
        def tries_to_reserve(*arguments: Any, **options: Any) -> None:
            with pytest.raises(QuotaExceeded), reserve(*arguments, **options):
                pass

        assert emitted(4, 7, ask=tries_to_reserve) == [0.8]


@pytest.mark.usefixtures("either_store")
@pytest.mark.parametrize(("shadow", "shares"), [(False, [0.8]), (True, [])], ids=["a rule", "a shadow rule"])
def test_a_hit_past_the_limit_emits_the_share_of(shadow: bool, shares: list[float]) -> None:
    found = list[float]()

    with received(near_limit, lambda share, **_: found.append(share)):
        check("10/h", SUBJECT, 9, force=True, name="forced", shadow=shadow)

    assert found == shares


@pytest.mark.usefixtures("either_store")
def test_a_share_is_not_emitted_again_because_a_request_that_took_nothing_of_it_is_settled() -> None:
    aside, heard = Rule.make("aside", "10/m", key="global", cost=8, block=False, warn_at=0.5), list[str]()
    judged = Rule.make("judged", "9/m", key="global", count_when=lambda response: True)

    def hear(rule: Any, **_: Any) -> None:
        heard.append(rule.name)

    with received(near_limit, hear):
        for seconds in (0, 30):  # the share is reached, and can be reported again after a minute
            with freeze(START + seconds * SECOND):
                check(aside, "global", 3)
        with freeze(START + 61 * SECOND):  # the first three have expired
            request = RequestFactory().get("/")
            decide(request, [judged, aside])
            settle(request, HttpResponse())
            check(aside, "global", 2)

    assert heard == ["aside"]


class TestReceivers:
    @pytest.fixture
    def heard(self) -> Iterator[list[str]]:
        """The subjects that an async receiver got."""
        found = []

        async def hears(subject: str, **_: Any) -> None:
            await asyncio.sleep(0)
            found.append(subject)

        with received(refused, hears):
            yield found

    @staticmethod
    async def check_both_ways() -> list[Decision]:
        """Check in an event loop, where a sync check cannot call an async receiver."""
        return [check("0/m", "ip:192.0.2.1"), await acheck("0/m", SUBJECT)]

    @pytest.mark.usefixtures("memory_store")
    def test_an_async_one_is_called_by_an_async_check(self, heard: list[str]) -> None:
        asyncio.run(self.check_both_ways())

        assert heard == [SUBJECT]

    @pytest.mark.usefixtures("heard")
    def test_a_sync_one_is_called_beside_one_that_cannot_be(self, emitted: list[Any]) -> None:
        asyncio.run(self.check_both_ways())

        assert emitted == [("refused", "0/m", "ip:192.0.2.1"), ("refused", "0/m", SUBJECT)]

    @pytest.mark.usefixtures("memory_store", "heard")
    def test_one_that_cannot_be_called_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        asyncio.run(self.check_both_ways())

        found = [(record.name, *record.getMessage().partition(": ")[::2]) for record in caplog.records]
        assert [each[:2] for each in found] == [("django_quota.signals", "Not all receivers of a signal were called")]
        assert "'subject': 'ip:192.0.2.1'" in found[0][2]

    @pytest.mark.usefixtures("memory_store")
    @pytest.mark.parametrize(
        "checked", [lambda: check("0/m", SUBJECT), lambda: asyncio.run(acheck("0/m", SUBJECT))], ids=["sync", "async"]
    )
    def test_one_that_fails_is_logged_without_failing_the_check(
        self, checked: Callable[[], Decision], caplog: pytest.LogCaptureFixture
    ) -> None:
        def fails(**_: Any) -> None:
            raise ValueError("a receiver of somebody's")

        with received(refused, fails):
            assert not checked()

        assert "a receiver of somebody's" in caplog.text


class TestEvents:
    LIMIT: ClassVar[dict[str, Any]] = {"ban": {"after": "1/m", "for": "1h"}}

    @pytest.mark.parametrize(
        ("moments", "times"),
        [
            pytest.param([0, 1, SECOND - 1], 1, id="within a second"),
            pytest.param([0, SECOND], 2, id="a second later"),
            pytest.param([0, SECOND, SECOND + 5], 2, id="within the next second"),
        ],
    )
    def test_a_refusal_is_emitted_once_a_second(self, moments: list[int], times: int, emitted: list[Any]) -> None:
        for moment in moments:
            with freeze(START + moment):
                check("0/m", SUBJECT)

        assert emitted == [("refused", "0/m", SUBJECT)] * times

    def test_each_subject_has_its_own_second(self, emitted: list[Any]) -> None:
        with freeze(START):
            for subject in (SUBJECT, "ip:192.0.2.1"):
                check("0/m", subject)

        assert emitted == [("refused", "0/m", SUBJECT), ("refused", "0/m", "ip:192.0.2.1")]

    def test_a_refusal_that_bans_is_emitted_as_a_ban(self, emitted: list[Any]) -> None:
        with freeze(START):
            for _ in range(2):
                check("1/h", SUBJECT, **self.LIMIT)

        assert emitted == [("banned", "1/h", SUBJECT)]

    @pytest.fixture
    def no_events(self, memory_store: None, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "EVENTS": 0}

    @pytest.mark.usefixtures("no_events")
    def test_without_events_nothing_is_emitted(self, emitted: list[Any]) -> None:
        for _ in range(3):
            check("1/h", SUBJECT, **self.LIMIT)

        assert emitted == []

    @pytest.mark.usefixtures("no_events")
    def test_without_events_a_ban_holds(self) -> None:
        for _ in range(2):
            check("1/h", SUBJECT, **self.LIMIT)

        assert check("1/h", SUBJECT, **self.LIMIT).outcomes[0].why == "banned"


def counts(raw: redis.Redis, subject: str = "user:42", day: str = "2025-11-21") -> dict[str, int]:
    found: Any = raw.hgetall(f"quota:1:{{{subject}}}:day:{day}")
    return {name.decode(): int(count) for name, count in found.items()}


@pytest.mark.usefixtures("redis_cache")
class TestCountsOfTheDay:
    def test_the_checks_of_a_user_are_counted_by_rule(self, raw: redis.Redis) -> None:
        with freeze(START):
            for _ in range(3):
                check("2/m", User(pk=42))
            check("9/h", "user:42")

        assert counts(raw) == {"2/m:a": 2, "2/m:r": 1, "9/h:a": 1}

    def test_a_request_that_one_rule_refuses_is_counted_there_alone(self, raw: redis.Redis) -> None:
        with freeze(START):
            for _ in range(2):
                check_all([("1/m", "user:42"), ("9/m", "user:42")])

        assert counts(raw) == {"1/m:a": 1, "1/m:r": 1, "9/m:a": 1}

    def test_counting_takes_no_call_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = calls_of(monkeypatch)

        check("2/m", "user:42")

        assert len(calls) == 1

    def test_the_counts_of_a_day_wait_eight_days_for_the_roll_up(self, raw: redis.Redis) -> None:
        check("2/m", "user:42")

        (key,) = raw.scan_iter(match="*:day:*")
        assert 8 * DAY // 1_000 - 60_000 < raw.pttl(key) <= 8 * DAY // 1_000 + 1

    def test_each_day_has_its_own_count(self, raw: redis.Redis) -> None:
        for moment in (START, START + DAY):
            with freeze(moment):
                check("2/m", "user:42")

        assert counts(raw, day="2025-11-21") == counts(raw, day="2025-11-22") == {"2/m:a": 1}

    @pytest.mark.parametrize(
        ("subject", "options", "counted"),
        [
            pytest.param(SUBJECT, {}, {}, id="an address is not"),
            pytest.param(SUBJECT, {"daily": True}, {"2/m:a": 1}, id="an address is with daily=True"),
            pytest.param("user:42", {"daily": False}, {}, id="a user is not with daily=False"),
        ],
    )
    def test_whether_a_subject_is_counted(
        self, subject: str, options: dict[str, Any], counted: dict[str, int], raw: redis.Redis
    ) -> None:
        with freeze(START):
            check("2/m", subject, **options)

        assert counts(raw, subject) == counted

    @pytest.mark.parametrize(
        "call",
        [
            pytest.param(lambda: peek("2/m", "user:42"), id="a peek"),
            pytest.param(lambda: refund("2/m", "user:42"), id="a refund"),
            pytest.param(
                lambda: check(Rule.make("free", "2/m", cost=lambda request: 0), "user:42", cost=0), id="a free request"
            ),
        ],
    )
    def test_what_is_not_a_check_is_not_counted(self, call: Callable[[], object], raw: redis.Redis) -> None:
        with freeze(START):
            call()

        assert counts(raw) == {}

    def test_the_clock_of_the_store_says_which_day_it_is(
        self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("django_quota.core.clock.time.time_ns", lambda: START * 1_000)

        check("2/m", "user:42")

        today = datetime.fromtimestamp(int(raw.time()[0]), UTC).date()
        assert counts(raw, day=str(today)) == {"2/m:a": 1}

    def test_the_zone_of_the_settings_says_when_a_day_begins(self, raw: redis.Redis, settings: Any) -> None:
        settings.QUOTA = {"TIME_ZONE": "Pacific/Auckland"}

        with freeze(START + 7 * HOUR):  # 11:40 UTC, after midnight there
            check("2/m", "user:42")

        assert counts(raw, day="2025-11-22") == {"2/m:a": 1}


@pytest.mark.usefixtures("redis_cache")
class TestIndexOfBans:
    INDEX = "quota:1:{!}:bans"

    @pytest.fixture
    def banned(self, redis_cache: Any) -> None:
        with freeze(START):
            for _ in range(4):
                check("1/m", SUBJECT, ban=BAN)

    @pytest.mark.usefixtures("banned")
    def test_it_has_a_ban_with_its_end(self, raw: redis.Redis) -> None:
        entries = raw.zrange(self.INDEX, 0, -1, withscores=True)

        assert entries == [(f"{SUBJECT} 1/m".encode(), float(START + 10 * MINUTE))]

    @pytest.mark.usefixtures("banned")
    def test_it_lives_as_long_as_its_last_ban(self, raw: redis.Redis) -> None:
        longest = (10 * MINUTE + HOUR) // 1_000 + 1  # an hour longer where a test passes the time in, rounded up

        assert longest - 1_000 * PATIENCE < int(raw.pttl(self.INDEX)) <= longest

    @pytest.mark.usefixtures("banned")
    def test_a_ban_that_is_lifted_leaves_it(self, raw: redis.Redis) -> None:
        reset("1/m", SUBJECT, ban=BAN)

        assert raw.zcard(self.INDEX) == 0

    def test_bans_that_have_ended_leave_it(self, raw: redis.Redis) -> None:
        for number in range(60):
            with freeze(START + number * SECOND):
                check("0/m", f"ip:192.0.2.{number}", ban={"after": "1/m", "for": "1s"})

        assert 1 <= raw.zcard(self.INDEX) <= 2
