"""Units that processes take ahead of their hits: what is used and what is out are together never more than the limit.

The specification of `engine/lua/ahead.lua`. A process spends only units that count since it took them, and they go on
counting until a hit at the end of its lease would not count any longer. So no window admits more than its limit,
whatever becomes of the process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from django_quota.core.algorithms import NEVER, Algorithm, Limit, Parameters, Verdict
from django_quota.core.algorithms.fixed_window import FixedWindow
from django_quota.core.algorithms.token_bucket import Bucket, TokenBucket, backlog_of, in_time
from django_quota.engine.codec import Flag, Flagged
from django_quota.engine.compiled import CompiledLimit
from django_quota.engine.hits import Ahead, HitContext
from django_quota.engine.operations import States, keep


class _Share(NamedTuple):
    """Units that a process has taken ahead of a limit."""

    ends: int
    """When its lease ends, in microseconds; for windows when its units no longer count."""
    stop: int
    """Until when its units count."""
    units: int
    member: str

    @classmethod
    def read(cls, member: str, stop: int) -> _Share:
        """Return the share of a member and its score."""
        _, units, tail = member.split(":")
        return cls(stop - int(tail), stop, int(units), member)


@dataclass(frozen=True)
class _WithShares(Algorithm[Any]):
    """The algorithm of a limit, with the shares that are out."""

    own: Algorithm[Any]
    shares: Sequence[_Share]
    """By the ends of their leases."""
    due: Sequence[_Share] = ()
    """Shares of a bucket whose lease has ended, if nothing may be written: they count as hit at its end."""

    @property
    def out(self) -> int:
        """How many units are out."""
        return sum(share.units for share in self.shares)

    def peek(self, state: Any, p: Parameters, cost: int, now: int) -> Verdict:
        """Admit if what is used, what is out and the cost stay within the limit."""
        state = _charged(state, self.due, p, now)
        own = self.own.peek(state, p, cost, now)
        remaining = own.remaining - self.out
        has_more = p.capacity > 0 and remaining < p.capacity
        more = self._wait(state, p, max(0, remaining) + 1, now) if has_more else NEVER
        reset = self._reset(state, p, own.reset, now)
        if not p.ever_admits(cost):
            return Verdict(allowed=False, remaining=remaining, retry_after=NEVER, reset=reset, more=more)
        allowed = cost <= remaining
        return Verdict(allowed, remaining, 0 if allowed else self._wait(state, p, cost, now), reset, more)

    def consume(self, state: Any, p: Parameters, cost: int, now: int, *, over: bool = False) -> tuple[Any, Verdict]:
        """Consume the cost; the verdict counts what is out."""
        after, own = self.own.consume(state, p, cost, now, over=over)
        more = own.more
        if self.shares and self.own.counts_units:
            more = min(more, self.shares[0].stop - now)
        reset = self._reset(after, p, own.reset, now)
        return after, own._replace(remaining=own.remaining - self.out, reset=reset, more=more)

    def refund(self, state: Any, p: Parameters, cost: int, now: int) -> Any:
        """Give the cost back."""
        return self.own.refund(state, p, cost, now)

    def give_back(self, state: Any, p: Parameters, units: int, cost: int, moment: int, now: int) -> Any:
        """Give units back where they were counted."""
        return self.own.give_back(state, p, units, cost, moment, now)

    def follow_clock(self, state: Any, now: int) -> Any:
        """Return the state after a clock has stepped back."""
        return self.own.follow_clock(state, now)

    def expiry(self, state: Any) -> int:
        """Return when the state no longer matters."""
        return self.own.expiry(state)

    def _reset(self, state: Any, p: Parameters, reset: int, now: int) -> int:
        """Return how long until nothing is used and nothing is out."""
        if not self.own.counts_units:
            return _filled_at(now + backlog_of(state, now), self.shares, p) - now
        return max([reset, *(share.stop - now for share in self.shares)])

    def _wait(self, state: Any, p: Parameters, cost: int, now: int) -> int:
        """Return how long until a hit of this cost has room, if nobody returns anything sooner."""
        if not self.own.counts_units:
            return self._wait_of_bucket(state, p, cost, now)
        used = p.capacity - self.own.peek(state, p, 0, now).remaining
        missing = used + self.out + cost - p.capacity
        waits = [self._own_wait(state, p, used, missing, now)]
        for share in self.shares:
            missing -= share.units
            waits.append(max(share.stop - now, self._own_wait(state, p, used, missing, now)))
        return min(waits)

    def _own_wait(self, state: Any, p: Parameters, used: int, missing: int, now: int) -> int:
        """Return how long until so many units that are used no longer count."""
        if missing <= 0:
            return 0
        return self.own.peek(state, p._replace(capacity=used), missing, now).retry_after if missing <= used else _LONG

    def _wait_of_bucket(self, state: Any, p: Parameters, cost: int, now: int) -> int:
        """Return how long until a hit has room, if each share is hit at the end of its lease."""
        tat, out, shares = now + backlog_of(state, now), self.out, iter(self.shares)
        while out + cost > p.capacity:
            share = next(shares)
            tat, out = _filled_at(tat, (share,), p), out - share.units
        return tat + (out + cost - p.capacity) * p.a - now


_LONG = 10**18
"""Longer than any wait, in microseconds."""


def _filled_at(tat: int, shares: Sequence[_Share], p: Parameters) -> int:
    """Return the moment at which a bucket is full again, if these shares are hit at the ends of their leases."""
    for share in shares:
        tat = max(tat, share.ends) + share.units * p.a
    return tat


def _charged(state: Any, due: Sequence[_Share], p: Parameters, now: int) -> Any:
    """Return a bucket that counts shares which were not returned by the end of their lease."""
    if not due:
        return state
    bucket = in_time(state, now)
    tat = _filled_at(bucket.tat if bucket else 0, due, p)
    return Bucket(tat, now) if tat > now else state


def begin_ahead(states: States, context: HitContext, ahead: Ahead, now: int, *, writes: bool) -> None:
    """Take back the caller's share, and have the limits count what is out, before the hit is decided."""
    limits, out = [], []
    for key, limit in zip(context.hit.ahead_keys, context.limits, strict=True):
        found, algorithm = _begin(states, key, limit, ahead, now, writes=writes)
        limits.append(found._replace(limit=replace(cast("Limit", found.limit), algorithm=algorithm)))
        out.append(algorithm.out)
    context.limits, context.out = limits, out


