"""Charts: every day has its place, and whatever stands in them, they are well-formed and carry no styles."""

from __future__ import annotations

import calendar
import re
from collections import Counter
from datetime import date, timedelta
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from django_quota.charts import (
    KEYS,
    LEVELS,
    NOTHING,
    PLOT,
    Figure,
    Words,
    bar_key,
    bars,
    bounds,
    ceiling,
    heat_key,
    heat_map,
    level,
    places,
)

SVG = "{http://www.w3.org/2000/svg}"
years = st.integers(1, 9999)
weekdays = st.integers(0, 6)
counts = st.integers(0, 2**63 - 1)
texts = st.text(st.characters(), max_size=40) | st.sampled_from(
    ["<script>alert(1)</script>", "\"'>&", "\ud800", "\0\x01\x1b", "]]>", "&#0;", "x" * 10_000]
)


@st.composite
def figures(draw: st.DrawFn) -> Figure:
    allowed, refused = draw(counts), draw(counts)
    return Figure(allowed, refused, draw(st.integers(0, allowed)), draw(st.integers(0, refused)))


def words(said: str = "said") -> Words:
    return Words(said, said, lambda day, figure: f"{day} {figure.allowed} {figure.refused} {said}", months=[said] * 12)


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


# --- the heat map -----------------------------------------------------------------------------------------------------


@given(years, weekdays)
def test_each_day_of_a_year_has_one_place_in_the_row_of_its_weekday(year: int, first: int) -> None:
    found = list(places(year, first))
    days = [place.day for place in found]
    assert days == sorted(set(days))
    assert (days[0], days[-1]) == (date(year, 1, 1), date(year, 12, 31))
    assert len(days) == 365 + calendar.isleap(year)
    assert all((place.row + first) % 7 == place.day.weekday() for place in found)


@given(years, weekdays)
def test_a_column_is_a_week(year: int, first: int) -> None:
    found = list(places(year, first))
    assert len({(place.column, place.row) for place in found}) == len(found)
    assert {place.column for place in found} == set(range(found[-1].column + 1))
    assert found[-1].column in (52, 53)
    whole = Counter(place.column for place in found)
    assert all(whole[column] == 7 for column in range(1, found[-1].column))


def test_the_days_on_which_clocks_change_are_days_like_others() -> None:
    found = {place.day: place for place in places(2026)}
    for changed in (date(2026, 3, 29), date(2026, 10, 25)):
        before, after = found[changed - timedelta(days=1)], found[changed + timedelta(days=1)]
        assert (before.row, found[changed].row, after.row) == (5, 6, 0)
        assert after.column == before.column + 1


@given(st.lists(counts, max_size=60), counts)
def test_more_checks_are_never_a_lighter_shade(values: list[int], other: int) -> None:
    highest = bounds(values)
    shades = [level(value, highest) for value in sorted([*values, other])]
    assert shades == sorted(shades)
    assert set(shades) <= set(range(LEVELS))
    assert all((level(value, highest) == 0) == (value == 0) for value in values)


def test_a_day_that_stands_out_has_the_darkest_shade() -> None:
    highest = bounds([1, 2, 3, 4, 5, 6, 7, 100])
    assert [level(value, highest) for value in (0, 1, 3, 5, 7, 100)] == [0, 1, 2, 3, 4, 4]
    assert level(9, bounds([5, 5, 5])) == LEVELS - 1
    assert level(5, bounds([5, 5, 5])) == 1


@given(years, weekdays, st.dictionaries(st.integers(0, 364), figures(), max_size=9), texts)
def test_a_heat_map_is_well_formed_and_says_each_day(
    year: int, first: int, given_figures: dict[int, Figure], said: str
) -> None:
    known = {date.fromordinal(date(year, 1, 1).toordinal() + day): figure for day, figure in given_figures.items()}
    svg = parse(heat_map(year, known, words(said), first_weekday=first))
    titles = [element.text or "" for element in svg.findall(f"{SVG}g/{SVG}title")]
    assert [title[:10] for title in titles] == [place.day.isoformat() for place in places(year, first)]
    for day, figure in known.items():
        assert f"{day} {figure.allowed} {figure.refused} " in "\n".join(titles)
    marks = Counter(element.get("class") for element in svg.iter())
    assert marks["live"] == sum(figure.live > 0 for figure in known.values())
    assert marks["refused"] == sum(figure.refused > 0 for figure in known.values())


