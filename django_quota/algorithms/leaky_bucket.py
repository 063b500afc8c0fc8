"""The leaky bucket: hits leave it evenly spaced, and `Decision.delay` says how long each has to wait. Pure.

The same integer as the token bucket's, read the other way round: the backlog is a queue, a hit is admitted where the
queue has room for it, and leaves when the hits before it have. Whoever waits the delay never exceeds the rate. Its
twin is `lua/leaky_bucket.lua`.
"""

from __future__ import annotations

from django_quota.algorithms.token_bucket import TokenBucket


class LeakyBucket(TokenBucket):
    """Parameters: capacity = the room of the queue (`burst`, by default the rate's count); a = the interval."""

    name = "leaky_bucket"
    code = "lb"
    bound = "limit (+ cost - 1), once each has waited its delay"

    def held_back(self, backlog: int) -> int:
        """Return the time that the hits before this one take to leave."""
        return backlog
