"""Charts: each day has its place, marks are as high or dark as their counts, and the SVG is fit for everybody."""

import calendar
import re
from collections import Counter
from datetime import date, timedelta
from itertools import pairwise
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree

import pytest
from django.template.loader import render_to_string
from django.test import override_settings
from django.utils import translation
from hypothesis import example, given
from hypothesis import strategies as st

from django_quota.admin.charts import (
    PLOT_HEIGHT,
    SHADES,
    SPARK_HEIGHT,
    HeatCell,
    Label,
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
        pytest.param((1, 1, 1, 2), "none 1 2 or more", id="an exceptional day just above"),
        pytest.param((0, 0, 0, 1, 20, 300, 4000), "none 1 2-20 21-300 301 or more", id="days without checks"),
        pytest.param((1_000, 2_000), "none 1-1,000 1,001 or more", id="thousands"),
    ],
)
def test_the_legend_names_the_range_of_each_shade(counts: tuple[int, ...], legend: str) -> None:
    days = {date(2026, 1, 1) + timedelta(number): Count(count) for number, count in enumerate(counts)}

    found = [words for _, words in heat_map(2026, days, date(2026, 12, 31))["legend"]]

    assert " ".join(found).replace("\N{EN DASH}", "-") == legend


@pytest.mark.parametrize(
    ("counts", "summary"),
    [
        pytest.param([], "Checks: 0, of them refused: 0. Days with checks: 0.", id="none"),
        pytest.param(
            [Count(1, 0, 1)],
            "Checks: 1, of them refused: 0. Days with checks: 1. The busiest day: Jan. 1, 2026: 1 allowed, 0 refused.",
            id="one",
        ),
        pytest.param(
            [Count(5), Count(900, 600), Count(1_500)],
            "Checks: 3,005, of them refused: 600. Days with checks: 3. "
            "The busiest day: Jan. 2, 2026: 900 allowed, 600 refused.",
            id="two busiest days",
        ),
    ],
)
def test_the_summary_of_a_year_names_the_first_of_its_busiest_days(counts: list[Count], summary: str) -> None:
    days = {date(2026, 1, 1) + timedelta(number): each for number, each in enumerate(counts)}

    assert heat_map(2026, days, date(2026, 12, 31))["summary"] == summary


@pytest.mark.parametrize(
    ("first", "named"),
    [
        pytest.param(0, ["Sun", "Tue", "Thu", "Sat"], id="from Sunday"),
        pytest.param(1, ["Mon", "Wed", "Fri", "Sun"], id="from Monday"),
        pytest.param(6, ["Sat", "Mon", "Wed", "Fri"], id="from Saturday"),
    ],
)
def test_each_second_row_of_a_heat_map_has_the_name_of_its_weekday(first: int, named: list[str]) -> None:
    with patch("django_quota.admin.charts.get_format", lambda _: str(first)):
        chart = heat_map(2026, {}, date(2026, 12, 31))

    weekdays = chart["labels"][12:]
    rows = sorted({cell.y for cell in chart["cells"]})
    assert [label.text for label in weekdays] == named
    assert [rows.index(max(y for y in rows if y <= label.y)) for label in weekdays] == [0, 2, 4, 6]


def test_the_names_beside_a_heat_map_have_room() -> None:
    chart = heat_map(2026, {}, date(2026, 12, 31))

    months, weekdays = chart["labels"][:12], chart["labels"][12:]
    assert {label.x for label in weekdays} == {0}
    assert min(cell.x for cell in chart["cells"]) == 36  # for three or four letters
    assert {min(cell.y for cell in chart["cells"]) - label.y for label in months} == {7}


def test_the_months_of_a_heat_map_are_named_in_order() -> None:
    chart = heat_map(2026, {}, date(2026, 12, 31))

    months = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"
    assert [label.text for label in chart["labels"][:12]] == months.split()


