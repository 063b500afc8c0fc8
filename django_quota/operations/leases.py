"""Leases: slots that so many may hold at once, and the queue of those who wait for one. Pure; `lua/lease_*.lua` twin.

Whoever waits asks again now and then, which keeps it alive in the queue; who stops asking is passed over. Nobody is
woken here: a reply says who should be, and its bell is rung by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from django_quota.operations.base import Operation, Script, States, script
from django_quota.operations.shapes import is_row, is_rows, whole, words

BELL_KEPT = 5_000_000
"""How long a bell sounds where nobody waits at it, in microseconds."""


def _script(name: str) -> Script:
    return script("clock", "lease_common", name)


class SlotKeys(NamedTuple):
    """The keys of a slot."""

    leases: str
    queue: str
    alive: str


class _Line:
    """Who waits, over the states of a slot."""

    def __init__(self, states: States, keys: SlotKeys, now: int) -> None:
        self._states = states
        self._keys = keys
        self._now = now
        self._queue: tuple[str, ...] = states.get(keys.queue) or ()
        self.alive: dict[str, int] = dict(states.get(keys.alive) or {})
        """Until when each token is alive."""

    def is_alive(self, token: str) -> bool:
        """Say whether a token is in the queue and has asked again in time."""
        return self.alive.get(token, 0) > self._now

    def at(self, place: int) -> str:
        """Return who is alive at a place, counted from 0, and drop the dead up to there; empty for nobody."""
        while place < len(self._queue):
            token = self._queue[place]
            if self.is_alive(token):
                return token
            self._take_out(token)
        return ""

    def join(self, token: str, patience: int) -> None:
        """Let a token be alive for so long from now, at its place, or at the end where it has none (any more)."""
        if not self.is_alive(token):
            self._queue = (*(other for other in self._queue if other != token), token)
        self.alive[token] = self._now + patience
        self._save(self._now + patience)

    def leave(self, token: str) -> bool:
        """Take a token out; say whether it was alive there."""
        was_alive = self.is_alive(token)
        if token in self.alive:
            self._take_out(token)
        return was_alive

    def _take_out(self, token: str) -> None:
        self._queue = tuple(other for other in self._queue if other != token)
        self.alive.pop(token, None)
        self._save(0)

    def _save(self, stop: int) -> None:
        for key, value in ((self._keys.queue, self._queue), (self._keys.alive, dict(self.alive))):
            if value:
                self._states.put(key, value, max(self._states.expiry(key), stop))
            else:
                self._states.drop(key)


class _OfASlot(Operation):
    """An operation of one token on a slot; `keys` are those of the slot, of which it may need the first only."""

    def __init__(self, keys: SlotKeys, token: str) -> None:
        self.slot = keys
        self.keys = keys
        self.token = token

    def arguments(self) -> list[str | int]:
        """Return the token."""
        return [self.token]

    def held(self, states: States) -> Mapping[str, int]:
        """Return all leases that are kept, each with its end."""
        return states.get(self.slot.leases) or {}

    def put(self, states: States, leases: Mapping[str, int]) -> None:
        """Keep these leases."""
        if leases:
            key = self.slot.leases
            states.put(key, leases, max(states.expiry(key), *leases.values()))
        else:
            states.drop(self.slot.leases)


class Acquire(_OfASlot):
    """Take one of `limit` slots for `span` microseconds; the reply is that of `lua/lease_acquire.lua`.

    `patience`: how long the token is alive in the queue without asking again, in microseconds; 0: it does not wait.
    """

    script: ClassVar[Script] = _script("lease_acquire")

    def __init__(self, keys: SlotKeys, token: str, limit: int, span: int, patience: int) -> None:
        super().__init__(keys, token)
        self.limit = limit
        self.span = span
        self.patience = patience

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/lease_acquire.lua` lists them."""
        return [self.token, self.limit, self.span, self.patience]

    def fits(self, reply: Any) -> bool:
        """Say whether a reply can be the one to this."""
        return is_row(reply, whole, whole, whole, whole, whole, words)

    def has_written(self, reply: Any) -> bool:
        """Say whether it was taken."""
        return bool(reply[0])

    def run(self, states: States, now: int) -> list[int | str]:
        """Take it, or take a place in the queue."""
        kept, line = self.held(states), _Line(states, self.slot, now)
        live = {token: stop for token, stop in kept.items() if stop > now}
        free = self.limit - len(live)
        if self.token in live or self._may_go(line, free):
            live[self.token] = now + self.span
            self.put(states, live)
            line.leave(self.token)
            one_more = sorted(live.values())[max(0, len(live) - self.limit)] - now
            return [1, max(0, self.limit - len(live)), one_more, max(live.values()) - now, 0, line.at(0)]
        first, wake = 0, ""
        if self.patience:
            line.join(self.token, self.patience)
            first = int(line.at(0) == self.token)
        elif line.leave(self.token):
            wake = line.at(0)
        stop = line.alive[line.at(0)] if free > 0 else sorted(live.values())[-free]
        return [0, max(0, free), stop - now, max(0, max(kept.values(), default=0) - now), first, wake]

    def _may_go(self, line: _Line, free: int) -> bool:
        """Say whether the token is among as many of those who wait as there are free slots, or would be."""
        return any(line.at(place) in ("", self.token) for place in range(free))


