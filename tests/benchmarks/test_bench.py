"""A tiny bench runs, so that `make bench` does not rot. No figure of it is judged, but for what is no time."""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from django_quota.testing import server_programs
from tests.benchmarks import instructions, processes, report
from tests.benchmarks.__main__ import count_instructions

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
    trips |= dict.fromkeys(("bare view", "flooded", "ahead", "blocked"), 0)
    assert {row: round(rows[row].trips) for row in trips} == trips
    goals, checks = (sheet.markdown() for sheet in report.sheets(found))
    assert goals.count(" no |") + goals.count(" yes |") == len(report.GOALS)
    assert checks.count("\n| ") == len(run["rows"])
    assert all(row["label"] in checks for row in run["rows"])
    page = Path(shutil.copy(report.PAGE, tmp_path))
    report.write_docs(found, page)
    written = page.read_text()
    assert all(f"\n| {row[0]} | " in written for row in report.COMPARED)


@pytest.mark.thorough("scale")
@pytest.mark.timeout(900)  # calls take fifty times as long
@pytest.mark.skipif(not instructions.are_countable(), reason="it needs callgrind, of the package valgrind")
def test_the_part_that_counts_instructions_prints_its_rows_and_fills_the_docs(tmp_path: Path) -> None:
    counted = instructions.count(few=40, many=80, new=40)
    by_id = {row["id"]: row["instructions"] for row in counted}
    assert by_id["limits3"] / by_id["limits"] == pytest.approx(3, rel=0.1)
    assert min(by_id.values()) > 1_000
    printed = report.instructions(counted).markdown()
    assert [line.split(" | ")[:2] for line in printed.splitlines()[2:]] == [
        [f"| {row['package']}", row["label"]] for row in counted
    ]
    page = Path(shutil.copy(report.PAGE, tmp_path))
    report.write_instructions(counted, page)
    assert printed in page.read_text()


def test_the_part_that_counts_instructions_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "NEEDED", ("no-such-program",))
    console = Console(record=True, width=150)
    count_instructions(console, writes=False)
    assert console.export_text() == ("Instructions are not counted: that needs callgrind, of the package valgrind.\n")
