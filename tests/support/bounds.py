"""The published bound of each algorithm, and how to measure what was admitted."""

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from tests.support.steps import SECOND

MINUTE = 60 * SECOND


def most_in_a_window(admitted: Iterable[tuple[int, int]], window: int = MINUTE) -> int:
    moments = sorted(admitted)
    return max((sum(cost for at, cost in moments if 0 <= at - first < window) for first, _ in moments), default=0)


CASES: dict[str, tuple[dict[str, Any], int]] = {
    "sliding-exact": ({"rate": "7/m"}, 7),
    "sliding-at-precision": ({"rate": "100/m"}, 100),
    "sliding-slices": ({"rate": "23/m", "precision": 5}, 23),
    "sliding-one-slice": ({"rate": "23/m", "precision": 1}, 23),
    "sliding-many": ({"rate": "1000/m"}, 1_000),
    "sliding-counted": ({"rate": "7/m", "count_refused": True}, 7),
    "fixed": ({"rate": "7/m", "algorithm": "fixed_window"}, 14),
    "calendar": ({"rate": "7/m", "algorithm": "calendar"}, 14),  # a window may straddle two periods of 7 each
    "token-bucket": ({"rate": "7/m", "algorithm": "token_bucket"}, 14),
    "token-bucket-burst": ({"rate": "7/m", "algorithm": "token_bucket", "burst": 3}, 10),
    "leaky-bucket": ({"rate": "7/m", "algorithm": "leaky_bucket"}, 7),
}

GAPS = st.one_of(
    st.integers(0, 3),
    st.integers(0, 90 * SECOND),
    st.sampled_from([MINUTE - 1, MINUTE, MINUTE + 1, MINUTE // 5, MINUTE // 7, MINUTE // 100, MINUTE // 2]),
)
