"""The states of one transaction: the rows that it has read, and what an operation makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from django_quota.core.algorithms.fixed_window import WindowCount
from django_quota.core.algorithms.sliding_window import WindowEntry
from django_quota.core.algorithms.subscription import PeriodCount
from django_quota.core.algorithms.token_bucket import Bucket
from django_quota.core.errors import StoreDataError
from django_quota.stores.base import Draft


class StateRow(NamedTuple):
    """A state as its table has it."""

    value: str
    """JSON; see `dumps`."""
    expires: int
    """When it expires (microseconds)."""
    key: str


class RowStates(Draft):
    """The states under the declared keys of an operation. Another key is a `KeyError`: its subject is not locked."""

    def __init__(self, keys: Iterable[str], rows: Iterable[StateRow]) -> None:
        self._rows: dict[str, StateRow | None] = {**dict.fromkeys(keys), **{row.key: row for row in rows}}
        self._values: dict[str, Any] = {}
        """What was read of the rows: an operation may ask for a value several times."""
        super().__init__(self._rows)

    def _state(self, key: str) -> Any:
        return self.changed[key] if key in self.changed else self._rows[key]

    def read(self, key: str, state: Any) -> Any:
        """Return the value of a state. Raises `StoreDataError` if its row holds data of another program."""
        if not isinstance(state, StateRow):
            return state[0]
        if key in self._values:
            return self._values[key]
        try:
            value = self._values[key] = loads(state.value)
        except ValueError as error:
            raise StoreDataError(f"the row of {key} has unexpected data: {error}") from None
        return value

    def put(self, key: str, value: Any, expiry: int) -> None:
        """Keep a value."""
        _ = self._rows[key]
        super().put(key, value, expiry)

    def written(self) -> Iterator[StateRow]:
        """Yield the rows to write, without those that stay the same."""
        for key, changed in self.changed.items():
            if changed is not None:
                row = StateRow(dumps(changed[0]), changed[1], key)
                if row != self._rows[key]:
                    yield row

    def dropped(self) -> Sequence[str]:
        """Return the keys whose rows are to be deleted."""
        return [key for key, changed in self.changed.items() if changed is None and self._rows[key] is not None]


# --- values as JSON ---------------------------------------------------------------------------------------------------


_encode = json.JSONEncoder(separators=(",", ":")).encode


def dumps(value: object) -> str:
    """Return a value as JSON in ASCII. Raises `TypeError` for one that no specification keeps."""
    kind = type(value)
    if kind is tuple:
        return _encode(["entries", *_numbers_of(value)])
    if kind is int or kind is str:
        return str(value) if kind is int else _encode(value)
    if isinstance(value, Mapping):
        if all(type(name) is str and type(each) in (int, str) for name, each in value.items()):
            return _encode(value)
    elif kind in _NAMES:
        return _encode([_NAMES[kind], *value])  # type: ignore[misc]
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
            raise TypeError("a tuple has other items than entries")
        total, cost, expiry = entry
        numbers += (total - last_total, cost, expiry - last_expiry)
        last_total, last_expiry = total, expiry
    return numbers


_TUPLES: Mapping[str, type[NamedTuple]] = {"window": WindowCount, "bucket": Bucket, "period": PeriodCount}
_NAMES = {kind: name for name, kind in _TUPLES.items()}


def loads(text: str) -> Any:
    """Return the value of a string. Raises `ValueError` for a string that `dumps` does not return."""
    value = _decode(text)
    if type(value) in (int, str):
        return value
    if type(value) is dict and all(type(each) in (int, str) for each in value.values()):
        return value
    if type(value) is list and value and type(value[0]) is str:
        name, *parts = value
        if name == "set" and all(type(part) is str for part in parts):
            return frozenset(parts)
        if all(type(part) is int for part in parts):
            if name in _TUPLES and len(parts) == len(_TUPLES[name]._fields):
                return _TUPLES[name](*parts)
            if name == "entries" and len(parts) % 3 == 0:
                return tuple(map(WindowEntry, accumulate(parts[::3]), parts[1::3], accumulate(parts[2::3])))
    raise ValueError("it is not a value that we write")


_decode = json.JSONDecoder().decode
