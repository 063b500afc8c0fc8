"""The token bucket as GCRA: bursts up to `burst`, then a steady refill; and the leaky bucket, which spaces hits.

The state is one integer, the theoretical arrival time (TAT): the moment at which the bucket is full again. Each hit
moves the TAT on by `interval = window / count`, rounded up to a whole microsecond. A hit is admitted if the TAT stays
within `burst` intervals of now. Source: ITU-T I.371 annex A, the Generic Cell Rate Algorithm in its virtual scheduling
form.

A clock that steps back would look like a backlog as long as the step, and lock the subject out. So a bucket notes when
it was written. If that is later than now, the bucket moves back with the clock, as if the step had been refunded. A
refused hit then writes the bucket too, so that time counts from then on.
"""

from __future__ import annotations

from typing import NamedTuple

from django_quota.core.algorithms.base import MAX_USED, NEVER, Algorithm, Options, Parameters, Verdict
from django_quota.core.errors import RateError, RuleError, Translatable
from django_quota.core.rates import MAX_COUNT, MAX_PERIOD, Rate


class Bucket(NamedTuple):
    """The TAT, and when it was written (microseconds)."""

    tat: int
    written: int


class TokenBucket(Algorithm[Bucket]):
    """At most the burst and the limit in any window.

    Parameters: capacity = the burst; a = the interval in microseconds.
    """

    name = "token_bucket"
    code = "tb"
    takes = frozenset({"burst"})
    counts_units = False

    def validate(self, rate: Rate, options: Options) -> None:
        """Check the burst, and that an interval is at least a microsecond."""
        super().validate(rate, options)
        if rate.count > rate.period:
            raise RateError(
                str(rate),
                0,
                Translatable("it is more than one a microsecond, the finest that '%(name)s' spaces", name=self.name),
                Translatable("Use algorithm='sliding_window'."),
            )
        if options.burst is None:
            return
        if not 1 <= options.burst <= MAX_COUNT:
            example = max(rate.count, 1)
            raise RuleError(f"burst={options.burst!r} is not from 1 to {MAX_COUNT}. Use, for example, {example}.")
        if options.burst * _interval(rate) > 10 * MAX_PERIOD:
            raise RuleError(
                Translatable(
                    "burst=%(burst)d at '%(rate)s' takes over ten years to refill. Use at most %(most)d.",
                    burst=options.burst,
                    rate=rate,
                    most=10 * MAX_PERIOD // _interval(rate),
                )
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
        """Admit if backlog + cost fits the bucket; else wait until enough has refilled."""
        backlog = backlog_of(state, now)
        span = p.capacity * p.a
        remaining = (span - backlog) // p.a
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
        remaining = (span - after) // p.a
        more = _until_more(p, after, remaining)
        verdict = Verdict(
            allowed=True, remaining=remaining, retry_after=self.held_back(backlog), reset=after, more=more
        )
        return Bucket(now + after, now), verdict

    def refund(self, state: Bucket | None, p: Parameters, cost: int, now: int) -> Bucket | None:
        """Move the TAT back, at most to now: a bucket is never more than full."""
        return self._with_less(state, cost * p.a, now)

    def give_back(
        self, state: Bucket | None, p: Parameters, units: int, cost: int, moment: int, now: int
    ) -> Bucket | None:
        """Move the TAT back by no more than what has not refilled since the hit."""
        return self._with_less(state, min(units * p.a, cost * p.a - (now - moment)), now)

    @staticmethod
    def _with_less(state: Bucket | None, span: int, now: int) -> Bucket | None:
        """Return the bucket with its backlog shortened by `span` (microseconds); None if no backlog is left."""
        bucket = in_time(state, now)
        if bucket is None or span <= 0:
            return state
        return bucket._replace(tat=bucket.tat - span) if bucket.tat - span > now else None

    def follow_clock(self, state: Bucket | None, now: int) -> Bucket | None:
        """Return the bucket moved back with the clock."""
        return in_time(state, now)

    def expiry(self, state: Bucket) -> int:
        """Return when the bucket is full."""
        return state.tat


def in_time(state: Bucket | None, now: int) -> Bucket | None:
    """Return the bucket, moved back with a clock that has stepped back."""
    if state is None or state.written <= now:
        return state
    return Bucket(state.tat - (state.written - now), now)


def backlog_of(state: Bucket | None, now: int) -> int:
    """Return how long (microseconds) it takes until nothing is used."""
    bucket = in_time(state, now)
    return max(0, bucket.tat - now) if bucket else 0


def _until_more(p: Parameters, backlog: int, remaining: int) -> int:
    """Return how long until one unit more is left; `NEVER` if waiting does not help."""
    return backlog - (p.capacity - max(0, remaining) - 1) * p.a if backlog and p.capacity else NEVER


def _interval(rate: Rate) -> int:
    return -(-rate.period // max(rate.count, 1))


# --- leaky_bucket -----------------------------------------------------------------------------------------------------


class LeakyBucket(TokenBucket):
    """At most the limit in any window, and cost - 1 more, if each hit waits for its delay.

    Parameters: capacity = the room of the queue (`burst`, by default the rate's count); a = the interval.
    """

    name = "leaky_bucket"
    code = "lb"

    def held_back(self, backlog: int) -> int:
        """Return the time that the hits before this one take to leave."""
        return backlog

    def refund(self, state: Bucket | None, p: Parameters, cost: int, now: int) -> Bucket | None:
        """Give nothing back: later hits have their delays already."""
        return state

    def give_back(
        self, state: Bucket | None, p: Parameters, units: int, cost: int, moment: int, now: int
    ) -> Bucket | None:
        """Give back the units of the last hit in the queue, as far as they have not drained; none of an earlier hit."""
        is_last = state is not None and state.written == moment
        return super().give_back(state, p, units, cost, moment, now) if is_last else state
