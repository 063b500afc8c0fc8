"""The states of one transaction: the rows that it has read, and what an operation makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from django_quota.core.errors import StoreDataError
from django_quota.stores.database.values import dumps, loads
from django_quota.stores.drafts import Draft


class StateRow(NamedTuple):
    """A state as its table has it."""

    value: str
    """JSON; see `values`."""
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
        """Return the value of a state. Raises `StoreDataError` if its row holds data that is not ours."""
        if not isinstance(state, StateRow):
            return state[0]
        if key in self._values:
            return self._values[key]
        try:
            value = self._values[key] = loads(state.value)
        except ValueError as error:
            raise StoreDataError(f"the row of {key} is not what we keep there: {error}") from None
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
