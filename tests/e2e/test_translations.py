"""The translations: whole, of the same placeholders as their sources, compiled, and in the package."""

import json
import re
import shutil
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


@pytest.mark.parametrize("path", CATALOGS, ids=LANGUAGES)
def test_every_text_is_translated_and_compiled_and_nothing_else(path: Path, tmp_path: Path) -> None:
    there = tmp_path / path.parts[-3] / "LC_MESSAGES" / path.name
    there.parent.mkdir(parents=True)
    shutil.copy(path, there)
    assert update(there) == [], "run `make messages`, and translate what is new"
    for suffix in (".po", ".mo"):
        assert there.with_suffix(suffix).read_bytes() == path.with_suffix(suffix).read_bytes(), "run `make messages`"


@pytest.mark.parametrize("path", CATALOGS, ids=LANGUAGES)
def test_a_translation_has_the_placeholders_tags_ends_and_plurals_of_its_source(path: Path) -> None:
    catalog = polib.pofile(str(path))
    header = re.fullmatch(r"nplurals=(\d); plural=\(?(?:n != 1|n > 1|0)\)?;", catalog.metadata["Plural-Forms"])
    assert header is not None
    for entry in catalog:
        texts = list(entry.msgstr_plural.values()) if entry.msgid_plural else [entry.msgstr]
        assert not entry.msgid_plural or sorted(entry.msgstr_plural) == list(range(int(header[1]))), entry.msgid
        assert entry.msgstr != entry.msgid or len(entry.msgid.split()) <= 3, "it is left in English"
        for number, text in enumerate(texts):
            source = entry.msgid_plural if number or (entry.msgid_plural and len(texts) == 1) else entry.msgid
            assert placeholders(text) == placeholders(source), text
            assert sorted(_TAGS.findall(text)) == sorted(_TAGS.findall(source)), text
            assert text == text.strip() or entry.msgid != entry.msgid.strip(), text
            for end, chinese in ((".", "\u3002"), (":", "\uff1a")):
                assert text.rstrip("»\u00a0 ").endswith((end, chinese)) == entry.msgid.endswith(end), text


@pytest.mark.usefixtures("memory_store")
def test_browsers_ask_for_chinese_in_several_ways() -> None:
    for accepted, title in (
        ("zh-hans", "请求过多"), ("zh-CN,zh;q=0.9,en;q=0.8", "请求过多"), ("zh-Hant-TW,en;q=0.5", "請求過多"),
    ):  # fmt: skip
        request = RequestFactory().get("/", headers={"Accept-Language": accepted, "Accept": "application/json"})
        with translation.override(translation.get_language_from_request(request)):
            reply: Any = quota("0/m")(lambda _: None)(request)
        assert json.loads(reply.content)["title"] == title


def test_no_page_of_the_package_has_words_that_are_not_marked() -> None:
    """What stands bare between tags in a template is nothing but names, numbers and signs."""
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
