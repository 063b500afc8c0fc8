"""The parts of the reference that are made from the code: signatures, summaries, options of commands.

`python -m tests.support.reference` writes them into docs/, between a comment that names them and `<!-- end -->`:

`<!-- list django_quota.metrics: observe -->`  functions and classes
`<!-- errors -->`, `<!-- signals -->`          those of `django_quota.exceptions` and `django_quota.signals`
`<!-- command quota_sweep -->`                 the options of a command
`<!-- keys -->`                                the kinds of keys in Redis

Below `<!-- names of django_quota, ... -->` each heading `### check` names a function or class of these modules: the
paragraph and the list right below it are made from the code. Both forms have the first paragraph of the docstring:
`help()` shows the rest.

tests/e2e/test_reference.py compares the pages with the code, and finds what no page lists.
"""

import argparse
import ast
import inspect
import os
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar, get_origin

from django.core.management.base import BaseCommand

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), DOCS.parent / "CONTRIBUTING.md"]
PART = re.compile(
    r"(<!-- (list [\w.]+: [^>]*|command \w+|errors|signals|keys) -->\n).*?(<!-- end -->)",
    re.DOTALL,
)
"""A part that is made from the code: its comment, what that says and the end."""

NAMED = re.compile(
    r"^### (\w+)\n\n(?:```text\n.*?```\n\n)?(?:[^\n]+\n)+(?:\n(?:\* [^\n]+\n)+)?", re.DOTALL | re.MULTILINE
)
"""A heading that names a function or a class, and what is made from the code below it."""


def updated(page: str) -> str:
    page = PART.sub(lambda part: f"{part[1]}\n{_part(part[2])}\n\n{part[3]}", page)
    modules = _modules(page)
    return NAMED.sub(lambda part: f"### {part[1]}\n\n{_described(modules, part[1])}\n", page) if modules else page


def _part(made_from: str) -> str:
    word, _, rest = made_from.partition(" ")
    if word == "list":
        module, _, names = rest.partition(": ")
        return "\n".join(_item(name.strip(), *_found([module], name.strip())) for name in names.split(","))
    return _command(rest) if word == "command" else {"errors": _errors, "signals": _signals, "keys": _keys}[word]()


def names_in(page: str) -> list[str]:
    parts = re.findall(r"<!-- list ([\w.]+): ([^>]*) -->", page)
    listed = [f"{module}.{name.strip()}" for module, names in parts for name in names.split(",")]
    headed = [(module, part[1]) for module in _modules(page) for part in NAMED.finditer(page)]
    return listed + [f"{module}.{name}" for module, name in headed if name in import_module(module).__all__]


def _modules(page: str) -> list[str]:
    found = re.search(r"<!-- names of ([\w., ]+) -->", page)
    return found[1].split(", ") if found else []


# --- functions and classes --------------------------------------------------------------------------------------------


def _described(modules: list[str], name: str) -> str:
    found, waits = _found(modules, name)
    if inspect.isclass(found):
        return f"{_filled(_summary(found))}\n\n{_members(found)}".rstrip()
    whole = textwrap.fill(f"{name}{signature(found)}", 100, subsequent_indent=" " * 4, break_on_hyphens=False)
    return f"```text\n{whole}\n```\n\n{_filled(_summary(found) + waits)}"


def _found(modules: list[str], path: str) -> tuple[Any, str]:
    """Return what a path in one of these modules names, and a word on its async form."""
    first = path.partition(".")[0]
    found: Any = next(module for module in map(import_module, modules) if hasattr(module, first))
    for name in path.split("."):
        owner, found = found, getattr(found, name)
    return found, f" Async: `a{name}`." if hasattr(owner, f"a{name}") else ""


def _doc(thing: Any) -> str:
    text = inspect.getdoc(thing)
    assert text, thing
    return text


def _summary(thing: Any) -> str:
    return " ".join(_doc(thing).partition("\n\n")[0].split())


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False)


def _item(name: str, found: Any, waits: str = "") -> str:
    return f"* `{name}`: {_summary(found)}{waits}"


def _members(found: type) -> str:
    """Return a list of the methods; of a class that holds an answer also what it has beside what a Decision has."""
    from django_quota.core.decisions import Decision

    answers = is_dataclass(found) or issubclass(found, (Decision, tuple))
    above = attributes(Decision) if found is not Decision else {}
    items = [
        f"* `{name}` ({' '.join(kind.split()).replace(' | ', ' or ')}): {' '.join(text.split())}"
        for name, (kind, text) in attributes(found).items()
        if answers and name not in above
    ]
    methods = public_methods(found)
    under_async = {f"a{name}" for name in methods}
    for name, function in methods.items():
        if name not in under_async:
            waits = f" Async: `a{name}`." if f"a{name}" in methods else ""
            items.append(_item(f"{name}{signature(function)}", function, waits))
    return "\n".join(items)


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
    """Return the public attributes that a class documents: the type and the text of each."""
    tree: Any = ast.parse(textwrap.dedent(inspect.getsource(found))).body[0]
    documented: dict[str, tuple[str, str]] = {}
    starts = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    given = {each.arg: ast.unparse(each.annotation) for start in starts for each in start.args.args if each.annotation}
    for body in (tree.body, *(start.body for start in starts)):
        for node, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.FunctionDef) and {"property", "cached_property"} & _decorators(node):
                documented[node.name] = (ast.unparse(node.returns or ast.Constant("")), ast.get_docstring(node) or "")
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
                kind = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else given.get(name, "")
                if (text := _text_of(after)) or (isinstance(node, ast.AnnAssign) and body is tree.body):
                    documented[name] = (kind, text)
    known = vars(import_module(found.__module__))
    return {
        name: ("str" if get_origin(known.get(kind)) is Literal else kind, text)
        for name, (kind, text) in documented.items()
        if not name.startswith("_")
    }


