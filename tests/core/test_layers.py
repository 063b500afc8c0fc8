"""The folders are the layers: imports go down, never up and never in a circle; and each Lua file has a head."""

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

import django_quota
from django_quota import Rule
from django_quota.admin.wording import ALGORITHM_NAMES
from django_quota.core.algorithms import REGISTRY
from django_quota.engine.asks import Take
from django_quota.engine.decide import Decide
from django_quota.engine.operations import lua_source
from tests.support.steps import SECOND, hits_of

ROOT = Path(django_quota.__file__).parent
LAYERS = (
    *("core", "engine", "stores", "runtime", "conf", "signals", "error_texts", "documentation", "subjects"),
    "models",
    *("limiting", "features", "http", "operating", "middleware", "adapters"),
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


def goes_up(importer: str, imported: str) -> bool:
    low = layer(importer)
    is_ours = imported.startswith("django_quota")
    return is_ours and low in LAYERS and layer(imported) not in LAYERS[: LAYERS.index(low) + 1]


def test_imports_go_down_the_layers() -> None:
    assert wrong_imports(goes_up) == []


def test_an_import_up_the_layers_would_be_found() -> None:
    assert goes_up("django_quota.core.rates", "django_quota.conf")


FOREIGN = {"django", "redis", "django_redis", "asgiref"}


@pytest.mark.parametrize("folder", ["core", "engine"])
def test_the_kernel_imports_no_framework(folder: str) -> None:
    def is_wrong(importer: str, imported: str) -> bool:
        return layer(importer) == folder and imported.partition(".")[0] in FOREIGN

    assert wrong_imports(is_wrong) == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Neither for types alone, nor when a function runs: then neither could be read without the other."""
    graph = {name: {other for other in imports(name) if other in MODULES} for name in MODULES}
    del graph["django_quota"]  # which only names what others define
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"These modules import each other in a circle: {error.args[1]}")


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("from django_quota import conf", id="at the top"),
        pytest.param("if TYPE_CHECKING:\n from django_quota import conf", id="for types"),
        pytest.param("def f():\n from django_quota import conf", id="in a function"),
        pytest.param(
            "class A:\n async def f(self):\n  try:\n   import django_quota.conf\n  finally: ...", id="in a method"
        ),
    ],
)
def test_an_import_is_found_wherever_it_stands(code: str) -> None:
    assert [name for name, _ in imported_by(ast.parse(code))] == ["django_quota.conf"]


PACKAGES_OF = {
    "allauth": {"allauth"},
    "celery": {"celery", "kombu"},
    "graphql": {"graphql"},
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


PACKAGES = {"adrf", "axes", "channels", "django_ratelimit", "rest_framework_simplejwt"}.union(*PACKAGES_OF.values())


def test_only_an_integration_imports_its_package() -> None:
    def is_wrong(name: str, other: str) -> bool:
        is_integration = name.startswith("django_quota.contrib.")
        own = PACKAGES_OF.get(name.split(".")[2], set()) if is_integration else set()
        return other.partition(".")[0] in PACKAGES - own

    assert wrong_imports(is_wrong) == []


def test_nothing_else_imports_an_integration() -> None:
    def is_wrong(name: str, other: str) -> bool:
        return layer(name) != "contrib" and other.startswith("django_quota.contrib.")

    assert wrong_imports(is_wrong) == []


def test_an_integration_imports_only_public_modules_of_ours() -> None:
    def is_wrong(name: str, other: str) -> bool:
        if layer(name) != "contrib" or other.partition(".")[0] in PACKAGES:
            return False
        if name.startswith("django_quota.contrib.django_ratelimit"):
            return False  # the drop-in repeats the keys of another package
        of_ours = other.partition("django_quota.")[2]
        return not (of_ours.startswith("contrib.") or of_ours in {"", *PUBLIC, *OF_OWN.get(name, ())})

    assert wrong_imports(is_wrong) == []


SHARED = {
    *("Command", "app_name", "logger", "urlpatterns"),  # Django and logging find them by these names
    *("AnonRateThrottle", "SimpleRateThrottle", "UserRateThrottle"),  # each framework's own name for its throttle
    *("Subject", "register"),  # the model and the value of a subject; Django finds tags by that name
}
"""Module-level names that several modules may have."""


def names_of(path: Path) -> set[str]:
    """Return the public names that a module defines at its top, without type variables."""
    found = set[str]()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and "TypeVar(" not in ast.unparse(node):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return {name for name in found if not name.startswith("_")} - SHARED


def test_a_name_at_the_top_of_a_module_is_used_once_in_the_package() -> None:
    homes = defaultdict[str, list[str]](list)
    for module, path in MODULES.items():
        for name in names_of(path) if layer(module) != "migrations" else ():
            homes[name].append(module)
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


LOGGER = re.compile(r"""getLogger\((?:"django_quota\.(\w+)"|[^)]*)\)""")


def test_each_logger_is_named_by_its_subject() -> None:
    """The table of docs/going_live.md lists them all: nobody can set the level of one that it lacks."""
    page = (ROOT.parent / "docs" / "going_live.md").read_text()
    table = page.partition("| logger, below `django_quota` |")[2].partition("\n\n")[0]
    listed = re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|")))
    used = {match for path in MODULES.values() for match in LOGGER.findall(path.read_text())} - {""}

    assert sorted(used) == sorted(listed)


def test_a_module_without_a_subject_logs_only_for_django() -> None:
    unnamed = {match[0] for path in MODULES.values() for match in LOGGER.finditer(path.read_text()) if not match[1]}

    assert unnamed == {'getLogger("django.request")'}


@pytest.mark.parametrize("name", ["django_quota", "django_quota.adapters", "django_quota.middleware"])
def test_what_sites_import_needs_no_loaded_apps(name: str) -> None:
    """Django loads models with the apps. Settings, URLs and tasks may be imported before, or without the app."""
    left, reached = [name, *(imports(name) if name == "django_quota" else ())], set[str]()  # its names come later
    while left:
        if (module := left.pop()) in MODULES and module not in reached:
            reached.add(module)
            left += imports(module, lazy=False)
    assert "django_quota.models" not in reached


FILES = sorted(path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.rglob("*.lua"))
CODE = re.sub(r"--.*", "", "".join(map(lua_source, FILES)))


def head(name: str) -> str:
    return re.match(r"(?:--.*\n)*", lua_source(name))[0]  # type: ignore[index]


@pytest.mark.parametrize("name", FILES)
def test_the_head_of_each_lua_file_says_what_it_takes(name: str) -> None:
    assert [part for part in ("KEYS", "ARGV", "reply") if f"\n-- {part} " not in head(name)] == []


@pytest.mark.parametrize("name", REGISTRY)
def test_the_lua_of_an_algorithm_is_beside_its_python(name: str) -> None:
    module = MODULES[type(REGISTRY[name]).__module__]

    assert (module.parent / f"{name}.lua").exists()


def test_each_algorithm_gives_back() -> None:
    gives_back = re.findall(r"^  (\w+) = ", lua_source("restore").rpartition("\nreturn {")[2], re.MULTILINE)

    assert set(gives_back) == set(REGISTRY)
    assert {algorithm.name for algorithm in REGISTRY.values()} == set(ALGORITHM_NAMES)


def test_the_head_of_the_decision_lists_the_options_that_the_caller_sends() -> None:
    rules = [
        Rule.make("a b", "5/m; 7/h", warn_at=[0.5, 1.0], ban={"after": "20/m", "for": ["10m", "1h"]}),
        Rule.make("b", "9/d", algorithm="calendar", shadow=True, warn_at=None, count_refused=True),
    ]
    hits = hits_of(*rules, subject="user:1")
    hits += hits_of(Rule.make("c", "3/m", distinct=True), subject="user:1", value="cafe")
    hits += hits_of(Rule.make("d", "3/m", prefetch=True), subject="user:1")
    leased = hits_of(Take("e", leased_for=1), subject="user:1")

    decide = Decide([*hits, *leased], "check", emits=True)
    listed = set(re.findall(r'"(\w+)"', head("decide").partition("then its options")[2].partition("-- reply")[0]))
    options = {"counted", "quiet", "shares", "value", "group", "ban", "ahead", "grants", "leased", "day"}
    assert listed == options <= set(decide.arguments())


def test_scripts_touch_only_declared_keys() -> None:
    found = re.findall(r"redis\.p?call\('(\w+)'(?:, ([^,)]+))?", CODE)
    declared = re.compile(r"(?:\w+\.)?(?:\w+_)?key|KEYS\[.*")
    without_keys = {("TIME", ""), ("INFO", "'server'")}
    assert [call for call in found if call not in without_keys and not declared.fullmatch(call[1])] == []


def test_scripts_neither_search_for_keys_nor_run_others() -> None:
    used = set(re.findall(r"redis\.p?call\('(\w+)'", CODE))
    assert used & {"KEYS", "SCAN", "FLUSHDB", "FLUSHALL", "EVAL"} == set()


def test_scripts_write_no_time_as_a_float() -> None:
    """Lua writes a large number as 1.7637e+15, unless it is formatted."""
    assert "tostring" not in CODE
    assert not re.search(r"redis\.call\([^\n]*(?:\.\.  now|, now\b)", CODE)


@pytest.mark.parametrize("number", [0, 99_999_999, 10**8 + 1, 2**31, 10**15, 2**53 - 1])
def test_lua_writes_a_whole_number_with_all_its_digits(number: int, raw: Any) -> None:
    source = lua_source("lifetimes") + "return integer(tonumber(ARGV[2]))"

    assert raw.eval(source, 0, 1, number) == str(number).encode()


def test_lua_writes_times_to_the_microsecond(raw: Any) -> None:
    now, year = 4_102_444_799_999_999, 366 * 86_400 * SECOND  # the last microsecond of 2099
    hits = hits_of(Rule.make("a", "1/366d", algorithm="fixed_window"))
    decide = Decide(hits, "check")
    keys: Any = decide.keys

    reply = decide.read_reply(raw.eval(decide.script.text, len(keys), *keys, now, *decide.arguments()))

    assert reply == [now, 1, 1, 0, 0, year, year]
    assert raw.get(hits[0].limits[0].key) == f"1 {now + year}".encode()
