"""The usage of all subjects, line by line, from the call and from `quota_usage`."""

import asyncio
import csv
import inspect
from datetime import date, datetime, timedelta
from io import StringIO
from typing import Any
from unittest.mock import Mock

import pytest
from django.core.management import CommandError, call_command
from django.template import engines

from django_quota import Rule, ausage_lines, check, usage, usage_lines
from django_quota.exceptions import RuleError, StoreUnavailable
from django_quota.features.usage import lines as lines_module
from django_quota.features.usage import rollup
from django_quota.features.usage.lines import count_lines
from django_quota.features.usage.rollup import roll_up
from django_quota.limiting.registry import get_limiter
from django_quota.models import DailyCounter
from django_quota.testing import freeze
from tests.support.commands import Terminal, json_of, said

pytestmark = [pytest.mark.usefixtures("either_store"), pytest.mark.django_db]
outside_a_transaction = pytest.mark.django_db(transaction=True)  # within one a roll-up leaves its counts in the store

OCTOBER, NOVEMBER, DECEMBER = date(2026, 10, 1), date(2026, 11, 1), date(2026, 12, 1)
API, MAIL = (Rule.make(name, "5/d", daily=True) for name in ("api", "mail"))


def noon(day: str) -> datetime:
    return datetime.fromisoformat(f"{day}T12:00:00+00:00")


def counted(subject: str, day: str, rule: Rule = API, cost: int = 1) -> None:
    """Count a check on a day, and move it to the database."""
    with freeze(noon(day)):
        check(rule, subject, cost)
        list(roll_up(get_limiter().store))


@pytest.fixture
def october(either_store: None) -> None:
    """Two subjects in October, one of them also in November."""
    counted("user:2", "2026-10-31", cost=3)
    counted("org:1", "2026-10-02", MAIL)
    counted("org:1", "2026-10-02", cost=2)
    counted("org:1", "2026-10-30", cost=4)
    counted("org:1", "2026-11-01", cost=5)


def shown(lines: Any) -> list[tuple[str, str, str, int]]:
    return [(line.subject, line.rule, line.period.isoformat(), line.units) for line in lines]


OF_OCTOBER = [
    ("org:1", "api", "2026-10-01", 6),
    ("org:1", "mail", "2026-10-01", 1),
    ("user:2", "api", "2026-10-01", 3),
]


@outside_a_transaction
@pytest.mark.usefixtures("october")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param({}, OF_OCTOBER, id="all rules"),
        pytest.param({"rule": "mail"}, OF_OCTOBER[1:2], id="one rule"),
        pytest.param({"rule": "none"}, [], id="a rule without checks"),
        pytest.param({"rule": "mai"}, [], id="the beginning of the name of a rule"),
        pytest.param(
            {"by": "day", "rule": "api"},
            [("org:1", "api", "2026-10-02", 2), ("org:1", "api", "2026-10-30", 4), ("user:2", "api", "2026-10-31", 3)],
            id="by day",
        ),
        pytest.param(
            {"by": "day"},
            [
                ("org:1", "api", "2026-10-02", 2),
                ("org:1", "api", "2026-10-30", 4),
                ("org:1", "mail", "2026-10-02", 1),
                ("user:2", "api", "2026-10-31", 3),
            ],
            id="all rules by day",
        ),
    ],
)
def test_each_rule_of_a_subject_has_a_line_in_a_period(arguments: dict[str, Any], expected: Any) -> None:
    assert shown(usage_lines(OCTOBER, NOVEMBER, **arguments)) == expected


@pytest.mark.usefixtures("october")
@pytest.mark.parametrize(("rule", "number"), [(None, 3), ("mail", 1), ("none", 0)], ids=str)
def test_lines_of_months_are_counted(rule: str | None, number: int) -> None:
    assert count_lines(OCTOBER, NOVEMBER, rule) == number


@outside_a_transaction
@pytest.mark.usefixtures("october")
def test_two_months_have_a_line_each() -> None:
    lines = shown(usage_lines(OCTOBER, DECEMBER))

    assert lines == [OF_OCTOBER[0], ("org:1", "api", "2026-11-01", 5), *OF_OCTOBER[1:]]


def test_what_waits_in_the_store_is_in_it() -> None:
    with freeze(noon("2026-10-05")):
        check(API, "user:2", 4)

        assert shown(usage_lines(OCTOBER, NOVEMBER)) == [("user:2", "api", "2026-10-01", 4)]