def _decorators(node: ast.FunctionDef) -> set[str]:
    return {each.id for each in node.decorator_list if isinstance(each, ast.Name)}


def _text_of(node: ast.stmt | None) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return inspect.cleandoc(str(node.value.value)) if is_text else ""  # type: ignore[union-attr]


def signature(function: Any) -> str:
    """Return the arguments of a function with their defaults, and what it returns."""
    arguments = inspect.signature(function)
    shown = [each.replace(annotation=inspect.Parameter.empty) for each in arguments.parameters.values()]
    if shown and shown[0].name == "self":
        shown = shown[1:]
    text = str(arguments.replace(parameters=shown, return_annotation=inspect.Signature.empty))
    text = re.sub(r"datetime\.timedelta\(days=(\d+)\)", r"timedelta(days=\1)", text)
    returns = str(arguments.return_annotation)
    names_nothing = arguments.return_annotation is inspect.Signature.empty or returns == "None"
    is_what_it_gets = isinstance(inspect.unwrap(function).__globals__.get(returns), TypeVar)
    return text if names_nothing or is_what_it_gets else f"{text} -> {returns.replace('_Reserving', 'Hold')}"


def _in_cell(text: str) -> str:
    return " ".join(text.split()).replace(" | ", " or ").replace("|", "\\|")


# --- tables -----------------------------------------------------------------------------------------------------------


def _errors() -> str:
    errors = import_module("django_quota.exceptions")
    texts = {name: _in_cell(_doc(getattr(errors, name))).partition(". ")[0].rstrip(".") for name in errors.__all__}
    rows = [f"| `{name}` | {text}. |" for name, text in texts.items()]
    return "\n".join(["| error | raised when |", "|---|---|", *rows])


def signals() -> dict[str, str]:
    """Return the signals of `django_quota.signals` by name, with what they say of themselves."""
    found = {}
    for node, after in pairwise(ast.parse(inspect.getsource(import_module("django_quota.signals"))).body):
        target = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [None])[0]
        if isinstance(target, ast.Name) and target.id.islower() and (text := _text_of(after)):
            found[target.id] = text
    return found


def _signals() -> str:
    rows = [f"| `{name}` | {_in_cell(text)} |" for name, text in signals().items()]
    return "\n".join(["| signal | what it says |", "|---|---|", *rows])


def _keys() -> str:
    keys = import_module("django_quota.core.keys")
    kinds = [("<subject>", *each) for each in keys.KINDS.items()] + [("!", *each) for each in keys.SYSTEM_KINDS.items()]
    named = re.compile(r"(?<![\w`])((?:\w+:)*\w*:?<[^>]+>(?::<[^>]+>)?)")
    told = [(f"quota:1:{{{of}}}:{kind}...", _in_cell(named.sub(r"`\1`", text))) for of, kind, text in kinds]
    rows = [f"| `{key}` | {text} |" for key, text in told]
    return "\n".join(["| key | what it holds |", "|---|---|", *rows])


# --- commands ---------------------------------------------------------------------------------------------------------


@cache
def commands() -> dict[str, str]:
    root = DOCS.parent / "django_quota"
    paths = sorted(root.rglob("management/commands/quota_*.py"), key=lambda path: path.stem)
    return {path.stem: ".".join(("django_quota", *path.relative_to(root).parts[:-3])) for path in paths}


def options_of(parser: argparse.ArgumentParser, words: str = "") -> Iterator[tuple[str, str, str]]:
    """Return the options of a command, without those of every Django command: the words before it, it, its meaning."""
    djangos = {action.dest for action in BaseCommand().create_parser("manage.py", "any")._actions}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, below in action.choices.items():
                yield from options_of(below, f"{words}{verb} ")
        elif action.dest not in djangos:
            yield words, _option(action), action.help or ""


def _option(action: argparse.Action) -> str:
    given = action.metavar if isinstance(action.metavar, str) else ""
    if not action.option_strings:
        return given or action.dest
    if action.nargs == 0:
        return action.option_strings[-1]
    choices = "|".join(map(str, action.choices)) if action.choices else ""
    shown = given or choices or action.dest.upper()
    shown = f"[{shown}]" if action.nargs == "?" else f"{shown} ..." if action.nargs == argparse.REMAINDER else shown
    return f"{action.option_strings[-1]} {shown}"


SHARED = {
    "--json": "",
    "--dry-run": "",
    "subject": "",
    "--every TIME": "",
    "--rule NAME": "only this rule; you may repeat it",
}
"""Options that mean the same for every command, or where their help begins like this: the page has them once."""


def _command(name: str) -> str:
    """Return the options of a command; what several actions take alike is one item."""
    command = import_module(f"{commands()[name]}.management.commands.{name}").Command()
    actions: dict[tuple[str, str], list[str]] = {}
    for words, option, text in options_of(command.create_parser("manage.py", name)):
        if option not in SHARED or not text.startswith(SHARED[option]):
            actions.setdefault((option, text), []).append(words.strip())
    rows = []
    for (option, text), taking in actions.items():
        taken_by = ", ".join(f"`{action}`" for action in taking if action)
        rows.append(" ".join(filter(None, ["*", taken_by, f"`{option}`:", re.sub(r"(--[a-z-]+)", r"`\1`", text)])))
    return "\n".join(rows)


def main() -> None:
    for path in PAGES:
        before = path.read_text()
        after = updated(before)
        if after != before:
            path.write_text(after)
            print(f"{path.name} is up to date now.")


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.support.settings")
    import django

    django.setup()
    main()
