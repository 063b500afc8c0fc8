"""Values of states as JSON texts, and back. Only what the specifications keep is written, and only that is read.

A whole number is itself, and a mapping is an object. The others are arrays that begin with the name of their type.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any, NoReturn

from django_quota.core.algorithms.fixed_window import WindowCount
from django_quota.core.algorithms.sliding_window import WindowEntry
from django_quota.core.algorithms.token_bucket import Bucket

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def dumps(value: object) -> str:
    """Return a value as text, in ASCII. Raises `TypeError` for one that no specification keeps."""
    kind = type(value)
    if kind is tuple:
        return _encode(["entries", *_numbers_of(value)])
    if kind is int:
        return str(value)
    if isinstance(value, Mapping):
        if all(type(name) is str and type(each) in (int, str) for name, each in value.items()):
            return _encode(value)
    elif kind is WindowCount:
        return _encode(["window", *value])  # type: ignore[misc]
    elif kind is Bucket:
        return _encode(["bucket", *value])  # type: ignore[misc]
    elif isinstance(value, frozenset) and all(type(each) is str for each in value):
        return _encode(["set", *sorted(value)])
    raise TypeError(f"no specification keeps {kind.__name__}")


def _numbers_of(entries: Any) -> list[int]:
    """Return three numbers for each entry: by how much total and expiry differ from the one before, and the cost.

    So a hundred entries are one kilobyte. PostgreSQL compresses a value above two, which takes longer than the rest.
    """
    numbers = list[int]()
    last_total = last_expiry = 0
    for entry in entries:
        if type(entry) is not WindowEntry:
            raise TypeError("a tuple holds something else than entries")
        total, cost, expiry = entry
        numbers += (total - last_total, cost, expiry - last_expiry)
        last_total, last_expiry = total, expiry
    return numbers


_PAIRS: Mapping[str, Callable[[int, int], Any]] = {"window": WindowCount, "bucket": Bucket}


def loads(text: str) -> Any:
    """Return the value of a text. Raises `ValueError` for a text that `dumps` does not return."""
    value = _decode(text)
    if type(value) is int:
        return value
    if type(value) is dict and all(type(each) in (int, str) for each in value.values()):
        return value
    if type(value) is list and value and type(value[0]) is str:
        name, *parts = value
        if name == "set" and all(type(part) is str for part in parts):
            return frozenset(parts)
        if all(type(part) is int for part in parts):
            if name in _PAIRS and len(parts) == 2:  # noqa: PLR2004
                return _PAIRS[name](*parts)
            if name == "entries" and len(parts) % 3 == 0:
                return tuple(map(WindowEntry, accumulate(parts[::3]), parts[1::3], accumulate(parts[2::3])))
    raise ValueError("it is no value of ours")


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no whole number")


_decode = json.JSONDecoder(parse_float=_refuse, parse_constant=_refuse).decode
