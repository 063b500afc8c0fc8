"""Imports go down the layers only, and a module stays small enough to be read."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import django_quota

ROOT = Path(django_quota.__file__).parent
LAYERS = (
    # L0 pure: no Django, no I/O
    {
        "exceptions",
        "forks",
        "clock",
        "rates",
        "bans",
        "rules",
        "tiers",
        "matching",
        "exemptions",
        "methods",
        "names",
        "decisions",
        "algorithms",
        "operations",
        "charts",
    },
    # L1 configuration, identity
    {"conf", "dotted", "site_rules", "addresses", "subjects", "keys", "days", "plans", "planning"},
    # L2 stores
    {"stores"},
    # L3 services
    {
        "limiter",
        "outages",
        "outage_telling",
        "request_decisions",
        "reservations",
        "counters",
        "transfers",
        "leases",
        "renewing",
        "seen",
        "overrides",
        "usage",
        "events",
        "signals",
        "standing",
        "sweeping",
        "tallies",
        "workers",
        "carrying",
        "activity",
        "feeds",
        "health",
        "sizes",
    },
    # L4 the Django edge
    {
        "edge",
        "decorators",
        "middleware",
        "responses",
        "checks",
        "store_checks",
        "apps",
        "testing",
        "models",
        "migrations",
        "management",
    }
    | {
        "background",
        "account",
        "hints",
        "refusals",
        "previews",
        "templatetags",
        "override_sync",
        "rollup",
        "concurrency",
        "view_kinds",
        "wording",
        "page",
        "views",
        "joining",
        "status",
        "admin",
        "",
    },
)
MODULES = sorted(ROOT.rglob("*.py"))


def layer(name: str) -> int:
    """Return the layer of `django_quota.<name>`; the package itself belongs to the last."""
    first = name.removeprefix("django_quota").lstrip(".").partition(".")[0]
    return next(number for number, names in enumerate(LAYERS) if first in names)


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def parse(path: Path) -> ast.Module:
    gc.disable()  # CPython 3.11 fails to build a tree while a collection runs finalizers in between
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from ([f"{node.module}.{alias.name}" for alias in node.names] if node.module else [])


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_imports_go_down_the_layers_only(path: Path) -> None:
    ours = [name for name in imports(path) if name.startswith("django_quota.")]
    higher = [name for name in ours if layer(name) > layer(dotted(path))]
    assert not higher


@pytest.mark.parametrize("path", [path for path in MODULES if layer(dotted(path)) == 0], ids=dotted)
def test_the_pure_layer_knows_neither_django_nor_redis(path: Path) -> None:
    foreign = {name.partition(".")[0] for name in imports(path)} & {"django", "redis", "django_redis", "asgiref"}
    assert not foreign


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_a_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(parse(path))


def test_the_rule_catches_an_import_that_goes_up() -> None:
    assert layer("django_quota.limiter") > layer("django_quota.stores.redis") > layer("django_quota.rates")
