"""A tiny bench runs, so that `make bench` does not rot. No figure of it is judged, but for what is no time."""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from django_quota.testing import server_programs
from tests.benchmarks import processes, report

NEEDED = ("limits", "throttled", "pyrate_limiter", "django_ratelimit", "django_smart_ratelimit", "hiredis")
pytestmark = pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason=f"it needs {', '.join(NEEDED)}")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with processes.redis_over_tcp(server_programs()[0]) as started:
        yield started


@pytest.mark.thorough("scale")
def test_a_tiny_bench_has_all_rows_and_goals_and_fills_the_docs(url: str, tmp_path: Path) -> None:
    run = processes.in_process("tests.benchmarks.processes:rows", url, 1, True, False, 2)
    once: dict[str, Any] = {"postgresql": {"trips": 2.0, "ratio": 8.0}, "start": {"with": 1.0, "without": 1.0}}
    found = {"machine": "this one", "runs": [{"parser": "hiredis", **run}], **once}
    found["facts"] = [{"package": row[0], "race": 50, "worst": None} for row in report.COMPARED]
    rows = report.Run(found["runs"][0], found)
    trips = dict.fromkeys(("bare", "check", "check3", "view", "limits"), 1) | {"limits3": 3}
    trips |= dict.fromkeys(("bare view", "flooded", "blocked"), 0)
    assert {row: round(rows[row].trips) for row in trips} == trips
    goals, checks = (sheet.markdown() for sheet in report.sheets(found))
    assert goals.count(" no |") + goals.count(" yes |") == len(report.GOALS)
    assert checks.count("\n| ") == len(run["rows"])
    assert all(row["label"] in checks for row in run["rows"])
    page = Path(shutil.copy(report.PAGE, tmp_path))
    report.write_docs(found, page)
    written = page.read_text()
    assert all(f"\n| {row[0]} | " in written for row in report.COMPARED)
