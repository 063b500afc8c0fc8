"""The URLs by which a cache alias names its servers: read, and shown without the passwords that they hold. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from redis.connection import parse_url

_USER = re.compile(r"^((?:[a-z][a-z0-9+.-]*:)?(?://)?).*@", re.IGNORECASE | re.DOTALL)
_IN_QUERY = re.compile(r"((?:username|password)=)[^&]*", re.IGNORECASE)

QUOTE_HINT = (
    "Signs such as / ? # @ : in a user's name or password are written as %2F, %3F, %23, %40 and %3A, as "
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


def without_password(url: str) -> str:
    """Return a URL, or what should be one, without its user and password."""
    return _IN_QUERY.sub(r"\1***", _USER.sub(r"\1***@", url))