@pytest.mark.parametrize("year", [2023, 2024, 2028], ids=["53 weeks", "a leap year", "54 weeks"])
def test_a_heat_map_ends_with_its_last_column(year: int) -> None:
    chart = heat_map(year, {}, date(year, 12, 31))

    columns, rows = (sorted({getattr(cell, name) for cell in chart["cells"]}) for name in ("x", "y"))
    pitch = columns[1] - columns[0]
    assert (chart["width"], chart["height"]) == (columns[-1] + pitch, rows[-1] + pitch)


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


WIDTHS = pytest.mark.parametrize(
    ("count", "pitch"),
    [
        pytest.param(31, 33, id="a month"),
        pytest.param(32, 11, id="more than a month"),
        pytest.param(100, 11, id="100 days"),
        pytest.param(101, 3, id="more than 100 days"),
    ],
)


def days_of(count: int, *counts: Count) -> list[tuple[date, Count]]:
    """Return so many days from January 1, of which the first have counts."""
    return [
        (date(2026, 1, 1) + timedelta(number), counts[number] if number < len(counts) else Count())
        for number in range(count)
    ]


@WIDTHS
def test_bars_are_the_thinner_the_more_days_there_are(count: int, pitch: int) -> None:
    chart = bar_chart(days_of(count))

    edges = [x for x, _title, _parts in chart["bars"]]
    assert {after - before for before, after in pairwise(edges)} == {pitch}
    assert 0 < chart["bar_width"] < chart["pitch"] == pitch


@WIDTHS
def test_the_axis_stands_at_the_right_end_of_the_bars(count: int, pitch: int) -> None:
    chart = bar_chart(days_of(count))

    left = chart["bars"][0][0]
    assert {line.x for line in chart["grid"]} == {left + chart["plot_width"]} == {chart["bars"][-1][0] + pitch}
    assert chart["plot_width"] + left < chart["width"]


@pytest.mark.parametrize(
    ("most", "named"),
    [
        pytest.param(0, ["0", "1", "2"], id="no checks"),
        pytest.param(17, ["0", "10", "20"], id="tens"),
        pytest.param(4_001, ["0", "2,500", "5,000"], id="thousands"),
    ],
)
def test_the_axis_names_its_ends_beside_its_middle(most: int, named: list[str]) -> None:
    chart = bar_chart(days_of(3, Count(most)))

    grid = chart["grid"]
    assert [line.text for line in grid] == named
    top, bottom = chart["plot_top"], chart["plot_top"] + chart["plot_height"]
    assert [line.y for line in grid] == [bottom, (top + bottom) / 2, top]


def test_refused_checks_stand_on_the_allowed_ones() -> None:
    chart = bar_chart(days_of(1, Count(10, 10)))

    top = chart["plot_top"]
    assert chart["bars"][0][2] == [
        ("allowed", top + PLOT_HEIGHT / 2, PLOT_HEIGHT / 2),
        ("refused", top, PLOT_HEIGHT / 2),
    ]


def test_a_bar_is_drawn_to_a_part_of_a_pixel() -> None:
    chart = bar_chart(days_of(2, Count(7), Count(50)))

    top = chart["plot_top"]
    assert chart["bars"][0][2] == [("allowed", round(top + PLOT_HEIGHT * 0.86, 2), round(PLOT_HEIGHT * 0.14, 2))]


def test_one_refusal_among_thousands_is_visible_in_a_bar() -> None:
    assert bar_chart(days_of(1, Count(5_000_000, 1)))["bars"][0][2][1][2] == 1


def test_a_bar_chart_says_what_it_shows() -> None:
    chart = bar_chart(days_of(31, Count(1_200, 1_003), Count(1)))

    assert chart["title"] == "A bar for each day from Jan. 1, 2026 to Jan. 31, 2026"
    assert chart["summary"] == "1,201 allowed and 1,003 refused."


@pytest.mark.parametrize(
    ("count", "named"),
    [(100, ["2", "16", "30", "13", "27", "13", "27", "10"]), (101, ["Jan", "Feb", "Mar", "Apr"])],
    ids=["100 days", "more than 100 days"],
)
def test_the_axis_of_many_days_names_months(count: int, named: list[str]) -> None:
    assert [tick.text.split()[0] for tick in bar_chart(days_of(count))["ticks"]] == named


