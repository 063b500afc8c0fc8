"""The names of our keys in Redis: built and read here alone. It must not know what lies in them.

Every key is `<prefix>:1:{<subject>}:<what>`: `1` is the version of the stored form, and the braces make Redis Cluster
keep all of one subject in one slot. Both parts are escaped so that two subjects, or two rules, never share a key.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from django_quota.algorithms import Limit

VERSION = "1"

MAX_PART = 200
"""Characters of an escaped part above which its digest stands for it."""

_SAFE = ":/@+=,.-_"
_DIGESTED = "~"  # `quote` leaves it alone, so it is escaped by hand: no other part begins with it


class Key(NamedTuple):
    """A key taken apart; `subject` is None where its digest stands for it."""

    subject: str | None
    what: str


def escape(part: str) -> str:
    """Return a part with all but letters, digits and a few signs percent-encoded; past a bound, its digest."""
    return _cached_escape(part) if len(part) <= MAX_PART else _escape(part)  # what is long must not fill the cache


def _escape(part: str) -> str:
    escaped = quote(part, safe=_SAFE, errors="surrogatepass").replace("~", "%7E")
    if len(escaped) > MAX_PART:
        return _DIGESTED + hashlib.sha256(escaped.encode()).hexdigest()
    return escaped


_cached_escape = lru_cache(maxsize=8192)(_escape)


@lru_cache(maxsize=4096)
def _state_suffix(limit: Limit) -> str:
    return f"}}:r:{escape(limit.rule).replace(':', '%3A')}:{limit.state_id}"


def subject_base(prefix: str, subject: str) -> str:
    """Return what all keys of a subject begin with, up to the closing brace."""
    return f"{prefix}:{VERSION}:{{{escape(subject)}"


def state_key(base: str, limit: Limit) -> str:
    """Return the key that a limit's state lies in; `base` is its subject's `subject_base`."""
    return base + _state_suffix(limit)


def read(prefix: str, key: str) -> Key | None:
    """Take one of our keys apart; None where it is not ours."""
    match = re.fullmatch(rf"{re.escape(prefix)}:{VERSION}:\{{([^{{}}]*)\}}:(.+)", key)
    if match is None:
        return None
    subject = match[1]
    return Key(None if subject.startswith(_DIGESTED) else unquote(subject, errors="surrogatepass"), match[2])


def pattern(prefix: str) -> str:
    """Return the SCAN pattern that matches our keys."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", prefix) + f":{VERSION}:{{*"
