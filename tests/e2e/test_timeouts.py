"""A test that never ends fails, and stops no other."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import ROOT

pytestmark = pytest.mark.thorough("processes")

LOOPS = "def test_it_hangs():\n    while True: pass\n"
SEARCHES = """
from hypothesis import given, strategies as st

@given(st.integers())
def test_it_hangs(number):
    while number > 3: pass
"""
WAITS = "import asyncio\n\ndef test_it_hangs():\n    asyncio.run(asyncio.sleep(3_600))\n"


@pytest.mark.parametrize("hanging", [LOOPS, SEARCHES, WAITS], ids=["loop", "property", "task"])
def test_a_test_that_never_ends_fails_alone(tmp_path: Path, hanging: str) -> None:
    tests = tmp_path / "test_it.py"
    tests.write_text(f"{hanging}\n\ndef test_the_next_one():\n    pass\n")
    options = ["-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest", "--timeout=1"]
    command = [sys.executable, "-m", "pytest", *options, str(tests)]

    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert "1 failed, 1 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "TimedOutError: Timeout (>1.0s)" in ran.stdout
