"""The leaky bucket: hits leave it evenly spaced, and `Decision.delay` says how long each must wait.

It is the token bucket read the other way round: the backlog is a queue. A hit is admitted if the queue has room, and
leaves when the hits before it have left. A client that waits for the delay never exceeds the rate. See
`lua/leaky_bucket.lua`.

An admitted hit knows when it leaves. So a hit gives its place back only while it is the last in the queue. A refund
gives nothing back, since it does not say whose place to free.
"""

from __future__ import annotations

from django_quota.core.algorithms.base import Parameters
from django_quota.core.algorithms.token_bucket import Bucket, TokenBucket


class LeakyBucket(TokenBucket):
    """Parameters: capacity = the room of the queue (`burst`, by default the rate's count); a = the interval."""

    name = "leaky_bucket"
    code = "lb"
    bound = "limit (+ cost - 1), once each has waited its delay"

    def held_back(self, backlog: int) -> int:
        """Return the time that the hits before this one take to leave."""
        return backlog

    def refund(self, state: Bucket | None, p: Parameters, cost: int, now: int) -> Bucket | None:
        """Give nothing back: later hits know when they leave."""
        return state

    def give_back(
        self, state: Bucket | None, p: Parameters, units: int, cost: int, moment: int, now: int
    ) -> Bucket | None:
        """Give back the last place in the queue, as far as it has not drained."""
        is_last = state is not None and state.written == moment
        return super().give_back(state, p, units, cost, moment, now) if is_last else state