def test_the_axis_of_many_days_names_no_month_that_has_begun_before() -> None:
    assert [tick.text for tick in bar_chart(days_of(102)[1:])["ticks"]] == ["Feb", "Mar", "Apr"]


@pytest.mark.parametrize(
    ("count", "anchor", "number"),
    [(31, "middle", -1), (101, "start", 0)],
    ids=["the name of a day", "the name of a month"],
)
def test_a_name_stands_below_its_bar(count: int, anchor: str, number: int) -> None:
    chart = bar_chart(days_of(count))

    (edge, *_), tick = chart["bars"][number], chart["ticks"][number]
    assert chart["tick_anchor"] == anchor
    assert (tick.x, tick.y) == (edge + chart["pitch"] / 2, chart["plot_top"] + chart["plot_height"])
    assert tick.y < chart["height"]


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


def test_a_minute_with_one_check_is_visible_in_a_sparkline() -> None:
    chart = sparkline([Minute(5_000, 0), Minute(1, 0)])

    assert [height for _x, _y, height in chart["allowed"]] == [SPARK_HEIGHT, 2]


def test_a_minute_with_one_check_of_each_kind_shows_both_in_a_sparkline() -> None:
    chart = sparkline([Minute(5_000, 0), Minute(1, 1)])

    assert [chart["allowed"][1][2], chart["refused"][0][2]] == [1, 1]


def test_a_minute_is_as_high_as_its_share_of_the_peak_rounded() -> None:
    chart = sparkline([Minute(3, 0), Minute(2, 0), Minute(1, 0)])

    assert [height for _x, _y, height in chart["allowed"]] == [SPARK_HEIGHT, 19, 9]


def test_each_minute_of_a_sparkline_has_its_own_place() -> None:
    chart = sparkline([Minute(1, 0), Minute(), Minute(1, 0), Minute(2, 2)])

    pitch = chart["width"] / 4
    assert [x for x, _y, _height in chart["allowed"]] == [0, 2 * pitch, 3 * pitch]
    assert chart["allowed"][-1] == (3 * pitch, SPARK_HEIGHT / 2, SPARK_HEIGHT / 2)
    assert chart["refused"] == [(3 * pitch, 0, SPARK_HEIGHT / 2)]
    assert (chart["height"], chart["peak"]) == (SPARK_HEIGHT, 4)


def test_without_minutes_there_is_no_sparkline() -> None:
    assert sparkline([]) == {}


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


# --- the whole of a chart ---------------------------------------------------------------------------------------------


def test_three_days_have_their_bars_beside_the_axis() -> None:
    days = [(date(2026, 1, 1), Count(10, 10)), (date(2026, 1, 2), Count(0, 3)), (date(2026, 1, 3), Count())]

    assert bar_chart(days) == {
        "width": 175,
        "height": 204,
        "plot_top": 20,
        "plot_width": 99,
        "plot_height": 160,
        "pitch": 33,
        "bar_width": 31,
        "tick_anchor": "middle",
        "title": "A bar for each day from Jan. 1, 2026 to Jan. 3, 2026",
        "summary": "10 allowed and 13 refused.",
        "grid": [(119, 180, "0"), (119, 100, "10"), (119, 20, "20")],
        "ticks": [(102.5, 180, "3 Jan")],
        "bars": [
            (20, "Jan. 1, 2026: 10 allowed, 10 refused", [("allowed", 100, 80), ("refused", 20, 80)]),
            (53, "Jan. 2, 2026: 0 allowed, 3 refused", [("refused", 156, 24)]),
            (86, "Jan. 3, 2026: no checks", []),
        ],
    }


@pytest.mark.parametrize(
    ("count", "width"),
    [
        pytest.param(31, 31, id="a month"),
        pytest.param(32, 9, id="more than a month"),
        pytest.param(101, 2, id="more than 100 days"),
    ],
)
def test_a_gap_is_between_two_bars(count: int, width: int) -> None:
    assert bar_chart(days_of(count))["bar_width"] == width


