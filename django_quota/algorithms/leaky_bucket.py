"""The leaky bucket: hits leave it evenly spaced, and `Decision.delay` says how long each has to wait. Pure.

The same integer as the token bucket's, read the other way round: the backlog is a queue, a hit is admitted where the
queue has room for it, and leaves when the hits before it have. Whoever waits the delay never exceeds the rate. Its
twin is `lua/leaky_bucket.lua`.

Who is admitted is told when to leave. So a place can be given to another only while nobody stands behind it: a hold
gives back the last place in the queue, and a refund, of which nobody knows whose place it was, gives nothing back.
"""

from __future__ import annotations

from collections.abc import Sequence

from django_quota.algorithms.base import Parameters
from django_quota.algorithms.token_bucket import Bucket, Queued, TokenBucket, given_back, known_of


class LeakyBucket(TokenBucket):
    """Parameters: capacity = the room of the queue (`burst`, by default the rate's count); a = the interval."""

    name = "leaky_bucket"
    code = "lb"
    bound = "limit (+ cost - 1), once each has waited its delay"

    def held_back(self, backlog: int) -> int:
        """Return the time that the hits before this one take to leave."""
        return backlog

    def refund(self, state: Bucket | None, p: Parameters, cost: int, now: int) -> Bucket | None:
        """Give nothing back: those behind it know when they leave."""
        return state

    def give_back(
        self, state: Bucket | None, p: Parameters, units: int, mark: Sequence[int], now: int
    ) -> Bucket | None:
        """Give back what nobody stands behind, and time has not come to yet."""
        queued = Queued(*mark)
        is_last = known_of(state, now).tat == queued.stop
        return given_back(state, units * queued.interval, now) if is_last else state
