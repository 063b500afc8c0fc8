"""The leaky bucket: hits leave it evenly spaced, and `Decision.delay` says how long each must wait.

It is the token bucket read the other way round: the backlog is a queue. A hit is admitted if the queue has room, and
leaves when the hits before it have left. A client that waits for the delay never exceeds the rate. See
`lua/leaky_bucket.lua`.

An admitted hit knows when it leaves. So a place can be restored only while nobody is behind it: a hold restores the
last place in the queue. A refund restores nothing, since nobody knows whose place it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from django_quota.core.algorithms.base import Parameters
from django_quota.core.algorithms.token_bucket import Bucket, Queued, TokenBucket, known_of, restored_bucket


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

    def restore(
        self, state: Bucket | None, p: Parameters, units: int, receipt: Sequence[int], now: int
    ) -> Bucket | None:
        """Restore the last place in the queue, as far as it has not drained."""
        queued = Queued(*receipt)
        is_last = known_of(state, now).tat == queued.stop
        return restored_bucket(state, units * queued.interval, now) if is_last else state
