"""Access logs: what a line says of its request, in the formats of nginx, Apache, gunicorn and uvicorn, and in JSON.

A format is found by the first lines of a log, or given as the text that configures the server: nginx' `log_format`,
Apache's `LogFormat`. It knows the fields that it has, so that a rule which needs another one can be named.
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
from django_quota.core.errors import ConfigurationError, did_you_mean


class Entry(NamedTuple):
    """A request in a log."""

    time: int
    """When it was logged, in microseconds."""
    method: str
    path: str
    """The path, decoded, as `request.path_info` has it."""
    query: str
    status: int
    """The status of its response; 0 if the log does not have it."""
    meta: dict[str, str]
    """The address, the host and the headers that the line has, as `request.META` names them. `cookie:` stays."""


class UnreadableLineError(ValueError):
    """A line that is no request of this format; the text says why."""


PARTS_OF = {"request": ("method", "path", "query"), "target": ("path", "query")}
"""The fields that are made of one value: the request line, and the path with its query."""

_NEEDED = {
    "time": "$time_local, $time_iso8601 or $msec (nginx), %t (Apache), or --field time=NAME (JSON)",
    "path": "$request (nginx), %r (Apache), or --field path=NAME (JSON)",
    "method": "$request or $request_method (nginx), %r or %m (Apache), or --field method=NAME (JSON)",
}

Row = dict[str, str]
"""The values of a line, by field."""


def _parts(fields: Iterable[str]) -> Iterator[str]:
    for field in fields:
        yield from PARTS_OF.get(field, (field,))


class LogFormat(ABC):
    """Reads the lines of one format."""

    def __init__(self, description: str, fields: Iterable[str]) -> None:
        self.description = description
        """The format in a word or two."""
        self.fields = frozenset(_parts(fields))
        """What it has: "time", "method", "path", "query", "status", "ip", "host", "header:user-agent" or such."""
        self._meta = [(field, _meta_name(field)) for field in self.fields if field in ("ip", "host") or ":" in field]
        for field, example in _NEEDED.items():
            if field not in self.fields:
                raise ConfigurationError(f"The log format {description} has no {field}.", f"It needs {example}.")

    @abstractmethod
    def _row(self, line: str) -> Row:
        """Return the values of a line. Raises `UnreadableLineError`."""

    def read(self, line: str) -> Entry:
        """Read a line. Raises `UnreadableLineError`."""
        row = self._row(line)
        time = row.get("time") or ""
        if not time or time == "-":
            raise UnreadableLineError("it has no time")
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
        moment = read_time(time)
        if not 0 < moment < MAX_TIME:
            raise UnreadableLineError(f"its time is before 1970 or too late: {time!r}")
        status = row.get("status", "")[:3]
        meta = {name: value for field, name in self._meta if (value := row.get(field))}
        if "REMOTE_ADDR" in meta:
            meta["REMOTE_ADDR"] = _without_port(meta["REMOTE_ADDR"])
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
"""Up to which number a time counts seconds, milliseconds or microseconds; above them it counts nanoseconds."""


@lru_cache(maxsize=4096)
def _common_time(text: str) -> datetime:
    """Return a time such as `21/Nov/2026:04:40:00 +0000`, which is that of an email but for its signs."""
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


def _without_port(address: str) -> str:
    """Return the address of a client without the port, which uvicorn adds."""
    host, _, port = address.rpartition(":")
    return host.strip("[]") if host and port.isdigit() and (host.endswith("]") or ":" not in host) else address


# --- formats as servers configure them --------------------------------------------------------------------------------

_NGINX = {
    "args": "query", "document_uri": "path", "host": "host", "http_host": "host", "msec": "time",
    "query_string": "query", "remote_addr": "ip", "request": "request", "request_method": "method",
    "request_uri": "target", "status": "status", "time_iso8601": "time", "time_local": "time", "uri": "path",
}  # fmt: skip
"""The field of each variable of nginx."""

_APACHE = {
    "U": "path", "V": "host", "a": "ip", "h": "ip", "m": "method", "q": "query", "r": "request", "s": "status",
    "t": "time", "v": "host",
}  # fmt: skip
"""The field of each directive of Apache."""

_PYTHON = {
    **_APACHE, "a": "header:user-agent", "f": "header:referer", "asctime": "time", "client_addr": "ip",
    "full_path": "target", "method": "method", "request_line": "request", "status_code": "status",
}  # fmt: skip
"""The field of each name of gunicorn, which are almost those of Apache, and of uvicorn."""

_APACHE_TIMES = ("", "sec", "msec", "usec", "begin", "begin:sec", "begin:msec", "begin:usec", "end", "end:sec",
                 "end:msec", "end:usec")  # fmt: skip

_VARIABLE = re.compile(
    r"\$(?:(?P<nginx>[a-z]\w*)|\{(?P<braced>[a-z]\w*)\})"
    r"|%\((?:\{(?P<gunicorn>[^})]+)\}(?P<kind>[a-z])|(?P<python>\w+))\)s"
    r"|%[<>!\d,]*(?:\{(?P<of>[^}]*)\})?(?P<apache>\^?[A-Za-z]{1,2}(?<=\^\w\w)|[A-Za-z%])"
)
"""A part of a format that stands for a value."""

_SHAPES = {
    "%t": r"\[[^\]]{0,40}\]|\d{1,20}",
    "%q": r"\?\S*|",
    "%p": r"\d*",
    "(t)": r"\[[^\]]{0,40}\]",
    "(status_code)": r"\d+(?: [A-Za-z' -]+)?",  # of uvicorn: "404 Not Found"
    '""': r'[^"\\]*(?:\\.[^"\\]*)*',
    "[]": r"[^\]]*",
    "[time]": r"[^\]]{0,40}",
}
"""The expression of a directive of Apache, of a name of Python, and of what is in quotes or brackets."""

_WITHOUT_BLANKS = frozenset({"ip", "method", "target", "status", "host", *"BDILOPTXbkl"})
"""Fields, and directives of Apache, whose values have no blanks. Each value that may have some multiplies the ways to
try for a line that is not in the format: three of them take minutes for a User-Agent of many words."""

MAX_LINE = 100_000
"""Characters of a line. No server takes a request that makes a longer one."""


def _field_of(match: re.Match[str]) -> str:
    """Return the field of a variable; "" if no rule needs it. Raises `ConfigurationError`."""
    nginx, of = match["nginx"] or match["braced"], match["of"] or ""
    if nginx:
        kind, _, name = nginx.partition("_")
        if nginx in _NGINX or not name or kind not in ("http", "cookie"):
            return _NGINX.get(nginx, "")
        return f"header:{name.replace('_', '-')}" if kind == "http" else f"cookie:{name}"
    if match["gunicorn"]:
        return f"header:{match['gunicorn'].lower()}" if match["kind"] == "i" else ""
    if match["python"]:
        return _PYTHON.get(match["python"], "")
    if match["apache"] == "t" and of not in _APACHE_TIMES:
        raise ConfigurationError(f"The log format has {match[0]!r}, which cannot be read.", "Use %t or %{msec}t.")
    if match["apache"] == "i" and of:
        return "host" if of.lower() == "host" else f"header:{of.lower()}"
    return f"cookie:{of}" if match["apache"] == "C" and of else _APACHE.get(match["apache"], "")


def _shape_of(field: str, match: re.Match[str]) -> str:
    """Return the expression of a variable's value."""
    name = match["apache"] or match["python"] or ""
    around = match.string[match.start() - 1 : match.start()] + match.string[match.end() : match.end() + 1]
    if around == '""':
        return _SHAPES[around]
    if around == "[]":
        return _SHAPES["[time]" if field == "time" else around]
    known = _SHAPES.get(f"({name})" if match["python"] else f"%{name}")
    return known or (r"\S*" if (field or name) in _WITHOUT_BLANKS else r".*?")


