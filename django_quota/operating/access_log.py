"""Access logs: what a line says of its request, in the combined format and as JSON.

The first lines of a log tell its format. A format knows its fields, so that a report can name the rules that need
another field.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit
from zoneinfo import ZoneInfo

from django.utils.encoding import repercent_broken_unicode

from django_quota.conf import time_zone
from django_quota.core.clock import SECOND, microseconds_of
from django_quota.core.errors import ConfigurationError


class Entry(NamedTuple):
    """A request in a log."""

    time: int
    """When it was logged, in microseconds."""
    method: str
    path: str
    """The path, decoded, as `request.path_info` has it."""
    query: str
    status: int
    """The status of the response; 0 if the log has none."""
    meta: dict[str, str]
    """The address, the host and the headers, named as in `request.META`. Only `cookie:` keeps its name."""


class UnreadableLineError(ValueError):
    """A line that is not a request in this format; the text says why."""


_PARTS = {"request": ("method", "path", "query"), "target": ("path", "query")}
"""The fields inside other fields: those of the request line, and those of a path with its query."""

Row = dict[str, str]
"""The values of a line, by field."""


def _parts(fields: Iterable[str]) -> frozenset[str]:
    return frozenset(part for field in fields for part in _PARTS.get(field, (field,)))


class LogFormat(ABC):
    """Reads the lines of one format."""

    def __init__(self, name: str, fields: Iterable[str]) -> None:
        self.name = name
        self.fields = _parts(fields)
        """Its fields: "time", "method", "path", "query", "status", "ip", "host", "header:user-agent" or such."""
        self._meta = [(field, _meta_name(field)) for field in self.fields if field in ("ip", "host") or ":" in field]

    @abstractmethod
    def _row(self, line: str) -> Row:
        """Return the values of a line. Raises `UnreadableLineError`."""

    def read(self, line: str) -> Entry:
        """Read a line. Raises `UnreadableLineError`."""
        row = self._row(line)
        query, target = row.get("query", "").removeprefix("?"), row.get("target", "")
        if "request" in row:
            method, target = _split_request(row["request"])
        else:
            method = row.get("method", "")
            if not _METHOD.fullmatch(method):
                raise UnreadableLineError("it has no method")
        if target:
            path, of_target = _split_target(target)
            query = query or of_target
        else:
            path = row.get("path", "")
        if not path or path == "-":
            raise UnreadableLineError("it has no path")
        time = row.get("time", "")
        moment = read_time(time)
        if not 0 < moment < MAX_TIME:
            raise UnreadableLineError(f"its time is before 1970 or too late: {time!r}")
        status = row.get("status", "")[:3]
        meta = {name: value for field, name in self._meta if (value := row.get(field))}
        return Entry(
            moment, method, path, "" if query == "-" else query, int(status) if status.isdecimal() else 0, meta
        )


def _meta_name(field: str) -> str:
    """Return what `request.META` calls a field of a log."""
    if field.startswith("header:"):
        return "HTTP_" + field.removeprefix("header:").upper().replace("-", "_")
    return {"ip": "REMOTE_ADDR", "host": "HTTP_HOST"}.get(field, field)


# --- times ------------------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"(\d{9,19})(?:[.,](\d+))?")

MAX_TIME = 10**17
"""The latest time that a line may have, in the year 5138. Later ones have no next day or month to count in."""

_SCALES = ((10**11, SECOND), (10**14, 1_000), (MAX_TIME, 1))
"""Below these numbers a time is in seconds, milliseconds or microseconds; from the last one on, in nanoseconds."""


@lru_cache(maxsize=4096)
def _common_time(text: str) -> datetime:
    """Return a time such as `21/Nov/2026:04:40:00 +0000`, the format of e-mail dates with other separators."""
    day, _, clock = text.strip("[]").partition(":")
    return parsedate_to_datetime(f"{day.replace('/', ' ')} {clock}")


def read_time(text: str) -> int:
    """Return a time in microseconds: ISO 8601, as `21/Nov/2026:04:40:00 +0000`, or a number since 1970.

    A time without a zone is in the time zone of the settings. Raises `UnreadableLineError`.
    """
    number = _NUMBER.fullmatch(text)
    if number is not None:
        whole, fraction = int(number[1]), number[2] or ""
        scale = next((scale for most, scale in _SCALES if whole < most), 0)
        if not scale:
            return whole // 1_000
        return whole * scale + int(fraction[:6].ljust(6, "0")) * scale // SECOND
    try:
        moment = _common_time(text) if "/" in text else datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=ZoneInfo(time_zone()))
        return microseconds_of(moment)
    except (ValueError, OverflowError):
        raise UnreadableLineError(f"{text!r} is no time, such as 21/Nov/2026:04:40:00 +0000") from None


# --- requests ---------------------------------------------------------------------------------------------------------

_METHOD = re.compile(r"[A-Z][A-Z_-]{1,31}")
_PROTOCOL = re.compile(r"HTTP/\d(\.\d)?")
_ESCAPE = re.compile(rb'\\(?:x([0-9A-Fa-f]{2})|(["\\/]))')


def _split_request(line: str) -> tuple[str, str]:
    """Return the method and the target of a request line."""
    method, _, rest = line.partition(" ")
    target, _, protocol = rest.rpartition(" ")
    if not target or not _PROTOCOL.fullmatch(protocol):
        target = rest
    if not _METHOD.fullmatch(method) or not target.startswith(("/", "http://", "https://", "*")):
        raise UnreadableLineError("it has no request")
    return method, target


def _split_target(target: str) -> tuple[str, str]:
    """Return the decoded path and the query of a target."""
    if not target.startswith("/"):
        try:
            parts = urlsplit(target)
        except ValueError:  # http://[
            raise UnreadableLineError("it has no path") from None
        return _decoded(parts.path or target), parts.query
    path, _, query = target.partition("?")
    return _decoded(path), query


def _decoded(path: str) -> str:
    """Return a path as Django has it in `path_info`."""
    if "%" not in path and path.isascii():
        return path
    try:
        raw = path.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # half a character, as JSON can write it
        raise UnreadableLineError("its path is no text") from None
    return repercent_broken_unicode(unquote_to_bytes(raw)).decode()


def _unescaped(value: str) -> str:
    """Return a value without the escapes that servers put into a log."""
    raw = _ESCAPE.sub(
        lambda match: bytes([int(match[1], 16)]) if match[1] else match[2], value.encode(errors="surrogateescape")
    )
    return raw.decode(errors="surrogateescape")


# --- combined ---------------------------------------------------------------------------------------------------------

_QUOTED = r'"([^"\\]*(?:\\.[^"\\]*)*)"'
_COMBINED = re.compile(
    rf"(\S*) \S* \S* (\[[^\]]{{0,40}}\]) {_QUOTED} (\S*) \S*(?: {_QUOTED} {_QUOTED})?(?:\s.*)?", re.DOTALL
)
"""A line can match in one way only, so a hostile line takes no more steps than it has characters."""

_COMMON_FIELDS = ("ip", "time", "request", "status")
_COMBINED_FIELDS = (*_COMMON_FIELDS, "header:referer", "header:user-agent")


class CombinedFormat(LogFormat):
    """The combined format of nginx, Apache and gunicorn, and anything after it. Both headers may be missing."""

    def __init__(self, sample: Sequence[str]) -> None:
        found = [match for match in map(_COMBINED.fullmatch, sample) if match]
        if sample and not found:
            raise ConfigurationError(
                f"The format of the log is unknown. It begins with {sample[0][:60]!r}.",
                "Log in the combined format, or one JSON object a line.",
            )
        is_common = bool(found) and all(match[6] is None for match in found)
        super().__init__(*(("common", _COMMON_FIELDS) if is_common else ("combined", _COMBINED_FIELDS)))

    def _row(self, line: str) -> Row:
        match = _COMBINED.fullmatch(line)
        if match is None:
            raise UnreadableLineError("it is not in this format")
        is_escaped = "\\" in line
        return {
            field: "" if value == "-" else _unescaped(value) if is_escaped else value
            for field, value in zip(_COMBINED_FIELDS, match.groups(""), strict=True)
        }


# --- JSON -------------------------------------------------------------------------------------------------------------

_JSON_NAMES = {
    "time": "time @timestamp timestamp ts msec time_iso8601 time_local datetime date asctime",
    "ip": "remote_addr client_ip remote_ip ip clientip client_addr remote_host client addr",
    "request": "request request_line",
    "method": "method request_method verb http_method",
    "target": "request_uri uri url target full_path",
    "path": "path request_path",
    "query": "query query_string args",
    "host": "host http_host vhost server_name",
    "status": "status status_code response_code code",
    "header:x-forwarded-for": "x_forwarded_for http_x_forwarded_for xff forwarded_for x-forwarded-for",
    "header:user-agent": "user_agent http_user_agent agent user-agent",
    "header:referer": "referer http_referer referrer",
}
"""The usual names of each field, the best first. Of a dotted name, only the last part is compared."""


class JsonFormat(LogFormat):
    """One JSON object per line. Nested objects have dotted names: `request.uri`."""

    def __init__(self, sample: Sequence[str]) -> None:
        """Find the fields in a sample of lines. Raises `ConfigurationError` if one that a request needs is missing."""
        known: dict[str, Any] = {}
        for line in sample:
            with suppress(UnreadableLineError):
                known.update(_flat(line))
        self._names = _find(known)
        super().__init__("JSON", self._names)
        for field in ("time", "path", "method"):
            if field not in self.fields:
                hint = f"Name it {_JSON_NAMES[field].split()[0]!r} in the log."
                raise ConfigurationError(f"The JSON of the log has no {field}.", hint)

    def _row(self, line: str) -> Row:
        values = _flat(line)
        row = {field: str(value) for field, name in self._names.items() if (value := values.get(name)) is not None}
        if "?" in row.get("path", "") and "target" not in row:
            row["target"] = row["path"]
        return row


def _find(known: Iterable[str]) -> dict[str, str]:
    """Return the fields that have a usual name, with their names in the log."""
    found: dict[str, str] = {}
    by_ending: dict[str, str] = {}
    for name in sorted(known, key=lambda name: name.count(".")):
        by_ending.setdefault(name.rpartition(".")[2].lower(), name)
    for field, names in _JSON_NAMES.items():
        usual = next((by_ending[name] for name in names.split() if name in by_ending), None)
        # The request line has the method and the target already.
        if usual is not None and not _parts([field]) <= _parts(found):
            found[field] = usual
    for ending, name in by_ending.items():
        kind, _, rest = ending.partition("_")
        if kind in ("http", "cookie") and rest and name not in found.values():
            found.setdefault(f"header:{rest.replace('_', '-')}" if kind == "http" else f"cookie:{rest}", name)
    return found


def _flat(line: str) -> dict[str, Any]:
    """Return the values of a JSON object, with dotted names for nested ones. Raises `UnreadableLineError`."""
    try:
        value = json.loads(line)
        if isinstance(value, dict):
            return dict(_items(value))
    except (ValueError, RecursionError):
        pass
    raise UnreadableLineError("it is not a JSON object")


def _items(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, each in values.items():
        if isinstance(each, dict):
            yield from _items(each, f"{prefix}{name}.")
        else:
            yield prefix + name, each[0] if isinstance(each, list) and each else each


def find_format(sample: Sequence[str]) -> LogFormat:
    """Return the format of a log, by its first lines. Raises `ConfigurationError`."""
    lines = [line for line in sample if line.strip()]
    return JsonFormat(lines) if lines and lines[0].lstrip().startswith("{") else CombinedFormat(lines)
