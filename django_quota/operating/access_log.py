"""Access logs: reads the request in a line, in the combined format or as JSON. The first lines decide the format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes
from zoneinfo import ZoneInfo

from django.utils.encoding import repercent_broken_unicode

from django_quota.conf import time_zone
from django_quota.core.clock import SECOND, microseconds_of
from django_quota.core.errors import ConfigurationError

MAX_TIME = 10**17
"""The latest time that a line may have, in the year 5138: far below the last year that Python can count in."""


class LogLine(NamedTuple):
    """A request in a log."""

    time: int
    """When it was logged, in microseconds since 1970."""
    method: str
    path: str
    """The path, decoded, as `request.path_info` has it."""
    query: str
    meta: dict[str, str]
    """The address, the host and the headers, named as in `request.META`. Only `cookie:` keeps its name."""


class UnreadableLineError(ValueError):
    """A line that is not a request in this format; the message says why."""


LogFields = dict[str, str]
"""The values of a line, by field: "time", "request" or "method" and "path", "query", "ip", "host", "header:..."."""


class LogFormat(NamedTuple):
    """Reads the lines of one format."""

    name: str
    fields: frozenset[str]
    """The fields of its lines. A report names the rules that need any other field."""
    row: Callable[[str], LogFields]
    """Returns the values of a line. Raises `UnreadableLineError`."""

    def read(self, line: str, latest: int = 0) -> LogLine:
        """Read a line. Raises `UnreadableLineError`. `latest`: the time of the line before, see `read_time`."""
        row = self.row(line)
        method, target = row.get("method", ""), row.get("path", "")
        if "request" in row:
            method, _, target = row["request"].partition(" ")
        path, _, query = _AROUND_TARGET.sub("", target).partition("?")
        if not _METHOD.fullmatch(method) or not path.startswith("/"):
            raise UnreadableLineError("it has no request")
        meta = {name: value for field in self.fields if (name := _meta_name(field)) and (value := row.get(field))}
        query = (query or row.get("query", "")).removeprefix("?").removeprefix("-")
        return LogLine(read_time(row.get("time", ""), latest), method, _decoded(path), query, meta)


_METHOD = re.compile(r"[A-Z][A-Z_-]{1,31}")
_AROUND_TARGET = re.compile(r"\Ahttps?://[^/?\s]*|(?<=\S) HTTP/\d(?:\.\d)?\Z")
_ESCAPE = re.compile(rb'\\(?:x([0-9A-Fa-f]{2})|(["\\/]))')


def _meta_name(field: str) -> str:
    """Return what `request.META` calls a field of a log; empty for a field that it does not have."""
    kind, colon, name = field.partition(":")
    if kind == "header":
        return "HTTP_" + name.upper().replace("-", "_")
    return field if colon else {"ip": "REMOTE_ADDR", "host": "HTTP_HOST"}.get(field, "")


def _decoded(path: str) -> str:
    """Return a path as Django has it in `path_info`."""
    if "%" not in path and path.isascii():
        return path
    try:
        raw = path.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # half a character, as JSON can write it
        raise UnreadableLineError("its path is not a string") from None
    return repercent_broken_unicode(unquote_to_bytes(raw)).decode()


# --- times ------------------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"(?:\d{9,10}|\d{12,13}|\d{15,16}|\d{18,19})(?:[.,]\d+)?")
"""Seconds, milliseconds, microseconds or nanoseconds since 1970; 20261121044000 is none of them."""


def read_time(text: str, latest: int = 0) -> int:
    """Return a time in microseconds: ISO 8601, as `21/Nov/2026:04:40:00 +0000`, or a number since 1970.

    A number may count seconds, milliseconds, microseconds or nanoseconds. A time without a zone is in the time
    zone of the settings. If the clock there shows it twice, it is the one nearer to `latest`, the time of the line
    before. Raises `UnreadableLineError`.
    """
    if _NUMBER.fullmatch(text):
        number = float(text.replace(",", "."))
        times = (round(number * scale) for scale in (SECOND, 1_000, 1, 0.001))
        time = next(time for time in times if time < MAX_TIME)
    else:
        try:
            moment = _common_time(text) if "/" in text else datetime.fromisoformat(text)
            time = microseconds_of(moment) if moment.tzinfo else _local_time(moment, latest)
        except (ValueError, OverflowError):
            raise UnreadableLineError(f"{text!r} is not a time, such as 21/Nov/2026:04:40:00 +0000") from None
    if not 0 < time < MAX_TIME:
        raise UnreadableLineError(f"its time is before 1970 or too far in the future: {text!r}")
    return time


def _local_time(moment: datetime, latest: int) -> int:
    first, second = (microseconds_of(moment.replace(tzinfo=ZoneInfo(time_zone()), fold=fold)) for fold in (0, 1))
    return second if first < second and latest - first > second - latest else first


def _common_time(text: str) -> datetime:
    """Return a time such as `21/Nov/2026:04:40:00 +0000`, the format of e-mail dates with other separators."""
    day, _, clock = text.strip("[]").partition(":")
    return parsedate_to_datetime(f"{day.replace('/', ' ')} {clock}")


# --- the formats ------------------------------------------------------------------------------------------------------


def find_format(sample: Sequence[str]) -> LogFormat:
    """Return the format of a log, by its first lines. Raises `ConfigurationError`."""
    lines = [line for line in sample if line.strip()]
    return _json_format(lines) if lines and lines[0].lstrip().startswith("{") else _combined_format(lines)


_QUOTED = r'"([^"\\]*(?:\\.[^"\\]*)*)"'
_USER = r'[^"\\]*(?:\\.[^"\\]*)*'
"""The name of Basic authentication, which the client chooses: it may have blanks, and quotes that are escaped."""

_COMBINED = re.compile(
    rf"(\S*) \S* {_USER} (\[[^\]\"\\]{{0,40}}\]) {_QUOTED} \S* \S*(?: {_QUOTED} {_QUOTED})?(?:\s.*)?", re.DOTALL
)
"""The time ends right before the first quote. A hostile line takes about as many steps as it has characters."""

_COMBINED_FIELDS = ("ip", "time", "request", "header:referer", "header:user-agent")


def _combined_format(sample: Sequence[str]) -> LogFormat:
    """Return the format of nginx, Apache and gunicorn, with anything after it. Both headers may be missing."""
    found = [match for match in map(_COMBINED.fullmatch, sample) if match]
    if sample and not found:
        raise ConfigurationError(
            f"The format of the log is unknown. It begins with {sample[0][:60]!r}.",
            "Log in the combined format, or one JSON object a line.",
        )
    is_common = bool(found) and all(match[4] is None for match in found)
    fields = _COMBINED_FIELDS[:3] if is_common else _COMBINED_FIELDS
    return LogFormat("common" if is_common else "combined", frozenset(fields), _combined_row)


def _combined_row(line: str) -> LogFields:
    match = _COMBINED.fullmatch(line)
    if match is None:
        raise UnreadableLineError("it is not in this format")
    values = map(_unescaped, match.groups("")) if "\\" in line else match.groups("")
    return {field: "" if value == "-" else value for field, value in zip(_COMBINED_FIELDS, values, strict=True)}


def _unescaped(value: str) -> str:
    """Return a value without the escapes that servers put into a log."""
    raw = _ESCAPE.sub(
        lambda match: bytes([int(match[1], 16)]) if match[1] else match[2], value.encode(errors="surrogateescape")
    )
    return raw.decode(errors="surrogateescape")


_JSON_NAMES = {
    "time": "time @timestamp timestamp ts msec time_iso8601 time_local",
    "ip": "remote_addr client_ip remote_ip ip clientip",
    "request": "request",
    "method": "method request_method verb",
    "path": "request_uri uri url target path",
    "query": "query query_string args",
    "host": "host http_host vhost",
    "header:x-forwarded-for": "x_forwarded_for xff",
    "header:user-agent": "user_agent",
    "header:referer": "referer",
}
"""The usual names of each field, the best first. `http_<name>` is any header, `cookie_<name>` any cookie."""


def _json_format(sample: Sequence[str]) -> LogFormat:
    """Return the format of one JSON object a line. Raises `ConfigurationError` if it has no time or no request."""
    names: dict[str, str] = {}
    for line in sample:
        with suppress(UnreadableLineError):
            deepest_first = sorted(_flat(line), key=lambda name: -name.count("."))
            names |= {_json_name(name): name for name in deepest_first}
    found: dict[str, str] = {}
    for field, usual in _JSON_NAMES.items():
        best_first = sorted(filter(names.__contains__, usual.split()), key=lambda name: names[name].count("."))
        if best_first:
            found[field] = names[best_first[0]]  # the fields of the server itself are at the top level
    for name, given in names.items():
        kind, _, rest = name.partition("_")
        is_host = name == "http_host"  # already found, as a usual name of the host
        if kind in ("http", "cookie") and rest and not is_host:
            found.setdefault(f"header:{rest.replace('_', '-')}" if kind == "http" else f"cookie:{rest}", given)
    for field in ("time", "request") if "request" in found else ("time", "method", "path"):
        if field not in found:
            hint = f"Name it {_JSON_NAMES[field].split()[0]!r} in the log."
            raise ConfigurationError(f"The JSON of the log has no {field}.", hint)

    def row(line: str) -> LogFields:
        values = _flat(line)
        return {field: str(value) for field, name in found.items() if (value := values.get(name)) is not None}

    return LogFormat("JSON", frozenset(found), row)


def _json_name(name: str) -> str:
    """Return a name as in `_JSON_NAMES`: of a nested name, such as `request.uri`, only the last part.

    A client chooses the names of its headers, so everything in an object of headers is a header, whatever its name. For
    headers of the response, the name is empty.
    """
    *within, last = name.lower().replace("-", "_").split(".")
    if any("header" in each for each in within):
        return "" if any(each.startswith("resp") for each in within) else f"http_{last}"
    return last


def _flat(line: str) -> dict[str, Any]:
    """Return the values of a JSON object, with dotted names for nested ones. Raises `UnreadableLineError`."""
    with suppress(ValueError, RecursionError):
        value = json.loads(line)
        if isinstance(value, dict):
            return dict(_items(value))
    raise UnreadableLineError("it is not a JSON object")


def _items(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, each in values.items():
        if isinstance(each, dict):
            yield from _items(each, f"{prefix}{name}.")
        else:
            yield prefix + name, each[0] if isinstance(each, list) and each else each