class PatternFormat(LogFormat):
    """A format as nginx' `log_format` or Apache's `LogFormat` says it: variables, and text between them."""

    def __init__(self, text: str, description: str = "", *, is_open: bool = False) -> None:
        """Read a format. `is_open`: lines may have more behind it. Raises `ConfigurationError`."""
        self._fields: list[str] = []
        expression, at = "", 0
        for match in _VARIABLE.finditer(text):
            expression += re.escape(text[at : match.start()])
            at = match.end()
            if match["apache"] == "%":
                expression += "%"
                continue
            field = _field_of(match)
            is_wanted = bool(field) and field not in self._fields
            expression += f"({'' if is_wanted else '?:'}{_shape_of(field, match)})"
            self._fields += [field] * is_wanted
        expression += re.escape(text[at:])
        self._match = re.compile(expression + (r"(?:\s.*)?" if is_open else r"\s*"), re.DOTALL).fullmatch
        super().__init__(description or repr(text), self._fields)

    def _row(self, line: str) -> Row:
        match = self._match(line) if len(line) <= MAX_LINE else None
        if match is None:
            raise UnreadableLineError("it is not in this format")
        is_escaped = "\\" in line
        return {
            field: "" if value == "-" else _unescaped(value) if is_escaped else value
            for field, value in zip(self._fields, match.groups(), strict=True)
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
"""The usual names of each field, the best first. A name in a nested object counts by its last part."""


class JsonFormat(LogFormat):
    """A JSON object a line. Nested objects have dotted names: `request.uri`."""

    def __init__(self, sample: Sequence[str], mapping: Mapping[str, str]) -> None:
        """Find the fields in a sample of lines. `mapping`: the name of a field in the log, by field."""
        known: dict[str, Any] = {}
        for line in sample:
            with suppress(UnreadableLineError):
                known.update(_flat(line))
        for field, name in mapping.items():
            if known and name not in known:
                raise ConfigurationError(
                    f"--field {field}={name}: no line has {name!r}.", did_you_mean(name, known).strip()
                )
        self._names = self._find(known, dict(mapping))
        super().__init__("JSON", self._names)

    @staticmethod
    def _find(known: Iterable[str], found: dict[str, str]) -> dict[str, str]:
        """Add the fields that have a usual name to those that are `found`; return all."""
        by_ending: dict[str, str] = {}
        for name in sorted(known, key=lambda name: name.count(".")):
            by_ending.setdefault(name.rpartition(".")[2].lower(), name)
        for field, names in _JSON_NAMES.items():
            usual = next((by_ending[name] for name in names.split() if name in by_ending), None)
            # The request line has the method and the target already.
            if usual is not None and not {*_parts([field])} <= {*_parts(found)}:
                found.setdefault(field, usual)
        for ending, name in by_ending.items():
            kind, _, rest = ending.partition("_")
            if kind in ("http", "cookie") and rest and name not in found.values():
                found.setdefault(f"header:{rest.replace('_', '-')}" if kind == "http" else f"cookie:{rest}", name)
        if "header:host" in found:
            found.setdefault("host", found.pop("header:host"))
        return found

    def _row(self, line: str) -> Row:
        values = _flat(line)
        row = {field: str(value) for field, name in self._names.items() if (value := values.get(name)) is not None}
        if "?" in row.get("path", "") and "target" not in row:
            row["target"] = row["path"]
        return row


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


# --- the format of a log ----------------------------------------------------------------------------------------------

_COMMON = '%h %l %u %t "%r" %>s %b'
_COMBINED = f'{_COMMON} "%{{Referer}}i" "%{{User-Agent}}i"'

NAMED: dict[str, LogFormat] = {
    "vhost_combined": PatternFormat(f"%v:%p {_COMBINED}", "combined with a host", is_open=True),
    "combined": PatternFormat(_COMBINED, "combined", is_open=True),
    "common": PatternFormat(_COMMON, "common", is_open=True),
}
"""The formats that have a name, beside "json", the richest first."""

_EXAMPLE = "combined, common, json, or the text that configures your server: '$remote_addr [$msec] \"$request\"'"


def find_format(sample: Sequence[str], given: str = "auto", mapping: Mapping[str, str] | None = None) -> LogFormat:
    """Return the format of a log.

    `sample`: its first lines. `given`: "auto", the name of a format, or the text that configures the server.
    `mapping`: names of fields in a JSON log. Raises `ConfigurationError`.
    """
    lines = [line for line in sample if line.strip()]
    if given == "json" or (given == "auto" and lines and lines[0].lstrip().startswith("{")):
        return JsonFormat(lines, mapping or {})
    if mapping:
        name, field = next(iter(mapping.items()))
        raise ConfigurationError(
            f"--field {name}={field} is only for JSON, and this log is not JSON.", "Use --format to say its fields."
        )
    if given in NAMED:
        return NAMED[given]
    if given == "auto":
        return _detected(lines)
    if not _VARIABLE.search(given):
        known = did_you_mean(given, [*NAMED, "auto", "json"])
        hint = known.strip() if "mean" in known else f"Use {_EXAMPLE}."
        raise ConfigurationError(f"--format {given!r} is no format of a log.", hint)
    return PatternFormat(given)


def _detected(lines: Sequence[str]) -> LogFormat:
    """Return the named format that reads most of the lines."""
    numbers = {each: sum(_reads(each, line) for line in lines) for each in NAMED.values()}
    if lines and not any(numbers.values()):
        raise ConfigurationError(
            f"The format of the log is unknown. It begins with {lines[0][:60]!r}.", f"Use --format with {_EXAMPLE}."
        )
    return max(numbers, key=numbers.__getitem__)


def _reads(candidate: LogFormat, line: str) -> bool:
    try:
        return "REMOTE_ADDR" in candidate.read(line).meta
    except UnreadableLineError:
        return False
