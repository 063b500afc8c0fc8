"""Leases: slots of which a limited number can be held at once, and the queue for them. See `lua/lease_*.lua`.

Each process keeps the places of its tokens in the queue by calling `KeepPlaces` again and again. A token whose place is
not kept is skipped. The first token of the queue is woken through the process that it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from django_quota.engine.operations import Operation, Script, States, keep, script


def _script(name: str) -> Script:
    return script("clock", "lease_common", name)


class SlotKeys(NamedTuple):
    """The keys of a slot."""

    leases: str
    queue: str
    alive: str


class Token(NamedTuple):
    """The parts of a token."""

    process: str
    """The process that it belongs to."""
    limit: int
    """The number of slots."""
    span: int
    """How long its lease lasts, in microseconds."""


def make_token(process: str, number: int, limit: int, span: int) -> str:
    """Return a token: it holds a slot, or waits for one."""
    return f"{process}.{number}.{limit}.{span}"


def parse_token(token: str) -> Token:
    """Return the parts of a token."""
    process, _, limit, span = token.split(".")
    return Token(process, int(limit), int(span))


class SlotQueue:
    """The queue of a slot: the tokens that wait for it, in order."""

    def __init__(self, states: States, keys: SlotKeys, now: int) -> None:
        self._states = states
        self._keys = keys
        self._now = now
        self._queue: tuple[str, ...] = states.get(keys.queue) or ()
        self.alive: dict[str, int] = dict(states.get(keys.alive) or {})
        """Until when each token is alive."""

    def is_alive(self, token: str) -> bool:
        """Say whether a token is in the queue and its place is still kept."""
        return self.alive.get(token, 0) > self._now

    def at(self, place: int) -> str:
        """Return the live token at a place, from 0, and drop the dead ones before it; empty if there is none."""
        while place < len(self._queue):
            token = self._queue[place]
            if self.is_alive(token):
                return token
            self._take_out(token)
        return ""

    def join(self, token: str, ttl: int) -> None:
        """Keep the place of a token for `ttl` microseconds; without a place it goes to the end."""
        if not self.is_alive(token):
            self._queue = (*(other for other in self._queue if other != token), token)
        self.keep([token], ttl)

    def keep(self, tokens: Sequence[str], ttl: int) -> None:
        """Keep the places of tokens for `ttl` microseconds."""
        self.alive.update(dict.fromkeys(tokens, self._now + ttl))
        self._save(self._now + ttl)

    def leave(self, token: str) -> bool:
        """Take a token out; say whether it was alive."""
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
            keep(self._states, key, value, stop)


class _SlotOperation(Operation):
    """An operation of one token on a slot; some need only the first of the slot's keys."""

    def __init__(self, keys: SlotKeys, token: str, *more: str | int) -> None:
        super().__init__(keys, token, *more)
        self.slot = keys
        self.token = token

    def held(self, states: States) -> Mapping[str, int]:
        """Return all leases, each with its end."""
        return states.get(self.slot.leases) or {}

    def next_in_line(self, states: States, queue: SlotQueue, now: int) -> str:
        """Return the first waiting token if a slot is free for it; else an empty text."""
        first = queue.at(0)
        live = [stop for stop in self.held(states).values() if stop > now]
        return first if first and len(live) < parse_token(first).limit else ""

    def wake_next(self, states: States, queue: SlotQueue, now: int) -> None:
        """Wake the first token if a slot is free for it, so that it asks again."""
        first = self.next_in_line(states, queue, now)
        if first:
            states.wake(first)

    def put(self, states: States, leases: Mapping[str, int]) -> None:
        """Replace the leases."""
        keep(states, self.slot.leases, leases, max(leases.values(), default=0))


