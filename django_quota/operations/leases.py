"""Leases: slots that so many may hold at once, and the queue of those who wait for one. Pure; `lua/lease_*.lua` twin.

Every process keeps the places of its tokens in the queue, again and again (`KeepPlaces`). A token whose place is not
kept any more is passed over. Whoever becomes the first of the queue is woken, through the process that its token names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from django_quota.operations.base import Operation, Script, States, script
from django_quota.operations.shapes import is_row, is_rows, whole, words


def _script(name: str) -> Script:
    return script("clock", "lease_common", name)


class SlotKeys(NamedTuple):
    """The keys of a slot."""

    leases: str
    queue: str
    alive: str


class Token(NamedTuple):
    """What a token says."""

    process: str
    """Whose it is."""
    limit: int
    """How many slots there are."""
    span: int
    """How long its lease lasts, in microseconds."""


def make_token(process: str, number: int, limit: int, span: int) -> str:
    """Return a token, by which a slot is held or waited for."""
    return f"{process}.{number}.{limit}.{span}"


def parse_token(token: str) -> Token:
    """Return what a token says."""
    process, _, limit, span = token.split(".")
    return Token(process, int(limit), int(span))


class WaitQueue:
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
        self.keep([token], patience)

    def keep(self, tokens: Sequence[str], ttl: int) -> None:
        """Let tokens be alive for so long from now."""
        self.alive.update(dict.fromkeys(tokens, self._now + ttl))
        self._save(self._now + ttl)

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

    def next_in_line(self, states: States, line: WaitQueue, now: int) -> str:
        """Return the first of those who wait, where a slot is free for it; else an empty text."""
        first = line.at(0)
        live = [stop for stop in self.held(states).values() if stop > now]
        return first if first and len(live) < parse_token(first).limit else ""

    def wake_next(self, states: States, line: WaitQueue, now: int) -> None:
        """Wake the next in line, so that it asks again."""
        first = self.next_in_line(states, line, now)
        if first:
            states.wake(first)

    def put(self, states: States, leases: Mapping[str, int]) -> None:
        """Keep these leases."""
        if leases:
            key = self.slot.leases
            states.put(key, leases, max(states.expiry(key), *leases.values()))
        else:
            states.drop(self.slot.leases)


class Acquire(_OfASlot):
    """Take one of the slots; the reply is that of `lua/lease_acquire.lua`.

    `ttl`: how long the token's place in the queue is kept, in microseconds; 0: it does not wait.
    """

    script: ClassVar[Script] = _script("lease_acquire")

    def __init__(self, keys: SlotKeys, token: str, ttl: int) -> None:
        super().__init__(keys, token)
        self.ttl = ttl

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/lease_acquire.lua` lists them."""
        return [self.token, self.ttl]

    def fits(self, reply: Any) -> bool:
        """Say whether a reply can be the one to this."""
        return is_row(reply, whole, whole, whole, whole, whole)

    def has_written(self, reply: Any) -> bool:
        """Say whether it was taken."""
        return bool(reply[0])

    def run(self, states: States, now: int) -> list[int]:
        """Take it, or take a place in the queue."""
        _, limit, span = parse_token(self.token)
        kept, line = self.held(states), WaitQueue(states, self.slot, now)
        live = {token: stop for token, stop in kept.items() if stop > now}
        free = limit - len(live)
        if self.token in live or self._may_go(line, free):
            live[self.token] = now + span
            self.put(states, live)
            line.leave(self.token)
            self.wake_next(states, line, now)
            return [1, max(0, limit - len(live)), _one_more(live.values(), limit) - now, max(live.values()) - now, 0]
        first = 0
        if self.ttl:
            line.join(self.token, self.ttl)
            first = int(line.at(0) == self.token)
        elif line.leave(self.token):
            self.wake_next(states, line, now)
        stop = line.alive[line.at(0)] if free > 0 else sorted(live.values())[-free]
        return [0, max(0, free), stop - now, max(0, max(kept.values(), default=0) - now), first]

    def _may_go(self, line: WaitQueue, free: int) -> bool:
        """Say whether the token is among as many of those who wait as there are free slots, or would be."""
        return any(line.at(place) in ("", self.token) for place in range(free))


def _one_more(ends: Iterable[int], limit: int) -> int:
    """Return when one more of so many slots is free, at the latest, by the ends of all live leases."""
    in_order = sorted(ends)
    return in_order[max(0, len(in_order) - limit)]


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


class KeepPlaces(_OfASlot):
    """Keep the places of tokens in the queue for `ttl` microseconds; the reply lists those who should ask again."""

    script: ClassVar[Script] = _script("lease_keep_places")

    def __init__(self, keys: SlotKeys, tokens: Sequence[str], ttl: int) -> None:
        super().__init__(keys, "")
        self.tokens = tokens
        self.ttl = ttl

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/lease_keep_places.lua` lists them."""
        return [self.ttl, *self.tokens]

    def fits(self, reply: Any) -> bool:
        """Say whether a reply can be the one to this."""
        return is_rows(reply, words)

    def run(self, states: States, now: int) -> list[str]:
        """Keep them."""
        line = WaitQueue(states, self.slot, now)
        first, alive = line.at(0), [token for token in self.tokens if line.is_alive(token)]
        again = [token for token in self.tokens if token == first or not line.is_alive(token)]
        if alive:
            line.keep(alive, self.ttl)
        return again


class Release(_OfASlot):
    """Give a slot back and leave the queue; the reply is that of `lua/lease_release.lua`."""

    script: ClassVar[Script] = _script("lease_release")

    def fits(self, reply: Any) -> bool:
        """Say whether a reply can be the one to this."""
        return is_row(reply, whole, words, whole, whole, whole)

    def run(self, states: States, now: int) -> list[int | str]:
        """Give it back, and let the next in line have it where that one waits in the same process."""
        leases, line = dict(self.held(states)), WaitQueue(states, self.slot, now)
        stop = leases.pop(self.token, None)
        held = int((stop or 0) > now)
        if stop is not None:
            self.put(states, leases)
        if not line.leave(self.token) and stop is None:
            return [held, "", 0, 0, 0]
        heir = self.next_in_line(states, line, now)
        if not heir or parse_token(heir).process != parse_token(self.token).process:
            self.wake_next(states, line, now)
            return [held, "", 0, 0, 0]
        _, limit, span = parse_token(heir)
        leases[heir] = now + span
        self.put(states, leases)
        line.leave(heir)
        self.wake_next(states, line, now)
        live = [stop for stop in leases.values() if stop > now]
        return [held, heir, max(0, limit - len(live)), _one_more(live, limit) - now, max(live) - now]


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
