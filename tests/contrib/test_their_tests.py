"""The tests of Django REST framework and of django-ratelimit pass with our drop-ins. pip fetches their sources."""

import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.commands import ROOT

OURS = "django_quota.contrib.django_ratelimit"
DRF = f"djangorestframework-{version('djangorestframework')}"
RATELIMIT = "django-ratelimit-4.1.0"
MODULES = {
    "__init__": f"from {OURS} import ALL, UNSAFE",
    "core": f"""
from {OURS}.core import address_of_request as _get_ip, get_usage, is_ratelimited, read_rate

def _split_rate(rate):
    found = read_rate(rate)
    return found.count, found.period // 1_000_000
""",
    "decorators": f"from {OURS}.decorators import ratelimit",
    "exceptions": f"from {OURS}.exceptions import Ratelimited",
}
"""The modules of django_ratelimit that its tests import, with the two private functions that they test."""

CANNOT_PASS = (
    "test_bad_cache",  # it expects the error of a wrong RATELIMIT_USE_CACHE, which has no effect (W025)
    "test_cache_timeout",  # it expects a cache that forgets each count at once
)


@pytest.mark.thorough("processes")
@pytest.mark.parametrize(
    ("package", "module", "passed"),
    [
        (DRF, "tests/test_throttling.py", r"\b(29|[3-9]\d) passed"),
        (RATELIMIT, "django_ratelimit/tests.py", r"\b50 passed, 2 deselected"),
    ],
)
def test_their_tests_pass_with_our_drop_ins(package: str, module: str, passed: str, tmp_path: Path) -> None:
    source = package[::-1].replace("-", "==", 1)[::-1]
    fetch = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary=:all:", "-d", str(tmp_path), source]
    if subprocess.run(fetch, capture_output=True, check=False).returncode:
        pytest.skip(f"pip cannot fetch the sources of {package}")

    folder = tmp_path / "django_ratelimit"
    folder.mkdir()
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    with tarfile.open(tmp_path / f"{package}.tar.gz") as archive:
        tests = archive.extractfile(f"{package}/{module}")
        assert tests is not None
        (folder / "tests.py").write_bytes(tests.read())
    plugins = [f"-p{each}" for each in ("tests.contrib.their_tests_plugin", "no:django_quota", "no:cacheprovider")]
    left_out = [f"--deselect=django_ratelimit/tests.py::CacheFailTests::{name}" for name in CANNOT_PASS]

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, *left_out, "django_ratelimit/tests.py"],
        cwd=tmp_path,
        env={**{k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"}, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout
    assert re.search(passed, run.stdout), run.stdout
