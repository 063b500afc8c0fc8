"""What each algorithm promises one limit; on the executable specification, with time passed in."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from django_quota import Rule
from django_quota.core.algorithms import NEVER
from django_quota.core.algorithms.calendar import edges
from django_quota.core.algorithms.sliding_window import WRAP, Entry
from django_quota.engine.codec import ALLOWED
from django_quota.engine.plans import Plan
from django_quota.exceptions import RuleError
from tests.support.selection import thorough
from tests.support.steps import ALGORITHMS, SECOND, START, Spec, answers, decided, driven, hits_of, limits_of
from tests.support.stores import current_store

MINUTE = 60 * SECOND
GIVING_BACK = [name for name in ALGORITHMS if name != "leaky_bucket"]
"""Those whose hits are refunded."""


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_as_many_as_the_limit_pass_and_no_more(algorithm: str) -> None:
    limit = Spec("3/m", algorithm)
    assert [limit.run().allowed for _ in range(5)] == [True, True, True, False, False]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_remaining_counts_down_to_zero(algorithm: str) -> None:
    limit = Spec("3/m", algorithm)
    assert limit.run("peek").remaining == 3
    assert [limit.run().remaining for _ in range(4)] == [2, 1, 0, 0]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_zero_refuses_all_and_promises_nothing(algorithm: str) -> None:
    answer = Spec("0/m", algorithm).run()
    assert (answer.allowed, answer.remaining, answer.retry_after) == (False, 0, NEVER)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_zero_refuses_a_hit_that_costs_nothing_too(algorithm: str) -> None:
    assert not Spec("0/m", algorithm).run(cost=0).allowed


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_cost_above_the_limit_is_never_admitted(algorithm: str) -> None:
    answer = Spec("3/m", algorithm).run(cost=4)
    assert (answer.allowed, answer.remaining, answer.retry_after) == (False, 3, NEVER)


@pytest.mark.parametrize("algorithm", GIVING_BACK)
def test_a_refund_of_more_than_was_used_mints_nothing(algorithm: str) -> None:
    limit = Spec("3/m", algorithm)
    limit.run()
    assert limit.run("refund", cost=1_000).remaining == 3
    assert [limit.run().allowed for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_cost_of_nothing_spends_nothing(algorithm: str) -> None:
    limit = Spec("3/m", algorithm)
    assert limit.run(cost=0).allowed
    assert limit.states.kept == {}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(
    count=st.integers(1, 300),
    hits=st.lists(st.tuples(st.integers(0, 20 * SECOND), st.integers(1, 40)), min_size=1, max_size=30),
    beyond=st.integers(1, 300),
)
def test_a_wait_is_true_to_the_microsecond(
    algorithm: str, count: int, hits: list[tuple[int, int]], beyond: int
) -> None:
    limit = Spec(f"{count}/m", algorithm)
    for later, spent in hits:
        limit.now += later
        limit.run(cost=spent)
    remaining = limit.run("peek").remaining
    assume(remaining < count)
    cost = min(count, remaining + beyond)
    refused = limit.run("peek", cost=cost)
    assert not refused.allowed
    assert refused.retry_after > 0
    limit.now += refused.retry_after - 1
    assert not limit.run("peek", cost=cost).allowed
    limit.now += 1
    assert limit.run("peek", cost=cost).allowed


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(count=st.integers(1, 300), hits=st.lists(st.integers(0, 90 * SECOND), min_size=1, max_size=30))
def test_after_the_reset_nothing_is_used(algorithm: str, count: int, hits: list[int]) -> None:
    limit = Spec(f"{count}/m", algorithm)
    for later in hits:
        limit.now += later
        limit.run()
    limit.now += limit.run("peek").reset
    assert limit.run("peek").remaining == count


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_who_retries_all_the_time_gets_back_in_on_time(algorithm: str) -> None:
    limit = Spec("2/2s", algorithm)
    admitted = []
    for tick in range(60):  # every tenth of a second for six seconds
        limit.now = START + tick * SECOND // 10
        if limit.run().allowed:
            admitted.append(tick)
    assert len(admitted) >= 6
    assert all(later - earlier <= 20 for earlier, later in itertools.pairwise(admitted))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_counted_refusals_keep_out_who_goes_on_trying(algorithm: str) -> None:
    limit = Spec("2/2s", algorithm, count_refused=True)
    admitted = 0
    for tick in range(60):
        limit.now = START + tick * SECOND // 10
        admitted += limit.run().allowed
    patient = {"fixed_window": 6, "calendar": 6}  # their windows end whatever is counted in them
    assert admitted == patient.get(algorithm, 2)


# --- sliding window ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [100, 101, 5_000, 10**12])
def test_a_sliding_window_keeps_at_most_one_entry_more_than_its_precision(count: int) -> None:
    limit = Spec(f"{count}/m")
    for _ in range(1_000):
        limit.now += MINUTE // 333
        limit.run(cost=max(1, count // 500))
    ((state, _),) = limit.states.kept.values()
    assert len(state) <= 101


def test_a_counted_refusal_never_makes_a_sliding_window_grow() -> None:
    limit = Spec("10/m", count_refused=True)
    for _ in range(5_000):
        limit.now += MINUTE // 1_000
        limit.run()
    ((state, _),) = limit.states.kept.values()
    assert len(state) <= 101


def test_running_totals_may_wrap_around() -> None:
    limit = Spec("10/m")
    limit.run()
    ((key, (_, expiry)),) = limit.states.kept.items()
    limit.states.put(key, (Entry(2 * WRAP - 2, 1, START + MINUTE),), expiry)
    limit.now += 1
    assert [limit.run().remaining for _ in range(4)] == [8, 7, 6, 5]
    assert limit.run("peek", cost=6).retry_after == MINUTE - 1
    limit.now = START + MINUTE
    assert limit.run("peek").remaining == 6


def test_a_clock_that_steps_back_neither_admits_more_nor_forgets() -> None:
    limit = Spec("3/m")
    limit.run(cost=2)
    limit.now -= 30 * SECOND
    assert [limit.run().allowed for _ in range(2)] == [True, False]
    limit.now = START + MINUTE - 1
    assert not limit.run().allowed
    limit.now += 1
    assert limit.run("peek").remaining == 3


# --- buckets ----------------------------------------------------------------------------------------------------------


def test_a_token_bucket_takes_a_burst_and_then_refills_evenly() -> None:
    limit = Spec("6/m", "token_bucket", burst=2)
    assert [limit.run().allowed for _ in range(3)] == [True, True, False]
    assert limit.run().retry_after == 10 * SECOND
    limit.now += 10 * SECOND
    assert [limit.run().allowed for _ in range(2)] == [True, False]


def test_a_burst_may_be_larger_than_the_rate() -> None:
    limit = Spec("6/m", "token_bucket", burst=20)
    assert sum(limit.run().allowed for _ in range(30)) == 20


def test_a_rate_of_zero_admits_nothing_whatever_its_burst() -> None:
    assert not Spec("0/m", "token_bucket", burst=5).run().allowed


def test_a_leaky_bucket_spaces_hits_by_their_delay() -> None:
    limit = Spec("6/m", "leaky_bucket")
    assert [limit.run().retry_after for _ in range(3)] == [0, 10 * SECOND, 20 * SECOND]


def test_a_refund_gives_no_promised_place_in_a_leaky_bucket_away() -> None:
    limit = Spec("6/m", "leaky_bucket")
    assert [limit.run().retry_after for _ in range(2)] == [0, 10 * SECOND]
    assert limit.run("refund").remaining == 4
    assert limit.run().retry_after == 20 * SECOND


def test_what_a_refund_says_of_a_token_bucket_is_kept_while_a_hit_may_ask_for_it() -> None:
    limit = Spec("6/m", "token_bucket")
    limit.run(cost=3)
    limit.run("refund", cost=3)
    ((state, expiry),) = limit.states.kept.values()
    assert (state.restored, state.refunded) == (30 * SECOND, 30 * SECOND)
    assert expiry == START + 30 * SECOND
    limit.now = expiry
    limit.run()
    ((state, _),) = limit.states.kept.values()
    assert state == (expiry + 10 * SECOND, 0, 0, 0, expiry)


@given(arrivals=st.lists(st.integers(0, 30 * SECOND), max_size=40), count=st.integers(1, 50))
def test_hits_that_wait_the_delay_of_a_leaky_bucket_are_spaced_evenly(arrivals: list[int], count: int) -> None:
    limit = Spec(f"{count}/m", "leaky_bucket")
    starts = []
    for later in arrivals:
        limit.now += later
        answer = limit.run()
        if answer.allowed:
            starts.append(limit.now + answer.retry_after)
    assert all(later - earlier >= MINUTE // count for earlier, later in itertools.pairwise(starts))


BUCKETS = ("token_bucket", "leaky_bucket")


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_a_clock_that_steps_back_an_hour_uses_up_nothing_of_a_bucket(algorithm: str) -> None:
    limit = Spec("10/m", algorithm)
    limit.run()
    limit.now -= 3_600 * SECOND
    assert limit.run("peek").remaining == 9
    assert sum(limit.run().allowed for _ in range(20)) == 9
    limit.now += 6 * SECOND
    assert [limit.run().allowed for _ in range(2)] == [True, False]


@pytest.mark.parametrize("algorithm", BUCKETS)
@given(
    spent=st.lists(st.tuples(st.integers(0, 20 * SECOND), st.integers(1, 10)), min_size=1, max_size=20),
    step=st.one_of(st.integers(1, 3 * MINUTE), st.sampled_from([3_600 * SECOND, 86_400 * SECOND])),
    cost=st.integers(1, 10),
)
def test_a_clock_that_steps_back_blocks_a_bucket_no_longer_than_one_refill(
    algorithm: str, spent: list[tuple[int, int]], step: int, cost: int
) -> None:
    limit = Spec("10/m", algorithm)
    for gap, units in spent:
        limit.now += gap
        limit.run(cost=units)
    limit.now -= step
    answer = limit.run(cost=cost)
    assert answer.reset <= MINUTE
    if not answer.allowed:
        assert answer.retry_after <= cost * 6 * SECOND
        limit.now += answer.retry_after
        assert limit.run(cost=cost).allowed


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_what_was_spent_past_the_limit_is_owed_after_a_step_back_too(algorithm: str) -> None:
    limit = Spec("10/m", algorithm)
    (step,) = limits_of(limit.rule)
    state, _ = step.limit.algorithm.consume(None, step.parameters, 30, limit.now, over=True)
    limit.states.put(step.key, state, step.limit.algorithm.expiry(state))
    limit.now -= 3_600 * SECOND
    assert limit.run().retry_after == 126 * SECOND
    limit.now += 126 * SECOND
    assert limit.run().allowed


def test_a_rate_that_a_bucket_cannot_space_is_refused() -> None:
    with pytest.raises(RuleError, match="Use algorithm='sliding_window'"):
        Rule.make("rule", "2000000/s", algorithm="token_bucket")


# --- calendar ---------------------------------------------------------------------------------------------------------

CALENDAR_UNITS = [("second", 1), ("second", 15), ("minute", 1), ("minute", 20), ("hour", 1), ("hour", 6)]
CALENDAR_UNITS += [("day", 1), ("week", 1), ("month", 1), ("month", 3), ("year", 1)]
ZONES = sorted(available_timezones() - {"localtime"})


@given(
    unit=st.sampled_from(CALENDAR_UNITS),
    zone=st.sampled_from(ZONES),
    now=st.integers(0, 4_000_000_000 * SECOND),
)
def test_periods_hold_the_moment_and_follow_on_each_other(unit: tuple[str, int], zone: str, now: int) -> None:
    start, end, following = edges(*unit, zone, now)
    assert start <= now < end < following
    assert edges(*unit, zone, end)[:2] == (end, following)


def jumps(zone: str) -> list[int]:
    """Return when the clock of a zone is put on or back, from 2015 to 2035, to the second."""
    tz, found = ZoneInfo(zone), []
    day, end = 1_420_070_400, 2_051_222_400
    while day < end:
        low, high = day, day + 86_400
        if datetime.fromtimestamp(low, tz).utcoffset() != datetime.fromtimestamp(high, tz).utcoffset():
            while high - low > 1:
                middle = (low + high) // 2
                same = datetime.fromtimestamp(middle, tz).utcoffset() == datetime.fromtimestamp(low, tz).utcoffset()
                low, high = (middle, high) if same else (low, middle)
            found.append(high)
        day += 86_400
    return found


@pytest.mark.parametrize(
    "zone",
    [
        "Antarctica/Troll",
        "Africa/Cairo",
        *(
            thorough("variants", zone)
            for zone in ("Pacific/Chatham", "Australia/Lord_Howe", "Europe/Berlin", "America/Havana")
        ),
    ],
)
def test_periods_hold_the_moment_around_every_jump_of_the_clock(zone: str) -> None:
    """Troll jumps by two hours, Chatham at 2:45, Lord Howe by half an hour, Cairo and Havana at midnight."""
    found = jumps(zone)
    assert len(found) >= 6
    for jump in found:
        for minutes in range(-240, 241, 15):
            now = (jump + minutes * 60) * SECOND
            for unit in [*CALENDAR_UNITS, ("hour", 2), ("hour", 3), ("hour", 12)]:
                start, end, following = edges(*unit, zone, now)
                assert start <= now < end <= following, (unit, jump, minutes)
                # Callers whose clocks differ by a moment get the same periods.
                assert edges(*unit, zone, start) == (start, end, following), (unit, jump, minutes)
                assert edges(*unit, zone, end - 1) == (start, end, following), (unit, jump, minutes)
                if end < following:
                    assert edges(*unit, zone, end)[:2] == (end, following), (unit, jump, minutes)


def local(year: int, month: int, day: int, hour: int = 0, *, zone: str) -> int:
    return int(datetime(year, month, day, hour, tzinfo=ZoneInfo(zone)).timestamp()) * SECOND


@pytest.mark.parametrize(
    ("day", "hours"),
    [((2026, 3, 29), 23), ((2026, 10, 25), 25), ((2026, 6, 1), 24)],
    ids=["spring", "autumn", "summer"],
)
def test_a_day_lasts_from_midnight_to_midnight_where_people_live(day: tuple[int, int, int], hours: int) -> None:
    noon = local(*day, 12, zone="Europe/Berlin")
    start, end, _ = edges("day", 1, "Europe/Berlin", noon)
    assert start == local(*day, zone="Europe/Berlin")
    assert end - start == hours * 3_600 * SECOND


def test_an_hour_that_the_clock_repeats_is_two_periods() -> None:
    first = int(datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()) * SECOND  # 02:30 summer time in Berlin
    second = first + 3_600 * SECOND  # 02:30 again
    assert edges("hour", 1, "Europe/Berlin", first)[1] <= edges("hour", 1, "Europe/Berlin", second)[0]


def test_a_period_ends_where_the_clock_jumps_by_half_an_hour() -> None:
    on = int(datetime(2026, 10, 3, 15, 30, tzinfo=UTC).timestamp()) * SECOND  # Lord Howe: 02:00 becomes 02:30
    back = int(datetime(2026, 4, 4, 15, 0, tzinfo=UTC).timestamp()) * SECOND  # 02:00 becomes 01:30
    for jump in (on, back):
        half, hour = 1_800 * SECOND, 3_600 * SECOND
        expected = (jump - hour, jump, jump + half)
        assert edges("hour", 1, "Australia/Lord_Howe", jump - 120 * SECOND) == expected
        assert edges("hour", 1, "Australia/Lord_Howe", jump) == (jump, jump + half, jump + half + hour)


def test_an_hour_with_a_clock_change_admits_the_limit_though_a_server_clock_lags() -> None:
    limit = Spec("10/h", "calendar", tz="Australia/Lord_Howe")
    jump = int(datetime(2026, 10, 3, 15, 30, tzinfo=UTC).timestamp()) * SECOND  # the clock goes from 02:00 to 02:30

    def is_admitted(minute: int, behind: int) -> bool:
        now = jump + minute * 60 * SECOND
        plan = Plan("quota")
        plan.add(limit.rule, "ip:203.0.113.9", 1)
        reply = driven(lambda asked, at: asked.run(limit.states, at), plan, "check", now, now - behind * 60 * SECOND)
        return bool(reply[1] == ALLOWED)

    assert is_admitted(0, behind=2)
    # From 03:00 to 04:00, half an hour after the jump.
    assert sum(is_admitted(minute, behind=0) for minute in range(30, 90)) == 10


def test_a_midnight_that_the_clock_skips_is_the_moment_of_the_jump() -> None:
    jump = int(datetime(2026, 4, 23, 22, 0, tzinfo=UTC).timestamp()) * SECOND  # Cairo: 00:00 becomes 01:00
    assert edges("day", 1, "Africa/Cairo", jump)[0] == jump
    assert edges("day", 1, "Africa/Cairo", jump - 1)[1] == jump


@pytest.mark.parametrize(
    ("unit", "multiple", "begins", "ends"),
    [
        ("week", 1, (2026, 11, 16), (2026, 11, 23)),
        ("month", 1, (2026, 11, 1), (2026, 12, 1)),
        ("month", 3, (2026, 10, 1), (2027, 1, 1)),
        ("year", 1, (2026, 1, 1), (2027, 1, 1)),
    ],
)
def test_weeks_begin_on_monday_months_and_years_on_their_first(
    unit: str, multiple: int, begins: tuple[int, int, int], ends: tuple[int, int, int]
) -> None:
    now = local(2026, 11, 21, 13, zone="Asia/Tokyo")
    expected = (local(*begins, zone="Asia/Tokyo"), local(*ends, zone="Asia/Tokyo"))
    assert edges(unit, multiple, "Asia/Tokyo", now)[:2] == expected


def test_a_calendar_limit_starts_anew_with_each_period() -> None:
    limit = Spec("2/month", "calendar", tz="Europe/Berlin")
    limit.now = local(2026, 2, 28, 23, zone="Europe/Berlin")
    assert [limit.run().allowed for _ in range(3)] == [True, True, False]
    assert limit.run().retry_after == timedelta(hours=1) // timedelta(microseconds=1)
    limit.now += 3_600 * SECOND
    assert limit.run().allowed


@pytest.mark.parametrize("rate", ["1/7s", "1/25m", "1/5h", "1/2d", "1/2w", "1/5 months", "1/2 years"])
def test_a_window_that_does_not_fit_the_calendar_is_refused(rate: str) -> None:
    with pytest.raises(ValueError, match=r"no place in the calendar|years"):
        Rule.make("rule", rate, algorithm="calendar")


def test_an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(RuleError, match="Europe/Berlin"):
        Rule.make("rule", "1/d", algorithm="calendar", tz="Mars/Olympus")


@pytest.mark.usefixtures("either_store")
def test_a_hit_in_the_second_period_that_was_sent_counts_until_its_end() -> None:
    midnight = edges("day", 1, "UTC", START)[1]
    sent = hits_of(Rule.make("rule", "2/day", algorithm="calendar"), now=midnight - 1)
    for moment, left in ((midnight, 1), (midnight + 1, 0)):
        assert answers(decided(current_store(), sent, "check", moment))[0].remaining == left
