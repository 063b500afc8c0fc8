"""Weeks, months and years that begin on a day of the subject, and what stays counted when the day changes."""

from bisect import bisect_left
from datetime import UTC, date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from django_quota import Rule
from django_quota.adapters import dotted_path
from django_quota.core.algorithms.calendar import edges
from django_quota.core.algorithms.subscription import same_periods
from django_quota.core.errors import RuleError
from django_quota.engine.asks import Ask
from django_quota.engine.receipts import Receipt
from tests.core.test_rules import STARTS
from tests.support.inputs import inputs
from tests.support.places import Machine, run_machine
from tests.support.questions import Question, QuestionMode
from tests.support.steps import SECOND, Spec

HOUR = 3_600 * SECOND
DAY = 24 * HOUR
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Pacific/Apia",
    "Antarctica/Casey",
    "Africa/Cairo",
    "America/Havana",
]
"""Apia skipped 30 December 2011; Casey moves its clock by three hours; in Cairo and Havana it jumps at midnight."""


def moment(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * SECOND


def days_of(starts: date, rate: str, since: str, count: int, zone: str = "UTC") -> list[str]:
    """Return the first days of the periods from the one around `since`."""
    found, now = [], moment(since, zone)
    unit = rate.partition("/")[2]
    for _ in range(count):
        begin, now, _ = edges(unit, 1, zone, now, starts)
        found.append(f"{datetime.fromtimestamp(begin // SECOND, ZoneInfo(zone)):%m-%d}")
    return found


# --- where periods begin ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("starts", "unit", "since", "days"),
    [
        ("2025-01-15", "month", "2026-01-20", ["01-15", "02-15", "03-15"]),
        ("2025-01-31", "month", "2026-01-31", ["01-31", "02-28", "03-31", "04-30", "05-31"]),
        ("2025-01-30", "month", "2028-02-29", ["02-29", "03-30", "04-30"]),
        ("2030-01-15", "month", "2026-01-20", ["01-15", "02-15"]),
        ("2024-02-29", "year", "2026-12-01", ["02-28", "02-28", "02-29", "02-28"]),
        ("2025-04-06", "year", "2026-04-05", ["04-06", "04-06"]),
        ("2026-11-22", "week", "2026-11-28", ["11-22", "11-29", "12-06"]),
    ],
    ids=["15th", "31st", "30th in a leap year", "a day to come", "29 February", "fiscal year", "Sundays"],
)
def test_a_period_begins_on_the_day_or_on_the_last_day_of_a_shorter_month(
    starts: str, unit: str, since: str, days: list[str]
) -> None:
    assert days_of(date.fromisoformat(starts), f"1/{unit}", since, len(days)) == days


DATES = st.dates(date(1999, 1, 1), date(2040, 1, 1))
MOMENTS = st.integers(moment("2010-01-01"), moment("2030-01-01"))
UNITS = st.sampled_from(["week", "month", "year"])


