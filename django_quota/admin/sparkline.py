"""Sparklines: the last minutes of a rule as a small drawing. It must not know where they are from.

Two paths in one drawing, the refused on top of the allowed; what they show is said in words too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _

from django_quota.activity import Minute

HEIGHT = 28
STEP = 3
"""Units of the drawing: its height, and the width of a minute."""


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A drawing; `allowed` and `refused` are the `d` of an SVG path each."""

    width: int
    height: int
    allowed: str
    refused: str
    words: str


def sparkline(minutes: Sequence[Minute]) -> Sparkline | None:
    """Draw minutes, the oldest first; None where there are none."""
    if not minutes:
        return None
    peak = max(1, *map(sum, minutes))
    allowed, refused = [], []
    for place, minute in enumerate(minutes):
        above = _units(sum(minute), peak)
        low = _units(minute.allowed, peak)
        if minute.refused:
            low = min(low, above - 1)  # one refusal among thousands is still to be seen
            refused.append(_bar(place * STEP, HEIGHT - above, above - low))
        if low > 0:
            allowed.append(_bar(place * STEP, HEIGHT - low, low))
    words = _("Last %(minutes)d minutes: %(allowed)d allowed, %(refused)d refused; at most %(peak)d in a minute") % {
        "minutes": len(minutes),
        "allowed": sum(minute.allowed for minute in minutes),
        "refused": sum(minute.refused for minute in minutes),
        "peak": max(map(sum, minutes)),
    }
    return Sparkline(len(minutes) * STEP, HEIGHT, "".join(allowed), "".join(refused), words)


def _units(count: int, peak: int) -> int:
    """Return how high a count is drawn: what is there is seen."""
    return max(round(count / peak * HEIGHT), 2) if count else 0


def _bar(x: int, y: int, height: int) -> str:
    return f"M{x} {y}h{STEP - 1}v{height}h{1 - STEP}z"
