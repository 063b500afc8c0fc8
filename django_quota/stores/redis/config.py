"""What the settings of a Redis say: its servers, its time-outs, and its passwords, which no text may show."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from redis.connection import parse_url

ANSWER_TIMEOUT = 0.25
"""Seconds to connect, and to wait for a reply, unless the settings say."""

PLAIN_TIMEOUT = 2.0
"""The same for the plain commands of the admin and of `manage.py`."""

LONG_TIMEOUT = 2.0
"""Seconds above which a time-out gets a warning. While Redis hangs, each thread that asks it is blocked that long."""

TIMEOUTS = ("socket_timeout", "socket_connect_timeout")


DEFAULT_PORT = 6379


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def with_timeouts(options: Mapping[str, Any], seconds: float = ANSWER_TIMEOUT) -> dict[str, Any]:
    """Return the options of a connection, with short time-outs if there are none."""
    return {**options, **{name: seconds for name in TIMEOUTS if options.get(name) is None}}


def is_timeout(value: Any) -> bool:
    """Say whether a socket can wait for this time: a number of seconds above 0."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 < value <= threading.TIMEOUT_MAX


# --- LOCATION ---------------------------------------------------------------------------------------------------------

QUOTE_HINT = (
    "Write signs such as / ? # @ : , in a user's name or password as %2F, %3F, %23, %40, %3A and %2C, as "
    'urllib.parse.quote(password, safe="") does.'
)

_USER = re.compile(r"^((?:[a-z][a-z0-9+.-]*:)?(?://)?).*@", re.IGNORECASE | re.DOTALL)
_IN_QUERY = re.compile(r"((?:username|password)=)[^&]*", re.IGNORECASE)


def locations(location: object, separators: str = ",") -> list[str]:
    """Return the URLs of a LOCATION, at least one. By default, they are separated as in django-redis."""
    given: Iterable[object] = (
        re.split(f"[{separators}]", location) if isinstance(location, str) else cast("Iterable[object]", location)
    )
    return [str(url).strip() for url in given] or [""]


def parse_location(url: str) -> Mapping[str, Any]:
    """Return the parts of a URL, as redis-py reads it. Raises `ValueError`; its text holds no password."""
    parse: Any = parse_url  # redis-py leaves it untyped
    try:
        return cast("Mapping[str, Any]", parse(url))
    except ValueError as error:  # its text may hold a part of the password
        shown = without_password(url) if "@" in url else f"{url.rpartition(':')[0]}:..."
        is_port = str(error).startswith("Port ")
        problem = "has no port from 0 to 65535" if is_port else "cannot be read as a Redis URL"
        raise ValueError(f"{shown!r} {problem}") from None


def address_of(url: str) -> Address:
    """Return the address of the server in a URL. Raises `ValueError` if the URL has none."""
    parts = parse_location(url)
    if "host" not in parts:
        raise ValueError(f"{without_password(url)!r} names no host")
    return Address(parts["host"], int(parts.get("port", DEFAULT_PORT)))


def without_password(url: str) -> str:
    """Return a URL, or what should be one, without its user and password."""
    return _IN_QUERY.sub(r"\1***", _USER.sub(r"\1***@", url))


def unquoted_password_problem(url: str) -> str | None:
    """Say which sign in a password cuts the URL short; None if there is none.

    redis-py takes the text before such a sign for the host, and reports nothing.
    """
    scheme, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    options = (part.partition("=") for part in query.split("&"))
    if "#" in rest:
        sign = "#"
    elif "@" in place.partition("/")[2] and scheme != "unix":  # the path of a socket may have one
        sign = "/"
    elif any("@" in name or ("@" in value and not _MAY_HOLD_AT.match(name)) for name, _, value in options):
        sign = "?"
    else:
        return None
    return f"a {sign} that is not percent-encoded ends the server's name early in {_from_the_host(scheme, rest)!r}"


_MAY_HOLD_AT = re.compile(r"username$|password$|client_name$|ssl_")
"""Options whose value may hold an @."""


def _from_the_host(scheme: str, rest: str) -> str:
    """Return what follows the last @ of a URL: the text before it may be a part of the password."""
    _, at, shown = rest.rpartition("@")
    return without_password(f"{scheme}://***@{shown}") if at and "#" not in shown else f"{scheme}://..."
