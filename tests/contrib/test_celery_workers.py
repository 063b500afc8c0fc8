"""Three real Celery workers on a real Redis: one limit over all of them, also when one is killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module, reload
from typing import Any
from weakref import WeakSet

import pytest
import redis

from django_quota.testing import RedisServer
from tests.support.commands import PATIENCE, ROOT, wait_until
from tests.support.stores import caches

pytestmark = [pytest.mark.thorough("processes"), pytest.mark.usefixtures("no_app_stays")]

SITE = "tests.contrib.celery_site"
QUIET = ("--loglevel", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat")
SECOND = 1_000_000


@pytest.fixture
def no_app_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The app of a test is not that of the next one, nor does it get the tasks of that."""
    fresh: dict[str, Any] = {
        "default_app": None,
        "_tls.current_app": None,
        "_on_app_finalizers": set(),
        "_apps": WeakSet[Any](),
    }
    for name, value in fresh.items():
        monkeypatch.setattr(f"celery._state.{name}", value)


class Site:
    """Workers, each a process of its own, and the app of this process, to publish."""

    def __init__(self, server: RedisServer, client: redis.Redis, patch: pytest.MonkeyPatch, **options: Any) -> None:
        self.client = client
        given = {"url": server.url, "caches": caches(server), **options}
        patch.setenv("SITE_OPTIONS", json.dumps(given))
        module = sys.modules.get(SITE)
        self.app = (reload(module) if module else import_module(SITE)).app
        self.app.set_current()
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self, number: int, pool: str) -> None:
        for _ in range(number):
            name = f"w{len(self.workers)}@here"
            words = ["-A", SITE, "worker", "--pool", pool, "--concurrency", "1", "--hostname", name, *QUIET]
            command = [sys.executable, "-W", "ignore", "-m", "celery", *words]  # it warns of root
            self.workers.append(
                subprocess.Popen(command, env=os.environ, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
            )

    def starts(self) -> list[tuple[int, int, int]]:
        """Return which task started, and between which moments its limits let it."""
        return [tuple(map(int, note.split())) for note in self.client.lrange("starts", 0, -1)]  # type: ignore[misc]

    def started(self) -> set[int]:
        return {number for number, _, _ in self.starts()}

    def surely_most_in(self, span: int) -> int:
        """Return the most tasks that were let start within a window of this length, whatever came between."""
        starts = [(began, let) for _, began, let in self.starts()]
        return max(sum(1 for began, let in starts if began >= first and let < first + span) for first, _ in starts)


@pytest.fixture
def sites(redis_server: RedisServer, raw: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    settings.CACHES = caches(redis_server)
    made: list[Site] = []

    def make(**options: Any) -> Site:
        made.append(Site(redis_server, raw, monkeypatch, **options))
        return made[-1]

    yield make
    for site in made:
        for worker in site.workers:
            with suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)  # with the processes of its pool
            worker.wait(PATIENCE)
        site.app.close()


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_three_workers_stay_within_one_limit_and_run_other_tasks_beside(sites: Any, pool: str) -> None:
    site = sites(quota="20/s")
    for number in range(120):
        site.app.tasks["limited"].delay(number)
    for _ in range(10):
        site.app.tasks["other"].delay(0)
    site.start(3, pool)
    wait_until(lambda: site.client.llen("latencies") == 10)
    assert len(site.started()) < 120  # they did not wait for the backlog
    wait_until(lambda: len(site.started()) == 120)
    assert len(site.starts()) == 120
    assert site.surely_most_in(SECOND) <= 20
    assert site.client.llen("celery") == 0


def test_a_killed_worker_loses_no_task_and_its_late_tasks_keep_the_limit(sites: Any) -> None:
    transport = {"visibility_timeout": 12, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
    site = sites(quota="10/s", transport=transport)
    site.start(3, "prefork")
    wait_until(lambda: sum(client["cmd"] == "brpop" for client in site.client.client_list()) == 3)
    for number in range(80):
        site.app.tasks["limited"].quota_apply_async((number,))
    # Kill it while no message is on its way: Celery takes one from Redis before it notes that it holds it.
    wait_until(lambda: site.client.hlen("unacked") + len(site.started()) >= 80)
    assert len(site.started()) < 80
    site.workers[0].kill()
    site.workers[0].wait(PATIENCE)
    wait_until(lambda: site.started() == set(range(80)))
    assert site.surely_most_in(SECOND) <= 10
