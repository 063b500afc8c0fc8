"""Charts: each day has its place, marks are as high or dark as their counts, and the SVG is fit for everybody."""

import calendar
import re
from collections import Counter
from datetime import date, timedelta
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree

import pytest
from django.template.loader import render_to_string
from hypothesis import example, given
from hypothesis import strategies as st

from django_quota.admin.charts import (
    PLOT_HEIGHT,
    SHADES,
    SPARK_HEIGHT,
    axis_maximum,
    bar_chart,
    heat_map,
    shade_bounds,
    shade_of,
    sparkline,
)
from django_quota.features.usage.days import Count
from django_quota.operating.activity import Minute
from tests.support.inputs import inputs

numbers = st.integers(0, 2**63 - 1)
check_counts = st.builds(Count, numbers, numbers, numbers)


def drawn(name: str, chart: Any) -> ElementTree.Element:
    html = render_to_string(f"admin/django_quota/charts/{name}.html", {"chart": chart})
    return ElementTree.fromstring(f"<div>{html}</div>")


def cells_of(year: int, first: int) -> Any:
    """Return the cells of a year, where a week begins with day `first`."""
    with patch("django_quota.admin.charts.get_format", lambda _: str(first)):
        return heat_map(year, {}, date(year, 12, 31))["cells"]


@inputs(40)
@given(st.integers(1, 9998), st.integers(0, 6))
def test_each_day_of_a_year_is_in_the_row_of_its_weekday(year: int, first: int) -> None:
    cells = cells_of(year, first)

    rows = sorted({cell.y for cell in cells})
    days = [date(year, 1, 1) + timedelta(number) for number in range(len(cells))]
    assert all((rows.index(cell.y) + first) % 7 == day.isoweekday() % 7 for cell, day in zip(cells, days, strict=True))
    assert len(cells) == 365 + calendar.isleap(year)


@inputs(40)
@given(st.integers(1, 9998), st.integers(0, 6))
def test_each_week_of_a_year_has_a_column(year: int, first: int) -> None:
    cells = cells_of(year, first)

    columns = Counter(cell.x for cell in cells)
    assert all(columns[x] == 7 for x in sorted(columns)[1:-1])
    assert len({(cell.x, cell.y) for cell in cells}) == len(cells), "no two days are in one place"


@inputs(20)
@given(st.integers(1, 9998), st.integers(0, 6))
def test_the_name_of_a_month_stands_above_its_first_whole_week(year: int, first: int) -> None:
    """January has the first column, where no month is before it."""
    with patch("django_quota.admin.charts.get_format", lambda _: str(first)):
        chart = heat_map(year, {}, date(year, 12, 31))
    cells, top = chart["cells"], min(cell.y for cell in chart["cells"])
    days = [date(year, 1, 1) + timedelta(number) for number in range(len(cells))]

    whole_weeks = [
        min(cell.x for cell, day in zip(cells, days, strict=True) if day.month == month and cell.y == top)
        for month in range(2, 13)
    ]

    assert [label.x for label in chart["labels"][:12]] == [cells[0].x, *whole_weeks]


@given(st.lists(numbers, max_size=60), numbers)
def test_more_checks_are_never_a_lighter_shade(values: list[int], other: int) -> None:
    bounds = shade_bounds(values)
    shades = [shade_of(value, bounds) for value in sorted([*values, other])]
    assert shades == sorted(shades)
    assert set(shades) <= set(range(SHADES + 1))
    assert all((shade_of(value, bounds) == 0) == (value == 0) for value in values)


def test_an_exceptional_day_is_the_darkest() -> None:
    bounds = shade_bounds([1, 2, 3, 4, 5, 6, 7, 100])

    assert [shade_of(value, bounds) for value in (0, 1, 3, 5, 7, 100)] == [0, 1, 2, 3, 4, 4]
    assert [shade_of(value, shade_bounds([5, 5, 5])) for value in (5, 9)] == [1, SHADES]


@pytest.mark.parametrize(
    ("counts", "legend"),
    [
        pytest.param((), "none", id="no checks"),
        pytest.param((5, 5, 5), "none 1-5", id="equal days"),
        pytest.param((1, 20, 300, 4000), "none 1 2-20 21-300 301 or more", id="four ranges"),
    ],
)
def test_the_legend_names_the_range_of_each_shade(counts: tuple[int, ...], legend: str) -> None:
    days = {date(2026, 1, 1) + timedelta(number): Count(count) for number, count in enumerate(counts)}

    found = [words for _, words in heat_map(2026, days, date(2026, 12, 31))["legend"]]

    assert " ".join(found).replace("\N{EN DASH}", "-") == legend