def test_a_year_has_a_place_for_each_day_beside_the_names_of_months_and_weekdays() -> None:
    chart = heat_map(2026, {date(2026, 1, 2): Count(3, 1, 3)}, date(2026, 1, 3))

    assert chart["cells"][:4] == [
        (36, 80, 0, 0, "Jan. 1, 2026: no checks"),
        (36, 95, 1, 1, "Jan. 2, 2026: 3 allowed, 1 refused"),
        (36, 110, 0, 0, "Jan. 3, 2026: no checks"),
        (51, 20, 0, 0, ""),
    ]
    assert chart["labels"][:2] == [(36, 13, "Jan"), (111, 13, "Feb")]
    assert chart["labels"][12:] == [(0, 30, "Sun"), (0, 60, "Tue"), (0, 90, "Thu"), (0, 120, "Sat")]
    assert (chart["width"], chart["height"], chart["title"]) == (831, 125, "A heat map of 2026")


def test_three_minutes_have_their_bars() -> None:
    assert sparkline([Minute(3, 1), Minute(), Minute(0, 2)]) == {
        "width": 9,
        "height": 28,
        "allowed": [(0, 7, 21)],
        "refused": [(0, 0, 7), (6, 14, 14)],
        "title": "Last 3 minutes: 3 allowed, 3 refused; at most 4 in a minute",
        "peak": 4,
    }


# --- what is drawn ----------------------------------------------------------------------------------------------------


def svg_of(name: str, chart: dict[str, Any]) -> list[str]:
    """Return the elements of a chart, and the words after them. Numbers are the same in every language."""
    with translation.override("de"), override_settings(USE_THOUSAND_SEPARATOR=True):
        html = render_to_string(f"admin/django_quota/charts/{name}.html", {"chart": chart})
    parts = [" ".join(each.split()) for each in re.findall(r"<[^>]*>[^<]*", html)]
    return [each for each in parts if not re.fullmatch("</[^>]*>", each)]


def test_the_marks_of_a_sparkline_are_two_paths_above_a_line() -> None:
    chart = {
        "width": 1_800,
        "height": 28,
        "title": "<Last>",
        "allowed": [(0, 7, 21)],
        "refused": [(0, 0, 7), (6, 14, 14)],
    }

    assert svg_of("sparkline", chart) == [
        (
            '<svg class="quota-spark" width="1800" height="28" viewBox="0 0 1800 28" preserveAspectRatio="none" '
            'role="img" aria-label="&lt;Last&gt;">'
        ),
        "<title>&lt;Last&gt;",
        '<path class="quota-spark-base" d="M0 28h1800"/>',
        '<path class="quota-spark-allowed" d="M0 7h2v21h-2z"/>',
        '<path class="quota-spark-refused" d="M0 0h2v7h-2zM6 14h2v14h-2z"/>',
    ]


def test_the_marks_of_a_heat_map_are_squares_with_titles_and_dots() -> None:
    chart = {
        "width": 1_831,
        "height": 125,
        "title": "<A year>",
        "summary": "<4 checks>",
        "labels": [Label(36, 13, "<Jan>")],
        "cells": [HeatCell(36, 80, 2, 0, "<a>"), HeatCell(1_036, 95, 1, 7, "<b>"), HeatCell(51, 20, 0, 0, "")],
    }

    assert svg_of("heat_map", chart) == [
        (
            '<svg class="quota-heat" role="img" width="1831" height="125" viewBox="0 0 1831 125" '
            'aria-labelledby="quota-heat-title quota-heat-summary">'
        ),
        '<title id="quota-heat-title">&lt;A year&gt;',
        '<desc id="quota-heat-summary">&lt;4 checks&gt;',
        '<text x="36" y="13">&lt;Jan&gt;',
        '<g transform="translate(36 80)">',
        "<title>&lt;a&gt;",
        '<rect class="cell shade-2" width="12" height="12" rx="2"/>',
        '<g transform="translate(1036 95)">',
        "<title>&lt;b&gt;",
        '<rect class="cell shade-1" width="12" height="12" rx="2"/>',
        '<circle class="refused" cx="6" cy="6" r="2.5"/>',
        '<g transform="translate(51 20)">',
        '<rect class="cell future" width="12" height="12" rx="2"/>',
    ]


