"""Three real Celery workers on a real Redis: one limit over all of them, also when one is killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module, reload
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
import redis

from django_quota.testing import RedisServer
from tests.support.commands import PATIENCE, ROOT, Manage, wait_until
from tests.support.stores import caches

pytestmark = pytest.mark.thorough("processes")

SITE = "tests.contrib.celery_site"
QUIET = ("--loglevel", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat")
SECOND = 1_000_000


class Site:
    """Workers, each a process of its own, and the app of this process, to publish."""

    def __init__(self, client: redis.Redis, environment: dict[str, str]) -> None:
        self.client, self.environment = client, environment
        module = sys.modules.get(SITE)
        self.app = (reload(module) if module else import_module(SITE)).app
        self.app.set_current()
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self, pool: str) -> None:
        """Start three workers."""
        for number in range(3):
            words = ["-A", SITE, "worker", "--pool", pool, "--concurrency", "1", "--hostname", f"w{number}@here"]
            command = [sys.executable, "-W", "ignore", "-m", "celery", *words, *QUIET]  # it warns of root
            self.workers.append(
                subprocess.Popen(
                    command, env=self.environment, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True
                )
            )

    def starts(self) -> list[list[int]]:
        """Return which task started, and between which moments its limits let it."""
        return [[*map(int, note.split())] for note in self.client.lrange("starts", 0, -1)]

    def started(self) -> set[int]:
        return {number for number, _, _ in self.starts()}

    def surely_most_in(self, span: int) -> int:
        """Return the most tasks that were let start within a window of this length, whatever came between."""
        starts = [(began, let) for _, began, let in self.starts()]
        return max(sum(1 for began, let in starts if began >= first and let < first + span) for first, _ in starts)


@pytest.fixture
def site(
    redis_server: RedisServer, raw: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Site]:
    settings.CACHES = caches(redis_server)
    monkeypatch.setenv("SITE_REDIS", redis_server.url)
    for name in ("default_app", "_tls.current_app"):  # the app of a test is not that of the next one
        monkeypatch.setattr(f"celery._state.{name}", None)
    monkeypatch.setattr("celery._state._on_app_finalizers", set())
    monkeypatch.setattr("celery._state._apps", WeakSet[Any]())
    made = Site(raw, Manage(tmp_path, settings.CACHES).environment)
    yield made
    for worker in made.workers:
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)  # with the processes of its pool
        worker.wait(PATIENCE)
    made.app.close()


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_other_tasks_run_while_three_workers_stay_within_one_limit(site: Site, pool: str) -> None:
    for number in range(60):
        site.app.tasks["limited"].delay(number)
    for _ in range(10):
        site.app.tasks["other"].delay()

    site.start(pool)

    wait_until(lambda: site.client.get("others") == b"10")
    assert len(site.started()) < 60  # they did not wait for the backlog
    wait_until(lambda: len(site.started()) == 60)
    assert len(site.starts()) == 60
    assert site.surely_most_in(SECOND) <= 10
    assert site.client.llen("celery") == 0


def test_tasks_of_a_killed_worker_run_late_within_the_limit(site: Site) -> None:
    site.start("prefork")
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
