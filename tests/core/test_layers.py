"""The folders are the layers: imports go down, never up and never round."""

import ast
import gc
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import django_quota

ROOT = Path(django_quota.__file__).parent
LAYERS = (
    *("core", "engine", "stores", "conf", "signals", "requests", "models"),
    *("limiting", "features", "operating", "web", "middleware", "adapters"),
)
"""Folders and modules, from the lowest to the highest. The admin, the commands and the rest may import all of them."""


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in sorted(ROOT.rglob("*.py"))}


@cache
def parse(path: Path) -> ast.Module:
    gc.disable()  # CPython 3.11 fails to build a tree while a collection runs finalizers in between
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


def nodes(tree: ast.AST, *, lazy: bool) -> Iterator[ast.AST]:
    """All nodes; without `lazy`, only those that run when the module is imported."""
    for node in ast.iter_child_nodes(tree):
        is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if lazy or not (is_for_types or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))):
            yield node
            yield from nodes(node, lazy=lazy)


def imports(path: Path, *, lazy: bool = True) -> Iterator[str]:
    """The modules that one imports, with those that it imports from a package."""
    for node in nodes(parse(path), lazy=lazy):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else str(node.module)


def layer(name: str) -> str:
    """The folder or the module beside the folders to which `django_quota.<name>` belongs."""
    return name.split(".")[1] if "." in name else ""


def wrong_imports(is_wrong: Callable[[str, str], bool]) -> list[tuple[str, str]]:
    """Return the pairs of a module and what it imports that are wrong."""
    pairs = [(name, imported) for name, path in MODULES.items() for imported in imports(path)]
    assert len(pairs) > len(MODULES)
    return [pair for pair in pairs if is_wrong(*pair)]


def test_imports_go_down_the_layers_and_core_and_engine_know_neither_django_nor_redis() -> None:
    foreign = {"django", "redis", "django_redis", "asgiref"}

    def is_wrong(importer: str, imported: str) -> bool:
        low, is_ours = layer(importer), imported.startswith("django_quota")
        if is_ours:
            return low in LAYERS and layer(imported) not in LAYERS[: LAYERS.index(low) + 1]
        return low in ("core", "engine") and imported.partition(".")[0] in foreign

    assert wrong_imports(is_wrong) == []
    assert is_wrong("django_quota.core.rates", "django_quota.conf")


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {name: {other for other in imports(path, lazy=False) if other in MODULES} for name, path in MODULES.items()}
    del graph["django_quota"]  # which only names what others define
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"These modules import each other in a circle: {error.args[1]}")


PACKAGES_OF = {
    "allauth": {"allauth"},
    "celery": {"celery", "kombu"},
    "ninja": {"ninja"},
    "opentelemetry": {"opentelemetry"},
    "prometheus": {"prometheus_client"},
    "rest_framework": {"drf_spectacular", "rest_framework"},
}
"""What each integration may import. Nothing else may: `pip install django-quota` brings none of these."""


def test_only_an_integration_imports_its_package() -> None:
    packages = {"adrf", "axes", "channels", "django_ratelimit", "rest_framework_simplejwt"}.union(*PACKAGES_OF.values())

    def is_wrong(name: str, other: str) -> bool:
        is_integration = name.startswith("django_quota.contrib.")
        own = PACKAGES_OF.get(name.split(".")[2], set()) if is_integration else set()
        is_foreign = other.partition(".")[0] in packages - own
        return is_foreign or (not is_integration and other.startswith("django_quota.contrib."))

    assert wrong_imports(is_wrong) == []


PUBLIC = {
    *("adapters", "conf", "exceptions", "metrics", "middleware", "models", "signals", "testing", "types"),
    "management.console",
}
"""What an integration of your own may import, too, beside `django_quota` itself."""

OF_OWN = {"django_quota.contrib.auth": {"features.logins"}}
"""What serves one of our integrations alone."""


def test_an_integration_imports_only_public_modules() -> None:
    def is_wrong(name: str, other: str) -> bool:
        if layer(name) != "contrib" or name.startswith("django_quota.contrib.django_ratelimit"):
            return False  # the drop-in repeats the keys of another package
        of_ours = other.partition("django_quota.")[2]
        return not (of_ours.startswith("contrib.") or of_ours in {"", *PUBLIC, *OF_OWN.get(name, ())})

    assert wrong_imports(is_wrong) == []


@pytest.mark.parametrize("name", ["django_quota", "django_quota.adapters", "django_quota.middleware"])
def test_what_sites_import_needs_no_loaded_apps(name: str) -> None:
    """Django loads models with the apps. Settings, URLs and tasks may be imported before, or without the app."""
    left, reached = [name], set[str]()
    while left:
        if (module := left.pop()) in MODULES and module not in reached:
            reached.add(module)
            left += imports(MODULES[module], lazy=False)
    assert "django_quota.models" not in reached
