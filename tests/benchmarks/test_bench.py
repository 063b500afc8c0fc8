"""A tiny bench runs, so that `make bench` does not rot. No figure of it is judged, but for what is no time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from django_quota.testing import server_programs
from tests.benchmarks import processes

for package in ("limits", "throttled", "pyrate_limiter", "django_ratelimit", "django_smart_ratelimit", "hiredis"):
    pytest.importorskip(package)

from tests.benchmarks import report  # noqa: E402 — it needs nothing of them, but what it shows comes from them


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with processes.redis_over_tcp(server_programs()[0]) as started:
        yield started


def test_a_tiny_bench_has_all_rows_and_goals(url: str) -> None:
    run = processes.in_process("tests.benchmarks.processes:rows", url, 1, False, 2)
    once: dict[str, Any] = {"view_without_redis": {"ratio": 1.05}, "start": {"with": 1.0, "without": 1.0}}
    found = {"machine": "this one", "runs": [{"parser": "hiredis", **run}], **once}
    rows = report.Run(found["runs"][0], found)
    assert {row: round(rows[row].trips) for row in ("bare", "bare view", "check", "check3", "view", "limits", "limits3")} == {
        "bare": 1, "bare view": 0, "check": 1, "check3": 1, "view": 1, "limits": 1, "limits3": 3
    }  # fmt: skip
    goals, checks = (sheet.markdown() for sheet in report.sheets(found))
    assert goals.count("| no |") + goals.count(" no |") + goals.count(" yes |") >= len(report.GOALS) - 2
    assert checks.count("\n| ") == len(run["rows"]) + 1


def test_the_page_has_the_place_for_the_figures() -> None:
    page = report.PAGE.read_text(encoding="utf-8")
    assert page.index(report.BEGIN) < page.index(report.END)


def test_a_picture_is_xml_and_has_a_point_for_each_place(tmp_path: Path) -> None:
    point = {name: {"cpu": 10.0, "wall": 30.0, "redis": 5.0, "trips": 1.0} for name in ("ours", "limits")}
    points = [{"x": number, **point} for number in (1, 1000)]
    report.write_pictures({"rules": points, "limits": points, "subjects": points}, tmp_path)
    for path in tmp_path.iterdir():
        picture = ElementTree.fromstring(path.read_text(encoding="utf-8"))
        lines = picture.findall("{*}polyline")
        assert all(len(line.attrib["points"].split()) == 2 for line in lines)
        assert len(picture.findall("{*}circle")) == 2 * len(lines) > 0