def january(counts: dict[int, Count]) -> tuple[dict[date, Count], ElementTree.Element]:
    """Return the days of the given numbers, and the heat map of the year as it is on January 31."""
    days = {date(2026, 1, 1) + timedelta(number): each for number, each in counts.items()}
    return days, drawn("heat_map", heat_map(2026, days, date(2026, 1, 31)))


def titles_of(svg: ElementTree.Element) -> list[str]:
    return [group.findtext("title") or "" for group in svg.iter("g")]


def marks_of(svg: ElementTree.Element) -> Counter[str | None]:
    return Counter(element.get("class") for element in svg.iter())


@example({0: Count(3, 0, 3), 1: Count(0, 2, 0), 2: Count()})
@given(st.dictionaries(st.integers(0, 30), check_counts, max_size=9))
def test_a_heat_map_says_what_was_checked_on_each_day(given_counts: dict[int, Count]) -> None:
    days, svg = january(given_counts)

    titles = titles_of(svg)
    words = {
        day: f": {counts.allowed:,} allowed, {counts.refused:,} refused" if counts.checks else ": no checks"
        for day, counts in days.items()
    }
    assert {day: titles[day.day - 1] for day in days if words[day] not in titles[day.day - 1]} == {}


@example({0: Count(3, 0, 3), 1: Count(0, 2, 0), 2: Count()})
@given(st.dictionaries(st.integers(0, 30), check_counts, max_size=9))
def test_a_heat_map_marks_days_with_refusals(given_counts: dict[int, Count]) -> None:
    days, svg = january(given_counts)

    assert marks_of(svg)["refused"] == sum(counts.refused > 0 for counts in days.values())


@given(st.dictionaries(st.integers(0, 30), check_counts, max_size=9))
def test_a_heat_map_says_nothing_of_days_to_come(given_counts: dict[int, Count]) -> None:
    _, svg = january(given_counts)

    assert [title != "" for title in titles_of(svg)] == [True] * 31 + [False] * 334
    assert marks_of(svg)["cell future"] == 334


@given(st.integers(0, 2**64))
def test_the_axis_ends_at_a_round_number_above_all_counts(most: int) -> None:
    top = axis_maximum(most)

    assert most <= top <= max(2, most * 2.5)
    assert re.fullmatch("[125]0*", str(top))


@given(st.lists(check_counts, min_size=1, max_size=120))
def test_bars_are_as_high_as_their_counts(values: list[Count]) -> None:
    days = [(date(2026, 1, 1) + timedelta(number), counts) for number, counts in enumerate(values)]

    bars = bar_chart(days)["bars"]

    top = axis_maximum(max(counts.checks for counts in values))
    heights = [sum(height for _kind, _y, height in parts) for _x, _title, parts in bars]
    right = [PLOT_HEIGHT * counts.checks / top for counts in values]
    bounds = [1 * len(parts) + 0.1 for _x, _title, parts in bars]
    wrong = [row for row in zip(heights, right, bounds, strict=True) if abs(row[0] - row[1]) >= row[2]]
    assert wrong == [], "rows of height, right height, bound"


def test_one_refusal_among_thousands_is_visible_in_a_sparkline() -> None:
    chart = sparkline([Minute(5_000, 1), Minute(1, 0), Minute(0, 3)])
    assert chart["refused"][0] == (0, 0, 1)
    assert chart["allowed"][0] == (0, 1, SPARK_HEIGHT - 1)
    assert len(chart["allowed"]) == len(chart["refused"]) == 2
    assert "5001 allowed, 4 refused; at most 5001 in a minute" in chart["title"]
    assert sparkline([Minute()] * 60)["allowed"] == []


@pytest.mark.parametrize(
    ("count", "named"),
    [
        pytest.param(22, ["10 Mar", "17 Mar", "24 Mar", "31 Mar"], id="each week"),
        pytest.param(90, ["6 Jan", "20 Jan", "3 Feb", "17 Feb", "3 Mar", "17 Mar", "31 Mar"], id="each second week"),
    ],
)
def test_the_axis_names_days_counted_back_from_the_last(count: int, named: list[str]) -> None:
    days = [(date(2025, 3, 31) - timedelta(number), Count()) for number in reversed(range(count))]

    assert [tick.text for tick in bar_chart(days)["ticks"]] == named