@pytest.mark.thorough("slow")
@inputs(2_000)
@given(starts=DATES, unit=UNITS, zone=st.sampled_from(ZONES), now=MOMENTS)
@example(starts=date(2011, 12, 30), unit="month", zone="Pacific/Apia", now=moment("2011-12-30T12:00"))
@example(starts=date(2010, 3, 5), unit="month", zone="Antarctica/Casey", now=moment("2010-03-04T20:00"))
@example(starts=date(2024, 4, 26), unit="week", zone="Africa/Cairo", now=moment("2024-04-25T22:30"))
def test_each_moment_is_in_one_period_whose_edges_are_midnights(starts: date, unit: str, zone: str, now: int) -> None:
    begin, end, after = edges(unit, 1, zone, now, starts)

    assert begin <= now < end < after
    assert edges(unit, 1, zone, begin, starts) == edges(unit, 1, zone, end - 1, starts) == (begin, end, after)
    assert edges(unit, 1, zone, end, starts)[:2] == (end, after)
    days = [
        [datetime.fromtimestamp(edge // SECOND - sooner, ZoneInfo(zone)).date() for sooner in (1, 0)]
        for edge in (begin, end)
    ]
    assert [(before, at) for before, at in days if before >= at] == []  # or the clock jumps over midnight


@inputs(1_000)
@given(starts=DATES, unit=UNITS, now=MOMENTS)
def test_few_days_stand_for_all(starts: date, unit: str, now: int) -> None:
    assert edges(unit, 1, "UTC", now, same_periods(starts)) == edges(unit, 1, "UTC", now, starts)


@pytest.mark.parametrize("day", [date(2026, 1, 31), date(2048, 2, 29), date(1999, 1, 1), date(2040, 12, 31)], ids=str)
def test_a_day_has_the_periods_of_one_on_the_same_weekday(day: date) -> None:
    found = same_periods(day)

    assert (found.month, found.day, found.weekday()) == (day.month, day.day, day.weekday())
    assert 2000 <= found.year <= 2027


@inputs(500)
@given(unit=UNITS, zone=st.sampled_from(ZONES), now=MOMENTS)
def test_without_a_day_the_periods_are_those_of_the_calendar(unit: str, zone: str, now: int) -> None:
    of_rule = Rule.make("api", f"1/{unit}", algorithm="calendar", tz=zone, starts=lambda _: None)
    calendar = Rule.make("api", f"1/{unit}", algorithm="calendar", tz=zone)

    assert of_rule.starting(None).limits[0].parameters(now)[:4] == calendar.limits[0].parameters(now)[:4]


# --- a day that changes -----------------------------------------------------------------------------------------------


def under(rate: str, starts: str | date, **options: Any) -> Rule:
    day = date.fromisoformat(starts) if isinstance(starts, str) else starts
    return Rule.make("r", rate, algorithm="calendar", starts=day, **options)


def at(spec: Spec, when: str, starts: str) -> Spec:
    spec.rule, spec.now = under("10/month", starts), moment(when)
    return spec


@pytest.mark.parametrize(
    ("before", "when", "after", "until"),
    [
        ("2026-01-15", "2026-02-10", "2026-02-10", "2026-03-10"),
        ("2026-01-15", "2026-02-10", "2026-02-20", "2026-02-20"),
        ("2026-01-15", "2026-01-20", "2026-01-01", "2026-03-01"),
        ("2026-01-15", "2026-02-10", "2026-01-15", "2026-02-15"),
    ],
    ids=["to today", "to a later day", "the old period ends later", "unchanged"],
)
def test_what_was_used_stays_counted_until_the_first_beginning_from_the_old_end_on(
    before: str, when: str, after: str, until: str
) -> None:
    limit = at(Spec("10/m"), "2026-01-16", before)
    limit.run(cost=10)

    refused = at(limit, when, after).run()

    assert (refused.allowed, refused.retry_after) == (False, moment(until) - limit.now)
    limit.now = moment(until) - 1
    assert not limit.run().allowed
    limit.now += 1
    assert limit.run() == (True, 9, 0, limit.run("peek").reset, limit.run("peek").reset)


def test_a_day_that_changes_after_the_last_hit_grants_nothing_for_the_days_until_the_new_one() -> None:
    limit = at(Spec("10/m"), "2026-02-14", "2026-01-15")
    limit.run(cost=10)

    assert at(limit, "2026-02-15T12:00", "2026-01-16").run().retry_after == 12 * HOUR


def test_what_was_refunded_does_not_let_a_shorter_period_begin() -> None:
    limit = at(Spec("10/m"), "2026-02-14", "2026-01-15")
    limit.run(cost=10)
    at(limit, "2026-02-15", "2026-01-15").run()
    limit.run("refund")

    at(limit, "2026-02-15T01:00", "2026-01-16").run(cost=10)

    assert limit.run().retry_after == moment("2026-03-16") - limit.now


def test_a_new_day_keeps_the_units_that_a_reservation_gives_back_out_of_the_next_period() -> None:
    limit = at(Spec("10/m"), "2026-02-14", "2026-01-15")
    receipt = limit.check(cost=6)
    at(limit, "2026-03-16", "2026-01-16").run(cost=5)

    limit.adjust(receipt, actual=0)

    assert limit.used == 5


STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, HOUR, DAY, 2 * DAY, 6 * DAY, 27 * DAY, 29 * DAY]) | st.integers(0, 40 * DAY),
        st.integers(-3, 3) | st.none(),
        st.sampled_from(["check", "check", "check", "peek", "undo"]),
        st.sampled_from([1, 5, 10]),
    ),
    min_size=5,
    max_size=60,
)
"""How much time passes; how many days from then is the day of the subject (None: as before); what is done; its cost."""

SHORTEST = {"week": 7 * DAY - 2 * DAY, "month": 27 * DAY - 2 * HOUR, "year": 364 * DAY - 2 * HOUR}
"""Each of these is shorter than a period of its unit, even where a clock jumps or a country skips a day."""


