"""How many generated inputs a law is tried on, and whether they are new ones in each run.

Where a change is let in (`CI` is set) a law meets the same inputs each time: nothing is refused for what another change
did. Everywhere else they are new in each run, and `make fuzz` tries many times as many.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from hypothesis import HealthCheck, settings

TIMES = int(os.environ.get("FUZZ", "1"))
"""How many times as many inputs as usual are tried."""

SAME = bool(os.environ.get("CI")) and "FUZZ" not in os.environ
"""Whether each run tries the same inputs."""


def prepare() -> None:
    """Have Hypothesis go by this where a test says nothing."""
    settings.register_profile(
        "django_quota",
        max_examples=100 * TIMES,
        deadline=None,
        print_blob=True,
        derandomize=SAME,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("django_quota")


def inputs(count: int, suppress_health_check: Iterable[HealthCheck] = (), **more: Any) -> settings:
    """Return Hypothesis' settings for so many inputs; `more` are settings of its own. A busy machine fails no test."""
    suppressed = {HealthCheck.too_slow, *suppress_health_check}
    return settings(max_examples=count * TIMES, suppress_health_check=sorted(suppressed, key=str), **more)
