"""What an operation changes of the states: nothing is kept before the operation has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Draft:
    """States as an operation finds and leaves them; see `engine.operations.States`.

    `found`: the value of each key and when it expires, as the store keeps them.
    """

    def __init__(self, found: Mapping[str, Any]) -> None:
        self._found = found
        self.changed: dict[str, tuple[Any, int] | None] = {}
        """The value and the expiry of each key that was put; None for one that was dropped."""

    def _state(self, key: str) -> Any:
        return self.changed[key] if key in self.changed else self._found.get(key)

    def get(self, key: str, now: int | None = None) -> Any:
        """Return the value of a key; see `States.get`."""
        state = self._state(key)
        return None if state is None or (now is not None and state[1] <= now) else self.read(key, state)

    def read(self, key: str, state: Any) -> Any:  # noqa: ARG002 — others name the key in an error
        """Return the value of a state."""
        return state[0]

    def put(self, key: str, value: Any, expiry: int) -> None:
        """Keep a value."""
        self.changed[key] = (value, expiry)

    def expiry(self, key: str) -> int:
        """Return when a key expires; 0 if there is none."""
        state = self._state(key)
        return int(state[1]) if state else 0

    def drop(self, key: str) -> bool:
        """Drop a key; say whether it existed."""
        existed = self._state(key) is not None
        self.changed[key] = None
        return existed