def _begin(
    states: States, key: str, limit: CompiledLimit, ahead: Ahead, now: int, *, writes: bool
) -> tuple[CompiledLimit, _WithShares]:
    """Take back the caller's share of a limit; return the limit, and its algorithm that counts what is out."""
    kept: Mapping[str, int] = states.get(key) or {}
    live = sorted(_Share.read(member, stop) for member, stop in kept.items() if stop > now)
    own = next((share for share in live if writes and ahead.id and share.member.startswith(f"{ahead.id}:")), None)
    shares = [share for share in live if share is not own]
    algorithm, due = limit.algorithm, list[_Share]()
    if type(algorithm) is FixedWindow:
        state = limit.state(states, now)
        # The window is still open, though a reset has dropped its count: units of it are out.
        last = max((share.stop for share in live), default=0)
        if last and not (state and state.used and state.end > now):
            limit = limit._replace(parameters=limit.parameters._replace(a=last - now))
    elif isinstance(algorithm, TokenBucket):
        due = [share for share in shares if share.ends <= now]
        shares = shares[len(due) :]
    if due and writes:
        state = limit.state(states, now)
        limit.put(states, state, _charged(state, due, limit.parameters, now))
    spent = 0 if own is None else min(ahead.spent, own.units)
    if spent and limit.parameters.capacity:
        state = limit.state(states, now)
        limit.put(states, state, algorithm.consume(state, limit.parameters, spent, now, over=True)[0])
    gone = {share.member for share in ((*due, own) if own else due)} if writes else set()
    if gone:
        keep(states, key, {member: stop for member, stop in kept.items() if member not in gone}, 0)
    return limit, _WithShares(algorithm, shares, () if writes else due)


def take_ahead(states: States, context: HitContext, ahead: Ahead, now: int) -> list[Flagged]:
    """Let the caller take units ahead, after its hit was consumed; return the flags."""
    hit, units, lease = context.hit, ahead.wish, ahead.lease
    ends = []
    for limit, own, verdict in zip(context.limits, hit.limits, context.verdicts, strict=True):
        units = min(units, verdict.remaining // ahead.divisor)
        is_window = isinstance(own.algorithm, FixedWindow)
        ends.append(limit.state(states, now).end if is_window else 0)
        lease = min(lease, ends[-1] - now) if is_window else lease
    if units < 1:
        return []
    for key, limit, end in zip(hit.ahead_keys, hit.limits, ends, strict=True):
        p = limit.parameters
        tail = p.capacity * p.a if isinstance(limit.algorithm, TokenBucket) else 0
        stop = end or now + lease + (tail or p.a)
        live = {member: score for member, score in (states.get(key) or {}).items() if score > now}
        keep(states, key, {**live, f"{ahead.new_id}:{units}:{tail}": stop}, stop)
    return [Flagged(context.index, Flag.GRANTED, units), Flagged(context.index, Flag.LEASED, lease)]
