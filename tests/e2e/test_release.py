"""What says which versions there are agrees: classifiers, nox, workflows, changelog."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import noxfile
from tests.support import runs
from tests.support.pages import ROOT, read

PYPROJECT = tomllib.loads(read("pyproject.toml"))
PROJECT, TOOLS = PYPROJECT["project"], PYPROJECT["tool"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
RELEASE = yaml.safe_load(read(".github/workflows/release.yml"))["jobs"]


def classified(name: str) -> list[str]:
    """Return the versions of Python or Django that the classifiers name."""
    return re.findall(rf":: {name} :: (\d+\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)


@pytest.mark.parametrize("name", ["Python", "Django"])
def test_the_classifiers_name_what_all_tests_have_passed_on(name: str) -> None:
    passed = {runs.minor(getattr(run, name.lower())) for run in runs.recorded() if not run.failed}
    assert classified(name)
    assert set(classified(name)) <= passed


def test_nox_runs_the_versions_that_the_classifiers_name() -> None:
    assert set(classified("Python")) <= set(noxfile.PYTHONS)
    assert set(classified("Django")) <= noxfile.DJANGOS.keys()


def test_a_run_replaces_the_last_one_of_the_same_versions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runs, "RECORD", tmp_path / "runs.json")
    runs.RECORD.write_text("[]")
    first = runs.Run("3.13.0", "6.1.3", {"redis": "8.1.0"}, ["Redis 7.0.15"], "2026-11-28", 10, 2)
    later = replace(first, python="3.13.1", on="2026-12-01", passed=11)
    other = replace(first, python="3.9.1")

    for run in (first, other, later):
        runs.keep(run)

    assert runs.recorded() == [other, later]


def test_the_oldest_versions_that_nox_runs_are_those_required() -> None:
    clients = zip(("redis", "django-redis"), noxfile.CLIENTS[0], strict=True)
    lowest = [f"django=={next(iter(noxfile.DJANGOS))}.2", *(f"{name}=={version}" for name, version in clients)]
    assert sorted(noxfile.lowest_versions()[:3]) == sorted(lowest)
    assert PROJECT["requires-python"] == f">={noxfile.PYTHONS[0]}"


def test_links_of_the_readme_on_a_package_index_lead_to_the_documentation() -> None:
    rules = TOOLS["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    address = PROJECT["urls"]["Documentation"]
    assert [rule["replacement"].startswith(f"]({address}") for rule in rules] == [True] * 3
    assert PROJECT["urls"]["Changelog"].startswith(address)


def jobs_of(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load(path.read_text())["jobs"].values())


def actions_of(path: Path) -> list[str]:
    """Return the lines that name an action."""
    return [line.strip().removeprefix("- ") for line in path.read_text().splitlines() if "uses:" in line]


EACH_WORKFLOW = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


@EACH_WORKFLOW
def test_a_workflow_may_only_read(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}


@EACH_WORKFLOW
def test_each_job_of_a_workflow_ends_after_some_minutes(path: Path) -> None:
    assert [job for job in jobs_of(path) if not job.get("timeout-minutes")] == []


@EACH_WORKFLOW
def test_a_workflow_writes_no_value_into_a_command(path: Path) -> None:
    steps = [step for job in jobs_of(path) for step in job["steps"]]

    assert [step for step in steps if "${{" in step.get("run", "")] == [], "give a shell a value as a variable"


@EACH_WORKFLOW
def test_a_workflow_names_actions_by_commit(path: Path) -> None:
    lines = actions_of(path)

    named = re.compile(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert lines
    assert [line for line in lines if not named.fullmatch(line)] == []


@EACH_WORKFLOW
def test_a_workflow_checks_out_by_one_version_of_the_action(path: Path) -> None:
    assert len({line for line in actions_of(path) if "checkout" in line}) <= 1


def test_only_the_job_that_publishes_may_prove_who_it_is() -> None:
    jobs = [(name, job) for path in WORKFLOWS for name, job in yaml.safe_load(path.read_text())["jobs"].items()]

    proving = [(name, job["permissions"], job["environment"]) for name, job in jobs if "permissions" in job]

    assert proving == [("publish", {"id-token": "write"}, "release")]


def test_what_was_checked_is_what_is_published() -> None:
    download, upload = RELEASE["publish"]["steps"]

    assert RELEASE["publish"]["needs"] == ["build", "check"]
    assert upload["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert download in RELEASE["check"]["steps"]
    assert download["uses"].startswith("actions/download-artifact@")
    assert download["with"] == {"artifact-ids": "${{ needs.build.outputs.dist }}", "path": "dist"}


PINS = [line for line in read(".github/build-requirements.txt").splitlines() if not line.startswith("#")]


def test_a_release_is_built_by_pinned_packages_alone() -> None:
    runs = [step["run"] for step in RELEASE["build"]["steps"] if "run" in step]

    assert [run.split(" --")[0] for run in runs] == ["grep", "pip install", "python -m build"]
    assert "--require-hashes" in runs[1]
    assert "--no-isolation" in runs[2]


def test_packages_that_build_a_release_are_pinned_by_hash() -> None:
    pin = re.compile(r"[\w-]+==[\d.]+ --hash=sha256:[0-9a-f]{64}")

    assert [line for line in PINS if not pin.fullmatch(line)] == []


@pytest.mark.parametrize("needed", [*PYPROJECT["build-system"]["requires"], "build"])
def test_what_a_build_requires_is_pinned(needed: str) -> None:
    pinned = dict(line.split(" ")[0].split("==") for line in PINS)

    requirement = Requirement(needed)

    assert requirement.specifier.contains(pinned[requirement.name])
