"""Highlight Python source for the front page, with the tokenizer of the standard library."""

from __future__ import annotations

import io
import keyword
import token
import tokenize

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

_CLASSES = {token.STRING: "string", token.NUMBER: "number", tokenize.COMMENT: "comment"}


def highlighted(source: str) -> SafeString:
    """Return source as HTML: a span for each line, with spans for strings, numbers, keywords and decorators."""
    lines = source.splitlines(keepends=True)
    html: list[str] = []
    row, column = 1, 0
    decorates = False
    for kind, text, start, end, _ in tokenize.generate_tokens(io.StringIO(source).readline):
        html.append(escape(_between(lines, (row, column), start)))
        row, column = end
        if text == "@":
            decorates = True
        elif kind != token.NAME:
            decorates = False
        name = "decorator" if decorates else "keyword" if keyword.iskeyword(text) else _CLASSES.get(kind)
        html.append(f'<span class="{name}">{escape(text)}</span>' if name else escape(text))
    # All text went through escape(), and no span crosses the end of a line.
    return mark_safe("".join(f'<span class="line">{line}</span>' for line in "".join(html).splitlines()))


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    """Return the spaces between two tokens on one line; the tokenizer leaves them out."""
    first = start[1] if start[0] == end[0] else 0
    return lines[end[0] - 1][first : end[1]] if end[1] > first else ""
