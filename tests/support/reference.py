"""The parts of the reference that are made from the code: signatures, summaries, options of commands.

`python -m tests.support.reference` writes them into docs/, between a comment that names them and `<!-- end -->`:

`<!-- list django_quota.metrics: observe -->`  functions and classes
`<!-- errors -->`, `<!-- signals -->`          those of `django_quota.exceptions` and `django_quota.signals`
`<!-- command quota_sweep -->`                 the options of a command
`<!-- keys -->`                                the kinds of keys in Redis
`<!-- runs -->`                                what was run when, see `tests.support.runs`

Below `<!-- names of django_quota, ... -->` each heading `### check` names a function or class of these modules: the
paragraph and the list right below it are made from the code. Both forms have the first paragraph of the docstring:
`help()` shows the rest.
"""

import argparse
import ast
import inspect
import os
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Literal, TypeVar, get_origin

from django.core.management.base import BaseCommand

from tests.support import runs

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), DOCS.parent / "CONTRIBUTING.md"]
PART = re.compile(r"<!-- (list|command|errors|signals|keys|runs) ?([^>]*) -->\n.*?<!-- end -->", re.DOTALL)
NAMED = re.compile(
    r"^### (\w+)\n\n(?:```text\n.*?```\n\n)?(?:[^\n]+\n)+(?:\n(?:\* [^\n]+\n)+)?", re.DOTALL | re.MULTILINE
)
"""A heading that names a function or a class, and what is made from the code below it."""


def updated(page: str) -> str:
    page = PART.sub(_part, page)
    modules = _modules(page)
    return NAMED.sub(lambda part: f"### {part[1]}\n\n{_described(modules, part[1])}\n", page) if modules else page


def _part(part: re.Match[str]) -> str:
    makers = {"list": _list, "command": _command, "errors": _errors, "signals": _signals, "keys": _keys, "runs": _runs}
    made = makers[part[1]](part[2])
    return f"{part[0].partition('-->')[0]}-->\n\n{made}\n\n<!-- end -->"


def names_in(page: str) -> list[str]:
    parts = [part[2].partition(": ") for part in PART.finditer(page) if part[1] == "list"]
    headed = [(module, part[1]) for module in _modules(page) for part in NAMED.finditer(page)]
    return [f"{module}.{name}" for module, _, names in parts for name in names.split(", ")] + [
        f"{module}.{name}" for module, name in headed if name in import_module(module).__all__
    ]


def _modules(page: str) -> list[str]:
    found = re.search(r"<!-- names of ([\w., ]+) -->", page)
    return found[1].split(", ") if found else []


# --- functions and classes --------------------------------------------------------------------------------------------


def _list(what: str) -> str:
    module, _, names = what.partition(": ")
    return "\n".join(_item(name, *_found([module], name)) for name in names.split(", "))


def _described(modules: list[str], name: str) -> str:
    found, waits = _found(modules, name)
    summary = textwrap.fill(_summary(found) + ("" if inspect.isclass(found) else waits), 120, break_on_hyphens=False)
    if inspect.isclass(found):
        return "\n\n".join(filter(None, [summary, "\n".join(_members(found))]))
    whole = textwrap.fill(f"{name}{signature(found)}", 100, subsequent_indent=" " * 4, break_on_hyphens=False)
    return f"```text\n{whole}\n```\n\n{summary}"


def _found(modules: list[str], path: str) -> tuple[Any, str]:
    """Return what a path in one of these modules names, and a word on its async form."""
    first = path.partition(".")[0]
    found: Any = next(module for module in map(import_module, modules) if hasattr(module, first))
    for name in path.split("."):
        owner, found = found, getattr(found, name)
    return found, f" Async: `a{name}`." if hasattr(owner, f"a{name}") else ""


def _summary(thing: Any) -> str:
    return " ".join(str(inspect.getdoc(thing)).partition("\n\n")[0].split())


def _item(name: str, found: Any, waits: str = "") -> str:
    return f"* `{name}`: {_summary(found)}{waits}"


