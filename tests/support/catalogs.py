"""The catalogs of translations: find the messages of the package, carry them into the .po files, compile them.

`make messages` does so for every language and says what is left to translate. It needs no gettext programs. A new
language: make its folder `django_quota/locale/<locale>/LC_MESSAGES` with an empty `django.po` that has a
`Plural-Forms` header, and run it.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import polib
from django.contrib import admin
from django.utils.translation import to_language
from django.utils.translation.template import templatize

import django_quota

ROOT = Path(django_quota.__file__).parent
CATALOGS = sorted(ROOT.glob("locale/*/LC_MESSAGES/django.po"))

LOCALES = tuple(path.parts[-3] for path in CATALOGS)  # the names of the folders, such as `zh_Hans`

LANGUAGES = tuple(map(to_language, LOCALES))  # django's codes, such as `zh-hans`

FUNCTIONS = {"gettext": 1, "gettext_noop": 1, "ngettext": 2, "pgettext": 2, "npgettext": 3}
"""How many texts each takes."""
_STRING = r"""[ub]?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_CALL = re.compile(rf"\b(_|n?p?gettext)\(\s*({_STRING}(?:\s*,\s*{_STRING})*)")

LEFT_OUT_BY_DJANGO = {"Click here to select the objects across all pages", "Go", "Run the selected action"}
"""What its admin translates up to 6.0 only: from 6.1 on nobody would, so that these are ours under every version."""


class Message(NamedTuple):
    """One text that people see, as the code has it."""

    text: str
    plural: str = ""
    context: str | None = None


@cache
def messages() -> dict[Message, list[str]]:
    """Return all messages of the package, each with the files that it is in."""
    found: dict[Message, list[str]] = {}
    code, templates = sorted(ROOT.rglob("*.py")), sorted((ROOT / "templates").rglob("*.*"))
    for path in (*code, *templates):
        name = str(path.relative_to(ROOT.parent))
        for message in (in_code if path.suffix == ".py" else in_template)(path.read_text(), name):
            files = found.setdefault(message, [])
            if name not in files:
                files.append(name)
    theirs = _of_django()
    return {
        message: files
        for message, files in found.items()
        if message.text not in theirs or any("/admin/" not in name for name in files)
    }


def _of_django() -> set[str]:
    """Return what Django's admin translates itself into all of our languages, and so needs none of ours there."""
    root = Path(admin.__file__).parent
    catalogs = [polib.mofile(str(root / f"locale/{locale}/LC_MESSAGES/django.mo")) for locale in LOCALES]
    every = set.intersection(*({entry.msgid for entry in catalog if not entry.msgctxt} for catalog in catalogs))
    return every - LEFT_OUT_BY_DJANGO


def in_code(source: str, name: str) -> Iterator[Message]:
    """Yield the messages of a Python module. Raises `ValueError` where one is not written as a plain text."""
    tree = ast.parse(source)
    called = {
        alias.asname or alias.name: alias.name.removesuffix("_lazy")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "django.utils.translation"
        for alias in node.names
        if alias.name.removesuffix("_lazy") in FUNCTIONS
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in called:
            function = called[node.func.id]
            given = [each.value for each in node.args[: FUNCTIONS[function]] if isinstance(each, ast.Constant)]
            texts = [text for text in given if isinstance(text, str)]
            if len(texts) != FUNCTIONS[function]:
                raise ValueError(f"{name}:{node.lineno}: a message must be a plain text, to be found and translated.")
            yield _message(function, texts)


def in_template(source: str, name: str) -> Iterator[Message]:
    """Yield the messages of a template."""
    for called, texts in _CALL.findall(templatize(source, origin=name)):
        function = "gettext" if called == "_" else called
        yield _message(function, [ast.literal_eval(text) for text in re.findall(_STRING, texts)][: FUNCTIONS[function]])


def _message(function: str, texts: list[str]) -> Message:
    context = texts.pop(0) if "pget" in function else None
    return Message(texts[0], texts[1] if len(texts) > 1 else "", context)


def update(path: Path) -> list[str]:
    """Carry the messages into a catalog and compile it; return those that are not translated yet."""
    old = polib.pofile(str(path))
    known: dict[tuple[str, str | None], polib.POEntry] = {(entry.msgid, entry.msgctxt): entry for entry in old}
    catalog = polib.POFile(wrapwidth=120)
    plurals = old.metadata["Plural-Forms"]
    catalog.metadata = {"Project-Id-Version": "django_quota", "Language": path.parts[-3], "MIME-Version": "1.0"}
    catalog.metadata |= {"Content-Type": "text/plain; charset=UTF-8", "Content-Transfer-Encoding": "8bit"}
    catalog.metadata["Plural-Forms"] = plurals
    forms = int(re.findall(r"nplurals=(\d)", plurals)[0])
    for message, files in sorted(messages().items(), key=lambda each: (each[1], each[0].text)):
        catalog.append(_entry(message, files, known.get((message.text, message.context)), forms))
    catalog.save(str(path))
    catalog.save_as_mofile(str(path.with_suffix(".mo")))
    return [entry.msgid for entry in catalog.untranslated_entries()]


def _entry(message: Message, files: list[str], before: polib.POEntry | None, forms: int) -> polib.POEntry:
    entry = polib.POEntry(msgid=message.text, msgctxt=message.context, occurrences=[(name, "") for name in files])
    if "%(" in message.text:
        entry.flags = ["python-format"]
    if message.plural:
        entry.msgid_plural = message.plural
        entry.msgstr_plural = dict.fromkeys(range(forms), "")
        if before and before.msgid_plural == message.plural:
            entry.msgstr_plural = dict(before.msgstr_plural)
    elif before:
        entry.msgstr = before.msgstr
    return entry


if __name__ == "__main__":
    missing = {path.parts[-3]: update(path) for path in CATALOGS}
    for language, texts in missing.items():
        print(f"{language}: {len(texts)} left to translate", *(f"  {text!r}" for text in texts), sep="\n")
    sys.exit(any(missing.values()))
