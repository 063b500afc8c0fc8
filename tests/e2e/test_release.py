"""What says which versions there are agrees: classifiers, nox, workflows, changelog."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

import django_quota
import noxfile
from tests.support.pages import ROOT, read

PROJECT = tomllib.loads(read("pyproject.toml"))["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def versions_after(prefix: str) -> list[str]:
    """Return the versions that classifiers name behind a prefix."""
    return re.findall(rf"^{re.escape(prefix)} :: (\d+\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)


def test_nox_runs_every_version_that_the_classifiers_name() -> None:
    assert versions_after("Programming Language :: Python") == noxfile.PYTHONS
    assert versions_after("Framework :: Django") == list(noxfile.DJANGOS)


def test_the_oldest_versions_are_those_of_pyproject() -> None:
    django, django_redis, redis, *_ = noxfile.lowest_versions()
    assert django == f"django=={next(iter(noxfile.DJANGOS))}"
    assert (redis, django_redis) == tuple(
        f"{name}=={version}" for name, version in zip(("redis", "django-redis"), noxfile.CLIENTS[0], strict=True)
    )
    assert PROJECT["requires-python"] == f">={noxfile.PYTHONS[0]}"


def test_the_changelog_begins_with_unreleased_and_this_version() -> None:
    unreleased, newest, *_ = re.findall(r"^## (\S+)", read("CHANGELOG.md"), re.MULTILINE)
    assert (unreleased, newest) == ("Unreleased", django_quota.__version__)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_read_alone_and_its_actions_have_a_major_version(path: Any) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"]
        for step in job["steps"]:
            assert "run" in step or re.fullmatch(r"[\w/-]+@(v\d+|release/v\d+)", step["uses"]), step
            assert "${{" not in step.get("run", ""), "a value from outside is given to a shell as a variable"


def test_only_the_job_that_publishes_may_prove_who_it_is() -> None:
    jobs = [(name, job) for path in WORKFLOWS for name, job in yaml.safe_load(path.read_text())["jobs"].items()]
    assert [(name, job["permissions"], job["environment"]) for name, job in jobs if "permissions" in job] == [
        ("publish", {"id-token": "write"}, "release")
    ]
