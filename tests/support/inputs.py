"""How many generated inputs a property is tried on, and whether they are new ones in each run.

`make test` tries a share of them, `make test-all` all, `make fuzz` many times as many. Where `CI` is set each run tries
the same inputs, so nothing is refused for what another change did. Everywhere else they are new in each run.
"""

import os
from collections.abc import Iterable
from typing import Any

from hypothesis import HealthCheck, settings

SHARE = 0.15  # what `make test` tries of the inputs

FEWEST = 10  # it tries at least this many

TIMES = int(os.environ.get("FUZZ", "1"))  # how many times as many inputs as usual are tried

SAME = bool(os.environ.get("CI")) and "FUZZ" not in os.environ  # whether each run tries the same inputs

_share = 1.0


def prepare(*, everything: bool) -> None:
    """Have Hypothesis go by this; `everything`: try all inputs, not a share."""
    global _share  # noqa: PLW0603 - the decorators of the tests read it
    _share = 1.0 if everything or TIMES > 1 else SHARE
    settings.register_profile(
        "django_quota",
        max_examples=_number(100),
        deadline=None,
        print_blob=True,
        derandomize=SAME,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("django_quota")


def inputs(
    count: int, suppress_health_check: Iterable[HealthCheck] = (), *, always: bool = False, **more: Any
) -> settings:
    """Return Hypothesis' settings for `count` inputs, or `make test`'s share of them; `always`: never a share.

    `more` are settings of Hypothesis. A busy machine fails no test.
    """
    suppressed = {HealthCheck.too_slow, *suppress_health_check}
    number = count * TIMES if always else _number(count)
    return settings(max_examples=number, suppress_health_check=sorted(suppressed, key=str), **more)


def _number(count: int) -> int:
    return max(min(count, FEWEST), int(count * _share)) * TIMES
