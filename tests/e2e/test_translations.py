"""The translations: whole, of the same placeholders as their sources, compiled, and in the package."""

import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import polib
import pytest
from django.test import RequestFactory
from django.utils import translation

from django_quota import quota
from tests.support.catalogs import CATALOGS, LANGUAGES, ROOT, update

_NAMED = re.compile(r"%\((\w+)\)[sd]|%[sd]")
_TAGS = re.compile(r"</?\w+>")


def placeholders(text: str) -> list[str]:
    return sorted(match[0] for match in _NAMED.finditer(text.replace("%%", "")))


each_catalog = pytest.mark.parametrize("path", CATALOGS, ids=LANGUAGES)
RUN = "run `make messages`"


@pytest.fixture(scope="module")
def updated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], tuple[Path, list[Any]]]:
    """A copy of a catalog as `make messages` would leave it, and what is not translated in it."""

    @cache
    def updated_copy(path: Path) -> tuple[Path, list[Any]]:
        there = tmp_path_factory.mktemp("locale") / path.parts[-3] / "LC_MESSAGES" / path.name
        there.parent.mkdir(parents=True)
        shutil.copy(path, there)
        return there, update(there)

    return updated_copy


@each_catalog
def test_every_string_is_translated(path: Path, updated: Any) -> None:
    _, missing = updated(path)

    assert missing == [], f"{RUN}, and translate what is new"


@each_catalog
def test_a_catalog_has_only_the_strings_of_the_package(path: Path, updated: Any) -> None:
    there, _ = updated(path)

    assert there.read_bytes() == path.read_bytes(), RUN


@each_catalog
def test_a_compiled_catalog_is_up_to_date(path: Path, updated: Any) -> None:
    there, _ = updated(path)

    assert there.with_suffix(".mo").read_bytes() == path.with_suffix(".mo").read_bytes(), RUN


def number_of_forms(catalog: polib.POFile) -> int:
    header = re.fullmatch(r"nplurals=(\d); plural=\(?(?:n != 1|n > 1|0)\)?;", catalog.metadata["Plural-Forms"])
    assert header is not None
    return int(header[1])


def translations_of(entry: polib.POEntry) -> list[tuple[str, str]]:
    """Return each translation with its source."""
    if not entry.msgid_plural:
        return [(entry.msgstr, entry.msgid)]
    texts = list(entry.msgstr_plural.values())
    return [
        (text, entry.msgid_plural if number or len(texts) == 1 else entry.msgid) for number, text in enumerate(texts)
    ]


def pairs_of(path: Path) -> list[tuple[str, str]]:
    return [pair for entry in polib.pofile(str(path)) for pair in translations_of(entry)]


@each_catalog
def test_a_translation_has_all_plural_forms_of_its_language(path: Path) -> None:
    catalog = polib.pofile(str(path))
    forms = list(range(number_of_forms(catalog)))

    assert [entry.msgid for entry in catalog if entry.msgid_plural and sorted(entry.msgstr_plural) != forms] == []


@each_catalog
def test_nothing_longer_than_three_words_is_left_in_english(path: Path) -> None:
    catalog = polib.pofile(str(path))

    assert [entry.msgid for entry in catalog if entry.msgstr == entry.msgid and len(entry.msgid.split()) > 3] == []


@each_catalog
def test_a_translation_has_the_placeholders_of_its_source(path: Path) -> None:
    assert [text for text, source in pairs_of(path) if placeholders(text) != placeholders(source)] == []


@each_catalog
def test_a_translation_has_the_tags_of_its_source(path: Path) -> None:
    assert [
        text for text, source in pairs_of(path) if sorted(_TAGS.findall(text)) != sorted(_TAGS.findall(source))
    ] == []


@each_catalog
def test_a_translation_adds_no_space_around_its_source(path: Path) -> None:
    entries = [entry for entry in polib.pofile(str(path)) if entry.msgid == entry.msgid.strip()]

    assert [text for entry in entries for text, _ in translations_of(entry) if text != text.strip()] == []


@each_catalog
@pytest.mark.parametrize(("end", "chinese"), [(".", "\u3002"), (":", "\uff1a")], ids=["full stop", "colon"])
def test_a_translation_ends_as_its_source(path: Path, end: str, chinese: str) -> None:
    wrong = [
        text
        for entry in polib.pofile(str(path))
        for text, _ in translations_of(entry)
        if text.rstrip("»\u00a0 ").endswith((end, chinese)) != entry.msgid.endswith(end)
    ]

    assert wrong == []


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("accepted", "title"),
    [
        ("zh-hans", "请求过多"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "请求过多"),
        ("zh-Hant-TW,en;q=0.5", "請求過多"),
    ],
    ids=["simplified", "mainland", "Taiwan"],
)
def test_browsers_ask_for_chinese_in_several_ways(accepted: str, title: str) -> None:
    request = RequestFactory().get("/", headers={"Accept-Language": accepted, "Accept": "application/json"})

    with translation.override(translation.get_language_from_request(request)):
        reply: Any = quota("0/m")(lambda _: None)(request)

    assert json.loads(reply.content)["title"] == title


def test_no_page_of_the_package_has_words_that_are_not_marked() -> None:
    """What stands bare between tags in a template is nothing but names, numbers and punctuation."""
    bare: dict[str, list[str]] = {}
    for page in sorted((ROOT / "templates").rglob("*.html")):
        text = re.sub(
            r"(?s)\{% (comment|blocktranslate)\b.*?\{% end\1 %\}|<(style|code)\b.*?</\2>", " ", page.read_text()
        )
        text = re.sub(r"(?s)\{% block bodyclass %\}.*?\{% endblock %\}|&\w+;", " ", text)
        text = re.sub(r"(?s)\{[%{#].*?[%}#]\}", " ", text)  # tags first: an attribute may hold a > of theirs
        words = re.findall(r"[A-Za-z]{3,}", " ".join(re.findall(r">([^<>]*)<", text)))
        if words:
            bare[page.name] = words

    assert bare == {}
