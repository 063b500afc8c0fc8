"""What a process imports when it starts: the names of the package come when they are used, and pages with the URLs."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from django.http import HttpResponse

import django_quota
from django_quota.core.rules import Rule
from django_quota.middleware import QuotaMiddleware
from tests.support.commands import ROOT

HOMES: dict[str, tuple[str, ...]] = vars(django_quota)["_HOMES"]

STARTED = """
import sys
import django
from django.conf import settings
apps = ["admin", "auth", "contenttypes", "messages", "sessions"]
settings.configure(
    INSTALLED_APPS=[*(f"django.contrib.{app}" for app in apps), "django_quota"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}},
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
print(*(name for name in sys.modules if name.startswith("django_quota.")))
"""


@pytest.fixture(scope="module")
def started() -> list[str]:
    """The modules of ours in a process that has started."""
    command = [sys.executable, "-c", STARTED]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    "unneeded",
    ["engine", "stores", "contrib", "limiting.limiter", "operating.inspection", "http.checks", "http.decorators"],
)
def test_a_process_starts_without_what_decides_checks_or_shows_pages(unneeded: str, started: list[str]) -> None:
    assert "django_quota.models" in started
    assert [name for name in started if f"{name}.".startswith(f"django_quota.{unneeded}.")] == []


def test_each_public_name_has_one_home() -> None:
    assert sorted(name for names in HOMES.values() for name in names) == django_quota.__all__


@pytest.mark.parametrize("home", HOMES)
def test_a_name_of_the_package_is_the_one_of_its_home(home: str) -> None:
    module = import_module(home)
    assert [getattr(django_quota, name) for name in HOMES[home]] == [getattr(module, name) for name in HOMES[home]]


def test_a_name_that_was_used_is_found_at_once_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(django_quota), "check", raising=False)

    used = django_quota.check

    assert vars(django_quota)["check"] is used


def test_type_checkers_find_the_same_homes() -> None:
    tree = ast.parse(Path(django_quota.__file__).read_text())
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.col_offset == 4]
    assert {str(node.module): tuple(each.name for each in node.names) for node in imported} == HOMES


def test_the_version_is_the_newest_one_of_the_changelog() -> None:
    newest = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert newest is not None
    assert newest[1] == django_quota.__version__


def test_dir_has_the_names_that_nobody_has_used() -> None:
    names = django_quota.__dir__()

    assert set(django_quota.__all__) | {"__version__"} <= set(names)
    assert list(names) == sorted(names)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'django_quota' has no attribute 'chekc'$"):
        django_quota.chekc  # type: ignore[attr-defined]  # noqa: B018


def test_a_server_reads_its_rules_when_it_starts(settings: Any) -> None:
    settings.QUOTA = {"RULES": {"search": {"rate": "5/m", "key": "ip", "match": "/search/"}}}
    with patch.object(Rule, "from_setting", side_effect=Rule.from_setting) as read:
        QuotaMiddleware(lambda _: HttpResponse())
    assert read.call_count == 1


def test_a_server_starts_though_a_rule_is_wrong(settings: Any) -> None:
    settings.QUOTA = {"RULES": {"search": {"rate": "5/mx", "key": "ip", "match": "/search/"}}}
    assert not QuotaMiddleware(lambda _: HttpResponse()).is_async
