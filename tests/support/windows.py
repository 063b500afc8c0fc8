"""How many hits a limit has admitted in a window, by what those who asked have written down."""

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence

Hit = tuple[int, int]
"""When a process asked, and when it was allowed (0: it was refused), by a clock of nanoseconds that all share.

It was decided somewhere between these moments, so only hits that lie in a window with both are counted in it.
"""


def paced(until: int, pause: int) -> Iterator[int]:
    """Yield the moment every `pause` until a moment, each in nanoseconds."""
    due = time.monotonic_ns()
    while (now := time.monotonic_ns()) < until:
        if now < due:
            time.sleep((due - now) / 1e9)
            continue
        due += pause
        yield now


def most_in_a_window(hits: Sequence[Hit], window: int) -> int:
    """Return the most hits that lie in one window with both of their moments. `hits`: by when they were asked."""
    asked, allowed = [hit[0] for hit in hits], sorted(hit[1] for hit in hits)
    long = [hit for hit in hits if hit[1] - hit[0] >= window]  # they may have begun before it, and end after it
    return max(
        (
            bisect_left(allowed, first + window)
            - number
            + sum(hit[0] < first and hit[1] >= first + window for hit in long)
            for number, first in enumerate(asked)
        ),
        default=0,
    )
