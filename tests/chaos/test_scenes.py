"""Every scene, briefly: nobody meets an exception, no limit is passed, and in the end all is as before."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from django_quota.testing import server_programs
from tests.chaos.driver import BRIEF, play
from tests.chaos.figures import Account, Allowance, Figures, Record, Times, figures
from tests.chaos.floods import FLOODS, SERVERS, Flood, play_flood, play_idle
from tests.chaos.leaving import LEAVING, Leaving, LeavingFigures, play_leaving
from tests.chaos.scenes import SCENES, Scene
from tests.chaos.sharing import LIMIT, SHARING, Sharing, SharingFigures, play_sharing
from tests.chaos.site import BLOCKED, DENY, LATER, LOCAL, PAIR


@pytest.fixture(scope="module")
def played() -> Iterator[Callable[[Scene[Any]], Figures]]:
    """Play all scenes, three at a time since they mostly wait, and hand out what came of each."""
    with ThreadPoolExecutor(3) as pool:
        program = server_programs()[0]
        under_way = {scene.name: pool.submit(play, scene, BRIEF, program) for scene in SCENES}
        yield lambda scene: under_way[scene.name].result()[0]
        for future in under_way.values():
            future.cancel()


@pytest.mark.thorough("chaos")
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_no_promise_is_broken(scene: Scene[Any], played: Callable[[Scene[Any]], Figures]) -> None:
    found = played(scene)
    assert found.broken == []
    assert found.tried
    least, most = scene.allowance.outages
    assert found.degraded >= least, "the fault has done nothing"
    assert most or not found.degraded


@pytest.mark.thorough("chaos")
@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.name)
def test_a_flood_opens_no_limit(flood: Flood) -> None:
    assert play_flood(flood.times(0.25), server_programs()[0]).broken == []


@pytest.mark.thorough("chaos")
@pytest.mark.parametrize("how", ["reset", "silence"])
@pytest.mark.parametrize("server", SERVERS)
def test_connections_that_the_network_forgot_cost_no_decision(server: str, how: str) -> None:
    assert play_idle(server, how, server_programs()[0]) == []


@pytest.mark.thorough("chaos")
@pytest.mark.parametrize("leaving", LEAVING, ids=lambda leaving: leaving.name)
def test_a_stream_that_nobody_reads_gives_back_what_it_holds(leaving: Leaving) -> None:
    assert play_leaving(replace(leaving, requests=200), server_programs()[0]).broken == []


@pytest.mark.thorough("chaos")
@pytest.mark.parametrize("sharing", SHARING, ids=lambda sharing: sharing.name)
def test_workers_that_lose_what_they_took_ahead_admit_never_more_than_the_limit(sharing: Sharing) -> None:
    found = play_sharing(sharing.for_seconds(4), server_programs()[0])
    assert found.broken == []
    assert found.killed
    assert found.degraded or not sharing.kills_redis, "the fault has done nothing"


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(SharingFigures(900, 600, 500, 9, most=LIMIT + 1, degraded=0), id="more than the limit"),
        pytest.param(SharingFigures(900, 600, 0, 9, most=LIMIT, degraded=0), id="nothing was taken ahead"),
    ],
)
def test_each_failure_of_shares_is_a_broken_promise(found: SharingFigures) -> None:
    assert len(found.broken) == 1


def test_what_is_held_in_the_end_is_a_broken_promise() -> None:
    held = LeavingFigures(9, 5, {"slots": 2, "tokens": 0})
    assert held.broken == ["2 slots are held though no stream is left"]


def hits(policy: str, number: int, at: float, *, degraded: bool = False, error: str = "") -> list[Record]:
    return [Record(policy, at + n / 1e3, at + n / 1e3, True, degraded, error) for n in range(number)]


@pytest.mark.parametrize(
    ("records", "used", "broken"),
    [
        (hits("deny", DENY.limit, 90), 0, 0),
        (hits("deny", DENY.limit + 1, 90), 0, 1),
        (hits("deny", 1, 101, degraded=True), 0, 1),
        (hits("local", LOCAL.limit // 2 + 1, 101, degraded=True), 0, 1),
        (hits("allow", 1, 101, error="ValueError: x"), 0, 1),
        (hits("allow", 1, 160, degraded=True), 0, 1),
        (hits(PAIR.name, 5, 90), 4, 1),
        (hits(BLOCKED.name, 1, 101), 0, 1),
        (hits(LATER.name, 1, 105), 0, 0),
        (hits(LATER.name, 1, 107), 0, 1),
    ],
)
def test_each_broken_promise_is_found(records: list[Record], used: int, broken: int) -> None:
    accounts = [Account(records, used=used), Account(hits("allow", 1, 160), used=used)]
    assert len(figures(accounts, Times(100, 104), Allowance()).broken) == broken