class Renew(_OfASlot):
    """Let a lease last for `span` microseconds from now; the reply is 1, or 0 where it has ended."""

    script: ClassVar[Script] = _script("lease_renew")
    replies: type = int

    def __init__(self, keys: SlotKeys, token: str, span: int) -> None:
        super().__init__(keys, token)
        self.keys = keys[:1]
        self.span = span

    def arguments(self) -> list[str | int]:
        """Return the token, and how long its lease lasts."""
        return [self.token, self.span]

    def run(self, states: States, now: int) -> int:
        """Renew it, where it has not ended."""
        leases = self.held(states)
        if leases.get(self.token, 0) <= now:
            return 0
        self.put(states, {**leases, self.token: now + self.span})
        return 1


class Release(_OfASlot):
    """Give a slot back and leave the queue; the reply is that of `lua/lease_release.lua`."""

    script: ClassVar[Script] = _script("lease_release")

    def fits(self, reply: Any) -> bool:
        """Say whether a reply can be the one to this."""
        return is_row(reply, whole, words)

    def run(self, states: States, now: int) -> list[int | str]:
        """Give it back."""
        leases, line = dict(self.held(states)), _Line(states, self.slot, now)
        stop = leases.pop(self.token, None)
        if stop is not None:
            self.put(states, leases)
        if not line.leave(self.token) and stop is None:
            return [0, ""]
        return [int((stop or 0) > now), line.at(0)]


class Holders(_OfASlot):
    """Say who holds a slot; the reply is two for each: its token, and until its lease ends (microseconds)."""

    script: ClassVar[Script] = _script("lease_holders")

    def __init__(self, keys: SlotKeys) -> None:
        super().__init__(keys, "")
        self.keys = keys[:1]

    def fits(self, reply: Any) -> bool:
        """Say whether a reply can be the one to this."""
        return is_rows(reply, words, whole)

    def run(self, states: States, now: int) -> list[int | str]:
        """Look, and write nothing."""
        live = sorted((stop, token) for token, stop in self.held(states).items() if stop > now)
        return [part for stop, token in live for part in (token, stop - now)]


class Ring(Operation):
    """Ring a bell; the reply is 1, or 0 where it still sounds from an earlier time."""

    script: ClassVar[Script] = script("lease_ring")
    replies: type = int

    def __init__(self, bell: str) -> None:
        self.keys = (bell,)

    def arguments(self) -> list[str | int]:
        """Return how long it sounds, in milliseconds."""
        return [BELL_KEPT // 1_000]

    def run(self, states: States, now: int) -> int:
        """Ring it."""
        if states.get(self.keys[0], now):
            return 0
        states.put(self.keys[0], True, now + BELL_KEPT)
        return 1
