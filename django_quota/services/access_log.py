"""Access logs: what a line says of its request, in the formats of nginx, Apache, gunicorn and uvicorn, and in JSON.

A format is found by the first lines of a log, or given as the text that configures the server: nginx' `log_format`,
Apache's `LogFormat`. It knows the fields that it has, so that a rule which needs another one can be named.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
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
    values: tuple[str, ...]
    """The values of `LogFormat.names`, as they are logged; "" for one that a line does not have."""


class UnreadableLineError(ValueError):
    """A line that is no request of this format; the text says why."""


class LogFormat(ABC):
    """Reads the lines of one format."""

    names: tuple[str, ...]
    """The fields beside time, method, path, query and status: "ip", "host", "header:user-agent", "cookie:device"."""

    def __init__(self, description: str, fields: Iterable[str]) -> None:
        self.description = description
        """The format in a word or two."""
        self.fields = found = frozenset(fields)
        """All fields that it has: the `names`, and "time", "method", "path", "query" and "status"."""
        self.names = tuple(sorted(name for name in found if name in ("ip", "host") or ":" in name))
        for field, example in _NEEDED.items():
            if field not in found:
                raise ConfigurationError(f"The log format {description} has no {field}.", f"It needs {example}.")

    @abstractmethod
    def read(self, line: str) -> Entry:
        """Read a line. Raises `UnreadableLineError`."""


_NEEDED = {
    "time": "$time_local, $time_iso8601 or $msec (nginx), %t (Apache), or --field time=NAME (JSON)",
    "path": "$request (nginx), %r (Apache), or --field path=NAME (JSON)",
    "method": "$request or $request_method (nginx), %r or %m (Apache), or --field method=NAME (JSON)",
}

PARTS_OF = {"request": ("method", "path", "query"), "target": ("path", "query")}
"""The fields that are made of one value: the request line, and the path with its query."""


def _known(field: str) -> tuple[str, ...]:
    return PARTS_OF.get(field, (field,))


# --- times ------------------------------------------------------------------------------------------------------------

_MONTHS = {name: number for number, name in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}  # noqa: SIM905
_COMMON_TIME = re.compile(r"\[?(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)\]?")
_NUMBER = re.compile(r"(\d{9,19})(?:[.,](\d+))?")

MAX_TIME = 10**17
"""The latest time that a line may have, in the year 5138. Later ones have no next day or month to count in."""

_SCALES = ((10**11, SECOND), (10**14, 1_000), (MAX_TIME, 1))
"""Up to which number a time counts seconds, milliseconds or microseconds; above them it counts nanoseconds."""


@lru_cache(maxsize=4096)
def _common_time(text: str) -> int:
    match = _COMMON_TIME.fullmatch(text)
    if match is None:
        raise UnreadableLineError(f"{text!r} is no time such as 21/Nov/2026:04:40:00 +0000")
    day, month, year, hour, minute, second, sign, hours, minutes = match.groups()
    offset = (int(hours) * 60 + int(minutes)) * 60 * SECOND * (-1 if sign == "-" else 1)
    try:
        moment = datetime(int(year), _MONTHS[month], int(day), int(hour), int(minute), min(int(second), 59), tzinfo=UTC)
    except (KeyError, ValueError):
        raise UnreadableLineError(f"{text!r} is no time") from None
    return microseconds_of(moment) - offset


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
    if "/" in text:
        return _common_time(text)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=ZoneInfo(time_zone()))
        return microseconds_of(moment)
    except (ValueError, OverflowError):
        raise UnreadableLineError(f"{text!r} is no time") from None


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
        return decoded(parts.path or target), parts.query
    path, _, query = target.partition("?")
    return decoded(path), query


def decoded(path: str) -> str:
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


def _address(value: str) -> str:
    """Return the address of a client without the port, which uvicorn adds."""
    host, _, port = value.rpartition(":")
    return host.strip("[]") if host and port.isdigit() and (host.endswith("]") or ":" not in host) else value


def _status(value: str) -> int:
    code = value[:3]
    return int(code) if code.isdecimal() else 0


Row = Mapping[str, str]
"""The raw values of a line, by field."""


def _entry(row: Row, names: Sequence[str]) -> Entry:
    """Return the entry of raw values."""
    time = row.get("time") or ""
    if not time or time == "-":
        raise UnreadableLineError("it has no time")
    query = row.get("query", "").removeprefix("?")
    target = row.get("target", "")
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
    moment = _common_time(time) if time[-5:-4] in "+-" and "/" in time else read_time(time)
    if not 0 < moment < MAX_TIME:
        raise UnreadableLineError(f"its time is before 1970 or too late: {time!r}")
    values = tuple([row.get(name, "") for name in names])
    return Entry(moment, method, path, "" if query == "-" else query, _status(row.get("status", "")), values)


# --- formats as servers configure them --------------------------------------------------------------------------------

_NGINX = {
    "args": "query",
    "document_uri": "path",
    "host": "host",
    "http_host": "host",
    "msec": "time",
    "query_string": "query",
    "remote_addr": "ip",
    "request": "request",
    "request_method": "method",
    "request_uri": "target",
    "status": "status",
    "time_iso8601": "time",
    "time_local": "time",
    "uri": "path",
}
"""The field of each variable of nginx."""

_APACHE = {
    "U": "path", "V": "host", "a": "ip", "h": "ip", "m": "method", "q": "query", "r": "request", "s": "status",
    "t": "time", "v": "host",
}  # fmt: skip
"""The field of each directive of Apache."""

_GUNICORN = {**_APACHE, "a": "header:user-agent", "f": "header:referer"}
"""The field of each name of gunicorn, which are almost those of Apache."""

_UVICORN = {
    "asctime": "time", "client_addr": "ip", "full_path": "target", "method": "method", "request_line": "request",
    "status_code": "status",
}  # fmt: skip
"""The field of each name of uvicorn, in the style of Python's logging."""

