"""The catalogs of translations: find the messages of the package, write them into the .po files, compile those.

`make messages` does so. A new language: add `locale/<locale>/LC_MESSAGES/django.po` with a `Plural-Forms` header.
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
"""How many strings each takes."""
_STRING = r"""[ub]?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_CALL = re.compile(rf"\b(_|n?p?gettext)\(\s*({_STRING}(?:\s*,\s*{_STRING})*)")

LEFT_OUT_BY_DJANGO = {"Click here to select the objects across all pages", "Go", "Run the selected action"}
"""What Django's admin translates up to 6.0, but not from 6.1 on: we translate these under every version."""


class Message(NamedTuple):
    """One string that users see, as it is written in the code."""

    text: str
    plural: str = ""
    context: str | None = None

    @classmethod
    def of(cls, function: str, texts: list[str]) -> "Message":
        is_within = "pget" in function
        text, plural = [*texts[is_within : FUNCTIONS[function]], ""][:2]
        return cls(text, plural, texts[0] if is_within else None)


@cache
def messages() -> dict[Message, list[str]]:
    """Return all messages of the package, each with the files that it is in."""
    found: dict[Message, dict[str, None]] = {}
    for path in (*sorted(ROOT.rglob("*.py")), *sorted((ROOT / "templates").rglob("*.*"))):
        name = str(path.relative_to(ROOT.parent))
        for message in (_in_code if path.suffix == ".py" else _in_template)(path.read_text(), name):
            found.setdefault(message, {})[name] = None
    theirs = _of_django()
    return {
        message: list(files)
        for message, files in found.items()
        if message.text not in theirs or any("/admin/" not in name for name in files)
    }


def _of_django() -> set[str]:
    """Return what Django's admin translates into all of our languages, so that our catalogs need not."""
    root = Path(admin.__file__).parent
    catalogs = [polib.mofile(str(root / f"locale/{locale}/LC_MESSAGES/django.mo")) for locale in LOCALES]
    every = set.intersection(*({entry.msgid for entry in catalog if not entry.msgctxt} for catalog in catalogs))
    return every - LEFT_OUT_BY_DJANGO


def _in_code(source: str, name: str) -> Iterator[Message]:
    tree = ast.parse(source)
    called = {
        alias.asname or alias.name: function
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "django.utils.translation"
        for alias in node.names
        if (function := alias.name.removesuffix("_lazy")) in FUNCTIONS
    }
    called["Translatable"] = "gettext"  # in the core, which knows no Django
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in called:
            function = called[node.func.id]
            try:
                texts = [ast.literal_eval(each) for each in node.args[: FUNCTIONS[function]]]
            except ValueError:
                words = "a message must be a plain string, to be found and translated."
                raise ValueError(f"{name}:{node.lineno}: {words}") from None
            if any(texts):
                yield Message.of(function, texts)


def _in_template(source: str, name: str) -> Iterator[Message]:
    for called, texts in _CALL.findall(templatize(source, origin=name)):
        yield Message.of("gettext" if called == "_" else called, list(ast.literal_eval(f"({texts},)")))


def update(path: Path) -> list[str]:
    """Write the messages into a catalog and compile it; return those that are not translated yet."""
    old, catalog = polib.pofile(str(path)), polib.POFile(wrapwidth=120)
    known = {Message(entry.msgid, entry.msgid_plural or "", entry.msgctxt): entry for entry in old}
    plurals = old.metadata["Plural-Forms"]
    catalog.metadata = {
        "Project-Id-Version": "django_quota",
        "Language": path.parts[-3],
        "MIME-Version": "1.0",
        "Content-Type": "text/plain; charset=UTF-8",
        "Content-Transfer-Encoding": "8bit",
        "Plural-Forms": plurals,
    }
    for message, files in sorted(messages().items(), key=lambda each: (each[1], each[0].text)):
        entry = known.get(message) or polib.POEntry(msgid=message.text, msgctxt=message.context)
        if message.plural and not entry.msgstr_plural:
            forms = int(re.findall(r"nplurals=(\d)", plurals)[0])
            entry.msgid_plural, entry.msgstr_plural = message.plural, dict.fromkeys(range(forms), "")
        entry.occurrences = [(name, "") for name in files]
        entry.flags = ["python-format"] if "%(" in message.text else []
        catalog.append(entry)
    catalog.save(str(path))
    catalog.save_as_mofile(str(path.with_suffix(".mo")))
    return [entry.msgid for entry in catalog.untranslated_entries()]


if __name__ == "__main__":
    missing = {path.parts[-3]: update(path) for path in CATALOGS}
    for language, texts in missing.items():
        print(f"{language}: {len(texts)} left to translate", *(f"  {text!r}" for text in texts), sep="\n")
    sys.exit(any(missing.values()))
