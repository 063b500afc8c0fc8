"""The wheel and the sdist: what is in them, and that the wheel works where nothing else is installed.

`make dist` builds into dist/ and runs these tests on that. Otherwise they build for themselves.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from functools import partial
from pathlib import Path

import pytest

import django_quota
from django_quota.testing import RedisServer

ROOT = Path(django_quota.__file__).parent.parent
PACKAGE = "django_quota/"
pytestmark = pytest.mark.thorough("packages")


def ran(*words: str | Path, cwd: Path, **environment: str) -> str:
    """Run a program without this checkout on its path; return what it printed."""
    known = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DJANGO_SETTINGS_MODULE")}
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env={**known, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def package_index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip where pip reaches no packages: the build and the empty environment need some."""
    folder = tmp_path_factory.mktemp("index")
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "0", "hatchling"]
    if subprocess.run(words, cwd=folder, capture_output=True, check=False).returncode:
        pytest.skip("pip reaches no package index")


@pytest.fixture(scope="module")
def dist(package_index: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that is built from it."""
    if "DIST" in os.environ:
        return ROOT / os.environ["DIST"]
    folder = tmp_path_factory.mktemp("dist")
    ran(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return next(dist.glob(f"django_quota-{django_quota.__version__}-py3-none-any.whl"))


@pytest.fixture(scope="module")
def unpacked_sdist(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(dist / f"django_quota-{django_quota.__version__}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / f"django_quota-{django_quota.__version__}"


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel, what it requires, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    program = folder / "bin" / "python"
    ran(program, "-m", "pip", "install", "--quiet", wheel, cwd=folder)
    return program


def files_of_the_package() -> set[str]:
    files = (path for path in (ROOT / PACKAGE).rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(ROOT)) for path in files}


def test_both_pass_twine(dist: Path, tmp_path: Path) -> None:
    archives = sorted(dist.glob("django_quota-*"))
    assert [path.suffix for path in archives] == [".whl", ".gz"]
    assert "PASSED" in ran(sys.executable, "-m", "twine", "check", "--strict", *archives, cwd=tmp_path)


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == files_of_the_package()
    kinds = {Path(name).suffix for name in names}
    assert {".py", ".lua", ".html", ".css", ".js", ".mo"} <= kinds
    assert f"{PACKAGE}py.typed" in names


def test_the_sdist_has_what_the_tests_need(unpacked_sdist: Path) -> None:
    tests = ["tests/e2e/test_readme.py", "tests/core/test_layers.py", "tests/core/test_conventions.py"]
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist"]
    ran(*words, "--collect-only", cwd=unpacked_sdist)
    assert " passed" in ran(*words, *tests, cwd=unpacked_sdist)


def test_the_tour_of_the_readme_runs_from_the_wheel(python: Path, redis_server: RedisServer, tmp_path: Path) -> None:
    for path in (ROOT / "README.md", ROOT / "tests/support/tour.py"):
        shutil.copy(path, tmp_path)
    where = ran(python, "-P", "-c", "import django_quota; print(django_quota.__file__)", cwd=tmp_path)
    assert Path(where).is_relative_to(python.parent.parent)
    assert "blocks ran" in ran(python, "-P", "-W", "error", "tour.py", "README.md", redis_server.url, cwd=tmp_path)


SETTINGS = """
INSTALLED_APPS += ["django_quota"]
MIDDLEWARE += ["django_quota.middleware.QuotaMiddleware"]
CACHES = {{
    "default": {{
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": "{url}",
        "OPTIONS": {{"SOCKET_TIMEOUT": 0.25, "SOCKET_CONNECT_TIMEOUT": 0.25}},
    }}
}}
QUOTA = {{"RULES": {{"api": {{"rate": "10/m", "key": "ip", "match": "/"}}}}}}
"""


def test_the_commands_work_on_a_new_site(python: Path, redis_server: RedisServer, tmp_path: Path) -> None:
    ran(python, "-m", "django", "startproject", "shop", ".", cwd=tmp_path)
    with (tmp_path / "shop/settings.py").open("a") as settings:
        settings.write(SETTINGS.format(url=redis_server.url))
    manage = partial(ran, python, "-W", "error", "manage.py", cwd=tmp_path)
    assert "no issues" in manage("check")
    assert "django_quota" in manage("migrate")
    hit = "from django.test import Client; print(Client(SERVER_NAME='localhost').get('/').headers['RateLimit'])"
    assert '"api";r=9' in manage("shell", "--no-imports", "-c", hit)
    assert "api" in manage("quota_status", "ip:127.0.0.1")
    assert manage("quota_sweep")
