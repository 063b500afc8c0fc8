"""The wheel and the sdist: what is in them, and that the wheel works where nothing else is installed."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from functools import partial
from pathlib import Path

import pytest
from django.dispatch import Signal

import django_quota
from django_quota import adapters, exceptions, metrics, signals, testing, types
from django_quota.documentation import PLACEHOLDER
from django_quota.testing import RedisServer

ROOT = Path(django_quota.__file__).parent.parent
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
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that is built from it, by packages that pip fetches."""
    folder = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "0", "hatchling"]
    if subprocess.run(words, cwd=tmp_path_factory.mktemp("index"), capture_output=True, check=False).returncode:
        pytest.skip("pip reaches no package index")
    if "DIST" in os.environ:
        return ROOT / os.environ["DIST"]
    pytest.importorskip("build", reason="it needs the extra `release`, as `make test-all` installs it")
    ran(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return next(dist.glob(f"django_quota-{django_quota.__version__}-py3-none-any.whl"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel, what it requires, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    program = folder / "bin" / "python"
    ran(program, "-m", "pip", "install", "--quiet", wheel, cwd=folder)
    return program


def test_both_pass_twine(dist: Path, tmp_path: Path) -> None:
    archives = sorted(dist.glob("django_quota-*"))

    assert [path.suffix for path in archives] == [".whl", ".gz"]
    assert "PASSED" in ran(sys.executable, "-m", "twine", "check", "--strict", *archives, cwd=tmp_path)


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    files = (path for path in (ROOT / "django_quota").rglob("*") if path.is_file() and path.suffix != ".pyc")

    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert names == {str(path.relative_to(ROOT)) for path in files}
    assert {Path(name).suffix for name in names} >= {".py", ".lua", ".html", ".css", ".js", ".mo"}
    assert "django_quota/py.typed" in names


def test_links_of_the_readme_work_on_a_package_index(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        shown = archive.read(name).decode()
    links = re.findall(r"\]\(([^)]*)\)", shown)
    assert len(links) > 20
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


@pytest.mark.skipif("DIST" not in os.environ, reason="The project has no address yet; only `make dist` insists on one.")
def test_what_is_released_names_addresses_that_exist(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        shown = archive.read(name).decode()
    assert PLACEHOLDER not in shown, "Write the addresses of the project into pyproject.toml, in place of *.invalid."


def test_the_tests_run_from_the_sdist(dist: Path, tmp_path: Path) -> None:
    name = f"django_quota-{django_quota.__version__}"
    with tarfile.open(dist / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    tests = ["tests/e2e/test_readme.py", "tests/core/test_layers.py"]
    assert " passed" in ran(sys.executable, "-m", "pytest", "-q", "-k", "link or layer", *tests, cwd=tmp_path / name)


@pytest.mark.usefixtures("raw")
def test_the_tour_of_the_readme_runs_from_the_wheel(python: Path, redis_server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "tests/support").mkdir(parents=True)
    for path in ("README.md", "tests/support/pages.py"):
        shutil.copy(ROOT / path, tmp_path / path)
    where = ran(python, "-P", "-c", "import django_quota; print(django_quota.__file__)", cwd=tmp_path)
    assert Path(where).is_relative_to(python.parent.parent)
    words = (python, "-W", "error", "-m", "tests.support.pages", "README.md", redis_server.url)
    assert "blocks ran" in ran(*words, cwd=tmp_path)


SETTINGS = """
INSTALLED_APPS += ["django_quota"]
MIDDLEWARE += ["django_quota.middleware.QuotaMiddleware"]
OPTIONS = {{"SOCKET_TIMEOUT": 0.25, "SOCKET_CONNECT_TIMEOUT": 0.25}}
CACHES = {{"default": {{"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "{url}", "OPTIONS": OPTIONS}}}}
QUOTA = {{"RULES": {{"api": {{"rate": "10/m", "key": "ip", "match": "/"}}}}}}
"""


@pytest.mark.usefixtures("raw")  # it sweeps an emptied Redis
def test_the_commands_work_on_a_new_site(python: Path, redis_server: RedisServer, tmp_path: Path) -> None:
    ran(python, "-m", "django", "startproject", "shop", ".", cwd=tmp_path)
    settings = tmp_path / "shop/settings.py"
    settings.write_text(settings.read_text() + SETTINGS.format(url=redis_server.url))
    manage = partial(ran, python, "-W", "error", "manage.py", cwd=tmp_path)

    assert "no issues" in manage("check")
    assert "django_quota" in manage("migrate")
    hit = "from django.test import Client; print(Client(SERVER_NAME='localhost').get('/').headers['RateLimit'])"
    assert '"api";r=9' in manage("shell", "--no-imports", "-c", hit)
    assert "api" in manage("quota_status", "ip:127.0.0.1")
    assert manage("quota_sweep")


PUBLIC = (django_quota, adapters, exceptions, metrics, testing, types)
MODELS = {"django_quota.models.DailyCounter", "django_quota.models.QuotaOverride"}
"""What a type checker cannot know all about: fields of models have types only by Django's mypy plugin."""


def public_names() -> set[str]:
    """Return the dotted paths that public names are defined at."""
    named = {f"{signals.__name__}.{name}" for name, value in vars(signals).items() if isinstance(value, Signal)}
    for module in PUBLIC:
        for name in module.__all__:
            defined = getattr(module, name)
            named.add(f"{getattr(defined, '__module__', module.__name__)}.{getattr(defined, '__qualname__', name)}")
    return {"django_quota.middleware.QuotaMiddleware", *MODELS, *named}


@pytest.fixture(scope="module")
def python_with_stubs(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same Python with the types of Django."""
    folder = tmp_path_factory.mktemp("stubs")
    ran(python, "-m", "pip", "install", "--quiet", "django-stubs[compatible-mypy]", cwd=folder)
    return python


def test_a_users_project_passes_mypy(python_with_stubs: Path, tmp_path: Path) -> None:
    ran(python_with_stubs, "-m", "django", "startproject", "shop", ".", cwd=tmp_path)
    shutil.copy(ROOT / "tests/support/typed_site.py", tmp_path / "shop/views.py")
    settings = tmp_path / "shop/settings.py"
    settings.write_text(f'{settings.read_text()}\nINSTALLED_APPS += ["django_quota"]\n')
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = true\nplugins = mypy_django_plugin.main\n"
        "[mypy-shop.settings]\nignore_errors = true\n"  # as Django writes them, they are not strict
        "[mypy.plugins.django-stubs]\ndjango_settings_module = shop.settings\n"
    )

    assert "Success" in ran(python_with_stubs, "-m", "mypy", "shop/views.py", cwd=tmp_path)


def test_every_public_name_has_complete_types(python_with_stubs: Path, tmp_path: Path) -> None:
    checker = Path(sys.executable).with_name("basedpyright")
    words = [str(checker), "--verifytypes", "django_quota", "--ignoreexternal", "--outputjson"]
    path = f"{python_with_stubs.parent}{os.pathsep}{os.environ['PATH']}"  # the checker asks the first Python there
    environment = {**os.environ, "PATH": path, "PYTHONPATH": ""}

    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, check=False)

    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    incomplete = {each["name"] for each in symbols if each["isTypeAmbiguous"] or not each["isTypeKnown"]}
    public = public_names()
    assert public <= {each["name"] for each in symbols}
    assert {name for name in public if any(f"{each}.".startswith(f"{name}.") for each in incomplete)} == MODELS