def test_days_to_come_are_drawn_apart_and_say_nothing() -> None:
    svg = parse(heat_map(2026, {}, words(), last=date(2026, 1, 31)))
    kinds = Counter(element.get("class") for element in svg.iter())
    assert kinds["cell level-0"] == 31
    assert kinds["cell future"] == 334


# --- the bars ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**64))
def test_the_axis_ends_with_a_round_number_that_nothing_exceeds(most: int) -> None:
    top = ceiling(most)
    assert top >= most
    assert re.fullmatch("[125]0*", str(top))
    assert top <= max(2, most * 2.5)


@given(st.lists(figures(), min_size=1, max_size=120), texts)
def test_bars_are_well_formed_and_as_high_as_their_figures(values: list[Figure], said: str) -> None:
    each = [(date(2026, 1, 1) + timedelta(days=number), figure) for number, figure in enumerate(values)]
    svg = parse(bars(each, words(said)))
    groups = svg.findall(f"{SVG}g")
    top = ceiling(max(figure.checks for figure in values))
    assert len(groups) == len(values)
    for (day, figure), group in zip(each, groups, strict=True):
        assert (group.findtext(f"{SVG}title") or "").startswith(f"{day} {figure.allowed} {figure.refused} ")
        parts = [rect for rect in group.findall(f"{SVG}rect") if rect.get("class") != "column"]
        height = sum(float(rect.get("height", "0")) for rect in parts)
        assert abs(height - PLOT * figure.checks / top) < 1 * len(parts) + 0.1
        live = {rect.get("class") for rect in parts if "live" in (rect.get("class") or "")}
        assert live == {f"{kind} live" for kind in ("allowed", "refused") if getattr(figure, f"live_{kind}")}


def test_what_is_refused_or_live_has_a_pattern_and_not_only_a_colour() -> None:
    svg = parse(bars([(date(2026, 1, 1), Figure(9, 8, 3, 2))], words()))
    patterns = {element.get("id") for element in svg.iter(f"{SVG}pattern")}
    fills = {rect.get("class"): rect.get("fill") for rect in svg.iter(f"{SVG}rect")}
    assert fills["allowed"] is None
    kinds = ("allowed live", "refused", "refused live")
    assert {fills[kind] for kind in kinds} == {f"url(#{name})" for name in patterns}
    assert len(patterns) == 3
    assert {kind: KEYS[kind] for kind in kinds} == {kind: fills[kind] for kind in kinds}


# --- both -------------------------------------------------------------------------------------------------------------


def test_charts_carry_no_styles_and_no_scripts_and_are_named_for_those_who_do_not_see() -> None:
    one = [(date(2026, 1, 1), Figure(9, 8, 3, 2))]
    for chart in (bars(one, words("<style>")), heat_map(2026, dict(one), words("<style>"))):
        svg = parse(chart)
        assert svg.get("role") == "img"
        named = {element.get("id"): element.text for element in svg if element.get("id")}
        assert [named[name] for name in (svg.get("aria-labelledby") or "").split()] == ["<style>", "<style>"]
        for element in svg.iter():
            assert element.tag.removeprefix(SVG) not in {"style", "script", "foreignObject"}
            assert not [name for name in element.keys() if name == "style" or name.startswith("on")]  # noqa: SIM118


def test_samples_for_legends_are_hidden_from_readers() -> None:
    samples = [bar_key(kind) for kind in KEYS] + [heat_key(3), heat_key(0, "live"), heat_key(0, "refused")]
    assert len(set(samples)) == len(samples)
    assert all(parse(sample).get("aria-hidden") == "true" for sample in samples)


@given(figures(), figures())
def test_figures_add_up(one: Figure, other: Figure) -> None:
    assert (one + other).checks == one.checks + other.checks
    assert (one + other).live == one.live + other.live
    assert one + NOTHING == one
