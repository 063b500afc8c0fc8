"""The properties of leases: Lua and specification never differ, and never do more hold a slot than may."""

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from django_quota import slot
from django_quota.engine.lease_operations import (
    Acquire,
    Holders,
    Release,
    Renew,
    SlotKeys,
)
from django_quota.engine.operations import Operation
from django_quota.engine.subject_operations import Once
from django_quota.exceptions import QuotaExceeded
from tests.support.places import Machine, run_machine
from tests.support.processes import ended, forks, heard, processes, started, threads_ran
from tests.support.slots import keys_of
from tests.support.steps import SECOND, START
from tests.support.stores import current_store

KEYS = SlotKeys("quota:1:{global}:l:total", "quota:1:{global}:lately:total")
TOKENS = st.sampled_from("abcdefg")
LIMITS = st.sampled_from([1, 2, 2, 3, 3, 3])
"""Who shares a slot may differ in what they think its limit is."""
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
        self.since: dict[str, int] = {}
        """When each got its slot."""
        self.spans: list[int] = []
        """How long those held it who gave it back."""

    def done(self, operation: Operation) -> Any:
        """Do an operation in all three places, and return the reply."""
        reply = self.places.run(operation, self.now)
        assert self.stored() == {key: value for key, (value, _) in self.places.states.kept.items()}
        return reply

    def stored(self) -> dict[str, Any]:
        """Return the state in Redis, in the form of the specification."""
        stored: dict[str, Any] = {}
        for found in self.raw.scan_iter():
            key = found.decode()
            if key == KEYS.leases:
                scored: Any = self.raw.zrange(key, 0, -1, withscores=True)
                stored[key] = {token.decode(): int(stop) for token, stop in scored}
            else:
                stored[key] = int(self.raw.get(key) or 0)
        return stored

    def holders(self) -> set[str]:
        return {token for token, stop in self.ends.items() if stop > self.now}

    @rule(gap=GAPS)
    def time_passes(self, gap: int) -> None:
        self.now += gap

    @rule()
    def the_first_lease_ends(self) -> None:
        self.now = max(self.now, min((self.ends[token] for token in self.holders()), default=self.now))

    @rule(token=TOKENS, limit=LIMITS, span=SPANS)
    def a_slot_is_asked_for(self, token: str, limit: int, span: int) -> None:
        before, held = self.stored(), self.holders()
        granted, free, wait, reset, now = self.done(Acquire(KEYS, token, limit, span))
        assert granted == (token in held or len(held) < limit)
        assert now == self.now
        if granted:
            self.ends[token] = self.now + span
            self.since[token] = now
            assert token in held or len(self.holders()) <= limit
        else:  # a refused request changes nothing
            assert self.stored() == before
        ends = sorted(self.ends[holder] - self.now for holder in self.holders())
        assert free == max(0, limit - len(ends))
        assert reset == ends[-1]
        over = max(0, len(ends) - limit)
        if before.get(KEYS.lately):  # the rate at which slots were given back, and never later than leases end
            assert 0 < wait <= ends[over]
            assert wait <= max(1, max(self.spans) * (over + 1) / len(ends))
            assert wait >= min(ends[over], int(min(self.spans) * (over + 1) / len(ends)))
        else:
            assert wait == ends[over]

    @rule(token=TOKENS, span=SPANS, again=st.booleans())
    def a_lease_is_renewed(self, token: str, span: int, again: bool) -> None:
        before = self.stored()
        renewed = self.done(Renew(KEYS, token, span, again=again))
        assert renewed == (again or token in self.holders())
        if renewed:
            self.ends[token] = self.now + span
        else:
            assert self.stored() == before

    @rule(token=TOKENS, knows_since=st.booleans(), span=SPANS)
    def a_slot_is_given_back(self, token: str, knows_since: bool, span: int) -> None:
        before, was_held = self.stored(), token in self.holders()
        since = self.since.get(token) if knows_since else None
        assert self.done(Release(KEYS, token, since, span)) == was_held
        if token not in self.ends:  # a foreign token changes nothing
            assert self.stored() == before
        self.ends.pop(token, None)
        others = {other: stop for other, stop in before.get(KEYS.leases, {}).items() if other != token}
        assert self.stored().get(KEYS.leases, {}) == others
        if was_held and since is not None and KEYS.lately in before:
            self.spans.append(max(1, self.now - since))
        else:
            assert self.stored().get(KEYS.lately) == before.get(KEYS.lately)

    @rule()
    def the_holders_are_looked_at(self) -> None:
        before = self.stored()
        reply = self.done(Holders(KEYS))
        assert dict(zip(reply[::2], reply[1::2], strict=True)) == {
            token: self.ends[token] - self.now for token in self.holders()
        }
        assert self.stored() == before

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
        with (folder / f"{number}").open("w") as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
            return
    raise AssertionError("more hold a slot than may")


@pytest.mark.thorough("processes")
@forks
@threads_ran
@pytest.mark.usefixtures("redis_cache")
def test_never_do_more_hold_a_slot_though_some_are_killed_and_their_slots_come_back(tmp_path: Path) -> None:
    reader, tell = os.pipe()
    never, ever = os.pipe()

    def hold_for_ever() -> None:
        with slot("killed", LIMIT, lease=60, wait=30, renew=True) as lease, one_of(tmp_path):
            os.write(tell, lease.token.ljust(TOKEN_SIZE).encode())
            os.read(never, 1)

    def work() -> None:
        for _ in range(25):
            with slot("killed", LIMIT, lease=20, wait=30), one_of(tmp_path):
                pass

    def hurry() -> None:
        """Ask all the time, and never wait: that must not keep a lease alive."""
        taken = 0
        while taken < 5:
            with suppress(QuotaExceeded), slot("killed", LIMIT, lease=20), one_of(tmp_path):
                taken += 1

    with processes() as victims, processes() as children:
        victims.extend(started(hold_for_ever) for _ in range(LIMIT))
        tokens = [heard(reader, TOKEN_SIZE).decode().strip() for _ in range(LIMIT)]
        victims.append(started(work))  # it waits for a slot
        children.extend(started(each) for each in [work] * 6 + [hurry] * 2)
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        assert ended(victims) == [-signal.SIGKILL] * (LIMIT + 1)
        for token in tokens:  # nobody renews it any more: it ends by itself, and for this test soon
            assert current_store().run(Renew(keys_of("killed"), token, SECOND // 20))
        assert ended(children) == [0] * 8
    for end in (reader, tell, never, ever):
        os.close(end)
    assert slot("killed", LIMIT).holders() == []
