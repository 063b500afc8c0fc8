"""Leases: slots of which a limited number can be held at once. See `lua/lease_*.lua`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from django_quota.engine.operations import Operation, Script, States, keep, script


def _script(name: str) -> Script:
    return script("clock", "lifetimes", "lease_common", name)


class SlotKeys(NamedTuple):
    """The keys of a slot."""

    leases: str
    lately: str
    """How long holders have recently kept the slot."""


class _LeaseOperation(Operation):
    """An operation of one token on a slot."""

    def __init__(self, keys: tuple[str, ...], token: str, *more: str | int) -> None:
        super().__init__(keys, token, *more)
        self.token = token

    def held(self, states: States) -> Mapping[str, int]:
        """Return all leases, each with its end."""
        return states.get(self.keys[0]) or {}

    def put(self, states: States, leases: Mapping[str, int]) -> None:
        """Replace the leases."""
        keep(states, self.keys[0], leases, max(leases.values(), default=0))


class Acquire(_LeaseOperation):
    """Take one of `limit` slots for `span` microseconds; the reply: see `lua/lease_acquire.lua`."""

    script: ClassVar[Script] = _script("lease_acquire")

    def __init__(self, keys: SlotKeys, token: str, limit: int, span: int) -> None:
        super().__init__(keys, token, limit, span)
        self.limit = limit
        self.span = span

    def has_written(self, reply: Any) -> bool:
        """Say whether it was taken."""
        return bool(reply[0])

    def run(self, states: States, now: int) -> list[int]:
        """Take it if one is free."""
        live = {token: stop for token, stop in self.held(states).items() if stop > now}
        lately, granted = states.get(self.keys[1]), self.token in live or len(live) < self.limit
        if granted:
            live[self.token] = now + self.span
            self.put(states, live)
            if len(live) >= self.limit and lately is None:
                states.put(self.keys[1], 0, now + self.span)
        over, ends = max(0, len(live) - self.limit), sorted(live.values())
        wait = ends[over] - now
        if lately:
            wait = max(1, min(wait, lately * (over + 1) // len(live)))
        return [int(granted), max(0, self.limit - len(live)), wait, ends[-1] - now, now]


class Renew(_LeaseOperation):
    """Extend a lease for `span` microseconds from now; the reply is 1, or 0 if it has ended.

    `again`: if the lease has ended, take the slot again even if all are held: its holder is still at work, and must
    count.
    """

    script: ClassVar[Script] = _script("lease_renew")

    def __init__(self, keys: SlotKeys, token: str, span: int, *, again: bool = False) -> None:
        super().__init__(keys[:1], token, span, int(again))
        self.span = span
        self.again = again

    def run(self, states: States, now: int) -> int:
        """Renew it if it has not ended."""
        leases = self.held(states)
        if not self.again and leases.get(self.token, 0) <= now:
            return 0
        self.put(states, {**leases, self.token: now + self.span})
        return 1


class Release(_LeaseOperation):
    """Give a slot back; the reply is 1, or 0 if the lease has ended.

    `since`: when it was taken, in microseconds of the store's clock; None if that is not known. `span`: how long a
    lease lasts. The store also remembers for that long how long the slot was held.
    """

    script: ClassVar[Script] = _script("lease_release")

    def __init__(self, keys: SlotKeys, token: str, since: int | None, span: int) -> None:
        super().__init__(keys, token, "" if since is None else since, span)
        self.since = since
        self.span = span

    def run(self, states: States, now: int) -> int:
        """Give it back, and note how long it was held."""
        leases = dict(self.held(states))
        stop = leases.pop(self.token, None)
        if stop is not None:
            self.put(states, leases)
        if stop is None or stop <= now:
            return 0
        lately = states.get(self.keys[1])
        if lately is not None and self.since is not None:
            took = max(1, now - self.since)
            states.put(self.keys[1], (7 * lately + took) // 8 if lately else took, now + self.span)
        return 1


class Holders(_LeaseOperation):
    """Say who holds a slot; the reply has for each the token, and the microseconds until its lease ends."""

    script: ClassVar[Script] = _script("lease_holders")
    is_reading: ClassVar[bool] = True

    def __init__(self, keys: SlotKeys) -> None:
        super().__init__(keys[:1], "")

    def run(self, states: States, now: int) -> list[int | str]:
        """Read them, and write nothing."""
        live = sorted((stop, token) for token, stop in self.held(states).items() if stop > now)
        return [part for stop, token in live for part in (token, stop - now)]
