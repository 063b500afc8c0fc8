"""Daily counters as CSV: page by page from the database, whatever there is, in constant memory.

Each page begins where the last one ended, by the order's own index: no cursor is held open while somebody downloads
slowly, which would keep SQLite from writing, and no connection is bound to a reply.
"""

from __future__ import annotations

import csv
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from functools import partial
from io import StringIO
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db.models import Q, QuerySet
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.http import content_disposition_header

from django_quota.models import DailyCounter

PAGE = 2_000
"""Rows that are read at a time."""

NEWEST = ("-day", "subject", "rule")
BY_SUBJECT = ("subject", "day", "rule")
"""The orders that an index holds; each names one row."""

COLUMNS = ("subject", "rule", "day", "allowed", "refused")

_FORMULA = re.compile(r"""(?:^|(?<=[;,|\t\r\n"]))(?=[=+\-@\t\r\uff0b\uff0d\uff1d\uff20])""")
"""Where a spreadsheet may take the rest of a text for a formula.

That is the beginning of a cell, and behind each character that some spreadsheet takes for the end of one: with German,
French or Spanish settings Excel separates by semicolons, whatever the file does. The last four signs are the full-width
forms of the first four.
"""


def as_download(request: HttpRequest, lines: Iterator[str], name: str) -> StreamingHttpResponse:
    """Return a reply that brings lines of CSV as they are made, under ASGI too; `name`: of the file, made harmless."""
    content: Any = _async(lines) if isinstance(request, ASGIRequest) else lines
    disposition = content_disposition_header(as_attachment=True, filename=f"{file_name(name)}.csv")
    headers = {"Content-Disposition": disposition, "Cache-Control": "private, no-store"}
    return StreamingHttpResponse(content, content_type="text/csv; charset=utf-8", headers=headers)


def file_name(name: str) -> str:
    """Return a name that every file system takes."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:80].strip("-_") or "usage"


def csv_lines(rows: Iterable[Sequence[Any]], header: Sequence[str] = COLUMNS, at_a_time: int = PAGE) -> Iterator[str]:
    """Make lines of CSV of rows, some of them at a time."""
    buffer = StringIO()
    writer = csv.writer(buffer, quoting=csv.QUOTE_ALL)  # so a semicolon inside a field separates nothing
    writer.writerow(header)
    waiting = 0
    for row in rows:
        writer.writerow([cell(value) for value in row])
        waiting += 1
        if waiting == at_a_time:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
            waiting = 0
    yield buffer.getvalue()


def cell(value: Any) -> Any:
    """Return a value as a cell holds it, with an apostrophe before whatever a spreadsheet would run as a formula."""
    if not isinstance(value, str):
        return value
    return _FORMULA.sub("'", value.encode(errors="backslashreplace").decode())


def pages(queryset: QuerySet[DailyCounter], order: Sequence[str], size: int = PAGE) -> Iterator[Sequence[Any]]:
    """Read rows, as `COLUMNS` has them, page by page in an order; `order`: `NEWEST` or `BY_SUBJECT`."""
    ordered = queryset.order_by(*order)
    after = Q()
    while True:
        page = list(ordered.filter(after).values_list(*COLUMNS)[:size])
        yield from page
        if len(page) < size:
            return
        after = _after(order, dict(zip(COLUMNS, page[-1], strict=True)))


def _after(order: Sequence[str], last: dict[str, Any]) -> Q:
    """Return the condition that a row comes after another one; the first field alone bounds it, for the index."""
    behind = Q()
    for field in reversed(order):
        name = field.removeprefix("-")
        strictly = Q(**{f"{name}__{'lt' if field != name else 'gt'}": last[name]})
        behind = strictly | Q(**{name: last[name]}) & behind if behind else strictly
    first = order[0].removeprefix("-")
    return Q(**{f"{first}__{'lte' if first != order[0] else 'gte'}": last[first]}) & behind


async def _async(lines: Iterator[str]) -> AsyncIterator[str]:
    """Bring the same lines, each made where blocking is allowed."""
    following = sync_to_async(partial(next, lines, ""))
    while part := await following():
        yield part
