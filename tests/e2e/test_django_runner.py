"""`manage.py test` of a site: it starts without Redis, and can drop the test database at its end."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.commands import ROOT

SETTINGS = """
import json, os

given = json.loads(os.environ["GIVEN"])
SECRET_KEY = "only for tests"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_quota"]
DATABASES = {"default": given["database"]}
DEBUG = given["debug"]
QUOTA = given["quota"]
USE_TZ = True
"""

TESTS = """
from django.test import SimpleTestCase, TestCase, TransactionTestCase

from django_quota import check
from django_quota.models import QuotaOverride


class HitTest(TransactionTestCase):
    def test_a_hit(self):
        self.assertEqual([bool(check("1/m", "user:1")) for _ in range(2)], [True, False])


class OverrideTest(TransactionTestCase):
    def test_an_override(self):
        QuotaOverride.objects.create(subject="user:2", mode="blocked")
        self.assertFalse(check("9/m", "user:2"))


class OtherTest(TestCase):
    def test_without_a_limit(self):
        self.assertFalse(QuotaOverride.objects.exists())


class PlainTest(SimpleTestCase):
    def test_without_a_database(self):
        pass
"""


def run_tests(
    folder: Path, *labels: str, database: dict[str, Any], quota: dict[str, Any], debug: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run `manage.py test` in a site without Redis."""
    (folder / "settings_of_a_site.py").write_text(SETTINGS)
    (folder / "tests_of_a_site.py").write_text(TESTS)
    command = [sys.executable, "-m", "django", "test", "--noinput", *(f"tests_of_a_site.{label}" for label in labels)]
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "settings_of_a_site",
        "GIVEN": json.dumps({"database": database, "debug": debug, "quota": quota}),
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
    }
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.sqlite3"}


@pytest.mark.parametrize("label", ["HitTest", "OverrideTest"], ids=["of hits", "of overrides"])
@pytest.mark.thorough("postgresql")
def test_the_runner_can_drop_its_database_after_tests(label: str, postgres: dict[str, Any], tmp_path: Path) -> None:
    done = run_tests(tmp_path, label, database=postgres, quota={"STORE": "database"})

    assert done.returncode == 0, done.stderr
    with psycopg.connect(host=postgres["HOST"], user=postgres["USER"], dbname=postgres["NAME"]) as connection:
        left = connection.execute("SELECT datname FROM pg_database WHERE datname LIKE 'test_%'").fetchall()
    assert left == []


@pytest.mark.parametrize(
    ("label", "debug"),
    [("OtherTest", False), pytest.param("PlainTest", True, marks=pytest.mark.thorough("processes"))],
    ids=["a test uses the database", "the settings turn DEBUG on"],
)
def test_the_runner_starts_without_redis(label: str, debug: bool, tmp_path: Path) -> None:
    done = run_tests(tmp_path, label, database=SQLITE, quota={}, debug=debug)

    assert done.returncode == 0, done.stderr
    assert 'QUOTA = {"STORE": "memory"}' in done.stderr
