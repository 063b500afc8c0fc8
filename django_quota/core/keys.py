"""The names of the keys in a store, built and parsed. For speed, `engine` joins the keys of a hit from their parts.

Every key is `<prefix>:1:{<subject>}:<what>`. `1` is the version of the stored data. The braces make Redis Cluster keep
all keys of a subject in one slot. Subject and name are escaped, so that two subjects or two rules never share a key.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from django_quota.core.algorithms import Limit
from django_quota.core.algorithms.stock import StockLimit

KEY_VERSION = "1"

MAX_PART = 200
"""Characters: a digest replaces a longer part."""

_SAFE = ":/@+=,.-_"
_is_safe = re.compile(r"[A-Za-z0-9:/@+=,.\-_]*").fullmatch
_DIGESTED = "~"  # `escape` escapes it, so no other part begins with it

KEY_KINDS = {
    "r": "the state of a limit: r:<rule>:<window>",
    "a": "units that processes have taken ahead under a limit: a:<rule>:<window>; a sorted set",
    "s": "the status of the subject: bans, and the last events; a hash",
    "b": "refusals that count towards a ban: b:<rule>; a sorted set",
    "day": "checks of a day, by rule: day:<date>; a hash",
    "c": "a counter: c:<name>; its days: c:<name>:<month>, a hash",
    "grants": "units of a counter that expire: grants:<name>; a sorted set",
    "granted": "units were granted, with the total after it: granted:<name>:<id>; a string",
    "leased": "units of a counter that reservations with a lease have taken: leased:<name>; a sorted set",
    "settled": "a reservation was settled, with the answer: settled:<name>:<id>:<entry>; a string",
    "u": "different values: u:<name>, and of a day u:<name>:<date>; a HyperLogLog",
    "l": "leases: l:<name>; a sorted set",
    "lately": "how long a slot was held recently: lately:<name>; a string",
    "once": "a value was seen: once:<name>; a string",
    "sent": "the last message of a process that was counted: sent:<rule>:<date>:<tier>:<process>; a string",
}
"""The content of a key of a subject, by the first part of its name."""

SYSTEM_KINDS = {
    "events": "what was refused, banned or is near; a stream",
    "bans": "all bans: <subject> <rule>, by their end; a sorted set",
    "sweep": "how far a sweep has come; a string",
    "metrics": "checks of all subjects, by rule: metrics:<date>, metrics:<minute since 1970>; a hash",
    "totals": "checks of all subjects by rule, in running totals; a hash",
    "refused": "who was refused how often on a day: refused:<date>; a sorted set",
    "slots": "slots that were asked for recently: <subject> <name> <limit>, by when they are forgotten; a sorted set",
    "sent": "the last message of a process that was counted: sent:<process>; a string",
    "workers": "processes that share the limits: a token each, by when it is no longer counted; a sorted set",
}
"""The content of a key without a subject, by the first part of its name; see `system_key`."""


class Key(NamedTuple):
    """A parsed key; `subject` is None if a digest replaces it."""

    subject: str | None
    what: str


def escape(part: str) -> str:
    """Return a part, percent-encoded except for letters, digits and `:/@+=,.-_`; a digest if it is long."""
    if len(part) > MAX_PART:  # a client may send a very long string, which is slow to encode
        return digested(part)
    return part if _is_safe(part) else _escape(part)


@lru_cache(maxsize=8192)
def _escape(part: str) -> str:
    escaped = quote(part, safe=_SAFE, errors="surrogatepass").replace("~", "%7E")
    return escaped if len(escaped) <= MAX_PART else digested(part)


def digested(part: str) -> str:
    """Return the replacement of a long part: a tilde and its SHA-256."""
    return _DIGESTED + hashlib.sha256(part.encode(errors="surrogatepass")).hexdigest()


is_digest = re.compile(f"{_DIGESTED}[0-9a-f]{{64}}").fullmatch
"""Says whether a string is what `digested` returns."""


def field(name: str) -> str:
    """Return the name of a rule or a counter, without colons, for a key or the field of a hash."""
    return escape(name).replace(":", "%3A")


def named(part: str) -> str | None:
    """Return the name from which `field` made a part; None if it is a digest."""
    return None if part.startswith(_DIGESTED) else unquote(part, errors="surrogatepass")


def subject_base(prefix: str, subject: str) -> str:
    """Return the beginning of all keys of a subject, up to the closing brace."""
    return f"{prefix}:{KEY_VERSION}:{{{escape(subject)}"


def group_base(prefix: str, group: str) -> str:
    """Return the beginning of all keys of a group of counters, which no subject can have."""
    return part_base(prefix, f"group!{escape(group)}")


def part_base(prefix: str, part: str) -> str:
    """Return the beginning of all keys of a subject whose name is escaped already."""
    return f"{prefix}:{KEY_VERSION}:{{{part}"


def subject_part(key: str) -> str:
    """Return the subject of a key, escaped as it is there."""
    return key.partition("{")[2].partition("}")[0]


def part_of_key(key: str) -> str:
    """Return the part of a key after the subject, which names what it holds: `c:<name>`."""
    return key.partition("}:")[2]


def state_part(limit: Limit | StockLimit) -> str:
    """Return the part of a key that names the state of a limit, after the subject."""
    if isinstance(limit, StockLimit):
        return f"c:{field(limit.rule)}"
    return f"r:{field(limit.rule)}:{limit.state_id}"


def grants_part(limit: StockLimit) -> str:
    """Return the part of a key that names the units of a counter that expire."""
    return f"grants:{field(limit.rule)}"


def leased_part(limit: StockLimit) -> str:
    """Return the part of a key that names the units of a counter that reservations with a lease have taken."""
    return f"leased:{field(limit.rule)}"


def counter_key(key: str) -> str:
    """Return the key of a counter. `key`: that of its units that reservations with a lease have taken."""
    return key.replace("}:leased:", "}:c:")


def grants_key(key: str) -> str:
    """Return the key of the units of a counter that expire. `key`: that of the counter."""
    return key.replace("}:c:", "}:grants:")


def ahead_key(key: str) -> str:
    """Return the key of the units that processes have taken ahead under a limit. `key`: that of the limit's state."""
    return key.replace("}:r:", "}:a:")


