"""The token bucket as GCRA: bursts up to `burst`, then a steady refill. Pure; `lua/token_bucket.lua` twin.

The state is one integer, the theoretical arrival time (TAT): the moment at which the bucket is full again. Each hit
moves it on by `interval = window / count`, rounded up to a whole microsecond; a hit is admitted where the TAT stays
within `burst` intervals of now. Source: ITU-T I.371 annex A, the Generic Cell Rate Algorithm in its virtual scheduling
form.

What was taken first flows back first: a hit stands in a queue, and what is left of it is what has not flowed back yet.
Where something is given back, those behind it move up, and nobody notes by how much each of them. So the bucket says
how much was given back in all. Whoever gives back what he spent (a hold, or a hit that is undone) takes off what was
given since: so he may get less than is left of it, never more. See `TokenBucket.left`.

A clock that steps back would look like a backlog as long as the step, and lock the subject out for as long. So a bucket
says when it was written. Where that is later than now, it moves back with the clock, as if the step had been refunded:
what was used when it was written is used now. A refused hit writes that down, so that time passes from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django_quota.algorithms.base import MOST, NEVER, Algorithm, Options, Parameters, Verdict
from django_quota.exceptions import RateError, RuleError
from django_quota.rates import MAX_COUNT, MAX_PERIOD, Rate

GIVEN_WRAP = 2**50
"""What was given back counts modulo this."""


class Bucket(NamedTuple):
    """The TAT, and how much (microseconds) was given back of what was spent, while anything of that may still count."""

    tat: int
    given: int = 0
    """In all, modulo `GIVEN_WRAP`."""
    refunded: int = 0
    """By refunds, of which nobody knows whose units they were."""
    asked_until: int = 0
    """The moment from which on nothing of what was spent is used, whatever is given back; 0: nothing was given back."""
    written: int = 0
    """When it was written."""


class Queued(NamedTuple):
    """What a hit notes of its place in the queue."""

    stop: int
    """When its last unit has flowed back, if nothing is given back ahead of it."""
    given: int
    refunded: int
    """How much had been given back, and refunded, before it came."""
    alone: int
    """When its last unit would have flowed back, had nothing been ahead of it."""
    interval: int = 0
    """The microseconds that one of its units takes."""


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
        backlog = backlog_of(state, now)
        span = p.capacity * p.a
        remaining = max(0, (span - backlog) // p.a)
        wait, more = backlog + cost * p.a - span, _until_more(p, backlog, remaining)
        if p.capacity > 0 and wait <= 0:
            return Verdict(ok=True, remaining=remaining, wait=self.held_back(backlog), reset=backlog, more=more)
        if cost > p.capacity or p.capacity == 0:
            return Verdict(ok=False, remaining=remaining, wait=NEVER, reset=backlog, more=more)
        return Verdict(ok=False, remaining=remaining, wait=wait, reset=backlog, more=more)

    def spend(
        self, state: Bucket | None, p: Parameters, cost: int, now: int, *, over: bool = False
    ) -> tuple[Bucket, Verdict]:
        """Move the TAT on by the cost, but, unless `over`, never further than a full bucket's worth from now."""
        backlog = backlog_of(state, now)
        span = p.capacity * p.a
        after = min(backlog + cost * p.a, MOST if over else max(span, backlog))
        remaining = max(0, (span - after) // p.a)
        more = _until_more(p, after, remaining)
        verdict = Verdict(ok=True, remaining=remaining, wait=self.held_back(backlog), reset=after, more=more)
        tat, before = now + after, known_of(state, now)
        asked_until = before.asked_until and max(before.asked_until, tat)
        return before._replace(tat=tat, asked_until=asked_until, written=now), verdict

    def refund(self, state: Bucket | None, p: Parameters, cost: int, now: int) -> Bucket | None:
        """Move the TAT back, at most to now: a bucket is never more than full."""
        return given_back(state, cost * p.a, now, is_refund=True)

    def mark(self, state: Bucket | None, p: Parameters, cost: int, stop: int, now: int) -> Queued:
        """Return its place in the queue."""
        known = known_of(state, now)
        return Queued(stop, known.given, known.refunded, now + cost * p.a, p.a)

    def give_back(
        self, state: Bucket | None, p: Parameters, units: int, mark: Sequence[int], now: int
    ) -> Bucket | None:
        """Give back what has not flowed back yet, at the interval that it was taken at."""
        queued = Queued(*mark)
        return given_back(state, min(units * queued.interval, self.left(state, queued, now)), now)

    def left(self, state: Bucket | None, queued: Queued, now: int) -> int:
        """Return how much (microseconds) is left of a hit, or less where that is not known, never more.

        It has moved up by what was given back ahead of it: by all that was, at most. And however far it has moved up,
        no more of it has flowed back than time has passed since it came; but a refund may have been of its own units.
        """
        known = known_of(state, now)
        moved_up = (known.given - queued.given) % GIVEN_WRAP
        own = (known.refunded - queued.refunded) % GIVEN_WRAP
        return max(queued.stop - moved_up, queued.alone - own) - now

    def follow_clock(self, state: Bucket | None, now: int) -> Bucket | None:
        """Return the bucket moved back with the clock."""
        return known_of(state, now) if state and state.written > now else state

    def expiry(self, state: Bucket) -> int:
        """Return the TAT, from when on the bucket is full, or when nobody asks any more what was given back."""
        return max(state.tat, state.asked_until)


def known_of(state: Bucket | None, now: int) -> Bucket:
    """Return the bucket with what was given back of it, as far as that may be asked for, in the time of the clock."""
    if state is None:
        return Bucket(0)
    known = state if state.asked_until > now else Bucket(state.tat, written=state.written)
    step = state.written - now
    if step <= 0:
        return known
    return Bucket(
        known.tat - step,
        (known.given + step) % GIVEN_WRAP,
        (known.refunded + step) % GIVEN_WRAP,
        max(known.asked_until, known.tat),
        now,
    )


def backlog_of(state: Bucket | None, now: int) -> int:
    """Return how long (microseconds) it takes until nothing is used."""
    return max(0, known_of(state, now).tat - now)


def _until_more(p: Parameters, backlog: int, remaining: int) -> int:
    """Return how long until one unit more is left; `NEVER` where no time brings one."""
    return backlog - (p.capacity - remaining - 1) * p.a if backlog and p.capacity else NEVER


def given_back(state: Bucket | None, span: int, now: int, *, is_refund: bool = False) -> Bucket | None:
    """Return the bucket with so much (microseconds) of its backlog given back; None where nothing is left to keep."""
    known, backlog = known_of(state, now), backlog_of(state, now)
    span = min(span, backlog)
    if span <= 0:
        return state
    if span == backlog and not is_refund and not known.asked_until:  # it was the only one
        return None
    return Bucket(
        now + backlog - span,
        (known.given + span) % GIVEN_WRAP,
        (known.refunded + span) % GIVEN_WRAP if is_refund else known.refunded,
        known.asked_until or known.tat,
        now,
    )


def _interval(rate: Rate) -> int:
    return -(-rate.period // max(rate.count, 1))
