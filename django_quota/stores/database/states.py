"""The states of one transaction: the rows that it has read, and what an operation makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from django_quota.core.errors import StoreDataError
from django_quota.engine.events import AppendEvents
from django_quota.stores.database.values import dumps, loads


class Row(NamedTuple):
    """A state as its table has it."""

    key: str
    value: str
    """JSON; see `values`."""
    expires: int
    """When it expires (microseconds)."""


class RowStates:
    """The states under the declared keys of an operation; see `engine.operations.States`.

    An undeclared key is a `KeyError`: its subject is not locked.
    """

    def __init__(self, keys: Iterable[str], rows: Iterable[Row]) -> None:
        self._rows: dict[str, Row | None] = dict.fromkeys(keys)
        for row in rows:
            self._rows[row.key] = row
        self._changed: dict[str, tuple[Any, int] | None] = {}
        """The value and the expiry of each key that was put; None for one that was dropped."""
        self.logged: list[AppendEvents] = []
        """What is appended to the event log."""

    def get(self, key: str, now: int | None = None) -> Any:
        """Return the value of a key. Raises `StoreDataError` if its row holds something else than our data."""
        if key in self._changed:
            changed = self._changed[key]
            return None if changed is None or (now is not None and changed[1] <= now) else changed[0]
        row = self._rows[key]
        if row is None or (now is not None and row.expires <= now):
            return None
        try:
            return loads(row.value)
        except ValueError as error:
            raise StoreDataError(f"the row of {key} is not what we keep there: {error}") from None

    def put(self, key: str, value: Any, expiry: int) -> None:
        """Keep a value."""
        self._changed[self._declared(key)] = (value, expiry)

    def expiry(self, key: str) -> int:
        """Return when a key expires; 0 if there is none."""
        if key in self._changed:
            changed = self._changed[key]
            return changed[1] if changed else 0
        row = self._rows[key]
        return row.expires if row else 0

    def drop(self, key: str) -> bool:
        """Drop a key; say whether it existed."""
        existed = self.expiry(key) > 0
        self._changed[self._declared(key)] = None
        return existed

    def _declared(self, key: str) -> str:
        if key not in self._rows:
            raise KeyError(key)
        return key

    def written(self) -> Iterator[Row]:
        """Yield the rows to write. A row that stays as it is does not come."""
        for key, changed in self._changed.items():
            if changed is not None:
                row = Row(key, dumps(changed[0]), changed[1])
                if row != self._rows[key]:
                    yield row

    def dropped(self) -> Sequence[str]:
        """Return the keys whose rows are to be deleted."""
        return [key for key, changed in self._changed.items() if changed is None and self._rows[key] is not None]