def day_near(now: int, off: int) -> date:
    return date.fromordinal(datetime.fromtimestamp(now // SECOND, UTC).toordinal() + off)


@pytest.mark.thorough("slow")
@inputs(2_000)
@given(steps=STEPS, unit=st.sampled_from(["month", "week", "year"]), begin=MOMENTS)
@example(
    steps=[
        (0, None, "check", 1),
        (DAY, 1, "check", 1),
        (28 * DAY, None, "check", 10),
        (HOUR, 2, "check", 10),
        (2 * DAY, None, "check", 10),
    ],
    unit="month",
    begin=moment("2026-02-12"),
)
def test_no_window_of_a_period_admits_more_than_two_periods_whatever_the_days_are(
    steps: list[Any], unit: str, begin: int
) -> None:
    limit, admitted = Spec("10/m"), list[tuple[int, int]]()
    starts, limit.now = date(2026, 1, 15), begin
    for gap, off, what, cost in steps:
        limit.now += gap
        starts = starts if off is None else day_near(limit.now, off)
        limit.rule = under(f"10/{unit}", starts)
        if what == "undo":
            limit.adjust(limit.check(cost))
        elif what == "check":
            units = max(1, min(cost, limit.run("peek").remaining))
            if limit.run(cost=units).allowed:
                admitted.append((limit.now, units))

    times = [time for time, _ in admitted]
    in_windows = [
        sum(units for _, units in admitted[bisect_left(times, time - SHORTEST[unit] + 1) : number + 1])
        for number, (time, _) in enumerate(admitted)
    ]
    assert max(in_windows, default=0) <= 20


@pytest.mark.thorough("slow")
@inputs(1_000)
@given(steps=STEPS, unit=UNITS, begin=MOMENTS)
def test_the_wait_of_a_refusal_is_true_while_the_day_stays(steps: list[Any], unit: str, begin: int) -> None:
    limit = Spec("10/m")
    starts, limit.now = date(2026, 1, 15), begin
    found = []

    for gap, off, _, cost in steps:
        limit.now += gap
        starts = starts if off is None else day_near(limit.now, off)
        limit.rule = under(f"10/{unit}", starts)
        refused = limit.run(cost=cost)
        if refused.allowed:
            continue
        limit.now += refused.retry_after - 1
        before = limit.run("peek", cost).allowed
        limit.now += 1
        found.append((before, limit.run("peek", cost).allowed))

    assert set(found) <= {(False, True)}


# --- all stores -------------------------------------------------------------------------------------------------------


class Days(Machine):
    """One subject's hits under a rule whose day changes again and again."""

    @initialize(unit=UNITS, zone=st.sampled_from(ZONES))
    def begin(self, unit: str, zone: str) -> None:
        self.now = moment("2026-01-20")
        self.unit, self.zone, self.starts, self.counted = unit, zone, date(2026, 1, 15), False
        self.taken: list[Receipt] = []

    @property
    def question(self) -> Any:
        made = under(f"10/{self.unit}; 30/d", self.starts, tz=self.zone, count_refused=self.counted)
        return lambda cost: Question([Ask(made, "user:1", cost)])

    @rule(gap=st.integers(0, 20 * DAY) | st.sampled_from([1, HOUR, 365 * DAY]))
    def time_passes(self, gap: int) -> None:
        self.now += gap

    @rule(starts=st.dates(date(2026, 1, 1), date(2026, 12, 31)), counted=st.booleans())
    def the_day_changes(self, starts: date, counted: bool) -> None:
        self.starts, self.counted = starts, counted

    @rule(
        mode=st.sampled_from(["check", "check", "force", "peek", "refund"]),
        cost=st.integers(0, 12),
        stale=st.booleans(),
    )
    def a_hit_is_decided(self, mode: QuestionMode, cost: int, stale: bool) -> None:
        question = self.question(cost)
        reply = self.places.decide(question, mode, self.now, self.now - 40 * DAY * stale)
        if mode == "check" and (receipt := question.receipt(reply)).taken:
            self.taken.append(receipt)

    @rule(actual=st.integers(0, 12))
    def what_it_took_is_adjusted(self, actual: int) -> None:
        if self.taken:
            receipt = self.taken.pop()
            self.places.decide(self.question(1).settled(receipt, [actual]), "adjust", self.now)


@pytest.mark.thorough("slow")
@pytest.mark.usefixtures("redis_cache")
def test_no_store_differs_while_the_day_changes(raw: redis.Redis) -> None:
    run_machine(Days, raw, 60)


# --- mistakes ---------------------------------------------------------------------------------------------------------

NOT_CALLED = "cannot be called with (subject). Use, for example, lambda subject: ..."
A_DATETIME = datetime(2026, 1, 1, tzinfo=UTC)


def no_arguments() -> None:
    """Stand for a function that takes no subject."""


@pytest.mark.parametrize(
    ("rate", "options", "problem"),
    [
        (
            "10/m",
            {"algorithm": "calendar"},
            (
                "starts= says where weeks, months and years begin, but 10/m has none. Leave out starts=, or use a "
                "rate such as '1000/month'."
            ),
        ),
        ("10/m", {}, "starts= is not an option of 'sliding_window'. It is one of calendar."),
        ("10/m", {"distinct": True}, "starts= is not an option of 'sliding_window'. It is one of calendar."),
        ("9/month", {"algorithm": "calendar", "starts": 15}, f"starts=15 {STARTS}"),
        ("9/month", {"algorithm": "calendar", "starts": A_DATETIME}, f"starts={A_DATETIME!r} {STARTS}"),
        (
            "9/month",
            {"algorithm": "calendar", "starts": no_arguments},
            f"starts={dotted_path(no_arguments)} {NOT_CALLED}",
        ),
    ],
    ids=["no period", "algorithm", "distinct", "number", "datetime", "arguments"],
)
def test_a_start_that_does_not_fit_is_an_error(rate: str, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(RuleError) as refused:
        Rule.make("api", rate, **{"starts": date(2026, 1, 1), **options})

    assert str(refused.value) == problem