_APACHE_TIMES = ("", "sec", "msec", "usec", "begin", "begin:sec", "begin:msec", "begin:usec", "end", "end:sec",
                 "end:msec", "end:usec")  # fmt: skip

_VARIABLE = re.compile(
    r"\$(?:(?P<nginx>[a-z]\w*)|\{(?P<braced>[a-z]\w*)\})"
    r"|%\((?:\{(?P<gunicorn>[^})]+)\}(?P<kind>[a-z])|(?P<python>\w+))\)s"
    r"|%[<>!\d,]*(?:\{(?P<of>[^}]*)\})?(?P<apache>\^?[A-Za-z]{1,2}(?<=\^\w\w)|[A-Za-z%])"
)
"""A part of a format that stands for a value."""

_WITHOUT_BLANKS = frozenset({"ip", "method", "target", "status", "host", *"BDILOPTXbkl"})
"""Fields, and directives of Apache, whose values have no blanks. Each value that may have some multiplies the ways to
try for a line that is not in the format: three of them take minutes for a User-Agent of many words."""


MAX_LINE = 100_000
"""Characters of a line. No server takes a request that makes a longer one."""


def _field_of(match: re.Match[str]) -> str:
    """Return the field of a variable; "" if no rule needs it. Raises `ConfigurationError`."""
    nginx = match["nginx"] or match["braced"]
    if nginx:
        kind, underscore, name = nginx.partition("_")
        known = _NGINX.get(nginx, "")
        if known or not underscore or kind not in ("http", "cookie"):
            return known
        return f"header:{name.replace('_', '-')}" if kind == "http" else f"cookie:{name}"
    if match["gunicorn"]:
        return f"header:{match['gunicorn'].lower()}" if match["kind"] == "i" else ""
    if match["python"]:
        return _GUNICORN.get(match["python"], "") or _UVICORN.get(match["python"], "")
    return _apache_field(match["apache"], match["of"] or "", match[0])


def _apache_field(letter: str, of: str, directive: str) -> str:
    """Return the field of a directive of Apache with what is in its braces."""
    if letter == "t" and of not in _APACHE_TIMES:
        raise ConfigurationError(f"The log format has {directive!r}, which cannot be read.", "Use %t or %{msec}t.")
    if letter == "i" and of:
        return "host" if of.lower() == "host" else f"header:{of.lower()}"
    if letter == "C" and of:
        return f"cookie:{of}"
    return _APACHE.get(letter, "")


