"""CSV downloads, streamed under WSGI and ASGI."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.http import content_disposition_header

from django_quota.features.usage.spreadsheets import csv_lines


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
