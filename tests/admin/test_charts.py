"""Charts: each day has its place, marks are as high or dark as their counts, and the SVG is fit for everybody."""

from __future__ import annotations

import calendar
import re
from collections import Counter
from datetime import date, timedelta
from typing import Any
from xml.etree import ElementTree

from django.template.loader import render_to_string
from hypothesis import given
from hypothesis import strategies as st

from django_quota.admin.charts import (
    PLOT_HEIGHT,
    SHADES,
    axis_maximum,
    bar_chart,
    heat_map,
    shade_bounds,
    shade_of,
)
from django_quota.features.usage import Count

years = st.integers(1, 9998)
weekdays = st.integers(0, 6)
numbers = st.integers(0, 2**63 - 1)


check_counts = st.builds(Count, numbers, numbers, numbers)


def drawn(name: str, chart: Any) -> ElementTree.Element:
    """Return what a template draws, parsed."""
    html = render_to_string(f"admin/django_quota/charts/{name}.html", {"chart": chart})
    return ElementTree.fromstring(f"<div>{html}</div>")


def classes(svg: ElementTree.Element) -> Counter[str | None]:
    return Counter(element.get("class") for element in svg.iter())


# --- the heat map -----------------------------------------------------------------------------------------------------


@given(years, weekdays)
def test_each_day_of_a_year_has_one_cell_in_the_row_of_its_weekday(year: int, first: int) -> None:
    cells = heat_map(year, {}, date(year, 12, 31), first)["cells"]
    assert [cell.day for cell in cells] == [date(year, 1, 1) + timedelta(number) for number in range(len(cells))]
    assert len(cells) == 365 + calendar.isleap(year)
    rows = sorted({cell.y for cell in cells})
    assert all((rows.index(cell.y) + first) % 7 == cell.day.weekday() for cell in cells)


@given(years, weekdays)
def test_a_column_is_a_week(year: int, first: int) -> None:
    cells = heat_map(year, {}, date(year, 12, 31), first)["cells"]
    assert len({(cell.x, cell.y) for cell in cells}) == len(cells)
    columns = Counter(cell.x for cell in cells)
    assert len(columns) in (53, 54)
    assert all(columns[x] == 7 for x in sorted(columns)[1:-1])


@given(st.lists(numbers, max_size=60), numbers)
def test_more_checks_are_never_a_lighter_shade(values: list[int], other: int) -> None:
    bounds = shade_bounds(values)
    shades = [shade_of(value, bounds) for value in sorted([*values, other])]
    assert shades == sorted(shades)
    assert set(shades) <= set(range(SHADES + 1))
    assert all((shade_of(value, bounds) == 0) == (value == 0) for value in values)


def test_an_exceptional_day_has_the_darkest_shade() -> None:
    bounds = shade_bounds([1, 2, 3, 4, 5, 6, 7, 100])
    assert [shade_of(value, bounds) for value in (0, 1, 3, 5, 7, 100)] == [0, 1, 2, 3, 4, 4]
    assert shade_of(9, shade_bounds([5, 5, 5])) == SHADES
    assert shade_of(5, shade_bounds([5, 5, 5])) == 1


def test_the_legend_names_the_range_of_each_shade() -> None:
    def legend(*counts: int) -> list[tuple[int, str]]:
        days = {date(2026, 1, 1) + timedelta(number): Count(count) for number, count in enumerate(counts)}
        legend = heat_map(2026, days, date(2026, 12, 31))["legend"]
        return [(shade, words.replace("\N{EN DASH}", "-")) for shade, words in legend]

    assert legend() == [(0, "none")]
    assert legend(5, 5, 5) == [(0, "none"), (1, "1-5")]
    assert legend(1, 20, 300, 4000) == [(0, "none"), (1, "1"), (2, "2-20"), (3, "21-300"), (4, "301 or more")]


