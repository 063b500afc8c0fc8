"""Files for spreadsheets: lines of CSV, made in constant memory and safe to open; and the download of them.

A download is streamed, under WSGI and ASGI.
"""

from __future__ import annotations

import csv
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from functools import partial
from io import StringIO
from itertools import islice
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.http import content_disposition_header

ROWS_PER_CHUNK = 2_000
"""Rows in one part of a download."""

_FORMULA = re.compile(r"""(?:^|(?<=[;,|\t\r\n"]))(?=[=+\-@\t\r\uff0b\uff0d\uff1d\uff20])""")
"""Where a spreadsheet may start to read a formula.

That is the start of a cell, or the place after any character that some spreadsheet takes for a separator: Excel with
German, French or Spanish settings splits at semicolons. The last four characters are full-width `+`, `-`, `=` and `@`.
"""


def csv_lines(header: Sequence[str], rows: Iterable[Sequence[Any]], batch_size: int = ROWS_PER_CHUNK) -> Iterator[str]:
    """Yield the lines of a CSV file in batches. Every field is quoted, so a semicolon in a field separates nothing."""
    remaining = iter(rows)
    batch: list[Sequence[Any]] = [header]
    while batch:
        buffer = StringIO()
        csv.writer(buffer, quoting=csv.QUOTE_ALL).writerows(map(escape_formula, row) for row in batch)
        yield buffer.getvalue()
        batch = list(islice(remaining, batch_size))


def escape_formula(value: Any) -> Any:
    """Return a value with an apostrophe before each part that a spreadsheet could run as a formula."""
    if not isinstance(value, str):
        return value
    return _FORMULA.sub("'", value.encode(errors="backslashreplace").decode())


def csv_response(
    request: HttpRequest, name: str, header: Sequence[str], rows: Iterable[Sequence[Any]]
) -> StreamingHttpResponse:
    """Return a download that is made while it is sent, under WSGI and ASGI; `name`: of the file, without suffix."""
    lines = csv_lines(header, rows)
    filename = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:80].strip("-_") or "usage"
    return StreamingHttpResponse(
        _iterate_async(lines) if isinstance(request, ASGIRequest) else lines,
        content_type="text/csv; charset=utf-8",
        headers={
            "Content-Disposition": str(content_disposition_header(as_attachment=True, filename=f"{filename}.csv")),
            "Cache-Control": "private, no-store",
        },
    )


async def _iterate_async(lines: Iterator[str]) -> AsyncIterator[str]:
    """Yield the same lines; each batch is made in a thread, since it queries the database."""
    read_next = sync_to_async(partial(next, lines, ""))
    while batch := await read_next():
        yield batch
