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


def imported_by(tree: ast.AST, *, lazily: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield the modules that a module imports, with those from a package, and whether only when a function runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, lazily) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for name in (f"{node.module}.{alias.name}" for alias in node.names):
                yield (name if name in MODULES else str(node.module)), lazily
        elif not isinstance(node, ast.expr):
            is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from imported_by(node, lazily=lazily or is_for_types or is_function)


@cache
def found_in(path: Path) -> list[tuple[str, bool]]:
    gc.disable()  # CPython 3.11 fails to build a tree while a collection runs finalizers in between
    try:
        return list(imported_by(ast.parse(path.read_text())))
    finally:
        gc.enable()


def imports(name: str, *, lazy: bool = True) -> list[str]:
    return [imported for imported, is_lazy in found_in(MODULES[name]) if lazy or not is_lazy]


def layer(name: str) -> str:
    """The folder or the module beside the folders to which `django_quota.<name>` belongs."""
    return name.split(".")[1] if "." in name else ""


def wrong_imports(is_wrong: Callable[[str, str], bool]) -> list[tuple[str, str]]:
    """Return the pairs of a module and what it imports that are wrong."""
    pairs = [(name, imported) for name in MODULES for imported in imports(name)]
    assert len(pairs) > len(MODULES)
    return [pair for pair in pairs if is_wrong(*pair)]


def test_imports_go_down_the_layers_and_core_and_engine_know_neither_django_nor_redis() -> None:
    foreign = {"django", "redis", "django_redis", "asgiref"}

    def is_wrong(importer: str, imported: str) -> bool:
        low = layer(importer)
        if imported.startswith("django_quota"):
            return low in LAYERS and layer(imported) not in LAYERS[: LAYERS.index(low) + 1]
        return low in ("core", "engine") and imported.partition(".")[0] in foreign

    assert wrong_imports(is_wrong) == []
    assert is_wrong("django_quota.core.rates", "django_quota.conf")


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {name: {other for other in imports(name, lazy=False) if other in MODULES} for name in MODULES}
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
PUBLIC = {
    *("adapters", "conf", "exceptions", "metrics", "middleware", "models", "signals", "testing", "types"),
    "management.console",
}
"""What an integration of your own may import, too, beside `django_quota` itself."""
OF_OWN = {"django_quota.contrib.auth": {"features.logins"}}
"""What serves one of our integrations alone."""


def test_only_an_integration_imports_its_package_and_it_imports_only_public_modules() -> None:
    packages = {"adrf", "axes", "channels", "django_ratelimit", "rest_framework_simplejwt"}.union(*PACKAGES_OF.values())

    def is_wrong(name: str, other: str) -> bool:
        is_integration = name.startswith("django_quota.contrib.")
        own = PACKAGES_OF.get(name.split(".")[2], set()) if is_integration else set()
        if other.partition(".")[0] in packages - own:
            return True
        if layer(name) != "contrib":
            return other.startswith("django_quota.contrib.")
        if name.startswith("django_quota.contrib.django_ratelimit"):
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
            left += imports(module, lazy=False)
    assert "django_quota.models" not in reached
