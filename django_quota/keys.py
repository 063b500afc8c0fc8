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

KINDS = {
    "r": "the state of a limit: r:<rule>:<window>",
    "s": "how the subject stands: overrides, bans, what was told last; a hash",
    "b": "refusals on the way to a ban: b:<rule>; a sorted set",
    "h": "holds that are not settled: h:<rule>; a sorted set",
    "day": "checks of a day, by rule: day:<date>; a hash",
    "c": "a counter: c:<name>; its days: c:<name>:<month>, a hash",
    "m": "amounts on the way from a counter to others: m:<name>; a sorted set",
    "n": "amounts that have come to a counter: n:<name>; a sorted set",
    "u": "different values: u:<name>, and of a day u:<name>:<date>; a HyperLogLog",
    "l": "leases: l:<name>; a sorted set",
    "q": "who waits for a lease, in order: q:<name>; a list",
    "a": "who of them is alive: a:<name>; a sorted set",
    "once": "a value was seen: once:<name>; a string",
}
"""What a key of a subject holds, by the first part behind it."""

SYSTEM_KINDS = {
    "events": "what was refused, banned or is near: a stream; events:banned, its bans alone: another one",
    "dead": "events that a group has given up: dead:<group>; a stream",
    "bans": "all bans: <subject> <rule>, by their end; a sorted set",
    "overrides": "which generation of the overrides is published, and behind a colon what guards that; strings",
    "sweep": "how far a sweep has come; a string",
    "tally": "checks of all subjects, by rule: tally:<date>, tally:<minute since 1970>; a hash",
    "refused": "who was refused how often on a day: refused:<date>; a sorted set",
    "slots": "slots that were asked for lately: <subject> <name> <limit>, by when they are forgotten; a sorted set",
    "workers": "processes that share the limits: a token each, by when it is no longer counted; a sorted set",
    "told": "which tally a process has sent last: told:<token>; a string",
}
"""What a key of no subject holds, by the first part of its name; see `system_key`."""


BAN_EVENTS = "events:banned"
"""The name of the stream of bans alone; see `system_key`."""


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


def field(name: str) -> str:
    """Return the name of a rule or a counter as a part of a key or the name of a hash's field: without colons."""
    return escape(name).replace(":", "%3A")


def named(part: str) -> str | None:
    """Return the name that `field` made this of; None where a digest stands for it."""
    return None if part.startswith(_DIGESTED) else unquote(part, errors="surrogatepass")


@lru_cache(maxsize=4096)
def _state_suffix(limit: Limit) -> str:
    return f"}}:r:{field(limit.rule)}:{limit.state_id}"


def subject_base(prefix: str, subject: str) -> str:
    """Return what all keys of a subject begin with, up to the closing brace."""
    return part_base(prefix, escape(subject))


def part_base(prefix: str, part: str) -> str:
    """Return what all keys of a subject begin with; `part` is its name as `escape` has made it."""
    return f"{prefix}:{VERSION}:{{{part}"


def state_key(base: str, limit: Limit) -> str:
    """Return the key that a limit's state lies in; `base` is its subject's `subject_base`."""
    return base + _state_suffix(limit)


def key_of(base: str, kind: str, *parts: str) -> str:
    """Return another key of a subject, such as `...:day:2026-11-21`; `base` is its `subject_base`, `kind` a `KINDS`."""
    return f"{base}}}:{':'.join((kind, *map(field, parts)))}"


def total_of(outbox: str) -> str:
    """Return the key of the total from which the amounts of an outbox are on the way."""
    return outbox.replace("}:m:", "}:c:", 1)


def system_key(prefix: str, what: str) -> str:
    """Return a key that belongs to no subject: all of them lie in one slot, under a name that no subject can have."""
    return f"{prefix}:{VERSION}:{{!}}:{what}"


def is_system(prefix: str, key: str) -> bool:
    """Say whether a key belongs to no subject: a `system_key`, or what on a Cluster each server has one of."""
    return key.startswith(part_base(prefix, "!"))


def read(prefix: str, key: str) -> Key | None:
    """Take one of our keys apart; None where it is not ours."""
    match = re.fullmatch(rf"{re.escape(prefix)}:{VERSION}:\{{([^{{}}]*)\}}:(.+)", key)
    if match is None:
        return None
    return Key(named(match[1]), match[2])


def pattern(prefix: str) -> str:
    """Return the SCAN pattern that matches our keys."""
    return f"{glob(prefix)}:{VERSION}:{{*"


def glob(text: str) -> str:
    """Return the SCAN pattern that matches this text and nothing else."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)
