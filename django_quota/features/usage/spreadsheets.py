"""Usage as CSV: made in constant memory, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import islice
from typing import Any

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