def _members(found: type) -> Iterator[str]:
    """Yield the attributes and methods; of an Outcome only what a Decision does not have."""
    from django_quota.core.decisions import Decision, Outcome

    above = attributes(Decision) if found is Outcome else {}
    if is_dataclass(found) or issubclass(found, (Decision, tuple)):
        for name, (kind, text) in attributes(found).items():
            if name not in above:
                yield f"* `{name}` ({_in_cell(kind)}): {' '.join(text.split())}"
    methods = public_methods(found)
    for name, function in methods.items():
        if not (name.startswith("a") and name[1:] in methods):
            waits = f" Async: `a{name}`." if f"a{name}" in methods else ""
            yield _item(f"{name}{signature(function)}", function, waits)


def public_methods(found: type) -> dict[str, Any]:
    """Return the public methods of an instance, without those that return flows, for other modules."""
    return {
        name: function
        for name, function in vars(found).items()
        if inspect.isfunction(function)
        and not name.startswith("_")
        and "Flow[" not in str(function.__annotations__.get("return"))
    }


def attributes(found: type) -> dict[str, tuple[str, str]]:
    """Return the public attributes that a class documents: the type and the docstring of each."""
    tree: Any = ast.parse(textwrap.dedent(inspect.getsource(found))).body[0]
    starts = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    given = {each.arg: ast.unparse(each.annotation) for start in starts for each in start.args.args if each.annotation}
    known, documented = vars(import_module(found.__module__)), dict[str, tuple[str, str]]()
    for body in (tree.body, *(start.body for start in starts)):
        for node, name, text in _statements(body):
            kind = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else given.get(name, "")
            if isinstance(node, ast.FunctionDef):
                kind = ast.unparse(node.returns or ast.Constant(""))
            elif not text and not (isinstance(node, ast.AnnAssign) and body is tree.body):
                continue
            if not name.startswith("_"):
                documented[name] = ("str" if get_origin(known.get(kind)) is Literal else kind, text)
    return documented


def _statements(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, str, str]]:
    """Yield the assignments and properties of a body, each with its name, and with what is said of it."""
    for node, after in zip_longest(body, body[1:]):
        if isinstance(node, ast.FunctionDef):
            if {"property", "cached_property", "lazy_attribute"} & {ast.unparse(each) for each in node.decorator_list}:
                yield node, node.name, ast.get_docstring(node) or ""
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            name = target.attr if isinstance(target, ast.Attribute) else ast.unparse(target)
            said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and after.value.value
            yield node, name, inspect.cleandoc(str(said or ""))


def signature(function: Any) -> str:
    """Return the arguments of a function with their defaults, and what it returns."""
    arguments = inspect.signature(function)
    shown = [each.replace(annotation=inspect.Parameter.empty) for each in arguments.parameters.values()]
    shown = shown[1:] if shown and shown[0].name == "self" else shown
    text = str(arguments.replace(parameters=shown, return_annotation=inspect.Signature.empty))
    text = re.sub(r"datetime\.timedelta\(days=(\d+)\)", r"timedelta(days=\1)", text)
    returns = str(arguments.return_annotation)
    names_nothing = arguments.return_annotation is inspect.Signature.empty or returns == "None"
    is_what_it_gets = isinstance(inspect.unwrap(function).__globals__.get(returns), TypeVar)
    return text if names_nothing or is_what_it_gets else f"{text} -> {returns.replace('_Reserving', 'Reservation')}"


# --- tables -----------------------------------------------------------------------------------------------------------


def _in_cell(text: str) -> str:
    return " ".join(text.split()).replace(" | ", " or ").replace("|", "\\|")