def test_the_legend_of_a_heat_map_has_a_square_for_each_shade() -> None:
    shown = svg_of("heat_legend", {"legend": [(0, "none"), (3, "<1\N{EN DASH}4>")]})

    square = '<svg class="quota-heat" width="14" height="14" aria-hidden="true">'
    assert shown == [
        '<ul class="usage-legend" aria-label="Prüfungen am Tag">',
        "<li>Prüfungen am Tag:",
        "<li>",
        square,
        '<rect class="cell shade-0" x="1" y="1" width="12" height="12" rx="2"/>',
        "</svg> none",
        "<li>",
        square,
        '<rect class="cell shade-3" x="1" y="1" width="12" height="12" rx="2"/>',
        "</svg> &lt;1\N{EN DASH}4&gt;",
        "<li>",
        square,
        '<rect class="cell shade-0" x="1" y="1" width="12" height="12" rx="2"/>',
        '<circle class="refused" cx="7" cy="7" r="2.5"/>',
        "</svg> manche abgelehnt",
    ]


def test_the_marks_of_a_bar_chart_are_columns_of_two_parts_beside_lines() -> None:
    chart = {
        "width": 1_175,
        "height": 204,
        "title": "<A bar>",
        "summary": "<10 allowed>",
        "plot_top": 20,
        "plot_width": 1_099,
        "plot_height": 160,
        "pitch": 33,
        "bar_width": 31,
        "tick_anchor": "middle",
        "grid": [Label(1_119, 100.5, "<10>")],
        "ticks": [Label(102.5, 180, "<3 Jan>")],
        "bars": [(20, "<Jan. 1>", [("allowed", 100.25, 79.75), ("refused", 20.0, 80.25)])],
    }

    assert svg_of("bar_chart", chart)[1:19] == [
        (
            '<svg class="quota-bars" role="img" width="1175" height="204" viewBox="0 0 1175 204" '
            'aria-labelledby="quota-bars-title quota-bars-summary">'
        ),
        '<title id="quota-bars-title">&lt;A bar&gt;',
        '<desc id="quota-bars-summary">&lt;10 allowed&gt;',
        "<defs>",
        '<pattern id="quota-bars-refused" width="5" height="5" patternUnits="userSpaceOnUse">',
        '<rect class="ground" width="5" height="5"/>',
        '<circle class="dot" cx="2.5" cy="2.5" r="1.1"/>',
        '<g transform="translate(1119 100.5)">',
        '<line class="grid" x1="-1099" x2="4"/>',
        '<text x="8" y="4">&lt;10&gt;',
        '<g transform="translate(20 0)">',
        "<title>&lt;Jan. 1&gt;",
        '<rect class="column" y="20" width="33" height="160"/>',
        '<rect class="allowed" x="1" y="100.25" width="31" height="79.75"/>',
        '<rect class="refused" x="1" y="20.0" width="31" height="80.25" fill="url(#quota-bars-refused)"/>',
        '<g transform="translate(102.5 180)">',
        '<line class="tick" y2="4"/>',
        '<text y="17" text-anchor="middle">&lt;3 Jan&gt;',
    ]


def test_the_legend_of_a_bar_chart_has_both_kinds_of_checks() -> None:
    shown = svg_of("bar_chart", {})

    assert shown[0] == '<div class="usage-scroll usage-from-end" role="region" tabindex="0" aria-label="Balken">'
    assert shown[-9:] == [
        '<ul class="usage-legend" aria-label="Legende">',
        "<li>",
        '<svg class="quota-bars" width="14" height="14" aria-hidden="true">',
        '<rect class="allowed" x="1" y="1" width="12" height="12"/>',
        "</svg> zugelassen",
        "<li>",
        '<svg class="quota-bars" width="14" height="14" aria-hidden="true">',
        '<rect class="refused" x="1" y="1" width="12" height="12" fill="url(#quota-bars-refused)"/>',
        "</svg> abgelehnt",
    ]
