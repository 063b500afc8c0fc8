"""A block holds whatever happens to Redis, and reaches every process though the one that saved it is killed."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from django_quota.testing import server_programs
from tests.chaos.scenes import Place, one_server, scene_named
from tests.chaos.servers import Server
from tests.support.commands import ROOT, Manage, managing, wait_until

pytestmark = pytest.mark.thorough("processes")

EARLY, LATE = "ip:192.0.2.1", "ip:192.0.2.2"
"""Who is blocked before Redis fails, and who is blocked meanwhile."""


DECIDING = """
import sys, time, django
django.setup()
from django_quota import check
said = {}
with open(sys.argv[1], "w", buffering=1) as lines:
    while True:
        for subject in sys.argv[2:]:
            answer = "admitted" if check("1000000/m", subject) else "refused"
            if said.get(subject) != answer:
                said[subject] = answer
                lines.write(f"{subject} {answer}\\n")
        time.sleep(0.005)
"""
"""Decides for subjects all the time, and writes a line for each change: subject and answer."""

BLOCKING = """
import os, signal, sys, time, django
django.setup()
from django.db import transaction
from django_quota.models import QuotaOverride

with transaction.atomic():
    transaction.on_commit(lambda: os.kill(os.getpid(), signal.SIGKILL))
    QuotaOverride.objects.create(subject=sys.argv[1], mode="blocked")
"""
"""Blocks a subject, and is killed at the moment of the commit."""


@contextmanager
def _restored(server: Server) -> Iterator[None]:
    """Go back to the state before the first block: its folder has an old snapshot."""
    server.process.kill()
    server.start()
    yield


Opening = Callable[[Path, Path], AbstractContextManager[Place[Any]]]
FAULTS: dict[str, tuple[Opening, Callable[[Any], AbstractContextManager[object]]]] = {
    "old snapshot": (one_server, _restored),
    **{name: (scene_named(name).place, scene_named(name).fault) for name in ("killed", "emptied", "full", "failover")},
}


class Deciding:
    """A process that decides for both subjects all the time."""

    def __init__(self, manage: Manage, file: Path) -> None:
        self._file = file
        command = [sys.executable, "-c", DECIDING, str(file), EARLY, LATE]
        self.process = subprocess.Popen(command, env=manage.environment, cwd=ROOT)

    def answers(self, subject: str) -> list[str]:
        """Return what it said of a subject, without repetitions."""
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return [said for whose, said in map(str.split, lines) if whose == subject]


def block_and_die(manage: Manage, subject: str) -> None:
    """Block a subject in a process that is killed as soon as that is committed."""
    done = subprocess.run([sys.executable, "-c", BLOCKING, subject], env=manage.environment, cwd=ROOT, check=False)
    assert done.returncode == -9


@pytest.mark.parametrize("fault", FAULTS)
def test_who_is_blocked_stays_out(fault: str, tmp_path: Path, database: dict[str, Any]) -> None:
    place, breaking = FAULTS[fault]
    folder = tmp_path / "server"
    folder.mkdir()
    with (
        place(server_programs()[0], folder) as redis,
        managing(tmp_path, redis.caches, {"default": database}) as manage,
        ExitStack() as ending,
    ):

        def start(name: str) -> Deciding:
            made = Deciding(manage, tmp_path / name)
            ending.callback(made.process.wait)
            ending.callback(made.process.kill)
            return made

        old = start("old")
        wait_until(lambda: old.answers(EARLY) == old.answers(LATE) == ["admitted"])
        if fault == "old snapshot":
            redis.target.client.save()
        block_and_die(manage, EARLY)
        wait_until(lambda: "refused" in old.answers(EARLY))
        with breaking(redis.target):
            block_and_die(manage, LATE)
            wait_until(lambda: "refused" in old.answers(LATE))
            new = start("new")
            wait_until(lambda: new.answers(LATE))
        wait_until(redis.is_well)
        after = start("after")
        wait_until(lambda: after.answers(LATE))
        assert all(each.process.poll() is None for each in (old, new, after))
    processes = {"old": old, "new": new, "after": after}
    assert {name: (each.answers(EARLY), each.answers(LATE)) for name, each in processes.items()} == {
        "old": (["admitted", "refused"], ["admitted", "refused"]),
        "new": (["refused"], ["refused"]),
        "after": (["refused"], ["refused"]),
    }
