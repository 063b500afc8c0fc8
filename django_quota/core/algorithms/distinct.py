"""Different values: at most a number of them in any window. See `distinct.lua`.

Three devices for an account, five accounts for an address: what counts are the values of hits, not the hits. A known
value is free, and each use keeps it known for another window. So no window sees more values than the limit. A rule
chooses this algorithm by `distinct=`, not by `algorithm=`.
"""

from __future__ import annotations

from collections.abc import Mapping

from django_quota.core.algorithms.base import NEVER, Algorithm, Options, Parameters, Verdict
from django_quota.core.errors import RateError, Translatable
from django_quota.core.rates import Rate

MAX_VALUES = 10_000
"""The largest count: each value is an entry of about 60 bytes."""

Values = Mapping[str, int]
"""The digests that are known, each with the moment it is forgotten (microseconds)."""


class Distinct(Algorithm[Values]):
    """At most the limit of different values in any window.

    Parameters: a = the window in microseconds; value = the digest of the hit's value.
    """

    name = "distinct"
    code = "dv"

    def validate(self, rate: Rate, options: Options) -> None:
        """Check that there are not too many values to keep."""
        super().validate(rate, options)
        if rate.count > MAX_VALUES:
            raise RateError(
                str(rate),
                0,
                Translatable("distinct= keeps every value, and so takes at most %(most)d", most=MAX_VALUES),
                Translatable("counter(...).unique() estimates larger numbers."),
            )

    def peek(self, state: Values | None, p: Parameters, cost: int, now: int) -> Verdict:
        """Admit a known value, and a new one if there is room; else wait until one is forgotten."""
        live = _live(state, now)
        reset = max(live.values()) - now if live else 0
        is_known = cost == 0 or p.value in live
        more = _until_more(live, p, now)
        allowed = p.capacity > 0 and (is_known or len(live) < p.capacity)
        # A new value for which there is no room waits for the same moment as `more`.
        return Verdict(allowed, p.capacity - len(live), 0 if allowed else more, reset, more)

    def consume(
        self, state: Values | None, p: Parameters, cost: int, now: int, *, over: bool = False
    ) -> tuple[Values, Verdict]:
        """Remember the value for a window from now."""
        live = _live(state, now)
        # After a clock steps back, a value is not forgotten sooner. A known value stays known for a microsecond more,
        # so that `give_back` can see whether a hit has added the value.
        is_known = p.value in live
        after = {**live, p.value: max(now + p.a, live[p.value]) + 1 if is_known else now + p.a}
        remaining = p.capacity - len(after)
        reset, more = max(after.values()) - now, _until_more(after, p, now)
        return after, Verdict(allowed=True, remaining=remaining, retry_after=0, reset=reset, more=more)

    def refund(self, state: Values | None, p: Parameters, cost: int, now: int) -> Values | None:
        """Forget the value."""
        return {value: expiry for value, expiry in (state or {}).items() if cost == 0 or value != p.value} or None

    def give_back(
        self, state: Values | None, p: Parameters, units: int, cost: int, moment: int, now: int
    ) -> Values | None:
        """Forget the value, if this hit added it and no later hit has used it."""
        is_its_own = (state or {}).get(p.value) == moment + p.a
        return self.refund(state, p, units, now) if is_its_own else state

    def expiry(self, state: Values) -> int:
        """Return when the last value is forgotten."""
        return max(state.values())


def _until_more(live: Values, p: Parameters, now: int) -> int:
    """Return how long until a forgotten value makes room; `NEVER` if waiting does not help."""
    if not live or p.capacity == 0:
        return NEVER
    return sorted(live.values())[max(0, len(live) - p.capacity)] - now


def _live(state: Values | None, now: int) -> Values:
    return {value: expiry for value, expiry in (state or {}).items() if expiry > now}