def ahead_part(limit: Limit) -> str:
    """Return the part of a key that names the units that processes have taken ahead under a limit."""
    return f"a:{field(limit.rule)}:{limit.state_id}"


def key_of(base: str, kind: str, *parts: str) -> str:
    """Return another key of a subject, such as `...:day:2026-11-21`.

    `base`: its `subject_base`; `kind`: one of `KEY_KINDS`.
    """
    return f"{base}}}:{':'.join((kind, *map(field, parts)))}"


def status_key(prefix: str, subject: str) -> str:
    """Return the key of the hash with the bans of a subject and its last events."""
    return key_of(subject_base(prefix, subject), "s")


def system_key(prefix: str, what: str) -> str:
    """Return a key without a subject. All of them are in one slot, under a name that no subject can have."""
    return f"{prefix}:{KEY_VERSION}:{{!}}:{what}"


def is_system(prefix: str, key: str) -> bool:
    """Return whether a key has no subject: a `system_key`, or a key that each server of a Cluster has."""
    return key.startswith(part_base(prefix, "!"))


def read(prefix: str, key: str) -> Key | None:
    """Parse a key; None if it belongs to another program."""
    match = re.fullmatch(rf"{re.escape(prefix)}:{KEY_VERSION}:\{{([^{{}}]*)\}}:(.+)", key)
    if match is None:
        return None
    return Key(named(match[1]), match[2])


def names_by_field(names: Iterable[str]) -> dict[str, str]:
    """Return names by the field of a hash that each has, so that the digest of a long name can be read."""
    return {field(name): name for name in names}


def pattern(prefix: str) -> str:
    """Return the SCAN pattern of all keys with this prefix."""
    return f"{glob(prefix)}:{KEY_VERSION}:{{*"


def glob(text: str) -> str:
    """Return the SCAN pattern that matches exactly this string."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)
