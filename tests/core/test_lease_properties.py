"""The properties of leases: Lua and specification never differ, and never do more hold a slot than may.

A state machine holds the three to the same replies and states; real processes, which are killed while they hold a slot
or wait for one, hold Redis to the limit.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from django_quota import slot
from django_quota.engine.lease_operations import (
    Acquire,
    Holders,
    KeepPlaces,
    Release,
    Renew,
    SlotKeys,
    make_token,
    parse_token,
)
from django_quota.engine.operations import Operation
from django_quota.engine.subject_operations import Once
from django_quota.exceptions import QuotaExceeded
from django_quota.stores.wait_queue import PLACE_TTL
from tests.support.commands import wait_until
from tests.support.places import Machine, run_machine
from tests.support.processes import ended, forks, heard, processes, started, threads_ran
from tests.support.steps import SECOND, START
from tests.support.stores import current_store

KEYS = SlotKeys(*(f"quota:1:{{global}}:{kind}:total" for kind in "lqa"))
LIMITS = [1, 2, 2, 3, 3, 3, 1]
"""Who shares a slot may differ in what they think its limit is."""
TOKENS = st.sampled_from(
    [make_token(f"p{number % 2}", number, limit, 10**number) for number, limit in enumerate(LIMITS, 2)]
)
SPANS = st.one_of(st.integers(1, 30 * SECOND), st.sampled_from([10 * SECOND, 3_600 * SECOND]))
GAPS = st.one_of(st.integers(0, 3), st.integers(0, 12 * SECOND))


class LeaseMachine(Machine):
    """One operation after another in Redis, in memory and in the specification, beside a plain model."""

    @initialize()
    def begin(self) -> None:
        self.open()
        self.now = START
        self.ends: dict[str, int] = {}
        """The model: when the lease of each holder ends."""
        self.line: list[str] = []
        """The model: who waits, in the order in which they came."""
        self.alive: dict[str, int] = {}
        self.hearing: Any = cast("Any", self.raw).pubsub()
        self.hearing.psubscribe("django_quota:wake:*")
        self.woken: list[str] = []
        """Whom the last operation has woken."""

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "hearing"):
            self.hearing.close()

    # --- the three, and the model -------------------------------------------------------------------------------------

    def done(self, operation: Operation) -> Any:
        """Do an operation in all three places, and return the reply."""
        self.places.states.woken = ()
        reply = self.places.run(operation, self.now)
        self.woken = self.heard()
        assert self.woken == list(self.places.states.woken)
        assert self.stored() == {key: value for key, (value, _) in self.places.states.kept.items()}
        return reply

    def heard(self) -> list[str]:
        """Return who was woken in Redis since the last time."""
        self.raw.publish("django_quota:wake:end", "end")
        tokens: list[str] = []
        while True:
            message = self.hearing.get_message(timeout=60) or {}
            token = message["data"].decode() if message.get("type") == "pmessage" else ""
            if token == "end":
                return tokens
            if token:
                assert message["channel"].decode() == f"django_quota:wake:{parse_token(token).process}"
                tokens.append(token)

    def stored(self) -> dict[str, Any]:
        """Return the state in Redis, in the form of the specification."""
        stored: dict[str, Any] = {}
        for found in self.raw.scan_iter():
            key = found.decode()
            if key == KEYS.queue:
                tokens: Any = self.raw.lrange(key, 0, -1)
                stored[key] = tuple(token.decode() for token in tokens)
            elif key in KEYS:
                scored: Any = self.raw.zrange(key, 0, -1, withscores=True)
                stored[key] = {token.decode(): int(stop) for token, stop in scored}
            else:
                stored[key] = int(self.raw.get(key) or 0)
        return stored

    def holders(self) -> set[str]:
        return {token for token, stop in self.ends.items() if stop > self.now}

    def wait_queue(self) -> list[str]:
        return [token for token in self.line if self.alive[token] > self.now]

    def leave(self, token: str) -> None:
        if token in self.line:
            self.line.remove(token)

    def next_in_line(self) -> list[str]:
        """The model: the first of those who wait, where a slot is free for it."""
        return [token for token in self.wait_queue()[:1] if len(self.holders()) < parse_token(token).limit]

    # --- time ---------------------------------------------------------------------------------------------------------

    @rule(gap=GAPS)
    def time_passes(self, gap: int) -> None:
        self.now += gap

    @rule()
    def the_first_lease_ends(self) -> None:
        self.now = max(self.now, min((self.ends[token] for token in self.holders()), default=self.now))

    # --- leases -------------------------------------------------------------------------------------------------------

    @rule(token=TOKENS, waits=st.booleans())
    def a_slot_is_asked_for(self, token: str, waits: bool) -> None:
        _, limit, span = parse_token(token)
        held, ahead = self.holders(), self.wait_queue()
        had_place = token in ahead
        if had_place:
            ahead = ahead[: ahead.index(token)]
        granted, free, wait, reset, first = self.done(Acquire(KEYS, token, PLACE_TTL if waits else 0))
        # First come, first served: who is let in has as many free slots before it as there are others who came earlier.
        assert granted == (token in held or len(held) + len(ahead) < limit)
        if granted:
            self.ends[token] = self.now + span
        if granted or not waits:
            self.leave(token)
        elif not had_place:
            self.leave(token)
            self.line.append(token)
        if not granted and waits:
            self.alive[token] = self.now + PLACE_TTL
        assert len(self.holders()) <= max(LIMITS)
        assert free == max(0, limit - len(self.holders()))
        assert reset == max((self.ends[holder] - self.now for holder in self.holders()), default=0)
        assert first == (not granted and self.wait_queue()[:1] == [token])
        left = granted or (had_place and not waits)
        assert self.woken == (self.next_in_line() if left else [])
        if not granted and not free:
            assert wait == sorted(self.ends[holder] for holder in held)[len(held) - limit] - self.now
        assert granted or wait > 0

    @rule(token=TOKENS, span=SPANS)
    def a_lease_is_renewed(self, token: str, span: int) -> None:
        before = self.stored()
        renewed = self.done(Renew(KEYS, token, span))
        assert renewed == (token in self.holders())
        if renewed:
            self.ends[token] = self.now + span
        else:
            assert self.stored() == before

    @rule(token=TOKENS)
    def a_slot_is_given_back(self, token: str) -> None:
        before, known = self.stored(), token in self.ends or token in self.line
        was_held, was_there = token in self.holders(), token in self.wait_queue()
        was_kept = token in before.get(KEYS.leases, {})
        held, heir, free, wait, reset = self.done(Release(KEYS, token))
        self.ends.pop(token, None)
        self.leave(token)
        assert held == was_held
        if was_kept or was_there:
            ahead = self.next_in_line()
            is_at_home = bool(ahead) and parse_token(ahead[0]).process == parse_token(token).process
            assert heir == (ahead[0] if is_at_home else "")
            if heir:
                self.ends[heir] = self.now + parse_token(heir).span
                self.leave(heir)
                limit, ends = parse_token(heir).limit, sorted(self.ends[holder] for holder in self.holders())
                assert free == max(0, limit - len(ends))
                assert wait == ends[max(0, len(ends) - limit)] - self.now
                assert reset == max(self.ends[holder] - self.now for holder in self.holders())
            assert self.woken == self.next_in_line()
        else:
            assert (heir, self.woken) == ("", [])
        if not known:  # a foreign token changes nothing
            assert self.stored() == before
        others = {other: stop for other, stop in self.stored().get(KEYS.leases, {}).items() if other != heir}
        assert all(stop == before[KEYS.leases][other] for other, stop in others.items())

    @rule(tokens=st.lists(TOKENS, min_size=1, unique=True))
    def places_are_kept(self, tokens: list[str]) -> None:
        before = self.wait_queue()
        again = self.done(KeepPlaces(KEYS, tokens, PLACE_TTL))
        assert again == [token for token in tokens if token not in before or token == before[0]]
        self.alive.update({token: self.now + PLACE_TTL for token in tokens if token in before})
        assert self.wait_queue() == before
        assert self.woken == []

    @rule()
    def the_holders_are_looked_at(self) -> None:
        before = self.stored()
        reply = self.done(Holders(KEYS))
        assert dict(zip(reply[::2], reply[1::2], strict=True)) == {
            token: self.ends[token] - self.now for token in self.holders()
        }
        assert self.stored() == before

    # --- what was seen ------------------------------------------------------------------------------------------------

    @rule(value=st.integers(0, 4), span=SPANS)
    def a_value_is_seen(self, value: int, span: int) -> None:
        key = f"quota:1:{{once:{value}}}:once:total"
        until = self.stored().get(key, 0)
        assert self.done(Once(key, span)) == (until <= self.now)
        assert self.stored()[key] == (self.now + span if until <= self.now else until)


@pytest.mark.hypothesis
@pytest.mark.usefixtures("redis_cache")
def test_lua_and_specification_never_differ(raw: redis.Redis) -> None:
    run_machine(LeaseMachine, raw, examples=150, steps=40)


# --- real processes ---------------------------------------------------------------------------------------------------

LIMIT = 3
TOKEN_SIZE = 64
"""Bytes in which a process tells its token."""


@contextmanager
def one_of(folder: Path) -> Iterator[None]:
    """Lock one of as many files as there are slots, as the kernel does: one who is killed leaves it at once."""
    for number in range(LIMIT):
        with (folder / f"{number}").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield
            return
    raise AssertionError("more hold a slot than may")


def hold_for_ever(folder: Path, tell: int, never: int) -> None:
    """Hold a slot, and have it renewed, until the process is killed."""
    with slot("killed", LIMIT, lease=60, wait=30, renew=True) as lease, one_of(folder):
        os.write(tell, lease.token.ljust(TOKEN_SIZE).encode())
        os.read(never, 1)


def wait_for_ever(name: str, limit: int) -> None:
    """Wait for a slot that does not come."""
    slot(name, limit, wait=60).acquire()


def work(folder: Path) -> None:
    """Take a slot again and again, and wait for it."""
    for _ in range(25):
        with slot("killed", LIMIT, lease=20, wait=30), one_of(folder):
            pass


def hurry(folder: Path) -> None:
    """Ask all the time, and never wait: that must neither keep a lease alive nor overtake those who wait."""
    taken = 0
    while taken < 5:
        with suppress(QuotaExceeded), slot("killed", LIMIT, lease=20), one_of(folder):
            taken += 1


def until_one_waits(raw: redis.Redis, name: str) -> None:
    wait_until(lambda: raw.exists(f"quota:1:{{global}}:q:{name}"))


@pytest.mark.thorough("processes")
@forks
@threads_ran
@pytest.mark.usefixtures("redis_cache")
def test_never_do_more_hold_a_slot_though_some_are_killed_and_their_slots_come_back(
    raw: redis.Redis, tmp_path: Path
) -> None:
    reader, tell = os.pipe()
    never, ever = os.pipe()
    with processes() as victims, processes() as children:
        victims.extend(started(partial(hold_for_ever, tmp_path, tell, never)) for _ in range(LIMIT))
        tokens = [heard(reader, TOKEN_SIZE).decode().strip() for _ in range(LIMIT)]
        victims.append(started(partial(wait_for_ever, "killed", LIMIT)))
        until_one_waits(raw, "killed")
        children.extend(started(partial(work, tmp_path)) for _ in range(6))
        children.extend(started(partial(hurry, tmp_path)) for _ in range(2))
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        assert ended(victims) == [-signal.SIGKILL] * (LIMIT + 1)
        keys = SlotKeys(*(f"quota:1:{{global}}:{kind}:killed" for kind in "lqa"))
        for token in tokens:  # nobody renews it any more: it ends by itself, and for this test soon
            assert current_store().run(Renew(keys, token, SECOND // 20))
        assert ended(children) == [0] * 8
    for end in (reader, tell, never, ever):
        os.close(end)
    assert slot("killed", LIMIT).holders() == []


@pytest.mark.thorough("processes")
@forks
@threads_ran
@pytest.mark.usefixtures("redis_cache")
def test_one_who_is_killed_while_it_waits_is_passed_over(raw: redis.Redis) -> None:
    lease = slot("line", 1, lease=60).acquire()
    with processes() as children:
        children.append(started(partial(wait_for_ever, "line", 1)))
        until_one_waits(raw, "line")
        os.kill(children[0], signal.SIGKILL)
        assert ended(children) == [-signal.SIGKILL]
    lease.release()
    slot("line", 1, wait=30).acquire().release()