def test_a_refused_check_is_counted_without_units() -> None:
    with freeze(noon("2026-10-05")):
        for cost in (5, 1):
            check(API, "user:2", cost)
        (line,) = usage_lines(OCTOBER, NOVEMBER)

    assert (line.allowed, line.refused, line.units) == (1, 1, 5)


@pytest.mark.usefixtures("october")
def test_an_id_stays_while_the_counts_change() -> None:
    before = [line.id for line in usage_lines(OCTOBER, NOVEMBER)]
    counted("user:2", "2026-10-30", cost=1)

    assert [line.id for line in usage_lines(OCTOBER, NOVEMBER)] == before


@pytest.mark.usefixtures("october")
def test_no_two_lines_have_one_id() -> None:
    lines = [*usage_lines(OCTOBER, DECEMBER), *usage_lines(OCTOBER, DECEMBER, by="day")]

    assert len({line.id for line in lines}) == len(lines)


@pytest.mark.parametrize(
    ("by", "digest"),
    [
        ("month", "caa3f98fedcec0d72ee2fe9dd7a6d740"),
        ("day", "3d099ab98e7e39afc9e10b9cd287a929"),
        ("period", "c9f0d562bccd8da5c0e42a19a0b3d14f"),
    ],
)
def test_an_id_does_not_depend_on_the_site(by: Any, digest: str, settings: Any) -> None:
    settings.SECRET_KEY = "another"
    DailyCounter.objects.create(subject="user:2", rule="api", day=OCTOBER, units=1)

    (line,) = usage_lines(OCTOBER, NOVEMBER, by)

    assert line.id == digest


@outside_a_transaction
@pytest.mark.usefixtures("october")
@pytest.mark.parametrize("arguments", [(), ("day", "api")], ids=["of months", "of days and a rule"])
def test_async_code_gets_the_same_lines(arguments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "LINES_AT_ONCE", 2)

    async def found() -> list[Any]:
        return [line async for line in ausage_lines(OCTOBER, NOVEMBER, *arguments)]

    assert asyncio.run(found()) == list(usage_lines(OCTOBER, NOVEMBER, *arguments))


def test_it_reads_as_it_is_iterated() -> None:
    assert inspect.isgenerator(usage_lines(OCTOBER, NOVEMBER))


@pytest.mark.usefixtures("october")
@pytest.mark.parametrize("until", [NOVEMBER, DECEMBER], ids=["a month that waits in part", "the current month"])
def test_while_the_store_does_not_answer_it_leaves_out_nothing(until: date, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollup, "roll_up", Mock(side_effect=StoreUnavailable("no answer")))

    with freeze(noon("2026-11-05")), pytest.raises(StoreUnavailable):
        list(usage_lines(OCTOBER, until))


@outside_a_transaction
@pytest.mark.usefixtures("october")
def test_a_month_that_the_store_no_longer_keeps_is_read_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollup, "roll_up", Mock(side_effect=StoreUnavailable("no answer")))

    with freeze(noon("2026-11-20")):
        assert shown(usage_lines(OCTOBER, NOVEMBER)) == OF_OCTOBER


NO_DAY_AFTER = "is not after since={0}. The day `until` is not part of the usage."


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        pytest.param((OCTOBER, OCTOBER), f"until={OCTOBER!r} {NO_DAY_AFTER.format(repr(OCTOBER))}", id="no day"),
        pytest.param(
            (NOVEMBER, OCTOBER), f"until={OCTOBER!r} {NO_DAY_AFTER.format(repr(NOVEMBER))}", id="an earlier day"
        ),
        pytest.param(
            ("2026-10-01", NOVEMBER),
            "since='2026-10-01' is not a date. Use, for example, since=date(2026, 11, 1).",
            id="a string",
        ),
        pytest.param(
            (OCTOBER, 2026), "until=2026 is not a date. Use, for example, until=date(2026, 11, 1).", id="a year"
        ),
        pytest.param(
            (OCTOBER, noon("2026-11-01")),
            f"until={noon('2026-11-01')!r} is not a date. Use, for example, until=date(2026, 11, 1).",
            id="a moment",
        ),
        pytest.param(
            (OCTOBER, NOVEMBER, "week"),
            "by='week' is not 'day', 'month' or 'period'. Use, for example, by='month'.",
            id="a week",
        ),
        pytest.param(
            (OCTOBER, NOVEMBER, "month", 7),
            "rule=7 is not the name of a rule. Use, for example, rule='api', or None for all.",
            id="a rule",
        ),
    ],
)
def test_a_wrong_argument_is_an_error_at_once(arguments: Any, problem: str) -> None:
    with pytest.raises(RuleError) as caught:
        usage_lines(*arguments)

    assert str(caught.value) == problem


