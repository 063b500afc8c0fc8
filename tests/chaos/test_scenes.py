"""Every scene, briefly: nobody meets an exception, no limit is passed, and in the end all is as before.

No times are asserted: the machine may be busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from django_quota.testing import server_programs
from tests.chaos.driver import BRIEF, play
from tests.chaos.figures import Figures, broken
from tests.chaos.scenes import SCENES, Scene

pytestmark = pytest.mark.thorough("chaos")

AT_ONCE = 3
"""Scenes that are played at the same time: they mostly wait."""


PROGRAM = server_programs()[0]


@pytest.fixture(scope="module")
def played() -> Iterator[Callable[[Scene[Any]], Figures]]:
    """Play all scenes, some at a time, and hand out what came of each."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        under_way: dict[str, Future[Figures]] = {}
        for scene in SCENES:
            under_way[scene.name] = pool.submit(lambda scene: play(scene, BRIEF, PROGRAM)[0], scene)
        yield lambda scene: under_way[scene.name].result()
        for future in under_way.values():
            future.cancel()


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_no_promise_is_broken(scene: Scene[Any], played: Callable[[Scene[Any]], Figures]) -> None:
    found = played(scene)
    assert broken(found, scene.allowance) == []
    assert found.tried
    if scene.allowance.outages[0]:
        assert found.degraded, "the fault has done nothing"
