"""The algorithms, by name. Pure."""

from __future__ import annotations

from typing import Any, Literal

from django_quota.algorithms.base import NEVER, NUMBERS, Algorithm, Limit, Options, Parameters, Step, Verdict
from django_quota.algorithms.calendar import Calendar, is_stale
from django_quota.algorithms.distinct import Distinct
from django_quota.algorithms.fixed_window import FixedWindow
from django_quota.algorithms.leaky_bucket import LeakyBucket
from django_quota.algorithms.sliding_window import SlidingWindow
from django_quota.algorithms.token_bucket import TokenBucket

__all__ = [
    "ALGORITHMS",
    "DISTINCT",
    "EVERY",
    "NEVER",
    "NUMBERS",
    "Algorithm",
    "AlgorithmName",
    "Limit",
    "Options",
    "Parameters",
    "Step",
    "Verdict",
    "is_stale",
]

AlgorithmName = Literal["sliding_window", "fixed_window", "calendar", "token_bucket", "leaky_bucket"]
"""What `algorithm=` takes, so that editors complete it and type checkers find a typo."""

ALGORITHMS: dict[str, Algorithm[Any]] = {
    algorithm.name: algorithm
    for algorithm in (SlidingWindow(), FixedWindow(), Calendar(), TokenBucket(), LeakyBucket())
}
"""Every algorithm by its name; the first is the default."""

DISTINCT = Distinct()
"""What decides a rule with `distinct=`; it has no place in `algorithm=`."""

EVERY: dict[str, Algorithm[Any]] = {**ALGORITHMS, DISTINCT.name: DISTINCT}
"""Every algorithm that the decision script knows, by its name."""
