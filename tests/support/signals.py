"""Receivers of signals that leave with their block.

One that stays would be called in later tests too: a sync one in a thread of its own where a signal is sent from an
event loop.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def received(signal: Any, receiver: Callable[..., Any]) -> Iterator[None]:
    signal.connect(receiver)
    try:
        yield
    finally:
        signal.disconnect(receiver)
