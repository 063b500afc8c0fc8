"""Every scene, briefly: nobody meets an exception, no limit is passed, and in the end all is as before.

No times are asserted: the machine may be busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from django_quota.testing import server_programs
from tests.chaos.driver import BRIEF, play
from tests.chaos.figures import Figures, broken
from tests.chaos.scenes import SCENES, Scene, scene_named

pytestmark = pytest.mark.thorough("chaos")

AT_ONCE = 3
"""Scenes that are played at the same time: they mostly wait."""


PROGRAM = server_programs()[0]


@pytest.fixture(scope="module")
def played() -> Iterator[Callable[[Scene[Any]], Figures]]:
    """Play all scenes that can be, some at a time, and hand out what came of each."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        under_way: dict[str, Future[Figures]] = {}
        for scene in SCENES:
            if not scene.needs(PROGRAM):
                under_way[scene.name] = pool.submit(lambda scene: play(scene, BRIEF, PROGRAM)[0], scene)
        yield lambda scene: under_way[scene.name].result()
        for future in under_way.values():
            future.cancel()


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_no_promise_is_broken(scene: Scene[Any], played: Callable[[Scene[Any]], Figures]) -> None:
    if lack := scene.needs(PROGRAM):
        pytest.skip(lack)
    found = played(scene)
    assert broken(found, scene.allowance) == []
    assert found.tried
    if scene.allowance.outages[0]:
        assert found.degraded, "the fault has done nothing"


def test_a_scene_that_a_server_program_cannot_play_says_what_it_lacks(tmp_path: Path) -> None:
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\necho Bad directive or wrong number of arguments: cluster-enabled; exit 1\n")
    program.chmod(0o755)
    lacking = [scene.name for scene in SCENES if scene.needs(program) == f"{program} was built without Cluster"]
    assert lacking == ["cluster-failover", "slot-migration", "half-a-plan"]
    assert not scene_named("killed").needs(program)