@given(st.dictionaries(st.integers(0, 364), check_counts, max_size=9))
def test_a_heat_map_says_and_marks_each_day(given_counts: dict[int, Count]) -> None:
    days = {date(2026, 1, 1) + timedelta(number): counts for number, counts in given_counts.items()}
    svg = drawn("heat_map", heat_map(2026, days, date(2026, 12, 31)))
    titles = [group.findtext("title") or "" for group in svg.iter("g")]
    assert len(titles) == 365
    for day, counts in days.items():
        words = f": {counts.allowed:,} allowed, {counts.refused:,} refused" if counts.checks else ": no checks"
        assert words in titles[day.timetuple().tm_yday - 1]
    marks = classes(svg)
    assert marks["refused"] == sum(counts.refused > 0 for counts in days.values())


def test_days_to_come_have_a_mark_of_their_own_and_no_words() -> None:
    svg = drawn("heat_map", heat_map(2026, {}, date(2026, 1, 31)))
    marks = classes(svg)
    assert marks["cell shade-0"] == 31
    assert marks["cell future"] == 334
    assert len([group for group in svg.iter("g") if group.find("title") is not None]) == 31


# --- the bars ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**64))
def test_the_axis_ends_with_a_round_number_that_no_count_exceeds(count: int) -> None:
    top = axis_maximum(count)
    assert top >= count
    assert re.fullmatch("[125]0*", str(top))
    assert top <= max(2, count * 2.5)


@given(st.lists(check_counts, min_size=1, max_size=120))
def test_bars_are_as_high_as_their_counts(values: list[Count]) -> None:
    days = [(date(2026, 1, 1) + timedelta(number), counts) for number, counts in enumerate(values)]
    top = axis_maximum(max(counts.checks for counts in values))
    chart = bar_chart(days)
    assert len(chart["bars"]) == len(values)
    for (_day, counts), bar in zip(days, chart["bars"], strict=True):
        height = sum(part.height for part in bar.parts)
        assert abs(height - PLOT_HEIGHT * counts.checks / top) < 1 * len(bar.parts) + 0.1


def test_refused_checks_have_a_pattern_and_not_only_a_colour() -> None:
    svg = drawn("bar_chart", bar_chart([(date(2026, 1, 1), Count(9, 8, 30))]))
    patterns = {element.get("id") for element in svg.iter("pattern")}
    (bars, *legend) = svg.iter("svg")
    fills = {rect.get("class"): rect.get("fill") for rect in bars.iter("rect")}
    assert fills["allowed"] is None
    assert {fills["refused"]} == {f"url(#{name})" for name in patterns}
    samples = {rect.get("class"): rect.get("fill") for sample in legend for rect in sample.iter("rect")}
    assert samples == {kind: fills[kind] for kind in ("allowed", "refused")}


# --- both -------------------------------------------------------------------------------------------------------------


def test_charts_have_a_name_and_no_style_or_script() -> None:
    days = {date(2026, 1, 1): Count(9, 8, 30)}
    maps, bars = heat_map(2026, days, date(2026, 12, 31)), bar_chart(list(days.items()))
    for name, chart in (("heat_map", maps), ("bar_chart", bars)):
        page = drawn(name, chart)
        svg = next(page.iter("svg"))
        assert svg.get("role") == "img"
        named = {element.get("id"): element.text for element in svg if element.get("id")}
        ids = (svg.get("aria-labelledby") or "").split()
        assert [named[each] for each in ids] == [chart["title"], chart["summary"]]
        for element in page.iter():
            assert element.tag not in {"style", "script", "foreignObject"}
            assert not [each for each in element.keys() if each == "style" or each.startswith("on")]  # noqa: SIM118


def test_the_samples_of_a_legend_are_hidden_from_screen_readers() -> None:
    days = {date(2026, 1, 1): Count(9, 8, 30)}
    legend = drawn("heat_legend", heat_map(2026, days, date(2026, 12, 31)))
    _bars, *samples = drawn("bar_chart", bar_chart(list(days.items()))).iter("svg")
    assert all(sample.get("aria-hidden") == "true" for sample in [*samples, *legend.iter("svg")])
