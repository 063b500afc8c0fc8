"""What strangers send, place by place: none of it changes who they are, breaks a page, or fills a process's memory."""

from __future__ import annotations

import os

from hypothesis import settings

TIMES = int(os.environ.get("FUZZ", "1"))
"""How many times as many inputs as usual are tried: `FUZZ=10 pytest tests/hostile tests/test_hostile_input.py`."""


def inputs(count: int) -> settings:
    """Return Hypothesis' settings for so many inputs."""
    return settings(max_examples=count * TIMES)