@pytest.mark.usefixtures("october")
@pytest.mark.parametrize("key", ["user:2", "user:3"], ids=["another rule", "another subject"])
def test_the_usage_of_a_subject_has_zeros_where_nothing_was_counted(key: str) -> None:
    assert usage(key, OCTOBER, NOVEMBER, by="month")[OCTOBER]["mail"] == (0, 0, 0)


@outside_a_transaction
@pytest.mark.usefixtures("october")
def test_a_template_loops_over_the_usage_of_a_subject() -> None:
    template = (
        "{% for month, rules in usage.items %}{% for rule, count in rules.items %}{{ rule }} {% endfor %}{% endfor %}"
    )

    shown = engines["django"].from_string(template).render({"usage": usage("org:1", OCTOBER, NOVEMBER, by="month")})

    assert shown == "api mail "


# --- quota_usage ------------------------------------------------------------------------------------------------------


def printed(*words: str) -> str:
    out = StringIO()
    call_command("quota_usage", *words, stdout=out, stderr=StringIO())
    return out.getvalue()


@outside_a_transaction
@pytest.mark.usefixtures("october")
def test_the_command_prints_the_lines_of_a_month() -> None:
    assert printed("--month", "2026-10").splitlines() == [
        "org:1  api: 6 units, 2 allowed, 0 refused",
        "org:1  mail: 1 unit, 1 allowed, 0 refused",
        "user:2  api: 3 units, 1 allowed, 0 refused",
    ]


@pytest.mark.usefixtures("october")
def test_the_command_prints_the_last_whole_month() -> None:
    with freeze(noon("2026-11-20")):
        assert printed() == printed("--month", "2026-10")


@pytest.mark.parametrize(
    ("day", "month"),
    [("2026-03-31", "2026-02"), ("2026-03-01", "2026-02"), ("2027-01-01", "2026-12")],
    ids=["after a short month", "on the first day", "in January"],
)
def test_the_last_whole_month_is_that_of_the_calendar(day: str, month: str) -> None:
    with freeze(noon(day)):
        assert said("quota_usage") == f"0 lines of {month}, 0 units.\n"


def test_the_command_groups_the_digits_of_large_numbers() -> None:
    used = {"allowed": 12_000, "refused": 3_400, "units": 56_000}
    DailyCounter.objects.create(subject="org:1", rule="api", day=OCTOBER, **used)

    assert printed("--month", "2026-10") == "org:1  api: 56,000 units, 12,000 allowed, 3,400 refused\n"


@pytest.mark.usefixtures("october")
def test_the_command_prints_chosen_rules_one_after_the_other() -> None:
    lines = printed("--month", "2026-10", "--rule", "mail", "--rule", "api").splitlines()

    assert [line.split(":")[1] for line in lines] == ["1  mail", "1  api", "2  api"]


@outside_a_transaction
@pytest.mark.usefixtures("october")
@pytest.mark.parametrize(
    ("words", "note"),
    [
        pytest.param([], ["3 lines of 2026-10, 10 units."], id="all rules"),
        pytest.param(["--rule", "mail"], ["1 line of 2026-10, 1 unit."], id="a rule"),
        pytest.param(["--verbosity", "0"], [], id="a quiet command"),
    ],
)
def test_a_note_sums_up_what_the_command_has_printed(words: list[str], note: list[str]) -> None:
    said = StringIO()

    call_command("quota_usage", "--month", "2026-10", *words, stdout=StringIO(), stderr=said)

    assert said.getvalue().splitlines()[-1:] == note


@outside_a_transaction
def test_the_command_escapes_what_a_terminal_would_obey(either_store: None) -> None:
    counted("user:1", "2026-10-02", Rule.make("api\x1b[2J", "5/d", daily=True))

    assert printed("--month", "2026-10") == "user:1  api\\x1b[2J: 1 unit, 1 allowed, 0 refused\n"


