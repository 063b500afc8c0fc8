"""The URLs by which a cache alias names its servers: read, and shown without the passwords that they hold. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from redis.connection import parse_url

_USER = re.compile(r"^((?:[a-z][a-z0-9+.-]*:)?(?://)?).*@", re.IGNORECASE | re.DOTALL)
_IN_QUERY = re.compile(r"((?:username|password)=)[^&]*", re.IGNORECASE)

QUOTE_HINT = (
    "Signs such as / ? # @ : , in a user's name or password are written as %2F, %3F, %23, %40, %3A and %2C, as "
    'urllib.parse.quote(password, safe="") does.'
)


def parts_of(url: str) -> Mapping[str, Any]:
    """Return what a URL says, as redis-py reads it. Raises `ValueError`, whose text holds no password."""
    parse: Any = parse_url  # redis-py leaves it untyped
    try:
        return cast("Mapping[str, Any]", parse(url))
    except ValueError:  # whose text may hold what a sign in the password has cut off, as its port
        shown = without_password(url) if "@" in url else f"{url.partition('//')[0]}//..."
        raise ValueError(f"{shown!r} cannot be read as a Redis URL") from None


def misread(url: str) -> str | None:
    """Say why a URL means another server than whoever wrote it thinks; None where nothing speaks for that.

    A sign in a password that is not percent-encoded ends what leads to the server: what stands before it is taken for
    the host. What is said holds none of it.
    """
    scheme, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    of_query = (part.partition("=") for part in query.split("&"))
    if "#" in rest:
        sign = "#"
    elif "@" in place.partition("/")[2] and scheme != "unix":  # the path of a socket may have one
        sign = "/"
    elif any("@" in name or ("@" in value and not _MAY_HOLD_ANY.match(name)) for name, _, value in of_query):
        sign = "?"
    else:
        return None
    return f"a {sign} that is not percent-encoded ends the server's name early in {_from_the_host(scheme, rest)!r}"


_MAY_HOLD_ANY = re.compile(r"username$|password$|client_name$|ssl_")
"""Options whose value may hold an @."""


def _from_the_host(scheme: str, rest: str) -> str:
    """Return a URL with what follows its last @; nothing else of it: what looks like its host may be of a password."""
    _, at, shown = rest.rpartition("@")
    return without_password(f"{scheme}://***@{shown}") if at and "#" not in shown else f"{scheme}://..."


def without_password(url: str) -> str:
    """Return a URL, or what should be one, without its user and password."""
    return _IN_QUERY.sub(r"\1***", _USER.sub(r"\1***@", url))