class Acquire(_SlotOperation):
    """Take one of the slots; the reply is that of `lua/lease_acquire.lua`.

    `ttl`: how long the token's place in the queue is kept, in microseconds; 0: it does not wait.
    """

    script: ClassVar[Script] = _script("lease_acquire")

    def __init__(self, keys: SlotKeys, token: str, ttl: int) -> None:
        super().__init__(keys, token, ttl)
        self.ttl = ttl

    def has_written(self, reply: Any) -> bool:
        """Say whether it was taken."""
        return bool(reply[0])

    def run(self, states: States, now: int) -> list[int]:
        """Take it, or take a place in the queue."""
        _, limit, span = parse_token(self.token)
        kept, queue = self.held(states), SlotQueue(states, self.slot, now)
        live = {token: stop for token, stop in kept.items() if stop > now}
        free = limit - len(live)
        if self.token in live or self._may_go(queue, free):
            live[self.token] = now + span
            self.put(states, live)
            queue.leave(self.token)
            self.wake_next(states, queue, now)
            return [1, max(0, limit - len(live)), _one_more(live.values(), limit) - now, max(live.values()) - now, 0]
        first = 0
        if self.ttl:
            queue.join(self.token, self.ttl)
            first = int(queue.at(0) == self.token)
        elif queue.leave(self.token):
            self.wake_next(states, queue, now)
        stop = queue.alive[queue.at(0)] if free > 0 else sorted(live.values())[-free]
        return [0, max(0, free), stop - now, max(0, max(kept.values(), default=0) - now), first]

    def _may_go(self, queue: SlotQueue, free: int) -> bool:
        """Say whether the token is among the first of the queue, as many as there are free slots."""
        return any(queue.at(place) in ("", self.token) for place in range(free))


def _one_more(ends: Iterable[int], limit: int) -> int:
    """Return when one more of `limit` slots is free at the latest, by the ends of all live leases."""
    in_order = sorted(ends)
    return in_order[max(0, len(in_order) - limit)]


class Renew(_SlotOperation):
    """Extend a lease for `span` microseconds from now; the reply is 1, or 0 if it has ended."""

    script: ClassVar[Script] = _script("lease_renew")

    def __init__(self, keys: SlotKeys, token: str, span: int) -> None:
        super().__init__(keys, token, span)
        self.keys = keys[:1]
        self.span = span

    def run(self, states: States, now: int) -> int:
        """Renew it if it has not ended."""
        leases = self.held(states)
        if leases.get(self.token, 0) <= now:
            return 0
        self.put(states, {**leases, self.token: now + self.span})
        return 1


class KeepPlaces(_SlotOperation):
    """Keep the places of tokens for `ttl` microseconds; the reply lists the tokens that should ask again."""

    script: ClassVar[Script] = _script("lease_keep_places")

    def __init__(self, keys: SlotKeys, tokens: Sequence[str], ttl: int) -> None:
        super().__init__(keys, "")
        self.tokens = tokens
        self.ttl = ttl

    def arguments(self) -> list[str | int]:
        """Return the arguments that `lua/lease_keep_places.lua` lists."""
        return [self.ttl, *self.tokens]

    def run(self, states: States, now: int) -> list[str]:
        """Keep them."""
        queue = SlotQueue(states, self.slot, now)
        first, alive = queue.at(0), [token for token in self.tokens if queue.is_alive(token)]
        again = [token for token in self.tokens if token == first or not queue.is_alive(token)]
        if alive:
            queue.keep(alive, self.ttl)
        return again


class Release(_SlotOperation):
    """Give a slot back and leave the queue; the reply is that of `lua/lease_release.lua`."""

    script: ClassVar[Script] = _script("lease_release")

    def run(self, states: States, now: int) -> list[int | str]:
        """Give it back; the next in the queue gets it if it waits in the same process."""
        leases, queue = dict(self.held(states)), SlotQueue(states, self.slot, now)
        stop = leases.pop(self.token, None)
        held = int((stop or 0) > now)
        if stop is not None:
            self.put(states, leases)
        if not queue.leave(self.token) and stop is None:
            return [held, "", 0, 0, 0]
        next_holder = self.next_in_line(states, queue, now)
        if not next_holder or parse_token(next_holder).process != parse_token(self.token).process:
            self.wake_next(states, queue, now)
            return [held, "", 0, 0, 0]
        _, limit, span = parse_token(next_holder)
        leases[next_holder] = now + span
        self.put(states, leases)
        queue.leave(next_holder)
        self.wake_next(states, queue, now)
        live = [stop for stop in leases.values() if stop > now]
        return [held, next_holder, max(0, limit - len(live)), _one_more(live, limit) - now, max(live) - now]


class Holders(_SlotOperation):
    """Say who holds a slot; the reply has for each the token, and the microseconds until its lease ends."""

    script: ClassVar[Script] = _script("lease_holders")

    def __init__(self, keys: SlotKeys) -> None:
        super().__init__(keys, "")
        self.keys = keys[:1]

    def run(self, states: States, now: int) -> list[int | str]:
        """Read them, and write nothing."""
        live = sorted((stop, token) for token, stop in self.held(states).items() if stop > now)
        return [part for stop, token in live for part in (token, stop - now)]