@pytest.mark.usefixtures("october")
def test_the_command_prints_json_by_line() -> None:
    (line, *_), (first, *_) = json_of("quota_usage", month="2026-10"), usage_lines(OCTOBER, NOVEMBER)

    assert line == {**first._asdict(), "period": "2026-10"}


@pytest.mark.usefixtures("october")
def test_the_command_prints_csv_with_a_header() -> None:
    header, *rows = csv.reader(StringIO(printed("--month", "2026-10", "--csv")))

    assert (header[1:4], [row[1:4] for row in rows]) == (
        ["subject", "rule", "period"],
        [[subject, rule, "2026-10"] for subject, rule, *_ in OF_OCTOBER],
    )


@pytest.mark.parametrize("month", ["2026-13", "2026-1", "october", "0000-01", "9999-12"])
def test_the_command_refuses_what_is_not_a_month(month: str) -> None:
    with pytest.raises(CommandError, match=f"--month {month}: use a year and a month, for example 2026-10."):
        printed("--month", month)


@pytest.mark.usefixtures("october")
def test_a_rule_that_is_named_twice_is_printed_once() -> None:
    words = ("--month", "2026-10", "--rule", "mail")

    assert printed(*words, "--rule", "mail") == printed(*words)


@pytest.mark.parametrize("month", ["2026-01", "2026-02", "2026-12"])
def test_the_command_prints_a_month_from_its_first_day_to_its_last(month: str) -> None:
    first = date.fromisoformat(f"{month}-01")
    last = (first + timedelta(days=31)).replace(day=1) - timedelta(days=1)
    days = (first - timedelta(days=1), first, last, last + timedelta(days=1))
    for units, day in zip((1, 10, 100, 1_000), days, strict=True):
        DailyCounter.objects.create(subject="org:1", rule="api", day=day, allowed=1, units=units)

    with freeze(noon("2027-03-01")):
        assert printed("--month", month) == "org:1  api: 110 units, 2 allowed, 0 refused\n"


def test_the_command_counts_the_last_day_of_a_month_before_a_roll_up_has_moved_it() -> None:
    with freeze(noon("2026-10-31")):
        check(API, "user:2", 4)

    with freeze(noon("2026-11-05")):
        assert [line["units"] for line in json_of("quota_usage", month="2026-10")] == [4]


def test_a_misspelled_rule_of_the_command_gets_a_hint(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"search": "5/d"}}

    assert 'Did you mean "search"?' in said("quota_usage", "--month", "2026-10", "--rule", "serch")


@pytest.mark.usefixtures("october")
def test_the_command_draws_how_many_lines_are_printed_beside_a_file() -> None:
    terminal = Terminal()

    call_command("quota_usage", "--month", "2026-10", "--verbosity", "0", stdout=StringIO(), stderr=terminal)

    assert terminal.getvalue().endswith(f"\rPrinting {'█' * 20} 3 of 3\n")


@pytest.mark.usefixtures("october")
def test_the_command_draws_the_lines_of_all_rules_that_are_chosen() -> None:
    words, terminal = ("--rule", "mail", "--rule", "api"), Terminal()

    call_command("quota_usage", "--month", "2026-10", *words, stdout=StringIO(), stderr=terminal)

    assert f"\rPrinting {'█' * 20} 3 of 3\n" in terminal.getvalue()


@pytest.mark.usefixtures("october")
def test_the_command_draws_no_bar_between_lines_on_a_terminal() -> None:
    terminal = Terminal()

    call_command("quota_usage", "--month", "2026-10", "--verbosity", "0", stdout=terminal, stderr=terminal)

    assert "Printing" not in terminal.getvalue()