class PatternFormat(LogFormat):
    """A format as nginx' `log_format` or Apache's `LogFormat` says it: variables, and text between them."""

    def __init__(self, text: str, description: str = "", *, is_open: bool = False) -> None:
        """Read a format. `is_open`: lines may have more behind it. Raises `ConfigurationError`."""
        self._fields: list[str] = []
        expression, at = "", 0
        for match in _VARIABLE.finditer(text):
            before, at = text[at : match.start()], match.end()
            if match["apache"] == "%":
                expression += re.escape(before + "%")
                continue
            expression += re.escape(before) + self._group(_field_of(match), match, text)
        expression += re.escape(text[at:])
        self._match = re.compile(expression + (r"(?:\s.*)?" if is_open else r"\s*"), re.DOTALL).fullmatch
        fields = [part for field in self._fields for part in _known(field)]
        super().__init__(description or repr(text), fields)

    def _group(self, field: str, match: re.Match[str], text: str) -> str:
        """Return the expression of a variable."""
        before, behind = text[match.start() - 1 : match.start()], text[match.end() : match.end() + 1]
        if before == behind == '"':
            expression = r'[^"\\]*(?:\\.[^"\\]*)*'
        elif before == "[" and behind == "]":
            expression = r"[^\]]{0,40}" if field == "time" else r"[^\]]*"
        elif field == "time" and match["nginx"] is None and match["braced"] is None and match["apache"] == "t":
            expression = r"\[[^\]]{0,40}\]|\d{1,20}"
        elif match["python"] == "t":  # of gunicorn
            expression = r"\[[^\]]{0,40}\]"
        elif match["python"] == "status_code":  # of uvicorn: "404 Not Found"
            expression = r"\d+(?: [A-Za-z' -]+)?"
        elif match["apache"] == "q":
            expression = r"\?\S*|"
        elif match["apache"] == "p":
            expression = r"\d*"
        elif (field or match["apache"] or match["python"]) in _WITHOUT_BLANKS:
            expression = r"\S*"
        else:
            expression = r".*?"
        if not field or field in self._fields:
            return f"(?:{expression})"
        self._fields.append(field)
        return f"({expression})"

    def read(self, line: str) -> Entry:
        """Read a line. Raises `UnreadableLineError`."""
        match = self._match(line) if len(line) <= MAX_LINE else None
        if match is None:
            raise UnreadableLineError("it is not in this format")
        row = dict(zip(self._fields, match.groups(), strict=True))
        if "\\" in line:
            row = {field: _unescaped(value) for field, value in row.items()}
        for field, value in row.items():
            if value == "-":
                row[field] = ""
        if "ip" in row:
            row["ip"] = _address(row["ip"])
        return _entry(row, self.names)


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

    def __init__(self, sample: Sequence[str], mapping: Mapping[str, str] | None = None) -> None:
        """Find the fields in a sample of lines. `mapping`: the name of a field in the log, by field."""
        known: dict[str, None] = {}
        for line in sample:
            known.update(dict.fromkeys(_flat(line) or ()))
        for field, name in (mapping or {}).items():
            if known and name not in known:
                raise ConfigurationError(
                    f"--field {field}={name}: no line has {name!r}.", did_you_mean(name, known).strip()
                )
        self._found = self._find(known, dict(mapping or {}))
        super().__init__("JSON", [part for field in self._found for part in _known(field)])

    def _find(self, known: Iterable[str], found: dict[str, str]) -> dict[str, str]:
        """Add the fields that have a usual name to those that are `found`; return all."""
        by_ending: dict[str, str] = {}
        for name in sorted(known, key=lambda name: name.count(".")):
            by_ending.setdefault(name.rpartition(".")[2].lower(), name)
        for field, names in _JSON_NAMES.items():
            usual = next((by_ending[name] for name in names.split() if name in by_ending), None)
            if usual is not None and not self._is_made_of(found, field):
                found.setdefault(field, usual)
        for ending, name in by_ending.items():
            for prefix, kind in (("http_", "header:"), ("cookie_", "cookie:")):
                rest = ending.removeprefix(prefix)
                if rest != ending and name not in found.values():
                    found.setdefault(kind + (rest.replace("_", "-") if kind == "header:" else rest), name)
        if "header:host" in found:
            found.setdefault("host", found.pop("header:host"))
        return found

    @staticmethod
    def _is_made_of(found: Mapping[str, str], field: str) -> bool:
        """Say whether a better field has the same: the request line has the method and the target."""
        known = {part for other in found for part in _known(other)}
        return all(part in known for part in _known(field))

    def read(self, line: str) -> Entry:
        """Read a line. Raises `UnreadableLineError`."""
        values = _flat(line)
        if values is None:
            raise UnreadableLineError("it is not a JSON object")
        row = {}
        for field, name in self._found.items():
            value = values.get(name)
            if value is not None:
                row[field] = value if isinstance(value, str) else str(value)
        if "ip" in row:
            row["ip"] = _address(row["ip"])
        if "path" in row and "?" in row["path"] and "target" not in row:
            row["target"] = row["path"]
        return _entry(row, self.names)


