"""The token bucket as GCRA: bursts up to `burst`, then a steady refill. See `lua/token_bucket.lua`.

The state is one integer, the theoretical arrival time (TAT): the moment at which the bucket is full again. Each hit
moves it on by `interval = window / count`, rounded up to a whole microsecond. A hit is admitted if the TAT stays
within `burst` intervals of now. Source: ITU-T I.371 annex A, the Generic Cell Rate Algorithm in its virtual scheduling
form.

What was consumed first flows back first, as in a queue. When something is restored, later hits move up, and nobody
notes by how much. So the bucket notes how much was restored in all. A hold that is restored, or a hit that is
compensated, subtracts what was restored since it came: so it may get back less than is left of it, never more. See
`TokenBucket.left`.

A clock that steps back would look like a backlog as long as the step, and lock the subject out. So a bucket notes when
it was written. If that is later than now, the bucket moves back with the clock, as if the step had been refunded. A
refused hit writes it too, so that time passes from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django_quota.core.algorithms.base import MAX_USED, NEVER, Algorithm, Options, Parameters, Verdict
from django_quota.core.errors import RateError, RuleError
from django_quota.core.rates import MAX_COUNT, MAX_PERIOD, Rate

RESTORED_WRAP = 2**50
"""What was restored counts modulo this."""


class Bucket(NamedTuple):
    """The TAT, and how much (microseconds) was restored, while anything that was consumed may still count."""

    tat: int
    restored: int = 0
    """In all, modulo `RESTORED_WRAP`."""
    refunded: int = 0
    """By refunds: nobody knows whose units they were."""
    counts_until: int = 0
    """When nothing that was consumed counts any more; 0: nothing was restored."""
    written: int = 0
    """When it was written."""


class Queued(NamedTuple):
    """The receipt of a hit: its place in the queue."""

    stop: int
    """When its last unit has flowed back, if nothing is restored ahead of it."""
    restored: int
    refunded: int
    """How much had been restored, and refunded, before it came."""
    alone: int
    """When its last unit would have flowed back, had nothing been ahead of it."""
    interval: int
    """The microseconds that one of its units takes."""


class TokenBucket(Algorithm[Bucket]):
    """Parameters: capacity = the burst; a = the interval in microseconds."""

    name = "token_bucket"
    code = "tb"
    takes = frozenset({"burst"})
    bound = "burst + limit"
    knows = 2

    def validate(self, rate: Rate, options: Options) -> None:
        """Check the burst, and that an interval is at least a microsecond."""
        super().validate(rate, options)
        if rate.count > rate.period:
            raise RateError(
                str(rate),
                0,
                f"it is more than one a microsecond, the finest that {self.name!r} spaces",
                "Use algorithm='sliding_window'.",
            )
        if options.burst is None:
            return
        if not 1 <= options.burst <= MAX_COUNT:
            example = max(rate.count, 1)
            raise RuleError(f"burst={options.burst!r} is not from 1 to {MAX_COUNT}. Use, for example, {example}.")
        if options.burst * _interval(rate) > 10 * MAX_PERIOD:
            raise RuleError(
                f"burst={options.burst!r} at {str(rate)!r} takes over ten years to refill. Use at most "
                f"{10 * MAX_PERIOD // _interval(rate)}."
            )

    def parameters(self, rate: Rate, options: Options, now: int) -> Parameters:
        """Return the burst (by default the rate's count; 0 if the rate is 0) and the interval."""
        capacity = 0 if rate.count == 0 else options.burst or rate.count
        return Parameters(capacity, _interval(rate))

    def refill(self, rate: Rate, capacity: int) -> int:
        """Return how long an empty bucket takes to be full."""
        return rate.period if capacity == rate.count else capacity * _interval(rate)

    def held_back(self, backlog: int) -> int:
        """Return how long an admitted hit should be held back, in microseconds."""
        return 0

    def peek(self, state: Bucket | None, p: Parameters, cost: int, now: int) -> Verdict:
        """Admit if backlog + cost fits the bucket; else wait until enough has flowed back."""
        backlog = backlog_of(state, now)
        span = p.capacity * p.a
        remaining = max(0, (span - backlog) // p.a)
        wait = backlog + cost * p.a - span
        allowed = p.ever_admits(cost) and wait <= 0
        retry_after = self.held_back(backlog) if allowed else wait if p.ever_admits(cost) else NEVER
        return Verdict(allowed, remaining, retry_after, backlog, _until_more(p, backlog, remaining))

    def consume(
        self, state: Bucket | None, p: Parameters, cost: int, now: int, *, over: bool = False
    ) -> tuple[Bucket, Verdict]:
        """Move the TAT on by the cost, but, unless `over`, never further than a full bucket's worth from now."""
        backlog = backlog_of(state, now)
        span = p.capacity * p.a
        after = min(backlog + cost * p.a, MAX_USED if over else max(span, backlog))
        remaining = max(0, (span - after) // p.a)
        more = _until_more(p, after, remaining)
        verdict = Verdict(
            allowed=True, remaining=remaining, retry_after=self.held_back(backlog), reset=after, more=more
        )
        tat, before = now + after, known_of(state, now)
        counts_until = before.counts_until and max(before.counts_until, tat)
        return before._replace(tat=tat, counts_until=counts_until, written=now), verdict

    def refund(self, state: Bucket | None, p: Parameters, cost: int, now: int) -> Bucket | None:
        """Move the TAT back, at most to now: a bucket is never more than full."""
        return restored_bucket(state, cost * p.a, now, is_refund=True)

    def known_before(self, state: Bucket | None, p: Parameters, now: int) -> Sequence[int]:
        """Return how much was restored, and how much of that by refunds."""
        known = known_of(state, now)
        return known.restored, known.refunded

    def receipt(self, p: Parameters, cost: int, stop: int, known: Sequence[int], now: int) -> Queued:
        """Return its place in the queue."""
        restored, refunded = known
        return Queued(stop, restored, refunded, now + cost * p.a, p.a)

    def restore(
        self, state: Bucket | None, p: Parameters, units: int, receipt: Sequence[int], now: int
    ) -> Bucket | None:
        """Restore what has not flowed back yet, at the interval that it was consumed at."""
        queued = Queued(*receipt)
        return restored_bucket(state, min(units * queued.interval, self.left(state, queued, now)), now)

    def left(self, state: Bucket | None, queued: Queued, now: int) -> int:
        """Return how much (microseconds) is left of a hit; less if that is not known, never more.

        It has moved up by what was restored ahead of it, at most by all that was restored. No more of it has flowed
        back than time has passed since it came, except that a refund may have been of its own units.
        """
        known = known_of(state, now)
        moved_up = (known.restored - queued.restored) % RESTORED_WRAP
        own = (known.refunded - queued.refunded) % RESTORED_WRAP
        return max(queued.stop - moved_up, queued.alone - own) - now

    def follow_clock(self, state: Bucket | None, now: int) -> Bucket | None:
        """Return the bucket moved back with the clock."""
        return known_of(state, now) if state and state.written > now else state

    def expiry(self, state: Bucket) -> int:
        """Return when the bucket is full and nothing that was consumed counts any more."""
        return max(state.tat, state.counts_until)


def known_of(state: Bucket | None, now: int) -> Bucket:
    """Return the bucket in the time of the clock, with what was restored if that still counts."""
    if state is None:
        return Bucket(0)
    known = state if state.counts_until > now else Bucket(state.tat, written=state.written)
    step = state.written - now
    if step <= 0:
        return known
    return Bucket(
        known.tat - step,
        (known.restored + step) % RESTORED_WRAP,
        (known.refunded + step) % RESTORED_WRAP,
        max(known.counts_until, known.tat),
        now,
    )


def backlog_of(state: Bucket | None, now: int) -> int:
    """Return how long (microseconds) it takes until nothing is used."""
    return max(0, known_of(state, now).tat - now)


def _until_more(p: Parameters, backlog: int, remaining: int) -> int:
    """Return how long until one unit more is left; `NEVER` if no time brings one."""
    return backlog - (p.capacity - remaining - 1) * p.a if backlog and p.capacity else NEVER


def restored_bucket(state: Bucket | None, span: int, now: int, *, is_refund: bool = False) -> Bucket | None:
    """Return the bucket with a part (microseconds) of its backlog restored; None if there is nothing left to keep."""
    known, backlog = known_of(state, now), backlog_of(state, now)
    span = min(span, backlog)
    if span <= 0:
        return state
    if span == backlog and not is_refund and not known.counts_until:  # it was the only one
        return None
    return Bucket(
        now + backlog - span,
        (known.restored + span) % RESTORED_WRAP,
        (known.refunded + span) % RESTORED_WRAP if is_refund else known.refunded,
        known.counts_until or known.tat,
        now,
    )


def _interval(rate: Rate) -> int:
    return -(-rate.period // max(rate.count, 1))
