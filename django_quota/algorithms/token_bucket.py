"""The token bucket as GCRA: bursts up to `burst`, then a steady refill. Pure; `lua/token_bucket.lua` twin.

The state is one integer, the theoretical arrival time (TAT): the moment at which the bucket is full again. Each hit
moves it on by `interval = window / count`, rounded up to a whole microsecond; a hit is admitted where the TAT stays
within `burst` intervals of now. Source: ITU-T I.371 annex A, the Generic Cell Rate Algorithm in its virtual scheduling
form.
"""

from __future__ import annotations

from django_quota.algorithms.base import MOST, NEVER, Algorithm, Options, Parameters, Verdict
from django_quota.exceptions import RateError, RuleError
from django_quota.rates import MAX_COUNT, MAX_PERIOD, Rate


class TokenBucket(Algorithm[int]):
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

    def inspect(self, state: int | None, p: Parameters, cost: int, now: int) -> Verdict:
        """Admit where backlog + cost fits the bucket; else wait until enough has flowed."""
        backlog = max(0, (state or 0) - now)
        span = p.capacity * p.a
        remaining = max(0, (span - backlog) // p.a)
        wait = backlog + cost * p.a - span
        if p.capacity > 0 and wait <= 0:
            return Verdict(ok=True, remaining=remaining, wait=self.held_back(backlog), reset=backlog)
        if cost > p.capacity or p.capacity == 0:
            return Verdict(ok=False, remaining=remaining, wait=NEVER, reset=backlog)
        return Verdict(ok=False, remaining=remaining, wait=wait, reset=backlog)

    def spend(
        self, state: int | None, p: Parameters, cost: int, now: int, *, over: bool = False
    ) -> tuple[int, Verdict]:
        """Move the TAT on by the cost, but, unless `over`, never further than a full bucket's worth from now."""
        backlog = max(0, (state or 0) - now)
        span = p.capacity * p.a
        after = min(backlog + cost * p.a, MOST if over else max(span, backlog))
        remaining = max(0, (span - after) // p.a)
        return now + after, Verdict(ok=True, remaining=remaining, wait=self.held_back(backlog), reset=after)

    def still_used(self, p: Parameters, units: int, stop: int, now: int) -> int:
        """Return the units that have not flowed back yet: what was taken first does so first."""
        return min(units, max(0, (stop - now) // p.a))

    def refund(self, state: int | None, p: Parameters, cost: int, now: int) -> int | None:
        """Move the TAT back, at most to now: a bucket is never more than full."""
        after = (state or 0) - cost * p.a
        return after if after > now else None

    def expiry(self, state: int) -> int:
        """Return the TAT: from then on the bucket is full."""
        return state


def _interval(rate: Rate) -> int:
    return -(-rate.period // max(rate.count, 1))