def _flat(line: str) -> dict[str, Any] | None:
    """Return the values of a JSON object, with dotted names for nested ones; None if it is none."""
    flat: dict[str, Any] = {}
    try:
        value = json.loads(line)
        if not isinstance(value, dict):
            return None
        if not any(isinstance(each, (dict, list)) for each in value.values()):
            return value
        _flatten(value, "", flat)
    except (ValueError, RecursionError):
        return None
    return flat


def _flatten(value: Mapping[str, Any], prefix: str, flat: dict[str, Any]) -> None:
    for name, each in value.items():
        if isinstance(each, dict):
            _flatten(each, f"{prefix}{name}.", flat)
        else:
            flat[prefix + name] = each[0] if isinstance(each, list) and each else each


# --- the format of a log ----------------------------------------------------------------------------------------------

_COMMON = '%h %l %u %t "%r" %>s %b'
COMMON = PatternFormat(_COMMON, "common", is_open=True)
COMBINED = PatternFormat(f'{_COMMON} "%{{Referer}}i" "%{{User-Agent}}i"', "combined", is_open=True)
WITH_HOST = PatternFormat(f'%v:%p {_COMMON} "%{{Referer}}i" "%{{User-Agent}}i"', "combined with a host", is_open=True)

NAMED: dict[str, Callable[[], LogFormat]] = {
    "combined": lambda: COMBINED,
    "common": lambda: COMMON,
    "vhost_combined": lambda: WITH_HOST,
}
"""The formats that have a name, beside "json"."""

_EXAMPLE = "combined, common, json, or the text that configures your server: '$remote_addr [$msec] \"$request\"'"


def find_format(sample: Sequence[str], given: str = "auto", mapping: Mapping[str, str] | None = None) -> LogFormat:
    """Return the format of a log.

    `sample`: its first lines. `given`: "auto", the name of a format, or the text that configures the server.
    `mapping`: names of fields in a JSON log. Raises `ConfigurationError`.
    """
    lines = [line for line in sample if line.strip()]
    is_json = given == "json" or (given == "auto" and bool(lines) and lines[0].lstrip().startswith("{"))
    if mapping and not is_json:
        name, field = next(iter(mapping.items()))
        raise ConfigurationError(
            f"--field {name}={field} is only for JSON, and this log is not JSON.", "Use --format to say its fields."
        )
    if is_json:
        return JsonFormat(lines, mapping)
    if given in NAMED:
        return NAMED[given]()
    if given == "auto":
        return _detected(lines)
    if not _VARIABLE.search(given):
        known = did_you_mean(given, [*NAMED, "auto", "json"])
        hint = known.strip() if "mean" in known else f"Use {_EXAMPLE}."
        raise ConfigurationError(f"--format {given!r} is no format of a log.", hint)
    return PatternFormat(given)


def _detected(lines: Sequence[str]) -> LogFormat:
    """Return the named format that reads most of the lines, the richest first."""
    best, most = COMBINED, 0
    for candidate in (WITH_HOST, COMBINED, COMMON):
        number = sum(_reads(candidate, line) for line in lines)
        if number > most:
            best, most = candidate, number
    if not most and lines:
        raise ConfigurationError(
            f"The format of the log is unknown. It begins with {lines[0][:60]!r}.", f"Use --format with {_EXAMPLE}."
        )
    return best


def _reads(candidate: LogFormat, line: str) -> bool:
    try:
        return bool(candidate.read(line).values[candidate.names.index("ip")])
    except UnreadableLineError:
        return False
