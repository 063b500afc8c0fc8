"""How many generated inputs a property is tried on, and whether they are new ones in each run.

`make test` tries a share of them, `make test-all` all, `make fuzz` many times as many. Where `CI` is set each run tries
the same inputs, so a change does not fail by an input that it has nothing to do with. Everywhere else they are new in
each run.

Inputs that come ever closer to a bound (Hypothesis' `target`) are looked for by `make test-all` and `make fuzz`
(`pytest --all`). They also make a failing input smaller, which may take minutes. `make test` shows it as it was found.
Hypothesis remembers it in `.hypothesis`, so the next run begins with it.
"""

import os
from collections.abc import Iterable
from typing import Any

from hypothesis import HealthCheck, Phase, settings

SHARE = 0.05  # what `make test` tries of the inputs
FEWEST = 10  # it tries at least this many
TIMES = int(os.environ.get("FUZZ", "1"))  # how many times as many inputs as usual are tried

_share = 1.0


def prepare(*, everything: bool) -> None:
    """Configure Hypothesis so; `everything`: try all inputs, not a share."""
    global _share  # noqa: PLW0603 - the decorators of the tests read it
    _share = 1.0 if everything or TIMES > 1 else SHARE
    same = bool(os.environ.get("CI")) and "FUZZ" not in os.environ
    thorough = [Phase.target, Phase.shrink] if _share == 1.0 else []
    phases = [Phase.explicit, Phase.reuse, Phase.generate, *thorough]
    settings.register_profile(
        "django_quota", inputs(100), deadline=None, print_blob=True, derandomize=same, phases=phases
    )
    settings.load_profile("django_quota")


def inputs(count: int, suppress_health_check: Iterable[HealthCheck] = (), **more: Any) -> settings:
    """Return Hypothesis' settings for `count` inputs, or `make test`'s share of them.

    `more` are settings of Hypothesis. A busy machine fails no test.
    """
    number = max(min(count, FEWEST), int(count * _share))
    suppressed = sorted({HealthCheck.too_slow, *suppress_health_check}, key=str)
    return settings(max_examples=number * TIMES, suppress_health_check=suppressed, **more)
