"""Waiting within an event loop: for a condition, or for what its tasks do next."""

import asyncio
from collections.abc import Callable

from tests.support.commands import PATIENCE


async def until(holds: Callable[[], object]) -> None:
    """Let other tasks go on until a condition holds, and fail if it never does."""
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 — nobody would tell
            await asyncio.sleep(0)


async def settled() -> None:
    """Let tasks go on whose futures are done."""
    for _ in range(20):
        await asyncio.sleep(0)
