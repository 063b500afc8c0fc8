"""The token bucket as GCRA: bursts up to `burst`, then a steady refill. Pure; `lua/token_bucket.lua` twin.

The state is one integer, the theoretical arrival time (TAT): the moment at which the bucket is full again. Each hit
moves it on by `interval = window / count`, rounded up to a whole microsecond; a hit is admitted where the TAT stays
within `burst` intervals of now. Source: ITU-T I.371 annex A, the Generic Cell Rate Algorithm in its virtual scheduling
form.

Where something was given back, a second integer says how much in all, for as long as a hit may be under way that is
undone yet: by it `operations.undo` knows how far the others have moved up.
"""

from __future__ import annotations

from typing import NamedTuple

from django_quota.algorithms.base import MOST, NEVER, Algorithm, Options, Parameters, Verdict
from django_quota.clock import SECOND
from django_quota.exceptions import RateError, RuleError
from django_quota.rates import MAX_COUNT, MAX_PERIOD, Rate

GIVEN_WRAP = 2**50
"""What was given back counts modulo this."""

LONGEST_UNDER_WAY = 3_600 * SECOND
"""How long a hit may take from being spent to being undone: a bound far above all that a caller waits for."""


class Bucket(NamedTuple):
    """The TAT, and how much (microseconds) was given back of what was spent; 0 where nobody asks any more."""

    tat: int
    given: int = 0


class TokenBucket(Algorithm[Bucket]):
    """Parameters: capacity = the burst; a = the interval in microseconds."""

    name = "token_bucket"
    code = "tb"
    takes = frozenset({"burst"})
    bound = "burst + limit"

    def validate(self, rate: Rate, options: Options) -> None:
        """Check the burst, and that an interval is at least a microsecond."""
        super().validate(rate, options)
        if rate.count > rate.period:
            raise RateError(
                str(rate),
                0,
                f"it is more than one a microsecond, the finest that {self.name!r} spaces",
                "algorithm='sliding_window' would do.",
            )
        if options.burst is None:
            return
        if not 1 <= options.burst <= MAX_COUNT:
            raise RuleError(f"burst={options.burst!r} is not from 1 to {MAX_COUNT}; {max(rate.count, 1)} would do.")
        if options.burst * _interval(rate) > 10 * MAX_PERIOD:
            raise RuleError(
                f"burst={options.burst!r} at {str(rate)!r} takes over ten years to refill; a burst of "
                f"{10 * MAX_PERIOD // _interval(rate)} or less would do."
            )

    def parameters(self, rate: Rate, options: Options, now: int) -> Parameters:
        """Return the burst (by default the rate's count; none where the rate is 0) and the interval."""
        capacity = 0 if rate.count == 0 else options.burst or rate.count
        return Parameters(capacity, _interval(rate))

    def refill(self, rate: Rate, capacity: int) -> int:
        """Return how long an empty bucket takes to be full."""
        return rate.period if capacity == rate.count else capacity * _interval(rate)

    def held_back(self, backlog: int) -> int:
        """Return how long an admitted hit should be held back, in microseconds."""
        return 0

    def inspect(self, state: Bucket | None, p: Parameters, cost: int, now: int) -> Verdict:
        """Admit where backlog + cost fits the bucket; else wait until enough has flowed."""
        backlog = max(0, state.tat - now) if state else 0
        span = p.capacity * p.a
        remaining = max(0, (span - backlog) // p.a)
        wait = backlog + cost * p.a - span
        if p.capacity > 0 and wait <= 0:
            return Verdict(ok=True, remaining=remaining, wait=self.held_back(backlog), reset=backlog)
        if cost > p.capacity or p.capacity == 0:
            return Verdict(ok=False, remaining=remaining, wait=NEVER, reset=backlog)
        return Verdict(ok=False, remaining=remaining, wait=wait, reset=backlog)

    def spend(
        self, state: Bucket | None, p: Parameters, cost: int, now: int, *, over: bool = False
    ) -> tuple[Bucket, Verdict]:
        """Move the TAT on by the cost, but, unless `over`, never further than a full bucket's worth from now."""
        backlog = max(0, state.tat - now) if state else 0
        span = p.capacity * p.a
        after = min(backlog + cost * p.a, MOST if over else max(span, backlog))
        remaining = max(0, (span - after) // p.a)
        verdict = Verdict(ok=True, remaining=remaining, wait=self.held_back(backlog), reset=after)
        return Bucket(now + after, given_of(state, now)), verdict

    def still_used(self, p: Parameters, units: int, stop: int, now: int) -> int:
        """Return the units that have not flowed back yet: what was taken first does so first."""
        return min(units, max(0, (stop - now) // p.a))

    def refund(self, state: Bucket | None, p: Parameters, cost: int, now: int) -> Bucket | None:
        """Move the TAT back, at most to now: a bucket is never more than full."""
        return given_back(state, cost * p.a, now)

    def expiry(self, state: Bucket) -> int:
        """Return the TAT, from when on the bucket is full, or when nobody asks any more what was given back."""
        return state.tat + min(state.given, LONGEST_UNDER_WAY)


def given_of(state: Bucket | None, now: int) -> int:
    """Return how much was given back, in all, for as long as it may be asked for."""
    return state.given if state and state.tat + min(state.given, LONGEST_UNDER_WAY) > now else 0


def given_back(state: Bucket | None, span: int, now: int) -> Bucket | None:
    """Return the bucket with so much (microseconds) of its backlog given back; None where nothing is left to keep."""
    before, backlog = given_of(state, now), max(0, state.tat - now) if state else 0
    span = min(span, backlog)
    if span == backlog and not before:
        return None
    return Bucket(now + backlog - span, (before + span) % GIVEN_WRAP)


def _interval(rate: Rate) -> int:
    return -(-rate.period // max(rate.count, 1))
