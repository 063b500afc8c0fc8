"""The operations of slots: take, renew and release one, and list the holders.

Each class is the specification of the `lease_*.lua` of its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from django_quota.engine.operations import Operation, Script, States, keep, script


def _lease_script(name: str) -> Script:
    return script("clock", "lifetimes", "features/slots/lease_common", f"features/slots/lease_{name}")


class SlotKeys(NamedTuple):
    """The keys of a slot."""

    leases: str
    recent: str
    """How long holders have kept the slot recently."""


class _LeaseOperation(Operation):
    """An operation of one token on a slot."""

    @property
    def token(self) -> str:
        return str(self.arguments()[0])

    def held(self, states: States) -> Mapping[str, int]:
        """Return all leases, each with its end."""
        return states.get(self.keys[0]) or {}

    def put(self, states: States, leases: Mapping[str, int]) -> None:
        keep(states, self.keys[0], leases, max(leases.values(), default=0))


class Acquire(_LeaseOperation):
    """Take a slot if one is free; the reply: see `lease_acquire.lua`.

    Its arguments: the token, how many slots there are, and how long the lease lasts, in microseconds.
    """

    script: ClassVar[Script] = _lease_script("acquire")

    def has_written(self, reply: Any) -> bool:
        return bool(reply[0])

    def run(self, states: States, now: int) -> list[int]:
        asking, limit, span = self.arguments()
        live = {token: stop for token, stop in self.held(states).items() if stop > now}
        recent, granted = states.get(self.keys[1]), asking in live or len(live) < limit
        if granted:
            live[asking] = now + span
            self.put(states, live)
            if len(live) >= limit and recent is None:
                states.put(self.keys[1], 0, now + span)
        over, ends = max(0, len(live) - limit), sorted(live.values())
        wait = ends[over] - now
        if recent:
            wait = max(1, min(wait, recent * (over + 1) // len(live)))
        return [int(granted), max(0, limit - len(live)), wait, ends[-1] - now, now]


class Renew(_LeaseOperation):
    """Extend a lease for `span` microseconds from now; the reply is 1, or 0 if it has ended.

    `again`: if the lease has ended, take the slot again even if all are held: its holder is still working, and must
    be counted.
    """

    script: ClassVar[Script] = _lease_script("renew")
    gives_back: ClassVar[bool] = True

    def __init__(self, keys: SlotKeys, token: str, span: int, *, again: bool = False) -> None:
        super().__init__(keys[:1], token, span, int(again))

    def run(self, states: States, now: int) -> int:
        token, span, again = self.arguments()
        leases = self.held(states)
        if not again and leases.get(token, 0) <= now:
            return 0
        self.put(states, {**leases, token: now + span})
        return 1


class Release(_LeaseOperation):
    """Give a slot back; the reply is 1, or 0 if the lease has ended.

    `since`: when it was taken, in microseconds of the store's clock; None if that is not known. `span`: how long a
    lease lasts, in microseconds. For the same time, the store remembers how long the slot was held.
    """

    script: ClassVar[Script] = _lease_script("release")
    gives_back: ClassVar[bool] = True

    def __init__(self, keys: SlotKeys, token: str, since: int | None, span: int) -> None:
        super().__init__(keys, token, "" if since is None else since, span)

    def run(self, states: States, now: int) -> int:
        token, since, span = self.arguments()
        leases = dict(self.held(states))
        stop = leases.pop(token, None)
        if stop is not None:
            self.put(states, leases)
        if stop is None or stop <= now:
            return 0
        recent = states.get(self.keys[1])
        if recent is not None and since != "":
            took = max(1, now - since)
            states.put(self.keys[1], (7 * recent + took) // 8 if recent else took, now + span)
        return 1


class Holders(_LeaseOperation):
    """Read who holds a slot; the reply has for each the token, and the microseconds until its lease ends."""

    script: ClassVar[Script] = _lease_script("holders")
    is_reading: ClassVar[bool] = True

    def __init__(self, keys: SlotKeys) -> None:
        super().__init__(keys[:1], "")

    def run(self, states: States, now: int) -> list[int | str]:
        live = sorted((stop, token) for token, stop in self.held(states).items() if stop > now)
        return [part for stop, token in live for part in (token, stop - now)]
