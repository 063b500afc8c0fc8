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


@pytest.fixture(scope="module")
def tiny_bench(url: str) -> dict[str, Any]:
    """What a tiny bench found, with facts of others that are made up."""
    run = processes.in_process("tests.benchmarks.processes:rows", url, 1, True, False, 2)
    once: dict[str, Any] = {"postgresql": {"trips": 2.0, "ratio": 8.0}, "start": {"with": 1.0, "without": 1.0}}
    facts = [{"package": row[0], "race": 50, "worst": None} for row in report.COMPARED]
    return {"machine": "this one", "runs": [{"parser": "hiredis", **run}], **once, "facts": facts}


@pytest.mark.thorough("scale")
class TestTinyBench:
    def test_it_counts_the_round_trips_of_each_row(self, tiny_bench: dict[str, Any]) -> None:
        rows = report.Run(tiny_bench["runs"][0], tiny_bench)

        trips = dict.fromkeys(("bare", "check", "check3", "view", "limits"), 1) | {"limits3": 3}
        trips |= dict.fromkeys(("bare view", "flooded", "ahead", "blocked"), 0)
        assert {row: round(rows[row].trips) for row in trips} == trips

    def test_it_answers_for_each_goal(self, tiny_bench: dict[str, Any]) -> None:
        goals, _ = (sheet.markdown() for sheet in report.sheets(tiny_bench))

        assert goals.count(" no |") + goals.count(" yes |") == len(report.GOALS)

    def test_its_table_has_every_row(self, tiny_bench: dict[str, Any]) -> None:
        _, checks = (sheet.markdown() for sheet in report.sheets(tiny_bench))

        rows = tiny_bench["runs"][0]["rows"]
        assert checks.count("\n| ") == len(rows)
        assert [row["label"] for row in rows if row["label"] not in checks] == []

    def test_it_fills_the_docs(self, tiny_bench: dict[str, Any], tmp_path: Path) -> None:
        page = Path(shutil.copy(report.PAGE, tmp_path))

        report.write_docs(tiny_bench, page)

        written = page.read_text()
        assert [row[0] for row in report.COMPARED if f"\n| {row[0]} | " not in written] == []


@pytest.fixture(scope="module")
def counted() -> list[dict[str, Any]]:
    return instructions.count(few=40, many=80, new=40)


@pytest.mark.thorough("scale")
@pytest.mark.timeout(900)  # calls take fifty times as long
@pytest.mark.skipif(not instructions.are_countable(), reason="it needs callgrind, of the package valgrind")
class TestCountedInstructions:
    def test_three_limits_take_three_times_as_many_as_one(self, counted: list[dict[str, Any]]) -> None:
        by_id = {row["id"]: row["instructions"] for row in counted}

        assert by_id["limits3"] / by_id["limits"] == pytest.approx(3, rel=0.1)
        assert min(by_id.values()) > 1_000

    def test_each_row_is_printed(self, counted: list[dict[str, Any]]) -> None:
        printed = report.instructions(counted).markdown()

        assert [line.split(" | ")[:2] for line in printed.splitlines()[2:]] == [
            [f"| {row['package']}", row["label"]] for row in counted
        ]

    def test_they_fill_the_docs(self, counted: list[dict[str, Any]], tmp_path: Path) -> None:
        page = Path(shutil.copy(report.PAGE, tmp_path))

        report.write_instructions(counted, page)

        assert report.instructions(counted).markdown() in page.read_text()


def test_the_part_that_counts_instructions_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "NEEDED", ("no-such-program",))
    console = Console(record=True, width=150)
    count_instructions(console, writes=False)
    assert console.export_text() == ("Instructions are not counted: that needs callgrind, of the package valgrind.\n")
