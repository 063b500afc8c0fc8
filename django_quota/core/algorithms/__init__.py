"""The algorithms, by name."""

from __future__ import annotations

from typing import Any, Literal

from django_quota.core.algorithms.base import (
    NEVER,
    Algorithm,
    Limit,
    Options,
    Parameters,
    Verdict,
)
from django_quota.core.algorithms.calendar import Calendar
from django_quota.core.algorithms.distinct import Distinct
from django_quota.core.algorithms.fixed_window import FixedWindow
from django_quota.core.algorithms.sliding_window import SlidingWindow
from django_quota.core.algorithms.stock import STOCK
from django_quota.core.algorithms.subscription import Subscription
from django_quota.core.algorithms.token_bucket import LeakyBucket, TokenBucket

__all__ = [
    "ALGORITHMS",
    "DISTINCT",
    "NEVER",
    "REGISTRY",
    "STOCK",
    "SUBSCRIPTION",
    "Algorithm",
    "AlgorithmName",
    "Limit",
    "Options",
    "Parameters",
    "Verdict",
]

AlgorithmName = Literal["sliding_window", "fixed_window", "calendar", "token_bucket", "leaky_bucket"]
"""The values of `algorithm=`: editors complete them, and type checkers find typos."""

ALGORITHMS: dict[str, Algorithm[Any]] = {
    algorithm.name: algorithm
    for algorithm in (SlidingWindow(), FixedWindow(), Calendar(), TokenBucket(), LeakyBucket())
}
"""Every algorithm by its name; the first is the default."""

DISTINCT = Distinct()
"""Decides rules with `distinct=`; not a value of `algorithm=`."""

SUBSCRIPTION = Subscription()
"""Decides the weeks, months and years of rules with `starts=`; people know it as `calendar`."""

REGISTRY: dict[str, Algorithm[Any]] = {
    **ALGORITHMS,
    DISTINCT.name: DISTINCT,
    "subscription": SUBSCRIPTION,
    STOCK.name: STOCK,
}
"""Every algorithm that the decision script knows, by its name."""