def _table(first: str, second: str, rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join([f"| {first} | {second} |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in rows)])


def _errors(_: str) -> str:
    errors = import_module("django_quota.exceptions")
    texts = {name: _in_cell(str(inspect.getdoc(getattr(errors, name)))) for name in errors.__all__}
    said = [(name, f"{text.partition('. ')[0].rstrip('.')}.") for name, text in texts.items()]
    return _table("error", "raised when", said)


def signals() -> dict[str, str]:
    """Return the signals of `django_quota.signals` by name, with what they say of themselves."""
    tree = ast.parse(inspect.getsource(import_module("django_quota.signals")))
    return {name: text for _, name, text in _statements(tree.body) if name.islower() and text}


def _signals(_: str) -> str:
    return _table("signal", "what it says", [(name, _in_cell(text)) for name, text in signals().items()])


def _keys(_: str) -> str:
    keys = import_module("django_quota.core.keys")
    kinds = [("<subject>", *each) for each in keys.KEY_KINDS.items()]
    kinds += [("!", *each) for each in keys.SYSTEM_KINDS.items()]
    named = re.compile(r"(?<![\w`])((?:\w+:)*\w*:?<[^>]+>(?::<[^>]+>)?)")
    rows = [(f"quota:1:{{{of}}}:{kind}...", _in_cell(named.sub(r"`\1`", text))) for of, kind, text in kinds]
    return _table("key", "what it holds", rows)


# --- versions ---------------------------------------------------------------------------------------------------------


def _runs(_: str) -> str:
    return runs.table()


# --- commands ---------------------------------------------------------------------------------------------------------

SHARED = {
    "--json": "",
    "--dry-run": "",
    "subject": "",
    "--every TIME": "",
    "--rule NAME": "only this rule; you may repeat it",
}
"""Options that mean the same for every command, or where their help begins like this: the page has them once."""


@cache
def commands() -> dict[str, str]:
    root = DOCS.parent / "django_quota"
    paths = sorted(root.rglob("management/commands/quota_*.py"), key=lambda path: path.stem)
    return {path.stem: ".".join(("django_quota", *path.relative_to(root).parts[:-1], path.stem)) for path in paths}


def _options_of(parser: argparse.ArgumentParser, words: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the options of a command without those of every Django command: its verb, the option, its meaning."""
    djangos = {action.dest for action in BaseCommand().create_parser("manage.py", "any")._actions}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, below in action.choices.items():
                yield from _options_of(below, verb)
        elif action.dest not in djangos:
            yield words, _option(action), action.help or ""


def _option(action: argparse.Action) -> str:
    given = action.metavar if isinstance(action.metavar, str) else ""
    if not action.option_strings:
        return given or action.dest
    if action.nargs == 0:
        return action.option_strings[-1]
    shown = given or "|".join(map(str, action.choices or ())) or action.dest.upper()
    shown = f"[{shown}]" if action.nargs == "?" else f"{shown} ..." if action.nargs == argparse.REMAINDER else shown
    return f"{action.option_strings[-1]} {shown}"


def _command(name: str) -> str:
    """Return the options of a command; one that several actions share is one item."""
    actions: dict[tuple[str, str], list[str]] = {}
    shared: dict[str, list[str]] = {}
    for verb, option, text in _options_of(import_module(commands()[name]).Command().create_parser("manage.py", name)):
        if option not in SHARED or not text.startswith(SHARED[option]):
            actions.setdefault((option, text), []).append(verb)
        elif option.startswith("--"):
            shared.setdefault(option, []).append(verb)
    rows = []
    for (option, text), verbs in actions.items():
        taken_by = ", ".join(f"`{verb}`" for verb in verbs if verb)
        rows.append(" ".join(filter(None, ["*", taken_by, f"`{option}`:", re.sub(r"(--[a-z-]+)", r"`\1`", text)])))
    all_verbs = set(chain(*actions.values(), *shared.values()))
    above = [
        " ".join([*(f"`{verb}`" for verb in verbs if set(verbs) != all_verbs), f"`{option}`"])
        for option, verbs in shared.items()
    ]
    return "\n".join([*rows, *([f"* as [above](#commands): {', '.join(above)}"] if above else [])])


def main() -> None:
    for path in PAGES:
        before = path.read_text()
        if (after := updated(before)) != before:
            path.write_text(after)
            print(f"{path.name} is up to date now.")


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.support.settings")
    import django

    django.setup()
    main()