class TestPeriodsOfCustomers:
    """The months of `tokens` begin on the 15th for org:1, and on the 1st for org:2."""

    DAYS = (
        ("org:1", "10-14", 1),
        ("org:1", "10-15", 2),
        ("org:1", "11-14", 3),
        ("org:1", "11-15", 4),
        ("org:2", "11-30", 5),
    )

    @pytest.fixture(autouse=True)
    def used(self, either_store: None, settings: Any) -> None:
        tokens = {"rate": "100/month", "key": "tests.api.test_usage_lines.noon", "daily": True}
        tokens |= {"algorithm": "calendar", "starts": "tests.api.test_usage_lines.day_of"}
        settings.QUOTA = {**settings.QUOTA, "RULES": {"tokens": tokens}}
        for subject, day, units in self.DAYS:
            with freeze(noon(f"2026-{day}")):
                check("tokens", subject, units)
                list(roll_up(get_limiter().store))

    def test_there_is_a_line_for_each_period_that_begins_in_the_span(self) -> None:
        assert shown(usage_lines(OCTOBER, DECEMBER, by="period")) == [
            ("org:1", "tokens", "2026-10-15", 5),
            ("org:1", "tokens", "2026-11-15", 4),
            ("org:2", "tokens", "2026-11-01", 5),
        ]

    @pytest.mark.parametrize(("rule", "number"), [("tokens", 3), ("none", 0)])
    def test_there_are_only_lines_of_the_rule_that_is_asked_for(self, rule: str, number: int) -> None:
        assert len(list(usage_lines(OCTOBER, DECEMBER, "period", rule))) == number

    def test_a_line_has_what_usage_says_of_the_period(self) -> None:
        (line,) = usage_lines(OCTOBER, NOVEMBER, by="period")

        of_subject = usage(line.subject, OCTOBER, NOVEMBER, by="period")
        assert of_subject[line.period][line.rule] == (line.allowed, line.refused, line.units)

    def test_its_id_is_not_that_of_a_day(self) -> None:
        by_day = {line.id for line in usage_lines(OCTOBER, DECEMBER, by="day")}

        assert by_day.isdisjoint(line.id for line in usage_lines(OCTOBER, DECEMBER, by="period"))

    def test_what_waits_in_the_store_is_in_it(self) -> None:
        with freeze(noon("2026-12-01")):
            check("tokens", "org:1", 6)

            assert shown(usage_lines(NOVEMBER, DECEMBER, by="period"))[0] == ("org:1", "tokens", "2026-11-15", 10)

    @outside_a_transaction
    def test_the_command_has_what_waits_of_a_period_that_began_long_ago(self) -> None:
        with freeze(noon("2026-11-14")):
            check("tokens", "org:1", 6)

            assert json_of("quota_usage", month="2026-10", by="period")[0]["units"] == 11

    def test_the_command_prints_the_first_day_of_each(self) -> None:
        assert json_of("quota_usage", month="2026-10", by="period")[0]["period"] == "2026-10-15"

    def test_the_command_draws_how_many_it_has_printed_where_none_can_say_how_many_there_are(self) -> None:
        terminal = Terminal()

        call_command("quota_usage", month="2026-10", by="period", verbosity=0, stdout=StringIO(), stderr=terminal)

        assert terminal.getvalue().endswith("\rPrinting 1\n")

    def test_its_csv_has_the_first_day_of_the_period(self) -> None:
        printed = StringIO()

        call_command("quota_usage", month="2026-10", by="period", csv=True, stdout=printed, stderr=StringIO())

        (_, row) = csv.reader(StringIO(printed.getvalue()))
        assert row[1:4] == ["org:1", "tokens", "2026-10-15"]

    def test_its_lines_of_text_have_the_first_day_of_the_period(self) -> None:
        printed = StringIO()

        call_command("quota_usage", month="2026-10", by="period", stdout=printed, stderr=StringIO())

        assert printed.getvalue() == "org:1  tokens, period of 2026-10-15: 5 units, 2 allowed, 0 refused\n"

    @pytest.mark.parametrize(
        ("subject", "since", "until", "begins"),
        [
            pytest.param("org:2", NOVEMBER, DECEMBER, [date(2026, 11, 1)], id="it begins on the first day"),
            pytest.param("org:2", OCTOBER, NOVEMBER, [], id="it begins on the day after the last"),
            pytest.param("org:1", date(2026, 10, 16), NOVEMBER, [], id="it began the day before the first"),
            pytest.param("org:1", OCTOBER, date(2026, 10, 16), [date(2026, 10, 15)], id="it begins on the last day"),
        ],
    )
    def test_a_period_is_of_the_span_in_which_it_begins(
        self, subject: str, since: date, until: date, begins: list[date]
    ) -> None:
        lines = [line.period for line in usage_lines(since, until, by="period") if line.subject == subject]

        assert (list(usage(subject, since, until, by="period")), lines) == (begins, begins)


def day_of(subject: str) -> date:
    return date(2026, 1, 15) if subject == "org:1" else date(2026, 1, 1)
